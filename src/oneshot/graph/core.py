"""Core: the edges between the entities with the most edges of a graph.

The rows of hubs are long, and grow with the graph, but a subgraph needs only the edges between its
own entities. Most of these are between hubs, which are in the subgraphs of all queries. The core
has their rows without all other entities (see `samplers._extract`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oneshot.graph.fact_keys import place_of

MOST_ENTITIES = 4096
_PIECE = 1 << 20  # entities whose degrees are compared at a time


@dataclass(frozen=True)
class Core:
    """Edges between the entities with the most edges, each pair of neighbours once.

    `entities` int64 [H], sorted. Row `i` is `start[i] : start[i + 1]` of `source` int32 and
    `relation` int32: edges that point to entity `i` from entities with more edges (ties: of higher
    id) and from itself, sorted. `source` counts within `entities`. `is_current` bool [H]: which
    rows are still those of the graph; None if all of them are.
    """

    entities: Tensor
    start: Tensor
    source: Tensor
    relation: Tensor
    is_current: Tensor | None = None

    def rows_of(self, entities: Tensor) -> Tensor:
        """The row of each entity [m], -1 for those that are not in the core; int64 [m]."""
        row = place_of(self.entities, entities)
        if self.is_current is not None and len(self.is_current):
            row = torch.where(self.is_current[row.clamp(min=0)], row, -1)
        return row

    def without(self, changed: Tensor) -> "Core":
        """The core of a graph in which the rows of some entities [m] are others.

        The edges between two other entities are the same.
        """
        return replace(self, is_current=~torch.isin(self.entities, changed))


def largest_rows(indptr: Tensor, count: int = MOST_ENTITIES) -> Tensor:
    """The `count` entities with the most edges, sorted; reads `indptr` [V + 1] in pieces."""
    degree = entities = torch.empty(0, dtype=torch.long)
    for first in range(0, len(indptr) - 1, _PIECE):
        more = indptr[first : first + _PIECE + 1].diff().long()
        degree = torch.cat([degree, more])
        entities = torch.cat([entities, torch.arange(first, first + len(more))])
        best = degree.topk(min(count, len(degree))).indices
        degree, entities = degree[best], entities[best]
    return entities.sort().values


def core_of_edges(entities: Tensor, degree: Tensor, edges: Tensor) -> Core:
    """The core of some entities [H], sorted, from all edges [3, E] between them, as in a subgraph.

    `degree` [H]: their edges in the graph. `edges`: those of facts, in the order of `Edges`.
    """
    source, relation, target = edges
    more = degree[source] > degree[target]
    kept = more | ((degree[source] == degree[target]) & (source >= target))
    number = torch.bincount(target[kept], minlength=len(entities))
    return Core(
        entities,
        torch.cat([number.new_zeros(1), number.cumsum(0)]),
        source[kept].int(),
        relation[kept].int(),
    )
