/* The gradients of the composites of nn.h, against central differences in double and at points where they are known. */
#include "tests/support/api_numbers.h"

static kl_tensor other(int from, int rank, const int64_t *dims)
{
    double v[MAX_COUNT];
    return noisy(from, rank, dims, v);
}
static kl_tensor unit(int rank, const int64_t *dims) { return kl_sigmoid(other(7, rank, dims)); }
static kl_tensor signs(void) { return f64(D(3, 5), (double[]){1, -1, 1, 1, -1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1}); }
static kl_tensor classes(void) { return i32(D(3), (int32_t[]){2, 0, 4}); }

static kl_tensor g_relu(kl_tensor x) { return kl_relu(x); }
static kl_tensor g_sigmoid(kl_tensor x) { return kl_sigmoid(x); }
static kl_tensor g_softplus(kl_tensor x) { return kl_softplus(x); }
static kl_tensor g_silu(kl_tensor x) { return kl_silu(x); }
static kl_tensor g_mish(kl_tensor x) { return kl_mish(x); }
static kl_tensor g_gelu(kl_tensor x) { return kl_gelu(x); }
static kl_tensor g_leaky(kl_tensor x) { return kl_leaky_relu(x, 0.1); }
static kl_tensor g_elu(kl_tensor x) { return kl_elu(x, 1.5); }
static kl_tensor g_clamp(kl_tensor x) { return kl_clamp(x, -0.5, 1); }
static kl_tensor g_softmax(kl_tensor x) { return kl_softmax(x, 0); }
static kl_tensor g_log_softmax(kl_tensor x) { return kl_log_softmax(x, -1); }
static kl_tensor g_logsumexp(kl_tensor x) { return kl_logsumexp(x, AXES(0, 2), false); }
static kl_tensor g_var(kl_tensor x) { return kl_var(x, AXES(1), false, 1); }
static kl_tensor g_std(kl_tensor x) { return kl_std(x, 0, NULL, true, 0); }
static kl_tensor g_norm(kl_tensor x) { return kl_norm(x, AXES(-1), false); }
static kl_tensor g_layer_norm(kl_tensor x) { return kl_layer_norm(x, 2, other(3, D(3, 2)), other(9, D(3, 2)), 1e-5); }
static kl_tensor g_layer_weight(kl_tensor w) { return kl_layer_norm(other(3, D(3, 5)), 1, w, w, 1e-5); }
static kl_tensor g_rms_norm(kl_tensor x) { return kl_rms_norm(x, 1, other(3, D(5)), 1e-6); }
static kl_tensor g_group_norm(kl_tensor x) { return kl_group_norm(x, 2, other(3, D(4)), other(9, D(4)), 1e-5); }
static kl_tensor g_batch_norm(kl_tensor x)
{
    kl_tensor w = other(3, D(3)), b = other(9, D(3));
    return kl_batch_norm(x, w, b, kl_none, kl_none, true, 0.1, 1e-5);
}
static kl_tensor g_batch_infer(kl_tensor x)
{
    return kl_batch_norm(x, kl_none, kl_none, other(3, D(3)), unit(D(3)), false, 0.1, 1e-5);
}
static kl_tensor g_dropout(kl_tensor x) { return kl_dropout(x, 0.4, 11, true); }
static kl_tensor g_query(kl_tensor x)
{
    return kl_attention(x, other(1, D(2, 4, 3)), other(2, D(2, 4, 2)), kl_none, true);
}
static kl_tensor g_key(kl_tensor x) { return kl_attention(other(1, D(2, 3, 3)), x, other(2, D(4, 2)), kl_none, false); }
static kl_tensor g_value(kl_tensor x) { return kl_attention(other(1, D(5, 3)), other(2, D(4, 3)), x, kl_none, true); }
static kl_tensor g_einsum(kl_tensor x)
{
    return kl_einsum("bij,bjk,k->ib", 3, (kl_tensor[]){x, other(1, D(2, 4, 5)), other(2, D(5))});
}
static kl_tensor g_trace(kl_tensor x) { return kl_einsum("iji->j", 1, &x); }
static kl_tensor g_cross_entropy(kl_tensor x) { return kl_cross_entropy(x, classes()); }
static kl_tensor g_nll(kl_tensor x) { return kl_nll_loss(x, classes()); }
static kl_tensor g_mse(kl_tensor x) { return kl_mse_loss(x, other(1, D(3, 5))); }
static kl_tensor g_l1(kl_tensor x) { return kl_l1_loss(other(1, D(3, 5)), x); }
static kl_tensor g_huber(kl_tensor x) { return kl_huber_loss(x, other(1, D(3, 5)), 0.7); }
static kl_tensor g_smooth(kl_tensor x) { return kl_smooth_l1_loss(x, other(1, D(3, 5)), 1.3); }
static kl_tensor g_bce(kl_tensor x) { return kl_binary_cross_entropy_with_logits(x, unit(D(3, 5))); }
static kl_tensor g_bce_target(kl_tensor y) { return kl_binary_cross_entropy_with_logits(other(1, D(3, 5)), y); }
static kl_tensor g_hinge(kl_tensor x) { return kl_hinge_loss(x, signs()); }
static kl_tensor g_divergence(kl_tensor x)
{
    return kl_divergence(kl_log_softmax(x, 1), kl_softmax(other(1, D(3, 5)), 1));
}
static kl_tensor g_divergence_p(kl_tensor x) { return kl_divergence(other(1, D(3, 5)), kl_softmax(x, 1)); }

