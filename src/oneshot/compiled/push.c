/* Local PPR on a CPU: forward push with a degree tail, and the entities of highest score.
 *
 * An item of work is a query. Its state is a hash table of the entities that probability has
 * reached, so that time and memory depend on these and not on the graph. See `_push.py` for the
 * method; `plain_push` there computes the same.
 *
 * With a hub index (`_hubs.py`), a query has two phases. First, the residue that arrives at hubs is
 * parked there. The PPR of all hubs follows from it, and becomes their residue: each hub is then
 * pushed at most once, with all that will ever leave it, and nothing returns to hubs.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#define EMPTY UINT32_MAX
#define WAITING 0x80000000u /* of `degree`: the entity is in the next frontier */
#define HUB 0x40000000u     /* of `degree`: the entity is one of the hubs */
#define AHEAD 12            /* entries of a row that are fetched in advance */
#define ROWS 6              /* rows that are fetched in advance */
#define FIRST_SIZE (1 << 14)
#define PAGE 4096
#define HUGE_PAGE (1 << 21)

/* `start` [V + 1] and `index`: neighbours of each entity, int64 if wide; the rows have gaps if
 * `counts` [V] gives their lengths. `heads`: entities by descending degree, those of a query from
 * `head_begin` to `head_end`. `most`: columns of `found` and `score`. Hubs have at least `hub_degree`
 * neighbours, if `num_hubs` is not 0; others may have as many if `hubs_are_listed`. Selections of
 * more than `large_count` entities have `large_precision` if that is lower. `hidden`: places in
 * `index` that are skipped, ascending; only the rows of entities with a bit in `touched_bits` have
 * any, and such rows have no gaps between them. */
typedef struct {
    int64_t num_queries, wide_starts, wide_ids, scattered, most, num_probes, max_edges;
    int64_t num_hubs, hub_degree, hubs_are_listed, large_count;
    double restart, first_threshold, precision, large_precision, stable, tie, backstop;
    double negligible, park_threshold, least_parked;
    const void *start, *index;
    const int64_t *counts, *entity, *count, *head_begin, *head_end, *heads;
    const double *volume; /* [n]: sum of the degrees in the component of the entity */
    const int64_t *probe; /* [n, num_probes]: entities whose scores are wanted, -1 for none */
    int64_t *found;       /* [n, most] */
    float *score;         /* [n, most] */
    float *probe_score;   /* [n, num_probes] */
    int64_t *num_found, *edges, *touched;
    double *threshold; /* [n]: the last one */
    int64_t *failed;   /* number of queries without memory */
    const int64_t *hub;         /* [num_hubs]: ids, ascending */
    const float *between;       /* [num_hubs, num_hubs]: PPR of one hub from another */
    const float *arrival;       /* [m, num_hubs]: PPR of hubs from walks that are elsewhere */
    const int64_t *arrival_row; /* [n]: row of `arrival` */
    const double *rest_volume;  /* [n]: sum of the degrees in the component, without hubs */
    const int64_t *hidden;      /* [num_hidden], or NULL */
    const uint8_t *touched_bits; /* a bit per entity, from the lowest bit of the first byte on */
    int64_t num_hidden;
} Push;

/* What happens to the residue of hubs. */
enum { PUSHED_AS_OTHERS, PARKED, CLOSED };

typedef struct {
    uint32_t id, degree;
    float residue, reserve;
} Slot;

typedef struct {
    uint32_t slot, degree;
    float residue;
} Pushed;

typedef struct {
    Slot *slots;
    uint64_t mask;
    int64_t used, used_before; /* by the current query, by that before it */
    double left; /* sum of the residues */
    Pushed *frontier, *next;
    int64_t frontier_room, next_room;
    float *scores, *copy;
    uint32_t *ids;
    int64_t room;       /* of `scores`, `copy` and `ids` */
    uint32_t *selected; /* [most]: ids of the last selection */
    int64_t num_selected;
    int hubs;       /* what happens to their residue */
    float *hub_ppr; /* [num_hubs] */
} State;

static inline int64_t start_of(const Push *p, int64_t entity) {
    return p->wide_starts ? ((const int64_t *)p->start)[entity]
                          : ((const int32_t *)p->start)[entity];
}

