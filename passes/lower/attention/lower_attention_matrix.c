/* Attention and its gradient by a GPU's matrix units, in one pass and without an array of queries by keys (Dao,
 * FlashAttention-2, 2023).
 *
 * A block of threads owns some rows of one side: queries, or keys for the gradient in k and v.  Each of its subgroups
 * owns as many of them as the unit has.  The rows of the other side are iterated over in steps.  Shared memory has the
 * block's own rows, and a ring of steps, of which the ones ahead are copied while one is multiplied.  In a step a
 * subgroup computes, as tiles that its threads hold in registers:
 *
 *   attention     scores [own x step] = q k^T; new maxima and sums of its rows; weights; totals of weights v
 *   gradient      scores and dp [own x step]; weights p and ds; totals of ds k for queries, or of ds^T q and p^T dy for
 *                 keys, whose scores are computed transposed
 *
 * Weights and ds are rounded to the dtype of the operands, because they are factors of the second product.
 *
 * Steps that are masked for all rows of the block are skipped for `causal` and for ranges of keys.  In the others a
 * select removes the masked pairs.  The second product multiplies the zeros of such pairs by
 * elements that may be infinite or NaN.  So a result that is not finite is computed again, element by element, as
 * node.h defines it.
 *
 * The tile of results goes through shared memory, from where threads store vectors of adjacent elements. */
#include "lower_attention_tiles.h"
#include <string.h>

/* ---- tiles ---- */

val tiles_splat(struct kernel *k, double x, int64_t rows, int64_t cols)
{
    return k_append(k, (struct linst){.op = L_SPLAT, .dtype = KL_F32, .rows = (uint16_t)rows, .cols = (uint16_t)cols,
                                      .a = k_const(k, KL_F32, x)});
}

val attention_tile_load(struct kernel *k, uint32_t buf, val index, enum tile_order order, int64_t stride, int64_t rows,
                        int64_t cols, val there)
{
    val by = k_int(k, stride);
    return k_append(k, (struct linst){.op = L_LOAD, .dtype = k->buf[buf].dtype, .kind = (uint8_t)order,
                                      .rows = (uint16_t)rows, .cols = (uint16_t)cols, .a = index, .b = there,
                                      .d = by, .imm = buf});
}

static void tile_store(struct kernel *k, uint32_t buf, val index, int64_t stride, val x, val there)
{
    val by = k_int(k, stride);
    k_append(k, (struct linst){.op = L_STORE, .dtype = k->inst[x].dtype, .a = index, .b = x, .c = there, .d = by,
                               .imm = buf});
}

static val tile_mma(const struct tiles *s, val x, val y, val sum)
{
    struct kernel *k = s->a->w->k;
    const struct linst c = k->inst[sum];
    return k_append(k, (struct linst){.op = L_MMA, .dtype = c.dtype, .kind = s->async ? MMA_ASYNC : MMA_ANY,
                                      .rows = c.rows, .cols = c.cols, .a = x, .b = y, .c = sum});
}

void tiles_commit(const struct tiles *s)
{
    if (s->async)
        pipeline_commit_products(s->a->w->k);
}

void tiles_wait(const struct tiles *s, uint64_t left)
{
    if (s->async)
        pipeline_wait_products(s->a->w->k, left);
}

/* Waits for all products that were begun. */
static void wait_for_all_products(const struct tiles *s)
{
    tiles_commit(s);
    tiles_wait(s, 0);
}

static val tile_columns(struct kernel *k, val x, int64_t first, int64_t count)
{
    const struct linst *i = &k->inst[x];
    return k_append(k, (struct linst){.op = L_COLUMNS, .dtype = i->dtype, .rows = i->rows, .cols = (uint16_t)count,
                                      .a = x, .imm = (uint64_t)first});
}

