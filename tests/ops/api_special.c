/* Elementwise composites against the C library or plain loops in double: special functions, rounded quotients, counts
 * of bits, further activations; at zeros, infinities, NaN and of no elements, their gradients, and misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

#define COUNT(a) (int)(sizeof(a) / sizeof(a)[0])

/* Function pointers to ops; the macros of these names pass a call site. */
#define OP1(name) static kl_tensor of_##name(kl_tensor a) { return kl_##name(a); }
#define OP2(name) static kl_tensor of_##name(kl_tensor a, kl_tensor b) { return kl_##name(a, b); }
OP1(cbrt) OP1(log10) OP1(lgamma) OP1(digamma) OP1(is_inf) OP1(gelu_erf) OP1(log_sigmoid) OP1(softsign)
OP1(selu) OP1(hard_swish)
OP2(div_trunc) OP2(div_floor) OP2(fmod) OP2(mod) OP2(logaddexp) OP2(nextafter)
static kl_tensor of_celu(kl_tensor a) { return kl_celu(a, 1.5); }
static kl_tensor of_hard_sigmoid(kl_tensor a) { return kl_hard_sigmoid(a, 0.2, 0.5); }

/* The recurrence up to 30, then Stirling's series; below 1/2 the reflection. */
static double want_digamma(double x)
{
    if (isinf(x) || isnan(x))
        return x > 0 ? x : NAN;
    if (x == 0)
        return signbit(x) ? INFINITY : -INFINITY;
    if (x < 0.5)
        return x == floor(x) ? NAN : want_digamma(1 - x) - M_PI / tan(M_PI * (x - rint(x)));
    double sum = 0;
    for (; x < 30; x++)
        sum -= 1 / x;
    return sum + log(x) - 1 / (2 * x) - 1 / (12 * x * x) + 1 / (120 * pow(x, 4)) - 1 / (252 * pow(x, 6));
}
static double want_lgamma(double x) { return lgamma(x); }
static double want_is_inf(double x) { return isinf(x) ? 1 : 0; }
static double want_gelu(double x) { return isinf(x) ? (x > 0 ? x : NAN) : 0.5 * x * erfc(-x * M_SQRT1_2); }
static double want_log_sigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }
static double want_softsign(double x) { return isinf(x) ? copysign(1, x) : x / (1 + fabs(x)); }
static double want_selu(double x)
{
    return 1.0507009873554804934 * (x > 0 ? x : 1.6732632423543772848 * expm1(x));
}
static double want_celu(double x) { return x > 0 ? x : 1.5 * expm1(x / 1.5); }
static double want_hard_sigmoid(double x) { return isnan(x) ? x : fmin(fmax(0.2 * x + 0.5, 0), 1); }
static double want_hard_swish(double x) { return x <= -3 ? 0 : x > 3 ? x : x * (x / 6 + 0.5); }

/* Tolerances: relative, and absolute beside it. */
static const struct {
    const char *name;
    double (*want)(double);
    kl_tensor (*op)(kl_tensor);
    double relative, absolute;
} unary[] = {{"cbrt", cbrt, of_cbrt, 1e-15, 0}, {"log10", log10, of_log10, 4e-16, 0},
             {"lgamma", want_lgamma, of_lgamma, 1e-14, 2e-14}, {"digamma", want_digamma, of_digamma, 1e-13, 2e-14},
             {"is_inf", want_is_inf, of_is_inf, 0, 0}, {"gelu_erf", want_gelu, of_gelu_erf, 2e-14, 1e-300},
             {"log_sigmoid", want_log_sigmoid, of_log_sigmoid, 2e-15, 0},
             {"softsign", want_softsign, of_softsign, 1e-15, 0}, {"selu", want_selu, of_selu, 2e-15, 0},
             {"celu", want_celu, of_celu, 2e-15, 0}, {"hard_sigmoid", want_hard_sigmoid, of_hard_sigmoid, 0, 2e-16},
             {"hard_swish", want_hard_swish, of_hard_swish, 1e-15, 1e-15}};

static const double at1[] = {-INFINITY, -1e30, -170.3, -37.5, -12, -3.5, -3, -1.25, -1, -0.5, -1e-3, -1e-9, -0.0, 0,
                             1e-9, 1e-3, 0.3, 0.5, 1, 1.5, 2, 3, 5.5, 27, 40, 1000, 1e30, INFINITY, NAN};

