/* What option order = graph costs on an H200: a table of the work of kernels beside that in the order of the schedules,
 * and bounds for it.
 *
 *   gpu_order_cost             streams, sums, scans and products of f32 of gpu_structure_graphs.def
 *   gpu_order_cost CASE ...    these
 *
 * Work is counted in the loop IR, from the trip counts of its loops, so that kernels with loops compare, too, and no
 * compiler is needed; of an `if`, whose alternatives exclude each other, and of TMA loads that says nothing.  Rows that
 * threads hold are compared by gpu_structure.c, in the machine code. */
#include "codegen/gpu/source.h"
#include "tests/support/harness.h"

static const struct { const char *name, *text; } graphs[] = {
#include "tests/gpu/gpu_structure_graphs.def"
};
enum { GRAPHS = sizeof graphs / sizeof *graphs, PROCESSORS = 132 };

/* Of all threads, in all iterations: arithmetic of data, without indices (a fma counts once, a tile by its elements,
 * what lanes exchange twice); accesses to shared memory, and bytes of the device's memory, each as often as a thread
 * asks for it. */
struct gpu_work { double operations, shared, bytes; unsigned launches; };

enum { DEEP = MAX_NEST + 1 };

/* The loops around an instruction. */
struct nest { double times[DEEP]; unsigned depth, subgroup /* threads that hold a tile together */; int lanes; };

static void enter(struct nest *n, const struct linst *i, int64_t iterations)
{
    double times = i->op == L_LOOP ? (double)iterations : 1;
    n->depth++;
    n->times[n->depth] = n->times[n->depth - 1] * times;
    if (i->op == L_LOOP && i->kind == LOOP_BLOCK)
        n->subgroup = i->rows > 1 ? i->rows : 1;
    if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
        n->lanes = (int)iterations;
}

static double elements(const struct nest *n, const struct linst *i)
{
    return i->cols ? (double)i->rows * i->cols / n->subgroup : 1;
}

static void count_access(const struct kernel *k, uint32_t buf, double times, struct gpu_work *w)
{
    const struct lbuf *b = &k->buf[buf];
    if (b->role == BUF_SHARED)
        w->shared += times;
    else if (b->role == BUF_IN || b->role == BUF_OUT || b->role == BUF_WORKSPACE)
        w->bytes += times * (double)dtype_size(b->dtype);
}

static void count(const struct kernel *k, const struct linst *i, const struct nest *n, struct gpu_work *w)
{
    double times = n->times[n->depth];
    const struct linst *tile = i->op == L_STORE ? &k->inst[i->b] : i;
    if (i->op == L_LOAD || i->op == L_STORE)
        count_access(k, (uint32_t)i->imm, times * elements(n, tile), w);
    else if (i->op == L_COPY)
        count_access(k, copy_source(k, i), times * i->rows, w);
    else if (i->op == L_MMA)
        w->operations += times * elements(n, i) * k->inst[i->a].cols;
    else if (i->op == L_LANE_REDUCE && !i->cols)
        for (int lanes = n->lanes; lanes > 1; lanes /= 2)
            w->operations += 2 * times;
    else if (i->op == L_LANE_REDUCE)
        w->operations += times * k->inst[i->a].rows * k->inst[i->a].cols / n->subgroup;
    else if (i->op == L_INTERLEAVE)
        w->operations += 2 * times;
    else if (i->op >= L_PRIM && dtype_is_float(i->dtype))
        w->operations += times * elements(n, i);
}

static void kernel_work(const struct kernel *k, struct gpu_work *w)
{
    int64_t *iterations = source_iterations(k);
    struct nest n = {.times = {k->members ? (double)k->members : 1}, .subgroup = 1};
    for (val v = 1; iterations && v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP || i->op == L_IF)
            enter(&n, i, iterations[v]);
        else if (i->op == L_END)
            n.depth--;
        else
            count(k, i, &n, w);
    }
    mem_free(iterations);
}

static struct gpu_work gpu_work(const struct program *p)
{
    struct gpu_work w = {0};
    for (uint32_t c = 0; c < p->ncmd; c++)
        if (p->cmd[c].kind == CMD_KERNEL) {
            const struct kernel *k = p->kernel[p->cmd[c].kernel];
            struct phase phase = {0};
            while (kernel_phase(k, &phase))
                w.launches += phase.extent > 0;
            kernel_work(k, &w);
        }
    return w;
}

