/* RNN, LSTM and GRU, as scans over time. */
#include "frontend/formats/onnx/onnx.h"
#include <stdio.h>
#include <string.h>

enum { RNN, LSTM, GRU };
static const int gate_counts[] = {[RNN] = 1, [LSTM] = 4, [GRU] = 3};

struct cell {
    struct node *n;
    int kind;
    char activation[3][20];           /* of this direction: f, g, h */
    double alpha[3], beta[3], clip;
    bool linear_before_reset, input_forget, masked;
    int64_t H;
    kl_dtype dtype;
    kl_tensor R, Rb;                  /* recurrent weights, transposed; GRU's recurrent bias of its last gate */
    kl_tensor P[3];                   /* peepholes i, o, f */
};

static kl_tensor activated(struct cell *c, kl_tensor a, int which)
{
    struct node *n = c->n;
    const char *s = c->activation[which];
    kl_tensor alpha = onnx_number(n, c->dtype, c->alpha[which]), beta = onnx_number(n, c->dtype, c->beta[which]);
    kl_tensor zero = onnx_number(n, c->dtype, 0), one = onnx_number(n, c->dtype, 1);
    if (c->clip > 0)
        a = kl_min(kl_max(a, onnx_number(n, c->dtype, -c->clip)), onnx_number(n, c->dtype, c->clip));
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
        return kl_min(kl_max(kl_add(kl_mul(a, alpha), beta), zero), one);
    if (!strcmp(s, "elu"))
        return kl_where(kl_gt(a, zero), a, kl_mul(alpha, kl_expm1(kl_min(a, zero))));
    if (!strcmp(s, "softsign"))
        return kl_div(a, kl_add(kl_abs(a), one));
    if (!strcmp(s, "softplus"))
        return kl_softplus(a);
    onnx_fails(n, KL_ERR_ARGUMENT, "there is no activation '%s'", s);
    return kl_none;
}

static kl_tensor gate(struct cell *c, kl_tensor a, int i)
{
    struct node *n = c->n;
    return kl_narrow(a, -1, i * c->H, c->H);
}

static void lstm_step(struct cell *c, kl_tensor x, kl_tensor h, kl_tensor s, kl_tensor *h2, kl_tensor *s2)
{
    struct node *n = c->n;
    kl_tensor a = kl_add(x, kl_matmul(h, c->R));
    kl_tensor i = gate(c, a, 0), o = gate(c, a, 1), f = gate(c, a, 2), g = gate(c, a, 3);
    if (c->P[0].id) {
        i = kl_add(i, kl_mul(c->P[0], s));
        f = kl_add(f, kl_mul(c->P[2], s));
    }
    i = activated(c, i, 0);
    f = c->input_forget ? kl_sub(onnx_number(n, c->dtype, 1), i) : activated(c, f, 0);
    *s2 = kl_add(kl_mul(f, s), kl_mul(i, activated(c, g, 1)));
    if (c->P[1].id)
        o = kl_add(o, kl_mul(c->P[1], *s2));
    *h2 = kl_mul(activated(c, o, 0), activated(c, *s2, 2));
}

/* The gates are z, r and h. */
static kl_tensor gru_step(struct cell *c, kl_tensor x, kl_tensor h)
{
    struct node *n = c->n;
    kl_tensor Rzr = kl_narrow(c->R, 1, 0, 2 * c->H), Rh = kl_narrow(c->R, 1, 2 * c->H, c->H);
    kl_tensor zr = activated(c, kl_add(kl_narrow(x, -1, 0, 2 * c->H), kl_matmul(h, Rzr)), 0);
    kl_tensor z = gate(c, zr, 0), r = gate(c, zr, 1), back;
    if (c->linear_before_reset) {
        back = kl_matmul(h, Rh);
        back = kl_mul(r, c->Rb.id ? kl_add(back, c->Rb) : back);
    } else {
        back = kl_matmul(kl_mul(r, h), Rh);
        back = c->Rb.id ? kl_add(back, c->Rb) : back;
    }
    kl_tensor next = activated(c, kl_add(gate(c, x, 2), back), 1);
    return kl_add(kl_mul(kl_sub(onnx_number(n, c->dtype, 1), z), next), kl_mul(z, h));
}