/* The numbers of a tile's rows, or of its columns, from `first` on, as i32. */
static val tile_numbers(struct kernel *k, enum tile_order order, int64_t count, val first)
{
    bool rows = order == TILE_ROWS;
    val i = k_append(k, (struct linst){.op = L_INDEX, .dtype = KL_I64, .kind = (uint8_t)order,
                                       .rows = (uint16_t)(rows ? count : 1), .cols = (uint16_t)(rows ? 1 : count)});
    return k_prim(k, P_ADD, k_cast(k, i, KL_I32), k_cast(k, first, KL_I32), 0);
}

/* Of the threads that have own rows, which are all of the block if its warps are not specialized. */
static void own_barrier(const struct tiles *s)
{
    pipeline_threads_barrier(s->a->w->k, s->s.attention_matrix.panels ? s->s.width : 0);
}

/* ---- copies ---- */

static struct columns columns_of(const struct tiles *s, unsigned which, int64_t from, int64_t count, int64_t rows,
                                 int64_t stages)
{
    struct columns c = {which, from, count, attention_padded(count), 0, 0, 0};
    struct kernel *k = s->a->w->k;
    c.row = c.padded + (s->async ? 0 : ATTENTION_PAD);
    c.elements = rows * c.row;
    if (count)
        c.buf = k_buf(k, BUF_SHARED, s->dtype, stages * c.elements, s->async ? (uint32_t)c.row : 0);
    if (count && s->async && !k->err.code)
        k->buf[c.buf].panel_rows = (uint16_t)rows;
    return c;
}

/* Copies `rows` rows of an operand with `all` rows, from row `first` on, to index `to` on; rows and columns that do not
 * exist are zeros. */
static void copy_rows(const struct tiles *s, const struct columns *c, val first, int64_t rows, int64_t all, bool beyond,
                      val to)
{
    struct kernel *k = s->a->w->k;
    int64_t vectors = c->padded / VECTOR, n = c->count ? rows * vectors : 0;
    for (int64_t i = 0; i < n; i += s->s.width) {
        val e = ix_add(k, s->t, k_int(k, i)), there = 0;
        val some = n - i < s->s.width ? k_if(k, k_prim(k, P_LT, e, k_int(k, n), 0)) : 0;
        val row = ix_div(k, e, vectors), col = ix_scale(k, ix_mod(k, e, vectors), VECTOR);
        val place = ix_add(k, to, ix_add(k, ix_scale(k, row, c->row), col)), at = ix_add(k, first, row);
        if (beyond)
            there = k_prim(k, P_LT, at, k_int(k, all), 0);
        if (c->padded > c->count)
            there = both(k, there, k_prim(k, P_LT, col, k_int(k, c->count), 0));
        ix_bound(k, at, 0, all - 1); /* only for vectors that exist */
        val x = attention_stored(s->a, c->which, at, ix_add(k, col, k_int(k, c->from)));
        const struct linst load = k->inst[x]; /* only its address is used */
        k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = VECTOR, .a = place, .b = load.a, .c = there,
                                   .imm = c->buf | load.imm << 32});
        if (some)
            k_end(k, some);
    }
}

