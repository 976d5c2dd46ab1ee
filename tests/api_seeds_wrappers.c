/* Rows of the dispatch system that are layers with wrappers: complex, quantized, sparse, named, nested.  Arguments: ids of
 * rows; none: all. */
#include "api_seeds.h"

#define D(...) DIMS(__VA_ARGS__)

static kl_tensor f32(int rank, const int64_t *dims, const float *v) { return kl_input(cpu, KL_F32, rank, dims, v); }
static kl_tensor noise(int rank, const int64_t *dims, uint64_t seed) { return kl_randn(cpu, KL_F32, rank, dims, seed); }

/* All elements are within the tolerance; both are released. */
static bool close(kl_tensor got, kl_tensor want, double tolerance)
{
    int64_t n = kl_numel(got);
    double *a = values_of(got), *b = kl_numel(want) == n ? values_of(want) : NULL;
    bool ok = a && b;
    for (int64_t i = 0; ok && i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i])))) {
            printf("element %lld is %g, not %g\n", (long long)i, a[i], b[i]);
            ok = false;
        }
    free(a);
    free(b);
    kl_release(got);
    kl_release(want);
    return ok;
}

/* The keys that calls of one op hit, outermost first. */
static inline bool op_keys_are(const char *log, const char *op, const char *want)
{
    char got[400] = "", tag[64];
    snprintf(tag, sizeof tag, "op=[%s], key=[", op);
    for (const char *s = log; (s = strstr(s, tag)); s++) {
        const char *key = s + strlen(tag);
        size_t n = strcspn(key, "]"), at = strlen(got);
        snprintf(got + at, sizeof got - at, "%s%.*s", at ? "," : "", (int)n, key);
    }
    if (strcmp(got, want))
        printf("%s: log says %s, not %s\n%s", op, got, want, log);
    return !strcmp(got, want);
}

static bool refused(kl_tensor t, kl_status code, const char *why)
{
    bool ok = kl_check(t) == code && says(why);
    kl_release(t);
    kl_clear_error();
    return ok;
}

/* The open trace as recorded. */
static inline char *captured(void)
{
    static char text[1 << 16];
    const char *path = "captured_wrappers.kir";
    OK(kl_dump(NULL, "captured", path));
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    remove(path);
    text[n] = 0;
    return text;
}

/* d sum(f(x) * seed) / d x[i] by differences, for the float variable x. */
typedef kl_tensor function(kl_tensor x, void *ctx);
static bool slopes_are(function *f, void *ctx, kl_tensor x, kl_tensor gradient, double tolerance)
{
    int64_t n = kl_numel(x), dims[KL_MAX_RANK];
    int rank = kl_shape(x, dims);
    double *g = values_of(gradient), *v = values_of(x);
    float *moved = malloc((size_t)n * sizeof *moved);
    bool ok = g && v && moved && kl_numel(gradient) == n;
    for (int64_t i = 0; ok && i < n; i++) {
        double at[2];
        for (int side = 0; side < 2; side++) {
            OK(kl_scope_begin());
            for (int64_t k = 0; k < n; k++)
                moved[k] = (float)v[k] + (k == i ? (side ? 1 : -1) * 0x1p-7f : 0);
            at[side] = (double)kl_item_f32(f(f32(rank, dims, moved), ctx));
            OK(kl_scope_end());
        }
        double slope = (at[1] - at[0]) / 0x1p-6;
        ok = fabs(slope - g[i]) <= tolerance * (1 + fabs(slope));
        if (!ok)
            printf("element %lld: gradient %g, by differences %g\n", (long long)i, g[i], slope);
    }
    free(g);
    free(v);
    free(moved);
    return ok;
}

/* ---- complex ---- */

static kl_tensor z_of(uint64_t seed, int rank, const int64_t *dims)
{
    return kl_complex(noise(rank, dims, seed), noise(rank, dims, seed + 1));
}

/* |a b + e^a / b|^2 of complex a = x + i y with y = x / 2 - 1 */
static kl_tensor complex_loss(kl_tensor x, void *ctx)
{
    kl_tensor b = *(kl_tensor *)ctx;
    kl_tensor a = kl_complex(x, kl_sub_scalar(kl_mul_scalar(x, 0.5), 1));
    kl_tensor y = kl_add(kl_mul(a, b), kl_div(kl_exp(a), b));
    return kl_sum_all(kl_square(kl_abs(y)));
}

static kl_tensor product_loss(kl_tensor x, void *ctx)
{
    kl_tensor b = *(kl_tensor *)ctx;
    return kl_sum_all(kl_square(kl_abs(kl_matmul(kl_complex(x, kl_square(x)), b))));
}

