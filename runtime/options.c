/* Options by name, the rows of options.def.  An option that is not set has the value of its environment variable. */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

#define OPTION_UNSET (-1)
enum option_number {
#define OPTION(name, max, first, text) OPT_##name,
#include "options.def"
    OPTIONS
};
static const struct { const char *name; int64_t max; } options[OPTIONS] = {
#define OPTION(name, max, first, text) {#name, max},
#include "options.def"
};
static atomic_llong values[OPTIONS] = {
#define OPTION(name, max, first, text) first,
#include "options.def"
};

static int64_t option_value(enum option_number o) { return atomic_load_explicit(&values[o], memory_order_relaxed); }

static _Thread_local int fuse_here = -1;

void option_fuse_here(int fuse) { fuse_here = fuse; }

/* Sets an option that is not set to the environment's value, which is asked once: every run looks at some. */
static bool option_first(enum option_number o, bool value)
{
    long long unset = OPTION_UNSET;
    atomic_compare_exchange_strong(&values[o], &unset, value);
    return value;
}

bool option_fuse(void)
{
    int64_t v = fuse_here >= 0 ? fuse_here : option_value(OPT_fuse);
    return v >= 0 ? v : option_first(OPT_fuse, environment_switch("KILN_FUSE", true));
}

int option_order_of(const char *word)
{
    static const char *const words[] = {"schedule", "graph"}; /* as KL_ORDER_SCHEDULE, KL_ORDER_GRAPH */
    for (int i = 0; word && i < 2; i++)
        if (!strcmp(word, words[i])) return i;
    return -1;
}

bool option_graph_order(void)
{
    int64_t v = option_value(OPT_order);
    return (v >= 0 ? v : option_order_of(getenv("KILN_ORDER"))) == 1;
}

bool option_tune(void)
{
    int64_t v = option_value(OPT_tune);
    return v >= 0 ? v : option_first(OPT_tune, environment_switch("KILN_TUNE", false));
}

double option_tune_seconds(void) { return (double)option_value(OPT_tune_seconds); }

bool option_background(void) { return option_value(OPT_background_compile) && fuse_here < 0; }

bool option_arena_of_bounds(void) { return option_value(OPT_arena_of_bounds); }
bool option_elide_barriers(void) { return option_value(OPT_elide_barriers); }

int64_t option_cache_bytes(void) { return option_value(OPT_cache_bytes); }

int64_t option_program_bytes(void) { return option_value(OPT_program_bytes); }

static bool check_word(const char *word) { return word_listed(getenv("KILN_CHECK"), word); }

bool option_verify(void) { return check_word("1"); }

int option_check_nan(void)
{
    int64_t v = option_value(OPT_check_nan);
    if (v < 0) { /* read once, because every run checks it */
        long long unset = OPTION_UNSET;
        v = check_word("inf") ? CHECK_INFINITIES : check_word("nan") ? CHECK_NAN : 0;
        atomic_compare_exchange_strong(&values[OPT_check_nan], &unset, v);
    }
    return (int)v;
}

bool option_perf_map(void)
{
    int64_t v = option_value(OPT_perf_map);
    return v >= 0 ? v : environment_switch("KILN_PERF", false);
}

/* OPTIONS: there is none of that name, *e. */
static enum option_number option_by_name(const char *name, struct err *e)
{
    for (enum option_number o = 0; name && o < OPTIONS; o++)
        if (!strcmp(name, options[o].name)) return o;
    static const char names[] =
#define OPTION(name, max, first, text) ", " #name
#include "options.def"
        ;
    err_set(e, KL_ERR_ARGUMENT, "unknown option \"%s\": the options are %s", name ? name : "", names + 2);
    return OPTIONS;
}

bool option_set(const char *name, int64_t value, struct err *e)
{
    enum option_number o = option_by_name(name, e);
    if (o == OPTIONS) return false;
    if (value < 0 || value > options[o].max)
        return err_set(e, KL_ERR_ARGUMENT, "option %s: %lld is not in 0..%lld", name, (long long)value,
                       (long long)options[o].max);
    atomic_store(&values[o], value);
    if (o == OPT_threads) pool_set_threads((unsigned)value);
    if (o == OPT_order) schedules_changed(); /* traces look their programs up again */
    if (o == OPT_program_bytes) cache_limit_changed();
    return true;
}

bool option_get(const char *name, int64_t *value, struct err *e)
{
    enum option_number o = option_by_name(name, e);
    if (o == OPTIONS) return false;
    *value = o == OPT_fuse        ? option_fuse()
             : o == OPT_order     ? option_graph_order()
             : o == OPT_threads   ? (int64_t)pool_threads()
             : o == OPT_check_nan ? option_check_nan()
             : o == OPT_perf_map  ? option_perf_map()
             : o == OPT_tune      ? option_tune()
                                  : option_value(o);
    return true;
}
