/* f16 and bf16: conversions over every bit pattern and every tie between adjacent numbers, by the interpreter and by
 * kernels; rounding once an op; f32 accumulators; literals; gradients. */
#include "tests/support/harness.h"
#include "ir/loop/loop.h"
#include "ir/text/text.h"

static struct rng rng = {77};
static const unsigned halves[2] = {KL_F16, KL_BF16};

static uint64_t converted(unsigned to, unsigned from, const void *x)
{
    uint64_t y = 0;
    check(scalar_cast(&y, to, x, from, 1), "cast %s to %s", dtype_name(from), dtype_name(to));
    return y;
}

static void gives(unsigned to, unsigned from, const void *x, uint64_t want)
{
    uint64_t y = converted(to, from, x);
    check(y == want, "%s to %s gives %#" PRIx64 ", not %#" PRIx64, dtype_name(from), dtype_name(to), y, want);
}
#define GIVES(to, from, ctype, number, want) gives(to, from, &(ctype){number}, want)

static void known_values(void)
{
    GIVES(KL_F16, KL_F64, double, 1, 0x3c00);
    GIVES(KL_F16, KL_F64, double, -2, 0xc000);
    GIVES(KL_F16, KL_F64, double, 65504, 0x7bff);
    GIVES(KL_F16, KL_F64, double, 65519.99, 0x7bff);
    GIVES(KL_F16, KL_F64, double, 65520, 0x7c00);
    GIVES(KL_F16, KL_F64, double, -1e300, 0xfc00);
    GIVES(KL_F16, KL_F64, double, 0x1p-24, 1);
    GIVES(KL_F16, KL_F64, double, -0x1p-25, 0x8000);
    GIVES(KL_F16, KL_F64, double, 0x1.000001p-25, 1);
    GIVES(KL_F16, KL_F64, double, 0x1p-14, 0x0400);
    GIVES(KL_F16, KL_F64, double, 1 + 0x1p-11 + 0x1p-40, 0x3c01); /* f32 in between would make it a tie */
    GIVES(KL_F16, KL_F32, float, 1 + 0x1p-11f, 0x3c00);
    GIVES(KL_F16, KL_I64, int64_t, 2049, 0x6800);
    GIVES(KL_F16, KL_U64, uint64_t, UINT64_MAX, 0x7c00);
    GIVES(KL_F16, KL_BOOL, bool, true, 0x3c00);
    GIVES(KL_BF16, KL_F64, double, 1, 0x3f80);
    GIVES(KL_BF16, KL_F64, double, 0x1.ffp127, 0x7f80);
    GIVES(KL_BF16, KL_F64, double, 0x1.feffffp127, 0x7f7f);
    GIVES(KL_BF16, KL_F64, double, 0x1p-133, 1);
    GIVES(KL_BF16, KL_F64, double, 0x1p-134, 0);
    GIVES(KL_BF16, KL_F64, double, 5e-324, 0);
    GIVES(KL_BF16, KL_F64, double, 1 + 0x1p-8 + 0x1p-40, 0x3f81);
    GIVES(KL_BF16, KL_I64, int64_t, (INT64_C(1) << 62) + (INT64_C(1) << 54), 0x5e80);
    GIVES(KL_BF16, KL_I64, int64_t, (INT64_C(1) << 62) + (INT64_C(1) << 54) + 1, 0x5e81);
    GIVES(KL_BF16, KL_I64, int64_t, -(INT64_C(1) << 62) - (INT64_C(1) << 54) - 1, 0xde81);
    GIVES(KL_BF16, KL_I64, int64_t, INT64_MIN, 0xdf00);
    GIVES(KL_BF16, KL_U64, uint64_t, (UINT64_C(1) << 63) + (UINT64_C(1) << 55) + 1, 0x5f01);
    GIVES(KL_BF16, KL_I32, int32_t, (1 << 30) + (1 << 22) + 1, 0x4e81);
    GIVES(KL_I8, KL_F16, uint16_t, 0x7c00, 0x7f);
    GIVES(KL_I32, KL_BF16, uint16_t, 0xc049, UINT32_C(0xfffffffd));
    GIVES(KL_BOOL, KL_F16, uint16_t, 0x8000, 0);
    GIVES(KL_F64, KL_F16, uint16_t, 0x0001, UINT64_C(0x3e70000000000000));
    for (int i = 0; i < 2; i++) {
        check(isnan(dtype_value(halves[i], converted(halves[i], KL_F64, &(double){NAN}))), "NaN stays NaN");
        check(dtype_bits_i64(halves[i], 257) == converted(halves[i], KL_I64, &(int64_t){257}),
              "dtype_bits_i64 is the cast");
    }
}