static inline int has_hidden(const Push *p, int64_t entity) {
    return p->hidden && p->touched_bits[entity >> 3] >> (entity & 7) & 1;
}

/* Number of hidden places below one. */
static int64_t hidden_before(const Push *p, int64_t place) {
    int64_t low = 0, high = p->num_hidden;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (p->hidden[middle] < place) low = middle + 1;
        else high = middle;
    }
    return low;
}

static inline int64_t degree_of(const Push *p, int64_t entity) {
    if (p->counts) return p->counts[entity];
    const int64_t begin = start_of(p, entity), end = start_of(p, entity + 1);
    if (!has_hidden(p, entity)) return end - begin;
    return end - begin - (hidden_before(p, end) - hidden_before(p, begin));
}

static inline uint32_t neighbour(const Push *p, int64_t place) {
    return p->wide_ids ? (uint32_t)((const int64_t *)p->index)[place]
                       : (uint32_t)((const int32_t *)p->index)[place];
}

static inline uint64_t hash(uint32_t id) {
    uint64_t mixed = (uint64_t)id * 0x9E3779B97F4A7C15ull;
    return mixed >> 29;
}

static inline uint64_t find(const State *s, uint32_t id) {
    uint64_t at = hash(id) & s->mask;
    while (s->slots[at].id != EMPTY && s->slots[at].id != id) at = (at + 1) & s->mask;
    return at;
}

static int make_room(void **memory, int64_t *room, int64_t needed, size_t size) {
    if (needed <= *room) return 1;
    int64_t wider = *room ? *room : 1024;
    while (wider < needed) wider *= 2;
    void *more = realloc(*memory, (size_t)wider * size);
    if (!more) return 0;
    *memory = more;
    *room = wider;
    return 1;
}

/* Memory for a table. Large ones are accessed everywhere, and with small pages nearly each access
 * would also miss the cache of addresses. */
static Slot *new_slots(uint64_t size) {
    const size_t bytes = size * sizeof(Slot);
#ifdef __linux__
    if (bytes >= 2 * HUGE_PAGE) {
        void *memory = NULL;
        if (posix_memalign(&memory, HUGE_PAGE, bytes)) return NULL;
        madvise(memory, bytes, MADV_HUGEPAGE);
        return memory;
    }
#endif
    return malloc(bytes);
}

/* A table that stays at most half full with `more` further entities. */
static int reserve(State *s, int64_t more) {
    const int64_t needed = 2 * (s->used + more);
    if (s->slots && needed <= (int64_t)s->mask) return 1;
    uint64_t size = s->slots ? s->mask + 1 : FIRST_SIZE;
    while ((int64_t)size <= needed) size *= 2;
    Slot *old = s->slots, *slots = new_slots(size);
    if (!slots) return 0;
    memset(slots, 0xff, size * sizeof(Slot)); /* EMPTY */
    const uint64_t last = old ? s->mask + 1 : 0;
    s->slots = slots;
    s->mask = size - 1;
    for (uint64_t at = 0; at < last; at++)
        if (old[at].id != EMPTY) slots[find(s, old[at].id)] = old[at];
    free(old);
    return 1;
}

/* Forget the last query. The table is cleared and scanned as a whole: if one of the last two queries
 * needed far less of it, it is replaced, so that the queries after a large one stay cheap. */
static void clear(State *s) {
    const int64_t usual = s->used < s->used_before ? s->used : s->used_before;
    uint64_t size = FIRST_SIZE;
    while ((int64_t)size <= 4 * usual) size *= 2;
    if (s->slots && size <= s->mask / 2) {
        free(s->slots);
        s->slots = NULL;
        s->mask = 0;
    }
    s->used_before = s->used;
    s->used = s->num_selected = 0;
    if (s->slots) memset(s->slots, 0xff, (s->mask + 1) * sizeof(Slot));
    s->hubs = PUSHED_AS_OTHERS;
}

static inline int is_hub(uint32_t degree) { return (degree & HUB) != 0; }

/* The `degree` of a slot: marked if the entity is a hub. */
static uint32_t marked_degree(const Push *p, uint32_t id) {
    const uint32_t degree = (uint32_t)degree_of(p, id);
    if (!p->num_hubs || degree < (uint32_t)p->hub_degree) return degree;
    int64_t low = 0, high = p->hubs_are_listed ? p->num_hubs : 0;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (p->hub[middle] < id) low = middle + 1;
        else high = middle;
    }
    const int is_listed = !p->hubs_are_listed || (low < p->num_hubs && p->hub[low] == id);
    return is_listed ? degree | HUB : degree;
}

