/* What the kinds of products on GPUs and products of bytes share: tiles of the loop IR, conditions for blocks at the
 * edges, and the sums of the parts of a contraction that is divided (split-K). */
#include "lower_dot.h"

/* ---- tiles ---- */

val dot_splat(struct kernel *k, val x, unsigned rows, unsigned cols)
{
    return k_append(k, (struct linst){.op = L_SPLAT, .dtype = k->inst[x].dtype, .rows = (uint16_t)rows,
                                      .cols = (uint16_t)cols, .a = x});
}

val dot_load(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, int64_t rows, int64_t cols,
             val mask)
{
    return k_append(k, (struct linst){.op = L_LOAD, .dtype = k->buf[buf].dtype, .kind = (uint8_t)order,
                                      .rows = (uint16_t)rows,
                                      .cols = (uint16_t)cols, .a = index, .b = mask, .d = stride, .imm = buf});
}

void dot_store(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, val value)
{
    k_append(k, (struct linst){.op = L_STORE, .dtype = k->buf[buf].dtype, .kind = (uint8_t)order, .a = index,
                               .b = value,
                               .d = stride, .imm = buf});
}

/* Sets the shape of v to the tile shape of `like` and returns v. */
static val dot_shaped(struct kernel *k, val v, val like)
{
    k->inst[v].rows = k->inst[like].rows;
    k->inst[v].cols = k->inst[like].cols;
    return v;
}

val dot_mma(struct kernel *k, enum mma kind, val a, val b, val sum)
{
    val y = dot_shaped(k, k_inst(k, L_MMA, k->inst[sum].dtype, a, b, sum, 0), sum);
    k->inst[y].kind = (uint8_t)kind;
    return y;
}

val dot_carry(struct kernel *k, val init) { return dot_shaped(k, k_carry(k, init), init); }
val dot_out(struct kernel *k, val carry) { return dot_shaped(k, k_out(k, carry), carry); }
void dot_barrier(struct kernel *k) { k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0); }

/* ---- blocks ---- */

int64_t dot_parts(int64_t length, int64_t part) { return (length + part - 1) / part; }

val dot_parts_now(const struct dot *d, struct size length, int64_t part)
{
    struct kernel *k = d->w->k;
    return size_is_constant(length) ? k_int(k, dot_parts(length.number, part))
                                    : ix_div(k, ix_add(k, ix_size(k, length), k_int(k, part - 1)), part);
}

/* Blocks run in the order of their numbers, as many at a time as fit.  Those of matrix units read memory so fast that
 * the L2 cache has to give most of it (rasterization in groups): numbers count the rows of a group first, then columns,
 * then groups, so that blocks at work need few rows and few columns of the operands.  The rows of a group: a divisor of
 * all. */
static int64_t rows_together(const struct schedule *s, int64_t rows)
{
    enum { MAX_COUNT = 16 };             /* of 132 blocks at a time: 8 columns */
    int64_t n = s->kind != SCHED_DOT_MATRIX ? 1 : rows < MAX_COUNT ? rows : MAX_COUNT;
    while (n > 1 && rows % n)
        n--;
    return n;
}

void dot_open_blocks(struct dot *d, const struct schedule *s, int64_t splits, struct tasks *t, val *split, val *i,
                     val *j)
{
    struct kernel *k = d->w->k;
    int64_t block_m = s->dot_blocks.block_m, block_n = s->dot_blocks.block_n;
    int64_t rows = dot_parts(d->size.m, block_m), cols = dot_parts(d->size.n, block_n);
    val rows_now = dot_parts_now(d, d->len.m, block_m), cols_now = dot_parts_now(d, d->len.n, block_n);
    val active = d->symbolic ? ix_mul(k, ix_size(k, d->len.batch), ix_mul(k, rows_now, cols_now)) : 0;
    val p = lower_blocks(d->w, d->size.batch * rows * cols * splits, active, t), row, col, number;
    *split = ix_mod(k, p, splits);
    p = ix_div(k, p, splits);
    if (d->symbolic) {
        number = ix_quotient(k, p, cols_now, cols, &col);
        d->batch_index = ix_quotient(k, number, rows_now, rows, &row);
        ix_bound(k, d->batch_index, 0, d->size.batch - 1);
    } else {
        int64_t group = rows_together(s, rows);
        d->batch_index = ix_div(k, p, rows * cols);
        row = ix_add(k, ix_scale(k, ix_mod(k, ix_div(k, p, group * cols), rows / group), group), ix_mod(k, p, group));
        col = ix_mod(k, ix_div(k, p, group), cols);
        if (group > 1 && cols > 1) { /* one value each, not several terms of each address */
            ix_assume_range(k, row, 0, rows - 1);
            ix_assume_range(k, col, 0, cols - 1);
        }
    }
    *i = ix_scale(k, row, block_m);
    *j = ix_scale(k, col, block_n);
}

