/* Products of quantized tensors: integers times integers, summed in 32 bits, and scaled once at the end.  The integers
 * are multiplied in their stored form, bytes, which is fastest on processors; the sums are corrected for zero points.
 *
 * Scales that do not vary along contracted axes are factored out of the sum.  Those of blocks are factored out of the
 * sum of a block: blocks are a batch of products, which are scaled and then added.  If a gradient may be requested, the
 * product is an op with a custom gradient, that of the floats; otherwise only the integer ops are recorded. */
#include "quantized.h"
#include <string.h>

enum { LONGEST = 33000 }; /* number of products of -255..255 whose sum certainly fits 32 bits */

/* The axes of an operand in a dot: the list of each, and its position in the result. */
struct quant_operand {
    struct quant q;
    uint32_t batch, con;         /* lists of axes, as dot's attributes have them */
    unsigned first;              /* the result's axis for its first free axis */
};

static bool quant_product_listed(uint32_t list, unsigned n, uint32_t axis, unsigned *at)
{
    for (unsigned i = 0; i < n; i++)
        if (axis_get(list, i) == axis)
            return *at = i, true;
    return false;
}

/* Sums of integers times a scale: in f32 where the tensors are halves, which cannot hold the sums. */
static kl_tensor quant_scale_sums(kl_tensor y, kl_tensor scale)
{
    return kl_mul(y, quant_cast(scale, view_of(y).dtype));
}

static kl_tensor quant_wide_ints(const struct quant *q) { return kl_cast(quant_ints(q), KL_I32); }

/* The scales or zero points with the rank of the result, along the corresponding axis. */
static kl_tensor quant_align_axis(const struct call *c, const struct quant_operand *side, kl_tensor part, uint32_t rank)
{
    const struct quant *q = &side->q;
    struct shape s = {.rank = rank};
    unsigned at = 0, nbatch = c->proto.attr.dot.nbatch, ncon = c->proto.attr.dot.ncon, other;
    for (uint32_t i = 0; i < rank; i++)
        s.dim[i] = 1;
    if (q->grain == QUANT_AXIS) {
        if (!quant_product_listed(side->batch, nbatch, q->axis, &at)) {
            at = side->first;
            for (uint32_t i = 0; i < q->axis; i++)
                at += !quant_product_listed(side->batch, nbatch, i, &other) &&
                    !quant_product_listed(side->con, ncon, i, &other);
        }
        s.dim[at] = q->v.shape.dim[q->axis];
    }
    return reshape_to(c->op, part, &s);
}

/* The sums of an operand's integers over the contracted axes, with the rank of the result. */
static kl_tensor placed_sums(const struct call *c, const struct quant_operand *side, kl_tensor ints, uint32_t rank)
{
    const struct shape *from = &side->q.v.shape;
    unsigned nbatch = c->proto.attr.dot.nbatch, ncon = c->proto.attr.dot.ncon, n = 0, at, place[KL_MAX_RANK], left = 0;
    int axes[KL_MAX_RANK], perm[KL_MAX_RANK];
    struct shape to = {.rank = rank};
    for (unsigned i = 0; i < ncon; i++)
        axes[i] = (int)axis_get(side->con, i);
    for (uint32_t i = 0; i < rank; i++)
        to.dim[i] = 1;
    for (uint32_t i = 0; i < from->rank; i++) {
        place[i] = left;
        left += !quant_product_listed(side->con, ncon, i, &at);
    }
    for (; n < nbatch; n++) {
        uint32_t axis = axis_get(side->batch, n);
        perm[n] = (int)place[axis];
        to.dim[n] = from->dim[axis];
    }
    for (uint32_t i = 0; i < from->rank; i++)
        if (!quant_product_listed(side->con, ncon, i, &at) && !quant_product_listed(side->batch, nbatch, i, &at)) {
            to.dim[side->first + n - nbatch] = from->dim[i];
            perm[n++] = (int)place[i];
        }
    kl_tensor y = ncon ? kl_sum(ints, (int)ncon, axes, false) : ints;
    return reshape_to(c->op, kl_permute(y, perm), &to);
}

/* The product of integers minus their zero points, za and zb (kl_none: none): sum, the product of the stored integers,
 * minus za (sums of b minus zb) and zb (sums of a).  Intermediate overflows of 32 bits cancel. */
