/* Groups around a dot: a tiled matrix product, with the epilogue where the product is stored.
 *
 * A register tile has MR rows and NR columns.  NR is the vector loop's width.  The MR rows are MR accumulators carried
 * by a serial loop over k; each step of it loads one row of B (a vector) and MR elements of A (broadcast).  An
 * iteration of the parallel loop computes NR columns of a block of rows, or all columns of a row tile.  For each
 * k-block of pass numerics it adds to the row tiles' partial sums in scratch; the last k-block ends in the epilogue.  B
 * may be copied into a scratch panel first (lower_dot_schedule.c).
 * Operands larger than the first-level cache are prefetched, A only if few columns use each element of it, and results
 * while their tile is computed.  If all of them are outside of the second-level cache, this takes a product of
 * 128x512x512 from 0.87 of the arithmetic peak to 0.95, and the products of attention's gradients with 32 columns take
 * 0.6 to 0.9 of the time.  Convolutions 1x1, whose result is larger than their images, would wait for each line that
 * they store: of 64 to 256 channels of 8x56x56 5.5 ms in place of 5.5 to 8 by where the result was left, of 16 to 96 of
 * 8x112x112 2.2 in place of 3.5 to 9.8.
 * Tiles, packing and prefetching do not change the order of a chain. */
#include "lower_dot.h"
#include <string.h>

enum { MAX_PREFETCH = 2 };
/* Rows times steps of a tile whose products are straight code, without a loop over k: a batch of 256 products of
 * 16x16x16 takes 0.87 of the time, of 1000 of 8x8x8 0.8. */
enum { MAX_STRAIGHT = 256 };

/* The axes of operand 0 or 1 of each kind: batch and contracted axes in list order, free axes in ascending order. */
struct axes { uint8_t batch[KL_MAX_RANK], con[KL_MAX_RANK], fr[KL_MAX_RANK]; uint32_t nfree; };

static struct axes axes_of(const struct dot *d, bool second)
{
    struct axes x = {0};
    unsigned nb = d->n->attr.dot.nbatch, nc = d->n->attr.dot.ncon;
    uint32_t bl = second ? d->n->attr.dot.batch_b : d->n->attr.dot.batch_a;
    uint32_t cl = second ? d->n->attr.dot.con_b : d->n->attr.dot.con_a;
    for (unsigned i = 0; i < nb; i++)
        x.batch[i] = (uint8_t)axis_get(bl, i);
    for (unsigned i = 0; i < nc; i++)
        x.con[i] = (uint8_t)axis_get(cl, i);
    x.nfree = dot_free_axes(second ? d->b.rank : d->a.rank, bl, nb, cl, nc, x.fr);
    return x;
}

static struct shape pick_dot_axes(const struct shape *s, const uint8_t *axis, uint32_t n)
{
    struct shape r = {.rank = n};
    for (uint32_t i = 0; i < n; i++)
        r.dim[i] = s->dim[axis[i]];
    return r;
}

/* The element of an operand at these coordinates of its free and contracted axes, in its stored dtype. */
static val element_at(const struct dot *d, bool second, const val *fr, const val *con)
{
    struct axes x = axes_of(d, second);
    val batch[KL_MAX_RANK], coord[KL_MAX_RANK] = {0};
    lower_unflatten(d->w->k, &d->batch, d->batch_index, batch);
    for (unsigned j = 0; j < d->batch.rank; j++)
        coord[x.batch[j]] = batch[j];
    for (unsigned j = 0; j < d->con.rank; j++)
        coord[x.con[j]] = con[j];
    for (unsigned j = 0; j < x.nfree; j++)
        coord[x.fr[j]] = fr[j];
    lower_point(d->w);
    return lower_at(d->w, d->n->in[second], coord);
}

val dot_stored_element(const struct dot *d, bool second, val i, val kk)
{
    val fr[KL_MAX_RANK], con[KL_MAX_RANK];
    lower_unflatten(d->w->k, second ? &d->free_b : &d->free_a, i, fr);
    lower_unflatten(d->w->k, &d->con, kk, con);
    return element_at(d, second, fr, con);
}

/* The coordinates in s of element `at` of run number `run`; a run has `length` elements of the last axes. */
static void run_coordinates(struct kernel *k, const struct shape *s, int64_t length, val run, val at, val *coord)
{
    struct shape outer = *s, inner = {0};
    for (int64_t n = 1; n < length && outer.rank;)
        n *= outer.dim[--outer.rank];
    for (uint32_t d = outer.rank; d < s->rank; d++)
        inner.dim[inner.rank++] = s->dim[d];
    lower_unflatten(k, &outer, run, coord);
    if (inner.rank)
        coord[outer.rank] = at;
    if (inner.rank > 1)
        lower_unflatten(k, &inner, at, coord + outer.rank);
}

