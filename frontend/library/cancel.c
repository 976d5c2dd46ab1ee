/* Cancelling: tokens that any thread or signal handler may set, and deadlines of threads. */
#include "frontend/frontend.h"
#include "runtime/measure/measure.h"
#include <math.h>
#include <stdatomic.h>

struct kl_cancel_token {
    atomic_bool cancelled;
    atomic_uint refs;            /* the caller's and those of threads that it is set on */
};

static void token_drop(kl_cancel_token *token)
{
    if (token && atomic_fetch_sub(&token->refs, 1) == 1)
        mem_free(token);
}

kl_cancel_token *kl_cancel_token_new(void)
{
    struct thread *t = thread_self();
    kl_cancel_token *token = t ? mem_alloc(sizeof *token) : NULL;
    if (token)
        atomic_init(&token->refs, 1);
    else if (t)
        report(t, KL_ERR_MEMORY, "cancel_token_new: out of memory");
    return token;
}

void kl_cancel_token_free(kl_cancel_token *token) { token_drop(token); }

/* Also called by signal handlers. */
void kl_cancel(kl_cancel_token *token)
{
    if (token)
        atomic_store_explicit(&token->cancelled, true, memory_order_relaxed);
}

void kl_cancel_token_reset(kl_cancel_token *token)
{
    if (token)
        atomic_store_explicit(&token->cancelled, false, memory_order_relaxed);
}

bool kl_is_cancelled(const kl_cancel_token *token)
{
    return token && atomic_load_explicit(&((kl_cancel_token *)token)->cancelled, memory_order_relaxed);
}

/* Called by all threads that work for the one that the limits are of. */
static bool limits_reached(void *ctx, struct err *e)
{
    const struct cancel_limits *c = ctx;
    if (kl_is_cancelled(c->token))
        return !err_set(e, KL_ERR_CANCELLED, "cancelled by kl_cancel");
    if (c->has_deadline && measure_now() >= c->deadline)
        return !err_set(e, KL_ERR_CANCELLED, "cancelled: the deadline of kl_set_deadline has passed");
    return false;
}

static void limits_changed(struct cancel_limits *c)
{
    c->asked = (struct cancellation){limits_reached, c};
    cancellation_here(c->token || c->has_deadline ? &c->asked : NULL);
}

kl_status kl_set_cancel_token(kl_cancel_token *token)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (token)
        atomic_fetch_add(&token->refs, 1);
    token_drop(t->cancel.token);
    t->cancel.token = token;
    limits_changed(&t->cancel);
    return KL_OK;
}

kl_status kl_set_deadline(double seconds)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (isnan(seconds))
        return report(t, KL_ERR_ARGUMENT, "set_deadline: seconds is NaN");
    t->cancel.has_deadline = seconds < (double)INFINITY;
    t->cancel.deadline = measure_now() + seconds;
    limits_changed(&t->cancel);
    return KL_OK;
}

void cancel_limits_end(struct thread *t)
{
    cancellation_here(NULL);
    token_drop(t->cancel.token);
    t->cancel.token = NULL;
}
