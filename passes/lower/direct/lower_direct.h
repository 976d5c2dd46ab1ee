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

#endif
