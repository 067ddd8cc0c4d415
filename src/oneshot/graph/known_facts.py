"""KnownFacts: the known answers of queries, for filtered ranking."""

import torch
from torch import Tensor

from oneshot.graph.fact_keys import place_of
from oneshot.graph.graph import KnowledgeGraph

LEAST_FACTS = 1_000_000
"""Facts of a memory-mapped graph from which on its known answers are looked up in its adjacency."""

_BLOCK = 1 << 20  # edges that are read together


class KnownFacts:
    """The known answers of every query, both directions.

    `facts` [n, 3] integers, duplicates allowed, between `num_entities` entities.
    """

    def __init__(self, facts: Tensor, num_entities: int, num_relations: int) -> None:
        self.num_entities, self.num_relations = num_entities, num_relations
        head, relation, tail = facts.long().unbind(1)
        # One sorted key per query and answer.
        keys = self._first_key(
            torch.cat([head, tail]), torch.cat([relation, relation + num_relations])
        )
        keys = keys.add_(torch.cat([tail, head])).sort().values
        is_new = keys[1:] != keys[:-1]
        self._keys = keys if bool(is_new.all()) else torch.cat([keys[:1], keys[1:][is_new]])

    @classmethod
    def of_graph(cls, graph: KnowledgeGraph, more: Tensor | None = None) -> "KnownFacts":
        """The facts of a graph, and `more` facts [n, 3].

        A large memory-mapped graph is not copied (see `MappedFacts`).
        """
        near = graph.host or graph
        if near.is_mapped and near.num_facts >= LEAST_FACTS:
            return MappedFacts(near, more)
        facts = graph.facts.long()
        if more is not None:
            facts = torch.cat([facts, more.to(facts.device)])
        return cls(facts, graph.num_entities, graph.num_relations)

    def to(self, device: torch.device | str) -> "KnownFacts":
        """These facts with their tensors on a device."""
        moved = object.__new__(KnownFacts)
        moved.num_entities, moved.num_relations = self.num_entities, self.num_relations
        moved._keys = self._keys.to(device)
        return moved

    def answers(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Known answers of `queries` [n, 2]: (row of the query [m], entity [m]), sorted."""
        first = self._first_key(*queries.unbind(1))
        start = torch.searchsorted(self._keys, first)
        count = torch.searchsorted(self._keys, first + self.num_entities) - start
        row = torch.arange(len(first), device=first.device).repeat_interleave(count)
        shift = start - (count.cumsum(0) - count)
        place = torch.arange(len(row), device=first.device) + shift[row]
        return row, self._keys[place] - first[row]

    def holds(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Whether entities [n, c] are known answers of queries [n, 2]: bool [n, c]."""
        return place_of(self._keys, self._first_key(*queries.unbind(1))[:, None] + entities) >= 0

    def _first_key(self, entity: Tensor, relation: Tensor) -> Tensor:
        """The smallest possible key of an answer of each query (entity, relation), [n]."""
        return (entity * (2 * self.num_relations)).add_(relation).mul_(self.num_entities)


class MappedFacts(KnownFacts):
    """The facts of a memory-mapped graph, and a few others, without a copy of the graph's facts.

    The answers of (u, q, ?) are the sources of the edges into `u` whose relation is the inverse of
    `q`. `graph`: packed, on the CPU; `more`: further facts [n, 3].
    """

    def __init__(self, graph: KnowledgeGraph, more: Tensor | None = None) -> None:
        self.num_entities, self.num_relations = graph.num_entities, graph.num_relations
        few = graph.facts[:0] if more is None else more.cpu()
        self._graph = graph
        self._others = KnownFacts(few, self.num_entities, self.num_relations)

    def to(self, device: torch.device | str) -> "KnownFacts":
        return self  # answers are on the device of the queries

    def answers(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        asked = queries.cpu()
        edges, entity = self._graph.edges, asked[:, 0]
        label, degree = self._graph.inverse(asked[:, 1]), self._graph.degree_of(entity).long()
        rows = torch.arange(len(asked))
        block = degree.cumsum(0) // _BLOCK
        keys = [self._keys_of(*self._others.answers(asked))]
        for part in rows.split(torch.unique_consecutive(block, return_counts=True)[1].tolist()):
            row, place = edges.places(entity[part], degree[part])
            mine = (edges.relation[place].long() == label[part][row]).nonzero().squeeze(1)
            keys.append(self._keys_of(part[row[mine]], edges.source[place[mine]].long()))
        key = torch.cat(keys).unique().to(queries.device)
        return key // self.num_entities, key % self.num_entities

    def holds(self, queries: Tensor, entities: Tensor) -> Tensor:
        asked, answers = queries.cpu(), entities.cpu()
        source, label = (column[:, None].expand_as(answers) for column in asked.unbind(1))
        place = self._graph.edges.find(answers.flatten(), source.flatten(), label.flatten())
        known = (place >= 0).view_as(answers) | self._others.holds(asked, answers)
        return known.to(queries.device)

    def _keys_of(self, row: Tensor, entity: Tensor) -> Tensor:
        return row * self.num_entities + entity
