/* LSTM and GRU: the products with x are computed for all steps at once, those with h in a scan. */
#include "modules.h"

static kl_status recurrent_init(kl_nn_recurrent *m, kl_params *params, const char *prefix,
                                int64_t in, int64_t width, bool lstm)
{
    if (!m || in < 1 || width < 1)
        return module_refuse(lstm ? "nn_lstm_init" : "nn_gru_init", prefix,
                             m ? "widths are counts from 1 on" : "the module is NULL");
    double max = 1 / sqrt((double)width);
    int64_t gates = (lstm ? 4 : 3) * width;
    kl_init uniform = {.kind = KL_INIT_UNIFORM, .low = -max, .high = max};
    *m = (kl_nn_recurrent){.width = width, .lstm = lstm};
    kl_status s = module_make(params, prefix, "x_weight", 2, (int64_t[]){in, gates}, &uniform, &m->x_weight);
    if (s == KL_OK)
        s = module_make(params, prefix, "h_weight", 2, (int64_t[]){width, gates}, &uniform, &m->h_weight);
    if (s == KL_OK)
        s = module_make(params, prefix, "x_bias", 1, &gates, NULL, &m->x_bias);
    if (s == KL_OK)
        s = module_make(params, prefix, "h_bias", 1, &gates, NULL, &m->h_bias);
    return s;
}

kl_status kl_nn_lstm_init(kl_nn_recurrent *m, kl_params *params, const char *prefix, int64_t in, int64_t width)
{
    return recurrent_init(m, params, prefix, in, width, true);
}

kl_status kl_nn_gru_init(kl_nn_recurrent *m, kl_params *params, const char *prefix, int64_t in, int64_t width)
{
    return recurrent_init(m, params, prefix, in, width, false);
}

struct recurrent_call { const kl_nn_recurrent *m; };

static kl_tensor recurrent_gate(const struct recurrent_call *c, kl_tensor gates, int which)
{
    return kl_narrow(gates, -1, which * c->m->width, c->m->width);
}

/* in: h, c, x's part of the gates; out: h, c, and h again, for the stacked outputs */
static kl_status lstm_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct recurrent_call *c = ctx;
    (void)nin;
    (void)nout;
    kl_tensor gates = kl_add(in[2], kl_linear(in[0], c->m->h_weight, c->m->h_bias));
    kl_tensor i = kl_sigmoid(recurrent_gate(c, gates, 0)), f = kl_sigmoid(recurrent_gate(c, gates, 1));
    kl_tensor g = kl_tanh(recurrent_gate(c, gates, 2)), o = kl_sigmoid(recurrent_gate(c, gates, 3));
    out[1] = kl_add(kl_mul(f, in[1]), kl_mul(i, g));
    out[0] = out[2] = kl_mul(o, kl_tanh(out[1]));
    return KL_OK;
}

/* in: h, x's part of the gates; out: h, and h again, for the stacked outputs */
static kl_status gru_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct recurrent_call *c = ctx;
    (void)nin;
    (void)nout;
    kl_tensor own = kl_linear(in[0], c->m->h_weight, c->m->h_bias), part[2];
    for (int i = 0; i < 2; i++)
        part[i] = kl_sigmoid(kl_add(recurrent_gate(c, in[1], i), recurrent_gate(c, own, i)));
    kl_tensor reset = kl_mul(part[0], recurrent_gate(c, own, 2));
    kl_tensor n = kl_tanh(kl_add(recurrent_gate(c, in[1], 2), reset));
    out[0] = out[1] = kl_add(n, kl_mul(part[1], kl_sub(in[0], n)));
    return KL_OK;
}

static kl_tensor recurrent_of(const kl_nn_recurrent *m, kl_tensor x, kl_tensor *h, kl_tensor *c)
{
    int64_t dims[KL_MAX_RANK] = {0};
    int rank = kl_shape(x, dims);
    kl_status s = kl_check(x);
    if (s == KL_OK && rank != 3)
        s = kl_failf(NULL, KL_ERR_SHAPE, "nn_recurrent: x has %d axes; it must be [T, N, in]", rank);
    else if (s != KL_OK)
        return kl_neg(x); /* a failing op on x, whose error describes x */
    if (s != KL_OK || kl_composite_begin("nn_recurrent") != KL_OK)
        return kl_poison();
    struct recurrent_call call = {m};
    uint32_t states = m->lstm ? 2 : 1;
    int64_t of_one[2] = {dims[1], m->width};
    kl_tensor *given[2] = {h, c}, start[2], out[3];
    for (uint32_t i = 0; i < states; i++)
        start[i] = given[i] && given[i]->id
                       ? *given[i]
                       : kl_zeros(kl_device_of(x), kl_dtype_of(m->h_weight), 2, of_one);
    kl_tensor gates = kl_linear(x, m->x_weight, m->x_bias);
    kl_scan(m->lstm ? lstm_step : gru_step, &call, dims[0], states, start, 1, &gates, 1, false, out);
    kl_composite_end((int)states + 1, out);
    for (uint32_t i = 0; i < states; i++) {
        if (given[i])
            *given[i] = out[i];
        else
            train_release(out[i]);
    }
    return out[states];
}

kl_tensor kl_nn_recurrent_forward(const kl_nn_recurrent *m, kl_tensor x, kl_tensor *h, kl_tensor *c)
{
    if (kl_module_begin(m->x_weight, 1) != KL_OK)
        return kl_poison();
    return module_end(recurrent_of(m, x, h, c));
}
