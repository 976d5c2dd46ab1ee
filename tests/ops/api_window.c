/* Convolution and pooling against their definitions, over every way that windows can go. */
#include "tests/support/api_check.h"
#include <unistd.h>

static kl_device dev;
#define D(...) DIMS(__VA_ARGS__)

static uint64_t state = 88172645463325252u;
static int below(int n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)(state % (uint64_t)n);
}

/* Small integers: exact in every dtype, sums of a few hundred products included. */
static kl_tensor random_tensor(kl_dtype dtype, int rank, const int64_t *dims, double *v)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int64_t i = 0; i < n; i++)
        v[i] = dtype == KL_U8 || dtype == KL_U64 ? below(3) : below(3) - 1;
    kl_tensor wide = kl_input(dev, KL_F64, rank, dims, v), t = kl_cast(wide, dtype);
    kl_release(wide);
    return t;
}

/* One case: 1 to 3 spatial axes; sizes behind n are 1. */
struct windows { int n; int64_t length[3], size[3], stride[3], low[3], high[3], dilation[3], out[3]; };

static struct windows random_windows(int n, bool transposed)
{
    struct windows w = {n, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {1, 1, 1}, {1, 1, 1}};
    for (int i = 0; i < n; i++) {
        do {
            w.length[i] = 1 + below(n == 1 ? 40 : n == 2 ? 11 : 5);
            w.size[i] = 1 + below(4);
            w.stride[i] = 1 + below(3);
            w.low[i] = below(4) - 1;
            w.high[i] = below(4) - 1;
            w.dilation[i] = 1 + below(2);
            int64_t span = (w.size[i] - 1) * w.dilation[i] + 1, padded = w.length[i] + w.low[i] + w.high[i];
            w.out[i] = transposed ? (w.length[i] - 1) * w.stride[i] + span - w.low[i] - w.high[i]
                       : padded < span || w.length[i] + w.low[i] < 0 ? 0 : (padded - span) / w.stride[i] + 1;
        } while (w.out[i] < 1);
    }
    return w;
}

/* The element of axis i that element k of window o reads; -1: padding. */
static int64_t place(const struct windows *w, int i, int64_t o, int64_t k)
{
    int64_t at = o * w->stride[i] + k * w->dilation[i] - w->low[i];
    return at >= 0 && at < w->length[i] ? at : -1;
}

/* Calls f for each window element that is no padding: x, w and y number the elements of one channel. */
static void each(const struct windows *w, void (*f)(void *ctx, int64_t x, int64_t k, int64_t y), void *ctx)
{
    const int64_t *o = w->out, *s = w->size, *l = w->length;
    for (int64_t y = 0; y < o[0] * o[1] * o[2]; y++)
        for (int64_t k = 0; k < s[0] * s[1] * s[2]; k++) {
            int64_t a = place(w, 0, y / (o[1] * o[2]), k / (s[1] * s[2])),
                b = place(w, 1, y / o[2] % o[1], k / s[2] % s[1]);
            int64_t c = place(w, 2, y % o[2], k % s[2]);
            if (a >= 0 && b >= 0 && c >= 0)
                f(ctx, (a * l[1] + b) * l[2] + c, k, y);
        }
}

static int64_t product(const int64_t *v) { return v[0] * v[1] * v[2]; }

struct channel { const double *x, *w; double *y; };
static void convolve(void *ctx, int64_t x, int64_t k, int64_t y)
{
    struct channel *c = ctx;
    c->y[y] += c->x[x] * c->w[k];
}

enum { MAX_COUNT = 20000 };

