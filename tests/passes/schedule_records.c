/* A kernel's record says all: lowered by choosing and once more from the printed record, it is the same kernel, for
 * processors with vectors of several widths and for the GPUs that there is text for.
 *
 *   schedule_records [FOLDER [COUNT]]   graphs in text form, tests/text by default; random graphs */
#include "codegen/gpu/source.h"
#include "tests/support/random/random_make.h"
#include <dirent.h>
#include <stdlib.h>

static struct caps targets[13];
static unsigned ntarget, seen[SCHED_COUNT];

static struct program *plan(const struct graph *g, const struct caps *caps, bool fuse, const struct sched_section *s,
                            struct err *e)
{
    struct graph *h = graph_clone(g);
    struct pass_options o = {.fuse = fuse, .bf16_dot2 = caps->dot2 ? UINT64_MAX : 0,
                             .bf16_tiles = caps->bf16_tiles ? UINT64_MAX : 0,
                             .processor = {caps->is_gpu ? 0 : UINT64_MAX, 1, lower_reads_windows(caps), caps->l1_bytes},
                             .gpus = caps->is_gpu ? UINT64_MAX : 0};
    struct program *p = h && passes_run(h, &o) ? program_plan_with(h, caps, s, NULL, NULL, e) : NULL;
    graph_free(h);
    return p;
}

/* The program from the printed records of another. */
static struct program *plan_printed(const struct graph *g, const struct caps *caps, bool fuse, const struct program *p,
                                    struct err *e)
{
    struct sched_sections s = {0};
    char *text = schedules_text(g->name, false, p->kernel, p->nkernel);
    struct program *q = NULL;
    if (text && schedules_parse(text, strlen(text), "printed", &s, e))
        q = plan(g, caps, fuse, s.n ? &s.v[0] : NULL, e);
    schedules_free(&s);
    mem_free(text);
    return q;
}

static void twice(const struct graph *g, const char *name, const struct caps *caps, bool fuse)
{
    struct err e = {0}, again = {0};
    struct program *p = plan(g, caps, fuse, NULL, &e);
    struct program *q = p ? plan_printed(g, caps, fuse, p, &again) : NULL;
    if (p && check(q && q->nkernel == p->nkernel, "%s for %s: %s", name, caps->name,
                   again.code ? again.msg : "other kernels"))
        for (uint32_t i = 0; i < p->nkernel; i++) {
            char *one = schedule_line(schedule_of(p->kernel[i])), *two = schedule_line(schedule_of(q->kernel[i]));
            check(kernel_same(p->kernel[i], q->kernel[i]), "%s for %s: kernel @%s by \"%s\" is another by \"%s\"", name,
                  caps->name, p->kernel[i]->name, one ? one : "", two ? two : "");
            seen[p->kernel[i]->sched.kind]++;
            mem_free(one);
            mem_free(two);
        }
    program_free(p);
    program_free(q);
}

static void for_all_targets(const struct graph *g, const char *name)
{
    for (unsigned t = 0; t < ntarget; t++) {
        twice(g, name, &targets[t], true);
        twice(g, name, &targets[t], false);
    }
}

static void add_cpu(const char *name, unsigned vector_bytes, unsigned regs, int64_t l1_bytes, bool compact)
{
    struct caps *c = &targets[ntarget++];
    *c = (struct caps){.vector_bytes = vector_bytes, .vector_regs = regs, .threads = 2, .compact = compact,
                       .l1_bytes = l1_bytes, .l2_bytes = 16 * l1_bytes, .l3_bytes = 128 * l1_bytes,
                       .mma_bytes = vector_bytes == 32 ? 4 : 0};
    snprintf(c->name, sizeof c->name, "%s", name);
}

