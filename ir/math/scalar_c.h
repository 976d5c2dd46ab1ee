/* The primitives of prims.def and the functions of math.inc as C over plain values: the meaning that the
 * interpreters run and that every code generator must reproduce.  A primitive selects by its operand's C type
 * (which nothing here promotes), so an op row means the same for every dtype it allows.
 *
 * Needs IEEE arithmetic without contraction: build with -ffp-contract=off. */
#ifndef KILN_SCALAR_C_H
#define KILN_SCALAR_C_H
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "half.h"
#include "ir/ir.h"

#if FLT_EVAL_METHOD != 0
#error "Kiln needs floating-point arithmetic in the operands' own precision"
#endif

/* c_<name>: the C type of a dtype; D_<name>: its number. */
#define DT(name, en, ctype, utype, bytes, kind) typedef ctype c_##name;
#define DTH DT
#include "dtypes.def"
enum {
#define DT(name, en, ctype, utype, bytes, kind) D_##name = en,
#define DTH DT
#include "dtypes.def"
};

/* dtypes.def once more as lists that can be used inside other macros: EACH_x(X, ...) is X(dtype, ...) for each
 * dtype that an op of class x allows and C computes in.  A dtype missing here is an error just below. */
#define EACH_INT(X, ...)                                                                                        \
    X(u8, __VA_ARGS__) X(u16, __VA_ARGS__) X(u32, __VA_ARGS__) X(u64, __VA_ARGS__)                              \
    X(i8, __VA_ARGS__) X(i16, __VA_ARGS__) X(i32, __VA_ARGS__) X(i64, __VA_ARGS__)
#define EACH_F(X, ...) X(f32, __VA_ARGS__) X(f64, __VA_ARGS__)
#define EACH_A(X, ...) EACH_INT(X, __VA_ARGS__) EACH_F(X, __VA_ARGS__)
#define EACH_L(X, ...) X(bool, __VA_ARGS__) EACH_INT(X, __VA_ARGS__)
#define EACH_C(X, ...) X(bool, __VA_ARGS__) EACH_A(X, __VA_ARGS__)
#define EACH_W EACH_C
#define EACH_HALF(X, ...) X(f16, __VA_ARGS__) X(bf16, __VA_ARGS__)
#define EACH_I EACH_INT
#define EACH_P EACH_F
#define COUNT(...) +1
_Static_assert(EACH_C(COUNT, 0) + EACH_HALF(COUNT, 0) == KL_DTYPE_COUNT, "the lists have every dtype of dtypes.def");
#undef COUNT

/* ---- p_<primitive>_<dtype>: integers ----
 * 1u and 0u keep narrow operands out of signed int, where they could overflow. */
#define DIV_U(ctype, utype, a, b) (b) == 0 ? 0 : (ctype)((a) / (b))
#define DIV_I(ctype, utype, a, b) (b) == 0 ? 0 : (b) == -1 ? (ctype)(utype)(0u - (utype)(a)) : (ctype)((a) / (b))
#define ABS_U(ctype, utype, a) (a)
#define ABS_I(ctype, utype, a) (a) < 0 ? (ctype)(utype)(0u - (utype)(a)) : (a)
#define DT(...)
#define DTF(...)
#define DTN(name, en, ctype, utype, bytes, kind)                                                                \
    static inline ctype p_add_##name(ctype a, ctype b) { return (ctype)(utype)(0u + (utype)a + (utype)b); }     \
    static inline ctype p_sub_##name(ctype a, ctype b) { return (ctype)(utype)(0u + (utype)a - (utype)b); }     \
    static inline ctype p_mul_##name(ctype a, ctype b) { return (ctype)(utype)(1u * (utype)a * (utype)b); }     \
    static inline ctype p_div_##name(ctype a, ctype b) { return DIV_##kind(ctype, utype, a, b); }               \
    static inline ctype p_neg_##name(ctype a) { return (ctype)(utype)(0u - (utype)a); }                         \
    static inline ctype p_abs_##name(ctype a) { return ABS_##kind(ctype, utype, a); }                           \
    static inline ctype p_not_##name(ctype a) { return (ctype)~a; }                                             \
    static inline ctype p_shl_##name(ctype a, ctype b)                                                          \
    {                                                                                                           \
        return (ctype)(utype)(1u * (utype)a << ((utype)b & (8 * bytes - 1)));                                   \
    }                                                                                                           \
    static inline ctype p_shr_##name(ctype a, ctype b) { return (ctype)(a >> ((utype)b & (8 * bytes - 1))); }
