/* Extraction of subgraphs on a CPU: all edges between the selected entities of each query.
 *
 * An item of work is a query. The first kernel finds its edges; the second writes them at the
 * offsets given by the numbers of all queries.
 *
 * Every pair of neighbours is in the rows of both, so that it is enough to find it in one of them:
 * the shorter one. The longer the row of a hub is, the fewer entities are searched in it. Between
 * the entities of a core (`graph/core.py`), rows without all others are read instead.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LONG_ROW 16          /* edges per searched entity, from which on a search is faster */
#define TABLE_ENTITIES 65536 /* of a graph, for which a table over all of them stays in the cache */
#define FILTER_BITS 17

/* `entities` [N] of the queries; those of query `i` are `end[i]:end[i + 1]`. The graph's edges into
 * one are `start` on, `degree` of them; their source and relation as int32, as int64 if `wide`. Those
 * at the places `hidden` are left out. */
typedef struct {
    int64_t num_queries, num_entities, num_relations, wide, num_core;
    const int64_t *end, *entities, *start, *degree;
    const void *source, *relation;
    const int64_t *core;       /* [N]: the row of the core, -1 if there is none */
    const int64_t *core_start; /* [num_core + 1]; see `Core` for all three */
    const int32_t *core_source, *core_relation;
    int64_t *count;    /* [n]: edges of each query, identities included; -1 without memory */
    void **found;      /* [n]: what the first kernel leaves for the second, which frees it */
    int64_t *first;    /* [n]: where the edges of a query begin */
    int64_t *from, *label, *to, *query; /* [E] */
    const int64_t *hidden;                    /* ascending, or NULL */
    const int64_t *hidden_begin, *hidden_end; /* [N]: which of them are in the row of an entity */
} Cut;

/* An edge, by indices of entities within the query. */
typedef struct {
    int32_t target, source, label;
} Edge;

/* The edges of a query, each pair of neighbours once: `edges`, sorted by target, from the rows that
 * were read, and where those of each target end. */
typedef struct {
    Edge *edges;
    int64_t size, room;
    int64_t *last; /* [K] */
} Found;

/* From entities to one more than their index in the query, 0 for all others. */
typedef struct {
    int32_t *table;   /* [V + 1], on small graphs */
    uint64_t *filter; /* a bit per hash: almost all entities of long rows are not in the query */
    uint32_t *ids;    /* a hash table otherwise, with the index of each */
    int32_t *places;
    uint64_t mask, room;
    int32_t *of_core;   /* [num_core]: by row of the core */
    int64_t *order;     /* [K + 1]: from one more than an index; see `rank_rows` */
    int64_t *rank;      /* [K]: number of entities that are searched in a row, if it is long */
    int64_t *sorted;    /* [K] */
    int64_t rank_room;
} Lookup;

static inline int64_t at(const Cut *c, const void *column, int64_t place) {
    return c->wide ? ((const int64_t *)column)[place] : ((const int32_t *)column)[place];
}

static inline uint64_t mixed(uint64_t id) { return id * 0x9E3779B97F4A7C15ull; }

static inline int32_t index_of(const Lookup *l, uint64_t id) {
    if (l->table) return l->table[id];
    const uint64_t hash = mixed(id), bit = hash >> (64 - FILTER_BITS);
    if (!(l->filter[bit >> 6] >> (bit & 63) & 1)) return 0;
    uint64_t place = hash >> 32 & l->mask;
    while (l->places[place] && l->ids[place] != (uint32_t)id) place = (place + 1) & l->mask;
    return l->places[place];
}

static int open_lookup(const Cut *c, Lookup *l) {
    memset(l, 0, sizeof *l);
    l->of_core = calloc((size_t)c->num_core + 1, sizeof(int32_t));
    /* Ids of the hash table have 32 bits. */
    if (c->num_entities <= TABLE_ENTITIES || c->num_entities > UINT32_MAX)
        l->table = calloc((size_t)c->num_entities + 1, sizeof(int32_t));
    else l->filter = calloc(1 << FILTER_BITS >> 6, sizeof(uint64_t));
    return l->of_core && (l->table || l->filter);
}

