/* RNN, LSTM and GRU over sequences against plain loops in double: directions, lengths, states, peepholes, both kinds of
 * reset, other activations; gradients, and misuse. */
#include "tests/support/api_numbers.h"

enum { H = 3, I = 2, B = 2 };
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

struct given {
    double x[12 * B * I], w[4 * H * I], r[4 * H * H], bias[4 * H], late[4 * H], peep[3 * H], h[B * H], c[B * H];
};

static kl_tensor twice(void *ctx, kl_tensor a, int which)
{
    (void)ctx;
    return which ? kl_mul_scalar(a, 0.5) : kl_sigmoid(a);
}

/* One step of one sequence; h and c are changed. */
static void step(const struct given *g, int kind, bool reset_last, bool coupled, bool other, const double *x, double *h,
                 double *c)
{
    int gates = kind == KL_CELL_LSTM ? 4 : kind == KL_CELL_GRU ? 3 : 1;
    double a[4 * H], back[4 * H], next[H], r[H] = {0};
    for (int i = 0; i < gates * H; i++) {
        a[i] = g->bias[i], back[i] = g->late[i];
        for (int k = 0; k < I; k++)
            a[i] += g->w[i * I + k] * x[k];
        for (int k = 0; k < H; k++)
            back[i] += g->r[i * H + k] * h[k];
    }
    for (int i = 0; i < H && kind == KL_CELL_GRU; i++)
        r[i] = sigmoid(a[H + i] + back[H + i]);
    for (int i = 0; i < H; i++) {
        if (kind == KL_CELL_RNN) {
            next[i] = other ? sigmoid(a[i] + back[i]) : tanh(a[i] + back[i]);
        } else if (kind == KL_CELL_LSTM) {
            double in = sigmoid(a[i] + back[i] + g->peep[i] * c[i]);
            double f = coupled ? 1 - in : sigmoid(a[2 * H + i] + back[2 * H + i] + g->peep[2 * H + i] * c[i]);
            double cell = a[3 * H + i] + back[3 * H + i];
            c[i] = f * c[i] + in * (other ? cell / 2 : tanh(cell));
            double o = sigmoid(a[H + i] + back[H + i] + g->peep[H + i] * c[i]);
            next[i] = o * (other ? c[i] / 2 : tanh(c[i]));
        } else {
            double z = sigmoid(a[i] + back[i]), late = g->late[2 * H + i];
            for (int k = 0; k < H && !reset_last; k++)
                late += g->r[(2 * H + i) * H + k] * r[k] * h[k];
            double n = a[2 * H + i] + (reset_last ? r[i] * back[2 * H + i] : late);
            next[i] = (1 - z) * (other ? n / 2 : tanh(n)) + z * h[i];
        }
    }
    memcpy(h, next, sizeof next);
}

static kl_tensor product_of(void *ctx, kl_tensor a, bool state)
{
    return kl_matmul(a, kl_transpose(((const kl_tensor *)ctx)[state], 0, 1));
}

static void run(int kind, int T, int options)
{
    bool plain = options & 1, reverse = options & 2, lengths = options & 4, reset_last = options & 8;
    bool coupled = reset_last, other = options & 16;
    struct given g;
    int gates = kind == KL_CELL_LSTM ? 4 : kind == KL_CELL_GRU ? 3 : 1, length[B] = {T, T};
    double *part[] = {g.x, g.w, g.r, g.bias, g.late, g.peep, g.h, g.c}, y[12 * B * H] = {0}, h[B * H], c[B * H];
    int size[] = {T * B * I, gates * H * I, gates * H * H, gates * H, gates * H, 3 * H, B * H, B * H};
    memset(&g, 0, sizeof g);
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < size[k] && !(plain && k > 2) && (k != 5 || kind == KL_CELL_LSTM); i++)
            part[k][i] = noise(100 * k + i + T) / 2;
    if (lengths)
        length[0] = 1, length[1] = T - 1;
    memcpy(h, g.h, sizeof h), memcpy(c, g.c, sizeof c);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < length[b]; t++) {
            int at = reverse ? length[b] - 1 - t : t;
            step(&g, kind, reset_last, coupled, other, g.x + (at * B + b) * I, h + b * H, c + b * H);
            memcpy(y + (at * B + b) * H, h + b * H, H * sizeof *h);
        }
    kl_tensor x = f64(D(T, B, I), g.x), w = f64(D(gates * H, I), g.w), r = f64(D(gates * H, H), g.r), out[3];
    kl_recurrent_options o = {.reverse = reverse, .reset_last = reset_last, .coupled = coupled,
                              .activation = other ? twice : NULL};
    if (!plain) {
        o.bias = f64(D(gates * H), g.bias), o.recurrent_bias = f64(D(gates * H), g.late);
        o.h = f64(D(B, H), g.h), o.cell = f64(D(B, H), g.c);
        if (kind == KL_CELL_LSTM)
            o.peephole = f64(D(3 * H), g.peep);
    }
    if (lengths)
        o.length = i32(D(B), (int32_t[]){length[0], length[1]});
    kl_tensor weights[2] = {w, r};
    if (coupled && kind != KL_CELL_GRU) { /* the weights' shapes count alone */
        o.product = product_of, o.ctx = weights;
        w = kl_zeros(dev, KL_F64, D(gates * H, I)), r = kl_zeros(dev, KL_F64, D(gates * H, H));
    }
    OK(kl_recurrent((kl_cell_kind)kind, x, w, r, &o, out));
    NEAR(out[0], T * B * H, y, 1e-13);
    NEAR(out[1], B * H, h, 1e-13);
    if (kind == KL_CELL_LSTM)
        NEAR(out[2], B * H, c, 1e-13);
    else
        CHECK(!out[2].id);
}

