"""Schedule: the learning rate over the course of training."""

import math
from dataclasses import dataclass

from oneshot.config import TrainingConfig

_PLATEAU_FLOOR = 1 / 20


@dataclass
class Schedule:
    """The factor on the learning rate, and what it depends on.

    "cosine" falls from 1 to 0 over all epochs; "plateau" is halved at the third epoch in a row
    without a better validation MRR (`plateau_patience`), down to 1/20; "constant" stays. Before
    any of them the factor may rise from 0 over `warmup_epochs`.

    `time_share`: share of the time budget that is used. The epochs count as done to that share at
    least, so that a training with less time than its epochs take goes through the whole schedule.
    """

    config: TrainingConfig
    plateau_factor: float = 1.0
    bad_epochs: int = 0
    time_share: float = 0.0

    def factor(self, epochs_done: float) -> float:
        """The factor after so many epochs, of which the last may be a fraction."""
        config = self.config
        epochs_done = max(epochs_done, self.time_share * config.epochs)
        warm = min(1.0, epochs_done / config.warmup_epochs) if config.warmup_epochs else 1.0
        if config.schedule == "cosine":
            left = max(config.epochs - config.warmup_epochs, 1e-9)
            share = min(max((epochs_done - config.warmup_epochs) / left, 0.0), 1.0)
            return warm * (1 + math.cos(math.pi * share)) / 2
        return warm * (self.plateau_factor if config.schedule == "plateau" else 1.0)

    def validated(self, is_better: bool) -> None:
        """Take note of a validation."""
        self.bad_epochs = 0 if is_better else self.bad_epochs + 1
        if self.bad_epochs >= self.config.plateau_patience and self.config.schedule == "plateau":
            self.plateau_factor = max(self.plateau_factor / 2, _PLATEAU_FLOOR)
            self.bad_epochs = 0
