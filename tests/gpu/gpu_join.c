/* Kernels of a GPU's program are joined to launches (passes/plan/plan_join.c), equal ones with members, different maps
 * as parts: fewer launches, the same bits, no more memory, and none of kernels that depend on each other or run on
 * different devices.
 *
 *   gpu_join [STEPS [SEED]]       random training steps, default 4, from seed 1 */
#include "codegen/gpu/source.h"
#include "gpu_kernels.h"
#include "tests/support/harness.h"

static struct rng rng;

/* Plans the graph for a GPU, with and without launches with members, and checks both plans. */
static struct program *plan(const struct graph *g, bool joins, struct err *e)
{
    struct caps caps;
    dialect_caps(dialect_find("cuda", e), &caps);
    caps.members = joins;
    struct program *p = program_plan(g, &caps, false, e);
    check(p && program_check(p, e), "@%s: %s", g->name, e->msg);
    return p;
}

static unsigned max_members(const struct program *p)
{
    unsigned max = 1;
    for (uint32_t i = 0; i < p->nkernel; i++)
        max = kernel_members(p->kernel[i]) > max ? kernel_members(p->kernel[i]) : max;
    return max;
}

/* ---- running ---- */

static void values_copy(const struct values *from, const struct leaves *of, const struct graph *g, struct values *to)
{
    to->n = from->n;
    for (uint32_t i = 0; i < from->n; i++) {
        size_t bytes = (size_t)shape_count(&g->shape[of->v[i].shape]) * dtype_size(of->v[i].dtype);
        to->v[i] = calloc(bytes + 64, 1);
        memcpy(to->v[i], from->v[i], bytes);
    }
}

/* The outputs of the program.  A state's next value that overwrites it is an output in the state's memory. */
static void run(const struct program *p, const struct values *in, const struct values *state, struct values *out)
{
    struct err e = {0};
    struct values own = {0}, place = {.n = p->g->nout};
    values_copy(state, &p->g->state, p->g, &own);
    out->n = p->g->nout;
    for (uint32_t o = 0; o < p->g->nout; o++) {
        out->v[o] = calloc(node_bytes(p->g, p->g->out[o].value) + 64, 1);
        place.v[o] = p->in_place[o] ? own.v[p->g->out[o].state] : out->v[o];
    }
    struct gpu_arrays m = {calloc((size_t)program_arenas(p) + 64, 1), in, &place, &own, NULL};
    check(gpu_kernels_run(p, &m, &e), "@%s: %s", p->g->name, e.msg);
    for (uint32_t o = 0; o < p->g->nout; o++)
        if (p->in_place[o])
            memcpy(out->v[o], place.v[o], node_bytes(p->g, p->g->out[o].value));
    free(m.arena);
    values_free(&own);
}

static void compare(const struct graph *g, const struct values *want, const struct values *got)
{
    for (uint32_t o = 0; o < g->nout; o++) {
        int64_t at = 0, n = node_numel(g, g->out[o].value);
        check(same_values(g->node[g->out[o].value].dtype, want->v[o], got->v[o], n, &at),
              "@%s: output %u differs at %lld with members", g->name, o, (long long)at);
    }
}

/* ---- graphs ---- */

/* Layers of x = tanh(x * w + b): the sums over rows of what each has made are the gradients of w and b, whose next
 * values are moving averages.  Some weights are read as bf16. */
static struct graph *make_step(unsigned layers, int64_t rows, int64_t columns)
{
    struct graph *g = graph_new("step");
    struct shape all = shape_make(2, (int64_t[]){rows, columns}), row = shape_make(2, (int64_t[]){1, columns});
    ref x = n_input(g, KL_F32, &all, "x");
    for (unsigned i = 0; i < layers; i++) {
        ref parameter[2] = {n_state(g, KL_F32, &row, "w"), n_state(g, KL_F32, &row, "b")};
        ref w = i % 3 ? parameter[0] : n_cast(g, n_cast(g, parameter[0], KL_BF16), KL_F32);
        x = n_tanh(g, n_add(g, n_mul(g, x, n_broadcast(g, w, &all)), n_broadcast(g, parameter[1], &all)));
        for (unsigned n = 0; n < 2; n++) {
            ref sum = n_reduce(g, OP_sum, n ? x : n_mul(g, x, x), 1), old = parameter[n];
            ref next = n_add(g, old, n_mul(g, n_sub(g, sum, old), n_k(g, old, 0.25)));
            graph_output(g, OUT_ASSIGN, next, 2 * i + n);
        }
        x = n_permute(g, n_exp(g, n_neg(g, n_permute(g, x, (uint8_t[]){1, 0}))), (uint8_t[]){1, 0});
    }
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

/* Layers whose three maps of different forms do not read each other. */
static struct graph *make_maps(unsigned layers, int64_t rows, int64_t columns)
{
    struct graph *g = graph_new("maps");
    struct shape all = shape_make(2, (int64_t[]){rows, columns}), row = shape_make(2, (int64_t[]){1, columns});
    ref x = n_input(g, KL_F32, &all, "x");
    for (unsigned i = 0; i < layers; i++) {
        ref y = n_input(g, KL_F32, &all, "y"), state = n_state(g, KL_F32, &row, "s");
        ref made[3] = {n_concat(g, (ref[]){x, y}, 2, 1), n_concat(g, (ref[]){n_exp(g, n_neg(g, y)), x, y}, 3, 0),
                       n_add(g, state, n_tanh(g, n_slice(g, y, 0, rows / 2, 1, 1)))};
        graph_output(g, OUT_RETURN, made[0], 0);
        graph_output(g, OUT_RETURN, made[1], 0);
        graph_output(g, OUT_ASSIGN, made[2], i);
        x = n_sin(g, n_slice(g, made[1], 0, rows / 3, rows, 1));
    }
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

/* The same maps of two inputs, on two devices. */
static struct graph *make_devices(unsigned maps)
{
    struct graph *g = graph_new("devices");
    struct shape all = shape_make(2, (int64_t[]){64, 64});
    for (unsigned i = 0; i < maps; i++) {
        g->cur_device = i % 2;
        graph_output(g, OUT_RETURN, n_tanh(g, n_input(g, KL_F32, &all, "x")), 0);
    }
    return g;
}

/* Sums of values that are as large as all that is alive when they are made: to join the sums would keep all of them. */
static struct graph *make_tight(unsigned layers)
{
    struct graph *g = graph_new("tight");
    struct shape all = shape_make(2, (int64_t[]){512, 96});
    ref x = n_input(g, KL_F32, &all, "x");
    for (unsigned i = 0; i < layers; i++) {
        x = n_reshape(g, n_permute(g, n_sin(g, x), (uint8_t[]){1, 0}), &all);
        graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, x, 1), 0);
    }
    return g;
}

