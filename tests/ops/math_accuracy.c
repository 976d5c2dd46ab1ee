/* Measures every function of ir/math/math.def against MPFR, in units in the last place of the exact result:
 *
 *   - random numbers of every binade and sign, subnormals too, and many more near 1 where the work is;
 *   - for f32 also every STRIDE-th of all bit patterns;
 *   - multiples of pi / 2, rounded, and the double that is nearest to one in ratio;
 *   - functions of two numbers: the second one of any size, of about the size of the first, or a small multiple of 1/2,
 *     and such that the logarithm of a power is in range;
 *   - special values, whose results must be exact.
 *
 * A result beyond the stated bound, or a wrong special value, fails.  Arguments are the names of the functions to
 * sweep; with "share" before them a quarter of the numbers. */
#include "ir/ir.h"
#include <math.h>
#include <mpfr.h>
#include <string.h>

#define STRIDE 32749u          /* prime, so that every exponent meets many mantissas */
#define BATCH 1024

#define MAX_ARGS 2

enum function {
#define MATH_FN(name, ...) FN_##name,
#include "ir/math/math.def"
    FN_COUNT
};

static const struct {
    const char *name;
    unsigned op;
    double bound[2];           /* f32, f64 */
    int (*exact)(mpfr_t, const mpfr_t, mpfr_rnd_t);
    int (*exact2)(mpfr_t, const mpfr_t, const mpfr_t, mpfr_rnd_t);
} fn[FN_COUNT] = {
#define MATH_FN(name, f32_ulps, f64_ulps, mpfr) [FN_##name] = { #name, OP_##name, { f32_ulps, f64_ulps }, mpfr, NULL },
#define MATH_FN2(name, f32_ulps, f64_ulps, mpfr) [FN_##name] = { #name, OP_##name, { f32_ulps, f64_ulps }, NULL, mpfr },
#include "ir/math/math.def"
};

static const struct format {
    unsigned dtype;
    const char *name;
    int digits;                /* of the significand */
    int emax;                  /* numbers are below 2^emax */
    int tiny;                  /* the smallest number is 2^tiny */
} format[2] = { { KL_F32, "f32", 24, 128, -149 }, { KL_F64, "f64", 53, 1024, -1074 } };

