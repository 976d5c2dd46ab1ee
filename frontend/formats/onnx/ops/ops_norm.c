/* Normalisation, dropout, and losses. */
#include "frontend/formats/onnx/onnx.h"
#include <string.h>

static kl_tensor norm_number(struct node *n, kl_tensor like, double v) { return onnx_number(n, kl_dtype_of(like), v); }

/* ---- normalisation ---- */

/* Reshapes [C] to broadcast to an operand whose axis 1 is the channels. */
static kl_tensor per_channel(kl_tensor a, int rank, int64_t C)
{
    int64_t dims[KL_MAX_RANK] = {C, 1, 1, 1, 1, 1, 1, 1};
    return kl_reshape(a, rank > 1 ? rank - 1 : 1, dims);
}

static bool norm_as(kl_tensor *v, kl_dtype d)
{
    if (v->id && kl_dtype_of(*v) != d)
        *v = kl_cast(*v, d);
    return true;
}

/* Normalised by the batch's own mean and variance, and the running ones moved toward them. */
static bool batch_norm_trained(struct node *n, const struct type *t, int64_t C, double eps, double momentum)
{
    kl_tensor x = onnx_widened(n, 0), w = onnx_widened(n, 1), b = onnx_widened(n, 2), old[2], own[2];
    kl_dtype d = kl_dtype_of(x);
    int axes[KL_MAX_RANK], count = 0;
    for (int i = 0; i < t->rank; i++)
        if (i != 1)
            axes[count++] = i;
    norm_as(&w, d);
    norm_as(&b, d);
    own[0] = kl_mean(x, count, axes, false);
    own[1] = kl_var(x, count, axes, false, 0);
    kl_tensor y = kl_div(kl_sub(x, per_channel(own[0], t->rank, C)),
                         kl_sqrt(kl_add(per_channel(own[1], t->rank, C), norm_number(n, x, eps))));
    y = kl_add(kl_mul(y, per_channel(w, t->rank, C)), per_channel(b, t->rank, C));
    bool ok = onnx_give_as(n, 0, y, t->dtype);
    for (uint32_t i = 0; i < 2 && ok; i++) {
        struct type s;
        ok = onnx_type(n, 3 + i, &s);
        old[i] = onnx_widened(n, 3 + i);
        kl_dtype wide = onnx_compute_dtype(s.dtype);
        norm_as(&own[i], wide);
        kl_tensor keep = onnx_number(n, wide, momentum), take = onnx_number(n, wide, 1 - momentum);
        ok = ok && onnx_give_as(n, 1 + i, kl_add(kl_mul(old[i], keep), kl_mul(own[i], take)), s.dtype);
    }
    return ok;
}

bool onnx_batch_norm(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), w = onnx_in(n, 1), b = onnx_in(n, 2), mean = onnx_in(n, 3), var = onnx_in(n, 4);
    struct type t;
    double eps = onnx_attr_float(n, "epsilon", 1e-5f), momentum = onnx_attr_float(n, "momentum", 0.9f);
    if (!onnx_type(n, 0, &t))
        return false;
    int64_t C = t.rank > 1 ? t.dims[1] : 1;
    bool training = n->def->opset >= 14 ? onnx_attr_int(n, "training_mode", 0)
                    : n->def->opset < 7 ? !onnx_attr_int(n, "is_test", 0) && onnx_wants(n, 1) : false;
    norm_as(&w, t.dtype);
    norm_as(&b, t.dtype);
    if (!training) {
        norm_as(&mean, t.dtype);
        norm_as(&var, t.dtype);
        return onnx_give(n, 0, kl_batch_norm(x, w, b, mean, var, false, 0, eps));
    }
    return batch_norm_trained(n, &t, C, eps, momentum);
}

bool onnx_instance_norm(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), w = onnx_in(n, 1), b = onnx_in(n, 2);
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    if (t.rank < 2 || t.dims[1] < 0 || t.dims[1] > INT32_MAX)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand without channels, with more than 2^31 or a symbolic number");
    return onnx_give(n, 0, kl_group_norm(x, (int)t.dims[1], w, b, onnx_attr_float(n, "epsilon", 1e-5f)));
}

bool onnx_group_norm(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), w = onnx_in(n, 1), b = onnx_in(n, 2);
    struct type t, s;
    int64_t groups = onnx_attr_int(n, "num_groups", 0);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &s))
        return false;
    if (t.rank < 2 || groups < 1 || groups > INT32_MAX || groups > t.dims[1] || t.dims[1] % groups || s.rank != 1)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld groups", (long long)groups);
    if (n->def->opset < 21 && s.dims[0] == groups) { /* one number for each group */
        w = kl_repeat(w, 0, t.dims[1] / groups);
        b = kl_repeat(b, 0, t.dims[1] / groups);
    }
    return onnx_give(n, 0, kl_group_norm(x, (int)groups, w, b, onnx_attr_float(n, "epsilon", 1e-5f)));
}

