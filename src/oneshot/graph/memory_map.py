"""Arrays in memory-mapped files: pages are read on first access.

The system reads ahead, up to megabytes per access. For a graph that fits into memory, this is
efficient. For a larger graph, it would fill the memory with unused pages. Such arrays are therefore
mapped with the advice that access is random (`Scattered`), and the pages that will be needed are
announced in advance, all together, because otherwise each access would wait for the disk.
"""

import mmap
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from oneshot.system.files import check_readable

_MACHINES = ("x86_64", "aarch64", "riscv64")
# MAP_NORESERVE of Linux; Python has no constant for it before 3.13.
_NO_RESERVE = 0x4000 if sys.platform == "linux" and platform.machine() in _MACHINES else 0
_CAN_ADVISE = hasattr(mmap.mmap, "madvise") and hasattr(mmap, "MADV_RANDOM")


class Scattered:
    """The pages of mapped arrays [n] of one graph, of which few are accessed.

    `arrays`: memory maps whose rows start and end at the same positions.
    """

    def __init__(self, *arrays: NDArray[Any]) -> None:
        self._maps = []
        for array in arrays:
            pages = _pages_of(array)
            if pages is not None and _CAN_ADVISE:
                pages.madvise(mmap.MADV_RANDOM)
                self._maps.append((pages, int(getattr(array, "offset", 0)), array.itemsize))

    def expect(self, start: Tensor, count: Tensor) -> None:
        """Let the system prefetch rows `start : start + count` [m] in parallel."""
        first, last = start.numpy(), (start + count).numpy()
        for pages, offset, size in self._maps:
            low = (offset + size * first) // mmap.PAGESIZE
            high = (offset + size * last - 1) // mmap.PAGESIZE + 1
            order = np.argsort(low, kind="stable")
            low, high = low[order], np.maximum.accumulate(high[order])
            # Rows with adjacent pages are requested together.
            gap = low[1:] > high[:-1]
            begins = low[np.append(True, gap)[: len(low)]] * mmap.PAGESIZE
            ends = high[np.append(gap, True)[: len(low)]] * mmap.PAGESIZE
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                if end > begin:
                    pages.madvise(mmap.MADV_WILLNEED, begin, min(end, len(pages)) - begin)


def map_array(path: Path, dimensions: int = 1, kinds: str = "iu") -> NDArray[Any]:
    """The integers in a `.npy` file, or other `kinds` of numpy, with copy-on-write pages.

    torch requires writable memory; the file is never changed.
    """
    check_readable(path)
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header can fail in tokenize, ast, mmap or numpy
        raise ValueError(f"{path.name}: {error}") from error
    if array.ndim != dimensions or array.dtype.kind not in kinds:
        raise ValueError(f"{path.name} holds {array.dtype} {list(array.shape)}")
    if sys.platform == "win32" or not array.flags.c_contiguous:
        return np.lib.format.open_memmap(path, mode="c")
    with path.open("rb") as file:
        # Otherwise the system rejects files larger than its memory, as every page could be written.
        flags = mmap.MAP_PRIVATE | _NO_RESERVE
        pages = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    mapped = np.ndarray.__new__(np.memmap, array.shape, array.dtype, pages, int(array.offset))
    mapped.offset = int(array.offset)
    return mapped


def _pages_of(array: NDArray[Any]) -> mmap.mmap | None:
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base
