/* Products of a few rows with a matrix that is read once; they are limited by memory.  If the matrix is contiguous
 * along its columns, a lane computes a few adjacent columns for all rows, and a block covers a part of the
 * contraction; a second phase adds the sums of the parts.  If the matrix is contiguous along the contraction, a
 * block computes a few columns, and its lanes divide the contraction among them.
 *
 * A memory's bandwidth is reached only while enough bytes are on their way (Little's law: an H100 needs about 20 KB for
 * each processor).  So a lane issues the loads of several steps before it uses the first one. */
#include "passes/lower/gpu/lower_gpu.h"
#include "passes/lower/dot/lower_dot.h"

/* MAX_COLUMNS: of a block, where vectors are along the contraction.  PARTS_TOGETHER: sums that are loaded together. */
enum { ACCUMULATORS = 64, PARTS_TOGETHER = 16, MAX_COLUMNS = 4 };

struct gpu_skinny {
    struct dot *d;
    bool along_k;
    int64_t each;               /* adjacent elements that a lane loads at once */
    int64_t parts, length;      /* number of parts of the contraction; length of each */
    int64_t together;           /* elements of the contraction whose loads are issued together: divides all parts */
    int64_t columns;            /* of a block, if along_k */
    uint32_t sums;              /* lbuf with dimensions part, batch, row, column */
};

int64_t gpu_skinny_vector_width(const struct dot *d, bool along_k)
{
    enum { ACCESS = 16 };
    int64_t each = ACCESS / d->element, size = along_k ? d->size.k : d->size.n;
    while (each > 1 && (size % each || (!along_k && each * d->size.m > ACCUMULATORS)))
        each /= 2;
    return each;
}

/* The elements of the contraction whose loads a lane issues together: they divide every part, and there are registers
 * for their elements of both operands beside the sums of all rows. */
static int64_t loads_together(const struct gpu_skinny *t)
{
    enum { REGISTERS = 144, BYTES = 4 /* of a register */ };
    int64_t n = GPU_SKINNY_TOGETHER, rows = t->d->size.m, size = t->d->element;
    while (n > 1 && (t->length % n || t->d->size.k % n ||
                     rows * t->each + n * (t->each + rows) * size / BYTES > REGISTERS))
        n /= 2;
    return n;
}

/* Adds the products of `together` elements of the contraction from kk on to the sums of all rows and columns. */
static void add_columns(const struct gpu_skinny *t, val n, val kk, const val *from, val *sum)
{
    const struct dot *d = t->d;
    struct kernel *k = d->w->k;
    int64_t each = t->each;
    val b[2 * ACCUMULATORS], at[ACCUMULATORS];
    for (int64_t i = 0; i < t->together; i++) {
        at[i] = ix_add(k, kk, k_int(k, i));
        ix_bound(k, at[i], 0, d->size.k - 1);
        for (int64_t u = 0; u < each; u++)
            b[i * each + u] = dot_element(d, true, ix_add(k, n, k_int(k, u)), at[i]);
    }
    for (int64_t m = 0; m < d->size.m; m++)
        for (int64_t i = 0; i < t->together; i++) {
            val a = dot_element(d, false, k_int(k, m), at[i]);
            for (int64_t u = 0; u < each; u++)
                sum[m * each + u] = dot_multiply_add(k, a, b[i * each + u], (i ? sum : from)[m * each + u]);
        }
}

/* Sums of products, from contracted index `first` on, for all rows and for the lane's columns from n on. */
static void sum_columns(const struct gpu_skinny *t, val n, val first, val count, val *sum)
{
    const struct dot *d = t->d;
    struct kernel *k = d->w->k;
    val zero = k_splat(k, k_bits(k, d->dtype, 0)), carry[ACCUMULATORS];
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), ix_div(k, count, t->together), 1);
    for (int64_t i = 0; i < d->size.m * t->each; i++)
        carry[i] = k_carry(k, zero);
    val kk = ix_add(k, first, ix_scale(k, j, t->together));
    ix_bound(k, kk, 0, d->size.k - t->together);
    add_columns(t, n, kk, carry, sum);
    for (int64_t i = 0; i < d->size.m * t->each; i++)
        k_next(k, carry[i], sum[i]);
    k_end(k, j);
    for (int64_t i = 0; i < d->size.m * t->each; i++)
        sum[i] = k_out(k, carry[i]);
}

