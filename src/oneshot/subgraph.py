"""SubgraphBatch: the output of a sampler and the input of the predictor."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.fact_keys import place_of


@dataclass(frozen=True)
class SubgraphBatch:
    """The subgraphs of `n` queries, one after the other; all integers are int64.

    With `N` sampled entities and `E` edges over all queries:

    `queries` [n, 2]: (entity, relation); an inverse relation is `relation + R`.
    `entities` [N]: global ids, sorted by (query, id).
    `entity_query` [N]: the query (0..n-1) of each entity.
    `source` [n]: index in `entities` of each query entity `u`.
    `score` [N] float: the sampler's score of each entity.
    `degree` [N]: the number of edges that point to the entity in the whole graph.
    `edges` [3, E]: for an edge `(x, r, o)` the index of `x` in `entities`, the relation id
        (0..R-1, inverse R..2R-1, identity 2R), the index of `o`. Messages flow from `x` to
        `o`; sorted by `o`.
    `edge_query` [E]: the query of each edge.
    `weight` [E] float32: the factor of the message along each edge, 1 for identity edges; [0] if
        the facts of the graph have no weights.
    `sources` [n, s]: for sets of entities (`Sampler.sample_sets`), the indices in `entities` of all
        sources of each query, -1 for none; `source` is the first of them. [0, 0] if each query has
        only one.
    """

    queries: Tensor
    entities: Tensor
    entity_query: Tensor
    source: Tensor
    score: Tensor
    degree: Tensor
    edges: Tensor
    edge_query: Tensor
    weight: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    sources: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))

    @property
    def is_weighted(self) -> bool:
        """Whether the messages have weights."""
        return len(self.weight) > 0

    @property
    def has_sets(self) -> bool:
        """Whether a query may have several sources."""
        return self.sources.numel() > 0

    @functools.cached_property
    def all_sources(self) -> tuple[Tensor, Tensor]:
        """The sources of all queries: indices in `entities` and their queries, both [S]."""
        if not self.has_sets:
            return self.source, torch.arange(self.num_queries, device=self.device)
        query, column = (self.sources >= 0).nonzero().unbind(1)
        return self.sources[query, column], query

    @property
    def num_queries(self) -> int:
        return len(self.queries)

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    @property
    def num_edges(self) -> int:
        return self.edges.shape[1]

    @property
    def device(self) -> torch.device:
        return self.entities.device

    def to(self, device: torch.device | str) -> "SubgraphBatch":
        """This batch with its tensors on a device."""
        return SubgraphBatch(
            *(getattr(self, field.name).to(device) for field in dataclasses.fields(self))
        )

    def with_edges(self, kept: Tensor) -> "SubgraphBatch":
        """This batch with some of its edges only; `kept`: their indices, or bool [E]."""
        return dataclasses.replace(
            self,
            edges=self.edges[:, kept],
            edge_query=self.edge_query[kept],
            weight=self.weight[kept] if self.is_weighted else self.weight,
        )

    def find(self, entities: Tensor) -> Tensor:
        """Index of one entity per query, `entities` [n] global ids → [n]; -1 if not sampled."""
        return self.find_pairs(torch.arange(self.num_queries, device=self.device), entities)

    def find_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """Index of each entity in the subgraph of its query: both [m] → [m]; -1 if not sampled."""
        # An invalid id must not match an entity of another query.
        valid = (entities >= 0) & (entities < self._span)
        place = place_of(self._keys, query * self._span + entities)
        return torch.where(valid, place, -1)

    def split(self, size: int) -> list["SubgraphBatch"]:
        """Split into consecutive parts of at most `size` queries, numbered from 0 in each.

        `concatenate` is the inverse. The parts share memory with the batch.
        """
        if size < 1:
            raise InputError(f"size must be at least 1, not {size}")
        if self.num_queries <= size:
            return [self]
        starts = range(0, self.num_queries, size)
        first = torch.arange(0, self.num_queries + size, size, device=self.device)
        # Both in one transfer, as each transfer synchronizes with the device.
        bounds = torch.stack(
            [torch.searchsorted(column, first) for column in (self.entity_query, self.edge_query)]
        ).tolist()
        parts = []
        for start, entities, edges in zip(starts, *map(itertools.pairwise, bounds), strict=True):
            queries, here, there = slice(start, start + size), slice(*entities), slice(*edges)
            moved = self.edges[:, there].clone(memory_format=torch.contiguous_format)
            moved[::2] -= entities[0]
            parts.append(
                SubgraphBatch(
                    queries=self.queries[queries],
                    entities=self.entities[here],
                    entity_query=self.entity_query[here] - start,
                    source=self.source[queries] - entities[0],
                    score=self.score[here],
                    degree=self.degree[here],
                    edges=moved,
                    edge_query=self.edge_query[there] - start,
                    weight=self.weight[there],
                    sources=_moved(self.sources[queries], -entities[0]),
                )
            )
        return parts

    @staticmethod
    def concatenate(batches: Sequence["SubgraphBatch"]) -> "SubgraphBatch":
        """One batch of the subgraphs of several, in their order."""
        if len(batches) == 1:
            return batches[0]
        columns = {
            field.name: torch.cat(
                [getattr(batch, field.name) for batch in batches], dim=int(field.name == "edges")
            )
            for field in dataclasses.fields(SubgraphBatch)
            if field.name != "sources"
        }
        columns["sources"] = _joined_sources(batches)
        queries = entities = edges = 0
        for batch in batches:
            here, there = (
                slice(entities, entities + batch.num_entities),
                slice(edges, edges + batch.num_edges),
            )
            if queries:
                # In place, with Python numbers: a tensor of shifts would wait for the device.
                columns["entity_query"][here] += queries
                columns["edge_query"][there] += queries
                columns["source"][queries : queries + batch.num_queries] += entities
                columns["edges"][::2, there] += entities
            queries += batch.num_queries
            entities += batch.num_entities
            edges += batch.num_edges
        return SubgraphBatch(**columns)

    @property
    def _span(self) -> int:
        """A number above all entity ids, whose product with a query index fits into 64 bits.

        Computed without reading the ids, which would synchronize with the device.
        """
        return 1 << (62 - self.num_queries.bit_length())

    @functools.cached_property
    def _keys(self) -> Tensor:
        """One key per entity, in the order of (query, id). [N]"""
        return self.entity_query * self._span + self.entities


def _moved(sources: Tensor, by: int) -> Tensor:
    """Indices of sources [n, s] after entities were put before them, or taken away."""
    return torch.where(sources >= 0, sources + by, -1)


def _joined_sources(batches: Sequence[SubgraphBatch]) -> Tensor:
    """The sources of several batches, one after the other, in the widest shape."""
    if not any(batch.has_sets for batch in batches):
        return batches[0].sources
    parts, entities = [], 0
    widest = max(batch.sources.shape[1] for batch in batches)
    for batch in batches:
        some = batch.sources if batch.has_sets else batch.source[:, None]
        missing = max(widest, 1) - some.shape[1]
        parts.append(_moved(torch.nn.functional.pad(some, (0, missing), value=-1), entities))
        entities += batch.num_entities
    return torch.cat(parts)
