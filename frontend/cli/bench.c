/* kiln bench: a graph's text, measured fused and unfused. */
#include "job.h"
#include "frontend/frontend.h"
#include "runtime/measure/measure.h"

static void show_progress(void *ctx, int done, int rounds)
{
    (void)ctx;
    measure_progress("bench", done, rounds);
}

static int bench(struct job *j, const kl_bench_options *o, const char *json, const char *svg)
{
    if (!job_open(j) || !job_bind(j, true))
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
    static const char *const binders[] = {"--input", "--state", "--slot", NULL};
    struct cli_args a = {.argc = argc, .argv = argv};
    struct job j = {0};
    kl_bench_options o = {.progress = show_progress};
    const char *json = NULL, *svg = NULL;
    while (cli_next(&a)) {
        if (cli_is(&a, "--json"))
            json = cli_value(&a);
        else if (cli_is(&a, "--svg"))
            svg = cli_value(&a);
        else if (cli_is(&a, "--rounds")) {
            if (!job_rounds(&a, &o.rounds))
                return job_free(&j), CLI_USAGE;
        } else if (!job_argument(&j, &a, binders))
            return job_free(&j), CLI_USAGE;
    }
    if (a.failed || !j.file) {
        if (!a.failed)
            cli_error("bench needs a file; see kiln help");
        job_free(&j);
        return CLI_USAGE;
    }
    int status = bench(&j, &o, json, svg);
    job_free(&j);
    return status;
}
