"""RelationGraph: how the relations of a graph touch each other.

Two relations touch if an entity is an answer of both. With inverses as relations of their own, one
symmetric matrix of counts holds all four cases. For relations `r` and `s` of `R`, the entities that
both have as tails are counted at `(r, s)`, those that both have as heads at `(r + R, s + R)`, and
those that are a tail of one and a head of the other at `(r, s + R)` and `(r + R, s)`.

The matrix is the sum of one term per entity. A graph with changes is therefore counted again only
at the entities that changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from oneshot.graph.sparse import SparseMatrix

if TYPE_CHECKING:
    from oneshot.graph.adjacency import AdjacencyGraph

MAX_DENSE = 2048
"""Number of relations, with inverses, up to which the matrix is dense."""

# Edges of the entities that are counted together, and entries of a dense block on a GPU.
_BLOCK_EDGES = 1 << 21
_BLOCK_ENTRIES = 1 << 26


@dataclass(frozen=True)
class RelationGraph:
    """Joint counts of the relations of a graph with `R` relations and `V` entities.

    `joint` float [2R, 2R]: number of entities that are answers of both relations; on the diagonal
    the number of answers of each. Dense, or a `SparseMatrix` if there are many relations.
    `facts` float [2R]: number of facts of each relation. `num_entities`: `V`.
    """

    joint: Tensor | SparseMatrix
    facts: Tensor
    num_entities: int

    @property
    def num_relations(self) -> int:
        """Number of relations, without inverses."""
        return len(self.facts) // 2

    @property
    def device(self) -> torch.device:
        return self.facts.device

    @cached_property
    def answers(self) -> Tensor:
        """Number of answers of each relation, float [2R]."""
        if isinstance(self.joint, Tensor):
            return self.joint.diagonal()
        row = self._row
        own = row == self.joint.index
        assert self.joint.values is not None
        return torch.zeros_like(self.facts).index_copy(0, row[own], self.joint.values[own])

    def rows(self, relations: Tensor) -> Tensor:
        """The rows of `joint` for some relations: int64 [m] → float [m, 2R]."""
        if isinstance(self.joint, Tensor):
            return self.joint.index_select(0, relations)
        joint = self.joint
        assert joint.values is not None
        first, count = joint.indptr[relations].long(), joint.indptr.diff()[relations].long()
        row = torch.arange(len(relations), device=self.device).repeat_interleave(count)
        place = torch.arange(len(row), device=self.device) + (first - count.cumsum(0) + count)[row]
        table = torch.zeros(len(relations), len(self.facts), device=self.device)
        table[row, joint.index[place].long()] = joint.values[place]
        return table

    def to(self, device: torch.device | str) -> "RelationGraph":
        """These counts on a device."""
        device = torch.device(device)
        if self.device.type == device.type and device.index in (None, self.device.index):
            return self
        joint = self.joint
        if isinstance(joint, SparseMatrix):
            assert joint.values is not None
            indptr, index, values = (
                array.to(device) for array in (joint.indptr, joint.index, joint.values)
            )
            moved: Tensor | SparseMatrix = SparseMatrix(indptr, index, values, len(self.facts))
        else:
            moved = joint.to(device)
        return RelationGraph(moved, self.facts.to(device), self.num_entities)

    def overwrite(self, other: "RelationGraph") -> None:
        """Take the counts of another graph with the same relations, in the same memory.

        Only dense counts; a captured step reads them from fixed addresses.
        """
        assert isinstance(self.joint, Tensor)
        assert isinstance(other.joint, Tensor)
        self.joint.copy_(other.joint)
        self.facts.copy_(other.facts)

    @property
    def _row(self) -> Tensor:
        """The row of each entry of a sparse matrix, int64 [m]."""
        assert isinstance(self.joint, SparseMatrix)
        rows = torch.arange(len(self.facts), device=self.device)
        return rows.repeat_interleave(self.joint.indptr.diff())


def count_relations(graph: "AdjacencyGraph") -> RelationGraph:
    """The relation graph of a graph, on its device; reads its edges in blocks."""
    every = torch.arange(graph.num_entities, device=graph.device)
    joint, facts = _counted(graph, every)
    return _relation_graph(joint, facts, graph.num_entities)


def recount_relations(
    earlier: RelationGraph, before: "AdjacencyGraph", after: "AdjacencyGraph", touched: Tensor
) -> RelationGraph:
    """The relation graph of `after`, from the `earlier` one of `before`.

    `touched` int64 [t]: the entities whose facts differ; those beyond the entities of `before` are
    new.
    """
    known = touched[touched < before.num_entities]
    old, old_facts = _counted(before, known)
    new, new_facts = _counted(after, touched)
    joint: Any
    if isinstance(earlier.joint, SparseMatrix):
        assert earlier.joint.values is not None
        arrays = (earlier.joint.values.double(), earlier.joint.index, earlier.joint.indptr)
        joint = scipy.sparse.csr_array(
            tuple(array.cpu().numpy() for array in arrays), shape=earlier.joint.shape
        )
    else:
        joint = earlier.joint.double()
    facts = earlier.facts.double() - old_facts + new_facts
    return _relation_graph(joint - old + new, facts, after.num_entities)


def _relation_graph(joint: Any, facts: Tensor, num_entities: int) -> RelationGraph:
    if isinstance(joint, Tensor):
        return RelationGraph(joint.float(), facts.float(), num_entities)
    joint = joint.tocsr()
    joint.eliminate_zeros()
    joint.sort_indices()
    matrix = SparseMatrix(
        torch.from_numpy(joint.indptr),
        torch.from_numpy(joint.indices),
        torch.from_numpy(joint.data.astype(np.float32)),
        len(facts),
    )
    return RelationGraph(matrix, facts.float().cpu(), num_entities).to(facts.device)


def _counted(graph: "AdjacencyGraph", entities: Tensor) -> tuple[Any, Tensor]:
    """Joint counts over some entities [m], and their edges by relation float64 [2R].

    The counts are a dense tensor float64 [2R, 2R], or a sparse array of scipy.
    """
    count = 2 * graph.num_relations
    is_dense = count <= MAX_DENSE
    facts = torch.zeros(count, dtype=torch.float64, device=graph.device)
    joint: Any = scipy.sparse.csr_array((count, count), dtype=np.float64)
    if is_dense:
        joint = torch.zeros(count, count, dtype=torch.float64, device=graph.device)
    for place, relation in _blocks(graph, entities):
        facts += torch.bincount(relation, minlength=count)
        pairs = torch.unique(place * count + relation)
        place, relation = pairs // count, pairs % count
        if is_dense and graph.device.type != "cpu":
            # Ones and sums below 2^24 are exact in all formats of the product.
            block = torch.zeros(int(place[-1]) + 1, count, device=graph.device)
            block[place, relation] = 1
            joint += block.t() @ block
            continue
        ends = np.searchsorted(place.cpu().numpy(), np.arange(int(place[-1]) + 2))
        ones = np.ones(len(pairs), np.float64)
        shape = (len(ends) - 1, count)
        incidence = scipy.sparse.csr_array((ones, relation.cpu().numpy(), ends), shape=shape)
        product = (incidence.T @ incidence).tocoo()
        if is_dense:
            row, column = (
                torch.from_numpy(index.astype(np.int64)) for index in (product.row, product.col)
            )
            joint[row, column] += torch.from_numpy(product.data)
        else:
            joint = joint + product.tocsr()
    return joint, facts


def _blocks(graph: "AdjacencyGraph", entities: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The edges that point to some entities, in blocks: place of the entity in its block and
    relation, int64 [e] each."""
    if not len(entities):
        return
    edges, degree = graph.edges, graph.degree_of(entities).long()
    block = degree.cumsum(0) // _BLOCK_EDGES
    if graph.device.type != "cpu":
        most = max(_BLOCK_ENTRIES // max(2 * graph.num_relations, 1), 1)
        block = torch.maximum(block, torch.arange(len(entities), device=graph.device) // most)
    for rows in entities.split(torch.unique_consecutive(block, return_counts=True)[1].tolist()):
        start, count = edges.indptr[rows].long(), graph.degree_of(rows).long()
        edges.expect(start, count)
        row = torch.arange(len(rows), device=graph.device).repeat_interleave(count)
        if not len(row):
            continue
        place = torch.arange(len(row), device=graph.device) + (start - count.cumsum(0) + count)[row]
        yield row, edges.relation[place].long()
