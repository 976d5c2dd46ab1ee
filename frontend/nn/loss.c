/* Softmax, labels and losses. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <math.h>

/* ---- softmax ---- */

/* a minus its maximum along the axis.  The maximum cancels out of the results, so it has no gradient. */
static kl_tensor subtract_max(kl_tensor a, int axis)
{
    kl_tensor max = kl_detach(kl_max(a, 1, &axis, true));
    return kl_sub(a, max);
}

kl_tensor shares(const struct view *v, kl_tensor parts, kl_tensor whole)
{
    return kl_mul(parts, kl_div(const_like(v, 1), whole));
}

kl_tensor kl_softmax(kl_tensor a, int axis)
{
    struct view v;
    struct thread *t = wide_floats_begin("softmax", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor e = kl_exp(subtract_max(a, axis));
    return compose_end(t, shares(&v, e, kl_sum(e, 1, &axis, true)));
}

static kl_tensor log_sum_exp(kl_tensor z, int axis)
{
    return kl_log(kl_sum(kl_exp(z), 1, &axis, true));
}

kl_tensor kl_log_softmax(kl_tensor a, int axis)
{
    struct view v;
    struct thread *t = wide_floats_begin("log_softmax", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor z = subtract_max(a, axis);
    return compose_end(t, kl_sub(z, log_sum_exp(z, axis)));
}

/* ---- labels ---- */

static bool check_integers(struct thread *t, const char *op, const struct view *y)
{
    char kind = dtype_kind(y->dtype);
    if (kind != 'I' && kind != 'U')
        fail(t, KL_ERR_TYPE, "%s: the labels must be integers, got %s", op, dtype_name(y->dtype));
    return kind == 'I' || kind == 'U';
}

/* The dtype in which labels are compared with column numbers: all of both, but for classes from 2^63. */
static kl_dtype label_index(const struct view *y, int64_t classes)
{
    return dtype_size(y->dtype) == 8 || y->dtype == KL_U32 || classes > INT32_MAX ? KL_I64 : KL_I32;
}

/* Is the column number equal to the label? In the shape of the labels and one more axis of length s->dim[s->rank -
 * 1]. */
static kl_tensor at_label(kl_tensor labels, const struct view *y, const struct shape *s)
{
    uint32_t last = s->rank - 1;
    kl_dtype index = label_index(y, s->dim[last]);
    kl_tensor label = kl_unsqueeze(kl_cast(labels, index), -1);
    return kl_eq(kl_iota(y->device, index, (int)s->rank, s->dim, (int)last), label);
}

kl_tensor kl_one_hot(kl_tensor labels, int64_t classes, kl_dtype dtype)
{
    struct thread *t = thread_self();
    struct view y;
    struct shape s;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, "one_hot", "labels", labels, &y) || !check_integers(t, "one_hot", &y))
        return op_failed();
    if (classes < 0)
        return refuse(t, KL_ERR_ARGUMENT, "one_hot: %" PRId64 " classes", classes);
    if (y.shape.rank == KL_MAX_RANK)
        return refuse(t, KL_ERR_SHAPE, "one_hot: %s has as many axes as a tensor can have",
                      shape_text(&y.shape, text, sizeof text));
    s = y.shape;
    s.dim[s.rank++] = classes;
    if (!shape_of(t, "one_hot", (int)s.rank, s.dim, &s) || !(t = checked_begin("one_hot")))
        return op_failed();
    return compose_end(t, kl_cast(at_label(labels, &y, &s), dtype));
}

/* Views of x [N,C] and labels [N], checked; NULL: reported. */
static struct thread *labels_begin(const char *op, const char *what, kl_tensor *x, kl_tensor labels,
                                   struct view *vx, struct view *vy)
{
    struct thread *t = thread_self();
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (!t || !describe(t, op, what, *x, vx) || !describe(t, op, "labels", labels, vy))
        return NULL;
    if (!dtype_is_float(vx->dtype)) {
        fail(t, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(vx->dtype));
        return NULL;
    }
    if (vx->shape.rank != 2 || vy->shape.rank != 1 || vx->shape.dim[0] != vy->shape.dim[0] || vx->shape.dim[1] < 1) {
        fail(t, KL_ERR_SHAPE, "%s: needs %s [N,C] and labels [N], got %s and %s", op, what,
             shape_text(&vx->shape, a, sizeof a), shape_text(&vy->shape, b, sizeof b));
        return NULL;
    }
    if (!check_integers(t, op, vy) || !(t = checked_begin(op)))
        return NULL;
    *x = widen_view(t, *x, vx);
    return t;
}

/* [N,1] the element at the label in each row of z, by a mask: it fuses with the softmax around it, forward and
 * backward; a gather would add a scatter to the gradient. */
static kl_tensor loss_pick_label(kl_tensor z, const struct view *x, kl_tensor labels, const struct view *y)
{
    const int columns = 1;
    kl_tensor own = kl_where(at_label(labels, y, &x->shape), z, const_like(x, 0));
    return kl_sum(own, 1, &columns, true);
}

