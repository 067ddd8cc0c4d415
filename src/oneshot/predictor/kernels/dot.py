"""Dot products of each entity's row with its query's, as in the readout `h_o · h_u`.

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
        to_asked = torch.empty(asked.shape, dtype=torch.float32, device=state.device)
        if rows:
            _to_state[(rows,)](
                gradient, asked, of_query.query, to_state, D=dim, BD=triton.next_power_of_2(dim),
                num_warps=1,
            )  # fmt: skip
        pieces = of_query.pieces
        parts = torch.empty(pieces.num_slots, dim, dtype=torch.float32, device=state.device)
        _to_asked[(len(pieces.row),)](
            gradient, state, of_query.place,
            pieces.row, pieces.first, pieces.indptr, pieces.slot, to_asked, parts,
            pieces.num_rows, rows, D=dim, BD=triton.next_power_of_2(dim), BE=16, SIZE=PIECE,
        )  # fmt: skip
        join_sums(parts, pieces, pieces.num_rows, to_asked, None)
        return to_state, to_asked.to(asked.dtype), None


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
