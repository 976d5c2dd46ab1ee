/* A kernel as a function of the dialects: one walk over the flat instructions. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

static bool refuse(struct emitter *m, const char *what)
{
    return err_set(m->e, KL_ERR_COMPILE, "kernel %s: no %s source: %s", m->k->name, m->d->name, what);
}

/* ---- what the kernel needs ---- */

static bool makes_threads(const struct linst *i) { return i->op == L_LOOP && (i->kind == LOOP_VECTOR || i->kind == LOOP_BLOCK); }

static uint32_t widest(const struct kernel *k)
{
    uint32_t w = 1;
    for (val v = 1; v < k->ninst; v++)
        if (makes_threads(&k->inst[v]) && k->inst[k->inst[v].b].imm > w)
            w = (uint32_t)k->inst[k->inst[v].b].imm;
    return w;
}

/* What has no text yet. */
static bool can_say(struct emitter *m)
{
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        if (i->op == L_SYNC)
            return refuse(m, "it has several phases");
        if (i->cols || i->op == L_MMA || i->op == L_INDEX)
            return refuse(m, "it has tiles");
        if (m->own_threads && i->op == L_LOOP && i->kind == LOOP_VECTOR)
            return refuse(m, "it has vector loops among its threads");
    }
    return true;
}

static const char *const exchange_types[] = {"u32", "u64", "f32", "f64"};
enum { EXCHANGE_TYPES = sizeof exchange_types / sizeof *exchange_types };

/* Which arrays folds and mixes exchange values through, by bits. */
static unsigned exchange_arrays(const struct emitter *m)
{
    unsigned used = 0;
    uint32_t width = 1;
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
            width = (uint32_t)m->k->inst[i->b].imm;
        if ((i->op != L_FOLD && i->op != L_MIX) || !exchanges(m, v, width))
            continue;
        for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
            if (!strcmp(exchange_types[x], exchange_type(i->dtype)))
                used |= 1u << x;
    }
    return used;
}

/* Shared buffers, then scratch in order, as long as there is room. */
static bool place_buffers(struct emitter *m, unsigned arrays)
{
    struct source_info *s = &m->info;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        s->inside[b] = l->role == BUF_SHARED || l->role == BUF_REGISTER;
        if (l->role == BUF_SHARED)
            s->shared_bytes += (uint32_t)(((uint64_t)l->count * dtype_size(l->dtype) + 63) / 64 * 64);
    }
    if (s->shared_bytes > m->d->shared_bytes)
        return refuse(m, "it wants more shared memory than a block has");
    for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
        if (arrays >> x & 1)
            s->shared_bytes += s->threads * (x & 1 ? 8 : 4);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        uint64_t room = m->d->shared_bytes > s->shared_bytes ? m->d->shared_bytes - s->shared_bytes : 0;
        uint64_t count = (uint64_t)(l->count > 0 ? l->count : 1);
        if (l->role != BUF_SCRATCH || count > room / 64 * 64 / dtype_size(l->dtype))
            continue;
        s->inside[b] = true;
        s->shared_bytes += (uint32_t)((count * dtype_size(l->dtype) + 63) / 64 * 64);
    }
    return true;
}

static const char *memory_type(unsigned dtype) { return dtype == KL_BOOL ? "u8" : dtype_name(dtype); }

/* ---- the function ---- */

static void open_c(struct emitter *m, const char *entry)
{
    text_put(m->t, "extern \"C\" __global__ void __launch_bounds__(%u) %s(", m->info.threads, entry);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        const char *name = l->role == BUF_SCRATCH ? "work" : "b";
        if (!m->info.inside[b])
            text_put(m->t, "%s%s *%s%u, ", l->role == BUF_IN ? "const " : "", memory_type(l->dtype), name, b);
    }
    text_put(m->t, "const u64 *slots, i64 begin, i64 end)\n{\n");
}

static void open_glsl(struct emitter *m)
{
    bool named[KL_DTYPE_COUNT] = {[KL_U64] = true};
    text_put(m->t, "layout(local_size_x = %u) in;\nlayout(buffer_reference, std430, buffer_reference_align = 8) buffer at_u64 { u64 v; };\n",
             m->info.threads);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        unsigned dtype = m->k->buf[b].dtype == KL_BOOL ? KL_U8 : m->k->buf[b].dtype;
        if (m->info.inside[b] || named[dtype])
            continue;
        named[dtype] = true;
        text_put(m->t, "layout(buffer_reference, std430, buffer_reference_align = %zu) buffer at_%s { %s v; };\n", dtype_size(dtype),
                 dtype_name(dtype), dtype_name(dtype));
    }
    text_put(m->t, "layout(push_constant) uniform Launch { u64 buffers, slots; i64 begin, end; };\n");
}

