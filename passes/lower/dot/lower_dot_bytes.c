/* Products of bytes, summed as i32, on a processor whose instruction multiplies several bytes of the contraction at
 * once (caps.mma_bytes).
 *
 * A task computes NR columns of a block of rows.  B's columns are packed into a panel: groups of four elements along k,
 * and within a group column by column, with zeros where k ends within a group.  Columns that are adjacent in runs only,
 * as the windows of a convolution, are copied row by row first (lower_dot_pack.c).  A product of one row tile reads B
 * in place if B's columns are adjacent in memory, or if the product has few rows.  A product of few rows is limited by
 * memory: B is prefetched, and where its elements along k are adjacent, squares of as many groups as a vector has lanes
 * are transposed in registers.  A is read in place, four adjacent elements along k at a time.  A tile of MR x NR sums
 * stays in registers over all k of a panel.  Then it is stored to scratch, and the epilogue is computed row by row.
 * Where k takes several panels, the sums are in scratch between panels.
 *
 * The instruction multiplies unsigned by signed bytes.  If both operands are unsigned, or both signed, the upper bit of
 * A's elements is inverted.  Each is then 128 more (or less) in the other type, and the sums are off by 128 times the
 * sum of B's column, which is subtracted.  Sums of i32 wrap, so the order of additions does not change a bit, and the
 * k-blocks of pass numerics do not matter here.
 *
 * The number of rows may have a symbol, and so may that of columns in runs, such as the results of a convolution of a
 * symbolic batch: then the last task has fewer rows, or lanes beyond the last column are not stored. */
#include "lower_dot.h"

enum { GROUP = DOT_GROUP, UNROLL = 2 };
enum { ROWS_AHEAD = 48 }; /* distance from the rows of B that are multiplied to the rows that are prefetched */

struct bytes_product {
    struct dot *d;
    unsigned ta, tb;        /* the operands' dtypes */
    bool transposed;            /* the upper bits of A's elements are inverted */
    bool prefetch;          /* B is read in place and prefetched */
    bool b_rows;            /* B's columns are adjacent in memory; else its elements along k */
    int64_t square;         /* elements of k in a square of B that is transposed in registers; 0: there are none */
    int64_t kc, panels;     /* elements of k in a panel, a multiple of GROUP where there are several */
    int64_t lanes;          /* sums in a register */
    uint32_t panel, sums;   /* lbufs */
    uint32_t rows;          /* lbuf + 1: the panel's rows, of columns in runs; 0: columns have no runs */
    uint32_t columns;       /* lbuf: sums of the panel's columns */
};

struct bytes_panel {               /* of a task: one panel along k, and the columns of a tile */
    val n0, k0;
    int64_t cols, room;     /* number of columns; the same rounded up to whole vectors */
    int64_t length;         /* elements along k */
};

/* ---- tiles ---- */

static val bytes_tile(struct kernel *k, struct linst i, int64_t rows, int64_t cols)
{
    i.rows = (uint16_t)rows;
    i.cols = (uint16_t)cols;
    return k_append(k, i);
}

static val tile_prim(struct kernel *k, enum prim p, unsigned dtype, val a, val b, int64_t rows, int64_t cols)
{
    return bytes_tile(k, (struct linst){.op = (uint8_t)L_OP(p), .dtype = (uint8_t)dtype, .a = a, .b = b}, rows, cols);
}

/* A tile of bools: is the number of the row or column below `limit`? */
static val tile_is_below(struct kernel *k, enum tile_order order, int64_t n, int64_t limit)
{
    int64_t rows = order == TILE_ROWS ? n : 1, cols = order == TILE_ROWS ? 1 : n;
    val number = bytes_tile(k, (struct linst){.op = L_INDEX, .dtype = KL_I64, .kind = (uint8_t)order}, rows, cols);
    return tile_prim(k, P_LT, KL_BOOL, number, k_int(k, limit), rows, cols);
}

/* ---- operands ---- */

/* The load of an operand's element.  dot_bytes has checked that the element is a load. */
static struct linst load_of(const struct bytes_product *s, bool second, val i, val kk)
{
    val v = dot_stored_element(s->d, second, i, kk);
    return s->d->w->k->inst[v];
}

