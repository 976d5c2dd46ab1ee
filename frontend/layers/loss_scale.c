/* Loss scaling: states and ordinary ops, so that the program itself detects a step that overflowed. */
#include "transform.h"
#include <math.h>

static kl_tensor loss_scale_state(kl_device device, double value, const char *name)
{
    kl_tensor s = kl_keep(kl_reshape(kl_scalar(device, KL_F32, value), 0, NULL));
    kl_set_name(s, name);
    return s;
}

kl_status kl_loss_scale_init(kl_loss_scale *s, kl_device device, double initial)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!s || !(initial > 0) || !isfinite(initial))
        return fail(t, KL_ERR_ARGUMENT, "loss_scale_init: %s",
                    s ? "the scale is not above 0, or infinite" : "s is NULL");
    *s = (kl_loss_scale){.scale = loss_scale_state(device, initial, "loss_scale"),
                         .good = loss_scale_state(device, 0, "loss_scale.good"),
                         .growth = 2, .backoff = 0.5, .interval = 2000};
    return kl_check(s->good);
}

void kl_loss_scale_deinit(kl_loss_scale *s)
{
    kl_release(s->scale);
    kl_release(s->good);
    *s = (kl_loss_scale){0};
}

/* h multiplied or divided by the scale, in f32 if h has too little precision or range. */
static kl_tensor by_scale(const char *op, const kl_loss_scale *s, kl_tensor h, bool up)
{
    struct view v;
    struct thread *t = floats_begin(op, h, &v);
    if (!t)
        return op_failed();
    kl_dtype dtype = v.dtype == KL_F64 ? KL_F64 : KL_F32;
    kl_tensor scale = dtype == KL_F64 ? kl_cast(s->scale, dtype) : s->scale;
    kl_tensor wide = (unsigned)dtype == v.dtype ? h : kl_cast(h, dtype);
    return compose_end(t, up ? kl_mul(wide, scale) : kl_div(wide, scale));
}

kl_tensor kl_loss_scale_up(const kl_loss_scale *s, kl_tensor loss)
{
    return by_scale("loss_scale_up", s, loss, true);
}

kl_tensor kl_loss_scale_down(const kl_loss_scale *s, kl_tensor gradient)
{
    return by_scale("loss_scale_down", s, gradient, false);
}

kl_tensor kl_loss_scale_finite(int64_t n, const kl_tensor *gradients)
{
    struct thread *t = checked_begin("loss_scale_finite");
    kl_tensor all = kl_none;
    if (!t)
        return op_failed();
    if (!counts_valid(t, "loss_scale_finite", COUNTS({"n", n})))
        return compose_end(t, poison(t));
    if (n < 1 || !gradients)
        return compose_end(t, refuse(t, KL_ERR_ARGUMENT, "loss_scale_finite: no gradients"));
    for (int64_t i = 0; i < n; i++) {
        kl_tensor one = kl_all(kl_is_finite(gradients[i]), 0, NULL, false);
        all = i ? kl_and(all, one) : one;
    }
    return compose_end(t, all);
}

kl_status kl_loss_scale_update(kl_loss_scale *s, kl_tensor finite)
{
    struct view v;
    struct thread *t = floats_begin("loss_scale_update", s->scale, &v);
    if (!t)
        return thread_self() ? thread_self()->last.code : KL_ERR_MEMORY;
    kl_tensor zero = const_like(&v, 0), steps = kl_add(s->good, const_like(&v, 1));
    kl_tensor grown = kl_ge(steps, kl_scalar(v.device, KL_F32, s->interval));
    kl_tensor up = kl_where(grown, kl_mul_scalar(s->scale, s->growth), s->scale);
    kl_tensor next = kl_where(finite, kl_where(kl_is_finite(up), up, s->scale), kl_mul_scalar(s->scale, s->backoff));
    kl_status status = kl_assign(s->good, kl_where(kl_and(finite, kl_not(grown)), steps, zero));
    if (!status)
        status = kl_assign(s->scale, next);
    compose_end_all(t, NULL, 0);
    return status;
}
