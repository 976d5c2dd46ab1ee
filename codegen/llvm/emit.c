/* Emits a kernel as one LLVM function, in one pass over the instructions with a stack of loops and ifs.
 *
 * Varying values are arrays of native vectors and are computed part by part, so a kernel of width 64 has several
 * independent instructions in flight.  Indices stay scalar (form affine) as long as possible.  Most accesses then
 * become plain vector loads from a base and an index with an immediate offset. */
#include "emit.h"
#include <string.h>

struct emit_scope {
    val head;                     /* LOOP or IF */
    int64_t iteration;                /* unrolled: the value of the variable */
    LLVMBasicBlockRef before, body, exit;
    LLVMBasicBlockRef outer;      /* `before` of the enclosing loop */
    bool guarded;                 /* may have no iterations: the exit block merges with `before` */
    bool straight;                /* one iteration, no branch */
};

struct walker {
    struct emitter m;
    struct emit_scope stack[MAX_NEST];
    unsigned depth;
    val *next;                    /* per carry: the value of its `next` */
    /* per carry: the phi after a loop that may be skipped; for an unrolled loop the result of the last iteration */
    struct emitted *final;
    LLVMValueRef begin, end;      /* the iterations of this phase to run */
};

static bool emit_constant_of(const struct kernel *k, val v, int64_t *c)
{
    *c = (int64_t)k->inst[v].imm;
    return k->inst[v].op == L_CONST;
}

LLVMValueRef emit_scalar(struct emitter *m, val v)
{
    if (m->v[v].form == FORM_NONE) { /* constants are emitted where they are used */
        m->v[v].form = FORM_UNIFORM;
        m->v[v].scalar = const_bits(m, m->k->inst[v].dtype, m->k->inst[v].imm);
    }
    return m->v[v].scalar;
}

/* The number of vectors of a value that is not scalar. */
static unsigned part_count(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return i->cols ? emit_tile_parts(m, v) : m->parts;
}

static bool parts_alloc(struct emitter *m, val v, struct emitted *e)
{
    unsigned n = part_count(m, v);
    if (!e->part && !(e->part = mem_alloc((n > MAX_PARTS ? n : MAX_PARTS) * sizeof *e->part)))
        err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", m->k->name);
    return e->part;
}

LLVMValueRef *emit_new_parts(struct emitter *m, val v)
{
    parts_alloc(m, v, &m->v[v]);
    return m->v[v].part;
}

/* Lanes lane0 .. lane0 + native - 1 of an affine index. */
static LLVMValueRef affine_vector(struct emitter *m, const struct emitted *e, unsigned lane0)
{
    return LLVMBuildAdd(m->b, splat(m, e->scalar, m->native), emit_steps(m, m->i64, e, lane0), "");
}

LLVMValueRef *emit_parts(struct emitter *m, val v)
{
    if (m->v[v].form == FORM_NONE)
        emit_scalar(m, v);
    struct emitted *e = &m->v[v];
    if (e->form == FORM_TILE)
        return e->part;
    if (e->form == FORM_VECTOR)
        return e->narrow ? emit_wide_parts(m, v) : e->part;
    LLVMBasicBlockRef here = LLVMGetInsertBlock(m->b);
    LLVMValueRef *part = emit_new_parts(m, v);
    if (!part || (e->part_block == here && e->part_width == m->width))
        return part;
    e->part_block = here;
    e->part_width = m->width;
    LLVMValueRef same = e->form == FORM_UNIFORM ? emit_uniform_vector(m, v) : NULL;
    for (unsigned p = 0; p < m->parts; p++)
        part[p] = same ? same : affine_vector(m, e, p * m->native);
    return part;
}

void emit_set_uniform(const struct emitter *m, struct emitted *e, LLVMValueRef x)
{
    e->form = FORM_UNIFORM;
    e->scalar = x;
    e->home = LLVMIsConstant(x) ? 0 : m->depth;
    e->hoisted = NULL; /* of the previous iteration of an unrolled loop */
}

static void set_uniform(struct emitter *m, val v, LLVMValueRef x) { emit_set_uniform(m, &m->v[v], x); }

/* How an affine index grows from lane to lane. */
struct lane_steps { uint64_t stride, within; unsigned repeat; };

