/* Graphs of any number of nodes, to see how the cost of compiling one grows. */
#ifndef BENCH_GROWING_H
#define BENCH_GROWING_H
#include "ir/ir.h"

enum { WIDTH = 16 };

/* Each link reads the one before it across the diagonal, so that it needs a kernel of its own. */
static inline struct graph *make_chain(int nodes)
{
    struct graph *g = graph_new("chain");
    struct shape s = shape_make(2, (int64_t[]){WIDTH, WIDTH});
    ref x = n_input(g, KL_F32, &s, "x"), w = n_input(g, KL_F32, &s, "w");
    while ((int)g->nnode < nodes)
        x = n_permute(g, n_tanh(g, n_add(g, n_mul(g, x, w), w)), (const uint8_t[]){1, 0});
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

/* The sizes of layers differ, or all kernels of a kind would be one. */
static inline struct graph *make_step(int nodes)
{
    struct graph *g = graph_new("step");
    int layers = nodes / 24 + 1;
    ref *w = mem_alloc((size_t)(2 * layers) * sizeof *w), *v = w + layers;
    union attr product = {.dot = {.con_a = 1, .ncon = 1}};
    struct shape s = shape_make(2, (int64_t[]){WIDTH, WIDTH});
    ref x = n_input(g, KL_F32, &s, "x");
    for (int i = 0; i < layers; i++) {
        s.dim[0] = x ? node_shape(g, x)->dim[1] : WIDTH;
        s.dim[1] = WIDTH + i % 7;
        w[i] = n_state(g, KL_F32, &s, "w");
        v[i] = n_state(g, KL_F32, &s, "v");
        x = n_dot(g, x, w[i], &product);
        x = n_max(g, x, n_k(g, x, 0));
    }
    ref loss = n_reduce(g, OP_sum, n_mul(g, x, x), 3);
    for (int i = 0; i < layers; i++) {
        ref d = n_grad(g, loss, w[i]), m = n_add(g, n_mul(g, v[i], n_k(g, v[i], 0.9)), d);
        graph_output(g, OUT_ASSIGN, m, 2 * (uint32_t)i + 1);
        graph_output(g, OUT_ASSIGN, n_sub(g, w[i], n_mul(g, m, n_k(g, m, 0.01))), 2 * (uint32_t)i);
    }
    mem_free(w);
    return g;
}

#endif
