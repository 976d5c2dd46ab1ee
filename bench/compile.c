/* Time per node, before any machine code, of compiling graphs of 100 to 16,000 nodes: where it stays the same, compiling
 * is linear.  A bare chain of kernels, and the training step of a network as deep as that takes, with momentum.
 *
 *   passes  all of the pipeline before fuse        fuse  nodes to groups
 *   lower   groups to kernels                      plan  lower again, then order, storage and commands */
#include "bench.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

enum { ROUNDS = 5, WIDTH = 16, STAGES = 4 };
static const char *const stage[STAGES] = {"passes", "fuse", "lower", "plan"};
static const int size[] = {100, 1000, 4000, 16000};

/* Each link reads the one before it across the diagonal, so that it needs a kernel of its own. */
static struct graph *make_chain(int nodes)
{
    struct graph *g = graph_new("chain");
    struct shape s = shape_make(2, (int64_t[]){WIDTH, WIDTH});
    ref x = n_input(g, KL_F32, &s, "x"), w = n_input(g, KL_F32, &s, "w");
    while ((int)g->nnode < nodes)
        x = n_permute(g, n_tanh(g, n_add(g, n_mul(g, x, w), w)), (const uint8_t[]){1, 0});
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

/* The sizes of layers differ, or all kernels of a kind would be one. */
static struct graph *make_step(int nodes)
{
    struct graph *g = graph_new("step");
    int layers = nodes / 24 + 1;
    ref *w = mem_alloc((size_t)(2 * layers) * sizeof *w), *v = w + layers;
    union attr product = {.dot = {.con_a = 1, .ncon = 1}};
    struct shape s = shape_make(2, (int64_t[]){WIDTH, WIDTH});
    ref x = n_input(g, KL_F32, &s, "x");
    for (int i = 0; i < layers; i++) {
        s.dim[0] = x ? node_shape(g, x)->dim[1] : WIDTH;
        s.dim[1] = WIDTH + i % 7;
        w[i] = n_state(g, KL_F32, &s, "w");
        v[i] = n_state(g, KL_F32, &s, "v");
        x = n_dot(g, x, w[i], &product);
        x = n_max(g, x, n_k(g, x, 0));
    }
    ref loss = n_reduce(g, OP_sum, n_mul(g, x, x), 3);
    for (int i = 0; i < layers; i++) {
        ref d = n_grad(g, loss, w[i]), m = n_add(g, n_mul(g, v[i], n_k(g, v[i], 0.9)), d);
        graph_output(g, OUT_ASSIGN, m, 2 * (uint32_t)i + 1);
        graph_output(g, OUT_ASSIGN, n_sub(g, w[i], n_mul(g, m, n_k(g, m, 0.01))), 2 * (uint32_t)i);
    }
    mem_free(w);
    return g;
}

static bool run_passes(struct graph *g)
{
    for (unsigned i = 0; i + 1 < pass_count; i++)
        if (pass_run(&pass_list[i], g, false) < 0)
            return false;
    return true;
}

static bool lower_groups(const struct graph *g, const struct caps *caps, struct err *e)
{
    struct lowerer *l = lowerer_new(g, caps, 0);
    bool ok = l || err_set(e, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; ok && i < g->ngroup; i++) {
        struct lowered one;
        ok = lower_group(l, i, NULL, &one, e);
        kernel_free(one.k);
        mem_free(one.arg);
    }
    lowerer_free(l);
    return ok;
}

/* One compilation; adds the seconds per node of each stage. */
static bool compile(struct graph *g, const struct caps *caps, struct samples *took, struct err *e)
{
    double at[STAGES + 1] = {measure_cpu_now()};
    bool ok = !g->err.code && run_passes(g);
    at[1] = measure_cpu_now();
    ok = ok && pass_fuse_groups(g, false) >= 0;
    at[2] = measure_cpu_now();
    ok = ok && lower_groups(g, caps, e);
    at[3] = measure_cpu_now();
    struct program *p = ok ? program_plan(g, caps, false, e) : NULL;
    at[4] = measure_cpu_now();
    program_free(p);
    for (int i = 0; p && i < STAGES; i++)
        samples_add(&took[i], (at[i + 1] - at[i]) / g->nnode);
    return p || err_set(e, g->err.code, "%s", g->err.msg);
}

static bool run_case(struct bench *b, const char *of, struct graph *make(int), int nodes, const struct caps *caps)
{
    static struct samples took[STAGES];
    struct err e = {0};
    char name[64];
    bool ok = true;
    snprintf(name, sizeof name, "%s-%d", of, nodes);
    if (!bench_wants(b, name))
        return true;
    memset(took, 0, sizeof took);
    for (int round = 0; ok && round < ROUNDS; round++) {
        struct graph *g = make(nodes);
        ok = compile(g, caps, took, &e);
        graph_free(g);
    }
    if (!ok)
        fprintf(stderr, "bench_compile: %s: %s\n", name, e.msg);
    for (int s = 0; ok && s < STAGES; s++)
        bench_add(b, name, stage[s], 1, &took[s], "us", 0, 0);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct caps caps;
    struct err e = {0};
    if (!bench_open(&b, "compile", argc, argv))
        return b.status;
    if (device_find("cpu", &e) < 0) {
        fprintf(stderr, "bench_compile: %s\n", e.msg);
        return 1;
    }
    device_backend(device_find("cpu", &e), &caps);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (!run_case(&b, "chain", make_chain, size[i], &caps) || !run_case(&b, "step", make_step, size[i], &caps))
            return 1;
    return bench_close(&b);
}
