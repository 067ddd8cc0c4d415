"""UltraPredictor: the network of ULTRA, for imported checkpoints.

ULTRA ("Towards Foundation Models for Knowledge Graph Reasoning", ICLR 2024) has two NBFNets. The
first one runs on the relation graph, from the query relation; its edges have one of four types and
no weights. The second one runs on the entities, from the query entity; its relation weights are
computed from the states of the first.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.graph.relation_graph import RelationGraph
from oneshot.graph.sparse import SparseMatrix
from oneshot.predictor.predictor import Predictor, message_weight
from oneshot.predictor.relations import SymmetricProduct, compressed
from oneshot.predictor.segments import EdgePlan
from oneshot.subgraph import SubgraphBatch

if TYPE_CHECKING:
    from oneshot.predictor.cpu.plan import CPUPlan
    from oneshot.predictor.kernels.plan import FusedPlan

_TYPES = 4  # head to head, tail to tail, head to tail, tail to head


class _Update(nn.Module):
    """`ReLU(norm(W · [h, AGG] + b)) + h`: the end of a layer in both networks."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, state: Tensor, collected: Tensor) -> Tensor:
        new: Tensor = self.norm(self.linear(torch.cat([state, collected], dim=-1)))
        return new.relu() + state


class _RelationLayer(_Update):
    """A layer on the relation graph; `types` [4, d] are the weights of its edge types."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.types = nn.Parameter(torch.randn(_TYPES, dim))


class _EntityLayer(_Update):
    """A layer on the entities; `project` computes weights of relations from their states."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.project = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))


class UltraRelations(nn.Module):
    """The states of all relations relative to the query relations, [n, 2R, d]."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.dim = config.dim
        self.layers = nn.ModuleList(
            _RelationLayer(config.dim) for _ in range(config.relation_layers)
        )

    def forward(self, graph: RelationGraph, relation: Tensor) -> Tensor:
        count, some = graph.num_relations, next(self.parameters())
        touches = _touches(graph, some.dtype)
        start = torch.zeros(
            2 * count, len(relation), self.dim, dtype=some.dtype, device=relation.device
        )
        start[relation, torch.arange(len(relation), device=relation.device)] = 1
        state = start
        for layer in self.layers:
            # Sums over the relations whose tails touch the tails of each one, or their heads.
            tails, heads = (
                SymmetricProduct.apply(part.flatten(1), touches).reshape(part.shape)  # type: ignore[no-untyped-call]
                for part in (state, state.roll(count, 0))
            )
            sums = (heads.roll(count, 0), tails, heads, tails.roll(count, 0))
            collected = start
            for total, weight in zip(sums, layer.types, strict=True):  # type: ignore[arg-type]
                collected = collected + total * weight
            state = layer(state, collected)
        return state.transpose(0, 1)


class UltraPredictor(Predictor):
    """Scores by the network of ULTRA, on subgraphs or, with a budget of all entities, on the graph.

    Identity edges carry no message in this network.
    """

    def __init__(self, config: PredictorConfig, num_relations: int) -> None:
        nn.Module.__init__(self)  # it shares the interface of `Predictor`, and none of its parts
        self.config = config
        self.num_relations = num_relations
        self.engine = "plain"
        self.relation_graph = None
        self.relation_network = UltraRelations(config)  # type: ignore[assignment]
        self.layers = nn.ModuleList(_EntityLayer(config.dim) for _ in range(config.num_layers))
        wide = 2 * config.dim
        self.readout = nn.Sequential(  # type: ignore[assignment]
            nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1)
        )

    def forward(
        self,
        batch: SubgraphBatch,
        edge_weights: Sequence[Tensor] | None = None,
        plan: "FusedPlan | CPUPlan | None" = None,
    ) -> Tensor:
        """See `Predictor.forward`."""
        if self.relation_graph is None or self.relation_network is None:
            raise InputError("the predictor has relative relations: call `relate` first")
        if batch.has_sets:
            raise InputError("the network of ULTRA starts from one entity per query, not from sets")
        relation = batch.queries[:, 1]
        distinct, which = relation.unique(return_inverse=True)
        states = self.relation_network(self.relation_graph, distinct)[which]
        query = states[torch.arange(len(relation), device=relation.device), relation]
        edges = EdgePlan(batch, self.num_relations)
        start = query.new_zeros(batch.num_entities, self.config.dim)
        start = start.index_copy(0, batch.source, query)
        state = start
        for number, layer in enumerate(self.layers):
            weights = nn.functional.pad(layer.project(states), (0, 0, 0, 1))  # type: ignore[operator]
            messages = edges.source.pick(state) * edges.query_relation.pick(weights.flatten(0, 1))
            weight = message_weight(batch, edge_weights, number, messages.dtype)
            if weight is not None:
                messages = messages * weight[:, None]
            state = layer(state, edges.target.add(messages) + start)
        asked = query.index_select(0, batch.entity_query)
        assert self.readout is not None
        scores: Tensor = self.readout(torch.cat([state, asked], dim=-1)).squeeze(-1)
        return scores


def _touches(graph: RelationGraph, dtype: torch.dtype) -> Tensor | SparseMatrix:
    """Whether relations have a common answer: a symmetric matrix of 0 and 1, [2R, 2R]."""
    joint = graph.joint
    if isinstance(joint, Tensor) and joint.device.type == "cpu":
        joint = compressed(joint)
    if isinstance(joint, Tensor):
        return (joint > 0).to(dtype)
    assert joint.values is not None
    ones = torch.ones_like(joint.values, dtype=dtype)
    return SparseMatrix(joint.indptr, joint.index, ones, joint.shape[1])
