/* Emits a kernel as a function of a dialect, in one walk over the flat instructions. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

static bool source_refuse(struct emitter *m, const char *what)
{
    return err_set(m->e, KL_ERR_COMPILE, "kernel %s: no %s source: %s", m->k->name, m->d->name, what);
}

/* ---- what the kernel needs ---- */

static bool makes_threads(const struct linst *i)
{
    return i->op == L_LOOP && (i->kind == LOOP_VECTOR || i->kind == LOOP_BLOCK);
}

static uint32_t source_widest_lanes(const struct kernel *k)
{
    uint32_t w = 1;
    for (val v = 1; v < k->ninst; v++)
        if (makes_threads(&k->inst[v]) && k->inst[k->inst[v].b].imm > w)
            w = (uint32_t)k->inst[k->inst[v].b].imm;
    return w;
}

/* Checks for instructions that cannot be emitted yet. */
static bool source_is_supported(struct emitter *m)
{
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        if (source_elements(m, v) > MAX_THREAD_TILE)
            return source_refuse(m, "it has tiles of more than 256 elements a thread");
        if ((i->op == L_COPY_PANEL || i->op == L_ARRIVE || i->op == L_AWAIT) && !source_is_async(m))
            return source_refuse(m, "it has copies of panels");
        if (m->own_threads && i->op == L_LOOP && i->kind == LOOP_VECTOR)
            return source_refuse(m, "it has vector loops among its threads");
    }
    return true;
}

/* How many lanes of k exchange values without memory.  It is 0 if a block does not consist of whole subgroups; lanes
 * then use memory. */
static uint32_t source_shuffle_lanes(const struct kernel *k, const struct dialect *d, uint32_t threads)
{
    bool any = !d->lane || (d->broadcast && kernel_has_blocks(k));
    for (val v = 1; v < k->ninst && !any; v++)
        any = k->inst[v].op == L_LANE_REDUCE || k->inst[v].op == L_INTERLEAVE ||
              (k->inst[v].op == L_MMA && d->opaque.subgroup);
    return any && d->shuffle && (!d->lane || threads % d->shuffle == 0) ? d->shuffle : 0;
}

static const char *const exchange_types[] = {"u32", "u64", "f32", "f64"};
enum { EXCHANGE_TYPES = sizeof exchange_types / sizeof *exchange_types };

/* The arrays through which lane reductions and interleaves exchange values, as bits. */
static unsigned exchange_arrays(const struct emitter *m)
{
    unsigned used = 0;
    uint32_t width = 1;
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
            width = (uint32_t)m->k->inst[i->b].imm;
        if ((i->op != L_LANE_REDUCE && i->op != L_INTERLEAVE) || !exchanges(m, v, width))
            continue;
        for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
            if (!strcmp(exchange_types[x], exchange_type(i->dtype)))
                used |= 1u << x;
    }
    return used;
}

/* Panels begin at whole groups of swizzled rows. */
static uint64_t shared_start(const struct emitter *m, uint32_t b, uint64_t at)
{
    return source_is_async(m) && m->k->buf[b].panel_rows ? (at + 1023) / 1024 * 1024 : at;
}

static uint64_t shared_end(const struct emitter *m, uint32_t b, uint64_t start)
{
    const struct lbuf *l = &m->k->buf[b];
    return start + ((uint64_t)l->count * dtype_size(l->dtype) + 63) / 64 * 64;
}

