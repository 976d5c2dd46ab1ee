/* Host time of a step: its time less that of its kernels, which are run by themselves with the arguments they have in
 * it.  All of it on one thread and on tensors so small that the kernels take little.
 *
 *   call-1, -10, -100   kl_step_run of so many products of 16x16x16, each of the last one's result, and kl_release
 *   traced-1 ..         the same recorded again: kl_trace_begin, the products, kl_trace_end, kl_release
 *   record-replay-1000  kl_trace_begin, 1000 nodes recorded again, kl_trace_end
 *   frozen-1000         kl_step_run of the same step with a new batch and a new number
 *   record-replay-regions-1000, frozen-regions-1000
 *                       the same of a step of which some 400 nodes are recorded by functions, for a kl_cond, a kl_while
 *                       and a kl_scan */
#include "bench.h"
#include "passes/passes.h"
#include "runtime/runtime.h"
#include <kiln/train.h>

enum { NODES = 1000, BLOCKS = 8, WIDTH = 16, BATCH = 8, ROUNDS = 100, STEPS = 20 };
enum { INSIDE = 100, ROUNDS_INSIDE = 2 }; /* nodes of each function, and how often a loop's runs */

/* Dense layers with residuals, as many as NODES allow, trained by Adam on one batch; `fill` more nodes make the step
 * as long as it is to be. */
struct model {
    kl_device device;
    kl_tensor parameter[2 * BLOCKS], images, labels;
    kl_optimizer *adam;
    kl_step *frozen;
    int blocks, fill;
    bool regions;
};

static bool model_open(struct model *m, kl_device device, bool regions, int blocks)
{
    static const int64_t width[] = {WIDTH, WIDTH}, batch[] = {BATCH, WIDTH};
    *m = (struct model){.device = device, .regions = regions, .blocks = blocks};
    kl_trace_begin("init");
    for (int i = 0; i < m->blocks; i++) {
        m->parameter[2 * i] = kl_keep(kl_mul_scalar(kl_randn(device, KL_F32, 2, width, (uint64_t)i), 0.25));
        m->parameter[2 * i + 1] = kl_keep(kl_zeros(device, KL_F32, 1, width));
    }
    m->images = kl_keep(kl_rand(device, KL_F32, 2, batch, 100));
    m->labels = kl_keep(kl_cast(kl_mul_scalar(kl_rand(device, KL_F32, 1, batch, 101), WIDTH), KL_I32));
    m->adam = kl_adam(2 * m->blocks, m->parameter, NULL);
    return kl_trace_end() == KL_OK;
}

static void model_close(struct model *m)
{
    kl_step_free(m->frozen);
    kl_optimizer_free(m->adam);
    for (int i = 0; i < 2 * m->blocks; i++)
        kl_release(m->parameter[i]);
    kl_release(m->images);
    kl_release(m->labels);
}

static kl_status body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nout;
    out[nin - 1] = kl_mul_scalar(in[nin - 1], 0.5);
    for (int i = 0; i < INSIDE; i++)
        out[nin - 1] = kl_abs(out[nin - 1]);
    for (uint32_t i = 0; i + 1 < nin; i++)
        out[i] = kl_add_scalar(in[i], 1);
    return KL_OK;
}

static kl_status more(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(in[0], kl_const(kl_device_of(in[0]), KL_I32, ROUNDS_INSIDE));
    return KL_OK;
}

static kl_tensor record_regions(kl_tensor x)
{
    kl_tensor y, counted[2] = {kl_const(kl_device_of(x), KL_I32, 0)}, last[2];
    kl_cond(kl_const(kl_device_of(x), KL_BOOL, 1), body, body, NULL, 1, &x, 1, &counted[1]);
    kl_while(more, body, NULL, 2, counted, last);
    kl_scan(body, NULL, ROUNDS_INSIDE, 1, &last[1], 0, NULL, 0, false, &y);
    return y;
}

