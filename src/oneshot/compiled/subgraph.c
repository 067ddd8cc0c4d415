/* Extraction of subgraphs on a CPU: all edges between the selected entities of each query.
 *
 * An item of work is a query. The first pass counts its edges; the second writes them at the
 * offsets given by the counts of all queries.
 */

#include <stdint.h>
#include <stdlib.h>

#define LONG_ROW 16 /* edges per entity of the query */

/* `entities` [N] of the queries; those of query `i` are `end[i]:end[i + 1]`. The graph's edges into
 * one are `start` on, `degree` of them; their source and relation as int32, as int64 if `wide`. */
typedef struct {
    int64_t num_queries, num_entities, num_relations, wide;
    const int64_t *end, *entities, *start, *degree;
    const void *source, *relation;
    int64_t *count;    /* [n]: edges of each query, identities included */
    int64_t *first;    /* [n]: where those of a query begin */
    int64_t *from, *label, *to, *query; /* [E] */
} Cut;

static inline int64_t at(const Cut *c, const void *column, int64_t place) {
    return c->wide ? ((const int64_t *)column)[place] : ((const int32_t *)column)[place];
}

/* One more than the index of each entity of a query, 0 for all others: a table over all entities,
 * reset between queries. The system provides zeros page by page, when they are accessed. */
static int32_t *new_table(const Cut *c) {
    return calloc((size_t)c->num_entities + 1, sizeof(int32_t));
}

/* The first edge from `begin` on whose source is at least `entity`; rows are sorted by source. */
static int64_t search(const Cut *c, int64_t begin, int64_t end, int64_t entity) {
    int64_t step = 1;
    while (begin + step < end && at(c, c->source, begin + step) < entity) step *= 2;
    int64_t low = begin + step / 2, high = begin + step < end ? begin + step : end;
    if (begin < end && at(c, c->source, begin) >= entity) return begin;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (at(c, c->source, middle) < entity) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Whether the row of a hub is so long that the entities of the query are searched in it. */
static inline int is_long(const Cut *c, int64_t query, int64_t n) {
    return c->degree[n] > LONG_ROW * (c->end[query + 1] - c->end[query]);
}

void count_edges(int64_t *next, const Cut *c) {
    int32_t *table = new_table(c);
    if (!table) return;
    for (;;) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= c->num_queries) break;
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++)
            table[c->entities[n]] = (int32_t)(n - c->end[i]) + 1;
        int64_t count = c->end[i + 1] - c->end[i];
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) {
            const int64_t begin = c->start[n], last = begin + c->degree[n];
            if (is_long(c, i, n)) {
                int64_t e = begin;
                for (int64_t m = c->end[i]; m < c->end[i + 1] && e < last; m++) {
                    e = search(c, e, last, c->entities[m]);
                    for (; e < last && at(c, c->source, e) == c->entities[m]; e++) count++;
                }
                continue;
            }
            for (int64_t e = begin; e < last; e++) count += table[at(c, c->source, e)] > 0;
        }
        c->count[i] = count;
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) table[c->entities[n]] = 0;
    }
    free(table);
}

static inline void write_edge(const Cut *c, int64_t place, int64_t from, int64_t label, int64_t to,
                              int64_t query) {
    c->from[place] = from;
    c->label[place] = label;
    c->to[place] = to;
    c->query[place] = query;
}

void write_edges(int64_t *next, const Cut *c) {
    int32_t *table = new_table(c);
    if (!table) return;
    for (;;) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= c->num_queries) break;
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++)
            table[c->entities[n]] = (int32_t)(n - c->end[i]) + 1;
        int64_t to = c->first[i];
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) {
            const int64_t begin = c->start[n], last = begin + c->degree[n];
            if (is_long(c, i, n)) {
                int64_t e = begin;
                for (int64_t m = c->end[i]; m < c->end[i + 1] && e < last; m++) {
                    e = search(c, e, last, c->entities[m]);
                    for (; e < last && at(c, c->source, e) == c->entities[m]; e++)
                        write_edge(c, to++, m, at(c, c->relation, e), n, i);
                }
            } else {
                for (int64_t e = begin; e < last; e++) {
                    const int32_t local = table[at(c, c->source, e)];
                    if (local > 0)
                        write_edge(c, to++, c->end[i] + local - 1, at(c, c->relation, e), n, i);
                }
            }
            /* The identity edge comes last. */
            write_edge(c, to++, n, 2 * c->num_relations, n, i);
        }
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) table[c->entities[n]] = 0;
    }
    free(table);
}