static void set_affine(struct emitter *m, val v, LLVMValueRef base, struct lane_steps by)
{
    bool even = by.stride == by.within * by.repeat; /* the step is the same from each lane to the next */
    set_uniform(m, v, base);
    m->v[v].form = FORM_AFFINE;
    m->v[v].stride = even && by.within ? by.within : by.stride;
    m->v[v].within = even ? 0 : by.within;
    m->v[v].repeat = even && by.within ? 1 : by.repeat;
}

/* ---- primitives ---- */

static bool is_scalar_form(const struct emitter *m, val v) { return m->v[v].form != FORM_VECTOR; }

static struct lane_steps steps_of_lanes(const struct emitter *m, val v)
{
    const struct emitted *e = &m->v[v];
    return e->form == FORM_AFFINE ? (struct lane_steps){e->stride, e->within, e->repeat} : (struct lane_steps){0, 0, 1};
}

/* Gives both the same number of lanes to repeat. false: there is none. */
static bool repeat_alike(struct lane_steps *a, struct lane_steps *b)
{
    enum { MAX_COUNT = 2 }; /* for lanes with steps in between */
    if (a->repeat > b->repeat)
        return repeat_alike(b, a);
    if (a->repeat == 1 && b->repeat > 1 && (b->repeat <= MAX_COUNT || !a->stride))
        *a = (struct lane_steps){a->stride * b->repeat, a->stride, b->repeat};
    return a->repeat == b->repeat;
}

/* A quotient of lanes, as in repeated elements: `by` adjacent lanes have the same index. */
static bool emit_repeated(struct emitter *m, val v, int64_t by)
{
    const struct emitted *a = &m->v[m->k->inst[v].a];
    if (a->form != FORM_AFFINE || a->stride != 1 || a->within || by < 2 || by > m->native ||
        m->native % (a->repeat * (unsigned)by))
        return false;
    int64_t first = LLVMIsAConstantInt(a->scalar) ? LLVMConstIntGetSExtValue(a->scalar) : -1;
    if (first < 0 || first % by)
        return false;
    set_affine(m, v, LLVMConstInt(m->i64, (uint64_t)(first / by), 0),
               (struct lane_steps){1, 0, a->repeat * (unsigned)by});
    return true;
}

/* Emits sums and multiples of affine indices, and some quotients, as affine indices. */
static bool emit_affine(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    enum prim p = (enum prim)(i->op - L_PRIM);
    if (!i->varying || !emit_is_step(i))
        return false;
    if (!is_scalar_form(m, i->a) || !is_scalar_form(m, i->b))
        return false;
    LLVMValueRef a = emit_scalar(m, i->a), b = emit_scalar(m, i->b);
    struct lane_steps sa = steps_of_lanes(m, i->a), sb = steps_of_lanes(m, i->b);
    int64_t c;
    if (p == P_DIV)
        return emit_constant_of(m->k, i->b, &c) && emit_repeated(m, v, c);
    val k = emit_constant_of(m->k, i->a, &c) ? i->a : emit_constant_of(m->k, i->b, &c) ? i->b : 0;
    if (p == P_MUL ? !k : !repeat_alike(&sa, &sb))
        return false;
    uint64_t by = p == P_SUB ? UINT64_MAX : 1; /* -1 */
    struct lane_steps sum = {sa.stride + by * sb.stride, sa.within + by * sb.within, sa.repeat};
    LLVMBasicBlockRef back = emit_leave_loop(m, v);
    if (p == P_ADD && LLVMIsAConstantInt(b) && LLVMIsNull(b)) { /* the first lane is often 0 and needs no instruction */
        set_affine(m, v, a, sum);
        m->v[v].home = m->v[i->a].home;
    } else if (p == P_ADD) {
        set_affine(m, v, LLVMBuildAdd(m->b, a, b, ""), sum);
    } else if (p == P_SUB) {
        set_affine(m, v, LLVMBuildSub(m->b, a, b, ""), sum);
    } else {
        struct lane_steps x = k == i->a ? sb : sa;
        x.stride *= (uint64_t)c;
        x.within *= (uint64_t)c;
        set_affine(m, v, LLVMBuildMul(m->b, a, b, ""), x);
    }
    emit_reenter_loop(m, v, back);
    return true;
}

