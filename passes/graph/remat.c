/* Rematerialization, for gradients with a checkpointing strategy.  Values of the forward pass that the backward pass
 * reads would stay in memory until then; those that are cheap are recomputed instead.
 *
 * Elementwise ops and ops that only move elements are cheap.  The backward pass reads a set of values, through views,
 * which cost nothing.  A value is removed from the set if the additional values that must be kept to recompute it take
 * no more bytes.  The last value is tried first, so that a chain of cheap ops is recomputed from the product or
 * reduction at its beginning.  Leaves are in memory anyway.  Up to `keep` bytes of cheap values are kept, the earliest
 * first.
 *
 * The copies are marked `remat`: later passes do not merge them with the originals, and schedule them late. */
#include "remat.h"
#include "passes/passes.h"
#include "rewrite.h"
#include <stdatomic.h>
#include <stdlib.h>

struct rematerializer {
    struct graph *g;
    const struct swept *s;   /* the current sweep */
    uint32_t sweep;          /* its number, from 1; marks with other numbers are invalid */
    uint32_t *kept;          /* per node before it: the sweep's number if its value is kept for the backward pass */
    uint32_t *remat;         /* the same if the backward pass needs the value and recomputes it */
    uint32_t *copied;        /* the same if second[] has its copy */
    ref *second, *stack, *in;
    uint32_t *seen, now;     /* per node: number of the last search that visited it */
    ref *cheap; uint32_t ncheap, cheap_cap; /* values that the backward pass reads and could recompute */
    uint64_t steps;
};

static bool is_kept(const struct rematerializer *m, ref r) { return m->kept[r] == m->sweep; }

/* Ops whose elements a backward kernel can compute one by one, from elements of the operands. */
static bool is_cheap(const struct graph *g, ref r)
{
    unsigned op = g->node[r].op;
    return op_is_elementwise(op) || op_is_view(op) || op_is_masked(op) || op == OP_concat;
}

/* Is it in memory without being kept? */
static bool is_free(const struct graph *g, ref r) { return op_is_leaf(g->node[r].op); }

static ref remat_source(const struct graph *g, ref r)
{
    bool linear;
    return node_source(g, r, &linear);
}

static int64_t remat_bytes_of(const struct graph *g, ref r)
{
    return node_numel(g, r) * (int64_t)dtype_size(g->node[r].dtype);
}

/* The cost of recomputing r: bytes of the values that are not kept so far; take: marks them as kept. */
static int64_t remat_cost(struct rematerializer *m, ref r, bool take)
{
    const struct graph *g = m->g;
    int64_t bytes = 0;
    uint32_t top = 0;
    m->now++;
    m->stack[top++] = r;
    m->seen[r] = m->now;
    while (top) {
        ref x = m->stack[--top];
        m->steps++;
        if (take)
            m->remat[x] = m->sweep;
        for (unsigned i = 0; i < g->node[x].nin; i++) {
            ref y = remat_source(g, g->node[x].in[i]);
            if (m->seen[y] == m->now || is_free(g, y) || is_kept(m, y))
                continue;
            m->seen[y] = m->now;
            if (is_cheap(g, y)) {
                m->stack[top++] = y;
                continue;
            }
            bytes += remat_bytes_of(g, y);
            if (take)
                m->kept[y] = m->sweep;
        }
    }
    return bytes;
}

static int compare_descending(const void *a, const void *b)
{
    ref x = *(const ref *)a, y = *(const ref *)b;
    return (x < y) - (x > y);
}

/* Finds the values that the backward pass reads; false: out of memory. *cheap: bytes of those it could recompute. */
static bool find_read(struct rematerializer *m, int64_t *cheap)
{
    const struct graph *g = m->g;
    m->ncheap = 0;
    for (ref r = m->s->first; r < m->s->end; r++)
        for (unsigned i = 0; i < node_nin(&g->node[r]); i++) {
            ref x = remat_source(g, node_in(g, &g->node[r], i));
            m->steps++;
            if (x >= m->s->first || is_free(g, x) || is_kept(m, x))
                continue;
            m->kept[x] = m->sweep;
            if (!is_cheap(g, x))
                continue;
            *cheap += remat_bytes_of(g, x);
            if (!mem_reserve(&m->cheap, &m->cheap_cap, m->ncheap + 1, sizeof *m->cheap))
                return false;
            m->cheap[m->ncheap++] = x;
        }
    return true;
}

/* Decides for the current sweep; false: out of memory. */
static bool remat_choose(struct rematerializer *m)
{
    int64_t cheap = 0, max = m->s->keep - 1;
    if (!find_read(m, &cheap))
        return false;
    if (m->ncheap)
        qsort(m->cheap, m->ncheap, sizeof *m->cheap, compare_descending);
    for (uint32_t i = 0; i < m->ncheap && cheap > max; i++) {
        ref x = m->cheap[i];
        m->kept[x] = 0;
        if (remat_cost(m, x, false) > remat_bytes_of(m->g, x)) {
            m->kept[x] = m->sweep;
            continue;
        }
        remat_cost(m, x, true);
        cheap -= remat_bytes_of(m->g, x);
    }
    return true;
}

