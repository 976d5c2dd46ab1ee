/* Composites of f16 and bf16 compute in f32 and round once, at their end, as an op does (types.h).
 *
 * A composite widens its operands with `widen`; compose_end then rounds its result to the dtype of the first of them.
 * Under autocast it does not: what autocast computes in f32 stays f32. */
#include "frontend/frontend.h"

kl_tensor widen(struct thread *t, kl_tensor h)
{
    unsigned dtype = entry_dtype(entry_peek(h));
    if (dtype == KL_DTYPE_COUNT || !dtype_is_half(dtype))
        return h;
    if (!autocast_is_on(t) && t->depth && t->narrow[t->depth - 1].dtype == KL_DTYPE_COUNT)
        t->narrow[t->depth - 1] = (struct narrow){dtype};
    return kl_cast(h, KL_F32);
}

kl_tensor widen_view(struct thread *t, kl_tensor h, struct view *v)
{
    v->dtype = dtype_compute(v->dtype);
    return widen(t, h);
}

kl_tensor widen_by_policy(struct thread *t, kl_tensor h, struct view *v)
{
    return autocast_is_on(t) ? h : widen_view(t, h, v);
}

kl_tensor narrowed(struct thread *t, kl_tensor result)
{
    struct narrow n = t->narrow[t->depth - 1];
    return n.dtype != KL_DTYPE_COUNT && entry_dtype(entry_peek(result)) == KL_F32
               ? kl_cast(result, (kl_dtype)n.dtype) : result;
}
