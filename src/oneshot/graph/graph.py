"""KnowledgeGraph: the observed facts as sparse adjacency.

Every fact `(h, r, t)` is an edge in both directions: `(h, r, t)` and `(t, r + R, h)`, where
`R` is the number of relations and `r + R` the inverse of `r`. Edges are grouped by the
entity they point to, because that is the order in which messages are summed.
"""

import hashlib
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.adjacency import (
    Edges,
    Neighbours,
    compress_indptr,
    integer_type,
    moved,
    normalized_adjacency,
)
from oneshot.graph.answer_pairs import AnswerPairs, count_answers
from oneshot.graph.components import ComponentIndex, Components
from oneshot.graph.core import Core
from oneshot.graph.fact_keys import check_ids, combined_key, first_occurrences
from oneshot.graph.hub_index import HubIndex
from oneshot.graph.relation_graph import RelationGraph, count_relations
from oneshot.graph.sparse import Matrix, SparseMatrix
from oneshot.graph.vocabulary import Vocabulary
from oneshot.graph.weights import checked_weights, largest_weights

INVERSE_MARK = "⁻¹"


class KnowledgeGraph:
    """Facts between named entities, with the adjacency for samplers.

    `facts` [F, 3] integers: (head, relation, tail), distinct rows.
    `weights` float32 [F], above 0: the weight of each fact; None if the facts have none.
    `largest_weight`: the maximum weight of the graph as it was read, also in a `subset`.
    `origin`: how to load it again, {"source": …, "options": …}, if it was loaded from a source.
    `packed`: whether the rows of the adjacency are contiguous, without gaps.
    `is_mapped`: whether it is in memory-mapped files, which may be larger than the memory;
        `path`: their directory.
    `host`: the graph with the adjacency, if not on the graph's device (see `HostGraph`).
    `push_recall`: recall of the local push, measured when the graph was saved; otherwise None.
    `push_precision`: the precision of the push that was chosen then; None for its default.
    `hub_index`: the PPR between its hubs, if the graph was saved with it, and `hub_recall`: recall
        of the local push with it. A changed graph keeps both unless too much has changed.
    `core`: the edges between its hubs, once the extraction of a subgraph has needed them.
    Immutable; `subset` and `to` return new graphs.
    """

    packed = True
    is_mapped = False
    path: Path | None = None
    host: "KnowledgeGraph | None" = None
    push_recall: float | None = None
    push_precision: float | None = None
    weights: Tensor | None = None
    largest_weight: float = 1.0
    hub_index: HubIndex | None = None
    hub_recall: float | None = None
    core: Core | None = None

    def __init__(self, facts: Tensor, entities: Vocabulary, relations: Vocabulary) -> None:
        self._facts = facts
        self.entities = entities
        self.relations = relations
        self.origin: dict[str, Any] | None = None
        self._normalized: dict[torch.dtype, Matrix] = {}

    @classmethod
    def from_facts(
        cls,
        facts: ArrayLike | Tensor,
        entities: Vocabulary | Sequence[str] | int | None = None,
        relations: Vocabulary | Sequence[str] | int | None = None,
        weights: ArrayLike | Tensor | None = None,
    ) -> "KnowledgeGraph":
        """The graph of these facts; duplicates are removed.

        `facts` [F, 3] ids. `entities` and `relations` are names, or counts (then the names are
        the numbers), or None (then the largest id determines the count). `weights` [F]: numbers
        above 0; a repeated fact has the largest of its weights.
        """
        array = np.asarray(facts.cpu() if isinstance(facts, Tensor) else facts)
        if array.size == 0:
            array = np.empty((0, 3), np.int64)
        if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
            raise InputError(
                f"facts must be integers of shape [n, 3], not {array.dtype} {list(array.shape)}"
            )
        entities = _vocabulary(entities, array[:, [0, 2]], "entity")
        relations = _vocabulary(relations, array[:, 1], "relation")
        for column, names in ((0, entities), (1, relations), (2, entities)):
            check_ids(array[:, column], names)
        rows = first_occurrences(array, len(entities), len(relations))
        if weights is not None:
            given = np.asarray(weights.cpu() if isinstance(weights, Tensor) else weights)
            if given.shape != (len(array),):
                raise InputError(f"weights must have shape [{len(array)}], one per fact")
            weights = largest_weights(
                array, checked_weights(given), rows, len(entities), len(relations)
            )
        return cls.from_distinct(array[rows], entities, relations, weights)

    @classmethod
    def from_distinct(
        cls,
        facts: NDArray[np.integer],
        entities: Vocabulary,
        relations: Vocabulary,
        weights: NDArray[np.float32] | None = None,
    ) -> "KnowledgeGraph":
        """The graph of `facts` [F, 3], which must be valid and distinct (not checked).

        `weights` [F]: those of the facts, which must be valid as well.
        """
        check_relations(relations)
        kind = integer_type(max(len(entities), 2 * len(relations) + 1))
        kept = np.ascontiguousarray(facts, kind)
        graph = cls(torch.from_numpy(kept), entities, relations)
        if weights is not None:
            graph.weights = torch.from_numpy(np.ascontiguousarray(weights, np.float32))
            graph.largest_weight = float(np.max(weights, initial=0))
        return graph

    @property
    def base(self) -> "KnowledgeGraph":
        """The graph without the changes of a `Snapshot`; otherwise this graph."""
        return self

    @property
    def plain(self) -> "KnowledgeGraph":
        """The same graph with contiguous rows that hold its facts alone; a copy if it is a view."""
        return self

    @property
    def facts(self) -> Tensor:
        return self._facts

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """Number of relations, without inverses."""
        return len(self.relations)

    @property
    def num_facts(self) -> int:
        return len(self.facts)

    @property
    def device(self) -> torch.device:
        return self.facts.device

    def __repr__(self) -> str:
        return (
            f"KnowledgeGraph({self.num_entities} entities, {self.num_relations} relations, "
            f"{self.num_facts} facts)"
        )

    def relation_name(self, relation: int) -> str:
        """The name of a relation id; an inverse is marked with ⁻¹."""
        if relation >= self.num_relations:
            return self.relations[relation - self.num_relations] + INVERSE_MARK
        return self.relations[relation]

    def inverse(self, relation: Tensor) -> Tensor:
        """The inverse of each relation id: `r ↔ r + R`."""
        count = self.num_relations
        return torch.where(relation < count, relation + count, relation - count)

    @cached_property
    def edges(self) -> Edges:
        """Edges grouped by target (see `Edges`)."""
        facts = self.facts
        head, relation, tail = (column.cpu().numpy() for column in facts.unbind(1))
        rows = np.arange(self.num_facts, dtype=integer_type(2 * self.num_facts))
        target = np.concatenate([tail, head])
        source = np.concatenate([head, tail])
        label = np.concatenate([relation, relation + np.asarray(self.num_relations, head.dtype)])
        order = np.argsort(
            combined_key(
                np.stack([target, source, label], axis=1),
                (self.num_entities, self.num_entities, 2 * self.num_relations),
            )
        )
        counts = np.bincount(target, minlength=self.num_entities)
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        columns = (source[order], label[order], np.concatenate([rows, rows])[order])
        return Edges(
            torch.from_numpy(indptr).to(facts.device),
            *(torch.from_numpy(column).to(facts.device) for column in columns),
        )

    @cached_property
    def neighbours(self) -> Neighbours:
        """The undirected simple graph (see `Neighbours`)."""
        edges = self.edges
        target = self._edge_target()
        loop = edges.source == target
        new = ~loop
        new[1:] &= (edges.source[1:] != edges.source[:-1]) | (target[1:] != target[:-1])
        pair = new.cumsum(0) - 1
        pair[loop] = -1
        return Neighbours(
            compress_indptr(edges.indptr, new).to(edges.fact.dtype),
            edges.source[new],
            pair.to(edges.fact.dtype),
        )

    @cached_property
    def components(self) -> ComponentIndex:
        """The connected components, with the entities of each by degree."""
        return Components.of(self.neighbours.indptr, self.neighbours.index)

    @cached_property
    def pair_weights(self) -> Tensor | None:
        """The summed weights of the facts of each pair of `neighbours`, float64 [P].

        None if the facts have no weights.
        """
        if self.weights is None:
            return None
        pair = self.neighbours.pair
        counted = (pair >= 0).nonzero().squeeze(1)  # without self-loops, by pair
        count = torch.bincount(pair[counted], minlength=len(self.neighbours.index))
        indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
        # A product of matrices sums in a fixed order on every device.
        matrix = SparseMatrix(indptr, self.edges.fact[counted], None, self.num_facts)
        return (matrix @ self.weights.double()[:, None]).squeeze(1)

    def message_weights(self, facts: Tensor) -> Tensor:
        """The factor of the messages along the edges of some facts, [m] rows → float32 [m].

        A weight up to 1, such as a confidence, is the factor. If a weight of the graph is above 1,
        as with counts, the factor of `w` is `log(1 + w) / log(1 + largest)`: messages are
        multiplied along a path, and would grow beyond all bounds.
        """
        assert self.weights is not None
        weights = self.weights[facts.long()]
        if self.largest_weight <= 1:
            return weights
        return weights.log1p() / math.log1p(self.largest_weight)

    def normalized_adjacency(self, dtype: torch.dtype = torch.float32) -> Matrix:
        """`D^-1/2 A D^-1/2` of the undirected simple graph, sparse CSR [V, V].

        An entity without neighbours has a 1 on the diagonal: a walk that starts there stays. With
        weights, `A` has the summed weight of the facts of each pair, and `D` its row sums.
        """
        if dtype not in self._normalized:
            self._normalized[dtype] = normalized_adjacency(
                self.neighbours, dtype, self.pair_weights
            )
        return self._normalized[dtype]

    @cached_property
    def degree(self) -> Tensor:
        """Number of edges that point to each entity (the facts that contain it), int64 [V]."""
        return self.edges.indptr.diff()

    def degree_of(self, entities: Tensor) -> Tensor:
        """`degree` of some entities [m], int64 [m]; reads no others if the graph is mapped."""
        return self.degree[entities]

    def edges_into(self, entity: int) -> tuple[Tensor, Tensor]:
        """Sources and relations of the edges that point to an entity, int64 [m] each."""
        row = torch.tensor([entity], device=self.device)
        _, place = self.edges.places(row, self.degree_of(row).long())
        return self.edges.source[place].long(), self.edges.relation[place].long()

    @cached_property
    def relation_graph(self) -> RelationGraph:
        """How the relations touch each other (see `RelationGraph`)."""
        return count_relations(self)

    @cached_property
    def answer_pairs(self) -> AnswerPairs:
        """Which entities answer which relations, and how often (see `AnswerPairs`)."""
        return count_answers(self)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of names, facts and weights, independent of the order of the facts."""
        edges = self.edges
        names = (a for v in (self.entities, self.relations) for a in (v.offsets, v.blob))
        numbers = (
            chunk.cpu().numpy()
            for tensor in (edges.indptr, edges.source, edges.relation)
            for chunk in tensor.split(1 << 22)
        )
        return fingerprint_of(itertools.chain(names, numbers, self._weight_bytes()))

    def _weight_bytes(self) -> Iterator[NDArray[np.uint8]]:
        """The weights in the order of the edges, as bytes; nothing if there are none."""
        if self.weights is not None:
            for rows in self.edges.fact.split(1 << 22):
                chunk = self.weights[rows.long()].cpu().numpy()
                yield np.ascontiguousarray(chunk, "<f4").view(np.uint8)

    def subset(self, mask: Tensor) -> "KnowledgeGraph":
        """The graph of the facts where `mask` bool [F] is true, with the same entities.

        Filters the sorted adjacency instead of sorting again, so that the observation graph of an
        epoch costs only a few passes over the edges.
        """
        if mask.dtype != torch.bool or mask.shape != (self.num_facts,):
            raise InputError(f"mask must be bool of shape [{self.num_facts}]")
        edges, neighbours = self.edges, self.neighbours
        mask = mask.to(self.device)
        keep = mask[edges.fact]
        new_row = mask.cumsum(0) - 1
        pair = neighbours.pair[keep]
        keep_pair = torch.zeros(len(neighbours.index), dtype=torch.bool, device=self.device)
        keep_pair[pair[pair >= 0]] = True
        new_pair = torch.cat(
            [keep_pair.cumsum(0) - 1, keep_pair.new_full((1,), -1, dtype=torch.long)]
        )
        graph = KnowledgeGraph(self.facts[mask], self.entities, self.relations)
        graph.edges = Edges(
            compress_indptr(edges.indptr, keep),
            edges.source[keep],
            edges.relation[keep],
            new_row[edges.fact[keep]].to(edges.fact.dtype),
        )
        graph.neighbours = Neighbours(
            compress_indptr(neighbours.indptr, keep_pair).to(neighbours.indptr.dtype),
            neighbours.index[keep_pair],
            new_pair[pair].to(pair.dtype),  # -1 picks the last entry, which is -1
        )
        graph.push_recall, graph.push_precision = self.push_recall, self.push_precision
        return self._share_weights(graph, None if self.weights is None else self.weights[mask])

    def hiding(self, rows: Tensor) -> "KnowledgeGraph":
        """The graph without the facts in some rows of `facts`, int64 [m].

        A view with the memory of this graph if possible (see `HiddenFacts`), for few facts of a
        large graph; otherwise as `subset`.
        """
        from oneshot.graph.hidden import HiddenFacts, can_hide

        if can_hide(self):
            return HiddenFacts(self, rows)
        mask = torch.ones(self.num_facts, dtype=torch.bool)
        mask[rows.cpu()] = False
        return self.subset(mask)

    def _share_weights(self, graph: "KnowledgeGraph", weights: Tensor | None) -> "KnowledgeGraph":
        """A graph made from this one, with `weights` [F] of its facts."""
        graph.weights, graph.largest_weight = weights, self.largest_weight
        return graph

    def to(self, device: torch.device | str) -> "KnowledgeGraph":
        """This graph with its tensors on a device (itself if they are already there).

        A graph that is too large for the device stays on the host (see `HostGraph`).
        """
        from oneshot.graph.host import HostGraph, fits_on

        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        if device.type != "cpu" and not fits_on(self, device):
            return HostGraph(self, device)
        graph = KnowledgeGraph(self.facts.to(device), self.entities, self.relations)
        graph.edges = moved(self.edges, device)
        graph.neighbours = moved(self.neighbours, device)
        graph.origin = self.origin
        return self._share_weights(graph, None if self.weights is None else self.weights.to(device))

    def with_relations(self, relations: Vocabulary) -> "KnowledgeGraph":
        """This graph with the relation ids of another vocabulary, matched by name."""
        if relations == self.relations:
            return self
        used = np.unique(self.facts[:, 1].cpu().numpy()).tolist()
        new_id = torch.zeros(max(self.num_relations, 1), dtype=self.facts.dtype)
        for relation in used:
            name = self.relations[relation]
            found = relations.get(name)
            if found is None:
                raise UnknownNameError("relation", name, relations.nearest(name))
            new_id[relation] = found
        check_relations(relations)
        facts = self.facts.clone()
        facts[:, 1] = new_id.to(self.device)[facts[:, 1].long()]
        return self._share_weights(KnowledgeGraph(facts, self.entities, relations), self.weights)

    def _edge_target(self) -> Tensor:
        """The target of each edge, [2F]."""
        entities = torch.arange(self.num_entities, device=self.device, dtype=self.facts.dtype)
        return entities.repeat_interleave(self.degree)


def fingerprint_of(arrays: Iterable[NDArray[Any]]) -> str:
    """The fingerprint of a graph from its arrays, each as a whole or in pieces.

    Offsets and bytes of the entity names, then of the relation names, then `indptr`, `source` and
    `relation` of the edges.
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        # Bytes unchanged; integers independent of their stored type.
        same = array if array.dtype == np.uint8 else array.astype("<i8", copy=False)
        digest.update(np.ascontiguousarray(same).data)
    return digest.hexdigest()


def _vocabulary(
    names: Vocabulary | Sequence[str] | int | None, ids: NDArray[np.integer], kind: str
) -> Vocabulary:
    """The vocabulary of names given as in `from_facts`."""
    if isinstance(names, Vocabulary):
        return names
    if names is not None and not hasattr(names, "__index__"):
        return Vocabulary.from_names(names, kind)
    count = int(ids.max(initial=-1)) + 1 if names is None else operator.index(cast(int, names))
    if count < 0:
        raise InputError(f"the number of names must be at least 0, not {count}")
    return Vocabulary.numbered(count, kind)


def check_relations(relations: Vocabulary, where: str = "graph") -> None:
    """Raise if the name of a relation equals the name of another one's inverse."""
    mark = INVERSE_MARK.encode()
    if mark not in relations.blob.tobytes():  # one pass, which is nearly always sufficient
        return
    for name in relations:
        if name.endswith(INVERSE_MARK) and name.removesuffix(INVERSE_MARK) in relations:
            raise InputError(
                f"{where}: the relation {name!r} has the name of the inverse of "
                f"{name.removesuffix(INVERSE_MARK)!r}; rename one of them"
            )
