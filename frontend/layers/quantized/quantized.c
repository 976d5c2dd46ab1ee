/* Quantized: tensors stored as small integers, with a scale for all, for each slice of an axis or for each block of
 * one.
 *
 * Scales and zero points have the tensor's rank, so that a view broadcasts them to its elements; quant_product.c has
 * integer products. */
#include "quantized.h"
#include <math.h>
#include <string.h>

/* ---- shapes ---- */

/* s with the axis split into blocks: [.., blocks, block, ..] */
struct shape quant_cut_shape(const struct shape *s, uint32_t axis, int64_t block)
{
    struct shape out = {.rank = s->rank + 1};
    for (uint32_t i = 0, k = 0; i < s->rank; i++) {
        out.dim[k++] = i == axis ? s->dim[i] / block : s->dim[i];
        if (i == axis)
            out.dim[k++] = block;
    }
    return out;
}

struct shape quant_scale_shape(const struct quant *q)
{
    struct shape out = {.rank = q->v.shape.rank};
    for (uint32_t i = 0; i < out.rank; i++)
        out.dim[i] = q->grain == QUANT_BLOCK ? (i == q->axis ? q->v.shape.dim[i] / q->block : q->v.shape.dim[i])
                     : q->grain == QUANT_AXIS && i == q->axis ? q->v.shape.dim[i] : 1;
    return out;
}

/* Broadcast to each element. */
kl_tensor quant_spread(const struct quant *q, kl_tensor scale)
{
    struct shape s = quant_scale_shape(q);
    if (shape_equal(&s, &q->v.shape))
        return scale;
    if (q->grain != QUANT_BLOCK)
        return broadcast_to("quantized", scale, &s, &q->v.shape);
    struct shape cut = quant_cut_shape(&q->v.shape, q->axis, q->block), one = cut;
    one.dim[q->axis + 1] = 1;
    return reshape_to("quantized", broadcast_to("quantized", reshape_to("quantized", scale, &one), &one, &cut),
                      &q->v.shape);
}

/* ---- integers ---- */

static unsigned quantized_ints_dtype(kl_qtype type) { return type == KL_Q_U8 || type == KL_Q_U4 ? KL_U8 : KL_I8; }

/* The type of the same integers, one in a byte. */
static kl_qtype quantized_wide_type(kl_qtype type)
{
    return type == KL_Q_I4 ? KL_Q_I8 : type == KL_Q_U4 ? KL_Q_U8 : type;
}

/* Packs pairs along the last axis into bytes, the first in the low half. */
static kl_tensor quantized_pack(const struct quant *q, kl_tensor ints)
{
    const struct view byte = {.dtype = KL_U8, .device = q->v.device};
    uint32_t last = q->v.shape.rank - 1;
    struct shape pairs = quant_cut_shape(&q->v.shape, last, 2), bytes = q->v.shape;
    bytes.dim[last] /= 2;
    kl_tensor u = kl_and(kl_bitcast(ints, KL_U8), const_like(&byte, 15));
    u = reshape_to("quantized", u, &pairs);
    kl_tensor low = kl_narrow(u, -1, 0, 1), high = kl_shl(kl_narrow(u, -1, 1, 1), const_like(&byte, 4));
    return reshape_to("quantized", kl_or(low, high), &bytes);
}

static kl_tensor quantized_unpack(const struct quant *q)
{
    const struct view byte = {.dtype = KL_U8, .device = q->v.device}, number = {.dtype = KL_I8, .device = q->v.device};
    struct shape pairs = quant_cut_shape(&q->v.shape, q->v.shape.rank - 1, 2), one = pairs;
    one.dim[one.rank - 1] = 1;
    kl_tensor u = broadcast_to("quantized", reshape_to("quantized", q->part[0], &one), &one, &pairs);
    kl_tensor half = kl_shl(kl_iota(q->v.device, KL_U8, (int)pairs.rank, pairs.dim, -1), const_like(&byte, 2));
    u = kl_and(kl_shr(u, half), const_like(&byte, 15));
    if (q->type == KL_Q_U4)
        return reshape_to("quantized", u, &q->v.shape);
    kl_tensor moved = kl_bitcast(kl_xor(u, const_like(&byte, 8)), KL_I8); /* 0..15 for -8..7 */
    return reshape_to("quantized", kl_sub(moved, const_like(&number, 8)), &q->v.shape);
}

