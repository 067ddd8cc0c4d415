"""The command that finds the most doubtful facts of a graph."""

import time
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.options import (
    UNSAVED,
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
    check_names_output,
    interruptible,
    open_with_held_out,
    output,
    print_facts,
    resumed,
    run_identity,
)
from oneshot.errors import InputError
from oneshot.system import console


def audit(
    run: RunArgument,
    relation: RelationsOption = None,
    top: Annotated[
        int, typer.Option(min=1, help="Maximum number of facts to show; --out writes all.")
    ] = 100,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of facts to judge, sampled with --seed.", show_default="all"
        ),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Also judge the facts of the validation and test splits, which the graph lacks.",
        ),
    ] = False,
    out: FactsOutOption = None,
    batch_size: BatchSizeOption = None,
    data: GraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Find the facts of the graph that look most doubtful, each judged while it is hidden.

    With --out FILE, an interrupted audit is resumed by the same command.
    """
    from oneshot.batch.job_progress import AuditFile
    from oneshot.reasoner.audit import AuditOptions
    from oneshot.reasoner.audit import audit as audited

    target = None if out is None else output(out)
    if target is not None and not isinstance(target, Path):
        raise InputError(
            f"{target}: audit writes only files; choose .tsv, .csv, .parquet, .nt or .ttl"
        )
    check_facts_output(target, run, data)
    reasoner, further = open_with_held_out(run, data, settings, seed, device)
    check_names_output(target, reasoner)
    if not held_out:
        further = None
    elif further is None:
        raise InputError(
            f"{run}: the splits of its data are not known; with --data, give the data set"
        )
    started = time.perf_counter()
    options = AuditOptions.named(reasoner, relation, limit, seed)
    file = None
    if target is not None:
        identity = run_identity(run, settings, None if data is None else reasoner, further)
        file = AuditFile.beside(target, identity, options)
    begun = resumed(file)
    with interruptible(file, UNSAVED), console.progress_bar() as progress:
        every = reasoner.graph.num_facts + (0 if further is None else len(further))
        total = None if relation else 2 * min(limit or every, every)
        task = progress.add_task("judging", total=total)
        found = audited(
            reasoner,
            options,
            batch_size,
            lambda done: progress.advance(task, done),
            begun,
            (lambda _: None) if file is None else file.keep,
            further,
        )
    seconds = time.perf_counter() - started
    print_facts("most doubtful facts", found, target, json, seconds, top)
    if file is not None:
        file.remove()
