/* Softmax, labels and losses. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <math.h>

/* ---- softmax ---- */

/* a minus its maximum along the axis.  The maximum cancels out of the results, so it has no gradient. */
static kl_tensor subtract_max(const kl_site *site, kl_tensor a, int axis)
{
    kl_tensor max = kl_detach_at(site, kl_max_at(site, a, 1, &axis, true));
    return kl_sub_at(site, a, max);
}

kl_tensor shares(const kl_site *site, const struct view *v, kl_tensor parts, kl_tensor whole)
{
    return kl_mul_at(site, parts, kl_div_at(site, const_like(site, v, 1), whole));
}

kl_tensor kl_softmax_at(const kl_site *site, kl_tensor a, int axis)
{
    struct view v;
    struct thread *t = wide_floats_begin(site, "softmax", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor e = kl_exp_at(site, subtract_max(site, a, axis));
    return compose_end(t, shares(site, &v, e, kl_sum_at(site, e, 1, &axis, true)));
}

static kl_tensor log_sum_exp(const kl_site *site, kl_tensor z, int axis)
{
    return kl_log_at(site, kl_sum_at(site, kl_exp_at(site, z), 1, &axis, true));
}

kl_tensor kl_log_softmax_at(const kl_site *site, kl_tensor a, int axis)
{
    struct view v;
    struct thread *t = wide_floats_begin(site, "log_softmax", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor z = subtract_max(site, a, axis);
    return compose_end(t, kl_sub_at(site, z, log_sum_exp(site, z, axis)));
}

/* ---- labels ---- */

static bool check_integers(struct thread *t, const kl_site *site, const char *op, const struct view *y)
{
    char kind = dtype_kind(y->dtype);
    if (kind != 'I' && kind != 'U')
        fail(t, site, KL_ERR_TYPE, "%s: the labels must be integers, got %s", op, dtype_name(y->dtype));
    return kind == 'I' || kind == 'U';
}

/* The dtype in which labels are compared with column numbers: all of both, but for classes from 2^63. */
static kl_dtype label_index(const struct view *y, int64_t classes)
{
    return dtype_size(y->dtype) == 8 || y->dtype == KL_U32 || classes > INT32_MAX ? KL_I64 : KL_I32;
}

/* Is the column number equal to the label? In the shape of the labels and one more axis of length s->dim[s->rank -
 * 1]. */
static kl_tensor at_label(const kl_site *site, kl_tensor labels, const struct view *y, const struct shape *s)
{
    uint32_t last = s->rank - 1;
    kl_dtype index = label_index(y, s->dim[last]);
    kl_tensor label = kl_unsqueeze_at(site, kl_cast_at(site, labels, index), -1);
    return kl_eq_at(site, kl_iota_at(site, y->device, index, (int)s->rank, s->dim, (int)last), label);
}

kl_tensor kl_one_hot_at(const kl_site *site, kl_tensor labels, int64_t classes, kl_dtype dtype)
{
    struct thread *t = thread_self();
    struct view y;
    struct shape s;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, site, "one_hot", "labels", labels, &y) || !check_integers(t, site, "one_hot", &y))
        return op_failed();
    if (classes < 0)
        return refuse(t, site, KL_ERR_ARGUMENT, "one_hot: %" PRId64 " classes", classes);
    if (y.shape.rank == KL_MAX_RANK)
        return refuse(t, site, KL_ERR_SHAPE, "one_hot: %s has as many axes as a tensor can have",
                      shape_text(&y.shape, text, sizeof text));
    s = y.shape;
    s.dim[s.rank++] = classes;
    if (!shape_of(t, site, "one_hot", (int)s.rank, s.dim, &s) || !(t = checked_begin(site, "one_hot")))
        return op_failed();
    return compose_end(t, kl_cast_at(site, at_label(site, labels, &y, &s), dtype));
}

