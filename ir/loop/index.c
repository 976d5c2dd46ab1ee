/* Index arithmetic that simplifies itself.
 *
 * Every i64 index value has a linear form: constant + sum of coefficient * atom.  An atom is a loop variable or a value
 * that is not linear (a quotient, a loaded value). mod is not an atom: a mod c is a - c*(a/c).  Linearising coordinates
 * that came from a linear index then cancels term by term, and a reshape between two row-major shapes costs nothing.
 * Ranges come from constant loop bounds. */
#include "index.h"
#include <string.h>

struct index_table *index_table(struct kernel *k)
{
    if (!k->index)
        k->index = mem_alloc(sizeof *k->index);
    if (!k->index) {
        err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
        return NULL;
    }
    if (k->index->cap < k->ninst) {
        uint32_t cap = k->inst_cap > k->ninst ? k->inst_cap : k->ninst;
        void *p = mem_grow(k->index->e, k->index->cap * sizeof *k->index->e, cap * sizeof *k->index->e);
        if (!p) {
            err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
            return NULL;
        }
        k->index->e = p;
        k->index->cap = cap;
    }
    return k->index;
}

void index_free(struct kernel *k)
{
    if (!k->index)
        return;
    index_notes_free(k->index);
    for (uint32_t i = 0; i < k->index->cap; i++)
        mem_free(k->index->e[i].t);
    mem_free(k->index->e);
    mem_free(k->index);
    k->index = NULL;
}

static struct form form_const(int64_t c) { return (struct form){.c = c, .lo = c, .hi = c}; }

static int64_t const_value(const struct linst *i) { return (int64_t)i->imm; }

/* The range of a value that is its own atom. */
static void atom_range(const struct kernel *k, val v, int64_t *lo, int64_t *hi)
{
    const struct linst *i = &k->inst[v];
    *lo = -RANGE_MAX;
    *hi = RANGE_MAX;
    if (i->op == L_LOOP) {
        const struct linst *a = &k->inst[i->a], *b = &k->inst[i->b];
        if (a->op == L_CONST)
            *lo = const_value(a);
        struct form hi_form = index_form(k, i->b);
        *hi = hi_form.hi < RANGE_MAX ? hi_form.hi - 1 : RANGE_MAX;
        if (b->op == L_CONST && a->op == L_CONST && *hi >= *lo)
            *hi = *lo + (*hi - *lo) / (int64_t)i->imm * (int64_t)i->imm;
    }
}

struct form index_form(const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v];
    if (i->op == L_CONST)
        return form_const(const_value(i));
    if (k->index && v < k->index->cap && k->index->e[v].known) {
        const struct entry *e = &k->index->e[v];
        struct form f = {.n = e->n, .c = e->c, .lo = e->lo, .hi = e->hi};
        if (e->n)
            memcpy(f.t, e->t, e->n * sizeof *f.t);
        return f;
    }
    struct form f = {.n = 1};
    f.t[0] = (struct term){v, 1};
    atom_range(k, v, &f.lo, &f.hi);
    return f;
}

static int64_t sat_add(int64_t a, int64_t b)
{
    int64_t s;
    if (__builtin_add_overflow(a, b, &s) || s > RANGE_MAX || s < -RANGE_MAX)
        return a > 0 ? RANGE_MAX : -RANGE_MAX;
    return s;
}

static int64_t sat_mul(int64_t a, int64_t b)
{
    int64_t p;
    if (__builtin_mul_overflow(a, b, &p) || p > RANGE_MAX || p < -RANGE_MAX)
        return (a < 0) == (b < 0) ? RANGE_MAX : -RANGE_MAX;
    return p;
}

/* Have two forms the same value?  By members: a term has padding, whose bytes nothing sets. */
static bool form_same(const struct form *a, const struct form *b)
{
    bool same = a->n == b->n && a->c == b->c;
    for (uint32_t i = 0; same && i < a->n; i++)
        same = a->t[i].atom == b->t[i].atom && a->t[i].coef == b->t[i].coef;
    return same;
}

