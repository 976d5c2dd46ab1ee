/* Convolutions without packed windows: products of weights [channels, contraction] and the windows of images.
 *
 * Lanes are output channels: the weights of NR of them are transposed into a panel, a k-block at a time, and a tile
 * multiplies each of its rows by the elements of MR adjacent windows, which are read where the images lie and
 * broadcast.  So nothing is copied for each element of a window, and the products of a window with padding can be left
 * out: tiles at the left and right edges have code of their own, and a row of the kernel that is above or below the
 * image is skipped for all of its tile.  So the padding need not be in memory: a convolution 3x3 of stride 2 of 256
 * channels takes 0.95 of the time without the kernel that stores it.
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
 * the epilogue has lanes along the results' rows in memory. */
#include "lower_dot.h"

enum { PREFETCH_CHANNELS = 2, /* ahead: a plane of the images each, which lies on other pages */
       MIN_PREFETCHED = 8 };

/* ---- facts ---- */

bool dot_windows_fits(struct dot *d)
{
    const struct graph *g = d->w->g;
    struct image_windows *z = &d->windows;
    struct zero_border border;
    if (d->symbolic || d->unit != 1 || d->dtype != KL_F32 || g->node[d->n->in[0]].dtype != KL_F32 || d->size.n < 1 ||
        !windows_find(g, d->w->anchor, z) || !lower_in_memory(d->w, z->array) ||
        g->node[z->array].dtype != KL_F32 || d->w->pitch[z->array])
        return false;
    lower_zero_border(g, z->array, &border);
    z->first_y += border.first[2];
    z->end_y -= z->height - border.end[2];
    z->first_x += border.first[3];
    z->end_x -= z->width - border.end[3];
    dot_find_steps(d);
    return z->kernel_w > 1 && z->kernel_w <= MAX_WINDOW && z->kernel_h > 1 && d->kblock >= z->kernel_w;
}

/* ---- the kernel ---- */

static bool pads_columns(const struct image_windows *z) { return z->first_x > 0 || z->end_x < z->wide; }
static bool pads_rows(const struct image_windows *z) { return z->first_y > 0 || z->end_y < z->high; }

struct windows_edges dot_windows_edges(const struct dot *d, int64_t results)
{
    const struct image_windows *z = &d->windows;
    const int64_t tiles = z->out_w / results, tile = results * z->stride_w;
    const int64_t most = z->outside ? tiles : 1;
    struct windows_edges e = {0};
    while (e.left < most && z->first_x > e.left * tile)
        e.left++;
    while (e.right < most && e.left + e.right < tiles &&
           ((tiles - e.right) * results - 1) * z->stride_w + (z->kernel_w - 1) * z->dilation_w >= z->end_x)
        e.right++;
    return e;
}

int64_t dot_windows_block_channels(const struct dot *d)
{
    const int64_t steps = d->windows.kernel_h * d->windows.kernel_w;
    return d->blocks == 1 ? d->windows.channels : dot_parts(d->kblock, steps) + (d->kblock % steps != 0);
}

struct windows_product {
    const struct dot *d;
    const struct image_windows *z;
    int64_t rows, lanes;                         /* rows of results in a task; lanes of squares that are transposed */
    uint32_t images, panel, chains, sums, square, most; /* lbufs; chains: of the k-block's parts so far; most: the
                                                           largest bits of a weight's magnitude */
    val m0, row0;                                /* the task's first channel and first row of results */
    val kb, k0, end;                             /* the k-block: its number, and first and last index + 1 */
    int64_t channels, parts;                     /* of images in a part of a k-block; parts of a k-block */
    val part, from, to;                          /* the part: its number, and first and last index + 1 */
};

/* MR adjacent results: their row, counted through all images, their first column, and which of them may leave out which
 * columns of the kernel: those whose windows begin at `at`, or any if that is -1. */
struct windows_tile { val row, column; int64_t at; };

/* Is column `column` of the kernel outside of the image for result i of the tile? */
static bool is_padding(const struct image_windows *z, const struct windows_tile *t, int64_t i, int64_t column)
{
    int64_t x = (t->at + i) * z->stride_w + column * z->dilation_w;
    return t->at >= 0 && (x < z->first_x || x >= z->end_x);
}