static void emit_primitive(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const val operand[3] = {i->a, i->b, i->c};
    enum prim p = (enum prim)(i->op - L_PRIM);
    unsigned from = m->k->inst[i->a].dtype, n = 0;
    if (p == P_SELECT)
        from = m->k->inst[i->b].dtype;
    bool varying = false;
    while (n < 3 && operand[n]) {
        emit_scalar(m, operand[n]);
        varying |= m->v[operand[n]].form != FORM_UNIFORM;
        n++;
    }
    if (!varying) {
        LLVMValueRef x[3];
        for (unsigned j = 0; j < n; j++)
            x[j] = m->v[operand[j]].scalar;
        LLVMBasicBlockRef back = emit_leave_loop(m, v);
        set_uniform(m, v, emit_prim(m, p, from, i->dtype, x));
        emit_reenter_loop(m, v, back);
        return;
    }
    if (emit_affine(m, v))
        return;
    LLVMValueRef *in[3], *out = emit_new_parts(m, v);
    m->v[v].form = FORM_VECTOR;
    if (!out || emit_index_as_i32(m, v, out) || emit_nibble(m, v, out))
        return;
    for (unsigned j = 0; j < n; j++)
        in[j] = emit_parts(m, operand[j]);
    for (unsigned q = 0; !m->e->code && q < m->parts; q++) {
        LLVMValueRef x[3];
        for (unsigned j = 0; j < n; j++)
            x[j] = in[j][q];
        out[q] = emit_prim(m, p, from, i->dtype, x);
    }
}

/* One step of a lane reduction on scalars or vectors: acc is the lower lane. */
static LLVMValueRef fold_step(struct emitter *m, enum fold f, unsigned dtype, LLVMValueRef acc, LLVMValueRef x)
{
    if (f == FOLD_ADD || f == FOLD_MUL)
        return emit_prim(m, f == FOLD_ADD ? P_ADD : P_MUL, dtype, dtype, (LLVMValueRef[]){acc, x});
    LLVMValueRef less[] = {f == FOLD_MAX ? x : acc, f == FOLD_MAX ? acc : x};
    LLVMValueRef keep = emit_prim(m, P_LT, dtype, KL_BOOL, less);
    if (dtype_is_float(dtype))
        keep = LLVMBuildOr(m->b, keep, emit_prim(m, P_NE, dtype, KL_BOOL, (LLVMValueRef[]){acc, acc}), "");
    return LLVMBuildSelect(m->b, keep, acc, x, "");
}

/* Combines lane i with lane i + h for h = W/2 ... 1: first whole vectors, then halves of one. */
static void emit_fold(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    LLVMValueRef x[MAX_PARTS], *in = emit_parts(m, i->a);
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    if (!in)
        return;
    memcpy(x, in, m->parts * sizeof *x);
    for (unsigned h = m->parts / 2; h; h /= 2)
        for (unsigned p = 0; p < h; p++)
            x[p] = fold_step(m, (enum fold)i->imm, i->dtype, x[p], x[p + h]);
    for (unsigned h = m->native / 2; h; h /= 2) {
        LLVMValueRef lane[64];
        for (unsigned l = 0; l < m->native; l++)
            lane[l] = l < h ? LLVMConstInt(i32, l + h, 0) : LLVMGetPoison(i32);
        LLVMValueRef upper = LLVMBuildShuffleVector(m->b, x[0], LLVMGetPoison(LLVMTypeOf(x[0])),
                                                    LLVMConstVector(lane, m->native), "");
        x[0] = fold_step(m, (enum fold)i->imm, i->dtype, x[0], upper);
    }
    set_uniform(m, v, m->native == 1 ? x[0] : LLVMBuildExtractElement(m->b, x[0], LLVMConstInt(i32, 0, 0), ""));
}

/* Lane l comes from lane l, l + h or l - h: a shuffle of two vectors within a vector, whole vectors beyond it. */
static void emit_interleave(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    LLVMValueRef *a = emit_parts(m, i->a), *b = emit_parts(m, i->b), *out = emit_new_parts(m, v);
    unsigned h = (unsigned)i->imm, far = h / m->native;
    for (unsigned p = 0; a && b && out && p < m->parts; p++) {
        if (far) {
            out[p] = i->kind == INTERLEAVE_LO ? (p & far ? b[p - far] : a[p]) : p & far ? b[p] : a[p + far];
            continue;
        }
        unsigned lane[64];
        for (unsigned l = 0; l < m->native; l++)
            lane[l] = i->kind == INTERLEAVE_LO ? (l & h ? m->native + l - h : l) : l & h ? m->native + l : l + h;
        out[p] = shuffle(m, a[p], b[p], lane, m->native);
    }
    m->v[v].form = FORM_VECTOR;
}

