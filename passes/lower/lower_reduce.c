/* Lowers groups around a reduce, in the order that pass numerics has written (node.h, "Numeric order").
 *
 * lanes 64: the innermost axis is reduced.  A parallel iteration computes one result; the 64 numeric lanes are the
 *   lanes of one vector loop, folded once for each chunk.  Where rows are short and much is computed from each
 *   result, an iteration reduces a block of rows into scratch and computes the epilogue of all of them in a second
 *   vector loop, whose lanes are the rows.  Rows of a few elements (lower_short_rows) are lanes themselves: each
 *   numeric lane is a vector, and these vectors are folded.
 * lanes 1: the innermost axis is kept.  The lanes of the vector loop are neighbouring results, each of which is
 *   summed in ascending order; iterations of the parallel loop are blocks of results.  On a GPU a lane
 *   may sum several adjacent columns, so that an access is up to 16 bytes wide.  Where rows lie pages apart, a
 *   processor's block is several vectors (lower_reduce_wide.c). */
#include "lower_reduce.h"
#include <string.h>

enum { SHORT_ROW = 6, LANES_OF_SHORT_ROW = 8, FEW_ROWS = 64 }; /* most elements of a row that is a lane; least rows */
enum { LONG_COLUMN = 64 }; /* least number of elements for which the reduction takes longer than the epilogue */

static int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* The number of cache lines that are prefetched for each row. */
static uint32_t lines_of(const struct reduce *r)
{
    return reduce_schedule(r)->kind == SCHED_COLUMN_REDUCE ? reduce_schedule(r)->column_reduce.lines : 0;
}
/* Are the lanes of the vector loop rows, not elements of one? */
static bool lanes_are_rows(const struct reduce *r)
{
    return reduce_schedule(r)->kind == SCHED_COLUMN_REDUCE && reduce_schedule(r)->column_reduce.short_rows;
}

void reduce_operand_coord(const struct reduce *r, val i, const val *kept, val *coord)
{
    val red[KL_MAX_RANK];
    uint32_t nred = 0, nkept = 0;
    lower_unflatten(r->w->k, &r->red, i, red);
    for (uint32_t d = 0; d < r->in.rank; d++)
        coord[d] = r->n->attr.reduce.axes >> d & 1 ? red[nred++] : kept[nkept++];
}

val reduce_element(const struct reduce *r, val i)
{
    struct lowering *w = r->w;
    val coord[KL_MAX_RANK] = {0};
    reduce_operand_coord(r, i, r->kept_coord, coord);
    lower_point(w);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]] && lower_in_prologue(w, w->member[m]))
            lower_store(w, w->member[m], &r->in, coord);
    return k_cast(w->k, lower_at(w, r->n->in[0], coord), dtype_compute(r->n->dtype));
}

val reduce_identity(const struct reduce *r)
{
    unsigned dtype = dtype_compute(r->n->dtype);
    return k_bits(r->w->k, dtype, fold_identity(r->fold, dtype));
}

val reduce_parts(const struct reduce *r, int64_t length)
{
    struct kernel *k = r->w->k;
    return ix_div(k, ix_add(k, ix_size(k, r->len), k_int(k, length - 1)), length);
}

/* Prefetches what elements i .. i + count - 1 are computed from, or those themselves. */
static void fetch_elements(const struct reduce *r, val i, int64_t count)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    bool linear, computed = lower_is_member(w, node_operand(w->g, w->anchor, 0, &linear));
    int64_t line = LINE_BYTES / (int64_t)dtype_size(w->g->node[r->n->in[0]].dtype);
    for (int64_t first = 0; first < count; first += line) {
        val coord[KL_MAX_RANK] = {0};
        reduce_operand_coord(r, ix_add(k, i, k_int(k, first)), r->kept_coord, coord);
        lower_point(w);
        if (computed) {
            lower_prefetch(w, &r->in, coord, first);
            continue;
        }
        val before = k->ninst;
        lower_prefetch_load(w, lower_at(w, r->n->in[0], coord), before);
    }
}

/* As lane_chunk, for a number of elements that is known only when the kernel runs: whole vectors, then a last one,
 * which may have no element. */
