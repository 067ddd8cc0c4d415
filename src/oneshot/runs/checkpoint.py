"""Checkpoint of a run: reading, validation and resuming."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.runs.layout import CHECKPOINT, HISTORY, PREDICTOR, RELATIONS, relation_lines
from oneshot.runs.run import Run
from oneshot.runs.tensors import check_shapes, load_tensors, restore_optimizer, save_tensors
from oneshot.runs.writer import metrics_lines
from oneshot.system.files import write_text
from oneshot.training.trainer import Trainer, TrainingState

_PREFIXES = ("predictor.", "best.", "optimizer.", "average.")
_LATER = {"asked": 0, "loss": 0.0, "covered": 0.0, "out_of_time": 0.0, "valid_limit": 0}
"""Defaults of fields that earlier versions did not write: they had no time budget, and wrote
checkpoints only between epochs."""


@dataclass(frozen=True)
class Checkpoint:
    """The progress of a training: its state, and the named tensors of each part.

    `average`: the moving average of the parameters over `averaged_steps` steps; empty if there is
    none.
    """

    file: Path
    state: TrainingState
    plateau_factor: float
    bad_epochs: int
    micro_batch: int
    predictor: dict[str, Tensor]
    best: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    average: dict[str, Tensor]
    averaged_steps: int


def read_checkpoint(run: Run) -> Checkpoint | None:
    """The checkpoint of a run, or None if there is none; raises if it is damaged."""
    file = run.path / CHECKPOINT
    if not file.is_file():
        return None
    tensors, about = load_tensors(file)
    strange = [name for name in tensors if not name.startswith(_PREFIXES)]
    if strange:
        raise _damaged(file, f"the tensor {strange[0]}")
    predictor, best, optimizer, average = (
        {k.removeprefix(p): v for k, v in tensors.items() if k.startswith(p)} for p in _PREFIXES
    )
    schedule = about.get("schedule")
    schedule = schedule if isinstance(schedule, dict) else {}
    state = _state(file, about.get("state"))
    micro_batch = _value(file, int, about.get("micro_batch"), "micro_batch")
    if micro_batch < 1:
        raise _damaged(file, "micro_batch")
    check_shapes(file, best, predictor)
    if average:
        check_shapes(file, average, predictor)
    # Earlier versions had no moving average.
    averaged = _value(file, int, about.get("averaged_steps", 0), "averaged_steps")
    return Checkpoint(
        file,
        state,
        _value(file, float, schedule.get("plateau_factor"), "schedule.plateau_factor"),
        _value(file, int, schedule.get("bad_epochs"), "schedule.bad_epochs"),
        micro_batch,
        predictor,
        best,
        optimizer,
        average,
        averaged,
    )


def restore(checkpoint: Checkpoint, trainer: Trainer) -> None:
    """Restore a trainer from a checkpoint."""
    check_shapes(checkpoint.file, checkpoint.predictor, trainer.predictor.state_dict())
    restore_optimizer(checkpoint.file, trainer.stepper.optimizer, checkpoint.optimizer)
    trainer.predictor.load_state_dict(checkpoint.predictor)
    if trainer.stepper.average is not None:
        values = checkpoint.average or checkpoint.predictor
        trainer.stepper.average.load(values, checkpoint.averaged_steps)
    trainer.best = {k: v.to(trainer.reasoner.device) for k, v in checkpoint.best.items()}
    trainer.schedule.plateau_factor = checkpoint.plateau_factor
    trainer.schedule.bad_epochs = checkpoint.bad_epochs
    trainer.stepper.micro_batch = checkpoint.micro_batch
    trainer.state = checkpoint.state
    if not trainer.team.is_first:  # the totals of an epoch are sums over all processes
        trainer.state.loss = trainer.state.covered = 0.0


def continues(state: TrainingState, minutes: float) -> bool:
    """Whether a finished training continues with a budget of `minutes` (0 = no limit)."""
    return state.out_of_time > 0 and (not minutes or minutes > state.out_of_time)


def reopen(trainer: Trainer) -> None:
    """Reopen a training that finished because its time was used up.

    An interrupted epoch continues where it stopped.
    """
    state = trainer.state
    state.finished, state.out_of_time = False, 0.0
    record = state.history[-1]
    asked = record.get("queries", trainer.queries_per_epoch)
    if asked < trainer.queries_per_epoch:
        state.history.pop()
        state.epoch -= 1
        state.asked = asked
        if trainer.team.is_first:
            state.loss, state.covered = record["loss"] * asked, record["covered"] * asked


def mend_run(run: Run, checkpoint: Checkpoint, graph: KnowledgeGraph) -> list[str]:
    """Rewrite missing or unreadable files of a run that can be derived from its checkpoint.

    → the names of the rewritten files
    """
    mended = []
    path, state = run.path, checkpoint.state
    is_validated = state.best_mrr >= 0
    newest = checkpoint.average or checkpoint.predictor
    wanted = checkpoint.best if is_validated else newest
    if not _is_whole(path / PREDICTOR, wanted):
        about = {"epoch": state.best_epoch if is_validated else state.epoch + (state.asked > 0)}
        save_tensors(path / PREDICTOR, wanted, about)
        mended.append(PREDICTOR)
    if not _lists(run, graph):
        write_text(path / RELATIONS, relation_lines(graph))
        run.forget()
        mended.append(RELATIONS)
    if not _agrees(path / HISTORY, checkpoint):
        write_text(path / HISTORY, metrics_lines(checkpoint.state.history))
        mended.append(HISTORY)
    return mended


def _is_whole(file: Path, wanted: dict[str, Tensor]) -> bool:
    try:
        check_shapes(file, load_tensors(file)[0], wanted)
    except InputError:
        return False
    return True


def _lists(run: Run, graph: KnowledgeGraph) -> bool:
    try:
        return run.relations == graph.relations
    except InputError:
        return False


def _agrees(file: Path, checkpoint: Checkpoint) -> bool:
    """Whether the records of the epochs agree with a checkpoint; they may be one epoch ahead."""
    wanted = metrics_lines(checkpoint.state.history).encode()
    if not wanted:  # stopped in the first epoch
        return True
    return file.is_file() and file.read_bytes().startswith(wanted)


def _state(file: Path, about: Any) -> TrainingState:
    if not isinstance(about, dict):
        raise _damaged(file, "state")
    types = {part.name: part.type for part in dataclasses.fields(TrainingState)}
    about = _LATER | about
    for name in types.keys() ^ about.keys():
        raise _damaged(file, f"state.{name}")
    values = {n: _value(file, expected, about[n], f"state.{n}") for n, expected in types.items()}
    state = TrainingState(**values)
    epochs = [line.get("epoch") if isinstance(line, dict) else None for line in state.history]
    if epochs != list(range(1, len(epochs) + 1)):
        raise _damaged(file, "state.history")
    if state.epoch != len(epochs):
        raise _damaged(file, "state.epoch")
    if state.best_epoch > state.epoch + (state.asked > 0):
        raise _damaged(file, "state.best_epoch")
    return state


def _value(file: Path, expected: Any, value: Any, name: str) -> Any:
    """The value, if it has the type (int: not negative; float: finite; bool; a list)."""
    expected = get_origin(expected) or expected
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if expected is int:
        fits = is_number and isinstance(value, int) and 0 <= value < 2**53
    elif expected is float:
        fits = is_number and abs(value) < 1e300
    else:
        fits = isinstance(value, expected)
    if not fits:
        raise _damaged(file, name)
    return value


def _damaged(file: Path, what: str) -> InputError:
    return InputError(
        f"{file}: not a checkpoint of oneshot, or damaged ({what}); train without --resume to "
        "start again"
    )
