/* The composites of nn.h: values against plain loops in double, extreme and empty operands, misuse.  api_nn_grad.c
 * has their gradients. */
#include "tests/support/api_numbers.h"

#define COUNT(a) (int)(sizeof(a) / sizeof(a)[0])

/* ---- values: activations ---- */

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double relu(double x) { return x > 0 ? x : 0; }
static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static double silu(double x) { return x * sigmoid(x); }
static double mish(double x) { return x * tanh(softplus(x)); }
static double gelu(double x) { return x * sigmoid(2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)); }
static double leaky(double x) { return x > 0 ? x : 0.1 * x; }
static double elu(double x) { return x > 0 ? x : 1.5 * expm1(x); }
static double clamped(double x) { return x < -0.5 ? -0.5 : x > 1 ? 1 : x; }
static kl_tensor kl_leaky(kl_tensor x) { return kl_leaky_relu(x, 0.1); }
static kl_tensor kl_elu15(kl_tensor x) { return kl_elu(x, 1.5); }
static kl_tensor kl_clamped(kl_tensor x) { return kl_clamp(x, -0.5, 1); }
#undef kl_relu
#undef kl_sigmoid
#undef kl_softplus
#undef kl_silu
#undef kl_mish
#undef kl_gelu

static const struct {
    double (*want)(double);
    kl_tensor (*op)(kl_tensor);
} activation[] = {{relu, kl_relu}, {sigmoid, kl_sigmoid}, {softplus, kl_softplus}, {silu, kl_silu}, {mish, kl_mish},
                  {gelu, kl_gelu}, {leaky, kl_leaky}, {elu, kl_elu15}, {clamped, kl_clamped}};

/* A logarithm is at least -100 in every dtype, so that a probability of 0 or 1 has a finite loss. */
static void bounded_losses(void)
{
    const kl_dtype types[] = {KL_F64, KL_F32, KL_F16, KL_BF16};
    for (int i = 0; i < 4; i++) {
        kl_tensor p = kl_full(dev, types[i], D(1), 1), quarter = kl_full(dev, types[i], D(1), 0.25);
        kl_tensor none = kl_zeros(dev, types[i], D(1));
        NEAR_LIST(kl_binary_cross_entropy(p, quarter), 0, 75);
        NEAR_LIST(kl_binary_cross_entropy(none, quarter), 0, 25);
        NEAR_LIST(kl_binary_cross_entropy(p, p), 0, 0);
        kl_release(p), kl_release(quarter), kl_release(none);
    }
}

/* Relative accuracy, unlike NEAR's: small results must not lose their digits. */
static void near_relative(kl_tensor t, int n, const double *want, double tolerance, int which)
{
    double *v = kl_numel(t) == n ? values_of(t) : NULL;
    check_at(v != NULL, __LINE__, "values of an activation");
    for (int i = 0; v && i < n; i++)
        if (!check_at(isnan(want[i]) ? isnan(v[i]) : fabs(v[i] - want[i]) <= tolerance * fabs(want[i]) + 1e-300,
                      __LINE__, "an activation"))
            printf("  activation %d: %.17g, not %.17g\n", which, v[i], want[i]);
    free(v);
    kl_release(t);
}

static void activations(void)
{
    static const double at[] = {-1000, -37.5, -5.25, -1, -0.5, -1e-3, -1e-9, -0.0, 0,
                                1e-9, 1e-3, 0.3, 1, 5.5, 40, 1000, NAN};
    enum { N = COUNT(at) };
    double want[N];
    kl_tensor x = f64(D(N), at), x32 = kl_cast(x, KL_F32), empty = kl_zeros(dev, KL_F32, D(3, 0));
    for (int k = 0; k < COUNT(activation); k++) {
        for (int i = 0; i < N; i++)
            want[i] = isnan(at[i]) ? NAN : activation[k].want(at[i]);
        near_relative(activation[k].op(x), N, want, 1e-12, k);
        for (int i = 0; i < N; i++)
            want[i] = isnan(at[i]) ? NAN : (double)(float)activation[k].want((double)(float)at[i]);
        kl_tensor y = activation[k].op(x32);
        CHECK(kl_dtype_of(y) == KL_F32);
        NEAR(y, N, want, 2e-6);
        y = activation[k].op(empty);
        SHAPE(y, 3, 0);
        OK(kl_read(y, NULL, 0));
        kl_release(y);
        /* at the ends of the range neither a value nor a gradient may be NaN or infinite */
        kl_tensor ends = kl_input(dev, KL_F32, D(4), (float[]){-1e30f, -1000, 1000, 1e30f});
        kl_requires_grad(ends);
        y = activation[k].op(ends);
        kl_tensor g = kl_grad(y, ends);
        double *v = values_of(y), *gv = values_of(g);
        for (int i = 0; i < 4; i++)
            if (!CHECK(v && gv && isfinite(v[i]) && isfinite(gv[i])))
                printf("  activation %d, end %d\n", k, i);
        free(v), free(gv);
        kl_release(y), kl_release(g), kl_release(ends);
    }
    kl_release(x), kl_release(x32), kl_release(empty);
}