/* `depth` elements along k of `rows` rows of A, from index kk on, as they are multiplied.  `count` of them exist. */
static val load_a(const struct bytes_product *s, val m0, int64_t rows, val kk, int64_t depth, int64_t count)
{
    struct kernel *k = s->d->w->k;
    struct linst l = load_of(s, false, m0, kk);
    val mask = count < depth ? tile_is_below(k, TILE_COLS, depth, count) : 0;
    val a = dot_load(k, (uint32_t)l.imm, l.a, TILE_ROWS, k_int(k, s->d->a_step_m), rows, depth, mask);
    if (!s->transposed)
        return a;
    unsigned other = s->ta == KL_I8 ? KL_U8 : KL_I8;
    val upper = k_bits(k, other, 0x80), same = tile_prim(k, P_BITS, other, a, 0, rows, depth);
    return tile_prim(k, P_XOR, other, same, upper, rows, depth);
}

/* `depth` elements along k of B's columns, from index kk of the part on, in the order of memory; zeros beyond the
 * end. */
static val load_b(const struct bytes_product *s, const struct bytes_panel *p, val kk, int64_t depth, int64_t count,
                  int64_t cols)
{
    struct kernel *k = s->d->w->k;
    struct linst l = load_of(s, true, p->n0, ix_add(k, p->k0, kk));
    val mask = count < depth ? tile_is_below(k, TILE_ROWS, depth, count) : 0;
    if (cols > p->cols) {
        val in = tile_is_below(k, TILE_COLS, cols, p->cols);
        mask = mask ? tile_prim(k, P_AND, KL_BOOL, mask, in, depth, cols) : in;
    }
    val stride = k_int(k, s->b_rows ? s->d->b_step_k : s->d->b_step_n);
    return dot_load(k, (uint32_t)l.imm, l.a, s->b_rows ? TILE_ROWS : TILE_COLS, stride, depth, cols, mask);
}

/* Prefetches elements of a B that is read in place: later rows of the same columns where columns are adjacent in
 * memory, else the same elements of the next columns.  The addresses may be beyond the end of B. */
static void prefetch_b(const struct bytes_product *s, const struct bytes_panel *p, val kk, int64_t depth)
{
    struct kernel *k = s->d->w->k;
    int64_t lines = s->b_rows ? depth : p->cols;
    for (int64_t i = 0; i < lines; i++) {
        val n = s->b_rows ? p->n0 : ix_add(k, p->n0, k_int(k, p->cols + i));
        val at = s->b_rows ? ix_add(k, kk, k_int(k, ROWS_AHEAD + i)) : kk;
        struct linst l = load_of(s, true, n, ix_add(k, p->k0, at));
        k_prefetch(k, PREFETCH_READ, (uint32_t)l.imm, l.a);
    }
}

static val panel_at(const struct bytes_product *s, val kk) { return ix_scale(s->d->w->k, kk, s->d->nr); }

static void pack_group(const struct bytes_product *s, const struct bytes_panel *p, val kk, int64_t count)
{
    struct kernel *k = s->d->w->k;
    val four = k_int(k, GROUP), at = panel_at(s, kk);
    dot_store(k, s->panel - 1, at, TILE_COLS, four, load_b(s, p, kk, GROUP, count, p->cols));
    if (p->room > p->cols)
        dot_store(k, s->panel - 1, ix_add(k, at, k_int(k, p->cols * GROUP)), TILE_COLS, four,
                  dot_splat(k, k_bits(k, s->tb, 0), GROUP, (unsigned)(p->room - p->cols)));
}

/* The same of columns in runs, all groups of the panel. */
static void pack_bytes_runs(const struct bytes_product *s, const struct bytes_panel *p)
{
    struct kernel *k = s->d->w->k;
    struct dot d = *s->d;
    val nr = k_int(k, d.nr);
    int64_t end = dot_parts(p->length, GROUP) * GROUP, beyond = end - p->length;
    d.dtype = s->tb;
    d.panel = s->rows;
    d.pack_by = PACK_COLUMN_RUNS;
    d.square = (uint32_t)(s->lanes < d.nr ? s->lanes : d.nr);
    d.period_k = d.period_k <= s->kc ? d.period_k : 0; /* a panel ends in each period at most once */
    dot_pack(&d, p->n0, p->cols, p->k0, k_int(k, p->length), p->length);
    if (beyond)
        dot_store(k, s->rows - 1, panel_at(s, k_int(k, p->length)), TILE_ROWS, nr,
                  dot_splat(k, k_bits(k, s->tb, 0), (unsigned)beyond, (unsigned)p->room));
    val kk = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, end), GROUP), at = panel_at(s, kk);
    val rows = dot_load(k, s->rows - 1, at, TILE_ROWS, nr, GROUP, p->room, 0);
    dot_store(k, s->panel - 1, at, TILE_COLS, k_int(k, GROUP), rows);
    k_end(k, kk);
}

