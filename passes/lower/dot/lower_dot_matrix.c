/* Products by a GPU's matrix units.  A block of threads owns BLOCK_M x BLOCK_N results, and each of
 * its subgroups a tile of MR x NR of them.  A tile consists of slabs, which have as many rows as the unit.
 *
 * The contraction is divided into steps.  Shared memory is a ring of `stages` buffers, each with the elements of one
 * step.  While the subgroups multiply one step, the following stages - 1 steps are in flight from memory.  An
 * operand that is an array in memory, whose vectors of adjacent elements begin at multiples of a vector, is copied
 * asynchronously and keeps its order.  Of other operands each thread computes its part of a step before the products
 * and stores it after them, with consecutive k side by side, because the unit takes pairs of these.  Rows have
 * 16 bytes of padding, so that the lanes of a subgroup read from different banks.  Elements beyond the end
 * are zeros.
 *
 * Iteration i of the loop over the steps:
 *
 *   wait       for this thread's copies of step i; those of later steps may still be in flight
 *   barrier    all threads' parts of step i are there, and all threads have multiplied step i - 1
 *   copy       step i + stages - 1 into the buffer of step i - 1; commit
 *   multiply   step i
 *   store      the computed elements of step i + stages - 1 into the same buffer
 *
 * A unit that works asynchronously (NVIDIA's wgmma) reads panels of shared memory by itself.  Its products of step i
 * - 1 may be incomplete when those of step i begin, so copies go to the buffer of step i - 2, one step less ahead:
 *
 *   wait       for this thread's copies of step i
 *   barrier    all threads' parts of step i are there, and all threads' products of step i - 2 are complete
 *   multiply   step i: begins; commit products
 *   copy       step i + stages - 2; commit
 *   wait       for the products of step i - 1
 *
 * The hardware defines how a unit's sums are spread over the subgroup's lanes, which the loop IR does not express.
 * So a slab of every tile, or a part of its columns, is stored to shared memory, and the epilogue reads it from
 * there.  A thread processes a vector of adjacent elements at a time, so that it stores them at once.
 *
 * A record that is `reordered` counts rows, columns and contraction in the order of lower_dot_order.c; the epilogue
 * computes each result's indices in the graph.
 *
 * If there are few blocks, the contraction is divided into parts (`split`), each with blocks of its own, whose sums are
 * stored in a workspace.  A second phase adds the parts' sums of each result, in order.
 *
 * The unit adds products in an unspecified order (MMA_ANY), and a sum covers the whole contraction, without the
 * k-blocks of pass numerics.  For a contraction of length n the result differs from the exact one by at most n *
 * 2^-22 times the sum of the products' magnitudes; then it is rounded to the result's dtype. */
#include "lower_dot_matrix.h"

/* Rows of a slab of all tiles of the block. */
static int64_t slab_rows(const struct schedule *s)
{
    return (int64_t)s->dot_matrix.block_m / s->dot_matrix.mr * s->dot_matrix.unit_m;
}

int64_t dot_matrix_blocks(const struct schedule *s)
{
    enum { SUMS = 128 * 128, RING = 48 << 10 /* elements of all stages */ };
    int64_t m = s->dot_matrix.block_m, n = s->dot_matrix.block_n;
    return s->dot_matrix.panels && m * n == SUMS && (m + n) * s->dot_matrix.step * s->dot_matrix.stages <= RING ? 2 : 1;
}

/* Has a slab of whole tiles room in the memory of the stages, which the producer and the consumers need no more when
 * all products are complete? */
bool dot_matrix_slab_is_over(const struct schedule *s)
{
    int64_t m = s->dot_matrix.block_m, n = s->dot_matrix.block_n, rows = slab_rows(s);
    int64_t ring = (m + n) * s->dot_matrix.step * s->dot_matrix.stages * (int64_t)dtype_size(KL_BF16);
    return s->dot_matrix.panels && rows * (n + DOT_PAD) * (int64_t)dtype_size(KL_F32) <= ring;
}

