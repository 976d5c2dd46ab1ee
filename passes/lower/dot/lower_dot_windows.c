/* Convolutions without packed windows: products of weights [channels, contraction] and the windows of images.
 *
 * Lanes are output channels: the weights of NR of them are transposed into a panel, a k-block at a time, and a tile
 * multiplies each of its rows by the elements of MR adjacent windows, which are read where the images lie and
 * broadcast.  So nothing is copied for each element of a window, and the products of a window with padding can be left
 * out: tiles at the left and right edges have code of their own, and a row of the kernel that is above or below the
 * image is skipped for all of its tile.
 *
 * Leaving out acc = fma(weight, 0, acc) keeps each bit, but where the weight is infinite or NaN, or the sum is -0,
 * which only a product that underflows makes of a chain that begins at 0.  Of a panel it is found out whether a weight
 * is not finite, of a tile whether a sum is -0; if so, the block's chains are computed again with all products.
 *
 * The sums of a task are in scratch, results adjacent for each position; at the end squares of them are transposed, and
 * the epilogue has lanes along the results' rows in memory. */
#include "lower_dot.h"

enum { PREFETCH_CHANNELS = 2, /* ahead: a plane of the images each, which lies on other pages */
       MIN_PREFETCHED = 8, MAX_KERNEL = 16 };

/* ---- facts ---- */

/* The sizes of the two windows through which the second operand views an array in memory, the last one first. */
static unsigned windows_of(const struct dot *d, int64_t *size, ref *array)
{
    const struct graph *g = d->w->g;
    unsigned n = 0;
    for (*array = d->n->in[1]; op_is_view(g->node[*array].op); *array = g->node[*array].in[0])
        if (g->node[*array].op == OP_window) {
            if (n == 2)
                return 0;
            size[n++] = g->node[*array].attr.window.size;
        }
    return n;
}

enum { IMAGE, Y, X, CHANNEL, KERNEL_Y, KERNEL_X, INDICES };

/* Does the second operand's address depend on each index as that of windows of images [image, channel, y, x] does? */
static bool find_strides(struct dot *d, struct dot_windows *z)
{
    struct trial t;
    bool ok = false;
    const int64_t length[INDICES] = {z->images, z->out_h, z->out_w, z->channels, z->kernel_h, z->kernel_w};
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        val at[INDICES];
        int64_t step[INDICES] = {0}, first, hi;
        copy.w = &t.w;
        copy.batch_index = k_int(k, 0);
        for (unsigned i = 0; i < INDICES; i++)
            at[i] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, length[i]), 1);
        val n = ix_add(k, ix_scale(k, ix_add(k, ix_scale(k, at[IMAGE], z->out_h), at[Y]), z->out_w), at[X]);
        val row = ix_add(k, ix_scale(k, at[CHANNEL], z->kernel_h), at[KERNEL_Y]);
        val x = dot_stored_element(&copy, true, n, ix_add(k, ix_scale(k, row, z->kernel_w), at[KERNEL_X]));
        const struct linst load = k->inst[x];
        ok = !k->err.code && load.op == L_LOAD && !load.b && k->buf[load.imm].role == BUF_IN &&
             ix_range(k, load.a, &first, &hi) && first == 0;
        for (unsigned i = 0; i < INDICES && ok; i++)
            ok = length[i] == 1 || ix_stride(k, load.a, at[i], &step[i]);
        int64_t plane = z->height * z->width;
        ok = ok && (z->images == 1 || step[IMAGE] == z->channels * plane) &&
             (z->channels == 1 || step[CHANNEL] == plane) && step[Y] >= 0 && step[Y] % z->width == 0 &&
             step[KERNEL_Y] >= 0 && step[KERNEL_Y] % z->width == 0 && step[X] >= 0 && step[KERNEL_X] >= 0;
        z->stride_h = step[Y] / z->width;
        z->stride_w = step[X];
        z->dilation_h = step[KERNEL_Y] / z->width;
        z->dilation_w = step[KERNEL_X];
    }
    trial_end(&t, d->w);
    return ok;
}

