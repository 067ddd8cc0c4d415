"""The heat map of a predictor trained with one budget and tested with others."""

from collections.abc import Iterator, Sequence
from functools import partial

from oneshot.config import from_table
from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.tables.plot import draw_heat_map
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench
from oneshot.reasoner.build import build_sampler

_GRID = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def _plan(bench: Workbench) -> Iterator[Row]:
    grid = (0.2, 0.5, 1.0) if bench.quick else _GRID
    for name in bench.data_names("WN18RR"):
        for entities in grid:
            for edges in grid:
                yield Row(
                    {"data": name, "entities": entities, "edges": edges},
                    partial(_asked, bench, name, entities, edges),
                )


def _asked(bench: Workbench, name: str, entities: float, edges: float) -> Figures:
    data = bench.dataset(name)
    reasoner = bench.reasoner(data, bench.config(name))
    trained = reasoner.sampler.budget
    table = {"sampler": {"entity_ratio": entities, "edge_ratio": edges}}
    reasoner.sampler = build_sampler(from_table(table).sampler, bench.seed)
    limit = 40 if bench.quick else 1000
    report = evaluate(reasoner, data.valid, data.known, limit=limit, seed=bench.seed)
    return {
        "mrr": report.mrr,
        "coverage": report.coverage,
        "queries": report.queries,
        "trained_with": trained.entity_ratio,
    }


def _finding(rows: Sequence[Figures]) -> str:
    found = {(row["entities"], row["edges"]): row["mrr"] for row in rows if "mrr" in row}
    if len(found) < 2:
        return ""
    (entities, edges), best = max(found.items(), key=lambda item: item[1])
    return (
        f"The best validation MRR, {best:.3f}, is at {entities:.0%} of the entities and "
        f"{edges:.0%} of the facts, for a predictor trained with "
        f"{rows[0]['trained_with']:.0%} of the entities."
    )


EXTRAPOLATION = Table(
    "extrapolation",
    "Validation MRR when a trained predictor is asked with other budgets",
    (
        Column("data", "data"),
        Column("entities", "entities"),
        Column("edges", "edges"),
        Column("valid MRR", "mrr", ".3f"),
        Column("coverage", "coverage", ".3f"),
        Column("queries", "queries", ","),
    ),
    _plan,
    by_data(_finding),
    partial(
        draw_heat_map,
        x="entities",
        y="edges",
        label="validation MRR",
        labels=("share of entities in testing", "share of facts in testing"),
    ),
)
