/* The gradient columns of ops.def as code. `g a b c y dy` and NIL are the names that they may use. */
#include "ir/ir.h"

static void gradient_rule(struct graph *g, unsigned op, ref a, ref b, ref c, ref y, ref dy, ref *din)
{
    (void)a, (void)b, (void)c;
    switch (op) {
#define EW1(name, types, value, ga, autocast, doc) \
    case OP_##name: din[0] = ga; return;
#define EW2(name, types, value, ga, gb, autocast, doc) \
    case OP_##name: din[0] = ga; din[1] = gb; return;
#define EW3(name, types, value, ga, gb, gc, autocast, doc) \
    case OP_##name: din[0] = ga; din[1] = gb; din[2] = gc; return;
#include "ops.def"
    }
}

/* Does a gradient among the nodes from `first` on take more than one op? Each op would round. */
static bool rounds_more_than_once(const struct graph *g, ref first, const struct node *n, const ref *din)
{
    unsigned ops = 0, gradients = 0;
    for (ref r = first; r < g->nnode; r++)
        ops += op_is_elementwise(g->node[r].op);
    for (unsigned i = 0; i < n->nin; i++)
        gradients += din[i] >= first;
    return ops > gradients;
}

/* A gradient of f16 or bf16 that takes several ops is computed in f32, from the f32 value of the result, and rounded
 * once. */
void elementwise_vjp(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    const ref first = g->nnode;
    gradient_rule(g, n.op, n.in[0], n.in[1], n.in[2], y, dy, din);
    if (!dtype_is_half(n.dtype) || !rounds_more_than_once(g, first, &n, din))
        return;
    struct node wide = n;
    for (unsigned i = 0; i < n.nin; i++)
        if (dtype_is_half(node_at(g, n.in[i])->dtype))
            wide.in[i] = n_cast(g, n.in[i], KL_F32);
    ref in_f32 = graph_add(g, &wide, NULL);
    gradient_rule(g, n.op, wide.in[0], wide.in[1], wide.in[2], in_f32, n_cast(g, dy, KL_F32), din);
    for (unsigned i = 0; i < n.nin; i++)
        if (din[i] != NIL)
            din[i] = n_cast(g, din[i], node_at(g, n.in[i])->dtype);
}
