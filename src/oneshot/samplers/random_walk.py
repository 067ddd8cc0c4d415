"""RandomWalkSampler: the entities most often visited by walks from `u`."""

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers._budget import Count, Ratio
from oneshot.samplers._extract import EdgeScore
from oneshot.samplers.base import Sampler
from oneshot.system.hashed_random import uniform


class RandomWalkSampler(Sampler):
    """Random walks: the score is the number of visits of `walks` walks of `length` steps.

    Each step goes to a uniformly random neighbour, without restart; entities never visited
    have score 0. The paper specifies neither number nor length.
    """

    name = "random_walk"
    options = ("walks", "length")

    def __init__(
        self,
        entity_ratio: Ratio | None = None,
        edge_ratio: Ratio | None = None,
        *,
        walks: int = 100,
        length: int = 10,
        max_entities: Count | None = None,
        max_edges: Count | None = None,
        mass: Ratio | None = None,
        keep_unreachable: bool = True,
        edge_score: EdgeScore = "product",
        edge_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            entity_ratio,
            edge_ratio,
            max_entities=max_entities,
            max_edges=max_edges,
            mass=mass,
            keep_unreachable=keep_unreachable,
            edge_score=edge_score,
            edge_limit=edge_limit,
            seed=seed,
        )
        if walks < 1 or length < 1:
            raise InputError(f"walks and length must be at least 1, not {walks} and {length}")
        self.walks, self.length = walks, length

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        neighbours = graph.neighbours
        walk = torch.arange(self.walks, device=graph.device)
        start = entities[:, None]
        visits = torch.zeros(len(entities), graph.num_entities, device=graph.device)
        visits.scatter_(1, start, float(self.walks))
        at = start.expand(-1, self.walks)
        one = torch.ones(1, 1, device=graph.device).expand(at.shape)
        for step in range(self.length):
            number = uniform(self.seed, start, walk, torch.full_like(walk, step))
            degree = neighbours.degree[at]
            # `number` may be 1: take the last neighbour, not one beyond it.
            pick = torch.minimum((number * degree).long(), degree - 1)
            place = neighbours.place_of(at, pick).clamp(min=0, max=len(neighbours.index) - 1)
            if len(neighbours.index):
                at = torch.where(degree > 0, neighbours.index[place].long(), at)
            visits.scatter_add_(1, at, one)
        return visits