/* Does the backward pass compute x itself? */
static bool is_own(const struct rematerializer *m, ref x)
{
    return !is_free(m->g, x) && !is_kept(m, x) && m->remat[x] == m->sweep;
}

static ref second_of(const struct rematerializer *m, ref x) { return m->copied[x] == m->sweep ? m->second[x] : NIL; }

/* Node x of the forward pass as the backward one reads it: a copy if it is recomputed, else the original. */
static ref remat_copy(struct rematerializer *m, struct rewrite *w, ref x)
{
    struct graph *g = m->g;
    ref s = remat_source(g, x);
    if (x >= m->s->first || s >= m->s->first || !is_own(m, s))
        return w->map[x];
    uint32_t top = 0;
    m->stack[top++] = x;
    while (top && !w->to->err.code) { /* operands first */
        ref y = m->stack[top - 1], in[MAX_OPERANDS] = {0};
        bool waits = false;
        for (unsigned i = 0; i < g->node[y].nin && !second_of(m, y); i++) {
            ref z = g->node[y].in[i];
            bool own = is_own(m, remat_source(g, z));
            if (own && !second_of(m, z)) {
                m->stack[top++] = z;
                waits = true;
            }
            in[i] = own ? second_of(m, z) : w->map[z];
        }
        if (waits)
            continue;
        if (!second_of(m, y)) {
            m->steps++;
            m->second[y] = graph_copy_node(w->to, g, &g->node[y], in);
            m->copied[y] = m->sweep;
            if (m->second[y])
                w->to->node[m->second[y]].flags |= MARK_REMAT;
        }
        top--;
    }
    return second_of(m, x);
}

/* Copies node r with operands as the backward pass reads them. */
static void copy_reader(struct rematerializer *m, struct rewrite *w, ref r)
{
    struct graph *g = m->g;
    unsigned nin = node_nin(&g->node[r]);
    for (unsigned i = 0; i < nin; i++)
        m->in[i] = remat_copy(m, w, node_in(g, &g->node[r], i));
    w->map[r] = w->to->err.code ? NIL : graph_copy_node(w->to, g, &g->node[r], m->in);
}

/* The values that a sweep reads were computed before it, and the decision for one sweep changes no node that another
 * reads.  So decisions are made on the unchanged graph, each when the copy of its sweep's nodes begins. */
static int copy_all(struct rematerializer *m, const struct swept *s, uint32_t n)
{
    struct rewrite w;
    uint32_t at = 0;
    if (rewrite_begin(&w, m->g))
        for (ref r = 1; r < m->g->nnode && !m->g->err.code && !w.to->err.code; r++) {
            while (at < n && (r >= s[at].end || !s[at].keep))
                at++;
            bool inside = at < n && r >= s[at].first;
            if (inside && m->sweep != at + 1) {
                m->s = &s[at];
                m->sweep = at + 1;
                if (!remat_choose(m)) {
                    err_set(&m->g->err, KL_ERR_MEMORY, "out of memory rewriting graph @%s", m->g->name);
                    break;
                }
            }
            m->steps++;
            rewrite_site(&w, r);
            if (inside)
                copy_reader(m, &w, r);
            else
                rewrite_copy(&w, r);
        }
    atomic_fetch_add_explicit(&pass_steps, m->steps, memory_order_relaxed);
    return rewrite_end(&w);
}

int remat(struct graph *g, const struct swept *s, uint32_t n)
{
    uint32_t max = MAX_OPERANDS;
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= s[i].keep && s[i].first < s[i].end;
    if (!any)
        return 0;
    for (ref r = 1; r < g->nnode; r++)
        max = node_nin(&g->node[r]) > max ? node_nin(&g->node[r]) : max;
    struct rematerializer m = {.g = g};
    struct mem_arena mem = {0};
    m.kept = mem_arena_alloc(&mem, g->nnode * sizeof *m.kept);
    m.remat = mem_arena_alloc(&mem, g->nnode * sizeof *m.remat);
    m.copied = mem_arena_alloc(&mem, g->nnode * sizeof *m.copied);
    m.second = mem_arena_alloc(&mem, g->nnode * sizeof *m.second);
    m.stack = mem_arena_alloc(&mem, (size_t)g->nnode * MAX_OPERANDS * sizeof *m.stack);
    m.seen = mem_arena_alloc(&mem, g->nnode * sizeof *m.seen);
    m.in = mem_arena_alloc(&mem, max * sizeof *m.in);
    int changed = -1;
    if (mem.failed)
        err_set(&g->err, KL_ERR_MEMORY, "out of memory rewriting graph @%s", g->name);
    else
        changed = copy_all(&m, s, n);
    mem_arena_free(&mem);
    mem_free(m.cheap);
    return changed;
}
