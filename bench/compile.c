/* What a new process waits for, then what compiling costs a node.
 *
 *   process-start   from exec to exit of a process that adds two numbers on device ref: no code generator is opened
 *   first-step      from exec until the first training step of a classifier (784-512-512-10, 128 images, Adam) is done,
 *                   weights included: cold, nothing being compiled yet, and from a folder of kernels
 *
 * Time per node, before any machine code, of compiling graphs of 100 to 100,000 nodes: where it stays the same,
 * compiling is linear.  A bare chain of kernels, and the training step of a network as deep as that takes, with
 * momentum.
 *
 *   passes  all of the pipeline before fuse        fuse  nodes to groups
 *   lower   groups to kernels                      plan  lower again, then order, storage and commands
 *
 * Time per kernel, machine code included, of graphs of 10 to 1000 kernels that are all different (cases kernels-COUNT,
 * on one thread): where it stays the same, compiling is linear in them.
 *
 * Time per kernel of a new program whose kernels are all known, from its captured graph on (cases known-COUNT): the
 * same links as in an earlier program in another order, with other inputs.  Elementwise kernels, softmaxes, products
 * and sums in alternation, no two equal. */
#include "bench.h"
#include "growing.h"
#include "models.h"
#include "passes/passes.h"
#include "runtime/runtime.h"
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 5, STAGES = 4, SMOKE_NODES = 1000, SMOKE_KERNELS = 10, SMOKE_KNOWN = 100 };
static const char *const stage[STAGES] = {"passes", "fuse", "lower", "plan"};
static const int size[] = {100, 1000, 4000, 16000, 100000}, kinds[] = {10, 100, 1000}, known[] = {100, 1000};

static bool run_passes(struct graph *g)
{
    for (unsigned i = 0; i + 1 < pass_count; i++)
        if (pass_run(&pass_list[i], g, NULL) < 0)
            return false;
    return true;
}

