/* GLSL to SPIR-V through shaderc, linked into a library of its own: it is large, C++, and needed by compiles alone. */
#include "shaderc.h"
#include "float_modes.h"
#include "matrix_types.h"
#include <pthread.h>
#include <shaderc/shaderc.h>
#include <stdio.h>
#include <stdlib.h>

/* What shaderc returned, and its SPIR-V if it was changed. */
struct compiled { shaderc_compilation_result_t result; uint32_t *spirv; };

/* One for good: making one parses all of GLSL's built-in functions. */
static shaderc_compiler_t compiler;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void make_compiler(void) { compiler = shaderc_compiler_initialize(); }

static void shaderc_module_version(char *out, size_t size)
{
    unsigned spirv, revision;
    shaderc_get_spv_version(&spirv, &revision);
    snprintf(out, size, "shaderc, SPIR-V %u.%u.%u", spirv >> 16, spirv >> 8 & 255, revision);
}

static void shaderc_module_release(void *result)
{
    struct compiled *c = result;
    shaderc_result_release(c->result);
    free(c->spirv);
    free(c);
}

/* Makes of compiled SPIR-V what its GLSL could not say.  No kernel needs both corrections: matrices of floats are not
 * multiplied in the graph's order.  *out: as of either.  false: memory is out. */
static bool correct_spirv(const uint32_t *spirv, size_t words, uint32_t **out, size_t *out_words)
{
    return matrix_types(spirv, words, out, out_words) && (*out || float_modes(spirv, words, out, out_words));
}

/* Unoptimized: what shaderc's optimizer does, drivers do again. */
static void *shaderc_module_compile(const char *source, size_t len, bool text, bool *ok, const char **out, size_t *size,
                                    const char **log)
{
    pthread_once(&once, make_compiler);
    shaderc_compiler_t c = compiler;
    shaderc_compile_options_t o = c ? shaderc_compile_options_initialize() : NULL;
    shaderc_compilation_result_t r = NULL;
    if (o) {
        shaderc_compile_options_set_target_env(o, shaderc_target_env_vulkan, shaderc_env_version_vulkan_1_2);
        r = text ? shaderc_compile_into_spv_assembly(c, source, len, shaderc_compute_shader, "kernel", "main", o)
                 : shaderc_compile_into_spv(c, source, len, shaderc_compute_shader, "kernel", "main", o);
        shaderc_compile_options_release(o);
    }
    struct compiled *both = r ? calloc(1, sizeof *both) : NULL;
    if (!both) {
        shaderc_result_release(r);
        return NULL;
    }
    both->result = r;
    *ok = shaderc_result_get_compilation_status(r) == shaderc_compilation_status_success;
    *out = shaderc_result_get_bytes(r);
    *size = shaderc_result_get_length(r);
    *log = shaderc_result_get_error_message(r);
    size_t words = *size / sizeof *both->spirv;
    if (*ok && !text && !correct_spirv((const uint32_t *)*out, words, &both->spirv, &words)) {
        shaderc_module_release(both);
        return NULL;
    }
    if (both->spirv) {
        *out = (const char *)both->spirv;
        *size = words * sizeof *both->spirv;
    }
    return both;
}

__attribute__((visibility("default"))) const struct shaderc_module *kiln_shaderc(void);
const struct shaderc_module *kiln_shaderc(void)
{
    static const struct shaderc_module m = {SHADERC_ABI, shaderc_module_version, shaderc_module_compile,
                                            shaderc_module_release};
    return &m;
}
