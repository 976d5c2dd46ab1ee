/* ai.onnx.preview.training: gradients, and optimizers, whose operands are R, T, then for each of k tensors X, G and
 * states. */
#include "frontend/formats/onnx/onnx.h"
#include <string.h>

enum { MOMENTUM, ADAGRAD, ADAM };
enum { STATES_MAX = 2 };

static kl_tensor train_number(struct node *n, kl_tensor like, double v) { return onnx_number(n, kl_dtype_of(like), v); }
static kl_tensor train_scaled(struct node *n, kl_tensor a, double v) { return kl_mul(a, train_number(n, a, v)); }

/* base ^ t, t an integer tensor */
static kl_tensor train_power(struct node *n, double base, kl_tensor t, kl_dtype d)
{
    return kl_pow(onnx_number(n, d, base), kl_cast(t, d));
}

/* Updates x and its states. */
static void onnx_update_parameter(struct node *n, kl_tensor R, kl_tensor T, kl_tensor *x, kl_tensor G, kl_tensor *state)
{
    kl_dtype d = kl_dtype_of(*x);
    double alpha = onnx_attr_float(n, "alpha", 0.9f), beta = onnx_attr_float(n, "beta", 0.999f);
    double eps = onnx_attr_float(n, "epsilon", 1e-6f);
    kl_tensor later = kl_gt(T, onnx_number(n, kl_dtype_of(T), 0)), one = onnx_number(n, d, 1);
    G = kl_add(train_scaled(n, *x, onnx_attr_float(n, "norm_coefficient", 0)), G);
    if (n->def->op->arg == MOMENTUM) {
        kl_tensor by = kl_where(later, onnx_number(n, d, onnx_attr_float(n, "beta", 1)), one);
        state[0] = kl_add(train_scaled(n, state[0], onnx_attr_float(n, "alpha", 0)), kl_mul(by, G));
        bool nesterov = onnx_attr_is(n, "mode", "nesterov", false);
        kl_tensor move = nesterov ? kl_add(G, train_scaled(n, state[0], onnx_attr_float(n, "alpha", 0))) : state[0];
        *x = kl_sub(*x, kl_mul(R, move));
    } else if (n->def->op->arg == ADAGRAD) {
        kl_tensor decay = train_scaled(n, kl_cast(T, d), onnx_attr_float(n, "decay_factor", 0));
        state[0] = kl_add(state[0], kl_mul(G, G));
        kl_tensor rate = kl_div(R, kl_add(decay, one));
        *x = kl_sub(*x, kl_div(kl_mul(rate, G), kl_add(kl_sqrt(state[0]), train_number(n, *x, eps))));
    } else {
        state[0] = kl_add(train_scaled(n, state[0], alpha), train_scaled(n, G, 1 - alpha));
        state[1] = kl_add(train_scaled(n, state[1], beta), train_scaled(n, kl_mul(G, G), 1 - beta));
        kl_tensor up = kl_sqrt(kl_sub(one, train_power(n, beta, T, d)));
        kl_tensor down = kl_sub(one, train_power(n, alpha, T, d));
        kl_tensor rate = kl_where(later, kl_div(kl_mul(R, up), down), R);
        *x = kl_sub(*x, kl_div(kl_mul(rate, state[0]), kl_add(kl_sqrt(state[1]), train_number(n, *x, eps))));
        *x = train_scaled(n, *x, 1 - onnx_attr_float(n, "norm_coefficient_post", 0));
    }
}

bool onnx_optimizer(struct node *n)
{
    uint32_t states = n->def->op->arg == ADAM ? 2 : 1, each = 2 + states;
    if (onnx_nin(n) < 2 + each || (onnx_nin(n) - 2) % each)
        return onnx_fails(n, KL_ERR_ARGUMENT, "%u operands", onnx_nin(n));
    uint32_t k = (onnx_nin(n) - 2) / each;
    kl_tensor R = onnx_in(n, 0), T = onnx_in(n, 1);
    for (uint32_t i = 0; i < k; i++) {
        kl_tensor x = onnx_in(n, 2 + i), state[STATES_MAX];
        for (uint32_t s = 0; s < states; s++)
            state[s] = onnx_in(n, 2 + (2 + s) * k + i);
        onnx_update_parameter(n, R, T, &x, onnx_in(n, 2 + k + i), state);
        if (!onnx_give(n, i, x))
            return false;
        for (uint32_t s = 0; s < states; s++)
            if (!onnx_give(n, (1 + s) * k + i, state[s]))
                return false;
    }
    return true;
}

/* The value of the node's own graph with this name; NULL: there is none, or nothing reads it. */
static struct value *value_named(const struct node *n, const ProtobufCBinaryData *name)
{
    const struct graph_def *g = n->frame->g;
    for (uint32_t i = 0; i < g->nvalue; i++)
        if (g->name[i] && strlen(g->name[i]) == name->len && !memcmp(g->name[i], name->data, name->len))
            return n->frame->v[i].set ? &n->frame->v[i] : NULL;
    return NULL;
}

/* The gradients of the value that attribute y names with respect to the first operands, which attribute xs names.  The
 * operands behind them, of attribute zs, are held constant, as all others are. */
bool onnx_gradient(struct node *n)
{
    const Onnx__AttributeProto *y = onnx_attr(n, "y"), *xs = onnx_attr(n, "xs");
    const struct value *of = y ? value_named(n, &y->s) : NULL;
    if (!of || !of->t.id || !xs || xs->n_strings > onnx_nin(n) || onnx_nout(n) > xs->n_strings)
        return onnx_fails(n, KL_ERR_ARGUMENT, "attribute y does not name a value that the graph has computed from its "
                          "inputs, or xs does not fit the operands");
    kl_tensor sum = kl_numel(of->t) == 1 ? of->t : kl_sum_all(of->t);
    enum { FEW = 64 };
    kl_tensor in[FEW], gradient[FEW];
    uint32_t count = onnx_nout(n);
    if (count > FEW)
        return onnx_fails(n, KL_ERR_ARGUMENT, "%u gradients are more than %d", count, FEW);
    for (uint32_t i = 0; i < count; i++)
        in[i] = onnx_in(n, i);
    bool ok = kl_grads(sum, count, in, gradient) == KL_OK;
    for (uint32_t i = 0; i < count && ok; i++)
        ok = onnx_give(n, i, gradient[i]);
    return ok;
}
