/* Reductions and products. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- reductions ---- */

bool axis_mask(struct thread *t, const char *op, const struct shape *s, int naxes, const int *axes, uint32_t *mask)
{
    *mask = 0;
    if (!axes) {
        *mask = (1u << s->rank) - 1;
        return true;
    }
    for (int i = 0; i < naxes; i++) {
        uint32_t at;
        if (!axis_of(t, op, s, axes[i], &at))
            return false;
        if (*mask >> at & 1) {
            fail(t, KL_ERR_SHAPE, "%s: axis %d occurs twice", op, axes[i]);
            return false;
        }
        *mask |= 1u << at;
    }
    return true;
}

static kl_tensor contract_reduce(const char *name, enum op op, kl_tensor a, const struct shape *s,
                        uint32_t mask, bool keepdims)
{
    struct call c = {.op = name, .proto.op = (uint16_t)op, .in = {a}};
    c.proto.attr.reduce.axes = mask;
    if (keepdims || !mask)
        return record(&c);
    struct shape kept = {0};
    for (uint32_t i = 0; i < s->rank; i++)
        if (!(mask >> i & 1))
            kept.dim[kept.rank++] = s->dim[i];
    struct thread *t = compose_begin(name);
    return t ? compose_end(t, reshape_to(name, record(&c), &kept)) : kl_none;
}

static kl_tensor reduce_axes(const char *name, enum op op, kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t mask;
    if (!t || !describe(t, name, "the tensor", a, &v) ||
        !axis_mask(t, name, &v.shape, naxes, axes, &mask))
        return t ? poison(t) : kl_none;
    return contract_reduce(name, op, a, &v.shape, mask, keepdims);
}

kl_tensor kl_sum(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_axes("sum", OP_sum, a, naxes, axes, keepdims);
}

kl_tensor kl_max(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_axes("max", OP_reduce_max, a, naxes, axes, keepdims);
}

kl_tensor kl_min(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_axes("min", OP_reduce_min, a, naxes, axes, keepdims);
}

kl_tensor kl_prod(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_axes("prod", OP_reduce_prod, a, naxes, axes, keepdims);
}

/* true and false as 1 and 0: true is the larger. */
static kl_tensor reduce_bool(const char *name, enum op op, kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t mask;
    if (!t || !describe(t, name, "the tensor", a, &v) ||
        !axis_mask(t, name, &v.shape, naxes, axes, &mask))
        return op_failed();
    if (v.dtype != KL_BOOL)
        return refuse(t, KL_ERR_TYPE, "%s: needs bool, got %s", name, dtype_name(v.dtype));
    if (!(t = compose_begin(name)))
        return kl_none;
    const struct view number = {.dtype = KL_U8, .device = v.device};
    kl_tensor y = contract_reduce(name, op, kl_cast(a, KL_U8), &v.shape, mask, keepdims);
    return compose_end(t, kl_ne(y, const_like(&number, 0)));
}

kl_tensor kl_any(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_bool("any", OP_reduce_max, a, naxes, axes, keepdims);
}

kl_tensor kl_all(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_bool("all", OP_reduce_min, a, naxes, axes, keepdims);
}

kl_tensor kl_sum_all(kl_tensor a)
{
    return reduce_axes("sum_all", OP_sum, a, 0, NULL, false);
}

/* A symbolic length as a number, which each run fills in. */
static kl_tensor length_slot(const char *op, const struct view *v, kl_dtype dtype, int64_t length)
{
    struct symbolic x = {.length = length};
    struct call c = {.op = op, .proto = {.op = OP_slot, .dtype = (uint8_t)dtype}, .device = v->device, .symbolic = &x};
    return record(&c);
}

/* The product of two symbolic lengths, which is no length itself.  Rounded once, as a length is: i64 to v's dtype. */
static kl_tensor length_product(const char *op, const struct view *v, int64_t a, int64_t b)
{
    kl_tensor x = length_slot(op, v, KL_I64, a), y = length_slot(op, v, KL_I64, b);
    return kl_cast(kl_mul(x, y), (kl_dtype)v->dtype);
}

