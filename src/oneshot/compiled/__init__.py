"""CPU kernels, compiled from C: the shared library, and its execution on several threads."""

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
    """The kernels, or None if the package was installed without a C compiler.

    They are a plain shared library, called through `ctypes`, which releases the GIL. It does not
    depend on the versions of Python and torch.
    """
    try:
        spec = importlib.util.find_spec(_MODULE)
        return None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)
    except (ImportError, OSError):
        return None


def knows_weights() -> bool:
    """Whether the kernels multiply messages by given factors; an earlier build does not."""
    return library() is not None and hasattr(library(), "knows_weights")


def can_read(is_hiding: bool) -> bool:
    """Whether there are kernels for a graph, which hides some of its facts or not; those of
    an earlier build do not know hidden ones."""
    return library() is not None and (not is_hiding or hasattr(library(), "knows_hidden"))


def run(name: str, work: int, *arguments: Any) -> None:
    """Run a kernel on as many threads as torch uses.

    The threads share the work through a counter, the first argument of the kernel. `work`: the
    approximate number of computed values; little work runs on the calling thread only.
    """
    kernels = library()
    assert kernels is not None
    function = getattr(kernels, name)
    # ctypes would pass integers with 32 bits.
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
        # A thread that has not started yet would find no work.
        if not one.cancel():
            one.result()


# With fewer values, starting a thread takes longer than its work.
_WORK_A_THREAD = 100_000


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="oneshot")


def pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    """The address of the data of a contiguous tensor."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


if hasattr(os, "register_at_fork"):  # a forked child process has no threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
