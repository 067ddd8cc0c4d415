"""Trial: one cheap training of phase 1, stopped when it is hopeless.

A trial is a function of a plain table, the task, to another, the outcome, so that it runs alike
here, in another process and on another machine.

Without a time for the search a trial asks a number of queries, and is validated after equal shares
of them. Else it has a time, and is validated after equal shares of that.
"""

import dataclasses
import gc
import time
from typing import Any

import torch

from oneshot.config import Config, TrainingConfig, from_table
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.errors import InputError, OneshotError, is_out_of_memory
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.reasoner import Reasoner
from oneshot.search.allotment import Allotment
from oneshot.search.early_stopping import judged
from oneshot.search.feasibility import Demand, Pace, measure_pace
from oneshot.search.settings import SearchSettings
from oneshot.search.space import configured
from oneshot.search.store import Trial
from oneshot.search.trial_budget import TrialBudget
from oneshot.system.process import return_freed_memory
from oneshot.training.epoch import queries_per_epoch
from oneshot.training.observer import Observer
from oneshot.training.time_budget import Clock
from oneshot.training.trainer import Trainer

# How often the training in full is validated, at least.
_FULL_VALIDATIONS = 10
# Epochs between two rungs of a trial, about: at the end of one it is seen that a rung has passed.
_EPOCHS_PER_RUNG = 2
# A trial ends with its time, give or take a step and what its last validation was expected to
# take. Beyond this multiple of its time it is broken off.
_BEYOND = 1.2
# The epochs of the training in full are more than its time is enough for: the clock ends it.
_MORE_THAN_ENOUGH = 1.3

_DATA: dict[str, Dataset] = {}
"""Data sets that this process holds, by the fingerprint of their graph."""


class Hopeless(Exception):  # noqa: N818
    """Ends a trial that is behind others; no error."""


class Slow(Exception):  # noqa: N818
    """Ends a trial that takes too long; no error."""


class Infeasible(Exception):  # noqa: N818
    """Says that a configuration cannot come to anything in the time of a trial; no error."""


def provide(data: Dataset) -> None:
    """Have the trials of this process use a data set that is in memory already."""
    _DATA.clear()
    _DATA[data.graph.fingerprint] = data


def task_data(task: dict[str, Any]) -> Dataset:
    """The data set of a task; read once a process, and checked to be the same one."""
    fingerprint = task["fingerprint"]
    if fingerprint not in _DATA:
        origin = task["origin"]
        if origin is None:
            raise InputError(
                "a search with several workers needs a data set on disk: save it with "
                "`oneshot data DATA --save DIR` and search there"
            )
        data = load(origin["source"], **origin["options"])
        if data.graph.fingerprint != fingerprint:
            raise InputError(
                f"{origin['source']}: is another graph here than where it was searched"
            )
        provide(data)
    return _DATA[fingerprint]


def base_config(table: dict[str, Any]) -> Config:
    """A configuration from its table in a task, where unset options are None."""
    return from_table(
        {s: {k: v for k, v in options.items() if v is not None} for s, options in table.items()}
    )


