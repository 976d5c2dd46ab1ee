/* Sizes: a number times powers of the symbols of a graph (README.md, "Sizes"). */
#include "ir/ir.h"
#include <string.h>

/* a * b of sizes, of which no kernel is made if it saturates. */
static int64_t size_product(int64_t a, int64_t b)
{
    int64_t p;
    return __builtin_mul_overflow(a, b, &p) ? INT64_MAX : p;
}

struct size size_constant(int64_t n) { return (struct size){.bound = n, .number = n}; }

struct size size_of_length(const struct placeholders *s, int64_t length)
{
    struct size x = size_constant(length);
    for (uint32_t i = 0; s && length && i < s->n; i++)
        for (; x.number % s->v[i].prime == 0; x.power[i]++)
            x.number /= s->v[i].prime;
    return x;
}

struct size size_of_shape(const struct placeholders *s, const struct shape *shape)
{
    struct size x = size_constant(1);
    for (uint32_t i = 0; i < shape->rank; i++)
        x = size_mul(x, size_of_length(s, shape->dim[i]));
    return x;
}

struct size size_mul(struct size a, struct size b)
{
    struct size x = {.bound = size_product(a.bound, b.bound), .number = size_product(a.number, b.number)};
    for (uint32_t i = 0; x.number && i < MAX_PLACEHOLDERS; i++)
        x.power[i] = (uint8_t)(a.power[i] + b.power[i]);
    return x;
}

static bool size_same_symbols(struct size a, struct size b) { return !memcmp(a.power, b.power, sizeof a.power); }

bool size_add(struct size *a, struct size b)
{
    bool replaces = !a->number;
    if (!replaces && b.number && !size_same_symbols(*a, b))
        return false;
    if (replaces)
        memcpy(a->power, b.power, sizeof a->power);
    if (__builtin_add_overflow(a->number, b.number, &a->number) ||
        __builtin_add_overflow(a->bound, b.bound, &a->bound))
        return false;
    if (!a->number)
        *a = size_constant(0);
    return true;
}

bool size_is_constant(struct size a)
{
    return size_same_symbols(a, (struct size){0});
}

bool size_equal(struct size a, struct size b) { return a.number == b.number && size_same_symbols(a, b); }

bool size_is_multiple(struct size a, struct size of)
{
    bool multiple = of.number && a.number % of.number == 0;
    for (uint32_t i = 0; a.number && i < MAX_PLACEHOLDERS; i++)
        multiple &= a.power[i] >= of.power[i];
    return multiple;
}

/* The size where each placeholder has its highest, or its lowest, value. */
static int64_t size_limit(const struct placeholders *s, struct size a, bool highest)
{
    int64_t n = a.number;
    for (uint32_t i = 0; s && i < s->n; i++)
        for (uint32_t k = 0; k < a.power[i]; k++)
            n = size_product(n, highest ? s->v[i].high : s->v[i].low);
    return n;
}

int64_t size_max(const struct placeholders *s, struct size a) { return size_limit(s, a, true); }
int64_t size_min(const struct placeholders *s, struct size a) { return size_limit(s, a, false); }

int64_t size_at(const struct placeholders *s, int64_t size, const uint64_t *slot)
{
    struct size a = size_of_length(s, size);
    int64_t n = a.number;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < a.power[i]; k++)
            n *= placeholder_value(s, i, slot);
    return n;
}
