/* kiln bench: a graph's text, measured fused and unfused. */
#include "frontend/cli_job.h"
#include "frontend/frontend.h"
#include "runtime/measure/measure.h"
#include <stdlib.h>
#include <string.h>

/* One run; a state that was not updated in place has moved to where its new value is. */
static kl_status step(void *ctx)
{
    struct job *j = ctx;
    struct err e = {0};
    if (!job_run(j, option_fuse(), &e))
        return report_err(&e);
    for (uint32_t k = 0; k < j->g->nout; k++) {
        const struct output *o = &j->g->out[k];
        if (o->kind == OUT_ASSIGN) {
            buffer_unref(j->state[o->state]);
            j->state[o->state] = j->out[k];
        } else {
            buffer_unref(j->out[k]);
        }
        j->out[k] = NULL;
    }
    return KL_OK;
}

static void show_progress(void *ctx, int done, int rounds)
{
    (void)ctx;
    measure_progress("bench", done, rounds);
}

static int parse_rounds(const char *s, int *rounds)
{
    char *end;
    long n = strtol(s, &end, 10);
    if (!*s || *end || n < 1 || n > 1000) {
        cli_error("--rounds: '%s' is not a number from 1 to 1000", s);
        return CLI_USAGE;
    }
    *rounds = (int)n;
    return CLI_OK;
}

static int bench(struct job *j, const kl_bench_options *o, const char *json, const char *svg)
{
    if (!job_open(j) || !job_bind(j, true))
        return CLI_FAILED;
    kl_bench_report *r = kl_bench(j->g->name, step, j, o);
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
        const char *v = NULL;
        if (cli_is(&a, "--json"))
            json = cli_value(&a);
        else if (cli_is(&a, "--svg"))
            svg = cli_value(&a);
        else if (cli_is(&a, "--rounds")) {
            if ((v = cli_value(&a)) && parse_rounds(v, &o.rounds))
                return CLI_USAGE;
        } else if (!job_argument(&j, &a, binders))
            return CLI_USAGE;
    }
    if (a.failed || !j.file)
        return a.failed ? CLI_USAGE : (cli_error("bench needs a file; see kiln help"), CLI_USAGE);
    int status = bench(&j, &o, json, svg);
    job_free(&j);
    return status;
}