/* ---- control flow ---- */

static LLVMBasicBlockRef emit_new_block(struct emitter *m, const char *name)
{
    return LLVMAppendBasicBlockInContext(m->ctx, m->fn, name);
}

/* The carries after a loop: [first, end). */
static val carries_end(const struct kernel *k, val loop)
{
    val v = loop + 1;
    while (v < k->ninst && k->inst[v].op == L_CARRY)
        v++;
    return v;
}

/* The form of a carry, whatever its initial value. */
static enum form form_of(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return i->cols ? FORM_TILE : i->varying ? FORM_VECTOR : FORM_UNIFORM;
}

/* A phi for carry c in the current block, or one for each part. */
static void carry_phis(struct emitter *m, val c, struct emitted *phi)
{
    if (emit_is_amx(m, c))
        return;
    LLVMTypeRef t = type_of(m, m->k->inst[c].dtype);
    phi->form = form_of(m, c);
    if (phi->form == FORM_UNIFORM) {
        emit_set_uniform(m, phi, LLVMBuildPhi(m->b, t, ""));
        return;
    }
    bool tile = phi->form == FORM_TILE;
    parts_alloc(m, c, phi);
    for (unsigned p = 0; phi->part && p < part_count(m, c); p++)
        phi->part[p] = LLVMBuildPhi(m->b, tile ? emit_tile_part_type(m, &m->k->inst[c], p) : type_lanes(t, m->native),
                                    "");
}

/* Adds `from` to the phi for control from the end of block pred, where its vectors are made if necessary. */
static void add_incoming(struct emitter *m, const struct emitted *phi, val from, LLVMBasicBlockRef pred)
{
    if (emit_is_amx(m, from) || !phi->form)
        return;
    LLVMBasicBlockRef here = emit_at_end_of(m, pred);
    if (phi->form == FORM_UNIFORM) {
        LLVMValueRef x = emit_scalar(m, from);
        LLVMAddIncoming(phi->scalar, &x, &pred, 1);
    } else {
        LLVMValueRef *x = emit_parts(m, from);
        for (unsigned p = 0; x && phi->part && p < part_count(m, from); p++)
            LLVMAddIncoming(phi->part[p], &x[p], &pred, 1);
    }
    emit_at_end_of(m, here);
}

/* Sets *to, of the form of carry c, to the current value of `from`. */
static void emit_take(struct emitter *m, val c, struct emitted *to, val from)
{
    if (emit_is_amx(m, c))
        return;
    to->form = form_of(m, c);
    to->part_block = to->other_block = NULL;
    if (to->form == FORM_UNIFORM) {
        emit_set_uniform(m, to, emit_scalar(m, from));
        return;
    }
    LLVMValueRef *x = emit_parts(m, from);
    parts_alloc(m, c, to);
    for (unsigned p = 0; x && to->part && p < part_count(m, c); p++)
        to->part[p] = x[p];
}

static void emit_set_value(struct emitter *m, val c, const struct emitted *from)
{
    struct emitted *to = &m->v[c];
    to->form = from->form;
    to->part_block = to->other_block = NULL;
    if (from->form == FORM_UNIFORM) {
        emit_set_uniform(m, to, from->scalar);
        return;
    }
    LLVMValueRef *part = emit_new_parts(m, c);
    for (unsigned p = 0; part && from->part && p < part_count(m, c); p++)
        part[p] = from->part[p];
}

static void open_vector(struct emitter *m, val v)
{
    int64_t w = 1;
    emit_constant_of(m->k, m->k->inst[v].b, &w);
    unsigned lanes = m->vector_bytes / 4;
    m->width = (unsigned)w;
    m->native = m->width < lanes ? m->width : lanes;
    m->parts = m->width / m->native;
    set_affine(m, v, LLVMConstInt(m->i64, 0, 0), (struct lane_steps){1, 0, 1});
}

static struct emit_scope *emit_push(struct walker *w, val head)
{
    struct emit_scope *s = &w->stack[w->depth++];
    *s = (struct emit_scope){.head = head};
    return s;
}

