/* How the kernels of whole training steps are shared out over 8, 16 and 64 threads, by simulation: no such machine is
 * needed.
 *
 *   core_shares             checks the steps below
 *   core_shares list [STEP] prints the table of kernels that take more than 1 % of a step, most expensive first
 *
 * A step is planned as on a machine with so many processors.  A kernel's cost on one thread is estimated: cycles of its
 * instructions, or of its bytes if these take longer.  The pool gives each thread an equal number of adjacent
 * iterations of the parallel loop (runtime/pool.c), so a kernel takes as long as the thread with most of them.  Bound:
 * where a kernel takes more than 1 % of a step, each thread has at least two iterations or hardly one is idle, unless
 * the results are too few or the iterations too short beside a barrier. */
#include "ir/loop/inline.h"
#include "tests/gpu/structure/gpu_step_text.h"
#include "tests/support/harness.h"

enum { COUNTS = 3, MAX_KERNELS = 512, TASKS_A_THREAD = 2 };
static const int64_t thread_counts[COUNTS] = {8, 16, 64};
/* Cycles: of a task, some times those of a barrier; of a barrier, for each doubling of the threads (./run bench pool).
 * Of a thread in a cycle: bytes of memory, instructions, operations of products. */
enum { MIN_TASK = 120000, BARRIER = 1000, BYTES = 8, INSTRUCTIONS = 2, FLOPS = 64 };

struct shared_kernel {
    const struct kernel *k;
    int64_t launches, barriers;
    double cost;               /* cycles of a launch on one thread */
};

/* Of products the arithmetic counts: their code has branches for tiles at edges. */
static double cost_of(const struct kernel *k)
{
    const struct schedule *s = schedule_of(k);
    double work = (double)kernel_work(k, 64) / INSTRUCTIONS, bytes = (double)k->bytes / BYTES;
    if (s && s->kind == SCHED_DOT)
        work = (double)k->flops / FLOPS;
    return work > bytes ? work : bytes;
}

/* The threads that a kernel is shared out to. */
static int64_t shares_of(const struct kernel *k, int64_t threads)
{
    int64_t n = k->sched.grain > 0 ? k->extent / k->sched.grain : 1;
    return n < 1 ? 1 : n < threads ? n : threads;
}

static double speedup_of(const struct kernel *k, int64_t threads)
{
    int64_t shares = shares_of(k, threads), max = (k->extent + shares - 1) / shares;
    return k->extent > 0 ? (double)k->extent / (double)max : 1;
}

/* Vectors of results, each of which one thread may compute, or tiles of a product's results, whose contraction is not
 * divided. */
static int64_t parts_of_results(const struct kernel *k)
{
    const struct schedule *s = schedule_of(k);
    int64_t n = 0, tile = s && s->kind == SCHED_DOT ? s->dot.mr * s->dot.nr : 0;
    for (uint32_t b = 0; b < k->nbuf && tile; b++)
        if (k->buf[b].role == BUF_OUT && k->buf[b].count / tile > n)
            n = k->buf[b].count / tile;
    if (tile)
        return n ? n : 1;
    for (uint32_t b = 0; b < k->nbuf; b++)
        if (k->buf[b].role == BUF_OUT)
            n += (k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype) + 63) / 64;
    return n;
}

/* Iterations that the parallel loop should have at least for so many threads. */
static int64_t wanted_tasks(const struct shared_kernel *s, int64_t threads)
{
    double n = (double)(TASKS_A_THREAD * threads), pays = s->cost / MIN_TASK;
    double results = (double)parts_of_results(s->k);
    n = pays < n ? pays : n;
    return (int64_t)(results < n ? results : n);
}

static bool has_tasks(const struct shared_kernel *s, int64_t threads)
{
    int64_t wanted = wanted_tasks(s, threads), shares = wanted < threads ? wanted : threads;
    /* gradients of attention in one kernel compute 5 products instead of 7 (passes/fuse/fuse_attention.c) */
    double enough = schedule_of(s->k) && schedule_of(s->k)->kind == SCHED_ATTENTION_BOTH ? 5.0 / 7 : 0.9;
    if (speedup_of(s->k, threads) >= enough * (double)threads)
        return true;
    return s->k->extent >= wanted && shares_of(s->k, threads) >= shares;
}

/* Cycles of a step; threads 1: without barriers. */
static double step_cycles(const struct shared_kernel *v, uint32_t n, int64_t threads)
{
    double sum = 0, barrier = 0;
    for (int64_t t = 1; t < threads; t *= 2)
        barrier += BARRIER;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)v[i].launches * v[i].cost / speedup_of(v[i].k, threads);
        sum += shares_of(v[i].k, threads) > 1 ? (double)v[i].barriers * barrier : 0;
    }
    return sum;
}

