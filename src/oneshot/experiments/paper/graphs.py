"""Tables of graphs and samplers, without training: data sets, coverage, hops."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.evaluation.coverage import coverage
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.ablations import ALL_DATA
from oneshot.experiments.tables.plot import draw_lines
from oneshot.experiments.tables.table import Column, Figures, Row, Table, figures_by
from oneshot.experiments.tables.workbench import LARGE, Workbench
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers import SAMPLERS

# data sets ---------------------------------------------------------------------------------------


def _datasets(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names(*LARGE):
        yield Row({"data": name}, partial(_counts, bench, name), literature.DATASETS.get(name, {}))


def _counts(bench: Workbench, name: str) -> Figures:
    data = bench.dataset(name)
    degree = data.graph.degree.double()
    return {
        "entities": data.graph.num_entities,
        "relations": data.graph.num_relations,
        "train": data.graph.num_facts,
        "valid": len(data.valid),
        "test": len(data.test),
        "mean_degree": float(degree.mean()),
        "largest_degree": int(degree.max()),
        "unseen_entities": data.unseen_entities,
    }


def _all_facts(row: Figures) -> Figures:
    """|E|: the facts of all splits."""
    return {"facts": row["train"] + row["valid"] + row["test"]}


DATASETS = Table(
    "datasets",
    "The data sets",
    (
        Column("data", "data"),
        Column("entities", "entities", ","),
        Column("relations", "relations", ","),
        Column("facts", "facts", ","),
        Column("train", "train", ","),
        Column("valid", "valid", ","),
        Column("test", "test", ","),
        Column("mean degree", "mean_degree", ".1f"),
        Column("largest", "largest_degree", ","),
    ),
    _datasets,
    note=(
        "Facts are those of all splits, |E| in the paper. Its |E| of WN18RR and NELL-995 is the "
        "official `facts.txt` alone (65,130 and 112,258 lines), and its train facts are that "
        "number less valid and test, which is no count of any file: the official code divides "
        "`facts.txt` and `train.txt` (21,705 and 37,420 lines) together again; they are our train "
        "facts. "
        "YAGO3-10-partial contains 43% of the train facts of YAGO3-10."
    ),
    derive=_all_facts,
)


# coverage ----------------------------------------------------------------------------------------

_RATIOS = (0.1, 0.2, 0.5)
_CURVE = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def _coverage(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names(*LARGE):
        for sampler in literature.SAMPLERS:
            yield Row(
                {"data": name, "sampler": sampler},
                partial(_covered, bench, name, sampler, _RATIOS, 4000),
                literature.COVERAGE.get((name, sampler), {}),
            )


def _covered(
    bench: Workbench, name: str, sampler: str, ratios: Sequence[float], most: int
) -> Figures:
    data = bench.dataset(name)
    queries, answers = _drawn(data, bench.seed, most)
    chosen = SAMPLERS[sampler](entity_ratio=max(ratios), seed=bench.seed)
    found = coverage(chosen, data.graph.to(bench.device), queries, answers, ratios)
    shares = {f"{ratio:g}": share for ratio, share in found.coverage.items()}
    return {**shares, "queries": found.queries, "seconds": found.seconds}


def _drawn(data: Dataset, seed: int, most: int) -> tuple[Tensor, Tensor]:
    """Test queries and their answers, at most so many, drawn with the seed."""
    queries, answers = data.queries("test")
    if not len(queries):
        raise InputError(f"{data.name} has no test facts")
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))[:most]
    return queries[order], answers[order]


def _coverage_finding(rows: Sequence[Figures]) -> str:
    parts = []
    for data in dict.fromkeys(row["data"] for row in rows):
        found = figures_by(rows, "sampler", "0.1", data=data)
        if "ppr" in found and len(found) > 1:
            rest = {name: share for name, share in found.items() if name != "ppr"}
            best = max(rest, key=lambda name: rest[name])
            parts.append(
                f"{data}: PPR {found['ppr']:.3f}, the best other {rest[best]:.3f} "
                f"({best.replace('_', ' ')})"
            )
    return "Coverage at 10% of the entities. " + "; ".join(parts) + "." if parts else ""


def _draw_coverage(rows: Sequence[Figures], path: Path) -> None:
    points = [
        {"data": row["data"], "sampler": row["sampler"], "ratio": ratio, "share": row[f"{ratio:g}"]}
        for row in rows
        for ratio in _CURVE
        if f"{ratio:g}" in row
    ]
    draw_lines(
        points,
        path,
        x="ratio",
        lines="sampler",
        panels="data",
        label="share of entities",
        y="share",
        y_label="coverage",
    )


COVERAGE = Table(
    "coverage",
    "How often the answer is among the sampled entities (test, both directions)",
    (
        Column("data", "data"),
        Column("sampler", "sampler"),
        *(Column(f"{ratio:.0%} of entities", f"{ratio:g}", ".3f") for ratio in _RATIOS),
        Column("queries", "queries", ","),
        Column("s", "seconds", ".1f"),
    ),
    _coverage,
    _coverage_finding,
    _draw_coverage,
    note=(
        "Includes entities without a path, so that the values of PPR agree with those of the "
        "paper. Predictors exclude them: `coverage` in the tables of trainings is slightly lower. "
        "The paper does not specify its random walks."
    ),
)


def _curve(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names(*ALL_DATA):
        for sampler in literature.SAMPLERS:
            yield Row(
                {"data": name, "sampler": sampler},
                partial(_covered, bench, name, sampler, _CURVE, 1000),
                literature.COVERAGE.get((name, sampler), {}),
            )


COVERAGE_CURVE = Table(
    "coverage-curve",
    "Coverage by the share of entities",
    (
        Column("data", "data"),
        Column("sampler", "sampler"),
        *(Column(f"{ratio:.0%}", f"{ratio:g}", ".3f") for ratio in _CURVE),
        Column("queries", "queries", ","),
    ),
    _curve,
    draw=_draw_coverage,
    note=(
        "As `coverage`, with more budgets and fewer queries: the paper's figure, whose values are "
        "not printed except for three budgets."
    ),
)


# hops --------------------------------------------------------------------------------------------


def _hops(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names(*ALL_DATA):
        for hops in range(1, 5 if bench.quick else 9):
            yield Row(
                {"data": name, "hops": hops},
                partial(_within, bench, name, hops),
                literature.HOPS.get((name, hops), {}),
            )


def _within(bench: Workbench, name: str, hops: int) -> Figures:
    data = bench.dataset(name)
    queries, _ = _drawn(data, bench.seed, 1000)
    entities, facts, touched = within_hops(data.graph.to(bench.device), queries[:, 0], hops)
    return {"entities": entities, "facts": facts, "touched": touched, "queries": len(queries)}


def within_hops(graph: KnowledgeGraph, sources: Tensor, hops: int) -> tuple[float, float, float]:
    """Mean shares of the graph within some hops of sources.

    Of the entities, of the facts between them, and of the facts with at least one of them.
    """
    sources = sources.to(graph.device)
    adjacency = graph.normalized_adjacency()
    head, tail = graph.facts[:, 0].long(), graph.facts[:, 2].long()
    entities = facts = touched = 0.0
    for some in sources.split(64):
        reached = torch.zeros(graph.num_entities, len(some), device=graph.device)
        reached[some, torch.arange(len(some), device=graph.device)] = 1.0
        for _ in range(hops):
            # All weights are positive: a value above zero has a reached neighbour.
            reached = (reached + adjacency @ reached > 0).float()
        inside = reached.bool()
        entities += float(inside.double().mean(dim=0).sum())
        for column in inside.unbind(dim=1):
            facts += float((column[head] & column[tail]).double().mean())
            touched += float((column[head] | column[tail]).double().mean())
    return entities / len(sources), facts / len(sources), touched / len(sources)


def _hops_finding(rows: Sequence[Figures]) -> str:
    parts = []
    for data in dict.fromkeys(row["data"] for row in rows):
        found = figures_by(rows, "hops", "entities", data=data)
        if found:
            most = max(found)
            parts.append(f"{most} hops reach {found[most]:.1%} of the entities of {data}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


HOPS = Table(
    "hops",
    "Share of the graph within k hops of a question's entity",
    (
        Column("data", "data"),
        Column("hops", "hops"),
        Column("entities", "entities", ".1%"),
        Column("facts", "facts", ".1%"),
        Column("facts with one end", "touched", ".1%"),
        Column("queries", "queries", ","),
    ),
    _hops,
    _hops_finding,
    partial(
        draw_lines, x="hops", lines="data", label="hops", y="entities", y_label="share of entities"
    ),
    note=(
        "Facts have both ends within the hops, those with one end at least one of them. The paper "
        "does not define which facts it counts. Its shares of entities agree with ours, its shares "
        "of facts with neither count: 13.5% in 5 hops of WN18RR is between the two, and the mean "
        "of them (the directed edges that leave the reached entities) is close to it, but 89.7% in "
        "8 hops is above both."
    ),
)
