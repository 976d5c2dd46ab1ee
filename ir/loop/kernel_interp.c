/* Runs a kernel without compiling it: the second oracle, which checks the assumptions that compiled code makes.
 *
 * The state of a thread is a position in the array of instructions and the words of its values; loops are jumps.  The
 * threads of a block run one after the other up to the next barrier, and then continue from there.
 *
 * A tile is a value of a whole subgroup.  The first thread of the subgroup computes it; no other thread needs it,
 * because a value that is no tile is never computed from one.  The others run the same instructions on tiles, and their
 * operands that are no tiles must have the same values, which is checked at the end of the block. */
#include "kernel_interp.h"
#include <string.h>

/* Words of a loop other than a vector loop: its variable and its end. */
enum { VARIABLE, END, LOOP_WORDS };

/* Does the instruction compute or store a tile? */
static bool on_tile(const struct machine *m, const struct linst *i)
{
    return i->cols || (i->op == L_STORE && m->k->inst[i->b].cols);
}

static void digest_word(struct thread *t, uint64_t x)
{
    t->digest = (t->digest ^ x) * 0x9e3779b97f4a7c15u; /* 2^64 / the golden ratio */
    t->digest ^= t->digest >> 32;
}

/* Adds instruction v on a tile to the digest of the thread. */
static void note_tile(const struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    const val in[] = {i->a, i->b, i->c, i->d};
    digest_word(t, v);
    for (unsigned o = 0; o < sizeof in / sizeof *in; o++)
        if (in[o] && !m->k->inst[in[o]].cols)
            digest_word(t, value_get(m, t, in[o], 0, 0));
    bool phases = i->op == L_LOAD && (m->by_phases[(uint32_t)i->imm] || m->order[(uint32_t)i->imm]);
    for (uint32_t b = 0; phases && b < m->nbarrier; b++)
        digest_word(t, t->awaited[b]);
}

static void take_next(struct machine *m, struct thread *t, val loop)
{
    val first = m->stop[loop];
    size_t n = 0;
    while (first > loop && m->k->inst[first - 1].op == L_NEXT)
        first--;
    for (val v = first; v < m->stop[loop]; v++) { /* at the same time: a carry may be the next value of another */
        const struct linst *i = &m->k->inst[v];
        struct extent x = value_extent(t, &m->k->inst[i->a]);
        if (m->k->inst[i->a].cols && !t->leads)
            continue;
        for (int r = 0; r < x.rows; r++)
            for (int c = 0; c < x.cols; c++)
                m->next[n++] = value_get(m, t, i->b, r, c);
    }
    n = 0;
    for (val v = first; v < m->stop[loop]; v++) {
        val carry = m->k->inst[v].a;
        if (m->k->inst[carry].cols && !t->leads)
            continue;
        t->unfinished[carry] = t->unfinished[m->k->inst[v].b];
        struct extent x = value_extent(t, &m->k->inst[carry]);
        size_t words = (size_t)(x.rows * x.cols);
        memcpy(t->v + m->at[carry], m->next + n, words * sizeof *m->next);
        n += words;
    }
}

static bool run_block(struct machine *m, val loop);

/* The first iteration, or the instruction after the loop. */
static bool enter_loop(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint64_t *w = t->v + m->at[v];
    int64_t lo = (int64_t)value_get(m, t, i->a, 0, 0), hi = (int64_t)value_get(m, t, i->b, 0, 0);
    if (i->kind == LOOP_BLOCK) {
        t->pc = m->stop[v] + 1;
        return run_block(m, v);
    }
    if (i->kind == LOOP_VECTOR) {
        t->width = (int)hi;
        for (int l = 0; l < t->width; l++)
            w[l] = (uint64_t)l;
        t->pc++;
        return true;
    }
    if (i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID) {
        lo = m->lo;
        hi = m->hi;
        m->iteration++;
        if (i->kind == LOOP_GRID && i->rows && !memory_begin_in_order(m, v))
            return false;
    }
    for (val c = v + 1; m->k->inst[c].op == L_CARRY; c++) {
        if (m->k->inst[c].cols && !t->leads)
            continue;
        value_copy(m, t, c, m->k->inst[c].a);
        t->unfinished[c] = t->unfinished[m->k->inst[c].a];
    }
    w[VARIABLE] = (uint64_t)lo;
    w[END] = (uint64_t)hi;
    t->pc = lo < hi ? v + 1 : m->stop[v] + 1;
    return true;
}

