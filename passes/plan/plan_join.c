/* Kernels that do not depend on each other become one launch of a GPU (horizontal fusion; Li et al., "Automatic
 * Horizontal Fusion for GPU Kernels", 2022).  Equal ones are a kernel with members: the updates of an optimizer's
 * parameters (known as multi-tensor apply), casts of weights, sums for the gradients of biases.  Different maps that
 * are near each other, such as the concatenations before attention's gradient, are lowered again as the parts of one
 * (lower_map.c).
 *
 * The groups have an order already.  A launch has the position of one of its groups, to which the others move: that of
 * the last if the groups read more than they store, because what they read then lives longer, else that of the first.
 * No group moves past one that it reads or that reads it; all others stay where they are.  Nor does a launch become
 * larger where more bytes would be alive at some position than were alive at the fullest one before: joining kernels
 * costs no memory, but for gaps between values.
 *
 * Later kernels are joined first: their operands are then needed later, and the kernels that store these can be joined,
 * too.  Products and attention are left alone, since each fills a GPU and leaves its operands in the cache. */
#include "plan.h"
#include <stdatomic.h>
#include <stdlib.h>

/* A node of the segment tree over positions: what is added to all of its positions, and the maximum below it with
 * that. */
struct live_bytes { int64_t added, max; };

struct joiner {
    struct planner *p;
    uint32_t n;                    /* groups */
    struct mem_arena mem;
    uint32_t *position;            /* per group; members of a launch have the same one */
    uint32_t *next;                /* per group: the next member of its launch; GROUP_NONE: none, or it is alone */
    bool *leads;                   /* per group: it is the first member of a launch */
    enum joined { ALONE, MEMBER, PART } *joined; /* per group */
    uint32_t *before, *first_before; /* the groups that group i reads: before[first_before[i]] .. */
    struct live_bytes *live; uint32_t size; /* the tree: size leaves, node 1 is the root */
    struct { uint32_t first, last; } *lives; /* per node of the graph, if it is in an arena: positions */
    int64_t most;                  /* bytes that may be alive at a position */
    struct extension { ref value; uint32_t first, last; } *undo; uint32_t nundo, undo_cap;
    uint64_t steps;
};

/* ---- bytes alive ---- */

static void live_add(struct joiner *j, uint32_t t, uint32_t lo, uint32_t hi, uint32_t first, uint32_t last,
                     int64_t bytes)
{
    struct live_bytes *x = &j->live[t];
    if (first > hi || last < lo)
        return;
    j->steps++;
    if (first <= lo && hi <= last) {
        x->added += bytes;
        x->max += bytes;
        return;
    }
    uint32_t mid = lo + (hi - lo) / 2;
    live_add(j, 2 * t, lo, mid, first, last, bytes);
    live_add(j, 2 * t + 1, mid + 1, hi, first, last, bytes);
    const struct live_bytes *l = &j->live[2 * t], *r = l + 1;
    x->max = x->added + (l->max > r->max ? l->max : r->max);
}

static void live_over(struct joiner *j, uint32_t first, uint32_t last, int64_t bytes)
{
    if (first <= last)
        live_add(j, 1, 0, j->size - 1, first, last, bytes);
}

static bool in_arena(const struct joiner *j, ref r) { return j->lives[r].first <= j->lives[r].last; }

/* Values in arenas: those of groups, but for outputs. */
static void find_lives(struct joiner *j)
{
    struct planner *p = j->p;
    for (ref r = 0; r < p->g->nnode; r++)
        j->lives[r].first = 1; /* .last is 0: it is in no arena */
    for (uint32_t pos = 0; pos < j->n; pos++)
        for (uint32_t a = 0; a < p->low[p->order[pos]].narg; a++) {
            const struct arg *x = &p->low[p->order[pos]].arg[a];
            if (x->role == BUF_OUT)
                j->lives[x->node].first = j->lives[x->node].last = pos;
            else if (in_arena(j, x->node))
                j->lives[x->node].last = pos;
        }
    for (uint32_t i = 0; i < p->g->nout; i++) {
        ref r = node_stored(p->g, p->g->out[i].value);
        j->lives[r].first = 1;
        j->lives[r].last = 0;
    }
    for (ref r = 1; r < p->g->nnode; r++)
        if (in_arena(j, r))
            live_over(j, j->lives[r].first, j->lives[r].last, plan_value_bytes(p, r));
    j->most = j->live[1].max;
}

