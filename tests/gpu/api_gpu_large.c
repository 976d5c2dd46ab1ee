/* Kernels at the sizes that they are made for, against sums on the host in f64: long sums, scans and sorts, scatters
 * to the rows of an embedding, long rows, products of all kinds, attention and convolutions with their gradients.  Of
 * large results some elements are compared.
 *
 *   api_gpu_large DEVICE [DIVISOR]    DIVISOR: lengths are so many times shorter (1)
 *
 * Inputs are small multiples of 1/16, which bf16 has exactly. */
#include "tests/support/api_check.h"

enum { SAMPLES = 64, MAX_RANK = 4 };

static kl_device device;
static int64_t divisor = 1;

static int64_t shorter(int64_t n) { return n / divisor > 8 ? n / divisor : 8; }

/* ---- numbers ---- */

static uint32_t hash(uint32_t x) /* lowbias32, Christopher Wellons */
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* n multiples of 1/16 from -1/2 to 1/2. */
static float *numbers(int64_t n, uint32_t seed)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++)
        x[i] = (float)((int)(hash((uint32_t)i + seed * 0x9e3779b9u) % 17) - 8) / 16;
    return x;
}

static int64_t sample(int64_t i, int64_t n) { return (int64_t)(hash((uint32_t)i) % (uint64_t)n); }

static kl_tensor tensor(const float *x, int rank, const int64_t *dims, kl_dtype dtype)
{
    kl_tensor f = kl_input(device, KL_F32, rank, dims, x);
    if (dtype == KL_F32)
        return f;
    kl_trace_begin("narrow");
    kl_tensor y = kl_keep(kl_cast(f, dtype));
    OK(kl_trace_end());
    kl_release(f);
    return y;
}

static double rounding(kl_dtype dtype) { return dtype == KL_BF16 ? 0x1p-8 : 0x1p-23; }

static unsigned wrong;
static void near(double got, double want, double bound, const char *what)
{
    if (fabs(got - want) <= bound || wrong > 4)
        return;
    wrong++;
    printf("%s: %.9g, not %.9g within %.3g\n", what, got, want, bound);
}

static void report(int line, const char *what)
{
    check_at(!wrong && !*kl_last_error(), line, what);
    printf("%s: %s\n", what, wrong ? "wrong" : "right");
    wrong = 0;
}
#define REPORT(what) report(__LINE__, what)

/* Ends the trace and reads its result y, which is released. */
static double *result(kl_tensor y)
{
    kl_keep(y);
    OK(kl_trace_end());
    double *v = values_of(y);
    CHECK(v);
    kl_release(y);
    return v;
}

/* ---- sums, scans, sorts, scatters, rows ---- */

/* The same program gives the same bits again. */
static void same_again(double *v, kl_tensor y, const char *what)
{
    int64_t n = kl_numel(y);
    double *again = result(y);
    near(v && again && !memcmp(v, again, (size_t)n * sizeof *v), 1, 0, what);
    free(again);
}

static void test_sum(void)
{
    int64_t n = shorter(64 << 20);
    float *x = numbers(n, 1);
    double want = 0, size = 0;
    kl_tensor t = tensor(x, 1, &n, KL_F32);
    for (int64_t i = 0; i < n; i++) {
        want += (double)x[i];
        size += fabs((double)x[i]);
    }
    kl_trace_begin("sum");
    double *v = result(kl_sum_all(t));
    near(v ? *v : NAN, want, 1e-6 * size, "sum");
    kl_trace_begin("sum");
    same_again(v, kl_sum_all(t), "sum again");
    REPORT("a sum of 64M");
    kl_release(t);
    free(v), free(x);
}

static void test_cumsum(void)
{
    int64_t n = shorter(16 << 20);
    float *x = numbers(n, 2);
    double want = 0, size = 0;
    kl_tensor t = tensor(x, 1, &n, KL_F32);
    kl_trace_begin("cumsum");
    double *v = result(kl_cumsum(t, 0, false, false));
    for (int64_t i = 0; v && i < n; i++) {
        want += (double)x[i];
        size += fabs((double)x[i]);
        near(v[i], want, 1e-6 * size, "cumsum");
    }
    kl_trace_begin("cumsum");
    same_again(v, kl_cumsum(t, 0, false, false), "cumsum again");
    REPORT("a scan of 16M");
    kl_release(t);
    free(v), free(x);
}

