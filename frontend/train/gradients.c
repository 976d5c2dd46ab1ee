/* Gradient clipping, accumulation of gradients, averages of parameters, learning rates by step. */
#include "rules.h"

/* ---- clipping ---- */

/* comm: NULL, or the ranks have different gradients, and the norm is that of all of them. */
static kl_tensor clip_all(kl_comm *comm, int64_t n, kl_tensor *g, double max)
{
    kl_tensor sum = kl_none;
    for (int i = 0; i < n; i++)
        if (g[i].id) {
            kl_tensor wide = train_widen(g[i]), part = kl_sum_all(kl_mul(wide, wide));
            sum = sum.id ? kl_add(sum, part) : part;
        }
    if (comm)
        sum = kl_comm_all_reduce(comm, KL_REDUCE_SUM, sum);
    kl_tensor norm = kl_sqrt(sum), unit = kl_scalar(kl_device_of(sum), kl_dtype_of(sum), max);
    kl_tensor factor = kl_minimum_scalar(kl_div(unit, norm), 1); /* norm 0: most / 0 is infinite,
        so the
                                                                                  factor is 1 */
    kl_dtype first = KL_DTYPE_COUNT;
    for (int i = 0; i < n; i++)
        if (g[i].id) {
            kl_dtype d = kl_dtype_of(g[i]);
            first = first == KL_DTYPE_COUNT ? d : first;
            g[i] = train_cast(kl_mul(train_widen(g[i]), factor), d);
        }
    return train_cast(norm, first);
}

/* Returns false after it has reported an error. */
static bool clip_check(const char *op, int64_t n, const kl_tensor *g, double max, bool some)
{
    if (!train_count_valid(op, n))
        return false;
    for (int64_t i = 0; g && i < n; i++)
        some &= !g[i].id;
    if ((n && !g) || !(max > 0) || some)
        kl_failf(NULL, KL_ERR_ARGUMENT, "%s: %d gradients, at most %g", op, (int)n, max);
    return !((n && !g) || !(max > 0) || some);
}

kl_tensor train_clip_norm(const char *op, kl_comm *comm, int64_t n, kl_tensor *gradients, double max)
{
    if (!clip_check(op, n, gradients, max, true))
        return kl_poison();
    kl_tensor *result = kl_memory_alloc(((size_t)n + 1) * sizeof *result), norm;
    if (!result || kl_composite_begin(op) != KL_OK) {
        kl_memory_free(result);
        kl_failf(NULL, KL_ERR_MEMORY, "%s: out of memory", op);
        return kl_poison();
    }
    memcpy(result, gradients, (size_t)n * sizeof *result);
    norm = result[n] = clip_all(comm, n, result, max);
    memcpy(gradients, result, (size_t)n * sizeof *result);
    kl_composite_end(n + 1, result);
    kl_memory_free(result);
    return norm;
}

kl_tensor kl_clip_norm(int64_t n, kl_tensor *gradients, double max)
{
    return train_clip_norm("clip_norm", NULL, n, gradients, max);
}

kl_status kl_clip_value(int64_t n, kl_tensor *gradients, double max)
{
    if (!clip_check("clip_value", n, gradients, max, false))
        return KL_ERR_ARGUMENT;
    kl_status s = KL_OK;
    for (int64_t i = 0; i < n && s == KL_OK; i++)
        if (gradients[i].id)
            s = kl_check(gradients[i] = kl_clamp(gradients[i], -max, max));
    return s;
}

/* ---- states beside n tensors ---- */

struct kl_accumulator {
    int64_t added;
    int n;
    struct { kl_tensor param, state; } of[];
};

struct kl_ema {
    double decay;
    struct kl_accumulator *held;
};

static kl_accumulator *states_new(const char *op, const kl_tensor *param, int64_t n)
{
    if (!train_check_params(op, param, n))
        return NULL;
    kl_accumulator *a = kl_memory_alloc(sizeof *a + (size_t)n * sizeof a->of[0]);
    if (!a)
        kl_failf(NULL, KL_ERR_MEMORY, "%s: out of memory", op);
    for (int i = 0; a && i < n; i++, a->n++) {
        int64_t dims[KL_MAX_RANK];
        int rank = kl_shape(param[i], dims);
        a->of[i].param = param[i];
        a->of[i].state = train_state(param[i], rank, dims, op);
        if (kl_check(a->of[i].state) != KL_OK) {
            a->n++;
            kl_accumulator_free(a);
            return NULL;
        }
    }
    return a;
}

/* Returns false after it has reported an error. */
static bool states_ready(const char *op, bool there)
{
    if (!there)
        kl_failf(NULL, KL_ERR_ARGUMENT, "%s: an argument is NULL", op);
    else if (!kl_tracing())
        kl_failf(NULL, KL_ERR_TRACE, "%s: no trace is open", op);
    return there && kl_tracing();
}

/* ---- accumulation ---- */

kl_accumulator *kl_accumulator_new(int64_t n, const kl_tensor *param)
{
    return states_new("accumulator", param, n);
}