bool dot_windows_fits(struct dot *d)
{
    const struct graph *g = d->w->g;
    struct dot_windows *z = &d->windows;
    int64_t size[2];
    ref array;
    if (d->symbolic || d->unit != 1 || d->dtype != KL_F32 || g->node[d->n->in[0]].dtype != KL_F32 ||
        d->size.batch != 1 || d->free_b.rank != 3 || windows_of(d, size, &array) != 2 ||
        !lower_in_memory(d->w, array) || g->node[array].dtype != KL_F32 || d->w->pitch[array] ||
        node_shape(g, array)->rank != 4 || d->size.n < 1)
        return false;
    const struct shape *s = node_shape(g, array);
    *z = (struct dot_windows){.images = d->free_b.dim[0], .out_h = d->free_b.dim[1], .out_w = d->free_b.dim[2],
                              .channels = s->dim[1], .kernel_h = size[1], .kernel_w = size[0], .height = s->dim[2],
                              .width = s->dim[3], .array = array};
    struct zero_border border;
    lower_zero_border(g, array, &border);
    z->first_y = border.first[2];
    z->end_y = border.end[2];
    z->first_x = border.first[3];
    z->end_x = border.end[3];
    dot_find_steps(d);
    return z->images == s->dim[0] && z->kernel_w > 1 && z->kernel_w <= MAX_KERNEL && z->kernel_h > 1 &&
           d->size.k == z->channels * z->kernel_h * z->kernel_w && d->kblock >= z->kernel_w && find_strides(d, z);
}

/* ---- the kernel ---- */

struct windows_product {
    const struct dot *d;
    const struct dot_windows *z;
    int64_t rows, lanes;                         /* rows of results in a task; lanes of squares that are transposed */
    uint32_t images, panel, sums, square, most;  /* lbufs; most: the largest bits of a weight's magnitude */
    val m0, row0;                                /* the task's first channel and first row of results */
    val kb, k0, end;                             /* the k-block: its number, and first and last index + 1 */
};

/* MR adjacent results: their row, counted through all images, their first column, and which of them may leave out which
 * columns of the kernel: those whose windows begin at `at`, or any if that is -1. */
struct windows_tile { val row, column; int64_t at; };

static bool pads_columns(const struct dot_windows *z) { return z->first_x > 0 || z->end_x < z->width; }
static bool pads_rows(const struct dot_windows *z) { return z->first_y > 0 || z->end_y < z->height; }

/* Is column `column` of the kernel outside of the image for result i of the tile? */
static bool is_padding(const struct dot_windows *z, const struct windows_tile *t, int64_t i, int64_t column)
{
    int64_t x = (t->at + i) * z->stride_w + column * z->dilation_w;
    return t->at >= 0 && (x < z->first_x || x >= z->end_x);
}

/* The element of the images at which the window of the tile's first result begins. */
static val window_origin(const struct windows_product *c, const struct windows_tile *t)
{
    const struct dot_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    val y = ix_scale(k, ix_mod(k, t->row, z->out_h), z->stride_h * z->width);
    val image = ix_scale(k, ix_div(k, t->row, z->out_h), z->channels * z->height * z->width);
    return ix_add(k, ix_add(k, image, y), ix_scale(k, t->column, z->stride_w));
}

/* How far from there row `row` of the kernel is, counted through all channels. */
static val kernel_row(const struct windows_product *c, val row)
{
    const struct dot_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    return ix_add(k, ix_scale(k, ix_div(k, row, z->kernel_h), z->height * z->width),
                  ix_scale(k, ix_mod(k, row, z->kernel_h), z->dilation_h * z->width));
}

/* Adds the products of row `step` of the panel with the elements of the images from `at` on, but for the results in
 * `without`. */
static void add_step_of_panel(const struct windows_product *c, val step, val at, uint32_t without, val *acc)
{
    struct kernel *k = c->d->w->k;
    val weight = k_load(k, c->panel, ix_add(k, ix_scale(k, step, c->d->nr), c->d->w->lane), 0);
    for (int64_t i = 0; i < c->d->mr; i++)
        if (!(without >> i & 1)) {
            val x = k_load(k, c->images, ix_add(k, at, k_int(k, i * c->z->stride_w)), 0);
            acc[i] = dot_multiply_add(k, x, weight, acc[i]);
        }
}

