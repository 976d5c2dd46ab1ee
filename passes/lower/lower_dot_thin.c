/* Products of a few rows with a matrix that is read once: memory limits them, so the matrix goes through registers as
 * it lies in memory, in several streams at a time, each line of it prefetched, and nothing is packed.
 *
 * Columns that are neighbours (weights stored [in, out]): a task owns a wide strip of columns, whose sums are in
 * scratch of the first-level cache.  It goes through `step` rows of the matrix at once, line by line, a stream each.
 * One row of 4096x4096 floats so takes 0.95 of the time of reading them, where tiles of 32 columns, which read two
 * lines of each page, take 3.5 times that.
 *
 * Elements of the contraction that are neighbours ([out, in]): a task owns as many columns as a vector has lanes, each
 * a stream.  Squares of them are transposed in registers and multiplied there.
 *
 * Neither touches the order of a chain: products ascend within a k-block, blocks are added in ascending order. */
#include "lower_dot.h"

enum { THIN_ROWS = 8 }; /* of the first operand */
enum { STREAMS = 8, STRIP_BYTES = 4096, SUMS_BYTES = 16384, MAX_LANES = 64 };

struct thin {
    const struct dot *d;
    bool along_k;            /* the matrix's neighbours are those along the contraction */
    int64_t element;         /* bytes of one of the matrix */
    int64_t step;            /* of the contraction at a time */
    int64_t strip;           /* columns of a task */
    uint32_t sums, totals;   /* lbufs: of the k-block, of those before it */
};

/* ---- the matrix ---- */

/* How does the matrix lie in memory, or what it is computed from element by element?  false: not at fixed distances. */
static bool find_order(const struct dot *d, struct thin *s)
{
    struct trial t;
    int64_t side = 0, along = 0;
    s->element = 0;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n), 1);
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
        dot_stored_element(&copy, true, i, j);
        for (val v = j; v < k->ninst && !s->element; v++)
            if (k->inst[v].op == L_LOAD && ix_stride(k, k->inst[v].a, i, &side) &&
                ix_stride(k, k->inst[v].a, j, &along) && side > 0 && along > 0 && (side == 1 || along == 1))
                s->element = (int64_t)dtype_size(k->inst[v].dtype);
    }
    trial_end(&t, d->w);
    s->along_k = along == 1 && side != 1;
    return s->element;
}

/* Fetches ahead the matrix's line at (n, kk), which may lie beyond its end. */
static void thin_prefetch(const struct thin *s, val n, val kk, val loop)
{
    struct kernel *k = s->d->w->k;
    val first = k->ninst, end;
    int64_t stride;
    dot_stored_element(s->d, true, n, kk);
    end = k->ninst;
    for (val v = first; v < end; v++)
        if (k->inst[v].op == L_LOAD && ix_stride(k, k->inst[v].a, loop, &stride) && stride)
            k_prefetch(k, PREFETCH_READ, (uint32_t)k->inst[v].imm, k->inst[v].a);
}

static val thin_zero(const struct thin *s, bool negative)
{
    unsigned dtype = s->d->dtype;
    struct kernel *k = s->d->w->k;
    return k_bits(k, dtype, negative && dtype_is_float(dtype) ? dtype_bits(dtype, -0.0) : 0);
}

/* ---- strips of columns ---- */

struct strip {
    val n0;                             /* first column */
    int64_t cols;
    val kk, loop;                       /* first of the products at hand, and the loop over them */
    int64_t steps;                      /* how many, 0: no more come */
    val a[THIN_ROWS][STREAMS];          /* the first operand's elements */
};

/* What a walk over a strip does at its lanes, the first of which is column n0 + at. */
typedef void thin_visit(const struct thin *s, const struct strip *x, val at);

static val column_of(const struct thin *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    return ix_add(k, ix_add(k, x->n0, at), s->d->w->lane);
}

/* Where a row's sums are in scratch. */
static val sum_at(const struct thin *s, int64_t row, val at)
{
    struct kernel *k = s->d->w->k;
    return ix_add(k, k_int(k, row * s->strip), ix_add(k, at, s->d->w->lane));
}

static void clear_totals(const struct thin *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    (void)x;
    for (int64_t i = 0; i < s->d->size.m; i++)
        k_store(k, s->totals - 1, sum_at(s, i, at), k_splat(k, thin_zero(s, true)), 0);
}

