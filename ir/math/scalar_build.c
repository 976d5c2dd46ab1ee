/* Elementwise ops, Threefry and folds as loop IR: the op rows and math.inc once more, where every value is an
 * instruction and every primitive appends one.  scalar_c.h gives the same text its meaning as C. */
#include "ir/graph/interp.h"
#include "ir/loop/loop.h"
#include <math.h>
#include <string.h>

enum {
#define DT(name, en, ctype, utype, bytes, kind) D_##name = en,
#define DTH DT
#include "dtypes.def"
};

/* const_<dtype>: a constant from a C value, exact for 64-bit integers too. */
#define DT(...)
#define DTN(name, en, ctype, utype, bytes, kind)                                       \
    __attribute__((unused)) static val const_##name(struct kernel *k, ctype v)         \
    {                                                                                  \
        utype bits;                                                                    \
        memcpy(&bits, &v, sizeof bits);                                                \
        return k_bits(k, en, bits);                                                    \
    }
#define DTF DTN
#include "dtypes.def"

/* Operands come as an array because compilers fill one in order, while they evaluate arguments in an order of
 * their own: the instructions of a kernel must not depend on who compiled Kiln. */
static val build_prim(struct kernel *k, enum prim p, const val operand[3])
{
    return k_prim(k, p, operand[0], operand[1], operand[2]);
}
#define PRIM1(p, a) build_prim(k, p, (const val[3]){ a, 0, 0 })
#define PRIM2(p, a, b) build_prim(k, p, (const val[3]){ a, b, 0 })
#define PRIM3(p, a, b, c) build_prim(k, p, (const val[3]){ a, b, c })

#define ADD(a, b) PRIM2(P_ADD, a, b)
#define SUB(a, b) PRIM2(P_SUB, a, b)
#define MUL(a, b) PRIM2(P_MUL, a, b)
#define DIV(a, b) PRIM2(P_DIV, a, b)
#define NEG(a) PRIM1(P_NEG, a)
#define FMA(a, b, c) PRIM3(P_FMA, a, b, c)
#define SQRT(a) PRIM1(P_SQRT, a)
#define RINT(a) PRIM1(P_RINT, a)
#define ABS(a) PRIM1(P_ABS, a)
#define AND(a, b) PRIM2(P_AND, a, b)
#define OR(a, b) PRIM2(P_OR, a, b)
#define XOR(a, b) PRIM2(P_XOR, a, b)
#define NOT(a) PRIM1(P_NOT, a)
#define SHL(a, b) PRIM2(P_SHL, a, b)
#define SHR(a, b) PRIM2(P_SHR, a, b)
#define EQ(a, b) PRIM2(P_EQ, a, b)
#define NE(a, b) PRIM2(P_NE, a, b)
#define LT(a, b) PRIM2(P_LT, a, b)
#define LE(a, b) PRIM2(P_LE, a, b)
#define SELECT(c, a, b) PRIM3(P_SELECT, c, a, b)
#define CAST(t, a) k_cast(k, a, D_##t)
#define BITS(t, a) k_inst(k, L_OP(P_BITS), D_##t, a, 0, 0, 0)
#define K(t, number) const_##t(k, (number))
#define K_LIKE(a, number) k_const(k, val_dtype(k, a), (number))
#define BY_FLOAT(name, a) (val_dtype(k, a) == KL_F32 ? name##_f32 : name##_f64)(k, a)
#define BY_FLOAT2(name, a, b) (val_dtype(k, a) == KL_F32 ? name##_f32 : name##_f64)(k, a, b)

#define CALL(name, ...) name(k, __VA_ARGS__)
#define V(t) val
#define FN1(t, name, x) static val name(struct kernel *k, val x)
#define FN2(r, t, name, x, y) static val name(struct kernel *k, val x, val y)
#include "math.inc"

/* ---- conversions of half floats: kernels cast them from and to f32 only ----
 * Rounding twice is harmless if the first rounding is to odd: an inexact value becomes the adjacent number whose last
 * bit is set, which the second rounding takes neither for an exact number nor for a tie. */

/* An f64 to an f32 that way. */
static val odd_f32(struct kernel *k, val x)
{
    val y = CAST(f32, x);
    val back = CAST(f64, y);
    val magnitude = ABS(x);
    val past = LT(magnitude, ABS(back)); /* y lies farther from zero than x */
    val bits = SUB(BITS(u32, y), CAST(u32, past));
    val odd = OR(bits, K(u32, 1));
    val exact = EQ(x, back);
    return SELECT(exact, y, BITS(f32, odd));
}

/* A 64-bit integer to an f64 that way, as half_u64 of half.h. */
static val odd_f64(struct kernel *k, val x)
{
    unsigned t = val_dtype(k, x);
    val low = k_bits(k, t, 0x7ff);
    val carry = ADD(AND(x, low), low);
    val mark = OR(x, carry);
    val marked = AND(mark, k_bits(k, t, ~UINT64_C(0x7ff)));
    val magnitude = ABS(x);
    val small = LT(magnitude, k_bits(k, t, UINT64_C(1) << 53));
    return CAST(f64, SELECT(small, x, marked));
}

