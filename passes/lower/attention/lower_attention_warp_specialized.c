/* Attention and its gradients on a matrix unit that works asynchronously, where the subgroups of a block have two roles
 * (Shah et al., FlashAttention-3, 2024): one thread of the last subgroup copies panels of all operands to shared memory
 * (NVIDIA's tensor copies), the other subgroups have rows of their own.  Barriers with phases say, of each stage of the
 * ring of steps:
 *
 *   filled     its phase n is complete when the copies of the stage's n-th step are
 *   used       its phase n is complete when the threads that multiply have finished with that step
 *
 * Attention's two walked operands, k and v, have barriers of their own; both walked operands of a gradient are used
 * together and have the same ones.  Step i is the (i / stages)-th one of stage i % stages.
 *
 * Attention multiplies the weights of one step by v while it computes the weights of the next step.  Step i:
 *
 *   await    k's step i; the turn
 *   multiply q k^T of step i: begins; commit products
 *   await    v's step i - 1
 *   multiply weights of step i - 1 by v: begins; commit products; arrive: the other's turn
 *   wait     for q k^T; arrive: k's step i is used
 *   compute  the weights of step i
 *   wait     for the totals; arrive: v's step i - 1 is used; multiply the totals as the new maxima say
 *
 * A gradient computes weights while dy v^T is multiplied, and that in k and v computes ds while weights are multiplied:
 *
 *   await    step i
 *   multiply q k^T: begins; commit products.  dy v^T: begins; commit products
 *   wait     for q k^T
 *   compute  weights; multiply them by dy: begins; commit products
 *   wait     for dy v^T
 *   compute  ds; multiply it: begins; commit products
 *   wait     for all; arrive: step i is used
 *
 * The two subgroups that multiply take turns to begin attention's products, so that one computes weights while the
 * other's products are multiplied.  Those of a gradient do not wait for each other.
 *
 * Only steps at the edge have pairs that do not see each other by position.  They come first, in a loop of their own,
 * so that the loop of the other steps computes no masks: attention and the gradient in q walk from the last step to the
 * first one, the gradient in k and v from the first to the last. */
#include "lower_attention_tiles.h"
#include <string.h>

/* Registers of a thread in each role.  64 Ki registers of a processor are divided among 128 threads that copy and 256
 * that multiply; the hardware takes multiples of 8. */
enum { COPYING_REGISTERS = 40, MULTIPLYING_REGISTERS = 232, DIVIDED = 256 };

/* The steps that a block walks: how many, of these so many that are masked, and the first and the last one's number. */
struct steps {
    val count, masked, first, last;
    int64_t max;                   /* steps of any block */
};

enum { GROUPS = 2 };                    /* subgroups that take turns */
static bool takes_turns(const struct tiles *s)
{
    return !s->gradient && s->s.width == GROUPS * s->s.attention_matrix.subgroup;
}

static bool has_pairs(const struct tiles *s) { return !s->gradient && s->walked[1].count; } /* k and v */

void attention_warp_specialized_barriers(struct tiles *s)
{
    struct kernel *k = s->a->w->k;
    unsigned n = has_pairs(s) ? 2 : 1;
    s->phase.own = k_buf(k, BUF_PHASES, KL_U64, 1, 1);
    if (takes_turns(s))
        s->phase.turn = k_buf(k, BUF_PHASES, KL_U64, GROUPS, s->s.attention_matrix.subgroup);
    for (unsigned i = 0; i < n; i++) {
        s->phase.filled[i] = k_buf(k, BUF_PHASES, KL_U64, s->stages, 1);
        s->phase.used[i] = k_buf(k, BUF_PHASES, KL_U64, s->stages, s->s.width);
    }
}

static void arrive(const struct tiles *s, uint32_t phases, val stage, int64_t panels)
{
    k_append(s->a->w->k, (struct linst){.op = L_ARRIVE, .dtype = KL_BOOL, .a = stage,
                                        .imm = phases | (uint64_t)panels << 32});
}

static void await(const struct tiles *s, uint32_t phases, val stage, val n)
{
    k_append(s->a->w->k, (struct linst){.op = L_AWAIT, .dtype = KL_BOOL, .a = stage, .b = n, .imm = phases});
}

static val begin_warp_role(const struct tiles *s, val condition, uint64_t registers)
{
    struct kernel *k = s->a->w->k;
    val role = k_if(k, condition);
    k->inst[role].imm = s->s.width == DIVIDED ? registers : 0;
    return role;
}

static val stage_of(const struct tiles *s, val step) { return ix_mod(s->a->w->k, step, s->stages); }

/* The stage of the step before this one. */
static val stage_before(const struct tiles *s, val step)
{
    return stage_of(s, ix_add(s->a->w->k, step, k_int(s->a->w->k, s->stages - 1)));
}

