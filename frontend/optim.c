/* Optimizers.  They record by the public calls alone, as a user's own could. */
#include "frontend/frontend.h"
#include <kiln/optim.h>
#include <math.h>

struct tracked {
    kl_tensor param;
    kl_tensor m; /* Adam's first moment, SGD's velocity; kl_none without momentum */
    kl_tensor v; /* Adam's second moment; kl_none in SGD */
};

struct kl_optimizer {
    bool is_adam;
    kl_sgd_options sgd;
    kl_adam_options adam;
    int64_t steps;
    int n;
    struct tracked of[];
};

static const kl_adam_options adam_defaults = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

/* Zeros like t that outlive the trace. */
static kl_tensor state_like(const kl_site *site, kl_tensor t, const char *name)
{
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(t, dims);
    if (rank < 0)
        return kl_none;
    kl_tensor zeros = kl_keep_at(site, kl_zeros_at(site, kl_device_of(t), kl_dtype_of(t), rank, dims));
    kl_set_name_at(site, zeros, name);
    return zeros;
}

/* An optimizer with `states` of its own for each parameter; the caller sets the rule. */
static kl_optimizer *optimizer_new(const kl_site *site, const char *op, const kl_tensor *param, int n, int states)
{
    if (n < 0 || (n > 0 && !param)) {
        fail(thread_self(), site, KL_ERR_ARGUMENT, "%s: %d parameters at %s", op, n, param ? "an array" : "NULL");
        return NULL;
    }
    kl_optimizer *o = mem_alloc(sizeof *o + (size_t)n * sizeof o->of[0]);
    if (!o) {
        fail(thread_self(), site, KL_ERR_MEMORY, "%s: out of memory", op);
        return NULL;
    }
    o->n = n;
    for (int i = 0; i < n; i++) {
        struct tracked *t = &o->of[i];
        t->param = param[i];
        /* kl_requires_grad says in its own words what is wrong with a handle or its dtype. */
        bool ok = kl_requires_grad_at(site, t->param) == KL_OK;
        if (ok && states > 0)
            ok = kl_check(t->m = state_like(site, t->param, "m")) == KL_OK;
        if (ok && states > 1)
            ok = kl_check(t->v = state_like(site, t->param, "v")) == KL_OK;
        if (!ok) {
            kl_optimizer_free(o);
            return NULL;
        }
    }
    return o;
}

kl_optimizer *kl_sgd_at(const kl_site *site, const kl_tensor *param, int n, const kl_sgd_options *options)
{
    bool momentum = options && options->momentum != 0;
    kl_optimizer *o = optimizer_new(site, "sgd", param, n, momentum ? 1 : 0);
    if (o && options)
        o->sgd = *options;
    return o;
}

kl_optimizer *kl_adam_at(const kl_site *site, const kl_tensor *param, int n, const kl_adam_options *options)
{
    kl_optimizer *o = optimizer_new(site, "adam", param, n, 2);
    if (o) {
        o->is_adam = true;
        o->adam = options ? *options : adam_defaults;
    }
    return o;
}

/* scale_a a + scale_b b */
static kl_tensor blend(const kl_site *site, kl_tensor a, double scale_a, kl_tensor b, double scale_b)
{
    return kl_add_at(site, kl_mul_scalar_at(site, a, scale_a), kl_mul_scalar_at(site, b, scale_b));
}

static kl_status sgd_step(const kl_site *site, const kl_sgd_options *s, const struct tracked *t, kl_tensor g, double lr)
{
    kl_tensor p = t->param, v = g;
    if (s->weight_decay != 0)
        v = kl_add_at(site, v, kl_mul_scalar_at(site, p, s->weight_decay));
    if (s->momentum != 0) {
        v = kl_add_at(site, kl_mul_scalar_at(site, t->m, s->momentum), v);
        kl_assign_at(site, t->m, v);
    }
    return kl_assign_at(site, p, kl_sub_at(site, p, kl_mul_scalar_at(site, v, lr)));
}

/* x to the n by multiplications alone: libm's pow may differ in the last bit from one processor to the next. */
static double power(double x, int64_t n)
{
    double y = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            y *= x;
    return y;
}

/* The bias corrections are folded into two numbers: with c1 = 1 - beta1^t and c2 = 1 - beta2^t,
 * lr (m / c1) / (sqrt(v / c2) + eps) = (lr / c1) m / (sqrt(v) / sqrt(c2) + eps). */
static kl_status adam_step(const kl_site *site, const kl_adam_options *a, int64_t step, const struct tracked *t,
                           kl_tensor g, double lr)
{
    double c1 = 1 - power(a->beta1, step), c2 = 1 - power(a->beta2, step);
    kl_tensor p = t->param;
    kl_tensor m = blend(site, t->m, a->beta1, g, 1 - a->beta1);
    kl_tensor v = blend(site, t->v, a->beta2, kl_mul_at(site, g, g), 1 - a->beta2);
    kl_tensor root = kl_add_scalar_at(site, kl_mul_scalar_at(site, kl_sqrt_at(site, v), 1 / sqrt(c2)), a->eps);
    kl_tensor move = kl_mul_scalar_at(site, kl_div_at(site, m, root), lr / c1);
    if (a->weight_decay != 0)
        p = kl_mul_scalar_at(site, p, 1 - lr * a->weight_decay);
    kl_assign_at(site, t->m, m);
    kl_assign_at(site, t->v, v);
    return kl_assign_at(site, t->param, kl_sub_at(site, p, move));
}

kl_status kl_optimizer_step_at(const kl_site *site, kl_optimizer *o, kl_tensor loss, double lr)
{
    if (!o)
        return fail(thread_self(), site, KL_ERR_ARGUMENT, "optimizer_step: no optimizer");
    if (!kl_tracing())
        return fail(thread_self(), site, KL_ERR_TRACE, "optimizer_step: no trace is open");
    for (int i = 0; i < o->n; i++) {
        const struct tracked *t = &o->of[i];
        kl_tensor g = kl_grad_at(site, loss, t->param);
        kl_status s = o->is_adam ? adam_step(site, &o->adam, o->steps + 1, t, g, lr) : sgd_step(site, &o->sgd, t, g, lr);
        if (s != KL_OK)
            return s;
    }
    o->steps++;
    return KL_OK;
}

int64_t kl_optimizer_steps(const kl_optimizer *o)
{
    return o ? o->steps : 0;
}

kl_status kl_optimizer_set_steps(kl_optimizer *o, int64_t steps)
{
    if (!o || steps < 0)
        return fail(thread_self(), NULL, KL_ERR_ARGUMENT, "optimizer_set_steps: %s", o ? "a negative number" : "no optimizer");
    o->steps = steps;
    return KL_OK;
}

void kl_optimizer_free(kl_optimizer *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->n; i++) {
        kl_release_at(NULL, o->of[i].m);
        kl_release_at(NULL, o->of[i].v);
    }
    mem_free(o);
}

kl_optimizer *kl_sgd(const kl_tensor *param, int n, const kl_sgd_options *options)
{
    return kl_sgd_at(NULL, param, n, options);
}

kl_optimizer *kl_adam(const kl_tensor *param, int n, const kl_adam_options *options)
{
    return kl_adam_at(NULL, param, n, options);
}

kl_status kl_optimizer_step(kl_optimizer *o, kl_tensor loss, double lr)
{
    return kl_optimizer_step_at(NULL, o, loss, lr);
}