static inline Slot *touch(const Push *p, State *s, uint32_t id) {
    Slot *slot = s->slots + find(s, id);
    if (slot->id == EMPTY) {
        *slot = (Slot){id, marked_degree(p, id), 0, 0};
        s->used++;
    }
    return slot;
}

static inline float score_of(const Push *p, const State *s, const Slot *slot, double tail) {
    /* The PPR of hubs is complete. */
    if (s->hubs == CLOSED && is_hub(slot->degree)) tail = 0;
    return (float)(slot->reserve + p->restart * slot->residue + tail * (slot->degree & ~HUB));
}

/* Fetch into the cache what `touch` reads. */
static inline void fetch(const Push *p, const State *s, uint32_t id) {
    __builtin_prefetch(s->slots + (hash(id) & s->mask));
    if (p->counts) __builtin_prefetch(p->counts + id);
    else __builtin_prefetch((const char *)p->start + (size_t)id * (p->wide_starts ? 8 : 4));
}

/* All entities whose residue is at least `threshold` times their degree. */
static int64_t gather(const Push *p, State *s, double threshold) {
    int64_t found = 0;
    for (uint64_t at = 0; at <= s->mask; at++) {
        const Slot *slot = s->slots + at;
        const uint32_t degree = slot->degree & ~HUB;
        if (slot->id == EMPTY || !(slot->residue >= (float)(threshold * degree))) continue;
        if (slot->residue <= 0 || (s->hubs == PARKED && is_hub(slot->degree))) continue;
        if (!make_room((void **)&s->frontier, &s->frontier_room, found + 1, sizeof(Pushed)))
            return -1;
        s->frontier[found++] = (Pushed){(uint32_t)at, degree, slot->residue};
    }
    return found;
}

/* Fetch, for the row `n` of the frontier, what the rows after it need: most rows are short, and
 * each step from an entity to its neighbours' slots would wait for memory. */
static inline void fetch_rows(const Push *p, const State *s, int64_t size, int64_t n) {
    const size_t width = p->wide_ids ? 8 : 4;
    if (n + 4 * ROWS < size)
        __builtin_prefetch((const char *)p->start +
                           (size_t)s->frontier[n + 4 * ROWS].slot * (p->wide_starts ? 8 : 4));
    if (n + 2 * ROWS < size)
        __builtin_prefetch((const char *)p->index +
                           (size_t)start_of(p, s->frontier[n + 2 * ROWS].slot) * width);
    if (n + ROWS < size) {
        const int64_t begin = start_of(p, s->frontier[n + ROWS].slot);
        const int64_t degree = s->frontier[n + ROWS].degree;
        for (int64_t e = begin; e < begin + (degree < AHEAD ? degree : AHEAD); e++)
            fetch(p, s, neighbour(p, e));
    }
}

/* Push all of the frontier at once: each keeps a share `restart`, its neighbours get the rest.
 * → those that are above the threshold afterwards, as the new frontier. */
