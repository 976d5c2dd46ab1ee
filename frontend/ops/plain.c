/* The ops as plain functions, for callers without call sites.  The elementwise ones are in ops.c. */
#include "frontend/frontend.h"

#define PLAIN(name, params, args) \
    kl_tensor kl_##name params { return kl_##name##_at args; }

PLAIN(input, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims, const void *data),
      (NULL, device, dtype, rank, dims, data))
PLAIN(wrap,
      (kl_device device, kl_dtype dtype, int rank, const int64_t *dims, void *data, void (*release)(void *ctx),
       void *ctx),
      (NULL, device, dtype, rank, dims, data, release, ctx))
PLAIN(zeros, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims), (NULL, device, dtype, rank, dims))
PLAIN(ones, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims), (NULL, device, dtype, rank, dims))
PLAIN(full, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims, double value),
      (NULL, device, dtype, rank, dims, value))
PLAIN(scalar, (kl_device device, kl_dtype dtype, double value), (NULL, device, dtype, value))
PLAIN(const, (kl_device device, kl_dtype dtype, double value), (NULL, device, dtype, value))
PLAIN(arange, (kl_device device, kl_dtype dtype, int64_t n), (NULL, device, dtype, n))
PLAIN(iota, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims, int axis),
      (NULL, device, dtype, rank, dims, axis))
PLAIN(random_bits, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed),
      (NULL, device, dtype, rank, dims, seed))
PLAIN(rand, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed),
      (NULL, device, dtype, rank, dims, seed))
PLAIN(randn, (kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed),
      (NULL, device, dtype, rank, dims, seed))
PLAIN(random_seed, (kl_device device, uint64_t seed), (NULL, device, seed))
PLAIN(random_split, (kl_tensor seed, int64_t n), (NULL, seed, n))
PLAIN(random_fold_in, (kl_tensor seed, kl_tensor data), (NULL, seed, data))
PLAIN(random_bits_seeded, (kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims),
      (NULL, seed, dtype, rank, dims))
PLAIN(rand_seeded, (kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims), (NULL, seed, dtype, rank, dims))
PLAIN(randn_seeded, (kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims), (NULL, seed, dtype, rank, dims))
PLAIN(categorical, (kl_tensor logits, int axis, kl_tensor seed), (NULL, logits, axis, seed))
PLAIN(powi, (kl_tensor a, int n), (NULL, a, n))
PLAIN(pow_scalar, (kl_tensor a, double exponent), (NULL, a, exponent))
PLAIN(lerp, (kl_tensor a, kl_tensor b, kl_tensor weight), (NULL, a, b, weight))
PLAIN(masked_fill, (kl_tensor a, kl_tensor mask, double value), (NULL, a, mask, value))
PLAIN(is_close, (kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan),
      (NULL, a, b, relative, absolute, equal_nan))
PLAIN(all_close, (kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan),
      (NULL, a, b, relative, absolute, equal_nan))
PLAIN(stack, (int n, const kl_tensor *parts, int axis), (NULL, n, parts, axis))
PLAIN(tile, (kl_tensor a, const int64_t *times), (NULL, a, times))
PLAIN(repeat, (kl_tensor a, int axis, int64_t times), (NULL, a, axis, times))
PLAIN(roll, (kl_tensor a, int axis, int64_t shift), (NULL, a, axis, shift))
PLAIN(triu, (kl_tensor a, int64_t diagonal), (NULL, a, diagonal))
PLAIN(tril, (kl_tensor a, int64_t diagonal), (NULL, a, diagonal))
PLAIN(eye, (kl_device device, kl_dtype dtype, int64_t rows, int64_t columns), (NULL, device, dtype, rows, columns))
PLAIN(linspace, (kl_device device, kl_dtype dtype, double start, double stop, int64_t n),
      (NULL, device, dtype, start, stop, n))
PLAIN(to, (kl_tensor a, kl_device device), (NULL, a, device))
PLAIN(cast, (kl_tensor a, kl_dtype dtype), (NULL, a, dtype))
PLAIN(quantize, (kl_tensor a, kl_tensor scale, kl_tensor zero_point, kl_dtype dtype, int axis),
      (NULL, a, scale, zero_point, dtype, axis))
PLAIN(dequantize, (kl_tensor q, kl_tensor scale, kl_tensor zero_point, int axis), (NULL, q, scale, zero_point, axis))
PLAIN(grad, (kl_tensor loss, kl_tensor wrt), (NULL, loss, wrt))
PLAIN(detach, (kl_tensor a), (NULL, a))
PLAIN(reshape, (kl_tensor a, int rank, const int64_t *dims), (NULL, a, rank, dims))
PLAIN(permute, (kl_tensor a, const int *axes), (NULL, a, axes))
PLAIN(transpose, (kl_tensor a, int axis0, int axis1), (NULL, a, axis0, axis1))
PLAIN(expand, (kl_tensor a, int rank, const int64_t *dims), (NULL, a, rank, dims))
PLAIN(unsqueeze, (kl_tensor a, int axis), (NULL, a, axis))
PLAIN(squeeze, (kl_tensor a, int axis), (NULL, a, axis))
PLAIN(slice, (kl_tensor a, const int64_t *start, const int64_t *stop, const int64_t *step),
      (NULL, a, start, stop, step))