/* Recomputes the range from those of the atoms; keeps a tighter one that is known. */
static void form_range(const struct kernel *k, struct form *f)
{
    int64_t lo = f->c, hi = f->c;
    for (uint32_t i = 0; i < f->n; i++) {
        int64_t alo, ahi;
        struct form a = index_form(k, f->t[i].atom);
        alo = a.lo;
        ahi = a.hi;
        int64_t p = sat_mul(alo, f->t[i].coef), q = sat_mul(ahi, f->t[i].coef);
        lo = sat_add(lo, p < q ? p : q);
        hi = sat_add(hi, p < q ? q : p);
    }
    f->lo = lo > f->lo ? lo : f->lo;
    f->hi = hi < f->hi ? hi : f->hi;
}

/* *sum = a + s*b; false: it has more than 64 bits. */
static bool add_product(int64_t a, int64_t s, int64_t b, int64_t *sum)
{
    int64_t product;
    return !__builtin_mul_overflow(s, b, &product) && !__builtin_add_overflow(a, product, sum);
}

/* r = a + s*b; false if there are too many terms, or too large ones, as where memory has run out and values are not
 * known.  Terms are sorted by atom: outer loops first. */
static bool form_add(const struct kernel *k, const struct form *a, const struct form *b, int64_t s, struct form *r)
{
    struct form f = {0};
    if (!add_product(a->c, s, b->c, &f.c))
        return false;
    uint32_t i = 0, j = 0;
    while (i < a->n || j < b->n) {
        struct term t;
        if (j >= b->n || (i < a->n && a->t[i].atom < b->t[j].atom)) {
            t = a->t[i++];
        } else if (i >= a->n || b->t[j].atom < a->t[i].atom) {
            t.atom = b->t[j].atom;
            if (!add_product(0, s, b->t[j++].coef, &t.coef))
                return false;
        } else {
            t.atom = a->t[i].atom;
            if (!add_product(a->t[i++].coef, s, b->t[j++].coef, &t.coef))
                return false;
        }
        if (!t.coef)
            continue;
        if (f.n == MAX_TERMS)
            return false;
        f.t[f.n++] = t;
    }
    int64_t p = sat_mul(b->lo, s), q = sat_mul(b->hi, s);
    f.lo = sat_add(a->lo, p < q ? p : q);
    f.hi = sat_add(a->hi, p < q ? q : p);
    form_range(k, &f);
    *r = f;
    return true;
}

void index_remember(struct kernel *k, val v, const struct form *f)
{
    struct index_table *x = index_table(k);
    if (!x || !v || x->e[v].known)
        return;
    struct term *t = NULL;
    if (f->n) {
        t = mem_alloc(f->n * sizeof *t);
        if (!t) {
            err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
            return;
        }
        memcpy(t, f->t, f->n * sizeof *t);
    }
    x->e[v] = (struct entry){.known = true, .lo = f->lo, .hi = f->hi, .n = f->n, .c = f->c, .t = t};
}

/* Index instructions are marked, so that passes can distinguish them from data of dtype i64. */
static val index_prim(struct kernel *k, enum prim p, val a, val b)
{
    val v = k_prim(k, p, a, b, 0);
    if (v)
        k->inst[v].kind = INST_INDEX;
    return v;
}

/* Emits a form: the constant is added last, so that it becomes an address offset. */
static val form_value(struct kernel *k, const struct form *f)
{
    if (!f->n)
        return k_int(k, f->c);
    val sum = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        val t = f->t[i].atom;
        if (f->t[i].coef != 1)
            t = index_prim(k, P_MUL, t, k_int(k, f->t[i].coef));
        sum = sum ? index_prim(k, P_ADD, sum, t) : t;
    }
    if (f->c)
        sum = index_prim(k, P_ADD, sum, k_int(k, f->c));
    bool atom = f->n == 1 && f->t[0].coef == 1 && f->c == 0;
    if (!atom)
        index_remember(k, sum, f);
    return sum;
}

static val ix_combine(struct kernel *k, val a, val b, int64_t s)
{
    if (!a || !b)
        return 0;
    struct form fa = index_form(k, a), fb = index_form(k, b), f;
    if (form_add(k, &fa, &fb, s, &f)) {
        if (form_same(&f, &fa))
            return a;
        return form_value(k, &f);
    }
    return index_prim(k, P_ADD, a, s == 1 ? b : index_prim(k, P_MUL, b, k_int(k, s)));
}