static int64_t push_round(const Push *p, State *s, int64_t size, double threshold) {
    /* Indices of slots change if the table grows. */
    for (int64_t n = 0; n < size; n++) {
        Slot *slot = s->slots + s->frontier[n].slot;
        slot->residue = 0;
        slot->reserve += (float)(p->restart * s->frontier[n].residue);
        s->left -= p->restart * s->frontier[n].residue;
        s->frontier[n].slot = slot->id;
    }
#ifdef __linux__
    if (p->scattered) {
        /* Otherwise each page would wait for the disk. */
        const size_t width = p->wide_ids ? 8 : 4;
        for (int64_t n = 0; n < size; n++) {
            const uintptr_t row = (uintptr_t)p->index + width * (size_t)start_of(p, s->frontier[n].slot);
            const uintptr_t first = row & ~(uintptr_t)(PAGE - 1);
            madvise((void *)first, row - first + width * s->frontier[n].degree, MADV_WILLNEED);
        }
    }
#endif
    int64_t found = 0;
    for (int64_t n = 0; n < size; n++) {
        fetch_rows(p, s, size, n);
        const int64_t degree = s->frontier[n].degree;
        const int64_t entity = s->frontier[n].slot, begin = start_of(p, entity);
        const int is_cut = has_hidden(p, entity);
        const int64_t end = is_cut ? start_of(p, entity + 1) : begin + degree;
        int64_t skipped = is_cut ? hidden_before(p, begin) : 0;
        const float share = (float)((1 - p->restart) * s->frontier[n].residue / (double)degree);
        if (!reserve(s, degree)) return -1;
        /* From one hidden place to the next. */
        for (int64_t first = begin; first < end;) {
            int64_t last = end;
            if (is_cut && skipped < p->num_hidden && p->hidden[skipped] < end)
                last = p->hidden[skipped++];
            for (int64_t e = first; e < last; e++) {
                if (e + AHEAD < last) fetch(p, s, neighbour(p, e + AHEAD));
                Slot *slot = touch(p, s, neighbour(p, e));
                const int at_hub = s->hubs != PUSHED_AS_OTHERS && is_hub(slot->degree);
                if (at_hub && s->hubs == CLOSED) continue;
                slot->residue += share;
                if (slot->degree & WAITING || at_hub ||
                    !(slot->residue >= (float)(threshold * slot->degree)))
                    continue;
                if (!make_room((void **)&s->next, &s->next_room, found + 1, sizeof(Pushed)))
                    return -1;
                s->next[found++].slot = slot->id;
                slot->degree |= WAITING;
            }
            first = last + 1;
        }
    }
    for (int64_t n = 0; n < found; n++) {
        const uint64_t at = find(s, s->next[n].slot);
        Slot *slot = s->slots + at;
        slot->degree &= ~WAITING;
        s->next[n] = (Pushed){(uint32_t)at, slot->degree, slot->residue};
    }
    Pushed *other = s->frontier;
    const int64_t room = s->frontier_room;
    s->frontier = s->next;
    s->frontier_room = s->next_room;
    s->next = other;
    s->next_room = room;
    return found;
}

/* The `count`-th largest of `values` [size], which are reordered. */
static float largest_but(float *values, int64_t size, int64_t count) {
    int64_t low = 0, high = size - 1;
    const int64_t wanted = count - 1;
    while (low < high) {
        const float middle = values[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] > middle) i++;
            while (values[j] < middle) j--;
            if (i <= j) {
                const float kept = values[i];
                values[i++] = values[j];
                values[j--] = kept;
            }
        }
        if (wanted <= j) high = j;
        else if (wanted >= i) low = i;
        else break;
    }
    return values[wanted];
}

/* The score of any entity of the component. */
static float score_at(const Push *p, const State *s, int64_t entity, double tail) {
    const Slot *slot = s->slots + find(s, (uint32_t)entity);
    return slot->id == EMPTY ? (float)(tail * (double)degree_of(p, entity))
                             : score_of(p, s, slot, tail);
}

/* A score that the `count`-th highest one is not below: as many entities were selected before, and
 * this is the lowest of their scores now. */
static float lower_bound(const Push *p, const State *s, int64_t query, int64_t count, double tail) {
    if (s->num_selected < count) return -INFINITY;
    float bound = INFINITY;
    for (int64_t n = 0; n < s->num_selected; n++) {
        if (s->selected[n] == (uint32_t)p->entity[query]) continue;
        const float score = score_at(p, s, s->selected[n], tail);
        bound = score < bound ? score : bound;
    }
    return bound;
}

/* Scores of all entities that can be among the `count` highest: the touched ones, and the first
 * of the list by degree that are not touched. → their number */
