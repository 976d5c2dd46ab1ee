/* Nested: components one after the other along axis 0.  Parts: the values; the offsets; the component of each row; the
 * first row of that component and the one after its last, which attention uses.  Ops that do not touch that axis run on
 * all rows; ops along it use each row's component. */
#include "wrapper.h"
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* number[0] identifies tensors with the same offsets. */
static _Atomic int64_t next_id = 1;

static const struct wrapper *nested_of(kl_tensor h) { return wrapper_of(h, &layer_nested); }

static kl_tensor with_values(struct thread *t, kl_tensor like, kl_tensor values)
{
    const struct wrapper *w = nested_of(like);
    struct view v = view_of(values);
    return wrap(t, &layer_nested, &v, 4, (kl_tensor[]){values, w->part[1], w->part[2], w->part[3]}, w->number);
}

static kl_tensor nested_dense(struct thread *t, kl_tensor h)
{
    (void)t;
    return kl_dense(nested_of(h)->part[0]);
}

/* ---- ops that do not touch the ragged axis ---- */

static kl_tensor nested_refuse(struct thread *t, const struct call *c, const char *why)
{
    return call_refused(t, c, KL_ERR_TYPE, "%s: %s; kl_dense(x) is all rows as a plain tensor",
                        opinfo[c->proto.op].name, why);
}

/* The nested operand whose offsets all share; NULL: the reason why there is none. */
static const char *same_offsets(const struct call *c, unsigned *first)
{
    const struct wrapper *w = NULL;
    for (unsigned i = 0; i < call_operands(c); i++) {
        const struct wrapper *x = nested_of(c->in[i]);
        if (x && w && x->number[0] != w->number[0])
            return "its operands have offsets of their own (kl_nested_like gives one those of another)";
        if (x && !w)
            *first = i;
        w = w ? w : x;
    }
    return NULL;
}

/* The rows stay in axis 0: nested operands have one rank, and a plain operand, which may be one row for all, at most
 * the same. */
static bool nested_broadcasts(const struct call *c, unsigned first)
{
    uint32_t rank = view_of(c->in[first]).shape.rank;
    for (unsigned i = 0; i < call_operands(c); i++) {
        struct view v = view_of(c->in[i]);
        if (v.shape.rank > rank || (nested_of(c->in[i]) && v.shape.rank != rank))
            return false;
    }
    return true;
}

/* Is the first axis of the result that of the first operand? */
static bool product_keeps(const struct call *c)
{
    unsigned nbatch = c->proto.attr.dot.nbatch, ncon = c->proto.attr.dot.ncon;
    for (unsigned i = 0; i < ncon; i++)
        if (axis_get(c->proto.attr.dot.con_a, i) == 0)
            return false;
    return !nbatch || (axis_get(c->proto.attr.dot.batch_a, 0) == 0 && axis_get(c->proto.attr.dot.batch_b, 0) == 0);
}

enum fate { KEEPS, BECOMES_PLAIN, MIXES };

static enum fate fate_of(const struct call *c, unsigned first)
{
    struct view v = view_of(c->in[first]);
    uint32_t all = (1u << v.shape.rank) - 1;
    bool keeps = false;
    if (op_is_product(c->proto.op))
        return first == 0 && product_keeps(c) ? KEEPS : MIXES;
    switch (c->proto.op) {
    case OP_sum: case OP_reduce_max: case OP_reduce_min: case OP_reduce_prod:
        if (c->proto.attr.reduce.axes == all)
            return BECOMES_PLAIN;
        keeps = !(c->proto.attr.reduce.axes & 1);
        break;
    case OP_permute: keeps = c->proto.attr.permute.perm[0] == 0; break;
    case OP_reshape: case OP_expand: keeps = c->target.rank && c->target.dim[0] == v.shape.dim[0]; break;
    case OP_flip: keeps = !(c->proto.attr.flip.axes & 1); break;
    case OP_gather: /* of other axes; or rows of a table by nested indices */
        keeps = first == 0 ? c->proto.attr.axis.axis != 0 && !nested_of(c->in[1]) : c->proto.attr.axis.axis == 0;
        break;
    case OP_cast: keeps = true; break;
    case OP_dynamic_update: break;
    default: /* views and selections with an axis keep the first axis if theirs is another */
        keeps = op_is_elementwise(c->proto.op) ||
                ((op_is_view(c->proto.op) || op_is_select(c->proto.op)) && node_axis(&c->proto) != 0);
    }
    return keeps ? KEEPS : MIXES;
}

