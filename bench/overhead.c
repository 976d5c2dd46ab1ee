/* Host time of a step of 1000 nodes: its time less that of its kernels, which are run by themselves with the arguments
 * they have in it.  All of it on one thread and on tensors so small that the kernels take little.
 *
 *   record-replay-1000  kl_trace_begin, 1000 nodes recorded again, kl_trace_end
 *   frozen-1000         kl_step_run of the same step with a new batch and a new number */
#include "bench.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

enum { NODES = 1000, BLOCKS = 8, WIDTH = 16, BATCH = 8, ROUNDS = 100, STEPS = 20 };

/* Dense layers with residuals, trained by Adam on one batch; `fill` more nodes make the step as long as it is to be. */
struct model {
    kl_device device;
    kl_tensor parameter[2 * BLOCKS], images, labels;
    kl_optimizer *adam;
    kl_step *frozen;
    int fill;
};

static bool model_open(struct model *m, kl_device device)
{
    static const int64_t width[] = {WIDTH, WIDTH}, batch[] = {BATCH, WIDTH};
    *m = (struct model){.device = device};
    kl_trace_begin("init");
    for (int i = 0; i < BLOCKS; i++) {
        m->parameter[2 * i] = kl_keep(kl_mul_scalar(kl_randn(device, KL_F32, 2, width, (uint64_t)i), 0.25));
        m->parameter[2 * i + 1] = kl_keep(kl_zeros(device, KL_F32, 1, width));
    }
    m->images = kl_keep(kl_rand(device, KL_F32, 2, batch, 100));
    m->labels = kl_keep(kl_cast(kl_mul_scalar(kl_rand(device, KL_F32, 1, batch, 101), WIDTH), KL_I32));
    m->adam = kl_adam(m->parameter, 2 * BLOCKS, NULL);
    return kl_trace_end() == KL_OK;
}

static void model_close(struct model *m)
{
    kl_step_free(m->frozen);
    kl_optimizer_free(m->adam);
    for (int i = 0; i < 2 * BLOCKS; i++)
        kl_release(m->parameter[i]);
    kl_release(m->images);
    kl_release(m->labels);
}

static void model_record(const struct model *m)
{
    kl_tensor x = m->images;
    for (int i = 0; i < BLOCKS; i++)
        x = kl_add(x, kl_gelu(kl_linear(x, m->parameter[2 * i], m->parameter[2 * i + 1])));
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
    return (m->frozen = kl_step_end(1, &given)) != NULL;
}

static bool frozen_step(struct model *m)
{
    return kl_step_run(m->frozen, 1, &m->images, 1, &(kl_slot){"scale", 0.5}, 0, NULL) == KL_OK;
}

/* Makes the step exactly NODES long. */
static bool model_fill(struct model *m)
{
    kl_run_info info;
    if (!record_step(m) || kl_trace_info(&info) != KL_OK)
        return false;
    m->fill = NODES - (int)info.nodes;
    if (m->fill < 0)
        fprintf(stderr, "bench_overhead: the step has %lld nodes\n", (long long)info.nodes);
    return m->fill >= 0 && record_step(m) && kl_trace_info(&info) == KL_OK && info.nodes == NODES;
}

/* ---- the kernels by themselves ---- */

struct bare_call { kernel_fn *fn; void **arg; int64_t extent; };
struct bare {
    struct bare_call *call;
    uint32_t n, nmemory, memory_cap;
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

/* The calls of x's program, with memory of their own that holds zeros. */
static bool bare_open(struct bare *b, const struct exec *x)
{
    const struct program *p = x->program;
    const struct graph *g = p->g;
    char **input, **state, **out, *arena, *scratch;
    *b = (struct bare){0};
    b->call = bare_alloc(b, p->ncmd * sizeof *b->call);
    b->slot = bare_alloc(b, (g->slot.n + 1) * sizeof *b->slot);
    input = bare_alloc(b, (g->input.n + 1) * sizeof *input);
    state = bare_alloc(b, (g->state.n + 1) * sizeof *state);
    out = bare_alloc(b, (g->nout + 1) * sizeof *out);
    arena = bare_alloc(b, (size_t)program_arenas(p));
    scratch = bare_alloc(b, (size_t)p->scratch_bytes);
    if (!b->call || !b->slot || !input || !state || !out || !arena || !scratch ||
        !bare_leaves(b, g, &g->input, input) || !bare_leaves(b, g, &g->state, state))
        return false;
    for (uint32_t i = 0; i < g->nout; i++)
        if (!(out[i] = p->in_place[i] ? state[g->out[i].state] : bare_alloc(b, node_bytes(g, g->out[i].value))))
            return false;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        void **arg = bare_alloc(b, (c->narg + 1) * sizeof *arg);
        if (!arg || c->kind != CMD_KERNEL)
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
}

/* The program that a step runs: its profile names it. */
static const struct exec *program_of(bool (*step)(struct model *m), struct model *m)
{
    struct profile p = {.clock = measure_now};
    profile_here(&p);
    const struct exec *x = step(m) && p.n ? p.row[0].x : NULL;
    profile_here(NULL);
    mem_free(p.row);
    return x;
}

/* ---- one case ---- */

static bool run_case(struct bench *b, const char *name, bool (*step)(struct model *m), struct model *m)
{
    static struct samples whole, kernels, host;
    struct bare bare;
    if (!bench_wants(b, name))
        return true;
    const struct exec *x = program_of(step, m);
    bool ok = x && bare_open(&bare, x);
    whole.n = kernels.n = host.n = 0;
    for (int round = 0; ok && round < ROUNDS; round++) {
        double at[3] = {measure_cpu_now()};
        for (int i = 0; ok && i < STEPS; i++)
            ok = step(m);
        at[1] = measure_cpu_now();
        for (int i = 0; i < STEPS; i++)
            bare_run(&bare);
        at[2] = measure_cpu_now();
        samples_add(&whole, (at[1] - at[0]) / STEPS);
        samples_add(&kernels, (at[2] - at[1]) / STEPS);
        samples_add(&host, (at[1] - at[0] - (at[2] - at[1])) / STEPS);
        measure_progress(name, round + 1, ROUNDS);
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

int main(int argc, char **argv)
{
    static struct bench b;
    static struct model m;
    if (!bench_open(&b, "overhead", argc, argv))
        return b.status;
    kl_device device = bench_device(&b);
    kl_set_option("threads", 1);
    bool ok = model_open(&m, device) && model_fill(&m) && run_case(&b, "record-replay-1000", record_step, &m) &&
              freeze_step(&m) && run_case(&b, "frozen-1000", frozen_step, &m);
    model_close(&m);
    return ok ? bench_close(&b) : bench_fail(&b, "step");
}
