/* Products on a GPU: a block of threads owns BLOCK_M x BLOCK_N results, each thread a tile of MR x NR of them.
 *
 * The contraction is divided into steps.  Shared memory is a ring of `stages` buffers, each with the elements of both
 * operands for one step.  There is one barrier a step.
 *
 * * An operand that is an array of vectors (copy_a, copy_b) is copied asynchronously, and in the order in which it lies
 * in memory.  While the threads multiply one step, the following stages - 1 steps are on their way.  If the operand is
 * contiguous along the contraction, shared memory has its rows, or its columns, one after the other; a thread then
 * reads the elements of several indices of the contraction at once.  The columns of a thread's tile lie apart in shared
 * memory, adjacent ones belong to adjacent threads (copied_place): the threads of a quarter of a warp read from all
 * banks.
 * * Of another operand each thread loads its part of a later step before the products of a step and stores it after
 * them.  The elements of each index of the contraction are adjacent in shared memory, so that those that a thread reads
 * are.  Without copies, there are two stages.
 *
 * * An element, or a part's sum, is one ascending chain of fma over the whole contraction or part, for any tiles: a GPU
 * has few registers for the sums of pass numerics' k-blocks.  In the order of the graph these blocks are the parts, or
 * their sums are added to a second tile of sums.  A large tile consists of four parts, each in a quarter of
 * the block, so that neighbouring threads read from all banks of shared memory.  For the same reason the columns in
 * shared memory have a padding of PAD elements if an operand is contiguous along the contraction, or along runs of it.
 *
 * If there are few blocks, the contraction is divided into parts (`split`), each with blocks of its own, whose sums are
 * stored in a workspace.  A second phase adds the parts' sums of each result, in order; where there are many parts of
 * few results, each of several threads adds some, in order, and one of them adds their sums, in order. */
#include "lower_dot.h"

struct product_blocks {
    struct dot *d;
    struct schedule s;
    int64_t mr, nr, block_m, block_n, step; /* as in the record */
    int64_t threads, col_threads;   /* threads of the block; threads in a row of tiles */
    int64_t stages;                 /* steps in shared memory */
    uint32_t buf[2], own;           /* lbufs: the stages of each operand; the thread's results */
    /* of each operand: is it copied?  Is it contiguous in memory along the contraction, or along runs of it?  Adjacent
     * elements of an access; elements of shared memory from one index of the contraction to the next or, if the operand
     * is copied and contiguous along the contraction, from row to row or column to column; elements of a stage */
    bool copied[2], along_k[2];
    int64_t each[2], pitch[2], elements[2];
    int64_t halves_m, halves_n;     /* number of parts of a thread's tile along rows and columns */
    int64_t slices;                 /* of a part's columns: those of one are loaded and multiplied at a time */
    val t, i0, j0;                  /* number of the thread; the block's first row and column */
    int64_t splits;                 /* number of parts of the contraction */
    val split, k0, steps;           /* the block's part, its first index of the contraction, and its steps */
    uint32_t sums;                  /* lbuf: the sums of all parts, if there are several */
};

enum { MAX_PARTS = DOT_MAX_PARTS, PAD = DOT_BLOCK_PAD, LARGE = 8, MAX_SLICES = 2, MAX_SUMS = 4 * MAX_SLICES };

/* ---- one step ---- */

/* A thread's part of an operand's step: groups of adjacent elements, each group of one access; consecutive groups of
 * a thread are as far apart as all threads' groups are long. */
struct block_operand { val value[MAX_PARTS], at[MAX_PARTS]; int64_t n; };

/* Finds out how an operand lies in memory, and the number of adjacent elements of an access; 1 if the step cannot be
 * divided into longer accesses. */