static kl_tensor quant_subtract_zero_points(kl_tensor sum, kl_tensor za, kl_tensor zb,
                                            kl_tensor sums_a,
                         kl_tensor sums_b,
                         int64_t length)
{
    if (zb.id) {
        zb = kl_cast(zb, KL_I32);
        struct view v = view_of(zb);
        sum = kl_sub(sum, kl_mul(zb, sums_a));
        kl_tensor terms = za.id ? kl_mul(zb, kl_length_scalar(v.device, KL_I32, length)) : kl_none;
        sums_b = za.id ? kl_sub(sums_b, terms) : sums_b;
    }
    return za.id ? kl_sub(sum, kl_mul(kl_cast(za, KL_I32), sums_b)) : sum;
}

static kl_tensor dot_of(const struct call *c, kl_tensor a, kl_tensor b)
{
    return call_with(c, a, b, kl_none);
}

static kl_tensor whole_product(const struct call *c, const struct quant_operand *a, const struct quant_operand *b)
{
    kl_tensor x = quant_wide_ints(&a->q), w = quant_wide_ints(&b->q), sum = dot_of(c, x, w);
    uint32_t rank = view_of(sum).shape.rank;
    kl_tensor za = a->q.part[2].id ? quant_align_axis(c, a, a->q.part[2], rank) : kl_none;
    kl_tensor zb = b->q.part[2].id ? quant_align_axis(c, b, b->q.part[2], rank) : kl_none;
    int64_t length = 1;
    for (unsigned i = 0; i < c->proto.attr.dot.ncon; i++)
        length *= a->q.v.shape.dim[axis_get(a->con, i)];
    sum = quant_subtract_zero_points(sum, za, zb, zb.id ? placed_sums(c, a, x, rank) : kl_none,
                  za.id ? placed_sums(c, b, w, rank) : kl_none, length);
    kl_tensor y = kl_cast(sum, (kl_dtype)dtype_compute(a->q.v.dtype));
    y = quant_scale_sums(y, quant_align_axis(c, a, a->q.part[1], rank));
    return quant_cast(quant_scale_sums(y, quant_align_axis(c, b, b->q.part[1], rank)), a->q.v.dtype);
}

/* [blocks, block, rest] of a matrix whose axis `con` is contracted. */
static kl_tensor quant_split_blocks(kl_tensor x, const struct view *v, uint32_t con,
                                    int64_t block)
{
    const int transpose[2] = {1, 0};
    if (con)
        x = kl_permute(x, transpose);
    return kl_reshape(x, 3, (int64_t[]){v->shape.dim[con] / block, block, v->shape.dim[!con]});
}

/* Scales or zero points as [blocks, rest]: of blocks, or the same for all of them. */
static kl_tensor of_blocks(kl_tensor part, uint32_t con)
{
    const int transpose[2] = {1, 0};
    return con && part.id ? kl_permute(part, transpose) : part;
}

/* The operand with blocks of so many elements, if it has blocks. */
static struct quant_operand quant_in_blocks(const struct quant_operand *side, int64_t block)
{
    struct quant_operand s = *side;
    if (s.q.grain == QUANT_BLOCK)
        quant_cut_blocks(&s.q, block);
    return s;
}

/* The number of elements that share both scales. */
static int64_t common_block(const struct quant *a, const struct quant *b)
{
    if (a->grain != QUANT_BLOCK || b->grain != QUANT_BLOCK)
        return a->grain == QUANT_BLOCK ? a->block : b->block;
    return a->block < b->block ? a->block : b->block;
}

/* y minus what the minimums of one side take from each block: (sum of the other side's integers * its scale) * minimum.
 * ints: the other side's, [blocks, block, rest]; scale: its own, minimum: of the side, both [blocks, rest or 1].  axis:
 * that of y [blocks, M, N] without the other side's rest. */
static kl_tensor quant_subtract_minimums(kl_tensor y, kl_tensor ints, kl_tensor scale, kl_tensor minimum, int axis)
{
    const int one = 1;
    unsigned dtype = view_of(y).dtype;
    kl_tensor sums = quant_scale_sums(kl_cast(kl_sum(ints, 1, &one, false), (kl_dtype)dtype), scale);
    return kl_sub(y, quant_scale_sums(kl_unsqueeze(sums, axis), kl_unsqueeze(minimum, 3 - axis)));
}