/* The positive numbers ascend with their bits, so everything up to the tie with the next one rounds to a number,
 * everything behind it to the next one, and the tie itself to the even one. */
static void every_tie(unsigned half)
{
    uint16_t infinity = (uint16_t)dtype_bits(half, INFINITY);
    unsigned wrong = 0, nan = 0;
    double last = dtype_value(half, infinity - 1u);
    for (uint32_t b = 0; b < infinity; b++) {
        double x = dtype_value(half, b), next = dtype_value(half, b + 1);
        double tie = b + 1u == infinity ? last + (last - dtype_value(half, b - 1)) / 2 : x + (next - x) / 2;
        uint64_t even = b & 1 ? b + 1 : b;
        for (int sign = 0; sign < 2; sign++) {
            uint64_t s = sign ? 0x8000 : 0;
            double f = sign ? -1 : 1;
            wrong += dtype_bits(half, f * x) != (b | s);
            wrong += dtype_bits(half, f * tie) != (even | s);
            wrong += dtype_bits(half, f * nextafter(tie, 0)) != (b | s);
            wrong += dtype_bits(half, f * nextafter(tie, INFINITY)) != ((b + 1) | s);
        }
    }
    check(!wrong, "%s: %u roundings are wrong", dtype_name(half), wrong);
    for (uint32_t b = infinity + 1u; b < 0x8000; b++)
        nan += !isnan(dtype_value(half, b)) || !isnan(dtype_value(half, b | 0x8000));
    check(!nan, "%s: %u NaNs are numbers", dtype_name(half), nan);
}

static void literals(unsigned half)
{
    unsigned wrong = 0;
    for (uint32_t b = 0; b < 65536; b++) {
        struct text t = {0};
        const char *why;
        uint64_t back = ~UINT64_C(0);
        text_literal(&t, half, b);
        wrong += !t.s || !literal_parse(half, t.s, t.len, &back, &why) || back != b;
        mem_free(t.s);
    }
    check(!wrong, "%s: %u literals read back to other bits", dtype_name(half), wrong);
}

/* ---- kernels ---- */

static void agree(struct graph *g, void *x, const char *what)
{
    if (check(!g->err.code, "%s: %s", what, g->err.msg))
        agree_everywhere(g, &(struct values){.n = 1, .v = {x}}, &(struct values){0}, NULL, what);
    graph_free(g);
}

enum { PATTERNS = 65536 };

/* Every number of a half type and what is next to every tie, rounded from f64 and from f32 and widened. */
static void kernel_roundings(unsigned half)
{
    double *x = calloc(4 * PATTERNS, sizeof *x);
    struct graph *g = graph_new("roundings");
    struct shape s = shape_make(1, (int64_t[]){4 * PATTERNS});
    for (uint32_t b = 0; x && b < PATTERNS; b++) {
        double v = dtype_value(half, b), tie = v + (dtype_value(half, (b + 1) & 0xffff) - v) / 2;
        x[4 * b] = v;
        x[4 * b + 1] = tie;
        x[4 * b + 2] = nextafter(tie, 0);
        x[4 * b + 3] = nextafterf((float)tie, INFINITY);
    }
    ref in = n_input(g, KL_F64, &s, "x"), h = n_cast(g, in, half);
    graph_output(g, OUT_RETURN, h, 0);
    graph_output(g, OUT_RETURN, n_cast(g, n_cast(g, in, KL_F32), half), 0);
    graph_output(g, OUT_RETURN, n_cast(g, h, KL_F32), 0);
    graph_output(g, OUT_RETURN, n_cast(g, h, half == KL_F16 ? KL_BF16 : KL_F16), 0);
    agree(g, x, "roundings");
    free(x);
}