static void copy_step(const struct tiles *s, val number)
{
    struct kernel *k = s->a->w->k;
    val stage = ix_mod(k, number, s->stages);
    for (int i = 0; i < 2; i++)
        copy_rows(s, &s->iterated[i], ix_scale(k, number, s->step), s->step, s->a->m, true,
                  ix_scale(k, stage, s->iterated[i].elements));
    k_inst(k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
}

/* ---- products ---- */

static val own_factor(const struct tiles *s, const struct columns *own, int64_t kk)
{
    struct kernel *k = s->a->w->k;
    val at = ix_add(k, ix_scale(k, s->first, own->row), k_int(k, kk));
    return attention_tile_load(k, own->buf, at, TILE_ROWS, own->row, s->m, s->s.attention_matrix.unit_k, 0);
}

val tiles_products(const struct tiles *s, int which, val stage, val sum)
{
    struct kernel *k = s->a->w->k;
    const struct columns *own = &s->own[which], *iterated = &s->iterated[which];
    int64_t unit = s->s.attention_matrix.unit_k;
    val at = ix_scale(k, stage, iterated->elements);
    for (int64_t kk = 0; kk < own->padded; kk += unit) {
        val x = which == 0 && s->resident[kk / unit] ? s->resident[kk / unit] : own_factor(s, own, kk);
        val y = attention_tile_load(k, iterated->buf, ix_add(k, at, k_int(k, kk)), TILE_COLS, iterated->row, unit,
                                    s->step, 0);
        sum = tile_mma(s, x, y, sum);
    }
    return sum;
}

void tiles_factors(const struct tiles *s, val weights, val factor[])
{
    struct kernel *k = s->a->w->k;
    int64_t unit = s->s.attention_matrix.unit_k;
    for (int64_t kk = 0; kk < s->step; kk += unit)
        factor[kk / unit] = k_cast(k, s->step == unit ? weights : tile_columns(k, weights, kk, unit), s->dtype);
}

val tiles_weighted(const struct tiles *s, const val factor[], int which, val stage, val total)
{
    struct kernel *k = s->a->w->k;
    const struct columns *iterated = &s->iterated[which];
    int64_t unit = s->s.attention_matrix.unit_k;
    val at = ix_scale(k, stage, iterated->elements);
    for (int64_t kk = 0; kk < s->step; kk += unit) {
        val y = attention_tile_load(k, iterated->buf, ix_add(k, at, k_int(k, kk * iterated->row)), TILE_ROWS,
                                    iterated->row, unit, iterated->padded, 0);
        total = tile_mma(s, factor[kk / unit], y, total);
    }
    return total;
}

/* ---- one step ---- */

static void emit_tile_step(const struct tiles *s, val stage, val unmasked, val value[CARRIED])
{
    struct kernel *k = s->a->w->k;
    val score = tiles_products(s, 0, stage, tiles_splat(k, 0, s->m, s->step)), shrink;
    wait_for_all_products(s);
    val weight = tiles_soften(s, score, unmasked, value, &shrink);
    if (s->iterated[1].count) {
        val factor[MAX_FACTORS];
        tiles_factors(s, weight, factor);
        value[TOTAL] = tiles_weighted(s, factor, 1, stage, k_prim(k, P_MUL, value[TOTAL], shrink, 0));
    }
    wait_for_all_products(s);
}

static void add_gradients(const struct tiles *s, val stage, val unmasked, val iterated_there, val total[2])
{
    struct kernel *k = s->a->w->k;
    val stat[STAT_COUNT], factor[2][MAX_FACTORS];
    tiles_statistics(s, iterated_there, stat);
    val sum = tiles_splat(k, 0, s->m, s->step), score = tiles_products(s, 0, stage, sum);
    val dp = tiles_products(s, 1, stage, sum);
    wait_for_all_products(s);
    val p = tiles_probability(s, score, unmasked, stat);
    tiles_factors(s, tiles_ds(s, dp, p, unmasked, stat), factor[0]);
    if (s->keys)
        tiles_factors(s, p, factor[1]);
    total[0] = tiles_weighted(s, factor[0], 0, stage, total[0]);
    if (s->keys)
        total[1] = tiles_weighted(s, factor[1], 1, stage, total[1]);
    wait_for_all_products(s);
}

/* ---- results ---- */

void tiles_store_rows(const struct tiles *s, int which, int64_t columns, int64_t from)
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t vectors = columns / s->vector, all = s->rows * vectors, threads = s->s.width;
    val turn = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, (all + threads - 1) / threads), 1), guard = 0, x[VECTOR];
    val e = ix_add(k, ix_scale(k, turn, threads), s->t), outer = 0;
    if (all % threads) {
        outer = k_if(k, k_prim(k, P_LT, e, k_int(k, all), 0));
        ix_bound(k, e, 0, all - 1);
    }
    val row = ix_div(k, e, vectors), col = ix_scale(k, ix_mod(k, e, vectors), s->vector), i = ix_add(k, a->q0, row);
    if (a->l % s->rows)
        guard = k_if(k, k_prim(k, P_LT, i, k_int(k, a->l), 0));
    ix_bound(k, i, 0, a->l - 1);
    val at = ix_add(k, ix_add(k, ix_scale(k, row, s->out_row[which]), col), k_int(k, s->out_first[which]));
    for (int j = 0; j < s->vector; j++)
        x[j] = k_load(k, s->out[which], ix_add(k, at, k_int(k, j)), 0);
    for (int j = 0; j < s->vector; j++)
        attention_store(a, a->w->anchor, &a->out, i, ix_add(k, col, k_int(k, from + j)), x[j]);
    if (partial(a))
        attention_mend_vector(s, which, x, i, col, from);
    if (guard)
        k_end(k, guard);
    if (outer)
        k_end(k, outer);
    k_end(k, turn);
}

