/* Profiles (rows by kernel) and the timeline (spans). */
#ifndef KILN_RUNTIME_PROFILE_H
#define KILN_RUNTIME_PROFILE_H
#include "runtime/program/program.h"

/* ---- profile.c: times of kernels ---- */
struct profile_row {                     /* a kernel of a program, all its copies, its custom ops, or the interpreter */
    const struct exec *x;
    uint32_t kernel;                     /* the kernel's number; numbers after the last kernel: enum profile_other */
    uint64_t calls;
    double seconds;
    int64_t bytes;                       /* PROFILE_COPY: bytes read and written by all calls */
};
#define PROFILE_OTHERS 3
enum profile_other { PROFILE_COPY = INT32_MAX - PROFILE_OTHERS, PROFILE_CUSTOM, PROFILE_INTERP };
struct profile {
    double (*clock)(void);               /* seconds; read on the thread that executes */
    /* The tuner's, per kernel of the program: on a device with a driver it is launched so many times between two
     * events, and its time is divided by them.  NULL: once. */
    const uint16_t *launches;
    struct profile_row *row;
    uint32_t n, cap;
};
/* Records what this thread executes from here on in *p; NULL: stops. */
void profile_here(struct profile *p);
/* This thread's profile, NULL if none. */
struct profile *profile_current(void);
/* The first of x's rows: one for each kernel, then those of enum profile_other.  The profile takes a reference to x.
 * NULL: out of memory. */
struct profile_row *profile_rows(struct profile *p, const struct exec *x);
void profile_free(struct profile *p);    /* frees its rows and drops its references */

/* ---- timeline.c: spans of every thread of the process, while it is on ----
 *
 * A span has a beginning and an end.  Counts and times are summed for each kind, and for each command of a program.
 * The first EVENTS_MAX spans are also kept individually. */
/* commands; SHARE: one worker's share of a kernel */
enum span { SPAN_KERNEL, SPAN_SHARE, SPAN_COPY, SPAN_CUSTOM, SPAN_INTERP, SPAN_REGION,
            SPAN_RECORD, SPAN_STEP, SPAN_READ, SPAN_PASSES, SPAN_PLAN, SPAN_COMPILE, SPAN_LOAD, SPANS };
enum { EVENTS_MAX = 1 << 20 };
struct event {
    int64_t start, ns;                   /* of measure's clock, CLOCK_MONOTONIC */
    const char *name;                    /* valid until the process ends: a program that was timed is not evicted */
    int64_t bytes, flops;                /* 0: not known */
    enum span kind;
};
struct times {                           /* summed times of a program */
    const struct exec *x;
    struct times *next;
    struct command_time { atomic_uint_fast64_t calls, ns; } row[]; /* by command.row */
};
struct thread_events { struct event *v; uint32_t n, cap; long tid; char name[16]; };
struct timeline {
    int64_t start, end;
    struct thread_events *thread;
    uint32_t n, cap;
    uint64_t dropped;                    /* spans that were not kept individually */
    struct { uint64_t calls, ns; } total[SPANS];
};
extern atomic_bool timeline_is_on;
int64_t timeline_now(void);              /* ns, never 0 */
/* The start of a span, 0 if the timeline is off. */
static inline int64_t span_begin(void)
{
    return atomic_load_explicit(&timeline_is_on, memory_order_relaxed) ? timeline_now() : 0;
}
/* Ends a span; does nothing if it began at 0.  The name of a command must be valid until the process ends; other names
 * are copied. */
void span_end(enum span kind, const char *name, int64_t began);
/* The same for a command, which took so long on its device. */
void span_add(enum span kind, const char *name, int64_t began, int64_t ns, int64_t bytes, int64_t flops);
/* The summed times of x's commands; NULL: out of memory. */
struct times *exec_times(const struct exec *x);
/* Started by the API or (for_file) by KILN_PROFILE. false: *e, it is on already. */
bool timeline_start(bool for_file, struct err *e);
/* Stops and returns what was recorded; the caller is the one that started it.  The times of programs are kept until the
 * next start. false: *e. */
bool timeline_stop(bool for_file, struct timeline *out, struct err *e);
void timeline_free(struct timeline *t);
/* Iterates over all programs that have times: *at is NULL at first, NULL is the end. */
const struct times *times_next(const struct times *at);
/* Starts it if KILN_PROFILE names a file, which is written at exit. */
void timeline_from_environment(void);

/* ---- timeline_json.c: trace events for Perfetto and chrome://tracing ---- */
bool timeline_json(const struct timeline *t, const char *path, struct err *e);

#endif
