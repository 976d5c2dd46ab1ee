/* Benchmarks of the user's own step: fused against unfused kernels, and each kernel compared with the limit of this
 * machine.  Included by <kiln/kiln.h>.
 *
 *     static kl_status step(void *model) { ... record and run one step ...; return kl_trace_end(); }
 *
 *     kl_bench_report *r = kl_bench("train_step", step, &model, NULL);
 *     if (r) puts(kl_bench_table(r)); else fprintf(stderr, "%s\n", kl_last_error());
 *     kl_bench_free(r); */
#ifndef KILN_BENCHMARK_H
#define KILN_BENCHMARK_H
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
    int64_t bytes, flops; /* of one call: its arrays, each counted once; its arithmetic operations */
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

#ifdef __cplusplus
}
#endif
#endif
