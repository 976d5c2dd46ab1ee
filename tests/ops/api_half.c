/* Composites and gradients of f16 and bf16: one rounding of what f64 gives for the same numbers, whatever they are made
 * of, so that nothing overflows inside and no digits are lost. */
#include "tests/support/api_check.h"
#include <math.h>

enum { N = 300, ROWS = 20, COLUMNS = 15 };

static uint64_t random_state = 88172645463325252u;
static double uniform(void) /* -1 to 1 */
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (double)(int64_t)random_state / 9223372036854775808.0;
}

/* The distance from |x| to the next number of the dtype; that of its largest finite number beyond. */
static double spacing(kl_dtype d, double x)
{
    int low = d == KL_F16 ? -14 : -126, digits = d == KL_F16 ? 10 : 7, e;
    frexp(x, &e);
    e -= 1;
    return ldexp(1, (x == 0 || e < low ? low : e) - digits);
}

static double largest(kl_dtype d) { return d == KL_F16 ? 65504 : 3.3895313892515355e38; }

typedef kl_tensor function(kl_tensor a);
#define UNARY(name) static kl_tensor f_##name(kl_tensor a) { return kl_##name(a); }
UNARY(sigmoid)
UNARY(silu) UNARY(softplus) UNARY(mish) UNARY(gelu) UNARY(tanh) UNARY(expm1) UNARY(erf) UNARY(sin) UNARY(sqrt)
    UNARY(exp) UNARY(rsqrt) UNARY(log) UNARY(log1p) UNARY(relu) static kl_tensor f_elu(kl_tensor a)
{
    return kl_elu(a, 1);
}
static kl_tensor f_powi(kl_tensor a) { return kl_powi(a, 5); }
static kl_tensor f_pow(kl_tensor a) { return kl_pow_scalar(a, 1.7); }
static kl_tensor f_lerp(kl_tensor a)
{
    return kl_lerp(a, kl_flip(a, 2, (int[]){0, 1}), kl_add_scalar(kl_mul_scalar(a, 0), 0.25));
}
static kl_tensor f_mean(kl_tensor a) { return kl_mean(a, 1, (int[]){1}, false); }
static kl_tensor f_mean_all(kl_tensor a) { return kl_mean(a, 0, NULL, false); }
static kl_tensor f_var(kl_tensor a) { return kl_var(a, 1, (int[]){1}, false, 1); }
static kl_tensor f_std(kl_tensor a) { return kl_std(a, 1, (int[]){1}, false, 1); }
static kl_tensor f_norm(kl_tensor a) { return kl_norm(a, 1, (int[]){1}, false); }
static kl_tensor f_logsumexp(kl_tensor a) { return kl_logsumexp(a, 1, (int[]){1}, false); }
static kl_tensor f_softmax(kl_tensor a) { return kl_softmax(a, 1); }
static kl_tensor f_log_softmax(kl_tensor a) { return kl_log_softmax(a, 1); }
static kl_tensor f_layer_norm(kl_tensor a) { return kl_layer_norm(a, 1, kl_none, kl_none, 1e-5); }
static kl_tensor f_rms_norm(kl_tensor a) { return kl_rms_norm(a, 1, kl_none, 1e-5); }
static kl_tensor f_mse(kl_tensor a) { return kl_mse_loss(a, kl_mul_scalar(a, 0)); }
static kl_tensor f_avg_pool(kl_tensor a)
{
    kl_tensor image = kl_reshape(a, 4, (int64_t[]){1, 1, ROWS, COLUMNS});
    return kl_avg_pool(image, 2, (int64_t[]){4, 5}, (int64_t[]){4, 5}, NULL, NULL, NULL);
}

