"""Training job: trains into a run directory, for the command line and for scripts."""

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
from oneshot.factors import Factors, fit_factors
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import METRICS
from oneshot.reasoner.build import build_reasoner, build_sampler
from oneshot.runs.checkpoint import (
    Checkpoint,
    continues,
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
    FACTORS,
    GRAPH,
    RESULT,
    SAMPLER,
    read_calibration,
)
from oneshot.runs.reference import GraphReference
from oneshot.runs.run import Run
from oneshot.runs.transfer import start_from
from oneshot.runs.writer import RunWriter, begun_run, remove_staged
from oneshot.samplers import Sampler
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
"""The metrics of an evaluation that are shown in tables."""

INTERRUPTED_SECONDS = 30
"""Time limit for evaluating an interrupted training, in seconds."""

warn = logging.getLogger(__name__).warning
"""Default receiver of the messages of a job."""


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
    initial: Run | None = None,
) -> dict[str, Any]:
    """Train into a run directory, choose the best epoch by validation, and evaluate it on test.

    `resume` continues from the checkpoint in `path`; without a checkpoint, training starts from
    scratch. An older run in `path` that is not resumed is replaced after the first epoch or the
    first minute. With several processes under `torchrun`, only the first one writes and reports;
    the others return an empty result.

    When `should_stop` returns true, the step is finished, a checkpoint is written, and the result
    has `stopped`. The same holds for `interrupted`, but then the best parameters so far are
    evaluated for half a minute. `started`: start of the time budget by `clock`; default now.
    `messages`: called with messages for the user, one line each; logged by default. `initial`: a
    run whose parameters the training starts from (see `oneshot.runs.transfer`).
    """
    budget = TimeBudget(config.training.minutes, clock, clock() if started is None else started)
    budget.final_queries = final_queries(data, config.factors.dim > 0)
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
        initial=initial,
    )
    return job.run(resume)


