/* Products of half floats by a GPU's matrix units: a block of threads owns BLOCK_M x BLOCK_N results, each of its teams a
 * tile of MR x NR of them, in slabs of as many rows as the unit has.
 *
 * The contraction goes by in steps, as in lower_dot_gpu.c: the elements that a step needs lie in shared memory, there is
 * room for two of them, and while the teams multiply one, each thread has its part of the next on the way from memory.
 * Both operands lie there with the contraction's neighbours side by side, for the unit takes halves by pairs of these; rows
 * are a few halves longer than a step, so that a team's lanes read from different banks.  Elements beyond the end are
 * zeros.
 *
 * A unit's sums are spread over the team's lanes as the hardware has it, which the loop IR does not say: a slab of every
 * tile goes to shared memory, and from there element by element to the epilogue, neighbours to neighbouring threads.
 *
 * The unit adds products in an order of its own (MMA_ANY) and a sum goes through all of the contraction, whatever pass
 * numerics' k-blocks: the same within n * 2^-22 of the sum of the products' sizes, n being the length, and then rounded
 * to the result's dtype as ever. */
#include "lower_dot.h"

struct teams {
    struct dot *d;
    struct schedule s;
    struct mma_caps unit;
    unsigned dtype;                 /* of the factors */
    int64_t threads, col_teams;     /* of the block; in a row of tiles */
    int64_t row;                    /* from a row of an operand in shared memory to the next, in elements; */
    int64_t out_row;                /* of a slab */
    unsigned slabs;                 /* of a tile */
    uint32_t a, b, out;             /* lbufs: two steps of the operands, a slab of each tile */
    bool a_along_k, b_along_k;
    val t, i0, j0;                  /* the thread, the block's first row and column */
    val tile_i, tile_j;             /* its team's tile, among the block's */
};

enum { MAX_PARTS = 32, MAX_SLABS = 8, MAX_SUMS = 64, PAD = 8, OUT_PAD = 8 }; /* parts: elements a thread brings in a step;
                                                                               sums: that it holds; pads: elements */

/* ---- the schedule ---- */

static int64_t slab_rows(const struct mma_caps *u, const struct schedule *s) { return (int64_t)s->block_m / s->mr * u->m; }

/* Can teams on this target do what the record says? */
static bool fits(const struct dot *d, const struct schedule *s)
{
    const struct caps *c = d->w->caps;
    const struct mma_caps *u = &c->mma;
    if (s->pack_a || s->pack_b || !s->mr || !s->nr || !s->step || !s->block_m || !s->block_n || s->block_m % s->mr || s->block_n % s->nr ||
        s->mr % u->m || s->nr % u->n || s->step % u->k || s->mr / u->m > MAX_SLABS || s->mr * s->nr > MAX_SUMS * u->team)
        return false;
    int64_t threads = (int64_t)(s->block_m / s->mr) * (s->block_n / s->nr) * u->team, out = slab_rows(u, s);
    int64_t a = (int64_t)s->block_m * s->step, b = (int64_t)s->block_n * s->step;
    int64_t bytes = 2 * 2 * ((int64_t)s->block_m + s->block_n) * (s->step + PAD) + 4 * out * (s->block_n + OUT_PAD);
    return threads == s->width && threads <= (int64_t)c->block_threads && a % threads == 0 && b % threads == 0 &&
           out * s->block_n % threads == 0 && a / threads <= MAX_PARTS && b / threads <= MAX_PARTS && bytes <= (int64_t)c->shared_bytes;
}

/* The largest tiles that make a block for every one the GPU can run at once, and of which most have something to do. */
static bool choose(const struct dot *d, struct schedule *s)
{
    static const struct { uint16_t mr, nr, rows, cols, step; } shape[] = {
        {64, 64, 2, 2, 16}, {64, 32, 2, 4, 16}, {64, 32, 2, 2, 32}, {32, 32, 2, 2, 32}, {32, 16, 1, 2, 32}, {16, 32, 2, 1, 32},
        {16, 16, 1, 1, 32}};
    bool found = false;
    for (unsigned i = 0; i < sizeof shape / sizeof *shape; i++) {
        struct schedule x = {.kind = SCHED_DOT, .width = (uint16_t)(shape[i].rows * shape[i].cols * d->w->caps->mma.team), .mr = shape[i].mr,
                             .nr = shape[i].nr, .kc = (uint32_t)d->kblock, .block_m = shape[i].mr * shape[i].rows,
                             .block_n = shape[i].nr * shape[i].cols, .step = shape[i].step};
        if (!fits(d, &x) || x.block_m / 2 >= d->size.m || x.block_n / 2 >= d->size.n)
            continue;
        *s = x;
        found = true;
        if (dot_occupies(d, &x))
            break;
    }
    return found;
}

