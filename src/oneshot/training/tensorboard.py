"""TensorBoard: an observer that writes training curves."""

from pathlib import Path
from typing import Any

from oneshot.errors import require
from oneshot.training.observer import Observer, epoch_values
from oneshot.training.trainer import Trainer


class TensorBoard(Observer):
    """Writes loss, learning rate, coverage and validation MRR of each epoch to a directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # Fails before the long work starts, not at the first epoch.
        self._package = require("torch.utils.tensorboard", "tensorboard", "writing to TensorBoard")
        self._writer: Any = None

    def on_start(self, trainer: Trainer) -> None:
        if trainer.team.is_first:
            # Records that a killed process wrote after its checkpoint are written again.
            self._writer = self._package.SummaryWriter(
                str(self.path), purge_step=trainer.state.epoch + 1
            )

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        if self._writer is None:
            return
        for name, value in epoch_values(record).items():
            self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()
        if trainer.state.finished:
            self._writer.close()
