/* Expands grad nodes: reverse-mode differentiation as a graph rewrite.
 *
 * In: any graph.  Out: the same graph without grad nodes.
 *
 * The graph is copied node by node.  At the first grad node of a loss, the adjoints of everything
 * between its operands and the loss are built in one reverse sweep, whose results serve every grad
 * node of that loss: n gradients cost one sweep.  By then the nodes before it are free of grad
 * nodes, so a gradient of a gradient is nothing special.  Rules are the vjp of struct opinfo. */
#include "passes.h"
#include "rewrite.h"

struct sweep {
    struct rewrite *w;
    bool *done;   /* per node of the old graph: its gradient stands in map */
    bool *needed; /* per node of the new graph: depends on a wanted operand */
    ref *adjoint; /* per node of the new graph: sum of what flowed back so far */
};

static bool wants(const struct graph *g, ref r, ref loss)
{
    return g->node[r].op == OP_grad && g->node[r].in[0] == loss;
}

/* Marks which nodes up to `loss` lead from a wanted operand to it without a stop mark. */
static void mark_needed(struct sweep *s, const bool *wanted, ref loss)
{
    const struct graph *t = s->w->to;
    for (ref r = 1; r <= loss; r++) {
        const struct node *n = &t->node[r];
        bool dep = wanted[r];
        if (!(n->flags & MARK_STOP))
            for (unsigned i = 0; i < node_nin(n); i++)
                dep |= s->needed[node_in(t, n, i)];
        s->needed[r] = dep && (dtype_is_float(n->dtype) || op_is_region(n->op));
    }
}

static void accumulate(struct sweep *s, ref operand, ref d)
{
    struct graph *t = s->w->to;
    ref *a = &s->adjoint[operand];
    *a = *a ? n_add(t, *a, d) : d;
}

static void sweep_back(struct sweep *s, ref loss)
{
    struct graph *t = s->w->to;
    s->adjoint[loss] = n_k(t, loss, 1);
    for (ref r = loss; r > 0 && !t->err.code; r--) {
        struct node n = t->node[r]; /* a copy: building may move the array */
        if (!s->adjoint[r] || !s->needed[r] || (n.flags & MARK_STOP) || !opinfo[n.op].vjp)
            continue;
        bool any = false;
        for (unsigned i = 0; i < n.nin; i++)
            any |= s->needed[n.in[i]];
        if (!any)
            continue;
        ref d[MAX_OPERANDS] = {0};
        t->cur_site = n.site;
        t->cur_device = n.device;
        opinfo[n.op].vjp(t, r, s->adjoint[r], d);
        for (unsigned i = 0; i < n.nin; i++)
            if (d[i] && s->needed[n.in[i]])
                accumulate(s, n.in[i], d[i]);
    }
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
    ref old_loss = g->node[first].in[0], loss = s->w->map[old_loss];
    uint32_t n = t->nnode;
    bool *wanted = mem_alloc(n * sizeof *wanted);
    s->needed = mem_alloc(n * sizeof *s->needed);
    s->adjoint = mem_alloc(n * sizeof *s->adjoint);
    bool ok = wanted && s->needed && s->adjoint;
    if (!ok) {
        err_set(&g->err, KL_ERR_MEMORY, "out of memory differentiating @%s", g->name);
    } else {
        /* An operand recorded after the first grad node cannot be below the loss: its gradient is 0. */
        for (ref r = first; r < g->nnode; r++)
            if (wants(g, r, old_loss) && s->w->map[g->node[r].in[1]])
                wanted[s->w->map[g->node[r].in[1]]] = true;
        mark_needed(s, wanted, loss);
        if (s->needed[loss])
            sweep_back(s, loss);
        for (ref r = first; r < g->nnode; r++) {
            ref x = wants(g, r, old_loss) ? s->w->map[g->node[r].in[1]] : NIL;
            if (!x || x >= n)
                continue;
            rewrite_site(s->w, r);
            s->w->map[r] = stopped(t, &g->node[r], s->adjoint[x] ? s->adjoint[x] : n_k(t, x, 0));
            s->done[r] = true;
        }
    }
    mem_free(wanted);
    mem_free(s->needed);
    mem_free(s->adjoint);
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
    return rewrite_end(&w);
}