static kl_tensor call_nested(struct thread *t, const struct call *c)
{
    struct call inner = *c;
    unsigned first = 0;
    const char *why = same_offsets(c, &first);
    if (why)
        return nested_refuse(t, c, why);
    enum fate fate = fate_of(c, first);
    if (fate == MIXES)
        return nested_refuse(t, c,
                             "components are not to be mixed (kl_nested_sum and the like work along the ragged axis)");
    if (c->proto.op == OP_concat)
        for (unsigned i = 0; i < call_operands(c); i++)
            if (!nested_of(c->in[i]))
                return nested_refuse(t, c, "all parts are nested, or none");
    if (op_is_elementwise(c->proto.op) && !nested_broadcasts(c, first))
        return nested_refuse(t, c, "an operand has more axes, so that the ragged one would not be the first");
    for (unsigned i = 0; i < call_operands(c); i++)
        if (nested_of(c->in[i]))
            inner.in[i] = nested_of(c->in[i])->part[0];
    kl_tensor y = record(&inner);
    return fate == BECOMES_PLAIN ? y : with_values(t, c->in[first], y);
}

const struct layer layer_nested = {.name = "nested", .key = LAYER_Nested, .grad_parts = 1, .call = call_nested,
                                   .dense = nested_dense};

/* ---- making them ---- */

static kl_tensor nested_fill(const struct view *like, double value, uint32_t rank, const int64_t *dims)
{
    static const struct shape scalar;
    struct shape shape = shape_make(rank, dims);
    return broadcast_to("nested", const_like(like, value), &scalar, &shape);
}

/* length + more, where `more` may be negative.  INT64_MIN, which every op refuses as a length: it may be negative. */
static int64_t length_and(int64_t length, int64_t more)
{
    int64_t sum;
    return length_add(thread_self(), length, 1, more, &sum) ? sum : INT64_MIN;
}

static int64_t count_of(kl_tensor offsets) { return length_and(view_of(offsets).shape.dim[0], -1); }

/* The same of symbolic lengths: each row is compared with where each component ends. */
static kl_tensor components_by_comparison(kl_tensor offsets, int64_t count, int64_t rows)
{
    struct view o = view_of(offsets);
    kl_tensor end = kl_reshape(kl_narrow(offsets, 0, 1, count), 2, (int64_t[]){1, count});
    kl_tensor row = kl_iota(o.device, (kl_dtype)o.dtype, 2, (int64_t[]){rows, 1}, 0);
    return kl_sum(kl_cast(kl_le(end, row), KL_I32), 1, (int[]){1}, false);
}

/* For each row the number of components that have ended. */
static kl_tensor nested_components(kl_tensor offsets, int64_t count, int64_t rows)
{
    const struct view index = {.dtype = KL_I32, .device = view_of(offsets).device};
    if (rows < 0 || count < 0)
        return components_by_comparison(offsets, count, rows);
    int64_t positions = rows + 1;
    kl_tensor ended = kl_index_add(nested_fill(&index, 0, 1, &positions), 0, kl_narrow(offsets, 0, 1, count),
                                   nested_fill(&index, 1, 1, &count));
    return kl_narrow(kl_cumsum(ended, 0, false, false), 0, 0, rows);
}

static kl_tensor nested_make(struct thread *t, kl_tensor values, kl_tensor offsets)
{
    struct view v = view_of(values), index = {.dtype = KL_I32, .device = v.device};
    int64_t count = count_of(offsets), number[WRAPPER_NUMBERS] = {atomic_fetch_add(&next_id, 1)};
    kl_tensor which = nested_components(offsets, count, v.shape.dim[0]),
        end = kl_add(which, const_like(&index, 1));
    kl_tensor bounds = kl_stack(2, (kl_tensor[]){kl_take(offsets, 0, which), kl_take(offsets, 0, end)}, 1);
    return wrap(t, &layer_nested, &v, 4, (kl_tensor[]){values, offsets, which, bounds}, number);
}

