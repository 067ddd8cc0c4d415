"""Snapshot: the current state of a mutable graph, for queries."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oneshot.graph.adjacency import Neighbours
from oneshot.graph.components import ComponentIndex
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.relation_graph import RelationGraph, recount_relations
from oneshot.graph.sparse import Matrix

if TYPE_CHECKING:
    from oneshot.graph.live.overlay import Overlay


@dataclass(frozen=True)
class SnapshotNeighbours(Neighbours):
    """Neighbours whose rows have gaps between them: `counts` [V]: the length of each."""

    counts: Tensor

    @property
    def degree(self) -> Tensor:
        return self.counts


class Snapshot(KnowledgeGraph):
    """A graph for queries that shares the memory of an overlay.

    Members that need the whole graph in order (`facts`, `subset`, `to`, the fingerprint) convert it
    to a plain graph first, once.
    """

    packed = False

    def __init__(self, overlay: "Overlay") -> None:
        self.entities, self.relations = overlay.entities, overlay.base.relations
        self.origin = None
        self.push_recall = overlay.base.push_recall
        self.edges, self.degree = overlay.edges(), overlay.degree()
        self.neighbours = overlay.neighbours()
        self._overlay = overlay
        self._counts = overlay.num_entities, overlay.num_facts
        self._normalized: dict[torch.dtype, Matrix] = {}

    @property
    def num_entities(self) -> int:
        return self._counts[0]

    @property
    def num_facts(self) -> int:
        return self._counts[1]

    @property
    def device(self) -> torch.device:
        return self._overlay.base.device

    @property
    def facts(self) -> Tensor:
        return self.compacted.facts

    @cached_property
    def compacted(self) -> KnowledgeGraph:
        """The same graph as a plain one with its own memory, on the CPU."""
        facts = self._overlay.facts().cpu().numpy()
        names = self._overlay.entities.settled(self.num_entities)
        return KnowledgeGraph.from_distinct(facts, names, self.relations)

    @cached_property
    def relation_graph(self) -> RelationGraph:
        base = self._overlay.base
        return recount_relations(base.relation_graph, base, self, self._overlay.touched)

    @property
    def components(self) -> ComponentIndex:
        return self._overlay.components()

    @property
    def fingerprint(self) -> str:
        return self.compacted.fingerprint

    def normalized_adjacency(self, dtype: torch.dtype = torch.float32) -> Matrix:
        if dtype not in self._normalized:
            self._normalized[dtype] = self._overlay.matrix(dtype)
        return self._normalized[dtype]

    def subset(self, mask: Tensor) -> KnowledgeGraph:
        return self.compacted.subset(mask.cpu()).to(self.device)

    def to(self, device: torch.device | str) -> KnowledgeGraph:
        return self.compacted.to(device)