static void test_sort(void)
{
    int64_t n = shorter(1 << 20);
    float *x = numbers(n, 3);
    for (int64_t i = 0; i < n; i++)
        x[i] += (float)(hash((uint32_t)i) % 4096);
    kl_tensor t = tensor(x, 1, &n, KL_F32);
    kl_trace_begin("sort");
    double *v = result(kl_argsort(t, 0, false));
    uint8_t *seen = calloc((size_t)n, 1);
    for (int64_t i = 0; v && seen && i < n; i++) {
        int64_t at = (int64_t)v[i], before = i ? (int64_t)v[i - 1] : -1;
        bool there = at >= 0 && at < n && !seen[at];
        near(there, 1, 0, "sort: a place once");
        if (!there)
            break;
        seen[at] = 1;
        near(i && (x[before] > x[at] || (x[before] == x[at] && before > at)), 0, 0, "sort: the order");
    }
    REPORT("a sort of 1M");
    kl_release(t);
    free(seen), free(v), free(x);
}

static void test_index_add(void)
{
    enum { COLUMNS = 768 };
    int64_t rows = shorter(50257), count = shorter(8192);
    int32_t *id = malloc((size_t)count * sizeof *id);
    float *u = numbers(count * COLUMNS, 4);
    double *want = calloc((size_t)(rows * COLUMNS), sizeof *want);
    for (int64_t i = 0; i < count; i++) {
        id[i] = (int32_t)(i % 3 ? sample(i, rows) : 5); /* a third of all go to one row */
        for (int c = 0; c < COLUMNS; c++)
            want[id[i] * COLUMNS + c] += (double)u[i * COLUMNS + c];
    }
    kl_tensor index = kl_input(device, KL_I32, 1, &count, id), t = tensor(u, DIMS(count, COLUMNS), KL_F32);
    kl_trace_begin("index_add");
    double *v = result(kl_index_add(kl_zeros(device, KL_F32, DIMS(rows, COLUMNS)), 0, index, t));
    for (int64_t i = 0; v && i < rows * COLUMNS; i++)
        near(v[i], want[i], 1e-6 * (double)count, "index_add");
    kl_trace_begin("index_add");
    same_again(v, kl_index_add(kl_zeros(device, KL_F32, DIMS(rows, COLUMNS)), 0, index, t), "index_add again");
    REPORT("an index_add to 50257 x 768");
    kl_release(index), kl_release(t);
    free(id), free(u), free(want), free(v);
}

static void test_softmax(void)
{
    int64_t rows = shorter(4096), n = 16000;
    float *x = numbers(rows * n, 5);
    kl_tensor t = tensor(x, DIMS(rows, n), KL_F32);
    kl_trace_begin("softmax");
    double *v = result(kl_softmax(kl_mul_scalar(t, 16), 1));
    for (int64_t s = 0; v && s < SAMPLES; s++) {
        const float *row = x + sample(s, rows) * n;
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += exp(16 * (double)row[i]);
        for (int64_t i = 0; i < n; i++) {
            double want = exp(16 * (double)row[i]) / sum;
            near(v[row - x + i], want, 1e-5 * want, "softmax");
        }
    }
    REPORT("a softmax over 16000 columns");
    kl_release(t);
    free(x), free(v);
}

/* ---- products ---- */