/* Two blocks have registers for 64 sums a thread if their producers are one warp each. */
int64_t dot_matrix_producer(const struct schedule *s)
{
    enum { WARP = 32 };
    bool many = dot_matrix_blocks(s) > 1 && s->width > s->dot_matrix.subgroup;
    return !s->dot_matrix.panels ? 0 : many ? WARP : s->dot_matrix.subgroup;
}

int64_t dot_matrix_part(const struct schedule *s)
{
    enum { MAX_COLUMNS = 32, OF_PARTS = 64, MANY_ROWS = 32 };
    bool over = dot_matrix_slab_is_over(s);
    bool whole = over && !s->dot_matrix.split; /* else 192 columns take more registers than 128 or 256 */
    int64_t max = whole ? s->dot_matrix.nr : over && s->dot_matrix.nr % OF_PARTS == 0 ? OF_PARTS : MAX_COLUMNS;
    return s->dot_matrix.unit_m >= MANY_ROWS && s->dot_matrix.nr > max ? max : s->dot_matrix.nr;
}

/* ---- one step ---- */

/* A thread's part of an operand's step: elements t, t + threads, .. of it. */
struct tile_operand { val value[MAX_PARTS], at[MAX_PARTS]; int64_t n; };

/* Replaces elements beyond the end by zeros.  A masked load already gives zero there, a computed element may not. */
static val or_zero(const struct subgroups *s, val mask, val x)
{
    struct kernel *k = s->d->w->k;
    const struct linst *i = &k->inst[x];
    return i->op == L_LOAD && i->b == mask ? x : k_prim(k, P_SELECT, mask, x, k_bits(k, s->dtype, 0));
}

/* Finds the indices *free and *at of element (side, kk) of a step, and returns a mask of whether it exists; 0: it
 * does.  `first`: the step's first index of the contraction.  beyond: the step may reach beyond the end. */
static val dot_matrix_find(const struct subgroups *s, bool second, val first, bool beyond, val side, val kk, val *free,
                           val *at)
{
    struct kernel *k = s->d->w->k;
    *free = ix_add(k, s->factor[second].first, side);
    *at = ix_add(k, first, kk);
    /* a step exists as a whole or not at all */
    bool whole = beyond && size_divides(s->d->len.k, s->s.dot_matrix.step);
    val mask = dot_there(s->d, second, s->factor[second].side, beyond && !whole, *free, *at);
    if (!whole)
        return mask;
    val there = k_prim(k, P_LT, first, ix_size(k, s->d->len.k), 0);
    dot_bound_index(k, *at, s->d->size.k);
    return mask ? k_prim(k, P_AND, mask, there, 0) : there;
}

/* Emits the loads of an operand's step. */
static void fetch_tile_step(const struct subgroups *s, bool second, val first, bool beyond, struct tile_operand *p)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    const struct factor *f = &s->factor[second];
    int64_t step = s->s.dot_matrix.step;
    p->n = f->side * step / s->threads;
    for (int64_t i = 0; i < p->n; i++) {
        val e = ix_add(k, s->t, k_int(k, i * s->threads)), free, at;
        val side = f->along_k ? ix_div(k, e, step) : ix_mod(k, e, f->side),
            kk = f->along_k ? ix_mod(k, e, step) : ix_div(k, e, f->side);
        p->at[i] = ix_add(k, ix_scale(k, side, f->row), kk);
        val mask = dot_matrix_find(s, second, first, beyond, side, kk, &free, &at);
        w->pred = mask;
        w->pred_all = true;
        p->value[i] = dot_stored_element(s->d, second, free, at);
        w->pred = 0;
        w->pred_all = false;
        if (beyond)
            p->value[i] = or_zero(s, mask, p->value[i]);
    }
}

static void dot_matrix_put(const struct subgroups *s, const struct factor *f, val stage, const struct tile_operand *p)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < p->n; i++)
        k_store(k, f->buf, ix_add(k, ix_scale(k, stage, f->elements), p->at[i]), p->value[i], 0);
}

/* The index of an operand's element in memory, and the buffer. */
static val address_of(const struct subgroups *s, bool second, val free, val at, uint32_t *buf)
{
    if (s->order)
        return dot_order_element(s->d, s->order, second, free, at, buf);
    val x = dot_stored_element(s->d, second, free, at); /* only the address of this load is used */
    *buf = (uint32_t)s->d->w->k->inst[x].imm;
    return s->d->w->k->inst[x].a;
}

