"""Recording: keeps the run directory of a training up to date, so that it can be resumed."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oneshot.checkpoints import optimizer_tensors, save_tensors
from oneshot.config import Config
from oneshot.fact_store import FILES as STORE_FILES
from oneshot.files import sync, write_text
from oneshot.graph import KnowledgeGraph
from oneshot.runs import (
    CALIBRATION,
    CHECKPOINT,
    CONFIG,
    GRAPH,
    METRICS,
    PREDICTOR,
    RELATIONS,
    RESULT,
    start_run,
)
from oneshot.training import Trainer

__all__ = ["CHECKPOINT", "RunWriter", "begun_run", "holds_training"]

_TRAINED = (str(CHECKPOINT), RESULT, CALIBRATION, PREDICTOR, METRICS)
"""What a training leaves in a run, in the order in which it is taken away."""


class RunWriter:
    """Keeps a run directory up to date during training.

    `staged`: where the first epoch is written to, if it is to replace an older run in `path`.
    """

    def __init__(self, path: Path, staged: Path | None = None) -> None:
        self.path = path
        self._staged = staged

    def started(self, trainer: Trainer) -> None:
        pass

    def stepped(self, queries: int, loss: float) -> None:
        pass

    def validating(self, queries: int) -> None:
        pass

    def epoch_done(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        """Best parameters first, then the record, then the checkpoint that vouches for both."""
        if not trainer.team.is_first:
            return
        path = self._staged or self.path
        if is_best:
            save_tensors(path / PREDICTOR, trainer.best, {"epoch": record["epoch"]})
        write_text(path / METRICS, metrics_lines(trainer.state.history))
        tensors = {f"predictor.{k}": v for k, v in trainer.predictor.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in trainer.best.items()}
        tensors |= optimizer_tensors(trainer.optimizer)
        schedule = {
            "plateau_factor": trainer.schedule.plateau_factor,
            "bad_epochs": trainer.schedule.bad_epochs,
        }
        about = {
            "state": asdict(trainer.state),
            "schedule": schedule,
            "micro_batch": trainer.micro_batch,
        }
        save_tensors(path / CHECKPOINT, tensors, about)
        if self._staged is not None:
            _replace_run(self.path, self._staged)
            self._staged = None


@contextmanager
def begun_run(path: Path, config: Config, graph: KnowledgeGraph) -> Iterator[RunWriter]:
    """A writer for a training from its start; the block ends with the training.

    An older run in `path` stays whole until the first epoch of the new one is done, which is
    written beside it and then takes its place. Where there is none, what the run is about is
    written at once: a process killed in its first epoch can be resumed without telling it again.
    """
    if not holds_training(path):
        start_run(path, config, graph)
        yield RunWriter(path)
        return
    # Under a name that is known as the rest of a killed process, if it should become that.
    staged = Path(tempfile.mkdtemp(prefix=f".{CHECKPOINT.parent.name}.", dir=path))
    try:
        start_run(staged, config, graph)
        yield RunWriter(path, staged)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def holds_training(path: Path) -> bool:
    """Whether a directory holds anything that a training took time for."""
    return any((path / name).exists() for name in _TRAINED)


def metrics_lines(history: list[dict[str, Any]]) -> str:
    """The records of a training as the text of `metrics.jsonl`."""
    return "".join(json.dumps(record) + "\n" for record in history)


def _replace_run(path: Path, staged: Path) -> None:
    """Put the files of a run that is written already in the place of those in `path`.

    The old ones go first, the checkpoint before all others: a process killed in between leaves
    a run without a checkpoint, which is started afresh, and never one that is mixed of two.
    """
    for name in (*_TRAINED, CONFIG, *STORE_FILES):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "graph", ignore_errors=True)
    sync(path)
    (path / CHECKPOINT).parent.mkdir(exist_ok=True)
    for name in (GRAPH, "graph", RELATIONS, CONFIG, PREDICTOR, METRICS, str(CHECKPOINT)):
        if (staged / name).exists():
            (staged / name).replace(path / name)
    sync((path / CHECKPOINT).parent)
    sync(path)
