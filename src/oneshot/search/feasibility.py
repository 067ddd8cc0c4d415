"""Feasibility: whether a configuration can be trained within the time of a trial.

It is checked before the training by timing a few queries: one step of a large predictor on a dense
graph may take longer than a whole trial.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.devices import takes_bfloat16
from oneshot.training.epoch import without_direct
from oneshot.training.time_budget import Clock

# The minimum work of a trial: optimizer steps, training queries, and validations (at the two rungs
# where it is judged, and at its end).
_LEAST_STEPS, _LEAST_QUERIES, _LEAST_VALIDATIONS = 16, 256, 3
# Queries of the first measurement; each further one has four times as many, while they are fast.
_FIRST_QUERIES, _GROWTH = 2, 4
_PROBE = 1 / 10


class Pace(NamedTuple):
    """Seconds per query in training and in evaluation."""

    training: float
    evaluation: float


class Demand(NamedTuple):
    """The work of a trial within its `seconds`: validations of so many queries, and steps."""

    seconds: float
    batch_size: int
    valid_queries: int

    @property
    def queries(self) -> int:
        """The minimum number of training queries of a meaningful trial."""
        return max(_LEAST_STEPS * self.batch_size, _LEAST_QUERIES)

    def needed(self, pace: Pace) -> float:
        """Seconds of the minimum work."""
        validations = _LEAST_VALIDATIONS * self.valid_queries * pace.evaluation
        return self.queries * pace.training + validations

    def obstacle(self, pace: Pace) -> str | None:
        """The reason why a trial is infeasible at a pace, or None."""
        needed = self.needed(pace)
        if needed <= self.seconds:
            return None
        return (
            f"{self.queries:,} training queries and {_LEAST_VALIDATIONS} validations would take "
            f"{needed:.1f} s; the limit of a trial is {self.seconds:.1f} s"
        )


def measure_pace(
    reasoner: Reasoner,
    data: Dataset,
    config: TrainingConfig,
    seconds: float,
    clock: Clock,
    is_enough: Callable[[Pace], bool] = lambda pace: False,
) -> Pace:
    """Time a few queries, then more, up to a batch, because small batches are slower per query.

    Stops when a pace `is_enough`, or when the next queries would take a tenth of a trial's
    `seconds`. The predictor is not changed. The first queries are not counted: they allocate memory
    and, on a GPU, compile kernels.
    """
    graph, device = data.graph.to(reasoner.device), reasoner.device
    count = min(config.batch_size, len(graph.facts))
    facts = graph.facts[:count].long()
    queries = facts[:, :2].contiguous()
    train = _training(reasoner, config, graph.num_relations, queries, facts[:, 2])

    def timed(work: Callable[[int], object], size: int) -> float:
        begun = clock()
        work(size)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock() - begun

    def answer(size: int) -> None:
        reasoner.reason(queries[:size])

    size = min(_FIRST_QUERIES, count)
    # Dropout uses the global generator of torch, whose state is restored for the caller.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        train(size)
        while True:
            training = timed(train, size)
            evaluation = timed(answer, size)
            pace = Pace(training / size, evaluation / size)
            took = _GROWTH * (training + evaluation)
            if size == count or took > _PROBE * seconds or is_enough(pace):
                return pace
            size = min(_GROWTH * size, count)


def _training(
    reasoner: Reasoner,
    config: TrainingConfig,
    num_relations: int,
    queries: Tensor,
    answers: Tensor,
) -> Callable[[int], None]:
    """Forward and backward pass for so many of the queries, as in a training step."""
    sampler, graph, predictor = reasoner.sampler, reasoner.graph, reasoner.predictor
    if config.entity_ratio is not None:
        sampler = sampler.with_entity_ratio(config.entity_ratio)
    half = takes_bfloat16(reasoner.device, config.precision)

    def train(count: int) -> None:
        was_training = predictor.training
        predictor.train()
        batch = sampler.sample(graph, queries[:count])
        if config.hide_direct:
            batch = without_direct(batch, answers[:count], num_relations)
        with torch.autocast(reasoner.device.type, torch.bfloat16, half):
            scores = predictor(batch)
        scores.float().sum().backward()
        predictor.zero_grad(set_to_none=True)
        predictor.train(was_training)

    return train
