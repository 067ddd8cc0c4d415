"""RelationGraph: how the relations of a graph touch each other.

Two relations touch if an entity is an answer of both. With inverses as relations of their own, one
symmetric matrix of counts holds all four cases. For relations `r` and `s` of `R`, the entities that
both have as tails are counted at `(r, s)`, those that both have as heads at `(r + R, s + R)`, and
those that are a tail of one and a head of the other at `(r, s + R)` and `(r + R, s)`.

A second matrix counts pairs of entities instead: how often two relations lead from the same entity
to the same other one. Common entities say that two relations are about the same things, common
pairs that one of them follows from the other.

Both matrices are sums of one term per entity. A graph with changes is therefore counted again only
at the entities that changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

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


ARRAYS = ("indptr", "index", "count", "pair_indptr", "pair_index", "pair_count", "facts")
"""Names of the integers of a relation graph (see `count_arrays`)."""

Arrays = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class RelationGraph:
    """Joint counts of the relations of a graph with `R` relations and `V` entities.

    `joint` float [2R, 2R]: number of entities that are answers of both relations; on the diagonal
    the number of answers of each. `pairs` float [2R, 2R]: number of pairs of entities that both
    relations join, in this direction; on the diagonal the number of facts of each. Both are dense,
    or a `SparseMatrix` if there are many relations. `facts` float [2R]: number of facts of each
    relation. `num_entities`: `V`.
    """

    joint: Tensor | SparseMatrix
    pairs: Tensor | SparseMatrix
    facts: Tensor
    num_entities: int

    @classmethod
    def of_arrays(cls, arrays: Arrays, num_entities: int) -> "RelationGraph":
        """The relation graph of the arrays that `count_arrays` returns."""
        *joint, pair_indptr, pair_index, pair_count, facts = arrays
        matrices = (_of_rows(*joint), _of_rows(pair_indptr, pair_index, pair_count))
        return cls(*matrices, facts.float(), num_entities)

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
        row = _row_of_entries(self.joint)
        own = row == self.joint.index
        assert self.joint.values is not None
        return torch.zeros_like(self.facts).index_copy(0, row[own], self.joint.values[own])

    def rows(self, relations: Tensor) -> Tensor:
        """The rows of `joint` for some relations: int64 [m] → float [m, 2R]."""
        return _rows(self.joint, relations)

    def rows_of_pairs(self, relations: Tensor) -> Tensor:
        """The rows of `pairs` for some relations: int64 [m] → float [m, 2R]."""
        return _rows(self.pairs, relations)

    def to(self, device: torch.device | str) -> "RelationGraph":
        """These counts on a device."""
        device = torch.device(device)
        if self.device.type == device.type and device.index in (None, self.device.index):
            return self
        joint, pairs = (_moved(matrix, device) for matrix in (self.joint, self.pairs))
        return RelationGraph(joint, pairs, self.facts.to(device), self.num_entities)

    def copy(self) -> "RelationGraph":
        """The same counts in memory of their own; only dense counts."""
        assert isinstance(self.joint, Tensor)
        assert isinstance(self.pairs, Tensor)
        own = (self.joint.clone(), self.pairs.clone(), self.facts.clone())
        return RelationGraph(*own, self.num_entities)

    def overwrite(self, other: "RelationGraph") -> None:
        """Take the counts of another graph with the same relations, in the same memory.

        Only dense counts; a captured step reads them from fixed addresses.
        """
        for mine, theirs in (
            (self.joint, other.joint),
            (self.pairs, other.pairs),
            (self.facts, other.facts),
        ):
            assert isinstance(mine, Tensor)
            assert isinstance(theirs, Tensor)
            mine.copy_(theirs)


def _of_rows(indptr: Tensor, index: Tensor, count: Tensor) -> Tensor | SparseMatrix:
    """A matrix of counts of its arrays in CSR format; dense if it is small."""
    size, values = len(indptr) - 1, count.float()
    if size > MAX_DENSE:
        return SparseMatrix(indptr, index.int(), values, size)
    matrix = torch.zeros(size, size)
    matrix[torch.arange(size).repeat_interleave(indptr.diff()), index] = values
    return matrix


def _in_rows(matrix: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The opposite of `_of_rows`, for one of `_Counts`: `indptr`, `index` and `count`, int64."""
    if isinstance(matrix, Tensor):
        row, index = matrix.nonzero().unbind(1)
        ends = torch.bincount(row, minlength=len(matrix)).cumsum(0)
        return torch.cat([ends.new_zeros(1), ends]), index, matrix[row, index].long()
    matrix = _ordered(matrix)
    indptr, index, count = (
        torch.from_numpy(array.astype(np.int64))
        for array in (matrix.indptr, matrix.indices, matrix.data)
    )
    return indptr, index, count


