"""Ablations: tables that compare trainings with different options."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from oneshot.data.dataset import Dataset
from oneshot.experiments.baselines.peers import WHOLE_GRAPH
from oneshot.experiments.paper import literature
from oneshot.experiments.tables.plot import draw_lines
from oneshot.experiments.tables.table import (
    LEAST_DIFFERENCE,
    Column,
    Figures,
    Row,
    Table,
    by_data,
    figures_by,
)
from oneshot.experiments.tables.workbench import Workbench, with_graph

ACCURACY = (
    Column("test MRR", "mrr", ".3f"),
    Column("Hits@1", "hits@1", ".3f"),
    Column("Hits@10", "hits@10", ".3f"),
)
VALID = Column("valid MRR", "valid_mrr", ".3f")
# These appear only where there are several.
TRAININGS = (Column("training", "training"), Column("seeds", "seeds"))
LENGTH = (*TRAININGS, Column("epochs", "epochs", ","), Column("failure", "failure"))
COST = (
    *LENGTH[:-1],
    Column("s / epoch", "seconds_per_epoch", ".2f"),
    Column("peak MB", "peak_megabytes", ",.0f"),
    LENGTH[-1],
)

ALL_DATA = ("WN18RR", "NELL-995", "YAGO3-10-partial")
"""The data sets of the paper's tables, as far as they are at hand."""

TWO_DATA = ("WN18RR", "YAGO3-10-partial")
"""Those of its tables without NELL-995."""


def training_key(bench: Workbench, data: str, seed: int, key: Figures) -> Figures:
    """The key of a row that is a training."""
    return {"data": data, **key, "seed": seed, "converged": bench.converged}


def _row(
    bench: Workbench,
    training: tuple[str, int],
    key: Figures,
    changes: Mapping[str, Any],
    paper: Mapping[str, float] | None = None,
) -> Row:
    data, seed = training

    def measure() -> Figures:
        config = bench.config(data, {**changes, "training.seed": seed})
        return bench.train(bench.dataset(data), config)

    return Row(training_key(bench, data, seed, key), measure, paper or {})


# budget ------------------------------------------------------------------------------------------

_BUDGETS = ((1.0, 1.0), (0.5, 0.5), (0.2, 0.2), (0.1, 0.1), (0.1, 1.0))


def _budget(bench: Workbench) -> Iterator[Row]:
    for data, seed in bench.trainings(*ALL_DATA):
        for entities, edges in _BUDGETS:
            changes = {
                "sampler.entity_ratio": entities,
                "sampler.edge_ratio": edges,
                "training.epochs": bench.epochs(data, 0.375),
            }
            yield _row(bench, (data, seed), {"entities": entities, "edges": edges}, changes)


def _budget_finding(rows: Sequence[Figures]) -> str:
    by_size = {(row["entities"], row["edges"]): row["mrr"] for row in rows if "mrr" in row}
    small, whole = by_size.get((0.1, 1.0)), by_size.get((1.0, 1.0))
    if small is None or whole is None:
        return ""
    verdict = "as good or better" if small >= whole - LEAST_DIFFERENCE else "worse"
    return (
        f"Fewer entities are {verdict}: 10% of the entities with all facts between them reach "
        f"{small:.3f}, the whole graph {whole:.3f}."
    )


BUDGET_TRAINING = Table(
    "budget-training",
    "Accuracy by the size of the subgraph in training and in testing",
    (
        Column("data", "data"),
        Column("entities", "entities"),
        Column("edges", "edges"),
        *ACCURACY,
        VALID,
        *COST,
    ),
    _budget,
    by_data(_budget_finding),
    note=(
        "Each row is a training of its own. The paper's values are in `budget-test`: it prints "
        "some for the whole graph, on which its training runs out of memory."
    ),
    keys=("data", "entities", "edges"),
)


# layers ------------------------------------------------------------------------------------------


def _layers(bench: Workbench) -> Iterator[Row]:
    for data, seed in bench.trainings(*ALL_DATA):
        for entities in (0.1, 1.0):
            for layers in (2, 3) if bench.quick else (4, 6, 8):
                changes = {
                    "sampler.entity_ratio": entities,
                    "predictor.num_layers": layers,
                    "training.epochs": bench.epochs(data, 0.375),
                }
                papers = literature.LAYERS.get((data, entities, layers))
                key = {"entities": entities, "layers": layers}
                yield _row(bench, (data, seed), key, changes, papers)


def _layers_finding(rows: Sequence[Figures]) -> str:
    found = []
    for entities in sorted({row["entities"] for row in rows}):
        by_layers = figures_by(rows, "layers", entities=entities)
        if len(by_layers) > 1:
            values = ", ".join(f"{layers}: {mrr:.3f}" for layers, mrr in by_layers.items())
            better = by_layers[max(by_layers)] > by_layers[min(by_layers)] + LEAST_DIFFERENCE
            verdict = "better" if better else "not clearly better"
            found.append(f"deeper is {verdict} on {entities:.0%} of the entities ({values})")
    text = "; ".join(found)
    return text[:1].upper() + text[1:] + "." if text else ""


