/* The predictor's passes over edges on a CPU, in float32.
 *
 * A batch is a set of disjoint subgraphs, one per query. Entities are numbered by their distance
 * from the query's entity, so that after `l` layers the first `reach[l]` rows are those that have a
 * state, and the edges of every row are ordered by the distance of their source, so that edges
 * with a message come first. A layer then reads only rows and edges that can be nonzero.
 *
 * Each function is called by several threads at once. They share the work through a counter: a free
 * thread takes the next item. The result of an item does not depend on its thread, and the caller
 * adds up items in their order, so that the result has the same bits with any number of threads.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
/* One library for all CPUs: the loader selects the matching version. */
#define FOR_EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

enum { SUM = 0, MEAN = 1, MAX = 2, PNA = 3 };

#define VARIANCE_FLOOR 1e-6f
#define ROWS_AT_ONCE 64

/* 16 channels at a time; compilers split this where registers are shorter. The width of states is
 * a multiple of 16, that of attentions a multiple of 8. */
#define LANES 16
#define NARROW 8
typedef float Block __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Mask __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float NarrowBlock __attribute__((vector_size(4 * NARROW), aligned(4)));
typedef int32_t NarrowMask __attribute__((vector_size(4 * NARROW), aligned(4)));

INLINE Block load(const float *at) { return *(const Block *)at; }
INLINE void store(float *at, Block values) { *(Block *)at = values; }
INLINE Block either(Mask mask, Block yes, Block no) {
    return (Block)(((Mask)yes & mask) | ((Mask)no & ~mask));
}
INLINE Block largest(Block one, Block other) { return either(one > other, one, other); }
INLINE Block smallest(Block one, Block other) { return either(one < other, one, other); }
INLINE Block all(float value) { return value - (Block){0}; }
INLINE Block square_root(Block values) {
    Block roots = {0};
    for (int lane = 0; lane < LANES; lane++) roots[lane] = sqrtf(values[lane]);
    return roots;
}
INLINE float total_of(Block values) {
    NarrowBlock half;
    for (int lane = 0; lane < NARROW; lane++) half[lane] = values[lane] + values[lane + NARROW];
    return ((half[0] + half[4]) + (half[2] + half[6])) + ((half[1] + half[5]) + (half[3] + half[7]));
}

/* What the forward and the backward pass of a layer have in common; see `collect.py`. */
typedef struct {
    int64_t num_rows, num_sources, num_queries, num_groups, num_kinds, num_levels;
    int64_t dim, attention, stride, aggregate, is_sum, counts;
    const int32_t *indptr, *source, *relation, *row_query, *level_row;
    const int32_t *missing; /* [rows]: edges that count as messages of zero, or null */
    const float *state, *table, *from_source, *from_relation, *from_query, *weight, *bias;
    float *edge_weight;
    float *out;   /* [rows, D], with PNA [rows, 4 D]: mean, max, min, deviation */
    float *count; /* [rows, D] for MAX, [rows, 2 D] for PNA: messages equal to max, to min; if
                     `counts` says that they are wanted */
    const float *gradient; /* of `out` */
    float *to_state, *to_table, *to_source, *to_relation, *to_query, *to_weight, *to_bias;
    const float *factor; /* [edges]: what messages are multiplied by, or null */
} Layer;

/* Whether this library knows `factor`; one that was built before it would ignore it. */
int64_t knows_weights(void) { return 1; }

/* Numbering by distance --------------------------------------------------------------------- */

/* Edges from `u` to each entity of some queries, `most + 1` if there are more.
 *
 * `end` [n + 1]: the entities of each query. `indptr` [N + 1], `source` [E]: edges into each entity.
 */
