/* Large products of bf16 in even_odd order (ir/graph/node.h), on a processor that has an instruction for tiles of
 * [16x16] results and 32 elements of the contraction (caps.bf16_tiles: AMX).
 *
 * A task computes NR columns of a block of rows.  B's columns are packed into a panel of pairs along k
 * (lower_dot_pack.c), with zeros beyond the last column and element of k.  Tiles of MR x NR, of several such tiles side
 * by side, stay in the instruction's registers over all k of a panel, and are stored to scratch, from which the
 * epilogue is computed row by row.  A panel of B fits the first-level cache; where k takes several panels, the sums are
 * in scratch between them.  1024x1024x1024 takes 0.6 of the time with panels of 512, as tiles that come from the
 * second-level cache wait for it.
 *
 * A is read in place where the elements of its rows are adjacent in memory, and its rows and k are a whole number of
 * tiles.  Else a task packs its rows once, with zeros beyond the last row and element of k, and iterates over all
 * columns, or a run of them. */
#include "lower_dot_tiles.h"

struct tiles_product {
    struct dot *d;
    int64_t kc, panels;     /* elements of k in a panel, a multiple of DEPTH where there are several */
    int64_t length;         /* k, rounded up to whole tiles */
    int64_t columns;        /* of a task with pack_a */
    uint32_t packed;        /* lbuf + 1: a task's rows of A; 0: they are read in place */
    uint32_t sums;          /* lbuf */
};

struct tiles_panel {        /* of a task: one panel along k, and the columns of a tile */
    val n0, k0;
    int64_t cols, length;   /* number of columns; elements along k */
    bool first, last;       /* of the panels */
};

/* ---- packing ---- */

/* Stores so many zeros, whole vectors, to a scratch lbuf. */
static void store_zeros(const struct tiles_product *s, uint32_t buf, val from, int64_t count)
{
    struct kernel *k = s->d->w->k;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, count), SIDE);
    val lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, SIDE), 1);
    k_store(k, buf, ix_add(k, ix_add(k, from, i), lane), k_splat(k, k_bits(k, k->buf[buf].dtype, 0)), 0);
    k_end(k, lane);
    k_end(k, i);
}

static void pack_b(const struct tiles_product *s, const struct tiles_panel *p)
{
    struct kernel *k = s->d->w->k;
    int64_t rows = dot_parts(p->length, 2), all = tiles_rounded(p->length, DEPTH) / 2, nr = s->d->nr;
    if (p->cols < nr)
        store_zeros(s, s->d->panel - 1, k_int(k, 0), all * nr);
    else if (rows < all)
        store_zeros(s, s->d->panel - 1, k_int(k, rows * nr), (all - rows) * nr);
    dot_pack(s->d, p->n0, p->cols, p->k0, k_int(k, p->length), p->length);
}

/* The element of A that is packed, or 0 where there is none: where `there` is false. */
static val packed_element(const struct tiles_product *s, val m, val kk, val there)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    w->pred = there;
    val v = dot_stored_element(s->d, false, m, kk);
    w->pred = 0;
    if (!k->inst[v].varying)
        v = k_splat(k, v);
    return there ? k_prim(k, P_SELECT, there, v, k_bits(k, KL_BF16, 0)) : v;
}

/* Packs elements kk .. kk + lanes - 1 of a row, `count` of which exist. */
static void pack_along_k(const struct tiles_product *s, val first, val row, val kk, int64_t count)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, DEPTH), 1);
    val there = count < DEPTH ? k_prim(k, P_LT, w->lane, k_int(k, count), 0) : 0;
    ix_bound(k, w->lane, 0, count - 1);
    val v = packed_element(s, ix_add(k, first, row), ix_add(k, kk, w->lane), there);
    k_store(k, s->packed - 1, ix_add(k, ix_add(k, ix_scale(k, row, s->length), kk), w->lane), v, 0);
    k_end(k, w->lane);
    w->lane = 0;
}

/* Packs a square: SIDE rows from `row` on, `rows` of which exist, and elements kk .. kk + SIDE - 1 of k, `count` of
 * which do.  Lanes are rows, which are adjacent in memory, until it is transposed. */
static void pack_square(const struct tiles_product *s, val first, val row, int64_t rows, val kk, int64_t count)
{
    struct lowering *w = s->d->w;
    struct kernel *k = w->k;
    val v[SIDE];
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, SIDE), 1);
    val there = rows < SIDE ? k_prim(k, P_LT, w->lane, k_int(k, rows), 0) : 0;
    val lane = w->lane;
    for (int64_t i = 0; i < SIDE; i++)
        v[i] = i < count ? packed_element(s, ix_add(k, ix_add(k, first, row), lane), ix_add(k, kk, k_int(k, i)), there)
                         : k_splat(k, k_bits(k, KL_BF16, 0));
    k_transpose(k, v, SIDE);
    for (int64_t i = 0; i < SIDE; i++) {
        val at = ix_add(k, ix_scale(k, ix_add(k, row, k_int(k, i)), s->length), kk);
        k_store(k, s->packed - 1, ix_add(k, at, lane), v[i], 0);
    }
    k_end(k, w->lane);
    w->lane = 0;
}

