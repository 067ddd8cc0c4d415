"""PageRankSampler: the entities of highest global PageRank, independent of the query."""

from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers._pagerank import pagerank
from oneshot.samplers.base import Sampler


class PageRankSampler(Sampler):
    """Global PageRank (restart 0.15): the same entities for every query, and `u`."""

    name = "pagerank"

    _latest: tuple[AdjacencyGraph, Tensor] | None = None

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        # The scores do not depend on the query: computed once per graph.
        if self._latest is None or self._latest[0] is not graph:
            self._latest = graph, pagerank(graph)
        return self._latest[1].repeat(len(entities), 1)
