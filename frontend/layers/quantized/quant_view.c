/* Views of quantized tensors: the integers stay what they are, so the scales have to follow them.
 *
 * Which elements of the view share a scale is found from the shapes: those of a slice of an axis, where an axis is kept
 * whole, else the longest blocks of one axis that lie inside the old ones, of one element at worst.  The scales of
 * these are those of their first elements: the view of the scales, spread over all elements, is sampled there, which
 * costs nothing where it is fused. */
#include "quantized.h"

static int64_t quant_view_gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b, b = r;
    }
    return a < 0 ? -a : a;
}

/* Product of lengths [from, to); -1: one of them is a symbol. */
static int64_t quant_view_product(const struct shape *s, uint32_t from, uint32_t to)
{
    int64_t n = 1;
    for (uint32_t i = from; i < to; i++)
        n = s->dim[i] < 0 || n < 0 ? -1 : n * s->dim[i];
    return n;
}

/* Which elements share a scale. */
struct quant_share { enum quant_grain grain; uint32_t axis; int64_t block; };

static struct quant_share share_of_blocks(const struct shape *to, uint32_t axis, int64_t block)
{
    return (struct quant_share){QUANT_BLOCK, axis, to->rank == KL_MAX_RANK ? 1 : block};
}

/* One element each. */
static struct quant_share share_of_elements(const struct shape *to)
{
    return to->rank ? (struct quant_share){QUANT_BLOCK, to->rank - 1, 1} : (struct quant_share){.grain = QUANT_TENSOR};
}

/* Are the lengths before these axes the same, but for ones? */
static bool quant_view_same_start(const struct shape *a, uint32_t na, const struct shape *b, uint32_t nb)
{
    uint32_t i = 0, k = 0;
    for (;;) {
        while (i < na && a->dim[i] == 1)
            i++;
        while (k < nb && b->dim[k] == 1)
            k++;
        if (i == na || k == nb)
            return i == na && k == nb;
        if (a->dim[i++] != b->dim[k++])
            return false;
    }
}

/* The axis of a reshaped tensor whose elements are those of axis q->axis, or -1. */
static int quant_view_kept_axis(const struct quant *q, const struct shape *to)
{
    const struct shape *from = &q->v.shape;
    int64_t before = quant_view_product(from, 0, q->axis);
    for (uint32_t i = 0; i < to->rank; i++) {
        int64_t product = quant_view_product(to, 0, i);
        if (to->dim[i] == from->dim[q->axis] && ((before >= 0 && product == before) ||
                                                 quant_view_same_start(from, q->axis, to, i)))
            return (int)i;
    }
    return -1;
}

/* The last of the axes into which a reshape splits axis q->axis, or -1. */
static int quant_view_split_axis(const struct quant *q, const struct shape *to)
{
    int64_t before = quant_view_product(&q->v.shape, 0, q->axis), end = before * q->v.shape.dim[q->axis];
    bool begun = before == 1;
    int last = -1;
    for (uint32_t i = 0; i < to->rank; i++) {
        int64_t product = quant_view_product(to, 0, i + 1);
        if (begun && product <= end && to->dim[i] != 1)
            last = (int)i;
        if (begun && product == end)
            return last;
        begun |= product == before;
    }
    return -1;
}

static bool share_of_reshape(const struct quant *q, const struct shape *to, struct quant_share *out)
{
    const struct shape *from = &q->v.shape;
    int kept = quant_view_kept_axis(q, to), split;
    int64_t inner = quant_view_product(from, q->axis + 1, from->rank);
    if (kept >= 0) {
        *out = q->grain == QUANT_AXIS ? (struct quant_share){QUANT_AXIS, (uint32_t)kept, 0}
                                      : share_of_blocks(to, (uint32_t)kept, q->block);
        return true;
    }
    if (quant_view_product(from, 0, from->rank) < 0 || quant_view_product(to, 0, to->rank) < 0)
        return false;
    int64_t run = q->grain == QUANT_AXIS ? inner : inner == 1 ? q->block : 1; /* adjacent elements with one scale */
    *out = share_of_elements(to);
    if (run > 1 && to->rank)
        *out = share_of_blocks(to, to->rank - 1, quant_view_gcd(run, to->dim[to->rank - 1]));
    else if (q->grain == QUANT_BLOCK && (split = quant_view_split_axis(q, to)) >= 0)
        *out = share_of_blocks(to, (uint32_t)split, quant_view_gcd(q->block, to->dim[split]));
    return true;
}

