/* Programs made by hand: the plan checker refuses each kind of fault, and the executor does what a program says.  One
 * made by the planner: where a scatter may go in place. */
#include "tests/support/harness.h"
#include <pthread.h>

/* The program of
 *     t1 = neg x;  t2 = exp t1;  t3 = t1 + t2;  return t3;  return w;  assign w = w + t3
 * with a kernel for each operation; t1 and t2 lie in the arena and w is updated in place. */
enum { N = 16, BYTES = 4 * N, NEG = 0, EXP = 1, COPY_W = 2, ADD = 3, UPDATE = 4, COMMANDS = 5 };
enum { UNARY = 0, BINARY = 1, KERNELS = 2 };
enum { OUT_T3 = 0, OUT_W = 1, OUT_W2 = 2, OUTPUTS = 3 };

/* out[i] = prim(in0[i] ...); with `scratch`, through a scratch buffer of N elements. */
static struct kernel *map_kernel(enum prim prim, unsigned nin, bool scratch)
{
    struct kernel *k = kernel_new("map");
    val in[2] = {0};
    for (unsigned i = 0; i < nin; i++)
        k_buf(k, BUF_IN, KL_F32, N, i);
    k_buf(k, BUF_OUT, KL_F32, N, nin);
    if (scratch)
        k_buf(k, BUF_SCRATCH, KL_F32, N, 0);
    val loop = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, N), 1);
    for (unsigned i = 0; i < nin; i++)
        in[i] = k_load(k, i, loop, 0);
    k_store(k, nin, loop, k_prim(k, prim, in[0], in[1], 0), 0);
    k_end(k, loop);
    k->extent = N;
    k->sched.grain = 1;
    return k;
}

static void set_command(struct command *c, enum cmd_kind kind, uint32_t narg)
{
    *c = (struct command){.kind = (uint16_t)kind, .narg = narg};
    c->arg = mem_alloc((narg + 1) * sizeof *c->arg);
    c->value = mem_alloc((narg + 1) * sizeof *c->value);
}

static void set_arg(struct command *c, uint32_t i, enum loc_kind kind, uint32_t index, int64_t offset, ref value)
{
    c->arg[i] = (struct loc){.kind = kind, .index = index, .offset = offset};
    c->value[i] = value;
}

static struct program *good_program(void)
{
    struct program *p = mem_alloc(sizeof *p);
    struct graph *g = p->g = graph_new("by_hand");
    struct shape s = shape_make(1, (int64_t[]){N});
    ref x = n_input(g, KL_F32, &s, "x"), w = n_state(g, KL_F32, &s, "w");
    ref t1 = n_neg(g, x), t2 = n_exp(g, t1), t3 = n_add(g, t1, t2), w2 = n_add(g, w, t3);
    graph_output(g, OUT_RETURN, t3, 0);
    graph_output(g, OUT_RETURN, w, 0);
    graph_output(g, OUT_ASSIGN, w2, 0);
    p->kernel = mem_alloc(KERNELS * sizeof *p->kernel);
    p->kernel[UNARY] = map_kernel(P_NEG, 1, true);
    p->kernel[BINARY] = map_kernel(P_ADD, 2, false);
    p->nkernel = KERNELS;
    p->cmd = mem_alloc((COMMANDS + 1) * sizeof *p->cmd); /* room for one more */
    p->ncmd = COMMANDS;
    p->devices = 1;
    p->arena_bytes[0] = 2 * BYTES;
    p->scratch_bytes = BYTES;
    p->max_args = 3;
    p->in_place = mem_alloc(OUTPUTS * sizeof *p->in_place);
    p->in_place[OUT_W2] = true;
    for (int i = NEG; i <= EXP; i++) {
        set_command(&p->cmd[i], CMD_KERNEL, 3);
        p->cmd[i].kernel = UNARY;
        set_arg(&p->cmd[i], 2, LOC_SCRATCH, 0, 0, NIL);
    }
    set_arg(&p->cmd[NEG], 0, LOC_INPUT, 0, 0, x);
    set_arg(&p->cmd[NEG], 1, LOC_ARENA, 0, 0, t1);
    set_arg(&p->cmd[EXP], 0, LOC_ARENA, 0, 0, t1);
    set_arg(&p->cmd[EXP], 1, LOC_ARENA, 0, BYTES, t2);
    set_command(&p->cmd[COPY_W], CMD_COPY, 2);
    p->cmd[COPY_W].bytes = BYTES;
    set_arg(&p->cmd[COPY_W], 0, LOC_OUT, OUT_W, 0, w);
    set_arg(&p->cmd[COPY_W], 1, LOC_STATE, 0, 0, w);
    set_command(&p->cmd[ADD], CMD_KERNEL, 3);
    p->cmd[ADD].kernel = BINARY;
    set_arg(&p->cmd[ADD], 0, LOC_ARENA, 0, 0, t1);
    set_arg(&p->cmd[ADD], 1, LOC_ARENA, 0, BYTES, t2);
    set_arg(&p->cmd[ADD], 2, LOC_OUT, OUT_T3, 0, t3);
    set_command(&p->cmd[UPDATE], CMD_KERNEL, 3);
    p->cmd[UPDATE].kernel = BINARY;
    set_arg(&p->cmd[UPDATE], 0, LOC_STATE, 0, 0, w);
    set_arg(&p->cmd[UPDATE], 1, LOC_OUT, OUT_T3, 0, t3);
    set_arg(&p->cmd[UPDATE], 2, LOC_OUT, OUT_W2, 0, w2);
    p->cmd[EXP].no_barrier = p->cmd[UPDATE].no_barrier = true;
    return p;
}

