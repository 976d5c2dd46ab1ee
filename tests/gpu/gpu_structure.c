/* The machine code and the launches of named kernels for an H200, against a table that a change must not worsen, and
 * against bounds that no change may break.
 *
 *   gpu_structure [CASE ...]    all cases, or those named; no device is needed
 *   gpu_structure share         some of the cases (is_in_share)
 *   gpu_structure list CASE ... the kernels of these cases, one a line, the most expensive first
 *
 * Each case is a graph, or a whole training step (gpu_step_text.h) in f32 or, with "-bf16" behind its name, under
 * autocast.  Its kernels are lowered for sm_90a, compiled by NVRTC, and the instructions of the machine code are
 * counted.  gpu_structure.def has the counts; KILN_BLESS=1 writes what was counted into it.  Registers depend on the
 * compiler: they are compared only where NVRTC has the version that the table names.  Where nvdisasm is found
 * ($KILN_NVDISASM, or on the path), its listing must give the same counts.
 *
 * The steps of GPT-2 are in no table: for them there are figures with goals (step_bounds), of which
 * gpu_structure_figures.def has the present values.  They may only fall: KILN_BLESS lowers them. */
#include "codegen/gpu/compilers/compile.h"
#include "codegen/gpu/source.h"
#include "tests/gpu/structure/gpu_machine_code.h"
#include "tests/gpu/structure/gpu_step_figures.h"
#include "tests/gpu/structure/gpu_step_text.h"
#include "tests/support/harness.h"

enum { PROCESSORS = 132, REGISTERS_MORE = 8, MANY_BLOCKS = 64 /* registers: half of all threads run */,
       THREADS = 512 /* of a processor: enough */, FFMA_FOR_ACCESS = 16 /* to shared memory, in a loop of products */ };
static const char architecture[] = "sm_90a", table_path[] = "tests/gpu/gpu_structure.def",
                  figures_path[] = "tests/gpu/gpu_structure_figures.def";

/* ---- the cases ---- */

static const struct { const char *name, *text; } graphs[] = {
#include "gpu_structure_graphs.def"
};
enum { GRAPHS = sizeof graphs / sizeof *graphs, MAX_CASES = GRAPHS + 32 };

/* Also lowered with option order = graph, as cases with "-graph" behind their names. */
static const char *const ordered[] = {"gelu_chain", "softmax", "softmax_3000", "softmax_4096", "softmax_8000",
                                      "softmax_12000", "softmax_16000", "layer_norm", "sum_all", "sum_rows",
                                      "sum_few_rows", "sum_columns", "f32_4096", "f32_activation", "f32_heads",
                                      "f32_rows_8", NULL};

static struct { char name[48]; const char *text; const char *step; } cases[MAX_CASES]; /* step: its name, or NULL */
static unsigned ncase;

static void name_cases(void)
{
    for (; ncase < GRAPHS; ncase++) {
        snprintf(cases[ncase].name, sizeof cases->name, "%s", graphs[ncase].name);
        cases[ncase].text = graphs[ncase].text;
    }
    for (unsigned half = 0; half < 2; half++)
        for (const char *const *step = gpu_step_names; *step && ncase < MAX_CASES; step++, ncase++) {
            snprintf(cases[ncase].name, sizeof cases->name, "%s%s", *step, half ? "-bf16" : "");
            cases[ncase].step = *step;
        }
    for (const char *const *name = ordered; *name && ncase < MAX_CASES; name++)
        for (unsigned i = 0; i < GRAPHS; i++)
            if (!strcmp(cases[i].name, *name)) {
                snprintf(cases[ncase].name, sizeof cases->name, "%s-graph", *name);
                cases[ncase++].text = cases[i].text;
            }
}

/* ---- counts ---- */

static const struct row { const char *name; struct counts c; } table[] = {
#define STRUCTURE(name, ...) {name, {__VA_ARGS__, .loads = 0}},
#define COMPILER(version)
#include "gpu_structure.def"
#undef STRUCTURE
#undef COMPILER
    {NULL, {0}}};
static const char compiler[] =
#define STRUCTURE(...)
#define COMPILER(version) version
#include "gpu_structure.def"
#undef STRUCTURE
#undef COMPILER
    "";

