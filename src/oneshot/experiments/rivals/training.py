"""Training of a coupling: our trainer, with its splits, losses and validations."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.experiments.rivals.coupling import CoupledReasoner, Coupling
from oneshot.runs.checkpoint import read_checkpoint, restore
from oneshot.runs.layout import CHECKPOINT
from oneshot.runs.run import Run
from oneshot.runs.writer import save_checkpoint
from oneshot.subgraph import SubgraphBatch
from oneshot.training.diagnosis import Diagnosis
from oneshot.training.epoch import Epoch, QueryBatch
from oneshot.training.interrupt import StopTraining
from oneshot.training.losses import query_losses
from oneshot.training.observer import Observer
from oneshot.training.steps import Stepper, warn
from oneshot.training.trainer import Trainer, TrainingState


class CoupledStepper(Stepper):
    """Steps in which the coupling chooses the entities."""

    def _new_workers(self) -> None:
        """None: no sampler chooses the entities."""

    def _learn(
        self,
        epoch: Epoch,
        asked: QueryBatch,
        numbers: Tensor,
        scale: float,
        more: bool,
        ready: SubgraphBatch | None = None,
    ) -> tuple[float, float]:
        _, observed, queries, answers = asked
        network = self.network
        assert isinstance(network, Coupling)
        with torch.autocast(self.device.type, torch.bfloat16, self._half):
            batch, scores = network.training_scores(observed, queries, answers)
        targets = self._targets(batch, answers)
        losses = query_losses(self.config, scores.float(), batch, targets)
        (losses.sum() * scale).backward()
        return float(losses.detach().sum()), float((targets.place >= 0).sum())


class CoupledTrainer(Trainer):
    """The trainer of a coupling."""

    stepper_type = CoupledStepper


class _Writer(Observer):
    """Writes the checkpoint of a training, from which it is resumed."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_checkpoint(self, trainer: Trainer) -> None:
        trainer.stepper.check_parameters(trainer.state.epoch + 1)
        (self.run.path / CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.run, trainer)

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        self.on_checkpoint(trainer)


def train_coupling(
    reasoner: CoupledReasoner,
    data: Dataset,
    config: TrainingConfig,
    path: Path | None = None,
    *,
    observers: Sequence[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
    messages: Callable[[str], None] = warn,
) -> TrainingState:
    """Train a coupling; its parameters are then those of the best epoch by validation MRR.

    `path`: a directory for a checkpoint; if it has one, the training is resumed, or, if it has
    ended, its parameters are loaded. Raises `StopTraining` after `should_stop` has returned true.
    """
    if config.hide_direct or config.fact_dropout or config.sample_from == "train":
        raise InputError(
            "a coupling has no subgraph sampled beforehand: use neither training.hide_direct nor "
            "training.fact_dropout nor training.sample_from"
        )
    if config.entity_ratio is not None:
        raise InputError("a coupling has a budget of its own: leave training.entity_ratio out")
    trainer = CoupledTrainer(reasoner, data, config, should_stop=should_stop, messages=messages)
    following = [*observers, Diagnosis()]
    writer = None
    if path is not None:
        run = Run(path)
        checkpoint = read_checkpoint(run)
        if checkpoint is not None:
            restore(checkpoint, trainer)
        writer = _Writer(run)
        following.insert(0, writer)
    try:
        return trainer.run(following)
    except StopTraining:
        if writer is not None and trainer.state.asked:
            writer.on_checkpoint(trainer)
        raise
    finally:
        for observer in following:
            observer.on_end()
