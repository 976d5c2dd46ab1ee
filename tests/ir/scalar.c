/* The primitives at their edges, casts, op classes, and Threefry's published answers.  Everything else that
 * computes is compared with these by tests/ops/ops.c. */
#include "tests/support/harness.h"
#include "ir/loop/loop.h"
#include "ir/math/scalar_c.h"

static uint64_t f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void prim(enum prim p, unsigned dtype, uint64_t a, uint64_t b, uint64_t want)
{
    uint64_t got = 0;
    bool ok = scalar_prim(p, dtype, dtype, (const uint64_t[3]){ a, b, 0 }, &got);
    check(ok && got == want, "primitive %d of %s: %#" PRIx64 ", %#" PRIx64 " gives %#" PRIx64 ", not %#" PRIx64, (int)p,
          dtype_name(dtype), a, b, got, want);
}

static void integers(void)
{
    static const unsigned kind[2][4] = { { KL_U8, KL_U16, KL_U32, KL_U64 }, { KL_I8, KL_I16, KL_I32, KL_I64 } };
    for (unsigned w = 0; w < 4; w++) {
        unsigned u = kind[0][w], i = kind[1][w], width = 8u << w;
        uint64_t all = width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;
        uint64_t low = UINT64_C(1) << (width - 1), max = low - 1;
        prim(P_ADD, u, all, 1, 0);
        prim(P_ADD, i, max, 1, low);
        prim(P_SUB, u, 0, 1, all);
        prim(P_SUB, i, low, 1, max);
        prim(P_MUL, u, all, all, 1);
        prim(P_MUL, i, low, all, low);
        prim(P_DIV, u, 7, 0, 0);
        prim(P_DIV, i, 7, 0, 0);
        prim(P_DIV, u, all, all, 1);
        prim(P_DIV, u, 5, all, 0);
        prim(P_DIV, i, low, all, low);
        prim(P_DIV, i, 7, all, all - 6);
        prim(P_DIV, i, all - 6, 2, all - 2); /* -7 / 2 = -3 */
        prim(P_NEG, u, 1, 0, all);
        prim(P_NEG, i, low, 0, low);
        prim(P_ABS, u, all, 0, all);
        prim(P_ABS, i, all, 0, 1);
        prim(P_ABS, i, low, 0, low);
        prim(P_NOT, i, 0, 0, all);
        prim(P_SHL, u, 1, width - 1, low);
        prim(P_SHL, u, all, width + 1, all - 1);
        prim(P_SHL, i, 3, all, low); /* a count of -1 is width - 1 */
        prim(P_SHR, u, all, width - 1, 1);
        prim(P_SHR, i, low, width - 1, all);
        prim(P_SHR, i, low, width, low);
        prim(P_LT, u, 0, all, 1);
        prim(P_LT, i, 0, all, 0);
        prim(P_LE, i, low, max, 1);
    }
    prim(P_NOT, KL_BOOL, 1, 0, 0);
    prim(P_XOR, KL_BOOL, 1, 1, 0);
    prim(P_LT, KL_BOOL, 0, 1, 1);
}

static void floats(void)
{
    uint64_t nan32 = f32(NAN), nan64 = f64(NAN);
    prim(P_NEG, KL_F32, f32(0.0f), 0, f32(-0.0f));
    prim(P_NEG, KL_F64, f64(0.0), 0, f64(-0.0));
    prim(P_ABS, KL_F32, f32(-0.0f), 0, 0);
    prim(P_RINT, KL_F32, f32(2.5f), 0, f32(2.0f));
    prim(P_RINT, KL_F32, f32(-0.5f), 0, f32(-0.0f));
    prim(P_RINT, KL_F64, f64(3.5), 0, f64(4.0));
    prim(P_EXP2, KL_F32, f32(-3.0f), 0, f32(0.125f));
    prim(P_EXP2, KL_F32, f32(-INFINITY), 0, f32(0.0f));
    prim(P_RECIP, KL_F32, f32(3.0f), 0, f32(1.0f / 3.0f));
    prim(P_SQRT, KL_F32, f32(2.0f), 0, f32(0x1.6a09e6p0f));
    prim(P_SQRT, KL_F64, f64(-0.0), 0, f64(-0.0));
    prim(P_MUL, KL_F32, f32(0x1p-126f), f32(0.5f), f32(0x1p-127f)); /* subnormals are kept */
    prim(P_EQ, KL_F32, f32(0.0f), f32(-0.0f), 1);
    for (unsigned swap = 0; swap < 2; swap++) {
        uint64_t a = swap ? f32(1.0f) : nan32, b = swap ? nan32 : f32(1.0f);
        prim(P_EQ, KL_F32, a, b, 0);
        prim(P_NE, KL_F32, a, b, 1);
        prim(P_LT, KL_F32, a, b, 0);
        prim(P_LE, KL_F32, a, b, 0);
    }
    prim(P_NE, KL_F64, nan64, nan64, 1);
    uint64_t y = 0, x = f32(1.0f + 0x1p-12f), minus = f32(-(1.0f + 0x1p-11f));
    check(scalar_prim(P_FMA, KL_F32, KL_F32, (const uint64_t[3]){ x, x, minus }, &y) && y == f32(0x1p-24f),
          "fma rounds once");
    check(scalar_prim(P_SELECT, KL_F64, KL_F64, (const uint64_t[3]){ 0, 1, 2 }, &y) && y == 2, "select");
}

