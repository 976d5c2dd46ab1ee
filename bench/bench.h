/* What every bench program shares: timing, medians, the machine's arithmetic peak, and the list of results with
 * its table and JSON.  A program is one file:
 *
 *     int main(int argc, char **argv)
 *     {
 *         static struct bench b;
 *         if (!bench_open(&b, "gemm", argc, argv))
 *             return b.status;
 *         ... bench_add(&b, ...) ...
 *         return bench_close(&b);
 *     }
 */
#ifndef BENCH_H
#define BENCH_H
#include <kiln/kiln.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- time ---- */

enum { MAX_SAMPLES = 1024 };

struct samples { /* the seconds of each run of one thing */
    double s[MAX_SAMPLES];
    int n;
};

/* CPU seconds of this thread: what one-thread cases are measured in, because wall time on a shared machine
 * counts what others ran meanwhile. */
static inline double bench_cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void samples_add(struct samples *t, double seconds)
{
    if (t->n < MAX_SAMPLES)
        t->s[t->n++] = seconds;
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The p-quantile: 0 the least, 0.5 the median, 1 the largest. */
static inline double samples_quantile(const struct samples *t, double p)
{
    double sorted[MAX_SAMPLES];
    memcpy(sorted, t->s, sizeof(double) * (size_t)t->n);
    qsort(sorted, (size_t)t->n, sizeof(double), compare_doubles);
    double at = p * (t->n - 1);
    int i = (int)at;
    return i + 1 < t->n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

static inline double samples_median(const struct samples *t) { return samples_quantile(t, 0.5); }

/* ---- results ---- */

enum { MAX_ROWS = 256 };

struct bench_row {
    char name[64], variant[32];
    int threads;
    double median, min, max, limit; /* all in `unit`; limit 0: none is known */
    const char *unit;               /* "us", "GFLOP/s" or "GB/s" */
    const char *baseline;           /* NULL: none */
    double ratio;                   /* baseline time / Kiln time */
};

struct bench {
    const char *name, *json;
    struct bench_row row[MAX_ROWS];
    int nrow, status;
};

/* Reads the options; false: end the program with b->status. */
static inline bool bench_open(struct bench *b, const char *name, int argc, char **argv)
{
    *b = (struct bench){.name = name};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json") && i + 1 < argc) {
            b->json = argv[++i];
            continue;
        }
        bool help = !strcmp(argv[i], "--help");
        fprintf(help ? stdout : stderr, "usage: bench_%s [--json FILE]\n", name);
        b->status = help ? 0 : 2;
        return false;
    }
    return true;
}

/* The default device, named on stderr. */
static inline kl_device bench_device(const struct bench *b)
{
    kl_device device = kl_device_default();
    fprintf(stderr, "bench_%s: device %s %s\n", b->name, kl_device_name(device), kl_device_fallback_reason());
    return device;
}

/* Adds a row: the times themselves in microseconds, or with work > 0 (operations or bytes a run) billions of them
 * a second. */
static inline struct bench_row *bench_add(struct bench *b, const char *name, const char *variant, int threads,
                                          const struct samples *t, const char *unit, double work, double limit)
{
    static struct bench_row dropped;
    struct bench_row *r = b->nrow < MAX_ROWS ? &b->row[b->nrow++] : &dropped;
    *r = (struct bench_row){.threads = threads, .unit = unit, .limit = limit};
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->variant, sizeof r->variant, "%s", variant);
    double least = samples_quantile(t, 0), most = samples_quantile(t, 1), mid = samples_median(t);
    r->median = work > 0 ? work / mid * 1e-9 : mid * 1e6;
    r->min = work > 0 ? work / most * 1e-9 : least * 1e6;
    r->max = work > 0 ? work / least * 1e-9 : most * 1e6;
    return r;
}

/* 1 at the limit, higher is better; 0 without a limit. */
static inline double bench_fraction(const struct bench_row *r)
{
    return r->limit == 0 ? 0 : !strcmp(r->unit, "us") ? r->limit / r->median : r->median / r->limit;
}

static inline void bench_json_row(FILE *f, const char *bench, const struct bench_row *r)
{
    fprintf(f, "{\"bench\": \"%s\", \"case\": \"%s\", \"variant\": \"%s\", \"threads\": %d", bench, r->name, r->variant,
            r->threads);
    fprintf(f, ", \"median\": %.6g, \"min\": %.6g, \"max\": %.6g, \"unit\": \"%s\"", r->median, r->min, r->max, r->unit);
    if (r->limit > 0)
        fprintf(f, ", \"limit\": %.6g, \"fraction\": %.4f", r->limit, bench_fraction(r));
    else
        fprintf(f, ", \"limit\": null, \"fraction\": null");
    if (r->baseline)
        fprintf(f, ", \"baseline\": \"%s\", \"ratio\": %.4f}", r->baseline, r->ratio);
    else
        fprintf(f, ", \"baseline\": null, \"ratio\": null}");
}

