/* Compiles a kernel to source text and to a binary, with a header that a launch needs. */
#include "build.h"
#include "codegen/gpu/compilers/compile.h"
#include "gpu_sources.h"
#include "source.h"
#include <pthread.h>
#include <string.h>

struct head {
    char magic[8];
    uint32_t threads, nbuf, dynamic_bytes, nview;
    uint64_t size;                 /* size of the binary; before the binary come the bytes of `local`, one per buffer,
                                      padded to a multiple of 8, and the views */
};
static const char magic[8] = {'K', 'I', 'L', 'N', 'G', 'P', 'U', '3'};

static size_t round8(size_t n) { return (n + 7) & ~(size_t)7; }

bool gpu_code_open(const struct code *c, struct gpu_code *out, struct err *e)
{
    struct head h;
    if (c->size >= sizeof h)
        memcpy(&h, c->bytes, sizeof h);
    size_t before = c->size >= sizeof h ? sizeof h + round8(h.nbuf) + h.nview * sizeof(struct gpu_view) : 0;
    if (c->size < sizeof h || memcmp(h.magic, magic, sizeof magic) || c->size < before || c->size - before != h.size ||
        !h.threads || h.threads > MAX_THREADS || h.nview > h.nbuf)
        return err_set(e, KL_ERR_COMPILE, "the code of a kernel for a GPU is damaged");
    const uint8_t *local = (const uint8_t *)c->bytes + sizeof h;
    *out = (struct gpu_code){.threads = h.threads, .nbuf = h.nbuf, .dynamic_bytes = h.dynamic_bytes, .local = local,
                             .view = (const void *)(local + round8(h.nbuf)), .nview = h.nview,
                             .binary = (const char *)c->bytes + before, .size = h.size};
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

static bool gpu_build_join(const struct source_info *info, const struct kernel *k, const struct code *binary,
                           struct code *out, struct err *e)
{
    uint32_t nbuf = k->nbuf, nview = 0;
    for (uint32_t b = 0; b < nbuf; b++)
        nview += k->buf[b].role == BUF_VIEW;
    struct head h = {.nview = nview, .threads = info->threads, .nbuf = nbuf, .dynamic_bytes = info->dynamic_bytes,
                     .size = binary->size};
    memcpy(h.magic, magic, sizeof magic);
    size_t before = sizeof h + round8(nbuf) + nview * sizeof(struct gpu_view);
    out->size = before + binary->size;
    char *p = out->bytes = mem_alloc(out->size); /* the memory is zero */
    if (!p)
        return err_set(e, KL_ERR_MEMORY, "out of memory compiling a kernel");
    memcpy(p, &h, sizeof h);
    for (uint32_t b = 0; b < nbuf; b++)
        p[sizeof h + b] = info->local[b];
    for (uint32_t b = 0, n = 0; b < nbuf; b++)
        if (k->buf[b].role == BUF_VIEW) {
            struct gpu_view v = view_of(k, info, b);
            memcpy(p + sizeof h + round8(nbuf) + n++ * sizeof v, &v, sizeof v);
        }
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
    *out = (struct code){0};
    if (kind == EMIT_LLVM)
        return err_set(e, KL_ERR_ARGUMENT, "kernels for a GPU have no stage llvm");
    if (!d || !c)
        return false;
    const struct dialect own = dialect_for(d, features);
    dialect_prelude(&own, features, &source);
    bool ok = source_kernel(k, &own, "kernel", &source, &info, e) &&
              c->compile(source.s, arch ? arch : c->arch[0], kind == EMIT_ASM ? GPU_ASSEMBLY : GPU_BINARY, &binary, e);
    if (ok && kind == EMIT_ASM)
        *out = binary;
    else if (ok)
        ok = gpu_build_join(&info, k, &binary, out, e);
    if (!ok || kind != EMIT_ASM)
        mem_free(binary.bytes);
    source_info_free(&info);
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

static bool build_for(const struct kernel *k, const char *language, const struct caps *target, enum emit_kind kind,
                      struct code *out,
                      struct err *e)
{
    char arch[64];
    size_t n = strcspn(target->features, " ");
    snprintf(arch, sizeof arch, "%.*s", (int)(n < sizeof arch ? n : sizeof arch - 1), target->features);
    return gpu_build_build(k, language, arch, target->features, kind, out, e);
}

static bool cuda_for(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out,
                     struct err *e)
{
    return build_for(k, "cuda", target, kind, out, e);
}

static bool cuda_any(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    return gpu_build_build(k, "cuda", NULL, NULL, kind, out, e);
}

static bool hip_for(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out,
                    struct err *e)
{
    return build_for(k, "hip", target, kind, out, e);
}

static bool hip_any(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    return gpu_build_build(k, "hip", NULL, NULL, kind, out, e);
}

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
                                     .compile_for = cuda_for};
const struct backend backend_hip = {.name = "hip", .abi = KERNEL_ABI, .version = hip_version, .compile = hip_any,
                                    .compile_for = hip_for};
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
        ok = gpu_build_join(&info, k, &binary, out, e);
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