static void conv_case(kl_dtype dtype, int n, bool bias)
{
    static double x[MAX_COUNT], w[MAX_COUNT], b[16], y[MAX_COUNT];
    struct windows win = random_windows(n, false);
    int64_t batch = 1 + below(3), groups = 1 + below(2), depth = 1 + below(4), filters = 1 + below(3);
    int64_t sx[5] = {batch, groups * depth}, sw[5] = {groups * filters, depth}, sy[5] = {batch, groups * filters};
    for (int i = 0; i < n; i++)
        sx[2 + i] = win.length[i], sw[2 + i] = win.size[i], sy[2 + i] = win.out[i];
    int64_t nx = product(win.length), nk = product(win.size), ny = product(win.out);
    kl_tensor tx = random_tensor(dtype, 2 + n, sx, x), tw = random_tensor(dtype, 2 + n, sw, w);
    kl_tensor tb = bias ? random_tensor(dtype, 1, sy + 1, b) : kl_none;
    for (int64_t i = 0; i < batch * groups * filters; i++) {
        int64_t m = i % (groups * filters), image = i / (groups * filters), group = m / filters;
        for (int64_t j = 0; j < ny; j++)
            y[i * ny + j] = bias ? b[m] : 0;
        for (int64_t c = 0; c < depth; c++)
            each(&win, convolve, &(struct channel){x + ((image * groups + group) * depth + c) * nx,
                                                   w + (m * depth + c) * nk, y + i * ny});
    }
    for (int64_t i = 0; i < batch * groups * filters * ny; i++)
        if (dtype == KL_U8 || dtype == KL_U64)
            y[i] = fmod(y[i], 256);
    kl_tensor ty = kl_conv(tx, tw, tb, win.stride, win.low, win.high, win.dilation, (int)groups);
    int64_t dims[KL_MAX_RANK];
    CHECK(kl_shape(ty, dims) == 2 + n && !memcmp(dims, sy, (size_t)(2 + n) * sizeof *dims) && kl_dtype_of(ty) == dtype);
    NEAR(ty, batch * groups * filters * ny, y, 0);
    kl_release(tx), kl_release(tw);
    if (bias)
        kl_release(tb);
}

/* conv_transpose is what conv's gradient does. */
static void transpose_case(kl_dtype dtype, int n)
{
    static double x[MAX_COUNT], w[MAX_COUNT], seed[MAX_COUNT];
    struct windows win = random_windows(n, true);
    int64_t batch = 1 + below(3), groups = 1 + below(2), depth = 1 + below(3), filters = 1 + below(3);
    int64_t sx[5] = {batch, groups * depth}, sw[5] = {groups * depth, filters}, sy[5] = {batch, groups * filters};
    for (int i = 0; i < n; i++)
        sx[2 + i] = win.length[i], sw[2 + i] = win.size[i], sy[2 + i] = win.out[i];
    kl_tensor tx = random_tensor(dtype, 2 + n, sx, x), tw = random_tensor(dtype, 2 + n, sw, w);
    kl_tensor ty = kl_conv_transpose(tx, tw, kl_none, win.stride, win.low, win.high, win.dilation, (int)groups);
    int64_t dims[KL_MAX_RANK];
    CHECK(kl_shape(ty, dims) == 2 + n && !memcmp(dims, sy, (size_t)(2 + n) * sizeof *dims));
    /* conv of a tensor of y's shape gives x's shape, unless cutting off left less to read: then nothing to compare. */
    kl_tensor point = random_tensor(dtype, 2 + n, sy, seed);
    kl_requires_grad(point);
    kl_tensor there = kl_conv(point, tw, kl_none, win.stride, win.low, win.high, win.dilation, (int)groups);
    CHECK(kl_shape(there, dims) == 2 + n && !memcmp(dims, sx, (size_t)(2 + n) * sizeof *dims));
    kl_tensor loss = kl_sum_all(kl_mul(there, tx)), back = kl_grad(loss, point);
    double *want = values_of(back);
    if (CHECK(want != NULL))
        NEAR(ty, kl_numel(back), want, 0);
    free(want);
}

/* ---- pooling ---- */