FOR_EVERY_CPU void find_distances(int64_t *next, int64_t num_queries, const int64_t *end,
                                  const int64_t *first, const int64_t *indptr,
                                  const int64_t *source, int64_t most, int16_t *distance) {
    for (;;) {
        int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= num_queries) return;
        for (int64_t o = end[i]; o < end[i + 1]; o++) distance[o] = (int16_t)(most + 1);
        if (end[i] == end[i + 1]) continue;
        distance[first[i]] = 0;
        for (int64_t hop = 1; hop <= most; hop++) {
            int64_t found = 0;
            for (int64_t o = end[i]; o < end[i + 1]; o++) {
                if (distance[o] <= most) continue;
                for (int64_t e = indptr[o]; e < indptr[o + 1]; e++) {
                    /* Not yet those found in this round, whose distance is `hop`. */
                    if (distance[source[e]] < hop) {
                        distance[o] = (int16_t)hop;
                        found++;
                        break;
                    }
                }
            }
            if (!found) break;
        }
    }
}

/* The edges into the first `num_rows` rows in the new numbering, those of a row by distance.
 *
 * `order` [N]: the entity of each row; `place` [N]: the row of each entity; `row_end` [rows + 1].
 */
FOR_EVERY_CPU void number_edges(int64_t *next, int64_t num_rows, int64_t levels,
                                const int64_t *order, const int32_t *place,
                                const int16_t *distance, const int64_t *indptr,
                                const int64_t *old_source, const int64_t *old_relation,
                                const int32_t *row_end, int32_t *source, int32_t *relation) {
    int32_t *at = malloc((size_t)(levels + 1) * sizeof(int32_t));
    for (;;) {
        int64_t row = __atomic_fetch_add(next, ROWS_AT_ONCE, __ATOMIC_RELAXED);
        if (row >= num_rows) break;
        int64_t last = row + ROWS_AT_ONCE < num_rows ? row + ROWS_AT_ONCE : num_rows;
        for (; row < last; row++) {
            int64_t o = order[row];
            memset(at, 0, (size_t)(levels + 1) * sizeof(int32_t));
            for (int64_t e = indptr[o]; e < indptr[o + 1]; e++) at[distance[old_source[e]] + 1]++;
            at[0] = row_end[row];
            for (int64_t level = 0; level < levels; level++) at[level + 1] += at[level];
            for (int64_t e = indptr[o]; e < indptr[o + 1]; e++) {
                int32_t to = at[distance[old_source[e]]]++;
                source[to] = place[old_source[e]];
                relation[to] = (int32_t)old_relation[e];
            }
        }
    }
    free(at);
}

/* Forward ----------------------------------------------------------------------------------- */

/* The sums before the sigmoid of attention, `w · ReLU(s_x + t_r + q) + b`, of one edge. */
INLINE float attend(const Layer *l, const float *s, const float *t, const float *q) {
    NarrowBlock total = {0};
    for (int64_t k = 0; k < l->attention; k += NARROW) {
        const NarrowBlock u = *(const NarrowBlock *)(s + k) + *(const NarrowBlock *)(t + k) +
                              *(const NarrowBlock *)(q + k);
        const NarrowMask positive = u > 0;
        total += (NarrowBlock)((NarrowMask)u & positive) * *(const NarrowBlock *)(l->weight + k);
    }
    return ((total[0] + total[4]) + (total[2] + total[6])) +
           ((total[1] + total[5]) + (total[3] + total[7])) + l->bias[0];
}

/* `σ(x) = 1 / (1 + exp(−x))`, with exp as 2 to a whole power times a polynomial. */
INLINE Block sigmoid(Block x) {
    x = smallest(largest(-x, all(-80)), all(80));
    const Block scaled = x * 1.44269504f;
    const Mask whole = __builtin_convertvector(scaled + either(scaled > 0, all(0.5f), all(-0.5f)), Mask);
    const Block part = __builtin_convertvector(whole, Block);
    const Block r = (x - part * 0.693359375f) + part * 2.12194440e-4f;
    Block exp = all(1.9875691500e-4f);
    exp = exp * r + 1.3981999507e-3f;
    exp = exp * r + 8.3334519073e-3f;
    exp = exp * r + 4.1665795894e-2f;
    exp = exp * r + 1.6666665459e-1f;
    exp = exp * r + 5.0000001201e-1f;
    exp = exp * r * r + r + 1;
    return 1 / (1 + exp * (Block)((whole + 127) << 23));
}

