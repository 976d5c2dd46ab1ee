/* All small shapes: the kernels of each family by many schedules, for shapes around the limits of lanes, tiles, runs,
 * blocks and panels with views in front, give the bits of the graphs' interpreter.  Faults of index arithmetic show at
 * a few elements around a limit, where random graphs of any size seldom are.
 *
 *   small_scopes [COUNT [SEED [FAMILY [VARIANTS [COMPILE]]]]]
 *
 * COUNT: graphs, drawn without repetition from all; 0: all of them.  FAMILY: one of scope_families, or "all"; with
 * ":NUMBER", as a failure prints it, that graph alone, with the data and schedules that it has in a run of this SEED.
 * VARIANTS: schedules of a kernel beside its own.  COMPILE: one case in so many is compiled, too; 0: none.
 * KERNEL_CASES_PRINT in the environment: prints kernels that fail, too. */
#include "tests/support/cases/kernel_cases.h"
#include "tests/support/cases/scope_graphs.h"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_FAILURES = 10 };
static char current[160];

/* A crash names the graph that it happened in. */
static void crashed(int number)
{
    ssize_t n = write(STDOUT_FILENO, "FAIL: crashed in ", 17);
    n = write(STDOUT_FILENO, current, strlen(current));
    n = write(STDOUT_FILENO, "\n0 passed, 1 failed, 0 skipped\n", 31);
    (void)n;
    _exit(number);
}

/* Data and schedules are drawn anew for each graph, so that it can be run alone. */
static void run_graph(struct kernel_cases *c, const struct scope_family *f, uint64_t number, uint64_t seed)
{
    snprintf(current, sizeof current, "%s:%" PRIu64, f->name, number);
    struct graph *g = scope_graph(f, number);
    struct rng r = {number * UINT64_C(0x9e3779b97f4a7c15) | 1};
    rng_next(&r);
    c->r.s = (r.s ^ seed) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    bool gpu = rng_below(&r, 4) == 0 || f->on_gpu;
    unsigned gpus = c->ntarget - c->processors, last = c->processors + (unsigned)rng_below(&r, gpus);
    if (f->on_gpu && rng_below(&r, 3) == 0) /* the one with an asynchronous unit */
        last = c->processors + gpus - 2;
    unsigned t = gpu ? last : (unsigned)rng_below(&r, c->processors);
    if (check(!g->err.code, "%s: %s", current, g->err.msg))
        passed += kernel_cases_run(c, g, t, rng_below(&r, 4) != 0, current);
    graph_free(g);
}

/* `count` graphs of the family, all different. */
static void run_family(struct kernel_cases *c, const struct scope_family *f, uint64_t count, uint64_t seed)
{
    const uint64_t step = UINT64_C(2147483647), all = scope_count(f); /* a prime, which divides no number of graphs */
    uint64_t number = seed * UINT64_C(0x9e3779b97f4a7c15) % all;
    if (!count || count > all)
        count = all;
    for (uint64_t i = 0; i < count && c->failures < MAX_FAILURES; i++) {
        run_graph(c, f, number, seed);
        number = (number + step) % all;
    }
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const char *name = argc > 3 ? argv[3] : "all";
    static struct kernel_cases c;
    unsigned shares = 0;
    kernel_cases_init(&c, seed);
    c.variants = argc > 4 ? (unsigned)atoi(argv[4]) : 6;
    c.compile_every = argc > 5 ? (unsigned)atoi(argv[5]) : 200;
    c.verbose = getenv("KERNEL_CASES_VERBOSE") != NULL;
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGFPE, crashed);
    for (unsigned i = 0; i < scope_family_count; i++)
        shares += scope_families[i].share;
    for (unsigned i = 0; i < scope_family_count && c.failures < MAX_FAILURES; i++) {
        const struct scope_family *f = &scope_families[i];
        size_t n = strlen(f->name);
        if (!strncmp(name, f->name, n) && name[n] == ':')
            run_graph(&c, f, strtoull(name + n + 1, NULL, 10), seed);
        else if (!strcmp(name, f->name))
            run_family(&c, f, count, seed);
        else if (!strcmp(name, "all"))
            run_family(&c, f, count ? count * f->share / shares + 1 : 0, seed);
    }
    kernel_cases_print(&c);
    return finish();
}