/* Is the value a load of an operand's bf16 element whose successor along k follows it in memory? */
static bool has_adjacent(const struct dot *d, bool second, val v)
{
    const struct kernel *k = d->w->k;
    const struct linst *i = &k->inst[v];
    const struct schedule *s = schedule_of(d->w->k);
    bool wide = s->kind == SCHED_DOT_SKINNY || s->kind == SCHED_DOT_TILES || (s->kind == SCHED_DOT && s->dot.wide);
    return (second ? d->b_step_k : d->a_step_k) == 1 && wide && i->op == L_LOAD &&
           k->buf[i->imm].role == BUF_IN && load_elements(k, i) == 1 && (i->varying || !i->b);
}

/* The factor at free coordinates fr and contracted index kk; see dot_factor. */
static val factor_at(const struct dot *d, bool second, const val *fr, val kk, bool alone)
{
    struct kernel *k = d->w->k;
    val con[KL_MAX_RANK];
    lower_unflatten(k, &d->con, kk, con);
    val low = element_at(d, second, fr, con);
    if (d->unit == 1)
        return k_cast(k, low, d->dtype);
    if (alone)
        return dot_pair_of(k, low, 0);
    if (has_adjacent(d, second, low))
        return k_load_wide(k, (uint32_t)k->inst[low].imm, k->inst[low].a, k->inst[low].b);
    lower_unflatten(k, &d->con, ix_add(k, kk, k_int(k, 1)), con);
    return dot_pair_of(k, low, element_at(d, second, fr, con));
}

val dot_factor(const struct dot *d, bool second, val i, val kk, bool alone)
{
    val fr[KL_MAX_RANK];
    lower_unflatten(d->w->k, second ? &d->free_b : &d->free_a, i, fr);
    return factor_at(d, second, fr, kk, alone);
}

val dot_column_of_run(const struct dot *d, val run, val at, val kk, bool alone)
{
    val fr[KL_MAX_RANK];
    run_coordinates(d->w->k, &d->free_b, d->columns_run, run, at, fr);
    return factor_at(d, true, fr, kk, alone);
}

val dot_step_of_run(const struct dot *d, bool second, val i, int64_t length, val run, val at)
{
    val fr[KL_MAX_RANK], con[KL_MAX_RANK];
    lower_unflatten(d->w->k, second ? &d->free_b : &d->free_a, i, fr);
    run_coordinates(d->w->k, &d->con, length, run, at, con);
    return k_cast(d->w->k, element_at(d, second, fr, con), d->dtype);
}

val dot_element(const struct dot *d, bool second, val i, val kk)
{
    return k_cast(d->w->k, dot_stored_element(d, second, i, kk), d->dtype);
}

struct tile {
    val m0, n0;            /* first row and column */
    int64_t rows, cols;    /* cols < nr: the last columns; lanes beyond them are masked */
    val kb, k0;            /* number and first index of the k-block */
    int64_t kc;            /* its length */
    val number;            /* the tile's number among the task's row tiles */
    int64_t tiles;         /* number of the task's row tiles */
    bool last;             /* the k-block is the last one: the tile ends in the epilogue */
    val length;            /* length of the k-block, if the contraction has a symbol */
    /* rows of the tile to the left whose epilogue is computed between the products of this tile; 0: none */
    val waiting;
};

val dot_multiply_add(struct kernel *k, val a, val b, val acc)
{
    if (dtype_is_float(val_dtype(k, acc)))
        return k_prim(k, val_dtype(k, a) == KL_U32 ? P_DOT2 : P_FMA, a, b, acc);
    return k_prim(k, P_ADD, acc, k_prim(k, P_MUL, a, b, 0), 0);
}

/* Sums of a row: in even_odd order two. */
static int64_t sums_of_row(const struct dot *d) { return d->even_odd ? 2 : 1; }

/* acc: the row's; in even_odd order its second sum is `rows` behind it. */
static void add_factor(const struct dot *d, val a, val b, int64_t rows, val *acc)
{
    struct kernel *k = d->w->k;
    val sum[2] = {acc[0], d->even_odd ? acc[rows] : 0};
    if (!d->even_odd) {
        acc[0] = dot_multiply_add(k, a, b, acc[0]);
        return;
    }
    dot_even_odd_step(k, a, b, sum);
    acc[0] = sum[0];
    acc[rows] = sum[1];
}

/* Adds `steps` products, from k index k0 + off on, to every accumulator. */
static void emit_fma_steps(const struct dot *d, const struct tile *t, val off, int steps, val *acc)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    for (int u = 0; u < steps; u += (int)d->unit) {
        val ku = ix_add(k, off, k_int(k, u)), kk = ix_add(k, t->k0, ku), b;
        bool alone = u + d->unit > steps;
        if (d->panel)
            b = k_load(k, d->panel - 1, ix_add(k, ix_scale(k, ix_div(k, ku, d->unit), d->nr), w->lane), 0);
        else
            b = dot_factor(d, true, ix_add(k, t->n0, w->lane), kk, alone);
        val pred = w->pred;
        w->pred = 0; /* loads of A are not masked: a tile has only rows that exist */
        for (int64_t i = 0; i < t->rows; i++)
            add_factor(d, dot_factor(d, false, ix_add(k, t->m0, k_int(k, i)), kk, alone), b, t->rows, &acc[i]);
        w->pred = pred;
    }
}

