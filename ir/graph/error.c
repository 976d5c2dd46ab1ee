/* Errors are values: the first one is kept, later ones are ignored. */
#include "ir/ir.h"
#include <stdarg.h>

bool err_set_v(struct err *e, kl_status code, const char *fmt, va_list ap)
{
    if (e->code != KL_OK)
        return false;
    e->code = code;
    e->call = e->inst = 0;
    e->field = NULL;
    format_text_v(e->msg, sizeof e->msg, fmt, ap);
    return false;
}

bool err_set(struct err *e, kl_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_set_v(e, code, fmt, ap);
    va_end(ap);
    return false;
}

const char *status_name(kl_status s)
{
    switch (s) {
    case KL_OK: return "ok";
    case KL_ERR_ARGUMENT: return "argument error";
    case KL_ERR_HANDLE: return "handle error";
    case KL_ERR_SHAPE: return "shape error";
    case KL_ERR_TYPE: return "type error";
    case KL_ERR_DEVICE: return "device error";
    case KL_ERR_TRACE: return "trace error";
    case KL_ERR_GRAD: return "gradient error";
    case KL_ERR_MEMORY: return "out of memory";
    case KL_ERR_COMPILE: return "compile error";
    case KL_ERR_IO: return "input/output error";
    case KL_ERR_PARSE: return "parse error";
    case KL_ERR_CHECK: return "failed check";
    case KL_ERR_INTERNAL: return "internal error";
    case KL_ERR_CANCELLED: return "cancelled";
    }
    return "unknown error";
}