/* ---- values: reductions and normalisation ---- */

/* Mean and biased variance of n numbers a stride apart. */
static void moments(const double *x, int n, int stride, double *mean, double *var)
{
    *mean = *var = 0;
    for (int i = 0; i < n; i++)
        *mean += x[i * stride] / n;
    for (int i = 0; i < n; i++)
        *var += (x[i * stride] - *mean) * (x[i * stride] - *mean) / n;
}

static void reductions(void)
{
    double x[21], mean, var, want[7];
    kl_tensor a = noisy(5, D(3, 7), x);
    for (int j = 0; j < 7; j++) {
        moments(x + j, 3, 7, &mean, &var);
        want[j] = var * 3 / 2;
    }
    NEAR(kl_var(a, AXES(0), true, 1), 7, want, 1e-14);
    moments(x, 21, 1, &mean, &var);
    NEAR_LIST(kl_var(a, 0, NULL, false, 0), 1e-14, var);
    NEAR_LIST(kl_std(a, 0, NULL, false, 0), 1e-14, sqrt(var));
    NEAR_LIST(kl_var(a, 0, NULL, false, 21), 0, NAN);
    for (int i = 0; i < 3; i++) {
        want[i] = 0;
        for (int j = 0; j < 7; j++)
            want[i] += x[7 * i + j] * x[7 * i + j];
        want[i] = sqrt(want[i]);
    }
    kl_tensor y = kl_norm(a, AXES(1), true);
    SHAPE(y, 3, 1);
    NEAR(y, 3, want, 1e-14);
    for (int i = 0; i < 3; i++) {
        want[i] = 0;
        for (int j = 0; j < 7; j++)
            want[i] += exp(x[7 * i + j]);
        want[i] = log(want[i]);
    }
    y = kl_logsumexp(a, AXES(-1), false);
    SHAPE(y, 3);
    NEAR(y, 3, want, 1e-14);
    kl_release(a);
    a = f64(D(4, 2), (double[]){1000, 1000, -1000, -1000, -INFINITY, -INFINITY, INFINITY, 0});
    NEAR_LIST(kl_logsumexp(a, AXES(1), false), 1e-15, 1000 + log(2), -1000 + log(2), -INFINITY, INFINITY);
    kl_release(a);
    a = kl_zeros(dev, KL_F32, D(2, 0));
    NEAR_LIST(kl_logsumexp(a, AXES(1), false), 0, -INFINITY, -INFINITY);
    NEAR_LIST(kl_norm(a, AXES(1), false), 0, 0, 0);
    y = kl_layer_norm(a, 1, kl_none, kl_none, 1e-5);
    SHAPE(y, 2, 0);
    kl_release(y), kl_release(a);
}

