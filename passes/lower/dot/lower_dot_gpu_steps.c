/* The steps of a product on a GPU (lower_dot_gpu.c): how the operands' elements come to shared memory, and how a thread
 * multiplies those of a step.
 *
 * The contraction is divided into steps.  Shared memory is a ring of `stages` buffers, each with the elements of both
 * operands for one step, those of each index of the contraction adjacent: so those that a thread reads of an index are.
 * There is one barrier a step.
 *
 * * An operand that is an array of vectors (copy_a, copy_b) is copied asynchronously, stages - 1 steps ahead.  If its
 * vectors are along the contraction, each thread transposes those that it has copied: it loads the vectors of the next
 * step, which only this thread needs to have waited for, while the threads multiply, and stores their elements to a
 * second ring of two steps.
 * * Of another operand each thread loads its part of a later step before the products of a step and stores it after
 * them.  Without copies, there are two stages.
 *
 * * The columns in shared memory have a padding of PAD elements if an operand is contiguous along the contraction, or
 * along runs of it: then the stores of a warp go to different banks. */
#include "lower_dot_gpu.h"

enum { MAX_PARTS = DOT_MAX_PARTS, PAD = DOT_BLOCK_PAD, TRANSPOSED_STEPS = 2 };

/* ---- operands ---- */

static bool is_transposed(const struct product_blocks *s, bool second)
{
    return s->copied[second] && s->along_k[second];
}

static int64_t side_of(const struct product_blocks *s, bool second) { return second ? s->block_n : s->block_m; }

/* Sets `each`, 1 if the step cannot be divided into longer accesses. */
static void find_loads(struct product_blocks *s, bool second)
{
    enum { ACCESS = 16, RUN = 4 };
    bool along = dot_along_k(s->d, second) || (!s->d->symbolic && dot_along_k_in_runs(s->d, second, RUN));
    int64_t side = side_of(s, second), length = along ? s->step : side;
    int64_t size = along ? s->d->size.k : second ? s->d->size.n : s->d->size.m;
    int64_t each = ACCESS / (int64_t)dtype_size(s->d->dtype);
    while (each > 1 && (length % each || size % each || side * s->step % (each * s->threads)))
        each /= 2;
    s->along_k[second] = along;
    s->each[second] = each;
}

void find_accesses(struct product_blocks *s, bool second)
{
    struct kernel *k = s->d->w->k;
    int64_t side = side_of(s, second);
    if (s->copied[second]) {
        s->along_k[second] = dot_vectors_along_k(s->d, second);
        s->each[second] = dot_vector(s->d->dtype);
    } else {
        find_loads(s, second);
    }
    s->ring[second] = is_transposed(s, second) ? TRANSPOSED_STEPS : s->stages;
    s->pitch[second] = side + (s->along_k[second] ? PAD : 0);
    s->elements[second] = s->pitch[second] * s->step;
    s->buf[second] = k_buf(k, BUF_SHARED, s->d->dtype, s->ring[second] * s->elements[second], 0);
    if (is_transposed(s, second))
        s->rows[second] = k_buf(k, BUF_SHARED, s->d->dtype, s->stages * side * s->step, 0);
}

/* Where step `step` + `ahead` is in the ring of an operand. */
static val stage_of(const struct product_blocks *s, bool second, val step, int64_t ahead)
{
    struct kernel *k = s->d->w->k;
    val stage = ix_mod(k, step, s->ring[second]);
    if (s->ring[second] == 2 && ahead == 1)
        return ix_sub(k, k_int(k, 1), stage);
    return ahead ? ix_mod(k, ix_add(k, step, k_int(k, ahead)), s->ring[second]) : stage;
}

int64_t steps_of_part(const struct product_blocks *s)
{
    return s->splits > 1 ? s->s.dot_blocks.split / s->step : dot_parts(s->d->size.k, s->step);
}

val step_start(const struct product_blocks *s, val step)
{
    return ix_add(s->d->w->k, s->k0, ix_scale(s->d->w->k, step, s->step));
}

