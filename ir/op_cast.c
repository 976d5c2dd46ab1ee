/* cast: the same values in another dtype; equal dtypes make a copy. */
#include "ir/ir.h"
#include "ir/loop.h"

bool shape_cast(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (n->dtype >= KL_DTYPE_COUNT)
        return err_set(e, KL_ERR_TYPE, "cast: dtype %u does not exist", n->dtype);
    *out = *node_shape(g, n->in[0]);
    return attr_rest_zero(n, 0, e);
}

bool eval_cast(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return scalar_cast(out, n->dtype, in[0], node_at(g, n->in[0])->dtype, shape_count(&g->shape[n->shape]));
}

void vjp_cast(struct graph *g, ref y, ref dy, ref *din)
{
    unsigned from = node_at(g, node_at(g, y)->in[0])->dtype, to = node_at(g, y)->dtype;
    if (dtype_is_float(from) && dtype_is_float(to))
        din[0] = n_cast(g, dy, from);
    else
        din[0] = NIL;
}

uint32_t lower_cast(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    return k_cast(l->k, l->at(l, n->in[0], coord), n->dtype);
}