/* Begins the copies of an operand's step into a buffer of the ring: vectors t, t + threads, .. of it. */
static void dot_matrix_copy(const struct subgroups *s, bool second, val first, bool beyond, val stage)
{
    struct kernel *k = s->d->w->k;
    const struct factor *f = &s->factor[second];
    int64_t vector = dot_vector(s->dtype), vectors = (f->by_k ? s->s.dot_matrix.step : f->side) / vector;
    for (int64_t i = 0; i < f->side * s->s.dot_matrix.step / vector / s->threads; i++) {
        val e = ix_add(k, s->t, k_int(k, i * s->threads)), free, at;
        val row = ix_div(k, e, vectors), col = ix_scale(k, ix_mod(k, e, vectors), vector);
        val to = ix_add(k, ix_scale(k, stage, f->elements), ix_add(k, ix_scale(k, row, f->row), col));
        val mask = dot_matrix_find(s, second, first, beyond, f->by_k ? row : col, f->by_k ? col : row, &free, &at);
        uint32_t buf = s->packed[second];
        val from = address_of(s, second, free, at, &buf);
        k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = (uint16_t)vector, .a = to, .b = from,
                                   .c = mask, .imm = f->buf | (uint64_t)buf << 32});
    }
}

void dot_matrix_multiply(const struct subgroups *s, val stage, const val *sum, val *next)
{
    struct kernel *k = s->d->w->k;
    const struct factor *fa = &s->factor[0], *fb = &s->factor[1];
    int64_t a_row = fa->by_k ? fa->row : 1, a_col = fa->by_k ? 1 : fa->row, b_row = fb->by_k ? 1 : fb->row,
        b_col = fb->by_k ? fb->row : 1;
    val a0 = ix_add(k, ix_scale(k, stage, fa->elements), ix_scale(k, s->tile_i, s->s.dot_matrix.mr * a_row));
    val b0 = ix_add(k, ix_scale(k, stage, fb->elements), ix_scale(k, s->tile_j, s->s.dot_matrix.nr * b_col));
    for (unsigned kk = 0; kk < s->s.dot_matrix.step; kk += s->unit.k) {
        val b = dot_load(k, fb->buf, ix_add(k, b0, k_int(k, kk * b_row)), fb->by_k ? TILE_COLS : TILE_ROWS,
                         k_int(k, fb->row),
                         s->unit.k, s->s.dot_matrix.nr, 0);
        for (unsigned i = 0; i < s->slabs; i++) {
            val at = ix_add(k, a0, k_int(k, i * s->unit.m * a_row + kk * a_col));
            val a = dot_load(k, fa->buf, at, fa->by_k ? TILE_ROWS : TILE_COLS, k_int(k, fa->row), s->unit.m, s->unit.k,
                             0);
            next[i] = dot_mma(k, s->s.dot_matrix.async ? MMA_ASYNC : MMA_ANY, a, b, kk ? next[i] : sum[i]);
        }
    }
}

/* ---- the contraction ---- */

/* Begins to bring a step into a stage: copies, or loads and computations. */
static void begin_step(const struct subgroups *s, val first, bool beyond, val stage, struct tile_operand part[2])
{
    for (int o = 0; o < 2; o++) {
        if (s->factor[o].copied)
            dot_matrix_copy(s, o, first, beyond, stage);
        else
            fetch_tile_step(s, o, first, beyond, &part[o]);
    }
}

/* Stores the elements that were computed for it. */
static void end_step(const struct subgroups *s, val stage, const struct tile_operand part[2])
{
    for (int o = 0; o < 2; o++)
        if (!s->factor[o].copied)
            dot_matrix_put(s, &s->factor[o], stage, &part[o]);
}

void dot_matrix_commit(const struct subgroups *s)
{
    if (s->s.dot_matrix.async)
        pipeline_commit_products(s->d->w->k);
}

