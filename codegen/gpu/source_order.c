/* Barriers.  Threads of a block that access the same element of memory must do so in the order of the instructions.
 *
 * For each buffer the pass over the kernel tracks whether any thread may have read or written it since the last
 * barrier.  A barrier is emitted before a read after a write, and before a write after a read or a write.  The elements
 * of a buffer are not distinguished, with one exception: an input may be in the same memory as an output only if the
 * element that an iteration stores is the one that it has read.  If both happen in the same lane of one vector loop
 * that has a lane for each thread, no barrier is needed.
 *
 * What is true at a loop's end is also true at its start, so the pass is repeated until it finds nothing new.
 * Iterations of the parallel loop share only scratch.  Between the iterations of a loop around the only vector loop
 * that reads an input, or around the stores that fill an output, no barrier is needed if each iteration has its own
 * elements: the program guarantees this for such an input, and the indices show it for such stores. */
#include "emit_source.h"
#include <string.h>

enum { READ = 1, WRITTEN = 2 };

struct order_walk {
    struct mem_arena mem;
    struct emitter *m;
    uint8_t *now;                 /* per buffer: READ, WRITTEN since the last barrier */
    val *where;                   /* per input: the vector loop in which alone it was read lane by lane, else NIL; per
                                     other buffer: the first of the stores of one loop that alone wrote it, else NIL */
    uint8_t *before, *entry;      /* before, per open loop or if: `now` before it; entry, per loop and buffer: `now` at
                                     its end */
    val *before_where, *entry_where; /* the same for `where` */
    uint32_t *row;                /* per loop: its row in `entry` */
    val stack[MAX_NEST];
    unsigned depth;
    val vector;
    uint32_t width;
    bool changed;
    bool again;                   /* a barrier was added before a loop, so what was found after it may be out of date */
};

static bool each_thread_a_lane(const struct order_walk *w, val index)
{
    return w->vector && w->width == w->m->info.threads && w->m->k->inst[index].varying;
}

/* Adds a barrier before access v to a buffer.  If the buffer was accessed before a loop around v, it is added before
 * this loop, and the pass is repeated. */
static void order_add_barrier(struct order_walk *w, val v, uint32_t buf)
{
    const struct kernel *k = w->m->k;
    for (unsigned d = 0; d < w->depth && !w->again; d++) {
        const struct linst *l = &k->inst[w->stack[d]];
        bool outermost = l->op == L_LOOP && l->kind == LOOP_PARALLEL;
        if (!outermost && l->op == L_LOOP && w->before[(size_t)d * k->nbuf + buf] && !w->m->barrier[w->stack[d]]) {
            w->m->barrier[w->stack[d]] = 1;
            w->again = true;
        }
    }
    if (!w->again)
        w->m->barrier[v] = 1;
    memset(w->now, 0, k->nbuf);
}

bool source_may_share(const struct kernel *k, uint32_t b, uint32_t o)
{
    return k->buf[b].role == BUF_IN && k->buf[b].count == k->buf[o].count &&
        dtype_size(k->buf[b].dtype) == dtype_size(k->buf[o].dtype);
}

static void source_order_load(struct order_walk *w, val v)
{
    const struct linst *i = &w->m->k->inst[v];
    if (w->now[i->imm] & WRITTEN)
        order_add_barrier(w, v, (uint32_t)i->imm);
    val where = each_thread_a_lane(w, i->a) ? w->vector : 0;
    if (w->m->k->buf[i->imm].role == BUF_IN)
        w->where[i->imm] = !w->now[i->imm] || w->where[i->imm] == where ? where : 0;
    w->now[i->imm] |= READ;
}

/* By how much an index increases if loop variable `var` increases by one, and if var / over does, where the index has
 * such a term; else over is 0. */
struct index_slope { int64_t by, quotient_by, over; };

/* Is v the quotient of a loop variable and a constant?  Then this one is *over. */
static bool is_quotient(const struct kernel *k, val v, val var, int64_t *over)
{
    const struct linst *i = &k->inst[v];
    if (i->op != L_OP(P_DIV) || i->a != var || k->inst[i->b].op != L_CONST)
        return false;
    *over = (int64_t)k->inst[i->b].imm;
    return *over > 0;
}