/* One block of a message; the same expression everywhere, as its bits are compared. */
INLINE Block composed(Block h, Block v, int is_sum) { return is_sum ? h + v : h * v; }

/* Edges that the aggregates of a row count. */
INLINE int64_t edges_of(const Layer *l, int64_t row) {
    return l->indptr[row + 1] - l->indptr[row] + (l->missing ? l->missing[row] : 0);
}

INLINE void collect_row(const Layer *l, int64_t row, const int is_sum, const int aggregate) {
    const int64_t D = l->dim, A = l->attention;
    const int64_t begin = l->indptr[row], end = l->indptr[row + 1], query = l->row_query[row];
    const float *table = l->table + query * l->stride * D;
    /* Edges whose source has a state come first. */
    int64_t live = begin;
    while (live < end && l->source[live] < l->num_sources) {
        if (A)
            l->edge_weight[live] =
                attend(l, l->from_source + l->source[live] * A,
                       l->from_relation + l->relation[live] * A, l->from_query + query * A);
        live++;
    }
    if (A) {
        int64_t edge = begin;
        for (; edge + LANES <= live; edge += LANES)
            store(l->edge_weight + edge, sigmoid(load(l->edge_weight + edge)));
        if (edge < live) {
            Block rest = {0};
            memcpy(&rest, l->edge_weight + edge, (size_t)(live - edge) * sizeof(float));
            rest = sigmoid(rest);
            memcpy(l->edge_weight + edge, &rest, (size_t)(live - edge) * sizeof(float));
        }
    }
    const int weighted = A || l->factor;
    if (l->factor)
        for (int64_t edge = begin; edge < live; edge++)
            l->edge_weight[edge] = A ? l->edge_weight[edge] * l->factor[edge] : l->factor[edge];
    const int64_t counted = edges_of(l, row);
    const float rest = (float)(counted - (live - begin)), scale = 1 / (float)(counted ? counted : 1);
    float *out = l->out + row * (aggregate == PNA ? 4 * D : D);
    float *count = aggregate >= MAX ? l->count + row * (aggregate == PNA ? 2 * D : D) : 0;
    for (int64_t d = 0; d < D; d += LANES) {
        Block total = {0}, squares = {0}, high_count = {0}, low_count = {0};
        Block highest = all(-INFINITY), lowest = all(INFINITY);
        for (int64_t edge = begin; edge < live; edge++) {
            const Block h = load(l->state + (int64_t)l->source[edge] * D + d);
            const Block v = load(table + (int64_t)l->relation[edge] * D + d);
            Block m = composed(h, v, is_sum);
            if (weighted) m *= l->edge_weight[edge];
            if (aggregate != MAX) total += m;
            if (aggregate == PNA) squares += m * m;
            if (aggregate >= MAX) {
                if (l->counts) {
                    const Mask more = m > highest, same = m >= highest;
                    high_count = (Block)((Mask)high_count & ~more) + (Block)((Mask)all(1) & same);
                }
                highest = largest(m, highest);
            }
            if (aggregate == PNA) {
                if (l->counts) {
                    const Mask less = m < lowest, same = m <= lowest;
                    low_count = (Block)((Mask)low_count & ~less) + (Block)((Mask)all(1) & same);
                }
                lowest = smallest(m, lowest);
            }
        }
        if (aggregate <= MEAN) {
            store(out + d, aggregate == MEAN ? total * scale : total);
            continue;
        }
        if (rest > 0) { /* sources without a state, and those outside, send zeros */
            const Block zero = {0};
            high_count = (Block)((Mask)high_count & ~(zero > highest)) +
                         (Block)((Mask)all(rest) & (zero >= highest));
            highest = largest(zero, highest);
            low_count = (Block)((Mask)low_count & ~(zero < lowest)) +
                        (Block)((Mask)all(rest) & (zero <= lowest));
            lowest = smallest(zero, lowest);
        }
        if (!counted) highest = lowest = (Block){0};
        if (l->counts) store(count + d, high_count);
        if (aggregate == MAX) {
            store(out + d, highest);
            continue;
        }
        if (l->counts) store(count + D + d, low_count);
        const Block mean = total * scale, variance = squares * scale - mean * mean;
        store(out + d, mean);
        store(out + D + d, highest);
        store(out + 2 * D + d, lowest);
        store(out + 3 * D + d,
              square_root(largest(variance, all(VARIANCE_FLOOR))) - sqrtf(VARIANCE_FLOOR));
    }
}

