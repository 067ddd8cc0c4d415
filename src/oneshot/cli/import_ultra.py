"""The command that converts a checkpoint of ULTRA into a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oneshot.cli.options import DeviceOption, JsonOption, RunOption, SeedOption, SetOption
from oneshot.system import console


def import_ultra(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Checkpoint of ULTRA.")],
    out: RunOption,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Convert a checkpoint of ULTRA into a run without a graph of its own; use it with --data.

    By default it reasons on subgraphs of 1,000 entities. For whole graphs, as in ULTRA, set
    sampler.name=ppr, sampler.entity_ratio=1.0 and sampler.keep_unreachable=true.
    """
    from oneshot.config import from_table
    from oneshot.runs.ultra import import_ultra as read_checkpoint
    from oneshot.system.devices import find_device

    find_device(device)
    sampler: dict[str, Any] = {"name": "fitted"}
    if not any(change.strip().startswith("sampler.entity_ratio") for change in settings or []):
        sampler["max_entities"] = 1000
    changes = [f"training.seed={seed}", *(settings or [])]
    shape = vars(read_checkpoint(file, out, from_table({"sampler": sampler}, changes)))
    if json:
        console.print_json({"run": str(out), "predictor": shape})
        return
    rows = [(key, str(shape[key])) for key in ("network", "dim", "num_layers", "relation_layers")]
    console.print_table(str(out), ("option", "value"), rows)
