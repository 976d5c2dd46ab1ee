/* The primitives of prims.def as LLVM instructions, with exactly their meaning there: nothing undefined
 * (guarded division, masked shifts, saturating casts), no fast-math flag, no contraction. */
#include "emit.h"

static LLVMTypeRef type_like_shape(LLVMTypeRef scalar, LLVMValueRef shape)
{
    LLVMTypeRef t = LLVMTypeOf(shape);
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMVectorType(scalar, LLVMGetVectorSize(t)) : scalar;
}

static LLVMValueRef prim_unary_intrinsic(struct emitter *m, const char *name, LLVMValueRef a)
{
    LLVMTypeRef t = LLVMTypeOf(a);
    return intrinsic(m, name, &t, 1, &a, 1);
}

/* x/0 is 0 and INT_MIN/-1 is INT_MIN; the division instruction only gets safe divisors. */
static LLVMValueRef prim_safe_divide(struct emitter *m, bool is_signed, LLVMValueRef a, LLVMValueRef b)
{
    LLVMTypeRef t = LLVMTypeOf(a);
    LLVMValueRef zero = const_int(t, 0), one = const_int(t, 1);
    LLVMValueRef is0 = LLVMBuildICmp(m->b, LLVMIntEQ, b, zero, "");
    if (!is_signed)
        return LLVMBuildSelect(m->b, is0, zero, LLVMBuildUDiv(m->b, a, LLVMBuildSelect(m->b, is0, one, b, ""), ""), "");
    LLVMValueRef minus = LLVMConstAllOnes(t), is_minus = LLVMBuildICmp(m->b, LLVMIntEQ, b, minus, "");
    LLVMValueRef safe = LLVMBuildSelect(m->b, LLVMBuildOr(m->b, is0, is_minus, ""), one, b, "");
    LLVMValueRef q = LLVMBuildSDiv(m->b, a, safe, "");
    q = LLVMBuildSelect(m->b, is_minus, LLVMBuildNeg(m->b, a, ""), q, "");
    return LLVMBuildSelect(m->b, is0, zero, q, "");
}

static LLVMValueRef prim_absolute(struct emitter *m, unsigned dtype, LLVMValueRef a)
{
    if (dtype_is_float(dtype))
        return prim_unary_intrinsic(m, "llvm.fabs", a);
    if (dtype_kind(dtype) != 'I')
        return a;
    LLVMTypeRef t = LLVMTypeOf(a);
    return intrinsic(m, "llvm.abs", &t, 1, (LLVMValueRef[]){a, LLVMConstInt(m->i1, 0, 0)}, 2);
}

static LLVMValueRef prim_shift(struct emitter *m, enum prim p, unsigned dtype, LLVMValueRef a, LLVMValueRef b)
{
    b = LLVMBuildAnd(m->b, b, const_int(LLVMTypeOf(b), 8 * dtype_size(dtype) - 1), "");
    if (p == P_SHL)
        return LLVMBuildShl(m->b, a, b, "");
    return dtype_kind(dtype) == 'I' ? LLVMBuildAShr(m->b, a, b, "") : LLVMBuildLShr(m->b, a, b, "");
}

static LLVMValueRef emit_prim_compare(struct emitter *m, enum prim p, unsigned dtype, LLVMValueRef a, LLVMValueRef b)
{
    bool s = dtype_kind(dtype) == 'I';
    if (dtype_is_float(dtype)) {
        static const LLVMRealPredicate f[] = {[P_EQ] = LLVMRealOEQ, [P_NE] = LLVMRealUNE, [P_LT] = LLVMRealOLT,
                                              [P_LE] = LLVMRealOLE};
        return LLVMBuildFCmp(m->b, f[p], a, b, "");
    }
    LLVMIntPredicate i = p == P_EQ ? LLVMIntEQ : p == P_NE ? LLVMIntNE : p == P_LT ? (s ? LLVMIntSLT : LLVMIntULT) : s
        ? LLVMIntSLE : LLVMIntULE;
    return LLVMBuildICmp(m->b, i, a, b, "");
}

/* ---- half.inc: a value is an instruction; u32, f32 and u16 are the types, as vectors where the operand is one ---- */
#define HALF_BUILDERS
#define LET_U(name, value) LLVMValueRef name = value;
#define LET_F LET_U
#define GIVE_BF16(u) return LLVMBuildTrunc(m->b, u, type_like_shape(LLVMInt16TypeInContext(m->ctx), x), "");
#define GIVE_BF16_IF(c, a, b)                                                                                  \
    LLVMValueRef otherwise = b, given = a, condition = c;                                                       \
    GIVE_BF16(U_SELECT(condition, given, otherwise))