/* The aggregate of the messages into each row. */
FOR_EVERY_CPU void collect(int64_t *next, const Layer *l) {
    for (;;) {
        int64_t row = __atomic_fetch_add(next, ROWS_AT_ONCE, __ATOMIC_RELAXED);
        if (row >= l->num_rows) return;
        const int64_t last = row + ROWS_AT_ONCE < l->num_rows ? row + ROWS_AT_ONCE : l->num_rows;
        for (; row < last; row++) {
            /* With constants, so that the loops have no branches. */
            switch (2 * l->aggregate + l->is_sum) {
                case 2 * SUM: collect_row(l, row, 0, SUM); break;
                case 2 * SUM + 1: collect_row(l, row, 1, SUM); break;
                case 2 * MEAN: collect_row(l, row, 0, MEAN); break;
                case 2 * MEAN + 1: collect_row(l, row, 1, MEAN); break;
                case 2 * MAX: collect_row(l, row, 0, MAX); break;
                case 2 * MAX + 1: collect_row(l, row, 1, MAX); break;
                case 2 * PNA: collect_row(l, row, 0, PNA); break;
                case 2 * PNA + 1: collect_row(l, row, 1, PNA); break;
            }
        }
    }
}

/* Backward ---------------------------------------------------------------------------------- */

/* The gradient of the loss with respect to the messages into a row is, channel by channel,
 * `flat + steep · m`, and `high` (`low`) more where `m` is the highest (lowest) of them. */
INLINE void find_slopes(const Layer *l, int64_t row, const int aggregate, float *flat,
                        float *steep, float *high, float *low) {
    const int64_t D = l->dim, edges = edges_of(l, row);
    const float scale = 1 / (float)(edges > 0 ? edges : 1);
    const float *g = l->gradient + row * (aggregate == PNA ? 4 * D : D);
    const float *count = l->count + row * (aggregate == PNA ? 2 * D : D);
    const float *out = l->out + row * 4 * D;
    const Block one = all(1);
    for (int64_t d = 0; d < D; d += LANES) {
        if (aggregate <= MEAN) {
            store(flat + d, aggregate == MEAN ? load(g + d) * scale : load(g + d));
        } else if (aggregate == MAX) {
            store(high + d, load(g + d) / largest(load(count + d), one));
        } else {
            const Block deviation = load(out + 3 * D + d);
            const Block slope = load(g + 3 * D + d) * scale / (deviation + sqrtf(VARIANCE_FLOOR));
            const Block by = (Block)((Mask)slope & (deviation > 0)); /* at the floor it stays */
            store(steep + d, by);
            store(flat + d, load(g + d) * scale - by * load(out + d));
            store(high + d, load(g + D + d) / largest(load(count + d), one));
            store(low + d, load(g + 2 * D + d) / largest(load(count + D + d), one));
        }
    }
}