/* Packs squares of all rows. */
static void pack_rows_of_squares(const struct tiles_product *s, val first, int64_t rows, val kk, int64_t count)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = rows / SIDE * SIDE;
    if (whole) {
        val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), SIDE);
        pack_square(s, first, row, SIDE, kk, count);
        k_end(k, row);
    }
    if (rows > whole)
        pack_square(s, first, k_int(k, whole), rows - whole, kk, count);
}

static void pack_a_squares(const struct tiles_product *s, val first, int64_t rows)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = s->d->size.k / SIDE * SIDE;
    if (whole) {
        val kk = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), SIDE);
        pack_rows_of_squares(s, first, rows, kk, SIDE);
        k_end(k, kk);
    }
    for (; whole < s->length; whole += SIDE) {
        int64_t left = s->d->size.k - whole;
        pack_rows_of_squares(s, first, rows, k_int(k, whole), left > 0 ? left : 0);
    }
}

static void pack_a_rows(const struct tiles_product *s, val first, int64_t rows)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = s->d->size.k / DEPTH * DEPTH, beyond = tiles_rounded(rows, SIDE) - rows;
    val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1);
    if (whole) {
        val kk = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), DEPTH);
        pack_along_k(s, first, row, kk, DEPTH);
        k_end(k, kk);
    }
    if (s->d->size.k > whole)
        pack_along_k(s, first, row, k_int(k, whole), s->d->size.k - whole);
    k_end(k, row);
    if (beyond)
        store_zeros(s, s->packed - 1, k_int(k, rows * s->length), beyond * s->length);
}

/* A task's rows, at its first tile of columns. */
static void pack_a(const struct tiles_product *s, val first, int64_t rows, val n0)
{
    struct kernel *k = s->d->w->k;
    val number = ix_mod(k, n0, s->columns), open = 0;
    int64_t known = 0;
    bool constant = ix_const(k, number, &known);
    if (known)
        return;
    if (!constant)
        open = k_if(k, k_prim(k, P_EQ, number, k_int(k, 0), 0));
    if (s->d->a_step_m == 1)
        pack_a_squares(s, first, rows);
    else
        pack_a_rows(s, first, rows);
    if (open)
        k_end(k, open);
}

/* ---- products ---- */

/* A tile of A: SIDE rows from row m of all, which is number `row` in the task, and DEPTH elements from kk on. */
static val load_a(const struct tiles_product *s, val m, val row, val kk)
{
    struct kernel *k = s->d->w->k;
    if (s->packed)
        return dot_load(k, s->packed - 1, ix_add(k, ix_scale(k, row, s->length), kk), TILE_ROWS, k_int(k, s->length),
                        SIDE, DEPTH, 0);
    val v = dot_stored_element(s->d, false, m, kk);
    struct linst l = k->inst[v];
    return dot_load(k, (uint32_t)l.imm, l.a, TILE_ROWS, k_int(k, s->d->a_step_m), SIDE, DEPTH, 0);
}

/* The products of one tile with a panel: `rows` rows from m0 on, number `row` in the task.  Rows and columns that are
 * no whole tiles are filled up. */
static void tile_products(const struct tiles_product *s, const struct tiles_panel *p, val m0, val row, int64_t rows)
{
    struct kernel *k = s->d->w->k;
    int64_t down = dot_parts(rows, SIDE), across = dot_parts(p->cols, SIDE);
    val nr = k_int(k, s->d->nr), at = s->panels > 1 ? ix_scale(k, row, s->d->nr) : k_int(k, 0);
    val acc[MAX_SIDES][MAX_SIDES], carry[MAX_SIDES][MAX_SIDES], to[MAX_SIDES][MAX_SIDES], a, b[MAX_SIDES];
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++) {
            to[i][j] = ix_add(k, at, k_int(k, i * SIDE * s->d->nr + j * SIDE));
            acc[i][j] = p->first ? dot_splat(k, k_bits(k, KL_F32, 0), SIDE, SIDE)
                                 : dot_load(k, s->sums, to[i][j], TILE_ROWS, nr, SIDE, SIDE, 0);
        }
    val kk = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, tiles_rounded(p->length, DEPTH)), DEPTH);
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++)
            acc[i][j] = carry[i][j] = dot_carry(k, acc[i][j]);
    for (int64_t j = 0; j < across; j++)
        b[j] = dot_load(k, s->d->panel - 1, ix_add(k, ix_scale(k, ix_div(k, kk, 2), s->d->nr), k_int(k, j * SIDE)),
                        TILE_ROWS, nr, SIDE, SIDE, 0);
    for (int64_t i = 0; i < down; i++) {
        val below = k_int(k, i * SIDE);
        a = load_a(s, ix_add(k, m0, below), ix_add(k, row, below), ix_add(k, p->k0, kk));
        for (int64_t j = 0; j < across; j++)
            acc[i][j] = dot_mma(k, MMA_EVEN_ODD, a, b[j], acc[i][j]);
    }
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++)
            k_next(k, carry[i][j], acc[i][j]);
    k_end(k, kk);
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++)
            dot_store(k, s->sums, to[i][j], TILE_ROWS, nr, dot_out(k, carry[i][j]));
    if (p->last && s->panels == 1)
        dot_epilogue_rows(s->d, m0, rows, p->n0, p->cols);
}