struct pooled { const double *x; double *sum, *max, *min, *count; };
static void gather_window(void *ctx, int64_t x, int64_t k, int64_t y)
{
    struct pooled *p = ctx;
    (void)k;
    p->sum[y] += p->x[x];
    p->max[y] = fmax(p->max[y], p->x[x]);
    p->min[y] = fmin(p->min[y], p->x[x]);
    p->count[y]++;
}

static void pool_case(kl_dtype dtype, int n)
{
    static double x[MAX_COUNT], sum[MAX_COUNT], max[MAX_COUNT], min[MAX_COUNT], count[MAX_COUNT];
    struct windows w = random_windows(n, false);
    for (int i = 0; i < n; i++)
        if (w.low[i] < 0 || w.high[i] < 0)
            return;
    int64_t lead = 1 + below(3), s[4] = {lead}, nx = product(w.length), ny = product(w.out);
    for (int i = 0; i < n; i++)
        s[1 + i] = w.length[i];
    kl_tensor a = random_tensor(dtype, 1 + n, s, x);
    bool empty = false;
    for (int64_t r = 0; r < lead; r++) {
        for (int64_t j = 0; j < ny; j++)
            sum[r * ny + j] = count[r * ny + j] = 0, max[r * ny + j] = -INFINITY, min[r * ny + j] = INFINITY;
        each(&w, gather_window, &(struct pooled){x + r * nx, sum + r * ny, max + r * ny, min + r * ny,
                                                 count + r * ny});
    }
    for (int64_t i = 0; i < lead * ny; i++)
        empty |= count[i] == 0;
    NEAR(kl_sum_pool(a, n, w.size, w.stride, w.low, w.high, w.dilation), lead * ny, sum, 0);
    bool floats = dtype == KL_F64 || dtype == KL_F32;
    if (!empty || floats) { /* nothing is no integer */
        NEAR(kl_max_pool(a, n, w.size, w.stride, w.low, w.high, w.dilation), lead * ny, max, 0);
        NEAR(kl_min_pool(a, n, w.size, w.stride, w.low, w.high, w.dilation), lead * ny, min, 0);
    }
    for (int64_t i = 0; i < lead * ny; i++)
        sum[i] /= count[i];
    if (floats)
        NEAR(kl_avg_pool(a, n, w.size, w.stride, w.low, w.high, w.dilation), lead * ny, sum, 1e-6);
    kl_release(a);
}

