"""A predictor trained with one budget and asked with others: heat map and table."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

from oneshot.config import from_table
from oneshot.evaluation.evaluate import Report, evaluate
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.ablations import ACCURACY, ALL_DATA, TRAININGS, training_key
from oneshot.experiments.tables.plot import draw_heat_map
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench
from oneshot.reasoner.build import build_sampler

_GRID = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def _plan(bench: Workbench) -> Iterator[Row]:
    grid = (0.2, 0.5, 1.0) if bench.quick else _GRID
    for name, seed in bench.trainings(*ALL_DATA):
        for entities in grid:
            for edges in grid:
                yield Row(
                    training_key(bench, name, seed, {"entities": entities, "edges": edges}),
                    partial(_asked, bench, name, seed, entities, edges),
                )


def _asked(bench: Workbench, name: str, seed: int, entities: float, edges: float) -> Figures:
    """Validation metrics with a budget, over a sample of the queries."""
    limit = 40 if bench.quick else 1000
    report, trained_with = _evaluated(bench, name, seed, entities, edges, "valid", limit)
    return {
        "mrr": report.mrr,
        "coverage": report.coverage,
        "queries": report.queries,
        "trained_with": trained_with,
    }


def _evaluated(
    bench: Workbench,
    name: str,
    seed: int,
    entities: float,
    edges: float,
    split: Literal["valid", "test"],
    limit: int | None,
) -> tuple[Report, Any]:
    """The report of the trained run with another budget, and its share of the entities.

    The run is that of the short training, which is trained first if there is none.
    """
    data = bench.dataset(name)
    reasoner = bench.reasoner(data, bench.config(name, {"training.seed": seed}))
    trained = reasoner.sampler.budget
    table = {"sampler": {"entity_ratio": entities, "edge_ratio": edges}}
    reasoner.sampler = build_sampler(from_table(table).sampler, bench.seed)
    facts = data.valid if split == "valid" else data.test
    report = evaluate(reasoner, facts, data.known, limit=limit, seed=bench.seed)
    return report, trained.entity_ratio


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
    keys=("data", "entities", "edges"),
)


# budgets on the test split -----------------------------------------------------------------------

_BUDGETS = ((1.0, 1.0), (0.5, 0.5), (0.2, 0.2), (0.1, 0.1), (0.1, 1.0))


def _budgets(bench: Workbench) -> Iterator[Row]:
    for name, seed in bench.trainings(*ALL_DATA):
        for entities, edges in _BUDGETS:
            yield Row(
                training_key(bench, name, seed, {"entities": entities, "edges": edges}),
                partial(_tested, bench, name, seed, entities, edges),
                literature.BUDGET.get((name, entities, edges), {}),
            )


def _tested(bench: Workbench, name: str, seed: int, entities: float, edges: float) -> Figures:
    """Test metrics with a budget, over all queries."""
    limit = 40 if bench.quick else None
    report, trained_with = _evaluated(bench, name, seed, entities, edges, "test", limit)
    return {
        **report.metrics.scores(),
        "coverage": report.coverage,
        "queries": report.queries,
        "seconds_per_1000_queries": 1000 * report.seconds / report.queries,
        "trained_with": trained_with,
    }


def _budgets_finding(rows: Sequence[Figures]) -> str:
    found = {(row["entities"], row["edges"]): row for row in rows if "mrr" in row}
    if not {(0.1, 1.0), (1.0, 1.0)} <= found.keys():
        return ""
    same, whole = found[0.1, 1.0], found[1.0, 1.0]
    return (
        f"Trained with {same['trained_with']:.0%} of the entities, the predictor reaches "
        f"{whole['mrr']:.3f} on the whole graph and {same['mrr']:.3f} on 10% of the entities."
    )


BUDGET_TEST = Table(
    "budget-test",
    "Test accuracy of one trained predictor, asked with other budgets",
    (
        Column("data", "data"),
        Column("entities", "entities"),
        Column("edges", "edges"),
        *ACCURACY,
        Column("coverage", "coverage", ".3f"),
        *TRAININGS,
        Column("queries", "queries", ","),
        Column("ms / query", "seconds_per_1000_queries", ".2f"),
    ),
    _budgets,
    by_data(_budgets_finding),
    note=(
        "The predictor is that of the short training, with 10% of the entities and all facts "
        "between them. The paper does not explain its values; they are probably of this type."
    ),
    keys=("data", "entities", "edges"),
)
