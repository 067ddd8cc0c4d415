"""Components: the connected components of a graph, and its entities by degree in each of them.

A random walk never leaves the component in which it starts, and if it is long, it is at each entity
of the component with a probability in proportion to its degree. The local push (`samplers`) needs
both: the sum of the degrees, and the entities of highest degree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

_PIECE = 1 << 22  # neighbours processed at a time


class Heads(NamedTuple):
    """The entities of highest degree around some entities [n].

    `entities` int64 [m]: those of entity `i` are `begin[i]:end[i]`, by descending degree, ties by
    lower id. `begin`, `end` int64 [n]. `volume` float64 [n]: sum of the degrees in the component;
    `size` int64 [n]: its number of entities.
    """

    entities: Tensor
    begin: Tensor
    end: Tensor
    volume: Tensor
    size: Tensor


class ComponentIndex(Protocol):
    """What samplers need to know about components."""

    def heads(self, entities: Tensor, most: int) -> Heads:
        """At most `most` entities of highest degree in the component of each entity [n]."""

    def component_of(self, entities: Tensor) -> Tensor:
        """The number of the component of each entity [n], int64 [n]."""


@dataclass(frozen=True)
class Components:
    """The connected components of the undirected simple graph, ordered by their lowest entity.

    `component` [V]: the component of each entity. `order` [V]: all entities, sorted by component,
    then by descending degree, then by id. `first` int64 [C + 1]: the entities of component `c` are
    `order[first[c]:first[c + 1]]`. `volume` int64 [C]: the sum of their degrees.
    """

    component: Tensor
    order: Tensor
    first: Tensor
    volume: Tensor

    @classmethod
    def of(cls, indptr: Tensor, index: Tensor) -> "Components":
        """The components of a graph with packed rows: `indptr` [V + 1], `index` [P]."""
        device = index.device
        arrays = component_arrays(indptr.cpu().numpy(), index.cpu().numpy())
        return cls(*(torch.from_numpy(array).to(device) for array in arrays.values()))

    def component_of(self, entities: Tensor) -> Tensor:
        return self.component[entities].long()

    def heads(self, entities: Tensor, most: int) -> Heads:
        distinct, which = self.component_of(entities).unique(return_inverse=True)
        begin, end = self.first[distinct], self.first[distinct + 1]
        size = end - begin
        count = size.clamp(max=most)
        parts = [
            self.order[start : start + length].long()
            for start, length in zip(begin.tolist(), count.tolist(), strict=True)
        ]
        listed = torch.cat(parts) if parts else entities[:0]
        last = count.cumsum(0)
        return Heads(
            listed,
            (last - count)[which],
            last[which],
            self.volume[distinct].double()[which],
            size[which],
        )


def component_arrays(
    indptr: NDArray[np.integer], index: NDArray[np.integer]
) -> dict[str, NDArray[Any]]:
    """The arrays of `Components` by name, for packed rows `indptr` [V + 1], `index` [P].

    Reads `index` in pieces; memory grows with the entities only.
    """
    count = len(indptr) - 1
    root = np.arange(count, dtype=index.dtype)
    for source, target in _pairs(indptr, index):
        _unite(root, source, target)
    lowest, component = np.unique(root, return_inverse=True)
    component = component.astype(index.dtype, copy=False).reshape(count)
    degree = np.diff(indptr).astype(np.int64)
    width = int(degree.max(initial=0)) + 1
    key = component.astype(np.int64) * width + (width - 1 - degree)
    sizes = np.bincount(component, minlength=len(lowest))
    return {
        "component": component,
        "order": np.argsort(key, kind="stable").astype(index.dtype),
        "first": np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
        # Exact: the sums are below 2^53.
        "volume": np.bincount(component, degree, len(lowest)).astype(np.int64),
    }


def _pairs(
    indptr: NDArray[np.integer], index: NDArray[np.integer]
) -> Iterator[tuple[NDArray[np.integer], NDArray[np.integer]]]:
    """All pairs of neighbours, each in one direction, in pieces of whole rows."""
    row = 0
    while row < len(indptr) - 1:
        last = int(np.searchsorted(indptr, int(indptr[row]) + _PIECE, side="right")) - 1
        last = min(max(last, row + 1), len(indptr) - 1)
        ends = indptr[row : last + 1].astype(np.int64)
        target = np.asarray(index[ends[0] : ends[-1]])
        source = np.repeat(np.arange(row, last, dtype=index.dtype), np.diff(ends))
        once = source < target
        yield source[once], target[once]
        row = last


def _unite(
    root: NDArray[np.integer], source: NDArray[np.integer], target: NDArray[np.integer]
) -> None:
    """Join the components of all pairs [m]; `root` [V]: the lowest entity of each one's own."""
    source, target = root[source], root[target]
    apart = source != target
    if not apart.any():
        return
    lows, pairs = np.unique(np.stack([source[apart], target[apart]]), return_inverse=True)
    pairs = pairs.reshape(2, -1)
    ones = np.ones(pairs.shape[1], np.int8)
    joined = csr_array((ones, (pairs[0], pairs[1])), (len(lows), len(lows)))
    number, labels = connected_components(joined, directed=False)
    lowest = np.full(number, len(root), root.dtype)
    np.minimum.at(lowest, labels, lows)
    root[lows] = lowest[labels]
    root[:] = root[root]
