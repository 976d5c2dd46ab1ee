/* Lengths as products: a number, symbols, and a sum that has no more of these as a factor. */
#include "ir/ir.h"

int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a < 0 ? -a : a;
}

static bool term_has(const struct symbol_term *t, uint32_t symbol)
{
    return t->symbol == symbol || (t->times && t->times - 1 == symbol);
}

/* Divides a sum by a symbol, if each of its terms has it. */
static bool divide_by_symbol(struct affine *a, uint32_t symbol)
{
    struct affine quotient = {0};
    bool divides = !a->constant && a->n;
    for (uint32_t i = 0; i < a->n; i++)
        divides &= term_has(&a->term[i], symbol);
    for (uint32_t i = 0; divides && i < a->n; i++) {
        const struct symbol_term *t = &a->term[i];
        struct affine part = {.constant = t->by};
        uint32_t left = t->times ? (t->symbol == symbol ? t->times - 1 : t->symbol) : 0;
        if (t->times)
            part = (struct affine){.n = 1, .term = {{.symbol = left, .by = t->by}}};
        divides &= affine_add(&quotient, &part, 1);
    }
    if (divides)
        *a = quotient;
    return divides;
}

struct length_factors length_factors_of(const struct affine *a)
{
    struct length_factors f = {.number = a->constant, .sum = *a};
    for (uint32_t i = 0; i < a->n; i++)
        f.number = common_divisor(f.number, a->term[i].by);
    if (!a->n)
        f.sum = (struct affine){0};
    for (uint32_t i = 0; i < f.sum.n; i++)
        f.sum.term[i].by /= f.number;
    f.sum.constant /= f.sum.n ? f.number : 1;
    while (f.sum.n && f.nsymbol < 2) {
        const struct symbol_term first = f.sum.term[0];
        uint32_t symbol = divide_by_symbol(&f.sum, first.symbol) ? first.symbol : NO_SYMBOL;
        if (symbol == NO_SYMBOL && first.times && divide_by_symbol(&f.sum, first.times - 1))
            symbol = first.times - 1;
        if (symbol == NO_SYMBOL)
            break;
        f.symbol[f.nsymbol++] = symbol;
    }
    if (!f.sum.n)
        f.sum.constant = 0;
    return f;
}