/* A loop that carries the tile's sums. */
static val open_sums(const struct windows_product *c, val from, val to, val *acc, val *carry)
{
    struct kernel *k = c->d->w->k;
    val loop = k_loop(k, LOOP_SERIAL, from, to, 1);
    for (int64_t i = 0; i < c->d->mr; i++)
        acc[i] = carry[i] = k_carry(k, acc[i]);
    return loop;
}

static void close_sums(const struct windows_product *c, val loop, val *acc, const val *carry)
{
    struct kernel *k = c->d->w->k;
    for (int64_t i = 0; i < c->d->mr; i++)
        k_next(k, carry[i], acc[i]);
    k_end(k, loop);
    for (int64_t i = 0; i < c->d->mr; i++)
        acc[i] = k_out(k, carry[i]);
}

/* All products of indices `from` to `to` of the contraction, one by one. */
static void add_each(const struct windows_product *c, val origin, val from, val to, val *acc)
{
    const struct dot_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    val carry[MAX_ROWS], at = open_sums(c, from, to, acc, carry);
    ix_bound(k, at, 0, c->d->size.k - 1);
    val row = kernel_row(c, ix_div(k, at, z->kernel_w));
    val column = ix_scale(k, ix_mod(k, at, z->kernel_w), z->dilation_w);
    add_step_of_panel(c, ix_sub(k, at, c->k0), ix_add(k, origin, ix_add(k, row, column)), 0, acc);
    close_sums(c, at, acc, carry);
}

/* How many rows of the kernel are above row `y` of the images for the tile: at most all of them. */
static val rows_above(const struct windows_product *c, const struct windows_tile *t, int64_t y)
{
    const struct dot_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    val top = ix_scale(k, ix_mod(k, t->row, z->out_h), z->stride_h);
    val above = k_max(k, ix_sub(k, k_int(k, y), top), k_int(k, 0));
    ix_assume_range(k, above, 0, y);
    return ix_min(k, ix_div(k, ix_add(k, above, k_int(k, z->dilation_h - 1)), z->dilation_h), z->kernel_h);
}

/* The products of a row of the kernel: `step` is its first one's row of the panel, `at` where it meets the images. */
static void add_kernel_row(const struct windows_product *c, const struct windows_tile *t, val step, val at, val *acc)
{
    const struct dot_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    if (z->channels >= MIN_PREFETCHED) {
        val ahead = ix_add(k, at, k_int(k, PREFETCH_CHANNELS * z->height * z->width));
        int64_t last = (c->d->mr - 1) * z->stride_w + (z->kernel_w - 1) * z->dilation_w;
        k_prefetch(k, PREFETCH_READ, c->images, ahead);
        k_prefetch(k, PREFETCH_READ, c->images, ix_add(k, ahead, k_int(k, last)));
    }
    for (int64_t column = 0; column < z->kernel_w; column++) {
        uint32_t without = 0;
        for (int64_t i = 0; i < c->d->mr; i++)
            without |= (uint32_t)is_padding(z, t, i, column) << i;
        add_step_of_panel(c, ix_add(k, step, k_int(k, column)), ix_add(k, at, k_int(k, column * z->dilation_w)),
                          without, acc);
    }
}

/* The products of rows `from` to `to` of the kernel, counted through all channels, without those of padding.  The loop
 * over the rows of a channel carries its addresses: what computes them would take the units that multiply. */