static val sum_index(const struct gpu_skinny *t, val part, val m, val n)
{
    const struct dot *d = t->d;
    struct kernel *k = d->w->k;
    val row = ix_add(k, ix_scale(k, ix_add(k, ix_scale(k, part, d->size.batch), d->batch_index), d->size.m), m);
    return ix_add(k, ix_scale(k, row, d->size.n), n);
}

/* Emits one block of columns for one part of the contraction.  rest > 0: only the first `rest` lanes have columns. */
static void emit_part(const struct gpu_skinny *t, val part, val base, int64_t rest)
{
    const struct dot *d = t->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val sum[ACCUMULATORS], count = k_int(k, t->length), first = ix_scale(k, part, t->length);
    if (d->size.k % t->length) {
        val left = ix_sub(k, k_int(k, d->size.k), first);
        count = k_min(k, left, count);
        ix_bound(k, count, 1, t->length);
    }
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    if (rest) /* the other lanes neither read nor write memory */
        ix_bound(k, w->lane, 0, rest - 1);
    val n = ix_add(k, base, ix_scale(k, w->lane, t->each));
    sum_columns(t, n, first, count, sum);
    for (int64_t m = 0; m < d->size.m; m++)
        for (int64_t u = 0; u < t->each; u++)
            k_store(k, t->sums, sum_index(t, part, k_int(k, m), ix_add(k, n, k_int(k, u))), sum[m * t->each + u],
                    w->pred);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* Emits the loop over blocks of `width` columns for each of `outer` outer indices; the last block may be partial. */
static void each_block(const struct gpu_skinny *t, int64_t outer, int64_t width, int64_t each,
                       void (*emit)(const struct gpu_skinny *t, val number, val base, int64_t rest))
{
    const struct dot *d = t->d;
    struct kernel *k = d->w->k;
    int64_t full = d->size.n / width, tail = d->size.n % width, blocks = full + (tail != 0);
    k->extent += outer * blocks;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, outer * blocks), 1);
    val block = ix_mod(k, p, blocks), number = ix_div(k, p, blocks);
    for (int rest = 0; rest < 2; rest++) {
        if (rest ? !tail : !full)
            continue;
        val c = full && tail ? k_if(k, rest ? k_prim(k, P_EQ, block, k_int(k, full), 0)
                                            : k_prim(k, P_LT, block, k_int(k, full), 0)) : 0;
        val base = rest ? k_int(k, full * width) : ix_scale(k, block, width);
        if (!rest)
            ix_assume_range(k, base, 0, (full - 1) * width);
        emit(t, number, base, rest ? tail / each : 0);
        if (c)
            k_end(k, c);
    }
    k_end(k, p);
}

static void emit_first(const struct gpu_skinny *t, val number, val base, int64_t rest)
{
    struct kernel *k = t->d->w->k;
    t->d->batch_index = ix_div(k, number, t->parts);
    emit_part(t, ix_mod(k, number, t->parts), base, rest);
}

/* Adds the sums of parts `first` to first + n - 1 of element (m, column) in order, all of which are loaded before. */
static val add_parts(const struct gpu_skinny *t, val first, int64_t n, val m, val column, val sum)
{
    struct lowering *w = t->d->w;
    val own[PARTS_TOGETHER];
    for (int64_t i = 0; i < n; i++)
        own[i] = k_load(w->k, t->sums, sum_index(t, ix_add(w->k, first, k_int(w->k, i)), m, column), w->pred);
    for (int64_t i = 0; i < n; i++)
        sum = k_prim(w->k, P_ADD, sum, own[i], 0);
    return sum;
}

static val sum_parts(const struct gpu_skinny *t, val m, val column)
{
    struct kernel *k = t->d->w->k;
    int64_t full = t->parts / PARTS_TOGETHER, rest = t->parts % PARTS_TOGETHER;
    val sum = k_splat(k, dot_sum_start(k, t->d->dtype));
    if (full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1), before = k_carry(k, sum);
        k_next(k, before, add_parts(t, ix_scale(k, j, PARTS_TOGETHER), PARTS_TOGETHER, m, column, before));
        k_end(k, j);
        sum = k_out(k, before);
    }
    return add_parts(t, k_int(k, full * PARTS_TOGETHER), rest, m, column, sum);
}

