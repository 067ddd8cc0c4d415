"""Coupling: a network that chooses the entities of a query while it scores them.

`CoupledReasoner` puts a coupling behind the interface of a reasoner, so that `predict` and
`evaluate` work as for ours.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn, cast

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.relation_graph import RelationGraph
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import Sampler
from oneshot.samplers.base import check_include, check_queries
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import fast_products


class Chosen(NamedTuple):
    """The entities that take part after a layer of a coupling.

    `layer`: counted from 1. `query` int64 [m] and `entities` int64 [m]: the pairs, sorted.
    """

    layer: int
    query: Tensor
    entities: Tensor


Watch = Callable[[Chosen], None]
"""Called after each layer of a coupling."""


class Coupling(nn.Module, ABC):
    """Answers queries on a graph without a subgraph that is sampled beforehand.

    `config`: that of the network of the layers; `num_relations`: those of the graph. A new coupling
    implements `forward`, and has its own `options` by name. The other members are those that
    reasoner and training expect of a predictor: it is trained as one, its relations have
    parameters, and it has no kernels of its own.
    """

    engine = "plain"
    is_relative = False

    def __init__(self, config: PredictorConfig, num_relations: int, **options: float) -> None:
        super().__init__()
        self.config, self.num_relations, self.options = config, num_relations, options

    @abstractmethod
    def forward(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        include: Tensor | None = None,
        watch: Watch | None = None,
    ) -> tuple[SubgraphBatch, Tensor]:
        """The chosen entities of `queries` int64 [n, 2], and their scores [N].

        `include` int64 [n, c], -1 for none: entities that are among the chosen ones in any case.
        """

    def training_scores(
        self, graph: AdjacencyGraph, queries: Tensor, answers: Tensor
    ) -> tuple[SubgraphBatch, Tensor]:
        """The entities and scores of a training step; `answers` [n] are not in the graph."""
        found: tuple[SubgraphBatch, Tensor] = self(graph, queries)
        return found

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def check_graph(self, num_relations: int) -> None:
        """Raise if a graph has a different number of relations."""
        if num_relations != self.num_relations:
            raise InputError(
                f"the coupling has {self.num_relations} relations, the graph has {num_relations}"
            )

    def parts(self) -> "Iterator[Coupling]":
        """The networks that are trained on their own: this one."""
        yield self

    def relate(self, graph: RelationGraph) -> None:
        """Does nothing: relations have parameters."""


def check_layers(config: PredictorConfig) -> None:
    """Raise if the layers of our predictor are not used in the way that layer-wise systems need."""
    if config.concat or config.priors or config.members > 1 or config.network != "oneshot":
        raise InputError("layer-wise systems have one member, and no concat and no priors")
    if config.relations == "relative" or config.gate_mask == "reached":
        raise InputError('layer-wise systems have embedded relations and gate_mask "nonzero"')


class WithoutSampler(Sampler):
    """Takes the position of the sampler in a `CoupledReasoner`, which has none."""

    name = "none"

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> NoReturn:
        raise InputError(
            "this system chooses entities in its layers and has no subgraph sampled beforehand; "
            "use predict or evaluate"
        )


class CoupledReasoner(Reasoner):
    """A reasoner whose coupling chooses and scores entities at once.

    Whatever needs a subgraph that is sampled beforehand, such as an explanation, is not available.
    """

    def __init__(self, graph: KnowledgeGraph, coupling: Coupling) -> None:
        # Reasoner and training use only those members of a predictor that a coupling has.
        super().__init__(graph, WithoutSampler(), cast(Predictor, coupling))

    @property
    def coupling(self) -> Coupling:
        return cast(Coupling, self.predictor)

    def reason(
        self, queries: Tensor, include: Tensor | None = None, watch: Watch | None = None
    ) -> tuple[SubgraphBatch, Tensor]:
        """The chosen entities of `queries` [n, 2] and their scores [N]; no gradients."""
        queries = check_queries(self.graph, queries)
        if include is not None:
            include = check_include(self.graph, queries, include)
        was_training = self.coupling.training
        self.coupling.eval()
        try:
            with torch.inference_mode(), fast_products(self.device):
                batch, scores = self.coupling(self.graph, queries, include, watch)
                return batch, scores.float()
        finally:
            self.coupling.train(was_training)
