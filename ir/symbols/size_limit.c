/* What a graph is made like may depend on a size: on which side of a limit it is.  Such a graph has one program for
 * each side, and not for each value of its symbols (README.md, "Ranges"). */
#include "ir/ir.h"

/* The product for the least or the greatest values; saturates. */
static int64_t product_bound(const struct symbols *s, const struct size_limit *l, bool greatest)
{
    int64_t n = l->number;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint8_t k = 0; k < l->power[i]; k++)
            if (__builtin_mul_overflow(n, greatest ? s->v[i].high : s->v[i].low, &n))
                n = INT64_MAX;
    return n;
}

/* Is the product of the lengths on different sides of the limit for different values of the symbols? */
static bool lengths_vary(const struct graph *g, const int64_t *length, uint32_t n, int64_t limit)
{
    int64_t min = 1, max = 1;
    for (uint32_t i = 0; i < n; i++) {
        int64_t low, high;
        if (!dim_range(g, length[i], &low, &high) || __builtin_mul_overflow(max, high, &max))
            return true;
        min *= low;
    }
    return min < limit && max >= limit;
}

void graph_depends_on(const struct graph *g, const int64_t *length, uint32_t n, int64_t limit, const char *why)
{
    struct size_limit l = {.number = 1, .limit = limit, .why = why};
    if (!g->symbols || g->symbols->varies.number)
        return;
    for (uint32_t i = 0; i < n; i++) {
        struct affine a;
        dim_affine(g, length[i], &a);
        if (a.n > 1 || (a.n && a.constant)) { /* a sum, which no ranges of symbols keep on one side */
            if (lengths_vary(g, length, n, limit))
                g->symbols->varies = (struct size_limit){.why = why};
            return;
        }
        if (__builtin_mul_overflow(l.number, a.n ? a.term[0].by : a.constant, &l.number))
            return;
        if (a.n)
            l.power[a.term[0].symbol]++;
        if (a.n && a.term[0].times)
            l.power[a.term[0].times - 1]++;
    }
    if (l.number > 0 && product_bound(g->symbols, &l, false) < limit && product_bound(g->symbols, &l, true) >= limit)
        g->symbols->varies = l;
}

void graph_depends_on_values(const struct graph *g, const char *why)
{
    if (!g->symbols->varies.why)
        g->symbols->varies.why = why;
}

static bool one_side(const struct symbols *s, const struct size_limit *l)
{
    return product_bound(s, l, true) < l->limit || product_bound(s, l, false) >= l->limit;
}

/* The product for these values of the symbols, but for one whose value is `x`. */
static bool size_is_below(const struct symbols *s, const struct size_limit *l, const int64_t *value, uint32_t but,
                          int64_t x)
{
    int64_t n = l->number;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint8_t k = 0; k < l->power[i]; k++)
            if (__builtin_mul_overflow(n, i == but ? x : value[i], &n))
                n = INT64_MAX;
    return n < l->limit;
}

/* The range of the last symbol, with all others at the ends of theirs that matter: as long as it can be. */
static void narrow_last(struct symbols *s, const struct size_limit *l, const int64_t *value, uint32_t i)
{
    int64_t end[MAX_SYMBOLS], low = s->v[i].low, high = s->v[i].high;
    bool less = size_is_below(s, l, value, i, value[i]);
    for (uint32_t k = 0; k < s->n; k++)
        end[k] = less ? s->v[k].high : s->v[k].low;
    for (int64_t from = less ? value[i] : low, to = less ? high : value[i]; from < to;) {
        /* the greatest one below the limit, or the least one that is not */
        int64_t middle = from + (to - from + less) / 2;
        bool is_below = size_is_below(s, l, end, i, middle);
        if (less) {
            *(is_below ? &from : &to) = is_below ? middle : middle - 1;
            high = to;
        } else {
            *(is_below ? &from : &to) = is_below ? middle + 1 : middle;
            low = from;
        }
    }
    s->v[i].low = low;
    s->v[i].high = high;
}

void size_limit_narrow(struct symbols *s, const struct size_limit *l, const int64_t *value)
{
    uint32_t last = s->n;
    for (uint32_t i = 0; i < s->n; i++)
        last = l->power[i] ? i : last;
    /* All but the last one to a range between powers of two, so that there are few of them. */
    for (uint32_t i = 0; i < last && last < s->n && !one_side(s, l); i++) {
        int64_t from = 1;
        while (l->power[i] && 2 * from <= value[i])
            from *= 2;
        if (!l->power[i])
            continue;
        s->v[i].low = from > s->v[i].low && value[i] ? from : s->v[i].low;
        s->v[i].high = 2 * from - 1 < s->v[i].high ? (value[i] ? 2 * from - 1 : 0) : s->v[i].high;
    }
    if (last == s->n || one_side(s, l))
        return;
    int64_t end[MAX_SYMBOLS];
    bool less = size_is_below(s, l, value, last, value[last]);
    for (uint32_t k = 0; k < s->n; k++)
        end[k] = less ? s->v[k].high : s->v[k].low;
    /* then to the value itself */
    for (uint32_t i = 0; i < last && size_is_below(s, l, end, last, value[last]) != less; i++)
        if (l->power[i])
            s->v[i].low = s->v[i].high = end[i] = value[i];
    narrow_last(s, l, value, last);
}
