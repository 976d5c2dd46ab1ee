/* Dimensions that are expressions over symbols, sums of terms of one symbol or of two: arithmetic, ranges and text.
 *
 * A symbol may be any number within its bounds, each independently of the others.  Where an expression is linear in
 * each of its symbols (n*m - m), its least and its greatest value are those at the ends of their bounds, and "fits for
 * every value" is a comparison of numbers; with a square, or more than MAX_CORNER symbols, that comparison may refuse
 * what would fit.  Only what is never negative and never too long is a dim. */
#include "ir/text/text.h"
#include <inttypes.h>
#include <string.h>

/* ---- dims ---- */

/* The low bits are a pattern of the expression's number: what plain arithmetic makes of a symbolic dim by mistake is
 * no dim, and is refused. */
int64_t dim_of_expression(uint32_t id)
{
    return -((int64_t)(((uint64_t)id + 1) << 24 | (id * UINT32_C(2654435761)) >> 8));
}

static const struct affine *symbol_expression(const struct graph *g, int64_t d)
{
    if (d >= 0 || d == INT64_MIN || !g || !g->symbols)
        return NULL;
    uint64_t id = ((uint64_t)-d >> 24) - 1;
    return id < g->symbols->nexpr && dim_of_expression((uint32_t)id) == d ? &g->symbols->expr[id] : NULL;
}

bool dim_affine(const struct graph *g, int64_t d, struct affine *a)
{
    const struct affine *e = symbol_expression(g, d);
    *a = e ? *e : (struct affine){.constant = d};
    return e || d >= 0;
}

bool dim_exists(const struct graph *g, int64_t d) { return d >= 0 || symbol_expression(g, d); }

/* ---- expressions ---- */

/* Below 0, 0 or above it: the order of two terms in an expression. */
static int term_order(const struct symbol_term *a, const struct symbol_term *b)
{
    return a->symbol != b->symbol ? (a->symbol < b->symbol ? -1 : 1)
           : a->times != b->times ? (a->times < b->times ? -1 : 1) : 0;
}

bool affine_add(struct affine *a, const struct affine *b, int64_t by)
{
    struct affine sum = {0};
    uint32_t i = 0, j = 0;
    int64_t part;
    if (__builtin_mul_overflow(b->constant, by, &part) || __builtin_add_overflow(a->constant, part, &sum.constant))
        return false;
    while (i < a->n || j < b->n) {
        bool left = j == b->n || (i < a->n && term_order(&a->term[i], &b->term[j]) <= 0);
        bool right = i == a->n || (j < b->n && term_order(&b->term[j], &a->term[i]) <= 0);
        struct symbol_term t = left ? a->term[i] : b->term[j];
        t.by = left ? t.by : 0;
        if (right && (__builtin_mul_overflow(b->term[j].by, by, &part) || __builtin_add_overflow(t.by, part, &t.by)))
            return false;
        i += left;
        j += right;
        if (!t.by)
            continue;
        if (sum.n == MAX_SYMBOL_TERMS)
            return false;
        sum.term[sum.n++] = t;
    }
    *a = sum;
    return true;
}

bool term_value(const struct symbol_term *t, const int64_t *value, int64_t *out)
{
    return !__builtin_mul_overflow(t->by, value[t->symbol], out) &&
           (!t->times || !__builtin_mul_overflow(*out, value[t->times - 1], out));
}

/* The least or the greatest value of a term. */
static bool term_bound(const struct graph *g, const struct symbol_term *t, bool min, int64_t *out)
{
    const struct symbol *s = &g->symbols->v[t->symbol], *other = t->times ? &g->symbols->v[t->times - 1] : NULL;
    bool low = min == (t->by > 0);
    return !__builtin_mul_overflow(t->by, low ? s->low : s->high, out) &&
           (!other || !__builtin_mul_overflow(*out, low ? other->low : other->high, out));
}

enum { MAX_CORNER = 6 };   /* symbols whose bounds are tried in all combinations */

/* The symbols of an expression that is linear in each of them; false: it is not, or has too many. */
static bool linear_symbols(const struct affine *a, uint32_t *symbol, uint32_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < 2 * a->n; i++) {
        const struct symbol_term *t = &a->term[i / 2];
        uint32_t s = i % 2 ? t->times - 1 : t->symbol, k = 0;
        if (i % 2 && !t->times)
            continue;
        if (t->times && t->times - 1 == t->symbol)
            return false;
        while (k < *n && symbol[k] != s)
            k++;
        if (k == MAX_CORNER)
            return false;
        symbol[k] = s;
        *n += k == *n;
    }
    return true;
}