static int64_t candidates(const Push *p, State *s, int64_t query, int64_t count, double tail) {
    const float bound = lower_bound(p, s, query, count, tail);
    if (s->room < s->used + count) {
        int64_t room = s->room, same = s->room, again = s->room;
        if (!make_room((void **)&s->scores, &room, s->used + count, sizeof(float)) ||
            !make_room((void **)&s->copy, &same, s->used + count, sizeof(float)) ||
            !make_room((void **)&s->ids, &again, s->used + count, sizeof(uint32_t)))
            return -1;
        s->room = room;
    }
    int64_t size = 0;
    for (uint64_t at = 0; at <= s->mask; at++) {
        if (s->slots[at].id == EMPTY) continue;
        /* The entity of the query is always selected. */
        const float score = s->slots[at].id == (uint32_t)p->entity[query]
                                ? INFINITY
                                : score_of(p, s, s->slots + at, tail);
        if (score < bound) continue;
        s->ids[size] = s->slots[at].id;
        s->scores[size++] = score;
    }
    int64_t more = 0;
    for (int64_t n = p->head_begin[query]; n < p->head_end[query] && more < count; n++) {
        const uint32_t id = (uint32_t)p->heads[n];
        const float score = (float)(tail * (double)degree_of(p, id));
        if (score < bound) break; /* those after it have no more neighbours */
        if (s->slots[find(s, id)].id != EMPTY) continue;
        s->ids[size] = id;
        s->scores[size++] = score;
        more++;
    }
    return size;
}

static int ascending(const void *one, const void *other) {
    const uint32_t left = *(const uint32_t *)one, right = *(const uint32_t *)other;
    return (left > right) - (left < right);
}

/* Select the `count` highest scores, ties by lower id, into `found` and `score`. */
static int64_t select_highest(const Push *p, State *s, int64_t query, int64_t size, int64_t count,
                              float least, double tail) {
    int64_t *found = p->found + query * p->most;
    float *score = p->score + query * p->most;
    int64_t chosen = 0, tied = 0;
    uint32_t *ties = (uint32_t *)s->copy; /* as many as there are scores */
    for (int64_t n = 0; n < size; n++) {
        const int is_own = s->ids[n] == (uint32_t)p->entity[query];
        if (is_own || s->scores[n] > least) {
            found[chosen] = s->ids[n];
            score[chosen++] = is_own ? score_at(p, s, s->ids[n], tail) : s->scores[n];
        } else if (s->scores[n] == least) {
            ties[tied++] = s->ids[n];
        }
    }
    if (chosen + tied > count) qsort(ties, (size_t)tied, sizeof(uint32_t), ascending);
    for (int64_t n = 0; n < tied && chosen < count; n++) {
        found[chosen] = ties[n];
        score[chosen++] = least;
    }
    return chosen;
}

/* Push all entities above the threshold, until there are none. → edges that were read, after `edges`
 * of them; -1 without memory. `is_over`: set if the limit of `most_edges` ended it. */
static int64_t push_all(const Push *p, State *s, double threshold, int64_t most_edges,
                        int64_t edges, int *is_over) {
    int64_t waiting = gather(p, s, threshold);
    while (waiting > 0) {
        int64_t work = 0;
        for (int64_t n = 0; n < waiting; n++) work += s->frontier[n].degree;
        if (edges && edges + work > most_edges) {
            *is_over = 1;
            break;
        }
        edges += work;
        waiting = push_round(p, s, waiting, threshold);
    }
    return waiting < 0 ? -1 : edges;
}

/* From parked residue to the PPR of all hubs, which becomes their residue. */
static int close_hubs(const Push *p, State *s, int64_t query) {
    const int64_t size = p->num_hubs;
    /* What is not at hubs, or too little at one of them to be worth a row of the matrix. */
    double elsewhere = s->left;
    if (!reserve(s, size)) return 0;
    memset(s->hub_ppr, 0, (size_t)size * sizeof(float));
    for (int64_t n = 0; n < size; n++) {
        const Slot *slot = s->slots + find(s, (uint32_t)p->hub[n]);
        if (slot->id == EMPTY || !(slot->residue >= p->least_parked)) continue;
        const float share = slot->residue;
        const float *row = p->between + n * size;
        elsewhere -= share;
        for (int64_t m = 0; m < size; m++) s->hub_ppr[m] += share * row[m];
    }
    const float rest = (float)(elsewhere > 0 ? elsewhere : 0);
    const float *row = p->arrival + p->arrival_row[query] * size;
    for (int64_t n = 0; n < size; n++) {
        const float ppr = s->hub_ppr[n] + rest * row[n];
        if (ppr > 0) touch(p, s, (uint32_t)p->hub[n])->residue = (float)(ppr / p->restart);
    }
    s->hubs = CLOSED;
    return 1;
}

/* The probability that no entity has yet, with closed hubs. */
static double unknown(const Push *p, const State *s) {
    double known = 0;
    for (uint64_t at = 0; at <= s->mask; at++)
        if (s->slots[at].id != EMPTY) known += score_of(p, s, s->slots + at, 0);
    return known < 1 ? 1 - known : 0;
}