/* Places shared buffers, then scratch buffers in order as long as shared memory has room. */
static bool place_buffers(struct emitter *m, unsigned arrays)
{
    struct source_info *s = &m->info;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        s->local[b] = buf_is_local(l->role);
        m->shares |= l->role == BUF_SHARED;
        if (l->role == BUF_SHARED || l->role == BUF_PHASES)
            s->shared_bytes = (uint32_t)shared_end(m, b, shared_start(m, b, s->shared_bytes));
    }
    /* Kernels with shared buffers have no vector loops, so they have no exchange arrays. */
    if (s->shared_bytes > m->d->shared_bytes && s->shared_bytes > m->d->dynamic_bytes)
        return source_refuse(m, "it wants more shared memory than a block has");
    if (s->shared_bytes > m->d->shared_bytes || source_is_async(m))
        s->dynamic_bytes = s->shared_bytes;
    for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
        if (arrays >> x & 1)
            s->shared_bytes += s->threads * (x & 1 ? 8 : 4);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        uint64_t room = m->d->shared_bytes > s->shared_bytes ? m->d->shared_bytes - s->shared_bytes : 0;
        uint64_t count = (uint64_t)(l->count > 0 ? l->count : 1);
        if (l->role != BUF_SCRATCH || count > room / 64 * 64 / dtype_size(l->dtype))
            continue;
        s->local[b] = true;
        s->shared_bytes += (uint32_t)((count * dtype_size(l->dtype) + 63) / 64 * 64);
    }
    return true;
}

/* ---- the function ---- */

/* The threads of blocks that a multiprocessor has shared memory for at the same time; those of one block if so few
 * threads may have as many registers as there are for any. Only CUDA's prelude uses the number, so it is NVIDIA's
 * shared memory (of sm_90) in HIP's text, too, which is otherwise the same. */
static unsigned threads_with_memory(const struct emitter *m)
{
    enum { PROCESSOR = 227 << 10, RESERVED = 1024 /* bytes, of each block */, FEW = 256 };
    unsigned bytes = m->info.shared_bytes + RESERVED, blocks = (PROCESSOR + RESERVED) / bytes;
    return blocks > 1 && blocks * m->info.threads > FEW ? blocks * m->info.threads : m->info.threads;
}

/* The threads that a multiprocessor is to run of a kernel of tiles, which decides how many registers each may have.  In
 * small blocks whose threads have MANY sums, 128 registers are too few for some operands. */
static unsigned tile_threads(const struct emitter *m)
{
    enum { USUAL = 512, FEWER = 384, SMALL = 128, MANY = 64 };
    unsigned sums = 0, max = 0, usual, room = threads_with_memory(m); /* sums: of the open loop */
    for (val v = 1; !m->unit && v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        sums = i->op == L_LOOP || i->op == L_END ? 0 : i->op == L_MMA ? sums + (unsigned)i->rows * i->cols : sums;
        max = sums > max ? sums : max;
    }
    usual = max >= MANY && m->info.threads < SMALL ? FEWER : USUAL;
    return room < usual ? room : usual;
}

static void open_c(struct emitter *m, const char *entry)
{
    bool tiles = false, chains = false; /* which kernels have other bounds: see the preludes */
    bool roles = false; /* NVIDIA's compiler divides registers only if it knows how many a thread has at the start */
    for (val v = 1; v < m->k->ninst; v++) {
        roles |= m->k->inst[v].op == L_IF && m->k->inst[v].imm;
        tiles |= m->k->inst[v].op == L_MMA;
        chains |= m->k->inst[v].op == L_MMA && m->k->inst[m->k->inst[v].a].op == L_OP(P_CAST);
    }
    text_put(m->t, "extern \"C\" __global__ void ");
    if (tiles && !chains && !source_is_async(m))
        text_put(m->t, "TILE_BOUNDS(%u, %u) %s(", m->info.threads, tile_threads(m), entry);
    else
        text_put(m->t, "%s(%u%s) %s(", tiles && chains && !source_is_async(m) ? "CHAIN_BOUNDS" : "__launch_bounds__",
                 m->info.threads, roles ? ", 1" : "", entry);
    for (uint32_t b = 0; b < m->k->nbuf; b++)
        if (m->k->buf[b].role == BUF_VIEW)
            text_put(m->t, "const __grid_constant__ tensor_map b%u, ", b);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        const char *name = l->role == BUF_SCRATCH ? "work" : "b";
        if (!m->info.local[b])
            text_put(m->t, "%s%s *%s%u, ", l->role == BUF_IN ? "const " : "", source_memory_type(l->dtype), name, b);
    }
    text_put(m->t, "const u64 *slots, i64 begin, i64 end)\n{\n");
}

