/* Attention and its gradient in f32 on a GPU, by register tiles over shared memory.
 *
 * A block of threads owns some rows of one side, as in lower_attention_matrix.c, and iterates over the rows of the
 * other side in steps of one block of the numeric order.  A thread has 8 own rows.  In a step it multiplies them by 8
 * iterated rows (scores, or dp), and weights of its 8 rows by all iterated rows (4 or 8 columns of totals).  Each load
 * from shared memory brings 4 elements, so that a thread with 8 x 8 sums has 16 fma for each load.
 *
 * Totals of more than 64 columns have 16 threads side by side, scores of a step 8.  There each thread has half of the
 * columns of the contraction (split-K): one half of the threads stores its sums, and the other adds its own to them.
 *
 *   attention   scores go to shared memory; one thread for each row finds the maximum, the weights and their sum; then
 *               weights times values.  k of the next step is copied while this step's weights are computed, v of the
 *               next step while its scores are.
 *   gradient    half of the threads compute scores, the other half dp; both compute p and ds of half of the pairs.  For
 *               keys the first half then computes totals of ds^T q, the other half those of p^T dy.  For queries each
 *               half adds ds k for half of the step's keys, and the two totals are added at the end.
 *
 * All sums have the numeric order of node.h, except those of the gradient in q and such scores.  Weights of masked
 * pairs are zeros, which lower_attention_nonfinite.c describes.
 *
 * Shared memory.  Rows have a padding of 4 elements, and a thread's rows are as far apart as there are threads side by
 * side, so that the threads of a quarter of a warp read from all banks.  A thread's iterated rows are 4 adjacent ones,
 * so that it stores 4 scores at once: row 4 * j + n of a step lies at row j + n * 8. */
#include "lower_attention_blocks.h"

static void block_barrier(const struct blocks *b)
{
    k_append(b->s.a->w->k, (struct linst){.op = L_BARRIER, .dtype = KL_BOOL});
}

static val block_mma(const struct blocks *b, val x, val y, val sum)
{
    struct kernel *k = b->s.a->w->k;
    const struct linst c = k->inst[sum];
    return k_append(k, (struct linst){.op = L_MMA, .dtype = c.dtype, .kind = MMA_CHAIN, .rows = c.rows, .cols = c.cols,
                                      .a = x, .b = y, .c = sum});
}

/* Tile -> elements: through an array in registers, from which block_element reads. */
static void block_spread(const struct blocks *b, val tile)
{
    struct kernel *k = b->s.a->w->k;
    const struct linst x = k->inst[tile];
    val cols = k_int(k, x.cols);
    k_append(k, (struct linst){.op = L_STORE, .dtype = x.dtype, .a = k_int(k, 0), .b = tile, .d = cols,
                               .imm = b->mine});
}

static val block_element(const struct blocks *b, int64_t n)
{
    struct kernel *k = b->s.a->w->k;
    return k_load(k, b->mine, k_int(k, n), 0);
}

/* The place of row `row` of a step in shared memory. */
static val iterated_place(const struct blocks *b, val row)
{
    struct kernel *k = b->s.a->w->k;
    int64_t across = b->score_across;
    val pack = ix_div(k, row, EACH), n = ix_add(k, ix_scale(k, ix_div(k, pack, across), EACH), ix_mod(k, row, EACH));
    return ix_add(k, ix_mod(k, pack, across), ix_scale(k, n, across));
}

/* ---- copies ---- */

/* Copies one access: EACH elements from column `column` of row `at` of the operand on. */
static void copy_access(const struct blocks *b, unsigned which, val at, val column, val there, uint32_t buf, val place)
{
    const struct attention *a = b->s.a;
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val x[EACH];
    if (b->vectors[which]) {
        val first = attention_stored(a, which, at, column);
        const struct linst load = k->inst[first]; /* only its address is used */
        k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = EACH, .a = place, .b = load.a, .c = there,
                                   .imm = buf | load.imm << 32});
        return;
    }
    w->pred = there;
    w->pred_all = there != 0;
    for (int u = 0; u < EACH; u++) {
        x[u] = attention_element(a, which, at, ix_add(k, column, k_int(k, u)));
        x[u] = there ? k_prim(k, P_SELECT, there, x[u], k_const(k, KL_F32, 0)) : x[u];
    }
    w->pred = 0;
    w->pred_all = false;
    for (int u = 0; u < EACH; u++)
        k_store(k, buf, ix_add(k, place, k_int(k, u)), x[u], 0);
}

