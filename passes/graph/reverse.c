/* The reverse sweep: from a node back to what it is made of, each op by its rule. */
#include "reverse.h"

bool reverse_begin(struct reverse *v, struct graph *t)
{
    *v = (struct reverse){.t = t, .n = t->nnode};
    v->wanted = mem_alloc(v->n * sizeof *v->wanted);
    v->needed = mem_alloc(v->n * sizeof *v->needed);
    v->adjoint = mem_alloc(v->n * sizeof *v->adjoint);
    return v->wanted && v->needed && v->adjoint;
}

void reverse_end(struct reverse *v)
{
    mem_free(v->wanted);
    mem_free(v->needed);
    mem_free(v->adjoint);
}

/* Does a gradient pass from node r to an operand that needs it? */
static bool leads_on(const struct reverse *v, ref r)
{
    const struct node *n = &v->t->node[r];
    bool any = false;
    for (unsigned i = 0; !(n->flags & MARK_STOP) && i < node_nin(n); i++)
        any |= v->needed[node_in(v->t, n, i)];
    return any;
}

void reverse_mark(struct reverse *v, ref last)
{
    for (ref r = 1; r <= last; r++) {
        const struct node *n = &v->t->node[r];
        v->needed[r] = (v->wanted[r] || leads_on(v, r)) && node_carries_gradient(n);
    }
}

void reverse_add(struct reverse *v, ref r, ref d)
{
    if (d && v->needed[r])
        v->adjoint[r] = v->adjoint[r] ? n_add(v->t, v->adjoint[r], d) : d;
}

/* By now all that flows to its results is known. */
static void sweep_region(struct reverse *v, ref r)
{
    struct graph *t = v->t;
    uint32_t nout = region_results(t, &t->node[r]);
    ref *dy = mem_alloc(nout * sizeof *dy);
    bool any = false;
    for (ref y = r + 1; dy && y < v->n; y++) {
        const struct node *n = &t->node[y];
        if (n->op != OP_proj || n->in[0] != r || !v->adjoint[y] || !leads_on(v, y))
            continue;
        dy[n->attr.proj.index] = v->adjoint[y];
        any = true;
    }
    if (!dy)
        err_set(&t->err, KL_ERR_MEMORY, "out of memory differentiating @%s", t->name);
    else if (any)
        reverse_region(v, r, dy);
    mem_free(dy);
}

void reverse_sweep(struct reverse *v, ref last)
{
    struct graph *t = v->t;
    for (ref r = last; r > 0 && !t->err.code; r--) {
        struct node n = t->node[r]; /* a copy: building may move the array */
        if (n.op == OP_proj || !leads_on(v, r))
            continue;
        t->cur_site = n.site;
        t->cur_device = n.device;
        if (op_is_region(n.op)) {
            sweep_region(v, r);
        } else if (v->adjoint[r] && opinfo[n.op].vjp) {
            ref d[MAX_OPERANDS] = {0};
            opinfo[n.op].vjp(t, r, v->adjoint[r], d);
            for (unsigned i = 0; i < n.nin; i++)
                reverse_add(v, n.in[i], d[i]);
        }
    }
}
