"""Aggregation: from the messages that arrive at an entity to one row."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.predictor.segments import EdgePlan

VARIANCE_FLOOR = 1e-6
DEGREE_SCALE = 3.0  # about log(1 + degree) of an average entity, so that factors stay near 1


def add(messages: Tensor, plan: EdgePlan) -> Tensor:
    return plan.target.add(messages)


def mean(messages: Tensor, plan: EdgePlan) -> Tensor:
    # Every entity has at least its identity edge.
    return plan.target.add(messages) / plan.target.count[:, None].to(messages.dtype)


def largest(messages: Tensor, plan: EdgePlan) -> Tensor:
    return plan.target.largest(messages)


def pna(messages: Tensor, plan: EdgePlan) -> Tensor:
    """What principal neighbourhood aggregation looks at: mean, max, min and deviation.

    The layer takes each as it is, and amplified and damped by the entity's degree. → [N, 4 · d]
    """
    average = mean(messages, plan)
    squares = mean(messages * messages, plan)
    # Without variance the deviation is zero, so that entities no message reached stay at zero.
    deviation = (squares - average * average).clamp(min=VARIANCE_FLOOR).sqrt()
    deviation = deviation - math.sqrt(VARIANCE_FLOOR)
    return torch.cat(
        [average, largest(messages, plan), -largest(-messages, plan), deviation], dim=-1
    )


def degree_factor(degree: Tensor, kind: torch.dtype) -> Tensor:
    """How much an entity's degree in the whole graph amplifies, [N, 1]; about 1."""
    return degree.to(kind).add(1).log().add(1)[:, None] / DEGREE_SCALE


@dataclass(frozen=True)
class Aggregate:
    """A way to aggregate, and all that is to know of it elsewhere.

    `function`: messages [E, d] → [N, width · d]; `width`: how many times `d` its rows are wide.
    `scales_by_degree`: whether degrees amplify and damp its rows.
    `has_triton_kernels`, `has_compiled_kernels`: whether the kernels of the GPU
    (`predictor.kernels.messages`) and of the CPU (`predictor.cpu.messages`) know its name.
    `answering_rows`, `training_rows`: the rows of width `d` that it adds, for each entity, to what
    a layer holds at once while it answers, and to what it keeps for the backward pass.
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