static void end_loop(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint64_t *w = t->v + m->at[v];
    t->pc = m->stop[v] + 1;
    if (i->kind == LOOP_VECTOR) {
        t->width = 1;
        return;
    }
    int64_t x;
    take_next(m, t, v);
    if (__builtin_add_overflow((int64_t)w[VARIABLE], (int64_t)i->imm, &x) || x >= (int64_t)w[END])
        return;
    w[VARIABLE] = (uint64_t)x;
    m->iteration += i->kind == LOOP_GRID || (i->kind == LOOP_PARALLEL && !i->rows);
    t->pc = v + 1;
}

/* Does the instruction use a result of products that nothing has waited for? */
static bool uses_unfinished(const struct machine *m, const struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    const val in[] = {i->a, i->b, i->op == L_MMA && i->kind == MMA_ASYNC ? 0 : i->c, i->d};
    for (unsigned o = 0; o < sizeof in / sizeof *in; o++)
        if (t->unfinished[in[o]])
            return !err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u uses %%%u, a result of products that it has not "
                            "waited for", m->k->name, v, in[o]);
    return false;
}

static bool run_inst(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    bool carries = i->op == L_LOOP || i->op == L_CARRY || i->op == L_NEXT || i->op == L_END || i->op == L_OUT;
    if (t->nfactor && !carries && uses_unfinished(m, t, v))
        return false;
    t->pc = v + 1;
    if (on_tile(m, i)) {
        note_tile(m, t, v);
        if (!t->leads)
            return i->op != L_MMA || i->kind != MMA_ASYNC || memory_begin_product(m, t, v);
    }
    switch (i->op) {
    case L_LOOP:
        t->pc = v;
        return enter_loop(m, t, v);
    case L_IF:
        t->pc = value_get(m, t, i->a, 0, 0) ? v + 1 : m->stop[v] + 1;
        return true;
    case L_END:
        if (m->k->inst[i->a].op == L_LOOP)
            end_loop(m, t, i->a);
        return true;
    case L_CONST:
    case L_SLOT:
    case L_CARRY:
    case L_NEXT:
    case L_PREFETCH:
    case L_SYNC:
        return true;
    case L_LOAD:
        return memory_load(m, t, v);
    case L_STORE:
        return memory_store(m, t, v);
    case L_ATOMIC:
        return memory_atomic(m, t, v);
    case L_PUBLISH:
        return memory_publish(m, t, v);
    case L_RECEIVE:
        return memory_receive(m, t, v);
    case L_COPY:
        return memory_copy(m, t, v);
    case L_COPY_PANEL:
        return phase_copy(m, t, v);
    case L_ARRIVE:
        return phase_arrive(m, t, v);
    case L_COMMIT:
        t->batch += i->kind == ASYNC_COPIES;
        t->products += i->kind == ASYNC_PRODUCTS;
        return true;
    case L_WAIT:
        if (i->kind == ASYNC_COPIES)
            return memory_complete_copies(m, t, i->imm);
        memory_complete_products(m, t, i->imm);
        return true;
    default:
        if (!value_run(m, t, v))
            return false;
        t->unfinished[v] = i->op == L_MMA && i->kind == MMA_ASYNC ? t->products : i->op == L_OUT ? t->unfinished[i->a]
            : 0;
        return true;
    }
}

