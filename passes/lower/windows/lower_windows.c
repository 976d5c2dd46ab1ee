/* Convolutions without packed windows: products of weights [channels, contraction] and the windows of images.
 *
 * Lanes are output channels: the weights of NR of them are transposed into a panel, a k-block at a time, and a tile
 * multiplies each of its rows by the elements of MR adjacent windows, which are read where the images lie and
 * broadcast.  So nothing is copied for each element of a window, and the products of a window with padding can be left
 * out: tiles at the left and right edges have code of their own, and rows and planes of the kernel that are outside of
 * the image are skipped for all of the tile.  So the padding need not be in memory: a convolution 3x3 of stride 2 of
 * 256 channels takes 0.95 of the time without the kernel that stores it.  Zeros between the elements, as of a
 * transposed convolution, are left out likewise: rows of the kernel are stepped over, and tiles have code for each way
 * in which their columns meet elements.  If the row is long enough, a tile's results are as far apart as elements, so
 * that all meet the same columns and a weight is loaded once for all of them.
 *
 * A k-block's weights may be more than the first-level cache has: then all rows of the task are multiplied with a part
 * of them at a time, and the chains are kept in between.  Of channels that are whole and in the image the products are
 * written out, because the units that multiply also compute addresses: with both, it takes 0.93 of the time.
 *
 * Leaving out acc = fma(weight, 0, acc) keeps each bit, but where the weight is infinite or NaN, or the sum is -0,
 * which only a product that underflows makes of a chain that begins at 0.  Of a panel it is found out whether a weight
 * is not finite, of a tile whether a sum is -0; if so, the block's chains are computed again with all products.
 *
 * The sums of a task are in scratch, results adjacent for each position; at the end squares of them are transposed, and
 * the epilogue has lanes along the results' rows in memory.  Squares end where images do, so that results are stored as
 * vectors: 3x3 in 32 groups of 16 channels of 14x14 takes 0.87 of the time, of bf16 0.65. */
#include "lower_windows.h"

/* ---- facts ---- */

/* Is the number of images all that symbols say? */
static bool symbols_count_images(const struct dot *d)
{
    const struct image_windows *win = &d->windows;
    const struct kernel *k = d->w->k;
    bool known = !d->symbolic_m && size_is_constant(d->len.batch) && !(win->contracted ? d->symbolic_n : d->symbolic_k);
    for (unsigned i = 0; i < 3; i++)
        known &= size_is_constant(kernel_length(k, win->axis[i].out)) &&
                 size_is_constant(kernel_length(k, win->axis[i].length));
    return known;
}

/* windows_facts without its memory. */
static bool find_facts(struct dot *d)
{
    const struct graph *g = d->w->g;
    struct image_windows *win = &d->windows;
    struct zero_border border;
    if (d->unit != 1 || d->dtype != KL_F32 || g->node[d->n->in[0]].dtype != KL_F32 || d->size.n < 1 ||
        !windows_find(g, d->w->anchor, win) || (d->symbolic && !symbols_count_images(d)) ||
        !lower_in_memory(d->w, win->array) || g->node[win->array].dtype != KL_F32 || d->w->pitch[win->array])
        return false;
    lower_zero_border(g, win->array, &border);
    for (uint32_t rank = node_shape(g, win->array)->rank, i = 0; i < rank - 2; i++) { /* from the last axis on */
        struct window_axis *a = &win->axis[2 - i];
        if (a->gap == 1) {
            a->first += border.first[rank - 1 - i];
            a->end -= a->length - border.end[rank - 1 - i];
        }
    }
    return win->x.kernel > 1 && win->y.kernel * win->z.kernel > 1;
}

bool windows_facts(struct dot *d)
{
    if (!d->sought_windows)
        d->has_windows = find_facts(d);
    d->sought_windows = true;
    return d->has_windows;
}

bool dot_windows_fits(struct dot *d)
{
    if (!windows_facts(d) || d->windows.contracted || d->windows.x.kernel > MAX_WINDOW ||
        d->kblock < d->windows.x.kernel)
        return false;
    dot_find_steps(d);
    return true;
}

/* ---- the kernel ---- */