/* The number of elements of a step that are within the contraction. */
static val elements_of(const struct product_blocks *s, val step)
{
    struct kernel *k = s->d->w->k;
    int64_t length = s->step;
    if (size_divides(s->d->len.k, length))
        return k_int(k, length);
    val left = ix_sub(k, ix_size(k, s->d->len.k), step_start(s, step));
    val n = k_min(k, left, k_int(k, length));
    ix_bound(k, n, 0, length);
    return n;
}

/* The step after `step`, or the last one again: what is loaded of it is not used. */
static val step_after(const struct product_blocks *s, val step)
{
    struct kernel *k = s->d->w->k;
    int64_t steps;
    val next = ix_add(k, step, k_int(k, 1));
    if (ix_const(k, s->steps, &steps))
        return ix_min(k, next, steps - 1);
    val last = ix_sub(k, s->steps, k_int(k, 1)), n = k_min(k, next, last);
    ix_bound(k, n, 0, steps_of_part(s) - 1);
    return n;
}

/* ---- copies ---- */

/* Vector number i of the thread's of a step: its first element's index along the block's side and along the step. */
static void vector_place(const struct product_blocks *s, bool second, int64_t i, val *side, val *kk)
{
    enum { PAIR = 2 }; /* vectors along the contraction that neighbouring threads copy: a sector of memory */
    struct kernel *k = s->d->w->k;
    int64_t length = side_of(s, second), vector = s->each[second], along = s->step / vector;
    val e = ix_add(k, s->t, k_int(k, i * s->threads));
    if (!s->along_k[second]) {
        *side = ix_scale(k, ix_mod(k, e, length / vector), vector);
        *kk = ix_div(k, e, length / vector);
        return;
    }
    int64_t pair = along % PAIR ? 1 : PAIR;
    val in = ix_mod(k, e, pair), of = ix_div(k, e, pair);
    *side = ix_mod(k, of, length);
    *kk = ix_scale(k, ix_add(k, in, ix_scale(k, ix_div(k, of, length), pair)), vector);
}

static int64_t vectors_of_step(const struct product_blocks *s, bool second)
{
    return side_of(s, second) * s->step / s->each[second] / s->threads;
}

/* The index of the thread's vector number i of a step in `rows`. */
static val place_in_rows(const struct product_blocks *s, bool second, val step, int64_t i)
{
    struct kernel *k = s->d->w->k;
    val e = ix_add(k, s->t, k_int(k, i * s->threads)), stage = ix_mod(k, step, s->stages);
    return ix_add(k, ix_scale(k, stage, side_of(s, second) * s->step), ix_scale(k, e, s->each[second]));
}

/* Copies an operand's step.  beyond: it may reach beyond the end of the contraction. */
static void copy_block_step(const struct product_blocks *s, bool second, val step, bool beyond)
{
    struct kernel *k = s->d->w->k;
    val first = step_start(s, step), side, kk;
    for (int64_t i = 0; i < vectors_of_step(s, second); i++) {
        vector_place(s, second, i, &side, &kk);
        val free = ix_add(k, second ? s->j0 : s->i0, side), at = ix_add(k, first, kk);
        val mask = dot_there(s->d, second, side_of(s, second), beyond, free, at);
        val to = is_transposed(s, second) ? place_in_rows(s, second, step, i)
            : ix_add(k, ix_scale(k, stage_of(s, second, step, 0), s->elements[second]),
                     ix_add(k, ix_scale(k, kk, s->pitch[second]), side));
        uint64_t buf = is_transposed(s, second) ? s->rows[second] : s->buf[second];
        if (!mask)
            dot_bound_index(k, at, s->d->size.k);
        val element = dot_stored_element(s->d, second, free, at);
        const struct linst load = k->inst[element]; /* only its address is used */
        k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = (uint16_t)s->each[second], .a = to,
                                   .b = load.a, .c = mask, .imm = buf | load.imm << 32});
    }
}

