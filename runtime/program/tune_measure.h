/* Programs on the tuner's clock: made-up values, and ways to compute a graph whose kernels are timed. */
#ifndef KILN_TUNE_MEASURE_H
#define KILN_TUNE_MEASURE_H
#include "tune.h"

/* A graph after all passes, with values for its leaves. */
struct measured {
    const struct graph *g;
    int device;
    struct buffer **input, **state, **out;
    uint64_t *slot;
    bool *exclusive;
    double (*clock)(void);
    uint16_t *launches;            /* per group's number, from 0: of its kernel in one measured time; 0: one */
};
bool measured_open(struct measured *m, const struct graph *g, int device, struct err *e); /* close in either case */
bool measured_reset(struct measured *m, struct err *e); /* states get their first values again */
void measured_close(struct measured *m);

/* A program of it, with the schedules that `tuned` has for its groups. */
struct variant {
    struct exec *x;
    struct profile profile;
    const uint32_t *of_group;
    uint32_t *number;              /* per kernel of the program: the tuner's number + 1, 0: none */
    uint16_t *launches;            /* per kernel of the program: of measured */
    bool *skip;                    /* per command of the program */
    bool merged;                   /* a kernel is two of the tuner's: their times cannot be separated */
};
/* of_group: per group of the graph, the tuner's number of its kernel + 1.  variant_free in either case. */
bool variant_make(struct variant *v, const struct measured *m, const uint32_t *of_group, const struct tuned *tuned,
                  struct err *e);
void variant_free(struct variant *v);
/* From here on it runs all its commands; or two calls of each kernel that is wanted, by number, and the commands right
 * before them.  false: out of memory. */
void variant_all(struct variant *v);
bool variant_only(struct variant *v, const bool *wanted, uint32_t n);
/* Runs it; adds what each kernel took to took[its number]; *whole: all commands. */
bool variant_run(struct variant *v, struct measured *m, int times, double *took, double *whole, struct err *e);

#endif
