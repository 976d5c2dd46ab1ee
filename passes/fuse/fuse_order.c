/* An order of the groups in which each stands behind all that it reads, kept while groups are joined.
 *
 * Two groups may be one kernel if no third one needs the one and is needed by the other.  Whatever lies on such a way
 * stands between the two in the order, so the search, backwards from the later, leaves out all before the earlier.
 * That holds for groups only, not for the numbers of nodes: a group of late nodes may be needed by an early node of
 * another.  Joined, the two stand where the earlier stood, and in front of them all that the search has passed.  The
 * idea is that of Pearce and Kelly, A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs (2006); ranks
 * with gaps between them let one side stay where it is. */
#include "fuse.h"
#include <stdatomic.h>

static const uint64_t GAP = UINT64_C(1) << 30;

static void fuse_order_append(struct fuser *f, uint32_t id)
{
    struct group *b = &f->group[id];
    b->before = f->back;
    b->after = GROUP_NONE;
    b->rank = f->back == GROUP_NONE ? GAP : f->group[f->back].rank + GAP;
    *(f->back == GROUP_NONE ? &f->front : &f->group[f->back].after) = id;
    f->back = id;
}

/* What reads members of group id waits for that many reads less; ready: for none now. */
static void release_readers(struct fuser *f, uint32_t id, uint32_t *pending, uint32_t *ready)
{
    for (ref r = f->group[id].first; r; r = f->next[r])
        for (uint32_t i = f->readers[r]; i < f->readers[r + 1]; i++) {
            uint32_t to = group_of(f, f->reader[i]);
            if (to != GROUP_NONE && to != id && !--pending[to])
                f->stack[(*ready)++] = to;
        }
}

bool fuse_order(struct fuser *f)
{
    uint32_t ready = 0, *pending = mem_alloc((f->ngroup + 1) * sizeof *pending);
    if (!pending)
        return false;
    f->front = f->back = GROUP_NONE;
    for (ref r = 1; r < f->g->nnode; r++)
        for (uint32_t i = f->readers[r]; i < f->readers[r + 1]; i++) {
            uint32_t to = group_of(f, f->reader[i]);
            if (to != GROUP_NONE && group_of(f, r) != GROUP_NONE && to != group_of(f, r))
                pending[to]++;
        }
    for (uint32_t i = f->ngroup; i-- > 0;)
        if (!pending[i])
            f->stack[ready++] = i;
    while (ready) {
        uint32_t id = f->stack[--ready];
        fuse_order_append(f, id);
        release_readers(f, id, pending, &ready);
    }
    mem_free(pending);
    return true;
}

/* Finds what `to` needs, directly or not, of the groups behind `from`.  Returns their number, and MAX_SEARCH + 1 for
 * more than that; *around: `from` is needed by one of them.  first: where that is found, the search ends. */
static uint32_t search(struct fuser *f, uint32_t from, uint32_t to, bool first, bool *around,
                       uint64_t *steps)
{
    uint32_t n = 0;
    *around = false;
    f->stamp++;
    f->seen[to] = f->stamp;
    for (uint32_t i = 0, cur = to;; cur = f->between[i++]) {
        for (ref r = f->group[cur].first; r; r = f->next[r])
            for (unsigned k = 0; k < node_nin(&f->g->node[r]); k++) {
                bool linear;
                ++*steps;
                uint32_t s = group_of(f, node_operand(f->g, r, k, &linear));
                if (s == GROUP_NONE || f->seen[s] == f->stamp)
                    continue;
                *around |= s == from && cur != to;
                if (*around && first)
                    return n;
                if (f->group[s].rank <= f->group[from].rank)
                    continue;
                if (n == MAX_SEARCH)
                    return n + 1;
                f->seen[s] = f->stamp;
                f->between[n++] = s;
            }
        if (i == n)
            return n;
    }
}

static uint32_t fuse_order_between(struct fuser *f, uint32_t from, uint32_t to, bool first, bool *around)
{
    uint64_t steps = 0;
    uint32_t n = search(f, from, to, first, around, &steps);
    atomic_fetch_add_explicit(&pass_steps, steps, memory_order_relaxed);
    return n;
}

bool fuse_indirect_path(struct fuser *f, uint32_t a, uint32_t b)
{
    bool around, later = f->group[b].rank < f->group[a].rank;
    return fuse_order_between(f, later ? b : a, later ? a : b, true, &around) > MAX_SEARCH || around;
}

static void unlink_group(struct fuser *f, uint32_t id)
{
    struct group *b = &f->group[id];
    *(b->before == GROUP_NONE ? &f->front : &f->group[b->before].after) = b->after;
    *(b->after == GROUP_NONE ? &f->back : &f->group[b->after].before) = b->before;
}

static void link_before(struct fuser *f, uint32_t id, uint32_t at)
{
    struct group *b = &f->group[id], *next = &f->group[at];
    b->after = at;
    b->before = next->before;
    *(b->before == GROUP_NONE ? &f->front : &f->group[b->before].after) = id;
    next->before = id;
}

static void rank_anew(struct fuser *f)
{
    uint64_t rank = 0;
    for (uint32_t id = f->front; id != GROUP_NONE; id = f->group[id].after)
        f->group[id].rank = rank += GAP;
}

void fuse_order_joined(struct fuser *f, uint32_t a, uint32_t b, uint32_t stays)
{
    bool around, later = f->group[b].rank < f->group[a].rank;
    uint32_t first = later ? b : a, last = later ? a : b, n = fuse_order_between(f, first, last, false, &around);
    for (uint32_t i = 1; i < n; i++) { /* in their order */
        uint32_t x = f->between[i], k = i;
        for (; k && f->group[f->between[k - 1]].rank > f->group[x].rank; k--)
            f->between[k] = f->between[k - 1];
        f->between[k] = x;
    }
    uint32_t before = f->group[first].before;
    uint64_t low = before == GROUP_NONE ? 0 : f->group[before].rank, gap = (f->group[first].rank - low) / (n + 1);
    for (uint32_t i = 0; i < n; i++) {
        unlink_group(f, f->between[i]);
        link_before(f, f->between[i], first);
        f->group[f->between[i]].rank = low + (i + 1) * gap;
    }
    unlink_group(f, last);
    if (stays == last) {
        link_before(f, last, first);
        f->group[last].rank = f->group[first].rank;
        unlink_group(f, first);
    }
    if (!gap)
        rank_anew(f);
}