static void await_full_barrier(const struct tiles *s, int which, val step)
{
    struct kernel *k = s->a->w->k;
    await(s, s->phase.filled[which], stage_of(s, step), ix_add(k, ix_div(k, step, s->stages), k_int(k, 1)));
}

static void await_full_barrier_before(const struct tiles *s, int which, val step)
{
    struct kernel *k = s->a->w->k;
    val n = ix_div(k, ix_add(k, step, k_int(k, s->stages - 1)), s->stages);
    await(s, s->phase.filled[which], stage_before(s, step), n);
}

/* Before step i's products of this subgroup begin, those of the other one have: the first subgroup waits until the
 * second one has begun i steps, the second one until the first one has begun i + 1. */
static void pingpong_wait(const struct tiles *s, val i)
{
    if (takes_turns(s))
        await(s, s->phase.turn, s->group, ix_add(s->a->w->k, i, s->group));
}

static void pingpong_pass(const struct tiles *s)
{
    struct kernel *k = s->a->w->k;
    if (takes_turns(s))
        arrive(s, s->phase.turn, ix_sub(k, k_int(k, GROUPS - 1), s->group), 0);
}

/* ---- steps ---- */

static val between(struct kernel *k, val x, val min, val max)
{
    return greater(k, smaller(k, x, max), min);
}

/* At least one step, which may have no pairs that see each other, so that the loops need no case without any. */
static struct steps steps_of(const struct tiles *s)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    struct steps r = {.max = (a->m + s->step - 1) / s->step};
    val first, end, one = k_int(k, 1), zero = k_int(k, 0);
    attention_steps_seen(s, &first, &end);
    r.first = smaller(k, first, k_int(k, r.max - 1));
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
        r.masked = between(k, r.masked, zero, r.count);
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

/* ---- the role that copies ---- */

/* A view's buffer and the coordinates of its matrix. */
struct source { uint32_t view; val column, matrix; };

static struct source tile_source(const struct tiles *s, unsigned which)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    struct attention_view v;
    struct source r = {.column = k_int(k, 0), .matrix = k_int(k, 0)};
    val x = attention_stored(a, which, k_int(k, 0), k_int(k, 0)); /* only its buffer is used */
    uint32_t of = (uint32_t)k->inst[x].imm;
    if (k->inst[x].op != L_LOAD || !attention_view(a, which, s->gradient, s->keys, &v)) {
        kernel_mark_unsupported(k, "an operand that tensor copies cannot take");
        return r;
    }
    r.view = k_buf(k, BUF_VIEW, s->dtype, k->buf[of].count, of);
    if (k->err.code)
        return r;
    k->buf[r.view].first = v.view.first;
    memcpy(k->buf[r.view].size, v.view.size, sizeof v.view.size);
    memcpy(k->buf[r.view].step, v.view.step, sizeof v.view.step);
    for (unsigned i = 0; i < a->lead.rank; i++) {
        r.column = ix_add(k, r.column, ix_scale(k, a->coord[i], v.column[i]));
        r.matrix = ix_add(k, r.matrix, ix_scale(k, a->coord[i], v.matrix[i]));
    }
    return r;
}

static int64_t column_panels(const struct columns *c) { return c->count / PANEL_COLUMNS; }

/* Copies rows from `row` on to a stage. */
static void copy_panels(const struct tiles *s, const struct columns *c, const struct source *from, val row, val stage)
{
    struct kernel *k = s->a->w->k;
    val to = ix_scale(k, stage, c->elements), column = ix_add(k, from->column, k_int(k, c->from));
    for (int64_t p = 0; p < column_panels(c); p++) {
        val more = k_int(k, p * PANEL_COLUMNS);
        k_append(k, (struct linst){.op = L_COPY_PANEL, .dtype = KL_BOOL, .a = ix_add(k, to, more),
                                   .b = ix_add(k, column, more), .c = row, .d = from->matrix,
                                   .imm = c->buf | (uint64_t)from->view << 32});
    }
}

static void emit_copies(const struct tiles *s, const struct steps *r)
{
    struct kernel *k = s->a->w->k;
    const struct columns *own = s->own, *walked = s->walked;
    struct source from = tile_source(s, own[0].which), to[2] = {tile_source(s, walked[0].which)};
    to[1] = has_pairs(s) ? tile_source(s, walked[1].which) : to[0];
    val one = k_if(k, k_prim(k, P_EQ, s->t, k_int(k, s->s.width), 0)), zero = k_int(k, 0);
    arrive(s, s->phase.own, zero, column_panels(&own[0]) + column_panels(&own[1]));
    for (int o = 0; o < 2; o++)
        copy_panels(s, &own[o], &from, s->a->q0, zero);
    val i = loop_of_steps(s, r, zero, r->count), stage = stage_of(s, i), turn = ix_div(k, i, s->stages);
    val row = ix_scale(k, step_number(s, r, i), s->step);
    int groups = has_pairs(s) ? 2 : 1;
    for (int g = 0; g < groups; g++) {
        await(s, s->phase.used[g], stage, turn);
        arrive(s, s->phase.filled[g], stage, column_panels(&walked[g]) + (groups == 1 ? column_panels(&walked[1]) : 0));
        for (int o = g; o < (groups == 1 ? 2 : g + 1); o++)
            copy_panels(s, &walked[o], &to[o], row, stage);
    }
    k_end(k, i);
    k_end(k, one);
}

