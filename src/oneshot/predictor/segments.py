"""Gathering rows of a table for edges and summing edges into rows, with fast gradients.

The gradient of gathering a row per edge (`table[index]`) sums many edges into few rows: tens of
thousands into each row of a relation table. With plain indexing, this is the slowest step of
training. Here it is one product with a sparse matrix of ones, built once per batch, which is fast,
deterministic, and the same operation as the sum aggregation.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from oneshot.graph.sparse import SparseMatrix
from oneshot.subgraph import SubgraphBatch

_LONG_ROWS = 64  # mean edges per row from which rows are summed in pieces
_PIECE = 256


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a small table: `table` [k, d], `index` int64 [n] → [n, d].

    The gradient of `embedding` sums equal rows in a fixed order on every device; that of
    `index_select` does not on a GPU, so that two trainings with the same seed would differ.
    """
    return nn.functional.embedding(index, table)


class Rows:
    """A row index of some table per edge: `index` int64 [E], each below `size`."""

    def __init__(self, index: Tensor, size: int, is_sorted: bool = False) -> None:
        self.index = index
        self.size = size
        self._is_sorted = is_sorted

    def pick(self, table: Tensor) -> Tensor:
        """The row of each edge: `table` [size, …] → [E, …]."""
        picked: Tensor = _Pick.apply(table, self)  # type: ignore[no-untyped-call]
        return picked

    def add(self, values: Tensor) -> Tensor:
        """The sum of the edges of each row: `values` [E, d] → [size, d]."""
        added: Tensor = _Add.apply(values, self)  # type: ignore[no-untyped-call]
        return added

    def largest(self, values: Tensor) -> Tensor:
        """The maximum over the edges of each row, per channel: [E, d] → [size, d]; 0 if none."""
        empty = values.new_zeros(self.size, values.shape[1])
        index = self.index[:, None].expand_as(values)
        return empty.scatter_reduce(0, index, values, "amax", include_self=False)

    @cached_property
    def count(self) -> Tensor:
        """Number of edges of each row, int64 [size]."""
        return torch.bincount(self.index, minlength=self.size)

    @cached_property
    def _order(self) -> Tensor:
        if self._is_sorted:
            return torch.arange(len(self.index), device=self.index.device)
        return self.index.argsort(stable=True)

    @cached_property
    def matrices(self) -> list[SparseMatrix]:
        """Sparse matrices of ones that sum edges into rows, to be applied one after the other.

        One [size, E] matrix; if rows are long (a relation with very many edges), a first matrix
        sums pieces of rows and a second one the pieces, so that the work is evenly distributed.
        """
        count, order = self.count, self._order
        ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
        if len(order) < _LONG_ROWS * self.size:
            return [SparseMatrix(ends, order, None, len(order))]
        pieces = (count + _PIECE - 1) // _PIECE
        row = torch.arange(self.size, device=count.device).repeat_interleave(pieces)
        first = pieces.cumsum(0) - pieces
        places = torch.arange(len(row), device=count.device)
        starts = ends[row] + (places - first[row]) * _PIECE
        piece_ends = torch.cat([starts, ends[-1:]])
        return [
            SparseMatrix(piece_ends, order, None, len(order)),
            SparseMatrix(torch.cat([first, pieces.sum()[None]]), places, None, len(row)),
        ]

    def sum_without_gradient(self, values: Tensor) -> Tensor:
        """`add` for tensors of any number of dimensions, in at least float32."""
        # Not all devices support sparse products in bfloat16, and sums need the precision anyway.
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        total = values.flatten(1).to(dtype)
        with torch.autocast(values.device.type, enabled=False):
            for matrix in self.matrices:
                total = matrix @ total
        return total.to(values.dtype).reshape(self.size, *values.shape[1:])


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return table.index_select(0, rows.index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.sum_without_gradient(gradients[0]), None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return rows.sum_without_gradient(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].index_select(0, ctx.rows.index), None


class EdgePlan:
    """The edges of a batch as rows of the tables that they use; shared by all layers.

    `source`, `target`: the entities of each edge; `relation`: its relation; `query`: its query;
    `query_relation`: row of a table [n · (2R + 1), …] with a row for each query and relation.
    `missing` int64 [N]: edges into each entity that are not in the subgraph but count in its
    aggregates, as messages of zero; None if there are none (`over_graph` false).
    """

    def __init__(self, batch: SubgraphBatch, num_relations: int, over_graph: bool = False) -> None:
        source, relation, target = batch.edges
        kinds = 2 * num_relations + 1
        self.batch = batch
        self.source = Rows(source, batch.num_entities)
        self.target = Rows(target, batch.num_entities, is_sorted=True)
        self.relation = Rows(relation, kinds)
        self.query = Rows(batch.edge_query, batch.num_queries, is_sorted=True)
        self.query_relation = Rows(batch.edge_query * kinds + relation, batch.num_queries * kinds)
        self.missing = missing_edges(batch.degree, self.target.count) if over_graph else None

    @property
    def edge_count(self) -> Tensor:
        """Number of edges that the aggregates of each entity count, int64 [N]."""
        count = self.target.count
        return count if self.missing is None else count + self.missing


def missing_edges(degree: Tensor, sampled: Tensor) -> Tensor:
    """Edges of entities that are not among their `sampled` ones, with the identity edge: [N].

    `degree` [N]: edges in the whole graph, without the identity edge.
    """
    return (degree + 1 - sampled).clamp(min=0)
