/* kiln compile: a graph's text to an object file and its C header. */
#include "cli.h"
#include "model.h"
#include "runtime/aot/object.h"
#include <string.h>

struct compile {
    const char *file, *object, *header, *weights, *emit;
    struct object_options options;
    struct cli_values values;
};

static int parse_args(struct compile *c, int argc, char **argv)
{
    struct cli_args a = {.argc = argc, .argv = argv};
    while (cli_next(&a)) {
        if (cli_is(&a, "-o"))
            c->object = cli_value(&a);
        else if (cli_is(&a, "--header"))
            c->header = cli_value(&a);
        else if (cli_is(&a, "--prefix"))
            c->options.prefix = cli_value(&a);
        else if (cli_is(&a, "--target") || cli_is(&a, "--cpu"))
            c->options.cpu = cli_value(&a);
        else if (cli_is(&a, "--bind"))
            cli_bind_option(&c->values, &a);
        else if (cli_is(&a, "--schedules"))
            cli_schedules(&a);
        else if (cli_is(&a, "--weights"))
            c->weights = cli_value(&a);
        else if (cli_is(&a, "--emit"))
            c->emit = cli_value(&a);
        else if (cli_is(&a, "--unfused"))
            c->options.fuse = false;
        else if (!a.option && !c->file)
            c->file = a.value;
        else
            return cli_unexpected(&a);
    }
    if (!a.failed && c->emit && strcmp(c->emit, "object") && strcmp(c->emit, "c"))
        return cli_error("--emit is object or c, not '%s'", c->emit), CLI_USAGE;
    c->options.source = c->emit && !strcmp(c->emit, "c");
    bool named = c->header || c->options.source; /* C declares itself what it defines */
    if (!a.failed && (!c->file || !c->object || !named))
        cli_error("compile needs a file, -o and --header (C code needs no header); see kiln help");
    if (!a.failed && c->weights && strcmp(c->weights, "inside") && strcmp(c->weights, "file"))
        return cli_error("--weights is inside or file, not '%s'", c->weights), CLI_USAGE;
    if (!a.failed && c->weights && c->file && !cli_is_model(c->file))
        return cli_error("--weights: only a model has them; a graph's states are the caller's"), CLI_USAGE;
    return !a.failed && c->file && c->object && named ? CLI_OK : CLI_USAGE;
}

/* Beside the object: its name with another ending. */
static void weights_path(const char *object, char *to, size_t size)
{
    size_t n = strlen(object);
    bool o = n > 2 && (!strcmp(object + n - 2, ".o") || !strcmp(object + n - 2, ".c"));
    snprintf(to, size, "%.*s.weights", (int)(o ? n - 2 : n), object);
}

/* No array says what a symbol is. */
static bool bind_symbols(struct graph *g)
{
    for (uint32_t i = 0; g->symbols && i < g->symbols->n; i++) {
        const struct symbol *s = &g->symbols->v[i];
        if (s->low != s->high)
            return cli_error("symbol %s has no value: give --bind %s=NUMBER", s->name, s->name), false;
    }
    return cli_bind(g);
}

int cli_compile(int argc, char **argv)
{
    struct compile c = {.options.fuse = option_fuse()};
    int status = parse_args(&c, argc, argv);
    if (status)
        return status;
    struct object_made made;
    struct err e = {0};
    if (cli_is_model(c.file)) {
        char weights[4096];
        bool apart = c.weights && !strcmp(c.weights, "file");
        weights_path(c.object, weights, sizeof weights);
        kl_compile_options o = {c.options.prefix, c.options.cpu, !apart, apart ? weights : NULL, c.emit};
        option_fuse_here(c.options.fuse);
        return cli_model_compile(c.file, &c.values, c.object, c.header, &o) ? CLI_OK : CLI_FAILED;
    }
    struct graph *g = cli_load(c.file, &c.values);
    status = CLI_FAILED;
    if (g && bind_symbols(g)) {
        if (!object_make(g, &c.options, &made, &e)) {
            cli_error("%s", e.msg);
        } else {
            if (object_write(&made, c.object, c.header, NULL, &e)) {
                printf("%s: %s_run for %s: %u kernels, %zu bytes; %lld bytes of temporaries\n", c.object, made.prefix,
                       made.cpu, made.kernels, made.code.size, (long long)made.workspace_bytes);
                status = CLI_OK;
            } else {
                cli_error("%s", e.msg);
            }
            object_made_free(&made);
        }
    }
    graph_free(g);
    return status;
}
