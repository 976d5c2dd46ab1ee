/* Inlines the region ops that only matter to gradients: checkpoint and custom_grad.
 *
 * In: any graph.  A graph with grad nodes, in itself or in a region, is not changed: gradients need these ops, and a
 * gradient in a region distinguishes parameters that have the same value.  Out: no checkpoint and no custom_grad.
 *
 * The nodes of a checkpoint's backward pass are marked, so that later passes do not merge them with equal nodes of the
 * forward pass: they are recomputed late, and the first values are not kept for them. */
#include "passes/passes.h"
#include "rewrite.h"

struct inliner {
    struct rewrite w;
    uint32_t *first;       /* per inlined node: the start of its results in `result` */
    ref *result; uint32_t nresult, result_cap;
};

static bool inline_node(struct inliner *l, ref r)
{
    struct graph *g = l->w.from;
    const struct node *n = &g->node[r];
    uint32_t nout = region_results(g, n);
    ref *in = mem_alloc((node_nin(n) + 1) * sizeof *in);
    if (!in || !mem_reserve(&l->result, &l->result_cap, l->nresult + nout, sizeof *l->result)) {
        mem_free(in);
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory inlining regions of @%s", g->name);
    }
    for (uint32_t i = 0; i < node_nin(n); i++)
        in[i] = l->w.map[node_in(g, n, i)];
    l->first[r] = l->nresult;
    uint16_t flags = n->attr.region.flags & REGION_REMAT ? MARK_REMAT : 0;
    bool ok = graph_splice(l->w.to, node_region(g, n, 0), in, flags, l->result + l->nresult);
    l->nresult += nout;
    mem_free(in);
    return ok;
}

int pass_inline(struct graph *g, const struct pass_options *o)
{
    (void)o;
    bool any = false;
    for (ref r = 1; r < g->nnode; r++)
        any |= op_is_inlined(g->node[r].op);
    if (!any)
        return 0;
    struct inliner l = {.first = mem_alloc(g->nnode * sizeof *l.first)};
    if (!l.first)
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory inlining regions of @%s", g->name), -1;
    if (rewrite_begin(&l.w, g))
        for (ref r = 1; r < g->nnode && !g->err.code && !l.w.to->err.code; r++) {
            const struct node *n = &g->node[r];
            if (op_is_inlined(n->op))
                inline_node(&l, r);
            else if (n->op == OP_proj && op_is_inlined(g->node[n->in[0]].op))
                l.w.map[r] = l.result[l.first[n->in[0]] + n->attr.proj.index];
            else
                rewrite_copy(&l.w, r);
        }
    mem_free(l.first);
    mem_free(l.result);
    return rewrite_end(&l.w);
}