/* Blocks of an axis of which elements are selected. */
static int64_t block_of_slice(const struct quant *q, const struct call *c, int64_t length)
{
    int64_t start = c->proto.attr.slice.start, step = c->proto.attr.slice.step, b = q->block;
    if (c->proto.op == OP_dynamic_slice)
        return length == q->v.shape.dim[q->axis] ? b : 1;
    if (start < 0 || length < 0)
        return 1;
    if (step == 1)
        return quant_view_gcd(quant_view_gcd(b, start), length);
    return step > 0 && b % step == 0 && start % b == 0 ? quant_view_gcd(b / step, length) : 1;
}

/* false: not known, because of a symbol. */
static bool share_of_view(const struct call *c, const struct quant *q, const struct shape *to, struct quant_share *out)
{
    bool blocks = q->grain == QUANT_BLOCK;
    *out = (struct quant_share){q->grain, q->axis, q->block};
    if (quant_view_product(to, 0, to->rank) == 0)
        *out = share_of_elements(to);
    else if (c->proto.op == OP_reshape)
        return share_of_reshape(q, to, out);
    else if (c->proto.op == OP_permute)
        for (out->axis = 0; c->proto.attr.permute.perm[out->axis] != q->axis;)
            out->axis++;
    else if (c->proto.op == OP_expand && q->v.shape.dim[q->axis] != to->dim[q->axis])
        *out = blocks ? share_of_blocks(to, q->axis, to->dim[q->axis]) : (struct quant_share){.grain = QUANT_TENSOR};
    else if (c->proto.op == OP_window && c->proto.attr.window.axis == q->axis)
        *out = share_of_elements(to);
    else if (c->proto.op == OP_window && blocks)
        *out = share_of_blocks(to, q->axis, q->block);
    else if ((c->proto.op == OP_slice || c->proto.op == OP_dynamic_slice) && blocks &&
             c->proto.attr.slice.axis == q->axis)
        out->block = block_of_slice(q, c, to->dim[q->axis]);
    return out->grain != QUANT_BLOCK || out->block > 0;
}

/* The scales, zero points or minimums of the view, of those of its operand. */
static kl_tensor quant_view_part(const struct call *c, const struct quant *q, const struct quant *to, kl_tensor part)
{
    struct shape s = quant_scale_shape(to), first;
    if (!part.id || to->grain == QUANT_TENSOR)
        return part.id ? reshape_to(c->op, part, &s) : part;
    kl_tensor x = call_with(c, quant_spread(q, part), c->in[1], kl_none);
    if (to->grain == QUANT_AXIS) {
        for (uint32_t i = 0; i < s.rank; i++)
            if (i != to->axis && to->v.shape.dim[i] != 1)
                x = kl_narrow(x, (int)i, 0, 1);
        return x;
    }
    if (shape_equal(&s, &to->v.shape))
        return x;
    first = quant_cut_shape(&to->v.shape, to->axis, to->block);
    x = kl_narrow(reshape_to(c->op, x, &first), (int)to->axis + 1, 0, 1);
    return reshape_to(c->op, x, &s);
}

bool quant_view_scales(struct thread *t, const struct call *c, const struct quant *q, struct quant *to)
{
    struct quant_share share;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (q->grain != QUANT_TENSOR && !share_of_view(c, q, &to->v.shape, &share))
        return fail(t, KL_ERR_SHAPE, "%s: the scales of %s of axis %u of a quantized %s cannot follow to %s: "
                    "kl_dense gives a plain tensor", c->op, q->grain == QUANT_BLOCK ? "blocks" : "slices", q->axis,
                    shape_text(&q->v.shape, a, sizeof a), shape_text(&to->v.shape, b, sizeof b)) == KL_OK;
    if (q->grain != QUANT_TENSOR)
        to->grain = share.grain, to->axis = share.axis, to->block = share.grain == QUANT_BLOCK ? share.block : 0;
    for (int i = 1; i < QUANT_PARTS; i++)
        to->part[i] = quant_view_part(c, q, to, q->part[i]);
    return true;
}