kl_tensor onnx_normalise(struct node *n, kl_tensor x, int count, const int *axes, double eps, kl_tensor *mean,
                         kl_tensor *inverse)
{
    kl_tensor size = mean ? kl_var(x, count, axes, true, 0) : kl_mean(kl_square(x), count, axes, true);
    if (mean) {
        *mean = kl_mean(x, count, axes, true);
        x = kl_sub(x, *mean);
    }
    *inverse = kl_rsqrt(kl_add(size, norm_number(n, size, eps)));
    return kl_mul(x, *inverse);
}

/* The axes from attribute `axis` on, and their number in *count.  *plain: the weight, operand 1, has their shape.
 * t, s: the types of operands 0 and 1.  false: reported. */
static bool norm_axes(struct node *n, struct type *t, struct type *s, int *axes, int *count, bool *plain)
{
    int axis;
    if (!onnx_type(n, 0, t) || !onnx_type(n, 1, s) || !onnx_axis(n, onnx_attr_int(n, "axis", -1), t->rank, &axis))
        return false;
    *count = 0;
    for (int i = axis; i < t->rank; i++)
        axes[(*count)++] = i;
    *plain = s->rank == *count && !memcmp(s->dims, t->dims + axis, (size_t)*count * sizeof *s->dims);
    return true;
}

bool onnx_layer_norm(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), w = onnx_in(n, 1), b = onnx_in(n, 2), mean, inverse;
    struct type t, s;
    int axes[KL_MAX_RANK], count; /* stages in f32 (stash_type), like Mean and InvStdDev */
    bool plain;
    double eps = onnx_attr_float(n, "epsilon", 1e-5f);
    if (!norm_axes(n, &t, &s, axes, &count, &plain))
        return false;
    if (plain && !onnx_wants(n, 1) && !onnx_wants(n, 2))
        return onnx_give(n, 0, kl_layer_norm(x, count, w, b, eps));
    kl_tensor y = kl_mul(onnx_normalise(n, onnx_widened(n, 0), count, axes, eps, &mean, &inverse), onnx_widened(n, 1));
    if (b.id)
        y = kl_add(y, onnx_widened(n, 2));
    return onnx_give_as(n, 0, y, t.dtype) && onnx_give(n, 1, mean) && onnx_give(n, 2, inverse);
}

/* RMSNormalization; result 1 is of SimplifiedLayerNormalization. */
bool onnx_rms_norm(struct node *n)
{
    struct type t, s;
    int axes[KL_MAX_RANK], count;
    bool plain;
    double eps = onnx_attr_float(n, "epsilon", 1e-5f);
    kl_tensor inverse;
    if (!norm_axes(n, &t, &s, axes, &count, &plain))
        return false;
    if (plain && s.dtype == t.dtype && !onnx_wants(n, 1))
        return onnx_give(n, 0, kl_rms_norm(onnx_in(n, 0), count, onnx_in(n, 1), eps));
    kl_tensor y = onnx_normalise(n, onnx_widened(n, 0), count, axes, eps, NULL, &inverse), scale = onnx_widened(n, 1);
    if (kl_dtype_of(scale) != kl_dtype_of(y))
        scale = kl_cast(scale, kl_dtype_of(y));
    return onnx_give_as(n, 0, kl_mul(y, scale), s.dtype) && (!onnx_wants(n, 1) || onnx_give(n, 1, inverse));
}

