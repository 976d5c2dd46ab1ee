/* A tile of a convolution whose windows are read in place (lower_windows.c): its rows are results of a row, its lanes
 * channels.
 *
 * An index of the contraction is an element (z, y, x) of the window in a channel.  The loops over a channel's planes
 * and over a plane's rows, those of the kernel, leave out what is outside of the image for the whole tile. */
#include "lower_windows.h"

enum { PREFETCH_CHANNELS = 2, /* ahead: of the images each, which lies on other pages */
       MIN_PREFETCHED = 8 };

/* Is column `column` of the kernel outside of the image, or between its elements, for result i of the tile? */
static bool is_padding(const struct windows_product *c, const struct windows_tile *t, int64_t i, int64_t column)
{
    const struct window_axis *a = &c->win->x;
    const int64_t x = (t->at + i * c->apart) * a->stride + column * a->dilation;
    return (t->at >= 0 && (x < a->first || x >= a->end)) ||
           (t->phase + i * c->apart + column + (a->gap - 1) * a->before) % a->gap != 0;
}

/* How far from the window_origin column `column` of the kernel is for result i. */
static int64_t column_offset(const struct windows_product *c, const struct windows_tile *t, int64_t i, int64_t column)
{
    const struct window_axis *a = &c->win->x;
    if (a->gap == 1)
        return i * a->stride + column * a->dilation;
    return (t->phase + i * c->apart + column + (a->gap - 1) * a->before) / a->gap;
}

/* The tile's number along z and y, among the windows of an image. */
static val number_z(const struct windows_product *c, const struct windows_tile *t)
{
    struct kernel *k = c->d->w->k;
    return ix_mod(k, ix_div(k, t->row, c->win->y.out), c->win->z.out);
}

static val number_y(const struct windows_product *c, const struct windows_tile *t)
{
    return ix_mod(c->d->w->k, t->row, c->win->y.out);
}

/* The element of the images at which the window of the tile's first result begins, or the first one of the plane, row
 * and column that are elements; it may be outside of the array. */
static val window_origin(const struct windows_product *c, const struct windows_tile *t)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    val z = windows_first_element(k, &win->z, number_z(c, t)).element;
    val y = windows_first_element(k, &win->y, number_y(c, t)).element, x = ix_scale(k, t->column, win->x.stride);
    if (win->x.gap > 1)
        x = ix_div(k, ix_sub(k, t->column, k_int(k, t->phase)), win->x.gap);
    val image = ix_scale(k, ix_div(k, t->row, win->z.out * win->y.out), win->groups);
    image = ix_scale(k, ix_add(k, image, c->d->batch_index), win->channels * windows_channel(win));
    val row = ix_scale(k, ix_add(k, ix_scale(k, z, win->y.length), y), win->x.length);
    return ix_sub(k, ix_add(k, ix_add(k, image, row), x), k_int(k, win->x.before));
}

/* Adds the products of row `step` of the panel, of column `column` of the kernel, with the elements of the images,
 * whose row begins at `at`, but for those of padding. */
static void add_column(const struct windows_product *c, const struct windows_tile *t, val step, val at, int64_t column,
                       val *acc)
{
    struct kernel *k = c->d->w->k;
    val weight = k_load(k, c->panel, ix_add(k, ix_scale(k, step, c->d->nr), c->d->w->lane), 0);
    for (int64_t i = 0; i < c->d->mr; i++)
        if (!is_padding(c, t, i, column)) {
            val x = k_load(k, c->images, ix_add(k, at, k_int(k, column_offset(c, t, i, column))), 0);
            acc[i] = dot_multiply_add(k, x, weight, acc[i]);
        }
}

