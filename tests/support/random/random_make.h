/* Random graphs for the tests: every op, dtype and kind of view, sizes around the borders of kernels and orders. */
#ifndef RANDOM_MAKE_H
#define RANDOM_MAKE_H
#include "tests/support/harness.h"

/* The graph of this seed, always the same one: free it with graph_free.  A builder's refusal is in its err. */
struct graph *random_graph(uint64_t seed);
/* random_spread.c: the same graph with its nodes on random devices and copies between them. */
struct graph *random_spread(struct rng *r, const struct graph *g);

/* ---- random_kernel.c ---- */
/* The kernel of this seed: 1024 elements a buffer, outputs times the iterations; its scratch is read as it comes. */
struct kernel *random_kernel(uint64_t seed, bool tiles);

/* ---- random_symbols.c ---- */
/* The graph with symbols for some of its numbers, which these values would make it again; NULL: none is found. */
struct graph *random_symbolic(const struct graph *g, uint64_t seed, int64_t value[MAX_SYMBOLS]);
/* That graph with its values put in is g, bit for bit of its hash, and its text means it; false: *why. */
bool symbolic_agrees(const struct graph *g, const struct graph *symbolic, const int64_t *value, struct err *why);

#endif