static void d6(void)
{
    OK(kl_scope_begin());
    kl_tensor a = kl_complex(f32(D(2), (float[]){1, -2}), f32(D(2), (float[]){3, 0.5f}));
    kl_tensor b = kl_complex(f32(D(2), (float[]){2, 4}), f32(D(2), (float[]){-1, 1}));
    CHECK(!strcmp(kl_layer_name(a), "complex") && kl_layer_parts(a) == 2 && kl_rank(a) == 1 && kl_dtype_of(a) == KL_F32);
    NEAR_LIST(kl_dense(a), 0, 1, 3, -2, 0.5);
    NEAR_LIST(kl_dense(kl_add(a, b)), 0, 3, 2, 2, 1.5);
    NEAR_LIST(kl_dense(kl_mul(a, b)), 0, 5, 5, -8.5, 0);
    NEAR_LIST(kl_dense(kl_div(a, b)), 1e-6, -0.2, 1.4, -7.5 / 17, 4.0 / 17);
    NEAR_LIST(kl_dense(kl_mul(kl_conj(a), a)), 0, 10, 0, 4.25, 0);
    NEAR_LIST(kl_abs(a), 1e-6, sqrt(10), sqrt(4.25));
    NEAR_LIST(kl_dense(kl_mul_scalar(a, 2)), 0, 2, 6, -4, 1);
    NEAR_LIST(kl_dense(kl_add(kl_real(b), a)), 0, 3, 3, 2, 0.5);
    NEAR_LIST(kl_dense(kl_exp(kl_log(a))), 1e-5, 1, 3, -2, 0.5);
    NEAR_LIST(kl_dense(kl_mean(a, 0, NULL, false)), 0, -0.5, 1.75);
    NEAR_LIST(kl_dense(kl_concat(2, (kl_tensor[]){a, kl_real(b)}, 0)), 0, 1, 3, -2, 0.5, 2, 0, 4, 0);
    CHECK(refused(kl_max(a, b), KL_ERR_TYPE, "max: has no meaning for a complex tensor"));
    CHECK(refused(kl_complex(a, b), KL_ERR_TYPE, "complex: the parts are plain tensors, not complex ones"));
    kl_dispatch_log_begin();
    kl_mul(a, b);
    const char *log = kl_dispatch_log_end();
    CHECK(strstr(log, "[call] op=[mul], key=[ComplexCPU]\n [call] op=[mul], key=[CPU]\n") ||
          strstr(log, "[call] op=[mul], key=[Complex]\n"));
    float got[4];
    OK(kl_read(a, got, sizeof got));
    CHECK(got[0] == 1 && got[1] == 3 && got[2] == -2 && got[3] == 0.5f);

    /* a product against the four real ones, and its gradient dy conj(b)^T against their gradients */
    kl_tensor m = z_of(1, D(3, 4)), n = z_of(3, D(4, 5)), mr = kl_real(m), mi = kl_imag(m), nr = kl_real(n), ni = kl_imag(n);
    CHECK(close(kl_real(kl_matmul(m, n)), kl_sub(kl_matmul(mr, nr), kl_matmul(mi, ni)), 1e-6));
    CHECK(close(kl_imag(kl_matmul(m, n)), kl_add(kl_matmul(mr, ni), kl_matmul(mi, nr)), 1e-6));
    CHECK(close(kl_dense(kl_transpose(kl_conj(m), 0, 1)), kl_dense(kl_complex(kl_transpose(mr, 0, 1), kl_neg(kl_transpose(mi, 0, 1)))), 0));
    OK(kl_requires_grad(m));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_abs(kl_matmul(m, n)))), m);
    CHECK(!strcmp(kl_layer_name(g), "complex"));
    kl_tensor dy = kl_mul_scalar(kl_matmul(m, n), 2);
    CHECK(close(kl_dense(g), kl_dense(kl_matmul(dy, kl_transpose(kl_conj(n), 0, 1))), 1e-5));
    kl_tensor sq = kl_grad(kl_sum_all(kl_square(kl_abs(m))), m);
    CHECK(close(kl_dense(sq), kl_dense(kl_mul_scalar(m, 2)), 1e-6));
    kl_tensor x = noise(D(4), 11), w = kl_add_scalar(kl_complex(noise(D(4), 12), noise(D(4), 13)), 3);
    OK(kl_requires_grad(x));
    CHECK(slopes_are(complex_loss, &w, x, kl_grad(complex_loss(x, &w), x), 2e-2));
    x = noise(D(2, 4), 14);
    OK(kl_requires_grad(x));
    CHECK(slopes_are(product_loss, &n, x, kl_grad(product_loss(x, &n), x), 2e-2));
    OK(kl_scope_end());

    /* in traces: one that is trained, replayed, kept */
    kl_tensor p = z_of(20, D(3, 3)), kept = kl_none;
    kl_keep(p);
    double loss0 = 0, loss = 0;
    for (int step = 0; step < 20; step++) {
        kl_release(kept);
        OK(kl_trace_begin("complex_step"));
        kl_tensor e = kl_sub(kl_matmul(p, p), kl_complex(kl_eye(cpu, KL_F32, 3, 3), kl_zeros(cpu, KL_F32, D(3, 3))));
        kl_tensor l = kl_keep(kl_sum_all(kl_square(kl_abs(e))));
        OK(kl_assign(p, kl_sub(p, kl_mul_scalar(kl_grad(l, p), 0.01))));
        kept = kl_keep(e);
        OK(kl_trace_end());
        loss = kl_item_f64(l);
        loss0 = step ? loss0 : loss;
        kl_release(l);
    }
    CHECK(loss < 0.5 * loss0 && kl_check(kept) == KL_OK);
    kl_tensor plain = kl_dense(kept);
    CHECK(kl_numel(plain) == 18 && kl_item_f64(kl_sum_all(plain)) == kl_item_f64(kl_sum_all(plain)));
    kl_release(plain);
    kl_release(kept);
    kl_release(p);
}

static const struct row rows[] = {{"D6", d6}};

int main(int argc, char **argv) { return RUN_ROWS(rows); }
