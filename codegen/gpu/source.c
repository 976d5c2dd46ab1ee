/* Emits a kernel as a function of a dialect, in one pass over the flat instructions. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

bool source_refuse(struct emitter *m, const char *what)
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
    if (kernel_is_in_order(m->k))
        return source_refuse(m, "its iterations run in order");
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        if (source_elements(m, v) > MAX_THREAD_TILE)
            return source_refuse(m, "it has tiles of more than 256 elements a thread");
        if (i->op == L_LOOP && i->kind == LOOP_GRID && i->rows && !m->d->words)
            return source_refuse(m, "its blocks wait for each other");
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

/* Has it the memory of buffers before it?  Only kernels whose shared memory is one array place it there. */
static bool shares_place(const struct emitter *m, uint32_t b)
{
    return source_is_async(m) && buf_is_over(&m->k->buf[b]);
}

/* Places shared buffers, then scratch buffers in order as long as shared memory has room. */
static bool place_buffers(struct emitter *m, unsigned arrays)
{
    struct source_info *s = &m->info;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        s->local[b] = buf_is_local(l->role);
        m->shares |= l->role == BUF_SHARED;
        if ((l->role == BUF_SHARED || l->role == BUF_PHASES) && !shares_place(m, b))
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

/* Is there a loop in which each thread of whole subgroups loads so much that many loads should be on their way at a
 * time?  NVIDIA's compiler gives them registers only if it is told how few threads there are: else it keeps as few
 * values as let a processor run all of its threads, and issues a load where the one before it has been used. */
static bool has_many_loads(const struct emitter *m)
{
    enum { ACCESS = 16, MANY = 8 };
    unsigned loads = 0, max = 0;
    bool open = false; /* a loop over iterations of one thread */
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        bool edge = i->op == L_LOOP || i->op == L_END;
        open = edge ? i->op == L_LOOP && i->kind == LOOP_SERIAL : open;
        loads = edge ? 0 : loads + (open && i->op == L_LOAD && m->pack[v].count && m->pack[v].first == v &&
                                    m->pack[v].count * dtype_size(m->k->buf[i->imm].dtype) == ACCESS &&
                                    !m->info.local[i->imm]);
        max = loads > max ? loads : max;
    }
    return max >= MANY && m->info.threads % m->d->shuffle == 0;
}

static void open_c(struct emitter *m, const char *entry)
{
    bool tiles = false, chains = false; /* which kernels have other bounds: see the preludes */
    char roles[16] = ""; /* NVIDIA's compiler divides registers only if it knows how many a thread has at the start */
    if (source_role_blocks(m))
        snprintf(roles, sizeof roles, ", %u", source_role_blocks(m));
    for (val v = 1; v < m->k->ninst; v++) {
        tiles |= m->k->inst[v].op == L_MMA;
        chains |= m->k->inst[v].op == L_MMA && m->k->inst[m->k->inst[v].a].op == L_OP(P_CAST);
    }
    text_put(m->t, "extern \"C\" __global__ void ");
    if (tiles && !chains && !source_is_async(m))
        text_put(m->t, "TILE_BOUNDS(%u, %u) %s(", m->info.threads, tile_threads(m), entry);
    else
        text_put(m->t, "%s(%u%s) %s(", tiles && chains && !source_is_async(m) ? "CHAIN_BOUNDS"
                 : !tiles && has_many_loads(m) ? "LOAD_BOUNDS" : "__launch_bounds__", m->info.threads,
                 roles, entry);
    for (uint32_t b = 0; b < m->k->nbuf; b++)
        if (m->k->buf[b].role == BUF_VIEW)
            text_put(m->t, "const __grid_constant__ tensor_map b%u, ", b);
    if (kernel_members(m->k) > 1)
        text_put(m->t, "ADDRESSES(%u) of, ", kernel_arguments(m->k));
    for (uint32_t b = 0; b < m->k->nbuf && kernel_members(m->k) == 1; b++) {
        const struct lbuf *l = &m->k->buf[b];
        const char *name = l->role == BUF_SCRATCH ? "work" : "b";
        if (!m->info.local[b])
            text_put(m->t, "%s%s *%s%u, ", l->role == BUF_IN ? "const " : "", source_memory_type(l->dtype), name, b);
    }
    text_put(m->t, "const u64 *slots, i64 begin, i64 end)\n{\n");
}