/* All products of indices `from` to `to` of the contraction, one by one, those of padding included. */
static void add_each(const struct windows_product *c, const struct windows_tile *t, val from, val to, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    val carry[MAX_ROWS], step = windows_open_sums(c, from, to, acc, carry);
    ix_bound(k, step, 0, c->d->size.k - 1);
    val row = ix_div(k, step, win->x.kernel), column = ix_scale(k, ix_mod(k, step, win->x.kernel), win->x.dilation);
    val plane = ix_div(k, row, win->y.kernel), image = ix_div(k, t->row, win->z.out * win->y.out);
    val z = ix_add(k, ix_scale(k, number_z(c, t), win->z.stride),
                   ix_scale(k, ix_mod(k, plane, win->z.kernel), win->z.dilation));
    val y = ix_add(k, ix_scale(k, number_y(c, t), win->y.stride),
                   ix_scale(k, ix_mod(k, row, win->y.kernel), win->y.dilation));
    val group = ix_add(k, ix_scale(k, image, win->groups), c->d->batch_index);
    val channel = ix_add(k, ix_scale(k, group, win->channels), ix_div(k, plane, win->z.kernel));
    val at = ix_add(k, ix_scale(k, windows_element(k, z, &win->z), win->y.length), windows_element(k, y, &win->y));
    at = ix_add(k, ix_scale(k, channel, windows_channel(win)), ix_scale(k, at, win->x.length));
    val in_z = windows_and(k, windows_is_between(k, z, &win->z), windows_is_element(k, z, &win->z));
    val in_y = windows_and(k, windows_is_between(k, y, &win->y), windows_is_element(k, y, &win->y));
    val weight = k_load(k, c->panel, ix_add(k, ix_scale(k, ix_sub(k, step, c->k0), c->d->nr), c->d->w->lane), 0);
    val in_rows = win->outside ? windows_and(k, in_z, in_y) : 0;
    for (int64_t i = 0; i < c->d->mr; i++) {
        val x = ix_add(k, ix_scale(k, ix_add(k, t->column, k_int(k, i * c->apart)), win->x.stride), column);
        val in = windows_and(k, t->at < 0 || !win->outside ? 0 : windows_is_between(k, x, &win->x),
                             windows_is_element(k, x, &win->x));
        val place = ix_add(k, at, windows_element(k, x, &win->x));
        in = windows_and(k, in, in_rows);
        acc[i] = dot_multiply_add(k, windows_load_in(c, place, in), weight, acc[i]);
    }
    windows_close_sums(c, step, acc, carry);
}

/* The products of a row of the kernel: `step` is its first one's row of the panel, `at` where it meets the images. */
static void add_kernel_row(const struct windows_product *c, const struct windows_tile *t, val step, val at, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    if (win->channels >= MIN_PREFETCHED) {
        val ahead = ix_add(k, at, k_int(k, PREFETCH_CHANNELS * windows_channel(win)));
        int64_t last = column_offset(c, t, c->d->mr - 1, win->x.kernel - 1);
        k_prefetch(k, PREFETCH_READ, c->images, ahead);
        k_prefetch(k, PREFETCH_READ, c->images, ix_add(k, ahead, k_int(k, last)));
    }
    for (int64_t column = 0; column < win->x.kernel; column++)
        add_column(c, t, ix_add(k, step, k_int(k, column)), at, column, acc);
}

/* The tile, with what of the kernel is in the image along z and along y, and the first elements there. */
struct tile_range { const struct windows_tile *t; val origin; struct windows_range z, y; val first_z, first_y; };

/* A loop over planes of the kernel, counted through all channels, of which those outside of the image are left out. */
struct planes_loop {
    struct windows_loop plane;
    val number, channel, outer[MAX_ROWS];        /* the plane's; the loop over channels, if that is another one */
};

static bool counts_planes(const struct image_windows *win) { return win->z.kernel > 1 || windows_pad(&win->z); }

/* Number i of the elements that begin with `first` along an axis. */
static val element_number(struct kernel *k, const struct window_axis *a, val first, val i)
{
    return ix_add(k, first, ix_scale(k, i, a->gap));
}

static struct planes_loop open_planes(const struct windows_product *c, const struct tile_range *r, val from, val to,
                                      val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    const int64_t planes = win->z.kernel, steps = windows_plane_steps(win);
    const bool inner = counts_planes(win);
    struct planes_loop l = {0};
    struct windows_range here = {from, to};
    val top = k_int(k, 0), at = r->origin;
    if (inner) {
        val channels = ix_div(k, ix_add(k, to, k_int(k, planes - 1)), planes);
        l.channel = windows_open_sums(c, ix_div(k, from, planes), channels, acc, l.outer);
        ix_bound(k, l.channel, 0, win->channels - 1);
        top = ix_scale(k, l.channel, planes);
        here = windows_range_here(k, &r->z, planes, windows_blocks_of(c, windows_steps(win)), from, to, top);
        here = windows_by_gap(k, &win->z, here, r->first_z);
        at = ix_add(k, at, ix_scale(k, l.channel, windows_channel(win)));
    }
    at = ix_add(k, at, ix_scale(k, here.first, inner ? windows_step_z(win) : windows_channel(win)));
    val first = ix_add(k, top, element_number(k, &win->z, r->first_z, here.first));
    l.plane = windows_open_loop(c, here.first, here.end, at, ix_sub(k, ix_scale(k, first, steps), c->k0), acc);
    l.number = ix_add(k, top, element_number(k, &win->z, r->first_z, l.plane.loop));
    return l;
}

