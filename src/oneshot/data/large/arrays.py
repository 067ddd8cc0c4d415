"""Arrays on disk that are written and read in chunks: growing `.npy` files and sorted rows.

For data that does not fit into memory. Files are read and written, not memory-mapped, so that the
process needs memory only for the chunks.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from oneshot.data.large import arrays as array_files
from oneshot.system.files import sync

PIECE = 1 << 21  # rows read at a time


class ArrayWriter:
    """An array [n] or [n, columns] that grows row by row into a `.npy` file.

    The number of rows is written when the block ends. Until then, the file is not readable.
    """

    def __init__(self, path: Path, dtype: DTypeLike, columns: int | None = None) -> None:
        self.path, self.dtype, self.columns = path, np.dtype(dtype), columns
        self.length = 0
        self._file = path.open("wb")
        self._write_header()
        self._header_size = self._file.tell()

    def append(self, rows: NDArray[Any]) -> None:
        np.ascontiguousarray(rows, self.dtype).tofile(self._file)
        self.length += len(rows)

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                self._file.seek(0)
                self._write_header()
                # numpy reserves space for a larger count, so the size of the header does not
                # change.
                assert self._file.tell() == self._header_size
        if error is None:
            sync(self.path)

    def _write_header(self) -> None:
        shape = (self.length,) if self.columns is None else (self.length, self.columns)
        about = {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, about)


class ArrayReader:
    """A `.npy` file whose rows are read in chunks; `len` is the number of rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            npy.read_magic(file)
            self._shape, _, self.dtype = npy.read_array_header_1_0(file)
            self._start = file.tell()
        self._width = int(np.prod(self._shape[1:], dtype=np.int64))

    def __len__(self) -> int:
        return int(self._shape[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The rows from `start` to before `stop`."""
        stop = min(stop, len(self))
        count = (stop - start) * self._width
        offset = self._start + start * self._width * self.dtype.itemsize
        rows = np.fromfile(self.path, self.dtype, count, offset=offset)
        if len(rows) != count:
            raise OSError(f"{self.path}: the file is shorter than its header specifies")
        return rows.reshape(stop - start, *self._shape[1:])

    def pieces(self) -> Iterator[NDArray[Any]]:
        """All rows, in chunks."""
        for start in range(0, len(self), PIECE):
            yield self.read(start, start + PIECE)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array and flush it to disk."""
    np.save(path, array)
    sync(path)


class SortedRows:
    """Rows of integers, too many for memory, in ascending order of a key.

    Rows are distributed to buckets of adjacent keys, each of which fits into memory, and sorted
    bucket by bucket. `bounds` [b - 1]: ascending keys that divide the buckets (see `bounds_of`);
    `columns`: the types of the other columns.
    """

    def __init__(
        self, directory: Path, bounds: NDArray[Any], columns: Sequence[DTypeLike] = ()
    ) -> None:
        directory.mkdir()
        self.directory, self.bounds = directory, bounds
        names = ["key", *(f"column_{index}" for index in range(len(columns)))]
        types = [bounds.dtype, *(np.dtype(column) for column in columns)]
        self._row = np.dtype(list(zip(names, types, strict=True)))

    def add(self, key: NDArray[Any], *columns: NDArray[Any]) -> None:
        bucket = np.searchsorted(self.bounds, key, side="right").astype(np.uint16)
        rows = np.empty(len(key), self._row)
        for name, column in zip(self._row.names or (), (key, *columns), strict=True):
            rows[name] = column
        rows = rows[np.argsort(bucket, kind="stable")]
        ends = np.cumsum(np.bincount(bucket, minlength=len(self.bounds) + 1)).tolist()
        start = 0
        for place, end in enumerate(ends):
            if end > start:
                with (self.directory / f"{place}").open("ab") as file:
                    rows[start:end].tofile(file)
            start = end

    def buckets(self) -> Iterator[tuple[NDArray[Any], ...]]:
        """(key, column, …) of each bucket, rows in the order in which they were added.

        All keys of a bucket are below those of the next, and equal keys are in one bucket. A bucket
        can be read once: its file is removed.
        """
        for place in range(len(self.bounds) + 1):
            path = self.directory / f"{place}"
            if path.exists():
                rows = np.fromfile(path, self._row)
                path.unlink()
                yield tuple(np.ascontiguousarray(rows[name]) for name in self._row.names or ())
        self.directory.rmdir()


def bounds_of(sample: NDArray[Any], rows: int, bucket_rows: int) -> NDArray[Any]:
    """Keys that divide `rows` rows into buckets of about `bucket_rows`, from a sample of keys."""
    buckets = min(-(-rows // bucket_rows), np.iinfo(np.uint16).max)
    ordered = np.sort(sample)
    places = np.arange(1, buckets) * len(ordered) // max(buckets, 1)
    return np.unique(ordered[places]) if len(ordered) else ordered


class AdjacencyWriter:
    """Writes the arrays of `Edges` and `Neighbours` from sorted edges.

    `ids`, `places`: the integer types of ids and of array indices.
    """

    def __init__(
        self, work: Path, num_entities: int, ids: np.dtype[Any], places: np.dtype[Any]
    ) -> None:
        self._num_entities = num_entities
        self._stack = ExitStack()
        self._files = {
            name: self._stack.enter_context(ArrayWriter(work / f"{name}.npy", dtype))
            for name, dtype in (
                ("edges_indptr", np.dtype(np.int64)),
                ("edges_source", ids),
                ("edges_relation", ids),
                ("edges_fact", places),
                ("neighbours_indptr", places),
                ("neighbours_index", ids),
                ("neighbours_pair", places),
            )
        }
        self._next_entity = 0

    def __enter__(self) -> "AdjacencyWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            none = np.zeros(0, np.int64)
            self._begin_rows(none, np.zeros(1, np.int64), self._num_entities + 1)
        self._stack.__exit__(*error)

    def append(self, key: NDArray[np.int64], label: NDArray[Any], row: NDArray[Any]) -> None:
        """Append edges: (target · V + source) in ascending order, relation, fact.

        All edges of a pair must be in one call.
        """
        target, source = np.divmod(key, self._num_entities)
        loop = source == target
        new = ~loop
        new[1:] &= key[1:] != key[:-1]
        new_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(new)])
        self._begin_rows(target, new_before, int(target[-1]) + 1)
        pair = new_before[1:] - 1 + self._files["neighbours_index"].length
        pair[loop] = -1
        self._files["edges_source"].append(source)
        self._files["edges_relation"].append(label)
        self._files["edges_fact"].append(row)
        self._files["neighbours_pair"].append(pair)
        self._files["neighbours_index"].append(source[new])

    def _begin_rows(
        self, target: NDArray[np.int64], new_before: NDArray[np.int64], end: int
    ) -> None:
        """Write the row starts of the entities up to `end`, before these edges are added."""
        edges = self._files["edges_source"].length
        pairs = self._files["neighbours_index"].length
        for first in range(self._next_entity, end, array_files.PIECE):
            begin = np.searchsorted(target, np.arange(first, min(first + array_files.PIECE, end)))
            self._files["edges_indptr"].append(begin + edges)
            self._files["neighbours_indptr"].append(new_before[begin] + pairs)
        self._next_entity = max(self._next_entity, end)


def row_order(key: NDArray[np.int64], label: NDArray[Any], labels: int) -> NDArray[np.int64]:
    """The order of rows by (key, label), `label < labels`; equal rows in any order."""
    least = key.min()
    if (int(key.max()) - int(least) + 1) * labels < 2**63:
        return np.argsort((key - least) * labels + label)
    return np.lexsort((label, key))
