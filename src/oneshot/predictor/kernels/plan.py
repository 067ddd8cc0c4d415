"""Plan: the edges of a batch in the three orders that the kernels use, as int32.

The entities are renumbered by their distance from the query entity `u`: after `l` layers, only
those within `l` edges of `u` have a state, and they are the first `reach[l]` rows. Every layer
therefore processes only rows and edges that can be nonzero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from oneshot.predictor.kernels.segments import Pieces, cut
from oneshot.predictor.segments import missing_edges
from oneshot.subgraph import SubgraphBatch

_SPREAD_BLOCK = 1024


@dataclass(frozen=True)
class QueryRows:
    """The mapping between rows and queries, in both directions; int32.

    `query` [rows]: the query of each row. `pieces`: a range of positions per query; `place` [N]:
    the row of each position.
    """

    query: Tensor
    pieces: Pieces
    place: Tensor


@dataclass(frozen=True)
class FusedPlan:
    """With `N` entities, `E` edges, `n` queries, `K = 2R + 1` relations, `L` layers:

    `order` int64 [N]: the index in `batch.entities` of each row. `by_row`, `by_place`: the rows of
    each query, numbered by distance or as in the batch. `reach` [L + 1]: number of rows with a
    state after each number of layers. `row_query` [N]; `scale` float [N]: one over the number of
    edges into each row that its aggregates count; `missing` int32 [N]: how many of them are not in
    the subgraph, None if there are none; `degree` [N]: of each row in the whole graph; `start`
    int64 [n]: the row of each query's entity.

    By target: `rows`, and for each edge `source`, `relation`, `query` [E].
    By source: `out_rows`, `out_target`, `out_relation`, `out_edge` [E] (its index by target).
    By query and relation, then by distance: `kind_rows` (of `n · K`), `kind_source`,
    `kind_target`, `kind_edge` [E]; `kind_end` [L, n · K]: the end of the edges with nonzero
    messages in each layer.
    """

    kinds: int
    order: Tensor
    by_row: QueryRows
    by_place: QueryRows
    reach: Sequence[int]
    row_query: Tensor
    scale: Tensor
    missing: Tensor | None
    degree: Tensor
    start: Tensor
    rows: Pieces
    source: Tensor
    relation: Tensor
    query: Tensor
    out_rows: Pieces
    out_target: Tensor
    out_relation: Tensor
    out_edge: Tensor
    kind_rows: Pieces
    kind_source: Tensor
    kind_target: Tensor
    kind_edge: Tensor
    kind_end: Tensor


def make_plan(
    batch: SubgraphBatch,
    num_relations: int,
    num_layers: int,
    prune: bool,
    over_graph: bool = False,
    backward: bool = True,
    reach: Sequence[int] | None = None,
) -> FusedPlan:
    """The plan of a batch; synchronizes with the GPU once, or not at all if `reach` is given.

    `prune`: number by distance (otherwise all layers process all rows). `over_graph`: the
    aggregates count all edges of the graph. `backward`: also the orders that only gradients need.
    `reach`: upper bounds to use instead of the exact numbers. The batch may be padded (see
    `oneshot.training.padding`).
    """
    source, relation, target = batch.edges
    device, count, num_edges = batch.device, batch.num_entities, batch.num_edges
    num_queries, kinds = batch.num_queries, 2 * num_relations + 1
    if prune:
        distance = distances(batch, num_layers)
        by_distance = distance.sort(stable=True)
        order = by_distance.indices
        if reach is None:
            hops = torch.arange(num_layers + 1, dtype=distance.dtype, device=device)
            reach = torch.searchsorted(by_distance.values, hops, right=True).tolist()
    else:
        distance = torch.zeros(count, dtype=torch.int16, device=device)
        order = torch.arange(count, device=device)
        reach = [count] * (num_layers + 1)
    place = torch.empty(count, dtype=torch.int32, device=device)
    place.scatter_(0, order, torch.arange(count, dtype=torch.int32, device=device))

    # The edges are already grouped by target: whole rows are permuted, without a sort.
    ends = torch.searchsorted(target, torch.arange(count + 1, device=device))
    length = ends.diff()[order]
    indptr = torch.zeros(count + 1, dtype=torch.int32, device=device)
    torch.cumsum(length, 0, dtype=torch.int32, out=indptr[1:])
    places = torch.arange(num_edges, dtype=torch.int32, device=device)
    row = torch.searchsorted(indptr[1:], places, right=True, out_int32=True)
    # Padding edges come last and belong to no row.
    is_edge = places < indptr[-1]
    row.clamp_(max=max(count - 1, 0))
    edge = places + (ends[:-1][order] - indptr[:-1])[row]
    edge.clamp_(max=num_edges - 1)
    old_source = source[edge]
    new_source = torch.where(is_edge, place[old_source], count)
    new_relation = relation[edge].to(torch.int32)
    own_query = batch.entity_query.to(torch.int32).clamp_(max=num_queries - 1)
    row_query = own_query[order]

    empty = torch.zeros(0, dtype=torch.int32, device=device)
    out = kind = (empty, empty, empty)
    out_rows = kind_rows = cut(torch.zeros(1, dtype=torch.int32, device=device), 0)
    kind_end = empty
    if backward:
        by_source = new_source.sort(stable=True)
        rows = torch.arange(count + 1, dtype=torch.int32, device=device)
        out_rows = cut(torch.searchsorted(by_source.values, rows, out_int32=True), num_edges)
        chosen = by_source.indices
        out = (row[chosen], new_relation[chosen], chosen.to(torch.int32))
        # The edges of a relation by distance of their source: nonzero messages come first.
        levels = num_layers + 2
        key = (row_query[row] * kinds + new_relation).long() * levels + distance[old_source]
        key.masked_fill_(~is_edge, num_queries * kinds * levels)
        by_kind = key.sort(stable=True)
        firsts = torch.arange(num_queries * kinds + 1, device=device) * levels
        kind_rows = cut(torch.searchsorted(by_kind.values, firsts, out_int32=True), num_edges)
        limits = firsts[:-1] + torch.arange(num_layers, device=device)[:, None]
        kind_end = torch.searchsorted(
            by_kind.values, limits.reshape(-1), right=True, out_int32=True
        ).reshape(num_layers, -1)
        chosen = by_kind.indices
        kind = (new_source[chosen], row[chosen], chosen.to(torch.int32))
    counted, degree, missing = length, batch.degree[order], None
    if over_graph:
        missing = missing_edges(degree, length)
        counted, missing = length + missing, missing.to(torch.int32)
    queries = torch.arange(num_queries + 1, device=device)
    query_ends = torch.searchsorted(batch.entity_query, queries, out_int32=True)
    of_query = cut(query_ends, count)
    own_place = torch.arange(count, dtype=torch.int32, device=device)
    return FusedPlan(
        kinds,
        order,
        QueryRows(row_query, of_query, place),
        QueryRows(own_query, of_query, own_place),
        reach,
        row_query,
        1.0 / counted.clamp(min=1).float(),
        missing,
        degree,
        place[batch.source].long(),
        cut(indptr, num_edges),
        new_source,
        new_relation,
        row_query[row],
        out_rows,
        *out,
        kind_rows,
        *kind,
        kind_end,
    )


def distances(batch: SubgraphBatch, most: int) -> Tensor:
    """Distance in edges from the query entity, int16 [N]; `most + 1` for all farther entities."""
    count = batch.num_entities
    distance = torch.full((count,), most + 1, dtype=torch.int16, device=batch.device)
    distance.index_fill_(0, batch.source, 0)
    source, _, target = batch.edges
    blocks = triton.cdiv(batch.num_edges, _SPREAD_BLOCK)
    for hop in range(1, most + 1):
        if blocks:
            _spread[(blocks,)](source, target, distance, hop, batch.num_edges, count, _SPREAD_BLOCK)
    return distance


@triton.jit
def _spread(source_at, target_at, distance_at, hop, num_edges, count, BLOCK: tl.constexpr):
    # Several programs may write to the same target, but always the same number.
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = edge < num_edges
    source = tl.load(source_at + edge, mask=inside, other=0)
    target = tl.load(target_at + edge, mask=inside, other=0)
    inside = inside & (target < count)
    arrives = inside & (tl.load(distance_at + source, mask=inside, other=0) == hop - 1)
    arrives = arrives & (tl.load(distance_at + target, mask=arrives, other=0) > hop)
    tl.store(distance_at + target, tl.full((BLOCK,), hop, tl.int16), mask=arrives)
