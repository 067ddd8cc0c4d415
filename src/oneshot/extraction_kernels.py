"""Triton kernels that choose entities and cut their subgraphs out of the graph on a GPU.

The functions here give exactly what the plain code of `samplers.choice` and `subgraph` gives,
in a few launches and one host synchronisation each. They are used where `available` says so:
on a CUDA device with Triton. `override` changes that, for tests and comparisons.
"""

# The kernels are read by Triton's compiler, which knows their types from the call.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oneshot.graph import KnowledgeGraph

# `triton.language`: bound when the first kernel is made, because Triton is optional.
tl: Any = None

# The table of places takes 4 bytes for each pair of a query and an entity of the graph.
TABLE_BYTES = 2 << 30

_override: bool | None = None


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


def available(device: torch.device) -> bool:
    """Whether the kernels are to be used for tensors on this device."""
    if _override is not None:
        return _override
    return device.type == "cuda" and _work_on(device)


@contextlib.contextmanager
def override(use: bool | None) -> Iterator[None]:
    """Within the block the kernels are used always (true), never (false) or where they can be.

    On a processor they run only under Triton's interpreter (`TRITON_INTERPRET=1` in the
    environment before Triton is imported).
    """
    global _override
    before, _override = _override, use
    try:
        yield
    finally:
        _override = before


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
    """All edges between the chosen entities; arguments as those of `subgraph.extract`."""
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
    with _on(device):
        _jitted(_place_kernel)[(-(-chosen // 1024),)](
            entities, entity_query, table, chosen, width, block=1024
        )
        _jitted(_count_kernel)[grid](*given, table, degree, kept, chosen, width, **sizes)
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
        _jitted(_write_kernel)[grid](
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
    """See `samplers.choice.choose_highest`; `scores` float32 [n, V], contiguous, n and V > 0."""
    height, width = scores.shape
    device = scores.device
    threshold, spare, sizes = torch.empty(3, height, dtype=torch.int32, device=device)
    counts, forced = counts.contiguous(), forced.contiguous()
    original = scores.gather(1, forced.clamp(min=0))
    block = _power_of_two(width)
    grid = (height,)
    with _on(device):
        _put(scores, forced, torch.full_like(original, torch.inf))
        _jitted(_threshold_kernel)[grid](
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
        _jitted(_select_kernel)[grid](
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
    if columns.numel():
        _jitted(_put_kernel)[(-(-columns.numel() // 256),)](
            scores, columns, values, columns.numel(), columns.shape[1], scores.shape[1], block=256
        )


def _power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def _warps(block: int) -> int:
    """Warps for a block of columns, at least four columns a thread."""
    return max(1, block // 128)


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device: make it the one that the tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _work_on(device: torch.device) -> bool:
    """Whether Triton is there and can build and run a kernel on a device; tried once."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        scores = torch.zeros(1, 1, device=device)
        with _on(device):
            _put(scores, torch.zeros(1, 1, dtype=torch.long, device=device), scores + 1)
        return bool(scores)
    except Exception as error:  # no compiler, a device too old, …: many kinds, one answer
        warnings.warn(f"Triton does not work, sampling will be slower: {error}", stacklevel=2)
        return False


@functools.cache
def _jitted(kernel: Callable[..., None]) -> Any:
    """A kernel as Triton launches it."""
    global tl
    import triton
    import triton.language

    tl = triton.language
    # Sizes change with every call: not worth a compilation for each that 16 divides.
    return triton.jit(kernel, do_not_specialize=["count", "total", "identity"])


# In the kernels loops are written with `while`: the interpreter cannot take a bound that is
# known only at run time in `range`.


def _place_kernel(entities, query, table, count, width, block: tl.constexpr):
    """`table[query, entity]` = the place of each chosen entity. `table` int32 [n, V]"""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    entity = tl.load(entities + place, mask=inside, other=0)
    base = tl.load(query + place, mask=inside, other=0) * width
    tl.store(table + base + entity, place.to(tl.int32), mask=inside)


def _count_kernel(
    entities,
    query,
    indptr,
    source,
    table,
    degree,
    kept,
    count,
    width,
    rows: tl.constexpr,
    wide: tl.constexpr,
    long: tl.constexpr,
    tile: tl.constexpr,
):
    """For each chosen entity the edges that point to it, in all (`degree`) and kept. [N] each

    Kept are those whose source is chosen for the same query, and the identity edge.
    """
    begin = tl.program_id(0).to(tl.int64) * rows
    place = begin + tl.arange(0, rows)
    inside = place < count
    entity = tl.load(entities + place, mask=inside, other=0)
    base = tl.load(query + place, mask=inside, other=0) * width
    start = tl.load(indptr + entity, mask=inside, other=0)
    length = tl.load(indptr + entity + 1, mask=inside, other=0) - start
    tl.store(degree + place, length, mask=inside)
    longest = tl.max(length)
    short = tl.where(length <= long, length, 0)
    limit = tl.max(short)
    found = tl.zeros([rows], tl.int32)
    column = tl.arange(0, wide)
    first = 0
    while first < limit:
        edge = first + column[None, :]
        here = edge < short[:, None]
        x = tl.load(source + start[:, None] + edge, mask=here, other=0)
        local = tl.load(table + base[:, None] + x, mask=here, other=-1)
        found += tl.sum((local >= 0).to(tl.int32), axis=1)
        first += wide
    tl.store(kept + place, found + 1, mask=inside & (length <= long))
    if longest > long:
        lane = tl.arange(0, tile)
        for index in range(0, rows):
            one = begin + index
            there = one < count
            hub = tl.load(entities + one, mask=there, other=0)
            hub_base = tl.load(query + one, mask=there, other=0) * width
            hub_start = tl.load(indptr + hub, mask=there, other=0)
            hub_length = tl.load(indptr + hub + 1, mask=there, other=0) - hub_start
            if hub_length > long:
                hits = tl.zeros([tile], tl.int32)
                at = 0
                while at < hub_length:
                    within = at + lane < hub_length
                    y = tl.load(source + hub_start + at + lane, mask=within, other=0)
                    found_y = tl.load(table + hub_base + y, mask=within, other=-1)
                    hits += (found_y >= 0).to(tl.int32)
                    at += tile
                tl.store(kept + one, tl.sum(hits) + 1)


def _write_kernel(
    entities,
    query,
    indptr,
    source,
    relation,
    table,
    starts,
    edges,
    edge_query,
    count,
    width,
    total,
    identity,
    rows: tl.constexpr,
    wide: tl.constexpr,
    long: tl.constexpr,
    tile: tl.constexpr,
):
    """Write the kept edges of each chosen entity from its `starts` [N + 1] on, identity last.

    `edges` int64 [3, total], `edge_query` int64 [total]. Walks as `_count_kernel` does.
    """
    begin = tl.program_id(0).to(tl.int64) * rows
    second = edges + total.to(tl.int64)
    third = second + total.to(tl.int64)
    place = begin + tl.arange(0, rows)
    inside = place < count
    entity = tl.load(entities + place, mask=inside, other=0)
    asked = tl.load(query + place, mask=inside, other=0)
    base = asked * width
    start = tl.load(indptr + entity, mask=inside, other=0)
    length = tl.load(indptr + entity + 1, mask=inside, other=0) - start
    to = tl.load(starts + place, mask=inside, other=0)
    longest = tl.max(length)
    short = tl.where(length <= long, length, 0)
    limit = tl.max(short)
    column = tl.arange(0, wide)
    flat = tl.zeros([rows, wide], tl.int64)
    first = 0
    while first < limit:
        edge = first + column[None, :]
        here = edge < short[:, None]
        x = tl.load(source + start[:, None] + edge, mask=here, other=0)
        local = tl.load(table + base[:, None] + x, mask=here, other=-1)
        keep = local >= 0
        r = tl.load(relation + start[:, None] + edge, mask=keep, other=0)
        number = keep.to(tl.int32)
        target = to[:, None] + tl.cumsum(number, axis=1) - 1
        tl.store(edges + target, local.to(tl.int64), mask=keep)
        tl.store(second + target, r.to(tl.int64), mask=keep)
        tl.store(third + target, flat + place[:, None], mask=keep)
        tl.store(edge_query + target, flat + asked[:, None], mask=keep)
        to += tl.sum(number, axis=1)
        first += wide
    final = inside & (length <= long)
    tl.store(edges + to, place, mask=final)
    tl.store(second + to, tl.zeros([rows], tl.int64) + identity, mask=final)
    tl.store(third + to, place, mask=final)
    tl.store(edge_query + to, asked, mask=final)
    if longest > long:
        lane = tl.arange(0, tile)
        line = tl.zeros([tile], tl.int64)
        for index in range(0, rows):
            one = begin + index
            there = one < count
            hub = tl.load(entities + one, mask=there, other=0)
            hub_asked = tl.load(query + one, mask=there, other=0)
            hub_base = hub_asked * width
            hub_start = tl.load(indptr + hub, mask=there, other=0)
            hub_length = tl.load(indptr + hub + 1, mask=there, other=0) - hub_start
            if hub_length > long:
                hub_to = tl.load(starts + one)
                at = 0
                while at < hub_length:
                    within = at + lane < hub_length
                    y = tl.load(source + hub_start + at + lane, mask=within, other=0)
                    local_y = tl.load(table + hub_base + y, mask=within, other=-1)
                    keep_y = local_y >= 0
                    s = tl.load(relation + hub_start + at + lane, mask=keep_y, other=0)
                    number_y = keep_y.to(tl.int32)
                    target_y = hub_to + tl.cumsum(number_y, axis=0) - 1
                    tl.store(edges + target_y, local_y.to(tl.int64), mask=keep_y)
                    tl.store(second + target_y, s.to(tl.int64), mask=keep_y)
                    tl.store(third + target_y, line + one, mask=keep_y)
                    tl.store(edge_query + target_y, line + hub_asked, mask=keep_y)
                    hub_to += tl.sum(number_y)
                    at += tile
                tl.store(edges + hub_to, one)
                tl.store(second + hub_to, identity.to(tl.int64))
                tl.store(third + hub_to, one)
                tl.store(edge_query + hub_to, hub_asked)


def _put_kernel(scores, columns, values, count, per_row, width, block: tl.constexpr):
    """See `_put`."""
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = index < count
    column = tl.load(columns + index, mask=inside, other=-1)
    value = tl.load(values + index, mask=inside, other=0.0)
    tl.store(scores + index // per_row * width + column, value, mask=column >= 0)


def _threshold_kernel(
    scores,
    counts,
    threshold,
    spare,
    sizes,
    width,
    grow: tl.constexpr,
    drop: tl.constexpr,
    block: tl.constexpr,
):
    """What decides on each row of `scores` [n, V], all outputs int32 [n].

    Scores are not negative, so that their bits are in the same order as they. `threshold`: the
    bits of the `counts`-th highest score (with `grow` of as many as are infinite, if these are
    more); `spare`: how many of those equal to it are chosen; `sizes`: how many are chosen in all.
    With `drop` scores of 0 are not.

    The threshold is the largest number that so many scores reach, found two bits at a time.
    """
    row = tl.program_id(0).to(tl.int64)
    scores += row * width
    wanted = tl.load(counts + row).to(tl.int32)
    lane = tl.arange(0, block)
    infinite = tl.zeros([block], tl.int32)
    large = tl.zeros([block], tl.int32)
    first = 0
    while first < width:
        score = tl.load(scores + first + lane, mask=first + lane < width, other=0.0)
        bits = tl.maximum(score.to(tl.int32, bitcast=True), 0)
        infinite += (bits == 0x7F800000).to(tl.int32)
        large += (bits >= 0x40000000).to(tl.int32)
        first += block
    if grow:
        wanted = tl.maximum(wanted, tl.sum(infinite))
    best = tl.where(tl.sum(large) >= wanted, 0x40000000, 0)
    step = 0x10000000
    while step > 0:
        one = tl.zeros([block], tl.int32)
        two = tl.zeros([block], tl.int32)
        three = tl.zeros([block], tl.int32)
        first = 0
        while first < width:
            score = tl.load(scores + first + lane, mask=first + lane < width, other=0.0)
            # From `best` on, so that the three comparisons are with the same small numbers.
            bits = tl.maximum(score.to(tl.int32, bitcast=True), 0) - best
            one += (bits >= step).to(tl.int32)
            two += (bits >= 2 * step).to(tl.int32)
            three += (bits >= 3 * step).to(tl.int32)
            first += block
        reached = (tl.sum(one) >= wanted).to(tl.int32) + (tl.sum(two) >= wanted).to(tl.int32)
        reached += (tl.sum(three) >= wanted).to(tl.int32)
        best += reached * step
        step = step >> 2
    above = tl.zeros([block], tl.int32)
    tied = tl.zeros([block], tl.int32)
    first = 0
    while first < width:
        inside = first + lane < width
        score = tl.load(scores + first + lane, mask=inside, other=0.0)
        bits = tl.maximum(score.to(tl.int32, bitcast=True), 0)
        above += (bits > best).to(tl.int32)
        tied += ((bits == best) & inside).to(tl.int32)
        first += block
    higher = tl.sum(above)
    room = tl.minimum(wanted - higher, tl.sum(tied))
    if drop:
        room = tl.where(best > 0, room, 0)
    tl.store(threshold + row, best)
    tl.store(spare + row, room)
    tl.store(sizes + row, higher + room)


def _select_kernel(
    scores, threshold, spare, sizes, ends, entities, rows, width, block: tl.constexpr
):
    """Write the chosen entities of each row and the row, in order; `ends` [n]: cumulated sizes."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * width
    least = tl.load(threshold + row)
    room = tl.load(spare + row)
    to = tl.load(ends + row) - tl.load(sizes + row)
    lane = tl.arange(0, block)
    line = tl.zeros([block], tl.int64) + row
    first = 0
    while first < width:
        inside = first + lane < width
        score = tl.load(scores + first + lane, mask=inside, other=0.0)
        bits = tl.maximum(score.to(tl.int32, bitcast=True), 0)
        tied = ((bits == least) & inside).to(tl.int32)
        chosen = (bits > least) | ((tied > 0) & (tl.cumsum(tied, axis=0) <= room))
        number = chosen.to(tl.int32)
        target = to + tl.cumsum(number, axis=0) - 1
        tl.store(entities + target, (first + lane).to(tl.int64), mask=chosen)
        tl.store(rows + target, line, mask=chosen)
        room -= tl.sum(tied)
        to += tl.sum(number)
        first += block