static const struct counts *row_of(const char *name)
{
    for (const struct row *r = table; r->name; r++)
        if (!strcmp(r->name, name))
            return &r->c;
    return NULL;
}

static unsigned listed;

static void compare_listing(const char *name, const struct code *code, const struct counts *c)
{
    struct counts l = {.registers = c->registers, .products = c->products, .others = c->others, .burst = c->burst,
                       .in_flight = c->in_flight, .instructions = c->instructions, .ffma_loops = c->ffma_loops,
                       .loop_ffma = c->loop_ffma, .loop_shared = c->loop_shared};
    if (*machine_code_disassembler() == '-')
        return;
    if (!check(machine_code_listing(code, &l), "%s: %s fails", name, machine_code_disassembler()))
        return;
    check(!memcmp(&l, c, sizeof l),
          "%s: nvdisasm lists %u global accesses, %u wide, %u barriers, %u local, %u HMMA, %u HGMMA, %u FFMA, %u "
          "shared, %u copies; counted are %u, %u, %u, %u, %u, %u, %u, %u, %u", name, l.global, l.wide, l.barriers,
          l.local, l.hmma, l.hgmma, l.ffma, l.shared, l.async, c->global, c->wide, c->barriers, c->local, c->hmma,
          c->hgmma, c->ffma, c->shared, c->async);
    listed++;
}

/* ---- bounds of GPT-2's step ---- */

enum { FIGURES = 5 };
static const char *const figure_name[FIGURES] = {"launches", "products whose operands come by no 16-byte copy",
                                                 "kernels with narrow accesses", "passes over logits",
                                                 "kernels with accesses to local memory"};

static struct step_bound {
    const char *name;
    unsigned first_launches;        /* of commit c9fab1e5 */
    unsigned present[FIGURES];
} step_bounds[] = {
#define STEP(name, first_launches, ...) {name, first_launches, {__VA_ARGS__}},
#include "gpu_structure_figures.def"
#undef STEP
};
enum { STEP_BOUNDS = sizeof step_bounds / sizeof *step_bounds };
static bool lists;

static struct step_bound *step_bound_of(const char *name)
{
    for (unsigned i = 0; i < STEP_BOUNDS; i++)
        if (!strcmp(step_bounds[i].name, name))
            return &step_bounds[i];
    return NULL;
}

/* ---- one case ---- */

static unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

/* Is this one of the cases whose launches have two blocks for each processor, or as many as their data allow? */
static bool fills_device(const char *name)
{
    static const char *const filling[] = {"sum_all", "sum_few_rows", "sum_columns", "cumsum", "cumsum_odd", "sort",
                                          "index_add", "softmax_16000", "f32_rows_1", "f32_rows_8", "f32_rows_16",
                                          "f32_rows_8_along", "bf16_rows_1", "bf16_rows_8", "bf16_rows_16"};
    for (unsigned i = 0; i < sizeof filling / sizeof *filling; i++)
        if (!strcmp(filling[i], name))
            return true;
    return false;
}

/* Where a launch has fewer blocks, a thread's loops are short: there is no work that more threads could share.  The
 * driver is assumed to run one block of the kernel on each processor, the fewest that it can. */
static void check_launch(const char *name, const struct kernel *k, const struct phase *p, struct device_kernel *d)
{
    enum { FEW = 80 };
    d->resident = PROCESSORS;
    unsigned blocks = accelerator_blocks(d, p->extent);
    d->resident = 0;
    int64_t steps = source_steps(k, p);
    check(blocks >= 2 * PROCESSORS || ((int64_t)blocks == p->extent && steps <= FEW),
          "%s: kernel %s: a launch of %u blocks, %lld iterations, %lld steps of a thread", name, k->name, blocks,
          (long long)p->extent, (long long)steps);
}

/* The launches of a kernel: one for each phase. */
static void count_launches(const char *name, const struct kernel *k, const struct source_info *info, struct counts *c)
{
    struct phase p = {0};
    struct device_kernel *d = calloc(1, sizeof *d + k->nbuf);
    for (uint32_t b = 0; d && b < k->nbuf; b++)
        if (k->buf[b].role == BUF_SCRATCH && !info->local[b])
            d->work += k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype);
    while (d && kernel_phase(k, &p)) {
        unsigned blocks = accelerator_blocks(d, p.extent);
        if (p.extent && fills_device(name))
            check_launch(name, k, &p, d);
        if (p.extent && (!c->blocks || (uint64_t)blocks * info->threads < (uint64_t)c->blocks * c->threads)) {
            c->blocks = blocks;
            c->threads = info->threads;
        }
    }
    free(d);
}

