/* Kernels for GPUs with option order = graph must have the bits of the interpreter, whatever the GPU: they are lowered
 * for several and run by the kernel interpreter, which means what their text does (gpu_emulate).
 *
 *   gpu_order [GRAPHS [SEED]]   texts of tests/text, graphs made for this, and random graphs (default 40), fused and
 *                               unfused for each GPU
 *   gpu_order share ...         each fused for one or two of them, and a third of the texts
 *   gpu_order [share] random GRAPHS SEED
 *                               random graphs alone, until so many are compared, with lines of progress
 *
 * Left out are graphs with regions and ops of the user, which a GPU's programs run on the host. */
#include "codegen/gpu/source.h"
#include "tests/gpu/gpu_kernels.h"
#include "tests/support/random/random_make.h"
#include <glob.h>

/* blocks: that run at once; few of them get parts of their own (split) */
static const struct { const char *dialect, *features; uint32_t blocks; } targets[] = {
    {"cuda", "sm_90a", 64}, {"cuda", "sm_80", 1}, {"hip", "gfx942", 64}, {"glsl", "+subgroup32", 1}};
enum { TARGETS = sizeof targets / sizeof *targets };

/* Kernels of rows whose threads have several lanes, and whose rows are in segments. */
static unsigned compared, kinds[SCHED_COUNT], wide, segments;

static void take_target(unsigned i, struct caps *caps)
{
    struct err e = {0};
    const struct dialect *d = dialect_find(targets[i].dialect, &e);
    dialect_caps(d, caps);
    dialect_limits(d, targets[i].features, caps);
    dialect_architecture(d, targets[i].features, caps);
    caps->threads = targets[i].blocks;
    caps->graph_order = 1;
}

/* Is it kernels and copies alone, which the interpreter runs soon? */
static bool can_run(const struct program *p, bool large)
{
    const int64_t max_work = large ? 1 << 22 : 1 << 19;
    int64_t work = 0;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        if (p->cmd[i].kind == CMD_COPY)
            continue;
        if (p->cmd[i].kind != CMD_KERNEL)
            return false;
        const struct kernel *k = p->kernel[p->cmd[i].kernel];
        work += k->flops + k->bytes / 4;
    }
    return p->ncmd > 0 && work <= max_work;
}

/* What a graph is run with. */
struct arguments { struct values input, state, slots; uint64_t slot[MAX_VALUES]; };

static void arguments_make(const struct graph *g, struct arguments *a)
{
    struct rng r = {graph_hash(g).lo | 1};
    *a = (struct arguments){0};
    values_random(&r, g, &g->input, false, &a->input);
    values_random(&r, g, &g->state, false, &a->state);
    values_random(&r, g, &g->slot, false, &a->slots);
    for (uint32_t i = 0; i < a->slots.n; i++)
        memcpy(&a->slot[i], a->slots.v[i], dtype_size(g->slot.v[i].dtype));
}

static void arguments_free(struct arguments *a)
{
    values_free(&a->input);
    values_free(&a->state);
    values_free(&a->slots);
}

/* The texts of the kernels' records say it. */
static void records(const struct program *p, const char *what)
{
    for (uint32_t i = 0; i < p->nkernel; i++) {
        char *line = schedule_line(schedule_of(p->kernel[i]));
        check(line && strstr(line, " graph_order"), "%s: %s", what, line ? line : "no memory");
        const struct schedule *s = schedule_of(p->kernel[i]);
        kinds[s->kind]++;
        segments += s->kind == SCHED_ROWS && s->rows.held && s->width * (s->rows.vector ? s->rows.vector : 1) > 64;
        wide += (s->kind == SCHED_ROWS && s->rows.vector > 1) ||
            (s->kind == SCHED_GPU_ROW_REDUCE && s->gpu_row_reduce.vector > 1);
        mem_free(line);
    }
}

