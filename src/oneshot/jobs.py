"""Jobs: whole tasks on disk, as the command line and scripts run them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from oneshot import console
from oneshot.building import build_reasoner
from oneshot.calibrating import calibrate
from oneshot.checksums import write_sealed_json
from oneshot.config import Config, to_toml
from oneshot.dataset import Dataset
from oneshot.distributed import Team
from oneshot.errors import DivergedError, InputError
from oneshot.evaluation import Report, evaluate
from oneshot.files import json_text, remove_leftovers, write_text
from oneshot.progress import ProgressDisplay
from oneshot.reasoner import Reasoner
from oneshot.recording import RunWriter, begun_run, holds_training, remove_staged
from oneshot.resuming import Checkpoint, mend_run, read_checkpoint, restore
from oneshot.runs import (
    CALIBRATION,
    CHECKPOINT,
    CONTENTS,
    GRAPH,
    RESULT,
    check_listed,
    check_no_changes,
    check_run_place,
    list_file,
    only_writer,
    read_calibration,
    read_json,
    run_config,
)
from oneshot.stopping import StopTraining
from oneshot.training import Observer, Trainer

REPORTED = ("mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "coverage", "queries", "seconds")
"""The figures of an evaluation that are shown in a table."""


def train_run(
    data: Dataset,
    path: Path,
    config: Config,
    device: torch.device,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train into a run directory, choose by validation, evaluate once on test.

    `resume` goes on from the checkpoint in `path`; without one it starts afresh. An older run in
    `path` that is not resumed is replaced when the first epoch is done. Of several processes
    under `torchrun` the first one writes and reports; the others return nothing. When `should_stop`
    says so, the step is finished, a checkpoint is written, and the result has `stopped`.
    """
    team = Team(device)
    check_run_place(path, data.graph)
    with ExitStack() as writing:
        is_held = team.is_first and path.is_dir()
        if is_held:
            writing.enter_context(only_writer(path))

        def hold() -> None:
            if not is_held:
                _make_place(path)
                writing.enter_context(only_writer(path))

        return _train_run(data, path, config, team, device, resume, observers, should_stop, hold)


