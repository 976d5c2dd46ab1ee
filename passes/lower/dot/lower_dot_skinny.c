/* Products of a few rows with a matrix that is read once.  They are limited by memory, so the matrix is loaded in
 * the order in which it lies in memory, in several streams at a time, with every cache line prefetched, and is not
 * packed.
 *
 * If the matrix's columns are adjacent in memory (weights stored [in, out]), a task owns a wide strip of columns,
 * whose sums are in scratch in the first-level cache.  It reads `step` rows of the matrix at once, line by line;
 * each row is a stream.  One row times 4096x4096 floats takes as long as reading them; with tiles of 32 columns,
 * which read two lines of each page, it takes 3.5 times as long.
 *
 * If the elements along the contraction are adjacent ([out, in]), a task owns as many columns as a vector has lanes;
 * each column is a stream.  Squares of them are transposed in registers and multiplied there; packing them first took
 * twice as long.  Elements of 1 or 2 bytes are loaded and transposed in groups of 4 bytes; the code generator
 * transposes halves of f16 as such.  Prefetches of the next part are spread over the products: a burst of them, each
 * waiting for memory, leaves no buffer for the loads.  A row of f32 by f16, 8192x2048 and 2048x8192, from a mapped file
 * beyond all caches takes as long as reading it; with a burst 1.04 times, with shuffles of whole registers 1.1 times.
 *
 * With AVX-512 up to 16 rows are multiplied so: 9 rows of f32 by f16 take 0.48 of the time of tiles, which pack the
 * matrix first, 16 rows 0.7; 16 rows of f32 by a matrix of f32, 256x512, 0.54.
 *
 * There is one chain of multiply-adds per column, 8 bytes of f16 in a cycle.  Two k-blocks at once, which have two
 * chains, took 1.2 to 1.8 times as long from memory: 32 streams, two in each page, are too many for the caches' sets
 * and the processor's own prefetches.  Two groups of columns at once, of the same k-block, took 1.0 to 1.4 times as
 * long in all dtypes, and 0.92 times for one matrix of bytes, 768 by 50257.
 *
 * Integers of 4 bits, two to a byte, which the kernel separates and scales itself, are read in the same two ways: a
 * lane loads a byte, which has two columns, or four bytes of one column.
 *
 * Neither form changes the order of a chain: products ascend within a k-block, and blocks are added in ascending
 * order.  In bf16 dot2 order two steps of the contraction are multiplied at once: a vector of two rows of a strip is
 * put together, in a square of bf16 the words that are transposed are pairs already. */
#include "lower_dot.h"

enum { STREAMS = THIN_STREAMS, MAX_LANES = 64 };

struct skinny {
    const struct dot *d;
    bool along_k;            /* the matrix is contiguous along the contraction */
    ref source;              /* the array whose elements are the matrix's, or from which each of them is computed;
                                NIL: there is none */
    int64_t element;         /* size of an element of the source in bytes */
    int64_t packed;          /* number of the matrix's elements in an element of the source */
    int64_t each;            /* number of the matrix's elements that are loaded at once, as an element of the source or
                                as a u32 */
    int64_t step;            /* steps of the contraction that are processed at a time */
    int64_t ahead;           /* distance in rows from those being processed to those being prefetched */
    int64_t strip;           /* columns of a task */
    bool words;              /* a word of two of the source's elements is a pair as DOT2 takes it */
    uint32_t sums, totals;   /* lbufs: sums of the k-block; sums of the k-blocks before it */
    uint32_t rows;           /* lbuf + 1: a k-block of the first operand, widened; 0: the operand is read in place */
};

/* ---- the matrix ---- */

/* A load that has a fixed distance for each of two loop variables, one element for one of them. */
struct ordered_load { val load; int64_t side, along; };

/* Emits the matrix's element at (n, kk) and finds the first such load for variables i and j. */
static struct ordered_load find_load(const struct dot *d, val n, val kk, val i, val j)
{
    struct kernel *k = d->w->k;
    struct ordered_load x = {0};
    val first = k->ninst;
    dot_stored_element(d, true, n, kk);
    for (val v = first; v < k->ninst && !x.load; v++)
        if (k->inst[v].op == L_LOAD && ix_stride(k, k->inst[v].a, i, &x.side) &&
            ix_stride(k, k->inst[v].a, j, &x.along) && x.side > 0 && x.along > 0 && (x.side == 1 || x.along == 1))
            x.load = v;
    return x;
}

