"""Progress of a training on the terminal."""

import time
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oneshot.system import console
from oneshot.training.observer import Observer

if TYPE_CHECKING:
    from oneshot.training.trainer import Trainer


class TrainingDisplay(Observer):
    """A line per epoch, and a progress bar for the current epoch; all on stderr.

    One display may follow several trainings, one after the other. In distributed training, only
    the first process displays.
    """

    _bar: Progress | None = None

    def on_start(self, trainer: "Trainer") -> None:
        if not trainer.team.is_first:
            return
        minutes = trainer.config.minutes
        console.note(
            f"{trainer.predictor.num_parameters:,} parameters, "
            f"{trainer.queries_per_epoch:,} queries per epoch, on {trainer.reasoner.device}"
            + (f", {minutes:g} minutes at most" if minutes else "")
        )
        self._bar = bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=console.stderr,
            transient=True,
        )
        bar.start()
        self._task = bar.add_task(
            f"epoch {trainer.state.epoch + 1}/{trainer.config.epochs}",
            total=trainer.queries_per_epoch,
            detail="",
            visible=not trainer.state.finished,
        )
        self._begun = time.perf_counter()

    def on_step(self, queries: int, loss: float) -> None:
        if self._bar is not None:
            speed = (self._bar.tasks[0].completed + queries) / (time.perf_counter() - self._begun)
            detail = f"loss {loss:.3f}, {speed:,.0f} queries/s"
            self._bar.update(self._task, advance=queries, detail=detail)

    def on_validation(self, queries: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, detail=f"validating on {queries:,} queries")

    def on_epoch(self, trainer: "Trainer", record: dict[str, Any], is_best: bool) -> None:
        if self._bar is None:
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
                f"the time budget is used up in epoch {state.epoch} of {epochs} after "
                f"{record['queries']:,} of {trainer.queries_per_epoch:,} queries; to continue, use "
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

    def on_evaluation(self, split: str, queries: int) -> None:
        if self._bar is not None:
            self._task = self._bar.add_task(f"evaluating {split}", total=queries, detail="")

    def on_answers(self, queries: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, queries)

    def on_end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _quality(trainer: "Trainer", record: dict[str, Any], is_best: bool) -> str:
    """The validation MRR, next to that of the frequency baseline on the same queries."""
    if "valid" not in record:
        return ""
    return (
        f"valid MRR {record['valid']['mrr']:.4f} (frequency {trainer.baseline_mrr:.4f})"
        f"{' best' if is_best else ''}, "
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
        if minutes >= 60
        else f"{minutes}:{rest:02d}"
    )
