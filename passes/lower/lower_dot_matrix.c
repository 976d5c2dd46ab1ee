/* Products of half floats by a GPU's matrix units: a block of threads owns BLOCK_M x BLOCK_N results, each of its
 * subgroups a tile of MR x NR of them, in slabs of as many rows as the unit has.
 *
 * The contraction goes by in steps, as in lower_dot_gpu.c: the elements that a step needs lie in shared memory, there
 * is room for two of them, and while the subgroups multiply one, each thread has its part of the next on the way from
 * memory. An operand that is an array in memory, with neighbours in whole vectors at whole vectors, is copied as it
 * lies there, without a thread that waits for it; of others each thread computes its part before the products and
 * stores it behind them, with the contraction's neighbours side by side, for the unit takes halves by pairs of these.
 * Rows are a few halves longer than their elements, so that a subgroup's lanes read from different banks.  Elements
 * beyond the end are zeros.
 *
 * A unit's sums are spread over the subgroup's lanes as the hardware has it, which the loop IR does not say: a slab of
 * every tile goes to shared memory, and from there element by element to the epilogue, neighbours to neighbouring
 * threads.
 *
 * The unit adds products in an order of its own (MMA_ANY) and a sum goes through all of the contraction, whatever pass
 * numerics' k-blocks: the same within n * 2^-22 of the sum of the products' sizes, n being the length, and then rounded
 * to the result's dtype as usual. */
#include "lower_dot.h"

/* One of the operands. */
struct factor {
    uint32_t buf;                   /* two steps of it, in shared memory */
    bool along_k;                   /* are its neighbours in memory those along the contraction? */
    bool copied;                    /* in vectors */
    /* its rows in shared memory are along the contraction; else along the block's side */
    bool by_k;
    int64_t side;                   /* elements of the block's side */
    int64_t row, elements;          /* from a row in shared memory to the next; of a step there */
    val first;                      /* the block's first row, or column */
};

struct subgroups {
    struct dot *d;
    struct schedule s;
    struct mma_caps unit;
    unsigned dtype;                 /* of the factors */
    int64_t threads, col_subgroups;     /* of the block; in a row of tiles */
    struct factor factor[2];
    uint32_t out;                   /* a slab of each tile, in shared memory; */
    int64_t out_row;                /* from a row of it to the next */
    unsigned slabs;                 /* of a tile */
    val t;                          /* the thread */
    val tile_i, tile_j;             /* its subgroup's tile, among the block's */
};

enum {
    MAX_PARTS = 32,                 /* elements that a thread brings in a step; */
    MAX_SUMS = 64,                  /* that it holds sums of */
    MAX_SLABS = 8,
    PAD = 8, VECTOR = 8,            /* elements */
};

/* ---- the schedule ---- */

static int64_t slab_rows(const struct mma_caps *u, const struct schedule *s)
{
    return (int64_t)s->block_m / s->mr * u->m;
}

/* Of a step in shared memory, however it lies there. */
static int64_t factor_elements(int64_t side, int64_t step)
{
    int64_t by_k = side * (step + PAD), by_side = step * (side + PAD);
    return by_k > by_side ? by_k : by_side;
}

/* Can subgroups on this target do what the record says? */
static bool dot_matrix_fits(const struct dot *d, const struct schedule *s)
{
    const struct caps *c = d->w->caps;
    const struct mma_caps *u = &c->mma;
    if (s->pack_b || !s->mr || !s->nr || !s->step || !s->block_m || !s->block_n)
        return false;
    if (s->block_m % s->mr || s->block_n % s->nr || s->mr % u->m || s->nr % u->n || s->step % u->k ||
        s->mr / u->m > MAX_SLABS ||
        s->mr * s->nr > MAX_SUMS * u->subgroup)
        return false;
    int64_t threads = (int64_t)(s->block_m / s->mr) * (s->block_n / s->nr) * u->subgroup, out = slab_rows(u, s);
    int64_t a = (int64_t)s->block_m * s->step, b = (int64_t)s->block_n * s->step;
    int64_t bytes = 2 * 2 * (factor_elements(s->block_m, s->step) + factor_elements(s->block_n, s->step)) + 4 * out *
        (s->block_n + PAD);
    return threads == s->width && threads <= (int64_t)c->block_threads && a % threads == 0 && b % threads == 0 &&
           out * s->block_n % threads == 0 && a / threads <= MAX_PARTS && b / threads <= MAX_PARTS &&
               bytes <= (int64_t)c->shared_bytes;
}