static void count_arrays(const struct kernel *k, const struct source_info *info, struct counts *c)
{
    for (uint32_t b = 0; b < k->nbuf; b++)
        if (k->buf[b].role != BUF_IN && !info->local[b] && k->buf[b].count > c->largest)
            c->largest = k->buf[b].count;
    if (k->sched.kind == SCHED_DOT_MATRIX)
        c->stages = schedule_of(k)->dot_matrix.stages;
}

static void add_counts(const struct counts *c, struct counts *sum)
{
    sum->kernels++;
    sum->global += c->global;
    sum->wide += c->wide;
    sum->local += c->local;
    sum->hmma += c->hmma;
    sum->hgmma += c->hgmma;
    sum->async += c->async;
    sum->async_wide += c->async_wide;
    sum->panels += c->panels;
    sum->ffma += c->ffma;
    sum->shared += c->shared;
    sum->loads += c->loads;
    sum->calls += c->calls;
    sum->instructions += c->instructions;
    sum->products += c->products;
    sum->others += c->others;
    machine_code_count_ffma_loop(c, sum);
    sum->in_flight = max(sum->in_flight, c->in_flight);
    sum->barriers = max(sum->barriers, c->barriers);
    sum->registers = max(sum->registers, c->registers);
}

/* The counts of kernels that were compiled before: the steps have some in common. */
static struct counts *known_counts(const struct kernel *k, bool *known)
{
    enum { MAX_COUNT = 1024 };
    static struct { struct hash128 hash; struct counts c; } v[MAX_COUNT];
    static unsigned n;
    struct hash128 h = kernel_hash(k);
    unsigned i = 0;
    while (i < n && (v[i].hash.lo != h.lo || v[i].hash.hi != h.hi))
        i++;
    *known = i < n;
    if (i == n && n < MAX_COUNT - 1)
        n++;
    v[i].hash = h;
    return &v[i].c;
}

/* Words that blocks in order publish and receive: no data. */
static unsigned count_words(const struct kernel *k)
{
    unsigned n = 0;
    for (val v = 1; v < k->ninst; v++)
        n += k->inst[v].op == L_PUBLISH || k->inst[v].op == L_RECEIVE;
    return n;
}

static void count_narrow(const struct kernel *k, const struct source_info *info, struct step_kernel *own)
{
    for (uint32_t b = 0; b < k->nbuf; b++)
        if (!info->local[b] && info->narrow[b]) {
            int64_t times = k->buf[b].role == BUF_WORKSPACE ? 2 : 1;
            own->narrow += info->narrow[b];
            own->narrow_bytes += times * kernel_members(k) * k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype);
        }
}

/* *own: what this kernel alone has. */
static bool count_kernel(const char *name, const struct kernel *k, const struct caps *caps, struct step_kernel *own,
                         struct counts *sum)
{
    struct err e = {0};
    struct text source = {0};
    struct code code = {0};
    struct source_info info = {0};
    bool known;
    struct counts *c = known_counts(k, &known);
    const struct dialect *d = dialect_find("cuda", &e);
    const struct gpu_compiler *nvrtc = gpu_compiler_find("cuda", &e);
    dialect_prelude(d, caps->features, &source);
    bool ok = check(source_kernel(k, d, "kernel", &source, &info, &e), "%s: %s", name, e.msg);
    if (ok && !known) {
        *c = (struct counts){0};
        ok = check(nvrtc->compile(source.s, architecture, GPU_BINARY, &code, &e), "%s: %s", name, e.msg) &&
             check(machine_code_count(&code, c) && c->global >= count_words(k), "%s: no machine code", name);
        c->global -= ok ? count_words(k) : 0;
        if (ok && getenv("KILN_STRUCTURE_TEXT"))
            printf("%s\n", source.s);
        if (ok)
            compare_listing(name, &code, c);
        /* in the graph's order sums of earlier blocks of a product wait there, outside of the loop of a block */
        check(!ok || !c->local || caps->graph_order || step_bound_of(name),
              "%s: kernel %s has %u accesses to local memory", name, k->name, c->local);
    }
    if (ok) {
        count_launches(name, k, &info, sum);
        count_arrays(k, &info, sum);
        add_counts(c, sum);
        own->c = *c;
        count_launches(name, k, &info, &own->c);
        count_narrow(k, &info, own);
    }
    source_info_free(&info);
    mem_free(code.bytes);
    mem_free(source.s);
    return ok;
}

