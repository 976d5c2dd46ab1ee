/* Dumps: the stages of a program as it is built, as text files <dir>/<trace>.<stage>.<ext>.  A file that cannot
 * be written is no error of the run. */
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct dump {
    char dir[1024];
    char trace[64];
    const char *stages; /* comma-separated; NULL: all */
};

static _Thread_local char requested[1024]; /* by dump_next_to; "" for none */

void dump_next_to(const char *dir)
{
    snprintf(requested, sizeof requested, "%s", dir ? dir : "");
}

struct dump *dump_begin(const char *trace)
{
    const char *stages = getenv("KILN_DUMP"), *dir = getenv("KILN_DUMP_DIR");
    if (!*requested && !(stages && *stages)) return NULL;
    struct dump *d = mem_alloc(sizeof *d);
    if (!d) return NULL;
    d->stages = *requested ? NULL : stages;
    snprintf(d->dir, sizeof d->dir, "%s", *requested ? requested : dir && *dir ? dir : ".");
    requested[0] = 0;
    mkdir(d->dir, 0777); /* if it is there already, so much the better */
    snprintf(d->trace, sizeof d->trace, "%s", *trace ? trace : "graph");
    for (char *p = d->trace; *p; p++) /* the name becomes part of a file's */
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", *p)) *p = '_';
    return d;
}

static bool wants(const struct dump *d, const char *stage)
{
    if (!d->stages) return true;
    size_t n = strlen(stage);
    for (const char *p = d->stages; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && !strncmp(p, stage, n)) return true;
    return false;
}

static FILE *open_stage(const struct dump *d, const char *stage, const char *ext)
{
    char path[sizeof d->dir + sizeof d->trace + 32];
    snprintf(path, sizeof path, "%s/%s.%s.%s", d->dir, d->trace, stage, ext);
    return wants(d, stage) ? fopen(path, "w") : NULL;
}

void dump_graph(void *dump, const char *stage, const struct graph *g)
{
    FILE *f = open_stage(dump, stage, "kir");
    if (!f) return;
    char *why = option_fuse() && !strcmp(stage, "fused") ? fuse_explain(g) : NULL;
    if (why) fputs(why, f);
    mem_free(why);
    graph_print(g, f);
    fclose(f);
}

static void dump_code(const struct dump *d, const struct program *p, const struct backend *b, enum emit_kind kind)
{
    FILE *f = kind == EMIT_LLVM ? open_stage(d, "llvm", "ll") : open_stage(d, "asm", "s");
    if (!f) return;
    for (uint32_t i = 0; i < p->nkernel; i++) {
        struct code text = {0};
        struct err e = {0};
        fprintf(f, "%s kernel %u: %s\n", kind == EMIT_LLVM ? ";" : "#", i, p->kernel[i]->name);
        if (b->compile(p->kernel[i], kind, &text, &e)) fwrite(text.bytes, 1, text.size, f);
        else fprintf(f, "%s\n", e.msg);
        mem_free(text.bytes);
    }
    fclose(f);
}

static void dump_schedules(const struct dump *d, const struct program *p, bool fuse)
{
    FILE *f = open_stage(d, "schedules", "txt");
    if (!f) return;
    char *s = schedules_text(p->g->name, !fuse, p->kernel, p->nkernel);
    if (s) fputs(s, f);
    mem_free(s);
    fclose(f);
}

void dump_program(struct dump *d, const struct program *p, const struct backend *b, bool fuse)
{
    dump_schedules(d, p, fuse);
    FILE *f = open_stage(d, "scheduled", "loop");
    if (f) {
        char *order = p->nkernel ? program_order(p) : NULL;
        if (order) fputs(order, f);
        mem_free(order);
        for (uint32_t i = 0; i < p->nkernel; i++) kernel_print(p->kernel[i], f);
        fclose(f);
    }
    if (!b) return;
    dump_code(d, p, b, EMIT_LLVM);
    dump_code(d, p, b, EMIT_ASM);
}

void dump_end(struct dump *d)
{
    mem_free(d);
}
