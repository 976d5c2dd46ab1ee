/* copy: the operand's values on another device, the node's own.  It is a command of the program, never part of a
 * kernel. */
#include "ir/ir.h"
#include "ir/loop/loop.h"

bool shape_copy(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    (void)e;
    n->dtype = node_at(g, n->in[0])->dtype;
    *out = *node_shape(g, n->in[0]);
    return attr_clear_rest(n, 0);
}

bool eval_copy(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_input(g, n, out, in);
}

void vjp_copy(struct graph *g, ref y, ref dy, ref *din)
{
    din[0] = n_copy(g, dy, node_at(g, node_at(g, y)->in[0])->device);
}

uint32_t lower_copy(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    err_set(&l->k->err, KL_ERR_INTERNAL, "copy: node %u is no element of a kernel", r);
    return 0;
}