/* ---- figures of GPT-2's step ---- */

static unsigned step_goal(const struct step_bound *b, unsigned figure)
{
    const unsigned goal[FIGURES] = {b->first_launches * 6 / 10, 0, 0, 4, 0};
    return goal[figure];
}

static void bless_steps(void)
{
    FILE *f = fopen(figures_path, "w");
    if (!check(f, "%s cannot be written", figures_path))
        return;
    fprintf(f, "/* Figures of GPT-2's step, which may only fall (gpu_structure.c): STEP(case, launches at commit "
            "c9fab1e5,\n * and now: launches, products whose operands come by no 16-byte copy, kernels with narrow "
            "accesses, passes\n * over logits, kernels with accesses to local memory) */\n");
    for (const struct step_bound *b = step_bounds; b < step_bounds + STEP_BOUNDS; b++)
        fprintf(f, "STEP(\"%s\", %u, %u, %u, %u, %u, %u)\n", b->name, b->first_launches, b->present[0],
                b->present[1], b->present[2], b->present[3], b->present[4]);
    fclose(f);
}

/* A bound that is not met yet may only fall. */
static void note_step(unsigned i, const struct program *p, struct step_kernel *v)
{
    const int64_t logits = (int64_t)GPT2_BATCH * GPT2_TOKENS * GPT2_WORDS;
    const char *name = cases[i].name;
    struct step_bound *b = step_bound_of(name);
    struct step_figures f = step_figures(p, v, logits);
    const unsigned now[FIGURES] = {f.launches, f.unstaged_products, f.narrow_kernels, f.large_passes,
                                   f.local_kernels};
    for (unsigned n = 0; b && n < FIGURES; n++) {
        printf("%s: %u %s, bound %u, goal %u\n", name, now[n], figure_name[n], b->present[n],
               step_goal(b, n));
        check(now[n] <= b->present[n], "%s: %u %s, were %u", name, now[n], figure_name[n], b->present[n]);
        if (getenv("KILN_BLESS") && now[n] < b->present[n])
            b->present[n] = now[n];
    }
    if (lists)
        step_print(p, v, logits);
}

static bool count_case(unsigned i, const struct caps *caps, struct counts *sum)
{
    struct err e = {0};
    char *step = cases[i].step ? gpu_step_text(cases[i].step, strstr(cases[i].name, "-bf16")) : NULL;
    const char *text = cases[i].step ? step : cases[i].text;
    if (!check(text, "%s: %s", cases[i].name, kl_last_error()))
        return false;
    struct graph *g = graph_parse(text, strlen(text), NULL, &e);
    struct program *p = NULL;
    free(step);
    *sum = (struct counts){0};
    if (g && passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}))
        p = program_plan(g, caps, false, &e);
    bool ok = check(p, "%s: %s", cases[i].name, g && g->err.code ? g->err.msg : e.msg);
    struct step_kernel *v = p ? calloc(p->nkernel + 1, sizeof *v) : NULL;
    for (uint32_t n = 0; ok && n < p->nkernel; n++) {
        v[n].k = p->kernel[n];
        ok = count_kernel(cases[i].name, p->kernel[n], caps, &v[n], sum);
    }
    for (uint32_t c = 0; ok && c < p->ncmd; c++)
        if (p->cmd[c].kind == CMD_KERNEL)
            v[p->cmd[c].kernel].launches++;
    if (ok)
        note_step(i, p, v);
    free(v);
    program_free(p);
    graph_free(g);
    return ok;
}

static unsigned share(unsigned part, unsigned whole) { return whole ? 100 * part / whole : 0; }

