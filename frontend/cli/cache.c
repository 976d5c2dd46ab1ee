/* kiln cache: lists, verifies and removes kernels kept on disk. */
#include "cli.h"
#include "runtime/runtime.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int cache_report(bool ok, const struct err *e) { return ok ? CLI_OK : cli_error("%s", e->msg); }

static void cache_show_entry(const struct disk_entry *x, const char *name)
{
    char when[32] = "?";
    time_t t = (time_t)(x->used / 1000000000);
    struct tm tm;
    if (localtime_r(&t, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    printf("%.32s  %s %10lld  %s\n", x->file, when, (long long)x->bytes, name);
}

/* Lists the entries, the most recently used last; verify: only damaged ones. */
static int cache_list(bool verify)
{
    struct disk_entries all;
    struct err e = {0};
    char path[PATH_MAX] = "";
    bool ok = disk_folder(path, sizeof path, &e) && disk_list(&all, &e);
    uint32_t damaged = 0, entries = 0;
    for (uint32_t i = 0; ok && i < all.n; i++) {
        struct disk_entry *x = &all.v[i];
        struct err why = {0};
        if (x->temporary) continue;
        entries++;
        bool whole = disk_verify(x, &why);
        damaged += !whole;
        if (!whole) cache_show_entry(x, why.msg);
        else if (!verify) cache_show_entry(x, x->name);
    }
    if (!ok) return cache_report(ok, &e);
    printf("%u entries, %u damaged, %lld bytes in %s\n", entries, damaged, (long long)all.bytes, path);
    mem_free(all.v);
    return damaged && verify ? CLI_FAILED : CLI_OK;
}

static int cache_prune(int64_t max)
{
    struct disk_entries gone;
    struct err e = {0};
    if (!disk_prune(max, &gone, &e)) return cache_report(false, &e);
    printf("%u files removed, %lld bytes\n", gone.n, (long long)gone.bytes);
    return CLI_OK;
}

static bool read_bytes(const char *s, int64_t *v)
{
    char *end;
    *v = strtoll(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && *v != LLONG_MAX;
}

int cli_cache(int argc, char **argv)
{
    struct cli_args a = {.argc = argc, .argv = argv};
    const char *what = NULL, *max = NULL;
    int64_t bytes = DISK_DEFAULT_BYTES;
    while (cli_next(&a)) {
        if (cli_is(&a, "--max") && what && !strcmp(what, "prune")) max = cli_value(&a);
        else if (!a.option && !what) what = a.value;
        else return cli_unexpected(&a);
    }
    if (a.failed) return CLI_USAGE;
    if (max && !read_bytes(max, &bytes)) return cli_error("--max: '%s' is no number of bytes", max), CLI_USAGE;
    if (what && !strcmp(what, "list")) return cache_list(false);
    if (what && !strcmp(what, "verify")) return cache_list(true);
    if (what && !strcmp(what, "prune")) return cache_prune(bytes);
    if (what && !strcmp(what, "clear")) return cache_prune(0);
    cli_error("cache %s: it is list, verify, prune or clear", what ? what : "needs a command");
    return CLI_USAGE;
}
