/* Products of half floats by a matrix unit that works asynchronously (NVIDIA's wgmma), by warp specialization: the
 * producer loads panels of both factors by TMA, the consumers multiply them (gpu/lower_pipeline.h).  Both factors of a
 * step share the barriers of a stage.  Of step i the consumers
 *
 *   wait     until the stage of step i is full
 *   multiply step i: begins; commit products
 *   wait     for the products of step i - 1
 *   release  the stage of step i - 1
 *
 * So while one step is multiplied, the next stages - 2 steps can be on their way.  Where a processor runs two blocks,
 * each has half of the memory, and three stages: consumers wait for the products of step i and release its stage at
 * once, so that two steps are on their way, while those of the other block multiply.
 * The results are stored as lower_dot_matrix.c says, by the consumers. */
#include "lower_dot_matrix.h"

void dot_pipeline_make(struct subgroups *s)
{
    s->pipeline = (struct pipeline){.k = s->d->w->k, .stages = s->s.dot_matrix.stages, .consumers = s->threads,
                                    .subgroup = s->s.dot_matrix.subgroup,
                                    .producer = dot_matrix_producer(&s->s),
                                    .blocks = dot_matrix_blocks(&s->s)};
    s->ring = pipeline_ring_make(&s->pipeline);
}

/* ---- the producer ---- */

static struct pipeline_tile factor_tile(const struct subgroups *s, bool second, struct dot_view *view)
{
    struct kernel *k = s->d->w->k;
    const struct factor *f = &s->factor[second];
    val x = dot_stored_element(s->d, second, k_int(k, 0), k_int(k, 0));
    bool found = dot_view_find(s->d, &s->s, second, view);
    return (struct pipeline_tile){.view = pipeline_tensor_map(k, x, s->dtype, found ? &view->b : NULL), .buf = f->buf,
                                  .columns = f->row, .elements = f->elements};
}

/* An index within its matrix; adds the matrices before that to *matrix. */
static val within_matrix(struct kernel *k, val index, int64_t size, int64_t inner, int64_t matrices, val *matrix)
{
    if (size == inner)
        return index;
    *matrix = ix_add(k, *matrix, ix_scale(k, ix_div(k, index, inner), matrices));
    return ix_mod(k, index, inner);
}

static void load_factor(const struct subgroups *s, bool second, const struct pipeline_tile *tile,
                        const struct dot_view *view, val step, val stage)
{
    struct kernel *k = s->d->w->k;
    const struct factor *f = &s->factor[second];
    int64_t side = second ? s->d->size.n : s->d->size.m, columns = f->by_k ? s->d->size.k : side;
    val kk = ix_add(k, s->k0, ix_scale(k, step, s->s.dot_matrix.step)), column = f->by_k ? kk : f->first;
    val rows = ix_scale(k, s->d->batch_index, view->matrices[2]);
    val row = within_matrix(k, f->by_k ? f->first : kk, f->by_k ? side : s->d->size.k, view->inner[1],
                            view->matrices[1], &rows);
    for (int64_t i = 0; i < pipeline_loads(tile); i++) {
        val matrix = rows, at = ix_add(k, column, k_int(k, i * PANEL_COLUMNS));
        at = within_matrix(k, at, columns, view->inner[0], view->matrices[0], &matrix);
        pipeline_load_panel(&s->pipeline, tile, stage, i, at, row, matrix);
    }
}

static void emit_producer(const struct subgroups *s)
{
    struct kernel *k = s->d->w->k;
    struct dot_view view[2];
    struct pipeline_tile a = factor_tile(s, false, &view[0]), b = factor_tile(s, true, &view[1]);
    val one = pipeline_begin_producer_thread(&s->pipeline, s->t);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->steps), 1);
    val stage = pipeline_stage(&s->pipeline, step);
    pipeline_acquire(&s->pipeline, &s->ring, step, pipeline_loads(&a) + pipeline_loads(&b));
    load_factor(s, false, &a, &view[0], step, stage);
    load_factor(s, true, &b, &view[1], step, stage);
    k_end(k, step);
    k_end(k, one);
}

/* ---- consumers ---- */

static void emit_consumers(const struct subgroups *s)
{
    struct kernel *k = s->d->w->k;
    const struct pipeline *p = &s->pipeline;
    val sum[MAX_SLABS], next[MAX_SLABS], zero = dot_splat(k, k_bits(k, KL_F32, 0), s->unit.m, s->s.dot_matrix.nr);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->steps), 1);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_carry(k, zero);
    val stage = pipeline_stage(p, step);
    pipeline_wait_full(p, &s->ring, step);
    dot_matrix_multiply(s, stage, sum, next);
    dot_matrix_commit(s);
    if (p->blocks > 1) { /* the other block's products go on */
        dot_matrix_wait(s, 0);
        pipeline_release(p, &s->ring, stage);
    } else {
        dot_matrix_wait(s, 1);
        val later = k_if(k, k_prim(k, P_LT, k_int(k, 0), step, 0));
        pipeline_release(p, &s->ring, pipeline_stage_before(p, step));
        k_end(k, later);
    }
    for (unsigned i = 0; i < s->slabs; i++)
        k_next(k, sum[i], next[i]);
    k_end(k, step);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_out(k, sum[i]);
    dot_matrix_wait(s, 0);
    dot_matrix_results(s, sum);
}

/* The number of a consumer subgroup: there are one or two.  It is one value, and not number - 2 (number / 2),
 * which would be terms of indices that are no positions in a panel one by one. */
static val consumer_number(const struct subgroups *s, val number)
{
    struct kernel *k = s->d->w->k;
    int64_t n = s->threads / s->s.dot_matrix.subgroup;
    if (n == 1 || n & (n - 1))
        return ix_mod(k, number, n);
    val v = k_prim(k, P_AND, number, k_int(k, n - 1), 0);
    ix_bound(k, v, 0, n - 1);
    return v;
}

void dot_emit_warp_specialized(struct subgroups *s)
{
    struct kernel *k = s->d->w->k;
    val number = ix_div(k, s->t, s->s.dot_matrix.subgroup);
    val producer = pipeline_begin_producer(&s->pipeline, number);
    emit_producer(s);
    k_end(k, producer);
    val consumers = pipeline_begin_consumers(&s->pipeline, number);
    s->t = ix_mod(k, s->t, s->threads); /* the same numbers, whose ranges are known */
    dot_matrix_place(s, consumer_number(s, number));
    emit_consumers(s);
    k_end(k, consumers);
}