/* exp_nonpositive is exp where it may be used: at what is not above 0, and NaN. */
static void exp_downward(void)
{
    uint32_t wrong = 0;
    for (uint32_t bits = 0x80000000; bits >= 0x80000000; bits += 1021) {
        float x;
        memcpy(&x, &bits, sizeof x);
        wrong += x == x && f32(exp_f32(x)) != f32(exp_nonpositive_f32(x));
    }
    check(!wrong, "exp_nonpositive_f32 differs from exp_f32 at %u numbers", wrong);
    for (int i = 0; i < 1000000; i++) {
        double x = ldexp(-(1 + i * 0x1p-20), i % 80 - 68);
        wrong += f64(exp_f64(x)) != f64(exp_nonpositive_f64(x));
    }
    wrong += f64(exp_nonpositive_f64(-INFINITY)) != 0 || f64(exp_nonpositive_f64(0)) != f64(1) ||
        exp_nonpositive_f64(NAN) == exp_nonpositive_f64(NAN);
    check(!wrong, "exp_nonpositive_f64 differs from exp_f64 at %u numbers", wrong);
}

static void cast_one(unsigned from, uint64_t x, unsigned to, uint64_t want)
{
    uint64_t got = 0;
    bool ok = scalar_cast(&got, to, &x, from, 1);
    check(ok && got == want, "cast %#" PRIx64 " from %s to %s gives %#" PRIx64 ", not %#" PRIx64, x, dtype_name(from),
          dtype_name(to), got, want);
}

static void casts(void)
{
    cast_one(KL_F32, f32(-1.9f), KL_I8, 0xff);
    cast_one(KL_F32, f32(300.0f), KL_I8, 0x7f);
    cast_one(KL_F32, f32(-300.0f), KL_I8, 0x80);
    cast_one(KL_F32, f32(-0.9f), KL_U8, 0);
    cast_one(KL_F32, f32(-5.0f), KL_U64, 0);
    cast_one(KL_F32, f32(255.9f), KL_U8, 255);
    cast_one(KL_F32, f32(256.0f), KL_U8, 255);
    cast_one(KL_F32, f32(INFINITY), KL_U32, UINT32_MAX);
    cast_one(KL_F32, f32(NAN), KL_I32, 0);
    cast_one(KL_F32, f32(NAN), KL_U16, 0);
    cast_one(KL_F32, f32(NAN), KL_BOOL, 1);
    cast_one(KL_F32, f32(-0.0f), KL_BOOL, 0);
    cast_one(KL_F64, f64(0x1p63), KL_I64, INT64_MAX);
    cast_one(KL_F64, f64(-0x1p63), KL_I64, (uint64_t)INT64_MIN);
    cast_one(KL_F64, f64(-INFINITY), KL_I64, (uint64_t)INT64_MIN);
    cast_one(KL_F64, f64(0x1p64), KL_U64, UINT64_MAX);
    cast_one(KL_F64, f64(0x1p63), KL_U64, UINT64_C(1) << 63);
    cast_one(KL_F64, f64(-2147483649.0), KL_I32, 0x80000000u);
    cast_one(KL_F64, f64(1.0 + 0x1p-24), KL_F32, f32(1.0f)); /* ties to even */
    cast_one(KL_F64, f64(1e300), KL_F32, f32(INFINITY));
    cast_one(KL_U64, UINT64_MAX, KL_F64, f64(0x1p64));
    cast_one(KL_U64, (UINT64_C(1) << 63) + (UINT64_C(1) << 39) + 1, KL_F32, f32(0x1.000002p63f)); /* not through f64 */
    cast_one(KL_I64, (uint64_t)-16777217, KL_F32, f32(-16777216.0f));
    cast_one(KL_I32, 0x12345680u, KL_I8, 0x80);
    cast_one(KL_I8, 0x80, KL_I64, UINT64_MAX - 127);
    cast_one(KL_I8, 0xff, KL_U32, UINT32_MAX);
    cast_one(KL_U8, 0x80, KL_I16, 0x80);
    cast_one(KL_I32, 256, KL_BOOL, 1);
    cast_one(KL_BOOL, 1, KL_F64, f64(1.0));
    check(!scalar_cast(&(uint64_t){ 0 }, KL_DTYPE_COUNT, &(uint64_t){ 0 }, KL_F32, 1), "cast to an unknown dtype");
}

