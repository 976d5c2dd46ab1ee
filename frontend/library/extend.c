/* The functions of <kiln/extend.h>: errors, call sites, composites, memory, numbers as text. */
#include "frontend/frontend.h"
#include <kiln/extend.h>
#include <stdarg.h>

kl_status kl_failf(const kl_site *site, kl_status code, const char *format, ...)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    const kl_site *outer = t->site;
    t->site = site ? site : outer;
    va_list ap;
    va_start(ap, format);
    code = fail_with(t, code, format, ap);
    va_end(ap);
    t->site = outer;
    return code;
}

kl_status kl_operand(const char *op, const char *what, kl_tensor h, char *shape, size_t size)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, op, what, h, &v))
        return t ? (t->tracing ? t->trace->err.code : t->last.code) : KL_ERR_MEMORY;
    if (shape)
        shape_text(&v.shape, shape, size);
    return KL_OK;
}

kl_tensor kl_poison(void)
{
    struct thread *t = thread_self();
    return t ? poison(t) : kl_none;
}

const kl_site *kl_set_call_site(const kl_site *site)
{
    const kl_site *outer;
    call_begin(site, &outer);
    return outer;
}

kl_status kl_composite_begin(const char *name)
{
    return compose_begin(name) ? KL_OK : KL_ERR_MEMORY;
}

void kl_composite_end(int64_t nresults, const kl_tensor *results)
{
    struct thread *t = thread_self();
    if (t && t->depth == t->floor.composites)
        fail(t, KL_ERR_ARGUMENT, "composite_end: no composite is open in this function or suspension");
    else if (t)
        compose_end_all(t, results, results ? count_or_none(nresults) : 0);
    if (t)
        counts_valid(t, "composite_end", COUNTS({"nresults", nresults}));
}

void *kl_memory_alloc(size_t bytes) { return mem_alloc(bytes); }
void *kl_memory_grow(void *p, size_t old_bytes, size_t new_bytes) { return mem_grow(p, old_bytes, new_bytes); }
void kl_memory_free(void *p) { mem_free(p); }

int kl_format(char *text, size_t size, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = format_text_v(text, size, format, ap);
    va_end(ap);
    return n;
}

double kl_parse_f64(const char *text, char **end) { return parse_double(text, end); }
