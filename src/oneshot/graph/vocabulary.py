"""Vocabulary: the names of entities or relations, by id.

Millions of names as Python strings cost hundreds of bytes each, so the names are stored as
one block of UTF-8 with offsets, which can be memory-mapped. Lookup uses a sorted array of 64-bit
hashes, verified against the bytes, without a dictionary. Names with equal hashes can be made on
purpose; only these few are in a dictionary, so that however many there are, a lookup is fast.
"""

import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError, UnknownNameError

# An odd 64-bit multiplier with well mixed bits (2^64 / golden ratio).
_MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = 1 << 64
_SHORT = 24  # bytes of a name up to which a loop in Python is faster than numpy
_CHUNK = 1 << 18  # names hashed or decoded at a time
_COMPARED = 2_000  # names compared character by character when a name is not found


class Vocabulary(Sequence[str]):
    """Names of entities or relations; the position of a name is its id.

    `blob` uint8 [bytes]: all names in UTF-8, one after the other.
    `offsets` int64 [n + 1]: name `i` is `blob[offsets[i]:offsets[i + 1]]`.
    `kind`: type of the names, for messages ("entity" or "relation").
    """

    def __init__(
        self,
        blob: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        kind: str,
        index: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None,
    ) -> None:
        self.blob = blob
        self.offsets = offsets
        self.kind = kind
        if index is not None:
            self.hash_index = index  # replaces the cached property

    @classmethod
    def from_names(cls, names: Iterable[str], kind: str) -> "Vocabulary":
        """The vocabulary of these names, which must be distinct."""
        try:
            encoded = [name.encode() for name in names]
        except UnicodeEncodeError as error:
            raise InputError(f"{kind} {error.object!r} cannot be written in UTF-8") from error
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        vocabulary = cls(np.frombuffer(b"".join(encoded), np.uint8), offsets, kind)
        vocabulary.check_distinct()
        return vocabulary

    @classmethod
    def numbered(cls, count: int, kind: str) -> "Vocabulary":
        """The vocabulary "0", "1", …, for graphs whose entities or relations have no names."""
        return cls.from_names(map(str, range(count)), kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = int(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"there is no {self.kind} number {position} among {len(self)}")
        return self._bytes(position % len(self)).decode()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _CHUNK):
            ends = self.offsets[start : start + _CHUNK + 1].tolist()
            chunk = self.blob[ends[0] : ends[-1]].tobytes()
            for left, right in itertools.pairwise(ends):
                yield chunk[left - ends[0] : right - ends[0]].decode()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.blob, other.blob)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} names, kind={self.kind!r})"

    def get(self, name: str) -> int | None:
        """The id of a name, or None."""
        # Unencodable characters become invalid UTF-8, which matches no known name.
        encoded = name.encode(errors="surrogatepass")
        hashes, ids = self.hash_index
        wanted = np.uint64(_hash(encoded))
        position = int(np.searchsorted(hashes, wanted))
        if position == len(hashes) or hashes[position] != wanted:
            return None
        if position + 1 < len(hashes) and hashes[position + 1] == wanted:
            return self._colliding.get(encoded)
        found = int(ids[position])
        return found if self._bytes(found) == encoded else None

    def index(self, name: str, *_: Any) -> int:
        """The id of a name; raises for an unknown name, with the nearest names."""
        found = self.get(name)
        if found is None:
            raise UnknownNameError(self.kind, name, self.nearest(name))
        return found

    def nearest(self, name: str, count: int = 3) -> list[str]:
        """Known names similar to `name`, best first (for messages)."""
        candidates: dict[str, str] = {}  # folded → as written
        for candidate in self if len(self) <= _COMPARED else self._sharing_letters(name):
            candidates.setdefault(candidate.casefold(), candidate)
        matches = difflib.get_close_matches(name.casefold(), candidates, n=count, cutoff=0.6)
        return [candidates[match] for match in matches]

    @cached_property
    def hash_index(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The names' hashes in ascending order, uint64 [n], and the id of each, int64 [n]."""
        hashes = np.empty(len(self), np.uint64)
        for start in range(0, len(self), _CHUNK):
            ends = self.offsets[start : start + _CHUNK + 1]
            hashes[start : start + _CHUNK] = hash_names(self.blob[ends[0] : ends[-1]], ends)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def extended(self, names: Sequence[str]) -> "Vocabulary":
        """The vocabulary extended by further names, which must be new."""
        if not names:
            return self
        more = Vocabulary.from_names(names, self.kind)
        blob = np.concatenate([self.blob, more.blob])
        offsets = np.concatenate([self.offsets, self.offsets[-1] + more.offsets[1:]])
        (hashes, ids), (new_hashes, new_ids) = self.hash_index, more.hash_index
        place = np.searchsorted(hashes, new_hashes)
        index = np.insert(hashes, place, new_hashes), np.insert(ids, place, new_ids + len(self))
        return Vocabulary(blob, offsets, self.kind, index)

    def check_distinct(self) -> None:
        """Raise if a name occurs twice."""
        first: dict[bytes, int] = {}
        for number in self._with_equal_hashes():
            name = self._bytes(number)
            if name in first:
                raise InputError(
                    f"{self.kind} {name.decode()!r} occurs twice, as number {first[name]} and "
                    f"{number}"
                )
            first[name] = number

    @cached_property
    def _colliding(self) -> dict[bytes, int]:
        """The names that share their hash with another name, and their ids."""
        return {self._bytes(number): number for number in self._with_equal_hashes()}

    def _with_equal_hashes(self) -> list[int]:
        """The ids of names that share their hash with another name, ascending."""
        hashes, ids = self.hash_index
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        numbers: list[int] = np.unique(ids[np.concatenate([same, same + 1])]).tolist()
        return numbers

    def _bytes(self, index: int) -> bytes:
        return self.blob[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def _sharing_letters(self, name: str) -> list[str]:
        """The names that share most character bigrams with `name`."""
        letters = np.frombuffer(name.encode(errors="replace").lower(), np.uint8)
        wanted = np.zeros(1 << 16, bool)
        wanted[_letter_pairs(letters)] = True
        likeness = np.empty(len(self), np.float32)
        for start in range(0, len(self), _CHUNK):
            ends = self.offsets[start : start + _CHUNK + 1]
            shared = wanted[_letter_pairs(_lowered(self.blob[ends[0] : ends[-1]]))]
            running = np.concatenate([np.zeros(1, np.int64), np.cumsum(shared)])
            first, last = ends[:-1] - ends[0], ends[1:] - ends[0] - 1
            count = running[np.maximum(first, last)] - running[first]
            likeness[start : start + _CHUNK] = 2 * count / (np.diff(ends) + len(letters) + 1)
        best = np.argpartition(likeness, -_COMPARED)[-_COMPARED:]
        return [self[i] for i in np.sort(best).tolist()]


class GrowingVocabulary(Vocabulary):
    """A vocabulary to which names can be added one by one, at constant cost.

    Readers in other threads see a name as soon as `add` has returned. `settled` returns a plain
    vocabulary.
    """

    def __init__(self, base: Vocabulary) -> None:
        self.base = base
        self.kind = base.kind
        self.new_names: list[str] = []
        self._new_ids: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        # The arrays of a plain vocabulary, created on demand.
        if name in ("blob", "offsets"):
            return getattr(self.settled(), name)
        raise AttributeError(name)

    def add(self, name: str) -> int:
        """The id of a name, which is added if unknown."""
        found = self.get(name)
        if found is not None:
            return found
        number = len(self)
        self.new_names.append(name)
        self._new_ids[name] = number
        return number

    def settled(self, count: int | None = None) -> Vocabulary:
        """The first `count` names (all, if not given) as a plain vocabulary."""
        new = None if count is None else count - len(self.base)
        return self.base.extended(self.new_names[:new])

    def __len__(self) -> int:
        return len(self.base) + len(self.new_names)

    def __iter__(self) -> Iterator[str]:
        yield from self.base
        yield from list(self.new_names)

    def get(self, name: str) -> int | None:
        found = self._new_ids.get(name)
        return self.base.get(name) if found is None else found

    def nearest(self, name: str, count: int = 3) -> list[str]:
        new = difflib.get_close_matches(name, self.new_names[-_COMPARED:], n=count, cutoff=0.6)
        return [*new, *self.base.nearest(name, count)][:count]

    @property
    def hash_index(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        return self.settled().hash_index

    def _bytes(self, index: int) -> bytes:
        known = len(self.base)
        if index < known:
            return self.base._bytes(index)
        return self.new_names[index - known].encode()


def _lowered(text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """UTF-8 text [n] with ASCII characters in lower case. → uint8 [n]"""
    capital = (text >= ord("A")) & (text <= ord("Z"))
    return text | (capital * np.uint8(32))


def _letter_pairs(text: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Each byte of a text [n] together with the next one, the last with 0. → uint16 [n]"""
    pairs = text.astype(np.uint16) * np.uint16(256)
    pairs[:-1] |= text[1:]
    return pairs


def _hash(name: bytes) -> int:
    """Polynomial hash of one name modulo 2^64, the same as `hash_names` gives."""
    if len(name) > _SHORT:
        terms = np.frombuffer(name, np.uint8).astype(np.uint64)
        terms += np.uint64(1)
        most = len(_first_powers())
        terms *= _first_powers()[: len(name)] if len(name) <= most else _powers(len(name))
        return (int(terms.sum()) + len(name)) % _WORD
    value, power = len(name), 1
    for byte in name:
        power = power * _MULTIPLIER % _WORD
        value = (value + (byte + 1) * power) % _WORD
    return value


def _powers(count: int) -> NDArray[np.uint64]:
    """The powers of the multiplier from the first one on, modulo 2^64."""
    return np.full(count, _MULTIPLIER, np.uint64).cumprod()


@cache
def _first_powers() -> NDArray[np.uint64]:
    return _powers(1 << 14)


def hash_names(blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hashes of consecutive names: `blob` uint8 [bytes], `ends` int64 [n + 1] → uint64 [n]."""
    lengths = np.diff(ends)
    starts = ends[:-1] - ends[0]
    powers = _powers(int(lengths.max(initial=0)) + 1)
    place = np.arange(len(blob)) - np.repeat(starts, lengths)
    terms = (blob.astype(np.uint64) + np.uint64(1)) * powers[place]
    # Sums of slices as differences of a cumulative sum: exact because of wrapping.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    sums: NDArray[np.uint64] = running[starts + lengths] - running[starts]
    return sums + lengths.astype(np.uint64)