/* Views of x [N,C] and labels [N], checked; NULL: reported. */
static struct thread *labels_begin(const kl_site *site, const char *op, const char *what, kl_tensor *x,
                                   kl_tensor labels,
                                   struct view *vx, struct view *vy)
{
    struct thread *t = thread_self();
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (!t || !describe(t, site, op, what, *x, vx) || !describe(t, site, op, "labels", labels, vy))
        return NULL;
    if (!dtype_is_float(vx->dtype)) {
        fail(t, site, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(vx->dtype));
        return NULL;
    }
    if (vx->shape.rank != 2 || vy->shape.rank != 1 || vx->shape.dim[0] != vy->shape.dim[0] || vx->shape.dim[1] < 1) {
        fail(t, site, KL_ERR_SHAPE, "%s: needs %s [N,C] and labels [N], got %s and %s", op, what,
             shape_text(&vx->shape, a, sizeof a), shape_text(&vy->shape, b, sizeof b));
        return NULL;
    }
    if (!check_integers(t, site, op, vy) || !(t = checked_begin(site, op)))
        return NULL;
    *x = widen_view(t, site, *x, vx);
    return t;
}

/* [N,1] the element at the label in each row of z, by a mask: it fuses with the softmax around it, forward and
 * backward; a gather would add a scatter to the gradient. */
static kl_tensor loss_pick_label(const kl_site *site, kl_tensor z, const struct view *x, kl_tensor labels,
                                 const struct view *y)
{
    const int columns = 1;
    kl_tensor own = kl_where_at(site, at_label(site, labels, y, &x->shape), z, const_like(site, x, 0));
    return kl_sum_at(site, own, 1, &columns, true);
}

static kl_tensor mean_all(const kl_site *site, kl_tensor a)
{
    return kl_mean_at(site, a, 0, NULL, false);
}

/* An exact integer in the labels' dtype, which has it. */
static kl_tensor label_number(const kl_site *site, const struct view *y, int64_t value)
{
    const int64_t EXACT = INT64_C(1) << 53, HALF = INT64_C(1) << 32;
    if (value >= -EXACT && value <= EXACT)
        return const_like(site, y, (double)value);
    int64_t low = value & (HALF - 1), high = (value - low) / HALF;
    return kl_add_at(site, kl_mul_at(site, const_like(site, y, (double)high), const_like(site, y, (double)HALF)),
                     const_like(site, y, (double)low));
}

struct label_kinds label_kinds(const kl_site *site, kl_tensor labels, const struct view *y, const struct view *loss,
                               int64_t classes, int64_t ignored)
{
    unsigned bits = 8 * (unsigned)dtype_size(y->dtype);
    bool is_signed = dtype_kind(y->dtype) == 'I';
    bool held = is_signed ? ignored >> (bits - 1) == 0 || ignored >> (bits - 1) == -1
                          : ignored >= 0 && (bits == 64 || ignored >> bits == 0);
    struct view index = *y;
    index.dtype = label_index(y, classes);
    kl_tensor number = kl_cast_at(site, labels, index.dtype), other = const_like(site, loss, NAN);
    struct label_kinds k = {.valid = kl_lt_at(site, number, label_number(site, &index, classes))};
    if (is_signed || index.dtype == KL_I64)
        k.valid = kl_and_at(site, k.valid, kl_ge_at(site, number, const_like(site, &index, 0)));
    if (held) {
        k.ignored = kl_eq_at(site, labels, label_number(site, y, ignored));
        other = kl_where_at(site, k.ignored, const_like(site, loss, 0), other);
        if (ignored >= 0 && ignored < classes)
            k.valid = kl_and_at(site, k.valid, kl_not_at(site, k.ignored));
    }
    k.other = other;
    return k;
}

/* [] How many labels are not ignored, in the loss's dtype. */
static kl_tensor label_count(struct thread *t, const kl_site *site, const struct label_kinds *k, const struct view *y,
                             const struct view *loss)
{
    struct view each = *y;
    each.dtype = loss->dtype;
    if (!k->ignored.id)
        return count_like(t, site, "mean", &each, (1u << y->shape.rank) - 1, 0);
    kl_tensor counted = kl_cast_at(site, kl_not_at(site, k->ignored), KL_I64);
    return kl_cast_at(site, kl_sum_all_at(site, counted), (kl_dtype)loss->dtype);
}

