"""The graph in the plot of an explanation: entities, edges of the paths, and other facts."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from oneshot.plots.explanation.layout import Layout
from oneshot.plots.palette import ANSWER, FAINT, GREY, INK, QUERY, SERIES, SOFT
from oneshot.plots.shapes import (
    Box,
    Circle,
    Curve,
    Point,
    Shape,
    Text,
    arrow_head,
    overlap,
    shortened,
    text_width,
)
from oneshot.reasoner.explanation import Explanation

_BENDS = (0.0, 32.0, -32.0, 60.0, -60.0, 90.0, -90.0)  # of parallel edges, in pixels

Corners = tuple[Point, Point]
FourPoints = tuple[Point, Point, Point, Point]


class Style(NamedTuple):
    """The line style of a relation; dashed if there are more relations than colours."""

    colour: str
    dashed: bool


def relation_styles(explanation: Explanation) -> dict[int, Style]:
    """The style of each relation on a path, by id; a relation and its inverse share one."""
    count = explanation.graph.num_relations
    edges = [edge for path in explanation.paths for edge in path.edges]
    relations = dict.fromkeys(int(explanation.batch.edges[1, edge]) % count for edge in edges)
    return {
        relation: Style(SERIES[number % len(SERIES)], number >= len(SERIES))
        for number, relation in enumerate(relations)
    }


def draw_neighbourhood(
    explanation: Explanation,
    layout: Layout,
    places: dict[int, Point],
    gap: float,
    label: Callable[[str], str] = lambda name: name,
) -> list[Shape]:
    """The entities at their positions and the edges between them, in drawing order.

    `label`: the text that is drawn for an entity or a relation.
    """
    graph, batch = explanation.graph, explanation.batch

    def name(entity: int) -> str:
        return graph.entities[int(batch.entities[entity])]

    def relation_text(relation: int) -> str:
        return label(graph.relation_name(relation))

    def fact(x: int, relation: int, o: int) -> str:
        return f"{label(name(x))} —{relation_text(relation)}→ {label(name(o))}"

    below: list[Shape] = []
    for (x, o), relations in layout.facts.items():
        title = fact(x, relations[0], o)
        if len(relations) > 1:  # in a dense graph, the names would make up most of the drawing
            names = map(relation_text, relations)
            title = "\n".join([f"{label(name(x))} → {label(name(o))}:", *names])
        below.append(Curve(_bent(places[x], places[o], 0), FAINT, 1, title=title))
    entities: list[Shape] = []
    covered: dict[int, Corners] = {}
    for place, centre in places.items():
        text = label(name(place))
        title = f"{text}\ndegree {int(batch.degree[place]):,} in the whole graph"
        shapes, covered[place] = _entity(
            explanation, place in layout.on_path, place, centre, name(place), text, title, gap
        )
        entities += shapes
    edges: list[Shape] = []
    labels: list[Shape] = []
    taken = list(covered.values())
    # Half the width and height of the box around an entity at which arrows stop.
    room = dict.fromkeys(places, (11.0, 11.0))
    for place in (explanation.source, explanation.target):
        room[place] = (covered[place][1][0] - places[place][0] + 2, 17.0)
    styles = relation_styles(explanation)
    used: dict[frozenset[int], list[float]] = {}
    for (x, relation, o), number in layout.path_edges.items():
        style = styles[relation % graph.num_relations]
        bends = used.setdefault(frozenset((x, o)), [])
        others = [corners for place, corners in covered.items() if place not in (x, o)]
        way = (places[x], places[o]) if x < o else (places[o], places[x])
        bends.append(_best_bend(*way, others, bends))
        curve = _bent(*way, bends[-1])
        if x > o:  # bends have the same sign in both directions
            curve = _reversed(curve)
        shown = _reversed(_trimmed(_reversed(_trimmed(curve, room[o])), room[x]))
        best = number == 0
        title = fact(x, relation, o)
        edges.append(Curve(shown, style.colour, 4.0 if best else 2.2, style.dashed, title))
        edges.append(arrow_head(shown, 13 if best else 10, style.colour))
        length = math.dist(shown[0], shown[3]) + abs(bends[-1])
        text = shortened(relation_text(relation), 12, min(max(length - 24, 70), 150), best)
        spot = _free_place(shown, text, best, taken)
        labels.append(Text(spot, text, 12, style.colour, "middle", best, halo=True, title=title))
    return [*below, *edges, *entities, *labels]


def _entity(
    explanation: Explanation,
    on_path: bool,
    entity: int,
    centre: Point,
    name: str,
    label: str,
    title: str,
    gap: float,
) -> tuple[list[Shape], Corners]:
    """One entity with its label, and the corners of their bounding box."""
    x, y = centre
    if entity in (explanation.source, explanation.target):
        text = shortened(label, 13, gap - 44, True)
        half = text_width(text, 13, True) / 2 + 13
        colour = QUERY if entity == explanation.source else ANSWER
        role = "query" if entity == explanation.source else "answer"
        return [
            Box((x - half, y - 15), 2 * half, 30, colour, 14, title, entity=name),
            Text((x, y + 4.5), text, 13, "#ffffff", "middle", True, title=title, entity=name),
            Text((x, y + 28), role, 10.5, colour, "middle", True, halo=True),
        ], ((x - half, y - 15), (x + half, y + 31))
    if on_path:
        text = shortened(label, 12, gap - 24, True)
        half = text_width(text, 12, True) / 2
        return [
            Circle(centre, 8, "#ffffff", INK, title, entity=name),
            Text((x, y + 23), text, 12, INK, "middle", True, halo=True, title=title, entity=name),
        ], ((x - half, y - 9), (x + half, y + 27))
    text = shortened(label, 10, gap - 30)
    below = "" if text == label else label  # the circle has the whole title
    half = text_width(text, 10) / 2
    return [
        Circle(centre, 3.5, FAINT, GREY, title, entity=name),
        Text((x, y + 15), text, 10, SOFT, "middle", halo=True, title=below, entity=name),
    ], ((x - half, y - 5), (x + half, y + 17))


def _best_bend(start: Point, end: Point, others: Sequence[Corners], used: Sequence[float]) -> float:
    """The smallest bend with which a curve avoids other entities and parallel edges."""

    def cost(bend: float) -> float:
        points = [_at(_bent(start, end, bend), step / 40) for step in range(2, 39)]
        hits = sum(overlap(others, ((x - 5, y - 5), (x + 5, y + 5))) / 100 for x, y in points)
        return hits + abs(bend) / 60

    return min((bend for bend in _BENDS if bend not in used), key=cost, default=_BENDS[0])


def _bent(start: Point, end: Point, bend: float) -> FourPoints:
    """A curve between two points, `bend` pixels off the straight line; bulges within a column."""
    (x, y), (a, b) = start, end
    dx, dy = a - x, b - y
    length = max((dx * dx + dy * dy) ** 0.5, 1.0)
    if start == end:
        return start, (x - 60, y - 60 - bend), (x + 60, y - 60 - bend), end
    if abs(dx) < 1:  # within a column, a straight line would cross the entities between
        bend += (26.0 + length / 10) * (1 if bend >= 0 else -1)
    ox, oy = -dy / length * bend, dx / length * bend
    return (
        start,
        (x + dx / 3 + ox, y + dy / 3 + oy),
        (x + 2 * dx / 3 + ox, y + 2 * dy / 3 + oy),
        end,
    )


def _at(curve: Sequence[Point], t: float) -> Point:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x, y = (sum(w * p[axis] for w, p in zip(weights, curve, strict=True)) for axis in (0, 1))
    return x, y


def _reversed(curve: FourPoints) -> FourPoints:
    return curve[3], curve[2], curve[1], curve[0]


def _trimmed(curve: FourPoints, room: Point) -> FourPoints:
    """The curve up to the box around its end; `room` is half the size of the box."""
    end = curve[3]
    t = 1.0
    while t > 0.5:
        x, y = _at(curve, t)
        if abs(x - end[0]) > room[0] or abs(y - end[1]) > room[1]:
            break
        t -= 0.01
    # De Casteljau's algorithm for the part from 0 to t.
    rows: list[list[Point]] = [list(curve)]
    for _ in range(3):
        last = rows[-1]
        rows.append(
            [
                (p[0] + (q[0] - p[0]) * t, p[1] + (q[1] - p[1]) * t)
                for p, q in itertools.pairwise(last)
            ]
        )
    return rows[0][0], rows[1][0], rows[2][0], rows[3][0]


def _free_place(curve: FourPoints, text: str, bold: bool, taken: list[Corners]) -> Point:
    """The position on the curve where a label overlaps least; its box is added to `taken`."""
    half = text_width(text, 12, bold) / 2 + 3

    def corners(t: float) -> Corners:
        x, y = _at(curve, t)
        return (x - half, y - 10), (x + half, y + 6)

    tries = (0.5, 0.42, 0.58, 0.35, 0.65, 0.28, 0.72, 0.22, 0.78)
    best = min(tries, key=lambda t: overlap(taken, corners(t)))  # the first one of equal positions
    taken.append(corners(best))
    x, y = _at(curve, best)
    return x, y + 4