/* SignedZeroInfNanPreserve, of f32; shaderc/float_modes.c adds f64.  A compiler may else make x of x + 0.0. */
#define SIGNED_ZEROS \
    "spirv_execution_mode(extensions = [\"SPV_KHR_float_controls\"], capabilities = [4466], 4461, 32);\n"

static void open_glsl(struct emitter *m)
{
    bool named[2][KL_DTYPE_COUNT] = {{[KL_U64] = true}}; /* by whether a thread may load what another has stored */
    if (source_is_opaque(m))
        source_opaque_types(m);
    if (source_hides_zeros(m))
        text_put(m->t, "%s#define zero_bits u32(u64(begin) >> 63u)\n", m->d->signed_zeros ? SIGNED_ZEROS : "");
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
    uint64_t at = 0, place;         /* offsets in the array of dynamic shared memory */
    uint64_t *start = mem_arena_alloc(&m->mem, m->k->nbuf * sizeof *start + 1);
    if (!start) {
        m->t->failed = true;
        return;
    }
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
            place = start[b] = shares_place(m, b) ? start[l->id - 1] : shared_start(m, b, at);
            text_put(m->t, "%s *const b%u = (%s *)(arena + %" PRIu64 ");\n", type, b, type, place);
            at = shares_place(m, b) ? at : shared_end(m, b, place);
            continue;
        }
        if (source_has_vectors(m, b))
            text_put(m->t, "%su32vec4 b%u[%" PRId64 "];\n", m->d->shared, b, l->count * 2 / 16);
        else
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
    for (uint32_t b = 0; b < m->k->nbuf && kernel_members(m->k) == 1; b++) {
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

void source_info_free(struct source_info *i)
{
    mem_free(i->local);
    mem_free(i->narrow);
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

/* Counts the accesses to each buffer that are no packs of 16 bytes. */
static void count_narrow(struct emitter *m)
{
    enum { WIDE = 16 };
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        const struct pack *p = &m->pack[v];
        if (i->op != L_LOAD && i->op != L_STORE && i->op != L_ATOMIC)
            continue;
        unsigned accesses = p->count ? p->first == v : source_elements(m, i->op == L_LOAD ? v : i->b);
        if (p->count * dtype_size(m->k->buf[i->imm].dtype) != WIDE)
            m->info.narrow[i->imm] += accesses;
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
        if (!source_inst(m, v))
            return false;
    text_put(m->t, "}\n");
    count_narrow(m);
    return !m->t->failed || err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
}

bool source_kernel(const struct kernel *k, const struct dialect *d, const char *entry, struct text *out,
                   struct source_info *info, struct err *e)
{
    struct emitter m = {.k = k, .d = d, .t = out, .e = e, .width = 1, .own_threads = kernel_has_blocks(k)};
    if (!kernel_verify(k, e))
        return false;
    for (val v = 1; v < k->ninst; v++) {
        m.copying |= d->copies == COPIES_ASYNC && k->inst[v].op == L_COPY;
        m.chained |= k->inst[v].op == L_MMA && k->inst[v].kind == MMA_CHAIN && !k->sched.graph_order;
    }
    m.info.threads = source_widest_lanes(k);
    m.shuffle = source_shuffle_lanes(k, d, m.info.threads);
    m.info.local = mem_alloc((k->nbuf + 1) * sizeof *m.info.local);
    m.info.narrow = mem_alloc((k->nbuf + 1) * sizeof *m.info.narrow);
    m.barrier = mem_arena_alloc(&m.mem, k->ninst);
    m.apart = mem_arena_alloc(&m.mem, k->ninst);
    m.chain = mem_arena_alloc(&m.mem, k->ninst);
    m.known = mem_arena_alloc(&m.mem, k->ninst);
    m.narrow = mem_arena_alloc(&m.mem, k->ninst);
    m.role = mem_arena_alloc(&m.mem, k->ninst);
    m.sums = mem_arena_alloc(&m.mem, k->ninst * sizeof *m.sums);
    bool ok = m.info.local && m.info.narrow && !m.mem.failed;
    ok = ok ? source_emit_kernel(&m, entry) : err_set(e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    mem_arena_free(&m.mem);
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
