/* Products on a GPU: a block of threads owns BLOCK_M x BLOCK_N results, each thread a tile of MR x NR of them.
 *
 * The contraction is divided into steps.  The elements of both operands for a step lie in shared memory, those of A
 * by columns, so that the elements that a thread reads of either operand are adjacent.  Shared memory holds two
 * steps.  While the threads multiply one step, each thread has its part of the next step in flight from memory; it
 * stores this part after the products.  There is one barrier a step.
 *
 * * An element, or a part's sum, is one ascending chain of fma over the whole contraction or part, for any tiles: a GPU
 * has no registers for the sums of pass numerics' k-blocks.  A large tile consists of four parts, each in a quarter of
 * the block, so that neighbouring threads read from all banks of shared memory.  For the same reason the columns in
 * shared memory have a padding of PAD elements if an operand is contiguous along the contraction, or along runs of it.
 *
 * If there are few blocks, the contraction is divided into parts (`split`), each with blocks of its own, whose sums are
 * stored in a workspace.  A second phase adds the parts' sums of each result, in order. */
#include "lower_dot.h"

struct product_blocks {
    struct dot *d;
    struct schedule s;
    int64_t mr, nr, block_m, block_n, step; /* as in the record */
    int64_t threads, col_threads;   /* threads of the block; threads in a row of tiles */
    uint32_t a, b, own;             /* lbufs: two steps of each operand; the thread's results */
    /* of each operand: is it contiguous in memory along the contraction, or along runs of it?  Adjacent elements of an
     * access; elements of shared memory from one step of k to the next */
    bool along_k[2];
    int64_t each[2], pitch[2];
    int64_t halves_m, halves_n;     /* number of parts of a thread's tile along rows and columns */
    val t, i0, j0;                  /* number of the thread; the block's first row and column */
    int64_t splits;                 /* number of parts of the contraction */
    val split, k0, steps;           /* the block's part, its first index of the contraction, and its steps */
    uint32_t sums;                  /* lbuf: the sums of all parts, if there are several */
};

enum { MAX_PARTS = DOT_MAX_PARTS, PAD = DOT_BLOCK_PAD, LARGE = 8, QUARTERS = 4 };

/* ---- one step ---- */

/* A thread's part of an operand's step: groups of adjacent elements, each group of one access; consecutive groups of
 * a thread are as far apart as all threads' groups are long. */
struct block_operand { val value[MAX_PARTS], at[MAX_PARTS]; int64_t n; };

/* Finds out how an operand lies in memory, and the number of adjacent elements of an access; 1 if the step cannot be
 * divided into longer accesses. */
static void find_accesses(struct product_blocks *s, bool second)
{
    enum { ACCESS = 16, RUN = 4 };
    bool along = dot_along_k(s->d, second) || dot_along_k_in_runs(s->d, second, RUN);
    int64_t side = second ? s->block_n : s->block_m, length = along ? s->step : side;
    int64_t size = along ? s->d->size.k : second ? s->d->size.n : s->d->size.m;
    int64_t each = ACCESS / (int64_t)dtype_size(s->d->dtype);
    while (each > 1 && (length % each || size % each || side * s->step % (each * s->threads)))
        each /= 2;
    s->along_k[second] = along;
    s->each[second] = each;
    s->pitch[second] = side + (along ? PAD : 0);
}

/* Emits the loads of an operand's step; `first` is its first index of the contraction.  beyond: the step may reach
 * beyond the end of the contraction. */
