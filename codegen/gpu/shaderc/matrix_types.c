/* The types of cooperative matrices in SPIR-V that was compiled from source_opaque.c's text.  There a type has a number
 * in place of the type of its elements, because GL_EXT_spirv_intrinsics knows no other operands.  A type of elements
 * must come before the matrices' type, and must be declared once. */
#include "matrix_types.h"
#include <stdlib.h>
#include <string.h>

enum { HEADER = 5, BOUND = 3, TYPE_FLOAT = 22, FLOAT_WORDS = 4 };

static const uint32_t numbers[MATRIX_TYPES] = {MATRIX_F16, MATRIX_F32, MATRIX_BF16};

static unsigned spirv_opcode(const uint32_t *w) { return *w & 0xffff; }

/* The length of the instruction at word i, if there are so many words; else 0. */
static size_t spirv_length(const uint32_t *w, size_t i, size_t words)
{
    size_t n = w[i] >> 16;
    return n && n <= words - i ? n : 0;
}

/* Which of the numbers' types does an instruction declare?  MATRIX_TYPES: none.  bf16 is a type of 16 bits with an
 * encoding, which is 0. */
static unsigned spirv_declared_type(const uint32_t *w)
{
    size_t n = *w >> 16;
    if (spirv_opcode(w) == TYPE_FLOAT && n >= 3)
        for (unsigned t = 0; t < MATRIX_TYPES; t++)
            if (numbers[t] == MATRIX_BF16 ? n == FLOAT_WORDS && w[2] == 16 && !w[3] : n == 3 && w[2] == numbers[t])
                return t;
    return MATRIX_TYPES;
}

static size_t put_float(uint32_t *out, uint32_t id, unsigned type)
{
    bool bf16 = numbers[type] == MATRIX_BF16;
    uint32_t words = bf16 ? FLOAT_WORDS : FLOAT_WORDS - 1;
    out[0] = words << 16 | TYPE_FLOAT;
    out[1] = id;
    out[2] = bf16 ? 16 : numbers[type];
    out[3] = 0;
    return words;
}

/* The number's place in `numbers`; MATRIX_TYPES: it is none of them. */
static unsigned type_number(uint32_t word)
{
    unsigned t = 0;
    while (t < MATRIX_TYPES && numbers[t] != word)
        t++;
    return t;
}

bool matrix_types(const uint32_t *spirv, size_t words, uint32_t **out, size_t *out_words)
{
    uint32_t id[MATRIX_TYPES] = {0};
    bool any = false, put[MATRIX_TYPES] = {0};
    *out = NULL;
    for (size_t i = HEADER, n; i < words && (n = spirv_length(spirv, i, words)); i += n) {
        unsigned t = spirv_declared_type(spirv + i);
        any |= spirv_opcode(spirv + i) == MATRIX_TYPE;
        if (t < MATRIX_TYPES)
            id[t] = spirv[i + 1];
    }
    if (!any)
        return true;
    uint32_t *w = malloc((words + MATRIX_TYPES * FLOAT_WORDS) * sizeof *w);
    if (!w)
        return false;
    memcpy(w, spirv, HEADER * sizeof *w);
    size_t at = HEADER;
    for (size_t i = HEADER, n; i < words && (n = spirv_length(spirv, i, words)); i += n) {
        bool matrix = spirv_opcode(spirv + i) == MATRIX_TYPE && n > 2;
        unsigned t = matrix ? type_number(spirv[i + 2]) : spirv_declared_type(spirv + i);
        if (t < MATRIX_TYPES && matrix && !put[t]) {
            id[t] = id[t] ? id[t] : w[BOUND]++;
            at += put_float(w + at, id[t], t);
        }
        if (t < MATRIX_TYPES && !matrix && put[t])
            continue; /* it was moved */
        memcpy(w + at, spirv + i, n * sizeof *w);
        if (t < MATRIX_TYPES && matrix)
            w[at + 2] = id[t];
        if (t < MATRIX_TYPES)
            put[t] = true;
        at += n;
    }
    *out = w;
    *out_words = at;
    return true;
}
