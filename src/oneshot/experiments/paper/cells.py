"""The numeric cells of the paper's tables, each with the row of ours that measures the same."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from oneshot.experiments.baselines.peers import OURS
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.literature import Printed
from oneshot.experiments.paper.main import BORROWED_FROM
from oneshot.experiments.tables.table import Figures

WHOLE_DATA = ("WN18RR", "NELL-995")
"""The paper's data sets that are completely at hand."""


class PrintedRow(NamedTuple):
    """Printed values of a data set, and the table and key of the row that measures them."""

    table: str
    key: Figures
    values: Printed

    @property
    def data(self) -> str:
        return str(self.key["data"])

    @property
    def is_published_only(self) -> bool:
        return self.key.get("system") in literature.PUBLISHED_ONLY

    def measured(self, rows: Sequence[Figures]) -> set[str]:
        """The names of the values that a row of our report has."""
        return {
            name
            for row in rows
            if all(row.get(key) == value for key, value in self.key.items())
            for name in self.values
            if row.get(name) is not None
        }


def printed_rows() -> Iterator[PrintedRow]:
    """All rows of the paper's tables."""
    for data, systems in literature.MAIN.items():
        for system, values in systems.items():
            ours = OURS if system == literature.PAPER_SYSTEM else system
            yield PrintedRow("main", {"data": data, "system": ours}, values)
    for data, values in literature.DATASETS.items():
        yield PrintedRow("datasets", {"data": data}, values)
    by_key: Sequence[tuple[str, Mapping[Any, Printed], tuple[str, ...]]] = (
        ("coverage", literature.COVERAGE, ("sampler",)),
        ("hops", literature.HOPS, ("hops",)),
        ("budget-test", literature.BUDGET, ("entities", "edges")),
        ("layers", literature.LAYERS, ("entities", "layers")),
        ("heuristics", literature.HEURISTICS, ("sampler",)),
        ("efficiency", literature.EFFICIENCY, ("entities", "edges")),
        ("messages", literature.MESSAGES, ("message", "entities")),
        ("split", literature.SPLIT, ("fact_ratio",)),
        ("noise", literature.NOISE, ("share",)),
        ("deletion", literature.DELETION, ("share",)),
        ("nodepiece", literature.NODEPIECE, ("model",)),
    )
    for table, rows, names in by_key:
        for (found, *rest), values in rows.items():
            yield PrintedRow(table, {"data": found, **dict(zip(names, rest, strict=True))}, values)


class Count(NamedTuple):
    """The cells of a table about the data sets at hand.

    `published`: of systems that we have only as published. `missing`: by data set, the cells that
    no row measures yet.
    """

    table: str
    cells: int
    measured: int
    published: int
    missing: Mapping[str, int]
    elsewhere: int


def count_cells(rows: Mapping[str, Sequence[Figures]]) -> list[Count]:
    """The cells of each table; `rows`: those of our reports by table, as they are shown.

    `elsewhere`: cells about data that are not at hand.
    """
    counts = []
    printed = list(printed_rows())
    for table in dict.fromkeys(row.table for row in printed):
        cells = measured = published = elsewhere = 0
        missing: dict[str, int] = {}
        for row in printed:
            if row.table != table:
                continue
            if row.data not in WHOLE_DATA:
                elsewhere += len(row.values)
                continue
            found = len(row.measured(rows.get(table, ())))
            cells += len(row.values)
            measured += found
            if left := len(row.values) - found:
                if row.is_published_only:
                    published += left
                else:
                    missing[row.data] = missing.get(row.data, 0) + left
        counts.append(Count(table, cells, measured, published, missing, elsewhere))
    return counts


def gpu_seconds(rows: Sequence[Figures]) -> float:
    """The time that the rows of a report took on a GPU; of older rows, that of the training.

    Without the rows that were measured for another table.
    """
    total = 0.0
    for row in rows:
        if "gpu" in row["hardware"] and row.get("source") not in BORROWED_FROM:
            total += row["row_seconds"] if "row_seconds" in row else row.get("seconds") or 0.0
    return total
