/* Compiling a regular expression (pattern.h), by recursive descent.  Jumps are relative, so that a group's code can be
 * moved and repeated. */
#include "pattern_code.h"
#include <kiln/extend.h>
#include <stdio.h>
#include <string.h>

enum { PATTERN_MAX_OPS = 4096, PATTERN_MAX_DEPTH = 24, PATTERN_MAX_REPEAT = 1000 };

struct pattern_parser {
    struct pattern *p;
    const uint8_t *start, *at, *end;
    char *why;
    size_t room;
    bool failed, ignore_case;
    int depth;
};

static bool pattern_fails(struct pattern_parser *x, const char *what)
{
    if (!x->failed)
        snprintf(x->why, x->room, "%s at byte %zu of the regular expression", what, (size_t)(x->at - x->start));
    x->failed = true;
    return false;
}

/* Room for one more element of *v, which is zero; NULL: out of memory. */
static void *pattern_grow(struct pattern_parser *x, void *v, int32_t *n, int32_t *cap, size_t size)
{
    char **list = v;
    if (*n == *cap) {
        int32_t more = *cap ? 2 * *cap : 16;
        char *grown = kl_memory_grow(*list, (size_t)*cap * size, (size_t)more * size);
        if (!grown) {
            x->failed = true;
            return NULL;
        }
        *list = grown;
        *cap = more;
    }
    return *list + (size_t)(*n)++ * size;
}

static struct pattern_op *pattern_emit(struct pattern_parser *x, struct pattern_op o)
{
    struct pattern *p = x->p;
    if (p->nop >= PATTERN_MAX_OPS) {
        pattern_fails(x, "a pattern that is too large");
        return NULL;
    }
    struct pattern_op *to = pattern_grow(x, &p->op, &p->nop, &p->op_cap, sizeof *to);
    if (to)
        *to = o;
    return to;
}

/* Puts an operation in front of those from `first` on. */
static bool pattern_insert(struct pattern_parser *x, int32_t first, struct pattern_op o)
{
    if (!pattern_emit(x, o))
        return false;
    struct pattern_op *op = x->p->op + first;
    memmove(op + 1, op, (size_t)(x->p->nop - 1 - first) * sizeof *op);
    *op = o;
    return true;
}

/* ---- sets of characters ---- */

static void pattern_item(struct pattern_parser *x, struct pattern_item i)
{
    struct pattern_item *to = pattern_grow(x, &x->p->item, &x->p->nitem, &x->p->item_cap, sizeof *to);
    if (to)
        *to = i;
}

static void pattern_range(struct pattern_parser *x, uint32_t low, uint32_t high)
{
    pattern_item(x, (struct pattern_item){.low = low, .high = high});
    if (!x->ignore_case)
        return;
    for (uint32_t c = 'a'; c <= 'z'; c++) /* letters of ASCII, and what Unicode folds to them */
        if ((c >= low && c <= high) || (c - 32 >= low && c - 32 <= high)) {
            pattern_item(x, (struct pattern_item){.low = c, .high = c});
            pattern_item(x, (struct pattern_item){.low = c - 32, .high = c - 32});
            if (c == 's' || c == 'k')
                pattern_item(x, (struct pattern_item){.low = c == 's' ? 0x17f : 0x212a,
                                                      .high = c == 's' ? 0x17f : 0x212a});
        }
}

/* A set begins: its items are those that follow. */
static int32_t pattern_set_begin(struct pattern_parser *x, bool negate)
{
    struct pattern_set *s = pattern_grow(x, &x->p->set, &x->p->nset, &x->p->set_cap, sizeof *s);
    if (s)
        *s = (struct pattern_set){.negate = negate, .first = x->p->nitem};
    return x->p->nset - 1;
}

static void pattern_set_end(struct pattern_parser *x, int32_t i)
{
    if (x->failed)
        return;
    struct pattern_set *s = &x->p->set[i];
    s->n = x->p->nitem - s->first;
    for (uint32_t c = 0; c < 128; c++)
        if (pattern_set_has(x->p, s, c))
            s->ascii[c / 32] |= 1u << c % 32;
}