#include "dtypes.def"
#undef DIV_U
#undef DIV_I
#undef ABS_U
#undef ABS_I

/* ---- floats: the compiler's builtins are the IEEE operations ---- */
#define BUILTIN_f32(op) __builtin_##op##f
#define BUILTIN_f64(op) __builtin_##op
#define DT(...)
#define DTN(...)
#define DTF(name, en, ctype, utype, bytes, kind)                                                                \
    static inline ctype p_add_##name(ctype a, ctype b) { return a + b; }                                        \
    static inline ctype p_sub_##name(ctype a, ctype b) { return a - b; }                                        \
    static inline ctype p_mul_##name(ctype a, ctype b) { return a * b; }                                        \
    static inline ctype p_div_##name(ctype a, ctype b) { return a / b; }                                        \
    static inline ctype p_neg_##name(ctype a) { return -a; }                                                    \
    static inline ctype p_fma_##name(ctype a, ctype b, ctype c) { return BUILTIN_##name(fma)(a, b, c); }        \
    static inline ctype p_sqrt_##name(ctype a) { return BUILTIN_##name(sqrt)(a); }                              \
    static inline ctype p_rint_##name(ctype a) { return BUILTIN_##name(rint)(a); }                              \
    static inline ctype p_abs_##name(ctype a) { return BUILTIN_##name(fabs)(a); }
#include "dtypes.def"
#undef BUILTIN_f32
#undef BUILTIN_f64

/* ---- every dtype ---- */
static inline bool p_not_bool(bool a) { return !a; }
#define DT(name, en, ctype, utype, bytes, kind)                                                                 \
    static inline bool p_eq_##name(ctype a, ctype b) { return a == b; }                                         \
    static inline bool p_ne_##name(ctype a, ctype b) { return a != b; }                                         \
    static inline bool p_lt_##name(ctype a, ctype b) { return a < b; }                                          \
    static inline bool p_le_##name(ctype a, ctype b) { return a <= b; }                                         \
    static inline ctype p_select_##name(bool c, ctype a, ctype b) { return c ? a : b; }
#include "dtypes.def"
#define DTF(...)
#define DT(name, en, ctype, utype, bytes, kind)                                                                 \
    static inline ctype p_and_##name(ctype a, ctype b) { return (ctype)(a & b); }                               \
    static inline ctype p_or_##name(ctype a, ctype b) { return (ctype)(a | b); }                                \
    static inline ctype p_xor_##name(ctype a, ctype b) { return (ctype)(a ^ b); }
#include "dtypes.def"

/* ---- CAST: to_<dtype>_<f, u or i> from the widest float, unsigned and signed type, which hold every other ---- */
#define LIMIT(bytes) ((double)(UINT64_C(1) << (8 * (bytes) - 1))) /* 2^(width - 1), exact */
#define FROM_FLOAT_B(ctype, utype, bytes, a) return a != 0;
#define FROM_FLOAT_F(ctype, utype, bytes, a) return (ctype)a;
#define FROM_FLOAT_U(ctype, utype, bytes, a)                                                                    \
    if (!(a > 0)) return 0;                                                                                     \
    return a < 2 * LIMIT(bytes) ? (ctype)a : (ctype)~(utype)0;
#define FROM_FLOAT_I(ctype, utype, bytes, a)                                                                    \
    if (a != a) return 0;                                                                                       \
    if (a < -LIMIT(bytes)) return (ctype)(utype)(UINT64_C(1) << (8 * bytes - 1));                               \
    return a < LIMIT(bytes) ? (ctype)a : (ctype)((utype)~(utype)0 >> 1);
