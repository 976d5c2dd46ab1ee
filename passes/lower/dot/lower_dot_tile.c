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

/* Adds the parts' sums of `each` adjacent results. */
static void add_sums(const struct dot *d, uint32_t sums, int64_t splits, val m, val n, int64_t each, val *sum)
{
    struct kernel *k = d->w->k;
    val carry[DOT_TOGETHER], next[DOT_TOGETHER], part = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, splits), 1);
    for (int64_t u = 0; u < each; u++)
        carry[u] = k_carry(k, dot_sum_start(k, k->buf[sums].dtype));
    for (int64_t u = 0; u < each; u++) {
        val at = dot_part_index(d, part, m, ix_add(k, n, k_int(k, u)));
        next[u] = k_prim(k, P_ADD, carry[u], k_load(k, sums, at, 0), 0);
    }
    for (int64_t u = 0; u < each; u++)
        k_next(k, carry[u], next[u]);
    k_end(k, part);
    for (int64_t u = 0; u < each; u++)
        sum[u] = k_out(k, carry[u]);
}

void dot_add_parts(struct dot *d, uint32_t sums, int64_t splits, int64_t threads, uint16_t subgroup,
                   dot_results *results, const void *ctx)
{
    enum { MANY_THREADS = 1 << 14 };    /* that keep the memory busy with accesses of 16 bytes */
    struct kernel *k = d->w->k;
    int64_t every = d->size.batch * d->size.m * d->size.n;
    bool together = d->size.n % DOT_TOGETHER == 0 && every / DOT_TOGETHER >= MANY_THREADS;
    int64_t each = together ? DOT_TOGETHER : 1, cols = d->size.n / each, all = every / each;
    int64_t blocks = dot_parts(all, threads);
    struct dot_at at[DOT_TOGETHER];
    lower_next_phase(d->w);
    k->extent += blocks;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, blocks), 1), sum[DOT_TOGETHER];
    val t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, threads), 1);
    val e = ix_add(k, ix_scale(k, p, threads), t), there = 0;
    k->inst[t].rows = subgroup;
    if (all % threads) {
        there = k_if(k, k_prim(k, P_LT, e, k_int(k, all), 0));
        ix_assume_range(k, e, 0, all - 1);
    }
    val row = ix_div(k, e, cols), n = ix_scale(k, ix_mod(k, e, cols), each), m = ix_mod(k, row, d->size.m);
    d->batch_index = ix_div(k, row, d->size.m);
    add_sums(d, sums, splits, m, n, each, sum);
    for (int64_t u = 0; u < each; u++)
        at[u] = (struct dot_at){m, ix_add(k, n, k_int(k, u)), sum[u]};
    results(d, ctx, at, each);
    if (there)
        k_end(k, there);
    k_end(k, t);
    k_end(k, p);
}
