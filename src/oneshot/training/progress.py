"""Progress: what a training shows while it runs."""

import time
from collections.abc import Callable
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oneshot.system import console
from oneshot.training.trainer import Trainer


class ProgressDisplay:
    """A line an epoch, and a bar for the epoch that runs; all on stderr."""

    def __init__(self, is_shown: bool = True) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=console.stderr,
            transient=True,
            disable=not is_shown,
        )

    def __enter__(self) -> "ProgressDisplay":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, trainer: Trainer) -> None:
        self._trainer = trainer
        if trainer.team.is_first:
            minutes = trainer.config.minutes
            console.note(
                f"{trainer.predictor.num_parameters:,} parameters, "
                f"{trainer.queries_per_epoch:,} queries an epoch, on {trainer.reasoner.device}"
                + (f", {minutes:g} minutes at most" if minutes else "")
            )
        self._task = self._bar.add_task(
            f"epoch {trainer.state.epoch + 1}/{trainer.config.epochs}",
            total=trainer.queries_per_epoch,
            detail="",
            visible=not trainer.state.finished,
        )
        self._begun = time.perf_counter()

    def stepped(self, queries: int, loss: float) -> None:
        speed = (self._bar.tasks[0].completed + queries) / (time.perf_counter() - self._begun)
        self._bar.update(
            self._task, advance=queries, detail=f"loss {loss:.3f}, {speed:,.0f} queries/s"
        )

    def validating(self, queries: int) -> None:
        self._bar.update(self._task, detail=f"validating on {queries:,} queries")

    def epoch_done(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        if not trainer.team.is_first:
            return
        state, epochs = trainer.state, trainer.config.epochs
        left = (epochs - state.epoch) * state.seconds / state.epoch
        left = max(min(left, trainer.budget.left), 0.0)
        console.note(
            f"epoch {state.epoch}/{epochs}: loss {record['loss']:.4f}, "
            f"covered {record['covered']:.3f}, {_quality(trainer, record, is_best)}"
            f"{record['queries_per_second']:,.0f} queries/s, {_duration(left)} left"
        )
        if state.out_of_time:
            console.note(
                f"the time is used up, in epoch {state.epoch} of {epochs} after "
                f"{record['queries']:,} of {trainer.queries_per_epoch:,} queries; to go on, use "
                "--resume with more --minutes"
            )
        self._bar.reset(
            self._task,
            description=f"epoch {state.epoch + 1}/{trainer.config.epochs}",
            total=trainer.queries_per_epoch,
            detail="",
            visible=not state.finished,
        )
        self._begun = time.perf_counter()

    def evaluating(self, split: str, queries: int) -> Callable[[int], None]:
        """A bar for the evaluation of a split. → what to call with the queries done"""
        task = self._bar.add_task(f"evaluating {split}", total=queries, detail="")
        return lambda done: self._bar.advance(task, done)


def _quality(trainer: Trainer, record: dict[str, Any], is_best: bool) -> str:
    """What a validation found, beside the frequency baseline on the same queries."""
    if "valid" not in record:
        return ""
    baseline = trainer.baseline_mrr
    beside = "" if baseline is None else f" (frequency {baseline:.4f})"
    return f"valid MRR {record['valid']['mrr']:.4f}{beside}{' best' if is_best else ''}, "


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
        if minutes >= 60
        else f"{minutes}:{rest:02d}"
    )
