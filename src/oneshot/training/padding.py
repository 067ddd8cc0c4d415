"""Padding: batches of a fixed size, for capture and replay of a step as a CUDA graph.

A captured step reads and writes at fixed addresses and has fixed sizes. Batches are copied into
buffers whose capacity is slightly larger than the largest batch so far.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oneshot.subgraph import SubgraphBatch

_SLACK = 1.04  # factor on the largest batch so far
_ROUND = 512


@dataclass(frozen=True)
class Capacity:
    """Maximum numbers of entities and edges of a batch, and of rows reached after each layer."""

    entities: int
    edges: int
    reach: tuple[int, ...]

    def grown(self, sizes: Sequence["Capacity"]) -> "Capacity":
        """A capacity of at least this one, with slack for those of `sizes` that do not fit."""
        entities = _grown(self.entities, [size.entities for size in sizes])
        columns = zip(*(size.reach for size in sizes), strict=True)
        reach = [
            _grown(have, need) for have, need in zip(self.reach, map(list, columns), strict=True)
        ]
        # There is always exactly one query entity per query.
        reach[0] = max(size.reach[0] for size in sizes)
        # Reach must not decrease from layer to layer, in spite of different slack.
        rising = itertools.accumulate((min(rows, entities) for rows in reach), max)
        edges = _grown(self.edges, [size.edges for size in sizes])
        return Capacity(entities, edges, tuple(rising))

    def holds(self, size: "Capacity") -> bool:
        fits = all(have >= need for have, need in zip(self.reach, size.reach, strict=True))
        return fits and self.entities >= size.entities and self.edges >= size.edges


class PaddedBatch:
    """Buffers of a given capacity, into which batches of `num_queries` queries are copied.

    Padding entities belong to a query after the last one; padding edges point to an entity after
    the last one. All other values of the padding are ignored.
    """

    def __init__(self, capacity: Capacity, num_queries: int, device: torch.device) -> None:
        def whole(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)

        self.capacity = capacity
        self.batch = SubgraphBatch(
            queries=whole(num_queries, 2),
            entities=whole(capacity.entities),
            entity_query=whole(capacity.entities),
            source=whole(num_queries),
            score=torch.zeros(capacity.entities, device=device),
            degree=whole(capacity.entities),
            edges=whole(3, capacity.edges),
            edge_query=whole(capacity.edges),
        )

    def fill(self, batch: SubgraphBatch) -> None:
        """Copy a batch into the buffers; it must fit."""
        ours, entities, edges = self.batch, batch.num_entities, batch.num_edges
        ours.queries.copy_(batch.queries)
        ours.source.copy_(batch.source)
        ours.entities[:entities].copy_(batch.entities)
        ours.entity_query[:entities].copy_(batch.entity_query)
        ours.entity_query[entities:].fill_(batch.num_queries)
        ours.score[:entities].copy_(batch.score)
        ours.degree[:entities].copy_(batch.degree)
        ours.edges[:, :edges].copy_(batch.edges)
        ours.edges[2, edges:].fill_(self.capacity.entities)
        ours.edge_query[:edges].copy_(batch.edge_query)


def _grown(have: int, needed: Sequence[int]) -> int:
    most = max(needed)
    return have if have >= most else -(-int(most * _SLACK) // _ROUND) * _ROUND
