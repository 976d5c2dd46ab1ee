/* The panel of a product on a processor: kc rows of NR columns of B, which the tiles read instead of B.  Whole rows
 * are copied if columns are adjacent in memory.  If the elements of a column are adjacent, squares are transposed in
 * registers.
 *
 * Elements may be adjacent only within runs, as the windows of a convolution are within a row of the image.  They
 * are copied in vectors, too.  A vector of columns that crosses from one run to the next is put together from a
 * masked load of each run; squares of a column's elements end where their run ends.  This takes 0.75 of the time for
 * a convolution 3x3, 128->128, 28x28, and half of the time for 7x7 windows with stride 2. */
#include "lower_dot.h"

enum { PACK_STEPS = 16 };

/* The columns and the steps of k that are copied; the panel has a row for each d->unit steps of k.  length: the number
 * of steps, kc, or one that the kernel computes, which is at most kc. */
struct panel { val n0, k0, length; int64_t cols, kc; };

/* The element of row j of the panel in column n0 + col.  alone: it is the last row, which has only a pair's first
 * element. */
static val panel_element(const struct dot *d, const struct panel *t, val col, val j, bool alone)
{
    struct kernel *k = d->w->k;
    return dot_factor(d, true, ix_add(k, t->n0, col), ix_add(k, t->k0, ix_scale(k, j, d->unit)), alone);
}

/* Copies `steps` rows of column n0 + col from row `first` on, one by one, because a gather costs more than its
 * loads. */
static void pack_column(const struct dot *d, const struct panel *t, val col, val first, int64_t steps, bool alone)
{
    struct kernel *k = d->w->k;
    for (int64_t u = 0; u < steps; u++) {
        val j = ix_add(k, first, k_int(k, u));
        val b = panel_element(d, t, col, j, alone && u + 1 == steps);
        k_store(k, d->panel - 1, ix_add(k, ix_scale(k, j, d->nr), col), b, 0);
    }
}

/* Transposes a square whose columns are in registers, and stores its rows to the panel from row `first` on. */
static void store_square(const struct dot *d, val *column, val first, val col)
{
    struct kernel *k = d->w->k;
    for (uint32_t i = 0; i < d->square; i++) /* elements of an expanded axis are the same in all lanes */
        if (!k->inst[column[i]].varying)
            column[i] = k_splat(k, column[i]);
    k_transpose(k, column, d->square);
    for (uint32_t i = 0; i < d->square; i++) {
        val at = ix_add(k, ix_scale(k, ix_add(k, first, k_int(k, i)), d->nr), col);
        k_store(k, d->panel - 1, ix_add(k, at, d->w->lane), column[i], 0);
    }
}

/* Copies a square of columns from n0 + col on and rows from `first` on, which is transposed in registers. */
static void pack_square(const struct dot *d, const struct panel *t, val col, val first)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val row[64];
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->square), 1);
    for (uint32_t i = 0; i < d->square; i++)
        row[i] = panel_element(d, t, ix_add(k, col, k_int(k, i)), ix_add(k, first, w->lane), false);
    store_square(d, row, first, col);
    k_end(k, w->lane);
    w->lane = 0;
}

/* Copies `steps` rows from `first` on, whose columns are adjacent: vectors of each row. */
static void pack_rows(const struct dot *d, const struct panel *t, val first, int64_t steps, bool alone)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    dot_begin_columns(d, t->cols);
    for (int64_t u = 0; u < steps; u++) {
        val j = ix_add(k, first, k_int(k, u));
        val b = panel_element(d, t, w->lane, j, alone && u + 1 == steps);
        k_store(k, d->panel - 1, ix_add(k, ix_scale(k, j, d->nr), w->lane), b, w->pred);
    }
    dot_end_columns(d);
}

/* The largest number of runs that the lanes of a vector of columns belong to; a vector starts at a multiple of its
 * lanes. */
