/* Options "--name value" of the examples. */
#ifndef EXAMPLES_FLAGS_H
#define EXAMPLES_FLAGS_H
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct flag { const char *name, *what; double *number; const char **text; };

/* false: a message was written. */
static inline bool flags_parse(const struct flag *flags, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const struct flag *f = flags;
        char *end = argv[i];
        while (f->name && (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, f->name) != 0))
            f++;
        if (f->name && i + 1 < argc && f->text) {
            *f->text = argv[i + 1];
            continue;
        }
        if (f->name && i + 1 < argc)
            *f->number = strtod(argv[i + 1], &end);
        if (!f->name || end == argv[i] || *end || *f->number < 0) {
            fprintf(stderr, "%s: \"%s\"; options are:\n", argv[0], argv[i]);
            for (f = flags; f->name; f++)
                if (f->text)
                    fprintf(stderr, "  --%s TEXT    %s\n", f->name, f->what);
                else
                    fprintf(stderr, "  --%s N    %s (%g)\n", f->name, f->what, *f->number);
            return false;
        }
    }
    return true;
}

#endif