/* The general categories of a name as L, Lu, N. */
static uint32_t pattern_categories(const char *name, size_t n)
{
    static const char order[] = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";
    uint32_t mask = 0;
    for (int i = 0; i < UC_COUNT; i++)
        if ((n == 1 && order[2 * i] == name[0]) || (n == 2 && !memcmp(order + 2 * i, name, 2)))
            mask |= 1u << i;
    return mask;
}

/* \p{NAME}, \p{^NAME} and \pL, behind the p. */
static bool pattern_property_item(struct pattern_parser *x, bool negate)
{
    static const struct { const char *name, *is; } words[] = {{"Letter", "L"}, {"Mark", "M"}, {"Number", "N"},
        {"Punctuation", "P"}, {"Symbol", "S"}, {"Separator", "Z"}, {"Other", "C"}, {"Alpha", "L"}, {"Digit", "Nd"}};
    const uint8_t *close = x->at < x->end && *x->at == '{' ? memchr(x->at, '}', (size_t)(x->end - x->at)) : NULL;
    const char *name = (const char *)x->at + (close != NULL);
    if (x->at == x->end || (*x->at == '{' && !close))
        return pattern_fails(x, "\\p without a name");
    size_t n = close ? (size_t)((const char *)close - name) : 1;
    if (n && *name == '^') {
        negate = !negate;
        name++, n--;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].name) == n && !memcmp(words[i].name, name, n)) {
            name = words[i].is;
            n = strlen(name);
        }
    bool han = (n == 3 && !memcmp(name, "Han", 3)) || (n == 10 && !memcmp(name, "Script=Han", 10));
    uint32_t mask = n <= 2 ? pattern_categories(name, n) : 0;
    if (!han && !mask)
        return pattern_fails(x, "a property \\p{..} that is not read");
    x->at = close ? close + 1 : x->at + 1;
    pattern_item(x, (struct pattern_item){han ? PATTERN_HAN : PATTERN_CATEGORIES, negate, mask, 0});
    return true;
}

static bool pattern_hex(struct pattern_parser *x, int most, uint32_t *c)
{
    bool brace = x->at < x->end && *x->at == '{';
    int digits = 0;
    x->at += brace;
    for (*c = 0; x->at < x->end && digits < (brace ? 8 : most); x->at++, digits++) {
        unsigned d = *x->at, lower = d | 32;
        if (d >= '0' && d <= '9')
            *c = *c << 4 | (d - '0');
        else if (lower >= 'a' && lower <= 'f')
            *c = *c << 4 | (lower - 'a' + 10);
        else
            break;
    }
    bool closed = !brace || (x->at < x->end && *x->at == '}');
    x->at += brace && closed;
    return (digits && closed && *c < UNICODE_BYTE) || pattern_fails(x, "a hexadecimal number that is not read");
}

/* What is behind a backslash: a character, returned in *c, or items.  false: failed. */
static bool pattern_escape(struct pattern_parser *x, bool *is_character, uint32_t *c)
{
    static const char names[] = "nrtfvae", values[] = "\n\r\t\f\v\a\x1b";
    if (x->at == x->end)
        return pattern_fails(x, "a backslash at the end");
    uint8_t e = *x->at++;
    const char *known = e ? strchr(names, e) : NULL;
    bool negate = e == 'S' || e == 'D' || e == 'W' || e == 'P';
    *is_character = false;
    switch (e) {
    case 's': case 'S': pattern_item(x, (struct pattern_item){PATTERN_SPACE, negate, 0, 0}); return true;
    case 'w': case 'W': pattern_item(x, (struct pattern_item){PATTERN_WORD, negate, 0, 0}); return true;
    case 'd': case 'D': pattern_item(x, (struct pattern_item){PATTERN_CATEGORIES, negate, 1u << UC_ND, 0}); return true;
    case 'p': case 'P': return pattern_property_item(x, negate);
    case 'x': *is_character = true; return pattern_hex(x, 2, c);
    case 'u': *is_character = true; return pattern_hex(x, 4, c);
    default: break;
    }
    bool letter = ((e | 32) >= 'a' && (e | 32) <= 'z') || (e >= '0' && e <= '9') || e >= 0x80;
    if (letter && !known) {
        x->at--;
        return pattern_fails(x, "an escape that is not read");
    }
    *is_character = true;
    *c = known ? (uint8_t)values[known - names] : e;
    return true;
}

