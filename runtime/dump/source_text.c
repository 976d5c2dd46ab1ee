/* Reads lines of the user's source files, which a page shows beside the nodes that they record.
 *
 * File names come from call sites; a graph read from text may contain any name.  So only regular files with the ending
 * of a programming language's source are read. */
#include "dump.h"
#include "ir/regular_file.h"

enum { FILE_MAX = 8 << 20, LINE_MAX = 200 };

static bool is_source_name(const char *name)
{
    static const char *const ending[] = {"c", "h", "cc", "cpp", "cxx", "hpp", "hxx", "inc", "py", "rs", "go", "zig",
                                         "lua", "jl", "m"};
    const char *dot = strrchr(name, '.');
    bool found = false;
    for (size_t i = 0; dot && i < sizeof ending / sizeof *ending; i++)
        found |= !strcmp(dot + 1, ending[i]);
    return found;
}

void source_close(struct source_file *f)
{
    mem_free(f->name);
    mem_free(f->text);
    *f = (struct source_file){0};
}

/* A file that cannot be read is remembered without text, so that it is opened only once. */
static void source_open(struct source_file *f, const char *name)
{
    char why[512];
    int64_t size = 0;
    source_close(f);
    f->name = mem_text(name);
    if (!f->name)
        return;
    int fd = is_source_name(name) ? regular_file_open(name, name, 0, &size, why, sizeof why) : -1;
    FILE *in = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (in && size <= FILE_MAX && (f->text = mem_alloc((size_t)size + 1)))
        f->len = fread(f->text, 1, (size_t)size, in);
    if (fd >= 0 && !in)
        close(fd);
    if (in)
        fclose(in);
}

const char *source_line(struct source_file *f, const char *name, int line, size_t *len)
{
    *len = 0;
    if (!f->name || strcmp(f->name, name))
        source_open(f, name);
    const char *at = f->text, *end = at ? at + f->len : NULL;
    for (int i = 1; at && i < line; i++) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at ? at + 1 : NULL;
    }
    if (!at || at == end)
        return NULL;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    *len = (size_t)((stop ? stop : end) - at);
    while (*len && (at[*len - 1] == '\r' || at[*len - 1] == ' '))
        --*len;
    if (*len > LINE_MAX)
        *len = LINE_MAX;
    return at;
}
