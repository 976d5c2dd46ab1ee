/* Direct convolutions: what emitting and choosing share. */
#ifndef KILN_LOWER_DIRECT_H
#define KILN_LOWER_DIRECT_H
#include "passes/lower/dot/lower_dot.h"

/* MAX_SUMS: of a tile, vectors.  MAX_HELD: elements of the first operand that a task loads before its tiles, so that
 * registers hold some of them.  MAX_ELEMENTS: elements of a window, which are unrolled.  MAX_STEP: from
 * one element of an image to the next, with zeros between. */
enum { MAX_SUMS = 64, MAX_HELD = 16, MAX_ELEMENTS = 64, MAX_STEP = 4 };

/* Does a tile load each row of an image once, for all rows of windows that have it?  So it does of large windows of
 * adjacent columns that one filter has, and a tile of two vectors then loads each of the filter's elements half as
 * often: on one thread with AVX-512, 7x7 of 96 channels of 56x56 takes 0.85 of the time, 5x5 of 144 channels 0.86. */
bool dot_direct_reads_rows(const struct dot *d);
/* May a task's images, all channels of one, be widened into scratch first?  Sets what they are. */
bool dot_direct_copies(const struct dot *d, struct image_windows *images);

struct direct {
    struct dot *d;
    const struct dot_direct *z;
    int64_t rows;        /* of columns in a tile */
    bool holds;          /* the first operand's elements are loaded before the tiles */
    bool has_zeros;      /* between elements, whose products are left out */
    val a[MAX_HELD];
    val m0, n0, outer;   /* the task's first row of the first operand; first element of windows; image */
    val batch;           /* of the lanes that are of the batch: without these */
    uint32_t sums;       /* lbuf, if it has: the sums of a tile */
    uint32_t max_magnitude; /* lbuf, likewise: the largest bits of magnitudes of the first operand, a part of them in
                               each lane */
    struct direct_parts *parts; /* of lanes in the batch, or NULL: a tile's sums have all products at once */
    const struct segment *down, *along; unsigned ndown, nalong;
};

/* Tiles first to first + count - 1 of an axis, each of `length` elements. */
struct segment { int64_t first, count, length; };
enum { MAX_SEGMENTS = 4 };

struct direct_tile { int64_t rows, columns; val row, column; };

/* A contraction in parts of some lines each.  Lbufs for the task: the chains of a k-block so far, and the sums of the
 * blocks before, if there are several. */
struct direct_parts {
    uint32_t chains, sums;
    int64_t lines, each;       /* lines of a part; sums of a column tile */
    bool whole;                /* each part has whole images */
    val first, here, from, to; /* the number of the block's first part; the part: number, and its lines; 0: all are
                                  done */
};

/* ---- lower_direct.c ---- */
/* Opens the loop over a segment's tiles, of those from `from` to `to` (0: all), and returns the first element of the
 * tile.  tile: the length of a whole one.  *loop: 0 if there is none. */
val direct_open_segment(struct kernel *k, const struct segment *s, int64_t tile, val from, val to, val *loop);
void direct_close_segment(struct kernel *k, val loop);
/* A loop that carries sums. */
val direct_begin_chains(struct kernel *k, val count, int64_t n, val *acc, val *carry);
void direct_end_chains(struct kernel *k, val loop, int64_t n, val *acc, const val *carry);

/* ---- lower_direct_sums.c: lanes of the batch ---- */
/* The task's sums are made in parts: their scratch. */
void direct_begin_parts(struct direct *c, struct direct_parts *p, const struct schedule *s, int64_t elements);
/* The sums of mr rows and n elements of a task's matrices of the batch, of which `matrix` is the first. */
void direct_emit_sums(struct direct *c, val matrix, int64_t matrices, int64_t mr, int64_t n);

#endif
