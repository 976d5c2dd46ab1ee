/* Products on a GPU: a block of threads owns BLOCK_M x BLOCK_N results, each thread a tile of MR x NR of them.
 * lower_dot_gpu_steps.c copies a step of the contraction to shared memory and multiplies it.
 *
 * An element, or a part's sum, is one ascending chain of fma over the whole contraction or part, for any tiles: a GPU
 * has few registers for the sums of pass numerics' k-blocks.  In the order of the graph these blocks are the parts, or
 * their sums are added to a second tile of sums.  A large tile consists of parts of four rows and columns, as far from
 * each other as the block allows, so that neighbouring threads read from all banks of shared memory.
 *
 * If there are few blocks, the contraction is divided into parts (`split`), each with blocks of its own, whose sums are
 * stored in a workspace.  A second phase adds the parts' sums of each result, in order; where there are many parts of
 * few results, each of several threads adds some, in order, and one of them adds their sums, in order. */
#include "lower_dot_gpu.h"

enum { PART = 4, RESULTS_TOGETHER = 8 };

/* ---- the contraction ---- */

/* Sets the block's part of the contraction and its number of steps.  The last part may have fewer; with copies it has
 * as many, and those beyond the contraction are zeros, which keep fewer registers busy.  They may change -0 to 0, so
 * not in the graph's order. */
static void open_part(struct product_blocks *s)
{
    struct kernel *k = s->d->w->k;
    int64_t split = s->s.dot_blocks.split;
    s->k0 = ix_scale(k, s->split, split);
    s->steps = s->splits > 1 ? k_int(k, split / s->step) : dot_parts_now(s->d, s->d->len.k, s->step);
    if (s->splits == 1 || s->d->size.k % split == 0 || (has_copies(s) && !s->s.graph_order))
        return;
    val left = ix_sub(k, k_int(k, dot_parts(s->d->size.k, s->step)), ix_div(k, s->k0, s->step));
    s->steps = k_min(k, left, s->steps);
    ix_bound(k, s->steps, 1, split / s->step);
}

/* Multiplies n steps from `first` on, 0: from the first, as one chain. */
static void multiply_steps(const struct product_blocks *s, val first, val n, bool whole, val zero, val *sum)
{
    struct kernel *k = s->d->w->k;
    int64_t tiles = sum_tiles(s);
    val acc[MAX_SUMS], i = k_loop(k, LOOP_SERIAL, k_int(k, 0), n, 1), step = i;
    for (int64_t q = 0; q < tiles; q++)
        acc[q] = sum[q] = dot_carry(k, zero);
    if (first) {
        step = ix_add(k, first, i);
        ix_bound(k, step, 0, dot_parts(ix_max(k, s->d->len.k), s->step) - 1);
    }
    multiply_step(s, step, whole, sum);
    for (int64_t q = 0; q < tiles; q++)
        k_next(k, acc[q], sum[q]);
    k_end(k, i);
    for (int64_t q = 0; q < tiles; q++)
        sum[q] = dot_out(k, acc[q]);
}

/* The same in the graph's order of a contraction of several blocks: each block is a chain of its own, and the blocks'
 * sums are added in ascending order. */
static void multiply_blocks(const struct product_blocks *s, bool whole, val zero, val *sum)
{
    struct kernel *k = s->d->w->k;
    int64_t tiles = sum_tiles(s), most = (s->d->symbolic_k ? DOT_BLOCK : s->d->kblock) / s->step, steps;
    val start = dot_splat(k, dot_sum_start(k, s->d->dtype), s->mr / s->parts_m, s->nr / s->parts_n);
    val blocks = k_int(k, s->d->blocks), each = k_int(k, most); /* steps of all blocks but the last */
    if (s->d->symbolic_k) {
        dot_symbolic_blocks(s->d, &blocks, &each);
        each = ix_div(k, each, s->step);
    }
    val total[MAX_SUMS], block = k_loop(k, LOOP_SERIAL, k_int(k, 0), blocks, 1);
    for (int64_t q = 0; q < tiles; q++)
        total[q] = dot_carry(k, start);
    val first = ix_mul(k, block, each), n = each;
    if (!ix_const(k, s->steps, &steps) || steps % most) {
        n = k_min(k, ix_sub(k, s->steps, first), each);
        ix_bound(k, n, 0, most);
    }
    multiply_steps(s, first, n, whole, zero, sum);
    for (int64_t q = 0; q < tiles; q++)
        sum[q] = k_prim(k, P_ADD, total[q], sum[q], 0);
    for (int64_t q = 0; q < tiles; q++)
        k_next(k, total[q], sum[q]);
    k_end(k, block);
    for (int64_t q = 0; q < tiles; q++)
        sum[q] = dot_out(k, total[q]);
}

/* Computes the thread's results.  A last step that is shorter than the others is multiplied after the loop if operands
 * are copied, else in it. */
