"""Search for entities by name: prefix matches first, then fuzzy matches.

Names are folded (case, accents, `_` as a space). Prefix matches are found by bisection of the
sorted names, fuzzy matches by shared trigrams. Both read only a few of millions of names.
"""

import difflib
import threading
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from oneshot.graph.vocabulary import GrowingVocabulary, Vocabulary

_BUCKETS = 1 << 18  # of trigrams
_POSTINGS = 150_000  # read by a search, those of the rarest trigrams first
_COMPARED = 150  # names compared character by character
_LIKE = 0.55  # lowest similarity ratio: about half of the characters match, in order
_PREFIX_RANKED = 200_000  # names with one prefix that are ranked by degree
_CHUNK = 1 << 17
_NEW = 2_000  # names without an index, compared one by one
_COMPARED_LETTERS = 256  # of such a name
_FUZZY_LETTERS = 64  # of a text, in fuzzy matches, and twice as many of a name: time is quadratic


class NameIndex:
    """Index of the names of a vocabulary; `degree` [n], the number of facts, ranks the matches."""

    def __init__(self, names: Vocabulary, degree: NDArray[np.int64]) -> None:
        self._names = names
        self._degree = degree
        blob, offsets = _folded(self._names)
        self._blob, self._offsets = blob, offsets
        self._order = _sorted(blob, offsets)
        self._starts, self._postings = _triples(blob, offsets)

    def beginning(self, text: str, limit: int) -> list[str]:
        """Prefix matches: exact matches first, then by degree."""
        return [self._names[i] for i in self._beginning(_encoded(text), limit)]

    def alike(self, text: str, limit: int) -> "list[tuple[float, int, str]]":
        """Fuzzy matches as (distance, negative degree, name)."""
        # A letter may have several when it is folded.
        wanted = fold(text[:_FUZZY_LETTERS])[:_FUZZY_LETTERS].encode(errors="replace")
        return self._alike(wanted, limit) if len(wanted) >= 3 else []

    def _name(self, position: int) -> bytes:
        """The folded name at a position of the sorted order."""
        number = self._order[position]
        return self._blob[self._offsets[number] : self._offsets[number + 1]].tobytes()

    def _beginning(self, wanted: bytes, limit: int) -> list[int]:
        size = len(wanted)
        positions = range(len(self._order))
        first = bisect_left(positions, wanted, key=lambda i: self._name(i)[:size])
        last = bisect_right(positions, wanted, lo=first, key=lambda i: self._name(i)[:size])
        ids = self._order[first:last][:_PREFIX_RANKED]
        # Names that equal the text except for case come first in the sorted order.
        same = 0
        while same < min(len(ids), limit) and len(self._name(first + same)) == size:
            same += 1
        equal, ids = ids[:same].tolist(), ids[same:]
        if len(ids) > limit:
            ids = ids[np.argpartition(-self._degree[ids], limit)[:limit]]
        ordered = sorted(ids.tolist(), key=lambda i: (-int(self._degree[i]), self._names[i]))
        return [*equal, *ordered][:limit]

    def _alike(self, wanted: bytes, limit: int) -> list[tuple[float, int, str]]:
        letters = np.frombuffer(wanted, np.uint8)
        buckets = np.unique(_buckets(letters)[: max(len(letters) - 2, 0)])
        sizes = self._starts[buckets + 1] - self._starts[buckets]
        order = np.argsort(sizes)
        # The rarest bucket always, then as many as the limit allows.
        count = max(int((np.cumsum(sizes[order]) <= _POSTINGS).sum()), 1)
        lists = [
            self._postings[self._starts[b] : self._starts[b + 1]][:_POSTINGS]
            for b in buckets[order[:count]]
        ]
        ids = np.sort(np.concatenate(lists))
        if not len(ids):
            return []
        new = np.concatenate([[True], ids[1:] != ids[:-1]])
        starts = np.flatnonzero(new)
        shared = np.diff(np.append(starts, len(ids)))
        ids = ids[starts]
        length = self._offsets[ids + 1] - self._offsets[ids]
        likeness = 2 * shared / (length + len(letters))
        if len(ids) > _COMPARED:
            best = np.argpartition(-likeness, _COMPARED)[:_COMPARED]
            ids = ids[best]
        text = wanted.decode(errors="replace")
        matcher = difflib.SequenceMatcher(b=text, autojunk=False)
        rated = []
        for number in ids.tolist():
            name = self._blob[self._offsets[number] : self._offsets[number + 1]].tobytes()
            plain = name.decode(errors="replace")[: 2 * _FUZZY_LETTERS]
            matcher.set_seq1(plain)
            # The quick ratios are upper bounds.
            if min(matcher.real_quick_ratio(), matcher.quick_ratio()) < _LIKE:
                ratio = 0.0
            else:
                ratio = matcher.ratio()
            if text in plain:
                ratio = max(ratio, 0.9)
            if ratio >= _LIKE:
                rated.append((-ratio, -int(self._degree[number]), self._names[number]))
        return sorted(rated)[:limit]


