"""Devices: by name, as the command line takes them, and what each can do."""

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

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


def available_memory(device: torch.device) -> int:
    """Bytes that can still be had: of a GPU, or of the host without swapping.

    What torch holds of a GPU and does not use counts. A host that does not tell is taken for one
    with 4 GiB, or with half of its memory.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + held)
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123
            for line in lines:
                if line.startswith("MemAvailable"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    total = total_memory(device)
    return 4 << 30 if total is None else total // 2


def total_memory(device: torch.device) -> int | None:
    """Bytes of memory that a GPU or the host has; None if the host does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


_kernels_overridden: bool | None = None


def kernels_work(device: torch.device) -> bool:
    """Whether kernels written in Triton run on a device: one answer for all that have some.

    The first call for a device tries a small kernel there. If it fails, one warning gives the
    reason and what to do, and the plain path, which computes the same, is taken. On a CPU kernels
    run only under Triton's interpreter (`TRITON_INTERPRET=1` in the environment), for tests.
    """
    if _kernels_overridden is not None:
        return _kernels_overridden
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return _runs_kernel(torch.device("cuda", index))
    is_interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return is_interpreted and _runs_kernel(device)


@contextlib.contextmanager
def override_kernels(use: bool | None) -> Iterator[None]:
    """Within the block kernels are taken always (true), never (false) or where they work (None).

    For tests and comparisons.
    """
    global _kernels_overridden
    before, _kernels_overridden = _kernels_overridden, use
    try:
        yield
    finally:
        _kernels_overridden = before


def current_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Within the block Triton launches on a device: it takes the current one of torch."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _runs_kernel(device: torch.device) -> bool:
    """Try a kernel on a device; a failure is a warning."""
    try:
        if importlib.util.find_spec("triton") is None:
            problem, advice = "Triton is not installed", "install it: pip install triton"
        else:
            from oneshot.system._triton import writes

            with current_device(device):
                if writes(device):
                    return True
            problem, advice = "a kernel gave a wrong result", _TRITON_ADVICE
    except torch.OutOfMemoryError:
        raise  # which tells nothing about Triton
    except Exception as error:  # no compiler, a device too old, …: many types, one answer
        told = str(error).strip().partition("\n")[0]
        problem, advice = f"{type(error).__name__}: {told[:200]}", _TRITON_ADVICE
    warnings.warn(
        f"Triton's kernels do not work on {device} ({problem}); sampling, training and answering "
        f"go on without them, slower. To have them, {advice}",
        stacklevel=3,
    )
    return False


_TRITON_ADVICE = (
    "install a C compiler (gcc) and the version of Triton that this torch was made for, on a GPU "
    "of compute capability 7.0 or higher"
)


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
