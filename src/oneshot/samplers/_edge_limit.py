"""The edge limit: large subgraphs lose their last entities until their edges are few enough.

There are many edges between hubs, and the time of the predictor is in proportion to the edges.
Removing entities, lowest score first, costs far less accuracy than removing edges between all of
them (`benchmarks/edge_limit.py`): the messages between those that stay are complete.
"""

import torch
from torch import Tensor

from oneshot.subgraph import SubgraphBatch

EDGE_LIMIT = 1_000_000
"""Edges of a subgraph, if it is not larger than `ENTITIES_OF_LIMIT`."""
ENTITIES_OF_LIMIT = 2000
"""Entities from which on the limit grows with the number of entities of the budget."""


def default_edge_limits(counts: Tensor) -> Tensor:
    """The maximum number of edges of each subgraph for the `counts` int64 [n] of its entities."""
    return counts.clamp(min=ENTITIES_OF_LIMIT) * (EDGE_LIMIT // ENTITIES_OF_LIMIT)


def crowded_queries(batch: SubgraphBatch, limits: Tensor, num_relations: int) -> Tensor:
    """The queries whose subgraphs have more edges than their limit, int64 [b]."""
    return (_edges_of_queries(batch, num_relations) > limits).nonzero().squeeze(1)


def _edges_of_queries(batch: SubgraphBatch, num_relations: int) -> Tensor:
    """The number of edges of each query, int64 [n], without identity edges."""
    is_fact = batch.edges[1] < 2 * num_relations
    return torch.bincount(batch.edge_query[is_fact], minlength=batch.num_queries)


def limit_edges(
    batch: SubgraphBatch,
    limits: Tensor,
    num_relations: int,
    include: Tensor | None = None,
    priority: Tensor | None = None,
) -> SubgraphBatch:
    """The subgraphs without their last entities, so that query `i` has at most `limits[i]` edges.

    The entities of highest `priority` float [N] stay (by default of highest score), ties by lower
    id; that of the query and those of `include` [n, c] (-1 for none) in any case. Identity edges
    are not counted. A batch within the limits is returned as it is.
    """
    query = batch.entity_query
    x, relation, o = batch.edges
    is_fact = relation < 2 * num_relations
    number = _edges_of_queries(batch, num_relations)
    if not bool((number > limits).any()):
        return batch
    forced = torch.zeros(len(query), dtype=torch.bool, device=query.device)
    forced[batch.source] = True
    if include is not None:
        row, column = (include >= 0).nonzero().unbind(1)
        forced[batch.find_pairs(row, include[row, column])] = True
    # Places in the order of (query, descending score, id).
    value = torch.where(forced, torch.inf, batch.score if priority is None else priority)
    order = value.argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    # An edge is there from the place of its later end on.
    later = torch.maximum(place[x], place[o])[is_fact]
    edges = torch.bincount(later, minlength=len(order)).cumsum(0)
    before = number.cumsum(0) - number
    within = edges - before[query[order]] <= limits[query[order]]
    keep = torch.empty_like(forced)
    keep[order] = within
    keep |= forced
    new = keep.cumsum(0) - 1
    kept = (keep[x] & keep[o]).nonzero().squeeze(1)
    return SubgraphBatch(
        queries=batch.queries,
        entities=batch.entities[keep],
        entity_query=query[keep],
        source=new[batch.source],
        score=batch.score[keep],
        degree=batch.degree[keep],
        edges=torch.stack([new[x[kept]], relation[kept], new[o[kept]]]),
        edge_query=batch.edge_query[kept],
        weight=batch.weight[kept] if batch.is_weighted else batch.weight,
    )
