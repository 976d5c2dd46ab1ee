/* Reports of kl_bench as text, JSON and a chart. */
#include "benchmark.h"
#include "frontend/frontend.h"
#include "ir/file_signal.h"
#include "ir/text/text.h"
#include <errno.h>
#include <math.h>
#include <string.h>

enum { SHOWN = 24 }; /* kernels of each variant in a table or chart */
static const char *const variant[2] = {"unfused", "fused"};

static double kernel_total_seconds(const kl_bench_kernel *k) { return (double)k->calls * k->call.median; }

void text_time(struct text *t, double us)
{
    text_put(t, us < 1000 ? " %9.2f us" : us < 1e6 ? " %9.3f ms" : " %9.3f s ",
             us < 1000 ? us : us < 1e6 ? us / 1e3 : us / 1e6);
}

/* The limit, and which fraction of it this time reaches. */
static void put_limit(struct text *t, double limit, double time)
{
    if (limit > 0 && time > 0) {
        text_time(t, limit);
        text_put(t, " %7.0f %%", 100 * limit / time);
    } else {
        text_put(t, " %12s %9s", "-", "-");
    }
}

static void put_step(struct text *t, const kl_bench_report *r, int fuse)
{
    text_put(t, "%-8s", variant[fuse]);
    text_time(t, r->step[fuse].median);
    text_time(t, r->step[fuse].min);
    text_time(t, r->step[fuse].max);
    put_limit(t, r->limit, r->step[fuse].median);
    if (fuse && r->step[1].median > 0)
        text_put(t, "   %.2f x unfused", r->step[0].median / r->step[1].median);
    text_put(t, "\n");
}

static void put_kernel(struct text *t, const kl_bench_kernel *k, double all)
{
    char name[37];
    bool cut = strlen(k->name) >= sizeof name;
    snprintf(name, sizeof name, cut ? "%.33s..." : "%s", k->name);
    text_put(t, "%-36s %6lld", name, (long long)k->calls);
    text_time(t, k->call.median);
    text_put(t, " %6.1f %%", all > 0 ? 100 * kernel_total_seconds(k) / all : 0);
    text_put(t, " %9.3f %9.3f", 1e-6 * (double)k->bytes, 1e-6 * (double)k->flops);
    double us = k->call.median > 0 ? k->call.median : INFINITY;
    text_put(t, " %7.1f %8.1f", 1e-3 * (double)k->bytes / us, 1e-3 * (double)k->flops / us);
    put_limit(t, k->limit, k->call.median);
    text_put(t, "\n");
}

static void benchmark_report_put_kernels(struct text *t, const kl_bench_report *r, int fuse)
{
    double all = 0, rest = 0;
    int shown = 0, hidden = 0;
    for (int64_t i = 0; i < r->nkernel; i++)
        all += r->kernel[i].fused == fuse ? kernel_total_seconds(&r->kernel[i]) : 0;
    text_put(t, "\n%-36s %6s %12s %8s %9s %9s %7s %8s %12s %9s\n", fuse ? "fused kernels" : "unfused kernels", "calls",
             "a call",
             "of all", "MB", "Mflop", "GB/s", "GFLOP/s", "limit", "of limit");
    for (int64_t i = 0; i < r->nkernel; i++) {
        const kl_bench_kernel *k = &r->kernel[i];
        if (k->fused != fuse)
            continue;
        if (shown < SHOWN) {
            put_kernel(t, k, all);
            shown++;
        } else {
            hidden++;
            rest += kernel_total_seconds(k);
        }
    }
    if (hidden)
        text_put(t, "and %d more, %.1f %% of the time\n", hidden, 100 * rest / all);
}

const char *kl_bench_table(const kl_bench_report *report)
{
    struct report *r = (struct report *)report;
    if (!r || r->table)
        return r ? r->table : "";
    struct text t = {0};
    text_put(&t, "%s: %d round%s in alternation, %d thread%s, multiply-adds %.1f GFLOP/s\n\n", report->name,
             report->rounds, report->rounds == 1 ? "" : "s", report->threads, report->threads == 1 ? "" : "s",
             report->peak);
    text_put(&t, "%-8s %12s %12s %12s %12s %9s\n", "step", "median", "min", "max", "limit", "of limit");
    for (int fuse = 0; fuse < 2; fuse++)
        put_step(&t, report, fuse);
    for (int fuse = 1; fuse >= 0; fuse--)
        benchmark_report_put_kernels(&t, report, fuse);
    r->table = text_take(&t);
    return r->table ? r->table : "out of memory\n";
}

/* ---- as rows ---- */

static struct result *add_row(struct results *t, const kl_bench_report *r, const char *name, int fuse,
                              const kl_bench_time *time,
                              double limit)
{
    static const struct samples none;
    struct result *row = results_add(t, r->name, name, variant[fuse], r->threads, &none, "us", 0, limit);
    row->median = time->median;
    row->min = time->min;
    row->max = time->max;
    return row;
}

/* Adds the step, and all kernels or, for a chart, the slowest fused ones. */
static void report_rows(const kl_bench_report *r, bool chart, struct results *t)
{
    int shown = 0;
    for (int fuse = 0; fuse < 2; fuse++) {
        struct result *row = add_row(t, r, "step", fuse, &r->step[fuse], r->limit);
        if (fuse && r->step[1].median > 0) {
            snprintf(row->baseline, sizeof row->baseline, "%s", variant[0]);
            row->ratio = r->step[0].median / r->step[1].median;
        }
    }
    for (int64_t i = 0; i < r->nkernel; i++) {
        const kl_bench_kernel *k = &r->kernel[i];
        if (!chart || (k->fused && shown++ < SHOWN))
            add_row(t, r, k->name, k->fused, &k->call, k->limit);
    }
}

static kl_status write_rows(const kl_bench_report *r, const char *path, bool chart,
                            void (*write)(const struct results *, FILE *))
{
    struct thread *t = thread_self();
    struct results rows = {0};
    if (!t)
        return KL_ERR_MEMORY;
    if (!r || !path)
        return report(t, KL_ERR_ARGUMENT, "bench: no %s", r ? "path" : "report");
    report_rows(r, chart, &rows);
    kl_status status = rows.failed ? report(t, KL_ERR_MEMORY, "bench: out of memory") : KL_OK;
    struct whole_file w;
    if (!rows.failed && whole_file_open(&w, path))
        write(&rows, w.f);
    if (!rows.failed && !whole_file_close(&w))
        status = report(t, KL_ERR_IO, "bench: %s: %s", path, strerror(errno));
    results_free(&rows);
    return status;
}

kl_status kl_bench_json(const kl_bench_report *report, const char *path)
{
    return write_rows(report, path, false, results_json);
}

kl_status kl_bench_svg(const kl_bench_report *report, const char *path)
{
    return write_rows(report, path, true, results_svg);
}

void kl_bench_free(kl_bench_report *report)
{
    struct report *r = (struct report *)report;
    if (!r)
        return;
    mem_free(r->name);
    mem_free(r->names);
    mem_free(r->kernels);
    mem_free(r->table);
    mem_free(r);
}