/* The element of the images at which the window of the tile's first result begins; it may be outside of the array. */
static val window_origin(const struct windows_product *c, const struct windows_tile *t)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    val y = ix_scale(k, ix_mod(k, t->row, z->out_h), z->stride_h * z->width);
    val image = ix_scale(k, ix_div(k, t->row, z->out_h), z->channels * z->height * z->width);
    val first = ix_add(k, ix_add(k, image, y), ix_scale(k, t->column, z->stride_w));
    return ix_sub(k, first, k_int(k, z->before_y * z->width + z->before_x));
}

/* How far from there row `row` of the kernel is, counted through all channels. */
static val kernel_row(const struct windows_product *c, val row)
{
    const struct image_windows *z = c->z;
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

/* The conditions that x, which is at most `max`, is not below `first`, and is below `end`; 0: it always is. */
static val is_between(struct kernel *k, val x, int64_t first, int64_t end, int64_t max)
{
    val in = first > 0 ? k_prim(k, P_LE, k_int(k, first), x, 0) : 0;
    val below = end <= max ? k_prim(k, P_LT, x, k_int(k, end), 0) : 0;
    return in && below ? k_prim(k, P_AND, in, below, 0) : in ? in : below;
}

/* All products of indices `from` to `to` of the contraction, one by one, those of padding included. */
static void add_each(const struct windows_product *c, const struct windows_tile *t, val origin, val from, val to,
                     val *acc)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    val carry[MAX_ROWS], step = open_sums(c, from, to, acc, carry);
    ix_bound(k, step, 0, c->d->size.k - 1);
    val row = ix_div(k, step, z->kernel_w), column = ix_scale(k, ix_mod(k, step, z->kernel_w), z->dilation_w);
    val at = ix_add(k, origin, ix_add(k, kernel_row(c, row), column));
    if (!z->outside) {
        add_step_of_panel(c, ix_sub(k, step, c->k0), at, 0, acc);
    } else {
        val weight = k_load(k, c->panel, ix_add(k, ix_scale(k, ix_sub(k, step, c->k0), c->d->nr), c->d->w->lane), 0);
        val y = ix_add(k, ix_scale(k, ix_mod(k, t->row, z->out_h), z->stride_h),
                       ix_scale(k, ix_mod(k, row, z->kernel_h), z->dilation_h));
        val in_y = is_between(k, y, z->first_y, z->end_y, z->high - 1), none = k_bits(k, KL_F32, 0);
        for (int64_t i = 0; i < c->d->mr; i++) {
            val x = ix_add(k, column, k_int(k, (t->at + i) * z->stride_w));
            val in = t->at < 0 ? 0 : is_between(k, x, z->first_x, z->end_x, z->wide - 1);
            in = in && in_y ? k_prim(k, P_AND, in, in_y, 0) : in ? in : in_y;
            val place = ix_add(k, at, k_int(k, i * z->stride_w));
            if (in) {
                place = k_prim(k, P_SELECT, in, place, k_int(k, 0));
                ix_assume_range(k, place, 0, z->images * z->channels * z->height * z->width - 1);
            }
            x = k_load(k, c->images, place, 0);
            acc[i] = dot_multiply_add(k, in ? k_prim(k, P_SELECT, in, x, none) : x, weight, acc[i]);
        }
    }
    close_sums(c, step, acc, carry);
}

/* How many rows of the kernel are above row `y` of the images for the tile: at most all of them. */
static val rows_above(const struct windows_product *c, const struct windows_tile *t, int64_t y)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    val top = ix_scale(k, ix_mod(k, t->row, z->out_h), z->stride_h);
    val above = k_max(k, ix_sub(k, k_int(k, y), top), k_int(k, 0));
    ix_assume_range(k, above, 0, y);
    return ix_min(k, ix_div(k, ix_add(k, above, k_int(k, z->dilation_h - 1)), z->dilation_h), z->kernel_h);
}

/* The products of a row of the kernel: `step` is its first one's row of the panel, `at` where it meets the images. */
static void add_kernel_row(const struct windows_product *c, const struct windows_tile *t, val step, val at, val *acc)
{
    const struct image_windows *z = c->z;
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

/* A loop that carries the tile's sums and two addresses. */
struct rows_loop {
    val loop, outer[MAX_ROWS], at, step;
};

static struct rows_loop open_rows(const struct windows_product *c, val from, val to, val at, val step, val *acc)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    struct rows_loop l;
    l.loop = open_sums(c, from, to, acc, l.outer);
    l.at = k_carry(k, at);
    l.step = k_carry(k, step);
    ix_assume_range(k, l.at, -z->before_y * z->width - z->before_x, z->images * z->channels * z->height * z->width);
    ix_assume_range(k, l.step, 0, c->d->size.k);
    return l;
}