/* A vector of integers; false: reported. */
static bool nested_check_integers(struct thread *t, const char *op, const char *what, kl_tensor h, struct view *v)
{
    char text[SHAPE_TEXT];
    if (!describe(t, op, what, h, v))
        return false;
    if (v->dtype != KL_I32 && v->dtype != KL_I64)
        return fail(t, KL_ERR_TYPE, "%s: %s are %s, not i32 or i64", op, what, dtype_name(v->dtype)) == KL_OK;
    if (v->shape.rank != 1)
        return fail(t, KL_ERR_SHAPE, "%s: %s have shape %s, not one axis", op, what,
                    shape_text(&v->shape, text, sizeof text)) == KL_OK;
    return true;
}

static bool nested_plain(struct thread *t, const char *op, kl_tensor h)
{
    return !wrapper_of(h, NULL) || fail(t, KL_ERR_TYPE, "%s: the values are a plain tensor, not a %s one", op,
                                        kl_layer_name(h)) == KL_OK;
}

kl_tensor kl_nested(kl_tensor values, kl_tensor offsets)
{
    struct thread *t = checked_begin("nested");
    struct view v, o;
    char text[SHAPE_TEXT];
    if (!t)
        return op_failed();
    if (!describe(t, "nested", "the values", values, &v) || !nested_plain(t, "nested", values) ||
        !nested_check_integers(t, "nested", "the offsets", offsets, &o))
        return compose_end(t, poison(t));
    if (!v.shape.rank || o.shape.dim[0] < 1)
        return compose_end(t,
                           refuse(t, KL_ERR_SHAPE,
                                  "nested: needs values [T, ...] and offsets [B + 1], got %s and [%" PRId64 "]",
                                     shape_text(&v.shape, text, sizeof text), o.shape.dim[0]));
    return compose_end(t, nested_make(t, values, offsets));
}

kl_tensor kl_nested_like(kl_tensor values, kl_tensor like)
{
    struct thread *t = checked_begin("nested_like");
    struct view v, l;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (!t)
        return op_failed();
    if (!describe(t, "nested_like", "the values", values, &v) || !nested_plain(t, "nested_like", values) ||
        !describe(t, "nested_like", "the other", like, &l))
        return compose_end(t, poison(t));
    if (!nested_of(like))
        return compose_end(t, refuse(t, KL_ERR_TYPE, "nested_like: the other is no nested tensor"));
    if (!v.shape.rank || v.shape.dim[0] != l.shape.dim[0])
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "nested_like: %s has not the rows of %s",
                                     shape_text(&v.shape, a, sizeof a),
                                     shape_text(&l.shape, b, sizeof b)));
    return compose_end(t, with_values(t, like, values));
}

/* A length as a scalar of x's dtype. */
static kl_tensor length_like(struct thread *t, const struct view *x, int64_t length)
{
    struct view v = {.dtype = x->dtype, .device = x->device, .shape = {.rank = 1, .dim = {length}}};
    return count_like(t, "nested", &v, 1, 0);
}