static void open_glsl(struct emitter *m)
{
    bool named[2][KL_DTYPE_COUNT] = {{[KL_U64] = true}}; /* by whether a thread may load what another has stored */
    if (source_is_opaque(m))
        source_opaque_types(m);
    text_put(m->t,
             "layout(local_size_x = %u) in;\nlayout(buffer_reference, std430, buffer_reference_align = 8) buffer "
             "at_u64 { u64 v; };\n",
             m->info.threads);
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        unsigned dtype = m->k->buf[b].dtype == KL_BOOL ? KL_U8 : m->k->buf[b].dtype;
        bool common = source_is_common(m->k, b);
        if (m->info.local[b] || named[common][dtype])
            continue;
        named[common][dtype] = true;
        text_put(m->t, "layout(buffer_reference, std430, buffer_reference_align = %zu) %sbuffer %s_%s { %s v; };\n",
                 dtype_size(dtype), common ? "coherent " : "", common ? "common" : "at", dtype_name(dtype),
                 dtype_name(dtype));
    }
    source_pack_types(m);
    text_put(m->t, "layout(push_constant) uniform Launch { u64 buffers, slots; i64 begin, end; };\n");
}

static void declare_local(struct emitter *m, unsigned arrays)
{
    uint64_t at = 0;                /* offset in the array of dynamic shared memory */
    if (m->info.dynamic_bytes) {
        source_line(m);
        text_put(m->t, "SHARED_ARENA(%u);\n", m->info.dynamic_bytes);
    }
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        if (!m->info.local[b] || l->role == BUF_VIEW)
            continue;
        source_line(m);
        if (m->info.dynamic_bytes && l->role != BUF_REGISTER) {
            const char *type = source_memory_type(l->dtype);
            at = shared_start(m, b, at);
            text_put(m->t, "%s *const b%u = (%s *)(arena + %" PRIu64 ");\n", type, b, type, at);
            at = shared_end(m, b, at);
            continue;
        }
        text_put(m->t, "%s%s b%u[%" PRId64 "];\n", l->role == BUF_REGISTER ? "" : m->d->shared,
                 source_memory_type(l->dtype), b, l->count > 0 ? l->count : 1);
    }
    for (unsigned x = 0; x < EXCHANGE_TYPES; x++)
        if (arrays >> x & 1) {
            source_line(m);
            text_put(m->t, "%s%s x_%s[%u];\n", m->d->shared, exchange_types[x], exchange_types[x], m->info.threads);
        }
}

/* Gets the addresses of buffers from the table.  For scratch that is an argument: the address of this block's part. */
static void find_buffers(struct emitter *m)
{
    unsigned place = 0;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        bool scratch = l->role == BUF_SCRATCH;
        if (m->info.local[b])
            continue;
        if (m->d->table)
            text_put(m->t, "    u64 b%u = at_u64(buffers + %uul).v", b, 8 * place++);
        else if (scratch)
            text_put(m->t, "    %s *b%u = work%u", source_memory_type(l->dtype), b, b);
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
    if (!source_packs(m) || !source_needs(m))
        return err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", m->k->name);
    if (m->d->table) {
        open_glsl(m);
        declare_local(m, arrays);
        text_put(m->t, "void main()\n{\n");
        m->depth = 1;
    } else {
        open_c(m, entry);
        m->depth = 1;
        declare_local(m, arrays);
    }
    source_line(m);
    text_put(m->t, "%su32 t = %s;\n", m->d->local, m->d->lane && m->shuffle ? m->d->lane : m->d->thread);
    find_buffers(m);
    return true;
}

/* ---- slots ---- */

static void read_slot(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char at[64], x[96];
    uint64_t number = slot_number(i);
    snprintf(at, sizeof at, m->d->table ? "at_u64(slots + %" PRIu64 "ul).v" : "slots[%" PRIu64 "]",
             m->d->table ? 8 * number : number);
    source_declare(m, v);
    text_put(m->t, "%s;\n", source_bits(m->narrow[v] ? KL_I32 : i->dtype, at, x, sizeof x));
}

/* ---- control flow ---- */