/* The mean of losses [N, 1] of rows with valid labels. */
static kl_tensor loss_of_labels(struct thread *t, const kl_site *site, kl_tensor each, kl_tensor labels,
                                const struct view *x, const struct view *y)
{
    struct label_kinds k = label_kinds(site, labels, y, x, x->shape.dim[1], KL_IGNORED_LABEL);
    each = kl_where_at(site, k.valid, kl_squeeze_at(site, each, 1), k.other);
    return kl_div_at(site, kl_sum_all_at(site, each), label_count(t, site, &k, y, x));
}

kl_tensor kl_cross_entropy_at(const kl_site *site, kl_tensor logits, kl_tensor labels)
{
    struct view x, y;
    struct thread *t = labels_begin(site, "cross_entropy", "logits", &logits, labels, &x, &y);
    if (!t)
        return op_failed();
    kl_tensor z = subtract_max(site, logits, 1), picked = loss_pick_label(site, z, &x, labels, &y);
    kl_tensor each = kl_sub_at(site, log_sum_exp(site, z, 1), picked);
    return compose_end(t, loss_of_labels(t, site, each, labels, &x, &y));
}

kl_tensor kl_nll_loss_at(const kl_site *site, kl_tensor log_probs, kl_tensor labels)
{
    struct view x, y;
    struct thread *t = labels_begin(site, "nll_loss", "log_probs", &log_probs, labels, &x, &y);
    if (!t)
        return op_failed();
    kl_tensor each = kl_neg_at(site, loss_pick_label(site, log_probs, &x, labels, &y));
    return compose_end(t, loss_of_labels(t, site, each, labels, &x, &y));
}

/* ---- losses of two tensors of one shape ---- */

/* Shapes that would broadcast are an error here, because the mean would be over unrelated pairs. */
static struct thread *pair_begin(const kl_site *site, const char *op, kl_tensor *a, kl_tensor *b, struct view *v)
{
    struct thread *t = thread_self();
    struct view w;
    char x[SHAPE_TEXT], y[SHAPE_TEXT];
    if (!t || !describe(t, site, op, "operand 1", *a, v) || !describe(t, site, op, "operand 2", *b, &w))
        return NULL;
    if (autocast_is_on(t)) {
        v->dtype = dtype_compute(v->dtype);
        w.dtype = dtype_compute(w.dtype);
    }
    if (!dtype_is_float(v->dtype) || v->dtype != w.dtype) {
        fail(t, site, KL_ERR_TYPE, "%s: needs one floating dtype, got %s and %s", op, dtype_name(v->dtype),
             dtype_name(w.dtype));
        return NULL;
    }
    if (!shape_equal(&v->shape, &w.shape)) {
        fail(t, site, KL_ERR_SHAPE, "%s: shapes %s and %s differ", op, shape_text(&v->shape, x, sizeof x),
             shape_text(&w.shape, y, sizeof y));
        return NULL;
    }
    if (!(t = checked_begin(site, op)))
        return NULL;
    *a = widen_view(t, site, *a, v);
    *b = widen(t, site, *b);
    return t;
}

kl_tensor kl_mse_loss_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = pair_begin(site, "mse_loss", &a, &b, &v);
    if (!t)
        return op_failed();
    return compose_end(t, mean_all(site, kl_square_at(site, kl_sub_at(site, a, b))));
}

kl_tensor kl_l1_loss_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = pair_begin(site, "l1_loss", &a, &b, &v);
    if (!t)
        return op_failed();
    return compose_end(t, mean_all(site, kl_abs_at(site, kl_sub_at(site, a, b))));
}

/* With c = min(|d|, delta) both branches are c (|d| - c / 2), and no square overflows.  The gradient of min where the
 * two are equal, a half of each, gives delta as well. */