/* Sets the positions at which a value is alive, which become more or, if it is undone, fewer. */
static void set_lives(struct joiner *j, ref r, uint32_t first, uint32_t last, int64_t bytes)
{
    uint32_t was_first = j->lives[r].first, was_last = j->lives[r].last;
    live_over(j, was_first, was_last, -bytes);
    live_over(j, first, last, bytes);
    j->lives[r].first = first;
    j->lives[r].last = last;
}

/* What the group reads, or what it stores, is alive at position `at`, too.  false: out of memory. */
static bool extend_lives(struct joiner *j, uint32_t group, bool stored, uint32_t at)
{
    const struct lowered *l = &j->p->low[group];
    for (uint32_t a = 0; a < l->narg; a++) {
        ref r = l->arg[a].node;
        uint32_t first = j->lives[r].first, last = j->lives[r].last;
        if ((l->arg[a].role == BUF_OUT) != stored || !in_arena(j, r) || (first <= at && at <= last))
            continue;
        if (!mem_reserve(&j->undo, &j->undo_cap, j->nundo + 1, sizeof *j->undo))
            return plan_no_memory(j->p);
        j->undo[j->nundo++] = (struct extension){r, first, last};
        set_lives(j, r, at < first ? at : first, at > last ? at : last, plan_value_bytes(j->p, r));
    }
    return true;
}

static void undo_extensions(struct joiner *j)
{
    while (j->nundo) {
        const struct extension *x = &j->undo[--j->nundo];
        set_lives(j, x->value, x->first, x->last, plan_value_bytes(j->p, x->value));
    }
}

/* ---- which kernels ---- */

static bool may_have_members(const struct kernel *k)
{
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_MMA)
            return false;
    return k->extent > 0 && k->extent < INT32_MAX / 2 && !sched_is_scatter(k->sched.kind) &&
           !kernel_members_conflict(k);
}

static bool device_joins(const struct planner *p, unsigned device)
{
    for (uint32_t i = 0; i < p->targets->n; i++)
        if (!p->targets->v[i].devices || p->targets->v[i].devices >> device & 1)
            return p->targets->v[i].caps->members;
    return false;
}

/* Bytes in arenas that a group reads, less those that it stores. */
static int64_t bytes_read_more(const struct joiner *j, uint32_t group)
{
    const struct lowered *l = &j->p->low[group];
    int64_t bytes = 0;
    for (uint32_t a = 0; a < l->narg; a++)
        if (in_arena(j, l->arg[a].node))
            bytes += (l->arg[a].role == BUF_OUT ? -1 : 1) * plan_value_bytes(j->p, l->arg[a].node);
    return bytes;
}

/* ---- one launch ---- */

enum { MAX_PARTS = 4, MAX_PARTS_ARGUMENTS = 24 };

struct launch_plan {
    uint32_t group[MAX_MEMBERS], n; /* in the order of their positions */
    bool parts;                    /* of different maps */
    bool late;                     /* it is where its last group was */
    uint32_t position, arguments;
};

/* The position of the first group that reads what this one stores, or has to follow it. */
static uint32_t first_after(struct joiner *j, uint32_t group)
{
    uint32_t first = j->n;
    for (uint32_t i = 0; i < j->p->succ[group].n; i++, j->steps++) {
        uint32_t at = j->position[j->p->succ[group].v[i]];
        first = at < first ? at : first;
    }
    return first;
}

static bool follows_all_it_reads(struct joiner *j, uint32_t group, uint32_t at)
{
    for (uint32_t i = j->first_before[group]; i < j->first_before[group + 1]; i++, j->steps++)
        if (j->position[j->before[i]] >= at)
            return false;
    return true;
}

static bool launch_has_room(const struct joiner *j, const struct launch_plan *l, uint32_t group)
{
    const struct lowered *x = &j->p->low[group], *first = &j->p->low[l->group[0]];
    if (j->p->device[group] != j->p->device[l->group[0]])
        return false;
    if (l->parts)
        return l->n < MAX_PARTS && l->arguments + kernel_arguments(x->k) <= MAX_PARTS_ARGUMENTS;
    return l->n < MAX_MEMBERS && l->arguments + kernel_arguments(x->k) <= MAX_MEMBER_ARGUMENTS &&
           x->k->extent * (l->n + 1) < INT32_MAX && x->narg == first->narg;
}