/* x, weights and recurrent weights in one row */
static kl_tensor recurrent_of(kl_cell_kind kind, int gates, kl_tensor v)
{
    int64_t x = 4 * 1 * 2, w = gates * 2 * 2;
    kl_tensor out[3], in = kl_reshape(kl_narrow(v, 0, 0, x), 3, (int64_t[]){4, 1, 2});
    kl_recurrent_options o = {.reset_last = true};
    kl_recurrent(kind, in, kl_reshape(kl_narrow(v, 0, x, w), 2, (int64_t[]){gates * 2, 2}),
                 kl_reshape(kl_narrow(v, 0, x + w, w), 2, (int64_t[]){gates * 2, 2}), &o, out);
    return kl_concat(2, (kl_tensor[]){kl_reshape(out[0], 2, (int64_t[]){4, 2}), out[1]}, 0);
}
static kl_tensor g_rnn(kl_tensor v) { return recurrent_of(KL_CELL_RNN, 1, v); }
static kl_tensor g_lstm(kl_tensor v) { return recurrent_of(KL_CELL_LSTM, 4, v); }
static kl_tensor g_gru(kl_tensor v) { return recurrent_of(KL_CELL_GRU, 3, v); }

static void misuse(void)
{
    kl_tensor x = kl_zeros(dev, KL_F32, D(4, 2, 3)), w = kl_zeros(dev, KL_F32, D(8, 3));
    kl_tensor r = kl_zeros(dev, KL_F32, D(8, 2)), i = kl_zeros(dev, KL_I32, D(8, 2)), out[3];
    CHECK(kl_recurrent(KL_CELL_GRU, x, w, r, NULL, out) == KL_ERR_SHAPE && strstr(kl_last_error(), "[6 H") == NULL &&
          strstr(kl_last_error(), "recurrent: needs x [T,B,I], w [3 H,I]"));
    CHECK(kl_check(out[0]) == KL_ERR_SHAPE);
    CHECK(kl_recurrent(KL_CELL_LSTM, x, w, i, NULL, out) == KL_ERR_TYPE && strstr(kl_last_error(), "i32"));
    CHECK(kl_recurrent((kl_cell_kind)5, x, w, r, NULL, out) == KL_ERR_ARGUMENT);
    CHECK(kl_recurrent(KL_CELL_LSTM, x, w, r, NULL, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_recurrent(KL_CELL_LSTM, x, w, r, &(kl_recurrent_options){.h = w}, out) == KL_ERR_SHAPE &&
          strstr(kl_last_error(), "h must be [2,2], got [8,3]"));
    CHECK(kl_recurrent(KL_CELL_GRU, x, w, r, &(kl_recurrent_options){.product = product_of}, out) == KL_ERR_ARGUMENT &&
          strstr(kl_last_error(), "GRU has no function of products"));
    kl_release(x), kl_release(w), kl_release(r), kl_release(i);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    for (int kind = 0; kind < 3; kind++)
        for (int options = 0; options < 32; options++)
            run(kind, options % 3 ? 4 : 9, options);
    GRADIENT(g_rnn, 16);
    GRADIENT(g_lstm, 40);
    GRADIENT(g_gru, 32);
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
