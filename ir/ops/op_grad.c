/* grad: the gradient of the sum of `loss` with respect to `wrt`. Pass autodiff replaces it before anything runs,
 * innermost first, so all rules except shape's fail with that reason. */
#include "ir/ir.h"
#include "ir/loop/loop.h"

bool shape_grad(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    static const char *const role[] = {"loss", "variable"};
    for (unsigned i = 0; i < 2; i++) {
        unsigned dtype = node_at(g, n->in[i])->dtype;
        if (!dtype_is_float(dtype))
            return err_set(e, KL_ERR_TYPE, "grad: the %s needs a floating dtype, got %s", role[i], dtype_name(dtype));
    }
    n->dtype = node_at(g, n->in[1])->dtype;
    *out = *node_shape(g, n->in[1]);
    return attr_clear_rest(n, sizeof n->attr.grad);
}

/* interp_run rejects such a graph before; called directly, it has no value. */
bool eval_grad(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    (void)g, (void)n, (void)out, (void)in;
    return false;
}

void vjp_grad(struct graph *g, ref y, ref dy, ref *din)
{
    (void)dy;
    din[0] = din[1] = NIL;
    err_set(&g->err, KL_ERR_INTERNAL, "grad: node %u is still there; pass autodiff expands it first", y);
}

uint32_t lower_grad(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    err_set(&l->k->err, KL_ERR_INTERNAL, "grad: node %u is still there; pass autodiff expands it first", r);
    return 0;
}