static void clear_sums(const struct thin *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    (void)x;
    for (int64_t i = 0; i < s->d->size.m; i++)
        k_store(k, s->sums, sum_at(s, i, at), k_splat(k, thin_zero(s, false)), 0);
}

static void add_products(const struct thin *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    val b[STREAMS];
    for (int64_t u = 0; u < x->steps; u++)
        b[u] = dot_element(s->d, true, column_of(s, x, at), ix_add(k, x->kk, k_int(k, u)));
    for (int64_t i = 0; i < s->d->size.m; i++) {
        val acc = k_load(k, s->sums, sum_at(s, i, at), 0);
        for (int64_t u = 0; u < x->steps; u++)
            acc = dot_multiply_add(k, x->a[i][u], b[u], acc);
        k_store(k, s->sums, sum_at(s, i, at), acc, 0);
    }
}

static void add_totals(const struct thin *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    (void)x;
    for (int64_t i = 0; i < s->d->size.m; i++) {
        val to = sum_at(s, i, at), before = k_load(k, s->totals - 1, to, 0);
        k_store(k, s->totals - 1, to, k_prim(k, P_ADD, before, k_load(k, s->sums, to, 0), 0), 0);
    }
}

static void store_results(const struct thin *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < s->d->size.m; i++)
        dot_epilogue(s->d, k_int(k, i), column_of(s, x, at),
                     k_load(k, s->totals ? s->totals - 1 : s->sums, sum_at(s, i, at), 0));
}

/* One vector of lanes, of which `cols` exist. */
static void visit_lanes(const struct thin *s, const struct strip *x, thin_visit *visit, val at, int64_t cols)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    if (x->loop)
        for (int64_t u = 0; u < s->step; u++)
            thin_prefetch(s, ix_add(k, x->n0, at), ix_add(k, x->kk, k_int(k, s->step + u)), x->loop);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, s->d->nr), 1);
    w->pred = cols < s->d->nr ? k_prim(k, P_LT, w->lane, k_int(k, cols), 0) : 0;
    ix_bound(k, w->lane, 0, cols - 1); /* of the lanes that exist */
    visit(s, x, at);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

static void walk_strip(const struct thin *s, const struct strip *x, thin_visit *visit)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = x->cols / s->d->nr * s->d->nr;
    if (whole) {
        val at = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), s->d->nr);
        visit_lanes(s, x, visit, at, s->d->nr);
        k_end(k, at);
    }
    if (x->cols > whole)
        visit_lanes(s, x, visit, k_int(k, whole), x->cols - whole);
}

/* `steps` products of each sum, from kk on. */
static void strip_products(const struct thin *s, struct strip *x, val kk, int64_t steps, val loop)
{
    struct kernel *k = s->d->w->k;
    x->kk = kk;
    x->loop = loop;
    x->steps = steps;
    for (int64_t i = 0; i < s->d->size.m; i++)
        for (int64_t u = 0; u < steps; u++)
            x->a[i][u] = dot_element(s->d, false, k_int(k, i), ix_add(k, kk, k_int(k, u)));
    walk_strip(s, x, add_products);
    x->loop = 0;
}

static void strip_block(const struct thin *s, struct strip *x, val k0, int64_t length)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = length / s->step * s->step;
    walk_strip(s, x, clear_sums);
    if (whole) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), s->step);
        strip_products(s, x, ix_add(k, k0, j), s->step, j);
        k_end(k, j);
    }
    if (length > whole)
        strip_products(s, x, ix_add(k, k0, k_int(k, whole)), length - whole, 0);
    if (s->totals)
        walk_strip(s, x, add_totals);
}

static void emit_strip(const struct thin *s, val n0, int64_t cols)
{
    const struct dot *d = s->d;
    struct kernel *k = d->w->k;
    struct strip x = {.n0 = n0, .cols = cols};
    if (s->totals)
        walk_strip(s, &x, clear_totals);
    if (d->blocks > 1) {
        val kb = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->blocks - 1), 1);
        strip_block(s, &x, ix_scale(k, kb, d->kblock), d->kblock);
        k_end(k, kb);
    }
    strip_block(s, &x, k_int(k, (d->blocks - 1) * d->kblock), d->size.k - (d->blocks - 1) * d->kblock);
    walk_strip(s, &x, store_results);
}

/* ---- squares along the contraction ---- */

