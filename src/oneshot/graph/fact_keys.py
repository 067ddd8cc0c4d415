"""Integer keys of facts and pairs: validation, comparison, search and removal of duplicates."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary


def check_ids(ids: NDArray[np.integer], names: Vocabulary, where: str = "facts") -> None:
    """Raise unless every id, [n], is in the vocabulary."""
    bad = np.flatnonzero((ids < 0) | (ids >= len(names)))
    if len(bad):
        raise InputError(
            f"{where}: fact {bad[0] + 1} has {names.kind} id {ids[bad[0]]}, "
            f"but ids range from 0 to {len(names) - 1}"
        )


def first_occurrences(
    facts: NDArray[np.integer], num_entities: int, num_relations: int
) -> NDArray[np.int64]:
    """Rows of `facts` [n, 3] that occur for the first time, ascending, int64 [m]."""
    key = combined_key(facts, (num_entities, num_relations, num_entities))
    order = np.argsort(key)
    ordered = key[order]
    new = np.ones(len(facts), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    if new.all():
        return np.arange(len(facts))
    # Equal facts are adjacent in `order`; the smallest row of each group came first.
    return np.sort(np.minimum.reduceat(order, np.flatnonzero(new)))


def combined_key(rows: NDArray[np.integer], sizes: Sequence[int]) -> NDArray[np.int64]:
    """One number per row of `rows` [n, k], `rows[:, i] < sizes[i]`, in the order of rows.

    If the numbers do not fit into 64 bits, the ranks of the rows are used instead.
    """
    if math.prod(max(size, 1) for size in sizes) >= 2**63:
        _, rank = np.unique(rows, axis=0, return_inverse=True)
        return np.asarray(rank, np.int64).ravel()
    key = rows[:, 0].astype(np.int64)
    for column, size in enumerate(sizes[1:], 1):
        key *= size
        key += rows[:, column]
    return key


def place_of(keys: Tensor, wanted: Tensor) -> Tensor:
    """Index of each wanted number in the sorted `keys` [N], or -1. [m] → [m]"""
    place = torch.searchsorted(keys, wanted)
    if not len(keys):
        return place.fill_(-1)
    place.clamp_(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, place, -1)
