/* Extraction of subgraphs on a CPU: all edges between the selected entities of each query.
 *
 * An item of work is a query. The first pass counts its edges; the second writes them at the
 * offsets given by the counts of all queries.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

/* Index of each entity of a query, -1 for all others: a table over all entities, reset between
 * queries. */
static int32_t *new_table(const Cut *c) {
    int32_t *table = malloc((size_t)c->num_entities * sizeof(int32_t));
    if (table) memset(table, -1, (size_t)c->num_entities * sizeof(int32_t));
    return table;
}

void count_edges(int64_t *next, const Cut *c) {
    int32_t *table = new_table(c);
    if (!table) return;
    for (;;) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= c->num_queries) break;
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++)
            table[c->entities[n]] = (int32_t)(n - c->end[i]);
        int64_t count = c->end[i + 1] - c->end[i];
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) {
            const int64_t begin = c->start[n];
            for (int64_t e = begin; e < begin + c->degree[n]; e++)
                count += table[at(c, c->source, e)] >= 0;
        }
        c->count[i] = count;
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) table[c->entities[n]] = -1;
    }
    free(table);
}

void write_edges(int64_t *next, const Cut *c) {
    int32_t *table = new_table(c);
    if (!table) return;
    for (;;) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= c->num_queries) break;
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++)
            table[c->entities[n]] = (int32_t)(n - c->end[i]);
        int64_t to = c->first[i];
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) {
            const int64_t begin = c->start[n];
            for (int64_t e = begin; e < begin + c->degree[n]; e++) {
                const int32_t local = table[at(c, c->source, e)];
                if (local < 0) continue;
                c->from[to] = c->end[i] + local;
                c->label[to] = at(c, c->relation, e);
                c->to[to] = n;
                c->query[to++] = i;
            }
            /* The identity edge comes last. */
            c->from[to] = n;
            c->label[to] = 2 * c->num_relations;
            c->to[to] = n;
            c->query[to++] = i;
        }
        for (int64_t n = c->end[i]; n < c->end[i + 1]; n++) table[c->entities[n]] = -1;
    }
    free(table);
}
