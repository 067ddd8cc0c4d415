"""Snapshot: the current state of a mutable graph, for queries."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oneshot.graph.adjacency import Neighbours
from oneshot.graph.components import ComponentIndex
from oneshot.graph.core import Core
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.hub_index import HubIndex
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
        self.push_precision = overlay.base.push_precision
        self.edges, self.degree = overlay.edges(), overlay.degree()
        self.neighbours = overlay.neighbours()
        self._overlay = overlay
        self._counts = overlay.num_entities, overlay.num_facts
        self._normalized: dict[torch.dtype, Matrix] = {}
        self._touched = overlay.touched
        self._core: Core | None = None

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
    def base(self) -> KnowledgeGraph:
        return self._overlay.base

    @property
    def core(self) -> Core | None:
        """That of the base, without the rows that have changed."""
        if self._core is None and self.base.core is not None:
            self._core = self.base.core.without(self._touched)
        return self._core

    @core.setter
    def core(self, core: Core | None) -> None:
        self.base.core, self._core = core, None

    @cached_property
    def hub_index(self) -> HubIndex | None:  # type: ignore[override]
        """That of the base, unless too much has changed."""
        index = self.base.hub_index
        if index is None:
            return None
        degree = self.neighbours.degree_of(index.hubs)
        changes = self._overlay.changes_of(index.hubs)
        changed = index.on_changed_graph(degree, changes, self.base.components, self.components)
        if changed is not None:
            changed.share_arrivals(index)
        return changed

    @property
    def hub_recall(self) -> float | None:  # type: ignore[override]
        return None if self.hub_index is None else self.base.hub_recall

    @property
    def facts(self) -> Tensor:
        return self.compacted.facts

    @property
    def plain(self) -> KnowledgeGraph:
        return self.compacted

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
