/* Attention and its gradients on a matrix unit that works asynchronously, by warp specialization (Shah et al.,
 * FlashAttention-3, 2024): the producer loads panels of all operands by TMA, the consumers have rows of their own
 * (gpu/lower_pipeline.h).  Attention's two iterated operands, k and v, have rings of stages of their own; both iterated
 * operands of a gradient are used together and share the barriers of one.
 *
 * Attention multiplies the weights of one step by v while it computes the weights of the next step.  Of step i the
 * consumers
 *
 *   wait     until k's step i is full; ping-pong
 *   multiply q k^T of step i: begins; commit products
 *   wait     until v's step i - 1 is full
 *   multiply weights of step i - 1 by v: begins; commit products; ping-pong: the other group begins
 *   wait     for q k^T; release k's step i
 *   compute  the weights of step i
 *   wait     for the totals; release v's step i - 1; multiply the totals as the new maxima say
 *
 * A gradient computes weights while dy v^T is multiplied, and that in k and v computes ds while weights are multiplied:
 *
 *   wait     until step i is full
 *   multiply q k^T: begins; commit products.  dy v^T: begins; commit products
 *   wait     for q k^T
 *   compute  weights; multiply them by dy: begins; commit products
 *   wait     for dy v^T
 *   compute  ds; multiply it: begins; commit products
 *   wait     for all; release step i
 *
 * For the gradient in k and v the threads of the producer store what all consumers need of the step's queries, their
 * statistics, in the stage.
 *
 * Two groups of consumers begin attention's products by ping-pong, so that one computes weights while the products of
 * the other one are multiplied.  Those of a gradient do not wait for each other.
 *
 * Only steps at the edge have masked pairs by position.  They come first, in a loop of their own,
 * so that the loop of the other steps computes no masks: attention and the gradient in q iterate from the last step to
 * the first one, the gradient in k and v from the first to the last. */
#include "lower_attention_tiles.h"

/* The steps that a block iterates over: how many, of these so many that are masked, and the first and the last one's
 * number. */
struct steps {
    val count, masked, first, last;
    int64_t max;                   /* steps of any block */
};

/* What the producer stages of a query's statistics, of a gradient in k and v, whose consumers would all load all of
 * them. */
enum { STAGED_BASE, STAGED_DELTA, STAGED };

static bool has_pingpong(const struct tiles *s)
{
    return !s->gradient && s->s.width == PIPELINE_PINGPONG * s->s.attention_matrix.subgroup;
}

static bool has_pairs(const struct tiles *s) { return !s->gradient && s->iterated[1].count; } /* k and v */

void attention_pipeline_make(struct tiles *s)
{
    struct pipeline *p = &s->pipeline;
    *p = (struct pipeline){.k = s->a->w->k, .stages = s->stages, .consumers = s->s.width,
                           .subgroup = s->s.attention_matrix.subgroup,
                           .producer = s->s.attention_matrix.subgroup, .blocks = 1, .frugal = s->keys};
    s->own_full = pipeline_barriers(p, 1, 1);
    if (has_pingpong(s))
        s->pingpong = pipeline_pingpong_make(p);
    for (unsigned i = 0, n = has_pairs(s) ? 2 : 1; i < n; i++)
        s->ring[i] = pipeline_ring_make(p);
    if (s->keys) {
        s->staged = k_buf(p->k, BUF_SHARED, KL_F32, s->stages * STAGED * s->step, 0);
        s->staged_full = pipeline_barriers(p, s->stages, p->subgroup);
    }
}

/* ---- steps ---- */

static val emit_clamp(struct kernel *k, val x, val min, val max)
{
    return greater(k, k_min(k, x, max), min);
}

/* At least one step, which may have no unmasked pairs, so that the loops need no case without any. */
static struct steps steps_of(const struct tiles *s)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    struct steps r = {.max = (a->m + s->step - 1) / s->step};
    val first, end, one = k_int(k, 1), zero = k_int(k, 0);
    attention_unmasked_steps(s, &first, &end);
    r.first = k_min(k, first, k_int(k, r.max - 1));
    end = greater(k, end, ix_add(k, r.first, one));
    ix_bound(k, r.first, 0, r.max - 1);
    ix_bound(k, end, 1, r.max);
    r.last = ix_sub(k, end, one);
    r.count = ix_sub(k, end, r.first);
    ix_bound(k, r.count, 1, r.max);
    r.masked = r.count;
    if (a->mask || a->bounds || (s->keys && a->m % s->step))
        return r;
    val whole = k_int(k, a->m / s->step); /* steps before the one with rows that do not exist */
    int64_t more = s->keys ? a->l - a->m : a->m - a->l;
    if (!a->causal)
        r.masked = ix_sub(k, k_int(k, r.max), whole);
    else if (s->keys) /* query + more is at least the block's last key */
        r.masked = ix_sub(k, ix_div(k, greater(k, ix_add(k, a->q0, k_int(k, s->rows - 1 - more + s->step - 1)), zero),
                                    s->step), r.first);
    else              /* key is at most the block's first query + more */
        r.masked = ix_sub(k, end, ix_div(k, greater(k, ix_add(k, a->q0, k_int(k, more + 1)), zero), s->step));
    if (a->causal)
        r.masked = emit_clamp(k, r.masked, zero, r.count);
    ix_bound(k, r.masked, 0, r.max);
    return r;
}