static void model_record(const struct model *m)
{
    kl_tensor x = m->images;
    for (int i = 0; i < m->blocks; i++)
        x = kl_add(x, kl_gelu(kl_linear(x, m->parameter[2 * i], m->parameter[2 * i + 1])));
    if (m->regions)
        x = kl_add(x, record_regions(kl_detach(x)));
    for (int i = 0; i < m->fill; i++)
        x = kl_abs(x);
    kl_optimizer_step(m->adam, kl_cross_entropy(x, m->labels), 1e-3);
}

static bool record_step(struct model *m)
{
    kl_trace_begin("step");
    model_record(m);
    return kl_trace_end() == KL_OK;
}

/* Its images are an input here, and their scale a number. */
static bool freeze_step(struct model *m)
{
    static const float images[BATCH * WIDTH];
    struct model with = *m;
    kl_trace_begin("step");
    with.images = kl_input(m->device, KL_F32, 2, (int64_t[]){BATCH, WIDTH}, images);
    kl_tensor given = with.images, scale = kl_scalar(m->device, KL_F32, 1);
    kl_set_name(scale, "scale");
    with.images = kl_mul(given, kl_expand(scale, 2, (int64_t[]){BATCH, WIDTH}));
    with.fill -= 4; /* the nodes of the scaling */
    model_record(&with);
    return (m->frozen = kl_trace_end_step(1, &given)) != NULL;
}

static bool frozen_step(struct model *m)
{
    return kl_step_run(m->frozen, 1, &m->images, 1, &(kl_slot){"scale", 0.5}, 0, NULL) == KL_OK;
}

/* ---- products, each of the last one's result ---- */

/* m.blocks: their number. */
static bool chain_open(struct model *m, kl_device device, int products)
{
    static const int64_t square[] = {WIDTH, WIDTH};
    *m = (struct model){.device = device, .blocks = products};
    kl_trace_begin("init");
    m->images = kl_keep(kl_rand(device, KL_F32, 2, square, 1));
    m->labels = kl_keep(kl_mul_scalar(kl_rand(device, KL_F32, 2, square, 2), 1.0 / WIDTH));
    return kl_trace_end() == KL_OK;
}

static kl_tensor chain_record(const struct model *m)
{
    kl_trace_begin("chain");
    kl_tensor x = m->images;
    for (int i = 0; i < m->blocks; i++)
        x = kl_matmul(x, m->labels);
    return kl_keep(x);
}

static bool chain_traced(struct model *m)
{
    kl_tensor x = chain_record(m);
    return kl_trace_end() == KL_OK && kl_release(x) == KL_OK;
}

static bool chain_freeze(struct model *m)
{
    chain_record(m);
    return (m->frozen = kl_trace_end_step(0, NULL)) != NULL;
}

static bool chain_frozen(struct model *m)
{
    kl_tensor x;
    return kl_step_run(m->frozen, 0, NULL, 0, NULL, 1, &x) == KL_OK && kl_release(x) == KL_OK;
}

static void chain_close(struct model *m)
{
    kl_step_free(m->frozen);
    kl_release(m->images);
    kl_release(m->labels);
}

/* ---- the kernels by themselves ---- */

struct bare_call { kernel_fn *fn; void **arg; int64_t extent; };
struct bare {
    struct bare_call *call;
    uint32_t n, call_cap, nmemory, memory_cap;
    void **memory;
    uint64_t *slot;
};

static void *bare_alloc(struct bare *b, size_t bytes)
{
    if (!mem_reserve(&b->memory, &b->memory_cap, b->nmemory + 1, sizeof *b->memory))
        return NULL;
    char *p = mem_alloc(bytes + 128);
    b->memory[b->nmemory++] = p;
    return p ? p + (64 - (uintptr_t)p % 64) : NULL;
}