/* scalar_apply has a meaning exactly where the op's class allows the dtype. */
static void classes(void)
{
    static const char *kinds_of[256] = { ['A'] = "UIF", ['F'] = "F", ['L'] = "BUI", ['C'] = "BUIF",
                                           ['W'] = "BUIF", ['S'] = "",
                                           ['I'] = "UI", ['P'] = "F" };
    const uint64_t one[1] = { 0 };
    for (unsigned op = 1; op < OP_COUNT; op++)
        for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
            uint64_t out;
            bool want = strchr(kinds_of[opinfo[op].cls], dtype_kind(dtype)) != NULL;
            check(scalar_apply(op, dtype, &out, (const void *const[]){ one, one, one }, 1) == want, "%s of %s is %s",
                  opinfo[op].name, dtype_name(dtype), want ? "missing" : "not refused");
        }
    check(!scalar_apply(OP_COUNT, KL_F32, NULL, NULL, 0), "unknown op");
    check(!scalar_apply(OP_add, KL_DTYPE_COUNT, NULL, NULL, 0), "unknown dtype");
}

/* kat_vectors of Random123: key, counter, result, low word first. */
static void threefry(void)
{
    static const uint32_t answer[3][6] = {
        { 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x6b200159, 0x99ba4efe },
        { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x1cb996fc, 0xbb002be7 },
        { 0x13198a2e, 0x03707344, 0x243f6a88, 0x85a308d3, 0xc4923a9c, 0x483df7a0 },
    };
    for (unsigned i = 0; i < 3; i++) {
        const uint32_t *t = answer[i];
        uint64_t seed = t[0] | (uint64_t)t[1] << 32, index = t[2] | (uint64_t)t[3] << 32;
        check(scalar_threefry_u32(seed, index) == t[4], "threefry u32, answer %u", i);
        check(scalar_threefry_u64(seed, index) == (t[4] | (uint64_t)t[5] << 32), "threefry u64, answer %u", i);
    }
}

static void identities(void)
{
    check(fold_identity(FOLD_ADD, KL_F32) == 0 && fold_identity(FOLD_ADD, KL_I64) == 0, "identity of add");
    check(fold_identity(FOLD_MAX, KL_F32) == f32(-INFINITY) && fold_identity(FOLD_MAX, KL_F64) == f64(-INFINITY),
          "of max, floats");
    check(fold_identity(FOLD_MAX, KL_I8) == 0x80 && fold_identity(FOLD_MAX, KL_I64) == UINT64_C(1) << 63,
          "of max, signed");
    check(fold_identity(FOLD_MAX, KL_U16) == 0 && fold_identity(FOLD_MAX, KL_BOOL) == 0, "of max, unsigned and bool");
    check(fold_identity(FOLD_MIN, KL_F32) == f32(INFINITY) && fold_identity(FOLD_MIN, KL_F64) == f64(INFINITY) &&
              fold_identity(FOLD_MIN, KL_I8) == 0x7f && fold_identity(FOLD_MIN, KL_I64) == INT64_MAX &&
              fold_identity(FOLD_MIN, KL_U16) == 0xffff && fold_identity(FOLD_MIN, KL_U64) == UINT64_MAX &&
              fold_identity(FOLD_MIN, KL_BF16) == 0x7f80, "of min");
}

int main(void)
{
    integers();
    floats();
    exp_downward();
    casts();
    classes();
    threefry();
    identities();
    return finish();
}
