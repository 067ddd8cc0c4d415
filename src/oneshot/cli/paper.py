"""The command that reproduces the tables of the paper."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.display.search import SearchDisplay
from oneshot.cli.display.training import TrainingDisplay
from oneshot.cli.options import DeviceOption, JsonOption, SeedOption, SetOption, download, parts
from oneshot.errors import InputError, OneshotError, UnknownNameError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.experiments.paper import Table, Workbench

ALL = "all"
REPORTS, QUICK_REPORTS = Path("reports"), Path("reports") / "quick"


def paper(
    name: Annotated[
        str, typer.Argument(metavar="TABLE", help="Name of a table, `all`, or `list`.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA,...",
            help="Data sets, comma-separated.",
            show_default="those of the table",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for reports and trained runs.",
            show_default=f"{REPORTS}, {QUICK_REPORTS} with --quick",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use a small generated graph, as a smoke test.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Start no further row after this many minutes.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Number of seeds of each training, from --seed on.")
    ] = 1,
    converged: Annotated[
        bool,
        typer.Option(
            "--converged", help="Train until validation stops improving, not the short trainings."
        ),
    ] = False,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Reproduce a table or figure of the paper; a second call resumes where the first stopped."""
    from oneshot.config import from_table
    from oneshot.errors import require
    from oneshot.experiments.paper import TABLES, Workbench
    from oneshot.system.devices import find_device
    from oneshot.training.interrupt import StopTraining, ended_by_sigterm

    if name.casefold() == "list":
        _print_tables(json)
        return
    if name.casefold() in (*TABLES, ALL):
        name = name.casefold()
    else:
        raise UnknownNameError.among("table", name, [*TABLES, ALL, "list"])
    if (seeds > 1 or converged) and name != ALL and not TABLES[name].keys:
        raise InputError(
            f"{name}: its rows are not trainings that --seeds and --converged can change; omit them"
        )
    if quick and data is not None:
        raise InputError("--quick uses its own data; omit --quick or --data")
    from_table({}, settings or ())  # report wrong names before the work starts
    require("matplotlib", "plot", "plotting the tables")
    if out is None:
        out = QUICK_REPORTS if quick else REPORTS
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose a directory")
    names = []
    if data is not None:  # a path may contain commas
        names = [data] if Path(data).exists() else list(dict.fromkeys(parts(data, "--data")))
    for source in names:
        download(source)
    bench = Workbench(
        out,
        find_device(device),
        seed,
        quick,
        names,
        settings or (),
        minutes,
        seeds=seeds,
        converged=converged,
        observers=[TrainingDisplay()],
        search_observer=SearchDisplay(),
        messages=console.note,
    )
    try:
        with ended_by_sigterm():
            reports, left_out = _measure(list(TABLES) if name == ALL else [name], bench, json)
    except (KeyboardInterrupt, StopTraining) as stop:
        console.note(f"stopped; run the same command again to resume ({out})")
        raise typer.Exit(143 if isinstance(stop, StopTraining) else 130) from None
    if json:
        console.print_json({"tables": reports, "left_out": left_out} if name == ALL else reports[0])


def _measure(
    names: list[str], bench: "Workbench", json: bool
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measure tables, and print them unless `json`. → the reports, and why others were skipped

    With several tables, those that cannot be measured are skipped; raises if all are skipped.
    """
    from oneshot.experiments.paper import TABLES, make_report

    reports: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for table in (TABLES[name] for name in names):
        if table.name == "claims" and left_out and not reports:
            break  # the verdicts are computed from the other tables
        try:
            # With `all`, only the tables of trainings have several seeds and lengths.
            chosen = bench if table.keys else dataclasses.replace(bench, seeds=1, converged=False)
            report = make_report(table, chosen, console.note)
        except OneshotError as error:
            if len(names) == 1:
                raise
            console.note(f"{table.name}: skipped: {error}")
            left_out[table.name] = str(error)
            continue
        reports.append(report)
        if not json:
            _print_report(table, report)
            console.note(f"report: {bench.out / table.name}.json")
    if not reports and left_out:
        raise InputError(f"no table could be measured: {next(iter(left_out.values()))}")
    return reports, left_out


def _print_report(table: "Table", report: dict[str, Any]) -> None:
    rows = table.shown(report["rows"])
    columns = [
        column
        for column in table.columns
        if any(row.get(column.figure) is not None for row in rows)
    ]
    console.print_table(
        table.title,
        [column.head for column in columns],
        [[column.cell(row) for column in columns] for row in rows],
    )
    for text in (table.note, report["finding"]):
        if text:
            console.print_text(text)


def _print_tables(json: bool) -> None:
    from oneshot.experiments.paper import TABLES

    if json:
        console.print_json({"tables": {name: table.title for name, table in TABLES.items()}})
        return
    console.print_table(
        "Tables of the paper", ("name", "title"), [(t.name, t.title) for t in TABLES.values()]
    )
