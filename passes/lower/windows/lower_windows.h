/* Convolutions whose windows are read in place: what the task and its tiles share. */
#ifndef KILN_LOWER_WINDOWS_H
#define KILN_LOWER_WINDOWS_H
#include "passes/lower/dot/lower_dot.h"

/* Are there zeros at the sides of an axis? */
static inline bool windows_pad(const struct window_axis *a) { return a->first > 0 || a->end < a->all; }

/* Elements of a window in a row, a plane and a channel of an image. */
static inline int64_t windows_plane_steps(const struct image_windows *win) { return win->y.kernel * win->x.kernel; }
static inline int64_t windows_steps(const struct image_windows *win)
{
    return win->z.kernel * windows_plane_steps(win);
}

struct windows_product {
    const struct dot *d;
    const struct image_windows *win;
    int64_t rows, lanes;                         /* rows of results in a task; lanes of squares that are transposed */
    uint32_t images, panel, chains, sums, square, most; /* lbufs; chains: of the k-block's parts so far; most: the
                                                           largest bits of a weight's magnitude */
    val m0, row0;                                /* the task's first channel and first row of results */
    val kb, k0, end;                             /* the k-block: its number, and first and last index + 1 */
    int64_t channels, parts;                     /* of images in a part of a k-block; parts of a k-block */
    val part, from, to;                          /* the part: its number, and first and last index + 1 */
};

/* MR adjacent results: their row, counted through all planes of all images, their first column, and which of them may
 * leave out which columns of the kernel: those whose windows begin at `at`, or any if that is -1. */
struct windows_tile { val row, column; int64_t at; };

/* ---- lower_windows.c ---- */
/* How many tiles of so many results at the left and at the right of a row have code of their own: if there are zeros at
 * the sides one each, and as many as have some if these zeros are not in memory. */
struct windows_edges { int64_t left, right; };
struct windows_edges dot_windows_edges(const struct dot *d, int64_t results);
/* Channels of images that a k-block may have products of. */
int64_t dot_windows_block_channels(const struct dot *d);
/* ---- lower_windows_tile.c ---- */
/* The products of a tile with the part of the k-block, whose sums are added to what is in scratch. */
void windows_tile_emit(const struct windows_product *c, const struct windows_tile *t);

#endif
