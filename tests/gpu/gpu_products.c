/* Products as blocks of a GPU's threads compute them, by the kernel interpreter, which checks every access and every
 * meeting of threads: the bits of the graph's interpreter, whatever the tiles; and schedules that no block can have. */
#include "codegen/gpu/source.h"
#include "gpu_kernels.h"
#include "tests/support/harness.h"

static struct rng rng = {77};
static struct caps caps;

static const struct dialect *dialect_now;

static void take_dialect(const char *name)
{
    struct err e = {0};
    dialect_now = dialect_find(name, &e);
    dialect_caps(dialect_now, &caps);
}

static struct program *plan(const struct graph *h, const char *schedules, struct err *e)
{
    struct sched_sections s = {0};
    struct program *p = NULL;
    if (!schedules || schedules_parse(schedules, strlen(schedules), NULL, &s, e))
        p = program_plan_with(h, &caps, schedules ? s.v : NULL, NULL, NULL, e);
    schedules_free(&s);
    return p;
}

static bool rounded;      /* sums in another order than pass numerics wrote: so results may differ in their last bits */
static bool cancels;      /* a rounded sum is added to another number: errors are relative to the largest result */

/* All values of an output, as near as they must be. */
static bool same(unsigned dtype, const void *want, const void *got, int64_t n, int64_t *at)
{
    double max = 0;
    if (!rounded || (!dtype_is_half(dtype) && dtype != KL_F32))
        return same_values(dtype, want, got, n, at);
    for (int64_t i = 0; (cancels || dtype == KL_F32) && i < n; i++)
        max = fmax(max, fabs(element_value(dtype, want, i)));
    for (*at = 0; *at < n; ++*at) {
        double x = element_value(dtype, want, *at), y = element_value(dtype, got, *at);
        double off = dtype == KL_F32 ? ldexp(max, -17)
            : ldexp(cancels ? max : fabs(x), dtype == KL_BF16 ? -7 : -10);
        if (!(fabs(x - y) <= off) && !(isnan(x) && isnan(y)))
            return false;
    }
    return true;
}

/* Runs g with the schedules, which say `record` of its one product. */
static void agrees(const struct graph *g, const struct values *in, const struct values *want, const char *schedules,
                   const char *record)
{
    struct err e = {0};
    struct values out = {.n = g->nout};
    struct graph *h = graph_clone(g);
    struct program *p = passes_run(h, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX, .verify = true})
        ? plan(h, schedules, &e)
        : NULL;
    if (!check(p, "@%s %s: %s", g->name, record, e.msg)) {
        graph_free(h);
        return;
    }
    bool found = false;
    for (uint32_t i = 0; i < p->nkernel; i++) {
        struct text source = {0};
        check(source_kernel(p->kernel[i], dialect_now, "kernel", &source, NULL, &e), "@%s %s: %s", g->name, record,
              e.msg);
        mem_free(source.s);
        char *line = schedule_line(schedule_of(p->kernel[i]));
        size_t n = strlen(record); /* behind it: what a record that leaves fields open has in them */
        const char *own = line ? line + strlen("schedule ") : "";
        found |= !strncmp(own, record, n) && (!own[n] || own[n] == ' ');
        mem_free(line);
    }
    check(found, "@%s: no kernel has the schedule %s", g->name, record);
    for (uint32_t o = 0; o < g->nout; o++)
        out.v[o] = calloc(node_bytes(g, g->out[o].value) + 64, 1);
    struct gpu_arrays m = {calloc((size_t)program_arenas(p) + 64, 1), in, &out, NULL, NULL};
    if (check(gpu_kernels_run(p, &m, &e), "@%s %s: %s", g->name, record, e.msg))
        for (uint32_t o = 0; o < g->nout; o++) {
            int64_t at = 0, n = node_numel(g, g->out[o].value);
            bool equal = same(g->node[g->out[o].value].dtype, want->v[o], out.v[o], n, &at);
            check(equal, "@%s %s: output %u differs at %" PRId64, g->name, record, o, at);
        }
    free(m.arena);
    values_free(&out);
    program_free(p);
    graph_free(h);
}

