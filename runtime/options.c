/* Options by name; the environment gives their defaults. */
#include "runtime.h"
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

static atomic_llong program_bytes_kept = PROGRAM_DEFAULT_BYTES;

int64_t option_program_bytes(void) { return atomic_load_explicit(&program_bytes_kept, memory_order_relaxed); }

/* KILN_CHECK: words with commas between. */
static bool check_word(const char *word)
{
    size_t n = strlen(word);
    for (const char *p = getenv("KILN_CHECK"); p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && !strncmp(p, word, n)) return true;
    return false;
}

bool option_verify(void) { return check_word("1"); }

static atomic_int check_nan = -1, perf_map = -1; /* -1: not set */

int option_check_nan(void)
{
    int v = atomic_load_explicit(&check_nan, memory_order_relaxed);
    if (v < 0) { /* asked once: it is looked at in every run */
        v = check_word("inf") ? CHECK_INFINITIES : check_word("nan") ? CHECK_NAN : 0;
        atomic_compare_exchange_strong(&check_nan, &(int){-1}, v);
    }
    return v;
}

bool option_perf_map(void)
{
    int v = atomic_load_explicit(&perf_map, memory_order_relaxed);
    const char *env = v < 0 ? getenv("KILN_PERF") : NULL;
    return v < 0 ? env && !strcmp(env, "1") : v;
}

static bool unknown(const char *name, struct err *e)
{
    return err_set(
        e, KL_ERR_ARGUMENT,
        "unknown option \"%s\": the options are fuse, threads, cache_bytes, program_bytes, background_compile, "
        "join, check_nan, perf_map",
        name ? name : "");
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
    if (name && !strcmp(name, "check_nan")) {
        if (value < 0 || value > CHECK_INFINITIES) return out_of_range(name, value, CHECK_INFINITIES, e);
        atomic_store(&check_nan, (int)value);
        return true;
    }
    if (name && !strcmp(name, "perf_map")) {
        if (value < 0 || value > 1) return out_of_range(name, value, 1, e);
        atomic_store(&perf_map, (int)value);
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
    if (name && !strcmp(name, "program_bytes")) {
        if (value < 0) return out_of_range(name, value, INT64_MAX, e);
        atomic_store(&program_bytes_kept, value);
        cache_limit_changed();
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
    else if (name && !strcmp(name, "program_bytes")) *value = option_program_bytes();
    else if (name && !strcmp(name, "check_nan")) *value = option_check_nan();
    else if (name && !strcmp(name, "perf_map")) *value = option_perf_map();
    else if (name && !strcmp(name, "join")) *value = option_join();
    else return unknown(name, e);
    return true;
}
