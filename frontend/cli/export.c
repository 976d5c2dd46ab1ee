/* kiln export: a graph's text as an ONNX model. */
#include "cli.h"
#include "frontend/export/export.h"

int cli_export(int argc, char **argv)
{
    struct cli_args a = {.argc = argc, .argv = argv};
    struct cli_values values = {0};
    const char *file = NULL, *out = NULL;
    while (cli_next(&a)) {
        if (cli_is(&a, "-o"))
            out = cli_value(&a);
        else if (cli_is(&a, "--bind"))
            cli_bind_option(&values, &a);
        else if (!a.option && !file)
            file = a.value;
        else
            return cli_unexpected(&a);
    }
    if (a.failed || !file || !out)
        return a.failed ? CLI_USAGE : (cli_error("export needs a file and -o; see kiln help"), CLI_USAGE);
    struct err e = {0};
    struct graph *g = cli_load(file, &values);
    bool ok = g && cli_bind(g);
    if (ok && !export_file(g, out, &e))
        ok = cli_error("%s: %s", file, e.msg) == CLI_OK;
    graph_free(g);
    return ok ? CLI_OK : CLI_FAILED;
}
