"""The command that finds the most likely missing facts of a graph."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oneshot.cli.options import (
    BatchSizeOption,
    DeviceOption,
    GraphOption,
    JsonOption,
    LinksOutOption,
    RelationsOption,
    RunArgument,
    SeedOption,
    SetOption,
    check_facts_output,
    open_reasoner,
    output,
    print_facts,
)
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.batch.discovery import DiscoveryFile
    from oneshot.data.sources import Address
    from oneshot.reasoner.discovery import Search
    from oneshot.reasoner.reasoner import Reasoner


def discover(
    run: RunArgument,
    relation: RelationsOption = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            "--entity", metavar="ENTITY", help="Only facts with this head; may be repeated."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Maximum number of facts.")] = 100,
    min_probability: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Minimum probability of a fact.")
    ] = 0.0,
    out: LinksOutOption = None,
    batch_size: BatchSizeOption = None,
    data: GraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Find the most likely facts that the graph lacks.

    With --out FILE, an interrupted discovery is resumed by the same command.
    """
    from oneshot.reasoner.discovery import Search, num_queries
    from oneshot.reasoner.discovery import discover as discovered

    target = None if out is None else output(out)
    check_facts_output(target, run, data)
    reasoner = open_reasoner(run, data, settings, seed, device)
    started = time.perf_counter()
    search = Search.named(reasoner, relation, entity, top, min_probability)
    file = _progress_file(target, run, settings, None if data is None else reasoner, search)
    begun, message = (None, None) if file is None else file.read()
    if message is not None:
        console.note(message)
    if begun is not None:
        console.note(f"resuming the interrupted discovery: {begun.queries:,} queries are done")
    try:
        with console.progress_bar() as progress:
            task = progress.add_task("asking", total=num_queries(reasoner, search))
            found = discovered(
                reasoner,
                search,
                batch_size,
                lambda done: progress.advance(task, done),
                begun,
                (lambda _: None) if file is None else file.keep,
            )
    except KeyboardInterrupt:
        if file is not None and file.path.exists():
            console.note("stopped; run the same command again to resume")
        raise
    print_facts("most likely missing facts", found, target, json, time.perf_counter() - started)
    if file is not None:
        file.remove()


def _progress_file(
    target: "Path | Address | None",
    run: Path,
    settings: list[str] | None,
    other: "Reasoner | None",
    search: "Search",
) -> "DiscoveryFile | None":
    """The file of the progress, if facts are written to a file; `other`: on another graph."""
    from oneshot.batch.discovery import DiscoveryFile
    from oneshot.batch.source import identity_of
    from oneshot.runs.run import Run

    if not isinstance(target, Path):
        return None
    graph = None if other is None else other.graph
    return DiscoveryFile.beside(target, identity_of(Run.open(run, settings or ()), graph), search)