static const struct schedule *dot_schedule(const struct dot *d) { return schedule_of(d->w->k); }

static val open_if(struct kernel *k, bool needed, enum prim p, val x, int64_t limit)
{
    return needed ? k_if(k, k_prim(k, p, x, k_int(k, limit), 0)) : 0;
}

void dot_prefetch_result(const struct dot *d, val m, val n)
{
    struct lowering *w = d->w;
    val coord[KL_MAX_RANK] = {0}, permuted[KL_MAX_RANK] = {0};
    dot_result_coord(d, m, n, coord);
    if (d->permute)
        dot_permuted_coord(d, d->permute, coord, permuted);
    lower_prefetch(w, d->permute ? node_shape(w->g, d->permute) : &d->out, d->permute ? permuted : coord, 0);
}

/* Prefetches what the tile's epilogue will read and write: a few cache lines of each array in an iteration of the loop
 * over k, as few as it takes.  Lines of the tiles below are not prefetched, because they would come too early and evict
 * others. */
static void prefetch_epilogue(const struct dot *d, const struct tile *t, val j)
{
    struct kernel *k = d->w->k;
    int64_t line = LINE_BYTES / (int64_t)dtype_size(d->n->dtype), per_row = (t->cols + line - 1) / line;
    int64_t visits = t->kc / UNROLL_K, lines = t->rows * per_row, each = visits ? (lines + visits - 1) / visits : 0;
    if (!dot_schedule(d)->dot.prefetch_out || !t->last || !each)
        return;
    val visit = ix_div(k, j, UNROLL_K);
    val guard = open_if(k, visits * each > lines, P_LT, visit, lines / each);
    for (int64_t i = 0; i < each; i++) {
        val number = ix_add(k, ix_scale(k, visit, each), k_int(k, i));
        dot_prefetch_result(d, ix_add(k, t->m0, ix_div(k, number, per_row)),
                            ix_add(k, t->n0, ix_scale(k, ix_mod(k, number, per_row), line)));
    }
    if (guard)
        k_end(k, guard);
}

/* Prefetches the cache line of an operand's element, if the element is loaded. */
static void prefetch_element(const struct dot *d, bool second, val i, val kk)
{
    val first = d->w->k->ninst;
    lower_prefetch_load(d->w, dot_stored_element(d, second, i, kk), first);
}

/* Prefetches what the row tiles of the next k-block, or of the next columns, will read of B: a few cache lines for
 * every UNROLL_K steps of this k-block.  j is the first of these steps. */
static void prefetch_operand(const struct dot *d, const struct tile *t, val j)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    int64_t line = LINE_BYTES / (int64_t)dtype_size(d->n->dtype), lines = d->kblock * d->nr / line;
    int64_t visits = t->kc / UNROLL_K, each = visits ? (lines + t->tiles * visits - 1) / (t->tiles * visits) : 0;
    bool rows = d->b_step_n == 1 && d->nr % line == 0, columns = d->b_step_k == 1;
    if (!dot_schedule(d)->dot.prefetch_b || !each || each > MAX_PREFETCH || !(rows || columns))
        return;
    val visit = ix_add(k, ix_scale(k, t->number, visits), ix_div(k, j, UNROLL_K));
    val n0 = t->last ? ix_add(k, t->n0, k_int(k, d->nr)) : t->n0;
    val k0 = t->last ? k_int(k, 0) : ix_add(k, t->k0, k_int(k, d->kblock));
    for (int64_t i = 0; i < each; i++) {
        val number = ix_add(k, ix_scale(k, visit, each), k_int(k, i)), n, kk;
        if (rows) {
            n = ix_scale(k, ix_mod(k, number, d->nr / line), line);
            kk = ix_div(k, number, d->nr / line);
        } else {
            n = ix_mod(k, number, d->nr);
            kk = ix_scale(k, ix_div(k, number, d->nr), line);
        }
        prefetch_element(d, true, ix_add(k, n0, n), ix_add(k, k0, kk));
    }
}

/* Prefetches what the next row tile will read of A, if few columns use each element of it, so that A comes from a
 * distant cache or from memory.  Hardware prefetchers do not recognise these accesses: columns of A cross many pages,
 * and rows are short.  If rows are adjacent in memory, it prefetches one line for each of these steps; if the elements
 * of a row are, one line of each of some rows, which take turns. */