/* Can the launch have this group, which is behind its others? */
static bool launch_accepts(struct joiner *j, const struct launch_plan *l, uint32_t group)
{
    if (!launch_has_room(j, l, group))
        return false;
    if (!l->late)
        return follows_all_it_reads(j, group, l->position);
    for (uint32_t i = 0; i < l->n; i++)
        if (first_after(j, l->group[i]) <= j->position[group])
            return false;
    return true;
}

/* Are no more bytes alive than may be, if the launch has this group, too? */
static bool launch_fits(struct joiner *j, const struct launch_plan *l, uint32_t group)
{
    bool ok = l->late || extend_lives(j, group, true, l->position);
    for (uint32_t i = 0; ok && l->late && i < l->n; i++)
        ok = extend_lives(j, l->group[i], false, j->position[group]);
    if (!ok || j->live[1].max > j->most) {
        undo_extensions(j);
        return false;
    }
    j->nundo = 0;
    return true;
}

static void launch_add(struct joiner *j, struct launch_plan *l, uint32_t group)
{
    if (l->late || !l->n)
        l->position = j->position[group];
    l->group[l->n++] = group;
    l->arguments += kernel_arguments(j->p->low[group].k);
}

/* The launch has all its groups. */
static void launch_end(struct joiner *j, struct launch_plan *l)
{
    for (uint32_t i = 0; l->n > 1 && i < l->n; i++) {
        j->position[l->group[i]] = l->position;
        j->joined[l->group[i]] = l->parts ? PART : MEMBER;
        j->leads[l->group[i]] = !i;
        j->next[l->group[i]] = i + 1 < l->n ? l->group[i + 1] : GROUP_NONE;
    }
    l->n = l->arguments = 0;
}

/* ---- the launches of all kernels ---- */

struct candidate { uint32_t kernel, position, group; };
struct equal_groups { const struct candidate *v; uint32_t n; };

static int by_kernel(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->kernel != y->kernel ? (x->kernel > y->kernel) - (x->kernel < y->kernel)
                                  : (x->position > y->position) - (x->position < y->position);
}

static int by_last(const void *a, const void *b)
{
    const struct equal_groups *x = a, *y = b;
    uint32_t u = x->v[x->n - 1].position, w = y->v[y->n - 1].position;
    return (u < w) - (u > w);
}

/* Joins groups of one kernel. */
static void join_equal(struct joiner *j, const struct equal_groups *e)
{
    struct launch_plan l = {.late = bytes_read_more(j, e->v[0].group) >= 0};
    struct plan_kernel *k = &j->p->root->kernel[e->v[0].kernel];
    k->named_by = e->v[0].group + 1;
    for (uint32_t i = 0; i < e->n && !j->p->e->code; i++) {
        uint32_t group = e->v[i].group;
        if (l.n && !(launch_accepts(j, &l, group) && launch_fits(j, &l, group)))
            launch_end(j, &l);
        launch_add(j, &l, group);
    }
    launch_end(j, &l);
}

static bool join_all(struct joiner *j)
{
    struct planner *p = j->p;
    struct candidate *v = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *v);
    struct equal_groups *e = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *e);
    uint32_t n = 0, ne = 0;
    if (j->mem.failed)
        return plan_no_memory(p);
    for (uint32_t i = 0; i < j->n; i++)
        if (!p->non_fusible[i] && device_joins(p, p->device[i]))
            v[n++] = (struct candidate){p->shared[i], j->position[i], i};
    if (n)
        qsort(v, n, sizeof *v, by_kernel);
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && v[end].kernel == v[i].kernel;)
            end++;
        if (end - i > 1 && may_have_members(p->low[v[i].group].k))
            e[ne++] = (struct equal_groups){v + i, end - i};
    }
    if (ne)
        qsort(e, ne, sizeof *e, by_last);
    for (uint32_t i = 0; i < ne; i++)
        join_equal(j, &e[i]);
    return !p->e->code;
}

/* ---- the launches of different maps ---- */

/* Do members of both groups have as many elements as r, which both read?  Such members would become one part. */
static bool is_read_alike(const struct joiner *j, uint32_t a, uint32_t b, ref r)
{
    const struct groups *s = lowerer_groups(j->p->lowerer);
    const uint32_t of[2] = {a, b};
    unsigned found = 0;
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t m = s->first[of[i]]; m < s->first[of[i] + 1] && !(found >> i & 1); m++)
            found |= (unsigned)(node_numel(j->p->g, s->member[m]) == node_numel(j->p->g, r)) << i;
    return found == 3;
}

/* Does a member of group a read one of group b?  That is an op without operands, such as iota, which both kernels
 * compute. */
