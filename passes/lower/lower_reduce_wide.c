/* Reduces of columns on processors, where rows lie pages apart: a task sums several vectors of columns, and reads each
 * row of them from left to right, so that the processor prefetches it. */
#include "lower_reduce.h"

/* Columns whose rows are read from left to right, several vectors of each, with sums in scratch. */
struct wide_columns { const struct shape *inner; val base; int64_t columns; uint32_t nouter, part, total; };

/* Opens loops over vectors of the columns, *v, and the lanes of one; returns the index of its sum. */
static val begin_vector(struct reduce *r, const struct wide_columns *c, val *v)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width;
    *v = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, c->columns), width);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
    val at = ix_add(k, *v, w->lane);
    lower_unflatten(k, c->inner, ix_add(k, c->base, at), r->kept_coord + c->nouter);
    return at;
}

static void end_vector(struct reduce *r, val v)
{
    k_end(r->w->k, r->w->lane);
    r->w->lane = 0;
    k_end(r->w->k, v);
}

static void clear_sums(struct reduce *r, const struct wide_columns *c, uint32_t sums)
{
    val v, at = begin_vector(r, c, &v);
    k_store(r->w->k, sums, at, k_splat(r->w->k, reduce_identity(r)), 0);
    end_vector(r, v);
}

/* Adds `rows` rows from `row` on to the chunk's sums. */
static void add_rows(struct reduce *r, const struct wide_columns *c, val row, int64_t rows)
{
    struct kernel *k = r->w->k;
    val v, at = begin_vector(r, c, &v), sum = k_load(k, c->part, at, 0);
    for (int64_t i = 0; i < rows; i++)
        sum = k_fold_step(k, r->fold, sum, reduce_element(r, ix_add(k, row, k_int(k, i))));
    k_store(k, c->part, at, sum, 0);
    end_vector(r, v);
}

/* Sums a chunk in ascending order, as chain_chunk, a few rows at a time. */
static void wide_chunk(struct reduce *r, const struct wide_columns *c, val from, int64_t count)
{
    enum { ROWS = 8 };
    struct kernel *k = r->w->k;
    int64_t whole = count / ROWS * ROWS;
    clear_sums(r, c, c->part);
    if (whole) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), ROWS);
        add_rows(r, c, ix_add(k, from, j), ROWS);
        k_end(k, j);
    }
    if (count > whole)
        add_rows(r, c, ix_add(k, from, k_int(k, whole)), count - whole);
}

/* Adds the chunk's sums to the totals. */
static void add_chunk(struct reduce *r, const struct wide_columns *c)
{
    struct kernel *k = r->w->k;
    val v, at = begin_vector(r, c, &v), total = k_load(k, c->total, at, 0);
    k_store(k, c->total, at, k_fold_step(k, r->fold, total, k_load(k, c->part, at, 0)), 0);
    end_vector(r, v);
}

/* Emits the sums of a block of several vectors of results, chunk by chunk, and their epilogue. */
static void emit_wide_block(struct reduce *r, const struct wide_columns *c)
{
    struct kernel *k = r->w->k;
    int64_t full = r->len.bound / r->chunk, rest = r->len.bound % r->chunk;
    if (c->total != c->part) {
        clear_sums(r, c, c->total);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
        wide_chunk(r, c, ix_scale(k, i, r->chunk), r->chunk);
        add_chunk(r, c);
        k_end(k, i);
    }
    if (c->total == c->part || rest)
        wide_chunk(r, c, k_int(k, c->total == c->part ? 0 : full * r->chunk),
                   c->total == c->part ? r->len.bound : rest);
    if (c->total != c->part && rest)
        add_chunk(r, c);
    val v, at = begin_vector(r, c, &v);
    reduce_epilogue(r, k_load(k, c->total, at, 0));
    end_vector(r, v);
}

void reduce_wide_columns(struct reduce *r, const struct shape *inner, const struct shape *outer)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    unsigned dtype = dtype_compute(r->n->dtype);
    struct wide_columns c = {.inner = inner, .nouter = outer->rank,
                             .columns = (int64_t)reduce_schedule(r)->column_reduce.vectors * k->sched.width};
    int64_t blocks = shape_count(inner) / c.columns;
    struct tasks t;
    c.part = c.total = k_buf(k, BUF_SCRATCH, dtype, c.columns, 0);
    if (r->len.bound > r->chunk)
        c.total = k_buf(k, BUF_SCRATCH, dtype, c.columns, 0);
    val p = lower_tasks(w, shape_count(outer) * blocks, 0, &t);
    if (blocks) {
        lower_unflatten(k, outer, ix_div(k, p, blocks), r->kept_coord);
        c.base = ix_scale(k, ix_mod(k, p, blocks), c.columns);
        emit_wide_block(r, &c);
    }
    lower_tasks_end(w, &t);
}