static void add_rows(const struct windows_product *c, const struct windows_tile *t, val origin, val from, val to,
                     val *acc)
{
    const struct dot_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    const int64_t plane = z->height * z->width, below = z->dilation_h * z->width;
    val outer[MAX_ROWS], inner[MAX_ROWS], first = k_int(k, 0), end = k_int(k, z->kernel_h);
    if (pads_rows(z)) {
        first = rows_above(c, t, z->first_y);
        end = rows_above(c, t, z->end_y);
    }
    val channels = ix_div(k, ix_add(k, to, k_int(k, z->kernel_h - 1)), z->kernel_h);
    val channel = open_sums(c, ix_div(k, from, z->kernel_h), channels, acc, outer);
    ix_bound(k, channel, 0, z->channels - 1);
    val top = ix_scale(k, channel, z->kernel_h);
    if (c->d->blocks > 1) { /* a block may begin and end within a channel */
        first = k_max(k, first, ix_sub(k, from, top));
        end = k_min(k, end, ix_sub(k, to, top));
    }
    val at = ix_add(k, ix_add(k, origin, ix_scale(k, channel, plane)), ix_scale(k, first, below));
    val step = ix_sub(k, ix_scale(k, ix_add(k, top, first), z->kernel_w), c->k0);
    val row = open_sums(c, first, end, acc, inner);
    ix_bound(k, row, 0, z->kernel_h - 1);
    at = k_carry(k, at);
    step = k_carry(k, step);
    ix_assume_range(k, at, 0, z->images * z->channels * plane);
    ix_assume_range(k, step, 0, c->d->size.k);
    add_kernel_row(c, t, step, at, acc);
    val next_at = ix_add(k, at, k_int(k, below)), next_step = ix_add(k, step, k_int(k, z->kernel_w));
    k_next(k, at, next_at);
    k_next(k, step, next_step);
    close_sums(c, row, acc, inner);
    close_sums(c, channel, acc, outer);
}

/* 1 if the tile's sums are to be computed with all products, else 0. */
static val has_special(const struct windows_product *c, const val *acc)
{
    struct kernel *k = c->d->w->k;
    val least = 0;
    for (int64_t i = 0; i < c->d->mr; i++) { /* -0 has the least bits of all, as i32 */
        val bits = k_inst(k, L_OP(P_BITS), KL_I32, acc[i], 0, 0, 0);
        least = i ? k_fold_step(k, FOLD_MIN, least, bits) : bits;
    }
    least = k_lane_reduce(k, FOLD_MIN, least);
    val negative = k_prim(k, P_EQ, least, k_bits(k, KL_I32, 0x80000000), 0);
    val infinite = k_prim(k, P_LE, k_bits(k, KL_I32, 0x7f800000), k_load(k, c->most, k_int(k, 0), 0), 0);
    val times = k_prim(k, P_SELECT, k_prim(k, P_OR, negative, infinite, 0), k_int(k, 1), k_int(k, 0));
    ix_assume_range(k, times, 0, 1);
    return times;
}

/* The chains of one k-block. */
static void add_block(const struct windows_product *c, const struct windows_tile *t, val *acc)
{
    const struct dot_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    const val zero = k_splat(k, k_bits(k, c->d->dtype, 0));
    const bool whole = c->d->blocks == 1 || c->d->kblock % z->kernel_w == 0; /* rows of the kernel in each block */
    val origin = window_origin(c, t), carry[MAX_ROWS];
    val from = ix_div(k, ix_add(k, c->k0, k_int(k, whole ? 0 : z->kernel_w - 1)), z->kernel_w);
    val to = ix_div(k, c->end, z->kernel_w);
    for (int64_t i = 0; i < c->d->mr; i++)
        acc[i] = zero;
    if (!whole)
        add_each(c, origin, c->k0, ix_scale(k, from, z->kernel_w), acc);
    add_rows(c, t, origin, from, to, acc);
    if (!whole)
        add_each(c, origin, ix_scale(k, to, z->kernel_w), c->end, acc);
    if (!pads_rows(z) && (t->at < 0 || !pads_columns(z)))
        return;
    val again = open_sums(c, k_int(k, 0), has_special(c, acc), acc, carry);
    for (int64_t i = 0; i < c->d->mr; i++)
        acc[i] = zero;
    add_each(c, origin, c->k0, c->end, acc);
    close_sums(c, again, acc, carry);
}