/* ---- the checker ---- */
static void swap(struct program *p, int a, int b)
{
    struct command c = p->cmd[a];
    p->cmd[a] = p->cmd[b];
    p->cmd[b] = c;
    p->cmd[a].no_barrier = p->cmd[b].no_barrier = false;
}

static void out_of_bounds(struct program *p) { p->cmd[NEG].arg[1].offset = p->cmd[EXP].arg[0].offset = 2 * BYTES; }
static void negative_offset(struct program *p) { p->cmd[NEG].arg[1].offset = -4; }
static void unaligned(struct program *p) { p->cmd[NEG].arg[1].offset = 2; }
static void small_arena(struct program *p) { p->arena_bytes[0]--; }
static void small_scratch(struct program *p) { p->scratch_bytes = BYTES - 1; }
static void no_such_input(struct program *p) { p->cmd[NEG].arg[0].index = 1; }
static void no_such_output(struct program *p) { p->cmd[ADD].arg[2].index = OUTPUTS; }
static void no_such_kernel(struct program *p) { p->cmd[ADD].kernel = KERNELS; }
static void too_few_arguments(struct program *p) { p->cmd[ADD].narg = 2; }
static void scratch_in_arena(struct program *p) { p->cmd[NEG].arg[2].kind = LOC_ARENA; }
static void value_in_scratch(struct program *p) { p->cmd[NEG].arg[1].kind = LOC_SCRATCH; }
static void unwritten(struct program *p) { swap(p, NEG, EXP); }
static void same_place(struct program *p) /* t2 over t1, which t3 still needs */
{
    p->cmd[EXP].arg[0] = (struct loc){.kind = LOC_INPUT};
    p->cmd[EXP].value[0] = p->cmd[NEG].value[0];
    p->cmd[EXP].arg[1].offset = p->cmd[ADD].arg[1].offset = 0;
}
static void half_over(struct program *p)
{
    same_place(p);
    p->cmd[EXP].no_barrier = false;
    p->cmd[EXP].arg[1].offset = p->cmd[ADD].arg[1].offset = BYTES / 2;
}
static void onto_own_operand(struct program *p) { p->cmd[EXP].arg[1].offset = BYTES / 2; }
static void wrong_value(struct program *p) { p->cmd[ADD].arg[1].offset = 0; }
static void wrong_leaf(struct program *p) { p->cmd[UPDATE].arg[0] = (struct loc){.kind = LOC_INPUT}; }
static void wrong_output(struct program *p) { p->cmd[COPY_W].value[0] = p->cmd[NEG].value[1]; }
static void output_too_early(struct program *p) { swap(p, ADD, UPDATE); }
static void output_missing(struct program *p)
{
    p->ncmd--;
    mem_free(p->cmd[UPDATE].arg);
    mem_free(p->cmd[UPDATE].value);
}
static void output_twice(struct program *p)
{
    struct command *c = &p->cmd[p->ncmd++];
    set_command(c, CMD_COPY, 2);
    c->bytes = BYTES;
    set_arg(c, 0, LOC_OUT, OUT_W2, 0, p->cmd[UPDATE].value[2]);
    set_arg(c, 1, LOC_OUT, OUT_W2, 0, p->cmd[UPDATE].value[2]);
}
static void half_output(struct program *p) { p->cmd[COPY_W].bytes = BYTES / 2; }
static void writes_state(struct program *p) { p->cmd[ADD].arg[2] = (struct loc){.kind = LOC_STATE}; }
static void writes_input(struct program *p) { p->cmd[ADD].arg[2] = (struct loc){.kind = LOC_INPUT}; }
static void state_read_late(struct program *p) { swap(p, COPY_W, UPDATE); swap(p, COPY_W, ADD); }
static void return_in_place(struct program *p) { p->in_place[OUT_T3] = true; }
static void interpreter_among_kernels(struct program *p) { p->cmd[COPY_W].kind = CMD_INTERP; }

