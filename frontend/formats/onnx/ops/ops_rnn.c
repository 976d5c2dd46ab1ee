/* RNN, LSTM and GRU, as scans over time. */
#include "frontend/formats/onnx/onnx.h"
#include <stdio.h>
#include <string.h>

struct onnx_cell {
    struct node *n;
    kl_cell_kind kind;
    char activation[3][20];           /* of this direction: f, g, h */
    double alpha[3], beta[3], clip;
    kl_dtype dtype;
};

static kl_tensor rnn_activate(void *ctx, kl_tensor a, int which)
{
    struct onnx_cell *c = ctx;
    struct node *n = c->n;
    const char *s = c->activation[which];
    kl_tensor alpha = onnx_number(n, c->dtype, c->alpha[which]), beta = onnx_number(n, c->dtype, c->beta[which]);
    kl_tensor zero = onnx_number(n, c->dtype, 0), one = onnx_number(n, c->dtype, 1);
    /* onnxruntime clips what goes into the gates and the new cell, but not LSTM's cell in front of h, though ONNX's
     * text says "the input of activations" */
    if (c->clip > 0 && which < 2)
        a = kl_minimum(kl_maximum(a, onnx_number(n, c->dtype, -c->clip)), onnx_number(n, c->dtype, c->clip));
    if (!strcmp(s, "sigmoid"))
        return kl_sigmoid(a);
    if (!strcmp(s, "tanh"))
        return kl_tanh(a);
    if (!strcmp(s, "relu"))
        return kl_relu(a);
    if (!strcmp(s, "affine"))
        return kl_add(kl_mul(a, alpha), beta);
    if (!strcmp(s, "leakyrelu"))
        return kl_where(kl_lt(a, zero), kl_mul(a, alpha), a);
    if (!strcmp(s, "thresholdedrelu"))
        return kl_where(kl_gt(a, alpha), a, zero);
    if (!strcmp(s, "scaledtanh"))
        return kl_mul(alpha, kl_tanh(kl_mul(a, beta)));
    if (!strcmp(s, "hardsigmoid"))
        return kl_minimum(kl_maximum(kl_add(kl_mul(a, alpha), beta), zero), one);
    if (!strcmp(s, "elu"))
        return kl_where(kl_gt(a, zero), a, kl_mul(alpha, kl_expm1(kl_minimum(a, zero))));
    if (!strcmp(s, "softsign"))
        return kl_div(a, kl_add(kl_abs(a), one));
    if (!strcmp(s, "softplus"))
        return kl_softplus(a);
    onnx_fails(n, KL_ERR_ARGUMENT, "there is no activation '%s'", s);
    return kl_none;
}

/* ---- attributes ---- */

/* The activations that have numbers, how many, and these without attributes. */
static const struct { const char *name; int count; double alpha, beta; } activation_defaults[] = {
    {"affine", 2, 1, 0}, {"leakyrelu", 1, 0.01, 0}, {"thresholdedrelu", 1, 1, 0}, {"scaledtanh", 2, 1, 1},
    {"hardsigmoid", 2, 0.2, 0.5}, {"elu", 1, 1, 0},
};