struct windows_edges dot_windows_edges(const struct dot *d, int64_t results)
{
    const struct image_windows *win = &d->windows;
    const int64_t tiles = win->x.out / results, tile = results * win->x.stride;
    const int64_t max = win->outside ? tiles : 1;
    struct windows_edges e = {0};
    while (e.left < max && win->x.first > e.left * tile)
        e.left++;
    while (e.right < max && e.left + e.right < tiles &&
           ((tiles - e.right) * results - 1) * win->x.stride + (win->x.kernel - 1) * win->x.dilation >= win->x.end)
        e.right++;
    return e;
}

int64_t dot_windows_block_channels(const struct dot *d)
{
    const int64_t steps = windows_steps(&d->windows);
    return d->blocks == 1 ? d->windows.channels : dot_parts(d->kblock, steps) + (d->kblock % steps != 0);
}

/* The tiles of a row of results whose first one is `first` of those of a span: those at the edges, and those between,
 * of which as many are in an iteration as have other zeros between the images' elements. */
static void emit_row(const struct windows_product *c, val row, int64_t first)
{
    struct kernel *k = c->d->w->k;
    const int64_t span = c->d->mr * c->apart, spans = c->win->x.out / span, each = c->win->x.gap / c->apart;
    const struct windows_edges edges = dot_windows_edges(c->d, span);
    const int64_t middle = (spans - edges.left - edges.right) / each * each, end = edges.left + middle;
    struct windows_tile t = {.row = row};
    for (int64_t i = 0; i < spans; i++) {
        if (i < edges.left || i >= end) {
            t.at = i * span + first;
            t.column = k_int(k, t.at);
            t.phase = t.at % c->win->x.gap;
            windows_tile_emit(c, &t);
        } else if (i == edges.left) {
            val number = k_loop(k, LOOP_SERIAL, k_int(k, i), k_int(k, end), each);
            for (int64_t j = 0; j < each; j++) {
                t.column = ix_add(k, ix_scale(k, ix_add(k, number, k_int(k, j)), span), k_int(k, first));
                t.at = -1;
                t.phase = ((i + j) * span + first) % c->win->x.gap;
                windows_tile_emit(c, &t);
            }
            k_end(k, number);
        }
    }
}

/* The tiles of the task's rows, `here` of at most `rows`, which begin with row0.  Those that meet the same elements of
 * the kernel follow each other: the weights of a k-block of one phase stay in the first-level cache. */
static void emit_rows(const struct windows_product *c, val row0, val here, int64_t rows)
{
    struct kernel *k = c->d->w->k;
    const int64_t gap = c->win->y.gap < rows ? c->win->y.gap : rows;
    for (int64_t first = 0; first < c->apart; first++) {
        val phase = gap > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, gap), 1) : k_int(k, 0);
        val i = k_loop(k, LOOP_SERIAL, phase, here, gap);
        ix_bound(k, i, 0, rows - 1);
        emit_row(c, ix_add(k, row0, i), first);
        k_end(k, i);
        if (gap > 1)
            k_end(k, phase);
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

/* Stores a square, whose rows are channels from `column` on, as rows of the panel from `step` on. */
static void store_square(const struct windows_product *c, val *v, val column, val step)
{
    struct kernel *k = c->d->w->k;
    k_transpose(k, v, (uint32_t)c->lanes);
    for (int64_t i = 0; i < c->lanes; i++) {
        val at = ix_scale(k, ix_add(k, step, k_int(k, i)), c->d->nr);
        k_store(k, c->panel, ix_add(k, ix_add(k, at, column), c->d->w->lane), v[i], 0);
    }
}

/* The same by squares that are transposed, of elements that are adjacent along the contraction. */
static void pack_squares(const struct windows_product *c)
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
    store_square(c, v, column, step);
    k_end(k, w->lane);
    w->lane = 0;
    k_end(k, square);
    k_end(k, column);
}

/* The same of elements that are adjacent within the positions of an image: squares end where these end.  Rows of the
 * panel behind them are written, too: either the next image's overwrite them, or they are not read. */