static void find_accesses(struct product_blocks *s, bool second)
{
    enum { ACCESS = 16, RUN = 4 };
    if (s->copied[second]) {
        bool along = s->along_k[second] = dot_vectors_along_k(s->d, second);
        int64_t length = second ? s->block_n : s->block_m;
        s->each[second] = dot_vector(s->d->dtype);
        s->pitch[second] = along ? s->step + PAD : length;
        s->elements[second] = s->pitch[second] * (along ? length : s->step);
        return;
    }
    bool along = dot_along_k(s->d, second) || dot_along_k_in_runs(s->d, second, RUN);
    int64_t side = second ? s->block_n : s->block_m, length = along ? s->step : side;
    int64_t size = along ? s->d->size.k : second ? s->d->size.n : s->d->size.m;
    int64_t each = ACCESS / (int64_t)dtype_size(s->d->dtype);
    while (each > 1 && (length % each || size % each || side * s->step % (each * s->threads)))
        each /= 2;
    s->along_k[second] = along;
    s->each[second] = each;
    s->pitch[second] = side + (along ? PAD : 0);
    s->elements[second] = s->pitch[second] * s->step;
}

/* Does shared memory have the operand's rows, or columns, one after the other? */
static bool is_by_side(const struct product_blocks *s, bool second) { return s->copied[second] && s->along_k[second]; }

/* The columns of a thread in each part of its tile. */
static int64_t columns_of_part(const struct product_blocks *s) { return s->nr / s->halves_n; }

/* The sums of a thread are tiles of so many: slices of the first part in the first row of parts, of the next, .. */
static int64_t sum_tiles(const struct product_blocks *s) { return s->halves_m * s->halves_n * s->slices; }

/* The place of a row or column of a block in shared memory that has these one after the other.  Column u of thread j's
 * part p of its tile is at j + (threads in a row) * (p * columns of a part + u). */
static val copied_place(const struct product_blocks *s, bool second, val side)
{
    struct kernel *k = s->d->w->k;
    int64_t columns = columns_of_part(s), across = s->col_threads;
    if (!second)
        return side;
    val group = ix_div(k, side, columns), u = ix_mod(k, side, columns);
    val apart = ix_add(k, ix_scale(k, ix_div(k, group, across), columns), u);
    return ix_add(k, ix_mod(k, group, across), ix_scale(k, apart, across));
}

/* Copies an operand's step, from index `first` of the contraction on, to a stage. */
static void copy_block_step(const struct product_blocks *s, bool second, val first, bool beyond, val stage)
{
    struct kernel *k = s->d->w->k;
    int64_t length = second ? s->block_n : s->block_m, vector = s->each[second];
    bool along_k = s->along_k[second];
    int64_t vectors = (along_k ? s->step : length) / vector;
    for (int64_t i = 0; i < length * s->step / vector / s->threads; i++) {
        val e = ix_add(k, s->t, k_int(k, i * s->threads));
        val row = ix_div(k, e, vectors), col = ix_scale(k, ix_mod(k, e, vectors), vector);
        val side = along_k ? row : col, kk = along_k ? col : row;
        val free = ix_add(k, second ? s->j0 : s->i0, side), at = ix_add(k, first, kk);
        val mask = dot_there(s->d, second, length, beyond, free, at);
        val to = along_k ? ix_add(k, ix_scale(k, copied_place(s, second, side), s->pitch[second]), kk)
                         : ix_add(k, ix_scale(k, kk, s->pitch[second]), side);
        if (!mask)
            dot_bound_index(k, at, s->d->size.k);
        val element = dot_stored_element(s->d, second, free, at);
        const struct linst load = k->inst[element]; /* only its address is used */
        k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = (uint16_t)vector,
                                   .a = ix_add(k, ix_scale(k, stage, s->elements[second]), to), .b = load.a, .c = mask,
                                   .imm = s->buf[second] | load.imm << 32});
    }
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

static void dot_gpu_put(const struct product_blocks *s, bool second, val stage, const struct block_operand *p)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < p->n; i++)
        k_store(k, s->buf[second], ix_add(k, ix_scale(k, stage, s->elements[second]), p->at[i]), p->value[i], 0);
}

/* The first row or column of a part of the thread's tile, counted from the block's first. */
static val first_of(const struct product_blocks *s, bool second, int64_t part)
{
    struct kernel *k = s->d->w->k;
    int64_t halves = second ? s->halves_n : s->halves_m, tile = (second ? s->nr : s->mr) / halves;
    val number = second ? ix_mod(k, s->t, s->col_threads) : ix_div(k, s->t, s->col_threads);
    return ix_add(k, ix_scale(k, number, tile), k_int(k, part * (second ? s->block_n : s->block_m) / halves));
}

