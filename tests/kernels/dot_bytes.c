/* Products of bytes: the kernels made for processors with and without instructions for them, interpreted and compiled,
 * against sums that are computed here; every pair of dtypes and way to lie in memory, the least and the largest
 * numbers, sums that wrap, and epilogues. */
#include "kernel_test.h"

static struct targets targets;
static struct rng rng = {88};
static enum { ANY, EXTREMES, LARGEST } numbers;

#if defined(KILN_ASAN)
enum { TRIED = 1, STEP = 3 }; /* instrumented, a tile takes long to compile */
#else
enum { TRIED = 3, STEP = 1 };
#endif

struct product { int64_t batch, m, n, k; bool ta, tb, scaled; }; /* ta, tb: stored with k first, with k last */

static ref operand(struct graph *g, unsigned dtype, const char *name, int64_t batch, int64_t rows, int64_t cols)
{
    struct shape s = batch ? shape_make(3, (int64_t[]){batch, rows, cols}) : shape_make(2, (int64_t[]){rows, cols});
    return n_input(g, dtype, &s, name);
}

/* y = i32(a) i32(b); scaled: i8 of what clamps y / 1024 + bias, as the next layer of a network reads it. */
static struct graph *product(const struct product *p, unsigned ta, unsigned tb)
{
    struct graph *g = graph_new("product");
    unsigned first = p->batch != 0;
    ref a = p->ta ? operand(g, ta, "a", p->batch, p->k, p->m) : operand(g, ta, "a", p->batch, p->m, p->k);
    ref b = p->tb ? operand(g, tb, "b", p->batch, p->n, p->k) : operand(g, tb, "b", p->batch, p->k, p->n);
    union attr dims = {.dot = {.ncon = 1}}; /* of a fuller list clang would leave the union's other bytes unset */
    dims.dot.con_a = first + !p->ta, dims.dot.con_b = first + p->tb, dims.dot.nbatch = (uint8_t)first;
    ref y = n_dot(g, n_cast(g, a, KL_I32), n_cast(g, b, KL_I32), &dims);
    if (p->scaled) {
        struct shape all = *node_shape(g, y), row = shape_make(1, &p->n);
        y = n_mul(g, n_cast(g, y, KL_F32), n_broadcast(g, n_const(g, KL_F32, dtype_bits(KL_F32, 1.0 / 1024)), &all));
        y = n_cast(g, n_add(g, y, n_broadcast(g, n_input(g, KL_F32, &row, "bias"), &all)), KL_I8);
    }
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

static void fill(const struct graph *g, struct values *in)
{
    values_random(&rng, g, &g->input, false, in);
    for (uint32_t i = 0; i < 2; i++) { /* all of the range, which random small numbers are not */
        int64_t n = node_numel(g, i + 1);
        uint8_t *x = in->v[i], min = g->node[i + 1].dtype == KL_I8 ? 0x80 : 0;
        for (int64_t j = 0; j < n; j++)
            x[j] = numbers == ANY ? (uint8_t)rng_below(&rng, 256)
                                  : (uint8_t)(min - (numbers == LARGEST || rng_below(&rng, 2)));
    }
}

static int64_t byte_at(unsigned dtype, const void *x, int64_t i)
{
    return dtype == KL_I8 ? ((const int8_t *)x)[i] : ((const uint8_t *)x)[i];
}

static int32_t *sums(const struct product *p, unsigned ta, unsigned tb, const struct values *in)
{
    int64_t batch = p->batch ? p->batch : 1;
    int32_t *y = calloc((size_t)(batch * p->m * p->n) + 1, sizeof *y), *at = y;
    for (int64_t i = 0; i < batch; i++)
        for (int64_t r = 0; r < p->m; r++)
            for (int64_t c = 0; c < p->n; c++, at++)
                for (int64_t k = 0; k < p->k; k++) {
                    int64_t a = i * p->m * p->k + (p->ta ? k * p->m + r : r * p->k + k);
                    int64_t b = i * p->n * p->k + (p->tb ? c * p->k + k : k * p->n + c);
                    *at = (int32_t)((uint32_t)*at + (uint32_t)(byte_at(ta, in->v[0], a) * byte_at(tb, in->v[1], b)));
                }
    return y;
}

static bool has_op(const struct kernel *k, unsigned op)
{
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == op) return true;
    return false;
}