static val symbolic_lanes(const struct reduce *r, val base, val count)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width;
    val full = ix_div(k, count, width), rest = k_prim(k, P_SUB, count, ix_scale(k, full, width), 0);
    val acc = k_splat(k, reduce_identity(r)), j = k_loop(k, LOOP_SERIAL, k_int(k, 0), full, 1), c = k_carry(k, acc);
    val x = reduce_element(r, ix_add(k, ix_add(k, base, ix_scale(k, j, width)), w->lane));
    k_next(k, c, k_fold_step(k, r->fold, c, x));
    k_end(k, j);
    acc = k_out(k, c);
    w->pred = k_prim(k, P_LT, w->lane, rest, 0);
    x = reduce_element(r, ix_add(k, base, ix_add(k, ix_scale(k, full, width), w->lane)));
    acc = k_prim(k, P_SELECT, w->pred, k_fold_step(k, r->fold, acc, x), acc);
    w->pred = 0;
    return k_lane_reduce(k, r->fold, acc);
}

enum { GPU_AT_ONCE = 4 };       /* vectors of a GPU that are loaded before one is used */

/* Folds n vectors of elements from `base` on. */
static val fold_vectors(const struct reduce *r, val acc, val base, int64_t n)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    val x[GPU_AT_ONCE];
    for (int64_t v = 0; v < n; v++)
        x[v] = reduce_element(r, ix_add(k, v ? ix_add(k, base, k_int(k, v * k->sched.width)) : base, w->lane));
    for (int64_t v = 0; v < n; v++)
        acc = k_fold_step(k, r->fold, acc, x[v]);
    return acc;
}

/* Accumulates a chunk of `count` elements from `base` in the lanes of the open vector loop, and folds the lanes. */
static val lane_chunk(const struct reduce *r, val base, int64_t count)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width, tail = count % width, each = w->gpu ? GPU_AT_ONCE : 1, step = each * width;
    val acc = k_splat(k, reduce_identity(r));
    if (count / step) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, count / step), 1);
        val c = k_carry(k, acc);
        int64_t ahead = reduce_schedule(r)->kind == SCHED_ROW_REDUCE ? reduce_schedule(r)->row_reduce.ahead : 0;
        if (ahead)
            fetch_elements(r, ix_add(k, ix_add(k, base, ix_scale(k, j, step)), k_int(k, ahead)), width);
        k_next(k, c, fold_vectors(r, c, ix_add(k, base, ix_scale(k, j, step)), each));
        k_end(k, j);
        acc = k_out(k, c);
    }
    if (count % step / width)
        acc = fold_vectors(r, acc, ix_add(k, base, k_int(k, count / step * step)), count % step / width);
    if (tail) {
        val place = ix_add(k, w->lane, k_int(k, count - tail));
        w->pred = k_prim(k, P_LT, w->lane, k_int(k, tail), 0);
        if (place != w->lane) /* the other lanes read no memory */
            ix_assume_range(k, place, count - tail, count - 1);
        else if (r->len.bound % r->chunk == 0)
            ix_bound(k, place, 0, tail - 1);
        val x = reduce_element(r, ix_add(k, base, place));
        acc = k_prim(k, P_SELECT, w->pred, k_fold_step(k, r->fold, acc, x), acc);
        w->pred = 0;
    }
    return k_lane_reduce(k, r->fold, acc);
}

/* Prefetches the operands of element i, some rows ahead. */
static void fetch_lines(const struct reduce *r, val i)
{
    for (uint32_t l = 0; l < lines_of(r); l++) {
        val coord[KL_MAX_RANK] = {0};
        reduce_operand_coord(r, i, r->line_coord[l], coord);
        lower_prefetch(r->w, &r->in, coord, (int64_t)l * r->w->k->sched.width / lines_of(r));
    }
}

/* Opens a loop that folds `count` values of each adjacent column, and carries their sums; returns its variable. */
static val begin_folds(const struct reduce *r, val count, val *carry)
{
    struct kernel *k = r->w->k;
    val start = k_splat(k, reduce_identity(r)), j = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1);
    for (uint32_t n = 0; n < reduce_vector_width(r); n++)
        carry[n] = k_carry(k, start);
    return j;
}

