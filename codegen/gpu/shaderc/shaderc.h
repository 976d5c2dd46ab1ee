/* What libkiln-shaderc.so, the compiler of GLSL, gives to the library that opens it: no type of Kiln's crosses over. */
#ifndef KILN_SHADERC_H
#define KILN_SHADERC_H
#include <stdbool.h>
#include <stddef.h>

struct shaderc_module {
    unsigned abi;                                     /* SHADERC_ABI it was built with */
    void (*version)(char *out, size_t size);
    /* A compute shader as SPIR-V, or (text) its assembly: bytes of *out, shaderc's own until `release` of the result.
     * false: *log says why, as long.  NULL: out of memory.  Safe in any thread. */
    void *(*compile)(const char *source, size_t len, bool text, bool *ok, const char **out, size_t *size,
                     const char **log);
    void (*release)(void *result);
};
#define SHADERC_ABI 1u

#endif
