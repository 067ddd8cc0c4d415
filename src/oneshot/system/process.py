"""Settings of a process of the command line: waiting threads and memory allocation.

They are set before torch is loaded. A library call in another program must not change them.
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading

ONEDNN_LIMIT, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""The variable that limits the CPU instructions of oneDNN, and its value without AMX."""

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # parameters of glibc's mallopt


def prepare_process() -> None:
    """Apply settings that make CPU work several times faster, if the system supports them."""
    # OpenMP threads spin while they wait for each other. On a machine with other load, this can
    # slow down a training tenfold: the spinning thread occupies the core that the other one needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Some virtual machines announce AMX but do not allow it: bfloat16 products then kill the
    # process. There are few such products, and they gain little from AMX. oneDNN reads this once.
    os.environ.setdefault(ONEDNN_LIMIT, WITHOUT_AMX)
    _keep_freed_memory()


def yield_to_other_threads(nice: int) -> None:
    """Let the scheduler prefer other threads to this one by so many levels of niceness.

    Has no effect on systems other than Linux, where niceness belongs to a thread.
    """
    if sys.platform.startswith("linux"):
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(now + nice, 19))


def return_freed_memory() -> None:
    """Return freed memory to the system, to measure memory or make it available to others.

    Has no effect with a C library other than glibc.
    """
    gc.collect()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def _keep_freed_memory() -> None:
    """Reuse large freed blocks instead of returning them to the system.

    A predictor allocates blocks of many megabytes in each layer. By default, each is requested from
    the system page by page, which takes longer than the arithmetic.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library: slower, but correct
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
