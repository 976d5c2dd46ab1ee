/* Numbers that are made of 4 bits and converted to f32, as the integers of quantized weights are.
 *
 * With AVX-512 a vector register holds all 16 such numbers, and one instruction (vpermps), which reads the low 4 bits
 * of each lane of its index, takes the place of all others between the bits and the float: and, xor, sub, and the
 * conversions between lanes of 1 and of 4 bytes. */
#include "emit.h"

enum { NIBBLE = 4, NUMBERS = 1 << NIBBLE, MAX_CHAIN = 8 };

static bool is_integer(unsigned dtype) { return !dtype_is_float(dtype) && dtype != KL_BOOL; }

static bool is_prim(const struct linst *i, enum prim p) { return i->op == L_OP(p); }

/* The varying operand of an instruction that makes an integer of one integer and of constants; 0: it does not. */
static val only_operand(const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v];
    static const enum prim unary[] = {P_NEG, P_NOT, P_CAST, P_BITS};
    static const enum prim binary[] = {P_ADD, P_SUB, P_MUL, P_AND, P_OR, P_XOR};
    bool one = false, two = false;
    for (unsigned n = 0; n < sizeof unary / sizeof *unary; n++)
        one |= is_prim(i, unary[n]);
    for (unsigned n = 0; n < sizeof binary / sizeof *binary; n++)
        two |= is_prim(i, binary[n]);
    if (!(one || two) || i->cols || !is_integer(k->inst[i->a].dtype))
        return 0;
    bool fixed_a = two && k->inst[i->a].op == L_CONST, fixed_b = one || k->inst[i->b].op == L_CONST;
    return fixed_b ? i->a : fixed_a ? i->b : 0;
}

/* Does v depend on 4 bits of another value only, from bit *by on?  Then that value; otherwise 0. */
static val nibble_masked_value(const struct kernel *k, val v, unsigned *by)
{
    const struct linst *i = &k->inst[v];
    uint64_t top = i->op >= L_PRIM ? 8 * dtype_size(i->dtype) - NIBBLE : 0;
    val x = is_prim(i, P_AND) ? only_operand(k, v) : 0, mask = x == i->a ? i->b : i->a;
    *by = 0;
    if (x)
        return k->inst[mask].imm < NUMBERS ? x : 0;
    if (!is_prim(i, P_SHR) || i->cols || k->inst[i->b].op != L_CONST || k->inst[i->b].imm != top)
        return 0;
    *by = (unsigned)top;
    return i->a;
}

/* What the instructions chain[n - 1], .., chain[0], each of the one before, make of `bits`, a constant. */
static LLVMValueRef nibble_number(struct emitter *m, const val *chain, unsigned n, unsigned bits)
{
    const struct linst *inst = m->k->inst;
    unsigned by, dtype = inst[nibble_masked_value(m->k, chain[n - 1], &by)].dtype;
    LLVMValueRef x = LLVMConstInt(type_of(m, dtype), (uint64_t)bits << by, 0);
    while (n--) {
        const struct linst *i = &inst[chain[n]];
        bool first = n == 0 || is_prim(i, P_SHR) || only_operand(m->k, chain[n]) == i->a;
        LLVMValueRef arg[2] = {x, x};
        if (i->b && n)
            arg[first] = const_bits(m, inst[first ? i->b : i->a].dtype, inst[first ? i->b : i->a].imm);
        x = emit_prim(m, (enum prim)(i->op - L_PRIM), inst[i->a].dtype, i->dtype, arg);
    }
    return x;
}

/* The value, and in *by the place, of the 4 bits of v from bit *by on: follows shifts and conversions to a value of
 * more bits, so that a lane of it is converted once and not for each of its numbers. */
static val nibble_source(const struct kernel *k, val v, unsigned *by)
{
    for (;;) {
        const struct linst *i = &k->inst[v], *a = &k->inst[i->a];
        unsigned bits = i->op >= L_PRIM ? 8 * (unsigned)dtype_size(a->dtype) : 0;
        bool right = is_prim(i, P_SHR), left = is_prim(i, P_SHL), cast = is_prim(i, P_CAST) || is_prim(i, P_BITS);
        if (i->cols || !(right || left || cast) || !is_integer(a->dtype) || !a->varying ||
            (!cast && k->inst[i->b].op != L_CONST))
            return v;
        unsigned count = cast ? 0 : (unsigned)(k->inst[i->b].imm & (bits - 1));
        unsigned from = *by + (right ? count : 0) - (left ? count : 0);
        if ((left && count > *by) || from + NIBBLE > bits)
            return v;
        *by = from;
        v = i->a;
    }
}

bool emit_nibble(struct emitter *m, val v, LLVMValueRef *out)
{
    const struct kernel *k = m->k;
    const struct linst *i = &k->inst[v];
    val chain[MAX_CHAIN] = {v}, x = i->a;
    unsigned n = 1, by = 0;
    bool can = m->x86 && m->vector_bytes == 64 && m->native == NUMBERS;
    if (!can || !is_prim(i, P_CAST) || i->dtype != KL_F32 || i->cols)
        return false;
    while (x && n < MAX_CHAIN) {
        chain[n++] = x;
        if (nibble_masked_value(k, x, &by))
            break;
        x = is_integer(k->inst[x].dtype) ? only_operand(k, x) : 0;
    }
    if (!x || !nibble_masked_value(k, x, &by))
        return false;
    LLVMValueRef number[NUMBERS];
    for (unsigned bits = 0; bits < NUMBERS; bits++) {
        number[bits] = nibble_number(m, chain, n, bits);
        if (!LLVMIsConstant(number[bits]))
            return false;
    }
    LLVMTypeRef i32 = LLVMVectorType(LLVMInt32TypeInContext(m->ctx), NUMBERS);
    val source = nibble_masked_value(k, x, &by);
    source = nibble_source(k, source, &by);
    LLVMValueRef table = LLVMConstVector(number, NUMBERS), *part = emit_parts(m, source);
    bool wide = dtype_size(k->inst[source].dtype) > 4;
    if (wide && by > 32 - NIBBLE)
        return false;
    for (unsigned p = 0; part && p < m->parts; p++) {
        LLVMValueRef bits = wide ? LLVMBuildTrunc(m->b, part[p], i32, "") : LLVMBuildZExt(m->b, part[p], i32, "");
        LLVMValueRef arg[2] = {table, by ? LLVMBuildLShr(m->b, bits, const_int(i32, by), "") : bits};
        out[p] = intrinsic(m, "llvm.x86.avx512.permvar.sf.512", NULL, 0, arg, 2);
    }
    return part;
}
