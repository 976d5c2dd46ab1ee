/* Calls that read or write elements at places that are data, and sorting. */
#include "tests/random_api/calls.h"

static unsigned pick_flags(struct recording *c) { return (unsigned)below(c, 4); }
static kl_scatter_kind pick_scatter(struct recording *c) { return (kl_scatter_kind)below(c, 6); }

kl_tensor make_gather(struct recording *c, int a)
{
    kl_tensor places = pick_other(c, INTEGERS);
    return kl_take(value_of(c, a), pick_axis(c, a), places);
}

kl_tensor make_index_combine(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a), places = pick_other(c, INTEGERS);
    int axis = pick_axis(c, a);
    kl_tensor update = kl_take(x, axis, places);
    if (is_float(c->p->type[a].dtype) && chance(c, 2))
        update = kl_tanh(update);
    switch (below(c, 4)) {
    case 0: return kl_index_add(x, axis, places, update);
    case 1: return kl_index_max(x, axis, places, update);
    case 2: return kl_index_min(x, axis, places, update);
    default: return kl_index_copy(x, axis, places, update);
    }
}

kl_tensor make_along_axis(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a);
    int axis = pick_axis(c, a);
    kl_tensor places = kl_argsort(x, axis, chance(c, 2));
    switch (below(c, 3)) {
    case 0: return kl_take_along_axis(x, axis, places);
    case 1: return kl_add_along_axis(x, axis, places, pick_like(c, a));
    default: return kl_put_along_axis(x, axis, places, pick_like(c, a));
    }
}

kl_tensor make_dynamic_slice(struct recording *c, int a)
{
    kl_tensor start[KL_MAX_RANK];
    kl_tensor largest = kl_cast(kl_max(pick_other(c, INTEGERS), 0, NULL, false), KL_I32);
    const struct type *t = &c->p->type[a];
    int64_t size[KL_MAX_RANK] = {0};
    for (int i = 0; i < t->rank; i++) {
        start[i] = chance(c, 2) ? kl_none : largest;
        size[i] = below(c, (int)t->dims[i] + 1);
    }
    kl_tensor part = kl_dynamic_slice(value_of(c, a), start, size);
    return chance(c, 2) ? part : kl_dynamic_update(value_of(c, a), part, start);
}

kl_tensor make_gather_nd(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a), flat = kl_reshape(pick_other(c, INTEGERS), 1, (int64_t[]){-1});
    kl_tensor parts[KL_MAX_RANK];
    int n = 1 + below(c, c->p->type[a].rank);
    for (int i = 0; i < n; i++)
        parts[i] = i == 1 ? kl_neg(flat) : flat;
    kl_tensor places = kl_stack(n, parts, 1);
    unsigned flags = pick_flags(c);
    kl_tensor found = kl_gather_nd(x, places, 0, flags);
    if (c->p->type[a].dtype == KL_BOOL || chance(c, 2))
        return found;
    return kl_scatter_nd(x, places, found, pick_scatter(c), flags);
}

/* The places are a's own elements, between -9 and 9. */
kl_tensor make_elements(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a);
    kl_tensor places = kl_cast(kl_clamp(kl_mul_scalar(kl_cast(x, KL_F32), 2), -9, 9), KL_I32);
    int axis = pick_axis(c, a);
    unsigned flags = pick_flags(c);
    if (chance(c, 2))
        return kl_take_along_axis_with(x, axis, places, flags);
    kl_tensor update = pick_like(c, a);
    return kl_put_along_axis_with(x, axis, places, update, pick_scatter(c), flags);
}

kl_tensor make_index(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a), p = pick_other(c, INTEGERS);
    kl_tensor places[3] = {p, chance(c, 2) ? p : kl_none, p};
    int rank = c->p->type[a].rank, n = 1 + below(c, rank < 3 ? rank : 3);
    unsigned flags = pick_flags(c);
    kl_tensor found = kl_index(x, n, places, flags);
    if (c->p->type[a].dtype == KL_BOOL || chance(c, 2))
        return found;
    return kl_index_put(x, n, places, found, pick_scatter(c), flags);
}

kl_tensor make_embedding(struct recording *c, int a) { return kl_embedding(value_of(c, a), pick_other(c, INTEGERS)); }

kl_tensor make_nonzero(struct recording *c, int a)
{
    int size = below(c, 7);
    if (chance(c, 2))
        return kl_nonzero(value_of(c, a), size, &c->second);
    return kl_unique(value_of(c, a), size, NULL, &c->second, NULL);
}

kl_tensor make_argsort(struct recording *c, int a)
{
    int axis = pick_axis(c, a);
    return kl_argsort(value_of(c, a), axis, chance(c, 2));
}

kl_tensor make_sort(struct recording *c, int a)
{
    int axis = pick_axis(c, a);
    return kl_sort(value_of(c, a), axis, chance(c, 2));
}

kl_tensor make_topk(struct recording *c, int a)
{
    int axis = pick_axis(c, a), k = below(c, 4);
    bool largest = chance(c, 2);
    return kl_topk(value_of(c, a), k, axis, largest, chance(c, 2) ? &c->second : NULL);
}

kl_tensor make_grid_sample(struct recording *c, int a)
{
    const struct type *t = &c->p->type[a];
    int n = t->rank - 2;
    int64_t dims[KL_MAX_RANK] = {t->dims[0]};
    fill_below(c, dims + 1, n, 1, 3);
    dims[n + 1] = n;
    kl_tensor grid = kl_rand(c->device, KL_F32, n + 2, dims, rng_next(&c->r));
    grid = kl_sub_scalar(kl_mul_scalar(grid, 3), 1.5);
    kl_sampling sampling = (kl_sampling)below(c, n == 2 ? 3 : 2);
    kl_sample_border border = (kl_sample_border)below(c, 3);
    return kl_grid_sample(value_of(c, a), grid, sampling, border, chance(c, 2));
}