/* Calls `what` for each element of v; for an L_NEXT for each element of the next value. */
static void each_element(struct emitter *m, val v, void (*what)(struct emitter *, val))
{
    const struct linst *i = &m->k->inst[v], *x = i->op == L_NEXT ? &m->k->inst[i->b] : i;
    m->tile = !x->cols || !m->unit ? 0 : i->op == L_NEXT ? i->b : v;
    for (unsigned e = 0, n = source_elements(m, i->op == L_NEXT ? i->b : v); e < n; e++) {
        m->row = x->cols && !m->unit ? e / x->cols : 0;
        m->col = x->cols ? e - m->row * x->cols : 0;
        what(m, v);
    }
    m->row = m->col = m->tile = 0;
}

static void declare_carry(struct emitter *m, val c)
{
    char x[MAX_OPERAND], name[MAX_OPERAND];
    source_line(m);
    text_put(m->t, "%s%s %s = %s;\n", source_qualifier(m, c, true), source_type(m, c), source_operand(m, c, name),
             source_operand(m, m->k->inst[c].a, x));
}

static void set_carry(struct emitter *m, val n)
{
    char x[MAX_OPERAND], name[MAX_OPERAND];
    source_line(m);
    text_put(m->t, "%s = %s;\n", source_operand(m, m->k->inst[n].a, name), source_operand(m, m->k->inst[n].b, x));
}

static void keep_next(struct emitter *m, val n)
{
    const struct linst *i = &m->k->inst[n];
    char x[MAX_OPERAND], name[MAX_OPERAND];
    source_line(m);
    text_put(m->t, "%s%s n%s = %s;\n", source_qualifier(m, i->b, false), source_type(m, i->b),
             source_operand(m, i->a, name), source_operand(m, i->b, x));
}

static void set_kept(struct emitter *m, val n)
{
    char name[MAX_OPERAND];
    source_operand(m, m->k->inst[n].a, name);
    source_line(m);
    text_put(m->t, "%s = n%s;\n", name, name);
}

/* The iterations of this phase's loop: its part of begin .. end, which counts the iterations of all phases. */
static void open_phase_loop(struct emitter *m, val v)
{
    const char *n = m->narrow[v] ? "i32" : "i64", *l = m->d->i64;
    int64_t base = m->phase.base, extent = m->phase.extent;
    text_put(m->t, "for (%s v%u = %s((begin > %" PRId64 "%s ? begin : %" PRId64 "%s) - %" PRId64 "%s) + %s(%s), e%u = "
             "%s((end < %" PRId64 "%s ? end : %" PRId64 "%s) - %" PRId64 "%s); v%u < e%u; v%u += %s(%s)) {\n", n, v, n,
             base, l, base, l, base, l, n, m->d->block, v, n, base + extent, l, base + extent, l, base, l, v, v, v, n,
             m->d->grid);
}

/* Does the loop have products of tiles? */
static bool loop_has_tile_products(const struct emitter *m, val loop)
{
    val v = loop + 1;
    while (m->k->inst[v].op != L_MMA && !(m->k->inst[v].op == L_END && m->k->inst[v].a == loop))
        v++;
    return m->k->inst[v].op == L_MMA;
}

/* Does an address in the loop depend on a value that the loop carries, as in a binary search?  Its loads wait for each
 * other, and unrolled iterations gain nothing. */
static bool loop_has_search(const struct emitter *m, val loop)
{
    const struct linst *n = m->k->inst;
    uint8_t *carried = n[loop + 1].op == L_CARRY ? mem_alloc(m->k->ninst) : NULL;
    bool found = false, own = true;
    for (val v = loop + 1; carried && !found && !(n[v].op == L_END && n[v].a == loop); v++) {
        own &= n[v].op == L_CARRY;
        carried[v] = own || carried[n[v].a] || carried[n[v].b] || carried[n[v].c] || carried[n[v].d];
        found = n[v].op == L_LOAD && carried[n[v].a];
    }
    mem_free(carried);
    return found;
}