static void declare_inside(struct emitter *m, unsigned arrays)
{
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        if (!m->info.inside[b])
            continue;
        source_line(m);
        text_put(m->t, "%s%s b%u[%" PRId64 "];\n", l->role == BUF_REGISTER ? "" : m->d->shared, memory_type(l->dtype), b, l->count > 0 ? l->count : 1);
    }
    for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
        if (arrays >> x & 1) {
            source_line(m);
            text_put(m->t, "%s%s x_%s[%u];\n", m->d->shared, exchange_types[x], exchange_types[x], m->info.threads);
        }
}

/* Addresses from the table, and of scratch that is an argument this block's part. */
static void find_buffers(struct emitter *m)
{
    unsigned place = 0;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        bool scratch = l->role == BUF_SCRATCH;
        if (m->info.inside[b])
            continue;
        if (m->d->table)
            text_put(m->t, "    u64 b%u = at_u64(buffers + %uul).v", b, 8 * place++);
        else if (scratch)
            text_put(m->t, "    %s *b%u = work%u", memory_type(l->dtype), b, b);
        if (scratch)
            text_put(m->t, " + %s(%s) * %" PRId64 "%s", m->d->table ? "u64" : "i64", m->d->block,
                     l->count * (m->d->table ? (int64_t)dtype_size(l->dtype) : 1), m->d->table ? m->d->u64 : m->d->i64);
        text_put(m->t, m->d->table || scratch ? ";\n" : "");
    }
}

static bool open_function(struct emitter *m, const char *entry)
{
    unsigned arrays = exchange_arrays(m);
    if (!place_buffers(m, arrays))
        return false;
    if (m->d->table) {
        open_glsl(m);
        declare_inside(m, arrays);
        text_put(m->t, "void main()\n{\n");
        m->depth = 1;
    } else {
        open_c(m, entry);
        m->depth = 1;
        declare_inside(m, arrays);
    }
    source_line(m);
    text_put(m->t, "%su32 t = %s;\n", m->d->local, m->d->thread);
    find_buffers(m);
    return true;
}

/* ---- memory ---- */

static void element(struct emitter *m, uint32_t b, val index)
{
    char i[MAX_OPERAND];
    const char *type = memory_type(m->k->buf[b].dtype);
    source_operand(m, index, i);
    if (m->d->table && !m->info.inside[b])
        text_put(m->t, "at_%s(b%u + u64(%s) * %zuul).v", type, b, i, dtype_size(m->k->buf[b].dtype));
    else if (*m->d->subscript)
        text_put(m->t, "b%u[%s(%s)]", b, m->d->subscript, i);
    else
        text_put(m->t, "b%u[%s]", b, i);
}

static void load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char p[MAX_OPERAND];
    source_declare(m, v);
    if (i->b)
        text_put(m->t, "%s ? ", source_operand(m, i->b, p));
    element(m, (uint32_t)i->imm, i->a);
    text_put(m->t, i->dtype == KL_BOOL ? " != u8(0)" : "");
    if (i->b)
        text_put(m->t, i->dtype == KL_BOOL ? " : false" : " : %s(0)", dtype_name(i->dtype));
    text_put(m->t, ";\n");
}

/* Which lanes may store the same element?  Then they take turns, the last one wins. */
static bool lanes_collide(const struct emitter *m, const struct linst *i)
{
    const struct linst *n = m->k->inst;
    if (m->width == 1 || (!n[i->a].varying && !n[i->b].varying)) /* all store the same, or one thread does */
        return false;
    return !m->affine[i->a] || !m->stride[i->a] || (uint64_t)m->stride[i->a] << 6 == 0;
}

static void change_element(struct emitter *m, const struct linst *i)
{
    static const char *const name[] = {[FOLD_ADD] = "Add", [FOLD_MAX] = "Max", [FOLD_MIN] = "Min"};
    char x[MAX_OPERAND];
    unsigned dtype = m->k->inst[i->b].dtype;
    bool unsigned_add = i->op == L_ATOMIC && dtype == KL_I64 && i->kind == FOLD_ADD && !m->d->table;
    source_operand(m, i->b, x);
    if (i->op == L_ATOMIC)
        text_put(m->t, "atomic%s(%s%s", name[i->kind], unsigned_add ? "(u64 *)" : "", m->d->address);
    element(m, (uint32_t)i->imm, i->a);
    if (i->op == L_ATOMIC)
        text_put(m->t, unsigned_add ? ", u64(%s));\n" : ", %s);\n", x);
    else
        text_put(m->t, dtype == KL_BOOL ? " = u8(%s);\n" : " = %s;\n", x);
}