/* Finds how the matrix lies in memory if each element of the source has `of_n` elements of a row, or `of_k` of a
 * column; one of them is 1. */
static void find_order(const struct dot *d, int64_t of_n, int64_t of_k, struct skinny_order *o)
{
    struct trial t;
    *o = (struct skinny_order){.packed = of_n * of_k};
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n / of_n), 1);
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k / of_k), 1);
        val n = ix_scale(k, i, of_n), kk = ix_scale(k, j, of_k), last = 0;
        struct ordered_load x = find_load(&copy, n, kk, i, j), y = x;
        for (val v = x.load + 1; x.load && v < k->ninst; v++)
            if (k->inst[v].op == L_LOAD && k->inst[v].imm == k->inst[x.load].imm)
                last = v;
        bool known = x.load && !last && k->err.code == KL_OK && !k->inst[x.load].b; /* k->err: out of memory */
        if (o->packed > 1) {
            y = find_load(&copy, ix_add(k, n, k_int(k, of_n - 1)), ix_add(k, kk, k_int(k, of_k - 1)), i, j);
            known = known && y.load && k->inst[y.load].imm == k->inst[x.load].imm && !k->inst[y.load].b &&
                    ix_same(k, k->inst[y.load].a, k->inst[x.load].a);
        }
        o->source = known ? t.out.arg[k->buf[k->inst[x.load].imm].id].node : NIL;
        o->element = x.load && (o->packed == 1 || o->source) ? (int64_t)dtype_size(k->inst[x.load].dtype) : 0;
        o->along_k = x.along == 1 && x.side != 1;
        o->side = x.side;
    }
    trial_end(&t, d->w);
    if (o->packed > 1 && (o->element != 1 || o->along_k != (of_k > 1)))
        o->element = 0;
}

bool dot_skinny_order(const struct dot *d, struct skinny_order *o)
{
    find_order(d, 1, 1, o);
    if (!o->element && d->size.k % 2 == 0)
        find_order(d, 1, 2, o);
    if (!o->element && d->size.n % 2 == 0)
        find_order(d, 2, 1, o);
    return o->element;
}

static ref arg_of(const struct skinny *s, uint64_t buf)
{
    const struct lowering *w = s->d->w;
    return w->k->err.code == KL_OK && w->k->buf[buf].role == BUF_IN ? w->out->arg[w->k->buf[buf].id].node : NIL;
}

/* Prefetches the matrix's cache line at (n, kk), which may lie beyond its end.  by: a loop or an atom of its index by
 * which n or kk proceeds. */
static void skinny_prefetch(const struct skinny *s, val n, val kk, val by)
{
    struct kernel *k = s->d->w->k;
    val first = k->ninst, end;
    int64_t stride;
    dot_stored_element(s->d, true, n, kk);
    end = k->ninst;
    for (val v = first; v < end; v++)
        if (k->inst[v].op == L_LOAD && ix_stride(k, k->inst[v].a, by, &stride) && stride)
            lower_prefetch_load(s->d->w, v, first);
}

/* Loads `each` of the matrix's elements at column n and contracted index kk: an element of the source, or several as
 * one u32. */
static val skinny_load(const struct skinny *s, val n, val kk, int64_t each)
{
    struct kernel *k = s->d->w->k;
    val v = k->ninst;
    dot_stored_element(s->d, true, n, kk);
    while (v < k->ninst && (k->inst[v].op != L_LOAD || arg_of(s, k->inst[v].imm) != s->source))
        v++;
    return each == s->packed || v == k->ninst ? v
                                              : k_load_wide(k, (uint32_t)k->inst[v].imm, k->inst[v].a, k->inst[v].b);
}

/* The matrix's element at (n, kk), in the dtype in which it is multiplied, or as it is where pairs are made of it. */
static val matrix_element(const struct dot *d, val n, val kk)
{
    return d->unit > 1 ? dot_stored_element(d, true, n, kk) : dot_element(d, true, n, kk);
}

/* Computes the matrix's element at (n, kk), which is number `number` of the `each` elements in `bits`. */
static val skinny_element(const struct skinny *s, val bits, int64_t each, int64_t number, val n, val kk)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    unsigned dtype = w->g->node[s->source].dtype, whole = s->element == 1 ? KL_U8 : KL_U16;
    if (each > s->packed) {
        number /= s->packed;
        val shift = k_bits(k, KL_U32, (uint64_t)(8 * s->element * number));
        val low = k_cast(k, number ? k_prim(k, P_SHR, bits, shift, 0) : bits, whole);
        bits = dtype == whole ? low : k_inst(k, L_OP(P_BITS), dtype, low, 0, 0, 0);
    }
    lower_fix(w, s->source, bits);
    val b = matrix_element(s->d, n, kk);
    lower_unfix(w, s->source);
    return b;
}

