"""RandomSampler: entities drawn uniformly, the floor of every comparison."""

import torch
from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers._hash import uniform
from oneshot.samplers.base import Sampler


class RandomSampler(Sampler):
    """Uniform choice: the score is a random number of the pair (u, entity) under `seed`."""

    name = "random"

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        everyone = torch.arange(graph.num_entities, device=graph.device)
        return uniform(self.seed, entities[:, None], everyone)