kl_tensor quant_ints(const struct quant *q)
{
    return q->made.id ? q->made : quant_is_nibbles(q->type) ? quantized_unpack(q) : q->part[0];
}

static kl_tensor zero_or_none(const struct quant *q)
{
    static const struct shape scalar;
    const struct view number = {.dtype = quantized_ints_dtype(q->type), .device = q->v.device};
    return q->part[2].id ? quant_spread(q, q->part[2])
                         : broadcast_to("quantized", const_like(&number, 0), &scalar, &q->v.shape);
}

kl_tensor quant_dense(const struct quant *q)
{
    struct call c = {.op = "quantized", .proto.op = OP_dequantize, .in[0] = quant_ints(q)};
    c.in[1] = quant_spread(q, q->part[1]);
    c.in[2] = zero_or_none(q);
    kl_tensor x = record(&c);
    return q->part[3].id ? kl_sub(x, quant_spread(q, q->part[3])) : x;
}

static kl_tensor quantized_dense(struct thread *t, kl_tensor h)
{
    struct quant q = quant_of(t, h);
    return quant_dense(&q);
}

/* Quantizes x with the scheme and scales of q; q->v describes x. */
static kl_tensor quantized_from_float(struct thread *t, struct quant *q, kl_tensor x)
{
    kl_tensor scale = quant_spread(q, q->part[1]);
    /* saturates at 4 bits: almost half a step beyond 7 and -8, in values that every dtype represents */
    if (q->type == KL_Q_I4) {
        kl_tensor high = kl_mul(scale, const_like(&q->v, 7.46875)),
            low = kl_mul(scale, const_like(&q->v, -8.4375));
        x = kl_maximum(kl_minimum(x, high), low);
    }
    struct call c = {.op = "quantized", .proto.op = OP_quantize, .in = {x, scale, zero_or_none(q)}};
    q->part[0] = record(&c);
    if (q->type == KL_Q_I4)
        q->part[0] = quantized_pack(q, q->part[0]);
    return quant_make(t, q);
}

/* ---- scales from ranges ---- */

/* From the least and greatest elements, in the shape of the scales.  Of halves it is computed in f32, in which no range
 * overflows, and rounded to a scale. */
static void scale_of_range(struct quant *q, kl_tensor low, kl_tensor high)
{
    struct view wide = q->v;
    const struct view *v = &wide;
    wide.dtype = dtype_compute(wide.dtype);
    low = quant_cast(low, v->dtype);
    high = quant_cast(high, v->dtype);
    if (q->type != KL_Q_U8) {
        kl_tensor size = kl_maximum(high, kl_neg(low));
        q->part[1] = quant_cast(kl_div(size, const_like(v, q->type == KL_Q_I8 ? 127 : 7)), q->v.dtype);
        q->part[2] = kl_none;
        return;
    }
    kl_tensor zero = const_like(v, 0);
    low = kl_minimum(low, zero); /* 0 is exact */
    high = kl_maximum(high, zero);
    q->part[1] = quant_cast(kl_div(kl_sub(high, low), const_like(v, 255)), q->v.dtype);
    low = kl_div(kl_neg(low), quant_cast(q->part[1], v->dtype));
    q->part[2] = kl_cast(kl_round(low), KL_U8);
}

/* The least or greatest of the elements that share a scale. */
static kl_tensor quantized_extreme(const struct quant *q, kl_tensor x, bool greatest)
{
    int axes[KL_MAX_RANK], n = 0;
    struct shape kept = quant_scale_shape(q);
    if (q->grain == QUANT_BLOCK) {
        struct shape cut = quant_cut_shape(&q->v.shape, q->axis, q->block);
        x = reshape_to("quantized", x, &cut);
        axes[n++] = (int)q->axis + 1;
    } else {
        for (uint32_t i = 0; i < q->v.shape.rank; i++)
            if (q->grain == QUANT_TENSOR || i != q->axis)
                axes[n++] = (int)i;
    }
    x = greatest ? kl_max(x, n, axes, true) : kl_min(x, n, axes, true);
    return reshape_to("quantized", x, &kept);
}

