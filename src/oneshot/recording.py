"""Recording: keeps the run directory of a training up to date, so that it can be resumed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oneshot.checkpoints import (
    check_shapes,
    load_tensors,
    optimizer_tensors,
    restore_optimizer,
    save_tensors,
)
from oneshot.errors import InputError
from oneshot.files import write_text
from oneshot.runs import METRICS, PREDICTOR
from oneshot.training import Trainer, TrainingState

CHECKPOINT = Path("checkpoint") / "state.safetensors"


class RunWriter:
    """Keeps a run directory up to date during training."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        if is_best:
            save_tensors(self.path / PREDICTOR, trainer.best, {"epoch": record["epoch"]})
        lines = "".join(json.dumps(line) + "\n" for line in trainer.state.history)
        write_text(self.path / METRICS, lines)
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
        save_tensors(self.path / CHECKPOINT, tensors, about)


def checkpoint_state(path: Path) -> TrainingState | None:
    """Where the training of a run stands, or None without a checkpoint."""
    if not (path / CHECKPOINT).is_file():
        return None
    _, about = load_tensors(path / CHECKPOINT)
    return _state(path, about)


def restore(path: Path, trainer: Trainer) -> None:
    """Put a trainer where the checkpoint of a run left off."""
    tensors, about = load_tensors(path / CHECKPOINT)
    predictor, best = (
        {k.removeprefix(p): v for k, v in tensors.items() if k.startswith(p)}
        for p in ("predictor.", "best.")
    )
    check_shapes(path / CHECKPOINT, predictor, trainer.predictor.state_dict())
    trainer.predictor.load_state_dict(predictor)
    trainer.best = {k: v.to(trainer.reasoner.device) for k, v in best.items()}
    restore_optimizer(trainer.optimizer, tensors)
    trainer.schedule.plateau_factor = about["schedule"]["plateau_factor"]
    trainer.schedule.bad_epochs = about["schedule"]["bad_epochs"]
    trainer.micro_batch = about["micro_batch"]
    trainer.state = _state(path, about)


def _state(path: Path, about: dict[str, Any]) -> TrainingState:
    try:
        return TrainingState(**about["state"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{path / CHECKPOINT}: not a checkpoint of oneshot") from error