/* Is what was counted no worse than the table's row?  Of matrix instructions there have to be some if there were. */
static void compare(const char *name, const struct counts *c, bool registers)
{
    const struct counts *t = row_of(name);
    if (!check(t, "%s is not in %s", name, table_path))
        return;
    bool wide = share(c->wide, c->global) >= share(t->wide, t->global);
    check(wide || c->global - c->wide <= t->global - t->wide, "%s: %u of %u global accesses are 16 bytes wide, were %u "
          "of %u", name, c->wide, c->global, t->wide, t->global);
    check(c->kernels <= t->kernels, "%s: %u kernels, were %u", name, c->kernels, t->kernels);
    check(c->barriers <= t->barriers, "%s: %u barriers, were %u", name, c->barriers, t->barriers);
    check(c->local <= t->local, "%s: %u accesses to local memory, were %u", name, c->local, t->local);
    check(!registers || c->registers <= MANY_BLOCKS || c->registers <= t->registers + REGISTERS_MORE,
          "%s: %u registers, were %u", name, c->registers, t->registers);
    check(!t->hmma || c->hmma || c->hgmma, "%s: no instruction of a matrix unit", name);
    check(!t->hgmma || c->hgmma, "%s: no HGMMA", name);
    check((uint64_t)c->ffma * t->shared >= (uint64_t)t->ffma * c->shared, "%s: %u FFMA for %u accesses to shared "
          "memory, were %u for %u", name, c->ffma, c->shared, t->ffma, t->shared);
    check((uint64_t)c->others * t->products <= (uint64_t)t->others * c->products, "%s: a loop has %u instructions "
          "beside %u products, had %u beside %u", name, c->others, c->products, t->others, t->products);
    check(!t->async || c->async || c->panels, "%s: no copy to shared memory", name);
    check(!t->panels || c->panels, "%s: no TMA load", name);
    check((uint64_t)c->blocks * c->threads >= (uint64_t)t->blocks * t->threads ||
          c->blocks * c->threads >= PROCESSORS * THREADS,
          "%s: a launch of %u blocks of %u threads, was of %u of %u", name, c->blocks, c->threads, t->blocks,
          t->threads);
}