static val skinny_zero(const struct skinny *s, bool negative)
{
    unsigned dtype = s->d->dtype;
    struct kernel *k = s->d->w->k;
    return k_bits(k, dtype, negative && dtype_is_float(dtype) ? dtype_bits(dtype, -0.0) : 0);
}

/* ---- strips of columns ---- */

struct strip {
    val n0;                             /* first column */
    int64_t cols;
    val kk, loop;                       /* index of the first of these products, and the loop over them */
    int64_t steps;                      /* number of products */
    val a[THIN_ROWS][STREAMS];          /* factors of the first operand, for every d->unit steps */
    int64_t each;                       /* columns of a lane in this loop */
};

/* Called for the lanes of a strip, the first of which is column n0 + at. */
typedef void skinny_iteration(const struct skinny *s, const struct strip *x, val at);

/* The columns of the lanes with number `which`, if a lane has `each` columns. */
static val column_of(const struct skinny *s, const struct strip *x, val at, int64_t which)
{
    struct kernel *k = s->d->w->k;
    val lane = ix_add(k, ix_scale(k, s->d->w->lane, x->each), k_int(k, which));
    return ix_add(k, ix_add(k, x->n0, at), lane);
}

/* Where a row's sums are in scratch: first those of each lane's first column, then those of its second column. */
static val sum_at(const struct skinny *s, const struct strip *x, int64_t row, val at, int64_t which)
{
    struct kernel *k = s->d->w->k;
    return ix_add(k, k_int(k, row * s->strip + which * s->d->nr / x->each), ix_add(k, at, s->d->w->lane));
}

static void clear_totals(const struct skinny *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < s->d->size.m; i++)
        k_store(k, s->totals - 1, sum_at(s, x, i, at, 0), k_splat(k, skinny_zero(s, true)), 0);
}

static void clear_sums(const struct skinny *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < s->d->size.m; i++)
        k_store(k, s->sums, sum_at(s, x, i, at, 0), k_splat(k, skinny_zero(s, false)), 0);
}

/* The matrix's factors of the columns with number `which`, at step u and, in pairs, at the next one. */
static val strip_factor(const struct skinny *s, const struct strip *x, val at, int64_t which, const val *bits,
                        int64_t u)
{
    struct kernel *k = s->d->w->k;
    val n = column_of(s, x, at, which), element[2] = {0};
    for (int64_t i = 0; i < s->d->unit && u + i < x->steps; i++) {
        val kk = ix_add(k, x->kk, k_int(k, u + i));
        element[i] = bits[u + i] ? skinny_element(s, bits[u + i], x->each, which, n, kk) : matrix_element(s->d, n, kk);
    }
    return s->d->unit > 1 ? dot_pair_of(k, element[0], element[1]) : element[0];
}

static void add_products(const struct skinny *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    val bits[STREAMS] = {0}, b[STREAMS];
    int64_t unit = s->d->unit;
    for (int64_t u = 0; u < x->steps && x->each > 1; u++)
        bits[u] = skinny_load(s, column_of(s, x, at, 0), ix_add(k, x->kk, k_int(k, u)), x->each);
    for (int64_t which = 0; which < x->each; which++) {
        for (int64_t u = 0; u < x->steps; u += unit)
            b[u] = strip_factor(s, x, at, which, bits, u);
        for (int64_t i = 0; i < s->d->size.m; i++) {
            val to = sum_at(s, x, i, at, which), acc = k_load(k, s->sums, to, 0);
            for (int64_t u = 0; u < x->steps; u += unit)
                acc = dot_multiply_add(k, x->a[i][u], b[u], acc);
            k_store(k, s->sums, to, acc, 0);
        }
    }
}

static void add_totals(const struct skinny *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < s->d->size.m; i++) {
        val to = sum_at(s, x, i, at, 0), before = k_load(k, s->totals - 1, to, 0);
        k_store(k, s->totals - 1, to, k_prim(k, P_ADD, before, k_load(k, s->sums, to, 0), 0), 0);
    }
}