void dot_matrix_wait(const struct subgroups *s, uint64_t left)
{
    if (s->s.dot_matrix.async)
        pipeline_wait_products(s->d->w->k, left);
}

static void commit_copies(const struct subgroups *s)
{
    if (s->factor[0].copied || s->factor[1].copied)
        k_inst(s->d->w->k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
}

/* Waits for all steps that were begun, except for the last `left`. */
static void wait_for_copies(const struct subgroups *s, int64_t left)
{
    if (s->factor[0].copied || s->factor[1].copied)
        k_inst(s->d->w->k, L_WAIT, KL_BOOL, 0, 0, 0, (uint64_t)left);
}

/* Computes the sums of the subgroup's tile, one value for each slab. */
static void emit_sums(const struct subgroups *s, val *sum)
{
    struct kernel *k = s->d->w->k;
    struct tile_operand part[2];
    val next[MAX_SLABS], zero = dot_splat(k, k_bits(k, KL_F32, 0), s->unit.m, s->s.dot_matrix.nr);
    int64_t length = s->s.dot_matrix.step, steps = s->steps, stages = s->s.dot_matrix.stages;
    bool async = s->s.dot_matrix.async;
    int64_t ahead = stages - 1 - async;
    for (int64_t i = 0; i < ahead; i++) {
        bool beyond = s->splits > 1 || s->d->symbolic_k || s->d->size.k < (i + 1) * length;
        begin_step(s, ix_add(k, s->k0, k_int(k, i * length)), beyond, k_int(k, i), part);
        end_step(s, k_int(k, i), part);
        commit_copies(s);
    }
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0),
                      s->splits > 1 ? k_int(k, steps) : dot_parts_now(s->d, s->d->len.k, length), 1);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_carry(k, zero);
    wait_for_copies(s, ahead - 1);
    dot_barrier(k);
    val later = ix_add(k, step, k_int(k, ahead)), stage = ix_mod(k, later, stages);
    if (async)
        dot_matrix_multiply(s, ix_mod(k, step, stages), sum, next);
    dot_matrix_commit(s);
    if (steps > ahead)
        begin_step(s, ix_add(k, s->k0, ix_scale(k, later, length)), true, stage, part);
    commit_copies(s);
    if (!async)
        dot_matrix_multiply(s, ix_mod(k, step, stages), sum, next);
    dot_matrix_wait(s, 1);
    if (steps > ahead)
        end_step(s, stage, part);
    for (unsigned i = 0; i < s->slabs; i++)
        k_next(k, sum[i], next[i]);
    k_end(k, step);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_out(k, sum[i]);
    dot_matrix_wait(s, 0);
    wait_for_copies(s, 0); /* copies of zeros beyond the end, because the block's next iteration writes to the same
                              buffers */
}

/* ---- results ---- */

enum { MOST_VECTORS = 2 };

/* Adjacent results that a thread processes at a time: a vector, if each vector exists as a whole or not at all; else
 * 1. */
static int64_t results_together(const struct subgroups *s)
{
    int64_t vectors = slab_rows(&s->s) * s->out_cols / VECTOR;
    bool whole = s->d->columns % VECTOR == 0 && s->part % VECTOR == 0 && vectors % s->threads == 0;
    return whole ? VECTOR : 1;
}

/* order: that of the indices; NULL: the graph's. */
static void matrix_epilogue(const struct dot *d, const void *order, struct dot_at *at, int64_t count)
{
    for (int64_t i = 0; i < count && order; i++) {
        at[i].m = dot_order_row(d, order, at[i].m);
        at[i].n = dot_order_column(d, order, at[i].n);
    }
    dot_epilogue_together(d, at, count);
}

/* Vectors of results that a thread processes together, so that the loads of all are on their way before any result is
 * stored: two, where all of them exist, a thread has so many, and registers for what is computed of them. */
static int64_t vectors_together(const struct subgroups *s, int64_t each)
{
    enum { MANY_MEMBERS = 32, MANY = 8 };
    const struct dot *d = s->d;
    bool registers = s->splits == 1 && (dot_matrix_blocks(&s->s) == 1 || d->w->nmember < MANY_MEMBERS);
    bool whole = size_divides(d->len.m, s->s.dot_matrix.block_m) && size_divides(d->len.n, s->s.dot_matrix.block_n);
    bool many = each >= MANY && each % MOST_VECTORS == 0;
    return dot_matrix_slab_is_over(&s->s) && whole && registers && many ? MOST_VECTORS : 1;
}