bool dot_matrix(const struct dot *d, struct schedule *s)
{
    const struct schedule *given = d->w->given;
    const struct graph *g = d->w->g;
    unsigned dtype = g->node[d->n->in[0]].dtype;
    if (!(d->w->caps->mma.dtypes >> dtype & 1) || g->node[d->n->in[1]].dtype != dtype || d->size.batch < 1 || d->size.k < 1 || !choose(d, s))
        return false;
    if (given && given->mr && given->nr && (given->block_m / given->mr) * (given->block_n / given->nr) == given->width)
        return false; /* by threads */
    if (given && fits(d, given) && given->kc == (uint32_t)d->kblock)
        *s = *given;
    return dot_fits_grid(d, s);
}

/* ---- one step ---- */

/* A thread's part of an operand's step: elements t, t + threads, .. of it. */
struct part { val value[MAX_PARTS], at[MAX_PARTS]; int64_t n; };

/* Elements that are computed rather than loaded are something beyond the end, too. */
static val or_zero(const struct teams *s, val there, val x)
{
    struct kernel *k = s->d->w->k;
    const struct linst *i = &k->inst[x];
    return i->op == L_LOAD && i->b == there ? x : k_prim(k, P_SELECT, there, x, k_bits(k, s->dtype, 0));
}

/* Starts to bring an operand's step from memory; `first` is its first element of the contraction.  beyond: it may reach
 * past the last. */
static void fetch(const struct teams *s, bool second, val first, bool beyond, struct part *p)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    int64_t length = second ? s->s.block_n : s->s.block_m, size = second ? s->d->size.n : s->d->size.m, step = s->s.step;
    bool along_k = second ? s->b_along_k : s->a_along_k;
    p->n = length * step / s->threads;
    for (int64_t i = 0; i < p->n; i++) {
        val e = ix_add(k, s->t, k_int(k, i * s->threads)), there = 0;
        val side = along_k ? ix_div(k, e, step) : ix_mod(k, e, length), kk = along_k ? ix_mod(k, e, step) : ix_div(k, e, length);
        p->at[i] = ix_add(k, ix_scale(k, side, s->row), kk);
        val free = ix_add(k, second ? s->j0 : s->i0, side), at = ix_add(k, first, kk);
        if (size % length)
            there = k_prim(k, P_LT, free, k_int(k, size), 0);
        if (beyond) {
            val in = k_prim(k, P_LT, at, k_int(k, s->d->size.k), 0);
            there = there ? k_prim(k, P_AND, there, in, 0) : in;
        }
        if (there) { /* of those that are */
            ix_bound(k, free, 0, size - 1);
            ix_bound(k, at, 0, s->d->size.k - 1);
        }
        w->pred = there;
        w->pred_all = true;
        p->value[i] = dot_stored_element(s->d, second, free, at);
        w->pred = 0;
        w->pred_all = false;
        if (beyond)
            p->value[i] = or_zero(s, there, p->value[i]);
    }
}

static void put(const struct teams *s, bool second, val half, const struct part *p)
{
    struct kernel *k = s->d->w->k;
    int64_t elements = (second ? s->s.block_n : s->s.block_m) * s->row;
    for (int64_t i = 0; i < p->n; i++)
        k_store(k, second ? s->b : s->a, ix_add(k, ix_scale(k, half, elements), p->at[i]), p->value[i], 0);
}

/* sum[] and the products of one half of shared memory. */
static void multiply(const struct teams *s, val half, const val *sum, val *next)
{
    struct kernel *k = s->d->w->k;
    val a0 = ix_add(k, ix_scale(k, half, s->s.block_m * s->row), ix_scale(k, s->tile_i, s->s.mr * s->row));
    val b0 = ix_add(k, ix_scale(k, half, s->s.block_n * s->row), ix_scale(k, s->tile_j, s->s.nr * s->row));
    for (unsigned kk = 0; kk < s->s.step; kk += s->unit.k) {
        val b = dot_load(k, s->b, ix_add(k, b0, k_int(k, kk)), TILE_COLS, s->row, s->unit.k, s->s.nr);
        for (unsigned i = 0; i < s->slabs; i++) {
            val a = dot_load(k, s->a, ix_add(k, a0, k_int(k, i * s->unit.m * s->row + kk)), TILE_ROWS, s->row, s->unit.m, s->unit.k);
            next[i] = dot_mma(k, MMA_ANY, a, b, kk ? next[i] : sum[i]);
        }
    }
}

/* ---- the contraction ---- */

/* The sums of the team's tile, a slab each. */
static void emit_sums(const struct teams *s, val *sum)
{
    struct kernel *k = s->d->w->k;
    struct part a, b;
    val next[MAX_SLABS], zero = dot_splat(k, k_bits(k, KL_F32, 0), s->unit.m, s->s.nr);
    int64_t steps = dot_parts(s->d->size.k, s->s.step);
    bool whole = s->d->size.k >= s->s.step;
    fetch(s, false, k_int(k, 0), !whole, &a);
    fetch(s, true, k_int(k, 0), !whole, &b);
    put(s, false, k_int(k, 0), &a);
    put(s, true, k_int(k, 0), &b);
    dot_meet(k);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, steps), 1);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_carry(k, zero);
    val half = ix_mod(k, step, 2), other = ix_sub(k, k_int(k, 1), half);
    val first = ix_scale(k, ix_add(k, step, k_int(k, 1)), s->s.step);
    if (steps > 1) {
        fetch(s, false, first, true, &a);
        fetch(s, true, first, true, &b);
    }
    multiply(s, half, sum, next);
    if (steps > 1) {
        put(s, false, other, &a);
        put(s, true, other, &b);
    }
    dot_meet(k);
    for (unsigned i = 0; i < s->slabs; i++)
        k_next(k, sum[i], next[i]);
    k_end(k, step);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_out(k, sum[i]);
}