/* Columns n0 .. and a k-block of them, from k0 on. */
struct part { val n0, k0; int64_t cols, length; };

/* Fetches square `number` of the part that comes next, a line of some of its columns by turns. */
static void prefetch_square(const struct thin *s, const struct part *next, val number)
{
    struct kernel *k = s->d->w->k;
    int64_t lanes = s->d->nr, turns = LINE_BYTES / (lanes * s->element);
    turns = turns < 1 ? 1 : turns > lanes ? lanes : turns;
    int64_t each = lanes / turns;
    val first = ix_add(k, next->n0, ix_scale(k, ix_mod(k, number, turns), each));
    for (int64_t i = 0; i < each; i++)
        thin_prefetch(s, ix_add(k, first, k_int(k, i)), ix_add(k, next->k0, ix_scale(k, number, lanes)), number);
}

/* `steps` products from kk on: of the columns that exist, transposed. */
static void square_products(const struct thin *s, const struct part *p, val kk, int64_t steps, val *acc)
{
    const struct dot *d = s->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val row[MAX_LANES], none = 0;
    w->pred = steps < d->nr ? k_prim(k, P_LT, w->lane, k_int(k, steps), 0) : 0;
    for (int64_t c = 0; c < d->nr; c++) {
        if (c < p->cols)
            row[c] = k_splat(k, dot_stored_element(d, true, ix_add(k, p->n0, k_int(k, c)), ix_add(k, kk, w->lane)));
        else
            row[c] = none = none ? none : k_splat(k, k_bits(k, val_dtype(k, row[0]), 0));
    }
    w->pred = 0;
    k_transpose(k, row, (uint32_t)d->nr);
    for (int64_t u = 0; u < steps; u++) {
        val b = k_cast(k, row[u], d->dtype);
        for (int64_t i = 0; i < d->size.m; i++)
            acc[i] = dot_multiply_add(k, dot_element(d, false, k_int(k, i), ix_add(k, kk, k_int(k, u))), b, acc[i]);
    }
}

static void square_block(const struct thin *s, const struct part *p, const struct part *next, val *total)
{
    const struct dot *d = s->d;
    struct kernel *k = d->w->k;
    int64_t whole = p->length / d->nr * d->nr;
    val acc[THIN_ROWS], carry[THIN_ROWS];
    for (int64_t i = 0; i < d->size.m; i++)
        acc[i] = k_splat(k, thin_zero(s, false));
    if (whole) {
        val number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole / d->nr), 1);
        for (int64_t i = 0; i < d->size.m; i++)
            acc[i] = carry[i] = k_carry(k, acc[i]);
        prefetch_square(s, next, number);
        square_products(s, p, ix_add(k, p->k0, ix_scale(k, number, d->nr)), d->nr, acc);
        for (int64_t i = 0; i < d->size.m; i++)
            k_next(k, carry[i], acc[i]);
        k_end(k, number);
        for (int64_t i = 0; i < d->size.m; i++)
            acc[i] = k_out(k, carry[i]);
    }
    if (p->length > whole)
        square_products(s, p, ix_add(k, p->k0, k_int(k, whole)), p->length - whole, acc);
    for (int64_t i = 0; i < d->size.m; i++)
        total[i] = total[i] ? k_prim(k, P_ADD, total[i], acc[i], 0) : acc[i];
}

static void emit_squares(const struct thin *s, val n0, int64_t cols)
{
    const struct dot *d = s->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val total[THIN_ROWS] = {0}, carry[THIN_ROWS];
    struct part p = {n0, 0, cols, d->kblock}, next = {.n0 = n0};
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->nr), 1);
    if (d->blocks > 1) {
        for (int64_t i = 0; i < d->size.m; i++)
            total[i] = k_splat(k, thin_zero(s, true));
        val kb = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->blocks - 1), 1);
        for (int64_t i = 0; i < d->size.m; i++)
            total[i] = carry[i] = k_carry(k, total[i]);
        p.k0 = ix_scale(k, kb, d->kblock);
        next.k0 = ix_add(k, p.k0, k_int(k, d->kblock));
        square_block(s, &p, &next, total);
        for (int64_t i = 0; i < d->size.m; i++)
            k_next(k, carry[i], total[i]);
        k_end(k, kb);
        for (int64_t i = 0; i < d->size.m; i++)
            total[i] = k_out(k, carry[i]);
    }
    p.k0 = k_int(k, (d->blocks - 1) * d->kblock);
    p.length = d->size.k - (d->blocks - 1) * d->kblock;
    next = (struct part){.n0 = ix_add(k, n0, k_int(k, d->nr)), .k0 = k_int(k, 0)};
    square_block(s, &p, &next, total);
    w->pred = cols < d->nr ? k_prim(k, P_LT, w->lane, k_int(k, cols), 0) : 0;
    for (int64_t i = 0; i < d->size.m; i++)
        dot_epilogue(d, k_int(k, i), ix_add(k, n0, w->lane), total[i]);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* ---- the kernel ---- */

