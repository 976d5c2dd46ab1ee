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
    /* of DynamicQuantizeLSTM's inputs and states; zero: i32, or kl_none; columns: sums of w less zero, i32 */
    struct byte_weights { kl_tensor w, scale, zero, columns; } bytes[2];
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

enum { STEPS_TRANSPOSED = 8 }; /* from so many steps on kl_recurrent reads the weights of states transposed */

/* Parts 0 and 1: the weights of states of each direction, transposed. */
static kl_tensor states_part(struct node *n, uint32_t part)
{
    return kl_transpose(of_direction(n, 2, (int)part), 0, 1);
}

/* The same in memory as they are read: computed once if they have to be. */
static kl_tensor state_weights(struct node *n, int d, bool transposed)
{
    if (!transposed)
        return of_direction(n, 2, d);
    return kl_transpose(once_part(n, (uint32_t)d, (uint32_t[]){2, NO_PLACE}, states_part), 0, 1);
}

/* ---- DynamicQuantizeLSTM: weights in bytes [directions, D, 4 H] ---- */

/* Operand i, the zero point of weights i - 8, of direction d as i32; kl_none: it is left out. */
static kl_tensor zero_of_direction(struct node *n, uint32_t i, int d)
{
    return onnx_has(n, i) ? kl_cast(kl_squeeze(kl_narrow(onnx_in(n, i), 0, d, 1), 0), KL_I32) : kl_none;
}

/* Parts 2 to 5: the sums of columns of the weights less their zero points, of inputs and states, both directions. */
static kl_tensor columns_part(struct node *n, uint32_t part)
{
    int d = (int)part % 2;
    uint32_t i = part / 2; /* weights 1 and 2, zero points 9 and 11 */
    kl_tensor w = kl_cast(kl_squeeze(kl_narrow(onnx_in(n, i), 0, d, 1), 0), KL_I32);
    kl_tensor z = zero_of_direction(n, 7 + 2 * i, d);
    return kl_sum(z.id ? kl_sub(w, z) : w, 1, (int[]){0}, false);
}

/* Parts 6 and 7: the weights of states of each direction, which a loop reads. */
static kl_tensor bytes_part(struct node *n, uint32_t part)
{
    return kl_squeeze(kl_narrow(onnx_in(n, 2), 0, (int)part % 2, 1), 0);
}

/* Finds the weights of direction d; false: reported. */
static bool byte_weights(struct onnx_cell *c, int d)
{
    struct node *n = c->n;
    for (uint32_t i = 0; i < 2; i++) {
        struct byte_weights *b = &c->bytes[i];
        struct type w;
        if (!onnx_type(n, 1 + i, &w))
            return false;
        if (w.rank != 3 || (w.dtype != KL_U8 && w.dtype != KL_I8))
            return onnx_fails(n, KL_ERR_TYPE, "its weights are not bytes [directions, D, 4 H]");
        b->w = i ? once_part(n, 6 + (uint32_t)d, (uint32_t[]){2, NO_PLACE}, bytes_part)
                 : kl_squeeze(kl_narrow(onnx_in(n, 1), 0, d, 1), 0);
        b->scale = of_direction(n, 8 + 2 * i, d);
        b->zero = zero_of_direction(n, 9 + 2 * i, d);
        b->columns = once_part(n, 2 + 2 * i + (uint32_t)d, (uint32_t[]){1 + i, 9 + 2 * i, NO_PLACE}, columns_part);
        if (!b->scale.id)
            return onnx_fails(n, KL_ERR_ARGUMENT, "its weights lack a scale");
    }
    return true;
}

/* A product of an operand that is quantized to u8 by its own range, as onnxruntime does, with weights in bytes. */
static kl_tensor product_of_bytes(void *ctx, kl_tensor a, bool state)
{
    struct onnx_cell *c = ctx;
    const struct byte_weights *b = &c->bytes[state];
    kl_tensor low, point, scale = onnx_range_scale(c->n, a, &low), one = onnx_number(c->n, KL_F32, 1);
    scale = kl_where(kl_eq(scale, onnx_number(c->n, KL_F32, 0)), one, scale);
    kl_tensor q = kl_cast(onnx_range_quantize(c->n, a, low, scale, &point), KL_I32);
    kl_tensor y = kl_sub(kl_matmul(q, kl_cast(b->w, KL_I32)), kl_mul(kl_cast(point, KL_I32), b->columns));
    if (b->zero.id)
        y = kl_sub(y, kl_mul(b->zero, kl_sum(q, 1, (int[]){-1}, true)));
    return kl_mul(kl_cast(y, KL_F32), kl_mul(scale, b->scale));
}

/* Computes one direction: y [T, B, H], and the last h and cell [B, H]. */
static bool run_direction(struct onnx_cell *c, kl_tensor x, kl_tensor length, int d, bool back, kl_tensor *out)
{
    struct node *n = c->n;
    kl_recurrent_options o = {.h = of_direction(n, 5, d), .length = length, .reverse = back,
                              .reset_last = onnx_attr_int(n, "linear_before_reset", 0),
                              .coupled = onnx_attr_int(n, "input_forget", 0), .activation = rnn_activate, .ctx = c};
    kl_tensor w = of_direction(n, 1, d), r, b = of_direction(n, 3, d);
    int64_t steps = onnx_type_of(x).dims[0];
    if (n->def->op->fn == onnx_dynamic_quantize_lstm) {
        if (!byte_weights(c, d))
            return false;
        o.product = product_of_bytes; /* the weights' shapes count alone */
        w = kl_transpose(kl_cast(w, c->dtype), 0, 1);
        r = kl_transpose(kl_cast(of_direction(n, 2, d), c->dtype), 0, 1);
    } else {
        r = state_weights(n, d, steps < 0 || steps >= STEPS_TRANSPOSED);
    }
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
    return kl_recurrent(c->kind, x, w, r, &o, out) == KL_OK;
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
