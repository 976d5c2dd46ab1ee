/* Every different kernel that graphs of all kinds make for a GPU, through the compilers for GPUs: no device needed.
 *
 *   gpu_compile [GRAPHS [ARCHITECTURES]]   (random graphs, default 100; of each compiler, default 1, 0: only text)
 *   gpu_compile essential [GRAPHS]         those kernels alone that show the compilers something new
 *
 * Kernels: those of tests/text, of every op with every dtype, of the shapes that schedules treat differently, and of
 * random graphs; each once, by its hash.  They become text in every dialect, and are compiled 100 a file.  A compiler
 * that is not there is skipped. */
#include "codegen/gpu/compile.h"
#include "codegen/gpu/source.h"
#include "gpu_kernels.h"

enum { A_FILE = 100 };

/* ---- compiling ---- */

/* One file of the kernels [first, end). */
static bool make_file(const struct kernel_set *s, const struct dialect *d, uint32_t first, uint32_t end, struct text *out)
{
    struct err e = {0};
    text_put(out, "%s", d->prelude);
    for (uint32_t i = first; i < end; i++) {
        char entry[32];
        snprintf(entry, sizeof entry, "kernel_%u", i);
        if (!check(source_kernel(s->v[i], d, entry, out, NULL, &e), "%s", e.msg))
            return false;
    }
    return check(!out->failed, "out of memory");
}

static void make_all(const struct kernel_set *s, const char *name)
{
    struct err e = {0};
    struct text source = {0};
    if (make_file(s, dialect_find(name, &e), 0, s->n, &source))
        printf("%s: %zu bytes of source\n", name, source.len);
    mem_free(source.s);
}

/* Compiles kernels [first, end) and, where they are refused, halves of them, to name the one. */
static void compile(const struct kernel_set *s, const struct gpu_compiler *c, const char *arch, uint32_t first, uint32_t end)
{
    struct text source = {0};
    struct code code = {0};
    struct err e = {0};
    bool made = make_file(s, dialect_find(c->name, &e), first, end, &source);
    if (made && c->compile(source.s, arch, GPU_BINARY, &code, &e)) {
        check(code.size > 64 && !memcmp(code.bytes, "\177ELF", 4), "%s for %s gives no ELF file", c->name, arch);
        passed += end - first - 1;
    } else if (made && end - first > 1) {
        compile(s, c, arch, first, (first + end) / 2);
        compile(s, c, arch, (first + end) / 2, end);
    } else if (made) {
        check(false, "%s for %s: %s", c->name, arch, e.msg);
        kernel_print(s->v[first], stdout);
    }
    mem_free(code.bytes);
    mem_free(source.s);
}

static void compile_all(const struct kernel_set *s, const char *name, unsigned archs)
{
    char version[64];
    struct err e = {0};
    const struct gpu_compiler *c = gpu_compiler_find(name, &e);
    if (!c || !c->version(version, sizeof version, &e)) {
        printf("SKIP no-compiler %s: %s\n", name, e.msg);
        skipped++;
        return;
    }
    for (unsigned a = 0; a < archs && c->arch[a] && !failed; a++) {
        for (uint32_t i = 0; i < s->n; i += A_FILE)
            compile(s, c, c->arch[a], i, i + A_FILE < s->n ? i + A_FILE : s->n);
        printf("%s (%s): %u kernels for %s\n", name, version, s->n, c->arch[a]);
    }
}

/* A source that is wrong gives the compiler's own words. */
static void refusal(const char *name)
{
    struct err e = {0};
    struct code code;
    char version[64];
    const struct gpu_compiler *c = gpu_compiler_find(name, &e);
    if (!c || !c->version(version, sizeof version, &e))
        return;
    check(!c->compile("static __device__ int f() { return nowhere; }\n", c->arch[0], GPU_BINARY, &code, &e) && strstr(e.msg, "nowhere") && !code.bytes,
          "%s says of a wrong source: %s", name, e.msg);
    check(!c->compile("", "nothing", GPU_BINARY, &code, &e) && e.code && !code.bytes, "%s takes an architecture that is none", name);
}

int main(int argc, char **argv)
{
    bool essential = argc > 1 && !strcmp(argv[1], "essential");
    argc -= essential;
    argv += essential;
    uint64_t graphs = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
    unsigned archs = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    struct kernel_set s = {0};
    gpu_kernels_folder(&s, "tests/text");
    printf("%u kernels of tests/text\n", s.n);
    gpu_kernels_ops(&s);
    printf("%u with ops\n", s.n);
    gpu_kernels_random(&s, graphs, 1);
    printf("%u with %" PRIu64 " random graphs\n", s.n, graphs);
    check(s.n > 1000, "only %u kernels", s.n);
    static const char *const names[] = {"cuda", "hip", "glsl"};
    for (unsigned i = 0; i < 3; i++)
        make_all(&s, names[i]);
    if (essential) {
        gpu_kernels_essential(&s);
        printf("%u that differ by more than the order of their instructions\n", s.n);
    }
    for (unsigned i = 0; i < 2; i++) {
        compile_all(&s, names[i], archs);
        refusal(names[i]);
    }
    gpu_kernels_free(&s);
    return finish();
}
