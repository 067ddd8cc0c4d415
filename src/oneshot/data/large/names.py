"""Ids of names that do not fit into memory: sorted runs, merged range by range.

Each run holds the distinct names of some facts in sorted order. The runs are cut at the same names
into ranges that fit into memory. Within a range, the names of all runs are merged and sorted. The
ids therefore follow the sorted order of all names, as in `oneshot.data.encode`.
"""

import bisect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.data.large.arrays import ArrayReader, ArrayWriter, save_array
from oneshot.graph.vocabulary import Vocabulary

RANGE_BYTES = 1 << 27
_SAMPLE = 64  # names sampled per run and range to find the cuts


class NameRun:
    """Distinct names in sorted order, in the files `{stem}_blob.npy` and `{stem}_offsets.npy`."""

    def __init__(self, stem: Path) -> None:
        self.stem = stem
        self._blob = ArrayReader(stem.with_name(f"{stem.name}_blob.npy"))
        self._offsets = ArrayReader(stem.with_name(f"{stem.name}_offsets.npy"))

    @classmethod
    def write(cls, stem: Path, names: Any) -> None:
        """Write a pyarrow array of strings that are sorted and distinct."""
        blob, offsets = buffers_of(names)
        save_array(stem.with_name(f"{stem.name}_blob.npy"), blob)
        save_array(stem.with_name(f"{stem.name}_offsets.npy"), offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def num_bytes(self) -> int:
        return len(self._blob) + 8 * len(self)

    def name(self, index: int) -> bytes:
        start, end = self._offsets.read(index, index + 2).tolist()
        return self._blob.read(start, end).tobytes()

    def names(self, start: int, stop: int) -> Any:
        """Names as a pyarrow array."""
        import pyarrow as pa

        offsets = self._offsets.read(start, stop + 1)
        blob = self._blob.read(int(offsets[0]), int(offsets[-1]))
        return _as_arrow(blob, offsets - offsets[0], pa)

    def remove(self) -> None:
        for reader in (self._blob, self._offsets):
            reader.path.unlink(missing_ok=True)


def sorted_names(columns: Sequence[Any]) -> tuple[Any, NDArray[np.int32]]:
    """The distinct names of pyarrow string columns, sorted, and the index of each name among them.

    Returns (pyarrow array, int32 [n] over all columns, one after another).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk for column in columns for chunk in column.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int32)
    rank[order.to_numpy()] = np.arange(len(order), dtype=np.int32)
    return encoded.dictionary.take(order), rank[encoded.indices.to_numpy()]


def merge_runs(
    runs: Sequence[NameRun], directory: Path, kind: str, advance: Callable[[int], None]
) -> int:
    """Assign ids to the names of all runs in sorted order. Returns the number of names.

    Writes `{kind}_blob.npy` and `{kind}_offsets.npy`, the vocabulary, and for each run the ids of
    its names, `{run}_ids.npy`. `advance` is called with the number of finished names.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    dtype = _id_type(sum(map(len, runs)))
    with ExitStack() as stack:
        blobs = stack.enter_context(ArrayWriter(directory / f"{kind}_blob.npy", np.uint8))
        ends = stack.enter_context(ArrayWriter(directory / f"{kind}_offsets.npy", np.int64))
        files = [stack.enter_context(ArrayWriter(ids_file(run), dtype)) for run in runs]
        ends.append(np.zeros(1, np.int64))
        for cuts in _ranges(runs):
            if all(start == stop for start, stop in cuts):
                continue  # some versions of pyarrow cannot combine an empty list
            parts = [run.names(*cut) for run, cut in zip(runs, cuts, strict=True)]
            encoded = pa.chunked_array(parts, pa.large_string()).dictionary_encode()
            encoded = encoded.combine_chunks()
            encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
            order = pc.sort_indices(encoded.dictionary)
            rank = np.empty(len(order), dtype)
            rank[order.to_numpy()] = np.arange(total, total + len(order), dtype=dtype)
            blob, offsets = buffers_of(encoded.dictionary.take(order))
            ends.append(blobs.length + offsets[1:])
            blobs.append(blob)
            _append_parts(files, rank[encoded.indices.to_numpy()], cuts)
            total += len(order)
            advance(sum(stop - start for start, stop in cuts))
    return total


def look_up_runs(
    runs: Sequence[NameRun], vocabulary: Vocabulary, scratch: Path, advance: Callable[[int], None]
) -> None:
    """The ids of the names of all runs in a given vocabulary, -1 for unknown names.

    Writes `{run}_ids.npy` for each run. `scratch`: the stem of files for the sorted vocabulary.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = _as_arrow(vocabulary.blob, vocabulary.offsets, pa)
    order = pc.sort_indices(known)
    NameRun.write(scratch, known.take(order))
    given_ids = order.to_numpy().astype(np.int64)
    given = NameRun(scratch)
    with ExitStack() as stack:
        files = [stack.enter_context(ArrayWriter(ids_file(run), np.int64)) for run in runs]
        for cuts in _ranges([*runs, given]):
            start, stop = cuts.pop()
            parts = [run.names(*cut) for run, cut in zip(runs, cuts, strict=True)]
            names = pa.chunked_array(parts, pa.large_string())
            found = pc.index_in(names, value_set=given.names(start, stop)).fill_null(-1)
            # -1 picks the last entry.
            _append_parts(files, np.append(given_ids[start:stop], -1)[found.to_numpy()], cuts)
            advance(sum(stop - start for start, stop in cuts))
    given.remove()


def ids_file(run: NameRun) -> Path:
    return run.stem.with_name(f"{run.stem.name}_ids.npy")


def buffers_of(names: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of a pyarrow string array, uint8 [bytes], and the ends of the names, [n + 1]."""
    import pyarrow as pa

    names = names.cast(pa.large_string())
    _, offsets, letters = names.buffers()
    ends = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
    if not len(ends):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    blob = np.frombuffer(letters, np.uint8) if letters is not None else np.zeros(0, np.uint8)
    return blob[ends[0] : ends[-1]], ends - ends[0]


def _as_arrow(blob: NDArray[np.uint8], offsets: NDArray[np.int64], pa: Any) -> Any:
    return pa.LargeStringArray.from_buffers(
        len(offsets) - 1,
        pa.py_buffer(np.ascontiguousarray(offsets)),
        pa.py_buffer(np.ascontiguousarray(blob)),
    )


def _id_type(count: int) -> type[np.signedinteger[Any]]:
    return np.int32 if count < 2**31 else np.int64


def _ranges(runs: Sequence[NameRun]) -> list[list[tuple[int, int]]]:
    """Ranges of names that fit into memory, each as the slice (start, stop) of every run."""
    count = -(-sum(run.num_bytes for run in runs) // RANGE_BYTES)
    bounds: list[bytes] = []
    if count > 1:
        # A sample in which every run has a weight proportional to its names.
        step = max(sum(map(len, runs)) // (count * _SAMPLE), 1)
        sample = sorted(run.name(index) for run in runs for index in range(0, len(run), step))
        places = sorted({len(sample) * part // count for part in range(1, count)})
        bounds = sorted({sample[place] for place in places})
    cuts = [
        [
            0,
            *(bisect.bisect_left(range(len(run)), bound, key=run.name) for bound in bounds),
            len(run),
        ]
        for run in runs
    ]
    return [
        [(places[part], places[part + 1]) for places in cuts] for part in range(len(bounds) + 1)
    ]


def _append_parts(
    files: Sequence[ArrayWriter], ids: NDArray[Any], cuts: Sequence[tuple[int, int]]
) -> None:
    """Append to each file the ids of its part of a range."""
    done = 0
    for file, (start, stop) in zip(files, cuts, strict=True):
        file.append(ids[done : done + stop - start])
        done += stop - start
