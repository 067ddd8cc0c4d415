"""HiddenFacts: a graph without a few of its facts, as a view that shares its memory.

An epoch of a training hides the facts that it asks about. Copying the adjacency without them takes
time and memory in proportion to the graph, and a memory-mapped graph would be read as a whole. The
view keeps the places of the hidden entries in the rows of the adjacency instead, and readers skip
them: its cost is in proportion to the hidden facts.

The components, the recall of the push, and the PPR between hubs remain those of the whole graph, as
approximations: a hidden fact may have joined two components, which still count as one. Degrees and
rows are exact.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from oneshot.graph.adjacency import Edges, Neighbours, row_places
from oneshot.graph.components import ComponentIndex
from oneshot.graph.core import Core
from oneshot.graph.fact_keys import place_of
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.hub_index import HubIndex
from oneshot.graph.relation_graph import RelationGraph, recount_relations
from oneshot.graph.sparse import Matrix


@dataclass(frozen=True)
class HiddenEdges(Edges):
    """The edges `whole`, without those at the places `hidden` int64 [h], ascending."""

    whole: Edges
    hidden: Tensor

    def expect(self, start: Tensor, count: Tensor) -> None:
        self.whole.expect(start, count)

    def places(self, entities: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        return _places(self, self.hidden, entities)


@dataclass(frozen=True)
class HiddenNeighbours(Neighbours):
    """The neighbours `whole`, without those at the places `hidden` int64 [h], ascending."""

    whole: Neighbours
    hidden: Tensor

    @property
    def scattered(self) -> object:
        """See `MappedNeighbours`."""
        return getattr(self.whole, "scattered", None)

    def expect(self, start: Tensor, count: Tensor) -> None:
        self.whole.expect(start, count)

    def places(self, entities: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        return _places(self, self.hidden, entities)

    def place_of(self, entities: Tensor, number: Tensor) -> Tensor:
        first = self.indptr[entities].long()
        before = torch.searchsorted(self.hidden, first)
        # Entry `i` of those hidden in a row is skipped if it has at most `number` visible ones
        # before it.
        visible_before = self.hidden - torch.arange(len(self.hidden))
        skipped = torch.searchsorted(visible_before, first + number - before, right=True)
        last = torch.searchsorted(self.hidden, self.indptr[entities + 1].long())
        return first + number + torch.minimum(skipped, last) - before

    @cached_property
    def degree(self) -> Tensor:
        return self.degree_of(torch.arange(len(self.indptr) - 1))

    def degree_of(self, entities: Tensor) -> Tensor:
        return _visible(self.indptr, self.hidden, entities)

    @property
    def largest_degree(self) -> int:
        """That of the whole graph."""
        return self.whole.largest_degree

    @cached_property
    def touched_bits(self) -> Tensor:
        """A bit per entity, uint8: 0 if no neighbour of the entity is hidden."""
        entity = torch.searchsorted(self.indptr, self.hidden.to(self.indptr.dtype), right=True) - 1
        entity = entity.unique_consecutive()
        bits = torch.zeros(len(self.indptr) // 8 + 1, dtype=torch.uint8)
        # Bits of one byte are different powers of two: their sum is their union.
        return bits.index_add_(0, entity // 8, (1 << entity % 8).to(torch.uint8))


class HiddenFacts(KnowledgeGraph):
    """The facts of `whole` without those in some rows of `whole.facts`, int64 [m].

    `whole` is packed, on the CPU and without weights. `rows` [m]: the hidden rows, ascending.
    Members that need all facts in order (`facts`, `subset`, `to`, the walk matrix, the fingerprint)
    copy the visible ones to a plain graph first, once.
    """

    packed = False

    def __init__(self, whole: KnowledgeGraph, rows: Tensor) -> None:
        if not can_hide(whole):
            raise ValueError("facts can be hidden in packed graphs on the CPU without weights")
        self.whole, self.rows = whole, rows.cpu().unique()
        self.entities, self.relations = whole.entities, whole.relations
        self.origin = None
        self.push_recall, self.push_precision = whole.push_recall, whole.push_precision
        self.hub_recall = whole.hub_recall
        self.largest_weight = whole.largest_weight
        head, relation, tail = whole.facts[self.rows].long().unbind(1)
        target = torch.cat([tail, head])
        label = torch.cat([relation, relation + whole.num_relations])
        edges, neighbours = whole.edges, whole.neighbours
        self._ends = target, torch.cat([head, tail]), label
        places = edges.find(*self._ends)
        self._hidden = places.unique()
        self.edges = HiddenEdges(
            edges.indptr, edges.source, edges.relation, edges.fact, edges, self._hidden
        )
        pairs = self._hidden_pairs(edges, neighbours, places)
        self.neighbours = HiddenNeighbours(
            neighbours.indptr, neighbours.index, neighbours.pair, neighbours, pairs
        )
        self._core: Core | None = None

    def _hidden_pairs(self, edges: Edges, neighbours: Neighbours, places: Tensor) -> Tensor:
        """The places of the pairs of neighbours all of whose facts are hidden, ascending."""
        target, source, _ = self._ends
        pair = neighbours.pair[places].long()
        no_loop = pair >= 0
        pair, which, hidden = pair[no_loop].unique(return_inverse=True, return_counts=True)
        first = torch.empty_like(pair)
        first[which] = no_loop.nonzero().squeeze(1)
        row, other = target[first], source[first]
        nothing = torch.zeros_like(other)
        count = edges.first_from(row, other + 1, nothing) - edges.first_from(row, other, nothing)
        gone: Tensor = pair[count == hidden]
        return gone

    @property
    def base(self) -> KnowledgeGraph:
        return self.whole

    @property
    def num_facts(self) -> int:
        return self.whole.num_facts - len(self.rows)

    @property
    def device(self) -> torch.device:
        return self.whole.device

    @property
    def facts(self) -> Tensor:
        return self.plain.facts

    @cached_property
    def plain(self) -> KnowledgeGraph:
        mask = torch.ones(self.whole.num_facts, dtype=torch.bool)
        mask[self.rows] = False
        return self.whole.subset(mask)

    @cached_property
    def degree(self) -> Tensor:
        return self.degree_of(torch.arange(self.num_entities))

    def degree_of(self, entities: Tensor) -> Tensor:
        return _visible(self.edges.indptr, self._hidden, entities)

    @property
    def components(self) -> ComponentIndex:
        """Those of the whole graph."""
        return self.whole.components

    @cached_property
    def hub_index(self) -> HubIndex | None:  # type: ignore[override]
        """That of the whole graph, with the degrees of this one."""
        index = self.whole.hub_index
        if index is None:
            return None
        degree = self.neighbours.degree_of(index.hubs)
        changed = replace(
            index,
            degree=degree,
            outside=(index.outside + degree - index.degree).clamp(min=0),
            least_degree=max(int(degree.min()), 1),
            built_degree=index.degree if index.built_degree is None else index.built_degree,
        )
        changed.share_arrivals(index)
        return changed

    @property
    def core(self) -> Core | None:
        """That of the whole graph, without the hidden edges."""
        if self._core is None and self.whole.core is not None:
            self._core = _core_without(self.whole.core, *self._ends)
        return self._core

    @core.setter
    def core(self, core: Core | None) -> None:
        self.whole.core, self._core = core, None

    @cached_property
    def relation_graph(self) -> RelationGraph:
        touched = self._ends[0].unique()
        return recount_relations(self.whole.relation_graph, self.whole, self, touched)

    @property
    def fingerprint(self) -> str:
        return self.plain.fingerprint

    def normalized_adjacency(self, dtype: torch.dtype = torch.float32) -> Matrix:
        return self.plain.normalized_adjacency(dtype)

    def subset(self, mask: Tensor) -> KnowledgeGraph:
        return self.plain.subset(mask)

    def hiding(self, rows: Tensor) -> KnowledgeGraph:
        return self.plain.hiding(rows)

    def to(self, device: torch.device | str) -> KnowledgeGraph:
        return self if torch.device(device).type == "cpu" else self.plain.to(device)


def can_hide(graph: KnowledgeGraph) -> bool:
    """Whether a view can hide facts of a graph."""
    return graph.packed and graph.device.type == "cpu" and graph.weights is None


def _core_without(core: Core, target: Tensor, source: Tensor, relation: Tensor) -> Core:
    """A core without some edges [m], each of which is given in both directions."""
    row, other = place_of(core.entities, target), place_of(core.entities, source)
    inside = (row >= 0) & (other >= 0)
    edges = Edges(core.start, core.source, core.relation, core.source)
    place = edges.find(row[inside], other[inside], relation[inside])
    place = place[place >= 0].unique()  # each pair of neighbours is there once
    kept = torch.ones(len(core.source), dtype=torch.bool)
    kept[place] = False
    row = torch.searchsorted(core.start, place, right=True) - 1
    count = core.start.diff() - torch.bincount(row, minlength=len(core.entities))
    start = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return replace(core, start=start, source=core.source[kept], relation=core.relation[kept])


def _visible(indptr: Tensor, hidden: Tensor, entities: Tensor) -> Tensor:
    """Number of entries in the rows of some entities [m] that are not hidden, int64 [m]."""
    first, last = indptr[entities].long(), indptr[entities + 1].long()
    gone = torch.searchsorted(hidden, last) - torch.searchsorted(hidden, first)
    return last - first - gone


def _places(
    arrays: HiddenEdges | HiddenNeighbours, hidden: Tensor, entities: Tensor
) -> tuple[Tensor, Tensor]:
    """See `Edges.places`."""
    first, last = arrays.indptr[entities].long(), arrays.indptr[entities + 1].long()
    arrays.expect(first, last - first)
    row, place = row_places(first, last - first)
    before = torch.searchsorted(hidden, first)
    cut, which = row_places(before, torch.searchsorted(hidden, last) - before)
    if not len(cut):
        return row, place
    begin = (last - first).cumsum(0) - (last - first)
    kept = torch.ones(len(row), dtype=torch.bool)
    kept[begin[cut] + hidden[which] - first[cut]] = False
    return row[kept], place[kept]
