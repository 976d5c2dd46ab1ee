/* Compiles a kernel to source text and to a binary, with a header that a launch needs. */
#include "build.h"
#include "codegen/gpu/compilers/compile.h"
#include "gpu_sources.h"
#include "source.h"
#include <pthread.h>
#include <stddef.h>
#include <string.h>

struct gpu_image_head {
    char magic[8];
    uint32_t threads, nbuf, dynamic_bytes, nview;
    char function[24];
    struct hash128 module;         /* as in struct gpu_code */
    uint64_t size;                 /* size of the binary; 0 if it is a module's.  Before the binary come the bytes of
                                      `local`, one per buffer, padded to a multiple of 8, and the views */
};
static const char magic[8] = {'K', 'I', 'L', 'N', 'G', 'P', 'U', '4'};

static size_t round_up_8(size_t n) { return (n + 7) & ~(size_t)7; }

static bool read_head(const struct code *c, struct gpu_image_head *h)
{
    if (c->size < sizeof *h)
        return false;
    memcpy(h, c->bytes, sizeof *h);
    return !memcmp(h->magic, magic, sizeof magic);
}

bool gpu_code_module(const struct code *c, struct hash128 *module)
{
    struct gpu_image_head h;
    *module = read_head(c, &h) ? h.module : (struct hash128){0};
    return module->lo || module->hi;
}

bool gpu_code_open(const struct code *c, const struct code *module, struct gpu_code *out, struct err *e)
{
    struct gpu_image_head h;
    bool ok = read_head(c, &h), shared = ok && (h.module.lo || h.module.hi);
    size_t before = ok ? sizeof h + round_up_8(h.nbuf) + h.nview * sizeof(struct gpu_view) : 0;
    if (!ok || c->size < before || c->size - before != h.size || !h.threads || h.threads > MAX_THREADS ||
        h.nview > h.nbuf || !memchr(h.function, 0, sizeof h.function) || (shared && !module))
        return err_set(e, KL_ERR_COMPILE, "the code of a kernel for a GPU is damaged");
    const char *at = c->bytes;
    const uint8_t *local = (const uint8_t *)at + sizeof h;
    *out = (struct gpu_code){.threads = h.threads, .nbuf = h.nbuf, .dynamic_bytes = h.dynamic_bytes, .local = local,
                             .view = (const void *)(local + round_up_8(h.nbuf)), .nview = h.nview,
                             .function = at + offsetof(struct gpu_image_head, function), .module = h.module,
                             .binary = shared ? module->bytes : at + before, .size = shared ? module->size : h.size};
    return true;
}

/* View number b of the kernel. */
static struct gpu_view view_of(const struct kernel *k, const struct source_info *info, uint32_t b)
{
    const struct lbuf *l = &k->buf[b];
    struct gpu_view v = {.dtype = l->dtype, .cols = PANEL_COLUMNS, .first = l->first};
    for (uint32_t of = 0; of < l->id; of++)
        v.argument += !info->local[of];
    for (val i = 1; i < k->ninst; i++)
        if (k->inst[i].op == L_COPY_PANEL && k->inst[i].imm >> 32 == b)
            v.rows = k->buf[(uint32_t)k->inst[i].imm].panel_rows;
    memcpy(v.size, l->size, sizeof v.size);
    memcpy(v.step, l->step, sizeof v.step);
    return v;
}

/* binary: of this kernel alone; NULL: it is in the module with this hash. */
static bool gpu_build_join(const struct source_info *info, const struct kernel *k, const char *function,
                           const struct code *binary, struct hash128 module, struct code *out, struct err *e)
{
    uint32_t nbuf = k->nbuf, nview = 0;
    for (uint32_t b = 0; b < nbuf; b++)
        nview += k->buf[b].role == BUF_VIEW;
    struct gpu_image_head h = {.nview = nview, .threads = info->threads, .nbuf = nbuf, .dynamic_bytes =
        info->dynamic_bytes,
                     .module = module, .size = binary ? binary->size : 0};
    memcpy(h.magic, magic, sizeof magic);
    snprintf(h.function, sizeof h.function, "%s", function);
    size_t before = sizeof h + round_up_8(nbuf) + nview * sizeof(struct gpu_view);
    out->size = before + h.size;
    char *p = out->bytes = mem_alloc(out->size); /* the memory is zero */
    if (!p)
        return err_set(e, KL_ERR_MEMORY, "out of memory compiling a kernel");
    memcpy(p, &h, sizeof h);
    for (uint32_t b = 0; b < nbuf; b++)
        p[sizeof h + b] = info->local[b];
    for (uint32_t b = 0, n = 0; b < nbuf; b++)
        if (k->buf[b].role == BUF_VIEW) {
            struct gpu_view v = view_of(k, info, b);
            memcpy(p + sizeof h + round_up_8(nbuf) + n++ * sizeof v, &v, sizeof v);
        }
    if (binary)
        memcpy(p + before, binary->bytes, binary->size);
    return true;
}

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
        ok = gpu_build_join(&info, k, "kernel", &binary, (struct hash128){0}, out, e);
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
    char (*function)[sizeof((struct gpu_image_head *)0)->function] = mem_alloc((n + 1) * sizeof *function);
    bool ok = function || err_set(e, KL_ERR_MEMORY, "out of memory compiling %u kernels", n);
    dialect_prelude(&own, features, &source);
    for (uint32_t i = 0; ok && i < n; i++) {
        snprintf(function[i], sizeof *function, "kernel_%u", i);
        ok = source_kernel(k[i], &own, function[i], &source, &info[i], e);
    }
    ok = ok && c->compile(source.s, arch, GPU_BINARY, module, e);
    const struct hash128 hash = ok ? bytes_hash(module->bytes, module->size) : (struct hash128){0};
    for (uint32_t i = 0; ok && i < n; i++)
        ok = gpu_build_join(&info[i], k[i], function[i], NULL, hash, &out[i], e);
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

/* ---- plug-ins ---- */

static bool plugin_text(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    char *text = kernel_text(k);
    struct source_info info = {.threads = 1, .local = mem_alloc(k->nbuf + 1)};
    *out = (struct code){0};
    bool ok = (text && info.local) || err_set(e, KL_ERR_MEMORY, "out of memory compiling a kernel");
    struct code binary = {text, ok ? strlen(text) + 1 : 0};
    if (ok && kind == EMIT_OBJECT)
        ok = gpu_build_join(&info, k, "kernel", &binary, (struct hash128){0}, out, e);
    else if (ok) /* there is no other stage: a plug-in gets the kernel's text */
        *out = (struct code){text, binary.size - 1};
    if (!ok || kind == EMIT_OBJECT)
        mem_free(text);
    source_info_free(&info);
    return ok;
}

static bool plugin_for(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out,
                       struct err *e)
{
    (void)target;
    return plugin_text(k, kind, out, e);
}

static const char *plugin_version(void) { return "plug-in, sources " GPU_SOURCES; }

const struct backend backend_plugin = {.name = "plug-in", .abi = KERNEL_ABI, .version = plugin_version,
                                       .compile = plugin_text,
                                       .compile_for = plugin_for};