static void close_lookup(Lookup *l) {
    free(l->table);
    free(l->filter);
    free(l->ids);
    free(l->places);
    free(l->of_core);
    free(l->order);
    free(l->rank);
    free(l->sorted);
}

/* Note the entities of a query; it must have been forgotten before the next one is. */
static int note(const Cut *c, Lookup *l, int64_t query) {
    const int64_t begin = c->end[query], size = c->end[query + 1] - begin;
    if (size > l->rank_room) {
        free(l->order);
        free(l->rank);
        free(l->sorted);
        l->order = malloc((size_t)(size + 1) * sizeof(int64_t));
        l->rank = malloc((size_t)size * sizeof(int64_t));
        l->sorted = malloc((size_t)size * sizeof(int64_t));
        l->rank_room = size;
        if (!l->order || !l->rank || !l->sorted) return l->rank_room = 0;
    }
    uint64_t slots = 1024;
    while (slots < 4 * (uint64_t)size) slots *= 2;
    if (!l->table && slots > l->room) {
        free(l->ids);
        free(l->places);
        l->ids = malloc(slots * sizeof(uint32_t));
        l->places = calloc(slots, sizeof(int32_t));
        l->room = slots;
        if (!l->ids || !l->places) return l->room = 0;
    }
    l->mask = slots - 1;
    for (int64_t n = 0; n < size; n++) {
        const uint64_t id = (uint64_t)c->entities[begin + n];
        if (c->num_core && c->core[begin + n] >= 0) l->of_core[c->core[begin + n]] = (int32_t)n + 1;
        if (l->table) {
            l->table[id] = (int32_t)n + 1;
            continue;
        }
        const uint64_t hash = mixed(id), bit = hash >> (64 - FILTER_BITS);
        l->filter[bit >> 6] |= 1ull << (bit & 63);
        uint64_t place = hash >> 32 & l->mask;
        while (l->places[place]) place = (place + 1) & l->mask;
        l->ids[place] = (uint32_t)id;
        l->places[place] = (int32_t)n + 1;
    }
    return 1;
}

static void forget(const Cut *c, Lookup *l, int64_t query) {
    for (int64_t n = c->end[query]; n < c->end[query + 1]; n++) {
        if (c->num_core && c->core[n] >= 0) l->of_core[c->core[n]] = 0;
        if (l->table) l->table[c->entities[n]] = 0;
    }
    if (l->table) return;
    memset(l->filter, 0, 1 << FILTER_BITS >> 3);
    memset(l->places, 0, (l->mask + 1) * sizeof(int32_t));
}

static inline int in_core(const Cut *c, int64_t n) { return c->num_core && c->core[n] >= 0; }

static int descending(const void *one, const void *other) {
    const int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
    return (left < right) - (left > right);
}

/* `order`: the edges between two entities are found in the row of the lower one. Entities of the
 * core are above all others, then those with more edges. */
static void rank_rows(const Cut *c, Lookup *l, int64_t query) {
    const int64_t begin = c->end[query], size = c->end[query + 1] - begin;
    int64_t in = 0, number = 0;
    l->order[0] = -1; /* of entities that are not in the query */
    for (int64_t n = 0; n < size; n++) {
        const int64_t degree = c->degree[begin + n];
        const int64_t most = degree < INT32_MAX ? degree : INT32_MAX;
        l->order[n + 1] = (int64_t)in_core(c, begin + n) << 62 | most << 31 | n;
        l->rank[n] = size;
        if (in_core(c, begin + n)) in++;
        else if (degree > LONG_ROW) l->sorted[number++] = degree;
    }
    qsort(l->sorted, (size_t)number, sizeof(int64_t), descending);
    for (int64_t n = 0; n < size && number; n++) {
        const int64_t degree = c->degree[begin + n];
        if (in_core(c, begin + n) || degree <= LONG_ROW * (in + 1)) continue;
        /* Entities with as many edges are counted; that is exact enough. */
        int64_t low = 0, high = number;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (l->sorted[middle] >= degree) low = middle + 1;
            else high = middle;
        }
        l->rank[n] = in + low;
    }
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