static kl_tensor quantize_by_range(struct thread *t, struct quant *q, kl_tensor x)
{
    kl_tensor still = kl_detach(x);
    scale_of_range(q, quantized_extreme(q, still, false), quantized_extreme(q, still, true));
    return quantized_from_float(t, q, x);
}

/* ---- ops ---- */

/* A handle for the node quantize that made these integers, before packing, or for the float that it took; kl_none if no
 * gradient can flow. */
static kl_tensor source_of_quantize(struct thread *t, kl_tensor ints, bool packed, bool source)
{
    struct trace *tr = thread_trace(t);
    const struct entry *x = entry_peek(ints);
    struct err e;
    kl_tensor h = kl_none;
    e.code = KL_OK;
    if (t->no_grad || !x || x->node == NIL || (x->kind == KIND_TEMP && x->trace != tr))
        return kl_none;
    if (tr && x->kind != KIND_TEMP)
        return kl_none; /* a value from outside */
    if (!tr)
        front_lock();
    const struct graph *g = tr ? tr->r.g : deferred_graph();
    ref r = x->node;
    const struct node *n = node_at(g, r);
    while (packed && (op_is_view(n->op) || n->op == OP_or || n->op == OP_and || n->op == OP_bitcast))
        n = node_at(g, r = n->in[0]); /* follows the ops of quantized_pack() */
    if (n->op == OP_quantize && !(n->flags & MARK_STOP) && (tr || deferred_tracked(n->in[0])))
        h = handle_of_node(t, tr, source ? n->in[0] : r, x->ad, &e);
    if (!tr)
        front_unlock();
    if (h.id && !tr && !scope_note(t, h))
        return kl_none;
    return h;
}

kl_tensor quant_source(struct thread *t, kl_tensor ints) { return source_of_quantize(t, ints, false, true); }
kl_tensor quant_made_ints(struct thread *t, kl_tensor packed) { return source_of_quantize(t, packed, true, false); }

/* Rows of a tensor whose scales differ (gather), as a plain tensor: rows of the integers times rows of the scales, so
 * that the rest of the table is not read. */
static kl_tensor quantized_rows(const struct call *c, const struct quant *q)
{
    uint32_t g = c->proto.attr.axis.axis, more = view_of(c->in[1]).shape.rank;
    struct shape scales = quant_scale_shape(q), own = {.rank = scales.rank + more - 1};
    bool takes = scales.dim[g] == q->v.shape.dim[g]; /* the rows differ in their scales */
    bool last = g + 1 == scales.rank, bytes = quant_is_nibbles(q->type) && !last; /* pairs stay together */
    kl_tensor six[QUANT_SIX], ints;
    if (!last && quant_stored_six(c->in[0], six)) {
        for (int i = 0; i < QUANT_SIX; i++)
            six[i] = call_with(c, six[i], c->in[1], kl_none);
        ints = quant_join_six(six);
    } else {
        ints = call_with(c, bytes ? q->part[0] : quant_ints(q), c->in[1], kl_none);
    }
    struct quant rows = {.type = q->type, .grain = q->grain, .block = q->block,
                         .axis = q->axis < g ? q->axis : q->axis + more - 1, .v = view_of(ints), .part = {ints}};
    rows.v.dtype = q->v.dtype;
    if (bytes) {
        rows.v.shape.dim[rows.v.shape.rank - 1] *= 2;
        rows.part[0] = quantized_unpack(&rows);
    }
    rows.type = quantized_wide_type(q->type);
    for (uint32_t i = 0, k = 0; i < scales.rank; i++)
        for (uint32_t j = 0; j < (i == g ? more : 1); j++, k++)
            own.dim[k] = i != g ? scales.dim[i] : takes ? rows.v.shape.dim[k] : 1;
    for (unsigned i = 1; i < QUANT_PARTS; i++) {
        kl_tensor stored[2]; /* rows of what is stored, before scales are computed from it */
        quant_stored_part(c->in[0], i, stored);
        if (!stored[0].id)
            continue;
        for (int j = 0; j < 2 && stored[j].id; j++) {
            struct shape to = own;
            struct view v = view_of(stored[j]);
            if (j == 1)
                to.dim[rows.axis] = v.shape.dim[q->axis];
            stored[j] = reshape_to(c->op, takes ? call_with(c, stored[j], c->in[1], kl_none) : stored[j], &to);
        }
        kl_tensor part = i == 2 ? stored[0] : quant_scale_of(stored, &own, rows.axis, q->v.dtype);
        rows.part[i] = q->grain == QUANT_BLOCK ? quant_spread(&rows, part)
                                               : broadcast_to(c->op, part, &own, &rows.v.shape);
    }
    if (rows.v.shape.rank) /* a scale of its own for each element */
        rows.grain = QUANT_BLOCK, rows.axis = rows.v.shape.rank - 1, rows.block = 1;
    return quant_dense(&rows);
}

