/* Rematerialization in fusion: values that are recomputed by the kernels that read them, where that is cheaper than to
 * store and load them.
 *
 * The gradient of a chain of elementwise ops reads most of the chain's values.  The chain is one kernel, which would
 * have to store all values that its gradient reads: for gelu seven arrays besides the two that are needed anyway.  So a
 * stored elementwise value is dropped if its readers can compute it from values that are in memory anyway, or from
 * fewer bytes than dropping it saves.  Readers may be elementwise, or reductions and products that compute their
 * operand; a weight's cast for two products becomes part of both.  The last value is tried first, so that a chain is
 * recomputed from the product or reduction at its beginning.  Values that others are recomputed from may be dropped,
 * too.  Nothing is dropped if that increases the bytes that wait in memory: values that are alive longer than before
 * have at most the size of the dropped ones.
 *
 * Each of those kernels gets its own nodes, marked `remat`, and fusion is repeated. */
#include "fuse.h"
#include "passes/graph/rewrite.h"

enum { MIN_BYTES = 128 << 10 }; /* smaller values stay in a cache until they are read */
enum { MAX_READERS = 32, MAX_BASES = 8 };

struct remat_reader { uint32_t group, next; };          /* a list of groups; next: index + 1, 0: the end */
struct remat_copy { ref node, copy; uint32_t next; }; /* a list of copied nodes of one group */

struct remat {
    struct fuser *f;
    struct graph *g;
    bool *stored;       /* per node: in memory for kernels other than its own */
    uint32_t *list;     /* per node: groups that read it besides those of f->reader; a cell's index + 1 */
    struct remat_reader *cell; uint32_t ncell, cell_cap;
    uint32_t *nodes;    /* per group: number of its nodes, recomputed ones included */
    uint32_t *pairs;    /* per group: its copies; a pair's index + 1 */
    struct remat_copy *pair; uint32_t npair, pair_cap;
    bool failed;
};

/* The cost of dropping one value. */
struct cone {
    uint32_t reader[MAX_READERS], nreader;
    ref base[MAX_BASES]; uint32_t nbase; /* values in memory from which it is computed */
    uint32_t nodes;
    uint32_t own;       /* number of nodes that are in x's own group */
    double work;        /* for each element, as bytes that memory moves in the same time */
};

/* Adds x to a set. false: it is full. */
static bool fuse_remat_add(uint32_t *set, uint32_t *n, uint32_t max, uint32_t x)
{
    for (uint32_t i = 0; i < *n; i++)
        if (set[i] == x)
            return true;
    if (*n == max)
        return false;
    set[(*n)++] = x;
    return true;
}

static bool add_reader(struct cone *c, uint32_t id) { return fuse_remat_add(c->reader, &c->nreader, MAX_READERS, id); }

/* Finds the groups that read x; returns whether all of them can compute it where they read it. */
static bool find_readers(const struct remat *a, ref x, struct cone *c)
{
    const struct fuser *f = a->f;
    for (uint32_t k = f->readers[x]; k < f->readers[x + 1]; k++) {
        ref r = f->reader[k];
        if (group_of(f, r) == group_of(f, x))
            continue;
        if (group_of(f, r) == GROUP_NONE || !fuse_can_compute(f, r, x) || !add_reader(c, group_of(f, r)))
            return false;
    }
    for (uint32_t i = a->list[x]; i; i = a->cell[i - 1].next)
        if (!add_reader(c, a->cell[i - 1].group))
            return false;
    return c->nreader > 0;
}

/* Goes from x to values that are, or can be, in memory. */
static bool find_cone(struct remat *a, ref x, struct cone *c)
{
    struct fuser *f = a->f;
    const struct graph *g = a->g;
    uint32_t top = 0;
    f->stamp++;
    f->stack[top++] = x;
    while (top) {
        ref y = f->stack[--top];
        const struct node *n = &g->node[y];
        c->work += fuse_work(n->op);
        c->own += group_of(f, y) == group_of(f, x);
        if (++c->nodes > MAX_GROUP_NODES / 2)
            return false;
        for (unsigned i = 0; i < n->nin; i++) {
            bool linear;
            ref s = node_operand(g, y, i, &linear);
            bool full = node_numel(g, s) == node_numel(g, x), leaf = group_of(f, s) == GROUP_NONE;
            if (leaf && !node_is_stored_leaf(g, s))
                continue;
            if ((full && !linear) || node_numel(g, s) > node_numel(g, x))
                return false;
            if (f->marked[s] == f->stamp)
                continue;
            f->marked[s] = f->stamp;
            bool inside = !leaf && full && op_is_map(g->node[s].op) && !a->stored[s];
            if (inside)
                f->stack[top++] = s;
            else if (!fuse_remat_add(c->base, &c->nbase, MAX_BASES, s))
                return false;
        }
    }
    return true;
}