/* A store or an atomic: by the thread whose lane it is, once. */
static void store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *n = m->k->inst;
    bool varying = n[i->a].varying || n[i->b].varying || n[i->c].varying, turns = i->op == L_STORE && lanes_collide(m, i);
    /* one element, one value, if any lane is true */
    bool same = i->op == L_STORE && !n[i->a].varying && !n[i->b].varying && varying;
    char x[MAX_OPERAND];
    uint32_t lanes = m->own_threads ? m->info.threads : varying ? m->width : 1;
    if (turns) {
        source_line(m);
        text_put(m->t, "for (u32 turn = 0u; turn < %uu; turn++) {\n", m->width);
        m->depth++;
    }
    source_line(m);
    const char *joint = "if (";
    if (turns || (lanes < m->info.threads && !same)) {
        text_put(m->t, turns ? "if (t == turn" : "if (t < %uu", lanes);
        joint = " && ";
    }
    if (i->c) {
        text_put(m->t, "%s%s", joint, source_operand(m, i->c, x));
        joint = " && ";
    }
    text_put(m->t, *joint == ' ' ? ") " : "");
    change_element(m, i);
    if (turns) {
        source_line(m);
        text_put(m->t, "%s\n", m->d->barrier);
        m->depth--;
        source_line(m);
        text_put(m->t, "}\n");
    }
}

/* Copied at once: nobody looks before the thread has waited. */
static void copy_elements(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char to[MAX_OPERAND], from[MAX_OPERAND], p[MAX_OPERAND];
    uint32_t shared = (uint32_t)i->imm, global = (uint32_t)(i->imm >> 32);
    const char *type = memory_type(m->k->buf[shared].dtype), *s = m->d->subscript;
    source_operand(m, i->a, to);
    source_operand(m, i->b, from);
    if (i->c)
        source_operand(m, i->c, p);
    for (unsigned e = 0; e < i->rows; e++) {
        source_line(m);
        text_put(m->t, "b%u[%s(%s + %u)] = ", shared, s, to, e);
        if (i->c)
            text_put(m->t, "%s ? ", p);
        if (m->d->table)
            text_put(m->t, "at_%s(b%u + u64(%s + %u) * %zuul).v", type, global, from, e, dtype_size(m->k->buf[global].dtype));
        else
            text_put(m->t, "b%u[%s(%s + %u)]", global, s, from, e);
        if (i->c)
            text_put(m->t, " : %s(0)", type);
        text_put(m->t, ";\n");
    }
}

static void read_slot(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char at[64], x[96];
    snprintf(at, sizeof at, m->d->table ? "at_u64(slots + %" PRIu64 "ul).v" : "slots[%" PRIu64 "]", m->d->table ? 8 * i->imm : i->imm);
    source_declare(m, v);
    text_put(m->t, "%s;\n", source_bits(i->dtype, at, x, sizeof x));
}

/* ---- control flow ---- */

/* Carries are variables, set together at the end of an iteration. */
static void open_loop(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char a[MAX_OPERAND], b[MAX_OPERAND];
    if (i->kind == LOOP_VECTOR) {
        m->width = (uint32_t)m->k->inst[i->b].imm;
        source_line(m);
        text_put(m->t, "{\n");
        m->depth++;
        source_line(m);
        text_put(m->t, m->width == m->info.threads ? "%si64 v%u = i64(t);\n" : "%si64 v%u = i64(t & %uu);\n", m->d->local, v, m->width - 1);
        return;
    }
    if (i->kind == LOOP_BLOCK) {
        source_line(m);
        text_put(m->t, "{\n");
        m->depth++;
        source_line(m);
        text_put(m->t, "%si64 v%u = i64(t);\n", m->d->local, v);
        return;
    }
    for (val c = v + 1; c < m->k->ninst && m->k->inst[c].op == L_CARRY; c++) {
        const struct linst *n = &m->k->inst[c];
        source_line(m);
        bool exact = m->d->table && (n->dtype == KL_F32 || n->dtype == KL_F64);
        text_put(m->t, "%s%s v%u = %s;\n", exact ? m->d->exact : "", dtype_name(n->dtype), c, source_operand(m, n->a, a));
    }
    source_line(m);
    if (i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID)
        text_put(m->t, "for (i64 v%u = begin + i64(%s); v%u < end; v%u += i64(%s)) {\n", v, m->d->block, v, v, m->d->grid);
    else
        text_put(m->t, "for (i64 v%u = %s; v%u < %s; v%u += %" PRIu64 "%s) {\n", v, source_operand(m, i->a, a), v,
                 source_operand(m, i->b, b), v, i->imm, m->d->i64);
    m->depth++;
}