static const struct { enum function f; double x, y; } special[] = {
    { FN_exp, 0.0, 1.0 }, { FN_exp, -0.0, 1.0 }, { FN_exp, INFINITY, INFINITY }, { FN_exp, -INFINITY, 0.0 },
    { FN_exp, 1000.0, INFINITY }, { FN_exp, -1000.0, 0.0 }, { FN_exp, 1e30, INFINITY }, { FN_exp, -1e30, 0.0 },
    { FN_exp, 1e-30, 1.0 }, { FN_exp, NAN, NAN }, { FN_exp, -NAN, NAN },
    { FN_log, 1.0, 0.0 }, { FN_log, 0.0, -INFINITY }, { FN_log, -0.0, -INFINITY }, { FN_log, INFINITY, INFINITY },
    { FN_log, -INFINITY, NAN }, { FN_log, -1.0, NAN }, { FN_log, -1e-30, NAN },
    { FN_log, NAN, NAN }, { FN_log, -NAN, NAN },
    { FN_exp2, 0.0, 1.0 }, { FN_exp2, -0.0, 1.0 }, { FN_exp2, INFINITY, INFINITY }, { FN_exp2, -INFINITY, 0.0 },
    { FN_exp2, 5.0, 32.0 }, { FN_exp2, -149.0, 0x1p-149 }, { FN_exp2, 127.0, 0x1p127 }, { FN_exp2, 1024.0, INFINITY },
    { FN_exp2, -1075.0, 0.0 }, { FN_exp2, 1e30, INFINITY }, { FN_exp2, -1e30, 0.0 }, { FN_exp2, NAN, NAN },
    { FN_expm1, 0.0, 0.0 }, { FN_expm1, -0.0, -0.0 }, { FN_expm1, INFINITY, INFINITY }, { FN_expm1, -INFINITY, -1.0 },
    { FN_expm1, 1e30, INFINITY }, { FN_expm1, -1e30, -1.0 }, { FN_expm1, 0x1p-149, 0x1p-149 }, { FN_expm1, NAN, NAN },
    { FN_log2, 1.0, 0.0 }, { FN_log2, 0.0, -INFINITY }, { FN_log2, -0.0, -INFINITY }, { FN_log2, INFINITY, INFINITY },
    { FN_log2, -INFINITY, NAN }, { FN_log2, -1.0, NAN }, { FN_log2, NAN, NAN },
    { FN_log2, 0x1p-149, -149.0 }, { FN_log2, 0x1p127, 127.0 }, { FN_log2, 0.5, -1.0 },
    { FN_log1p, 0.0, 0.0 }, { FN_log1p, -0.0, -0.0 }, { FN_log1p, -1.0, -INFINITY }, { FN_log1p, -2.0, NAN },
    { FN_log1p, INFINITY, INFINITY }, { FN_log1p, -INFINITY, NAN }, { FN_log1p, NAN, NAN },
    { FN_log1p, 0x1p-149, 0x1p-149 }, { FN_log1p, -0x1p-149, -0x1p-149 },
    { FN_erf, 0.0, 0.0 }, { FN_erf, -0.0, -0.0 }, { FN_erf, INFINITY, 1.0 }, { FN_erf, -INFINITY, -1.0 },
    { FN_erf, 6.0, 1.0 }, { FN_erf, -1e30, -1.0 }, { FN_erf, NAN, NAN }, { FN_erf, -NAN, NAN },
    { FN_sin, 0.0, 0.0 }, { FN_sin, -0.0, -0.0 }, { FN_sin, INFINITY, NAN }, { FN_sin, -INFINITY, NAN },
    { FN_sin, NAN, NAN }, { FN_sin, 0x1p-149, 0x1p-149 }, { FN_sin, -0x1p-149, -0x1p-149 },
    { FN_cos, 0.0, 1.0 }, { FN_cos, -0.0, 1.0 }, { FN_cos, INFINITY, NAN }, { FN_cos, -INFINITY, NAN },
    { FN_cos, NAN, NAN }, { FN_cos, 0x1p-149, 1.0 },
    { FN_erfc, 0.0, 1.0 }, { FN_erfc, -0.0, 1.0 }, { FN_erfc, INFINITY, 0.0 }, { FN_erfc, -INFINITY, 2.0 },
    { FN_erfc, 30.0, 0.0 }, { FN_erfc, -10.0, 2.0 }, { FN_erfc, 1e30, 0.0 }, { FN_erfc, NAN, NAN },
    { FN_tan, 0.0, 0.0 }, { FN_tan, -0.0, -0.0 }, { FN_tan, INFINITY, NAN }, { FN_tan, -INFINITY, NAN },
    { FN_tan, NAN, NAN }, { FN_tan, 0x1p-149, 0x1p-149 }, { FN_tan, -0x1p-149, -0x1p-149 },
    { FN_asin, 0.0, 0.0 }, { FN_asin, -0.0, -0.0 }, { FN_asin, 1.5, NAN }, { FN_asin, -2.0, NAN },
        { FN_asin, INFINITY, NAN },
    { FN_asin, NAN, NAN }, { FN_asin, 0x1p-149, 0x1p-149 },
    { FN_acos, 1.0, 0.0 }, { FN_acos, 1.5, NAN }, { FN_acos, -2.0, NAN }, { FN_acos, -INFINITY, NAN },
        { FN_acos, NAN, NAN },
    { FN_atan, 0.0, 0.0 }, { FN_atan, -0.0, -0.0 }, { FN_atan, NAN, NAN }, { FN_atan, -0x1p-149, -0x1p-149 },
    { FN_sinh, 0.0, 0.0 }, { FN_sinh, -0.0, -0.0 }, { FN_sinh, INFINITY, INFINITY }, { FN_sinh, -INFINITY, -INFINITY },
    { FN_sinh, 800.0, INFINITY }, { FN_sinh, -800.0, -INFINITY }, { FN_sinh, NAN, NAN },
        { FN_sinh, -0x1p-149, -0x1p-149 },
    { FN_cosh, 0.0, 1.0 }, { FN_cosh, -0.0, 1.0 }, { FN_cosh, INFINITY, INFINITY }, { FN_cosh, -INFINITY, INFINITY },
    { FN_cosh, -800.0, INFINITY }, { FN_cosh, NAN, NAN }, { FN_cosh, 0x1p-149, 1.0 },
    { FN_asinh, 0.0, 0.0 }, { FN_asinh, -0.0, -0.0 }, { FN_asinh, INFINITY, INFINITY },
        { FN_asinh, -INFINITY, -INFINITY },
    { FN_asinh, NAN, NAN }, { FN_asinh, -0x1p-149, -0x1p-149 },
    { FN_acosh, 1.0, 0.0 }, { FN_acosh, 0.5, NAN }, { FN_acosh, -1e30, NAN }, { FN_acosh, INFINITY, INFINITY },
    { FN_acosh, -INFINITY, NAN }, { FN_acosh, NAN, NAN },
    { FN_atanh, 0.0, 0.0 }, { FN_atanh, -0.0, -0.0 }, { FN_atanh, 1.0, INFINITY }, { FN_atanh, -1.0, -INFINITY },
    { FN_atanh, 1.5, NAN }, { FN_atanh, -INFINITY, NAN }, { FN_atanh, NAN, NAN }, { FN_atanh, 0x1p-149, 0x1p-149 },
    { FN_tanh, 0.0, 0.0 }, { FN_tanh, -0.0, -0.0 }, { FN_tanh, INFINITY, 1.0 }, { FN_tanh, -INFINITY, -1.0 },
    { FN_tanh, 30.0, 1.0 }, { FN_tanh, -30.0, -1.0 }, { FN_tanh, 1e30, 1.0 },
    { FN_tanh, NAN, NAN }, { FN_tanh, -NAN, NAN },
    { FN_tanh, 0x1p-30, 0x1p-30 }, { FN_tanh, -0x1p-140, -0x1p-140 }, { FN_tanh, 0x1p-149, 0x1p-149 },
};