static kl_tensor f_log_sigmoid(kl_tensor a) { return kl_log_sigmoid(a); }
static kl_tensor f_gelu_erf(kl_tensor a) { return kl_gelu_erf(a); }
static kl_tensor f_softsign(kl_tensor a) { return kl_softsign(a); }
static kl_tensor f_selu(kl_tensor a) { return kl_selu(a); }
static kl_tensor f_celu(kl_tensor a) { return kl_celu(a, 0.7); }
static kl_tensor f_hard_swish(kl_tensor a) { return kl_hard_swish(a); }
static kl_tensor f_hard_sigmoid(kl_tensor a) { return kl_hard_sigmoid(a, 0.2, 0.5); }
static kl_tensor f_leaky_relu(kl_tensor a) { return kl_leaky_relu(a, 0.3); }
static kl_tensor f_group_norm(kl_tensor a) { return kl_group_norm(a, 5, kl_none, kl_none, 1e-5); }
static kl_tensor f_batch_norm(kl_tensor a)
{
    kl_tensor x = kl_reshape(a, 2, (int64_t[]){25, 12}); /* so that the weights differ in a channel */
    return kl_batch_norm(x, kl_none, kl_none, kl_none, kl_none, true, 0.1, 1e-5);
}
/* The gradient goes to one operand: as a sum of several it would be rounded more than once. */
static kl_tensor f_linear(kl_tensor a)
{
    return kl_linear(a, kl_detach(kl_transpose(kl_narrow(a, 0, 3, 7), 0, 1)), kl_none);
}
static kl_tensor f_conv(kl_tensor a)
{
    kl_tensor image = kl_reshape(a, 4, (int64_t[]){1, 1, ROWS, COLUMNS});
    kl_tensor w = kl_reshape(kl_narrow(kl_narrow(a, 0, 1, 4), 1, 2, 3), 4, (int64_t[]){2, 1, 2, 3});
    return kl_conv(image, kl_detach(w), kl_none, (int64_t[]){2, 3}, NULL, NULL, NULL, 1);
}
static kl_tensor f_sum_pool(kl_tensor a)
{
    kl_tensor image = kl_reshape(a, 4, (int64_t[]){1, 1, ROWS, COLUMNS});
    return kl_sum_pool(image, 2, (int64_t[]){2, 3}, NULL, NULL, NULL, NULL);
}
static kl_tensor labels_of(kl_tensor a)
{
    kl_device d = kl_device_of(a);
    return kl_rem(kl_arange(d, KL_I32, ROWS), kl_full(d, KL_I32, 1, (int64_t[]){ROWS}, COLUMNS));
}
static kl_tensor f_cross_entropy(kl_tensor a) { return kl_cross_entropy(a, labels_of(a)); }
static kl_tensor f_nll(kl_tensor a) { return kl_nll_loss(a, labels_of(a)); }
static kl_tensor flipped(kl_tensor a) { return kl_flip(a, 2, (int[]){0, 1}); }
static kl_tensor f_l1(kl_tensor a) { return kl_l1_loss(a, flipped(a)); }
static kl_tensor f_huber(kl_tensor a) { return kl_huber_loss(a, flipped(a), 1); }
static kl_tensor f_smooth_l1(kl_tensor a) { return kl_smooth_l1_loss(a, flipped(a), 1); }
static kl_tensor f_bce_with_logits(kl_tensor a) { return kl_binary_cross_entropy_with_logits(a, kl_mul_scalar(a, 0)); }
static kl_tensor f_bce(kl_tensor a) { return kl_binary_cross_entropy(a, kl_detach(flipped(a))); }
static kl_tensor f_divergence(kl_tensor a) { return kl_divergence(a, kl_detach(kl_abs(flipped(a)))); }
static kl_tensor f_cumsum(kl_tensor a) { return kl_cumsum(a, 1, false, false); }
static kl_tensor f_logcumsumexp(kl_tensor a) { return kl_logcumsumexp(a, 1); }
static kl_tensor f_einsum(kl_tensor a) { return kl_einsum("ij,ij->i", 2, (kl_tensor[]){a, flipped(a)}); }

/* range: of the operand, a half if 0; least: what it is at least. */
static const struct { const char *name; function *f; double range, min; } table[] = {
    {"sigmoid", f_sigmoid, 20, -20}, {"silu", f_silu, 20, -20}, {"softplus", f_softplus, 20, -20},
        {"mish", f_mish, 20, -20},
    {"gelu", f_gelu, 5, -5}, {"elu", f_elu, 10, -10}, {"tanh", f_tanh, 5, -5}, {"expm1", f_expm1, 8, -8},
    {"erf", f_erf, 3, -3}, {"sin", f_sin, 10, -10}, {"sqrt", f_sqrt, 9, 0.1}, {"exp", f_exp, 8, -8},
    {"rsqrt", f_rsqrt, 9, 0.1}, {"log", f_log, 9, 0.1}, {"log1p", f_log1p, 9, -0.9}, {"relu", f_relu, 9, -9},
    {"powi", f_powi, 6, -6}, {"pow", f_pow, 9, 0.1}, {"lerp", f_lerp, 9, -9}, {"mean", f_mean, 60000, 59000},
    {"mean of all", f_mean_all, 60000, -60000}, {"var", f_var, 200, -200}, {"std", f_std, 20000, -20000},
    {"norm", f_norm, 9000, -9000}, {"logsumexp", f_logsumexp, 30, -30}, {"softmax", f_softmax, 10, -10},
    {"log_softmax", f_log_softmax, 30, -30}, {"layer_norm", f_layer_norm, 9000, -9000},
        {"rms_norm", f_rms_norm, 9000, -9000},
    {"mse_loss", f_mse, 200, -200}, {"avg_pool", f_avg_pool, 60000, 50000},
    {"log_sigmoid", f_log_sigmoid, 20, -20}, {"gelu_erf", f_gelu_erf, 5, -5}, {"softsign", f_softsign, 300, -300},
    {"selu", f_selu, 9, -9}, {"celu", f_celu, 9, -9}, {"hard_swish", f_hard_swish, 9, -9},
    {"hard_sigmoid", f_hard_sigmoid, 4, -4}, {"leaky_relu", f_leaky_relu, 9, -9},
    {"group_norm", f_group_norm, 9000, -9000}, {"batch_norm", f_batch_norm, 9000, -9000}, {"linear", f_linear, 20, -20},
    {"conv", f_conv, 20, -20}, {"sum_pool", f_sum_pool, 9000, -9000}, {"cross_entropy", f_cross_entropy, 30, -30},
    {"nll_loss", f_nll, 60000, 50000}, {"l1_loss", f_l1, 30000, -30000}, {"huber_loss", f_huber, 9000, -9000},
    {"smooth_l1_loss", f_smooth_l1, 9000, -9000}, {"binary_cross_entropy_with_logits", f_bce_with_logits, 200, -200},
    {"binary_cross_entropy", f_bce, 0.95, 0.05}, {"divergence", f_divergence, 20, -20},
    {"cumsum", f_cumsum, 4000, -4000},
    {"logcumsumexp", f_logcumsumexp, 20, -20}, {"einsum", f_einsum, 60, -60},
};