static void close_planes(const struct windows_product *c, const struct planes_loop *l, val *acc)
{
    const struct image_windows *win = c->win;
    const int64_t next = counts_planes(win) ? windows_step_z(win) : windows_channel(win);
    windows_close_loop(c, &l->plane, next, windows_plane_steps(win) * win->z.gap, acc);
    if (l->channel)
        windows_close_sums(c, l->channel, acc, l->outer);
}

/* The products of rows `from` to `to` of the kernel, counted through all channels, without those of padding.  The loop
 * over the rows of a plane carries its addresses: what computes them would take the units that multiply. */
static void add_rows(const struct windows_product *c, const struct tile_range *r, val from, val to, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    val planes = ix_div(k, ix_add(k, to, k_int(k, win->y.kernel - 1)), win->y.kernel);
    struct planes_loop l = open_planes(c, r, ix_div(k, from, win->y.kernel), planes, acc);
    const bool whole = windows_blocks_of(c, windows_plane_steps(win));
    struct windows_range here = windows_range_here(k, &r->y, win->y.kernel, whole, from, to,
                                                   ix_scale(k, l.number, win->y.kernel));
    here = windows_by_gap(k, &win->y, here, r->first_y);
    val at = ix_add(k, l.plane.at, ix_scale(k, here.first, windows_step_y(win)));
    val first = element_number(k, &win->y, r->first_y, here.first);
    struct windows_loop row = windows_open_loop(c, here.first, here.end, at,
                                                ix_add(k, l.plane.step, ix_scale(k, first, win->x.kernel)), acc);
    ix_bound(k, row.loop, 0, win->y.kernel - 1);
    add_kernel_row(c, r->t, row.step, row.at, acc);
    windows_close_loop(c, &row, windows_step_y(win), win->x.kernel * win->y.gap, acc);
    close_planes(c, &l, acc);
}

/* The same of planes `from` to `to` with all rows of the kernel, which are written out: what counts them and carries
 * their addresses would take the units that multiply, too. */
static void add_planes(const struct windows_product *c, const struct tile_range *r, val from, val to, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    struct planes_loop l = open_planes(c, r, from, to, acc);
    for (int64_t row = 0; row < win->y.kernel; row++)
        add_kernel_row(c, r->t, ix_add(k, l.plane.step, k_int(k, row * win->x.kernel)),
                       ix_add(k, l.plane.at, k_int(k, row * windows_step_y(win))), acc);
    close_planes(c, &l, acc);
}

/* Is a plane written out?  Of larger kernels its own loops count little, and its code would be long. */
static bool writes_planes(const struct windows_product *c)
{
    enum { MOST = 100 }; /* products of two vectors */
    return windows_plane_steps(c->win) * c->d->mr * c->d->nr <= MOST * WINDOWS_CHANNELS && c->win->y.gap == 1;
}

/* The products of rows `from` to `to` of the kernel: of whole planes all of whose rows are in the image, and before and
 * after them of the other rows. */
static void add_kernel_rows(const struct windows_product *c, const struct windows_tile *t, val origin, val from, val to,
                            val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    val z = number_z(c, t), y = number_y(c, t);
    const struct tile_range r = {t, origin, windows_in_image(k, &win->z, z), windows_in_image(k, &win->y, y),
                                 windows_first_element(k, &win->z, z).kernel,
                                 windows_first_element(k, &win->y, y).kernel};
    const bool whole = windows_blocks_of(c, windows_plane_steps(win));
    val carry[MAX_ROWS], pass = 0, zero = k_int(k, 0);
    if (!writes_planes(c)) {
        add_rows(c, &r, from, to, acc);
        return;
    }
    val above = ix_div(k, ix_add(k, to, k_int(k, win->y.kernel - 1)), win->y.kernel);
    val first = ix_div(k, ix_add(k, from, k_int(k, win->y.kernel - 1)), win->y.kernel);
    val end = ix_div(k, to, win->y.kernel);
    if (r.y.first) {
        val all = k_prim(k, P_AND, k_prim(k, P_EQ, r.y.first, zero, 0),
                         k_prim(k, P_EQ, r.y.end, k_int(k, win->y.kernel), 0), 0);
        first = k_prim(k, P_SELECT, all, first, above);
        ix_assume_range(k, first, 0, win->channels * win->z.kernel);
    }
    if (!whole) /* twice: after the whole planes, there are only rows */
        pass = windows_open_sums(c, zero, k_int(k, 2), acc, carry);
    if (!whole || r.y.first) {
        val begin = ix_scale(k, first, win->y.kernel), rows_from = from, rows_to = k_min(k, begin, to);
        if (!whole) {
            val again = k_prim(k, P_EQ, pass, k_int(k, 1), 0);
            rows_from = k_prim(k, P_SELECT, again, k_max(k, begin, ix_scale(k, end, win->y.kernel)), from);
            rows_to = k_prim(k, P_SELECT, again, to, rows_to);
            ix_assume_range(k, rows_from, 0, (win->channels * win->z.kernel + 1) * win->y.kernel);
            end = k_prim(k, P_SELECT, again, zero, end);
        }
        ix_assume_range(k, rows_to, 0, win->channels * win->z.kernel * win->y.kernel);
        add_rows(c, &r, rows_from, rows_to, acc);
    }
    add_planes(c, &r, first, end, acc);
    if (!whole)
        windows_close_sums(c, pass, acc, carry);
}