/* The largest tiles that make a block for every one the GPU can run at once, and of which most have something to do. */
static bool dot_matrix_choose(const struct dot *d, struct schedule *s)
{
    static const struct dot_shape shape[] = {
        {64, 64, 2, 2, 16}, {64, 32, 2, 4, 16}, {64, 32, 2, 2, 32}, {32, 32, 2, 2, 32}, {32, 16, 1, 2, 32},
            {16, 32, 2, 1, 32},
        {16, 16, 1, 1, 32}};
    bool found = false;
    for (unsigned i = 0; i < sizeof shape / sizeof *shape; i++) {
        struct schedule x = dot_schedule(d, &shape[i], d->w->caps->mma.subgroup);
        if (!dot_matrix_fits(d, &x) || !dot_fills(d, &x))
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
    const struct schedule *override = d->w->override;
    const struct graph *g = d->w->g;
    unsigned dtype = g->node[d->n->in[0]].dtype;
    if (!(d->w->caps->mma.dtypes >> dtype & 1) || g->node[d->n->in[1]].dtype != dtype || d->size.batch < 1 ||
        d->size.k < 1 || !dot_matrix_choose(d, s))
        return false;
    if (override && override->mr && override->nr && (override->block_m / override->mr) *
        (override->block_n / override->nr) == override->width)
        return false; /* by threads */
    if (override && dot_matrix_fits(d, override) && override->kc == (uint32_t)d->kblock)
        *s = *override;
    return dot_fits_grid(d, s);
}

/* ---- one step ---- */

/* A thread's part of an operand's step: elements t, t + threads, .. of it. */
struct part { val value[MAX_PARTS], at[MAX_PARTS]; int64_t n; };

/* Elements that are computed rather than loaded are something beyond the end, too. */
static val or_zero(const struct subgroups *s, val mask, val x)
{
    struct kernel *k = s->d->w->k;
    const struct linst *i = &k->inst[x];
    return i->op == L_LOAD && i->b == mask ? x : k_prim(k, P_SELECT, mask, x, k_bits(k, s->dtype, 0));
}

/* Which of a step's elements are there: number `side` of the block, number kk of the step.  `first` is the step's first
 * element of the contraction; beyond: the step may reach past the last. */
static val dot_matrix_find(const struct subgroups *s, bool second, val first, bool beyond, val side, val kk, val *free,
                           val *at)
{
    struct kernel *k = s->d->w->k;
    *free = ix_add(k, s->factor[second].first, side);
    *at = ix_add(k, first, kk);
    return dot_there(s->d, second, s->factor[second].side, beyond, *free, *at);
}

/* Starts to bring an operand's step from memory. */
static void fetch(const struct subgroups *s, bool second, val first, bool beyond, struct part *p)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    const struct factor *f = &s->factor[second];
    int64_t step = s->s.step;
    p->n = f->side * step / s->threads;
    for (int64_t i = 0; i < p->n; i++) {
        val e = ix_add(k, s->t, k_int(k, i * s->threads)), free, at;
        val side = f->along_k ? ix_div(k, e, step) : ix_mod(k, e, f->side),
            kk = f->along_k ? ix_mod(k, e, step) : ix_div(k, e, f->side);
        p->at[i] = ix_add(k, ix_scale(k, side, f->row), kk);
        val mask = dot_matrix_find(s, second, first, beyond, side, kk, &free, &at);
        w->pred = mask;
        w->pred_all = true;
        p->value[i] = dot_stored_element(s->d, second, free, at);
        w->pred = 0;
        w->pred_all = false;
        if (beyond)
            p->value[i] = or_zero(s, mask, p->value[i]);
    }
}

static void dot_matrix_put(const struct subgroups *s, const struct factor *f, val half, const struct part *p)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < p->n; i++)
        k_store(k, f->buf, ix_add(k, ix_scale(k, half, f->elements), p->at[i]), p->value[i], 0);
}

/* Starts copies of an operand's step into a half of shared memory: vectors t, t + threads, .. of it. */
static void dot_matrix_copy(const struct subgroups *s, bool second, val first, bool beyond, val half)
{
    struct kernel *k = s->d->w->k;
    const struct factor *f = &s->factor[second];
    int64_t vectors = (f->by_k ? s->s.step : f->side) / VECTOR;
    for (int64_t i = 0; i < f->side * s->s.step / VECTOR / s->threads; i++) {
        val e = ix_add(k, s->t, k_int(k, i * s->threads)), free, at;
        val row = ix_div(k, e, vectors), col = ix_scale(k, ix_mod(k, e, vectors), VECTOR);
        val to = ix_add(k, ix_scale(k, half, f->elements), ix_add(k, ix_scale(k, row, f->row), col));
        val mask = dot_matrix_find(s, second, first, beyond, f->by_k ? row : col, f->by_k ? col : row, &free, &at);
        val x = dot_stored_element(s->d, second, free, at); /* only its place is wanted */
        uint64_t from = k->inst[x].imm;
        k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = VECTOR, .a = to, .b = k->inst[x].a,
                                   .c = mask,
                                   .imm = f->buf | from << 32});
    }
}