def _rows(matrix: Tensor | SparseMatrix, rows: Tensor) -> Tensor:
    """Some rows of a matrix, int64 [m] → float [m, 2R]."""
    if isinstance(matrix, Tensor):
        return matrix.index_select(0, rows)
    assert matrix.values is not None
    first, count = matrix.indptr[rows].long(), matrix.indptr.diff()[rows].long()
    row = torch.arange(len(rows), device=matrix.device).repeat_interleave(count)
    place = torch.arange(len(row), device=matrix.device) + (first - count.cumsum(0) + count)[row]
    table = torch.zeros(len(rows), matrix.shape[1], device=matrix.device)
    table[row, matrix.index[place].long()] = matrix.values[place]
    return table


def _row_of_entries(matrix: SparseMatrix) -> Tensor:
    """The row of each entry of a sparse matrix, int64 [m]."""
    rows = torch.arange(matrix.shape[0], device=matrix.device)
    return rows.repeat_interleave(matrix.indptr.diff())


def _moved(matrix: Tensor | SparseMatrix, device: torch.device) -> Tensor | SparseMatrix:
    if isinstance(matrix, Tensor):
        return matrix.to(device)
    assert matrix.values is not None
    indptr, index, values = (
        array.to(device) for array in (matrix.indptr, matrix.index, matrix.values)
    )
    return SparseMatrix(indptr, index, values, matrix.shape[1])


def count_relations(graph: "AdjacencyGraph") -> RelationGraph:
    """The relation graph of a graph, on its device; reads its edges in blocks."""
    every = torch.arange(graph.num_entities, device=graph.device)
    return _relation_graph(_counted(graph, every), graph.num_entities)


def count_arrays(graph: "AdjacencyGraph") -> Arrays:
    """The counts of a graph as integers, for files: `joint` and `pairs` in CSR format, `facts`.

    Of both matrices `indptr` [2R + 1], `index` [m], `count` [m]; of `facts` [2R]; all int64. Exact,
    while the counts of a `RelationGraph` are rounded from 2^24 on.
    """
    every = torch.arange(graph.num_entities, device=graph.device)
    joint, pairs, facts = _with_own_pairs(_counted(graph, every))
    return (*_in_rows(joint), *_in_rows(pairs), facts.long())


def recount_relations(
    earlier: RelationGraph, before: "AdjacencyGraph", after: "AdjacencyGraph", touched: Tensor
) -> RelationGraph:
    """The relation graph of `after`, from the `earlier` one of `before`.

    `touched` int64 [t]: the entities whose facts differ; those beyond the entities of `before` are
    new.
    """
    known = touched[touched < before.num_entities]
    old, new = _counted(before, known), _counted(after, touched)
    was = _Counts(_exact(earlier.joint), _exact(earlier.pairs), earlier.facts.double())
    found = _Counts(*(a - b + c for a, b, c in zip(was, old, new, strict=True)))
    return _relation_graph(found, after.num_entities)


class _Counts(NamedTuple):
    """Counts over some entities: `joint` and `pairs` [2R, 2R], without the diagonal of `pairs`, as
    dense tensors float64 or sparse arrays of scipy, and `facts` float64 [2R]."""

    joint: Any
    pairs: Any
    facts: Tensor


def _exact(matrix: Tensor | SparseMatrix) -> Any:
    """A matrix of a `RelationGraph` as one of `_Counts`; its diagonal does not matter."""
    if isinstance(matrix, Tensor):
        return matrix.double()
    assert matrix.values is not None
    arrays = (matrix.values.double(), matrix.index, matrix.indptr)
    return scipy.sparse.csr_array(
        tuple(array.cpu().numpy() for array in arrays), shape=matrix.shape
    )


def _with_own_pairs(counts: _Counts) -> _Counts:
    """The counts with the diagonal of `pairs`: every fact joins one pair."""
    joint, pairs, facts = counts
    if isinstance(pairs, Tensor):
        pairs = pairs.clone()
        pairs.diagonal().copy_(facts)
    else:
        pairs = pairs + scipy.sparse.diags_array(facts.cpu().numpy() - pairs.diagonal())
    return _Counts(joint, pairs, facts)


