"""AnswerPairs: which entities answer which relations of a graph, and how often.

An entity `v` is an answer of `r` if a fact `(x, r, v)` is in the graph; with inverses as relations
of their own, every fact gives two pairs. The fitted sampler, the frequency baseline and the
calibration count these pairs. They are found in blocks of entities, and saved with a graph, so that
memory does not grow with its facts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oneshot.graph.relation_graph import edge_blocks

if TYPE_CHECKING:
    from oneshot.graph.adjacency import AdjacencyGraph

SMALL = 2**31

Allocate = Callable[[str, int, torch.dtype], Tensor]
"""Gives the memory of an array: its name, length and type."""


@dataclass(frozen=True)
class AnswerPairs:
    """The distinct pairs of entity and relation, `I` of them, in two orders.

    By (entity, relation): those of entity `v` are `first[v]:first[v + 1]` of `relation` [I] and of
    `count` [I], the number of facts of each; `first` [V + 1]. By (relation, entity): those of
    relation `r`, of `2R`, are `start[r]:start[r + 1]` of `entity` [I] and `entity_count` [I];
    `start` [2R + 1]. One integer type, of 32 bits if possible.
    """

    first: Tensor
    relation: Tensor
    count: Tensor
    start: Tensor
    entity: Tensor
    entity_count: Tensor

    @property
    def num_relations(self) -> int:
        """Number of relations, with inverses."""
        return len(self.start) - 1

    def entities_of(self, relation: int) -> Tensor:
        """The answers of a relation, ascending, int64 [k]."""
        begin, end = self.start[relation : relation + 2].tolist()
        return self.entity[begin:end].long()

    def counts_of(self, relation: int) -> Tensor:
        """The number of facts of each of `entities_of`, int64 [k]."""
        begin, end = self.start[relation : relation + 2].tolist()
        return self.entity_count[begin:end].long()


def count_answers(graph: "AdjacencyGraph", allocate: Allocate | None = None) -> AnswerPairs:
    """The pairs of a graph, by two passes over its edges.

    `allocate`: where the arrays are written, by default into memory on the device of the graph.
    """
    device, labels = graph.device, 2 * graph.num_relations
    if allocate is None:

        def allocate(_name: str, length: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(length, dtype=dtype, device=device)

    every = torch.arange(graph.num_entities, device=device)
    of_entity = torch.zeros(graph.num_entities + 1, dtype=torch.long, device=device)
    of_relation = torch.zeros(labels + 1, dtype=torch.long, device=device)
    for entities, row, _, relation in edge_blocks(graph, every):
        key = (row * labels + relation).unique()
        of_entity[entities + 1] = torch.bincount(key // labels, minlength=len(entities))
        of_relation[1:] += torch.bincount(key % labels, minlength=labels)
    first, start = of_entity.cumsum_(0), of_relation.cumsum_(0)
    total = int(first[-1])
    kind = torch.int32 if max(2 * graph.num_facts, graph.num_entities) < SMALL else torch.int64
    pairs = AnswerPairs(
        allocate("first", len(first), kind),
        allocate("relation", total, kind),
        allocate("count", total, kind),
        allocate("start", len(start), kind),
        allocate("entity", total, kind),
        allocate("entity_count", total, kind),
    )
    pairs.first.copy_(first)
    pairs.start.copy_(start)
    written, begin = start[:-1].clone(), 0
    for entities, row, _, relation in edge_blocks(graph, every):
        key, count = (row * labels + relation).unique(return_counts=True)
        entity, relation = entities[key // labels], key % labels
        end = begin + len(key)
        pairs.relation[begin:end], pairs.count[begin:end] = relation.to(kind), count.to(kind)
        begin = end
        order = relation.argsort(stable=True)
        number = torch.bincount(relation, minlength=labels)
        # The place of each pair after those of the relation in earlier blocks.
        shift = written - (number.cumsum(0) - number)
        place = torch.arange(len(order), device=device) + shift[relation[order]]
        pairs.entity[place] = entity[order].to(kind)
        pairs.entity_count[place] = count[order].to(kind)
        written += number
    return pairs
