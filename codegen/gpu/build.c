/* Compiles a kernel to source text and to a binary, with a header that a launch needs. */
#include "codegen/gpu/compilers/compile.h"
#include "codegen/gpu_code.h"
#include "gpu_sources.h"
#include "source.h"
#include <pthread.h>
#include <string.h>

static bool gpu_build_build(const struct kernel *k, const char *language, const char *arch, const char *features,
                            enum emit_kind kind,
                  struct code *out, struct err *e)
{
    const struct dialect *d = dialect_find(language, e);
    const struct gpu_compiler *c = gpu_compiler_find(language, e);
    struct text source = {0};
    struct source_info info = {0};
    struct code binary = {0};
    struct err why = {0};
    *out = (struct code){0};
    if (kind == EMIT_LLVM)
        return err_set(e, KL_ERR_ARGUMENT, "kernels for a GPU have no stage llvm");
    if (!d || !c)
        return false;
    const struct dialect own = dialect_for(d, features);
    dialect_prelude(&own, features, &source);
    bool ok = source_kernel(k, &own, "kernel", &source, &info, e);
    if (ok && !c->compile(source.s, arch ? arch : c->arch[0], kind == EMIT_ASM ? GPU_ASSEMBLY : GPU_BINARY, &binary,
                          &why))
        ok = why.code == KL_ERR_COMPILE ? err_set(e, why.code, "kernel %s: %s", k->name, why.msg)
                                        : err_set(e, why.code, "%s", why.msg);
    if (ok && kind == EMIT_ASM)
        *out = binary;
    else if (ok)
        ok = gpu_code_join(&info, k, "kernel", &binary, (struct hash128){0}, out, e);
    if (!ok || kind != EMIT_ASM)
        mem_free(binary.bytes);
    source_info_free(&info);
    mem_free(source.s);
    return ok;
}

/* Kernels that are functions of one module: the compiler starts once for all.  Their machine code is the same as
 * without the others. */
static bool gpu_build_module(const struct kernel *const *k, uint32_t n, const char *language, const char *arch,
                             const char *features, struct code *out, struct code *module, struct err *e)
{
    const struct dialect *d = dialect_find(language, e);
    const struct gpu_compiler *c = gpu_compiler_find(language, e);
    struct text source = {0};
    *module = (struct code){0};
    for (uint32_t i = 0; i < n; i++)
        out[i] = (struct code){0};
    struct source_info *info = d && c ? mem_alloc((n + 1) * sizeof *info) : NULL;
    if (!info)
        return d && c ? err_set(e, KL_ERR_MEMORY, "out of memory compiling %u kernels", n) : false;
    const struct dialect own = dialect_for(d, features);
    char (*function)[GPU_FUNCTION_SIZE] = mem_alloc((n + 1) * sizeof *function);
    bool ok = function || err_set(e, KL_ERR_MEMORY, "out of memory compiling %u kernels", n);
    dialect_prelude(&own, features, &source);
    for (uint32_t i = 0; ok && i < n; i++) {
        snprintf(function[i], sizeof *function, "kernel_%u", i);
        ok = source_kernel(k[i], &own, function[i], &source, &info[i], e);
    }
    ok = ok && c->compile(source.s, arch, GPU_BINARY, module, e);
    const struct hash128 hash = ok ? bytes_hash(module->bytes, module->size) : (struct hash128){0};
    for (uint32_t i = 0; ok && i < n; i++)
        ok = gpu_code_join(&info[i], k[i], function[i], NULL, hash, &out[i], e);
    for (uint32_t i = 0; i < n; i++) {
        source_info_free(&info[i]);
        if (!ok)
            mem_free(out[i].bytes);
    }
    if (!ok)
        mem_free(module->bytes);
    mem_free(function);
    mem_free(info);
    mem_free(source.s);
    return ok;
}

/* ---- Vulkan ---- */

static bool vulkan_for(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out,
                       struct err *e)
{
    return gpu_build_build(k, "glsl", NULL, target->features, kind, out, e);
}

static bool vulkan_any(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    return gpu_build_build(k, "glsl", NULL, NULL, kind, out, e);
}

/* ---- CUDA and HIP: one architecture at a time ---- */

struct arch { char name[64]; };

static struct arch arch_of(const struct caps *target)
{
    struct arch a;
    size_t n = strcspn(target->features, " ");
    snprintf(a.name, sizeof a.name, "%.*s", (int)(n < sizeof a.name ? n : sizeof a.name - 1), target->features);
    return a;
}

#define LANGUAGE(L)                                                                                               \
    static bool L##_for(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out, \
                           struct err *e)                                                                         \
    {                                                                                                             \
        return gpu_build_build(k, #L, arch_of(target).name, target->features, kind, out, e);                      \
    }                                                                                                             \
    static bool L##_module(const struct kernel *const *k, uint32_t n, const struct caps *target,                  \
                              struct code *out, struct code *module, struct err *e)                               \
    {                                                                                                             \
        return gpu_build_module(k, n, #L, arch_of(target).name, target->features, out, module, e);                \
    }                                                                                                             \
    static bool L##_any(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)             \
    {                                                                                                             \
        return gpu_build_build(k, #L, NULL, NULL, kind, out, e);                                                  \
    }
LANGUAGE(cuda)
LANGUAGE(hip)

/* ---- versions ---- */

enum { CUDA, HIP, VULKAN, LANGUAGES };
static char version_text[LANGUAGES][256];
static pthread_once_t version_once[LANGUAGES] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};

static void make_version(int language)
{
    static const char *const name[] = {"cuda", "hip", "vulkan"}, *const dialect[] = {"cuda", "hip", "glsl"};
    struct err ignored = {0};
    char compiler[128] = "no compiler";
    const struct gpu_compiler *c = gpu_compiler_find(dialect[language], &ignored);
    if (c)
        c->version(compiler, sizeof compiler, &ignored);
    snprintf(version_text[language], sizeof version_text[language], "%s, %s, sources " GPU_SOURCES, name[language],
             compiler);
}

static void make_cuda(void) { make_version(CUDA); }
static void make_hip(void) { make_version(HIP); }
static void make_vulkan(void) { make_version(VULKAN); }

static const char *gpu_build_version(int language)
{
    static void (*const make[])(void) = {make_cuda, make_hip, make_vulkan};
    pthread_once(&version_once[language], make[language]);
    return version_text[language];
}

static const char *cuda_version(void) { return gpu_build_version(CUDA); }
static const char *hip_version(void) { return gpu_build_version(HIP); }
static const char *vulkan_version(void) { return gpu_build_version(VULKAN); }

const struct backend backend_cuda = {.name = "cuda", .abi = KERNEL_ABI, .version = cuda_version, .compile = cuda_any,
                                     .compile_for = cuda_for, .compile_module = cuda_module};
const struct backend backend_hip = {.name = "hip", .abi = KERNEL_ABI, .version = hip_version, .compile = hip_any,
                                    .compile_for = hip_for, .compile_module = hip_module, .serial = true};
const struct backend backend_vulkan = {.name = "vulkan", .abi = KERNEL_ABI, .version = vulkan_version,
                                       .compile = vulkan_any,
                                       .compile_for = vulkan_for};