static kl_tensor ids(void) { return i32(D(2, 3), (int32_t[]){2, 0, 2, 9, 1, -1}); }
static kl_tensor g_embedding(kl_tensor x) { return kl_embedding(x, ids()); }
static kl_tensor g_gather(kl_tensor x) { return kl_take(kl_exp(x), 1, ids()); }
static kl_tensor g_index_add(kl_tensor x) { return kl_index_add(other(1, D(3, 2)), 0, ids(), kl_mul(x, x)); }
static kl_tensor g_index_put(kl_tensor x)
{
    return kl_index_copy(kl_narrow(x, 0, 0, 3), 0, ids(), kl_reshape(x, D(2, 3, 2)));
}
static kl_tensor g_take(kl_tensor x) { return kl_take_along_axis(x, 1, ids()); }
static kl_tensor g_put(kl_tensor x) { return kl_put_along_axis(other(1, D(2, 4)), 1, ids(), x); }
static kl_tensor g_sort(kl_tensor x) { return kl_sort(kl_mul(x, x), 1, true); }
static kl_tensor g_topk(kl_tensor x) { return kl_topk(x, 2, 0, false, NULL); }

static void gradients(void)
{
    GRADIENT(g_sort, 3, 5);
    GRADIENT(g_topk, 5, 3);
    GRADIENT(g_embedding, 4, 3);
    GRADIENT(g_gather, 2, 4);
    GRADIENT(g_index_add, 2, 3, 2);
    GRADIENT(g_index_put, 6, 2);
    GRADIENT(g_take, 2, 4);
    GRADIENT(g_put, 2, 3);
    GRADIENT(g_relu, 17);
    GRADIENT(g_sigmoid, 17);
    GRADIENT(g_softplus, 17);
    GRADIENT(g_silu, 17);
    GRADIENT(g_mish, 17);
    GRADIENT(g_gelu, 17);
    GRADIENT(g_leaky, 17);
    GRADIENT(g_elu, 17);
    GRADIENT(g_clamp, 17);
    GRADIENT(g_softmax, 3, 5);
    GRADIENT(g_log_softmax, 3, 5);
    GRADIENT(g_logsumexp, 2, 3, 5);
    GRADIENT(g_var, 3, 7);
    GRADIENT(g_std, 3, 5);
    GRADIENT(g_norm, 3, 5);
    GRADIENT(g_layer_norm, 5, 3, 2);
    GRADIENT(g_layer_weight, 5);
    GRADIENT(g_rms_norm, 3, 5);
    GRADIENT(g_group_norm, 2, 4, 3);
    GRADIENT(g_batch_norm, 5, 3);
    GRADIENT(g_batch_infer, 2, 3, 3);
    GRADIENT(g_dropout, 17);
    GRADIENT(g_query, 2, 3, 3);
    GRADIENT(g_key, 4, 3);
    GRADIENT(g_value, 4, 3);
    GRADIENT(g_einsum, 2, 3, 4);
    GRADIENT(g_trace, 3, 2, 3);
    GRADIENT(g_cross_entropy, 3, 5);
    GRADIENT(g_nll, 3, 5);
    GRADIENT(g_mse, 3, 5);
    GRADIENT(g_l1, 3, 5);
    GRADIENT(g_huber, 3, 5);
    GRADIENT(g_smooth, 3, 5);
    GRADIENT(g_bce, 3, 5);
    GRADIENT(g_bce_target, 3, 5);
    GRADIENT(g_hinge, 3, 5);
    GRADIENT(g_divergence, 3, 5);
    GRADIENT(g_divergence_p, 3, 5);
}

/* Where the pieces of a function meet, and where one of them would be infinite. */
static void edges(void)
{
    kl_scope_begin();
    kl_tensor zero = kl_zeros(dev, KL_F64, D(3)), bounds = f64(D(4), (double[]){-0.5, 1, -0.6, 1.1});
    kl_tensor half = kl_full(dev, KL_F64, D(3), 0.25);
    kl_requires_grad(zero);
    kl_requires_grad(bounds);
    NEAR_LIST(kl_grad(kl_relu(zero), zero), 0, 0, 0, 0);
    NEAR_LIST(kl_grad(kl_softplus(zero), zero), 1e-15, 0.5, 0.5, 0.5);
    NEAR_LIST(kl_grad(kl_elu(zero, 1), zero), 1e-15, 1, 1, 1);
    NEAR_LIST(kl_grad(kl_binary_cross_entropy_with_logits(zero, half), zero), 1e-15, 0.25 / 3, 0.25 / 3, 0.25 / 3);
    NEAR_LIST(kl_grad(kl_norm(zero, 0, NULL, false), zero), 0, 0, 0, 0);
    NEAR_LIST(kl_grad(kl_std(zero, 0, NULL, false, 0), zero), 0, 0, 0, 0);
    NEAR_LIST(kl_grad(kl_clamp(bounds, -0.5, 1), bounds), 0, 1, 1, 0, 0);
    NEAR_LIST(kl_grad(kl_huber_loss(bounds, kl_zeros(dev, KL_F64, D(4)), 1), bounds), 1e-15, -0.125, 0.25, -0.15, 0.25);
    OK(kl_scope_end());
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    edges();
    gradients();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
