/* Optimizers: how they are made, their steps, states and numbers.  The rules are in optim_rules.c. */
#include "rules.h"
#include <float.h>
#include <stdatomic.h>
#include <stdio.h>

bool train_count_valid(const char *op, int64_t n)
{
    if (n < 0 || n > INT32_MAX)
        kl_failf(NULL, KL_ERR_ARGUMENT, "%s: n is %lld; it must be 0 to %d", op, (long long)n, INT32_MAX);
    return n >= 0 && n <= INT32_MAX;
}

bool train_check_params(const char *op, const kl_tensor *param, int64_t n)
{
    if (!train_count_valid(op, n))
        return false;
    if (n > 0 && !param) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "%s: %d parameters at NULL", op, (int)n);
        return false;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (param[i].id == param[k].id && param[i].id) {
                kl_failf(NULL, KL_ERR_ARGUMENT, "%s: parameters %d and %d are the same tensor", op, k, i);
                return false;
            }
    for (int i = 0; i < n; i++) /* kl_requires_grad reports what is wrong with a handle or its dtype */
        if (kl_requires_grad(param[i]) != KL_OK)
            return false;
    return true;
}

kl_tensor train_state(kl_tensor t, int rank, const int64_t *dims, const char *name)
{
    kl_tensor zeros = kl_keep(kl_zeros(kl_device_of(t), train_compute(kl_dtype_of(t)), rank, dims));
    kl_set_name(zeros, name);
    return zeros;
}

/* ---- making them ---- */

/* The states of Adafactor: r does not have the last axis, c does not have the one before it. */
static kl_tensor optimizer_state_like(kl_tensor t, const char *name)
{
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(t, dims);
    if (name[0] == 'c')
        dims[rank - 2] = dims[rank - 1];
    if (name[0] == 'r' || name[0] == 'c')
        rank--;
    return train_state(t, rank, dims, name);
}

kl_optimizer *optimizer_new(const struct rule *rule, const void *options, size_t bytes, const kl_tensor *param,
                            int64_t n)
{
    if (!train_check_params(rule->name, param, n))
        return NULL;
    kl_optimizer *o = kl_memory_alloc(sizeof *o + (size_t)n * sizeof o->of[0]);
    if (o)
        o->list = kl_memory_alloc(((size_t)n * 2 + 1) * sizeof *o->list);
    if (!o || !o->list) {
        kl_memory_free(o);
        kl_failf(NULL, KL_ERR_MEMORY, "%s: out of memory", rule->name);
        return NULL;
    }
    static atomic_uint made;
    static const char *const number[NUMBERS] = {"rate", "root", "decay", "lr", "blend"};
    unsigned id = atomic_fetch_add(&made, 1);
    for (int i = 0; i < NUMBERS; i++)
        kl_format(o->name[i], sizeof o->name[i], "%s.%u.%s", rule->name, id, number[i]);
    o->rule = rule;
    memcpy(&o->is, options, bytes);
    for (int i = 0; i < n; i++, o->n++) {
        struct tracked *t = &o->of[i];
        const char *const *name = rule->states(o, t->param = param[i]);
        for (int k = 0; name[k]; k++)
            if (kl_check(t->state[k] = optimizer_state_like(t->param, name[k])) != KL_OK) {
                o->n++; /* counted now, so that its states are freed after an error */
                kl_optimizer_free(o);
                return NULL;
            }
    }
    return o;
}

void kl_optimizer_free(kl_optimizer *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < STATES; k++)
            train_release(o->of[i].state[k]);
    kl_memory_free(o->list);
    kl_memory_free(o);
}

kl_status kl_optimizer_attach(kl_optimizer *o, const kl_params *params)
{
    if (!o || !params)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "optimizer_attach: no %s", o ? "tree" : "optimizer");
    for (int i = 0; i < o->n; i++)
        if (kl_params_index_of(params, o->of[i].param) < 0)
            return kl_failf(NULL, KL_ERR_ARGUMENT, "optimizer_attach: parameter %d is not in the tree", i);
    o->params = params;
    return KL_OK;
}

/* ---- numbers ---- */

kl_tensor rule_scalar(struct rule_scalars *s, kl_tensor a, double x, const char *name)
{
    kl_device device = kl_device_of(a);
    kl_dtype dtype = kl_dtype_of(a);
    for (struct rule_scalar *k = s->v; k < s->v + s->n; k++)
        if (!memcmp(&k->x, &x, sizeof x) && k->name == name && k->device.id == device.id && k->dtype == dtype)
            return k->scalar;
    kl_tensor scalar = kl_scalar(device, dtype, x);
    if (name)
        kl_set_name(scalar, name);
    if (s->n < MAX_RULE_SCALARS)
        s->v[s->n++] = (struct rule_scalar){x, name, device, dtype, scalar};
    return scalar;
}