/* Closes the loop, which folds x. */
static void end_folds(const struct reduce *r, val loop, const val *carry, const val *x, val *sum)
{
    struct kernel *k = r->w->k;
    for (uint32_t n = 0; n < reduce_vector_width(r); n++)
        sum[n] = k_fold_step(k, r->fold, carry[n], x[n]);
    for (uint32_t n = 0; n < reduce_vector_width(r); n++)
        k_next(k, carry[n], sum[n]);
    k_end(k, loop);
    for (uint32_t n = 0; n < reduce_vector_width(r); n++)
        sum[n] = k_out(k, carry[n]);
}

/* Sums one chunk in ascending order in each lane, for each adjacent column. */
static void chain_chunks(const struct reduce *r, val base, val count, val *sum)
{
    struct kernel *k = r->w->k;
    val c[REDUCE_VECTOR_WIDTH], x[REDUCE_VECTOR_WIDTH], j = begin_folds(r, count, c);
    if (lines_of(r))
        fetch_lines(r, ix_add(k, base, ix_add(k, j, k_int(k, reduce_schedule(r)->column_reduce.ahead))));
    reduce_vector_elements(r, ix_add(k, base, j), x);
    end_folds(r, j, c, x, sum);
}

static val chain_chunk(const struct reduce *r, val base, val count)
{
    val sum[REDUCE_VECTOR_WIDTH];
    chain_chunks(r, base, count, sum);
    return sum[0];
}

/* Reduces a short row in each lane: its elements are the first numeric lanes; the others hold the identity. */
static val short_row(const struct reduce *r)
{
    struct kernel *k = r->w->k;
    val lane[LANES_OF_SHORT_ROW], none = k_splat(k, reduce_identity(r));
    int64_t n = 1;
    while (n < r->len.bound)
        n *= 2;
    for (int64_t i = 0; i < n; i++)
        lane[i] = i < r->len.bound ? k_fold_step(k, r->fold, none, reduce_element(r, k_int(k, i))) : none;
    for (int64_t half = n / 2; half; half /= 2)
        for (int64_t i = 0; i < half; i++)
            lane[i] = k_fold_step(k, r->fold, lane[i], lane[i + half]);
    return lane[0];
}

static val one_chunk(const struct reduce *r, val base, int64_t count)
{
    return lanes_are_rows(r) ? short_row(r)
        : r->n->attr.reduce.lanes == 64 ? lane_chunk(r, base, count)
        : chain_chunk(r, base, k_int(r->w->k, count));
}

/* As all_chunks, for a length with symbols: chunks of equal length, then a shorter one if elements are left. */
static val symbolic_chunks(const struct reduce *r)
{
    struct kernel *k = r->w->k;
    bool lanes = r->n->attr.reduce.lanes == 64;
    val len = ix_size(k, r->len);
    if (r->len.bound <= r->chunk || ix_max(k, r->len) <= r->chunk)
        return lanes ? symbolic_lanes(r, k_int(k, 0), len) : chain_chunk(r, k_int(k, 0), len);
    if (!size_is_constant(kernel_length(k, (int64_t)r->n->attr.reduce.chunk))) {
        kernel_mark_unsupported(k, "a reduction's chunk may be a multiple of what a symbol says");
        return 0;
    }
    val full = ix_div(k, len, r->chunk), rest = k_prim(k, P_SUB, len, ix_scale(k, full, r->chunk), 0);
    ix_assume_range(k, rest, 0, r->chunk - 1);
    val init = lanes ? reduce_identity(r) : k_splat(k, reduce_identity(r));
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), full, 1), total = k_carry(k, init);
    k_next(k, total, k_fold_step(k, r->fold, total, one_chunk(r, ix_scale(k, c, r->chunk), r->chunk)));
    k_end(k, c);
    val any = k_prim(k, P_SELECT, k_prim(k, P_LT, k_int(k, 0), rest, 0), k_int(k, 1), k_int(k, 0));
    val sum = k_out(k, total), last = k_loop(k, LOOP_SERIAL, k_int(k, 0), any, 1), end = k_carry(k, sum);
    val base = ix_scale(k, full, r->chunk);
    val x = lanes ? symbolic_lanes(r, base, rest) : chain_chunk(r, base, rest);
    k_next(k, end, k_fold_step(k, r->fold, end, x));
    k_end(k, last);
    return k_out(k, end);
}

/* Reduces all chunks of the current result.  To start from the identity gives the same bits as to start from the
 * first chunk: a chunk's result is never -0, because its lanes start from +0. */
