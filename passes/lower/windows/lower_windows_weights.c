/* The gradient of a convolution in its weights, without packed windows: a product of dy [channels, positions] and the
 * windows of images, whose positions are contracted.
 *
 * Lanes are channels, as in lower_windows.c: dy of NR of them is transposed into a panel, a k-block at a time.  The
 * rows of a tile are elements of the windows of one channel of the images: those of a plane of the kernel, or of one of
 * its rows if a plane has too many for the registers.  For each position, in order, they are multiplied by one row of
 * the panel, so that what is packed is dy, not the windows, which are larger by the number of a window's elements.
 *
 * Adjacent positions at which the same of the tile's elements are in the image, a segment, have code of their own, so
 * that the products of padding are left out, as in lower_windows.c, and planes of positions for which the tile is
 * outside of the image are skipped. */
#include "lower_windows.h"

/* ---- facts ---- */

bool dot_windows_weights_fits(struct dot *d)
{
    if (!windows_facts(d) || !d->windows.contracted || !windows_tile_rows(&d->windows))
        return false;
    dot_find_steps(d);
    return true;
}

int64_t windows_weight_tiles(const struct dot *d, int64_t results) { return d->size.n / results; }

/* ---- the kernel ---- */

/* A tile: its channel, its plane and first row of the kernel, and how many of the kernel's rows it has. */
struct weights_tile { val channel, z, y; int64_t rows; };

/* The axis with windows and elements exchanged: the windows of which an element is in the image. */
static struct window_axis exchange_axis(const struct window_axis *a)
{
    struct window_axis x = *a;
    x.out = a->kernel;
    x.kernel = a->out;
    x.stride = a->dilation;
    x.dilation = a->stride;
    return x;
}

/* The element of the images at which the window at (image, z, y, 0) has the tile's first element; it may be outside. */
static val tile_origin(const struct windows_product *c, const struct weights_tile *t, val image, val z, val y)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    val group = ix_add(k, ix_scale(k, image, win->groups), c->d->batch_index);
    val channel = ix_scale(k, ix_add(k, ix_scale(k, group, win->channels), t->channel), windows_channel(win));
    val to_z = ix_add(k, ix_scale(k, z, win->z.stride), ix_scale(k, t->z, win->z.dilation));
    val to_y = ix_add(k, ix_scale(k, y, win->y.stride), ix_scale(k, t->y, win->y.dilation));
    val at = ix_scale(k, ix_add(k, ix_scale(k, to_z, win->y.length), to_y), win->x.length);
    return ix_sub(k, ix_add(k, channel, at), k_int(k, windows_before(win)));
}

/* The products of one position with the tile's elements in the sets of rows and columns. */
static void add_position(const struct windows_product *c, const struct weights_tile *t, val step, val at, uint32_t rows,
                         uint32_t columns, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    val dy = k_load(k, c->panel, ix_add(k, ix_scale(k, step, c->d->nr), c->d->w->lane), 0);
    for (int64_t y = 0; y < t->rows; y++)
        for (int64_t x = 0; x < win->x.kernel; x++)
            if (rows >> y & columns >> x & 1) {
                val place = ix_add(k, at, k_int(k, y * windows_step_y(win) + x * win->x.dilation));
                val *sum = &acc[y * win->x.kernel + x];
                *sum = dot_multiply_add(k, k_load(k, c->images, place, 0), dy, *sum);
            }
}

/* The positions of a row of windows, number `row` of all images, in the k-block. */
static void add_row(const struct windows_product *c, const struct weights_tile *t, val row, val origin, uint32_t rows,
                    val *acc)
{
    const struct window_axis *x = &c->win->x;
    struct kernel *k = c->d->w->k;
    const bool whole = windows_blocks_of(c, x->out);
    struct window_segment s[WINDOW_SEGMENTS];
    val step = ix_sub(k, ix_scale(k, row, x->out), c->k0), last = ix_sub(k, c->end, ix_scale(k, row, x->out));
    for (unsigned i = 0, n = windows_segments(x, s); i < n; i++) {
        val from = k_int(k, s[i].first), to = k_int(k, s[i].end);
        if (whole && s[i].end == s[i].first + 1) {
            add_position(c, t, ix_add(k, step, from), ix_add(k, origin, ix_scale(k, from, x->stride)), rows, s[i].in,
                         acc);
            continue;
        }
        if (!whole) {
            from = k_max(k, from, ix_scale(k, step, -1));
            to = k_min(k, to, last);
        }
        struct windows_loop l = windows_open_loop(c, from, to, ix_add(k, origin, ix_scale(k, from, x->stride)),
                                                  ix_add(k, step, from), acc);
        add_position(c, t, l.step, l.at, rows, s[i].in, acc);
        windows_close_loop(c, &l, x->stride, 1, acc);
    }
}