/* A kernel of its own for UPDATE. */
static struct kernel *replace_update(struct program *p)
{
    p->kernel = mem_grow(p->kernel, KERNELS * sizeof *p->kernel, (KERNELS + 1) * sizeof *p->kernel);
    p->kernel[KERNELS] = map_kernel(P_ADD, 2, false);
    p->cmd[UPDATE].kernel = p->nkernel++;
    return p->kernel[KERNELS];
}
static uint32_t find_inst(const struct kernel *k, unsigned op)
{
    uint32_t i = 1;
    while (k->inst[i].op != op)
        i++;
    return i;
}
static void update_reads_elsewhere(struct program *p)
{
    struct kernel *k = replace_update(p);
    k->inst[find_inst(k, L_LOAD)].a = k->inst[find_inst(k, L_LOOP)].a; /* always element 0 */
}
static void update_reads_late(struct program *p)
{
    struct kernel *k = replace_update(p);
    val loop = find_inst(k, L_LOOP);
    k_load(k, 0, loop, 0);
}

static void no_barrier_before_first(struct program *p) { p->cmd[NEG].no_barrier = true; }
static void no_barrier_after_copy(struct program *p) { p->cmd[ADD].no_barrier = true; }
static void no_barrier_other_shares(struct program *p) { replace_update(p)->sched.grain = 2; }
static void no_barrier_other_memory(struct program *p) /* t3 of the next thread */
{
    struct kernel *k = replace_update(p);
    val second = find_inst(k, L_LOAD) + 1;
    k->inst[second].a = k->inst[find_inst(k, L_LOOP)].a;
}

