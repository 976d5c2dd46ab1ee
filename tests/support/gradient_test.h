/* Gradients against central finite differences in double, for programs with a function to differentiate.
 *
 * For a function y(x0, x1, ...) the tested number is L = sum(y * weight) with random weights; its gradients
 * come from grad nodes, the differences from running the same graph at x +- h.  Second order: the same for
 * L2 = sum(dL/dx0 * weight2). */
#ifndef GRADIENT_TEST_H
#define GRADIENT_TEST_H
#include "harness.h"

typedef ref make_fn(struct graph *g, const ref *x, const void *ctx);

enum { MAX_X = 4 };
struct problem {
    const char *name;
    make_fn *make;
    const void *ctx;
    unsigned nx;
    struct shape x[MAX_X];
    double low, high; /* where the function is defined and smooth; 0, 0: 0.4 to 1.7 and the negatives of these */
};

static struct rng rng = {777};

/* The graph of L (order 1) or L2 (order 2) and its gradients in each x. */
static struct graph *build(const struct problem *p, int order, const struct shape *weight_shape)
{
    struct graph *g = graph_new(p->name);
    ref x[MAX_X], loss;
    for (unsigned i = 0; i < p->nx; i++)
        x[i] = n_input(g, KL_F64, &p->x[i], "x");
    ref y = p->make(g, x, p->ctx);
    ref w = n_input(g, KL_F64, weight_shape ? weight_shape : node_shape(g, y), "w");
    uint32_t all = (1u << node_shape(g, y)->rank) - 1;
    loss = n_reduce(g, OP_sum, n_mul(g, y, w), all);
    if (order == 2) {
        ref w2 = n_input(g, KL_F64, &p->x[0], "w2");
        loss = n_reduce(g, OP_sum, n_mul(g, n_grad(g, loss, x[0]), w2), (1u << p->x[0].rank) - 1);
    }
    graph_output(g, OUT_RETURN, loss, 0);
    for (unsigned i = 0; i < p->nx; i++)
        graph_output(g, OUT_RETURN, n_grad(g, loss, x[i]), 0);
    return g;
}

static double loss_at(const struct graph *g, const struct values *in)
{
    struct values out = {0};
    struct err e = {0};
    double l = NAN;
    if (check(run_on(g, "ref", true, in, &(struct values){0}, NULL, &out, &e), "%s: %s", g->name, e.msg))
        l = *(double *)out.v[0];
    values_free(&out);
    return l;
}

static void compare(const struct problem *p, const struct graph *g, struct values *in, int order)
{
    struct values out = {0};
    struct err e = {0};
    if (!check(run_on(g, "ref", true, in, &(struct values){0}, NULL, &out, &e), "%s: %s", g->name, e.msg))
        return;
    for (unsigned i = 0; i < p->nx; i++)
        for (int64_t j = 0; j < shape_count(&p->x[i]); j++) {
            double *x = (double *)in->v[i] + j, keep = *x, h = 1e-5;
            *x = keep + h;
            double up = loss_at(g, in);
            *x = keep - h;
            double down = loss_at(g, in);
            *x = keep;
            double want = (up - down) / (2 * h), got = ((double *)out.v[1 + i])[j];
            if (!check(fabs(got - want) <= 1e-6 * (1 + fabs(want)) + 1e-6,
                       "%s order %d: d/dx%u[%" PRId64 "] is %.12g, differences say %.12g",
                       p->name, order, i, j, got, want)) {
                graph_print(g, stdout);
                values_free(&out);
                return;
            }
        }
    values_free(&out);
}

static void gradient(const struct problem *p)
{
    for (int order = 1; order <= 2; order++) {
        struct graph *g = build(p, order, NULL);
        struct values in = {0};
        if (check(!g->err.code, "%s: %s", p->name, g->err.msg)) {
            values_random(&rng, g, &g->input, false, &in);
            for (unsigned i = 0; i < p->nx; i++)
                for (int64_t j = 0; j < shape_count(&p->x[i]); j++) { /* away from 0 and from each other's kinks */
                    double *x = (double *)in.v[i] + j, u = rng_unit(&rng);
                    *x = p->high > p->low ? p->low + (p->high - p->low) * u
                        : (0.4 + 1.3 * u) * (rng_below(&rng, 2) ? 1 : -1);
                }
            compare(p, g, &in, order);
            values_free(&in);
        }
        graph_free(g);
    }
}

#endif