static void test_product(int64_t m, int64_t n, int64_t k, kl_dtype dtype)
{
    char what[64];
    float *a = numbers(m * k, 6), *b = numbers(k * n, 7);
    kl_tensor ta = tensor(a, DIMS(m, k), dtype), tb = tensor(b, DIMS(k, n), dtype);
    kl_trace_begin("product");
    double *v = result(kl_matmul(ta, tb));
    for (int64_t s = 0; v && s < 16 * SAMPLES; s++) {
        int64_t i = sample(2 * s, m), j = sample(2 * s + 1, n);
        double want = 0;
        for (int64_t l = 0; l < k; l++)
            want += (double)a[i * k + l] * (double)b[l * n + j]; /* multiples of 1/256: f32 adds them exactly */
        near(v[i * n + j], want, rounding(dtype) * fabs(want), "product");
    }
    kl_trace_begin("product");
    same_again(v, kl_matmul(ta, tb), "product again");
    snprintf(what, sizeof what, "a product of %s %lldx%lldx%lld", kl_dtype_name(dtype), (long long)m, (long long)n,
             (long long)k);
    REPORT(what);
    kl_release(ta), kl_release(tb);
    free(a), free(b), free(v);
}

static void test_products(void)
{
    const int64_t large = shorter(4096), odd = shorter(1000) + 1, size[][3] = {
        {1, large, large}, {8, large, large}, {16, large, large}, {large, large, large}, {odd, odd + 2, odd + 5},
        {128, 512, 784}};
    for (unsigned i = 0; i < sizeof size / sizeof *size; i++) {
        test_product(size[i][0], size[i][1], size[i][2], KL_F32);
        test_product(size[i][0], size[i][1], size[i][2], KL_BF16);
    }
}

/* ---- attention ---- */

enum { DEPTH = 64 };
struct attention {
    int64_t heads, length;
    double scale;
    float *q, *k, *v, *dy;        /* [heads, length, DEPTH] */
    double *sum, *max, *delta;   /* per query of one head: of its softmax, and the sum of dy y */
};

static double dot(const float *a, const float *b)
{
    double s = 0;
    for (int d = 0; d < DEPTH; d++)
        s += (double)a[d] * (double)b[d];
    return s;
}

/* The softmax of query i, causal, and y. */
static void attend(struct attention *a, int64_t head, int64_t i, double *y)
{
    const float *q = a->q + (head * a->length + i) * DEPTH, *k = a->k + head * a->length * DEPTH,
                *v = a->v + head * a->length * DEPTH, *dy = a->dy + (head * a->length + i) * DEPTH;
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; j++)
        max = fmax(max, a->scale * dot(q, k + j * DEPTH));
    memset(y, 0, DEPTH * sizeof *y);
    for (int64_t j = 0; j <= i; j++) {
        double p = exp(a->scale * dot(q, k + j * DEPTH) - max);
        sum += p;
        for (int d = 0; d < DEPTH; d++)
            y[d] += p * (double)v[j * DEPTH + d];
    }
    a->max[i] = max, a->sum[i] = sum, a->delta[i] = 0;
    for (int d = 0; d < DEPTH; d++) {
        y[d] /= sum;
        a->delta[i] += y[d] * (double)dy[d];
    }
}

/* The weight of query i for key j, and the gradient by its score. */
static double weight(const struct attention *a, int64_t head, int64_t i, int64_t j, double *ds)
{
    int64_t at = head * a->length;
    double s = a->scale * dot(a->q + (at + i) * DEPTH, a->k + (at + j) * DEPTH);
    double p = exp(s - a->max[i]) / a->sum[i];
    *ds = p * (dot(a->dy + (at + i) * DEPTH, a->v + (at + j) * DEPTH) - a->delta[i]) * a->scale;
    return p;
}

static void compare_attention(struct attention *a, int64_t head, double *const got[4])
{
    double y[DEPTH], ds;
    const double bound = 0.02; /* of values up to 1: weights are rounded to bf16, and so are the results */
    for (int64_t i = 0; i < a->length; i++) {
        attend(a, head, i, y);
        for (int d = 0; d < DEPTH; d++)
            near(got[0][(head * a->length + i) * DEPTH + d], y[d], bound, "attention");
    }
    for (int64_t s = 0; s < 8; s++) {
        int64_t at = sample(s, a->length);
        double dq[DEPTH] = {0}, dk[DEPTH] = {0}, dv[DEPTH] = {0};
        for (int64_t j = 0; j <= at; j++) {
            weight(a, head, at, j, &ds);
            for (int d = 0; d < DEPTH; d++)
                dq[d] += ds * (double)a->k[(head * a->length + j) * DEPTH + d];
        }
        for (int64_t i = at; i < a->length; i++) {
            double p = weight(a, head, i, at, &ds);
            for (int d = 0; d < DEPTH; d++) {
                dk[d] += ds * (double)a->q[(head * a->length + i) * DEPTH + d];
                dv[d] += p * (double)a->dy[(head * a->length + i) * DEPTH + d];
            }
        }
        for (int d = 0; d < DEPTH; d++) {
            int64_t place = (head * a->length + at) * DEPTH + d;
            near(got[1][place], dq[d], bound, "the gradient by queries");
            near(got[2][place], dk[d], bound, "the gradient by keys");
            near(got[3][place], dv[d], bound + 0.02 * fabs(dv[d]), "the gradient by values");
        }
    }
}