/* Stores a subgroup's tile of results `which` in shared memory. */
static void put_tile(const struct tiles *s, int which, val x)
{
    struct kernel *k = s->a->w->k;
    tile_store(k, s->out[which], ix_scale(k, s->first, s->out_row[which]), s->out_row[which],
               k_cast(k, x, s->a->n->dtype), 0);
}

/* The maximum score and 1 / the sum of the weights, for attention_stats. */
static void matrix_store_stats(const struct tiles *s, val max, val inverse)
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    const struct shape shape = *node_shape(a->w->g, a->stats);
    uint32_t buf = lower_buffer(a->w, a->stats, BUF_OUT);
    val coord[KL_MAX_RANK] = {0}, none = k_const(k, KL_F32, -INFINITY);
    memcpy(coord, a->coord, a->lead.rank * sizeof *coord);
    coord[a->lead.rank] = attention_own_first(s);
    for (int64_t c = 0; c < 2; c++) {
        coord[a->lead.rank + 1] = k_int(k, c);
        val x = c ? inverse : k_prim(k, P_SELECT, k_prim(k, P_EQ, max, none, 0), k_const(k, KL_F32, 0), max);
        tile_store(k, buf, lower_flatten(k, &shape, coord), 2, x, s->own_there);
    }
}

static void finish_attention(const struct tiles *s, const val value[CARRIED])
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val zero = k_const(k, KL_F32, 0), sum = tiles_fold(k, FOLD_ADD, value[SUM], 1);
    val inverse = k_prim(k, P_SELECT, k_prim(k, P_EQ, sum, zero, 0), zero,
                         k_prim(k, P_DIV, k_const(k, KL_F32, 1), sum, 0));
    if (a->stats)
        matrix_store_stats(s, tiles_scale_is_late(s) ? k_prim(k, P_MUL, value[LARGEST], attention_scale(s), 0)
                                               : value[LARGEST], inverse);
    if (!a->e)
        return;
    if (s->out[0] == s->own[0].buf && !s->resident[0])
        own_barrier(s); /* the last factors have been loaded */
    put_tile(s, 0, k_prim(k, P_MUL, value[TOTAL], inverse, 0));
    own_barrier(s);
    tiles_store_rows(s, 0, a->e, 0);
}

static void finish_gradient(const struct tiles *s, const val total[2])
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    if (s->out[0] == s->own[0].buf)
        own_barrier(s); /* the last factors have been loaded */
    put_tile(s, 0, k_prim(k, P_MUL, total[0], attention_scale(s), 0));
    if (s->keys)
        put_tile(s, 1, total[1]);
    own_barrier(s);
    tiles_store_rows(s, 0, a->d, 0);
    if (s->keys)
        tiles_store_rows(s, 1, a->e, a->d);
}

/* ---- the kernel ---- */