/* Loads the elements of a part of the thread's tile of an operand, of the second those of a slice of a part: rows x
 * `count`, or `count` x columns, from index kk of a stage's step on. */
static val load_part(const struct product_blocks *s, bool second, val stage, val kk, int64_t count, int64_t part)
{
    struct kernel *k = s->d->w->k;
    int64_t rows = s->mr / s->halves_m, cols = columns_of_part(s) / s->slices, pitch = s->pitch[second];
    val at = ix_scale(k, stage, s->elements[second]);
    val first = second ? ix_add(k, first_of(s, true, part / s->slices), k_int(k, part % s->slices * cols))
                       : first_of(s, false, part);
    if (is_by_side(s, second) && second) {
        val place = ix_add(k, ix_mod(k, s->t, s->col_threads), k_int(k, part * cols * s->col_threads));
        at = ix_add(k, ix_add(k, at, ix_scale(k, place, pitch)), kk);
        return dot_load(k, s->buf[1], at, TILE_COLS, k_int(k, s->col_threads * pitch), count, cols, 0);
    }
    if (is_by_side(s, second)) {
        at = ix_add(k, ix_add(k, at, ix_scale(k, first, pitch)), kk);
        return dot_load(k, s->buf[0], at, TILE_ROWS, k_int(k, pitch), rows, count, 0);
    }
    at = ix_add(k, ix_add(k, at, ix_scale(k, kk, pitch)), first);
    if (second)
        return dot_load(k, s->buf[1], at, TILE_ROWS, k_int(k, pitch), count, cols, 0);
    return count == 1 ? dot_load(k, s->buf[0], at, TILE_ROWS, k_int(k, 1), rows, 1, 0)
                      : dot_load(k, s->buf[0], at, TILE_COLS, k_int(k, pitch), rows, count, 0);
}

/* Adds to all tiles of acc the products of indices `from` to `end` - 1 of a stage's step, `each` of them at a time. */
static void dot_gpu_multiply(const struct product_blocks *s, val stage, val from, val end, int64_t each, val *acc)
{
    struct kernel *k = s->d->w->k;
    int64_t m = s->halves_m, n = s->halves_n * s->slices, known;
    bool unrolled = ix_const(k, end, &known) && s->slices == 1; /* with slices there are no registers for that */
    val i = k_loop(k, unrolled ? LOOP_UNROLLED : LOOP_SERIAL, from, end, each), sum[MAX_SUMS], a[2];
    val b[2 * MAX_SLICES];
    for (int64_t q = 0; q < m * n; q++)
        sum[q] = dot_carry(k, acc[q]);
    for (int64_t h = 0; h < m; h++)
        a[h] = load_part(s, false, stage, i, each, h);
    for (int64_t h = 0; h < n && each == 1; h++)
        b[h] = load_part(s, true, stage, i, each, h);
    for (int64_t q = 0; q < m * n && each == 1; q++)
        acc[q] = dot_mma(k, MMA_CHAIN, a[q / n], b[q % n], sum[q]);
    for (int64_t h = 0; h < n && each > 1; h++) { /* few registers: one slice of B at a time */
        b[h] = load_part(s, true, stage, i, each, h);
        for (int64_t g = 0; g < m; g++)
            acc[g * n + h] = dot_mma(k, MMA_CHAIN, a[g], b[h], sum[g * n + h]);
    }
    for (int64_t q = 0; q < m * n; q++)
        k_next(k, sum[q], acc[q]);
    k_end(k, i);
    for (int64_t q = 0; q < m * n; q++)
        acc[q] = dot_out(k, sum[q]);
}

