/* Rematerialization, for gradients with a checkpointing strategy: the backward pass reads values of the forward one,
 * which would lie in memory from the one to the other; those that are cheap to compute again are.
 *
 * Cheap are elementwise ops and what only moves elements.  What the backward pass reads is a set of values, through
 * views that cost nothing.  One of them leaves the set if what has to be there to compute it again, and is not yet in
 * the set, takes no more bytes; the latest goes first, so that a chain of cheap ops ends at the product or the
 * reduction that it began with.  Leaves are there anyway.  Up to `keep` bytes of cheap values stay, the earliest.
 *
 * The copies are marked `remat`: no later pass takes them for the first ones, and they come late. */
#include "remat.h"
#include "passes/passes.h"
#include "rewrite.h"
#include "ir/broken.h"

struct rematerializer {
    struct graph *g;
    const struct swept *s;   /* the sweep at hand */
    bool *kept;              /* per node before it: its value is there for the backward pass */
    bool *remat;             /*   it is one that the backward pass needs and computes itself */
    ref *stack;
    uint32_t *seen, now;     /* per node: the search that has met it */
};

/* Ops whose result an element of the backward kernels can be computed with, from elements of the operands. */
static bool is_cheap(const struct graph *g, ref r)
{
    unsigned op = g->node[r].op;
    return op_is_elementwise(op) || op_is_view(op) || op == OP_pad || op == OP_concat;
}

/* There without anybody keeping it. */
static bool is_free(const struct graph *g, ref r) { return op_is_leaf(g->node[r].op); }

static ref source(const struct graph *g, ref r)
{
    bool linear;
    return node_source(g, r, &linear);
}

static int64_t remat_bytes_of(const struct graph *g, ref r)
{
    return node_numel(g, r) * (int64_t)dtype_size(g->node[r].dtype);
}

/* What computing r again takes: bytes of values that are not kept so far; take: they are from here on. */
static int64_t cost(struct rematerializer *m, ref r, bool take)
{
    const struct graph *g = m->g;
    int64_t bytes = 0;
    uint32_t top = 0;
    m->now++;
    m->stack[top++] = r;
    m->seen[r] = m->now;
    while (top) {
        ref x = m->stack[--top];
        if (take)
            m->remat[x] = true;
        for (unsigned i = 0; i < g->node[x].nin; i++) {
            ref y = source(g, g->node[x].in[i]);
            if (m->seen[y] == m->now || is_free(g, y) || m->kept[y])
                continue;
            m->seen[y] = m->now;
            if (is_cheap(g, y)) {
                m->stack[top++] = y;
                continue;
            }
            bytes += remat_bytes_of(g, y);
            m->kept[y] |= take;
        }
    }
    return bytes;
}

/* Decides for the sweep at hand; whether anything is computed again. */
static bool remat_choose(struct rematerializer *m)
{
    struct graph *g = m->g;
    int64_t cheap = 0, most = m->s->keep - 1;
    bool any = false;
    for (ref r = m->s->first; r < m->s->end; r++)
        for (unsigned i = 0; i < node_nin(&g->node[r]); i++) {
            ref x = source(g, node_in(g, &g->node[r], i));
            if (x < m->s->first && !is_free(g, x) && !m->kept[x]) {
                m->kept[x] = true;
                cheap += is_cheap(g, x) ? remat_bytes_of(g, x) : 0;
            }
        }
    for (ref x = m->s->first; x-- > 1 && cheap > most;) {
        if (!m->kept[x] || !is_cheap(g, x))
            continue;
        m->kept[x] = false;
        if (cost(m, x, false) > remat_bytes_of(g, x)) {
            m->kept[x] = true;
            continue;
        }
        cost(m, x, true);
        cheap -= remat_bytes_of(g, x);
        any = true;
    }
    return any;
}