static uint32_t pattern_character(struct pattern_parser *x)
{
    size_t n;
    uint32_t c = unicode_at(x->at, x->end, &n);
    x->at += n;
    return c;
}

/* One member of [ ], or the end of a range; *is_character false: it was a property. */
static bool pattern_member(struct pattern_parser *x, bool *is_character, uint32_t *c)
{
    if (x->at < x->end && *x->at == '\\') {
        x->at++;
        return pattern_escape(x, is_character, c);
    }
    if (x->at < x->end && (*x->at == '[' || (*x->at == '&' && x->end - x->at > 1 && x->at[1] == '&')))
        return pattern_fails(x, "a class inside of a class");
    *is_character = true;
    *c = x->at < x->end ? pattern_character(x) : 0;
    return true;
}

/* A class, behind its '['.  Returns the set. */
static int32_t pattern_class(struct pattern_parser *x)
{
    bool negate = x->at < x->end && *x->at == '^';
    x->at += negate;
    int32_t set = pattern_set_begin(x, negate);
    for (bool first = true; !x->failed && x->at < x->end && (first || *x->at != ']'); first = false) {
        bool is_character, high_is;
        uint32_t low = 0, high;
        if (!pattern_member(x, &is_character, &low) || !is_character)
            continue;
        high = low;
        if (x->end - x->at > 1 && *x->at == '-' && x->at[1] != ']') {
            x->at++;
            if (pattern_member(x, &high_is, &high) && (!high_is || high < low))
                pattern_fails(x, "a range that ends before it begins");
        }
        pattern_range(x, low, high);
    }
    if (!x->failed && x->at == x->end)
        pattern_fails(x, "a class without ]");
    x->at++;
    pattern_set_end(x, set);
    return set;
}

/* ---- sequences ---- */

static int64_t pattern_alternatives(struct pattern_parser *x);

/* A group, behind its '('.  Returns how many characters it matches at the least. */
static int64_t pattern_group(struct pattern_parser *x)
{
    static const struct { const char *text; enum pattern_kind kind; bool negate; } heads[] = {
        {"?:", PATTERN_JUMP, false}, {"?i:", PATTERN_JUMP, true}, {"?=", PATTERN_LOOK, false},
        {"?!", PATTERN_LOOK, true}, {"?<=", PATTERN_BEHIND, false}, {"?<!", PATTERN_BEHIND, true}};
    int head = -1;
    for (int i = 0; i < 6; i++)
        if ((size_t)(x->end - x->at) > strlen(heads[i].text) && !memcmp(x->at, heads[i].text, strlen(heads[i].text)))
            head = i;
    if (head < 0 && x->at < x->end && *x->at == '?')
        return pattern_fails(x, "a group (?..) that is not read");
    enum pattern_kind kind = head < 0 ? PATTERN_JUMP : heads[head].kind;
    x->at += head < 0 ? 0 : strlen(heads[head].text);
    bool before = x->ignore_case;
    x->ignore_case |= kind == PATTERN_JUMP && head >= 0 && heads[head].negate;
    int32_t first = x->p->nop;
    if (kind == PATTERN_LOOK)
        pattern_emit(x, (struct pattern_op){.kind = kind, .negate = heads[head].negate});
    int64_t least = pattern_alternatives(x);
    x->ignore_case = before;
    if (!x->failed && (x->at == x->end || *x->at != ')'))
        return pattern_fails(x, "a group without )");
    x->at++;
    if (x->failed || kind == PATTERN_JUMP)
        return least;
    if (kind == PATTERN_LOOK) {
        pattern_emit(x, (struct pattern_op){.kind = PATTERN_ACCEPT});
        x->p->op[first].jump = x->p->nop - first;
    } else if (x->p->nop != first + 1 || x->p->op[first].kind != PATTERN_SET) {
        return pattern_fails(x, "a look behind that is more than one character");
    } else {
        x->p->op[first].kind = PATTERN_BEHIND;
        x->p->op[first].negate = heads[head].negate;
    }
    return 0;
}