static kl_tensor mean_all(kl_tensor a)
{
    return kl_mean(a, 0, NULL, false);
}

/* An exact integer in the labels' dtype, which has it. */
static kl_tensor label_number(const struct view *y, int64_t value)
{
    const int64_t EXACT = INT64_C(1) << 53, HALF = INT64_C(1) << 32;
    if (value >= -EXACT && value <= EXACT)
        return const_like(y, (double)value);
    int64_t low = value & (HALF - 1), high = (value - low) / HALF;
    return kl_add(kl_mul(const_like(y, (double)high), const_like(y, (double)HALF)), const_like(y, (double)low));
}

struct label_kinds label_kinds(kl_tensor labels, const struct view *y, const struct view *loss,
                               int64_t classes, int64_t ignored)
{
    unsigned bits = 8 * (unsigned)dtype_size(y->dtype);
    bool is_signed = dtype_kind(y->dtype) == 'I';
    bool held = is_signed ? ignored >> (bits - 1) == 0 || ignored >> (bits - 1) == -1
                          : ignored >= 0 && (bits == 64 || ignored >> bits == 0);
    struct view index = *y;
    index.dtype = label_index(y, classes);
    kl_tensor number = kl_cast(labels, index.dtype), other = const_like(loss, NAN);
    struct label_kinds k = {.valid = kl_lt(number, label_number(&index, classes))};
    if (is_signed || index.dtype == KL_I64)
        k.valid = kl_and(k.valid, kl_ge(number, const_like(&index, 0)));
    if (held) {
        k.ignored = kl_eq(labels, label_number(y, ignored));
        other = kl_where(k.ignored, const_like(loss, 0), other);
        if (ignored >= 0 && ignored < classes)
            k.valid = kl_and(k.valid, kl_not(k.ignored));
    }
    k.other = other;
    return k;
}

/* [] How many labels are not ignored, in the loss's dtype. */
static kl_tensor label_count(struct thread *t, const struct label_kinds *k, const struct view *y,
                             const struct view *loss)
{
    struct view each = *y;
    each.dtype = loss->dtype;
    if (!k->ignored.id)
        return count_like(t, "mean", &each, (1u << y->shape.rank) - 1, 0);
    kl_tensor counted = kl_cast(kl_not(k->ignored), KL_I64);
    return kl_cast(kl_sum_all(counted), (kl_dtype)loss->dtype);
}

/* The mean of losses [N, 1] of rows with valid labels. */
static kl_tensor loss_of_labels(struct thread *t, kl_tensor each, kl_tensor labels,
                                const struct view *x, const struct view *y)
{
    struct label_kinds k = label_kinds(labels, y, x, x->shape.dim[1], KL_IGNORED_LABEL);
    each = kl_where(k.valid, kl_squeeze(each, 1), k.other);
    return kl_div(kl_sum_all(each), label_count(t, &k, y, x));
}

kl_tensor kl_cross_entropy(kl_tensor logits, kl_tensor labels)
{
    struct view x, y;
    struct thread *t = labels_begin("cross_entropy", "logits", &logits, labels, &x, &y);
    if (!t)
        return op_failed();
    kl_tensor z = subtract_max(logits, 1), picked = loss_pick_label(z, &x, labels, &y);
    kl_tensor each = kl_sub(log_sum_exp(z, 1), picked);
    return compose_end(t, loss_of_labels(t, each, labels, &x, &y));
}

kl_tensor kl_nll_loss(kl_tensor log_probs, kl_tensor labels)
{
    struct view x, y;
    struct thread *t = labels_begin("nll_loss", "log_probs", &log_probs, labels, &x, &y);
    if (!t)
        return op_failed();
    kl_tensor each = kl_neg(loss_pick_label(log_probs, &x, labels, &y));
    return compose_end(t, loss_of_labels(t, each, labels, &x, &y));
}

/* ---- losses of two tensors of one shape ---- */

/* Shapes that would broadcast are an error here, because the mean would be over unrelated pairs. */
static struct thread *pair_begin(const char *op, kl_tensor *a, kl_tensor *b, struct view *v)
{
    struct thread *t = thread_self();
    struct view w;
    char x[SHAPE_TEXT], y[SHAPE_TEXT];
    if (!t || !describe(t, op, "operand 1", *a, v) || !describe(t, op, "operand 2", *b, &w))
        return NULL;
    if (autocast_is_on(t)) {
        v->dtype = dtype_compute(v->dtype);
        w.dtype = dtype_compute(w.dtype);
    }
    if (!dtype_is_float(v->dtype) || v->dtype != w.dtype) {
        fail(t, KL_ERR_TYPE, "%s: needs one floating dtype, got %s and %s", op, dtype_name(v->dtype),
             dtype_name(w.dtype));
        return NULL;
    }
    if (!shape_equal(&v->shape, &w.shape)) {
        fail(t, KL_ERR_SHAPE, "%s: shapes %s and %s differ", op, shape_text(&v->shape, x, sizeof x),
             shape_text(&w.shape, y, sizeof y));
        return NULL;
    }
    if (!(t = checked_begin(op)))
        return NULL;
    *a = widen_view(t, *a, v);
    *b = widen(t, *b);
    return t;
}

