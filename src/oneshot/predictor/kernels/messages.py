"""Fused messages: message × attention × aggregation in one pass over the edges.

With `m_e = a_e · (h_x ∘ w_r)` for an edge `e = (x, r, o)`, a program processes one target row, or a
piece of a long one, and aggregates its messages in registers; messages are never stored. Gradients
are computed in the same way, with the terms of the attention added in the same order, so that its
ReLU has the same sign: those of `h` and of the source term of the attention by source, those of
relations and queries by query and relation. All sums are in float32 and in a fixed order.

In all kernels `state` [.., D], `table` [.., D], the parts of the attention `s`, `t`, `q` [.., A],
`w` [A] and `b`; `D` channels in blocks of `BD`, `A` in `BA`, `BE` edges at a time, `SIZE` edges
per piece. The pieces of a long row write partial results, which are joined later.

With states in bfloat16 (`ROUND`), messages are rounded to bfloat16 before they are compared, as
their extremes are when they become states. Extremes and slopes then fit into half of the memory,
and reading them for every edge is most of what the backward pass does.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from oneshot.predictor.aggregation import VARIANCE_FLOOR
from oneshot.predictor.kernels.plan import FusedPlan
from oneshot.predictor.kernels.segments import PIECE, Pieces, join_sums
from oneshot.predictor.messages import Attention

# How the gradient with respect to a message is computed: equal to that of the target; by comparing
# the message with the maximum of the target; by maximum, minimum and the message itself.
_PLAIN, _HIGHEST, _ALL = 0, 1, 2
# Rows that a program of the kernels over rows processes.
_ROWS = 8
_MODES = {"sum": _PLAIN, "mean": _PLAIN, "max": _HIGHEST, "pna": _ALL}


def collect(
    state: Tensor,
    table: Tensor,
    attention: Attention | None,
    plan: FusedPlan,
    layer: int,
    aggregate: str,
    is_sum: bool,
) -> Tensor:
    """Aggregates of the rows within `layer + 1` edges of `u`, [reach, d] (pna: [reach, 4 · d]).

    `state` [reach before, d]; `table` [K, d], or [n · K, d] with weights for each query;
    `is_sum`: entity and relation are added, not multiplied. For pna: mean, max, min, deviation.
    """
    parts = () if attention is None else vars(attention).values()
    tensors = [state.contiguous(), table.contiguous(), *(part.contiguous() for part in parts)]
    # Gradients are always disabled inside the function, so check before.
    wanted = torch.is_grad_enabled()
    out: Tensor = _Collect.apply(plan, layer, aggregate, is_sum, wanted, *tensors)
    return out


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        plan, layer, aggregate, is_sum, needs_gradient, *tensors = inputs
        call = _Call(plan, layer, aggregate, is_sum, tensors)
        if _MODES[aggregate] == _PLAIN:
            out, weights = call.sums(needs_gradient)
            raw = None
        else:
            raw, weights = call.extremes()
            out = finished(raw, plan.scale, tensors[0].dtype)
        ctx.call = (plan, layer, aggregate, is_sum)
        ctx.save_for_backward(*tensors, weights, raw)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *tensors, weights, raw = ctx.saved_tensors
        plan, layer, aggregate, is_sum = ctx.call
        call = _Call(plan, layer, aggregate, is_sum, tensors)
        gradient = gradients[0].contiguous()
        if raw is not None:
            gradient = slopes(raw, gradient, plan.scale, call.slope_type)
        return (None, None, None, None, None, *call.gradients(gradient, weights))


class _Call:
    """The arguments that forward and backward kernels of a layer share."""

    def __init__(
        self,
        plan: FusedPlan,
        layer: int,
        aggregate: str,
        is_sum: bool,
        tensors: list[Tensor],
    ) -> None:
        self.plan, self.layer, self.aggregate = plan, layer, aggregate
        self.state, self.table, *rest = tensors
        # Without attention the pointers are never used.
        self.terms = rest or [self.state] * 5
        self.dim = self.state.shape[1]
        self.width = rest[0].shape[1] if rest else 1
        self.num_rows, self.num_sources = plan.reach[layer + 1], plan.reach[layer]
        tile, warps = tiling(self.dim, len(plan.source) / max(len(plan.order), 1))
        self.constants: dict[str, Any] = {
            "D": self.dim,
            "A": self.width,
            "BD": triton.next_power_of_2(self.dim),
            "BA": triton.next_power_of_2(self.width),
            "BE": tile,
            "SIZE": PIECE,
            "ATTENTION": bool(rest),
            "IS_SUM": is_sum,
            "ROUND": self.state.dtype == torch.bfloat16,
            "num_warps": warps,
        }
        self.slope_type = torch.bfloat16 if self.constants["ROUND"] else torch.float32
        self.stride = 0 if len(self.table) == plan.kinds else plan.kinds

    def sums(self, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """→ (sums or means [rows, d], the attention of each edge [E] if gradients need it)"""
        plan = self.plan
        out = self.state.new_empty(self.num_rows, self.dim)
        parts = self._floats(plan.rows.num_slots, self.dim)
        weights = self._weights(needs_gradient)
        if self.num_rows:
            collect_sums[(plan.rows.bound(self.num_rows),)](
                self.state, self.table, *self.terms,
                plan.source, plan.relation, plan.row_query, plan.scale,
                *_pointers(plan.rows), out, parts, out if weights is None else weights,
                self.num_rows, self.num_sources, self.stride, MEAN=self.aggregate == "mean",
                STORE=weights is not None, **_without(self.constants, "ROUND"),
            )  # fmt: skip
            join_sums(parts, plan.rows, self.num_rows, out, None)
        return out, weights

    def extremes(self) -> tuple[Tensor, Tensor | None]:
        """→ (highest and how often it occurs [rows, 2, d], or all six of pna; attention [E])

        The backward pass compares messages with the maximum again. Therefore the attention, a sum
        whose rounding may differ between kernels, is computed once and stored.
        """
        plan = self.plan
        kinds = 2 if self.aggregate == "max" else 6
        raw = self._floats(self.num_rows, kinds, self.dim)
        parts = self._floats(plan.rows.num_slots, kinds, self.dim)
        weights = self.attention()
        constants = _without(self.constants, "A", "BA")
        missing = plan.source if plan.missing is None else plan.missing
        constants |= {"ALL": kinds == 6, "MISSING": plan.missing is not None}
        if self.num_rows:
            collect_extremes[(plan.rows.bound(self.num_rows),)](
                self.state, self.table, plan.source, plan.relation, plan.row_query,
                *_pointers(plan.rows), missing, raw, parts, raw if weights is None else weights,
                self.num_rows, self.num_sources, self.stride, **constants,
            )  # fmt: skip
            if len(plan.rows.split):
                join_extremes[(len(plan.rows.split),)](
                    parts, raw, plan.rows.split, plan.rows.first, plan.rows.slot, missing,
                    self.num_rows, D=self.dim,
                    **{name: constants[name] for name in ("BD", "ALL", "MISSING")},
                )  # fmt: skip
        return raw, weights

    def attention(self) -> Tensor | None:
        """The attention of each edge, [E]; only that of edges whose source has a state."""
        if not self.constants["ATTENTION"]:
            return None
        plan, block = self.plan, 64
        weights = self._floats(len(plan.source))
        if len(weights):
            attend[(triton.cdiv(len(weights), block),)](
                *self.terms, plan.source, plan.relation, plan.query, weights,
                len(weights), self.num_sources, A=self.width, BA=self.constants["BA"], BLOCK=block,
            )  # fmt: skip
        return weights

    def gradients(self, gradient: Tensor, weights: Tensor | None) -> list[Tensor | None]:
        """The gradients of state, table and the parts of the attention.

        `gradient` [rows, d], or the result of `slopes`.
        """
        plan, has_attention = self.plan, self.constants["ATTENTION"]
        width = self.width if has_attention else 0
        stored = self.state if weights is None else weights
        mode = {"MODE": _MODES[self.aggregate], "MEAN": self.aggregate == "mean"}
        to_state = torch.empty_like(self.state)
        to_source = self._floats(self.num_sources, width)
        parts = self._floats(plan.out_rows.num_slots, self.dim + width)
        if self.num_sources:
            to_sources[(plan.out_rows.bound(self.num_sources),)](
                self.state, self.table, *self.terms, stored, gradient,
                plan.out_target, plan.out_relation, plan.out_edge, plan.row_query, plan.scale,
                *_pointers(plan.out_rows), to_state, to_source, parts,
                self.num_sources, self.num_rows, self.stride, **mode, **self.constants,
            )  # fmt: skip
            join_sums(
                parts, plan.out_rows, self.num_sources, to_state, to_source if width else None
            )
        num_kinds = plan.kind_rows.num_rows
        extra = 2 * width + 1 if width else 0
        to_kind = self._floats(num_kinds, self.dim)
        to_terms = self._floats(num_kinds, extra)
        parts = self._floats(plan.kind_rows.num_slots, self.dim + extra)
        to_kinds[(plan.kind_rows.bound(num_kinds),)](
            self.state, self.table, *self.terms, stored, gradient,
            plan.kind_source, plan.kind_target, plan.kind_edge, plan.scale,
            *_pointers(plan.kind_rows), plan.kind_end[self.layer], to_kind, to_terms, parts,
            num_kinds, plan.kinds, self.stride, **mode, **self.constants,
        )  # fmt: skip
        join_sums(parts, plan.kind_rows, num_kinds, to_kind, to_terms if extra else None)
        to_table = to_kind if self.stride else self._per_relation(to_kind).sum(0)
        found: list[Tensor | None] = [to_state, to_table.to(self.table.dtype)]
        if has_attention:
            source, relation, query, weight, bias = self.terms
            hidden = self._per_relation(to_terms[:, :width])
            total = to_terms[:, width:].sum(0)
            found += [
                to_source.to(source.dtype),
                hidden.sum(0).to(relation.dtype),
                hidden.sum(1).to(query.dtype),
                total[:width].to(weight.dtype),
                total[width:].to(bias.dtype),
            ]
        return found

    def _per_relation(self, rows: Tensor) -> Tensor:
        """[n · K, w] → [n, K, w]"""
        return rows.reshape(-1, self.plan.kinds, rows.shape[1])

    def _weights(self, needed: bool) -> Tensor | None:
        if not (needed and self.constants["ATTENTION"]):
            return None
        return self._floats(len(self.plan.source))

    def _floats(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.state.device)


def tiling(dim: int, edges_per_row: float) -> tuple[int, int]:
    """Number of edges that a program processes at once, few if rows are short, and its warps.

    One warp is fastest: it needs no synchronization between the edges.
    """
    tile = 4 if edges_per_row < 12 else 8
    return tile, 1 if dim * tile <= 2048 else 2


def finished(raw: Tensor, scale: Tensor, kind: torch.dtype) -> Tensor:
    """From [rows, 2 or 6, d] to the aggregate [rows, d] or [rows, 4 · d]; `scale` [≥ rows]."""
    if raw.shape[1] == 2:
        return raw[:, 0].to(kind)
    rows, _, dim = raw.shape
    out = torch.empty(rows, 4 * dim, dtype=kind, device=raw.device)
    if rows:
        finish[(triton.cdiv(rows, _ROWS),)](raw, scale, out, rows, **_row_constants(dim))
    return out


def slopes(raw: Tensor, gradient: Tensor, scale: Tensor, kind: torch.dtype) -> Tensor:
    """The values per target that determine the gradient of a message; see `_slope`.

    `gradient` of `finished`. → [rows, 2, d]: highest, its slope; for pna [rows, 6, d]: slope,
    slope by the message, highest, its slope, lowest, its slope.
    """
    if raw.shape[1] == 2:
        by_highest = gradient.float() / raw[:, 1].clamp(min=1)
        return torch.stack([raw[:, 0], by_highest], dim=1).to(kind)
    rows, _, dim = raw.shape
    out = torch.empty(raw.shape, dtype=kind, device=raw.device)
    if rows:
        differentiate[(triton.cdiv(rows, _ROWS),)](
            raw, gradient, scale, out, rows, **_row_constants(dim)
        )
    return out


def _row_constants(dim: int) -> dict[str, Any]:
    """Constants of the kernels that process whole rows of pna."""
    return {
        "D": dim,
        "BD": triton.next_power_of_2(dim),
        "ROWS": _ROWS,
        "FLOOR": VARIANCE_FLOOR,
        "ROOT": math.sqrt(VARIANCE_FLOOR),
    }


def _without(constants: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in constants.items() if name not in names}


def _pointers(pieces: Pieces) -> tuple[Tensor, ...]:
    return pieces.row, pieces.first, pieces.indptr, pieces.slot


@triton.jit
def _composed(entity, relation, IS_SUM: tl.constexpr):
    return entity + relation if IS_SUM else entity * relation


@triton.jit
def _rounded(message, ROUND: tl.constexpr):
    """Messages as they are compared with each other."""
    return message.to(tl.bfloat16).to(tl.float32) if ROUND else message


@triton.jit
def attend(
    s_at, t_at, q_at, w_at, b_at, source_at, relation_at, query_at, weight_at,
    num_edges, num_sources,
    A: tl.constexpr, BA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = edge < num_edges
    x = tl.load(source_at + edge, mask=inside, other=0).to(tl.int64)
    inside = inside & (x < num_sources)
    r = tl.load(relation_at + edge, mask=inside, other=0)
    q = tl.load(query_at + edge, mask=inside, other=0)
    k = tl.arange(0, BA)
    in_k = k < A
    w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
    small = inside[:, None] & in_k[None, :]
    u = tl.load(s_at + x[:, None] * A + k[None, :], mask=small, other=0.0).to(tl.float32)
    u += tl.load(t_at + r[:, None] * A + k[None, :], mask=small, other=0.0).to(tl.float32)
    u += tl.load(q_at + q[:, None] * A + k[None, :], mask=small, other=0.0).to(tl.float32)
    b = tl.load(b_at).to(tl.float32)
    a = tl.sigmoid(tl.sum(tl.maximum(u, 0.0) * w[None, :], axis=1) + b)
    tl.store(weight_at + edge, a, mask=inside)


@triton.jit
def collect_sums(
    state_at, table_at, s_at, t_at, q_at, w_at, b_at,
    source_at, relation_at, query_at, scale_at,
    row_at, first_at, indptr_at, slot_at,
    out_at, part_at, weight_at,
    num_rows, num_sources, stride,
    MEAN: tl.constexpr, STORE: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, BD: tl.constexpr, BA: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        query = tl.load(query_at + row)
        d = tl.arange(0, BD)
        k = tl.arange(0, BA)
        in_d = d < D
        in_k = k < A
        if ATTENTION:
            w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
            b = tl.load(b_at).to(tl.float32)
            asked = tl.load(q_at + query * A + k, mask=in_k, other=0.0).to(tl.float32)
        total = tl.zeros((BD,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            inside = edge < end
            x = tl.load(source_at + edge, mask=inside, other=0).to(tl.int64)
            r = tl.load(relation_at + edge, mask=inside, other=0)
            inside = inside & (x < num_sources)
            grid = inside[:, None] & in_d[None, :]
            h = tl.load(state_at + x[:, None] * D + d[None, :], mask=grid, other=0.0)
            relation = (r + query * stride).to(tl.int64)
            v = tl.load(table_at + relation[:, None] * D + d[None, :], mask=grid, other=0.0)
            message = _composed(h.to(tl.float32), v.to(tl.float32), IS_SUM)
            if ATTENTION:
                small = inside[:, None] & in_k[None, :]
                u = tl.load(s_at + x[:, None] * A + k[None, :], mask=small, other=0.0)
                t = tl.load(t_at + r[:, None] * A + k[None, :], mask=small, other=0.0)
                u = u.to(tl.float32) + t.to(tl.float32) + asked[None, :]
                a = tl.sigmoid(tl.sum(tl.maximum(u, 0.0) * w[None, :], axis=1) + b)
                if STORE:
                    tl.store(weight_at + edge, a, mask=inside)
                message = message * a[:, None]
            total += tl.sum(tl.where(grid, message, 0.0), axis=0)
        if MEAN:
            total *= tl.load(scale_at + row)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            tl.store(part_at + slot * D + d, total, mask=in_d)
        else:
            out = out_at + row.to(tl.int64) * D + d
            tl.store(out, total.to(out_at.dtype.element_ty), mask=in_d)


@triton.jit
def collect_extremes(
    state_at, table_at,
    source_at, relation_at, query_at,
    row_at, first_at, indptr_at, slot_at, missing_at,
    out_at, part_at, weight_at,
    num_rows, num_sources, stride,
    ALL: tl.constexpr, MISSING: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        query = tl.load(query_at + row)
        d = tl.arange(0, BD)
        in_d = d < D
        highest = tl.full((BD,), float("-inf"), tl.float32)
        count = tl.zeros((BD,), tl.float32)
        if ALL:
            total = tl.zeros((BD,), tl.float32)
            squares = tl.zeros((BD,), tl.float32)
            lowest = tl.full((BD,), float("inf"), tl.float32)
            low_count = tl.zeros((BD,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            exists = edge < end
            x = tl.load(source_at + edge, mask=exists, other=0).to(tl.int64)
            r = tl.load(relation_at + edge, mask=exists, other=0)
            # A source without a state sends zeros, which count for these aggregates.
            inside = exists & (x < num_sources)
            grid = inside[:, None] & in_d[None, :]
            h = tl.load(state_at + x[:, None] * D + d[None, :], mask=grid, other=0.0)
            relation = (r + query * stride).to(tl.int64)
            v = tl.load(table_at + relation[:, None] * D + d[None, :], mask=grid, other=0.0)
            message = _composed(h.to(tl.float32), v.to(tl.float32), IS_SUM)
            if ATTENTION:
                a = tl.load(weight_at + edge, mask=inside, other=0.0)
                message = message * a[:, None]
            counted = exists[:, None] & in_d[None, :]
            compared = _rounded(message, ROUND)
            new = tl.maximum(highest, tl.max(tl.where(counted, compared, float("-inf")), axis=0))
            same = counted & (compared == new[None, :])
            count = tl.where(new > highest, 0.0, count) + tl.sum(same.to(tl.float32), axis=0)
            highest = new
            if ALL:
                kept = tl.where(counted, message, 0.0)
                total += tl.sum(kept, axis=0)
                squares += tl.sum(kept * kept, axis=0)
                new = tl.minimum(lowest, tl.min(tl.where(counted, compared, float("inf")), axis=0))
                same = counted & (compared == new[None, :])
                low_count = tl.where(new < lowest, 0.0, low_count)
                low_count += tl.sum(same.to(tl.float32), axis=0)
                lowest = new
        # A row without edges (padding) is zero.
        highest = tl.where(count > 0, highest, 0.0)
        if ALL:
            lowest = tl.where(low_count > 0, lowest, 0.0)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            to = part_at + slot * (6 * D if ALL else 2 * D) + d
        else:
            to = out_at + row.to(tl.int64) * (6 * D if ALL else 2 * D) + d
            if MISSING:
                missing = tl.load(missing_at + row).to(tl.float32)
                highest, count = _with_zeros(highest, count, missing)
                if ALL:
                    negative, low_count = _with_zeros(-lowest, low_count, missing)
                    lowest = -negative
        if ALL:
            tl.store(to, total, mask=in_d)
            tl.store(to + D, squares, mask=in_d)
            tl.store(to + 2 * D, highest, mask=in_d)
            tl.store(to + 3 * D, lowest, mask=in_d)
            tl.store(to + 4 * D, count, mask=in_d)
            tl.store(to + 5 * D, low_count, mask=in_d)
        else:
            tl.store(to, highest, mask=in_d)
            tl.store(to + D, count, mask=in_d)


@triton.jit
def _with_zeros(highest, count, missing):
    """The highest of some messages and of `missing` zeros, and how often it occurs."""
    new = tl.where(missing > 0, tl.maximum(highest, 0.0), highest)
    count = tl.where(highest == new, count, 0.0) + tl.where(new == 0.0, missing, 0.0)
    return new, count


@triton.jit
def join_extremes(
    part_at, out_at, split_at, first_at, slot_at, missing_at, num_rows,
    D: tl.constexpr, BD: tl.constexpr, ALL: tl.constexpr, MISSING: tl.constexpr,
):  # fmt: skip
    row = tl.load(split_at + tl.program_id(0))
    if row < num_rows:
        number_of = tl.load(first_at + row + 1) - tl.load(first_at + row)
        slot = tl.load(slot_at + row).to(tl.int64)
        d = tl.arange(0, BD)
        in_d = d < D
        highest = tl.full((BD,), float("-inf"), tl.float32)
        count = tl.zeros((BD,), tl.float32)
        total = tl.zeros((BD,), tl.float32)
        squares = tl.zeros((BD,), tl.float32)
        lowest = tl.full((BD,), float("inf"), tl.float32)
        low_count = tl.zeros((BD,), tl.float32)
        for number in range(number_of):
            part = part_at + (slot + number) * (6 * D if ALL else 2 * D) + d
            if ALL:
                total += tl.load(part, mask=in_d, other=0.0)
                squares += tl.load(part + D, mask=in_d, other=0.0)
                other = tl.load(part + 3 * D, mask=in_d, other=0.0)
                other_count = tl.load(part + 5 * D, mask=in_d, other=0.0)
                new = tl.minimum(lowest, other)
                low_count = tl.where(lowest == new, low_count, 0.0)
                low_count += tl.where(other == new, other_count, 0.0)
                lowest = new
                other = tl.load(part + 2 * D, mask=in_d, other=0.0)
                other_count = tl.load(part + 4 * D, mask=in_d, other=0.0)
            else:
                other = tl.load(part, mask=in_d, other=0.0)
                other_count = tl.load(part + D, mask=in_d, other=0.0)
            new = tl.maximum(highest, other)
            count = tl.where(highest == new, count, 0.0) + tl.where(other == new, other_count, 0.0)
            highest = new
        if MISSING:
            missing = tl.load(missing_at + row).to(tl.float32)
            highest, count = _with_zeros(highest, count, missing)
            if ALL:
                negative, low_count = _with_zeros(-lowest, low_count, missing)
                lowest = -negative
        to = out_at + row.to(tl.int64) * (6 * D if ALL else 2 * D) + d
        if ALL:
            tl.store(to, total, mask=in_d)
            tl.store(to + D, squares, mask=in_d)
            tl.store(to + 2 * D, highest, mask=in_d)
            tl.store(to + 3 * D, lowest, mask=in_d)
            tl.store(to + 4 * D, count, mask=in_d)
            tl.store(to + 5 * D, low_count, mask=in_d)
        else:
            tl.store(to, highest, mask=in_d)
            tl.store(to + D, count, mask=in_d)


@triton.jit
def finish(
    raw_at, scale_at, out_at, num_rows,
    D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, FLOOR: tl.constexpr,
    ROOT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (row < num_rows)[:, None] & (d < D)[None, :]
    scale = tl.load(scale_at + row, mask=row < num_rows, other=0.0)[:, None]
    at = raw_at + row[:, None] * (6 * D) + d[None, :]
    mean = tl.load(at, mask=inside, other=0.0) * scale
    variance = tl.load(at + D, mask=inside, other=0.0) * scale - mean * mean
    deviation = tl.sqrt(tl.maximum(variance, FLOOR)) - ROOT
    highest = tl.load(at + 2 * D, mask=inside, other=0.0)
    lowest = tl.load(at + 3 * D, mask=inside, other=0.0)
    kind = out_at.dtype.element_ty
    to = out_at + row[:, None] * (4 * D) + d[None, :]
    tl.store(to, mean.to(kind), mask=inside)
    tl.store(to + D, highest.to(kind), mask=inside)
    tl.store(to + 2 * D, lowest.to(kind), mask=inside)
    tl.store(to + 3 * D, deviation.to(kind), mask=inside)


@triton.jit
def differentiate(
    raw_at, gradient_at, scale_at, out_at, num_rows,
    D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, FLOOR: tl.constexpr,
    ROOT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (row < num_rows)[:, None] & (d < D)[None, :]
    scale = tl.load(scale_at + row, mask=row < num_rows, other=0.0)[:, None]
    at = raw_at + row[:, None] * (6 * D) + d[None, :]
    mean = tl.load(at, mask=inside, other=0.0) * scale
    variance = tl.load(at + D, mask=inside, other=0.0) * scale - mean * mean
    by = gradient_at + row[:, None] * (4 * D) + d[None, :]
    by_mean = tl.load(by, mask=inside, other=0.0).to(tl.float32)
    by_highest = tl.load(by + D, mask=inside, other=0.0).to(tl.float32)
    by_lowest = tl.load(by + 2 * D, mask=inside, other=0.0).to(tl.float32)
    by_deviation = tl.load(by + 3 * D, mask=inside, other=0.0).to(tl.float32)
    # At the floor the deviation is constant.
    by_variance = by_deviation / (2.0 * tl.sqrt(tl.maximum(variance, FLOOR)))
    by_variance = tl.where(variance > FLOOR, by_variance, 0.0)
    high_count = tl.maximum(tl.load(at + 4 * D, mask=inside, other=1.0), 1.0)
    low_count = tl.maximum(tl.load(at + 5 * D, mask=inside, other=1.0), 1.0)
    kind = out_at.dtype.element_ty
    to = out_at + row[:, None] * (6 * D) + d[None, :]
    tl.store(to, ((by_mean - 2.0 * mean * by_variance) * scale).to(kind), mask=inside)
    tl.store(to + D, (2.0 * by_variance * scale).to(kind), mask=inside)
    highest = tl.load(at + 2 * D, mask=inside, other=0.0)
    tl.store(to + 2 * D, highest.to(kind), mask=inside)
    tl.store(to + 3 * D, (by_highest / high_count).to(kind), mask=inside)
    lowest = tl.load(at + 3 * D, mask=inside, other=0.0)
    tl.store(to + 4 * D, lowest.to(kind), mask=inside)
    tl.store(to + 5 * D, (by_lowest / low_count).to(kind), mask=inside)


@triton.jit
def _slope(
    gradient_at, scale_at, target, inside, message, d, in_d,
    D: tl.constexpr, MODE: tl.constexpr, MEAN: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """The gradient with respect to each message of a tile, [edges, channels]."""
    grid = inside[:, None] & in_d[None, :]
    if MODE == 0:
        at = gradient_at + target[:, None] * D + d[None, :]
        slope = tl.load(at, mask=grid, other=0.0).to(tl.float32)
        if MEAN:
            slope *= tl.load(scale_at + target, mask=inside, other=0.0)[:, None]
    elif MODE == 1:
        at = gradient_at + target[:, None] * (2 * D) + d[None, :]
        compared = _rounded(message, ROUND)
        highest = tl.load(at, mask=grid, other=0.0).to(tl.float32)
        high = tl.load(at + D, mask=grid, other=0.0).to(tl.float32)
        slope = tl.where(compared == highest, high, 0.0)
    else:
        at = gradient_at + target[:, None] * (6 * D) + d[None, :]
        compared = _rounded(message, ROUND)
        slope = tl.load(at, mask=grid, other=0.0).to(tl.float32)
        steep = tl.load(at + D, mask=grid, other=0.0).to(tl.float32)
        slope += steep * tl.where(grid, message, 0.0)
        highest = tl.load(at + 2 * D, mask=grid, other=0.0).to(tl.float32)
        high = tl.load(at + 3 * D, mask=grid, other=0.0).to(tl.float32)
        slope += tl.where(compared == highest, high, 0.0)
        lowest = tl.load(at + 4 * D, mask=grid, other=0.0).to(tl.float32)
        low = tl.load(at + 5 * D, mask=grid, other=0.0).to(tl.float32)
        slope += tl.where(compared == lowest, low, 0.0)
    return slope


@triton.jit
def to_sources(
    state_at, table_at, s_at, t_at, q_at, w_at, b_at, weight_at, gradient_at,
    target_at, relation_at, edge_at, query_at, scale_at,
    row_at, first_at, indptr_at, slot_at,
    out_at, term_at, part_at,
    num_rows, num_targets, stride,
    MODE: tl.constexpr, MEAN: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, BD: tl.constexpr, BA: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        query = tl.load(query_at + row)
        x = row.to(tl.int64)
        d = tl.arange(0, BD)
        k = tl.arange(0, BA)
        in_d = d < D
        in_k = k < A
        h = tl.load(state_at + x * D + d, mask=in_d, other=0.0).to(tl.float32)
        total = tl.zeros((BD,), tl.float32)
        if ATTENTION:
            w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
            asked = tl.load(q_at + query * A + k, mask=in_k, other=0.0).to(tl.float32)
            own = tl.load(s_at + x * A + k, mask=in_k, other=0.0).to(tl.float32)
            total_s = tl.zeros((BA,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            inside = edge < end
            o = tl.load(target_at + edge, mask=inside, other=0).to(tl.int64)
            # Only a row without a state yet can have targets beyond the reach.
            inside = inside & (o < num_targets)
            r = tl.load(relation_at + edge, mask=inside, other=0)
            grid = inside[:, None] & in_d[None, :]
            relation = (r + query * stride).to(tl.int64)
            v = tl.load(table_at + relation[:, None] * D + d[None, :], mask=grid, other=0.0)
            v = v.to(tl.float32)
            composed = _composed(h[None, :], v, IS_SUM)
            if ATTENTION:
                stored = tl.load(edge_at + edge, mask=inside, other=0)
                a = tl.load(weight_at + stored, mask=inside, other=0.0)
                message = composed * a[:, None]
            else:
                message = composed
            g = _slope(gradient_at, scale_at, o, inside, message, d, in_d, D, MODE, MEAN, ROUND)
            if ATTENTION:
                by_a = tl.sum(g * composed, axis=1) * a * (1.0 - a)
                small = inside[:, None] & in_k[None, :]
                t = tl.load(t_at + r[:, None] * A + k[None, :], mask=small, other=0.0)
                u = own[None, :] + t.to(tl.float32) + asked[None, :]
                by_u = tl.where(small & (u > 0), by_a[:, None] * w[None, :], 0.0)
                total_s += tl.sum(by_u, axis=0)
                g = g * a[:, None]
            if not IS_SUM:
                g = g * v
            total += tl.sum(g, axis=0)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            if ATTENTION:
                tl.store(part_at + slot * (D + A) + d, total, mask=in_d)
                tl.store(part_at + slot * (D + A) + D + k, total_s, mask=in_k)
            else:
                tl.store(part_at + slot * D + d, total, mask=in_d)
        else:
            tl.store(out_at + x * D + d, total.to(out_at.dtype.element_ty), mask=in_d)
            if ATTENTION:
                tl.store(term_at + x * A + k, total_s, mask=in_k)


@triton.jit
def to_kinds(
    state_at, table_at, s_at, t_at, q_at, w_at, b_at, weight_at, gradient_at,
    source_at, target_at, edge_at, scale_at,
    row_at, first_at, indptr_at, slot_at, limit_at,
    out_at, term_at, part_at,
    num_rows, num_kinds, stride,
    MODE: tl.constexpr, MEAN: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, BD: tl.constexpr, BA: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        end = tl.minimum(end, tl.load(limit_at + row))
        query = row // num_kinds
        r = row % num_kinds
        d = tl.arange(0, BD)
        k = tl.arange(0, BA)
        in_d = d < D
        in_k = k < A
        relation = (r + query * stride).to(tl.int64)
        v = tl.load(table_at + relation * D + d, mask=in_d, other=0.0).to(tl.float32)
        total = tl.zeros((BD,), tl.float32)
        if ATTENTION:
            w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
            asked = tl.load(q_at + query * A + k, mask=in_k, other=0.0).to(tl.float32)
            own = tl.load(t_at + r * A + k, mask=in_k, other=0.0).to(tl.float32)
            total_u = tl.zeros((BA,), tl.float32)
            total_w = tl.zeros((BA,), tl.float32)
            total_b = tl.zeros((BE,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            inside = edge < end
            x = tl.load(source_at + edge, mask=inside, other=0).to(tl.int64)
            o = tl.load(target_at + edge, mask=inside, other=0).to(tl.int64)
            grid = inside[:, None] & in_d[None, :]
            h = tl.load(state_at + x[:, None] * D + d[None, :], mask=grid, other=0.0)
            h = h.to(tl.float32)
            composed = _composed(h, v[None, :], IS_SUM)
            if ATTENTION:
                stored = tl.load(edge_at + edge, mask=inside, other=0)
                a = tl.load(weight_at + stored, mask=inside, other=0.0)
                message = composed * a[:, None]
            else:
                message = composed
            g = _slope(gradient_at, scale_at, o, inside, message, d, in_d, D, MODE, MEAN, ROUND)
            if ATTENTION:
                by_a = tl.sum(g * composed, axis=1) * a * (1.0 - a)
                small = inside[:, None] & in_k[None, :]
                u = tl.load(s_at + x[:, None] * A + k[None, :], mask=small, other=0.0)
                u = u.to(tl.float32) + own[None, :] + asked[None, :]
                live = small & (u > 0)
                total_u += tl.sum(tl.where(live, by_a[:, None] * w[None, :], 0.0), axis=0)
                total_w += tl.sum(tl.where(live, by_a[:, None] * u, 0.0), axis=0)
                total_b += by_a
                g = g * a[:, None]
            if not IS_SUM:
                g = g * h
            total += tl.sum(g, axis=0)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            if ATTENTION:
                at = part_at + slot * (D + 2 * A + 1)
                tl.store(at + d, total, mask=in_d)
                tl.store(at + D + k, total_u, mask=in_k)
                tl.store(at + D + A + k, total_w, mask=in_k)
                tl.store(at + D + 2 * A, tl.sum(total_b, axis=0))
            else:
                tl.store(part_at + slot * D + d, total, mask=in_d)
        else:
            place_of = row.to(tl.int64)
            tl.store(out_at + place_of * D + d, total, mask=in_d)
            if ATTENTION:
                at = term_at + place_of * (2 * A + 1)
                tl.store(at + k, total_u, mask=in_k)
                tl.store(at + A + k, total_w, mask=in_k)
                tl.store(at + 2 * A, tl.sum(total_b, axis=0))