class NameSearch:
    """Index of names that grows.

    The initial names have one index. New names are compared one by one until there are enough for
    an index of their own, which is built in the background. Two indices of new names of similar
    size are merged, so that there are few indices and a name is rarely indexed again.
    """

    def __init__(self, names: Vocabulary, degree: NDArray[np.int64]) -> None:
        self._names = names
        known = names.settled() if isinstance(names, GrowingVocabulary) else names
        unknown = np.zeros(len(known) - len(degree), np.int64)
        self._index = NameIndex(known, np.concatenate([degree, unknown]))
        # Indices of new names as (number of names, index), oldest first. The list is replaced as a
        # whole, so that a running search continues with the old one.
        self._new: tuple[tuple[int, NameIndex], ...] = ()
        self._first = len(known)
        self._making = threading.Lock()
        self._folded: dict[str, str] = {}  # new names without an index

    def search(self, text: str, limit: int) -> list[str]:
        """Prefix matches by degree, then fuzzy matches.

        Half of the results are reserved for new names, whose degrees are unknown.
        """
        indices, fresh = self._look()
        wanted = fold(text)
        folded = [(self._plain(name), name) for name in reversed(fresh)]
        new = [name for plain, name in folded if plain.startswith(wanted)]
        for index in indices:
            new += index.beginning(text, limit)
        found = dict.fromkeys([text] if text in self._names else [])
        found |= dict.fromkeys(new[: (limit + 1) // 2])
        found |= dict.fromkeys(self._index.beginning(text, limit))
        found |= dict.fromkeys(new)
        if len(found) < limit and wanted:
            found |= dict.fromkeys(name for plain, name in folded if wanted in plain)
            found |= dict.fromkeys(_best(i.alike(text, limit) for i in (*indices, self._index)))
        return list(found)[:limit]

    def _plain(self, name: str) -> str:
        """The beginning of a new name, folded; folding an unusual name is slow."""
        plain = self._folded.get(name)
        if plain is None:
            if len(self._folded) > 4 * _NEW:  # most of these names have an index by now
                self._folded = {}
            plain = self._folded[name] = fold(name[:_COMPARED_LETTERS])
        return plain

    def _look(self) -> tuple[list[NameIndex], list[str]]:
        """The indices of new names, latest first, and the latest names without an index."""
        if not isinstance(self._names, GrowingVocabulary):
            return [], []
        names = self._names.new_names
        indices = self._new
        done = self._first - len(self._names.base) + sum(count for count, _ in indices)
        if len(names) - done >= _NEW and self._making.acquire(blocking=False):
            threading.Thread(target=self._index_new, daemon=True).start()
        return [index for _, index in reversed(indices)], names[max(done, len(names) - 2 * _NEW) :]

    def _index_new(self) -> None:
        """Index the names that have no index. The caller holds the lock, which is released here."""
        try:
            assert isinstance(self._names, GrowingVocabulary)
            names = self._names.new_names[self._first - len(self._names.base) :]
            indices = self._new
            size = len(names) - sum(count for count, _ in indices)
            if size < _NEW:
                return
            while indices and indices[-1][0] <= size:
                size += indices[-1][0]
                indices = indices[:-1]
            block = Vocabulary.from_names(names[len(names) - size :], self._names.kind)
            self._new = (*indices, (size, NameIndex(block, np.zeros(size, np.int64))))
        finally:
            self._making.release()


def _best(found: "Iterable[list[tuple[float, int, str]]]") -> list[str]:
    """Merge the fuzzy matches of several indices, the most similar first."""
    return [name for _, _, name in sorted(rated for part in found for rated in part)]


def _encoded(text: str) -> bytes:
    return fold(text).encode(errors="replace")


def fold(text: str) -> str:
    """A name in lower case, without accents, with `_` as a space."""
    plain = text.lower().replace("_", " ")
    if plain.isascii():
        return plain
    parts = unicodedata.normalize("NFKD", plain)
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def _folded(names: Vocabulary) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All folded names as (UTF-8 bytes, start of each name)."""
    blob = np.array(names.blob)
    if not (blob >= 0x80).any():
        capital = (blob >= ord("A")) & (blob <= ord("Z"))
        blob[capital] += 32
        blob[blob == ord("_")] = ord(" ")
        return blob, names.offsets
    encoded = [fold(name).encode() for name in names]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def _sorted(blob: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of names, sorted by their bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [
            None,
            pa.py_buffer(np.ascontiguousarray(offsets)),
            pa.py_buffer(np.ascontiguousarray(blob)),
        ],
    )
    return np.asarray(pc.sort_indices(names), dtype=np.int64)


def _buckets(letters: NDArray[np.uint8]) -> NDArray[np.int64]:
    """A hash of each byte with the two after it, [n]; the last two have no meaning."""
    text = np.concatenate([letters, np.zeros(2, np.uint8)]).astype(np.int64)
    triple = (text[:-2] << 16) | (text[1:-1] << 8) | text[2:]
    return (triple * 0x9E3779B1 >> 7) & (_BUCKETS - 1)


def _triples(
    blob: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The names that contain each trigram, as (start of each bucket, ids)."""
    columns, counts = [], []
    for start in range(0, len(offsets) - 1, _CHUNK):
        ends = offsets[start : start + _CHUNK + 1] - offsets[start]
        part = blob[offsets[start] : offsets[start] + ends[-1]]
        last_two = np.zeros(len(part) + 1, bool)
        for back in (1, 2):
            positions = ends[1:] - back
            last_two[positions[positions >= ends[:-1]]] = True
        inside = ~last_two[: len(part)]
        columns.append(_buckets(part)[inside].astype(np.int32))
        counts.append(np.maximum(np.diff(ends) - 2, 0))
    if not columns:
        return np.zeros(_BUCKETS + 1, np.int64), np.zeros(0, np.int32)
    column = np.concatenate(columns)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    table = scipy.sparse.csr_array(
        (np.ones(len(column), np.int8), column, indptr), shape=(len(offsets) - 1, _BUCKETS)
    ).tocsc()
    return table.indptr.astype(np.int64), table.indices.astype(np.int32)
