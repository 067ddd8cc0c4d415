"""Table: a table or figure of the paper, as rows that are measured one after another."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneshot.experiments.tables.workbench import Workbench

Figures = dict[str, Any]
"""Named values, as JSON."""


@dataclass(frozen=True)
class Row:
    """A row that is to be measured.

    `key`: identifies the row in its table. `paper`: the paper's values, with the names of ours.
    `derived`: the values are read from files, and therefore computed again each time. `config`: a
    digest of the configuration, if it is read from a file; the row is measured again if it changes.
    `written` is called when the row is in the report. `seconds`: an estimate of the time of the
    measurement on one NVIDIA H200.
    """

    key: Figures
    measure: Callable[[], Figures]
    paper: Mapping[str, float] = field(default_factory=dict)
    derived: bool = False
    config: str | None = None
    written: Callable[[], None] = lambda: None
    seconds: float | None = None


@dataclass(frozen=True)
class Column:
    """A column of the printed table: its header, its value and its format."""

    head: str
    figure: str
    form: str = ""

    def cell(self, row: Figures) -> str:
        """Our value, its spread over several seeds, and the paper's in brackets if there is one."""
        text = self._written(row.get(self.figure))
        spread = row.get("spread", {}).get(self.figure)
        if spread is not None:
            text += f" ± {self._written(spread)}"
        published = row.get("paper", {}).get(self.figure)
        return text if published is None else f"{text} ({self._written(published)})"

    def _written(self, value: Any) -> str:
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return format(value, self.form) if isinstance(value, int | float) else str(value)


def _no_finding(rows: Sequence[Figures]) -> str:
    return ""


def _nothing_more(row: Figures) -> Figures:
    return {}


@dataclass(frozen=True)
class Table:
    """A table of `oneshot paper NAME`.

    `plan`: the rows to measure. `finding`: a sentence that summarises the measured rows. `draw`:
    writes a plot of them. `by_name`: the workbench loads the data of a row by its name. `note`:
    remarks for readers of the table. `keys`: what identifies a training of the table, apart from
    its seed and its length; only such tables can have several seeds and trainings to convergence.
    `derive`: values computed from the measured ones of a row.
    """

    name: str
    title: str
    columns: Sequence[Column]
    plan: Callable[["Workbench"], Iterable[Row]]
    finding: Callable[[Sequence[Figures]], str] = _no_finding
    draw: Callable[[Sequence[Figures], Path], None] | None = None
    by_name: bool = True
    note: str = ""
    keys: Sequence[str] = ()
    derive: Callable[[Figures], Figures] = _nothing_more

    def shown(self, rows: Sequence[Figures]) -> list[Figures]:
        """The rows to display: with derived values, and one row for all seeds of a training."""
        whole = [{**row, **self.derive(row)} for row in rows]
        if not self.keys:
            return whole
        groups: dict[tuple[Any, ...], list[Figures]] = {}
        for row in whole:
            key = (*(row.get(name) for name in self.keys), bool(row.get("converged")))
            groups.setdefault(key, []).append(row)
        found = [mean_of(group) for group in groups.values()]
        if any(row.get("converged") for row in found):
            lengths = {True: "to convergence", False: "short"}
            found = [{**row, "training": lengths[bool(row.get("converged"))]} for row in found]
        return found

    def judged(self, rows: Sequence[Figures]) -> list[Figures]:
        """The rows for findings, plots and verdicts.

        Of a data set with both short trainings and trainings to convergence, the latter, unless
        there are fewer of them: rows of different length are not compared.
        """
        found = self.shown(rows)
        if not self.keys:
            return found
        kept = []
        for data in dict.fromkeys(row.get("data") for row in found):
            mine = [row for row in found if row.get("data") == data]
            converged = [row for row in mine if row.get("converged")]
            short = [row for row in mine if not row.get("converged")]
            kept += converged if converged and len(converged) >= len(short) else short
        return kept


LEAST_DIFFERENCE = 0.005
"""MRR difference below which two short trainings with the same settings count as equal."""


def mean_of(rows: Sequence[Figures]) -> Figures:
    """One row for trainings that differ in their seed.

    Each figure is the mean over the rows that have it, with its standard deviation in `spread`;
    `seeds` is their number. A single row stays as it is.
    """
    if len(rows) == 1:
        return rows[0]
    found, spread = dict(rows[0]), {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if _is_measured(row.get(name))]
        if len(values) == len(rows):
            found[name], spread[name] = statistics.fmean(values), statistics.stdev(values)
            if not spread[name]:  # a setting, or a count that no seed changes
                found[name] = values[0]
                del spread[name]
        elif values and not _is_measured(found.get(name)):
            found[name] = statistics.fmean(values)  # the others failed
    return {**found, "spread": spread, "seeds": len(rows)}


def _is_measured(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def by_data(finding: Callable[[Sequence[Figures]], str]) -> Callable[[Sequence[Figures]], str]:
    """A finding about one data set, repeated for each if there are several."""

    def said(rows: Sequence[Figures]) -> str:
        names = list(dict.fromkeys(row["data"] for row in rows))
        found = {name: finding([row for row in rows if row["data"] == name]) for name in names}
        if len(names) == 1:
            return found[names[0]]
        return " ".join(f"{name}: {text}" for name, text in found.items() if text)

    return said


def figures_by(
    rows: Sequence[Figures], name: str, figure: str = "mrr", **where: Any
) -> dict[Any, float]:
    """The value of each row that has it, by the row's value of `name`; `where` selects rows."""
    return {
        row[name]: row[figure]
        for row in rows
        if row.get(figure) is not None
        and all(row.get(key) == value for key, value in where.items())
    }
