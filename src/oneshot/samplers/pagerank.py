"""PageRankSampler: the entities that matter most in the whole graph, whatever the question."""

from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers._pagerank import pagerank
from oneshot.samplers.base import Sampler


class PageRankSampler(Sampler):
    """Global PageRank (restart 0.15): the same entities for every query, and `u`."""

    name = "pagerank"

    _latest: tuple[AdjacencyGraph, Tensor] | None = None

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        # The scores do not depend on the query: once a graph is enough.
        if self._latest is None or self._latest[0] is not graph:
            self._latest = graph, pagerank(graph)
        return self._latest[1].repeat(len(entities), 1)