/* The rows r of windows of a plane, at which the tile's rows of the kernel in the set `in` are in the
 * image; `first` is the plane's first row, counted through all images. */
static void add_rows_of_plane(const struct windows_product *c, const struct weights_tile *t, val image, val z,
                              val first, struct windows_range r, uint32_t in, val *acc)
{
    struct kernel *k = c->d->w->k;
    val carry[MAX_ROWS], y = windows_open_sums(c, r.first, r.end, acc, carry);
    ix_bound(k, y, 0, c->win->y.out - 1);
    add_row(c, t, ix_add(k, first, y), tile_origin(c, t, image, z, y), in, acc);
    windows_close_sums(c, y, acc, carry);
}

/* The rows of plane z of an image, as add_block says of planes. */
static void add_plane(const struct windows_product *c, const struct weights_tile *t, val image, val z, val *acc)
{
    const struct image_windows *win = c->win;
    const struct window_axis ay = exchange_axis(&win->y);
    const int64_t length = win->y.out;
    const bool whole = windows_blocks_of(c, length * win->x.out);
    struct kernel *k = c->d->w->k;
    struct window_segment s[WINDOW_SEGMENTS] = {{.in = 1}};
    val first = ix_scale(k, ix_add(k, ix_scale(k, image, win->z.out), z), length);
    val from = ix_div(k, c->k0, win->x.out), to = ix_div(k, ix_add(k, c->end, k_int(k, win->x.out - 1)), win->x.out);
    for (unsigned i = 0, n = t->rows == 1 ? 1 : windows_segments(&win->y, s); i < n; i++) {
        struct windows_range r = {k_int(k, s[i].first), k_int(k, s[i].end)};
        if (t->rows == 1) /* which row of the kernel it is, the kernel computes */
            r = windows_in_image(k, &ay, t->y);
        r = windows_range_here(k, &r, length, whole, from, to, first);
        add_rows_of_plane(c, t, image, z, first, r, s[i].in, acc);
    }
}

/* All products of the k-block without those of padding: image by image, plane by plane. */
static void add_block(const struct windows_product *c, const struct weights_tile *t, val *acc)
{
    const struct image_windows *win = c->win;
    const struct window_axis az = exchange_axis(&win->z);
    const int64_t plane = win->y.out * win->x.out, planes = win->z.out;
    struct kernel *k = c->d->w->k;
    val outer[MAX_ROWS], inner[MAX_ROWS];
    val from = ix_div(k, c->k0, plane), to = ix_div(k, ix_add(k, c->end, k_int(k, plane - 1)), plane);
    val last = ix_div(k, ix_add(k, to, k_int(k, planes - 1)), planes);
    val image = windows_open_sums(c, ix_div(k, from, planes), last, acc, outer);
    ix_bound(k, image, 0, win->images - 1);
    struct windows_range r = windows_in_image(k, &az, t->z);
    r = windows_range_here(k, &r, planes, windows_blocks_of(c, plane * planes), from, to, ix_scale(k, image, planes));
    val z = windows_open_sums(c, r.first, r.end, acc, inner);
    ix_bound(k, z, 0, planes - 1);
    add_plane(c, t, image, z, acc);
    windows_close_sums(c, z, acc, inner);
    windows_close_sums(c, image, acc, outer);
}

