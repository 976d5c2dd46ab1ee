/* Cross entropy and negative log likelihood of any rank, with weights, smoothing, ignored labels or probabilities. */
#include "frontend/nn/compose.h"

struct class_loss {
    kl_class_loss_options o;
    struct view x, y;             /* logits, target */
    int axis;                     /* of the classes */
    bool labels;
};

static bool class_loss_of(struct thread *t, const char *op, kl_tensor x, kl_tensor y,
                          const kl_class_loss_options *options, struct class_loss *c)
{
    char tx[SHAPE_TEXT], ty[SHAPE_TEXT];
    struct view w;
    *c = (struct class_loss){.o = options ? *options : (kl_class_loss_options){.smoothing = 0}};
    if (!t || !describe(t, op, "the logits", x, &c->x) || !describe(t, op, "the target", y, &c->y) ||
        (c->o.weight.id && !describe(t, op, "the weights", c->o.weight, &w)))
        return false;
    const struct shape *s = &c->x.shape;
    c->axis = s->rank > 1;
    c->labels = !dtype_is_float(c->y.dtype);
    struct shape want = *s;
    if (c->labels && s->rank) {
        want.rank--;
        memmove(want.dim + c->axis, s->dim + c->axis + 1, (want.rank - (uint32_t)c->axis) * sizeof *s->dim);
    }
    if (!dtype_is_float(c->x.dtype) || c->y.dtype == KL_BOOL || (!c->labels && c->y.dtype != c->x.dtype) ||
        (c->o.weight.id && w.dtype != c->x.dtype))
        return fail(t, KL_ERR_TYPE, "%s: needs floats, targets that are integers or the same floats, weights "
                    "of the same floats; got %s, %s and %s", op, dtype_name(c->x.dtype), dtype_name(c->y.dtype),
                    c->o.weight.id ? dtype_name(w.dtype) : "none"), false;
    if (s->rank && !axes_are_numbers(t, op, s, (uint32_t)c->axis, 1))
        return false;
    if (!s->rank || s->dim[c->axis] < 1 || !shape_equal(&want, &c->y.shape))
        return fail(t, KL_ERR_SHAPE, "%s: targets %s do not fit logits %s: [N,C,...] or [C] and the same, for "
                    "labels without C", op, shape_text(&c->y.shape, ty, sizeof ty), shape_text(s, tx, sizeof tx)),
               false;
    if (c->o.weight.id && (w.shape.rank != 1 || w.shape.dim[0] != s->dim[c->axis]))
        return fail(t, KL_ERR_SHAPE, "%s: the weights must be [%" PRId64 "], got %s", op, s->dim[c->axis],
                    shape_text(&w.shape, tx, sizeof tx)), false;
    if (!(c->o.smoothing >= 0 && c->o.smoothing <= 1) || (unsigned)c->o.reduction > KL_LOSS_EACH ||
        (c->o.ignores && !c->labels))
        return fail(t, KL_ERR_ARGUMENT, "%s: %s", op, c->o.ignores && !c->labels
                    ? "probabilities cannot be ignored" : "smoothing is not in 0..1, or there is no such reduction"),
               false;
    return true;
}

/* A mask and a sum over the classes fuse with the softmax before them; a gather would add a scatter to the gradient. */
static kl_tensor classes_summed(const struct class_loss *c, kl_tensor a)
{
    return kl_sum(a, 1, &c->axis, false);
}

static kl_tensor class_loss(struct thread *t, struct class_loss *c, kl_tensor log_p, kl_tensor target)
{
    const struct shape *s = &c->x.shape;
    double C = (double)s->dim[c->axis], smoothing = c->o.smoothing;
    kl_tensor zero = same_number(log_p, 0), one = same_number(log_p, 1), weight = kl_none, each, counts;
    if (c->o.weight.id) {
        int64_t column[KL_MAX_RANK] = {s->dim[c->axis], 1, 1, 1, 1, 1, 1, 1};
        weight = kl_reshape(widen(t, c->o.weight), (int)s->rank - c->axis, column);
    }
    if (!c->labels) {
        kl_tensor y = widen(t, target);
        if (smoothing > 0)
            y = kl_add(kl_mul(y, same_number(y, 1 - smoothing)), same_number(y, smoothing / C));
        each = kl_where(kl_eq(y, zero), zero, kl_mul(y, log_p)); /* not 0 times infinity */
        each = kl_neg(classes_summed(c, weight.id ? kl_mul(each, weight) : each));
        return c->o.reduction == KL_LOSS_EACH ? each
               : c->o.reduction == KL_LOSS_SUM ? kl_sum_all(each) : kl_mean(each, 0, NULL, false);
    }
    kl_dtype wide = c->y.dtype == KL_U64 ? KL_U64 : KL_I64;
    kl_tensor y = kl_cast(target, wide);
    kl_tensor place = kl_iota(c->x.device, wide, (int)s->rank, s->dim, c->axis);
    kl_tensor label = kl_unsqueeze(y, c->axis == (int)c->y.shape.rank ? -1 : c->axis), here = kl_eq(place, label);
    kl_tensor own = weight.id ? kl_mul(log_p, weight) : log_p;
    each = kl_neg(classes_summed(c, kl_where(here, own, zero)));
    counts = weight.id ? classes_summed(c, kl_where(here, weight, zero))
                       : kl_expand(one, (int)c->y.shape.rank, c->y.shape.dim);
    if (smoothing > 0) {
        kl_tensor all = kl_mul(classes_summed(c, own), same_number(log_p, -smoothing / C));
        each = kl_add(kl_mul(each, same_number(each, 1 - smoothing)), all);
    }
    struct view loss = c->x;
    loss.dtype = (uint8_t)kl_dtype_of(each);
    struct label_kinds k = label_kinds(target, &c->y, &loss, s->dim[c->axis],
                                       c->o.ignores ? c->o.ignored : KL_IGNORED_LABEL);
    each = kl_where(k.valid, each, k.other);
    if (k.ignored.id)
        counts = kl_where(k.ignored, zero, counts);
    if (c->o.reduction == KL_LOSS_EACH)
        return each;
    each = kl_sum_all(each);
    return c->o.reduction == KL_LOSS_SUM ? each : kl_div(each, kl_sum_all(counts));
}

kl_tensor kl_cross_entropy_with(kl_tensor logits, kl_tensor target, const kl_class_loss_options *options)
{
    static const char op[] = "cross_entropy_with";
    struct thread *t = thread_self();
    struct class_loss c;
    if (!class_loss_of(t, op, logits, target, options, &c) || !(t = checked_begin(op)))
        return op_failed();
    return compose_end(t, class_loss(t, &c, kl_log_softmax(widen(t, logits), c.axis), target));
}

kl_tensor kl_nll_loss_with(kl_tensor log_probs, kl_tensor target, const kl_class_loss_options *options)
{
    static const char op[] = "nll_loss_with";
    struct thread *t = thread_self();
    struct class_loss c;
    if (!class_loss_of(t, op, log_probs, target, options, &c) || !(t = checked_begin(op)))
        return op_failed();
    return compose_end(t, class_loss(t, &c, widen(t, log_probs), target));
}
