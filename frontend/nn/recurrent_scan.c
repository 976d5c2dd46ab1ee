/* RNN, LSTM and GRU: the products with the inputs for all times at once, then a scan over time. */
#include "frontend/nn/compose.h"

/* A scan's product is about three times as fast on weights that are transposed before it, which takes as long as
 * several steps: it pays from so many on. */
enum { STEPS_TRANSPOSED = 8 };
static const int gate_counts[] = {[KL_CELL_RNN] = 1, [KL_CELL_LSTM] = 4, [KL_CELL_GRU] = 3};

struct recurrent_cell {
    kl_cell_kind kind;
    kl_recurrent_options o;
    int64_t T, B, H;
    kl_device device;
    kl_dtype dtype;
    kl_tensor R, late;            /* recurrent weights; GRU's recurrent bias of its last gate, or kl_none */
    bool transposed;              /* R is [H, gates H], not [gates H, H] */
    kl_tensor P[3];               /* peepholes: input, output, forget */
    bool masked;
};

static kl_tensor cell_activated(struct recurrent_cell *c, kl_tensor a, int which)
{
    if (c->o.activation)
        return c->o.activation(c->o.ctx, a, which);
    return which == 0 && c->kind != KL_CELL_RNN ? kl_sigmoid(a) : kl_tanh(a);
}

static kl_tensor cell_gate(struct recurrent_cell *c, kl_tensor a, int i)
{
    return kl_narrow(a, -1, i * c->H, c->H);
}

/* h times the recurrent weights of `count` gates. */
static kl_tensor cell_product(struct recurrent_cell *c, kl_tensor h, int first, int count)
{
    if (c->o.product)
        return c->o.product(c->o.ctx, h, true);
    if (c->transposed)
        return kl_matmul(h, kl_narrow(c->R, 1, first * c->H, count * c->H));
    return kl_matmul(h, kl_transpose(kl_narrow(c->R, 0, first * c->H, count * c->H), 0, 1));
}

static void lstm_step(struct recurrent_cell *c, kl_tensor x, kl_tensor h, kl_tensor s, kl_tensor *h2, kl_tensor *s2)
{
    kl_tensor a = kl_add(x, cell_product(c, h, 0, 4));
    kl_tensor i = cell_gate(c, a, 0), o = cell_gate(c, a, 1), f = cell_gate(c, a, 2), g = cell_gate(c, a, 3);
    if (c->P[0].id) {
        i = kl_add(i, kl_mul(c->P[0], s));
        f = kl_add(f, kl_mul(c->P[2], s));
    }
    i = cell_activated(c, i, 0);
    f = c->o.coupled ? kl_sub(same_number(i, 1), i) : cell_activated(c, f, 0);
    *s2 = kl_add(kl_mul(f, s), kl_mul(i, cell_activated(c, g, 1)));
    if (c->P[1].id)
        o = kl_add(o, kl_mul(c->P[1], *s2));
    *h2 = kl_mul(cell_activated(c, o, 0), cell_activated(c, *s2, 2));
}

static kl_tensor gru_step(struct recurrent_cell *c, kl_tensor x, kl_tensor h)
{
    kl_tensor zr = cell_activated(c, kl_add(kl_narrow(x, -1, 0, 2 * c->H), cell_product(c, h, 0, 2)), 0);
    kl_tensor z = cell_gate(c, zr, 0), r = cell_gate(c, zr, 1), back;
    if (c->o.reset_last) {
        back = cell_product(c, h, 2, 1);
        back = kl_mul(r, c->late.id ? kl_add(back, c->late) : back);
    } else {
        back = cell_product(c, kl_mul(r, h), 2, 1);
        back = c->late.id ? kl_add(back, c->late) : back;
    }
    kl_tensor next = cell_activated(c, kl_add(cell_gate(c, x, 2), back), 1);
    return kl_add(kl_mul(kl_sub(same_number(z, 1), z), next), kl_mul(z, h));
}