static int push_query(const Push *p, State *s, int64_t query) {
    const int64_t entity = p->entity[query];
    clear(s);
    if (!reserve(s, 1)) return 0;
    Slot *first = touch(p, s, (uint32_t)entity);
    first->residue = 1;
    p->edges[query] = 0;
    p->touched[query] = 1;
    p->threshold[query] = 0;
    const int64_t count = p->count[query];
    if (!first->degree) { /* a walk stays */
        p->found[query * p->most] = entity;
        p->score[query * p->most] = 1;
        p->num_found[query] = 1;
        for (int64_t n = 0; n < p->num_probes; n++)
            p->probe_score[query * p->num_probes + n] =
                p->probe[query * p->num_probes + n] == entity ? 1 : 0;
        return 1;
    }
    double threshold = p->first_threshold, tail = 0;
    int64_t size = 0, edges = 0, most_edges = p->max_edges;
    float least = 0;
    int done = 0, is_precise = 0;
    double volume = p->volume[query], precision = p->precision;
    if (count > p->large_count && p->large_precision < precision) precision = p->large_precision;
    s->left = 1;
    if (p->num_hubs) {
        s->hubs = PARKED;
        int is_over = 0;
        for (double next = p->first_threshold; !is_over; next = next / 4) {
            const double last = next > p->park_threshold ? next : p->park_threshold;
            edges = push_all(p, s, last, p->max_edges, edges, &is_over);
            if (edges < 0) return 0;
            if (next <= p->park_threshold) break;
        }
        if (!close_hubs(p, s, query)) return 0;
        volume = p->rest_volume[query];
    }
    while (!done) {
        edges = push_all(p, s, threshold, most_edges, edges, &done);
        if (edges < 0) return 0;
        if (s->hubs == CLOSED) s->left = unknown(p, s);
        /* If the limit ended the rounds, only twice the threshold holds for all residues. */
        p->threshold[query] = done ? 2 * threshold : threshold;
        /* The residues are below the threshold times the degrees; their sum is also known, up to
         * rounding. */
        done = done || (s->hubs != CLOSED && s->left <= p->negligible) ||
               threshold * p->volume[query] <= p->negligible;
        /* A selection costs about as much as its threshold; only the last two are needed. */
        if (done || threshold <= 4 * precision * least || !s->num_selected) {
            /* With closed hubs, `left` is what the entities lack, not a residue. */
            const double share = s->hubs == CLOSED ? 1 : 1 - p->restart;
            tail = volume > 0 ? share * (s->left > 0 ? s->left : 0) / volume : 0;
            size = candidates(p, s, query, count, tail);
            if (size < 0) return 0;
            const int64_t last = count < size ? count : size;
            memcpy(s->copy, s->scores, (size_t)size * sizeof(float));
            least = largest_but(s->copy, size, last);
            if (!done && s->num_selected && threshold <= precision * least) {
                /* Which of nearly equal scores are selected changes for long. */
                const float kept = (float)(least * (1 - p->tie));
                int64_t same = 0;
                for (int64_t n = 0; n < s->num_selected; n++)
                    same += s->selected[n] == (uint32_t)entity ||
                            score_at(p, s, s->selected[n], tail) >= kept;
                done = (double)same >= p->stable * (double)last;
                if (!is_precise && p->backstop * (double)edges < (double)p->max_edges)
                    most_edges = (int64_t)(p->backstop * (double)edges);
                is_precise = 1;
            }
            s->num_selected = 0;
            for (int64_t n = 0; !done && n < size && s->num_selected < last; n++)
                if (s->scores[n] >= least) s->selected[s->num_selected++] = s->ids[n];
        }
        threshold /= 2;
    }
    p->edges[query] = edges;
    p->touched[query] = s->used;
    p->num_found[query] =
        select_highest(p, s, query, size, count < size ? count : size, least, tail);
    for (int64_t n = 0; n < p->num_probes; n++) {
        const int64_t wanted = p->probe[query * p->num_probes + n];
        p->probe_score[query * p->num_probes + n] = wanted < 0 ? 0 : score_at(p, s, wanted, tail);
    }
    return 1;
}

