"""Propagation: the entities that a layer-wise system has chosen so far, and the edges out of them.

Entities are pairs (query, entity), kept as sorted keys `query · V + entity`, so that those of all
queries of a batch are found and joined at once.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.subgraph import SubgraphBatch


@dataclass(frozen=True)
class OutEdges:
    """Edges `(x, r, o)` out of some pairs: `source` int64 [E], their rows; `relation` int64 [E];
    `target` int64 [E], keys."""

    source: Tensor
    relation: Tensor
    target: Tensor

    def where(self, kept: Tensor) -> "OutEdges":
        """Some of the edges; `kept`: bool [E], or indices."""
        return OutEdges(self.source[kept], self.relation[kept], self.target[kept])


def first_keys(graph: AdjacencyGraph, queries: Tensor) -> Tensor:
    """The keys of the query entities, [n]."""
    number = torch.arange(len(queries), device=queries.device)
    return number * graph.num_entities + queries[:, 0]


def include_keys(graph: AdjacencyGraph, include: Tensor | None) -> Tensor | None:
    """The keys of forced entities [n, c], sorted; None if there are none."""
    if include is None:
        return None
    number = torch.arange(len(include), device=include.device)[:, None]
    keys: Tensor = (number * graph.num_entities + include)[include >= 0].unique()
    return keys


def edges_out(graph: AdjacencyGraph, keys: Tensor) -> OutEdges:
    """All edges of the graph out of the entities of some pairs, `keys` [m]."""
    entities = keys % graph.num_entities
    first, count = graph.edges.indptr[entities], graph.degree_of(entities)
    row = torch.arange(len(keys), device=keys.device).repeat_interleave(count)
    start = count.cumsum(0) - count
    place = (first - start)[row] + torch.arange(len(row), device=keys.device)
    # The edges into an entity, turned around, are those out of it.
    relation = graph.edges.relation[place].long()
    relation = torch.where(
        relation < graph.num_relations,
        relation + graph.num_relations,
        relation - graph.num_relations,
    )
    target = (keys - entities)[row] + graph.edges.source[place].long()
    return OutEdges(row, relation, target)


def rows_of(keys: Tensor, among: Tensor) -> Tensor:
    """The row of each key in a sorted list; -1 if it is not there. [m], [k] → [m]"""
    if not len(among):
        return torch.full_like(keys, -1)
    row = torch.searchsorted(among, keys).clamp(max=len(among) - 1)
    return torch.where(among[row] == keys, row, -1)


def best_rows(score: Tensor, query: Tensor, count: Tensor | int, num_queries: int) -> Tensor:
    """Which rows are among the `count` (or [n]) highest of their query: bool [m].

    `query` int64 [m]; ties by lower row.
    """
    total = torch.bincount(query, minlength=num_queries)
    if not len(query) or bool((total <= count).all()):
        return torch.ones_like(query, dtype=torch.bool)
    order = score.argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]
    place = torch.arange(len(score), device=score.device) - (total.cumsum(0) - total)[query[order]]
    limit = count if isinstance(count, int) else count[query[order]]
    kept = torch.empty_like(query, dtype=torch.bool)
    kept[order] = place < limit
    return kept


def subgraphs(
    graph: AdjacencyGraph, queries: Tensor, keys: Tensor, edges: OutEdges, identity: Tensor
) -> SubgraphBatch:
    """The batch of some pairs, `keys` [N] sorted, with edges between them.

    `edges`: their sources are rows of `keys`, their targets keys. `identity` int64 [k]: the rows
    that have an identity edge. The query entities must be among the pairs.
    """
    target = torch.cat([torch.searchsorted(keys, edges.target), identity])
    order = target.argsort(stable=True)
    loop = torch.full_like(identity, 2 * graph.num_relations)
    columns = (torch.cat([edges.source, identity]), torch.cat([edges.relation, loop]), target)
    entities, query = keys % graph.num_entities, keys // graph.num_entities
    sorted_edges = torch.stack([column[order] for column in columns])
    return SubgraphBatch(
        queries=queries,
        entities=entities,
        entity_query=query,
        source=torch.searchsorted(keys, first_keys(graph, queries)),
        score=torch.zeros(len(keys), device=keys.device),
        degree=graph.degree_of(entities),
        edges=sorted_edges,
        edge_query=query[sorted_edges[2]],
    )


def restricted(batch: SubgraphBatch, rows: Tensor) -> SubgraphBatch:
    """The batch with some of its entities, `rows` int64 sorted, and the edges between them.

    The query entities must be among them.
    """
    place = torch.full((batch.num_entities,), -1, device=batch.device)
    place[rows] = torch.arange(len(rows), device=batch.device)
    source, relation, target = place[batch.edges[0]], batch.edges[1], place[batch.edges[2]]
    kept = ((source >= 0) & (target >= 0)).nonzero().squeeze(1)
    return dataclasses.replace(
        batch,
        entities=batch.entities[rows],
        entity_query=batch.entity_query[rows],
        source=place[batch.source],
        score=batch.score[rows],
        degree=batch.degree[rows],
        edges=torch.stack([source[kept], relation[kept], target[kept]]),
        edge_query=batch.edge_query[kept],
    )


def spread(states: Tensor, rows: Tensor, size: int) -> Tensor:
    """States [m, …] in a larger table of zeros, at `rows` int64 [m]. → [size, …]"""
    return states.new_zeros(size, *states.shape[1:]).index_copy(0, rows, states)


def with_forced(
    graph: AdjacencyGraph, batch: SubgraphBatch, keys: Tensor, forced: Tensor
) -> tuple[SubgraphBatch, Tensor]:
    """The batch with forced entities that no message has reached, without edges of their own.

    `keys` [N]: those of the batch; `forced`: keys, sorted. → (batch, rows int64 [N] of the entities
    that were in it before)
    """
    every = torch.cat([keys, forced]).unique()
    rows = torch.searchsorted(every, keys)
    entities = every % graph.num_entities
    edges = batch.edges.clone()
    edges[::2] = rows[edges[::2]]
    wider = dataclasses.replace(
        batch,
        entities=entities,
        entity_query=every // graph.num_entities,
        source=rows[batch.source],
        score=spread(batch.score, rows, len(every)),
        degree=graph.degree_of(entities),
        edges=edges,
    )
    return wider, rows


def segment_softmax(values: Tensor, query: Tensor, num_queries: int) -> Tensor:
    """The softmax of `values` [m] within each query, `query` int64 [m]. → [m]"""
    highest = values.new_full((num_queries,), -torch.inf)
    highest = highest.scatter_reduce(0, query, values.detach(), "amax")
    weight = (values - highest[query]).exp()
    return weight / torch.zeros_like(highest).scatter_add(0, query, weight)[query]