@dataclass(frozen=True)
class TrainingJob:
    """A training into a run directory, from the first file to the result; see `train_run`."""

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
    initial: Run | None = None

    def run(self, resume: bool) -> dict[str, Any]:
        """Train or resume, and evaluate. → the result; empty except in the first process"""
        path, is_first = self.path, self.team.is_first
        Run(path).check_destination(self.data.graph)
        if self.initial is not None and not resume:
            Run(path).check_start(self.initial)
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
            trainer.reasoner.factors = self._kept_factors(trainer.graph, checkpoint, resume)
            # Nothing is written before this point: wrong use leaves an older run unchanged.
            if not is_held:
                _make_place(path)
                held.enter_context(Run(path).lock())
            about = {"origin": self.data.graph.origin}
            GraphReference(path / GRAPH, about).keep_source()
            with self._writer(trainer, checkpoint, resume) as writer:
                result = self._train(trainer, checkpoint, writer)
            if "stopped" not in result:
                _write_result(path, result)
            return {**result, "already_finished": False}

    def _earlier_result(self, checkpoint: Checkpoint | None, resume: bool) -> dict[str, Any] | None:
        """The result of an already finished run; None if there is something to train."""
        if checkpoint is None:
            if resume and (self.path / CALIBRATION).is_file():
                # Finished, because the calibration is written last: --resume must not replace it.
                is_first = self.team.is_first
                return _finished(self.data, self.path, self.config) if is_first else {}
            Run(self.path).check_no_changes()
            return None
        if not checkpoint.state.finished or self._is_reopened(checkpoint):
            return None
        result = _saved_result(self.path)
        if result is None:
            return None
        if not self._has_fitted_parts():
            return None  # no checkpoint has them: they are fitted and evaluated again
        if self.team.is_first:
            self._mend(checkpoint)
        return {**result, "already_finished": True}

    def _is_reopened(self, checkpoint: Checkpoint) -> bool:
        """Whether a training that used up its time budget now has a larger one."""
        return continues(checkpoint.state, self.config.training.minutes)

    def _trainer(self, checkpoint: Checkpoint | None) -> Trainer:
        """The trainer of this job, restored from the checkpoint if there is one."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        reasoner = build_reasoner(self.data.graph, self.config, self.device)
        if checkpoint is not None:
            is_loaded = self._load_sampler(reasoner.sampler)
            if not is_loaded and self.team.is_first:  # the trainer fits it
                self.messages(f"{self.path / SAMPLER} was missing or damaged; fitted again")
        elif self.initial is not None:
            new = start_from(self.initial, reasoner)
            if new and self.team.is_first:
                self.messages(f"{new:,} relations are new; they start from the mean of the others")
        trainer = Trainer(
            reasoner,
            self.data,
            self.config.training,
            self.budget,
            should_stop=self._is_stopped,
            messages=self.messages if self.team.is_first else warn,
        )
        trainer.starts_trained = self.initial is not None
        trainer.factors_config = self.config.factors
        if self.config.factors.dim and self.team.size > 1:
            raise InputError("factors need a training in a single process; set factors.dim=0")
        if checkpoint is not None:
            restore(checkpoint, trainer)
            if self._is_reopened(checkpoint):
                reopen(trainer)
        return trainer

    def _kept_factors(
        self, graph: KnowledgeGraph, checkpoint: Checkpoint | None, resume: bool
    ) -> Factors | None:
        """The factors of the run that is resumed, without a weight; None if they must be fitted.

        A process that was killed before its first checkpoint leaves factors without one.
        """
        if not self.config.factors.dim or not resume:
            return None
        file = self.path / FACTORS
        is_there = file.is_file() and _is_same(self.data, self.path, self.config)
        if checkpoint is None and not is_there:
            return None
        found = self._saved_factors(graph)
        if found is None:
            self.messages(f"{file} was missing or damaged; fitted again")
        elif not found.is_complete:
            self.messages(f"{file}: fitting was interrupted; fitted again")
            return None
        else:
            found.weight = 0.0  # validations are those of the predictor alone
        return found

    def _fit_factors(self, trainer: Trainer) -> Factors:
        return fit_factors(
            trainer.graph,
            self.config.factors,
            trainer.data.valid.to(self.device),
            trainer.known,
            seed=self.config.training.seed,
            seconds=self.config.factors.time_share * self.budget.limit,
            should_stop=self._is_stopped,
        )

    def _has_fitted_parts(self) -> bool:
        """Whether the run has readable files of its fitted sampler and its factors, if any."""
        if self.config.factors.dim:
            found = self._saved_factors(self.data.graph)
            if found is None or not found.is_complete:
                return False
        return self._load_sampler(build_sampler(self.config.sampler))

    def _load_sampler(self, sampler: Sampler) -> bool:
        """Load the state of the run's sampler. → False if it is missing or damaged"""
        try:
            Run(self.path).load_sampler(sampler)
        except InputError:
            return False
        # Likelihoods of answers are fitted; other samplers have no file.
        return not sampler.scores_answers or bool(sampler.parameters())

    def _saved_factors(self, graph: KnowledgeGraph) -> Factors | None:
        """The factors in the run; None if they are missing, damaged, or of another graph."""
        with suppress(InputError):
            return Run(self.path).factors_on(graph)
        return None

    @contextmanager
    def _writer(
        self, trainer: Trainer, checkpoint: Checkpoint | None, resume: bool
    ) -> Iterator[RunWriter]:
        """The writer of the run, from the start or from the checkpoint on."""
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
        """Train and evaluate. → the result; empty without a writer"""
        # The diagnosis comes after the observers that display the values it judges.
        observers: list[Observer] = [*self.observers, Diagnosis()]
        if writer is not None:
            observers.insert(0, writer)
        try:
            if writer is not None and self.config.factors.dim:
                is_new = trainer.reasoner.factors is None
                if is_new:
                    trainer.reasoner.factors = self._fit_factors(trainer)
                if is_new or checkpoint is None:
                    writer.save_factors(trainer)
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
                what = f"{self.path} keeps epoch {trainer.state.epoch}, the last valid one"
            elif checkpoint is not None or (writer is not None and writer.has_saved):
                what = f"{self.path} keeps its last checkpoint"
            raise DivergedError(f"{error}; {what}") from error
        finally:
            for observer in observers:
                observer.on_end()

    def _is_stopped(self) -> bool:
        return self.should_stop() or self.interrupted()

    def _about(self, trainer: Trainer) -> dict[str, Any]:
        """The part of the result about the training."""
        state, factors = trainer.state, trainer.reasoner.factors
        return {
            "run": str(self.path),
            "data": self.data.name,
            "epochs": state.epoch,
            "best_epoch": state.best_epoch,
            "seconds": state.seconds,
            "peak_gpu_megabytes": _peak_gpu_megabytes(self.device),
            "parameters": trainer.predictor.num_parameters
            + (factors.num_parameters if factors is not None and factors.weight else 0),
            "factor_weight": None if factors is None else factors.weight,
        }

    def _finish(self, evaluation: FinalEvaluation) -> dict[str, Any]:
        """Calibrate the reasoner, and report skipped queries. → part of the result"""
        reasoner = evaluation.trainer.reasoner
        Run(self.path).save_factors(reasoner)  # with the weight that was chosen
        reasoner.calibration = evaluation.calibrated()
        write_sealed_json(self.path / CALIBRATION, asdict(reasoner.calibration))
        if evaluation.cut:
            self.messages(
                f"only {evaluation.cut} were evaluated (random sample) for lack of time; for "
                f"all of them: oneshot evaluate {self.path}"
            )
        return {**evaluation.reports, "baseline_mrr": evaluation.baseline_mrr()}

    def _stopped(self, trainer: Trainer, writer: RunWriter) -> dict[str, Any]:
        """Save a training that was stopped, and report it. → its result so far"""
        state = trainer.state
        is_saved = writer.stopped(trainer, _is_usable(trainer))
        if not is_saved:
            self.messages(
                f"{self.path}: stopped before the end of the first epoch; nothing was saved or "
                "changed"
            )
        elif state.finished:
            self.messages(f"{self.path}: stopped after training, before the evaluation")
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
        # SIGTERM leaves little time, and in distributed training no process may continue alone.
        if is_saved and self.team.size == 1 and self.interrupted() and not self.should_stop():
            with suppress(StopTraining):
                result |= self._evaluated_shortly(trainer)
        return result

    def _evaluated_shortly(self, trainer: Trainer) -> dict[str, Any]:
        """Evaluate the best parameters so far for a short time. → part of the result"""
        self.messages(
            f"evaluating the best epoch so far, for at most {INTERRUPTED_SECONDS} seconds; press "
            "Ctrl-C again to exit at once"
        )
        if trainer.state.best_epoch:
            trainer.predictor.load_state_dict(trainer.best)
        budget = TimeBudget(INTERRUPTED_SECONDS / 60, self.budget.clock)
        budget.seconds_per_query = self.budget.seconds_per_query
        evaluation = FinalEvaluation(trainer, budget, self.should_stop)
        evaluation.run()
        return self._finish(evaluation)

    def _announce(self, checkpoint: Checkpoint | None, resume: bool) -> None:
        """Send messages for the user before the long work starts."""
        path = self.path
        for remark in self.data.notes:
            self.messages(remark)
        if checkpoint is None and resume:
            self.messages(
                f"{path}: there is no checkpoint to resume from; training starts from scratch"
            )
        if checkpoint is None and Run(path).holds_training:
            advice = "" if resume else "; to resume a run, use --resume"
            self.messages(
                f"{path} contains an older run, which is replaced after the first epoch or the "
                f"first minute{advice}"
            )

    def _mend(self, checkpoint: Checkpoint) -> None:
        """Rewrite missing or damaged files of the run."""
        for name in mend_run(Run(self.path), checkpoint, self.data.graph):
            self.messages(
                f"{self.path / name} was missing or damaged; restored from the checkpoint"
            )