/* Carried values are variables that are all set at the end of an iteration. */
static void open_loop(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const char *n = m->narrow[v] ? "i32" : "i64";
    char a[MAX_OPERAND], b[MAX_OPERAND];
    bool fits;
    if (i->kind == LOOP_BLOCK)
        m->subgroup = i->rows;
    if (i->kind == LOOP_VECTOR) {
        m->width = (uint32_t)m->k->inst[i->b].imm;
        source_line(m);
        text_put(m->t, "{\n");
        m->depth++;
        source_line(m);
        text_put(m->t, m->width == m->info.threads ? "%s%s v%u = %s(t);\n" : "%s%s v%u = %s(t & %uu);\n", m->d->local,
                 n, v, n, m->width - 1);
        return;
    }
    if (i->kind == LOOP_BLOCK) {
        source_line(m);
        text_put(m->t, "{\n");
        m->depth++;
        source_line(m);
        text_put(m->t, "%s%s v%u = %s(t);\n", m->d->local, n, v, n);
        source_begin_phases(m);
        return;
    }
    for (val c = v + 1; c < m->k->ninst && m->k->inst[c].op == L_CARRY; c++)
        each_element(m, c, declare_carry);
    source_line(m);
    if (i->kind == LOOP_UNROLLED && !m->d->table) { /* a product's whole step: with 4, NVRTC was seen to spill */
        text_put(m->t, "#pragma unroll 8\n");
        source_line(m);
    } else if (i->kind == LOOP_SERIAL && !m->d->table &&
               ((m->unit && loop_has_tile_products(m, v)) /* a step is long, and has barriers */ || loop_has_search(m,
                   v))) {
        text_put(m->t, "#pragma unroll 1\n");
        source_line(m);
    }
    if ((i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID) && m->phase.extent < m->k->extent)
        open_phase_loop(m, v);
    else if (i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID)
        text_put(m->t, "for (%s v%u = %s(begin) + %s(%s); v%u < %s(end); v%u += %s(%s)) {\n", n, v, n, n, m->d->block,
                 v, n, v, n, m->d->grid);
    else if (m->narrow[v])
        text_put(m->t, "for (i32 v%u = %s; v%u < %s; v%u += %" PRIu64 ") {\n", v, source_index(m, i->a, &fits, a), v,
                 source_index(m, i->b, &fits, b), v, i->imm);
    else
        text_put(m->t, "for (i64 v%u = %s; v%u < %s; v%u += %" PRIu64 "%s) {\n", v, source_operand(m, i->a, a), v,
                 source_operand(m, i->b, b), v, i->imm, m->d->i64);
    m->depth++;
}

static void close_nest(struct emitter *m, val end)
{
    const struct linst *head = &m->k->inst[m->k->inst[end].a];
    val first = end;
    while (m->k->inst[first - 1].op == L_NEXT)
        first--;
    bool one = end - first == 1; /* one value needs no copy first */
    for (val n = first; n < end && !one; n++)
        if (!source_matrix_in_place(m, n))
            each_element(m, n, keep_next);
    for (val n = first; n < end; n++)
        if (!source_matrix_in_place(m, n))
            each_element(m, n, one ? set_carry : set_kept);
    /* the threads' next block uses the same shared memory */
    if (head->op == L_LOOP && head->kind == LOOP_BLOCK && m->shares) {
        if (kernel_shares(m->k, m->k->inst[end].a, end)) {
            source_line(m);
            text_put(m->t, "%s\n", m->d->barrier);
        }
        source_end_phases(m);
    }
    m->depth--;
    source_line(m);
    text_put(m->t, "}\n");
    if (head->op == L_LOOP && head->kind == LOOP_VECTOR) {
        m->width = 1;
    }
}

static void source_put_copy(struct emitter *m, val v)
{
    char x[MAX_OPERAND];
    source_operand(m, m->k->inst[v].a, x);
    source_declare(m, v);
    text_put(m->t, "%s;\n", x);
}

static void source_put_columns(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char x[MAX_OPERAND];
    unsigned first = (unsigned)i->imm;
    if (m->unit)
        first = first / m->unit->caps.n * m->unit->sum.elements;
    m->col += first;
    source_operand(m, i->a, x);
    m->col -= first;
    source_declare(m, v);
    text_put(m->t, "%s;\n", x);
}