static int costlier_first(const void *a, const void *b)
{
    const struct shared_kernel *x = a, *y = b;
    double c = (double)x->launches * x->cost, d = (double)y->launches * y->cost;
    return (c < d) - (c > d);
}

static void print_kernel(const struct shared_kernel *s, int64_t threads, double all)
{
    char *schedule = schedule_line(schedule_of(s->k));
    printf("| %s | %" PRId64 " | %.1f | %.0f | %" PRId64 " | %.1f%s | %.1f | %s |\n", s->k->name, s->launches,
           100 * (double)s->launches * s->cost / all, s->cost / 1000, s->k->extent,
           (double)s->k->extent / (double)threads, has_tasks(s, threads) ? "" : " !", speedup_of(s->k, threads),
           schedule ? schedule : "");
    mem_free(schedule);
}

static void print_step(const char *name, const struct shared_kernel *v, uint32_t n, int64_t threads, double all)
{
    int64_t launches = 0, barriers = 0;
    for (uint32_t i = 0; i < n; i++) {
        launches += v[i].launches;
        barriers += v[i].barriers;
    }
    printf("\n%s, %" PRId64 " threads: %" PRId64 " launches, %" PRId64 " barriers, %.1f million cycles on one thread, "
           "%.1f times as fast on all.\n\n| kernel | launches | %% of the step | 1000 cycles | iterations | a thread | "
           "times as fast | schedule |\n|---|---|---|---|---|---|---|---|\n", name, threads, launches, barriers,
           all / 1e6, all / step_cycles(v, n, threads));
    for (uint32_t i = 0; i < n && 100 * (double)v[i].launches * v[i].cost > all; i++)
        print_kernel(&v[i], threads, all);
}

static struct program *plan_step(const char *name, const char *text, int64_t threads)
{
    const struct caps caps = {.vector_bytes = 64, .vector_regs = 32, .mma_bytes = 4, .threads = (uint32_t)threads,
                              .l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 8 << 20};
    const struct pass_options options = {.fuse = true, .processor = {1, caps.threads, false, caps.l1_bytes}};
    struct err e = {0};
    struct graph *g = graph_parse(text, strlen(text), NULL, &e);
    struct program *p = g && passes_run(g, &options) ? program_plan(g, &caps, false, &e) : NULL;
    check(p, "%s: %s", name, g && g->err.code ? g->err.msg : e.msg);
    graph_free(g);
    return p;
}

static void check_kernel(const char *name, const struct shared_kernel *s, int64_t threads, double all)
{
    check(has_tasks(s, threads),
          "%s: kernel %s, %.1f %% of the step, has %" PRId64 " iterations in tasks of %" PRId64 " for %" PRId64
          " threads; %" PRId64 " are wanted", name, s->k->name, 100 * (double)s->launches * s->cost / all, s->k->extent,
          (int64_t)s->k->sched.grain, threads, wanted_tasks(s, threads));
}

static void check_step(const char *name, const char *text, int64_t threads, bool lists)
{
    static struct shared_kernel v[MAX_KERNELS];
    struct program *p = plan_step(name, text, threads);
    if (!p || !check(p->nkernel <= MAX_KERNELS, "%s: %u kernels", name, p->nkernel))
        return;
    memset(v, 0, sizeof v);
    for (uint32_t i = 0; i < p->nkernel; i++)
        v[i] = (struct shared_kernel){.k = p->kernel[i], .cost = cost_of(p->kernel[i])};
    for (uint32_t c = 0; c < p->ncmd; c++)
        if (p->cmd[c].kind == CMD_KERNEL) {
            v[p->cmd[c].kernel].launches++;
            v[p->cmd[c].kernel].barriers += !p->cmd[c].no_barrier;
        }
    qsort(v, p->nkernel, sizeof *v, costlier_first);
    double all = step_cycles(v, p->nkernel, 1);
    for (uint32_t i = 0; i < p->nkernel && 100 * (double)v[i].launches * v[i].cost > all && !lists; i++)
        check_kernel(name, &v[i], threads, all);
    if (lists)
        print_step(name, v, p->nkernel, threads, all);
    program_free(p);
}

int main(int argc, char **argv)
{
    static const char *const steps[] = {"mlp-128-adam", "cnn-64-sgd", "gpt-adam", "gpt2-124m", "gpt2-124m-bf16"};
    bool lists = argc > 1 && !strcmp(argv[1], "list");
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)(strstr(steps[i], "-bf16") ? strlen(steps[i]) - 5 : 31), steps[i]);
        if (argc > 2 && strcmp(argv[2], steps[i]))
            continue;
        char *text = gpu_step_text(name, strstr(steps[i], "-bf16"));
        if (check(text, "%s: %s", steps[i], kl_last_error()))
            for (unsigned t = 0; t < COUNTS; t++)
                check_step(steps[i], text, thread_counts[t], lists);
        free(text);
    }
    return finish();
}