static void close_rows(const struct windows_product *c, const struct rows_loop *l, int64_t at, int64_t step, val *acc)
{
    struct kernel *k = c->d->w->k;
    val next_at = ix_add(k, l->at, k_int(k, at)), next_step = ix_add(k, l->step, k_int(k, step));
    k_next(k, l->at, next_at);
    k_next(k, l->step, next_step);
    close_sums(c, l->loop, acc, l->outer);
}

/* Which rows of the kernel are in the image: first to end - 1; NIL, NIL: all are for each tile. */
struct kernel_rows { val first, end; };

static struct kernel_rows rows_in_image(const struct windows_product *c, const struct windows_tile *t)
{
    const struct image_windows *z = c->z;
    if (!pads_rows(z))
        return (struct kernel_rows){0};
    return (struct kernel_rows){rows_above(c, t, z->first_y), rows_above(c, t, z->end_y)};
}

/* The products of rows `from` to `to` of the kernel, counted through all channels, without those of padding.  The loop
 * over the rows of a channel carries its addresses: what computes them would take the units that multiply. */
static void add_rows(const struct windows_product *c, const struct windows_tile *t, val origin,
                     const struct kernel_rows *in, val from, val to, val *acc)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    const int64_t below = z->dilation_h * z->width;
    val outer[MAX_ROWS], first = in->first ? in->first : k_int(k, 0), end = in->end ? in->end : k_int(k, z->kernel_h);
    val channels = ix_div(k, ix_add(k, to, k_int(k, z->kernel_h - 1)), z->kernel_h);
    val channel = open_sums(c, ix_div(k, from, z->kernel_h), channels, acc, outer);
    ix_bound(k, channel, 0, z->channels - 1);
    val top = ix_scale(k, channel, z->kernel_h);
    if (c->d->blocks > 1) { /* a block may begin and end within a channel */
        first = k_max(k, first, ix_sub(k, from, top));
        end = k_min(k, end, ix_sub(k, to, top));
    }
    val at = ix_add(k, ix_add(k, origin, ix_scale(k, channel, z->height * z->width)), ix_scale(k, first, below));
    val step = ix_sub(k, ix_scale(k, ix_add(k, top, first), z->kernel_w), c->k0);
    struct rows_loop row = open_rows(c, first, end, at, step, acc);
    ix_bound(k, row.loop, 0, z->kernel_h - 1);
    add_kernel_row(c, t, row.step, row.at, acc);
    close_rows(c, &row, below, z->kernel_w, acc);
    close_sums(c, channel, acc, outer);
}

/* The same of channels `from` to `to` with all rows of the kernel, which are written out: what counts them and carries
 * their addresses would take the units that multiply, too. */
static void add_channels(const struct windows_product *c, const struct windows_tile *t, val origin, val from, val to,
                         val *acc)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    const int64_t plane = z->height * z->width, steps = z->kernel_h * z->kernel_w;
    val at = ix_add(k, origin, ix_scale(k, from, plane)), step = ix_sub(k, ix_scale(k, from, steps), c->k0);
    struct rows_loop channel = open_rows(c, from, to, at, step, acc);
    for (int64_t row = 0; row < z->kernel_h; row++)
        add_kernel_row(c, t, ix_add(k, channel.step, k_int(k, row * z->kernel_w)),
                       ix_add(k, channel.at, k_int(k, row * z->dilation_h * z->width)), acc);
    close_rows(c, &channel, plane, steps, acc);
}

/* Is a channel written out?  Of larger kernels its own loops count little, and its code would be long. */
static bool writes_channels(const struct windows_product *c)
{
    enum { MOST = 100 };
    return c->z->kernel_h * c->z->kernel_w * c->d->mr <= MOST;
}

/* The products of rows `from` to `to` of the kernel: of whole channels all of whose rows are in the image, and before
 * and after them of the other rows. */
