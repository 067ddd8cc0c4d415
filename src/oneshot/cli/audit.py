"""The command that finds the most doubtful facts of a graph."""

import time
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.options import (
    BatchSizeOption,
    DeviceOption,
    FactsOutOption,
    GraphOption,
    JsonOption,
    RelationsOption,
    RunArgument,
    SeedOption,
    SetOption,
    check_facts_output,
    open_reasoner,
    output,
    print_facts,
)
from oneshot.errors import InputError
from oneshot.system import console


def audit(
    run: RunArgument,
    relation: RelationsOption = None,
    top: Annotated[int, typer.Option(min=1, help="Maximum number of facts to show.")] = 100,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of facts to judge, sampled with --seed.", show_default="all"
        ),
    ] = None,
    out: FactsOutOption = None,
    batch_size: BatchSizeOption = None,
    data: GraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Find the facts of the graph that look most doubtful, each judged while it is hidden."""
    target = None if out is None else output(out)
    if target is not None and not isinstance(target, Path):
        raise InputError(f"{target}: audit writes only files; choose a .tsv, .csv or .parquet file")
    check_facts_output(target, run, data)
    reasoner = open_reasoner(run, data, settings, seed, device)
    started = time.perf_counter()
    with console.progress_bar() as progress:
        total = 2 * min(limit or reasoner.graph.num_facts, reasoner.graph.num_facts)
        task = progress.add_task("judging", total=None if relation else total)
        found = reasoner.audit(
            relations=relation,
            limit=limit,
            seed=seed,
            batch_size=batch_size,
            progress=lambda done: progress.advance(task, done),
        )
    print_facts("most doubtful facts", found[:top], target, json, time.perf_counter() - started)
