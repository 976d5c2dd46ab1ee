/* Attention with a float mask, a scale, grouped heads and a cache: op attention if possible, else its decomposition. */
#include "frontend/nn/compose.h"

/* softmax(q k^T scale + mask) v; a row without a finite score gives zeros. */
static kl_tensor biased_attention(struct thread *t, kl_tensor q, kl_tensor k, kl_tensor v,
                                  kl_tensor mask, double scale, bool causal)
{
    q = widen(t, q), k = widen(t, k), v = widen(t, v), mask = widen(t, mask);
    kl_tensor s = kl_mul(kl_matmul(q, kl_transpose(k, -1, -2)), same_number(q, scale));
    s = kl_add(s, mask);
    kl_tensor low = same_number(s, -INFINITY), zero = same_number(s, 0), one = same_number(s, 1);
    int64_t dims[KL_MAX_RANK] = {0};
    int rank = kl_shape(s, dims), last = -1;
    if (causal && rank >= 2) {
        int64_t L = dims[rank - 2], M = dims[rank - 1];
        kl_tensor row = kl_reshape(kl_arange(kl_device_of(s), KL_I64, L), 2, (int64_t[]){L, 1});
        row = kl_add(row, number(s, KL_I64, (double)(M - L)));
        s = kl_where(kl_le(kl_arange(kl_device_of(s), KL_I64, M), row), s, low);
    }
    if (rank >= 1 && dims[rank - 1] == 0)
        return kl_matmul(s, v); /* of no keys: zeros */
    kl_tensor max = kl_detach(kl_max(s, 1, &last, true));
    kl_tensor e = kl_exp(kl_sub(s, kl_where(kl_eq(max, low), zero, max))), sum = kl_sum(e, 1, &last, true);
    return kl_div(kl_matmul(e, v), kl_where(kl_eq(sum, zero), one, sum));
}

/* [..., heads, a, b] as [..., heads / each, each, a, b]; each 0: one more axis of 1 behind the heads. */
static kl_tensor attention_group_heads(kl_tensor a, const struct shape *s, int64_t each)
{
    struct shape g = *s;
    uint32_t at = s->rank - 3;
    memmove(g.dim + at + 2, g.dim + at + 1, 2 * sizeof *g.dim);
    g.rank++;
    g.dim[at + 1] = each ? each : 1;
    g.dim[at] = each ? s->dim[at] / each : s->dim[at];
    return reshape_to("attention_with", a, &g);
}

kl_tensor kl_attention_with(kl_tensor q, kl_tensor k, kl_tensor v,
                            const kl_attention_options *options, kl_tensor *keys, kl_tensor *values)
{
    static const char op[] = "attention_with";
    struct thread *t = thread_self();
    struct view vq, vk, vv, vm = {0};
    kl_attention_options o = {.scale = 0};
    char tq[SHAPE_TEXT], tk[SHAPE_TEXT], tv[SHAPE_TEXT];
    if (options)
        o = *options;
    if (keys)
        *keys = kl_none;
    if (values)
        *values = kl_none;
    if (!t || !describe(t, op, "q", q, &vq) || !describe(t, op, "k", k, &vk) ||
        !describe(t, op, "v", v, &vv) || (o.mask.id && !describe(t, op, "the mask", o.mask, &vm)))
        return op_failed();
    if (vq.shape.rank < 2 || vk.shape.rank < 2 || vv.shape.rank < 2)
        return refuse(t, KL_ERR_SHAPE, "%s: needs two axes at least, got %s, %s and %s", op,
                      shape_text(&vq.shape, tq, sizeof tq), shape_text(&vk.shape, tk, sizeof tk),
                      shape_text(&vv.shape, tv, sizeof tv));
    bool floats = o.mask.id && dtype_is_float(vm.dtype);
    if (!dtype_is_float(vq.dtype) || vk.dtype != vq.dtype || vv.dtype != vq.dtype || (floats && vm.dtype != vq.dtype))
        return refuse(t, KL_ERR_TYPE, "%s: needs one floating dtype, got %s, %s and %s%s%s", op,
                      dtype_name(vq.dtype), dtype_name(vk.dtype), dtype_name(vv.dtype), floats ? " and a mask of " : "",
                      floats ? dtype_name(vm.dtype) : "");
    uint32_t rq = vq.shape.rank, rk = vk.shape.rank;
    int64_t H = rq > 2 ? vq.shape.dim[rq - 3] : 1, G = rk > 2 ? vk.shape.dim[rk - 3] : 1;
    bool groups = rq > 2 && rk == vv.shape.rank && rk > 2 && G > 1 && H != G && H > 1;
    if (groups && (H % G || rq == KL_MAX_RANK || vv.shape.dim[rk - 3] != G))
        return refuse(t, KL_ERR_SHAPE, "%s: %" PRId64 " heads of q %s and those of k %s and v %s", op, H,
                      shape_text(&vq.shape, tq, sizeof tq), shape_text(&vk.shape, tk, sizeof tk),
                      shape_text(&vv.shape, tv, sizeof tv));
    if ((groups && (!axes_are_numbers(t, op, &vq.shape, rq - 3, 1) ||
                    !axes_are_numbers(t, op, &vk.shape, rk - 3, 1))) ||
        (o.scale == 0 && !axes_are_numbers(t, op, &vq.shape, rq - 1, 1)) || !(t = checked_begin(op)))
        return op_failed();
    k = o.past_k.id ? kl_concat(2, (kl_tensor[]){o.past_k, k}, -2) : reshape_to(op, k, &vk.shape);
    v = o.past_v.id ? kl_concat(2, (kl_tensor[]){o.past_v, v}, -2) : reshape_to(op, v, &vv.shape);
    kl_tensor results[3] = {kl_none, k, v}, mask = o.mask;
    double scale = o.scale;
    if (scale == 0)
        scale = vq.shape.dim[rq - 1] ? 1 / sqrt((double)vq.shape.dim[rq - 1]) : 1;
    if (!describe(t, op, "k", k, &vk) || !describe(t, op, "v", v, &vv)) {
        results[0] = poison(t);
    } else {
        if (groups) {
            q = attention_group_heads(q, &vq.shape, H / G);
            k = attention_group_heads(k, &vk.shape, 0);
            v = attention_group_heads(v, &vv.shape, 0);
            if (mask.id && vm.shape.rank > 2) /* one for each head, or for all */
                mask = attention_group_heads(mask, &vm.shape, vm.shape.dim[vm.shape.rank - 3] == H ? H / G : 0);
        }
        kl_tensor y = floats ? biased_attention(t, q, k, v, mask, scale, o.causal)
                             : attention_scaled(q, k, v, mask, o.causal, scale);
        struct shape out = vq.shape;
        out.dim[rq - 1] = vv.shape.dim[vv.shape.rank - 1];
        results[0] = narrowed(t, groups ? reshape_to(op, y, &out) : y);
    }
    uint32_t n = 1;
    if (keys)
        *keys = results[n++] = results[1];
    if (values)
        *values = results[n++] = keys ? results[2] : v;
    compose_end_all(t, results, n);
    return results[0];
}
