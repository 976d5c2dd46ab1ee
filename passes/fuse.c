/* Groups nodes into kernels.
 *
 * In: a graph without grad nodes.  Out: g->group; no node changes, so no number does.
 *
 * A group has at most one anchor (reduce, dot, scatter or argsort), row kernels apart (fuse_rows.c).  Around it
 * stand elementwise nodes: before a reduce, one value per reduced element (the prologue); after a reduce or a dot,
 * one value per result (the epilogue).
 * Without an anchor a group is an elementwise DAG over one index.  Two nodes share a group only where
 * element i of one needs just element i of the other, so every value is computed once.
 *
 * First every elementwise node is merged with the elementwise groups it reads from, in execution order and
 * unless that would close a cycle between groups.  Then dots take in the groups that read their results, if
 * the cost model likes it, then reduces the groups that make their operands and those that read their
 * results, and last come the row kernels.  A region op is an anchor alone: its results are its group's, its operands
 * are stored whole.  So is a copy, and since nothing else leads from one device to another, no group is on two.  Whole
 * groups move, so no value is stored just because half of its readers moved.  Scalars made of leaves alone are left
 * out: every kernel that needs one computes it again. */
#include "fuse.h"
#include <string.h>

/* A dot's epilogue visits its arrays in tiles of a few columns, which costs the memory system more per byte
 * than a pass from end to end: with more than this many arrays of full size, that pass is the better one.  An
 * epilogue that sweeps over whole rows has no such cost. */
enum { MAX_TILED_ARRAYS = 2, MAX_SWEPT_ARRAYS = 8 };

static bool is_compute(const struct node *n)
{
    return op_is_elementwise(n->op) || n->op == OP_cast || n->op == OP_bitcast || op_is_quant(n->op) || n->op == OP_random ||
           op_is_select(n->op) || op_is_anchor(n->op);
}

/* A scalar whose operands are leaves or such scalars, not too many. */
static bool is_free_scalar(struct fuser *f, ref r)
{
    const struct node *n = &f->g->node[r];
    if (op_is_anchor(n->op) || node_numel(f->g, r) != 1)
        return false;
    f->cost[r] = 1;
    for (unsigned i = 0; i < n->nin; i++) {
        bool linear;
        ref s = node_operand(f->g, r, i, &linear);
        f->cost[r] += f->cost[s];
        if (group_of(f, s) != GROUP_NONE || f->cost[r] > MAX_FREE_SCALAR)
            return false;
    }
    return true;
}

/* Lists the readers of every node. */
static bool list_readers(struct fuser *f)
{
    const struct graph *g = f->g;
    uint32_t n = 0;
    bool linear;
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; !op_is_view(g->node[r].op) && i < node_nin(&g->node[r]); i++, n++)
            f->readers[node_operand(g, r, i, &linear) + 1]++;
    f->reader = mem_alloc((n + 1) * sizeof *f->reader);
    if (!f->reader)
        return false;
    for (ref r = 0; r < g->nnode; r++)
        f->readers[r + 1] += f->readers[r];
    for (ref r = g->nnode; r-- > 1;) /* from the end: every list is ascending, and its end becomes its start */
        for (unsigned i = 0; !op_is_view(g->node[r].op) && i < node_nin(&g->node[r]); i++)
            f->reader[--f->readers[node_operand(g, r, i, &linear) + 1]] = r;
    memmove(f->readers, f->readers + 1, g->nnode * sizeof *f->readers);
    f->readers[g->nnode] = n;
    return true;
}

static uint32_t group_new(struct fuser *f, ref r)
{
    uint32_t id = f->ngroup++;
    const struct node *n = &f->g->node[r];
    bool anchor = op_is_anchor(n->op) || op_is_apart(n->op);
    f->group[id] = (struct group){.first = r, .last = r, .low = r, .high = r, .anchor = anchor ? r : NIL, .numel = node_numel(f->g, r),
                                  .nodes = 1, .reads = n->nin, .device = n->device, .apart = op_is_apart(n->op),
                                  .again = n->flags & MARK_AGAIN};
    f->g->group[r] = id;
    return id;
}

bool fuse_path_around(struct fuser *f, uint32_t from, uint32_t to)
{
    uint32_t n = 0, visits = 0;
    f->stamp++;
    f->seen[to] = f->stamp;
    f->stack[n++] = to;
    while (n) {
        uint32_t cur = f->stack[--n];
        if (++visits > MAX_SEARCH)
            return true;
        for (ref r = f->group[cur].first; r; r = f->next[r])
            for (unsigned i = 0; i < node_nin(&f->g->node[r]); i++) {
                bool linear;
                uint32_t s = group_of(f, node_operand(f->g, r, i, &linear));
                if (s == GROUP_NONE || (cur == to && s == from))
                    continue;
                if (s == from)
                    return true;
                if (f->seen[s] != f->stamp && f->group[s].high > f->group[from].low) { /* else all of it comes before */
                    f->seen[s] = f->stamp;
                    f->stack[n++] = s;
                }
            }
    }
    return false;
}

