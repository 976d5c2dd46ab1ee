/* Row kernels of a GPU, whose threads hold a row in registers, or iterate over a longer one in groups of elements.
 *
 * Rows that are iterated over are read from memory in each pass, so there are as few passes as possible: a maximum and
 * the sum of exponentials below it share one (online softmax), and sums that no stored element depends on are part of
 * the last pass.
 *
 * In the order of the graph a thread is as many of its 64 lanes as it has adjacent elements, each with a sum of its
 * own, chunks of a row are folded one by one, and there is no online softmax.  A row that is too long for the registers
 * of so few threads is cut into segments, each of which other threads hold: a sum of floats goes through them one after
 * the other. */
#include "lower_rows.h"
#include "passes/lower/gpu/lower_gpu.h"
#include <math.h>
#include <string.h>

enum { MAX_ROW_VECTOR = 8 };    /* adjacent elements of a lane */
enum { NUMERIC_LANES = 64 };    /* of a chunk in the graph's order */

/* Threads of a segment. */
static int64_t segment_threads(const struct rows *s) { return s->w->k->sched.width / s->segments; }

/* Of a row in segments, element e of a thread: in ascending order within the thread's segment. */
static void at_segment_place(struct rows *s, uint32_t e)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    int64_t each = s->each, number = e % each, step = segment_threads(s) * each, length = s->nheld / each * step;
    int64_t before = e / each * step, left = s->left - before;
    if (!s->start)
        s->start = ix_add(k, ix_scale(k, w->lane, each),
                          ix_scale(k, ix_div(k, w->lane, segment_threads(s)), length - step));
    w->column = ix_add(k, k_int(k, before + number), s->start);
    if (left < (s->segments - 1) * length + step && !s->there[e])
        s->there[e] = number && left % each == 0 ? s->there[e - number]
            : k_prim(k, P_LT, s->start, k_int(k, left > number ? left - number : 0), 0);
    w->pred = s->there[e];
    w->pred_padded = s->there[e - number]; /* of the vector's first element */
}

/* The index in the row of element e of a lane: `each` adjacent elements, then those of the next vector. */
void rows_at_held_place(struct rows *s, uint32_t e)
{
    if (s->segments > 1) {
        at_segment_place(s, e);
        return;
    }
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    int64_t each = s->each, base = e / each * k->sched.width * each, number = e % each;
    int64_t left = s->left - base;
    bool symbolic = !size_is_constant(rows_length(s)); /* a multiple of `each` */
    w->column = ix_add(k, k_int(k, base + number), ix_scale(k, w->lane, each));
    w->column = s->base ? ix_add(k, s->base, w->column) : w->column;
    if (symbolic && !s->there[e]) {
        s->there[e] = e % each ? s->there[e - number]
            : k_prim(k, P_LT, w->column, ix_size(k, rows_length(s)), 0);
    } else if (left < k->sched.width * each && !s->there[e]) {
        /* `each` adjacent elements are all within the row, or none is */
        val first = e % each ? s->there[e - number] : 0;
        s->there[e] = first && left % each == 0 ? first
            : k_prim(k, P_LT, w->lane, k_int(k, left > number ? (left - number + each - 1) / each : 0), 0);
    }
    w->pred = s->there[e];
    w->pred_padded = s->there[e - number]; /* of the vector's first element */
}

static void at_held(struct rows *s, uint32_t pass, uint32_t e)
{
    rows_at_held_place(s, e);
    s->w->held = &s->held[e];
    rows_compute_members(s, pass);
}

void rows_leave_held(struct rows *s)
{
    s->w->held = NULL;
    s->w->pred = s->w->pred_padded = 0;
}

/* The elements that there are at all; of a symbolic length, which is not `left`, all may be. */
uint32_t rows_held_there(const struct rows *s)
{
    if (!size_is_constant(rows_length(s)) || s->segments > 1)
        return s->nheld;
    int64_t vector = s->w->k->sched.width * s->each, vectors = (s->left + vector - 1) / vector;
    return vectors * s->each < s->nheld ? (uint32_t)(vectors * s->each) : s->nheld;
}