static void run(const struct program *p, const struct graph *g, const struct arguments *a, const struct values *want,
                const char *what)
{
    struct err e = {0};
    struct values out = {.n = g->nout};
    for (uint32_t o = 0; o < g->nout; o++)
        out.v[o] = calloc(node_bytes(g, g->out[o].value) + 64, 1);
    struct gpu_arrays m = {calloc((size_t)program_arenas(p) + 64, 1), &a->input, &out, &a->state, a->slot};
    bool ok = check(gpu_kernels_run(p, &m, &e), "%s: %s", what, e.msg);
    for (uint32_t o = 0; ok && o < g->nout; o++) {
        int64_t at = 0;
        unsigned dtype = node_at(g, g->out[o].value)->dtype;
        ok = check(same_values(dtype, want->v[o], out.v[o], node_numel(g, g->out[o].value), &at),
                   "%s: output %u element %" PRId64 " is %.17g, not %.17g", what, o, at,
                   element_value(dtype, out.v[o], at), element_value(dtype, want->v[o], at));
    }
    compared++;
    free(m.arena);
    values_free(&out);
}

/* What the graph after all passes means, as the device's: bf16 products have no order of their own there. */
static bool interpret(const struct graph *g, const struct arguments *a, struct values *out)
{
    struct err e = {0};
    out->n = g->nout;
    for (uint32_t i = 0; i < g->nout; i++)
        out->v[i] = calloc(node_bytes(g, g->out[i].value) + 1, 1);
    struct bind bind = {(const void *const *)a->input.v, (const void *const *)a->state.v, a->slot, out->v, NULL, NULL};
    return check(reference_run(g, &bind, true, &e), "%s: %s", g->name, e.msg);
}

static bool share;                 /* by the command line */
static unsigned tried;

/* The variants of graph number n: for each target, fused, and unfused behind these.  In a share two of products, sums
 * and attention, for many and few blocks, one of others. */
static bool is_wanted(unsigned n, unsigned variant, bool both)
{
    return !share || variant == n % TARGETS || (both && variant == (n + 1) % TARGETS);
}

static void try(const struct graph *g, const char *name, bool both)
{
    struct arguments a;
    struct values want = {0};
    if (g->nregion || g->ncustom)
        return;
    arguments_make(g, &a);
    tried++;
    for (unsigned i = 0; i < 2 * TARGETS && failed < 20; i++) {
        if (!is_wanted(tried, i, both))
            continue;
        struct caps caps;
        struct err e = {0};
        char what[256];
        bool fuse = i < TARGETS;
        struct graph *h = graph_clone(g);
        take_target(i % TARGETS, &caps);
        snprintf(what, sizeof what, "%s for %s of %u blocks, %s", name, targets[i % TARGETS].dialect, caps.threads,
                 fuse ? "fused" : "unfused");
        const struct pass_options options = {.fuse = fuse, .gpus = UINT64_MAX, .verify = true};
        bool ok = check(passes_run(h, &options), "%s: %s", what, h->err.msg);
        struct program *p = ok ? program_plan_with(h, &caps, NULL, NULL, NULL, &e) : NULL;
        if (ok && check(p, "%s: %s", what, e.msg) && can_run(p, both) &&
            (want.n || interpret(h, &a, &want))) {
            records(p, what);
            run(p, h, &a, &want, what);
        }
        program_free(p);
        graph_free(h);
    }
    values_free(&want);
    arguments_free(&a);
}

static void try_file(const char *path)
{
    static char text[1 << 16];
    struct err e = {0};
    FILE *f = fopen(path, "r");
    if (!check(f, "%s cannot be read", path))
        return;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *expect = strstr(text, "\n# expect:\n");
    struct graph *g = graph_parse(text, expect ? (size_t)(expect + 1 - text) : n, NULL, &e);
    if (check(g, "%s: %s", path, e.msg) && !g->symbols && graph_devices(g) == graph_devices(g) % 4)
        try(g, path, false);
    graph_free(g);
}

/* ---- products, sums and attention of several chunks and blocks ---- */

static void product(unsigned dtype, int64_t m, int64_t n, int64_t k, enum gpu_what what)
{
    char name[64];
    struct graph *g = graph_new("product");
    graph_output(g, OUT_RETURN, gpu_product(g, dtype, m, n, k, what), 0);
    snprintf(name, sizeof name, "%s product %d x %d x %d, %d", dtype_name(dtype), (int)m, (int)n, (int)k, (int)what);
    try(g, name, true);
    graph_free(g);
}

