/* Optimizers.  They record by the public calls alone, as a user's own could. */
#include "frontend/frontend.h"
#include <kiln/train/optim.h>
#include <math.h>

struct tracked {
    kl_tensor param;
    kl_tensor m; /* Adam's first moment, SGD's velocity; kl_none without momentum */
    kl_tensor v; /* Adam's second moment; kl_none in SGD */
};

enum number { RATE, ROOT, DECAY, NUMBERS }; /* what changes from step to step */
_Static_assert(NUMBERS == KL_OPTIMIZER_SLOTS, "the public header says how many");

struct kl_optimizer {
    bool is_adam;
    char name[NUMBERS][24]; /* of the numbers, this optimizer's own */
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
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (param[i].id == param[k].id && param[i].id) {
                fail(thread_self(), site, KL_ERR_ARGUMENT, "%s: parameters %d and %d are the same tensor", op, k, i);
                return NULL;
            }
    kl_optimizer *o = mem_alloc(sizeof *o + (size_t)n * sizeof o->of[0]);
    if (!o) {
        fail(thread_self(), site, KL_ERR_MEMORY, "%s: out of memory", op);
        return NULL;
    }
    static atomic_uint made;
    static const char *const number[NUMBERS] = {[RATE] = "rate", [ROOT] = "root", [DECAY] = "decay"};
    unsigned id = atomic_fetch_add(&made, 1);
    for (int i = 0; i < NUMBERS; i++)
        snprintf(o->name[i], sizeof o->name[i], "%s.%u.%s", op, id, number[i]);
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

/* beta a + (1 - beta) b, as a step from the one that weighs more to the other: one multiplication, and where they are
 * equal the result is, too.  As a sum of two products it would have weights that are rounded each by itself: 0.999f and
 * 0.001f sum to 1 + 1.3e-8, and an average settles 1.3e-5 too high. */
static kl_tensor blend(const kl_site *site, kl_tensor a, double beta, kl_tensor b)
{
    kl_tensor near = beta < 0.5 ? b : a, far = beta < 0.5 ? a : b;
    double step = beta < 0.5 ? beta : 1 - beta;
    return kl_add_at(site, near, kl_mul_scalar_at(site, kl_sub_at(site, far, near), step));
}

/* One of the numbers, under its name, as a scalar beside a. */
static kl_tensor number_like(const kl_site *site, const kl_optimizer *o, enum number which, kl_tensor a, double value)
{
    kl_tensor k = kl_scalar_at(site, kl_device_of(a), kl_dtype_of(a), value);
    kl_set_name_at(site, k, o->name[which]);
    return k;
}

static kl_tensor optim_scaled(const kl_site *site, const kl_optimizer *o, enum number which, kl_tensor a, double value)
{
    return kl_mul_at(site, a, number_like(site, o, which, a, value));
}

static kl_status sgd_step(const kl_site *site, const kl_optimizer *o, const struct tracked *t, kl_tensor g,
                          const double *x)
{
    const kl_sgd_options *s = &o->sgd;
    kl_tensor p = t->param, v = g;
    if (s->weight_decay != 0)
        v = kl_add_at(site, v, kl_mul_scalar_at(site, p, s->weight_decay));
    if (s->momentum != 0) {
        v = kl_add_at(site, kl_mul_scalar_at(site, t->m, s->momentum), v);
        kl_assign_at(site, t->m, v);
    }
    return kl_assign_at(site, p, kl_sub_at(site, p, optim_scaled(site, o, RATE, v, x[RATE])));
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
static void find_numbers(const kl_optimizer *o, int64_t step, double lr, double *x)
{
    const kl_adam_options *a = &o->adam;
    x[RATE] = o->is_adam ? lr / (1 - power(a->beta1, step)) : lr;
    x[ROOT] = o->is_adam ? 1 / sqrt(1 - power(a->beta2, step)) : 0;
    x[DECAY] = 1 - lr * a->weight_decay;
}

static kl_status adam_step(const kl_site *site, const kl_optimizer *o, const struct tracked *t, kl_tensor g,
                           const double *x)
{
    const kl_adam_options *a = &o->adam;
    kl_tensor p = t->param;
    kl_tensor m = blend(site, t->m, a->beta1, g);
    kl_tensor v = blend(site, t->v, a->beta2, kl_mul_at(site, g, g));
    kl_tensor root = kl_add_scalar_at(site, optim_scaled(site, o, ROOT, kl_sqrt_at(site, v), x[ROOT]), a->eps);
    /* The rate is divided, not m: where gradients stay 0, m sinks to a subnormal number, which is slow to divide. */
    kl_tensor move = kl_mul_at(site, kl_div_at(site, number_like(site, o, RATE, p, x[RATE]), root), m);
    if (a->weight_decay != 0)
        p = optim_scaled(site, o, DECAY, p, x[DECAY]);
    kl_assign_at(site, t->m, m);
    kl_assign_at(site, t->v, v);
    return kl_assign_at(site, t->param, kl_sub_at(site, p, move));
}

/* A loss that depends on no parameter is an error, looked for where the step is recorded, not where it is replayed. */
static kl_status check_loss(const kl_site *site, const kl_optimizer *o, kl_tensor loss)
{
    struct thread *t = thread_self();
    struct trace *tr = t->trace;
    const struct entry *x = entry_peek(loss);
    if (tr->err.code || tr->replaying || !o->n || !x || x->kind != KIND_TEMP || x->trace != tr)
        return KL_OK;
    ref *to = mem_alloc((size_t)o->n * sizeof *to);
    bool *reached = mem_alloc((size_t)o->n), any = false, plain = true;
    if (!to || !reached) {
        mem_free(to);
        mem_free(reached);
        return fail(t, site, KL_ERR_MEMORY, "optimizer_step: out of memory");
    }
    for (int i = 0; i < o->n; i++) {
        const struct binding *b = trace_binding(tr, o->of[i].param);
        const struct entry *p = entry_peek(o->of[i].param);
        to[i] = b ? b->node : p && p->kind == KIND_TEMP && p->trace == tr ? p->node : NIL;
        plain &= p && p->kind != KIND_WRAPPER && !(b && b->assigned); /* kl_grad has a word of its own for the second */
    }
    bool ok = gradient_reaches_each(tr->r.g, x->node, to, (uint32_t)o->n, reached);
    for (int i = 0; i < o->n; i++)
        any |= reached[i];
    mem_free(to);
    mem_free(reached);
    if (!ok || any || !plain)
        return KL_OK;
    return fail(t, site, KL_ERR_GRAD, "optimizer_step: the loss depends on none of the optimizer's %d parameters",
                o->n);
}

kl_status kl_optimizer_step_at(const kl_site *site, kl_optimizer *o, kl_tensor loss, double lr)
{
    if (!o)
        return fail(thread_self(), site, KL_ERR_ARGUMENT, "optimizer_step: no optimizer");
    if (!kl_tracing())
        return fail(thread_self(), site, KL_ERR_TRACE, "optimizer_step: no trace is open");
    kl_status checked = check_loss(site, o, loss);
    if (checked)
        return checked;
    double x[NUMBERS];
    find_numbers(o, o->steps + 1, lr, x);
    for (int i = 0; i < o->n; i++) {
        const struct tracked *t = &o->of[i];
        kl_tensor g = kl_grad_at(site, loss, t->param);
        kl_status s = o->is_adam ? adam_step(site, o, t, g, x) : sgd_step(site, o, t, g, x);
        if (s != KL_OK)
            return s;
    }
    o->steps++;
    return KL_OK;
}

int kl_optimizer_slots(kl_optimizer *o, double lr, kl_slot *slots)
{
    if (!o || !slots) {
        fail(thread_self(), NULL, KL_ERR_ARGUMENT, "optimizer_slots: %s", o ? "slots is NULL" : "no optimizer");
        return 0;
    }
    double x[NUMBERS];
    bool used[NUMBERS] = {[RATE] = true, [ROOT] = o->is_adam, [DECAY] = o->is_adam && o->adam.weight_decay != 0};
    int n = 0;
    find_numbers(o, ++o->steps, lr, x);
    for (int i = 0; i < NUMBERS; i++)
        if (used[i])
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
        return fail(thread_self(), NULL, KL_ERR_ARGUMENT, "optimizer_set_steps: %s",
                    o ? "a negative number" : "no optimizer");
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