static void make_buffers(struct tiles *s)
{
    const struct attention *a = s->a;
    bool grad = s->gradient;
    unsigned own = !grad ? Q : s->keys ? Y : X, iterated = !grad ? K : s->keys ? X : Y;
    s->own[0] = columns_of(s, own, 0, a->d, s->rows, 1);
    s->own[1] = columns_of(s, own, a->d, grad ? a->e : 0, s->rows, 1);
    s->iterated[0] = columns_of(s, iterated, 0, a->d, s->step, s->stages);
    s->iterated[1] = columns_of(s, grad ? iterated : V, grad ? a->d : 0, a->e, s->step, s->stages);
    for (int i = 0; i < (s->keys ? 2 : 1); i++) { /* results take the place of own rows of the same length */
        int64_t row = attention_padded(!grad || i ? a->e : a->d) + ATTENTION_PAD;
        s->out_row[i] = row;
        if (a->n->op != OP_attention_stats)
            s->out[i] = row == s->own[i].row ? s->own[i].buf : k_buf(a->w->k, BUF_SHARED, s->dtype, s->rows * row, 0);
    }
}

void tiles_prepare(struct tiles *s)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t unit = s->s.attention_matrix.unit_k;
    val first = ix_add(k, a->q0, s->first);
    s->own_row = tile_numbers(k, TILE_ROWS, s->m, first);
    s->own_there = a->l % s->rows ? k_prim(k, P_LT, s->own_row, k_const(k, KL_I32, (double)a->l), 0) : 0;
    first = attention_own_first(s);
    if (a->bounds && !s->keys) {
        s->low = attention_of_queries(s, MASK, 0, s->mask_step[0], first, s->own_there);
        s->high = attention_of_queries(s, MASK, 1, s->mask_step[0], first, s->own_there);
    }
    for (int c = 0; c < STAT_COUNT && s->gradient && !s->keys; c++)
        s->stat[c] = attention_of_queries(s, STATS, c, s->stat_step, first, s->own_there);
    if (s->gradient && !s->keys)
        tiles_fold_statistics(k, s->stat);
    bool holds = !s->gradient && !s->async && s->own[0].padded <= MAX_RESIDENT;
    for (int64_t kk = 0; holds && kk < s->own[0].padded; kk += unit)
        s->resident[kk / unit] = own_factor(s, &s->own[0], kk);
}

void tiles_start(const struct tiles *s, val start[CARRIED])
{
    struct kernel *k = s->a->w->k;
    start[2] = 0;
    if (s->gradient) {
        start[0] = tiles_splat(k, 0, s->m, s->own[0].padded);
        start[1] = s->keys ? tiles_splat(k, 0, s->m, s->own[1].padded) : 0;
    } else {
        start[TOTAL] = s->a->e ? tiles_splat(k, 0, s->m, s->iterated[1].padded) : 0;
        start[LARGEST] = tiles_splat(k, -INFINITY, s->m, 1);
        start[SUM] = tiles_splat(k, 0, s->m, s->s.attention_matrix.unit_n);
    }
}

void tiles_finish(const struct tiles *s, const val value[CARRIED])
{
    if (s->gradient)
        finish_gradient(s, value);
    else
        finish_attention(s, value);
}

val tiles_enter_step(struct tiles *s, val number, bool masked, val *iterated_there)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    s->k0 = ix_scale(k, number, s->step);
    *iterated_there = 0;
    if (!masked)
        return 0;
    val row = tile_numbers(k, TILE_COLS, s->step, s->k0);
    *iterated_there = a->m % s->step ? k_prim(k, P_LT, row, k_const(k, KL_I32, (double)a->m), 0) : 0;
    return attention_pairs_unmasked(s, row, *iterated_there);
}