#define GIVE_F32(f) return f;
#define U_K(number) const_int(u32, number)
#define F_K(number) prim_const_f32(m, f32, number)
#define U_OF(f) LLVMBuildBitCast(m->b, f, u32, "")
#define F_OF(u) LLVMBuildBitCast(m->b, u, f32, "")
#define U_FROM(half) LLVMBuildZExt(m->b, half, u32, "")
#define U_ADD(x, y) LLVMBuildAdd(m->b, x, y, "")
#define U_AND(x, y) LLVMBuildAnd(m->b, x, y, "")
#define U_OR(x, y) LLVMBuildOr(m->b, x, y, "")
#define U_SHL(x, y) LLVMBuildShl(m->b, x, y, "")
#define U_SHR(x, y) LLVMBuildLShr(m->b, x, y, "")
#define U_NE(x, y) LLVMBuildICmp(m->b, LLVMIntNE, x, y, "")
#define U_SELECT(c, x, y) LLVMBuildSelect(m->b, c, x, y, "")
#define F_MUL(x, y) LLVMBuildFMul(m->b, x, y, "")
#define F_FMA(x, y, z) intrinsic(m, "llvm.fma", &f32, 1, (LLVMValueRef[]){x, y, z}, 3)
#define F_ABS(a) prim_unary_intrinsic(m, "llvm.fabs", a)
#define F_IS_NAN(x) LLVMBuildFCmp(m->b, LLVMRealUNE, x, x, "")
#define F_LT(x, y) LLVMBuildFCmp(m->b, LLVMRealOLT, x, y, "")
#define F_SELECT U_SELECT
#define F_CALL(name, ...) name(m, __VA_ARGS__)
#define HALF_TYPES(like)                                                                                        \
    LLVMTypeRef u32 = type_like_shape(LLVMInt32TypeInContext(m->ctx), like);                                    \
    LLVMTypeRef f32 = type_like_shape(LLVMFloatTypeInContext(m->ctx), like);                                    \
    (void)u32, (void)f32;
#include "ir/math/half.inc"

static LLVMValueRef prim_const_f32(struct emitter *m, LLVMTypeRef t, double number)
{
    LLVMValueRef k = LLVMConstReal(LLVMFloatTypeInContext(m->ctx), number);
    return t == LLVMTypeOf(k) ? k : splat(m, k, LLVMGetVectorSize(t));
}

static LLVMValueRef f32_of_bf16(struct emitter *m, LLVMValueRef h) { HALF_TYPES(h) F32_OF_BF16(h) }

/* As BF16_OF_F32, of 16 floats in 7 instructions of AVX-512 in place of 9: a mask selects the addend, and one
 * instruction replaces the sum where x is NaN by x, made quiet.  (vcvtneps2bf16 takes denormals for 0.) */
static LLVMValueRef bf16_of_f32_avx512(struct emitter *m, LLVMValueRef x)
{
    enum { QUIET_NAN = 0x22, CURRENT_DIRECTION = 4 }; /* a table: response 2 to quiet and signalling NaN */
    HALF_TYPES(x)
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx), i16 = LLVMInt16TypeInContext(m->ctx);
    LLVMValueRef pattern = U_OF(x), odd = U_NE(U_AND(pattern, U_K(0x10000)), U_K(0));
    LLVMValueRef sum = U_SELECT(odd, U_ADD(pattern, U_K(0x8000)), U_ADD(pattern, U_K(0x7fff)));
    LLVMValueRef in[] = {F_OF(sum), x, U_K(QUIET_NAN), LLVMConstInt(i32, 0, 0), LLVMConstInt(i16, 0xffff, 0),
                         LLVMConstInt(i32, CURRENT_DIRECTION, 0)};
    LLVMValueRef fixed = intrinsic(m, "llvm.x86.avx512.mask.fixupimm.ps.512", NULL, 0, in, 6);
    GIVE_BF16(U_SHR(U_OF(fixed), U_K(16)))
}

static LLVMValueRef bf16_of_f32(struct emitter *m, LLVMValueRef x)
{
    HALF_TYPES(x)
    if (m->bf16) { /* bfcvt rounds as BF16_OF_F32 does, NaN included */
        LLVMValueRef half = LLVMBuildFPTrunc(m->b, x, type_like_shape(LLVMBFloatTypeInContext(m->ctx), x), "");
        return LLVMBuildBitCast(m->b, half, type_like_shape(LLVMInt16TypeInContext(m->ctx), x), "");
    }
    if (m->x86 && m->vector_bytes == 64 && u32 != LLVMInt32TypeInContext(m->ctx) && LLVMGetVectorSize(u32) == 16)
        return bf16_of_f32_avx512(m, x);
    BF16_OF_F32(x)
}
static LLVMValueRef flush_f32(struct emitter *m, LLVMValueRef x) { HALF_TYPES(x) FLUSH_F32(x) }

