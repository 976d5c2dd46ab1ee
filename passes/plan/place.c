/* Assigns offsets in the arena from liveness: by decreasing size, each value at the lowest offset that is free over its
 * lifetime (greedy by size: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020).
 *
 * A segment tree over the commands has the ranges of the arena that are taken.  A value is listed at the few tree nodes
 * whose commands make up its lifetime.  Each tree node has the ranges of the values listed at it, and those of the
 * values listed at and below it, which the values that live during all of its commands have to avoid.  So the search
 * for a free offset visits O(log commands) tree nodes.  Ranges that touch are one, and mostly there are few: the values
 * that are alive at a command fill the arena from its beginning.  Of more than MAX_RANGES those with the smallest gap
 * between them become one, so that a step never costs more; the gap is then lost for later values. */
#include "place.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANGES = 32, MAX_LISTS = 4 * 32 + 2 };

struct placed_range { int64_t begin, end; };                  /* bytes in the arena */
/* Ascending ranges that do not touch; `one` has them as long as there is no more than one. */
struct placed_ranges { struct placed_range one, *many; uint32_t n, cap; };
struct placed_values { struct placed_ranges here, all; }; /* per tree node: of the values listed there; and below */

struct placement_tree {
    uint32_t size;             /* commands, rounded up to a power of two */
    struct placed_values *node;        /* the root is node 1, node t's children are 2t and 2t + 1 */
    struct { const struct placed_range *next, *end; } avoid[MAX_LISTS]; /* of a search: what the value has to avoid */
    uint32_t navoid;
    uint64_t steps;            /* tree nodes and ranges visited */
};

static const struct placed_range *ranges_of(const struct placed_ranges *s) { return s->many ? s->many : &s->one; }

static bool ranges_reserve(struct placed_ranges *s)
{
    if (s->n < (s->cap ? s->cap : 1))
        return true;
    uint32_t cap = s->cap ? 2 * s->cap : 4;
    struct placed_range *v = mem_grow(s->many, s->cap * sizeof *v, cap * sizeof *v);
    if (!v)
        return false;
    if (!s->many)
        v[0] = s->one;
    s->many = v;
    s->cap = cap;
    return true;
}

/* Makes one of the two adjacent ranges with the smallest gap. */
static void ranges_close_gap(struct placed_ranges *s)
{
    uint32_t at = 1;
    for (uint32_t i = 2; i < s->n; i++)
        if (s->many[i].begin - s->many[i - 1].end < s->many[at].begin - s->many[at - 1].end)
            at = i;
    s->many[at - 1].end = s->many[at].end;
    memmove(&s->many[at], &s->many[at + 1], (--s->n - at) * sizeof *s->many);
}

static bool ranges_add(struct placed_ranges *s, struct placed_range r)
{
    const struct placed_range *v = ranges_of(s);
    uint32_t lo = 0, hi = s->n;
    while (lo < hi) { /* the first that ends at r or behind its beginning */
        uint32_t mid = lo + (hi - lo) / 2;
        if (v[mid].end < r.begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; hi < s->n && v[hi].begin <= r.end; hi++) { /* up to hi they touch r */
        r.begin = v[hi].begin < r.begin ? v[hi].begin : r.begin;
        r.end = v[hi].end > r.end ? v[hi].end : r.end;
    }
    if (lo == hi && !ranges_reserve(s))
        return false;
    struct placed_range *to = s->many ? s->many : &s->one;
    memmove(&to[lo + 1], &to[hi], (s->n - hi) * sizeof *to);
    to[lo] = r;
    s->n += 1 - (hi - lo);
    if (s->n > MAX_RANGES)
        ranges_close_gap(s);
    return true;
}

/* A tree node with its range of commands. */
struct time_span { uint32_t t, lo, hi; };

static struct time_span span_half(struct time_span s, bool upper)
{
    uint32_t mid = s.lo + (s.hi - s.lo) / 2;
    return upper ? (struct time_span){2 * s.t + 1, mid + 1, s.hi} : (struct time_span){2 * s.t, s.lo, mid};
}

static bool span_overlaps(struct time_span s, const struct placement *p) { return s.lo <= p->last && p->first <= s.hi; }
static bool span_within(struct time_span s, const struct placement *p) { return p->first <= s.lo && s.hi <= p->last; }

static bool tree_insert(struct placement_tree *x, struct time_span s, const struct placement *p)
{
    struct placed_range r = {p->offset, p->offset + p->bytes};
    if (!span_overlaps(s, p))
        return true;
    x->steps++;
    if (!ranges_add(&x->node[s.t].all, r))
        return false;
    return span_within(s, p) ? ranges_add(&x->node[s.t].here, r)
        : tree_insert(x, span_half(s, false), p) && tree_insert(x, span_half(s, true), p);
}

static void tree_avoid(struct placement_tree *x, const struct placed_ranges *r)
{
    if (!r->n)
        return;
    x->avoid[x->navoid].next = ranges_of(r);
    x->avoid[x->navoid++].end = ranges_of(r) + r->n;
}

/* Finds the ranges of values alive at the same time as p, level by level: those of many commands first, by which the
 * offset moves farthest.  A level has at most two tree nodes of which p has some commands and not all. */
static void tree_find(struct placement_tree *x, const struct placement *p)
{
    struct time_span level[4] = {{1, 0, x->size - 1}}, below[4];
    x->navoid = 0;
    for (uint32_t n = 1, more; n; n = more) {
        more = 0;
        for (uint32_t i = 0; i < n; i++) {
            const struct placed_values *t = &x->node[level[i].t];
            if (!t->all.n || !span_overlaps(level[i], p))
                continue;
            x->steps++;
            if (span_within(level[i], p)) {
                tree_avoid(x, &t->all);
                continue;
            }
            tree_avoid(x, &t->here);
            below[more++] = span_half(level[i], false);
            below[more++] = span_half(level[i], true);
        }
        memcpy(level, below, more * sizeof *level);
    }
}

/* The offset moves behind every range that the value would overlap, until there is none. */
static int64_t tree_lowest_offset(struct placement_tree *x, const struct placement *p)
{
    int64_t at = 0, before;
    tree_find(x, p);
    do {
        before = at;
        for (uint32_t i = 0; i < x->navoid; i++) {
            const struct placed_range *r = x->avoid[i].next, *end = x->avoid[i].end;
            for (; r < end && r->begin < at + p->bytes; r++)
                at = r->end > at ? r->end : at;
            x->steps += 1 + (uint64_t)(r - x->avoid[i].next);
            x->avoid[i].next = r;
        }
    } while (at != before);
    return at;
}

static int by_size(const void *a, const void *b)
{
    const struct placement *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
        : (x->node > y->node) - (x->node < y->node);
}

bool place_values(struct placement *v, uint32_t n, uint32_t commands)
{
    struct placement_tree x = {.size = 1};
    while (x.size < commands)
        x.size *= 2;
    if (n)
        qsort(v, n, sizeof *v, by_size);
    bool ok = (x.node = mem_alloc(2 * x.size * sizeof *x.node));
    for (uint32_t i = 0; ok && i < n && v[i].bytes; i++) { /* values without bytes are last and need no offset */
        v[i].offset = tree_lowest_offset(&x, &v[i]);
        ok = tree_insert(&x, (struct time_span){1, 0, x.size - 1}, &v[i]);
    }
    for (uint32_t i = 0; x.node && i < 2 * x.size; i++) {
        mem_free(x.node[i].here.many);
        mem_free(x.node[i].all.many);
    }
    mem_free(x.node);
    atomic_fetch_add_explicit(&pass_steps, x.steps, memory_order_relaxed);
    return ok;
}