/* Is it the product of symbols and numbers, or each symbol in one term only?  Then the bounds of terms are exact. */
static bool terms_are_apart(const struct affine *a, uint32_t symbols)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        n += a->term[i].times ? 2 : 1;
    return n == symbols;
}

/* The value of an expression where symbol[i] has its greatest value if bit i of `corner` is set, else its least. */
static bool corner_value(const struct graph *g, const struct affine *a, const uint32_t *symbol, uint32_t n,
                         uint32_t corner, int64_t *out)
{
    int64_t value[MAX_SYMBOLS], part;
    for (uint32_t i = 0; i < n; i++)
        value[symbol[i]] = corner >> i & 1 ? g->symbols->v[symbol[i]].high : g->symbols->v[symbol[i]].low;
    *out = a->constant;
    for (uint32_t i = 0; i < a->n; i++)
        if (!term_value(&a->term[i], value, &part) || __builtin_add_overflow(*out, part, out))
            return false;
    return true;
}

static bool corner_range(const struct graph *g, const struct affine *a, const uint32_t *symbol, uint32_t n,
                         int64_t *low, int64_t *high)
{
    for (uint32_t corner = 0; corner < UINT32_C(1) << n; corner++) {
        int64_t v;
        if (!corner_value(g, a, symbol, n, corner, &v))
            return false;
        *low = !corner || v < *low ? v : *low;
        *high = !corner || v > *high ? v : *high;
    }
    return true;
}

bool affine_range(const struct graph *g, const struct affine *a, int64_t *low, int64_t *high)
{
    uint32_t symbol[MAX_CORNER + 1], n;
    if (a->n > 1 && linear_symbols(a, symbol, &n) && !terms_are_apart(a, n))
        return corner_range(g, a, symbol, n, low, high);
    *low = *high = a->constant;
    for (uint32_t i = 0; i < a->n; i++) {
        int64_t min, max;
        if (!term_bound(g, &a->term[i], true, &min) || !term_bound(g, &a->term[i], false, &max) ||
            __builtin_add_overflow(*low, min, low) || __builtin_add_overflow(*high, max, high))
            return false;
    }
    return true;
}

bool affine_dim(const struct graph *g, const struct affine *a, int64_t *d)
{
    int64_t low, high;
    bool fits = a->constant >= -MAX_DIM;
    for (uint32_t i = 0; i < a->n; i++)
        fits &= a->term[i].by >= -MAX_DIM && a->term[i].by <= MAX_DIM;
    if (!fits || !affine_range(g, a, &low, &high) || low < 0 || high > MAX_DIM)
        return false;
    *d = a->constant;
    return !a->n || intern_expression(g->symbols, a, d);
}

static bool sum_of(const struct graph *g, unsigned n, const struct scaled *t, int64_t constant, struct affine *sum)
{
    *sum = (struct affine){.constant = constant};
    for (unsigned i = 0; i < n; i++) {
        struct affine a;
        if (!dim_affine(g, t[i].dim, &a) || !affine_add(sum, &a, t[i].by))
            return false;
    }
    return true;
}

/* The sum of what are all numbers, which most dims are; *ok: it is no overflow. */
static bool sum_of_numbers(unsigned n, const struct scaled *t, int64_t constant, int64_t *sum, bool *ok)
{
    int64_t part;
    *sum = constant;
    *ok = true;
    for (unsigned i = 0; i < n; i++) {
        if (t[i].dim < 0)
            return false;
        *ok = *ok && !__builtin_mul_overflow(t[i].dim, t[i].by, &part) && !__builtin_add_overflow(*sum, part, sum);
    }
    return true;
}

bool dims_sum(const struct graph *g, unsigned n, const struct scaled *t, int64_t constant, int64_t *out)
{
    struct affine sum;
    int64_t number;
    bool ok;
    if (!sum_of_numbers(n, t, constant, &number, &ok))
        return sum_of(g, n, t, constant, &sum) && affine_dim(g, &sum, out);
    if (ok && number >= 0)
        *out = number;
    return ok && number >= 0;
}

bool dims_never_negative(const struct graph *g, unsigned n, const struct scaled *t, int64_t constant)
{
    struct affine sum;
    int64_t low, high;
    bool ok;
    if (sum_of_numbers(n, t, constant, &low, &ok))
        return ok && low >= 0;
    return sum_of(g, n, t, constant, &sum) && affine_range(g, &sum, &low, &high) && low >= 0;
}