kl_tensor count_like(struct thread *t, const char *op, const struct view *v, uint32_t mask, int64_t less)
{
    struct trace *tr = thread_trace(t);
    struct graph *g = tr ? tr->r.g : NULL;
    int64_t length = 1, other = 1, product; /* of as many axes as are a length, and of those behind them */
    bool known = true;
    for (uint32_t i = 0; i < v->shape.rank; i++)
        if (mask >> i & 1 && other == 1 && dim_multiply(g, length, v->shape.dim[i], &product))
            length = product;
        else if (mask >> i & 1)
            known = known && dim_multiply(g, other, v->shape.dim[i], &other);
    /* other casts of i64 may round twice */
    bool exact = (v->dtype == KL_F32 || v->dtype == KL_F64) && device_dtypes(device_index(v->device)) >> KL_I64 & 1;
    if (!known || (other != 1 && (less || other >= 0 || !exact)))
        return refuse(t, KL_ERR_SHAPE, "%s: the number of elements is a product of symbols", op);
    if (other != 1)
        return length_product(op, v, length, other);
    if (length >= 0)
        return const_like(v, length > less ? (double)(length - less) : less ? NAN : 0);
    if (less && !dims_sum(g, 1, &(struct scaled){length, 1}, -less, &length))
        return refuse(t, KL_ERR_SHAPE, "%s: the number of elements may be below %" PRId64, op, less);
    return length_slot(op, v, (kl_dtype)v->dtype, length);
}

kl_tensor kl_mean(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t mask;
    if (!t || !describe(t, "mean", "the tensor", a, &v) ||
        !axis_mask(t, "mean", &v.shape, naxes, axes, &mask))
        return t ? poison(t) : kl_none;
    if (!dtype_is_float(v.dtype))
        return refuse(t, KL_ERR_TYPE, "mean: needs a floating dtype, got %s", dtype_name(v.dtype));
    if (!(t = compose_begin("mean")))
        return kl_none;
    a = widen_by_policy(t, a, &v);
    kl_tensor sum = contract_reduce("mean", OP_sum, a, &v.shape, mask, keepdims);
    return compose_end(t, kl_div(sum, count_like(t, "mean", &v, mask, 0)));
}

/* The smallest index whose element is the extreme, or a NaN. */
static kl_tensor arg_extreme(const char *op, enum op extreme, kl_tensor a, int axis)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, op, "the tensor", a, &v) || !axis_of(t, op, &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    struct trace *tr = thread_trace(t);
    char text[DIM_TEXT];
    int64_t low, high;
    if (!dim_range(tr ? tr->r.g : NULL, v.shape.dim[at], &low, &high) || low < 1 || high > INT32_MAX)
        return refuse(t, KL_ERR_SHAPE, "%s: axis %d has length %s, not 1..2^31-1", op, axis,
                      dim_text(tr ? tr->r.g : NULL, v.shape.dim[at], text, sizeof text));
    if (!(t = compose_begin(op)))
        return kl_none;
    const struct view index = {.dtype = KL_I32, .device = v.device};
    if (v.dtype == KL_BOOL)
        a = kl_cast(a, KL_U8);
    kl_tensor hit = kl_eq(a, contract_reduce(op, extreme, a, &v.shape, 1u << at, true));
    if (dtype_is_float(v.dtype))
        hit = kl_or(hit, kl_ne(a, a));
    kl_tensor place = kl_iota(v.device, KL_I32, (int)v.shape.rank, v.shape.dim, (int)at);
    kl_tensor found = kl_where(hit, place, const_like(&index, INT32_MAX));
    return compose_end(t, contract_reduce(op, OP_reduce_min, found, &v.shape, 1u << at, false));
}

kl_tensor kl_argmax(kl_tensor a, int axis)
{
    return arg_extreme("argmax", OP_reduce_max, a, axis);
}

kl_tensor kl_argmin(kl_tensor a, int axis)
{
    return arg_extreme("argmin", OP_reduce_min, a, axis);
}