/* Returns false if the index does not increase so. */
static bool order_index_slope(const struct kernel *k, const struct linear *l, val var, struct index_slope *s)
{
    *s = (struct index_slope){0};
    for (unsigned t = 0; t < l->n; t++)
        if (l->term[t] == var)
            s->by = l->by[t];
        else if (!s->over && is_quotient(k, l->term[t], var, &s->over))
            s->quotient_by = l->by[t];
        else if (k->inst[l->term[t]].op != L_LOOP && index_uses(k, l->term[t], var))
            return false;
    return true;
}

/* Of an index in a loop, with the loop's number of iterations; 0: any number. */
struct index_step { uint64_t by; int64_t count; };

static unsigned add_step(struct index_step *s, unsigned n, int64_t by, int64_t count)
{
    unsigned at = n;
    uint64_t size = by < 0 ? -(uint64_t)by : (uint64_t)by;
    for (; at > 0 && s[at - 1].by > size; at--)
        s[at] = s[at - 1];
    s[at] = (struct index_step){size, count};
    return n + 1;
}

/* Is each step longer than the span of all shorter steps together? */
static bool steps_apart(const struct index_step *s, unsigned n)
{
    uint64_t span = 0, reach;
    for (unsigned j = 0; j < n; j++) {
        if (s[j].count == 1)
            continue;
        if (s[j].by <= span)
            return false;
        if (!s[j].count || __builtin_mul_overflow(s[j].by, (uint64_t)s[j].count - 1, &reach) ||
            __builtin_add_overflow(span, reach, &span))
            span = UINT64_MAX; /* no step is longer */
    }
    return true;
}

/* Adds the steps of an index in a loop of `count` iterations from 0, whose variable is quotient * over + rest: of the
 * rest and of the quotient. */
static bool add_parts(struct index_step *s, unsigned *n, const struct index_slope *x, int64_t count)
{
    int64_t by;
    if (count < 1 || __builtin_mul_overflow(x->by, x->over, &by) || __builtin_add_overflow(by, x->quotient_by, &by))
        return false;
    *n = add_step(s, *n, x->by, count < x->over ? count : x->over);
    *n = add_step(s, *n, by, (count - 1) / x->over + 1);
    return true;
}

/* Do two stores to the same buffer, or one store in different iterations, never access the same element?  This is about
 * the iterations of all open loops except the parallel one, and except that of lanes if one thread does both stores. */
static bool order_is_disjoint(const struct order_walk *w, val v, val u)
{
    const struct kernel *k = w->m->k;
    struct linear a, b;
    struct index_step s[2 * MAX_NEST + 1];
    unsigned n = 0;
    int64_t between;
    bool once = source_is_of_one_thread(w->m, v) && source_is_of_one_thread(w->m, u);
    if (!source_linear(k, k->inst[v].a, &a) || !source_linear(k, k->inst[u].a, &b) ||
        !source_linear_apart(&a, &b, &between))
        return false;
    if (u != v)
        n = add_step(s, n, between, 2);
    for (unsigned d = w->depth; d-- > 0;) {
        const struct linst *l = &k->inst[w->stack[d]], *lo = &k->inst[l->a], *hi = &k->inst[l->b];
        struct index_slope slope;
        int64_t by, length, count = 0;
        if (l->op != L_LOOP || l->kind == LOOP_PARALLEL || (once && l->kind == LOOP_VECTOR))
            continue;
        if (!order_index_slope(k, &a, w->stack[d], &slope) ||
            __builtin_mul_overflow(slope.by, (int64_t)l->imm, &by))
            return false;
        if (lo->op == L_CONST && hi->op == L_CONST &&
            !__builtin_sub_overflow((int64_t)hi->imm, (int64_t)lo->imm, &length))
            count = length > 0 ? (length - 1) / (int64_t)l->imm + 1 : 1;
        if (!slope.over)
            n = add_step(s, n, by, count);
        else if (l->imm != 1 || lo->imm || !add_parts(s, &n, &slope, count))
            return false;
    }
    return steps_apart(s, n);
}

/* Does store v access other elements than all stores to its buffer in the innermost open loop or if, which must include
 * `first`? */
