/* Coordinates of elements and their row-major numbers, of shapes whose lengths may have symbols; the border of zeros
 * that pads wrote. */
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

bool lower_zero_border(const struct graph *g, ref r, struct zero_border *b)
{
    const struct shape *s = node_shape(g, r);
    int64_t high[KL_MAX_RANK] = {0};
    bool any = false;
    *b = (struct zero_border){0};
    for (const struct node *n = &g->node[r]; op_is_masked(n->op) && !shape_is_symbolic(s); n = &g->node[n->in[0]]) {
        const struct node *value = &g->node[n->in[1]];
        if (value->op != OP_const || value->attr.konst.bits || n->attr.pad.interior || n->attr.pad.low < 0 ||
            n->attr.pad.high < 0)
            break;
        b->first[n->attr.pad.axis] += n->attr.pad.low;
        high[n->attr.pad.axis] += n->attr.pad.high;
        any = true;
    }
    for (uint32_t d = 0; d < s->rank; d++)
        b->end[d] = s->dim[d] - high[d];
    return any;
}
