"""Jobs: whole tasks on disk, as the command line and scripts run them."""

from pathlib import Path
from typing import Any

import torch

from oneshot.building import build_reasoner
from oneshot.calibrating import calibrate
from oneshot.config import Config, to_toml
from oneshot.dataset import Dataset
from oneshot.errors import InputError
from oneshot.evaluation import evaluate
from oneshot.files import check_replaceable, write_json
from oneshot.progress import ProgressDisplay
from oneshot.recording import CHECKPOINT, RunWriter, checkpoint_state, restore
from oneshot.runs import (
    CALIBRATION,
    CONFIG,
    OURS,
    RESULT,
    calibration_values,
    read_json,
    run_config,
    start_run,
)
from oneshot.training import fit


def train_run(
    data: Dataset, path: Path, config: Config, device: torch.device, resume: bool = False
) -> dict[str, Any]:
    """Train into a run directory, choose by validation, evaluate once on test.

    `resume` goes on from the checkpoint in `path`; without one it starts afresh.
    """
    check_replaceable(path, CONFIG, OURS)
    state = checkpoint_state(path) if resume else None
    if state is not None and to_toml(run_config(path)) != to_toml(config):
        raise InputError(
            f"{path}: was started with another configuration; resume it with the same one, or "
            "train into another directory"
        )
    if state is not None and state.finished and (path / RESULT).is_file():
        return {**read_json(path / RESULT), "already_finished": True}
    if state is None:
        _forget(path)
        start_run(path, config, data.graph)
    else:
        fingerprint = read_json(path / "graph.json")["fingerprint"]
        if fingerprint != data.graph.fingerprint:
            raise InputError(f"{path}: the graph has changed since this run was started")
    reasoner = build_reasoner(data.graph, config, device)
    with ProgressDisplay() as display:
        state = fit(
            reasoner,
            data,
            config.training,
            [RunWriter(path), display],
            restore=None if state is None else lambda trainer: restore(path, trainer),
        )
        reasoner.calibration = calibrate(reasoner, data, seed=config.training.seed)
        write_json(path / CALIBRATION, calibration_values(reasoner.calibration))
        size = config.training.valid_batch_size or config.training.batch_size
        reports = {
            split: evaluate(
                reasoner,
                data.facts(split),
                data.known,
                batch_size=size,
                progress=display.evaluating(split, 2 * len(data.facts(split))),
            )
            for split in ("valid", "test")
        }
    result = {
        "run": str(path),
        "data": data.name,
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "seconds": state.seconds,
        "parameters": reasoner.predictor.num_parameters,
        **{split: report.as_dict() for split, report in reports.items()},
    }
    write_json(path / RESULT, result)
    return {**result, "already_finished": False}


def _forget(path: Path) -> None:
    """Remove what an earlier training left in a directory that is trained into again."""
    for name in (CHECKPOINT, RESULT):
        (path / name).unlink(missing_ok=True)
