/* The types of cooperative matrices in SPIR-V that was compiled from source_opaque.c's text. */
#ifndef KILN_MATRIX_TYPES_H
#define KILN_MATRIX_TYPES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* OpTypeCooperativeMatrixKHR, and the numbers that the text has in place of the type of its elements */
enum { MATRIX_TYPE = 4456, MATRIX_F16 = 16, MATRIX_F32 = 32, MATRIX_BF16 = 116, MATRIX_TYPES = 3 };

/* Replaces these numbers by the types.  *out: SPIR-V that free() releases, or NULL if there are no such types.  Returns
 * false if memory is out. */
bool matrix_types(const uint32_t *spirv, size_t words, uint32_t **out, size_t *out_words);

#endif
