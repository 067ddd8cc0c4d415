"""GraILCoupling: a subgraph for each candidate, in the manner of GraIL.

Teru et al., "Inductive Relation Prediction by Subgraph Reasoning" (ICML 2020).
"""

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.experiments.rivals.coupling import Chosen, Coupling, Watch
from oneshot.experiments.rivals.enclosing import EnclosingBatch, enclosing_subgraphs
from oneshot.experiments.rivals.propagation import best_rows, edges_out, first_keys
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.predictor.segments import Rows
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch


class PairLayer(nn.Module):
    """A relational convolution with an attention that depends on the relation of the pair.

    `h'_o = ReLU(W_0 h_o + mean(a · W_r h_x))` over the edges `(x, r, o)`, where `W_r` is a
    combination of `bases` matrices, and `a = σ(w · ReLU(A [h_x, h_o, e_r, e_q]))`. The mean, as in
    R-GCN: in a dense graph, sums grow with each layer.
    """

    def __init__(self, width: int, config: PredictorConfig, num_relations: int, bases: int) -> None:
        super().__init__()
        kinds, dim, hidden = 2 * num_relations, config.dim, config.attention_dim
        self.own = nn.Linear(width, dim, bias=False)
        self.basis = nn.Linear(bases * width, dim, bias=False)
        self.share = nn.Embedding(kinds, bases)
        nn.init.normal_(self.share.weight, std=bases**-0.5)
        self.from_source = nn.Linear(width, hidden)
        self.from_target = nn.Linear(width, hidden, bias=False)
        self.from_relation = nn.Embedding(kinds, hidden)
        self.from_query = nn.Embedding(kinds, hidden)
        self.attention = nn.Linear(hidden, 1)

    def forward(self, state: Tensor, plan: "_PairPlan") -> Tensor:
        """`state` [N, width] → [N, dim]."""
        hidden = plan.source.pick(self.from_source(state))
        hidden = hidden + plan.target.pick(self.from_target(state))
        hidden = hidden + plan.relation.pick(self.from_relation.weight)
        hidden = hidden + plan.query.pick(self.from_query.weight)
        attention = self.attention(hidden.relu()).sigmoid()
        # The bases are applied to the sums, which are fewer than the edges.
        share = plan.relation.pick(self.share.weight) * attention
        sent = plan.source.pick(state)
        mixed = (share[:, :, None] * sent[:, None, :]).flatten(1)
        received = plan.target.add(mixed) / plan.received
        new: Tensor = self.own(state) + self.basis(received)
        return new.relu()


class _PairPlan:
    """The edges of enclosing subgraphs as rows of the tables that a layer uses.

    `received` [N, 1]: number of edges into each entity, at least 1.
    """

    def __init__(self, batch: EnclosingBatch, relations: Tensor, num_relations: int) -> None:
        source, relation, target = batch.edges
        kinds = 2 * num_relations
        self.source = Rows(source, len(batch.entities))
        self.target = Rows(target, len(batch.entities), is_sorted=True)
        self.relation = Rows(relation, kinds)
        self.query = Rows(relations[batch.pair[target]], kinds)
        self.received = self.target.count.clamp(min=1)[:, None].to(torch.float32)