/* The number of a subgroup; `uniform` tells the compiler that all lanes have the same value. */
static bool is_subgroup_number(const struct emitter *m, const struct linst *i)
{
    const struct linst *a = &m->k->inst[i->a], *b = &m->k->inst[i->b];
    return i->op == L_OP(P_DIV) && a->op == L_LOOP && a->kind == LOOP_BLOCK && b->op == L_CONST && a->rows &&
           b->imm == a->rows;
}

/* The number of a tile's row or column. */
static void source_number(struct emitter *m, val v)
{
    if (m->unit) {
        source_matrix_number(m, v);
        return;
    }
    source_declare(m, v);
    text_put(m->t, "i64(%u);\n", m->k->inst[v].kind == TILE_ROWS ? m->row : m->col);
}

static bool products_follow(const struct emitter *m, val v)
{
    while (v < m->k->ninst && m->k->inst[v].op != L_MMA)
        v++;
    return v < m->k->ninst;
}

static bool emit_inst(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char x[MAX_OPERAND];
    if (!m->needed[v])
        return true;
    if (m->copies && (i->op == L_WAIT || i->op == L_BARRIER || i->op == L_LOOP || i->op == L_IF || i->op == L_END))
        source_land(m, v);
    if (m->barrier[v]) {
        source_line(m);
        text_put(m->t, "%s\n", m->d->barrier);
    }
    switch (i->op) {
    case L_CONST: /* emitted where they are used */
    case L_CARRY:
    case L_NEXT:
    case L_PREFETCH: /* GPU threads hide latency by themselves */
        return true;
    case L_COMMIT:
    case L_WAIT:
        if (i->kind == ASYNC_PRODUCTS ? !source_is_async(m) : m->d->copies != COPIES_ASYNC)
            return true;
        source_line(m);
        if (i->kind == ASYNC_PRODUCTS) {
            m->fenced = false;
            text_put(m->t, i->op == L_COMMIT ? "products_commit();\n" : "products_wait<%" PRIu64 ">();\n", i->imm);
            if (i->op == L_WAIT)
                source_async_resolve(m, v);
            return true;
        }
        if (i->op == L_COMMIT)
            text_put(m->t, "copies_commit();\n");
        else
            text_put(m->t, "copies_wait<%" PRIu64 ">();\n", i->imm);
        return true;
    case L_BARRIER:
        source_line(m);
        if (i->imm) {
            text_put(m->t, "role_barrier<%" PRIu64 ">();\n", i->imm);
            return true;
        }
        /* the unit must see what threads have stored or copied */
        text_put(m->t, source_is_async(m) && products_follow(m, v) ? "proxy_fence(); %s\n" : "%s\n", m->d->barrier);
        return true;
    case L_SYNC: /* a launch executes one phase */
        kernel_phase(m->k, &m->phase);
        return true;
    case L_SLOT:
        read_slot(m, v);
        return true;
    case L_LOOP:
        if (i->kind >= LOOP_COUNT)
            return source_refuse(m, "a loop of an unknown kind");
        open_loop(m, v);
        return true;
    case L_IF:
        source_line(m);
        text_put(m->t, "if (%s) {\n", source_operand(m, i->a, x));
        m->depth++;
        source_registers(m, i->imm);
        return true;
    case L_END:
        close_nest(m, v);
        return true;
    case L_LOAD:
        if (load_elements(m->k, i) > 1)
            return source_refuse(m, "a load of several neighbours");
        if (i->cols && m->unit)
            source_matrix_load(m, v);
        else if (m->uniform && source_is_broadcast(m, v))
            source_broadcast(m, v);
        else
            each_element(m, v, source_load);
        return true;
    case L_STORE:
    case L_ATOMIC:
        if (m->k->inst[i->b].cols && m->unit)
            source_matrix_store(m, v);
        else
            source_store(m, v);
        return true;
    case L_COPY:
        source_copy(m, v);
        return true;
    case L_COPY_PANEL:
        source_copy_panel(m, v);
        return true;
    case L_ARRIVE:
        source_arrive(m, v);
        return true;
    case L_AWAIT:
        source_await(m, v);
        return true;
    case L_COLUMNS:
        if (!source_matrix_in_place(m, v))
            each_element(m, v, source_put_columns);
        return true;
    case L_OUT:
    case L_SPLAT:
        if (source_matrix_in_place(m, v))
            return true;
        each_element(m, v, source_is_opaque(m) && i->op == L_SPLAT ? source_opaque_splat : source_put_copy);
        return true;
    case L_INDEX:
        each_element(m, v, source_number);
        return true;
    case L_MMA:
        if (m->unit)
            source_matrix_mma(m, v);
        else
            each_element(m, v, source_mma);
        return true;
    case L_LANE_REDUCE:
        (i->cols ? source_matrix_fold : source_fold)(m, v);
        return true;
    case L_INTERLEAVE:
        source_interleave(m, v);
        return true;
    default:
        if (i->op < L_PRIM || i->op >= L_PRIM + P_COUNT)
            return source_refuse(m, "an instruction that has no text");
        if (source_is_async(m) && is_subgroup_number(m, i)) {
            source_declare(m, v);
            text_put(m->t, "uniform(i32(t / %uu));\n", m->unit->caps.subgroup);
            return true;
        }
        if (m->unit && m->role[v] == ROLE_A)
            source_matrix_factor(m, v);
        else
            each_element(m, v, source_prim);
        return true;
    }
}