/* Rows by index, of a tensor whose scales differ or whose integers are packed. */
static kl_tensor quantized_gather(struct thread *t, const struct call *c, const struct quant *q)
{
    bool differentiable = quant_is_nibbles(q->type) ? q->made.id : quant_source(t, q->part[0]).id;
    bool blocks = q->grain == QUANT_BLOCK && q->axis == c->proto.attr.axis.axis;
    return differentiable || blocks ? call_with(c, quant_dense(q), c->in[1], kl_none) : quantized_rows(c, q);
}

/* A view of everything, or a selection of elements: the same integers, whose scales follow. */
static kl_tensor quantized_view(struct thread *t, const struct call *c)
{
    struct quant q = quant_of(t, c->in[0]), to = q;
    kl_tensor six[QUANT_SIX];
    bool nibbles = quant_is_nibbles(q.type), packed = nibbles || quant_stored_six(c->in[0], six);
    if (c->proto.op == OP_gather && (packed || q.grain != QUANT_TENSOR))
        return quantized_gather(t, c, &q);
    kl_tensor source = nibbles ? q.made : quant_source(t, q.part[0]), x;
    /* if a gradient may be requested: the same integers, made from floats */
    x = call_with(c, source.id ? quant_dense(&q) : quant_ints(&q), c->in[1], kl_none);
    to.v.shape = view_of(x).shape;
    to.made = kl_none;
    if (!quant_view_scales(t, c, &q, &to))
        return poison(t);
    uint32_t rank = to.v.shape.rank; /* pairs lie along the last axis, which a permutation would tear apart */
    if (nibbles && (!rank || rank == KL_MAX_RANK || to.v.shape.dim[rank - 1] % 2 ||
                    (c->proto.op == OP_permute && !source.id)))
        to.type = quantized_wide_type(to.type);
    if (source.id)
        return quantized_from_float(t, &to, x);
    to.part[0] = quant_is_nibbles(to.type) ? quantized_pack(&to, x) : x;
    return quant_make(t, &to);
}

/* Computes in floats; if the result is a float, it is quantized like the first quantized operand. */
static kl_tensor quantized_elementwise(struct thread *t, const struct call *c)
{
    unsigned first = 0;
    while (!wrapper_of(c->in[first], &layer_quantized))
        first++;
    struct quant q = quant_of(t, c->in[first]);
    kl_tensor y = call_dense(t, c, &layer_quantized);
    struct view v = view_of(y);
    const struct shape *s = &v.shape;
    if (!dtype_is_float(v.dtype) || q.type == KL_Q_U4 || q.part[3].id ||
        (q.type == KL_Q_I4 && (!s->rank || s->dim[s->rank - 1] % 2)))
        return y;
    uint32_t axis = q.axis + s->rank - q.v.shape.rank; /* broadcast shapes are aligned at their last axes */
    if (q.grain != QUANT_TENSOR && (s->dim[axis] != q.v.shape.dim[q.axis] ||
                                    (q.grain == QUANT_BLOCK && s->rank == KL_MAX_RANK)))
        q.grain = QUANT_TENSOR;
    q.axis = axis;
    q.v = v;
    return quantize_by_range(t, &q, y);
}