/* sum[] and the products of one half of shared memory. */
static void dot_matrix_multiply(const struct subgroups *s, val half, const val *sum, val *next)
{
    struct kernel *k = s->d->w->k;
    const struct factor *fa = &s->factor[0], *fb = &s->factor[1];
    int64_t a_row = fa->by_k ? fa->row : 1, a_col = fa->by_k ? 1 : fa->row, b_row = fb->by_k ? 1 : fb->row,
        b_col = fb->by_k ? fb->row : 1;
    val a0 = ix_add(k, ix_scale(k, half, fa->elements), ix_scale(k, s->tile_i, s->s.mr * a_row));
    val b0 = ix_add(k, ix_scale(k, half, fb->elements), ix_scale(k, s->tile_j, s->s.nr * b_col));
    for (unsigned kk = 0; kk < s->s.step; kk += s->unit.k) {
        val b = dot_load(k, fb->buf, ix_add(k, b0, k_int(k, kk * b_row)), fb->by_k ? TILE_COLS : TILE_ROWS,
                         k_int(k, fb->row),
                         s->unit.k, s->s.nr, 0);
        for (unsigned i = 0; i < s->slabs; i++) {
            val at = ix_add(k, a0, k_int(k, i * s->unit.m * a_row + kk * a_col));
            val a = dot_load(k, fa->buf, at, fa->by_k ? TILE_ROWS : TILE_COLS, k_int(k, fa->row), s->unit.m, s->unit.k,
                             0);
            next[i] = dot_mma(k, MMA_ANY, a, b, kk ? next[i] : sum[i]);
        }
    }
}

/* ---- the contraction ---- */

/* Brings a step: begin, then what else there is to do meanwhile, then end. */
static void begin_step(const struct subgroups *s, val first, bool beyond, val half, struct part part[2])
{
    for (int o = 0; o < 2; o++) {
        if (s->factor[o].copied)
            dot_matrix_copy(s, o, first, beyond, half);
        else
            fetch(s, o, first, beyond, &part[o]);
    }
    if (s->factor[0].copied || s->factor[1].copied)
        k_inst(s->d->w->k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
}

static void end_step(const struct subgroups *s, val half, const struct part part[2])
{
    for (int o = 0; o < 2; o++)
        if (!s->factor[o].copied)
            dot_matrix_put(s, &s->factor[o], half, &part[o]);
    if (s->factor[0].copied || s->factor[1].copied)
        k_inst(s->d->w->k, L_WAIT, KL_BOOL, 0, 0, 0, 0);
}

/* The sums of the subgroup's tile, a slab each. */
static void emit_sums(const struct subgroups *s, val *sum)
{
    struct kernel *k = s->d->w->k;
    struct part part[2];
    val next[MAX_SLABS], zero = dot_splat(k, k_bits(k, KL_F32, 0), s->unit.m, s->s.nr);
    int64_t steps = dot_parts(s->d->size.k, s->s.step);
    begin_step(s, k_int(k, 0), s->d->size.k < s->s.step, k_int(k, 0), part);
    end_step(s, k_int(k, 0), part);
    dot_meet(k);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, steps), 1);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_carry(k, zero);
    val half = ix_mod(k, step, 2), other = ix_sub(k, k_int(k, 1), half);
    if (steps > 1)
        begin_step(s, ix_scale(k, ix_add(k, step, k_int(k, 1)), s->s.step), true, other, part);
    dot_matrix_multiply(s, half, sum, next);
    if (steps > 1)
        end_step(s, other, part);
    dot_meet(k);
    for (unsigned i = 0; i < s->slabs; i++)
        k_next(k, sum[i], next[i]);
    k_end(k, step);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_out(k, sum[i]);
}

/* ---- results ---- */

/* The thread's elements of a slab of all tiles: row r of it is of tile r / M, and there row r % M of the slab. */
static void emit_slab(const struct subgroups *s, val slab)
{
    struct kernel *k = s->d->w->k;
    int64_t elements = slab_rows(&s->unit, &s->s) * s->s.block_n;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, elements / s->threads), 1);
    val e = ix_add(k, ix_scale(k, i, s->threads), s->t), r = ix_div(k, e, s->s.block_n),
        col = ix_mod(k, e, s->s.block_n);
    val row = ix_add(k, ix_scale(k, ix_div(k, r, s->unit.m), s->s.mr),
                     ix_add(k, ix_scale(k, slab, s->unit.m), ix_mod(k, r, s->unit.m)));
    val m = ix_add(k, s->factor[0].first, row), n = ix_add(k, s->factor[1].first, col);
    val mask = dot_if_there(s->d, &s->s, m, n);
    dot_epilogue(s->d, m, n, k_load(k, s->out, ix_add(k, ix_scale(k, r, s->out_row), col), 0));
    if (mask)
        k_end(k, mask);
    k_end(k, i);
}