/* Combines a mask (0: all) with x < size.  may_not: x may be `size` or more; else the mask does not change. */
static val also_below(struct kernel *k, val mask, bool may_not, val x, struct size size)
{
    if (!may_not)
        return mask;
    val in = k_prim(k, P_LT, x, ix_size(k, size), 0);
    return mask ? k_prim(k, P_AND, mask, in, 0) : in;
}

void dot_bound_index(struct kernel *k, val v, int64_t size)
{
    int64_t coefficient;
    if (!ix_stride(k, v, v, &coefficient) || coefficient != 1)
        ix_bound(k, v, 0, size - 1);
}

val dot_there(const struct dot *d, bool second, int64_t side, bool beyond, val free, val at)
{
    struct kernel *k = d->w->k;
    struct size size = second ? d->len.n : d->len.m;
    val mask = also_below(k, also_below(k, 0, !size_divides(size, side), free, size), beyond, at, d->len.k);
    if (mask) { /* only for existing elements */
        dot_bound_index(k, free, size.bound);
        dot_bound_index(k, at, d->size.k);
    }
    return mask;
}

val dot_if_there(const struct dot *d, const struct schedule *s, val m, val n)
{
    struct kernel *k = d->w->k;
    const struct dot_dims *size = &d->size;
    val row = also_below(k, 0, !size_divides(d->len.m, s->dot_blocks.block_m), m, d->len.m);
    val mask = also_below(k, row, !size_divides(d->len.n, s->dot_blocks.block_n), n, d->len.n);
    val inside = mask ? k_if(k, mask) : 0;
    ix_bound(k, m, 0, size->m - 1);
    ix_bound(k, n, 0, size->n - 1);
    return inside;
}

/* ---- contractions in parts ---- */

int64_t dot_splits(const struct dot *d, uint32_t split) { return split ? dot_parts(d->size.k, split) : 1; }

val dot_part_index(const struct dot *d, val part, val m, val n)
{
    struct kernel *k = d->w->k;
    val matrix = ix_add(k, ix_scale(k, part, d->size.batch), d->batch_index);
    val row = ix_add(k, ix_scale(k, matrix, d->size.m), m);
    return ix_add(k, ix_scale(k, row, d->size.n), n);
}

val dot_sum_start(struct kernel *k, unsigned dtype)
{
    return k->sched.graph_order && dtype_is_float(dtype) ? k_const(k, dtype, -0.0) : k_bits(k, dtype, 0);
}

/* The phase that adds the parts' sums.  `groups` threads of a block share a result, each has `length` parts of it; a
 * thread has `each` adjacent results, a block `own` times as many. */
struct parts_phase {
    struct dot *d;
    uint32_t sums, shared;          /* lbufs: those of all parts; one for a number of each thread */
    int64_t splits, groups, length, each, own, all;
    val t, item;                    /* number of the thread; of its results, counted in `each` */
};

/* Adds the sums of parts `from` to `end` - 1 of results (m, n), (m, n + 1) .. */
static void add_sums(const struct parts_phase *p, val from, val end, val m, val n, val *sum)
{
    struct kernel *k = p->d->w->k;
    val carry[DOT_TOGETHER], next[DOT_TOGETHER], part = k_loop(k, LOOP_SERIAL, from, end, 1);
    for (int64_t u = 0; u < p->each; u++)
        carry[u] = k_carry(k, dot_sum_start(k, k->buf[p->sums].dtype));
    for (int64_t u = 0; u < p->each; u++) {
        val at = dot_part_index(p->d, part, m, ix_add(k, n, k_int(k, u)));
        next[u] = k_prim(k, P_ADD, carry[u], k_load(k, p->sums, at, 0), 0);
    }
    for (int64_t u = 0; u < p->each; u++)
        k_next(k, carry[u], next[u]);
    k_end(k, part);
    for (int64_t u = 0; u < p->each; u++)
        sum[u] = k_out(k, carry[u]);
}

/* Threads for each result.  Several if there are many parts of few results: the latencies of one chain of loads would
 * follow each other.  The graph's order is such a chain. */
static int64_t groups_of_parts(const struct parts_phase *p, int64_t threads)
{
    enum { MIN_LENGTH = 4, MAX_GROUPS = 32, MANY_THREADS = 1 << 14 };
    const struct kernel *k = p->d->w->k;
    int64_t groups = 1;
    bool ordered = k->sched.graph_order && dtype_is_float(k->buf[p->sums].dtype);
    if (ordered || k->buf[p->shared].count < threads)
        return 1;
    while (groups < MAX_GROUPS && p->all * groups < MANY_THREADS && threads % (2 * groups) == 0 &&
           2 * groups * MIN_LENGTH <= p->splits)
        groups *= 2;
    return groups;
}

