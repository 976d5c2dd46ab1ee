/* Views: reshape, permute, expand.  They only compute the operand's coordinates. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

void gather(void *out, const void *in, size_t elem, const struct shape *s, const struct shape *stride)
{
    int64_t count = shape_count(s);
    if (count == 0)
        return;
    if (s->rank == 0) {
        memcpy(out, in, elem);
        return;
    }
    uint32_t last = s->rank - 1;
    int64_t inner = s->dim[last], step = stride->dim[last], at[KL_MAX_RANK] = {0};
    char *to = out;
    const char *from = in;
    for (int64_t done = 0; done < count; done += inner) {
        if (step == 1) {
            memcpy(to, from, (size_t)inner * elem);
        } else {
            for (int64_t i = 0; i < inner; i++)
                memcpy(to + (size_t)i * elem, from + i * step * (int64_t)elem, elem);
        }
        to += (size_t)inner * elem;
        for (uint32_t axis = last; axis-- > 0;) {
            from += stride->dim[axis] * (int64_t)elem;
            if (++at[axis] < s->dim[axis])
                break;
            from -= at[axis] * stride->dim[axis] * (int64_t)elem;
            at[axis] = 0;
        }
    }
}

void gather_axes(void *out, const void *in, size_t elem, const struct shape *s, const uint8_t *axis, uint32_t n)
{
    struct shape from = coord_strides(s), to = {.rank = n}, stride = {.rank = n};
    for (uint32_t i = 0; i < n; i++) {
        to.dim[i] = s->dim[axis[i]];
        stride.dim[i] = from.dim[axis[i]];
    }
    gather(out, in, elem, &to, &stride);
}

static bool shapes_do_not_fit(const struct graph *g, const char *why, const struct shape *from, const struct shape *to,
                              struct err *e)
{
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    return err_set(e, KL_ERR_SHAPE, why, shape_text_in(g, from, a, sizeof a), shape_text_in(g, to, b, sizeof b));
}

/* ---- reshape ---- */

bool shape_reshape(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *a = node_shape(g, n->in[0]);
    int64_t count;
    if (g->symbols && (shape_is_symbolic(a) || shape_is_symbolic(out))) {
        if (!shape_same_size(g, a, out))
            return shapes_do_not_fit(g, "reshape: %s and %s are not known to have as many elements", a, out, e);
    } else if (!shape_numel(out, &count) || count != shape_count(a)) {
        return shapes_do_not_fit(g, "reshape: %s and %s differ in their number of elements", a, out, e);
    }
    n->dtype = node_at(g, n->in[0])->dtype;
    return attr_clear_rest(n, 0);
}

bool eval_reshape(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_input(g, n, out, in);
}

void vjp_reshape(struct graph *g, ref y, ref dy, ref *din)
{
    din[0] = n_reshape(g, dy, node_shape(g, node_at(g, y)->in[0]));
}

/* Adjacent axes from..from_end of the operand and to..to_end of the result with equal products: the smallest such
 * groups. */
struct axis_group { uint32_t from, from_end, to, to_end; int64_t count; };

/* The next group of two shapes with equal numbers of elements, not 0. */
static bool next_group(const struct shape *from, const struct shape *to, struct axis_group *g)
{
    g->from = g->from_end;
    g->to = g->to_end;
    if (g->from == from->rank && g->to == to->rank)
        return false;
    int64_t nf = 1, nt = 1;
    do {
        bool take_from = g->from_end < from->rank && (nf <= nt || g->to_end == to->rank);
        if (take_from)
            nf *= from->dim[g->from_end++];
        else
            nt *= to->dim[g->to_end++];
    } while (nf != nt);
    g->count = nf;
    return true;
}

/* For each group: the linear index in the result, split into coordinates of the operand's axes.  A group of one axis
 * keeps its coordinate. */