static void defaults(void)
{
    kl_tensor a = kl_input(dev, KL_F32, D(2, 5), (float[]){1, 5, 3, 4, 2, 6, -1, 0, 7, 9}), y;
    y = kl_max_pool(a, 1, (int64_t[]){2}, NULL, NULL, NULL, NULL); /* side by side, the rest left out */
    SHAPE(y, 2, 2);
    NEAR_LIST(y, 0, 5, 4, 6, 7);
    NEAR_LIST(kl_avg_pool(a, 2, (int64_t[]){2, 5}, NULL, NULL, NULL, NULL), 1e-6, 3.6);
    const int64_t two[] = {2}, one[] = {1}, cut[] = {-1}; /* negative padding cuts off */
    NEAR_LIST(kl_sum_pool(a, 1, two, NULL, NULL, cut, NULL), 0, 6, 7, 5, 7);
    NEAR_LIST(kl_max_pool(a, 1, two, NULL, cut, NULL, NULL), 0, 5, 4, 0, 9);
    NEAR_LIST(kl_min_pool(a, 1, two, NULL, cut, cut, NULL), 0, 3, -1);
    NEAR_LIST(kl_avg_pool(a, 1, two, NULL, cut, one, NULL), 1e-6, 4, 3, -0.5, 8);
    kl_release(a);
    a = kl_zeros(dev, KL_F32, D(0, 3, 4, 4, 2, 2, 2, 2)); /* as many axes as there are, and no elements */
    y = kl_max_pool(a, 3, (int64_t[]){2, 1, 2}, NULL, NULL, NULL, NULL);
    SHAPE(y, 0, 3, 4, 4, 2, 1, 2, 1);
    OK(kl_read(y, NULL, 0));
    kl_release(y), kl_release(a);
    a = kl_input(dev, KL_I64, D(3), (int64_t[]){INT64_MIN, INT64_MAX, INT64_MIN});
    NEAR_LIST(kl_max_pool(a, 1, (int64_t[]){2}, (int64_t[]){1}, (int64_t[]){1}, NULL, NULL), 0, -0x1p63, 0x1p63,
              0x1p63);
    NEAR_LIST(kl_min_pool(a, 1, (int64_t[]){2}, (int64_t[]){1}, NULL, (int64_t[]){1}, NULL), 0, -0x1p63, -0x1p63,
              -0x1p63);
    kl_release(a);
    a = kl_input(dev, KL_F64, D(1, 1, 3), (double[]){1, 2, 3});
    kl_tensor w = kl_input(dev, KL_F64, D(1, 1, 2), (double[]){10, 1});
    NEAR_LIST(kl_conv(a, w, kl_none, NULL, NULL, NULL, NULL, 1), 0, 12, 23);
    NEAR_LIST(kl_conv_transpose(a, w, kl_none, NULL, NULL, NULL, NULL, 1), 0, 10, 21, 32, 3);
    NEAR_LIST(kl_conv_transpose(a, w, kl_none, (int64_t[]){2}, NULL, (int64_t[]){-1}, NULL, 1), 0, 10, 1, 20, 2, 30, 3,
              0);
    kl_release(a), kl_release(w);
}

/* Half floats: sums are f32, rounded once. */
static void halves(void)
{
    float x[300];
    for (int i = 0; i < 300; i++)
        x[i] = 1 + (float)(i % 8) / 8; /* 430.25 in all */
    kl_scope_begin();
    kl_tensor wide = kl_input(dev, KL_F32, D(1, 300, 1), x), one = kl_ones(dev, KL_BF16, D(1, 300, 1));
    kl_tensor y = kl_conv(kl_cast(wide, KL_BF16), one, kl_none, NULL, NULL, NULL, NULL, 1);
    NEAR(kl_cast(y, KL_F32), 1, &(double){430}, 0);
    OK(kl_scope_end());
}

/* ---- gradients ---- */

static kl_tensor noisy(int from, int rank, const int64_t *dims, double *v)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int i = 0; i < n; i++)
        v[i] = sin(1.7 * (from + i) + 0.3) * 1.9;
    return kl_input(dev, KL_F64, rank, dims, v);
}

static kl_tensor other(int from, int rank, const int64_t *dims)
{
    double v[256];
    return noisy(from, rank, dims, v);
}

static kl_tensor weighted(kl_tensor y)
{
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(y, dims);
    return kl_sum_all(kl_mul(kl_mul(y, y), other(100, rank, dims)));
}

