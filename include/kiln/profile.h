/* Profiles: the time of each kernel and each line of the user's source, and a timeline.  Included by <kiln/kiln.h>.
 *
 *     kl_profile_begin();
 *     for (int step = 0; step < 100; step++) train(...);
 *     kl_profile *p = kl_profile_end();
 *     if (p) { puts(kl_profile_table(p)); kl_profile_trace(p, "steps.json"); }
 *     else fprintf(stderr, "%s\n", kl_last_error());
 *     kl_profile_free(p);
 *
 * KILN_PROFILE=FILE in the environment records a process from its first call to its exit and writes the timeline, with
 * no change to the program. */
#ifndef KILN_PROFILE_H
#define KILN_PROFILE_H
#include <kiln/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel of a program, its copies, a custom op or the interpreter; or a source line. */
typedef struct kl_profile_row {
    const char *name;     /* the kernel's, "copy", "custom" and the op's, "interpreter"; a line's "file:line", without
                             one "?" and the op */
    const char *where;    /* the name of the trace; of a line, the function that contains it, with the path of scopes
                             of kl_name_begin behind a dot: a line in two scopes has two rows; "" if not known */
    int64_t calls;        /* calls of the kernel; of a line, calls of kernels that compute some of it */
    double seconds;       /* wall time of all calls, measured by the thread that runs the step */
    double share;         /* fraction of the seconds of all rows, 0 to 1 */
    /* of all calls: what the kernel reads and writes of its arrays, each element counted once; its arithmetic
     * operations.  0: not known, as for attention whose keys are given as ranges */
    int64_t bytes, flops;
    double limit;         /* seconds that the calls would take at this machine's limit; 0: not known */
    double fraction;      /* limit / seconds, 1 is as fast as this machine can be; 0: not known */
} kl_profile_row;

typedef struct kl_profile {
    double seconds;       /* from begin to end */
    double busy;          /* the sum of all kernel rows, which equals the sum of all line rows */
    int threads;
    /* seconds between trace begin and end; in passes and planning; in compiling kernels and loading them from disk.
     * Sums over all threads */
    double recording, planning, compiling;
    int64_t nkernel, nline;
    const kl_profile_row *kernel, *line; /* sorted by seconds, largest first */
    int64_t dropped;      /* spans that did not fit into the timeline; the rows include them */
} kl_profile;

/* Starts recording on all threads of the process.  Each command of a program costs two readings of the clock and
 * about 50 bytes, for up to a million commands.  The time of a kernel that computes ops of several lines is divided
 * among the lines in proportion to the operations and elements of their ops.  [errors ARGUMENT: a profile is being
 * made already] */
KL_API kl_status kl_profile_begin(void);
/* Ends the profile.  Then the limits of the machine are measured with the loops of kl_bench, which takes about 0.1
 * s; other load on the machine lowers them.  The caller frees the result.  [errors NULL: ARGUMENT without a begin,
 * MEMORY] */
KL_API kl_profile *kl_profile_end(void);
/* The profile as text for people; valid as long as the profile. */
KL_API const char *kl_profile_table(const kl_profile *profile);
/* Writes the timeline as JSON trace events, which ui.perfetto.dev and chrome://tracing open.  Each thread is a row,
 * with recording, runs, reads, passes, planning, compiling, and each kernel, copy and custom op.  Rows of pool threads
 * show their shares of kernels.  [errors ARGUMENT, IO] */
KL_API kl_status kl_profile_trace(const kl_profile *profile, const char *path);
/* NULL is fine. */
KL_API void kl_profile_free(kl_profile *profile);

#ifdef __cplusplus
}
#endif
#endif