/* The number among all steps of the block's step i. */
static val step_number(const struct tiles *s, const struct steps *r, val i)
{
    struct kernel *k = s->a->w->k;
    val number = s->keys ? ix_add(k, r->first, i) : ix_sub(k, r->last, i);
    ix_bound(k, number, 0, r->max - 1);
    return number;
}

static val loop_of_steps(const struct tiles *s, const struct steps *r, val from, val end)
{
    struct kernel *k = s->a->w->k;
    val i = k_loop(k, LOOP_SERIAL, from, end, 1);
    ix_bound(k, i, 0, r->max - 1);
    return i;
}

/* ---- the producer ---- */

/* Where the columns of an operand are in its tensor map: coordinates of its matrix. */
struct source { uint32_t view; val column, matrix; };

static struct source tile_source(const struct tiles *s, unsigned which)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    struct attention_view v;
    struct source r = {.column = k_int(k, 0), .matrix = k_int(k, 0)};
    val x = attention_stored(a, which, k_int(k, 0), k_int(k, 0));
    bool found = attention_view(a, which, s->gradient, s->keys, &v);
    r.view = pipeline_tensor_map(k, x, s->dtype, found ? &v.view : NULL);
    for (unsigned i = 0; i < a->lead.rank && found; i++) {
        r.column = ix_add(k, r.column, ix_scale(k, a->coord[i], v.column[i]));
        r.matrix = ix_add(k, r.matrix, ix_scale(k, a->coord[i], v.matrix[i]));
    }
    return r;
}

static struct pipeline_tile columns_tile(const struct columns *c, const struct source *from)
{
    return (struct pipeline_tile){.view = from->view, .buf = c->buf, .columns = c->count, .elements = c->elements};
}

static int64_t column_loads(const struct columns *c)
{
    return pipeline_loads(&(struct pipeline_tile){.columns = c->count});
}

/* Loads rows from `row` on to a stage. */
static void load_columns(const struct tiles *s, const struct columns *c, const struct source *from, val row, val stage)
{
    struct kernel *k = s->a->w->k;
    struct pipeline_tile tile = columns_tile(c, from);
    pipeline_load(&s->pipeline, &tile, stage, ix_add(k, from->column, k_int(k, c->from)), row, from->matrix);
}

/* The number of the thread in the producer, which has as many as a group of consumers. */
static val producer_thread(const struct tiles *s)
{
    struct kernel *k = s->a->w->k;
    val u = ix_sub(k, s->t, k_int(k, s->s.width));
    ix_bound(k, u, 0, s->s.attention_matrix.subgroup - 1);
    return u;
}

/* Loads the statistics of query row + u, of the last query if there is no such one. */
static void load_statistics(const struct tiles *s, val row, val u, val stat[STAT_COUNT])
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val query = k_min(k, ix_add(k, row, u), k_int(k, a->m - 1));
    ix_bound(k, query, 0, a->m - 1);
    for (int c = 0; c < STAT_COUNT; c++)
        stat[c] = attention_stored(a, STATS, query, k_int(k, c));
}

/* The first element of a statistic of a stage, of as many as a step has queries. */
static val staged_at(const struct tiles *s, val stage, int64_t statistic)
{
    struct kernel *k = s->a->w->k;
    return ix_add(k, ix_scale(k, stage, STAGED * s->step), k_int(k, statistic * s->step));
}

/* Each of the producer's threads folds and stores the statistics of query number u of a step, if it has so many. */
static void stage_statistics(const struct tiles *s, val i, val u, val stat[STAT_COUNT])
{
    struct kernel *k = s->a->w->k;
    const struct pipeline *p = &s->pipeline;
    val stage = pipeline_stage(p, i);
    tiles_fold_statistics(k, stat);
    pipeline_await(p, s->ring[0].empty, stage, ix_div(k, i, p->stages));
    val some = k_if(k, k_prim(k, P_LT, u, k_int(k, s->step), 0));
    k_store(k, s->staged, ix_add(k, staged_at(s, stage, STAGED_BASE), u), stat[STAT_MAX], 0);
    k_store(k, s->staged, ix_add(k, staged_at(s, stage, STAGED_DELTA), u), stat[DELTA], 0);
    k_end(k, some);
    pipeline_arrive(p, s->staged_full, stage, 0);
}