static void prefetch_rows(const struct dot *d, const struct tile *t, val j)
{
    struct kernel *k = d->w->k;
    int64_t line = LINE_BYTES / d->element, turns = line / UNROLL_K;
    bool columns = d->a_step_m == 1;
    if (!dot_schedule(d)->dot.prefetch_a)
        return;
    int64_t each = columns ? UNROLL_K : (t->rows + turns - 1) / turns;
    val visit = ix_div(k, j, UNROLL_K), kk = ix_add(k, t->k0, j);
    val m = ix_add(k, t->m0, k_int(k, columns ? 2 * t->rows - 1 : t->rows));
    for (int64_t i = 0; i < each; i++) {
        val step = k_int(k, i), row = columns ? m : ix_add(k, m,
                                                           ix_add(k, ix_scale(k, ix_mod(k, visit, turns), each), step));
        prefetch_element(d, false, row, columns ? ix_add(k, kk, step) : kk);
    }
}

void dot_begin_columns(const struct dot *d, int64_t cols)
{
    struct lowering *w = d->w;
    int64_t width = d->nr;
    while (width / 2 >= d->lanes && width / 2 >= cols) /* leaves out vectors that contain no existing column */
        width /= 2;
    val there = d->columns_here ? d->columns_here : cols < width ? k_int(w->k, cols) : 0;
    w->lane = k_loop(w->k, LOOP_VECTOR, k_int(w->k, 0), k_int(w->k, width), 1);
    w->pred = there ? k_prim(w->k, P_LT, w->lane, there, 0) : 0;
    ix_bound(w->k, w->lane, 0, cols - 1); /* only for lanes that exist */
}

void dot_end_columns(const struct dot *d)
{
    k_end(d->w->k, d->w->lane);
    d->w->lane = d->w->pred = 0;
}

/* Computes the epilogue of a row of products in scratch, whose first is that of result (m0 + row, n0). */
static void epilogue_of_row(const struct dot *d, val m0, val row, val n0, val column)
{
    struct kernel *k = d->w->k;
    val v = k_load(k, d->tile - 1, ix_add(k, ix_scale(k, row, d->tile_step), column), 0);
    dot_epilogue(d, ix_add(k, m0, row), ix_add(k, n0, column), v);
}

/* Computes the epilogue of products in scratch, row by row.  Its scalars are computed here, because if they were kept
 * in registers over the loops before, there would be too few registers for the accumulators. */
static void emit_epilogue(const struct dot *d, struct tile t, int64_t cols)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    lower_scalars(w);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, t.rows), 1);
    val first = t.n0;
    for (int tail = 0; tail < 2; tail++) {
        t.cols = tail ? cols % d->nr : d->nr;
        if (tail ? !t.cols : cols < d->nr)
            continue;
        bool several = !tail && cols >= 2 * d->nr;
        val j = several ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, cols / d->nr), 1) : 0;
        val off = several ? ix_scale(k, j, d->nr) : k_int(k, tail ? cols / d->nr * d->nr : 0);
        dot_begin_columns(d, t.cols);
        epilogue_of_row(d, t.m0, i, first, ix_add(k, off, w->lane));
        dot_end_columns(d);
        if (several)
            k_end(k, j);
    }
    k_end(k, i);
    w->epoch++; /* the next tile must not use these scalars */
}

void dot_epilogue_rows(const struct dot *d, val m0, int64_t rows, val n0, int64_t cols)
{
    emit_epilogue(d, (struct tile){.m0 = m0, .rows = rows, .n0 = n0}, cols);
}

/* Computes the epilogue of the tile to the left, one row in each iteration of the loop over k.  Square roots and
 * divisions have their own unit in the processor, so they and the memory latencies cost little between products. */
static void emit_waiting(const struct dot *d, const struct tile *t, val visit)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val guard = k_if(k, k_prim(k, P_LT, visit, t->waiting, 0));
    lower_scalars(w);
    epilogue_of_row(d, t->m0, visit, ix_add(k, t->n0, k_int(k, -d->nr)), w->lane);
    k_end(k, guard);
    w->epoch++; /* the code that follows must not use these values */
}

/* All prefetches of the UNROLL_K steps from j on. */
static void prefetch_ahead(const struct dot *d, const struct tile *t, val j)
{
    prefetch_operand(d, t, j);
    prefetch_epilogue(d, t, j);
    prefetch_rows(d, t, j);
}

/* Emits a loop over k.  Iterations `from` to `to` have `steps` steps each and add to the sums of all rows.  Iterations
 * of UNROLL_K steps also prefetch, and each computes a row of the previous tile's epilogue, if that waits. */
static void emit_k_iterations(const struct dot *d, const struct tile *t, val from, val to, int steps, val *acc)
{
    struct kernel *k = d->w->k;
    val visit = k_loop(k, LOOP_SERIAL, from, to, 1), carry[2 * MAX_ROWS];
    const int64_t sums = t->rows * sums_of_row(d);
    if (d->symbolic_k)
        ix_bound(k, visit, 0, d->size.k);
    for (int64_t i = 0; i < sums; i++)
        acc[i] = carry[i] = k_carry(k, acc[i]);
    val j = ix_scale(k, visit, steps); /* a multiple of the steps, which index arithmetic uses */
    if (steps == UNROLL_K) {
        prefetch_ahead(d, t, j);
        if (t->waiting)
            emit_waiting(d, t, visit);
    }
    emit_fma_steps(d, t, j, steps, acc);
    for (int64_t i = 0; i < sums; i++)
        k_next(k, carry[i], acc[i]);
    k_end(k, visit);
    for (int64_t i = 0; i < sums; i++)
        acc[i] = k_out(k, carry[i]);
}

