"""The command that trains a reasoner."""

import os
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.display.training import TrainingDisplay
from oneshot.cli.evaluate import print_report
from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    RunOption,
    SetOption,
    WeightsOption,
    load_data,
    run_directory,
    shown,
)
from oneshot.cli.plan import MinutesOption, as_json, expectation, note_excess, print_plan
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    import torch

    from oneshot.config import Config
    from oneshot.data.load import Dataset
    from oneshot.training.observer import Observer
    from oneshot.training.plan import Plan

_MINUTES = "training.minutes"

ConfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Configuration file in TOML.")
]
PlanOption = Annotated[
    bool,
    typer.Option(
        "--plan/--no-plan",
        help="Choose unset options to suit data and machine, or use the fixed defaults. A "
        "configuration file is used as it is.",
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume the run in --out, with its own configuration unless --config or --set is "
        "given; --minutes may differ.",
    ),
]
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        parser=run_directory,
        help="Run whose parameters to start from, also foundation or hf://OWNER/NAME; its "
        "relations are matched by name, and new ones are added.",
        show_default="random parameters",
    ),
]
TensorBoardOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Also write training curves for TensorBoard to DIR."),
]
MLflowOption = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="ADDRESS",
        help="Also log settings and curves to the MLflow tracking server at ADDRESS, "
        "sqlite:///FILE or a directory.",
    ),
]
WandbOption = Annotated[
    str | None,
    typer.Option(
        "--wandb",
        metavar="PROJECT",
        help="Also log settings and curves to PROJECT of Weights & Biases.",
    ),
]
TrainingSeedOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=2**63 - 1, help="Random seed.", show_default="that of the configuration"
    ),
]