/* ---- the table ---- */

static bool work_of(const char *text, bool graph_order, struct gpu_work *w)
{
    struct err e = {0};
    struct caps caps;
    dialect_caps(dialect_find("cuda", &e), &caps);
    dialect_architecture(dialect_find("cuda", &e), "sm_90a", &caps);
    caps.threads = PROCESSORS;
    caps.l2_bytes = 50 << 20;
    caps.graph_order = graph_order;
    struct graph *g = graph_parse(text, strlen(text), NULL, &e);
    struct program *p = NULL;
    if (g && passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}))
        p = program_plan(g, &caps, false, &e);
    bool ok = check(p, "%s", g && g->err.code ? g->err.msg : e.msg);
    if (ok)
        *w = gpu_work(p);
    program_free(p);
    graph_free(g);
    return ok;
}

/* The cases, and at most so many percent of the schedule's order that they may take. */
static const struct bound { const char *name; unsigned operations, bytes, shared; } bounds[] = {
    {"gelu_chain", 100, 100, 100}, {"add_half", 100, 100, 100},
    /* rows of 50,304 elements: without online softmax the maximum is a pass of its own */
    {"cross_entropy", 110, 120, 100},
    {"cross_entropy_f32", 110, 125, 100}, {"sum_all", 100, 100, 100}, {"sum_rows", 100, 100, 100},
    {"sum_few_rows", 105, 101, 100}, {"sum_columns", 100, 100, 100}, {"cumsum", 100, 100, 100},
    {"transpose", 100, 100, 100}, {"sort", 100, 100, 100}, {"index_add", 100, 100, 100},
    {"f32_4096", 105, 105, 100}, {"f32_activation", 105, 105, 100}, {"f32_heads", 105, 105, 100},
    {"f32_logits", 105, 105, 101}, {"f32_weight_grad", 105, 180, 100}, {"f32_rows_1", 105, 100, 100},
    {"f32_rows_8", 105, 100, 100}, {"f32_rows_16", 105, 100, 100},
    /* 8 rows in tiles of 16: twice the products; memory decides its time */
    {"f32_rows_8_along", 190, 100, UINT32_MAX},
    {"conv_f32", 105, 105, 105}, {"conv_f32_grad_input", 105, 105, 105}, {"conv_f32_grad_weights", 105, 120, 105},
    {"conv_f32_grad_weights_one_channel", 105, 100, 105}};
enum { BOUNDS = sizeof bounds / sizeof *bounds };

static void check_bound(const char *name, const char *what, double now, double before, unsigned percent)
{
    check(now <= before * percent / 100 || percent == UINT32_MAX,
          "%s: %g %s in the graph's order, %g in the schedule's", name, now, what, before);
}

static void print_ratio(double now, double before)
{
    if (before > 0)
        printf(" %10.2f", now / before);
    else
        printf(" %10s", now > 0 ? "more" : "-");
}

static void compare(const char *name, const char *text, const struct bound *b)
{
    struct gpu_work s, g;
    if (!work_of(text, false, &s) || !work_of(text, true, &g))
        return;
    printf("%-34s", name);
    print_ratio(g.operations, s.operations);
    print_ratio(g.bytes, s.bytes);
    print_ratio(g.shared, s.shared);
    printf(" %8u %8u\n", g.launches, s.launches);
    if (b) {
        check_bound(name, "operations", g.operations, s.operations, b->operations);
        check_bound(name, "bytes", g.bytes, s.bytes, b->bytes);
        check_bound(name, "accesses to shared memory", g.shared, s.shared, b->shared);
    }
}

int main(int argc, char **argv)
{
    printf("%-34s %10s %10s %10s %8s %8s\n", "order = graph / order = schedule", "operations", "bytes", "shared",
           "launches", "were");
    for (unsigned i = 0; i < GRAPHS; i++) {
        const struct bound *b = bounds;
        while (b < bounds + BOUNDS && strcmp(b->name, graphs[i].name))
            b++;
        b = b < bounds + BOUNDS ? b : NULL;
        if (argc > 1 ? is_named(graphs[i].name, argc, argv) : b != NULL)
            compare(graphs[i].name, graphs[i].text, b);
    }
    return finish();
}
