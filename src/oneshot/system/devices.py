"""Devices by name, as the command line takes them."""

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import torch

from oneshot.errors import InputError
from oneshot.system.process import ONEDNN_LIMIT, WITHOUT_AMX


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


# A matrix product and its gradient as a training step computes them.
_BFLOAT16_PROBE = """
import torch
a = torch.ones(256, 256, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    (a @ a).sum().backward()
"""


def takes_bfloat16(device: torch.device, precision: str) -> bool:
    """Whether `training.precision` means bfloat16 on a device.

    "auto" takes it on a GPU that has it. On a CPU whose bfloat16 products kill the process it is an
    error: torch finds the matrix instructions of the CPU (AMX), which some virtual machines
    announce and do not allow.
    """
    if device.type == "cuda":
        return precision == "bfloat16" or (precision == "auto" and torch.cuda.is_bf16_supported())
    if precision != "bfloat16":
        return False
    if not _bfloat16_survives(os.environ.get(ONEDNN_LIMIT)):
        advice = 'set training.precision to "float32"'
        if _bfloat16_survives(WITHOUT_AMX):
            advice += f", or {ONEDNN_LIMIT}={WITHOUT_AMX} in the environment"
        raise InputError(f"a product in bfloat16 kills the process on this CPU: {advice}")
    return True


@functools.cache
def _bfloat16_survives(limit: str | None) -> bool:
    """Whether another process computes in bfloat16 on the CPU and lives, under oneDNN's limit."""
    if not sys.executable:  # an interpreter within another program; it cannot be tried
        return True
    environment = os.environ if limit is None else {**os.environ, ONEDNN_LIMIT: limit}
    probe = subprocess.run(
        [sys.executable, "-c", _BFLOAT16_PROBE], env=environment, capture_output=True, check=False
    )
    return probe.returncode >= 0  # below: ended by a signal


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