def _make_place(path: Path) -> None:
    """Create the directory of a run."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise InputError(
            f"{path}: another process has started a run there; wait or use another directory"
        ) from None


def _resumable(data: Dataset, path: Path, config: Config) -> Checkpoint | None:
    """The checkpoint of the run in `path`, or None; raises if data or configuration differ."""
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
            f"{path} contains a finished run, but neither its result nor a checkpoint; use "
            "`oneshot evaluate`, or train into another directory"
        )
    return {**result, "already_finished": True}


def _is_usable(trainer: Trainer) -> bool:
    """Whether the reasoner can answer queries before the first step of its training."""
    reasoner = trainer.reasoner
    predictor = reasoner.predictor.config
    has_prior = predictor.priors and predictor.prior_start > 0 and reasoner.sampler.scores_answers
    return has_prior or reasoner.factors is not None or trainer.starts_trained


def _is_same(data: Dataset, path: Path, config: Config) -> bool:
    """Whether the run in `path` has this graph and this configuration, except its time."""
    try:
        _check_same(data, path, config)
    except InputError:  # also if its files are damaged
        return False
    return True


def _check_same(data: Dataset, path: Path, config: Config) -> None:
    """Raise unless the run in `path` has this graph and configuration, except time and workers."""
    run = Run(path)
    if _without_pace(run.config) != _without_pace(config):
        raise InputError(
            f"{path} was started with another configuration; resume it without --config and "
            "--set, or with the same ones (only training.minutes and training.workers may "
            "differ), or train into another directory"
        )
    if run.reference.fingerprint != data.graph.fingerprint:
        raise InputError(f"{path}: the graph has changed since this run was started")


def _without_pace(config: Config) -> str:
    training = replace(config.training, minutes=0.0, expected_queries=0, workers=0)
    return to_toml(replace(config, training=training))


def _saved_result(path: Path) -> dict[str, Any] | None:
    """The result of a finished run; None if it or the calibration is damaged or missing."""
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
    """Prepare a run for resuming, with its new time budget."""
    if to_toml(Run(path).config) != to_toml(
        config
    ):  # they differ only in their time, as checked before
        write_sealed_text(path / CONFIG, to_toml(config))
    if not trainer.state.finished:  # belongs to an earlier state of the predictor
        for name in (RESULT, CALIBRATION):
            (path / name).unlink(missing_ok=True)


def _write_result(path: Path, result: dict[str, Any]) -> None:
    text = json_text(result)
    Run(path).list_file(RESULT, text.encode())
    write_text(path / RESULT, text)


def _peak_gpu_megabytes(device: torch.device) -> float | None:
    """Peak GPU memory of tensors in megabytes."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)


def _clean(path: Path) -> None:
    """Remove temporary files that a killed process left behind."""
    remove_staged(Run(path))
    remove_leftovers(path, CONTENTS)
    remove_leftovers((path / CHECKPOINT).parent, (CHECKPOINT.name,))
