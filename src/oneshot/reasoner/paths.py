"""Paths: the heaviest ways through the layers of a predictor, from `u` to an answer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.subgraph import SubgraphBatch

_NUMBERING = 0x5851F42D4C957F2D  # odd, so that no move is lost; a generator's usual multiplier


class WeightedPath(NamedTuple):
    """A path as places of edges, identity edges left out, and its weight."""

    edges: tuple[int, ...]
    weight: float


def heaviest_paths(
    batch: SubgraphBatch, shares: Tensor, source: int, target: int, identity: int, beam: int
) -> list[WeightedPath]:
    """Paths of one edge a layer from `source` to `target` of highest sum of `shares` [L, E].

    Batch of one query. A layer may be spent on an identity edge (relation `identity`); paths that
    differ only in when they stay are one, of the weight of the best. No entity is visited twice
    (but `source`, where it is also the target). In every layer the `beam` heaviest partial paths
    are kept at each entity. Heaviest first, ties by place.
    """
    origin, relation, goal = batch.edges
    distance = hops(batch, target, backwards=True)
    by_origin = origin.argsort(stable=True)
    degree = torch.bincount(origin, minlength=batch.num_entities)
    first = degree.cumsum(0) - degree
    # The partial paths, [P]: where each stands, its weight, a number that stands for its moves,
    # and the entities it has visited [P, l + 1].
    entity = torch.tensor([source], device=batch.device)
    weight = shares.new_zeros(1, dtype=torch.float64)
    moves = torch.zeros_like(entity)
    visited = entity[:, None] if source != target else torch.full_like(entity, -1)[:, None]
    # A path that has not moved yet takes a place at the source, and must not be the last there.
    beam += source == target
    trace: list[tuple[Tensor, Tensor]] = []
    for layer, share in enumerate(shares):
        row = torch.arange(len(entity), device=batch.device).repeat_interleave(degree[entity])
        place = torch.arange(len(row), device=batch.device)
        before = degree[entity].cumsum(0) - degree[entity]
        edge = by_origin[first[entity][row] + place - before[row]]
        stays = relation[edge] == identity
        # Who has arrived stays; and the answer must still be near enough.
        useful = stays | (entity[row] != target) | (moves[row] == 0)
        useful &= distance[goal[edge]] < len(shares) - layer
        for past in visited.unbind(1):
            useful &= stays | (past[row] != goal[edge])
        row, edge, stays = row[useful], edge[useful], stays[useful]
        values = weight[row] + share[edge]
        # 64 bits stand for a sequence of edges: different ones do not meet in practice.
        numbers = torch.where(stays, moves[row], (moves[row] + edge + 1) * _NUMBERING)
        kept = _best_of_each(goal[edge], numbers, values, beam)
        row, edge = row[kept], edge[kept]
        entity, weight, moves = goal[edge], values[kept], numbers[kept]
        arrived = torch.where(stays[kept], -1, entity)
        visited = torch.cat([visited[row], arrived[:, None]], dim=1)
        trace.append((row, edge))
    arrived = ((entity == target) & (moves != 0)).nonzero().squeeze(1)
    order = arrived[weight[arrived].argsort(descending=True, stable=True)]
    return [
        WeightedPath(_followed_back(trace, int(end), relation, identity), float(weight[end]))
        for end in order
    ]


def routes(
    batch: SubgraphBatch, paths: Sequence[WeightedPath], apart: int
) -> list[tuple[WeightedPath, int]]:
    """The first of the paths through each sequence of entities, and how many others share it.

    Such paths differ only in which of several facts between two entities they take. A path of
    one edge with the relation `apart` stands for itself.
    """
    first: dict[tuple[int, ...], WeightedPath] = {}
    shared: dict[tuple[int, ...], int] = {}
    for path in paths:
        origin, relation, goal = batch.edges[:, list(path.edges)].tolist()
        key = (-1,) if relation == [apart] else (*origin, goal[-1])
        first.setdefault(key, path)
        shared[key] = shared.get(key, -1) + 1
    return [(path, shared[key]) for key, path in first.items()]


def _best_of_each(entity: Tensor, moves: Tensor, weight: Tensor, count: int) -> Tensor:
    """Places of the `count` heaviest of each entity, one for each number of moves; all [P]."""
    order = weight.argsort(descending=True, stable=True)
    order = order[moves[order].argsort(stable=True)]
    order = order[entity[order].argsort(stable=True)]
    new = torch.ones_like(order, dtype=torch.bool)
    new[1:] = (entity[order].diff() != 0) | (moves[order].diff() != 0)
    order = order[new].sort().values  # ties by place again
    order = order[weight[order].argsort(descending=True, stable=True)]
    order = order[entity[order].argsort(stable=True)]
    counts = torch.bincount(entity[order])
    start = counts.cumsum(0) - counts
    rank = torch.arange(len(order), device=order.device) - start[entity[order]]
    return order[rank < count]


def _followed_back(
    trace: Sequence[tuple[Tensor, Tensor]], end: int, relation: Tensor, identity: int
) -> tuple[int, ...]:
    edges = []
    for row, edge in reversed(trace):
        edges.append(int(edge[end]))
        end = int(row[end])
    return tuple(edge for edge in reversed(edges) if int(relation[edge]) != identity)


def hops(batch: SubgraphBatch, start: int, backwards: bool = False) -> Tensor:
    """Number of edges from `start` to each entity, int64 [N]; [N] where there is no way."""
    origin, goal = batch.edges[[2, 0] if backwards else [0, 2]]
    distance = torch.full((batch.num_entities,), batch.num_entities, device=batch.device)
    distance[start] = 0
    for step in range(1, batch.num_entities):
        reached = goal[distance[origin] == step - 1]
        reached = reached[distance[reached] > step]
        if not len(reached):
            break
        distance[reached] = step
    return distance