static const struct { enum function f; double x, y, want; } special2[] = {
    /* C17, F.10.4.4 */
    { FN_pow, 0.0, -3.0, INFINITY }, { FN_pow, -0.0, -3.0, -INFINITY }, { FN_pow, 0.0, -2.0, INFINITY },
    { FN_pow, -0.0, -2.0, INFINITY }, { FN_pow, -0.0, -2.5, INFINITY }, { FN_pow, 0.0, -INFINITY, INFINITY },
    { FN_pow, -0.0, -INFINITY, INFINITY }, { FN_pow, 0.0, 3.0, 0.0 }, { FN_pow, -0.0, 3.0, -0.0 },
    { FN_pow, -0.0, 2.0, 0.0 }, { FN_pow, -0.0, 0.5, 0.0 }, { FN_pow, 0.0, INFINITY, 0.0 },
    { FN_pow, -1.0, INFINITY, 1.0 }, { FN_pow, -1.0, -INFINITY, 1.0 }, { FN_pow, 1.0, NAN, 1.0 },
    { FN_pow, 1.0, INFINITY, 1.0 }, { FN_pow, 1.0, -1e30, 1.0 }, { FN_pow, NAN, 0.0, 1.0 }, { FN_pow, NAN, -0.0, 1.0 },
    { FN_pow, INFINITY, 0.0, 1.0 }, { FN_pow, -INFINITY, -0.0, 1.0 }, { FN_pow, 0.0, 0.0, 1.0 },
        { FN_pow, -0.0, -0.0, 1.0 },
    { FN_pow, -7.0, 0.0, 1.0 }, { FN_pow, -2.0, 0.5, NAN }, { FN_pow, -2.0, -1.5, NAN }, { FN_pow, -1.0, 0.1, NAN },
    { FN_pow, 0.5, -INFINITY, INFINITY }, { FN_pow, -0.5, -INFINITY, INFINITY }, { FN_pow, 2.0, -INFINITY, 0.0 },
    { FN_pow, -2.0, -INFINITY, 0.0 }, { FN_pow, 0.5, INFINITY, 0.0 }, { FN_pow, -0.5, INFINITY, 0.0 },
    { FN_pow, 2.0, INFINITY, INFINITY }, { FN_pow, -2.0, INFINITY, INFINITY }, { FN_pow, -INFINITY, -3.0, -0.0 },
    { FN_pow, -INFINITY, -2.0, 0.0 }, { FN_pow, -INFINITY, -0.5, 0.0 }, { FN_pow, -INFINITY, 3.0, -INFINITY },
    { FN_pow, -INFINITY, 2.0, INFINITY }, { FN_pow, -INFINITY, 0.5, INFINITY },
        { FN_pow, -INFINITY, INFINITY, INFINITY },
    { FN_pow, INFINITY, -0.5, 0.0 }, { FN_pow, INFINITY, 0.5, INFINITY }, { FN_pow, INFINITY, -INFINITY, 0.0 },
    { FN_pow, NAN, 1.0, NAN }, { FN_pow, NAN, NAN, NAN }, { FN_pow, 2.0, NAN, NAN }, { FN_pow, NAN, INFINITY, NAN },
    { FN_pow, 0.0, NAN, NAN }, { FN_pow, -1.0, NAN, NAN },
    /* exact powers, the ends of the range, integer exponents of negative numbers */
    { FN_pow, 2.0, 10.0, 1024.0 }, { FN_pow, 2.0, -149.0, 0x1p-149 }, { FN_pow, -2.0, 3.0, -8.0 },
        { FN_pow, -3.0, 4.0, 81.0 },
    { FN_pow, -2.0, -1.0, -0.5 }, { FN_pow, 9.0, 0.5, 3.0 }, { FN_pow, 10.0, 2.0, 100.0 }, { FN_pow, 3.5, 1.0, 3.5 },
    { FN_pow, -10.0, 1001.0, -INFINITY }, { FN_pow, -10.0, 1000.0, INFINITY }, { FN_pow, -10.0, -1001.0, -0.0 },
    { FN_pow, -1.0, 16777215.0, -1.0 }, { FN_pow, -1.0, 16777216.0, 1.0 }, { FN_pow, -1.0, 1e300, 1.0 },
    { FN_atan2, 0.0, 1.0, 0.0 }, { FN_atan2, -0.0, 1.0, -0.0 }, { FN_atan2, 0.0, 0.0, 0.0 },
        { FN_atan2, -0.0, 0.0, -0.0 },
    { FN_atan2, 1.0, INFINITY, 0.0 }, { FN_atan2, -1.0, INFINITY, -0.0 }, { FN_atan2, NAN, 1.0, NAN },
        { FN_atan2, 1.0, NAN, NAN },
    { FN_atan2, NAN, INFINITY, NAN }, { FN_atan2, INFINITY, NAN, NAN }, { FN_atan2, NAN, 0.0, NAN },
        { FN_atan2, 0.0, NAN, NAN },
    { FN_hypot, INFINITY, NAN, INFINITY }, { FN_hypot, NAN, -INFINITY, INFINITY },
        { FN_hypot, -INFINITY, 1.0, INFINITY },
    { FN_hypot, NAN, 1.0, NAN }, { FN_hypot, 0.0, NAN, NAN }, { FN_hypot, -0.0, -0.0, 0.0 },
        { FN_hypot, 3.0, -4.0, 5.0 },
    { FN_hypot, 0.0, -0x1p-149, 0x1p-149 },
    { FN_pow, 0x1p-149, 1.0, 0x1p-149 }, { FN_pow, 0x1p-149, -0.0, 1.0 }, { FN_pow, 2.0, 0x1p-149, 1.0 },
};