/* The kernel that the graph becomes for one target, against the sums or, scaled, against the graph's interpreter. */
static void try_for(const struct graph *g, const struct caps *caps, const struct values *in, const void *want,
                    bool bytes, const char *what)
{
    struct err e = {0};
    struct graph *h = graph_clone(g);
    bool ok = passes_run(h, &(struct pass_options){.fuse = true, .verify = true});
    struct program *p = ok ? program_plan(h, caps, false, &e) : NULL;
    graph_free(h);
    const struct kernel *k = only_kernel(p, what, &e);
    if (k) {
        check(has_op(k, L_MMA) == bytes, "%s: the kernel has %s mma", what, bytes ? "no" : "an");
        struct targets one = {.b = targets.b, .v[0] = *caps, .n = targets.b != NULL};
        agree_planned(&one, p, in, want, what);
    }
    program_free(p);
}

/* On this processor, and some of the others in alternation. */
static void try(const struct product *p)
{
    static unsigned turn;
    for (int types = 0; types < (numbers == LARGEST ? 1 : 4); types += STEP) {
        unsigned ta = types & 1 ? KL_I8 : KL_U8, tb = types & 2 ? KL_I8 : KL_U8;
        struct graph *g = product(p, ta, tb);
        struct values in, none = {0}, want = {0};
        struct err e = {0};
        char what[160];
        if (!check(!g->err.code, "%s", g->err.msg)) {
            graph_free(g);
            continue;
        }
        fill(g, &in);
        int32_t *own = sums(p, ta, tb, &in);
        if (check(run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s", e.msg) && !p->scaled)
            check(!memcmp(own, want.v[0], node_bytes(g, g->out[0].value)), "the graph's interpreter and sums differ");
        for (unsigned n = 0; n < TRIED && n < targets.n && want.v[0]; n++) {
            unsigned i = n && targets.n > 3 ? 1 + turn++ % (targets.n - 1) : n;
            bool bytes = targets.v[i].mma_bytes && !p->ta && p->k >= 4;
            snprintf(what, sizeof what, "%s %s by %s %s, %" PRId64 " of %" PRId64 "x%" PRId64 "x%" PRId64 " on %s/%u",
                     p->ta ? "transposed" : "plain", dtype_name(ta), p->tb ? "transposed" : "plain", dtype_name(tb),
                     p->batch, p->m, p->n, p->k, targets.v[i].name, targets.v[i].vector_bytes);
            try_for(g, &targets.v[i], &in, want.v[0], bytes, what);
        }
        free(own);
        values_free(&in);
        values_free(&want);
        graph_free(g);
    }
}

/* ---- what the code is made of ---- */

/* Does code for such a processor have the instruction, in a product of ta by tb? */
static void has_instruction_for(const char *arch, const char *cpu, const char *features, uint32_t vector_bytes,
                                unsigned ta, unsigned tb, const char *name)
{
    struct product p = {.m = 20, .n = 40, .k = 64};
    struct graph *g = product(&p, ta, tb);
    struct caps caps = targets.v[0];
    struct err e = {0};
    struct code code = {0};
    snprintf(caps.name, sizeof caps.name, "%s", cpu);
    snprintf(caps.features, sizeof caps.features, "%s", features);
    snprintf(caps.arch, sizeof caps.arch, "%s", strcmp(arch, HOST_ARCH) ? arch : "");
    caps.vector_bytes = vector_bytes;
    caps.vector_regs = vector_bytes == 64 || !strcmp(arch, "aarch64") ? 32 : 16;
    struct program *q = passes_run(g, &(struct pass_options){.fuse = true}) ? program_plan(g, &caps, false, &e) : NULL;
    if (check(q && targets.b->compile_for(q->kernel[0], &caps, EMIT_ASM, &code, &e), "%s: %s", cpu, e.msg)) {
        char *text = strndup(code.bytes, code.size);
        check(strstr(text, name) != NULL, "code for %s (%s) has no %s", cpu, features, name);
        free(text);
    }
    mem_free(code.bytes);
    program_free(q);
    graph_free(g);
}

#if defined(__x86_64__)
static void has_instruction(const char *cpu, const char *features, uint32_t vector_bytes, const char *name)
{
    has_instruction_for("x86_64", cpu, features, vector_bytes, KL_U8, KL_I8, name);
}
#endif

static void add_variant(uint32_t vector_bytes)
{
    struct caps *c = &targets.v[targets.n++];
    *c = targets.v[0];
    c->vector_bytes = vector_bytes;
}

int main(void)
{
    static const struct product list[] = {
        {0, 1, 40, 33, false, false, false},  {0, 5, 7, 9, false, false, false},
               {0, 30, 70, 130, false, false, false},
        {0, 5, 7, 9, false, true, false},     {0, 30, 45, 131, false, true, false},
            {3, 15, 33, 20, false, false, false},
        {2, 6, 20, 18, false, true, false},   {0, 9, 33, 17, true, false, false},   {0, 3, 5, 3, false, false, false},
        {0, 4, 4, 4, false, false, false},    {0, 2, 3, 0, false, false, false},    {0, 17, 34, 68, false, false, true},
        {0, 20, 33, 30, false, true, true},   {0, 4, 64, 64, true, false, true},    {0, 1, 1, 8, false, true, false},
        /* few rows: squares of the second operand, or lines of it, in place */
        {0, 1, 50, 200, false, true, false},  {0, 4, 33, 131, false, true, true},   {2, 3, 16, 64, false, true, false},
        {0, 1, 130, 70, false, false, false}, {2, 4, 67, 33, false, false, true},   {0, 2, 64, 50, true, true, false},
    };
    targets = find_targets();
    if (targets.b && strstr(targets.v[0].features, "+avx512vnni,") && targets.v[0].vector_bytes == 64) {
        add_variant(32);
        add_variant(16);
    }
    if (targets.n) { /* and one without any of it */
        add_variant(targets.v[0].vector_bytes);
        targets.v[targets.n - 1].mma_bytes = 0;
    }
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++)
        try(&list[i]);
    numbers = EXTREMES;
    try(&(struct product){0, 20, 35, 43, false, false, false});
    try(&(struct product){0, 16, 18, 64, false, true, false});
    try(&(struct product){0, 2, 18, 130, false, true, false});
    numbers = LARGEST; /* beyond 2^31, in several panels */
    try(&(struct product){0, 1, 2, 33030, false, true, false});
#if defined(__x86_64__)
    if (targets.n) {
        has_instruction("x86-64-v4", "+avx512vnni", 64, "vpdpbusd");
        has_instruction("alderlake", "+avxvnni", 32, "vpdpbusd");
        has_instruction("x86-64-v4", "", 64, "vpmaddwd");
        has_instruction("x86-64-v3", "", 32, "vpmaddwd");
    }
#endif
    if (targets.n) {
        static const char *const cpu = "generic", *const plain = "+neon", *const dotprod = "+neon,+dotprod";
        has_instruction_for("aarch64", cpu, "+neon,+dotprod,+i8mm", 16, KL_U8, KL_I8, "usdot");
        has_instruction_for("aarch64", cpu, dotprod, 16, KL_U8, KL_I8, "sdot");
        has_instruction_for("aarch64", cpu, dotprod, 16, KL_U8, KL_U8, "sdot");
        has_instruction_for("aarch64", cpu, plain, 16, KL_I8, KL_I8, "saddlp");
    }
    return finish();
}