static int64_t runs_of_vector(const struct dot *d, int64_t lanes)
{
    int64_t together = lanes, run = d->columns_run;
    while (run % together)
        together /= 2;
    return (lanes - together + run - 1) / run + 1;
}

/* A mask of the lanes whose column belongs to run number `first` + p, where the first column is number `start` of
 * its run. */
static val lanes_of_run(struct kernel *k, val lane, val start, int64_t run, bool first)
{
    val to = k_prim(k, P_LT, lane, ix_sub(k, k_int(k, run), start), 0);
    return first ? to : k_prim(k, P_AND, k_prim(k, P_LE, ix_scale(k, start, -1), lane, 0), to, 0);
}

/* Where a vector of columns begins: at column number `first` of the tile, which is element `at` of run number `run`. */
struct vector { int64_t first, lanes; val run, at, there; };

enum { MAX_RUNS = 64 };

/* The runs that a vector's lanes belong to: where each starts, and a mask of its lanes. */
struct lanes { int64_t runs; const val *start, *pred; };

/* Copies row j of the panel. */
static void pack_row_of_runs(const struct dot *d, const struct panel *t, const struct vector *v, const struct lanes *l,
                             val j, bool alone)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val all = 0;
    for (int64_t p = 0; p < l->runs; p++) {
        w->pred = l->pred[p];
        w->pred_all = p > 0; /* where no lane has this run, indices that are loaded for all lanes do not exist either */
        val b = dot_column_of_run(d, ix_add(k, v->run, k_int(k, p)), ix_add(k, l->start[p], w->lane),
                                  ix_add(k, t->k0, ix_scale(k, j, d->unit)), alone);
        all = p ? k_prim(k, P_SELECT, l->pred[p], b, all) : b;
    }
    w->pred = 0;
    w->pred_all = false;
    k_store(k, d->panel - 1, ix_add(k, ix_add(k, ix_scale(k, j, d->nr), k_int(k, v->first)), w->lane), all, 0);
}

static void pack_rows_of_runs(const struct dot *d, const struct panel *t, const struct vector *v, const struct lanes *l,
                              val from, val to)
{
    struct kernel *k = d->w->k;
    const struct linst *lo = &k->inst[from], *hi = &k->inst[to];
    if (lo->op == L_CONST && hi->op == L_CONST && lo->imm >= hi->imm)
        return;
    val j = k_loop(k, LOOP_SERIAL, from, to, 1);
    pack_row_of_runs(d, t, v, l, j, false);
    k_end(k, j);
}

/* Copies whole periods of k in one iteration each, so that a window's address is computed once for all its
 * elements.  The rows of the panel before the first whole period and after the last one are copied one by one. */
static void pack_periods_of_runs(const struct dot *d, const struct panel *t, const struct vector *v,
                                 const struct lanes *l)
{
    struct kernel *k = d->w->k;
    int64_t period = d->period_k;
    val first = ix_div(k, ix_add(k, t->k0, k_int(k, period - 1)), period);
    val end = ix_div(k, ix_add(k, t->k0, k_int(k, t->kc)), period);
    pack_rows_of_runs(d, t, v, l, k_int(k, 0), ix_sub(k, ix_scale(k, first, period), t->k0));
    val i = k_loop(k, LOOP_SERIAL, first, end, 1);
    ix_bound(k, i, 0, d->size.k / period - 1);
    for (int64_t u = 0; u < period; u++)
        pack_row_of_runs(d, t, v, l, ix_sub(k, ix_add(k, ix_scale(k, i, period), k_int(k, u)), t->k0), false);
    k_end(k, i);
    pack_rows_of_runs(d, t, v, l, ix_sub(k, ix_scale(k, end, period), t->k0), k_int(k, t->kc));
}