/* Folds the elements into acc: s->sums values. */
static void fold_held(struct rows *s, uint32_t pass, val *acc, val none)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    const struct node *n = &w->g->node[s->reduce[pass]];
    for (uint32_t e = 0; e < rows_held_there(s); e++) {
        at_held(s, pass, e);
        val x = rows_operand(s, n);
        if (w->pred)
            x = k_prim(k, P_SELECT, w->pred, x, none);
        val *sum = &acc[e % s->sums]; /* there is one, or one for each adjacent element */
        *sum = k_fold_step(k, reduce_fold(n->op), *sum, x);
    }
    rows_leave_held(s);
}

void rows_load_held(struct rows *s, uint32_t e)
{
    rows_at_held_place(s, e);
    s->w->held = &s->held[e];
    rows_load_operands(s);
}

val rows_held_operand(struct rows *s, const struct node *n, uint32_t e, val none)
{
    at_held(s, s->nreduce, e);
    val x = rows_operand(s, n);
    return s->w->pred ? k_prim(s->w->k, P_SELECT, s->w->pred, x, none) : x;
}

/* Computes all members of the last pass, then stores them. */
static void store_held(struct rows *s)
{
    for (int store = 0; store < 2; store++)
        for (uint32_t e = 0; e < rows_held_there(s); e++) {
            at_held(s, s->nreduce, e);
            if (store)
                rows_store_members(s);
        }
    rows_leave_held(s);
}

/* The elements of another group come. */
static void forget_held(struct rows *s)
{
    for (uint32_t e = 0; e < s->nheld; e++) {
        memset(s->held[e].member, 0, s->w->nmember * sizeof *s->held[e].member);
        s->held[e].n = 0;
        s->there[e] = 0;
    }
}

/* The operand of a reduce that is folded in a pass: into acc, s->sums values.  Elements that there are not count as
 * `none`. */
struct row_fold { uint32_t reduce; val none, acc[MAX_ROW_VECTOR]; };

static void row_fold_start(const struct rows *s, struct row_fold *f)
{
    for (uint32_t u = 0; u < s->sums; u++)
        f->acc[u] = f->none;
}

static struct row_fold row_fold_begin(const struct rows *s, uint32_t reduce)
{
    struct kernel *k = s->w->k;
    const struct node *n = &s->w->g->node[s->reduce[reduce]];
    enum fold fold = reduce_fold(n->op);
    unsigned dtype = dtype_compute(n->dtype);
    struct row_fold f = {.reduce = reduce, .none = k_splat(k, k_bits(k, dtype, fold_identity(fold, dtype)))};
    row_fold_start(s, &f);
    return f;
}

/* Does it matter which elements are combined first? */
static bool fold_is_ordered(const struct node *n)
{
    enum fold fold = reduce_fold(n->op);
    return dtype_is_float(n->dtype) && fold != FOLD_MAX && fold != FOLD_MIN;
}

/* The sums of the last segment's threads as one: lane i takes in lane i + 32, then i + 16, 8, 4, 2, 1.  With each step
 * half of the threads take half of the sums: first those of the other segments, which have none that count, then those
 * whose lanes are folded.  So the highest bits of a thread's number say at last which sum it has, and the fold of all
 * threads takes them in order.  The threads in between count as identities, which changes no bit: -0 is no result. */