/* Copies `rows` rows of an operand that has `all` rows, from row `first` on, to index `to` on; rows and columns that do
 * not exist are zeros.  iterated: in the order of iterated rows. */
static void copy_block(const struct blocks *b, const struct columns *c, val first, int64_t rows, int64_t all,
                       bool iterated, uint32_t buf, int64_t to)
{
    const struct attention *a = b->s.a;
    struct kernel *k = a->w->k;
    int64_t columns = b->pitch - EACH, accesses = columns / EACH, n = rows * accesses, threads = b->s.s.width;
    for (int64_t i = 0; i < n && c->count; i += threads) {
        val e = ix_add(k, b->s.t, k_int(k, i)), there = 0;
        val some = n - i < threads ? k_if(k, k_prim(k, P_LT, e, k_int(k, n), 0)) : 0;
        val row = ix_div(k, e, accesses), col = ix_scale(k, ix_mod(k, e, accesses), EACH), at = ix_add(k, first, row);
        val place = ix_scale(k, iterated ? iterated_place(b, row) : row, b->pitch);
        if (iterated || all % rows)
            there = k_prim(k, P_LT, at, k_int(k, all), 0);
        if (columns > c->count)
            there = both(k, there, k_prim(k, P_LT, col, k_int(k, c->count), 0));
        uint32_t facts = ix_facts_begin(k);
        ix_bound(k, at, 0, all - 1); /* only for accesses that exist */
        copy_access(b, c->which, at, ix_add(k, col, k_int(k, c->from)), there, buf,
                    ix_add(k, ix_add(k, place, col), k_int(k, to)));
        ix_facts_end(k, facts);
        if (some)
            k_end(k, some);
    }
}

static void blocks_commit(const struct blocks *b) { k_inst(b->s.a->w->k, L_COMMIT, KL_BOOL, 0, 0, 0, 0); }

/* Waits until this thread's batches of copies except the last `left` are complete, then for the other threads. */
static void blocks_wait(const struct blocks *b, uint64_t left)
{
    k_inst(b->s.a->w->k, L_WAIT, KL_BOOL, 0, 0, 0, left);
    block_barrier(b);
}

/* Copies the operand, or both halves of it for a gradient, of step `number`; a batch. */
static void copy_iterated(const struct blocks *b, int which, val number)
{
    const struct tiles *s = &b->s;
    val first = ix_scale(s->a->w->k, number, s->step);
    copy_block(b, &s->iterated[which], first, s->step, s->a->m, true, b->iterated[which], 0);
    if (s->gradient)
        copy_block(b, &s->iterated[1], first, s->step, s->a->m, true, b->iterated[0], b->iterated_elements);
    if (s->gradient && s->keys)
        blocks_load_statistics(b, first);
    blocks_commit(b);
}

static void copy_own(const struct blocks *b)
{
    const struct tiles *s = &b->s;
    for (int part = 0; part < b->groups; part++)
        copy_block(b, &s->own[part], s->a->q0, s->rows, s->a->l, false, b->own, part * b->own_elements);
}

/* ---- products ---- */

/* The first index of a thread's rows in an array of own rows, of which each group has one. */
static val own_index(const struct blocks *b, int64_t elements, int64_t pitch)
{
    struct kernel *k = b->s.a->w->k;
    return ix_add(k, ix_scale(k, b->group, elements), ix_scale(k, b->i, pitch));
}

static val tile_zero(const struct blocks *b, double x, int64_t cols) { return tiles_splat(b->s.a->w->k, x, MR, cols); }