INLINE void spread_row(const Layer *l, int64_t row, float *to_table, float *to_relation,
                       float *to_weight, float *to_bias, float *scratch, const int is_sum,
                       const int aggregate) {
    const int64_t D = l->dim, A = l->attention, query = l->row_query[row];
    float *flat = scratch, *steep = flat + D, *high = steep + D, *low = high + D;
    const float *highest = l->out + row * (aggregate == PNA ? 4 * D : D) + (aggregate == PNA ? D : 0);
    const float *lowest = highest + D;
    find_slopes(l, row, aggregate, flat, steep, high, low);
    const int weighted = A || l->factor;
    for (int64_t edge = l->indptr[row]; edge < l->indptr[row + 1]; edge++) {
        const int64_t x = l->source[edge], r = l->relation[edge];
        if (x >= l->num_sources) break;
        const float *h_at = l->state + x * D, *v_at = l->table + (r + query * l->stride) * D;
        float *to_h = l->to_state + x * D, *to_v = to_table + r * D;
        const float a = weighted ? l->edge_weight[edge] : 1;
        Block by_a = {0};
        for (int64_t d = 0; d < D; d += LANES) {
            const Block h = load(h_at + d), v = load(v_at + d), c = composed(h, v, is_sum);
            Block slope = {0};
            if (aggregate != MAX) slope = load(flat + d);
            if (aggregate >= MAX) {
                const Block m = weighted ? c * a : c;
                slope += (Block)((Mask)load(high + d) & (m == load(highest + d)));
                if (aggregate == PNA) {
                    slope += (Block)((Mask)load(low + d) & (m == load(lowest + d)));
                    slope += load(steep + d) * m;
                }
            }
            if (weighted) {
                by_a += slope * c;
                slope *= a;
            }
            store(to_h + d, load(to_h + d) + (is_sum ? slope : slope * v));
            store(to_v + d, load(to_v + d) + (is_sum ? slope : slope * h));
        }
        if (!A) continue;
        /* The weight is `f · σ`, whose slope is `f · σ · (1 − σ)`. */
        const float share = l->factor ? a / l->factor[edge] : a;
        const float by = total_of(by_a) * a * (1 - share);
        const float *s = l->from_source + x * A, *t = l->from_relation + r * A;
        const float *q = l->from_query + query * A;
        float *to_s = l->to_source + x * A, *to_t = to_relation + r * A;
        float *to_q = l->to_query + query * A;
        for (int64_t k = 0; k < A; k += NARROW) {
            const NarrowBlock u = *(const NarrowBlock *)(s + k) + *(const NarrowBlock *)(t + k) +
                                  *(const NarrowBlock *)(q + k);
            const NarrowMask positive = u > 0;
            const NarrowBlock by_u =
                (NarrowBlock)((NarrowMask)(*(const NarrowBlock *)(l->weight + k) * by) & positive);
            *(NarrowBlock *)(to_s + k) += by_u;
            *(NarrowBlock *)(to_t + k) += by_u;
            *(NarrowBlock *)(to_q + k) += by_u;
            *(NarrowBlock *)(to_weight + k) += (NarrowBlock)((NarrowMask)(u * by) & positive);
        }
        *to_bias += by;
    }
}

/* The gradients of all that the messages are made of. An item is a group of queries, whose rows no
 * other item touches; what all queries share has one part per group. */
FOR_EVERY_CPU void spread(int64_t *next, const Layer *l) {
    const int64_t D = l->dim, A = l->attention, n = l->num_queries, G = l->num_groups;
    float *scratch = malloc((size_t)(4 * D) * sizeof(float));
    for (;;) {
        int64_t group = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (group >= G) break;
        float *to_relation = l->to_relation + group * l->num_kinds * A;
        float *to_weight = l->to_weight + group * A, *to_bias = l->to_bias + group;
        for (int64_t query = group * n / G; query < (group + 1) * n / G; query++) {
            float *to_table = l->to_table + (l->stride ? query : group) * l->num_kinds * D;
            /* The rows of a query are one range at each distance. */
            for (int64_t level = 0; level < l->num_levels; level++) {
                const int32_t *ends = l->level_row + level * (n + 1);
                for (int64_t row = ends[query]; row < ends[query + 1]; row++) {
#define SPREAD(IS_SUM, AGGREGATE)                                                             \
    spread_row(l, row, to_table, to_relation, to_weight, to_bias, scratch, IS_SUM, AGGREGATE); \
    break
                    switch (2 * l->aggregate + l->is_sum) {
                        case 2 * SUM: SPREAD(0, SUM);
                        case 2 * SUM + 1: SPREAD(1, SUM);
                        case 2 * MEAN: SPREAD(0, MEAN);
                        case 2 * MEAN + 1: SPREAD(1, MEAN);
                        case 2 * MAX: SPREAD(0, MAX);
                        case 2 * MAX + 1: SPREAD(1, MAX);
                        case 2 * PNA: SPREAD(0, PNA);
                        case 2 * PNA + 1: SPREAD(1, PNA);
                    }
                }
            }
        }
    }
    free(scratch);
}

