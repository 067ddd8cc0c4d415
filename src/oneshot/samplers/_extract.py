"""Extraction of the subgraphs of queries from a graph.

There are kernels for the GPU (`_extract_gpu`) and, compiled from C, for the CPU. `extract` uses
them if available, and plain PyTorch otherwise. All give the same result.
"""

import ctypes
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from oneshot import compiled
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.core import Core, core_of_edges, largest_rows
from oneshot.graph.fact_keys import place_of
from oneshot.graph.hidden import HiddenEdges
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import kernels_work

EdgeScore = Literal["product", "sum"]

# Candidate edges per query from which on the core of the graph is built, and used.
_CORE_CANDIDATES = 200_000


class Cut(NamedTuple):
    """The edges between the chosen entities, as in `SubgraphBatch`, before any edge budget.

    `edges` int64 [3, E], `edge_query` int64 [E], `degree` int64 [N], `source` int64 [n], whether a
    query has more edges than its budget allows, and `weight` [E] or [0].
    """

    edges: Tensor
    edge_query: Tensor
    degree: Tensor
    source: Tensor
    over_budget: bool
    weight: Tensor


def extract(
    graph: AdjacencyGraph,
    queries: Tensor,
    entities: Tensor,
    entity_query: Tensor,
    score: Tensor,
    edge_budget: Tensor,
    edge_score: EdgeScore = "product",
) -> SubgraphBatch:
    """Extract the subgraphs on the chosen entities from the graph, for all queries at once.

    `queries` [n, 2]; `entities`, `entity_query`, `score` [N] as in `SubgraphBatch`, with each
    query's `u` among its entities; `edge_budget` [n]: the maximum number of edges of a
    query, two per fact. If there are more, the edges with the highest `p_x · p_o` (or `p_x + p_o`)
    are kept, ties by index. Identity edges are always kept and not counted.
    """
    cut = _cut_for(graph, len(queries), entities)
    edges, edge_query, degree, source, over_budget, weight = cut(
        graph, queries, entities, entity_query, edge_budget
    )
    if over_budget:
        local, relation, row = edges
        left, right = score[local], score[row]
        value = left * right if edge_score == "product" else left + right
        is_fact = relation < 2 * graph.num_relations
        keep = ~is_fact | _highest(value, edge_query, is_fact, edge_budget)
        kept = keep.nonzero().squeeze(1)
        edges, edge_query = edges[:, kept], edge_query[kept]
        weight = weight[kept] if len(weight) else weight
    return SubgraphBatch(
        queries=queries,
        entities=entities,
        entity_query=entity_query,
        source=source,
        score=score,
        degree=degree,
        edges=edges,
        edge_query=edge_query,
        weight=weight,
    )


def _cut_for(graph: AdjacencyGraph, num_queries: int, entities: Tensor) -> Callable[..., Cut]:
    """The fastest implementation for a graph, a number of queries and the chosen entities [N]."""
    num_chosen = len(entities)
    if graph.weights is not None:  # the kernels do not return which fact an edge belongs to
        return plain_cut
    if kernels_work(graph.device):
        from oneshot.samplers import _extract_gpu

        if _extract_gpu.fits(graph, num_queries, num_chosen):
            return _extract_gpu.cut
    is_hiding = isinstance(graph.edges, HiddenEdges)
    if graph.device.type == "cpu" and compiled.can_read(is_hiding):
        return compiled_cut
    return plain_cut


