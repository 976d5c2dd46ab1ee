/* Products on a GPU: a block of threads owns BLOCK_M x BLOCK_N results, each thread a tile of MR x NR of them.
 *
 * The contraction goes by in steps.  The elements of both operands that a step needs lie in shared memory, those of A
 * by columns, so that what a thread reads of either are neighbours.  There is room for two steps: while the threads
 * multiply one, each has its part of the next on the way from memory, and stores it when the products are done; one
 * barrier a step.  Results go to the epilogue one by one.
 *
 * An element is one ascending chain of fma in each of pass numerics' k-blocks, whose sums are added in turn: the order
 * of lower_dot.c, whatever the tiles. */
#include "lower_dot.h"

struct blocks {
    struct dot *d;
    struct schedule s;
    int64_t threads, col_threads;   /* of the block; in a row of tiles */
    uint32_t a, b, own;             /* lbufs: two steps of the operands, the thread's results */
    bool a_along_k, b_along_k;      /* are an operand's neighbours in memory those along the contraction? */
    int64_t last;                   /* length of the last k-block */
    val t, i0, j0;                  /* the thread, the block's first row and column */
    val k0;                         /* the k-block's first element */
};

enum { MAX_PARTS = DOT_MAX_PARTS };

/* ---- one step ---- */

/* A thread's part of an operand's step: elements t, t + threads, .. of it. */
struct part { val value[MAX_PARTS], at[MAX_PARTS]; int64_t n; };

/* Where element number e of a step lies: number along the block's side, number along the contraction. */
static void find_element(const struct blocks *s, bool second, val e, val *side, val *kk)
{
    struct kernel *k = s->d->w->k;
    int64_t length = second ? s->s.dot_blocks.block_n : s->s.dot_blocks.block_m;
    bool along_k = second ? s->b_along_k : s->a_along_k;
    *side = along_k ? ix_div(k, e, s->s.dot_blocks.step) : ix_mod(k, e, length);
    *kk = along_k ? ix_mod(k, e, s->s.dot_blocks.step) : ix_div(k, e, length);
}

/* Starts to bring an operand's step from memory; `first` is its first element of the contraction.  beyond: it may reach
 * past the last. */
static void fetch(const struct blocks *s, bool second, val first, bool beyond, struct part *p)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    int64_t side_length = second ? s->s.dot_blocks.block_n : s->s.dot_blocks.block_m;
    p->n = side_length * s->s.dot_blocks.step / s->threads;
    for (int64_t i = 0; i < p->n; i++) {
        val side, kk;
        find_element(s, second, ix_add(k, s->t, k_int(k, i * s->threads)), &side, &kk);
        p->at[i] = ix_add(k, ix_scale(k, kk, side_length), side);
        val free = ix_add(k, second ? s->j0 : s->i0, side), at = ix_add(k, first, kk);
        w->pred = dot_there(s->d, second, side_length, beyond, free, at);
        w->pred_all = true;
        p->value[i] = dot_element(s->d, second, free, at);
        w->pred = 0;
        w->pred_all = false;
    }
}

static void dot_gpu_put(const struct blocks *s, bool second, val half, const struct part *p)
{
    struct kernel *k = s->d->w->k;
    int64_t elements = (int64_t)(second ? s->s.dot_blocks.block_n : s->s.dot_blocks.block_m) * s->s.dot_blocks.step;
    for (int64_t i = 0; i < p->n; i++)
        k_store(k, second ? s->b : s->a, ix_add(k, ix_scale(k, half, elements), p->at[i]), p->value[i], 0);
}

/* acc and the products of `count` elements in one half of shared memory. */
static val dot_gpu_multiply(const struct blocks *s, val half, val count, val acc)
{
    struct kernel *k = s->d->w->k;
    int64_t m = s->s.dot_blocks.block_m, n = s->s.dot_blocks.block_n;
    val row = ix_scale(k, ix_div(k, s->t, s->col_threads), s->s.dot_blocks.mr),
        col = ix_scale(k, ix_mod(k, s->t, s->col_threads), s->s.dot_blocks.nr);
    val a0 = ix_add(k, ix_scale(k, half, m * s->s.dot_blocks.step), row);
    val b0 = ix_add(k, ix_scale(k, half, n * s->s.dot_blocks.step), col);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1), sum = dot_carry(k, acc);
    val a = dot_load(k, s->a, ix_add(k, a0, ix_scale(k, i, m)), TILE_ROWS, k_int(k, 1), s->s.dot_blocks.mr, 1, 0);
    val b = dot_load(k, s->b, ix_add(k, b0, ix_scale(k, i, n)), TILE_ROWS, k_int(k, n), 1, s->s.dot_blocks.nr, 0);
    k_next(k, sum, dot_mma(k, MMA_CHAIN, a, b, sum));
    k_end(k, i);
    return dot_out(k, sum);
}

/* ---- the k-blocks ---- */

/* A number of k-block kb that is another one in the last. */
static val of_block(const struct blocks *s, val kb, int64_t most, int64_t last)
{
    struct kernel *k = s->d->w->k;
    if (most == last || s->d->blocks == 1)
        return k_int(k, last);
    val x = k_prim(k, P_SELECT, k_prim(k, P_LT, kb, k_int(k, s->d->blocks - 1), 0), k_int(k, most), k_int(k, last));
    ix_bound(k, x, 0, most);
    return x;
}