static void open_loop(struct walker *w, val v)
{
    struct emitter *m = &w->m;
    const struct linst *i = &m->k->inst[v];
    struct emit_scope *s = emit_push(w, v);
    val end = carries_end(m->k, v);
    if (i->kind == LOOP_VECTOR) {
        open_vector(m, v);
        s->straight = true;
        return;
    }
    for (val c = v + 1; c < end; c++)
        emit_amx_zero(m, c, m->k->inst[c].a);
    LLVMValueRef lo = emit_scalar(m, i->a), hi = emit_scalar(m, i->b);
    if (i->kind == LOOP_PARALLEL) {
        lo = w->begin;
        hi = w->end;
    }
    int64_t clo, chi, step = (int64_t)i->imm;
    bool known = i->kind != LOOP_PARALLEL && emit_constant_of(m->k, i->a, &clo) && emit_constant_of(m->k, i->b, &chi);
    if (known && clo < chi && chi - clo <= step) {
        s->straight = true;
        set_uniform(m, v, lo);
        for (val c = v + 1; c < end; c++)
            emit_take(m, c, &m->v[c], m->k->inst[c].a);
        return;
    }
    s->guarded = !(known && clo < chi);
    s->outer = m->before;
    m->before = s->before = LLVMGetInsertBlock(m->b);
    m->depth++;
    s->body = emit_new_block(m, "loop");
    s->exit = emit_new_block(m, "done");
    if (s->guarded)
        LLVMBuildCondBr(m->b, LLVMBuildICmp(m->b, LLVMIntSLT, lo, hi, ""), s->body, s->exit);
    else
        LLVMBuildBr(m->b, s->body);
    LLVMPositionBuilderAtEnd(m->b, s->body);
    set_uniform(m, v, LLVMBuildPhi(m->b, m->i64, ""));
    LLVMAddIncoming(m->v[v].scalar, &lo, &s->before, 1);
    for (val c = v + 1; c < end; c++)
        carry_phis(m, c, &m->v[c]);
    for (val c = v + 1; c < end; c++)
        add_incoming(m, &m->v[c], m->k->inst[c].a, s->before);
}

/* ---- unrolled loops: the body is emitted repeatedly ---- */

/* Starts the next iteration at the first instruction after the carries, or continues after the loop. */
static val unrolled_iteration(struct walker *w, struct emit_scope *s, val end)
{
    struct emitter *m = &w->m;
    const struct linst *i = &m->k->inst[s->head];
    if (s->iteration >= (int64_t)m->k->inst[i->b].imm) {
        w->depth--;
        return end + 1;
    }
    val body = carries_end(m->k, s->head);
    for (val c = s->head + 1; c < body; c++)
        emit_set_value(m, c, &w->final[c]);
    /* vectors of the previous iteration, also those of the variable and of carries */
    for (val v = s->head; v < end; v++)
        m->v[v].part_block = m->v[v].other_block = NULL;
    set_uniform(m, s->head, LLVMConstInt(m->i64, (uint64_t)s->iteration, 0));
    return body;
}

static val open_unrolled(struct walker *w, val v)
{
    struct emit_scope *s = emit_push(w, v);
    val end = kernel_end_of(w->m.k, v);
    s->iteration = (int64_t)w->m.k->inst[w->m.k->inst[v].a].imm;
    for (val c = v + 1; w->m.k->inst[c].op == L_CARRY; c++)
        emit_take(&w->m, c, &w->final[c], w->m.k->inst[c].a);
    return unrolled_iteration(w, s, end);
}

static val close_unrolled(struct walker *w, val end)
{
    struct emit_scope *s = &w->stack[w->depth - 1];
    const struct kernel *k = w->m.k;
    for (val c = s->head + 1; k->inst[c].op == L_CARRY; c++)
        emit_take(&w->m, c, &w->final[c], w->next[c]);
    if (__builtin_add_overflow(s->iteration, (int64_t)k->inst[s->head].imm, &s->iteration))
        s->iteration = INT64_MAX;
    return unrolled_iteration(w, s, end);
}

