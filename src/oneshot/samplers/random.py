"""RandomSampler: uniformly random entities, as the lower baseline of comparisons."""

import torch
from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers.base import Sampler
from oneshot.system.hashed_random import uniform


class RandomSampler(Sampler):
    """Uniform sampling: the score is a random number that depends on `seed`, u and entity."""

    name = "random"

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        everyone = torch.arange(graph.num_entities, device=graph.device)
        return uniform(self.seed, entities[:, None], everyone)