LAYERS = Table(
    "layers",
    "Accuracy by the number of layers",
    (
        Column("data", "data"),
        Column("entities", "entities"),
        Column("layers", "layers"),
        *ACCURACY,
        VALID,
        *COST,
    ),
    _layers,
    by_data(_layers_finding),
    keys=("data", "entities", "layers"),
)


# heuristics --------------------------------------------------------------------------------------


def _heuristics(bench: Workbench) -> Iterator[Row]:
    for data, seed in bench.trainings(*TWO_DATA):
        for name in literature.SAMPLERS:
            papers = literature.HEURISTICS.get((data, name))
            yield _row(bench, (data, seed), {"sampler": name}, {"sampler.name": name}, papers)


def _heuristics_finding(rows: Sequence[Figures]) -> str:
    found = figures_by(rows, "sampler")
    if "ppr" not in found or len(found) == 1:
        return ""
    others = {name: mrr for name, mrr in found.items() if name != "ppr"}
    best = max(others, key=lambda name: others[name])
    verb = "beats" if found["ppr"] > others[best] + LEAST_DIFFERENCE else "does not clearly beat"
    return (
        f"PPR {verb} the other heuristics: {found['ppr']:.3f} against {others[best]:.3f} of the "
        f"best of them ({best.replace('_', ' ')})."
    )


HEURISTICS = Table(
    "heuristics",
    "Accuracy when another heuristic chooses the entities",
    (
        Column("data", "data"),
        Column("sampler", "sampler"),
        *ACCURACY,
        VALID,
        Column("coverage", "coverage", ".3f"),
        *LENGTH,
    ),
    _heuristics,
    by_data(_heuristics_finding),
    note=(
        "The paper's Hits@1 of random entities on WN18RR is as printed, a misprint: its Hits@10 is "
        "0.035."
    ),
    keys=("data", "sampler"),
)


# messages ----------------------------------------------------------------------------------------


# Each message in a suitable predictor: ours, which resembles RED-GNN, and that of NBFNet.
_MESSAGES: Mapping[str, Mapping[str, Any]] = {
    "redgnn": {"message": "redgnn"},
    "nbfnet": WHOLE_GRAPH["nbfnet"][1],
}


def _messages(bench: Workbench) -> Iterator[Row]:
    for data, seed in bench.trainings(*TWO_DATA):
        for message, shape in _MESSAGES.items():
            for entities in (0.1, 1.0):
                changes = {
                    **{f"predictor.{option}": value for option, value in shape.items()},
                    "sampler.entity_ratio": entities,
                    "training.epochs": bench.epochs(data, 0.375),
                }
                key = {"message": message, "entities": entities}
                papers = literature.MESSAGES.get((data, message, entities))
                yield _row(bench, (data, seed), key, changes, papers)


def _messages_finding(rows: Sequence[Figures]) -> str:
    parts = []
    for message in dict.fromkeys(row["message"] for row in rows):
        seconds = figures_by(rows, "entities", "seconds_per_epoch", message=message)
        mrr = figures_by(rows, "entities", message=message)
        if {0.1, 1.0} <= mrr.keys():
            saved = 1 - seconds[0.1] / seconds[1.0]
            parts.append(
                f"{message} on 10% of the entities saves {saved:.0%} of an epoch's time at MRR "
                f"{mrr[0.1]:.3f} against {mrr[1.0]:.3f}"
            )
    return "; ".join(parts) + "." if parts else ""


MESSAGES = Table(
    "messages",
    "The messages of RED-GNN and NBFNet on the whole graph and on 10% of its entities",
    (
        Column("data", "data"),
        Column("message", "message"),
        Column("entities", "entities"),
        *ACCURACY,
        VALID,
        *COST,
    ),
    _messages,
    by_data(_messages_finding),
    note=literature.TIMES_NOTE,
    keys=("data", "message", "entities"),
)


# split -------------------------------------------------------------------------------------------

_FACT_RATIOS = (0.7, 0.8, 0.9, 0.95, 0.97, 0.99)


def _split(bench: Workbench) -> Iterator[Row]:
    """The same number of queries for each ratio, and therefore the same time."""
    for data, seed in bench.trainings(*TWO_DATA):
        training = dataclasses.replace(bench, converged=False).config(data).training
        # As without --set, which must not change the option that the rows vary.
        asked = 1 - dataclasses.replace(bench, changes=()).config(data).training.fact_ratio
        for ratio in (0.8, 0.95) if bench.quick else _FACT_RATIOS:
            more = asked / (1 - ratio)
            changes = {
                "training.fact_ratio": ratio,
                "training.query_share": min(more, 1.0),
                "training.epochs": round(training.epochs * max(more, 1.0)),
                "training.valid_every": round(training.valid_every * max(more, 1.0)),
            }
            papers = literature.SPLIT.get((data, ratio))
            yield _row(bench, (data, seed), {"fact_ratio": ratio}, changes, papers)