static void products(void)
{
    /* one, two and three blocks of the contraction; lengths that no step, tile or vector divides; few rows */
    static const int64_t size[][3] = {{20, 36, 40}, {17, 20, 520}, {3, 17, 1100}, {1, 70, 560},
                                      {9, 33, 600}, {17, 65, 97},  {18, 18, 544}, {6, 64, 528}};
    for (unsigned i = 0; i < sizeof size / sizeof *size; i++)
        for (unsigned what = PLAIN; what <= COMPUTED; what++)
            product(KL_F32, size[i][0], size[i][1], size[i][2], what);
    product(KL_BF16, 17, 20, 600, PLAIN);
    product(KL_F16, 5, 20, 1100, TRANSPOSED);
    product(KL_F64, 18, 20, 560, PLAIN);
    product(KL_I32, 18, 20, 560, PLAIN);
}

/* Sums over an axis, of rows, columns and both, of one and of several chunks; a softmax of a long row. */
static void sums(void)
{
    static const struct { int64_t dim[3]; unsigned axes; } s[] = {
        {{2, 3, 70}, 4}, {{1, 2, 5000}, 4}, {{1, 1, 40000}, 4}, {{1, 1100, 3}, 2}, {{2, 700, 66}, 2}, {{5, 70, 9}, 3},
        {{900, 1, 1}, 1}, {{3, 70, 40}, 6}, {{2, 40, 640}, 6},
        /* rows enough for several lanes a thread: whole vectors, a rest of some, a second chunk */
        {{90, 1, 320}, 4}, {{40, 2, 148}, 4}, {{70, 3, 9}, 4}, {{17, 1, 16420}, 4}};
    for (unsigned i = 0; i < sizeof s / sizeof *s; i++)
        for (unsigned kind = 0; kind < 4; kind++) {
            char name[64];
            struct graph *g = graph_new("sum");
            struct shape shape = shape_make(3, s[i].dim);
            ref x = n_input(g, kind == 1 ? KL_F16 : KL_F32, &shape, "x");
            ref y = n_reduce(g, kind == 2 ? OP_reduce_max : OP_sum, x, s[i].axes);
            graph_output(g, OUT_RETURN, n_sqrt(g, n_abs(g, y)), 0);
            snprintf(name, sizeof name, "sum %u, %u", i, kind);
            try(g, name, true);
            graph_free(g);
        }
}

/* Softmax of rows, and a sum that no stored element depends on, of one and of several chunks. */
static void rows(void)
{
    static const struct { int64_t rows, length; unsigned dtype; } s[] = {
        {70, 256, KL_F32}, {65, 516, KL_F32}, {80, 72, KL_F16}, {66, 30, KL_F32}, {40, 1600, KL_F32},
        {20, 16400, KL_F32}, {2, 33000, KL_F32}, {3, 200, KL_F64},
        /* in segments: of two lanes a thread and of one, a part of the last one, none of it */
        {3, 5000, KL_F32}, {2, 4699, KL_F32}, {2, 15994, KL_F16}, {2, 16384, KL_BF16}, {2, 4226, KL_F64},
        /* of enough rows: 2 segments of 16 threads, 4 of 8, 4 of 16, 2 of 32, 4 of 32; one, of long rows */
        {9, 3000, KL_F32}, {8, 4088, KL_BF16}, {8, 7996, KL_F32}, {8, 7994, KL_F32}, {8, 8400, KL_F32},
        {8, 2998, KL_F32}, {8, 6001, KL_F32}};
    for (unsigned i = 0; i < sizeof s / sizeof *s; i++) {
        char name[64];
        struct graph *g = graph_new("rows");
        struct shape shape = shape_make(2, (int64_t[]){s[i].rows, s[i].length});
        ref x = n_input(g, s[i].dtype, &shape, "x");
        ref e = n_exp(g, n_sub(g, x, n_broadcast(g, n_reduce(g, OP_reduce_max, x, 2), &shape)));
        ref y = n_div(g, e, n_broadcast(g, n_reduce(g, OP_sum, e, 2), &shape));
        graph_output(g, OUT_RETURN, y, 0);
        graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_mul(g, y, x), 2), 0);
        graph_output(g, OUT_RETURN, n_reduce(g, OP_reduce_prod, n_add(g, y, n_k(g, y, 1)), 2), 0);
        snprintf(name, sizeof name, "rows %u", i);
        try(g, name, true);
        graph_free(g);
    }
}