static void normalisation(void)
{
    double x[60], w[15], b[15], want[60], mean, var;
    kl_tensor a = noisy(4, D(4, 3, 5), x), wt = noisy(50, D(3, 5), w), bt = noisy(80, D(3, 5), b);
    for (int i = 0; i < 4; i++) {
        moments(x + 15 * i, 15, 1, &mean, &var);
        for (int j = 0; j < 15; j++)
            want[15 * i + j] = (x[15 * i + j] - mean) / sqrt(var + 1e-5) * w[j] + b[j];
    }
    NEAR(kl_layer_norm(a, 2, wt, bt, 1e-5), 60, want, 1e-13);
    for (int i = 0; i < 4; i++) {
        double squares = 0;
        for (int j = 0; j < 15; j++)
            squares += x[15 * i + j] * x[15 * i + j] / 15;
        for (int j = 0; j < 15; j++)
            want[15 * i + j] = x[15 * i + j] / sqrt(squares + 1e-6) * w[j];
    }
    NEAR(kl_rms_norm(a, 2, wt, 1e-6), 60, want, 1e-13);
    kl_release(wt), kl_release(bt), kl_release(a);

    a = noisy(4, D(2, 6, 5), x), wt = noisy(50, D(6), w), bt = noisy(80, D(6), b);
    for (int i = 0; i < 6; i++) { /* 2 examples x 3 groups of 2 channels x 5 */
        moments(x + 10 * i, 10, 1, &mean, &var);
        for (int j = 0; j < 10; j++) {
            int c = 2 * (i % 3) + j / 5;
            want[10 * i + j] = (x[10 * i + j] - mean) / sqrt(var + 1e-5) * w[c] + b[c];
        }
    }
    NEAR(kl_group_norm(a, 3, wt, bt, 1e-5), 60, want, 1e-13);
    kl_release(wt), kl_release(bt), kl_release(a);
}

static void batch_norm(void)
{
    double x[21], w[3], b[3], want[21], mean[3], var[3], new_mean[3], new_var[3];
    kl_tensor a = noisy(4, D(7, 3), x), wt = noisy(50, D(3), w), bt = noisy(80, D(3), b);
    kl_tensor run_mean = f64(D(3), (double[]){1, 2, 3}), run_var = f64(D(3), (double[]){4, 5, 6});
    for (int c = 0; c < 3; c++) {
        moments(x + c, 7, 3, &mean[c], &var[c]);
        new_mean[c] = 0.9 * (1 + c) + 0.1 * mean[c];
        new_var[c] = 0.9 * (4 + c) + 0.1 * var[c] * 7 / 6;
        for (int i = 0; i < 7; i++)
            want[3 * i + c] = (x[3 * i + c] - mean[c]) / sqrt(var[c] + 1e-5) * w[c] + b[c];
    }
    kl_trace_begin("batch_norm");
    kl_tensor y = kl_keep(kl_batch_norm(a, wt, bt, run_mean, run_var, true, 0.1, 1e-5));
    OK(kl_trace_end());
    NEAR(y, 21, want, 1e-13);
    y = kl_batch_norm(a, wt, bt, run_mean, run_var, false, 0.1, 1e-5);
    for (int i = 0; i < 21; i++)
        want[i] = (x[i] - new_mean[i % 3]) / sqrt(new_var[i % 3] + 1e-5) * w[i % 3] + b[i % 3];
    NEAR(y, 21, want, 1e-13);
    kl_release(kl_batch_norm(a, wt, bt, run_mean, run_var, true, 1, 1e-5)); /* outside a trace, forgetting the old */
    for (int c = 0; c < 3; c++)
        var[c] *= 7.0 / 6;
    NEAR(run_mean, 3, mean, 1e-14);
    NEAR(run_var, 3, var, 1e-14);
    kl_release(a), kl_release(wt), kl_release(bt);
}

/* ---- values: dropout ---- */

static void dropout(void)
{
    enum { N = 10000 };
    kl_tensor one = kl_ones(dev, KL_F32, D(N)), y = kl_dropout(one, 0.25, 3, true);
    double *v = values_of(y), *again = values_of(kl_dropout(one, 0.25, 3, true));
    double *other_seed = values_of(kl_dropout(one, 0.25, 4, true));
    int dropped = 0, wrong = 0;
    for (int i = 0; v && i < N; i++) {
        dropped += v[i] == 0;
        wrong += v[i] != 0 && v[i] != (double)(float)(1 / 0.75);
    }
    CHECK(v && wrong == 0 && fabs(dropped - 0.25 * N) < 5 * sqrt(0.25 * 0.75 * N));
    CHECK(v && again && other_seed && !memcmp(v, again, N * sizeof *v) && memcmp(v, other_seed, N * sizeof *v));
    free(v), free(again), free(other_seed);
    kl_release(y), kl_release(one);

    kl_tensor a = kl_input(dev, KL_F32, D(3), (float[]){1, -INFINITY, 3});
    y = kl_dropout(a, 0.9, 1, false);
    CHECK(y.id != a.id);
    NEAR_LIST(y, 0, 1, -INFINITY, 3);
    NEAR_LIST(kl_dropout(a, 0, 1, true), 0, 1, -INFINITY, 3);
    NEAR_LIST(kl_dropout(a, 1, 1, true), 0, 0, 0, 0);
    kl_requires_grad(a);
    NEAR_LIST(kl_grad(kl_dropout(a, 1, 1, true), a), 0, 0, 0, 0);
    kl_release(a);

    /* another probability or seed is the same program */
    int64_t built = 0;
    for (int i = 0; i < 3; i++) {
        kl_trace_begin("dropout");
        y = kl_keep(kl_dropout(kl_input(dev, KL_F32, D(3), (float[]){1, 2, 3}), 0.1 * i, (uint64_t)i, true));
        OK(kl_trace_end());
        kl_release(y);
        if (i == 0)
            built = kl_counter("graphs_built");
    }
    CHECK(kl_counter("graphs_built") == built);
}

