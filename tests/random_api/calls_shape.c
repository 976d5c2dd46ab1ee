/* Calls that move elements and compute nothing. */
#include "tests/random_api/calls.h"

kl_tensor make_flatten(struct recording *c, int a) { return kl_reshape(value_of(c, a), 1, (int64_t[]){-1}); }

kl_tensor make_insert_axis(struct recording *c, int a)
{
    int64_t old[KL_MAX_RANK], dims[KL_MAX_RANK];
    int rank = symbolic_shape(c, a, old), at = pick_axis(c, a);
    for (int i = 0; i < rank; i++)
        dims[i < at ? i : i + 1] = old[i];
    dims[at] = 1;
    return kl_reshape(value_of(c, a), rank + 1, dims);
}

kl_tensor make_merge_axes(struct recording *c, int a)
{
    int64_t old[KL_MAX_RANK], dims[KL_MAX_RANK] = {-1};
    int rank = symbolic_shape(c, a, old);
    for (int i = 2; i < rank; i++)
        dims[i - 1] = old[i];
    return kl_reshape(value_of(c, a), rank - 1, dims);
}

kl_tensor make_permute(struct recording *c, int a)
{
    int axes[KL_MAX_RANK], rank = c->p->type[a].rank;
    for (int i = 0; i < rank; i++) {
        int j = below(c, i + 1);
        axes[i] = axes[j];
        axes[j] = i;
    }
    return kl_permute(value_of(c, a), axes);
}

kl_tensor make_expand(struct recording *c, int a)
{
    int64_t dims[KL_MAX_RANK] = {pick_length(c), -1, -1, -1, -1};
    return kl_expand(value_of(c, a), c->p->type[a].rank + 1, dims);
}

kl_tensor make_slice(struct recording *c, int a)
{
    int64_t start[KL_MAX_RANK], step[KL_MAX_RANK];
    fill_below(c, start, KL_MAX_RANK, 0, 2);
    for (int i = 0; i < KL_MAX_RANK; i++)
        step[i] = chance(c, 3) ? 1 + below(c, 3) : 1;
    return kl_slice(value_of(c, a), start, NULL, step);
}

kl_tensor make_narrow(struct recording *c, int a)
{
    int axis = pick_axis(c, a), start = below(c, (int)c->p->type[a].dims[axis]);
    return kl_narrow(value_of(c, a), axis, start, 1 + below(c, 2));
}

kl_tensor make_window(struct recording *c, int a)
{
    int axis = pick_axis(c, a), size = 1 + below(c, 3), stride = 1 + below(c, 2);
    return kl_window(value_of(c, a), axis, size, stride, 1 + below(c, 2));
}

kl_tensor make_flip(struct recording *c, int a)
{
    int axes[KL_MAX_RANK], n = pick_axes(c, a, axes);
    return kl_flip(value_of(c, a), n, axes);
}

kl_tensor make_pad(struct recording *c, int a)
{
    int64_t low[KL_MAX_RANK], high[KL_MAX_RANK];
    fill_below(c, low, KL_MAX_RANK, 0, 2);
    fill_below(c, high, KL_MAX_RANK, 0, 2);
    return kl_pad(value_of(c, a), low, high, chance(c, 3) ? 2 : 0);
}

kl_tensor make_pad_border(struct recording *c, int a)
{
    int64_t low[KL_MAX_RANK], high[KL_MAX_RANK];
    fill_below(c, low, KL_MAX_RANK, -1, 2);
    fill_below(c, high, KL_MAX_RANK, -1, 2);
    return kl_pad_border(value_of(c, a), low, high, (kl_border)below(c, 4));
}

kl_tensor make_concat(struct recording *c, int a)
{
    kl_tensor parts[3] = {value_of(c, a), pick_like(c, a), value_of(c, a)};
    return kl_concat(3, parts, pick_axis(c, a));
}

kl_tensor make_stack(struct recording *c, int a)
{
    kl_tensor parts[2] = {value_of(c, a), pick_like(c, a)};
    return kl_stack(2, parts, below(c, c->p->type[a].rank + 1));
}

kl_tensor make_tile(struct recording *c, int a)
{
    int64_t times[KL_MAX_RANK];
    for (int i = 0; i < KL_MAX_RANK; i++)
        times[i] = chance(c, 5) ? below(c, 3) : 1;
    return kl_tile(value_of(c, a), times);
}

kl_tensor make_repeat(struct recording *c, int a)
{
    int axis = pick_axis(c, a);
    return kl_repeat(value_of(c, a), axis, below(c, 4));
}

kl_tensor make_roll(struct recording *c, int a)
{
    int axis = pick_axis(c, a);
    return kl_roll(value_of(c, a), axis, below(c, 9) - 4);
}

kl_tensor make_triangle(struct recording *c, int a)
{
    int diagonal = below(c, 5) - 2;
    return chance(c, 2) ? kl_triu(value_of(c, a), diagonal) : kl_tril(value_of(c, a), diagonal);
}

kl_tensor make_diagonal(struct recording *c, int a)
{
    int rank = c->p->type[a].rank, offset = below(c, 3) - 1;
    if (rank >= 2 && chance(c, 2))
        return kl_diagonal(value_of(c, a), offset, 0, rank - 1);
    return kl_diagonal_matrix(value_of(c, a), offset);
}

kl_tensor make_resize(struct recording *c, int a)
{
    int axis = pick_axis(c, a);
    int64_t length = 1 + below(c, 6);
    kl_resize_options o = {.sampling = (kl_sampling)below(c, 3)};
    o.coordinates = (kl_resize_coordinates)below(c, 7);
    o.rounding = (kl_resize_rounding)below(c, 4);
    o.antialias = chance(c, 2);
    o.exclude_outside = chance(c, 2);
    return kl_resize(value_of(c, a), 1, &axis, &length, &o);
}
