/* Values that do not change in the innermost loop are made before it: index arithmetic and vectors of uniform values,
 * constants included.  LLVM's pass for this is turned off for x86: it moves constants out of all loops, more than there
 * are registers for, and took a fifth of the time to compile a kernel of polynomials. */
#include "emit.h"

static bool is_number(const struct linst *i)
{
    return i->op == L_CONST && i->imm && dtype_is_float(i->dtype) && !dtype_is_half(i->dtype);
}

/* All float constants of the kernel as one array: little-endian, so an f32 is at the beginning of its 8 bytes. */
static void make_numbers(struct emitter *m)
{
    LLVMValueRef *bits = mem_alloc(m->k->ninst * sizeof *bits);
    unsigned n = 0;
    for (val v = 1; bits && v < m->k->ninst; v++)
        if (is_number(&m->k->inst[v])) {
            m->v[v].number = n;
            bits[n++] = LLVMConstInt(m->i64, m->k->inst[v].imm, 0);
        }
    m->numbers = LLVMAddGlobal(m->module, LLVMArrayType2(m->i64, n), "numbers");
    LLVMSetInitializer(m->numbers, bits ? LLVMConstArray2(m->i64, bits, n) : LLVMConstNull(LLVMArrayType2(m->i64, n)));
    LLVMSetGlobalConstant(m->numbers, true);
    LLVMSetLinkage(m->numbers, LLVMPrivateLinkage);
    if (!bits)
        err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", m->k->name);
    mem_free(bits);
}

LLVMBasicBlockRef emit_at_end_of(struct emitter *m, LLVMBasicBlockRef block)
{
    LLVMBasicBlockRef here = LLVMGetInsertBlock(m->b);
    LLVMValueRef end = LLVMGetBasicBlockTerminator(block);
    if (end)
        LLVMPositionBuilderBefore(m->b, end);
    else
        LLVMPositionBuilderAtEnd(m->b, block);
    return here;
}

/* LLVM's instruction selection handles a constant at each use and for each lane.  So constants are loaded from memory
 * before the loop, as the final code does: this saves a tenth of the compile time of a kernel of polynomials.  Integers
 * are excluded, because shifts and masks have forms for constants, and so is 0. */
static LLVMValueRef read_number(struct emitter *m, const struct emitted *e)
{
    if (!m->numbers)
        make_numbers(m);
    LLVMValueRef at = LLVMConstInt(m->i64, e->number, 0);
    return LLVMBuildLoad2(m->b, LLVMTypeOf(e->scalar), LLVMBuildInBoundsGEP2(m->b, m->i64, m->numbers, &at, 1, ""), "");
}

LLVMValueRef emit_uniform_vector(struct emitter *m, val v)
{
    struct emitted *e = &m->v[v];
    bool number = is_number(&m->k->inst[v]);
    if (m->native == 1 || e->home >= m->depth || (LLVMIsConstant(e->scalar) && !number))
        return splat(m, e->scalar, m->native);
    if (e->hoisted && e->hoisted_before == m->before && e->hoisted_lanes == m->native)
        return e->hoisted;
    LLVMBasicBlockRef here = emit_at_end_of(m, m->before);
    e->hoisted = splat(m, number ? read_number(m, e) : e->scalar, m->native);
    e->hoisted_before = m->before;
    e->hoisted_lanes = m->native;
    emit_at_end_of(m, here);
    return e->hoisted;
}

bool emit_is_step(const struct linst *i)
{
    enum prim p = (enum prim)(i->op - L_PRIM);
    return i->dtype == KL_I64 && (p == P_ADD || p == P_SUB || p == P_MUL || p == P_DIV);
}

/* Is this index arithmetic whose operands do not change in the innermost loop? An added constant is excluded: it is
 * part of an address.  A quotient may be computed before a loop without iterations, because a division by 0 is
 * defined. */
static bool is_invariant(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (!m->depth || !emit_is_step(i))
        return false;
    const struct emitted *a = &m->v[i->a], *b = &m->v[i->b];
    enum prim p = (enum prim)(i->op - L_PRIM);
    if ((p == P_ADD || p == P_SUB) && (LLVMIsConstant(a->scalar) || LLVMIsConstant(b->scalar)))
        return false;
    return a->home < m->depth && b->home < m->depth;
}

LLVMBasicBlockRef emit_leave_loop(struct emitter *m, val v)
{
    return is_invariant(m, v) ? emit_at_end_of(m, m->before) : NULL;
}

void emit_reenter_loop(struct emitter *m, val v, LLVMBasicBlockRef back)
{
    if (!back)
        return;
    if (!LLVMIsConstant(m->v[v].scalar))
        m->v[v].home = m->depth - 1;
    emit_at_end_of(m, back);
}