static kl_tensor loss_huber(const kl_site *site, const char *op, kl_tensor a, kl_tensor b, double delta, bool scaled)
{
    struct view v;
    struct thread *t = pair_begin(site, op, &a, &b, &v);
    if (!t)
        return op_failed();
    if (!(delta > 0)) {
        fail(t, site, KL_ERR_ARGUMENT, "%s %g is not above 0", scaled ? "beta" : "delta", delta);
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor d = kl_abs_at(site, kl_sub_at(site, a, b)), c = kl_minimum_scalar_at(site, d, delta);
    kl_tensor rest = kl_sub_at(site, d, kl_mul_at(site, c, const_like(site, &v, 0.5)));
    kl_tensor each = kl_mul_at(site, c, rest);
    return compose_end(t, mean_all(site, scaled ? kl_div_scalar_at(site, each, delta) : each));
}

kl_tensor kl_huber_loss_at(const kl_site *site, kl_tensor a, kl_tensor b, double delta)
{
    return loss_huber(site, "huber_loss", a, b, delta, false);
}

kl_tensor kl_smooth_l1_loss_at(const kl_site *site, kl_tensor a, kl_tensor b, double beta)
{
    return loss_huber(site, "smooth_l1_loss", a, b, beta, true);
}

/* log(1 + e^-|x|) and, from the larger of 0 and x, x y subtracted: exact where x is large and y its side. */
kl_tensor kl_binary_cross_entropy_with_logits_at(const kl_site *site, kl_tensor x, kl_tensor y)
{
    struct view v;
    struct thread *t = pair_begin(site, "binary_cross_entropy_with_logits", &x, &y, &v);
    if (!t)
        return op_failed();
    kl_tensor below, rest = log_one_plus_exp(site, &v, x, &below);
    kl_tensor weight = kl_where_at(site, below, kl_neg_at(site, y), kl_sub_at(site, const_like(site, &v, 1), y));
    return compose_end(t, mean_all(site, kl_add_at(site, kl_mul_at(site, x, weight), rest)));
}

/* log p, at least -100, so that a probability of 0 has a finite loss; its gradient is 0 there.  p is f32 or f64. */
static kl_tensor bounded_log(const kl_site *site, const struct view *v, kl_tensor p)
{
    kl_tensor small = kl_le_at(site, p, const_like(site, v, exp(-100.0)));
    kl_tensor log = kl_log_at(site, kl_where_at(site, small, const_like(site, v, 1), p));
    return kl_where_at(site, small, const_like(site, v, -100), log);
}

kl_tensor kl_binary_cross_entropy_at(const kl_site *site, kl_tensor p, kl_tensor y)
{
    struct view v;
    struct thread *t = thread_self();
    if (!t || autocast_refuses(t, site, "binary_cross_entropy", "kl_binary_cross_entropy_with_logits") ||
        !(t = pair_begin(site, "binary_cross_entropy", &p, &y, &v)))
        return op_failed();
    kl_tensor one = const_like(site, &v, 1);
    kl_tensor yes = kl_mul_at(site, y, bounded_log(site, &v, p));
    kl_tensor no = kl_mul_at(site, kl_sub_at(site, one, y), bounded_log(site, &v, kl_sub_at(site, one, p)));
    return compose_end(t, kl_neg_at(site, mean_all(site, kl_add_at(site, yes, no))));
}

kl_tensor kl_hinge_loss_at(const kl_site *site, kl_tensor x, kl_tensor y)
{
    struct view v;
    struct thread *t = pair_begin(site, "hinge_loss", &x, &y, &v);
    if (!t)
        return op_failed();
    kl_tensor margin = kl_sub_at(site, const_like(site, &v, 1), kl_mul_at(site, x, y));
    return compose_end(t, mean_all(site, kl_relu_at(site, margin)));
}

/* Where p is 0 neither logarithm is used, not even one of 0. */
kl_tensor kl_divergence_at(const kl_site *site, kl_tensor log_q, kl_tensor p)
{
    const int last = -1;
    struct view v;
    struct thread *t = pair_begin(site, "divergence", &log_q, &p, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(site, &v, 0), none = kl_eq_at(site, p, zero);
    kl_tensor log_p = kl_log_at(site, kl_where_at(site, none, const_like(site, &v, 1), p));
    kl_tensor each = kl_mul_at(site, p, kl_sub_at(site, log_p, kl_where_at(site, none, zero, log_q)));
    return compose_end(t, mean_all(site, kl_sum_at(site, each, 1, &last, false)));
}
