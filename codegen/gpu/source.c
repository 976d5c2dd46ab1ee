/* A kernel as a function of the dialects: one walk over the flat instructions. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

static bool refuse(struct emitter *m, const char *what)
{
    return err_set(m->e, KL_ERR_COMPILE, "kernel %s: no %s source: %s", m->k->name, m->d->name, what);
}

/* ---- what the kernel needs ---- */

static uint32_t widest(const struct kernel *k)
{
    uint32_t w = 1;
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_LOOP && k->inst[v].kind == LOOP_VECTOR && k->inst[k->inst[v].b].imm > w)
            w = (uint32_t)k->inst[k->inst[v].b].imm;
    return w;
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

/* Scratch goes to shared memory in order, as long as there is room. */
static void place_scratch(struct emitter *m, unsigned arrays)
{
    struct source_info *s = &m->info;
    for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
        if (arrays >> x & 1)
            s->shared_bytes += s->threads * (x & 1 ? 8 : 4);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        uint64_t room = m->d->shared_bytes - s->shared_bytes, count = (uint64_t)(l->count > 0 ? l->count : 1);
        s->in_shared[b] = l->role == BUF_SCRATCH && count <= room / 64 * 64 / dtype_size(l->dtype);
        if (s->in_shared[b])
            s->shared_bytes += (uint32_t)((count * dtype_size(l->dtype) + 63) / 64 * 64);
    }
}

static const char *memory_type(unsigned dtype) { return dtype == KL_BOOL ? "u8" : dtype_name(dtype); }

/* ---- the function ---- */

static void open_c(struct emitter *m, const char *entry)
{
    text_put(m->t, "extern \"C\" __global__ void __launch_bounds__(%u) %s(", m->info.threads, entry);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        const char *name = l->role == BUF_SCRATCH ? "work" : "b";
        if (!m->info.in_shared[b])
            text_put(m->t, "%s%s *%s%u, ", l->role == BUF_IN ? "const " : "", memory_type(l->dtype), name, b);
    }
    text_put(m->t, "const u64 *slots, i64 begin, i64 end)\n{\n");
}

static void open_glsl(struct emitter *m)
{
    unsigned binding = 0;
    text_put(m->t, "layout(local_size_x = %u) in;\n", m->info.threads);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        const char *name = l->role == BUF_SCRATCH ? "work" : "b";
        if (!m->info.in_shared[b])
            text_put(m->t, "layout(std430, binding = %u) %sbuffer B%u { %s %s%u[]; };\n", binding++,
                     l->role == BUF_IN ? "readonly " : "", b, memory_type(l->dtype), name, b);
    }
    text_put(m->t, "layout(std430, binding = %u) readonly buffer Slots { u64 slots[]; };\n"
                   "layout(push_constant) uniform Range { i64 begin, end; };\n", binding);
}

static void declare_shared(struct emitter *m, unsigned arrays)
{
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        if (!m->info.in_shared[b])
            continue;
        source_line(m);
        text_put(m->t, "%s%s b%u[%" PRId64 "];\n", m->d->shared, memory_type(l->dtype), b, l->count > 0 ? l->count : 1);
    }
    for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
        if (arrays >> x & 1) {
            source_line(m);
            text_put(m->t, "%s%s x_%s[%u];\n", m->d->shared, exchange_types[x], exchange_types[x], m->info.threads);
        }
}

/* Scratch that is an argument: this block's part of it. */
static void find_scratch(struct emitter *m)
{
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        if (l->role != BUF_SCRATCH || m->info.in_shared[b])
            continue;
        if (m->d->bindings)
            text_put(m->t, "    i64 part%u = i64(%s) * %" PRId64 "%s;\n", b, m->d->block, l->count, m->d->i64);
        else
            text_put(m->t, "    %s *b%u = work%u + i64(%s) * %" PRId64 "%s;\n", memory_type(l->dtype), b, b, m->d->block, l->count, m->d->i64);
    }
}