/* The products of the part of the k-block, added to the chains. */
static void add_block_part(const struct windows_product *c, const struct windows_tile *t, val origin, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    const bool whole = c->d->blocks == 1 || c->d->kblock % win->x.kernel == 0; /* rows of the kernel in each block */
    val from = ix_div(k, ix_add(k, c->from, k_int(k, whole ? 0 : win->x.kernel - 1)), win->x.kernel);
    val to = ix_div(k, c->to, win->x.kernel);
    if (!whole)
        add_each(c, t, c->from, k_min(k, ix_scale(k, from, win->x.kernel), c->to), acc);
    add_kernel_rows(c, t, origin, from, to, acc);
    if (!whole)
        add_each(c, t, k_max(k, ix_scale(k, to, win->x.kernel), c->from), c->to, acc);
}

/* Ends the chains of one k-block, of which `at` is the place of the lane's first result in scratch. */
static void end_chains(const struct windows_product *c, const struct windows_tile *t, val at, val *acc)
{
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    if (windows_pad(&c->win->z) || windows_pad(&c->win->y) || c->win->x.gap > 1 ||
        (t->at >= 0 && windows_pad(&c->win->x))) {
        val carry[MAX_ROWS], zero = k_splat(k, k_bits(k, d->dtype, 0));
        val again = windows_open_sums(c, k_int(k, 0), windows_has_special(c, acc), acc, carry);
        for (int64_t i = 0; i < d->mr; i++)
            acc[i] = zero;
        add_each(c, t, c->k0, c->end, acc);
        windows_close_sums(c, again, acc, carry);
    }
    windows_add_chains(c, at, acc);
}

/* Prefetches where the tile's results will be stored, which is when all of the task are computed: lines of as many rows
 * as there are channels, each on another page. */
static void prefetch_results(const struct windows_product *c, val first)
{
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    val last = d->blocks > 1 ? k_prim(k, P_EQ, c->kb, k_int(k, d->blocks - 1), 0) : 0;
    last = windows_and(k, last, c->parts > 1 ? k_prim(k, P_EQ, c->part, k_int(k, c->parts - 1), 0) : 0);
    val open = last ? k_if(k, last) : 0;
    ix_assume_below(k, first, d->len.n);
    for (int64_t i = 0; i < d->nr; i++)
        dot_prefetch_result(d, ix_add(k, c->m0, k_int(k, i)), first);
    if (open)
        k_end(k, open);
}

void windows_tile_emit(const struct windows_product *c, const struct windows_tile *t)
{
    const struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const bool parts = c->parts > 1;
    val acc[MAX_ROWS], open = 0;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->nr), 1);
    val origin = window_origin(c, t), zero = k_splat(k, k_bits(k, d->dtype, 0));
    val first = ix_add(k, ix_scale(k, t->row, c->win->x.out), t->column);
    val at = ix_add(k, ix_scale(k, ix_sub(k, first, c->n0), d->nr), w->lane);
    for (int64_t i = 0; i < d->mr; i++) {
        acc[i] = zero;
        if (parts)
            acc[i] = k_prim(k, P_SELECT, k_prim(k, P_EQ, c->part, k_int(k, 0), 0), zero,
                            k_load(k, c->chains, ix_add(k, at, k_int(k, i * c->apart * d->nr)), 0));
    }
    prefetch_results(c, first);
    add_block_part(c, t, origin, acc);
    if (parts) {
        val last = k_int(k, c->parts - 1);
        open = k_if(k, k_prim(k, P_LT, c->part, last, 0));
        for (int64_t i = 0; i < d->mr; i++)
            k_store(k, c->chains, ix_add(k, at, k_int(k, i * c->apart * d->nr)), acc[i], 0);
        k_end(k, open);
        open = k_if(k, k_prim(k, P_EQ, c->part, last, 0));
    }
    end_chains(c, t, at, acc);
    if (open)
        k_end(k, open);
    k_end(k, w->lane);
    w->lane = 0;
}