/* The products of a contraction whose length is known only when the kernel runs: four at a time, then one by one. */
static void symbolic_products(const struct dot *d, const struct tile *t, val *acc)
{
    struct kernel *k = d->w->k;
    val from = k_int(k, 0);
    for (int steps = UNROLL_K, next; steps; steps = next) {
        next = steps == 1 ? 0 : steps > d->unit ? (int)d->unit : 1; /* four at a time, then pairs if d has them, then
                                                                       single ones */
        val to = ix_div(k, t->length, steps);
        emit_k_iterations(d, t, from, to, steps, acc);
        if (steps == UNROLL_K && t->waiting) { /* the rows that are left after the last iteration */
            val row = k_loop(k, LOOP_SERIAL, to, t->waiting, 1);
            emit_waiting(d, t, row);
            k_end(k, row);
        }
        if (next)
            from = ix_scale(k, to, steps / next);
    }
}

/* Emits one register tile of one k-block. */
static void dot_emit_tile(const struct dot *d, struct tile *t)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val acc[2 * MAX_ROWS], zero = k_bits(k, d->dtype, 0);
    dot_begin_columns(d, t->cols);
    for (int64_t i = 0; i < t->rows * sums_of_row(d); i++)
        acc[i] = k_splat(k, zero);
    bool straight = !d->symbolic_k && !t->waiting && t->kc * t->rows <= MAX_STRAIGHT;
    int64_t whole = d->symbolic_k ? 0 : t->kc / UNROLL_K * UNROLL_K;
    if (d->symbolic_k)
        symbolic_products(d, t, acc);
    for (int64_t j = 0; straight && j < whole; j += UNROLL_K) {
        prefetch_ahead(d, t, k_int(k, j));
        emit_fma_steps(d, t, k_int(k, j), UNROLL_K, acc);
    }
    if (whole && !straight)
        emit_k_iterations(d, t, k_int(k, 0), k_int(k, whole / UNROLL_K), UNROLL_K, acc);
    if (!d->symbolic_k)
        emit_fma_steps(d, t, k_int(k, whole), (int)(t->kc - whole), acc);
    for (int64_t i = 0; i < t->rows && d->even_odd; i++) {
        acc[i] = dot_even_odd_end(k, t->kc, (val[]){acc[i], acc[t->rows + i]});
        if (!d->partial) /* the sum of blocks starts from +0 */
            acc[i] = dot_add_flushed(k, acc[i], zero);
    }
    for (int64_t i = 0; i < t->rows; i++) {
        val m = ix_add(k, t->m0, k_int(k, i));
        if (d->partial) {
            /* Rows of the task by NR columns: the sum of the k-blocks before this one. */
            val at = ix_add(k, ix_scale(k, ix_mod(k, m, d->mblock), d->nr), w->lane);
            val before = k_load(k, d->partial - 1, at, 0);
            val sum = d->even_odd ? dot_add_flushed(k, before, acc[i]) : k_prim(k, P_ADD, before, acc[i], 0);
            if (d->even_odd && !t->last)
                acc[i] = dot_add_flushed(k, acc[i], zero);
            bool known = t->last && !d->symbolic_k; /* this k-block is not the first one */
            acc[i] = known ? sum : k_prim(k, P_SELECT, k_prim(k, P_EQ, t->kb, k_int(k, 0), 0), acc[i], sum);
            if (!t->last)
                k_store(k, d->partial - 1, at, acc[i], 0);
        }
        if (t->last && d->tile) {
            val column = d->when == EPILOGUE_AFTER_ROWS ? ix_add(k, t->n0, w->lane) : w->lane;
            k_store(k, d->tile - 1, ix_add(k, k_int(k, i * d->tile_step), column), acc[i], 0);
        } else if (t->last) {
            dot_epilogue(d, m, ix_add(k, t->n0, w->lane), acc[i]);
        }
    }
    dot_end_columns(d);
    if (t->last && d->tile && d->when != EPILOGUE_AFTER_ROWS && !t->waiting)
        emit_epilogue(d, *t, t->cols);
}

/* Emits the tiles of the last `left` rows, which are fewer than a tile has; for small values of the symbols they are
 * all of the work.  There is a tile of each height up to half of a tile's; more rows are divided evenly among two
 * tiles.  So no tile has a row that does not exist, and the addresses of its rows are at fixed distances. */