static void fetch_block_step(const struct product_blocks *s, bool second, val first, bool beyond,
                             struct block_operand *p)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    int64_t side_length = second ? s->block_n : s->block_m, each = s->each[second];
    bool along_k = s->along_k[second];
    int64_t packs = (along_k ? s->step : side_length) / each;
    p->n = side_length * s->step / s->threads;
    for (int64_t i = 0; i < p->n; i++) {
        val e = ix_add(k, s->t, k_int(k, i / each * s->threads)), pack = ix_scale(k, ix_mod(k, e, packs), each);
        val side = along_k ? ix_div(k, e, packs) : pack, kk = along_k ? pack : ix_div(k, e, packs);
        val free = ix_add(k, second ? s->j0 : s->i0, side), at = ix_add(k, first, kk);
        w->pred = dot_there(s->d, second, side_length, beyond, free, at); /* for all elements of an access: either
                                                                             all of them exist or none */
        w->pred_all = true;
        val u = k_int(k, i % each), *moved = along_k ? &kk : &side, *moved_at = along_k ? &at : &free;
        *moved = ix_add(k, *moved, u);
        *moved_at = ix_add(k, *moved_at, u);
        p->at[i] = ix_add(k, ix_scale(k, kk, s->pitch[second]), side);
        p->value[i] = dot_element(s->d, second, free, at);
        w->pred = 0;
        w->pred_all = false;
    }
}

static void dot_gpu_put(const struct product_blocks *s, bool second, val half, const struct block_operand *p)
{
    struct kernel *k = s->d->w->k;
    int64_t elements = s->pitch[second] * s->step;
    for (int64_t i = 0; i < p->n; i++)
        k_store(k, second ? s->b : s->a, ix_add(k, ix_scale(k, half, elements), p->at[i]), p->value[i], 0);
}

/* The first row or column of a part of the thread's tile, counted from the block's first. */
static val first_of(const struct product_blocks *s, bool second, int64_t part)
{
    struct kernel *k = s->d->w->k;
    int64_t halves = second ? s->halves_n : s->halves_m, tile = (second ? s->nr : s->mr) / halves;
    val number = second ? ix_mod(k, s->t, s->col_threads) : ix_div(k, s->t, s->col_threads);
    return ix_add(k, ix_scale(k, number, tile), k_int(k, part * (second ? s->block_n : s->block_m) / halves));
}

/* Adds to all parts of acc the products of `count` steps of k in one half of shared memory. */
static void dot_gpu_multiply(const struct product_blocks *s, val half, val count, val *acc)
{
    struct kernel *k = s->d->w->k;
    int64_t m = s->halves_m, n = s->halves_n, known;
    bool constant = ix_const(k, count, &known);
    val i = k_loop(k, constant ? LOOP_UNROLLED : LOOP_SERIAL, k_int(k, 0), count, 1), sum[QUARTERS], a[2], b[2];
    for (int64_t q = 0; q < m * n; q++)
        sum[q] = dot_carry(k, acc[q]);
    val a0 = ix_add(k, ix_scale(k, half, s->pitch[0] * s->step), ix_scale(k, i, s->pitch[0]));
    val b0 = ix_add(k, ix_scale(k, half, s->pitch[1] * s->step), ix_scale(k, i, s->pitch[1]));
    for (int64_t h = 0; h < m; h++)
        a[h] = dot_load(k, s->a, ix_add(k, a0, first_of(s, false, h)), TILE_ROWS, k_int(k, 1), s->mr / m, 1, 0);
    for (int64_t h = 0; h < n; h++)
        b[h] = dot_load(k, s->b, ix_add(k, b0, first_of(s, true, h)), TILE_ROWS, k_int(k, s->pitch[1]), 1, s->nr / n,
                        0);
    for (int64_t q = 0; q < m * n; q++)
        acc[q] = dot_mma(k, MMA_CHAIN, a[q / n], b[q % n], sum[q]);
    for (int64_t q = 0; q < m * n; q++)
        k_next(k, sum[q], acc[q]);
    k_end(k, i);
    for (int64_t q = 0; q < m * n; q++)
        acc[q] = dot_out(k, sum[q]);
}

/* The first index of the contraction of a step of the block's part. */
static val step_start(const struct product_blocks *s, val step)
{
    return ix_add(s->d->w->k, s->k0, ix_scale(s->d->w->k, step, s->step));
}