/* One character, class, group or edge.  Returns how many characters it matches at the least. */
static int64_t pattern_atom(struct pattern_parser *x)
{
    if (*x->at == '(') {
        x->at++;
        return pattern_group(x);
    }
    if (*x->at == '^' || *x->at == '$') {
        pattern_emit(x, (struct pattern_op){.kind = *x->at++ == '^' ? PATTERN_START : PATTERN_END});
        return 0;
    }
    if (strchr("?*+{", *x->at) && *x->at)
        return pattern_fails(x, "a quantifier of nothing");
    int32_t set;
    if (*x->at == '[') {
        x->at++;
        set = pattern_class(x);
    } else {
        bool dot = *x->at == '.', is_character = true;
        uint32_t c = '\n';
        set = pattern_set_begin(x, dot);
        if (*x->at == '\\') {
            x->at++;
            pattern_escape(x, &is_character, &c);
        } else if (dot) {
            x->at++;
        } else {
            c = pattern_character(x);
        }
        if (is_character)
            pattern_range(x, c, c);
        pattern_set_end(x, set);
    }
    pattern_emit(x, (struct pattern_op){.kind = PATTERN_SET, .set = set});
    return 1;
}

/* {m}, {m,}, {,n}, {m,n} behind the brace. */
static bool pattern_counts(struct pattern_parser *x, int32_t *min, int32_t *max)
{
    int32_t v[2] = {0, PATTERN_NO_MAX};
    bool comma = false, any = false;
    for (; x->at < x->end && *x->at != '}'; x->at++) {
        if (*x->at == ',' && !comma) {
            comma = true;
        } else if (*x->at >= '0' && *x->at <= '9') {
            int32_t *to = &v[comma];
            *to = (*to == PATTERN_NO_MAX ? 0 : *to) * 10 + (*x->at - '0');
            any = true;
            if (*to > PATTERN_MAX_REPEAT)
                return pattern_fails(x, "a number of repeats that is too large");
        } else {
            return pattern_fails(x, "a quantifier that is not read");
        }
    }
    if (x->at == x->end || !any || (comma && v[1] < v[0]))
        return pattern_fails(x, "a quantifier that is not read");
    x->at++;
    *min = v[0];
    *max = comma ? v[1] : v[0];
    return true;
}

/* Emits the code from first to n again. */
static void pattern_repeat(struct pattern_parser *x, int32_t first, int32_t n)
{
    for (int32_t i = first; i < n && !x->failed; i++)
        pattern_emit(x, x->p->op[i]);
}

/* Makes the code from first on, a group, one that is there min to max times. */
static void pattern_quantify_group(struct pattern_parser *x, int32_t first, int32_t min, int32_t max, int64_t least)
{
    int32_t n = x->p->nop, length = n - first;
    if (max == PATTERN_NO_MAX && least == 0) {
        pattern_fails(x, "a repeated group that can be empty");
        return;
    }
    for (int32_t i = 1; i < min && !x->failed; i++)
        pattern_repeat(x, first, n);
    if (max == PATTERN_NO_MAX && min > 0) { /* once more, or go on */
        pattern_emit(x, (struct pattern_op){.kind = PATTERN_SPLIT, .jump = 2});
        pattern_emit(x, (struct pattern_op){.kind = PATTERN_JUMP, .jump = -length - 1});
    } else if (max == PATTERN_NO_MAX) {
        pattern_insert(x, first, (struct pattern_op){.kind = PATTERN_SPLIT, .jump = length + 2});
        pattern_emit(x, (struct pattern_op){.kind = PATTERN_JUMP, .jump = -length - 1});
    } else if (max == 0) {
        x->p->nop = first;
    } else {
        if (min == 0)
            pattern_insert(x, first, (struct pattern_op){.kind = PATTERN_SPLIT, .jump = length + 1});
        for (int32_t i = min ? min : 1; i < max && !x->failed; i++) {
            pattern_emit(x, (struct pattern_op){.kind = PATTERN_SPLIT, .jump = length + 1});
            pattern_repeat(x, first + (min == 0), first + (min == 0) + length);
        }
    }
}