static void emit_last_rows(const struct dot *d, struct tile *t, val left)
{
    struct kernel *k = d->w->k;
    int64_t max = d->mr / 2;
    if (!max)
        return;
    ix_assume_range(k, left, 0, d->mr - 1);
    val base = t->m0, zero = k_int(k, 0), one = k_int(k, 1);
    val few = k_prim(k, P_LE, left, k_int(k, max), 0), half = ix_div(k, ix_add(k, left, one), 2);
    val first = k_prim(k, P_SELECT, few, left, half);
    ix_assume_range(k, first, 0, max);
    val second = k_prim(k, P_SUB, left, first, 0);
    val part = k_loop(k, LOOP_SERIAL, zero, k_int(k, 2), 1);
    val height = k_prim(k, P_SELECT, k_prim(k, P_EQ, part, zero, 0), first, second);
    t->m0 = ix_add(k, base, ix_mul(k, part, first));
    for (t->rows = max; t->rows > 0; t->rows--) {
        val open = k_if(k, k_prim(k, P_EQ, height, k_int(k, t->rows), 0));
        dot_emit_tile(d, t);
        k_end(k, open);
    }
    k_end(k, part);
}

/* Emits all row tiles of the task for one k-block. */
static void dot_emit_rows(const struct dot *d, struct tile *t, val first_row, int64_t rows)
{
    struct kernel *k = d->w->k;
    int64_t tiles = rows / d->mr, rest = rows % d->mr;
    t->tiles = tiles + (rest != 0);
    if (d->symbolic_m) {
        val whole = ix_div(k, d->rows_here, d->mr), i = k_loop(k, LOOP_SERIAL, k_int(k, 0), whole, 1);
        t->m0 = ix_add(k, first_row, ix_scale(k, i, d->mr));
        t->rows = d->mr;
        t->number = i;
        dot_emit_tile(d, t);
        k_end(k, i);
        t->number = whole;
        t->m0 = ix_add(k, first_row, ix_scale(k, whole, d->mr));
        emit_last_rows(d, t, k_prim(k, P_SUB, d->rows_here, ix_scale(k, whole, d->mr), 0));
        return;
    }
    if (tiles) {
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, tiles), 1);
        t->m0 = ix_add(k, first_row, ix_scale(k, i, d->mr));
        t->rows = d->mr;
        t->number = i;
        dot_emit_tile(d, t);
        k_end(k, i);
    }
    if (rest) {
        t->m0 = ix_add(k, first_row, k_int(k, tiles * d->mr));
        t->rows = rest;
        t->number = k_int(k, tiles);
        dot_emit_tile(d, t);
    }
}

/* Returns a / b for a >= 0 and b > 0; the result is at most `max`. */
static val emit_quotient(struct kernel *k, val a, val b, int64_t max)
{
    val q = k_prim(k, P_DIV, a, b, 0);
    k->inst[q].kind = INST_INDEX;
    ix_assume_range(k, q, 0, max);
    return q;
}

void dot_symbolic_blocks(const struct dot *d, val *blocks, val *length)
{
    struct kernel *k = d->w->k;
    val all = ix_size(k, d->len.k), one = k_int(k, 1);
    val n = ix_div(k, ix_add(k, all, k_int(k, DOT_BLOCK - 1)), DOT_BLOCK);
    n = k_prim(k, P_SELECT, k_prim(k, P_LT, n, one, 0), one, n);
    ix_assume_range(k, n, 1, d->blocks);
    val even = emit_quotient(k, ix_sub(k, ix_add(k, all, n), one), n, DOT_BLOCK);
    *blocks = n;
    *length = ix_scale(k, ix_div(k, ix_add(k, even, k_int(k, DOT_BLOCK_MULTIPLE - 1)), DOT_BLOCK_MULTIPLE),
                       DOT_BLOCK_MULTIPLE);
}

/* The k-blocks of emit_task if the contraction has a symbol. */
static void emit_symbolic_blocks(const struct dot *d, struct tile *t, val first_row, int64_t rows)
{
    struct kernel *k = d->w->k;
    val all = ix_size(k, d->len.k), zero = k_int(k, 0), n, length;
    t->kb = t->k0 = zero;
    t->length = all;
    if (d->blocks > 1) {
        dot_symbolic_blocks(d, &n, &length);
        val last = ix_sub(k, n, k_int(k, 1)), kb = k_loop(k, LOOP_SERIAL, zero, last, 1);
        t->kb = kb;
        t->k0 = ix_mul(k, kb, length);
        t->length = length;
        if (d->panel)
            dot_pack(d, t->n0, t->cols, t->k0, t->length, DOT_BLOCK);
        dot_emit_rows(d, t, first_row, rows);
        k_end(k, kb);
        t->kb = last;
        t->k0 = ix_mul(k, last, length);
        t->length = k_prim(k, P_SUB, all, t->k0, 0);
        ix_assume_range(k, t->length, 0, DOT_BLOCK);
    }
}