/* Maxima and minima of zeros of both signs, the last of which is the result, and of numbers without an order. */
static void zeros(void)
{
    static const int64_t length[] = {300, 4699, 9000, 16400};
    for (unsigned i = 0; i < sizeof length / sizeof *length; i++)
        for (unsigned nan = 0; nan < 2; nan++) {
            struct graph *g = graph_new("zeros");
            struct shape shape = shape_make(2, (int64_t[]){3, length[i]});
            ref x = n_input(g, KL_F32, &shape, "x"), z = n_mul(g, x, n_k(g, x, 0));
            z = nan ? n_div(g, z, n_sub(g, n_abs(g, x), n_k(g, x, 1))) : z;
            ref most = n_reduce(g, OP_reduce_max, z, 2), least = n_reduce(g, OP_reduce_min, z, 2);
            ref d = n_add(g, n_sub(g, z, n_broadcast(g, most, &shape)), n_broadcast(g, least, &shape));
            graph_output(g, OUT_RETURN, d, 0);
            graph_output(g, OUT_RETURN, n_div(g, n_k(g, most, 1), most), 0);
            graph_output(g, OUT_RETURN, n_div(g, n_k(g, least, 1), least), 0);
            try(g, "zeros", true);
            graph_free(g);
        }
}

static void attention(void)
{
    static const struct gpu_attention cases[] = {
        {.dtype = KL_F32, .l = 20, .m = 66, .d = 8, .e = 8, .causal = true},
        {.dtype = KL_F16, .l = 33, .m = 9, .d = 16, .e = 8},
        {.dtype = KL_F32, .l = 9, .m = 20, .d = 8, .e = 3, .gradient = true}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct graph *g = gpu_attention_graph(&cases[i]);
        try(g, "attention", true);
        graph_free(g);
    }
}

/* Products, sums, rows, attention and texts: together they must have a kernel of each family. */
static void try_made(void)
{
    glob_t files;
    products();
    sums();
    rows();
    zeros();
    attention();
    check(!glob("tests/text/agree_*.kir", 0, NULL, &files), "no files in tests/text");
    for (size_t i = 0; i < files.gl_pathc && failed < 20; i++)
        if (!share || i % 3 == 0 || strstr(files.gl_pathv[i], "agree_step_") ||
            strstr(files.gl_pathv[i], "agree_join_"))
            try_file(files.gl_pathv[i]);
    globfree(&files);
    static const unsigned needed[] = {SCHED_DOT_BLOCKS, SCHED_GPU_DOT_SKINNY, SCHED_GPU_ROW_REDUCE,
                                      SCHED_COLUMN_REDUCE, SCHED_ROWS, SCHED_ATTENTION, SCHED_ATTENTION_GRAD};
    for (unsigned i = 0; i < sizeof needed / sizeof *needed; i++)
        check(kinds[needed[i]], "no kernel was %s", sched_families[needed[i]].word);
    check(segments >= 8, "only %u kernels of rows are in segments", segments);
    check(wide > 10, "only %u kernels of rows have several lanes a thread", wide);
}

int main(int argc, char **argv)
{
    enum { A_LINE = 100 };
    share = argc > 1 && !strcmp(argv[1], "share");
    argc -= share;
    argv += share;
    bool random = argc > 1 && !strcmp(argv[1], "random");
    argc -= random;
    argv += random;
    uint64_t graphs = argc > 1 ? strtoull(argv[1], NULL, 10) : 40, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (!random)
        try_made();
    uint64_t done = 0;
    for (; done < graphs && failed < 20; seed++) {
        char what[32];
        unsigned before = compared;
        struct graph *g = random_graph(seed);
        snprintf(what, sizeof what, "graph %" PRIu64, seed);
        if (!g->err.code)
            try(g, what, false);
        graph_free(g);
        done += !random || compared > before;
        if (random && compared > before && done % A_LINE == 0) {
            printf("%" PRIu64 " of %" PRIu64 " graphs, up to %" PRIu64 ", %u failed\n", done, graphs, seed, failed);
            fflush(stdout);
        }
    }
    check(!kinds[SCHED_ATTENTION_MATRIX] && !kinds[SCHED_ATTENTION_BLOCKS], "attention that follows its schedule");
    printf("%u programs compared\n", compared);
    return finish();
}