static void emit_tile(const struct windows_product *c, const struct windows_tile *t)
{
    const struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val acc[MAX_ROWS];
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->nr), 1);
    add_block(c, t, acc);
    val first = ix_add(k, ix_scale(k, ix_sub(k, t->row, c->row0), c->z->out_w), t->column);
    for (int64_t i = 0; i < d->mr; i++) {
        val at = ix_add(k, ix_scale(k, ix_add(k, first, k_int(k, i)), d->nr), w->lane);
        if (d->blocks > 1) {
            val sum = k_prim(k, P_ADD, k_load(k, c->sums, at, 0), acc[i], 0);
            acc[i] = k_prim(k, P_SELECT, k_prim(k, P_EQ, c->kb, k_int(k, 0), 0), acc[i], sum);
        }
        k_store(k, c->sums, at, acc[i], 0);
    }
    k_end(k, w->lane);
    w->lane = 0;
}

/* The tiles of a row of results: the first, those between, and the last one. */
static void emit_row(const struct windows_product *c, val row)
{
    struct kernel *k = c->d->w->k;
    int64_t tiles = c->z->out_w / c->d->mr, edges = pads_columns(c->z), middle = tiles - 2 * edges;
    struct windows_tile t = {.row = row, .column = k_int(k, 0)};
    if (edges)
        emit_tile(c, &t);
    if (middle > 0) {
        val number = k_loop(k, LOOP_SERIAL, k_int(k, edges), k_int(k, edges + middle), 1);
        t.column = ix_scale(k, number, c->d->mr);
        t.at = -1;
        emit_tile(c, &t);
        k_end(k, number);
    }
    if (edges && tiles > 1) {
        t.at = (tiles - 1) * c->d->mr;
        t.column = k_int(k, t.at);
        emit_tile(c, &t);
    }
}

/* Copies the weights of the task's channels and the k-block into the panel, one step of the contraction at a time. */
static void pack_steps(const struct windows_product *c)
{
    const struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), ix_sub(k, c->end, c->k0), 1);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->nr), 1);
    val x = dot_element(d, false, ix_add(k, c->m0, w->lane), ix_add(k, c->k0, step));
    k_store(k, c->panel, ix_add(k, ix_scale(k, step, d->nr), w->lane), x, 0);
    k_end(k, w->lane);
    w->lane = 0;
    k_end(k, step);
}

/* The same by squares that are transposed, of weights that are adjacent along the contraction. */
static void pack_weights(const struct windows_product *c)
{
    const struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val v[64], squares = ix_div(k, ix_add(k, ix_sub(k, c->end, c->k0), k_int(k, c->lanes - 1)), c->lanes);
    val column = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->nr), c->lanes);
    val square = k_loop(k, LOOP_SERIAL, k_int(k, 0), squares, 1), step = ix_scale(k, square, c->lanes);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, c->lanes), 1);
    w->pred = k_prim(k, P_LT, w->lane, ix_sub(k, ix_sub(k, c->end, c->k0), step), 0);
    for (int64_t i = 0; i < c->lanes; i++)
        v[i] = dot_element(d, false, ix_add(k, ix_add(k, c->m0, column), k_int(k, i)),
                           ix_add(k, ix_add(k, c->k0, step), w->lane));
    w->pred = 0;
    k_transpose(k, v, (uint32_t)c->lanes);
    for (int64_t i = 0; i < c->lanes; i++) {
        val at = ix_scale(k, ix_add(k, step, k_int(k, i)), d->nr);
        k_store(k, c->panel, ix_add(k, ix_add(k, at, column), w->lane), v[i], 0);
    }
    k_end(k, w->lane);
    w->lane = 0;
    k_end(k, square);
    k_end(k, column);
}

/* Sets `most` to the largest bits of a magnitude in the panel. */
static void find_most(const struct windows_product *c)
{
    struct kernel *k = c->d->w->k;
    val lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, c->d->nr), 1), zero = k_splat(k, k_bits(k, KL_I32, 0));
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), ix_sub(k, c->end, c->k0), 1), carry = k_carry(k, zero);
    val weight = k_load(k, c->panel, ix_add(k, ix_scale(k, step, c->d->nr), lane), 0);
    val bits = k_inst(k, L_OP(P_BITS), KL_I32, k_prim(k, P_ABS, weight, 0, 0), 0, 0, 0);
    k_next(k, carry, k_fold_step(k, FOLD_MAX, carry, bits));
    k_end(k, step);
    k_store(k, c->most, k_int(k, 0), k_lane_reduce(k, FOLD_MAX, k_out(k, carry)), 0);
    k_end(k, lane);
}