/* What no change may break, whatever the table says.  0: no bound. */
static const struct bound {
    const char *name;
    bool no_calls;
    unsigned wide, narrow, accesses, barriers, hgmma, panels, copies, loads, loops, threads, stages, in_flight;
    int64_t largest;
} bounds[] = {
    /* wide: percent of the global accesses; narrow: how many others there are at most; accesses: all of them, at most;
     * copies: cp.async of 16 bytes, and no shorter ones; loads: FFMA for each from shared memory; loops: how many loops
     * of FFMA there are at least, each with 16 for each access to shared memory; threads: of a block, at least;
     * in_flight: loads of 16 bytes that a thread issues before it uses one; largest: elements, of an array */
    {.name = "gelu_chain", .wide = 90, .barriers = 4},
    {.name = "softmax", .wide = 90, .barriers = 4},
    {.name = "layer_norm", .wide = 90, .barriers = 4},
    {.name = "f32_4096-graph", .wide = 100, .copies = 16, .loads = 15},
    {.name = "f32_heads-graph", .wide = 100, .copies = 16, .loads = 15},
    {.name = "cumsum", .wide = 100, .accesses = 9 /* each line of a tile is loaded and stored once; zeros */},
    {.name = "cumsum_odd", .narrow = 2 /* the last elements */, .accesses = 11},
    {.name = "transpose", .wide = 100},
    {.name = "transpose_half", .wide = 100},
    {.name = "f32_4096", .wide = 100, .copies = 16, .loads = 15 /* 2 and 2 before the loop: transposed */},
    {.name = "f32_weight_grad", .wide = 100, .copies = 16, .loads = 16},
    {.name = "f32_heads", .wide = 100, .copies = 16, .loads = 15 /* 2 and 2 before the loop: transposed */},
    {.name = "f32_logits", .wide = 100, .copies = 32, .loads = 14, .largest = (int64_t)8192 * 50272},
    {.name = "bf16_4096", .hgmma = 1, .panels = 1, .stages = 3},
    {.name = "bf16_activation", .no_calls = true, .wide = 100, .hgmma = 1, .panels = 1, .stages = 3},
    {.name = "bf16_activation_grad", .no_calls = true, .wide = 100, .hgmma = 1, .panels = 1, .stages = 3},
    {.name = "bf16_residual", .wide = 100, .hgmma = 1, .panels = 1, .stages = 3},
    {.name = "f32_rows_1", .in_flight = 8},
    {.name = "f32_rows_8", .in_flight = 8},
    {.name = "f32_rows_16", .in_flight = 8},
    {.name = "f32_rows_8_along", .in_flight = 4},
    {.name = "bf16_rows_1", .in_flight = 8},
    {.name = "bf16_rows_8", .in_flight = 8},
    {.name = "bf16_rows_16", .copies = 1, .stages = 4},
    {.name = "f32_activation", .no_calls = true, .wide = 100, .copies = 16, .loads = 15},
    {.name = "attention", .hgmma = 1, .largest = 64 * 2048 * 64},
    {.name = "attention_mask", .hgmma = 1, .largest = 64 * 1024 * 128},
    {.name = "attention_grad_q", .hgmma = 1, .largest = 64 * 2048 * 64},
    {.name = "attention_grad_kv", .hgmma = 1, .largest = 64 * 2048 * 128},
    {.name = "cross_entropy", .narrow = 7 /* labels, sums of rows */, .largest = (int64_t)8192 * 50304},
    {.name = "logits_odd", .narrow = 3 /* labels */, .panels = 2, .largest = (int64_t)4096 * 50272},
    /* f32 attention's loops of products: of scores, and of what weights multiply */
    {.name = "f32_attention", .wide = 95, .loads = 16, .loops = 2, .threads = 128, .largest = 96 * 1024 * 64},
    {.name = "f32_attention_all", .wide = 95, .loads = 14, .loops = 2, .threads = 128, .largest = 96 * 1024 * 64},
    {.name = "f32_attention_128", .wide = 95, .loads = 12, .loops = 2, .threads = 256, .largest = 64 * 1024 * 128},
    {.name = "f32_attention_128_causal", .wide = 95, .loads = 15, .loops = 2, .threads = 256,
     .largest = 64 * 1024 * 128},
    {.name = "f32_attention_grad_q_all", .narrow = 3, .loads = 13, .loops = 2, .threads = 128,
     .largest = 96 * 1024 * 64},
    {.name = "f32_attention_grad_kv_all", .narrow = 5, .loads = 13, .loops = 2, .threads = 128,
     .largest = 96 * 1024 * 128},
    {.name = "f32_attention_grad_q", .narrow = 3, .loads = 14, .loops = 2, .threads = 128, .largest = 96 * 1024 * 64},
    {.name = "f32_attention_grad_kv", .narrow = 5, .loads = 15, .loops = 2, .threads = 128,
     .largest = 96 * 1024 * 128},
    {.name = "f32_attention_grad_q_128", .narrow = 3, .loads = 12, .loops = 2, .threads = 256,
     .largest = 64 * 1024 * 128},
    {.name = "f32_attention_grad_kv_128", .narrow = 5, .loads = 12, .loops = 2, .threads = 256,
     .largest = 64 * 1024 * 256},
    {.name = "f32_attention_grad_q_128_causal", .narrow = 3, .loads = 12, .loops = 2, .threads = 256,
     .largest = 64 * 1024 * 128},
    {.name = "f32_attention_grad_kv_128_causal", .narrow = 5, .loads = 14, .loops = 2, .threads = 256,
     .largest = 64 * 1024 * 256},
    {.name = "attention-2048-causal-grad", .largest = 64 * 2048 * 64 * 2},
    {.name = "attention-2048-causal-grad-bf16", .hgmma = 1, .largest = 64 * 2048 * 64 * 2},
};