/* The thread's products [MR x iterated_rows] of own rows and rows of the step, over its part of the columns. */
static val products_with_iterated(const struct blocks *b)
{
    const struct tiles *s = &b->s;
    struct kernel *k = s->a->w->k;
    int64_t depth = s->own[0].count > s->own[1].count ? s->own[0].count : s->own[1].count, ahead = AHEAD;
    depth /= b->splits;
    while (depth % (ahead * EACH))
        ahead /= 2;
    val sum = tile_zero(b, 0, b->iterated_rows), c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, depth), ahead * EACH);
    val carry = k_carry(k, sum), column = ix_add(k, ix_scale(k, b->split, depth), c);
    val own = ix_add(k, own_index(b, b->own_elements, b->pitch), column), row = ix_scale(k, b->score_j, b->pitch);
    val iterated = ix_add(k, ix_add(k, ix_scale(k, b->group, b->iterated_elements), row), column);
    sum = carry;
    for (int64_t n = 0; n < ahead; n++) {
        val at = k_int(k, n * EACH);
        val x = attention_tile_load(k, b->own, ix_add(k, own, at), TILE_ROWS, b->down * b->pitch, MR, EACH, 0);
        val y = attention_tile_load(k, b->iterated[0], ix_add(k, iterated, at), TILE_COLS, b->score_across * b->pitch,
                                    EACH, b->iterated_rows, 0);
        sum = block_mma(b, x, y, sum);
    }
    k_next(k, carry, sum);
    k_end(k, c);
    return k_out(k, carry);
}

/* sum[part] = weights, from index `at` of the thread's first row on, times `count` rows of the step from row `first`
 * on, which are in `buf` from index `to` on. */
static void weights_times_iterated(const struct blocks *b, val at, uint32_t buf, val to, val first, int64_t count,
                                 val *sum)
{
    struct kernel *k = b->s.a->w->k;
    val carry[MAX_PARTS], start = tile_zero(b, -0.0, EACH);
    val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, count), AHEAD * EACH);
    for (int64_t p = 0; p < b->parts; p++)
        sum[p] = carry[p] = k_carry(k, start);
    for (int64_t n = 0; n < AHEAD; n++) {
        val r = ix_add(k, ix_add(k, first, row), k_int(k, n * EACH));
        val x = attention_tile_load(k, b->weight, ix_add(k, at, r), TILE_ROWS, b->down * b->weight_pitch, MR, EACH, 0);
        val place = ix_add(k, ix_add(k, ix_scale(k, iterated_place(b, r), b->pitch), ix_scale(k, b->j, EACH)), to);
        for (int64_t p = 0; p < b->parts; p++) {
            val y = attention_tile_load(k, buf, ix_add(k, place, k_int(k, p * EACH * b->across)), TILE_ROWS,
                                        b->score_across * b->pitch, EACH, EACH, 0);
            sum[p] = block_mma(b, x, y, sum[p]);
        }
    }
    for (int64_t p = 0; p < b->parts; p++)
        k_next(k, carry[p], sum[p]);
    k_end(k, row);
    for (int64_t p = 0; p < b->parts; p++)
        sum[p] = k_out(k, carry[p]);
}

/* Stores a tile of scores, or dp, where the weights of the thread's group will be; adds: to what is there. */
static void put_tile_of_scores(const struct blocks *b, bool adds)
{
    struct kernel *k = b->s.a->w->k;
    val at = ix_add(k, own_index(b, b->weight_elements, b->weight_pitch), ix_scale(k, b->score_j, EACH)), x[EACH];
    for (int64_t e = 0; e < MR * b->iterated_rows; e += EACH) {
        int64_t row = e / b->iterated_rows, n = e % b->iterated_rows;
        val to = ix_add(k, at, k_int(k, row * b->down * b->weight_pitch + n * b->score_across));
        for (int u = 0; u < EACH; u++) {
            x[u] = block_element(b, e + u);
            x[u] = adds ? k_prim(k, P_ADD, x[u], k_load(k, b->weight, ix_add(k, to, k_int(k, u)), 0), 0) : x[u];
        }
        for (int u = 0; u < EACH; u++)
            k_store(k, b->weight, ix_add(k, to, k_int(k, u)), x[u], 0);
    }
}

