/* Loads and stores: whole vectors where lanes are neighbours, one scalar where they share an element,
 * gathers and scatters otherwise.  A false lane never touches memory. */
#include "emit.h"

static LLVMTypeRef memory_type(struct emitter *m, unsigned dtype) { return dtype == KL_BOOL ? m->i8 : type_of(m, dtype); }

/* The address of one element, or the addresses of a vector of them. */
static LLVMValueRef address(struct emitter *m, uint32_t buf, LLVMValueRef index)
{
    return LLVMBuildInBoundsGEP2(m->b, memory_type(m, m->k->buf[buf].dtype), m->buf[buf], &index, 1, "");
}

/* The address of a part of neighbouring elements, whose first part is at `first`: a constant offset costs nothing. */
static LLVMValueRef part_address(struct emitter *m, uint32_t buf, LLVMValueRef first, unsigned part)
{
    LLVMValueRef offset = LLVMConstInt(m->i64, part * m->native, 0);
    return part ? LLVMBuildInBoundsGEP2(m->b, memory_type(m, m->k->buf[buf].dtype), first, &offset, 1, "") : first;
}

static LLVMValueRef from_memory(struct emitter *m, unsigned dtype, LLVMValueRef x)
{
    return dtype == KL_BOOL ? LLVMBuildICmp(m->b, LLVMIntNE, x, LLVMConstNull(LLVMTypeOf(x)), "") : x;
}

static LLVMValueRef to_memory(struct emitter *m, unsigned dtype, LLVMValueRef x)
{
    if (dtype != KL_BOOL)
        return x;
    LLVMTypeRef t = LLVMTypeOf(x);
    return LLVMBuildZExt(m->b, x, LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMVectorType(m->i8, LLVMGetVectorSize(t)) : m->i8, "");
}

static LLVMValueRef alignment(struct emitter *m, unsigned dtype)
{
    return LLVMConstInt(LLVMInt32TypeInContext(m->ctx), dtype_size(dtype), 0);
}

static LLVMValueRef load_scalar(struct emitter *m, unsigned dtype, LLVMValueRef ptr)
{
    LLVMValueRef x = LLVMBuildLoad2(m->b, memory_type(m, dtype), ptr, "");
    LLVMSetAlignment(x, (unsigned)dtype_size(dtype));
    return from_memory(m, dtype, x);
}

static LLVMValueRef load_vector(struct emitter *m, unsigned dtype, LLVMValueRef ptr, LLVMValueRef mask)
{
    LLVMTypeRef t = type_lanes(memory_type(m, dtype), m->native);
    LLVMValueRef x;
    if (mask && m->native > 1) {
        x = intrinsic(m, "llvm.masked.load", (LLVMTypeRef[]){t, m->ptr}, 2, (LLVMValueRef[]){ptr, alignment(m, dtype), mask, LLVMConstNull(t)}, 4);
    } else {
        x = LLVMBuildLoad2(m->b, t, ptr, "");
        LLVMSetAlignment(x, (unsigned)dtype_size(dtype));
    }
    return from_memory(m, dtype, x);
}

static LLVMValueRef all_lanes(struct emitter *m) { return LLVMConstAllOnes(LLVMVectorType(m->i1, m->native)); }

static LLVMValueRef gather_part(struct emitter *m, uint32_t buf, LLVMValueRef index, LLVMValueRef mask)
{
    unsigned dtype = m->k->buf[buf].dtype;
    LLVMTypeRef t = LLVMVectorType(memory_type(m, dtype), m->native), p = LLVMVectorType(m->ptr, m->native);
    LLVMValueRef x = intrinsic(m, "llvm.masked.gather", (LLVMTypeRef[]){t, p}, 2,
                               (LLVMValueRef[]){address(m, buf, index), alignment(m, dtype), mask ? mask : all_lanes(m), LLVMConstNull(t)}, 4);
    return from_memory(m, dtype, x);
}

/* A one-lane access under a mask: a branch around it. */
static LLVMValueRef load_if(struct emitter *m, unsigned dtype, LLVMValueRef ptr, LLVMValueRef cond)
{
    LLVMBasicBlockRef from = LLVMGetInsertBlock(m->b), then = LLVMAppendBasicBlockInContext(m->ctx, m->fn, "load");
    LLVMBasicBlockRef join = LLVMAppendBasicBlockInContext(m->ctx, m->fn, "loaded");
    LLVMBuildCondBr(m->b, cond, then, join);
    LLVMPositionBuilderAtEnd(m->b, then);
    LLVMValueRef x = load_scalar(m, dtype, ptr);
    LLVMBuildBr(m->b, join);
    LLVMPositionBuilderAtEnd(m->b, join);
    LLVMValueRef phi = LLVMBuildPhi(m->b, LLVMTypeOf(x), ""), in[2] = {LLVMConstNull(LLVMTypeOf(x)), x};
    LLVMAddIncoming(phi, in, (LLVMBasicBlockRef[]){from, then}, 2);
    return phi;
}

static LLVMValueRef *new_parts(struct emitter *m, struct emitted *e)
{
    if (!e->part)
        e->part = mem_alloc(MAX_PARTS * sizeof *e->part);
    if (!e->part)
        err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", m->k->name);
    return e->part;
}