def _train_run(
    data: Dataset,
    path: Path,
    config: Config,
    team: Team,
    device: torch.device,
    resume: bool,
    observers: Sequence[Observer],
    should_stop: Callable[[], bool],
    hold: Callable[[], None],
) -> dict[str, Any]:
    checkpoint = _resumable(data, path, config) if resume else None
    if resume and checkpoint is None and (path / CALIBRATION).is_file():
        # Finished, as the calibration comes last: not to be replaced by who wants to go on.
        return _finished(data, path, config) if team.is_first else {}
    if checkpoint is None:
        check_no_changes(path)
    if checkpoint is not None and checkpoint.state.finished:
        result = _saved_result(path)
        if result is not None:
            if team.is_first:
                _mend(path, checkpoint, data)
            return {**result, "already_finished": True} if team.is_first else {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    reasoner = build_reasoner(data.graph, config, device)
    display = ProgressDisplay(team.is_first)
    trainer = Trainer(reasoner, data, config.training, [display, *observers])
    trainer.should_stop = should_stop
    if checkpoint is not None:
        restore(checkpoint, trainer)
    writer = None
    with display, ExitStack() as stack:
        # Nothing was written so far: wrong use leaves an older run as it was.
        if team.is_first:
            trainer.messages = console.note
            hold()
            _tell(data, path, resume, checkpoint)
            _clean(path)
            if checkpoint is None:
                writer = stack.enter_context(begun_run(path, config, data.graph))
            else:
                _mend(path, checkpoint, data)
                writer = RunWriter(path)
            trainer.observers.insert(0, writer)
        try:
            state = trainer.run()
            reports = {
                split: _evaluated(reasoner, data, split, config, display, trainer)
                for split in ("valid", "test")
            }
        except StopTraining:
            return {} if writer is None else _stopped(writer, trainer, data)
        except DivergedError as error:
            kept = trainer.state.epoch
            what = f"{path} keeps epoch {kept}, the last good one" if kept else "nothing was saved"
            raise DivergedError(f"{error}; {what}") from error
        if not team.is_first:
            return {}
        reasoner.calibration = calibrate(reasoner, data, seed=config.training.seed)
        write_sealed_json(path / CALIBRATION, asdict(reasoner.calibration))
        result = {
            "run": str(path),
            "data": data.name,
            "epochs": state.epoch,
            "best_epoch": state.best_epoch,
            "seconds": state.seconds,
            "peak_gpu_megabytes": _peak_gpu_megabytes(device),
            "parameters": reasoner.predictor.num_parameters,
            **reports,
        }
    text = json_text(result)
    list_file(path, RESULT, text.encode())
    write_text(path / RESULT, text)
    return {**result, "already_finished": False}


def _make_place(path: Path) -> None:
    """Make the directory of a run that was not there when the command began."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise InputError(
            f"{path}: another process has begun a run there; wait for it, or choose another place"
        ) from None


def _stopped(writer: RunWriter, trainer: Trainer, data: Dataset) -> dict[str, Any]:
    """Keep where a training stands that was told to stop, and say so. → its result so far"""
    state = trainer.state
    is_saved = writer.stopped(trainer)
    if not is_saved:
        console.note(
            f"{writer.path}: stopped before its first epoch was done; nothing was saved, and "
            "nothing was changed"
        )
    elif state.finished:
        console.note(f"{writer.path}: stopped after the training, before its evaluation")
    else:
        console.note(
            f"{writer.path}: stopped in epoch {state.epoch + 1} after {state.asked:,} of "
            f"{trainer.queries_per_epoch:,} queries"
        )
    return {
        "run": str(writer.path),
        "data": data.name,
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "seconds": state.seconds,
        "valid": None,
        "test": None,
        "stopped": True,
        "saved": is_saved,
        "already_finished": False,
    }


def _resumable(data: Dataset, path: Path, config: Config) -> Checkpoint | None:
    """The checkpoint of the run in `path`, which must fit what is asked for, or None."""
    checkpoint = read_checkpoint(path)
    if checkpoint is not None:
        _check_same(data, path, config)
    return checkpoint


def _finished(data: Dataset, path: Path, config: Config) -> dict[str, Any]:
    """The result of a finished run whose checkpoint is gone."""
    _check_same(data, path, config)
    result = _saved_result(path)
    if result is None:
        raise InputError(
            f"{path}: holds a finished run, but neither its result nor a checkpoint to go on from; "
            "ask it with `oneshot evaluate`, or train into another directory"
        )
    return {**result, "already_finished": True}


def _check_same(data: Dataset, path: Path, config: Config) -> None:
    """Raise unless the run in `path` has this configuration and this graph."""
    if to_toml(run_config(path)) != to_toml(config):
        raise InputError(
            f"{path}: was started with another configuration; resume it without --config and "
            "--set, or with the same ones, or train into another directory"
        )
    if read_json(path / GRAPH).get("fingerprint") != data.graph.fingerprint:
        raise InputError(f"{path}: the graph has changed since this run was started")


def _saved_result(path: Path) -> dict[str, Any] | None:
    """The result of a finished run; None if it, or the calibration before it, is not whole."""
    try:
        read_calibration(path / CALIBRATION)
        check_listed(path, RESULT)
        result = read_json(path / RESULT)
    except InputError:
        return None
    reports = [result.get("valid"), result.get("test")]
    is_whole = {"run", "data", "epochs", "best_epoch", "seconds", "test"} <= result.keys() and all(
        isinstance(report, dict)
        and all(isinstance(report.get(name), int | float) for name in REPORTED)
        for report in reports
        if report is not None
    )
    return result if is_whole and result["valid"] is not None else None


def _tell(data: Dataset, path: Path, resume: bool, checkpoint: Checkpoint | None) -> None:
    """Say what a user should know before the long work starts."""
    for remark in data.notes:
        console.note(remark)
    if checkpoint is None and resume:
        console.note(f"{path}: there is no checkpoint to resume from; training starts afresh")
    if checkpoint is None and holds_training(path):
        advice = "" if resume else "; to go on with a run, use --resume"
        console.note(
            f"{path}: holds an older run, which is replaced when the first epoch is done{advice}"
        )


def _mend(path: Path, checkpoint: Checkpoint, data: Dataset) -> None:
    for name in mend_run(path, checkpoint, data.graph):
        console.note(f"{path / name}: was missing or damaged; restored from the checkpoint")


def _evaluated(
    reasoner: Reasoner,
    data: Dataset,
    split: str,
    config: Config,
    display: ProgressDisplay,
    trainer: Trainer,
) -> dict[str, Any] | None:
    """The evaluation of a split as JSON, or None if it is empty."""
    facts, team = data.facts(split), trainer.team
    if not len(facts):
        return None
    shown = display.evaluating(split, len(team.dealt(2 * len(facts))))

    def progress(done: int) -> None:
        shown(done)
        trainer.check_going_on_alone()

    report: Report = evaluate(
        reasoner,
        facts,
        data.known,
        batch_size=config.training.valid_batch_size or None,
        progress=progress,
        team=team,
    )
    return report.as_dict()


def _peak_gpu_megabytes(device: torch.device) -> float | None:
    """The most memory that tensors had on the GPU at one time."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)


def _clean(path: Path) -> None:
    """Remove temporary files that a killed process left behind."""
    remove_staged(path)
    remove_leftovers(path, CONTENTS)
    remove_leftovers((path / CHECKPOINT).parent, (CHECKPOINT.name,))