static void test_attention(int64_t heads, int64_t length, kl_dtype dtype)
{
    char what[64];
    struct attention a = {.heads = heads, .length = length, .scale = 1 / sqrt(DEPTH)};
    float **in[] = {&a.q, &a.k, &a.v, &a.dy};
    double **of_row[] = {&a.sum, &a.max, &a.delta}, *got[4];
    kl_tensor t[4], out[4];
    for (int i = 0; i < 4; i++) {
        *in[i] = numbers(heads * length * DEPTH, 8 + (uint32_t)i);
        t[i] = tensor(*in[i], DIMS(1, heads, length, DEPTH), dtype);
    }
    for (int i = 0; i < 3; i++)
        *of_row[i] = malloc((size_t)length * sizeof(double));
    kl_trace_begin("attention");
    out[0] = kl_attention(t[0], t[1], t[2], kl_none, true);
    kl_tensor y = kl_mul(out[0], t[3]);
    for (int i = 0; i < 3; i++)
        out[i + 1] = kl_grad(y, t[i]);
    for (int i = 0; i < 4; i++)
        kl_keep(out[i]);
    OK(kl_trace_end());
    for (int i = 0; i < 4; i++)
        got[i] = values_of(out[i]);
    if (CHECK(got[0] && got[1] && got[2] && got[3]))
        for (int64_t s = 0; s < 2; s++)
            compare_attention(&a, s ? heads - 1 : 0, got);
    snprintf(what, sizeof what, "attention of %s, %lld heads, %lld tokens", kl_dtype_name(dtype), (long long)heads,
             (long long)length);
    REPORT(what);
    for (int i = 0; i < 4; i++) {
        kl_release(t[i]), kl_release(out[i]);
        free(got[i]), free(*in[i]);
    }
    for (int i = 0; i < 3; i++)
        free(*of_row[i]);
}

/* ---- convolution ---- */

enum { KERNEL = 3 };
struct conv { int64_t batch, in, out, side; float *x, *w, *dy; };

static int64_t pixel(int64_t channels, int64_t side, int64_t n, int64_t c, int64_t i, int64_t j)
{
    return ((n * channels + c) * side + i) * side + j;
}

static bool inside(int64_t side, int64_t i, int64_t j) { return i >= 0 && j >= 0 && i < side && j < side; }

/* Elements of the result, and of the gradients by x and w, whose numbers are `at`. */
static double conv_value(const struct conv *c, int64_t at)
{
    int64_t j = at % c->side, i = at / c->side % c->side, o = at / c->side / c->side % c->out, n = at / c->side /
            c->side / c->out;
    double sum = 0;
    for (int64_t ch = 0; ch < c->in; ch++)
        for (int64_t a = 0; a < KERNEL; a++)
            for (int64_t b = 0; b < KERNEL; b++)
                if (inside(c->side, i + a - 1, j + b - 1))
                    sum += (double)c->x[pixel(c->in, c->side, n, ch, i + a - 1, j + b - 1)] *
                           (double)c->w[pixel(c->in, KERNEL, o, ch, a, b)];
    return sum;
}

