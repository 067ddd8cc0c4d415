"""The command that compares the predictor with other methods."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.display.training import TrainingDisplay
from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    SeedOption,
    SetOption,
    load_data,
    parts,
)
from oneshot.errors import InputError
from oneshot.system import console

PeersOption = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="NAME,...",
        help="Methods to compare with: frequency, complex-n3, nbfnet, redgnn, drum, transe, "
        "distmult, complex, rotate, quate, conve, pairre, triplere, autosf, compgcn, rgcn, "
        "nodepiece.",
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Configuration of our predictor, in TOML.")
]
EpochsOption = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of epochs per method.")
]
DimOption = Annotated[
    int | None,
    typer.Option(
        min=4,
        max=2**16,
        help="Embedding dimension of the embedding models.",
        show_default="128",
    ),
]
MinutesOption = Annotated[
    float | None, typer.Option(min=0, help="Start no further method after this many minutes.")
]
MinutesEachOption = Annotated[
    float | None,
    typer.Option(
        metavar="M",
        help="Time budget per method in minutes, for training and evaluation; without "
        "--config, our configuration is planned for it.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep finished rows and runs in DIR, and resume from them."),
]


def compare(
    source: DataArgument,
    peers: PeersOption = "distmult,complex,rotate",
    config: ConfigOption = None,
    settings: SetOption = None,
    epochs: EpochsOption = None,
    dim: DimOption = None,
    minutes: MinutesOption = None,
    minutes_each: MinutesEachOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Train our predictor and other methods on the same data, with the same ranking protocol."""
    from oneshot.config import from_table, read_config
    from oneshot.experiments.baselines.peers import check_packages, find_peer, has_pykeen
    from oneshot.experiments.baselines.pykeen_models import DIM
    from oneshot.experiments.compare import VIEWS, Comparison
    from oneshot.experiments.compare import compare as measure_all
    from oneshot.system.devices import find_device
    from oneshot.training.interrupt import StopTraining, ended_by_sigterm
    from oneshot.training.plan import check_minutes

    torch_device = find_device(device)
    check_minutes(minutes_each)
    names = [find_peer(name) for name in parts(peers, "--with")]
    if not has_pykeen():  # importing it is slow, so other errors are reported first
        check_packages(names)
    changes = [*(settings or []), f"training.seed={seed}"]
    ours = from_table({}, changes) if config is None else read_config(config, changes)
    is_planned = config is None and minutes_each is not None
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose a directory")
    dataset = load_data(source, seed)
    with ExitStack() as stack:
        is_temporary = out is None
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oneshot-")))
        bench = Comparison(
            out,
            torch_device,
            seed,
            minutes=minutes,
            data=dataset,
            peers=names,
            ours=None if is_planned else ours,
            changes=list(settings or []) if is_planned else (),
            max_epochs=epochs,
            dim=dim or DIM,
            minutes_each=minutes_each,
            observers=[TrainingDisplay()],
            messages=console.note,
        )
        try:
            with ended_by_sigterm():
                result = measure_all(bench, console.note)
        except (KeyboardInterrupt, StopTraining) as stop:
            kept = (
                "nothing is kept without --out" if is_temporary else f"to resume, use --out {out}"
            )
            console.note(f"stopped; {kept}")
            raise typer.Exit(143 if isinstance(stop, StopTraining) else 130) from None
    if json:
        console.print_json(result)
        return
    for view, columns in VIEWS.items():
        shown = [c for c in columns if any(row.get(c.figure) is not None for row in result["rows"])]
        console.print_table(
            f"{dataset.name}: {view}",
            [column.head for column in shown],
            [[column.cell(row) for column in shown] for row in result["rows"]],
        )
    console.print_text(result["finding"])
