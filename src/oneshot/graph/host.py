"""HostGraph: a graph that is too large for the device, kept in the memory of the host.

Subgraphs are small even if the graph is not: they are sampled on the CPU, and only they are moved
to the device. Samplers use `host`; otherwise it behaves like a graph on the device, except that its
adjacency is on the host.
"""

from functools import cached_property

import torch
from torch import Tensor

from oneshot.graph.adjacency import Edges, Neighbours
from oneshot.graph.answer_pairs import AnswerPairs
from oneshot.graph.components import ComponentIndex
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.relation_graph import RelationGraph
from oneshot.graph.sparse import Matrix
from oneshot.graph.vocabulary import Vocabulary
from oneshot.system.devices import available_memory

LARGEST_SHARE = 0.6
"""Maximum share of the free memory of a device for a graph; the rest is for queries."""


class HostGraph(KnowledgeGraph):
    """The graph `host` on the CPU, for a predictor on another device."""

    packed = False
    host: KnowledgeGraph

    def __init__(self, host: KnowledgeGraph, device: torch.device) -> None:
        self.host = host
        self._device = device
        self.entities, self.relations, self.origin = host.entities, host.relations, host.origin

    @property
    def plain(self) -> KnowledgeGraph:
        return self.host.plain

    @property
    def num_facts(self) -> int:
        return self.host.num_facts

    @property
    def device(self) -> torch.device:
        return self._device

    @cached_property
    def facts(self) -> Tensor:
        """The facts on the device: a tenth of the size of the adjacency, and used by training."""
        return self.host.facts.to(self.device)

    @cached_property
    def degree(self) -> Tensor:
        return self.host.degree.to(self.device)

    def degree_of(self, entities: Tensor) -> Tensor:
        return self.host.degree_of(entities.cpu()).to(self.device)

    def edges_into(self, entity: int) -> tuple[Tensor, Tensor]:
        source, relation = self.host.edges_into(entity)
        return source.to(self.device), relation.to(self.device)

    @property
    def fingerprint(self) -> str:
        return self.host.fingerprint

    @property
    def edges(self) -> Edges:
        """On the host, as `neighbours`, `components` and `normalized_adjacency` are."""
        return self.host.edges

    @property
    def neighbours(self) -> Neighbours:
        return self.host.neighbours

    @property
    def components(self) -> ComponentIndex:
        return self.host.components

    @property
    def weights(self) -> Tensor | None:  # type: ignore[override]
        """On the host, as `pair_weights` are."""
        return self.host.weights

    @property
    def pair_weights(self) -> Tensor | None:
        return self.host.pair_weights

    def normalized_adjacency(self, dtype: torch.dtype = torch.float32) -> Matrix:
        return self.host.normalized_adjacency(dtype)

    @property
    def answer_pairs(self) -> AnswerPairs:
        """On the host."""
        return self.host.answer_pairs

    @cached_property
    def relation_graph(self) -> RelationGraph:
        return self.host.relation_graph.to(self.device)

    def subset(self, mask: Tensor) -> "HostGraph":
        return HostGraph(self.host.subset(mask.cpu()), self.device)

    def hiding(self, rows: Tensor) -> "HostGraph":
        return HostGraph(self.host.hiding(rows.cpu()), self.device)

    def to(self, device: torch.device | str) -> KnowledgeGraph:
        return self.host.to(device)

    def with_relations(self, relations: Vocabulary) -> "HostGraph":
        return HostGraph(self.host.with_relations(relations), self.device)


def fits_on(graph: KnowledgeGraph, device: torch.device) -> bool:
    """Whether a graph, its adjacency and its walk matrix fit into the memory of a device."""
    pairs = len(graph.neighbours.index)
    arrays = (
        graph.facts,
        *(getattr(graph.edges, name) for name in ("indptr", "source", "relation", "fact")),
        *(getattr(graph.neighbours, name) for name in ("indptr", "index", "pair")),
    )
    needed: int = sum(array.nbytes for array in arrays) + 8 * pairs
    return needed <= LARGEST_SHARE * available_memory(device)