static double conv_grad_x(const struct conv *c, int64_t at)
{
    int64_t j = at % c->side, i = at / c->side % c->side, ch = at / c->side / c->side % c->in, n = at / c->side /
            c->side / c->in;
    double sum = 0;
    for (int64_t o = 0; o < c->out; o++)
        for (int64_t a = 0; a < KERNEL; a++)
            for (int64_t b = 0; b < KERNEL; b++)
                if (inside(c->side, i - a + 1, j - b + 1))
                    sum += (double)c->dy[pixel(c->out, c->side, n, o, i - a + 1, j - b + 1)] *
                           (double)c->w[pixel(c->in, KERNEL, o, ch, a, b)];
    return sum;
}

static double conv_grad_w(const struct conv *c, int64_t at)
{
    int64_t b = at % KERNEL, a = at / KERNEL % KERNEL, ch = at / KERNEL / KERNEL % c->in, o = at / KERNEL / KERNEL /
            c->in;
    double sum = 0;
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t i = 0; i < c->side; i++)
            for (int64_t j = 0; j < c->side; j++)
                if (inside(c->side, i + a - 1, j + b - 1))
                    sum += (double)c->x[pixel(c->in, c->side, n, ch, i + a - 1, j + b - 1)] *
                           (double)c->dy[pixel(c->out, c->side, n, o, i, j)];
    return sum;
}

static void test_conv(kl_dtype dtype)
{
    static double (*const value[])(const struct conv *c, int64_t at) = {conv_value, conv_grad_x, conv_grad_w};
    static const char *const name[] = {"convolution", "its gradient by the image", "its gradient by the weights"};
    const int64_t one[] = {1, 1};
    struct conv c = {.batch = shorter(32), .in = shorter(128), .out = shorter(256), .side = 28};
    int64_t n[] = {c.batch * c.out * c.side * c.side, c.batch * c.in * c.side * c.side, c.out * c.in * KERNEL * KERNEL};
    c.x = numbers(n[1], 12), c.w = numbers(n[2], 13), c.dy = numbers(n[0], 14);
    kl_tensor x = tensor(c.x, DIMS(c.batch, c.in, c.side, c.side), dtype),
              w = tensor(c.w, DIMS(c.out, c.in, KERNEL, KERNEL), dtype),
              dy = tensor(c.dy, DIMS(c.batch, c.out, c.side, c.side), dtype), out[3];
    kl_trace_begin("conv");
    out[0] = kl_conv(x, w, kl_none, one, one, one, NULL, 1);
    kl_tensor loss = kl_mul(out[0], dy);
    out[1] = kl_grad(loss, x), out[2] = kl_grad(loss, w);
    for (int i = 0; i < 3; i++)
        kl_keep(out[i]);
    OK(kl_trace_end());
    for (int i = 0; i < 3; i++) {
        double *v = values_of(out[i]);
        for (int64_t s = 0; CHECK(v) && s < SAMPLES; s++) {
            int64_t at = sample(s, n[i]);
            double want = value[i](&c, at);
            near(v[at], want, rounding(dtype) * fabs(want), name[i]);
        }
        kl_release(out[i]);
        free(v);
    }
    REPORT(dtype == KL_F32 ? "a convolution of f32" : "a convolution of bf16");
    kl_release(x), kl_release(w), kl_release(dy);
    free(c.x), free(c.w), free(c.dy);
}

int main(int argc, char **argv)
{
    device_now = argc > 1 ? argv[1] : "cuda";
    divisor = argc > 2 ? atoi(argv[2]) : 1;
    device = kl_device_named(device_now);
    kl_tensor trial = device.id ? kl_zeros(device, KL_F32, DIMS(1)) : (kl_tensor){0};
    if (!device.id || kl_item_f32(trial) != 0 || kl_last_error()[0]) {
        printf("SKIP no-device %s: %s\n0 passed, 0 failed, 1 skipped\n", device_now, kl_last_error());
        return 0;
    }
    kl_release(trial);
    test_sum();
    test_cumsum();
    test_sort();
    test_index_add();
    test_softmax();
    test_products();
    test_attention(shorter(64), shorter(2048), KL_BF16);
    test_attention(shorter(16), shorter(515), KL_F32);
    test_conv(KL_BF16);
    test_conv(KL_F32);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
