/* Row kernels that also reduce columns, as the gradient of a layer norm does, which sums over the rows for its gain and
 * bias: the arrays are read once.
 *
 * A block of threads computes some adjacent rows, one after the other.  Each thread has the same columns of all of them
 * and folds these in registers.  If a part of the graph's reduction has more rows than a block, the blocks store their
 * sums, and a second phase folds those of each part in ascending order.  So the order is fixed; with the rows of a
 * chunk in a block it is the graph's. */
#include "lower_gpu.h"
#include "passes/lower/lower_rows.h"

enum { AT_ONCE = 16, MAX_ADJACENT = 4 }; /* sums of blocks loaded before one is used; columns of a lane */

/* One reduce of columns: the blocks of each of its results, and the lbuf of their sums, if they are several. */
struct column_sums { ref r; const struct node *n; enum fold fold; unsigned dtype; int64_t blocks; uint32_t sums; };

static val column_identity(struct kernel *k, const struct column_sums *c)
{
    return k_splat(k, k_bits(k, c->dtype, fold_identity(c->fold, c->dtype)));
}

static void find_column_sums(const struct rows *s, struct column_sums *c, int64_t block)
{
    struct lowering *w = s->w;
    for (uint32_t i = 0; i < s->ncolumn; i++) {
        const struct node *n = &w->g->node[s->column[i]];
        int64_t rows = 1;
        reduce_columns(w->g, s->column[i], &s->space, &rows);
        c[i] = (struct column_sums){s->column[i], n, reduce_fold(n->op), dtype_compute(n->dtype), rows / block, 0};
        if (c[i].blocks > 1)
            c[i].sums = k_buf(w->k, BUF_WORKSPACE, c[i].dtype, s->space.rows / block * s->space.length, 0);
    }
}

/* Stores result `index` of the reduce. */
static void store_result(struct lowering *w, const struct column_sums *c, val index, val value)
{
    val coord[KL_MAX_RANK] = {0};
    const struct shape *shape = node_shape(w->g, c->r);
    lower_point(w);
    lower_fix(w, c->r, k_cast(w->k, value, c->n->dtype));
    lower_unflatten(w->k, shape, index, coord);
    lower_store(w, c->r, shape, coord);
    lower_unfix(w, c->r);
}

/* Stores what a thread has folded for each of its columns. */
static void store_sums(struct rows *s, const struct column_sums *c, val block, const val *sum)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    for (uint32_t e = 0; e < s->nheld; e++)
        s->there[e] = 0;
    for (uint32_t i = 0; i < s->ncolumn; i++)
        for (uint32_t e = 0; e < rows_held_there(s); e++) {
            rows_at_held_place(s, e);
            val at = ix_add(k, ix_scale(k, block, s->space.length), w->column), x = sum[i * s->nheld + e];
            if (c[i].blocks > 1)
                k_store(k, c[i].sums, at, x, w->pred);
            else
                store_result(w, &c[i], at, x);
        }
    rows_leave_held(s);
}

/* Emits the rows of a block, and stores its sums. */
static void emit_row_block(struct rows *s, const struct column_sums *c, val block, const struct shape *kept, val *sum)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    int64_t rows = schedule_of(k)->rows.block;
    uint32_t there = rows_held_there(s);
    val none[MAX_ROW_COLUMNS], *next = sum + s->ncolumn * s->nheld;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    for (uint32_t i = 0; i < s->ncolumn; i++)
        none[i] = column_identity(k, &c[i]);
    val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1);
    for (uint32_t i = 0; i < s->ncolumn; i++)
        for (uint32_t e = 0; e < there; e++)
            sum[i * s->nheld + e] = k_carry(k, none[i]);
    s->index = ix_add(k, ix_scale(k, block, rows), row);
    lower_unflatten(k, kept, s->index, s->row_coord);
    for (uint32_t e = 0; e < there; e++)
        rows_load_held(s, e);
    rows_leave_held(s);
    rows_emit_row(s);
    for (uint32_t i = 0; i < s->ncolumn; i++)
        for (uint32_t e = 0; e < there; e++) {
            val x = rows_held_operand(s, c[i].n, e, none[i]);
            next[i * s->nheld + e] = k_fold_step(k, c[i].fold, sum[i * s->nheld + e], x);
        }
    rows_leave_held(s);
    for (uint32_t i = 0; i < s->ncolumn; i++)
        for (uint32_t e = 0; e < there; e++)
            k_next(k, sum[i * s->nheld + e], next[i * s->nheld + e]);
    k_end(k, row);
    for (uint32_t i = 0; i < s->ncolumn; i++)
        for (uint32_t e = 0; e < there; e++)
            sum[i * s->nheld + e] = k_out(k, sum[i * s->nheld + e]);
    store_sums(s, c, block, sum);
    k_end(k, w->lane);
    w->lane = 0;
}

/* ---- the second phase ---- */

