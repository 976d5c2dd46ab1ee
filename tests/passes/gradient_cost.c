/* What gradients cost: steps of the sweeps and of the searches behind them, counted, grow as the nodes that they
 * give. */
#include "tests/support/graph_test.h"
#include "passes/passes.h"
#include <stdatomic.h>

static const struct shape vec = {.rank = 1, .dim = {4}};

static ref total(struct graph *g, ref x) { return n_reduce(g, OP_sum, x, 1); }

/* x through n sines, and the gradient of the gradient's sum. */
static void second_order(struct graph *g, unsigned n)
{
    ref x = n_input(g, KL_F32, &vec, "x"), y = x;
    for (unsigned i = 0; i < n; i++)
        y = n_sin(g, y);
    graph_output(g, OUT_RETURN, n_grad(g, total(g, n_grad(g, total(g, y), x)), x), 0);
}

/* n losses of one variable. */
static void many_losses(struct graph *g, unsigned n)
{
    ref x = n_input(g, KL_F32, &vec, "x");
    for (unsigned i = 0; i < n; i++)
        graph_output(g, OUT_RETURN, n_grad(g, total(g, n_mul(g, n_sin(g, x), n_k(g, x, i + 1))), x), 0);
}

/* The same with nothing kept that is cheap to compute again: each loss has a sweep of its own that decides that. */
static void checkpointed_losses(struct graph *g, unsigned n)
{
    many_losses(g, n);
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].op == OP_grad)
            g->node[r].attr.grad.keep = 1;
}

/* A chain, in each step of which the gradient in that step's own value is added. */
static void gradients_on_the_way(struct graph *g, unsigned n)
{
    ref y = n_input(g, KL_F32, &vec, "x");
    for (unsigned i = 0; i < n; i++)
        y = n_add(g, n_sin(g, y), n_grad(g, total(g, n_exp(g, y)), y));
    graph_output(g, OUT_RETURN, y, 0);
}

/* n gradients of one loss. */
static void many_variables(struct graph *g, unsigned n)
{
    ref *x = array(n, sizeof *x), loss = NIL;
    for (unsigned i = 0; i < n; i++) {
        ref y = total(g, n_sin(g, x[i] = n_input(g, KL_F32, &vec, "x")));
        loss = loss ? n_add(g, loss, y) : y;
    }
    for (unsigned i = 0; i < n; i++)
        graph_output(g, OUT_RETURN, n_grad(g, loss, x[i]), 0);
    free(x);
}

/* Gradients of gradients, n deep. */
static void nested(struct graph *g, unsigned n)
{
    ref x = n_input(g, KL_F32, &vec, "x"), y = n_exp(g, n_sin(g, x));
    for (unsigned i = 0; i < n; i++)
        y = n_grad(g, total(g, y), x);
    graph_output(g, OUT_RETURN, y, 0);
}

/* n outputs, no two equal, and n sums. */
static void many_outputs(struct graph *g, unsigned n)
{
    ref x = n_input(g, KL_F32, &vec, "x");
    for (unsigned i = 0; i < n; i++)
        graph_output(g, OUT_RETURN, n_add(g, x, n_k(g, x, i + 1)), 0);
}

static void many_sums(struct graph *g, unsigned n)
{
    ref x = n_input(g, KL_F32, &vec, "x");
    for (unsigned i = 0; i < n; i++)
        graph_output(g, OUT_RETURN, total(g, n_mul(g, x, n_k(g, x, i + 1))), 0);
}

struct cost { uint64_t steps, nodes, groups; };

static struct cost differentiate(void (*make)(struct graph *, unsigned), unsigned n, bool all_passes)
{
    struct graph *g = graph_new("cost");
    struct pass_options o = {.fuse = true};
    make(g, n);
    uint64_t before = atomic_load(&pass_steps);
    bool ok = all_passes ? passes_run(g, &o) : pass_autodiff(g, NULL) > 0;
    CHECK(ok && !g->err.code);
    struct cost c = {atomic_load(&pass_steps) - before, g->nnode, g->ngroup};
    graph_free(g);
    return c;
}

static void grows_like_its_nodes(const char *name, void (*make)(struct graph *, unsigned), unsigned n, unsigned m,
                                 bool all,
                                 double max)
{
    struct cost a = differentiate(make, n, all), b = differentiate(make, m, all);
    double steps = a.steps ? (double)b.steps / (double)a.steps : (double)b.steps; /* none at all are as few again */
    double ratio = steps / ((double)b.nodes / (double)a.nodes);
    printf("%s: %u: %llu steps for %llu nodes; %u: %llu for %llu; %.2f times as many a node\n", name, n,
           (unsigned long long)a.steps, (unsigned long long)a.nodes, m, (unsigned long long)b.steps,
           (unsigned long long)b.nodes, ratio);
    CHECK((all || a.steps > 0) && ratio < max);
    if (all) { /* no search is given up because the graph is large */
        double groups = ((double)b.groups / (double)a.groups) / ((double)b.nodes / (double)a.nodes);
        printf("  %llu groups; %llu; %.2f times as many a node\n", (unsigned long long)a.groups,
               (unsigned long long)b.groups, groups);
        CHECK(groups < 1.1);
    }
}

int main(void)
{
    grows_like_its_nodes("second order", second_order, 1000, 4000, false, 1.1);
    grows_like_its_nodes("many losses", many_losses, 1000, 4000, false, 1.1);
    grows_like_its_nodes("checkpointed losses", checkpointed_losses, 1000, 4000, false, 1.1);
    grows_like_its_nodes("on the way", gradients_on_the_way, 1000, 4000, false, 1.1);
    grows_like_its_nodes("many variables", many_variables, 1000, 4000, false, 1.1);
    grows_like_its_nodes("nested", nested, 8, 10, false, 1.1);
    grows_like_its_nodes("second order", second_order, 4000, 100000, false, 1.1);
    grows_like_its_nodes("many losses", many_losses, 4000, 100000, false, 1.1);
    grows_like_its_nodes("second order, all passes", second_order, 1000, 4000, true, 1.1);
    grows_like_its_nodes("second order, all passes", second_order, 4000, 16000, true, 1.1);
    grows_like_its_nodes("many losses, all passes", many_losses, 1000, 4000, true, 1.1);
    grows_like_its_nodes("nested, all passes", nested, 8, 10, true, 1.5);
    grows_like_its_nodes("many outputs, all passes", many_outputs, 2500, 10000, true, 1.1);
    grows_like_its_nodes("many sums, all passes", many_sums, 2500, 10000, true, 1.1);
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
