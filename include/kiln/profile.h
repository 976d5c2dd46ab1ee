/* Where the time of a program goes: kernel by kernel, line by line of the user's source, and as a timeline.  Included
 * by <kiln/kiln.h>.
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
    const char *where;    /* the name of the trace; of a line, the function that it stands in, "" if not known */
    int64_t calls;        /* of the kernel; of kernels that compute something of the line */
    double seconds;       /* of all calls, on the clock of the wall, seen by the thread that runs the step */
    double share;         /* of the seconds of all rows, 0 to 1 */
    int64_t bytes, flops; /* of all calls: a kernel's arrays, each once; its operations.  0: not known */
    double limit;         /* seconds that the calls would take at this machine's limit; 0: not known */
    double fraction;      /* limit / seconds, 1 is as fast as this machine can be; 0: not known */
} kl_profile_row;

typedef struct kl_profile {
    double seconds;       /* from begin to end */
    double busy;          /* the seconds of all kernel rows, which are those of all line rows */
    int threads;
    double recording, planning, compiling; /* seconds between trace begin and end; in passes and planning; in compiling
                                              kernels and in loading them from disk.  Of all threads, added up */
    int64_t nkernel, nline;
    const kl_profile_row *kernel, *line; /* by seconds, the most first */
    int64_t dropped;      /* spans for which the timeline had no room; the rows count them all the same */
} kl_profile;

/* From here on what all threads of the process run is recorded: each command of a program costs two readings of the
 * clock and some 50 bytes, up to a million of them.  A kernel that computes ops of several lines is divided among these
 * by the operations and elements of their ops.  [errors ARGUMENT: a profile is being made already] */
KL_API kl_status kl_profile_begin(void);
/* Ends it.  Then the limits of the machine are measured, with the loops of kl_bench, which takes some 0.1 s: what
 * others compute meanwhile makes them worse.  The caller frees it.  [errors NULL: ARGUMENT without a begin, MEMORY] */
KL_API kl_profile *kl_profile_end(void);
/* The profile as text for people; valid as long as the profile. */
KL_API const char *kl_profile_table(const kl_profile *profile);
/* Writes the timeline as JSON trace events, which ui.perfetto.dev and chrome://tracing open: a row a thread, with
 * recording, runs, reads, passes, planning, compiling, and each kernel, copy and custom op; of Kiln's own threads their
 * shares of kernels.  [errors ARGUMENT, IO] */
KL_API kl_status kl_profile_trace(const kl_profile *profile, const char *path);
/* NULL is fine. */
KL_API void kl_profile_free(kl_profile *profile);

#ifdef __cplusplus
}
#endif
#endif