kl_tensor rule_number(struct update *u, enum rule_number which, kl_tensor a)
{
    u->o->used[which] = true;
    return rule_scalar(u->scalars, a, u->x[which], u->o->name[which]);
}

kl_tensor rule_times(struct update *u, enum rule_number which, kl_tensor a)
{
    return kl_mul(a, rule_number(u, which, a));
}

kl_tensor rule_rated(struct update *u, kl_tensor a)
{
    kl_tensor rate = rule_number(u, NUMBER_RATE, a);
    return kl_mul(a, u->rate == 1 ? rate : kl_mul(rate, rule_scalar(u->scalars, rate, u->rate, NULL)));
}

/* Computes the average as a step from the value with the larger weight to the other one.  This is one multiplication,
 * and if both values are equal the result is, too.  A sum of two products would have weights that are rounded
 * independently: 0.999f and 0.001f sum to 1 + 1.3e-8, and an average would settle 1.3e-5 too high. */
kl_tensor rule_blend(struct rule_scalars *s, kl_tensor a, double beta, kl_tensor b)
{
    kl_tensor near = beta < 0.5 ? b : a, far = beta < 0.5 ? a : b;
    double step = beta < 0.5 ? beta : 1 - beta;
    kl_tensor way = kl_sub(far, near);
    return kl_add(near, s ? kl_mul(way, rule_scalar(s, way, step, NULL)) : kl_mul_scalar(way, step));
}

/* While gradients stay 0, a state decays to a subnormal number and stays there.  Arithmetic with subnormal numbers
 * takes up to twice as long on some processors. */
kl_tensor rule_flushed(kl_tensor x, double step, enum rule_sign sign)
{
    kl_dtype dtype = kl_dtype_of(x);
    double min = (dtype == KL_F64 ? DBL_MIN : (double)FLT_MIN) / step;
    kl_device device = kl_device_of(x);
    kl_tensor size = sign == RULE_SQUARES ? x : kl_abs(x);
    kl_tensor tiny = kl_lt(size, kl_const(device, dtype, min));
    return kl_where(tiny, kl_const(device, dtype, 0), x);
}

kl_tensor rule_average(struct rule_scalars *s, kl_tensor a, double beta, kl_tensor b, enum rule_sign sign)
{
    double step = beta < 0.5 ? beta : 1 - beta;
    return rule_flushed(rule_blend(s, a, beta, b), step > 0 ? step : 1, sign);
}

kl_tensor rule_decayed(struct update *u, double weight_decay)
{
    kl_tensor p = u->p;
    double factor = u->rate * u->decay;
    if (weight_decay == 0 || factor == 0)
        return p;
    if (factor == 1)
        return rule_times(u, NUMBER_DECAY, p);
    kl_tensor part = rule_number(u, NUMBER_LR, p);
    part = kl_mul(part, rule_scalar(u->scalars, part, factor * weight_decay, NULL));
    return kl_sub(p, kl_mul(p, part));
}

int64_t kl_optimizer_slots(kl_optimizer *o, double lr, kl_slot *slots)
{
    if (!o || !slots) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "optimizer_slots: %s", o ? "slots is NULL" : "no optimizer");
        return 0;
    }
    double x[NUMBERS];
    int n = 0;
    o->rule->numbers(o, ++o->steps, lr, x);
    for (int i = 0; i < NUMBERS; i++)
        if (o->used[i])
            slots[n++] = (kl_slot){o->name[i], x[i]};
    return n;
}

int64_t kl_optimizer_steps(const kl_optimizer *o)
{
    return o ? o->steps : 0;
}

kl_status kl_optimizer_set_steps(kl_optimizer *o, int64_t steps)
{
    if (!o || steps < 0)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "optimizer_set_steps: %s", o ? "a negative number" : "no optimizer");
    o->steps = steps;
    return KL_OK;
}

/* ---- steps ---- */

static kl_param optimizer_param(const kl_optimizer *o, int i)
{
    kl_param is = {.rate = 1, .decay = 1};
    if (o->params)
        kl_params_get(o->params, kl_params_index_of(o->params, o->of[i].param), &is);
    return is;
}

