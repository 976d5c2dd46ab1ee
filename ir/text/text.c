/* A text that grows, tables of names, literals of every element type, and labels of devices. */
#include "text.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static bool text_room(struct text *t, size_t more)
{
    if (t->failed || t->len + more < t->cap)
        return !t->failed;
    size_t cap = t->cap ? t->cap : 256;
    while (cap <= t->len + more)
        cap *= 2;
    char *s = mem_grow(t->s, t->cap, cap);
    if (!s) {
        t->failed = true;
        return false;
    }
    t->s = s;
    t->cap = cap;
    return true;
}

static void append_bytes(struct text *t, const char *s, size_t n)
{
    if (!text_room(t, n + 1))
        return;
    memcpy(t->s + t->len, s, n);
    t->len += n;
    t->s[t->len] = 0;
}

static void append_integer(struct text *t, bool negative, unsigned long long magnitude)
{
    char digits[24], *first = digits + sizeof digits;
    do {
        *--first = (char)('0' + magnitude % 10);
    } while (magnitude /= 10);
    if (negative)
        *--first = '-';
    append_bytes(t, first, (size_t)(digits + sizeof digits - first));
}

static void append_signed(struct text *t, long long v)
{
    append_integer(t, v < 0, v < 0 ? 0 - (unsigned long long)v : (unsigned long long)v);
}

/* Formats strings, characters and decimal integers, in a third of vsnprintf's time: keys, dumps and GPU source are made
 * of them.  Returns false, with nothing appended, if fmt has another directive. */
static bool append_plain(struct text *t, const char *fmt, va_list ap)
{
    size_t before = t->len;
    for (const char *s; *fmt;) {
        size_t n = strcspn(fmt, "%");
        if (n)
            append_bytes(t, fmt, n);
        fmt += n;
        if (!*fmt)
            break;
        if (fmt[1] == 's' && (s = va_arg(ap, const char *)) != NULL) {
            append_bytes(t, s, strlen(s));
        } else if (fmt[1] == 'u') {
            append_integer(t, false, va_arg(ap, unsigned));
        } else if (fmt[1] == 'd') {
            append_signed(t, va_arg(ap, int));
        } else if (fmt[1] == 'c') {
            append_bytes(t, (char[]){(char)va_arg(ap, int)}, 1);
        } else if (fmt[1] == '%') {
            append_bytes(t, "%", 1);
        } else if (!strncmp(fmt, "%lld", 4)) {
            append_signed(t, va_arg(ap, long long));
            fmt += 2;
        } else if (!strncmp(fmt, "%llu", 4)) {
            append_integer(t, false, va_arg(ap, unsigned long long));
            fmt += 2;
        } else {
            t->len = before;
            return false;
        }
        fmt += 2;
    }
    return true;
}

void text_put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    bool done = append_plain(t, fmt, ap);
    va_end(ap);
    if (done)
        return;
    va_start(ap, fmt);
    int n = format_text_v(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !text_room(t, (size_t)n + 1))
        return;
    va_start(ap, fmt);
    format_text_v(t->s + t->len, t->cap - t->len, fmt, ap);
    va_end(ap);
    t->len += (size_t)n;
}

