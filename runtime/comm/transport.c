/* What transports within libkiln share. */
#include "transport.h"
#include "ir/ir.h"
#include <stdarg.h>
#include <time.h>

bool transport_fails(char *message, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    format_text_v(message, TRANSPORT_MESSAGE, format, args);
    va_end(args);
    return false;
}

double transport_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