#define L(...) (int64_t[]){__VA_ARGS__}
static kl_tensor g_conv(kl_tensor x)
{
    return kl_conv(x, other(1, D(4, 1, 2, 3)), other(2, D(4)), L(2, 1), L(1, 0), L(0, 1), L(1, 2), 2);
}
static kl_tensor g_conv_every(kl_tensor x)
{
    return kl_conv(x, other(1, D(4, 3, 2, 3)), other(2, D(4)), NULL, L(1, 0), L(0, 2), L(1, 2), 1);
}
static kl_tensor g_conv_depthwise(kl_tensor x)
{
    return kl_conv(x, other(1, D(3, 1, 3)), kl_none, NULL, L(1), L(1), NULL, 3);
}
static kl_tensor g_conv_far(kl_tensor x) /* more zeros around x than a window reaches */
{
    return kl_conv(x, other(1, D(2, 2, 2)), kl_none, NULL, L(3), L(1), NULL, 1);
}
static kl_tensor g_conv_twice(kl_tensor x) /* the gradient of a gradient, and of what is in between */
{
    kl_requires_grad(x);
    kl_tensor y = g_conv_every(x);
    return kl_add(kl_grad(kl_sum_all(kl_mul(y, kl_mul(y, y))), x), x);
}
static kl_tensor g_conv_weight(kl_tensor w)
{
    return kl_conv(other(1, D(2, 4, 5)), w, other(2, D(2)), L(2), L(1), L(1), NULL, 1);
}
static kl_tensor g_conv_cut(kl_tensor x)
{
    return kl_conv(x, other(1, D(1, 1, 2)), kl_none, NULL, L(-1), L(-2), NULL, 1);
}
static kl_tensor g_transpose(kl_tensor x)
{
    return kl_conv_transpose(x, other(1, D(2, 1, 3, 2)), kl_none, L(2, 3), L(1, 0), L(0, -1), L(1, 2), 2);
}
static kl_tensor g_transpose_weight(kl_tensor w)
{
    return kl_conv_transpose(other(1, D(2, 2, 3)), w, other(2, D(2)), L(2), L(1), NULL, NULL, 1);
}
static kl_tensor g_sum_pool(kl_tensor x) { return kl_sum_pool(x, 1, L(3), L(2), L(1), L(1), NULL); }
static kl_tensor g_avg_pool(kl_tensor x) { return kl_avg_pool(x, 2, L(2, 3), L(1, 2), L(1, 0), L(0, 2), NULL); }
static kl_tensor g_max_pool(kl_tensor x) { return kl_max_pool(x, 2, L(2, 2), L(1, 2), L(0, 1), NULL, L(1, 2)); }
static kl_tensor g_min_pool(kl_tensor x) { return kl_min_pool(x, 1, L(3), L(1), NULL, L(1), NULL); }

#define GRADIENT(f, ...) gradient_at(f, #f, __LINE__, DIMS(__VA_ARGS__))
static void gradient_at(kl_tensor (*f)(kl_tensor), const char *name, int line, int rank, const int64_t *dims)
{
    double x[256];
    const double h = 1e-5;
    kl_scope_begin();
    kl_tensor a = noisy(line, rank, dims, x);
    int n = (int)kl_numel(a);
    kl_requires_grad(a);
    double *got = values_of(kl_grad(weighted(f(a)), a));
    bool ok = got != NULL;
    for (int i = 0; ok && i < n; i++) {
        double at = x[i];
        x[i] = at + h;
        double up = kl_item_f64(weighted(f(kl_input(dev, KL_F64, rank, dims, x))));
        x[i] = at - h;
        double down = kl_item_f64(weighted(f(kl_input(dev, KL_F64, rank, dims, x)))), want = (up - down) / (2 * h);
        x[i] = at;
        ok = fabs(got[i] - want) <= 1e-6 * (1 + fabs(want));
        if (!ok)
            printf("line %d: gradient of %s, element %d: %.12g, not %.12g\n", line, name, i, got[i], want);
    }
    check_at(ok, line, name);
    free(got);
    OK(kl_scope_end());
}

static void gradients(void)
{
    GRADIENT(g_conv, 2, 2, 3, 4);
    GRADIENT(g_conv_every, 2, 3, 3, 5);
    GRADIENT(g_conv_depthwise, 2, 3, 5);
    GRADIENT(g_conv_far, 1, 2, 4);
    GRADIENT(g_conv_twice, 1, 3, 3, 5);
    GRADIENT(g_conv_weight, 2, 4, 3);
    GRADIENT(g_conv_cut, 1, 1, 7);
    GRADIENT(g_transpose, 1, 2, 2, 3);
    GRADIENT(g_transpose_weight, 2, 2, 3);
    GRADIENT(g_sum_pool, 2, 7);
    GRADIENT(g_avg_pool, 2, 3, 5);
    GRADIENT(g_max_pool, 4, 5);
    GRADIENT(g_min_pool, 2, 6);
    kl_tensor a = kl_input(dev, KL_F64, D(4), (double[]){1, 3, 3, 2}); /* ties share, windows add up */
    kl_requires_grad(a);
    kl_tensor y = kl_max_pool(a, 1, L(3), L(1), NULL, NULL, NULL), loss = kl_sum_all(y);
    NEAR_LIST(kl_grad(loss, a), 0, 0, 1, 1, 0);
    kl_release(y), kl_release(loss), kl_release(a);
}