static void pack_bytes_panel(const struct bytes_product *s, const struct bytes_panel *p)
{
    struct kernel *k = s->d->w->k;
    if (s->rows) {
        pack_bytes_runs(s, p);
        return;
    }
    int64_t whole = p->length / GROUP * GROUP, rest = p->length - whole;
    if (whole) {
        val kk = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), GROUP);
        pack_group(s, p, kk, GROUP);
        k_end(k, kk);
    }
    if (rest)
        pack_group(s, p, k_int(k, whole), rest);
}

static val rows_of_b(const struct bytes_product *s, const struct bytes_panel *p, val kk, int64_t depth, int64_t count)
{
    struct kernel *k = s->d->w->k;
    if (!s->panel)
        return load_b(s, p, kk, depth, count, p->room);
    return dot_load(k, s->panel - 1, panel_at(s, kk), TILE_COLS, k_int(k, GROUP), GROUP, p->room, 0);
}

/* ---- sums ---- */

/* The sums of the loop over k: a tile if `of_rows` is not 0, and the sums of B's columns if they are needed. */
struct totals { val tile, columns; };

/* Adds the products of `depth` elements along k, from index kk of the part on.  `count` of them exist. */
static struct totals add_products(const struct bytes_product *s, const struct bytes_panel *p, val m0, int64_t of_rows,
                                  val kk,
                                  int64_t depth, int64_t count, struct totals t)
{
    struct kernel *k = s->d->w->k;
    val b = rows_of_b(s, p, kk, depth, count);
    if (t.tile)
        t.tile = dot_mma(k, MMA_CHAIN, load_a(s, m0, of_rows, ix_add(k, p->k0, kk), depth, count), b, t.tile);
    if (t.columns)
        t.columns = dot_mma(k, MMA_CHAIN,
                            dot_splat(k, k_bits(k, s->tb == KL_U8 ? KL_I8 : KL_U8, 1), 1, (unsigned)depth), b,
                            t.columns);
    return t;
}

/* Adds the products of elements `from` to `to` along k, `unroll` times `depth` of them in an iteration of the loop. */
static struct totals add_loop(const struct bytes_product *s, const struct bytes_panel *p, val m0, int64_t rows,
                              int64_t from,
                              int64_t to, int64_t depth, int unroll, struct totals t)
{
    struct kernel *k = s->d->w->k;
    if (from == to)
        return t;
    val kk = k_loop(k, LOOP_SERIAL, k_int(k, from), k_int(k, to), depth * unroll);
    struct totals c = {t.tile ? dot_carry(k, t.tile) : 0, t.columns ? dot_carry(k, t.columns) : 0}, x = c;
    for (int u = 0; u < unroll; u++) {
        val at = ix_add(k, kk, k_int(k, u * depth));
        if (s->prefetch)
            prefetch_b(s, p, at, depth);
        x = add_products(s, p, m0, rows, at, depth, depth, x);
    }
    if (c.tile)
        k_next(k, c.tile, x.tile);
    if (c.columns)
        k_next(k, c.columns, x.columns);
    k_end(k, kk);
    return (struct totals){c.tile ? dot_out(k, c.tile) : 0, c.columns ? dot_out(k, c.columns) : 0};
}

static struct totals add_panel(const struct bytes_product *s, const struct bytes_panel *p, val m0, int64_t rows,
                               struct totals t)
{
    struct kernel *k = s->d->w->k;
    int64_t squares = s->square && p->cols == s->d->nr ? p->length / s->square * s->square : 0;
    int64_t groups = p->length / GROUP * GROUP, whole = groups - (groups - squares) % (UNROLL * GROUP);
    t = add_loop(s, p, m0, rows, 0, squares, s->square, 1, t);
    t = add_loop(s, p, m0, rows, squares, whole, GROUP, UNROLL, t);
    for (int64_t at = whole; at < p->length; at += GROUP)
        t = add_products(s, p, m0, rows, k_int(k, at), GROUP, at < groups ? GROUP : p->length - groups, t);
    return t;
}

