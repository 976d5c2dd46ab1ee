/* cast: the same values in another dtype; bitcast: the same bits.  Equal dtypes make a copy. */
#include "ir/ir.h"
#include "ir/loop/loop.h"

bool shape_cast(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (n->dtype >= KL_DTYPE_COUNT)
        return err_set(e, KL_ERR_TYPE, "cast: dtype %u does not exist", n->dtype);
    *out = *node_shape(g, n->in[0]);
    return attr_clear_rest(n, 0);
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

/* ---- bitcast ---- */

/* A bool is 0 or 1, so no other dtype has the same bits. */
bool shape_bitcast(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    unsigned from = node_at(g, n->in[0])->dtype;
    if (n->dtype >= KL_DTYPE_COUNT)
        return err_set(e, KL_ERR_TYPE, "bitcast: dtype %u does not exist", n->dtype);
    if (dtype_size(n->dtype) != dtype_size(from) || (n->dtype == KL_BOOL) != (from == KL_BOOL))
        return err_set(e, KL_ERR_TYPE, "bitcast: the bits of %s are not those of %s", dtype_name(from),
                       dtype_name(n->dtype));
    *out = *node_shape(g, n->in[0]);
    return attr_clear_rest(n, 0);
}

bool eval_bitcast(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_input(g, n, out, in);
}

void vjp_bitcast(struct graph *g, ref y, ref dy, ref *din)
{
    din[0] = node_at(g, node_at(g, y)->in[0])->dtype == node_at(g, y)->dtype ? dy : NIL;
}

uint32_t lower_bitcast(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    val a = l->at(l, n->in[0], coord);
    return a && val_dtype(l->k, a) != n->dtype ? k_inst(l->k, L_OP(P_BITS), n->dtype, a, 0, 0, 0) : a;
}
