"""LiveGraph: the graph of a run with facts added and removed, on disk and in memory.

A change is first written to the `FactStore` of the run and then, before the next query is answered,
to the overlay on top of the base. Any thread may read and change facts. `graph`, which returns a
snapshot, is for the single thread that answers queries, and never waits for the disk. After many
changes, compaction creates a new base in the background.
"""

import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.host import HostGraph
from oneshot.graph.live.compaction import compacted, find_facts
from oneshot.graph.live.overlay import Fact, Overlay
from oneshot.graph.live.store import (
    STORE,
    Change,
    FactStore,
    NamedFact,
    checked_fact,
    has_changes,
    numbered_facts,
)
from oneshot.graph.vocabulary import GrowingVocabulary

_COMPACTION_PAUSE = 60.0  # seconds after a failed compaction

log = logging.getLogger(__name__)


def with_changes(run: Path, graph: KnowledgeGraph, fingerprint: str) -> KnowledgeGraph:
    """The graph of a run with its added and removed facts, as a plain graph.

    `graph`: the base, whose ids do not change; `fingerprint`: that of the base, from the run.
    """
    if not has_changes(run / STORE):
        return graph
    store = FactStore(run / STORE, fingerprint, read_only=True)
    try:
        _, changes = store.read()
    finally:
        store.close()
    _check_base(changes, graph, run / STORE)
    entities = GrowingVocabulary(graph.entities)
    effective = [change for change in changes if change.present != change.in_base]
    ids = numbered_facts(effective, entities, graph.relations)
    holds = np.array([change.present for change in effective], bool)
    return compacted(graph, ids[holds], ids[~holds], entities.settled())


def _check_base(changes: Sequence[Change], base: KnowledgeGraph, path: Path) -> None:
    """Raise unless the changes state rightly which of their facts the base contains.

    Otherwise a fact that was removed would hold again after a restart.
    """
    ids = numbered_facts(changes, GrowingVocabulary(base.entities), base.relations)
    stands = find_facts(base, ids) >= 0
    for change, is_there in zip(changes, stands.tolist(), strict=True):
        if change.in_base != is_there:
            raise InputError(
                f"{path}: not a whole store of facts (it is wrong about which facts are in the "
                f"graph of the run: {change.head}, {change.relation}, {change.tail})"
            )


class _State(NamedTuple):
    """The state of a changed fact; `version`: that of the graph since its latest change.

    `time`: of that change, in seconds since 1970; None if unknown.
    """

    present: bool
    in_base: bool
    version: int = 0
    time: int | None = None


