"""Writer of a run: keeps the run directory of a training up to date, so that it can be resumed."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oneshot.config import Config
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.store import FILES as STORE_FILES
from oneshot.runs.layout import (
    CHECKPOINT,
    CONFIG,
    CONTENTS,
    FACTORS,
    GRAPH,
    HISTORY,
    PREDICTOR,
    RELATIONS,
    SAMPLER,
    SAVED,
    TRAINED,
)
from oneshot.runs.run import Run
from oneshot.runs.tensors import optimizer_tensors, save_tensors
from oneshot.system.files import check_replaceable, exchange, leftovers, sync, write_text
from oneshot.training.observer import Observer
from oneshot.training.trainer import Trainer

__all__ = ["CHECKPOINT", "RunWriter", "begun_run", "remove_staged", "save_checkpoint"]


class RunWriter(Observer):
    """Keeps a run up to date during training.

    `staged`: destination of the first checkpoint, if it will replace an older `run`.
    `has_saved`: whether a checkpoint was written.
    """

    def __init__(self, run: Run, staged: Run | None = None) -> None:
        self.run = run
        self.has_saved = False
        self._staged = staged

    @property
    def _target(self) -> Run:
        """The run that is written to."""
        return self._staged or self.run

    def on_start(self, trainer: Trainer) -> None:
        if trainer.team.is_first:
            self._target.save_sampler(trainer.reasoner.sampler, trainer.graph)

    def save_factors(self, trainer: Trainer) -> None:
        """Save the factors of the trainer, so that a resumed training need not fit them again."""
        self._target.save_factors(trainer.reasoner)

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        """Write the best parameters, then the record, then the checkpoint that confirms both."""
        if not trainer.team.is_first:
            return
        path = self._target.path
        if is_best:
            save_tensors(path / PREDICTOR, trainer.best, {"epoch": record["epoch"]})
        write_text(path / HISTORY, metrics_lines(trainer.state.history))
        self._save(trainer)

    def on_checkpoint(self, trainer: Trainer) -> None:
        """Write a checkpoint within an epoch."""
        if trainer.team.is_first:
            trainer.stepper.check_parameters(trainer.state.epoch + 1)
            self._save(trainer)

    def stopped(self, trainer: Trainer, is_usable: bool) -> bool:
        """Save a training that ends within an epoch. → whether it can be resumed

        `is_usable`: whether the reasoner can answer queries before the first step. An older run
        that would have been replaced stays: it has a trained predictor.
        """
        if self._staged is not None:
            return False
        state = trainer.state
        if state.asked or (is_usable and not state.epoch):
            self.on_checkpoint(trainer)
        return is_usable or state.asked > 0 or state.epoch > 0

    def _save(self, trainer: Trainer) -> None:
        """Write a checkpoint; a staged run replaces the older one."""
        path, state = self._target.path, trainer.state
        if state.best_mrr < 0:  # before the first validation, the newest parameters are saved
            about = {"epoch": state.epoch + (state.asked > 0)}
            save_tensors(path / PREDICTOR, trainer.current(), about)
        elif not state.best_epoch:  # no epoch is better than the start (see `starts_trained`)
            save_tensors(path / PREDICTOR, trainer.best, {"epoch": 0})
        save_checkpoint(self._target, trainer)
        self.has_saved = True
        if self._staged is not None:
            self.run.check_no_changes()  # facts may have been added during the first epoch
            for directory in ((path / CHECKPOINT).parent, path):
                sync(directory)
            path.chmod(self.run.path.stat().st_mode)
            _replace_run(self.run, self._staged)
            self.run.forget()
            self._staged = None


def save_checkpoint(run: Run, trainer: Trainer) -> None:
    """Write the whole state of a training."""
    tensors = {f"predictor.{k}": v for k, v in trainer.predictor.state_dict().items()}
    tensors |= {f"best.{k}": v for k, v in trainer.best.items()}
    tensors |= optimizer_tensors(trainer.stepper.optimizer)
    average = trainer.stepper.average
    if average is not None:
        tensors |= {f"average.{k}": v for k, v in average.named().items()}
    schedule = {
        "plateau_factor": trainer.schedule.plateau_factor,
        "bad_epochs": trainer.schedule.bad_epochs,
    }
    about = {
        "state": asdict(trainer.state),
        "schedule": schedule,
        "micro_batch": trainer.stepper.micro_batch,
        "averaged_steps": 0 if average is None else average.steps,
    }
    save_tensors(run.path / CHECKPOINT, tensors, about)


@contextmanager
def begun_run(run: Run, config: Config, graph: KnowledgeGraph) -> Iterator[RunWriter]:
    """A writer for a new training; the block ends with the training.

    An older run stays intact until the new one has trained for an epoch or a minute: its first
    checkpoint is written next to the older run and then replaces it. Without an older run, the
    configuration is written at once, so that a process killed in its first epoch can be resumed
    without repeating the options.
    """
    if not run.holds_training:
        for name in (SAMPLER, FACTORS):  # of a training that was killed before its first checkpoint
            (run.path / name).unlink(missing_ok=True)
        run.start(config, graph)
        yield RunWriter(run)
        return
    staged = Run(_stage(run))
    try:
        with staged.lock():  # it will replace the directory that is already locked
            staged.start(config, graph)
            yield RunWriter(run, staged)
    finally:
        shutil.rmtree(staged.path, ignore_errors=True)


def _stage(run: Run) -> Path:
    """A directory for the successor of a run: next to it, so that the two can be exchanged.

    Its name identifies it as a leftover if the process is killed.
    """
    path = run.path.resolve()
    if path.parent.stat().st_dev == path.stat().st_dev:  # otherwise it is a mount point
        with contextlib.suppress(OSError):  # the directory is not writable
            return Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    return Path(tempfile.mkdtemp(prefix=f".{CHECKPOINT.parent.name}.", dir=path))


def remove_staged(run: Run) -> None:
    """Remove staged runs that killed processes left next to a run."""
    path = run.path.resolve()
    for entry in leftovers(path.parent, (path.name,)):
        with contextlib.suppress(InputError, OSError):
            check_replaceable(entry, GRAPH, CONTENTS)  # otherwise it is not ours
            with Run(entry).lock():
                shutil.rmtree(entry, ignore_errors=True)


def metrics_lines(history: list[dict[str, Any]]) -> str:
    """The records of a training as the text of `metrics.jsonl`."""
    return "".join(json.dumps(record) + "\n" for record in history)


def _replace_run(run: Run, successor: Run) -> None:
    """Replace a run by a successor that is already written.

    Atomically if the system supports it. Otherwise file by file: the old files are removed first,
    the checkpoint before all others. A process killed in between then leaves a run without a
    checkpoint, which starts from scratch, and never a mixture of two runs.
    """
    path, staged = run.path, successor.path
    if staged.parent == path.resolve().parent and exchange(staged, path.resolve()):
        sync(staged.parent)
        shutil.rmtree(staged, ignore_errors=True)
        return
    for name in (*TRAINED, SAMPLER, FACTORS, CONFIG, *STORE_FILES):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / SAVED, ignore_errors=True)
    sync(path)
    (path / CHECKPOINT).parent.mkdir(exist_ok=True)
    parts = (SAMPLER, FACTORS, PREDICTOR, HISTORY, str(CHECKPOINT))
    for name in (GRAPH, SAVED, RELATIONS, CONFIG, *parts):
        if (staged / name).exists():
            (staged / name).replace(path / name)
    sync((path / CHECKPOINT).parent)
    sync(path)
