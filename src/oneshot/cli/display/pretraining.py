"""Progress of a pre-training on the terminal."""

from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from oneshot.system import console
from oneshot.training.pretraining import Pretraining, PretrainingObserver


class PretrainingDisplay(PretrainingObserver):
    """A line per validation, and a progress bar; all on stderr."""

    _bar: Progress | None = None

    def on_start(self, pretraining: Pretraining) -> None:
        names = ", ".join(source.data.name for source in pretraining.sources)
        console.note(
            f"{pretraining.predictor.num_parameters:,} parameters, on {pretraining.device}: {names}"
        )
        self._bar = Progress(
            TextColumn("step {task.fields[step]:,}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:.0f} %, {task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console.stderr,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=1.0, step=pretraining.state.step, detail="")

    def on_steps(self, pretraining: Pretraining, name: str, steps: int, loss: float) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=pretraining.share,
                step=pretraining.state.step,
                detail=f"{name}: loss {loss:.3f}",
            )

    def on_validation(
        self, pretraining: Pretraining, record: dict[str, Any], is_best: bool
    ) -> None:
        each = ", ".join(f"{name} {mrr:.4f}" for name, mrr in record["valid"].items())
        console.note(
            f"step {record['step']:,}: loss {record['loss']:.4f}, covered {record['covered']:.3f}, "
            f"valid MRR {record['mrr']:.4f}{' best' if is_best else ''} ({each}), "
            f"{record['seconds']:,.0f} s"
        )

    def on_end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