int64_t dims_build(struct graph *g, const char *op, unsigned n, const struct scaled *t, int64_t constant)
{
    struct affine sum;
    int64_t d = 0;
    if (g->err.code != KL_OK || dims_sum(g, n, t, constant, &d))
        return d;
    char text[DIM_TEXT], bounds[BOUNDS_TEXT];
    bool known = sum_of(g, n, t, constant, &sum);
    err_set(&g->err, KL_ERR_SHAPE, "%s: its gradient has a length of %s, which may be negative or too long%s", op,
            known ? affine_text(g, &sum, text, sizeof text) : "too many terms",
            known ? affine_bounds(g, &sum, 1, bounds, sizeof bounds) : "");
    return 0;
}

bool dim_range(const struct graph *g, int64_t d, int64_t *low, int64_t *high)
{
    struct affine a;
    return dim_affine(g, d, &a) && affine_range(g, &a, low, high);
}

bool dim_divide(const struct graph *g, int64_t d, int64_t by, int64_t *out)
{
    struct affine a;
    if (d >= 0)
        *out = d / by;
    if (d >= 0 || !dim_affine(g, d, &a))
        return d >= 0;
    int64_t rest = a.constant % by;
    a.constant = a.constant / by - (rest < 0);
    for (uint32_t i = 0; i < a.n; i++) {
        if (a.term[i].by % by)
            return false;
        a.term[i].by /= by;
    }
    return affine_dim(g, &a, out);
}

static bool affine_multiply(const struct affine *a, const struct affine *b, struct affine *product)
{
    *product = (struct affine){0};
    if (!affine_add(product, a, b->constant))
        return false;
    for (uint32_t k = 0; k < b->n; k++) {
        struct affine part = {.n = b->term[k].by && a->constant ? 1 : 0, .term = {b->term[k]}};
        if (part.n && (__builtin_mul_overflow(a->constant, part.term[0].by, &part.term[0].by) ||
                       !affine_add(product, &part, 1)))
            return false;
        for (uint32_t i = 0; i < a->n; i++) {
            uint32_t s = a->term[i].symbol, t = b->term[k].symbol;
            part = (struct affine){.n = 1, .term = {{.symbol = s < t ? s : t, .times = 1 + (s < t ? t : s)}}};
            if (a->term[i].times || b->term[k].times ||
                __builtin_mul_overflow(a->term[i].by, b->term[k].by, &part.term[0].by) ||
                !affine_add(product, &part, 1))
                return false;
        }
    }
    return true;
}

bool dim_multiply(const struct graph *g, int64_t a, int64_t b, int64_t *out)
{
    *out = 0;
    if (a == 0 || b == 0)
        return true;
    struct affine product, p, q;
    if (a < 0 && b < 0)
        return dim_affine(g, a, &p) && dim_affine(g, b, &q) && affine_multiply(&p, &q, &product) &&
               affine_dim(g, &product, out);
    return dims_sum(g, 1, &(struct scaled){a < 0 ? a : b, a < 0 ? b : a}, 0, out);
}

/* ---- shapes ---- */

bool shape_is_symbolic(const struct shape *s)
{
    for (uint32_t i = 0; i < s->rank; i++)
        if (s->dim[i] < 0)
            return true;
    return false;
}

bool symbolic_shape_is_legal(const struct graph *g, const struct shape *s)
{
    int64_t n, low;
    if (s->rank > KL_MAX_RANK)
        return false;
    struct shape max = *s;
    for (uint32_t i = 0; i < s->rank; i++)
        if (!dim_range(g, s->dim[i], &low, &max.dim[i]))
            return false;
    return shape_numel(&max, &n);
}

/* The shape's size as a number times expressions whose numbers have no common divisor. */
struct product { int64_t number; uint32_t n; struct affine factor[3 * KL_MAX_RANK]; };

static bool product_of(const struct graph *g, const struct shape *s, struct product *p)
{
    *p = (struct product){.number = 1};
    for (uint32_t i = 0; i < s->rank; i++) {
        struct affine a;
        if (!dim_affine(g, s->dim[i], &a))
            return false;
        struct length_factors f = length_factors_of(&a);
        if (__builtin_mul_overflow(p->number, f.number, &p->number))
            return false;
        for (uint32_t k = 0; k < f.nsymbol; k++)
            p->factor[p->n++] = (struct affine){.n = 1, .term = {{.symbol = f.symbol[k], .by = 1}}};
        if (f.sum.n)
            p->factor[p->n++] = f.sum;
    }
    return true;
}