static void emit_producer(const struct tiles *s, const struct steps *r)
{
    struct kernel *k = s->a->w->k;
    const struct pipeline *p = &s->pipeline;
    const struct columns *own = s->own, *iterated = s->iterated;
    struct source from = tile_source(s, own[0].which), to[2] = {tile_source(s, iterated[0].which)};
    to[1] = has_pairs(s) ? tile_source(s, iterated[1].which) : to[0];
    val one = pipeline_begin_producer_thread(p, s->t), zero = k_int(k, 0);
    pipeline_arrive(p, s->own_full, zero, column_loads(&own[0]) + column_loads(&own[1]));
    for (int o = 0; o < 2; o++)
        load_columns(s, &own[o], &from, s->a->q0, zero);
    if (s->keys)
        k_end(k, one);
    val i = loop_of_steps(s, r, zero, r->count), stage = pipeline_stage(p, i), u = 0, stat[STAT_COUNT];
    val row = ix_scale(k, step_number(s, r, i), s->step);
    if (s->keys) {
        u = producer_thread(s);
        load_statistics(s, row, u, stat);
        one = pipeline_begin_producer_thread(p, s->t);
    }
    int rings = has_pairs(s) ? 2 : 1;
    for (int g = 0; g < rings; g++) {
        pipeline_acquire(p, &s->ring[g], i, column_loads(&iterated[g]) + (rings == 1 ? column_loads(&iterated[1]) : 0));
        for (int o = g; o < (rings == 1 ? 2 : g + 1); o++)
            load_columns(s, &iterated[o], &to[o], row, stage);
    }
    if (s->keys) {
        k_end(k, one);
        stage_statistics(s, i, u, stat);
    }
    k_end(k, i);
    if (!s->keys)
        k_end(k, one);
}

/* ---- consumers ---- */

enum { WEIGHTS = CARRIED, CARRIED_WEIGHTS }; /* attention carries the weights of the step before, too */

/* q k^T of a step, whose weights then are value[WEIGHTS]. */
static void attend_step(struct tiles *s, const struct steps *r, val i, bool masked, bool first,
                        val value[CARRIED_WEIGHTS])
{
    struct kernel *k = s->a->w->k;
    const struct pipeline *p = &s->pipeline;
    bool pairs = has_pairs(s);
    val factor[MAX_FACTORS], there, shrink;
    if (pairs && !first)
        tiles_factors(s, value[WEIGHTS], factor);
    pipeline_wait_full(p, &s->ring[0], i);
    if (has_pingpong(s))
        pipeline_pingpong_wait(p, s->pingpong, s->group, i);
    val score = tiles_products(s, 0, pipeline_stage(p, i), tiles_splat(k, 0, s->m, s->step));
    tiles_commit(s);
    if (pairs && !first) {
        pipeline_wait_full_before(p, &s->ring[1], i);
        value[TOTAL] = tiles_weighted(s, factor, 1, pipeline_stage_before(p, i), value[TOTAL]);
        tiles_commit(s);
    }
    if (has_pingpong(s))
        pipeline_pingpong_pass(p, s->pingpong, s->group);
    val unmasked = tiles_enter_step(s, step_number(s, r, i), masked, &there);
    tiles_wait(s, pairs && !first);
    pipeline_release(p, &s->ring[0], pipeline_stage(p, i));
    value[WEIGHTS] = tiles_soften(s, score, unmasked, value, &shrink);
    if (pairs && !first) {
        tiles_wait(s, 0);
        pipeline_release(p, &s->ring[1], pipeline_stage_before(p, i));
        value[TOTAL] = k_prim(k, P_MUL, value[TOTAL], shrink, 0);
    }
}

/* The statistics of the step's queries: [1 x step] from the stage, or [m x 1] of own rows.  Loads from shared memory
 * take longer while products read it, so they come first. */
static void step_statistics(const struct tiles *s, val i, val stage, val stat[STAT_COUNT])
{
    struct kernel *k = s->a->w->k;
    stat[STAT_MAX] = s->stat[STAT_MAX];
    stat[DELTA] = s->stat[DELTA];
    if (!s->keys)
        return;
    pipeline_await(&s->pipeline, s->staged_full, stage, ix_add(k, ix_div(k, i, s->stages), k_int(k, 1)));
    stat[STAT_MAX] = attention_tile_load(k, s->staged, staged_at(s, stage, STAGED_BASE), TILE_COLS, 1, 1, s->step, 0);
    stat[DELTA] = attention_tile_load(k, s->staged, staged_at(s, stage, STAGED_DELTA), TILE_COLS, 1, 1, s->step, 0);
}

