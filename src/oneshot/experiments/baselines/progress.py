"""Progress of the training of an embedding model: a bar on a terminal, lines elsewhere."""

import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from oneshot.data.dataset import Dataset
from oneshot.experiments.baselines.embedding import MAX_EPOCHS
from oneshot.experiments.baselines.peers import TITLES, measure_embedding
from oneshot.experiments.baselines.pykeen_models import RECIPES
from oneshot.system import console

_SECONDS = 30.0
"""Seconds between two lines without a terminal."""


def measure_shown(
    name: str,
    data: Dataset,
    device: torch.device,
    *,
    dim: int,
    seed: int,
    epochs: int | None,
    kept: Path | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """The metrics of a PyKEEN model, with a display of its training progress."""
    options: dict[str, Any] = {"dim": dim, "seed": seed, "epochs": epochs, "kept": kept}
    options["minutes"] = minutes
    with console.progress_bar() as progress:
        watcher = _Shown(TITLES[name], progress, epochs or MAX_EPOCHS)
        found = measure_embedding(RECIPES[name], data, device, watcher=watcher, **options)
    if "failure" in found:
        console.note(f"{TITLES[name]}: {found['failure']}")
    else:
        trained = "1 epoch" if found["epochs"] == 1 else f"{found['epochs']} epochs"
        console.note(
            f"{trained} in {found['seconds']:,.0f} s, best valid MRR {found['valid_mrr']:.4f} at "
            f"epoch {found['best_epoch']}"
        )
    return found


class _Shown:
    """A `Watcher`."""

    def __init__(self, title: str, progress: Progress, epochs: int) -> None:
        self.title, self.progress = title, progress
        self.task = progress.add_task(title, total=epochs)
        self.steps, self.last_line = 0, time.monotonic()

    def told(self, line: str) -> None:
        console.note(f"{self.title}: {line}")

    def resumed(self, epoch: int, best_mrr: float) -> None:
        self.told(f"resumed after epoch {epoch}, best valid MRR {best_mrr:.4f}")
        self.progress.update(self.task, completed=epoch)

    def stepped(self) -> None:
        self.steps += 1
        self.progress.update(self.task, description=f"{self.title}, step {self.steps:,}")

    def epoch_done(self, epoch: int, best_mrr: float | None) -> None:
        best = "" if best_mrr is None else f", best valid MRR {best_mrr:.4f}"
        self.progress.update(self.task, completed=epoch, description=f"{self.title}{best}")
        if self.progress.disable and time.monotonic() - self.last_line >= _SECONDS:
            self.last_line = time.monotonic()
            self.told(f"epoch {epoch}{best}")