void emit_load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct emitted *index = &m->v[i->a];
    struct emitted *out = &m->v[v];
    uint32_t buf = (uint32_t)i->imm;
    emit_scalar(m, i->a); /* a constant gets its form */
    if (i->b)
        emit_scalar(m, i->b);
    bool shared = index->form == FORM_UNIFORM || (index->form == FORM_AFFINE && index->stride == 0);
    if (shared && !i->b) {
        out->form = FORM_UNIFORM;
        out->scalar = load_scalar(m, i->dtype, address(m, buf, index->scalar));
        return;
    }
    if (shared && m->v[i->b].form == FORM_UNIFORM) {
        out->form = FORM_UNIFORM;
        out->scalar = load_if(m, i->dtype, address(m, buf, index->scalar), m->v[i->b].scalar);
        return;
    }
    LLVMValueRef *part = new_parts(m, out), *mask = i->b ? emit_parts(m, i->b) : NULL;
    bool neighbours = index->form == FORM_AFFINE && index->stride == 1;
    LLVMValueRef *at = neighbours ? NULL : emit_index_parts(m, i->a);
    LLVMValueRef first = neighbours ? address(m, buf, index->scalar) : NULL;
    out->form = FORM_VECTOR;
    for (unsigned p = 0; part && p < m->parts; p++) {
        LLVMValueRef pm = mask ? mask[p] : NULL;
        if (at && m->native > 1) {
            part[p] = gather_part(m, buf, at[p], pm);
            continue;
        }
        LLVMValueRef ptr = at ? address(m, buf, at[p]) : part_address(m, buf, first, p);
        part[p] = m->native > 1 ? load_vector(m, i->dtype, ptr, pm) : pm ? load_if(m, i->dtype, ptr, pm)
                                                                         : load_scalar(m, i->dtype, ptr);
    }
}

static void store_if(struct emitter *m, LLVMValueRef x, LLVMValueRef ptr, LLVMValueRef cond, unsigned dtype)
{
    LLVMBasicBlockRef then = NULL, join = NULL;
    if (cond) {
        then = LLVMAppendBasicBlockInContext(m->ctx, m->fn, "store");
        join = LLVMAppendBasicBlockInContext(m->ctx, m->fn, "stored");
        LLVMBuildCondBr(m->b, cond, then, join);
        LLVMPositionBuilderAtEnd(m->b, then);
    }
    LLVMSetAlignment(LLVMBuildStore(m->b, to_memory(m, dtype, x), ptr), (unsigned)dtype_size(dtype));
    if (cond) {
        LLVMBuildBr(m->b, join);
        LLVMPositionBuilderAtEnd(m->b, join);
    }
}

static void store_part(struct emitter *m, uint32_t buf, LLVMValueRef x, LLVMValueRef ptr, bool scattered, LLVMValueRef mask)
{
    unsigned dtype = m->k->buf[buf].dtype;
    if (m->native == 1) {
        store_if(m, x, ptr, mask, dtype);
        return;
    }
    x = to_memory(m, dtype, x);
    LLVMTypeRef t = LLVMTypeOf(x);
    if (scattered)
        intrinsic(m, "llvm.masked.scatter", (LLVMTypeRef[]){t, LLVMVectorType(m->ptr, m->native)}, 2,
                  (LLVMValueRef[]){x, ptr, alignment(m, dtype), mask ? mask : all_lanes(m)}, 4);
    else if (mask)
        intrinsic(m, "llvm.masked.store", (LLVMTypeRef[]){t, m->ptr}, 2, (LLVMValueRef[]){x, ptr, alignment(m, dtype), mask}, 4);
    else
        LLVMSetAlignment(LLVMBuildStore(m->b, x, ptr), (unsigned)dtype_size(dtype));
}

void emit_store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct emitted *index = &m->v[i->a];
    uint32_t buf = (uint32_t)i->imm;
    bool varying = m->k->inst[i->a].varying || m->k->inst[i->b].varying || (i->c && m->k->inst[i->c].varying);
    if (!varying) {
        store_if(m, emit_scalar(m, i->b), address(m, buf, emit_scalar(m, i->a)), i->c ? emit_scalar(m, i->c) : NULL, m->k->buf[buf].dtype);
        return;
    }
    emit_scalar(m, i->a); /* a constant gets its form */
    LLVMValueRef *x = emit_parts(m, i->b), *mask = i->c ? emit_parts(m, i->c) : NULL;
    bool neighbours = index->form == FORM_AFFINE && index->stride == 1;
    LLVMValueRef *at = neighbours ? NULL : emit_index_parts(m, i->a);
    LLVMValueRef first = neighbours ? address(m, buf, index->scalar) : NULL;
    for (unsigned p = 0; x && p < m->parts; p++) {
        LLVMValueRef ptr = at ? address(m, buf, at[p]) : part_address(m, buf, first, p);
        store_part(m, buf, x[p], ptr, at != NULL, mask ? mask[p] : NULL);
    }
}

/* What is to be read is a tile or more away: into the second-level cache.  The index may lie outside the buffer. */
void emit_prefetch(struct emitter *m, val v)
{
    enum { NEAR = 3, SECOND_LEVEL = 2, DATA = 1 };
    const struct linst *i = &m->k->inst[v];
    uint32_t buf = (uint32_t)i->imm;
    bool write = i->kind == PREFETCH_WRITE;
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    LLVMValueRef index = emit_scalar(m, i->a);
    LLVMValueRef ptr = LLVMBuildGEP2(m->b, memory_type(m, m->k->buf[buf].dtype), m->buf[buf], &index, 1, "");
    intrinsic(m, "llvm.prefetch", (LLVMTypeRef[]){m->ptr}, 1,
              (LLVMValueRef[]){ptr, LLVMConstInt(i32, write, 0), LLVMConstInt(i32, write ? NEAR : SECOND_LEVEL, 0), LLVMConstInt(i32, DATA, 0)}, 4);
}
