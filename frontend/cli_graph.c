/* kiln opt: passes on a graph.  kiln dump: one stage between a graph and its machine code. */
#include "frontend/cli.h"
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
        if (pass_run(pass, g, false) < 0) {
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
    struct cli_args a = {.argc = argc, .argv = argv};
    const char *file = NULL, *passes = NULL, *out = NULL;
    struct cli_values values = {0};
    while (cli_next(&a)) {
        if (cli_is(&a, "--bind"))
            cli_bind_option(&values, &a);
        else if (cli_is(&a, "-p"))
            passes = cli_value(&a);
        else if (cli_is(&a, "-o"))
            out = cli_value(&a);
        else if (!a.option && !file)
            file = a.value;
        else
            return cli_unexpected(&a);
    }
    if (a.failed || !file)
        return a.failed ? CLI_USAGE : (cli_error("opt needs a file; see kiln help"), CLI_USAGE);
    struct graph *g = cli_load(file);
    bool ok = g && cli_set_symbols(g, &values) && (!values.n || cli_bind(g)) &&
              (passes ? run_list(g, passes) : run_pipeline(g));
    int status = ok ? print_to(g, out) : CLI_FAILED;
    graph_free(g);
    return status;
}

/* ---- dump ---- */

struct wanted { const char *stage; bool fused, found; };

static void print_stage(void *ctx, const char *stage, const struct graph *g)
{
    struct wanted *w = ctx;
    if (strcmp(w->stage, stage))
        return;
    w->found = true;
    char *why = w->fused && !strcmp(stage, "fused") ? fuse_explain(g) : NULL;
    if (why)
        fputs(why, stdout);
    mem_free(why);
    graph_print(g, stdout);
}

static bool print_code(const struct program *p, const struct backend *b, enum emit_kind kind, struct err *e)
{
    for (uint32_t i = 0; i < p->nkernel; i++) {
        struct code text = {0};
        bool ok = b->compile(p->kernel[i], kind, &text, e);
        if (ok)
            fwrite(text.bytes, 1, text.size, stdout);
        mem_free(text.bytes);
        if (!ok)
            return false;
    }
    return true;
}

/* The stages behind the passes: kernels as loop IR, LLVM IR and assembly. */
static bool print_kernels(const struct graph *g, int device, const char *stage, struct err *e)
{
    struct caps caps;
    const struct backend *b = device_backend(device, &caps);
    if (!b)
        return err_set(e, KL_ERR_ARGUMENT, "device %s runs graphs as they are: it has no stage %s",
                       device_name(device), stage);
    struct program *p = program_plan(g, &caps, false, e);
    bool ok = p;
    if (ok && !strcmp(stage, "scheduled"))
        for (uint32_t i = 0; i < p->nkernel; i++)
            ok &= kernel_print(p->kernel[i], stdout);
    else
        ok = ok && print_code(p, b, strcmp(stage, "asm") ? EMIT_LLVM : EMIT_ASM, e);
    program_free(p);
    return ok;
}

/* Kernels made for a GPU, in its language. */
static bool print_source(const struct graph *g, const char *target, const char *stage, struct err *e)
{
    struct caps caps;
    struct program *p = gpu_caps(target, &caps, e) ? program_plan(g, &caps, false, e) : NULL;
    bool ok = p && gpu_print((const struct kernel *const *)p->kernel, p->nkernel, target, stage, stdout, e);
    program_free(p);
    return ok;
}

static bool is_code_stage(const char *s)
{
    return !strcmp(s, "scheduled") || !strcmp(s, "source") || !strcmp(s, "llvm") || !strcmp(s, "asm");
}

int cli_dump_stage(struct graph *g, const char *stage, const char *target, const char *device, bool fuse)
{
    struct wanted w = {.stage = stage, .fused = fuse};
    struct err e = {0};
    if (!passes_run(g, &(struct pass_options){.fuse = fuse, .verify = true, .dump = print_stage, .ctx = &w}))
        return cli_error("%s", g->err.msg);
    if (w.found)
        return CLI_OK;
    if (!is_code_stage(stage)) {
        cli_error("no stage is called '%s'; see kiln help", stage);
        return CLI_USAGE;
    }
    if (target || !strcmp(stage, "source"))
        return print_source(g, target, stage, &e) ? CLI_OK : cli_error("%s", e.msg);
    int d = cli_device(device);
    if (d < 0)
        return CLI_FAILED;
    return print_kernels(g, d, stage, &e) ? CLI_OK : cli_error("%s", e.msg);
}

int cli_dump(int argc, char **argv)
{
    struct cli_args a = {.argc = argc, .argv = argv};
    const char *file = NULL, *stage = NULL, *target = NULL, *device = NULL;
    bool fuse = option_fuse();
    struct cli_values values = {0};
    while (cli_next(&a)) {
        if (cli_is(&a, "--bind"))
            cli_bind_option(&values, &a);
        else if (cli_is(&a, "--stage"))
            stage = cli_value(&a);
        else if (cli_is(&a, "--device"))
            device = cli_value(&a);
        else if (cli_is(&a, "--target"))
            target = cli_value(&a);
        else if (cli_is(&a, "--unfused"))
            fuse = false;
        else if (!a.option && !file)
            file = a.value;
        else
            return cli_unexpected(&a);
    }
    if (a.failed)
        return CLI_USAGE;
    if (!file || !stage) {
        cli_error("dump needs a file and --stage; see kiln help");
        return CLI_USAGE;
    }
    struct graph *g = cli_load(file);
    bool ok = g && cli_set_symbols(g, &values);
    int status = ok ? cli_dump_stage(g, stage, target, device, fuse) : CLI_FAILED;
    graph_free(g);
    return status;
}