static void check_bounds(const char *name, const struct counts *c)
{
    for (const struct bound *b = bounds; b < bounds + sizeof bounds / sizeof *bounds; b++) {
        if (strcmp(b->name, name))
            continue;
        check(share(c->wide, c->global) >= b->wide, "%s: %u of %u global accesses are 16 bytes wide", name, c->wide,
              c->global);
        check(!b->narrow || c->global - c->wide <= b->narrow, "%s: %u of %u global accesses are narrower than 16 bytes",
              name, c->global - c->wide, c->global);
        check(!b->accesses || c->global <= b->accesses, "%s: %u global accesses", name, c->global);
        check(!b->no_calls || !c->calls, "%s: %u calls", name, c->calls);
        check(!b->barriers || c->barriers <= b->barriers, "%s: %u barriers", name, c->barriers);
        check(c->hgmma >= b->hgmma && c->panels >= b->panels, "%s: %u HGMMA, %u TMA loads", name, c->hgmma,
              c->panels);
        check(!b->copies || (c->async_wide >= b->copies && c->async_wide == c->async),
              "%s: %u cp.async, %u of 16 bytes", name, c->async, c->async_wide);
        check(!b->loads || c->ffma >= b->loads * c->loads, "%s: %u FFMA for %u loads from shared memory", name,
              c->ffma, c->loads);
        check(c->ffma_loops >= b->loops, "%s: %u loops of FFMA", name, c->ffma_loops);
        check(!b->loops || c->loop_ffma >= FFMA_FOR_ACCESS * c->loop_shared,
              "%s: a loop of %u FFMA has %u accesses to shared memory", name, c->loop_ffma, c->loop_shared);
        check(!b->threads || c->threads >= b->threads, "%s: blocks of %u threads", name, c->threads);
        check(c->in_flight >= b->in_flight, "%s: at most %u loads of 16 bytes stand together", name, c->in_flight);
        check(c->stages >= b->stages, "%s: %u steps are in shared memory", name, c->stages);
        check(!b->largest || c->largest <= b->largest, "%s: an array of %lld elements", name, (long long)c->largest);
    }
}

static void put_row(FILE *f, const char *name, const struct counts *c)
{
    fprintf(f, "STRUCTURE(\"%s\", %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u)\n", name, c->kernels,
            c->global, c->wide, c->barriers, c->local, c->registers, c->hmma, c->hgmma, c->ffma, c->shared, c->async,
            c->panels, c->blocks, c->threads, c->products, c->others);
}

static void bless(const struct counts *c, const char *version)
{
    FILE *f = fopen(table_path, "w");
    if (!check(f, "%s cannot be written", table_path))
        return;
    fprintf(f, "/* Written by KILN_BLESS=1 build/tests/gpu_structure: counts in the machine code for sm_90a and the "
            "smallest\n * launch.  STRUCTURE(case, kernels, global accesses, of these 16 bytes wide, barriers, local "
            "accesses,\n * registers, HMMA, HGMMA, FFMA, shared accesses, LDGSTS, TMA loads, blocks, threads, "
            "products in\n * a loop, other instructions of it) */\n");
    fprintf(f, "COMPILER(\"%s\")\n", version);
    for (unsigned i = 0; i < ncase; i++)
        if (!step_bound_of(cases[i].name))
            put_row(f, cases[i].name, &c[i]);
    fclose(f);
}

/* A driver that cannot make tensor maps: a product of wgmma copies its panels by threads. */
static void without_tensor_maps(struct caps caps)
{
    struct err e = {0};
    struct counts c;
    snprintf(caps.features, sizeof caps.features, "%s " NO_TENSOR_MAPS, architecture);
    dialect_architecture(dialect_find("cuda", &e), caps.features, &caps);
    for (unsigned i = 0; i < ncase; i++)
        if (!strcmp(cases[i].name, "bf16_4096") && count_case(i, &caps, &c))
            check(c.hgmma && c.async && !c.panels, "%s: %u HGMMA, %u copies by threads, %u TMA loads",
                  caps.features, c.hgmma, c.async, c.panels);
}

static const struct counts *counts_of(const struct counts *counted, const char *name, const char *end)
{
    char whole[64];
    snprintf(whole, sizeof whole, "%s%s", name, end);
    for (unsigned i = 0; i < ncase; i++)
        if (!strcmp(cases[i].name, whole))
            return &counted[i];
    return NULL;
}

/* Rows that threads hold: a block runs each instruction once a row, but for the jump behind it.  In the graph's order
 * it may run so many percent of the instructions and global accesses of the schedule's order, both of all threads.
 * Rows of 8,193 to 16,384 elements are read by 8 bytes instead of 16, the same bytes. */
