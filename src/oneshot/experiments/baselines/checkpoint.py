"""Checkpoint of the training of an embedding model, from which it can be resumed."""

import time
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.runs.tensors import (
    check_shapes,
    load_tensors,
    optimizer_tensors,
    restore_optimizer,
    save_tensors,
)
from oneshot.system.files import remove_leftovers

LEAST_GAIN = 0.002
"""Relative increase of the MRR that counts as an improvement."""

SECONDS_BETWEEN = 60.0
"""Seconds between two checkpoints (parameters, best parameters, optimizer state)."""

_FIGURES = {
    "epoch": int,
    "best_epoch": int,
    "mrr": float,
    "reference": float,
    "bad": int,
    "seconds": float,
    "descent": float,
}


@dataclass
class Course:
    """The state of a training.

    `path`: the checkpoint file, if there is one. `recipe`: a description of the model and its
    training; a file with a different recipe belongs to another training. `tell`: called with each
    message for the user. `epoch`: the last finished epoch. `best_epoch`, `mrr`, `best`: the best
    epoch on validation, its MRR and its parameters. `reference`: the last MRR that counted as an
    improvement; `bad`: validations since then. `seconds`: time of earlier processes. `descent`: the
    share of its time after which a training with a time budget stopped improving; 0 until then.
    """

    path: Path | None = None
    recipe: str = ""
    tell: Callable[[str], None] = lambda _: None
    epoch: int = 0
    best_epoch: int = 0
    mrr: float = -1.0
    reference: float = -1.0
    bad: int = 0
    seconds: float = 0.0
    descent: float = 0.0
    best: dict[str, Tensor] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)
    _written: float = field(default_factory=time.perf_counter)

    @property
    def is_kept(self) -> bool:
        """Whether an earlier process has left a file; raises if the path is not a file."""
        if self.path is None or not self.path.exists():
            return False
        if not self.path.is_file():
            raise InputError(f"{self.path} is not a file; remove it, or choose another path")
        return True

    @property
    def total_seconds(self) -> float:
        return self.seconds + time.perf_counter() - self._started

    def validated(self, mrr: float, model: Any) -> None:
        """Record a validation after the last epoch."""
        is_better = mrr > self.reference * (1 + LEAST_GAIN) or not self.best
        self.bad = 0 if is_better else self.bad + 1
        if is_better:
            self.reference = mrr
        if mrr > self.mrr or not self.best:
            self.mrr, self.best_epoch = mrr, self.epoch
            self.best = deepcopy(model.state_dict())

    def write(self, loop: Any) -> None:
        """Write the checkpoint, if there is a path and the last one is old enough.

        If it cannot be written, the training continues without it.
        """
        if self.path is None or time.perf_counter() - self._written < SECONDS_BETWEEN:
            return
        device = loop.model.device
        random = {"random.cpu": torch.get_rng_state()}
        if device.type == "cuda":
            random["random.cuda"] = torch.cuda.get_rng_state(device)
        tensors = {
            **_named("model", loop.model.state_dict()),
            **_named("best", self.best),
            **optimizer_tensors(loop.optimizer),
            **random,
        }
        figures = {name: getattr(self, name) for name in _FIGURES}
        figures["seconds"] = self.total_seconds
        try:
            # Copies, because two names of a model may share one tensor.
            copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            save_tensors(self.path, copies, {"recipe": self.recipe, "figures": figures})
        except OSError as error:
            self.tell(f"cannot be resumed later: {self.path}: {error.strerror or error}")
        self._written = time.perf_counter()

    def read(self, loop: Any) -> bool:
        """Resume from the file, if there is one; the loop continues after its last epoch.

        A file that is damaged or belongs to another training is ignored: training starts from
        scratch. The states of random generators are restored.
        """
        if self.path is None:
            return False
        remove_leftovers(self.path.parent, [self.path.name])
        if not self.is_kept:
            return False
        try:
            self._take_up(self.path, loop)
        except InputError as error:
            self.tell(f"starts from scratch: {error}")
            return False
        return True

    def _take_up(self, path: Path, loop: Any) -> None:
        model, device = loop.model, loop.model.device
        tensors, about = load_tensors(path)
        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        figures = about.get("figures")
        if (
            about.get("recipe") != self.recipe
            or not isinstance(figures, dict)
            or not all(isinstance(figures.get(name), kind) for name, kind in _FIGURES.items())
            or device.type not in parts["random"]
        ):
            raise InputError(f"{path}: belongs to another training")
        for part in ("model", "best"):
            check_shapes(path, parts[part], model.state_dict())
        restore_optimizer(path, loop.optimizer, parts["optimizer"])
        model.load_state_dict(parts["model"])
        self.best = {name: tensor.to(device) for name, tensor in parts["best"].items()}
        torch.set_rng_state(parts["random"]["cpu"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(parts["random"]["cuda"], device)
        for name in _FIGURES:
            setattr(self, name, figures[name])
        loop._epoch = self.epoch  # as PyKEEN's own checkpoints do


def _named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