kl_status kl_accumulator_add(kl_accumulator *a, const kl_tensor *gradients)
{
    if (!states_ready("accumulator_add", a && gradients))
        return kl_last_error_code();
    for (int i = 0; i < a->n; i++) {
        kl_tensor state = a->of[i].state;
        kl_status s = gradients[i].id
            ? kl_assign(state, kl_add(state, train_widen(gradients[i]))) : KL_OK;
        if (s != KL_OK)
            return s;
    }
    a->added++;
    return KL_OK;
}

kl_status kl_accumulator_take(kl_accumulator *a, kl_tensor *gradients)
{
    if (!states_ready("accumulator_take", a && gradients))
        return kl_last_error_code();
    double part = 1.0 / (double)(a->added + 1);
    for (int i = 0; i < a->n; i++) {
        kl_tensor state = a->of[i].state;
        if (!gradients[i].id)
            continue;
        kl_tensor sum = kl_add(state, train_widen(gradients[i]));
        gradients[i] = train_cast(kl_mul_scalar(sum, part), kl_dtype_of(gradients[i]));
        int64_t dims[KL_MAX_RANK];
        int rank = kl_shape(state, dims);
        kl_status s = kl_assign(state, kl_zeros(kl_device_of(state), kl_dtype_of(state), rank, dims));
        if (s != KL_OK)
            return s;
    }
    a->added = 0;
    return KL_OK;
}

void kl_accumulator_free(kl_accumulator *a)
{
    for (int i = 0; a && i < a->n; i++)
        train_release(a->of[i].state);
    kl_memory_free(a);
}

/* ---- averages ---- */

kl_ema *kl_ema_new(int64_t n, const kl_tensor *param, double decay)
{
    if (!(decay >= 0 && decay <= 1)) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "ema_new: decay %g is outside of 0..1", decay);
        return NULL;
    }
    kl_accumulator *held = states_new("average", param, n);
    kl_ema *e = held ? kl_memory_alloc(sizeof *e) : NULL;
    if (held && !e)
        kl_failf(NULL, KL_ERR_MEMORY, "ema_new: out of memory");
    kl_status s = e ? kl_composite_begin("ema_new") : KL_ERR_MEMORY;
    bool open = s == KL_OK;
    for (int i = 0; s == KL_OK && i < n; i++)
        s = kl_assign(held->of[i].state, train_widen(kl_detach(param[i])));
    if (open)
        kl_composite_end(0, NULL);
    if (s != KL_OK) {
        kl_accumulator_free(held);
        kl_memory_free(e);
        return NULL;
    }
    *e = (kl_ema){decay, held};
    return e;
}

kl_status kl_ema_update(kl_ema *e)
{
    if (!states_ready("ema_update", e))
        return kl_last_error_code();
    kl_status s = KL_OK;
    for (int i = 0; i < e->held->n && s == KL_OK; i++) {
        kl_tensor state = e->held->of[i].state, now = train_widen(kl_detach(e->held->of[i].param));
        s = kl_assign(state, rule_blend(NULL, state, e->decay, now));
    }
    return s;
}

kl_status kl_ema_swap(kl_ema *e)
{
    if (!states_ready("ema_swap", e))
        return kl_last_error_code();
    kl_status s = KL_OK;
    for (int i = 0; i < e->held->n && s == KL_OK; i++) {
        kl_tensor state = e->held->of[i].state, param = e->held->of[i].param;
        kl_tensor average = kl_detach(state), now = kl_detach(param);
        s = kl_assign(param, train_cast(average, kl_dtype_of(param)));
        if (s == KL_OK)
            s = kl_assign(state, train_widen(now));
    }
    return s;
}

kl_tensor kl_ema_average(const kl_ema *e, int64_t i)
{
    if (e && i >= 0 && i < e->held->n)
        return e->held->of[i].state;
    kl_failf(NULL, KL_ERR_ARGUMENT, "ema_average: %s %" PRId64, e ? "no tensor" : "no averages, number", i);
    return kl_none;
}

void kl_ema_free(kl_ema *e)
{
    if (e)
        kl_accumulator_free(e->held);
    kl_memory_free(e);
}

/* ---- learning rates by step ---- */

/* The fraction of the steps that are done, in 0..1. */
static double rate_share(int64_t step, int64_t steps)
{
    if (step >= steps)
        return 1;
    return step <= 0 ? 0 : (double)step / (double)steps;
}

double kl_rate_warmup(int64_t step, int64_t steps)
{
    return rate_share(step + 1, steps);
}

double kl_rate_linear(int64_t step, int64_t steps, double first, double last)
{
    double at = rate_share(step, steps);
    return at == 1 ? last : first + at * (last - first);
}

double kl_rate_cosine(int64_t step, int64_t steps, double first, double last)
{
    double at = rate_share(step, steps);
    return at == 1 ? last : last + (first - last) * 0.5 * (1 + cos(at * 3.14159265358979323846));
}

double kl_rate_steps(int64_t step, int64_t every, double first, double factor)
{
    for (int64_t n = every > 0 && step > 0 ? step / every : 0; n > 0; n >>= 1, factor *= factor)
        if (n & 1)
            first *= factor;
    return first;
}