bool onnx_lrn(struct node *n)
{
    kl_tensor x = onnx_widened(n, 0);
    struct type t;
    int64_t size = onnx_attr_int(n, "size", 1), one = 1;
    int order[KL_MAX_RANK];
    if (!onnx_type(n, 0, &t) || t.rank < 2 || size < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand without channels, or a window of %lld", (long long)size);
    for (int i = 0; i < t.rank; i++) /* the channels last, for the windows */
        order[i] = i == 0 ? 0 : i == t.rank - 1 ? 1 : i + 1;
    int64_t low = (size - 1) / 2, high = size - 1 - low;
    kl_tensor sum = kl_sum_pool(kl_permute(kl_square(x), order), 1, &size, &one, &low, &high, NULL);
    for (int i = 0; i < t.rank; i++)
        order[i] = i == 0 ? 0 : i == 1 ? t.rank - 1 : i - 1;
    kl_tensor scale = norm_number(n, x, onnx_attr_float(n, "alpha", 1e-4f) / (double)size);
    kl_tensor base = kl_add(kl_mul(kl_permute(sum, order), scale), norm_number(n, x, onnx_attr_float(n, "bias", 1)));
    return onnx_give_as(n, 0, kl_div(x, kl_pow_scalar(base, onnx_attr_float(n, "beta", 0.75))), t.dtype);
}

bool onnx_mean_variance_norm(struct node *n)
{
    kl_tensor x = onnx_widened(n, 0);
    struct type t;
    int axes[KL_MAX_RANK];
    if (!onnx_type(n, 0, &t))
        return false;
    int count = onnx_axes(n, "axes", 1, t.rank, axes);
    if (count == -1)
        for (count = 0; count < 3 && count < t.rank; count++)
            axes[count] = count ? count + 1 : 0;
    if (count < 0 || (count && axes[count - 1] >= t.rank))
        return count == -2 ? false : onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes", t.rank);
    kl_tensor mean = kl_mean(x, count, axes, true), dev = kl_sqrt(kl_var(x, count, axes, true, 0));
    return onnx_give_as(n, 0, kl_div(kl_sub(x, mean), kl_add(dev, norm_number(n, x, 1e-9))), t.dtype);
}

bool onnx_lp_norm(struct node *n)
{
    kl_tensor x = onnx_widened(n, 0);
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    int axis = onnx_attr_int32(n, "axis", -1);
    kl_tensor s = onnx_attr_int(n, "p", 2) == 1 ? kl_sum(kl_abs(x), 1, &axis, true) : kl_norm(x, 1, &axis, true);
    kl_tensor is_zero = kl_eq(s, onnx_number(n, kl_dtype_of(x), 0)); /* a vector of zeros is unchanged */
    return onnx_give_as(n, 0, kl_div(x, kl_where(is_zero, onnx_number(n, kl_dtype_of(x), 1), s)), t.dtype);
}

/* ---- dropout ---- */

bool onnx_dropout(struct node *n)
{
    kl_tensor x = onnx_in(n, 0);
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    double ratio = n->def->opset < 12 ? onnx_attr_float(n, "ratio", 0.5) : 0.5;
    bool training = n->def->opset < 7 && !onnx_attr_int(n, "is_test", 0);
    int64_t mode = training;
    if (n->def->opset >= 12 && ((onnx_has(n, 1) && !onnx_known_float(n, 1, &ratio)) ||
                                (onnx_has(n, 2) && !onnx_known_int(n, 2, &mode))))
        return false;
    training = mode;
    kl_dtype mask = n->def->opset < 10 ? t.dtype : KL_BOOL;
    if (!training || ratio == 0) {
        if (!onnx_give(n, 0, x))
            return false;
        return !onnx_wants(n, 1) || onnx_give(n, 1, kl_expand(onnx_number(n, mask, 1), t.rank, t.dims));
    }
    if (ratio < 0 || ratio >= 1)
        return onnx_fails(n, KL_ERR_ARGUMENT, "a ratio that is not in [0, 1)");
    kl_tensor random = kl_rand_seeded(onnx_random_seed(n), KL_F32, t.rank, t.dims), wide = onnx_widened(n, 0);
    kl_tensor stays = kl_ge(random, onnx_number(n, KL_F32, ratio));
    kl_tensor y = kl_where(stays, kl_mul(wide, norm_number(n, wide, 1 / (1 - ratio))), norm_number(n, wide, 0));
    return onnx_give_as(n, 0, y, t.dtype) && onnx_give(n, 1, mask == KL_BOOL ? stays : kl_cast(stays, mask));
}

/* ---- losses ---- */

/* x: [N, C, ...], labels operand 1: [N, ...], weights of classes operand 2: [C] */
static kl_tensor loss_of(struct node *n, kl_tensor (*loss)(kl_tensor, kl_tensor, const kl_class_loss_options *))
{
    kl_tensor x = onnx_in(n, 0), label = onnx_in(n, 1);
    kl_class_loss_options o = {.weight = onnx_in(n, 2), .ignores = onnx_attr(n, "ignore_index"),
                               .ignored = onnx_attr_int(n, "ignore_index", 0),
                               .reduction = onnx_attr_is(n, "reduction", "none", false) ? KL_LOSS_EACH
                                            : onnx_attr_is(n, "reduction", "sum", false) ? KL_LOSS_SUM : KL_LOSS_MEAN};
    return loss(x, label, &o);
}

bool onnx_nll_loss(struct node *n) { return onnx_give(n, 0, loss_of(n, kl_nll_loss_with)); }

bool onnx_softmax_cross_entropy(struct node *n)
{
    return onnx_give(n, 0, loss_of(n, kl_cross_entropy_with)) &&
           (!onnx_wants(n, 1) || onnx_give(n, 1, kl_log_softmax(onnx_in(n, 0), 1)));
}