/* Copies the vectors of columns whose lanes belong to this many runs. */
static void pack_vector_of_runs(const struct dot *d, const struct panel *t, const struct vector *v, int64_t runs)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    int64_t whole = t->kc / d->unit;
    val start[MAX_RUNS], pred[MAX_RUNS];
    for (int64_t p = 0; p < runs; p++) {
        start[p] = ix_add(k, v->at, k_int(k, -p * d->columns_run));
        pred[p] = runs == 1 ? 0 : lanes_of_run(k, w->lane, start[p], d->columns_run, !p);
        if (v->there)
            pred[p] = pred[p] ? k_prim(k, P_AND, pred[p], v->there, 0) : v->there;
    }
    const struct lanes lanes = {runs, start, pred};
    if (d->unit == 1 && d->period_k)
        pack_periods_of_runs(d, t, v, &lanes);
    else
        pack_rows_of_runs(d, t, v, &lanes, k_int(k, 0), k_int(k, whole));
    if (t->kc % d->unit)
        pack_row_of_runs(d, t, v, &lanes, k_int(k, whole), true);
}

/* If runs are long, most vectors lie within one.  A load of the next run with no lane set would still fetch its
 * cache line. */
static void pack_vector(const struct dot *d, const struct panel *t, int64_t first, int64_t lanes)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    int64_t runs = runs_of_vector(d, lanes);
    val n = ix_add(k, t->n0, k_int(k, first));
    struct vector v = {first, lanes, ix_div(k, n, d->columns_run), ix_mod(k, n, d->columns_run), 0};
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, lanes), 1);
    if (d->columns_here || t->cols - first < lanes) {
        val cols = d->columns_here ? d->columns_here : k_int(k, t->cols);
        v.there = k_prim(k, P_LT, w->lane, ix_sub(k, cols, k_int(k, first)), 0);
    }
    val one = runs == 2 ? k_prim(k, P_LE, v.at, k_int(k, d->columns_run - lanes), 0) : 0;
    for (int64_t alone = runs == 1 || one; alone >= 0; alone--) {
        if (!alone && runs == 1)
            break;
        val inside = one ? k_if(k, alone ? one : k_prim(k, P_LT, k_int(k, d->columns_run - lanes), v.at, 0)) : 0;
        pack_vector_of_runs(d, t, &v, alone ? 1 : runs);
        if (inside)
            k_end(k, inside);
    }
    k_end(k, w->lane);
    w->lane = 0;
}

static void pack_row_runs(const struct dot *d, const struct panel *t)
{
    for (int64_t first = 0; first < t->cols; first += d->square)
        pack_vector(d, t, first, d->square);
}

/* Copies a square: columns from n0 + col on, `there` of which exist, and steps of k from element `at` of run number
 * `run` on, to row `row` of the panel.  Rows beyond the run's end are written, too: either the next square
 * overwrites them, or they are not read. */
static void pack_square_of_run(const struct dot *d, const struct panel *t, val col, int64_t there, val run, val at,
                               val row)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val v[64];
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->square), 1);
    w->pred = k_prim(k, P_LT, w->lane, ix_sub(k, k_int(k, d->steps_run), at), 0);
    for (uint32_t i = 0; i < d->square; i++)
        v[i] = i < there ? dot_step_of_run(d, true, ix_add(k, ix_add(k, t->n0, col), k_int(k, i)), d->steps_run,
                                           run, ix_add(k, at, w->lane)) : v[0];
    w->pred = 0;
    store_square(d, v, row, col);
    k_end(k, w->lane);
    w->lane = 0;
}

/* Copies as many columns as a square is wide, for all steps of k. */
static void pack_columns_of_runs(const struct dot *d, const struct panel *t, val col, int64_t there)
{
    struct kernel *k = d->w->k;
    int64_t length = d->steps_run;
    val end = ix_add(k, t->k0, t->length);
    val run = k_loop(k, LOOP_SERIAL, ix_div(k, t->k0, length), ix_div(k, ix_add(k, end, k_int(k, length - 1)), length),
                     1);
    ix_bound(k, run, 0, d->size.k / length - 1);
    val zero = ix_scale(k, run, length); /* the run's first step */
    val from = k_min(k, ix_sub(k, zero, t->k0), k_int(k, 0)), to = k_min(k, ix_sub(k, end, zero), k_int(k,
                                                                                                              length));
    from = ix_scale(k, from, -1);
    ix_assume_range(k, from, 0, length - 1);
    ix_assume_range(k, to, 1, length);
    val squares = ix_div(k, ix_add(k, ix_sub(k, to, from), k_int(k, d->square - 1)), d->square);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), squares, 1);
    val at = ix_add(k, from, ix_scale(k, i, d->square));
    pack_square_of_run(d, t, col, there, run, at, ix_add(k, ix_sub(k, zero, t->k0), at));
    k_end(k, i);
    k_end(k, run);
}