/* Carried: h, and of LSTM the cell.  Scanned: x, and, masked, which sequences still go on.  Stacked: h. */
static kl_status recurrent_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct recurrent_cell *c = ctx;
    bool two = c->kind == KL_CELL_LSTM;
    kl_tensor h = in[0], s = two ? in[1] : kl_none, x = in[two + 1], h2, s2 = kl_none, shown;
    (void)nin;
    if (c->kind == KL_CELL_LSTM)
        lstm_step(c, x, h, s, &h2, &s2);
    else if (c->kind == KL_CELL_GRU)
        h2 = gru_step(c, x, h);
    else
        h2 = cell_activated(c, kl_add(x, cell_product(c, h, 0, 1)), 0);
    shown = h2;
    if (c->masked) {
        kl_tensor on = in[two + 2];
        shown = kl_where(on, h2, same_number(h2, 0));
        h2 = kl_where(on, h2, h);
        s2 = two ? kl_where(on, s2, s) : s2;
    }
    out[0] = h2;
    if (two)
        out[1] = s2;
    out[nout - 1] = shown;
    return KL_OK;
}

/* x w + the biases, of all times at once: [T, B, gates H]; sets what the steps need. */
static kl_tensor cell_inputs(struct recurrent_cell *c, kl_tensor x, kl_tensor w, kl_tensor r)
{
    c->transposed = c->T < 0 || c->T >= STEPS_TRANSPOSED; /* symbolic lengths are negative */
    c->R = c->transposed ? kl_transpose(r, 0, 1) : r;
    kl_tensor y = c->o.product ? c->o.product(c->o.ctx, x, false) : kl_matmul(x, kl_transpose(w, 0, 1));
    kl_tensor rb = c->o.recurrent_bias;
    if (rb.id && c->kind == KL_CELL_GRU) { /* the last one's is behind the reset */
        c->late = kl_narrow(rb, 0, 2 * c->H, c->H);
        rb = kl_pad(kl_narrow(rb, 0, 0, 2 * c->H), NULL, &c->H, 0);
    }
    kl_tensor b = c->o.bias.id && rb.id ? kl_add(c->o.bias, rb) : c->o.bias.id ? c->o.bias : rb;
    for (int i = 0; c->o.peephole.id && i < 3; i++)
        c->P[i] = kl_narrow(c->o.peephole, 0, i * c->H, c->H);
    return b.id ? kl_add(y, b) : y;
}

/* Rows of time from the end of each sequence: element t is element length - 1 - t, those behind it stay. */
static kl_tensor sequence_reversed(struct recurrent_cell *c, kl_tensor a)
{
    int axis = 0;
    int64_t dims[KL_MAX_RANK] = {0};
    int rank = kl_shape(a, dims);
    if (!c->masked)
        return kl_flip(a, 1, &axis);
    kl_tensor i = kl_iota(c->device, KL_I64, rank, dims, 0);
    kl_tensor length = kl_reshape(c->o.length, 3, (int64_t[]){1, c->B, 1});
    kl_tensor back = kl_sub(kl_sub(length, number(i, KL_I64, 1)), i);
    return kl_take_along_axis(a, 0, kl_where(kl_lt(i, length), back, i));
}

static kl_tensor first_state(struct recurrent_cell *c, kl_tensor given)
{
    return given.id ? given : kl_zeros(c->device, c->dtype, 2, (int64_t[]){c->B, c->H});
}

/* A tensor of options has this shape, or is kl_none; false: reported. */
static bool option_fits(struct thread *t, const struct recurrent_cell *c, const char *what, kl_tensor a,
                        const struct shape *want,
                        bool integers)
{
    struct view v;
    char tw[SHAPE_TEXT], ta[SHAPE_TEXT];
    if (!a.id)
        return true;
    if (!describe(t, "recurrent", what, a, &v))
        return false;
    if (!shape_equal(want, &v.shape))
        return fail(t, KL_ERR_SHAPE, "recurrent: %s must be %s, got %s", what, shape_text(want, tw, sizeof tw),
                    shape_text(&v.shape, ta, sizeof ta)), false;
    bool fits = integers ? dtype_kind(v.dtype) == 'I' || dtype_kind(v.dtype) == 'U' : v.dtype == (unsigned)c->dtype;
    return fits || (fail(t, KL_ERR_TYPE, "recurrent: %s must be %s, got %s", what,
                         integers ? "integers" : dtype_name(c->dtype), dtype_name(v.dtype)), false);
}

