"""Training into a run: the whole job on disk, as the command line and scripts run it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from oneshot.config import Config, to_toml
from oneshot.data.dataset import Dataset
from oneshot.errors import DivergedError, InputError
from oneshot.ranking import METRICS
from oneshot.reasoner.build import build_reasoner
from oneshot.runs.checkpoint import (
    Checkpoint,
    goes_on,
    mend_run,
    read_checkpoint,
    reopen,
    restore,
)
from oneshot.runs.layout import (
    CALIBRATION,
    CHECKPOINT,
    CONFIG,
    CONTENTS,
    RESULT,
    read_calibration,
)
from oneshot.runs.run import Run
from oneshot.runs.writer import RunWriter, begun_run, remove_staged
from oneshot.system.checksums import read_sealed_json, write_sealed_json, write_sealed_text
from oneshot.system.distributed import Team
from oneshot.system.files import json_text, remove_leftovers, write_text
from oneshot.training.diagnosis import Diagnosis
from oneshot.training.final_evaluation import FinalEvaluation, final_queries
from oneshot.training.interrupt import StopTraining
from oneshot.training.observer import Observer
from oneshot.training.time_budget import Clock, TimeBudget
from oneshot.training.trainer import Trainer

REPORTED = (*METRICS, "coverage", "queries", "seconds")
"""The figures of an evaluation that are shown in a table."""

INTERRUPTED_SECONDS = 30
"""How long a training that was interrupted is evaluated."""

warn = logging.getLogger(__name__).warning
"""Where the messages of a job go unless somebody takes them."""


def train_run(
    data: Dataset,
    path: Path,
    config: Config,
    device: torch.device,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
    interrupted: Callable[[], bool] = lambda: False,
    started: float | None = None,
    clock: Clock = time.perf_counter,
    messages: Callable[[str], None] = warn,
) -> dict[str, Any]:
    """Train into a run directory, choose by validation, evaluate once on test.

    `resume` goes on from the checkpoint in `path`; without one it starts afresh. An older run in
    `path` that is not resumed is replaced when the first epoch is done, or its first minute. Of
    several processes under `torchrun` the first one writes and reports; the others return nothing.

    When `should_stop` says so, the step is finished, a checkpoint is written, and the result has
    `stopped`. When `interrupted` says so, likewise, and the best parameters so far are evaluated
    for half a minute. `started`: when the time budget began to run by `clock`; now if not given.
    `messages`: called with what a user should know, each time one line; logged if not given.
    """
    budget = TimeBudget(config.training.minutes, clock, clock() if started is None else started)
    budget.final_queries = final_queries(data)
    job = TrainingJob(
        data=data,
        path=path,
        config=config,
        device=device,
        team=Team(device),
        budget=budget,
        observers=observers,
        should_stop=should_stop,
        interrupted=interrupted,
        messages=messages,
    )
    return job.run(resume)


@dataclass(frozen=True)
class TrainingJob:
    """A training into a run directory, from its first file to its result; see `train_run`."""

    data: Dataset
    path: Path
    config: Config
    device: torch.device
    team: Team
    budget: TimeBudget
    observers: Sequence[Observer]
    should_stop: Callable[[], bool]
    interrupted: Callable[[], bool]
    messages: Callable[[str], None]

    def run(self, resume: bool) -> dict[str, Any]:
        """Train, or go on, and evaluate. → the result; nothing in processes but the first"""
        path, is_first = self.path, self.team.is_first
        Run(path).check_place(self.data.graph)
        with ExitStack() as held:
            is_held = is_first and path.is_dir()
            if is_held:
                held.enter_context(Run(path).lock())
            checkpoint = _resumable(self.data, path, self.config) if resume else None
            earlier = self._earlier_result(checkpoint, resume)
            if earlier is not None:
                return earlier if is_first else {}
            trainer = self._trainer(checkpoint)
            if not is_first:
                return self._train(trainer, checkpoint, None)
            # Nothing was written so far: wrong use leaves an older run as it was.
            if not is_held:
                _make_place(path)
                held.enter_context(Run(path).lock())
            with self._writer(trainer, checkpoint, resume) as writer:
                result = self._train(trainer, checkpoint, writer)
            if "stopped" not in result:
                _write_result(path, result)
            return {**result, "already_finished": False}

    def _earlier_result(self, checkpoint: Checkpoint | None, resume: bool) -> dict[str, Any] | None:
        """The result of a run that has finished before; None if there is something to train."""
        if checkpoint is None:
            if resume and (self.path / CALIBRATION).is_file():
                # Finished, as the calibration comes last: not to be replaced by who wants to go on.
                is_first = self.team.is_first
                return _finished(self.data, self.path, self.config) if is_first else {}
            Run(self.path).check_no_changes()
            return None
        if not checkpoint.state.finished or self._is_reopened(checkpoint):
            return None
        result = _saved_result(self.path)
        if result is None:
            return None
        if self.team.is_first:
            self._mend(checkpoint)
        return {**result, "already_finished": True}

    def _is_reopened(self, checkpoint: Checkpoint) -> bool:
        """Whether a training that has used up its time now has more of it."""
        return goes_on(checkpoint.state, self.config.training.minutes)

    def _trainer(self, checkpoint: Checkpoint | None) -> Trainer:
        """The trainer of this job, where the checkpoint left off if there is one."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        reasoner = build_reasoner(self.data.graph, self.config, self.device)
        if checkpoint is not None:
            Run(self.path).load_sampler(reasoner.sampler)
        trainer = Trainer(
            reasoner,
            self.data,
            self.config.training,
            self.budget,
            should_stop=self._is_stopped,
            messages=self.messages if self.team.is_first else warn,
        )
        if checkpoint is not None:
            restore(checkpoint, trainer)
            if self._is_reopened(checkpoint):
                reopen(trainer)
        return trainer

    @contextmanager
    def _writer(
        self, trainer: Trainer, checkpoint: Checkpoint | None, resume: bool
    ) -> Iterator[RunWriter]:
        """What writes the run, from its start or from the checkpoint on."""
        self._announce(checkpoint, resume)
        _clean(self.path)
        if checkpoint is None:
            with begun_run(Run(self.path), self.config, self.data.graph) as writer:
                yield writer
        else:
            self._mend(checkpoint)
            _prepare(self.path, self.config, trainer)
            yield RunWriter(Run(self.path))

    def _train(
        self, trainer: Trainer, checkpoint: Checkpoint | None, writer: RunWriter | None
    ) -> dict[str, Any]:
        """Train and evaluate. → the result; nothing without a writer"""
        # The diagnosis comes after those who show the figures that it judges.
        observers: list[Observer] = [*self.observers, Diagnosis()]
        if writer is not None:
            observers.insert(0, writer)
        try:
            trainer.run(observers)
            evaluation = FinalEvaluation(trainer, self.budget, self._is_stopped)
            evaluation.run()
            if writer is None:
                return {}
            return {**self._about(trainer), **self._finish(evaluation)}
        except StopTraining:
            return {} if writer is None else self._stopped(trainer, writer)
        except DivergedError as error:
            what = "nothing was saved"
            if trainer.state.epoch:
                what = f"{self.path} keeps epoch {trainer.state.epoch}, the last good one"
            elif checkpoint is not None or (writer is not None and writer.has_saved):
                what = f"{self.path} keeps its last checkpoint"
            raise DivergedError(f"{error}; {what}") from error
        finally:
            for observer in observers:
                observer.on_end()

    def _is_stopped(self) -> bool:
        return self.should_stop() or self.interrupted()

    def _about(self, trainer: Trainer) -> dict[str, Any]:
        """What a result tells of the training."""
        state = trainer.state
        return {
            "run": str(self.path),
            "data": self.data.name,
            "epochs": state.epoch,
            "best_epoch": state.best_epoch,
            "seconds": state.seconds,
            "peak_gpu_megabytes": _peak_gpu_megabytes(self.device),
            "parameters": trainer.predictor.num_parameters,
        }

    def _finish(self, evaluation: FinalEvaluation) -> dict[str, Any]:
        """Calibrate what was evaluated, and say what was not asked. → what the result tells"""
        reasoner = evaluation.trainer.reasoner
        reasoner.calibration = evaluation.calibrated()
        write_sealed_json(self.path / CALIBRATION, asdict(reasoner.calibration))
        if evaluation.cut:
            self.messages(
                f"there was time for {evaluation.cut}, drawn with the seed; to ask all of them: "
                f"oneshot evaluate {self.path}"
            )
        return {**evaluation.reports, "baseline_mrr": evaluation.baseline_mrr()}

    def _stopped(self, trainer: Trainer, writer: RunWriter) -> dict[str, Any]:
        """Keep where a training stands that was told to stop, and say so. → its result so far"""
        state = trainer.state
        is_saved = writer.stopped(trainer)
        if not is_saved:
            self.messages(
                f"{self.path}: stopped before its first epoch was done; nothing was saved, and "
                "nothing was changed"
            )
        elif state.finished:
            self.messages(f"{self.path}: stopped after the training, before its evaluation")
        else:
            self.messages(
                f"{self.path}: stopped in epoch {state.epoch + 1} after {state.asked:,} of "
                f"{trainer.queries_per_epoch:,} queries"
            )
        result = {
            **self._about(trainer),
            "valid": None,
            "test": None,
            "baseline_mrr": None,
            "stopped": True,
            "saved": is_saved,
        }
        # Who sends SIGTERM gives little time, and of several processes none may go on alone.
        if is_saved and self.team.size == 1 and self.interrupted() and not self.should_stop():
            with suppress(StopTraining):
                result |= self._evaluated_shortly(trainer)
        return result

    def _evaluated_shortly(self, trainer: Trainer) -> dict[str, Any]:
        """Evaluate the best parameters so far for a short time. → what the result tells"""
        self.messages(
            f"evaluating what was learnt so far, for at most {INTERRUPTED_SECONDS} seconds; Ctrl-C "
            "again ends at once"
        )
        if trainer.state.best_epoch:
            trainer.predictor.load_state_dict(trainer.best)
        budget = TimeBudget(INTERRUPTED_SECONDS / 60, self.budget.clock)
        budget.seconds_per_query = self.budget.seconds_per_query
        evaluation = FinalEvaluation(trainer, budget, self.should_stop)
        evaluation.run()
        return self._finish(evaluation)

    def _announce(self, checkpoint: Checkpoint | None, resume: bool) -> None:
        """Say what a user should know before the long work starts."""
        path = self.path
        for remark in self.data.notes:
            self.messages(remark)
        if checkpoint is None and resume:
            self.messages(f"{path}: there is no checkpoint to resume from; training starts afresh")
        if checkpoint is None and Run(path).holds_training:
            advice = "" if resume else "; to go on with a run, use --resume"
            self.messages(
                f"{path}: holds an older run, which is replaced when the first epoch is done, or "
                f"its first minute{advice}"
            )

    def _mend(self, checkpoint: Checkpoint) -> None:
        """Write again what is missing or damaged in the run."""
        for name in mend_run(Run(self.path), checkpoint, self.data.graph):
            self.messages(
                f"{self.path / name}: was missing or damaged; restored from the checkpoint"
            )


