/* Convolutions whose windows are read in place: what the task and its tiles share. */
#ifndef KILN_LOWER_WINDOWS_H
#define KILN_LOWER_WINDOWS_H
#include "passes/lower/dot/lower_dot.h"

/* Are there zeros at the sides of an axis, or between elements? */
static inline bool windows_pad(const struct window_axis *a) { return a->first > 0 || a->end < a->all || a->gap > 1; }

/* Elements of a window in a row, a plane and a channel of an image. */
static inline int64_t windows_plane_steps(const struct image_windows *win) { return win->y.kernel * win->x.kernel; }
static inline int64_t windows_steps(const struct image_windows *win)
{
    return win->z.kernel * windows_plane_steps(win);
}

static inline int64_t windows_positions(const struct image_windows *win) /* of an image */
{
    return win->z.out * win->y.out * win->x.out;
}

/* Elements of the images from one step of the kernel along an axis to the next, and those that the array lacks before
 * the first window. */
static inline int64_t windows_step_z(const struct image_windows *win)
{
    return win->z.dilation * win->y.length * win->x.length;
}
static inline int64_t windows_step_y(const struct image_windows *win) { return win->y.dilation * win->x.length; }
static inline int64_t windows_before(const struct image_windows *win)
{
    return (win->z.before * win->y.length + win->y.before) * win->x.length + win->x.before;
}

/* A task: NR channels and some results of each. */
struct windows_product {
    const struct dot *d;
    const struct image_windows *win;
    int64_t results, lanes;                      /* of a channel in a task; lanes of squares that are transposed */
    int64_t each;                                /* results of which squares are made: all, or of an image */
    val here;                                    /* 0, or the task's images, which may be fewer than it has room for */
    int64_t apart;                               /* a tile's results: 1, or the gap between the images' elements */
    uint32_t images, panel, chains, sums, square; /* lbufs; chains: of the k-block's parts so far */
    uint32_t max_magnitude;                      /* lbuf: the largest bits of a magnitude in the panel */
    val m0, n0;                                  /* the task's first channel and first result */
    val kb, k0, end;                             /* the k-block: its number, and first and last index + 1 */
    int64_t channels, parts;                     /* of images in a part of a k-block; parts of a k-block */
    val part, from, to;                          /* the part: its number, and first and last index + 1 */
};

/* ---- lower_windows.c ---- */
bool windows_facts(struct dot *d); /* sets d->windows, once; false: the product cannot be computed so */
/* Makes the scratch that tasks of both kinds have, and begins and ends what one does for each k-block; between them the
 * products are added to the sums. */
void windows_scratch(struct windows_product *c, uint32_t square);
void windows_begin_block(struct windows_product *c);
void windows_end_block(struct windows_product *c);
/* How many tiles of so many results at the left and at the right of a row have code of their own: if there are zeros at
 * the sides one each, and as many as have some if these zeros are not in memory. */
struct windows_edges { int64_t left, right; };
struct windows_edges dot_windows_edges(const struct dot *d, int64_t results);
/* Channels of images that a k-block may have products of. */
int64_t dot_windows_block_channels(const struct dot *d);

/* ---- lower_windows_sums.c ---- */
/* A loop that carries the tile's sums. */
val windows_open_sums(const struct windows_product *c, val from, val to, val *acc, val *carry);
void windows_close_sums(const struct windows_product *c, val loop, val *acc, const val *carry);
/* Such a loop, which carries an index of the images and a row of the panel, too. */
struct windows_loop { val loop, outer[MAX_ROWS], at, step; };
struct windows_loop windows_open_loop(const struct windows_product *c, val from, val to, val at, val step, val *acc);
void windows_close_loop(const struct windows_product *c, const struct windows_loop *l, int64_t at, int64_t step,
                        val *acc);
/* Both conditions, of which any may be 0: it always holds. */
val windows_and(struct kernel *k, val a, val b);
/* The condition that x is not in the zeros at the sides of the axis, and, the second, that none is an element there. */
val windows_is_between(struct kernel *k, val x, const struct window_axis *a);
val windows_is_element(struct kernel *k, val x, const struct window_axis *a);
val windows_element(struct kernel *k, val x, const struct window_axis *a); /* the array's, which may be outside of it */
/* Element `at` of the images where `in` is true, else 0 and nothing is loaded from outside of them; in = 0: always. */
val windows_load_in(const struct windows_product *c, val at, val in);
/* The first element from window `number` on: its number in the array, and in the window. */
struct windows_start { val element, kernel; };
struct windows_start windows_first_element(struct kernel *k, const struct window_axis *a, val number);
/* Which elements of window `number` along an axis are in the image: first to end - 1; NIL, NIL: all are for each. */
struct windows_range { val first, end; };
struct windows_range windows_in_image(struct kernel *k, const struct window_axis *a, val number);
/* The same range of elements of the window, counted from element `start` on by gaps. */
struct windows_range windows_by_gap(struct kernel *k, const struct window_axis *a, struct windows_range r, val start);
/* The part of `in`, of `length` elements that begin at `top`, from `from` to `to`; whole: all of it is. */
struct windows_range windows_range_here(struct kernel *k, const struct windows_range *in, int64_t length, bool whole,
                                        val from, val to, val top);
bool windows_blocks_of(const struct windows_product *c, int64_t steps); /* is each block a multiple of so many? */
/* 1 if the tile's sums are to be computed with all products, else 0. */
val windows_has_special(const struct windows_product *c, const val *acc);
/* Adds the chains of one k-block to the sums; `at` is the lane's first result in scratch. */
void windows_add_chains(const struct windows_product *c, val at, val *acc);

/* ---- lower_windows_tile.c ---- */
/* MR results of a row: the row, counted through all planes of all images, and their first column; at: its number, if it
 * is known, so that they leave out columns of the kernel that are outside of the image; else -1.  phase: the number
 * modulo the gap between elements. */
struct windows_tile { val row, column; int64_t at, phase; };
/* The products of a tile with the part of the k-block, whose sums are added to what is in scratch. */
void windows_tile_emit(const struct windows_product *c, const struct windows_tile *t);

/* ---- lower_windows_weights.c ---- */
int64_t windows_weight_tiles(const struct dot *d, int64_t results); /* tiles of so many results of a channel */

#endif