/* ---- values: attention, einsum ---- */

/* One head by definition; mask [rows, columns] or NULL. */
static void attend(const double *q, const double *k, const double *v, int rows, int columns, int depth, int width,
                   const uint8_t *mask, double *out)
{
    for (int i = 0; i < rows; i++) {
        double e[16], sum = 0;
        for (int j = 0; j < columns; j++) {
            double s = 0;
            for (int d = 0; d < depth; d++)
                s += q[i * depth + d] * k[j * depth + d];
            e[j] = !mask || mask[i * columns + j] ? exp(s / sqrt(depth)) : 0;
            sum += e[j];
        }
        for (int w = 0; w < width; w++) {
            out[i * width + w] = 0;
            for (int j = 0; j < columns; j++)
                out[i * width + w] += sum > 0 ? e[j] / sum * v[j * width + w] : 0;
        }
    }
}

static void attention(void)
{
    double q[36], k[60], v[40], want[24];
    uint8_t past[15], both[15], mask[15] = {1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1};
    for (int i = 0; i < 15; i++) {
        past[i] = i % 5 <= i / 5 + 2;
        both[i] = past[i] && mask[i];
    }
    kl_tensor qt = noisy(1, D(2, 2, 3, 3), q), kt = noisy(40, D(2, 2, 5, 3), k), vt = noisy(90, D(2, 2, 5, 2), v);
    kl_tensor mt = kl_input(dev, KL_BOOL, D(3, 5), mask);
    const struct { const uint8_t *seen; kl_tensor mask; bool causal; } form[] = {
        {NULL, kl_none, false}, {past, kl_none, true}, {mask, mt, false}, {both, mt, true}};
    for (int f = 0; f < COUNT(form); f++) {
        for (int h = 0; h < 4; h++)
            attend(q + 9 * h, k + 15 * h, v + 10 * h, 3, 5, 3, 2, form[f].seen, want + 6 * h);
        kl_tensor y = kl_attention(qt, kt, vt, form[f].mask, form[f].causal);
        SHAPE(y, 2, 2, 3, 2);
        NEAR(y, 24, want, 1e-13);
    }
    kl_release(qt), kl_release(kt), kl_release(vt), kl_release(mt);
    /* more rows than columns: the first see nothing; large scores do not overflow, in the gradient neither */
    qt = kl_full(dev, KL_F32, D(4, 2), 1e4), kt = kl_full(dev, KL_F32, D(2, 2), 1e4);
    vt = kl_ones(dev, KL_F32, D(2, 3));
    kl_requires_grad(qt);
    kl_tensor y = kl_attention(qt, kt, vt, kl_none, true);
    NEAR_LIST(kl_grad(y, qt), 1e-3, 0, 0, 0, 0, 0, 0, 0, 0);
    NEAR_LIST(y, 1e-6, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1);
    kl_release(kt), kl_release(vt);
    kt = kl_zeros(dev, KL_F32, D(0, 2)), vt = kl_zeros(dev, KL_F32, D(0, 1));
    NEAR_LIST(kl_attention(qt, kt, vt, kl_none, false), 0, 0, 0, 0, 0);
    kl_release(qt), kl_release(kt), kl_release(vt);
}

