"""Drawings of single subgraphs, with the degrees and distances of their entities.

The queries are those of the paper if the data set contains them with the same ids, otherwise the
first facts of the test split.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.experiments.paper import literature
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench, facts_digest, file_name
from oneshot.plots.coverage import check_plot
from oneshot.plots.palette import QUERY, SERIES
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.files import replacing

_RATIOS = (0.001, 0.01)
_FIRST = 3
"""Number of test facts whose subgraphs are drawn if the paper's queries are not available."""

Question = tuple[int, int, tuple[int, ...]]
"""Entity, relation (+ R for the inverse) and the answers."""

_ENTITY, _EDGE, _ANSWER = SERIES[0], "#c9d1d9", SERIES[1]


def _plan(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names("WN18RR", "NELL-995"):
        questions = choose_questions(bench.dataset(name))
        for question in questions[:1] if bench.quick else questions:
            for ratio in (0.2,) if bench.quick else _RATIOS:
                key = {"data": name, "entity": question[0], "relation": question[1]}
                yield Row({**key, "ratio": ratio}, partial(_case, bench, name, question, ratio))


def choose_questions(data: Dataset) -> Sequence[Question]:
    """The paper's queries if the test split has all of them, otherwise its first facts."""
    if not len(data.test):
        raise InputError(f"{data.name}: has no test facts; the subgraphs of test queries are drawn")
    known, relations = {tuple(fact) for fact in data.test.tolist()}, data.graph.num_relations
    papers = literature.CASES.get(data.name, ())
    # Other copies of a data set have different ids.
    if papers and all(
        (
            (entity, relation, answer)
            if relation < relations
            else (answer, relation - relations, entity)
        )
        in known
        for entity, relation, answers in papers
        for answer in answers
    ):
        return papers
    return [(head, relation, (tail,)) for head, relation, tail in data.test[:_FIRST].tolist()]


def _case(bench: Workbench, name: str, question: Question, ratio: float) -> Figures:
    data = bench.dataset(name)
    entity, relation, answers = question
    batch = PPRSampler(entity_ratio=ratio).sample(data.graph, torch.tensor([[entity, relation]]))
    distance = hops_from(batch)
    # Two data sets may have the same name.
    stem = f"{file_name(data.name)}-{facts_digest(data)[:6]}-{entity}-{relation}-{ratio:g}"
    picture = bench.out / "cases" / f"{stem}.png"
    held = _places(batch, torch.tensor(answers))
    query = f"({data.entities[entity]}, {data.graph.relation_name(relation)}, ?)"
    title = f"{query} on {ratio:.1%} of the entities"
    if len(held) < len(answers):
        missing = len(answers) - len(held)
        title += ", without the answer" if len(answers) == 1 else f", {missing} answers missing"
    draw_case(batch, distance, held, title, picture)
    near = _neighbours(data, entity)
    return {
        "query": query,
        "entities": batch.num_entities,
        "facts": (batch.num_edges - batch.num_entities) // 2,
        "answers": len(answers),
        "held": len(held),
        "neighbours": len(near),
        "neighbours_held": len(_places(batch, near)),
        "mean_degree": float(batch.degree.double().mean()),
        "largest_distance": max(distance),
        "degrees": dict(sorted(Counter(map(_power, batch.degree.tolist())).items())),
        "distances": dict(sorted(Counter(distance).items())),
        "drawing": str(picture.relative_to(bench.out)),
    }


def _places(batch: SubgraphBatch, entities: torch.Tensor) -> list[int]:
    """The indices of those entities that are in the subgraph of one query."""
    found = batch.find_pairs(torch.zeros_like(entities), entities)
    return found[found >= 0].tolist()


def _neighbours(data: Dataset, entity: int) -> torch.Tensor:
    """The neighbours of an entity in the training facts."""
    head, _, tail = data.train.T
    near: torch.Tensor = torch.cat([tail[head == entity], head[tail == entity]]).unique()
    return near[near != entity]


def hops_from(batch: SubgraphBatch) -> list[int]:
    """Hops from the query entity to each entity of one subgraph; -1 if there is no path."""
    found = torch.full((batch.num_entities,), -1)
    found[batch.source] = 0
    head, _, tail = batch.edges
    for hops in range(1, batch.num_entities + 1):
        new = tail[(found[head] == hops - 1) & (found[tail] < 0)]
        if not len(new):
            break
        found[new] = hops
    return found.tolist()


def _power(degree: int) -> int:
    """The power of two below a degree: the bars of the histogram."""
    return 1 << (max(degree, 1).bit_length() - 1)


def draw_case(
    batch: SubgraphBatch, distance: Sequence[int], answers: Sequence[int], title: str, path: Path
) -> None:
    """Draw the subgraph on rings by distance, and the histograms.

    `answers`: the indices of the sampled answers.
    """
    check_plot(path)
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes, charts = figure.subplots(1, 2, width_ratios=(2, 1))
    charts.remove()
    places = _on_rings(batch, distance)
    head, relation, tail = batch.edges.tolist()
    lines = [
        (places[x], places[o])
        for x, r, o in zip(head, relation, tail, strict=True)
        if x < o and r != max(relation)
    ]
    axes.add_collection(LineCollection(lines, colors=_EDGE, linewidths=0.5, zorder=1))
    size = 30 if batch.num_entities < 200 else 8
    axes.scatter(*zip(*places, strict=True), s=size, color=_ENTITY, zorder=2)
    source = int(batch.source[0])
    for marked, colour, label in (([source], QUERY, "query"), (answers, _ANSWER, "answer")):
        if marked:
            points = [places[place] for place in marked]
            axes.scatter(*zip(*points, strict=True), s=90, color=colour, zorder=3, label=label)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.legend(loc="lower left", frameon=False)
    figure.suptitle(title, fontsize=10, parse_math=False)
    right = figure.add_gridspec(2, 3)
    degrees = Counter(map(_power, batch.degree.tolist()))
    for number, (counts, label) in enumerate(
        (
            (degrees, "degree in the whole graph (bin start)"),
            (Counter(distance), "hops from the query entity"),
        )
    ):
        chart = figure.add_subplot(right[number, 2])
        names = sorted(counts)
        shown = ["no path" if name < 0 else str(name) for name in names]
        chart.bar(range(len(names)), [counts[name] for name in names], color=_ENTITY)
        chart.set_xticks(range(len(names)), shown, fontsize=7)
        chart.set_xlabel(label, fontsize=8)
        chart.set_ylabel("entities", fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix[1:])


def _on_rings(batch: SubgraphBatch, distance: Sequence[int]) -> list[tuple[float, float]]:
    """Positions on rings by distance, near their neighbours on the inner ring.

    Entities without a path are on a separate outer ring.
    """
    outside = max(distance) + 1
    distance = [outside if hops < 0 else hops for hops in distance]
    angle = dict.fromkeys(range(batch.num_entities), 0.0)
    before: dict[int, list[int]] = {}
    for x, _, o in batch.edges.T.tolist():
        if distance[x] == distance[o] - 1:
            before.setdefault(o, []).append(x)
    for ring in range(1, max(distance) + 1):
        mine = [entity for entity in range(batch.num_entities) if distance[entity] == ring]
        mine.sort(key=lambda entity: min((angle[x] for x in before.get(entity, ())), default=0.0))
        for number, entity in enumerate(mine):
            angle[entity] = 2 * math.pi * (number + 0.5 * (ring % 2)) / len(mine)
    return [
        (distance[entity] * math.cos(turn), distance[entity] * math.sin(turn))
        for entity, turn in angle.items()
    ]


def _finding(rows: Sequence[Figures]) -> str:
    counted = [row for row in rows if "held" in row]  # missing in reports of earlier versions
    parts = []
    for ratio in sorted({row["ratio"] for row in counted}):
        mine = [row for row in counted if row["ratio"] == ratio]
        held, near = (
            sum(row[part] for row in mine) / max(sum(row[whole] for row in mine), 1)
            for part, whole in (("held", "answers"), ("neighbours_held", "neighbours"))
        )
        parts.append(
            f"{ratio:.1%} of the entities contain {held:.0%} of the answers and {near:.0%} of the "
            f"neighbours of {len(mine)} queries"
        )
    return "; ".join(parts) + "." if parts else ""


CASES = Table(
    "cases",
    "Subgraphs of single questions",
    (
        Column("data", "data"),
        Column("query", "query"),
        Column("ratio", "ratio", ".1%"),
        Column("entities", "entities", ","),
        Column("facts", "facts", ","),
        Column("answers", "answers"),
        Column("of these held", "held"),
        Column("neighbours", "neighbours"),
        Column("of these held", "neighbours_held"),
        Column("mean degree", "mean_degree", ".1f"),
        Column("farthest", "largest_distance"),
        Column("drawing", "drawing"),
    ),
    _plan,
    by_data(_finding),
    note=(
        "The mean degree is that in the whole graph; the last column is the largest distance in "
        "hops, among the reachable entities."
    ),
)
