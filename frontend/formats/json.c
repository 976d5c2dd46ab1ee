/* A strict reader of JSON with strings and whole numbers.  Text must be UTF-8. */
#include "json.h"
#include <limits.h>
#include <string.h>

size_t json_at(const struct json *j) { return (size_t)(j->p - j->f->bytes); }

static void json_space(struct json *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
        j->p++;
}

bool json_is(struct json *j, char c)
{
    json_space(j);
    if (j->p == j->end || *j->p != (uint8_t)c)
        return false;
    j->p++;
    return true;
}

bool json_end(struct json *j)
{
    json_space(j);
    return j->p == j->end;
}

bool json_expect(struct json *j, char c, const char *field)
{
    return json_is(j, c) || file_bad(j->f, json_at(j), field, "expected '%c'", c);
}

/* ---- strings ---- */

static bool json_hex4(const uint8_t *p, unsigned *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++) {
        unsigned c = p[i], lower = c | 32;
        unsigned digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 16;
        if (digit == 16)
            return false;
        *v = *v << 4 | digit;
    }
    return true;
}

/* Reads \uXXXX, or two of them that are one character; p: after the u.  UINT_MAX: it is invalid. */
static unsigned escaped_character(const uint8_t *p, const uint8_t *end, size_t *length)
{
    unsigned v, low;
    *length = 4;
    if (end - p < 4 || !json_hex4(p, &v))
        return UINT_MAX;
    if (v >= 0xdc00 && v < 0xe000)
        return UINT_MAX;
    if (v < 0xd800 || v >= 0xdc00)
        return v;
    *length = 10;
    if (end - p < 10 || p[4] != '\\' || p[5] != 'u' || !json_hex4(p + 6, &low) || low < 0xdc00 || low >= 0xe000)
        return UINT_MAX;
    return 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
}

static char *put_utf8(char *to, unsigned v)
{
    if (v < 0x80) {
        *to++ = (char)v;
    } else if (v < 0x800) {
        *to++ = (char)(0xc0 | v >> 6);
        *to++ = (char)(0x80 | (v & 63));
    } else {
        if (v >= 0x10000) {
            *to++ = (char)(0xf0 | v >> 18);
            *to++ = (char)(0x80 | (v >> 12 & 63));
        } else {
            *to++ = (char)(0xe0 | v >> 12);
        }
        *to++ = (char)(0x80 | (v >> 6 & 63));
        *to++ = (char)(0x80 | (v & 63));
    }
    return to;
}

size_t utf8_length(const uint8_t *p, const uint8_t *end)
{
    size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    if (n == 0 || (size_t)(end - p) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xf0 && p[1] < 0x90),
         surrogate = *p == 0xed && p[1] >= 0xa0, beyond = *p == 0xf4 && p[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : n;
}

bool utf8_is_valid(const char *s)
{
    const uint8_t *p = (const uint8_t *)s, *end = p + strlen(s);
    for (size_t n; p < end; p += n)
        if (!(n = utf8_length(p, end)))
            return false;
    return true;
}

char *json_text(struct json *j, const char *field, size_t *bytes)
{
    static const char escapes[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (!json_expect(j, '"', field))
        return NULL;
    const uint8_t *close = j->p;
    while (close < j->end && *close != '"')
        close += *close == '\\' && close + 1 < j->end ? 2 : 1;
    if (close >= j->end)
        return file_bad(j->f, json_at(j), field, "a string without an end"), NULL;
    char *s = file_memory(j->f, (size_t)(close - j->p) + 1), *to = s;
    if (!s)
        return NULL;
    while (j->p < close) {
        size_t n = 0;
        if (*j->p == '\\') {
            const char *escape = j->p[1] ? strchr(escapes, j->p[1]) : NULL;
            unsigned v = escape ? (unsigned char)values[escape - escapes]
                         : j->p[1] == 'u' ? escaped_character(j->p + 2, close, &n) : UINT_MAX;
            if (v == UINT_MAX)
                return file_bad(j->f, json_at(j), field, "an unknown escape in a string"), NULL;
            to = put_utf8(to, v);
            j->p += escape ? 2 : 2 + n;
            continue;
        }
        n = *j->p < ' ' ? 0 : utf8_length(j->p, close);
        if (!n)
            return file_bad(j->f, json_at(j), field, "a string with a control character, or no UTF-8"), NULL;
        memcpy(to, j->p, n);
        to += n;
        j->p += n;
    }
    j->p++;
    *bytes = (size_t)(to - s);
    return s;
}

char *json_string(struct json *j, const char *field)
{
    size_t at = json_at(j), n;
    char *s = json_text(j, field, &n);
    return s && strlen(s) != n ? file_bad(j->f, at, field, "a string with a zero character"), NULL : s;
}

bool json_number(struct json *j, const char *field, uint64_t *v)
{
    json_space(j);
    const uint8_t *first = j->p;
    *v = 0;
    for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++) {
        unsigned digit = *j->p - '0';
        if (*v > ((uint64_t)INT64_MAX - digit) / 10)
            return file_bad(j->f, (size_t)(first - j->f->bytes), field, "a number of 2^63 or more");
        *v = *v * 10 + digit;
    }
    if (j->p == first || (*first == '0' && j->p - first > 1) ||
        (j->p < j->end && (*j->p == '.' || *j->p == 'e' || *j->p == 'E')))
        return file_bad(j->f, (size_t)(first - j->f->bytes), field, "expected a whole number from 0 on");
    return true;
}
