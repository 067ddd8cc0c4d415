"""Trainer: the training loop.

Each epoch splits the training facts at random into observation facts, which form the graph, and
query facts, which are queries in both directions on that graph. All random numbers come from
generators seeded with (seed, epoch, step). A run that was killed and resumed therefore ends with
the same parameters as an uninterrupted one.

With a time budget (`TrainingConfig.minutes`), a training ends when its time is used up, possibly
within an epoch, and the learning rate follows the clock. A resumed training then uses the same
random numbers, and with a constant learning rate also makes the same steps.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from oneshot.config import FactorsConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import Report, drawn_queries, evaluate
from oneshot.evaluation.frequency import Frequency
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.distributed import Team
from oneshot.training.diagnosis import Diagnosis
from oneshot.training.interrupt import StopTraining, check_stop
from oneshot.training.observer import Observer
from oneshot.training.schedule import Schedule
from oneshot.training.steps import Stepper, warn
from oneshot.training.time_budget import TimeBudget

CHECKPOINT_SECONDS = 60.0
"""Time between two checkpoints within an epoch, in seconds."""

_PROBED_QUERIES = 48


@dataclass
class TrainingState:
    """The progress of a training: the contents of a checkpoint except tensors.

    `asked`, `loss`, `covered`: number of queries so far in the current epoch, the sum of their
    losses, and the number of sampled answers; 0 between two epochs. `out_of_time`: the time budget
    in minutes, if the training has finished because it was used up. `valid_limit`: number of
    validation queries if there is no time for all; it is constant throughout a training, because
    the best epoch is chosen by them.
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
    out_of_time: float = 0.0
    valid_limit: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def fit(
    reasoner: Reasoner,
    data: Dataset,
    config: TrainingConfig | None = None,
    observers: Sequence[Observer] | None = None,
    restore: Callable[["Trainer"], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    messages: Callable[[str], None] = warn,
) -> TrainingState:
    """Train the reasoner's predictor on `data.train`, and keep the parameters of the best epoch.

    Without a configuration, one is planned for the reasoner, the data and the machine: 10 minutes
    on a CPU, 5 on a GPU (see `oneshot.plan`). The best epoch is chosen by MRR on `data.valid`; the
    test split is never used. The history has one record per epoch. `restore` sets the trainer to
    the state of an earlier training. `should_stop`, `messages`: see `Trainer`.
    Likely problems are logged as warnings (see `oneshot.training.diagnosis`).
    """
    if config is None:
        from oneshot.training.plan import plan_training  # plan.py imports this module

        config = plan_training(reasoner, data)
    trainer = Trainer(reasoner, data, config, should_stop=should_stop, messages=messages)
    if restore is not None:
        restore(trainer)
    following = [*(observers or ()), Diagnosis()]
    try:
        return trainer.run(following)
    finally:
        for observer in following:
            observer.on_end()


class Trainer:
    """One training, epoch by epoch: its validations, learning rate, time and best parameters.

    `stepper` performs the steps of an epoch. `budget`: the time budget; by default that of the
    configuration, starting now. `should_stop` is called after each step and each batch of a
    validation; if it returns true, `run` ends with `StopTraining`, and `state` holds the progress.
    `messages`: called with messages for the user, one line each. `stepper_type`: the class of the
    stepper.
    """

    stepper_type: ClassVar[type[Stepper]] = Stepper

    def __init__(
        self,
        reasoner: Reasoner,
        data: Dataset,
        config: TrainingConfig,
        budget: TimeBudget | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        messages: Callable[[str], None] = warn,
    ) -> None:
        if data.graph.num_facts < 2:
            raise InputError("training needs at least two facts")
        if not len(data.valid):
            raise InputError(
                "training needs a validation split to choose the best epoch: add a file of valid "
                "facts, or use more facts, so that some can be held out"
            )
        if data.graph.relations != reasoner.graph.relations:
            raise InputError("the data set has other relations than the reasoner's graph")
        self.reasoner, self.data, self.config = reasoner, data, config
        self.should_stop, self.messages = should_stop, messages
        self.predictor = reasoner.predictor
        self.schedule = Schedule(config)
        self.stepper = self.stepper_type(reasoner, data, config, self.schedule, messages)
        self.budget = budget or TimeBudget(config.minutes)
        self.state = TrainingState()
        self.known = data.known_facts
        self.best = self.current()
        self.observers: Sequence[Observer] = ()
        # Whether the parameters before the first epoch are validated, too, and may be the best.
        self.starts_trained = False
        # Of the factors beside the predictor, for observers.
        self.factors_config = FactorsConfig()
        self._is_over, self._step_seconds = False, 0.0
        # Time of the last checkpoint, and time up to which `state.seconds` counts.
        self._kept = self._counted = self.budget.clock()

    @property
    def graph(self) -> KnowledgeGraph:
        """The training facts, on the device of the predictor."""
        return self.stepper.graph

    @property
    def team(self) -> Team:
        """The processes of distributed training."""
        return self.stepper.team

    @property
    def queries_per_epoch(self) -> int:
        return self.stepper.queries_per_epoch

    @cached_property
    def frequency(self) -> Frequency:
        """The frequency baseline."""
        return Frequency.of_graph(self.data.graph)

    @cached_property
    def baseline_mrr(self) -> float:
        """MRR of the frequency baseline on the queries of a validation."""
        return self.frequency.metrics(*self.drawn_for_validation(), self.known).mrr

    @property
    def validation_queries(self) -> int:
        """Number of queries per validation."""
        every = 2 * len(self.data.valid)
        return min(every, self.config.valid_limit or every, self.state.valid_limit or every)

    def drawn_for_validation(self) -> tuple[Tensor, Tensor]:
        """The queries of a validation and their answers: [n, 2], [n]."""
        count, relations = self.validation_queries, self.graph.num_relations
        return drawn_queries(self.data.valid, relations, count, self.config.seed)

    def run(self, observers: Sequence[Observer] = ()) -> TrainingState:
        """Train until all epochs are done, patience has run out or the time is used up.

        `observers` are notified in the given order.
        """
        self.observers = observers
        self.budget.spent_before = self.state.seconds
        if self.budget.is_limited:
            self._probe()
        for observer in self.observers:
            observer.on_start(self)
        if self.starts_trained and self.state.best_mrr < 0 and not self.state.asked:
            self.state.best_mrr = self._validate({})
        device = self.reasoner.device
        # Dropout uses the global generator of torch, whose state belongs to the caller.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                while not self.state.finished:
                    self._check_going_on()
                    try:
                        self.run_epoch()
                    except StopTraining:
                        self._count_seconds()
                        raise
            finally:
                self.stepper.close()
        self.predictor.load_state_dict(self.best)
        return self.state

    def run_epoch(self) -> None:
        """Train one epoch or the rest of one, validate, and notify the observers.

        It ends early if the time is used up, but not before its first step is done.
        """
        state, config, clock = self.state, self.config, self.budget.clock
        started, before = clock(), state.asked
        self._kept = self._counted = started
        epoch = state.epoch + 1
        loss, covered = self._train_epoch(epoch)
        trained = clock()
        is_last = epoch >= config.epochs and state.asked == self.queries_per_epoch
        record: dict[str, Any] = {
            "epoch": epoch,
            "loss": loss,
            "covered": covered,
            "queries": state.asked,
            "learning_rate": self.stepper.optimizer.param_groups[0]["lr"],
            "queries_per_second": (state.asked - before) / max(trained - started, 1e-9),
        }
        is_best = False
        if is_last or self._is_over or self._is_validation_due(epoch):
            mrr = self._validate(record)
            is_best = mrr > state.best_mrr
            state.bad_validations = 0 if is_best else state.bad_validations + 1
            self.schedule.validated(is_best)
            if is_best:
                state.best_mrr, state.best_epoch = mrr, epoch
                self.best = self.current()
            if self.budget.is_limited and not self._is_over:
                self._look_at_clock()  # there may be no time left for another epoch
        self.stepper.check_parameters(epoch)
        state.epoch, state.asked, state.loss, state.covered = epoch, 0, 0.0, 0.0
        state.finished = is_last or 0 < config.patience <= state.bad_validations
        if self._is_over and not state.finished:
            state.finished, state.out_of_time = True, self.budget.minutes
        self._count_seconds()
        record["seconds"] = clock() - started
        state.history.append(record)
        for observer in self.observers:
            observer.on_epoch(self, record, is_best)

    def _train_epoch(self, number: int) -> tuple[float, float]:
        """→ (mean loss per query, share of queries whose answer was sampled)"""
        epoch, state = self.stepper.draw_epoch(number), self.state
        self.predictor.train()
        if state.asked:  # the last step's rate, also if no steps are left
            self.stepper.set_learning_rate(number, (state.asked - 1) // self.stepper.step_size)
        stepped = self.budget.clock()
        for done in self.stepper.steps(epoch, state.asked):
            state.asked += done.queries
            state.loss, state.covered = state.loss + done.loss, state.covered + done.covered
            for observer in self.observers:
                observer.on_step(done.queries, done.mean_loss)
            before, stepped = stepped, self.budget.clock()
            self._step_seconds = stepped - before
            self._check_going_on()
            if self._is_over:
                break
        total, hits = self._totals()
        return total / state.asked, hits / state.asked

    def _totals(self) -> tuple[float, float]:
        """Sum of the losses and covered queries of the current epoch, over all processes."""
        ours = torch.tensor([self.state.loss, self.state.covered], dtype=torch.float64)
        loss, covered = self.team.sum(ours).tolist()
        return loss, covered

    def _check_going_on(self) -> None:
        """End the training if one of its processes was stopped; checkpoint if due."""
        is_stopped, is_due = self._look_at_clock(self.should_stop())
        if is_stopped:
            self.state.loss, self.state.covered = self._totals()
            raise StopTraining
        if is_due and self.state.asked and not self._is_over:
            loss, covered = self._totals()
            # The totals of the epoch so far are now only in the first process.
            first = self.team.is_first
            self.state.loss, self.state.covered = (loss, covered) if first else (0.0, 0.0)
            self._count_seconds()
            for observer in self.observers:
                observer.on_checkpoint(self)
            self._kept = self.budget.clock()

    def _look_at_clock(self, should_stop: bool = False) -> tuple[bool, bool]:
        """Synchronize the time with the other processes.

        All processes use the clock of the first one: they need the same learning rate, which
        follows it, and must end at the same step. → (whether one of them `should_stop`, whether a
        checkpoint is due)
        """
        budget = self.budget
        is_due = budget.clock() - self._kept >= CHECKPOINT_SECONDS
        seen = (budget.share, budget.is_over(self._step_seconds), is_due)
        values = [float(value) for value in seen] if self.team.is_first else [0.0, 0.0, 0.0]
        agreed = self.team.sum(torch.tensor([float(should_stop), *values], dtype=torch.float64))
        stopped, share, over, due = agreed.tolist()
        # Never decreases, although the estimated time for the end of the training may change.
        self.schedule.time_share = max(self.schedule.time_share, share)
        self._is_over = bool(over)
        return bool(stopped), bool(due)

    def _count_seconds(self) -> None:
        """Update `state.seconds` up to now."""
        now = self.budget.clock()
        self.state.seconds += now - self._counted
        self._counted = now

    def _probe(self) -> None:
        """Measure the cost per query, and derive the number of validation queries."""
        budget, state = self.budget, self.state
        times = [(0, budget.clock())]
        end = times[0][1] + budget.probe_seconds
        self._evaluate(
            _PROBED_QUERIES,
            lambda count: times.append((count, budget.clock())),
            (lambda: budget.clock() >= end) if self.team.size == 1 else None,
        )
        # The first batch takes longer than the others. The processes share the queries.
        rates = [(done - begun) / count for (_, begun), (count, done) in itertools.pairwise(times)]
        budget.seconds_per_query = self.team.from_first(min(rates, default=0.0) / self.team.size)
        affordable = budget.valid_limit(self.validation_queries)
        if affordable < self.validation_queries and not state.best_epoch:
            state.valid_limit = affordable
        budget.validation_queries = self.validation_queries

    def _is_validation_due(self, epoch: int) -> bool:
        """Whether the epoch is followed by a validation even if it is not the last."""
        if epoch % self.config.valid_every:
            return False
        if not self.budget.is_limited:
            return True
        is_first = not self.state.best_epoch
        return bool(self.team.from_first(self.budget.is_validation_due(is_first)))

    def _validate(self, record: dict[str, Any]) -> float:
        """MRR on the validation split, on the graph of all training facts."""
        asked = self.validation_queries
        for observer in self.observers:
            observer.on_validation(asked)
        begun, average = self.budget.clock(), self.stepper.average
        with nullcontext() if average is None else average.applied():
            report = self._evaluate(asked, lambda _: check_stop(self.should_stop, self.team))
        self.budget.learn(asked, self.budget.clock() - begun)
        record["valid"] = report.metrics.as_dict() | {"coverage": report.coverage}
        return report.mrr

    def _evaluate(
        self,
        limit: int,
        progress: Callable[[int], None],
        until: Callable[[], bool] | None = None,
    ) -> Report:
        """Evaluate the current parameters on some validation queries (see `evaluate`)."""
        return evaluate(
            self.reasoner,
            self.data.valid,
            self.known,
            batch_size=self.config.valid_batch_size or None,
            limit=limit,
            seed=self.config.seed,
            progress=progress,
            until=until,
            team=self.team,
        )

    def current(self) -> dict[str, Tensor]:
        """The parameters to be validated and saved: the current ones or their moving average."""
        average = self.stepper.average
        current = self.predictor.state_dict() if average is None else average.named()
        return {name: tensor.detach().clone() for name, tensor in current.items()}