/* Runs up to `end`, to a barrier, or to a phase that is not complete. */
static bool run_thread(struct machine *m, struct thread *t, val end)
{
    while (t->pc < end) {
        bool ready = true;
        unsigned op = m->k->inst[t->pc].op;
        t->waits = op == L_BARRIER;
        if (t->waits)
            return true;
        if (op == L_AWAIT) {
            if (!phase_await(m, t, t->pc, &ready))
                return false;
            if (!ready)
                return true;
            t->pc++;
        } else if (!run_inst(m, t, t->pc)) {
            return false;
        }
    }
    return true;
}

/* Lets the threads pass that are at a barrier, if all that it is for are there.  Returns whether it did. */
static bool pass_barrier(struct machine *m, uint32_t n)
{
    uint32_t waiting = 0, of = n;
    for (uint32_t x = 0; x < n; x++)
        if (m->thread[x].waits) {
            const struct linst *i = &m->k->inst[m->thread[x].pc];
            waiting++;
            of = i->imm ? (uint32_t)i->imm : n;
        }
    if (waiting != of)
        return false;
    for (uint32_t x = 0; x < n; x++) {
        m->thread[x].pc += m->thread[x].waits;
        m->thread[x].waits = false;
    }
    m->interval++;
    return true;
}

/* Has each thread of a block run the same instructions on tiles as the first one of its subgroup? */
static bool same_tiles(const struct machine *m, uint32_t n, unsigned subgroup)
{
    for (uint32_t x = 0; subgroup && x < n; x++) {
        uint32_t first = x / subgroup * subgroup;
        if (m->thread[x].digest != m->thread[first].digest)
            return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: threads %u and %u of a subgroup do not compute the same "
                           "tiles", m->k->name, first, x);
    }
    return true;
}

static bool run_block(struct machine *m, val loop)
{
    const struct linst *i = &m->k->inst[loop];
    uint32_t n = (uint32_t)value_get(m, &m->main, i->b, 0, 0);
    val end = m->stop[loop];
    for (uint32_t x = 0; x < n; x++) {
        struct thread *t = &m->thread[x];
        t->leads = !i->rows || x % i->rows == 0;
        t->digest = 0;
        memcpy(t->v, m->main.v, (t->leads ? m->words : m->scalars) * sizeof *t->v);
        memset(t->private, 0, m->private_bytes);
        t->v[m->at[loop]] = x;
        t->pc = loop + 1;
        t->width = 1;
        t->self = (int32_t)x;
        t->subgroup = i->rows ? (int32_t)(x / i->rows * i->rows) : (int32_t)x;
        t->nflight = t->nfactor = 0;
        t->batch = 0;
        t->products = 1;
        memset(t->unfinished, 0, m->k->ninst * sizeof *t->unfinished);
        memset(t->awaited, 0, m->nbarrier * sizeof *t->awaited);
        t->waits = false;
    }
    phase_begin_block(m);
    m->interval++;
    for (bool done = false; !done;) {
        m->moved = false;
        done = true;
        for (uint32_t x = 0; x < n; x++) {
            struct thread *t = &m->thread[x];
            val from = t->pc;
            if (!t->waits && t->pc < end && !run_thread(m, t, end))
                return false;
            m->moved |= t->pc != from;
            done &= t->pc == end;
        }
        m->moved |= !done && pass_barrier(m, n);
        if (!done && !m->moved)
            return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: all threads of a block wait for each other",
                           m->k->name);
    }
    return same_tiles(m, n, i->rows) && phase_end_block(m);
}

/* ---- the machine ---- */

static size_t words_of(const struct linst *i, unsigned width)
{
    if (i->cols)
        return (size_t)i->rows * i->cols;
    return i->varying ? width : i->op == L_LOOP ? LOOP_WORDS : 1;
}

/* Assigns words to values and loops, tiles last; counts the words of carries. */
static size_t lay_out(struct machine *m)
{
    const struct kernel *k = m->k;
    unsigned width = 1;
    size_t carried = 0;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
            width = (unsigned)k->inst[i->b].imm;
        if (!i->cols) {
            m->at[v] = m->scalars;
            m->scalars += words_of(i, width);
        }
        carried += i->op == L_CARRY ? words_of(i, width) : 0;
        if (i->op == L_END)
            m->stop[i->a] = v;
        if (i->op == L_LOOP && i->kind == LOOP_BLOCK)
            m->nthread = k->inst[i->b].imm > m->nthread ? (uint32_t)k->inst[i->b].imm : m->nthread;
    }
    m->words = m->scalars;
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].cols) {
            m->at[v] = m->words;
            m->words += words_of(&k->inst[v], width);
        }
    return carried;
}

