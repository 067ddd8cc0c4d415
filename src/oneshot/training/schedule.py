"""Schedule: the learning rate over the course of training."""

import math
from dataclasses import dataclass

from oneshot.config import TrainingConfig

_PLATEAU_FLOOR = 1 / 20


@dataclass
class Schedule:
    """The factor on the learning rate.

    "cosine" decreases from 1 to 0 over all epochs. "plateau" is halved after `plateau_patience`
    validations in a row without a better MRR, down to 1/20. "constant" stays 1. With any of them,
    the factor may first increase from 0 over `warmup_epochs`.

    `time_share`: used share of the time budget. At least this share of the epochs counts as done,
    so that a training that runs out of time still completes the schedule.
    """

    config: TrainingConfig
    plateau_factor: float = 1.0
    bad_epochs: int = 0
    time_share: float = 0.0

    def factor(self, epochs_done: float) -> float:
        """The factor after `epochs_done` epochs, which may be fractional."""
        config = self.config
        epochs_done = max(epochs_done, self.time_share * config.epochs)
        warm = min(1.0, epochs_done / config.warmup_epochs) if config.warmup_epochs else 1.0
        if config.schedule == "cosine":
            left = max(config.epochs - config.warmup_epochs, 1e-9)
            share = min(max((epochs_done - config.warmup_epochs) / left, 0.0), 1.0)
            return warm * (1 + math.cos(math.pi * share)) / 2
        return warm * (self.plateau_factor if config.schedule == "plateau" else 1.0)

    def validated(self, is_better: bool) -> None:
        """Record the outcome of a validation."""
        self.bad_epochs = 0 if is_better else self.bad_epochs + 1
        if self.bad_epochs >= self.config.plateau_patience and self.config.schedule == "plateau":
            self.plateau_factor = max(self.plateau_factor / 2, _PLATEAU_FLOOR)
            self.bad_epochs = 0