static void open_function(struct emitter *m, const char *entry)
{
    unsigned arrays = exchange_arrays(m);
    place_scratch(m, arrays);
    if (m->d->bindings) {
        open_glsl(m);
        declare_shared(m, arrays);
        text_put(m->t, "void main()\n{\n");
        m->depth = 1;
    } else {
        open_c(m, entry);
        m->depth = 1;
        declare_shared(m, arrays);
    }
    source_line(m);
    text_put(m->t, "%su32 t = %s;\n", m->d->local, m->d->thread);
    find_scratch(m);
}

/* ---- memory ---- */

static void element(struct emitter *m, uint32_t b, val index)
{
    char i[MAX_OPERAND];
    bool part = m->d->bindings && m->k->buf[b].role == BUF_SCRATCH && !m->info.in_shared[b];
    source_operand(m, index, i);
    if (part)
        text_put(m->t, "work%u[%s(part%u + %s)]", b, m->d->subscript, b, i);
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

static void store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *n = m->k->inst;
    bool varying = n[i->a].varying || n[i->b].varying || n[i->c].varying, turns = lanes_collide(m, i);
    bool same = !n[i->a].varying && !n[i->b].varying && varying; /* one element, one value, if any lane is true */
    char x[MAX_OPERAND];
    uint32_t lanes = varying ? m->width : 1;
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
    element(m, (uint32_t)i->imm, i->a);
    source_operand(m, i->b, x);
    text_put(m->t, n[i->b].dtype == KL_BOOL ? " = u8(%s);\n" : " = %s;\n", x);
    if (turns) {
        source_line(m);
        text_put(m->t, "%s\n", m->d->barrier);
        m->depth--;
        source_line(m);
        text_put(m->t, "}\n");
    }
}

static void read_slot(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char at[32], x[64];
    snprintf(at, sizeof at, "slots[%" PRIu64 "]", i->imm);
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
    for (val c = v + 1; c < m->k->ninst && m->k->inst[c].op == L_CARRY; c++) {
        const struct linst *n = &m->k->inst[c];
        source_line(m);
        bool exact = m->d->bindings && (n->dtype == KL_F32 || n->dtype == KL_F64);
        text_put(m->t, "%s%s v%u = %s;\n", exact ? m->d->exact : "", dtype_name(n->dtype), c, source_operand(m, n->a, a));
    }
    source_line(m);
    if (i->kind == LOOP_PARALLEL)
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
    mem_free(i->in_shared);
    *i = (struct source_info){0};
}

static bool emit(struct emitter *m, const char *entry)
{
    const struct kernel *k = m->k;
    if (!source_order(m))
        return err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    open_function(m, entry);
    for (val v = 1; v < k->ninst; v++)
        if (!emit_inst(m, v))
            return false;
    text_put(m->t, "}\n");
    return !m->t->failed || err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
}

bool source_kernel(const struct kernel *k, const struct dialect *d, const char *entry, struct text *out,
                   struct source_info *info, struct err *e)
{
    struct emitter m = {.k = k, .d = d, .t = out, .e = e, .width = 1};
    if (!kernel_verify(k, e))
        return false;
    m.info.threads = widest(k);
    m.info.in_shared = mem_alloc((k->nbuf + 1) * sizeof *m.info.in_shared);
    m.barrier = mem_alloc(k->ninst);
    m.affine = mem_alloc(k->ninst);
    m.stride = mem_alloc(k->ninst * sizeof *m.stride);
    bool ok = m.info.in_shared && m.barrier && m.affine && m.stride;
    ok = ok ? emit(&m, entry) : err_set(e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    mem_free(m.barrier);
    mem_free(m.affine);
    mem_free(m.stride);
    if (ok && info)
        *info = m.info;
    else
        source_info_free(&m.info);
    return ok;
}

bool source_file(const struct kernel *k, const struct dialect *d, struct text *out, struct err *e)
{
    text_put(out, "%s", d->prelude);
    return source_kernel(k, d, "kernel", out, NULL, e);
}
