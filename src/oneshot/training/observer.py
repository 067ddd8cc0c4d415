"""Observer: callbacks of a training, for example of a display or the writer of a run."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneshot.training.trainer import Trainer


def epoch_values(record: dict[str, Any]) -> dict[str, float]:
    """The curves of an epoch, from its line of `metrics.jsonl`."""
    values = {name: record[name] for name in ("loss", "learning_rate", "covered")}
    if "valid" in record:
        values["valid/mrr"] = record["valid"]["mrr"]
    return values


class Observer:
    """Base class of callbacks; a subclass overrides the methods that it needs.

    `on_start` is called first. Each epoch then has steps, with checkpoints between some of them,
    possibly a validation, and its end. After training, both splits may be evaluated. `on_end` is
    called last. An exception in a method ends the training.
    """

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step; also when a training is resumed."""

    def on_step(self, queries: int, loss: float) -> None:
        """After a step, or several steps that were launched together.

        `queries`: number over all processes; `loss`: mean over the queries of this process.
        """

    def on_checkpoint(self, trainer: "Trainer") -> None:
        """About once per minute within an epoch, for observers that save checkpoints."""

    def on_validation(self, queries: int) -> None:
        """Before a validation with this number of queries."""

    def on_epoch(self, trainer: "Trainer", record: dict[str, Any], is_best: bool) -> None:
        """After an epoch; `record` is its line of `metrics.jsonl`."""

    def on_evaluation(self, split: str, queries: int) -> None:
        """Before the final evaluation of a split; `queries`: about as many in this process."""

    def on_answers(self, queries: int) -> None:
        """After a batch of the final evaluation, with its number of queries."""

    def on_end(self) -> None:
        """After the training and the final evaluation, also if they failed."""