/* An f32 that rounds to the same half as a, of any dtype.  An integer of up to 16 bits is exact in f32; any
 * integer that is not exact there is infinite as f16. */
static val f32_for_half(struct kernel *k, val a, unsigned half)
{
    unsigned t = val_dtype(k, a);
    if (t == KL_F64)
        return odd_f32(k, a);
    if (dtype_is_float(t) || dtype_size(t) < 4 || half == KL_F16)
        return CAST(f32, a);
    return odd_f32(k, dtype_size(t) == 8 ? odd_f64(k, a) : CAST(f64, a));
}

/* ---- bit fields ---- */

/* An integer of 8 or 16 bits that is computed from bits from .. from + count - 1 of a u32 `word`. */
struct bit_field {
    val word;
    unsigned from, count;
    enum { FIELD_UNSIGNED, FIELD_FLIPPED, FIELD_SIGNED } form; /* FLIPPED: unsigned, the highest bit inverted */
};

/* Is v computed from constants alone, by at most `depth` primitives of one or two operands?  *bits: its value. */
static bool constant_bits(const struct kernel *k, val v, int depth, uint64_t *bits)
{
    const struct linst *i = &k->inst[v];
    uint64_t x[3] = {0};
    *bits = i->imm;
    if (i->op == L_CONST || i->op < L_PRIM || !depth)
        return i->op == L_CONST;
    return !i->c && constant_bits(k, i->a, depth - 1, &x[0]) && (!i->b || constant_bits(k, i->b, depth - 1, &x[1])) &&
           scalar_prim((enum prim)(i->op - L_PRIM), val_dtype(k, i->a), i->dtype, x, bits);
}

/* Applies primitive p, whose second operand is the constant c, to an integer of `width` bits.  false: the result has
 * none of the forms. */
static bool field_apply(struct bit_field *f, enum prim p, uint64_t c, unsigned width)
{
    uint64_t high = UINT64_C(1) << (f->count - 1);
    switch (p) {
    case P_SHR:
        c %= width;
        f->from += (unsigned)c;
        f->count -= c < f->count ? (unsigned)c : f->count;
        return f->form == FIELD_UNSIGNED && f->count;
    case P_AND:
        while (f->count && c >> (f->count - 1) == 0)
            f->count--;
        return f->form == FIELD_UNSIGNED && f->count && (c + 1) % (UINT64_C(1) << f->count) == 0;
    case P_XOR:
        f->form = FIELD_FLIPPED;
        return c == high;
    case P_SUB:
        f->form = FIELD_SIGNED;
        return c == high;
    default:
        return false;
    }
}

/* Finds the field of which v is computed, by at most `depth` primitives. */
static bool find_field(const struct kernel *k, val v, int depth, struct bit_field *f)
{
    const struct linst *i = &k->inst[v];
    enum prim p = (enum prim)(i->op - L_PRIM);
    unsigned t = i->dtype, from = val_dtype(k, i->a), width = 8 * (unsigned)dtype_size(t);
    uint64_t c;
    if (t == KL_U32 && (i->op < L_PRIM || p != P_SHR)) {
        *f = (struct bit_field){.word = v, .count = width};
        return true;
    }
    if (i->op < L_PRIM || !depth || !find_field(k, i->a, depth - 1, f))
        return false;
    if (p == P_CAST || p == P_BITS) { /* to fewer bits; to the signed integer of as many, where it is the same value */
        if (p == P_CAST && from == KL_U32 && (t == KL_U8 || t == KL_U16)) {
            f->count = f->count < width ? f->count : width;
            return f->form == FIELD_UNSIGNED;
        }
        return p == P_BITS && f->form != FIELD_SIGNED && f->count < width && dtype_kind(t) == 'I' &&
               dtype_kind(from) == 'U';
    }
    bool is_next = p == P_SUB ? f->form == FIELD_FLIPPED && dtype_kind(t) == 'I' : f->form == FIELD_UNSIGNED;
    return is_next && constant_bits(k, i->b, 4, &c) && field_apply(f, p, c, width);
}

/* An i32 that equals a, an i8 or i16 made by the sign extension ((x & 15) ^ 8) - 8, or of another number of bits, of a
 * part of a u32; else a.  Two shifts of 32 bits replace arithmetic of 8 bits, from which values would be widened. */
static val extended_field(struct kernel *k, val a)
{
    enum { MAX_DEPTH = 8 };
    struct bit_field f;
    if (!find_field(k, a, MAX_DEPTH, &f) || f.form != FIELD_SIGNED)
        return a;
    unsigned left = 32 - f.from - f.count;
    val x = k_inst(k, L_OP(P_BITS), KL_I32, f.word, 0, 0, 0);
    x = left ? k_prim(k, P_SHL, x, k_bits(k, KL_I32, left), 0) : x;
    return k_prim(k, P_SHR, x, k_bits(k, KL_I32, 32 - f.count), 0);
}

