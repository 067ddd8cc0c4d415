"""Aggregation: from the messages that arrive at an entity to one row."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from oneshot.predictor.segments import EdgePlan

# Each takes messages [E, d] and gives [N, width · d].
Aggregate = Callable[[Tensor, EdgePlan], Tensor]

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


AGGREGATES: dict[str, tuple[Aggregate, int, bool]] = {
    "sum": (add, 1, False),
    "mean": (mean, 1, False),
    "max": (largest, 1, False),
    "pna": (pna, 4, True),
}
"""Name → (function, how many times `d` its rows are wide, whether degrees amplify them)."""
