"""Devices by name, as the command line takes them."""

import functools
import importlib.util

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
