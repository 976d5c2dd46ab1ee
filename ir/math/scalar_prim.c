/* One primitive on the bits of one element, for the kernel interpreter: scalar_c.h by number instead of by type. */
#include "scalar_c.h"
#include "ir/loop/loop.h"

/* Operands as values of dtype t, and a result back to bits (bool: 0 or 1). */
#define X(t, i) from_bits_##t(x[i])
#define PUT(t, v) return *y = bits_of_##t(v), true
#define PUT_BOOL(v) return *y = (v), true

#define ANY_CASES(t)                                                      \
    case P_EQ: PUT_BOOL(p_eq_##t(X(t, 0), X(t, 1)));                            \
    case P_NE: PUT_BOOL(p_ne_##t(X(t, 0), X(t, 1)));                            \
    case P_LT: PUT_BOOL(p_lt_##t(X(t, 0), X(t, 1)));                            \
    case P_LE: PUT_BOOL(p_le_##t(X(t, 0), X(t, 1)));                            \
    case P_SELECT: PUT(t, p_select_##t(x[0] & 1, X(t, 1), X(t, 2)));

#define NUMBER_CASES(t)                                                   \
    case P_ADD: PUT(t, p_add_##t(X(t, 0), X(t, 1)));                            \
    case P_SUB: PUT(t, p_sub_##t(X(t, 0), X(t, 1)));                            \
    case P_MUL: PUT(t, p_mul_##t(X(t, 0), X(t, 1)));                            \
    case P_DIV: PUT(t, p_div_##t(X(t, 0), X(t, 1)));                            \
    case P_NEG: PUT(t, p_neg_##t(X(t, 0)));                                     \
    case P_ABS: PUT(t, p_abs_##t(X(t, 0)));                                     \
    case P_BITS: return *y = bits_of_##t(X(t, 0)), true;

#define LOGIC_CASES(t)                                                    \
    case P_AND: PUT(t, p_and_##t(X(t, 0), X(t, 1)));                            \
    case P_OR: PUT(t, p_or_##t(X(t, 0), X(t, 1)));                              \
    case P_XOR: PUT(t, p_xor_##t(X(t, 0), X(t, 1)));                            \
    case P_NOT: PUT(t, p_not_##t(X(t, 0)));

#define INT_CASES(t)                                                      \
    case P_SHL: PUT(t, p_shl_##t(X(t, 0), X(t, 1)));                            \
    case P_SHR: PUT(t, p_shr_##t(X(t, 0), X(t, 1)));

#define FLOAT_CASES(t)                                                    \
    case P_FMA: PUT(t, p_fma_##t(X(t, 0), X(t, 1), X(t, 2)));                   \
    case P_SQRT: PUT(t, p_sqrt_##t(X(t, 0)));                                   \
    case P_RINT: PUT(t, p_rint_##t(X(t, 0)));

#define INT_PRIMS(t, ...)                                                 \
    static bool prim_##t(unsigned p, const uint64_t *x, uint64_t *y)      \
    {                                                                     \
        switch (p) {                                                      \
        ANY_CASES(t) NUMBER_CASES(t) LOGIC_CASES(t) INT_CASES(t)          \
        default: return false;                                            \
        }                                                                 \
    }
#define FLOAT_PRIMS(t, ...)                                               \
    static bool prim_##t(unsigned p, const uint64_t *x, uint64_t *y)      \
    {                                                                     \
        switch (p) {                                                      \
        ANY_CASES(t) NUMBER_CASES(t) FLOAT_CASES(t)                       \
        default: return false;                                            \
        }                                                                 \
    }
EACH_INT(INT_PRIMS, 0)
EACH_F(FLOAT_PRIMS, 0)

/* <stdbool.h> makes bool a macro, which the argument of a nested macro cannot survive. */
#undef bool
static inline _Bool from_bits_bool(uint64_t b) { return b & 1; }
static inline uint64_t bits_of_bool(_Bool b) { return b; }

static _Bool prim_bool(unsigned p, const uint64_t *x, uint64_t *y)
{
    switch (p) {
    ANY_CASES(bool) LOGIC_CASES(bool)
    default: return false;
    }
}
#define bool _Bool

/* Nothing is computed on half floats but their conversion. */
static bool prim_half(unsigned p, const uint64_t *x, uint64_t *y)
{
    if (p == P_BITS) return *y = x[0] & 0xffff, true;
    if (p == P_SELECT) return *y = (x[0] & 1 ? x[1] : x[2]) & 0xffff, true;
    return false;
}

static bool (*const prims[KL_DTYPE_COUNT])(unsigned, const uint64_t *, uint64_t *) = {
#define DT(name, en, ...) [en] = prim_##name,
#define DTH(name, en, ...) [en] = prim_half,
#include "dtypes.def"
};

bool scalar_prim(unsigned prim, unsigned dtype, unsigned to, const uint64_t *x, uint64_t *y)
{
    *y = 0;
    if (dtype >= KL_DTYPE_COUNT || to >= KL_DTYPE_COUNT)
        return false;
    if (prim == P_DOT2) {
        *y = bits_of_f32(dot2_f32((uint32_t)x[0], (uint32_t)x[1], from_bits_f32(x[2])));
        return dtype == KL_U32;
    }
    if (prim == P_EXP2) {
        *y = bits_of_f32(exp2f(from_bits_f32(x[0])));
        return dtype == KL_F32;
    }
    if (prim == P_RECIP) {
        *y = bits_of_f32(1 / from_bits_f32(x[0]));
        return dtype == KL_F32;
    }
    return prim == P_CAST ? scalar_cast(y, to, x, dtype, 1) : prims[dtype](prim, x, y);
}