static int is_hidden(const Cut *c, int64_t n, int64_t place) {
    int64_t low = c->hidden ? c->hidden_begin[n] : 0, high = c->hidden ? c->hidden_end[n] : 0;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (c->hidden[middle] == place) return 1;
        if (c->hidden[middle] < place) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static int make_room(Found *f, int64_t more) {
    if (f->size + more <= f->room) return 1;
    int64_t room = f->room ? f->room : 4096;
    while (room < f->size + more) room *= 2;
    Edge *edges = realloc(f->edges, (size_t)room * sizeof(Edge));
    if (!edges) return 0;
    f->edges = edges;
    f->room = room;
    return 1;
}

/* Find the edges in the row of entity `n`. */
static int read_row(const Cut *c, const Lookup *l, Found *f, int64_t query, int64_t n) {
    const int64_t first = c->end[query], size = c->end[query + 1] - first, target = n - first;
    if (in_core(c, n)) {
        const int64_t begin = c->core_start[c->core[n]], end = c->core_start[c->core[n] + 1];
        if (!make_room(f, end - begin)) return 0;
        for (int64_t e = begin; e < end; e++) {
            const int32_t local = l->of_core[c->core_source[e]];
            /* Written in any case, and kept if it is one: no branch to be predicted. */
            f->edges[f->size] = (Edge){(int32_t)target, local - 1, c->core_relation[e]};
            f->size += local > 0;
        }
        return 1;
    }
    const int64_t begin = c->start[n], last = begin + c->degree[n], own = l->order[target + 1];
    if (c->degree[n] > LONG_ROW * l->rank[target]) {
        int64_t e = begin;
        for (int64_t m = 0; m < size && e < last; m++) {
            if (l->order[m + 1] < own) continue; /* equal for self-loops */
            const int64_t entity = c->entities[first + m];
            for (e = search(c, e, last, entity); e < last; e++) {
                if (at(c, c->source, e) != entity) break;
                if (is_hidden(c, n, e)) continue;
                if (!make_room(f, 1)) return 0;
                f->edges[f->size++] =
                    (Edge){(int32_t)target, (int32_t)m, (int32_t)at(c, c->relation, e)};
            }
        }
        return 1;
    }
    if (!make_room(f, c->degree[n])) return 0;
    int64_t skipped = c->hidden ? c->hidden_begin[n] : 0;
    const int64_t most = c->hidden ? c->hidden_end[n] : 0;
    /* From one hidden place to the next. */
    for (int64_t e = begin; e < last; e++) {
        const int64_t stop = skipped < most ? c->hidden[skipped++] : last;
        for (; e < stop; e++) {
            const int32_t local = index_of(l, (uint64_t)at(c, c->source, e));
            if (!l->table && !local) continue; /* most, on a large graph */
            f->edges[f->size] =
                (Edge){(int32_t)target, local - 1, (int32_t)at(c, c->relation, e)};
            f->size += l->order[local] >= own;
        }
    }
    return 1;
}

static void release(Found *f) {
    if (!f) return;
    free(f->edges);
    free(f->last);
    free(f);
}

static Found *find(const Cut *c, Lookup *l, int64_t query) {
    const int64_t first = c->end[query], size = c->end[query + 1] - first;
    Found *f = calloc(1, sizeof(Found));
    if (!f) return NULL;
    f->last = malloc((size_t)(size + 1) * sizeof(int64_t));
    if (!f->last || !note(c, l, query)) {
        release(f);
        return NULL;
    }
    rank_rows(c, l, query);
    const size_t width = c->wide ? 8 : 4;
    int is_whole = 1;
    for (int64_t n = 0; n < size && is_whole; n++) {
        if (n + 4 < size)
            __builtin_prefetch((const char *)c->source + width * (size_t)c->start[first + n + 4]);
        is_whole = read_row(c, l, f, query, first + n);
        f->last[n] = f->size;
    }
    forget(c, l, query);
    if (is_whole) return f;
    release(f);
    return NULL;
}

void find_edges(int64_t *next, const Cut *c) {
    Lookup lookup;
    const int is_open = open_lookup(c, &lookup);
    for (;;) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= c->num_queries) break;
        Found *f = is_open ? find(c, &lookup, i) : NULL;
        c->found[i] = f;
        c->count[i] = -1;
        if (!f) continue;
        int64_t loops = 0;
        for (int64_t e = 0; e < f->size; e++) loops += f->edges[e].source == f->edges[e].target;
        /* Each edge has an inverse, but that of a self-loop is in the same row. */
        c->count[i] = 2 * f->size - loops + c->end[i + 1] - c->end[i];
    }
    close_lookup(&lookup);
}

