/* Reductions of rows on a GPU: the lanes of a block read groups of adjacent elements at a fixed stride, and their sums
 * are combined in any order.  Few long rows are summed in parts, then the parts.  Of short rows a block has several,
 * side by side in its lanes, so that each access has 16 bytes and each warp lanes enough.
 *
 * In the order of the graph a thread is as many of its 64 lanes as it has adjacent elements, each with a sum of its
 * own: threads are folded first, from the most distant lanes on, then a thread's own lanes.  Parts are the order's
 * chunks, whose sums are a chain. */
#include "lower_gpu.h"
#include "passes/lower/lower_reduce.h"

static int64_t gpu_row_vector_width(const struct reduce *r)
{
    return reduce_schedule(r)->gpu_row_reduce.vector ? reduce_schedule(r)->gpu_row_reduce.vector : 1;
}

/* Rows of a block, and the lanes of each of them. */
static int64_t block_rows(const struct reduce *r)
{
    return reduce_schedule(r)->gpu_row_reduce.rows ? reduce_schedule(r)->gpu_row_reduce.rows : 1;
}

static int64_t row_lanes(const struct reduce *r) { return r->w->k->sched.width / block_rows(r); }

static bool is_ordered(const struct reduce *r)
{
    return r->w->k->sched.graph_order && dtype_is_float(r->n->dtype);
}

/* Sums that a thread has. */
static int64_t row_sums(const struct reduce *r) { return is_ordered(r) ? gpu_row_vector_width(r) : 1; }

static void start_sums(const struct reduce *r, val *acc)
{
    for (int64_t u = 0; u < row_sums(r); u++)
        acc[u] = k_splat(r->w->k, reduce_identity(r));
}

/* The sum of a row; if a block has several, only the first lane of each row has it. */
static val fold_sums(const struct reduce *r, val *acc)
{
    struct kernel *k = r->w->k;
    int64_t sums = row_sums(r);
    if (block_rows(r) == 1)
        return gpu_fold_lanes(k, r->fold, acc, sums);
    for (int64_t half = row_lanes(r) / 2; half; half /= 2)
        for (int64_t u = 0; u < sums; u++) {
            val far = k_interleave(k, INTERLEAVE_HI, acc[u], acc[u], (uint32_t)half);
            acc[u] = k_fold_step(k, r->fold, acc[u], far);
        }
    return gpu_fold_adjacent(k, r->fold, acc, sums);
}

/* Folds `vectors` vectors of lanes with `each` adjacent elements from element `base` on into acc; only the first `rest`
 * elements of them if rest > 0. */
static void fold_vector(const struct reduce *r, val *acc, val base, int64_t vectors, int64_t rest)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t each = gpu_row_vector_width(r), width = row_lanes(r) * each, sums = row_sums(r);
    for (int64_t v = 0; v < vectors; v++) {
        int64_t left = rest ? rest - v * width : width, n = left % each ? 1 : each; /* elements with one predicate */
        for (int64_t u = 0; u < each && u < left; u += n) {
            val at[REDUCE_VECTOR_WIDTH], x[REDUCE_VECTOR_WIDTH];
            w->pred = left < width ? k_prim(k, P_LT, r->lane, k_int(k, (left - u + each - 1) / each), 0) : 0;
            for (int64_t e = 0; e < n; e++) {
                val place = ix_add(k, ix_scale(k, r->lane, each), k_int(k, v * width + u + e));
                if (w->pred) /* the other lanes read no memory */
                    ix_bound(k, place, 0, rest - 1);
                at[e] = ix_add(k, base, place);
            }
            reduce_row_elements(r, at, (uint32_t)n, x);
            for (int64_t e = 0; e < n; e++) {
                val *sum = &acc[(u + e) % sums], more = k_fold_step(k, r->fold, *sum, x[e]);
                *sum = w->pred ? k_prim(k, P_SELECT, w->pred, more, *sum) : more;
            }
        }
    }
    w->pred = 0;
}

enum { AT_ONCE = 4 };           /* accesses of each array that are in flight at the same time */

/* The same for AT_ONCE vectors, of which only the first `rest` elements exist; `rest` is a multiple of `each`. */
static val fold_rest(const struct reduce *r, val acc, val base, val rest)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t each = gpu_row_vector_width(r);
    for (int64_t v = 0; v < AT_ONCE; v++) {
        val at = ix_add(k, ix_scale(k, r->lane, each), k_int(k, v * k->sched.width * each));
        w->pred = k_prim(k, P_LT, at, rest, 0);
        for (int64_t u = 0; u < each; u++) {
            val x = reduce_element(r, ix_add(k, base, ix_add(k, at, k_int(k, u))));
            acc = k_prim(k, P_SELECT, w->pred, k_fold_step(k, r->fold, acc, x), acc);
        }
    }
    w->pred = 0;
    return acc;
}

