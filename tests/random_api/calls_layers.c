/* Layers of models: normalisation, attention, convolution, pooling, losses, recurrent cells. */
#include "tests/random_api/calls.h"

kl_tensor make_softmax(struct recording *c, int a)
{
    int axis = pick_axis(c, a);
    return chance(c, 2) ? kl_softmax(value_of(c, a), axis) : kl_log_softmax(value_of(c, a), axis);
}

kl_tensor make_layer_norm(struct recording *c, int a)
{
    int n = 1 + below(c, c->p->type[a].rank);
    if (chance(c, 2))
        return kl_layer_norm(value_of(c, a), n, kl_none, kl_none, 1e-5);
    return kl_rms_norm(value_of(c, a), n, kl_none, 1e-5);
}

kl_tensor make_group_norm(struct recording *c, int a)
{
    return kl_group_norm(value_of(c, a), 1 + below(c, 2), kl_none, kl_none, 1e-3);
}

kl_tensor make_batch_norm(struct recording *c, int a)
{
    return kl_batch_norm(value_of(c, a), kl_none, kl_none, kl_none, kl_none, true, 0.1, 1e-3);
}

kl_tensor make_attention(struct recording *c, int a)
{
    kl_tensor q = value_of(c, a), k = pick_like(c, a), v = pick_like(c, a), mask = kl_none;
    if (chance(c, 2)) {
        kl_tensor sums = kl_sum(kl_cast(q, KL_F32), 1, (int[]){-1}, true);
        mask = kl_lt(sums, kl_const(c->device, KL_F32, 1));
    }
    return kl_attention(q, k, v, mask, chance(c, 2));
}

kl_tensor make_attention_with(struct recording *c, int a)
{
    kl_tensor k = pick_like(c, a), v = pick_like(c, a);
    kl_attention_options o = {.causal = chance(c, 2), .scale = 0.5};
    if (chance(c, 2)) {
        o.past_k = pick_like(c, a);
        o.past_v = pick_like(c, a);
    }
    return kl_attention_with(value_of(c, a), k, v, &o, NULL, NULL);
}

kl_tensor make_conv(struct recording *c, int a)
{
    const struct type *t = &c->p->type[a];
    int axes = t->rank - 2;
    bool transposed = chance(c, 3);
    int64_t stride[3], low[3], high[3], dilation[3], dims[KL_MAX_RANK];
    fill_below(c, stride, 3, 1, 2);
    fill_below(c, low, 3, chance(c, 6) ? -1 : 0, 2);
    fill_below(c, high, 3, 0, 2);
    fill_below(c, dilation, 3, 1, 2);
    fill_below(c, dims, axes + 2, 1, 3); /* of the weights: the channels are a's */
    dims[transposed ? 0 : 1] = t->dims[1];
    kl_tensor w = kl_rand(c->device, KL_F32, axes + 2, dims, rng_next(&c->r));
    w = kl_cast(kl_sub_scalar(kl_mul_scalar(w, 8), 4), t->dtype);
    if (transposed)
        return kl_conv_transpose(value_of(c, a), w, kl_none, stride, NULL, NULL, dilation, 1);
    return kl_conv(value_of(c, a), w, kl_none, stride, low, high, dilation, 1);
}

kl_tensor make_pool(struct recording *c, int a)
{
    static kl_tensor (*const functions[])(kl_tensor, int, const int64_t *, const int64_t *, const int64_t *,
                                          const int64_t *, const int64_t *) = {kl_sum_pool, kl_avg_pool, kl_max_pool,
                                                                               kl_min_pool};
    int rank = c->p->type[a].rank, n = 1 + below(c, rank < 3 ? rank : 3);
    int64_t window[3], stride[3], low[3], high[3], dilation[3];
    fill_below(c, window, 3, 1, 3);
    fill_below(c, stride, 3, 1, 3);
    for (int i = 0; i < 3; i++) {
        low[i] = below(c, (int)window[i]);
        high[i] = below(c, (int)window[i]);
        dilation[i] = chance(c, 4) ? 2 : 1;
    }
    if (chance(c, 5))
        return kl_max_pool_indices(value_of(c, a), n, window, stride, low, high, dilation, &c->second);
    return ONE_OF(c, functions)(value_of(c, a), n, window, stride, low, high, dilation);
}

kl_tensor make_adaptive_pool(struct recording *c, int a)
{
    int64_t sizes[2];
    int n = 1 + below(c, 2);
    fill_below(c, sizes, 2, 1, 3);
    if (chance(c, 2))
        return kl_adaptive_avg_pool(value_of(c, a), n, sizes);
    return kl_adaptive_max_pool(value_of(c, a), n, sizes);
}

kl_tensor make_one_hot(struct recording *c, int a)
{
    int classes = below(c, 5);
    return kl_one_hot(value_of(c, a), classes, pick_dtype(c));
}

kl_tensor make_cross_entropy(struct recording *c, int a)
{
    kl_tensor labels = kl_argmax(value_of(c, a), 1);
    if (chance(c, 2))
        labels = kl_mul_scalar(labels, 2); /* some are no classes */
    if (chance(c, 2))
        return kl_cross_entropy(value_of(c, a), labels);
    kl_class_loss_options o = {.smoothing = 0.1, .ignores = chance(c, 2), .ignored = 0};
    o.reduction = (kl_loss_reduction)below(c, 3);
    return kl_cross_entropy_with(value_of(c, a), labels, &o);
}

kl_tensor make_loss(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a), y = pick_like(c, a);
    switch (below(c, 8)) {
    case 0: return kl_mse_loss(x, y);
    case 1: return kl_l1_loss(x, y);
    case 2: return kl_huber_loss(x, y, 0.5);
    case 3: return kl_smooth_l1_loss(x, y, 0.5);
    case 4: return kl_binary_cross_entropy_with_logits(x, kl_sigmoid(y));
    case 5: return kl_binary_cross_entropy(kl_sigmoid(x), kl_sigmoid(y));
    case 6: return kl_hinge_loss(x, y);
    default: return kl_divergence(kl_log_softmax(x, -1), kl_softmax(y, -1));
    }
}

kl_tensor make_recurrent(struct recording *c, int a)
{
    static const int gates[] = {1, 4, 3}; /* of kl_cell_kind's plain cell, LSTM and GRU */
    int kind = below(c, 3);
    int64_t hidden = 1 + below(c, 3), rows = gates[kind] * hidden;
    kl_tensor out[3];
    kl_tensor w = kl_rand(c->device, KL_F32, 2, (int64_t[]){rows, c->p->type[a].dims[2]}, rng_next(&c->r));
    kl_tensor r = kl_rand(c->device, KL_F32, 2, (int64_t[]){rows, hidden}, rng_next(&c->r));
    kl_recurrent_options o = {.reverse = chance(c, 2)};
    kl_recurrent((kl_cell_kind)kind, value_of(c, a), w, r, &o, out);
    c->second = out[1];
    return out[0];
}
