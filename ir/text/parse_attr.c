/* Attributes of a node in .kir text, by the descriptors of its op (struct attr_info): the inverse of print.c's
 * put_attr. */
#include "parse.h"
#include <string.h>

/* axis numbers up to a closing character, none twice */
static bool attr_axes(struct parser *p, char close, const char *what, uint8_t *list, unsigned *n)
{
    uint32_t seen = 0;
    for (*n = 0; !lex_at(&p->l, close); ++*n) {
        uint64_t axis;
        if (*n && !lex_need(&p->l, ',', what))
            return false;
        lex_space(&p->l);
        const char *at = p->l.p;
        if (!lex_number(&p->l, KL_MAX_RANK - 1, "an axis", &axis))
            return false;
        if (seen >> axis & 1)
            return lex_fail(&p->l, at, "axis %u is named twice", (unsigned)axis);
        seen |= 1u << axis;
        list[*n] = (uint8_t)axis;
    }
    p->l.p++;
    return true;
}

/* "axes of a; axes of b" as two lists of one length */
static bool attr_pairs(struct parser *p, union attr *to, const struct attr_info *i)
{
    uint8_t la[KL_MAX_RANK], lb[KL_MAX_RANK];
    unsigned na, nb;
    uint32_t a = 0, b = 0;
    const char *at = p->l.p;
    if (!attr_axes(p, ';', "',' or ';'", la, &na) || !attr_axes(p, ')', "',' or ')'", lb, &nb))
        return false;
    if (na != nb)
        return lex_fail(&p->l, at, "%u axes of the first operand go with %u of the second", na, nb);
    for (unsigned k = 0; k < na; k++) {
        a = axis_put(a, k, la[k]);
        b = axis_put(b, k, lb[k]);
    }
    attr_set(to, i->at, i->size, a);
    attr_set(to, i->part[0].at, i->part[0].size, b);
    attr_set(to, i->part[1].at, i->part[1].size, na);
    return true;
}

/* The greatest number that an unsigned field holds. */
static uint64_t attr_max(unsigned size) { return size == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * size) - 1; }

/* "lanes N, chunk N)" */
static bool attr_order(struct parser *p, union attr *to, const struct attr_info *i)
{
    for (unsigned k = 0; k < 2 && i->part[k].word; k++) {
        uint64_t v;
        if ((k && !lex_need(&p->l, ',', "','")) || !lex_need_word(&p->l, i->part[k].word) ||
            !lex_number(&p->l, attr_max(i->part[k].size), "a number", &v))
            return false;
        attr_set(to, i->part[k].at, i->part[k].size, v);
    }
    return lex_need(&p->l, ')', "')'");
}

/* "word)" of the attribute's list */
static bool attr_word(struct parser *p, union attr *to, const struct attr_info *i)
{
    lex_space(&p->l);
    const char *at = p->l.p;
    struct word w = lex_word(&p->l);
    unsigned k = 0;
    if (!i->words[1])
        return (p->l.p = at, lex_need_word(&p->l, i->words[0])) && lex_need(&p->l, ')', "')'") &&
               (attr_set(to, i->at, i->size, i->more), true);
    while (i->words[k] && !word_is(w, i->words[k]))
        k++;
    if (!i->words[k]) {
        char what[96] = "";
        size_t n = 0;
        for (k = 0; i->words[k]; k++)
            n += (size_t)snprintf(what + n, sizeof what - n, "%s%s", !k ? "" : i->words[k + 1] ? ", " : " or ",
                                  i->words[k]);
        p->l.p = at;
        return lex_expected(&p->l, what);
    }
    attr_set(to, i->at, i->size, k + i->more);
    return lex_need(&p->l, ')', "')'");
}

/* "NUMBER)", an f64 */
static bool attr_real(struct parser *p, union attr *to, const struct attr_info *i)
{
    struct word w;
    const char *why;
    uint64_t bits;
    lex_space(&p->l);
    const char *at = p->l.p;
    w.s = at;
    while (p->l.p < p->l.end && *p->l.p && *p->l.p != ')' && *p->l.p != '(')
        p->l.p++;
    if (p->l.p < p->l.end && *p->l.p == '(') /* bits(..) */
        while (p->l.p < p->l.end && *p->l.p && *p->l.p++ != ')') {}
    w.len = (size_t)(p->l.p - w.s);
    if (!literal_parse(KL_F64, w.s, w.len, &bits, &why))
        return lex_fail(&p->l, at, "%s", why);
    attr_set(to, i->at, i->size, bits);
    return lex_need(&p->l, ')', "')'");
}