/* Stores scores, or dp, of which a thread may have only one of two sums. */
static void put_scores(const struct blocks *b, val tile)
{
    struct kernel *k = b->s.a->w->k;
    block_spread(b, tile);
    val last = b->splits > 1 ? k_if(k, k_prim(k, P_LT, k_int(k, 0), b->split, 0)) : 0;
    put_tile_of_scores(b, false);
    if (!last)
        return;
    k_end(k, last);
    block_barrier(b);
    val first = k_if(k, k_prim(k, P_EQ, b->split, k_int(k, 0), 0));
    put_tile_of_scores(b, true);
    k_end(k, first);
}

/* An element for each of the thread's rows, [MR x 1]. */
static val of_rows(const struct blocks *b, enum row_buffer which)
{
    return attention_tile_load(b->s.a->w->k, b->row[which], b->i, TILE_ROWS, b->down, MR, 1, 0);
}

static void attend_block(const struct blocks *b, val number, val *total)
{
    const struct tiles *s = &b->s;
    struct kernel *k = s->a->w->k;
    val next = ix_add(k, number, k_int(k, 1)), sum[MAX_PARTS], zero = k_int(k, 0);
    blocks_wait(b, 1);
    put_scores(b, k_prim(k, P_MUL, products_with_iterated(b), attention_scale(s), 0));
    block_barrier(b);
    copy_iterated(b, 0, next);
    blocks_soften_rows(b);
    blocks_wait(b, 1);
    if (b->parts)
        weights_times_iterated(b, ix_scale(k, b->i, b->weight_pitch), b->iterated[1], zero, zero, s->step, sum);
    for (int64_t p = 0; p < b->parts; p++)
        total[p] = k_prim(k, P_FMA, total[p], of_rows(b, ROW_SHRINK), sum[p]);
    block_barrier(b);
    copy_iterated(b, 1, next);
}

static void add_block_gradients(const struct blocks *b, val number, val *total)
{
    const struct tiles *s = &b->s;
    struct kernel *k = s->a->w->k;
    val sum[MAX_PARTS], one = k_int(k, 1), zero = k_int(k, 0);
    blocks_wait(b, 0);
    put_scores(b, products_with_iterated(b));
    block_barrier(b);
    blocks_gradient_of_pairs(b);
    block_barrier(b);
    val at = ix_scale(k, b->i, b->weight_pitch), part = s->keys ? ix_sub(k, one, b->group) : one;
    at = ix_add(k, at, ix_scale(k, part, b->weight_elements)); /* ds of the first group, p of the other */
    val to = s->keys ? ix_scale(k, b->group, b->iterated_elements) : zero;
    val first = s->keys ? zero : ix_scale(k, b->group, s->step / b->groups);
    weights_times_iterated(b, at, b->iterated[0], to, first, s->keys ? s->step : s->step / b->groups, sum);
    for (int64_t p = 0; p < b->parts; p++)
        total[p] = k_prim(k, P_ADD, total[p], sum[p], 0);
    block_barrier(b);
    copy_iterated(b, 0, ix_add(k, number, one));
}

/* ---- results ---- */

/* Stores the thread's tiles of results in the place of the own rows of part `part`. */
static void put_results(const struct blocks *b, const val *tile, val part, bool adds)
{
    struct kernel *k = b->s.a->w->k;
    val at = ix_add(k, ix_scale(k, part, b->own_elements), ix_scale(k, b->i, b->pitch)), x[MR * EACH];
    at = ix_add(k, at, ix_scale(k, b->j, EACH));
    for (int64_t p = 0; p < b->parts; p++) {
        block_spread(b, tile[p]);
        for (int e = 0; e < MR * EACH; e++) {
            int64_t by = e / EACH * b->down * b->pitch + p * EACH * b->across + e % EACH;
            val to = ix_add(k, at, k_int(k, by));
            x[e] = block_element(b, e);
            x[e] = adds ? k_prim(k, P_ADD, k_load(k, b->own, to, 0), x[e], 0) : x[e];
        }
        for (int e = 0; e < MR * EACH; e++) {
            int64_t by = e / EACH * b->down * b->pitch + p * EACH * b->across + e % EACH;
            k_store(k, b->own, ix_add(k, at, k_int(k, by)), x[e], 0);
        }
    }
}

