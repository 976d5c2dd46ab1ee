/* Measuring: benchmarks of the user's own step (fused against unfused kernels, each kernel compared with the limit of
 * this machine), tuning, and, below, profiles.  Included by <kiln/kiln.h>.
 *
 *     static kl_status step(void *model) { ... record and run one step ...; return kl_trace_end(); }
 *
 *     kl_bench_report *r = kl_bench("train_step", step, &model, NULL);
 *     if (r) puts(kl_bench_table(r)); else fprintf(stderr, "%s\n", kl_last_error());
 *     kl_bench_free(r); */
#ifndef KILN_KILN_MEASURE_H
#define KILN_KILN_MEASURE_H
#include <kiln/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One step: records and runs any number of traces on the calling thread, and leaves none open.  Any result but KL_OK
 * ends the measurement. */
typedef kl_status kl_bench_fn(void *ctx);

typedef struct kl_bench_options {
    int rounds;     /* maximum number of rounds, 1 to 1000; 0: 20 */
    double seconds; /* no new round starts after this time; 0: 10 */
    void (*progress)(void *ctx, int done, int rounds); /* called after each round; may be NULL */
    void *progress_ctx;
} kl_bench_options;

typedef struct kl_bench_time { double median, min, max; } kl_bench_time; /* microseconds */

typedef struct kl_bench_kernel {
    const char *name;
    bool fused;
    int64_t calls;        /* calls in one step */
    kl_bench_time call;   /* time of one call; calls within one step are averaged */
    /* of one call: what it reads and writes of its arrays, each element counted once; its arithmetic operations; 0: not
     * known, as for attention whose keys are given as ranges */
    int64_t bytes, flops;
    double limit;         /* lower bound of a call's time in microseconds; 0: not known */
    double fraction;      /* limit / median, 1 is as fast as this machine can be; 0: not known */
} kl_bench_kernel;

/* step[0] unfused, step[1] fused.  The limit of a kernel is the larger of two times: its bytes at the bandwidth of a
 * plain loop over as many arrays of the same size, and its operations at the peak rate of f32 multiply-adds.  Both are
 * measured between the steps, with the same number of threads. */
typedef struct kl_bench_report {
    const char *name;
    int threads, rounds;
    kl_bench_time step[2];
    double limit;         /* microseconds: the sum of the fused kernels' limits; 0: not known */
    double peak;          /* GFLOP/s of f32 multiply-adds */
    int64_t nkernel;
    const kl_bench_kernel *kernel; /* unfused first, then by their time in a step */
} kl_bench_report;

/* Calls step twice to compile it.  Each round then calls it to measure the whole step and to measure its kernels,
 * alternately fused and unfused, so the step's side effects on tensors happen more than four times in each round.  On
 * one thread times are processor time of the calling thread, else wall time.  Only work of the calling thread is
 * measured, and only its traces alternate between fused and unfused.  NULL: see kl_last_error.  [errors ARGUMENT: no
 * step, a number out of range, a step that runs nothing; TRACE: one is open; those of step] */
KL_API kl_bench_report *kl_bench(const char *name, kl_bench_fn *step, void *ctx, const kl_bench_options *options);
/* The report as text for people; valid as long as the report. */
KL_API const char *kl_bench_table(const kl_bench_report *report);
/* Writes the benchmark JSON: one array of objects `bench case variant threads median min max unit limit fraction
 * baseline ratio`, for the step and each kernel.  [errors ARGUMENT, IO, MEMORY] */
KL_API kl_status kl_bench_json(const kl_bench_report *report, const char *path);
/* Draws a bar chart of the step and its fused kernels.  [errors ARGUMENT, IO, MEMORY] */
KL_API kl_status kl_bench_svg(const kl_bench_report *report, const char *path);
/* NULL is fine. */
KL_API void kl_bench_free(kl_bench_report *report);

/* ---- tuning ----
 * Other schedules for a trace's kernels are measured on this machine, and the fastest are kept.
 *
 *     train_step(...);                          // once: it is recorded, compiled and run
 *     if (kl_tune("train_step", 30)) fprintf(stderr, "%s\n", kl_last_error());
 *
 * A schedule says how a kernel computes, never what: on cpu results stay the same bits (order.md).  What is found
 * is kept in the folder of the compiled kernels, for this processor and this number of threads.  Each program that is
 * built from then on uses it, in this process and in later ones: these need not tune.  KILN_TUNE=1 in the environment,
 * or option `tune`, does it with no change to the program, for each trace that runs a second time. */

/* What came of a kernel.  Strings are valid during the call. */
typedef struct kl_tuned_kernel {
    const char *name;
    /* Its schedules, as stage "schedules" of a dump prints them.  The same text: none that was measured is faster. */
    const char *before, *after;
    double seconds[2];            /* that its calls take in one run of the trace, before and after */
    int tried;                    /* schedules that were measured */
    bool complete;                /* there was time for all */
} kl_tuned_kernel;

enum { KL_TUNE_SECONDS = 60 };
typedef struct kl_tune_options {
    double seconds;               /* nothing new is measured after so long; 0: KL_TUNE_SECONDS */
    void (*progress)(void *ctx, int done, int rounds);            /* called after each round; may be NULL */
    void (*kernel)(void *ctx, const kl_tuned_kernel *kernel);     /* called at the end, once a kernel; may be NULL */
    void *ctx;
} kl_tune_options;

/* Tunes the kernels of the program that a trace of this name ran last, for at most `seconds` (0: KL_TUNE_SECONDS) and
 * the round that runs then.  Its kernels run on made-up values in memory of their own, as much as the trace's inputs,
 * states and results take once more; the trace's values stay as they are.  Work of other threads and processes makes
 * the measurements worse.  A frozen step goes on with the schedules that it has.
 * [errors ARGUMENT: no such trace has run, or it ran unfused, a number out of range, schedules of kl_set_schedules hold
 * for it; DEVICE: it has no kernels of a code generator; IO: the folder that keeps kernels cannot be written; TRACE:
 * one is open; MEMORY] */
KL_API kl_status kl_tune(const char *trace, double seconds);
/* options NULL: all fields 0 */
KL_API kl_status kl_tune_with(const char *trace, const kl_tune_options *options);

/* ---- profiles: the time of each kernel and each line of the user's source, and a timeline ----
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
