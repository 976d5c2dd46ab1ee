/* Options by name; the environment gives their defaults. */
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>

static atomic_int fuse_option = -1; /* -1: not set, the environment decides */
static _Thread_local int fuse_here = -1;

void option_fuse_here(int fuse) { fuse_here = fuse; }

bool option_fuse(void)
{
    if (fuse_here >= 0) return fuse_here;
    int v = atomic_load_explicit(&fuse_option, memory_order_relaxed);
    if (v >= 0) return v;
    const char *env = getenv("KILN_FUSE");
    return !env || strcmp(env, "0") != 0;
}

static atomic_bool background;

bool option_background(void) { return atomic_load_explicit(&background, memory_order_relaxed) && fuse_here < 0; }

static atomic_bool keep_barriers;

bool option_join(void) { return !atomic_load_explicit(&keep_barriers, memory_order_relaxed); }

static atomic_llong cache_bytes = DISK_DEFAULT_BYTES;

int64_t option_cache_bytes(void) { return atomic_load_explicit(&cache_bytes, memory_order_relaxed); }

static bool unknown(const char *name, struct err *e)
{
    return err_set(e, KL_ERR_ARGUMENT, "unknown option \"%s\": the options are fuse, threads, cache_bytes, background_compile, "
                   "join", name ? name : "");
}

static bool out_of_range(const char *name, int64_t value, int64_t hi, struct err *e)
{
    return err_set(e, KL_ERR_ARGUMENT, "option %s: %lld is not in 0..%lld", name, (long long)value, (long long)hi);
}

bool option_set(const char *name, int64_t value, struct err *e)
{
    if (name && !strcmp(name, "fuse")) {
        if (value < 0 || value > 1) return out_of_range(name, value, 1, e);
        atomic_store(&fuse_option, (int)value);
        return true;
    }
    if (name && !strcmp(name, "threads")) {
        if (value < 0 || value > POOL_MAX_THREADS) return out_of_range(name, value, POOL_MAX_THREADS, e);
        pool_set_threads((unsigned)value);
        return true;
    }
    if (name && !strcmp(name, "background_compile")) {
        if (value < 0 || value > 1) return out_of_range(name, value, 1, e);
        atomic_store(&background, value);
        return true;
    }
    if (name && !strcmp(name, "join")) {
        if (value < 0 || value > 1) return out_of_range(name, value, 1, e);
        atomic_store(&keep_barriers, !value);
        return true;
    }
    if (name && !strcmp(name, "cache_bytes")) {
        if (value < 0) return out_of_range(name, value, INT64_MAX, e);
        atomic_store(&cache_bytes, value);
        return true;
    }
    return unknown(name, e);
}

bool option_get(const char *name, int64_t *value, struct err *e)
{
    if (name && !strcmp(name, "fuse")) *value = option_fuse();
    else if (name && !strcmp(name, "threads")) *value = pool_threads();
    else if (name && !strcmp(name, "background_compile")) *value = atomic_load(&background);
    else if (name && !strcmp(name, "cache_bytes")) *value = option_cache_bytes();
    else if (name && !strcmp(name, "join")) *value = option_join();
    else return unknown(name, e);
    return true;
}