static val fold_last_segment(struct rows *s, enum fold fold, struct row_fold *f)
{
    struct kernel *k = s->w->k;
    int64_t n = s->sums, width = k->sched.width, top = width / n;
    for (int64_t h = width / 2; h; h /= 2) {
        bool adds = h < segment_threads(s);
        for (int64_t u = 0; u < (n > 1 ? n / 2 : 1); u++) {
            val low = f->acc[u], high = f->acc[n > 1 ? u + n / 2 : 0];
            f->acc[u] = k_interleave(k, INTERLEAVE_HI, low, high, h);
            if (adds)
                f->acc[u] = k_fold_step(k, fold, n > 1 ? k_interleave(k, INTERLEAVE_LO, low, high, h) : low, f->acc[u]);
        }
        n = n > 1 ? n / 2 : 1;
    }
    val has_sum = k_prim(k, P_EQ, ix_mod(k, s->w->lane, top), k_int(k, 0), 0);
    return k_lane_reduce(k, fold, k_prim(k, P_SELECT, has_sum, f->acc[0], f->none));
}

/* The lanes' sums as one. */
static val row_fold_sum(struct rows *s, struct row_fold *f)
{
    const struct node *n = &s->w->g->node[s->reduce[f->reduce]];
    enum fold fold = reduce_fold(n->op);
    return s->segments > 1 && fold_is_ordered(n) ? fold_last_segment(s, fold, f)
                                                 : gpu_fold_lanes(s->w->k, fold, f->acc, s->sums);
}

static void row_fold_end(struct rows *s, const struct row_fold *f, val sum)
{
    rows_fix(s, s->reduce[f->reduce], k_cast(s->w->k, sum, s->w->g->node[s->reduce[f->reduce]].dtype));
}

/* One group: its elements are stored, in the last pass, and folded n times. */
static void pass_group(struct rows *s, struct row_fold *f, uint32_t n, bool last)
{
    if (last)
        store_held(s);
    for (uint32_t i = 0; i < n; i++)
        fold_held(s, f[i].reduce, f[i].acc, f[i].none);
    forget_held(s);
}

/* `length` elements from element `first` on, 0: the row's first, group by group. */
static void pass_groups(struct rows *s, struct row_fold *f, uint32_t n, bool last, val first, int64_t length)
{
    struct kernel *k = s->w->k;
    int64_t group = s->nheld * (int64_t)k->sched.width, full = length / group;
    val carry[MAX_ROW_REDUCES][MAX_ROW_VECTOR];
    if (full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t u = 0; u < s->sums; u++)
                f[i].acc[u] = carry[i][u] = k_carry(k, f[i].acc[u]);
        s->base = first ? ix_add(k, first, ix_scale(k, j, group)) : ix_scale(k, j, group);
        s->left = group;
        pass_group(s, f, n, last);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t u = 0; u < s->sums; u++)
                k_next(k, carry[i][u], f[i].acc[u]);
        k_end(k, j);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t u = 0; u < s->sums; u++)
                f[i].acc[u] = k_out(k, carry[i][u]);
    }
    s->base = first ? ix_add(k, first, k_int(k, full * group)) : k_int(k, full * group);
    s->left = length - full * group;
    if (s->left)
        pass_group(s, f, n, last);
}

/* A chunk of the graph's order, whose sums are added to `total`. */
static void pass_chunk(struct rows *s, struct row_fold *f, uint32_t n, bool last, val first, int64_t length,
                       val *total)
{
    for (uint32_t i = 0; i < n; i++)
        row_fold_start(s, &f[i]);
    pass_groups(s, f, n, last, first, length);
    for (uint32_t i = 0; i < n; i++)
        total[i] = k_fold_step(s->w->k, reduce_fold(s->w->g->node[s->reduce[f[i].reduce]].op), total[i],
                               row_fold_sum(s, &f[i]));
}

/* A row of several chunks: their sums are combined in ascending order.  The identity at the start changes no bit of the
 * first one: -0 is no result, and NaN stays NaN. */
