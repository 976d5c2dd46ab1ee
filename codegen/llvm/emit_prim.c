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

/* f16 by the processor's own conversions, which round to nearest even and keep denormals. */
static LLVMValueRef emit_prim_widen(struct emitter *m, unsigned from, LLVMValueRef a)
{
    LLVMTypeRef f32 = type_like_shape(LLVMFloatTypeInContext(m->ctx), a), i32 =
        type_like_shape(LLVMInt32TypeInContext(m->ctx), a);
    if (from == KL_F16)
        return LLVMBuildFPExt(m->b, LLVMBuildBitCast(m->b, a, type_like_shape(LLVMHalfTypeInContext(m->ctx), a), ""),
                              f32, "");
    return LLVMBuildBitCast(m->b, LLVMBuildShl(m->b, LLVMBuildZExt(m->b, a, i32, ""), const_int(i32, 16), ""), f32, "");
}

/* bf16: adds half a unit of the kept bits, minus one bit unless they are odd; a NaN becomes a quiet one. */
static LLVMValueRef emit_prim_narrow(struct emitter *m, unsigned to, LLVMValueRef a)
{
    LLVMTypeRef i16 = type_like_shape(LLVMInt16TypeInContext(m->ctx), a), i32 =
        type_like_shape(LLVMInt32TypeInContext(m->ctx), a);
    if (to == KL_F16)
        return LLVMBuildBitCast(m->b, LLVMBuildFPTrunc(m->b, a, type_like_shape(LLVMHalfTypeInContext(m->ctx), a), ""),
                                i16, "");
    LLVMValueRef x = LLVMBuildBitCast(m->b, a, i32, ""), upper = LLVMBuildLShr(m->b, x, const_int(i32, 16), "");
    LLVMValueRef odd = LLVMBuildAnd(m->b, upper, const_int(i32, 1), "");
    LLVMValueRef sum = LLVMBuildAdd(m->b, LLVMBuildAdd(m->b, x, const_int(i32, 0x7fff), ""), odd, "");
    LLVMValueRef quiet = LLVMBuildOr(m->b, upper, const_int(i32, 0x40), "");
    LLVMValueRef nan = LLVMBuildFCmp(m->b, LLVMRealUNO, a, a, "");
    LLVMValueRef y = LLVMBuildSelect(m->b, nan, quiet, LLVMBuildLShr(m->b, sum, const_int(i32, 16), ""), "");
    return LLVMBuildTrunc(m->b, y, i16, "");
}

static LLVMValueRef prim_cast(struct emitter *m, unsigned from, unsigned to, LLVMValueRef a)
{
    LLVMTypeRef t = type_like_shape(type_of(m, to), a), s = LLVMTypeOf(a);
    char kf = dtype_kind(from), kt = dtype_kind(to);
    if (from == to)
        return a;
    if (dtype_is_half(from))
        return emit_prim_widen(m, from, a);
    if (dtype_is_half(to))
        return emit_prim_narrow(m, to, a);
    if (kt == 'B')
        return kf == 'F' ? LLVMBuildFCmp(m->b, LLVMRealUNE, a, LLVMConstNull(s), "")
            : LLVMBuildICmp(m->b, LLVMIntNE, a, LLVMConstNull(s), "");
    if (kf == 'F' && kt == 'F')
        return dtype_size(to) > dtype_size(from) ? LLVMBuildFPExt(m->b, a, t, "") : LLVMBuildFPTrunc(m->b, a, t, "");
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

/* ---- DOT2 ---- */

/* The upper or lower halves of a as f32. */
static LLVMValueRef emit_prim_half(struct emitter *m, LLVMValueRef a, bool upper)
{
    LLVMTypeRef t = LLVMTypeOf(a);
    LLVMValueRef x = upper ? LLVMBuildAnd(m->b, a, const_int(t, 0xffff0000), "")
                           : LLVMBuildShl(m->b, a, const_int(t, 16), "");
    return LLVMBuildBitCast(m->b, x, type_like_shape(LLVMFloatTypeInContext(m->ctx), a), "");
}

static LLVMValueRef flush_subnormal(struct emitter *m, LLVMValueRef x)
{
    LLVMTypeRef i32 = type_like_shape(LLVMInt32TypeInContext(m->ctx), x);
    LLVMValueRef bits = LLVMBuildBitCast(m->b, x, i32, "");
    LLVMValueRef exponent = LLVMBuildAnd(m->b, bits, const_int(i32, 0x7f800000), "");
    LLVMValueRef zero = LLVMBuildAnd(m->b, bits, const_int(i32, 0x80000000), "");
    LLVMValueRef normal = LLVMBuildICmp(m->b, LLVMIntNE, exponent, LLVMConstNull(i32), "");
    return LLVMBuildBitCast(m->b, LLVMBuildSelect(m->b, normal, bits, zero, ""), LLVMTypeOf(x), "");
}

static LLVMValueRef prim_times(struct emitter *m, LLVMValueRef x, double factor)
{
    LLVMTypeRef t = LLVMTypeOf(x);
    LLVMValueRef k = LLVMConstReal(LLVMFloatTypeInContext(m->ctx), factor);
    return LLVMBuildFMul(m->b, x, t == LLVMTypeOf(k) ? k : splat(m, k, LLVMGetVectorSize(t)), "");
}

/* As fma_flushed in ir/math/half.h. */
static LLVMValueRef fma_flushed(struct emitter *m, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    LLVMTypeRef t = LLVMTypeOf(c), i32 = type_like_shape(LLVMInt32TypeInContext(m->ctx), c);
    a = flush_subnormal(m, a), b = flush_subnormal(m, b), c = flush_subnormal(m, c);
    LLVMValueRef sum = intrinsic(m, "llvm.fma", &t, 1, (LLVMValueRef[]){a, b, c}, 3);
    LLVMValueRef up[3] = {prim_times(m, a, 0x1p32), prim_times(m, b, 0x1p32), prim_times(m, c, 0x1p64)};
    LLVMValueRef size = prim_unary_intrinsic(m, "llvm.fabs", intrinsic(m, "llvm.fma", &t, 1, up, 3));
    LLVMValueRef bits = LLVMBuildBitCast(m->b, sum, i32, "");
    LLVMValueRef min = LLVMBuildBitCast(m->b, const_int(i32, 0x20800000), t, ""); /* 2^-62 */
    LLVMValueRef tiny = LLVMBuildFCmp(m->b, LLVMRealOLT, size, min, "");
    LLVMValueRef zero = LLVMBuildAnd(m->b, bits, const_int(i32, 0x80000000), "");
    return LLVMBuildBitCast(m->b, LLVMBuildSelect(m->b, tiny, zero, bits, ""), t, "");
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
    for (int upper = 1; upper >= 0; upper--)
        c = fma_flushed(m, emit_prim_half(m, a, upper), emit_prim_half(m, b, upper), c);
    return c;
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