/* Emits the task's k-blocks: all but the last in a loop, then the last one with the epilogue. */
static void emit_task(const struct dot *d, const void *ctx, val first_row, int64_t rows, val n0, int64_t cols)
{
    (void)ctx;
    struct kernel *k = d->w->k;
    struct tile t = {.n0 = n0, .cols = cols, .kc = d->kblock};
    if (d->symbolic_k)
        emit_symbolic_blocks(d, &t, first_row, rows);
    else if (d->blocks > 1) {
        val kb = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->blocks - 1), 1);
        t.kb = kb;
        t.k0 = ix_scale(k, kb, d->kblock);
        if (d->panel)
            dot_pack(d, t.n0, t.cols, t.k0, k_int(k, t.kc), t.kc);
        dot_emit_rows(d, &t, first_row, rows);
        k_end(k, kb);
    }
    t.last = true;
    if (!d->symbolic_k) {
        t.kb = k_int(k, d->blocks - 1);
        t.k0 = k_int(k, (d->blocks - 1) * d->kblock);
        t.kc = d->size.k - (d->blocks - 1) * d->kblock;
    }
    if (d->panel)
        dot_pack(d, t.n0, t.cols, t.k0, d->symbolic_k ? t.length : k_int(k, t.kc), t.kc);
    if (d->when == EPILOGUE_DURING_NEXT && cols == d->nr)
        t.waiting = k_prim(k, P_SELECT, k_prim(k, P_EQ, n0, k_int(k, 0), 0), k_int(k, 0), k_int(k, rows));
    dot_emit_rows(d, &t, first_row, rows);
}

/* Does a task process all tiles of its rows? */
static bool walks_rows(const struct dot *d) { return d->when >= EPILOGUE_AFTER_ROWS || d->whole_rows; }

/* Emits the columns of one task: the tile with this number, or all tiles of a run or of the task's rows. */
static void emit_columns(const struct dot *d, dot_task *task, const void *ctx, val first_row, int64_t rows, val number)
{
    struct kernel *k = d->w->k;
    bool runs = d->run < d->size.n, all = runs || walks_rows(d);
    if (d->symbolic_n && !runs) { /* lanes beyond the last column are masked, so one kind of tile is enough */
        struct dot here = *d;
        val n0 = ix_scale(k, number, d->nr), left = k_prim(k, P_SUB, ix_size(k, d->len.n), n0, 0);
        ix_assume_range(k, left, 1, d->size.n);
        here.columns_here = ix_min(k, left, d->nr);
        task(&here, ctx, first_row, rows, n0, d->nr);
        return;
    }
    int64_t full = d->run / d->nr, rest = d->run % d->nr;
    val start = runs ? ix_scale(k, number, d->run) : k_int(k, 0);
    for (int tail = 0; tail < 2; tail++) {
        if (tail ? !rest : !full)
            continue;
        val open = all ? 0 : open_if(k, full && rest, tail ? P_EQ : P_LT, number, full);
        if (all && !tail)
            open = number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
        val n0 = tail ? k_int(k, full * d->nr) : ix_scale(k, number, d->nr);
        task(d, ctx, first_row, rows, ix_add(k, start, n0), tail ? rest : d->nr);
        if (open)
            k_end(k, open);
        if (!tail && d->when == EPILOGUE_DURING_NEXT)
            emit_epilogue(d, (struct tile){.m0 = first_row, .rows = rows, .n0 = k_int(k, (full - 1) * d->nr)}, d->nr);
    }
}

/* Emits one task: a block of rows and its columns. */
static void dot_emit_block(const struct dot *d, dot_task *task, const void *ctx, val row_block, val columns)
{
    struct kernel *k = d->w->k;
    int64_t full = d->size.m / d->mblock, rest = d->size.m % d->mblock;
    if (d->symbolic_m) {
        val first = ix_scale(k, row_block, d->mblock), left = k_prim(k, P_SUB, ix_size(k, d->len.m), first, 0);
        struct dot here = *d;
        ix_assume_range(k, left, 1, d->size.m);
        here.rows_here = ix_min(k, left, d->mblock);
        emit_columns(&here, task, ctx, first, d->mblock, columns);
        return;
    }
    for (int tail = 0; tail < 2; tail++) {
        if (tail ? !rest : !full)
            continue;
        val in_rows = open_if(k, full && rest, tail ? P_EQ : P_LT, row_block, full);
        val first = tail ? k_int(k, full * d->mblock) : ix_scale(k, row_block, d->mblock);
        emit_columns(d, task, ctx, first, tail ? rest : d->mblock, columns);
        if (d->when == EPILOGUE_AFTER_ROWS)
            emit_epilogue(d, (struct tile){.m0 = first, .rows = tail ? rest : d->mblock, .n0 = k_int(k, 0)}, d->size.n);
        if (in_rows)
            k_end(k, in_rows);
    }
}

/* The number of parts of `each` rows or columns: `most`, or computed from the symbols' values. */
static val parts_of(const struct dot *d, struct size size, int64_t each, int64_t max)
{
    struct kernel *k = d->w->k;
    return !size_is_constant(size) ? ix_div(k, ix_add(k, ix_size(k, size), k_int(k, each - 1)), each) : k_int(k, max);
}