/* ---- products ---- */

kl_tensor record_dot(const char *op, kl_tensor a, kl_tensor b, const union attr *dims)
{
    return record(&(struct call){.op = op, .proto = {.op = OP_dot, .attr = *dims}, .in = {a, b}});
}

/* A pair of axis lists as nibbles of dot's attributes; false: reported. */
static bool axis_lists(struct thread *t, const struct view *a, const struct view *b, int n,
                       const int *in_a, const int *in_b, uint32_t *list_a, uint32_t *list_b)
{
    if (n < 0 || n > KL_MAX_RANK || (n && (!in_a || !in_b))) {
        fail(t, KL_ERR_ARGUMENT, "dot_general: a list of %d axes", n);
        return false;
    }
    for (unsigned i = 0; i < (unsigned)n; i++) {
        uint32_t x, y;
        if (!axis_of(t, "dot_general", &a->shape, in_a[i], &x) ||
            !axis_of(t, "dot_general", &b->shape, in_b[i], &y))
            return false;
        *list_a = axis_put(*list_a, i, x);
        *list_b = axis_put(*list_b, i, y);
    }
    return true;
}

kl_tensor kl_dot_general(kl_tensor a, kl_tensor b, int nbatch, const int *batch_a,
                         const int *batch_b, int ncontract, const int *contract_a, const int *contract_b)
{
    struct thread *t = thread_self();
    struct view va, vb;
    union attr dims = {0};
    uint32_t ba = 0, bb = 0, ca = 0, cb = 0;
    if (!t || !describe(t, "dot_general", "operand 1", a, &va) ||
        !describe(t, "dot_general", "operand 2", b, &vb) ||
        !axis_lists(t, &va, &vb, nbatch, batch_a, batch_b, &ba, &bb) ||
        !axis_lists(t, &va, &vb, ncontract, contract_a, contract_b, &ca, &cb))
        return t ? poison(t) : kl_none;
    dims.dot.batch_a = ba;
    dims.dot.batch_b = bb;
    dims.dot.con_a = ca;
    dims.dot.con_b = cb;
    dims.dot.nbatch = (uint8_t)nbatch;
    dims.dot.ncon = (uint8_t)ncontract;
    return record_dot("dot_general", a, b, &dims);
}

/* The shape of one operand with the leading axes of `batch`. */
static struct shape with_batch(const struct shape *batch, const struct shape *s)
{
    struct shape out = *batch;
    for (uint32_t i = s->rank > 2 ? s->rank - 2 : 0; i < s->rank; i++)
        out.dim[out.rank++] = s->dim[i];
    return out;
}

/* The leading axes of both, broadcast; false: they do not. */
static bool batch_shape(const struct shape *a, const struct shape *b, struct shape *batch)
{
    uint32_t na = a->rank > 2 ? a->rank - 2 : 0, nb = b->rank > 2 ? b->rank - 2 : 0;
    *batch = (struct shape){.rank = na > nb ? na : nb};
    for (uint32_t i = 0; i < batch->rank; i++) {
        int64_t x = i + na >= batch->rank ? a->dim[i + na - batch->rank] : 1;
        int64_t y = i + nb >= batch->rank ? b->dim[i + nb - batch->rank] : 1;
        if (x != y && x != 1 && y != 1)
            return false;
        batch->dim[i] = x == 1 ? y : x;
    }
    return true;
}

/* The number of batch axes of the second operand.  Trailing batch axes that it lacks, or has with length 1, become
 * additional rows of the first operand: one product with all of them reads the second operand once, and the sum over
 * them in its gradient is part of a product, too. `b` loses those axes. */
static uint32_t shared_axes(const struct shape *batch, struct shape *b)
{
    uint32_t n = batch->rank, nb = b->rank > 2 ? b->rank - 2 : 0;
    while (n && (!nb || b->dim[nb - 1] == 1)) {
        if (nb) {
            memmove(b->dim + nb - 1, b->dim + nb, 2 * sizeof *b->dim);
            b->rank--;
            nb--;
        }
        n--;
    }
    return n;
}

