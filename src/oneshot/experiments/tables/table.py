"""Table: a table or figure of the paper, as rows that are measured one after another."""

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
    `written` is called when the row is in the report.
    """

    key: Figures
    measure: Callable[[], Figures]
    paper: Mapping[str, float] = field(default_factory=dict)
    derived: bool = False
    config: str | None = None
    written: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Column:
    """A column of the printed table: its header, its value and its format."""

    head: str
    figure: str
    form: str = ""

    def cell(self, row: Figures) -> str:
        """Our value, and the paper's in brackets if there is one."""
        text = self._written(row.get(self.figure))
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


@dataclass(frozen=True)
class Table:
    """A table of `oneshot paper NAME`.

    `plan`: the rows to measure. `finding`: a sentence that summarises the measured rows. `draw`:
    writes a plot of them. `by_name`: the workbench loads the data of a row by its name. `note`:
    remarks for readers of the table.
    """

    name: str
    title: str
    columns: Sequence[Column]
    plan: Callable[["Workbench"], Iterable[Row]]
    finding: Callable[[Sequence[Figures]], str] = _no_finding
    draw: Callable[[Sequence[Figures], Path], None] | None = None
    by_name: bool = True
    note: str = ""


LEAST_DIFFERENCE = 0.005
"""MRR difference below which two short trainings with the same settings count as equal."""


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