static void activation_name(const struct onnx_cell *c, size_t at, int i, char to[20])
{
    static const char *const usual[][3] = {[KL_CELL_RNN] = {"tanh"}, [KL_CELL_LSTM] = {"sigmoid", "tanh", "tanh"},
                                           [KL_CELL_GRU] = {"sigmoid", "tanh"}};
    const Onnx__AttributeProto *names = onnx_attr(c->n, "activations");
    if (names && at < names->n_strings)
        snprintf(to, 20, "%.*s", (int)names->strings[at].len, (char *)names->strings[at].data);
    else
        snprintf(to, 20, "%s", usual[c->kind][i]);
    for (char *p = to; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
}

/* The activations of a direction.  Those of all directions take the numbers of activation_alpha and activation_beta in
 * their order, each as many as it has. */
static void cell_activations(struct onnx_cell *c, int direction)
{
    const Onnx__AttributeProto *alpha = onnx_attr(c->n, "activation_alpha"), *beta = onnx_attr(c->n, "activation_beta");
    int count = c->kind == KL_CELL_LSTM ? 3 : c->kind == KL_CELL_GRU ? 2 : 1;
    size_t alphas = 0, betas = 0;
    for (int at = 0; at < (direction + 1) * count; at++) {
        int i = at % count;
        activation_name(c, (size_t)at, i, c->activation[i]);
        c->alpha[i] = c->beta[i] = 0;
        for (size_t k = 0; k < sizeof activation_defaults / sizeof *activation_defaults; k++) {
            if (strcmp(activation_defaults[k].name, c->activation[i]))
                continue;
            bool own = alpha && alphas < alpha->n_floats;
            c->alpha[i] = own ? (double)alpha->floats[alphas++] : activation_defaults[k].alpha;
            own = beta && betas < beta->n_floats && activation_defaults[k].count == 2;
            c->beta[i] = own ? (double)beta->floats[betas++] : activation_defaults[k].beta;
        }
    }
}

/* Element d of the first axis of operand i, without that axis; kl_none: the operand is missing. */
static kl_tensor of_direction(struct node *n, uint32_t i, int d)
{
    return onnx_has(n, i) ? kl_squeeze(kl_narrow(onnx_widened(n, i), 0, d, 1), 0) : kl_none;
}

/* The weights of a direction, operand i, [4 H, D].  Of DynamicQuantizeLSTM they are integers [directions, D, 4 H], with
 * a scale and zero point in operands `scale` and `scale` + 1, a number for each direction or each column of it; its
 * products are of floats here, not of operands rounded to bytes as in onnxruntime. */
static kl_tensor cell_weights(struct node *n, uint32_t i, uint32_t scale, int d)
{
    kl_tensor w = of_direction(n, i, d);
    if (n->def->op->fn != onnx_dynamic_quantize_lstm)
        return w;
    kl_tensor s = of_direction(n, scale, d), z = of_direction(n, scale + 1, d);
    w = kl_cast(w, KL_F32);
    if (z.id)
        w = kl_sub(w, kl_cast(z, KL_F32));
    return kl_transpose(s.id ? kl_mul(w, s) : w, 0, 1);
}

enum { STEPS_TRANSPOSED = 8 }; /* from so many steps on kl_recurrent reads the weights of states transposed */

/* Weights of inputs and of states, in both directions: parts 0 to 3; the latter transposed: parts 4 and 5. */
static kl_tensor weights_part(struct node *n, uint32_t part)
{
    uint32_t operand = part < 2 ? 1 : 2;
    kl_tensor w = cell_weights(n, operand, operand == 1 ? 8 : 10, (int)part % 2);
    return part < 4 ? w : kl_transpose(w, 0, 1);
}

/* The weights of a direction, operand i, in memory as they are read: computed once if they have to be. */
static kl_tensor laid_out_weights(struct node *n, uint32_t i, int d, bool transposed)
{
    uint32_t scale = i == 1 ? 8 : 10, part = 2 * (i - 1) + (uint32_t)d;
    bool quantized = n->def->op->fn == onnx_dynamic_quantize_lstm;
    const uint32_t of[] = {i, quantized ? scale : NO_PLACE, scale + 1, NO_PLACE};
    if (transposed)
        return kl_transpose(once_part(n, 4 + (uint32_t)d, of, weights_part), 0, 1);
    return quantized ? once_part(n, part, of, weights_part) : weights_part(n, part);
}

/* Computes one direction: y [T, B, H], and the last h and cell [B, H]. */
static bool run_direction(struct onnx_cell *c, kl_tensor x, kl_tensor length, int d, bool back, kl_tensor *out)
{
    struct node *n = c->n;
    kl_recurrent_options o = {.h = of_direction(n, 5, d), .length = length, .reverse = back,
                              .reset_last = onnx_attr_int(n, "linear_before_reset", 0),
                              .coupled = onnx_attr_int(n, "input_forget", 0), .activation = rnn_activate, .ctx = c};
    kl_tensor w = laid_out_weights(n, 1, d, false), b = of_direction(n, 3, d);
    int64_t steps = onnx_type_of(x).dims[0];
    bool transposed = steps < 0 || steps >= STEPS_TRANSPOSED;
    if (b.id) { /* of the inputs, then of the states */
        int64_t half = onnx_type_of(w).dims[0];
        o.bias = kl_narrow(b, 0, 0, half);
        o.recurrent_bias = kl_narrow(b, 0, half, half);
    }
    if (c->kind == KL_CELL_LSTM) {
        o.cell = of_direction(n, 6, d);
        o.peephole = of_direction(n, 7, d);
    }
    cell_activations(c, d);
    return kl_recurrent(c->kind, x, w, laid_out_weights(n, 2, d, transposed), &o, out) == KL_OK;
}

bool onnx_rnn(struct node *n)
{
    struct onnx_cell c = {.n = n, .kind = (kl_cell_kind)n->def->op->arg, .clip = onnx_attr_float(n, "clip", 0)};
    kl_tensor x = onnx_widened(n, 0), length = kl_none, one[3], other[3];
    struct type t, r;
    bool batch_first = onnx_attr_int(n, "layout", 0);
    bool both = onnx_attr_is(n, "direction", "bidirectional", false);
    bool back = onnx_attr_is(n, "direction", "reverse", false);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &r) || !onnx_type(n, 2, &r))
        return false;
    if (t.rank != 3 || r.rank != 3 || r.dims[0] != 1 + both)
        return onnx_fails(n, KL_ERR_SHAPE, "its weights do not fit its operand or direction");
    if (batch_first && (onnx_has(n, 5) || onnx_has(n, 6)))
        return onnx_fails(n, KL_ERR_ARGUMENT, "initial states with layout=1 are not supported");
    c.dtype = onnx_compute_dtype(t.dtype);
    if (batch_first)
        x = kl_transpose(x, 0, 1);
    if (onnx_has(n, 4))
        length = onnx_in(n, 4);
    if (!run_direction(&c, x, length, 0, back, one) || (both && !run_direction(&c, x, length, 1, true, other)))
        return false;
    for (int i = 0; i < 3; i++) {
        if (!one[i].id || !onnx_wants(n, (uint32_t)i))
            continue;
        int axis = i == 0 ? 1 : 0; /* of directions */
        kl_tensor parts[2] = {one[i], other[i]}, v = kl_stack(1 + both, parts, axis);
        if (batch_first) /* [B, T, D, H] and [B, D, H] */
            v = i == 0 ? kl_permute(v, (int[]){2, 0, 1, 3}) : kl_transpose(v, 0, 1);
        if (!onnx_give_as(n, (uint32_t)i, v, t.dtype))
            return false;
    }
    return true;
}

bool onnx_dynamic_quantize_lstm(struct node *n) { return onnx_rnn(n); }
