"""Collecting messages: message × attention × aggregation in one pass over the edges.

With `m_e = a_e · (h_x ∘ w_r)` for an edge `e = (x, r, o)`, a program takes one target row, or a
piece of a long one, and adds up its messages in registers; no message is ever stored. Gradients
are collected the same way, with the parts of the attention added up in the same order, so that
its ReLU has the same sign: those of `h` and of the source's part of the attention by source,
those of relations and queries by query and relation. All sums are made in float32 and in a fixed
order.
"""

from typing import Any, Literal

import torch
import triton
from torch import Tensor

from oneshot.predictor.aggregation import VARIANCE_FLOOR
from oneshot.predictor.kernels.message_kernels import (
    attend,
    collect_extremes,
    collect_sums,
    join_extremes,
    to_kinds,
    to_sources,
)
from oneshot.predictor.kernels.plan import FusedPlan
from oneshot.predictor.kernels.segments import PIECE, Pieces, join_sums
from oneshot.predictor.messages import Attention

Statistics = Literal["sum", "mean", "max", "pna"]

# Whether sums read attentions that a kernel of their own has written, instead of computing them.
ATTEND_FIRST = False

# How the slope of the loss in a message is found: it is the target's; by comparing the message
# with the target's highest; by that, the lowest and the message itself.
_PLAIN, _HIGHEST, _ALL = 0, 1, 2
_MODES = {"sum": _PLAIN, "mean": _PLAIN, "max": _HIGHEST, "pna": _ALL}


def collect(
    state: Tensor,
    table: Tensor,
    attention: Attention | None,
    plan: FusedPlan,
    layer: int,
    statistics: Statistics,
    is_sum: bool,
) -> Tensor:
    """What the rows within `layer + 1` edges of `u` collect, [reach, d] (pna: [reach, 4 · d]).

    `state` [reach before, d]; `table` [K, d], or [n · K, d] with weights for each query;
    `is_sum`: entity and relation are added, not multiplied. For pna: mean, max, min, deviation.
    """
    parts = () if attention is None else vars(attention).values()
    tensors = [state.contiguous(), table.contiguous(), *(part.contiguous() for part in parts)]
    # Inside of the function no gradient is ever wanted: ask before.
    wanted = torch.is_grad_enabled()
    out: Tensor = _Collect.apply(plan, layer, statistics, is_sum, wanted, *tensors)
    return out


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        plan, layer, statistics, is_sum, needs_gradient, *tensors = inputs
        call = _Call(plan, layer, statistics, is_sum, tensors)
        if _MODES[statistics] == _PLAIN:
            out, weights = call.sums(needs_gradient)
            raw = None
        else:
            raw, weights = call.extremes()
            out = finished(raw, plan.scale[: len(raw), None], state_type=tensors[0].dtype)
        ctx.call = (plan, layer, statistics, is_sum)
        ctx.save_for_backward(*tensors, weights, raw)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *tensors, weights, raw = ctx.saved_tensors
        plan, layer, statistics, is_sum = ctx.call
        call = _Call(plan, layer, statistics, is_sum, tensors)
        gradient = gradients[0].contiguous()
        if raw is not None:
            gradient = slopes(raw, gradient, plan.scale[: len(raw), None])
        return (None, None, None, None, None, *call.gradients(gradient, weights))