static bool is_near(double got, double want, double relative, double absolute)
{
    if (isnan(want) || isinf(want) || want == 0)
        return isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got) <= absolute;
    return fabs(got - want) <= relative * fabs(want) + absolute;
}

static void one_operand(void)
{
    enum { N = COUNT(at1) };
    kl_tensor x = f64(D(N), at1), x32 = kl_cast(x, KL_F32), empty = kl_zeros(dev, KL_F32, D(3, 0));
    for (int k = 0; k < COUNT(unary); k++) {
        kl_tensor y = unary[k].op(x), z = unary[k].op(x32), none = unary[k].op(empty);
        double *v = values_of(y), *w = values_of(z);
        for (int i = 0; i < N; i++) {
            double single = unary[k].want((double)(float)at1[i]);
            bool out = isfinite(single) && !isfinite((float)single); /* of range in f32 */
            if (!CHECK(v && is_near(v[i], unary[k].want(at1[i]), unary[k].relative, unary[k].absolute)))
                printf("  %s(%g) is %.17g, not %.17g\n", unary[k].name, at1[i], v ? v[i] : 0, unary[k].want(at1[i]));
            if (!CHECK(w && (out || is_near(w[i], single, 4e-6, 4e-6))))
                printf("  f32 %s(%g) is %.9g, not %.9g\n", unary[k].name, at1[i], w ? w[i] : 0, single);
        }
        free(v), free(w);
        OK(kl_read(none, NULL, 0));
        kl_release(y), kl_release(z), kl_release(none);
    }
    kl_release(x), kl_release(x32), kl_release(empty);
}

/* The inverse: erf of it is where it began, and at the ends of the range. */
static void inverse_erf(void)
{
    static const double a[] = {-0.9999999, -0.75, -0.5, -0.1, -1e-2, -1e-5, 0, 1e-20, 9e-3, 0.3, 0.5, 0.97, 0.999999,
                               1 - 0x1p-53};
    enum { N = COUNT(a) };
    kl_tensor x = f64(D(N), a), y = kl_erfinv(x);
    double *v = values_of(y);
    for (int i = 0; i < N; i++) {
        double back = v ? fabs(a[i]) < 0.5 ? erf(v[i]) : copysign(erfc(fabs(v[i])), a[i]) : NAN;
        double want = fabs(a[i]) < 0.5 ? a[i] : copysign(1 - fabs(a[i]), a[i]);
        if (!CHECK(fabs(back - want) <= 1e-13 * fabs(want)))
            printf("  erfinv(%.17g) is %.17g\n", a[i], v ? v[i] : 0);
    }
    free(v);
    kl_release(x), kl_release(y);
    x = f64(D(5), (double[]){-1, 1, 1.5, NAN, -INFINITY});
    NEAR_LIST(kl_erfinv(x), 0, -INFINITY, INFINITY, NAN, NAN, NAN);
    kl_release(x);
    float s[] = {0.05f, 0.0999f, 0.1001f, -0.4f, 0.9f, 0.999999f};
    x = kl_input(dev, KL_F32, D(6), s), y = kl_erfinv(x), v = values_of(y);
    for (int i = 0; i < 6; i++)
        CHECK(v && fabs(erf(v[i]) - (double)s[i]) <= 3e-7 * fabs((double)s[i]));
    free(v);
    kl_release(x), kl_release(y);
}

/* ---- two operands ---- */