val ix_add(struct kernel *k, val a, val b) { return ix_combine(k, a, b, 1); }
val ix_sub(struct kernel *k, val a, val b) { return ix_combine(k, a, b, -1); }

/* A value of its own within lo..hi. */
static val whole_prim(struct kernel *k, enum prim p, val a, val b, int64_t lo, int64_t hi)
{
    val v = index_prim(k, p, a, b);
    struct form atom = {.n = 1, .lo = lo, .hi = hi};
    atom.t[0] = (struct term){v, 1};
    index_remember(k, v, &atom);
    return v;
}

/* The product of two values that are atoms: the same value for the same two, so that terms with it cancel. */
static val atoms_product(struct kernel *k, val a, val b, int64_t lo, int64_t hi)
{
    struct index_table *x = index_table(k);
    val first = a < b ? a : b, second = a < b ? b : a;
    for (uint32_t i = 0; x && i < x->ntimes; i++)
        if (x->times[i].a == first && x->times[i].b == second)
            return x->times[i].product;
    val product = whole_prim(k, P_MUL, a, b, lo, hi);
    if (x && x->ntimes < MAX_QUOTIENTS) {
        x->times[x->ntimes].a = first;
        x->times[x->ntimes].b = second;
        x->times[x->ntimes++].product = product;
    }
    return product;
}

/* Is it a number times one atom? */
static bool form_is_multiple(const struct form *f) { return f->n == 1 && !f->c; }

val ix_mul(struct kernel *k, val a, val b)
{
    if (!a || !b)
        return 0;
    struct form x = index_form(k, a), y = index_form(k, b);
    if (!x.n || !y.n)
        return x.n ? ix_scale(k, a, y.c) : ix_scale(k, b, x.c);
    int64_t lo = x.lo >= 0 && y.lo >= 0 ? sat_mul(x.lo, y.lo) : -RANGE_MAX, hi = sat_mul(x.hi, y.hi);
    if (!form_is_multiple(&x) || !form_is_multiple(&y))
        return atoms_product(k, a, b, lo, hi);
    int64_t coef;
    if (__builtin_mul_overflow(x.t[0].coef, y.t[0].coef, &coef) || coef < 1)
        return atoms_product(k, a, b, lo, hi);
    return ix_scale(k, atoms_product(k, x.t[0].atom, y.t[0].atom, lo > 0 ? lo / coef : lo, hi / coef), coef);
}

val ix_scale(struct kernel *k, val a, int64_t c)
{
    if (!a)
        return 0;
    if (c == 1)
        return a;
    return ix_combine(k, k_int(k, 0), a, c);
}

/* f as c*q + rest. nearest: q takes the nearest multiple of c from each coefficient, so that the rest has the smallest
 * coefficients; otherwise only coefficients that are multiples.  Returns whether 0 <= rest < c. */
static bool form_divide(const struct kernel *k, const struct form *f, int64_t c, bool nearest, struct form *q,
                        struct form *rest)
{
    *q = form_const(0);
    *rest = form_const(0);
    for (uint32_t i = 0; i < f->n; i++) {
        int64_t coef = f->t[i].coef, times = coef / c, over = coef % c;
        if (nearest && over)
            times += over > c / 2 ? 1 : over < -(c / 2) ? -1 : 0;
        else if (over)
            times = 0;
        if (times)
            q->t[q->n++] = (struct term){f->t[i].atom, times};
        if (coef - times * c)
            rest->t[rest->n++] = (struct term){f->t[i].atom, coef - times * c};
    }
    int64_t qc = f->c / c, rc = f->c % c;
    if (rc < 0)
        qc--, rc += c;
    q->c = qc;
    rest->c = rc;
    q->lo = rest->lo = -RANGE_MAX;
    q->hi = rest->hi = RANGE_MAX;
    form_range(k, q);
    form_range(k, rest);
    return rest->lo >= 0 && rest->hi < c;
}