static void emit_key_loop(struct tiles *s)
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t ahead = s->stages - 1;
    val first, end, start[CARRIED], carry[CARRIED], value[CARRIED], there;
    attention_unmasked_steps(s, &first, &end);
    for (int i = 0; i < 2; i++)
        copy_rows(s, &s->own[i], a->q0, s->rows, a->l, a->l % s->rows, k_int(k, 0));
    k_inst(k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
    for (int64_t i = 0; i < ahead; i++)
        copy_step(s, ix_add(k, first, k_int(k, i)));
    k_inst(k, L_WAIT, KL_BOOL, 0, 0, 0, (uint64_t)ahead);
    own_barrier(s);
    tiles_prepare(s);
    tiles_start(s, start);
    val number = k_loop(k, LOOP_SERIAL, first, end, 1);
    ix_bound(k, number, 0, (a->m + s->step - 1) / s->step - 1);
    for (int i = 0; i < CARRIED; i++)
        value[i] = carry[i] = start[i] ? k_carry(k, start[i]) : 0;
    k_inst(k, L_WAIT, KL_BOOL, 0, 0, 0, (uint64_t)(ahead - 1));
    own_barrier(s);
    copy_step(s, ix_add(k, number, k_int(k, ahead)));
    val stage = ix_mod(k, number, s->stages), unmasked = tiles_enter_step(s, number, true, &there);
    if (s->gradient)
        add_gradients(s, stage, unmasked, there, value);
    else
        emit_tile_step(s, stage, unmasked, value);
    for (int i = 0; i < CARRIED; i++)
        if (carry[i])
            k_next(k, carry[i], value[i]);
    k_end(k, number);
    for (int i = 0; i < CARRIED; i++)
        value[i] = carry[i] ? k_out(k, carry[i]) : 0;
    k_inst(k, L_WAIT, KL_BOOL, 0, 0, 0, 0); /* for copies of rows behind the last step */
    tiles_finish(s, value);
}

/* Are the longest blocks of all matrices the first ones?  If all operands that are iterated over have room in a part of
 * the second-level cache of a large GPU.  (Causal attention on an H100: 32 matrices of 4096 rows took 0.90 of the time
 * so, 512 of 1024 rows 1.09 for 64 columns and 1.18 for 128, as each is read again and again from memory.) */
static bool longest_of_all_first(const struct attention *a)
{
    enum { CACHE_BYTES = 32 << 20, ELEMENT_BYTES = 2 };
    return a->causal && shape_count(&a->lead) * ELEMENT_BYTES * a->m * (a->d + a->e) <= CACHE_BYTES;
}

/* The block's number in its matrix, and which matrix, of block p of all matrices.  With causality the first block of
 * keys and the last block of queries are the longest ones. */
static val block_of(const struct tiles *s, val p, int64_t blocks, val *matrix)
{
    struct kernel *k = s->a->w->k;
    int64_t matrices = shape_count(&s->a->lead);
    bool first = longest_of_all_first(s->a);
    val block = first ? ix_div(k, p, matrices) : ix_mod(k, p, blocks);
    *matrix = first ? ix_mod(k, p, matrices) : ix_div(k, p, blocks);
    return s->a->causal && !s->keys ? ix_sub(k, k_int(k, blocks - 1), block) : block;
}

void attention_matrix_emit(struct attention *a, const struct schedule *schedule)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    struct tiles s = {.a = a, .s = *schedule, .gradient = a->n->op == OP_attention_grad,
                      .keys = attention_is_of_keys(a),
                      .dtype = w->g->node[a->n->in[K]].dtype, .m = schedule->attention_matrix.unit_m,
                      .rows = schedule->attention_matrix.rows, .step = schedule->attention_matrix.step,
                      .stages = schedule->attention_matrix.stages, .async = schedule->attention_matrix.async,
                      .vector = VECTOR};
    int64_t blocks = (a->l + s.rows - 1) / s.rows, subgroup = schedule->attention_matrix.subgroup;
    bool panels = schedule->attention_matrix.panels;
    attention_find_steps(&s);
    lower_scalars(w);
    make_buffers(&s);
    if (panels)
        attention_pipeline_make(&s);
    k->extent = shape_count(&a->lead) * blocks;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, k->extent), 1), matrix, block = block_of(&s, p, blocks, &matrix);
    lower_unflatten(k, &a->lead, matrix, a->coord);
    a->q0 = ix_scale(k, block, s.rows);
    val t = s.t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, s.s.width + (panels ? subgroup : 0)), 1);
    k->inst[t].rows = (uint16_t)subgroup;
    if (panels) {
        attention_emit_warp_specialized(&s);
    } else {
        s.first = ix_scale(k, ix_div(k, s.t, subgroup), s.m);
        emit_key_loop(&s);
    }
    k_end(k, t);
    k_end(k, p);
}
