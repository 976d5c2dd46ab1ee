/* kiln bench: a graph's text, measured fused and unfused.  kiln tune: its kernels tuned. */
#include "job.h"
#include "frontend/frontend.h"
#include "runtime/measure/measure.h"
#include <string.h>

static void show_progress(void *ctx, int done, int rounds)
{
    (void)ctx;
    measure_progress("bench", done, rounds);
}

static int cli_bench_job(struct job *j, const kl_bench_options *o, const char *json, const char *svg)
{
    if (!job_open(j) || !job_bind(j, MISSING_MADE_UP))
        return CLI_FAILED;
    kl_bench_report *r = kl_bench(j->g->name, job_step, j, o);
    if (!r)
        return cli_error("%s", kl_last_error());
    fputs(kl_bench_table(r), stdout);
    bool ok = (!json || !kl_bench_json(r, json)) && (!svg || !kl_bench_svg(r, svg));
    kl_bench_free(r);
    return ok ? CLI_OK : cli_error("%s", kl_last_error());
}

int cli_bench(int argc, char **argv)
{
    struct job j = {0};
    kl_bench_options o = {.progress = show_progress};
    const char *json = NULL, *svg = NULL;
    const struct cli_option options[] = {{"--json", .value = &json}, {"--svg", .value = &svg},
                                         {"--rounds", .take = job_rounds, .ctx = &o.rounds},
                                         {.value = &j.file, .needed = true}, {.take = job_argument, .ctx = &j}, {0}};
    bool ok = cli_parse(argc, argv, options, "bench needs a file");
    return job_end(&j, ok ? cli_bench_job(&j, &o, json, svg) : CLI_USAGE);
}

/* ---- kiln tune ---- */

struct tuning {
    double line;                /* when the last line of progress was written */
    double seconds[2];          /* of all kernels that were measured */
    int kernels, changed, left;
};

static void show_tuning(void *ctx, int done, int rounds)
{
    struct tuning *t = ctx;
    measure_progress_lines(&t->line, "tune", done, rounds);
}

static void show_kernel(void *ctx, const kl_tuned_kernel *k)
{
    struct tuning *t = ctx;
    bool changed = strcmp(k->before, k->after) != 0;
    t->kernels++;
    t->changed += changed;
    t->left += !k->complete;
    for (int i = 0; i < 2; i++)
        t->seconds[i] += k->seconds[i];
    format_file(stdout, "%10.1f us %10.1f us  @%s  %d tried%s\n", 1e6 * k->seconds[0], 1e6 * k->seconds[1], k->name,
                k->tried, k->complete ? "" : ", not all");
    if (changed)
        printf("    %s\n -> %s\n", k->before, k->after);
}

static int cli_tune_job(struct job *j, double seconds)
{
    struct err e = {0};
    if (!job_open(j) || !job_bind(j, MISSING_MADE_UP))
        return CLI_FAILED;
    if (job_step(j))
        return cli_error("%s", kl_last_error());
    struct tuning t = {.line = measure_now()};
    double began = t.line;
    kl_tune_options o = {seconds, show_tuning, show_kernel, &t};
    kl_status status = kl_tune_with(j->g->name, &o);
    measure_progress("tune", 1, 1);
    if (status)
        return cli_error("%s", kl_last_error());
    format_file(stdout, "%d of %d kernels have other schedules: %.3f ms -> %.3f ms in a run, found in %.1f s\n",
                t.changed, t.kernels, 1e3 * t.seconds[0], 1e3 * t.seconds[1], measure_now() - began);
    if (t.left)
        printf("there was no time for all schedules of %d kernels: --seconds gives more\n", t.left);
    bool off = !disk_accepts(&e);
    if (off)
        printf("they are not kept: %s\n", e.msg);
    return CLI_OK;
}

static void seconds_of(struct cli_args *a, void *seconds)
{
    const char *s = cli_value(a);
    char *end = NULL;
    double v = s ? parse_double(s, &end) : 0;
    if (s && (!*s || *end || !(v >= 0 && v <= 86400)))
        a->failed = cli_error("--seconds: '%s' is not a number from 0 to 86400", s) != CLI_OK;
    *(double *)seconds = v > 0 ? v : 1e-9; /* 0 is no time here, and the default in kl_tune_options */
}

int cli_tune(int argc, char **argv)
{
    struct job j = {0};
    double seconds = 30;
    const struct cli_option options[] = {{"--seconds", .take = seconds_of, .ctx = &seconds},
                                         {.value = &j.file, .needed = true}, {.take = job_argument, .ctx = &j}, {0}};
    bool ok = cli_parse(argc, argv, options, "tune needs a file");
    return job_end(&j, ok ? cli_tune_job(&j, seconds) : CLI_USAGE);
}
