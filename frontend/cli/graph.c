/* kiln opt: runs passes on a graph. kiln dump: prints one stage. kiln diff: compares two graphs. */
#include "cli.h"
#include "ir/text/text.h"
#include "runtime/runtime.h"
#include <errno.h>
#include <string.h>

static bool run_list(struct graph *g, const char *list)
{
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t n = strcspn(p, ",");
        const struct pass_info *pass = pass_find(p, n);
        struct err e = {0};
        if (!pass) {
            cli_error("no pass is called '%.*s'; see kiln help", (int)n, p);
            return false;
        }
        if (pass_run(pass, g, NULL) < 0) {
            cli_error("pass %s: %s", pass->name, g->err.msg);
            return false;
        }
        if (!graph_verify(g, &e)) {
            cli_error("after pass %s the graph is broken: %s", pass->name, e.msg);
            return false;
        }
    }
    return true;
}

static bool run_pipeline(struct graph *g)
{
    if (passes_run(g, &(struct pass_options){.fuse = option_fuse(), .verify = true}))
        return true;
    cli_error("%s", g->err.msg);
    return false;
}

static int print_to(const struct graph *g, const char *path)
{
    FILE *f = path ? fopen(path, "w") : stdout;
    if (!f)
        return cli_error("%s: %s", path, strerror(errno));
    bool ok = graph_print(g, f) && !fflush(f);
    if (path)
        ok &= !fclose(f);
    return ok ? CLI_OK : cli_error("%s: cannot write the graph", path ? path : "standard output");
}

int cli_opt(int argc, char **argv)
{
    const char *file = NULL, *passes = NULL, *out = NULL;
    struct cli_values values = {0};
    const struct cli_option options[] = {{"--bind", .take = cli_bind_option, .ctx = &values}, {"-p", .value = &passes},
                                         {"-o", .value = &out}, {.value = &file, .needed = true}, {0}};
    if (!cli_parse(argc, argv, options, "opt needs a file"))
        return CLI_USAGE;
    struct graph *g = cli_load(file, &values);
    bool ok = g && (!values.n || cli_bind(g)) &&
              (passes ? run_list(g, passes) : run_pipeline(g));
    int status = ok ? print_to(g, out) : CLI_FAILED;
    graph_free(g);
    return status;
}

/* ---- dump ---- */

static bool form_by_name(const char *name, enum dump_form *form)
{
    static const char *const forms[] = {"text", "dot", "html"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, forms[i])) {
            *form = (enum dump_form)i;
            return true;
        }
    return false;
}

static int graph_dump_file(const char *file, const struct cli_values *values, const struct dump_request *r,
                           const char *out)
{
    struct graph *g = cli_load(file, values);
    struct err e = {0};
    bool ok = g != NULL;
    if (ok && !(out ? dump_to_file(g, r, out, &e) : dump_write(g, r, stdout, &e)))
        ok = cli_error("%s", e.msg) == CLI_OK;
    graph_free(g);
    return ok ? CLI_OK : CLI_FAILED;
}

int cli_dump(int argc, char **argv)
{
    const char *file = NULL, *device = NULL, *form = NULL, *out = NULL;
    struct dump_request r = {.device = -1, .fuse = option_fuse()};
    struct cli_values values = {0};
    const struct cli_option options[] = {
        {"--bind", .take = cli_bind_option, .ctx = &values},
        {"--stage", .value = &r.stage},
        {"--device", .value = &device},
        {"--target", .value = &r.target},
        {"--schedules", .take = cli_schedules},
        {"--order", .take = cli_order},
        {"--format", .value = &form},
        {"-o", .value = &out},
        {"--unfused", .flag = &r.fuse, .set = false},
        {.value = &file},
        {0},
    };
    if (!cli_parse(argc, argv, options, NULL))
        return CLI_USAGE;
    if (out)
        dump_form_of(out, &r.form);
    if (form && !form_by_name(form, &r.form))
        return cli_error("no format is called '%s': there are text, dot and html", form), CLI_USAGE;
    if (!file || (!r.stage && r.form != DUMP_HTML))
        return cli_error("dump needs a file and --stage; see kiln help"), CLI_USAGE;
    if (r.stage && !dump_is_stage(r.stage))
        return cli_error("no stage is called '%s': there are %s", r.stage, dump_stage_names()), CLI_USAGE;
    /* graph stages keep the graph's device, code is made for one device */
    bool code = r.form == DUMP_HTML || device || !strcmp(r.stage, "scheduled") || !strcmp(r.stage, "schedules") ||
                !strcmp(r.stage, "llvm") || !strcmp(r.stage, "asm");
    if (code && !r.target && (r.device = cli_device(device)) < 0)
        return CLI_FAILED;
    return graph_dump_file(file, &values, &r, out);
}

/* ---- diff ---- */

static int graph_print_difference(const struct graph *a, const struct graph *b)
{
    struct text t = {0};
    struct graph_changes n;
    if (!graph_compare(a, b, &t, &n)) {
        mem_free(t.s);
        return cli_error("out of memory"), DIFF_TROUBLE;
    }
    if (t.len)
        fputs(t.s, stdout);
    printf("nodes: %u same, %u changed, %u removed, %u added\n", n.same, n.changed, n.removed, n.added);
    bool same = !t.len;
    mem_free(t.s);
    return same ? DIFF_SAME : DIFF_CHANGES;
}

int cli_diff(int argc, char **argv)
{
    const char *file[2] = {NULL, NULL};
    const struct cli_option options[] = {{.value = &file[0]}, {.value = &file[1], .needed = true}, {0}};
    if (!cli_parse(argc, argv, options, "diff needs two files"))
        return DIFF_TROUBLE;
    struct graph *g = cli_load(file[0], NULL), *h = g ? cli_load(file[1], NULL) : NULL;
    int status = h ? graph_print_difference(g, h) : DIFF_TROUBLE;
    graph_free(g);
    graph_free(h);
    return status;
}