static void compare_orders(const struct counts *counted)
{
    static const struct { const char *name; unsigned instructions, accesses; } bound[] = {
        {"softmax", 110, 100}, {"softmax_3000", 100, 100}, {"softmax_4096", 100, 100}, {"softmax_8000", 105, 100},
        {"softmax_12000", 110, 200}, {"softmax_16000", 110, 200}, {"layer_norm", 110, 100}};
    for (unsigned n = 0; n < sizeof bound / sizeof *bound; n++) {
        const char *name = bound[n].name;
        const struct counts *s = counts_of(counted, name, ""), *g = counts_of(counted, name, "-graph");
        if (!s || !g || !s->instructions || !g->instructions)
            continue;
        unsigned most = s->instructions * s->threads, now = g->instructions * g->threads;
        unsigned accesses = s->global * s->threads, accesses_now = g->global * g->threads;
        printf("%s: the graph's order takes %.2f times the instructions, %.2f times the accesses\n", name,
               (double)now / most, (double)accesses_now / accesses);
        check(now <= (uint64_t)most * bound[n].instructions / 100,
              "%s: %u instructions in the graph's order, %u in the schedule's", name, now, most);
        check(accesses_now <= (uint64_t)accesses * bound[n].accesses / 100,
              "%s: %u accesses in the graph's order, %u in the schedule's", name, accesses_now, accesses);
        check(!g->local, "%s: %u accesses to local memory in the graph's order", name, g->local);
    }
}

/* A share of the cases does without steps of models smaller than GPT-2's, and without attention in f32 of which it has
 * a similar case: GPT-2's step has that of 64 columns. */
static bool is_in_share(const char *name)
{
    static const char *const similar[] = {"f32_attention_all", "f32_attention_128_causal", "f32_attention_grad_q",
                                          "f32_attention_grad_kv", "f32_attention_grad_q_all",
                                          "f32_attention_grad_kv_all", "f32_attention_grad_q_128",
                                          "f32_attention_grad_kv_128"};
    for (unsigned i = 0; i < sizeof similar / sizeof *similar; i++)
        if (!strcmp(name, similar[i]))
            return false;
    return !strstr(name, "-adam") && !strstr(name, "-sgd") && !strstr(name, "causal-grad");
}

int main(int argc, char **argv)
{
    struct err e = {0};
    char version[64];
    static struct counts counted[MAX_CASES];
    struct caps caps;
    const struct gpu_compiler *nvrtc = gpu_compiler_find("cuda", &e);
    if (!nvrtc || !nvrtc->version(version, sizeof version, &e)) {
        printf("SKIP no-compiler cuda: %s\n", e.msg);
        skipped++;
        return finish();
    }
    dialect_caps(dialect_find("cuda", &e), &caps);
    dialect_architecture(dialect_find("cuda", &e), architecture, &caps);
    caps.threads = PROCESSORS;
    caps.l2_bytes = 50 << 20;
    snprintf(caps.features, sizeof caps.features, "%s", architecture);
    lists = argc > 1 && !strcmp(argv[1], "list");
    bool share = argc == 2 && !strcmp(argv[1], "share"), all = argc < 2 || share;
    bool blesses = getenv("KILN_BLESS") && argc < 2;
    printf("%-31s %7s %6s %5s %7s %5s %9s %5s %5s %6s %6s %6s %6s %7s %8s %6s\n", "case", "kernels", "global", "wide",
           "barrier", "local", "registers", "hmma", "hgmma", "ffma", "shared", "async", "blocks", "threads", "products",
           "others");
    name_cases();
    for (unsigned i = 0; i < ncase; i++) {
        struct counts *c = &counted[i];
        caps.graph_order = strstr(cases[i].name, "-graph") != NULL;
        if (!is_named(cases[i].name, share ? 1 : argc, argv) || (share && !is_in_share(cases[i].name)) ||
            !count_case(i, &caps, c))
            continue;
        printf("%-31s %7u %6u %5u %7u %5u %9u %5u %5u %6u %6u %6u %6u %7u %8u %6u\n", cases[i].name, c->kernels,
               c->global, c->wide, c->barriers, c->local, c->registers, c->hmma, c->hgmma, c->ffma, c->shared, c->async,
               c->blocks, c->threads, c->products, c->others);
        check_bounds(cases[i].name, c);
        if (!blesses && !step_bound_of(cases[i].name))
            compare(cases[i].name, c, !strcmp(version, compiler));
    }
    caps.graph_order = 0;
    compare_orders(counted);
    if (all)
        without_tensor_maps(caps);
    if (listed)
        printf("%u kernels listed by %s\n", listed, machine_code_disassembler());
    if (blesses && !failed)
        bless(counted, version);
    if (getenv("KILN_BLESS"))
        bless_steps();
    return finish();
}