static void pass_chunks(struct rows *s, struct row_fold *f, uint32_t n, bool last)
{
    struct kernel *k = s->w->k;
    int64_t full = s->space.length / s->chunk, rest = s->space.length % s->chunk;
    val total[MAX_ROW_REDUCES], carry[MAX_ROW_REDUCES];
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
    for (uint32_t i = 0; i < n; i++)
        total[i] = carry[i] = k_carry(k, k->inst[f[i].none].a);
    pass_chunk(s, f, n, last, ix_scale(k, c, s->chunk), s->chunk, total);
    for (uint32_t i = 0; i < n; i++)
        k_next(k, carry[i], total[i]);
    k_end(k, c);
    for (uint32_t i = 0; i < n; i++)
        total[i] = k_out(k, carry[i]);
    if (rest)
        pass_chunk(s, f, n, last, k_int(k, full * s->chunk), rest, total);
    for (uint32_t i = 0; i < n; i++)
        row_fold_end(s, &f[i], total[i]);
}

/* The whole row in groups, and its reduces. */
static void pass_row(struct rows *s, struct row_fold *f, uint32_t n, bool last)
{
    if (s->chunk && n) {
        pass_chunks(s, f, n, last);
        return;
    }
    pass_groups(s, f, n, last, 0, s->space.length);
    for (uint32_t i = 0; i < n; i++)
        row_fold_end(s, &f[i], row_fold_sum(s, &f[i]));
}

/* ---- segments ---- */

/* Makes the sums of segment j - 1 those of segment j, by the bits of these numbers that differ. */
static void pass_to_segment(struct rows *s, struct row_fold *f, int64_t j)
{
    struct kernel *k = s->w->k;
    for (int64_t bit = 1; bit & (j ^ (j - 1)); bit *= 2)
        for (uint32_t u = 0; u < s->sums; u++)
            f->acc[u] = k_interleave(k, j & bit ? INTERLEAVE_LO : INTERLEAVE_HI, f->acc[u], f->acc[u],
                                     bit * segment_threads(s));
}

/* A sum of floats: every thread goes on from the sums of the segment before, for each segment, which is right in the
 * threads of that segment alone. */
static void fold_segments_in_order(struct rows *s, struct row_fold *f)
{
    for (int64_t j = 0; j < s->segments; j++) {
        if (j)
            pass_to_segment(s, f, j);
        fold_held(s, f->reduce, f->acc, f->none);
    }
}

/* Maxima and minima of floats: of two zeros the later one is the result, so adjacent ones are folded first.  All
 * threads get them, as it does not matter how often a number is folded. */
static void fold_segment_extremes(struct rows *s, struct row_fold *f, enum fold fold)
{
    struct kernel *k = s->w->k;
    fold_held(s, f->reduce, f->acc, f->none);
    for (int64_t h = segment_threads(s); h < k->sched.width; h *= 2)
        for (uint32_t u = 0; u < s->sums; u++) {
            val low = k_interleave(k, INTERLEAVE_LO, f->acc[u], f->acc[u], h);
            f->acc[u] = k_fold_step(k, fold, low, k_interleave(k, INTERLEAVE_HI, f->acc[u], f->acc[u], h));
        }
}

static void fold_segments(struct rows *s, struct row_fold *f)
{
    const struct node *n = &s->w->g->node[s->reduce[f->reduce]];
    enum fold fold = reduce_fold(n->op);
    if (fold_is_ordered(n))
        fold_segments_in_order(s, f);
    else if (dtype_is_float(n->dtype))
        fold_segment_extremes(s, f, fold);
    else
        fold_held(s, f->reduce, f->acc, f->none);
}

void rows_reduce_held(struct rows *s, uint32_t pass)
{
    struct row_fold f = row_fold_begin(s, pass);
    if (s->grouped) {
        pass_row(s, &f, 1, false);
        return;
    }
    if (s->segments > 1)
        fold_segments(s, &f);
    else
        fold_held(s, pass, f.acc, f.none);
    row_fold_end(s, &f, row_fold_sum(s, &f));
}

