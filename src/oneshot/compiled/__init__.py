"""Kernels for the CPU, compiled from C: where they are, and how they run on several threads."""

import ctypes
import functools
import importlib.util
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

_MODULE = "oneshot.compiled._kernels"


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where the package was installed without a C compiler.

    They are a plain shared library, called through `ctypes`, which lets other threads run
    meanwhile; nothing in it depends on the versions of Python and torch.
    """
    try:
        spec = importlib.util.find_spec(_MODULE)
        return None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)
    except (ImportError, OSError):
        return None


def run(name: str, work: int, *arguments: Any) -> None:
    """Run a kernel on as many threads as torch uses.

    The threads share the work through a counter, the kernel's first argument. `work`: about how
    many numbers it computes; for little of it the calling thread is enough.
    """
    kernels = library()
    assert kernels is not None
    function = getattr(kernels, name)
    # ctypes would pass whole numbers with 32 bits.
    arguments = tuple(ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments)
    counter = ctypes.c_int64(0)
    most = torch.get_num_threads()
    helpers = min(most, work // _WORK_A_THREAD) - 1
    waiting: list[Future[Any]] = []
    if helpers > 0:
        pool = _pool(most)
        waiting = [pool.submit(function, ctypes.byref(counter), *arguments) for _ in range(helpers)]
    function(ctypes.byref(counter), *arguments)
    for one in waiting:
        # One that has not begun finds nothing to do any more.
        if not one.cancel():
            one.result()


# Below this many numbers a thread takes longer to start than to work.
_WORK_A_THREAD = 100_000


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="oneshot")


def pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    """The address of a contiguous tensor's numbers."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


if hasattr(os, "register_at_fork"):  # threads do not follow into a child process
    os.register_at_fork(after_in_child=_pool.cache_clear)
