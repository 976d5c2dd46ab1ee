/* The oracle: evaluates nodes one by one, each into memory of its own, with no kernel and no thread. */
#include "ir/ir.h"
#include <string.h>

bool interp_node(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return opinfo[n->op].eval(g, n, out, in);
}

/* Where each node is needed for the last time: 0 not at all, UINT32_MAX as an output. */
static void find_last_uses(const struct graph *g, uint32_t *last)
{
    for (uint32_t i = 0; i < g->nout; i++)
        last[g->out[i].value] = UINT32_MAX;
    for (ref r = g->nnode; r-- > 1;)
        if (last[r])
            for (unsigned i = 0; i < node_at(g, r)->nin; i++)
                if (!last[node_at(g, r)->in[i]])
                    last[node_at(g, r)->in[i]] = r;
}

static bool fail(const struct graph *g, ref r, kl_status code, const char *why, struct err *e)
{
    const struct node *n = node_at(g, r);
    char text[SHAPE_TEXT];
    return err_set(e, code, "graph @%.63s: node %u (%s : %s%s): %s", g->name, r, opinfo[n->op].name,
                   dtype_name(n->dtype), shape_text(&g->shape[n->shape], text, sizeof text), why);
}

static bool is_bound(const struct node *n)
{
    return n->op == OP_input || n->op == OP_state || n->op == OP_slot;
}

/* The caller's own data; never written and never freed here. */
static const void *bound_data(const struct node *n, const struct bind *b)
{
    uint32_t index = n->attr.leaf.index;
    return n->op == OP_input ? b->input[index] : n->op == OP_state ? b->state[index] : &b->slot[index];
}

static bool evaluate(const struct graph *g, ref r, void **value, struct err *e)
{
    const struct node *n = node_at(g, r);
    if (n->op == OP_grad)
        return fail(g, r, KL_ERR_INTERNAL, "is still there; pass autodiff expands it first", e);
    if ((op_is_reduce(n->op) && n->attr.reduce.lanes == 0) || (n->op == OP_dot && n->attr.dot.kblock == 0))
        return fail(g, r, KL_ERR_INTERNAL, "has no numeric order; pass numerics writes it first", e);
    value[r] = mem_alloc(node_bytes(g, r));
    if (!value[r])
        return fail(g, r, KL_ERR_MEMORY, "out of memory", e);
    const void *in[MAX_OPERANDS] = {0};
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = value[n->in[i]];
    if (interp_node(g, n, value[r], in))
        return true;
    return fail(g, r, op_is_elementwise(n->op) ? KL_ERR_INTERNAL : KL_ERR_MEMORY, "could not be computed", e);
}

static void release(const struct graph *g, ref r, void **value)
{
    if (!is_bound(node_at(g, r)))
        mem_free(value[r]);
    value[r] = NULL;
}

static bool run(const struct graph *g, const struct bind *b, const uint32_t *last, void **value, struct err *e)
{
    for (ref r = 1; r < g->nnode; r++) {
        const struct node *n = node_at(g, r);
        if (!last[r])
            continue;
        if (is_bound(n))
            value[r] = (void *)bound_data(n, b);
        else if (!evaluate(g, r, value, e))
            return false;
        for (unsigned i = 0; i < n->nin; i++)
            if (last[n->in[i]] == r)
                release(g, n->in[i], value);
    }
    for (uint32_t i = 0; i < g->nout; i++) {
        size_t bytes = node_bytes(g, g->out[i].value);
        if (bytes)
            memcpy(b->out[i], value[g->out[i].value], bytes);
    }
    return true;
}

bool interp_run(const struct graph *g, const struct bind *b, struct err *e)
{
    if (!graph_verify(g, e))
        return false;
    uint32_t *last = mem_alloc(g->nnode * sizeof *last);
    void **value = mem_alloc(g->nnode * sizeof *value);
    bool ok = last && value;
    if (ok) {
        find_last_uses(g, last);
        ok = run(g, b, last, value, e);
        for (ref r = 1; r < g->nnode; r++)
            release(g, r, value);
    } else {
        err_set(e, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    }
    mem_free(last);
    mem_free(value);
    return ok;
}