/* Splits f into c*q + rest with 0 <= rest < c if possible; otherwise q has the terms that c divides. */
static bool form_split(const struct kernel *k, const struct form *f, int64_t c, struct form *q, struct form *rest)
{
    struct form near_q, near_rest;
    if (form_divide(k, f, c, false, q, rest))
        return true;
    if (!form_divide(k, f, c, true, &near_q, &near_rest))
        return false;
    *q = near_q;
    *rest = near_rest;
    return true;
}

static int64_t floor_div(int64_t a, int64_t c) { return a >= 0 ? a / c : -((-a + c - 1) / c); }

/* f = d*q + rest with 0 <= rest < d for the largest such divisor d of c: then floor(f/c) is floor(q/(c/d)). 1: there is
 * no larger one. */
static int64_t form_common(const struct kernel *k, const struct form *f, int64_t c, struct form *q)
{
    int64_t best = 1;
    for (uint32_t i = 0; i < f->n; i++) {
        int64_t d = common_divisor(c, f->t[i].coef);
        struct form quotient, rest;
        if (d > best && d < c && form_split(k, f, d, &quotient, &rest)) {
            best = d;
            *q = quotient;
        }
    }
    return best;
}

int64_t ix_split(struct kernel *k, val v, int64_t c, val *q, val *rest)
{
    struct form f = index_form(k, v), quotient, remainder;
    int64_t d = 1;
    if (c > 1)
        d = form_split(k, &f, c, &quotient, &remainder) ? c : form_common(k, &f, c, &quotient);
    *q = v;
    *rest = k_int(k, 0);
    if (d > 1) {
        form_split(k, &f, d, &quotient, &remainder);
        *q = form_value(k, &quotient);
        *rest = form_value(k, &remainder);
    }
    return d;
}

/* If f has a quotient floor(x/b) with coefficient 1, as indices that were split and joined have, floor(f/c) is that of
 * (x + b (f - floor(x/b))) / (b c), in which terms cancel that the quotient hides. *g: that numerator; returns b, or 0:
 * there is no such quotient. */
static int64_t form_inside(const struct kernel *k, const struct form *f, int64_t c, struct form *g)
{
    for (uint32_t i = 0; i < f->n; i++) {
        const struct linst *q = &k->inst[f->t[i].atom];
        if (f->t[i].coef != 1 || q->op != L_PRIM + P_DIV || q->kind != INST_INDEX || k->inst[q->b].op != L_CONST)
            continue;
        struct form x = index_form(k, q->a), zero = form_const(0), others = *f;
        int64_t b = const_value(&k->inst[q->b]);
        memmove(&others.t[i], &others.t[i + 1], (others.n - i - 1) * sizeof *others.t);
        others.n--;
        others.lo = -RANGE_MAX;
        others.hi = RANGE_MAX;
        form_range(k, &others);
        if (x.lo < 0 || b > INT32_MAX || c > INT32_MAX || !form_add(k, &zero, &others, b, &others) ||
            !form_add(k, &x, &others, 1, g))
            continue;
        g->lo = g->lo > sat_mul(f->lo, b) ? g->lo : sat_mul(f->lo, b);
        g->hi = g->hi < sat_add(sat_mul(f->hi, b), b - 1) ? g->hi : sat_add(sat_mul(f->hi, b), b - 1);
        return b;
    }
    return 0;
}