/* Node x of the forward pass as the backward one reads it: a copy of what it computes again, else the first one. */
static ref remat_copy(struct rematerializer *m, struct rewrite *w, ref x, ref *second)
{
    struct graph *g = m->g;
    ref s = source(g, x);
    if (x >= m->s->first || s >= m->s->first || is_free(g, s) || m->kept[s] || !m->remat[s])
        return w->map[x];
    uint32_t top = 0;
    m->stack[top++] = x;
    while (top && !w->to->err.code) { /* operands first */
        ref y = m->stack[top - 1], in[MAX_OPERANDS] = {0};
        bool waits = false;
        for (unsigned i = 0; i < g->node[y].nin && !second[y]; i++) {
            ref z = g->node[y].in[i], base = source(g, z);
            bool own = !is_free(g, base) && !m->kept[base] && m->remat[base];
            if (own && !second[z]) {
                m->stack[top++] = z;
                waits = true;
            }
            in[i] = own ? second[z] : w->map[z];
        }
        if (waits)
            continue;
        if (!second[y]) {
            second[y] = graph_copy_node(w->to, g, &g->node[y], in);
            if (second[y])
                w->to->node[second[y]].flags |= MARK_REMAT;
        }
        top--;
    }
    return second[x];
}

/* Node r, its operands as the backward pass has them. */
static void copy_reader(struct rematerializer *m, struct rewrite *w, ref r, ref *second, ref *in)
{
    struct graph *g = m->g;
    unsigned nin = node_nin(&g->node[r]);
    for (unsigned i = 0; i < nin; i++)
        in[i] = remat_copy(m, w, node_in(g, &g->node[r], i), second);
    w->map[r] = w->to->err.code ? NIL : graph_copy_node(w->to, g, &g->node[r], in);
}

/* The sweeps before it, whose nodes have moved. */
static void follow(const struct rewrite *w, struct swept *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (s[i].first == s[i].end)
            continue;
        s[i].end = w->map[s[i].end - 1] + 1;
        s[i].first = w->map[s[i].first];
    }
}

/* m->s is the last of the sweeps s[0..n). */
static int one_sweep(struct rematerializer *m, struct swept *s, uint32_t n, ref *second, ref *in)
{
    struct rewrite w;
    if (rewrite_begin(&w, m->g))
        for (ref r = 1; r < m->g->nnode && !m->g->err.code && !w.to->err.code; r++) {
            rewrite_site(&w, r);
            if (r >= m->s->first && r < m->s->end)
                copy_reader(m, &w, r, second, in);
            else
                rewrite_copy(&w, r);
        }
    if (w.map && w.to && !m->g->err.code && !w.to->err.code)
        follow(&w, s, n - 1);
    return rewrite_end(&w);
}

static int remat_forget(struct graph *g, struct swept *s, uint32_t n)
{
    uint32_t most = MAX_OPERANDS;
    for (ref r = 1; r < g->nnode; r++)
        most = node_nin(&g->node[r]) > most ? node_nin(&g->node[r]) : most;
    struct rematerializer m = {.g = g, .s = &s[n - 1]};
    m.kept = mem_alloc(g->nnode * sizeof *m.kept);
    m.remat = mem_alloc(g->nnode * sizeof *m.remat);
    m.stack = mem_alloc((size_t)g->nnode * MAX_OPERANDS * sizeof *m.stack);
    m.seen = mem_alloc(g->nnode * sizeof *m.seen);
    ref *second = mem_alloc(g->nnode * sizeof *second), *in = mem_alloc(most * sizeof *in);
    int changed = -1;
    if (!m.kept || !m.remat || !m.stack || !m.seen || !second || !in)
        err_set(&g->err, KL_ERR_MEMORY, "out of memory rewriting graph @%s", g->name);
    else
        changed = remat_choose(&m) ? one_sweep(&m, s, n, second, in) : 0;
    mem_free(m.kept);
    mem_free(m.remat);
    mem_free(m.stack);
    mem_free(m.seen);
    mem_free(second);
    mem_free(in);
    return changed;
}

int remat(struct graph *g, struct swept *s, uint32_t n)
{
    int changed = 0;
    /* the last first: what it reads of others is forward to it */
    for (uint32_t left = n; left > 0 && changed >= 0; left--) {
        bool has = s[left - 1].keep && !BROKEN(A29) && s[left - 1].first < s[left - 1].end;
        int one = has ? remat_forget(g, s, left) : 0;
        changed = one < 0 ? -1 : changed | one;
    }
    return changed;
}
