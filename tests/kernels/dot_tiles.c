/* Products of bf16 in even_odd order: which ones pass numerics gives it, and the kernels of their family by every
 * field's values at the limits of tiles, interpreted and compiled, against the interpreter of graphs; numbers of all
 * kinds; that the code for a processor with AMX has its instruction. */
#include "kernel_test.h"
#include "passes/lower/schedule.h"

static struct targets targets;
static struct rng rng = {77};
static unsigned compiled, tiled; /* kernels; those with the instruction */

struct product { int64_t batch, m, n, k; bool ta, tb, epilogue; }; /* ta, tb: stored with k first, with k last */

static ref operand(struct graph *g, const char *name, int64_t batch, int64_t rows, int64_t cols)
{
    struct shape s = batch ? shape_make(3, (int64_t[]){batch, rows, cols}) : shape_make(2, (int64_t[]){rows, cols});
    return n_input(g, KL_BF16, &s, name);
}

static struct graph *product(const struct product *p, uint32_t order)
{
    struct graph *g = graph_new("product");
    unsigned first = p->batch != 0;
    ref a = p->ta ? operand(g, "a", p->batch, p->k, p->m) : operand(g, "a", p->batch, p->m, p->k);
    ref b = p->tb ? operand(g, "b", p->batch, p->n, p->k) : operand(g, "b", p->batch, p->k, p->n);
    union attr dims = {.dot = {.ncon = 1}};
    dims.dot.con_a = first + !p->ta, dims.dot.con_b = first + p->tb, dims.dot.nbatch = (uint8_t)first;
    dims.dot.order = order;
    if (order & DOT_EVEN_ODD)
        dims.dot.lanes = 1, dims.dot.kblock = EVEN_ODD_BLOCK;
    ref y = n_dot(g, a, b, &dims);
    if (p->epilogue)
        y = n_add(g, n_tanh(g, y), y);
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

/* bf16 of all kinds: any bits, numbers whose products are near the smallest normal f32, ones of similar size. */
static uint16_t some_bf16(unsigned kind)
{
    static const uint16_t special[] = {0, 0x8000, 1, 0x807f, 0x0080, 0x8080, 0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0x3f80};
    uint64_t r = rng_next(&rng);
    switch (kind) {
    case 0: return (uint16_t)((r & 0x807f) | (118 + (r >> 20) % 14) << 7);
    case 1: return (uint16_t)((r & 0x807f) | (58 + (r >> 20) % 10) << 7);
    case 2: return r >> 60 ? (uint16_t)((r & 0x80ff) | (60 + (r >> 20) % 6) << 7) : special[(r >> 20) % 6];
    default: return r >> 58 ? (uint16_t)((r & 0x807f) | (100 + (r >> 20) % 40) << 7) : special[(r >> 20) % 11];
    }
}

static void fill(const struct graph *g, struct values *in)
{
    static unsigned kind;
    values_random(&rng, g, &g->input, false, in);
    for (uint32_t i = 0; i < 2; i++)
        for (int64_t j = 0; j < node_numel(g, i + 1); j++) ((uint16_t *)in->v[i])[j] = some_bf16(kind % 4);
    kind++;
}

/* The program by this record, or by the chosen one; NULL: refused. */
static struct program *plan(const struct graph *g, const struct caps *caps, const char *record, struct err *e)
{
    bool epilogue = g->node[g->out[0].value].op != OP_dot;
    struct sched_sections s = {0};
    struct program *p = NULL;
    char text[300];
    snprintf(text, sizeof text, "graph @product\n@k0_dot%s schedule %s\n", epilogue ? "_tanh_add" : "",
             record ? record : "");
    struct graph *h = graph_clone(g);
    bool ok = passes_run(h, &(struct pass_options){.fuse = true, .verify = true}) &&
              (!record || schedules_parse(text, strlen(text), "test", &s, e));
    if (ok)
        p = program_plan_with(h, caps, s.n ? &s.v[0] : NULL, NULL, NULL, e);
    schedules_free(&s);
    graph_free(h);
    return p;
}

static bool has_instruction(const struct kernel *k)
{
    struct code code = {0};
    struct err e = {0};
    bool found = false;
    if (check(targets.b->compile_for(k, &targets.v[0], EMIT_ASM, &code, &e), "%s", e.msg)) {
        char *text = strndup(code.bytes, code.size);
        found = strstr(text, "tdpbf16ps") != NULL;
        free(text);
    }
    mem_free(code.bytes);
    return found;
}

/* The kernel for caps against the graph's interpreter; where this processor has the instruction, by it, too. */
static void try_record(const struct graph *g, const struct caps *caps, const struct values *in, const void *want,
                       const char *record, const char *what)
{
    struct err e = {0};
    struct program *p = plan(g, caps, record, &e);
    char name[400];
    snprintf(name, sizeof name, "%s, %s, %s", what, caps->name, record ? record : "as chosen");
    const struct kernel *k = only_kernel(p, name, &e);
    if (k) {
        check((k->sched.kind == SCHED_DOT_TILES) == caps->bf16_tiles, "%s: of another family", name);
        struct targets one = {.b = targets.b, .v[0] = targets.v[0]};
        /* without the instruction code for its tiles is long: the interpreter alone */
        one.n = targets.n && (!caps->bf16_tiles || targets.v[0].bf16_tiles);
        agree_planned(&one, p, in, want, name);
        compiled += one.n;
        if (one.n && caps->bf16_tiles)
            tiled += has_instruction(k);
    }
    program_free(p);
}

static const struct caps with = {.name = "with tiles", .vector_bytes = 64, .vector_regs = 32, .threads = 1,
                                 .l1_bytes = 48 << 10, .l2_bytes = 2 << 20, .l3_bytes = 32 << 20, .bf16_tiles = 1};

static void try_product(const struct product *p, const char *const *record, unsigned n)
{
    struct graph *g = product(p, DOT_EVEN_ODD);
    struct values in, none = {0}, want = {0};
    struct err e = {0};
    char what[160];
    struct caps without = with, threads = with;
    without.bf16_tiles = 0;
    snprintf(without.name, sizeof without.name, "without tiles");
    threads.threads = 4;
    snprintf(what, sizeof what, "%s by %s, %" PRId64 " of %" PRId64 "x%" PRId64 "x%" PRId64,
             p->ta ? "transposed" : "plain", p->tb ? "transposed" : "plain", p->batch, p->m, p->n, p->k);
    fill(g, &in);
    if (check(run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s", e.msg)) {
        for (unsigned i = 0; i < n; i++) try_record(g, &with, &in, want.v[0], record[i], what);
        if (!n) {
            try_record(g, &with, &in, want.v[0], NULL, what);
            try_record(g, &threads, &in, want.v[0], NULL, what);
            try_record(g, &without, &in, want.v[0], NULL, what);
        }
    }
    values_free(&in);
    values_free(&want);
    graph_free(g);
}

/* ---- records ---- */

static void test_records(void)
{
    static const char *const plain[] = {
        "dot_tiles width 32 tile 32x32 kblock 32 rows 48 panel 96",
        "dot_tiles width 16 tile 16x16 kblock 32 rows 16 panel 32",
        "dot_tiles width 32 tile 16x32 kblock 32 rows 32 panel 64", "dot_tiles width 16 tile 32x16 kblock 32 rows 32",
        "dot_tiles width 32 tile 32x32 kblock 32 rows 32 panel 64 pack_a", "dot_tiles tile 32x32 kblock 32",
        "dot_tiles width 32 tile 32x32 kblock 32 rows 48 panel 32 pack_a run 32",
        "dot_tiles width 16 tile 16x16 kblock 32 rows 32 panel 96 pack_a run 16"};
    static const char *const packed[] = {
        "dot_tiles width 32 tile 32x32 kblock 32 rows 49 panel 97 pack_a",
        "dot_tiles width 32 tile 32x32 kblock 32 rows 32 panel 96 pack_a run 32",
        "dot_tiles width 16 tile 16x16 kblock 32 rows 16 panel 32 pack_a run 48"};
    try_product(&(struct product){0, 48, 64, 96, false, false, false}, plain, sizeof plain / sizeof *plain);
    try_product(&(struct product){0, 48, 64, 96, false, true, true}, plain, sizeof plain / sizeof *plain);
    try_product(&(struct product){2, 49, 96, 97, false, false, true}, packed, sizeof packed / sizeof *packed);
    try_product(&(struct product){0, 49, 96, 97, true, true, false}, packed, sizeof packed / sizeof *packed);
}

static void test_refused(void)
{
    static const struct { const char *record, *why; } list[] = {
        {"tile 24x32 kblock 32", "sides are multiples of 16"},
        {"tile 32x8 kblock 32", "sides are multiples of 16"},
        {"tile 32x64 kblock 32", "8 registers"},
        {"tile 32x32 kblock 64", "the order of the graph's sums"},
        {"tile 32x32 kblock 32 rows 24", "whole number of tiles"},
        {"tile 32x32 kblock 32 rows 96", "whole number of tiles"},
        {"tile 32x32 kblock 32 panel 48", "a multiple of 32"},
        {"tile 32x32 kblock 32 panel 160", "a multiple of 32"},
        {"tile 32x32 kblock 32 run 32", "with pack_a"},
        {"tile 32x32 kblock 32 pack_a run 48", "divide all"},
    };
    struct graph *g = product(&(struct product){0, 64, 64, 128, false, false, false}, DOT_EVEN_ODD);
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
        struct err e = {0};
        char record[200];
        snprintf(record, sizeof record, "dot_tiles %s", list[i].record);
        struct program *p = plan(g, &with, record, &e);
        check(!p && strstr(e.msg, list[i].why), "%s: %s", list[i].record, p ? "taken" : e.msg);
        program_free(p);
    }
    graph_free(g);
    g = product(&(struct product){0, 63, 64, 128, false, false, false}, DOT_EVEN_ODD);
    struct err e = {0};
    struct program *p = plan(g, &with, "dot_tiles tile 32x32 kblock 32", &e);
    check(!p && strstr(e.msg, "cannot be read in place"), "63 rows in place: %s", p ? "taken" : e.msg);
    program_free(p);
    graph_free(g);
}

/* ---- tiles of the loop IR ---- */

/* Products of `tiles` by `tiles` tiles, whose sums are carried over `steps` of a loop and start from memory or zeros;
 * with `mask` of loads that no instruction for tiles has. */
static void test_even_odd(unsigned rows, unsigned cols, unsigned depth, unsigned tiles, int64_t steps, bool zero,
                          bool mask)
{
    enum { SIDES = 2 };
    static unsigned kind;
    void *init[MAX_BUFS] = {0};
    struct kernel *k = kernel_new("even_odd");
    int64_t height = rows * SIDES, width = cols * SIDES, length = steps * depth;
    uint32_t a = k_buf(k, BUF_IN, KL_BF16, height * length, 0), b = k_buf(k, BUF_IN, KL_U32, length / 2 * width, 1);
    uint32_t c = k_buf(k, BUF_IN, KL_F32, height * width, 2), o = k_buf(k, BUF_OUT, KL_F32, height * width, 3);
    val sum[SIDES][SIDES], carry[SIDES][SIDES], x[SIDES], y[SIDES], w = k_int(k, width), l = k_int(k, length);
    struct linst below = {.op = L_INDEX, .dtype = KL_I64, .kind = TILE_COLS, .rows = 1, .cols = (uint16_t)depth};
#define TILE(...) k_append(k, (struct linst){__VA_ARGS__})
#define SHAPE(r, n) .rows = (uint16_t)(r), .cols = (uint16_t)(n)
    val there = mask ? TILE(.op = L_OP(P_LT), .dtype = KL_BOOL, SHAPE(1, depth), .a = k_append(k, below),
                            .b = k_int(k, depth - 1)) : 0;
    for (unsigned i = 0; i < tiles; i++)
        for (unsigned j = 0; j < tiles; j++)
            sum[i][j] = zero ? TILE(.op = L_SPLAT, .dtype = KL_F32, SHAPE(rows, cols), .a = k_bits(k, KL_F32, 0))
                             : TILE(.op = L_LOAD, .dtype = KL_F32, SHAPE(rows, cols), .d = w, .imm = c,
                                    .a = k_int(k, i * rows * width + j * cols));
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, length), depth);
    for (unsigned i = 0; i < tiles; i++)
        for (unsigned j = 0; j < tiles; j++)
            carry[i][j] = TILE(.op = L_CARRY, .dtype = KL_F32, SHAPE(rows, cols), .a = sum[i][j]);
    for (unsigned i = 0; i < tiles; i++) {
        val from = ix_add(k, ix_scale(k, ix_div(k, step, 2), width), k_int(k, i * cols));
        x[i] = TILE(.op = L_LOAD, .dtype = KL_BF16, SHAPE(rows, depth), .d = l, .imm = a, .b = there,
                    .a = ix_add(k, step, k_int(k, i * rows * length)));
        y[i] = TILE(.op = L_LOAD, .dtype = KL_U32, SHAPE(depth / 2, cols), .d = w, .imm = b, .a = from);
    }
    for (unsigned i = 0; i < tiles; i++)
        for (unsigned j = 0; j < tiles; j++)
            sum[i][j] = TILE(.op = L_MMA, .kind = MMA_EVEN_ODD, .dtype = KL_F32, SHAPE(rows, cols), .a = x[i],
                             .b = y[j], .c = carry[i][j]);
    for (unsigned i = 0; i < tiles; i++)
        for (unsigned j = 0; j < tiles; j++) k_next(k, carry[i][j], sum[i][j]);
    k_end(k, step);
    for (unsigned i = 0; i < tiles; i++)
        for (unsigned j = 0; j < tiles; j++) {
            val out = TILE(.op = L_OUT, .dtype = KL_F32, SHAPE(rows, cols), .a = carry[i][j]);
            TILE(.op = L_STORE, .dtype = KL_F32, .b = out, .d = w, .imm = o,
                 .a = k_int(k, i * rows * width + j * cols));
        }