/* Two matrices, one or both with blocks of the contracted axis: sum over blocks of scale a * scale b * product of
 * integers. */
static kl_tensor block_product(const struct quant_operand *left, const struct quant_operand *right)
{
    int64_t block = common_block(&left->q, &right->q);
    struct quant_operand sides[2] = {quant_in_blocks(left, block), quant_in_blocks(right, block)};
    const struct quant_operand *a = &sides[0], *b = &sides[1];
    uint32_t ca = axis_get(a->con, 0), cb = axis_get(b->con, 0);
    const int first = 0, one = 1;
    kl_tensor x = quant_split_blocks(quant_wide_ints(&a->q), &a->q.v, ca, block);
    kl_tensor w = quant_split_blocks(quant_wide_ints(&b->q), &b->q.v, cb, block);
    kl_tensor sum = kl_dot_general(x, w, 1, &first, &first, 1, &one, &one); /* [blocks, M, N] */
    kl_tensor za = of_blocks(a->q.part[2], ca), zb = of_blocks(b->q.part[2], cb);
    sum = quant_subtract_zero_points(sum, za.id ? kl_unsqueeze(za, 2) : za, zb.id ? kl_unsqueeze(zb, 1)
                                     : zb,
                  zb.id ? kl_unsqueeze(kl_sum(x, 1, &one, false), 2) : kl_none,
                  za.id ? kl_unsqueeze(kl_sum(w, 1, &one, false), 1) : kl_none, block);
    kl_tensor y = kl_cast(sum, (kl_dtype)dtype_compute(a->q.v.dtype));
    kl_tensor sa = of_blocks(a->q.part[1], ca), sb = of_blocks(b->q.part[1], cb);
    y = quant_scale_sums(quant_scale_sums(y, kl_unsqueeze(sa, 2)), kl_unsqueeze(sb, 1));
    if (b->q.part[3].id)
        y = quant_subtract_minimums(y, x, sa, of_blocks(b->q.part[3], cb), 2);
    else if (a->q.part[3].id)
        y = quant_subtract_minimums(y, w, sb, of_blocks(a->q.part[3], ca), 1);
    return quant_cast(kl_sum(y, 1, &first, false), a->q.v.dtype);
}

enum way { FLOATS, WHOLE, BLOCKS };

static enum way way_of(const struct call *c, const struct quant_operand *a, const struct quant_operand *b)
{
    unsigned ncon = c->proto.attr.dot.ncon, at;
    int64_t length = 1, blocks = 0;
    bool outside = true;
    for (unsigned i = 0; i < ncon; i++)
        length *= a->q.v.shape.dim[axis_get(a->con, i)];
    for (int i = 0; i < 2; i++) {
        const struct quant_operand *x = i ? b : a;
        bool contracted = quant_product_listed(x->con, ncon, x->q.axis, &at);
        outside &= x->q.grain == QUANT_TENSOR || (x->q.grain == QUANT_AXIS && !contracted);
        if (x->q.grain == QUANT_BLOCK)
            blocks = contracted && (!blocks || blocks % x->q.block == 0 || x->q.block % blocks == 0) ? x->q.block : -1;
        else if (!(x->q.grain == QUANT_TENSOR || !contracted))
            blocks = -1;
        if (blocks < 0)
            break;
    }
    if (a->q.v.dtype != b->q.v.dtype)
        return FLOATS; /* the op on floats reports the error */
    /* minimums of both, or beside zero points, would need products of them */
    if ((a->q.part[3].id || b->q.part[3].id) && (outside || a->q.part[2].id || b->q.part[2].id ||
                                                 (a->q.part[3].id && b->q.part[3].id)))
        return FLOATS;
    if (outside)
        return length <= LONGEST ? WHOLE : FLOATS;
    bool matrices = a->q.v.shape.rank == 2 && b->q.v.shape.rank == 2 && ncon == 1 && !c->proto.attr.dot.nbatch;
    return blocks > 0 && blocks <= LONGEST && matrices ? BLOCKS : FLOATS;
}

/* ---- with a gradient ---- */

struct float_product {
    const struct call *c;
    struct quant_operand side[2];
    enum way way;
    unsigned source[2], part[2][QUANT_PARTS]; /* index in in[] + 1; 0: there is none */
};

