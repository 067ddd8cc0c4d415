"""Messages along an edge `(x, r, o)` from `x` to `o`, given the query relation `q`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.predictor.segments import EdgePlan, look_up


@dataclass(frozen=True)
class Query:
    """The inputs of messages that depend on the queries of a batch.

    `relation` int64 [n]: the query relations; `embedding` [n, d] or None: their embeddings;
    `layer_weights` [L, n · (2R + 1), d] or None: weights computed from them
    (`Message.layer_weights`). `states` [n · (2R + 1), d] or None: relative states of the relations
    (`RelationNetwork`).
    """

    relation: Tensor
    embedding: Tensor | None
    layer_weights: Tensor | None
    states: Tensor | None = None


@dataclass(frozen=True)
class Attention:
    """The parts of `a = σ(weight · ReLU(source_x + relation_r + query_q) + bias)`.

    `source` [N, A], `relation` [2R + 1, A], `query` [n, A], `weight` [A], `bias` [1].
    """

    source: Tensor
    relation: Tensor
    query: Tensor
    weight: Tensor
    bias: Tensor


class Message(nn.Module, ABC):
    """The messages of one layer; a new one implements `forward`, one with kernels also `terms`.

    `has_kernels`: whether the kernels of GPU and CPU can compute it from its `terms`.
    `has_attention`: whether the terms include an attention.
    """

    needs_query_embedding: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = False
    has_attention: ClassVar[bool] = False

    def __init__(self, config: PredictorConfig, num_relations: int, layer: int) -> None:
        super().__init__()
        self.compose = config.compose
        self.layer = layer
        self.kinds = 2 * num_relations + 1  # relations, inverses, identity

    @classmethod
    def layer_weights(cls, config: PredictorConfig, num_relations: int) -> nn.Module | None:
        """The module that computes `Query.layer_weights` from the query embeddings [n, d], if the
        messages of all layers share one."""
        return None

    @abstractmethod
    def forward(self, state: Tensor, plan: EdgePlan, query: Query) -> Tensor:
        """`state` [N, d] of the entities → messages [E, d]."""

    def terms(self, state: Tensor, query: Query) -> tuple[Tensor, Attention | None]:
        """The relations' rows [2R + 1, d], or [n · (2R + 1), d], and the parts of the attention.

        Inputs of the kernels; a message without kernels has no terms.
        """
        raise NotImplementedError

    def composed(self, entity: Tensor, relation: Tensor) -> Tensor:
        """`entity ∘ relation`, both [E, d]."""
        if self.compose == "multiply":
            return entity * relation
        if self.compose == "add":
            return entity + relation
        # Rotation: the two halves of a row are the real and imaginary parts.
        a, b = entity.chunk(2, dim=-1)
        c, d = relation.chunk(2, dim=-1)
        return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


class RedGNNMessage(Message):
    """`a · (h_x ∘ h_r)` with the attention `a = σ(w · ReLU(W_s h_x + W_r h_r + W_q h_q))`.

    `h_r` and `h_q` are rows of the layer's own relation table. The terms of the attention are
    computed for each entity, relation and query before they are gathered to the edges.
    """

    has_kernels = True
    has_attention = True

    def __init__(self, config: PredictorConfig, num_relations: int, layer: int) -> None:
        super().__init__(config, num_relations, layer)
        self.relation = nn.Embedding(self.kinds, config.dim)
        self.from_source = nn.Linear(config.dim, config.attention_dim, bias=False)
        self.from_relation = nn.Linear(config.dim, config.attention_dim, bias=False)
        self.from_query = nn.Linear(config.dim, config.attention_dim)
        self.attention = nn.Linear(config.attention_dim, 1)

    def terms(self, state: Tensor, query: Query) -> tuple[Tensor, Attention | None]:
        table = self.relation.weight
        return table, Attention(
            self.from_source(state),
            self.from_relation(table),
            self.from_query(look_up(table, query.relation)),
            self.attention.weight.squeeze(0),
            self.attention.bias,
        )

    def forward(self, state: Tensor, plan: EdgePlan, query: Query) -> Tensor:
        table, parts = self.terms(state, query)
        assert parts is not None
        hidden = plan.source.pick(parts.source) + plan.relation.pick(parts.relation)
        hidden = hidden + plan.query.pick(parts.query)
        attention: Tensor = self.attention(hidden.relu()).sigmoid()
        return attention * self.composed(plan.source.pick(state), plan.relation.pick(table))


class NBFNetMessage(Message):
    """`h_x ∘ w_q(r)`: the relation's weights are linear in the embedding of the query, of full or
    of low rank (`relation_rank`).

    With relative relations, they are computed from the state of `r` relative to `q`.
    """

    needs_query_embedding = True
    has_kernels = True

    def __init__(self, config: PredictorConfig, num_relations: int, layer: int) -> None:
        super().__init__(config, num_relations, layer)
        dim, rank = config.dim, config.relation_rank
        self.dim = dim
        self.weights: nn.Module
        if config.relations == "relative":
            self.weights = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        elif rank:
            self.weights = nn.Sequential(
                nn.Linear(dim, rank, bias=False), nn.Linear(rank, self.kinds * dim)
            )
        else:
            self.weights = nn.Linear(dim, self.kinds * dim)

    def terms(self, state: Tensor, query: Query) -> tuple[Tensor, Attention | None]:
        if query.states is not None:
            return self.weights(query.states), None
        assert query.embedding is not None
        return self.weights(query.embedding).reshape(-1, self.dim), None

    def forward(self, state: Tensor, plan: EdgePlan, query: Query) -> Tensor:
        table, _ = self.terms(state, query)
        return self.composed(plan.source.pick(state), plan.query_relation.pick(table))


class DRUMMessage(Message):
    """`h_x` weighted channel by channel; the weights come from `DRUMWeights`."""

    needs_query_embedding = True

    @classmethod
    def layer_weights(cls, config: PredictorConfig, num_relations: int) -> nn.Module | None:
        return DRUMWeights(config, num_relations)

    def forward(self, state: Tensor, plan: EdgePlan, query: Query) -> Tensor:
        assert query.layer_weights is not None
        return plan.source.pick(state) * plan.query_relation.pick(query.layer_weights[self.layer])


class DRUMWeights(nn.Module):
    """Weights between 0 and 1 for each layer, relation and channel, from the query.

    A bidirectional LSTM reads the query embedding once per layer, so that the weight of a relation
    in one layer can depend on the other layers.
    """

    def __init__(self, config: PredictorConfig, num_relations: int) -> None:
        super().__init__()
        self.num_layers, self.dim = config.num_layers, config.dim
        self.lstm = nn.LSTM(config.dim, config.dim, bidirectional=True)
        self.weights = nn.Linear(2 * config.dim, (2 * num_relations + 1) * config.dim)

    def forward(self, embedding: Tensor) -> Tensor:
        """`embedding` [n, d] → weights [L, n · (2R + 1), d]."""
        steps, _ = self.lstm(embedding.expand(self.num_layers, -1, -1))
        weights: Tensor = self.weights(steps).sigmoid()
        return weights.reshape(self.num_layers, -1, self.dim)


MESSAGES: dict[str, type[Message]] = {
    "redgnn": RedGNNMessage,
    "nbfnet": NBFNetMessage,
    "drum": DRUMMessage,
}
