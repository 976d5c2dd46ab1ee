/* kiln chart: draws benchmark results (JSON) as a chart. */
#include "cli.h"
#include "runtime/measure/measure.h"
#include <errno.h>
#include <string.h>

/* Writes results to a file, "-" for standard output; returns the exit code. */
static int cli_write(const char *path, void (*write)(const struct results *, FILE *), const struct results *t)
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

int cli_chart(int argc, char **argv)
{
    const char *file = NULL, *out = "-";
    if (!cli_parse(argc, argv, (struct cli_option[]){{"-o", .value = &out}, {.value = &file, .needed = true}, {0}},
                   "chart needs a file"))
        return CLI_USAGE;
    size_t len;
    struct err e = {0};
    struct results t = {0};
    char *text = cli_read(file, &len);
    if (!text)
        return CLI_FAILED;
    bool ok = results_parse(&t, text, len, strcmp(file, "-") ? file : "stdin", &e);
    int status = ok ? cli_write(out, results_svg, &t) : (fprintf(stderr, "%s\n", e.msg), CLI_FAILED);
    mem_free(text);
    results_free(&t);
    return status;
}