static void close_loop(struct walker *w)
{
    struct emitter *m = &w->m;
    struct emit_scope *s = &w->stack[--w->depth];
    const struct linst *i = &m->k->inst[s->head];
    if (i->kind == LOOP_VECTOR) {
        m->width = m->native = m->parts = 0;
        return;
    }
    val end = carries_end(m->k, s->head);
    if (s->straight) /* `out` reads the value of `next` */
        return;
    LLVMValueRef hi = i->kind == LOOP_PARALLEL ? w->end : emit_scalar(m, i->b);
    LLVMBasicBlockRef latch = LLVMGetInsertBlock(m->b);
    LLVMValueRef iv = m->v[s->head].scalar, next = LLVMBuildNSWAdd(m->b, iv, LLVMConstInt(m->i64, i->imm, 0), "");
    LLVMAddIncoming(iv, &next, &latch, 1);
    LLVMBuildCondBr(m->b, LLVMBuildICmp(m->b, LLVMIntSLT, next, hi, ""), s->body, s->exit);
    LLVMPositionBuilderAtEnd(m->b, s->exit);
    m->before = s->outer;
    m->depth--;
    for (val c = s->head + 1; s->guarded && c < end; c++)
        carry_phis(m, c, &w->final[c]);
    for (val c = s->head + 1; c < end; c++) {
        add_incoming(m, &m->v[c], w->next[c], latch);
        if (!s->guarded)
            continue;
        add_incoming(m, &w->final[c], m->k->inst[c].a, s->before);
        add_incoming(m, &w->final[c], w->next[c], latch);
    }
}

static void open_if(struct walker *w, val v)
{
    struct emitter *m = &w->m;
    struct emit_scope *s = emit_push(w, v);
    s->body = emit_new_block(m, "then");
    s->exit = emit_new_block(m, "endif");
    LLVMBuildCondBr(m->b, emit_scalar(m, m->k->inst[v].a), s->body, s->exit);
    LLVMPositionBuilderAtEnd(m->b, s->body);
}

static void close_if(struct walker *w)
{
    struct emit_scope *s = &w->stack[--w->depth];
    LLVMBuildBr(w->m.b, s->exit);
    LLVMPositionBuilderAtEnd(w->m.b, s->exit);
}

/* The final value of a carry: the phi after a loop that may be skipped, else the value of `next`. */
static void emit_out(struct walker *w, val v)
{
    struct emitter *m = &w->m;
    val c = m->k->inst[v].a;
    const struct emitted *f = &w->final[c];
    f->form ? emit_set_value(m, v, f) : emit_take(m, v, &m->v[v], w->next[c]);
}

static void emit_tile_inst(struct emitter *m, val v)
{
    switch (m->k->inst[v].op) {
    case L_LOAD:
        emit_tile_load(m, v);
        break;
    case L_STORE:
        emit_tile_store(m, v);
        break;
    case L_SPLAT:
        emit_tile_splat(m, v);
        break;
    case L_INDEX:
        emit_tile_index(m, v);
        break;
    case L_MMA:
        emit_mma(m, v);
        break;
    default:
        emit_tile_prim(m, v);
    }
}

/* Emitted where the kernel has the instruction, not at its start: a register that is live over the loops of a product
 * is missing there. */
static void read_slot(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    LLVMValueRef at = LLVMConstInt(m->i64, slot_number(i), 0);
    LLVMValueRef p = LLVMBuildInBoundsGEP2(m->b, m->i64, LLVMGetParam(m->fn, 1), &at, 1, "");
    LLVMTypeRef t = i->dtype == KL_BOOL ? m->i8 : type_of(m, i->dtype); /* little-endian: the low bytes */
    LLVMValueRef x = LLVMBuildLoad2(m->b, t, p, "");
    set_uniform(m, v, i->dtype == KL_BOOL ? LLVMBuildICmp(m->b, LLVMIntNE, x, LLVMConstNull(t), "") : x);
}