void dot_tasks(struct dot *d, int64_t columns, dot_task *task, const void *ctx)
{
    struct kernel *k = d->w->k;
    int64_t row_blocks = dot_parts(d->size.m, d->mblock);
    bool runs = d->run < d->size.n;
    struct tasks t;
    val rows = parts_of(d, d->len.m, d->mblock, row_blocks);
    val across = parts_of(d, d->len.n, runs ? d->run : d->nr, columns);
    val each = ix_mul(k, rows, across);
    val p = lower_tasks(d->w, d->size.batch * row_blocks * columns,
                        d->symbolic ? ix_mul(k, ix_size(k, d->len.batch), each) : 0, &t), rest = p, column;
    if (k->extent) {
        d->batch_index = d->size.batch == 1 ? k_int(k, 0) : ix_quotient(k, p, each, row_blocks * columns, &rest);
        val row_block = ix_quotient(k, rest, across, columns, &column);
        ix_bound(k, row_block, 0, row_blocks - 1);
        dot_emit_block(d, task, ctx, row_block, column);
    }
    lower_tasks_end(d->w, &t);
}

/* Sets which sizes have symbols.  Returns false if there is no schedule for them. */
static bool take_symbols(struct dot *d)
{
    const struct kernel *k = d->w->k;
    d->len.batch = kernel_length(k, d->size.batch);
    d->len.m = kernel_length(k, d->size.m);
    d->len.n = kernel_length(k, d->size.n);
    d->len.k = kernel_length(k, d->size.k);
    d->symbolic_n = !size_is_constant(d->len.n);
    d->symbolic_m = !size_is_constant(d->len.m);
    d->symbolic_k = !size_is_constant(d->len.k);
    d->symbolic = d->symbolic_m || d->symbolic_n || d->symbolic_k || !size_is_constant(d->len.batch);
    if (d->symbolic_k) { /* upper bounds; emit_symbolic_blocks computes the number of blocks and their length from the
                            symbol's value */
        d->blocks = dot_parts(ix_max(k, d->len.k), DOT_BLOCK);
        d->kblock = d->blocks > 1 ? d->kblock : d->size.k;
    }
    return !d->w->k->err.code;
}

void dot_emit(struct dot *d, const struct schedule *s)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    d->mr = s->dot.mr;
    d->nr = s->dot.nr;
    d->mblock = s->dot.rows;
    d->run = s->dot.run ? s->dot.run : d->size.n;
    d->lanes = s->dot.lanes;
    d->when = (enum sched_epilogue)s->dot.epilogue;
    d->square = s->dot.square;
    d->pack_by = (enum sched_pack)s->dot.pack_by;
    if (d->when != EPILOGUE_IN_TILE) {
        int64_t tiles = d->when == EPILOGUE_AFTER_ROWS ? dot_parts(d->size.n, d->nr) : 1;
        d->tile_step = tiles * d->nr;
        d->tile = 1 + k_buf(k, BUF_SCRATCH, d->dtype, d->mr * d->tile_step, 0);
    } else {
        lower_scalars(w);
    }
    if (s->dot.pack_b)
        d->panel = 1 + k_buf(k, BUF_SCRATCH, d->unit > 1 ? KL_U32 : d->dtype, dot_panel_rows(d) * d->nr, 0);
    if (d->blocks > 1)
        d->partial = 1 + k_buf(k, BUF_SCRATCH, d->dtype, d->mblock * d->nr, 0);
    dot_tasks(d, dot_task_columns(d, s), emit_task, NULL);
}

bool dot_begin(struct dot *to, struct lowering *w, ref r)
{
    const struct node *n = &w->g->node[r];
    struct dot d = {.w = w, .n = n, .dtype = dtype_compute(n->dtype), .a = *node_shape(w->g, n->in[0]),
                    .b = *node_shape(w->g, n->in[1]),
                    .out = w->g->shape[n->shape], .size = dot_sizes(w->g, n), .when = EPILOGUE_IN_TILE};
    d.run = d.size.n;
    struct axes a = axes_of(&d, false), b = axes_of(&d, true);
    d.batch = pick_dot_axes(&d.a, a.batch, n->attr.dot.nbatch);
    d.con = pick_dot_axes(&d.a, a.con, n->attr.dot.ncon);
    d.free_a = pick_dot_axes(&d.a, a.fr, a.nfree);
    d.free_b = pick_dot_axes(&d.b, b.fr, b.nfree);
    d.element = (int64_t)dtype_size(w->g->node[n->in[0]].dtype);
    d.kblock = n->attr.dot.kblock;
    d.even_odd = n->attr.dot.order & DOT_EVEN_ODD;
    d.unit = n->attr.dot.order & DOT_ORDERS ? 2 : 1;
    d.blocks = d.size.k > d.kblock ? (d.size.k + d.kblock - 1) / d.kblock : 1;
    *to = d;
    return take_symbols(to);
}

void lower_dot_group(struct lowering *w)
{
    struct dot d;
    if (!dot_begin(&d, w, w->anchor))
        return;
    dot_find_permute(&d);
    dot_find_columns(&d);
    select_family(w, GROUP_dot, &d, &d);
}
