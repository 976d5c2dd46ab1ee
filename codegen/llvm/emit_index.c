/* Index arithmetic in 32 bits.
 *
 * Indices are i64, but few are large.  If intervals prove that a varying i64 value and its i64 operands fit in 32 bits,
 * its lanes are vectors of i32: these need half the registers, divide by constants with the multiplications of vector
 * units, and are used by gathers directly.  Users that need i64 get it by sign extension. */
#include "emit.h"

static struct range union_of(struct range a, struct range b)
{
    return (struct range){a.lo < b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
}

/* lo > hi: unknown. */
static const struct range unknown = {1, 0};
static bool emit_index_is_known(struct range a) { return a.lo <= a.hi; }

static struct range emit_index_product(struct range a, struct range b)
{
    const int64_t x[2] = {a.lo, a.hi}, y[2] = {b.lo, b.hi};
    struct range r = unknown;
    for (int i = 0; i < 4; i++) {
        int64_t v;
        if (__builtin_mul_overflow(x[i / 2], y[i % 2], &v))
            return unknown;
        r = i ? union_of(r, (struct range){v, v}) : (struct range){v, v};
    }
    return r;
}

static struct range range_of_dtype(unsigned dtype)
{
    int64_t bits = 8 * (int64_t)dtype_size(dtype);
    if (dtype == KL_BOOL)
        return (struct range){0, 1};
    if (dtype_is_float(dtype) || bits == 64)
        return unknown;
    return dtype_kind(dtype) == 'U' ? (struct range){0, (INT64_C(1) << bits) - 1}
                                    : (struct range){-(INT64_C(1) << (bits - 1)), (INT64_C(1) << (bits - 1)) - 1};
}

static struct range range_of_prim(const struct kernel *k, const struct linst *i, const struct range *of)
{
    struct range a = of[i->a], b = of[i->b], r;
    switch ((enum prim)(i->op - L_PRIM)) {
    case P_CAST:
        return range_of_dtype(k->inst[i->a].dtype);
    case P_ADD:
        return emit_index_is_known(a) && emit_index_is_known(b) && !__builtin_add_overflow(a.lo, b.lo, &r.lo) &&
               !__builtin_add_overflow(a.hi, b.hi, &r.hi) ? r : unknown;
    case P_SUB:
        return emit_index_is_known(a) && emit_index_is_known(b) && !__builtin_sub_overflow(a.lo, b.hi, &r.lo) &&
               !__builtin_sub_overflow(a.hi, b.lo, &r.hi) ? r : unknown;
    case P_MUL:
        return emit_index_is_known(a) && emit_index_is_known(b) ? emit_index_product(a, b) : unknown;
    case P_DIV:
        return emit_index_is_known(a) && emit_index_is_known(b) && b.lo > 0 &&
            b.lo == b.hi ? (struct range){a.lo / b.lo, a.hi / b.lo} : unknown;
    case P_SELECT:
        return emit_index_is_known(b) && emit_index_is_known(of[i->c]) ? union_of(b, of[i->c]) : unknown;
    default:
        return unknown;
    }
}

static struct range range_of_loop(const struct linst *i, const struct range *of)
{
    struct range lo = of[i->a], hi = of[i->b];
    if (!emit_index_is_known(lo) || !emit_index_is_known(hi))
        return unknown;
    return (struct range){lo.lo, hi.hi > lo.lo ? hi.hi - 1 : lo.lo}; /* a loop that never runs has no restriction */
}

bool emit_ranges(struct emitter *m)
{
    const struct kernel *k = m->k;
    m->range = mem_alloc(k->ninst * sizeof *m->range);
    if (!m->range)
        return err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    for (val v = 0; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        m->range[v] = v == 0 || i->dtype != KL_I64 ? unknown
                      : i->op == L_CONST           ? (struct range){(int64_t)i->imm, (int64_t)i->imm}
                      : i->op == L_LOOP            ? range_of_loop(i, m->range)
                      : i->op == L_SPLAT           ? m->range[i->a]
                      : i->op >= L_PRIM            ? range_of_prim(k, i, m->range)
                                                   : unknown;
    }
    return true;
}

static bool emit_fits_i32(const struct emitter *m, val v)
{
    struct range r = m->range[v];
    return emit_index_is_known(r) && r.lo >= INT32_MIN && r.hi <= INT32_MAX;
}

static LLVMTypeRef index_type32(struct emitter *m) { return type_lanes(LLVMInt32TypeInContext(m->ctx), m->native); }

/* The differences of lanes lane0 .. lane0 + native - 1 of an affine index from the first lane, as constants. */
LLVMValueRef emit_steps(struct emitter *m, LLVMTypeRef t, const struct emitted *e, unsigned lane0)
{
    LLVMValueRef step[64];
    for (unsigned i = 0; i < m->native; i++)
        step[i] = LLVMConstInt(t, e->stride * ((lane0 + i) / e->repeat) +
                               e->within * ((lane0 + i) % e->repeat), 0);
    return m->native == 1 ? step[0] : LLVMConstVector(step, m->native);
}

static LLVMValueRef index_shorten(struct emitter *m, const struct emitted *e, unsigned part)
{
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    if (e->form == FORM_VECTOR)
        return LLVMBuildTrunc(m->b, e->part[part], index_type32(m), "");
    LLVMValueRef x = splat(m, LLVMBuildTrunc(m->b, e->scalar, i32, ""), m->native);
    return e->form == FORM_UNIFORM ? x : LLVMBuildAdd(m->b, x, emit_steps(m, i32, e, part * m->native), "");
}

/* The value in its other width, made in each block that requests it. */
static LLVMValueRef *other_parts(struct emitter *m, struct emitted *e)
{
    LLVMBasicBlockRef here = LLVMGetInsertBlock(m->b);
    if (e->other && e->other_block == here && e->other_width == m->width)
        return e->other;
    if (!e->other && !(e->other = mem_alloc(MAX_PARTS * sizeof *e->other))) {
        err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", m->k->name);
        return NULL;
    }
    e->other_block = here;
    e->other_width = m->width;
    for (unsigned p = 0; p < m->parts; p++)
        e->other[p] = e->narrow ? LLVMBuildSExt(m->b, e->part[p], type_lanes(m->i64, m->native), "") : index_shorten(m,
            e, p);
    return e->other;
}

LLVMValueRef *emit_wide_parts(struct emitter *m, val v) { return other_parts(m, &m->v[v]); }

/* A value that fits, as vectors of i32. */
static LLVMValueRef *emit_narrow_parts(struct emitter *m, val v)
{
    emit_scalar(m, v); /* sets the form of a constant */
    return m->v[v].narrow ? m->v[v].part : other_parts(m, &m->v[v]);
}

LLVMValueRef *emit_index_parts(struct emitter *m, val v)
{
    return emit_fits_i32(m, v) ? emit_narrow_parts(m, v) : emit_parts(m, v);
}

bool emit_index_as_i32(struct emitter *m, val v, LLVMValueRef *out)
{
    const struct linst *i = &m->k->inst[v];
    const val operand[3] = {i->a, i->b, i->c};
    enum prim p = (enum prim)(i->op - L_PRIM);
    bool any = false, compares = p == P_EQ || p == P_NE || p == P_LT || p == P_LE;
    unsigned n = 0;
    if (i->dtype == KL_I64 ? !emit_fits_i32(m, v) : !compares && p != P_CAST)
        return false;
    for (; n < 3 && operand[n]; n++)
        if (m->k->inst[operand[n]].dtype == KL_I64) {
            any = true;
            if (!emit_fits_i32(m, operand[n]))
                return false;
        }
    if (!any && i->dtype != KL_I64)
        return false;
    LLVMValueRef *in[3];
    for (unsigned j = 0; j < n; j++)
        in[j] = m->k->inst[operand[j]].dtype == KL_I64 ? emit_narrow_parts(m, operand[j]) : emit_parts(m, operand[j]);
    unsigned from = m->k->inst[p == P_SELECT ? i->b : i->a].dtype,
        to = i->dtype == KL_I64 ? (unsigned)KL_I32 : i->dtype;
    if (from == KL_I64)
        from = p == P_DIV && m->range[i->a].lo >= 0 && m->range[i->b].lo > 0 ? KL_U32 : KL_I32;
    for (unsigned q = 0; !m->e->code && q < m->parts; q++) {
        LLVMValueRef x[3];
        for (unsigned j = 0; j < n; j++)
            x[j] = in[j][q];
        out[q] = emit_prim(m, p, from, to, x);
    }
    m->v[v].narrow = i->dtype == KL_I64;
    return true;
}
