/* Every different kernel that graphs of all kinds make for a GPU, through the compilers for GPUs: no device needed.
 *
 *   gpu_compile [GRAPHS [ARCHITECTURES]]   (random graphs, default 100; of each compiler, default 1, 0: only text)
 *
 * Kernels: those of tests/text, of every op with every dtype, of the shapes that schedules treat differently, and of
 * random graphs; each once, by its hash.  They become text in every dialect, and are compiled 100 a file.  A compiler
 * that is not there is skipped. */
#include "codegen/gpu/compile.h"
#include "codegen/gpu/source.h"
#include "random_make.h"
#include <dirent.h>

enum { A_FILE = 100 };

struct kernel_set {
    struct kernel **v;
    uint32_t n, cap;
    struct hash128 *hash;
    uint32_t *slot, size;         /* by hash: number + 1 */
};

/* ---- collecting ---- */

static bool grow_index(struct kernel_set *s)
{
    free(s->slot);
    s->size = s->size ? 2 * s->size : 1024;
    s->slot = calloc(s->size, sizeof *s->slot);
    for (uint32_t i = 0; s->slot && i < s->n; i++) {
        uint32_t at = (uint32_t)s->hash[i].lo & (s->size - 1);
        while (s->slot[at])
            at = (at + 1) & (s->size - 1);
        s->slot[at] = i + 1;
    }
    return s->slot;
}

static void add(struct kernel_set *s, const struct kernel *k)
{
    struct hash128 h = kernel_hash(k);
    if (s->n + 1 > s->size / 2 && !grow_index(s))
        exit(1);
    uint32_t at = (uint32_t)h.lo & (s->size - 1);
    for (; s->slot[at]; at = (at + 1) & (s->size - 1))
        if (!memcmp(&s->hash[s->slot[at] - 1], &h, sizeof h))
            return;
    char *text = kernel_text(k);
    struct kernels parsed = {0};
    struct err e = {0};
    if (check(text && kernel_parse(text, strlen(text), NULL, &parsed, &e), "%s: %s", k->name, e.msg)) {
        if (s->n == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 1024;
            s->v = realloc(s->v, s->cap * sizeof *s->v);
            s->hash = realloc(s->hash, s->cap * sizeof *s->hash);
            if (!s->v || !s->hash)
                exit(1);
        }
        s->v[s->n] = parsed.v[0];
        s->hash[s->n] = h;
        s->slot[at] = ++s->n;
        parsed.n = 0;
    }
    kernels_free(&parsed);
    mem_free(text);
}

/* The kernels of g, fused and one by one.  A graph that cannot be planned is another test's matter. */
static void add_graph(struct kernel_set *s, const struct graph *g)
{
    struct err e = {0};
    struct caps caps;
    dialect_caps(dialect_find("cuda", &e), &caps);
    for (int fuse = 1; fuse >= 0; fuse--) {
        struct graph *h = graph_clone(g);
        struct program *p = NULL;
        if (h && passes_run(h, &(struct pass_options){.fuse = fuse}))
            p = program_plan(h, &caps, false, &e);
        for (uint32_t i = 0; p && i < p->nkernel; i++)
            add(s, p->kernel[i]);
        program_free(p);
        graph_free(h);
    }
}

static void add_file(struct kernel_set *s, const char *path, bool kernel)
{
    FILE *f = fopen(path, "r");
    if (!check(f, "%s cannot be read", path))
        return;
    static char text[1 << 20];
    size_t len = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    struct err e = {0};
    struct kernels k = {0};
    text[len] = 0;
    char *expect = strstr(text, "\n# expect:\n");
    if (expect)
        len = (size_t)(expect + 1 - text);
    struct graph *g = kernel ? NULL : graph_parse(text, len, NULL, &e);
    for (uint32_t i = 0; g && g->symbols && i < g->symbols->n; i++)
        graph_symbol_set(g, i, g->symbols->v[i].low, &e);
    if (g)
        add_graph(s, g);
    else if (kernel && kernel_parse(text, len, NULL, &k, &e))
        for (uint32_t i = 0; i < k.n; i++)
            add(s, k.v[i]);
    kernels_free(&k);
    graph_free(g);
}

static void add_folder(struct kernel_set *s, const char *folder)
{
    DIR *d = opendir(folder);
    if (!check(d, "%s: no such folder", folder))
        return;
    for (struct dirent *f; (f = readdir(d));) {
        char path[1024];
        size_t n = strlen(f->d_name);
        bool kernel = n > 5 && !strcmp(f->d_name + n - 5, ".loop");
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (kernel || (n > 4 && !strcmp(f->d_name + n - 4, ".kir")))
            add_file(s, path, kernel);
    }
    closedir(d);
}

/* Every op on operands of one shape, and every cast. */
static void add_ops(struct kernel_set *s)
{
    struct shape shape = shape_make(2, (int64_t[]){3, 70});
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        for (unsigned op = 1; op < OP_COUNT; op++) {
            struct graph *g = graph_new("op");
            struct node n = {.op = (uint16_t)op, .nin = opinfo[op].nin};
            for (unsigned i = 0; i < n.nin; i++)
                n.in[i] = n_input(g, op == OP_where && i == 0 ? KL_BOOL : dtype, &shape, "x");
            ref y = op_is_elementwise(op) ? graph_add(g, &n, NULL) : op >= OP_sum && op <= OP_reduce_prod ? n_reduce(g, (enum op)op, n.in[0], 2) : NIL;
            if (y && !g->err.code) {
                graph_output(g, OUT_RETURN, y, 0);
                add_graph(s, g);
            }
            graph_free(g);
        }
        for (unsigned to = 0; to < KL_DTYPE_COUNT; to++) {
            struct graph *g = graph_new("cast");
            graph_output(g, OUT_RETURN, n_cast(g, n_input(g, dtype, &shape, "x"), to), 0);
            add_graph(s, g);
            graph_free(g);
        }
    }
}

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
    uint64_t graphs = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
    unsigned archs = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    struct kernel_set s = {0};
    add_folder(&s, "tests/text");
    printf("%u kernels of tests/text\n", s.n);
    add_ops(&s);
    printf("%u with ops\n", s.n);
    for (uint64_t seed = 1; seed <= graphs; seed++) {
        struct graph *g = random_graph(seed);
        add_graph(&s, g);
        graph_free(g);
    }
    printf("%u with %" PRIu64 " random graphs\n", s.n, graphs);
    check(s.n > 1000, "only %u kernels", s.n);
    static const char *const names[] = {"cuda", "hip", "glsl"};
    for (unsigned i = 0; i < 3; i++)
        make_all(&s, names[i]);
    for (unsigned i = 0; i < 2; i++) {
        compile_all(&s, names[i], archs);
        refusal(names[i]);
    }
    for (uint32_t i = 0; i < s.n; i++)
        kernel_free(s.v[i]);
    free(s.v);
    free(s.hash);
    free(s.slot);
    return finish();
}
