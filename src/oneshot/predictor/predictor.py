"""Predictor: the query-conditioned graph neural network that reasons on the subgraph.

It has no entity embeddings: its size depends only on the number of relations, so it applies to
entities and whole graphs that it has never seen. With relative relations it does not depend on them
either, and applies to graphs with other relations.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.graph.relation_graph import RelationGraph
from oneshot.predictor.fused import fused_plan, fused_scores, why_not_fused
from oneshot.predictor.layer import Gate, Layer, reached_next
from oneshot.predictor.messages import MESSAGES, Query
from oneshot.predictor.priors import NUM_PRIORS, SCALE, prior_features
from oneshot.predictor.readout import QueryReadout
from oneshot.predictor.relations import RelationNetwork
from oneshot.predictor.segments import EdgePlan, Rows, look_up
from oneshot.subgraph import SubgraphBatch

if TYPE_CHECKING:
    from oneshot.predictor.cpu.plan import CPUPlan
    from oneshot.predictor.kernels.plan import FusedPlan

Engine = Literal["auto", "plain", "fused"]


class Predictor(nn.Module):
    """Scores the entities of each subgraph as answers to its query.

    `h⁰` is zero except on the query entity `u`. Each layer sends messages along the edges, so that
    after `l` layers an entity's state describes the paths of up to `l` edges from `u` to it. The
    score is computed from the last state (or, with `concat`, from all of them).

    `engine`: "plain" uses PyTorch operations, "fused" kernels for the GPU or the CPU, "auto" the
    kernels if available. Both give the same result.

    With relative relations, `relate` sets the relation graph, and with it `num_relations`, before
    the predictor is used; the reasoner and the training do so.
    """

    def __init__(self, config: PredictorConfig, num_relations: int) -> None:
        super().__init__()
        self.config = config
        self.num_relations = num_relations
        self.engine: Engine = "auto"
        kinds = 2 * num_relations + 1
        message = MESSAGES[config.message]
        is_relative = config.relations == "relative"
        self.relation_network = RelationNetwork(config) if is_relative else None
        self.relation_graph: RelationGraph | None = None
        self.query_embedding = (
            nn.Embedding(kinds, config.dim)
            if not is_relative
            and (
                message.needs_query_embedding
                or config.initial == "relational"
                or config.readout == "mlp"
            )
            else None
        )
        # Named as in saved runs, after the only message with such weights.
        self.drum = message.layer_weights(config, num_relations)
        self.layers = nn.ModuleList(
            Layer(config, num_relations, layer) for layer in range(config.num_layers)
        )
        self.gate = Gate(config) if config.gate else None
        self.dropout = nn.Dropout(config.dropout)
        width = config.dim * (config.num_layers + 1 if config.concat else 1)
        self.readout: nn.Linear | QueryReadout | None = None
        if config.readout == "linear":
            self.readout = nn.Linear(width, 1, bias=False)
        elif config.readout == "mlp":
            self.readout = QueryReadout(width, config.dim)
        self.priors: nn.Embedding | nn.Linear | None = None
        if config.priors and is_relative:
            self.priors = nn.Linear(config.dim, NUM_PRIORS)
            nn.init.zeros_(self.priors.weight)
            nn.init.zeros_(self.priors.bias)
            nn.init.constant_(self.priors.bias[:1], SCALE * config.prior_start)
        elif config.priors:
            self.priors = nn.Embedding(kinds, NUM_PRIORS)
            nn.init.zeros_(self.priors.weight)
            nn.init.constant_(self.priors.weight[:, 0], SCALE * config.prior_start)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(
        self,
        batch: SubgraphBatch,
        edge_weights: Sequence[Tensor] | None = None,
        plan: "FusedPlan | CPUPlan | None" = None,
    ) -> Tensor:
        """Scores of the sampled entities, [N].

        `edge_weights`, one [E] per layer, scale the messages of each edge, in addition to the
        weights of the batch; their gradients show which edges support an answer. `plan`: the
        result of `fused_plan` for this batch, if already computed.
        """
        if edge_weights is None and (plan is not None or self._takes_kernels(batch)):
            plan = plan or fused_plan(self, batch, torch.is_grad_enabled())
            return fused_scores(self, batch, plan)
        return self._plain(batch, edge_weights)

    def _plain(self, batch: SubgraphBatch, edge_weights: Sequence[Tensor] | None) -> Tensor:
        query = self.query(batch.queries[:, 1])
        return self.read(self._final_states(batch, query, edge_weights), batch, query)

    def states(self, batch: SubgraphBatch) -> Tensor:
        """The states that the scores are computed from: [N, dim], of all layers with `concat`.

        For tasks with a readout of their own; by PyTorch operations, with any number of sources.
        """
        return self._final_states(batch, self.query(batch.queries[:, 1]), None)

    def _final_states(
        self, batch: SubgraphBatch, query: Query, edge_weights: Sequence[Tensor] | None
    ) -> Tensor:
        plan = EdgePlan(batch, self.num_relations, self.config.aggregate_over == "graph")
        places, which = batch.all_sources
        start = self.start(query)
        start = start[which] if batch.has_sets else start
        state = self._initial(batch, start)
        states = [state]
        reached = torch.zeros(batch.num_entities, dtype=torch.bool, device=batch.device)
        reached[places] = True
        gated = torch.zeros_like(state)
        for number, layer in enumerate(self.layers):
            weight = message_weight(batch, edge_weights, number, state.dtype)
            state = layer(state, plan, query, weight)
            if self.gate is None:
                state = self.dropout(state)
            else:
                if self.config.gate_mask == "reached":
                    reached = reached_next(reached, plan)
                    state = gated = self.gate(state, gated, reached)
                else:
                    state = gated = self.gate(state, gated, None)
            if self.config.reinject:
                state = state.index_add(0, places, start)
            states.append(state)
        return torch.cat(states, dim=-1) if self.config.concat else state

    def read(self, final: Tensor, batch: SubgraphBatch, query: Query) -> Tensor:
        """The scores [N] from the final states [N, …] of a batch."""
        rows = Rows(batch.entity_query, batch.num_queries, is_sorted=True)
        scores = self._read(final, batch, query, rows)
        if self.priors is not None:
            weight = rows.pick(self.prior_weights(query))
            scores = scores + (prior_features(batch, weight.dtype) * weight).sum(dim=-1)
        return scores

    def parts(self) -> "Iterator[Predictor]":
        """The predictors that are trained on their own: this one, or the members of an ensemble."""
        yield self

    def check_graph(self, num_relations: int) -> None:
        """Raise if a graph has a different number of relations than this predictor."""
        if num_relations != self.num_relations and not self.is_relative:
            raise InputError(
                f"the predictor has {self.num_relations} relations, the graph has {num_relations}"
            )

    @property
    def is_relative(self) -> bool:
        """Whether relations are described by the relation graph, not by parameters."""
        return self.relation_network is not None

    def relate(self, graph: RelationGraph) -> None:
        """Set the relation graph of the following batches; needed if `is_relative`."""
        self.relation_graph, self.num_relations = graph, graph.num_relations

    def query(self, relation: Tensor) -> Query:
        """The query inputs of the messages for these relations, int64 [n]."""
        if self.relation_network is not None:
            if self.relation_graph is None:
                raise InputError("the predictor has relative relations: call `relate` first")
            states = self.relation_network(self.relation_graph, relation)
            row = torch.arange(len(relation), device=relation.device)
            return Query(relation, states[row, relation], None, states.flatten(0, 1))
        embedding = None
        if self.query_embedding is not None:
            embedding = look_up(self.query_embedding.weight, relation)
        weights = None
        if self.drum is not None and embedding is not None:
            weights = self.drum(embedding)
        return Query(relation, embedding, weights)

    def start(self, query: Query) -> Tensor:
        """The initial state of each query entity, [n, d]."""
        if self.config.initial == "relational":
            assert query.embedding is not None
            return query.embedding
        some = next(self.parameters())
        return some.new_ones(len(query.relation), self.config.dim)

    def prior_weights(self, query: Query) -> Tensor:
        """The weights of the prior features for each query, [n, 2]."""
        if isinstance(self.priors, nn.Linear):
            assert query.embedding is not None
            with torch.autocast(query.embedding.device.type, enabled=False):
                weights: Tensor = self.priors(query.embedding.to(self.priors.weight.dtype))
            return weights
        assert self.priors is not None
        return look_up(self.priors.weight, query.relation)

    def _takes_kernels(self, batch: SubgraphBatch) -> bool:
        if self.engine == "plain":
            return False
        kind = next(self.parameters()).dtype
        reason = why_not_fused(self.config, batch.device, kind, batch.is_weighted)
        if batch.has_sets:
            reason = "the kernels start from one entity per query, not from a set"
        if reason is not None and self.engine == "fused":
            raise InputError(f'the engine "fused" cannot be used: {reason}')
        return reason is None

    def _initial(self, batch: SubgraphBatch, start: Tensor) -> Tensor:
        """`h⁰` [N, d]: zero except on the sources, `start` [S, d]."""
        state = start.new_zeros(batch.num_entities, self.config.dim)
        return state.index_copy(0, batch.all_sources[0], start)

    def _read(self, final: Tensor, batch: SubgraphBatch, query: Query, rows: Rows) -> Tensor:
        if isinstance(self.readout, QueryReadout):
            asked = self.readout.from_query(query.embedding)
            read: Tensor = self.readout(self.readout.from_state(final), rows.pick(asked))
            return read
        if self.readout is not None:
            # Scores are compared with each other, so they are float32 even if states are not.
            with torch.autocast(final.device.type, enabled=False):
                scores: Tensor = self.readout(final.to(self.readout.weight.dtype)).squeeze(-1)
            return scores
        asked = final.index_select(0, batch.source)
        if batch.has_sets:
            asked = mean_over_sources(final, batch)
        return (final * asked.index_select(0, batch.entity_query)).sum(dim=-1)


def mean_over_sources(states: Tensor, batch: SubgraphBatch) -> Tensor:
    """The mean of the states [N, d] of each query's sources, [n, d]."""
    places, which = batch.all_sources
    total = states.new_zeros(batch.num_queries, states.shape[1])
    total = total.index_add(0, which, states[places])
    return total / which.bincount(minlength=batch.num_queries)[:, None]


def message_weight(
    batch: SubgraphBatch,
    edge_weights: Sequence[Tensor] | None,
    layer: int,
    kind: torch.dtype,
) -> Tensor | None:
    """The factor of each message of a layer, [E]: the weights of the batch, times given ones."""
    given = None if edge_weights is None else edge_weights[layer]
    if not batch.is_weighted:
        return given
    weight = batch.weight.to(kind)
    return weight if given is None else weight * given