#undef TILE
#undef SHAPE
    kind = (kind + 1) % 4;
    for (uint32_t i = 0; i < k->nbuf; i++) {
        uint32_t *v = calloc((size_t)k->buf[i].count + 1, sizeof *v);
        for (int64_t n = 0; n < k->buf[i].count; n++)
            if (i == a) ((uint16_t *)v)[n] = some_bf16(kind);
            else v[n] = (uint32_t)some_bf16(kind) << 16 | (i == c ? (uint16_t)rng_next(&rng) : some_bf16(kind));
        init[i] = v;
    }
    char what[96];
    snprintf(what, sizeof what, "even_odd %ux%ux%u, %u tiles, %d steps", rows, cols, depth, tiles, (int)steps);
    struct targets some = targets; /* without the instruction code for its tiles is long */
    some.n = targets.n && depth == 32 ? 1 : targets.n;
    agree(&some, k, (const void *const *)init, NULL, NULL, what);
    for (uint32_t i = 0; i < k->nbuf; i++) free(init[i]);
    kernel_free(k);
}

/* ---- which products have the order ---- */

static void test_numerics(void)
{
    static const struct { struct product p; uint32_t order, want; uint64_t tiles; } list[] = {
        {{0, 128, 128, 64, false, false, false}, 0, DOT_EVEN_ODD, 1},
        {{0, 128, 128, 64, false, false, false}, 0, 0, 0},
        {{0, 128, 128, 64, false, false, false}, DOT_ANY_SIZE, DOT_ANY_SIZE, 1},
        {{0, 128, 128, 63, false, false, false}, 0, 0, 1},
        {{0, 128, 127, 64, false, false, false}, 0, 0, 1},
        {{0, 31, 1024, 1024, false, false, false}, 0, 0, 1},
        {{0, 1024, 31, 1024, false, false, false}, 0, 0, 1},
        {{0, 32, 32, 1024, false, false, false}, 0, DOT_EVEN_ODD, 1},
        {{8, 64, 64, 64, false, false, false}, 0, 0, 1},
    };
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
        struct graph *g = product(&list[i].p, list[i].order);
        struct pass_options o = {.bf16_tiles = list[i].tiles ? UINT64_MAX : 0};
        const struct node *n = &g->node[3];
        pass_run(pass_find("numerics", 8), g, &o);
        check(n->op == OP_dot && n->attr.dot.order == list[i].want &&
                  (n->attr.dot.kblock == EVEN_ODD_BLOCK) == !!(list[i].want & DOT_EVEN_ODD),
              "product %u: order %u in blocks of %u", i, n->attr.dot.order, n->attr.dot.kblock);
        graph_free(g);
    }
}