static bool reads_member(struct joiner *j, uint32_t a, uint32_t b)
{
    const struct graph *g = j->p->g;
    const struct groups *s = lowerer_groups(j->p->lowerer);
    for (uint32_t m = s->first[a]; m < s->first[a + 1]; m++)
        for (unsigned i = 0; i < g->node[s->member[m]].nin; i++, j->steps++) {
            bool linear;
            if (g->group[node_operand(g, s->member[m], i, &linear)] == b)
                return true;
        }
    return false;
}

/* Are they maps whose threads access as many elements at once, of different arrays or in different orders? */
static bool parts_fit(struct joiner *j, uint32_t a, uint32_t b)
{
    const struct lowered *x = &j->p->low[a], *y = &j->p->low[b];
    if (x->k->sched.width != y->k->sched.width || schedule_of(x->k)->map.vector != schedule_of(y->k)->map.vector)
        return false;
    for (uint32_t i = 0; i < x->narg; i++)
        for (uint32_t k = 0; k < y->narg; k++, j->steps++)
            if (x->arg[i].node == y->arg[k].node && is_read_alike(j, a, b, x->arg[i].node))
                return false;
    return !reads_member(j, a, b) && !reads_member(j, b, a);
}

static bool may_be_part(const struct joiner *j, uint32_t group)
{
    const struct planner *p = j->p;
    const struct kernel *k = p->low[group].k;
    return k && j->joined[group] == ALONE && device_joins(p, p->device[group]) && k->sched.kind == SCHED_MAP &&
           k->extent > 0 && k->extent < INT32_MAX / MAX_PARTS;
}

/* Does the launch have room and memory for one more map, and does that fit to the others? */
static bool launch_takes_part(struct joiner *j, const struct launch_plan *l, uint32_t group)
{
    bool fits = may_be_part(j, group);
    for (uint32_t i = 0; fits && i < l->n; i++)
        fits = parts_fit(j, l->group[i], group);
    return fits && launch_accepts(j, l, group) && launch_fits(j, l, group);
}

/* Joins each map with others that are near it. */
static bool join_maps(struct joiner *j)
{
    enum { NEAR = 32 }; /* groups */
    const struct planner *p = j->p;
    struct launch_plan l = {.parts = true};
    for (uint32_t pos = 0; pos < j->n; pos++) {
        if (!may_be_part(j, p->order[pos]))
            continue;
        l.late = bytes_read_more(j, p->order[pos]) >= 0;
        launch_add(j, &l, p->order[pos]);
        for (uint32_t at = pos + 1; at < j->n && at <= pos + NEAR; at++, j->steps++)
            if (launch_takes_part(j, &l, p->order[at]))
                launch_add(j, &l, p->order[at]);
        launch_end(j, &l);
    }
    return !p->e->code;
}

/* ---- the planner's order ---- */

/* The group at the launch's position gets the kernel and the arguments of all parts, by the record that it has alone:
 * printed and requested for its name, that gives the same launch and the same equal kernels elsewhere. */
static bool launch_lower_parts(struct joiner *j, uint32_t first)
{
    struct planner *p = j->p;
    uint32_t holder = p->order[j->position[first]], group[MAX_PARTS] = {holder}, n = 1;
    struct lowered own = p->low[holder], all;
    for (uint32_t g = first; g != GROUP_NONE; g = j->next[g])
        if (g != holder)
            group[n++] = g;
    if (!lower_groups(p->lowerer, p->p->g, group, n, schedule_of(own.k), &all, p->e))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct plan_kernel *alone = &p->root->kernel[p->shared[group[i]]];
        if (alone->named_by == group[i] + 1) /* equal kernels elsewhere: the launch has that name */
            alone->named_by = 0;
        mem_free(p->low[group[i]].arg);
        p->low[group[i]] = (struct lowered){.group = p->low[group[i]].group};
    }
    p->low[holder] = all;
    return plan_share_kernel(p, holder);
}

