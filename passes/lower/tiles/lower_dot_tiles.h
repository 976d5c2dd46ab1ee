/* Products by a processor's tiles of bf16: what emitting and choosing share. */
#ifndef KILN_LOWER_DOT_TILES_H
#define KILN_LOWER_DOT_TILES_H
#include "passes/lower/dot/lower_dot.h"

/* Rows and columns of a tile of results, elements of the contraction that a step multiplies, tiles beside each other in
 * one direction, and registers for tiles. */
enum { SIDE = 16, DEPTH = EVEN_ODD_BLOCK, MAX_SIDES = 3, REGISTERS = 8 };

static inline int64_t tiles_rounded(int64_t n, int64_t side) { return dot_parts(n, side) * side; }

#endif
