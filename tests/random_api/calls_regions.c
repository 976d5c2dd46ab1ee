/* Calls that take functions: control flow, checkpoints, gradients of the caller's, vmap; and assignment. */
#include "tests/random_api/calls.h"

/* What a function is given: its choices, so that it records the same each time it is called, and a tensor from
 * outside, or kl_none. */
struct body {
    struct recording choices;
    kl_tensor outside;
};

static struct body body_of(struct recording *c)
{
    return (struct body){.choices = {.r = rng_for(rng_next(&c->r), 0), .device = c->device}};
}

static kl_tensor tame(struct recording *c, kl_tensor x) /* stays near 1 */
{
    static kl_tensor (*const functions[])(kl_tensor) = {kl_tanh, kl_sin, kl_cos, kl_atan, kl_relu, kl_sigmoid,
                                                        kl_silu, kl_gelu, kl_softsign};
    return ONE_OF(c, functions)(x);
}

/* Results with the shapes and dtypes of in[]. */
static kl_status same_types(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct body *b = ctx;
    struct recording copy = b->choices, *c = &copy;
    for (uint32_t i = 0; i < nout; i++) {
        kl_tensor from = in[i % nin], x = from;
        kl_dtype dtype = kl_dtype_of(from);
        int kind = below(c, 4);
        if (dtype == KL_BOOL) {
            x = kl_not(x);
        } else if (!is_float(dtype)) {
            x = kind == 0 ? kl_neg(x) : kind == 1 ? kl_add(x, x) : kl_mul_scalar(x, 3);
        } else {
            x = tame(c, x);
            if (kind == 0)
                x = kl_mul(x, from);
            else if (kind == 1 && kl_rank(x) > 0)
                x = kl_softmax(x, -1);
            else if (kind == 2 && kl_rank(x) > 0)
                x = kl_sub(x, kl_mean(x, 1, (int[]){0}, true));
        }
        out[i] = b->outside.id ? kl_add(x, b->outside) : x;
    }
    return KL_OK;
}

kl_tensor make_branches(struct recording *c, int a)
{
    struct body body = body_of(c);
    kl_tensor in = value_of(c, a), condition = kl_any(pick_other(c, BOOLS), 0, NULL, false), out;
    kl_cond(condition, same_types, same_types, &body, 1, &in, 1, &out);
    return out;
}

/* in: the carried value and one element, of the same type. */
static kl_status scan_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin;
    struct recording copy = ((const struct body *)ctx)->choices, *c = &copy;
    kl_tensor x = kl_add(kl_tanh(in[0]), in[1]);
    if (chance(c, 2))
        x = kl_mul(x, kl_sigmoid(in[0]));
    if (chance(c, 2))
        x = tame(c, x);
    out[0] = x;
    if (nout > 1)
        out[1] = chance(c, 2) ? kl_sum_all(x) : kl_mul(x, in[1]);
    return KL_OK;
}

kl_tensor make_scan_region(struct recording *c, int a)
{
    struct body body = body_of(c);
    kl_tensor x = value_of(c, a), carried = kl_sum(x, 1, (int[]){0}, false), out[2];
    int64_t dims[KL_MAX_RANK];
    symbolic_shape(c, a, dims);
    if (c->missing)
        return kl_none;
    kl_scan(scan_body, &body, dims[0], 1, &carried, 1, &x, 1, chance(c, 2), out);
    c->second = out[1];
    return out[0];
}

static kl_status while_condition(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_lt(in[1], kl_const(((const struct body *)ctx)->choices.device, KL_I32, 5));
    return KL_OK;
}

static kl_status while_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_cos(in[0]);
    out[1] = kl_add_scalar(in[1], 1);
    return KL_OK;
}

/* Detached: it has no gradient. */
kl_tensor make_while_region(struct recording *c, int a)
{
    struct body body = body_of(c);
    kl_tensor in[2] = {kl_detach(value_of(c, a)), kl_const(c->device, KL_I32, below(c, 7))}, out[2];
    kl_while(while_condition, while_body, &body, 2, in, out);
    return kl_detach(out[0]);
}

kl_tensor make_checkpoint(struct recording *c, int a)
{
    struct body body = body_of(c);
    kl_tensor in = value_of(c, a), out;
    if (chance(c, 2))
        body.outside = pick_like(c, a);
    kl_checkpoint(same_types, &body, 1, &in, 1, &out);
    return out;
}

/* in: the operand, the result, its gradient. */
static kl_status backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_mul(in[0], in[2]);
    return KL_OK;
}

kl_tensor make_custom_grad(struct recording *c, int a)
{
    struct body body = body_of(c);
    kl_tensor in = value_of(c, a), out;
    kl_custom_grad(same_types, backward, &body, 1, &in, 1, &out);
    return out;
}

/* in: two values of one type. */
static kl_status vmap_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    static const int64_t one[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct recording copy = ((const struct body *)ctx)->choices, *c = &copy;
    kl_tensor x = kl_add(in[0], in[1]);
    kl_dtype dtype = kl_dtype_of(x);
    switch (kl_rank(x) > 0 ? below(c, 12) : -1) {
    case 0: x = kl_sort(x, 0, false); break;
    case 1: x = kl_cumsum(x, -1, false, true); break;
    case 2: x = is_float(dtype) ? kl_softmax(x, 0) : x; break;
    case 3: x = kl_max(x, 1, (int[]){0}, true); break;
    case 4: x = kl_flip(x, 0, NULL); break;
    case 5: x = kl_concat(2, (kl_tensor[]){x, in[1]}, 0); break;
    case 6: x = kl_take(x, 0, kl_argmax(in[1], 0)); break;
    case 7: x = kl_matmul(x, in[1]); break;
    case 8: x = kl_roll(x, 0, 1); break;
    case 9: x = kl_take_along_axis(x, 0, kl_argsort(in[1], 0, true)); break;
    case 10: x = kl_pad(x, one, NULL, 1); break;
    case 11: x = kl_cast(kl_argmin(x, 0), dtype); break;
    default: break;
    }
    out[0] = is_float(dtype) ? kl_tanh(x) : x;
    return KL_OK;
}

kl_tensor make_vmap(struct recording *c, int a)
{
    struct body body = body_of(c);
    kl_tensor in[2] = {value_of(c, a), pick_like(c, a)}, out;
    kl_vmap(vmap_body, &body, 2, in, NULL, 1, NULL, KL_RANDOM_ERROR, &out);
    return out;
}

/* To a state, whatever the operand of the table is; the result depends on the state's new value. */
kl_tensor make_assign(struct recording *c, int a)
{
    (void)a;
    int i = below(c, STATES);
    kl_tensor value = pick_like(c, INPUTS + i);
    return c->missing || kl_assign(c->state[i], value) != KL_OK ? kl_none : kl_neg(c->state[i]);
}
