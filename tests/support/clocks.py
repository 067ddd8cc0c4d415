"""A clock that the tests advance, and trainings that take a given time by it."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch
from oneshot.training.observer import Observer
from oneshot.training.trainer import Trainer


class FakeClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Steps(Observer):
    """An observer: each step of a training takes `seconds`. It counts them.

    `ends_at`: the step at which the process dies.
    """

    def __init__(self, clock: FakeClock, seconds: float = 1.0, ends_at: int = 0) -> None:
        self.clock, self.seconds, self.ends_at = clock, seconds, ends_at
        self.count = 0
        self.rates: list[float] = []

    def on_start(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_step(self, queries: int, loss: float) -> None:
        self.count += 1
        self.rates.append(self.trainer.stepper.optimizer.param_groups[0]["lr"])
        self.clock.now += self.seconds
        if self.count == self.ends_at:
            raise KilledError


class KilledError(Exception):
    """The end of a process, without a chance to write anything."""


def answer_slowly(monkeypatch: pytest.MonkeyPatch, clock: FakeClock, seconds: float) -> None:
    """Let every query of an evaluation, and of a calibration, take so long."""
    reason = Reasoner.reason

    def slow(self: Reasoner, queries: Tensor, include: Tensor | None = None) -> Any:
        clock.now += seconds * len(queries)
        return reason(self, queries, include)

    monkeypatch.setattr(Reasoner, "reason", slow)


def compute_slowly(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock, seconds: Callable[[Predictor], float]
) -> None:
    """Let a predictor take so long for every query, in training as in evaluation."""
    forward = Predictor.forward

    def slow(self: Predictor, batch: SubgraphBatch, *rest: Any, **options: Any) -> Any:
        clock.now += seconds(self) * batch.num_queries
        return forward(self, batch, *rest, **options)

    monkeypatch.setattr(Predictor, "forward", slow)
