/* The library as a whole: version, devices, options, counters, dtypes. */
#include "frontend.h"
#include <string.h>

const char *kl_version(void)
{
    return "0.1.0";
}

/* ---- devices ---- */

bool device_valid(kl_device d)
{
    return d.id >= 1 && d.id <= DEVICE_KINDS;
}

static kl_device found(int index, const struct err *e)
{
    if (index >= 0)
        return device_of((unsigned)index);
    report_err(e);
    return (kl_device){0};
}

kl_device kl_device_default(void)
{
    struct err e;
    const char *why;
    e.code = KL_OK;
    return found(device_default(&why, &e), &e);
}

kl_device kl_device_named(const char *name)
{
    struct err e;
    e.code = KL_OK;
    return found(device_find(name, &e), &e);
}

const char *kl_device_name(kl_device d)
{
    return device_valid(d) ? device_name(device_index(d)) : "none";
}

const char *kl_device_fallback_reason(void)
{
    struct err e;
    const char *why;
    e.code = KL_OK;
    device_default(&why, &e);
    return why;
}

/* Programs run to their end inside the call that submits them, so there is nothing left to wait for. */
kl_status kl_sync(kl_device d)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    return device_valid(d) ? KL_OK : report(t, NULL, KL_ERR_DEVICE, "sync: %u is no device", d.id);
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
#define X(counter)                      \
    if (name && !strcmp(name, #counter)) \
        return (int64_t)atomic_load(&counters.counter);
    COUNTERS(X)
#undef X
    return -1;
}

const char *kl_cache_off_reason(void)
{
    static _Thread_local struct err e;
    char path[4096];
    e.code = KL_OK;
    return disk_folder(path, sizeof path, &e) ? "" : e.msg;
}

void kl_dump_next(const char *dir)
{
    dump_next_to(dir);
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
