"""CPUPlan: the rows and edges of a batch in the order used by the compiled kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.compiled import pointer, run
from oneshot.predictor.segments import Rows, missing_edges
from oneshot.subgraph import SubgraphBatch


@dataclass(frozen=True)
class CPUPlan:
    """With `n` queries, `K = 2R + 1` relations (with inverses and identity), `L` layers:

    Rows are the entities that `L` edges or fewer lead to, numbered by distance and then by query;
    `reach` [L + 1]: number of rows with a state after each number of layers. `order` int64 [rows]:
    the index in `batch.entities` of each row. `row_query` int32 [rows]; `by_row`, `by_place`: the
    query of each row, and of each entity in the order of the batch; `degree` [rows]: in the whole
    graph; `start` int64 [n]: the row of each query's entity. `level_row` int32 [L + 1, n + 1]: the
    rows of a query at each distance begin there, and end where those of the next query begin.

    `indptr` int32 [rows + 1], `source` and `relation` int32 [E]: the edges into each row, those
    from nearer sources first. `missing` int32 [rows]: edges into each row that are not in the
    subgraph but count in its aggregates; None if there are none. `factor` float32 [E]: the weight
    of each edge; None if the facts have none.
    """

    batch: SubgraphBatch
    kinds: int
    reach: list[int]
    order: Tensor
    row_query: Tensor
    by_row: Rows
    by_place: Rows
    degree: Tensor
    start: Tensor
    level_row: Tensor
    indptr: Tensor
    source: Tensor
    relation: Tensor
    missing: Tensor | None
    factor: Tensor | None = None


def make_plan(
    batch: SubgraphBatch,
    num_relations: int,
    num_layers: int,
    prune: bool,
    over_graph: bool = False,
) -> CPUPlan:
    """The plan of a batch. `prune`: by distance; otherwise all rows have a state from the start.

    `over_graph`: the aggregates count all edges of the graph.
    """
    source, relation, target = batch.edges.contiguous()
    count, queries, edges = batch.num_entities, batch.num_queries, batch.num_edges
    levels = num_layers + 2  # 0 to L edges, and more
    indptr = torch.zeros(count + 1, dtype=torch.long)
    torch.cumsum(torch.bincount(target, minlength=count), 0, out=indptr[1:])
    distance = torch.zeros(count, dtype=torch.int16)
    if prune:
        end = torch.searchsorted(batch.entity_query, torch.arange(queries + 1))
        run(
            "find_distances",
            edges,
            queries,
            pointer(end),
            pointer(batch.source.contiguous()),
            pointer(indptr),
            pointer(source),
            num_layers,
            pointer(distance),
        )
    key = distance.long() * queries + batch.entity_query
    by_level = torch.bincount(key, minlength=levels * queries).reshape(levels, queries)
    first = torch.zeros(levels * queries + 1, dtype=torch.int32)
    torch.cumsum(by_level.reshape(-1), 0, dtype=torch.int32, out=first[1:])
    starts = torch.arange(levels - 1)[:, None] * queries + torch.arange(queries + 1)
    reach = by_level.sum(1).cumsum(0)[:-1].tolist()
    # The entities are already grouped by query: a pass per distance is cheaper than a sort.
    order = torch.cat([(distance == level).nonzero().squeeze(1) for level in range(levels)])
    place = torch.empty(count, dtype=torch.int32)
    place[order] = torch.arange(count, dtype=torch.int32)
    rows = reach[-1]
    order = order[:rows]
    new_indptr = torch.zeros(rows + 1, dtype=torch.int32)
    torch.cumsum(indptr.diff()[order], 0, dtype=torch.int32, out=new_indptr[1:])
    kept = int(new_indptr[-1])
    new_source = torch.empty(kept, dtype=torch.int32)
    new_relation = torch.empty(kept, dtype=torch.int32)
    run(
        "number_edges",
        2 * kept,
        rows,
        levels,
        pointer(order),
        pointer(place),
        pointer(distance),
        pointer(indptr),
        pointer(source),
        pointer(relation),
        pointer(new_indptr),
        pointer(new_source),
        pointer(new_relation),
    )
    row_query, degree, missing = batch.entity_query[order], batch.degree[order], None
    if over_graph:
        missing = missing_edges(degree, new_indptr.diff()).to(torch.int32)
    return CPUPlan(
        batch,
        2 * num_relations + 1,
        reach,
        order,
        row_query.to(torch.int32),
        Rows(row_query, queries),
        Rows(batch.entity_query, queries, is_sorted=True),
        degree,
        place[batch.source].long(),
        first[starts].contiguous(),
        new_indptr,
        new_source,
        new_relation,
        missing,
        _factors(batch, place, distance, levels, kept) if batch.is_weighted else None,
    )


def _factors(
    batch: SubgraphBatch, place: Tensor, distance: Tensor, levels: int, kept: int
) -> Tensor:
    """The weights of the first `kept` edges in the order of the plan: by row, then by distance."""
    source, _, target = batch.edges
    key = place[target].long() * levels + distance[source].long()
    return batch.weight[key.argsort(stable=True)[:kept]].contiguous()