static inline void write_edge(const Cut *c, int64_t place, int64_t from, int64_t label, int64_t to,
                              int64_t query) {
    c->from[place] = from;
    c->label[place] = label;
    c->to[place] = to;
    c->query[place] = query;
}

/* The inverse edges: sources and labels by target, `last` [K] where those of each one end. */
static int invert(const Cut *c, const Found *f, int64_t size, Edge *inverse, int64_t *last) {
    memset(last, 0, (size_t)size * sizeof(int64_t));
    for (int64_t e = 0; e < f->size; e++)
        last[f->edges[e].source] += f->edges[e].source != f->edges[e].target;
    int64_t sum = 0;
    for (int64_t n = 0; n < size; n++) {
        const int64_t number = last[n];
        last[n] = sum;
        sum += number;
    }
    const int32_t relations = (int32_t)c->num_relations;
    int64_t e = 0;
    while (e < f->size) {
        const Edge one = f->edges[e];
        int64_t end = e + 1;
        while (end < f->size && f->edges[end].target == one.target &&
               f->edges[end].source == one.source)
            end++;
        if (one.source != one.target) {
            /* By label: those of inverse relations become the lower ones. */
            int64_t place = last[one.source];
            for (int upper = 1; upper >= 0; upper--)
                for (int64_t other = e; other < end; other++) {
                    const int32_t label = f->edges[other].label;
                    if ((label >= relations) != upper) continue;
                    inverse[place++] = (Edge){one.source, one.target,
                                              upper ? label - relations : label + relations};
                }
            last[one.source] = place;
        }
        e = end;
    }
    return 1;
}

static int write_query(const Cut *c, const Found *f, int64_t query) {
    const int64_t first = c->end[query], size = c->end[query + 1] - first;
    Edge *inverse = malloc((size_t)(f->size + 1) * sizeof(Edge));
    int64_t *last = malloc((size_t)(size + 1) * sizeof(int64_t));
    if (!inverse || !last) {
        free(inverse);
        free(last);
        return 0;
    }
    invert(c, f, size, inverse, last);
    int64_t to = c->first[query], e = 0, i = 0;
    for (int64_t n = 0; n < size; n++) {
        /* Both are sorted by source, and no source is in both. */
        while (e < f->last[n] || i < last[n]) {
            const int is_own =
                i == last[n] || (e < f->last[n] && f->edges[e].source < inverse[i].source);
            const Edge *edge = is_own ? f->edges + e++ : inverse + i++;
            write_edge(c, to++, first + edge->source, edge->label, first + n, query);
        }
        /* The identity edge comes last. */
        write_edge(c, to++, first + n, 2 * c->num_relations, first + n, query);
    }
    free(inverse);
    free(last);
    return 1;
}

/* Write the edges of each query; those without memory get a count of -1. */
void write_edges(int64_t *next, const Cut *c) {
    for (;;) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= c->num_queries) break;
        if (!c->found[i] || !write_query(c, c->found[i], i)) c->count[i] = -1;
    }
}

void release_edges(int64_t *next, const Cut *c) {
    for (;;) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= c->num_queries) break;
        release(c->found[i]);
        c->found[i] = NULL;
    }
}
