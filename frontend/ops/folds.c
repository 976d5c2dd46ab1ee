/* Composite reductions and scans: bitwise and, or and exclusive or over axes, p-norms, positions of running
 * extremes. */
#include "frontend/frontend.h"
#include <math.h>

/* ---- bitwise reductions ---- */

typedef kl_tensor (*bitwise)(kl_tensor a, kl_tensor b);

/* Combines rows of axis 0 in halves; the remaining row of an odd number is combined at the end. */
static kl_tensor fold_rows(kl_tensor a, int64_t n, bitwise combine)
{
    kl_tensor rest = kl_none;
    while (n > 1) {
        if (n & 1) {
            kl_tensor last = kl_narrow(a, 0, n - 1, 1);
            rest = rest.id ? combine(rest, last) : last;
        }
        n /= 2;
        a = combine(kl_narrow(a, 0, 0, n), kl_narrow(a, 0, n, n));
    }
    return rest.id ? combine(a, rest) : a;
}

static kl_tensor reduce_bits(const char *op, kl_tensor a, int naxes, const int *axes,
                             bool keepdims, bitwise combine, bool ones)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t mask;
    if (!t || !describe(t, op, "the tensor", a, &v) || !axis_mask(t, op, &v.shape, naxes, axes, &mask))
        return op_failed();
    if (dtype_is_float(v.dtype))
        return refuse(t, KL_ERR_TYPE, "%s: needs integers or bool, got %s", op, dtype_name(v.dtype));
    if (!(t = checked_begin(op)))
        return op_failed();
    int order[KL_MAX_RANK] = {0}, at = 0;
    struct shape flat = shape_make(2, (int64_t[]){1, 1}), out = {0};
    for (uint32_t i = 0; i < v.shape.rank; i++)
        if (mask >> i & 1) {
            if (!axes_are_numbers(t, op, &v.shape, i, 1))
                return compose_end(t, poison(t));
            order[at++] = (int)i;
            flat.dim[0] *= v.shape.dim[i];
        }
    for (uint32_t i = 0; i < v.shape.rank; i++) {
        bool gone = mask >> i & 1;
        if (!gone) {
            order[at++] = (int)i;
            flat.dim[1] = kl_length_mul(flat.dim[1], v.shape.dim[i]);
        }
        if (!gone || keepdims)
            out.dim[out.rank++] = gone ? 1 : v.shape.dim[i];
    }
    kl_tensor r;
    if (flat.dim[0] == 0) { /* of no elements: the neutral element */
        r = kl_zeros(v.device, (kl_dtype)v.dtype, (int)out.rank, out.dim);
        return compose_end(t, ones ? kl_not(r) : r);
    }
    r = v.shape.rank ? kl_permute(a, order) : a;
    r = fold_rows(reshape_to(op, r, &flat), flat.dim[0], combine);
    return compose_end(t, reshape_to(op, r, &out));
}

kl_tensor kl_reduce_and(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_bits("reduce_and", a, naxes, axes, keepdims, kl_and, true);
}

kl_tensor kl_reduce_or(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_bits("reduce_or", a, naxes, axes, keepdims, kl_or, false);
}

kl_tensor kl_reduce_xor(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    return reduce_bits("reduce_xor", a, naxes, axes, keepdims, kl_xor, false);
}

/* ---- norms ---- */

/* Powers of zeros, and the root of a sum that is 0, are replaced, so that their gradients are 0 and not NaN. */
kl_tensor kl_p_norm(kl_tensor a, double p, int naxes, const int *axes, bool keepdims)
{
    struct view v;
    if (p == 2)
        return kl_norm(a, naxes, axes, keepdims);
    struct thread *t = wide_floats_begin("p_norm", &a, &v);
    if (!t)
        return op_failed();
    if (isnan(p))
        return compose_end(t, refuse(t, KL_ERR_ARGUMENT, "p_norm: p is NaN"));
    kl_tensor zero = const_like(&v, 0), one = const_like(&v, 1), size = kl_abs(a);
    bool empty = shape_count(&v.shape) == 0;
    if (p == 1 || (empty && p > 0))
        return compose_end(t, kl_sum(size, naxes, axes, keepdims));
    if (isinf(p))
        return compose_end(t, p > 0 ? kl_max(size, naxes, axes, keepdims)
                                    : kl_min(size, naxes, axes, keepdims));
    kl_tensor none = kl_eq(a, zero);
    if (p == 0)
        return compose_end(t, kl_sum(kl_where(none, kl_mul(a, zero), one), naxes, axes, keepdims));
    kl_tensor power = kl_pow(kl_where(none, one, size), const_like(&v, p));
    kl_tensor sum = kl_sum(kl_where(none, const_like(&v, p > 0 ? 0 : INFINITY), power), naxes, axes, keepdims);
    kl_tensor flat = kl_eq(sum, zero);
    kl_tensor root = kl_pow(kl_where(flat, one, sum), const_like(&v, 1 / p));
    return compose_end(t, kl_where(flat, const_like(&v, p > 0 ? 0 : INFINITY), root));
}

/* ---- positions of running extremes ---- */

/* An element equal to the running extreme, or NaN if that is NaN, is its latest position. */
static kl_tensor extreme_so_far(const char *op, kl_tensor a, int axis, bool reverse, bool largest, kl_tensor *indices)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (indices)
        *indices = kl_none;
    if (!t || !describe(t, op, "the tensor", a, &v) || !axis_of(t, op, &v.shape, axis, &at))
        return op_failed();
    if (!indices)
        return refuse(t, KL_ERR_ARGUMENT, "%s: indices is NULL", op);
    if (!(t = checked_begin(op)))
        return op_failed();
    int64_t length = v.shape.dim[at];
    struct view place = {.dtype = length > INT32_MAX ? KL_I64 : KL_I32, .device = v.device};
    kl_tensor y = largest ? kl_cummax(a, axis, reverse) : kl_cummin(a, axis, reverse);
    kl_tensor own = kl_iota(v.device, (kl_dtype)place.dtype, (int)v.shape.rank, v.shape.dim, (int)at);
    kl_tensor newest = kl_or(kl_eq(a, y), kl_ne(a, a));
    const double behind = length < 0 ? INT32_MAX : (double)length; /* any position behind all elements: symbolic */
    kl_tensor p = kl_where(newest, own, const_like(&place, reverse ? behind : -1));
    kl_tensor r = compose_end(t, reverse ? kl_cummin(p, axis, true) : kl_cummax(p, axis, false));
    kl_tensor values = kl_take_along_axis(a, axis, r);
    *indices = r;
    return values;
}

kl_tensor kl_cummax_indices(kl_tensor a, int axis, bool reverse, kl_tensor *indices)
{
    return extreme_so_far("cummax_indices", a, axis, reverse, true, indices);
}

kl_tensor kl_cummin_indices(kl_tensor a, int axis, bool reverse, kl_tensor *indices)
{
    return extreme_so_far("cummin_indices", a, axis, reverse, false, indices);
}
