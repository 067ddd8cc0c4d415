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


@dataclass
class TrainingState:
    """Where a training stands; what a checkpoint holds beside tensors."""

    epoch: int = 0
    best_mrr: float = -1.0
    best_epoch: int = 0
    bad_validations: int = 0
    seconds: float = 0.0
    finished: bool = False
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
    """One training, epoch by epoch."""

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

    def run(self) -> TrainingState:
        """Train until all epochs are done or patience has run out."""
        for observer in self.observers:
            observer.started(self)
        device = self.reasoner.device
        # Dropout draws from the generator of torch, whose state is the caller's.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            while not self.state.finished:
                self.run_epoch()
        self.predictor.load_state_dict(self.best)
        return self.state

    def run_epoch(self) -> None:
        """Train one epoch, validate, and tell the observers."""
        state, config = self.state, self.config
        started = time.perf_counter()
        state.epoch += 1
        loss, covered, asked = self._train_epoch(state.epoch)
        trained = time.perf_counter()
        last = state.epoch >= config.epochs
        record: dict[str, Any] = {
            "epoch": state.epoch,
            "loss": loss,
            "covered": covered,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "queries_per_second": asked / (trained - started),
        }
        is_best = False
        if last or state.epoch % config.valid_every == 0:
            mrr = self._validate(record)
            is_best = mrr > state.best_mrr
            state.bad_validations = 0 if is_best else state.bad_validations + 1
            self.schedule.validated(is_best)
            if is_best:
                state.best_mrr, state.best_epoch = mrr, state.epoch
                self.best = self._parameters()
        state.finished = last or 0 < config.patience <= state.bad_validations
        state.seconds += time.perf_counter() - started
        record["seconds"] = time.perf_counter() - started
        state.history.append(record)
        for observer in self.observers:
            observer.epoch_done(self, record, is_best)

    def _train_epoch(self, epoch: int) -> tuple[float, float, int]:
        """→ (mean loss of a query, share of queries whose answer was sampled, queries asked)"""
        facts = draw_epoch(self.graph, self.config, epoch)
        asked = len(facts.queries)
        total = torch.zeros(2, dtype=torch.float64)
        self.predictor.train()
        for queries, ours, loss, covered in self.steps(facts, epoch):
            total += torch.tensor([loss, covered], dtype=torch.float64)
            for observer in self.observers:
                observer.stepped(queries, loss / max(ours, 1))
        total = self.team.sum(total)
        return float(total[0]) / asked, float(total[1]) / asked, asked

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
            team=self.team,
        )
        record["valid"] = report.metrics.as_dict() | {"coverage": report.coverage}
        return report.mrr

    def _parameters(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for name, t in self.predictor.state_dict().items()}