class GraILCoupling(Coupling):
    """Re-ranks the best candidates of another reasoner, each by a subgraph of its own.

    The enclosing subgraph of query entity `u` and candidate `v` has the entities within `hops`
    steps of both. An entity starts with a one-hot vector of its distances to `u` and `v` (double
    radius labels); `num_layers` relational convolutions follow; the score is linear in the mean of
    all states, those of `u` and `v`, of all layers, and an embedding of the query relation.

    `retriever`: the reasoner whose `candidates` best entities are scored again; facts of the graph
    are no candidates. The candidates come first, in their new order; all other entities keep their
    scores. `negatives`: number of the retriever's candidates per
    training query beside the answer.
    """

    def __init__(
        self,
        config: PredictorConfig,
        num_relations: int,
        retriever: Reasoner,
        *,
        candidates: int = 20,
        negatives: int = 9,
        hops: int = 2,
        bases: int = 4,
    ) -> None:
        counts = {"candidates": candidates, "negatives": negatives, "hops": hops, "bases": bases}
        super().__init__(config, num_relations, **counts)
        if min(candidates, negatives, hops, bases) < 1:
            raise InputError("candidates, negatives, hops and bases must be at least 1")
        retriever.predictor.check_graph(num_relations)
        # In a list, so that its parameters are not trained and not saved with ours.
        self._retriever = [retriever]
        self.candidates, self.negatives, self.hops = candidates, negatives, hops
        labels = 2 * (hops + 1)
        dim, layers = config.dim, config.num_layers
        self.layers = nn.ModuleList(
            PairLayer(labels if not number else dim, config, num_relations, bases)
            for number in range(layers)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.embedding = nn.Embedding(2 * num_relations, dim)
        self.readout = nn.Linear(3 * dim * layers + dim, 1)

    @property
    def retriever(self) -> Reasoner:
        return self._retriever[0]

    def forward(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        include: Tensor | None = None,
        watch: Watch | None = None,
    ) -> tuple[SubgraphBatch, Tensor]:
        batch, scores = self._retrieved(graph, queries, include)
        rows = self._best(graph, batch, scores, self.candidates)
        query = batch.entity_query[rows]
        if watch is not None:
            watch(Chosen(1, query, batch.entities[rows]))
        again = self.pair_scores(graph, queries, query, batch.entities[rows])
        return batch, reordered(scores, batch.entity_query, rows, again, len(queries))

    def training_scores(
        self, graph: AdjacencyGraph, queries: Tensor, answers: Tensor
    ) -> tuple[SubgraphBatch, Tensor]:
        """The candidates of a training step, the answer among them, and their scores."""
        size, count = graph.num_entities, len(queries)
        batch, scores = self._retrieved(graph, queries, None)
        # Facts that are hidden in this epoch are no negatives: the retriever's graph has all.
        rows = self._best(self.retriever.graph, batch, scores, self.negatives)
        number = torch.arange(count, device=queries.device)
        keys = torch.cat(
            [batch.entity_query[rows] * size + batch.entities[rows], number * size + answers]
        ).unique()
        query, entities = keys // size, keys % size
        found = self.pair_scores(graph, queries, query, entities)
        candidates = SubgraphBatch(
            queries=queries,
            entities=entities,
            entity_query=query,
            source=torch.searchsorted(query, number),
            score=torch.zeros_like(found),
            degree=graph.degree_of(entities),
            edges=keys.new_empty(3, 0),
            edge_query=keys.new_empty(0),
        )
        return candidates, found

    def pair_scores(
        self, graph: AdjacencyGraph, queries: Tensor, query: Tensor, entities: Tensor
    ) -> Tensor:
        """The scores of pairs: `query` int64 [m], the query of each, `entities` int64 [m] → [m]."""
        heads, relations = queries[query].unbind(1)
        batch = enclosing_subgraphs(graph, heads, relations, entities, self.hops)
        plan = _PairPlan(batch, relations, self.num_relations)
        labels = [
            nn.functional.one_hot(steps, self.hops + 1) for steps in (batch.to_head, batch.to_tail)
        ]
        state = torch.cat(labels, dim=1).to(self.readout.weight.dtype)
        pairs = Rows(batch.pair, len(entities), is_sorted=True)
        size = pairs.count[:, None].to(state.dtype)
        parts = [self.embedding(relations)]
        for layer in self.layers:
            state = self.dropout(layer(state, plan))
            parts += [pairs.add(state) / size, state[batch.head], state[batch.tail]]
        scores: Tensor = self.readout(torch.cat(parts, dim=1))
        return scores.squeeze(1)

    def _retrieved(
        self, graph: AdjacencyGraph, queries: Tensor, include: Tensor | None
    ) -> tuple[SubgraphBatch, Tensor]:
        """The subgraphs of the retriever on a graph, and its scores."""
        batch = self.retriever.sampler.sample(graph, queries, include)
        return batch, self.retriever.scores(batch)

    def _best(
        self, graph: AdjacencyGraph, batch: SubgraphBatch, scores: Tensor, count: int
    ) -> Tensor:
        """Rows of the best entities of each query that are no answers in the graph."""
        row, entities = known_answers(graph, batch.queries)
        at = batch.find_pairs(row, entities)
        is_known = torch.zeros(batch.num_entities, dtype=torch.bool, device=batch.device)
        is_known[at[at >= 0]] = True
        rows = (~is_known).nonzero().squeeze(1)
        best = best_rows(scores[rows], batch.entity_query[rows], count, batch.num_queries)
        return rows[best]


def known_answers(graph: AdjacencyGraph, queries: Tensor) -> tuple[Tensor, Tensor]:
    """The answers of queries [n, 2] in a graph: (number of the query [m], entities [m])."""
    edges = edges_out(graph, first_keys(graph, queries))
    kept = edges.relation == queries[edges.source, 1]
    return edges.source[kept], edges.target[kept] % graph.num_entities


def reordered(
    scores: Tensor, number: Tensor, rows: Tensor, again: Tensor, num_queries: int
) -> Tensor:
    """Scores [N] in which some rows [m] of each query come first, in the order of other scores.

    `number` int64 [N]: the query of each row; `again` [m]: the scores that decide, then those
    before. The rows get consecutive values above the highest score of their query; rows that are
    equal in both stay equal.
    """
    query, before = number[rows], scores[rows]
    order = before.argsort(descending=True, stable=True)
    order = order[again[order].argsort(descending=True, stable=True)]
    order = order[query[order].argsort(stable=True)]
    columns = (query[order], again[order], before[order])
    is_next = torch.ones_like(order, dtype=torch.bool)
    is_next[1:] = torch.stack([column[1:] != column[:-1] for column in columns]).any(0)
    step = is_next.cumsum(0)
    last = step.new_zeros(num_queries).scatter_reduce(0, columns[0], step, "amax")
    highest = scores.new_full((num_queries,), -torch.inf).scatter_reduce(0, number, scores, "amax")
    new = scores.clone()
    new[rows[order]] = highest[columns[0]] + (last[columns[0]] - step + 1).to(scores.dtype)
    return new
