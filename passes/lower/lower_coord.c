/* Coordinates of elements and their row-major numbers, of shapes whose lengths may have symbols. */
#include "lower.h"

val lower_flatten(struct kernel *k, const struct shape *s, const val *coord)
{
    val i = k_int(k, 0);
    struct size stride = size_constant(1);
    for (uint32_t d = s->rank; d-- > 0;) {
        if (s->dim[d] != 1)
            i = ix_add(k, i, ix_scale_size(k, coord[d], stride));
        stride = size_mul(stride, kernel_length(k, s->dim[d]));
    }
    return i;
}

void lower_unflatten_sizes(struct kernel *k, const struct size *dim, uint32_t rank, val i, val *coord)
{
    struct size stride[KL_MAX_RANK], n = size_constant(1);
    bool inner = false; /* i lies in a row of an outer axis */
    for (uint32_t d = rank; d-- > 0; n = size_mul(n, dim[d]))
        stride[d] = n;
    for (uint32_t d = 0; d < rank; d++) {
        if (dim[d].bound <= 1) {
            coord[d] = k_int(k, 0);
            continue;
        }
        if (!n.number) /* there are no elements */
            stride[d] = n;
        coord[d] = ix_div_size(k, i, stride[d]);
        if (inner)
            ix_bound(k, coord[d], 0, ix_max(k, dim[d]) - 1);
        i = ix_mod_size(k, i, stride[d]);
        inner = true;
    }
}

void lower_unflatten(struct kernel *k, const struct shape *s, val i, val *coord)
{
    struct size dim[KL_MAX_RANK];
    for (uint32_t d = 0; d < s->rank; d++)
        dim[d] = kernel_length(k, s->dim[d]);
    lower_unflatten_sizes(k, dim, s->rank, i, coord);
}
