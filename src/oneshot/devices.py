"""Devices by name, as the command line takes them."""

import contextlib
import functools
import importlib.util
from collections.abc import Iterator

import torch

from oneshot.errors import InputError


def find_device(name: str) -> torch.device:
    """The device called `auto`, `cpu` or `cuda` (or `cuda:1`); auto takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; known are auto, cpu and cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device on this machine; use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no device {name!r}: {torch.cuda.device_count()} are there")
    return device


@functools.cache
def has_triton() -> bool:
    """Whether Triton, which compiles kernels for GPUs, is installed."""
    return importlib.util.find_spec("triton") is not None


@contextlib.contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Within the block, products of float32 matrices on a GPU take its matrix units.

    These read 10 of the 23 bits behind the point, and sum up in float32: enough for answers, whose
    scores differ by far more, and several times as fast.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
