"""Report of a table: measures its rows one after another and writes the results.

The report is written after each row. Another run with the same settings continues with the missing
rows.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oneshot.errors import InputError
from oneshot.experiments.baselines.peers import OURS
from oneshot.experiments.bench.measure import hardware, sources
from oneshot.experiments.tables.table import Figures, Row, Table
from oneshot.experiments.tables.workbench import Workbench, facts_digest
from oneshot.system.checksums import read_sealed_json, write_sealed_json
from oneshot.system.console import are_numbers
from oneshot.system.files import held, write_text

_FACTS, _CONFIG = "facts_digest", "config_digest"


def make_report(
    table: Table, bench: Workbench, tell: Callable[[str], None] = lambda _: None
) -> Figures:
    """Measure the missing rows of a table; write `NAME.json`, `NAME.md` and its plot.

    `tell` is called with a line before each row. Rows of an earlier report that are not requested
    now stay in it. Returns the report, with `complete`: whether no row is missing (the time of the
    workbench may be over).
    """
    bench.out.mkdir(parents=True, exist_ok=True)
    path = bench.out / f"{table.name}.json"
    lock = bench.out / f".{table.name}.lock"
    busy = (
        f"{path}: another process is measuring this table; wait for it, or choose another directory"
    )
    with held(lock, busy):
        try:
            return _make_report(table, bench, path, tell)
        finally:
            lock.unlink(missing_ok=True)


def _make_report(
    table: Table, bench: Workbench, path: Path, tell: Callable[[str], None]
) -> Figures:
    planned = list(table.plan(bench))
    is_derived = all(row.derived for row in planned)
    older = [] if is_derived else _completed(_measured(path, bench.settings), planned, bench)
    _check_foreign(table, path)
    keys = [_whole_key(table, bench, row) for row in planned]
    found: list[Figures | None] = [
        None if row.derived else next((old for old in older if _is_of(old, key)), None)
        for row, key in zip(planned, keys, strict=True)
    ]
    # Rows of another plan: with other peers, or with data or packages that are missing now.
    others = [old for old in older if not any(_is_of(old, row.key) for row in planned)]
    report: Figures = {}

    def write() -> None:
        mine = [
            {**row, "paper": dict(asked.paper)}
            for row, asked in zip(found, planned, strict=True)
            if row is not None
        ]
        rows = mine + others
        report.update(
            name=table.name,
            title=table.title,
            settings=bench.settings,
            complete=None not in found,
            finding=table.finding(table.judged(rows)),
            rows=rows,
        )
        write_sealed_json(path, report)
        write_text(bench.out / f"{table.name}.md", as_markdown(table, report))

    if announced := _announced(table, planned, found):
        tell(announced)
    for number, (row, key) in enumerate(zip(planned, keys, strict=True)):
        if found[number] is None and (row.derived or bench.has_time):
            if not row.derived:
                shown = ", ".join(f"{key} {value}" for key, value in row.key.items())
                tell(f"{table.name}, row {number + 1} of {len(planned)}: {shown}")
            started = time.perf_counter()
            figures = row.measure()
            # A row that is read from a file contains its machine.
            machine = figures["hardware"] if "hardware" in figures else hardware(bench.device)
            measured = {"hardware": machine, **key, **figures}
            if not row.derived:
                measured["row_seconds"] = round(time.perf_counter() - started, 1)
            found[number] = measured
            write()
            row.written()
    if all(row is None for row in found) and not others:
        raise InputError(
            "the time was too short for a single row; run again, or increase --minutes"
        )
    if missing := found.count(None):
        left = "1 row is left; run again to measure it"
        left = left if missing == 1 else f"{missing} rows are left; run again to measure them"
        tell(f"{table.name}: {left}")
    write()
    if table.draw is not None:
        picture = bench.out / f"{table.name}.png"
        table.draw(table.judged(report["rows"]), picture)
        report["picture"] = picture.name
        write()
    return report


def as_markdown(table: Table, report: Figures, heading: str = "#", pictures: str = "") -> str:
    """The report as Markdown: title, table with the paper's values in brackets, finding."""
    rows = table.shown(report["rows"])
    # A column without any value is omitted.
    columns = [
        column
        for column in table.columns
        if any(row.get(column.figure) is not None for row in rows)
    ]
    cells = [[_in_markdown(column.cell(row)) for row in rows] for column in columns]
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
        lines += ["The paper's values are in brackets.", ""]
    if any(row.get("spread") for row in rows):
        lines += ["Of several seeds: the mean ± the standard deviation.", ""]
    if table.note:
        lines += [table.note, ""]
    # Computed again: the report may be older than the sentence.
    if finding := table.finding(table.judged(report["rows"])):
        lines += [finding, ""]
    if not report["complete"]:
        lines += ["Not all rows are measured yet.", ""]
    if "picture" in report:
        lines += [f"![{table.title}]({pictures}{report['picture']})", ""]
    machines = sources(row["hardware"] for row in report["rows"] if row["hardware"])
    return "\n".join([*lines, f"*{'; '.join(machines)}.*", ""])