/* As fold_part, for a length that depends on symbols. */
static val fold_symbolic_part(const struct reduce *r, val first, val length)
{
    struct kernel *k = r->w->k;
    int64_t step = AT_ONCE * k->sched.width * gpu_row_vector_width(r);
    val full = ix_div(k, length, step), acc = k_splat(k, reduce_identity(r));
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), full, 1), c = k_carry(k, acc);
    val sum = c;
    fold_vector(r, &sum, ix_add(k, first, ix_scale(k, j, step)), AT_ONCE, 0);
    k_next(k, c, sum);
    k_end(k, j);
    val done = ix_scale(k, full, step), rest = k_prim(k, P_SUB, length, done, 0);
    ix_assume_range(k, rest, 0, step - 1);
    return k_lane_reduce(k, r->fold, fold_rest(r, k_out(k, c), ix_add(k, first, done), rest));
}

/* Accumulates elements first .. first + length - 1 of the row in the lanes of the open vector loop, and folds them. */
static val fold_part(const struct reduce *r, val first, int64_t length)
{
    struct kernel *k = r->w->k;
    int64_t each = gpu_row_vector_width(r), width = row_lanes(r) * each, step = AT_ONCE * width;
    val acc[REDUCE_VECTOR_WIDTH], c[REDUCE_VECTOR_WIDTH];
    start_sums(r, acc);
    if (length / step) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, length / step), 1);
        for (int64_t u = 0; u < row_sums(r); u++)
            c[u] = acc[u] = k_carry(k, acc[u]);
        fold_vector(r, acc, ix_add(k, first, ix_scale(k, j, step)), AT_ONCE, 0);
        for (int64_t u = 0; u < row_sums(r); u++)
            k_next(k, c[u], acc[u]);
        k_end(k, j);
        for (int64_t u = 0; u < row_sums(r); u++)
            acc[u] = k_out(k, c[u]);
    }
    int64_t rest = length % step, vectors = rest / width, done = length - rest;
    if (vectors)
        fold_vector(r, acc, ix_add(k, first, k_int(k, done)), vectors, 0);
    done += vectors * width;
    if (done < length)
        fold_vector(r, acc, ix_add(k, first, k_int(k, done)), 1, length - done);
    return fold_sums(r, acc);
}

/* The whole row: in the graph's order its chunks' sums are a chain.  To start it from the identity changes no bit, as
 * no chunk's sum is -0. */
static val fold_row(const struct reduce *r)
{
    struct kernel *k = r->w->k;
    int64_t full = r->len.bound / r->chunk, rest = r->len.bound % r->chunk;
    if (!size_is_constant(r->len))
        return fold_symbolic_part(r, k_int(k, 0), ix_size(k, r->len));
    if (!is_ordered(r) || full + (rest != 0) < 2)
        return fold_part(r, k_int(k, 0), r->len.bound);
    val chunk = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1), total = k_carry(k, reduce_identity(r));
    k_next(k, total, k_fold_step(k, r->fold, total, fold_part(r, ix_scale(k, chunk, r->chunk), r->chunk)));
    k_end(k, chunk);
    val sum = k_out(k, total);
    return rest ? k_fold_step(k, r->fold, sum, fold_part(r, k_int(k, full * r->chunk), rest)) : sum;
}

/* Opens the loop over rows, or over parts of rows: at most `parts`, and `now` for these values of the symbols. */
static void open_gpu_rows(struct reduce *r, int64_t parts, val now, val *part, struct tasks *t)
{
    struct kernel *k = r->w->k;
    struct size rows = kernel_count(k, &r->kept);
    int64_t before = k->extent;
    bool symbolic = !size_is_constant(rows) || (parts > 1 && !size_is_constant(r->len));
    val p = lower_tasks(r->w, rows.bound * parts, symbolic ? ix_mul(k, ix_size(k, rows), now) : 0, t);
    k->extent += before;
    lower_unflatten(k, &r->kept, ix_quotient(k, p, now, parts, part), r->kept_coord);
}

static void open_gpu_lanes(struct reduce *r)
{
    struct kernel *k = r->w->k;
    r->w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    r->lane = block_rows(r) > 1 ? ix_mod(k, r->w->lane, row_lanes(r)) : r->w->lane;
}