static bool bare_leaves(struct bare *b, const struct graph *g, const struct leaves *l, char **at)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!(at[i] = bare_alloc(b, (size_t)shape_count(&g->shape[l->v[i].shape]) * dtype_size(l->v[i].dtype))))
            return false;
    return true;
}

static bool bare_program(struct bare *b, const struct exec *x, const struct program *p, char *scratch);

/* A region's kernels, as often as the op runs it; the condition of kl_cond is true. */
static bool bare_region(struct bare *b, const struct exec *x, const struct program *p, const struct command *c,
                        char *scratch)
{
    unsigned op = node_at(p->g, c->region)->op, times[2] = {op == OP_while ? ROUNDS_INSIDE + 1 : op == OP_scan
                                                            ? ROUNDS_INSIDE : 1,
                                                            op == OP_while ? ROUNDS_INSIDE : 0};
    bool ok = true;
    for (int k = 0; k < 2; k++)
        for (unsigned i = 0; ok && i < times[k]; i++)
            ok = bare_program(b, x, c->sub[k], scratch);
    return ok;
}

/* The calls of p's commands, with memory of their own that holds zeros. */
static bool bare_program(struct bare *b, const struct exec *x, const struct program *p, char *scratch)
{
    const struct graph *g = p->g;
    char **input = bare_alloc(b, (g->input.n + 1) * sizeof *input),
        **state = bare_alloc(b, (g->state.n + 1) * sizeof *state);
    char **out = bare_alloc(b, (g->nout + 1) * sizeof *out), *arena = bare_alloc(b, (size_t)program_arenas(p));
    if (!input || !state || !out || !arena || !bare_leaves(b, g, &g->input, input) ||
        !bare_leaves(b, g, &g->state, state))
        return false;
    for (uint32_t i = 0; i < g->nout; i++)
        if (!(out[i] = p->in_place[i] ? state[g->out[i].state] : bare_alloc(b, node_bytes(g, g->out[i].value))))
            return false;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        if (c->kind == CMD_REGION && !bare_region(b, x, p, c, scratch))
            return false;
        if (c->kind != CMD_KERNEL)
            continue;
        void **arg = bare_alloc(b, (c->narg + 1) * sizeof *arg);
        if (!arg || !mem_reserve(&b->call, &b->call_cap, b->n + 1, sizeof *b->call))
            return false;
        for (uint32_t k = 0; k < c->narg; k++) {
            const struct loc *l = &c->arg[k];
            char *base = l->kind == LOC_INPUT ? input[l->index] : l->kind == LOC_STATE ? state[l->index]
                         : l->kind == LOC_OUT ? out[l->index] : l->kind == LOC_ARENA ? arena : scratch;
            arg[k] = base + l->offset;
        }
        b->call[b->n++] = (struct bare_call){x->fn[c->kernel], arg, p->kernel[c->kernel]->extent};
    }
    return true;
}

static bool bare_open(struct bare *b, const struct exec *x)
{
    *b = (struct bare){0};
    b->slot = bare_alloc(b, (x->program->g->slot.n + 1) * sizeof *b->slot);
    char *scratch = bare_alloc(b, (size_t)x->program->scratch_bytes);
    return b->slot && scratch && bare_program(b, x, x->program, scratch);
}

static void bare_run(const struct bare *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        b->call[i].fn(b->call[i].arg, b->slot, 0, b->call[i].extent);
}

static void bare_close(struct bare *b)
{
    for (uint32_t i = 0; i < b->nmemory; i++)
        mem_free(b->memory[i]);
    mem_free(b->memory);
    mem_free(b->call);
}

/* The program that a step runs: its profile names it.  It is kept until the process ends. */
static const struct exec *program_of(bool (*step)(struct model *m), struct model *m)
{
    struct profile p = {.clock = measure_now};
    profile_here(&p);
    const struct exec *x = step(m) && p.n ? p.row[0].x : NULL;
    profile_here(NULL);
    if (x)
        exec_ref(x);
    profile_free(&p);
    return x;
}