/* ---- the role that multiplies ---- */

enum { WEIGHTS = CARRIED, CARRIED_WEIGHTS }; /* attention carries the weights of the step before, too */

/* q k^T of a step, whose weights then are value[WEIGHTS]. */
static void attend_step(struct tiles *s, const struct steps *r, val i, bool masked, bool first,
                        val value[CARRIED_WEIGHTS])
{
    struct kernel *k = s->a->w->k;
    bool pairs = has_pairs(s);
    val factor[MAX_FACTORS], there, shrink;
    if (pairs && !first)
        tiles_factors(s, value[WEIGHTS], factor);
    await_full_barrier(s, 0, i);
    pingpong_wait(s, i);
    val score = tiles_products(s, 0, stage_of(s, i), tiles_splat(k, 0, s->m, s->step));
    tiles_commit(s);
    if (pairs && !first) {
        await_full_barrier_before(s, 1, i);
        value[TOTAL] = tiles_weighted(s, factor, 1, stage_before(s, i), value[TOTAL]);
        tiles_commit(s);
    }
    pingpong_pass(s);
    val seen = tiles_enter_step(s, step_number(s, r, i), masked, &there);
    tiles_wait(s, pairs && !first);
    arrive(s, s->phase.used[0], stage_of(s, i), 0);
    value[WEIGHTS] = tiles_soften(s, score, seen, value, &shrink);
    if (pairs && !first) {
        tiles_wait(s, 0);
        arrive(s, s->phase.used[1], stage_before(s, i), 0);
        value[TOTAL] = k_prim(k, P_MUL, value[TOTAL], shrink, 0);
    }
}

static void add_step(struct tiles *s, const struct steps *r, val i, bool masked, val total[CARRIED])
{
    struct kernel *k = s->a->w->k;
    val stage = stage_of(s, i), zero = tiles_splat(k, 0, s->m, s->step), stat[STAT_COUNT], factor[2][MAX_FACTORS];
    val there, seen = tiles_enter_step(s, step_number(s, r, i), masked, &there);
    tiles_statistics(s, there, stat);
    await_full_barrier(s, 0, i);
    val score = tiles_products(s, 0, stage, zero);
    tiles_commit(s);
    val dp = tiles_products(s, 1, stage, zero);
    tiles_commit(s);
    tiles_wait(s, 1);
    val p = tiles_probability(s, score, seen, stat);
    if (s->keys) {
        tiles_factors(s, p, factor[1]);
        total[1] = tiles_weighted(s, factor[1], 1, stage, total[1]);
        tiles_commit(s);
    }
    tiles_wait(s, s->keys);
    tiles_factors(s, tiles_ds(s, dp, p, seen, stat), factor[0]);
    total[0] = tiles_weighted(s, factor[0], 0, stage, total[0]);
    tiles_commit(s);
    tiles_wait(s, 0);
    arrive(s, s->phase.used[0], stage, 0);
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

static void emit_own(struct tiles *s, const struct steps *r)
{
    struct kernel *k = s->a->w->k;
    val value[CARRIED_WEIGHTS] = {0}, zero = k_int(k, 0), from = zero;
    bool pairs = has_pairs(s), all = s->a->mask || s->a->bounds || (s->keys && s->a->m % s->step);
    tiles_prepare(s);
    tiles_start(s, value);
    await(s, s->phase.own, zero, k_int(k, 1));
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
        await_full_barrier_before(s, 1, r->count);
        value[TOTAL] = tiles_weighted(s, factor, 1, stage_before(s, r->count), value[TOTAL]);
        tiles_commit(s);
    }
    tiles_wait(s, 0);
    tiles_finish(s, value);
}

void attention_emit_warp_specialized(struct tiles *s)
{
    struct kernel *k = s->a->w->k;
    const int64_t subgroup = s->s.attention_matrix.subgroup, groups = s->s.width / subgroup;
    val number = ix_div(k, s->t, subgroup), last = k_int(k, groups);
    struct steps r = steps_of(s);
    val copies = begin_warp_role(s, k_prim(k, P_EQ, number, last, 0), COPYING_REGISTERS);
    emit_copies(s, &r);
    k_end(k, copies);
    val multiplies = begin_warp_role(s, k_prim(k, P_LT, number, last, 0), MULTIPLYING_REGISTERS);
    s->t = ix_mod(k, s->t, s->s.width); /* the same numbers, whose ranges are known */
    s->group = ix_mod(k, number, groups);
    s->first = ix_scale(k, s->group, s->m);
    emit_own(s, &r);
    k_end(k, multiplies);
}