/* The same, with the products of padding. */
static void add_each(const struct windows_product *c, const struct weights_tile *t, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    val carry[MAX_ROWS], step = windows_open_sums(c, c->k0, c->end, acc, carry);
    ix_bound(k, step, 0, c->d->size.k - 1);
    val row = ix_div(k, step, win->x.out), plane = ix_div(k, row, win->y.out);
    val y = ix_mod(k, row, win->y.out), z = ix_mod(k, plane, win->z.out), x = ix_mod(k, step, win->x.out);
    val origin = tile_origin(c, t, ix_div(k, plane, win->z.out), z, y);
    val dy = k_load(k, c->panel, ix_add(k, ix_scale(k, ix_sub(k, step, c->k0), c->d->nr), c->d->w->lane), 0);
    val at_z = ix_add(k, ix_scale(k, z, win->z.stride), ix_scale(k, t->z, win->z.dilation));
    val in_z = windows_is_between(k, at_z, &win->z);
    for (int64_t i = 0; i < c->d->mr; i++) {
        const int64_t row_of = i / win->x.kernel, column = i % win->x.kernel * win->x.dilation;
        val at_y = ix_add(k, ix_scale(k, y, win->y.stride),
                          ix_scale(k, ix_add(k, t->y, k_int(k, row_of)), win->y.dilation));
        val at_x = ix_add(k, ix_scale(k, x, win->x.stride), k_int(k, column));
        val in = windows_and(k, in_z, windows_and(k, windows_is_between(k, at_y, &win->y),
                                                  windows_is_between(k, at_x, &win->x)));
        val place = ix_add(k, origin, ix_add(k, at_x, k_int(k, row_of * windows_step_y(win))));
        acc[i] = dot_multiply_add(k, windows_load_in(c, place, in), dy, acc[i]);
    }
    windows_close_sums(c, step, acc, carry);
}

/* Tile number `number` of all. */
static void emit_tile(const struct windows_product *c, val number)
{
    const struct image_windows *win = c->win;
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    const int64_t rows = d->mr / win->x.kernel, each = win->y.kernel / rows;
    val acc[MAX_ROWS], carry[MAX_ROWS], plane = ix_div(k, number, each);
    const struct weights_tile t = {ix_div(k, plane, win->z.kernel), ix_mod(k, plane, win->z.kernel),
                                   ix_scale(k, ix_mod(k, number, each), rows), rows};
    d->w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, d->nr), 1);
    val zero = k_splat(k, k_bits(k, d->dtype, 0));
    for (int64_t i = 0; i < d->mr; i++)
        acc[i] = zero;
    add_block(c, &t, acc);
    if (windows_pad(&win->z) || windows_pad(&win->y) || windows_pad(&win->x)) {
        val again = windows_open_sums(c, k_int(k, 0), windows_has_special(c, acc), acc, carry);
        for (int64_t i = 0; i < d->mr; i++)
            acc[i] = zero;
        add_each(c, &t, acc);
        windows_close_sums(c, again, acc, carry);
    }
    val first = ix_sub(k, ix_scale(k, number, d->mr), c->n0);
    windows_add_chains(c, ix_add(k, ix_scale(k, first, d->nr), d->w->lane), acc);
    k_end(k, d->w->lane);
    d->w->lane = 0;
}

void dot_windows_weights_emit(struct dot *d, const struct schedule *s)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const int64_t tiles = s->dot_windows_weights.tiles;
    struct tasks t;
    d->mr = s->dot_windows_weights.mr;
    d->nr = s->dot_windows_weights.nr;
    const int64_t results = tiles * d->mr;
    struct windows_product c = {.d = d, .win = &d->windows, .results = results, .each = results, .apart = 1,
                                .parts = 1};
    windows_scratch(&c, s->dot_windows_weights.square);
    const int64_t groups = d->size.m / d->nr;
    const int64_t parts = windows_weight_tiles(d, d->mr) / tiles;
    val p = lower_tasks(w, d->size.batch * parts * groups, 0, &t), rest = ix_div(k, p, groups);
    val first = ix_scale(k, ix_mod(k, rest, parts), tiles);
    d->batch_index = ix_div(k, rest, parts);
    c.m0 = ix_scale(k, ix_mod(k, p, groups), d->nr);
    c.n0 = ix_scale(k, first, d->mr);
    windows_begin_block(&c);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, tiles), 1);
    emit_tile(&c, ix_add(k, first, i));
    k_end(k, i);
    windows_end_block(&c);
    lower_tasks_end(w, &t);
}