static val all_chunks(const struct reduce *r)
{
    struct kernel *k = r->w->k;
    int64_t full = r->len.bound / r->chunk, rest = r->len.bound % r->chunk;
    if (!size_is_constant(r->len))
        return symbolic_chunks(r);
    if (r->len.bound <= r->chunk)
        return one_chunk(r, k_int(k, 0), r->len.bound);
    bool lanes = r->n->attr.reduce.lanes == 64;
    val init = lanes ? reduce_identity(r) : k_splat(k, reduce_identity(r));
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
    val total = k_carry(k, init);
    k_next(k, total, k_fold_step(k, r->fold, total, one_chunk(r, ix_scale(k, c, r->chunk), r->chunk)));
    k_end(k, c);
    val sum = k_out(k, total);
    return rest ? k_fold_step(k, r->fold, sum, one_chunk(r, k_int(k, full * r->chunk), rest)) : sum;
}

/* As all_chunks, for the lane's adjacent columns. */
static void adjacent_chunks(const struct reduce *r, val *sum)
{
    struct kernel *k = r->w->k;
    int64_t full = r->len.bound / r->chunk, rest = r->len.bound % r->chunk;
    val total[REDUCE_VECTOR_WIDTH], part[REDUCE_VECTOR_WIDTH];
    if (!r->each) {
        sum[0] = all_chunks(r);
        return;
    }
    if (r->len.bound <= r->chunk) {
        chain_chunks(r, k_int(k, 0), k_int(k, r->len.bound), sum);
        return;
    }
    val c = begin_folds(r, k_int(k, full), total);
    chain_chunks(r, ix_scale(k, c, r->chunk), k_int(k, r->chunk), part);
    end_folds(r, c, total, part, sum);
    if (rest)
        chain_chunks(r, k_int(k, full * r->chunk), k_int(k, rest), part);
    for (uint32_t n = 0; rest && n < r->each; n++)
        sum[n] = k_fold_step(k, r->fold, sum[n], part[n]);
}

/* Finds how many of the last f->max kept axes every access steps over as over one, and the cost of the epilogue for
 * each result, in a kernel that is discarded. */
static void find_merged(const struct reduce *r, struct reduce_facts *f)
{
    struct trial t;
    f->merged = f->max;
    f->merged_length = 1;
    if (trial_begin(&t, r->w)) {
        struct reduce copy = *r;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        lower_scalars(&t.w);
        for (uint32_t d = 0; d < r->kept.rank; d++)
            copy.kept_coord[d] = r->kept.dim[d] == 1 ? k_int(k, 0)
                : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, r->kept.dim[d]), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, r->len.bound), 1), inner = 0;
        val x = reduce_element(&copy, i);
        uint32_t before = k->ninst;
        reduce_epilogue(&copy, x);
        for (val v = before; v < k->ninst; v++)
            f->work += k->inst[v].op >= L_PRIM && k->inst[v].kind != INST_INDEX;
        struct size inner_size = size_constant(1);
        for (f->merged = 0; f->merged < f->max; f->merged++) {
            uint32_t d = r->kept.rank - 1 - f->merged;
            if (r->kept.dim[d] == 1)
                continue;
            if (inner && !lower_can_merge(k, copy.kept_coord[d], inner, inner_size))
                break;
            inner = copy.kept_coord[d];
            inner_size = kernel_length(k, r->kept.dim[d]);
            f->merged_length *= inner_size.bound;
        }
    }
    trial_end(&t, r->w);
}

/* Splits the kept axes into the last `merged` ones and those before them. */
static void split_kept(const struct reduce *r, uint32_t merged, struct shape *inner, struct shape *outer)
{
    for (uint32_t d = 0; d < r->kept.rank; d++) {
        struct shape *to = d + merged >= r->kept.rank ? inner : outer;
        to->dim[to->rank++] = r->kept.dim[d];
    }
}

/* ---- rows ---- */

/* Reduces the current row; the vector loop around it is left open. */
static val reduce_row(const struct reduce *r)
{
    struct kernel *k = r->w->k;
    r->w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    return all_chunks(r);
}

static void end_row(const struct reduce *r)
{
    k_end(r->w->k, r->w->lane);
    r->w->lane = 0;
}