/* Sets the block's part of the contraction and its number of steps: the last part may have fewer. */
static void open_part(struct product_blocks *s)
{
    struct kernel *k = s->d->w->k;
    int64_t split = s->s.dot_blocks.split;
    s->k0 = ix_scale(k, s->split, split);
    s->steps = s->splits > 1 ? k_int(k, split / s->step) : dot_parts_now(s->d, s->d->len.k, s->step);
    if (s->splits == 1 || s->d->size.k % split == 0)
        return;
    val left = ix_sub(k, k_int(k, dot_parts(s->d->size.k, s->step)), ix_div(k, s->k0, s->step));
    s->steps = k_prim(k, P_SELECT, k_prim(k, P_LT, left, s->steps, 0), left, s->steps);
    ix_bound(k, s->steps, 1, split / s->step);
}

/* The number of elements of a step that are within the contraction. */
static val elements_of(const struct product_blocks *s, val step)
{
    struct kernel *k = s->d->w->k;
    int64_t length = s->step;
    if (size_divides(s->d->len.k, length))
        return k_int(k, length);
    val left = ix_sub(k, ix_size(k, s->d->len.k), step_start(s, step));
    val n = k_prim(k, P_SELECT, k_prim(k, P_LT, left, k_int(k, length), 0), left, k_int(k, length));
    ix_bound(k, n, 0, length);
    return n;
}

/* Computes the thread's results. */
static void emit_sums(const struct product_blocks *s, val *sum)
{
    struct kernel *k = s->d->w->k;
    struct block_operand a, b;
    int64_t length = s->step, quarters = s->halves_m * s->halves_n, steps = dot_parts(s->d->size.k, length);
    bool whole = size_divides(s->d->len.k, length) && !s->d->symbolic_k &&
                 (s->splits == 1 || s->d->size.k % s->s.dot_blocks.split == 0);
    val zero = dot_splat(k, k_bits(k, s->d->dtype, 0), s->mr / s->halves_m, s->nr / s->halves_n), acc[QUARTERS];
    fetch_block_step(s, false, s->k0, !whole, &a);
    fetch_block_step(s, true, s->k0, !whole, &b);
    dot_gpu_put(s, false, k_int(k, 0), &a);
    dot_gpu_put(s, true, k_int(k, 0), &b);
    dot_barrier(k);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), s->steps, 1);
    for (int64_t q = 0; q < quarters; q++)
        acc[q] = sum[q] = dot_carry(k, zero);
    val half = ix_mod(k, step, 2), other = ix_sub(k, k_int(k, 1), half);
    val next = ix_add(k, step, k_int(k, 1));
    if (steps > 1) {
        if (whole) /* the last step is loaded once more: no condition for each load */
            next = ix_min(k, next, (s->splits > 1 ? s->s.dot_blocks.split : s->d->size.k) / length - 1);
        next = step_start(s, next);
        fetch_block_step(s, false, next, !whole, &a);
        fetch_block_step(s, true, next, !whole, &b);
    }
    dot_gpu_multiply(s, half, elements_of(s, step), sum);
    if (steps > 1) {
        dot_gpu_put(s, false, other, &a);
        dot_gpu_put(s, true, other, &b);
    }
    dot_barrier(k);
    for (int64_t q = 0; q < quarters; q++)
        k_next(k, acc[q], sum[q]);
    k_end(k, step);
    for (int64_t q = 0; q < quarters; q++)
        sum[q] = dot_out(k, acc[q]);
}

/* Stores `count` results: elements (i, j), (i, j + 1) .. of part q of the tile, which exist all or not at all. */
static void emit_row(const struct product_blocks *s, int64_t q, val i, val j, int64_t count)
{
    struct kernel *k = s->d->w->k;
    struct dot_at result[LARGE];
    int64_t rows = s->mr / s->halves_m, cols = s->nr / s->halves_n;
    val m = ix_add(k, ix_add(k, s->i0, first_of(s, false, q / s->halves_n)), i);
    val n = ix_add(k, ix_add(k, s->j0, first_of(s, true, q % s->halves_n)), j);
    val mask = dot_if_there(s->d, &s->s, m, n);
    val at = ix_add(k, ix_add(k, ix_scale(k, i, cols), j), k_int(k, q * rows * cols));
    if (count > 1)
        ix_bound(k, n, 0, s->d->size.n - count);
    for (int64_t u = 0; u < count; u++)
        result[u] = (struct dot_at){m, ix_add(k, n, k_int(k, u)), k_load(k, s->own, ix_add(k, at, k_int(k, u)), 0)};
    for (int64_t u = 0; u < count && s->splits > 1; u++)
        k_store(k, s->sums, dot_part_index(s->d, s->split, m, result[u].n), result[u].sum, 0);
    if (s->splits == 1)
        dot_epilogue_together(s->d, result, count);
    if (mask)
        k_end(k, mask);
}