/* What follows aggregation and product ------------------------------------------------------- */

enum { IDENTITY = 0, RELU = 1, TANH = 2 };

/* `out = ACT(norm(p + m · f + l / f)) + old` of each row; see `settle.py`. */
typedef struct {
    int64_t num_rows, num_old, dim, parts, norm, activation;
    float floor;
    const float *product;  /* [rows, parts · D]: p, and with three parts m and l behind it */
    const float *factor;   /* [rows]: f */
    const float *old;      /* [num_old, D] */
    float *normed;         /* [rows, D]: what the activation is applied to; kept for gradients */
    float *root;           /* [rows]: what norm has divided by */
    float *out;            /* [rows, D] */
    const float *gradient; /* of `out` */
    float *to_product;     /* [rows, parts · D] */
} Settle;

INLINE Block activated(Block x, int activation) {
    if (activation == RELU) return (Block)((Mask)x & (x > 0));
    if (activation == TANH) return 2 * sigmoid(2 * x) - 1;
    return x;
}

FOR_EVERY_CPU void settle(int64_t *next, const Settle *s) {
    const int64_t D = s->dim;
    for (;;) {
        int64_t row = __atomic_fetch_add(next, ROWS_AT_ONCE, __ATOMIC_RELAXED);
        if (row >= s->num_rows) return;
        const int64_t last = row + ROWS_AT_ONCE < s->num_rows ? row + ROWS_AT_ONCE : s->num_rows;
        for (; row < last; row++) {
            const float *p = s->product + row * s->parts * D;
            const float f = s->parts == 3 ? s->factor[row] : 1;
            float *normed = s->normed + row * D, *out = s->out + row * D;
            Block squares = {0};
            for (int64_t d = 0; d < D; d += LANES) {
                Block y = load(p + d);
                if (s->parts == 3) y += load(p + D + d) * f + load(p + 2 * D + d) / f;
                squares += y * y;
                store(normed + d, y);
            }
            float scale = 1;
            if (s->norm) {
                s->root[row] = sqrtf(total_of(squares) / (float)D + s->floor);
                scale = 1 / s->root[row];
            }
            for (int64_t d = 0; d < D; d += LANES) {
                const Block z = load(normed + d) * scale;
                store(normed + d, z);
                Block x = activated(z, (int)s->activation);
                if (row < s->num_old) x += load(s->old + row * D + d);
                store(out + d, x);
            }
        }
    }
}

FOR_EVERY_CPU void settle_back(int64_t *next, const Settle *s) {
    const int64_t D = s->dim;
    for (;;) {
        int64_t row = __atomic_fetch_add(next, ROWS_AT_ONCE, __ATOMIC_RELAXED);
        if (row >= s->num_rows) return;
        const int64_t last = row + ROWS_AT_ONCE < s->num_rows ? row + ROWS_AT_ONCE : s->num_rows;
        for (; row < last; row++) {
            const float *g_at = s->gradient + row * D, *normed = s->normed + row * D;
            float *to = s->to_product + row * s->parts * D;
            Block along = {0};
            for (int64_t d = 0; d < D; d += LANES) {
                const Block z = load(normed + d);
                Block g = load(g_at + d);
                if (s->activation == RELU) g = (Block)((Mask)g & (z > 0));
                if (s->activation == TANH) {
                    const Block x = activated(z, TANH);
                    g *= 1 - x * x;
                }
                along += g * z;
                store(to + d, g);
            }
            const float mean = s->norm ? total_of(along) / (float)D : 0;
            const float scale = s->norm ? 1 / s->root[row] : 1;
            const float f = s->parts == 3 ? s->factor[row] : 1;
            for (int64_t d = 0; d < D; d += LANES) {
                const Block g = (load(to + d) - load(normed + d) * mean) * scale;
                store(to + d, g);
                if (s->parts == 3) {
                    store(to + D + d, g * f);
                    store(to + 2 * D + d, g / f);
                }
            }
        }
    }
}
