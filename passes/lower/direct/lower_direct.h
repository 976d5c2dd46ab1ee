/* Direct convolutions: what emitting and choosing share. */
#ifndef KILN_LOWER_DIRECT_H
#define KILN_LOWER_DIRECT_H
#include "passes/lower/dot/lower_dot.h"

/* MAX_SUMS: of a tile, vectors.  MAX_HELD: elements of the first operand that a task loads before its tiles, so that
 * registers hold some of them.  MAX_ELEMENTS: elements of a window, which are unrolled.  MAX_STEP: from
 * one element of an image to the next, with zeros between. */
enum { MAX_SUMS = 64, MAX_HELD = 16, MAX_ELEMENTS = 64, MAX_STEP = 4 };

#endif