/* Begins the copies of step `number`, unless it is beyond the last one, as a batch. */
static void begin_copies(const struct product_blocks *s, val number)
{
    struct kernel *k = s->d->w->k;
    int64_t n, steps;
    bool known = ix_const(k, number, &n) && ix_const(k, s->steps, &steps);
    bool beyond = s->d->size.k % s->step || (s->splits > 1 && s->d->size.k % s->s.dot_blocks.split);
    if (!has_copies(s))
        return;
    val exists = known ? 0 : k_if(k, k_prim(k, P_LT, number, s->steps, 0));
    for (int second = 0; second < 2; second++)
        if (s->copied[second] && (!known || n < steps))
            copy_block_step(s, second, number, beyond);
    if (exists)
        k_end(k, exists);
    k_inst(k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
}

/* The next step's copies of this thread are complete; those of the stages - 2 steps after it may be on their way. */
static void await_copies(const struct product_blocks *s)
{
    k_inst(s->d->w->k, L_WAIT, KL_BOOL, 0, 0, 0, (uint64_t)(s->stages - 2));
}

/* ---- elements that are loaded by one instruction and stored by another ---- */

/* A thread's part of an operand's step: groups of adjacent elements, each group of one access; consecutive groups of
 * a thread are as far apart as all threads' groups are long. */
struct block_operand { val value[MAX_PARTS], at[MAX_PARTS]; int64_t n; };

/* Emits the loads of an operand's step; `first` is its first index of the contraction.  beyond: the step may reach
 * beyond the end of the contraction. */
static void fetch_block_step(const struct product_blocks *s, bool second, val first, bool beyond,
                             struct block_operand *p)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    int64_t side_length = side_of(s, second), each = s->each[second];
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

/* Loads the vectors of step `step` that the thread has copied. */
static void load_copied(const struct product_blocks *s, bool second, val step, struct block_operand *p)
{
    struct kernel *k = s->d->w->k;
    int64_t each = s->each[second];
    val side, kk;
    p->n = vectors_of_step(s, second) * each;
    for (int64_t i = 0; i < p->n; i++) {
        val u = k_int(k, i % each);
        vector_place(s, second, i / each, &side, &kk);
        p->at[i] = ix_add(k, ix_scale(k, ix_add(k, kk, u), s->pitch[second]), side);
        p->value[i] = k_load(k, s->rows[second], ix_add(k, place_in_rows(s, second, step, i / each), u), 0);
    }
}

static void store_loaded_step(const struct product_blocks *s, bool second, val stage, const struct block_operand *p)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < p->n; i++)
        k_store(k, s->buf[second], ix_add(k, ix_scale(k, stage, s->elements[second]), p->at[i]), p->value[i], 0);
}

/* Loads the thread's parts of the operands that are not copied. */
static void begin_loads(const struct product_blocks *s, val first, bool beyond, struct block_operand part[2])
{
    for (int second = 0; second < 2; second++)
        if (!s->copied[second])
            fetch_block_step(s, second, first, beyond, &part[second]);
}

/* Stores what was loaded of step `step` + `ahead`. */
static void end_loads(const struct product_blocks *s, val step, int64_t ahead, const struct block_operand part[2])
{
    for (int second = 0; second < 2; second++)
        if (!s->copied[second])
            store_loaded_step(s, second, stage_of(s, second, step, ahead), &part[second]);
}

/* The same of what this thread has copied; from: the step, or an earlier one if there is none. */
static void begin_transpose(const struct product_blocks *s, val from, struct block_operand part[2])
{
    for (int second = 0; second < 2; second++)
        if (is_transposed(s, second))
            load_copied(s, second, from, &part[second]);
}

static void end_transpose(const struct product_blocks *s, val step, int64_t ahead, const struct block_operand part[2])
{
    for (int second = 0; second < 2; second++)
        if (is_transposed(s, second))
            store_loaded_step(s, second, stage_of(s, second, step, ahead), &part[second]);
}

/* ---- products ---- */

val first_of(const struct product_blocks *s, bool second, int64_t part)
{
    struct kernel *k = s->d->w->k;
    int64_t parts = second ? s->parts_n : s->parts_m, tile = (second ? s->nr : s->mr) / parts;
    return ix_add(k, ix_scale(k, second ? s->col_thread : s->row_thread, tile),
                  k_int(k, part * side_of(s, second) / parts));
}

