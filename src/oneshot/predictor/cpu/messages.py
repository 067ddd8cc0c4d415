"""Fused messages: message × attention × aggregation in one pass over the edges.

With `m_e = f_e · a_e · (h_x ∘ w_r)` for an edge `e = (x, r, o)`, where `f_e` is the weight of its
fact or 1, the messages into a row are aggregated as they are computed and never stored. The
backward pass recomputes them.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from oneshot.compiled import pointer, run
from oneshot.predictor.aggregation import AGGREGATES
from oneshot.predictor.cpu.plan import CPUPlan
from oneshot.predictor.messages import Attention

# Number of channels, or attention values, that the kernels process at a time.
_LANES, _NARROW = 16, 8
# Numbers of the aggregates in the kernels.
_NUMBERS = {"sum": 0, "mean": 1, "max": 2, "pna": 3}
# Maximum number of partial sums for gradients of parameters that all queries share.
_GROUPS = 32


def collect(
    state: Tensor,
    table: Tensor,
    attention: Attention | None,
    plan: CPUPlan,
    layer: int,
    aggregate: str,
    is_sum: bool,
) -> Tensor:
    """Aggregates of the rows within `layer + 1` edges of `u`, [reach, d] (pna: [reach, 4 · d]).

    `state` [reach before, d]; `table` [K, d], or [n · K, d] with weights for each query;
    `is_sum`: entity and relation are added, not multiplied. For pna: mean, max, min, deviation.
    """
    tensors = [_padded(state, _LANES), _padded(table, _LANES)]
    if attention is not None:
        *rows, weight, bias = vars(attention).values()
        tensors += [*(_padded(part, _NARROW) for part in (*rows, weight)), bias.contiguous()]
    # Gradients are always disabled inside the function, so check before.
    wanted = torch.is_grad_enabled()
    out: Tensor = _Collect.apply(  # type: ignore[no-untyped-call]
        plan, layer, aggregate, is_sum, wanted, *tensors
    )
    if (dim := state.shape[1]) % _LANES:
        out = out.unflatten(1, (-1, tensors[0].shape[1]))[:, :, :dim].flatten(1)
    return out


def _padded(part: Tensor, lanes: int) -> Tensor:
    """A tensor [..., d] padded with zeros, so that `d` is a multiple of `lanes`."""
    return nn.functional.pad(part, (0, -part.shape[-1] % lanes)).contiguous()


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        plan, layer, aggregate, is_sum, needs_gradient, *tensors = inputs
        rows, dim = plan.reach[layer + 1], tensors[0].shape[1]
        out = torch.empty(rows, AGGREGATES[aggregate].width * dim)
        counts = {"max": dim, "pna": 2 * dim}.get(aggregate, 0)
        count = torch.empty(rows if needs_gradient else 0, counts)
        is_weighted = len(tensors) > 2 or plan.factor is not None
        weight = torch.empty(len(plan.source) if is_weighted else 0)
        call = _layer(plan, layer, aggregate, is_sum, tensors)
        call.out, call.count, call.edge_weight = map(pointer, (out, count, weight))
        call.counts = needs_gradient
        run("collect", len(plan.source) * dim, ctypes.byref(call))
        ctx.call = (plan, layer, aggregate, is_sum)
        ctx.save_for_backward(*tensors, weight, count, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *tensors, weight, count, out = ctx.saved_tensors
        plan, layer, aggregate, is_sum = ctx.call
        state, table, *parts = tensors
        gradient = gradients[0].contiguous()
        call = _layer(plan, layer, aggregate, is_sum, tensors)
        groups = call.num_groups
        to_state = torch.zeros_like(state)
        shared = call.stride == 0
        to_table = torch.zeros(groups if shared else 1, *table.shape)
        width = call.attention
        to_source = torch.zeros(len(state), width)
        to_relation = torch.zeros(groups, plan.kinds, width)
        to_query = torch.zeros(plan.batch.num_queries, width)
        to_weight, to_bias = torch.zeros(groups, width), torch.zeros(groups, 1)
        call.out, call.count, call.edge_weight = map(pointer, (out, count, weight))
        call.gradient = pointer(gradient)
        call.to_state, call.to_table = pointer(to_state), pointer(to_table)
        call.to_source, call.to_relation = pointer(to_source), pointer(to_relation)
        call.to_query, call.to_weight = pointer(to_query), pointer(to_weight)
        call.to_bias = pointer(to_bias)
        run("spread", 2 * len(plan.source) * state.shape[1], ctypes.byref(call))
        found = [to_state, to_table.sum(0)]
        if parts:
            found += [to_source, to_relation.sum(0), to_query, to_weight.sum(0), to_bias.sum(0)]
        return (None, None, None, None, None, *found)


class _Layer(ctypes.Structure):
    """The arguments of the kernels, as declared in `compiled/predictor.c`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "num_rows", "num_sources", "num_queries", "num_groups", "num_kinds", "num_levels",
            "dim", "attention", "stride", "aggregate", "is_sum", "counts",
        )),
        *((name, ctypes.c_void_p) for name in (
            "indptr", "source", "relation", "row_query", "level_row", "missing",
            "state", "table", "from_source", "from_relation", "from_query", "weight", "bias",
            "edge_weight", "out", "count", "gradient",
            "to_state", "to_table", "to_source", "to_relation", "to_query", "to_weight", "to_bias",
            "factor",
        )),
    ]  # fmt: skip


def _layer(
    plan: CPUPlan, layer: int, aggregate: str, is_sum: bool, tensors: list[Tensor]
) -> _Layer:
    """The common part of forward and backward pass of a layer."""
    state, table, *parts = tensors
    queries = plan.batch.num_queries
    call = _Layer(
        num_rows=plan.reach[layer + 1],
        num_sources=plan.reach[layer],
        num_queries=queries,
        num_groups=min(queries, _GROUPS),
        num_kinds=plan.kinds,
        num_levels=layer + 2,
        dim=state.shape[1],
        attention=parts[0].shape[1] if parts else 0,
        stride=0 if len(table) == plan.kinds else plan.kinds,
        aggregate=_NUMBERS[aggregate],
        is_sum=is_sum,
    )
    for name in ("indptr", "source", "relation", "row_query", "level_row", "missing", "factor"):
        setattr(call, name, pointer(getattr(plan, name)))
    call.state, call.table = pointer(state), pointer(table)
    names = ("from_source", "from_relation", "from_query", "weight", "bias")
    for name, part in zip(names, parts, strict=bool(parts)):
        setattr(call, name, pointer(part))
    return call