static bool apart_from_all(const struct order_walk *w, val v, val first)
{
    const struct kernel *k = w->m->k;
    unsigned depth = 0;
    val u = w->stack[w->depth - 1];
    bool has_first = false;
    for (u++; k->inst[u].op != L_END || depth; u++) {
        const struct linst *i = &k->inst[u];
        depth += i->op == L_LOOP || i->op == L_IF;
        depth -= i->op == L_END;
        if (depth || (i->op != L_STORE && i->op != L_ATOMIC) || i->imm != k->inst[v].imm)
            continue;
        has_first |= u == first;
        if (i->op != L_STORE || !order_is_disjoint(w, v, u))
            return false;
    }
    return has_first;
}

static void insert_barrier_before_store(struct order_walk *w, val v)
{
    const struct kernel *k = w->m->k;
    const struct linst *i = &k->inst[v];
    val first = w->where[i->imm];
    bool own = w->now[i->imm] == WRITTEN && first && w->depth && i->op == L_STORE && apart_from_all(w, v, first);
    bool wait = w->now[i->imm] && !own;
    uint32_t for_buf = (uint32_t)i->imm;
    for (uint32_t b = 0; !wait && k->buf[i->imm].role == BUF_OUT && b < k->nbuf; b++)
        if ((w->now[b] & READ) && source_may_share(k, b, (uint32_t)i->imm)) {
            wait = !each_thread_a_lane(w, i->a) || w->where[b] != w->vector;
            for_buf = b;
        }
    if (wait)
        order_add_barrier(w, v, for_buf);
    w->where[i->imm] = !w->now[i->imm] ? v : own ? first : 0;
    w->now[i->imm] |= WRITTEN;
}

/* Merges a state into the current one: that of the end of a loop's body at its start, and that before an if or a loop
 * after it. */
static void order_merge_state(struct order_walk *w, const uint8_t *from, const val *where)
{
    for (uint32_t b = 0; b < w->m->k->nbuf; b++) {
        if (from[b])
            w->where[b] = !w->now[b] || w->where[b] == where[b] ? where[b] : 0;
        w->now[b] |= from[b];
    }
}

static void order_open_block(struct order_walk *w, val v)
{
    const struct kernel *k = w->m->k;
    const struct linst *i = &k->inst[v];
    size_t before = (size_t)w->depth * k->nbuf, entry = (size_t)w->row[v] * k->nbuf;
    w->stack[w->depth++] = v;
    if (i->op == L_LOOP)
        order_merge_state(w, w->entry + entry, w->entry_where + entry);
    memcpy(w->before + before, w->now, k->nbuf);
    memcpy(w->before_where + before, w->where, k->nbuf * sizeof *w->where);
    if (i->op == L_LOOP && i->kind == LOOP_VECTOR) {
        w->vector = v;
        w->width = (uint32_t)k->inst[i->b].imm;
    }
}

static void order_close_block(struct order_walk *w)
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
    order_merge_state(w, w->before + before, w->before_where + before);
}

static void order_visit(struct order_walk *w, val v)
{
    const struct linst *i = &w->m->k->inst[v];
    if (w->m->barrier[v]) /* found in an earlier pass */
        memset(w->now, 0, w->m->k->nbuf);
    if (i->op == L_SYNC) /* the next phase is another launch */
        memset(w->now, 0, w->m->k->nbuf);
    else if (i->op == L_LOOP || i->op == L_IF)
        order_open_block(w, v);
    else if (i->op == L_END)
        order_close_block(w);
    else if (i->op == L_LOAD)
        source_order_load(w, v);
    else if (i->op == L_STORE || i->op == L_ATOMIC)
        insert_barrier_before_store(w, v);
    else if ((i->op == L_LANE_REDUCE || i->op == L_INTERLEAVE) &&
             exchanges(w->m, v, w->width)) /* these have barriers */
        memset(w->now, 0, w->m->k->nbuf);
}

/* What is known of the lanes of an index.  affine: they differ by `stride`, a constant.  rise: from lane to lane it
 * increases, or does not decrease, by `span` in all. */
enum rise { RISE_UNKNOWN, RISE_NONE, RISE_STRICT };
struct lane_index { bool affine; int64_t stride; enum rise rise; int64_t span; };

static struct lane_index lane_index_sum(const struct lane_index *a, const struct lane_index *b, bool minus)
{
    uint64_t x = (uint64_t)a->stride, y = (uint64_t)b->stride;
    struct lane_index s = {.affine = a->affine && b->affine, .stride = (int64_t)(minus ? x - y : x + y)};
    if (!minus && a->rise && b->rise && !__builtin_add_overflow(a->span, b->span, &s.span))
        s.rise = a->rise > b->rise ? a->rise : b->rise;
    return s;
}