class LiveGraph:
    """The mutable graph of a run.

    `base`: the original graph of the run, with its `fingerprint`; `run`: its directory, or None to
    store nothing on disk. `device`: device for queries. `read_only`: for reading, also from a
    directory that is not writable.
    """

    def __init__(
        self,
        base: KnowledgeGraph,
        run: Path | None = None,
        fingerprint: str = "",
        device: torch.device | str = "cpu",
        read_only: bool = False,
    ) -> None:
        self.relations = base.relations
        self.version = 0
        self._lock = threading.RLock()  # for the data in memory
        self._writing = threading.Lock()  # for the store; acquired before the other
        self._store: FactStore | None = None
        self._run, self._fingerprint = run, fingerprint
        self._read_only = read_only
        self._open_store()
        self._state: dict[Fact, _State] = {}  # all changed facts, the latest change last
        # Facts per relation; counted on demand, and updated with each change since then.
        self._counts: NDArray[np.int64] | None = None
        self._around: dict[int, dict[Fact, None]] = defaultdict(dict)
        self.entities = GrowingVocabulary(base.entities)
        self._pending: dict[Fact, bool] = {}
        self._base = base  # initially that of the run; each compaction creates a new one
        self.num_facts = base.num_facts
        self._compaction: threading.Thread | None = None
        self._compact_from = 0.0  # earliest time of the next compaction
        self._renewed: tuple[KnowledgeGraph, Overlay] | None = (
            None  # a new base, created in the background
        )
        self._since_base: dict[Fact, bool] = {}  # changes since the base was created
        self._since_compaction: dict[Fact, bool] | None = (
            None  # changes since the running compaction
        )
        if self._store is not None:
            self._read_store()
        if self._pending:
            self._base = self._compacted(self._base, self._pending)
            self._pending = {}
            self._since_base = {}
        self._device = torch.device(device)
        self._overlay: Overlay | None = None  # created on first use of the graph
        self._snapshot = self._base

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    def add(self, facts: Iterable[Sequence[str]]) -> int:
        """Add facts by name; new entities are added. → number of new facts"""
        return self.change(facts, True)[0]

    def remove(self, facts: Iterable[Sequence[str]]) -> int:
        """Remove facts by name. → number of removed facts"""
        return self.change(facts, False)[0]

    def graph(self) -> KnowledgeGraph:
        """The graph with all changes so far; valid until the next call (see `Overlay`)."""
        return self.snapshot()[0]

    def snapshot(self) -> tuple[KnowledgeGraph, int]:
        """The graph with all changes so far, and its version (see `graph`)."""
        with self._lock:
            self._catch_up()
            if self._overlay is None:
                self._overlay = self._overlay_on(self._base)
                self._snapshot = self._on_device(self._overlay.base)
            if self._renewed is not None:
                self._base, self._overlay = self._renewed
                self._pending = dict(self._since_compaction or {})
                self._since_base = dict(self._pending)
                self._renewed = self._since_compaction = None
                self._snapshot = self._on_device(self._overlay.base)
            overlay = self._overlay
            count = len(self.entities)
            if self._pending or count > overlay.num_entities:
                changes, self._pending = self._pending, {}
                overlay.apply(changes, count)
                self._snapshot = self._on_device(overlay.snapshot())
            may_compact = self._compaction is None and time.monotonic() >= self._compact_from
            if may_compact and overlay.needs_compaction:
                self._since_compaction = {}
                self._compaction = threading.Thread(
                    target=self._compact, args=(dict(self._since_base),), daemon=True
                )
                self._compaction.start()
            return self._snapshot, self.version

    def catch_up(self) -> None:
        """Read changes of other processes, such as `oneshot facts`; takes microseconds."""
        with self._lock:
            self._catch_up()

    def size(self) -> tuple[int, int, int]:
        """The number of entities and of facts, and the version that they belong to."""
        with self._lock:
            self._catch_up()
            return len(self.entities), self.num_facts, self.version

    def facts_of(self, entity: int, limit: int, offset: int = 0) -> tuple[list[Fact], int, int]:
        """At most `limit` facts of an entity, their total number, and the version of both.

        `offset`: the number of facts to skip; the order is the same within a version.
        """
        with self._lock:
            self._catch_up()
            version = self.version
            changed = {fact: self._state[fact].present for fact in self._around.get(entity, ())}
            base, count = self._base, self._base.num_relations
        found = [fact for fact, holds in changed.items() if holds]
        total = len(found)
        found = found[offset : offset + limit]
        if entity < base.num_entities:
            edges = base.edges
            row = slice(int(edges.indptr[entity]), int(edges.indptr[entity + 1]))
            source, label = (part[row].numpy() for part in (edges.source, edges.relation))
            # A self-loop is in the row in both directions, but is one fact.
            listed = (label < count) | (source != entity)
            if changed:
                # The edges of changed facts; whether they hold is known already.
                rows = [(x, r) if o == entity else (o, r + count) for x, r, o in changed]
                keys = source.astype(np.int64) * (2 * count) + label
                listed &= ~np.isin(keys, [x * 2 * count + r for x, r in rows])
            places = np.flatnonzero(listed)
            start = max(offset - total, 0)
            total += len(places)
            for place in places[start : start + limit - len(found)].tolist():
                x, r = int(source[place]), int(label[place])
                found.append((x, r, entity) if r < count else (entity, r - count, x))
        return found, total, version

    def names(self, fact: Fact) -> NamedFact:
        return self.entities[fact[0]], self.relations[fact[1]], self.entities[fact[2]]

    def changes(self) -> list[tuple[NamedFact, bool]]:
        """The facts that differ from the run's base graph, and whether each is present."""
        with self._lock:
            states = list(self._state.items())
        changed = [(fact, one) for fact, one in states if one.present != one.in_base]
        return [(self.names(fact), one.present) for fact, one in changed]

    def history(self, limit: int, offset: int = 0) -> tuple[list[Change], int, int]:
        """At most `limit` changed facts, latest change first; their total number; the version.

        Each fact is listed once, with its latest change. `offset`: the number of facts to skip.
        """
        with self._lock:
            self._catch_up()
            latest = reversed(self._state.items())
            found = list(itertools.islice(latest, offset, offset + limit))
            total, version = len(self._state), self.version
        changes = [
            Change(*self.names(fact), state.present, state.in_base, state.version, state.time)
            for fact, state in found
        ]
        return changes, total, version

    def relation_counts(self) -> tuple[NDArray[np.int64], int]:
        """The number of facts of each relation [num_relations], and the version."""
        while True:
            with self._lock:
                self._catch_up()
                if self._counts is not None:
                    return self._counts.copy(), self.version
                base = self._base
            # Without the lock: this reads all facts of the graph.
            counts = torch.bincount(base.facts[:, 1], minlength=base.num_relations).numpy()
            with self._lock:
                if self._base is not base:  # compacted in the meantime
                    continue
                ids = np.array(list(self._since_base), np.int64).reshape(-1, 3)
                holds = np.array(list(self._since_base.values()), np.int64)
                stands = (find_facts(base, ids) >= 0).astype(np.int64)
                self._counts = counts
                np.add.at(self._counts, ids[:, 1], holds - stands)

    def relations_of(self, entity: int) -> tuple[NDArray[np.int64], int]:
        """The number of facts of an entity by relation [2 * num_relations], and the version.

        The first half counts facts with the entity as head, the second half as tail.
        """
        with self._lock:
            self._catch_up()
            version = self.version
            changed = {fact: self._state[fact].present for fact in self._around.get(entity, ())}
            base, count = self._base, self._base.num_relations
        counts = np.zeros(2 * count, np.int64)
        if entity < base.num_entities:
            edges = base.edges
            row = slice(int(edges.indptr[entity]), int(edges.indptr[entity + 1]))
            # Edges lead to the entity: those of relations make it the tail, inverses the head.
            counts = torch.bincount(edges.relation[row], minlength=2 * count).numpy()
            counts = np.concatenate([counts[count:], counts[:count]])
        ids = np.array(list(changed), np.int64).reshape(-1, 3)
        difference = np.array(list(changed.values()), np.int64) - (find_facts(base, ids) >= 0)
        for (head, relation, tail), more in zip(ids.tolist(), difference.tolist(), strict=True):
            if head == entity:
                counts[relation] += more
            if tail == entity:
                counts[count + relation] += more
        return counts, version

    def close(self) -> None:
        """Close the file; waits for a running compaction."""
        compaction = self._compaction
        if compaction is not None:
            compaction.join()
        if self._store is not None:
            self._store.close()

    def change(self, facts: Iterable[Sequence[str]], present: bool) -> tuple[int, int]:
        """Add or remove facts by name. → number of changed facts, and the version since then"""
        if self._read_only:
            raise InputError("the graph was opened read-only")
        if self._base.weights is not None:
            raise InputError(
                "facts cannot be added to or removed from a graph with weights; change the data "
                "set and load it again"
            )
        named = [self.checked(fact) for fact in facts]
        if self._store is None:
            with self._lock:
                changes = self._effective(named, present)
                version, now = self.version + 1, int(time.time())
                self._absorb([one._replace(version=version, time=now) for one in changes])
                self.version += bool(changes)
                return len(changes), self.version
        with self._writing:
            with self._store.writing():
                with self._lock:
                    self._read_store()  # changes of other processes, which are now locked out
                    changes = self._effective(named, present)
                    version = self.version
                if changes:
                    version = self._store.write(changes)
            # Persistent now. Read back, because another process may have written since.
            with self._lock:
                self._read_store()
        return len(changes), version

    def checked(self, fact: Sequence[str]) -> NamedFact:
        """A fact by names that can be added or removed; raises if its relation is unknown."""
        named = checked_fact(fact)
        self.relations.index(named[1])
        return named

    def _effective(self, named: Sequence[NamedFact], present: bool) -> list[Change]:
        """The changes needed to make these facts present or absent; each fact once."""
        named = list(dict.fromkeys(named))
        rows = [
            (self._number(head), self.relations.index(relation), self._number(tail))
            for head, relation, tail in named
        ]
        ids = np.array(rows, np.int64).reshape(-1, 3)
        found = np.zeros(len(ids), bool)
        known = (ids >= 0).all(1)
        found[known] = find_facts(self._base, ids[known]) >= 0
        changes = []
        for fact, numbers, stands in zip(named, rows, found.tolist(), strict=True):
            state = self._state.get(numbers, _State(stands, stands))
            if state.present != present:
                changes.append(Change(*fact, present, state.in_base))
        return changes

    def _number(self, name: str) -> int:
        """The id of an entity, or -1."""
        found = self.entities.get(name)
        return -1 if found is None else found

    def _absorb(self, changes: Sequence[Change]) -> None:
        """Apply changes in memory; the adjacency is updated by the next `graph`."""
        ids = numbered_facts(changes, self.entities, self.relations)
        numbered = zip(changes, ids.tolist(), strict=True)
        # Ids are assigned in the order of first occurrence; states are kept in that of versions.
        for change, numbers in sorted(numbered, key=lambda one: one[0].version):
            fact: Fact = tuple(numbers)
            state = self._state.pop(fact, None)
            held = change.in_base if state is None else state.present
            self._state[fact] = _State(change.present, change.in_base, change.version, change.time)
            if held == change.present:
                continue
            more = 1 if change.present else -1
            self.num_facts += more
            if self._counts is not None:
                self._counts[fact[1]] += more
            self._around[fact[0]][fact] = None
            self._around[fact[2]][fact] = None
            for pending in (self._pending, self._since_base, self._since_compaction):
                if pending is not None:
                    pending[fact] = change.present

    def _catch_up(self) -> None:
        if self._store is None:
            self._open_store()  # another process may have created it
            if self._store is not None:
                self._read_store()
        elif self._store.moved_on():
            self._read_store()

    def _open_store(self) -> None:
        """Open the store of the run; one that is only read is not created."""
        if self._run is not None and (not self._read_only or (self._run / STORE).is_file()):
            self._store = FactStore(self._run / STORE, self._fingerprint, self._read_only)

    def _read_store(self) -> None:
        assert self._store is not None
        self.version, changes = self._store.read(self.version)
        if not self._state:  # the base is still that of the run
            _check_base(changes, self._base, self._store.path)
        self._absorb(changes)

    def _compact(self, changes: dict[Fact, bool]) -> None:
        """Create a new base from the old one and these changes; runs in its own thread."""
        renewed = None
        try:
            base = self._compacted(self._base, changes)
            renewed = base, self._overlay_on(base)
            # So that no query waits for them.
            renewed[1].base.normalized_adjacency()
            if self._overlay is not None and self._overlay.has_components:
                renewed[1].components()
        except Exception:  # for example out of memory: the old base stays in use
            log.exception("compaction of the graph failed; it will be retried later")
        with self._lock:
            self._renewed, self._compaction = renewed, None
            if renewed is None:
                self._since_compaction = None
                self._compact_from = time.monotonic() + _COMPACTION_PAUSE

    def _overlay_on(self, base: KnowledgeGraph) -> Overlay:
        """A base prepared for changes, on the device if it fits."""
        moved = base.to(self._device)
        return Overlay(moved.host or moved, self.entities)

    def _on_device(self, graph: KnowledgeGraph) -> KnowledgeGraph:
        here = graph.device.type == self._device.type
        return graph if here else HostGraph(graph, self._device)

    def _compacted(self, base: KnowledgeGraph, changes: dict[Fact, bool]) -> KnowledgeGraph:
        ids = np.array(list(changes), np.int64).reshape(-1, 3)
        holds = np.array(list(changes.values()), bool)
        stands = find_facts(base, ids) >= 0
        most = max(int(ids[:, [0, 2]].max(initial=-1)) + 1, base.num_entities)
        entities = self.entities.settled(most)
        return compacted(base, ids[holds & ~stands], ids[~holds & stands], entities)
