"""Edges and Neighbours: the adjacency of a graph as arrays, and the protocol of such graphs.

Ids of entities and relations, and indices into the arrays, use 32 bits if possible.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from oneshot.graph.answer_pairs import AnswerPairs
from oneshot.graph.components import ComponentIndex
from oneshot.graph.core import Core
from oneshot.graph.hub_index import HubIndex
from oneshot.graph.sparse import Matrix, SparseMatrix
from oneshot.graph.vocabulary import Vocabulary

SMALL = 2**31
"""Numbers below this limit are stored in 32 bits."""


def integer_type(most: int) -> type[np.int32] | type[np.int64]:
    """The integer type for numbers up to a maximum."""
    return np.int32 if most < SMALL else np.int64


@dataclass(frozen=True)
class Edges:
    """All edges, both directions, grouped by target and sorted by (target, source, relation).

    `indptr` int64 [V + 1]: the edges that point to `o` are `indptr[o]:indptr[o + 1]`.
    `source` [2F]: the source entity of each edge.
    `relation` [2F]: its relation, `0..R-1`, inverse `R..2R-1`.
    `fact` [2F]: its row in `graph.facts`.
    int32 if possible, otherwise int64: one type for ids (`source`, `relation`) and one for indices
    (`fact`, and all of `Neighbours` except `index`).
    """

    indptr: Tensor
    source: Tensor
    relation: Tensor
    fact: Tensor

    def expect(self, start: Tensor, count: Tensor) -> None:
        """Announce that rows `start : start + count` [m] will be read; for memory-mapped files."""

    def places(self, entities: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The edges that point to some entities [m], `count` int64 [m] to each, row by row.

        → (index in `entities` [e], index in the arrays [e]), int64
        """
        start = self.indptr[entities].long()
        self.expect(start, count)
        return row_places(start, count)

    def first_from(self, target: Tensor, source: Tensor, relation: Tensor) -> Tensor:
        """The first edge that points to `target` [m] from (source, relation) [m] on, int64 [m].

        One more than the last edge of the row if there is none. The rows must be contiguous.
        """
        low, end = self.indptr[target].long(), self.indptr[target + 1].long()
        high = end
        most = max(len(self.source) - 1, 0)
        while bool((low < high).any()):
            middle = (low + high) // 2
            at = middle.clamp(max=most)
            there = self.source[at].long()
            is_before = there < source
            same = (there == source).nonzero().squeeze(1)
            is_before[same] = self.relation[at[same]].long() < relation[same]
            is_open = low < high
            low = torch.where(is_open & is_before, middle + 1, low)
            high = torch.where(is_open & ~is_before, middle, high)
        return low

    def find(self, target: Tensor, source: Tensor, relation: Tensor) -> Tensor:
        """The index of edges [m] in the arrays, int64 [m]; -1 for those that do not exist.

        The rows must be contiguous.
        """
        if not len(self.source):
            return torch.full_like(target, -1)
        place = self.first_from(target, source, relation)
        at = place.clamp(max=len(self.source) - 1)
        exists = place < self.indptr[target + 1].long()
        exists &= (self.source[at].long() == source) & (self.relation[at].long() == relation)
        return torch.where(exists, at, -1)


