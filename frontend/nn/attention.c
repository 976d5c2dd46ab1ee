/* Attention. */
#include "frontend/frontend.h"
#include <math.h>

/* The views of q, k and v, checked; false: reported. */
static bool check_attention(struct thread *t, const kl_site *site, kl_tensor q, kl_tensor k, kl_tensor v,
                            kl_tensor mask, struct view *vq, struct view *vk)
{
    struct view vv, vm;
    char a[SHAPE_TEXT], b[SHAPE_TEXT], c[SHAPE_TEXT];
    if (!describe(t, site, "attention", "q", q, vq) || !describe(t, site, "attention", "k", k, vk) ||
        !describe(t, site, "attention", "v", v, &vv) ||
        (mask.id && !describe(t, site, "attention", "the mask", mask, &vm)))
        return false;
    const struct shape *sq = &vq->shape, *sk = &vk->shape, *sv = &vv.shape;
    if (!dtype_is_float(vq->dtype) || vk->dtype != vq->dtype || vv.dtype != vq->dtype)
        fail(t, site, KL_ERR_TYPE, "attention: needs one floating dtype, got %s, %s and %s", dtype_name(vq->dtype),
             dtype_name(vk->dtype), dtype_name(vv.dtype));
    else if (sq->rank < 2 || sk->rank < 2 || sv->rank < 2 || sq->dim[sq->rank - 1] != sk->dim[sk->rank - 1] ||
             sk->dim[sk->rank - 2] != sv->dim[sv->rank - 2])
        fail(t, site, KL_ERR_SHAPE, "attention: needs [..., L, D], [..., M, D] and [..., M, E], got %s, %s and %s",
             shape_text(sq, a, sizeof a), shape_text(sk, b, sizeof b), shape_text(sv, c, sizeof c));
    else if (mask.id && vm.dtype != KL_BOOL)
        fail(t, site, KL_ERR_TYPE, "attention: the mask must be bool, got %s", dtype_name(vm.dtype));
    else
        return true;
    return false;
}

/* [L, M] column <= row + M - L, and the mask if there is one. */
static kl_tensor seen(const kl_site *site, const struct view *q, kl_tensor mask, int64_t rows, int64_t columns,
                      bool causal)
{
    if (!causal)
        return mask;
    const int64_t dims[] = {rows, columns};
    const struct view index = {.dtype = KL_I64, .device = q->device};
    kl_tensor last = kl_iota_at(site, q->device, KL_I64, 2, dims, 0);
    last = kl_add_at(site, last, const_like(site, &index, (double)(columns - rows)));
    kl_tensor past = kl_le_at(site, kl_iota_at(site, q->device, KL_I64, 2, dims, 1), last);
    return mask.id ? kl_and_at(site, mask, past) : past;
}

/* Softmax along the last axis of what `allowed` lets through.  What it does not is kept out of every step, so that no
 * infinity of it meets a 0, forward or back. */
static kl_tensor masked_softmax(const kl_site *site, const struct view *v, kl_tensor s, kl_tensor allowed)
{
    const int last = -1;
    kl_tensor zero = const_like(site, v, 0);
    kl_tensor kept = kl_where_at(site, allowed, s, const_like(site, v, -INFINITY));
    kl_tensor most = kl_detach_at(site, kl_reduce_max_at(site, kept, 1, &last, true));
    kl_tensor z = kl_where_at(site, allowed, kl_sub_at(site, s, most), zero);
    kl_tensor e = kl_where_at(site, allowed, kl_exp_at(site, z), zero);
    kl_tensor sum = kl_sum_at(site, e, 1, &last, true);
    return shares(site, v, e, kl_where_at(site, kl_eq_at(site, sum, zero), const_like(site, v, 1), sum));
}

kl_tensor kl_attention_at(const kl_site *site, kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask, bool causal)
{
    struct thread *t = thread_self();
    struct view vq, vk;
    if (!t || !check_attention(t, site, q, k, v, mask, &vq, &vk) || !(t = checked_begin(site, "attention")))
        return op_failed();
    int64_t rows = vq.shape.dim[vq.shape.rank - 2], depth = vq.shape.dim[vq.shape.rank - 1];
    int64_t columns = vk.shape.dim[vk.shape.rank - 2];
    kl_tensor scale = const_like(site, &vq, depth ? 1 / sqrt((double)depth) : 1);
    kl_tensor s = kl_matmul_at(site, kl_mul_at(site, q, scale), kl_transpose_at(site, k, -1, -2));
    kl_tensor allowed = seen(site, &vq, mask, rows, columns, causal);
    kl_tensor p = allowed.id ? masked_softmax(site, &vq, s, allowed) : kl_softmax_at(site, s, -1);
    return compose_end(t, kl_matmul_at(site, p, v));
}
