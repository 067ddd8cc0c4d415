"""Choosing entities and cutting their subgraphs out of the graph on a GPU, with Triton's kernels.

The functions here give exactly what the plain code of `_select` and `_extract` gives,
in a few launches and one host synchronisation each. They are used where `kernels_work` says so.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.graph.graph import KnowledgeGraph
from oneshot.system.devices import current_device

# The table of places takes 4 bytes for each pair of a query and an entity of the graph.
TABLE_BYTES = 2 << 30


class Tiling(NamedTuple):
    """How the rows of the adjacency are dealt out to the programs of the extraction kernels.

    A program treats `rows` chosen entities. Those of at most `long` edges go side by side,
    `width` edges at a time; longer ones one after the other, `tile` edges at a time, so that a
    hub does not keep its neighbours in the program waiting. All are powers of two.
    """

    rows: int = 32
    width: int = 8
    long: int = 64
    tile: int = 512
    warps: int = 4


TILING = Tiling()
# Columns of the scores that a program looks at together, and its warps.
SCORE_BLOCK, SCORE_WARPS = 4096, 16
SELECT_BLOCK, SELECT_WARPS = 4096, 16


class Cut(NamedTuple):
    """The edges between the chosen entities, as in `SubgraphBatch`, before any edge budget.

    `edges` int64 [3, E], `edge_query` int64 [E], `degree` int64 [N], `source` int64 [n], and
    whether a query has more edges than its budget allows.
    """

    edges: Tensor
    edge_query: Tensor
    degree: Tensor
    source: Tensor
    over_budget: bool


def fits(graph: KnowledgeGraph, num_queries: int, num_chosen: int) -> bool:
    """Whether `cut` can do it: the places of the chosen entities fit into its table."""
    table = 4 * num_queries * graph.num_entities
    return (
        graph.packed
        and 0 < num_chosen < 2**31
        and graph.num_entities < 2**31
        and table <= TABLE_BYTES
    )


def cut(
    graph: KnowledgeGraph,
    queries: Tensor,
    entities: Tensor,
    entity_query: Tensor,
    edge_budget: Tensor,
    tiling: Tiling | None = None,
) -> Cut:
    """All edges between the chosen entities; arguments as those of `_extract.extract`."""
    from oneshot.samplers import _triton as kernels

    tiling = TILING if tiling is None else tiling
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
        )  # [n + 1]: the place where the entities of each query begin
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
    return Cut(result, edge_query, degree, source, bool(over_budget))


def choose(
    scores: Tensor, counts: Tensor, forced: Tensor, keep_unreachable: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `_select.choose_highest`; `scores` float32 [n, V], contiguous, n and V > 0."""
    from oneshot.samplers import _triton as kernels

    height, width = scores.shape
    device = scores.device
    threshold, spare, sizes = torch.empty(3, height, dtype=torch.int32, device=device)
    counts, forced = counts.contiguous(), forced.contiguous()
    original = scores.gather(1, forced.clamp(min=0))
    block = _power_of_two(width)
    grid = (height,)
    with current_device(device):
        _put(scores, forced, torch.full_like(original, torch.inf))
        kernels.find_threshold[grid](
            scores,
            counts,
            threshold,
            spare,
            sizes,
            width,
            grow=int(forced.shape[1] > 1),
            drop=int(not keep_unreachable),
            block=min(block, SCORE_BLOCK),
            num_warps=min(_warps(block), SCORE_WARPS),
        )
        ends = sizes.cumsum(0)  # int64
        total = int(ends[-1])
        entities = torch.empty(total, dtype=torch.long, device=device)
        row = torch.empty(total, dtype=torch.long, device=device)
        kernels.select_entities[grid](
            scores,
            threshold,
            spare,
            sizes,
            ends,
            entities,
            row,
            width,
            block=min(block, SELECT_BLOCK),
            num_warps=min(_warps(block), SELECT_WARPS),
        )
        _put(scores, forced, original)
    return entities, row, scores[row, entities]


def _put(scores: Tensor, columns: Tensor, values: Tensor) -> None:
    """`scores[i, columns[i, j]] = values[i, j]` where the column is not -1, without a wait."""
    from oneshot.samplers import _triton as kernels

    if columns.numel():
        kernels.put_values[(-(-columns.numel() // 256),)](
            scores, columns, values, columns.numel(), columns.shape[1], scores.shape[1], block=256
        )


def _power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def _warps(block: int) -> int:
    """Warps for a block of columns, at least four columns a thread."""
    return max(1, block // 128)