static LLVMValueRef fma_flushed(struct emitter *m, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    HALF_TYPES(c) FMA_FLUSHED(a, b, c)
}

static LLVMValueRef dot2_f32(struct emitter *m, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    HALF_TYPES(c) DOT2_F32(a, b, c)
}

/* f16 by the processor's own conversions, which round to nearest even and keep denormals. */
static LLVMValueRef prim_widen(struct emitter *m, unsigned from, LLVMValueRef a)
{
    if (from == KL_BF16)
        return f32_of_bf16(m, a);
    LLVMValueRef half = LLVMBuildBitCast(m->b, a, type_like_shape(LLVMHalfTypeInContext(m->ctx), a), "");
    return LLVMBuildFPExt(m->b, half, type_like_shape(LLVMFloatTypeInContext(m->ctx), a), "");
}

static LLVMValueRef prim_narrow(struct emitter *m, unsigned to, LLVMValueRef a)
{
    if (to == KL_BF16)
        return bf16_of_f32(m, a);
    LLVMValueRef half = LLVMBuildFPTrunc(m->b, a, type_like_shape(LLVMHalfTypeInContext(m->ctx), a), "");
    return LLVMBuildBitCast(m->b, half, type_like_shape(LLVMInt16TypeInContext(m->ctx), a), "");
}

/* Floats as integers of 8 or 16 bits, saturated, NaN as 0: clamped in the floats' own type, where the limits are exact,
 * and narrowed from i32.  LLVM takes apart vectors in fptosi.sat to such types. */
static LLVMValueRef prim_narrow_integer(struct emitter *m, unsigned to, LLVMValueRef a)
{
    LLVMTypeRef s = LLVMTypeOf(a), element = LLVMGetTypeKind(s) == LLVMVectorTypeKind ? LLVMGetElementType(s) : s;
    bool is_signed = dtype_kind(to) == 'I';
    int bits = 8 * (int)dtype_size(to);
    LLVMValueRef low = LLVMConstReal(element, is_signed ? -(double)(1 << (bits - 1)) : 0);
    LLVMValueRef high = LLVMConstReal(element, (double)((1 << (is_signed ? bits - 1 : bits)) - 1));
    if (element != s) {
        low = splat(m, low, LLVMGetVectorSize(s));
        high = splat(m, high, LLVMGetVectorSize(s));
    }
    LLVMTypeRef wide = type_like_shape(LLVMInt32TypeInContext(m->ctx), a);
    LLVMValueRef x = LLVMBuildSelect(m->b, LLVMBuildFCmp(m->b, LLVMRealOGT, a, low, ""), a, low, "");
    x = LLVMBuildSelect(m->b, LLVMBuildFCmp(m->b, LLVMRealOLT, x, high, ""), x, high, "");
    x = LLVMBuildFPToSI(m->b, x, wide, "");
    if (is_signed) /* of unsigned integers `low` is 0 */
        x = LLVMBuildSelect(m->b, LLVMBuildFCmp(m->b, LLVMRealUNO, a, a, ""), LLVMConstNull(wide), x, "");
    return LLVMBuildTrunc(m->b, x, type_like_shape(type_of(m, to), a), "");
}

static LLVMValueRef prim_cast(struct emitter *m, unsigned from, unsigned to, LLVMValueRef a)
{
    LLVMTypeRef t = type_like_shape(type_of(m, to), a), s = LLVMTypeOf(a);
    char kf = dtype_kind(from), kt = dtype_kind(to);
    if (from == to)
        return a;
    if (dtype_is_half(from))
        return prim_widen(m, from, a);
    if (dtype_is_half(to))
        return prim_narrow(m, to, a);
    if (kt == 'B')
        return kf == 'F' ? LLVMBuildFCmp(m->b, LLVMRealUNE, a, LLVMConstNull(s), "")
            : LLVMBuildICmp(m->b, LLVMIntNE, a, LLVMConstNull(s), "");
    if (kf == 'F' && kt == 'F')
        return dtype_size(to) > dtype_size(from) ? LLVMBuildFPExt(m->b, a, t, "") : LLVMBuildFPTrunc(m->b, a, t, "");
    if (kf == 'F' && dtype_size(to) <= 2)
        return prim_narrow_integer(m, to, a);
    if (kf == 'F')
        return intrinsic(m, kt == 'I' ? "llvm.fptosi.sat" : "llvm.fptoui.sat", (LLVMTypeRef[]){t, s}, 2, &a, 1);
    if (kt == 'F')
        return kf == 'I' ? LLVMBuildSIToFP(m->b, a, t, "") : LLVMBuildUIToFP(m->b, a, t, "");
    if (kf != 'B' && dtype_size(to) < dtype_size(from))
        return LLVMBuildTrunc(m->b, a, t, "");
    if (kf != 'B' && dtype_size(to) == dtype_size(from))
        return a;
    return kf == 'I' ? LLVMBuildSExt(m->b, a, t, "") : LLVMBuildZExt(m->b, a, t, "");
}

