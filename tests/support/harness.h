/* What the tests of graphs share: check counting, random data, running one graph everywhere and comparing bits. */
#ifndef HARNESS_H
#define HARNESS_H
#include "ir/graph/custom.h"
#include "ir/ir.h"
#include "runtime/runtime.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting ---- */
extern unsigned passed, failed, skipped;
bool check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* prints the text if not ok */
int finish(void); /* the closing line; main's result */
bool is_named(const char *name, int argc, char **argv); /* do main's arguments have it, or nothing? */

/* ---- random numbers: xorshift64*, so that a seed names a test everywhere ---- */
struct rng { uint64_t s; };
uint64_t rng_next(struct rng *r);
int64_t rng_below(struct rng *r, int64_t n);
double rng_unit(struct rng *r); /* [0, 1) */

/* Fills n elements; wild: every bit pattern and every special value, else moderate numbers. */
void fill_random(struct rng *r, unsigned dtype, void *p, int64_t n, bool wild);

/* ---- custom ops ----
 * test_ops registers, once, op test.turn: from n operands n results, result i operand (i + a) % n with its elements in
 * reverse, where a is the attribute's first byte, or 0. */
void test_ops(void);
/* Its use on n operands; results are read by n_proj. */
ref n_custom(struct graph *g, const ref *in, uint32_t n, unsigned a);

/* ---- running ---- */
enum { MAX_VALUES = 64 };
struct values { uint32_t n; void *v[MAX_VALUES]; };
/* Arrays for the graph's inputs or states, filled with fill_random. */
void values_random(struct rng *r, const struct graph *g, const struct leaves *l, bool wild, struct values *out);
void values_free(struct values *v);

/* Runs a recorded graph; out gets one array per output (values_free). */
bool run_on(const struct graph *g, const char *device, bool fuse, const struct values *input,
            const struct values *state,
            const uint64_t *slot, struct values *out, struct err *e);

/* The same on cpu by the program of a graph with symbols, which g is for their values, that stand behind the slots. */
bool run_for_values(const struct graph *symbolic, const struct graph *g, const char *device, bool fuse,
                    const struct values *input, const struct values *state, const uint64_t *slot, struct values *out,
                    struct err *e);

/* Equal bits, any NaN equal to any NaN.  *at: the first element that differs. */
bool same_values(unsigned dtype, const void *a, const void *b, int64_t n, int64_t *at);
double element_value(unsigned dtype, const void *p, int64_t i);

/* Runs g on ref, on cpu fused (2 threads in place, 1 thread beside) and unfused, and, where its nodes are on several
 * devices, there fused and unfused, and compares all outputs; prints the graph on a difference. */
bool agree_everywhere(const struct graph *g, const struct values *input, const struct values *state,
                      const uint64_t *slot,
                      const char *what);
/* The same with moderate and then with wild data that depend on the leaves alone; false: *why. */
bool agree_on_random_data(const struct graph *g, struct err *why);

/* The kernel's text parses to the same kernel and prints the same; one whose constants do not stand in front parses to
 * its normal form.  false: *why. */
bool kernel_round_trip(const struct kernel *k, struct err *why);

#endif
