/* The reverse sweep: propagates gradients from a node back to its operands, by the rule of each op. */
#include "reverse.h"
#include "passes/passes.h"
#include <stdatomic.h>
#include <stdlib.h>

static void reverse_clear(struct reverse *v)
{
    for (uint32_t i = 0; i < v->nvisited; i++) {
        ref r = v->visited[i];
        v->wanted[r] = v->needed[r] = false;
        v->adjoint[r] = v->proj[r] = NIL;
    }
    v->nvisited = v->npath = 0;
    v->low = UINT32_MAX;
}

bool reverse_begin(struct reverse *v, struct graph *t)
{
    reverse_clear(v);
    v->t = t;
    v->n = t->nnode;
    return mem_reserve(&v->wanted, &v->wanted_cap, v->n, sizeof *v->wanted) &&
           mem_reserve(&v->needed, &v->needed_cap, v->n, sizeof *v->needed) &&
           mem_reserve(&v->adjoint, &v->adjoint_cap, v->n, sizeof *v->adjoint) &&
           mem_reserve(&v->proj, &v->proj_cap, v->n, sizeof *v->proj);
}

void reverse_end(struct reverse *v)
{
    mem_free(v->wanted);
    mem_free(v->needed);
    mem_free(v->adjoint);
    mem_free(v->proj);
    mem_free(v->path);
    mem_free(v->visited);
}

static bool add_visited(struct reverse *v, ref r)
{
    if (!mem_reserve(&v->visited, &v->visited_cap, v->nvisited + 1, sizeof *v->visited))
        return err_set(&v->t->err, KL_ERR_MEMORY, "out of memory differentiating @%s", v->t->name);
    v->visited[v->nvisited++] = r;
    return true;
}

void reverse_want(struct reverse *v, ref r)
{
    if (v->wanted[r] || !add_visited(v, r))
        return;
    v->wanted[r] = true;
    v->low = r < v->low ? r : v->low;
}

/* Does a gradient flow from node r to an operand that needs it? */
static bool passes_gradient(const struct reverse *v, ref r)
{
    const struct node *n = &v->t->node[r];
    bool any = false;
    for (unsigned i = 0; !(n->flags & MARK_STOP) && i < node_nin(n); i++)
        any |= v->needed[node_in(v->t, n, i)];
    return any;
}

/* Until reverse_mark, path lists the nodes that the roots depend on, and needed marks them.  Nodes before the first
 * wanted node depend on none. */
static void reverse_reach(struct reverse *v, ref r)
{
    if (r < v->low || v->needed[r] || !node_carries_gradient(&v->t->node[r]) || !add_visited(v, r))
        return;
    if (!mem_reserve(&v->path, &v->path_cap, v->npath + 1, sizeof *v->path)) {
        err_set(&v->t->err, KL_ERR_MEMORY, "out of memory differentiating @%s", v->t->name);
        return;
    }
    v->needed[r] = true;
    v->path[v->npath++] = r;
}

void reverse_root(struct reverse *v, ref r)
{
    uint32_t next = v->npath;
    for (reverse_reach(v, r); next < v->npath; next++) {
        const struct node *n = &v->t->node[v->path[next]];
        for (unsigned i = 0; !(n->flags & MARK_STOP) && i < node_nin(n); i++)
            reverse_reach(v, node_in(v->t, n, i));
    }
}

static int compare_ascending(const void *a, const void *b)
{
    ref x = *(const ref *)a, y = *(const ref *)b;
    return (x > y) - (x < y);
}

void reverse_mark(struct reverse *v)
{
    uint32_t n = 0;
    if (v->npath)
        qsort(v->path, v->npath, sizeof *v->path, compare_ascending);
    for (uint32_t i = 0; i < v->npath; i++) {
        ref r = v->path[i];
        v->needed[r] = v->wanted[r] || passes_gradient(v, r); /* the operands' entries are final */
        if (v->needed[r])
            v->path[n++] = r;
    }
    atomic_fetch_add_explicit(&pass_steps, v->nvisited, memory_order_relaxed);
    v->npath = n;
}

void reverse_add(struct reverse *v, ref r, ref d)
{
    if (d && v->needed[r])
        v->adjoint[r] = v->adjoint[r] ? n_add(v->t, v->adjoint[r], d) : d;
}

/* All gradients of its results are complete at this point. */
static void sweep_region(struct reverse *v, ref r)
{
    struct graph *t = v->t;
    ref *dy = mem_alloc(region_results(t, &t->node[r]) * sizeof *dy);
    for (ref y = v->proj[r]; dy && y; y = v->proj[y])
        dy[t->node[y].attr.proj.index] = v->adjoint[y];
    if (!dy)
        err_set(&t->err, KL_ERR_MEMORY, "out of memory differentiating @%s", t->name);
    else if (v->proj[r])
        reverse_region(v, r, dy);
    mem_free(dy);
}

void reverse_sweep(struct reverse *v)
{
    struct graph *t = v->t;
    for (uint32_t i = v->npath; i-- > 0 && !t->err.code;) {
        ref r = v->path[i];
        struct node n = t->node[r]; /* a copy: building may reallocate the array */
        if (!passes_gradient(v, r))
            continue;
        t->cur_site = n.site;
        t->cur_device = n.device;
        if (n.op == OP_proj) {
            if (v->adjoint[r]) {
                v->proj[r] = v->proj[n.in[0]];
                v->proj[n.in[0]] = r;
            }
        } else if (op_is_region(n.op)) {
            sweep_region(v, r);
        } else if (v->adjoint[r] && opinfo[n.op].vjp) {
            ref d[MAX_OPERANDS] = {0};
            opinfo[n.op].vjp(t, r, v->adjoint[r], d);
            if (reverse_windows(v, r, v->adjoint[r]))
                d[1] = NIL;
            if (reverse_window_weights(v, r, v->adjoint[r]))
                d[0] = NIL;
            for (unsigned k = 0; k < n.nin; k++)
                reverse_add(v, n.in[k], d[k]);
        }
    }
}
