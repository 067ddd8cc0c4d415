"""BFSSampler: the entities nearest by hop distance."""

import torch
from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers.base import Sampler


class BFSSampler(Sampler):
    """Breadth-first search: the score of an entity at `d` hops from `u` is `1 / (1 + d)`."""

    name = "bfs"

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        adjacency = graph.normalized_adjacency()
        columns = torch.arange(len(entities), device=graph.device)
        frontier = torch.zeros(graph.num_entities, len(entities), device=graph.device)
        frontier[entities, columns] = 1
        scores = frontier.clone()
        hops = 0
        while True:
            hops += 1
            # Only the sign of the product matters, not the weights of the matrix.
            new = ((adjacency @ frontier) > 0) & (scores == 0)
            if not bool(new.any()):
                return scores.t().contiguous()
            frontier = new.to(scores.dtype)
            scores.add_(frontier, alpha=1 / (1 + hops))
