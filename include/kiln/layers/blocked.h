/* Matrices stored tile by tile.  Included by <kiln/kiln.h>; see storage.h.
 *
 * A blocked tensor is a matrix [M, N] with one part, [M / block, N / block, block, block], so that each tile is
 * contiguous in memory.  Elementwise ops on matrices of one block, and with numbers, transpose, matmul of two and cast
 * keep the tiles; anything else takes kl_dense of it, and gives a plain tensor.  kl_grad in one is blocked. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_BLOCKED_H
#define KILN_BLOCKED_H

#ifdef __cplusplus
extern "C" {
#endif

/* Both lengths of the matrix are multiples of the block.  [SHAPE] */
KL_API_AT kl_tensor kl_blocked(kl_tensor a, int64_t block);

#ifdef __cplusplus
}
#endif
#endif