/* Removes the factors of q from those of p; false: p has not all of them. */
static bool take_factors(struct product *p, const struct product *q)
{
    for (uint32_t i = 0; i < q->n; i++) {
        uint32_t k = 0;
        while (k < p->n && memcmp(&q->factor[i], &p->factor[k], sizeof p->factor[k]))
            k++;
        if (k == p->n)
            return false;
        p->factor[k] = p->factor[--p->n];
    }
    return true;
}

/* Such factors are irreducible, but for a sum all of whose terms have one symbol: the two products are the same
 * polynomial if their factors are the same, and otherwise are taken to be different. */
bool shape_same_size(const struct graph *g, const struct shape *a, const struct shape *b)
{
    struct product p, q;
    if (!product_of(g, a, &p) || !product_of(g, b, &q) || p.number != q.number)
        return false;
    if (p.number == 0)
        return true;
    return take_factors(&q, &p) && q.n == 0;
}

bool shape_rest(const struct graph *g, const struct shape *whole, const struct shape *part, int64_t *rest)
{
    struct product p, q;
    if (!product_of(g, whole, &p) || !product_of(g, part, &q) || !q.number || p.number % q.number)
        return false;
    if (!take_factors(&p, &q))
        return false;
    struct affine all = {.constant = p.number / q.number}, product;
    for (uint32_t i = 0; i < p.n; i++, all = product)
        if (!affine_multiply(&all, &p.factor[i], &product))
            return false;
    return affine_dim(g, &all, rest);
}

/* ---- text ---- */

const char *affine_text(const struct graph *g, const struct affine *a, char *buf, size_t n)
{
    size_t at = 0;
    for (uint32_t i = 0; i < a->n && at < n; i++) {
        int64_t by = a->term[i].by;
        const char *name = g->symbols->v[a->term[i].symbol].name;
        const char *other = a->term[i].times ? g->symbols->v[a->term[i].times - 1].name : "";
        const char *by_other = *other ? "*" : "";
        if (by == 1 || by == -1)
            at += (size_t)snprintf(buf + at, n - at, "%s%s%s%s", by < 0 ? "-" : i ? "+" : "", name, by_other, other);
        else
            at += (size_t)snprintf(buf + at, n - at, "%s%" PRId64 "*%s%s%s", by < 0 || !i ? "" : "+", by, name,
                                   by_other, other);
    }
    if (at < n && (a->constant || !a->n))
        snprintf(buf + at, n - at, a->n ? "%+" PRId64 : "%" PRId64, a->constant);
    return buf;
}

const char *dim_text(const struct graph *g, int64_t d, char *buf, size_t n)
{
    struct affine a;
    if (dim_affine(g, d, &a))
        return affine_text(g, &a, buf, n);
    snprintf(buf, n, "%" PRId64, d);
    return buf;
}

const char *shape_text_in(const struct graph *g, const struct shape *s, char *buf, size_t n)
{
    size_t at = 0;
    for (uint32_t i = 0; i < s->rank && i < KL_MAX_RANK && at < n; i++) {
        char dim[DIM_TEXT];
        at += (size_t)snprintf(buf + at, n - at, "%s%s", i ? "," : "[", dim_text(g, s->dim[i], dim, sizeof dim));
    }
    if (at < n)
        snprintf(buf + at, n - at, s->rank ? "]" : "[]");
    return buf;
}

const char *affine_bounds(const struct graph *g, const struct affine *a, unsigned count, char *buf, size_t n)
{
    uint64_t seen = 0;
    size_t at = 0;
    *buf = 0;
    for (unsigned i = 0; i < count; i++)
        for (uint32_t k = 0; k < 2 * a[i].n && at < n; k++) {
            const struct symbol_term *t = &a[i].term[k / 2];
            uint32_t symbol = k % 2 && t->times ? t->times - 1 : t->symbol;
            const struct symbol *s = &g->symbols->v[symbol];
            if (seen >> symbol & 1)
                continue;
            at += (size_t)snprintf(buf + at, n - at, "%s%s in %" PRId64 "..%" PRId64, seen ? ", " : " for ", s->name,
                                   s->low, s->high);
            seen |= UINT64_C(1) << symbol;
        }
    return buf;
}

const char *bounds_text(const struct graph *g, const struct shape *s, char *buf, size_t n)
{
    struct affine a[KL_MAX_RANK];
    unsigned count = 0;
    for (uint32_t i = 0; i < s->rank && i < KL_MAX_RANK; i++)
        count += s->dim[i] < 0 && dim_affine(g, s->dim[i], &a[count]);
    return affine_bounds(g, a, count, buf, n);
}
