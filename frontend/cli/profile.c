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
    struct job j = {0};
    const char *trace = NULL, *page = NULL;
    int rounds = ROUNDS;
    bool fuse = option_fuse();
    const struct cli_option options[] = {{"--trace", .value = &trace}, {"--page", .value = &page},
                                         {"--unfused", .flag = &fuse, .set = false},
                                         {"--rounds", .take = job_rounds, .ctx = &rounds},
                                         {.value = &j.file, .needed = true}, {.take = job_argument, .ctx = &j}, {0}};
    bool ok = cli_parse(argc, argv, options, "profile needs a file");
    if (!fuse)
        option_fuse_here(0);
    return job_end(&j, ok ? profile_job(&j, rounds, trace, page) : CLI_USAGE);
}