static void store_results(const struct skinny *s, const struct strip *x, val at)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = 0; i < s->d->size.m; i++)
        for (int64_t which = 0; which < x->each; which++)
            dot_epilogue(s->d, k_int(k, i), column_of(s, x, at, which),
                         k_load(k, s->totals ? s->totals - 1 : s->sums, sum_at(s, x, i, at, which), 0));
}

/* Processes NR columns, of which `cols` exist. */
static void visit_lanes(const struct skinny *s, struct strip *x, skinny_iteration *visit, val at, int64_t cols)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    x->each = cols == s->d->nr && (visit == add_products || visit == store_results) ? s->each : 1;
    if (x->loop)
        for (int64_t u = 0; u < s->step; u++)
            skinny_prefetch(s, ix_add(k, x->n0, at), ix_add(k, x->kk, k_int(k, s->ahead + u)), x->loop);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, s->d->nr / x->each), 1);
    w->pred = cols < s->d->nr ? k_prim(k, P_LT, w->lane, k_int(k, cols), 0) : 0;
    ix_bound(k, w->lane, 0, cols / x->each - 1); /* only for lanes that exist */
    visit(s, x, at);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

static void iterate_strip(const struct skinny *s, struct strip *x, skinny_iteration *visit)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = x->cols / s->d->nr * s->d->nr;
    if (whole) {
        /* The columns start at a multiple of NR, so that it is seen which part of an element of the source they are. */
        val number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole / s->d->nr), 1);
        visit_lanes(s, x, visit, ix_scale(k, number, s->d->nr), s->d->nr);
        k_end(k, number);
    }
    if (x->cols > whole)
        visit_lanes(s, x, visit, k_int(k, whole), x->cols - whole);
}

/* Adds `steps` products, from kk on, to each sum. */
static void strip_products(const struct skinny *s, struct strip *x, val kk, int64_t steps, val loop)
{
    struct kernel *k = s->d->w->k;
    x->kk = kk;
    x->loop = loop;
    x->steps = steps;
    for (int64_t i = 0; i < s->d->size.m; i++)
        for (int64_t u = 0; u < steps; u += s->d->unit)
            x->a[i][u] = dot_factor(s->d, false, k_int(k, i), ix_add(k, kk, k_int(k, u)), u + s->d->unit > steps);
    iterate_strip(s, x, add_products);
    x->loop = 0;
}

static void strip_block(const struct skinny *s, struct strip *x, val k0, int64_t length)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = length / s->step * s->step;
    iterate_strip(s, x, clear_sums);
    if (whole) {
        /* The steps are at a multiple of `step`, so that they are seen to share what several rows have, as scales. */
        val number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole / s->step), 1);
        strip_products(s, x, ix_add(k, k0, ix_scale(k, number, s->step)), s->step, number);
        k_end(k, number);
    }
    if (length > whole)
        strip_products(s, x, ix_add(k, k0, k_int(k, whole)), length - whole, 0);
    if (s->totals)
        iterate_strip(s, x, add_totals);
}

static void emit_strip(const struct skinny *s, val n0, int64_t cols)
{
    const struct dot *d = s->d;
    struct kernel *k = d->w->k;
    struct strip x = {.n0 = n0, .cols = cols};
    if (s->totals)
        iterate_strip(s, &x, clear_totals);
    if (d->blocks > 1) {
        val kb = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->blocks - 1), 1);
        strip_block(s, &x, ix_scale(k, kb, d->kblock), d->kblock);
        k_end(k, kb);
    }
    strip_block(s, &x, k_int(k, (d->blocks - 1) * d->kblock), d->size.k - (d->blocks - 1) * d->kblock);
    iterate_strip(s, &x, store_results);
}

/* ---- squares along the contraction ---- */

/* A part: columns from n0 on, and one k-block of them from k0 on. */
struct skinny_operand { val n0, k0; int64_t cols, length; };

/* What is prefetched while a square is multiplied: one cache line of each of some columns of square number `number` of
 * the next part; the columns take turns.  round: how often all had theirs, or the number where one turn is all. */
struct ahead { const struct skinny_operand *next; val number, round, first; int64_t columns; };

static struct ahead ahead_of(const struct skinny *s, const struct skinny_operand *next, val number)
{
    struct kernel *k = s->d->w->k;
    int64_t lanes = s->d->nr, turns = LINE_BYTES * s->packed / (s->step * s->element);
    turns = turns < 1 ? 1 : turns > lanes ? lanes : turns;
    int64_t each = lanes / turns;
    return (struct ahead){next, number, ix_div(k, number, turns),
                          ix_add(k, next->n0, ix_scale(k, ix_mod(k, number, turns), each)), each};
}

