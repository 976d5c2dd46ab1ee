/* Measuring: clocks, the machine's limits, and lists of results as a table, JSON and a chart.
 *
 * A result is a row of a benchmark: a case in one variant, with median, minimum and maximum in `unit`, and the limit in
 * the same unit if it is known.  The JSON is one array of objects with the fields of struct result. */
#ifndef KILN_MEASURE_H
#define KILN_MEASURE_H
#include "ir/ir.h"

/* ---- samples.c ---- */
double measure_now(void);     /* seconds of a monotonic clock */
/* CPU seconds of this thread.  Used for work on one thread, because wall time on a shared machine includes other
 * processes. */
double measure_cpu_now(void);
enum { MAX_SAMPLES = 1024 };
struct samples { double s[MAX_SAMPLES]; int n; }; /* the seconds of each run of one case */
/* The p-quantile of n numbers, at most MAX_SAMPLES: 0 the least, 0.5 the median, 1 the largest; of none 0. */
double measure_quantile(const double *s, int n, double p);
void samples_add(struct samples *t, double seconds);          /* ignored when there are MAX_SAMPLES */
static inline double samples_median(const struct samples *t) { return measure_quantile(t->s, t->n, 0.5); }

/* ---- limits.c: loops that only do what is measured, with this processor's widest registers ---- */
double limit_fma(void);       /* chains of f32 multiply-adds in registers, about 0.1 ms; returns their operations */
enum { LIMIT_INPUTS = 5 };
/* n floats for the streams, in huge pages if possible, like Kiln's own buffers; NULL: out of memory. */
float *limit_array(size_t n);
void limit_array_free(float *a, size_t n);
/* array[0] = the sum of array[1] .. array[inputs], elements from .. to; inputs: 1 to LIMIT_INPUTS. */
void limit_stream(float *const *array, int inputs, size_t from, size_t to);
/* Adds array[3] to array[0], [1] and [2], like an optimizer's update in place; to - from is a multiple of 16. */
void limit_update(float *const *array, size_t from, size_t to);
float limit_sum(const float *a, size_t from, size_t to);

/* ---- results.c ---- */
struct result {
    char bench[32], name[64], variant[32];
    int threads;
    double median, min, max, limit; /* limit 0: none is known */
    char unit[8];                   /* "us", "GFLOP/s" or "GB/s" */
    char baseline[32];              /* "": none */
    double ratio;                   /* baseline time / Kiln time */
    char missing[160];              /* why this row has no numbers; "": it was measured */
};
struct results {
    struct result *row;
    uint32_t n, cap;
    bool failed;                    /* out of memory: rows are missing */
    struct result dropped;          /* used in place of rows for which there is no memory */
};
/* Adds a row: times in microseconds, or with work > 0 (operations or bytes of a run) rates in 10^9 a second. limit: in
 * the same unit.  The pointer is valid until the next row is added. */
struct result *results_add(struct results *t, const char *bench, const char *name, const char *variant, int threads,
                           const struct samples *took, const char *unit, double work, double limit);
/* Adds a row of something that could not be measured, a peer that is not there, with the reason in words.  The table
 * and the JSON show the reason, charts leave the row out. */
void results_missing(struct results *t, const char *bench, const char *name, const char *variant, int threads,
                     const char *why);
void results_free(struct results *t);
double result_fraction(const struct result *r); /* 1 at the limit, higher is better; 0 without a limit */
void results_table(const struct results *t, FILE *f);
void results_json(const struct results *t, FILE *f);
/* Adds the rows of a results_json text; unknown fields are ignored. false: *e, with line and column. */
bool results_parse(struct results *t, const char *text, size_t len, const char *file, struct err *e);
/* Draws `done` of `total` in place on stderr if that is a terminal; erases the line when they are equal. */
void measure_progress(const char *what, int done, int total);
/* The same; where stderr is no terminal, a line every five seconds.  *last: the time of the last line, at first that of
 * the beginning. */
void measure_progress_lines(double *last, const char *what, int done, int total);

/* ---- chart.c ---- */
/* A bar for each row, cases of a benchmark below each other, as a self-contained SVG file. */
void results_svg(const struct results *t, FILE *f);

#endif
