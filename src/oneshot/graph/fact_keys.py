"""Facts and pairs as one number each: checked, compared, found, and told apart from repeats."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary


def check_ids(ids: NDArray[np.integer], names: Vocabulary, where: str = "facts") -> None:
    """Raise unless every id, [n], is one of the vocabulary's."""
    bad = np.flatnonzero((ids < 0) | (ids >= len(names)))
    if len(bad):
        raise InputError(
            f"{where}: fact {bad[0] + 1} has {names.kind} id {ids[bad[0]]}, "
            f"but the ids go from 0 to {len(names) - 1}"
        )


def first_occurrences(
    facts: NDArray[np.integer], num_entities: int, num_relations: int
) -> NDArray[np.int64]:
    """Rows of `facts` [n, 3] that did not occur before, ascending, int64 [m]."""
    key = combined_key(facts, (num_entities, num_relations, num_entities))
    order = np.argsort(key)
    ordered = key[order]
    new = np.ones(len(facts), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    if new.all():
        return np.arange(len(facts))
    # Equal facts stand together in `order`; the smallest row of each group came first.
    return np.sort(np.minimum.reduceat(order, np.flatnonzero(new)))


def combined_key(rows: NDArray[np.integer], sizes: Sequence[int]) -> NDArray[np.int64]:
    """One number for each row of `rows` [n, k], `rows[:, i] < sizes[i]`, in the order of rows.

    Where the numbers would not fit into 64 bits, the rows are ranked instead.
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
    """Place in the sorted `keys` [N] of each wanted number, or -1. [m] → [m]"""
    place = torch.searchsorted(keys, wanted)
    if not len(keys):
        return place.fill_(-1)
    place.clamp_(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, place, -1)
