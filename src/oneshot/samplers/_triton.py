"""Triton kernels that choose entities and extract subgraphs; imported only if used.

`_select_gpu` and `_extract_gpu` launch them. Sizes that change with every call are not
specialized, as multiples of 16 would cause extra compilations.
"""

import triton
import triton.language as tl

# Loops are written with `while`: the interpreter of Triton does not support `range` with a bound
# that is known only at run time.


@triton.jit(do_not_specialize=["count"])
def place_entities(entities, query, table, count, width, block: tl.constexpr):
    """`table[query, entity]` = the index of each chosen entity. `table` int32 [n, V]"""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    entity = tl.load(entities + place, mask=inside, other=0)
    base = tl.load(query + place, mask=inside, other=0) * width
    tl.store(table + base + entity, place.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["count"])
def count_edges(
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
    """For each chosen entity, number of incoming edges in total (`degree`) and kept. [N] each

    An edge is kept if its source is chosen for the same query; the identity edge always is.
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


@triton.jit(do_not_specialize=["count", "total", "identity"])
def write_edges(
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

    `edges` int64 [3, total], `edge_query` int64 [total]. Same traversal as `count_edges`.
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


@triton.jit(do_not_specialize=["count"])
def put_values(scores, columns, values, count, per_row, width, block: tl.constexpr):
    """See `_select_gpu._put`."""
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = index < count
    column = tl.load(columns + index, mask=inside, other=-1)
    value = tl.load(values + index, mask=inside, other=0.0)
    tl.store(scores + index // per_row * width + column, value, mask=column >= 0)


@triton.jit
def find_threshold(
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
    """The selection threshold of each row of `scores` [n, V]; all outputs int32 [n].

    Scores are not negative, so their bits have the same order as their values. `threshold`: the
    bits of the `counts`-th highest score (with `grow`, at least as many as are infinite); `spare`:
    number of scores equal to it that are chosen; `sizes`: number chosen in total. With `drop`,
    scores of 0 are not chosen.

    The threshold is the largest number that this many scores reach, found two bits at a time.
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
            # Relative to `best`, so that the three comparisons use the same small numbers.
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


@triton.jit
def select_entities(
    scores, threshold, spare, sizes, ends, entities, rows, width, block: tl.constexpr
):
    """Write the chosen entities of each row and the row, in order; `ends` [n]: cumulative sizes."""
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