/* The values of t, which is released, as f64; how many. */
static int64_t take(kl_tensor t, double *v)
{
    int64_t d[KL_MAX_RANK], n = 1;
    int rank = kl_shape(t, d);
    for (int i = 0; i < rank; i++)
        n *= d[i];
    OK(kl_read(kl_cast(t, KL_F64), v, (size_t)n * sizeof *v));
    return n;
}

/* Within `roundings` halves of the spacing, and a little for f32's own. */
static void compare(const char *name, const char *what, kl_dtype d, const double *got, const double *want, int64_t n,
                    double roundings, double scale)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (fabs(want[i]) > largest(d))
            continue; /* it rounds to infinity */
        double off = fabs(got[i] - want[i]) / (roundings * 0.5 * spacing(d, want[i]) * 1.02 + scale * 1e-6);
        if (!(off <= worst))
            worst = off;
    }
    if (!CHECK(worst <= 1))
        printf("    %s of %s in %s: %g times the bound\n", what, name, d == KL_F16 ? "f16" : "bf16", worst);
}

/* The sum of the elements times -2, -1, 0, 1 and 2. */
static kl_tensor weighted(kl_tensor y)
{
    static double weight[N];
    int64_t d[KL_MAX_RANK];
    int rank = kl_shape(y, d);
    for (int i = 0; i < N; i++)
        weight[i] = i * 7 % 5 - 2;
    return kl_sum_all(kl_mul(y, kl_cast(kl_input(kl_device_of(y), KL_F64, rank, d, weight), kl_dtype_of(y))));
}

static void test_one(kl_device device, unsigned i, kl_dtype d)
{
    static double x[N], got[N], want[N];
    double max = 0, steepest = 0;
    for (int k = 0; k < N; k++)
        x[k] = table[i].min + (table[i].range - table[i].min) * (0.5 + 0.5 * uniform());
    kl_scope_begin();
    kl_tensor exact = kl_cast(kl_cast(kl_input(device, KL_F64, DIMS(ROWS, COLUMNS), x), d), KL_F64),
        half = kl_cast(exact, d);
    OK(kl_read(exact, x, sizeof x)); /* numbers that the dtype has */
    kl_requires_grad(exact);
    kl_requires_grad(half);
    kl_tensor y = table[i].f(half), z = table[i].f(exact);
    CHECK(kl_dtype_of(y) == d);
    int64_t n = take(y, got);
    take(z, want);
    for (int64_t k = 0; k < n; k++)
        max = fmax(max, fabs(want[k]));
    compare(table[i].name, "value", d, got, want, n, 1, max);
    kl_tensor gy = kl_grad(weighted(y), half), gz = kl_grad(weighted(z), exact);
    take(gy, got);
    take(gz, want);
    for (int k = 0; k < N; k++)
        steepest = fmax(steepest, fabs(want[k]));
    compare(table[i].name, "gradient", d, got, want, N, 1, steepest);
    kl_scope_end();
}

static void test_all(kl_device device)
{
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        test_one(device, i, KL_F16);
        test_one(device, i, KL_BF16);
    }
}

int main(void)
{
    return on_devices(test_all);
}