/* The group at the launch's position gets the kernel and the arguments of all members. */
static bool launch_lower(struct joiner *j, uint32_t first)
{
    struct planner *p = j->p;
    uint32_t holder = p->order[j->position[first]], each = p->low[first].narg, members = 0;
    for (uint32_t g = first; g != GROUP_NONE; g = j->next[g])
        members++;
    struct arg *arg = mem_alloc((members * each + 1) * sizeof *arg), *to = arg;
    struct kernel *k = kernel_join(p->low[first].k, members, each);
    uint32_t named_by = p->root->kernel[p->shared[first]].named_by;
    if (!arg || !k) {
        mem_free(arg);
        kernel_free(k);
        return plan_no_memory(p);
    }
    for (uint32_t g = first; g != GROUP_NONE; g = j->next[g]) {
        for (uint32_t a = 0; a < each; a++)
            *to++ = p->low[g].arg[a];
        mem_free(p->low[g].arg);
        p->low[g] = (struct lowered){.group = p->low[g].group};
    }
    p->low[holder].arg = arg;
    p->low[holder].narg = members * each;
    p->low[holder].k = k;
    if (!plan_share_kernel(p, holder))
        return false;
    p->root->kernel[p->shared[holder]].named_by = named_by;
    return true;
}

static void order_launches(struct joiner *j)
{
    struct planner *p = j->p;
    p->norder = 0;
    for (uint32_t pos = 0; pos < j->n; pos++) {
        uint32_t group = p->order[pos];
        if (j->position[group] != pos)
            continue;
        p->pending[group] = p->norder;
        p->order[p->norder++] = group;
    }
}

/* Readers of states are the launches that have them. */
static void move_readers(struct joiner *j, const uint32_t *holder)
{
    for (uint32_t r = 0; r < j->p->nreader; r++) {
        struct reader *x = &j->p->reader[r];
        x->group = holder[x->group];
        x->position = j->p->pending[x->group];
    }
}

static bool launches_lower(struct joiner *j)
{
    uint32_t *holder = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *holder);
    if (!holder)
        return plan_no_memory(j->p);
    for (uint32_t i = 0; i < j->n; i++)
        holder[i] = j->p->order[j->position[i]];
    for (uint32_t i = 0; i < j->n; i++)
        if (j->leads[i] && !(j->joined[i] == PART ? launch_lower_parts(j, i) : launch_lower(j, i)))
            return false;
    order_launches(j);
    move_readers(j, holder);
    return true;
}

/* Lists the groups that each group reads or has to follow. */
static bool list_before(struct joiner *j)
{
    const struct planner *p = j->p;
    uint32_t edges = 0;
    for (uint32_t i = 0; i < j->n; i++)
        for (uint32_t k = 0; k < p->succ[i].n; k++, edges++)
            j->first_before[p->succ[i].v[k] + 1]++;
    for (uint32_t i = 0; i < j->n; i++)
        j->first_before[i + 1] += j->first_before[i];
    j->before = mem_arena_alloc(&j->mem, (edges + 1) * sizeof *j->before);
    uint32_t *at = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *at);
    for (uint32_t i = 0; at && j->before && i < j->n; i++)
        for (uint32_t k = 0; k < p->succ[i].n; k++) {
            uint32_t to = p->succ[i].v[k];
            j->before[j->first_before[to] + at[to]++] = i;
        }
    return !j->mem.failed || plan_no_memory(j->p);
}

static bool joiner_begin(struct joiner *j, struct planner *p)
{
    *j = (struct joiner){.p = p, .n = p->g->ngroup, .size = 1};
    while (j->size < j->n)
        j->size *= 2;
    j->position = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *j->position);
    j->next = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *j->next);
    j->leads = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *j->leads);
    j->joined = mem_arena_alloc(&j->mem, (j->n + 1) * sizeof *j->joined);
    j->first_before = mem_arena_alloc(&j->mem, (j->n + 2) * sizeof *j->first_before);
    j->live = mem_arena_alloc(&j->mem, 2 * j->size * sizeof *j->live);
    j->lives = mem_arena_alloc(&j->mem, p->g->nnode * sizeof *j->lives);
    if (j->mem.failed)
        return plan_no_memory(p);
    for (uint32_t pos = 0; pos < j->n; pos++)
        j->position[p->order[pos]] = pos;
    find_lives(j);
    return list_before(j);
}

bool plan_join(struct planner *p)
{
    bool any = false;
    struct joiner j;
    p->norder = p->g->ngroup;
    for (uint32_t i = 0; i < p->g->ngroup; i++)
        any |= device_joins(p, p->device[i]);
    if (!any || p != p->root || p->p->placeholders.n) /* a region's groups, and sizes with symbols, stay */
        return true;
    bool ok = joiner_begin(&j, p) && join_all(&j) && join_maps(&j) && launches_lower(&j);
    atomic_fetch_add_explicit(&pass_steps, j.steps, memory_order_relaxed);
    mem_free(j.undo);
    mem_arena_free(&j.mem);
    return ok;
}