/* Code for a processor with AMX, on any processor for which there is code. */
static void test_instruction(void)
{
#if defined(__x86_64__) && !defined(KILN_ASAN) && !defined(KILN_TSAN)
    struct graph *g = product(&(struct product){0, 64, 64, 64, false, false, false}, DOT_EVEN_ODD);
    struct caps caps = with;
    struct err e = {0};
    struct code code = {0};
    snprintf(caps.name, sizeof caps.name, "sapphirerapids");
    snprintf(caps.features, sizeof caps.features,
             "+amx-tile,+amx-bf16,+avx512f,+avx512bw,+avx512vl,+avx512dq,+fma,+f16c");
    struct program *p = plan(g, &caps, NULL, &e);
    if (check(p && targets.b->compile_for(p->kernel[0], &caps, EMIT_ASM, &code, &e), "AMX: %s", e.msg)) {
        char *text = strndup(code.bytes, code.size);
        unsigned products = 0;
        for (const char *s = text; (s = strstr(s, "tdpbf16ps")); s++) products++;
        check(products == 4, "a tile of 32x32 has %u instructions", products);
        check(strstr(text, "ldtilecfg") && strstr(text, "tilerelease"), "the code does not configure tiles");
        free(text);
    }
    mem_free(code.bytes);
    program_free(p);
    graph_free(g);
#endif
}