static void emit_sums(const struct product_blocks *s, val *sum)
{
    struct kernel *k = s->d->w->k;
    int64_t length = s->step, steps = dot_parts(s->d->size.k, length), rest = has_copies(s) ? s->d->size.k % length : 0;
    bool whole = size_divides(s->d->len.k, length) && !s->d->symbolic_k &&
                 (s->splits == 1 || s->d->size.k % s->s.dot_blocks.split == 0);
    val zero = dot_splat(k, k_bits(k, s->d->dtype, 0), s->mr / s->parts_m, s->nr / s->parts_n);
    begin_steps(s, whole);
    if (s->s.graph_order && s->splits == 1 && s->d->blocks > 1 && dtype_is_float(s->d->dtype))
        multiply_blocks(s, whole, zero, sum);
    else
        multiply_steps(s, 0, rest ? k_int(k, steps - 1) : s->steps, whole, zero, sum);
    if (rest) {
        multiply_first(s, steps - 1, rest, sum);
        dot_barrier(k);
    }
}

/* Stores `count` results: elements (i, j), (i, j + 1) .. of part q of the tile, which exist all or not at all. */
static void emit_row(const struct product_blocks *s, int64_t q, val i, val j, int64_t count)
{
    struct kernel *k = s->d->w->k;
    struct dot_at result[RESULTS_TOGETHER];
    int64_t rows = s->mr / s->parts_m, cols = s->nr / s->parts_n;
    val m = ix_add(k, ix_add(k, s->i0, first_of(s, false, q / s->parts_n)), i);
    val n = ix_add(k, ix_add(k, s->j0, first_of(s, true, q % s->parts_n)), j);
    val mask = dot_if_there(s->d, &s->s, m, n);
    val at = ix_add(k, ix_add(k, ix_scale(k, i, cols), j), k_int(k, q * rows * cols));
    if (count > 1)
        ix_bound(k, n, 0, s->d->columns - count);
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
    int64_t rows = s->mr / s->parts_m, cols = s->nr / s->parts_n;
    bool together = cols <= RESULTS_TOGETHER && (size_divides(s->d->len.n, cols) ||
                                      (s->splits == 1 && s->d->columns > s->d->size.n && s->d->columns % cols == 0));
    bool whole = together && size_divides(s->d->len.m, s->block_m) && size_divides(s->d->len.n, s->block_n) &&
                 (s->d->w->nmember <= SMALL || s->splits > 1);
    for (int64_t q = 0; q < sum_tiles(s); q++)
        dot_store(k, s->own, k_int(k, q * rows * cols), TILE_ROWS, k_int(k, cols), sums[q]);
    for (int64_t q = 0; q < sum_tiles(s); q++) {
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

/* The parts of a thread's tile along a side. */
static int64_t parts_of(int64_t side) { return side == 2 * PART ? 2 : 1; }

/* Sets which tile the thread has.  With copies, a warp has the tiles of 4 rows and 8 columns: what it loads for an
 * index of the contraction is 16 and 32 vectors, all different.  Else threads count the tiles row by row. */
static void place_thread(struct product_blocks *s)
{
    enum { DOWN = 4, ACROSS = 8, LANES = DOWN * ACROSS };
    struct kernel *k = s->d->w->k;
    int64_t rows = s->threads / s->col_threads, across = s->col_threads / ACROSS;
    s->row_thread = ix_div(k, s->t, s->col_threads);
    s->col_thread = ix_mod(k, s->t, s->col_threads);
    if (!has_copies(s) || rows % DOWN || s->col_threads % ACROSS)
        return;
    val warp = ix_div(k, s->t, LANES), lane = ix_mod(k, s->t, LANES);
    s->row_thread = ix_add(k, ix_scale(k, ix_div(k, warp, across), DOWN), ix_div(k, lane, ACROSS));
    s->col_thread = ix_add(k, ix_scale(k, ix_mod(k, warp, across), ACROSS), ix_mod(k, lane, ACROSS));
}

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
    s.copied[0] = schedule->dot_blocks.copy_a;
    s.copied[1] = schedule->dot_blocks.copy_b;
    s.stages = has_copies(&s) ? schedule->dot_blocks.stages : 2;
    s.parts_m = parts_of(s.mr);
    s.parts_n = parts_of(s.nr);
    lower_scalars(w);
    for (int second = 0; second < 2; second++)
        find_accesses(&s, second);
    s.own = k_buf(k, BUF_REGISTER, d->dtype, (int64_t)schedule->dot_blocks.mr * schedule->dot_blocks.nr, 0);
    s.splits = dot_splits(d, schedule->dot_blocks.split);
    if (s.splits > 1)
        s.sums = k_buf(k, BUF_WORKSPACE, d->dtype, s.splits * d->size.batch * d->size.m * d->size.n, 0);
    struct tasks tasks;
    dot_open_blocks(d, schedule, s.splits, &tasks, &s.split, &s.i0, &s.j0);
    s.t = lower_threads(w, s.threads, &tasks);
    place_thread(&s);
    open_part(&s);
    val sums[MAX_SUMS];
    emit_sums(&s, sums);
    emit_results(&s, sums);
    lower_tasks_end(w, &tasks);
    if (s.splits > 1)
        dot_add_parts(d, s.sums, s.buf[0], s.splits, s.threads, 0, blocks_epilogue, NULL);
}
