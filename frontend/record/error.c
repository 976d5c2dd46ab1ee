/* Errors of each thread, as text with the call site, and poison handles that carry an error. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* Removes what the text begins with, if that is `prefix` of n bytes. */
static void drop_prefix(char *text, const char *prefix, size_t n)
{
    if (n && !strncmp(text, prefix, n))
        memmove(text, text + n, strlen(text + n) + 1);
}

static void set_last(struct thread *t, kl_status code, const char *fmt, va_list ap)
{
    char *p = t->last.msg, *end = p + sizeof t->last.msg, line[420] = "";
    const kl_site *site = t->site;
    t->last.code = code;
    if (site && site->file)
        snprintf(line, sizeof line, "%.400s:%d: ", site->file, site->line);
    p += snprintf(p, (size_t)(end - p) / 2, "%s", line);
    if (*name_scope_path(t))
        p += snprintf(p, (size_t)(end - p) / 2, "%s: ", name_scope_path(t));
    if (t->composite)
        p += snprintf(p, (size_t)(end - p) / 2, "%s: ", t->composite);
    format_text_v(p, (size_t)(end - p), fmt, ap);
    drop_prefix(p, line, strlen(line)); /* of an error that is reported once more */
    size_t n = t->composite ? strlen(t->composite) : 0;
    if (n && !strncmp(p, t->composite, n) && !strncmp(p + n, ": ", 2))
        memmove(p, p + n + 2, strlen(p + n + 2) + 1); /* keeps the name once */
    if (code == KL_ERR_SHAPE || code == KL_ERR_TYPE || code == KL_ERR_DEVICE)
        operands_add_names(t, p, (size_t)(end - p));
    log_message(KL_LOG_ERROR, t->last.msg);
}

kl_status report(struct thread *t, kl_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_last(t, code, fmt, ap);
    va_end(ap);
    return code;
}

kl_status report_err(const struct err *e)
{
    struct thread *t = thread_self();
    return t ? report(t, e->code, "%s", e->msg) : KL_ERR_MEMORY;
}

/* Records an error of the thread and of its trace; a failed trace keeps its first error. */
kl_status fail_with(struct thread *t, kl_status code, const char *fmt, va_list ap)
{
    if (!t)
        return KL_ERR_MEMORY;
    struct trace *tr = thread_trace(t);
    if (tr && tr->err.code)
        return tr->err.code;
    set_last(t, code, fmt, ap);
    if (tr)
        trace_error(t);
    return code;
}

kl_status fail(struct thread *t, kl_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    code = fail_with(t, code, fmt, ap);
    va_end(ap);
    return code;
}

const struct named_count *first_bad_count(const struct named_count *counts)
{
    for (; counts->name; counts++)
        if (counts->n < 0 || counts->n > INT32_MAX)
            return counts;
    return NULL;
}

const char *bad_count_text(const struct named_count *bad, char *text, size_t size)
{
    snprintf(text, size, "%s is %" PRId64 "; it must be 0 to %d", bad->name, bad->n, INT32_MAX);
    return text;
}

bool counts_valid(struct thread *t, const char *op, const struct named_count *counts)
{
    char text[80];
    const struct named_count *bad = first_bad_count(counts);
    return !bad || fail(t, KL_ERR_ARGUMENT, "%s: %s", op, bad_count_text(bad, text, sizeof text)) == KL_OK;
}

/* In a failed trace all poison is one handle; outside of traces the caller of each function releases its handle. */
kl_tensor poison(struct thread *t)
{
    struct trace *tr = thread_trace(t);
    if (tr && tr->poison.id)
        return tr->poison;
    struct cause *c = mem_alloc(sizeof *c);
    if (!c)
        return kl_none;
    atomic_init(&c->refs, 1);
    c->err = t->last;
    struct entry *x;
    if (tr) {
        x = entry_new_temp(t, tr);
    } else {
        front_lock();
        x = entry_new();
        front_unlock();
    }
    if (!x) {
        mem_free(c);
        return kl_none;
    }
    x->kind = KIND_POISON;
    x->dtype = KL_DTYPE_COUNT;
    x->cause = c;
    kl_tensor h = entry_handle(x);
    if (tr)
        tr->poison = h;
    else
        scope_note(t, h);
    return h;
}

kl_tensor refuse(struct thread *t, kl_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_with(t, code, fmt, ap);
    va_end(ap);
    return poison(t);
}

kl_status kl_fail(kl_status code, const char *message)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (code <= KL_OK || code > KL_ERR_CANCELLED)
        code = KL_ERR_ARGUMENT;
    struct trace *tr = thread_trace(t);
    bool more = tr && tr->err.code && !strcmp(tr->err.msg, t->last.msg);
    char copy[sizeof t->last.msg]; /* `message` may point into t->last */
    snprintf(copy, sizeof copy, "%s", message ? message : "");
    if (!more)
        return fail(t, code, "%s", copy);
    report(t, code, "%s", copy);
    tr->err = t->last;
    return code;
}

const char *kl_last_error(void)
{
    struct thread *t = thread_self();
    return t ? t->last.msg : "out of memory";
}

kl_status kl_last_error_code(void)
{
    struct thread *t = thread_self();
    return t ? t->last.code : KL_ERR_MEMORY;
}

void kl_clear_error(void)
{
    struct thread *t = thread_self();
    if (t) {
        t->last.code = KL_OK;
        t->last.msg[0] = 0;
    }
}

const char *kl_status_name(kl_status status)
{
    return status_name(status);
}