/* -1, 0 and 1, in an order that repeats along no axis. */
static kl_tensor ones_and_zeros(int from, int rank, const int64_t *dims)
{
    float v[2048] = {0};
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    CHECK(n <= 2048);
    for (int i = 0; i < n && i < 2048; i++)
        v[i] = (float)((from + i * i + i / 7) % 3 - 1);
    return kl_input(dev, KL_F32, rank, dims, v);
}

/* The gradients of a convolution of these numbers, of x and w, with all products in f32 or in `half`. */
static void autocast_grads(const int64_t *d, const int64_t *stride, const int64_t *low, const int64_t *high,
                           const int64_t *dilation, int groups, int half, kl_tensor g[2])
{
    kl_tensor x = ones_and_zeros(1, D(d[0], d[1], d[2], d[3]));
    kl_tensor w = ones_and_zeros(2, D(d[4], d[1] / groups, d[5], d[6])), in[2] = {x, w};
    kl_requires_grad(x);
    kl_requires_grad(w);
    if (half >= 0)
        kl_autocast_begin((kl_dtype)half);
    kl_tensor y = kl_conv(x, w, kl_none, stride, low, high, dilation, groups);
    if (half >= 0)
        kl_autocast_end();
    int64_t shape[KL_MAX_RANK];
    int rank = kl_shape(y, shape);
    CHECK(half < 0 || kl_dtype_of(y) == (kl_dtype)half);
    kl_grads(kl_sum_all(kl_mul(kl_cast(y, KL_F32), ones_and_zeros(3, rank, shape))), 2, in, g);
}

