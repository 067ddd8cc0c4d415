"""Course: where the training of an embedding model stands, kept in a file so that it can go on."""

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
"""By what share of it an MRR must grow to count as better; less is creeping, not learning."""

SECONDS_BETWEEN = 60.0
"""Between two writings of the file: all parameters, the best ones, and the optimizer's moments."""

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
    """Where a training stands.

    `path`: the file, if it is to be kept; `recipe`: how the model is made and trained, in words; a
    file that says something else is of another training. `tell` is called with a line for people.
    `epoch`: the last one done. `best_epoch`, `mrr`, `best`: which epoch has been the best on
    validation, how good it was, and the model's state then. `reference`: the last MRR that counted
    as better; `bad`: validations since. `seconds`: spent by earlier processes. `descent`: the share
    of its time after which a training with a time budget had stopped improving; 0 until then.
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
        """Whether there is a file of an earlier process; a place that cannot be one is an error."""
        if self.path is None or not self.path.exists():
            return False
        if not self.path.is_file():
            raise InputError(f"{self.path}: is in the way; remove it, or choose another place")
        return True

    @property
    def total_seconds(self) -> float:
        return self.seconds + time.perf_counter() - self._started

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
        """Write the file, if one is wanted and the last writing is long ago.

        It is an insurance: if it cannot be written, the training goes on without.
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
            # Copies, as two names of a model may stand for one tensor.
            copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            save_tensors(self.path, copies, {"recipe": self.recipe, "figures": figures})
        except OSError as error:
            self.tell(f"cannot be resumed if it ends now: {self.path}: {error.strerror or error}")
        self._written = time.perf_counter()

    def read(self, loop: Any) -> bool:
        """Take up what the file says, if there is one; the loop goes on after its last epoch.

        A file that is damaged, or of another training, is as good as none: it begins anew. Draws
        of random numbers go on where they were.
        """
        if self.path is None:
            return False
        remove_leftovers(self.path.parent, [self.path.name])
        if not self.is_kept:
            return False
        try:
            self._take_up(self.path, loop)
        except InputError as error:
            self.tell(f"begins anew: {error}")
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
            raise InputError(f"{path}: is of another training")
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