static unsigned passed, failed, share = 1; /* of the inputs, one in so many */

static uint64_t random_bits(void) /* xorshift64* */
{
    static uint64_t s = 0x9e3779b97f4a7c15u;
    s ^= s >> 12;
    s ^= s << 25;
    s ^= s >> 27;
    return s * 0x2545f4914f6cdd1du;
}

static double get(const struct format *t, const void *array, unsigned i)
{
    return t->dtype == KL_F32 ? (double)((const float *)array)[i] : ((const double *)array)[i];
}

static void put_bits(const struct format *t, void *array, unsigned i, uint64_t bits)
{
    if (t->dtype == KL_F32) ((uint32_t *)array)[i] = (uint32_t)bits;
    else ((uint64_t *)array)[i] = bits;
}

struct sweep {
    enum function f;
    const struct format *t;
    _Alignas(8) unsigned char x[MAX_ARGS][BATCH * 8], y[BATCH * 8];
    unsigned n;
    double worst, worst_x[MAX_ARGS];
    uint64_t count;
    mpfr_t arg, arg2, exact;
};

/* How far `got` is from the function's value at x; INFINITY where the kind or sign of the result is wrong. */
static double ulps(struct sweep *s, const double *x, double got)
{
    const struct format *t = s->t;
    mpfr_ptr arg = s->arg, exact = s->exact;
    mpfr_set_d(arg, x[0], MPFR_RNDN);
    mpfr_set_d(s->arg2, x[1], MPFR_RNDN);
    if (fn[s->f].exact2) fn[s->f].exact2(exact, arg, s->arg2, MPFR_RNDN);
    else fn[s->f].exact(exact, arg, MPFR_RNDN);
    if (mpfr_nan_p(exact)) return isnan(got) ? 0 : INFINITY;
    if (isnan(got) || !!signbit(got) != !!mpfr_signbit(exact)) return INFINITY;
    if (mpfr_inf_p(exact)) return isinf(got) ? 0 : INFINITY;
    if (mpfr_zero_p(exact)) return got == 0 ? 0 : INFINITY;
    /* an infinite result counts as the first number out of range */
    if (isinf(got)) mpfr_set_si_2exp(arg, got < 0 ? -1 : 1, t->emax, MPFR_RNDN);
    else mpfr_set_d(arg, got, MPFR_RNDN);
    long unit = (long)mpfr_get_exp(exact) - t->digits;
    if (unit < t->tiny) unit = t->tiny;
    if (unit > t->emax - t->digits) { /* the exact value is out of range too: infinity is right */
        if (isinf(got)) return 0;
        unit = t->emax - t->digits;
    }
    mpfr_sub(arg, arg, exact, MPFR_RNDN);
    mpfr_mul_2si(arg, arg, -unit, MPFR_RNDN);
    return fabs(mpfr_get_d(arg, MPFR_RNDN));
}

