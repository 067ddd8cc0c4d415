"""Overlay: the changes of a graph on top of its base, at a cost that does not grow with the graph.

It starts as a copy of the base's adjacency and applies changes in place. After each change it
provides a `Snapshot` for queries, which shares its memory: only the newest one is valid.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from oneshot.graph.adjacency import Edges
from oneshot.graph.components import ComponentIndex, Components
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.components import LiveComponents
from oneshot.graph.live.growable import GrowableRows, PatchedMatrix
from oneshot.graph.live.snapshot import Snapshot, SnapshotNeighbours
from oneshot.graph.sparse import Matrix
from oneshot.graph.vocabulary import GrowingVocabulary

Fact = tuple[int, int, int]

_SPARE_ROWS = 1 << 16
_SPARE_ENTRIES = 1 << 22  # on a CPU, where untouched memory is not allocated
_SPARE_ENTRIES_ON_DEVICE = 1 << 18


class Overlay:
    """The adjacency of `base`, which is packed, with changes on top.

    `entities`: the names, those of the base first. `touched` [t]: entities whose rows differ.
    """

    def __init__(self, base: KnowledgeGraph, entities: GrowingVocabulary) -> None:
        self.base = base
        self.entities = entities
        self.num_entities = base.num_entities
        self.num_facts = base.num_facts
        on_processor = base.device.type == "cpu"
        spare = _SPARE_ENTRIES if on_processor else _SPARE_ENTRIES_ON_DEVICE
        spare_rows = base.num_entities // 8 + _SPARE_ROWS
        edges, neighbours = base.edges, base.neighbours
        self._edges = GrowableRows(
            edges.indptr, base.degree, (edges.source, edges.relation), spare_rows, spare
        )
        self._neighbours = GrowableRows(
            neighbours.indptr.long(), neighbours.degree, (neighbours.index,), spare_rows, spare
        )
        self.touched = torch.empty(0, dtype=torch.long, device=base.device)
        # Where pairs of neighbours differ from the base: x, y, and +1 or -1.
        self._differences = self.touched.new_empty(3, 0)
        self._components: LiveComponents | None = None
        self._is_hub: Tensor | None = None  # by entity, for `changes_of`

    @property
    def needs_compaction(self) -> bool:
        """Whether there are so many changes that a new base would be faster."""
        many = max(10_000, self.base.num_entities // 20)
        used = max(
            (rows.used - first) / max(len(rows.columns[0]) - first, 1)
            for rows, first in (
                (self._edges, 2 * self.base.num_facts),
                (self._neighbours, len(self.base.neighbours.index)),
            )
        )
        return len(self.touched) > many or used > 0.5

    def apply(self, changes: Mapping[Fact, bool], num_entities: int) -> None:
        """Make facts present (true) or absent (false), among the first `num_entities` entities."""
        device, labels = self.base.device, 2 * self.base.num_relations
        new = torch.arange(self.num_entities, num_entities, device=device)
        self.num_entities = num_entities
        self._edges.reserve(num_entities)
        self._neighbours.reserve(num_entities)
        if not changes and not len(new):
            return
        facts = np.array(list(changes), np.int64).reshape(-1, 3)
        head, label, tail = torch.from_numpy(facts).to(device).unbind(1)
        holds = torch.tensor(list(changes.values()), dtype=torch.bool, device=device)
        target = torch.cat([tail, head])
        rows = torch.cat([target, new]).unique()
        row, (source, relation) = self._edges.read(rows)
        key = (row * num_entities + source) * labels + relation
        edited = torch.searchsorted(rows, target) * num_entities + torch.cat([head, tail])
        edited = edited * labels + torch.cat([label, label + self.base.num_relations])
        after = _edited(key, edited.unique(), edited[holds.repeat(2)].unique())
        self.num_facts += (len(after) - len(key)) // 2  # each fact is two edges
        pairs = after // labels
        row, source = pairs // num_entities, pairs % num_entities
        counts = torch.bincount(row, minlength=len(rows))
        self._edges.write(rows, counts, (source, after % labels))
        pairs = pairs[source != rows[row]].unique_consecutive()
        self._set_neighbours(rows, pairs, (edited // labels).unique())

    def _set_neighbours(self, rows: Tensor, after: Tensor, edited: Tensor) -> None:
        """Replace the neighbours of the entities `rows` [m] and record the differences.

        Pairs are numbers `place in rows · num_entities + neighbour`, sorted. `after`: all pairs.
        `edited`: those that may have changed; only they are compared, because the rows of hubs are
        long.
        """
        width = self.num_entities
        row, index = after // width, after % width
        counts = torch.bincount(row, minlength=len(rows))
        if self._components is not None:
            self._note_pairs(rows, after, edited)
        self._neighbours.write(rows, counts, (index,))
        known = rows[rows < self.base.num_entities]  # a prefix of the rows, which are sorted
        base = self.base.neighbours
        start, old_counts = base.indptr[known].long(), base.degree[known]
        total = int(old_counts.sum())
        places = torch.arange(len(known), device=rows.device)
        old_row = places.repeat_interleave(old_counts, output_size=total)
        shift = start - (old_counts.cumsum(0) - old_counts)
        old_index = base.index[torch.arange(total, device=rows.device) + shift[old_row]].long()
        before = old_row * width + old_index
        is_here = torch.isin(self._differences[0], rows)
        x, y, _ = self._differences[:, is_here]
        candidates = torch.cat([torch.searchsorted(rows, x) * width + y, edited]).unique()
        was, is_now = _contains(before, candidates), _contains(after, candidates)
        gone, come = candidates[was & ~is_now], candidates[is_now & ~was]
        keys = torch.cat([gone, come])
        sign = torch.cat([-torch.ones_like(gone), torch.ones_like(come)])
        # A walk from an entity without neighbours stays there: a 1 on the diagonal.
        was_alone = torch.zeros_like(counts)
        was_alone[: len(known)] = (old_counts == 0).long()
        turned = ((counts == 0).long() - was_alone).nonzero().squeeze(1)
        difference = torch.stack(
            [
                torch.cat([rows[keys // width], rows[turned]]),
                torch.cat([keys % width, rows[turned]]),
                torch.cat([sign, 1 - 2 * was_alone[turned]]),
            ]
        )
        self._differences = torch.cat([self._differences[:, ~is_here], difference], dim=1)
        self.touched = torch.cat([self.touched, rows]).unique()

    def _note_pairs(self, rows: Tensor, after: Tensor, edited: Tensor) -> None:
        """Note which pairs of neighbours `_set_neighbours` replaces, for the components."""
        assert self._components is not None
        width = self.num_entities
        old_row, (old_index,) = self._neighbours.read(rows)
        was = _contains(old_row * width + old_index, edited)
        is_now = _contains(after, edited)
        come, gone = edited[is_now & ~was], edited[was & ~is_now]
        added, removed = (self._pairs(rows[keys // width], keys % width) for keys in (come, gone))
        self._components.change(added, removed, width)

    @staticmethod
    def _pairs(left: Tensor, right: Tensor) -> Tensor:
        """Pairs of neighbours given in both directions [m], each once: [k, 2]."""
        return torch.stack([left, right], dim=1)[left < right]

    def changes_of(self, hubs: Tensor) -> int:
        """How many neighbours of some entities [H] of the base have come or gone."""
        if self._is_hub is None:
            self._is_hub = torch.zeros(self.base.num_entities, dtype=torch.bool, device=hubs.device)
            self._is_hub[hubs] = True
        changed = self._differences[0]
        return int(self._is_hub[changed[changed < len(self._is_hub)]].sum())

    @property
    def has_components(self) -> bool:
        """Whether the components were asked for."""
        return self._components is not None

    def components(self) -> ComponentIndex:
        """The components of the current graph; the next `apply` invalidates what they return."""
        if self._components is None:
            base = self.base.components
            assert isinstance(base, Components)
            self._components = LiveComponents(base, self._neighbours)
            x, y, sign = self._differences
            added, removed = (self._pairs(x[sign == s], y[sign == s]) for s in (1, -1))
            self._components.change(added, removed, self.num_entities)
        return self._components

    def snapshot(self) -> Snapshot:
        """The current graph; the next `apply` invalidates it."""
        return Snapshot(self)

    def matrix(self, dtype: torch.dtype) -> Matrix:
        """`D^-1/2 A D^-1/2` (see `KnowledgeGraph.normalized_adjacency`)."""
        base = self.base.normalized_adjacency(dtype)
        if not len(self.touched):
            return base
        known = self.touched[self.touched < self.base.num_entities]
        count = self._neighbours.count.clamp(min=1).to(dtype)
        scale = (self.base.neighbours.degree[known].clamp(min=1).to(dtype) / count[known]).sqrt()
        x, y, sign = self._differences
        value = sign.to(dtype) * (count[x] * count[y]).rsqrt()
        return PatchedMatrix(base, self.num_entities, known, scale, (x, y, value))

    def edges(self) -> Edges:
        source, relation = self._edges.columns
        start = self._edges.start[: self.num_entities]
        return Edges(start, source, relation, source.new_empty(0))

    def degree(self) -> Tensor:
        return self._edges.count[: self.num_entities]

    def neighbours(self) -> SnapshotNeighbours:
        (index,) = self._neighbours.columns
        start, count = (
            column[: self.num_entities]
            for column in (self._neighbours.start, self._neighbours.count)
        )
        return SnapshotNeighbours(start, index, index.new_empty(0), count)

    def facts(self) -> Tensor:
        """All facts [F, 3], by reading every row."""
        rows = torch.arange(self.num_entities, device=self.base.device)
        tail, (head, relation) = self._edges.read(rows)
        mine = relation < self.base.num_relations
        kind = self.base.facts.dtype
        return torch.stack([head, relation, tail], dim=1)[mine].to(kind)


def _contains(sorted_keys: Tensor, wanted: Tensor) -> Tensor:
    """Which of some numbers [m] are among sorted ones [n]; bool [m]."""
    if not len(sorted_keys):
        return torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(sorted_keys, wanted).clamp(max=len(sorted_keys) - 1)
    return sorted_keys[place] == wanted


def _edited(keys: Tensor, removed: Tensor, added: Tensor) -> Tensor:
    """Sorted numbers [n] without some and with others, which are sorted and distinct as well.

    Unlike a sort, this costs little more than a copy.
    """
    keep = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    keep[torch.searchsorted(keys, removed[_contains(keys, removed)])] = False
    kept = keys[keep]
    place = torch.searchsorted(kept, added) + torch.arange(len(added), device=keys.device)
    is_old = torch.ones(len(kept) + len(added), dtype=torch.bool, device=keys.device)
    is_old[place] = False
    result = keys.new_empty(len(is_old))
    result[place] = added
    result[is_old] = kept
    return result
