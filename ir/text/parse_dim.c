/* Types in .kir text, and the symbols in their dimensions. */
#include "parse.h"
#include <string.h>

/* "symbol n 1..512", on lines of their own before all others */
bool parse_symbols(struct parser *p)
{
    for (lex_lines(&p->l); lex_at(&p->l, 's'); lex_lines(&p->l)) {
        const char *start = p->l.p;
        if (!word_is(lex_word(&p->l), "symbol")) {
            p->l.p = start;
            return true;
        }
        if (p->depth)
            return lex_fail(&p->l, start, "symbols are declared by the outermost graph");
        lex_space(&p->l);
        const char *at = p->l.p;
        struct word w = lex_word(&p->l);
        char name[64] = "";
        uint64_t low, high;
        if (!w.len)
            return lex_expected(&p->l, "the symbol's name");
        if (w.len >= sizeof name)
            return lex_fail(&p->l, at, "the symbol's name is too long");
        memcpy(name, w.s, w.len);
        if (!lex_number(&p->l, INT64_MAX, "a bound", &low) || !lex_need(&p->l, '.', "'..' and the greatest value") ||
            !lex_need(&p->l, '.', "'..' and the greatest value") || !lex_number(&p->l, INT64_MAX, "a bound", &high) ||
            !lex_end_line(&p->l))
            return false;
        if (graph_symbol(p->g, name, (int64_t)low, (int64_t)high) == NO_SYMBOL)
            return parse_failed(p, at);
    }
    return true;
}

/* A symbol's name. */
static bool symbol_number(struct parser *p, bool number, uint32_t *symbol)
{
    lex_space(&p->l);
    const char *name = p->l.p;
    struct word w = lex_word(&p->l);
    *symbol = graph_symbol_find(p->g, w.s, w.len);
    if (*symbol != NO_SYMBOL)
        return true;
    p->l.p = name;
    if (!w.len || !p->g->symbols)
        return lex_expected(&p->l, number ? "a symbol" : "a dimension");
    return lex_fail(&p->l, name, "%.*s is no symbol of this graph", w.len > 64 ? 64 : (int)w.len, w.s);
}

/* [number "*"] symbol ["*" symbol], or a number */
static bool parse_affine_term(struct parser *p, struct affine *a, int64_t sign)
{
    uint64_t by = 1;
    struct affine part = {0};
    lex_space(&p->l);
    const char *at = p->l.p;
    bool number = p->l.p < p->l.end && *p->l.p >= '0' && *p->l.p <= '9';
    if (number && !lex_number(&p->l, INT64_MAX, "a dimension", &by))
        return false;
    if (!number || lex_take(&p->l, '*')) {
        uint32_t s, other;
        if (!symbol_number(p, number, &s))
            return false;
        part = (struct affine){.n = 1, .term = {{.symbol = s, .by = 1}}};
        if (lex_take(&p->l, '*')) {
            if (!symbol_number(p, true, &other))
                return false;
            part.term[0].symbol = s < other ? s : other;
            part.term[0].times = 1 + (s < other ? other : s);
        }
    } else {
        part.constant = 1;
    }
    return affine_add(a, &part, sign * (int64_t)by) ||
           lex_fail(&p->l, at, "the dimension gets too large, or has more than %d symbols", MAX_SYMBOL_TERMS);
}

/* A number, or an expression over the graph's symbols, in any order. */
bool parse_dim(struct parser *p, int64_t *d)
{
    struct affine a = {0};
    char text[DIM_TEXT], bounds[BOUNDS_TEXT];
    lex_space(&p->l);
    const char *at = p->l.p;
    int64_t sign = lex_take(&p->l, '-') ? -1 : 1;
    do {
        if (!parse_affine_term(p, &a, sign))
            return false;
        sign = lex_at(&p->l, '-') ? -1 : 1;
    } while (lex_take(&p->l, '+') || lex_take(&p->l, '-'));
    if (!a.n && a.constant >= 0)
        *d = a.constant;
    return (!a.n && a.constant >= 0) || (a.n && affine_dim(p->g, &a, d)) ||
           lex_fail(&p->l, at, "the dimension %s %s%s", affine_text(p->g, &a, text, sizeof text),
                    a.n ? "may be negative or is too large" : "is negative",
                    affine_bounds(p->g, &a, 1, bounds, sizeof bounds));
}

bool parse_more_type(struct parser *p, struct type *t)
{
    *t = (struct type){0};
    lex_space(&p->l);
    t->at = p->l.p;
    struct word w = lex_word(&p->l);
    int dtype = dtype_parse(w.s, w.len);
    if (dtype < 0) {
        p->l.p = t->at;
        return lex_expected(&p->l, "a dtype such as f32");
    }
    t->dtype = (unsigned)dtype;
    if (!lex_need(&p->l, '[', "'[' and the dimensions"))
        return false;
    while (!lex_take(&p->l, ']')) {
        if (t->shape.rank && !lex_need(&p->l, ',', "',' or ']'"))
            return false;
        lex_space(&p->l);
        if (t->shape.rank == KL_MAX_RANK)
            return lex_fail(&p->l, p->l.p, "a tensor has at most %d dimensions", KL_MAX_RANK);
        if (!parse_dim(p, &t->shape.dim[t->shape.rank]))
            return false;
        t->shape.rank++;
    }
    char bounds[BOUNDS_TEXT];
    return shape_is_legal(p->g, &t->shape) || lex_fail(&p->l, t->at, "a tensor of this shape has too many elements%s",
                                                       bounds_text(p->g, &t->shape, bounds, sizeof bounds));
}

bool parse_type(struct parser *p, struct type *t)
{
    return lex_need(&p->l, ':', "':' and the result's type") && parse_more_type(p, t);
}