/* Numbers of which halves hold all sums: gradients through autocast are those of f32, to the bit. */
static void autocast(void)
{
    static const struct { int64_t dims[7], stride[2], low[2], high[2], dilation[2]; int groups; } each[] = {
        {{2, 3, 6, 7, 4, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1},   /* N, channels, rows, columns, filters, window */
        {{1, 4, 9, 5, 4, 3, 2}, {1, 1}, {1, 0}, {0, 1}, {1, 2}, 2},   /* odd windows, dilated, groups */
        {{2, 5, 5, 17, 3, 1, 4}, {1, 1}, {0, 0}, {0, 0}, {1, 1}, 1},  /* no zeros around x */
        {{1, 2, 7, 7, 4, 3, 3}, {2, 1}, {1, 1}, {1, 1}, {1, 1}, 1},   /* not every position has a window */
        {{2, 2, 4, 4, 2, 2, 2}, {1, 1}, {3, 2}, {2, 3}, {1, 1}, 1},   /* more zeros than a window reaches */
        {{1, 6, 5, 5, 6, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 6}};  /* depthwise */
    for (unsigned i = 0; i < sizeof each / sizeof *each; i++)
        for (int half = 0; half < 2; half++) {
            kl_tensor exact[2], got[2];
            kl_scope_begin();
            autocast_grads(each[i].dims, each[i].stride, each[i].low, each[i].high, each[i].dilation, each[i].groups,
                           -1, exact);
            autocast_grads(each[i].dims, each[i].stride, each[i].low, each[i].high, each[i].dilation, each[i].groups,
                           half ? KL_F16 : KL_BF16, got);
            for (int k = 0; k < 2; k++) {
                double *want = values_of(exact[k]);
                CHECK(kl_dtype_of(got[k]) == KL_F32);
                if (CHECK(want))
                    NEAR(got[k], (int)kl_numel(exact[k]), want, 0);
                free(want);
            }
            OK(kl_scope_end());
        }
}

/* ---- misuse ---- */

#define REFUSED(call, code, text) refused(call, code, text, __LINE__)
static void refused(kl_tensor t, kl_status code, const char *text, int line)
{
    bool ok = kl_check(t) == code && strstr(kl_last_error(), text) && strstr(kl_last_error(), "api_window.c:");
    check_at(ok, line, "an error");
    kl_release(t);
}

static void misuse(void)
{
    kl_scope_begin();
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), x = kl_zeros(dev, KL_F32, D(2, 4, 5)),
        i = kl_zeros(dev, KL_I32, D(2, 3));
    kl_tensor w = kl_zeros(dev, KL_F32, D(6, 2, 3)), v = kl_zeros(dev, KL_F32, D(5)),
        b = kl_zeros(dev, KL_BOOL, D(2, 4, 5));
    const int64_t two[] = {2, 2, 2}, none[] = {0, 0, 0}, less[] = {-1, -1, -1}, far[] = {INT64_MAX, INT64_MAX};
    REFUSED(kl_max_pool(a, 3, two, NULL, NULL, NULL, NULL), KL_ERR_SHAPE, "max_pool: no last 3 axes in shape [2,3]");
    REFUSED(kl_max_pool(a, 1, NULL, NULL, NULL, NULL, NULL), KL_ERR_ARGUMENT,
            "max_pool: windows of 0 axes; needs 1..3");
    REFUSED(kl_sum_pool(a, 4, two, NULL, NULL, NULL, NULL), KL_ERR_ARGUMENT, "sum_pool: windows of 4 axes; needs 1..3");
    REFUSED(kl_min_pool(a, 1, two, none, NULL, NULL, NULL), KL_ERR_ARGUMENT,
            "min_pool: window 2, stride 0, dilation 1");
    REFUSED(kl_min_pool(a, 1, two, NULL, less, less, NULL), KL_ERR_SHAPE, "min_pool: "); /* more cut off than fits */
    REFUSED(kl_avg_pool(i, 1, two, NULL, NULL, NULL, NULL), KL_ERR_TYPE, "avg_pool: needs a floating dtype, got i32");
    REFUSED(kl_max_pool(b, 1, two, NULL, NULL, NULL, NULL), KL_ERR_TYPE, "max_pool: needs a number dtype, got bool");
    REFUSED(
        kl_avg_pool(a, 1, far, NULL, NULL, NULL, NULL), KL_ERR_SHAPE,
        "avg_pool: a window of 9223372036854775807 with dilation 1 does not fit in axis 1 of [2,3], padded by 0 and 0");
    REFUSED(kl_max_pool(a, 1, two, NULL, far, NULL, NULL), KL_ERR_SHAPE, "max_pool: a window of 2");
    REFUSED(kl_conv(a, w, kl_none, NULL, NULL, NULL, NULL, 2), KL_ERR_SHAPE, "conv: needs x [N, C, ...] and w");
    REFUSED(kl_conv(x, w, kl_none, NULL, NULL, NULL, NULL, 1), KL_ERR_SHAPE,
            "conv: the channels of x [2,4,5] and w [6,2,3] do not make 1 equal groups");
    REFUSED(kl_conv(x, w, kl_none, NULL, NULL, NULL, NULL, 0), KL_ERR_SHAPE, "conv: the channels of x");
    REFUSED(kl_conv(x, w, v, NULL, NULL, NULL, NULL, 2), KL_ERR_SHAPE, "conv: the bias must be [6], got [5]");
    REFUSED(kl_conv(b, w, kl_none, NULL, NULL, NULL, NULL, 2), KL_ERR_TYPE,
            "conv: needs one number dtype, got bool, f32");
    SHAPE(kl_conv(x, w, kl_none, NULL, less, less, NULL, 2), 2, 6, 1);
    REFUSED(kl_conv(x, w, kl_none, NULL, less, (int64_t[]){-2}, NULL, 2), KL_ERR_SHAPE,
            "conv: a window of 3 with dilation 1 does not fit in axis 2 of [2,4,5], padded by -1 and -2");
    REFUSED(kl_conv(x, w, kl_none, none, NULL, NULL, NULL, 2), KL_ERR_ARGUMENT, "conv: window 3, stride 0, dilation 1");
    REFUSED(kl_conv(kl_none, w, kl_none, NULL, NULL, NULL, NULL, 2), KL_ERR_HANDLE, "conv: ");
    REFUSED(kl_conv_transpose(x, w, kl_none, NULL, NULL, NULL, NULL, 2), KL_ERR_SHAPE,
            "conv_transpose: the channels of x");
    REFUSED(kl_conv_transpose(x, kl_zeros(dev, KL_F32, D(4, 1, 3)), kl_none, NULL, (int64_t[]){4}, (int64_t[]){3}, NULL,
                              1),
            KL_ERR_SHAPE, "conv_transpose: axis 2 of [2,4,5] gives no elements with the window 3");
    OK(kl_scope_end());
}

/* Quotients of which each lane has its own in the kernels of a trace; -1: none could be dumped. */
static int lane_quotients(const char *trace)
{
    char path[] = "/tmp/kiln_windows_XXXXXX", line[1024];
    int fd = mkstemp(path), n = -1, lines = 0;
    FILE *f = NULL;
    if (fd >= 0 && kl_dump(trace, "scheduled", path) == KL_OK && (f = fopen(path, "r")))
        for (n = 0; fgets(line, sizeof line, f); lines++)
            n += strstr(line, " = div ") && strstr(line, ": *i64");
    if (f)
        fclose(f);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    return lines ? n : -1;
}

/* The gradient of windows that overlap is a sum of rows, each read evenly: one kernel, in which no lane divides to find
 * its element. */
static void gradient_kernels(void)
{
    static const int64_t cases[][3] = {{34, 3, 1}, {40, 2, 1}, {67, 5, 2}, {33, 4, 3}}; /* length, size, dilation */
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int axis = 1; axis < 3; axis++) {
            kl_scope_begin();
            kl_tensor x = kl_rand(dev, KL_F32, D(6, cases[i][0], cases[i][0]), 1);
            kl_requires_grad(x);
            OK(kl_sync(dev));
            kl_trace_begin("window gradient");
            kl_tensor w = kl_window(x, axis, cases[i][1], 1, cases[i][2]);
            int64_t dims[KL_MAX_RANK];
            int rank = kl_shape(w, dims);
            kl_keep(kl_grad(kl_sum_all(kl_mul(w, kl_rand(dev, KL_F32, rank, dims, 2))), x));
            OK(kl_trace_end());
            CHECK(lane_quotients("window gradient") == 0);
            OK(kl_scope_end());
        }
}

static void test(kl_device d)
{
    static const kl_dtype dtypes[] = {KL_F64, KL_F32, KL_F16, KL_BF16, KL_I32, KL_U8, KL_I64, KL_U64};
    dev = d;
    for (int i = 0; i < 16; i++) {
        kl_scope_begin();
        conv_case(dtypes[i % 8], 1 + i % 3, i & 1);
        transpose_case(i & 1 ? KL_F64 : KL_F32, 1 + i % 3);
        pool_case(dtypes[i % 8], 1 + i % 3);
        OK(kl_scope_end());
    }
    defaults();
    halves();
    autocast();
    gradients();
    if (!strcmp(device_now, "cpu"))
        gradient_kernels();
    misuse();
}

int main(void)
{
    return on_devices(test);
}