kl_tensor kl_to_nested(kl_tensor padded, kl_tensor lengths, int64_t rows)
{
    struct thread *t = checked_begin("to_nested");
    struct view v, n;
    char text[SHAPE_TEXT], given[SHAPE_TEXT], wanted[SHAPE_TEXT];
    if (!t)
        return op_failed();
    if (!describe(t, "to_nested", "the tensor", padded, &v) || !nested_plain(t, "to_nested", padded) ||
        !nested_check_integers(t, "to_nested", "the lengths", lengths, &n))
        return compose_end(t, poison(t));
    struct shape all, flat = {.rank = v.shape.rank - 1};
    if (!shape_of(t, "to_nested", 1, &rows, &all))
        return compose_end(t, poison(t));
    if (v.shape.rank < 2 || v.shape.dim[0] != n.shape.dim[0] ||
        !length_times(t, v.shape.dim[0], v.shape.dim[1], &flat.dim[0]))
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "to_nested: needs [B, L, ...], lengths [B] and rows, got "
                                     "%s, %s and %s", shape_text(&v.shape, text, sizeof text),
                                     shape_text(&n.shape, given, sizeof given),
                                     shape_text(&all, wanted, sizeof wanted)));
    rows = all.dim[0];
    const int64_t one = 1;
    kl_tensor offsets = kl_concat(2, (kl_tensor[]){nested_fill(&n, 0, 1, &one),
                                                   kl_cumsum(lengths, 0, false, false)}, 0);
    offsets = kl_minimum(offsets, length_like(t, &n, rows));
    kl_tensor which = kl_cast(nested_components(offsets, n.shape.dim[0], rows), (kl_dtype)n.dtype);
    kl_tensor place = kl_sub(kl_arange(v.device, (kl_dtype)n.dtype, rows), kl_take(offsets, 0, which));
    place = kl_add(kl_mul(which, length_like(t, &n, v.shape.dim[1])), place);
    memcpy(flat.dim + 1, v.shape.dim + 2, (flat.rank - 1) * sizeof *flat.dim);
    return compose_end(t, nested_make(t, kl_take(reshape_to("to_nested", padded, &flat), 0, place), offsets));
}

/* ---- along the ragged axis ---- */

/* Starts op of a nested tensor; NULL: reported, and op_failed() is the result. */
static struct thread *nested_begin(const char *op, kl_tensor a, struct view *v)
{
    struct thread *t = thread_self();
    if (!t || !describe(t, op, "the tensor", a, v))
        return NULL;
    if (nested_of(a))
        return checked_begin(op);
    fail(t, KL_ERR_TYPE, "%s: needs a nested tensor", op);
    return NULL;
}

/* Combines rows by component, with one additional row for rows without a component. */
static kl_tensor nested_gather(kl_tensor a, kl_tensor values, double start,
                          kl_tensor (*combine)(kl_tensor, int, kl_tensor, kl_tensor))
{
    const struct wrapper *w = nested_of(a);
    struct view v = view_of(values);
    v.shape.dim[0] = view_of(w->part[1]).shape.dim[0];
    return combine(nested_fill(&v, start, v.shape.rank, v.shape.dim), 0, w->part[2], values);
}

/* Removes that row. */
static kl_tensor of_components(kl_tensor rows)
{
    return kl_narrow(rows, 0, 0, count_of(rows));
}

/* [B, 1, ...] as many rows as each has. */
static kl_tensor lengths_of(kl_tensor a, uint32_t rank, kl_dtype dtype)
{
    kl_tensor offsets = nested_of(a)->part[1];
    int64_t count = count_of(offsets);
    struct shape one = {.rank = rank, .dim = {count}};
    for (uint32_t i = 1; i < rank; i++)
        one.dim[i] = 1;
    kl_tensor n = kl_sub(kl_narrow(offsets, 0, 1, count), kl_narrow(offsets, 0, 0, count));
    return reshape_to("nested", kl_cast(n, dtype), &one);
}

static kl_tensor nested_reduce(const char *op, kl_tensor a, bool greatest, bool mean)
{
    struct view v;
    struct thread *t = nested_begin(op, a, &v);
    if (!t)
        return op_failed();
    if (!dtype_is_float(v.dtype))
        return compose_end(t, refuse(t, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(v.dtype)));
    kl_tensor y = of_components(nested_gather(a, nested_of(a)->part[0], greatest ? -(double)INFINITY : 0,
                                            greatest ? kl_index_max : kl_index_add));
    return compose_end(t, mean ? kl_div(y, lengths_of(a, v.shape.rank, (kl_dtype)v.dtype)) : y);
}

kl_tensor kl_nested_sum(kl_tensor a)
{
    return nested_reduce("nested_sum", a, false, false);
}
kl_tensor kl_nested_mean(kl_tensor a)
{
    return nested_reduce("nested_mean", a, false, true);
}
kl_tensor kl_nested_max(kl_tensor a)
{
    return nested_reduce("nested_max", a, true, false);
}

