"""Rows of queries for their entities, and dot products with them, as in the readout `h_o · h_u`.

The gradient of a query's row is a sum over its entities, in a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from oneshot.predictor.kernels.plan import QueryRows
from oneshot.predictor.kernels.segments import PIECE, join_sums


def dots(state: Tensor, asked: Tensor, rows: QueryRows) -> Tensor:
    """Each row of `state` [rows, d] times that of its query in `asked` [n, d] → float [rows]."""
    out: Tensor = _Dots.apply(state.contiguous(), asked.contiguous(), rows)
    return out


def spread(asked: Tensor, rows: QueryRows, count: int) -> Tensor:
    """The row of `asked` [n, d] of the query of each of the first `count` rows: [count, d]."""
    out: Tensor = _Spread.apply(asked.contiguous(), rows, count)
    return out


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Tensor, of_query: QueryRows, count: int) -> Tensor:
        ctx.of_query = of_query
        return asked.index_select(0, of_query.query[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0].contiguous()
        ones = torch.ones(len(gradient), dtype=torch.float32, device=gradient.device)
        return _query_sums(ones, gradient, ctx.of_query).to(gradient.dtype), None, None


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, asked: Tensor, of_query: QueryRows) -> Tensor:
        rows, dim = state.shape
        out = torch.empty(rows, dtype=torch.float32, device=state.device)
        if rows:
            _forward[(rows,)](
                state, asked, of_query.query, out, D=dim, BD=triton.next_power_of_2(dim),
                num_warps=1,
            )  # fmt: skip
        ctx.of_query = of_query
        ctx.save_for_backward(state, asked)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        state, asked = ctx.saved_tensors
        of_query = ctx.of_query
        rows, dim = state.shape
        gradient = gradients[0].contiguous()
        to_state = torch.empty_like(state)
        if rows:
            _to_state[(rows,)](
                gradient, asked, of_query.query, to_state, D=dim, BD=triton.next_power_of_2(dim),
                num_warps=1,
            )  # fmt: skip
        return to_state, _query_sums(gradient, state, of_query).to(asked.dtype), None


def _query_sums(weight: Tensor, state: Tensor, of_query: QueryRows) -> Tensor:
    """The sum of `weight` [rows] times `state` [rows, d] over the rows of each query: [n, d]."""
    rows, dim = state.shape
    pieces = of_query.pieces
    sums = torch.empty(pieces.num_rows, dim, dtype=torch.float32, device=state.device)
    parts = torch.empty(pieces.num_slots, dim, dtype=torch.float32, device=state.device)
    _to_asked[(len(pieces.row),)](
        weight, state, of_query.place,
        pieces.row, pieces.first, pieces.indptr, pieces.slot, sums, parts,
        pieces.num_rows, rows, D=dim, BD=triton.next_power_of_2(dim), BE=16, SIZE=PIECE,
    )  # fmt: skip
    join_sums(parts, pieces, pieces.num_rows, sums, None)
    return sums


@triton.jit
def _forward(state_at, asked_at, query_at, out_at, D: tl.constexpr, BD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    query = tl.load(query_at + row).to(tl.int64)
    d = tl.arange(0, BD)
    h = tl.load(state_at + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    u = tl.load(asked_at + query * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(out_at + row, tl.sum(h * u, axis=0))


@triton.jit
def _to_state(gradient_at, asked_at, query_at, out_at, D: tl.constexpr, BD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    query = tl.load(query_at + row).to(tl.int64)
    d = tl.arange(0, BD)
    u = tl.load(asked_at + query * D + d, mask=d < D, other=0.0).to(tl.float32)
    g = tl.load(gradient_at + row) * u
    tl.store(out_at + row * D + d, g.to(out_at.dtype.element_ty), mask=d < D)


@triton.jit
def _to_asked(
    gradient_at, state_at, place_at, row_at, first_at, indptr_at, slot_at, out_at, part_at,
    num_queries, num_rows,
    D: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    query = tl.load(row_at + piece)
    if query < num_queries:
        first = tl.load(first_at + query)
        begin = tl.load(indptr_at + query) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + query + 1))
        d = tl.arange(0, BD)
        in_d = d < D
        total = tl.zeros((BD,), tl.float32)
        for start in range(begin, end, BE):
            entity = start + tl.arange(0, BE)
            inside = entity < end
            row = tl.load(place_at + entity, mask=inside, other=0).to(tl.int64)
            inside = inside & (row < num_rows)
            g = tl.load(gradient_at + row, mask=inside, other=0.0)
            at = state_at + row[:, None] * D + d[None, :]
            h = tl.load(at, mask=inside[:, None] & in_d[None, :], other=0.0).to(tl.float32)
            total += tl.sum(h * g[:, None], axis=0)
        if tl.load(first_at + query + 1) - first > 1:
            slot = (tl.load(slot_at + query) + piece - first).to(tl.int64)
            tl.store(part_at + slot * D + d, total, mask=in_d)
        else:
            tl.store(out_at + query.to(tl.int64) * D + d, total, mask=in_d)