@dataclass(frozen=True)
class Neighbours:
    """The undirected simple graph for PageRank: one entry per pair, no self-loops, sorted.

    `indptr` [V + 1] and `index` [P]: the neighbours of `x` are `index[indptr[x]:indptr[x + 1]]`.
    `pair` [2F]: for each edge of `Edges`, its index in `index`; -1 for a self-loop.
    """

    indptr: Tensor
    index: Tensor
    pair: Tensor

    def expect(self, start: Tensor, count: Tensor) -> None:
        """See `Edges.expect`."""

    def places(self, entities: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The neighbours of some entities [m]; see `Edges.places`."""
        start = self.indptr[entities].long()
        self.expect(start, count)
        return row_places(start, count)

    def place_of(self, entities: Tensor, number: Tensor) -> Tensor:
        """The index in `index` of neighbour `number` of each entity, counted from 0: int64 [m]."""
        return self.indptr[entities].long() + number

    @cached_property
    def degree(self) -> Tensor:
        """Number of neighbours of each entity, int64 [V]."""
        return self.indptr.diff().long()

    def degree_of(self, entities: Tensor) -> Tensor:
        """Number of neighbours of some entities [m], int64 [m]; reads no others if mapped."""
        return self.degree[entities]

    @cached_property
    def largest_degree(self) -> int:
        """Maximum number of neighbours of an entity."""
        return int(self.degree.max()) if len(self.indptr) > 1 else 0


class AdjacencyGraph(Protocol):
    """The interface of graphs for samplers; `KnowledgeGraph` documents the members.

    All tensors are on `device`. A graph that is too large for it has a `host`, the same graph in
    the memory of the host, which must be used instead.
    """

    @property
    def num_entities(self) -> int: ...
    @property
    def num_relations(self) -> int: ...
    @property
    def num_facts(self) -> int: ...
    @property
    def relations(self) -> Vocabulary: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def host(self) -> "AdjacencyGraph | None": ...
    @property
    def packed(self) -> bool: ...
    @property
    def push_recall(self) -> float | None: ...
    @property
    def push_precision(self) -> float | None: ...
    @property
    def hub_index(self) -> HubIndex | None: ...
    @property
    def hub_recall(self) -> float | None: ...
    @property
    def base(self) -> "AdjacencyGraph": ...

    core: Core | None

    @property
    def answer_pairs(self) -> AnswerPairs: ...
    @property
    def edges(self) -> Edges: ...
    @property
    def neighbours(self) -> Neighbours: ...
    @property
    def components(self) -> ComponentIndex: ...
    @property
    def weights(self) -> Tensor | None: ...
    @property
    def pair_weights(self) -> Tensor | None: ...
    def message_weights(self, facts: Tensor) -> Tensor: ...
    @property
    def degree(self) -> Tensor: ...
    def degree_of(self, entities: Tensor) -> Tensor: ...
    def normalized_adjacency(self, dtype: torch.dtype = torch.float32) -> Matrix: ...


ArraysT = TypeVar("ArraysT", Edges, Neighbours)


def row_places(start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of rows given by start and count [m]: (row [e], position [e]), int64."""
    total = int(count.sum())
    rows = torch.arange(len(count), device=count.device)
    row = rows.repeat_interleave(count, output_size=total)
    first = count.cumsum(0) - count
    return row, torch.arange(total, device=count.device) + (start - first)[row]


def compress_indptr(indptr: Tensor, keep: Tensor) -> Tensor:
    """Row pointers after removing the entries where `keep` is false. → int64 [V + 1]."""
    kept_before = torch.cat([keep.new_zeros(1, dtype=torch.long), keep.cumsum(0)])
    return kept_before[indptr.long()]


def weighted_degree(neighbours: Neighbours, pair_weights: Tensor | None) -> Tensor:
    """Number of neighbours of each entity, or the sum of their weights [P] if given: [V]."""
    if pair_weights is None:
        return neighbours.degree
    every = torch.arange(len(pair_weights), device=pair_weights.device)
    # A product of matrices sums in a fixed order on every device.
    total = SparseMatrix(neighbours.indptr, every, None, len(every)) @ pair_weights[:, None]
    return total.squeeze(1)


def normalized_adjacency(
    neighbours: Neighbours, dtype: torch.dtype, pair_weights: Tensor | None = None
) -> SparseMatrix:
    """See `KnowledgeGraph.normalized_adjacency`; `pair_weights` [P]: those of the neighbours."""
    degree = neighbours.degree
    isolated = (degree == 0).nonzero().squeeze(1)
    linked = None
    if len(isolated):
        degree = degree.clamp(min=1)
        indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        index = neighbours.index.new_empty(int(indptr[-1]))
        linked = torch.ones(len(index), dtype=torch.bool, device=index.device)
        linked[indptr[isolated]] = False
        index[linked] = neighbours.index
        index[indptr[isolated]] = isolated.to(index.dtype)
    else:
        indptr, index = neighbours.indptr, neighbours.index
    if pair_weights is None:
        root = degree.to(dtype).rsqrt()
        values = root.repeat_interleave(degree) * root[index]
    else:
        total = weighted_degree(neighbours, pair_weights)
        total[isolated] = 1
        root = total.rsqrt()
        entries = pair_weights
        if linked is not None:
            entries = pair_weights.new_ones(len(index))
            entries[linked] = pair_weights
        values = (root.repeat_interleave(degree) * root[index] * entries).to(dtype)
    return SparseMatrix(indptr, index, values, len(degree))


def moved(arrays: ArraysT, device: torch.device) -> ArraysT:
    columns = {
        field.name: getattr(arrays, field.name).to(device) for field in dataclasses.fields(arrays)
    }
    return type(arrays)(**columns)