/* floor(a/c) for any a: the divisible terms are divided, the rest becomes one quotient atom. */
val ix_div(struct kernel *k, val a, int64_t c)
{
    if (!a || c == 1)
        return a;
    if (c < 1)
        return k_int(k, 0);
    struct form f = index_form(k, a), q, rest;
    if (f.lo >= 0 && f.hi < c)
        return k_int(k, 0);
    if (form_split(k, &f, c, &q, &rest))
        return form_value(k, &q);
    int64_t common = form_common(k, &f, c, &q);
    if (common > 1) {
        q.lo = floor_div(f.lo, common) > q.lo ? floor_div(f.lo, common) : q.lo;
        q.hi = floor_div(f.hi, common) < q.hi ? floor_div(f.hi, common) : q.hi;
        return ix_div(k, form_value(k, &q), c / common);
    }
    int64_t inside = form_inside(k, &f, c, &q);
    if (inside)
        return ix_div(k, form_value(k, &q), inside * c);
    form_split(k, &f, c, &q, &rest);
    struct index_table *x = index_table(k);
    if (!x)
        return 0;
    /* A rest below 0 consists of terms that belong together (a - c*floor(a/c)); then a is divided whole, with its own
     * range.  Otherwise the ranges of nested quotients would grow without bound; and DIV truncates. */
    bool partial = (q.n || q.c) && rest.lo >= 0;
    if (!partial) {
        rest = f;
        q = form_const(0);
    }
    val num = partial ? form_value(k, &rest) : a;
    val quot = 0;
    for (uint32_t i = 0; i < x->ndiv && !quot; i++)
        if (size_equal(x->div[i].c, size_constant(c)) && ix_same(k, x->div[i].a, num))
            quot = x->div[i].q;
    if (!quot) {
        /* DIV truncates, so a negative numerator is first shifted up by a multiple of c. */
        int64_t shift = rest.lo < 0 && rest.lo > -RANGE_MAX ? floor_div(rest.lo, c) : 0;
        val pos = shift ? index_prim(k, P_ADD, num, k_int(k, -shift * c)) : num;
        quot = index_prim(k, P_DIV, pos, k_int(k, c));
        struct form atom = {.n = 1, .lo = floor_div(rest.lo, c) - shift, .hi = floor_div(rest.hi, c) - shift};
        atom.t[0] = (struct term){quot, 1};
        index_remember(k, quot, &atom);
        if (shift)
            quot = ix_add(k, quot, k_int(k, shift));
        if (x->ndiv < MAX_QUOTIENTS) {
            x->div[x->ndiv].a = num;
            x->div[x->ndiv].c = size_constant(c);
            x->div[x->ndiv++].q = quot;
        }
    }
    return partial ? ix_add(k, quot, form_value(k, &q)) : quot;
}

val ix_mod(struct kernel *k, val a, int64_t c)
{
    if (!a)
        return 0;
    if (c <= 1)
        return k_int(k, 0);
    val r = ix_sub(k, a, ix_scale(k, ix_div(k, a, c), c));
    struct index_table *x = index_table(k);
    if (x && r && x->e[r].known)
        ix_bound(k, r, 0, c - 1);
    return r;
}

/* Is f known to be below size c, by ix_assume_below? */
static bool form_is_below(const struct kernel *k, const struct form *f, struct size c)
{
    const struct index_table *x = k->index;
    for (uint32_t i = 0; x && i < x->nbelow && i < MAX_BELOW; i++) {
        struct form g = index_form(k, x->below[i].v);
        if (x->below[i].v && size_is_multiple(c, x->below[i].size) && form_same(&g, f))
            return true;
    }
    return false;
}

/* Is the term coef * v a multiple of the size whose form is s?  Then it is *times * *factor times the size; *factor 0
 * stands for 1. */
static bool term_of_size(const struct kernel *k, const struct term *t, const struct form *s, int64_t *times,
                         val *factor)
{
    const struct linst *i = &k->inst[t->atom];
    *factor = 0;
    *times = t->coef / s->t[0].coef;
    if (t->atom == s->t[0].atom)
        return t->coef % s->t[0].coef == 0;
    for (int side = 0; side < 2 && i->op == L_OP(P_MUL) && i->kind == INST_INDEX; side++) {
        struct form g = index_form(k, side ? i->a : i->b);
        int64_t coef;
        if (!form_is_multiple(&g) || g.t[0].atom != s->t[0].atom ||
            __builtin_mul_overflow(t->coef, g.t[0].coef, &coef) || coef % s->t[0].coef)
            continue;
        *factor = side ? i->b : i->a;
        *times = coef / s->t[0].coef;
        return true;
    }
    return false;
}

/* a = c * q + r, where q has the terms of a that are multiples of the size c, if r is not below 0 then.  false: there
 * are no such terms. */
