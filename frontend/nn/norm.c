/* Statistics over axes, and normalisation by them. */
#include "frontend/frontend.h"
#include <math.h>

/* ---- reductions ---- */

/* a without the axes of the mask, which have length 1. */
static kl_tensor norm_drop_axes(kl_tensor a, const struct shape *s, uint32_t mask)
{
    struct shape rest = {0};
    for (uint32_t i = 0; i < s->rank; i++)
        if (!(mask >> i & 1))
            rest.dim[rest.rank++] = s->dim[i];
    return reshape_to("reshape", a, &rest);
}

/* Less the largest, which cancels out and so has no gradient; an infinite one stays in place, as inf - inf is NaN. */
kl_tensor kl_logsumexp(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    struct view v;
    uint32_t mask;
    struct thread *t = wide_floats_begin("logsumexp", &a, &v);
    if (!t)
        return op_failed();
    if (!axis_mask(t, "sum", &v.shape, naxes, axes, &mask)) {
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor max = kl_detach(kl_max(a, naxes, axes, true));
    kl_tensor infinite = kl_eq(kl_abs(max), const_like(&v, INFINITY));
    kl_tensor shift = kl_where(infinite, const_like(&v, 0), max);
    kl_tensor sum = kl_sum(kl_exp(kl_sub(a, shift)), naxes, axes, true);
    kl_tensor y = kl_add(kl_log(sum), shift);
    return compose_end(t, keepdims ? y : norm_drop_axes(y, &v.shape, mask));
}

kl_tensor kl_var(kl_tensor a, int naxes, const int *axes, bool keepdims, int correction)
{
    struct view v;
    uint32_t mask;
    struct thread *t = wide_floats_begin("var", &a, &v);
    if (!t)
        return op_failed();
    if (correction < 0)
        fail(t, KL_ERR_ARGUMENT, "correction %d is below 0", correction);
    if (correction < 0 || !axis_mask(t, "sum", &v.shape, naxes, axes, &mask)) {
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor off = kl_sub(a, kl_mean(a, naxes, axes, true));
    kl_tensor sum = kl_sum(kl_square(off), naxes, axes, keepdims);
    kl_tensor by = count_like(t, "var", &v, mask, correction);
    return compose_end(t, kl_div(sum, by));
}

/* The gradient of sqrt is infinite at 0; the one through here is 0. */
static kl_tensor norm_sqrt(const struct view *v, kl_tensor a)
{
    kl_tensor zero = const_like(v, 0), none = kl_eq(a, zero);
    return kl_where(none, zero, kl_sqrt(kl_where(none, const_like(v, 1), a)));
}

kl_tensor kl_std(kl_tensor a, int naxes, const int *axes, bool keepdims, int correction)
{
    struct view v;
    struct thread *t = wide_floats_begin("std", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, norm_sqrt(&v, kl_var(a, naxes, axes, keepdims, correction)));
}

kl_tensor kl_norm(kl_tensor a, int naxes, const int *axes, bool keepdims)
{
    struct view v;
    struct thread *t = wide_floats_begin("norm", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, norm_sqrt(&v, kl_sum(kl_square(a), naxes, axes, keepdims)));
}

/* ---- normalisation ---- */

/* The view of x, whose rank is at least `rank`, in the dtype that it is computed in; false: reported. */
static bool check_input(struct thread *t, const char *op, kl_tensor x, uint32_t rank, double eps, struct view *v)
{
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", x, v))
        return false;
    if (!dtype_is_float(v->dtype))
        fail(t, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(v->dtype));
    else if (v->shape.rank < rank)
        fail(t, KL_ERR_SHAPE, "%s: needs at least %u axes, got shape %s", op, rank,
             shape_text(&v->shape, text, sizeof text));
    else if (!(eps >= 0))
        fail(t, KL_ERR_ARGUMENT, "%s: eps %g is below 0", op, eps);
    else {
        if (autocast_is_on(t))
            v->dtype = dtype_compute(v->dtype);
        return true;
    }
    return false;
}

/* A parameter of x's dtype and the shape `want`, or none where that may be; false: reported. */
static bool check_param(struct thread *t, const char *op, const char *what, kl_tensor p,
                        const struct view *x, const struct shape *want)
{
    struct view v;
    char a[SHAPE_TEXT], b[SHAPE_TEXT], c[SHAPE_TEXT];
    if (!describe(t, op, what, p, &v))
        return false;
    if (v.dtype != x->dtype)
        fail(t, KL_ERR_TYPE, "%s: %s is %s, the tensor %s", op, what, dtype_name(v.dtype), dtype_name(x->dtype));
    else if (!shape_equal(&v.shape, want))
        fail(t, KL_ERR_SHAPE, "%s: %s has shape %s, not the %s that goes with %s", op, what,
             shape_text(&v.shape, a, sizeof a), shape_text(want, b, sizeof b), shape_text(&x->shape, c, sizeof c));
    else
        return true;
    return false;
}

static bool check_affine(struct thread *t, const char *op, kl_tensor weight, kl_tensor bias,
                         const struct view *x, const struct shape *want)
{
    return (!weight.id || check_param(t, op, "the weight", weight, x, want)) &&
           (!bias.id || check_param(t, op, "the bias", bias, x, want));
}

static kl_tensor norm_affine(struct thread *t, kl_tensor y, kl_tensor weight, kl_tensor bias)
{
    if (weight.id)
        y = kl_mul(y, widen(t, weight));
    return bias.id ? kl_add(y, widen(t, bias)) : y;
}

/* off / sqrt(variance + eps) */
static kl_tensor nn_norm_scaled(const struct view *v, kl_tensor off, kl_tensor variance, double eps)
{
    return kl_mul(off, kl_rsqrt(kl_add(variance, const_like(v, eps))));
}

static kl_tensor norm_normalize(const struct view *v, kl_tensor x, int naxes, const int *axes, double eps)
{
    kl_tensor off = kl_sub(x, kl_mean(x, naxes, axes, true));
    return nn_norm_scaled(v, off, kl_mean(kl_square(off), naxes, axes, true), eps);
}

/* The last naxes axes of s as a shape and as a list; false: reported. */
static bool last_axes(struct thread *t, const char *op, const struct shape *s, int naxes, struct shape *last, int *axes)
{
    char text[SHAPE_TEXT];
    if (naxes < 1 || naxes > (int)s->rank) {
        fail(t, KL_ERR_SHAPE, "%s: no last %d axes in shape %s", op, naxes, shape_text(s, text, sizeof text));
        return false;
    }
    *last = shape_make((uint32_t)naxes, s->dim + s->rank - naxes);
    for (int i = 0; i < naxes; i++)
        axes[i] = i - naxes;
    return true;
}

kl_tensor kl_layer_norm(kl_tensor x, int naxes, kl_tensor weight, kl_tensor bias, double eps)
{
    struct thread *t = thread_self();
    struct view v;
    struct shape last;
    int axes[KL_MAX_RANK];
    if (!check_input(t, "layer_norm", x, 1, eps, &v) ||
        !last_axes(t, "layer_norm", &v.shape, naxes, &last, axes) ||
        !check_affine(t, "layer_norm", weight, bias, &v, &last) || !(t = checked_begin("layer_norm")))
        return op_failed();
    x = widen_view(t, x, &v);
    return compose_end(t, norm_affine(t, norm_normalize(&v, x, naxes, axes, eps), weight, bias));
}

kl_tensor kl_rms_norm(kl_tensor x, int naxes, kl_tensor weight, double eps)
{
    struct thread *t = thread_self();
    struct view v;
    struct shape last;
    int axes[KL_MAX_RANK];
    if (!check_input(t, "rms_norm", x, 1, eps, &v) ||
        !last_axes(t, "rms_norm", &v.shape, naxes, &last, axes) ||
        !check_affine(t, "rms_norm", weight, kl_none, &v, &last) || !(t = checked_begin("rms_norm")))
        return op_failed();
    x = widen_view(t, x, &v);
    kl_tensor squares = kl_mean(kl_square(x), naxes, axes, true);
    return compose_end(t, norm_affine(t, nn_norm_scaled(&v, x, squares, eps), weight, kl_none));
}

/* ---- by channels, axis 1 ---- */

/* A [C] as [C, 1, ...], to go with a tensor of that rank. */
static kl_tensor per_channel(kl_tensor a, const struct shape *s)
{
    struct shape column = {.rank = s->rank - 1};
    for (uint32_t i = 0; i < column.rank; i++)
        column.dim[i] = i ? 1 : s->dim[1];
    return a.id ? reshape_to("reshape", a, &column) : kl_none;
}

static kl_tensor channel_affine(struct thread *t, kl_tensor y, kl_tensor weight, kl_tensor bias, const struct shape *s)
{
    return norm_affine(t, y, per_channel(weight, s), per_channel(bias, s));
}

kl_tensor kl_group_norm(kl_tensor x, int groups, kl_tensor weight, kl_tensor bias, double eps)
{
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!check_input(t, "group_norm", x, 2, eps, &v))
        return op_failed();
    const struct shape channels = shape_make(1, &v.shape.dim[1]);
    if (groups < 1 || v.shape.dim[1] < 0 || v.shape.dim[1] % groups)
        return refuse(t, KL_ERR_SHAPE, "group_norm: the channels (axis 1) of %s do not make %d equal groups",
                      shape_text(&v.shape, text, sizeof text), groups);
    struct shape split = {.rank = 3, .dim = {v.shape.dim[0], groups, v.shape.dim[1] / groups}};
    for (uint32_t i = 2; i < v.shape.rank; i++)
        if (!length_times(t, split.dim[2], v.shape.dim[i], &split.dim[2]))
            return refuse(t, KL_ERR_SHAPE, "group_norm: the elements of a channel of %s are a product of more than two "
                          "symbols", shape_text(&v.shape, text, sizeof text));
    if (!check_affine(t, "group_norm", weight, bias, &v, &channels) || !(t = checked_begin("group_norm")))
        return op_failed();
    const int last = 2;
    x = widen_view(t, x, &v);
    kl_tensor y = norm_normalize(&v, reshape_to("reshape", x, &split), 1, &last, eps);
    return compose_end(t, channel_affine(t, reshape_to("reshape", y, &v.shape), weight, bias, &v.shape));
}

/* The running value moves towards that of this batch, without a gradient.  false: reported. */
static bool norm_update_running(struct thread *t, kl_tensor running, kl_tensor now, const struct shape *channels,
                   double momentum)
{
    unsigned dtype = entry_dtype(entry_peek(running));
    now = kl_detach(reshape_to("reshape", now, channels));
    kl_tensor old = kl_mul_scalar(widen(t, running), 1 - momentum);
    kl_tensor moved = kl_add(old, kl_mul_scalar(now, momentum));
    return kl_assign(running, dtype_is_half(dtype) ? kl_cast(moved, (kl_dtype)dtype)
                     : moved) == KL_OK;
}

/* By the statistics of this batch of n elements a channel, a length that may be symbolic. */
static kl_tensor batch_train(struct thread *t, const struct view *v, kl_tensor x, kl_tensor mean, kl_tensor var,
                             int64_t n, double momentum, double eps)
{
    int axes[KL_MAX_RANK], naxes = 0;
    for (int i = 0; i < (int)v->shape.rank; i++)
        if (i != 1)
            axes[naxes++] = i;
    const struct shape channels = shape_make(1, &v->shape.dim[1]);
    kl_tensor centre = kl_mean(x, naxes, axes, true), off = kl_sub(x, centre);
    kl_tensor spread = kl_mean(kl_square(off), naxes, axes, true);
    kl_tensor y = nn_norm_scaled(v, off, spread, eps);
    if (!mean.id)
        return y;
    kl_tensor ratio;
    if (n < 0) {
        const uint32_t mask = ((1u << v->shape.rank) - 1) & ~2u;
        ratio = kl_div(count_like(t, "batch_norm", v, mask, 0), count_like(t, "batch_norm", v, mask, 1));
    } else {
        ratio = const_like(v, (double)n / (double)(n - 1));
    }
    kl_tensor sample = kl_mul(spread, ratio);
    bool ok = norm_update_running(t, mean, centre, &channels, momentum) && norm_update_running(t, var,
        sample, &channels, momentum);
    return ok ? y : op_failed();
}

kl_tensor kl_batch_norm(kl_tensor x, kl_tensor weight, kl_tensor bias, kl_tensor mean,
                        kl_tensor var, bool training, double momentum, double eps)
{
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!check_input(t, "batch_norm", x, 2, eps, &v))
        return op_failed();
    const struct shape *s = &v.shape;
    const struct shape channels = shape_make(1, &s->dim[1]);
    int64_t n = s->dim[0], low, high;
    for (uint32_t i = 2; i < s->rank; i++)
        if (!length_times(t, n, s->dim[i], &n))
            return refuse(t, KL_ERR_SHAPE, "batch_norm: the elements of a channel of %s are a product of more "
                                                 "than two symbols", shape_text(s, text, sizeof text));
    bool running = !training || mean.id || var.id;
    if ((running && (!check_param(t, "batch_norm", "the running mean", mean, &v, &channels) ||
                     !check_param(t, "batch_norm", "the running variance", var, &v, &channels))) ||
        !check_affine(t, "batch_norm", weight, bias, &v, &channels))
        return op_failed();
    if (training && (!kl_length_range(n, &low, &high) || low < 2))
        return refuse(t, KL_ERR_SHAPE, "batch_norm: to train, shape %s needs 2 or more elements a channel "
                                             "(axis 1)", shape_text(s, text, sizeof text));
    if (!(t = checked_begin("batch_norm")))
        return op_failed();
    x = widen_view(t, x, &v);
    kl_tensor y;
    if (training)
        y = batch_train(t, &v, x, mean, var, n, momentum, eps);
    else
        y = nn_norm_scaled(&v, kl_sub(x, per_channel(widen(t, mean), s)), per_channel(widen(t, var), s), eps);
    return compose_end(t, channel_affine(t, y, weight, bias, s));
}