static void finish_rows(const struct blocks *b, val *total)
{
    const struct attention *a = b->s.a;
    struct kernel *k = a->w->k;
    val zero = k_const(k, KL_F32, 0);
    if (a->stats)
        blocks_store_stats(b);
    if (!b->parts)
        return;
    val sum = of_rows(b, ROW_SUM), none = k_prim(k, P_EQ, sum, zero, 0);
    for (int64_t p = 0; p < b->parts; p++)
        total[p] = k_prim(k, P_SELECT, none, zero, k_prim(k, P_DIV, total[p], sum, 0));
    put_results(b, total, k_int(k, 0), false);
    block_barrier(b);
    tiles_store_rows(&b->s, 0, a->e, 0);
}

static void finish_block_gradients(const struct blocks *b, val *total)
{
    const struct tiles *s = &b->s;
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val zero = k_int(k, 0), first = k_prim(k, P_EQ, b->group, zero, 0), factor = attention_scale(s), role;
    if (s->keys)
        factor = k_prim(k, P_SELECT, first, factor, k_const(k, KL_F32, 1));
    for (int64_t p = 0; p < b->parts; p++)
        total[p] = k_prim(k, P_MUL, total[p], factor, 0);
    if (s->keys) {
        put_results(b, total, b->group, false);
    } else {
        role = k_if(k, k_prim(k, P_LT, zero, b->group, 0));
        put_results(b, total, zero, false);
        k_end(k, role);
        block_barrier(b);
        role = k_if(k, first);
        put_results(b, total, zero, true);
        k_end(k, role);
    }
    block_barrier(b);
    tiles_store_rows(s, 0, a->d, 0);
    if (s->keys)
        tiles_store_rows(s, 1, a->e, a->d);
}

/* ---- the kernel ---- */

static void make_block_buffers(struct blocks *b)
{
    struct tiles *s = &b->s;
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    bool grad = s->gradient;
    unsigned own = !grad ? Q : s->keys ? Y : X, iterated = !grad ? K : s->keys ? X : Y;
    b->pitch = attention_block_pitch(a->d, a->e, b->across);
    b->weight_pitch = s->step + EACH;
    b->own_elements = s->rows * b->pitch;
    b->weight_elements = s->rows * b->weight_pitch;
    b->iterated_elements = s->step * b->pitch;
    s->own[0] = (struct columns){.which = own, .count = a->d};
    s->own[1] = (struct columns){.which = own, .from = a->d, .count = grad ? a->e : 0};
    s->iterated[0] = (struct columns){.which = iterated, .count = a->d};
    s->iterated[1] = (struct columns){.which = grad ? iterated : V, .from = grad ? a->d : 0, .count = a->e};
    b->own = k_buf(k, BUF_SHARED, KL_F32, b->groups * b->own_elements, 0);
    b->weight = k_buf(k, BUF_SHARED, KL_F32, b->groups * b->weight_elements, 0);
    b->iterated[0] = k_buf(k, BUF_SHARED, KL_F32, (grad ? 2 : 1) * b->iterated_elements, 0);
    b->iterated[1] = grad || !a->e ? b->iterated[0] : k_buf(k, BUF_SHARED, KL_F32, b->iterated_elements, 0);
    for (int i = 0; i < (grad ? 0 : ranges(a) ? ATTENTION_BLOCK_ROWS : ROW_LOW); i++)
        b->row[i] = k_buf(k, BUF_SHARED, i >= ROW_LOW ? KL_I32 : KL_F32, s->rows, 0);
    if (grad)
        b->stats = k_buf(k, BUF_SHARED, KL_F32, STAT_COUNT * (s->keys ? s->step : s->rows), 0);
    int64_t columns = b->iterated_rows > EACH ? b->iterated_rows : EACH;
    b->mine = k_buf(k, BUF_REGISTER, KL_F32, MR * columns, 0);
    for (int i = 0; i < 2; i++) {
        s->out[i] = b->own;
        s->out_row[i] = b->pitch;
        s->out_first[i] = i * b->own_elements;
    }
}