void text_quoted(struct text *t, const char *s)
{
    text_put(t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            text_put(t, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            text_put(t, "\\x%02x", c);
        else
            text_put(t, "%c", c);
    }
    text_put(t, "\"");
}

void text_pad(struct text *t, size_t line_start, size_t column)
{
    size_t at = t->len - line_start;
    text_put(t, "%*s", (int)(at + 2 < column ? column - at : 2), "");
}

char *text_take(struct text *t)
{
    if (!t->failed)
        return t->s;
    mem_free(t->s);
    return NULL;
}

bool text_print(char *s, FILE *f)
{
    bool ok = s && fputs(s, f) >= 0;
    mem_free(s);
    return ok;
}

static struct name *names_find(struct name *v, uint32_t size, const char *s, size_t len)
{
    uint32_t h = (uint32_t)bytes_hash(s, len).lo & (size - 1);
    while (v[h].s && (v[h].len != len || memcmp(v[h].s, s, len)))
        h = (h + 1) & (size - 1);
    return &v[h];
}

uint32_t *names_at(struct names *t, const char *s, size_t len)
{
    if (2 * t->n >= t->size) {
        uint32_t size = t->size ? 2 * t->size : 64;
        struct name *v = mem_alloc(size * sizeof *v);
        if (!v)
            return NULL;
        for (uint32_t i = 0; i < t->size; i++)
            if (t->v[i].s)
                *names_find(v, size, t->v[i].s, t->v[i].len) = t->v[i];
        mem_free(t->v);
        t->v = v;
        t->size = size;
    }
    struct name *n = names_find(t->v, t->size, s, len);
    if (!n->s) {
        *n = (struct name){s, len, 0};
        t->n++;
    }
    return &n->value;
}

void names_free(struct names *t)
{
    mem_free(t->v);
    *t = (struct names){0};
}

bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

bool is_name(const char *s)
{
    if (!is_name_char(*s) || (*s >= '0' && *s <= '9') || *s == '.')
        return false;
    while (is_name_char(*s))
        s++;
    return !*s;
}

static const char *read_float(unsigned dtype, const char *s, uint64_t *bits)
{
    char *end;
    if (dtype_is_half(dtype)) {
        *bits = dtype_bits(dtype, parse_double(s, &end));
    } else if (dtype == KL_F32) {
        float v = parse_float(s, &end);
        uint32_t b;
        memcpy(&b, &v, sizeof b);
        *bits = b;
    } else {
        double v = parse_double(s, &end);
        memcpy(bits, &v, sizeof v);
    }
    return end;
}

static uint64_t exponent_bits(unsigned dtype) { return dtype_bits(dtype, INFINITY); }
/* The highest bit of the fraction is next to the lowest of the exponent. */
static uint64_t quiet_nan(unsigned dtype)
{
    uint64_t e = exponent_bits(dtype);
    return e | (e & (0 - e)) >> 1;
}
static uint64_t sign_bit(unsigned dtype) { return 1ull << (8 * dtype_size(dtype) - 1); }
static uint64_t all_bits(unsigned dtype) { return 2 * sign_bit(dtype) - 1; }

/* The fewest digits that read back to the same bits; integers of up to 17 digits are written out.  A decimal of n
 * digits is also one of n + 1, so more digits are never less exact, and the number of digits is found by bisection. */
static void put_finite(struct text *t, unsigned dtype, uint64_t bits)
{
    char s[40];
    double v = dtype_value(dtype, bits);
    int low = 1, digits = 17;
    while (low < digits) {
        uint64_t back;
        int middle = (low + digits) / 2;
        format_text(s, sizeof s, "%.*e", middle - 1, v);
        read_float(dtype, s, &back);
        if (back == bits)
            digits = middle;
        else
            low = middle + 1;
    }
    format_text(s, sizeof s, "%.*e", digits - 1, v);
    int exponent = atoi(strchr(s, 'e') + 1); /* 10 is "10", not "1e+01" */
    format_text(s, sizeof s, "%.*g", exponent >= digits && exponent < 17 ? exponent + 1 : digits, v);
    text_put(t, "%s%s", s, strpbrk(s, ".e") ? "" : ".0");
}

static void text_float(struct text *t, unsigned dtype, uint64_t bits)
{
    uint64_t magnitude = bits & ~sign_bit(dtype), inf = exponent_bits(dtype);
    if (magnitude == inf)
        text_put(t, bits == inf ? "inf" : "-inf");
    else if (bits == quiet_nan(dtype))
        text_put(t, "nan");
    else if (magnitude > inf)
        text_put(t, "bits(0x%llx)", (unsigned long long)bits);
    else
        put_finite(t, dtype, bits);
}

void text_literal(struct text *t, unsigned dtype, uint64_t bits)
{
    char kind = dtype_kind(dtype);
    if (!dtype_size(dtype) || (bits & ~all_bits(dtype)) || (kind == 'B' && bits > 1))
        text_put(t, "bits(0x%llx)", (unsigned long long)bits);
    else if (kind == 'B')
        text_put(t, bits ? "true" : "false");
    else if (kind == 'F')
        text_float(t, dtype, bits);
    else if (kind == 'I' && (bits & sign_bit(dtype)))
        text_put(t, "-%llu", (unsigned long long)((~bits & all_bits(dtype)) + 1));
    else
        text_put(t, "%llu", (unsigned long long)bits);
}

static bool all_digits(const char *s)
{
    const char *p = s;
    while (*p >= '0' && *p <= '9')
        p++;
    return p > s && !*p;
}

/* digits ['.' digits] [e [sign] digits] */
static bool is_decimal(const char *s)
{
    const char *p = s;
    size_t n = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        n++;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++)
            n++;
    if (!n)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '+' || *p == '-';
        return all_digits(p);
    }
    return !*p;
}