PLAIN(narrow, (kl_tensor a, int axis, int64_t start, int64_t count), (NULL, a, axis, start, count))
PLAIN(window, (kl_tensor a, int axis, int64_t size, int64_t stride, int64_t dilation),
      (NULL, a, axis, size, stride, dilation))
PLAIN(flip, (kl_tensor a, int naxes, const int *axes), (NULL, a, naxes, axes))
PLAIN(pad, (kl_tensor a, const int64_t *low, const int64_t *high, double value), (NULL, a, low, high, value))
PLAIN(concat, (int n, const kl_tensor *parts, int axis), (NULL, n, parts, axis))
PLAIN(gather, (kl_tensor a, int axis, kl_tensor index), (NULL, a, axis, index))
PLAIN(index_add, (kl_tensor a, int axis, kl_tensor index, kl_tensor update),
      (NULL, a, axis, index, update))
PLAIN(index_max, (kl_tensor a, int axis, kl_tensor index, kl_tensor update),
      (NULL, a, axis, index, update))
PLAIN(index_min, (kl_tensor a, int axis, kl_tensor index, kl_tensor update),
      (NULL, a, axis, index, update))
PLAIN(index_put, (kl_tensor a, int axis, kl_tensor index, kl_tensor update),
      (NULL, a, axis, index, update))
PLAIN(add_along_axis, (kl_tensor a, int axis, kl_tensor index, kl_tensor update),
      (NULL, a, axis, index, update))
PLAIN(put_along_axis, (kl_tensor a, int axis, kl_tensor index, kl_tensor update),
      (NULL, a, axis, index, update))