static val no_sums(struct kernel *k, int64_t rows, int64_t cols)
{
    return dot_splat(k, k_bits(k, KL_I32, 0), (unsigned)rows, (unsigned)cols);
}

/* 128 times the sums of B's columns, with the sign of the error. */
static val transposed_columns(const struct bytes_product *s, val columns)
{
    struct kernel *k = s->d->w->k;
    struct linst c = k->inst[columns];
    return tile_prim(k, P_MUL, KL_I32, columns, k_bits(k, KL_I32, (uint32_t)(s->ta == KL_I8 ? 128 : -128)), c.rows,
                     c.cols);
}

/* One tile of one panel: the rows from m0 on, which are the rows from `row` on in the task. */
static void dot_bytes_emit_tile(const struct bytes_product *s, const struct bytes_panel *p, val m0, val row,
                                int64_t rows)
{
    struct kernel *k = s->d->w->k;
    val nr = k_int(k, s->d->nr), at = s->panels > 1 ? ix_scale(k, row, s->d->nr) : k_int(k, 0);
    struct totals t = {.columns = s->transposed && !s->panel ? no_sums(k, 1, p->room) : 0};
    t.tile = s->panels > 1 ? dot_load(k, s->sums, at, TILE_ROWS, nr, rows, p->room, 0) : no_sums(k, rows, p->room);
    t = add_panel(s, p, m0, rows, t);
    if (s->transposed) {
        val columns = t.columns ? transposed_columns(s, t.columns)
                                : dot_load(k, s->columns, k_int(k, 0), TILE_ROWS, nr, 1, p->room, 0);
        t.tile = tile_prim(k, P_SUB, KL_I32, t.tile, columns, rows, p->room);
    }
    dot_store(k, s->sums, at, TILE_ROWS, nr, t.tile);
    if (s->panels == 1)
        dot_epilogue_rows(s->d, m0, rows, p->n0, p->cols);
}

/* The same of the last `left` rows, fewer than a tile has: a tile of each height up to half of a tile's, and more rows
 * in two tiles. */
static void last_rows(const struct bytes_product *s, const struct bytes_panel *p, val first, val left)
{
    struct kernel *k = s->d->w->k;
    int64_t max = s->d->mr / 2;
    val zero = k_int(k, 0);
    if (!max)
        return;
    ix_assume_range(k, left, 0, s->d->mr - 1);
    val few = k_prim(k, P_LE, left, k_int(k, max), 0), half = ix_div(k, ix_add(k, left, k_int(k, 1)), 2);
    val height = k_prim(k, P_SELECT, few, left, half), second = k_prim(k, P_SUB, left, height, 0);
    ix_assume_range(k, height, 0, max);
    val part = k_loop(k, LOOP_SERIAL, zero, k_int(k, 2), 1);
    val rows = k_prim(k, P_SELECT, k_prim(k, P_EQ, part, zero, 0), height, second);
    for (int64_t each = max; each > 0; each--) {
        val open = k_if(k, k_prim(k, P_EQ, rows, k_int(k, each), 0));
        dot_bytes_emit_tile(s, p, ix_add(k, first, ix_mul(k, part, height)), zero, each);
        k_end(k, open);
    }
    k_end(k, part);
}

/* All row tiles of the task for one panel, of as many rows as the symbols' values say. */
static void emit_symbolic_rows(const struct bytes_product *s, const struct bytes_panel *p, val first)
{
    struct kernel *k = s->d->w->k;
    val whole = ix_div(k, s->d->rows_here, s->d->mr);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), whole, 1);
    dot_bytes_emit_tile(s, p, ix_add(k, first, ix_scale(k, i, s->d->mr)), k_int(k, 0), s->d->mr);
    k_end(k, i);
    val done = ix_scale(k, whole, s->d->mr);
    last_rows(s, p, ix_add(k, first, done), k_prim(k, P_SUB, s->d->rows_here, done, 0));
}

