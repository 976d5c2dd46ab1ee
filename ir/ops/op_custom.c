/* custom: a user-defined op.  The node records the types of its results, so graphs with it are parsed, printed and
 * changed without the op being registered. custom.c runs it.  Its only gradient is that of the custom_grad around
 * it. */
#include "ir/graph/custom.h"
#include "ir/loop/loop.h"

bool shape_custom(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const union attr a = n->attr;
    if (a.region.carried || a.region.scanned || a.region.flags || a.region.length < 0 || a.region.length >= g->ncustom)
        return err_set(e, KL_ERR_INTERNAL, "custom: has an attribute that is not its own");
    const struct custom *c = node_custom(g, n);
    if (!c->name[0] || !c->nresult)
        return err_set(e, KL_ERR_INTERNAL, "custom: needs a name and a result");
    n->dtype = KL_BOOL;
    *out = shape_make(1, (int64_t[]){0});
    return true;
}

bool eval_custom(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    (void)g, (void)n, (void)out, (void)in;
    return false; /* like region ops, it has several results */
}

void vjp_custom(struct graph *g, ref y, ref dy, ref *din)
{
    (void)dy, (void)din;
    char at[300], label[CUSTOM_LABEL];
    err_set(&g->err, KL_ERR_GRAD, "%s: no gradient flows through this op%s",
            custom_label(node_custom(g, &g->node[y])->name, label),
            site_text(&g->site[g->node[y].site], " (recorded at ", ")", at, sizeof at));
}

uint32_t lower_custom(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    err_set(&l->k->err, KL_ERR_INTERNAL, "custom: node %u is no element of a kernel", r);
    return 0;
}