/* Each kernel reads the one before. */
static struct graph *make_chain(unsigned layers)
{
    struct graph *g = graph_new("chain");
    struct shape square = shape_make(2, (int64_t[]){64, 64});
    ref x = n_input(g, KL_F32, &square, "x");
    for (unsigned i = 0; i < layers; i++)
        x = n_permute(g, n_sin(g, x), (uint8_t[]){1, 0});
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

/* ---- tests ---- */

/* fewest: launches that are saved at least. */
static void try_graph(struct graph *g, uint32_t fewest)
{
    struct err e = {0};
    struct values in = {0}, state = {0}, want = {0}, got = {0};
    const struct pass_options options = {.fuse = true, .gpus = UINT64_MAX, .verify = true};
    if (!check(!g->err.code && passes_run(g, &options), "%s", g->err.msg))
        return;
    values_random(&rng, g, &g->input, false, &in);
    values_random(&rng, g, &g->state, false, &state);
    struct program *apart = plan(g, false, &e), *joined = plan(g, true, &e);
    if (apart && joined) {
        check(joined->ncmd + fewest <= apart->ncmd, "@%s: %u commands, %u if none are joined", g->name, joined->ncmd,
              apart->ncmd);
        check(program_arenas(joined) <= program_arenas(apart) * 5 / 4, "@%s: %lld bytes, %lld if none are joined",
              g->name, (long long)program_arenas(joined), (long long)program_arenas(apart));
        for (uint32_t o = 0; o < g->nout; o++)
            check(joined->in_place[o] == apart->in_place[o], "output %u is in place in one of two plans", o);
        run(apart, &in, &state, &want);
        run(joined, &in, &state, &got);
        compare(g, &want, &got);
    }
    values_free(&in);
    values_free(&state);
    values_free(&want);
    values_free(&got);
    program_free(apart);
    program_free(joined);
    graph_free(g);
}

static void try_step(void)
{
    unsigned layers = 3 + (unsigned)rng_below(&rng, 8);
    int64_t rows = 64 + (int64_t)rng_below(&rng, 300), columns = 4 * (int64_t)(1 + rng_below(&rng, 40));
    try_graph(make_step(layers, rows, columns), 1);
    try_graph(make_maps(layers, rows, columns), layers);
}

/* Is all that a launch reads and stores on its device, whatever kernels are equal? */
static void try_devices(void)
{
    struct err e = {0};
    struct graph *g = make_devices(8);
    check(!g->err.code && passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}), "%s", g->err.msg);
    struct program *p = plan(g, true, &e);
    check(p && p->ncmd == 2, "@%s: %u commands for two devices", g->name, p ? p->ncmd : 0);
    for (uint32_t c = 0; p && c < p->ncmd; c++)
        for (uint32_t a = 0; a < p->cmd[c].narg; a++)
            check(g->node[p->cmd[c].value[a]].device == p->cmd[c].device, "@%s: command %u of device %u has argument "
                  "%u of another", g->name, c, p->cmd[c].device, a);
    program_free(p);
    graph_free(g);
}

/* Launches of a graph whose kernels cannot be joined. */
static void try_apart(struct graph *g, unsigned max)
{
    struct err e = {0};
    check(!g->err.code && passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}), "%s", g->err.msg);
    struct program *apart = plan(g, false, &e), *joined = plan(g, true, &e);
    if (apart && joined) {
        check(max_members(joined) <= max, "@%s: a launch with %u members", g->name, max_members(joined));
        check(program_arenas(joined) <= program_arenas(apart), "@%s: %lld bytes, %lld without members", g->name,
              (long long)program_arenas(joined), (long long)program_arenas(apart));
    }
    program_free(apart);
    program_free(joined);
    graph_free(g);
}

int main(int argc, char **argv)
{
    unsigned steps = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 4;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (unsigned i = 0; i < steps; i++) {
        rng = (struct rng){(seed + i) * UINT64_C(0x9e3779b97f4a7c15)};
        try_step();
    }
    try_devices();
    try_apart(make_chain(12), 1);
    try_apart(make_tight(8), 2);
    return finish();
}