static void add_kernel_rows(const struct windows_product *c, const struct windows_tile *t, val origin, val from, val to,
                         val *acc)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    const struct kernel_rows in = rows_in_image(c, t);
    const bool whole = c->d->blocks == 1 || c->d->kblock % (z->kernel_h * z->kernel_w) == 0; /* blocks of channels */
    val carry[MAX_ROWS], pass = 0, zero = k_int(k, 0);
    if (!writes_channels(c)) {
        add_rows(c, t, origin, &in, from, to, acc);
        return;
    }
    val first = ix_div(k, ix_add(k, from, k_int(k, z->kernel_h - 1)), z->kernel_h), end = ix_div(k, to, z->kernel_h);
    if (in.first) {
        val all = k_prim(k, P_AND, k_prim(k, P_EQ, in.first, zero, 0),
                         k_prim(k, P_EQ, in.end, k_int(k, z->kernel_h), 0), 0);
        first = k_prim(k, P_SELECT, all, first, ix_div(k, ix_add(k, to, k_int(k, z->kernel_h - 1)), z->kernel_h));
        ix_assume_range(k, first, 0, z->channels);
    }
    if (!whole) /* twice: after the whole channels, there are only rows */
        pass = open_sums(c, zero, k_int(k, 2), acc, carry);
    if (!whole || in.first) {
        val begin = ix_scale(k, first, z->kernel_h), rows_from = from, rows_to = k_min(k, begin, to);
        if (!whole) {
            val again = k_prim(k, P_EQ, pass, k_int(k, 1), 0);
            rows_from = k_prim(k, P_SELECT, again, k_max(k, begin, ix_scale(k, end, z->kernel_h)), from);
            rows_to = k_prim(k, P_SELECT, again, to, rows_to);
            ix_assume_range(k, rows_from, 0, (z->channels + 1) * z->kernel_h);
            end = k_prim(k, P_SELECT, again, zero, end);
        }
        ix_assume_range(k, rows_to, 0, z->channels * z->kernel_h);
        add_rows(c, t, origin, &in, rows_from, rows_to, acc);
    }
    add_channels(c, t, origin, first, end, acc);
    if (!whole)
        close_sums(c, pass, acc, carry);
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

/* The products of the part of the k-block, added to the chains. */
static void add_block_part(const struct windows_product *c, const struct windows_tile *t, val origin, val *acc)
{
    const struct image_windows *z = c->z;
    struct kernel *k = c->d->w->k;
    const bool whole = c->d->blocks == 1 || c->d->kblock % z->kernel_w == 0; /* rows of the kernel in each block */
    val from = ix_div(k, ix_add(k, c->from, k_int(k, whole ? 0 : z->kernel_w - 1)), z->kernel_w);
    val to = ix_div(k, c->to, z->kernel_w);
    if (!whole)
        add_each(c, t, origin, c->from, k_min(k, ix_scale(k, from, z->kernel_w), c->to), acc);
    add_kernel_rows(c, t, origin, from, to, acc);
    if (!whole)
        add_each(c, t, origin, k_max(k, ix_scale(k, to, z->kernel_w), c->from), c->to, acc);
}

/* Ends the chains of one k-block, of which `at` is the place of the lane's first result in scratch. */
static void end_chains(const struct windows_product *c, const struct windows_tile *t, val origin, val at, val *acc)
{
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    val carry[MAX_ROWS], zero = k_splat(k, k_bits(k, d->dtype, 0));
    if (pads_rows(c->z) || (t->at >= 0 && pads_columns(c->z))) {
        val again = open_sums(c, k_int(k, 0), has_special(c, acc), acc, carry);
        for (int64_t i = 0; i < d->mr; i++)
            acc[i] = zero;
        add_each(c, t, origin, c->k0, c->end, acc);
        close_sums(c, again, acc, carry);
    }
    for (int64_t i = 0; i < d->mr; i++) {
        val here = ix_add(k, at, k_int(k, i * d->nr)), sum = acc[i];
        if (d->blocks > 1) {
            sum = k_prim(k, P_ADD, k_load(k, c->sums, here, 0), acc[i], 0);
            sum = k_prim(k, P_SELECT, k_prim(k, P_EQ, c->kb, k_int(k, 0), 0), acc[i], sum);
        }
        k_store(k, c->sums, here, sum, 0);
    }
}

