/* Listings of machine code: a disassembler's output for a file with the code. */
#define _GNU_SOURCE /* popen, mkstemp */
#include "disassembly.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *disassembler_path(struct disassembler *d)
{
    const char *given = getenv(d->variable);
    if (given || *d->path)
        return given ? given : d->path;
    FILE *f = popen(d->search, "r");
    if (!f || !fgets(d->path, sizeof d->path, f))
        strcpy(d->path, "-");
    d->path[strcspn(d->path, "\n")] = 0;
    if (f)
        pclose(f);
    return d->path;
}

bool listing_open(struct listing *l, struct disassembler *d, const void *code, uint64_t size)
{
    char command[1200];
    *l = (struct listing){"/tmp/kiln-structure-XXXXXX", NULL};
    int fd = mkstemp(l->file);
    bool ok = fd >= 0 && write(fd, code, size) == (ssize_t)size;
    if (fd >= 0)
        close(fd);
    snprintf(command, sizeof command, "%s %s %s", disassembler_path(d), d->option, l->file);
    l->text = ok ? popen(command, "r") : NULL;
    return l->text;
}

bool listing_close(struct listing *l)
{
    bool ok = l->text && !pclose(l->text);
    unlink(l->file);
    return ok;
}
