"""Layout of an explanation: which entities around its paths are drawn, and where.

Columns are distances from the query entity, from left to right. The paths run through the middle
of the columns; their neighbours are above and below.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from oneshot.reasoner.explanation import Explanation
from oneshot.reasoner.paths import hops

MAX_ENTITIES = 40
_MAX_NEIGHBOURS_IN_COLUMN = 9
_MAX_LINES = 60  # with more facts, those between two neighbours of the paths are not drawn
_SWEEPS = 8
_ON_PATH_PITCH, _NEIGHBOUR_PITCH = 78.0, 34.0


@dataclass(frozen=True)
class Layout:
    """Positions of the drawn entities, which are given by their indices in the subgraph.

    `column`: the column of each entity, from 0. `height`: its y, 0 at the top. `on_path`: entities
    on a path, including the query entity and the answer. `path_edges`: the distinct edges (x, r, o)
    of the paths, each with the number of the best path that contains it. `facts`: all other facts
    between drawn entities, (x, o) → relations; if there are very many, only those that touch a
    path.
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
    """Select the entities to draw and compute their positions."""
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
    drawn_in: dict[int, int] = defaultdict(int)
    for entity in order.tolist():
        if len(column) >= MAX_ENTITIES:
            break
        if drawn_in[distance[entity]] < _MAX_NEIGHBOURS_IN_COLUMN:
            drawn_in[distance[entity]] += 1
            column[entity] = min(distance[entity], max(column.values()) + 1)
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
    """The columns of the entities on paths: their distances, with the answer in the last column."""
    others = [entity for entity in on_path if entity != explanation.target]
    column = {entity: distance[entity] for entity in others}
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
    for entity in column:
        (middle if entity in on_path else around)[column[entity]].append(entity)
    height: dict[int, float] = {}
    for entities in middle.values():
        _spread(entities, height)
    for sweep in range(_SWEEPS):
        for number in sorted(middle, reverse=bool(sweep % 2)):
            entities = middle[number]
            entities.sort(key=lambda e: (_mean(by_path[e], height, height[e]), e))
            _spread(entities, height)
    for number, entities in around.items():
        # Of the entities on no path, the first half is above the paths and the second below.
        entities.sort(key=lambda e: (_mean(by_path[e] | by_fact[e], height, 0.0), e))
        half = len(entities) // 2
        band = _ON_PATH_PITCH / 2 * len(middle[number])
        for step, entity in enumerate(reversed(entities[:half])):
            height[entity] = -band - _NEIGHBOUR_PITCH * (step + 0.5)
        for step, entity in enumerate(entities[half:]):
            height[entity] = band + _NEIGHBOUR_PITCH * (step + 0.5)
    top = min(height.values())
    return {entity: value - top for entity, value in height.items()}


def _spread(entities: Sequence[int], height: dict[int, float]) -> None:
    """Space the entities of a column evenly around 0, in the given order."""
    for step, entity in enumerate(entities):
        height[entity] = _ON_PATH_PITCH * (step - (len(entities) - 1) / 2)


def _mean(entities: set[int], height: Mapping[int, float], otherwise: float) -> float:
    known = [height[entity] for entity in sorted(entities) if entity in height]
    return sum(known) / len(known) if known else otherwise