static const struct { void (*spoil)(struct program *); const char *name, *phrase; } faults[] = {
#define FAULT(name, phrase) {name, #name, phrase}
    FAULT(out_of_bounds, "which has 128"),
    FAULT(negative_offset, "bytes -4 to"),
    FAULT(unaligned, "not aligned to 4"),
    FAULT(small_arena, "which has 127"),
    FAULT(small_scratch, "scratch 0, which has 63"),
    FAULT(no_such_input, "input 1"),
    FAULT(no_such_output, "output 3"),
    FAULT(no_such_kernel, "no kernel 2"),
    FAULT(too_few_arguments, "2 arguments where 3"),
    FAULT(scratch_in_arena, "interleaves up scratch"),
    FAULT(value_in_scratch, "interleaves up scratch"),
    FAULT(unwritten, "no whole value"),
    FAULT(same_place, "reads %3 where %4 is"),
    FAULT(half_over, "hold no whole value"),
    FAULT(onto_own_operand, "overlaps argument 0"),
    FAULT(wrong_value, "reads %4 where %3 is"),
    FAULT(wrong_leaf, "is named %2 but is input 0"),
    FAULT(wrong_output, "output 1 receives %3"),
    FAULT(output_too_early, "reads output 0 before it is written"),
    FAULT(output_missing, "output 2 was never written"),
    FAULT(output_twice, "overlaps"),
    FAULT(half_output, "writes 32 bytes of output 1"),
    FAULT(writes_state, "writes state 0"),
    FAULT(writes_input, "writes input 0"),
    FAULT(state_read_late, "reads state 0 after it is overwritten"),
    FAULT(return_in_place, "output 0 in place is no assign"),
    FAULT(interpreter_among_kernels, "the interpreter runs whole programs only"),
    FAULT(update_reads_elsewhere, "not followed by a store"),
    FAULT(update_reads_late, "not followed by a store"),
    FAULT(no_barrier_before_first, "no kernel before it"),
    FAULT(no_barrier_after_copy, "not a kernel of its device"),
    FAULT(no_barrier_other_shares, "shared out in another way"),
    FAULT(no_barrier_other_memory, "other threads access the same memory"),
#undef FAULT
};

static void test_checker(void)
{
    struct err e = {0};
    struct program *p = good_program();
    check(program_check(p, &e), "a good program is accepted: %s", e.msg);
    program_free(p);
    for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        p = good_program();
        faults[i].spoil(p);
        e = (struct err){0};
        bool ok = program_check(p, &e);
        check(!ok && e.code == KL_ERR_INTERNAL && strstr(e.msg, faults[i].phrase), "%s: %s", faults[i].name,
              ok ? "accepted" : e.msg);
        program_free(p);
    }
}

/* ---- the executor, with the kernels written in C ---- */
static void neg_in_c(void *const *buf, const uint64_t *slot, int64_t begin, int64_t end)
{
    const float *in = buf[0];
    float *out = buf[1], *scratch = buf[2];
    (void)slot;
    for (int64_t i = begin; i < end; i++) /* the scratch is this thread's: what is written there stays */
        scratch[i] = -in[i];
    for (int64_t i = begin; i < end; i++)
        out[i] = scratch[i];
}

static void add_in_c(void *const *buf, const uint64_t *slot, int64_t begin, int64_t end)
{
    const float *a = buf[0], *b = buf[1];
    float *out = buf[2];
    (void)slot;
    for (int64_t i = begin; i < end; i++)
        out[i] = a[i] + b[i];
}

static kernel_fn *const in_c[KERNELS] = {[UNARY] = neg_in_c, [BINARY] = add_in_c};

static struct buffer *filled(float first, float step)
{
    struct err e = {0};
    struct buffer *b = buffer_new(DEVICE_CPU, BYTES, &e);
    for (int i = 0; b && i < N; i++)
        ((float *)b->data)[i] = first + step * (float)i;
    return b;
}

static bool holds(const struct buffer *b, float first, float step)
{
    for (int i = 0; b && i < N; i++)
        if (((const float *)b->data)[i] != first + step * (float)i)
            return false;
    return b != NULL;
}

/* The good program, but ADD reads t1 twice: t3 = -2 x and w2 = w - 2 x. */
static struct program *runnable_program(void)
{
    struct program *p = good_program();
    set_arg(&p->cmd[ADD], 1, LOC_ARENA, 0, 0, p->cmd[ADD].value[0]);
    return p;
}