/* ---- one case ---- */

static int count_nodes(const struct graph *g)
{
    int n = (int)g->nnode - 1;
    for (uint32_t i = 0; i < g->nregion; i++)
        n += count_nodes(g->region[i]);
    return n;
}

/* The nodes of the step, those of functions counted; negative: it fails, see kl_last_error. */
static int step_nodes(struct model *m)
{
    const struct exec *x = program_of(record_step, m);
    return x ? count_nodes(x->captured) : -1;
}

/* A model whose step is exactly NODES long: of as many layers as fit, and filled up. */
static bool model_fit(struct model *m, kl_device device, bool regions)
{
    int nodes = -1;
    for (int blocks = BLOCKS; blocks > 0; blocks--) {
        if (!model_open(m, device, regions, blocks) || (nodes = step_nodes(m)) < 0)
            return false;
        if (nodes <= NODES) {
            m->fill = NODES - nodes;
            nodes = step_nodes(m);
            break;
        }
        if (blocks > 1)
            model_close(m);
    }
    if (nodes != NODES)
        fprintf(stderr, "bench_overhead: the shortest step has %d nodes, not %d\n", nodes, NODES);
    return nodes == NODES;
}

/* steps: of a round. */
static bool run_case(struct bench *b, const char *name, bool (*step)(struct model *m), struct model *m, int steps)
{
    static struct samples whole, kernels, host;
    struct bare bare;
    if (!bench_wants(b, name))
        return true;
    const struct exec *x = program_of(step, m);
    bool ok = x && bare_open(&bare, x);
    int rounds = bench_rounds(b, ROUNDS);
    whole.n = kernels.n = host.n = 0;
    for (int round = 0; ok && round < rounds; round++) {
        double at[3] = {measure_cpu_now()};
        for (int i = 0; ok && i < steps; i++)
            ok = step(m);
        at[1] = measure_cpu_now();
        for (int i = 0; i < steps; i++)
            bare_run(&bare);
        at[2] = measure_cpu_now();
        samples_add(&whole, (at[1] - at[0]) / steps);
        samples_add(&kernels, (at[2] - at[1]) / steps);
        samples_add(&host, (at[1] - at[0] - (at[2] - at[1])) / steps);
        measure_progress(name, round + 1, rounds);
    }
    if (x)
        bare_close(&bare);
    if (!ok)
        return false;
    bench_add(b, name, "host", 1, &host, "us", 0, 0);
    bench_add(b, name, "step", 1, &whole, "us", 0, 0);
    bench_add(b, name, "kernels", 1, &kernels, "us", 0, 0);
    return true;
}

static bool run_chain(struct bench *b, kl_device device, int products)
{
    struct model m;
    char traced[32], call[32];
    snprintf(traced, sizeof traced, "traced-%d", products);
    snprintf(call, sizeof call, "call-%d", products);
    bool ok = chain_open(&m, device, products) && chain_freeze(&m) &&
              run_case(b, call, chain_frozen, &m, NODES / products) &&
              run_case(b, traced, chain_traced, &m, NODES / products);
    chain_close(&m);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct model m;
    if (!bench_open(&b, "overhead", argc, argv))
        return b.status;
    kl_device device = bench_device(&b);
    kl_set_option("threads", 1);
    bool ok = run_chain(&b, device, 1) && run_chain(&b, device, 10) && run_chain(&b, device, 100);
    for (int regions = 0; ok && regions < 2; regions++) {
        ok = model_fit(&m, device, regions) &&
             run_case(&b, regions ? "record-replay-regions-1000" : "record-replay-1000", record_step, &m, STEPS) &&
             freeze_step(&m) &&
             run_case(&b, regions ? "frozen-regions-1000" : "frozen-1000", frozen_step, &m, STEPS);
        model_close(&m);
    }
    return ok ? bench_close(&b) : bench_fail(&b, "step");
}