static void emit_tile(const struct windows_product *c, const struct windows_tile *t)
{
    const struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const bool parts = c->parts > 1;
    val acc[MAX_ROWS], open = 0;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->nr), 1);
    val origin = window_origin(c, t), zero = k_splat(k, k_bits(k, d->dtype, 0));
    val first = ix_add(k, ix_scale(k, ix_sub(k, t->row, c->row0), c->z->out_w), t->column);
    val at = ix_add(k, ix_scale(k, first, d->nr), w->lane);
    for (int64_t i = 0; i < d->mr; i++) {
        acc[i] = zero;
        if (parts)
            acc[i] = k_prim(k, P_SELECT, k_prim(k, P_EQ, c->part, k_int(k, 0), 0), zero,
                            k_load(k, c->chains, ix_add(k, at, k_int(k, i * d->nr)), 0));
    }
    add_block_part(c, t, origin, acc);
    if (parts) {
        val last = k_int(k, c->parts - 1);
        open = k_if(k, k_prim(k, P_LT, c->part, last, 0));
        for (int64_t i = 0; i < d->mr; i++)
            k_store(k, c->chains, ix_add(k, at, k_int(k, i * d->nr)), acc[i], 0);
        k_end(k, open);
        open = k_if(k, k_prim(k, P_EQ, c->part, last, 0));
    }
    end_chains(c, t, origin, at, acc);
    if (open)
        k_end(k, open);
    k_end(k, w->lane);
    w->lane = 0;
}

/* The tiles of a row of results: those at the edges, and those between. */
static void emit_row(const struct windows_product *c, val row)
{
    struct kernel *k = c->d->w->k;
    const int64_t tiles = c->z->out_w / c->d->mr;
    struct windows_edges edges = dot_windows_edges(c->d, c->d->mr);
    struct windows_tile t = {.row = row};
    for (int64_t i = 0; i < tiles; i++) {
        bool middle = i >= edges.left && i < tiles - edges.right;
        t.at = i * c->d->mr;
        t.column = k_int(k, t.at);
        if (!middle) {
            emit_tile(c, &t);
        } else if (i == edges.left) {
            val number = k_loop(k, LOOP_SERIAL, k_int(k, i), k_int(k, tiles - edges.right), 1);
            t.column = ix_scale(k, number, c->d->mr);
            t.at = -1;
            emit_tile(c, &t);
            k_end(k, number);
        }
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

/* Begins the loop over the parts of the k-block, all but the first of which begin with a channel. */
static void begin_part(struct windows_product *c)
{
    struct kernel *k = c->d->w->k;
    const int64_t steps = c->z->kernel_h * c->z->kernel_w, each = c->channels * steps;
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
    begin_part(c);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, c->rows), 1);
    emit_row(c, ix_add(k, c->row0, i));
    k_end(k, i);
    if (c->parts > 1)
        k_end(k, c->part);
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
    const struct image_windows *z = &d->windows;
    struct windows_product c = {.d = d, .z = z, .rows = s->dot_windows.rows,
                                .channels = s->dot_windows.channels, .lanes = s->dot_windows.square};
    struct tasks t;
    int64_t block = d->blocks > 1 ? d->kblock : d->size.k, groups;
    d->mr = s->dot_windows.mr;
    d->nr = s->dot_windows.nr;
    d->batch_index = k_int(k, 0);
    groups = d->size.m / d->nr;
    c.images = lower_buffer(w, z->array, BUF_IN);
    c.panel = k_buf(k, BUF_SCRATCH, KL_F32, dot_parts(block, c.lanes) * c.lanes * d->nr, 0);
    c.parts = dot_parts(dot_windows_block_channels(d), c.channels);
    if (c.parts > 1)
        c.chains = k_buf(k, BUF_SCRATCH, KL_F32, c.rows * z->out_w * d->nr, 0);
    c.sums = k_buf(k, BUF_SCRATCH, KL_F32, c.rows * z->out_w * d->nr, 0);
    c.square = k_buf(k, BUF_SCRATCH, KL_F32, c.lanes * c.lanes, 0);
    c.most = k_buf(k, BUF_SCRATCH, KL_I32, 1, 0);
    val p = lower_tasks(w, z->images * z->out_h / c.rows * groups, 0, &t);
    c.m0 = ix_scale(k, ix_mod(k, p, groups), d->nr);
    c.row0 = ix_scale(k, ix_div(k, p, groups), c.rows);
    emit_windows(&c);
    lower_tasks_end(w, &t);
}