static void close_gpu_lanes(struct reduce *r)
{
    k_end(r->w->k, r->w->lane);
    r->w->lane = r->lane = 0;
}

/* A part's sum, to its place among the row's. */
static void emit_gpu_part(struct reduce *r, uint32_t sums, int64_t parts, val part, int64_t length)
{
    struct kernel *k = r->w->k;
    int64_t whole = reduce_schedule(r)->gpu_row_reduce.split;
    val row = lower_flatten(k, &r->kept, r->kept_coord), first = ix_scale(k, part, whole);
    val sum;
    open_gpu_lanes(r);
    if (!size_is_constant(r->len)) {
        val left = k_prim(k, P_SUB, ix_size(k, r->len), first, 0);
        ix_assume_range(k, left, 0, r->len.bound);
        sum = fold_symbolic_part(r, first, ix_min(k, left, length));
    } else {
        ix_bound(k, first, 0, r->len.bound - length);
        sum = fold_part(r, first, length);
    }
    k_store(k, sums, ix_add(k, ix_scale(k, row, parts), part), sum, 0);
    close_gpu_lanes(r);
}

/* The parts' sums as a chain, which every lane computes. */
static val chain_of_parts(const struct reduce *r, uint32_t sums, int64_t parts)
{
    struct kernel *k = r->w->k;
    val first = ix_scale(k, lower_flatten(k, &r->kept, r->kept_coord), parts);
    val part = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, parts), 1), total = k_carry(k, reduce_identity(r));
    k_next(k, total, k_fold_step(k, r->fold, total, k_load(k, sums, ix_add(k, first, part), 0)));
    k_end(k, part);
    return k_out(k, total);
}

/* The sum of the parts' sums, of which there are no more than threads. */
static val sum_of_parts(const struct reduce *r, uint32_t sums, int64_t parts, val now)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    val row = lower_flatten(k, &r->kept, r->kept_coord), start = k_splat(k, reduce_identity(r));
    bool all = parts == k->sched.width && size_is_constant(r->len);
    w->pred = all ? 0 : k_prim(k, P_LT, w->lane, now, 0);
    val x = k_load(k, sums, ix_add(k, ix_scale(k, row, parts), w->lane), w->pred);
    val acc = k_fold_step(k, r->fold, start, x);
    acc = w->pred ? k_prim(k, P_SELECT, w->pred, acc, start) : acc;
    w->pred = 0;
    return k_lane_reduce(k, r->fold, acc);
}

/* Folds each result's sum at index `at` + the result's number into acc, in lanes for which pred is true; 0: in all. */
static void fold_part_sums(const struct reduce *r, uint32_t sums, val at, val pred, val *acc, int64_t each)
{
    struct kernel *k = r->w->k;
    val x[REDUCE_VECTOR_WIDTH];
    for (int64_t n = 0; n < each; n++)
        x[n] = k_load(k, sums, ix_add(k, at, k_int(k, n)), pred);
    for (int64_t n = 0; n < each; n++) {
        val more = k_fold_step(k, r->fold, acc[n], x[n]);
        acc[n] = pred ? k_prim(k, P_SELECT, pred, more, acc[n]) : more;
    }
}

/* Lanes that share the parts of a result: they exchange their sums without memory and barriers. */
static int64_t part_lanes(const struct kernel *k)
{
    enum { WARP = 32 };
    return k->sched.width < WARP ? k->sched.width : WARP;
}

/* The sums of `each` adjacent results from index `first` on: a lane folds every width-th part. */
static void reduce_part_sums(const struct reduce *r, uint32_t sums, int64_t parts, val first, int64_t each, val *acc)
{
    enum { UNROLLED = 16 };         /* loads that are in flight at the same time */
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t width = part_lanes(k), results = shape_count(&r->kept), full = parts / width;
    int64_t looped = full > UNROLLED ? full : 0;
    val carry[REDUCE_VECTOR_WIDTH], at = ix_add(k, first, ix_scale(k, w->lane, results));
    for (int64_t n = 0; n < each; n++)
        acc[n] = k_splat(k, reduce_identity(r));
    if (looped) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, looped), 1);
        for (int64_t n = 0; n < each; n++)
            acc[n] = carry[n] = k_carry(k, acc[n]);
        fold_part_sums(r, sums, ix_add(k, at, ix_scale(k, j, width * results)), 0, acc, each);
        for (int64_t n = 0; n < each; n++)
            k_next(k, carry[n], acc[n]);
        k_end(k, j);
        for (int64_t n = 0; n < each; n++)
            acc[n] = k_out(k, carry[n]);
    }
    for (int64_t v = looped; v * width < parts; v++) {
        val pred = v < full ? 0 : k_prim(k, P_LT, w->lane, k_int(k, parts - v * width), 0);
        fold_part_sums(r, sums, ix_add(k, at, k_int(k, v * width * results)), pred, acc, each);
    }
    for (int64_t n = 0; n < each; n++)
        acc[n] = k_lane_reduce(k, r->fold, acc[n]);
}