/* A graph of gpu_product. */
static struct graph *product(unsigned dtype, int64_t m, int64_t n, int64_t k, enum gpu_what what)
{
    static const char *const names[] = {"plain", "transposed", "computed", "epilogue"};
    struct graph *g = graph_new(names[what]);
    ref y = gpu_product(g, dtype, m, n, k, what);
    if (what == EPILOGUE) {
        struct shape row = shape_make(1, (int64_t[]){n}), all = shape_make(2, (int64_t[]){m, n});
        ref z = n_add(g, y, n_broadcast(g, n_input(g, dtype, &row, "bias"), &all));
        graph_output(g, OUT_RETURN, n_mul(g, z, z), 0);
    }
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

static void try(unsigned dtype, int64_t m, int64_t n, int64_t k, enum gpu_what what, const char *const *record)
{
    struct graph *g = product(dtype, m, n, k, what);
    struct values in, none = {0}, want = {0};
    struct err e = {0};
    values_random(&rng, g, &g->input, false, &in);
    if (check(!g->err.code && run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s",
              g->err.code ? g->err.msg : e.msg)) {
        agrees(g, &in, &want, NULL, record[0]);
        for (int i = 1; record[i]; i++) {
            char text[256];
            const char *kernel = what == EPILOGUE ? "k0_dot_add_mul" : what == COMPUTED ? "k1_dot" : "k0_dot";
            snprintf(text, sizeof text, "@%s schedule %s\n", kernel, record[i]);
            agrees(g, &in, &want, text, record[i]);
        }
    }
    values_free(&in);
    values_free(&want);
    graph_free(g);
}

/* Of a product that packs operands or adds parts in phases of their own, only the product's phase has shared memory. */
static bool one_phase_shares(const struct kernel *k)
{
    struct phase p = {0};
    unsigned sharing = 0;
    while (kernel_phase(k, &p))
        sharing += kernel_shares(k, p.first, p.end);
    return sharing == 1;
}

/* Do convolutions and their gradients, every step-th of them, have the interpreter's values with the schedules that
 * they get?  async, reordered: how many of their products are by an asynchronous unit, and of vectors in another
 * order. */
static void convolutions(const char *dialect, const char *architecture, unsigned step, unsigned async,
                         unsigned reordered)
{
    struct err e = {0};
    unsigned found_async = 0, found_reordered = 0;
    take_dialect(dialect);
    dialect_architecture(dialect_find(dialect, &e), architecture, &caps);
    caps.threads = 1;
    rounded = cancels = true;
    for (unsigned i = 0; i < gpu_convolution_count; i += step) {
        struct graph *g = gpu_convolution_graph(&gpu_convolutions[i]), *h = graph_clone(g);
        struct values in, none = {0}, want = {0};
        struct program *p = passes_run(h, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX})
            ? plan(h, NULL, &e) : NULL;
        char *line = NULL;
        values_random(&rng, g, &g->input, false, &in);
        bool ok = check(p && run_on(g, "ref", true, &in, &none, NULL, &want, &e), "convolution %u: %s", i, e.msg);
        for (uint32_t n = 0; ok && n < p->nkernel && !line; n++) {
            const struct schedule *own = schedule_of(p->kernel[n]);
            if (own->kind == SCHED_DOT_MATRIX) {
                line = schedule_line(own);
                found_async += own->dot_matrix.async;
                found_reordered += own->dot_matrix.reordered;
                check(!own->dot_matrix.reordered || one_phase_shares(p->kernel[n]),
                      "convolution %u: not one phase has shared memory", i);
            }
        }
        if (check(line, "convolution %u on %s is not by matrix units", i, architecture))
            agrees(g, &in, &want, NULL, line + strlen("schedule "));
        mem_free(line);
        program_free(p);
        graph_free(h);
        values_free(&in);
        values_free(&want);
        graph_free(g);
    }
    rounded = cancels = false;
    check(found_async == async && found_reordered == reordered, "%s: %u asynchronous products, %u reordered ones",
          architecture, found_async, found_reordered);
}

/* Is this a product whose operands both come by TMA loads or, of f32, by asynchronous copies of vectors? */
static bool copies_both(const struct kernel *k)
{
    const struct schedule *s = schedule_of(k);
    return (s->kind == SCHED_DOT_MATRIX && s->dot_matrix.panels) ||
           (s->kind == SCHED_DOT_BLOCKS && s->dot_blocks.copy_a && s->dot_blocks.copy_b);
}

/* Are intermediates with odd rows copied in vectors, and has each a pitch?  Do the threads of a row load and store
 * vectors of such rows, which they hold or iterate over in groups, the last of which has a part of a vector? */
static void pitched(unsigned dtype)
{
    static const char *const walked_rows[] = {"rows width 32 vector 2", "rows width 8 vector 8",
                                              "rows width 32 held 11"};
    struct err e = {0};
    struct graph *g = gpu_odd_rows(dtype), *h = graph_clone(g);
    struct values in, none = {0}, want = {0};
    take_dialect("cuda");
    dialect_architecture(dialect_find("cuda", &e), "sm_90a", &caps);
    caps.threads = 1;
    rounded = cancels = true;
    struct program *p = passes_run(h, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}) ? plan(h, NULL, &e)
        : NULL;
    values_random(&rng, g, &g->input, false, &in);
    if (check(p && p->pitch, "%s: %s", g->name, p ? "no pitch" : e.msg) &&
        check(run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s", e.msg)) {
        unsigned copied = 0, odd = 0, aligned = 0;
        for (uint32_t i = 0; i < p->nkernel; i++)
            copied += copies_both(p->kernel[i]);
        for (ref r = 1; r < p->g->nnode; r++) {
            odd += p->pitch[r] != 0;
            aligned += p->pitch[r] && p->pitch[r] * (int64_t)dtype_size(dtype) % 64 == 0 && p->pitch[r] > 331;
        }
        check(copied == 3, "%u products whose operands are copied", copied);
        check(odd == 2 && aligned == odd, "%u arrays with a pitch, %u of whole accesses", odd, aligned);
        check(program_check(p, &e), "%s", e.msg);
        p->pitch[0] = 0;
        for (ref r = 1; r < p->g->nnode; r++)
            p->pitch[r] += p->pitch[r] ? 32 : 0;
        check(!program_check(p, &e), "arrays that are larger than kernels believe are found");
        agrees(g, &in, &want, NULL, dtype == KL_F32 ? "dot_blocks" : "dot_matrix");
        agrees(g, &in, &want, NULL,
               dtype == KL_F32 ? "rows width 64 held 8 vector 4" : "rows width 64 held 8 vector 8");
        for (unsigned i = 0; i < sizeof walked_rows / sizeof *walked_rows; i++) {
            char schedule[128];
            snprintf(schedule, sizeof schedule, "@k1_reduce_max_sub_exp schedule %s\n", walked_rows[i]);
            agrees(g, &in, &want, schedule, walked_rows[i]);
        }
    }
    rounded = cancels = false;
    program_free(p);
    values_free(&in);
    values_free(&want);
    graph_free(h);
    graph_free(g);
}

