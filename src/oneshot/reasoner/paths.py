"""Paths: the heaviest paths through the layers of a predictor, from `u` to an answer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.subgraph import SubgraphBatch

_NUMBERING = 0x5851F42D4C957F2D  # odd, so that no move is lost; a common multiplier of generators


class WeightedPath(NamedTuple):
    """A path as edge indices without identity edges, and its weight."""

    edges: tuple[int, ...]
    weight: float


def heaviest_paths(
    batch: SubgraphBatch, shares: Tensor, source: int, target: int, identity: int, beam: int
) -> list[WeightedPath]:
    """Paths from `source` to `target`, one edge per layer, with the highest sum of `shares` [L, E].

    The batch has one query. A layer may use an identity edge (relation `identity`); paths that
    differ only in the layers of their identity edges count as one, with the highest weight. No
    entity is visited twice (except `source`, if it is also the target). In every layer, the `beam`
    heaviest partial paths are kept at each entity. Heaviest first, ties by index.
    """
    origin, relation, goal = batch.edges
    distance = hops(batch, target, backwards=True)
    by_origin = origin.argsort(stable=True)
    degree = torch.bincount(origin, minlength=batch.num_entities)
    first = degree.cumsum(0) - degree
    # The partial paths, [P]: current entity, weight, a hash of the moves, and the visited entities
    # [P, l + 1].
    entity = torch.tensor([source], device=batch.device)
    weight = shares.new_zeros(1, dtype=torch.float64)
    moves = torch.zeros_like(entity)
    visited = entity[:, None] if source != target else torch.full_like(entity, -1)[:, None]
    # The path that has not moved yet occupies a slot at the source, and must not be pruned.
    beam += source == target
    trace: list[tuple[Tensor, Tensor]] = []
    for layer, share in enumerate(shares):
        row = torch.arange(len(entity), device=batch.device).repeat_interleave(degree[entity])
        place = torch.arange(len(row), device=batch.device)
        before = degree[entity].cumsum(0) - degree[entity]
        edge = by_origin[first[entity][row] + place - before[row]]
        stays = relation[edge] == identity
        # Paths at the target stay there; for the others, the target must still be within reach.
        useful = stays | (entity[row] != target) | (moves[row] == 0)
        useful &= distance[goal[edge]] < len(shares) - layer
        for past in visited.unbind(1):
            useful &= stays | (past[row] != goal[edge])
        row, edge, stays = row[useful], edge[useful], stays[useful]
        values = weight[row] + share[edge]
        # A 64-bit hash of the sequence of edges: collisions do not occur in practice.
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
    """The first path through each sequence of entities, and the number of others that share it.

    Such paths differ only in the choice among several facts between two entities. A path of one
    edge with the relation `apart` is never merged.
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
    """Indices of the `count` heaviest paths of each entity, one per hash of moves; all [P]."""
    order = weight.argsort(descending=True, stable=True)
    order = order[moves[order].argsort(stable=True)]
    order = order[entity[order].argsort(stable=True)]
    new = torch.ones_like(order, dtype=torch.bool)
    new[1:] = (entity[order].diff() != 0) | (moves[order].diff() != 0)
    order = order[new].sort().values  # ties by index again
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
    """Number of edges from `start` to each entity, int64 [N]; `N` if unreachable."""
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
