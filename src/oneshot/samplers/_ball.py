"""Local PPR in a ball: scores around one entity, for graphs without hubs.

Power iteration touches every entity of the graph in every step. Here, probability is pushed
outwards from `u` only as far as necessary: in each round, the entities with the most probability
join the ball and pass it on to their neighbours, until the ball has several times as many entities
as requested. The scores inside the ball are then computed as on a whole graph, with the true
degrees; only walks that leave the ball and return are missed.

Large hubs make this inefficient: a push through a hub touches all its neighbours, nearly all of
which have the same small score, so the ball must be large to contain the right ones. On graphs
with hubs, `_push` is better.
"""

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph, Neighbours
from oneshot.graph.sparse import SparseMatrix
from oneshot.samplers._pagerank import chebyshev, check_unweighted

# An entity joins the ball if it has at least this share of the round's highest probability.
_JOIN_SHARE = 0.1


class BallWorkspace:
    """Scratch memory over all entities of a graph, reset between uses.

    Allocated once per graph size, so that the cost of a push depends only on what it touches.
    `mass` float32 [V]: probability that has arrived; `mark` int64 [V]: any content;
    `joined` bool [V]: whether the entity is in the ball.
    """

    def __init__(self, graph: AdjacencyGraph) -> None:
        self.mass = _zeros(graph, np.float32)
        self.mark = torch.empty(graph.num_entities, dtype=torch.long, device=graph.device)
        self.joined = _zeros(graph, np.bool_)

    def fits(self, graph: AdjacencyGraph) -> bool:
        """Whether it can also be used for another graph, for example a changed one."""
        return len(self.mass) == graph.num_entities and self.mass.device == graph.device


def ppr_ball(
    graph: AdjacencyGraph,
    entity: int,
    restart: float,
    ball_size: int,
    workspace: BallWorkspace,
    steps: int | None = None,
) -> tuple[Tensor, Tensor]:
    """PPR scores around one entity. → (entities int64 [m] sorted, scores [m], all positive).

    `m` is at most `ball_size`, and smaller only if no more entities are reachable.
    """
    check_unweighted(graph, "ball")
    neighbours = graph.neighbours
    ball = grow_ball(neighbours, entity, restart, ball_size, workspace)
    if len(ball) == 1:
        return ball, torch.ones(1, device=ball.device)
    row, reached = expand(neighbours, ball)
    # Edges inside the ball, with local indices.
    workspace.mark[ball] = torch.arange(len(ball), device=ball.device)
    column = workspace.mark[reached].clamp_(0, len(ball) - 1)
    inside = ball[column] == reached
    row, column = row[inside], column[inside]
    degree = neighbours.degree_of(ball).clamp(min=1)
    root = degree.float().sqrt()
    indptr = torch.cat([row.new_zeros(1), torch.bincount(row, minlength=len(ball)).cumsum(0)])
    matrix = SparseMatrix(indptr, column, 1 / (root[row] * root[column]), len(ball))
    place = torch.searchsorted(ball, torch.tensor([entity], device=ball.device))
    scores = chebyshev(matrix, place, 1 / root[place], restart, steps).squeeze(1)
    return ball, scores * root


def grow_ball(
    neighbours: Neighbours, entity: int, restart: float, size: int, workspace: BallWorkspace
) -> Tensor:
    """The entities around `entity` that receive most probability, sorted, int64 [≤ size].

    Each entity passes on its probability once, when it joins, so every edge of the ball is read
    only once.
    """
    mass, joined = workspace.mass, workspace.joined
    joining = torch.tensor([entity], device=mass.device)
    mass[joining] = 1
    joined[joining] = True
    ball = [joining]
    missing = size - 1
    waiting = joining[:0]  # reached, but not in the ball
    while missing > 0:
        row, reached = expand(neighbours, joining)
        share = (1 - restart) * mass[joining] / neighbours.degree_of(joining).clamp(min=1)
        outside = ~joined[reached]
        row, reached = row[outside], reached[outside]
        mass.index_add_(0, reached, share[row])
        waiting = _distinct(torch.cat([waiting, reached]), workspace.mark)
        if not len(waiting):
            break
        held = mass[waiting]
        joins = held >= _JOIN_SHARE * held.max()
        if int(joins.sum()) > missing:
            joins = torch.zeros_like(joins)
            joins[held.topk(missing).indices] = True
        joining, waiting = waiting[joins], waiting[~joins]
        joined[joining] = True
        ball.append(joining)
        missing -= len(joining)
    entities = torch.cat(ball).sort().values
    mass[entities] = 0
    mass[waiting] = 0
    joined[entities] = False
    return entities


def _zeros(graph: AdjacencyGraph, dtype: DTypeLike) -> Tensor:
    """Zeros over all entities, [V].

    From numpy, which gets zeroed memory from the system: on a CPU, only the touched pages are
    allocated, and the first query does not wait for the rest.
    """
    return torch.from_numpy(np.zeros(graph.num_entities, dtype)).to(graph.device)


def expand(neighbours: Neighbours, entities: Tensor) -> tuple[Tensor, Tensor]:
    """All neighbours of some entities: (index in `entities` [m], neighbour [m]), int64."""
    row, place = neighbours.places(entities, neighbours.degree_of(entities))
    return row, neighbours.index[place].long()


def _distinct(entities: Tensor, mark: Tensor) -> Tensor:
    """Each entity once, without sorting: the last occurrence is kept."""
    places = torch.arange(len(entities), device=entities.device)
    mark[entities] = places
    return entities[mark[entities] == places]
