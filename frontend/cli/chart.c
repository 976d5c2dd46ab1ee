/* kiln chart: draws benchmark results (JSON) as a chart. */
#include "cli.h"
#include "runtime/measure/measure.h"
#include <errno.h>
#include <string.h>

int cli_write(const char *path, void (*write)(const struct results *, FILE *), const struct results *t)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "w") : stdout;
    if (!f)
        return cli_error("%s: %s", path, strerror(errno));
    write(t, f);
    bool ok = !fflush(f) && !ferror(f);
    if (f != stdout)
        ok &= !fclose(f);
    return ok ? CLI_OK : cli_error("%s: cannot write it", path);
}

int cli_file_to(struct cli_args *a, const char *command, const char **file, const char **out)
{
    *file = NULL;
    *out = "-";
    while (cli_next(a)) {
        if (cli_is(a, "-o"))
            *out = cli_value(a);
        else if (!a->option && !*file)
            *file = a->value;
        else
            return cli_unexpected(a);
    }
    if (!a->failed && !*file)
        cli_error("%s needs a file; see kiln help", command);
    return a->failed || !*file ? CLI_USAGE : CLI_OK;
}

int cli_chart(int argc, char **argv)
{
    struct cli_args a = {.argc = argc, .argv = argv};
    const char *file, *out;
    int status = cli_file_to(&a, "chart", &file, &out);
    if (status != CLI_OK)
        return status;
    size_t len;
    struct err e = {0};
    struct results t = {0};
    char *text = cli_read(file, &len);
    if (!text)
        return CLI_FAILED;
    bool ok = results_parse(&t, text, len, strcmp(file, "-") ? file : "stdin", &e);
    status = ok ? cli_write(out, results_svg, &t) : (fprintf(stderr, "%s\n", e.msg), CLI_FAILED);
    mem_free(text);
    results_free(&t);
    return status;
}
