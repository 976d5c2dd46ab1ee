/* Barriers: threads of a block that touch the same element of memory must do so in the order of the instructions.
 *
 * For each buffer the walk knows whether any thread may have read or written it since the last barrier.  An access that
 * must come behind one of these gets a barrier in front of it: a read behind a write, a write behind either.  Elements
 * are not told apart, but for an input: that may be the memory of an output only where the element an iteration stores
 * is the one it has read, in the same lane as long as both happen in one vector loop that has a lane for each thread.
 *
 * Loops: what holds at a loop's end holds at its start, too, so the walk is repeated until nothing new comes up there.
 * Iterations of the parallel loop share nothing but scratch.  Those of a loop around the one vector loop that reads an
 * input, or around the one store that fills an output, need no barrier between them where each has elements of its own:
 * so says the program of such an input, and the index of such a store. */
#include "emit_source.h"
#include <string.h>

enum { READ = 1, WRITTEN = 2 };

struct walk {
    struct emitter *m;
    uint8_t *now;                 /* per buffer: READ, WRITTEN since the last barrier */
    val *where;                   /* per input: the one vector loop where it was read by lane, NIL: or elsewhere; of the
                                     others: the one store that wrote them, NIL: or another */
    uint8_t *before, *entry;      /* per open nest: what held in front; per loop and buffer: what held at its end; */
    val *before_where, *entry_where; /* and the same of where */
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
    return k->buf[b].role == BUF_IN && k->buf[b].count == k->buf[o].count &&
        dtype_size(k->buf[b].dtype) == dtype_size(k->buf[o].dtype);
}

static void source_order_load(struct walk *w, val v)
{
    const struct linst *i = &w->m->k->inst[v];
    if (w->now[i->imm] & WRITTEN)
        barrier(w, v);
    val where = each_thread_a_lane(w, i->a) ? w->vector : 0;
    if (w->m->k->buf[i->imm].role == BUF_IN)
        w->where[i->imm] = !w->now[i->imm] || w->where[i->imm] == where ? where : 0;
    w->now[i->imm] |= READ;
}

/* How much further v is when loop variable `var` is one more; false: that is not always the same. */
static bool slope(const struct kernel *k, val v, val var, int64_t *by)
{
    const struct linst *i = &k->inst[v];
    int64_t a = 0, b = 0;
    bool sum = i->op == L_OP(P_ADD) || i->op == L_OP(P_SUB), product = i->op == L_OP(P_MUL) &&
        k->inst[i->b].op == L_CONST;
    *by = v == var;
    if (v == var || !index_uses(k, v, var))
        return true;
    if (i->op == L_SPLAT)
        return slope(k, i->a, var, by);
    if (i->dtype != KL_I64 || (!sum && !product) || !slope(k, i->a, var, &a) || (sum && !slope(k, i->b, var, &b)))
        return false;
    if (product)
        return !__builtin_mul_overflow(a, (int64_t)k->inst[i->b].imm, by);
    return !(i->op == L_OP(P_ADD) ? __builtin_add_overflow(a, b, by) : __builtin_sub_overflow(a, b, by));
}

/* Do no two iterations of the open loops, the parallel one apart, have an element of this store in common? */
static bool apart(const struct walk *w, const struct linst *i)
{
    const struct kernel *k = w->m->k;
    int64_t span = 0, by, n;
    for (unsigned d = w->depth; d-- > 0;) {
        const struct linst *l = &k->inst[w->stack[d]];
        if (l->op != L_LOOP || l->kind == LOOP_PARALLEL)
            continue;
        bool counted = k->inst[l->a].op == L_CONST && k->inst[l->b].op == L_CONST;
        if (span == INT64_MAX || !slope(k, i->a, w->stack[d], &by) ||
            __builtin_mul_overflow(by, (int64_t)l->imm, &by) || by == INT64_MIN ||
            (by < 0 ? -by : by) <= span)
            return false;
        by = by < 0 ? -by : by;
        n = counted ? ((int64_t)k->inst[l->b].imm - (int64_t)k->inst[l->a].imm + (int64_t)l->imm - 1) / (int64_t)l->imm
            : 0;
        if (!counted || __builtin_mul_overflow(by, n > 0 ? n - 1 : 0, &n) || __builtin_add_overflow(span, n, &span))
            span = INT64_MAX; /* what is further out is not known to be apart */
    }
    return true;
}

static void source_order_store(struct walk *w, val v)
{
    const struct kernel *k = w->m->k;
    const struct linst *i = &k->inst[v];
    bool own = w->now[i->imm] == WRITTEN && w->where[i->imm] == v && i->op == L_STORE && apart(w, i),
        wait = w->now[i->imm] && !own;
    for (uint32_t b = 0; !wait && k->buf[i->imm].role == BUF_OUT && b < k->nbuf; b++)
        if ((w->now[b] & READ) && may_share(k, b, (uint32_t)i->imm))
            wait = !each_thread_a_lane(w, i->a) || w->where[b] != w->vector;
    if (wait)
        barrier(w, v);
    w->where[i->imm] = !w->now[i->imm] || w->where[i->imm] == v ? v : 0;
    w->now[i->imm] |= WRITTEN;
}

/* What held at the end of a loop's body holds at its start, and behind an if or a loop what held in front of it. */
static void merge(struct walk *w, const uint8_t *from, const val *where)
{
    for (uint32_t b = 0; b < w->m->k->nbuf; b++) {
        if (from[b])
            w->where[b] = !w->now[b] || w->where[b] == where[b] ? where[b] : 0;
        w->now[b] |= from[b];
    }
}

static void open(struct walk *w, val v)
{
    const struct kernel *k = w->m->k;
    const struct linst *i = &k->inst[v];
    size_t before = (size_t)w->depth * k->nbuf, entry = (size_t)w->row[v] * k->nbuf;
    w->stack[w->depth++] = v;
    if (i->op == L_LOOP)
        merge(w, w->entry + entry, w->entry_where + entry);
    memcpy(w->before + before, w->now, k->nbuf);
    memcpy(w->before_where + before, w->where, k->nbuf * sizeof *w->where);
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
    val *where = w->entry_where + (size_t)w->row[head] * k->nbuf;
    for (uint32_t b = 0; i->op == L_LOOP && i->kind != LOOP_VECTOR && b < k->nbuf; b++) {
        uint8_t now = i->kind == LOOP_PARALLEL && k->buf[b].role != BUF_SCRATCH ? 0 : w->now[b];
        val place = !now ? where[b] : !entry[b] || where[b] == w->where[b] ? w->where[b] : 0;
        w->changed |= (now & ~entry[b]) || place != where[b];
        where[b] = place;
        entry[b] |= now;
    }
    size_t before = (size_t)w->depth * k->nbuf;
    merge(w, w->before + before, w->before_where + before);
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
        source_order_load(w, v);
    else if (i->op == L_STORE || i->op == L_ATOMIC)
        source_order_store(w, v);
    else if ((i->op == L_LANE_REDUCE || i->op == L_INTERLEAVE) &&
             exchanges(w->m, v, w->width)) /* these have barriers */
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
    w.before_where = mem_alloc(((size_t)MAX_NEST * k->nbuf + 1) * sizeof *w.before_where);
    w.entry_where = mem_alloc(((size_t)rows * k->nbuf + 1) * sizeof *w.entry_where);
    bool ok = w.row && w.now && w.where && w.before && w.entry && w.before_where && w.entry_where;
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
    mem_free(w.before_where);
    mem_free(w.entry_where);
    return ok;
}