/* Does thread `number` compute tiles in any block? */
static bool ever_leads(const struct kernel *k, uint32_t number)
{
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_BLOCK && (!i->rows || number % i->rows == 0))
            return true;
    }
    return false;
}

static bool thread_alloc(struct machine *m, struct thread *t, bool tiles)
{
    t->v = mem_arena_alloc(&m->mem, ((tiles ? m->words : m->scalars) + 1) * sizeof *t->v);
    t->private = mem_arena_alloc(&m->mem, m->private_bytes);
    t->unfinished = mem_arena_alloc(&m->mem, m->k->ninst * sizeof *t->unfinished);
    t->awaited = mem_arena_alloc(&m->mem, (m->nbarrier + 1) * sizeof *t->awaited);
    t->clock = mem_arena_alloc(&m->mem, (m->nbarrier ? m->nthread : 1) * sizeof *t->clock);
    return !m->mem.failed;
}

static void thread_free(struct thread *t)
{
    mem_free(t->flight);
    mem_free(t->factor);
}

static bool buffers_alloc(struct machine *m, void *const *buf)
{
    size_t shared = 0;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        size_t bytes = ((size_t)l->count * dtype_size(l->dtype) + 7) / 8 * 8;
        m->private_at[b] = l->role == BUF_SHARED ? shared : m->private_bytes;
        shared += l->role == BUF_SHARED ? bytes : 0;
        m->private_bytes += l->role == BUF_REGISTER ? bytes : 0;
        if (l->role != BUF_OUT && l->role != BUF_WORKSPACE && l->role != BUF_SHARED)
            continue;
        if ((uint64_t)l->count > SIZE_MAX / sizeof **m->mark ||
            !(m->mark[b] = mem_arena_alloc(&m->mem, (size_t)l->count * sizeof **m->mark)))
            return false;
    }
    m->shared = mem_arena_alloc(&m->mem, shared);
    for (uint32_t b = 0; b < m->k->nbuf; b++)
        m->buf[b] = m->k->buf[b].role == BUF_SHARED ? m->shared + m->private_at[b]
                  : buf_is_local(m->k->buf[b].role) ? NULL : buf[b];
    return m->shared;
}

/* Numbers the barriers of all buffers of phases, and finds the buffers that panels are copied to. */
static bool phases_alloc(struct machine *m)
{
    m->barrier_at = mem_arena_alloc(&m->mem, (m->k->nbuf + 1) * sizeof *m->barrier_at);
    m->by_phases = mem_arena_alloc(&m->mem, (m->k->nbuf + 1) * sizeof *m->by_phases);
    m->order = mem_arena_alloc(&m->mem, (m->k->nbuf + 1) * sizeof *m->order);
    if (!m->barrier_at || !m->by_phases || !m->order)
        return false;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        m->barrier_at[b] = m->nbarrier;
        m->nbarrier += m->k->buf[b].role == BUF_PHASES ? (uint32_t)m->k->buf[b].count : 0;
    }
    for (val v = 1; v < m->k->ninst; v++)
        if (m->k->inst[v].op == L_COPY_PANEL)
            m->by_phases[(uint32_t)m->k->inst[v].imm] = true;
    m->barrier = mem_arena_alloc(&m->mem, (m->nbarrier + 1) * sizeof *m->barrier);
    for (uint32_t b = 0; b < m->nbarrier && m->barrier; b++) {
        m->barrier[b].arrived_clock = mem_arena_alloc(&m->mem, m->nthread * sizeof(uint32_t));
        m->barrier[b].done_clock = mem_arena_alloc(&m->mem, m->nthread * sizeof(uint32_t));
    }
    for (uint32_t b = 0; b < m->k->nbuf && m->nbarrier; b++)
        if (m->k->buf[b].role == BUF_SHARED && !m->by_phases[b])
            m->order[b] = mem_arena_alloc(&m->mem, (size_t)m->k->buf[b].count * sizeof **m->order);
    return !m->mem.failed;
}