/* Emits instruction v; returns the next instruction. */
static val emit_inst(struct walker *w, val v)
{
    struct emitter *m = &w->m;
    const struct linst *i = &m->k->inst[v];
    if (emit_is_amx(m, v) && i->op != L_CARRY && i->op != L_OUT) {
        emit_amx(m, v);
        return v + 1;
    }
    bool tile = i->cols ? i->op != L_CARRY && i->op != L_OUT : i->op == L_STORE && m->k->inst[i->b].cols;
    val end;
    if (m->v[v].transposed)
        return v + 1;
    if (tile) {
        emit_tile_inst(m, v);
        return v + 1;
    }
    if (i->op == L_LOOP && i->kind == LOOP_UNROLLED)
        return open_unrolled(w, v);
    if (i->op == L_END && m->k->inst[i->a].op == L_LOOP && m->k->inst[i->a].kind == LOOP_UNROLLED)
        return close_unrolled(w, v);
    switch (i->op) {
    case L_SLOT:
        read_slot(m, v);
        break;
    case L_ALIAS:
        set_uniform(m, v, LLVMBuildICmp(m->b, LLVMIntEQ, m->buf[(uint32_t)i->imm], m->buf[i->imm >> 32], ""));
        break;
    case L_CONST:
    case L_CARRY:
        break;
    case L_NEXT:
        w->next[i->a] = i->b;
        break;
    case L_LOOP:
        open_loop(w, v);
        break;
    case L_IF:
        open_if(w, v);
        break;
    case L_END:
        m->k->inst[i->a].op == L_IF ? close_if(w) : close_loop(w);
        break;
    case L_OUT:
        emit_out(w, v);
        break;
    case L_LOAD:
        emit_load(m, v);
        break;
    case L_STORE:
        emit_store(m, v);
        break;
    case L_PREFETCH:
        emit_prefetch(m, v);
        break;
    case L_ATOMIC:
        emit_atomic(m, v);
        break;
    case L_SPLAT:
        set_uniform(m, v, emit_scalar(m, i->a));
        m->v[v].home = m->v[i->a].home;
        break;
    case L_INTERLEAVE:
        if ((end = emit_transpose(m, v)))
            return end;
        emit_interleave(m, v);
        break;
    case L_LANE_REDUCE:
        emit_fold(m, v);
        break;
    default:
        emit_primitive(m, v);
    }
    return v + 1;
}

/* ---- the function ---- */

static void emit_attribute(struct emitter *m, const char *key, const char *value)
{
    LLVMAddAttributeAtIndex(m->fn, LLVMAttributeFunctionIndex,
                            LLVMCreateStringAttribute(m->ctx, key, (unsigned)strlen(key), value,
                                                      (unsigned)strlen(value)));
}

static void enum_attribute(struct emitter *m, const char *name)
{
    LLVMAddAttributeAtIndex(m->fn, LLVMAttributeFunctionIndex,
                            LLVMCreateEnumAttribute(m->ctx, LLVMGetEnumAttributeKindForName(name, strlen(name)), 0));
}

static void open_function(struct emitter *m, const char *name)
{
    LLVMTypeRef param[4] = {m->ptr, m->ptr, m->i64, m->i64};
    m->fn = LLVMAddFunction(m->module, name, LLVMFunctionType(LLVMVoidTypeInContext(m->ctx), param, 4, 0));
    char bits[16];
    snprintf(bits, sizeof bits, "%u", 8 * m->vector_bytes);
    emit_attribute(m, "prefer-vector-width", bits);
    emit_attribute(m, "min-legal-vector-width", bits);
    emit_attribute(m, "no-builtins", "");
    emit_attribute(m, "stackrealign", ""); /* aligns spilled vectors to cache lines */
    enum_attribute(m, "nounwind");
#if defined(KILN_ASAN)
    enum_attribute(m, "sanitize_address");
#elif defined(KILN_TSAN)
    enum_attribute(m, "sanitize_thread");
#endif
    LLVMPositionBuilderAtEnd(m->b, emit_new_block(m, "entry"));
}

/* Buffer addresses are read once. */
static void read_arguments(struct emitter *m)
{
    for (uint32_t i = 0; i < m->k->nbuf; i++) {
        if (m->k->buf[i].role == BUF_REGISTER) {
            LLVMTypeRef t = LLVMArrayType2(m->i8, (uint64_t)m->k->buf[i].count * dtype_size(m->k->buf[i].dtype));
            m->buf[i] = LLVMBuildAlloca(m->b, t, "");
            LLVMSetAlignment(m->buf[i], 64);
            continue;
        }
        LLVMValueRef at = LLVMConstInt(m->i64, i, 0);
        m->buf[i] = LLVMBuildLoad2(m->b, m->ptr, LLVMBuildInBoundsGEP2(m->b, m->ptr, LLVMGetParam(m->fn, 0), &at, 1,
                                                                       ""), "");
    }
}

