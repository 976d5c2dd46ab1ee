/* Expands grad nodes: reverse-mode differentiation as a graph rewrite.
 *
 * In: any graph.  Out: the same graph without grad nodes.
 *
 * The graph is copied node by node.  At the first grad node of a loss, the adjoints of everything between its operands
 * and the loss are built in one reverse sweep, whose results serve every grad node of that loss: n gradients cost one
 * sweep.  The nodes before it contain no grad nodes by then, so gradients of gradients need no special case.  Rules are
 * the vjp of struct opinfo. */
#include "passes/passes.h"
#include "remat.h"
#include "reverse.h"
#include "rewrite.h"

struct sweep {
    struct rewrite *w;
    bool *done;   /* per node of the old graph: its gradient is in map */
    ref *next;    /* per grad node of the old graph: the next one of the same loss */
    struct reverse reverse;
    struct swept *swept; uint32_t n, cap; /* the sweeps so far */
};

/* Is r a grad node of the same loss as `first`? */
static bool has_same_loss(const struct graph *g, ref r, ref first)
{
    const struct node *n = &g->node[r], *f = &g->node[first];
    return n->op == OP_grad && n->in[0] == f->in[0] && n->attr.grad.keep == f->attr.grad.keep;
}

/* The gradient of a marked grad node, as a value through which no gradient flows. */
static ref stop_gradient(struct graph *t, const struct node *grad, ref r)
{
    if (r == NIL || !(grad->flags & MARK_STOP))
        return r;
    struct shape s = *node_shape(t, r);
    ref view = n_reshape(t, r, &s);
    if (view)
        t->node[view].flags = MARK_STOP;
    return view;
}

/* The next grad node after r of `first`'s loss; NIL: none. */
static ref next_of_loss(const struct sweep *s, ref r, ref first)
{
    do
        r = s->next[r];
    while (r && !has_same_loss(s->w->from, r, first));
    return r;
}

/* Builds the gradients of every grad node of this loss and maps them. */
static bool expand_gradients(struct sweep *s, ref first)
{
    struct graph *g = s->w->from, *t = s->w->to;
    struct reverse *v = &s->reverse;
    ref loss = s->w->map[g->node[first].in[0]];
    if (!reverse_begin(v, t) || !mem_reserve(&s->swept, &s->cap, s->n + 1, sizeof *s->swept))
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory differentiating @%s", g->name);
    /* An operand recorded after the first grad node cannot be below the loss: its gradient is 0. */
    for (ref r = first; r; r = next_of_loss(s, r, first))
        if (s->w->map[g->node[r].in[1]])
            reverse_want(v, s->w->map[g->node[r].in[1]]);
    reverse_root(v, loss);
    reverse_mark(v);
    if (v->needed[loss])
        reverse_add(v, loss, n_k(t, loss, 1));
    reverse_sweep(v);
    for (ref r = first; r; r = next_of_loss(s, r, first)) {
        ref x = s->w->map[g->node[r].in[1]];
        if (!x || x >= v->n)
            continue;
        rewrite_site(s->w, r);
        s->w->map[r] = stop_gradient(t, &g->node[r], v->adjoint[x] ? v->adjoint[x] : n_k(t, x, 0));
        s->done[r] = true;
    }
    s->swept[s->n++] = (struct swept){v->n, t->nnode, g->node[first].attr.grad.keep};
    return true;
}

/* Links the grad nodes of each loss; false: out of memory. */
static bool link_grads(struct sweep *s, const struct graph *g)
{
    ref *first = mem_alloc(g->nnode * sizeof *first); /* per loss */
    for (ref r = g->nnode; first && r-- > 1;)
        if (g->node[r].op == OP_grad) {
            s->next[r] = first[g->node[r].in[0]];
            first[g->node[r].in[0]] = r;
        }
    mem_free(first);
    return first != NULL;
}

int pass_autodiff(struct graph *g, const struct pass_options *o)
{
    bool any = false;
    for (ref r = 1; r < g->nnode; r++)
        any |= g->node[r].op == OP_grad;
    if (!any)
        return 0;
    struct rewrite w;
    struct sweep s = {.w = &w, .reverse = {.gpus = o && !o->graph_order ? o->gpus : 0},
                      .done = mem_alloc(g->nnode * sizeof *s.done),
                      .next = mem_alloc(g->nnode * sizeof *s.next)};
    if (!s.done || !s.next || !link_grads(&s, g)) {
        mem_free(s.done);
        mem_free(s.next);
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory differentiating @%s", g->name), -1;
    }
    if (rewrite_begin(&w, g)) {
        for (ref r = 1; r < g->nnode && !g->err.code && !w.to->err.code; r++) {
            if (g->node[r].op != OP_grad) {
                rewrite_copy(&w, r);
            } else if (!s.done[r]) {
                rewrite_site(&w, r);
                expand_gradients(&s, r);
                if (!s.done[r]) { /* the operand was recorded after the loss */
                    w.map[r] = n_k(w.to, w.map[g->node[r].in[1]], 0);
                    s.done[r] = true;
                }
            }
        }
    }
    reverse_end(&s.reverse);
    mem_free(s.done);
    mem_free(s.next);
    int changed = rewrite_end(&w);
    if (changed > 0 && remat(g, s.swept, s.n) < 0)
        changed = -1;
    mem_free(s.swept);
    return changed;
}