kl_tensor kl_matmul(kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view va, vb;
    struct shape batch;
    char x[SHAPE_TEXT], y[SHAPE_TEXT];
    if (!t || !describe(t, "matmul", "operand 1", a, &va) || !describe(t, "matmul", "operand 2", b, &vb))
        return t ? poison(t) : kl_none;
    uint32_t ra = va.shape.rank, rb = vb.shape.rank;
    bool fit = ra && rb && va.shape.dim[ra - 1] == vb.shape.dim[rb > 1 ? rb - 2 : 0];
    if (!fit || !batch_shape(&va.shape, &vb.shape, &batch))
        return refuse(t, KL_ERR_SHAPE, "matmul: shapes %s and %s do not fit", shape_text(&va.shape, x, sizeof x),
                      shape_text(&vb.shape, y, sizeof y));
    if (!(t = compose_begin("matmul")))
        return kl_none;
    struct shape sa = with_batch(&batch, &va.shape), one = vb.shape;
    batch.rank = shared_axes(&batch, &one);
    struct shape sb = with_batch(&batch, &one);
    union attr dims = {0};
    a = shape_equal(&sa, &va.shape) ? a : broadcast_to("matmul", a, &va.shape, &sa);
    b = one.rank == rb ? b : reshape_to("matmul", b, &one);
    b = shape_equal(&sb, &one) ? b : broadcast_to("matmul", b, &one, &sb);
    for (uint32_t i = 0; i < batch.rank; i++)
        dims.dot.batch_a = axis_put(dims.dot.batch_a, i, i);
    dims.dot.batch_b = dims.dot.batch_a;
    dims.dot.nbatch = (uint8_t)batch.rank;
    dims.dot.con_a = sa.rank - 1;
    dims.dot.con_b = batch.rank;
    dims.dot.ncon = 1;
    return compose_end(t, record_dot("matmul", a, b, &dims));
}

/* For x times w plus b: checks the axes that must have equal lengths. false: reported. */
static bool linear_fits(struct thread *t, kl_tensor x, kl_tensor w, kl_tensor b)
{
    struct view vx, vw, vb = {0};
    char one[SHAPE_TEXT], two[SHAPE_TEXT];
    if (!describe(t, "linear", "x", x, &vx) || !describe(t, "linear", "the weight", w, &vw) ||
        (b.id && !describe(t, "linear", "the bias", b, &vb)))
        return false;
    const struct shape *sx = &vx.shape, *sw = &vw.shape, *sb = &vb.shape;
    if (!sx->rank || sw->rank < 2)
        return true; /* matmul reports it */
    int64_t inner = sx->dim[sx->rank - 1], rows = sw->dim[sw->rank - 2], columns = sw->dim[sw->rank - 1];
    if (inner != rows)
        return fail(t, KL_ERR_SHAPE,
                    "linear: axis %u of x %s has length %" PRId64 ", axis %u of the weight %s has %" PRId64,
                        sx->rank - 1,
                    shape_text(sx, one, sizeof one), inner, sw->rank - 2, shape_text(sw, two, sizeof two), rows), false;
    if (sb->rank && sb->dim[sb->rank - 1] != columns && sb->dim[sb->rank - 1] != 1)
        return fail(t, KL_ERR_SHAPE,
                    "linear: axis %u of the bias %s has length %" PRId64 ", axis %u of the weight %s has %" PRId64,
                    sb->rank - 1, shape_text(sb, one, sizeof one), sb->dim[sb->rank - 1], sw->rank - 1,
                    shape_text(sw, two, sizeof two), columns), false;
    return true;
}

kl_tensor kl_linear(kl_tensor x, kl_tensor w, kl_tensor b)
{
    struct thread *t = thread_self();
    if (!t || !linear_fits(t, x, w, b))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("linear")))
        return kl_none;
    kl_tensor y = kl_matmul(x, w);
    return compose_end(t, b.id ? kl_add(y, b) : y);
}