#define DT(name, en, ctype, utype, bytes, kind)                                                                 \
    static inline ctype to_##name##_f(double a) { FROM_FLOAT_##kind(ctype, utype, bytes, a) }                   \
    static inline ctype to_##name##_u(uint64_t a) { return (ctype)a; }                                          \
    static inline ctype to_##name##_i(int64_t a) { return (ctype)a; }
#define DTH(name, en, ctype, utype, bytes, kind)                                                                \
    static inline ctype to_##name##_f(double a) { return name##_of(a); }                                        \
    static inline ctype to_##name##_u(uint64_t a) { return name##_of(half_u64(a)); }                            \
    static inline ctype to_##name##_i(int64_t a) { return name##_of(half_i64(a)); }
#include "dtypes.def"
#undef LIMIT
#undef FROM_FLOAT_B
#undef FROM_FLOAT_F
#undef FROM_FLOAT_U
#undef FROM_FLOAT_I

/* ---- BITS: a number's bits in the low end of a u64, and back ---- */
#define DTN(name, en, ctype, utype, bytes, kind)                                                                \
    static inline uint64_t bits_of_##name(ctype a)                                                              \
    {                                                                                                           \
        utype u;                                                                                                \
        memcpy(&u, &a, sizeof u);                                                                               \
        return u;                                                                                               \
    }                                                                                                           \
    static inline ctype from_bits_##name(uint64_t bits)                                                         \
    {                                                                                                           \
        utype u = (utype)bits;                                                                                  \
        ctype a;                                                                                                \
        memcpy(&a, &u, sizeof a);                                                                               \
        return a;                                                                                               \
    }
#define DTF DTN
#define DT(...)
#include "dtypes.def"

/* ---- selection by type: BY(class, prefix, a) names prefix_<dtype of a> ---- */
#define ASSOCIATE(dt, prefix) c_##dt: prefix##_##dt,
#define BY(cls, prefix, a) _Generic((a), EACH_##cls(ASSOCIATE, prefix) void *: 0)
#define BY_FLOAT(name, a) BY(F, name, a)(a)
#define BY_FLOAT2(name, a, b) BY(F, name, a)(a, b)

#define ADD(a, b) BY(A, p_add, a)(a, b)
#define SUB(a, b) BY(A, p_sub, a)(a, b)
#define MUL(a, b) BY(A, p_mul, a)(a, b)
#define DIV(a, b) BY(A, p_div, a)(a, b)
#define NEG(a) BY(A, p_neg, a)(a)
#define FMA(a, b, c) BY(F, p_fma, a)(a, b, c)
#define SQRT(a) BY(F, p_sqrt, a)(a)
#define RINT(a) BY(F, p_rint, a)(a)
#define ABS(a) BY(A, p_abs, a)(a)
#define AND(a, b) BY(L, p_and, a)(a, b)
#define OR(a, b) BY(L, p_or, a)(a, b)
#define XOR(a, b) BY(L, p_xor, a)(a, b)
#define NOT(a) BY(L, p_not, a)(a)
#define SHL(a, b) BY(INT, p_shl, a)(a, b)
#define SHR(a, b) BY(INT, p_shr, a)(a, b)
#define EQ(a, b) BY(C, p_eq, a)(a, b)
#define NE(a, b) BY(C, p_ne, a)(a, b)
#define LT(a, b) BY(C, p_lt, a)(a, b)
#define LE(a, b) BY(C, p_le, a)(a, b)
#define SELECT(c, a, b) BY(C, p_select, a)(c, a, b)
#define CONVERT(to, a) _Generic((a), float: to##_f, double: to##_f, uint64_t: to##_u, default: to##_i)(a)
#define CAST(t, a) CONVERT(to_##t, a)
#define BITS(t, a) from_bits_##t(BY(A, bits_of, a)(a))
#define K(t, number) ((c_##t)(number))
#define K_LIKE(a, number) ((__typeof__(a))(number))

/* ---- math.inc ---- */
#define CALL(name, ...) name(__VA_ARGS__)
#define V(t) c_##t
#define FN1(t, name, x) static inline c_##t name(c_##t x)
#define FN2(r, t, name, x, y) static inline c_##r name(c_##t x, c_##t y)
#include "math.inc"

#endif
