/* The kernels of one graph by many schedules, each run by the kernel interpreter on what the graph's interpreter has
 * computed, whose values its results must be.  No machine code is made but for a share of the cases. */
#ifndef KERNEL_CASES_H
#define KERNEL_CASES_H
#include "tests/support/harness.h"

enum { MAX_CASE_TARGETS = 24 };

struct kernel_cases {
    struct caps target[MAX_CASE_TARGETS];   /* processors, then GPUs */
    unsigned ntarget, processors;
    struct rng r;                           /* of data and schedules */
    unsigned variants;                      /* schedules of a kernel beside the chosen one, at most */
    unsigned compile_every;                 /* one case of a processor in so many is compiled, too; 0: none */
    bool verbose;                           /* prints each graph before it runs, to find the one that crashes */
    uint64_t cases, compiled, refused, graphs, failures;
    uint64_t kinds[SCHED_COUNT];            /* cases of each kind of kernel */
    /* by kind and number of a field: cases in which it has another value than the chosen one */
    uint64_t fields[SCHED_COUNT][MAX_SCHED_FIELDS];
    const struct backend *backend;          /* of processors; NULL: nothing is compiled */
    struct caps host;
};

/* Processors whose vectors have 2, 4, 8 and 16 floats, with few registers and small caches, so that a few elements are
 * more than any limit; GPUs of each dialect. */
void kernel_cases_init(struct kernel_cases *c, uint64_t seed);
/* Runs the kernels of g for target t, fused or not.  Prints the graph, the record and the first difference; false:
 * there was one. */
bool kernel_cases_run(struct kernel_cases *c, const struct graph *g, unsigned t, bool fuse, const char *what);
/* Prints the numbers of cases of each kind and field. */
void kernel_cases_print(const struct kernel_cases *c);

#endif