/* Adjacent columns of a lane, which one access loads. */
static int64_t columns_of_lane(const struct rows *s, const struct column_sums *c)
{
    int64_t each = 16 / (int64_t)dtype_size(c->dtype);
    each = each < MAX_ADJACENT ? each : MAX_ADJACENT;
    return s->space.length % each == 0 ? each : 1;
}

/* Folds n sums of blocks, which lie `length` elements apart, from the one at `first` on, for each adjacent column. */
static void fold_sums(struct lowering *w, const struct column_sums *c, val *acc, int64_t each, val first,
                      int64_t length, int64_t n)
{
    struct kernel *k = w->k;
    val x[AT_ONCE][MAX_ADJACENT];
    for (int64_t i = 0; i < n; i++)
        for (int64_t u = 0; u < each; u++)
            x[i][u] = k_load(k, c->sums, ix_add(k, first, k_int(k, i * length + u)), w->pred);
    for (int64_t i = 0; i < n; i++)
        for (int64_t u = 0; u < each; u++)
            acc[u] = k_fold_step(k, c->fold, acc[u], x[i][u]);
}

/* Folds the sums of all blocks of a part for the columns of the open lanes. */
static void emit_results(struct rows *s, const struct column_sums *c, val block)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    int64_t length = s->space.length, each = columns_of_lane(s, c), width = k->sched.width;
    int64_t results = node_numel(w->g, c->r), full = c->blocks / AT_ONCE, rest = c->blocks % AT_ONCE;
    val acc[MAX_ADJACENT], carry[MAX_ADJACENT], next[MAX_ADJACENT];
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
    val number = ix_add(k, ix_scale(k, block, width), w->lane); /* of each adjacent columns */
    if (results % (width * each)) {
        w->pred = k_prim(k, P_LT, number, k_int(k, results / each), 0);
        ix_bound(k, number, 0, results / each - 1); /* the other lanes access no memory */
    }
    val part = ix_div(k, number, length / each), index = ix_scale(k, number, each);
    val at = ix_add(k, index, ix_scale(k, part, (c->blocks - 1) * length));
    for (int64_t u = 0; u < each; u++)
        acc[u] = column_identity(k, c);
    if (full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
        for (int64_t u = 0; u < each; u++)
            next[u] = carry[u] = k_carry(k, acc[u]);
        fold_sums(w, c, next, each, ix_add(k, at, ix_scale(k, j, AT_ONCE * length)), length, AT_ONCE);
        for (int64_t u = 0; u < each; u++)
            k_next(k, carry[u], next[u]);
        k_end(k, j);
        for (int64_t u = 0; u < each; u++)
            acc[u] = k_out(k, carry[u]);
    }
    if (rest)
        fold_sums(w, c, acc, each, ix_add(k, at, k_int(k, full * AT_ONCE * length)), length, rest);
    for (int64_t u = 0; u < each; u++)
        store_result(w, c, ix_add(k, index, k_int(k, u)), acc[u]);
    w->pred = 0;
    k_end(k, w->lane);
    w->lane = 0;
}

static void emit_second_phase(struct rows *s, const struct column_sums *c)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    int64_t before = k->extent, extent = 0, blocks[MAX_ROW_COLUMNS] = {0};
    struct tasks t;
    for (uint32_t i = 0; i < s->ncolumn; i++) {
        int64_t width = k->sched.width * columns_of_lane(s, &c[i]);
        blocks[i] = c[i].blocks > 1 ? (node_numel(w->g, c[i].r) + width - 1) / width : 0;
        extent += blocks[i];
    }
    if (!extent)
        return;
    lower_next_phase(w);
    val p = lower_tasks(w, extent, 0, &t);
    k->extent = before + extent;
    int64_t end = 0;
    for (uint32_t i = 0; i < s->ncolumn; i++) {
        int64_t first = end;
        end += blocks[i];
        if (!blocks[i])
            continue;
        val from = k_prim(k, P_LE, k_int(k, first), p, 0), to = k_prim(k, P_LT, p, k_int(k, end), 0);
        val own = k_if(k, k_prim(k, P_AND, from, to, 0)), block = k_prim(k, P_SUB, p, k_int(k, first), 0);
        ix_bound(k, block, 0, blocks[i] - 1);
        emit_results(s, &c[i], block);
        k_end(k, own);
    }
    lower_tasks_end(w, &t);
}

void rows_emit_columns(struct rows *s, const struct shape *kept)
{
    struct lowering *w = s->w;
    struct column_sums c[MAX_ROW_COLUMNS] = {0};
    struct tasks t;
    int64_t block = schedule_of(w->k)->rows.block;
    val *sum = mem_alloc(((size_t)2 * s->ncolumn * s->nheld + 1) * sizeof *sum);
    if (!sum) {
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
        return;
    }
    find_column_sums(s, c, block);
    val p = lower_tasks(w, s->space.rows / block, 0, &t);
    emit_row_block(s, c, p, kept, sum);
    lower_tasks_end(w, &t);
    emit_second_phase(s, c);
    mem_free(sum);
}
