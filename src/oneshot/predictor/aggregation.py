"""Aggregation of the incoming messages of an entity to one row."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.predictor.segments import EdgePlan

VARIANCE_FLOOR = 1e-6
DEGREE_SCALE = 3.0  # about log(1 + degree) of an average entity, so that factors are near 1


def add(messages: Tensor, plan: EdgePlan) -> Tensor:
    return plan.target.add(messages)


def mean(messages: Tensor, plan: EdgePlan) -> Tensor:
    # Every entity has at least its identity edge.
    return plan.target.add(messages) / plan.edge_count[:, None].to(messages.dtype)


def largest(messages: Tensor, plan: EdgePlan) -> Tensor:
    found = plan.target.largest(messages)
    if plan.missing is None:
        return found
    return torch.where(plan.missing[:, None] > 0, found.clamp(min=0), found)


def pna(messages: Tensor, plan: EdgePlan) -> Tensor:
    """The aggregates of principal neighbourhood aggregation: mean, max, min and deviation.

    The layer uses each unscaled, and amplified and damped by the entity's degree. → [N, 4 · d]
    """
    average = mean(messages, plan)
    squares = mean(messages * messages, plan)
    # Without variance the deviation is zero, so that entities without messages stay at zero.
    deviation = (squares - average * average).clamp(min=VARIANCE_FLOOR).sqrt()
    deviation = deviation - math.sqrt(VARIANCE_FLOOR)
    return torch.cat(
        [average, largest(messages, plan), -largest(-messages, plan), deviation], dim=-1
    )


def degree_factor(degree: Tensor, kind: torch.dtype) -> Tensor:
    """Amplification by an entity's degree in the whole graph, [N, 1]; about 1."""
    return degree.to(kind).add(1).log().add(1)[:, None] / DEGREE_SCALE


@dataclass(frozen=True)
class Aggregate:
    """An aggregation and its properties.

    `function`: messages [E, d] → [N, width · d]; `width`: width of its rows as a multiple of `d`.
    `scales_by_degree`: whether degrees amplify and damp its rows.
    `has_triton_kernels`, `has_compiled_kernels`: whether the kernels of the GPU
    (`predictor.kernels.messages`) and of the CPU (`predictor.cpu.messages`) support it.
    `answering_rows`, `training_rows`: additional rows of width `d` per entity that a layer holds at
    once in inference, and that it stores for the backward pass.
    """

    function: Callable[[Tensor, EdgePlan], Tensor]
    width: int = 1
    scales_by_degree: bool = False
    has_triton_kernels: bool = False
    has_compiled_kernels: bool = False
    answering_rows: int = 0
    training_rows: int = 0


AGGREGATES: dict[str, Aggregate] = {
    "sum": Aggregate(add, has_triton_kernels=True, has_compiled_kernels=True),
    "mean": Aggregate(mean, has_triton_kernels=True, has_compiled_kernels=True),
    "max": Aggregate(largest, has_triton_kernels=True, has_compiled_kernels=True),
    "pna": Aggregate(
        pna,
        width=4,
        scales_by_degree=True,
        has_triton_kernels=True,
        has_compiled_kernels=True,
        answering_rows=16,
        training_rows=5,
    ),
}
