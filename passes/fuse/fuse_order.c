/* A topological order of the groups, kept up to date while groups are fused.
 *
 * Two groups may be fused if there is no path between them through a third group.  All groups on such a path are
 * between the two in the order.  So one search, backwards from the later one, ignores groups before the earlier;
 * another, forwards from the earlier one, ignores groups after the later.  The searches alternate until they find a
 * common group or one is complete. (This holds for the order of groups, not for node numbers: a group of late nodes may
 * be read by an early node of another group.) The fused group takes the earlier position, with all groups found by the
 * backward search placed before it; or the later position, with all groups found by the forward search placed after it.
 * The method is that of Pearce and Kelly, A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs (2006); gaps
 * between ranks make it possible to move only one side. */
#include "fuse.h"
#include <stdatomic.h>
#include <stdlib.h>

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

/* Decrements the number of unfinished operands of the readers of group id; `ready` collects those with none left. */
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
    f->front = f->back = f->searched[0] = GROUP_NONE;
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

/* The cost of visiting all operands or readers of a group. */
static uint64_t cost_of(const struct fuser *f, enum side side, uint32_t id)
{
    uint64_t n = 0;
    for (ref r = f->group[id].first; r; r = f->next[r])
        n += side == SIDE_BACK ? node_nin(&f->g->node[r]) : f->readers[r + 1] - f->readers[r];
    return n;
}

/* Visits group s from group cur. true: there is an indirect path. */
static bool visit_group(struct fuser *f, enum side side, uint32_t cur, uint32_t s, const uint32_t *end)
{
    struct side_search *p = &f->search[side];
    uint32_t mine = f->stamp - (uint32_t)side, others = f->stamp - !side;
    p->steps++;
    if (s == GROUP_NONE || f->seen[s] == mine)
        return false;
    if (s == end[!side])
        return cur != end[side];
    if (f->seen[s] == others)
        return true;
    if (side == SIDE_BACK ? f->group[s].rank <= f->group[end[SIDE_AHEAD]].rank
                          : f->group[s].rank >= f->group[end[SIDE_BACK]].rank)
        return false;
    if (p->n == MAX_SEARCH) {
        p->full = true;
        return false;
    }
    f->seen[s] = mine;
    p->found[p->n++] = s;
    return false;
}

/* Processes the next group of a side. */
static bool visit_next(struct fuser *f, enum side side, const uint32_t *end)
{
    struct side_search *p = &f->search[side];
    uint32_t cur = p->next ? p->found[p->next - 1] : end[side];
    bool linear;
    for (ref r = f->group[cur].first; r; r = f->next[r])
        if (side == SIDE_BACK) {
            for (unsigned k = 0; k < node_nin(&f->g->node[r]); k++)
                if (visit_group(f, side, cur, group_of(f, node_operand(f->g, r, k, &linear)), end))
                    return true;
        } else {
            for (uint32_t k = f->readers[r]; k < f->readers[r + 1]; k++)
                if (visit_group(f, side, cur, group_of(f, f->reader[k]), end))
                    return true;
        }
    if (++p->next <= p->n)
        p->cost = cost_of(f, side, p->found[p->next - 1]);
    return false;
}

/* Is there a path from `from` to `to`, which is later, through a third group? The two searches alternate, the one with
 * the lower cost so far first, until they find a common group (yes) or one is complete (no).  If each finds more than
 * MAX_SEARCH groups, the answer is yes. */
static bool has_path(struct fuser *f, uint32_t from, uint32_t to)
{
    uint32_t end[SIDES] = {[SIDE_BACK] = to, [SIDE_AHEAD] = from};
    struct side_search *back = &f->search[SIDE_BACK], *ahead = &f->search[SIDE_AHEAD];
    f->stamp += SIDES;
    f->searched[0] = GROUP_NONE;
    for (int side = 0; side < SIDES; side++) {
        struct side_search *p = &f->search[side];
        p->n = p->next = 0;
        p->steps = 0;
        p->full = false;
        p->cost = cost_of(f, (enum side)side, end[side]);
        f->seen[end[side]] = f->stamp - (uint32_t)side;
    }
    while (!back->full || !ahead->full) {
        bool from_back = back->full || (!ahead->full && ahead->steps + ahead->cost < back->steps + back->cost);
        enum side side = from_back ? SIDE_AHEAD : SIDE_BACK;
        if (visit_next(f, side, end))
            return true;
        if (f->search[side].full || f->search[side].next <= f->search[side].n)
            continue;
        f->searched[0] = from;
        f->searched[1] = to;
        f->ended = side;
        return false;
    }
    return true;
}

static bool path_between(struct fuser *f, uint32_t from, uint32_t to)
{
    bool path = has_path(f, from, to);
    uint64_t steps = f->search[SIDE_BACK].steps + f->search[SIDE_AHEAD].steps;
    atomic_fetch_add_explicit(&pass_steps, steps, memory_order_relaxed);
    return path;
}

bool fuse_indirect_path(struct fuser *f, uint32_t a, uint32_t b)
{
    bool later = f->group[b].rank < f->group[a].rank;
    return path_between(f, later ? b : a, later ? a : b);
}

/* ---- the groups between two ---- */

struct ranked { uint64_t rank; uint32_t id; };

static int compare_ranks(const void *a, const void *b)
{
    uint64_t x = ((const struct ranked *)a)->rank, y = ((const struct ranked *)b)->rank;
    return x < y ? -1 : x > y;
}