static bool parse_bits(unsigned dtype, const char *s, size_t len, uint64_t *bits)
{
    if (len < 9 || memcmp(s, "bits(0x", 7) || s[len - 1] != ')')
        return false;
    uint64_t v = 0;
    for (const char *p = s + 7; p < s + len - 1; p++) {
        int d = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
        if (d < 0 || v >> 60)
            return false;
        v = v << 4 | (unsigned)d;
    }
    *bits = v;
    return !(v & ~all_bits(dtype)) && (dtype_kind(dtype) != 'B' || v <= 1);
}

static bool parse_integer(unsigned dtype, const char *s, uint64_t *bits)
{
    bool negative = *s == '-';
    uint64_t v = 0, top = sign_bit(dtype);
    for (const char *p = s + negative; *p; p++) {
        unsigned d = (unsigned)(*p - '0');
        if (v > (UINT64_MAX - d) / 10)
            return false;
        v = v * 10 + d;
    }
    uint64_t limit = dtype_kind(dtype) == 'I' ? (negative ? top : top - 1) : negative ? 0 : all_bits(dtype);
    *bits = (negative ? 0 - v : v) & all_bits(dtype);
    return v <= limit;
}

bool literal_parse(unsigned dtype, const char *token, size_t len, uint64_t *bits, const char **why)
{
    char s[MAX_LITERAL + 1], kind = dtype_kind(dtype);
    *why = "the number is too long";
    if (len > MAX_LITERAL)
        return false;
    memcpy(s, token, len);
    s[len] = 0;
    if (!strncmp(s, "bits", 4)) {
        *why = "expected bits(0xHEX) with no more bits than the dtype has";
        return parse_bits(dtype, s, len, bits);
    }
    if (kind == 'B') {
        *why = "expected true or false";
        *bits = !strcmp(s, "true");
        return *bits || !strcmp(s, "false");
    }
    const char *digits = s + (*s == '-');
    if (kind != 'F') {
        *why = "expected an integer";
        if (!all_digits(digits))
            return false;
        *why = "the integer does not fit the dtype";
        return parse_integer(dtype, s, bits);
    }
    uint64_t inf = exponent_bits(dtype), sign = *s == '-' ? sign_bit(dtype) : 0;
    if (!strcmp(digits, "inf")) {
        *bits = inf | sign;
    } else if (!strcmp(s, "nan")) {
        *bits = quiet_nan(dtype);
    } else {
        *why = "expected a number, inf, -inf, nan or bits(0xHEX)";
        if (!is_decimal(digits))
            return false;
        read_float(dtype, s, bits);
        *why = "the number is too large for the dtype";
        return (*bits & inf) != inf;
    }
    return true;
}

/* In the order of enum device_kind (runtime.h). */
static const char *const device_names[] = {"ref", "cpu"};
enum { DEVICE_NAMES = sizeof device_names / sizeof *device_names };

const char *device_label(unsigned device, char buf[DEVICE_TEXT])
{
    if (device < DEVICE_NAMES)
        return device_names[device];
    snprintf(buf, DEVICE_TEXT, "%u", device & UINT16_MAX);
    return buf;
}

const char *device_text(unsigned device) { return device < DEVICE_NAMES ? device_names[device] : NULL; }

int device_by_text(const char *s, size_t len)
{
    for (int i = 0; i < DEVICE_NAMES; i++)
        if (strlen(device_names[i]) == len && !memcmp(s, device_names[i], len))
            return i;
    return -1;
}