/* Products with arrays of heads, [batch, heads, tokens, depth], as attention stores them: an index counts heads and
 * depth, the other one batches and tokens.  Their panels are copied from where they are. */
static void views_of_heads(void)
{
    static const char *const text[] = {
        "graph @project {\n  %0 = input 0 : bf16[2,3,256,64]\n  %1 = input 1 : bf16[192,72]\n"
        "  %2 = permute %0 perm(0, 2, 1, 3) : bf16[2,256,3,64]\n  %3 = reshape %2 : bf16[2,256,192]\n"
        "  %4 = dot %3, %1 contract(2; 0) : bf16[2,256,72]\n  return %4\n}\n",
        "graph @gradient {\n  %0 = input 0 : bf16[2,3,256,64]\n  %1 = input 1 : bf16[2,256,72]\n"
        "  %2 = permute %0 perm(0, 2, 1, 3) : bf16[2,256,3,64]\n  %3 = reshape %2 : bf16[512,192]\n"
        "  %4 = reshape %1 : bf16[512,72]\n  %5 = dot %3, %4 contract(0; 0) : bf16[192,72]\n  return %5\n}\n"};
    static const char *const records[] = {
        "dot_matrix",
        "dot_matrix width 256 tile 64x128 block 128x128 step 64 kblock %d unit 64x8x16 subgroup 128 stages 3 copy_a "
            "copy_b async panels",
        "dot_matrix width 128 tile 64x64 block 64x64 step 64 kblock %d unit 64x8x16 subgroup 128 stages 4 copy_a "
            "copy_b async panels split 64"};
    struct err e = {0};
    take_dialect("cuda");
    dialect_architecture(dialect_find("cuda", &e), "sm_90a", &caps);
    caps.threads = 1;
    rounded = cancels = true;
    for (unsigned i = 0; i < sizeof text / sizeof *text; i++) {
        struct graph *g = graph_parse(text[i], strlen(text[i]), NULL, &e);
        struct values in, none = {0}, want = {0};
        if (!check(g, "%s", e.msg))
            continue;
        values_random(&rng, g, &g->input, false, &in);
        if (check(run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s", e.msg))
            for (unsigned r = 0; r < sizeof records / sizeof *records; r++) {
                char record[256], schedule[300];
                snprintf(record, sizeof record, records[r], i ? 512 : 192);
                snprintf(schedule, sizeof schedule, "@k0_dot schedule %s\n", record);
                agrees(g, &in, &want, r ? schedule : NULL, record);
            }
        values_free(&in);
        values_free(&want);
        graph_free(g);
    }
    rounded = cancels = false;
}

/* Softmax of rows that threads iterate over: the maximum and the sum in one pass, a sum that no element reads in the
 * last one. Rows: random ones; all -infinity; with an infinity; with a NaN; with -infinity up to the last group;
 * ascending, so that each group has a new maximum. */
static void online_softmax(void)
{
    enum { ROWS = 6, LENGTH = 700 };
    static const char *const iterated[] = {"rows width 32 vector 4", "rows width 64 vector 1", "rows width 8 vector 2",
                                         "rows width 64 held 12 vector 4"};
    struct err e = {0};
    struct graph *g = graph_new("softmax");
    struct shape s = shape_make(2, (int64_t[]){ROWS, LENGTH});
    struct values in, none = {0}, want = {0};
    ref x = n_input(g, KL_F32, &s, "x"), max = n_reduce(g, OP_reduce_max, x, 1u << 1);
    ref power = n_exp(g, n_sub(g, x, n_expand(g, max, &s))), sum = n_reduce(g, OP_sum, power, 1u << 1);
    ref squares = n_reduce(g, OP_sum, n_mul(g, power, power), 1u << 1);
    graph_output(g, OUT_RETURN, n_div(g, power, n_expand(g, sum, &s)), 0);
    graph_output(g, OUT_RETURN, sum, 0);
    graph_output(g, OUT_RETURN, squares, 0);
    values_random(&rng, g, &g->input, false, &in);
    float *row = in.v[0];
    for (int i = 0; i < LENGTH; i++) {
        row[LENGTH + i] = -INFINITY;
        row[4 * LENGTH + i] = i < 650 ? -INFINITY : (float)(i % 5);
        row[5 * LENGTH + i] = (float)i / 8;
    }
    row[2 * LENGTH + 333] = INFINITY;
    row[3 * LENGTH + 699] = NAN;
    take_dialect("cuda");
    rounded = true;
    if (check(run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s", e.msg))
        for (unsigned i = 0; i < sizeof iterated / sizeof *iterated; i++) {
            char schedule[128];
            snprintf(schedule, sizeof schedule, "@k0_reduce_max_sub_exp_sum_mul_sum_div schedule %s\n", iterated[i]);
            agrees(g, &in, &want, schedule, iterated[i]);
        }
    rounded = false;
    values_free(&in);
    values_free(&want);
    graph_free(g);
}

/* Columns of which a thread sums several adjacent ones, and stores the elements that it sums, of several rows. */
static void stored_columns(void)
{
    enum { ROWS = 40, COLUMNS = 24 };
    static const char *const records[] = {"column_reduce width 4 axes 1 split 7 vector 4",
                                          "column_reduce width 2 axes 1 vector 2", "column_reduce width 8 axes 1"};
    struct err e = {0};
    struct graph *g = graph_new("columns");
    struct shape s = shape_make(3, (int64_t[]){2, ROWS / 2, COLUMNS});
    struct values in, none = {0}, want = {0};
    ref x = n_input(g, KL_F32, &s, "x"), y = n_input(g, KL_F32, &s, "y"), sum = n_add(g, x, y);
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_exp(g, sum), 3), 0);
    graph_output(g, OUT_RETURN, n_cast(g, sum, KL_BF16), 0);
    graph_output(g, OUT_RETURN, sum, 0);
    values_random(&rng, g, &g->input, false, &in);
    take_dialect("cuda");
    rounded = true;
    if (check(run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s", e.msg))
        for (unsigned i = 0; i < sizeof records / sizeof *records; i++) {
            char schedule[128];
            snprintf(schedule, sizeof schedule, "@k0_add_exp_sum_cast schedule %s\n", records[i]);
            agrees(g, &in, &want, schedule, records[i]);
        }
    rounded = false;
    values_free(&in);
    values_free(&want);
    graph_free(g);
}

/* ---- what cannot be ---- */

static void refuses(unsigned dtype, const char *record, const char *phrase)
{
    struct err e = {0};
    struct graph *g = product(dtype, 40, 40, 16, PLAIN);
    char text[256];
    snprintf(text, sizeof text, "@k0_dot schedule %s\n", record);
    struct program *p = passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}) ? plan(g, text, &e)
        : NULL;
    check(!p && strstr(e.msg, phrase) && strstr(e.msg, "1:"), "%s: %s", record, p ? "taken" : e.msg);
    program_free(p);
    graph_free(g);
}

/* Products of half floats by subgroups of threads, as matrix units do them: the same bits where an element is one
 * chain. */
static void by_matrix_units(void)
{
    struct err e = {0};
    take_dialect("cuda");
    dialect_architecture(dialect_find("cuda", &e), "sm_90", &caps);
    static const char *const nvidia[] = {
        "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 24",
            "dot_matrix width 64 tile 16x24 block 32x24 step 16 kblock 24",
        "dot_matrix width 128 tile 32x8 block 32x32 step 16 kblock 24",
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 24", NULL};
    for (int what = 0; what < WHATS; what++)
        try(what & 1 ? KL_F16 : KL_BF16, 33, 35, 21, (enum gpu_what)what, nvidia);
    static const char *const copied[] = {
        "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 48",
            "dot_matrix width 128 tile 32x8 block 32x32 step 16 kblock 48",
        /* 16x16 elements are a vector for each thread, 8x16 are not */
        "dot_matrix width 32 tile 16x8 block 16x8 step 16 kblock 48", NULL};
    for (int what = 0; what < WHATS; what++)
        try(KL_BF16, 40, 24, 48, (enum gpu_what)what, copied);
    static const char *const by_vectors[] = {
        "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 48 unit 16x8x16 subgroup 32 stages 3 copy_a copy_b",
        "dot_matrix width 128 tile 32x8 block 32x32 step 16 kblock 48 unit 16x8x16 subgroup 32 stages 2",
        "dot_matrix width 128 tile 32x8 block 32x32 step 16 kblock 48 unit 16x8x16 subgroup 32 stages 4",
        "dot_matrix width 32 tile 16x16 block 16x16 step 16 kblock 48 unit 16x8x16 subgroup 32 stages 5 copy_a", NULL};
    try(KL_BF16, 40, 24, 48, PLAIN, by_vectors);
    refuses(KL_BF16, "dot_matrix width 32 tile 16x8 block 16x8 step 16 kblock 16 copy_b", "is not of whole vectors");
    refuses(KL_BF16, "dot_matrix width 32 tile 16x16 block 16x16 step 16 kblock 16 stages 1", "is on its way");
    try(KL_BF16, 40, 24, 44, TRANSPOSED,
        (const char *[]){"dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 48", NULL});
    static const char *const blocks[] = {"dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 264", NULL};
    rounded = true;
    try(KL_BF16, 20, 18, 521, PLAIN, blocks); /* two k-blocks, but one chain */
    rounded = false;
    static const char *const of_f32[] = {"dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 24", NULL};
    try(KL_F32, 33, 35, 21, PLAIN, of_f32);   /* never rounded to less */
    caps.threads = 1;
    static const char *const large[] = {"dot_matrix width 256 tile 64x32 block 128x128 step 32 kblock 16", NULL};
    try(KL_F16, 66, 65, 9, TRANSPOSED, large);
    refuses(KL_F16, "dot_matrix width 128 tile 64x64 block 64x64 step 16 kblock 16", "registers for its sums");
    /* no rows of the unit's */
    refuses(KL_F16, "dot_matrix width 32 tile 24x16 block 24x16 step 16 kblock 16",
            "a whole number of the unit's tiles");
    refuses(KL_F16, "dot_matrix width 32 tile 16x16 block 16x16 step 24 kblock 16", "the unit's steps");
    refuses(KL_F16, "dot_matrix width 32 tile 16x16 block 16x16 step 16 kblock 16 unit 8x8x8", "unit: it is another");
    refuses(KL_F16, "dot_matrix width 32 tile 16x16 block 16x16 step 16 kblock 16 subgroup 64", "subgroup: it has");
    refuses(KL_F32, "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 16", "kind is not a choice");
    take_dialect("cuda");
    dialect_architecture(dialect_find("cuda", &e), "sm_90a", &caps);
    caps.threads = 1;
    static const char *const async[] = {
        "dot_matrix width 128 tile 64x128 block 64x128 step 64 kblock 104",
        "dot_matrix width 256 tile 64x64 block 128x64 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 3 copy_a "
            "copy_b async",
        "dot_matrix width 128 tile 64x128 block 64x128 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 5 copy_a "
            "copy_b async",
        "dot_matrix width 128 tile 64x128 block 64x128 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 3 copy_a "
            "copy_b async panels",
        "dot_matrix width 256 tile 64x192 block 128x192 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 4 copy_a "
            "copy_b async panels",
        /* two blocks on a processor, with one warp or four of the producer */
        "dot_matrix width 256 tile 64x128 block 128x128 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 3 copy_a "
            "copy_b async panels",
        "dot_matrix width 128 tile 128x128 block 128x128 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 3 copy_a "
            "copy_b async panels",
        "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 104 unit 16x8x16 subgroup 32 stages 2 copy_a", NULL};
    try(KL_BF16, 40, 72, 104, PLAIN, async);
    try(KL_F16, 40, 72, 104, TRANSPOSED, async);
    static const char *const two_rows[] = { /* of subgroups, whose rows are columns of a panel of a */
        "dot_matrix width 128 tile 64x128 block 64x128 step 64 kblock 104",
        "dot_matrix width 256 tile 64x64 block 128x64 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 3 copy_a "
            "copy_b async panels", NULL};
    try(KL_BF16, 40, 72, 104, TRANSPOSED, two_rows);
    try(KL_BF16, 40, 72, 104, EPILOGUE, async);
    static const char *const parts[] = {
        "dot_matrix width 128 tile 64x128 block 64x128 step 64 kblock 104",
        "dot_matrix width 256 tile 64x64 block 64x128 step 64 kblock 104 unit 64x8x16 subgroup 128 stages 3 copy_a "
            "copy_b async panels split 64",
        "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 104 unit 16x8x16 subgroup 32 stages 2 copy_a split "
            "32", NULL};
    rounded = true;               /* the sums of parts are added in another order */
    try(KL_BF16, 40, 72, 104, PLAIN, parts);
    try(KL_F16, 40, 72, 104, TRANSPOSED, parts);
    cancels = true;
    try(KL_BF16, 40, 72, 104, EPILOGUE, parts);
    rounded = cancels = false;
    refuses(KL_BF16, "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 16 panels", "panels: they are for");
    refuses(KL_BF16, "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 16 reordered",
            "both operands are copied in vectors");
    refuses(KL_BF16, "dot_matrix width 32 tile 16x16 block 16x16 step 32 kblock 16 split 40",
            "a whole number of steps");
    refuses(KL_BF16, "dot_matrix width 128 tile 64x64 block 64x64 step 64 kblock 16 async", "both operands are copied");
    refuses(KL_BF16, "dot_matrix width 128 tile 64x64 block 64x64 step 64 kblock 16 stages 2 copy_a copy_b async",
            "may be multiplied");
    dialect_architecture(dialect_find("cuda", &e), "sm_90", &caps);
    refuses(KL_BF16, "dot_matrix width 128 tile 64x64 block 64x64 step 64 kblock 16 copy_a copy_b async",
            "no such unit");
    dialect_architecture(dialect_find("cuda", &e), "sm_75", &caps);
    check(!caps.mma[0].subgroup, "sm_75 multiplies bf16");
}

/* Each candidate for a product has the interpreter's values; they are of both units. */
static void tuned_units(unsigned dtype)
{
    struct err e = {0};
    struct graph *g = product(dtype, 40, 72, 48, PLAIN), *h = graph_clone(g);
    const struct target target = {.caps = &caps};
    struct lowered l = {0};
    struct schedule list[MAX_CANDIDATES];
    struct values in, none = {0}, want = {0};
    uint32_t n = 0, of[2] = {0}, threads = caps.threads;
    caps.threads = 1;
    bool ok = passes_run(h, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX});
    struct lowerer *s = ok ? lowerer_new(h, &(struct target_set){&target, 1}, 0, NULL, NULL) : NULL;
    values_random(&rng, g, &g->input, false, &in);
    ok = s && lower_group(s, 0, NULL, &l, &e) && lower_candidates(s, 0, l.k, 1, list, &n, &e) &&
         run_on(g, "ref", true, &in, &none, NULL, &want, &e);
    check(ok, "%s", e.msg);
    for (uint32_t i = 0; i < n; i++) {
        char text[256], *line = schedule_line(&list[i]);
        snprintf(text, sizeof text, "@k0_dot %s\n", line);
        of[list[i].dot_matrix.unit_m == 16]++;
        agrees(g, &in, &want, text, line + strlen("schedule "));
        mem_free(line);
    }
    caps.threads = threads;
    check(of[0] && of[1], "%u candidates have sides of 32, %u of 16", of[0], of[1]);
    kernel_free(l.k);
    mem_free(l.arg);
    lowerer_free(s);
    values_free(&in);
    values_free(&want);
    graph_free(g);
    graph_free(h);
}

/* AMD's units: tiles with sides of 32 where a tile consists of them, else of 16, or what the record says. */
static void by_amd_units(void)
{
    struct err e = {0};
    take_dialect("hip");
    dialect_architecture(dialect_find("hip", &e), "gfx90a:sramecc+:xnack-", &caps);
    static const char *const small[] = {"dot_matrix width 64 tile 16x16 block 16x16 step 32 kblock 24",
                                        "dot_matrix width 128 tile 32x16 block 32x32 step 16 kblock 24", NULL};
    static const char *const small_f32[] = {"dot_matrix width 64 tile 16x16 block 16x16 step 16 kblock 24",
                                            "dot_matrix width 128 tile 32x16 block 32x32 step 32 kblock 24", NULL};
    try(KL_BF16, 33, 35, 21, EPILOGUE, small);
    try(KL_F32, 33, 35, 21, EPILOGUE, small_f32);
    static const char *const chosen[][2] = {
        {"dot_matrix width 128 tile 32x16 block 32x32 step 16 kblock 24",
         "dot_matrix width 128 tile 32x16 block 32x32 step 16 kblock 24 unit 16x16x16 subgroup 64"},
        {"dot_matrix width 64 tile 32x32 block 32x32 step 16 kblock 24",
         "dot_matrix width 64 tile 32x32 block 32x32 step 16 kblock 24 unit 32x32x8 subgroup 64"},
        {"dot_matrix width 64 tile 32x32 block 32x32 step 16 kblock 24 unit 16x16x16",
         "dot_matrix width 64 tile 32x32 block 32x32 step 16 kblock 24 unit 16x16x16 subgroup 64"}};
    for (unsigned i = 0; i < 2 * (sizeof chosen / sizeof *chosen); i++) {
        struct graph *g = product(i & 1 ? KL_F32 : KL_BF16, 33, 35, 21, PLAIN);
        const char *due = chosen[i / 2][1];
        char text[256], *line = NULL;
        snprintf(text, sizeof text, "@k0_dot schedule %s\n", chosen[i / 2][0]);
        struct program *p = passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX})
            ? plan(g, text, &e) : NULL;
        line = p ? schedule_line(schedule_of(p->kernel[0])) : NULL;
        check(line && !strncmp(line + strlen("schedule "), due, strlen(due)), "%s is %s", text, line ? line : e.msg);
        mem_free(line);
        program_free(p);
        graph_free(g);
    }
    static const char *const large[] = {
        "dot_matrix width 64 tile 16x16 block 16x16 step 32 kblock 48",
        "dot_matrix width 64 tile 32x32 block 32x32 step 16 kblock 48 unit 32x32x8 subgroup 64 stages 2 copy_a copy_b",
        "dot_matrix width 64 tile 32x32 block 32x32 step 8 kblock 48 unit 32x32x8 subgroup 64 stages 3",
        "dot_matrix width 128 tile 64x32 block 64x64 step 16 kblock 48 unit 32x32x8 subgroup 64 stages 2 copy_a "
            "split 32",
        "dot_matrix width 128 tile 32x64 block 64x64 step 32 kblock 48 unit 16x16x16 subgroup 64 stages 2 copy_b",
        NULL};
    tuned_units(KL_BF16);
    tuned_units(KL_F32);
    rounded = cancels = true; /* the sums of parts are added in another order */
    for (int what = 0; what < WHATS; what++) {
        bool copied = what == PLAIN || what == EPILOGUE; /* other operands are no arrays of vectors, or not of 2 axes */
        for (int of_f32 = 0; of_f32 < 2; of_f32++) {
            const char *own = of_f32 ? "dot_matrix width 64 tile 16x16 block 16x16 step 16 kblock 48" : large[0];
            const char *const plain[] = {own, large[2], NULL}, *const all[] = {own, large[1], large[2], large[3],
                                                                               large[4], NULL};
            try(of_f32 ? KL_F32 : KL_BF16, 40, 24, 48, (enum gpu_what)what, copied ? all : plain);
        }
    }
    rounded = cancels = false;
    caps.threads = 1;
    static const char *const of_f32[] = {"dot_matrix width 256 tile 64x64 block 128x128 step 8 kblock 16", NULL};
    try(KL_F32, 66, 65, 9, TRANSPOSED, of_f32);
    refuses(KL_F32, "dot_matrix width 64 tile 16x16 block 16x16 step 16 kblock 16 unit 32x32x8",
            "a whole number of the unit's tiles");
    refuses(KL_BF16, "dot_matrix width 64 tile 32x32 block 32x32 step 16 kblock 16 unit 16x8x16",
            "unit: it is another");
    refuses(KL_F16, "dot_matrix width 64 tile 32x32 block 32x32 step 16 kblock 16", "kind is not a choice");
    dialect_architecture(dialect_find("hip", &e), "gfx1030", &caps);
    static const char *const threads[] = {"dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 24", NULL};
    take_dialect("hip");
    try(KL_BF16, 33, 35, 21, PLAIN, threads);
}