def train(
    source: DataArgument,
    out: RunOption,
    config: ConfigOption = None,
    settings: SetOption = None,
    minutes: MinutesOption = None,
    plan: PlanOption = True,
    initial: FromOption = None,
    weights: WeightsOption = None,
    resume: ResumeOption = False,
    tensorboard: TensorBoardOption = None,
    mlflow: MLflowOption = None,
    wandb: WandbOption = None,
    json: JsonOption = False,
    seed: TrainingSeedOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train a reasoner, keep the best epoch by validation MRR, and evaluate it on the test split.

    Unset options are chosen first, so that training and evaluation fit the time budget (`oneshot
    plan` only shows the choice). With training.epochs set and no --minutes, there is no time limit.
    Ctrl-C stops training and evaluates the best epoch so far; a second Ctrl-C exits at once.
    """
    started = time.perf_counter()  # loading data counts towards the time budget
    from oneshot.config import from_table
    from oneshot.runs.layout import CONFIG
    from oneshot.runs.run import Run
    from oneshot.runs.train import train_run
    from oneshot.runs.transfer import transfer_settings
    from oneshot.system.devices import find_device
    from oneshot.training.interrupt import interrupted, stop_request

    torch_device = find_device(device)
    changes = _changes(settings, seed, minutes)
    start = None if initial is None else Run.open(initial)
    if start is not None and not resume:
        Run(out).check_start(start)
    if start is not None and config is None:
        changes = [*transfer_settings(start), *changes]
    if tensorboard is not None and tensorboard.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{tensorboard} is inside the run; choose a directory outside of {out}")
    loggers = _loggers(out.name, tensorboard, mlflow, wandb)
    is_resumed = resume and (out / CONFIG).is_file()
    found = None
    if config is None and not is_resumed and plan and not _has_company():
        given = from_table({}, changes)  # report wrong settings before the data are read
        dataset = load_data(source, given.training.seed, weights)
        Run(out).check_destination(dataset.graph)
        found = _planned(dataset, torch_device, changes, given.training.seed, is_shown=not json)
        chosen = found.config
    else:
        chosen = _configuration(config, changes, out if is_resumed else None)
        dataset = load_data(source, chosen.training.seed, weights)
    with stop_request() as should_stop, interrupted() as is_interrupted:
        result = train_run(
            dataset,
            out,
            chosen,
            torch_device,
            resume,
            observers=[TrainingDisplay(), *loggers],
            should_stop=should_stop,
            interrupted=is_interrupted,
            started=started,
            messages=console.note,
            initial=start,
        )
    if not result:  # the first of several processes reports
        return
    if json:
        console.print_json(result | {"plan": None if found is None else as_json(found)})
    else:
        _print_result(dataset.name, out, result)
    if result.get("stopped"):
        if not result["saved"]:
            raise typer.Exit(
                1
            )  # so that an older run in this directory is not mistaken for this one
        option = "" if weights is None else f" --weights {shlex.quote(weights)}"
        console.note(f"resume with: oneshot train {shown(source)}{option} --out {out} --resume")


def _loggers(
    name: str, tensorboard: Path | None, mlflow: str | None, wandb: str | None
) -> "list[Observer]":
    """The observers that log a training elsewhere; `name`: that of the run."""
    from oneshot.training.experiment_tracking import MLflow, WeightsAndBiases
    from oneshot.training.tensorboard import TensorBoard

    found: list[Observer] = []
    if tensorboard is not None:
        found.append(TensorBoard(tensorboard))
    if mlflow is not None:
        found.append(MLflow(mlflow, name))
    if wandb is not None:
        found.append(WeightsAndBiases(wandb, name))
    return found


def _changes(settings: list[str] | None, seed: int | None, minutes: float | None) -> list[str]:
    """All options set on the command line, as SECTION.KEY=VALUE."""
    if minutes is not None and not 0 < minutes <= 10**6:
        raise InputError(f"--minutes must be above 0 and at most 1,000,000, not {minutes:g}")
    changes = list(settings or [])
    changes += [] if seed is None else [f"training.seed={seed}"]
    changes += [] if minutes is None else [f"{_MINUTES}={minutes!r}"]
    return changes


def _planned(
    data: "Dataset", device: "torch.device", changes: list[str], seed: int, is_shown: bool
) -> "Plan":
    """The plan for unset options; `is_shown`: also print it as a table on stdout."""
    from oneshot.training.plan import make_plan

    try:
        with console.status("planning"):
            found = make_plan(data, None, device, changes, seed)
    except KeyboardInterrupt:
        console.note("stopped while planning; nothing was written")
        raise typer.Exit(130) from None
    if is_shown:
        print_plan(data.name, found)
    console.note(expectation(found))
    note_excess(found)
    return found


def _print_result(name: str, out: Path, result: dict[str, Any]) -> None:
    """Print the metrics of a training, if there are any."""
    if result["valid"] is None:
        return
    if result["already_finished"]:
        console.note(f"{out}: this run is already finished")
    split = "valid" if result["test"] is None else "test"
    print_report(f"{name}, {split} split", result[split], result.get("baseline_mrr"))
    console.note(f"run: {out}")


def _has_company() -> bool:
    """Whether this is one of several processes, whose measurements for a plan would differ."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    if os.environ.get("RANK", "0") == "0":
        console.note("distributed training: unset options have their defaults")
    return True


def _configuration(file: Path | None, changes: list[str], resumed: Path | None) -> "Config":
    """The configuration to train with: of a file with changes, or of the resumed run.

    A resumed run keeps its time budget unless another one is given.
    """
    from oneshot.config import from_table, read_config
    from oneshot.runs.run import Run

    if resumed is not None and file is None:
        return Run.open(resumed, changes).config
    chosen = from_table({}, changes) if file is None else read_config(file, changes)
    has_time = any(change.partition("=")[0].strip() == _MINUTES for change in changes)
    if resumed is None or has_time or chosen.training.minutes:
        return chosen
    training = replace(chosen.training, minutes=Run.open(resumed).config.training.minutes)
    return replace(chosen, training=training)