static void add_step(struct tiles *s, const struct steps *r, val i, bool masked, val total[CARRIED])
{
    struct kernel *k = s->a->w->k;
    const struct pipeline *p = &s->pipeline;
    val stage = pipeline_stage(p, i), zero = tiles_splat(k, 0, s->m, s->step);
    val stat[STAT_COUNT] = {0}, factor[2][MAX_FACTORS];
    val there, unmasked = tiles_enter_step(s, step_number(s, r, i), masked, &there);
    step_statistics(s, i, stage, stat);
    pipeline_wait_full(p, &s->ring[0], i);
    val score = tiles_products(s, 0, stage, zero);
    tiles_commit(s);
    val dp = tiles_products(s, 1, stage, zero);
    tiles_commit(s);
    tiles_wait(s, 1);
    val weight = tiles_probability(s, score, unmasked, stat);
    if (s->keys) {
        tiles_factors(s, weight, factor[1]);
        total[1] = tiles_weighted(s, factor[1], 1, stage, total[1]);
        tiles_commit(s);
    }
    tiles_wait(s, s->keys);
    tiles_factors(s, tiles_ds(s, dp, weight, unmasked, stat), factor[0]);
    total[0] = tiles_weighted(s, factor[0], 0, stage, total[0]);
    tiles_commit(s);
    tiles_wait(s, 0);
    pipeline_release(p, &s->ring[0], stage);
}

/* Steps [from, end). */
static void emit_steps(struct tiles *s, const struct steps *r, val from, val end, bool masked,
                       val value[CARRIED_WEIGHTS])
{
    struct kernel *k = s->a->w->k;
    int64_t low, high;
    val carry[CARRIED_WEIGHTS];
    if (ix_range(k, ix_sub(k, end, from), &low, &high) && high <= 0)
        return;
    val i = loop_of_steps(s, r, from, end);
    for (int v = 0; v < CARRIED_WEIGHTS; v++)
        value[v] = carry[v] = value[v] ? k_carry(k, value[v]) : 0;
    if (s->gradient)
        add_step(s, r, i, masked, value);
    else
        attend_step(s, r, i, masked, false, value);
    for (int v = 0; v < CARRIED_WEIGHTS; v++)
        if (carry[v])
            k_next(k, carry[v], value[v]);
    k_end(k, i);
    for (int v = 0; v < CARRIED_WEIGHTS; v++)
        value[v] = carry[v] ? k_out(k, carry[v]) : 0;
}

static void emit_consumers(struct tiles *s, const struct steps *r)
{
    struct kernel *k = s->a->w->k;
    val value[CARRIED_WEIGHTS] = {0}, zero = k_int(k, 0), from = zero;
    bool pairs = has_pairs(s), all = s->a->mask || s->a->bounds || (s->keys && s->a->m % s->step);
    tiles_prepare(s);
    tiles_start(s, value);
    pipeline_await(&s->pipeline, s->own_full, zero, k_int(k, 1));
    if (!s->gradient) {
        attend_step(s, r, zero, s->a->causal || all || s->a->m % s->step, true, value);
        value[WEIGHTS] = pairs ? value[WEIGHTS] : 0;
        from = k_int(k, 1);
    }
    if (s->a->causal || all || s->a->m % s->step)
        emit_steps(s, r, from, r->masked, true, value);
    if (!all)
        emit_steps(s, r, s->gradient ? r->masked : greater(k, r->masked, from), r->count, false, value);
    if (pairs) {
        val factor[MAX_FACTORS];
        tiles_factors(s, value[WEIGHTS], factor);
        val last = pipeline_stage_before(&s->pipeline, r->count);
        pipeline_wait_full_before(&s->pipeline, &s->ring[1], r->count);
        value[TOTAL] = tiles_weighted(s, factor, 1, last, value[TOTAL]);
        tiles_commit(s);
    }
    tiles_wait(s, 0);
    tiles_finish(s, value);
}

void attention_emit_warp_specialized(struct tiles *s)
{
    struct kernel *k = s->a->w->k;
    const int64_t subgroup = s->s.attention_matrix.subgroup;
    val number = ix_div(k, s->t, subgroup);
    struct steps r = steps_of(s);
    val producer = pipeline_begin_producer(&s->pipeline, number);
    emit_producer(s, &r);
    k_end(k, producer);
    val consumers = pipeline_begin_consumers(&s->pipeline, number);
    s->t = ix_mod(k, s->t, s->s.width); /* the same numbers, whose ranges are known */
    s->group = ix_mod(k, number, s->s.width / subgroup);
    s->first = ix_scale(k, s->group, s->m);
    emit_consumers(s, &r);
    k_end(k, consumers);
}
