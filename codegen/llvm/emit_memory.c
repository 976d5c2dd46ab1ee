/* Loads and stores: whole vectors if lanes are adjacent, shorter ones if several adjacent lanes share an element, one
 * scalar if all do; gathers and scatters otherwise.  A lane with a false predicate never accesses memory. */
#include "emit.h"

static LLVMTypeRef memory_type(struct emitter *m, unsigned dtype)
{
    return dtype == KL_BOOL ? m->i8 : type_of(m, dtype);
}

LLVMValueRef emit_address(struct emitter *m, uint32_t buf, LLVMValueRef index)
{
    return LLVMBuildInBoundsGEP2(m->b, memory_type(m, m->k->buf[buf].dtype), m->buf[buf], &index, 1, "");
}

/* The same for an index that may be outside the buffer if a predicate is false. */
static LLVMValueRef address_anywhere(struct emitter *m, uint32_t buf, LLVMValueRef index)
{
    return LLVMBuildGEP2(m->b, memory_type(m, m->k->buf[buf].dtype), m->buf[buf], &index, 1, "");
}

/* The address `offset` elements after `first`: a constant offset costs nothing. */
static LLVMValueRef address_behind(struct emitter *m, uint32_t buf, LLVMValueRef first, unsigned offset, bool anywhere)
{
    LLVMValueRef n = LLVMConstInt(m->i64, offset, 0);
    LLVMTypeRef t = memory_type(m, m->k->buf[buf].dtype);
    return !offset ? first : anywhere ? LLVMBuildGEP2(m->b, t, first, &n, 1, "")
        : LLVMBuildInBoundsGEP2(m->b, t, first, &n, 1, "");
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
    return LLVMBuildZExt(m->b, x, LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMVectorType(m->i8, LLVMGetVectorSize(t))
                         : m->i8, "");
}

static LLVMValueRef memory_alignment(struct emitter *m, unsigned dtype)
{
    return LLVMConstInt(LLVMInt32TypeInContext(m->ctx), dtype_size(dtype), 0);
}

static LLVMValueRef load_scalar(struct emitter *m, unsigned dtype, LLVMValueRef ptr)
{
    LLVMValueRef x = LLVMBuildLoad2(m->b, memory_type(m, dtype), ptr, "");
    LLVMSetAlignment(x, (unsigned)dtype_size(dtype));
    return from_memory(m, dtype, x);
}

/* Where no lane is read: ptr if one of the mask's lanes is true, else the start of a buffer.  A masked load of no lane
 * at an address without memory takes processors hundreds of cycles. */
static LLVMValueRef address_if_read(struct emitter *m, LLVMValueRef ptr, LLVMValueRef mask)
{
    unsigned lanes = LLVMGetVectorSize(LLVMTypeOf(mask));
    LLVMTypeRef bits = LLVMIntTypeInContext(m->ctx, lanes);
    LLVMValueRef any = LLVMBuildICmp(m->b, LLVMIntNE, LLVMBuildBitCast(m->b, mask, bits, ""), LLVMConstNull(bits), "");
    return LLVMBuildSelect(m->b, any, ptr, m->buf[0], "");
}

static LLVMValueRef load_vector(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef mask)
{
    LLVMTypeRef t = type_lanes(memory_type(m, dtype), lanes);
    LLVMValueRef x;
    if (mask && lanes > 1) {
        ptr = LLVMIsConstant(mask) ? ptr : address_if_read(m, ptr, mask);
        x = intrinsic(m, "llvm.masked.load", (LLVMTypeRef[]){t, m->ptr}, 2,
                      (LLVMValueRef[]){ptr, memory_alignment(m, dtype), mask, LLVMConstNull(t)}, 4);
    } else {
        x = LLVMBuildLoad2(m->b, t, ptr, "");
        LLVMSetAlignment(x, (unsigned)dtype_size(dtype));
    }
    return from_memory(m, dtype, x);
}

static LLVMValueRef all_lanes(struct emitter *m, unsigned n) { return LLVMConstAllOnes(LLVMVectorType(m->i1, n)); }