static void pack_images(const struct windows_product *c)
{
    const struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const int64_t length = windows_positions(c->win);
    val v[64], column = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->nr), c->lanes);
    val image = k_loop(k, LOOP_SERIAL, ix_div(k, c->k0, length),
                       ix_div(k, ix_add(k, c->end, k_int(k, length - 1)), length), 1);
    ix_bound(k, image, 0, c->win->images - 1);
    val first = ix_scale(k, image, length), from = k_max(k, ix_sub(k, c->k0, first), k_int(k, 0));
    val to = k_min(k, ix_sub(k, c->end, first), k_int(k, length));
    ix_assume_range(k, from, 0, length - 1);
    ix_assume_range(k, to, 1, length);
    val squares = ix_div(k, ix_add(k, ix_sub(k, to, from), k_int(k, c->lanes - 1)), c->lanes);
    val square = k_loop(k, LOOP_SERIAL, k_int(k, 0), squares, 1), at = ix_add(k, from, ix_scale(k, square, c->lanes));
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, c->lanes), 1);
    w->pred = k_prim(k, P_LT, w->lane, ix_sub(k, to, at), 0);
    for (int64_t i = 0; i < c->lanes; i++)
        v[i] = dot_step_of_run(d, false, ix_add(k, ix_add(k, c->m0, column), k_int(k, i)), length, image,
                               ix_add(k, at, w->lane));
    w->pred = 0;
    store_square(c, v, column, ix_sub(k, ix_add(k, first, at), c->k0));
    k_end(k, w->lane);
    w->lane = 0;
    k_end(k, square);
    k_end(k, image);
    k_end(k, column);
}

/* Sets `max_magnitude` to the largest bits of a magnitude in the panel. */
static void find_max_magnitude(const struct windows_product *c)
{
    struct kernel *k = c->d->w->k;
    val lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, c->d->nr), 1), zero = k_splat(k, k_bits(k, KL_I32, 0));
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), ix_sub(k, c->end, c->k0), 1), carry = k_carry(k, zero);
    val weight = k_load(k, c->panel, ix_add(k, ix_scale(k, step, c->d->nr), lane), 0);
    val bits = k_inst(k, L_OP(P_BITS), KL_I32, k_prim(k, P_ABS, weight, 0, 0), 0, 0, 0);
    k_next(k, carry, k_fold_step(k, FOLD_MAX, carry, bits));
    k_end(k, step);
    k_store(k, c->max_magnitude, k_int(k, 0), k_lane_reduce(k, FOLD_MAX, k_out(k, carry)), 0);
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
    dot_epilogue_rows(&square, ix_add(k, c->m0, group), c->lanes, ix_add(k, c->n0, first), cols);
    k_end(k, group);
}

/* Begins the loop over the parts of the k-block, all but the first of which begin with a channel. */
static void begin_part(struct windows_product *c)
{
    struct kernel *k = c->d->w->k;
    const int64_t steps = windows_steps(c->win), each = c->channels * steps;
    c->from = c->k0;
    c->to = c->end;
    if (c->parts == 1)
        return;
    c->part = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, c->parts), 1);
    val start = ix_add(k, ix_scale(k, ix_div(k, c->k0, steps), steps), ix_scale(k, c->part, each));
    c->from = k_min(k, k_max(k, start, c->k0), c->end);
    c->to = k_min(k, ix_add(k, start, k_int(k, each)), c->end);
    ix_assume_range(k, c->from, 0, c->d->size.k);
    ix_assume_range(k, c->to, 0, c->d->size.k);
}

void windows_begin_block(struct windows_product *c)
{
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    c->kb = c->k0 = k_int(k, 0);
    c->end = ix_size(k, d->len.k);
    if (d->symbolic_k && d->blocks > 1) {
        val blocks, length;
        dot_symbolic_blocks(d, &blocks, &length);
        c->kb = k_loop(k, LOOP_SERIAL, c->k0, blocks, 1);
        c->k0 = ix_mul(k, c->kb, length);
        c->end = k_min(k, ix_add(k, c->k0, length), c->end);
        ix_assume_range(k, c->k0, 0, d->size.k);
        ix_assume_range(k, c->end, 0, d->size.k);
    } else if (d->blocks > 1) {
        c->kb = k_loop(k, LOOP_SERIAL, c->k0, k_int(k, d->blocks), 1);
        c->k0 = ix_scale(k, c->kb, d->kblock);
        c->end = ix_add(k, c->k0, k_int(k, d->kblock));
        if (d->size.k % d->kblock)
            c->end = ix_min(k, c->end, d->size.k);
    }
    if (d->a_step_k == 1)
        pack_squares(c);
    else if (c->win->contracted && dot_along_k_in_runs(d, false, windows_positions(c->win)))
        pack_images(c);
    else
        pack_steps(c);
    if (windows_pad(&c->win->z) || windows_pad(&c->win->y) || windows_pad(&c->win->x))
        find_max_magnitude(c);
}

