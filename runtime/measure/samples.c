/* Clocks and quantiles. */
#include "measure.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double measure_now(void) { return read_clock(CLOCK_MONOTONIC); }
double measure_cpu_now(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

void samples_add(struct samples *t, double seconds)
{
    if (t->n < MAX_SAMPLES)
        t->s[t->n++] = seconds;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_quantile(const double *s, int n, double p)
{
    double sorted[MAX_SAMPLES];
    if (n <= 0)
        return 0;
    memcpy(sorted, s, sizeof(double) * (size_t)n);
    qsort(sorted, (size_t)n, sizeof(double), compare_doubles);
    double at = p * (n - 1);
    int i = (int)at;
    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}
