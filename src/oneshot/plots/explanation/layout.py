"""Layout: which entities around an explanation's paths are drawn, and where.

Columns are distances from the question's entity, left to right; the paths run through the middle
of the columns, their neighbours lie above and below.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from oneshot.reasoner.explanation import Explanation
from oneshot.reasoner.paths import hops

MAX_ENTITIES = 40
_MAX_NEIGHBOURS_IN_COLUMN = 9
_MAX_LINES = 60  # beyond it, facts between two neighbours of the paths are not drawn
_SWEEPS = 8
_ON_PATH_PITCH, _NEIGHBOUR_PITCH = 78.0, 34.0


@dataclass(frozen=True)
class Layout:
    """Where entities are drawn; they are named by their places in the subgraph.

    `column`: of each entity, from 0. `height`: its y, 0 being the top. `on_path`: those that are
    on a path (the question's entity and the answer always). `path_edges`: the distinct edges
    (x, r, o) of the paths with the number of the best path each is on. `facts`: all other facts
    between drawn entities, (x, o) → relations; where there are very many, only those that touch
    a path.
    """

    column: Mapping[int, int]
    height: Mapping[int, float]
    on_path: Sequence[int]
    path_edges: Mapping[tuple[int, int, int], int]
    facts: Mapping[tuple[int, int], Sequence[int]]

    @property
    def columns(self) -> int:
        return max(self.column.values()) + 1

    @property
    def total_height(self) -> float:
        return max(self.height.values())


def lay_out(explanation: Explanation) -> Layout:
    """Choose the entities to draw and place them."""
    batch = explanation.batch.to("cpu")
    path_edges: dict[tuple[int, int, int], int] = {}
    on_path = dict.fromkeys([explanation.source])
    for number, path in enumerate(explanation.paths):
        for edge in path.edges:
            x, r, o = batch.edges[:, edge].tolist()
            path_edges.setdefault((x, r, o), number)
            on_path |= dict.fromkeys([x, o])
    on_path |= dict.fromkeys([explanation.target])
    distance = hops(batch, explanation.source).tolist()
    column = _columns(explanation, list(on_path), distance)
    chosen = torch.zeros(batch.num_entities, dtype=torch.bool)
    chosen[list(on_path)] = True
    source, relation, target = batch.edges
    near = torch.zeros_like(chosen)
    near[target[chosen[source]]] = True
    candidates = (near & ~chosen).nonzero().squeeze(1)
    order = candidates[batch.score[candidates].argsort(descending=True, stable=True)]
    crowd: dict[int, int] = defaultdict(int)
    for place in order.tolist():
        if len(column) >= MAX_ENTITIES:
            break
        if crowd[distance[place]] < _MAX_NEIGHBOURS_IN_COLUMN:
            crowd[distance[place]] += 1
            column[place] = min(distance[place], max(column.values()) + 1)
    chosen[list(column)] = True
    count = explanation.graph.num_relations
    drawn = chosen[source] & chosen[target] & (relation < count) & (source != target)
    facts: dict[tuple[int, int], list[int]] = {}
    for x, r, o in batch.edges[:, drawn].T.tolist():
        if (x, r, o) not in path_edges and (o, r + count, x) not in path_edges:
            facts.setdefault((x, o), []).append(r)
    if len(facts) > _MAX_LINES:
        facts = {pair: facts[pair] for pair in facts if not on_path.keys().isdisjoint(pair)}
    return Layout(
        column, _heights(column, list(on_path), path_edges, facts), list(on_path), path_edges, facts
    )


def _columns(
    explanation: Explanation, on_path: list[int], distance: Sequence[int]
) -> dict[int, int]:
    """The columns of the entities on paths: their distance, the answer right of all others."""
    others = [place for place in on_path if place != explanation.target]
    column = {place: distance[place] for place in others}
    if explanation.target == explanation.source:
        return {**column, explanation.target: 0}
    furthest = max(column.values())
    return {**column, explanation.target: furthest + (1 if explanation.reachable else 2)}


def _heights(
    column: Mapping[int, int],
    on_path: list[int],
    path_edges: Mapping[tuple[int, int, int], int],
    facts: Mapping[tuple[int, int], Sequence[int]],
) -> dict[int, float]:
    """The y of each entity: barycentre sweeps over the paths, then over their neighbours."""
    by_path: dict[int, set[int]] = defaultdict(set)
    for x, _, o in path_edges:
        by_path[x].add(o)
        by_path[o].add(x)
    by_fact: dict[int, set[int]] = defaultdict(set)
    for x, o in facts:
        by_fact[x].add(o)
        by_fact[o].add(x)
    middle: dict[int, list[int]] = defaultdict(list)
    around: dict[int, list[int]] = defaultdict(list)
    for place in column:
        (middle if place in on_path else around)[column[place]].append(place)
    height: dict[int, float] = {}
    for places in middle.values():
        _spread(places, height)
    for sweep in range(_SWEEPS):
        for number in sorted(middle, reverse=bool(sweep % 2)):
            places = middle[number]
            places.sort(key=lambda place: (_mean(by_path[place], height, height[place]), place))
            _spread(places, height)
    for number, places in around.items():
        # Of those on no path, the first half goes above the paths and the second below.
        places.sort(key=lambda place: (_mean(by_path[place] | by_fact[place], height, 0.0), place))
        half = len(places) // 2
        band = _ON_PATH_PITCH / 2 * len(middle[number])
        for step, place in enumerate(reversed(places[:half])):
            height[place] = -band - _NEIGHBOUR_PITCH * (step + 0.5)
        for step, place in enumerate(places[half:]):
            height[place] = band + _NEIGHBOUR_PITCH * (step + 0.5)
    top = min(height.values())
    return {place: value - top for place, value in height.items()}


def _spread(places: Sequence[int], height: dict[int, float]) -> None:
    """Space entities of a column evenly around 0, in the order given."""
    for step, place in enumerate(places):
        height[place] = _ON_PATH_PITCH * (step - (len(places) - 1) / 2)


def _mean(places: set[int], height: Mapping[int, float], otherwise: float) -> float:
    known = [height[place] for place in sorted(places) if place in height]
    return sum(known) / len(known) if known else otherwise
