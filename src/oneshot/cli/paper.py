"""The command that measures the tables of the paper."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oneshot import console
from oneshot.cli.options import DeviceOption, JsonOption, SeedOption, SetOption, parts
from oneshot.errors import InputError, UnknownNameError

ALL = "all"


def paper(
    name: Annotated[
        str, typer.Argument(metavar="TABLE", help="The table's name, `all`, or `list`.")
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA,...", help="Other data than the table's own."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where reports and trained runs are kept.")
    ] = Path("reports"),
    quick: Annotated[
        bool, typer.Option("--quick", help="On a small generated world, to see that it works.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Begin no row after so many minutes.")
    ] = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Measure a table or figure of the paper; run again, it goes on where it stopped."""
    from oneshot.devices import find_device
    from oneshot.errors import require
    from oneshot.paper import TABLES, Workbench, make_report
    from oneshot.stopping import StopTraining

    if name == "list":
        _print_tables(json)
        return
    if name != ALL and name not in TABLES:
        raise UnknownNameError.among("table", name, [*TABLES, ALL, "list"])
    require("matplotlib", "plot", "drawing the pictures of the tables")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; choose a directory")
    bench = Workbench(
        out,
        find_device(device),
        seed,
        quick,
        parts(data, "--data") if data is not None else (),
        settings or (),
        minutes,
    )
    reports: list[dict[str, Any]] = []
    for table in TABLES.values() if name == ALL else [TABLES[name]]:
        try:
            report = make_report(table, bench, console.note)
        except (KeyboardInterrupt, StopTraining) as stop:
            console.note(f"stopped; the same command goes on where it was ({out})")
            raise typer.Exit(143 if isinstance(stop, StopTraining) else 130) from None
        except InputError as error:
            if name != ALL:
                raise
            console.note(f"{table.name}: left out: {error}")
            continue
        reports.append(report)
        if not json:
            columns = [
                column
                for column in table.columns
                if any(row.get(column.figure) is not None for row in report["rows"])
            ]
            console.print_table(
                table.title,
                [column.head for column in columns],
                [[column.cell(row) for column in columns] for row in report["rows"]],
            )
            if report["finding"]:
                console.stdout.print(report["finding"])
            console.note(f"report: {out / table.name}.json")
    if not reports:
        raise InputError("no table could be measured")
    if json:
        console.print_json(reports[0] if name != ALL else {"tables": reports})


def _print_tables(json: bool) -> None:
    from oneshot.paper import TABLES

    if json:
        console.print_json({"tables": {name: table.title for name, table in TABLES.items()}})
        return
    console.print_table(
        "Tables of the paper", ("name", "title"), [(t.name, t.title) for t in TABLES.values()]
    )
