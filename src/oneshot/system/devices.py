"""Devices by name, and their capabilities."""

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from threading import current_thread, main_thread
from typing import Any

import torch

from oneshot.errors import InputError
from oneshot.system.process import ONEDNN_LIMIT, WITHOUT_AMX


def find_device(name: str) -> torch.device:
    """The device named `auto`, `cpu` or `cuda` (or `cuda:1`); auto selects a GPU if available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available; use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"no device {name!r}: {torch.cuda.device_count()} CUDA devices are available"
        )
    return device


# A matrix product and its gradient, as in a training step.
_BFLOAT16_PROBE = """
import torch
a = torch.ones(256, 256, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    (a @ a).sum().backward()
"""


def takes_bfloat16(device: torch.device, precision: str) -> bool:
    """Whether `training.precision` means bfloat16 on a device.

    "auto" selects it on a GPU that supports it. It is an error on a CPU on which such products kill
    the process: torch uses matrix instructions of the CPU (AMX), which some virtual machines
    announce but do not allow.
    """
    if device.type == "cuda":
        return precision == "bfloat16" or (precision == "auto" and torch.cuda.is_bf16_supported())
    if precision != "bfloat16":
        return False
    if not _bfloat16_survives(os.environ.get(ONEDNN_LIMIT)):
        advice = 'set training.precision to "float32"'
        if _bfloat16_survives(WITHOUT_AMX):
            advice += f", or {ONEDNN_LIMIT}={WITHOUT_AMX} in the environment"
        raise InputError(f"bfloat16 matrix products crash on this CPU: {advice}")
    return True


@functools.cache
def _bfloat16_survives(limit: str | None) -> bool:
    """Whether a subprocess survives a bfloat16 product on the CPU with this oneDNN limit."""
    if not sys.executable:  # an embedded interpreter; it cannot be checked
        return True
    environment = os.environ if limit is None else {**os.environ, ONEDNN_LIMIT: limit}
    probe = subprocess.run(
        [sys.executable, "-c", _BFLOAT16_PROBE], env=environment, capture_output=True, check=False
    )
    return probe.returncode >= 0  # negative: ended by a signal


def available_memory(device: torch.device) -> int:
    """Available memory in bytes: of a GPU, or of the host without swapping.

    It includes GPU memory that torch has cached but does not use. If the host does not report it,
    it is assumed to be half of the memory, or 4 GiB.
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
    """Total memory of a GPU or the host in bytes; None if the host does not report it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


_kernels_overridden: bool | None = None


def kernels_work(device: torch.device) -> bool:
    """Whether Triton kernels work on a device; one result for all kernels.

    The first call for a device runs a small kernel. If it fails, one warning states the reason and
    the remedy, and the plain path, which computes the same, is used. On a CPU, kernels run only in
    Triton's interpreter (`TRITON_INTERPRET=1` in the environment), for tests.
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
    """Use kernels always (true), never (false) or if they work (None) within the block.

    For tests and comparisons.
    """
    global _kernels_overridden
    before, _kernels_overridden = _kernels_overridden, use
    try:
        yield
    finally:
        _kernels_overridden = before


def current_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Launch Triton kernels on this device within the block: Triton uses torch's current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _runs_kernel(device: torch.device) -> bool:
    """Run a kernel on a device; warn on failure."""
    try:
        if importlib.util.find_spec("triton") is None:
            problem, advice = "Triton is not installed", "install it: pip install triton"
        else:
            from oneshot.system._triton import writes

            with current_device(device):
                if writes(device):
                    return True
            problem, advice = "a kernel returned a wrong result", _TRITON_ADVICE
    except torch.OutOfMemoryError:
        raise  # unrelated to Triton
    except Exception as error:  # no compiler, an old device, …: many types of errors
        message = str(error).strip().partition("\n")[0]
        problem, advice = f"{type(error).__name__}: {message[:200]}", _TRITON_ADVICE
    warnings.warn(
        f"Triton kernels do not work on {device} ({problem}); sampling, training and prediction "
        f"continue without them and are slower. To enable them, {advice}",
        stacklevel=3,
    )
    return False


_TRITON_ADVICE = (
    "install a C compiler (gcc) and the Triton version of this torch, on a GPU with compute "
    "capability 7.0 or higher"
)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread within the block: for many small operations.

    They take microseconds, but on a machine with other load, threads that wait for each other make
    it milliseconds. Has an effect on the main thread only: the number is that of the process, and
    threads that start beside the main one would keep what they find.
    """
    threads = torch.get_num_threads()
    if threads == 1 or current_thread() is not main_thread():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Use tensor cores (TF32) for float32 matrix products on a GPU within the block.

    They read 10 of the 23 mantissa bits and accumulate in float32. This is precise enough for
    answers, whose scores differ by far more, and several times as fast.
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