bool fuse_fits(const struct group *a, const struct group *b)
{
    uint32_t nodes = a->nodes + b->nodes;
    return !a->apart && !b->apart && a->device == b->device && nodes <= MAX_GROUP_NODES &&
           a->reads + b->reads <= MAX_GROUP_READS + nodes;
}

void fuse_absorb(struct fuser *f, uint32_t a, uint32_t b)
{
    struct group *ga = &f->group[a], *gb = &f->group[b];
    for (ref r = gb->first; r; r = f->next[r])
        f->g->group[r] = a;
    f->next[ga->last] = gb->first;
    ga->last = gb->last;
    ga->low = ga->low < gb->low ? ga->low : gb->low;
    ga->high = ga->high > gb->high ? ga->high : gb->high;
    ga->nodes += gb->nodes;
    ga->reads += gb->reads;
    if (!ga->anchor)
        ga->anchor = gb->anchor;
    gb->merged = true;
}

/* Does b read anything of a at another index than its own? */
static bool reads_elsewhere(const struct fuser *f, uint32_t a, uint32_t b)
{
    for (ref r = f->group[b].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            ref s = node_operand(f->g, r, i, &linear);
            if (group_of(f, s) == a && (!linear || f->prologue[s]))
                return true;
        }
    return false;
}

/* Merges b, which reads from a, into a's group (or the other way round); false if they must stay apart. */
static bool merge(struct fuser *f, uint32_t a, uint32_t b)
{
    struct group *ga = &f->group[a], *gb = &f->group[b];
    if (gb->again && !ga->again) /* values computed again early would be kept after all */
        return false;
    if ((ga->anchor && gb->anchor) || ga->numel != gb->numel || !fuse_fits(ga, gb))
        return false;
    if (reads_elsewhere(f, a, b) || reads_elsewhere(f, b, a) || fuse_path_around(f, a, b) || fuse_path_around(f, b, a))
        return false;
    fuse_absorb(f, a, b);
    return true;
}

/* A reduce takes in the elementwise group that makes its operand, if that loses no parallelism. */
static void take_prologue(struct fuser *f, uint32_t reduce)
{
    struct group *gr = &f->group[reduce];
    bool linear;
    ref s = node_operand(f->g, gr->anchor, 0, &linear);
    uint32_t m = group_of(f, s);
    if (m == GROUP_NONE || !linear)
        return;
    struct group *gm = &f->group[m];
    bool few_rows = gr->numel < 64 && gm->numel > (1 << 16);
    if (gm->anchor || gm->device != gr->device || gm->again != gr->again || gm->numel == gr->numel || few_rows || gm->nodes + 1 > MAX_GROUP_NODES)
        return;
    for (ref r = gm->first; r; r = f->next[r])
        f->prologue[r] = true;
    fuse_absorb(f, reduce, m);
}

/* Merges elementwise node r with the elementwise groups it reads from. */
static void join_elementwise(struct fuser *f, ref r)
{
    const struct node *n = &f->g->node[r];
    uint32_t id = group_of(f, r);
    for (unsigned i = 0; i < n->nin; i++) {
        bool linear;
        uint32_t a = group_of(f, node_operand(f->g, r, i, &linear));
        if (linear && a != GROUP_NONE && a != id && !f->group[a].anchor && merge(f, a, id))
            id = a;
    }
}

/* Arrays of full size that the group reads from memory, the anchor's own result apart. */
static uint32_t full_size_reads(const struct fuser *f, uint32_t id, ref anchor)
{
    ref seen[MAX_SWEPT_ARRAYS + 1];
    uint32_t n = 0;
    for (ref r = f->group[id].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear, known = false;
            ref s = node_operand(f->g, r, i, &linear);
            bool stored = group_of(f, s) == GROUP_NONE ? node_is_stored_leaf(f->g, s) : group_of(f, s) != id;
            for (uint32_t j = 0; j < n; j++)
                known |= seen[j] == s;
            if (!stored || known || s == anchor || node_numel(f->g, s) < f->group[id].numel)
                continue;
            if (n == MAX_SWEPT_ARRAYS + 1)
                return n;
            seen[n++] = s;
        }
    return n;
}