/* ---- results ---- */

/* The thread's elements of a slab of all tiles: row r of it is of tile r / M, and there row r % M of the slab. */
static void emit_slab(const struct teams *s, val slab)
{
    struct kernel *k = s->d->w->k;
    const struct dot_dims *size = &s->d->size;
    int64_t elements = slab_rows(&s->unit, &s->s) * s->s.block_n;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, elements / s->threads), 1);
    val e = ix_add(k, ix_scale(k, i, s->threads), s->t), r = ix_div(k, e, s->s.block_n), col = ix_mod(k, e, s->s.block_n);
    val row = ix_add(k, ix_scale(k, ix_div(k, r, s->unit.m), s->s.mr), ix_add(k, ix_scale(k, slab, s->unit.m), ix_mod(k, r, s->unit.m)));
    val m = ix_add(k, s->i0, row), n = ix_add(k, s->j0, col), there = 0;
    if (size->m % s->s.block_m)
        there = k_prim(k, P_LT, m, k_int(k, size->m), 0);
    if (size->n % s->s.block_n) {
        val in = k_prim(k, P_LT, n, k_int(k, size->n), 0);
        there = there ? k_prim(k, P_AND, there, in, 0) : in;
    }
    if (there)
        there = k_if(k, there);
    ix_bound(k, m, 0, size->m - 1);
    ix_bound(k, n, 0, size->n - 1);
    dot_epilogue(s->d, m, n, k_load(k, s->out, ix_add(k, ix_scale(k, r, s->out_row), col), 0));
    if (there)
        k_end(k, there);
    k_end(k, i);
}

/* Slab by slab: the teams store theirs, then every thread has a part of all of them. */
static void emit_results(const struct teams *s, const val *sum)
{
    struct kernel *k = s->d->w->k;
    val at = ix_add(k, ix_scale(k, s->tile_i, s->unit.m * s->out_row), ix_scale(k, s->tile_j, s->s.nr));
    val slab = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->slabs), 1);
    for (unsigned i = 0; i < s->slabs; i++) {
        val chosen = k_if(k, k_prim(k, P_EQ, slab, k_int(k, i), 0));
        dot_store(k, s->out, at, s->out_row, sum[i]);
        k_end(k, chosen);
    }
    dot_meet(k);
    emit_slab(s, slab);
    dot_meet(k);
    k_end(k, slab);
}

/* ---- the kernel ---- */

void dot_emit_matrix(struct dot *d, const struct schedule *schedule)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const struct mma_caps *unit = &w->caps->mma;
    struct teams s = {.d = d, .s = *schedule, .unit = *unit, .dtype = w->g->node[d->n->in[0]].dtype, .threads = schedule->width,
                      .col_teams = schedule->block_n / schedule->nr, .row = schedule->step + PAD, .out_row = schedule->block_n + OUT_PAD,
                      .slabs = schedule->mr / unit->m};
    val sum[MAX_SLABS];
    s.a_along_k = dot_along_k(d, false);
    s.b_along_k = dot_along_k(d, true);
    k->sched = *schedule;
    lower_scalars(w);
    s.a = k_buf(k, BUF_SHARED, s.dtype, 2 * schedule->block_m * s.row, 0);
    s.b = k_buf(k, BUF_SHARED, s.dtype, 2 * schedule->block_n * s.row, 0);
    s.out = k_buf(k, BUF_SHARED, KL_F32, slab_rows(unit, schedule) * s.out_row, 0);
    int64_t rows = dot_parts(d->size.m, schedule->block_m), cols = dot_parts(d->size.n, schedule->block_n);
    k->extent = d->size.batch * rows * cols;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, k->extent), 1);
    d->batch_index = ix_div(k, p, rows * cols);
    s.i0 = ix_scale(k, ix_mod(k, ix_div(k, p, cols), rows), schedule->block_m);
    s.j0 = ix_scale(k, ix_mod(k, p, cols), schedule->block_n);
    s.t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, s.threads), 1);
    k->inst[s.t].rows = unit->team;
    val team = ix_div(k, s.t, unit->team);
    s.tile_i = ix_div(k, team, s.col_teams);
    s.tile_j = ix_mod(k, team, s.col_teams);
    emit_sums(&s, sum);
    emit_results(&s, sum);
    k_end(k, s.t);
    k_end(k, p);
}