/* "N", or "N, N)" where several axes may be listed; a dim of a graph with symbols may be symbolic */
static bool attr_number(struct parser *p, union attr *to, const struct attr_info *i, struct attr_lists *l, unsigned k)
{
    unsigned max = l ? KL_MAX_RANK : 1, n = 0;
    uint64_t list[KL_MAX_RANK];
    bool symbolic = p->g->symbols && i->kind == ATTR_DIM;
    lex_space(&p->l);
    const char *at = p->l.p;
    do {
        uint64_t v = 0;
        int64_t d = 0;
        bool ok = symbolic                ? parse_dim(p, &d)
                  : i->kind == ATTR_COUNT ? lex_number(&p->l, attr_max(i->size), "a number", &v)
                                          : lex_number(&p->l, INT64_MAX - i->more, "a number of elements", &v);
        if (!ok)
            return false;
        list[n++] = symbolic ? (uint64_t)d : v + i->more;
    } while (n < max && lex_take(&p->l, ','));
    if (!lex_need(&p->l, ')', "')'"))
        return false;
    attr_set(to, i->at, i->size, list[0]);
    if (l && k < ATTR_LISTS) {
        l->of[k].n = n;
        l->of[k].at = at;
        memcpy(l->of[k].v, list, n * sizeof *list);
    }
    return true;
}

/* Attribute number k, after its word and '('. l: several axes may be listed; else NULL. */
static bool parse_one_attr(struct parser *p, struct node *n, const struct attr_info *i, struct attr_lists *l,
                           unsigned k)
{
    uint8_t list[KL_MAX_RANK];
    unsigned count;
    uint32_t mask = 0;
    const char *at = p->l.p;
    switch ((enum attr_kind)i->kind) {
    case ATTR_AXES:
        if (!attr_axes(p, ')', "',' or ')'", list, &count))
            return false;
        for (unsigned x = 0; x < count; x++)
            mask |= 1u << list[x];
        attr_set(&n->attr, i->at, i->size, mask);
        return true;
    case ATTR_PERM:
        if (!attr_axes(p, ')', "',' or ')'", list, &count))
            return false;
        if (count != node_shape(p->g, n->in[0])->rank)
            return lex_fail(&p->l, at, "perm names %u axes of an operand of rank %u", count,
                           node_shape(p->g, n->in[0])->rank);
        memcpy((char *)&n->attr + i->at, list, count);
        return true;
    case ATTR_AXIS:
        if (!attr_axes(p, ')', "')'", list, &count))
            return false;
        if (count != 1 && !(l && count))
            return lex_fail(&p->l, at, "expected one axis, found %u", count);
        attr_set(&n->attr, i->at, i->size, list[0]);
        if (l) {
            l->naxes = count;
            memcpy(l->axis, list, count);
        }
        return true;
    case ATTR_PAIRS: return attr_pairs(p, &n->attr, i);
    case ATTR_ORDER: return attr_order(p, &n->attr, i);
    case ATTR_WORD: return attr_word(p, &n->attr, i);
    case ATTR_REAL: return attr_real(p, &n->attr, i);
    case ATTR_DIM: case ATTR_LENGTH: case ATTR_COUNT: return attr_number(p, &n->attr, i, l, k);
    case ATTR_FLAG: break;
    }
    return false; /* a flag has no value */
}

/* A mark; false: it is none, or repeated. */
static bool attr_mark(struct word w, struct node *n)
{
    unsigned flag = word_is(w, "stop") ? MARK_STOP : word_is(w, "remat") ? MARK_REMAT
        : word_is(w, "hidden") ? MARK_HIDDEN_RESULT : word_is(w, "hidden_left") ? MARK_HIDDEN_LEFT
        : word_is(w, "hidden_right") ? MARK_HIDDEN_RIGHT : 0;
    bool known = flag && !(n->flags & flag);
    if (known)
        n->flags |= (uint16_t)flag;
    return known;
}

static bool expected_attr(struct parser *p, const struct attr_info *list, unsigned seen)
{
    char what[192] = "";
    size_t n = 0;
    for (unsigned k = 0; list && list[k].word; k++)
        if (!(seen >> k & 1))
            n += (size_t)snprintf(what + n, sizeof what - n, "%s%s, ", list[k].word,
                                  list[k].kind == ATTR_FLAG ? "" : "(...)");
    snprintf(what + n, sizeof what - n, "stop or ':' and the result's type");
    return lex_expected(&p->l, what);
}

bool parse_attrs(struct parser *p, struct node *n, struct attr_lists *lists)
{
    const struct attr_info *list = opinfo[n->op].attr;
    unsigned seen = 0, k;
    bool several = false;
    for (k = 0; list && list[k].word; k++)
        several |= list[k].several;
    lists = several ? lists : NULL;
    while (!lex_at(&p->l, ':')) {
        const char *at = p->l.p;
        struct word w = lex_word(&p->l);
        if (attr_mark(w, n))
            continue;
        for (k = 0; list && list[k].word && !word_is(w, list[k].word);)
            k++;
        if (!list || !list[k].word || seen >> k & 1) {
            p->l.p = at;
            return expected_attr(p, list, seen);
        }
        seen |= 1u << k;
        if (list[k].kind == ATTR_FLAG)
            attr_set(&n->attr, list[k].at, list[k].size, list[k].more | attr_get(&n->attr, list[k].at, list[k].size));
        else if (!lex_need(&p->l, '(', "'('") || !parse_one_attr(p, n, &list[k], lists, k))
            return false;
    }
    for (k = 0; list && list[k].word; k++)
        if (!list[k].optional && !(seen >> k & 1))
            return lex_fail(&p->l, p->l.p, "%s needs %s(...)", opinfo[n->op].name, list[k].word);
    return !lists || parse_axes_check(p, n, lists);
}
