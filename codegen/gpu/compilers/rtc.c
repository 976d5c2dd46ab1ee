/* Compiling through NVRTC or hiprtc. */
#include "rtc.h"

static bool is_open(struct rtc *c, struct err *e)
{
    pthread_once(&c->once, c->open);
    return !c->failure.code || err_set(e, c->failure.code, "%s", c->failure.msg);
}

bool rtc_version(struct rtc *c, char *out, size_t size, struct err *e)
{
    int major = 0, minor = 0;
    if (!is_open(c, e))
        return false;
    if (c->version(&major, &minor))
        return err_set(e, KL_ERR_DEVICE, "%s does not say its version", c->name);
    snprintf(out, size, "%s %d.%d", c->name, major, minor);
    return true;
}

static bool rtc_get_text(const struct rtc *c, rtc_program p, rtc_size *size, rtc_text *text, struct code *out,
                         struct err *e)
{
    if (size(p, &out->size) || !out->size)
        return err_set(e, KL_ERR_COMPILE, "%s gives no code", c->name);
    if (!(out->bytes = mem_alloc(out->size)))
        return err_set(e, KL_ERR_MEMORY, "out of memory compiling with %s", c->name);
    return !text(p, out->bytes) || err_set(e, KL_ERR_COMPILE, "%s gives no code", c->name);
}

static bool rtc_report_log(const struct rtc *c, rtc_program p, struct err *e)
{
    size_t size = 0;
    char *log = c->log_size(p, &size) ? NULL : mem_alloc(size + 1);
    bool ok = gpu_refused(c->name, log && !c->log(p, log) ? log : "it does not say why", e);
    mem_free(log);
    return ok;
}

bool rtc_compile(struct rtc *c, const char *source, const char *arch, enum gpu_output what, struct code *out,
                 struct err *e)
{
    char target[64];
    const char *option[1 + RTC_OPTIONS] = {target};
    rtc_program p = NULL;
    int n = 1;
    *out = (struct code){0};
    if (!is_open(c, e))
        return false;
    if (what == GPU_ASSEMBLY && !c->assembly)
        return err_set(e, KL_ERR_ARGUMENT, "%s gives binaries only, no assembly", c->name);
    snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
    for (; n <= RTC_OPTIONS && c->option[n - 1]; n++)
        option[n] = c->option[n - 1];
    bool ok = !c->create(&p, source, c->file, 0, NULL, NULL) ||
        err_set(e, KL_ERR_MEMORY, "%s makes no program", c->name);
    if (ok && c->compile(p, n, option))
        ok = rtc_report_log(c, p, e);
    else if (ok)
        ok = what == GPU_BINARY ? rtc_get_text(c, p, c->binary_size, c->binary, out, e)
            : rtc_get_text(c, p, c->assembly_size, c->assembly, out, e);
    if (p)
        c->destroy(&p);
    if (!ok) {
        mem_free(out->bytes);
        *out = (struct code){0};
    }
    return ok;
}