/* Opens an `if` for the threads whose results exist, and of these the first of each result if `first`; finds row and
 * column.  0: there is no `if`. */
static val open_sums(const struct parts_phase *p, bool first, val *m, val *n)
{
    struct kernel *k = p->d->w->k;
    int64_t cols = p->d->size.n / p->each;
    val mask = first ? k_prim(k, P_LT, p->t, k_int(k, p->own), 0) : 0, there = 0;
    if (p->all % p->own) {
        val below = k_prim(k, P_LT, p->item, k_int(k, p->all), 0);
        mask = mask ? k_prim(k, P_AND, mask, below, 0) : below;
    }
    if (mask)
        there = k_if(k, mask);
    if (p->all % p->own)
        ix_assume_range(k, p->item, 0, p->all - 1);
    val row = ix_div(k, p->item, cols);
    *n = ix_scale(k, ix_mod(k, p->item, cols), p->each);
    *m = ix_mod(k, row, p->d->size.m);
    p->d->batch_index = ix_div(k, row, p->d->size.m);
    return there;
}

/* Adds each thread's parts to shared memory, then those of a result's threads, in order; opens an `if` for the first of
 * these, which has the sum. */
static val add_groups(const struct parts_phase *p, val *m, val *n, val *sum)
{
    struct kernel *k = p->d->w->k;
    unsigned dtype = k->buf[p->sums].dtype;
    val there = open_sums(p, false, m, n), from = ix_scale(k, ix_div(k, p->t, p->own), p->length);
    val end = ix_add(k, from, k_int(k, p->length));
    bool whole = p->splits == p->groups * p->length;
    add_sums(p, whole ? from : ix_min(k, from, p->splits), whole ? end : ix_min(k, end, p->splits), *m, *n, sum);
    k_store(k, p->shared, p->t, *sum, 0);
    if (there)
        k_end(k, there);
    dot_barrier(k);
    there = open_sums(p, true, m, n);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, p->groups), 1), carry = k_carry(k, dot_sum_start(k, dtype));
    val at = ix_add(k, ix_scale(k, i, p->own), ix_mod(k, p->t, p->own));
    k_next(k, carry, k_prim(k, P_ADD, carry, k_load(k, p->shared, at, 0), 0));
    k_end(k, i);
    *sum = k_out(k, carry);
    return there;
}

/* Adjacent results of a thread, of `every`: as many as an access of 16 bytes has of the smallest that are stored, if
 * threads enough are left to keep the memory busy. */
static int64_t results_together(const struct dot *d, int64_t every)
{
    enum { MANY_THREADS = 1 << 14, ACCESS = 16, LEAST = 4 };
    const struct lowering *w = d->w;
    int64_t each = LEAST;
    for (uint32_t i = 0; i < w->nmember; i++)
        if (w->stored[w->member[i]] && dtype_size(w->g->node[w->member[i]].dtype) == ACCESS / DOT_TOGETHER)
            each = DOT_TOGETHER;
    while (each >= LEAST && (d->size.n % each || every / each < MANY_THREADS))
        each /= 2;
    return each >= LEAST ? each : 1;
}

void dot_add_parts(struct dot *d, uint32_t sums, uint32_t shared, int64_t splits, int64_t threads,
                   uint16_t subgroup, dot_results *results, const void *ctx)
{
    struct kernel *k = d->w->k;
    int64_t every = d->size.batch * d->size.m * d->size.n;
    struct parts_phase s = {.d = d, .sums = sums, .shared = shared, .splits = splits,
                            .each = results_together(d, every)};
    struct dot_at at[DOT_TOGETHER];
    s.all = every / s.each;
    s.groups = groups_of_parts(&s, threads);
    s.length = dot_parts(splits, s.groups);
    s.own = threads / s.groups;
    int64_t blocks = dot_parts(s.all, s.own);
    lower_next_phase(d->w);
    k->extent += blocks;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, blocks), 1), sum[DOT_TOGETHER], m, n;
    s.t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, threads), 1);
    k->inst[s.t].rows = subgroup;
    s.item = ix_add(k, ix_scale(k, p, s.own), s.groups > 1 ? ix_mod(k, s.t, s.own) : s.t);
    val there = s.groups > 1 ? add_groups(&s, &m, &n, sum) : open_sums(&s, false, &m, &n);
    if (s.groups == 1)
        add_sums(&s, k_int(k, 0), k_int(k, splits), m, n, sum);
    for (int64_t u = 0; u < s.each; u++)
        at[u] = (struct dot_at){m, ix_add(k, n, k_int(k, u)), sum[u]};
    results(d, ctx, at, s.each);
    if (there)
        k_end(k, there);
    k_end(k, s.t);
    k_end(k, p);
}