/* Limits a phase's iterations to those of the call, and branches around the phase if there are none. */
static void emit_phase(struct walker *w, const struct phase *p)
{
    struct emitter *m = &w->m;
    LLVMBasicBlockRef exit = NULL;
    w->begin = LLVMGetParam(m->fn, 2);
    w->end = LLVMGetParam(m->fn, 3);
    if (p->first > 1 || p->end < m->k->ninst) {
        LLVMValueRef base = LLVMConstInt(m->i64, (uint64_t)p->base, 0),
            max = LLVMConstInt(m->i64, (uint64_t)p->extent, 0);
        LLVMValueRef lo = LLVMBuildSub(m->b, w->begin, base, ""), hi = LLVMBuildSub(m->b, w->end, base, "");
        w->begin = intrinsic(m, "llvm.smax", &m->i64, 1, (LLVMValueRef[]){lo, LLVMConstNull(m->i64)}, 2);
        w->end = intrinsic(m, "llvm.smin", &m->i64, 1, (LLVMValueRef[]){hi, max}, 2);
        LLVMBasicBlockRef run = emit_new_block(m, "phase");
        exit = emit_new_block(m, "synced");
        LLVMBuildCondBr(m->b, LLVMBuildICmp(m->b, LLVMIntSLT, w->begin, w->end, ""), run, exit);
        LLVMPositionBuilderAtEnd(m->b, run);
    }
    for (val v = p->first; v < p->end && !m->e->code;)
        v = emit_inst(w, v);
    if (exit) {
        LLVMBuildBr(m->b, exit);
        LLVMPositionBuilderAtEnd(m->b, exit);
    }
}

bool emit_kernel(const struct kernel *k, const char *name, const struct caps *target, LLVMModuleRef module,
                 LLVMContextRef ctx, struct err *e)
{
    struct walker w = {.m = {.k = k, .ctx = ctx, .module = module, .vector_bytes = target->vector_bytes, .e = e}};
    struct emitter *m = &w.m;
    const char *gpu = kernel_needs_gpu(k);
    if (gpu)
        return err_set(e, KL_ERR_COMPILE, "kernel %s has %s, which runs on a GPU only", k->name, gpu);
    m->x86 = target_is(target, "x86_64");
    m->arm = target_is(target, "aarch64");
    m->dotprod = target_has(target, "dotprod");
    m->i8mm = target_has(target, "i8mm");
    m->bf16 = m->arm && target_has(target, "bf16");
    m->vnni = target_has(target, "avx512vnni") || target_has(target, "avxvnni");
    m->dot2 = target_has(target, "avx512bf16") && target_has(target, "avx512vl");
    m->v = mem_alloc(k->ninst * sizeof *m->v);
    m->buf = mem_alloc((k->nbuf + 1) * sizeof *m->buf);
    w.next = mem_alloc(k->ninst * sizeof *w.next);
    w.final = mem_alloc(k->ninst * sizeof *w.final);
    m->i1 = LLVMInt1TypeInContext(ctx);
    m->i8 = LLVMInt8TypeInContext(ctx);
    m->i64 = LLVMInt64TypeInContext(ctx);
    m->ptr = LLVMPointerTypeInContext(ctx, 0);
    m->b = LLVMCreateBuilderInContext(ctx);
    if (!m->v || !m->buf || !w.next || !w.final) {
        err_set(e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    } else if (emit_ranges(m) && emit_find_quads(m) && emit_find_amx(m, target)) {
        open_function(m, name);
        emit_amx_begin(m);
        read_arguments(m);
        struct phase p = {0};
        while (kernel_phase(k, &p) && !e->code)
            emit_phase(&w, &p);
        emit_stream_end(m);
        emit_amx_end(m);
        LLVMBuildRetVoid(m->b);
        for (val v = 0; v < k->ninst; v++) {
            mem_free(m->v[v].part);
            mem_free(m->v[v].other);
            mem_free(w.final[v].part);
        }
    }
    LLVMDisposeBuilder(m->b);
    mem_free(m->v);
    mem_free(m->range);
    mem_free(m->quads);
    mem_free(m->amx);
    mem_free(m->buf);
    mem_free(w.next);
    mem_free(w.final);
    return !e->code;
}
