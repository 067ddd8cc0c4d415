"""The command that finds the most likely missing facts of a graph."""

import time
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.options import (
    UNSAVED,
    BatchSizeOption,
    DeviceOption,
    GraphOption,
    HeadTypeOption,
    JsonOption,
    LinksOutOption,
    RelationsOption,
    RunArgument,
    SeedOption,
    SetOption,
    check_facts_output,
    check_names_output,
    interruptible,
    open_with_held_out,
    output,
    print_facts,
    resumed,
    run_identity,
)
from oneshot.system import console


def discover(
    run: RunArgument,
    relation: RelationsOption = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            "--entity",
            metavar="ENTITY",
            help="Only facts with this head or tail; may be repeated.",
        ),
    ] = None,
    types: HeadTypeOption = None,
    top: Annotated[int, typer.Option(min=1, help="Maximum number of facts.")] = 100,
    min_probability: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Minimum probability of a fact.")
    ] = 0.0,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Also list facts of the validation and test splits, which the graph lacks.",
        ),
    ] = False,
    out: LinksOutOption = None,
    batch_size: BatchSizeOption = None,
    data: GraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Find the most likely facts that are in no split of the data.

    With --out FILE, an interrupted discovery is resumed by the same command.
    """
    from oneshot.batch.job_progress import DiscoveryFile
    from oneshot.reasoner.discovery import Search, num_queries
    from oneshot.reasoner.discovery import discover as discovered

    target = None if out is None else output(out)
    check_facts_output(target, run, data)
    reasoner, known = open_with_held_out(run, data, settings, seed, device)
    check_names_output(target, reasoner)
    search = Search.named(reasoner, relation, entity, types or (), top, min_probability)
    if held_out:
        known = None
    elif known is None:
        console.note(
            f"{run}: the splits of its data are not known, so facts that were held out in the "
            "training may be listed; with --data, give the data set"
        )
    started = time.perf_counter()
    file = None
    if isinstance(target, Path):
        identity = run_identity(run, settings, None if data is None else reasoner, known)
        file = DiscoveryFile.beside(target, identity, search)
    begun = resumed(file)
    with interruptible(file, UNSAVED), console.progress_bar() as progress:
        task = progress.add_task("asking", total=num_queries(reasoner, search))
        found = discovered(
            reasoner,
            search,
            batch_size,
            lambda done: progress.advance(task, done),
            begun,
            (lambda _: None) if file is None else file.keep,
            known,
        )
    print_facts("most likely missing facts", found, target, json, time.perf_counter() - started)
    if file is not None:
        file.remove()