static bool size_split_off(struct kernel *k, val a, const struct form *s, val *q, val *r)
{
    struct form f = index_form(k, a), rest = {.c = f.c, .lo = -RANGE_MAX, .hi = RANGE_MAX};
    int64_t times[MAX_TERMS];
    val factor[MAX_TERMS];
    uint32_t n = 0;
    for (uint32_t i = 0; form_is_multiple(s) && s->t[0].coef > 0 && i < f.n; i++)
        if (term_of_size(k, &f.t[i], s, &times[n], &factor[n]))
            n++;
        else
            rest.t[rest.n++] = f.t[i];
    form_range(k, &rest);
    if (!n || rest.lo < 0)
        return false;
    *q = k_int(k, 0);
    for (uint32_t i = 0; i < n; i++)
        *q = ix_add(k, *q, factor[i] ? ix_scale(k, factor[i], times[i]) : k_int(k, times[i]));
    *r = form_value(k, &rest);
    return true;
}

/* floor(a/c) of a size c with symbols, which divides nothing where it is 0.  *rest, if not NULL: a - c times it.  Where
 * a is negative it is the index of an element that is not accessed, outside of a pad's or a concat's operand: the
 * quotient is rounded toward zero. */
static val div_by_size(struct kernel *k, val a, struct size c, val *rest)
{
    struct form f = index_form(k, a);
    val size = ix_size(k, c), multiples, below;
    struct form s = index_form(k, size);
    if (rest)
        *rest = a;
    if (f.lo >= 0 && (f.hi < s.lo || form_is_below(k, &f, c)))
        return k_int(k, 0);
    if (f.lo >= 0 && size_split_off(k, a, &s, &multiples, &below))
        return ix_add(k, multiples, div_by_size(k, below, c, rest));
    struct index_table *x = index_table(k);
    val q = 0;
    for (uint32_t i = 0; x && i < x->ndiv && !q; i++)
        if (size_equal(x->div[i].c, c) && ix_same(k, x->div[i].a, a))
            q = x->div[i].q;
    if (!q) {
        val one = k_int(k, 1), by = s.lo > 0 ? size : k_prim(k, P_SELECT, k_prim(k, P_LT, size, one, 0), one, size);
        int64_t min = s.lo > 0 ? s.lo : 1;
        q = whole_prim(k, P_DIV, a, by, f.lo < 0 ? f.lo : 0, f.hi < RANGE_MAX ? f.hi / min : RANGE_MAX);
        if (x && x->ndiv < MAX_QUOTIENTS) {
            x->div[x->ndiv].a = a;
            x->div[x->ndiv].c = c;
            x->div[x->ndiv++].q = q;
        }
    }
    if (rest) { /* a form in which q cancels where it is multiplied by the size again */
        *rest = ix_sub(k, a, ix_mul(k, q, size));
        int64_t max = ix_max(k, c) - 1;
        ix_bound(k, *rest, f.lo < 0 ? -max : 0, max < f.hi ? max : f.hi);
    }
    return q;
}

val ix_quotient(struct kernel *k, val a, val by, int64_t max, val *rest)
{
    int64_t number;
    if (ix_const(k, by, &number)) {
        *rest = ix_mod(k, a, number);
        return ix_div(k, a, number);
    }
    struct form f = index_form(k, a);
    val one = k_int(k, 1), above = k_prim(k, P_SELECT, k_prim(k, P_LT, by, one, 0), one, by);
    val q = whole_prim(k, P_DIV, a, above, 0, f.hi);
    *rest = whole_prim(k, P_SUB, a, ix_mul(k, q, above), 0, max - 1 < f.hi ? max - 1 : f.hi);
    return q;
}

val ix_scale_size(struct kernel *k, val a, struct size c)
{
    return size_is_constant(c) ? ix_scale(k, a, c.number) : ix_mul(k, a, ix_size(k, c));
}

val ix_div_size(struct kernel *k, val a, struct size c)
{
    return size_is_constant(c) ? ix_div(k, a, c.number) : div_by_size(k, a, c, NULL);
}

val ix_mod_size(struct kernel *k, val a, struct size c)
{
    val rest = 0;
    if (size_is_constant(c))
        return ix_mod(k, a, c.number);
    div_by_size(k, a, c, &rest);
    return rest;
}

