/* The library as a whole: version, options, counters, dtypes. */
#include "frontend/frontend.h"
#include <string.h>

const char *kl_version(void)
{
    return KILN_VERSION;
}

/* ---- options, counters, dumps ---- */

static kl_status option_result(bool ok, const struct err *e)
{
    return ok ? KL_OK : report_err(e);
}

kl_status kl_set_option(const char *name, int64_t value)
{
    struct err e;
    e.code = KL_OK;
    return option_result(option_set(name, value, &e), &e);
}

kl_status kl_get_option(const char *name, int64_t *value)
{
    struct err e;
    e.code = KL_OK;
    if (!value)
        return option_result(err_set(&e, KL_ERR_ARGUMENT, "get_option: value is NULL"), &e);
    return option_result(option_get(name, value, &e), &e);
}

kl_status kl_set_schedules(const char *text)
{
    struct err e;
    e.code = KL_OK;
    text = text ? text : "";
    return option_result(schedules_set(text, strlen(text), "schedules", &e), &e);
}

int64_t kl_counter(const char *name)
{
#define COUNTER(counter, text)           \
    if (name && !strcmp(name, #counter)) \
        return (int64_t)atomic_load(&counters.counter);
#include "runtime/counters.def"
    return -1;
}

const char *kl_cache_off_reason(void)
{
    struct thread *t = thread_self();
    if (!t)
        return "out of memory";
    t->cache_off.code = KL_OK;
    return disk_accepts(&t->cache_off) ? "" : t->cache_off.msg;
}

void kl_dump_next(const char *dir)
{
    dump_next_to(dir);
}

/* The graph of a trace, with the device and the fusion option of its run; NULL: *e. */
static struct graph *graph_to_dump(struct thread *t, const char *name, struct dump_request *r, struct err *e)
{
    const struct exec *x = name ? exec_named(name) : NULL;
    struct graph *g = NULL;
    if (x) {
        r->device = x->device;
        r->fuse = x->fuse;
        r->times = atomic_load(&((struct exec *)x)->times);
        g = graph_clone(x->captured);
        exec_unref(x); /* with times it stays */
    } else if (name) {
        err_set(e, KL_ERR_ARGUMENT, "no trace of the name \"%s\" has run", name);
    } else if (!t->tracing) {
        err_set(e, KL_ERR_TRACE, "no trace is open");
    } else if (trace_is_refused(t)) {
        *e = t->trace->err;
    } else {
        g = trace_so_far(t->trace, e);
    }
    if (!g)
        err_set(e, KL_ERR_MEMORY, "out of memory");
    return g;
}

kl_status kl_dump(const char *trace, const char *stage, const char *path)
{
    struct thread *t = thread_self();
    struct dump_request r = {.stage = stage, .device = -1, .fuse = option_fuse()};
    struct err e;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, "dump"))
        return KL_ERR_TRACE;
    if (!path)
        return report(t, KL_ERR_ARGUMENT, "dump: path is NULL");
    dump_form_of(path, &r.form);
    if (r.form != DUMP_HTML && (!stage || !dump_is_stage(stage)))
        return report(t, KL_ERR_ARGUMENT, "dump: no stage is called \"%s\": there are %s", stage ? stage : "",
                      dump_stage_names());
    struct graph *g = graph_to_dump(t, trace, &r, &e);
    bool ok = g && dump_to_file(g, &r, path, &e);
    graph_free(g);
    return ok ? KL_OK : report(t, e.code, "dump: %s", e.msg);
}

/* ---- dtypes ---- */

const char *kl_dtype_name(kl_dtype dtype)
{
    return (unsigned)dtype < KL_DTYPE_COUNT ? dtype_name(dtype) : "none";
}

size_t kl_dtype_size(kl_dtype dtype)
{
    return (unsigned)dtype < KL_DTYPE_COUNT ? dtype_size(dtype) : 0;
}
