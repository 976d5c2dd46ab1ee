/* kiln compile: graphs and models to an object file and its C header, or to C. */
#include "cli.h"
#include "frontend/frontend.h"
#include "job.h"
#include "runtime/aot/object.h"
#include <string.h>

enum { MAX_FILES = 64 };

struct compile {
    const char *file[MAX_FILES];
    char name[MAX_FILES][64];      /* of the functions, as "NAME=FILE" gives it; "": the file's or graph's */
    const char *object, *header, *weights, *emit;
    unsigned nfile, models;
    struct object_options options;
    struct cli_values values;
};

/* FILE, or NAME=FILE. */
static void compile_take_file(struct cli_args *a, void *compile)
{
    struct compile *c = compile;
    const char *file = a->value;
    size_t name = !a->option ? strspn(file, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") : 0;
    if (!a->option && c->nfile < MAX_FILES) {
        if (name && name < sizeof *c->name && file[name] == '=') {
            memcpy(c->name[c->nfile], file, name);
            file += name + 1;
        }
        c->file[c->nfile++] = file;
    } else {
        a->failed = cli_unexpected(a) != CLI_OK;
    }
}

static int parse_args(struct compile *c, int argc, char **argv)
{
    const struct cli_option options[] = {
        {"-o", .value = &c->object},
        {"--header", .value = &c->header},
        {"--prefix", .value = &c->options.prefix},
        {"--target", .value = &c->options.cpu},
        {"--cpu", .value = &c->options.cpu},
        {"--bind", .take = cli_bind_option, .ctx = &c->values},
        {"--schedules", .take = cli_schedules},
        {"--weights", .value = &c->weights},
        {"--emit", .value = &c->emit},
        {"--unfused", .flag = &c->options.fuse, .set = false},
        {.take = compile_take_file, .ctx = c},
        {0},
    };
    if (!cli_parse(argc, argv, options, NULL))
        return CLI_USAGE;
    if (c->emit && strcmp(c->emit, "object") && strcmp(c->emit, "c"))
        return cli_error("--emit is object or c, not '%s'", c->emit), CLI_USAGE;
    c->options.source = c->emit && !strcmp(c->emit, "c");
    bool named = c->header || c->options.source; /* a C file contains its declarations */
    if (!c->nfile || !c->object || !named)
        return cli_error("compile needs a file, -o and --header (C code needs no header); see kiln help"), CLI_USAGE;
    if (c->weights && strcmp(c->weights, "inside") && strcmp(c->weights, "file"))
        return cli_error("--weights is inside or file, not '%s'", c->weights), CLI_USAGE;
    for (unsigned i = 0; i < c->nfile; i++)
        c->models += cli_is_model(c->file[i]);
    c->values.some = c->nfile > 1;
    if (c->weights && !c->models)
        return cli_error("--weights: only a model has them; a graph's states are the caller's"), CLI_USAGE;
    if (c->options.prefix && c->nfile > 1)
        return cli_error("--prefix is for one program; of several, NAME=FILE gives each a name"), CLI_USAGE;
    return CLI_OK;
}

/* The path of the weights: the object's with another ending. */
static void weights_path(const char *object, char *to, size_t size)
{
    size_t n = strlen(object);
    bool o = n > 2 && (!strcmp(object + n - 2, ".o") || !strcmp(object + n - 2, ".c"));
    snprintf(to, size, "%.*s.weights", (int)(o ? n - 2 : n), object);
}

static bool compile_add_graph(const struct compile *c, const char *file, const char *name, kl_object *object)
{
    struct err e = {0};
    struct object_options options = c->options;
    struct graph *g = cli_load(file, &c->values);
    bool ok = g && cli_bind(g);
    options.prefix = name;
    if (ok && !object_file_add(object_file_of(object), g, &options, &e))
        ok = !cli_error("%s", e.msg);
    graph_free(g);
    return ok;
}

static bool compile_finish(const struct compile *c, kl_object *object, const char *weights)
{
    struct err e = {0};
    struct object_made made;
    if (!object_file_finish(object_file_of(object), &made, &e))
        return cli_error("%s", e.msg), false;
    bool ok = object_write(&made, c->object, c->header, weights, &e);
    if (ok)
        printf("%s: %s for %s: %u kernels, %zu bytes; %lld bytes of temporaries%s%s\n", c->object, made.functions,
               made.cpu, made.kernels, made.code.size, (long long)made.workspace_bytes,
               c->models ? "; weights " : "", !c->models ? "" : weights ? weights : "inside");
    else
        cli_error("%s", e.msg);
    object_made_free(&made);
    return ok;
}

int cli_compile(int argc, char **argv)
{
    struct compile c = {.options.fuse = option_fuse()};
    int status = parse_args(&c, argc, argv);
    if (status)
        return status;
    char weights[4096];
    bool apart = c.weights && !strcmp(c.weights, "file");
    weights_path(c.object, weights, sizeof weights);
    option_fuse_here(c.options.fuse);
    kl_object *object = kl_object_new(&(kl_compile_options){.cpu = c.options.cpu, .weights_inside = !apart,
                                                           .weights_path = apart ? weights : NULL, .emit = c.emit});
    bool ok = object || (cli_error("%s", kl_last_error()), false);
    for (unsigned i = 0; i < c.nfile && ok; i++) {
        const char *name = *c.name[i] ? c.name[i] : c.options.prefix;
        ok = cli_is_model(c.file[i]) ? cli_model_compile(c.file[i], &c.values, object, name)
                                     : compile_add_graph(&c, c.file[i], name, object);
    }
    ok = ok && compile_finish(&c, object, apart ? weights : NULL);
    kl_object_free(object);
    return ok ? CLI_OK : CLI_FAILED;
}