struct row_block {
    int64_t lanes, vectors;     /* of the epilogue's loops: a block has lanes * vectors rows */
    struct shape inner, outer;  /* the kept axes: blocks divide the inner ones */
    uint32_t results;           /* lbuf: what the block's rows are reduced to */
};

/* Computes the epilogue of rows row .. row + lanes - 1, or of the first `rest` of them if rest > 0; the first is row
 * `first` of the block. */
static void vector_epilogue(struct reduce *r, const struct row_block *b, val row, val first, int64_t rest)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, b->lanes), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    lower_unflatten(k, &b->inner, ix_add(k, row, w->lane), r->kept_coord + b->outer.rank);
    reduce_epilogue(r, k_load(k, b->results, ix_add(k, first, w->lane), w->pred));
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* in_full ? a : b, which lies between lo and hi; in_full 0: always a. */
static val select_step(struct kernel *k, val in_full, int64_t a, int64_t b)
{
    if (!in_full)
        return k_int(k, a);
    val v = k_prim(k, P_SELECT, in_full, k_int(k, a), k_int(k, b));
    ix_bound(k, v, a < b ? a : b, a < b ? b : a);
    return v;
}

static void emit_row_blocks(struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    const struct schedule *s = reduce_schedule(r);
    struct row_block block_of = {.lanes = s->row_reduce.lanes, .vectors = s->row_reduce.vectors}, *b = &block_of;
    split_kept(r, s->row_reduce.axes, &b->inner, &b->outer);
    int64_t n = shape_count(&b->inner), rows = b->lanes * b->vectors, full = n / rows, last = n % rows;
    int64_t blocks = full + (last != 0), tail = last % b->lanes;
    b->results = k_buf(k, BUF_SCRATCH, dtype_compute(r->n->dtype), rows, 0);
    k->extent = shape_count(&b->outer) * blocks;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    lower_unflatten(k, &b->outer, ix_div(k, p, blocks), r->kept_coord);
    val block = ix_mod(k, p, blocks), base = ix_scale(k, block, rows);
    val in_full = full && last ? k_prim(k, P_LT, block, k_int(k, full), 0) : 0;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), select_step(k, in_full, full ? rows : last, last), 1);
    lower_unflatten(k, &b->inner, ix_add(k, base, i), r->kept_coord + b->outer.rank);
    k_store(k, b->results, i, reduce_row(r), 0);
    end_row(r);
    k_end(k, i);
    if (n >= b->lanes) {
        int64_t vectors = full ? b->vectors : last / b->lanes;
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), select_step(k, in_full, vectors, last / b->lanes), 1);
        val first = ix_scale(k, j, b->lanes);
        vector_epilogue(r, b, ix_add(k, base, first), first, 0);
        k_end(k, j);
    }
    if (tail) {
        val branch = full ? k_if(k, k_prim(k, P_EQ, block, k_int(k, full), 0)) : 0;
        vector_epilogue(r, b, k_int(k, n - tail), k_int(k, last - tail), tail);
        if (branch)
            k_end(k, branch);
    }
    k_end(k, p);
}

static void emit_lanes(struct reduce *r)
{
    struct kernel *k = r->w->k;
    if (reduce_schedule(r)->row_reduce.lanes) {
        emit_row_blocks(r);
        return;
    }
    struct tasks t;
    val p = lower_tasks(r->w, shape_count(&r->kept), ix_size(k, kernel_count(k, &r->kept)), &t);
    lower_unflatten(k, &r->kept, p, r->kept_coord);
    reduce_epilogue(r, reduce_row(r));
    end_row(r);
    lower_tasks_end(r->w, &t);
}

/* ---- columns ---- */

/* On a GPU, columns that are too few for its processors are summed in two phases: `parts` sums of each column, then
 * the sum of these.  Many parts are summed by a block for each of the columns that one access has: one thread would
 * wait for memory once for every few of them. */
struct split_columns { int64_t parts, length; uint32_t sums; val part; bool second; };
enum { MANY_PARTS = 32 };
/* So many columns have threads enough for their sums, if each takes several columns by one access. */
enum { MANY_SUMS = 8192 };

