"""A trial of phase 1: one short training, stopped early if it falls behind.

A trial is a function from a plain dictionary, the task, to another, the outcome, so that it runs
identically in this process, in another process and on another machine.

In a search without a time limit, a trial trains on a number of queries and is validated after equal
shares of them. Otherwise it has a time limit and is validated after equal shares of the time.
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

# The least number of validations of the full training.
_FULL_VALIDATIONS = 10
# Approximate epochs between two rungs of a trial: rungs are checked at the end of an epoch.
_EPOCHS_PER_RUNG = 2
# A trial ends at its time limit, up to a step and the expected time of its last validation. It is
# aborted after this multiple of its time limit.
_BEYOND = 1.2
# The full training has more epochs than fit into its time: the time limit ends it.
_MORE_THAN_ENOUGH = 1.3
# Approximate share of the time of the full training for validations and the final evaluation.
_EVALUATION_SHARE = 0.3

_DATA: dict[str, Dataset] = {}
"""Data sets in memory of this process, by the fingerprint of their graph."""


class Hopeless(Exception):  # noqa: N818
    """Ends a trial that is behind others; not an error."""


class Slow(Exception):  # noqa: N818
    """Ends a trial that takes too long; not an error."""


class Infeasible(Exception):  # noqa: N818
    """Ends a trial whose configuration is too slow for its time limit; not an error."""


def provide(data: Dataset) -> None:
    """Let the trials of this process use a data set that is already in memory."""
    _DATA.clear()
    _DATA[data.graph.fingerprint] = data


def task_data(task: dict[str, Any]) -> Dataset:
    """The data set of a task; read once per process, and checked to be the same."""
    fingerprint = task["fingerprint"]
    if fingerprint not in _DATA:
        origin = task["origin"]
        if origin is None:
            raise InputError(
                "a search with several workers needs a data set on disk: save it with "
                "`oneshot data DATA --save DIR` and search with DIR"
            )
        data = load(origin["source"], **origin["options"])
        if data.graph.fingerprint != fingerprint:
            raise InputError(
                f"{origin['source']}: this worker reads a different graph from this path"
            )
        provide(data)
    return _DATA[fingerprint]


def base_config(table: dict[str, Any]) -> Config:
    """A configuration from its dictionary in a task, in which unset options are None."""
    return from_table(
        {s: {k: v for k, v in options.items() if v is not None} for s, options in table.items()}
    )


def trial_training(
    config: TrainingConfig, num_facts: int, queries: int, validations: int, valid_queries: int
) -> TrainingConfig:
    """The training options of a trial with `queries` queries and equidistant validations.

    A validation follows a share of an epoch, or several epochs if an epoch has too few queries, so
    that trials with different `fact_ratio` do the same work.
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
        minutes=0.0,  # the search limits the time
        expected_queries=0,
    )


def timed_training(
    config: TrainingConfig, num_facts: int, task: dict[str, Any], pace: Pace
) -> TrainingConfig:
    """The training options of a trial with a time limit: short epochs, and more than fit.

    A warm-up keeps its relative length.
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
        expected_queries=0,
    )


def full_config(settings: SearchSettings, trial: Trial, num_facts: int) -> Config:
    """The configuration of the full training of a trial."""
    config = configured(settings.base, settings.space.whole(trial.values))
    training, queries = config.training, settings.final_queries
    if settings.minutes:
        seconds = Allotment(60 * settings.minutes)
        expected = seconds.training_seconds(seconds.predictor_end)
        fit_in = trial.about["queries_per_second"] * expected
        queries = min(queries, max(int(_MORE_THAN_ENOUGH * fit_in), 1))
        others = _EVALUATION_SHARE + (config.factors.time_share if config.factors.dim else 0.0)
        planned = int(min((1 - others) * fit_in, queries)) if queries else 0
        minutes = round(expected / 60, 4)
        training = dataclasses.replace(training, minutes=minutes, expected_queries=max(planned, 0))
    if queries:
        training = full_training(training, num_facts, queries)
    return dataclasses.replace(config, training=training)


def full_training(config: TrainingConfig, num_facts: int, queries: int) -> TrainingConfig:
    """The training options of the best configuration, with `queries` queries for any `fact_ratio`.

    An epoch is limited to a tenth of the training, so that the facts are split again and the best
    epoch can be selected.
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
    """Observes a training and ends it if it falls behind `limits` or takes too long.

    `limits`: validation number → minimum target at that validation.
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
            # Each process compiles the kernels of a predictor in its first step, which may take
            # longer than a trial. The result of a trial must not depend on its order.
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
        """Raise if the trial takes too long; called in each step and each validation batch.

        Always returns False: the training is not to stop, unless this raises.
        """
        if self._has_stepped:
            self._check_time()
        return False

    def _number(self, trainer: Trainer) -> int:
        """The number of this validation."""
        return len(self.curve) + 1

    @property
    def spent(self) -> float:
        """Seconds since the start, as CPU time, so that other processes do not count."""
        return self._clock() - self._begun

    def _clock(self) -> float:
        if self.device.type == "cuda":
            return time.perf_counter()
        return time.process_time() / torch.get_num_threads()

    def _check_time(self) -> None:
        if self.seconds and self.spent > self.seconds:
            raise Slow(f"longer than {self.seconds:.6g} s")


class RungWatcher(Watcher):
    """Observes a training with a time limit. Its curve has a value for each rung of the limit.

    A validation counts for all rungs since the previous one, which may be several for a slow
    configuration.
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
    """Train a configuration for a short time. Returns the outcome for the store.

    `clock`: the clock of a search with a time limit.
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
        # Including bugs of oneshot: one configuration must not end a search of hours.
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
    """Train a trial; all memory is released on return."""
    # This also raises for incompatible values.
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
        # Measurements, and the fitting of the sampler once per process, count as search time.
        budget.started = budget.clock()
    trainer.run([watcher])


def _feasible_training(
    task: dict[str, Any], data: Dataset, config: TrainingConfig, reasoner: Reasoner, clock: Clock
) -> TrainingConfig:
    """Train a trial with a time limit; raises `Infeasible` if it is too slow."""
    demand = Demand(task["seconds"], config.batch_size, task["valid_queries"])
    pace = measure_pace(
        reasoner, data, config, task["seconds"], clock, lambda pace: demand.obstacle(pace) is None
    )
    obstacle = demand.obstacle(pace)
    if obstacle is not None and not task["must_run"]:
        raise Infeasible(obstacle)
    return timed_training(config, data.graph.num_facts, task, pace)


def free_memory(device: torch.device) -> bool:
    """Release the memory of a trial. Returns whether the device is still usable."""
    if device.type != "cuda":
        # Otherwise each worker would keep the memory of its largest trial.
        return_freed_memory()
        return True
    gc.collect()
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError:  # a kernel error, after which all other kernels fail as well
        return False
    return True


def failure(error: BaseException) -> str:
    """The error in one line."""
    if is_out_of_memory(error):
        return "out of memory"
    text = " ".join(str(error).split())
    return text if isinstance(error, OneshotError) else f"{type(error).__name__}: {text}"[:500]
