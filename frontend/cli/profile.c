/* kiln profile: runs a graph's text several times and prints where the time is spent. */
#include "job.h"
#include "frontend/frontend.h"

enum { ROUNDS = 20 };

/* Writes the dump page of the program that ran, with the times of its kernels. */
static bool write_page(struct job *j, const char *path, struct err *e)
{
    const struct exec *x = exec_get(j->g, j->device, option_fuse(), e);
    struct dump_request r = {.form = DUMP_HTML, .device = x ? x->device : -1, .fuse = option_fuse(),
                             .times = x ? atomic_load(&((struct exec *)(uintptr_t)x)->times) : NULL};
    bool ok = x && dump_to_file(j->g, &r, path, e);
    exec_unref(x);
    return ok;
}

static int profile_job(struct job *j, int rounds, const char *trace, const char *page)
{
    if (!job_open(j) || !job_bind(j, MISSING_MADE_UP))
        return CLI_FAILED;
    kl_status status = kl_profile_begin();
    for (int i = 0; i < rounds && !status; i++)
        status = job_step(j);
    kl_profile *p = status ? NULL : kl_profile_end();
    if (!p)
        return cli_error("%s", kl_last_error());
    fputs(kl_profile_table(p), stdout);
    status = trace ? kl_profile_trace(p, trace) : KL_OK;
    kl_profile_free(p);
    struct err e = {0};
    if (!status && page && !write_page(j, page, &e))
        return cli_error("%s", e.msg);
    return status ? cli_error("%s", kl_last_error()) : CLI_OK;
}

int cli_profile(int argc, char **argv)
{
    static const char *const binders[] = {"--input", "--state", "--slot", NULL};
    struct cli_args a = {.argc = argc, .argv = argv};
    struct job j = {0};
    const char *trace = NULL, *page = NULL;
    int rounds = ROUNDS;
    while (cli_next(&a)) {
        if (cli_is(&a, "--trace"))
            trace = cli_value(&a);
        else if (cli_is(&a, "--page"))
            page = cli_value(&a);
        else if (cli_is(&a, "--unfused"))
            option_fuse_here(0);
        else if (cli_is(&a, "--rounds")) {
            if (!job_rounds(&a, &rounds))
                return job_free(&j), CLI_USAGE;
        } else if (!job_argument(&j, &a, binders))
            return job_free(&j), CLI_USAGE;
    }
    if (a.failed || !j.file) {
        if (!a.failed)
            cli_error("profile needs a file; see kiln help");
        job_free(&j);
        return CLI_USAGE;
    }
    int status = profile_job(&j, rounds, trace, page);
    job_free(&j);
    return status;
}
