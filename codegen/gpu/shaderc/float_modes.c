/* Execution modes of floats in SPIR-V that was compiled from source.c's text.  GL_EXT_spirv_intrinsics knows one
 * declaration of a mode, but the mode stands once for each width of floats. */
#include "float_modes.h"
#include <stdlib.h>
#include <string.h>

enum { HEADER = 5, EXECUTION_MODE = 16, TYPE_FLOAT = 22, SIGNED_ZERO_INF_NAN_PRESERVE = 4461, MODE_WORDS = 4 };

/* The length of the instruction at word i, if there are so many words; else 0. */
static size_t instruction_length(const uint32_t *w, size_t i, size_t words)
{
    size_t n = w[i] >> 16;
    return n && n <= words - i ? n : 0;
}

bool float_modes(const uint32_t *spirv, size_t words, uint32_t **out, size_t *out_words)
{
    size_t mode = 0;
    bool f64 = false;
    *out = NULL;
    for (size_t i = HEADER, n; i < words && (n = instruction_length(spirv, i, words)); i += n) {
        unsigned op = spirv[i] & 0xffff;
        if (op == EXECUTION_MODE && n == MODE_WORDS && spirv[i + 2] == SIGNED_ZERO_INF_NAN_PRESERVE)
            mode = i;
        f64 |= op == TYPE_FLOAT && n > 2 && spirv[i + 2] == 64;
    }
    if (!mode || !f64)
        return true;
    uint32_t *w = malloc((words + MODE_WORDS) * sizeof *w);
    if (!w)
        return false;
    size_t behind = mode + MODE_WORDS;
    memcpy(w, spirv, behind * sizeof *w);
    memcpy(w + behind, spirv + mode, MODE_WORDS * sizeof *w);
    w[behind + MODE_WORDS - 1] = 64;
    memcpy(w + behind + MODE_WORDS, spirv + behind, (words - behind) * sizeof *w);
    *out = w;
    *out_words = words + MODE_WORDS;
    return true;
}