/* Sums one part of each adjacent column, or the sums of all parts. */
static void split_sum(const struct reduce *r, const struct split_columns *c, const val *column, int64_t columns,
                      val *sum)
{
    struct kernel *k = r->w->k;
    bool symbolic = !size_is_constant(r->len);
    val first = k_int(k, 0), n = symbolic ? reduce_parts(r, c->length) : k_int(k, c->parts);
    val acc[REDUCE_VECTOR_WIDTH], x[REDUCE_VECTOR_WIDTH];
    if (!c->second) {
        first = ix_scale(k, c->part, c->length);
        n = k_int(k, c->length);
        if (symbolic) {
            val left = k_prim(k, P_SUB, ix_size(k, r->len), first, 0);
            ix_assume_range(k, left, 0, r->len.bound);
            n = ix_min(k, left, c->length);
        } else if (r->len.bound % c->length) {
            val left = ix_sub(k, k_int(k, r->len.bound), first);
            n = k_min(k, left, n);
            ix_bound(k, n, 1, c->length);
        }
    }
    val j = begin_folds(r, n, acc), at = ix_add(k, first, j);
    ix_bound(k, at, 0, (c->second ? c->parts : r->len.bound) - 1);
    if (!c->second)
        reduce_vector_elements(r, at, x);
    for (uint32_t e = 0; c->second && e < reduce_vector_width(r); e++)
        x[e] = k_load(k, c->sums, ix_add(k, ix_scale(k, at, columns), column[e]), r->w->pred);
    end_folds(r, j, acc, x, sum);
}

/* Reduces and stores the columns of the open lane, or a part of them. */
static void emit_lane(const struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    const struct split_columns *c = r->split;
    int64_t columns = shape_count(&r->kept);
    val sum[REDUCE_VECTOR_WIDTH], column[REDUCE_VECTOR_WIDTH];
    if (!c) {
        adjacent_chunks(r, sum);
    } else {
        for (uint32_t n = 0; n < reduce_vector_width(r); n++) {
            struct reduce own = reduce_at_vector_element(r, n);
            column[n] = lower_flatten(k, &r->kept, own.kept_coord);
        }
        split_sum(r, c, column, columns, sum);
    }
    for (uint32_t n = 0; c && !c->second && n < reduce_vector_width(r); n++)
        k_store(k, c->sums, ix_add(k, ix_scale(k, c->part, columns), column[n]), sum[n], w->pred);
    if (!c || c->second)
        reduce_epilogues(r, sum);
}

/* Computes the results of W lanes from `base` on; only those of the first `rest` lanes if rest is not 0. */
static void lower_reduce_emit_block(struct reduce *r, const struct shape *inner, val base, val rest, uint32_t nouter)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
    int64_t number;
    w->pred = rest ? k_prim(k, P_LT, w->lane, rest, 0) : 0;
    if (rest && ix_const(k, rest, &number)) /* no other lane reads or writes memory */
        ix_bound(k, w->lane, 0, number - 1);
    reduce_set_adjacent(r, inner, nouter, ix_add(k, base, ix_scale(k, w->lane, reduce_vector_width(r))));
    for (uint32_t l = 0; l < lines_of(r); l++) {
        val at = ix_add(k, base, k_int(k, (int64_t)l * width / lines_of(r)));
        memcpy(r->line_coord[l], r->kept_coord, nouter * sizeof(val));
        lower_unflatten(k, inner, at, r->line_coord[l] + nouter);
    }
    emit_lane(r);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* As emit_column_blocks, for a number of columns with symbols. */
static void emit_symbolic_columns(struct reduce *r, const struct shape *inner, const struct shape *outer)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    struct size n = kernel_count(k, inner);
    int64_t width = k->sched.width, max = (n.bound + width - 1) / width;
    val columns = ix_size(k, n), blocks = ix_div(k, ix_add(k, columns, k_int(k, width - 1)), width), block;
    struct tasks t;
    val p = lower_tasks(w, shape_count(outer) * max, ix_mul(k, ix_size(k, kernel_count(k, outer)), blocks), &t);
    if (k->extent) {
        lower_unflatten(k, outer, ix_quotient(k, p, blocks, max, &block), r->kept_coord);
        val base = ix_scale(k, block, width), left = k_prim(k, P_SUB, columns, base, 0);
        ix_assume_range(k, left, 0, n.bound);
        for (int tail = 0; tail < (size_divides(n, width) ? 1 : 2); tail++) {
            val open = k_if(k, tail ? k_prim(k, P_LT, left, k_int(k, width), 0)
                                    : k_prim(k, P_LE, k_int(k, width), left, 0));
            lower_reduce_emit_block(r, inner, base, tail ? left : 0, outer->rank);
            k_end(k, open);
        }
    }
    lower_tasks_end(w, &t);
}

