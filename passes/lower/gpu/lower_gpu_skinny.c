/* Products of a few rows with a matrix that is read once; they are limited by memory.  If the matrix is contiguous
 * along its columns, a lane computes a few adjacent columns for all rows, and a block covers a part of the
 * contraction; a second phase adds the sums of the parts.  If the matrix is contiguous along the contraction, a
 * block computes one column, and its lanes divide the contraction among them. */
#include "passes/lower/gpu/lower_gpu.h"
#include "passes/lower/dot/lower_dot.h"

enum { ACCUMULATORS = 64 };

struct gpu_skinny {
    struct dot *d;
    bool along_k;
    int64_t each;               /* adjacent elements that a lane loads at once */
    int64_t parts, length;      /* number of parts of the contraction; length of each */
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

/* Sums of products, from contracted index `first` on, for all rows and for the lane's columns from n on. */
static void sum_columns(const struct gpu_skinny *t, val n, val first, val count, int64_t each, val *sum)
{
    const struct dot *d = t->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val zero = k_splat(k, k_bits(k, d->dtype, 0)), carry[ACCUMULATORS], b[ACCUMULATORS];
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1);
    for (int64_t i = 0; i < d->size.m * each; i++)
        carry[i] = k_carry(k, zero);
    val kk = ix_add(k, first, j);
    ix_bound(k, kk, 0, d->size.k - 1);
    for (int64_t u = 0; u < each; u++)
        b[u] = dot_element(d, true, ix_add(k, n, k_int(k, u)), kk);
    for (int64_t m = 0; m < d->size.m; m++) {
        val a = dot_element(d, false, k_int(k, m), kk);
        for (int64_t u = 0; u < each; u++)
            sum[m * each + u] = dot_multiply_add(k, a, b[u], carry[m * each + u]);
    }
    for (int64_t i = 0; i < d->size.m * each; i++)
        k_next(k, carry[i], sum[i]);
    k_end(k, j);
    for (int64_t i = 0; i < d->size.m * each; i++)
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
        count = k_prim(k, P_SELECT, k_prim(k, P_LT, left, count, 0), left, count);
        ix_bound(k, count, 1, t->length);
    }
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    if (rest) /* the other lanes neither read nor write memory */
        ix_bound(k, w->lane, 0, rest - 1);
    val n = ix_add(k, base, ix_scale(k, w->lane, t->each));
    sum_columns(t, n, first, count, t->each, sum);
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
    val n = ix_add(k, base, w->lane), zero = k_splat(k, k_bits(k, d->dtype, 0));
    val part = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, t->parts), 1), sum = k_carry(k, zero);
    k_next(k, sum, k_prim(k, P_ADD, sum, k_load(k, t->sums, sum_index(t, part, m, n), w->pred), 0));
    k_end(k, part);
    dot_epilogue(d, m, n, k_out(k, sum));
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* ---- vectors along the contraction ---- */

/* Adds the lane's products of the elements of the contraction from `base` on, as many as a load has. */
static void add_along(const struct gpu_skinny *t, val n, val base, int64_t rest, const val *from, val *sum)
{
    const struct dot *d = t->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val at = ix_add(k, base, ix_scale(k, w->lane, t->each)), b[ACCUMULATORS];
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    for (int64_t u = 0; u < t->each; u++)
        b[u] = dot_element(d, true, n, ix_add(k, at, k_int(k, u)));
    for (int64_t m = 0; m < d->size.m; m++) {
        val s = from[m];
        for (int64_t u = 0; u < t->each; u++)
            s = dot_multiply_add(k, dot_element(d, false, k_int(k, m), ix_add(k, at, k_int(k, u))), b[u], s);
        sum[m] = w->pred ? k_prim(k, P_SELECT, w->pred, s, from[m]) : s;
    }
    w->pred = 0;
}

static void emit_along(struct gpu_skinny *t)
{
    struct dot *d = t->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width * t->each, full = d->size.k / width, tail = d->size.k % width;
    val sum[GPU_FEW_ROWS], carry[GPU_FEW_ROWS];
    k->extent = d->size.batch * d->size.n;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1), n = ix_mod(k, p, d->size.n);
    d->batch_index = ix_div(k, p, d->size.n);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    val zero = k_splat(k, k_bits(k, d->dtype, 0));
    for (int64_t m = 0; m < d->size.m; m++)
        sum[m] = zero;
    if (full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
        for (int64_t m = 0; m < d->size.m; m++)
            carry[m] = k_carry(k, zero);
        add_along(t, n, ix_scale(k, j, width), 0, carry, sum);
        for (int64_t m = 0; m < d->size.m; m++)
            k_next(k, carry[m], sum[m]);
        k_end(k, j);
        for (int64_t m = 0; m < d->size.m; m++)
            sum[m] = k_out(k, carry[m]);
    }
    if (tail)
        add_along(t, n, k_int(k, full * width), tail / t->each, sum, sum);
    for (int64_t m = 0; m < d->size.m; m++)
        dot_epilogue(d, k_int(k, m), n, k_lane_reduce(k, FOLD_ADD, sum[m]));
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
        emit_along(&t);
        return;
    }
    t.parts = (d->size.k + t.length - 1) / t.length;
    t.sums = k_buf(k, BUF_WORKSPACE, d->dtype, t.parts * d->size.batch * d->size.m * d->size.n, 0);
    each_block(&t, d->size.batch * t.parts, s->width * t.each, t.each, emit_first);
    lower_next_phase(w);
    each_block(&t, d->size.batch * d->size.m, s->width, 1, emit_second);
}