void rows_store_held(struct rows *s)
{
    struct row_fold f[MAX_ROW_REDUCES];
    uint32_t n = 0;
    if (!s->grouped) {
        store_held(s);
        return;
    }
    for (uint32_t r = 0; r < s->nreduce; r++)
        if (s->late >> r & 1)
            f[n++] = row_fold_begin(s, r);
    pass_row(s, f, n, true);
}

/* ---- maximum and sum in one pass ---- */

/* Is reduce `sum` that of e^(x - the maximum), which is reduce `max`, as in softmax and cross entropy? */
static bool is_sum_below(const struct rows *s, uint32_t max, uint32_t sum)
{
    const struct node *node = s->w->g->node, *m = &node[s->reduce[max]], *n = &node[s->reduce[sum]];
    const struct node *e = &node[n->in[0]], *x = &node[e->in[0]];
    return m->op == OP_reduce_max && m->dtype == KL_F32 && n->op == OP_sum && n->dtype == KL_F32 && e->op == OP_exp &&
           x->op == OP_sub && x->in[0] == m->in[0] && node[x->in[1]].op == OP_expand &&
           node[x->in[1]].in[0] == s->reduce[max];
}

uint32_t rows_online_sum(const struct rows *s, uint32_t pass)
{
    bool possible = s->grouped && !s->w->k->sched.graph_order;
    for (uint32_t sum = pass + 1; possible && sum < s->nreduce; sum++)
        if (is_sum_below(s, pass, sum))
            return sum;
    return 0;
}

/* Of a lane's elements so far: the largest one, and the sum of e^(x - the largest one). */
struct online { val max, sum; };

static val exp_below(struct kernel *k, val x, val max) { return k_exp_nonpositive(k, k_prim(k, P_SUB, x, max, 0)); }

/* Adds the elements of a group.  Where all are -infinity, whose difference is NaN, the sum stays 0. */
static struct online fold_online(struct rows *s, uint32_t pass, struct online o)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    const struct node *n = &w->g->node[s->reduce[pass]];
    val low = k_splat(k, k_const(k, KL_F32, -INFINITY)), zero = k_splat(k, k_const(k, KL_F32, 0));
    val max = o.max;
    fold_held(s, pass, &max, low);
    val from = k_prim(k, P_SELECT, k_prim(k, P_EQ, max, low, 0), zero, max);
    val sum = k_prim(k, P_MUL, o.sum, exp_below(k, o.max, from), 0);
    for (uint32_t e = 0; e < rows_held_there(s); e++) {
        at_held(s, pass, e);
        val term = exp_below(k, rows_operand(s, n), from);
        sum = k_prim(k, P_ADD, sum, w->pred ? k_prim(k, P_SELECT, w->pred, term, zero) : term, 0);
    }
    rows_leave_held(s);
    return (struct online){max, sum};
}

/* Online softmax (Milakov and Gimelshein, 2018): one pass over the row, in groups of elements, in place of two.  When a
 * group has a larger element, the sum is multiplied by e^(old maximum - new one).  Each group adds one such rounding to
 * those of the sum. */
void rows_reduce_online(struct rows *s, uint32_t pass, uint32_t sum_reduce)
{
    struct kernel *k = s->w->k;
    int64_t group = s->nheld * (int64_t)k->sched.width, full = s->space.length / group;
    struct online o = {k_splat(k, k_const(k, KL_F32, -INFINITY)), k_splat(k, k_const(k, KL_F32, 0))};
    if (full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
        struct online carry = {k_carry(k, o.max), 0};
        carry.sum = k_carry(k, o.sum);
        s->base = ix_scale(k, j, group);
        s->left = group;
        struct online next = fold_online(s, pass, carry);
        k_next(k, carry.max, next.max);
        k_next(k, carry.sum, next.sum);
        forget_held(s);
        k_end(k, j);
        o.max = k_out(k, carry.max);
        o.sum = k_out(k, carry.sum);
    }
    s->base = k_int(k, full * group);
    s->left = s->space.length - full * group;
    if (s->left)
        o = fold_online(s, pass, o);
    forget_held(s);
    val max = k_lane_reduce(k, FOLD_MAX, o.max);
    val sum = k_lane_reduce(k, FOLD_ADD, k_prim(k, P_MUL, o.sum, exp_below(k, o.max, max), 0));
    rows_fix(s, s->reduce[pass], max);
    rows_fix(s, s->reduce[sum_reduce], sum);
}

