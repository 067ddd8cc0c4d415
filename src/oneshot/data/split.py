"""Random splits that keep every entity and relation in train."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError

_PIECE = 1 << 22  # facts per chunk


def split_facts(
    facts: NDArray[np.int64], seed: int, valid_share: float = 0.1, test_share: float = 0.1
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A random split of `facts` [n, 3] that keeps every entity and relation in train.

    For each entity and relation one random fact stays in train; the held-out facts are drawn from
    the others. Returns train, valid and test, each in the order of `facts`.
    """
    sizes = int(facts[:, [0, 2]].max(initial=-1)) + 1, int(facts[:, 1].max(initial=-1)) + 1
    part = split_parts(lambda: [facts], len(facts), sizes, seed, valid_share, test_share)
    return facts[part == 0], facts[part == 1], facts[part == 2]


def split_parts(
    pieces: Callable[[], Iterable[NDArray[np.integer]]],
    count: int,
    sizes: tuple[int, int],
    seed: int,
    valid_share: float,
    test_share: float,
) -> NDArray[np.int8]:
    """The part of each fact in `split_facts`: 0 train, 1 valid, 2 test; int [count].

    For facts that do not fit into memory: `pieces()` yields all `count` facts in order. `sizes`:
    the numbers of entities and relations. Needs about ten bytes per fact.
    """
    check_shares(valid_share, test_share)
    if seed < 0:
        raise InputError(f"the seed must not be negative, not {seed}")
    # `rank` is the order of the shuffled facts, the inverse of a random permutation.
    kind: type[np.integer] = np.int32 if count < 2**31 else np.int64
    order: NDArray[np.integer] = np.arange(count, dtype=kind)
    np.random.default_rng(seed).shuffle(order)
    rank = np.empty_like(order)
    for start in range(0, count, _PIECE):
        some = order[start : start + _PIECE]
        rank[some] = np.arange(start, start + len(some), dtype=kind)
    del order
    # The first shuffled fact of each entity and relation must stay in train.
    firsts = [np.full(size, count, rank.dtype) for size in sizes]
    start = 0
    for facts in pieces():
        here = rank[start : start + len(facts)]
        for first, column in ((firsts[0], 0), (firsts[0], 2), (firsts[1], 1)):
            np.minimum.at(first, facts[:, column], here)
        start += len(facts)
    free = np.ones(count, bool)
    for first in firsts:
        free[first[first < count]] = False
    num_valid, num_test = held_out(count, int(free.sum()), valid_share, test_share)
    valid_end = _end_of(free, num_valid)
    test_end = _end_of(free, num_valid + num_test)
    part = np.zeros(count, np.int8)
    for start in range(0, count, _PIECE):
        here = rank[start : start + _PIECE]
        is_test = (here >= valid_end).astype(np.int8)
        part[start : start + _PIECE] = (free[here] & (here < test_end)) * (1 + is_test)
    return part


def check_shares(valid_share: float, test_share: float) -> None:
    """Raise if these shares cannot be held out."""
    if not (valid_share >= 0 and test_share >= 0 and valid_share + test_share < 1):
        raise InputError(
            f"the held-out shares must be at least 0 and sum to less than 1, not {valid_share} "
            f"and {test_share}"
        )


def held_out(count: int, free: int, valid_share: float, test_share: float) -> tuple[int, int]:
    """The sizes of valid and test for `count` facts of which `free` may be held out."""
    num_valid, num_test = int(valid_share * count), int(test_share * count)
    if num_valid + num_test > free:
        num_valid = free * num_valid // (num_valid + num_test)
        num_test = free - num_valid
    return num_valid, num_test


def split_notes(
    count: int, num_valid: int, num_test: int, seed: int, valid_share: float, test_share: float
) -> list[str]:
    """Remarks for the user about the split of `count` facts."""
    notes = [f"split at random with seed {seed}; every entity and relation is in train"]
    wanted = int(valid_share * count) + int(test_share * count)
    if num_valid + num_test < wanted or not (num_valid and num_test):
        held_out = num_valid + num_test
        share = f"only {held_out:,} of {count:,}" if held_out else f"none of the {count:,}"
        notes.append(
            f"{share} facts are held out: one fact of every entity and relation stays in train"
        )
    return notes


def _end_of(free: NDArray[np.bool_], count: int) -> int:
    """The length of the shortest prefix of `free` [n] with `count` true values."""
    for start in range(0, len(free), _PIECE):
        some = free[start : start + _PIECE]
        here = int(some.sum())
        if here >= count:
            return start + int(np.searchsorted(np.cumsum(some), count)) + 1 if count else start
        count -= here
    return len(free)