/* Does group id read s? */
static bool is_read_by(const struct remat *a, ref s, uint32_t id)
{
    const struct fuser *f = a->f;
    for (uint32_t k = f->readers[s]; k < f->readers[s + 1]; k++)
        if (group_of(f, f->reader[k]) == id)
            return true;
    for (uint32_t i = a->list[s]; i; i = a->cell[i - 1].next)
        if (a->cell[i - 1].group == id)
            return true;
    return false;
}

static bool is_profitable(const struct remat *a, ref x, const struct cone *c)
{
    bool vanishes = c->own == a->f->group[group_of(a->f, x)].nodes; /* the kernel disappears, with its loads */
    double bytes = (double)node_bytes(a->g, x), saved = bytes * (1 + c->nreader), longer = 0;
    double times = vanishes ? -fuse_factor(a->f, group_of(a->f, x), x) : 0;
    for (uint32_t j = 0; j < c->nreader; j++)
        times += fuse_factor(a->f, c->reader[j], x);
    saved -= c->work * (double)node_numel(a->g, x) * times;
    if (bytes < MIN_BYTES && !vanishes)
        return false;
    for (uint32_t i = 0; i < c->nbase; i++) {
        ref s = c->base[i];
        double size = (double)node_bytes(a->g, s);
        bool held = node_is_stored_leaf(a->g, s), later = false;
        saved += vanishes ? size : 0;
        if (!held && !a->stored[s])
            saved -= size;
        for (uint32_t j = 0; j < c->nreader; j++)
            if (!is_read_by(a, s, c->reader[j])) {
                saved -= size;
                later = !held;
            }
        longer += later ? size : 0;
    }
    return saved > 0 && longer <= bytes;
}

static void fuse_remat_drop(struct remat *a, ref x, const struct cone *c)
{
    a->stored[x] = false;
    for (uint32_t j = 0; j < c->nreader; j++)
        a->nodes[c->reader[j]] += c->nodes;
    for (uint32_t i = 0; i < c->nbase; i++) {
        ref s = c->base[i];
        a->stored[s] |= group_of(a->f, s) != GROUP_NONE;
        for (uint32_t j = 0; j < c->nreader; j++) {
            if (is_read_by(a, s, c->reader[j]))
                continue;
            if (!mem_reserve(&a->cell, &a->cell_cap, a->ncell + 1, sizeof *a->cell)) {
                a->failed = true;
                return;
            }
            a->cell[a->ncell++] = (struct remat_reader){c->reader[j], a->list[s]};
            a->list[s] = a->ncell;
        }
    }
}

static bool may_go(struct remat *a, ref x, struct cone *c)
{
    const struct fuser *f = a->f;
    if (!a->stored[x] || !op_is_map(a->g->node[x].op) || f->output[x] || f->viewed[x] ||
        !find_readers(a, x, c) || !find_cone(a, x, c))
        return false;
    for (uint32_t j = 0; j < c->nreader; j++)
        if (a->nodes[c->reader[j]] + c->nodes > MAX_GROUP_NODES ||
            f->group[c->reader[j]].device != f->group[group_of(f, x)].device)
            return false;
    return is_profitable(a, x, c);
}