static inline void bench_table(const struct bench *b)
{
    printf("%-6s %-24s %-10s %3s %10s %10s %10s %-8s %10s %6s  %s\n", "bench", "case", "variant", "thr", "median", "min",
           "max", "unit", "limit", "frac", "baseline (ratio)");
    for (int i = 0; i < b->nrow; i++) {
        const struct bench_row *r = &b->row[i];
        printf("%-6s %-24s %-10s %3d %10.2f %10.2f %10.2f %-8s", b->name, r->name, r->variant, r->threads, r->median,
               r->min, r->max, r->unit);
        if (r->limit > 0)
            printf(" %10.2f %6.3f", r->limit, bench_fraction(r));
        else
            printf(" %10s %6s", "-", "-");
        if (r->baseline)
            printf("  %s (%.2f)\n", r->baseline, r->ratio);
        else
            printf("  -\n");
    }
}

/* Prints the table and writes the JSON; the program's exit status. */
static inline int bench_close(const struct bench *b)
{
    bench_table(b);
    if (!b->json)
        return 0;
    FILE *f = fopen(b->json, "w");
    if (f) {
        fputc('[', f);
        for (int i = 0; i < b->nrow; i++) {
            fputs(i ? ",\n " : "\n ", f);
            bench_json_row(f, b->name, &b->row[i]);
        }
        fputs("\n]\n", f);
    }
    if (!f || fclose(f) != 0) {
        fprintf(stderr, "bench_%s: cannot write %s\n", b->name, b->json);
        return 1;
    }
    return 0;
}

/* ---- the arithmetic peak of one thread: chains of multiply-adds that never leave the registers ---- */

enum { PEAK_CHAINS = 12, PEAK_STEPS = 1 << 16 };

/* Each loop runs PEAK_STEPS rounds over PEAK_CHAINS independent vectors; the sum keeps them from being dropped. */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static inline float peak_avx512(float seed)
{
    __m512 x[PEAK_CHAINS], m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(seed);
    for (int i = 0; i < PEAK_CHAINS; i++)
        x[i] = _mm512_set1_ps(seed + (float)i);
    for (int s = 0; s < PEAK_STEPS; s++)
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++)
            x[i] = _mm512_fmadd_ps(x[i], m, c);
    for (int i = 1; i < PEAK_CHAINS; i++)
        x[0] = _mm512_add_ps(x[0], x[i]);
    return _mm512_reduce_add_ps(x[0]);
}

__attribute__((target("avx2,fma"))) static inline float peak_avx2(float seed)
{
    __m256 x[PEAK_CHAINS], m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(seed);
    for (int i = 0; i < PEAK_CHAINS; i++)
        x[i] = _mm256_set1_ps(seed + (float)i);
    for (int s = 0; s < PEAK_STEPS; s++)
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++)
            x[i] = _mm256_fmadd_ps(x[i], m, c);
    for (int i = 1; i < PEAK_CHAINS; i++)
        x[0] = _mm256_add_ps(x[0], x[i]);
    return _mm_cvtss_f32(_mm256_castps256_ps128(x[0]));
}
#endif

static inline float peak_128(float seed)
{
    typedef float vec __attribute__((vector_size(16)));
    vec x[PEAK_CHAINS], m = {0.999f, 0.999f, 0.999f, 0.999f}, c = {seed, seed, seed, seed};
    for (int i = 0; i < PEAK_CHAINS; i++)
        x[i] = c + (float)i;
    for (int s = 0; s < PEAK_STEPS; s++)
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++)
            x[i] = x[i] * m + c;
    for (int i = 1; i < PEAK_CHAINS; i++)
        x[0] += x[i];
    return x[0][0];
}

static inline int peak_lanes(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return 16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 8;
#endif
    return 4;
}

/* The operations of one bench_peak_seconds(). */
static inline double bench_peak_flops(void) { return 2.0 * peak_lanes() * PEAK_CHAINS * PEAK_STEPS; }

/* The time of one run of the widest loop this processor has. */
static inline double bench_peak_seconds(void)
{
    static volatile float sink;
    int lanes = peak_lanes();
    double start = bench_cpu_now();
#if defined(__x86_64__)
    sink = lanes == 16 ? peak_avx512(1e-3f) : lanes == 8 ? peak_avx2(1e-3f) : peak_128(1e-3f);
#else
    sink = lanes ? peak_128(1e-3f) : 0;
#endif
    (void)sink;
    return bench_cpu_now() - start;
}

#endif