static void einsums(void)
{
    double a[24], b[60], c[9], want[64];
    kl_tensor at = noisy(1, D(2, 3, 4), a), bt = noisy(30, D(3, 4, 5), b), ct = noisy(9, D(3, 3), c);
    memset(want, 0, sizeof want);
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < 5; m++)
            for (int j = 0; j < 3; j++)
                for (int k = 0; k < 4; k++)
                    want[m * 2 + i] += a[i * 12 + j * 4 + k] * b[j * 20 + k * 5 + m];
    kl_tensor y = kl_einsum(" ijk, jkm -> mi", 2, (kl_tensor[]){at, bt});
    SHAPE(y, 5, 2);
    NEAR(y, 10, want, 1e-13);
    memset(want, 0, sizeof want);
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < 5; m++)
            for (int k = 0; k < 4; k++)
                for (int j = 0; j < 3; j++)
                    want[i * 5 + m] += a[i * 12 + j * 4 + k] * b[j * 20 + k * 5 + m];
    y = kl_einsum("ijk,jkm", 2, (kl_tensor[]){at, bt}); /* implicit: i and m occur once */
    SHAPE(y, 2, 5);
    NEAR(y, 10, want, 1e-13);
    memset(want, 0, sizeof want);
    for (int i = 0; i < 2; i++) /* j stays, k goes, i and m are kept apart; the diagonal of c goes in */
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++)
                for (int m = 0; m < 5; m++)
                    want[j * 2 + i] += a[i * 12 + j * 4 + k] * b[j * 20 + k * 5 + m] * c[j * 3 + j];
    y = kl_einsum("jj,ijk,jkm->ji", 3, (kl_tensor[]){ct, at, bt});
    SHAPE(y, 3, 2);
    NEAR(y, 6, want, 1e-13);
    NEAR_LIST(kl_einsum("ii->i", 1, &ct), 0, c[0], c[4], c[8]);
    y = kl_einsum("ii", 1, &ct);
    CHECK(kl_rank(y) == 0);
    NEAR_LIST(y, 1e-15, c[0] + c[4] + c[8]);
    NEAR_LIST(kl_einsum("ba", 1, &ct), 0, c[0], c[3], c[6], c[1], c[4], c[7], c[2], c[5], c[8]); /* a before b */
    y = kl_einsum("ab->ab", 1, &ct);
    CHECK(y.id != ct.id);
    NEAR(y, 9, c, 0);
    kl_tensor u = f64(D(2), (double[]){2, 3}), w = f64(D(3), (double[]){5, 7, 11}), s = f64(0, NULL, &(double){0.5});
    NEAR_LIST(kl_einsum("i,j->ij", 2, (kl_tensor[]){u, w}), 0, 10, 14, 22, 15, 21, 33);
    NEAR_LIST(kl_einsum("i,j->j", 2, (kl_tensor[]){u, w}), 0, 25, 35, 55);
    NEAR_LIST(kl_einsum(",j,->j", 3, (kl_tensor[]){s, w, s}), 0, 1.25, 1.75, 2.75);
    kl_tensor empty = kl_zeros(dev, KL_F64, D(0, 2));
    NEAR_LIST(kl_einsum("ki,kj->ij", 2, (kl_tensor[]){empty, empty}), 0, 0, 0, 0, 0);
    kl_tensor whole = i32(D(3), (int32_t[]){1, 2, 3});
    NEAR_LIST(kl_einsum("i,i", 2, (kl_tensor[]){whole, whole}), 0, 14);
    kl_release(at), kl_release(bt), kl_release(ct), kl_release(u), kl_release(w), kl_release(s), kl_release(empty);
    kl_release(whole);
}

/* ---- values: labels and losses ---- */

static void labels(void)
{
    static const double want[] = {0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0};
    for (int dtype = KL_U8; dtype <= KL_I64; dtype++) {
        kl_tensor y = kl_cast(i32(D(2, 2), (int32_t[]){2, 3, -1, 0}), (kl_dtype)dtype);
        kl_tensor hot = kl_one_hot(y, 3, KL_F32);
        CHECK(kl_dtype_of(hot) == KL_F32);
        SHAPE(hot, 2, 2, 3);
        NEAR(hot, 12, want, 0);
        kl_release(y);
    }
    kl_tensor y = i32(D(0), NULL), hot = kl_one_hot(y, 4, KL_BOOL);
    SHAPE(hot, 0, 4);
    kl_release(hot), kl_release(y);
    kl_tensor logits = kl_input(dev, KL_F64, D(3, 2), (double[]){-1, -2, -INFINITY, -4, -5, -6});
    y = i32(D(3), (int32_t[]){1, 1, 0}); /* an infinity elsewhere does not count */
    NEAR_LIST(kl_nll_loss(logits, y), 1e-15, (2 + 4 + 5) / 3.0);
    kl_release(logits), kl_release(y);
}