/* The anchor takes in the elementwise groups that read its result, and those that read theirs. */
static void take_epilogue(struct fuser *f, ref anchor)
{
    uint32_t id = group_of(f, anchor);
    bool dot = f->g->node[anchor].op == OP_dot;
    uint32_t most = dot && dot_sweeps(f->g, anchor) ? MAX_SWEPT_ARRAYS : MAX_TILED_ARRAYS;
    for (ref s = f->group[id].first; s; s = f->next[s]) /* what it takes in joins the end of this list */
        for (uint32_t i = f->readers[s]; i < f->readers[s + 1] && !f->prologue[s]; i++) {
            uint32_t b = group_of(f, f->reader[i]);
            if (b == GROUP_NONE || b == id || f->group[b].anchor)
                continue;
            if (!dot || full_size_reads(f, b, anchor) <= most)
                merge(f, id, b);
        }
}

/* A copy is a group of its own, and so are a region op and its results. */
static void group_apart(struct fuser *f, ref r)
{
    const struct node *n = &f->g->node[r];
    if (op_is_apart(n->op))
        group_new(f, r);
    if (n->op != OP_proj)
        return;
    struct group *g = &f->group[f->g->group[r] = group_of(f, n->in[0])];
    f->next[g->last] = r;
    g->last = g->high = r;
}

static void fuse_all(struct fuser *f)
{
    struct graph *g = f->g;
    for (ref r = 1; r < g->nnode; r++)
        if (op_is_apart(g->node[r].op) || g->node[r].op == OP_proj)
            group_apart(f, r);
        else if (is_compute(&g->node[r]) && !is_free_scalar(f, r)) {
            group_new(f, r);
            if (!op_is_anchor(g->node[r].op))
                join_elementwise(f, r);
        }
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].op == OP_dot)
            take_epilogue(f, r);
    for (ref r = 1; r < g->nnode; r++)
        if (op_is_reduce(g->node[r].op)) {
            take_prologue(f, group_of(f, r));
            take_epilogue(f, r);
        }
    fuse_rows(f);
}

/* What no kernel stores yet, and what is not in memory already, becomes a kernel. */
static void store(struct fuser *f, ref v)
{
    bool linear;
    ref s = node_source(f->g, v, &linear);
    if (group_of(f, v) == GROUP_NONE && (!linear || (group_of(f, s) == GROUP_NONE && !node_is_stored_leaf(f->g, s))))
        group_new(f, v);
}

static void store_whole(struct fuser *f)
{
    for (uint32_t i = 0; i < f->g->nout; i++)
        store(f, f->g->out[i].value);
    for (uint32_t i = 0; i < f->g->noperand; i++)
        store(f, f->g->operand[i]);
    for (ref r = 1; r < f->g->nnode; r++)
        if (f->g->node[r].op == OP_copy)
            store(f, f->g->node[r].in[0]);
}

/* Numbers the groups that are left 0, 1, ... in the order of their first nodes. */
static void renumber(struct fuser *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->ngroup; i++)
        if (!f->group[i].merged)
            f->seen[i] = n++;
    for (ref r = 1; r < f->g->nnode; r++)
        if (f->g->group[r] != GROUP_NONE)
            f->g->group[r] = f->seen[f->g->group[r]];
    f->g->ngroup = n;
}

int pass_fuse_groups(struct graph *g, bool unfused)
{
    uint32_t n = g->nnode;
    struct fuser f = {.g = g};
    if (g->symbols) /* kernels are for known sizes */
        return 0;
    f.group = mem_alloc(n * sizeof *f.group);
    f.next = mem_alloc(n * sizeof *f.next);
    f.readers = mem_alloc((n + 1) * sizeof *f.readers);
    f.prologue = mem_alloc(n * sizeof *f.prologue);
    f.cost = mem_alloc(n * sizeof *f.cost);
    f.seen = mem_alloc(n * sizeof *f.seen);
    f.stack = mem_alloc(n * sizeof *f.stack);
    mem_free(g->group);
    g->group = mem_alloc(n * sizeof *g->group);
    bool ok = f.group && f.next && f.readers && f.prologue && f.cost && f.seen && f.stack && g->group && list_readers(&f);
    if (!ok) {
        err_set(&g->err, KL_ERR_MEMORY, "out of memory fusing @%s", g->name);
    } else {
        for (ref r = 0; r < n; r++)
            g->group[r] = GROUP_NONE;
        for (ref r = 1; unfused && r < n; r++) {
            group_apart(&f, r);
            if (is_compute(&g->node[r]))
                group_new(&f, r);
        }
        if (!unfused)
            fuse_all(&f);
        store_whole(&f);
        ok = unfused || fuse_parts(&f) || err_set(&g->err, KL_ERR_MEMORY, "out of memory fusing @%s", g->name);
        renumber(&f);
    }
    mem_free(f.group);
    mem_free(f.next);
    mem_free(f.reader);
    mem_free(f.readers);
    mem_free(f.prologue);
    mem_free(f.cost);
    mem_free(f.seen);
    mem_free(f.stack);
    return ok ? 1 : -1;
}

int pass_fuse(struct graph *g) { return pass_fuse_groups(g, false); }