static bool lower_each_group(const struct graph *g, const struct caps *caps, struct err *e)
{
    struct target_set target = {&(struct target){.caps = caps}, 1};
    struct lowerer *l = lowerer_new(g, &target, 0, NULL, NULL);
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
    ok = ok && pass_run(&pass_list[pass_count - 1], g, NULL) >= 0;
    at[2] = measure_cpu_now();
    ok = ok && lower_each_group(g, caps, e);
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
    if (!bench_wants_work(b, name, nodes, SMOKE_NODES))
        return true;
    memset(took, 0, sizeof took);
    for (int round = 0; ok && round < bench_rounds(b, ROUNDS); round++) {
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

/* ---- kernels that are all different ---- */

/* As make_chain, but no link's factor is another's. */
static struct graph *make_kinds(int kernels)
{
    struct graph *g = graph_new("kinds");
    struct shape s = shape_make(2, (int64_t[]){WIDTH, WIDTH});
    ref x = n_input(g, KL_F32, &s, "x"), w = n_input(g, KL_F32, &s, "w");
    for (int i = 0; i < kernels; i++)
        x = n_permute(g, n_tanh(g, n_add(g, n_mul(g, x, n_k(g, x, 1 + i / 1024.0)), w)), (const uint8_t[]){1, 0});
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

static bool make_code(const struct program *p, const struct backend *b, struct err *e)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < p->nkernel; i++) {
        struct code code = {0};
        struct loaded loaded;
        ok = b->compile(p->kernel[i], EMIT_OBJECT, &code, e) && object_load(&code, &loaded, e);
        mem_free(code.bytes);
        if (ok)
            object_unload(&loaded);
    }
    return ok;
}

static bool run_kinds(struct bench *b, int kernels, const struct backend *backend, const struct caps *caps)
{
    static struct samples took;
    struct err e = {0};
    char name[64];
    bool ok = true;
    snprintf(name, sizeof name, "kernels-%d", kernels);
    if (!bench_wants_work(b, name, kernels, SMOKE_KERNELS))
        return true;
    took.n = 0;
    for (int round = 0; ok && round < bench_rounds(b, ROUNDS); round++) {
        struct graph *g = make_kinds(kernels);
        double start = measure_cpu_now();
        ok = passes_run(g, &(struct pass_options){.fuse = true}) || err_set(&e, g->err.code, "%s", g->err.msg);
        struct program *p = ok ? program_plan(g, caps, false, &e) : NULL;
        ok = p && make_code(p, backend, &e);
        if (ok)
            samples_add(&took, (measure_cpu_now() - start) / p->nkernel);
        if (ok && (int)p->nkernel < kernels)
            ok = err_set(&e, KL_ERR_INTERNAL, "only %u different kernels", p->nkernel);
        program_free(p);
        graph_free(g);
    }
    if (!ok)
        fprintf(stderr, "bench_compile: %s: %s\n", name, e.msg);
    else
        bench_add(b, name, "code", 1, &took, "us", 0, 0);
    return ok;
}

/* ---- kernels that are all known ---- */

enum { KNOWN_LIMIT = 50 }; /* microseconds a kernel */

/* A link's kernel depends on nothing but its number, whatever reads it or is read. */
static ref make_link(struct graph *g, ref x, ref w, int number)
{
    static const union attr product = {.dot = {.con_a = 1, .ncon = 1}};
    ref k = n_k(g, x, 1 + number / 1024.0);
    switch (number % 4) {
    case 0:
        return n_permute(g, n_tanh(g, n_add(g, n_mul(g, x, k), w)), (const uint8_t[]){1, 0});
    case 1: {
        ref max = n_expand(g, n_reduce(g, OP_reduce_max, x, 2), node_shape(g, x)), e = n_exp(g, n_sub(g, x, max));
        ref sum = n_expand(g, n_reduce(g, OP_sum, e, 2), node_shape(g, x));
        return n_permute(g, n_mul(g, k, n_div(g, e, sum)), (const uint8_t[]){1, 0});
    }
    case 2:
        return n_permute(g, n_mul(g, n_dot(g, x, w, &product), k), (const uint8_t[]){1, 0});
    default: {
        ref sum = n_expand(g, n_reduce(g, OP_sum, n_mul(g, x, k), 1), node_shape(g, x));
        return n_permute(g, n_mul(g, x, sum), (const uint8_t[]){1, 0});
    }
    }
}

/* The links of every program of this size, from number `turn` on. */
static struct graph *make_known(int links, int turn)
{
    struct graph *g = graph_new("known");
    struct shape s = shape_make(2, (int64_t[]){WIDTH, WIDTH});
    ref w[3], x = n_input(g, KL_F32, &s, "x");
    for (int i = 0; i < 3; i++)
        w[i] = n_input(g, KL_F32, &s, "w");
    x = n_permute(g, x, (const uint8_t[]){1, 0});
    for (int i = 0; i < links; i++)
        x = make_link(g, x, w[(i + turn) % 3], (i + turn) % links);
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

static bool run_known(struct bench *b, int kernels)
{
    static struct samples took;
    struct err e = {0};
    char name[64];
    bool ok = true;
    int device = device_find("cpu", &e);
    snprintf(name, sizeof name, "known-%d", kernels);
    if (!bench_wants_work(b, name, kernels, SMOKE_KNOWN))
        return true;
    took.n = 0;
    for (int round = 0; ok && round <= bench_rounds(b, ROUNDS); round++) {
        struct graph *g = make_known(kernels * 4 / 5, 17 * round);
        uint64_t missed = counters.kernel_misses;
        double start = measure_cpu_now();
        const struct exec *x = g->err.code ? NULL : exec_get(g, device, true, &e);
        double end = measure_cpu_now();
        ok = x || err_set(&e, g->err.code, "%s", g->err.msg);
        if (ok && round && counters.kernel_misses != missed)
            ok = err_set(&e, KL_ERR_INTERNAL, "%d kernels were not known", (int)(counters.kernel_misses - missed));
        if (ok && round)
            samples_add(&took, (end - start) / x->program->ncmd);
        graph_free(g);
    }
    if (!ok)
        fprintf(stderr, "bench_compile: %s: %s\n", name, e.msg);
    else
        bench_add(b, name, "plan", 1, &took, "us", 0, KNOWN_LIMIT);
    return ok;
}

/* ---- processes ---- */

enum { STARTS = 21, COLD_STARTS = 7 };

/* Weights, which are computed, and the first step on a batch of the user's. */
static bool first_step(void)
{
    enum { BATCH = 128 };
    static uint8_t images[BATCH * 784], labels[BATCH];
    kl_device cpu = kl_device_named("cpu");
    kl_tensor p[2 * MLP_LAYERS];
    kl_trace_begin("init");
    for (int i = 0; i < MLP_LAYERS; i++) {
        kl_tensor normal = kl_randn(cpu, KL_F32, 2, &mlp_width[i], (uint64_t)i);
        p[2 * i] = kl_keep(kl_mul_scalar(normal, sqrt(2.0 / (double)mlp_width[i])));
        p[2 * i + 1] = kl_keep(kl_zeros(cpu, KL_F32, 1, &mlp_width[i + 1]));
    }
    kl_optimizer *adam = kl_adam(2 * MLP_LAYERS, p, NULL);
    if (kl_trace_end() != KL_OK)
        return false;
    kl_trace_begin("step");
    kl_tensor x = kl_mul_scalar(kl_cast(kl_input(cpu, KL_U8, 2, (int64_t[]){BATCH, 784}, images), KL_F32), 1.0 / 255);
    for (int i = 0; i < MLP_LAYERS; i++) {
        x = kl_linear(x, p[2 * i], p[2 * i + 1]);
        x = i + 1 < MLP_LAYERS ? kl_relu(x) : x;
    }
    kl_tensor loss = kl_keep(kl_cross_entropy(x, kl_input(cpu, KL_U8, 1, (int64_t[]){BATCH}, labels)));
    kl_optimizer_step(adam, loss, 1e-3);
    return kl_trace_end() == KL_OK && kl_item_f32(loss) > 0;
}

/* In the child; the time at the end goes to standard output. */
static int be_child(const char *what)
{
    bool ok = false;
    if (!strcmp(what, "start")) {
        kl_tensor a = kl_add(kl_full(kl_device_named("ref"), KL_F32, 0, NULL, 1),
                             kl_full(kl_device_named("ref"), KL_F32, 0, NULL, 2));
        ok = kl_item_f32(a) == 3;
    } else {
        ok = first_step();
    }
    double now = measure_now();
    return ok && write(STDOUT_FILENO, &now, sizeof now) == sizeof now ? 0 : 1;
}

/* Seconds from here until the child says that it is done, or has ended; negative: it failed. */
static double time_child(const char *what, const char *folder, bool until_end)
{
    int end[2], status = 1;
    double done = 0, start = measure_now();
    if (pipe(end))
        return -1;
    pid_t pid = fork();
    if (!pid) {
        dup2(end[1], STDOUT_FILENO);
        setenv("KILN_CACHE_DIR", folder, 1);
        execl("/proc/self/exe", "compile", "--child", what, (char *)NULL);
        _exit(127);
    }
    close(end[1]);
    bool ok = pid > 0 && read(end[0], &done, sizeof done) == sizeof done;
    ok &= pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
    if (until_end)
        done = measure_now();
    close(end[0]);
    return ok ? done - start : -1;
}

static void remove_folder(const char *folder)
{
    struct disk_entries gone;
    struct err e = {0};
    setenv("KILN_CACHE_DIR", folder, 1);
    disk_prune(0, &gone, &e);
    mem_free(gone.v);
    unsetenv("KILN_CACHE_DIR");
    rmdir(folder);
}

/* limit: milliseconds that it is to stay below. */
static bool add_process(struct bench *b, const char *name, const char *variant, const struct samples *took,
                        double limit)
{
    if (took->n)
        bench_add(b, name, variant, (int)pool_threads(), took, "us", 0, 1e3 * limit);
    else
        fprintf(stderr, "bench_compile: %s: the process fails\n", name);
    return took->n > 0;
}

static bool time_start(struct bench *b)
{
    static struct samples took;
    double t = 0;
    for (int i = 0; i < bench_rounds(b, STARTS) && t >= 0; i++)
        if ((t = time_child("start", "none", true)) >= 0)
            samples_add(&took, t);
    return add_process(b, "process-start", "ref", &took, 2);
}

static bool time_first_step(struct bench *b)
{
    static struct samples cold, disk;
    for (int i = 0; i < bench_rounds(b, COLD_STARTS); i++) {
        char folder[] = "/tmp/kiln-compile-XXXXXX";
        if (!mkdtemp(folder))
            return false;
        double first = time_child("step", folder, false), second = time_child("step", folder, false);
        remove_folder(folder);
        if (first < 0 || second < 0)
            return false;
        samples_add(&cold, first);
        samples_add(&disk, second);
    }
    return add_process(b, "first-step", "cold", &cold, 200) && add_process(b, "first-step", "disk", &disk, 40);
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (argc == 3 && !strcmp(argv[1], "--child"))
        return be_child(argv[2]);
    struct caps caps;
    struct err e = {0};
    if (!bench_open(&b, "compile", argc, argv))
        return b.status;
    if (device_find("cpu", &e) < 0) {
        fprintf(stderr, "bench_compile: %s\n", e.msg);
        return 1;
    }
    if ((bench_wants(&b, "process-start") && !time_start(&b)) ||
        (bench_wants(&b, "first-step") && !time_first_step(&b)))
        return 1;
    const struct backend *backend = device_backend(device_find("cpu", &e), &caps);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!run_kinds(&b, kinds[i], backend, &caps))
            return 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!run_known(&b, known[i]))
            return 1;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (!run_case(&b, "chain", make_chain, size[i], &caps) || !run_case(&b, "step", make_step, size[i], &caps))
            return 1;
    return bench_close(&b);
}