/* The sums of vector e of a slab, and where they are.  Row r of the slab belongs to tile row r / M and is row r % M
 * there.  Column c belongs to tile column c / PART and is column c % PART of the part there.  Returns the condition
 * that was begun, or 0. */
static val slab_vector(const struct subgroups *s, val slab, val first, val e, int64_t together, struct dot_at *result)
{
    struct kernel *k = s->d->w->k;
    int64_t cols = s->out_cols / together, nr = s->s.dot_matrix.nr;
    val r = ix_div(k, e, cols), col = ix_scale(k, ix_mod(k, e, cols), together);
    val row = ix_add(k, ix_scale(k, ix_div(k, r, s->unit.m), s->s.dot_matrix.mr),
                     ix_add(k, ix_scale(k, slab, s->unit.m), ix_mod(k, r, s->unit.m)));
    val of_tile = ix_add(k, ix_scale(k, ix_div(k, col, s->part), nr), ix_add(k, first, ix_mod(k, col, s->part)));
    val m = ix_add(k, s->factor[0].first, row), n = ix_add(k, s->factor[1].first, of_tile);
    val mask = dot_if_there(s->d, &s->s, m, n), at = ix_add(k, ix_scale(k, r, s->out_row), col);
    ix_bound(k, n, 0, s->d->columns - together);
    for (int64_t j = 0; j < together; j++)
        result[j] = (struct dot_at){m, ix_add(k, n, k_int(k, j)), k_load(k, s->out, ix_add(k, at, k_int(k, j)), 0)};
    return mask;
}

/* Stores the results of the thread's elements of a slab of all tiles. */
static void emit_slab(const struct subgroups *s, val number)
{
    struct kernel *k = s->d->w->k;
    struct dot_at result[MOST_VECTORS * VECTOR];
    int64_t together = results_together(s), each = slab_rows(&s->s) * s->out_cols / together / s->threads;
    int64_t vectors = vectors_together(s, each);
    val slab = ix_div(k, number, s->parts), first = ix_scale(k, ix_mod(k, number, s->parts), s->part), mask = 0;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, each / vectors), 1);
    for (int64_t v = 0; v < vectors; v++) {
        val e = ix_add(k, ix_add(k, ix_scale(k, i, vectors * s->threads), k_int(k, v * s->threads)), s->t);
        mask = slab_vector(s, slab, first, e, together, result + v * together);
    }
    for (int64_t j = 0; j < vectors * together && s->splits > 1; j++)
        k_store(k, s->sums, dot_part_index(s->d, s->split, result[j].m, result[j].n), result[j].sum, 0);
    if (s->splits == 1)
        matrix_epilogue(s->d, s->order, result, vectors * together);
    if (mask)
        k_end(k, mask);
    k_end(k, i);
}

/* Columns `first` to `first` + part - 1 of a slab. */
static val columns_of(const struct subgroups *s, val slab, int64_t first)
{
    if (s->parts == 1)
        return slab;
    return k_append(s->d->w->k, (struct linst){.op = L_COLUMNS, .dtype = KL_F32, .rows = (uint16_t)s->unit.m,
                                               .cols = (uint16_t)s->part, .a = slab, .imm = (uint64_t)first});
}

/* A barrier of the threads that multiply. */
static void consumers_barrier(const struct subgroups *s)
{
    pipeline_threads_barrier(s->d->w->k, s->s.dot_matrix.panels ? s->threads : 0);
}