def _to_best(row: Figures) -> Figures:
    """The time to the best epoch, without validations."""
    if not {"best_epoch", "seconds_per_epoch"} <= row.keys():
        return {}
    return {"seconds_to_best": row["best_epoch"] * row["seconds_per_epoch"]}


def _split_finding(rows: Sequence[Figures]) -> str:
    found = figures_by(rows, "fact_ratio")
    if len(found) < 2:
        return ""
    worst, best = min(found, key=lambda r: found[r]), max(found, key=lambda r: found[r])
    return (
        f"For the same number of queries, fact ratios from {min(found):g} to {max(found):g} give "
        f"MRR {found[worst]:.3f} (at {worst:g}) to {found[best]:.3f} (at {best:g})."
    )


SPLIT = Table(
    "split",
    "Accuracy by the share of facts that an epoch shows, for the same number of queries",
    (
        Column("data", "data"),
        Column("fact ratio", "fact_ratio"),
        *ACCURACY,
        VALID,
        *LENGTH[:-1],
        Column("best epoch", "best_epoch", ","),
        Column("s to the best epoch", "seconds_to_best", ",.1f"),
        Column("s / epoch", "seconds_per_epoch", ".2f"),
        LENGTH[-1],
    ),
    _split,
    by_data(_split_finding),
    partial(draw_lines, x="fact_ratio", lines="data", label="share of observation facts"),
    note=(
        "Every row has the same total number of queries: with many query facts, each epoch uses a "
        "part of them; with few, there are more epochs. An epoch of the paper uses all of its "
        "query facts, so its times grow with their share. The time to the best epoch is without "
        f"validations. {literature.TIMES_NOTE}"
    ),
    keys=("data", "fact_ratio"),
    derive=_to_best,
)


# noise and deletion ------------------------------------------------------------------------------

_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def noisy(data: Dataset, share: float, seed: int) -> Dataset:
    """The data set with random facts added to the training facts, `share` of their number."""
    generator = torch.Generator().manual_seed(seed)
    graph = data.graph
    count = round(share * graph.num_facts)
    sizes = (graph.num_entities, graph.num_relations, graph.num_entities)
    columns = [torch.randint(size, (count,), generator=generator) for size in sizes]
    facts = torch.cat([data.train, torch.stack(columns, dim=1)])
    return with_graph(data, facts, f"{data.name}+{share:.0%}")


def thinned(data: Dataset, share: float, seed: int) -> Dataset:
    """The data set without a random `share` of its training facts."""
    order = torch.randperm(data.graph.num_facts, generator=torch.Generator().manual_seed(seed))
    kept = order[round(share * len(order)) :].sort().values
    return with_graph(data, data.train[kept], f"{data.name}-{share:.0%}")


def _changed(bench: Workbench, change: Any, papers: Any) -> Iterator[Row]:
    for name, seed in bench.trainings(*ALL_DATA):
        for share in (0.0, 0.3) if bench.quick else _SHARES:

            def measure(name: str = name, seed: int = seed, share: float = share) -> Figures:
                data = bench.dataset(name)
                if share:
                    data = change(data, share, seed)
                return bench.train(data, bench.config(name, {"training.seed": seed}))

            key = training_key(bench, name, seed, {"share": share})
            yield Row(key, measure, papers.get((name, share), {}))


def _changed_finding(rows: Sequence[Figures], what: str) -> str:
    found = figures_by(rows, "share")
    if len(found) < 2 or 0.0 not in found:
        return ""
    most = max(found)
    lost = 1 - found[most] / found[0.0]
    return f"{most:.0%} {what} cost {lost:.0%} of the MRR ({found[0.0]:.3f} to {found[most]:.3f})."


_CHANGED_COLUMNS = (
    Column("data", "data"),
    Column("share", "share", ".0%"),
    *ACCURACY,
    VALID,
    *LENGTH,
)
NOISE = Table(
    "noise",
    "Accuracy with random facts added to the training facts",
    _CHANGED_COLUMNS,
    partial(_changed, change=noisy, papers=literature.NOISE),
    by_data(partial(_changed_finding, what="random facts added")),
    partial(draw_lines, x="share", lines="data", label="random facts added"),
    keys=("data", "share"),
)
DELETION = Table(
    "deletion",
    "Accuracy with training facts removed",
    _CHANGED_COLUMNS,
    partial(_changed, change=thinned, papers=literature.DELETION),
    by_data(partial(_changed_finding, what="of the training facts removed")),
    partial(draw_lines, x="share", lines="data", label="training facts removed"),
    keys=("data", "share"),
)
