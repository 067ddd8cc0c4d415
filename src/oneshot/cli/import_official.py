"""The command that converts a checkpoint of the official code into a run."""

from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.options import (
    DeviceOption,
    JsonOption,
    RunOption,
    SeedOption,
    SetOption,
    load_data,
)
from oneshot.system import console


def import_official(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Checkpoint of the official code.")],
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="Data set that it was trained on.")
    ],
    out: RunOption,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Convert a checkpoint of the official code into a run.

    The checkpoint lacks some options; set them with --set: predictor.activation (default relu),
    predictor.shortcut (default false) and the sampler.
    """
    from oneshot.config import from_table
    from oneshot.runs.official import import_official as read_checkpoint
    from oneshot.system.devices import find_device

    find_device(device)
    config = from_table({}, list(settings or []))
    reasoner = read_checkpoint(file, load_data(data, seed), config)
    reasoner.save(out)
    shape = vars(reasoner.predictor.config)
    if json:
        console.print_json({"run": str(out), "predictor": shape})
        return
    console.print_table(
        str(out), ("option", "value"), [(key, str(value)) for key, value in shape.items()]
    )
