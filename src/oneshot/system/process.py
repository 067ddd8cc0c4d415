"""Settings of a process that is all ours: how its threads wait and how it keeps memory.

For the command line, before torch is loaded; a library call inside somebody else's program must
not change such things.
"""

import contextlib
import ctypes
import gc
import os
import sys

ONEDNN_LIMIT, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""The variable that limits what oneDNN takes of a CPU, and all it has but for AMX."""

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # parameters of glibc's mallopt


def prepare_process() -> None:
    """Set what makes work on a processor several times faster, where the system knows it."""
    # Threads of OpenMP spin while they wait for each other. On a machine that has other work too
    # this can slow a training down tenfold: the spinning thread takes the core that the awaited
    # one needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Some virtual machines announce AMX and do not allow it: products in bfloat16 then kill the
    # process. Such products are few here and gain little from AMX. oneDNN reads this only once.
    os.environ.setdefault(ONEDNN_LIMIT, WITHOUT_AMX)
    _keep_freed_memory()


def return_freed_memory() -> None:
    """Return to the system what was freed and kept: to measure memory, or to have it for others.

    Another C library than glibc keeps nothing.
    """
    gc.collect()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def _keep_freed_memory() -> None:
    """Have large freed blocks reused instead of returned to the system.

    A predictor allocates blocks of many megabytes in each layer; by default each comes fresh from
    the system, page by page, which takes longer than the arithmetic.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library: only slower
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
