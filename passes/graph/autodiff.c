/* Expands grad nodes: reverse-mode differentiation as a graph rewrite.
 *
 * In: any graph.  Out: the same graph without grad nodes.
 *
 * The graph is copied node by node.  At the first grad node of a loss, the adjoints of everything
 * between its operands and the loss are built in one reverse sweep, whose results serve every grad
 * node of that loss: n gradients cost one sweep.  By then the nodes before it are free of grad
 * nodes, so a gradient of a gradient is nothing special.  Rules are the vjp of struct opinfo. */
#include "passes/passes.h"
#include "remat.h"
#include "reverse.h"
#include "rewrite.h"

struct sweep {
    struct rewrite *w;
    bool *done;   /* per node of the old graph: its gradient stands in map */
    struct swept *swept; uint32_t n, cap; /* the sweeps so far */
};

/* Is r a grad node of the same sweep as `first`? */
static bool wants(const struct graph *g, ref r, ref first)
{
    const struct node *n = &g->node[r], *f = &g->node[first];
    return n->op == OP_grad && n->in[0] == f->in[0] && n->attr.grad.keep == f->attr.grad.keep;
}

/* A marked grad node's gradient as a value that no gradient flows through. */
static ref stopped(struct graph *t, const struct node *grad, ref r)
{
    if (r == NIL || !(grad->flags & MARK_STOP))
        return r;
    struct shape s = *node_shape(t, r);
    ref view = n_reshape(t, r, &s);
    if (view)
        t->node[view].flags = MARK_STOP;
    return view;
}

/* Builds the gradients of every grad node of this loss and maps them. */
static bool expand(struct sweep *s, ref first)
{
    struct graph *g = s->w->from, *t = s->w->to;
    ref loss = s->w->map[g->node[first].in[0]];
    struct reverse v;
    bool ok = reverse_begin(&v, t) && mem_reserve(&s->swept, &s->cap, s->n + 1, sizeof *s->swept);
    if (!ok) {
        err_set(&g->err, KL_ERR_MEMORY, "out of memory differentiating @%s", g->name);
    } else {
        /* An operand recorded after the first grad node cannot be below the loss: its gradient is 0. */
        for (ref r = first; r < g->nnode; r++)
            if (wants(g, r, first) && s->w->map[g->node[r].in[1]])
                v.wanted[s->w->map[g->node[r].in[1]]] = true;
        reverse_mark(&v, loss);
        if (v.needed[loss])
            reverse_add(&v, loss, n_k(t, loss, 1));
        reverse_sweep(&v, loss);
        for (ref r = first; r < g->nnode; r++) {
            ref x = wants(g, r, first) ? s->w->map[g->node[r].in[1]] : NIL;
            if (!x || x >= v.n)
                continue;
            rewrite_site(s->w, r);
            s->w->map[r] = stopped(t, &g->node[r], v.adjoint[x] ? v.adjoint[x] : n_k(t, x, 0));
            s->done[r] = true;
        }
        s->swept[s->n++] = (struct swept){v.n, t->nnode, g->node[first].attr.grad.keep};
    }
    reverse_end(&v);
    return ok;
}

int pass_autodiff(struct graph *g)
{
    bool any = false;
    for (ref r = 1; r < g->nnode; r++)
        any |= g->node[r].op == OP_grad;
    if (!any)
        return 0;
    struct rewrite w;
    struct sweep s = {.w = &w, .done = mem_alloc(g->nnode * sizeof *s.done)};
    if (!s.done)
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory differentiating @%s", g->name), -1;
    if (rewrite_begin(&w, g)) {
        for (ref r = 1; r < g->nnode && !g->err.code && !w.to->err.code; r++) {
            if (g->node[r].op != OP_grad) {
                rewrite_copy(&w, r);
            } else if (!s.done[r]) {
                rewrite_site(&w, r);
                expand(&s, r);
                if (!s.done[r]) { /* the operand came later than the loss */
                    w.map[r] = n_k(w.to, w.map[g->node[r].in[1]], 0);
                    s.done[r] = true;
                }
            }
        }
    }
    mem_free(s.done);
    int changed = rewrite_end(&w);
    if (changed > 0 && remat(g, s.swept, s.n) < 0)
        changed = -1;
    mem_free(s.swept);
    return changed;
}