static bool cell_of(struct thread *t, kl_cell_kind kind, kl_tensor x, kl_tensor w, kl_tensor r,
                    const kl_recurrent_options *options, struct recurrent_cell *c)
{
    struct view v, vw, vr;
    char tx[SHAPE_TEXT], tw[SHAPE_TEXT], tr[SHAPE_TEXT];
    *c = (struct recurrent_cell){.kind = kind};
    if (options)
        c->o = *options;
    if ((unsigned)kind > KL_CELL_GRU)
        return fail(t, KL_ERR_ARGUMENT, "recurrent: there is no kind %d", (int)kind), false;
    if (!describe(t, "recurrent", "x", x, &v) || !describe(t, "recurrent", "w", w, &vw) ||
        !describe(t, "recurrent", "r", r, &vr))
        return false;
    if (c->o.product && kind == KL_CELL_GRU)
        return fail(t, KL_ERR_ARGUMENT, "recurrent: GRU has no function of products"), false;
    int64_t gates = gate_counts[kind];
    const struct shape *sx = &v.shape, *sw = &vw.shape, *sr = &vr.shape;
    if (sx->rank != 3 || sw->rank != 2 || sr->rank != 2 || sw->dim[1] != sx->dim[2] ||
        sw->dim[0] != gates * sr->dim[1] || sr->dim[0] != sw->dim[0])
        return fail(t, KL_ERR_SHAPE, "recurrent: needs x [T,B,I], w [%d H,I] and r [%d H,H], got %s, %s and %s",
                    (int)gates, (int)gates, shape_text(sx, tx, sizeof tx), shape_text(sw, tw, sizeof tw),
                    shape_text(sr, tr, sizeof tr)), false;
    if (!dtype_is_float(v.dtype) || vw.dtype != v.dtype || vr.dtype != v.dtype)
        return fail(t, KL_ERR_TYPE, "recurrent: needs one floating dtype, got %s, %s and %s",
                    dtype_name(v.dtype), dtype_name(vw.dtype), dtype_name(vr.dtype)), false;
    c->T = sx->dim[0];
    c->B = sx->dim[1];
    c->H = sr->dim[1];
    c->device = v.device;
    c->dtype = (kl_dtype)v.dtype;
    struct shape bias = shape_make(1, (int64_t[]){gates * c->H}), P = shape_make(1, (int64_t[]){3 * c->H});
    struct shape state = shape_make(2, (int64_t[]){c->B, c->H}), length = shape_make(1, (int64_t[]){c->B});
    return option_fits(t, c, "the bias", c->o.bias, &bias, false) &&
           option_fits(t, c, "the recurrent bias", c->o.recurrent_bias, &bias, false) &&
           option_fits(t, c, "the peephole", c->o.peephole, &P, false) &&
           option_fits(t, c, "h", c->o.h, &state, false) && option_fits(t, c, "the cell", c->o.cell, &state, false) &&
           option_fits(t, c, "the length", c->o.length, &length, true);
}

kl_status kl_recurrent(kl_cell_kind kind, kl_tensor x, kl_tensor w, kl_tensor r,
                       const kl_recurrent_options *options, kl_tensor out[3])
{
    struct thread *t = thread_self();
    struct recurrent_cell c;
    bool two = kind == KL_CELL_LSTM;
    kl_tensor carried[2], scanned[2], result[3];
    if (!t)
        return KL_ERR_MEMORY;
    if (!out)
        return fail(t, KL_ERR_ARGUMENT, "recurrent: out is NULL");
    for (int i = 0; i < 3; i++)
        out[i] = kl_none;
    if (!cell_of(t, kind, x, w, r, options, &c) || !(t = checked_begin("recurrent"))) {
        for (int i = 0; i < 2 + two; i++)
            out[i] = op_failed();
        return kl_last_error_code();
    }
    kl_tensor y = cell_inputs(&c, x, w, r);
    c.masked = c.o.length.id != 0;
    if (c.masked) {
        c.o.length = kl_cast(c.o.length, KL_I64);
        kl_tensor i = kl_iota(c.device, KL_I64, 3, (int64_t[]){c.T, c.B, 1}, 0);
        scanned[1] = kl_lt(i, kl_reshape(c.o.length, 3, (int64_t[]){1, c.B, 1}));
    }
    carried[0] = first_state(&c, c.o.h);
    carried[1] = two ? first_state(&c, c.o.cell) : kl_none;
    scanned[0] = c.o.reverse ? sequence_reversed(&c, y) : y;
    kl_status status = kl_scan(recurrent_step, &c, c.T, 1 + two, carried, 1 + c.masked, scanned, 1, false, result);
    out[0] = status == KL_OK && c.o.reverse ? sequence_reversed(&c, result[1 + two]) : result[1 + two];
    out[1] = result[0];
    out[2] = two ? result[1] : kl_none;
    compose_end_all(t, out, 2 + two);
    return status;
}