bool ix_stride(struct kernel *k, val v, val var, int64_t *stride)
{
    struct form f = index_form(k, v);
    *stride = 0;
    for (uint32_t i = 0; i < f.n; i++) {
        if (f.t[i].atom == var)
            *stride = f.t[i].coef;
        else if (ix_depends(k, f.t[i].atom, var))
            return false;
    }
    return true;
}

/* Is v the product of var and symbols' values?  *size: that of the symbols. */
static bool times_symbols(const struct kernel *k, val v, val var, struct size *size)
{
    const struct linst *i = &k->inst[v];
    *size = size_constant(1);
    if (v == var)
        return true;
    for (uint32_t s = 0; k->placeholders && s < k->placeholders->n && !var; s++)
        if (v == k->symbol[s]) {
            *size = kernel_length(k, k->placeholders->v[s].prime);
            return true;
        }
    struct size a, b;
    if (i->op != L_OP(P_MUL) || i->kind != INST_INDEX)
        return false;
    bool first = times_symbols(k, i->a, var, &a) && times_symbols(k, i->b, 0, &b);
    if (!first && !(var && times_symbols(k, i->a, 0, &a) && times_symbols(k, i->b, var, &b)))
        return false;
    *size = size_mul(a, b);
    return true;
}

bool ix_stride_size(struct kernel *k, val v, val var, struct size *stride)
{
    struct form f = index_form(k, v);
    *stride = size_constant(0);
    for (uint32_t i = 0; i < f.n; i++) {
        struct size size;
        if (times_symbols(k, f.t[i].atom, var, &size)) {
            if (!size_add(stride, size_mul(size, size_constant(f.t[i].coef))))
                return false;
        } else if (ix_depends(k, f.t[i].atom, var)) {
            return false;
        }
    }
    return true;
}

/* Goes back from v and visits each value once, because nested views use quotients many times: a bit for each value from
 * var to v, that of an operand below that of its user.  Kernels of unrolled loops have thousands, few of which lead to
 * v. */
int index_uses(const struct kernel *k, val v, val var)
{
    enum { BITS = 64, NEAR = 32 };
    uint64_t near[NEAR] = {0}, *todo = near;
    if (v <= var)
        return v == var;
    uint32_t words = (v - var) / BITS + 1;
    if (words > NEAR && !(todo = mem_alloc(words * sizeof *todo)))
        return -1;
    todo[words - 1] = UINT64_C(1) << (v - var) % BITS;
    for (uint32_t w = words; w-- > 0;)
        while (todo[w] && !(todo[0] & 1)) {
            uint32_t bit = BITS - 1 - (uint32_t)__builtin_clzll(todo[w]);
            const struct linst *i = &k->inst[var + w * BITS + bit];
            todo[w] ^= UINT64_C(1) << bit;
            if (i->op < L_PRIM && i->op != L_LOAD && i->op != L_SPLAT)
                continue;
            const val operand[] = {i->a, i->b, i->c};
            for (int o = 0; o < 3; o++)
                if (operand[o] >= var)
                    todo[(operand[o] - var) / BITS] |= UINT64_C(1) << (operand[o] - var) % BITS;
        }
    bool found = todo[0] & 1;
    if (todo != near)
        mem_free(todo);
    return found;
}

bool ix_depends(struct kernel *k, val v, val var)
{
    int found = index_uses(k, v, var);
    if (found < 0)
        err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
    return found;
}

bool ix_same(const struct kernel *k, val a, val b)
{
    struct form fa = index_form(k, a), fb = index_form(k, b);
    return form_same(&fa, &fb);
}

bool ix_range(const struct kernel *k, val v, int64_t *lo, int64_t *hi)
{
    struct form f = index_form(k, v);
    *lo = f.lo;
    *hi = f.hi;
    return f.lo > -RANGE_MAX && f.hi < RANGE_MAX;
}

bool ix_const(const struct kernel *k, val v, int64_t *c)
{
    struct form f = index_form(k, v);
    *c = f.c;
    return f.n == 0;
}