static void release(State *s) {
    free(s->slots);
    free(s->frontier);
    free(s->next);
    free(s->scores);
    free(s->copy);
    free(s->ids);
    free(s->selected);
    free(s->hub_ppr);
}

void push_queries(int64_t *next, const Push *p) {
    State s = {0};
    s.selected = malloc((size_t)p->most * sizeof(uint32_t));
    s.hub_ppr = malloc((size_t)(p->num_hubs ? p->num_hubs : 1) * sizeof(float));
    for (;;) {
        const int64_t query = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (query >= p->num_queries) break;
        if (!s.selected || !s.hub_ppr || !push_query(p, &s, query))
            __atomic_fetch_add(p->failed, 1, __ATOMIC_RELAXED);
    }
    release(&s);
}

/* A number of 64 random bits (splitmix64). */
static inline uint64_t random_bits(uint64_t *state) {
    uint64_t bits = (*state += 0x9e3779b97f4a7c15ull);
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    return bits ^ (bits >> 31);
}

/* Where walks from one hub next meet a hub. */
typedef struct {
    const Push *push; /* its entities are the hubs; of its results, only `failed` is written */
    double weight;    /* probability that one random walk carries */
    int64_t seed;
    float *next_hub;  /* [num_hubs, num_hubs] */
} Meetings;

static int meet_hubs(const Meetings *m, State *s, int64_t number) {
    const Push *p = m->push;
    clear(s);
    if (!reserve(s, 1)) return 0;
    if (!make_room((void **)&s->frontier, &s->frontier_room, 1, sizeof(Pushed))) return 0;
    const Slot *own = touch(p, s, (uint32_t)p->hub[number]);
    s->frontier[0] = (Pushed){(uint32_t)(own - s->slots), own->degree & ~HUB, 1};
    s->hubs = PARKED;
    int is_over = 0;
    if (push_round(p, s, 1, p->park_threshold) < 0) return 0;
    if (push_all(p, s, p->park_threshold, p->max_edges, 0, &is_over) < 0) return 0;
    /* Residue that is not at a hub: random walks show where it goes, at equal distances of the
     * cumulative residue. */
    int64_t size = 0;
    if (!make_room((void **)&s->frontier, &s->frontier_room, s->used, sizeof(Pushed))) return 0;
    for (uint64_t at = 0; at <= s->mask; at++)
        if (s->slots[at].id != EMPTY && s->slots[at].residue > 0 && !is_hub(s->slots[at].degree))
            s->frontier[size++] = (Pushed){s->slots[at].id, 0, s->slots[at].residue};
    uint64_t state = (uint64_t)m->seed;
    state = random_bits(&state) ^ (uint64_t)p->hub[number];
    double sum = 0, next = m->weight * (double)(random_bits(&state) >> 11) * 0x1p-53;
    for (int64_t n = 0; n < size; n++) {
        for (sum += s->frontier[n].residue; next < sum; next += m->weight) {
            double carried = m->weight;
            int64_t at = s->frontier[n].slot, degree = degree_of(p, at);
            while (carried > 0.01 * m->weight) {
                const uint64_t drawn = (random_bits(&state) >> 32) * (uint64_t)degree >> 32;
                at = neighbour(p, start_of(p, at) + (int64_t)drawn);
                degree = degree_of(p, at);
                carried *= 1 - p->restart;
                if (degree < p->hub_degree) continue; /* an index is built with all of them */
                if (!reserve(s, 1)) return 0;
                touch(p, s, (uint32_t)at)->residue += (float)carried;
                break;
            }
        }
    }
    float *row = m->next_hub + number * p->num_hubs;
    for (int64_t n = 0; n < p->num_hubs; n++) {
        const Slot *slot = s->slots + find(s, (uint32_t)p->hub[n]);
        row[n] = slot->id == EMPTY ? 0 : slot->residue;
    }
    return 1;
}

void push_hubs(int64_t *next, const Meetings *m) {
    State s = {0};
    for (;;) {
        const int64_t number = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (number >= m->push->num_hubs) break;
        if (!meet_hubs(m, &s, number)) __atomic_fetch_add(m->push->failed, 1, __ATOMIC_RELAXED);
    }
    release(&s);
}

/* An earlier build knows no hidden places. */
void knows_hidden(void) {}
