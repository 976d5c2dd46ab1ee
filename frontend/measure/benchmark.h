/* Internal header of kl_bench: timed steps, limits of the machine, reports. */
#ifndef KILN_FRONTEND_BENCHMARK_H
#define KILN_FRONTEND_BENCHMARK_H
#include "runtime/measure/measure.h"
#include "runtime/runtime.h"
#include <kiln/measure.h>

/* ---- benchmark_limits.c: loops that measure limits, run between the steps ---- */
struct anchor {                 /* a loop that streams so many arrays with so many bytes in total */
    uint8_t inputs, log_bytes;  /* inputs 0: a sum of one array */
    struct samples took;
};
struct machine {
    double (*clock)(void);
    unsigned threads;
    struct anchor *anchor;
    uint32_t n, cap;
    float *array[LIMIT_INPUTS + 1];
    size_t count[LIMIT_INPUTS + 1]; /* elements of each */
    struct samples fma;
    double fma_flops;
};
/* Requests a limit for kernel k. */
bool machine_want(struct machine *m, const struct kernel *k);
/* Measures every limit once.  false: out of memory. */
bool machine_measure(struct machine *m);
/* The minimum seconds of one call of the kernel; 0: not known. */
double machine_limit(const struct machine *m, const struct kernel *k);
double machine_peak(const struct machine *m); /* operations a second */
void machine_free(struct machine *m);

/* ---- benchmark_report.c ---- */
struct text;
void text_time(struct text *t, double us); /* in us, ms or s, in 13 columns */
struct report {
    kl_bench_report seen;       /* first: the public part */
    char *name;
    char (*names)[64];          /* of the kernels */
    kl_bench_kernel *kernels;
    char *table;
};

#endif