/* Prefetches the share of steps `from` to `to` of a square, so that prefetches that wait for memory leave room for the
 * loads between them. */
static void prefetch_share(const struct skinny *s, const struct ahead *a, int64_t from, int64_t to)
{
    struct kernel *k = s->d->w->k;
    for (int64_t i = from * a->columns / s->step; i < to * a->columns / s->step; i++)
        skinny_prefetch(s, ix_add(k, a->first, k_int(k, i)), ix_add(k, a->next->k0, ix_scale(k, a->number, s->step)),
                        a->round);
}

/* Widens the k-block of the first operand, vector by vector, so that each element is widened once and not for each
 * column. */
static void widen_rows(const struct skinny *s, const struct skinny_operand *p)
{
    const struct dot *d = s->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    int64_t whole = p->length / d->nr * d->nr;
    for (int tail = 0; tail < 2; tail++) {
        if (tail ? p->length == whole : !whole)
            continue;
        val j = tail ? k_int(k, whole) : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), d->nr);
        val at = ix_add(k, j, w->lane);
        w->pred = tail ? k_prim(k, P_LT, w->lane, k_int(k, p->length - whole), 0) : 0;
        for (int64_t i = 0; i < d->size.m; i++)
            k_store(k, s->rows - 1, ix_add(k, k_int(k, i * d->kblock), at),
                    k_splat(k, dot_element(d, false, k_int(k, i), ix_add(k, p->k0, at))), w->pred);
        w->pred = 0;
        if (!tail)
            k_end(k, j);
    }
}

/* The first operand's factor with index `at`, counted from the part's first.  alone: a pair has no second element. */
static val row_factor(const struct skinny *s, const struct skinny_operand *p, int64_t i, val at, bool alone)
{
    struct kernel *k = s->d->w->k;
    return s->rows ? k_load(k, s->rows - 1, ix_add(k, k_int(k, i * s->d->kblock), at), 0)
                   : dot_factor(s->d, false, k_int(k, i), ix_add(k, p->k0, at), alone);
}

/* Of a transposed square whose first step is the part's element j, the columns' elements of step u. */
static val square_element(const struct skinny *s, const struct skinny_operand *p, const val *row, int64_t each, val j,
                          int64_t u)
{
    struct kernel *k = s->d->w->k;
    val kk = ix_add(k, p->k0, ix_add(k, j, k_int(k, u)));
    return s->source ? skinny_element(s, row[u / each], each, u % each, ix_add(k, p->n0, s->d->w->lane), kk) : row[u];
}

/* Adds `steps` products, from the part's element j on, for the columns that exist.  A lane loads `each` elements of
 * the contraction, which are then transposed.  ahead: what is prefetched meanwhile; NULL: nothing. */
static void square_products(const struct skinny *s, const struct skinny_operand *p, val j, int64_t steps, int64_t each,
                            const struct ahead *ahead, val *acc)
{
    const struct dot *d = s->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val row[MAX_LANES], none = 0;
    w->pred = steps < d->nr * each ? k_prim(k, P_LT, w->lane, k_int(k, steps / each), 0) : 0;
    for (int64_t c = 0; c < d->nr; c++) {
        val n = ix_add(k, p->n0, k_int(k, c)), at = ix_add(k, ix_add(k, p->k0, j), ix_scale(k, w->lane, each));
        if (c >= p->cols)
            row[c] = none = none ? none : k_splat(k, k_bits(k, val_dtype(k, row[0]), 0));
        else
            row[c] = k_splat(k, s->source ? skinny_load(s, n, at, each) : matrix_element(d, n, at));
    }
    w->pred = 0;
    k_transpose(k, row, (uint32_t)d->nr);
    w->pred = p->cols < d->nr ? k_prim(k, P_LT, w->lane, k_int(k, p->cols), 0) : 0; /* for the other values from
                                                                                       which the matrix is computed */
    for (int64_t u = 0; u < steps; u += d->unit) {
        bool alone = u + d->unit > steps, word = s->words && each == d->unit;
        val b = word ? row[u / each] : square_element(s, p, row, each, j, u);
        if (d->unit > 1 && !word)
            b = dot_pair_of(k, b, alone ? 0 : square_element(s, p, row, each, j, u + 1));
        for (int64_t i = 0; i < d->size.m; i++)
            acc[i] = dot_multiply_add(k, row_factor(s, p, i, ix_add(k, j, k_int(k, u)), alone), b, acc[i]);
        if (ahead)
            prefetch_share(s, ahead, u, u + d->unit);
    }
    w->pred = 0;
}