/* Carried: h, and of LSTM the cell.  Scanned: x, and, masked, which sequences still go on.  Stacked: h. */
static kl_status cell_step(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    struct cell *c = ctx;
    struct node *n = c->n;
    bool two = c->kind == LSTM;
    kl_tensor h = in[0], s = two ? in[1] : kl_none, x = in[two + 1], h2, s2 = kl_none, shown;
    (void)nin;
    if (c->kind == LSTM)
        lstm_step(c, x, h, s, &h2, &s2);
    else if (c->kind == GRU)
        h2 = gru_step(c, x, h);
    else
        h2 = activated(c, kl_add(x, kl_matmul(h, c->R)), 0);
    shown = h2;
    if (c->masked) {
        kl_tensor on = in[two + 2];
        shown = kl_where(on, h2, onnx_number(n, c->dtype, 0));
        h2 = kl_where(on, h2, h);
        s2 = two ? kl_where(on, s2, s) : s2;
    }
    out[0] = h2;
    if (two)
        out[1] = s2;
    out[nout - 1] = shown;
    return KL_OK;
}

/* ---- attributes ---- */

static const struct { const char *name; double alpha, beta; } activation_defaults[] = {
    {"affine", 1, 0}, {"leakyrelu", 0.01, 0}, {"thresholdedrelu", 1, 0}, {"scaledtanh", 1, 1},
    {"hardsigmoid", 0.2, 0.5}, {"elu", 1, 0},
};

static bool cell_activations(struct cell *c, int direction)
{
    static const char *const usual[][3] = {[RNN] = {"tanh"}, [LSTM] = {"sigmoid", "tanh", "tanh"},
                                           [GRU] = {"sigmoid", "tanh"}};
    const Onnx__AttributeProto *names = onnx_attr(c->n, "activations"), *alpha = onnx_attr(c->n, "activation_alpha"),
                               *beta = onnx_attr(c->n, "activation_beta");
    int count = c->kind == LSTM ? 3 : c->kind == GRU ? 2 : 1;
    for (int i = 0; i < count; i++) {
        size_t at = (size_t)(direction * count + i);
        char *to = c->activation[i];
        if (names && at < names->n_strings)
            snprintf(to, sizeof c->activation[i], "%.*s", (int)names->strings[at].len, (char *)names->strings[at].data);
        else
            snprintf(to, sizeof c->activation[i], "%s", usual[c->kind][i]);
        for (char *p = to; *p; p++)
            *p = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
        for (size_t k = 0; k < sizeof activation_defaults / sizeof *activation_defaults; k++)
            if (!strcmp(activation_defaults[k].name, to)) {
                c->alpha[i] = activation_defaults[k].alpha;
                c->beta[i] = activation_defaults[k].beta;
            }
        c->alpha[i] = alpha && at < alpha->n_floats ? (double)alpha->floats[at] : c->alpha[i];
        c->beta[i] = beta && at < beta->n_floats ? (double)beta->floats[at] : c->beta[i];
    }
    return true;
}

/* Element d of the first axis, which goes. */
static kl_tensor of_direction(struct node *n, kl_tensor a, int d)
{
    return kl_squeeze(kl_narrow(a, 0, d, 1), 0);
}

/* x W + the biases, of all times at once: [T, B, gates H]; sets what the steps need. */
static kl_tensor cell_inputs(struct cell *c, kl_tensor x, int d)
{
    struct node *n = c->n;
    int gates = gate_counts[c->kind];
    kl_tensor w = onnx_in(n, 1), r = onnx_in(n, 2);
    c->R = kl_transpose(of_direction(n, r, d), 0, 1);
    kl_tensor y = kl_matmul(x, kl_transpose(of_direction(n, w, d), 0, 1));
    c->Rb = kl_none;
    if (onnx_has(n, 3)) {
        kl_tensor b = of_direction(n, onnx_in(n, 3), d);
        kl_tensor wb = kl_narrow(b, 0, 0, gates * c->H), rb = kl_narrow(b, 0, gates * c->H, gates * c->H);
        if (c->kind == GRU) { /* the last one's is behind the reset */
            c->Rb = kl_narrow(rb, 0, 2 * c->H, c->H);
            int64_t high = c->H;
            rb = kl_pad(kl_narrow(rb, 0, 0, 2 * c->H), NULL, &high, 0);
        }
        y = kl_add(y, kl_add(wb, rb));
    }
    for (int i = 0; i < 3; i++)
        c->P[i] = kl_none;
    if (c->kind == LSTM && onnx_has(n, 7)) {
        kl_tensor p = of_direction(n, onnx_in(n, 7), d);
        for (int i = 0; i < 3; i++)
            c->P[i] = kl_narrow(p, 0, i * c->H, c->H);
    }
    return y;
}

