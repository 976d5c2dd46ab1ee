/* Tokens of .kir text, each with its position. */
#include "lex.h"
#include <stdarg.h>
#include <string.h>

bool lex_fail(struct lexer *l, const char *at, const char *fmt, ...)
{
    char msg[768];
    va_list ap;
    va_start(ap, fmt);
    format_text_v(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(l->e, KL_ERR_PARSE, "%s%s%u:%zu: %s", l->file ? l->file : "", l->file ? ":" : "", l->line,
                   (size_t)(at - l->line_start) + 1, msg);
}

/* The word or character at p for "found ...", short and printable. */
static const char *lex_found_text(const struct lexer *l, char buf[48])
{
    if (l->p == l->end)
        return "the end of the text";
    unsigned char c = (unsigned char)*l->p;
    if (c == '\n' || c == '#')
        return "the end of the line";
    int n = 0;
    while (n < 24 && l->p + n < l->end && is_name_char(l->p[n]))
        n++;
    if (n)
        snprintf(buf, 48, "'%.*s'%s", n, l->p, n == 24 ? "..." : "");
    else if (c < 0x20 || c >= 0x7f)
        snprintf(buf, 48, "byte 0x%02x", c);
    else
        snprintf(buf, 48, "'%c'", c);
    return buf;
}

bool lex_expected(struct lexer *l, const char *what)
{
    char buf[48];
    return lex_fail(l, l->p, "expected %s, found %s", what, lex_found_text(l, buf));
}

bool lex_no_memory(struct lexer *l) { return err_set(l->e, KL_ERR_MEMORY, "line %u: out of memory", l->line); }

void lex_space(struct lexer *l)
{
    while (l->p < l->end && (*l->p == ' ' || *l->p == '\t' || *l->p == '\r'))
        l->p++;
}

void lex_comment(struct lexer *l)
{
    const char *nl = l->p < l->end ? memchr(l->p, '\n', (size_t)(l->end - l->p)) : NULL;
    l->p = nl ? nl : l->end;
}

void lex_lines(struct lexer *l)
{
    for (;;) {
        lex_space(l);
        if (l->p < l->end && *l->p == '#')
            lex_comment(l);
        if (l->p == l->end || *l->p != '\n')
            return;
        l->line_start = ++l->p;
        l->line++;
    }
}

bool lex_end_line(struct lexer *l)
{
    lex_space(l);
    if (l->p < l->end && *l->p == '#')
        lex_comment(l);
    return l->p == l->end || *l->p == '\n' || lex_expected(l, "the end of the line");
}

bool lex_at(struct lexer *l, char c)
{
    lex_space(l);
    return l->p < l->end && *l->p == c;
}

bool lex_take(struct lexer *l, char c)
{
    return lex_at(l, c) && l->p++;
}

bool lex_need(struct lexer *l, char c, const char *what) { return lex_take(l, c) || lex_expected(l, what); }

struct word lex_word(struct lexer *l)
{
    lex_space(l);
    struct word w = {l->p, 0};
    while (l->p < l->end && is_name_char(*l->p))
        l->p++;
    w.len = (size_t)(l->p - w.s);
    return w;
}

bool word_is(struct word w, const char *s) { return strlen(s) == w.len && !memcmp(w.s, s, w.len); }

bool lex_number(struct lexer *l, uint64_t max, const char *what, uint64_t *out)
{
    lex_space(l);
    const char *start = l->p;
    uint64_t v = 0;
    for (; l->p < l->end && *l->p >= '0' && *l->p <= '9'; l->p++) {
        unsigned d = (unsigned)(*l->p - '0');
        if (v > (max - d) / 10 || max < d)
            return lex_fail(l, start, "%s is above %llu", what, (unsigned long long)max);
        v = v * 10 + d;
    }
    *out = v;
    return l->p > start || lex_expected(l, what);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool lex_quoted(struct lexer *l, char *buf, size_t size)
{
    const char *start = l->p++;
    for (size_t n = 0;; n++) {
        if (l->p == l->end || *l->p == '\n')
            return lex_fail(l, start, "the name that starts here has no closing '\"'");
        if (*l->p == '"') {
            buf[n] = 0;
            return ++l->p;
        }
        if (n + 1 == size)
            return lex_fail(l, start, "the name that starts here is longer than %zu bytes", size - 1);
        char c = *l->p++;
        if (c == '\\') {
            const char *s = l->p;
            int64_t left = l->end - s;
            if (left >= 1 && (*s == '"' || *s == '\\')) {
                c = *l->p++;
            } else if (left >= 3 && *s == 'x' && hex_digit(s[1]) >= 0 && hex_digit(s[2]) >= 0) {
                c = (char)(hex_digit(s[1]) << 4 | hex_digit(s[2]));
                l->p += 3;
            } else {
                return lex_fail(l, s - 1, "expected \\\", \\\\ or \\xNN");
            }
        }
        if (!c)
            return lex_fail(l, l->p - 1, "a name cannot hold a zero byte");
        buf[n] = c;
    }
}

bool lex_title(struct lexer *l, const char *word, char *buf, size_t size)
{
    char what[48];
    snprintf(what, sizeof what, "'@' and the %s's name", word);
    if (!lex_need_word(l, word) || !lex_need(l, '@', what))
        return false;
    const char *at = l->p;
    if (l->p < l->end && *l->p == '"')
        return lex_quoted(l, buf, size);
    struct word w = l->p < l->end && is_name_char(*l->p) ? lex_word(l) : (struct word){l->p, 0};
    if (!w.len)
        return lex_expected(l, what + sizeof "'@' and");
    if (w.len >= size)
        return lex_fail(l, at, "a %s's name has at most %zu bytes", word, size - 1);
    memcpy(buf, w.s, w.len);
    buf[w.len] = 0;
    return true;
}

bool lex_need_word(struct lexer *l, const char *word)
{
    lex_space(l);
    const char *at = l->p;
    if (word_is(lex_word(l), word))
        return true;
    l->p = at;
    char quoted_word[16];
    snprintf(quoted_word, sizeof quoted_word, "'%s'", word);
    return lex_expected(l, quoted_word);
}

bool lex_value_name(struct lexer *l, struct names *names, struct word *name, uint32_t **slot)
{
    if (!lex_need(l, '%', "a value such as %x"))
        return false;
    if (l->p == l->end || !is_name_char(*l->p))
        return lex_expected(l, "a name behind '%'");
    *name = lex_word(l);
    *slot = names_at(names, name->s, name->len);
    return *slot || lex_no_memory(l);
}