kl_tensor kl_mse_loss(kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = pair_begin("mse_loss", &a, &b, &v);
    if (!t)
        return op_failed();
    return compose_end(t, mean_all(kl_square(kl_sub(a, b))));
}

kl_tensor kl_l1_loss(kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = pair_begin("l1_loss", &a, &b, &v);
    if (!t)
        return op_failed();
    return compose_end(t, mean_all(kl_abs(kl_sub(a, b))));
}

/* With c = min(|d|, delta) both branches are c (|d| - c / 2), and no square overflows.  The gradient of min where the
 * two are equal, a half of each, gives delta as well. */
static kl_tensor loss_huber(const char *op, kl_tensor a, kl_tensor b, double delta, bool scaled)
{
    struct view v;
    struct thread *t = pair_begin(op, &a, &b, &v);
    if (!t)
        return op_failed();
    if (!(delta > 0)) {
        fail(t, KL_ERR_ARGUMENT, "%s %g is not above 0", scaled ? "beta" : "delta", delta);
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor d = kl_abs(kl_sub(a, b)), c = kl_minimum_scalar(d, delta);
    kl_tensor rest = kl_sub(d, kl_mul(c, const_like(&v, 0.5)));
    kl_tensor each = kl_mul(c, rest);
    return compose_end(t, mean_all(scaled ? kl_div_scalar(each, delta) : each));
}

kl_tensor kl_huber_loss(kl_tensor a, kl_tensor b, double delta)
{
    return loss_huber("huber_loss", a, b, delta, false);
}

kl_tensor kl_smooth_l1_loss(kl_tensor a, kl_tensor b, double beta)
{
    return loss_huber("smooth_l1_loss", a, b, beta, true);
}

/* log(1 + e^-|x|) and, from the larger of 0 and x, x y subtracted: exact where x is large and y its side. */
kl_tensor kl_binary_cross_entropy_with_logits(kl_tensor x, kl_tensor y)
{
    struct view v;
    struct thread *t = pair_begin("binary_cross_entropy_with_logits", &x, &y, &v);
    if (!t)
        return op_failed();
    kl_tensor below, rest = log_one_plus_exp(&v, x, &below);
    kl_tensor weight = kl_where(below, kl_neg(y), kl_sub(const_like(&v, 1), y));
    return compose_end(t, mean_all(kl_add(kl_mul(x, weight), rest)));
}

/* log p, at least -100, so that a probability of 0 has a finite loss; its gradient is 0 there.  p is f32 or f64. */
static kl_tensor bounded_log(const struct view *v, kl_tensor p)
{
    kl_tensor small = kl_le(p, const_like(v, exp(-100.0)));
    kl_tensor log = kl_log(kl_where(small, const_like(v, 1), p));
    return kl_where(small, const_like(v, -100), log);
}

kl_tensor kl_binary_cross_entropy(kl_tensor p, kl_tensor y)
{
    struct view v;
    struct thread *t = thread_self();
    if (!t || autocast_refuses(t, "binary_cross_entropy", "kl_binary_cross_entropy_with_logits") ||
        !(t = pair_begin("binary_cross_entropy", &p, &y, &v)))
        return op_failed();
    kl_tensor one = const_like(&v, 1);
    kl_tensor yes = kl_mul(y, bounded_log(&v, p));
    kl_tensor no = kl_mul(kl_sub(one, y), bounded_log(&v, kl_sub(one, p)));
    return compose_end(t, kl_neg(mean_all(kl_add(yes, no))));
}

kl_tensor kl_hinge_loss(kl_tensor x, kl_tensor y)
{
    struct view v;
    struct thread *t = pair_begin("hinge_loss", &x, &y, &v);
    if (!t)
        return op_failed();
    kl_tensor margin = kl_sub(const_like(&v, 1), kl_mul(x, y));
    return compose_end(t, mean_all(kl_relu(margin)));
}

/* Where p is 0 neither logarithm is used, not even one of 0. */
kl_tensor kl_divergence(kl_tensor log_q, kl_tensor p)
{
    const int last = -1;
    struct view v;
    struct thread *t = pair_begin("divergence", &log_q, &p, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(&v, 0), none = kl_eq(p, zero);
    kl_tensor log_p = kl_log(kl_where(none, const_like(&v, 1), p));
    kl_tensor each = kl_mul(p, kl_sub(log_p, kl_where(none, zero, log_q)));
    return compose_end(t, mean_all(kl_sum(each, 1, &last, false)));
}