/* For each slab: the subgroups store their parts, then every thread computes results from its share of the slab. */
void dot_matrix_results(const struct subgroups *s, const val *sum)
{
    struct kernel *k = s->d->w->k;
    val at = ix_add(k, ix_scale(k, s->tile_i, s->unit.m * s->out_row), ix_scale(k, s->tile_j, s->part));
    if (dot_matrix_slab_is_over(&s->s)) /* all products are complete */
        consumers_barrier(s);
    val number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->slabs * s->parts), 1);
    for (unsigned i = 0; i < s->slabs * s->parts; i++) {
        val chosen = k_if(k, k_prim(k, P_EQ, number, k_int(k, i), 0));
        dot_store(k, s->out, at, TILE_ROWS, k_int(k, s->out_row),
                  columns_of(s, sum[i / s->parts], i % s->parts * s->part));
        k_end(k, chosen);
    }
    consumers_barrier(s);
    emit_slab(s, number);
    if (s->slabs * s->parts > 1) /* a block ends with a barrier */
        consumers_barrier(s);
    k_end(k, number);
}

/* ---- the kernel ---- */

/* Is the operand an array whose rows begin at multiples of a vector?  *at: how it is in memory. */
static bool has_aligned_rows(const struct dot *d, bool second, bool along_k, struct dot_array *at)
{
    struct trial t;
    bool ok = false;
    const int64_t vector = dot_vector(d->w->g->node[d->n->in[second]].dtype);
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        int64_t hi;
        copy.w = &t.w;
        val v[3]; /* loop variables for batch, side, contraction */
        v[0] = copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        v[1] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, second ? d->size.n : d->size.m), 1);
        v[2] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
        val element = dot_stored_element(&copy, second, v[1], v[2]); /* it may move k->inst */
        const struct linst *x = &k->inst[element];
        ok = x->op == L_LOAD && k->buf[x->imm].role == BUF_IN && ix_range(k, x->a, &at->first, &hi) &&
             at->first % vector == 0 &&
             k->buf[x->imm].count % vector == 0; /* it may be one of many arrays that a scan reads in turn */
        for (int i = 0; i < 3 && ok; i++) {
            struct size step;
            ok = ix_stride_size(k, x->a, v[i], &step) && step.number >= 0 &&
                (i == 2 - !along_k ? size_equal(step, size_constant(1)) : size_divides(step, vector));
            at->step[i] = step.bound;
        }
    }
    trial_end(&t, d->w);
    return ok;
}

/* Has it a whole number of vectors, too? */
static bool has_vectors(const struct dot *d, bool second, bool along_k)
{
    int64_t row = along_k ? d->size.k : second ? d->size.n : d->size.m;
    return row % dot_vector(d->w->g->node[d->n->in[second]].dtype) == 0 &&
           has_aligned_rows(d, second, along_k, &(struct dot_array){0});
}

static int64_t vectors_of(const struct schedule *s, bool second, bool along_k)
{
    return along_k ? s->dot_matrix.step : second ? s->dot_matrix.block_n : s->dot_matrix.block_m;
}

bool dot_matrix_copies(const struct dot *d, const struct schedule *s, const struct dot_order *o, bool second)
{
    bool along_k = o ? o->packing[second].along_k : dot_along_k(d, second);
    int64_t length = vectors_of(s, second, along_k), side = vectors_of(s, second, false);
    int64_t vector = dot_vector(d->w->g->node[d->n->in[second]].dtype);
    return length && length % vector == 0 && side * s->dot_matrix.step / vector % s->width == 0 &&
           (o || has_vectors(d, second, along_k));
}

static struct factor factor_of(const struct subgroups *s, bool second)
{
    const struct dot *d = s->d;
    struct dot_view view;
    bool viewed = s->s.dot_matrix.panels && dot_view_find(d, &s->s, second, &view);
    bool along_k = s->order ? s->order->packing[second].along_k : viewed ? view.along_k : dot_along_k(d, second);
    struct factor f = {.along_k = along_k, .side = vectors_of(&s->s, second, false),
                       .copied = second ? s->s.dot_matrix.copy_b : s->s.dot_matrix.copy_a};
    f.by_k = f.along_k || !f.copied;
    f.row = (f.by_k ? s->s.dot_matrix.step : f.side) + (s->s.dot_matrix.async ? 0 : dot_vector(s->dtype));
    f.elements = (f.by_k ? f.side : s->s.dot_matrix.step) * f.row;
    f.buf = k_buf(d->w->k, BUF_SHARED, s->dtype, s->s.dot_matrix.stages * f.elements,
                  s->s.dot_matrix.async ? (uint32_t)f.row : 0);
    if (s->s.dot_matrix.async && !d->w->k->err.code)
        d->w->k->buf[f.buf].panel_rows = (uint16_t)(f.elements / f.row);
    return f;
}