void windows_end_block(struct windows_product *c)
{
    struct kernel *k = c->d->w->k;
    const int64_t squares = c->each / c->lanes;
    val image = 0, first = k_int(k, 0);
    if (c->d->blocks > 1)
        k_end(k, c->kb);
    if (c->here) {
        image = k_loop(k, LOOP_SERIAL, first, c->here, 1);
        first = ix_scale(k, image, c->each);
    }
    if (squares) {
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, squares), 1);
        transpose_results(c, ix_add(k, first, ix_scale(k, i, c->lanes)), c->lanes);
        k_end(k, i);
    }
    if (c->each % c->lanes)
        transpose_results(c, ix_add(k, first, k_int(k, squares * c->lanes)), c->each % c->lanes);
    if (image)
        k_end(k, image);
}

void windows_scratch(struct windows_product *c, uint32_t square)
{
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    const int64_t block = d->blocks == 1 ? d->size.k : d->symbolic_k ? DOT_BLOCK : d->kblock;
    c->lanes = square;
    c->images = lower_buffer(d->w, c->win->array, BUF_IN);
    c->panel = k_buf(k, BUF_SCRATCH, KL_F32, (block + square) * d->nr, 0); /* a square may begin at the last step */
    if (c->parts > 1)
        c->chains = k_buf(k, BUF_SCRATCH, KL_F32, c->results * d->nr, 0);
    c->sums = k_buf(k, BUF_SCRATCH, KL_F32, c->results * d->nr, 0);
    c->square = k_buf(k, BUF_SCRATCH, KL_F32, (int64_t)square * square, 0);
    c->max_magnitude = k_buf(k, BUF_SCRATCH, KL_I32, 1, 0);
}

void dot_windows_emit(struct dot *d, const struct schedule *s)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const struct image_windows *win = &d->windows;
    const int64_t rows = s->dot_windows.rows, channels = s->dot_windows.channels;
    struct windows_product c = {.d = d, .win = win, .results = rows * win->x.out, .channels = channels,
                                .parts = dot_parts(dot_windows_block_channels(d), channels)};
    struct tasks t;
    d->mr = s->dot_windows.mr;
    d->nr = s->dot_windows.nr;
    c.apart = windows_apart(&win->x, d->mr);
    windows_scratch(&c, s->dot_windows.square);
    const int64_t groups = d->size.m / d->nr, image_rows = win->z.out * win->y.out;
    const bool several = rows > image_rows && rows % image_rows == 0; /* images in a task */
    val all = ix_div(k, ix_size(k, d->len.n), win->x.out);
    val active = ix_scale(k, ix_div(k, ix_add(k, all, k_int(k, rows - 1)), rows), d->size.batch * groups);
    val p = lower_tasks(w, dot_parts(win->images * image_rows, rows) * d->size.batch * groups, active, &t);
    val rest = ix_div(k, p, groups), row0 = ix_scale(k, ix_div(k, rest, d->size.batch), rows), here = k_int(k, rows);
    d->batch_index = ix_mod(k, rest, d->size.batch);
    c.m0 = ix_scale(k, ix_mod(k, p, groups), d->nr);
    c.n0 = ix_scale(k, row0, win->x.out);
    c.each = several ? image_rows * win->x.out : c.results;
    if (several && d->symbolic) {
        here = ix_min(k, ix_sub(k, all, row0), rows);
        ix_assume_range(k, here, 1, rows);
    }
    if (several)
        c.here = ix_div(k, here, image_rows);
    windows_begin_block(&c);
    begin_part(&c);
    emit_rows(&c, row0, here, rows);
    if (c.parts > 1)
        k_end(k, c.part);
    windows_end_block(&c);
    lower_tasks_end(w, &t);
}