static bool fuse_remat_choose(struct remat *a)
{
    struct fuser *f = a->f;
    const struct graph *g = a->g;
    bool any = false;
    for (uint32_t i = 0; i < f->ngroup; i++)
        a->nodes[i] = f->group[i].nodes;
    for (ref x = 1; x < g->nnode; x++) {
        if (group_of(f, x) == GROUP_NONE)
            continue;
        a->stored[x] = f->output[x] || f->viewed[x];
        for (uint32_t k = f->readers[x]; k < f->readers[x + 1] && !a->stored[x]; k++)
            a->stored[x] = group_of(f, f->reader[k]) != group_of(f, x);
    }
    for (ref x = g->nnode; x-- > 1 && !a->failed;) {
        struct cone c = {0};
        if (!may_go(a, x, &c))
            continue;
        fuse_remat_drop(a, x, &c);
        any = true;
    }
    return any;
}

/* ---- the graph with the copies ---- */

/* Is s not in memory, although group id needs it and does not compute it? */
static bool is_unavailable(const struct remat *a, ref s, uint32_t id)
{
    return group_of(a->f, s) != GROUP_NONE && group_of(a->f, s) != id && !a->stored[s];
}

/* Node z, a value or a view of one, for group id: its own copy if the value is not in memory. */
static ref copy_for(struct remat *a, struct rewrite *w, ref z, uint32_t id)
{
    const struct graph *g = a->g;
    bool linear;
    ref s = node_source(g, z, &linear), in[MAX_OPERANDS] = {0};
    if (!is_unavailable(a, s, id))
        return w->map[z];
    for (uint32_t i = a->pairs[id]; i; i = a->pair[i - 1].next)
        if (a->pair[i - 1].node == z)
            return a->pair[i - 1].copy;
    for (unsigned i = 0; i < g->node[z].nin; i++)
        in[i] = copy_for(a, w, g->node[z].in[i], id);
    if (w->to->err.code)
        return NIL;
    if (!mem_reserve(&a->pair, &a->pair_cap, a->npair + 1, sizeof *a->pair)) {
        a->failed = true;
        return NIL;
    }
    rewrite_site(w, z);
    ref copy = graph_copy_node(w->to, g, &g->node[z], in);
    if (copy)
        w->to->node[copy].flags |= MARK_REMAT;
    a->pair[a->npair++] = (struct remat_copy){z, copy, a->pairs[id]};
    a->pairs[id] = a->npair;
    return copy;
}

static bool needs_copies(const struct remat *a, ref r)
{
    bool linear, any = false;
    uint32_t id = group_of(a->f, r);
    for (unsigned i = 0; id != GROUP_NONE && i < a->g->node[r].nin; i++)
        any |= is_unavailable(a, node_operand(a->g, r, i, &linear), id);
    return any;
}

static int remat_rebuild_graph(struct remat *a)
{
    struct rewrite w;
    struct graph *g = a->g;
    if (rewrite_begin(&w, g))
        for (ref r = 1; r < g->nnode && !w.to->err.code && !a->failed; r++) {
            ref in[MAX_OPERANDS] = {0};
            bool copies = needs_copies(a, r);
            for (unsigned i = 0; copies && i < g->node[r].nin; i++)
                in[i] = copy_for(a, &w, g->node[r].in[i], group_of(a->f, r));
            rewrite_site(&w, r);
            if (!copies)
                rewrite_copy(&w, r);
            else if (!a->failed && !w.to->err.code)
                w.map[r] = graph_copy_node(w.to, g, &g->node[r], in);
        }
    if (a->failed)
        err_set(&g->err, KL_ERR_MEMORY, "out of memory fusing @%s", g->name);
    return rewrite_end(&w);
}

int fuse_remat(struct fuser *f)
{
    struct graph *g = f->g;
    struct remat a = {.f = f, .g = g};
    struct mem_arena mem = {0};
    a.stored = mem_arena_alloc(&mem, g->nnode * sizeof *a.stored);
    a.list = mem_arena_alloc(&mem, g->nnode * sizeof *a.list);
    a.nodes = mem_arena_alloc(&mem, (f->ngroup + 1) * sizeof *a.nodes);
    a.pairs = mem_arena_alloc(&mem, (f->ngroup + 1) * sizeof *a.pairs);
    a.failed = mem.failed;
    int changed = 0;
    if (!a.failed && fuse_remat_choose(&a))
        changed = remat_rebuild_graph(&a);
    if (a.failed && changed >= 0)
        changed = -1;
    mem_arena_free(&mem);
    mem_free(a.cell);
    mem_free(a.pair);
    return changed;
}