/* Slab by slab: the subgroups store theirs, then every thread has a part of all of them. */
static void emit_results(const struct subgroups *s, const val *sum)
{
    struct kernel *k = s->d->w->k;
    val at = ix_add(k, ix_scale(k, s->tile_i, s->unit.m * s->out_row), ix_scale(k, s->tile_j, s->s.nr));
    val slab = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->slabs), 1);
    for (unsigned i = 0; i < s->slabs; i++) {
        val chosen = k_if(k, k_prim(k, P_EQ, slab, k_int(k, i), 0));
        dot_store(k, s->out, at, TILE_ROWS, k_int(k, s->out_row), sum[i]);
        k_end(k, chosen);
    }
    dot_meet(k);
    emit_slab(s, slab);
    dot_meet(k);
    k_end(k, slab);
}

/* ---- the kernel ---- */

/* Is the operand an array of which whole vectors of neighbours begin at whole vectors, and end with the array's? */
static bool has_vectors(const struct dot *d, bool second, bool along_k)
{
    struct trial t;
    bool ok = false;
    if ((along_k ? d->size.k : second ? d->size.n : d->size.m) % VECTOR)
        return false;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        int64_t step[3], lo, hi;
        copy.w = &t.w;
        val v[3]; /* batch, side, contraction */
        v[0] = copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        v[1] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, second ? d->size.n : d->size.m), 1);
        v[2] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
        const struct linst *x = &k->inst[dot_stored_element(&copy, second, v[1], v[2])];
        ok = x->op == L_LOAD && k->buf[x->imm].role == BUF_IN && ix_range(k, x->a, &lo, &hi) && lo % VECTOR == 0 &&
             k->buf[x->imm].count % VECTOR == 0; /* it may be one of many that a scan goes through */
        for (int i = 0; i < 3 && ok; i++)
            ok = ix_stride(k, x->a, v[i], &step[i]) && step[i] >= 0 &&
                (i == 2 - !along_k ? step[i] == 1 : step[i] % VECTOR == 0);
    }
    trial_end(&t, d->w);
    return ok;
}

static struct factor factor_of(const struct subgroups *s, bool second)
{
    const struct dot *d = s->d;
    struct factor f = {.along_k = dot_along_k(d, second), .side = second ? s->s.block_n : s->s.block_m};
    int64_t vectors = (f.along_k ? s->s.step : f.side) / VECTOR;
    f.copied = vectors && (f.along_k ? s->s.step : f.side) % VECTOR == 0 &&
        f.side * s->s.step / VECTOR % s->threads == 0 &&
               has_vectors(d, second, f.along_k);
    f.by_k = f.along_k || !f.copied;
    f.row = (f.by_k ? s->s.step : f.side) + PAD;
    f.elements = (f.by_k ? f.side : s->s.step) * f.row;
    f.buf = k_buf(d->w->k, BUF_SHARED, s->dtype, 2 * f.elements, 0);
    return f;
}

void dot_emit_matrix(struct dot *d, const struct schedule *schedule)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const struct mma_caps *unit = &w->caps->mma;
    struct subgroups s = {.d = d, .s = *schedule, .unit = *unit, .dtype = w->g->node[d->n->in[0]].dtype,
                      .threads = schedule->width,
                      .col_subgroups = schedule->block_n / schedule->nr, .out_row = schedule->block_n + PAD,
                          .slabs = schedule->mr / unit->m};
    val sum[MAX_SLABS];
    k->sched = *schedule;
    lower_scalars(w);
    s.factor[0] = factor_of(&s, false);
    s.factor[1] = factor_of(&s, true);
    s.out = k_buf(k, BUF_SHARED, KL_F32, slab_rows(unit, schedule) * s.out_row, 0);
    int64_t rows = dot_parts(d->size.m, schedule->block_m), cols = dot_parts(d->size.n, schedule->block_n);
    k->extent = d->size.batch * rows * cols;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, k->extent), 1);
    d->batch_index = ix_div(k, p, rows * cols);
    s.factor[0].first = ix_scale(k, ix_mod(k, ix_div(k, p, cols), rows), schedule->block_m);
    s.factor[1].first = ix_scale(k, ix_mod(k, p, cols), schedule->block_n);
    s.t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, s.threads), 1);
    k->inst[s.t].rows = unit->subgroup;
    val subgroup = ix_div(k, s.t, unit->subgroup);
    s.tile_i = ix_div(k, subgroup, s.col_subgroups);
    s.tile_j = ix_mod(k, subgroup, s.col_subgroups);
    emit_sums(&s, sum);
    emit_results(&s, sum);
    k_end(k, s.t);
    k_end(k, p);
}
