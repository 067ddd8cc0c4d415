"""AStarNetCoupling: a learned priority selects what takes part in each layer, as in A*Net.

Zhu et al., "A*Net: A Scalable Path-based Reasoning Approach for Knowledge Graphs" (NeurIPS 2023).
"""

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.experiments.rivals.coupling import Chosen, Coupling, Watch, check_layers
from oneshot.experiments.rivals.propagation import (
    OutEdges,
    best_rows,
    edges_out,
    first_keys,
    include_keys,
    rows_of,
    spread,
    subgraphs,
    with_forced,
)
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.predictor import Predictor
from oneshot.predictor.messages import Query
from oneshot.predictor.segments import EdgePlan
from oneshot.subgraph import SubgraphBatch


class AStarNetCoupling(Coupling):
    """Sends messages, in each layer, only from the entities of highest priority.

    The priority of an entity is `s = σ(f([h, g([h, h_q])]))` with its state `h`, the embedding
    `h_q` of the query relation, and two networks `f` and `g` that all layers share; `g` takes the
    position of the heuristic of the A* algorithm, which estimates the way that is left. Each layer
    takes the `entity_ratio · |V|` reached entities of highest priority; of the edges out of them
    the `edge_ratio · entity_ratio · |E|` whose targets have the highest priority, counting the
    edges of the graph in both directions; and updates the states of the targets. Messages are
    multiplied by the priority of their source, so that the priority learns from the loss. The score
    of an answer is the priority after the last layer, before the sigmoid function.

    An entity that takes part also sends a message to itself, as in our predictor.
    """

    def __init__(
        self,
        config: PredictorConfig,
        num_relations: int,
        *,
        entity_ratio: float = 0.1,
        edge_ratio: float = 1.0,
    ) -> None:
        budget = {"entity_ratio": entity_ratio, "edge_ratio": edge_ratio}
        super().__init__(config, num_relations, **budget)
        if not (0 < entity_ratio <= 1 and edge_ratio > 0):
            raise InputError("entity_ratio must be in (0, 1], and edge_ratio above 0")
        check_layers(config)
        if config.gate or config.initial != "relational":
            raise InputError('A*Net has no gate, and initial = "relational"')
        self.entity_ratio, self.edge_ratio = entity_ratio, edge_ratio
        self.network = Predictor(config, num_relations)
        self.network.readout = None  # the priority takes its position
        dim = config.dim
        self.heuristic = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.priority = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        include: Tensor | None = None,
        watch: Watch | None = None,
    ) -> tuple[SubgraphBatch, Tensor]:
        network, size, count = self.network, graph.num_entities, len(queries)
        most = max(1, int(self.entity_ratio * size))
        most_edges = max(1, int(self.edge_ratio * self.entity_ratio * 2 * graph.num_facts))
        query = network.query(queries[:, 1])
        start = network.start(query)
        keys = first = first_keys(graph, queries)
        state = start
        number = torch.arange(count, device=keys.device)
        logit = self._logits(state, number, query)
        # The priority of an entity that no message has reached.
        unreached = self._logits(torch.zeros_like(start), number, query)
        batch = subgraphs(graph, queries, keys, edges_out(graph, keys[:0]), number)
        for step, layer in enumerate(network.layers, start=1):
            # The entities that send, and their edges.
            chosen = best_rows(logit.detach(), keys // size, most, count).nonzero().squeeze(1)
            edges = edges_out(graph, keys[chosen])
            edges = OutEdges(chosen[edges.source], edges.relation, edges.target)
            edges = self._best_edges(edges, keys, logit, unreached, most_edges, size)
            # Rows of this layer: senders and receivers.
            part = torch.cat([keys[chosen], edges.target]).unique()
            before = rows_of(part, keys)
            known = (before >= 0).nonzero().squeeze(1)
            old = spread(state.index_select(0, before[known]), known, len(part))
            old_logit = unreached[part // size].index_copy(
                0, known, logit.index_select(0, before[known])
            )
            source = torch.searchsorted(part, keys[edges.source])
            # Query entities may have too low a priority to take part.
            batch = subgraphs(
                graph,
                queries,
                part,
                OutEdges(source, edges.relation, edges.target),
                torch.arange(len(part), device=part.device),
            )
            plan = EdgePlan(batch, self.num_relations, self.config.aggregate_over == "graph")
            new = layer(old, plan, query, old_logit.sigmoid().index_select(0, batch.edges[0]))
            new = network.dropout(new)
            if self.config.reinject:
                place = rows_of(first, part)
                there = (place >= 0).nonzero().squeeze(1)
                new = new.index_add(0, place[there], start.index_select(0, there).to(new.dtype))
            # States and priorities of all that was reached so far.
            every = torch.cat([keys, part]).unique()
            kept, fresh = torch.searchsorted(every, keys), torch.searchsorted(every, part)
            state = spread(state.to(new.dtype), kept, len(every)).index_copy(0, fresh, new)
            logit = spread(logit, kept, len(every)).index_copy(
                0, fresh, self._logits(new, part // size, query)
            )
            keys = every
            if watch is not None:
                watch(Chosen(step, keys // size, keys % size))
        return self._answered(graph, queries, batch, keys, logit, include, unreached)

    def _logits(self, state: Tensor, number: Tensor, query: Query) -> Tensor:
        """The priorities of entities before the sigmoid function.

        `state` [m, d]; `number` int64 [m]: the query of each. → [m]
        """
        assert query.embedding is not None
        asked = query.embedding.index_select(0, number).to(state.dtype)
        left = self.heuristic(torch.cat([state, asked], dim=1))
        found: Tensor = self.priority(torch.cat([state, left], dim=1))
        return found.squeeze(1).float()

    def _best_edges(
        self,
        edges: OutEdges,
        keys: Tensor,
        logit: Tensor,
        unreached: Tensor,
        most: int,
        size: int,
    ) -> OutEdges:
        """The edges into the entities of highest priority, at most `most` per query."""
        query, count = edges.target // size, len(unreached)
        row = rows_of(edges.target, keys)
        found = logit.detach()[row.clamp(min=0)]
        score = torch.where(row >= 0, found, unreached.detach()[query])
        return edges.where(best_rows(score, query, most, count))

    def _answered(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        batch: SubgraphBatch,
        keys: Tensor,
        logit: Tensor,
        include: Tensor | None,
        unreached: Tensor,
    ) -> tuple[SubgraphBatch, Tensor]:
        """All reached entities with the edges of the last layer, and their scores."""
        size = graph.num_entities
        rows = torch.searchsorted(keys, batch.entity_query * size + batch.entities)
        edges = OutEdges(rows[batch.edges[0]], batch.edges[1], keys[rows[batch.edges[2]]])
        batch = subgraphs(graph, queries, keys, edges, keys[:0])
        forced = include_keys(graph, include)
        if forced is None:
            return batch, logit
        batch, known = with_forced(graph, batch, keys, forced)
        scores = unreached[batch.entity_query]
        return batch, scores.index_copy(0, known, logit)
