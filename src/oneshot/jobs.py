"""Jobs: whole tasks on disk, as the command line and scripts run them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from oneshot.building import build_reasoner
from oneshot.calibrating import calibrate
from oneshot.config import Config, to_toml
from oneshot.dataset import Dataset
from oneshot.distributed import Team
from oneshot.errors import InputError
from oneshot.evaluation import Report, evaluate
from oneshot.files import check_replaceable, remove_leftovers, write_json
from oneshot.progress import ProgressDisplay
from oneshot.reasoner import Reasoner
from oneshot.recording import CHECKPOINT, RunWriter, checkpoint_state, restore
from oneshot.runs import (
    CALIBRATION,
    CONFIG,
    GRAPH,
    METRICS,
    OURS,
    PREDICTOR,
    RESULT,
    calibration_values,
    read_json,
    run_config,
    start_run,
)
from oneshot.training import Observer, Trainer, TrainingState


def train_run(
    data: Dataset,
    path: Path,
    config: Config,
    device: torch.device,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Train into a run directory, choose by validation, evaluate once on test.

    `resume` goes on from the checkpoint in `path`; without one it starts afresh. Of several
    processes under `torchrun` the first one writes and evaluates; the others return nothing.
    """
    team = Team(device)
    check_replaceable(path, CONFIG, OURS)
    state = _resumable(data, path, config) if resume else None
    if state is not None and state.finished and (path / RESULT).is_file():
        return {**read_json(path / RESULT), "already_finished": True} if team.is_first else {}
    reasoner = build_reasoner(data.graph, config, device)
    with ProgressDisplay(team.is_first) as display:
        trainer = Trainer(reasoner, data, config.training, [RunWriter(path), display, *observers])
        if state is not None:
            restore(path, trainer)
        # Nothing was written so far: wrong use leaves an older run as it was.
        if team.is_first:
            _clean(path)
            if state is None:
                _forget(path)
                start_run(path, config, data.graph)
        state = trainer.run()
        if not team.is_first:
            return {}
        reasoner.calibration = calibrate(reasoner, data, seed=config.training.seed)
        write_json(path / CALIBRATION, calibration_values(reasoner.calibration))
        result = {
            "run": str(path),
            "data": data.name,
            "epochs": state.epoch,
            "best_epoch": state.best_epoch,
            "seconds": state.seconds,
            "parameters": reasoner.predictor.num_parameters,
            "valid": _evaluated(reasoner, data, "valid", config, display),
            "test": _evaluated(reasoner, data, "test", config, display),
        }
    write_json(path / RESULT, result)
    return {**result, "already_finished": False}


def _resumable(data: Dataset, path: Path, config: Config) -> TrainingState | None:
    """Where the run in `path` stands, or None if it has no checkpoint."""
    state = checkpoint_state(path)
    if state is None:
        return None
    if to_toml(run_config(path)) != to_toml(config):
        raise InputError(
            f"{path}: was started with another configuration; resume it with the same one, or "
            "train into another directory"
        )
    if read_json(path / GRAPH).get("fingerprint") != data.graph.fingerprint:
        raise InputError(f"{path}: the graph has changed since this run was started")
    return state


def _evaluated(
    reasoner: Reasoner, data: Dataset, split: str, config: Config, display: ProgressDisplay
) -> dict[str, Any] | None:
    """The evaluation of a split as JSON, or None if it is empty."""
    facts = data.facts(split)
    if not len(facts):
        return None
    report: Report = evaluate(
        reasoner,
        facts,
        data.known,
        batch_size=config.training.valid_batch_size or config.training.batch_size,
        progress=display.evaluating(split, 2 * len(facts)),
    )
    return report.as_dict()


def _clean(path: Path) -> None:
    """Remove temporary files that a killed process left behind."""
    remove_leftovers(path, (CONFIG, *OURS))
    remove_leftovers((path / CHECKPOINT).parent, (CHECKPOINT.name,))


def _forget(path: Path) -> None:
    """Remove what an earlier training left in a directory that is trained into again."""
    for name in (CHECKPOINT, RESULT, CALIBRATION, PREDICTOR, METRICS):
        (path / name).unlink(missing_ok=True)
