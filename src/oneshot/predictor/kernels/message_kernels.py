"""The kernels of `collect`: passes over edges, one program a row or piece of a row.

In all of them `state` [.., D], `table` [.., D], the parts of the attention `s`, `t`, `q` [.., A],
`w` [A] and `b`; `D` channels in blocks of `BD`, `A` in `BA`, `BE` edges at a time, `SIZE` edges a
piece. A row that has several pieces gets its parts, to be joined; else its result.
"""

import triton
import triton.language as tl


@triton.jit
def _composed(entity, relation, IS_SUM: tl.constexpr):
    return entity + relation if IS_SUM else entity * relation


@triton.jit
def attend(
    s_at, t_at, q_at, w_at, b_at, source_at, relation_at, query_at, weight_at,
    num_edges, num_sources,
    A: tl.constexpr, BA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = edge < num_edges
    x = tl.load(source_at + edge, mask=inside, other=0).to(tl.int64)
    inside = inside & (x < num_sources)
    r = tl.load(relation_at + edge, mask=inside, other=0)
    q = tl.load(query_at + edge, mask=inside, other=0)
    k = tl.arange(0, BA)
    in_k = k < A
    w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
    small = inside[:, None] & in_k[None, :]
    u = tl.load(s_at + x[:, None] * A + k[None, :], mask=small, other=0.0).to(tl.float32)
    u += tl.load(t_at + r[:, None] * A + k[None, :], mask=small, other=0.0).to(tl.float32)
    u += tl.load(q_at + q[:, None] * A + k[None, :], mask=small, other=0.0).to(tl.float32)
    b = tl.load(b_at).to(tl.float32)
    a = tl.sigmoid(tl.sum(tl.maximum(u, 0.0) * w[None, :], axis=1) + b)
    tl.store(weight_at + edge, a, mask=inside)


@triton.jit
def collect_sums(
    state_at, table_at, s_at, t_at, q_at, w_at, b_at,
    source_at, relation_at, query_at, scale_at,
    row_at, first_at, indptr_at, slot_at,
    out_at, part_at, weight_at,
    num_rows, num_sources, stride,
    MEAN: tl.constexpr, STORE: tl.constexpr, READ: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, BD: tl.constexpr, BA: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        query = tl.load(query_at + row)
        d = tl.arange(0, BD)
        k = tl.arange(0, BA)
        in_d = d < D
        in_k = k < A
        if ATTENTION and not READ:
            w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
            b = tl.load(b_at).to(tl.float32)
            asked = tl.load(q_at + query * A + k, mask=in_k, other=0.0).to(tl.float32)
        total = tl.zeros((BD,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            inside = edge < end
            x = tl.load(source_at + edge, mask=inside, other=0).to(tl.int64)
            r = tl.load(relation_at + edge, mask=inside, other=0)
            inside = inside & (x < num_sources)
            grid = inside[:, None] & in_d[None, :]
            h = tl.load(state_at + x[:, None] * D + d[None, :], mask=grid, other=0.0)
            relation = (r + query * stride).to(tl.int64)
            v = tl.load(table_at + relation[:, None] * D + d[None, :], mask=grid, other=0.0)
            message = _composed(h.to(tl.float32), v.to(tl.float32), IS_SUM)
            if READ:
                a = tl.load(weight_at + edge, mask=inside, other=0.0)
                message = message * a[:, None]
            elif ATTENTION:
                small = inside[:, None] & in_k[None, :]
                u = tl.load(s_at + x[:, None] * A + k[None, :], mask=small, other=0.0)
                t = tl.load(t_at + r[:, None] * A + k[None, :], mask=small, other=0.0)
                u = u.to(tl.float32) + t.to(tl.float32) + asked[None, :]
                a = tl.sigmoid(tl.sum(tl.maximum(u, 0.0) * w[None, :], axis=1) + b)
                if STORE:
                    tl.store(weight_at + edge, a, mask=inside)
                message = message * a[:, None]
            total += tl.sum(tl.where(grid, message, 0.0), axis=0)
        if MEAN:
            total *= tl.load(scale_at + row)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            tl.store(part_at + slot * D + d, total, mask=in_d)
        else:
            out = out_at + row.to(tl.int64) * D + d
            tl.store(out, total.to(out_at.dtype.element_ty), mask=in_d)


@triton.jit
def collect_extremes(
    state_at, table_at,
    source_at, relation_at, query_at,
    row_at, first_at, indptr_at, slot_at,
    out_at, part_at, weight_at,
    num_rows, num_sources, stride,
    ALL: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        query = tl.load(query_at + row)
        d = tl.arange(0, BD)
        in_d = d < D
        highest = tl.full((BD,), float("-inf"), tl.float32)
        count = tl.zeros((BD,), tl.float32)
        if ALL:
            total = tl.zeros((BD,), tl.float32)
            squares = tl.zeros((BD,), tl.float32)
            lowest = tl.full((BD,), float("inf"), tl.float32)
            low_count = tl.zeros((BD,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            exists = edge < end
            x = tl.load(source_at + edge, mask=exists, other=0).to(tl.int64)
            r = tl.load(relation_at + edge, mask=exists, other=0)
            # A source without a state sends zeros, which count here.
            inside = exists & (x < num_sources)
            grid = inside[:, None] & in_d[None, :]
            h = tl.load(state_at + x[:, None] * D + d[None, :], mask=grid, other=0.0)
            relation = (r + query * stride).to(tl.int64)
            v = tl.load(table_at + relation[:, None] * D + d[None, :], mask=grid, other=0.0)
            message = _composed(h.to(tl.float32), v.to(tl.float32), IS_SUM)
            if ATTENTION:
                a = tl.load(weight_at + edge, mask=inside, other=0.0)
                message = message * a[:, None]
            counted = exists[:, None] & in_d[None, :]
            new = tl.maximum(highest, tl.max(tl.where(counted, message, float("-inf")), axis=0))
            same = counted & (message == new[None, :])
            count = tl.where(new > highest, 0.0, count) + tl.sum(same.to(tl.float32), axis=0)
            highest = new
            if ALL:
                kept = tl.where(counted, message, 0.0)
                total += tl.sum(kept, axis=0)
                squares += tl.sum(kept * kept, axis=0)
                new = tl.minimum(lowest, tl.min(tl.where(counted, message, float("inf")), axis=0))
                same = counted & (message == new[None, :])
                low_count = tl.where(new < lowest, 0.0, low_count)
                low_count += tl.sum(same.to(tl.float32), axis=0)
                lowest = new
        # A row without edges, of the padding, is zero.
        highest = tl.where(count > 0, highest, 0.0)
        if ALL:
            lowest = tl.where(low_count > 0, lowest, 0.0)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            to = part_at + slot * (6 * D if ALL else 2 * D) + d
        else:
            to = out_at + row.to(tl.int64) * (6 * D if ALL else 2 * D) + d
        if ALL:
            tl.store(to, total, mask=in_d)
            tl.store(to + D, squares, mask=in_d)
            tl.store(to + 2 * D, highest, mask=in_d)
            tl.store(to + 3 * D, lowest, mask=in_d)
            tl.store(to + 4 * D, count, mask=in_d)
            tl.store(to + 5 * D, low_count, mask=in_d)
        else:
            tl.store(to, highest, mask=in_d)
            tl.store(to + D, count, mask=in_d)


@triton.jit
def join_extremes(
    part_at, out_at, split_at, first_at, slot_at, num_rows,
    D: tl.constexpr, BD: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    row = tl.load(split_at + tl.program_id(0))
    if row < num_rows:
        number_of = tl.load(first_at + row + 1) - tl.load(first_at + row)
        slot = tl.load(slot_at + row).to(tl.int64)
        d = tl.arange(0, BD)
        in_d = d < D
        highest = tl.full((BD,), float("-inf"), tl.float32)
        count = tl.zeros((BD,), tl.float32)
        total = tl.zeros((BD,), tl.float32)
        squares = tl.zeros((BD,), tl.float32)
        lowest = tl.full((BD,), float("inf"), tl.float32)
        low_count = tl.zeros((BD,), tl.float32)
        for number in range(number_of):
            part = part_at + (slot + number) * (6 * D if ALL else 2 * D) + d
            if ALL:
                total += tl.load(part, mask=in_d, other=0.0)
                squares += tl.load(part + D, mask=in_d, other=0.0)
                other = tl.load(part + 3 * D, mask=in_d, other=0.0)
                other_count = tl.load(part + 5 * D, mask=in_d, other=0.0)
                new = tl.minimum(lowest, other)
                low_count = tl.where(lowest == new, low_count, 0.0)
                low_count += tl.where(other == new, other_count, 0.0)
                lowest = new
                other = tl.load(part + 2 * D, mask=in_d, other=0.0)
                other_count = tl.load(part + 4 * D, mask=in_d, other=0.0)
            else:
                other = tl.load(part, mask=in_d, other=0.0)
                other_count = tl.load(part + D, mask=in_d, other=0.0)
            new = tl.maximum(highest, other)
            count = tl.where(highest == new, count, 0.0) + tl.where(other == new, other_count, 0.0)
            highest = new
        to = out_at + row.to(tl.int64) * (6 * D if ALL else 2 * D) + d
        if ALL:
            tl.store(to, total, mask=in_d)
            tl.store(to + D, squares, mask=in_d)
            tl.store(to + 2 * D, highest, mask=in_d)
            tl.store(to + 3 * D, lowest, mask=in_d)
            tl.store(to + 4 * D, count, mask=in_d)
            tl.store(to + 5 * D, low_count, mask=in_d)
        else:
            tl.store(to, highest, mask=in_d)
            tl.store(to + D, count, mask=in_d)


@triton.jit
def _slope(
    gradient_at, scale_at, target, inside, message, d, in_d,
    D: tl.constexpr, MODE: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """The slope of the loss in each message of a tile, [edges, channels]."""
    grid = inside[:, None] & in_d[None, :]
    if MODE == 0:
        at = gradient_at + target[:, None] * D + d[None, :]
        slope = tl.load(at, mask=grid, other=0.0).to(tl.float32)
        if MEAN:
            slope *= tl.load(scale_at + target, mask=inside, other=0.0)[:, None]
    elif MODE == 1:
        at = gradient_at + target[:, None] * (2 * D) + d[None, :]
        highest = tl.load(at, mask=grid, other=0.0)
        slope = tl.where(message == highest, tl.load(at + D, mask=grid, other=0.0), 0.0)
    else:
        at = gradient_at + target[:, None] * (6 * D) + d[None, :]
        slope = tl.load(at, mask=grid, other=0.0)
        slope += tl.load(at + D, mask=grid, other=0.0) * tl.where(grid, message, 0.0)
        highest = tl.load(at + 2 * D, mask=grid, other=0.0)
        slope += tl.where(message == highest, tl.load(at + 3 * D, mask=grid, other=0.0), 0.0)
        lowest = tl.load(at + 4 * D, mask=grid, other=0.0)
        slope += tl.where(message == lowest, tl.load(at + 5 * D, mask=grid, other=0.0), 0.0)
    return slope


@triton.jit
def to_sources(
    state_at, table_at, s_at, t_at, q_at, w_at, b_at, weight_at, gradient_at,
    target_at, relation_at, edge_at, query_at, scale_at,
    row_at, first_at, indptr_at, slot_at,
    out_at, term_at, part_at,
    num_rows, num_targets, stride,
    MODE: tl.constexpr, MEAN: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, BD: tl.constexpr, BA: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        query = tl.load(query_at + row)
        x = row.to(tl.int64)
        d = tl.arange(0, BD)
        k = tl.arange(0, BA)
        in_d = d < D
        in_k = k < A
        h = tl.load(state_at + x * D + d, mask=in_d, other=0.0).to(tl.float32)
        total = tl.zeros((BD,), tl.float32)
        if ATTENTION:
            w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
            asked = tl.load(q_at + query * A + k, mask=in_k, other=0.0).to(tl.float32)
            own = tl.load(s_at + x * A + k, mask=in_k, other=0.0).to(tl.float32)
            total_s = tl.zeros((BA,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            inside = edge < end
            o = tl.load(target_at + edge, mask=inside, other=0).to(tl.int64)
            # Only a row that has no state yet can have targets beyond.
            inside = inside & (o < num_targets)
            r = tl.load(relation_at + edge, mask=inside, other=0)
            grid = inside[:, None] & in_d[None, :]
            relation = (r + query * stride).to(tl.int64)
            v = tl.load(table_at + relation[:, None] * D + d[None, :], mask=grid, other=0.0)
            v = v.to(tl.float32)
            composed = _composed(h[None, :], v, IS_SUM)
            if ATTENTION:
                stored = tl.load(edge_at + edge, mask=inside, other=0)
                a = tl.load(weight_at + stored, mask=inside, other=0.0)
                message = composed * a[:, None]
            else:
                message = composed
            g = _slope(gradient_at, scale_at, o, inside, message, d, in_d, D, MODE, MEAN)
            if ATTENTION:
                by_a = tl.sum(g * composed, axis=1) * a * (1.0 - a)
                small = inside[:, None] & in_k[None, :]
                t = tl.load(t_at + r[:, None] * A + k[None, :], mask=small, other=0.0)
                u = own[None, :] + t.to(tl.float32) + asked[None, :]
                by_u = tl.where(small & (u > 0), by_a[:, None] * w[None, :], 0.0)
                total_s += tl.sum(by_u, axis=0)
                g = g * a[:, None]
            if not IS_SUM:
                g = g * v
            total += tl.sum(g, axis=0)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            if ATTENTION:
                tl.store(part_at + slot * (D + A) + d, total, mask=in_d)
                tl.store(part_at + slot * (D + A) + D + k, total_s, mask=in_k)
            else:
                tl.store(part_at + slot * D + d, total, mask=in_d)
        else:
            tl.store(out_at + x * D + d, total.to(out_at.dtype.element_ty), mask=in_d)
            if ATTENTION:
                tl.store(term_at + x * A + k, total_s, mask=in_k)


@triton.jit
def to_kinds(
    state_at, table_at, s_at, t_at, q_at, w_at, b_at, weight_at, gradient_at,
    source_at, target_at, edge_at, scale_at,
    row_at, first_at, indptr_at, slot_at, limit_at,
    out_at, term_at, part_at,
    num_rows, num_kinds, stride,
    MODE: tl.constexpr, MEAN: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, BD: tl.constexpr, BA: tl.constexpr, BE: tl.constexpr,
    SIZE: tl.constexpr, ATTENTION: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    if row < num_rows:
        first = tl.load(first_at + row)
        begin = tl.load(indptr_at + row) + (piece - first) * SIZE
        end = tl.minimum(begin + SIZE, tl.load(indptr_at + row + 1))
        end = tl.minimum(end, tl.load(limit_at + row))
        query = row // num_kinds
        r = row % num_kinds
        d = tl.arange(0, BD)
        k = tl.arange(0, BA)
        in_d = d < D
        in_k = k < A
        relation = (r + query * stride).to(tl.int64)
        v = tl.load(table_at + relation * D + d, mask=in_d, other=0.0).to(tl.float32)
        total = tl.zeros((BD,), tl.float32)
        if ATTENTION:
            w = tl.load(w_at + k, mask=in_k, other=0.0).to(tl.float32)
            asked = tl.load(q_at + query * A + k, mask=in_k, other=0.0).to(tl.float32)
            own = tl.load(t_at + r * A + k, mask=in_k, other=0.0).to(tl.float32)
            total_u = tl.zeros((BA,), tl.float32)
            total_w = tl.zeros((BA,), tl.float32)
            total_b = tl.zeros((BE,), tl.float32)
        for place in range(begin, end, BE):
            edge = place + tl.arange(0, BE)
            inside = edge < end
            x = tl.load(source_at + edge, mask=inside, other=0).to(tl.int64)
            o = tl.load(target_at + edge, mask=inside, other=0).to(tl.int64)
            grid = inside[:, None] & in_d[None, :]
            h = tl.load(state_at + x[:, None] * D + d[None, :], mask=grid, other=0.0)
            h = h.to(tl.float32)
            composed = _composed(h, v[None, :], IS_SUM)
            if ATTENTION:
                stored = tl.load(edge_at + edge, mask=inside, other=0)
                a = tl.load(weight_at + stored, mask=inside, other=0.0)
                message = composed * a[:, None]
            else:
                message = composed
            g = _slope(gradient_at, scale_at, o, inside, message, d, in_d, D, MODE, MEAN)
            if ATTENTION:
                by_a = tl.sum(g * composed, axis=1) * a * (1.0 - a)
                small = inside[:, None] & in_k[None, :]
                u = tl.load(s_at + x[:, None] * A + k[None, :], mask=small, other=0.0)
                u = u.to(tl.float32) + own[None, :] + asked[None, :]
                live = small & (u > 0)
                total_u += tl.sum(tl.where(live, by_a[:, None] * w[None, :], 0.0), axis=0)
                total_w += tl.sum(tl.where(live, by_a[:, None] * u, 0.0), axis=0)
                total_b += by_a
                g = g * a[:, None]
            if not IS_SUM:
                g = g * h
            total += tl.sum(g, axis=0)
        if tl.load(first_at + row + 1) - first > 1:
            slot = (tl.load(slot_at + row) + piece - first).to(tl.int64)
            if ATTENTION:
                at = part_at + slot * (D + 2 * A + 1)
                tl.store(at + d, total, mask=in_d)
                tl.store(at + D + k, total_u, mask=in_k)
                tl.store(at + D + A + k, total_w, mask=in_k)
                tl.store(at + D + 2 * A, tl.sum(total_b, axis=0))
            else:
                tl.store(part_at + slot * D + d, total, mask=in_d)
        else:
            place_of = row.to(tl.int64)
            tl.store(out_at + place_of * D + d, total, mask=in_d)
            if ATTENTION:
                at = term_at + place_of * (2 * A + 1)
                tl.store(at + k, total_u, mask=in_k)
                tl.store(at + A + k, total_w, mask=in_k)
                tl.store(at + 2 * A, tl.sum(total_b, axis=0))