/* Emits the parallel loop: blocks of columns, for each part if columns are split. */
static void emit_column_blocks(struct reduce *r, const struct shape *inner, const struct shape *outer)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t n = shape_count(inner), width = k->sched.width * reduce_vector_width(r), full = n / width, tail = n % width;
    int64_t blocks = full + (tail != 0), parts = r->split && !r->split->second ? r->split->parts : 1;
    int64_t extent = shape_count(outer) * blocks * parts;
    int64_t before = k->extent;
    struct tasks t;
    bool symbolic_parts = parts > 1 && !size_is_constant(r->len);
    val now = symbolic_parts ? reduce_parts(r, r->split->length) : k_int(k, parts);
    val active = !size_is_constant(kernel_count(k, outer)) || symbolic_parts
               ? ix_scale(k, ix_mul(k, ix_size(k, kernel_count(k, outer)), now), blocks) : 0;
    val p = lower_tasks(w, extent, active, &t), all = p;
    k->extent = before + extent;
    if (blocks) {
        if (parts > 1)
            all = ix_quotient(k, p, now, parts, &r->split->part);
        lower_unflatten(k, outer, ix_div(k, all, blocks), r->kept_coord);
        val block = ix_mod(k, all, blocks);
        if (full) {
            val in_full = tail ? k_if(k, k_prim(k, P_LT, block, k_int(k, full), 0)) : 0;
            ix_assume_range(k, block, 0, full - 1);
            /* a multiple of the width, so that lanes that are divided by 2 begin in pairs */
            lower_reduce_emit_block(r, inner, full == 1 ? k_int(k, 0) : ix_scale(k, block, width), 0, outer->rank);
            if (in_full)
                k_end(k, in_full);
        }
        if (tail) {
            val in_tail = full ? k_if(k, k_prim(k, P_EQ, block, k_int(k, full), 0)) : 0;
            lower_reduce_emit_block(r, inner, k_int(k, full * width),
                                    k_int(k, tail / reduce_vector_width(r)), outer->rank);
            if (in_tail)
                k_end(k, in_tail);
        }
    }
    lower_tasks_end(w, &t);
}

/* The vector loop runs over the last kept axes. */
static void emit_columns(struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    struct shape inner = {0}, outer = {0};
    split_kept(r, reduce_schedule(r)->column_reduce.axes, &inner, &outer);
    if (!size_is_constant(kernel_count(k, &inner))) {
        emit_symbolic_columns(r, &inner, &outer);
        return;
    }
    if (reduce_schedule(r)->column_reduce.vectors) {
        reduce_wide_columns(r, &inner, &outer);
        return;
    }
    int64_t length = reduce_schedule(r)->column_reduce.split;
    struct split_columns split = {.length = length};
    k->extent = 0;
    r->each = reduce_schedule(r)->column_reduce.vector;
    if (length) {
        split.parts = (r->len.bound + length - 1) / length;
        split.sums = k_buf(k, BUF_WORKSPACE, dtype_compute(r->n->dtype), split.parts * shape_count(&r->kept), 0);
        r->split = &split;
        emit_column_blocks(r, &inner, &outer);
        lower_next_phase(w);
        if (split.parts >= MANY_PARTS && size_is_constant(r->len) && !k->sched.graph_order &&
            size_is_constant(kernel_count(k, &r->kept))) {
            gpu_reduce_parts(r, split.sums, split.parts, &inner, &outer);
            return;
        }
        split.second = true;
        if (shape_count(&r->kept) < MANY_SUMS)
            r->each = 0; /* all threads are needed */
    }
    emit_column_blocks(r, &inner, &outer);
}

/* ---- the group ---- */

/* The number of kept axes after the last reduced one, or after the first axis. */
static uint32_t axes_behind(const struct reduce *r)
{
    uint32_t n = 0;
    for (uint32_t d = r->in.rank; d-- > 1;) {
        bool reduced = r->n->attr.reduce.axes >> d & 1;
        if (reduced && r->in.dim[d] != 1)
            break;
        n += !reduced;
    }
    return n;
}

