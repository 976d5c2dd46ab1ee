/* Assigns offsets in the arena from liveness: by decreasing size, each value at the lowest offset that is free over its
 * lifetime (greedy by size: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020).
 *
 * A segment tree over the commands finds the placed values whose lifetimes overlap that of a new one.  A value is
 * listed at the few tree nodes whose ranges make up its lifetime.  Each tree node has the highest end of the values
 * listed at it, and of those at and below it.  If a value overlaps more than MAX_NEIGHBOURS others, it is placed after
 * all of them, so that n values never take n squared steps. */
#include "place.h"
#include <stdlib.h>

enum { MAX_NEIGHBOURS = 512 };

struct placement_link { uint32_t value, next; };  /* next: index of a link + 1, 0 ends */

struct placement_tree {
    struct placement *v;
    /* commands, rounded up to a power of two; the root is node 1, node t's children are 2t and 2t + 1 */
    uint32_t size;
    uint32_t *head;                     /* per tree node: the values listed there */
    int64_t *here, *top;                /* per tree node: the highest end there, and there or below */
    struct placement_link *link; uint32_t nlink, link_cap;
    uint32_t *seen, now;                /* per value: number of the last search that found it */
    struct range { int64_t begin, end; } *found; /* ranges in the arena of the values that the search finds */
    uint32_t nfound;
};

/* A tree node with its range of commands. */
struct span { uint32_t t, lo, hi; };

static struct span span_half(struct span s, bool upper)
{
    uint32_t mid = s.lo + (s.hi - s.lo) / 2;
    return upper ? (struct span){2 * s.t + 1, mid + 1, s.hi} : (struct span){2 * s.t, s.lo, mid};
}

static bool span_overlaps(struct span s, const struct placement *p) { return s.lo <= p->last && p->first <= s.hi; }

static bool tree_insert(struct placement_tree *x, struct span s, uint32_t value)
{
    const struct placement *p = &x->v[value];
    int64_t end = p->offset + p->bytes;
    if (!span_overlaps(s, p))
        return true;
    x->top[s.t] = end > x->top[s.t] ? end : x->top[s.t];
    if (s.lo < p->first || p->last < s.hi)
        return tree_insert(x, span_half(s, false), value) && tree_insert(x, span_half(s, true), value);
    if (!mem_reserve(&x->link, &x->link_cap, x->nlink + 1, sizeof *x->link))
        return false;
    x->here[s.t] = end > x->here[s.t] ? end : x->here[s.t];
    x->link[x->nlink] = (struct placement_link){value, x->head[s.t]};
    x->head[s.t] = ++x->nlink;
    return true;
}

/* Finds the values alive at the same time as p; false: too many. */
static bool find_overlapping(struct placement_tree *x, struct span s, const struct placement *p)
{
    if (!x->top[s.t] || !span_overlaps(s, p))
        return true;
    for (uint32_t l = x->head[s.t]; l; l = x->link[l - 1].next) {
        uint32_t value = x->link[l - 1].value;
        if (x->seen[value] == x->now)
            continue;
        if (x->nfound == MAX_NEIGHBOURS)
            return false;
        x->seen[value] = x->now;
        x->found[x->nfound++] = (struct range){x->v[value].offset, x->v[value].offset + x->v[value].bytes};
    }
    return s.lo == s.hi || (find_overlapping(x, span_half(s, false), p) && find_overlapping(x, span_half(s, true), p));
}

/* The highest end of all values alive at the same time as p. */
static int64_t highest_end(const struct placement_tree *x, struct span s, const struct placement *p)
{
    if (!span_overlaps(s, p))
        return 0;
    if (p->first <= s.lo && s.hi <= p->last)
        return x->top[s.t];
    int64_t a = highest_end(x, span_half(s, false), p), b = highest_end(x, span_half(s, true), p);
    a = a > b ? a : b;
    return a > x->here[s.t] ? a : x->here[s.t];
}

static int by_begin(const void *a, const void *b)
{
    int64_t x = ((const struct range *)a)->begin, y = ((const struct range *)b)->begin;
    return (x > y) - (x < y);
}

static int64_t lowest_place(struct placement_tree *x, const struct placement *p)
{
    struct span root = {1, 0, x->size - 1};
    int64_t at = 0;
    x->now++;
    x->nfound = 0;
    if (!find_overlapping(x, root, p))
        return highest_end(x, root, p);
    qsort(x->found, x->nfound, sizeof *x->found, by_begin);
    for (uint32_t i = 0; i < x->nfound && x->found[i].begin < at + p->bytes; i++)
        at = x->found[i].end > at ? x->found[i].end : at;
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
    struct placement_tree x = {.v = v, .size = 1};
    while (x.size < commands)
        x.size *= 2;
    if (n)
        qsort(v, n, sizeof *v, by_size);
    x.head = mem_alloc(2 * x.size * sizeof *x.head);
    x.here = mem_alloc(2 * x.size * sizeof *x.here);
    x.top = mem_alloc(2 * x.size * sizeof *x.top);
    x.seen = mem_alloc((n + 1) * sizeof *x.seen);
    x.found = mem_alloc(MAX_NEIGHBOURS * sizeof *x.found);
    bool ok = x.head && x.here && x.top && x.seen && x.found;
    for (uint32_t i = 0; ok && i < n && v[i].bytes; i++) { /* values without bytes are last and need no offset */
        v[i].offset = lowest_place(&x, &v[i]);
        ok = tree_insert(&x, (struct span){1, 0, x.size - 1}, i);
    }
    mem_free(x.head);
    mem_free(x.here);
    mem_free(x.top);
    mem_free(x.link);
    mem_free(x.seen);
    mem_free(x.found);
    return ok;
}