/* Loads the elements of a part of the thread's tile of an operand: rows x 1, or 1 x columns, of index kk of a step. */
static val load_part(const struct product_blocks *s, bool second, val stage, val kk, int64_t part)
{
    struct kernel *k = s->d->w->k;
    int64_t rows = s->mr / s->parts_m, cols = s->nr / s->parts_n, pitch = s->pitch[second];
    val at = ix_add(k, ix_scale(k, stage, s->elements[second]), ix_scale(k, kk, pitch));
    at = ix_add(k, at, first_of(s, second, part));
    return second ? dot_load(k, s->buf[1], at, TILE_ROWS, k_int(k, pitch), 1, cols, 0)
                  : dot_load(k, s->buf[0], at, TILE_ROWS, k_int(k, 1), rows, 1, 0);
}

/* Adds the products of indices `from` to `end` - 1 of a step to the sums of the parts. */
static void multiply_indices(const struct product_blocks *s, val step, val from, val end, val *sum)
{
    struct kernel *k = s->d->w->k;
    int64_t known;
    val carry[MAX_SUMS], a[MAX_SIDE_PARTS], b[MAX_SIDE_PARTS];
    val kk = k_loop(k, ix_const(k, end, &known) ? LOOP_UNROLLED : LOOP_SERIAL, from, end, 1);
    for (int64_t q = 0; q < sum_tiles(s); q++)
        carry[q] = dot_carry(k, sum[q]);
    for (int64_t h = 0; h < s->parts_m; h++)
        a[h] = load_part(s, false, stage_of(s, false, step, 0), kk, h);
    for (int64_t h = 0; h < s->parts_n; h++)
        b[h] = load_part(s, true, stage_of(s, true, step, 0), kk, h);
    for (int64_t q = 0; q < sum_tiles(s); q++)
        sum[q] = dot_mma(k, MMA_CHAIN, a[q / s->parts_n], b[q % s->parts_n], carry[q]);
    for (int64_t q = 0; q < sum_tiles(s); q++)
        k_next(k, carry[q], sum[q]);
    k_end(k, kk);
    for (int64_t q = 0; q < sum_tiles(s); q++)
        sum[q] = dot_out(k, carry[q]);
}

void multiply_first(const struct product_blocks *s, int64_t step, int64_t count, val *sum)
{
    struct kernel *k = s->d->w->k;
    multiply_indices(s, k_int(k, step), k_int(k, 0), k_int(k, count), sum);
}

/* ---- steps ---- */

void begin_steps(const struct product_blocks *s, bool whole)
{
    struct kernel *k = s->d->w->k;
    struct block_operand part[2];
    int64_t of_part = steps_of_part(s);
    val first = k_int(k, 0);
    for (int64_t i = 0; i < s->stages - 1; i++) {
        begin_copies(s, k_int(k, i));
        begin_loads(s, step_start(s, k_int(k, i < of_part ? i : of_part - 1)), !whole, part);
        end_loads(s, k_int(k, i), 0, part);
    }
    if (has_copies(s)) {
        await_copies(s);
        begin_transpose(s, first, part);
        end_transpose(s, first, 0, part);
    }
    dot_barrier(k);
}

/* Multiplies a step, with copies. */
static void multiply_and_copy(const struct product_blocks *s, val step, val *sum)
{
    struct kernel *k = s->d->w->k;
    struct block_operand part[2];
    val first = k_int(k, 0), half = k_int(k, s->step / 2), end = k_int(k, s->step), next = step_after(s, step);
    multiply_indices(s, step, first, half, sum);
    await_copies(s);
    begin_transpose(s, next, part);
    end_transpose(s, step, 1, part); /* at once: else the elements need registers while the threads multiply */
    multiply_indices(s, step, half, end, sum);
}

void multiply_step(const struct product_blocks *s, val step, bool whole, val *sum)
{
    struct kernel *k = s->d->w->k;
    struct block_operand part[2];
    int64_t steps = dot_parts(s->d->size.k, s->step);
    val later = ix_add(k, step, k_int(k, s->stages - 1)), loaded = later;
    begin_copies(s, later);
    if (steps > 1) {
        if (whole) /* the last step is loaded once more: no condition for each load */
            loaded = ix_min(k, later, steps_of_part(s) - 1);
        begin_loads(s, step_start(s, loaded), !whole, part);
    }
    if (has_copies(s))
        multiply_and_copy(s, step, sum);
    else
        multiply_indices(s, step, k_int(k, 0), elements_of(s, step), sum);
    if (steps > 1)
        end_loads(s, step, s->stages - 1, part);
    dot_barrier(k);
}