/* All row tiles of the task for one panel. */
static void emit_panel(const struct bytes_product *s, const struct bytes_panel *p, val first, int64_t rows)
{
    struct kernel *k = s->d->w->k;
    int64_t tiles = rows / s->d->mr, rest = rows % s->d->mr;
    if (s->panel)
        pack_bytes_panel(s, p);
    if (s->transposed && s->panel) {
        struct totals t = add_panel(s, p, 0, 0, (struct totals){.columns = no_sums(k, 1, p->room)});
        dot_store(k, s->columns, k_int(k, 0), TILE_ROWS, k_int(k, s->d->nr), transposed_columns(s, t.columns));
    }
    if (s->d->rows_here) {
        emit_symbolic_rows(s, p, first);
        return;
    }
    if (tiles) {
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, tiles), 1), row = ix_scale(k, i, s->d->mr);
        dot_bytes_emit_tile(s, p, ix_add(k, first, row), row, s->d->mr);
        k_end(k, i);
    }
    if (rest)
        dot_bytes_emit_tile(s, p, ix_add(k, first, k_int(k, tiles * s->d->mr)), k_int(k, tiles * s->d->mr), rest);
}

/* One task.  All panels but the last are in a loop, which adds to the sums in scratch. */
static void emit_task(const struct dot *d, const void *ctx, val first, int64_t rows, val n0, int64_t cols)
{
    struct dot here = *d; /* with the rows and columns of this task */
    struct bytes_product product = *(const struct bytes_product *)ctx, *s = &product;
    struct kernel *k = d->w->k;
    product.d = &here;
    int64_t lanes = s->lanes, room = dot_parts(cols, lanes) * lanes;
    struct bytes_panel p = {.n0 = n0, .k0 = k_int(k, 0), .cols = cols, .room = room < s->d->nr ? room : s->d->nr,
                     .length = s->kc};
    if (!s->panel && !s->b_rows)
        p.room = cols; /* columns are not adjacent in memory, so no vector is filled up */
    if (s->panels > 1) {
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1);
        dot_store(k, s->sums, ix_scale(k, i, s->d->nr), TILE_ROWS, k_int(k, s->d->nr), no_sums(k, 1, p.room));
        k_end(k, i);
        val panel = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->panels - 1), 1);
        p.k0 = ix_scale(k, panel, s->kc);
        emit_panel(s, &p, first, rows);
        k_end(k, panel);
    }
    p.k0 = k_int(k, (s->panels - 1) * s->kc);
    p.length = s->d->size.k - (s->panels - 1) * s->kc;
    emit_panel(s, &p, first, rows);
    if (s->panels > 1)
        dot_epilogue_rows(s->d, first, rows, n0, cols);
}

/* ---- the kernel ---- */

void dot_bytes_emit(struct dot *d, const struct schedule *schedule)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    struct bytes_product s = {.d = d, .ta = w->g->node[d->n->in[0]].dtype, .tb = w->g->node[d->n->in[1]].dtype,
                      .prefetch = schedule->dot_bytes.prefetch_b, .b_rows = d->b_step_n == 1,
                      .kc = schedule->dot_bytes.panel, .lanes = schedule->dot_bytes.lanes};
    d->mr = schedule->dot_bytes.mr;
    d->nr = schedule->dot_bytes.nr;
    d->mblock = schedule->dot_bytes.rows;
    d->lanes = s.lanes;
    s.transposed = s.ta == s.tb;
    s.panels = dot_parts(d->size.k, s.kc);
    if (schedule->dot_bytes.pack_b)
        s.panel = 1 + k_buf(k, BUF_SCRATCH, s.tb, dot_parts(s.kc, GROUP) * GROUP * d->nr, 0);
    else if (!s.b_rows)
        s.square = GROUP * s.lanes;
    if (d->b_step_n == -1)
        s.rows = 1 + k_buf(k, BUF_SCRATCH, s.tb, dot_parts(s.kc, GROUP) * GROUP * d->nr, 0);
    s.sums = k_buf(k, BUF_SCRATCH, KL_I32, (s.panels > 1 ? d->mblock : d->mr) * d->nr, 0);
    d->tile = 1 + s.sums;
    d->tile_step = d->nr;
    if (s.transposed && s.panel)
        s.columns = k_buf(k, BUF_SCRATCH, KL_I32, d->nr, 0);
    dot_tasks(d, dot_task_columns(d, schedule), emit_task, &s);
}