val k_cast(struct kernel *k, val a, unsigned dtype)
{
    unsigned t = val_dtype(k, a);
    if ((t == KL_I8 || t == KL_I16) && dtype_size(dtype) >= 4)
        a = extended_field(k, a);
    if (dtype_is_half(dtype) && val_dtype(k, a) != dtype)
        a = f32_for_half(k, a, dtype);
    else if (dtype_is_half(val_dtype(k, a)) && dtype != KL_F32 && val_dtype(k, a) != dtype)
        a = k_cast(k, a, KL_F32);
    return val_dtype(k, a) == dtype ? a : k_inst(k, L_OP(P_CAST), dtype, a, 0, 0, 0);
}

static val row_value(struct kernel *k, unsigned op, const val *in)
{
    switch (op) {
#define EW1(name, types, value, ...)                                                   \
    case OP_##name: {                                                                  \
        const val a = in[0];                                                           \
        return value;                                                                  \
    }
#define EW2(name, types, value, ...)                                                   \
    case OP_##name: {                                                                  \
        const val a = in[0], b = in[1];                                                \
        return value;                                                                  \
    }
#define EW3(name, types, value, ...)                                                   \
    case OP_##name: {                                                                  \
        const val a = in[0], b = in[1], c = in[2];                                     \
        return value;                                                                  \
    }
#include "ir/ops/ops.def"
    default:
        err_set(&k->err, KL_ERR_INTERNAL, "op %u is not elementwise", op);
        return 0;
    }
}

/* The negative and the absolute value of a half float: the sign bit alone changes, of a NaN, too. */
static val half_sign(struct kernel *k, bool flip, val a)
{
    const val bits = BITS(u16, a);
    return k_inst(k, L_OP(P_BITS), val_dtype(k, a), flip ? XOR(bits, K(u16, 0x8000)) : AND(bits, K(u16, 0x7fff)), 0, 0,
                  0);
}

val k_op(struct kernel *k, unsigned op, const val *in)
{
    if ((op == OP_neg || op == OP_abs) && dtype_is_half(val_dtype(k, in[0])))
        return half_sign(k, op == OP_neg, in[0]);
    val wide[MAX_OPERANDS] = {0};
    unsigned half = KL_DTYPE_COUNT;
    for (unsigned i = 0; i < opinfo[op].nin; i++) {
        unsigned t = val_dtype(k, in[i]);
        if (dtype_is_half(t))
            half = t;
        wide[i] = k_cast(k, in[i], dtype_compute(t));
    }
    val y = row_value(k, op, wide);
    return half != KL_DTYPE_COUNT && !op_gives_bool(op) ? k_cast(k, y, half) : y;
}

val k_exp_nonpositive(struct kernel *k, val a)
{
    unsigned t = val_dtype(k, a);
    val x = k_cast(k, a, dtype_compute(t)), y = EXP_NONPOSITIVE(x);
    return k_cast(k, y, t);
}

val k_threefry(struct kernel *k, unsigned dtype, val seed, val index)
{
    if (val_dtype(k, seed) != KL_U64) seed = k_cast(k, seed, KL_U64);
    if (val_dtype(k, index) != KL_U64) index = k_cast(k, index, KL_U64);
    return dtype == KL_U32 ? threefry_u32(k, seed, index) : threefry_u64(k, seed, index);
}

enum op fold_op(enum fold f)
{
    return f == FOLD_ADD ? OP_add : f == FOLD_MUL ? OP_mul : f == FOLD_MAX ? OP_max : OP_min;
}

val k_fold_step(struct kernel *k, enum fold f, val acc, val x)
{
    return k_op(k, fold_op(f), (const val[]){ acc, x });
}

uint64_t fold_identity(enum fold f, unsigned dtype)
{
    if (f == FOLD_ADD) return 0;
    if (f == FOLD_MUL) return dtype_bits(dtype, 1);
    bool highest = f == FOLD_MIN;
    switch (dtype) {
#define LOWEST_B(utype, bytes) 0
#define LOWEST_U(utype, bytes) 0
#define LOWEST_I(utype, bytes) (utype)(UINT64_C(1) << (8 * (bytes) - 1))
#define LOWEST_F(utype, bytes) -INFINITY
#define HIGHEST_B(utype, bytes) 1
#define HIGHEST_U(utype, bytes) (utype)~UINT64_C(0)
#define HIGHEST_I(utype, bytes) (utype)~(UINT64_C(1) << (8 * (bytes) - 1))
#define HIGHEST_F(utype, bytes) INFINITY
#define DT(name, en, ctype, utype, bytes, kind)                                                        \
    case en: {                                                                                         \
        const ctype end[] = {(ctype)LOWEST_##kind(utype, bytes), (ctype)HIGHEST_##kind(utype, bytes)}; \
        utype bits;                                                                                    \
        memcpy(&bits, &end[highest], sizeof bits);                                                     \
        return bits;                                                                                   \
    }
#define DTH(name, en, ctype, utype, bytes, kind) case en: return dtype_bits(en, highest ? INFINITY : -INFINITY);
#include "dtypes.def"
    default:
        return 0;
    }
}