static void losses(void)
{
    enum { N = 17 };
    double x[N], y[N], p[N], mse = 0, l1 = 0, huber = 0, bce = 0, hinge = 0;
    kl_tensor a = noisy(1, D(N), x), b = noisy(40, D(N), y), target;
    for (int i = 0; i < N; i++) {
        double d = x[i] - y[i], m = fabs(d);
        p[i] = sigmoid(y[i]);
        mse += d * d / N;
        l1 += m / N;
        huber += (m <= 0.7 ? d * d / 2 : 0.7 * (m - 0.35)) / N;
        bce += -(p[i] * log(sigmoid(x[i])) + (1 - p[i]) * log(1 - sigmoid(x[i]))) / N;
        hinge += relu(1 - x[i] * (i % 3 ? 1 : -1)) / N;
    }
    NEAR_LIST(kl_mse_loss(a, b), 1e-14, mse);
    NEAR_LIST(kl_l1_loss(a, b), 1e-14, l1);
    NEAR_LIST(kl_huber_loss(a, b, 0.7), 1e-14, huber);
    NEAR_LIST(kl_smooth_l1_loss(a, b, 0.7), 1e-14, huber / 0.7);
    target = f64(D(N), p);
    NEAR_LIST(kl_binary_cross_entropy_with_logits(a, target), 1e-14, bce);
    kl_release(target);
    for (int i = 0; i < N; i++)
        y[i] = i % 3 ? 1 : -1;
    target = f64(D(N), y);
    NEAR_LIST(kl_hinge_loss(a, target), 1e-14, hinge);
    kl_release(a), kl_release(b), kl_release(target);

    a = f64(D(2, 3), (double[]){log(0.5), log(0.5), -INFINITY, log(0.2), log(0.3), log(0.5)});
    b = f64(D(2, 3), (double[]){0.25, 0.75, 0, 0.2, 0.3, 0.5});
    kl_requires_grad(b);
    target = kl_divergence(a, b);
    double *g = values_of(kl_grad(target, b));
    for (int i = 0; i < 6; i++)
        CHECK(g && isfinite(g[i]));
    free(g);
    NEAR_LIST(target, 1e-15, (0.25 * log(0.5) + 0.75 * log(1.5)) / 2);
    kl_release(a), kl_release(b);

    /* far out: finite, exact, and with the right gradient */
    a = f64(D(4), (double[]){1000, -1000, 1000, -1000}), b = f64(D(4), (double[]){1, 0, 0, 1});
    kl_requires_grad(a);
    NEAR_LIST(kl_binary_cross_entropy_with_logits(a, b), 0, 500);
    NEAR_LIST(kl_grad(kl_binary_cross_entropy_with_logits(a, b), a), 1e-15, 0, 0, 0.25, -0.25);
    kl_release(a), kl_release(b);
    a = f64(D(1), (double[]){40}), b = kl_ones(dev, KL_F64, D(1));
    double *v = values_of(kl_binary_cross_entropy_with_logits(a, b));
    CHECK(v && fabs(v[0] / exp(-40) - 1) < 1e-14); /* and not lost beside 40 */
    free(v);
    kl_release(a), kl_release(b);
    a = kl_full(dev, KL_F32, D(2), 1e30), b = kl_zeros(dev, KL_F32, D(2));
    NEAR_LIST(kl_huber_loss(a, b, 1), 1e-6, 1e30); /* no square overflows */
    kl_release(a), kl_release(b);
    a = kl_zeros(dev, KL_F32, D(0, 3));
    NEAR_LIST(kl_mse_loss(a, a), 0, NAN);
    kl_release(a);
}

/* ---- misuse ---- */

