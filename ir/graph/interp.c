/* The reference interpreter: evaluates nodes one by one, each into its own memory, without kernels and threads. */
#include "custom.h"
#include <string.h>

bool interp_node(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return opinfo[n->op].eval(g, n, out, in);
}

/* The last use of each node: 0 none, UINT32_MAX an output. */
static void find_last_uses(const struct graph *g, uint32_t *last)
{
    for (uint32_t i = 0; i < g->nout; i++)
        last[g->out[i].value] = UINT32_MAX;
    for (ref r = g->nnode; r-- > 1;)
        if (last[r])
            for (unsigned i = 0; i < node_nin(node_at(g, r)); i++)
                if (!last[node_in(g, node_at(g, r), i)])
                    last[node_in(g, node_at(g, r), i)] = r;
}

static bool graph_interp_fail(const struct graph *g, ref r, kl_status code, const char *why, struct err *e)
{
    const struct node *n = node_at(g, r);
    char text[SHAPE_TEXT];
    return err_set(e, code, "graph @%.63s: node %u (%s : %s%s): %s", g->name, r, opinfo[n->op].name,
                   dtype_name(n->dtype), shape_text_in(g, &g->shape[n->shape], text, sizeof text), why);
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

/* ---- region ops: the node's value is its results one after the other, each aligned to 64 bytes ---- */

static bool run_checked(const struct graph *g, const struct bind *b, struct err *e);

struct region_run { const struct graph *g; const struct node *n; const struct bind *outer; struct err *e; };

static bool graph_interp_run_region(void *ctx, uint32_t which, const void *const *in, void *const *out)
{
    const struct region_run *r = ctx;
    const struct bind bind = {.input = in, .out = out, .watch = r->outer->watch, .cancel = r->outer->cancel};
    return run_checked(node_region(r->g, r->n, which), &bind, r->e);
}

static size_t result_offset(const struct graph *g, const struct node *n, uint32_t index)
{
    size_t at = 0;
    for (uint32_t i = 0; i < index; i++)
        at += (region_result_bytes(g, n, i) + 63) / 64 * 64;
    return at;
}

static bool evaluate_region(const struct graph *g, ref r, const struct bind *b, void **value, struct err *e)
{
    const struct node *n = node_at(g, r);
    uint32_t nout = region_results(g, n), nin = node_nin(n);
    void *work = mem_alloc(region_work_bytes(g, n)), **at = mem_alloc((nin + nout) * sizeof *at);
    value[r] = mem_alloc(result_offset(g, n, nout));
    bool ok = value[r] && work && at;
    for (uint32_t i = 0; ok && i < nin; i++)
        at[i] = value[node_in(g, n, i)];
    for (uint32_t i = 0; ok && i < nout; i++)
        at[nin + i] = (char *)value[r] + result_offset(g, n, i);
    if (ok && n->op == OP_custom)
        ok = custom_run(g, n, NULL, (const void *const *)at, at + nin, work, e);
    if (ok && n->op != OP_custom) {
        struct region_call c = region_call(g, n);
        c.in = (const void *const *)at, c.out = at + nin, c.work = work;
        c.run = graph_interp_run_region, c.ctx = &(struct region_run){g, n, b, e};
        ok = region_run(&c);
    }
    if (!ok && !e->code)
        graph_interp_fail(g, r, KL_ERR_MEMORY, "out of memory", e);
    mem_free(work);
    mem_free(at);
    return ok;
}

static bool evaluate_proj(const struct graph *g, ref r, void **value, struct err *e)
{
    const struct node *n = node_at(g, r);
    size_t bytes = node_bytes(g, r);
    value[r] = mem_alloc(bytes);
    if (!value[r])
        return graph_interp_fail(g, r, KL_ERR_MEMORY, "out of memory", e);
    memcpy(value[r], (char *)value[n->in[0]] + result_offset(g, node_at(g, n->in[0]), n->attr.proj.index), bytes);
    return true;
}

static bool interp_value(const struct graph *g, ref r, const struct bind *b, void **value, struct err *e)
{
    const struct node *n = node_at(g, r);
    if (n->op == OP_grad)
        return graph_interp_fail(g, r, KL_ERR_INTERNAL, "is still there; pass autodiff expands it first", e);
    if (node_wants_order(n))
        return graph_interp_fail(g, r, KL_ERR_INTERNAL, "has no numeric order; pass numerics writes it first", e);
    if (op_is_region(n->op))
        return evaluate_region(g, r, b, value, e);
    if (n->op == OP_proj)
        return evaluate_proj(g, r, value, e);
    value[r] = mem_alloc(node_bytes(g, r));
    if (!value[r])
        return graph_interp_fail(g, r, KL_ERR_MEMORY, "out of memory", e);
    const void *in[MAX_OPERANDS] = {0};
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = value[n->in[i]];
    if (interp_node(g, n, value[r], in))
        return true;
    return graph_interp_fail(g, r, op_is_elementwise(n->op) ? KL_ERR_INTERNAL : KL_ERR_MEMORY, "could not be computed",
                             e);
}

static void graph_interp_release(const struct graph *g, ref r, void **value)
{
    if (!is_bound(node_at(g, r)))
        mem_free(value[r]);
    value[r] = NULL;
}

static bool graph_interp_run(const struct graph *g, const struct bind *b, const uint32_t *last, void **value,
                             struct err *e)
{
    for (ref r = 1; r < g->nnode; r++) {
        const struct node *n = node_at(g, r);
        if (!last[r])
            continue;
        if (cancellation_requested(b->cancel, e))
            return false;
        if (is_bound(n))
            value[r] = (void *)bound_data(n, b);
        else if (!interp_value(g, r, b, value, e))
            return false;
        if (b->watch)
            b->watch->node(b->watch->ctx, g, r, value);
        for (unsigned i = 0; i < node_nin(n); i++)
            if (last[node_in(g, n, i)] == r)
                graph_interp_release(g, node_in(g, n, i), value);
    }
    for (uint32_t i = 0; i < g->nout; i++) {
        size_t bytes = node_bytes(g, g->out[i].value);
        if (bytes)
            memcpy(b->out[i], value[g->out[i].value], bytes);
    }
    return true;
}

/* Runs a graph that is known to be valid: regions run many times. */
static bool run_checked(const struct graph *g, const struct bind *b, struct err *e)
{
    uint32_t *last = mem_alloc(g->nnode * sizeof *last);
    void **value = mem_alloc(g->nnode * sizeof *value);
    bool ok = last && value;
    if (ok) {
        find_last_uses(g, last);
        ok = graph_interp_run(g, b, last, value, e);
        for (ref r = 1; r < g->nnode; r++)
            graph_interp_release(g, r, value);
    } else {
        err_set(e, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    }
    mem_free(last);
    mem_free(value);
    return ok;
}

bool interp_run(const struct graph *g, const struct bind *b, struct err *e)
{
    return graph_is_bound(g, e) && graph_verify(g, e) && custom_check(g, e) && run_checked(g, b, e);
}
