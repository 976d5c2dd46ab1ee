/* Composites: functions over the other ops, which the compiler fuses again. */
#include "frontend.h"
#include <inttypes.h>

kl_tensor kl_square_at(const kl_site *site, kl_tensor a)
{
    return kl_mul_at(site, a, a);
}

/* The view of a floating operand; false: reported. */
static bool floating(struct thread *t, const kl_site *site, const char *op, kl_tensor a, struct view *v)
{
    if (!describe(t, site, op, "the tensor", a, v))
        return false;
    if (!dtype_is_float(v->dtype))
        fail(t, site, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(v->dtype));
    return dtype_is_float(v->dtype);
}

/* NaN is not <= 0, so it stays. */
kl_tensor kl_relu_at(const kl_site *site, kl_tensor a)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !floating(t, site, "relu", a, &v))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("relu")))
        return kl_none;
    kl_tensor zero = const_like(site, &v, 0);
    return compose_end(t, kl_where_at(site, kl_le_at(site, a, zero), zero, a));
}

/* From e to the -|a|, which does not overflow: 1 / (1 + e), and e times that below 0. */
kl_tensor kl_sigmoid_at(const kl_site *site, kl_tensor a)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !floating(t, site, "sigmoid", a, &v))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("sigmoid")))
        return kl_none;
    kl_tensor one = const_like(site, &v, 1);
    kl_tensor below = kl_lt_at(site, a, const_like(site, &v, 0));
    kl_tensor e = kl_exp_at(site, kl_where_at(site, below, a, kl_neg_at(site, a)));
    kl_tensor p = kl_div_at(site, one, kl_add_at(site, one, e));
    return compose_end(t, kl_where_at(site, below, kl_mul_at(site, e, p), p));
}

/* a less its largest along the axis.  The largest cancels out of what is made of it: no gradient. */
static kl_tensor shifted(const kl_site *site, kl_tensor a, int axis)
{
    kl_tensor most = kl_stop_gradient_at(site, kl_reduce_max_at(site, a, 1, &axis, true));
    return kl_sub_at(site, a, most);
}

kl_tensor kl_softmax_at(const kl_site *site, kl_tensor a, int axis)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !floating(t, site, "softmax", a, &v))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("softmax")))
        return kl_none;
    kl_tensor e = kl_exp_at(site, shifted(site, a, axis));
    return compose_end(t, kl_div_at(site, e, kl_sum_at(site, e, 1, &axis, true)));
}

static kl_tensor log_sum_exp(const kl_site *site, kl_tensor z, int axis)
{
    return kl_log_at(site, kl_sum_at(site, kl_exp_at(site, z), 1, &axis, true));
}

kl_tensor kl_log_softmax_at(const kl_site *site, kl_tensor a, int axis)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !floating(t, site, "log_softmax", a, &v))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("log_softmax")))
        return kl_none;
    kl_tensor z = shifted(site, a, axis);
    return compose_end(t, kl_sub_at(site, z, log_sum_exp(site, z, axis)));
}

/* Shapes and dtypes of cross entropy's operands; false: reported. */
static bool check_labels(struct thread *t, const kl_site *site, const struct view *x, const struct view *y)
{
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    char kind = dtype_kind(y->dtype);
    if (x->shape.rank != 2 || y->shape.rank != 1 || x->shape.dim[0] != y->shape.dim[0] || x->shape.dim[1] < 1) {
        fail(t, site, KL_ERR_SHAPE, "cross_entropy: needs logits [N,C] and labels [N], got %s and %s",
             shape_text(&x->shape, a, sizeof a), shape_text(&y->shape, b, sizeof b));
        return false;
    }
    if (kind != 'I' && kind != 'U')
        fail(t, site, KL_ERR_TYPE, "cross_entropy: the labels must be integers, got %s", dtype_name(y->dtype));
    return kind == 'I' || kind == 'U';
}

/* The label's logit is picked by a mask, column number == label, so that nothing is gathered. */
kl_tensor kl_cross_entropy_at(const kl_site *site, kl_tensor logits, kl_tensor labels)
{
    struct thread *t = thread_self();
    struct view x, y;
    if (!t || !floating(t, site, "cross_entropy", logits, &x) ||
        !describe(t, site, "cross_entropy", "labels", labels, &y) || !check_labels(t, site, &x, &y))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("cross_entropy")))
        return kl_none;
    const int columns = 1;
    kl_dtype index = dtype_size(y.dtype) == 8 ? KL_I64 : y.dtype == KL_U32 ? KL_I64 : KL_I32;
    kl_tensor z = shifted(site, logits, columns);
    kl_tensor label = kl_unsqueeze_at(site, kl_cast_at(site, labels, index), 1);
    kl_tensor column = kl_iota_at(site, x.device, index, 2, x.shape.dim, columns);
    kl_tensor zero = const_like(site, &x, 0);
    kl_tensor own = kl_where_at(site, kl_eq_at(site, column, label), z, zero);
    kl_tensor picked = kl_sum_at(site, own, 1, &columns, true);
    kl_tensor each = kl_sub_at(site, log_sum_exp(site, z, columns), picked);
    return compose_end(t, kl_mean_at(site, each, 0, NULL, false));
}