void dot_matrix_place(struct subgroups *s, val number)
{
    struct kernel *k = s->d->w->k;
    s->tile_i = ix_div(k, number, s->col_subgroups);
    s->tile_j = ix_mod(k, number, s->col_subgroups);
}

/* Phases that pack operands. */
static void pack_operands(struct subgroups *s, int64_t threads)
{
    for (int second = 0; second < 2; second++) {
        const struct dot_packing *p = &s->order->packing[second];
        if (!p->channels)
            continue;
        s->packed[second] = k_buf(s->d->w->k, BUF_WORKSPACE, s->dtype, p->count, 0);
        dot_order_pack(s->d, p, second, s->packed[second], threads, s->s.dot_matrix.subgroup);
        lower_next_phase(s->d->w);
    }
}

void dot_matrix_emit(struct dot *d, const struct schedule *schedule)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    int64_t block_n = schedule->dot_matrix.block_n;
    struct subgroups s = {.d = d, .s = *schedule, .dtype = w->g->node[d->n->in[0]].dtype, .threads = schedule->width,
                          .col_subgroups = block_n / schedule->dot_matrix.nr, .part = dot_matrix_part(schedule),
                          .slabs = schedule->dot_matrix.mr / schedule->dot_matrix.unit_m,
                          .unit = {schedule->dot_matrix.unit_m, schedule->dot_matrix.unit_n,
                                   schedule->dot_matrix.unit_k}};
    int64_t producer = dot_matrix_producer(schedule);
    val sum[MAX_SLABS];
    s.parts = (unsigned)(schedule->dot_matrix.nr / s.part);
    s.out_cols = s.col_subgroups * s.part;
    s.out_row = s.out_cols + PAD;
    struct dot_order order;
    if (schedule->dot_matrix.reordered) {
        s.order = &order;
        if (!dot_order_find(d, &order))
            kernel_mark_unsupported(k, "no order in which the operands consist of vectors");
    }
    lower_scalars(w);
    k->extent = 0;
    if (s.order)
        pack_operands(&s, s.threads);
    int64_t packing = k->extent;
    s.factor[0] = factor_of(&s, false);
    s.factor[1] = factor_of(&s, true);
    s.out = k_buf(k, BUF_SHARED, KL_F32, slab_rows(schedule) * s.out_row,
                  dot_matrix_slab_is_over(schedule) ? s.factor[0].buf + 1 : 0);
    struct tasks tasks;
    if (producer)
        dot_pipeline_make(&s);
    s.splits = dot_splits(d, schedule->dot_matrix.split);
    s.steps = dot_parts(s.splits > 1 ? schedule->dot_matrix.split : d->size.k, schedule->dot_matrix.step);
    if (s.splits > 1)
        s.sums = k_buf(k, BUF_WORKSPACE, KL_F32, s.splits * d->size.batch * d->size.m * d->size.n, 0);
    dot_open_blocks(d, schedule, s.splits, &tasks, &s.split, &s.factor[0].first, &s.factor[1].first);
    k->extent += packing;
    s.k0 = ix_scale(k, s.split, s.splits > 1 ? schedule->dot_matrix.split : 0);
    s.t = lower_threads(w, s.threads + producer, &tasks);
    k->inst[s.t].rows = schedule->dot_matrix.subgroup;
    if (producer) {
        dot_emit_warp_specialized(&s);
    } else {
        dot_matrix_place(&s, ix_div(k, s.t, schedule->dot_matrix.subgroup));
        emit_sums(&s, sum);
        dot_matrix_results(&s, sum);
    }
    lower_tasks_end(w, &tasks);
    if (s.splits > 1)
        dot_add_parts(d, s.sums, s.out, s.splits, s.threads + producer, schedule->dot_matrix.subgroup, matrix_epilogue,
                      s.order);
}