/* All tiles of the task's rows. */
static void panel_products(const struct tiles_product *s, const struct tiles_panel *p, val first, int64_t rows)
{
    struct kernel *k = s->d->w->k;
    int64_t whole = rows / s->d->mr * s->d->mr;
    pack_b(s, p);
    if (whole) {
        val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), s->d->mr);
        tile_products(s, p, ix_add(k, first, row), row, s->d->mr);
        k_end(k, row);
    }
    if (rows > whole)
        tile_products(s, p, ix_add(k, first, k_int(k, whole)), k_int(k, whole), rows - whole);
}

static void tiles_task(const struct dot *d, const void *ctx, val first, int64_t rows, val n0, int64_t cols)
{
    const struct tiles_product *s = ctx;
    struct kernel *k = d->w->k;
    struct tiles_panel p = {.n0 = n0, .k0 = k_int(k, 0), .cols = cols, .length = s->kc, .first = true};
    if (s->packed)
        pack_a(s, first, rows, n0);
    if (s->panels > 1) {
        panel_products(s, &p, first, rows);
        p.first = false;
    }
    if (s->panels > 2) {
        val panel = k_loop(k, LOOP_SERIAL, k_int(k, 1), k_int(k, s->panels - 1), 1);
        p.k0 = ix_scale(k, panel, s->kc);
        panel_products(s, &p, first, rows);
        k_end(k, panel);
    }
    p.last = true;
    p.k0 = k_int(k, (s->panels - 1) * s->kc);
    p.length = d->size.k - (s->panels - 1) * s->kc;
    panel_products(s, &p, first, rows);
    if (s->panels > 1)
        dot_epilogue_rows(s->d, first, rows, n0, cols);
}

static bool b_is_computed(const struct dot *d)
{
    bool linear;
    return lower_is_member(d->w, node_operand(d->w->g, d->w->anchor, 1, &linear));
}

/* How B is packed: rows of adjacent columns, columns in runs, or squares of columns that are adjacent along k. */
static enum sched_pack tiles_pack_by(const struct dot *d)
{
    bool computed = b_is_computed(d);
    if (!computed && d->columns_run)
        return PACK_COLUMN_RUNS;
    bool along_k = computed ? dot_along_k(d, true) || dot_pairs_along_k(d, true) : d->b_step_k == 1;
    return (computed ? !along_k : d->b_step_n == 1) ? PACK_ROWS : along_k ? PACK_SQUARES : PACK_ELEMENTS;
}

void dot_tiles_emit(struct dot *d, const struct schedule *schedule)
{
    struct kernel *k = d->w->k;
    struct tiles_product s = {.d = d, .kc = schedule->dot_tiles.panel, .length = tiles_rounded(d->size.k, DEPTH)};
    d->mr = schedule->dot_tiles.mr;
    d->nr = schedule->dot_tiles.nr;
    d->mblock = schedule->dot_tiles.rows;
    d->lanes = SIDE;
    d->square = SIDE;
    d->pack_by = tiles_pack_by(d);
    d->when = EPILOGUE_AFTER_TILE;
    s.panels = dot_parts(d->size.k, s.kc);
    s.columns = schedule->dot_tiles.run ? schedule->dot_tiles.run : d->size.n;
    d->panel = 1 + k_buf(k, BUF_SCRATCH, KL_U32, tiles_rounded(s.kc, DEPTH) / 2 * d->nr, 0);
    if (schedule->dot_tiles.pack_a) {
        s.packed = 1 + k_buf(k, BUF_SCRATCH, KL_BF16, tiles_rounded(d->mblock, SIDE) * s.length, 0);
        d->run = s.columns;
        d->whole_rows = s.columns == d->size.n;
    }
    s.sums = k_buf(k, BUF_SCRATCH, KL_F32, (s.panels > 1 ? tiles_rounded(d->mblock, SIDE) : d->mr) * d->nr, 0);
    d->tile = 1 + s.sums;
    d->tile_step = d->nr;
    dot_tasks(d, s.packed ? d->size.n / s.columns : dot_parts(d->size.n, d->nr), tiles_task, &s);
}