static double want_trunc(double a, double b) { return trunc(a / b); }
static double want_mod(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static double want_floor(double a, double b)
{
    double r = fmod(a, b), q = rint((a - r) / b);
    return b == 0 ? a / b : r != 0 && (r < 0) != (b < 0) ? q - 1 : q;
}
static double want_logaddexp(double a, double b)
{
    double m = fmax(a, b);
    return isnan(a) || isnan(b) ? NAN : isinf(m) ? m : m + log1p(exp(-fabs(a - b)));
}

static void two_operands(void)
{
    static const double p[] = {-INFINITY, -1e30, -7.5, -3, -0.1, -0.0, 0, 1e-300, 0.1, 0.3, 1, 2, 3, 10, 1e17, 1e30,
                               INFINITY, NAN};
    enum { N = COUNT(p) };
    static const struct {
        const char *name;
        double (*want)(double, double);
        kl_tensor (*op)(kl_tensor, kl_tensor);
        double relative;
    } row[] = {{"div_trunc", want_trunc, of_div_trunc, 0}, {"div_floor", want_floor, of_div_floor, 0},
               {"fmod", fmod, of_fmod, 0}, {"mod", want_mod, of_mod, 0},
               {"logaddexp", want_logaddexp, of_logaddexp, 1e-15}, {"nextafter", nextafter, of_nextafter, 0}};
    kl_tensor a = f64(D(N, 1), p), b = f64(D(N), p), a32 = kl_cast(a, KL_F32), b32 = kl_cast(b, KL_F32);
    for (int k = 0; k < COUNT(row); k++) {
        kl_tensor y = row[k].op(a, b);
        double *v = values_of(y);
        for (int i = 0; i < N * N; i++) {
            double x = p[i / N], z = p[i % N], want = row[k].want(x, z);
            if (row[k].op != of_nextafter && fabs(x) / fabs(z) > 0x1p300)
                continue; /* beyond what is promised */
            bool same = isnan(want) ? v && isnan(v[i]) : v && is_near(v[i], want, row[k].relative, 1e-16);
            if (row[k].relative == 0 && want == 0 && k != 1 && k != 0)
                same &= v && signbit(v[i]) == signbit(want);
            if (!CHECK(same))
                printf("  %s(%g, %g) is %.17g, not %.17g\n", row[k].name, x, z, v ? v[i] : 0, want);
        }
        free(v);
        kl_release(y);
    }
    kl_tensor y = kl_fmod(a32, b32), z = kl_nextafter(a32, b32);
    double *v = values_of(y), *w = values_of(z);
    for (int i = 0; i < N * N; i++) { /* of f32 always exact */
        float x = (float)p[i / N], q = (float)p[i % N], m = fmodf(x, q), n = nextafterf(x, q);
        bool left = v && (isnan(m) ? isnan(v[i]) : (float)v[i] == m);
        bool next = w && (isnan(n) ? isnan(w[i]) : (float)w[i] == n);
        if (!CHECK(left && next))
            printf("  f32 of %g, %g: %.9g %.9g, not %.9g %.9g\n", (double)x, (double)q, v ? v[i] : 0, w ? w[i] : 0,
                   (double)m, (double)n);
    }
    free(v), free(w);
    kl_release(y), kl_release(z), kl_release(a), kl_release(b), kl_release(a32), kl_release(b32);
}

static void integers(void)
{
    kl_tensor a = i32(D(8), (int32_t[]){7, -7, 7, -7, 6, -6, 5, INT32_MIN});
    kl_tensor b = i32(D(8), (int32_t[]){2, 2, -2, -2, 3, 3, 0, -1});
    NEAR_LIST(kl_div_trunc(a, b), 0, 3, -3, -3, 3, 2, -2, 0, INT32_MIN);
    NEAR_LIST(kl_div_floor(a, b), 0, 3, -4, -4, 3, 2, -2, 0, INT32_MIN);
    NEAR_LIST(kl_fmod(a, b), 0, 1, -1, 1, -1, 0, 0, 0, 0);
    NEAR_LIST(kl_mod(a, b), 0, 1, 1, -1, -1, 0, 0, 0, 0);
    kl_release(a), kl_release(b);
    a = i32(D(5), (int32_t[]){0, 1, -1, 0x00f0, INT32_MIN});
    NEAR_LIST(kl_popcount(a), 0, 0, 1, 32, 4, 1);
    NEAR_LIST(kl_clz(a), 0, 32, 31, 0, 24, 0);
    b = i32(D(5), (int32_t[]){1, 1, 28, 4, 31});
    NEAR_LIST(kl_shr_logical(a, b), 0, 0, 0, 15, 15, 1);
    kl_release(a), kl_release(b);
    a = kl_input(dev, KL_U64, D(3), (uint64_t[]){UINT64_MAX, 1ull << 40, 0});
    NEAR_LIST(kl_popcount(a), 0, 64, 1, 0);
    NEAR_LIST(kl_clz(a), 0, 0, 23, 64);
    kl_release(a);
    a = kl_input(dev, KL_I8, D(3), (int8_t[]){-1, 5, 0});
    NEAR_LIST(kl_popcount(a), 0, 8, 2, 0);
    NEAR_LIST(kl_clz(a), 0, 0, 5, 8);
    kl_release(a);
}

/* ---- gradients ---- */

static kl_tensor inner(kl_tensor x) { return kl_tanh(x); } /* within -1 .. 1 */
static kl_tensor g_erfinv(kl_tensor x) { return kl_erfinv(inner(x)); }
static kl_tensor g_log10(kl_tensor x) { return kl_log10(kl_exp(x)); }
static kl_tensor divisor(void) { return f64(D(5), (double[]){0.71, -0.43, 1.3, 0.29, -2.1}); }
static kl_tensor g_fmod(kl_tensor x) { return kl_fmod(x, divisor()); }
static kl_tensor g_mod(kl_tensor x) { return kl_mod(kl_mul_scalar(divisor(), 3), x); }
static kl_tensor g_first(kl_tensor x) { return kl_logaddexp(x, divisor()); }
static kl_tensor g_second(kl_tensor x) { return kl_logaddexp(divisor(), x); }

static void slopes(void)
{
    GRADIENT(of_cbrt, 3, 5);
    GRADIENT(g_log10, 3, 5);
    GRADIENT(of_lgamma, 3, 5);
    GRADIENT(g_erfinv, 3, 5);
    GRADIENT(of_gelu_erf, 3, 5);
    GRADIENT(of_log_sigmoid, 3, 5);
    GRADIENT(of_softsign, 3, 5);
    GRADIENT(of_selu, 3, 5);
    GRADIENT(of_celu, 3, 5);
    GRADIENT(of_hard_sigmoid, 3, 5);
    GRADIENT(of_hard_swish, 3, 5);
    GRADIENT(g_fmod, 3, 5);
    GRADIENT(g_mod, 3, 5);
    GRADIENT(g_first, 3, 5);
    GRADIENT(g_second, 3, 5);
    kl_tensor x = f64(D(3), (double[]){0, 0.5, -INFINITY}), y = kl_zeros(dev, KL_F64, D(3));
    kl_requires_grad(x), kl_requires_grad(y);
    NEAR_LIST(kl_grad(kl_logaddexp(x, x), x), 1e-15, 1, 1, 1);
    kl_tensor z = kl_cbrt(y);
    NEAR_LIST(kl_grad(z, y), 0, 0, 0, 0);
    kl_release(x), kl_release(y), kl_release(z);
}

static void misuse(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), i = kl_zeros(dev, KL_I32, D(2, 3)), w = kl_zeros(dev, KL_F64, D(4));
    kl_tensor c = kl_zeros(dev, KL_F32, D(4)), u = kl_zeros(dev, KL_U32, D(3)), p = kl_zeros(dev, KL_BOOL, D(3));
    REFUSED(kl_lgamma(i), KL_ERR_TYPE, "lgamma: ", "i32");
    REFUSED(kl_popcount(a), KL_ERR_TYPE, "popcount: ", "f32");
    REFUSED(kl_clz(p), KL_ERR_TYPE, "clz: ", "bool");
    REFUSED(kl_shr_logical(i, u), KL_ERR_TYPE, "shr_logical: ", "i32 and u32");
    REFUSED(kl_fmod(a, w), KL_ERR_TYPE, "fmod: ", "f32 and f64");
    REFUSED(kl_mod(p, p), KL_ERR_TYPE, "mod: ", "bool");
    REFUSED(kl_div_floor(a, c), KL_ERR_SHAPE, "[2,3]", "[4]");
    REFUSED(kl_nextafter(a, c), KL_ERR_SHAPE, "nextafter", "[2,3]", "[4]");
    REFUSED(kl_logaddexp(a, kl_none), KL_ERR_HANDLE, "logaddexp: ");
    REFUSED(kl_celu(a, 0), KL_ERR_ARGUMENT, "celu: ", "alpha");
    kl_release(a), kl_release(i), kl_release(w), kl_release(c), kl_release(u), kl_release(p);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    one_operand();
    inverse_erf();
    two_operands();
    integers();
    slopes();
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