static void pack_column_runs(const struct dot *d, const struct panel *t)
{
    struct kernel *k = d->w->k;
    int64_t whole = t->cols / d->square * d->square;
    if (whole) {
        val col = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), d->square);
        pack_columns_of_runs(d, t, col, d->square);
        k_end(k, col);
    }
    if (t->cols > whole)
        pack_columns_of_runs(d, t, k_int(k, whole), t->cols - whole);
}

/* Copies kc rows of NR columns of B into the panel: whole rows if columns are adjacent; squares if k is contiguous,
 * so that loads and stores are whole vectors; in other cases and at the edges a few elements of a column at a time. */
static void pack_panel(const struct dot *d, const struct panel *t)
{
    struct kernel *k = d->w->k;
    if (d->pack_by == PACK_COLUMN_RUNS) {
        pack_row_runs(d, t);
        return;
    }
    if (d->pack_by == PACK_STEP_RUNS) {
        pack_column_runs(d, t);
        return;
    }
    int64_t rows = dot_parts(t->kc, d->unit);
    bool alone = t->kc % d->unit;
    if (d->pack_by == PACK_ROWS) {
        int64_t whole = (rows - alone) / UNROLL_K * UNROLL_K;
        if (whole) {
            val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), UNROLL_K);
            pack_rows(d, t, j, UNROLL_K, false);
            k_end(k, j);
        }
        if (rows > whole)
            pack_rows(d, t, k_int(k, whole), rows - whole, alone);
        return;
    }
    bool squares = d->pack_by == PACK_SQUARES && t->cols == d->nr;
    int64_t step = squares ? d->square : PACK_STEPS, whole = (rows - alone) / step * step;
    val cols = d->columns_here ? d->columns_here : k_int(k, t->cols), end = cols;
    if (whole) {
        /* The rows are at a multiple of `step`, so that it is seen which of them share what several have, as scales. */
        val number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole / step), 1), j = ix_scale(k, number, step);
        if (squares && d->columns_here)
            end = ix_scale(k, ix_div(k, cols, d->square), d->square);
        val col = k_loop(k, LOOP_SERIAL, k_int(k, 0), end, squares ? d->square : 1);
        if (squares)
            pack_square(d, t, col, j);
        else
            pack_column(d, t, col, j, step, false);
        k_end(k, col);
        if (end != cols) {
            col = k_loop(k, LOOP_SERIAL, end, cols, 1);
            ix_bound(k, col, 0, t->cols - 1);
            pack_column(d, t, col, j, step, false);
            k_end(k, col);
        }
        k_end(k, number);
    }
    if (rows > whole) {
        val col = k_loop(k, LOOP_SERIAL, k_int(k, 0), cols, 1);
        pack_column(d, t, col, k_int(k, whole), rows - whole, alone);
        k_end(k, col);
    }
}

int64_t dot_panel_rows(const struct dot *d)
{
    int64_t block = d->symbolic_k && d->blocks > 1 ? DOT_BLOCK : d->kblock; /* the longest for any value */
    int64_t rows = dot_parts(d->size.k < block ? d->size.k : block, d->unit);
    return d->pack_by == PACK_STEP_RUNS ? rows + d->square : rows;
}

void dot_pack(const struct dot *d, val n0, int64_t cols, val k0, val length, int64_t kc)
{
    pack_panel(d, &(struct panel){n0, k0, length, cols, kc});
}