static LLVMValueRef prim_dot2(struct emitter *m, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    static const char *const name[] = {"llvm.x86.avx512bf16.dpbf16ps.128", "llvm.x86.avx512bf16.dpbf16ps.256",
                                       "llvm.x86.avx512bf16.dpbf16ps.512"};
    unsigned lanes = LLVMGetTypeKind(LLVMTypeOf(c)) == LLVMVectorTypeKind ? LLVMGetVectorSize(LLVMTypeOf(c)) : 1;
    if (m->dot2 && (lanes == 4 || lanes == 8 || lanes == 16)) {
        LLVMTypeRef halves = LLVMVectorType(LLVMBFloatTypeInContext(m->ctx), 2 * lanes);
        LLVMValueRef x[3] = {c, LLVMBuildBitCast(m->b, a, halves, ""), LLVMBuildBitCast(m->b, b, halves, "")};
        return intrinsic(m, name[lanes / 8], NULL, 0, x, 3);
    }
    return dot2_f32(m, a, b, c);
}

LLVMValueRef emit_prim(struct emitter *m, enum prim p, unsigned from, unsigned to, const LLVMValueRef *x)
{
    bool f = dtype_is_float(from);
    LLVMTypeRef t = LLVMTypeOf(x[0]);
    switch (p) {
    case P_ADD: return f ? LLVMBuildFAdd(m->b, x[0], x[1], "") : LLVMBuildAdd(m->b, x[0], x[1], "");
    case P_SUB: return f ? LLVMBuildFSub(m->b, x[0], x[1], "") : LLVMBuildSub(m->b, x[0], x[1], "");
    case P_MUL: return f ? LLVMBuildFMul(m->b, x[0], x[1], "") : LLVMBuildMul(m->b, x[0], x[1], "");
    case P_DIV: return f ? LLVMBuildFDiv(m->b, x[0], x[1], "") : prim_safe_divide(m, dtype_kind(from) == 'I', x[0],
                                                                                  x[1]);
    case P_NEG: return f ? LLVMBuildFNeg(m->b, x[0], "") : LLVMBuildNeg(m->b, x[0], "");
    case P_FMA: return intrinsic(m, "llvm.fma", &t, 1, (LLVMValueRef[]){x[0], x[1], x[2]}, 3);
    case P_DOT2: return prim_dot2(m, x[0], x[1], x[2]);
    case P_SQRT: return prim_unary_intrinsic(m, "llvm.sqrt", x[0]);
    case P_RINT: return prim_unary_intrinsic(m, "llvm.rint", x[0]);
    case P_ABS: return prim_absolute(m, from, x[0]);
    case P_AND: return LLVMBuildAnd(m->b, x[0], x[1], "");
    case P_OR: return LLVMBuildOr(m->b, x[0], x[1], "");
    case P_XOR: return LLVMBuildXor(m->b, x[0], x[1], "");
    case P_NOT: return LLVMBuildNot(m->b, x[0], "");
    case P_SHL:
    case P_SHR: return prim_shift(m, p, from, x[0], x[1]);
    case P_EQ:
    case P_NE:
    case P_LT:
    case P_LE: return emit_prim_compare(m, p, from, x[0], x[1]);
    case P_SELECT: return LLVMBuildSelect(m->b, x[0], x[1], x[2], "");
    case P_CAST: return prim_cast(m, from, to, x[0]);
    case P_BITS: return LLVMBuildBitCast(m->b, x[0], type_like_shape(type_of(m, to), x[0]), "");
    case P_EXP2: /* for GPUs only */
    case P_RECIP:
    case P_COUNT: break;
    }
    err_set(m->e, KL_ERR_INTERNAL, "kernel %s: unknown primitive %d", m->k->name, (int)p);
    return x[0];
}