static int64_t pattern_quantified(struct pattern_parser *x)
{
    int32_t first = x->p->nop, min = 1, max = 1;
    int64_t least = pattern_atom(x);
    if (x->failed || x->at == x->end || !*x->at || !strchr("?*+{", *x->at))
        return least;
    bool braces = *x->at == '{';
    min = *x->at == '+';
    max = *x->at++ == '?' ? 1 : PATTERN_NO_MAX;
    if (braces && !pattern_counts(x, &min, &max))
        return 0;
    bool possessive = x->at < x->end && *x->at == '+' && !braces;
    x->at += possessive;
    if (x->at < x->end && *x->at && strchr("?*+{", *x->at))
        return pattern_fails(x, *x->at == '?' ? "a lazy quantifier" : "a quantifier of a quantifier");
    struct pattern_op *o = &x->p->op[first];
    if (x->p->nop == first + 1 && o->kind == PATTERN_SET) {
        o->kind = PATTERN_LOOP;
        o->min = min;
        o->max = max;
        o->possessive = possessive;
    } else if (possessive) {
        return pattern_fails(x, "a possessive group");
    } else {
        pattern_quantify_group(x, first, min, max, least);
    }
    return least * min;
}

static int64_t pattern_sequence(struct pattern_parser *x)
{
    int64_t least = 0;
    while (!x->failed && x->at < x->end && *x->at != '|' && *x->at != ')')
        least += pattern_quantified(x);
    return least;
}

static int64_t pattern_alternatives(struct pattern_parser *x)
{
    int32_t first = x->p->nop, jumps = -1; /* jumps to the end, a list by their field `jump` */
    if (++x->depth > PATTERN_MAX_DEPTH)
        return pattern_fails(x, "groups that are nested too deeply");
    int64_t least = pattern_sequence(x);
    while (!x->failed && x->at < x->end && *x->at == '|') {
        x->at++;
        pattern_insert(x, first, (struct pattern_op){.kind = PATTERN_SPLIT, .jump = x->p->nop - first + 2});
        pattern_emit(x, (struct pattern_op){.kind = PATTERN_JUMP, .jump = jumps});
        jumps = x->p->nop - 1;
        first = x->p->nop;
        int64_t other = pattern_sequence(x);
        least = other < least ? other : least;
    }
    for (int32_t next; !x->failed && jumps >= 0; jumps = next) {
        next = x->p->op[jumps].jump;
        x->p->op[jumps].jump = x->p->nop - jumps;
    }
    x->depth--;
    return least;
}

/* ---- patterns ---- */

static struct pattern *pattern_finish(struct pattern_parser *x)
{
    if (!x->failed)
        pattern_emit(x, (struct pattern_op){.kind = PATTERN_ACCEPT});
    if (x->failed) {
        pattern_free(x->p);
        return NULL;
    }
    for (int32_t i = 0; i < x->p->nop; i++)
        if (x->p->op[i].kind == PATTERN_SPLIT)
            pattern_first_bytes(x->p, i + 1, 12, x->p->op[i].first);
    pattern_first_bytes(x->p, 0, 40, x->p->first);
    return x->p;
}

struct pattern *pattern_new(const char *text, size_t n, char *why, size_t room)
{
    const uint8_t *start = (const uint8_t *)text;
    struct pattern_parser x = {.p = kl_memory_alloc(sizeof *x.p), .start = start, .at = start, .end = start + n,
                               .why = why, .room = room};
    *why = 0;
    if (!x.p)
        return NULL;
    if (n >= 4 && !memcmp(text, "(?i)", 4)) {
        x.ignore_case = true;
        x.at += 4;
    }
    pattern_alternatives(&x);
    if (!x.failed && x.at < x.end)
        pattern_fails(&x, "a ) without its group");
    return pattern_finish(&x);
}

struct pattern *pattern_new_literal(const char *text, size_t n)
{
    char why[80];
    struct pattern_parser x = {.p = kl_memory_alloc(sizeof *x.p), .why = why, .room = sizeof why};
    uint8_t *literal = x.p ? kl_memory_alloc(n + 1) : NULL;
    if (!literal) {
        kl_memory_free(x.p);
        return NULL;
    }
    memcpy(literal, text, n);
    x.p->literal = literal;
    x.p->literal_n = n;
    pattern_emit(&x, (struct pattern_op){.kind = PATTERN_BYTES});
    return pattern_finish(&x);
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    kl_memory_free(p->op);
    kl_memory_free(p->set);
    kl_memory_free(p->item);
    kl_memory_free(p->literal);
    kl_memory_free(p);
}
