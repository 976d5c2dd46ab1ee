/* printf and strtod that ignore the host's locale: with de_DE.UTF-8 set, 0.5 would be written and read as 0,5, and GPU
 * source, JSON and dumps would hold other numbers.  tests/locale.sh fails where these are called elsewhere. */
#include "ir/ir.h"
#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>

static locale_t c_locale;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The C locale is a constant of the C library: this allocates nothing, and it needs no freelocale. */
static void make_c_locale(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* Sets the calling thread's locale to C; returns the previous one for uselocale. */
static locale_t use_c_locale(void)
{
    pthread_once(&once, make_c_locale);
    return uselocale(c_locale);
}

int format_text_v(char *s, size_t size, const char *fmt, va_list ap)
{
    locale_t previous = use_c_locale();
    int n = vsnprintf(s, size, fmt, ap);
    uselocale(previous);
    return n;
}

int format_text(char *s, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = format_text_v(s, size, fmt, ap);
    va_end(ap);
    return n;
}

int format_file_v(FILE *f, const char *fmt, va_list ap)
{
    locale_t previous = use_c_locale();
    int n = vfprintf(f, fmt, ap);
    uselocale(previous);
    return n;
}

int format_file(FILE *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = format_file_v(f, fmt, ap);
    va_end(ap);
    return n;
}

double parse_double(const char *s, char **end)
{
    locale_t previous = use_c_locale();
    double v = strtod(s, end);
    uselocale(previous);
    return v;
}

float parse_float(const char *s, char **end)
{
    locale_t previous = use_c_locale();
    float v = strtof(s, end);
    uselocale(previous);
    return v;
}