/* Emits the results of a row and a block of columns: the sums of the parts, added in order. */
static void emit_second(const struct gpu_skinny *t, val number, val base, int64_t rest)
{
    struct dot *d = t->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val m = ix_mod(k, number, d->size.m);
    d->batch_index = ix_div(k, number, d->size.m);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    if (rest)
        ix_bound(k, w->lane, 0, rest - 1);
    val n = ix_add(k, base, w->lane);
    dot_epilogue(d, m, n, sum_parts(t, m, n));
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* ---- vectors along the contraction ---- */

/* The columns of a block: several share what is loaded of the rows, which else takes as many accesses for each column
 * as there are rows.  Not so many that a large GPU has no four blocks for each processor, or lanes more than SUMS
 * sums. */
static int64_t columns_along(const struct dot *d)
{
    enum { SUMS = 32, BLOCKS = 512 };
    int64_t n = d->size.m > 1 ? MAX_COLUMNS : 1;
    while (n > 1 && (d->size.n % n || d->size.m * n > SUMS || d->size.batch * (d->size.n / n) < BLOCKS))
        n /= 2;
    return n;
}

/* Adds the lane's products of the elements of the contraction from `base` on, as many as a load has, to the sums of all
 * rows and of the columns from n on. */
static void add_along(const struct gpu_skinny *t, val n, val base, int64_t rest, const val *from, val *sum)
{
    const struct dot *d = t->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val at = ix_add(k, base, ix_scale(k, w->lane, t->each)), b[ACCUMULATORS], a[ACCUMULATORS];
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    for (int64_t c = 0; c < t->columns; c++)
        for (int64_t u = 0; u < t->each; u++)
            b[c * t->each + u] = dot_element(d, true, ix_add(k, n, k_int(k, c)), ix_add(k, at, k_int(k, u)));
    for (int64_t m = 0; m < d->size.m; m++) {
        for (int64_t u = 0; u < t->each; u++)
            a[u] = dot_element(d, false, k_int(k, m), ix_add(k, at, k_int(k, u)));
        for (int64_t i = m * t->columns, c = 0; c < t->columns; i++, c++) {
            val s = from[i];
            for (int64_t u = 0; u < t->each; u++)
                s = dot_multiply_add(k, a[u], b[c * t->each + u], s);
            sum[i] = w->pred ? k_prim(k, P_SELECT, w->pred, s, from[i]) : s;
        }
    }
    w->pred = 0;
}

static void emit_along(struct gpu_skinny *t)
{
    struct dot *d = t->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width * t->each, full = d->size.k / width, tail = d->size.k % width;
    int64_t blocks = d->size.n / t->columns, sums = d->size.m * t->columns;
    val sum[GPU_FEW_ROWS * MAX_COLUMNS], carry[GPU_FEW_ROWS * MAX_COLUMNS] = {0};
    k->extent = d->size.batch * blocks;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    val n = ix_scale(k, ix_mod(k, p, blocks), t->columns);
    d->batch_index = ix_div(k, p, blocks);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    val zero = k_splat(k, k_bits(k, d->dtype, 0));
    for (int64_t i = 0; i < sums; i++)
        sum[i] = zero;
    if (full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
        for (int64_t i = 0; i < sums; i++)
            carry[i] = k_carry(k, zero);
        add_along(t, n, ix_scale(k, j, width), 0, carry, sum);
        for (int64_t i = 0; i < sums; i++)
            k_next(k, carry[i], sum[i]);
        k_end(k, j);
        for (int64_t i = 0; i < sums; i++)
            sum[i] = k_out(k, carry[i]);
    }
    if (tail)
        add_along(t, n, k_int(k, full * width), tail / t->each, sum, sum);
    for (int64_t i = 0; i < sums; i++)
        dot_epilogue(d, k_int(k, i / t->columns), ix_add(k, n, k_int(k, i % t->columns)),
                     k_lane_reduce(k, FOLD_ADD, sum[i]));
    k_end(k, w->lane);
    k_end(k, p);
    w->lane = 0;
}

void gpu_dot_skinny_emit(struct dot *d, const struct schedule *s)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    struct gpu_skinny t = {.d = d, .along_k = dot_along_k(d, true), .each = s->gpu_dot_skinny.nr,
                         .length = s->gpu_dot_skinny.split};
    lower_scalars(w);
    k->extent = 0;
    if (t.along_k) {
        t.columns = columns_along(d);
        emit_along(&t);
        return;
    }
    t.parts = (d->size.k + t.length - 1) / t.length;
    t.together = loads_together(&t);
    t.sums = k_buf(k, BUF_WORKSPACE, d->dtype, t.parts * d->size.batch * d->size.m * d->size.n, 0);
    each_block(&t, d->size.batch * t.parts, s->width * t.each, t.each, emit_first);
    lower_next_phase(w);
    each_block(&t, d->size.batch * d->size.m, s->width, 1, emit_second);
}