/* One run of runnable_program with x = 1 + 2i and w = 100 + 10i. */
static bool run_once(const struct exec *x, bool exclusive, const char **what)
{
    struct err e = {0};
    struct buffer *in = filled(1, 2), *w = filled(100, 10), *out[OUTPUTS];
    bool ok = in && w && exec_run(x, &in, &w, &exclusive, NULL, out, &e);
    *what = ok ? "wrong values" : e.msg;
    ok = ok && holds(out[OUT_T3], -2, -4) && holds(out[OUT_W], 100, 10) && holds(out[OUT_W2], 98, 6) &&
         holds(in, 1, 2);
    if (ok)
        ok = exclusive ? out[OUT_W2] == w : out[OUT_W2] != w && holds(w, 100, 10);
    for (int i = 0; ok && i < OUTPUTS; i++)
        buffer_unref(out[i]);
    if (ok && !(ok = buffer_exclusive(w)))
        *what = "references are left over";
    buffer_unref(in);
    buffer_unref(w);
    return ok;
}

static void *runner(void *ctx)
{
    const struct exec *x = ctx;
    const char *what;
    for (int i = 0; i < 500; i++)
        if (!run_once(x, i % 2, &what))
            return (void *)1;
    return NULL;
}

static void test_executor(void)
{
    struct program *p = runnable_program();
    struct err e = {0};
    check(program_check(p, &e), "the executor's program is valid: %s", e.msg);
    const struct exec x = {.program = p, .fn = (kernel_fn **)(uintptr_t)in_c, .device = 0};
    const char *what = "";
    struct buffer_stats before = buffer_stats(DEVICE_REF);
    for (unsigned threads = 1; threads <= 4; threads++) {
        pool_set_threads(threads);
        check(run_once(&x, false, &what), "a state that others hold: %s", what);
        check(run_once(&x, true, &what), "a state in place: %s", what);
    }
    check(buffer_stats(DEVICE_REF).live == before.live, "nothing is left over");
    uint64_t launches = atomic_load(&counters.launches), barriers = atomic_load(&counters.barriers);
    size_t pooled = buffer_stats(DEVICE_REF).pooled;
    bool ok = run_once(&x, true, &what) && atomic_load(&counters.launches) - launches == 4;
    check(ok, "launches counts kernels: %s", what);
    check(atomic_load(&counters.barriers) - barriers == 2, "elided barriers are not executed");
    check(buffer_stats(DEVICE_REF).pooled == pooled, "the steady state allocates nothing");

    pthread_t thread[4];
    void *bad, *any = NULL;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, runner, (void *)(uintptr_t)&x);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &bad);
        any = bad ? bad : any;
    }
    check(!any, "four threads run one program");
    program_free(p);
}

/* No memory for the arena: an error, no output, and the state as it was. */
static void test_no_memory(void)
{
    struct program *p = runnable_program();
    p->arena_bytes[0] = (int64_t)1 << 60;
    const struct exec x = {.program = p, .fn = (kernel_fn **)(uintptr_t)in_c, .device = 0};
    struct err e = {0};
    bool exclusive = true;
    struct buffer *in = filled(1, 2), *w = filled(100, 10), *out[OUTPUTS];
    bool ok = exec_run(&x, &in, &w, &exclusive, NULL, out, &e);
    check(!ok && e.code == KL_ERR_MEMORY && !out[0] && !out[1] && !out[2], "no memory for the arena: %s", e.msg);
    check(holds(w, 100, 10) && buffer_exclusive(w), "the state is as it was");
    buffer_unref(in);
    buffer_unref(w);
    program_free(p);
}

/* Does the kernel compare the addresses of a state and its next value, so that it copies nothing in place? */
static bool compares_addresses(const struct kernel *k)
{
    bool found = false;
    for (val v = 1; v < k->ninst; v++)
        found |= k->inst[v].op == L_ALIAS;
    return found;
}