static LLVMValueRef gather_lanes(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef mask)
{
    LLVMTypeRef t = LLVMVectorType(memory_type(m, dtype), lanes), p = LLVMVectorType(m->ptr, lanes);
    LLVMValueRef x = intrinsic(m, "llvm.masked.gather", (LLVMTypeRef[]){t, p}, 2,
                               (LLVMValueRef[]){ptr, memory_alignment(m, dtype), mask ? mask : all_lanes(m, lanes),
                                                LLVMConstNull(t)}, 4);
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

static bool is_vector(LLVMValueRef x) { return LLVMGetTypeKind(LLVMTypeOf(x)) == LLVMVectorTypeKind; }

LLVMValueRef emit_load_lanes(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef mask)
{
    if (lanes == 1)
        return mask ? load_if(m, dtype, ptr, mask) : load_scalar(m, dtype, ptr);
    return is_vector(ptr) ? gather_lanes(m, dtype, ptr, lanes, mask) : load_vector(m, dtype, ptr, lanes, mask);
}

static LLVMValueRef lane_of(struct emitter *m, LLVMValueRef x, unsigned lane)
{
    return is_vector(x) ? LLVMBuildExtractElement(m->b, x, LLVMConstInt(LLVMInt32TypeInContext(m->ctx), lane, 0), "")
        : x;
}

/* Is the mask of one of the lanes that share an element true? One lane for each element, or one bit if there is one
 * element. */
static LLVMValueRef any_of(struct emitter *m, LLVMValueRef mask, unsigned repeat)
{
    unsigned n = m->native / repeat, lane[64];
    LLVMValueRef any = NULL;
    for (unsigned r = 0; r < repeat; r++) {
        for (unsigned i = 0; i < n; i++)
            lane[i] = i * repeat + r;
        LLVMValueRef one = n > 1 ? shuffle(m, mask, NULL, lane, n) : lane_of(m, mask, r);
        any = any ? LLVMBuildOr(m->b, any, one, "") : one;
    }
    return any;
}

/* A vector whose lanes share elements, so many adjacent lanes each, or all one; the first element is at ptr. */
static LLVMValueRef load_repeated(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned repeat,
                                  LLVMValueRef mask)
{
    unsigned n = m->native / repeat, lane[64];
    if (repeat == 1)
        return emit_load_lanes(m, dtype, ptr, n, mask);
    LLVMValueRef x = emit_load_lanes(m, dtype, ptr, n, mask ? any_of(m, mask, repeat) : NULL);
    for (unsigned i = 0; i < m->native; i++)
        lane[i] = i / repeat;
    return n > 1 ? shuffle(m, x, NULL, lane, m->native) : splat(m, x, m->native);
}

/* Lanes that alternate between two addresses with adjacent elements, the second `within` elements after the first at
 * ptr: half a register is loaded from each. */
static LLVMValueRef load_alternating(struct emitter *m, unsigned dtype, uint32_t buf, LLVMValueRef ptr, uint64_t within,
                                  unsigned p, LLVMValueRef mask)
{
    unsigned n = m->native / 2, lane[64];
    LLVMValueRef half[2];
    for (unsigned j = 0; j < 2; j++) {
        for (unsigned i = 0; i < n; i++)
            lane[i] = 2 * i + j;
        LLVMValueRef own = mask ? shuffle(m, mask, NULL, lane, n) : NULL;
        LLVMValueRef from = address_behind(m, buf, ptr, p * n + j * (unsigned)within, own != NULL);
        half[j] = emit_load_lanes(m, dtype, from, n, own);
    }
    for (unsigned i = 0; i < m->native; i++)
        lane[i] = i % 2 * n + i / 2;
    return shuffle(m, half[0], half[1], lane, m->native);
}

/* Lanes in descending order in memory, from index `first` down: loaded as a vector and reversed. */
static LLVMValueRef load_reversed(struct emitter *m, unsigned dtype, uint32_t buf, LLVMValueRef first, unsigned p,
                                  LLVMValueRef mask)
{
    unsigned n = m->native, lane[64];
    LLVMValueRef back = LLVMConstInt(LLVMTypeOf(first), p * n + n - 1, 0);
    for (unsigned i = 0; i < n; i++)
        lane[i] = n - 1 - i;
    LLVMValueRef at = LLVMBuildSub(m->b, first, back, "");
    LLVMValueRef ptr = mask ? address_anywhere(m, buf, at) : emit_address(m, buf, at);
    LLVMValueRef x = emit_load_lanes(m, dtype, ptr, n, mask ? shuffle(m, mask, NULL, lane, n) : NULL);
    return shuffle(m, x, NULL, lane, n);
}

enum { MAX_STRIDE = 8 }; /* largest stride for which shuffles of whole vectors are faster than gathers */

/* The mask for a vector that starts `first` elements after the first lane's, for lanes that are `stride` elements
 * apart.  Made in the block of the mask, which is often before the loop with the load. */
static LLVMValueRef spread_mask(struct emitter *m, LLVMValueRef mask, unsigned first, unsigned stride)
{
    unsigned n = m->native, from[64];
    LLVMValueRef next = LLVMIsAInstruction(mask) && !LLVMIsAPHINode(mask) ? LLVMGetNextInstruction(mask) : NULL;
    LLVMBasicBlockRef here = LLVMGetInsertBlock(m->b);
    for (unsigned i = 0; i < n; i++)
        from[i] = (first + i) % stride || (first + i) / stride >= n ? n : (first + i) / stride;
    if (next)
        LLVMPositionBuilderBefore(m->b, next);
    LLVMValueRef spread = shuffle(m, mask, LLVMConstNull(LLVMTypeOf(mask)), from, n);
    if (next)
        LLVMPositionBuilderAtEnd(m->b, here);
    return spread;
}

/* Lanes that are `stride` elements apart, the first at ptr, shuffled from so many vectors, the last of which ends with
 * the last lane's element. mask: the lanes that are read; NULL: all. */
static LLVMValueRef load_strided(struct emitter *m, unsigned dtype, uint32_t buf, LLVMValueRef ptr, unsigned stride,
                                 LLVMValueRef mask)
{
    unsigned n = m->native, lane[64], last = (stride - 1) * (n - 1);
    LLVMValueRef x = NULL;
    for (unsigned c = 0; c < stride; c++) {
        unsigned first = c + 1 < stride ? c * n : last;
        LLVMValueRef read = mask ? spread_mask(m, mask, first, stride) : NULL;
        LLVMValueRef vector = load_vector(m, dtype, address_behind(m, buf, ptr, first, mask != NULL), n, read);
        for (unsigned i = 0; i < n; i++) {
            unsigned from = i * stride / n;
            lane[i] = from < c || !x ? i : from == c ? n + i * stride - first : i;
        }
        if (x) {
            x = shuffle(m, x, vector, lane, n);
            continue;
        }
        for (unsigned i = 0; i < n; i++)
            lane[i] = i * stride < n ? i * stride : 0;
        x = shuffle(m, vector, NULL, lane, n);
    }
    return x;
}

/* A load of several adjacent elements for each lane.  If the lanes are adjacent, too, whole vectors are loaded. */
static void load_wide(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct emitted *index = &m->v[i->a];
    uint32_t buf = (uint32_t)i->imm;
    unsigned elements = load_elements(m->k, i), dtype = m->k->buf[buf].dtype;
    emit_scalar(m, i->a); /* sets the form of a constant */
    if (index->form == FORM_UNIFORM && !i->b) {
        LLVMValueRef x = LLVMBuildLoad2(m->b, type_of(m, i->dtype), emit_address(m, buf, index->scalar), "");
        LLVMSetAlignment(x, (unsigned)dtype_size(dtype));
        emit_set_uniform(m, &m->v[v], x);
        return;
    }
    bool near = index->form == FORM_AFFINE && index->stride == elements && index->repeat == 1 && m->native > 1;
    LLVMValueRef *part = emit_new_parts(m, v), *mask = i->b ? emit_parts(m, i->b) : NULL;
    LLVMValueRef *at = near ? NULL : emit_index_parts(m, i->a);
    LLVMTypeRef t = type_lanes(type_of(m, i->dtype), m->native);
    m->v[v].form = FORM_VECTOR;
    for (unsigned p = 0; part && (near || at) && p < m->parts; p++) {
        LLVMValueRef own = mask ? mask[p] : m->native > 1 ? all_lanes(m, m->native) : const_int(m->i1, 1);
        if (near) {
            LLVMValueRef first = address_anywhere(m, buf, index->scalar);
            LLVMValueRef ptr = address_behind(m, buf, first, p * m->native * elements, true);
            part[p] = mask ? intrinsic(m, "llvm.masked.load", (LLVMTypeRef[]){t, m->ptr}, 2,
                                       (LLVMValueRef[]){ptr, memory_alignment(m, dtype), own, LLVMConstNull(t)}, 4)
                           : LLVMBuildLoad2(m->b, t, ptr, "");
            if (!mask)
                LLVMSetAlignment(part[p], (unsigned)dtype_size(dtype));
            continue;
        }
        LLVMTypeRef one = LLVMVectorType(type_of(m, i->dtype), m->native), ptrs = LLVMVectorType(m->ptr, m->native);
        LLVMValueRef ptr = address_anywhere(m, buf, at[p]);
        if (m->native == 1) { /* a gather of one lane */
            LLVMValueRef none = LLVMConstNull(LLVMInt32TypeInContext(m->ctx));
            ptr = LLVMBuildInsertElement(m->b, LLVMGetUndef(ptrs), ptr, none, "");
            own = LLVMBuildInsertElement(m->b, LLVMGetUndef(LLVMVectorType(m->i1, 1)), own, none, "");
        }
        LLVMValueRef x = intrinsic(m, "llvm.masked.gather", (LLVMTypeRef[]){one, ptrs}, 2,
                                   (LLVMValueRef[]){ptr, memory_alignment(m, dtype), own, LLVMConstNull(one)}, 4);
        part[p] = m->native > 1 ? x
                                : LLVMBuildExtractElement(m->b, x, LLVMConstNull(LLVMInt32TypeInContext(m->ctx)), "");
    }
}

/* All lanes load the same element: once, if the mask of any lane is true. */
static void load_shared(struct emitter *m, val v, LLVMValueRef ptr)
{
    LLVMValueRef *part = emit_new_parts(m, v), *mask = emit_parts(m, m->k->inst[v].b), any = NULL;
    LLVMTypeRef bits = LLVMIntTypeInContext(m->ctx, m->native);
    for (unsigned p = 0; mask && p < m->parts; p++) {
        LLVMValueRef own = LLVMBuildBitCast(m->b, mask[p], bits, "");
        any = any ? LLVMBuildOr(m->b, any, own, "") : own;
    }
    if (!part || !any)
        return;
    LLVMValueRef x = load_if(m, m->k->inst[v].dtype, ptr,
                             LLVMBuildICmp(m->b, LLVMIntNE, any, LLVMConstNull(bits), ""));
    for (unsigned p = 0; p < m->parts; p++) {
        LLVMValueRef all = m->native > 1 ? splat(m, x, m->native) : x;
        part[p] = LLVMBuildSelect(m->b, mask[p], all, LLVMConstNull(LLVMTypeOf(all)), "");
    }
    m->v[v].form = FORM_VECTOR;
}

void emit_load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct emitted *index = &m->v[i->a];
    struct emitted *out = &m->v[v];
    uint32_t buf = (uint32_t)i->imm;
    if (load_elements(m->k, i) > 1) {
        load_wide(m, v);
        return;
    }
    emit_scalar(m, i->a); /* sets the form of a constant */
    if (i->b)
        emit_scalar(m, i->b);
    bool shared = index->form == FORM_UNIFORM || (index->form == FORM_AFFINE && index->stride == 0 && !index->within);
    if (shared && !i->b) {
        emit_set_uniform(m, out, load_scalar(m, i->dtype, emit_address(m, buf, index->scalar)));
        return;
    }
    if (shared && m->v[i->b].form == FORM_UNIFORM) {
        emit_set_uniform(m, out, load_if(m, i->dtype, address_anywhere(m, buf, index->scalar), m->v[i->b].scalar));
        return;
    }
    if (shared) {
        load_shared(m, v, address_anywhere(m, buf, index->scalar));
        return;
    }
    LLVMValueRef *part = emit_new_parts(m, v), *mask = i->b ? emit_parts(m, i->b) : NULL;
    bool near = index->form == FORM_AFFINE && index->stride == 1 && !index->within;
    bool alternating = index->form == FORM_AFFINE && index->stride == 1 && index->repeat == 2 && index->within &&
                 index->within <= INT32_MAX && m->native > 2;
    bool reversed = index->form == FORM_AFFINE && index->stride == UINT64_MAX && index->repeat == 1 && m->native > 1;
    bool strided = index->form == FORM_AFFINE && index->stride > 1 && index->stride <= MAX_STRIDE &&
                   index->repeat == 1 && m->native > 1 && i->dtype != KL_BOOL;
    LLVMValueRef *at = near || alternating || reversed || strided ? NULL : emit_index_parts(m, i->a);
    LLVMValueRef first = !near && !alternating && !strided ? NULL : mask ? address_anywhere(m, buf, index->scalar)
        : emit_address(m, buf, index->scalar);
    out->form = FORM_VECTOR;
    for (unsigned p = 0; part && p < m->parts; p++) {
        LLVMValueRef own = mask ? mask[p] : NULL;
        unsigned stride = (unsigned)index->stride, before = p * m->native * stride;
        part[p] = reversed ? load_reversed(m, i->dtype, buf, index->scalar, p, own)
                  : strided ? load_strided(m, i->dtype, buf, address_behind(m, buf, first, before, own != NULL),
                                           stride, own)
                  : alternating ? load_alternating(m, i->dtype, buf, first, index->within, p, own)
                  : at     ? emit_load_lanes(m, i->dtype, own ? address_anywhere(m, buf, at[p])
                                             : emit_address(m, buf, at[p]),
                                             m->native, own)
                           : load_repeated(m, i->dtype, address_behind(m, buf, first, p * m->native / index->repeat,
                                                                       own != NULL),
                                           index->repeat, own);
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

void emit_store_lanes(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef x,
                      LLVMValueRef mask)
{
    if (lanes == 1) {
        store_if(m, x, ptr, mask, dtype);
        return;
    }
    x = to_memory(m, dtype, x);
    LLVMTypeRef t = LLVMTypeOf(x);
    if (is_vector(ptr))
        intrinsic(m, "llvm.masked.scatter", (LLVMTypeRef[]){t, LLVMVectorType(m->ptr, lanes)}, 2,
                  (LLVMValueRef[]){x, ptr, memory_alignment(m, dtype), mask ? mask : all_lanes(m, lanes)}, 4);
    else if (mask)
        intrinsic(m, "llvm.masked.store", (LLVMTypeRef[]){t, m->ptr}, 2,
                  (LLVMValueRef[]){x, ptr, memory_alignment(m, dtype), mask}, 4);
    else
        LLVMSetAlignment(LLVMBuildStore(m->b, x, ptr), (unsigned)dtype_size(dtype));
}

/* ---- streams: non-temporal stores ---- */

/* Does a kernel with non-temporal stores make this store, of adjacent elements in all lanes, one of these? */
static bool memory_is_streaming(const struct emitter *m, const struct linst *i)
{
    enum { MIN_BYTES = 16 }; /* bytes of the smallest register */
    const struct lbuf *b = &m->k->buf[i->imm];
    return m->k->sched.stream && b->role == BUF_OUT && !i->c && m->native * dtype_size(b->dtype) >= MIN_BYTES;
}

static void mark_nontemporal(struct emitter *m, LLVMValueRef store)
{
    LLVMMetadataRef one = LLVMValueAsMetadata(LLVMConstInt(LLVMInt32TypeInContext(m->ctx), 1, 0));
    LLVMMetadataRef node = LLVMMDNodeInContext2(m->ctx, &one, 1);
    LLVMSetMetadata(store, LLVMGetMDKindIDInContext(m->ctx, "nontemporal", sizeof "nontemporal" - 1),
                    LLVMMetadataAsValue(m->ctx, node));
}

/* The parts of a store, from `first` on: non-temporal if the address is aligned to whole registers.  The alignment of
 * rows and of memory lent by the caller is only known at run time. */
static void stream_parts(struct emitter *m, uint32_t buf, LLVMValueRef first, LLVMValueRef *x)
{
    unsigned dtype = m->k->buf[buf].dtype, bytes = m->native * (unsigned)dtype_size(dtype);
    unsigned align = bytes < m->vector_bytes ? bytes : m->vector_bytes;
    LLVMBasicBlockRef way[2] = {LLVMAppendBasicBlockInContext(m->ctx, m->fn, "stream"),
                                LLVMAppendBasicBlockInContext(m->ctx, m->fn, "store")};
    LLVMBasicBlockRef join = LLVMAppendBasicBlockInContext(m->ctx, m->fn, "stored");
    LLVMValueRef low = LLVMBuildAnd(m->b, LLVMBuildPtrToInt(m->b, first, m->i64, ""),
                                    LLVMConstInt(m->i64, align - 1, 0), "");
    LLVMBuildCondBr(m->b, LLVMBuildICmp(m->b, LLVMIntEQ, low, LLVMConstNull(m->i64), ""), way[0], way[1]);
    for (int plain = 0; plain < 2; plain++) {
        LLVMPositionBuilderAtEnd(m->b, way[plain]);
        for (unsigned p = 0; p < m->parts; p++) {
            LLVMValueRef store = LLVMBuildStore(m->b, to_memory(m, dtype, x[p]),
                                                address_behind(m, buf, first, p * m->native, false));
            LLVMSetAlignment(store, plain ? (unsigned)dtype_size(dtype) : align);
            if (!plain)
                mark_nontemporal(m, store);
        }
        LLVMBuildBr(m->b, join);
    }
    LLVMPositionBuilderAtEnd(m->b, join);
}

void emit_stream_end(struct emitter *m)
{
    /* Non-temporal stores are not ordered by other stores: a thread that learns that the kernel has finished must see
     * them. */
    if (m->x86 && m->k->sched.stream)
        intrinsic(m, "llvm.x86.sse.sfence", NULL, 0, NULL, 0);
}

void emit_store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct emitted *index = &m->v[i->a];
    uint32_t buf = (uint32_t)i->imm;
    bool varying = m->k->inst[i->a].varying || m->k->inst[i->b].varying || (i->c && m->k->inst[i->c].varying);
    if (!varying) {
        store_if(m, emit_scalar(m, i->b), emit_address(m, buf, emit_scalar(m, i->a)),
                 i->c ? emit_scalar(m, i->c) : NULL, m->k->buf[buf].dtype);
        return;
    }
    emit_scalar(m, i->a); /* sets the form of a constant */
    LLVMValueRef *x = emit_parts(m, i->b), *mask = i->c ? emit_parts(m, i->c) : NULL;
    bool adjacent = index->form == FORM_AFFINE && index->stride == 1 && index->repeat == 1;
    LLVMValueRef *at = adjacent ? NULL : emit_index_parts(m, i->a);
    LLVMValueRef first = adjacent ? emit_address(m, buf, index->scalar) : NULL;
    if (x && adjacent && memory_is_streaming(m, i)) {
        stream_parts(m, buf, first, x);
        return;
    }
    for (unsigned p = 0; x && p < m->parts; p++) {
        LLVMValueRef ptr = at ? emit_address(m, buf, at[p]) : address_behind(m, buf, first, p * m->native, false);
        emit_store_lanes(m, m->k->buf[buf].dtype, ptr, m->native, x[p], mask ? mask[p] : NULL);
    }
}

/* ---- atomics, lane by lane ---- */

static void update_if(struct emitter *m, const struct linst *i, LLVMValueRef index, LLVMValueRef x, LLVMValueRef cond)
{
    uint32_t buf = (uint32_t)i->imm;
    bool is_signed = dtype_kind(m->k->buf[buf].dtype) == 'I';
    LLVMAtomicRMWBinOp op = i->kind == FOLD_ADD   ? LLVMAtomicRMWBinOpAdd
                            : i->kind == FOLD_MAX ? (is_signed ? LLVMAtomicRMWBinOpMax : LLVMAtomicRMWBinOpUMax)
                                                  : (is_signed ? LLVMAtomicRMWBinOpMin : LLVMAtomicRMWBinOpUMin);
    LLVMBasicBlockRef then = NULL, join = NULL;
    if (cond) {
        then = LLVMAppendBasicBlockInContext(m->ctx, m->fn, "update");
        join = LLVMAppendBasicBlockInContext(m->ctx, m->fn, "updated");
        LLVMBuildCondBr(m->b, cond, then, join);
        LLVMPositionBuilderAtEnd(m->b, then);
    }
    LLVMBuildAtomicRMW(m->b, op, emit_address(m, buf, index), x, LLVMAtomicOrderingMonotonic, 0);
    if (cond) {
        LLVMBuildBr(m->b, join);
        LLVMPositionBuilderAtEnd(m->b, join);
    }
}

void emit_atomic(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (!i->varying) {
        update_if(m, i, emit_scalar(m, i->a), emit_scalar(m, i->b), i->c ? emit_scalar(m, i->c) : NULL);
        return;
    }
    LLVMValueRef *at = emit_parts(m, i->a), *x = emit_parts(m, i->b), *mask = i->c ? emit_parts(m, i->c) : NULL;
    for (unsigned p = 0; at && x && p < m->parts; p++)
        for (unsigned l = 0; l < m->native; l++)
            update_if(m, i, lane_of(m, at[p], l), lane_of(m, x[p], l), mask ? lane_of(m, mask[p], l) : NULL);
}

/* The data is read a tile or more later, so it is prefetched into the second-level cache.  The index may be outside the
 * buffer. */
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
              (LLVMValueRef[]){ptr, LLVMConstInt(i32, write, 0), LLVMConstInt(i32, write ? NEAR : SECOND_LEVEL, 0),
                               LLVMConstInt(i32, DATA, 0)}, 4);
}
