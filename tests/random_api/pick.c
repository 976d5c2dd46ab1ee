/* Random choices of operands, axes and numbers. */
#include "tests/random_api/program.h"

int below(struct recording *c, int n) { return (int)rng_below(&c->r, n); }
bool chance(struct recording *c, int n) { return below(c, n) == 0; }

bool is_float(kl_dtype dtype) { return dtype == KL_F16 || dtype == KL_BF16 || dtype == KL_F32 || dtype == KL_F64; }

static bool has_dtype(kl_dtype dtype, enum need need)
{
    switch (need) {
    case ANY: return true;
    case BOOLS: return dtype == KL_BOOL;
    case NUMBERS: return dtype != KL_BOOL;
    case INTEGERS: return dtype != KL_BOOL && !is_float(dtype);
    case FLOATS: return is_float(dtype);
    case WIDE_FLOATS: return dtype == KL_F32 || dtype == KL_F64;
    case F32S: return dtype == KL_F32;
    }
    return false;
}

int pick(struct recording *c, enum need need, int rank_low, int rank_high)
{
    enum { RECENT = 6 };
    int n = c->slots, first = chance(c, 3) ? below(c, n) : n - 1 - below(c, n < RECENT ? n : RECENT);
    for (int i = 0; i < n; i++) {
        const struct type *t = &c->p->type[(first + i) % n];
        if (t->known && has_dtype(t->dtype, need) && t->rank >= rank_low && t->rank <= rank_high)
            return (first + i) % n;
    }
    return -1;
}

kl_tensor value_of(struct recording *c, int value)
{
    if (value < 0 || !c->value[value].id) {
        c->missing = true;
        return kl_none;
    }
    return c->value[value];
}

kl_tensor pick_other(struct recording *c, enum need need) { return value_of(c, pick(c, need, 0, KL_MAX_RANK)); }

kl_tensor pick_like(struct recording *c, int a)
{
    const struct type *want = &c->p->type[a];
    int first = below(c, c->slots), found = a;
    for (int i = 0; i < c->slots; i++) {
        const struct type *t = &c->p->type[(first + i) % c->slots];
        if (t->known && t->dtype == want->dtype && t->rank == want->rank &&
            !memcmp(t->dims, want->dims, (size_t)t->rank * sizeof *t->dims)) {
            found = (first + i) % c->slots;
            break;
        }
    }
    return value_of(c, found);
}

static bool broadcasts(const struct type *a, const struct type *b)
{
    for (int k = 1; k <= a->rank && k <= b->rank; k++) {
        int64_t m = a->dims[a->rank - k], n = b->dims[b->rank - k];
        if (m != n && m != 1 && n != 1)
            return false;
    }
    return true;
}

int pick_broadcast(struct recording *c, int a)
{
    int first = below(c, c->slots);
    for (int i = 0; i < c->slots; i++) {
        const struct type *t = &c->p->type[(first + i) % c->slots];
        if (t->known && t->dtype == c->p->type[a].dtype && broadcasts(t, &c->p->type[a]))
            return (first + i) % c->slots;
    }
    return a;
}

int pick_axis(struct recording *c, int a) { return below(c, c->p->type[a].rank); }

int pick_axes(struct recording *c, int a, int *axes)
{
    int n = 0;
    for (int i = 0; i < c->p->type[a].rank; i++)
        if (chance(c, 2))
            axes[n++] = i;
    return n;
}

kl_dtype pick_dtype(struct recording *c) { return (kl_dtype)below(c, KL_DTYPE_COUNT); }

int64_t pick_length(struct recording *c)
{
    int i = below(c, LENGTHS);
    return c->symbolic ? c->symbol[i] : c->p->length[i];
}

int symbolic_shape(struct recording *c, int a, int64_t *dims)
{
    kl_shape(value_of(c, a), dims);
    return c->p->type[a].rank;
}

void fill_below(struct recording *c, int64_t *list, int n, int low, int high)
{
    for (int i = 0; i < n; i++)
        list[i] = low + below(c, high - low + 1);
}