/* A scatter into a state goes in place, unless what it brings in is made of the state. */
static void test_scatter_in_place(void)
{
    for (int own = 0; own < 2; own++) {
        struct graph *g = graph_new("scatter");
        struct shape s = shape_make(2, (int64_t[]){1, 5}), u = shape_make(2, (int64_t[]){3, 5}),
            n = shape_make(1, (int64_t[]){3});
        ref w = n_state(g, KL_F32, &s, "w"), i = n_input(g, KL_I32, &n, "i"), x = n_input(g, KL_F32, &u, "x");
        graph_output(g, OUT_ASSIGN, n_scatter(g, w, i, own ? n_expand(g, w, &u) : x, 0, SCATTER_ADD), 0);
        struct err e = {0};
        struct caps caps = {.vector_bytes = 32, .vector_regs = 16, .threads = 1};
        struct program *p = passes_run(g, &(struct pass_options){.fuse = true}) ? program_plan(g, &caps, false, &e)
            : NULL;
        if (check(p && program_check(p, &e), "scatter to a state: %s%s", g->err.msg, e.msg) &&
            check(compares_addresses(p->kernel[p->nkernel - 1]), "a scatter to a state in place copies it"))
            check(p->in_place[0] == !own, "scatter of %s to a state is%s in place", own ? "itself" : "an input",
                  own ? "" : " not");
        program_free(p);
        graph_free(g);
    }
}

/* Updates of states of several sizes are one kernel (but for scalars), each in place, and need no more memory than one
 * by one: what they read lies there until the last of them anyway. */
static void test_updates(void)
{
    static const int64_t size[] = {300, 7, 1, 2048, 100, 12};
    enum { UPDATES = sizeof size / sizeof *size };
    int64_t peak[2] = {0}, kernels[2] = {0};
    for (int apart = 0; apart < 2; apart++) { /* 1: a different constant in each */
        struct graph *g = graph_new("updates");
        struct shape one = {0};
        ref x = n_input(g, KL_F32, &one, "x"), d[UPDATES];
        for (int i = 0; i < UPDATES; i++) {
            struct shape s = shape_make(1, &size[i]);
            ref y = n_exp(g, n_add(g, n_broadcast(g, x, &s), n_iota(g, KL_F32, &s, 0)));
            d[i] = n_permute(g, n_flip(g, y, 1), (const uint8_t[]){0}); /* no part of the kernel that reads it */
        }
        for (int i = 0; i < UPDATES; i++) {
            struct shape s = shape_make(1, &size[i]);
            ref v = n_state(g, KL_F32, &s, "v"), w = n_state(g, KL_F32, &s, "w");
            ref m = n_add(g, n_mul(g, v, n_k(g, v, 0.5 + apart * i)), d[i]);
            for (int more = 0; more < apart * i; more++)
                m = n_tanh(g, m);
            graph_output(g, OUT_ASSIGN, m, 2 * (uint32_t)i);
            graph_output(g, OUT_ASSIGN, n_sub(g, w, m), 2 * (uint32_t)i + 1);
        }
        struct err e = {0};
        struct caps caps = {.vector_bytes = 32, .vector_regs = 16, .threads = 1};
        struct program *p = passes_run(g, &(struct pass_options){.fuse = true}) ? program_plan(g, &caps, false, &e)
            : NULL;
        if (check(p && program_check(p, &e), "updates: %s%s", g->err.msg, e.msg)) {
            peak[apart] = p->peak_bytes;
            kernels[apart] = p->ncmd;
            for (uint32_t i = 0; i < g->nout; i++)
                check(p->in_place[i], "update %u is%s in place", i, p->in_place[i] ? "" : " not");
        }
        program_free(p);
        graph_free(g);
    }
    check(kernels[1] - kernels[0] == UPDATES - 2, "updates alike are one kernel: %d and %d commands", (int)kernels[0],
          (int)kernels[1]);
    check(peak[0] == peak[1], "in %lld bytes, one by one in %lld", (long long)peak[0], (long long)peak[1]);
}

#if defined(KILN_ASAN)
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
#elif defined(KILN_TSAN)
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }
#endif

int main(void)
{
    test_checker();
    test_executor();
    test_no_memory();
    test_scatter_in_place();
    test_updates();
    pool_set_threads(1);
    buffer_trim();
    return finish();
}