/* Integers a little beside the ties of both types. */
static void kernel_integers(unsigned from, unsigned to)
{
    enum { N = 4096 };
    uint64_t x[N];
    struct graph *g = graph_new("integers");
    struct shape s = shape_make(1, (int64_t[]){N});
    for (int i = 0; i < N; i++) {
        uint64_t top = 256 + (uint64_t)rng_below(&rng, 4096), at = (uint64_t)rng_below(&rng, 56);
        x[i] = (top << at) + (uint64_t)(rng_below(&rng, 3) - 1);
        x[i] = rng_below(&rng, 2) ? x[i] : 0 - x[i];
    }
    char *packed = calloc(N, dtype_size(from));
    for (int i = 0; packed && i < N; i++)
        memcpy(packed + (size_t)i * dtype_size(from), &x[i], dtype_size(from));
    graph_output(g, OUT_RETURN, n_cast(g, n_input(g, from, &s, "x"), to), 0);
    char what[32];
    snprintf(what, sizeof what, "%s to %s", dtype_name(from), dtype_name(to));
    agree(g, packed, what);
    free(packed);
}

static void verifier(void)
{
    static const enum prim computing[] = {P_ADD, P_FMA, P_NEG, P_LT, P_ABS};
    for (unsigned i = 0; i < sizeof computing / sizeof *computing + 2; i++) {
        struct kernel *k = kernel_new("half");
        struct err e = {0};
        val a = k_const(k, KL_F16, 1);
        if (i < sizeof computing / sizeof *computing) {
            enum prim p = computing[i];
            k_prim(k, p, a, p == P_NEG || p == P_ABS ? 0 : a, p == P_FMA ? a : 0);
        } else {
            k_inst(k, L_OP(P_CAST), i & 1 ? KL_F64 : KL_BF16, a, 0, 0, 0);
        }
        check(!kernel_verify(k, &e) && strstr(e.msg, "half float"), "a kernel that computes on halves is refused: %s",
              e.msg);
        kernel_free(k);
    }
}

/* ---- ops ---- */

/* The first element of g's only output, on every device. */
static void result(struct graph *g, void *x, unsigned half, double want, const char *what)
{
    for (int way = 0; way < 3; way++) {
        struct values out = {0};
        struct err e = {0};
        if (!check(run_on(g, way ? "cpu" : "ref", way == 1, &(struct values){.n = 1, .v = {x}}, &(struct values){0},
                          NULL, &out, &e),
                   "%s: %s", what, e.msg))
            continue;
        double got = element_value(half, out.v[0], 0);
        check(got == want, "%s of %s gives %g, not %g", what, dtype_name(half), got, want);
        values_free(&out);
    }
    graph_free(g);
}