void source_info_free(struct source_info *i)
{
    mem_free(i->local);
    *i = (struct source_info){0};
}

/* Marks accumulation chains: carried values, and each fma that adds to an element of a chain. */
static void find_chains(struct emitter *m)
{
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        m->chain[v] = i->op == L_CARRY || (i->op == L_OP(P_FMA) && m->chain[i->c]);
    }
}

/* Marks values that a compiler may find to be constants: those computed from constants, and carried values that begin
 * with one. */
static void find_known(struct emitter *m)
{
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        bool made = i->op >= L_PRIM || i->op == L_SPLAT || i->op == L_LANE_REDUCE || i->op == L_CARRY || i->op == L_OUT;
        m->known[v] = i->op == L_CONST || (made && m->known[i->a] && (!i->b || m->known[i->b]) &&
                                           (!i->c || m->known[i->c]));
    }
}

static bool source_emit_kernel(struct emitter *m, const char *entry)
{
    const struct kernel *k = m->k;
    find_chains(m);
    find_known(m);
    source_matrix(m);
    if (!source_order(m) || !source_ranges(m) || !source_uniform(m))
        return err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    if (!source_is_supported(m) || !open_function(m, entry))
        return false;
    kernel_phase(k, &m->phase);
    for (val v = 1; v < k->ninst; v++)
        if (!emit_inst(m, v))
            return false;
    text_put(m->t, "}\n");
    return !m->t->failed || err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
}

bool source_kernel(const struct kernel *k, const struct dialect *d, const char *entry, struct text *out,
                   struct source_info *info, struct err *e)
{
    struct emitter m = {.k = k, .d = d, .t = out, .e = e, .width = 1, .own_threads = kernel_has_blocks(k)};
    if (!kernel_verify(k, e))
        return false;
    m.info.threads = source_widest_lanes(k);
    m.shuffle = source_shuffle_lanes(k, d, m.info.threads);
    m.info.local = mem_alloc((k->nbuf + 1) * sizeof *m.info.local);
    m.barrier = mem_alloc(k->ninst);
    m.affine = mem_alloc(k->ninst);
    m.chain = mem_alloc(k->ninst);
    m.known = mem_alloc(k->ninst);
    m.narrow = mem_alloc(k->ninst);
    m.role = mem_alloc(k->ninst);
    m.sums = mem_alloc(k->ninst * sizeof *m.sums);
    m.stride = mem_alloc(k->ninst * sizeof *m.stride);
    bool ok = m.info.local && m.barrier && m.affine && m.chain && m.known && m.narrow && m.role && m.sums && m.stride;
    ok = ok ? source_emit_kernel(&m, entry) : err_set(e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    mem_free(m.barrier);
    mem_free(m.affine);
    mem_free(m.pack);
    mem_free(m.near);
    mem_free(m.uniform);
    mem_free(m.needed);
    mem_free(m.chain);
    mem_free(m.sums);
    mem_free(m.known);
    mem_free(m.narrow);
    mem_free(m.role);
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