static kl_status optimizer_update(kl_optimizer *o, const kl_tensor *g, double lr)
{
    double x[NUMBERS] = {0};
    struct rule_scalars scalars = {.n = 0};
    o->rule->numbers(o, o->steps + 1, lr, x);
    memset(o->used, 0, sizeof o->used);
    for (int i = 0; i < o->n; i++) {
        kl_param is = optimizer_param(o, i);
        int64_t want[KL_MAX_RANK], has[KL_MAX_RANK];
        if (!g[i].id || is.frozen)
            continue;
        int rank = kl_shape(o->of[i].param, want);
        if (kl_check(g[i]) == KL_OK && (kl_shape(g[i], has) != rank || memcmp(want, has, (size_t)rank * sizeof *want)))
            return kl_failf(NULL, KL_ERR_SHAPE, "gradient %d is not shaped like its parameter", i);
        kl_dtype has_dtype = kl_dtype_of(g[i]), want_dtype = kl_dtype_of(o->of[i].param);
        if (kl_check(g[i]) == KL_OK && train_compute(has_dtype) != train_compute(want_dtype))
            return kl_failf(NULL, KL_ERR_TYPE, "gradient %d is %s, its parameter %s", i, kl_dtype_name(has_dtype),
                            kl_dtype_name(want_dtype));
        struct update u = {o, &o->of[i], train_widen(o->of[i].param), train_widen(g[i]), is.rate,
                           is.decay, x, &scalars};
        kl_status s = o->rule->update(&u);
        if (s != KL_OK)
            return s;
    }
    o->steps++;
    return KL_OK;
}

/* Computes the gradients of the loss in all parameters that are not frozen and stores them from o->list + n on; kl_none
 * for frozen parameters. */
static kl_status optimizer_gradients(kl_optimizer *o, kl_tensor loss)
{
    kl_tensor *wrt = o->list, *g = o->list + o->n;
    int m = 0;
    for (int i = 0; i < o->n; i++)
        if (!optimizer_param(o, i).frozen)
            wrt[m++] = o->of[i].param;
    kl_status s = kl_grads(loss, m, wrt, g);
    for (int i = o->n - 1; i >= 0; i--) /* from the last to the first, because a gradient moves to the same or a later
                                           index */
        g[i] = optimizer_param(o, i).frozen ? kl_none : g[--m];
    return s;
}

static kl_status optimizer_step(kl_optimizer *o, const kl_tensor *g, kl_tensor loss, double lr)
{
    if (!o)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "optimizer_step: no optimizer");
    if (!kl_tracing())
        return kl_failf(NULL, KL_ERR_TRACE, "optimizer_step: no trace is open");
    kl_status s = kl_composite_begin("optimizer_step");
    if (s != KL_OK)
        return s;
    if (!g && (s = optimizer_gradients(o, loss)) == KL_OK)
        g = o->list + o->n;
    if (s == KL_OK)
        s = optimizer_update(o, g, lr);
    kl_composite_end(0, NULL);
    return s;
}

kl_status kl_optimizer_step(kl_optimizer *o, kl_tensor loss, double lr)
{
    return optimizer_step(o, NULL, loss, lr);
}

kl_status kl_optimizer_step_gradients(kl_optimizer *o, const kl_tensor *gradients, double lr)
{
    if (o && o->n && !gradients)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "optimizer_step_gradients: gradients is NULL");
    return optimizer_step(o, o && !o->n ? o->list : gradients, kl_none, lr);
}

/* ---- states ---- */

int64_t kl_optimizer_states(const kl_optimizer *o)
{
    int n = 0;
    for (int i = 0; o && i < o->n; i++)
        for (int k = 0; k < STATES; k++)
            n += o->of[i].state[k].id != 0;
    return n;
}

kl_status kl_optimizer_state(kl_optimizer *o, int64_t i, const char **name, kl_tensor *tensor)
{
    for (int p = 0, at = 0; o && name && tensor && i >= 0 && p < o->n; p++) {
        const char *const *state = o->rule->states(o, o->of[p].param);
        for (int k = 0; state[k]; k++) {
            if (at++ != i)
                continue;
            kl_param is = optimizer_param(o, p);
            if (is.name)
                kl_format(o->text, sizeof o->text, "%s.%s", is.name, state[k]);
            else
                kl_format(o->text, sizeof o->text, "%d.%s", p, state[k]);
            *name = o->text;
            *tensor = o->of[p].state[k];
            return KL_OK;
        }
    }
    return kl_failf(NULL, KL_ERR_ARGUMENT, "optimizer_state: %s: number %" PRId64 " of %" PRId64,
                    !o ? "no optimizer" : !name || !tensor ? "a result is NULL" : "no state", i,
                    kl_optimizer_states(o));
}
