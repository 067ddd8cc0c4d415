"""Predictor: the query-conditioned graph neural network that reasons on the subgraph.

It has no entity embeddings: its parameters grow with the relations only, so that it works on
entities, and whole graphs, that it has never seen.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.predictor.layer import Gate, Layer, reached_next
from oneshot.predictor.messages import MESSAGES, DRUMWeights, Query
from oneshot.predictor.rows import EdgePlan
from oneshot.subgraph import SubgraphBatch


class Predictor(nn.Module):
    """Scores the entities of each subgraph as answers to its query.

    `h⁰` is zero but on the query's entity `u`; each layer sends messages along the edges, so that
    after `l` layers an entity's state describes the paths of up to `l` edges from `u` to it; the
    score is read off the last state (or, with `concat`, off all of them).
    """

    def __init__(self, config: PredictorConfig, num_relations: int) -> None:
        super().__init__()
        self.config = config
        self.num_relations = num_relations
        kinds = 2 * num_relations + 1
        wants_embedding = MESSAGES[config.message].needs_query_embedding
        self.query_embedding = (
            nn.Embedding(kinds, config.dim)
            if wants_embedding or config.initial == "relational"
            else None
        )
        self.drum = DRUMWeights(config, num_relations) if config.message == "drum" else None
        self.layers = nn.ModuleList(
            Layer(config, num_relations, layer) for layer in range(config.num_layers)
        )
        self.gate = Gate(config) if config.gate else None
        self.dropout = nn.Dropout(config.dropout)
        width = config.dim * (config.num_layers + 1 if config.concat else 1)
        self.readout = nn.Linear(width, 1, bias=False) if config.readout == "linear" else None

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, batch: SubgraphBatch, edge_weights: Sequence[Tensor] | None = None) -> Tensor:
        """Scores of the sampled entities, [N].

        `edge_weights`, one [E] a layer, scale the messages of each edge; their gradients tell
        what an answer rests on.
        """
        plan = EdgePlan(batch, self.num_relations)
        query = self._query(batch.queries[:, 1])
        state = self._initial(batch, query)
        states = [state]
        reached = torch.zeros(batch.num_entities, dtype=torch.bool, device=batch.device)
        reached[batch.source] = True
        gated = torch.zeros_like(state)
        for number, layer in enumerate(self.layers):
            weight = None if edge_weights is None else edge_weights[number]
            state = layer(state, plan, query, weight)
            if self.gate is None:
                state = self.dropout(state)
            else:
                if self.config.gate_mask == "reached":
                    reached = reached_next(reached, plan)
                    state = gated = self.gate(state, gated, reached)
                else:
                    state = gated = self.gate(state, gated, None)
            states.append(state)
        final = torch.cat(states, dim=-1) if self.config.concat else state
        return self._read(final, batch)

    def check_graph(self, num_relations: int) -> None:
        """Raise if a graph has another number of relations than this predictor knows."""
        if num_relations != self.num_relations:
            raise InputError(
                f"the predictor knows {self.num_relations} relations, the graph has {num_relations}"
            )

    def _query(self, relation: Tensor) -> Query:
        embedding = None
        if self.query_embedding is not None:
            embedding = self.query_embedding.weight.index_select(0, relation)
        weights = None
        if self.drum is not None and embedding is not None:
            weights = self.drum(embedding)
        return Query(relation, embedding, weights)

    def _initial(self, batch: SubgraphBatch, query: Query) -> Tensor:
        """`h⁰` [N, d]: zero but on each query's entity."""
        dtype = next(self.parameters()).dtype
        if self.config.initial == "relational":
            assert query.embedding is not None
            start = query.embedding
        else:
            start = torch.ones(batch.num_queries, self.config.dim, dtype=dtype, device=batch.device)
        state = torch.zeros(batch.num_entities, self.config.dim, dtype=dtype, device=batch.device)
        return state.index_copy(0, batch.source, start.to(dtype))

    def _read(self, final: Tensor, batch: SubgraphBatch) -> Tensor:
        if self.readout is not None:
            scores: Tensor = self.readout(final).squeeze(-1)
            return scores
        asked = final.index_select(0, batch.source)
        return (final * asked.index_select(0, batch.entity_query)).sum(dim=-1)