def _relation_graph(counts: _Counts, num_entities: int) -> RelationGraph:
    joint, pairs, facts = _with_own_pairs(counts)
    if isinstance(joint, Tensor):
        return RelationGraph(joint.float(), pairs.float(), facts.float(), num_entities)
    found = RelationGraph(_packed(joint), _packed(pairs), facts.float().cpu(), num_entities)
    return found.to(facts.device)


def _ordered(matrix: Any) -> Any:
    """A sparse array of scipy in compressed rows, without zeros, in the order of the columns."""
    matrix = matrix.tocsr()
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


def _packed(matrix: Any) -> SparseMatrix:
    """A sparse array of scipy as a `SparseMatrix` on the CPU."""
    matrix = _ordered(matrix)
    return SparseMatrix(
        torch.from_numpy(matrix.indptr),
        torch.from_numpy(matrix.indices),
        torch.from_numpy(matrix.data.astype(np.float32)),
        matrix.shape[1],
    )


def _counted(graph: "AdjacencyGraph", entities: Tensor) -> _Counts:
    """The counts over the edges that point to some entities [m]."""
    count = 2 * graph.num_relations
    is_dense = count <= MAX_DENSE
    facts = torch.zeros(count, dtype=torch.float64, device=graph.device)
    joint: Any = scipy.sparse.csr_array((count, count), dtype=np.float64)
    pairs: Any = scipy.sparse.csr_array((count, count), dtype=np.float64)
    if is_dense:
        joint = torch.zeros(count, count, dtype=torch.float64, device=graph.device)
        pairs = torch.zeros_like(joint)
    for _, place, source, relation in edge_blocks(graph, entities):
        facts += torch.bincount(relation, minlength=count)
        for first, second in _parallel(place, source, relation):
            entry, times = torch.unique(first * count + second, return_counts=True)
            row, column = entry // count, entry % count
            if is_dense:
                pairs[row, column] += times
                pairs[column, row] += times
            else:
                places = (row.cpu().numpy(), column.cpu().numpy())
                found = scipy.sparse.coo_array((times.cpu().numpy(), places), shape=(count, count))
                pairs = pairs + found.tocsr() + found.T.tocsr()
        answers = torch.unique(place * count + relation)
        place, relation = answers // count, answers % count
        if is_dense and graph.device.type != "cpu":
            # Ones and sums below 2^24 are exact in all formats of the product.
            block = torch.zeros(int(place[-1]) + 1, count, device=graph.device)
            block[place, relation] = 1
            joint += block.t() @ block
            continue
        ends = np.searchsorted(place.cpu().numpy(), np.arange(int(place[-1]) + 2))
        ones = np.ones(len(answers), np.float64)
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
    return _Counts(joint, pairs, facts)


def _parallel(place: Tensor, source: Tensor, relation: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The relations of edges that join the same two entities, int64 [e] each, two by two.

    Such edges follow each other, so those that are one apart are compared, then two apart, until
    there are none. Each unordered pair of edges comes once.
    """
    begin = torch.arange(len(place), device=place.device)
    distance = 1
    while True:
        begin = begin[begin + distance < len(place)]
        other = begin + distance
        same = (place[begin] == place[other]) & (source[begin] == source[other])
        begin = begin[same]  # an edge whose neighbour is of another pair has none further away
        if not len(begin):
            return
        yield relation[begin], relation[begin + distance]
        distance += 1


def edge_blocks(
    graph: "AdjacencyGraph", entities: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The edges that point to some entities, in blocks of entities.

    → the entities of the block [b]; place of the entity in its block, source and relation, int64
    [e] each, sorted by place and source
    """
    if not len(entities):
        return
    edges, degree = graph.edges, graph.degree_of(entities).long()
    block = degree.cumsum(0) // _BLOCK_EDGES
    if graph.device.type != "cpu":
        most = max(_BLOCK_ENTRIES // max(2 * graph.num_relations, 1), 1)
        block = torch.maximum(block, torch.arange(len(entities), device=graph.device) // most)
    for rows in entities.split(torch.unique_consecutive(block, return_counts=True)[1].tolist()):
        row, place = edges.places(rows, graph.degree_of(rows).long())
        if len(row):
            yield rows, row, edges.source[place].long(), edges.relation[place].long()
