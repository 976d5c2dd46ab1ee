/* Random graphs for the tests: every op, dtype and kind of view, sizes around the borders of kernels and orders. */
#ifndef RANDOM_MAKE_H
#define RANDOM_MAKE_H
#include "harness.h"

/* The graph of this seed, always the same one: free it with graph_free.  A builder's refusal is in its err. */
struct graph *random_graph(uint64_t seed);
/* random_spread.c: the same graph with its nodes on random devices and copies between them. */
struct graph *random_spread(struct rng *r, const struct graph *g);

#endif
