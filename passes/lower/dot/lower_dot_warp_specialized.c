/* Products of half floats by a matrix unit that works asynchronously (NVIDIA's wgmma), by warp specialization: the
 * producer loads panels of both factors by TMA, the consumers multiply them (gpu/lower_pipeline.h).  Both factors of a
 * step share the barriers of a stage.  Of step i the consumers
 *
 *   wait     until the stage of step i is full
 *   multiply step i: begins; commit products
 *   wait     for the products of step i - 1
 *   release  the stage of step i - 1
 *
 * So while one step is multiplied, the next stages - 2 steps can be on their way.
 * The results are stored as lower_dot_matrix.c says, by the consumers. */
#include "lower_dot_matrix.h"

void dot_pipeline_make(struct subgroups *s)
{
    s->pipeline = (struct pipeline){.k = s->d->w->k, .stages = s->s.dot_matrix.stages, .consumers = s->threads,
                                    .subgroup = s->s.dot_matrix.subgroup};
    s->ring = pipeline_ring_make(&s->pipeline);
}

/* ---- the producer ---- */

static struct pipeline_tile factor_tile(const struct subgroups *s, bool second)
{
    struct kernel *k = s->d->w->k;
    const struct factor *f = &s->factor[second];
    struct lbuf view;
    val x = dot_stored_element(s->d, second, k_int(k, 0), k_int(k, 0));
    bool found = dot_matrix_view(s->d, second, &view);
    return (struct pipeline_tile){.view = pipeline_tensor_map(k, x, s->dtype, found ? &view : NULL), .buf = f->buf,
                                  .columns = f->row, .elements = f->elements};
}

static void load_factor(const struct subgroups *s, bool second, const struct pipeline_tile *tile, val step, val stage)
{
    struct kernel *k = s->d->w->k;
    const struct factor *f = &s->factor[second];
    val kk = ix_add(k, s->k0, ix_scale(k, step, s->s.dot_matrix.step));
    val batch = !k->err.code && k->buf[tile->view].size[2] > 1 ? s->d->batch_index : k_int(k, 0);
    pipeline_load(&s->pipeline, tile, stage, f->by_k ? kk : f->first, f->by_k ? f->first : kk, batch);
}

static void emit_producer(const struct subgroups *s)
{
    struct kernel *k = s->d->w->k;
    struct pipeline_tile a = factor_tile(s, false), b = factor_tile(s, true);
    val one = pipeline_begin_producer_thread(&s->pipeline, s->t);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->steps), 1);
    val stage = pipeline_stage(&s->pipeline, step);
    pipeline_acquire(&s->pipeline, &s->ring, step, pipeline_loads(&a) + pipeline_loads(&b));
    load_factor(s, false, &a, step, stage);
    load_factor(s, true, &b, step, stage);
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
    dot_matrix_wait(s, 1);
    val later = k_if(k, k_prim(k, P_LT, k_int(k, 0), step, 0));
    pipeline_release(p, &s->ring, pipeline_stage_before(p, step));
    k_end(k, later);
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