class _Call:
    """One layer's collecting: the arguments that forward and backward kernels share."""

    def __init__(
        self,
        plan: FusedPlan,
        layer: int,
        statistics: Statistics,
        is_sum: bool,
        tensors: list[Tensor],
    ) -> None:
        self.plan, self.layer, self.statistics = plan, layer, statistics
        self.state, self.table, *rest = tensors
        # Without attention the pointers are never followed.
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
            "num_warps": warps,
        }
        self.stride = 0 if len(self.table) == plan.kinds else plan.kinds

    def sums(self, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """→ (sums or means [rows, d], the attention of each edge [E] if gradients need it)"""
        plan = self.plan
        out = self.state.new_empty(self.num_rows, self.dim)
        parts = self._floats(plan.rows.num_slots, self.dim)
        weights = self.attention() if ATTEND_FIRST else self._weights(needs_gradient)
        if self.num_rows:
            collect_sums[(plan.rows.bound(self.num_rows),)](
                self.state, self.table, *self.terms,
                plan.source, plan.relation, plan.row_query, plan.scale,
                *_pointers(plan.rows), out, parts, out if weights is None else weights,
                self.num_rows, self.num_sources, self.stride,
                MEAN=self.statistics == "mean", STORE=weights is not None and not ATTEND_FIRST,
                READ=weights is not None and ATTEND_FIRST, **self.constants,
            )  # fmt: skip
            join_sums(parts, plan.rows, self.num_rows, out, None)
        return out, weights

    def extremes(self) -> tuple[Tensor, Tensor | None]:
        """→ (highest and how often it occurs [rows, 2, d], or all six of pna; attention [E])

        Messages are compared with the highest again on the way back. So the attention, a sum
        that may be rounded otherwise each time it is written, is computed once and read.
        """
        plan = self.plan
        kinds = 2 if self.statistics == "max" else 6
        raw = self._floats(self.num_rows, kinds, self.dim)
        parts = self._floats(plan.rows.num_slots, kinds, self.dim)
        weights = self.attention()
        constants = {name: self.constants[name] for name in self.constants if name not in "ABA"}
        if self.num_rows:
            collect_extremes[(plan.rows.bound(self.num_rows),)](
                self.state, self.table, plan.source, plan.relation, plan.row_query,
                *_pointers(plan.rows), raw, parts, raw if weights is None else weights,
                self.num_rows, self.num_sources, self.stride, ALL=kinds == 6, **constants,
            )  # fmt: skip
            if len(plan.rows.split):
                join_extremes[(len(plan.rows.split),)](
                    parts, raw, plan.rows.split, plan.rows.first, plan.rows.slot, self.num_rows,
                    D=self.dim, BD=self.constants["BD"], ALL=kinds == 6,
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

        `gradient` [rows, d], or the slopes that `slopes` made.
        """
        plan, has_attention = self.plan, self.constants["ATTENTION"]
        width = self.width if has_attention else 0
        stored = self.state if weights is None else weights
        mode = {"MODE": _MODES[self.statistics], "MEAN": self.statistics == "mean"}
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
    """How many edges a program takes at once, few where rows are short, and its warps.

    One warp is best: its threads need not wait for others between the edges.
    """
    tile = 4 if edges_per_row < 12 else 8
    return tile, 1 if dim * tile <= 2048 else 2


def finished(raw: Tensor, scale: Tensor, state_type: torch.dtype) -> Tensor:
    """From [rows, 2 or 6, d] to the aggregate [rows, d] or [rows, 4 · d]."""
    if raw.shape[1] == 2:
        return raw[:, 0].to(state_type)
    total, squares, highest, lowest, _, _ = raw.unbind(1)
    mean = total * scale
    deviation = (squares * scale - mean * mean).clamp(min=VARIANCE_FLOOR).sqrt()
    statistics = torch.stack([mean, highest, lowest, deviation - VARIANCE_FLOOR**0.5], dim=1)
    return statistics.flatten(1).to(state_type)


def slopes(raw: Tensor, gradient: Tensor, scale: Tensor) -> Tensor:
    """What the slope of the loss in a message is made of, by target; see `_slope`.

    `gradient` of `finished`. → [rows, 2, d]: highest, its slope; for pna [rows, 6, d]: slope,
    slope by the message, highest, its slope, lowest, its slope.
    """
    if raw.shape[1] == 2:
        return torch.stack([raw[:, 0], gradient.float() / raw[:, 1].clamp(min=1)], dim=1)
    total, squares, highest, lowest, highest_count, lowest_count = raw.unbind(1)
    by_mean, by_highest, by_lowest, by_deviation = (
        gradient.float().reshape(len(raw), 4, -1).unbind(1)
    )
    mean = total * scale
    variance = squares * scale - mean * mean
    by_variance = torch.where(
        variance > VARIANCE_FLOOR, by_deviation / (2 * variance.clamp(min=VARIANCE_FLOOR).sqrt()), 0
    )
    return torch.stack(
        [
            (by_mean - 2 * mean * by_variance) * scale,
            2 * by_variance * scale,
            highest,
            by_highest / highest_count.clamp(min=1),
            lowest,
            by_lowest / lowest_count.clamp(min=1),
        ],
        dim=1,
    )


def _pointers(pieces: Pieces) -> tuple[Tensor, ...]:
    return pieces.row, pieces.first, pieces.indptr, pieces.slot