/* Stores the results, those of a row of a part together where they exist all or not at all.  The loop over rows is
 * written out if the epilogue is short. */
static void emit_results(const struct product_blocks *s, const val *sums)
{
    enum { SMALL = 4 };             /* members of the group */
    struct kernel *k = s->d->w->k;
    int64_t rows = s->mr / s->halves_m, cols = s->nr / s->halves_n, quarters = s->halves_m * s->halves_n;
    bool together = cols <= LARGE && size_divides(s->d->len.n, cols);
    bool whole = together && size_divides(s->d->len.m, s->block_m) && size_divides(s->d->len.n, s->block_n) &&
                 (s->d->w->nmember <= SMALL || s->splits > 1);
    for (int64_t q = 0; q < quarters; q++)
        dot_store(k, s->own, k_int(k, q * rows * cols), TILE_ROWS, k_int(k, cols), sums[q]);
    for (int64_t q = 0; q < quarters; q++) {
        for (int64_t i = 0; whole && i < rows; i++)
            emit_row(s, q, k_int(k, i), k_int(k, 0), cols);
        if (whole)
            continue;
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1);
        val j = together ? k_int(k, 0) : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, cols), 1);
        emit_row(s, q, i, j, together ? cols : 1);
        if (!together)
            k_end(k, j);
        k_end(k, i);
    }
}

/* ---- the kernel ---- */

static void blocks_epilogue(const struct dot *d, const void *ctx, struct dot_at *at, int64_t count)
{
    (void)ctx;
    dot_epilogue_together(d, at, count);
}

void dot_blocks_emit(struct dot *d, const struct schedule *schedule)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    struct product_blocks s = {.d = d, .s = *schedule, .threads = schedule->width, .mr = schedule->dot_blocks.mr,
                       .nr = schedule->dot_blocks.nr, .block_m = schedule->dot_blocks.block_m,
                       .block_n = schedule->dot_blocks.block_n, .step = schedule->dot_blocks.step,
                       .col_threads = schedule->dot_blocks.block_n / schedule->dot_blocks.nr};
    for (int second = 0; second < 2; second++)
        find_accesses(&s, second);
    s.halves_m = schedule->dot_blocks.mr == LARGE ? 2 : 1;
    s.halves_n = schedule->dot_blocks.nr == LARGE ? 2 : 1;
    lower_scalars(w);
    s.a = k_buf(k, BUF_SHARED, d->dtype, 2 * s.pitch[0] * schedule->dot_blocks.step, 0);
    s.b = k_buf(k, BUF_SHARED, d->dtype, 2 * s.pitch[1] * schedule->dot_blocks.step, 0);
    s.own = k_buf(k, BUF_REGISTER, d->dtype, (int64_t)schedule->dot_blocks.mr * schedule->dot_blocks.nr, 0);
    s.splits = dot_splits(d, schedule->dot_blocks.split);
    if (s.splits > 1)
        s.sums = k_buf(k, BUF_WORKSPACE, d->dtype, s.splits * d->size.batch * d->size.m * d->size.n, 0);
    struct tasks tasks;
    dot_open_blocks(d, schedule, s.splits, &tasks, &s.split, &s.i0, &s.j0);
    s.t = lower_threads(w, s.threads, &tasks);
    open_part(&s);
    val sums[QUARTERS];
    emit_sums(&s, sums);
    emit_results(&s, sums);
    lower_tasks_end(w, &tasks);
    if (s.splits > 1)
        dot_add_parts(d, s.sums, s.splits, s.threads, 0, blocks_epilogue, NULL);
}
