/* Elementwise ops, casts and random bits on plain arrays: for every op row and every dtype its class allows, a
 * loop around the row's expression.  The interpreters and constant folding stand on these. */
#include "scalar_c.h"

/* The result's type, given the operands', and the first operand's. */
#define RESULT_A(t) t
#define RESULT_F(t) t
#define RESULT_L(t) t
#define RESULT_C(t) c_bool
#define RESULT_W(t) t
#define RESULT_I(t) t
#define RESULT_P(t) c_bool
#define FIRST_A(t) t
#define FIRST_F(t) t
#define FIRST_L(t) t
#define FIRST_C(t) t
#define FIRST_W(t) c_bool

typedef void loop_fn(void *out, const void *const *in, int64_t n);

#define LOOP1(dt, name, cls, value)                                          \
    static void name##_loop_##dt(void *out, const void *const *in, int64_t n)\
    {                                                                        \
        const c_##dt *in_a = in[0];                                          \
        RESULT_##cls(c_##dt) *y = out;                                       \
        for (int64_t i = 0; i < n; i++) {                                    \
            const c_##dt a = in_a[i];                                        \
            y[i] = value;                                                    \
        }                                                                    \
    }
#define LOOP2(dt, name, cls, value)                                          \
    static void name##_loop_##dt(void *out, const void *const *in, int64_t n)\
    {                                                                        \
        const c_##dt *in_a = in[0], *in_b = in[1];                           \
        RESULT_##cls(c_##dt) *y = out;                                       \
        for (int64_t i = 0; i < n; i++) {                                    \
            const c_##dt a = in_a[i], b = in_b[i];                           \
            y[i] = value;                                                    \
        }                                                                    \
    }
#define LOOP3(dt, name, cls, value)                                          \
    static void name##_loop_##dt(void *out, const void *const *in, int64_t n)\
    {                                                                        \
        const FIRST_##cls(c_##dt) *in_a = in[0];                             \
        const c_##dt *in_b = in[1], *in_c = in[2];                           \
        RESULT_##cls(c_##dt) *y = out;                                       \
        for (int64_t i = 0; i < n; i++) {                                    \
            const FIRST_##cls(c_##dt) a = in_a[i];                           \
            const c_##dt b = in_b[i], c = in_c[i];                           \
            y[i] = value;                                                    \
        }                                                                    \
    }
#define EW1(name, cls, value, ...) EACH_##cls(LOOP1, name, cls, value)
#define EW2(name, cls, value, ...) EACH_##cls(LOOP2, name, cls, value)
#define EW3(name, cls, value, ...) EACH_##cls(LOOP3, name, cls, value)
#include "ir/ops/ops.def"

static loop_fn *const loops[OP_COUNT][KL_DTYPE_COUNT] = {
#define ENTRY(dt, name) [OP_##name][D_##dt] = name##_loop_##dt,
#define EW1(name, cls, ...) EACH_##cls(ENTRY, name)
#define EW2(name, cls, ...) EACH_##cls(ENTRY, name)
#define EW3(name, cls, ...) EACH_##cls(ENTRY, name)
#include "ir/ops/ops.def"
};

/* The negative and the absolute value of half floats: the sign bit alone changes, of a NaN, too. */
static void apply_half_sign(bool flip, uint16_t *out, const uint16_t *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = flip ? in[i] ^ 0x8000 : in[i] & 0x7fff;
}

/* f16 and bf16: the row of f32 on widened operands, a block at a time, and its result rounded. */
static void apply_half(unsigned op, unsigned dtype, char *out, const void *const *in, int64_t n)
{
    enum { BLOCK = 256 };
    const unsigned cls = opinfo[op].cls, result = op_gives_bool(op) ? (unsigned)KL_BOOL : dtype;
    float wide[MAX_OPERANDS][BLOCK], y[BLOCK];
    const void *x[MAX_OPERANDS];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t len = n - i < BLOCK ? n - i : BLOCK;
        for (unsigned o = 0; o < opinfo[op].nin; o++) {
            const bool plain = cls == CLASS_WHERE && o == 0;
            const char *from = (const char *)in[o] + i * (plain ? 1 : 2);
            if (!plain) scalar_cast(wide[o], KL_F32, from, dtype, len);
            x[o] = plain ? (const void *)from : wide[o];
        }
        char *to = out + i * (int64_t)dtype_size(result);
        loops[op][KL_F32](result == KL_BOOL ? (void *)to : y, x, len);
        if (result != KL_BOOL) scalar_cast(to, dtype, y, KL_F32, len);
    }
}

bool scalar_apply(unsigned op, unsigned dtype, void *out, const void *const *in, int64_t n)
{
    if (op >= OP_COUNT || dtype >= KL_DTYPE_COUNT || !loops[op][dtype_compute(dtype)]) return false;
    if (dtype_is_half(dtype) && (op == OP_neg || op == OP_abs)) apply_half_sign(op == OP_neg, out, in[0], n);
    else if (dtype_is_half(dtype)) apply_half(op, dtype, out, in, n);
    else loops[op][dtype](out, in, n);
    return true;
}

typedef void cast_fn(void *out, const void *in, int64_t n);

#define CAST_LOOP(dt, to)                                                    \
    static void to##_from_##dt(void *out, const void *in, int64_t n)         \
    {                                                                        \
        const c_##dt *x = in;                                                \
        __typeof__(to##_i(0)) *y = out;                                      \
        for (int64_t i = 0; i < n; i++) y[i] = CONVERT(to, x[i]);            \
    }
#define CAST_HALF_LOOP(dt, to)                                               \
    static void to##_from_##dt(void *out, const void *in, int64_t n)         \
    {                                                                        \
        const c_##dt *x = in;                                                \
        __typeof__(to##_i(0)) *y = out;                                      \
        for (int64_t i = 0; i < n; i++) y[i] = to##_f(dt##_value(x[i]));     \
    }
#define DT(name, ...) EACH_C(CAST_LOOP, to_##name) EACH_HALF(CAST_HALF_LOOP, to_##name)
#define DTH DT
#include "dtypes.def"

static cast_fn *const casts[KL_DTYPE_COUNT][KL_DTYPE_COUNT] = { /* [to][from] */
#define CAST_ENTRY(dt, to) [D_##dt] = to##_from_##dt,
#define DT(name, en, ...) [en] = { EACH_C(CAST_ENTRY, to_##name) EACH_HALF(CAST_ENTRY, to_##name) },
#define DTH DT
#include "dtypes.def"
};

bool scalar_cast(void *out, unsigned to, const void *in, unsigned from, int64_t n)
{
    if (to >= KL_DTYPE_COUNT || from >= KL_DTYPE_COUNT) return false;
    casts[to][from](out, in, n);
    return true;
}

uint32_t scalar_threefry_u32(uint64_t seed, uint64_t index) { return threefry_u32(seed, index); }
uint64_t scalar_threefry_u64(uint64_t seed, uint64_t index) { return threefry_u64(seed, index); }
