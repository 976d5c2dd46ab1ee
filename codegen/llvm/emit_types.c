/* LLVM types of element types and of vectors of them, constants, splats and shuffles. */
#include "emit.h"
#include <string.h>

LLVMTypeRef type_of(struct emitter *m, unsigned dtype)
{
    if (dtype == KL_BOOL)
        return m->i1;
    if (dtype == KL_F32)
        return LLVMFloatTypeInContext(m->ctx);
    if (dtype == KL_F64)
        return LLVMDoubleTypeInContext(m->ctx);
    return LLVMIntTypeInContext(m->ctx, 8 * (unsigned)dtype_size(dtype));
}

LLVMTypeRef type_lanes(LLVMTypeRef t, unsigned lanes) { return lanes == 1 ? t : LLVMVectorType(t, lanes); }

LLVMValueRef const_int(LLVMTypeRef t, uint64_t v)
{
    if (LLVMGetTypeKind(t) != LLVMVectorTypeKind)
        return LLVMConstInt(t, v, 0);
    LLVMValueRef e[64], x = LLVMConstInt(LLVMGetElementType(t), v, 0);
    unsigned n = LLVMGetVectorSize(t);
    for (unsigned i = 0; i < n; i++)
        e[i] = x;
    return LLVMConstVector(e, n);
}

LLVMValueRef const_bits(struct emitter *m, unsigned dtype, uint64_t bits)
{
    LLVMTypeRef t = type_of(m, dtype);
    if (!dtype_is_float(dtype) || dtype_is_half(dtype))
        return LLVMConstInt(t, bits, 0);
    return LLVMConstBitCast(LLVMConstInt(LLVMIntTypeInContext(m->ctx, 8 * (unsigned)dtype_size(dtype)), bits, 0), t);
}

LLVMValueRef intrinsic(struct emitter *m, const char *name, LLVMTypeRef *overload, unsigned noverload,
                       LLVMValueRef *arg, unsigned narg)
{
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    LLVMValueRef f = LLVMGetIntrinsicDeclaration(m->module, id, overload, noverload);
    return LLVMBuildCall2(m->b, LLVMGlobalGetValueType(f), f, arg, narg, "");
}

LLVMValueRef splat(struct emitter *m, LLVMValueRef scalar, unsigned lanes)
{
    if (lanes == 1)
        return scalar;
    if (LLVMIsConstant(scalar)) {
        LLVMValueRef e[64];
        for (unsigned i = 0; i < lanes; i++)
            e[i] = scalar;
        return LLVMConstVector(e, lanes);
    }
    LLVMTypeRef t = LLVMVectorType(LLVMTypeOf(scalar), lanes), i32 = LLVMInt32TypeInContext(m->ctx);
    LLVMValueRef poison = LLVMGetPoison(t);
    LLVMValueRef x = LLVMBuildInsertElement(m->b, poison, scalar, LLVMConstInt(i32, 0, 0), "");
    return LLVMBuildShuffleVector(m->b, x, poison, LLVMConstNull(LLVMVectorType(i32, lanes)), "");
}

LLVMValueRef shuffle(struct emitter *m, LLVMValueRef x, LLVMValueRef y, const unsigned *lane, unsigned n)
{
    LLVMValueRef at[4 * 64];
    for (unsigned i = 0; i < n; i++)
        at[i] = LLVMConstInt(LLVMInt32TypeInContext(m->ctx), lane[i], 0);
    return LLVMBuildShuffleVector(m->b, x, y ? y : LLVMGetPoison(LLVMTypeOf(x)), LLVMConstVector(at, n), "");
}
