"""Observer: what follows a training, such as a display or the writer of a run."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneshot.training.trainer import Trainer


class Observer:
    """Follows a training; a subclass has the methods that it needs, the others do nothing.

    First comes `on_start`. Each epoch then has its steps, now and then a checkpoint among them,
    maybe a validation, and its end. After the training both splits may be evaluated. `on_end` comes
    last. What a method raises ends the training.
    """

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step; also where a training is resumed."""

    def on_step(self, queries: int, loss: float) -> None:
        """After a step, or some that were launched together.

        `queries`: asked by all processes; `loss`: mean over the queries of this one.
        """

    def on_checkpoint(self, trainer: "Trainer") -> None:
        """About once a minute within an epoch, for who keeps the state of a training."""

    def on_validation(self, queries: int) -> None:
        """Before a validation of so many queries."""

    def on_epoch(self, trainer: "Trainer", record: dict[str, Any], is_best: bool) -> None:
        """After an epoch; `record` is its line of `metrics.jsonl`."""

    def on_evaluation(self, split: str, queries: int) -> None:
        """Before the final evaluation of a split, of which about so many queries are asked here."""

    def on_answers(self, queries: int) -> None:
        """After a batch of so many queries of a final evaluation."""

    def on_end(self) -> None:
        """After the training and what follows it, however it has ended."""