static void add_gpu(const char *dialect, const char *features)
{
    struct err e = {0};
    struct caps *c = &targets[ntarget++];
    const struct dialect *d = dialect_find(dialect, &e);
    dialect_caps(d, c);
    if (features)
        dialect_architecture(d, features, c);
    snprintf(c->name, sizeof c->name, "%s", features ? features : dialect);
}

static void read_graph(const char *folder, const char *file)
{
    char path[1024];
    static char text[1 << 20];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    size_t len = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[len] = 0;
    const char *expect = strstr(text, "\n# expect:\n");
    struct graph *g = graph_parse(text, expect ? (size_t)(expect + 1 - text) : len, NULL, &e);
    for (uint32_t i = 0; g && g->symbols && i < g->symbols->n; i++)
        graph_symbol_set(g, i, g->symbols->v[i].low, &e);
    if (g) /* a file of an error has none */
        for_all_targets(g, file);
    graph_free(g);
}

static void read_folder(const char *folder)
{
    DIR *d = opendir(folder);
    if (!check(d, "%s: no such folder", folder))
        return;
    for (struct dirent *f; (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n > 4 && !strcmp(f->d_name + n - 4, ".kir"))
            read_graph(folder, f->d_name);
    }
    closedir(d);
}

static ref matrix_of(struct graph *g, unsigned dtype, int64_t rows, int64_t cols)
{
    struct shape s = shape_make(2, (int64_t[]){rows, cols});
    return n_input(g, dtype, &s, "x");
}

/* Products that the texts are too small for. */
static void products(void)
{
    static const int64_t size[][3] = {{1, 700, 300}, {3, 130, 700}, {130, 70, 600}, {600, 130, 40}, {70, 16, 700}};
    static const unsigned dtype[] = {KL_F32, KL_BF16, KL_F64, KL_U8};
    for (unsigned i = 0; i < sizeof size / sizeof *size * 4 * 4; i++) {
        const int64_t *z = size[i / 16];
        unsigned transposed = i / 4 % 4, dt = dtype[i % 4];
        struct graph *g = graph_new("product");
        union attr dims = {.dot = {.ncon = 1, .con_a = !(transposed & 1), .con_b = transposed >> 1}};
        ref a = transposed & 1 ? matrix_of(g, dt, z[2], z[0]) : matrix_of(g, dt, z[0], z[2]);
        unsigned other = dt == KL_U8 ? KL_I8 : dt;
        ref b = transposed & 2 ? matrix_of(g, other, z[1], z[2]) : matrix_of(g, other, z[2], z[1]);
        if (dt == KL_U8) { /* which makes a product of bytes */
            a = n_cast(g, a, KL_I32);
            b = n_cast(g, b, KL_I32);
        }
        ref y = n_dot(g, a, i % 3 ? b : n_add(g, b, b), &dims);
        if (i % 5 > 2) { /* an epilogue of several members */
            ref square = n_mul(g, y, y);
            y = n_add(g, n_mul(g, n_add(g, square, y), square), n_add(g, n_mul(g, square, square), y));
        }
        graph_output(g, OUT_RETURN, y, 0);
        char name[80];
        snprintf(name, sizeof name, "product %d of %s", (int)i, dtype_name(dt));
        if (check(!g->err.code, "%s: %s", name, g->err.msg))
            for_all_targets(g, name);
        graph_free(g);
    }
}

/* Reductions of large arrays, with prefetches, and of many rows, in blocks. */
static void reductions(void)
{
    static const int64_t size[][3] = {{64, 300, 1024}, {4096, 3, 70}, {3000, 5, 4}, {600, 40, 40}};
    for (unsigned i = 0; i < 4 * 7; i++) {
        struct graph *g = graph_new("reduction");
        struct shape s = shape_make(3, size[i / 7]);
        ref x = n_exp(g, n_input(g, KL_F32, &s, "x")), y = n_reduce(g, OP_sum, x, 1 + i % 7);
        graph_output(g, OUT_RETURN, n_div(g, n_exp(g, y), n_tanh(g, n_add(g, n_mul(g, y, y), y))), 0);
        if (i % 7 < 2)
            graph_output(g, OUT_RETURN, n_div(g, x, n_broadcast(g, y, &s)), 0);
        char name[64];
        snprintf(name, sizeof name, "reduction %u", i);
        for_all_targets(g, name);
        graph_free(g);
    }
}