static kl_tensor call_quantized(struct thread *t, const struct call *c)
{
    if (op_is_elementwise(c->proto.op))
        return quantized_elementwise(t, c);
    if (op_is_view(c->proto.op))
        return quantized_view(t, c);
    if (op_is_product(c->proto.op))
        return quant_dot(t, c);
    switch (c->proto.op) {
    case OP_dynamic_slice: case OP_gather: return quantized_view(t, c);
    default: return call_dense(t, c, &layer_quantized);
    }
}

const struct layer layer_quantized = {.name = "quantized", .key = LAYER_Quantized, .call = call_quantized,
                                      .dense = quantized_dense};

/* ---- making them ---- */

bool quant_scheme(struct thread *t, const char *op, kl_qscheme scheme, const struct view *v, struct quant *q)
{
    char text[SHAPE_TEXT];
    uint32_t rank = v->shape.rank;
    *q = (struct quant){.type = scheme.type, .v = *v, .block = scheme.block,
                        .grain = scheme.block > 0 ? QUANT_BLOCK : scheme.per_axis ? QUANT_AXIS : QUANT_TENSOR};
    if (!dtype_is_float(v->dtype))
        return fail(t, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(v->dtype)) == KL_OK;
    if ((unsigned)scheme.type > KL_Q_I6 || scheme.block < 0)
        return fail(t, KL_ERR_ARGUMENT, "%s: there is no such scheme", op) == KL_OK;
    if (q->grain != QUANT_TENSOR && !axis_of(t, op, &v->shape, scheme.axis, &q->axis))
        return false;
    if (q->grain == QUANT_BLOCK && (v->shape.dim[q->axis] % scheme.block || rank == KL_MAX_RANK))
        return fail(t, KL_ERR_SHAPE, "%s: axis %u of %s is not cut into blocks of %lld", op, q->axis,
                    shape_text(&v->shape, text, sizeof text), (long long)scheme.block) == KL_OK;
    if (quant_is_nibbles(q->type) && (!rank || rank == KL_MAX_RANK || v->shape.dim[rank - 1] % 2))
        return fail(t, KL_ERR_SHAPE, "%s: 4-bit integers need a last axis of even length, got %s", op,
                    shape_text(&v->shape, text, sizeof text)) == KL_OK;
    if (q->type == KL_Q_I6 && (!rank || rank + 2 > KL_MAX_RANK || v->shape.dim[rank - 1] % 16))
        return fail(t, KL_ERR_SHAPE, "%s: 6-bit integers need up to %d axes, the last one of 16 n, got %s", op,
                    KL_MAX_RANK - 2, shape_text(&v->shape, text, sizeof text)) == KL_OK;
    return true;
}

/* The same of a scheme in which floats are rounded. */
static bool quantized_scheme(struct thread *t, const char *op, kl_qscheme scheme, const struct view *v, struct quant *q)
{
    return scheme.type == KL_Q_U4 || scheme.type == KL_Q_I6
        ? fail(t, KL_ERR_ARGUMENT, "%s: KL_Q_%s is of integers that are there", op,
               scheme.type == KL_Q_U4 ? "U4" : "I6") == KL_OK
        : quant_scheme(t, op, scheme, v, q);
}

kl_tensor kl_to_quantized(kl_tensor x, kl_qscheme scheme, kl_tensor scale, kl_tensor zero_point)
{
    struct view v;
    struct quant q;
    struct thread *t = floats_begin("to_quantized", x, &v);
    if (!t)
        return op_failed();
    if (wrapper_of(x, NULL))
        x = kl_dense(x);
    if (!quantized_scheme(t, "to_quantized", scheme, &v, &q))
        return compose_end(t, poison(t));
    if (!scale.id && zero_point.id)
        return compose_end(t, refuse(t, KL_ERR_ARGUMENT, "to_quantized: a zero point without a scale"));
    if (!scale.id)
        return compose_end(t, quantize_by_range(t, &q, x));
    q.part[1] = quant_align_scale(t, "the scale", &q, scale, v.dtype);
    q.part[2] = zero_point.id ? quant_align_scale(t, "the zero point", &q, zero_point, quantized_ints_dtype(q.type))
                              : kl_none;
    if (!q.part[1].id || (zero_point.id && !q.part[2].id))
        return compose_end(t, poison(t));
    if (q.type == KL_Q_I4 && zero_point.id)
        return compose_end(t, refuse(t, KL_ERR_ARGUMENT, "to_quantized: 4-bit integers have no zero point"));
    return compose_end(t, quantized_from_float(t, &q, x));
}