static void flush(struct sweep *s)
{
    if (!scalar_apply(fn[s->f].op, s->t->dtype, s->y, (const void *const[]){ s->x[0], s->x[1] }, s->n)) {
        s->worst = INFINITY;
        return;
    }
    for (unsigned i = 0; i < s->n; i++) {
        const double x[MAX_ARGS] = { get(s->t, s->x[0], i), get(s->t, s->x[1], i) };
        double e = ulps(s, x, get(s->t, s->y, i));
        if (e > s->worst) {
            s->worst = e;
            memcpy(s->worst_x, x, sizeof x);
        }
    }
    s->count += s->n;
    s->n = 0;
}

static uint64_t bits_in(const struct format *t, double v)
{
    float v32 = (float)v;
    uint64_t bits = 0;
    memcpy(&bits, t->dtype == KL_F32 ? (const void *)&v32 : &v, t->dtype == KL_F32 ? 4 : 8);
    return bits;
}

/* A second number to go with the first. */
static uint64_t partner(const struct format *t, double x)
{
    uint64_t r = random_bits(), wild = t->dtype == KL_F32 ? r & UINT32_MAX : r;
    double u = (double)(int64_t)random_bits() * 0x1p-63;
    switch (r >> 61) {
    case 0: return wild;
    case 1: case 2: return bits_in(t, ldexp(x, (int)(random_bits() % 9) - 4) * u); /* about the same */
    case 3: return bits_in(t, (double)(random_bits() % 81) / 2 - 20);
    default: return bits_in(t, u * (1.05 * t->emax) / log2(fabs(x)));             /* x^y or its inverse in range */
    }
}

static void add(struct sweep *s, uint64_t bits)
{
    put_bits(s->t, s->x[0], s->n, bits);
    put_bits(s->t, s->x[1], s->n, fn[s->f].exact2 ? partner(s->t, get(s->t, s->x[0], s->n)) : 0);
    if (++s->n == BATCH) flush(s);
}