int main(void)
{
    static const struct product list[] = {
        {0, 1, 1, 1, false, false, false},    {0, 1, 40, 33, false, false, false}, {0, 16, 16, 32, false, false, false},
        {0, 15, 17, 31, true, false, false},  {0, 17, 15, 63, false, true, true},  {2, 33, 31, 64, true, true, false},
        {0, 32, 33, 65, false, false, true},  {0, 31, 33, 1030, true, false, true}, {2, 64, 64, 32, false, true, false},
    };
    targets = find_targets();
    test_numerics();
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) try_product(&list[i], NULL, 0);
    test_records();
    test_refused();
    bool tiles = targets.n && targets.v[0].bf16_tiles;
    for (unsigned i = 0; i < 6 && tiles; i++) test_even_odd(16, 16, 32, 1 + i % 2, i % 3, i & 2, false);
    test_even_odd(4, 16, 32, 1, 1, false, true);
    test_even_odd(5, 7, 6, 1, 2, true, false);
    test_even_odd(2, 16, 4, 2, 1, false, false);
    if (targets.n)
        test_instruction();
    if (targets.n && targets.v[0].bf16_tiles)
        check(tiled > 0 && tiled + sizeof list / sizeof *list == compiled, "%u of %u kernels have the instruction",
              tiled, compiled);
    return finish();
}