/* Contractions in parts: the bits of integers, and of floats what another order of the sums may give. */
static void in_parts(void)
{
    struct err e = {0};
    dialect_caps(dialect_find("glsl", &e), &caps);
    static const char *const parts[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 264",
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 264 split 72",
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 264 split 264",
        "dot_blocks width 16 tile 4x4 block 16x16 step 5 kblock 264 split 520", NULL};
    rounded = true;
    for (int what = 0; what < WHATS; what++)
        try(KL_F32, 20, what & 1 ? 18 : 20, 521, (enum gpu_what)what, parts);
    static const char *const equal[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 512",
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 512 split 64",
        "dot_blocks width 64 tile 8x8 block 64x64 step 8 kblock 512 split 256", NULL};
    try(KL_F32, 33, 33, 512, PLAIN, equal);
    rounded = false;
    try(KL_I32, 20, 18, 521, TRANSPOSED, parts);
    caps.threads = 132; /* more than there are blocks: the schedule that is chosen has parts */
    static const char *const own_parts[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 368 split 280", NULL};
    try(KL_I32, 20, 18, 1100, PLAIN, own_parts);
    static const char *const many[] = { /* so many results that a thread adds the parts of several */
        "dot_blocks width 64 tile 8x4 block 64x32 step 8 kblock 16",
        "dot_blocks width 64 tile 8x8 block 64x64 step 8 kblock 16 split 8", NULL};
    try(KL_I32, 512, 516, 16, EPILOGUE, many);
    refuses(KL_F32, "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 16 split 12", "a whole number of steps");
}

/* Operands in shared memory by asynchronous copies, in the order in which they lie in memory: the same bits.  Rows,
 * columns and contraction are no multiples of a block; last vectors and steps are short. */
static void by_copies(void)
{
    take_dialect("cuda");
    static const char *const copied[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 16 kblock 48 stages 3 copy_a copy_b",
        "dot_blocks width 64 tile 8x8 block 64x64 step 8 kblock 48 stages 3 copy_a copy_b",
        "dot_blocks width 32 tile 16x4 block 64x32 step 8 kblock 48 stages 4 copy_a copy_b",
        "dot_blocks width 32 tile 4x16 block 32x64 step 4 kblock 48 stages 2 copy_a copy_b",
        "dot_blocks width 32 tile 8x4 block 64x16 step 8 kblock 48 stages 2 copy_a copy_b",
        "dot_blocks width 16 tile 4x8 block 16x32 step 16 kblock 48 stages 5 copy_a",
        "dot_blocks width 16 tile 2x4 block 16x8 step 8 kblock 48 stages 3 copy_b", NULL};
    static const char *const computed[] = { /* the second operand is no array of vectors */
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 48",
        "dot_blocks width 16 tile 4x8 block 16x32 step 16 kblock 48 stages 3 copy_a", NULL};
    for (int what = 0; what < WHATS; what++) {
        try(KL_F32, 40, 24, 44, (enum gpu_what)what, what == COMPUTED ? computed : copied);
        try(KL_I32, 40, 24, 48, (enum gpu_what)what, what == COMPUTED ? computed : copied);
    }
    static const char *const parts[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 16 kblock 512 stages 3 copy_a copy_b",
        "dot_blocks width 64 tile 4x4 block 32x32 step 16 kblock 512 stages 4 copy_a copy_b split 32",
        "dot_blocks width 16 tile 8x8 block 32x32 step 8 kblock 512 stages 3 copy_a split 200", NULL};
    rounded = true;
    try(KL_F32, 36, 36, 512, PLAIN, parts);
    try(KL_F32, 36, 36, 512, TRANSPOSED, parts);
    rounded = false;
    refuses(KL_F32, "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 16 stages 3", "at least two if an operand");
    refuses(KL_F32, "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 16 copy_a", "at least two if an operand");
    refuses(KL_F32, "dot_blocks width 64 tile 4x4 block 32x32 step 4 kblock 16 stages 2 copy_a",
            "whole vectors for each");
    refuses(KL_F16, "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 16 stages 2 copy_a", "no array of vectors");
}

int main(void)
{
    take_dialect("glsl");
    static const char *const small[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 24",
        "dot_blocks width 8 tile 2x4 block 8x8 step 4 kblock 24",
        "dot_blocks width 1 tile 8x8 block 8x8 step 3 kblock 24",
        "dot_blocks width 64 tile 1x1 block 8x8 step 16 kblock 24", NULL};
    for (int what = 0; what < WHATS; what++) {
        try(KL_F32, 33, 35, 21, (enum gpu_what)what, small);
        try(KL_I32, 33, 35, 21, (enum gpu_what)what, small);
    }
    try(KL_F16, 33, 35, 21, PLAIN, small);
    try(KL_U8, 33, 35, 21, EPILOGUE, small);
    static const char *const of_f64[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 24",
        "dot_blocks width 32 tile 4x4 block 16x32 step 8 kblock 24",
            NULL};
    try(KL_F64, 64, 32, 24, TRANSPOSED, of_f64); /* nothing left over anywhere */
    static const char *const blocks[] = {
        "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 264",
        "dot_blocks width 16 tile 4x4 block 16x16 step 5 kblock 264",
            NULL};
    rounded = true;
    try(KL_F32, 20, 18, 521, PLAIN, blocks); /* two k-blocks, of 264 and of 257, but one chain */
    rounded = false;
    try(KL_I32, 20, 18, 521, PLAIN, blocks);
    static const char *const skinny[] = {"dot_blocks width 64 tile 4x4 block 64x16 step 8 kblock 16", NULL};
    try(KL_F32, 100, 10, 9, EPILOGUE, skinny);
    take_dialect("cuda");
    static const char *const many[] = {"dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 8",
                                       "dot_blocks width 256 tile 8x8 block 128x128 step 8 kblock 8", NULL};
    try(KL_F32, 130, 66, 8, PLAIN, many);
    take_dialect("glsl");
    static const char *const flat[] = {"dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 8", NULL};
    try(KL_F32, 40, 33, 1, TRANSPOSED, flat);
    try(KL_I32, 40, 33, 5, EPILOGUE, flat);
    caps.threads = 1;
    static const char *const large[] = {"dot_blocks width 64 tile 8x8 block 64x64 step 8 kblock 16", NULL};
    try(KL_F32, 70, 90, 10, TRANSPOSED, large);
    refuses(KL_F32, "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 24", "kblock 24: it is 16");
    refuses(KL_F32, "dot_blocks width 32 tile 4x4 block 32x32 step 8 kblock 16", "make another number of threads");
    refuses(KL_F32, "dot_blocks width 256 tile 4x4 block 64x64 step 8 kblock 16", "has fewer threads");
    refuses(KL_F32, "dot_blocks width 64 tile 4x4 block 32x32 step 64 kblock 16", "shared memory has no room");
    refuses(KL_F32, "dot_blocks width 32 tile 14x32 block 28x256 step 8 kblock 16",
            "1:38: tile: a thread has at most 64 results");
    refuses(KL_F32, "dot_blocks width 32 tile 14x32 kblock 16", "block 0: it may be 1 to 65535");
    refuses(KL_F32, "dot width 32 tile 33x32 kblock 16", "a tile has 1 to 32 rows");
    by_matrix_units();
    by_amd_units();
    in_parts();
    pitched(KL_BF16);
    views_of_heads();
    online_softmax();
    convolutions("cuda", "sm_90a", 1, 7, 12);
    convolutions("cuda", "sm_80", 3, 0, 4);
    convolutions("hip", "gfx942", 2, 0, 6);
    stored_columns();
    by_copies();
    pitched(KL_F32);
    take_dialect("glsl");
    caps.is_gpu = 0;
    refuses(KL_F32, "dot_blocks width 64 tile 4x4 block 32x32 step 8 kblock 16",
            "kind is not a choice: its own record is \"schedule dot width");
    return finish();
}
