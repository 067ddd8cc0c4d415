"""Trial: one cheap training of phase 1, stopped when it is hopeless.

A trial is a function of a plain table, the task, to another, the outcome, so that it runs alike
here, in another process and on another machine.
"""

import dataclasses
import gc
import time
from typing import Any

import torch

from oneshot.building import build_reasoner
from oneshot.config import Config, TrainingConfig, from_table
from oneshot.dataset import Dataset
from oneshot.datasets import load
from oneshot.epoch import queries_per_epoch
from oneshot.errors import InputError, OneshotError, is_out_of_memory
from oneshot.process import return_freed_memory
from oneshot.search.settings import SearchSettings
from oneshot.search.space import configured
from oneshot.training import Trainer

# How often the training in full is validated, at least.
_FULL_VALIDATIONS = 10

_DATA: dict[str, Dataset] = {}
"""Data sets that this process holds, by the fingerprint of their graph."""


class Hopeless(Exception):  # noqa: N818
    """Ends a trial that is behind others; no error."""


class Slow(Exception):  # noqa: N818
    """Ends a trial that takes too long; no error."""


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
    )


def full_config(settings: SearchSettings, values: dict[str, Any], num_facts: int) -> Config:
    """The configuration of a trial, as the best is trained in full."""
    config = configured(settings.base, settings.space.whole(values))
    if not settings.final_queries:
        return config
    training = full_training(config.training, num_facts, settings.final_queries)
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


class Watcher:
    """Follows a training and ends it if it falls behind `limits` or takes too long.

    `limits`: validation number → the least target that it must have reached by then.
    """

    def __init__(
        self, target: str, limits: dict[int, float], seconds: float, device: torch.device
    ) -> None:
        self.target, self.limits, self.seconds = target, limits, seconds
        self.device = device
        self.curve: list[float] = []
        self.metrics: dict[str, float] = {}
        self._begun = self._clock()
        self._has_stepped = False

    def started(self, trainer: Trainer) -> None:
        pass

    def stepped(self, queries: int, loss: float) -> None:
        if self.device.type == "cuda" and not self._has_stepped:
            # Kernels are compiled in the first step of each kind of predictor in a process, for
            # longer than a trial may take: what a trial reaches must not depend on its place.
            self._begun = self._clock()
        self._has_stepped = True
        self._check_time()

    def validating(self, queries: int) -> None:
        pass

    def epoch_done(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        if "valid" not in record:
            return
        value = record["valid"][self.target]
        if not self.curve or value > self.curve[-1]:
            self.metrics = record["valid"]
        self.curve.append(max([value, *self.curve[-1:]]))
        if trainer.state.finished:
            return
        least = self.limits.get(len(self.curve))
        if least is not None and self.curve[-1] < least:
            raise Hopeless(f"below {least:.4f} at validation {len(self.curve)}")
        self._check_time()

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
            raise Slow(f"longer than {self.seconds:g} s")


def run_predictor_trial(task: dict[str, Any]) -> dict[str, Any]:
    """Train a configuration for a short while. → the outcome, as the store takes it"""
    data = task_data(task)
    device = torch.device(task["device"])
    limits = {int(number): value for number, value in task["limits"].items()}
    watcher = Watcher(task["target"], limits, task["seconds"], device)
    started = time.perf_counter()
    about: dict[str, Any] = {"limits": task["limits"]}
    outcome: dict[str, Any] = {"status": "done", "about": about}
    try:
        _train(task, data, device, watcher, about)
    except (Hopeless, Slow) as reason:
        about["hopeless"] = isinstance(reason, Hopeless)
        outcome |= {"status": "stopped", "error": str(reason)}
        if not watcher.curve:
            outcome |= {"status": "failed", "error": f"{reason}, before its first validation"}
    except Exception as error:
        # Also faults of ours: a search of hours must not end with one odd configuration.
        outcome |= {"status": "failed", "error": failure(error)}
    outcome["is_fatal"] = not free_memory(device)
    value = watcher.curve[-1] if watcher.curve and outcome["status"] != "failed" else None
    about |= {"metrics": watcher.metrics, "spent": watcher.spent}
    return {
        **outcome,
        "value": value,
        "curve": watcher.curve,
        "seconds": time.perf_counter() - started,
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
    training = trial_training(
        config.training,
        data.graph.num_facts,
        task["queries"],
        task["validations"],
        task["valid_queries"],
    )
    reasoner = build_reasoner(data.graph, config, device)
    about["parameters"] = reasoner.predictor.num_parameters
    Trainer(reasoner, data, training, [watcher]).run()


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