/* The results of positions `first` to `first` + cols - 1 of the task: squares of them are transposed. */
static void transpose_results(const struct windows_product *c, val first, int64_t cols)
{
    const struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    struct dot square = *d;
    val v[64], group = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->nr), c->lanes);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, c->lanes), 1);
    for (int64_t i = 0; i < c->lanes; i++) {
        val at = ix_scale(k, ix_add(k, first, k_int(k, i)), d->nr);
        v[i] = i < cols ? k_load(k, c->sums, ix_add(k, ix_add(k, at, group), w->lane), 0) : v[0];
    }
    k_transpose(k, v, (uint32_t)c->lanes);
    for (int64_t i = 0; i < c->lanes; i++)
        k_store(k, c->square, ix_add(k, k_int(k, i * c->lanes), w->lane), v[i], 0);
    k_end(k, w->lane);
    w->lane = 0;
    square.tile = 1 + c->square;
    square.tile_step = square.nr = square.lanes = c->lanes;
    val n = ix_add(k, ix_scale(k, c->row0, c->z->out_w), first);
    dot_epilogue_rows(&square, ix_add(k, c->m0, group), c->lanes, n, cols);
    k_end(k, group);
}

/* One task: some channels and rows of results. */
static void emit_windows(struct windows_product *c)
{
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    int64_t positions = c->rows * c->z->out_w, squares = positions / c->lanes;
    c->kb = d->blocks > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->blocks), 1) : k_int(k, 0);
    c->k0 = ix_scale(k, c->kb, d->kblock);
    c->end = d->blocks > 1 && d->size.k % d->kblock == 0 ? ix_add(k, c->k0, k_int(k, d->kblock))
             : d->blocks > 1 ? ix_min(k, ix_add(k, c->k0, k_int(k, d->kblock)), d->size.k) : k_int(k, d->size.k);
    (d->a_step_k == 1 ? pack_weights : pack_steps)(c);
    if (pads_rows(c->z) || pads_columns(c->z))
        find_most(c);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, c->rows), 1);
    emit_row(c, ix_add(k, c->row0, i));
    k_end(k, i);
    if (d->blocks > 1)
        k_end(k, c->kb);
    if (squares) {
        i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, squares), 1);
        transpose_results(c, ix_scale(k, i, c->lanes), c->lanes);
        k_end(k, i);
    }
    if (positions % c->lanes)
        transpose_results(c, k_int(k, squares * c->lanes), positions % c->lanes);
}

void dot_windows_emit(struct dot *d, const struct schedule *s)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const struct dot_windows *z = &d->windows;
    struct windows_product c = {.d = d, .z = z, .rows = s->dot_windows.rows, .lanes = s->dot_windows.square};
    struct tasks t;
    int64_t block = d->blocks > 1 ? d->kblock : d->size.k, groups;
    d->mr = s->dot_windows.mr;
    d->nr = s->dot_windows.nr;
    d->batch_index = k_int(k, 0);
    groups = d->size.m / d->nr;
    c.images = lower_buffer(w, z->array, BUF_IN);
    c.panel = k_buf(k, BUF_SCRATCH, KL_F32, dot_parts(block, c.lanes) * c.lanes * d->nr, 0);
    c.sums = k_buf(k, BUF_SCRATCH, KL_F32, c.rows * z->out_w * d->nr, 0);
    c.square = k_buf(k, BUF_SCRATCH, KL_F32, c.lanes * c.lanes, 0);
    c.most = k_buf(k, BUF_SCRATCH, KL_I32, 1, 0);
    val p = lower_tasks(w, z->images * z->out_h / c.rows * groups, 0, &t);
    c.m0 = ix_scale(k, ix_mod(k, p, groups), d->nr);
    c.row0 = ix_scale(k, ix_div(k, p, groups), c.rows);
    emit_windows(&c);
    lower_tasks_end(w, &t);
}