static bool machine_alloc(struct machine *m, void *const *buf)
{
    const struct kernel *k = m->k;
    m->at = mem_arena_alloc(&m->mem, k->ninst * sizeof *m->at);
    m->stop = mem_arena_alloc(&m->mem, k->ninst * sizeof *m->stop);
    m->mark = mem_arena_alloc(&m->mem, (k->nbuf + 1) * sizeof *m->mark);
    m->buf = mem_arena_alloc(&m->mem, (k->nbuf + 1) * sizeof *m->buf);
    m->private_at = mem_arena_alloc(&m->mem, (k->nbuf + 1) * sizeof *m->private_at);
    if (m->mem.failed)
        return false;
    m->next = mem_arena_alloc(&m->mem, lay_out(m) * sizeof *m->next);
    m->thread = mem_arena_alloc(&m->mem, m->nthread * sizeof *m->thread);
    m->factor = mem_arena_alloc(&m->mem, 2 * MAX_TILE * sizeof *m->factor);
    bool ok = !m->mem.failed && buffers_alloc(m, buf) && phases_alloc(m) && thread_alloc(m, &m->main, true);
    for (uint32_t t = 0; ok && t < m->nthread; t++)
        ok = thread_alloc(m, &m->thread[t], ever_leads(k, t));
    return ok;
}

static void machine_free(struct machine *m)
{
    for (uint32_t t = 0; m->thread && t < m->nthread; t++)
        thread_free(&m->thread[t]);
    thread_free(&m->main);
    mem_free(m->panel);
    mem_arena_free(&m->mem);
}

static bool run_phase(struct machine *m, const struct phase *p, int64_t begin, int64_t end)
{
    m->lo = begin > p->base ? begin - p->base : 0;
    m->hi = end - p->base < p->extent ? end - p->base : p->extent;
    if (m->lo >= m->hi && p->extent < m->k->extent)
        return true; /* iterations of other calls */
    m->phase_iteration = ++m->iteration;
    m->interval++;
    m->main.pc = p->first;
    m->main.width = 1;
    m->main.leads = true;
    return run_thread(m, &m->main, p->end);
}

/* One member after the other. */
static bool interp_members(const struct kernel *k, void *const *buf, const uint64_t *slot, struct err *e)
{
    const struct kernel one = kernel_one_member(k);
    void **own = mem_alloc((one.nbuf + 1) * sizeof *own);
    bool ok = own || err_set(e, KL_ERR_MEMORY, "out of memory running kernel %s", k->name);
    for (uint32_t m = 0; ok && m < k->members; m++) {
        for (uint32_t b = 0; b < one.nbuf; b++)
            own[b] = buf[kernel_member_buffer(k, b, m)];
        ok = kernel_interp(&one, own, slot, 0, one.extent, e);
    }
    mem_free(own);
    return ok;
}

bool kernel_interp(const struct kernel *k, void *const *buf, const uint64_t *slot, int64_t begin, int64_t end,
                   struct err *e)
{
    if (!kernel_verify(k, e))
        return false;
    if (kernel_members(k) > 1)
        return begin || end != k->extent ? err_set(e, KL_ERR_INTERNAL, "kernel %s has members and is run in parts",
                                                   k->name) : interp_members(k, buf, slot, e);
    struct machine m = {.k = k, .slot = slot, .e = e};
    struct phase p = {0};
    bool ok = machine_alloc(&m, buf) || err_set(e, KL_ERR_MEMORY, "out of memory running kernel %s", k->name);
    while (ok && kernel_phase(k, &p))
        ok = run_phase(&m, &p, begin, end);
    machine_free(&m);
    return ok;
}
