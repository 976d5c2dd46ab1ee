/* The tuner: measures other schedules for a program's kernels and keeps those that are faster. */
#ifndef KILN_TUNE_PROGRAM_H
#define KILN_TUNE_PROGRAM_H
#include "runtime/runtime.h"

/* ---- tuned.c: what was found, in memory and on disk ---- */
struct tuned_record { struct hash128 group; struct schedule sched; };
/* Records for a device and the number of threads that there is now; on disk, too, unless nothing is kept there.
 * false: out of memory, *e. */
bool tuned_keep(int device, const struct tuned_record *v, uint32_t n, struct err *e);
/* Can records be kept on disk, or is it the user's wish that nothing is?  false: *e says why not. */
bool tuned_can_keep(struct err *e);
void tuned_forget(void);                 /* what this process knows; the next program reads it from disk: for tests */

/* ---- tune.c ---- */
struct tune_kernel {                     /* what came of a kernel */
    const char *name;
    struct schedule before, after;
    double seconds[2];                   /* of its calls in one run: before and after, measured by turns at the end */
    uint32_t tried;                      /* schedules that were measured */
    bool complete;                       /* none is left to measure */
};
struct tune_options {
    double seconds;                      /* nothing new is measured after so long */
    bool again;                          /* kernels that have a tuned schedule, too */
    /* Called after each round of measurements; total grows where a find opens new possibilities.  May be NULL. */
    void (*progress)(void *ctx, int done, int total);
    void (*found)(void *ctx, const struct tune_kernel *k); /* once a kernel that was measured; may be NULL */
    void *ctx;
};
struct tune_result {
    uint32_t kernels, changed;           /* that were measured; that have another schedule now */
    double seconds[2];                   /* of a run's kernels, before and after */
    bool complete;
};
/* Tunes the kernels of a fused program, on made-up values of its own.  What it finds holds for programs that are built
 * from then on.  false: *e. */
bool tune_program(const struct exec *x, const struct tune_options *o, struct tune_result *r, struct err *e);

#endif
