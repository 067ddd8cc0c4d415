"""AdaPropCoupling: entities chosen layer by layer by a learned score, in the manner of AdaProp.

Zhang et al., "AdaProp: Learning Adaptive Propagation for Graph Neural Network based Knowledge Graph
Reasoning" (KDD 2023).
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
    restricted,
    rows_of,
    segment_softmax,
    spread,
    subgraphs,
    with_forced,
)
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.predictor import Predictor
from oneshot.predictor.segments import EdgePlan
from oneshot.subgraph import SubgraphBatch

_TINY = 1e-20  # below which the logarithm of a random number is not taken


class AdaPropCoupling(Coupling):
    """Grows the entities of a query layer by layer: in each, `per_layer` of the new neighbours.

    `V⁰ = {u}`. Layer `l` sends messages from `V^(l−1)` along all edges to its neighbours, with the
    messages, aggregate and gate of our predictor. A linear score `g(h)` of the new states then
    chooses the neighbours that join: `V^l = V^(l−1) ∪ top-K`, so that nothing chosen is lost
    (incremental sampling). In training, Gumbel noise is added to `g / temperature`, which draws K
    neighbours by the softmax `p` of `g / temperature` without replacement, and the states of the
    chosen ones are multiplied by `1 − p + p`, where the first `p` has no gradient (straight-through
    estimator): otherwise `g` would not learn.

    The answer is one of `V^L`, scored by the readout of our predictor.
    """

    def __init__(
        self,
        config: PredictorConfig,
        num_relations: int,
        *,
        per_layer: int = 1000,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(config, num_relations, per_layer=per_layer, temperature=temperature)
        if per_layer < 1 or temperature <= 0:
            raise InputError("per_layer must be at least 1, and temperature above 0")
        check_layers(config)
        self.per_layer, self.temperature = per_layer, temperature
        self.network = Predictor(config, num_relations)
        self.choice = nn.Linear(config.dim, 1, bias=False)

    def forward(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        include: Tensor | None = None,
        watch: Watch | None = None,
    ) -> tuple[SubgraphBatch, Tensor]:
        network, size = self.network, graph.num_entities
        query = network.query(queries[:, 1])
        first, forced = first_keys(graph, queries), include_keys(graph, include)
        keys, state = first, network.start(query)
        gated = torch.zeros_like(state)
        wide, rows = keys, torch.arange(len(keys), device=keys.device)
        batch = subgraphs(graph, queries, keys, edges_out(graph, keys[:0]), rows)
        for number, layer in enumerate(network.layers, start=1):
            edges = edges_out(graph, keys)
            wide = torch.cat([keys, edges.target]).unique()
            old = torch.searchsorted(wide, keys)
            edges = OutEdges(old[edges.source], edges.relation, edges.target)
            batch = subgraphs(graph, queries, wide, edges, old)
            plan = EdgePlan(batch, self.num_relations, self.config.aggregate_over == "graph")
            state = layer(spread(state, old, len(wide)), plan, query)
            if network.gate is None:
                state = network.dropout(state)
            else:
                state = network.gate(state, spread(gated, old, len(wide)), None)
            is_kept, factor = self._choose(state, batch, wide, old, forced)
            rows = is_kept.nonzero().squeeze(1)
            keys = wide[rows]
            state = (state if factor is None else state * factor[:, None]).index_select(0, rows)
            gated = state
            if self.config.reinject:
                state = state.index_add(0, torch.searchsorted(keys, first), network.start(query))
            if watch is not None:
                watch(Chosen(number, keys // size, keys % size))
        batch = restricted(batch, rows)
        if forced is not None:
            batch, known = with_forced(graph, batch, keys, forced)
            state = spread(state, known, batch.num_entities)
        return batch, network.read(state, batch, query)

    def _choose(
        self,
        state: Tensor,
        batch: SubgraphBatch,
        keys: Tensor,
        old: Tensor,
        forced: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Which entities take part in the next layer, and the factors of their states.

        `state` [N, d] and `keys` [N] of the batch; `old` int64: rows chosen before; `forced`: keys.
        → (bool [N], [N] or None)
        """
        is_kept = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
        is_kept[old] = True
        new = (~is_kept).nonzero().squeeze(1)
        query = batch.entity_query[new]
        score = self.choice(state.index_select(0, new).float()).squeeze(1) / self.temperature
        drawn = score.detach()
        if self.training:
            drawn = drawn - (-torch.rand_like(drawn).clamp(min=_TINY).log()).log()
        chosen = best_rows(drawn, query, self.per_layer, batch.num_queries)
        if forced is not None:
            chosen |= rows_of(keys[new], forced) >= 0
        is_kept[new[chosen]] = True
        if not self.training:
            return is_kept, None
        share = segment_softmax(score, query, batch.num_queries)
        factor = torch.ones(len(keys), dtype=share.dtype, device=keys.device)
        return is_kept, factor.index_copy(0, new, 1 - share.detach() + share)
