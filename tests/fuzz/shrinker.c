/* The shrinker of random graphs, with checks that fail on purpose: it must reach the few nodes that matter. */
#include "tests/support/random/random_make.h"
#include "tests/support/random/random_shrink.h"
#include <unistd.h>

/* Is there a sum of something that an exp went into? */
static ref sum_of_exp(const struct graph *g)
{
    bool *of_exp = calloc(g->nnode, 1);
    ref found = NIL;
    for (ref r = 1; r < g->nnode && !found; r++) {
        const struct node *n = node_at(g, r);
        for (unsigned i = 0; i < n->nin; i++)
            of_exp[r] |= of_exp[n->in[i]];
        if (n->op == OP_sum && of_exp[r])
            found = r;
        of_exp[r] |= n->op == OP_exp;
    }
    free(of_exp);
    return found;
}

static enum verdict differs(const struct graph *g, struct err *why)
{
    (void)why;
    return sum_of_exp(g) ? DIFFERS : AGREES;
}

static enum verdict crashes(const struct graph *g, struct err *why)
{
    (void)why;
    if (sum_of_exp(g))
        abort();
    return AGREES;
}

static enum verdict hangs(const struct graph *g, struct err *why)
{
    (void)why;
    volatile bool for_ever = sum_of_exp(g);
    while (for_ever)
        ;
    return AGREES;
}

/* Fails where a value is larger than 20 elements and of dtype f64: only some dimensions may shrink. */
static enum verdict large(const struct graph *g, struct err *why)
{
    (void)why;
    for (ref r = 1; r < g->nnode; r++)
        if (node_numel(g, r) > 20 && g->node[r].dtype == KL_F64)
            return REFUSED;
    return AGREES;
}

static uint32_t fewest = UINT32_MAX; /* nodes left of any graph so far */

static uint64_t shrinks(uint64_t seed, check_fn *bad, enum verdict verdict, double seconds, uint32_t max_nodes)
{
    struct graph *g;
    struct err e = {0};
    for (;; seed++) {
        g = random_graph(seed);
        if (g->nnode > 20 && (bad == large ? large(g, &e) != AGREES : sum_of_exp(g) != NIL))
            break;
        graph_free(g);
    }
    struct graph *small = shrink(g, bad, verdict, seconds);
    char *text = graph_text(small);
    struct graph *back = graph_parse(text, strlen(text), "small", &e);
    check(check_apart(bad, small, seconds) == verdict, "seed %" PRIu64 ": the small graph does not fail", seed);
    check(small->nnode - 1 <= max_nodes, "seed %" PRIu64 ": %u nodes are left:\n%s", seed, small->nnode - 1, text);
    fewest = small->nnode - 1 < fewest ? small->nnode - 1 : fewest;
    check(back && graph_same(back, small), "seed %" PRIu64 ": the small graph's text is another graph", seed);
    for (uint32_t i = 0; i < small->nshape; i++)
        check(shape_count(&small->shape[i]) <= 32, "seed %" PRIu64 ": dimensions are left:\n%s", seed, text);
    graph_free(back);
    mem_free(text);
    graph_free(small);
    graph_free(g);
    return seed + 1;
}

int main(void)
{
    uint64_t seed = 1;
    for (int i = 0; i < 8; i++)
        seed = shrinks(seed, differs, DIFFERS, 60, 8); /* input, exp, sum, and what joins their shapes */
    check(fewest == 3, "%u nodes are left of the best of 8 graphs", fewest);
    shrinks(1, crashes, CRASHED, 60, 8);
    shrinks(1, hangs, HANGS, 0.2, 8);
    for (int i = 0; i < 3; i++)
        seed = shrinks(seed, large, REFUSED, 60, 1);
    return finish();
}