/* Rows of time from the end of each sequence: element t is element length - 1 - t, those behind it stay. */
static kl_tensor reversed(struct node *n, kl_tensor a, kl_tensor length)
{
    struct type t = onnx_type_of(a);
    int axis = 0;
    if (!length.id || t.rank < 2)
        return kl_flip(a, 1, &axis);
    kl_tensor i = kl_iota(onnx_device(n), KL_I64, t.rank, t.dims, 0);
    int64_t dims[KL_MAX_RANK] = {1, t.dims[1], 1, 1, 1, 1, 1, 1};
    length = kl_reshape(length, t.rank, dims);
    kl_tensor back = kl_sub(kl_sub(length, onnx_number(n, KL_I64, 1)), i);
    return kl_take_along_axis(a, 0, kl_where(kl_lt(i, length), back, i));
}

static kl_tensor initial_state(struct cell *c, uint32_t i, int d, int64_t B)
{
    struct node *n = c->n;
    if (onnx_has(n, i))
        return of_direction(n, onnx_in(n, i), d);
    return kl_zeros(onnx_device(n), c->dtype, 2, (int64_t[]){B, c->H});
}

/* One direction: y [T, B, H], and the last h and cell [B, H]. */
static bool run_direction(struct cell *c, kl_tensor x, kl_tensor length, int d, bool back, kl_tensor *out)
{
    struct node *n = c->n;
    struct type t = onnx_type_of(x);
    bool two = c->kind == LSTM;
    kl_tensor carried[2], scanned[2], result[3];
    cell_activations(c, d);
    kl_tensor y = cell_inputs(c, x, d);
    carried[0] = initial_state(c, 5, d, t.dims[1]);
    carried[1] = two ? initial_state(c, 6, d, t.dims[1]) : kl_none;
    scanned[0] = back ? reversed(n, y, length) : y;
    c->masked = length.id != 0;
    if (c->masked) {
        int64_t dims[3] = {t.dims[0], t.dims[1], 1};
        kl_tensor i = kl_iota(onnx_device(n), KL_I64, 3, dims, 0);
        scanned[1] = kl_lt(i, kl_reshape(length, 3, (int64_t[]){1, t.dims[1], 1}));
    }
    if (kl_scan(cell_step, c, t.dims[0], 1 + two, carried, 1 + c->masked, scanned, 1, false, result) != KL_OK)
        return false;
    out[0] = back ? reversed(n, result[1 + two], length) : result[1 + two];
    out[1] = result[0];
    out[2] = two ? result[1] : kl_none;
    return true;
}

bool onnx_rnn(struct node *n)
{
    struct cell c = {.n = n, .kind = n->def->op->arg, .clip = onnx_attr_float(n, "clip", 0),
                     .linear_before_reset = onnx_attr_int(n, "linear_before_reset", 0),
                     .input_forget = onnx_attr_int(n, "input_forget", 0)};
    kl_tensor x = onnx_in(n, 0), length = kl_none, one[3], other[3];
    struct type t, r;
    bool batch_first = onnx_attr_int(n, "layout", 0);
    bool both = onnx_attr_is(n, "direction", "bidirectional", false);
    bool back = onnx_attr_is(n, "direction", "reverse", false);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &r) || !onnx_type(n, 2, &r))
        return false;
    if (t.rank != 3 || r.rank != 3 || r.dims[0] != 1 + both || r.dims[1] != gate_counts[c.kind] * r.dims[2])
        return onnx_fails(n, KL_ERR_SHAPE, "its weights do not fit its operand or direction");
    if (batch_first && (onnx_has(n, 5) || onnx_has(n, 6)))
        return onnx_fails(n, KL_ERR_ARGUMENT, "initial states with layout=1 are not supported");
    c.H = r.dims[2];
    c.dtype = t.dtype;
    if (batch_first)
        x = kl_transpose(x, 0, 1);
    if (onnx_has(n, 4))
        length = kl_cast(onnx_in(n, 4), KL_I64);
    if (!run_direction(&c, x, length, 0, back, one) || (both && !run_direction(&c, x, length, 1, true, other)))
        return false;
    for (int i = 0; i < 3; i++) {
        if (!one[i].id || !onnx_wants(n, (uint32_t)i))
            continue;
        int axis = i == 0 ? 1 : 0; /* of directions */
        kl_tensor parts[2] = {one[i], other[i]}, v = kl_stack(1 + both, parts, axis);
        if (batch_first) /* [B, T, D, H] and [B, D, H] */
            v = i == 0 ? kl_permute(v, (int[]){2, 0, 1, 3}) : kl_transpose(v, 0, 1);
        if (!onnx_give(n, (uint32_t)i, v))
            return false;
    }
    return true;
}
