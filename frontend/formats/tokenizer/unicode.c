/* Unicode's properties of characters, from tables that unicode_tables.py makes. */
#include "unicode.h"
#include "frontend/formats/json.h"

struct unicode_pair { uint32_t c, first, second, composed; };
struct unicode_case { uint32_t first, last, step; int32_t delta; };
#include "unicode_tables.inc"
#define COUNT(table) (sizeof(table) / sizeof *(table))

/* The value of the run that c is in; runs are sorted and begin at 0. */
static unsigned unicode_run_value(const uint32_t *runs, size_t n, uint32_t c)
{
    size_t low = 0, high = n;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (runs[middle] >> 8 <= c)
            low = middle;
        else
            high = middle;
    }
    return runs[low] & 255;
}

unsigned unicode_category_bit(uint32_t c)
{
    return c >= UNICODE_BYTE ? 0 : 1u << unicode_run_value(unicode_category_runs, COUNT(unicode_category_runs), c);
}

bool unicode_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unicode_is_word(uint32_t c)
{
    unsigned bit = unicode_category_bit(c);
    bool circled = (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
                   (c >= 0x1f170 && c <= 0x1f189); /* symbols that are alphabetic */
    return circled || bit & (UC_LETTER | UC_MARK | 1u << UC_ND | 1u << UC_NL | 1u << UC_PC);
}

bool unicode_is_han(uint32_t c)
{
    static const uint32_t range[][2] = {
        {0x2e80, 0x2e99}, {0x2e9b, 0x2ef3}, {0x2f00, 0x2fd5}, {0x3005, 0x3005}, {0x3007, 0x3007}, {0x3021, 0x3029},
        {0x3038, 0x303b}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xf900, 0xfa6d}, {0xfa70, 0xfad9}, {0x16fe2, 0x16fe3},
        {0x16ff0, 0x16ff1}, {0x20000, 0x2a6df}, {0x2a700, 0x2ebe0}, {0x2ebf0, 0x2ee5d}, {0x2f800, 0x2fa1d},
        {0x30000, 0x323af}};
    for (size_t i = 0; i < COUNT(range) && range[i][0] <= c; i++)
        if (c <= range[i][1])
            return true;
    return false;
}

uint32_t unicode_lower_case(uint32_t c, uint32_t *second)
{
    *second = c == 0x130 ? 0x307 : 0; /* a capital I with a dot is the one that becomes two characters */
    if (c == 0x130)
        return 'i';
    for (size_t low = 0, high = COUNT(unicode_lower); low < high;) {
        size_t middle = (low + high) / 2;
        const struct unicode_case *r = &unicode_lower[middle];
        if (c < r->first)
            high = middle;
        else if (c > r->last)
            low = middle + 1;
        else
            return (c - r->first) % r->step ? c : (uint32_t)((int32_t)c + r->delta);
    }
    return c;
}

/* ---- UTF-8 ---- */

uint32_t unicode_at(const uint8_t *p, const uint8_t *end, size_t *n)
{
    *n = 1;
    if (*p < 0x80)
        return *p;
    size_t length = utf8_length(p, end);
    if (!length)
        return UNICODE_BYTE + *p;
    uint32_t c = length == 2 ? *p & 31u : length == 3 ? *p & 15u : *p & 7u;
    for (size_t i = 1; i < length; i++)
        c = c << 6 | (p[i] & 63u);
    *n = length;
    return c;
}

size_t unicode_before(const uint8_t *start, const uint8_t *p)
{
    for (size_t n = 2; p[-1] >= 0x80 && n <= 4 && (size_t)(p - start) >= n; n++)
        if (p[-(ptrdiff_t)n] >= 0xc0)
            return utf8_length(p - n, p) == n ? n : 1;
    return 1;
}

size_t unicode_put(uint32_t c, uint8_t *to)
{
    if (c >= UNICODE_BYTE || c < 0x80) {
        *to = (uint8_t)(c >= UNICODE_BYTE ? c - UNICODE_BYTE : c);
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        to[i] = (uint8_t)(0x80 | (c & 63));
    to[0] = (uint8_t)(lead[n] | c);
    return n;
}

/* ---- normal forms ---- */

enum { HANGUL = 0xac00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11a7, L_COUNT = 19, V_COUNT = 21,
       T_COUNT = 28, HANGUL_COUNT = L_COUNT * V_COUNT * T_COUNT };

static int unicode_decompose_compatible(uint32_t c, uint32_t *to)
{
    for (size_t low = 0, high = COUNT(unicode_compatible) / 2; low < high;) {
        size_t middle = (low + high) / 2;
        uint32_t found = unicode_compatible[2 * middle], span = unicode_compatible[2 * middle + 1];
        if (c == found) {
            for (uint32_t i = 0; i < (span & 255); i++)
                to[i] = unicode_compatible_text[(span >> 8) + i];
            return (int)(span & 255);
        }
        if (c < found)
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

int unicode_decompose(uint32_t c, bool compatible, uint32_t *to)
{
    if (c - HANGUL < HANGUL_COUNT) {
        uint32_t i = c - HANGUL, t = i % T_COUNT;
        to[0] = HANGUL_L + i / (V_COUNT * T_COUNT);
        to[1] = HANGUL_V + i / T_COUNT % V_COUNT;
        to[2] = HANGUL_T + t;
        return t ? 3 : 2;
    }
    for (size_t low = 0, high = COUNT(unicode_pairs); low < high;) {
        size_t middle = (low + high) / 2;
        const struct unicode_pair *p = &unicode_pairs[middle];
        if (c == p->c) {
            to[0] = p->first;
            to[1] = p->second;
            return p->second ? 2 : 1;
        }
        if (c < p->c)
            high = middle;
        else
            low = middle + 1;
    }
    return compatible ? unicode_decompose_compatible(c, to) : 0;
}

unsigned unicode_combining_class(uint32_t c)
{
    return c < 0x300 || c >= UNICODE_BYTE ? 0 : unicode_run_value(unicode_class_runs, COUNT(unicode_class_runs), c);
}

uint32_t unicode_compose(uint32_t first, uint32_t second)
{
    if (first - HANGUL_L < L_COUNT && second - HANGUL_V < V_COUNT)
        return HANGUL + ((first - HANGUL_L) * V_COUNT + (second - HANGUL_V)) * T_COUNT;
    if (first - HANGUL < HANGUL_COUNT && (first - HANGUL) % T_COUNT == 0 && second - HANGUL_T - 1 < T_COUNT - 1)
        return first + second - HANGUL_T;
    for (size_t low = 0, high = COUNT(unicode_composed); low < high;) {
        size_t middle = (low + high) / 2;
        const struct unicode_pair *p = &unicode_pairs[unicode_composed[middle]];
        if (p->first == first && p->second == second)
            return p->c;
        if (first < p->first || (first == p->first && second < p->second))
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}