/* Are adjacent elements along the last axis reduced to one result?  They are if lanes is 64, or if the axes after it
 * have one element. */
static bool is_row(const struct reduce *r)
{
    int64_t behind = 1;
    for (uint32_t d = r->in.rank; d-- > 0;) {
        if ((r->n->attr.reduce.axes >> d & 1) && r->in.dim[d] != 1)
            break;
        behind *= r->in.dim[d];
    }
    return r->n->attr.reduce.lanes == 64 || behind == 1;
}

/* Adjacent elements of one access: as many as those of 16 bytes of the smallest elements in arrays of the operand's
 * size, of which most bytes are. */
static int64_t operand_access(const struct reduce *r)
{
    int64_t every = lower_access(r->w), large = lower_access_smallest(r->w, node_numel(r->w->g, r->n->in[0]));
    return large > every ? large : every;
}

static struct reduce_facts facts_of(const struct reduce *r)
{
    enum { MIN_BLOCKED = 64 }; /* least number of results, which are a few blocks of rows */
    const struct lowering *w = r->w;
    bool linear;
    ref x = node_operand(w->g, w->anchor, 0, &linear); /* the operand of the reshape of a reduce in two steps */
    struct reduce_facts f = {.w = w, .lanes = r->n->attr.reduce.lanes == 64, .symbolic = w->placeholders != NULL,
                             .chunk = r->chunk,
                             .short_rows = !w->placeholders && lower_short_rows(w->g, w->anchor),
                             .len = r->len.bound, .kept = r->kept, .bytes = (int64_t)node_bytes(w->g, x),
                             .element = (int64_t)dtype_size(w->g->node[x].dtype),
                             .compute = (int64_t)dtype_size(dtype_compute(r->n->dtype)),
                             .prologue = lower_is_member(w, x), .is_row = is_row(r),
                             .access = operand_access(r)};
    if (f.is_row && (shape_count(&r->kept) > 1 || !size_is_constant(r->len))) /* else the row begins at 0 */
        f.access = smaller_of(f.access, lower_row_access(w, r->len, node_numel(w->g, r->n->in[0])));
    f.max = f.lanes ? r->kept.rank : axes_behind(r);
    for (uint32_t m = 0; m < w->nmember; m++)
        f.ops += r->len.bound < LONG_COLUMN || lower_in_prologue(w, w->member[m]);
    if (!f.lanes || f.short_rows || shape_count(&r->kept) >= MIN_BLOCKED)
        find_merged(r, &f);
    return f;
}

/* Are rows shorter than a vector and of one chunk, and are there enough results to make rows the lanes? */
bool lower_short_rows(const struct graph *g, ref reduce)
{
    const struct node *n = &g->node[reduce];
    int64_t results = node_numel(g, reduce), elements = node_numel(g, n->in[0]);
    return op_is_reduce(n->op) && results >= FEW_ROWS && elements <= SHORT_ROW * results && elements > results &&
           (!n->attr.reduce.chunk || elements / results <= (int64_t)n->attr.reduce.chunk);
}

void lower_reduce(struct lowering *w)
{
    const struct node *n = &w->g->node[w->anchor];
    struct reduce r = {.w = w, .n = n, .fold = reduce_fold(n->op), .in = *node_shape(w->g, n->in[0])};
    for (uint32_t d = 0; d < r.in.rank; d++) {
        struct shape *to = n->attr.reduce.axes >> d & 1 ? &r.red : &r.kept;
        to->dim[to->rank++] = r.in.dim[d];
    }
    r.len = kernel_count(w->k, &r.red);
    r.chunk = smaller_of((int64_t)n->attr.reduce.chunk, r.len.bound > 0 ? r.len.bound : 1);
    struct reduce_facts facts = facts_of(&r);
    select_family(w, GROUP_reduce, &facts, &r);
}

void row_reduce_emit(struct reduce *r, const struct schedule *s)
{
    (void)s; /* the kernel has it: reduce_schedule */
    lower_scalars(r->w);
    emit_lanes(r);
}

void gpu_row_reduce_emit(struct reduce *r, const struct schedule *s)
{
    (void)s;
    lower_scalars(r->w);
    gpu_reduce_rows(r);
}

void column_reduce_emit(struct reduce *r, const struct schedule *s)
{
    (void)s;
    lower_scalars(r->w);
    emit_columns(r);
}
