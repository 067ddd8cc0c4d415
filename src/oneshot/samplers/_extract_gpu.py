"""Extraction on a GPU: `cut` is equivalent to `_extract.plain_cut`, with Triton kernels.

It needs a few launches and one host synchronization.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers._extract import Cut
from oneshot.system.devices import current_device

# The table of indices takes 4 bytes per pair of query and entity of the graph.
TABLE_BYTES = 2 << 30


class Tiling(NamedTuple):
    """How the rows of the adjacency are distributed among the programs of the extraction kernels.

    A program processes `rows` chosen entities. Those with at most `long` edges are processed in
    parallel, `width` edges at a time; longer ones one after the other, `tile` edges at a time, so
    that a hub does not delay the other rows of its program. All are powers of two.
    """

    rows: int = 32
    width: int = 8
    long: int = 64
    tile: int = 512
    warps: int = 4


TILING = Tiling()


def most_queries(graph: AdjacencyGraph) -> int:
    """Maximum number of queries of one `cut`, limited by the size of its table."""
    return max(TABLE_BYTES // (4 * max(graph.num_entities, 1)), 1)


def fits(graph: AdjacencyGraph, num_queries: int, num_chosen: int) -> bool:
    """Whether `cut` is possible: the indices of the chosen entities fit into its table."""
    table = 4 * num_queries * graph.num_entities
    return (
        graph.packed
        and 0 < num_chosen < 2**31
        and graph.num_entities < 2**31
        and table <= TABLE_BYTES
    )


def cut(
    graph: AdjacencyGraph,
    queries: Tensor,
    entities: Tensor,
    entity_query: Tensor,
    edge_budget: Tensor,
) -> Cut:
    """All edges between the chosen entities; arguments as those of `_extract.extract`."""
    from oneshot.samplers import _triton as kernels

    tiling = TILING
    edges, device = graph.edges, graph.device
    width, chosen = graph.num_entities, len(entities)
    entities, entity_query = entities.contiguous(), entity_query.contiguous()
    table = torch.full((len(queries), width), -1, dtype=torch.int32, device=device)
    kept = torch.empty(chosen, dtype=torch.int32, device=device)
    degree = torch.empty(chosen, dtype=torch.long, device=device)
    grid = (-(-chosen // tiling.rows),)
    sizes = {
        "rows": tiling.rows,
        "wide": tiling.width,
        "long": tiling.long,
        "tile": tiling.tile,
        "num_warps": tiling.warps,
    }
    given = (entities, entity_query, edges.indptr, edges.source)
    with current_device(device):
        kernels.place_entities[(-(-chosen // 1024),)](
            entities, entity_query, table, chosen, width, block=1024
        )
        kernels.count_edges[grid](*given, table, degree, kept, chosen, width, **sizes)
        ends = kept.cumsum(0)  # int64
        starts = torch.cat([ends.new_zeros(1), ends])
        first = torch.searchsorted(
            entity_query, torch.arange(len(queries) + 1, device=device)
        )  # [n + 1]: the start of the entities of each query
        facts = starts[first].diff() - first.diff()  # identity edges are not counted
        over = (facts > edge_budget).any()
        total, over_budget = torch.stack([ends[-1], over.long()]).tolist()
        result = torch.empty(3, total, dtype=torch.long, device=device)
        edge_query = torch.empty(total, dtype=torch.long, device=device)
        kernels.write_edges[grid](
            *given,
            edges.relation,
            table,
            starts,
            result,
            edge_query,
            chosen,
            width,
            total,
            2 * graph.num_relations,
            **sizes,
        )
    source = table.gather(1, queries[:, :1]).squeeze(1).long()
    nothing = torch.empty(0, device=device)
    return Cut(result, edge_query, degree, source, bool(over_budget), nothing)
