"""Training: the loop that makes a predictor out of facts.

Each epoch splits the training facts afresh into observation facts, which are seen, and query
facts, which are asked in both directions on the graph of the former. Everything random is drawn
from generators seeded by (seed, epoch, step), so that a run which was killed and resumed ends with
the same parameters as one that was not.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.dataset import Dataset
from oneshot.epoch import draw_epoch
from oneshot.errors import InputError
from oneshot.evaluation import evaluate
from oneshot.ranking import KnownFacts
from oneshot.reasoner import Reasoner
from oneshot.stepping import Stepper
from oneshot.stopping import StopTraining


@dataclass
class TrainingState:
    """Where a training stands; what a checkpoint holds beside tensors.

    `asked`, `loss`, `covered`: of the epoch that has begun, the queries so far, the sum of their
    losses, and how many answers were sampled; 0 between two epochs.
    """

    epoch: int = 0
    best_mrr: float = -1.0
    best_epoch: int = 0
    bad_validations: int = 0
    seconds: float = 0.0
    finished: bool = False
    asked: int = 0
    loss: float = 0.0
    covered: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Observer(Protocol):
    """What watches a training: the progress display, the run directory."""

    def started(self, trainer: "Trainer") -> None: ...
    def stepped(self, queries: int, loss: float) -> None: ...
    def validating(self, queries: int) -> None: ...
    def epoch_done(self, trainer: "Trainer", record: dict[str, Any], is_best: bool) -> None: ...


def fit(
    reasoner: Reasoner,
    data: Dataset,
    config: TrainingConfig | None = None,
    observers: "list[Observer] | None" = None,
    restore: Callable[["Trainer"], None] | None = None,
) -> TrainingState:
    """Train the reasoner's predictor on `data.train`; it ends with the best epoch's parameters.

    The best epoch is chosen by MRR on `data.valid`; the test split is never looked at. The
    history has one record an epoch. `restore` puts the trainer where an earlier training stood.
    """
    trainer = Trainer(reasoner, data, config or TrainingConfig(), observers or [])
    if restore is not None:
        restore(trainer)
    return trainer.run()


class Trainer(Stepper):
    """One training, epoch by epoch.

    `should_stop` is asked after each step; if it says so, `run` ends with `StopTraining`, and
    `state` tells where.
    """

    def __init__(
        self,
        reasoner: Reasoner,
        data: Dataset,
        config: TrainingConfig,
        observers: list[Observer],
    ) -> None:
        if data.graph.num_facts < 2:
            raise InputError("training needs at least two facts")
        if not len(data.valid):
            raise InputError("training needs a validation split, to choose the best epoch by")
        if data.graph.relations != reasoner.graph.relations:
            raise InputError("the data set has other relations than the reasoner's graph")
        super().__init__(reasoner, data, config)
        self.data, self.observers = data, observers
        self.state = TrainingState()
        self.known = KnownFacts(data.known, self.graph.num_entities, self.graph.num_relations)
        self.best = self._parameters()
        self.should_stop: Callable[[], bool] = lambda: False

    def run(self) -> TrainingState:
        """Train until all epochs are done or patience has run out."""
        for observer in self.observers:
            observer.started(self)
        device = self.reasoner.device
        # Dropout draws from the generator of torch, whose state is the caller's.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            while not self.state.finished:
                self._check_going_on()
                begun = time.perf_counter()
                try:
                    self.run_epoch()
                except StopTraining:
                    self.state.seconds += time.perf_counter() - begun
                    raise
        self.predictor.load_state_dict(self.best)
        return self.state

    def run_epoch(self) -> None:
        """Train one epoch, or the rest of one, validate, and tell the observers."""
        state, config = self.state, self.config
        started, before = time.perf_counter(), state.asked
        epoch = state.epoch + 1
        loss, covered, asked = self._train_epoch(epoch)
        trained = time.perf_counter()
        last = epoch >= config.epochs
        record: dict[str, Any] = {
            "epoch": epoch,
            "loss": loss,
            "covered": covered,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "queries_per_second": (asked - before) / (trained - started),
        }
        is_best = False
        if last or epoch % config.valid_every == 0:
            mrr = self._validate(record)
            is_best = mrr > state.best_mrr
            state.bad_validations = 0 if is_best else state.bad_validations + 1
            self.schedule.validated(is_best)
            if is_best:
                state.best_mrr, state.best_epoch = mrr, epoch
                self.best = self._parameters()
        self.check_parameters(epoch)
        state.epoch, state.asked, state.loss, state.covered = epoch, 0, 0.0, 0.0
        state.finished = last or 0 < config.patience <= state.bad_validations
        state.seconds += time.perf_counter() - started
        record["seconds"] = time.perf_counter() - started
        state.history.append(record)
        for observer in self.observers:
            observer.epoch_done(self, record, is_best)

    def _train_epoch(self, epoch: int) -> tuple[float, float, int]:
        """→ (mean loss of a query, share of queries whose answer was sampled, queries asked)"""
        facts = draw_epoch(self.graph, self.config, epoch)
        asked, state = len(facts.queries), self.state
        self.predictor.train()
        if state.asked:  # the rate is that of the last step also if there are no more
            self._begin_step(epoch, (state.asked - 1) // (self.config.batch_size * self.team.size))
        for queries, ours, loss, covered in self.steps(facts, epoch, state.asked):
            state.asked += queries
            state.loss, state.covered = state.loss + loss, state.covered + covered
            for observer in self.observers:
                observer.stepped(queries, loss / max(ours, 1))
            self._check_going_on()
        total, hits = self._totals()
        return total / asked, hits / asked, asked

    def _totals(self) -> tuple[float, float]:
        """Of the epoch that runs, over all processes: sum of the losses, covered queries."""
        mine = torch.tensor([self.state.loss, self.state.covered], dtype=torch.float64)
        loss, covered = self.team.sum(mine).tolist()
        return loss, covered

    def _check_going_on(self) -> None:
        """End the training here if one of its processes was told to."""
        told = torch.tensor([float(self.should_stop())])
        if bool(self.team.sum(told)):
            self.state.loss, self.state.covered = self._totals()
            raise StopTraining

    def check_going_on_alone(self) -> None:
        """End the training within an evaluation, if it was told to stop.

        Not with several processes: they wait for each other at its end, and none may leave alone.
        """
        if self.team.size == 1:
            self._check_going_on()

    def _validate(self, record: dict[str, Any]) -> float:
        """MRR on the validation split, with the whole training graph to look at."""
        limit = self.config.valid_limit or None
        asked = min(2 * len(self.data.valid), limit or 2 * len(self.data.valid))
        for observer in self.observers:
            observer.validating(asked)
        report = evaluate(
            self.reasoner,
            self.data.valid,
            self.known,
            batch_size=self.config.valid_batch_size or None,
            limit=limit,
            seed=self.config.seed,
            progress=lambda _: self.check_going_on_alone(),
            team=self.team,
        )
        record["valid"] = report.metrics.as_dict() | {"coverage": report.coverage}
        return report.mrr

    def _parameters(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for name, t in self.predictor.state_dict().items()}
