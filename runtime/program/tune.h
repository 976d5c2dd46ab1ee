/* The tuner: measures other schedules for a program's kernels and keeps those that are faster. */
#ifndef KILN_TUNE_PROGRAM_H
#define KILN_TUNE_PROGRAM_H
#include "runtime/runtime.h"

/* ---- tuned.c: tuned schedules in memory and on disk ---- */
struct tuned_record { struct hash128 group; struct schedule sched; };
/* Adds records for a device and the current number of threads, also on disk unless the cache is off.  false: out of
 * memory, *e. */
bool tuned_keep(int device, const struct tuned_record *v, uint32_t n, struct err *e);
/* Can records be written to disk, or has the user switched the cache off?  false: *e has the reason. */
bool tuned_can_keep(struct err *e);
void tuned_forget(void);                 /* drops the records in memory, not those on disk: for tests */

/* ---- tune.c ---- */
struct tune_kernel {                     /* the result for a kernel */
    const char *name;
    struct schedule before, after;
    double seconds[2];                   /* of its calls in one run, before and after, measured in alternation */
    uint32_t tried;                      /* number of candidates that were measured */
    bool complete;                       /* all candidates were measured */
};
struct tune_options {
    double seconds;                      /* no new round starts after this time */
    bool again;                          /* kernels that have a tuned schedule are tuned again */
    /* Called after each round.  total grows when a kept schedule leads to new candidates.  May be NULL. */
    void (*progress)(void *ctx, int done, int total);
    void (*found)(void *ctx, const struct tune_kernel *k); /* called at the end for each tuned kernel; may be NULL */
    void *ctx;
};
struct tune_result {
    uint32_t kernels, changed;           /* tuned kernels; those that got another schedule */
    double seconds[2];                   /* of a run's kernels, before and after */
    bool complete;
};
/* Tunes the kernels of a fused program on made-up values.  The schedules apply to programs that are built later.
 * false: *e. */
bool tune_program(const struct exec *x, const struct tune_options *o, struct tune_result *r, struct err *e);

#endif