static struct lane_index lane_index_product(const struct lane_index *a, const struct linst *by)
{
    int64_t c = (int64_t)by->imm;
    if (by->op != L_CONST)
        return (struct lane_index){0};
    struct lane_index p = {.affine = a->affine, .stride = (int64_t)((uint64_t)a->stride * by->imm)};
    if (c > 0 && !__builtin_mul_overflow(a->span, c, &p.span))
        p.rise = a->rise;
    return p;
}

/* Sums and multiples of loop variables, and their quotients. */
static struct lane_index lane_index(const struct kernel *k, val v, const struct lane_index *of)
{
    const struct linst *i = &k->inst[v], *n = k->inst;
    if (!i->varying)
        return (struct lane_index){.affine = true, .rise = RISE_NONE};
    if (i->op == L_LOOP)
        return (struct lane_index){true, 1, RISE_STRICT, (int64_t)n[i->b].imm - 1};
    if (i->dtype != KL_I64)
        return (struct lane_index){0};
    if (i->op == L_OP(P_ADD) || i->op == L_OP(P_SUB))
        return lane_index_sum(&of[i->a], &of[i->b], i->op == L_OP(P_SUB));
    if (i->op == L_OP(P_MUL))
        return n[i->b].op == L_CONST ? lane_index_product(&of[i->a], &n[i->b])
                                     : lane_index_product(&of[i->b], &n[i->a]);
    if (i->op == L_OP(P_DIV) && n[i->a].op == L_LOOP && n[i->b].op == L_CONST && (int64_t)n[i->b].imm > 0)
        return (struct lane_index){.rise = RISE_NONE, .span = of[i->a].span / (int64_t)n[i->b].imm};
    return (struct lane_index){0};
}

/* Finds the indices of which no two lanes have the same. */
static bool find_apart(struct emitter *m)
{
    const struct kernel *k = m->k;
    struct lane_index *of = mem_alloc(k->ninst * sizeof *of);
    for (val v = 1; of && v < k->ninst; v++) {
        of[v] = lane_index(k, v, of);
        /* modulo 2^64, of at most MAX_GPU_VECTOR = 2^8 lanes */
        m->apart[v] = of[v].rise == RISE_STRICT || (of[v].affine && (uint64_t)of[v].stride << 8);
    }
    mem_free(of);
    return of != NULL;
}

bool source_order(struct emitter *m)
{
    const struct kernel *k = m->k;
    uint32_t rows = 0;
    struct order_walk w = {.m = m};
    w.row = mem_arena_alloc(&w.mem, k->ninst * sizeof *w.row);
    for (val v = 1; w.row && v < k->ninst; v++)
        if (k->inst[v].op == L_LOOP)
            w.row[v] = rows++;
    w.now = mem_arena_alloc(&w.mem, k->nbuf + 1);
    w.where = mem_arena_alloc(&w.mem, (k->nbuf + 1) * sizeof *w.where);
    w.before = mem_arena_alloc(&w.mem, (size_t)MAX_NEST * k->nbuf + 1);
    w.entry = mem_arena_alloc(&w.mem, (size_t)rows * k->nbuf + 1);
    w.before_where = mem_arena_alloc(&w.mem, ((size_t)MAX_NEST * k->nbuf + 1) * sizeof *w.before_where);
    w.entry_where = mem_arena_alloc(&w.mem, ((size_t)rows * k->nbuf + 1) * sizeof *w.entry_where);
    bool ok = !w.mem.failed;
    ok = ok && find_apart(m);
    for (w.changed = ok && m->info.threads > 1 && !m->own_threads; w.changed;) {
        w.changed = false;
        memset(w.now, 0, k->nbuf);
        w.depth = 0;
        w.vector = 0;
        for (val v = 1; v < k->ninst && !w.again; v++)
            order_visit(&w, v);
        if (w.again) {
            memset(w.entry, 0, (size_t)rows * k->nbuf);
            memset(w.entry_where, 0, (size_t)rows * k->nbuf * sizeof *w.entry_where);
            w.again = false;
            w.changed = true;
        }
    }
    mem_arena_free(&w.mem);
    return ok;
}