/* The operand with the region's parameters as parts. */
static struct quant_operand side_in(const struct float_product *w, unsigned i, const kl_tensor *in)
{
    struct quant_operand s = w->side[i];
    for (unsigned k = 0; k < QUANT_PARTS; k++)
        s.q.part[k] = w->part[i][k] ? in[w->part[i][k] - 1] : kl_none;
    return s;
}

static kl_status float_product_value(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct float_product *w = ctx;
    struct quant_operand a = side_in(w, 0, in), b = side_in(w, 1, in);
    (void)nin, (void)nout;
    out[0] = w->way == WHOLE ? whole_product(w->c, &a, &b) : block_product(&a, &b);
    return KL_OK;
}

/* The float for integers in in[]: through quantize if it was made from a float, so that saturation is part of the
 * gradient. */
static kl_tensor float_of(const struct float_product *w, unsigned i, const kl_tensor *in)
{
    struct quant_operand side = side_in(w, i, in);
    if (!w->source[i])
        return quant_dense(&side.q);
    kl_tensor zero = side.q.part[2];
    const struct view number = {.dtype = side.q.type == KL_Q_U8 ? KL_U8 : KL_I8, .device = side.q.v.device};
    static const struct shape scalar;
    struct call q = {.op = w->c->op, .proto.op = OP_quantize, .in[0] = in[w->source[i] - 1]};
    q.in[1] = quant_spread(&side.q, side.q.part[1]);
    q.in[2] = zero.id ? quant_spread(&side.q, zero)
                      : broadcast_to(w->c->op, const_like(&number, 0), &scalar, &side.q.v.shape);
    struct call d = {.op = w->c->op, .proto.op = OP_dequantize, .in = {record(&q), q.in[1], q.in[2]}};
    return record(&d);
}

static kl_status float_product_gradient(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct float_product *w = ctx;
    kl_tensor y = dot_of(w->c, float_of(w, 0, in), float_of(w, 1, in));
    kl_tensor loss = kl_sum_all(kl_mul(y, in[nin - 1])); /* in[], the result, its gradient */
    for (uint32_t i = 0, k = 0; i + 2 < nin && k < nout; i++)
        if (dtype_is_float(view_of(in[i]).dtype))
            out[k++] = grad_or_zeros(loss, in[i]);
    return KL_OK;
}

kl_tensor quant_dot(struct thread *t, const struct call *c)
{
    if (!wrapper_of(c->in[0], &layer_quantized) || !wrapper_of(c->in[1], &layer_quantized))
        return call_dense(t, c, &layer_quantized);
    unsigned nbatch = c->proto.attr.dot.nbatch, ncon = c->proto.attr.dot.ncon;
    struct float_product w = {.c = c, .side = {{quant_of(t, c->in[0]), c->proto.attr.dot.batch_a,
                                                c->proto.attr.dot.con_a,
                                       nbatch},
                                      {quant_of(t, c->in[1]), c->proto.attr.dot.batch_b, c->proto.attr.dot.con_b, 0}}};
    w.side[1].first = w.side[0].q.v.shape.rank - ncon; /* after the batch and a's free axes */
    w.way = way_of(c, &w.side[0], &w.side[1]);
    if (w.way == FLOATS)
        return call_dense(t, c, &layer_quantized);
    kl_tensor in[2 + 2 * QUANT_PARTS], out = kl_none;
    uint32_t n = 0;
    for (unsigned i = 0; i < 2; i++) {
        struct quant *q = &w.side[i].q;
        if (q->made.id) /* unpacks 4-bit integers to bytes */
            q->type = KL_Q_I8, q->part[0] = q->made, q->made = kl_none;
        kl_tensor source = quant_source(t, q->part[0]);
        if (source.id)
            in[n++] = source, w.source[i] = n;
    }
    if (!n)
        return w.way == WHOLE ? whole_product(c, &w.side[0], &w.side[1]) : block_product(&w.side[0], &w.side[1]);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < QUANT_PARTS; k++)
            if (w.side[i].q.part[k].id)
                in[n++] = w.side[i].q.part[k], w.part[i][k] = n;
    record_custom_grad(c->op, float_product_value, float_product_gradient, &w, n, in, 1, &out);
    return out;
}