void gpu_reduce_parts(struct reduce *r, uint32_t sums, int64_t parts, const struct shape *inner,
                      const struct shape *outer)
{
    enum { ACCESS = 16 };           /* bytes */
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t before = k->extent, columns = shape_count(inner), max = ACCESS / (int64_t)dtype_size(k->buf[sums].dtype);
    if (r->each > max)
        r->each = columns % max ? 0 : (uint32_t)max;
    int64_t each = r->each ? r->each : 1, blocks = columns / each;
    val acc[REDUCE_VECTOR_WIDTH];
    struct tasks t;
    val p = lower_tasks(w, shape_count(outer) * blocks, 0, &t);
    k->extent += before;
    if (blocks) {
        lower_unflatten(k, outer, ix_div(k, p, blocks), r->kept_coord);
        reduce_set_adjacent(r, inner, outer->rank, ix_scale(k, ix_mod(k, p, blocks), each));
        w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, part_lanes(k)), 1);
        reduce_part_sums(r, sums, parts, ix_scale(k, p, each), each, acc);
        reduce_epilogues(r, acc);
        close_gpu_lanes(r);
    }
    lower_tasks_end(w, &t);
}

/* Few long rows, in two phases. */
static void emit_gpu_row_parts(struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t length = reduce_schedule(r)->gpu_row_reduce.split;
    int64_t full = r->len.bound / length, rest = r->len.bound % length, parts = full + (rest != 0);
    bool symbolic = !size_is_constant(r->len);
    uint32_t sums = k_buf(k, BUF_WORKSPACE, dtype_compute(r->n->dtype), parts * shape_count(&r->kept), 0);
    struct tasks t;
    val part, now = symbolic ? reduce_parts(r, length) : k_int(k, parts);
    open_gpu_rows(r, parts, now, &part, &t);
    val in_full = rest && !symbolic ? k_if(k, k_prim(k, P_LT, part, k_int(k, full), 0)) : 0;
    emit_gpu_part(r, sums, parts, part, length);
    if (in_full) {
        k_end(k, in_full);
        val in_rest = k_if(k, k_prim(k, P_EQ, part, k_int(k, full), 0));
        emit_gpu_part(r, sums, parts, k_int(k, full), rest);
        k_end(k, in_rest);
    }
    lower_tasks_end(w, &t);
    lower_next_phase(w);
    now = symbolic ? reduce_parts(r, length) : k_int(k, parts);
    open_gpu_rows(r, 1, k_int(k, 1), &part, &t);
    open_gpu_lanes(r);
    reduce_epilogue(r, is_ordered(r) ? chain_of_parts(r, sums, parts) : sum_of_parts(r, sums, parts, now));
    close_gpu_lanes(r);
    lower_tasks_end(w, &t);
}

/* Short rows: the first lane of each stores its sum. */
static void emit_gpu_short_rows(struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t rows = block_rows(r), lanes = row_lanes(r);
    struct tasks t;
    val block = lower_tasks(w, shape_count(&r->kept) / rows, 0, &t);
    open_gpu_lanes(r);
    val row = ix_add(k, ix_scale(k, block, rows), ix_div(k, w->lane, lanes));
    lower_unflatten(k, &r->kept, row, r->kept_coord);
    val sum = fold_row(r);
    w->pred = lanes > 1 ? k_prim(k, P_EQ, r->lane, k_int(k, 0), 0) : 0;
    reduce_epilogue(r, sum);
    w->pred = 0;
    close_gpu_lanes(r);
    lower_tasks_end(w, &t);
}

void gpu_reduce_rows(struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    struct tasks t;
    val part;
    k->extent = 0;
    if (reduce_schedule(r)->gpu_row_reduce.split) {
        emit_gpu_row_parts(r);
        return;
    }
    if (block_rows(r) > 1) {
        emit_gpu_short_rows(r);
        return;
    }
    open_gpu_rows(r, 1, k_int(k, 1), &part, &t);
    open_gpu_lanes(r);
    reduce_epilogue(r, fold_row(r));
    close_gpu_lanes(r);
    lower_tasks_end(w, &t);
}