PLAIN(take_along_axis, (kl_tensor a, int axis, kl_tensor index), (NULL, a, axis, index))
PLAIN(argsort, (kl_tensor a, int axis, bool descending), (NULL, a, axis, descending))
PLAIN(sort, (kl_tensor a, int axis, bool descending), (NULL, a, axis, descending))
PLAIN(topk, (kl_tensor a, int64_t k, int axis, bool largest, kl_tensor *places), (NULL, a, k, axis, largest, places))
PLAIN(dynamic_slice, (kl_tensor a, const kl_tensor *start, const int64_t *count), (NULL, a, start, count))
PLAIN(dynamic_update, (kl_tensor a, kl_tensor update, const kl_tensor *start), (NULL, a, update, start))
PLAIN(bitcast, (kl_tensor a, kl_dtype dtype), (NULL, a, dtype))
PLAIN(sum, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(reduce_max, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(reduce_min, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(reduce_prod, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(any, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(all, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(cumsum, (kl_tensor a, int axis, bool exclusive, bool reverse), (NULL, a, axis, exclusive, reverse))
PLAIN(cumprod, (kl_tensor a, int axis, bool exclusive, bool reverse), (NULL, a, axis, exclusive, reverse))
PLAIN(cummax, (kl_tensor a, int axis, bool reverse), (NULL, a, axis, reverse))
PLAIN(cummin, (kl_tensor a, int axis, bool reverse), (NULL, a, axis, reverse))
PLAIN(recurrence, (kl_tensor a, kl_tensor b, int axis, bool reverse), (NULL, a, b, axis, reverse))
PLAIN(logcumsumexp, (kl_tensor a, int axis), (NULL, a, axis))
PLAIN(mean, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(sum_all, (kl_tensor a), (NULL, a))
PLAIN(argmax, (kl_tensor a, int axis), (NULL, a, axis))
PLAIN(argmin, (kl_tensor a, int axis), (NULL, a, axis))
PLAIN(matmul, (kl_tensor a, kl_tensor b), (NULL, a, b))
PLAIN(dot_general,
      (kl_tensor a, kl_tensor b, int nbatch, const int *batch_a, const int *batch_b, int ncontract,
       const int *contract_a, const int *contract_b),
      (NULL, a, b, nbatch, batch_a, batch_b, ncontract, contract_a, contract_b))
PLAIN(square, (kl_tensor a), (NULL, a))

/* ---- nn.h ---- */

PLAIN(embedding, (kl_tensor table, kl_tensor ids), (NULL, table, ids))
PLAIN(relu, (kl_tensor a), (NULL, a))
PLAIN(sigmoid, (kl_tensor a), (NULL, a))
PLAIN(silu, (kl_tensor a), (NULL, a))
PLAIN(gelu, (kl_tensor a), (NULL, a))
PLAIN(softplus, (kl_tensor a), (NULL, a))
PLAIN(mish, (kl_tensor a), (NULL, a))
PLAIN(leaky_relu, (kl_tensor a, double slope), (NULL, a, slope))
PLAIN(elu, (kl_tensor a, double alpha), (NULL, a, alpha))
PLAIN(clamp, (kl_tensor a, double low, double high), (NULL, a, low, high))
PLAIN(dropout, (kl_tensor a, double p, uint64_t seed, bool training), (NULL, a, p, seed, training))
PLAIN(dropout_seeded, (kl_tensor a, double p, kl_tensor seed, bool training), (NULL, a, p, seed, training))
PLAIN(softmax, (kl_tensor a, int axis), (NULL, a, axis))
PLAIN(log_softmax, (kl_tensor a, int axis), (NULL, a, axis))
PLAIN(logsumexp, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(var, (kl_tensor a, int naxes, const int *axes, bool keepdims, int correction),
      (NULL, a, naxes, axes, keepdims, correction))
PLAIN(std, (kl_tensor a, int naxes, const int *axes, bool keepdims, int correction),
      (NULL, a, naxes, axes, keepdims, correction))
PLAIN(norm, (kl_tensor a, int naxes, const int *axes, bool keepdims), (NULL, a, naxes, axes, keepdims))
PLAIN(layer_norm, (kl_tensor x, int naxes, kl_tensor weight, kl_tensor bias, double eps),
      (NULL, x, naxes, weight, bias, eps))
PLAIN(rms_norm, (kl_tensor x, int naxes, kl_tensor weight, double eps), (NULL, x, naxes, weight, eps))
PLAIN(group_norm, (kl_tensor x, int groups, kl_tensor weight, kl_tensor bias, double eps),
      (NULL, x, groups, weight, bias, eps))
PLAIN(batch_norm,
      (kl_tensor x, kl_tensor weight, kl_tensor bias, kl_tensor mean, kl_tensor var, bool training, double momentum,
       double eps),
      (NULL, x, weight, bias, mean, var, training, momentum, eps))
PLAIN(linear, (kl_tensor x, kl_tensor w, kl_tensor b), (NULL, x, w, b))
PLAIN(einsum, (const char *subscripts, int n, const kl_tensor *operand), (NULL, subscripts, n, operand))
PLAIN(attention, (kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask, bool causal),
      (NULL, q, k, v, mask, causal))
PLAIN(conv,
      (kl_tensor x, kl_tensor w, kl_tensor b, const int64_t *stride, const int64_t *low, const int64_t *high,
       const int64_t *dilation, int groups),
      (NULL, x, w, b, stride, low, high, dilation, groups))
PLAIN(conv_transpose,
      (kl_tensor x, kl_tensor w, kl_tensor b, const int64_t *stride, const int64_t *low, const int64_t *high,
       const int64_t *dilation, int groups),
      (NULL, x, w, b, stride, low, high, dilation, groups))
PLAIN(sum_pool,
      (kl_tensor a, int n, const int64_t *window, const int64_t *stride, const int64_t *low, const int64_t *high,
       const int64_t *dilation),
      (NULL, a, n, window, stride, low, high, dilation))
PLAIN(avg_pool,
      (kl_tensor a, int n, const int64_t *window, const int64_t *stride, const int64_t *low, const int64_t *high,
       const int64_t *dilation),
      (NULL, a, n, window, stride, low, high, dilation))
PLAIN(max_pool,
      (kl_tensor a, int n, const int64_t *window, const int64_t *stride, const int64_t *low, const int64_t *high,
       const int64_t *dilation),
      (NULL, a, n, window, stride, low, high, dilation))
PLAIN(min_pool,
      (kl_tensor a, int n, const int64_t *window, const int64_t *stride, const int64_t *low, const int64_t *high,
       const int64_t *dilation),
      (NULL, a, n, window, stride, low, high, dilation))
PLAIN(one_hot, (kl_tensor labels, int64_t classes, kl_dtype dtype), (NULL, labels, classes, dtype))
PLAIN(cross_entropy, (kl_tensor logits, kl_tensor labels), (NULL, logits, labels))
PLAIN(nll_loss, (kl_tensor log_probs, kl_tensor labels), (NULL, log_probs, labels))
PLAIN(mse_loss, (kl_tensor a, kl_tensor b), (NULL, a, b))
PLAIN(l1_loss, (kl_tensor a, kl_tensor b), (NULL, a, b))
PLAIN(huber_loss, (kl_tensor a, kl_tensor b, double delta), (NULL, a, b, delta))
PLAIN(smooth_l1_loss, (kl_tensor a, kl_tensor b, double beta), (NULL, a, b, beta))
PLAIN(bce_with_logits, (kl_tensor x, kl_tensor y), (NULL, x, y))
PLAIN(binary_cross_entropy, (kl_tensor p, kl_tensor y), (NULL, p, y))
PLAIN(hinge_loss, (kl_tensor x, kl_tensor y), (NULL, x, y))
PLAIN(divergence, (kl_tensor log_q, kl_tensor p), (NULL, log_q, p))
