"""Reporting: measure the rows of a table one after the other, and write what came out.

The report is written after each row. Run again, with the same settings, it goes on with the rows
that are missing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oneshot.bench.measuring import hardware
from oneshot.console import are_numbers
from oneshot.errors import InputError
from oneshot.files import write_json, write_text
from oneshot.paper.table import Figures, Table
from oneshot.paper.workbench import Workbench


def make_report(
    table: Table, bench: Workbench, tell: Callable[[str], None] = lambda _: None
) -> Figures:
    """Measure what is missing of a table; write `NAME.json`, `NAME.md` and its picture.

    `tell` is called with a line before each row. → the report, with `complete`: whether no row
    is missing (the workbench's time may have run out).
    """
    path = bench.out / f"{table.name}.json"
    done = _measured(path, bench.settings)
    planned = list(table.plan(bench))
    rows: list[Figures] = []
    missing = 0
    for number, row in enumerate(planned, 1):
        found = None
        if not row.derived:
            found = next((old for old in done if _is_of(old, row.key)), None)
        if found is None and not bench.has_time and not row.derived:
            missing += 1
            continue
        if found is None:
            shown = ", ".join(f"{key} {value}" for key, value in row.key.items())
            tell(f"{table.name}, row {number} of {len(planned)}: {shown}")
            # A row that is read from a file knows where it was measured.
            found = {"hardware": hardware(bench.device), **row.key, **row.measure()}
        found["paper"] = dict(row.paper)
        rows.append(found)
        report = {
            "name": table.name,
            "title": table.title,
            "settings": bench.settings,
            "complete": len(rows) == len(planned),
            "finding": table.finding(rows),
            "rows": rows,
        }
        write_json(path, report)
    if not rows:
        raise InputError(f"{table.name}: there was no time for a single row; give more --minutes")
    if missing:
        tell(f"{table.name}: {missing} rows are left; run it again to measure them")
    if table.draw is not None:
        picture = bench.out / f"{table.name}.png"
        table.draw(rows, picture)
        report["picture"] = picture.name
        write_json(path, report)
    write_text(bench.out / f"{table.name}.md", as_markdown(table, report))
    return report


def as_markdown(table: Table, report: Figures, heading: str = "#", pictures: str = "") -> str:
    """The report for people: title, table with the paper's figures in brackets, finding."""
    rows = report["rows"]
    # A column in which no row has anything says nothing.
    columns = [
        column
        for column in table.columns
        if any(row.get(column.figure) is not None for row in rows)
    ]
    cells = [[column.cell(row) for row in rows] for column in columns]
    marks = ["---", *("---:" if are_numbers(column) else "---" for column in cells[1:])]
    lines = [
        f"{heading} {table.title}",
        "",
        *(
            f"| {' | '.join(line)} |"
            for line in ([column.head for column in columns], marks, *zip(*cells, strict=True))
        ),
        "",
    ]
    if any(row.get("paper") for row in rows):
        lines += ["The paper's figures are in brackets.", ""]
    if report["finding"]:
        lines += [report["finding"], ""]
    if not report["complete"]:
        lines += ["Not all rows are measured yet.", ""]
    if "picture" in report:
        lines += [f"![{table.title}]({pictures}{report['picture']})", ""]
    return "\n".join([*lines, f"*{_machine(rows[-1]['hardware'])}.*", ""])


def read_report(path: Path) -> Figures | None:
    """The report in a file, or None if there is none."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no report; remove it to measure afresh") from error
    if not isinstance(value, dict) or not isinstance(value.get("rows"), list):
        raise InputError(f"{path}: is no report; remove it to measure afresh")
    return value


def _measured(path: Path, settings: Figures) -> list[Figures]:
    """The rows of an earlier report with the same settings."""
    before = read_report(path)
    if before is None:
        return []
    if before.get("settings") != settings:
        raise InputError(
            f"{path}: was measured with other settings; use those, remove it, or write to another "
            "directory (--out)"
        )
    return [row for row in before["rows"] if isinstance(row, dict)]


def _is_of(row: Figures, key: Figures) -> bool:
    return all(name in row and row[name] == value for name, value in key.items())


def _machine(hardware: Figures) -> str:
    where = hardware.get("gpu") or f"{hardware['cores']} cores of {hardware['processor']}"
    revision = hardware.get("revision") or "unknown"
    return f"{where}, torch {hardware['versions']['torch']}, {hardware['date']}, {revision}"