def _make_place(path: Path) -> None:
    """Make the directory of a run that was not there when the command began."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise InputError(
            f"{path}: another process has begun a run there; wait for it, or choose another place"
        ) from None


def _resumable(data: Dataset, path: Path, config: Config) -> Checkpoint | None:
    """The checkpoint of the run in `path`, which must fit what is asked for, or None."""
    checkpoint = read_checkpoint(Run(path))
    if checkpoint is not None:
        _check_same(data, path, config)
    return checkpoint


def _finished(data: Dataset, path: Path, config: Config) -> dict[str, Any]:
    """The result of a finished run whose checkpoint is gone."""
    _check_same(data, path, config)
    result = _saved_result(path)
    if result is None:
        raise InputError(
            f"{path}: holds a finished run, but neither its result nor a checkpoint to go on from; "
            "ask it with `oneshot evaluate`, or train into another directory"
        )
    return {**result, "already_finished": True}


def _check_same(data: Dataset, path: Path, config: Config) -> None:
    """Raise unless the run in `path` has this configuration, but for its time, and this graph."""
    run = Run(path)
    if _without_time(run.config) != _without_time(config):
        raise InputError(
            f"{path}: was started with another configuration; resume it without --config and "
            "--set, or with the same ones (only training.minutes may differ), or train into "
            "another directory"
        )
    if run.reference.fingerprint != data.graph.fingerprint:
        raise InputError(f"{path}: the graph has changed since this run was started")


def _without_time(config: Config) -> str:
    return to_toml(replace(config, training=replace(config.training, minutes=0.0)))


def _saved_result(path: Path) -> dict[str, Any] | None:
    """The result of a finished run; None if it, or the calibration before it, is not whole."""
    try:
        read_calibration(path / CALIBRATION)
        Run(path).check_listed(RESULT)
        result = read_sealed_json(path / RESULT)
    except InputError:
        return None
    reports = [result.get("valid"), result.get("test")]
    is_whole = {"run", "data", "epochs", "best_epoch", "seconds", "test"} <= result.keys() and all(
        isinstance(report, dict)
        and all(isinstance(report.get(name), int | float) for name in REPORTED)
        for report in reports
        if report is not None
    )
    return result if is_whole and result["valid"] is not None else None


def _prepare(path: Path, config: Config, trainer: Trainer) -> None:
    """Make a run ready to be gone on with, in the time that it now has."""
    if to_toml(Run(path).config) != to_toml(config):  # only in `minutes`, as was checked
        write_sealed_text(path / CONFIG, to_toml(config))
    if not trainer.state.finished:  # of an earlier state of the predictor
        for name in (RESULT, CALIBRATION):
            (path / name).unlink(missing_ok=True)


def _write_result(path: Path, result: dict[str, Any]) -> None:
    text = json_text(result)
    Run(path).list_file(RESULT, text.encode())
    write_text(path / RESULT, text)


def _peak_gpu_megabytes(device: torch.device) -> float | None:
    """The most memory that tensors had on the GPU at one time."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)


def _clean(path: Path) -> None:
    """Remove temporary files that a killed process left behind."""
    remove_staged(Run(path))
    remove_leftovers(path, CONTENTS)
    remove_leftovers((path / CHECKPOINT).parent, (CHECKPOINT.name,))