/* ---- observers ---- */

kl_status kl_observer_init(kl_observer *o, kl_device device, kl_qscheme scheme, kl_dtype dtype, int rank,
                           const int64_t *dims)
{
    struct thread *t = thread_self();
    struct view v = {.dtype = dtype, .device = device};
    struct quant q;
    if (!t || !o)
        return KL_ERR_ARGUMENT;
    *o = (kl_observer){.scheme = scheme};
    if (!shape_of(t, "observer_init", rank, dims, &v.shape) ||
        !quantized_scheme(t, "observer_init", scheme, &v, &q))
        return t->last.code;
    if (q.grain == QUANT_BLOCK)
        return fail(t, KL_ERR_ARGUMENT, "observer_init: blocks have their own scales, which depend on the data");
    struct shape s = quant_scale_shape(&q);
    dtype = (kl_dtype)dtype_compute(dtype); /* an average in a half would stand still */
    o->low = kl_keep(kl_full(device, dtype, (int)s.rank, s.dim, (double)INFINITY));
    o->high = kl_keep(kl_full(device, dtype, (int)s.rank, s.dim, -(double)INFINITY));
    kl_status status = kl_check(o->low) ? kl_check(o->low) : kl_check(o->high);
    if (status)
        kl_observer_deinit(o);
    return status;
}

void kl_observer_deinit(kl_observer *o)
{
    kl_release(o->low);
    kl_release(o->high);
    o->low = o->high = kl_none;
}

/* Assigns the first range, later ones are merged. */
static kl_status take_in(kl_tensor state, kl_tensor new, double momentum, bool greatest)
{
    kl_tensor y;
    new = quant_cast(new, view_of(state).dtype);
    if (momentum > 0) {
        kl_tensor mixed = kl_add(kl_mul_scalar(state, momentum), kl_mul_scalar(new, 1 - momentum));
        y = kl_where(kl_is_finite(state), mixed, new);
    } else {
        y = greatest ? kl_maximum(state, new) : kl_minimum(state, new);
    }
    return kl_assign(state, y);
}

kl_status kl_observer_update(kl_observer *o, kl_tensor x)
{
    struct view v;
    struct quant q;
    struct thread *t = floats_begin("observer_update", x, &v);
    if (!t)
        return kl_last_error_code();
    kl_status status = KL_ERR_SHAPE;
    if (quantized_scheme(t, "observer_update", o->scheme, &v, &q)) {
        if (wrapper_of(x, NULL))
            x = kl_dense(x);
        x = kl_detach(x);
        status = take_in(o->low, quantized_extreme(&q, x, false), o->momentum, false);
        if (!status)
            status = take_in(o->high, quantized_extreme(&q, x, true), o->momentum, true);
    } else {
        status = t->tracing ? t->trace->err.code : t->last.code;
    }
    compose_end_all(t, NULL, 0);
    return status;
}

kl_tensor kl_observer_quantize(const kl_observer *o, kl_tensor x)
{
    struct view v, low;
    struct quant q;
    struct thread *t = floats_begin("observer_quantize", x, &v);
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (!t)
        return op_failed();
    if (!quantized_scheme(t, "observer_quantize", o->scheme, &v, &q) ||
        !describe(t, "observer_quantize", "the observer's range", o->low, &low))
        return compose_end(t, poison(t));
    struct shape want = quant_scale_shape(&q);
    if (!shape_equal(&want, &low.shape))
        return compose_end(t,
                           refuse(t, KL_ERR_SHAPE,
                                  "observer_quantize: the observer's ranges are %s, those of this tensor %s",
                                     shape_text(&low.shape, a, sizeof a), shape_text(&want, b, sizeof b)));
    if (wrapper_of(x, NULL))
        x = kl_dense(x);
    scale_of_range(&q, kl_detach(o->low), kl_detach(o->high));
    return compose_end(t, quantized_from_float(t, &q, x));
}