/* How many elements of a step are of the k-block. */
static val elements_of(const struct blocks *s, val kb, val step)
{
    struct kernel *k = s->d->w->k;
    int64_t length = s->s.dot_blocks.step;
    if (s->d->kblock % length == 0 && s->last % length == 0)
        return k_int(k, length);
    val left = ix_sub(k, of_block(s, kb, s->d->kblock, s->last), ix_scale(k, step, length));
    val n = k_prim(k, P_SELECT, k_prim(k, P_LT, left, k_int(k, length), 0), left, k_int(k, length));
    ix_bound(k, n, 0, length);
    return n;
}

/* The sum of one k-block. */
static val emit_k_block(const struct blocks *s, val kb, val zero)
{
    struct kernel *k = s->d->w->k;
    struct part a, b;
    int64_t length = s->s.dot_blocks.step, most = dot_parts(s->d->kblock, length), last = dot_parts(s->last, length);
    bool whole = s->d->kblock % length == 0 && s->last % length == 0;
    bool several = s->d->blocks > 1 || last > 1;
    fetch(s, false, s->k0, !whole, &a);
    fetch(s, true, s->k0, !whole, &b);
    dot_gpu_put(s, false, k_int(k, 0), &a);
    dot_gpu_put(s, true, k_int(k, 0), &b);
    dot_meet(k);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), of_block(s, kb, most, last), 1), acc = dot_carry(k, zero);
    val half = ix_mod(k, step, 2), other = ix_sub(k, k_int(k, 1), half);
    val next = ix_add(k, s->k0, ix_scale(k, ix_add(k, step, k_int(k, 1)), length));
    if (several) {
        fetch(s, false, next, true, &a);
        fetch(s, true, next, true, &b);
    }
    val sum = dot_gpu_multiply(s, half, elements_of(s, kb, step), acc);
    if (several) {
        dot_gpu_put(s, false, other, &a);
        dot_gpu_put(s, true, other, &b);
    }
    dot_meet(k);
    k_next(k, acc, sum);
    k_end(k, step);
    return dot_out(k, acc);
}

/* The thread's results: the sums of all k-blocks, added in turn. */
static val emit_sums(struct blocks *s)
{
    struct kernel *k = s->d->w->k;
    val zero = dot_splat(k, k_bits(k, s->d->dtype, 0), s->s.dot_blocks.mr, s->s.dot_blocks.nr);
    if (s->d->blocks == 1) {
        s->k0 = k_int(k, 0);
        return emit_k_block(s, 0, zero);
    }
    val kb = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->d->blocks), 1), total = dot_carry(k, zero);
    s->k0 = ix_scale(k, kb, s->d->kblock);
    val sum = emit_k_block(s, kb, zero), more = dot_shaped(k, k_prim(k, P_ADD, total, sum, 0), sum);
    k_next(k, total, dot_shaped(k, k_prim(k, P_SELECT, k_prim(k, P_EQ, kb, k_int(k, 0), 0), sum, more), sum));
    k_end(k, kb);
    return dot_out(k, total);
}

static void emit_results(const struct blocks *s, val sums)
{
    struct kernel *k = s->d->w->k;
    dot_store(k, s->own, k_int(k, 0), TILE_ROWS, k_int(k, s->s.dot_blocks.nr), sums);
    val row = ix_scale(k, ix_div(k, s->t, s->col_threads), s->s.dot_blocks.mr),
        col = ix_scale(k, ix_mod(k, s->t, s->col_threads), s->s.dot_blocks.nr);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->s.dot_blocks.mr), 1);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->s.dot_blocks.nr), 1);
    val m = ix_add(k, s->i0, ix_add(k, row, i)), n = ix_add(k, s->j0, ix_add(k, col, j));
    val mask = dot_if_there(s->d, &s->s, m, n);
    dot_epilogue(s->d, m, n, k_load(k, s->own, ix_add(k, ix_scale(k, i, s->s.dot_blocks.nr), j), 0));
    if (mask)
        k_end(k, mask);
    k_end(k, j);
    k_end(k, i);
}

/* ---- the kernel ---- */

void dot_emit_blocks(struct dot *d, const struct schedule *schedule)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    struct blocks s = {.d = d, .s = *schedule, .threads = schedule->width,
                       .col_threads = schedule->dot_blocks.block_n / schedule->dot_blocks.nr};
    s.last = d->size.k - (d->blocks - 1) * d->kblock;
    s.a_along_k = dot_along_k(d, false);
    s.b_along_k = dot_along_k(d, true);
    lower_scalars(w);
    s.a = k_buf(k, BUF_SHARED, d->dtype, 2 * (int64_t)schedule->dot_blocks.block_m * schedule->dot_blocks.step, 0);
    s.b = k_buf(k, BUF_SHARED, d->dtype, 2 * (int64_t)schedule->dot_blocks.block_n * schedule->dot_blocks.step, 0);
    s.own = k_buf(k, BUF_REGISTER, d->dtype, (int64_t)schedule->dot_blocks.mr * schedule->dot_blocks.nr, 0);
    int64_t rows = dot_parts(d->size.m, schedule->dot_blocks.block_m);
    int64_t cols = dot_parts(d->size.n, schedule->dot_blocks.block_n);
    k->extent = d->size.batch * rows * cols;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, k->extent), 1);
    d->batch_index = ix_div(k, p, rows * cols);
    s.i0 = ix_scale(k, ix_mod(k, ix_div(k, p, cols), rows), schedule->dot_blocks.block_m);
    s.j0 = ix_scale(k, ix_mod(k, p, cols), schedule->dot_blocks.block_n);
    s.t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, s.threads), 1);
    emit_results(&s, emit_sums(&s));
    k_end(k, s.t);
    k_end(k, p);
}
