"""Aggregation: from the messages that arrive at an entity to one row."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from oneshot.predictor.rows import EdgePlan

# Each takes messages [E, d] and gives [N, width · d].
Aggregate = Callable[[Tensor, EdgePlan], Tensor]

_VARIANCE_FLOOR = 1e-6
_DEGREE_SCALE = 3.0  # about log(1 + degree) of an average entity, so that factors stay near 1


def add(messages: Tensor, plan: EdgePlan) -> Tensor:
    return plan.target.add(messages)


def mean(messages: Tensor, plan: EdgePlan) -> Tensor:
    # Every entity has at least its identity edge.
    return plan.target.add(messages) / plan.target.count[:, None].to(messages.dtype)


def largest(messages: Tensor, plan: EdgePlan) -> Tensor:
    return plan.target.largest(messages)


def pna(messages: Tensor, plan: EdgePlan) -> Tensor:
    """Principal neighbourhood aggregation: mean, max, min and deviation, at three scales.

    Each is taken as it is, amplified and damped by the logarithm of the entity's degree in the
    whole graph. → [N, 12 · d]
    """
    average = mean(messages, plan)
    squares = mean(messages * messages, plan)
    # Without variance the deviation is zero, so that entities no message reached stay at zero.
    deviation = (squares - average * average).clamp(min=_VARIANCE_FLOOR).sqrt()
    deviation = deviation - math.sqrt(_VARIANCE_FLOOR)
    statistics = torch.cat(
        [average, largest(messages, plan), -largest(-messages, plan), deviation], dim=-1
    )
    scale = plan.batch.degree.to(messages.dtype).add(1).log().add(1)[:, None] / _DEGREE_SCALE
    return torch.cat([statistics, statistics * scale, statistics / scale], dim=-1)


AGGREGATES: dict[str, tuple[Aggregate, int]] = {
    "sum": (add, 1),
    "mean": (mean, 1),
    "max": (largest, 1),
    "pna": (pna, 12),
}
"""Name → (function, how many times `d` its rows are wide)."""