def _in_markdown(cell: str) -> str:
    """An escaped cell of a table: names may contain any character."""
    return " ".join(cell.replace("|", "\\|").split())


def read_report(path: Path) -> Figures | None:
    """The report in a file, or None if there is none."""
    if not path.exists():
        return None
    advice = "write to another directory (--out), or remove it"
    try:
        value = read_sealed_json(path)
        rows = value["rows"]
        is_report = all(isinstance(row, dict) and isinstance(row["hardware"], dict) for row in rows)
    except (InputError, KeyError, TypeError) as error:
        raise InputError(f"{path}: incomplete report; {advice}") from error
    if not isinstance(rows, list) or not is_report:
        raise InputError(f"{path}: incomplete report; {advice}")
    return value


def _measured(path: Path, settings: Figures) -> list[Figures]:
    """The rows of an earlier report with the same settings."""
    before = read_report(path)
    if before is None:
        return []
    kept = before.get("settings")
    kept = kept if isinstance(kept, dict) else {}
    names = dict.fromkeys([*settings, *kept])  # a setting that is not given now was given then
    differ = [name for name in names if kept.get(name) != settings.get(name)]
    if differ:
        raise InputError(
            f"{path} was measured with other settings ({', '.join(differ)}); use those, or write "
            "to another directory (--out)"
        )
    rows: list[Figures] = before["rows"]
    return rows


def _completed(rows: Sequence[Figures], planned: Sequence[Row], bench: Workbench) -> list[Figures]:
    """Rows of an earlier report, with the parts of their key that earlier versions did not have.

    Those versions measured one seed, short trainings, and no system but ours.
    """
    later = {"seed": bench.seed, "converged": False, "system": OURS}
    names = [name for name in later if any(name in row.key for row in planned)]
    return [{**{name: later[name] for name in names}, **row} for row in rows]


def _announced(table: Table, planned: Sequence[Row], found: Sequence[Figures | None]) -> str:
    """The estimated time of the missing rows, if it is known."""
    pairs = zip(planned, found, strict=True)
    missing = [row for row, old in pairs if old is None and not row.derived]
    seconds = sum(row.seconds for row in missing if row.seconds is not None)
    if not seconds:
        return ""
    return (
        f"{table.name}: the {len(missing)} missing rows take about {seconds / 3600:.1f} hours on "
        "one NVIDIA H200; --minutes limits a call, and the next one resumes"
    )


def _check_foreign(table: Table, path: Path) -> None:
    """Raise if a table or plot with the report's name exists that this command did not write."""
    text, picture = path.with_suffix(".md"), path.with_suffix(".png")
    if path.exists() or _begins_with(text, f"# {table.title}\n"):
        return
    for other in (text, picture):
        if other.exists():
            raise InputError(f"{other} was not written by this command; choose another --out")


def _begins_with(path: Path, text: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(text.encode())) == text.encode()


def _whole_key(table: Table, bench: Workbench, row: Row) -> Figures:
    """The identity of a row, with digests of its facts and configuration."""
    if row.derived:
        return row.key
    key = dict(row.key)
    if table.by_name and "data" in key:
        key[_FACTS] = facts_digest(bench.dataset(key["data"]))
    if row.config is not None:
        key[_CONFIG] = row.config
    return key


def _is_of(row: Figures, key: Figures) -> bool:
    # Rows of earlier versions have no digest of the facts.
    return all(
        row.get(name, value if name == _FACTS else None) == value for name, value in key.items()
    )
