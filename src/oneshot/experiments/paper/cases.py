"""Drawings of single subgraphs, with the degrees and distances of their entities.

The queries are the 35 of the paper's appendix if the data set contains them with the same ids,
otherwise the first facts of the test split. The entities of YAGO3-10-partial are those of YAGO3-10,
and so are its test facts; its subgraphs lack the facts that are missing there.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path

import torch

from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.experiments.paper import literature
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench, facts_digest, file_name
from oneshot.plots.coverage import check_plot
from oneshot.plots.palette import ANSWER, GREY, INK, QUERY, SERIES, SOFT
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.files import replacing

_RATIOS = (0.001, 0.01)
_FIRST = 3
"""Number of test facts whose subgraphs are drawn if the paper's queries are not available."""

Question = tuple[int, int, tuple[int, ...]]
"""Entity, relation (+ R for the inverse) and the answers."""

_COLOURS = SERIES[:-1]
"""Colours of the most frequent relations; all others are grey."""


def _plan(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names("WN18RR", "NELL-995", "YAGO3-10-partial"):
        questions = choose_questions(bench.dataset(name))
        for question in questions[:1] if bench.quick else questions:
            for ratio in (0.2,) if bench.quick else _RATIOS:
                key = {"data": name, "entity": question[0], "relation": question[1]}
                yield Row({**key, "ratio": ratio}, partial(_case, bench, name, question, ratio))


def choose_questions(data: Dataset) -> Sequence[Question]:
    """The paper's queries if the test split has all of them, otherwise its first facts."""
    if not len(data.test):
        raise InputError(f"{data.name} has no test facts; the subgraphs of test queries are drawn")
    papers = literature.CASES.get(data.name.removesuffix("-partial"), ())
    # Other copies of a data set have different ids.
    if papers and all(
        set(answers) <= answers_in_test(data, entity, relation)
        for entity, relation, answers in papers
    ):
        return papers
    return [(head, relation, (tail,)) for head, relation, tail in data.test[:_FIRST].tolist()]


def answers_in_test(data: Dataset, entity: int, relation: int) -> set[int]:
    """The answers of a query in the test split."""
    asked, answer, inverse = 0, 2, relation >= data.graph.num_relations
    if inverse:
        asked, answer, relation = 2, 0, relation - data.graph.num_relations
    found = (data.test[:, asked] == entity) & (data.test[:, 1] == relation)
    return set(data.test[found, answer].tolist())


def _case(bench: Workbench, name: str, question: Question, ratio: float) -> Figures:
    data = bench.dataset(name)
    entity, relation, answers = question
    asked = torch.tensor([[entity, relation]])
    batch = PPRSampler(entity_ratio=ratio).sample(data.graph, asked)
    # The colours of a query are the same for all ratios.
    others = [PPRSampler(entity_ratio=share).sample(data.graph, asked) for share in _RATIOS]
    distance = hops_from(batch)
    # Two data sets may have the same name.
    stem = f"{file_name(data.name)}-{facts_digest(data)[:6]}-{entity}-{relation}-{ratio:g}"
    drawing = bench.out / "cases" / f"{stem}.png"
    held = _places(batch, torch.tensor(answers))
    query = f"({data.entities[entity]}, {data.graph.relation_name(relation)}, ?)"
    draw_case(
        batch,
        distance,
        held,
        f"{query} on {ratio:.1%} of the entities: {len(held)} of {len(answers)} answers",
        drawing,
        colour_relations(others, data),
        data.entities,
        data.graph.num_relations,
    )
    near = _neighbours(data, entity)
    return {
        "query": query,
        "entities": batch.num_entities,
        "facts": (batch.num_edges - batch.num_entities) // 2,
        "answers": len(answers),
        "held": len(held),
        "as_in_test": set(answers) == answers_in_test(data, entity, relation),
        "neighbours": len(near),
        "neighbours_held": len(_places(batch, near)),
        "mean_degree": float(batch.degree.double().mean()),
        "largest_distance": max(distance),
        "degrees": dict(sorted(Counter(map(_power, batch.degree.tolist())).items())),
        "distances": dict(sorted(Counter(distance).items())),
        "drawing": str(drawing.relative_to(bench.out)),
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


def colour_relations(batches: Sequence[SubgraphBatch], data: Dataset) -> dict[int, tuple[str, str]]:
    """The most frequent relations of the first subgraph, then of the next ones.

    → their names and colours
    """
    counts = [Counter(batch.edges[1].tolist()) for batch in batches]
    frequent = sorted(
        range(data.graph.num_relations),
        key=lambda relation: [*(-some[relation] for some in counts), relation],
    )
    frequent = [one for one in frequent if any(some[one] for some in counts)]
    return {
        relation: (data.relations[relation], colour)
        for relation, colour in zip(frequent, _COLOURS, strict=False)
    }


def draw_case(
    batch: SubgraphBatch,
    distance: Sequence[int],
    answers: Sequence[int],
    title: str,
    path: Path,
    colours: Mapping[int, tuple[str, str]],
    names: Sequence[str],
    num_relations: int,
) -> None:
    """Draw the subgraph as a tree of shortest paths around the query entity, and the histograms.

    `answers`: the indices of the sampled answers. `colours`: the names and colours of relations,
    others are grey. `names`: those of all entities.
    """
    check_plot(path)
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(9, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(2.4, 1))
    axes = figure.add_subplot(grid[:, 0])
    parent = _parents(batch, distance)
    places = _around(distance, parent)
    lines: dict[tuple[str, bool], list[tuple[tuple[float, float], tuple[float, float]]]] = {}
    for x, relation, o in batch.edges.T.tolist():
        if relation < num_relations:  # each fact once, and no identity edges
            colour = colours[relation][1] if relation in colours else GREY
            is_path = parent.get(o) == x or parent.get(x) == o
            lines.setdefault((colour, is_path), []).append((places[x], places[o]))
    is_small = batch.num_entities < 200
    for (colour, is_path), some in sorted(lines.items(), key=lambda item: item[0][1]):
        # Edges beside the shortest paths stay in the background.
        width = (1.2 if is_small else 0.7) if is_path else 0.5
        shade = 0.9 if is_path else (0.45 if is_small else 0.15)
        axes.add_collection(
            LineCollection(some, colors=colour, linewidths=width, alpha=shade, zorder=1 + is_path)
        )
    size = 16 if is_small else 4
    wide, high = zip(*places, strict=True)
    axes.scatter(wide, high, s=size, color=INK, zorder=3, linewidths=0)
    source = int(batch.source[0])
    for marked, colour, form, large in (
        ([source], QUERY, "*", 260),
        (sorted(answers, key=lambda place: -places[place][1]), ANSWER, "D", 70),
    ):
        for number, place in enumerate(marked):
            across, up = places[place]
            axes.scatter(
                across, up, s=large, marker=form, color=colour, edgecolors="white", zorder=4
            )
            axes.annotate(
                _short(names[int(batch.entities[place])]),
                places[place],
                # The answers may be near each other, and near the query entity.
                xytext=(-9, -14) if form == "*" else (8, 6 - 13 * number),
                horizontalalignment="right" if form == "*" else "left",
                textcoords="offset points",
                fontsize=8,
                color=colour,
                zorder=5,
                parse_math=False,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
            )
    axes.set_aspect("equal")
    axes.axis("off")
    shown = {colour for colour, _ in lines}
    keys = [
        Line2D([], [], color=QUERY, marker="*", markersize=11, linestyle="", label="query entity"),
        Line2D([], [], color=ANSWER, marker="D", markersize=6, linestyle="", label="answer"),
        *(
            Line2D([], [], color=colour, linewidth=2, label=_short(name))
            for name, colour in colours.values()
            if colour in shown
        ),
    ]
    if GREY in shown:
        keys.append(Line2D([], [], color=GREY, linewidth=2, label="other relations"))
    legend = figure.legend(
        handles=keys, loc="outside lower center", ncols=4, frameon=False, fontsize=7
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.suptitle(title, fontsize=9, parse_math=False)
    degrees = Counter(map(_power, batch.degree.tolist()))
    for number, (counts, label) in enumerate(
        (
            (degrees, "degree in the whole graph (bin start)"),
            (Counter(distance), "hops from the query entity"),
        )
    ):
        chart = figure.add_subplot(grid[number, 1])
        values = sorted(counts)
        ticks = ["no path" if value < 0 else f"{value:,}" for value in values]
        chart.bar(range(len(values)), [counts[value] for value in values], color=SOFT)
        step = 1 + len(values) // 9
        chart.set_xticks(range(0, len(values), step), ticks[::step], fontsize=7)
        chart.tick_params(axis="y", labelsize=7)
        chart.set_xlabel(label, fontsize=8)
        chart.set_ylabel("entities", fontsize=8)
        chart.spines[["top", "right"]].set_visible(False)
    from PIL import Image  # a dependency of matplotlib

    drawn = BytesIO()
    figure.savefig(drawn, dpi=90, format="png")
    with replacing(path) as temporary:
        # With a palette a file has a third of the size, and there are 70 of them.
        Image.open(drawn).convert("RGB").quantize(112, kmeans=1).save(
            temporary, "PNG", optimize=True
        )


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:31]}…"


def _parents(batch: SubgraphBatch, distance: Sequence[int]) -> dict[int, int]:
    """The entity before each one on a shortest path from the query entity, the first by index."""
    parent: dict[int, int] = {}
    for x, _, o in batch.edges.T.tolist():
        if distance[x] >= 0 and distance[x] == distance[o] - 1:
            parent[o] = min(x, parent.get(o, x))
    return parent


def _around(distance: Sequence[int], parent: Mapping[int, int]) -> list[tuple[float, float]]:
    """Positions on rings by distance; each entity has a sector as wide as its subtree has leaves.

    Entities without a path are on a separate outer ring.
    """
    order = sorted(parent, key=lambda entity: distance[entity])
    children: dict[int, list[int]] = {}
    for entity in order:
        children.setdefault(parent[entity], []).append(entity)
    leaves = dict.fromkeys(range(len(distance)), 1)
    for entity in reversed(order):
        if entity in children:
            leaves[entity] = sum(leaves[child] for child in children[entity])
    root = distance.index(0)
    leaves[root] = sum(leaves[child] for child in children.get(root, ())) or 1
    outside = [entity for entity, hops in enumerate(distance) if hops < 0]
    place = {root: (0.0, 0.0)}
    begin = {root: 0.0}
    for entity in (root, *order):
        turn = begin[entity]
        for number, child in enumerate(children.get(entity, ())):
            width = 2 * math.pi * leaves[child] / leaves[root]
            begin[child] = turn
            # Crowded siblings alternate between three radii.
            near = 0.0 if len(children[entity]) < 40 else 0.22 * (number % 3 - 1)
            place[child] = _polar(distance[child] + near, turn + width / 2)
            turn += width
    for number, entity in enumerate(outside):
        place[entity] = _polar(max(distance) + 0.7, 2 * math.pi * number / len(outside))
    return [place[entity] for entity in range(len(distance))]


def _polar(radius: float, turn: float) -> tuple[float, float]:
    radius **= 0.75  # few entities are far away, and should not push the others together
    return radius * math.cos(turn), radius * math.sin(turn)


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
    asked = {(row["entity"], row["relation"]): row.get("as_in_test") for row in counted}
    if asked and None not in asked.values():
        parts.append(
            f"{sum(map(bool, asked.values()))} of {len(asked)} queries have the answers of the "
            "test split, no more and no fewer"
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
        Column("as in test", "as_in_test"),
        Column("drawing", "drawing"),
    ),
    _plan,
    by_data(_finding),
    note=(
        "The mean degree is that in the whole graph; *farthest* is the largest distance in hops, "
        "among the reachable entities; *as in test*: the answers are those of the test split."
    ),
)