class _CutCall(ctypes.Structure):
    """The arguments of the kernels, as declared in `compiled/subgraph.c`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "num_queries", "num_entities", "num_relations", "wide", "num_core",
        )),
        *((name, ctypes.c_void_p) for name in (
            "end", "entities", "start", "degree", "source", "relation", "core", "core_start",
            "core_source", "core_relation", "count", "found", "first", "from", "label", "to",
            "query", "hidden", "hidden_begin", "hidden_end",
        )),
    ]  # fmt: skip


def compiled_cut(
    graph: AdjacencyGraph,
    queries: Tensor,
    entities: Tensor,
    entity_query: Tensor,
    edge_budget: Tensor,
) -> Cut:
    """As `plain_cut`, with compiled kernels; rows of hubs are searched, or replaced by the core."""
    degree = graph.degree_of(entities).contiguous()
    core = None
    if int(degree.sum()) >= _CORE_CANDIDATES * len(queries):
        core = core_of(graph)
    return _cut_with(core, graph, queries, entities, entity_query, degree, edge_budget)


def core_of(graph: AdjacencyGraph) -> Core | None:
    """The core of a graph, which is built if necessary; None for ids of 64 bits."""
    base = graph.base
    if base.edges.source.dtype != torch.int32:
        return None
    if base.core is None:
        entities = largest_rows(base.edges.indptr)
        degree = base.degree_of(entities)
        query = torch.zeros(1, 2, dtype=torch.long)
        query[:, 0] = entities[:1]
        cut = _cut_with(
            None, base, query, entities, torch.zeros_like(entities), degree, query[:, 0]
        )
        is_fact = cut.edges[1] < 2 * base.num_relations
        base.core = core_of_edges(entities, degree, cut.edges[:, is_fact])
    return graph.core


def _cut_with(
    core: Core | None,
    graph: AdjacencyGraph,
    queries: Tensor,
    entities: Tensor,
    entity_query: Tensor,
    degree: Tensor,
    edge_budget: Tensor,
) -> Cut:
    """See `compiled_cut`; `degree` [N]: that of the entities."""
    edges = graph.edges
    start, length = edges.indptr[entities].long(), degree
    end = torch.searchsorted(entity_query, torch.arange(len(queries) + 1))
    count = torch.empty(len(queries), dtype=torch.long)
    found = torch.zeros(len(queries), dtype=torch.long)  # addresses
    source, relation = edges.source.contiguous(), edges.relation.contiguous()
    tensors = {
        "end": end,
        "entities": entities.contiguous(),
        "start": start,
        "source": source,
        "relation": relation,
        "count": count,
        "found": found,
    }
    if isinstance(edges, HiddenEdges):
        last = edges.indptr[entities + 1].long()
        length = last - start  # with the hidden edges
        tensors |= {
            "hidden": edges.hidden,
            "hidden_begin": torch.searchsorted(edges.hidden, start),
            "hidden_end": torch.searchsorted(edges.hidden, last),
        }
    tensors["degree"] = length
    if core is None:
        edges.expect(start, length)
    else:
        row = core.rows_of(entities)
        outside = (row < 0).nonzero().squeeze(1)
        edges.expect(start[outside], length[outside])
        tensors |= {
            "core": row,
            "core_start": core.start,
            "core_source": core.source,
            "core_relation": core.relation,
        }
    call = _CutCall(
        num_queries=len(queries),
        num_entities=graph.num_entities,
        num_relations=graph.num_relations,
        wide=source.dtype == torch.int64,
        num_core=0 if core is None else len(core.entities),
        **{name: compiled.pointer(tensor) for name, tensor in tensors.items()},
    )
    work = 4 * int(degree.sum()) if len(queries) > 1 else 0
    try:
        compiled.run("find_edges", work, ctypes.byref(call))
        total = int(count.sum())
        if bool((count < 0).any()):
            raise MemoryError("not enough memory for the subgraphs")
        written = torch.empty(3, total, dtype=torch.long)
        query = torch.empty(total, dtype=torch.long)
        first = count.cumsum(0) - count
        call.first, call.query = compiled.pointer(first), compiled.pointer(query)
        for name, column in zip(("from", "label", "to"), written, strict=True):
            setattr(call, name, compiled.pointer(column))
        compiled.run("write_edges", work, ctypes.byref(call))
    finally:
        compiled.run("release_edges", 0, ctypes.byref(call))
    if bool((count < 0).any()):
        raise MemoryError("not enough memory for the subgraphs")
    keys = entity_query * graph.num_entities + entities
    asked = torch.arange(len(queries)) * graph.num_entities + queries[:, 0]
    return Cut(
        edges=written,
        edge_query=query,
        degree=degree,
        source=place_of(keys, asked),
        over_budget=bool((count - end.diff() > edge_budget).any()),
        weight=torch.empty(0),
    )


def plain_cut(
    graph: AdjacencyGraph,
    queries: Tensor,
    entities: Tensor,
    entity_query: Tensor,
    edge_budget: Tensor,
) -> Cut:
    """All edges between the chosen entities; arguments as those of `extract`.

    The reference implementation, used if no kernels are available.
    """
    edges = graph.edges
    count = graph.degree_of(entities)
    in_row, of_facts = edges.places(entities, count.long())
    # Row `i` of the candidates: the edges into entity `i`, then its identity edge. Walking
    # the rows in order gives edges sorted by target without a sort.
    first = (count + 1).cumsum(0) - (count + 1)
    total = int(first[-1] + count[-1]) + 1 if len(entities) else 0
    places = torch.arange(len(entities), device=graph.device)
    row = places.repeat_interleave(count + 1, output_size=total)
    identity = first + count
    place = torch.zeros_like(row)  # identity edges are not in the adjacency; replaced below
    place[torch.arange(len(in_row), device=graph.device) + in_row] = of_facts
    any_edge = len(edges.source) > 0
    source = edges.source[place].long() if any_edge else torch.zeros_like(row)
    relation = edges.relation[place].long() if any_edge else torch.zeros_like(row)
    local = _local_places(graph.num_entities, len(queries), entities, entity_query, row, source)
    local[identity] = places
    relation[identity] = 2 * graph.num_relations
    kept = (local >= 0).nonzero().squeeze(1)
    row, local, relation = row[kept], local[kept], relation[kept]
    weight = torch.empty(0, device=graph.device)
    if graph.weights is not None:
        weight = torch.ones(len(kept), device=graph.device)
        is_fact = (relation < 2 * graph.num_relations).nonzero().squeeze(1)
        weight[is_fact] = graph.message_weights(edges.fact[place[kept[is_fact]]])
    query = entity_query[row]
    facts_per_query = torch.bincount(query, minlength=len(queries)) - torch.bincount(
        entity_query, minlength=len(queries)
    )
    keys = entity_query * graph.num_entities + entities
    asked = torch.arange(len(queries), device=graph.device) * graph.num_entities + queries[:, 0]
    return Cut(
        edges=torch.stack([local, relation, row]),
        edge_query=query,
        degree=count,
        source=place_of(keys, asked),
        over_budget=bool((facts_per_query > edge_budget).any()),
        weight=weight,
    )


def _local_places(
    num_entities: int,
    num_queries: int,
    entities: Tensor,
    entity_query: Tensor,
    row: Tensor,
    source: Tensor,
) -> Tensor:
    """Index in `entities` of the source of each candidate edge in the same query, or -1. [C]"""
    base = entity_query * num_entities
    keys = base + entities
    wanted = base[row].add_(source)
    if num_queries * num_entities <= 16 * len(wanted):
        # A table over all (query, entity) pairs: one lookup per edge.
        table = torch.full((num_queries * num_entities,), -1, device=keys.device)
        table[keys] = torch.arange(len(keys), device=keys.device)
        return table[wanted]
    # The table would be mostly empty, and its cost would grow with the graph.
    return place_of(keys, wanted)


def _highest(value: Tensor, query: Tensor, eligible: Tensor, budget: Tensor) -> Tensor:
    """Mark the `budget` highest eligible values of each query, ties by index. → bool [E]"""
    candidates = eligible.nonzero().squeeze(1)
    by_value = value[candidates].argsort(descending=True, stable=True)
    order = candidates[by_value][query[candidates[by_value]].argsort(stable=True)]
    counts = torch.bincount(query[order], minlength=len(budget))
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(order), device=value.device) - first[query[order]]
    keep = torch.zeros_like(eligible)
    keep[order[rank < budget[query[order]]]] = True
    return keep