/* Columns of a strip: of each row of the matrix a page at least, and no more than the sums have room for; but two
 * strips where that can be. */
static int64_t strip_columns(const struct thin *s)
{
    const struct dot *d = s->d;
    int64_t least = STRIP_BYTES / s->element, most = SUMS_BYTES / (int64_t)dtype_size(d->dtype) / d->size.m;
    int64_t strips = d->size.n / least;
    strips = strips < 2 ? 2 : strips;
    if (strips < dot_parts(d->size.n, most))
        strips = dot_parts(d->size.n, most);
    return dot_parts(dot_parts(d->size.n, strips), d->nr) * d->nr;
}

/* The strips, or groups of columns, of each product of the batch. */
static void thin_tasks(struct dot *d, const struct thin *s)
{
    struct kernel *k = d->w->k;
    int64_t full = d->size.n / s->strip, rest = d->size.n % s->strip, tasks = full + (rest != 0);
    k->extent = d->size.batch * tasks;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    d->batch_index = ix_div(k, p, tasks);
    val number = ix_mod(k, p, tasks);
    for (int tail = 0; tail < 2; tail++) {
        if (tail ? !rest : !full)
            continue;
        val guard = full && rest ? k_if(k, k_prim(k, tail ? P_EQ : P_LT, number, k_int(k, full), 0)) : 0;
        val n0 = tail ? k_int(k, full * s->strip) : ix_scale(k, number, s->strip);
        (s->along_k ? emit_squares : emit_strip)(s, n0, tail ? rest : s->strip);
        if (guard)
            k_end(k, guard);
    }
    k_end(k, p);
}

/* Is the product one of these, the matrix being in no cache of the core? */
static bool is_thin(const struct dot *d, struct thin *s)
{
    const struct dot_dims *z = &d->size;
    const struct schedule *override = d->w->override;
    if (d->w->caps->block_threads || z->m < 1 || z->m > THIN_ROWS || z->n < 1 || z->k < 1 || z->batch < 1 ||
        (override && (!override->step || override->step > MAX_LANES)) || !find_order(d, s))
        return false;
    int64_t lanes = d->w->caps->vector_bytes / (int64_t)dtype_size(d->dtype);
    return override || (z->n >= 2 * lanes && z->k >= 2 * lanes && z->n * z->k * s->element > d->w->caps->l1_bytes);
}

bool dot_emit_thin(struct dot *d)
{
    struct thin s = {.d = d};
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const struct schedule *override = w->override;
    if (!is_thin(d, &s))
        return false;
    int64_t lanes = w->caps->vector_bytes / (int64_t)dtype_size(d->dtype), line = LINE_BYTES / s.element;
    d->mr = d->size.m;
    d->nr = s.along_k ? lanes : override ? override->nr : line;
    s.step = s.along_k ? d->nr : override && override->step < STREAMS ? override->step : STREAMS;
    s.strip = s.along_k ? d->nr : strip_columns(&s);
    lower_scalars(w);
    if (!s.along_k) {
        s.sums = k_buf(k, BUF_SCRATCH, d->dtype, d->size.m * s.strip, 0);
        s.totals = d->blocks > 1 ? 1 + k_buf(k, BUF_SCRATCH, d->dtype, d->size.m * s.strip, 0) : 0;
    }
    k->sched = (struct schedule){.kind = SCHED_DOT, .width = (uint16_t)d->nr, .mr = (uint16_t)d->mr,
                                 .nr = (uint16_t)d->nr, .kc = (uint32_t)d->kblock, .step = (uint16_t)s.step};
    thin_tasks(d, &s);
    lower_grain(w, 2 * d->size.m * s.strip * d->size.k / 16);
    return true;
}