static void iterate_blocks(struct blocks *b)
{
    struct tiles *s = &b->s;
    struct kernel *k = s->a->w->k;
    val first, end, total[MAX_PARTS], carry[MAX_PARTS];
    attention_unmasked_steps(s, &first, &end);
    copy_own(b);
    if (s->gradient && !s->keys)
        blocks_load_statistics(b, s->a->q0);
    copy_iterated(b, 0, first);
    if (!s->gradient) {
        copy_iterated(b, 1, first);
        blocks_start_rows(b);
    }
    val start = tile_zero(b, 0, EACH), number = k_loop(k, LOOP_SERIAL, first, end, 1);
    ix_bound(k, number, 0, (s->a->m + s->step - 1) / s->step - 1);
    for (int64_t p = 0; p < b->parts; p++)
        total[p] = carry[p] = k_carry(k, start);
    s->k0 = ix_scale(k, number, s->step);
    if (s->gradient)
        add_block_gradients(b, number, total);
    else
        attend_block(b, number, total);
    for (int64_t p = 0; p < b->parts; p++)
        k_next(k, carry[p], total[p]);
    k_end(k, number);
    for (int64_t p = 0; p < b->parts; p++)
        total[p] = k_out(k, carry[p]);
    blocks_wait(b, 0); /* for copies of rows behind the last step */
    if (s->gradient)
        finish_block_gradients(b, total);
    else
        finish_rows(b, total);
}

void attention_blocks_emit(struct attention *a, const struct schedule *schedule)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    struct blocks b = {.s = {.a = a, .s = *schedule, .gradient = a->n->op == OP_attention_grad,
                             .keys = attention_is_of_keys(a),
                             .dtype = KL_F32, .m = MR, .rows = schedule->attention_blocks.rows,
                             .step = a->block, .vector = EACH}};
    struct tiles *s = &b.s;
    int64_t blocks = (a->l + s->rows - 1) / s->rows, columns = a->d > a->e ? a->d : a->e;
    b.groups = s->gradient ? 2 : 1;
    b.threads = schedule->width / b.groups;
    b.down = s->rows / MR;
    b.across = b.threads / b.down;
    b.iterated_rows = ATTENTION_BLOCK_TILE;
    b.score_across = s->step / b.iterated_rows;
    b.splits = b.across / b.score_across;
    columns = s->gradient ? columns : a->e;
    b.parts = (columns + EACH * b.across - 1) / (EACH * b.across);
    lower_scalars(w);
    make_block_buffers(&b);
    for (unsigned i = Q; i <= (s->gradient || !a->e ? K : V); i++)
        b.vectors[i] = attention_has_accesses(a, i, s->gradient, s->keys, EACH);
    b.stat_vectors = s->gradient && attention_has_adjacent_statistics(a, s->keys, EACH);
    k->extent = shape_count(&a->lead) * blocks;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, k->extent), 1), block = ix_mod(k, p, blocks);
    lower_unflatten(k, &a->lead, ix_div(k, p, blocks), a->coord);
    if (a->causal && !s->keys) /* the longest rows first */
        block = ix_sub(k, k_int(k, blocks - 1), block);
    a->q0 = ix_scale(k, block, s->rows);
    s->t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, schedule->width), 1);
    b.group = ix_div(k, s->t, b.threads);
    val in_group = ix_mod(k, s->t, b.threads);
    b.i = ix_div(k, in_group, b.across);
    b.j = ix_mod(k, in_group, b.across);
    b.score_j = ix_mod(k, b.j, b.score_across);
    b.split = ix_div(k, b.j, b.score_across);
    iterate_blocks(&b);
    k_end(k, s->t);
    k_end(k, p);
}