static void square_block(const struct skinny *s, const struct skinny_operand *p, const struct skinny_operand *next,
                         val *total)
{
    const struct dot *d = s->d;
    struct kernel *k = d->w->k;
    int64_t whole = p->length / s->step * s->step, pairs = p->length / s->each * s->each;
    val acc[THIN_ROWS], carry[THIN_ROWS];
    for (int64_t i = 0; i < d->size.m; i++)
        acc[i] = k_splat(k, skinny_zero(s, false));
    if (s->rows)
        widen_rows(s, p);
    if (whole) {
        val number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole / s->step), 1);
        for (int64_t i = 0; i < d->size.m; i++)
            acc[i] = carry[i] = k_carry(k, acc[i]);
        struct ahead ahead = ahead_of(s, next, number);
        square_products(s, p, ix_scale(k, number, s->step), s->step, s->each, &ahead, acc);
        for (int64_t i = 0; i < d->size.m; i++)
            k_next(k, carry[i], acc[i]);
        k_end(k, number);
        for (int64_t i = 0; i < d->size.m; i++)
            acc[i] = k_out(k, carry[i]);
    }
    if (pairs > whole)
        square_products(s, p, k_int(k, whole), pairs - whole, s->each, NULL, acc);
    /* the last elements, fewer than a load has, may be more than a square of single ones has */
    for (int64_t at = pairs, side = d->nr * s->packed; at < p->length; at += side)
        square_products(s, p, k_int(k, at), p->length - at < side ? p->length - at : side, s->packed, NULL, acc);
    for (int64_t i = 0; i < d->size.m; i++)
        total[i] = total[i] ? k_prim(k, P_ADD, total[i], acc[i], 0) : acc[i];
}

static void emit_squares(const struct skinny *s, val n0, int64_t cols)
{
    const struct dot *d = s->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val total[THIN_ROWS] = {0}, carry[THIN_ROWS];
    struct skinny_operand p = {n0, 0, cols, d->kblock}, next = {.n0 = n0};
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->nr), 1);
    if (d->blocks > 1) {
        for (int64_t i = 0; i < d->size.m; i++)
            total[i] = k_splat(k, skinny_zero(s, true));
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
    next = (struct skinny_operand){.n0 = ix_add(k, n0, k_int(k, d->nr)), .k0 = k_int(k, 0)};
    square_block(s, &p, &next, total);
    w->pred = cols < d->nr ? k_prim(k, P_LT, w->lane, k_int(k, cols), 0) : 0;
    for (int64_t i = 0; i < d->size.m; i++)
        dot_epilogue(d, k_int(k, i), ix_add(k, n0, w->lane), total[i]);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* ---- the kernel ---- */

/* Emits the strips, or groups of columns, of each product of the batch. */
static void skinny_tasks(struct dot *d, const struct skinny *s)
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

void dot_skinny_emit(struct dot *d, const struct schedule *schedule)
{
    const struct skinny_order *o = &d->order;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    struct skinny s = {.d = d, .along_k = o->along_k, .source = o->source, .element = o->element,
                     .packed = o->packed, .each = schedule->dot_skinny.each, .step = schedule->dot_skinny.step,
                     .ahead = schedule->dot_skinny.ahead, .strip = schedule->dot_skinny.strip};
    d->mr = schedule->dot_skinny.mr;
    d->nr = schedule->dot_skinny.nr;
    bool linear;
    s.words = d->unit > 1 && o->packed == 1 && node_operand(w->g, w->anchor, 1, &linear) == o->source;
    lower_scalars(w);
    if (schedule->dot_skinny.widen)
        s.rows = 1 + k_buf(k, BUF_SCRATCH, d->dtype, d->size.m * d->kblock, 0);
    if (!s.along_k) {
        s.sums = k_buf(k, BUF_SCRATCH, d->dtype, d->size.m * s.strip, 0);
        s.totals = d->blocks > 1 ? 1 + k_buf(k, BUF_SCRATCH, d->dtype, d->size.m * s.strip, 0) : 0;
    }
    skinny_tasks(d, &s);
}
