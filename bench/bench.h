/* What every bench program shares: options, the device, and how a run ends.  A program is one file:
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
#include "runtime/measure/measure.h"
#include <fnmatch.h>
#include <kiln/kiln.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    const char *name, *json;
    const char *only; /* a pattern as of the shell: the cases to run; NULL: all */
    bool smoke;       /* --smoke: show that the benchmark works, as small as it gets; its figures mean nothing */
    bool made_small;  /* the benchmark has asked whether it is to be small */
    struct results results;
    int status;
};

/* Reads the options; false: end the program with b->status. */
static inline bool bench_open(struct bench *b, const char *name, int argc, char **argv)
{
    *b = (struct bench){.name = name};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--smoke")) {
            b->smoke = true;
            continue;
        }
        const char **option = !strcmp(argv[i], "--json") ? &b->json : !strcmp(argv[i], "--case") ? &b->only : NULL;
        if (option && i + 1 < argc) {
            *option = argv[++i];
            continue;
        }
        bool help = !strcmp(argv[i], "--help");
        fprintf(help ? stdout : stderr, "usage: bench_%s [--smoke] [--case CASE] [--json FILE]\n", name);
        b->status = help ? 0 : 2;
        return false;
    }
    return true;
}

/* The default device, named on stderr. */
static inline kl_device bench_device(const struct bench *b)
{
    kl_device device = kl_device_default();
    fprintf(stderr, "bench_%s: device %s; %s\n", b->name, kl_device_name(device), kl_device_fallback_reason());
    return device;
}

static inline bool bench_wants(const struct bench *b, const char *name)
{
    return !b->only || !strcmp(b->only, name) || fnmatch(b->only, name, 0) == 0;
}

/* How many rounds are measured: one with --smoke. */
static inline int bench_rounds(struct bench *b, int rounds)
{
    b->made_small = true;
    return b->smoke ? 1 : rounds;
}

/* The size of a case, and with --smoke the smaller one. */
static inline int bench_size(struct bench *b, int size, int smoke)
{
    b->made_small = true;
    return b->smoke ? smoke : size;
}

/* Is this case wanted?  With --smoke those only whose work, in a unit of the benchmark's own, is at most so much. */
static inline bool bench_wants_work(struct bench *b, const char *name, double work, double smoke)
{
    b->made_small = true;
    return bench_wants(b, name) && (!b->smoke || work <= smoke);
}

/* results_add for this benchmark. */
static inline struct result *bench_add(struct bench *b, const char *name, const char *variant, int threads,
                                       const struct samples *took, const char *unit, double work, double limit)
{
    return results_add(&b->results, b->name, name, variant, threads, took, unit, work, limit);
}

/* A row that says why a variant of a case was not measured. */
static inline void bench_missing(struct bench *b, const char *name, const char *variant, int threads, const char *why)
{
    results_missing(&b->results, b->name, name, variant, threads, why);
}

static inline void bench_baseline(struct result *r, const char *baseline, double ratio)
{
    snprintf(r->baseline, sizeof r->baseline, "%s", baseline);
    r->ratio = ratio;
}

/* One run of the multiply-adds; their operations. */
static inline double bench_peak(struct samples *took)
{
    double start = measure_cpu_now(), flops = limit_fma();
    samples_add(took, measure_cpu_now() - start);
    return flops;
}

/* Says what the library reported last, if that failed; else the benchmark itself has said why.  The program's exit
 * status. */
static inline int bench_fail(struct bench *b, const char *what)
{
    const char *why = kl_last_error();
    fprintf(stderr, "bench_%s: %s%s%s\n", b->name, what, why[0] ? ": " : " failed", why);
    results_free(&b->results);
    return 1;
}

/* ---- a step fused and unfused ---- */

struct bench_case {
    const char *name;
    int rounds;
    bool (*step)(void *ctx);    /* recorded, run and waited for; false: see kl_last_error */
    void (*anchor)(void *ctx);  /* what no step can be faster than; NULL: multiply-adds that stay in registers */
    double flops;               /* anchor NULL: so many operations */
    void (*hand)(void *ctx);    /* the same by hand; or NULL */
    void *ctx;
};

static inline bool bench_anchor(const struct bench_case *t) { return t->anchor(t->ctx), true; }
static inline bool bench_hand(const struct bench_case *t) { return t->hand(t->ctx), true; }
static inline bool bench_step(const struct bench_case *t) { return t->step(t->ctx); }

/* The second of two runs: what fits a cache is then there, as it is for a step that repeats. */
static inline bool bench_timed(bool (*call)(const struct bench_case *t), const struct bench_case *t,
                               struct samples *took)
{
    if (!call(t))
        return false;
    double start = measure_cpu_now();
    bool ok = call(t);
    samples_add(took, measure_cpu_now() - start);
    return ok;
}

/* Runs them in alternation on one thread, so that each round's are measured within the same seconds, and adds the rows
 * "unfused", "fused" and, where there is one, "hand". */
static inline bool bench_alternate(struct bench *b, const struct bench_case *t)
{
    static const char *const variant[2] = {"unfused", "fused"};
    static struct samples took[2], anchor, hand;
    took[0].n = took[1].n = anchor.n = hand.n = 0;
    double scale = 1;
    bool ok = true;
    int rounds = bench_rounds(b, t->rounds);
    for (int round = 0; ok && round < rounds; round++) {
        if (t->anchor)
            bench_timed(bench_anchor, t, &anchor);
        else
            scale = t->flops / bench_peak(&anchor);
        for (int fuse = 0; ok && fuse < 2; fuse++) {
            kl_set_option("fuse", fuse);
            ok = bench_timed(bench_step, t, &took[fuse]); /* compiled by its first run */
        }
        if (t->hand)
            bench_timed(bench_hand, t, &hand);
        measure_progress(t->name, round + 1, rounds);
    }
    if (!ok)
        return false;
    double limit = 1e6 * scale * samples_median(&anchor);
    for (int fuse = 0; fuse < 2; fuse++) {
        struct result *r = bench_add(b, t->name, variant[fuse], 1, &took[fuse], "us", 0, limit);
        if (fuse)
            bench_baseline(r, t->hand ? "hand" : variant[0],
                           samples_median(t->hand ? &hand : &took[0]) / samples_median(&took[1]));
    }
    if (t->hand)
        bench_add(b, t->name, "hand", 1, &hand, "us", 0, limit);
    return true;
}

/* Prints the table and writes the JSON; the program's exit status. */
static inline int bench_close(struct bench *b)
{
    bool ok = !b->results.failed;
    if (b->only && !b->results.n) {
        fprintf(stderr, "bench_%s: there is no case %s\n", b->name, b->only);
        return 2;
    }
    if (b->smoke && (!b->made_small || !b->results.n)) {
        fprintf(stderr, "bench_%s: %s\n", b->name, b->results.n ? "--smoke makes nothing of it smaller" : "no row");
        ok = false;
    }
    results_table(&b->results, stdout);
    if (b->json) {
        FILE *f = fopen(b->json, "w");
        if (f)
            results_json(&b->results, f);
        if (!f || fclose(f) != 0) {
            fprintf(stderr, "bench_%s: cannot write %s\n", b->name, b->json);
            ok = false;
        }
    }
    results_free(&b->results);
    return ok ? 0 : 1;
}

#endif