/* On one line: of a call of a macro on several, __LINE__ is the first one's in Clang, the last one's in GCC. */
#define REFUSED(call, code, ...) refused(call, code, __LINE__, (const char *[]){__VA_ARGS__, NULL})
static void refused(kl_tensor t, kl_status code, int line, const char *const *part)
{
    char at[32];
    snprintf(at, sizeof at, "api_nn.c:%d: ", line);
    bool ok = kl_check(t) == code && strstr(kl_last_error(), at);
    for (int i = 0; part[i]; i++)
        ok &= strstr(kl_last_error(), part[i]) != NULL;
    check_at(ok, line, "an error");
    kl_release(t);
}
#define kl_softplus(...) kl_softplus_at(KL_HERE, __VA_ARGS__)
#define BATCH_NORM(x, mean, var, training) kl_batch_norm(x, kl_none, kl_none, mean, var, training, 0.1, 1e-5)

static void misuse(void)
{
    kl_scope_begin();
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), v = kl_zeros(dev, KL_F32, D(4)), w = kl_zeros(dev, KL_F64, D(2, 3)),
              i = i32(D(3), (int32_t[]){0, 1, 2}), c = kl_zeros(dev, KL_F32, D(3));
    REFUSED(kl_softplus(i), KL_ERR_TYPE, "softplus: ", "i32");
    REFUSED(kl_clamp(a, 1, 0), KL_ERR_ARGUMENT, "clamp: ", "1 to 0");
    REFUSED(kl_clamp(a, NAN, 0), KL_ERR_ARGUMENT, "clamp: ");
    REFUSED(kl_dropout(a, 1.5, 0, true), KL_ERR_ARGUMENT, "dropout: ", "1.5");
    REFUSED(kl_dropout(a, NAN, 0, false), KL_ERR_ARGUMENT, "dropout: ");
    REFUSED(kl_logsumexp(a, AXES(2), false), KL_ERR_SHAPE, "logsumexp: ", "axis 2", "[2,3]");
    REFUSED(kl_var(a, 0, NULL, false, -1), KL_ERR_ARGUMENT, "var: ", "-1");
    REFUSED(kl_std(i, 0, NULL, false, 0), KL_ERR_TYPE, "std: ", "i32");
    REFUSED(kl_norm(a, AXES(1, 1), false), KL_ERR_SHAPE, "norm: ", "axis 1 occurs twice");
    REFUSED(kl_layer_norm(a, 3, kl_none, kl_none, 1e-5), KL_ERR_SHAPE, "layer_norm: ", "[2,3]");
    REFUSED(kl_layer_norm(a, 1, v, kl_none, 1e-5), KL_ERR_SHAPE, "layer_norm: the weight", "[4]", "[3]", "[2,3]");
    REFUSED(kl_layer_norm(a, 2, kl_none, w, 1e-5), KL_ERR_TYPE, "layer_norm: the bias", "f64", "f32");
    REFUSED(kl_rms_norm(a, 1, kl_none, -1), KL_ERR_ARGUMENT, "rms_norm: ", "eps -1");
    REFUSED(kl_group_norm(a, 2, kl_none, kl_none, 1e-5), KL_ERR_SHAPE, "group_norm: ", "[2,3]", "2 equal groups");
    REFUSED(kl_group_norm(v, 2, kl_none, kl_none, 1e-5), KL_ERR_SHAPE, "group_norm: ", "[4]");
    REFUSED(BATCH_NORM(a, v, c, true), KL_ERR_SHAPE, "batch_norm: the running mean", "[4]");
    REFUSED(BATCH_NORM(a, c, kl_none, false), KL_ERR_HANDLE, "batch_norm: ", "variance");
    REFUSED(BATCH_NORM(kl_zeros(dev, KL_F32, D(1, 3)), c, c, true), KL_ERR_SHAPE, "batch_norm: ", "[1,3]");
    REFUSED(kl_attention(a, v, a, kl_none, false), KL_ERR_SHAPE, "attention: k has shape", "[4]");
    REFUSED(kl_attention(a, w, a, kl_none, false), KL_ERR_TYPE, "attention: ", "f64");
    REFUSED(kl_attention(a, a, a, a, false), KL_ERR_TYPE, "attention: the mask", "f32");
    REFUSED(kl_attention(a, a, a, kl_zeros(dev, KL_BOOL, D(5)), true), KL_ERR_SHAPE, "attention: ", "[5]", "[2,2]");
    REFUSED(kl_one_hot(a, 3, KL_F32), KL_ERR_TYPE, "one_hot: ", "f32");
    REFUSED(kl_one_hot(i, -1, KL_F32), KL_ERR_ARGUMENT, "one_hot: ", "-1");
    REFUSED(kl_one_hot(i, 3, KL_DTYPE_COUNT), KL_ERR_TYPE, "one_hot: ");
    REFUSED(kl_nll_loss(a, i), KL_ERR_SHAPE, "nll_loss: ", "[2,3]", "[3]");
    REFUSED(kl_mse_loss(a, c), KL_ERR_SHAPE, "mse_loss: ", "[2,3] and [3]");
    REFUSED(kl_l1_loss(a, w), KL_ERR_TYPE, "l1_loss: ", "f32 and f64");
    REFUSED(kl_huber_loss(a, a, 0), KL_ERR_ARGUMENT, "huber_loss: ", "delta 0");
    REFUSED(kl_smooth_l1_loss(a, a, NAN), KL_ERR_ARGUMENT, "smooth_l1_loss: ", "beta");
    kl_tensor scalar = kl_zeros(dev, KL_F32, 0, NULL);
    REFUSED(kl_divergence(scalar, scalar), KL_ERR_SHAPE, "divergence: ");
    REFUSED(kl_binary_cross_entropy_with_logits(a, kl_none), KL_ERR_HANDLE, "binary_cross_entropy_with_logits: ");

    kl_tensor two[] = {a, a};
    REFUSED(kl_einsum("ij,jk->ik", 2, two), KL_ERR_SHAPE, "einsum: subscript 'j'", "3 and 2", "term 2", "[2,3]");
    REFUSED(kl_einsum("ij,j->i", 2, two), KL_ERR_SHAPE, "einsum: term 2", "1 subscripts", "[2,3]");
    REFUSED(kl_einsum("ij,ij->k", 2, two), KL_ERR_ARGUMENT, "einsum: subscript 'k'");
    REFUSED(kl_einsum("ij,ij->ii", 2, two), KL_ERR_ARGUMENT, "einsum: subscript 'i' occurs twice");
    REFUSED(kl_einsum("i..,ij", 2, two), KL_ERR_ARGUMENT, "einsum: '.'");
    REFUSED(kl_einsum("ij->i->j", 1, two), KL_ERR_ARGUMENT, "einsum: '-'");
    REFUSED(kl_einsum("ij->i,j", 1, two), KL_ERR_ARGUMENT, "einsum: ','");
    REFUSED(kl_einsum("ij", 2, two), KL_ERR_ARGUMENT, "einsum: ", "fewer", "2 operands");
    REFUSED(kl_einsum("ij,ij,ij", 2, two), KL_ERR_ARGUMENT, "einsum: ", "more", "2 operands");
    REFUSED(kl_einsum("abcdefghi", 1, two), KL_ERR_ARGUMENT, "einsum: ", "'i'");
    REFUSED(kl_einsum(NULL, 1, two), KL_ERR_ARGUMENT, "einsum: ");
    REFUSED(kl_einsum("ij", 17, two), KL_ERR_ARGUMENT, "einsum: ", "17");
    kl_tensor row = kl_zeros(dev, KL_F32, D(1, 1, 1, 1, 1)), pair = kl_zeros(dev, KL_F32, D(1, 1));
    REFUSED(kl_einsum("abcde,fghij", 2, (kl_tensor[]){row, row}), KL_ERR_ARGUMENT, "einsum: ", "'i'");
    kl_tensor wide[] = {row, row, pair, pair, pair, pair, pair};
    REFUSED(kl_einsum("abcde,fghij,af,bg,ch,di,ej", 7, wide), KL_ERR_SHAPE, "einsum: ", "rank 10");

    /* in a trace the first error is the trace's, and a state is as it was */
    kl_trace_begin("failed");
    kl_batch_norm(a, kl_none, kl_none, c, c, true, 0.1, 1e-5);
    kl_mse_loss(a, c);
    CHECK(kl_trace_end() == KL_ERR_SHAPE && strstr(kl_last_error(), "mse_loss: shapes [2,3] and [3] differ"));
    NEAR_LIST(c, 0, 0, 0, 0);
    c = kl_softplus(a);
    NEAR_LIST(c, 1e-6, log(2), log(2), log(2), log(2), log(2), log(2));
    OK(kl_scope_end());
}

static void test(kl_device d)
{
    dev = d;
    bounded_losses();
    kl_scope_begin();
    activations();
    reductions();
    normalisation();
    batch_norm();
    dropout();
    attention();
    einsums();
    labels();
    losses();
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