def trial_training(
    config: TrainingConfig, num_facts: int, queries: int, validations: int, valid_queries: int
) -> TrainingConfig:
    """The training of a trial: `queries` in all, validated at equal distances.

    Each validation follows a share of the queries of an epoch, or several epochs if one has too
    few: trials with different `fact_ratio` get the same work.
    """
    whole = queries_per_epoch(dataclasses.replace(config, query_share=1.0), num_facts)
    wanted = max(queries // validations, 2)
    share = min(wanted / whole, 1.0)
    every = max(round(wanted / whole), 1)
    return dataclasses.replace(
        config,
        epochs=every * validations,
        query_share=share,
        valid_every=every,
        valid_limit=valid_queries,
        patience=0,
        minutes=0.0,  # the search keeps the time
    )


def timed_training(
    config: TrainingConfig, num_facts: int, task: dict[str, Any], pace: Pace
) -> TrainingConfig:
    """The training of a trial that has a time: short epochs, and more of them than fit in.

    A warm-up keeps its share of the training.
    """
    whole = queries_per_epoch(dataclasses.replace(config, query_share=1.0), num_facts)
    seconds = task["seconds"] / task["validations"] / _EPOCHS_PER_RUNG
    wanted = max(int(seconds / pace.training), config.batch_size)
    share = min(wanted / whole, 1.0)
    epochs = max(round(task["queries"] / (share * whole)), 1)
    return dataclasses.replace(
        config,
        epochs=epochs,
        warmup_epochs=config.warmup_epochs / config.epochs * epochs,
        query_share=share,
        valid_every=1,
        valid_limit=task["valid_queries"],
        patience=0,
        minutes=task["seconds"] / 60,
    )


def full_config(settings: SearchSettings, trial: Trial, num_facts: int) -> Config:
    """The configuration of a trial, as the best is trained in full."""
    config = configured(settings.base, settings.space.whole(trial.values))
    training, queries = config.training, settings.final_queries
    if settings.minutes:
        seconds = Allotment(60 * settings.minutes)
        expected = seconds.training_seconds(seconds.predictor_end)
        training = dataclasses.replace(training, minutes=round(expected / 60, 4))
        pace = trial.about["queries_per_second"]
        queries = min(queries, max(int(_MORE_THAN_ENOUGH * pace * expected), 1))
    if queries:
        training = full_training(training, num_facts, queries)
    return dataclasses.replace(config, training=training)


def full_training(config: TrainingConfig, num_facts: int, queries: int) -> TrainingConfig:
    """The training of the best configuration: `queries` in all, whatever its `fact_ratio` is.

    An epoch with more of them than there are to ask in a tenth of the training is cut short, so
    that the split is drawn anew and the best epoch can be chosen.
    """
    whole = queries_per_epoch(dataclasses.replace(config, query_share=1.0), num_facts)
    epochs = max(round(queries / whole), _FULL_VALIDATIONS)
    return dataclasses.replace(
        config,
        epochs=epochs,
        query_share=min(queries / (epochs * whole), 1.0),
        valid_every=max(epochs // _FULL_VALIDATIONS, 1),
    )


class Watcher(Observer):
    """Follows a training and ends it if it falls behind `limits` or takes too long.

    `limits`: validation number → the least target that it must have reached by then.
    """

    judged_at = "validation"

    def __init__(
        self, target: str, limits: dict[int, float], seconds: float, device: torch.device
    ) -> None:
        self.target, self.limits, self.seconds = target, limits, seconds
        self.device = device
        self.queries_per_second = 0.0
        self.curve: list[float] = []
        self.metrics: dict[str, float] = {}
        self._begun = self._clock()
        self._has_stepped = False

    def on_step(self, queries: int, loss: float) -> None:
        if self.device.type == "cuda" and not self._has_stepped:
            # Kernels are compiled in the first step of each kind of predictor in a process, for
            # longer than a trial may take: what a trial reaches must not depend on its place.
            self._begun = self._clock()
        self._has_stepped = True
        self._check_time()

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        if "valid" not in record:
            return
        value = record["valid"][self.target]
        if not self.curve or value > self.curve[-1]:
            self.metrics = record["valid"]
        before = len(self.curve)
        self.curve += [max([value, *self.curve[-1:]])] * (self._number(trainer) - before)
        if trainer.state.finished:
            return
        for number in range(before + 1, len(self.curve) + 1):
            least = self.limits.get(number)
            if least is not None and self.curve[-1] < least:
                raise Hopeless(f"below {least:.4f} at {self.judged_at} {number}")
        self._check_time()

    def check_time(self) -> bool:
        """Raise if the trial takes too long; asked in each step and in each validation batch.

        → whether the training is to stop: it is not, or this has raised
        """
        if self._has_stepped:
            self._check_time()
        return False

    def _number(self, trainer: Trainer) -> int:
        """Which validation this is."""
        return len(self.curve) + 1

    @property
    def spent(self) -> float:
        """Seconds since the start; of the processor, so that other work on it does not count."""
        return self._clock() - self._begun

    def _clock(self) -> float:
        if self.device.type == "cuda":
            return time.perf_counter()
        return time.process_time() / torch.get_num_threads()

    def _check_time(self) -> None:
        if self.seconds and self.spent > self.seconds:
            raise Slow(f"longer than {self.seconds:.6g} s")


class RungWatcher(Watcher):
    """Follows a training in a time budget. Its curve has a value for each rung of the budget.

    A validation counts for all rungs that have passed since the one before it: for a slow
    configuration that may be several.
    """

    judged_at = "rung"

    def __init__(
        self, target: str, limits: dict[int, float], budget: TrialBudget, device: torch.device
    ) -> None:
        self.budget = budget
        super().__init__(target, limits, _BEYOND * budget.limit, device)
        self._rung = 0

    def on_start(self, trainer: Trainer) -> None:
        self._begun = self.budget.started

    def on_step(self, queries: int, loss: float) -> None:
        super().on_step(queries, loss)
        self.budget.started = self._begun

    def on_validation(self, queries: int) -> None:
        self._rung = self.budget.passed

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        self.queries_per_second = max(self.queries_per_second, record["queries_per_second"])
        super().on_epoch(trainer, record, is_best)

    def _number(self, trainer: Trainer) -> int:
        self.budget.reached = self.budget.rungs if trainer.state.finished else self._rung
        return self.budget.reached

    def _clock(self) -> float:
        return self.budget.clock()


def run_predictor_trial(task: dict[str, Any], clock: Clock = time.perf_counter) -> dict[str, Any]:
    """Train a configuration for a short while. → the outcome, as the store takes it

    `clock`: what the time is read from, where the search has a time.
    """
    data = task_data(task)
    device = torch.device(task["device"])
    limits = {int(number): value for number, value in task["limits"].items()}
    is_timed = task.get("timed", False)
    watcher: Watcher
    if is_timed:
        rungs = task["validations"]
        budget = TrialBudget(task["seconds"] / 60, clock, rungs=rungs, judged=judged(rungs))
        watcher = RungWatcher(task["target"], limits, budget, device)
    else:
        watcher = Watcher(task["target"], limits, task["seconds"], device)
    started = clock()
    about: dict[str, Any] = {"limits": task["limits"]}
    outcome: dict[str, Any] = {"status": "done", "about": about}
    try:
        _train(task, data, device, watcher, about)
    except (Hopeless, Slow) as reason:
        about["hopeless"] = isinstance(reason, Hopeless)
        outcome |= {"status": "stopped", "error": str(reason)}
        if not watcher.curve:
            status = "infeasible" if is_timed else "failed"
            outcome |= {"status": status, "error": f"{reason}, before its first validation"}
    except Infeasible as reason:
        outcome |= {"status": "infeasible", "error": str(reason)}
    except Exception as error:
        # Also faults of ours: a search of hours must not end with one odd configuration.
        outcome |= {"status": "failed", "error": failure(error)}
    outcome["is_fatal"] = not free_memory(device)
    value = watcher.curve[-1] if watcher.curve and outcome["status"] != "failed" else None
    about |= {"metrics": watcher.metrics, "spent": watcher.spent}
    if is_timed:
        about["queries_per_second"] = watcher.queries_per_second
    return {
        **outcome,
        "value": value,
        "curve": watcher.curve,
        "seconds": clock() - started,
    }


def _train(
    task: dict[str, Any],
    data: Dataset,
    device: torch.device,
    watcher: Watcher,
    about: dict[str, Any],
) -> None:
    """The training of a trial; all that it holds goes with it."""
    # Also what values do not go together is found out here.
    config = configured(base_config(task["config"]), task["values"])
    reasoner = build_reasoner(data.graph, config, device)
    about["parameters"] = reasoner.predictor.num_parameters
    budget = None
    if isinstance(watcher, RungWatcher):
        budget = watcher.budget
        training = _feasible_training(task, data, config.training, reasoner, budget.clock)
    else:
        training = trial_training(
            config.training,
            data.graph.num_facts,
            task["queries"],
            task["validations"],
            task["valid_queries"],
        )
    trainer = Trainer(reasoner, data, training, budget, should_stop=watcher.check_time)
    if budget is not None:
        # What was measured, and what the sampler learns once in a process, is the search's time.
        budget.started = budget.clock()
    trainer.run([watcher])


def _feasible_training(
    task: dict[str, Any], data: Dataset, config: TrainingConfig, reasoner: Reasoner, clock: Clock
) -> TrainingConfig:
    """The training of a trial that has a time; `Infeasible` if nothing would come of it."""
    demand = Demand(task["seconds"], config.batch_size, task["valid_queries"])
    pace = measure_pace(
        reasoner, data, config, task["seconds"], clock, lambda pace: demand.obstacle(pace) is None
    )
    obstacle = demand.obstacle(pace)
    if obstacle is not None and not task["must_run"]:
        raise Infeasible(obstacle)
    return timed_training(config, data.graph.num_facts, task, pace)


def free_memory(device: torch.device) -> bool:
    """Give back what a trial held. → whether the device can still be used"""
    gc.collect()
    if device.type != "cuda":
        # Else each worker would keep as much as the largest of its trials needed.
        return_freed_memory()
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError:  # an error of a kernel, after which all others fail as well
        return False
    return True


def failure(error: BaseException) -> str:
    """What went wrong, in one line."""
    if is_out_of_memory(error):
        return "out of memory"
    text = " ".join(str(error).split())
    return text if isinstance(error, OneshotError) else f"{type(error).__name__}: {text}"[:500]