/* On a GPU a thread reads several adjacent elements at once only of rows that begin at multiples of as many: else these
 * would be as many accesses, each of elements that are not adjacent to those of the next thread.  Of short rows a block
 * has several, so that accesses have 16 bytes: at least a warp's, and more where there are many. */
static void row_vectors(const struct caps *caps)
{
    static const struct { int64_t rows, length; unsigned vector, block; } row[] = {
        {4096, 1024, 4, 0}, {4096, 1002, 2, 0}, {4096, 1001, 0, 0}, {1, 5001, 4, 0}, {1 << 20, 64, 4, 8},
        {96, 64, 4, 2}, {97, 64, 2, 0}, {1 << 20, 24, 4, 16}, {1 << 20, 3, 0, 32}, {1 << 20, 128, 4, 0}};
    for (unsigned i = 0; i < sizeof row / sizeof *row && caps->is_gpu; i++) {
        struct err e = {0};
        struct graph *g = graph_new("rows");
        graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, matrix_of(g, KL_F32, row[i].rows, row[i].length), 2), 0);
        struct program *p = plan(g, caps, true, NULL, &e);
        const struct schedule *s = p && p->nkernel ? schedule_of(p->kernel[0]) : NULL;
        if (check(s && s->kind == SCHED_GPU_ROW_REDUCE, "rows for %s: no kernel of threads for a row", caps->name))
            check(s->gpu_row_reduce.vector == row[i].vector && s->gpu_row_reduce.rows == row[i].block,
                  "%lld rows of %lld for %s: vectors of %u, not %u, %u rows in a block, not %u",
                  (long long)row[i].rows, (long long)row[i].length, caps->name, s->gpu_row_reduce.vector,
                  row[i].vector, s->gpu_row_reduce.rows, row[i].block);
        program_free(p);
        graph_free(g);
    }
}

int main(int argc, char **argv)
{
    unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 40;
    add_cpu("vectors of 16 bytes", 16, 16, 32 << 10, false);
    add_cpu("vectors of 32 bytes", 32, 16, 32 << 10, false);
    add_cpu("vectors of 64 bytes", 64, 32, 32 << 10, false);
    add_cpu("small caches", 64, 32, 1 << 10, false);
    add_cpu("short kernels", 32, 16, 1 << 10, true);
    add_cpu("pairs of bf16", 64, 32, 8 << 10, false);
    targets[ntarget - 1].dot2 = 1;
    add_cpu("tiles of bf16", 64, 32, 8 << 10, false);
    targets[ntarget - 1].bf16_tiles = 1;
    add_gpu("cuda", NULL);
    add_gpu("hip", NULL);
    add_gpu("glsl", NULL);
    add_gpu("cuda", "sm_90");
    add_gpu("cuda", "sm_90a");
    add_gpu("hip", "gfx90a");
    read_folder(argc > 1 ? argv[1] : "tests/text");
    products();
    reductions();
    for (unsigned t = 0; t < ntarget; t++)
        row_vectors(&targets[t]);
    for (unsigned i = 0; i < count; i++) {
        struct graph *g = random_graph(9000 + i);
        char name[64];
        snprintf(name, sizeof name, "random graph %u", 9000 + i);
        for_all_targets(g, name);
        graph_free(g);
    }
    for (unsigned kind = 0; kind < SCHED_COUNT; kind++) {
        printf("%s: %u kernels\n", sched_families[kind].word, seen[kind]);
        check(seen[kind] > 0, "no kernel of kind %s", sched_families[kind].word);
    }
    return finish();
}
