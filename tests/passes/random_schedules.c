/* Schedules from a user on any graph: random legal records of every family are executed, not only lowered.
 *
 *   random_schedules [COUNT [SEED [VARIANTS [COMPILE]]]]
 *
 * The graphs of tests/text that are not of errors, and COUNT random ones; each kernel by its own schedule and by
 * VARIANTS others, through the loop IR's interpreter, for a processor and a GPU; one case in COMPILE is compiled, too,
 * 0: none.  KERNEL_CASES_PRINT in the environment: prints kernels that fail, too. */
#include "tests/support/cases/kernel_cases.h"
#include "tests/support/random/random_make.h"
#include <dirent.h>
#include <stdlib.h>

enum { MAX_WORK = 60000, MAX_FAILURES = 10 };   /* elements and products of a graph */

static double work_of(const struct graph *g)
{
    double work = 0;
    for (ref r = 1; r < g->nnode; r++) {
        double n = (double)node_numel(g, r);
        if (g->node[r].op == OP_dot) {
            struct dot_dims d = dot_sizes(g, &g->node[r]);
            n += (double)d.batch * (double)d.m * (double)d.n * (double)d.k;
        }
        if (op_is_attention(g->node[r].op))
            n += n * (double)node_numel(g, g->node[r].in[1]);
        work += n;
    }
    return work;
}

static void run_graph(struct kernel_cases *c, const struct graph *g, const char *name)
{
    if (g->err.code || work_of(g) > MAX_WORK || c->failures >= MAX_FAILURES)
        return;
    unsigned gpus = c->ntarget - c->processors;
    unsigned t = (unsigned)rng_below(&c->r, c->processors), gpu = c->processors + (unsigned)rng_below(&c->r, gpus);
    passed += kernel_cases_run(c, g, t, true, name);
    passed += kernel_cases_run(c, g, t, false, name);
    passed += kernel_cases_run(c, g, gpu, rng_below(&c->r, 2), name);
}

static bool has_custom(const struct graph *g)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].op == OP_custom)
            return true;
    return false;
}

static void run_text(struct kernel_cases *c, const char *folder, const char *file)
{
    static char text[1 << 20];
    char path[1024];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    size_t len = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[len] = 0;
    const char *expect = strstr(text, "\n# expect:\n");
    struct graph *g = graph_parse(text, expect ? (size_t)(expect + 1 - text) : len, NULL, &e);
    struct graph *h = g ? graph_clone(g) : NULL;
    if (h && !g->symbols && !(graph_devices(g) & (graph_devices(g) - 1)) && !has_custom(g) &&
        passes_run(h, &(struct pass_options){.fuse = true})) /* some texts are of graphs that passes refuse */
        run_graph(c, g, file);
    graph_free(h);
    graph_free(g);
}

static void run_texts(struct kernel_cases *c, const char *folder)
{
    DIR *d = opendir(folder);
    if (!check(d, "%s: no such folder", folder))
        return;
    for (struct dirent *f; (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n > 4 && !strcmp(f->d_name + n - 4, ".kir") && strncmp(f->d_name, "error_", 6))
            run_text(c, folder, f->d_name);
    }
    closedir(d);
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 100, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static struct kernel_cases c;
    kernel_cases_init(&c, seed);
    c.variants = argc > 3 ? (unsigned)atoi(argv[3]) : 6;
    c.compile_every = argc > 4 ? (unsigned)atoi(argv[4]) : 200;
    c.verbose = getenv("KERNEL_CASES_VERBOSE") != NULL;
    test_ops();
    run_texts(&c, "tests/text");
    for (uint64_t i = 0; i < count && c.failures < MAX_FAILURES; i++) {
        struct graph *g = random_graph(seed + i);
        char name[64];
        snprintf(name, sizeof name, "random graph %" PRIu64, seed + i);
        run_graph(&c, g, name);
        graph_free(g);
    }
    kernel_cases_print(&c);
    return finish();
}