static void sweep_function(enum function f, unsigned which)
{
    static struct sweep s;
    memset(&s, 0, sizeof s);
    s.f = f;
    s.t = &format[which];
    mpfr_inits2(64 + 2 * 53, s.arg, s.arg2, s.exact, (mpfr_ptr)0);
    int stored = s.t->digits - 1, bias = s.t->emax - 1;
    for (int biased = 0; biased <= 2 * bias; biased++) {
        bool near = biased > bias - 32 && biased < bias + 12;
        for (unsigned i = 0; i < (near ? 4096u : 32u) / share; i++) {
            uint64_t r = random_bits(), sign = r >> 63;
            uint64_t significand = r & ((UINT64_C(1) << stored) - 1);
            add(&s, (sign << (s.t->dtype == KL_F32 ? 31 : 63)) | (uint64_t)biased << stored | significand);
        }
    }
    if (s.t->dtype == KL_F32)
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STRIDE * share) add(&s, bits);
    for (int i = 1; i < 100000; i += i < 99999 - (int)share ? (int)share : 1)
        add(&s, bits_in(s.t, i < 99999 ? i * 0x1.921fb54442d18p0 : 0x1.6ac5b262ca1ffp+849));
    flush(&s);
    mpfr_clears(s.arg, s.arg2, s.exact, (mpfr_ptr)0);

    bool ok = s.worst <= fn[f].bound[which];
    ok ? passed++ : failed++;
    printf("%-8s %-5s max %.4f ulp at %-24a", fn[f].name, s.t->name, s.worst, s.worst_x[0]);
    if (fn[f].exact2) printf(" %-24a", s.worst_x[1]);
    printf(" bound %.1f, %llu inputs: %s\n", fn[f].bound[which], (unsigned long long)s.count, ok ? "ok" : "FAILED");
}

static bool same(double a, double b) { return isnan(a) ? isnan(b) : a == b && !!signbit(a) == !!signbit(b); }

static void special_value(enum function f, const struct format *t, double x, double x2, double want)
{
    const float x32[MAX_ARGS] = { (float)x, (float)x2 };
    const double x64[MAX_ARGS] = { x, x2 };
    float y32 = 0;
    double y64 = 0;
    bool f32 = t->dtype == KL_F32;
    const void *in[] = { f32 ? (const void *)&x32[0] : &x64[0], f32 ? (const void *)&x32[1] : &x64[1] };
    bool ok = scalar_apply(fn[f].op, t->dtype, f32 ? (void *)&y32 : &y64, in, 1);
    double got = f32 ? (double)y32 : y64;
    ok = ok && same(got, want);
    ok ? passed++ : failed++;
    if (!ok) printf("%s(%a, %a) in %s: got %a, want %a\n", fn[f].name, x, x2, t->name, got, want);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "share")) {
        share = 4;
        argc--;
        argv++;
    }
    for (unsigned f = 0; f < FN_COUNT; f++) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], fn[f].name);
        for (unsigned which = 0; wanted && which < 2; which++) sweep_function((enum function)f, which);
    }
    for (unsigned i = 0; i < sizeof special / sizeof special[0]; i++)
        for (unsigned which = 0; which < 2; which++)
            special_value(special[i].f, &format[which], special[i].x, 0, special[i].y);
    static const double angle[][3] = { /* y, x, what atan2 is as a multiple of pi / 4 */
        { 0.0, -1.0, 4 }, { -0.0, -1.0, -4 }, { 0.0, -0.0, 4 }, { -0.0, -0.0, -4 }, { 1.0, 0.0, 2 }, { -1.0, -0.0, -2 },
        { 1.0, -INFINITY, 4 }, { -1.0, -INFINITY, -4 }, { INFINITY, 1.0, 2 }, { -INFINITY, -1.0, -2 },
        { INFINITY, INFINITY, 1 }, { -INFINITY, INFINITY, -1 }, { INFINITY, -INFINITY, 3 },
            { -INFINITY, -INFINITY, -3 },
        { 1.0, 1.0, 1 }, { 1.0, -1.0, 3 } };
    for (unsigned i = 0; i < sizeof angle / sizeof angle[0]; i++)
        for (unsigned which = 0; which < 2; which++) {
            double want = (double)(0x1.921fb54442d18469p-1L * (long double)angle[i][2]);
            special_value(FN_atan2, &format[which], angle[i][0], angle[i][1], which ? want : (double)(float)want);
        }
    for (unsigned i = 0; i < sizeof special2 / sizeof special2[0]; i++)
        for (unsigned which = 0; which < 2; which++)
            special_value(special2[i].f, &format[which], special2[i].x, special2[i].y, special2[i].want);
    mpfr_free_cache();
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