/* ---- sums in the last pass ---- */

/* Does another reduce, or a member with one value for each element, depend on reduce r? */
static bool is_read_in_passes(const struct rows *s, uint32_t r, bool *depends)
{
    const struct lowering *w = s->w;
    bool read = false;
    memset(depends, 0, w->nmember * sizeof *depends);
    depends[w->place[s->reduce[r]]] = true;
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        for (unsigned i = 0; i < n->nin; i++) {
            bool linear;
            ref x = node_operand(w->g, w->member[m], i, &linear);
            if (!lower_is_member(w, x) || !depends[w->place[x]])
                continue;
            depends[m] = true;
            read |= op_is_reduce(n->op) || rows_is_full(s, w->member[m]);
        }
    }
    return read;
}

void rows_find_late(struct rows *s)
{
    uint32_t online = 0;            /* sums that share a maximum's pass */
    s->late = 0;
    for (uint32_t r = 0; s->grouped && r < s->nreduce; r++) {
        uint32_t sum = rows_online_sum(s, r);
        if (sum)
            online |= 1u << sum;
        else if (!(online >> r & 1) && !is_read_in_passes(s, r, s->need))
            s->late |= 1u << r;
    }
}

/* ---- the registers ---- */

/* Elements of a chunk, which is the same for all reduces of a row in groups, if the row has several; else 0. */
static int64_t chunk_of_row(const struct rows *s)
{
    int64_t chunk = (int64_t)s->w->g->node[s->reduce[0]].attr.reduce.chunk;
    return s->grouped && chunk < s->space.length ? chunk : 0;
}

/* Makes the registers that hold rows, as the schedule says. */
void rows_make_held(struct rows *s)
{
    struct lowering *w = s->w;
    const struct schedule *c = schedule_of(w->k);
    s->grouped = !c->rows.held && c->rows.vector;
    s->each = c->rows.vector ? c->rows.vector : c->rows.held ? 1 : 0;
    s->nheld = s->grouped ? (uint32_t)rows_group(c) : c->rows.held;
    s->left = s->space.length;
    s->sums = c->record.graph_order && s->each ? (uint32_t)s->each : 1;
    s->chunk = c->record.graph_order ? chunk_of_row(s) : 0;
    s->segments = c->record.graph_order && c->rows.held && s->each ? c->record.width * s->each / NUMERIC_LANES : 1;
    s->segments = s->segments > 1 ? s->segments : 1;
    s->start = 0;
    if (!s->each)
        return;
    s->held = mem_alloc((s->nheld + 1) * sizeof *s->held);
    s->there = mem_alloc((s->nheld + 1) * sizeof *s->there);
    val *member = mem_alloc(((size_t)s->nheld * w->nmember + 1) * sizeof *member);
    for (uint32_t e = 0; s->held && e < s->nheld; e++)
        s->held[e].member = member ? member + (size_t)e * w->nmember : NULL;
    if (!s->held || !s->there || !member) {
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
        s->each = 0;
        mem_free(member);
    }
}

void rows_free_held(struct rows *s)
{
    if (s->each)
        mem_free(s->held[0].member);
    for (uint32_t e = 0; s->each && e < s->nheld; e++)
        mem_free(s->held[e].load);
    mem_free(s->held);
    mem_free(s->there);
    s->held = NULL;
    s->there = NULL;
    s->each = 0;
}
