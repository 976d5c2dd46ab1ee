/* The functions of ops.h and nn.h for C++, in their order; what each does stands there.  Included by
 * <kiln/kiln.hpp>.
 *
 * Named like in C without kl_, but for C++'s keywords: bit_and, bit_or, bit_xor, bit_not, constant.  Axes not
 * given: all; a list not given: C's NULL; a tensor not given: kl_none.  Dtype and device not given: KL_F32,
 * kl_device_default().  A seed is a number or a tensor (C's *_seeded). */
#include <kiln/kiln.hpp> /* in front of the guard: it includes this file */
#ifndef KILN_OPS_HPP
#define KILN_OPS_HPP

namespace kiln
{

namespace detail
{

/* A list with one number for each of `want` axes; where it may be left out, or none (C's NULL). */
template <class T>
const T *per_axis(const list<T> &l, int want, const char *what, const call_site &at, bool optional = true)
{
    if ((l.size() || !optional) && want >= 0 && l.size() != want)
        fail(at, KL_ERR_ARGUMENT,
             std::string(what) + " has " + std::to_string(l.size()) + " numbers, not one for each of " +
                 std::to_string(want) + " axes");
    return l.or_null();
}

inline std::vector<kl_tensor> ids(const std::vector<tensor> &t)
{
    std::vector<kl_tensor> id;
    for (const tensor &x : t) id.push_back(x.get());
    return id;
}

inline std::vector<tensor> own_each(const std::vector<kl_tensor> &id)
{
    std::vector<tensor> t;
    for (kl_tensor x : id) t.push_back(own(x));
    return t;
}

} // namespace detail

#define KILN_AT call_site at = call_site::here()
#define KILN_WHERE kl_dtype dtype = KL_F32, kl_device on = default_device(), KILN_AT

/* ---- making tensors ---- */

/* Row-major elements, copied.  input<float>({2, 2}, {1, 2, 3, 4}), input({n}, vector).  [SHAPE: not as many as dims
 * say] */
template <class T>
tensor input(const shape &dims, const T *data, std::size_t count, kl_device on = default_device(), KILN_AT)
{
    std::int64_t n = 1;
    for (int i = 0; i < dims.size(); i++) n *= dims.data()[i];
    if (n < 0 || static_cast<std::uint64_t>(n) != count)
        detail::fail(at, KL_ERR_SHAPE,
                     "input: " + std::to_string(count) + " elements for a shape of " + std::to_string(n));
    return own(kl_input_at(&at, on, dtype_of<T>::value, dims.size(), dims.data(), data));
}
template <class T> tensor input(const shape &dims, const std::vector<T> &data, kl_device on = default_device(), KILN_AT)
{
    if constexpr (std::is_same_v<T, bool>) { /* std::vector<bool> has no array of bytes */
        std::unique_ptr<bool[]> byte(new bool[data.size() + 1]);
        for (std::size_t i = 0; i < data.size(); i++) byte[i] = data[i];
        return input(dims, byte.get(), data.size(), on, at);
    } else {
        return input(dims, data.data(), data.size(), on, at);
    }
}
inline tensor zeros(const shape &dims, KILN_WHERE)
{
    return own(kl_zeros_at(&at, on, dtype, dims.size(), dims.data()));
}
inline tensor ones(const shape &dims, KILN_WHERE) { return own(kl_ones_at(&at, on, dtype, dims.size(), dims.data())); }
inline tensor full(const shape &dims, double value, KILN_WHERE)
{
    return own(kl_full_at(&at, on, dtype, dims.size(), dims.data(), value));
}
inline tensor scalar(double value, KILN_WHERE) { return own(kl_scalar_at(&at, on, dtype, value)); }
inline tensor constant(double value, KILN_WHERE) { return own(kl_const_at(&at, on, dtype, value)); }
inline tensor arange(std::int64_t n, KILN_WHERE) { return own(kl_arange_at(&at, on, dtype, n)); }
inline tensor eye(std::int64_t rows, std::int64_t columns, KILN_WHERE)
{
    return own(kl_eye_at(&at, on, dtype, rows, columns));
}
inline tensor linspace(double start, double stop, std::int64_t n, KILN_WHERE)
{
    return own(kl_linspace_at(&at, on, dtype, start, stop, n));
}
inline tensor iota(const shape &dims, int axis, KILN_WHERE)
{
    return own(kl_iota_at(&at, on, dtype, dims.size(), dims.data(), axis));
}
inline tensor random_seed(std::uint64_t seed, kl_device on = default_device(), KILN_AT)
{
    return own(kl_random_seed_at(&at, on, seed));
}
inline tensor random_split(const tensor &seed, std::int64_t n, KILN_AT)
{
    return own(kl_random_split_at(&at, seed.get(), n));
}
/* name(dims, seed): the seed a number or a tensor. */
#define KILN_RANDOM(name)                                                                                              \
    inline tensor name(const shape &dims, std::uint64_t seed, KILN_WHERE)                                              \
    {                                                                                                                  \
        return own(kl_##name##_at(&at, on, dtype, dims.size(), dims.data(), seed));                                    \
    }                                                                                                                  \
    inline tensor name(const shape &dims, const tensor &seed, kl_dtype dtype = KL_F32, KILN_AT)                        \
    {                                                                                                                  \
        return own(kl_##name##_seeded_at(&at, seed.get(), dtype, dims.size(), dims.data()));                           \
    }
KILN_RANDOM(rand)
KILN_RANDOM(randn)
#undef KILN_RANDOM
inline tensor random_bits(const shape &dims, std::uint64_t seed, kl_dtype dtype = KL_U32,
                          kl_device on = default_device(), KILN_AT)
{
    return own(kl_random_bits_at(&at, on, dtype, dims.size(), dims.data(), seed));
}
inline tensor random_bits(const shape &dims, const tensor &seed, kl_dtype dtype = KL_U32, KILN_AT)
{
    return own(kl_random_bits_seeded_at(&at, seed.get(), dtype, dims.size(), dims.data()));
}
inline tensor categorical(const tensor &logits, int axis, const tensor &seed, KILN_AT)
{
    return own(kl_categorical_at(&at, logits.get(), axis, seed.get()));
}

/* ---- of one, two and three tensors ---- */
#define KILN_OP1(name, c)                                                                                              \
    inline tensor name(const tensor &a, KILN_AT) { return own(kl_##c##_at(&at, a.get())); }
#define KILN_OP2(name, c)                                                                                              \
    inline tensor name(const tensor &a, const tensor &b, KILN_AT) { return own(kl_##c##_at(&at, a.get(), b.get())); }
#define KILN_OP3(name, c)                                                                                              \
    inline tensor name(const tensor &a, const tensor &b, const tensor &c_, KILN_AT)                                    \
    {                                                                                                                  \
        return own(kl_##c##_at(&at, a.get(), b.get(), c_.get()));                                                      \
    }
KILN_OP1(neg, neg) KILN_OP1(abs, abs) KILN_OP1(exp, exp) KILN_OP1(log, log) KILN_OP1(exp2, exp2)
KILN_OP1(expm1, expm1) KILN_OP1(log2, log2) KILN_OP1(log1p, log1p) KILN_OP1(tanh, tanh) KILN_OP1(sin, sin)
KILN_OP1(cos, cos) KILN_OP1(tan, tan) KILN_OP1(asin, asin) KILN_OP1(acos, acos) KILN_OP1(atan, atan)
KILN_OP1(sinh, sinh) KILN_OP1(cosh, cosh) KILN_OP1(asinh, asinh) KILN_OP1(acosh, acosh) KILN_OP1(atanh, atanh)
KILN_OP1(erf, erf) KILN_OP1(erfc, erfc) KILN_OP1(sqrt, sqrt) KILN_OP1(rsqrt, rsqrt) KILN_OP1(recip, recip)
KILN_OP1(floor, floor) KILN_OP1(ceil, ceil) KILN_OP1(round, round) KILN_OP1(trunc, trunc) KILN_OP1(sign, sign)
KILN_OP1(is_nan, is_nan) KILN_OP1(is_finite, is_finite) KILN_OP1(bit_not, not) KILN_OP1(square, square)
KILN_OP1(sum_all, sum_all) KILN_OP1(relu, relu) KILN_OP1(sigmoid, sigmoid) KILN_OP1(silu, silu) KILN_OP1(gelu, gelu)
KILN_OP1(softplus, softplus) KILN_OP1(mish, mish) KILN_OP1(gelu_erf, gelu_erf) KILN_OP1(log_sigmoid, log_sigmoid)
KILN_OP1(softsign, softsign) KILN_OP1(selu, selu) KILN_OP1(hard_swish, hard_swish) KILN_OP1(is_inf, is_inf)
KILN_OP1(cbrt, cbrt) KILN_OP1(log10, log10) KILN_OP1(lgamma, lgamma) KILN_OP1(digamma, digamma)
KILN_OP1(erfinv, erfinv) KILN_OP1(popcount, popcount) KILN_OP1(clz, clz)
KILN_OP2(shr_logical, shr_logical) KILN_OP2(div_trunc, div_trunc) KILN_OP2(div_floor, div_floor)
KILN_OP2(fmod, fmod) KILN_OP2(mod, mod) KILN_OP2(logaddexp, logaddexp) KILN_OP2(nextafter, nextafter)
KILN_OP2(add, add) KILN_OP2(sub, sub) KILN_OP2(mul, mul) KILN_OP2(div, div) KILN_OP2(maximum, maximum)
KILN_OP2(minimum, minimum)
KILN_OP2(pow, pow) KILN_OP2(atan2, atan2) KILN_OP2(hypot, hypot) KILN_OP2(copysign, copysign) KILN_OP2(bit_and, and)
KILN_OP2(bit_or, or) KILN_OP2(bit_xor, xor) KILN_OP2(shl, shl) KILN_OP2(shr, shr) KILN_OP2(rem, rem) KILN_OP2(eq, eq)
KILN_OP2(ne, ne) KILN_OP2(lt, lt) KILN_OP2(le, le) KILN_OP2(gt, gt) KILN_OP2(ge, ge)
KILN_OP2(random_fold_in, random_fold_in) KILN_OP2(matmul, matmul) KILN_OP2(embedding, embedding)
KILN_OP2(cross_entropy, cross_entropy) KILN_OP2(nll_loss, nll_loss) KILN_OP2(mse_loss, mse_loss)
KILN_OP2(l1_loss, l1_loss) KILN_OP2(binary_cross_entropy_with_logits, binary_cross_entropy_with_logits)
KILN_OP2(binary_cross_entropy, binary_cross_entropy) KILN_OP2(hinge_loss, hinge_loss) KILN_OP2(divergence, divergence)
KILN_OP3(fma, fma) KILN_OP3(where, where) KILN_OP3(lerp, lerp)
#undef KILN_OP1
#undef KILN_OP2
#undef KILN_OP3

/* ---- a tensor and numbers ---- */
#define KILN_NUMBER(name, c)                                                                                           \
    inline tensor name(const tensor &a, double v, KILN_AT) { return own(kl_##c##_at(&at, a.get(), v)); }
KILN_NUMBER(add, add_scalar) KILN_NUMBER(sub, sub_scalar) KILN_NUMBER(mul, mul_scalar) KILN_NUMBER(div, div_scalar)
KILN_NUMBER(maximum, maximum_scalar) KILN_NUMBER(minimum, minimum_scalar) KILN_NUMBER(pow, pow_scalar)
KILN_NUMBER(leaky_relu, leaky_relu) KILN_NUMBER(elu, elu) KILN_NUMBER(celu, celu)
#undef KILN_NUMBER
inline tensor hard_sigmoid(const tensor &a, double alpha = 1.0 / 6, double beta = 0.5, KILN_AT)
{
    return own(kl_hard_sigmoid_at(&at, a.get(), alpha, beta));
}
inline tensor powi(const tensor &a, int n, KILN_AT) { return own(kl_powi_at(&at, a.get(), n)); }
inline tensor masked_fill(const tensor &a, const tensor &mask, double value, KILN_AT)
{
    return own(kl_masked_fill_at(&at, a.get(), mask.get(), value));
}
inline tensor is_close(const tensor &a, const tensor &b, double relative, double absolute, bool equal_nan = false,
                       KILN_AT)
{
    return own(kl_is_close_at(&at, a.get(), b.get(), relative, absolute, equal_nan));
}
inline tensor all_close(const tensor &a, const tensor &b, double relative, double absolute, bool equal_nan = false,
                        KILN_AT)
{
    return own(kl_all_close_at(&at, a.get(), b.get(), relative, absolute, equal_nan));
}
inline tensor clamp(const tensor &a, double low, double high, KILN_AT)
{
    return own(kl_clamp_at(&at, a.get(), low, high));
}
inline tensor to(const tensor &a, kl_device on, KILN_AT) { return own(kl_to_at(&at, a.get(), on)); }
inline tensor cast(const tensor &a, kl_dtype dtype, KILN_AT) { return own(kl_cast_at(&at, a.get(), dtype)); }
inline tensor bitcast(const tensor &a, kl_dtype dtype, KILN_AT) { return own(kl_bitcast_at(&at, a.get(), dtype)); }
inline tensor quantize(const tensor &a, const tensor &scale, const tensor &zero_point, kl_dtype dtype, int axis = 0,
                       KILN_AT)
{
    return own(kl_quantize_at(&at, a.get(), scale.get(), zero_point.get(), dtype, axis));
}
inline tensor dequantize(const tensor &q, const tensor &scale, const tensor &zero_point, int axis = 0, KILN_AT)
{
    return own(kl_dequantize_at(&at, q.get(), scale.get(), zero_point.get(), axis));
}

/* ---- views ---- */
inline tensor reshape(const tensor &a, const shape &dims, KILN_AT)
{
    return own(kl_reshape_at(&at, a.get(), dims.size(), dims.data()));
}
inline tensor permute(const tensor &a, const axes &order, KILN_AT)
{
    detail::per_axis(order, a.rank(), "permute: the order", at, false);
    return own(kl_permute_at(&at, a.get(), order.data()));
}
inline tensor transpose(const tensor &a, int axis0 = -2, int axis1 = -1, KILN_AT)
{
    return own(kl_transpose_at(&at, a.get(), axis0, axis1));
}
inline tensor expand(const tensor &a, const shape &dims, KILN_AT)
{
    return own(kl_expand_at(&at, a.get(), dims.size(), dims.data()));
}
inline tensor unsqueeze(const tensor &a, int axis, KILN_AT) { return own(kl_unsqueeze_at(&at, a.get(), axis)); }
inline tensor squeeze(const tensor &a, int axis, KILN_AT) { return own(kl_squeeze_at(&at, a.get(), axis)); }
inline tensor slice(const tensor &a, const shape &start, const shape &stop = {}, const shape &step = {}, KILN_AT)
{
    int n = a.rank();
    return own(kl_slice_at(&at, a.get(), detail::per_axis(start, n, "slice: start", at),
                           detail::per_axis(stop, n, "slice: stop", at), detail::per_axis(step, n, "slice: step", at)));
}
inline tensor narrow(const tensor &a, int axis, std::int64_t start, std::int64_t count, KILN_AT)
{
    return own(kl_narrow_at(&at, a.get(), axis, start, count));
}
inline tensor window(const tensor &a, int axis, std::int64_t size, std::int64_t stride = 1, std::int64_t dilation = 1,
                     KILN_AT)
{
    return own(kl_window_at(&at, a.get(), axis, size, stride, dilation));
}
inline tensor flip(const tensor &a, const axes &over = {}, KILN_AT)
{
    return own(kl_flip_at(&at, a.get(), over.size(), over.or_null()));
}

/* ---- putting together, taking apart ---- */
inline tensor pad(const tensor &a, const shape &low, const shape &high, double value = 0, KILN_AT)
{
    int n = a.rank();
    return own(kl_pad_at(&at, a.get(), detail::per_axis(low, n, "pad: low", at),
                         detail::per_axis(high, n, "pad: high", at), value));
}
inline tensor concat(const std::vector<tensor> &parts, int axis, KILN_AT)
{
    return own(kl_concat_at(&at, static_cast<int>(parts.size()), detail::ids(parts).data(), axis));
}
inline tensor stack(const std::vector<tensor> &parts, int axis, KILN_AT)
{
    return own(kl_stack_at(&at, static_cast<int>(parts.size()), detail::ids(parts).data(), axis));
}
inline tensor tile(const tensor &a, const shape &times, KILN_AT)
{
    detail::per_axis(times, a.rank(), "tile: times", at, false);
    return own(kl_tile_at(&at, a.get(), times.data()));
}
inline tensor repeat(const tensor &a, int axis, std::int64_t times, KILN_AT)
{
    return own(kl_repeat_at(&at, a.get(), axis, times));
}
inline tensor roll(const tensor &a, int axis, std::int64_t shift, KILN_AT)
{
    return own(kl_roll_at(&at, a.get(), axis, shift));
}
inline tensor triu(const tensor &a, std::int64_t diagonal = 0, KILN_AT)
{
    return own(kl_triu_at(&at, a.get(), diagonal));
}
inline tensor tril(const tensor &a, std::int64_t diagonal = 0, KILN_AT)
{
    return own(kl_tril_at(&at, a.get(), diagonal));
}
/* n equal parts. */
inline std::vector<tensor> split(const tensor &a, int axis, int n, KILN_AT)
{
    std::vector<kl_tensor> id(static_cast<std::size_t>(n > 0 ? n : 0));
    detail::check(kl_split_at(&at, a.get(), axis, n, nullptr, id.data()));
    return detail::own_each(id);
}
/* Parts of these lengths. */
inline std::vector<tensor> split(const tensor &a, int axis, const std::vector<std::int64_t> &counts, KILN_AT)
{
    std::vector<kl_tensor> id(counts.size());
    detail::check(kl_split_at(&at, a.get(), axis, static_cast<int>(id.size()), counts.data(), id.data()));
    return detail::own_each(id);
}

/* ---- by index ---- */
#define KILN_INDEX(name)                                                                                               \
    inline tensor name(const tensor &a, int axis, const tensor &index, KILN_AT)                                        \
    {                                                                                                                  \
        return own(kl_##name##_at(&at, a.get(), axis, index.get()));                                                   \
    }
#define KILN_UPDATE(name)                                                                                              \
    inline tensor name(const tensor &a, int axis, const tensor &index, const tensor &update, KILN_AT)                  \
    {                                                                                                                  \
        return own(kl_##name##_at(&at, a.get(), axis, index.get(), update.get()));                                     \
    }
KILN_INDEX(take)
KILN_INDEX(take_along_axis) KILN_UPDATE(index_add) KILN_UPDATE(index_max) KILN_UPDATE(index_min) KILN_UPDATE(index_copy)
KILN_UPDATE(add_along_axis) KILN_UPDATE(put_along_axis)
#undef KILN_INDEX
#undef KILN_UPDATE
inline tensor argsort(const tensor &a, int axis = -1, bool descending = false, KILN_AT)
{
    return own(kl_argsort_at(&at, a.get(), axis, descending));
}
inline tensor sort(const tensor &a, int axis = -1, bool descending = false, KILN_AT)
{
    return own(kl_sort_at(&at, a.get(), axis, descending));
}
/* The elements and their indices. */
inline std::pair<tensor, tensor> topk(const tensor &a, std::int64_t k, int axis = -1, bool largest = true, KILN_AT)
{
    kl_tensor indices = kl_none;
    tensor top = own(kl_topk_at(&at, a.get(), k, axis, largest, &indices));
    return {top, own(indices)};
}
/* start: a scalar an axis, {} for 0. */
inline tensor dynamic_slice(const tensor &a, const std::vector<tensor> &start, const shape &count, KILN_AT)
{
    detail::per_axis(count, a.rank(), "dynamic_slice: count", at, false);
    if (static_cast<int>(start.size()) != a.rank())
        detail::fail(at, KL_ERR_ARGUMENT, "dynamic_slice: start has not one scalar for each axis");
    return own(kl_dynamic_slice_at(&at, a.get(), detail::ids(start).data(), count.data()));
}
inline tensor dynamic_update(const tensor &a, const tensor &update, const std::vector<tensor> &start, KILN_AT)
{
    if (static_cast<int>(start.size()) != a.rank())
        detail::fail(at, KL_ERR_ARGUMENT, "dynamic_update: start has not one scalar for each axis");
    return own(kl_dynamic_update_at(&at, a.get(), update.get(), detail::ids(start).data()));
}

/* ---- reductions ---- */
#define KILN_REDUCE(name, c)                                                                                           \
    inline tensor name(const tensor &a, const axes &over = {}, bool keepdims = false, KILN_AT)                         \
    {                                                                                                                  \
        return own(kl_##c##_at(&at, a.get(), over.size(), over.or_null(), keepdims));                                  \
    }
KILN_REDUCE(sum, sum)
KILN_REDUCE(max, max) KILN_REDUCE(min, min) KILN_REDUCE(prod, prod)
KILN_REDUCE(any, any) KILN_REDUCE(all, all) KILN_REDUCE(mean, mean) KILN_REDUCE(logsumexp, logsumexp)
KILN_REDUCE(norm, norm) KILN_REDUCE(reduce_and, reduce_and) KILN_REDUCE(reduce_or, reduce_or)
KILN_REDUCE(reduce_xor, reduce_xor)
#undef KILN_REDUCE
inline tensor p_norm(const tensor &a, double p, const axes &over = {}, bool keepdims = false, KILN_AT)
{
    return own(kl_p_norm_at(&at, a.get(), p, over.size(), over.or_null(), keepdims));
}
inline tensor var(const tensor &a, const axes &over = {}, bool keepdims = false, int correction = 1, KILN_AT)
{
    return own(kl_var_at(&at, a.get(), over.size(), over.or_null(), keepdims, correction));
}
inline tensor std(const tensor &a, const axes &over = {}, bool keepdims = false, int correction = 1, KILN_AT)
{
    return own(kl_std_at(&at, a.get(), over.size(), over.or_null(), keepdims, correction));
}
#define KILN_AXIS(name)                                                                                                \
    inline tensor name(const tensor &a, int axis = -1, KILN_AT) { return own(kl_##name##_at(&at, a.get(), axis)); }
KILN_AXIS(argmax)
KILN_AXIS(argmin) KILN_AXIS(logcumsumexp) KILN_AXIS(softmax) KILN_AXIS(log_softmax)
#undef KILN_AXIS
inline tensor cumsum(const tensor &a, int axis = -1, bool exclusive = false, bool reverse = false, KILN_AT)
{
    return own(kl_cumsum_at(&at, a.get(), axis, exclusive, reverse));
}
inline tensor cumprod(const tensor &a, int axis = -1, bool exclusive = false, bool reverse = false, KILN_AT)
{
    return own(kl_cumprod_at(&at, a.get(), axis, exclusive, reverse));
}
/* The extremes and their indices. */
inline std::pair<tensor, tensor> cummax_indices(const tensor &a, int axis = -1, bool reverse = false, KILN_AT)
{
    kl_tensor indices = kl_none;
    tensor extremes = own(kl_cummax_indices_at(&at, a.get(), axis, reverse, &indices));
    return {extremes, own(indices)};
}
inline std::pair<tensor, tensor> cummin_indices(const tensor &a, int axis = -1, bool reverse = false, KILN_AT)
{
    kl_tensor indices = kl_none;
    tensor extremes = own(kl_cummin_indices_at(&at, a.get(), axis, reverse, &indices));
    return {extremes, own(indices)};
}
inline tensor cummax(const tensor &a, int axis = -1, bool reverse = false, KILN_AT)
{
    return own(kl_cummax_at(&at, a.get(), axis, reverse));
}
inline tensor cummin(const tensor &a, int axis = -1, bool reverse = false, KILN_AT)
{
    return own(kl_cummin_at(&at, a.get(), axis, reverse));
}
inline tensor recurrence(const tensor &a, const tensor &b, int axis = -1, bool reverse = false, KILN_AT)
{
    return own(kl_recurrence_at(&at, a.get(), b.get(), axis, reverse));
}

/* ---- products ---- */
inline tensor dot_general(const tensor &a, const tensor &b, const axes &batch_a, const axes &batch_b,
                          const axes &contract_a, const axes &contract_b, KILN_AT)
{
    if (batch_a.size() != batch_b.size() || contract_a.size() != contract_b.size())
        detail::fail(at, KL_ERR_ARGUMENT, "dot_general: the axes are no pairs");
    return own(kl_dot_general_at(&at, a.get(), b.get(), batch_a.size(), batch_a.data(), batch_b.data(),
                                 contract_a.size(), contract_a.data(), contract_b.data()));
}
inline tensor linear(const tensor &x, const tensor &w, const tensor &b = {}, KILN_AT)
{
    return own(kl_linear_at(&at, x.get(), w.get(), b.get()));
}
inline tensor einsum(const char *subscripts, const std::vector<tensor> &operands, KILN_AT)
{
    return own(kl_einsum_at(&at, subscripts, static_cast<int>(operands.size()), detail::ids(operands).data()));
}
/* The token with the largest logit with options of zeros, which are the default. */
inline tensor sample(const tensor &logits, const tensor &seed = {}, const kl_sample_options &options = {}, KILN_AT)
{
    return own(kl_sample_at(&at, logits.get(), seed.get(), &options));
}
inline tensor attention(const tensor &q, const tensor &k, const tensor &v, const tensor &mask = {}, bool causal = false,
                        KILN_AT)
{
    return own(kl_attention_at(&at, q.get(), k.get(), v.get(), mask.get(), causal));
}

/* ---- nn.h: the rest ---- */
inline tensor dropout(const tensor &a, double p, std::uint64_t seed, bool training = true, KILN_AT)
{
    return own(kl_dropout_at(&at, a.get(), p, seed, training));
}
inline tensor dropout(const tensor &a, double p, const tensor &seed, bool training = true, KILN_AT)
{
    return own(kl_dropout_seeded_at(&at, a.get(), p, seed.get(), training));
}
inline tensor layer_norm(const tensor &x, int naxes, const tensor &weight = {}, const tensor &bias = {},
                         double eps = 1e-5, KILN_AT)
{
    return own(kl_layer_norm_at(&at, x.get(), naxes, weight.get(), bias.get(), eps));
}
inline tensor rms_norm(const tensor &x, int naxes, const tensor &weight = {}, double eps = 1e-5, KILN_AT)
{
    return own(kl_rms_norm_at(&at, x.get(), naxes, weight.get(), eps));
}
inline tensor group_norm(const tensor &x, int groups, const tensor &weight = {}, const tensor &bias = {},
                         double eps = 1e-5, KILN_AT)
{
    return own(kl_group_norm_at(&at, x.get(), groups, weight.get(), bias.get(), eps));
}
inline tensor batch_norm(const tensor &x, const tensor &weight, const tensor &bias, const tensor &mean,
                         const tensor &var, bool training, double momentum = 0.1, double eps = 1e-5, KILN_AT)
{
    return own(
        kl_batch_norm_at(&at, x.get(), weight.get(), bias.get(), mean.get(), var.get(), training, momentum, eps));
}
/* Lists with a number an axis of the window; not given: C's NULL. */
struct conv_options {
    shape stride = {}, low = {}, high = {}, dilation = {};
    int groups = 1;
};
#define KILN_CONV(name)                                                                                                \
    inline tensor name(const tensor &x, const tensor &w, const tensor &b = {}, const conv_options &o = {}, KILN_AT)    \
    {                                                                                                                  \
        int n = x.rank() - 2;                                                                                          \
        return own(kl_##name##_at(&at, x.get(), w.get(), b.get(), detail::per_axis(o.stride, n, #name ": stride", at), \
                                  detail::per_axis(o.low, n, #name ": low", at),                                       \
                                  detail::per_axis(o.high, n, #name ": high", at),                                     \
                                  detail::per_axis(o.dilation, n, #name ": dilation", at), o.groups));                 \
    }
KILN_CONV(conv)
KILN_CONV(conv_transpose)
#undef KILN_CONV
struct pool_options {
    shape stride = {}, low = {}, high = {}, dilation = {};
};
#define KILN_POOL(name)                                                                                                \
    inline tensor name(const tensor &a, const shape &size, const pool_options &o = {}, KILN_AT)                        \
    {                                                                                                                  \
        int n = size.size();                                                                                           \
        return own(kl_##name##_at(&at, a.get(), n, size.data(), detail::per_axis(o.stride, n, #name ": stride", at),   \
                                  detail::per_axis(o.low, n, #name ": low", at),                                       \
                                  detail::per_axis(o.high, n, #name ": high", at),                                     \
                                  detail::per_axis(o.dilation, n, #name ": dilation", at)));                           \
    }
KILN_POOL(sum_pool)
KILN_POOL(avg_pool) KILN_POOL(max_pool) KILN_POOL(min_pool)
#undef KILN_POOL
inline tensor one_hot(const tensor &labels, std::int64_t classes, kl_dtype dtype = KL_F32, KILN_AT)
{
    return own(kl_one_hot_at(&at, labels.get(), classes, dtype));
}
inline tensor huber_loss(const tensor &a, const tensor &b, double delta = 1, KILN_AT)
{
    return own(kl_huber_loss_at(&at, a.get(), b.get(), delta));
}
inline tensor smooth_l1_loss(const tensor &a, const tensor &b, double beta = 1, KILN_AT)
{
    return own(kl_smooth_l1_loss_at(&at, a.get(), b.get(), beta));
}

#undef KILN_AT
#undef KILN_WHERE

} // namespace kiln
#endif