uint32_t lower_reshape(struct lower *l, ref r, const uint32_t *coord)
{
    struct kernel *k = l->k;
    ref a = node_at(l->g, r)->in[0];
    const struct shape *to = node_shape(l->g, r), *from = node_shape(l->g, a);
    const struct shape to_stride = coord_strides(to), from_stride = coord_strides(from);
    val at[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < from->rank; i++)
        at[i] = k_int(k, 0);
    struct axis_group g = {0};
    while (shape_count(to) > 0 && next_group(from, to, &g)) {
        int64_t to_unit = g.to_end > g.to ? to_stride.dim[g.to_end - 1] : 1;
        int64_t from_unit = g.from_end > g.from ? from_stride.dim[g.from_end - 1] : 1;
        val index = k_int(k, 0);
        for (uint32_t i = g.to; i < g.to_end; i++)
            if (to->dim[i] != 1)
                index = ix_add(k, index, ix_scale_size(k, coord[i], kernel_length(k, to_stride.dim[i] / to_unit)));
        if (!l->where) /* under a mask coordinates may be out of range */
            ix_bound(k, index, 0, g.count - 1);
        bool leading = true;
        for (uint32_t i = g.from; i < g.from_end; i++) {
            if (from->dim[i] == 1)
                continue;
            at[i] = ix_div_size(k, index, kernel_length(k, from_stride.dim[i] / from_unit));
            if (!leading)
                at[i] = ix_mod_size(k, at[i], kernel_length(k, from->dim[i]));
            leading = false;
        }
    }
    return l->at(l, a, at);
}

/* ---- permute ---- */

bool shape_permute(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *a = node_shape(g, n->in[0]);
    const uint8_t *perm = n->attr.permute.perm;
    unsigned seen = 0;
    *out = (struct shape){.rank = a->rank};
    for (uint32_t i = 0; i < a->rank; i++) {
        if (perm[i] >= a->rank)
            return err_set(e, KL_ERR_SHAPE, "permute: axis %u is out of range for rank %u", perm[i], a->rank);
        if (seen >> perm[i] & 1)
            return err_set(e, KL_ERR_SHAPE, "permute: axis %u occurs twice", perm[i]);
        seen |= 1u << perm[i];
        out->dim[i] = a->dim[perm[i]];
    }
    n->dtype = node_at(g, n->in[0])->dtype;
    return attr_clear_rest(n, a->rank);
}

bool eval_permute(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *a = node_shape(g, n->in[0]);
    gather_axes(out, in[0], dtype_size(n->dtype), a, n->attr.permute.perm, a->rank);
    return true;
}

void vjp_permute(struct graph *g, ref y, ref dy, ref *din)
{
    uint8_t inverse[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < node_shape(g, y)->rank; i++)
        inverse[node_at(g, y)->attr.permute.perm[i]] = (uint8_t)i;
    din[0] = n_permute(g, dy, inverse);
}

uint32_t lower_permute(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    val at[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < node_shape(l->g, r)->rank; i++)
        at[n->attr.permute.perm[i]] = coord[i];
    return l->at(l, n->in[0], at);
}

/* ---- expand ---- */

bool shape_expand(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *a = node_shape(g, n->in[0]);
    if (a->rank != out->rank)
        return shapes_do_not_fit(g, "expand: %s and %s differ in rank", a, out, e);
    for (uint32_t i = 0; i < a->rank; i++)
        if (a->dim[i] != out->dim[i] && a->dim[i] != 1)
            return shapes_do_not_fit(g, "expand: %s does not fit %s: only axes of length 1 can be expanded", a, out, e);
    n->dtype = node_at(g, n->in[0])->dtype;
    return attr_clear_rest(n, 0);
}

bool eval_expand(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *a = node_shape(g, n->in[0]), *s = &g->shape[n->shape];
    struct shape stride = coord_strides(a);
    for (uint32_t i = 0; i < s->rank; i++)
        if (a->dim[i] == 1)
            stride.dim[i] = 0;
    gather(out, in[0], dtype_size(n->dtype), s, &stride);
    return true;
}

void vjp_expand(struct graph *g, ref y, ref dy, ref *din)
{
    const struct shape *from = node_shape(g, node_at(g, y)->in[0]), *to = node_shape(g, y);
    uint32_t axes = 0;
    for (uint32_t i = 0; i < to->rank; i++)
        if (from->dim[i] != to->dim[i])
            axes |= 1u << i;
    din[0] = axes ? n_reduce(g, OP_sum, dy, axes) : dy;
}

uint32_t lower_expand(struct lower *l, ref r, const uint32_t *coord)
{
    ref a = node_at(l->g, r)->in[0];
    const struct shape *from = node_shape(l->g, a), *to = node_shape(l->g, r);
    val at[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < to->rank; i++)
        at[i] = from->dim[i] == 1 && to->dim[i] != 1 ? k_int(l->k, 0) : coord[i];
    return l->at(l, a, at);
}
