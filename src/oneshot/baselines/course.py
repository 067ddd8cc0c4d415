"""Course: where the training of an embedding model stands, kept in a file so that it can go on."""

import pickle
import time
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oneshot.files import replacing

LEAST_GAIN = 0.002
"""By what share of it an MRR must grow to count as better; less is creeping, not learning."""

SECONDS_BETWEEN = 60.0
"""Between two writings of the file: all parameters, the best ones, and the optimizer's moments."""

_FIGURES = ("epoch", "best_epoch", "mrr", "reference", "bad", "seconds")


@dataclass
class Course:
    """Where a training stands.

    `epoch`: the last one done. `best_epoch`, `mrr`, `best`: which epoch has been the best on
    validation, how good it was, and the model's state then. `reference`: the last MRR that counted
    as better; `bad`: validations since. `seconds`: spent before this process.
    `path`: the file, if it is to be kept.
    """

    path: Path | None = None
    epoch: int = 0
    best_epoch: int = 0
    mrr: float = -1.0
    reference: float = -1.0
    bad: int = 0
    seconds: float = 0.0
    best: dict[str, Tensor] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    written: float = field(default_factory=time.perf_counter)

    @property
    def total_seconds(self) -> float:
        return self.seconds + time.perf_counter() - self.started

    def validated(self, mrr: float, model: Any) -> None:
        """Take note of a validation after the last epoch."""
        is_better = mrr > self.reference * (1 + LEAST_GAIN) or not self.best
        self.bad = 0 if is_better else self.bad + 1
        if is_better:
            self.reference = mrr
        if mrr > self.mrr or not self.best:
            self.mrr, self.best_epoch = mrr, self.epoch
            self.best = deepcopy(model.state_dict())

    def write(self, loop: Any) -> None:
        """Write the file, if one is wanted and the last writing is long ago."""
        now = time.perf_counter()
        if self.path is None or now - self.written < SECONDS_BETWEEN:
            return
        device = loop.model.device
        state = {
            "figures": {name: getattr(self, name) for name in _FIGURES}
            | {"seconds": self.total_seconds},
            "best": self.best,
            "model": loop.model.state_dict(),
            "optimizer": loop.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "device_random": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }
        with replacing(self.path) as temporary:
            torch.save(state, temporary)
        self.written = time.perf_counter()

    def read(self, loop: Any) -> bool:
        """Take up what the file says, if there is one; the loop goes on after its last epoch.

        A file that is not whole, or that another version of the model has written, is as good as
        none: the training begins anew. Draws of random numbers go on where they were.
        """
        if self.path is None or not self.path.is_file():
            return False
        device = loop.model.device
        try:
            # The generators' states stay on the processor, and are small; so does the optimizer's
            # step count; what belongs on the device is copied there.
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            loop.model.load_state_dict(state["model"])
            loop.optimizer.load_state_dict(state["optimizer"])
            figures = {name: state["figures"][name] for name in _FIGURES}
            best = {name: value.to(device) for name, value in state["best"].items()}
            torch.set_rng_state(state["random"])
            if device.type == "cuda":
                torch.cuda.set_rng_state(state["device_random"], device)
        except (RuntimeError, ValueError, LookupError, TypeError, EOFError, pickle.PickleError):
            return False
        for name, value in figures.items():
            setattr(self, name, value)
        self.best = best
        loop._epoch = self.epoch  # as PyKEEN's own checkpoints do
        return True
