"""Table: one table or figure of the paper, as rows that can be measured one after the other."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneshot.experiments.tables.workbench import Workbench

Figures = dict[str, Any]
"""Named figures, JSON values."""


@dataclass(frozen=True)
class Row:
    """A row that is still to be measured.

    `key`: what tells it from the other rows of its table. `paper`: the paper's figures for it,
    under the names of ours. `derived`: the figures are read from files, and so made anew each time.
    `config`: a digest of the configuration, if it is read from a file: the row that another one
    gave is measured again. `written` is called when the row is in the report.
    """

    key: Figures
    measure: Callable[[], Figures]
    paper: Mapping[str, float] = field(default_factory=dict)
    derived: bool = False
    config: str | None = None
    written: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Column:
    """A column of the table for people: its head, the figure it shows, and how it is written."""

    head: str
    figure: str
    form: str = ""

    def cell(self, row: Figures) -> str:
        """Our figure, and the paper's in brackets where there is one."""
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
    """What `oneshot paper NAME` makes.

    `plan`: the rows that a workbench is to measure. `finding`: a sentence with figures on what
    the measured rows say. `draw`: writes a picture of them. `by_name`: the data of a row are what
    the workbench loads by its name. `note`: what one must know to read the table.
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
"""By how much two short trainings with the same settings may differ in MRR; less is nothing."""


def by_data(finding: Callable[[Sequence[Figures]], str]) -> Callable[[Sequence[Figures]], str]:
    """A finding about one data set, said of each if there are several."""

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
    """The figure of each row that has it, by the row's value of `name`; `where` chooses rows."""
    return {
        row[name]: row[figure]
        for row in rows
        if row.get(figure) is not None
        and all(row.get(key) == value for key, value in where.items())
    }