kl_tensor kl_nested_softmax(kl_tensor a)
{
    struct view v;
    struct thread *t = nested_begin("nested_softmax", a, &v);
    if (!t)
        return op_failed();
    if (!dtype_is_float(v.dtype))
        return compose_end(t, refuse(t, KL_ERR_TYPE, "nested_softmax: needs a floating dtype, got %s",
                                     dtype_name(v.dtype)));
    kl_tensor x = nested_of(a)->part[0], which = nested_of(a)->part[2];
    kl_tensor max = kl_detach(nested_gather(a, x, -(double)INFINITY, kl_index_max));
    kl_tensor e = kl_exp(kl_sub(x, kl_take(max, 0, which)));
    kl_tensor sum = kl_take(nested_gather(a, e, 0, kl_index_add), 0, which);
    return compose_end(t, with_values(t, a, kl_div(e, sum)));
}

kl_tensor kl_nested_pad(kl_tensor a, int64_t length, double value)
{
    struct view v;
    struct thread *t = nested_begin("nested_pad", a, &v);
    if (!t)
        return op_failed();
    kl_tensor offsets = nested_of(a)->part[1];
    struct view n = view_of(offsets);
    struct shape grid;
    if (!shape_of(t, "nested_pad", 2, (int64_t[]){count_of(offsets), length}, &grid))
        return compose_end(t, poison(t));
    const int64_t *dims = grid.dim, count = dims[0];
    if (v.shape.rank == KL_MAX_RANK || !v.shape.dim[0])
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "nested_pad: needs some rows of at most %d axes",
                                     KL_MAX_RANK - 1));
    kl_tensor step = kl_iota(v.device, (kl_dtype)n.dtype, 2, dims, 1);
    kl_tensor first = kl_reshape(kl_narrow(offsets, 0, 0, count), 2, (int64_t[]){count, 1});
    kl_tensor inside = kl_lt(step, lengths_of(a, 2, (kl_dtype)n.dtype));
    struct shape one = {.rank = v.shape.rank + 1, .dim = {count, dims[1]}};
    for (uint32_t i = 2; i < one.rank; i++)
        one.dim[i] = 1;
    kl_tensor rows = kl_take(nested_of(a)->part[0], 0, kl_add(first, step));
    kl_tensor padding = kl_scalar(v.device, (kl_dtype)v.dtype, value);
    return compose_end(t, kl_where(reshape_to("nested_pad", inside, &one), rows, padding));
}

/* [T, heads, D] as [heads, T, D]; [T, D] as it is. */
static kl_tensor heads_first(kl_tensor x, uint32_t rank)
{
    return rank == 3 ? kl_transpose(x, 0, 1) : x;
}

kl_tensor kl_nested_attention(kl_tensor q, kl_tensor k, kl_tensor v, bool causal)
{
    struct view vq, vk, vv;
    struct thread *t = nested_begin("nested_attention", q, &vq);
    if (!t)
        return op_failed();
    if (!describe(t, "nested_attention", "k", k, &vk) || !describe(t, "nested_attention", "v", v, &vv))
        return compose_end(t, poison(t));
    const struct wrapper *a = nested_of(q), *b = nested_of(k), *c = nested_of(v);
    if (!b || !c || a->number[0] != b->number[0] || a->number[0] != c->number[0])
        return compose_end(t,
                           refuse(t, KL_ERR_TYPE, "nested_attention: q, k and v are nested and have the same offsets"));
    uint32_t rank = vq.shape.rank;
    char x[SHAPE_TEXT], y[SHAPE_TEXT], z[SHAPE_TEXT];
    if (rank < 2 || rank > 3 || vk.shape.rank != rank || vv.shape.rank != rank ||
        (rank == 3 && (vk.shape.dim[1] != vq.shape.dim[1] || vv.shape.dim[1] != vq.shape.dim[1])))
        return compose_end(t,
                           refuse(t, KL_ERR_SHAPE, "nested_attention: needs [T, D] or [T, heads, D], got %s, %s and %s",
                                     shape_text(&vq.shape, x, sizeof x), shape_text(&vk.shape, y, sizeof y),
                                     shape_text(&vv.shape, z, sizeof z)));
    kl_tensor out = kl_attention(heads_first(a->part[0], rank), heads_first(b->part[0], rank),
                                 heads_first(c->part[0], rank), a->part[3], causal);
    return compose_end(t, with_values(t, q, heads_first(out, rank)));
}