/* Adds the operands of group cur that come after rank `low` to p. */
static void find_operands(struct fuser *f, struct side_search *p, uint32_t cur, uint64_t low)
{
    bool linear;
    for (ref r = f->group[cur].first; r && !p->full; r = f->next[r])
        for (unsigned k = 0; k < node_nin(&f->g->node[r]) && !p->full; k++) {
            uint32_t s = group_of(f, node_operand(f->g, r, k, &linear));
            if (s == GROUP_NONE || s == cur || f->seen[s] == f->stamp || f->group[s].rank <= low)
                continue;
            p->full = p->n == MAX_SEARCH;
            if (p->full)
                continue;
            f->seen[s] = f->stamp;
            p->found[p->n++] = s;
        }
}

/* Does group id read `from`, or a group that has the present stamp? */
static bool reads_stamped(const struct fuser *f, uint32_t id, uint32_t from)
{
    bool linear, reads = false;
    for (ref r = f->group[id].first; r && !reads; r = f->next[r])
        for (unsigned k = 0; k < node_nin(&f->g->node[r]) && !reads; k++) {
            uint32_t s = group_of(f, node_operand(f->g, r, k, &linear));
            reads = s == from || (s != GROUP_NONE && s != id && f->seen[s] == f->stamp);
        }
    return reads;
}

uint32_t fuse_order_between(struct fuser *f, uint32_t from, uint32_t to, uint32_t *between, uint32_t max)
{
    struct side_search *p = &f->search[SIDE_BACK];
    struct ranked v[MAX_SEARCH];
    uint32_t n = 0;
    f->searched[0] = GROUP_NONE;
    p->n = p->next = 0;
    p->full = false;
    f->seen[to] = ++f->stamp;
    find_operands(f, p, to, f->group[from].rank);
    while (p->next < p->n && !p->full)
        find_operands(f, p, p->found[p->next++], f->group[from].rank);
    atomic_fetch_add_explicit(&pass_steps, p->n, memory_order_relaxed);
    for (uint32_t i = 0; i < p->n; i++)
        v[i] = (struct ranked){f->group[p->found[i]].rank, p->found[i]};
    qsort(v, p->n, sizeof *v, compare_ranks);
    f->stamp++;
    for (uint32_t i = 0; i < p->n && !p->full && n <= max; i++)
        if (reads_stamped(f, v[i].id, from)) {
            f->seen[v[i].id] = f->stamp;
            if (n < max)
                between[n] = v[i].id;
            n++;
        }
    return p->full || n > max ? 0 : n;
}

/* ---- fused groups ---- */

static void unlink_group(struct fuser *f, uint32_t id)
{
    struct group *b = &f->group[id];
    *(b->before == GROUP_NONE ? &f->front : &f->group[b->before].after) = b->after;
    *(b->after == GROUP_NONE ? &f->back : &f->group[b->after].before) = b->before;
}

/* Inserts group id after `before`; GROUP_NONE: at the front. */
static void link_behind(struct fuser *f, uint32_t id, uint32_t before)
{
    struct group *b = &f->group[id];
    uint32_t *link = before == GROUP_NONE ? &f->front : &f->group[before].after;
    b->before = before;
    b->after = *link;
    *link = id;
    *(b->after == GROUP_NONE ? &f->back : &f->group[b->after].before) = id;
}

static void reassign_ranks(struct fuser *f)
{
    uint64_t rank = 0;
    for (uint32_t id = f->front; id != GROUP_NONE; id = f->group[id].after)
        f->group[id].rank = rank += GAP;
}

/* Moves the groups that a side has found, in their order, after group `at` (GROUP_NONE: to the front), whose rank is
 * `low`. */
static void move_found(struct fuser *f, const struct side_search *p, uint32_t at, uint64_t low, uint64_t gap)
{
    struct ranked v[MAX_SEARCH];
    for (uint32_t i = 0; i < p->n; i++)
        v[i] = (struct ranked){f->group[p->found[i]].rank, p->found[i]};
    qsort(v, p->n, sizeof *v, compare_ranks);
    for (uint32_t i = 0; i < p->n; at = v[i++].id) {
        unlink_group(f, v[i].id);
        link_behind(f, v[i].id, at);
        f->group[v[i].id].rank = low + (i + 1) * gap;
    }
}

void fuse_order_joined(struct fuser *f, uint32_t a, uint32_t b, uint32_t stays)
{
    bool later = f->group[b].rank < f->group[a].rank;
    uint32_t first = later ? b : a, last = later ? a : b;
    if (f->searched[0] != first || f->searched[1] != last)
        path_between(f, first, last);
    const struct side_search *p = &f->search[f->ended];
    uint32_t keep = f->ended == SIDE_BACK ? first : last, at = f->ended == SIDE_BACK ? f->group[first].before : last;
    uint32_t next = f->group[last].after;
    uint64_t low = at == GROUP_NONE ? 0 : f->group[at].rank;
    uint64_t high = keep == first ? f->group[first].rank : next == GROUP_NONE ? low + GAP : f->group[next].rank;
    uint64_t gap = (high - low) / (p->n + 1);
    move_found(f, p, at, low, gap);
    if (stays != keep) {
        unlink_group(f, stays);
        link_behind(f, stays, keep);
        f->group[stays].rank = f->group[keep].rank;
    }
    unlink_group(f, stays == first ? last : first);
    f->searched[0] = GROUP_NONE;
    if (!gap)
        reassign_ranks(f);
}
