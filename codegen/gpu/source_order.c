/* Barriers: threads of a block that touch the same element of memory must do so in the order of the instructions.
 *
 * For each buffer the walk knows whether any thread may have read or written it since the last barrier.  An access that
 * must come behind one of these gets a barrier in front of it: a read behind a write, a write behind either.  Elements
 * are not told apart, but for an input: that may be the memory of an output only where the element an iteration stores
 * is the one it has read, in the same lane as long as both happen in one vector loop that has a lane for each thread.
 *
 * Loops: what holds at a loop's end holds at its start, too, so the walk is repeated until nothing new comes up there.
 * Iterations of the parallel loop share nothing but scratch. */
#include "emit_source.h"
#include <string.h>

enum { READ = 1, WRITTEN = 2 };

struct walk {
    struct emitter *m;
    uint8_t *now;                 /* per buffer: READ, WRITTEN since the last barrier */
    val *where;                   /* per buffer: the one vector loop where it was read by lane, NIL: or elsewhere */
    uint8_t *before, *entry;      /* per open nest: what held in front; per loop and buffer: what held at its end */
    uint32_t *row;                /* per loop: its row of entry */
    val stack[MAX_NEST];
    unsigned depth;
    val vector;
    uint32_t width;
    bool changed;
};

static bool each_thread_a_lane(const struct walk *w, val index)
{
    return w->vector && w->width == w->m->info.threads && w->m->k->inst[index].varying;
}

static void barrier(struct walk *w, val v)
{
    w->m->barrier[v] = 1;
    memset(w->now, 0, w->m->k->nbuf);
}

/* May input b be the memory of output o? */
static bool may_share(const struct kernel *k, uint32_t b, uint32_t o)
{
    return k->buf[b].role == BUF_IN && k->buf[b].count == k->buf[o].count && dtype_size(k->buf[b].dtype) == dtype_size(k->buf[o].dtype);
}

static void load(struct walk *w, val v)
{
    const struct linst *i = &w->m->k->inst[v];
    if (w->now[i->imm] & WRITTEN)
        barrier(w, v);
    val where = each_thread_a_lane(w, i->a) ? w->vector : 0;
    w->where[i->imm] = !(w->now[i->imm] & READ) || w->where[i->imm] == where ? where : 0;
    w->now[i->imm] |= READ;
}

static void store(struct walk *w, val v)
{
    const struct kernel *k = w->m->k;
    const struct linst *i = &k->inst[v];
    bool wait = w->now[i->imm] != 0;
    for (uint32_t b = 0; !wait && k->buf[i->imm].role == BUF_OUT && b < k->nbuf; b++)
        if ((w->now[b] & READ) && may_share(k, b, (uint32_t)i->imm))
            wait = !each_thread_a_lane(w, i->a) || w->where[b] != w->vector;
    if (wait)
        barrier(w, v);
    w->now[i->imm] |= WRITTEN;
}

/* What held at the end of a loop's body holds at its start, and behind an if or a loop what held in front of it. */
static void merge(struct walk *w, const uint8_t *from)
{
    for (uint32_t b = 0; b < w->m->k->nbuf; b++)
        w->now[b] |= from[b];
}

static void open(struct walk *w, val v)
{
    const struct kernel *k = w->m->k;
    const struct linst *i = &k->inst[v];
    uint8_t *before = w->before + w->depth * k->nbuf;
    w->stack[w->depth++] = v;
    if (i->op == L_LOOP)
        merge(w, w->entry + (size_t)w->row[v] * k->nbuf);
    memcpy(before, w->now, k->nbuf);
    memset(w->where, 0, k->nbuf * sizeof *w->where);
    if (i->op == L_LOOP && i->kind == LOOP_VECTOR) {
        w->vector = v;
        w->width = (uint32_t)k->inst[i->b].imm;
    }
}

static void close(struct walk *w)
{
    const struct kernel *k = w->m->k;
    val head = w->stack[--w->depth];
    const struct linst *i = &k->inst[head];
    if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
        w->vector = 0;
    uint8_t *entry = w->entry + (size_t)w->row[head] * k->nbuf;
    for (uint32_t b = 0; i->op == L_LOOP && i->kind != LOOP_VECTOR && b < k->nbuf; b++) {
        uint8_t more = i->kind == LOOP_PARALLEL && k->buf[b].role != BUF_SCRATCH ? 0 : w->now[b] & ~entry[b];
        entry[b] |= more;
        w->changed |= more != 0;
    }
    merge(w, w->before + w->depth * k->nbuf);
    memset(w->where, 0, k->nbuf * sizeof *w->where);
}

static void step(struct walk *w, val v)
{
    const struct linst *i = &w->m->k->inst[v];
    if (w->m->barrier[v]) /* found in an earlier walk */
        memset(w->now, 0, w->m->k->nbuf);
    if (i->op == L_LOOP || i->op == L_IF)
        open(w, v);
    else if (i->op == L_END)
        close(w);
    else if (i->op == L_LOAD)
        load(w, v);
    else if (i->op == L_STORE || i->op == L_ATOMIC)
        store(w, v);
    else if ((i->op == L_FOLD || i->op == L_MIX) && exchanges(w->m, v, w->width)) /* these have barriers */
        memset(w->now, 0, w->m->k->nbuf);
}

/* Indices whose lanes are equally far apart: sums and multiples of loop variables. */
static void find_strides(struct emitter *m)
{
    const struct kernel *k = m->k;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        m->affine[v] = !i->varying || i->op == L_LOOP;
        m->stride[v] = i->varying && i->op == L_LOOP;
        if (!i->varying || i->dtype != KL_I64 || !m->affine[i->a] || !m->affine[i->b])
            continue;
        uint64_t a = (uint64_t)m->stride[i->a], b = (uint64_t)m->stride[i->b];
        if (i->op == L_OP(P_ADD) || i->op == L_OP(P_SUB)) {
            m->affine[v] = 1;
            m->stride[v] = (int64_t)(i->op == L_OP(P_ADD) ? a + b : a - b);
        } else if (i->op == L_OP(P_MUL) && k->inst[i->b].op == L_CONST) {
            m->affine[v] = 1;
            m->stride[v] = (int64_t)(a * k->inst[i->b].imm);
        } else if (i->op == L_OP(P_MUL) && k->inst[i->a].op == L_CONST) {
            m->affine[v] = 1;
            m->stride[v] = (int64_t)(b * k->inst[i->a].imm);
        }
    }
}

bool source_order(struct emitter *m)
{
    const struct kernel *k = m->k;
    uint32_t rows = 0;
    struct walk w = {.m = m, .row = mem_alloc(k->ninst * sizeof *w.row)};
    for (val v = 1; w.row && v < k->ninst; v++)
        if (k->inst[v].op == L_LOOP)
            w.row[v] = rows++;
    w.now = mem_alloc(k->nbuf + 1);
    w.where = mem_alloc((k->nbuf + 1) * sizeof *w.where);
    w.before = mem_alloc((size_t)MAX_NEST * k->nbuf + 1);
    w.entry = mem_alloc((size_t)rows * k->nbuf + 1);
    bool ok = w.row && w.now && w.where && w.before && w.entry;
    if (ok)
        find_strides(m);
    for (w.changed = ok && m->info.threads > 1 && !m->own_threads; w.changed;) {
        w.changed = false;
        memset(w.now, 0, k->nbuf);
        for (val v = 1; v < k->ninst; v++)
            step(&w, v);
    }
    mem_free(w.row);
    mem_free(w.now);
    mem_free(w.where);
    mem_free(w.before);
    mem_free(w.entry);
    return ok;
}
