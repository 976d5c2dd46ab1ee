/* Execution modes of floats in SPIR-V that was compiled from source.c's text. */
#ifndef KILN_FLOAT_MODES_H
#define KILN_FLOAT_MODES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the SPIR-V asks that signs of zeros, infinities and NaN of 32 bits are kept, asks the same of 64 bits if it has
 * such floats.  *out: SPIR-V that free() releases, or NULL if there is nothing to change.  Returns false if memory is
 * out. */
bool float_modes(const uint32_t *spirv, size_t words, uint32_t **out, size_t *out_words);

#endif