/* A chain rounds after each op; sums and products accumulate in f32, where a half would stop growing. */
static void meaning(unsigned half)
{
    enum { N = 8192 };
    uint16_t x[N];
    struct shape s = shape_make(1, (int64_t[]){N}), m = shape_make(2, (int64_t[]){1, N}),
        t = shape_make(2, (int64_t[]){N, 1});
    for (int i = 0; i < N; i++)
        x[i] = (uint16_t)dtype_bits(half, 1);
    struct graph *g = graph_new("chain");
    ref in = n_input(g, half, &s, "x");
    ref tiny = n_k(g, in, half == KL_F16 ? 0x1p-11 : 0x1p-8);
    graph_output(g, OUT_RETURN, n_sub(g, n_add(g, in, tiny), in), 0);
    result(g, x, half, 0, "(1 + tiny) - 1");
    for (uint32_t axes = 1; axes < 4; axes++) { /* down a column, along a row, both */
        g = graph_new("sum");
        in = n_input(g, half, &s, "x");
        graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_reshape(g, in, axes == 1 ? &t : &m), axes), 0);
        result(g, x, half, N, "sum of ones");
    }
    g = graph_new("dot");
    in = n_input(g, half, &s, "x");
    union attr d = {.dot = {.ncon = 1}};
    graph_output(g, OUT_RETURN, n_dot(g, in, in, &d), 0);
    result(g, x, half, N, "dot of ones");
    g = graph_new("iota");
    in = n_input(g, half, &s, "x");
    graph_output(g, OUT_RETURN, n_reduce(g, OP_reduce_max, n_add(g, n_iota(g, half, &s, 0), in), 1), 0);
    result(g, x, half, N, "largest index and 1"); /* 8191 rounds up to 8192, and 8192 + 1 back */
}

/* Gradients in a half type are those of f32 to within a few roundings. */
static ref loss_of(struct graph *g, ref x, ref w)
{
    union attr d = {.dot = {.con_a = 1, .ncon = 1}};
    ref y = n_tanh(g, n_dot(g, x, w, &d));
    return n_reduce(g, OP_sum, n_mul(g, n_exp(g, y), y), 3);
}

static void gradient(unsigned half)
{
    enum { M = 3, K = 5, N = 4 };
    uint16_t x[M * K], w[K * N];
    fill_random(&rng, half, x, M * K, false);
    fill_random(&rng, half, w, K * N, false);
    struct shape sx = shape_make(2, (int64_t[]){M, K}), sw = shape_make(2, (int64_t[]){K, N});
    struct graph *g = graph_new("gradient");
    ref a = n_input(g, half, &sx, "x"), b = n_input(g, half, &sw, "w"), wide_a = n_cast(g, a, KL_F32),
        wide_b = n_cast(g, b, KL_F32);
    ref loss = loss_of(g, a, b), wide = loss_of(g, wide_a, wide_b);
    graph_output(g, OUT_RETURN, n_grad(g, loss, b), 0);
    graph_output(g, OUT_RETURN, n_grad(g, wide, wide_b), 0);
    graph_output(g, OUT_RETURN, n_grad(g, wide, b), 0); /* through the cast: the same, rounded */
    struct values in = {.n = 2, .v = {x, w}}, out = {0};
    struct err e = {0};
    if (check(run_on(g, "cpu", true, &in, &(struct values){0}, NULL, &out, &e), "gradient: %s", e.msg)) {
        double max = 0, largest = 0, unit = half == KL_F16 ? 0x1p-11 : 0x1p-8;
        for (int i = 0; i < K * N; i++) {
            double want = element_value(KL_F32, out.v[1], i);
            largest = fmax(largest, fabs(want));
            max = fmax(max, fabs(element_value(half, out.v[0], i) - want));
            check(element_value(half, out.v[2], i) == dtype_value(half, dtype_bits(half, want)),
                  "gradient through a cast, %d", i);
        }
        check(largest > 0.1 && max < 24 * unit * largest, "gradient of %s is off by %g of %g", dtype_name(half), max,
              largest);
        values_free(&out);
    }
    graph_free(g);
}

int main(void)
{
    static const unsigned integers[] = {KL_I32, KL_U32, KL_I64, KL_U64};
    known_values();
    verifier();
    for (int i = 0; i < 2; i++) {
        every_tie(halves[i]);
        literals(halves[i]);
        kernel_roundings(halves[i]);
        for (int j = 0; j < 4; j++)
            kernel_integers(integers[j], halves[i]);
        meaning(halves[i]);
        gradient(halves[i]);
    }
    return finish();
}
