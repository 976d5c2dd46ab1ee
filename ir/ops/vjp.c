/* The gradient columns of ops.def as code. `g a b c y dy` and NIL are the names that they may use. */
#include "ir/ir.h"

/* ---- gradients of more than one intermediate value: the order of these lines is that of the nodes' numbers ---- */

static ref gradient_of_abs(struct graph *g, ref a, ref dy)
{
    ref zero = n_k(g, a, 0), not_negative = n_where(g, n_eq(g, a, zero), zero, dy), negative = n_neg(g, dy);
    return n_where(g, n_lt(g, a, zero), negative, not_negative);
}

static ref gradient_of_tanh(struct graph *g, ref y, ref dy)
{
    ref square = n_mul(g, y, y);
    return n_mul(g, dy, n_sub(g, n_k(g, y, 1), square));
}

static ref gradient_of_tan(struct graph *g, ref y, ref dy)
{
    ref one = n_k(g, y, 1);
    return n_mul(g, dy, n_add(g, n_mul(g, y, y), one));
}

static ref gradient_of_atan(struct graph *g, ref a, ref dy) /* twice a quotient: a^2 + 1 could overflow */
{
    ref h = n_hypot(g, a, n_k(g, a, 1));
    return n_div(g, n_div(g, dy, h), h);
}

static ref gradient_of_acosh(struct graph *g, ref a, ref dy)
{
    ref one = n_k(g, a, 1), above = n_sqrt(g, n_add(g, a, one)), below = n_sqrt(g, n_sub(g, a, one));
    return n_div(g, n_div(g, dy, below), above);
}

static ref gradient_of_atanh(struct graph *g, ref a, ref dy)
{
    ref one = n_k(g, a, 1), more = n_add(g, one, a);
    return n_div(g, dy, n_mul(g, n_sub(g, one, a), more));
}

static ref gradient_of_erf(struct graph *g, ref a, ref dy, double scale) /* scale: 2 / sqrt(pi), negative for erfc */
{
    ref bell = n_exp(g, n_neg(g, n_mul(g, a, a)));
    return n_mul(g, dy, n_mul(g, n_k(g, a, scale), bell));
}

static ref gradient_of_rsqrt(struct graph *g, ref a, ref y, ref dy)
{
    ref quotient = n_div(g, y, a);
    return n_mul(g, n_mul(g, dy, n_k(g, y, -0.5)), quotient);
}

static ref gradient_of_atan2(struct graph *g, ref hypot, ref x, ref dy) /* dy x / hypot^2, without overflow */
{
    return n_div(g, n_mul(g, dy, n_div(g, x, hypot)), hypot);
}

static ref gradient_of_copysign(struct graph *g, ref a, ref b, ref dy)
{
    ref one = n_k(g, a, 1), sign_of_b = n_copysign(g, one, b);
    return n_mul(g, dy, n_mul(g, n_copysign(g, one, a), sign_of_b));
}

/* ---- the rows ---- */

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