static void close_nest(struct emitter *m, val end)
{
    const struct linst *head = &m->k->inst[m->k->inst[end].a];
    val first = end;
    char x[MAX_OPERAND];
    while (m->k->inst[first - 1].op == L_NEXT)
        first--;
    bool one = end - first == 1; /* needs no copy first */
    for (val n = first; n < end && !one; n++) {
        const struct linst *i = &m->k->inst[n];
        bool exact = i->dtype == KL_F32 || i->dtype == KL_F64;
        source_line(m);
        text_put(m->t, "%s%s n%u = %s;\n", exact ? m->d->exact : m->d->local, dtype_name(i->dtype), i->a, source_operand(m, i->b, x));
    }
    for (val n = first; n < end; n++) {
        source_line(m);
        if (one)
            text_put(m->t, "v%u = %s;\n", m->k->inst[n].a, source_operand(m, m->k->inst[n].b, x));
        else
            text_put(m->t, "v%u = n%u;\n", m->k->inst[n].a, m->k->inst[n].a);
    }
    m->depth--;
    source_line(m);
    text_put(m->t, "}\n");
    if (head->op == L_LOOP && head->kind == LOOP_VECTOR) {
        m->width = 1;
    }
}

static void copy(struct emitter *m, val v)
{
    char x[MAX_OPERAND];
    source_operand(m, m->k->inst[v].a, x);
    source_declare(m, v);
    text_put(m->t, "%s;\n", x);
}

static bool emit_inst(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char x[MAX_OPERAND];
    if (m->barrier[v]) {
        source_line(m);
        text_put(m->t, "%s\n", m->d->barrier);
    }
    switch (i->op) {
    case L_CONST: /* where they are used */
    case L_CARRY:
    case L_NEXT:
    case L_PREFETCH: /* threads wait for memory in turn */
    case L_COMMIT:   /* copies land at once */
    case L_WAIT:
        return true;
    case L_BARRIER:
        source_line(m);
        text_put(m->t, "%s\n", m->d->barrier);
        return true;
    case L_COPY:
        copy_elements(m, v);
        return true;
    case L_SLOT:
        read_slot(m, v);
        return true;
    case L_LOOP:
        if (i->kind >= LOOP_COUNT)
            return refuse(m, "a loop of an unknown kind");
        open_loop(m, v);
        return true;
    case L_IF:
        source_line(m);
        text_put(m->t, "if (%s) {\n", source_operand(m, i->a, x));
        m->depth++;
        return true;
    case L_END:
        close_nest(m, v);
        return true;
    case L_LOAD:
        load(m, v);
        return true;
    case L_STORE:
    case L_ATOMIC:
        store(m, v);
        return true;
    case L_OUT:
    case L_SPLAT:
        copy(m, v);
        return true;
    case L_FOLD:
        source_fold(m, v);
        return true;
    case L_MIX:
        source_mix(m, v);
        return true;
    default:
        if (i->op < L_PRIM || i->op >= L_PRIM + P_COUNT)
            return refuse(m, "an instruction that has no text");
        source_prim(m, v);
        return true;
    }
}

void source_info_free(struct source_info *i)
{
    mem_free(i->inside);
    *i = (struct source_info){0};
}

/* Marks the sums that go through loops: an fma onto a carried value or onto another such sum. */
static void find_piles(struct emitter *m)
{
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        m->piles[v] = i->op == L_CARRY || (i->op == L_OP(P_FMA) && m->piles[i->c]);
    }
}

static bool emit(struct emitter *m, const char *entry)
{
    const struct kernel *k = m->k;
    find_piles(m);
    if (!source_order(m))
        return err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    if (!can_say(m) || !open_function(m, entry))
        return false;
    for (val v = 1; v < k->ninst; v++)
        if (!emit_inst(m, v))
            return false;
    text_put(m->t, "}\n");
    return !m->t->failed || err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
}

bool source_kernel(const struct kernel *k, const struct dialect *d, const char *entry, struct text *out,
                   struct source_info *info, struct err *e)
{
    struct emitter m = {.k = k, .d = d, .t = out, .e = e, .width = 1, .own_threads = kernel_needs_gpu(k) != NULL};
    if (!kernel_verify(k, e))
        return false;
    m.info.threads = widest(k);
    m.info.inside = mem_alloc((k->nbuf + 1) * sizeof *m.info.inside);
    m.barrier = mem_alloc(k->ninst);
    m.affine = mem_alloc(k->ninst);
    m.piles = mem_alloc(k->ninst);
    m.stride = mem_alloc(k->ninst * sizeof *m.stride);
    bool ok = m.info.inside && m.barrier && m.affine && m.piles && m.stride;
    ok = ok ? emit(&m, entry) : err_set(e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    mem_free(m.barrier);
    mem_free(m.affine);
    mem_free(m.piles);
    mem_free(m.stride);
    if (ok && info)
        *info = m.info;
    else
        source_info_free(&m.info);
    return ok;
}

bool source_file(const struct kernel *k, const struct dialect *d, struct text *out, struct err *e)
{
    dialect_prelude(d, NULL, out);
    return source_kernel(k, d, "kernel", out, NULL, e);
}