/* The same of the first `count` indices, in vectors where an operand has these along the contraction. */
static void multiply_first(const struct product_blocks *s, val stage, int64_t count, val *acc)
{
    struct kernel *k = s->d->w->k;
    int64_t each = is_by_side(s, false) || is_by_side(s, true) ? dot_vector(s->d->dtype) : 1;
    int64_t whole = count / each * each;
    if (whole)
        dot_gpu_multiply(s, stage, k_int(k, 0), k_int(k, whole), each, acc);
    if (whole < count)
        dot_gpu_multiply(s, stage, k_int(k, whole), k_int(k, count), 1, acc);
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

static bool has_copies(const struct product_blocks *s) { return s->copied[0] || s->copied[1]; }

/* Begins the copies of step `number`, unless it is beyond the last one, as a batch. */
static void begin_copies(const struct product_blocks *s, val number)
{
    struct kernel *k = s->d->w->k;
    int64_t n, steps;
    bool known = ix_const(k, number, &n) && ix_const(k, s->steps, &steps);
    if (!has_copies(s))
        return;
    val exists = known ? 0 : k_if(k, k_prim(k, P_LT, number, s->steps, 0));
    for (int second = 0; second < 2; second++)
        if (s->copied[second] && (!known || n < steps))
            copy_block_step(s, second, step_start(s, number), s->d->size.k % s->step != 0,
                            ix_mod(k, number, s->stages));
    if (exists)
        k_end(k, exists);
    k_inst(k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
}

/* Loads the thread's parts of the operands that are not copied. */
static void begin_loads(const struct product_blocks *s, val first, bool beyond, struct block_operand part[2])
{
    for (int second = 0; second < 2; second++)
        if (!s->copied[second])
            fetch_block_step(s, second, first, beyond, &part[second]);
}

static void end_loads(const struct product_blocks *s, val stage, const struct block_operand part[2])
{
    for (int second = 0; second < 2; second++)
        if (!s->copied[second])
            dot_gpu_put(s, second, stage, &part[second]);
}

/* The next step is in shared memory; copies of the stages - 2 steps after it may be on their way. */
static void await_step(const struct product_blocks *s)
{
    if (has_copies(s))
        k_inst(s->d->w->k, L_WAIT, KL_BOOL, 0, 0, 0, (uint64_t)(s->stages - 2));
    dot_barrier(s->d->w->k);
}

/* Steps of a part, where it is known. */
static int64_t steps_of_part(const struct product_blocks *s)
{
    return s->splits > 1 ? s->s.dot_blocks.split / s->step : dot_parts(s->d->size.k, s->step);
}

/* Multiplies step `step`, while a later one is on its way.  whole: no step reaches beyond the contraction. */
static void multiply_step(const struct product_blocks *s, val step, bool whole, val *sum)
{
    struct kernel *k = s->d->w->k;
    struct block_operand part[2];
    int64_t ahead = s->stages - 1, steps = dot_parts(s->d->size.k, s->step);
    val stage = ix_mod(k, step, s->stages);
    val other = s->stages == 2 ? ix_sub(k, k_int(k, 1), stage)
                               : ix_mod(k, ix_add(k, step, k_int(k, ahead)), s->stages);
    val later = ix_add(k, step, k_int(k, ahead));
    begin_copies(s, later);
    if (steps > 1) {
        if (whole) /* the last step is loaded once more: no condition for each load */
            later = ix_min(k, later, steps_of_part(s) - 1);
        begin_loads(s, step_start(s, later), !whole, part);
    }
    if (has_copies(s))
        multiply_first(s, stage, s->step, sum);
    else
        dot_gpu_multiply(s, stage, k_int(k, 0), elements_of(s, step), 1, sum);
    if (steps > 1)
        end_loads(s, other, part);
    await_step(s);
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
        ix_bound(k, step, 0, dot_parts(s->d->size.k, s->step) - 1);
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
    int64_t tiles = sum_tiles(s), each = s->d->kblock / s->step, blocks = s->d->blocks;
    int64_t steps = dot_parts(s->d->size.k, s->step);
    val start = dot_splat(k, dot_sum_start(k, s->d->dtype), s->mr / s->halves_m, columns_of_part(s) / s->slices);
    val total[MAX_SUMS], block = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, blocks), 1);
    for (int64_t q = 0; q < tiles; q++)
        total[q] = dot_carry(k, start);
    val first = ix_scale(k, block, each), n = k_int(k, each);
    if (steps % each)
        n = ix_min(k, ix_sub(k, k_int(k, steps), first), each);
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
    struct block_operand part[2];
    int64_t length = s->step, steps = dot_parts(s->d->size.k, length), of_part = steps_of_part(s);
    int64_t ahead = s->stages - 1, rest = has_copies(s) ? s->d->size.k % length : 0;
    bool whole = size_divides(s->d->len.k, length) && !s->d->symbolic_k &&
                 (s->splits == 1 || s->d->size.k % s->s.dot_blocks.split == 0);
    val zero = dot_splat(k, k_bits(k, s->d->dtype, 0), s->mr / s->halves_m, columns_of_part(s) / s->slices);
    for (int64_t i = 0; i < ahead; i++) {
        begin_copies(s, k_int(k, i));
        begin_loads(s, step_start(s, k_int(k, i < of_part ? i : of_part - 1)), !whole, part);
        end_loads(s, k_int(k, i), part);
    }
    await_step(s);
    if (s->s.graph_order && s->splits == 1 && s->d->blocks > 1 && dtype_is_float(s->d->dtype))
        multiply_blocks(s, whole, zero, sum);
    else
        multiply_steps(s, 0, rest ? k_int(k, steps - 1) : s->steps, whole, zero, sum);
    if (rest) {
        multiply_first(s, k_int(k, (steps - 1) % s->stages), rest, sum);
        dot_barrier(k);
    }
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
    int64_t rows = s->mr / s->halves_m, cols = s->nr / s->halves_n, quarters = s->halves_m * s->halves_n;
    bool together = cols <= LARGE && (size_divides(s->d->len.n, cols) ||
                                      (s->splits == 1 && s->d->columns > s->d->size.n && s->d->columns % cols == 0));
    bool whole = together && size_divides(s->d->len.m, s->block_m) && size_divides(s->d->len.n, s->block_n) &&
                 (s->d->w->nmember <= SMALL || s->splits > 1);
    for (int64_t q = 0; q < sum_tiles(s); q++) {
        int64_t part = q / s->slices, column = q % s->slices * (cols / s->slices);
        dot_store(k, s->own, k_int(k, part * rows * cols + column), TILE_ROWS, k_int(k, cols), sums[q]);
    }
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
    s.copied[0] = schedule->dot_blocks.copy_a;
    s.copied[1] = schedule->dot_blocks.copy_b;
    s.stages = has_copies(&s) ? schedule->dot_blocks.stages : 2;
    s.halves_m = schedule->dot_blocks.mr == LARGE ? 2 : 1;
    s.halves_n = schedule->dot_blocks.nr == LARGE ? 2 : 1;
    for (int second = 0; second < 2; second++)
        find_accesses(&s, second);
    s.slices = is_by_side(&s, false) && is_by_side(&s, true) && columns_of_part(&s) % MAX_SLICES == 0 ? MAX_SLICES : 1;
    lower_scalars(w);
    for (int second = 0; second < 2; second++)
        s.buf[second] = k_buf(k, BUF_SHARED, d->dtype, s.stages * s.elements[second], 0);
    s.own = k_buf(k, BUF_REGISTER, d->dtype, (int64_t)schedule->dot_blocks.mr * schedule->dot_blocks.nr, 0);
    s.splits = dot_splits(d, schedule->dot_blocks.split);
    if (s.splits > 1)
        s.sums = k_buf(k, BUF_WORKSPACE, d->dtype, s.splits * d->size.batch * d->size.m * d->size.n, 0);
    struct tasks tasks;
    dot_open_blocks(d, schedule, s.splits, &tasks, &s.split, &s.i0, &s.j0);
    s.t = lower_threads(w, s.threads, &tasks);
    open_part(&s);
    val sums[MAX_SUMS];
    emit_sums(&s, sums);
    emit_results(&s, sums);
    lower_tasks_end(w, &tasks);
    if (s.splits > 1)
        dot_add_parts(d, s.sums, s.buf[0], s.splits, s.threads, 0, blocks_epilogue, NULL);
}
