/* The ops: everything that makes a tensor.  Included by <kiln/kiln.h>.
 *
 * All return a new handle, or poison after an error (see kiln.h).  All operands are on one device [DEVICE]: kl_to
 * takes a tensor to another.  Dtypes are never promoted: cast with kl_cast.  "Broadcast" is numpy's: shapes are
 * aligned at the right, and a length of 1 (or a missing axis) is repeated.  An axis may be negative, counted from the
 * last.
 * Every op may fail with HANDLE (a bad operand) and MEMORY; other errors are named in brackets. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_OPS_H
#define KILN_OPS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Declares kl_NAME(PARAMETERS) and its variant kl_NAME_at with a call site. */
#define KL_OP(name, ...)                     \
    KL_API kl_tensor kl_##name(__VA_ARGS__); \
    KL_API kl_tensor kl_##name##_at(const kl_site *site, __VA_ARGS__);
#define KL_OP1(name) KL_OP(name, kl_tensor a)
#define KL_OP2(name) KL_OP(name, kl_tensor a, kl_tensor b)
#define KL_OP3(name) KL_OP(name, kl_tensor a, kl_tensor b, kl_tensor c)

/* ---- making tensors ---- */

/* The caller's data, row-major, copied before the call returns; in a trace, data of this run.  [SHAPE, DEVICE] */
KL_OP(input, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, const void *data)
/* The caller's memory without a copy.  It must not change until release(ctx) is called, once, when no one uses
 * it any more, also after an error; release may be NULL.  [SHAPE, DEVICE] */
KL_OP(wrap, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, void *data, void (*release)(void *ctx),
      void *ctx)
KL_OP(zeros, kl_device device, kl_dtype dtype, int rank, const int64_t *dims)
KL_OP(ones, kl_device device, kl_dtype dtype, int rank, const int64_t *dims)
/* Every element `value`, a runtime scalar: another value does not compile again. */
KL_OP(full, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, double value)
/* [] A runtime scalar. */
KL_OP(scalar, kl_device device, kl_dtype dtype, double value)
/* [] A number compiled in: another value is another program. */
KL_OP(const, kl_device device, kl_dtype dtype, double value)
/* [n] 0, 1, ... n-1.  [SHAPE] */
KL_OP(arange, kl_device device, kl_dtype dtype, int64_t n)
/* [rows, columns] 1 where both indices are equal, else 0.  [SHAPE] */
KL_OP(eye, kl_device device, kl_dtype dtype, int64_t rows, int64_t columns)
/* [n] evenly from start to stop, both included and exact; floats, runtime scalars.  [SHAPE, TYPE] */
KL_OP(linspace, kl_device device, kl_dtype dtype, double start, double stop, int64_t n)
/* Each element's own index along an axis.  [SHAPE] */
KL_OP(iota, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, int axis)
/* Random bits (KL_U32 or KL_U64): element i depends on the seed and i alone, the same on every device.  [TYPE] */
KL_OP(random_bits, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed)
/* Uniform in [0, 1), KL_F32 (multiples of 2^-24) or KL_F64 (of 2^-53).  [TYPE] */
KL_OP(rand, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed)
/* Standard normal, KL_F32 or KL_F64.  [TYPE] */
KL_OP(randn, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed)

/* ---- seeds as tensors ----
 * A seed given as a number is one of this run, and so the same in every round of a scan and in every run of a frozen
 * step. A seed that is a tensor ([], KL_U64) may be computed in the graph, from an input of the step, a state that is
 * assigned or the number of the round, and be mapped by kl_vmap, where each element then has its own numbers whatever
 * its kl_randomness.  The same seed gives the same bits as a number and as a tensor.  [TYPE: the seed is not u64;
 * SHAPE: it is no scalar] */

/* [] A KL_U64, all 64 bits of it: a runtime scalar, never compiled in. */
KL_OP(random_seed, kl_device device, uint64_t seed)
/* [n] KL_U64: n seeds of independent random numbers, each other than the seed itself; n at least 1.  [SHAPE, TYPE] */
KL_OP(random_split, kl_tensor seed, int64_t n)
/* KL_U64: a seed for each integer in data, independent of one another, of the seed's own numbers and of random_split's:
 * kl_random_fold_in(seed, round).  Shapes broadcast; different integers give different seeds.  [SHAPE, TYPE] */
KL_OP(random_fold_in, kl_tensor seed, kl_tensor data)
KL_OP(random_bits_seeded, kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims)
KL_OP(rand_seeded, kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims)
KL_OP(randn_seeded, kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims)
/* The shape without `axis`, KL_I32: an index along it, drawn with the probabilities softmax(logits); one whose logit is
 * -infinity is never drawn.  Halfs are computed in f32.  [SHAPE, TYPE: logits no floats, or as above] */
KL_OP(categorical, kl_tensor logits, int axis, kl_tensor seed)

/* ---- elementwise: one operand ---- */
KL_OP1(neg)   /* -a; of f16 and bf16 the sign bit alone changes, of a NaN too */
KL_OP1(abs)   /* |a|; gradient 0 at 0, 1 at NaN; of f16 and bf16 the sign bit alone changes */
KL_OP1(exp)   /* e to the a; floats [TYPE] */
KL_OP1(log)   /* natural logarithm; floats [TYPE] */
KL_OP1(exp2)  /* 2 to the a; floats [TYPE] */
KL_OP1(expm1) /* e to the a, less 1; floats [TYPE] */
KL_OP1(log2)  /* logarithm to base 2; floats [TYPE] */
KL_OP1(log1p) /* natural logarithm of 1 + a; floats [TYPE] */
KL_OP1(tanh)  /* floats [TYPE] */
KL_OP1(sin)   /* any argument in radians, however large; floats [TYPE] */
KL_OP1(cos)   /* any argument in radians, however large; floats [TYPE] */
KL_OP1(tan)   /* any argument in radians, however large; floats, like all up to erfc [TYPE] */
KL_OP1(asin)  /* in -pi/2 .. pi/2; NaN outside of -1 .. 1 */
KL_OP1(acos)  /* in 0 .. pi; NaN outside of -1 .. 1 */
KL_OP1(atan)  /* in -pi/2 .. pi/2 */
KL_OP1(sinh)
KL_OP1(cosh)
KL_OP1(asinh)
KL_OP1(acosh) /* NaN below 1, and so is the gradient there */
KL_OP1(atanh) /* NaN outside of -1 .. 1 */
KL_OP1(erf)   /* error function */
KL_OP1(erfc)  /* 1 - erf(a), accurate where that is tiny */
KL_OP1(sqrt)  /* floats [TYPE] */
KL_OP1(rsqrt) /* 1 / sqrt(a); floats [TYPE] */
KL_OP1(recip) /* 1 / a; floats [TYPE] */
KL_OP1(floor) /* largest integer not above a; floats, like the next three; gradient 0 [TYPE] */
KL_OP1(ceil)  /* smallest integer not below a [TYPE] */
KL_OP1(round) /* nearest integer, ties to even [TYPE] */
KL_OP1(trunc) /* a without its fraction [TYPE] */
KL_OP1(sign)  /* 1 where a > 0, -1 where a < 0, else a: a zero or NaN; gradient 0 [TYPE] */
KL_OP1(is_nan)    /* bool; floats [TYPE] */
KL_OP1(is_finite) /* bool: neither infinite nor NaN; floats [TYPE] */
KL_OP1(not)   /* bitwise complement; logical for bool; not floats [TYPE] */
KL_OP1(square) /* a times a */

/* ---- elementwise: operands broadcast and have one dtype [SHAPE, TYPE] ---- */
KL_OP2(add)
KL_OP2(sub)
KL_OP2(mul)
KL_OP2(div)   /* integers: toward zero, x/0 is 0 */
KL_OP2(max)   /* larger; NaN if either is.  Gradient: a half to each where equal, 0 to both where NaN; min likewise */
KL_OP2(min)   /* smaller; NaN if either is */
/* a to the b as IEEE 754 has it: 1 where b is 0 or a is 1, NaN for a negative a and a fractional b; floats */
KL_OP2(pow)
KL_OP2(atan2) /* the angle of the point (b, a), in -pi .. pi, as IEEE 754 has it; at the origin both gradients are
                  0; floats, like the next two */
KL_OP2(hypot) /* sqrt(a^2 + b^2), also where a square would be out of range; gradient 0 where both are 0 */
/* |a| with the sign of b, |a| where b is NaN; no gradient flows to b, to a 1 where its sign and b's are the same, signs
 * of zeros included, else -1 */
KL_OP2(copysign)
KL_OP2(and)   /* bitwise; not floats */
KL_OP2(or)    /* bitwise; not floats */
KL_OP2(xor)   /* bitwise; not floats */
KL_OP2(shl)   /* a << b, the count modulo the width; integers, like the next two */
KL_OP2(shr)   /* a >> b, copying the sign, the count modulo the width */
KL_OP2(rem)   /* what a / b leaves, with the sign of a; x/0 leaves 0 */
KL_OP2(eq)    /* the compares give bool */
KL_OP2(ne)
KL_OP2(lt)
KL_OP2(le)
KL_OP2(gt)
KL_OP2(ge)
KL_OP3(fma)   /* a * b + c, rounded once; floats [TYPE] */
KL_OP3(where) /* b where a (bool) is true, else c */

/* a op value, the number converted to a's dtype and given anew at each run. */
KL_OP(add_scalar, kl_tensor a, double value)
KL_OP(sub_scalar, kl_tensor a, double value)
KL_OP(mul_scalar, kl_tensor a, double value)
KL_OP(div_scalar, kl_tensor a, double value)
KL_OP(max_scalar, kl_tensor a, double value)
KL_OP(min_scalar, kl_tensor a, double value)

/* a to a power compiled in.  powi: any number type, by repeated squaring; below 0 floats only, 1 / a^|n|.  pow_scalar:
 * floats, as pow.  [TYPE, ARGUMENT] */
KL_OP(powi, kl_tensor a, int n)
KL_OP(pow_scalar, kl_tensor a, double exponent)
/* a + weight (b - a), exactly a and b where the weight is 0 and 1; floats that broadcast.  [SHAPE, TYPE] */
KL_OP(lerp, kl_tensor a, kl_tensor b, kl_tensor weight)
/* a, but a runtime scalar where the mask (bool, broadcast) is true.  [SHAPE, TYPE] */
KL_OP(masked_fill, kl_tensor a, kl_tensor mask, double value)
/* Bool: |a - b| <= absolute + relative |b|.  Infinities are close to themselves only, NaNs to NaNs if equal_nan.
 * all_close: whether all are, [].  Floats.  [SHAPE, TYPE, ARGUMENT] */
KL_OP(is_close, kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan)
KL_OP(all_close, kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan)

/* The values on a device, their own or another, for ops there.  The gradient comes back the same way.  Where a
 * computation is split over devices does not change a bit of its results.  [DEVICE] */
KL_OP(to, kl_tensor a, kl_device device)
/* The values in another dtype: float to integer truncates and saturates, NaN gives 0; integers wrap. */
KL_OP(cast, kl_tensor a, kl_dtype dtype)

/* ---- small integers in the place of floats ----
 * q = nearest integer of a / scale, ties to even, + zero_point, saturated to the dtype, KL_I8 or KL_U8; a NaN is the
 * zero point.  The scale is a float, [] for the whole tensor or [C] for each slice of an axis of length C; the zero
 * point has the dtype of q and the scale's shape, or is kl_none for 0.  The axis counts only beside a scale [C].
 * Gradients go straight through, as if nothing were rounded: dequantize passes its own back to the a of the quantize
 * that made q, and to the scale; where q was saturated none flows to a.  [SHAPE, TYPE] */
KL_OP(quantize, kl_tensor a, kl_tensor scale, kl_tensor zero_point, kl_dtype dtype, int axis)
/* (q - zero_point) * scale, in the scale's dtype. */
KL_OP(dequantize, kl_tensor q, kl_tensor scale, kl_tensor zero_point, int axis)

/* ---- views: never a copy ---- */

/* The same elements in another shape; one dimension may be -1.  [SHAPE] */
KL_OP(reshape, kl_tensor a, int rank, const int64_t *dims)
/* Axis i of the result is axis axes[i] of a; one for each of a's axes.  [SHAPE] */
KL_OP(permute, kl_tensor a, const int *axes)
/* Two axes exchanged.  [SHAPE] */
KL_OP(transpose, kl_tensor a, int axis0, int axis1)
/* Broadcast to a shape; -1 keeps a's length.  [SHAPE] */
KL_OP(expand, kl_tensor a, int rank, const int64_t *dims)
/* A new axis of length 1 before axis `axis` of a (-1: after the last).  [SHAPE] */
KL_OP(unsqueeze, kl_tensor a, int axis)
/* Without an axis of length 1.  [SHAPE] */
KL_OP(squeeze, kl_tensor a, int axis)

/* Elements start, start + step, .. before stop of each axis, one number an axis; negative numbers count from the
 * end, what lies outside is left out.  start NULL: 0, stop NULL: the end, step NULL: 1; steps are positive.
 * [ARGUMENT] */
KL_OP(slice, kl_tensor a, const int64_t *start, const int64_t *stop, const int64_t *step)
/* `count` elements from `start` on of one axis.  [SHAPE] */
KL_OP(narrow, kl_tensor a, int axis, int64_t start, int64_t count)
/* The windows of `size` elements, `dilation` apart, that lie in an axis, one every `stride`: the axis counts the
 * windows, (length - (size - 1) dilation - 1) / stride + 1 of them, and a new last axis their elements.  [SHAPE] */
KL_OP(window, kl_tensor a, int axis, int64_t size, int64_t stride, int64_t dilation)
/* Axes in reverse order; NULL: all.  [SHAPE, ARGUMENT] */
KL_OP(flip, kl_tensor a, int naxes, const int *axes)

/* ---- putting together ---- */

/* So many elements of a value, a runtime scalar, before and behind each axis; NULL: none.  [SHAPE] */
KL_OP(pad, kl_tensor a, const int64_t *low, const int64_t *high, double value)
/* n tensors of one dtype, one behind the other along an axis; equal in all other axes.  [SHAPE, TYPE, ARGUMENT] */
KL_OP(concat, int n, const kl_tensor *parts, int axis)
/* n tensors of one shape and dtype along a new axis before axis `axis` of the first (-1: after the last).
 * [SHAPE, TYPE, ARGUMENT] */
KL_OP(stack, int n, const kl_tensor *parts, int axis)
/* The whole axis so many times, one number an axis.  [SHAPE, ARGUMENT] */
KL_OP(tile, kl_tensor a, const int64_t *times)
/* Each element of an axis so many times.  [SHAPE] */
KL_OP(repeat, kl_tensor a, int axis, int64_t times)
/* Elements moved along an axis, those that leave at one end come in at the other.  [SHAPE] */
KL_OP(roll, kl_tensor a, int axis, int64_t shift)
/* Elements of the last two axes with column - row >= diagonal (triu) or <= diagonal (tril), the others 0.  [SHAPE] */
KL_OP(triu, kl_tensor a, int64_t diagonal)
KL_OP(tril, kl_tensor a, int64_t diagonal)
/* An axis cut into n parts of these lengths (NULL: equal ones), as handles in `parts`, which are kl_none after an
 * error. [SHAPE, ARGUMENT] */
KL_API kl_status kl_split(kl_tensor a, int axis, int n, const int64_t *counts, kl_tensor *parts);
KL_API kl_status kl_split_at(const kl_site *site, kl_tensor a, int axis, int n, const int64_t *counts,
                             kl_tensor *parts);
/* Elements of one axis by index: the index's axes take the place of that axis.  An index (integers, of any shape)
 * below 0 counts as 0, one above the last as the last, here and below.  [SHAPE, TYPE] */
KL_OP(gather, kl_tensor a, int axis, kl_tensor index)
/* a with update's rows brought in along an axis, in the order of the index: row i is added to (or its larger or smaller
 * elements stay in, or it replaces) row index[i] of a.  update has the shape that gather gives.  Where max and min find
 * equal elements these share the gradient, as in reduce_max; where rows replace one row, the last one stays.  Sums of
 * half floats are rounded once.  [SHAPE, TYPE] */
KL_OP(index_add, kl_tensor a, int axis, kl_tensor index, kl_tensor update)
KL_OP(index_max, kl_tensor a, int axis, kl_tensor index, kl_tensor update)
KL_OP(index_min, kl_tensor a, int axis, kl_tensor index, kl_tensor update)
KL_OP(index_put, kl_tensor a, int axis, kl_tensor index, kl_tensor update)
/* Elements by an index of their own: element (i, j) of the result is a(index(i, j), j) for axis 0, a(i, index(i, j))
 * for axis 1.  index: integers, a's shape but for its length along the axis, which is the result's.  [SHAPE, TYPE] */
KL_OP(take_along_axis, kl_tensor a, int axis, kl_tensor index)
/* The other way round: a with each element of update, of index's shape, added to or put in place of that element of a,
 * in row-major order of the index.  [SHAPE, TYPE] */
KL_OP(add_along_axis, kl_tensor a, int axis, kl_tensor index, kl_tensor update)
KL_OP(put_along_axis, kl_tensor a, int axis, kl_tensor index, kl_tensor update)
/* Places along an axis in the order of their elements (i32; i64 where the axis is longer): equal elements in the order
 * of their places, NaN last in both directions, -0 equal to 0.  [SHAPE] */
KL_OP(argsort, kl_tensor a, int axis, bool descending)
/* The elements of an axis in that order; gradients flow to where they came from.  [SHAPE] */
KL_OP(sort, kl_tensor a, int axis, bool descending)
/* The first k of these, largest first or smallest first, and, unless `places` is NULL, a new handle there for their
 * places along the axis, as in argsort.  [SHAPE, ARGUMENT] */
KL_OP(topk, kl_tensor a, int64_t k, int axis, bool largest, kl_tensor *places)
/* The window of `count` elements an axis that starts at a computed place: start has one scalar (integers) an axis,
 * kl_none for 0.  A start is held where the whole window fits.  [SHAPE, TYPE, ARGUMENT] */
KL_OP(dynamic_slice, kl_tensor a, const kl_tensor *start, const int64_t *count)
/* a, but for the window of update's shape at `start`, as in dynamic_slice, which update fills.
 * [SHAPE, TYPE, ARGUMENT] */
KL_OP(dynamic_update, kl_tensor a, kl_tensor update, const kl_tensor *start)
/* The same bits as another dtype of that width; bool is only like itself.  No gradient flows.  The sign and payload of
 * a NaN that an op computed are not specified, but for neg and abs of f16 and bf16: they may differ between the
 * interpreter and kernels.  [TYPE] */
KL_OP(bitcast, kl_tensor a, kl_dtype dtype)

/* ---- reductions over `axes` (NULL: all); reduced axes keep length 1 with keepdims, else go [SHAPE] ---- */
KL_OP(sum, kl_tensor a, int naxes, const int *axes, bool keepdims)
KL_OP(reduce_max, kl_tensor a, int naxes, const int *axes, bool keepdims) /* NaN if any is NaN */
KL_OP(reduce_min, kl_tensor a, int naxes, const int *axes, bool keepdims) /* NaN if any is NaN */
KL_OP(reduce_prod, kl_tensor a, int naxes, const int *axes, bool keepdims)
KL_OP(any, kl_tensor a, int naxes, const int *axes, bool keepdims) /* is one true? bool [TYPE] */
KL_OP(all, kl_tensor a, int naxes, const int *axes, bool keepdims) /* are all true? bool [TYPE] */
KL_OP(mean, kl_tensor a, int naxes, const int *axes, bool keepdims)       /* floats [TYPE] */
KL_OP(sum_all, kl_tensor a)                                               /* [] */
/* Index (i32) of the first largest element, or of the first NaN, along an axis, which goes.  [SHAPE] */
KL_OP(argmax, kl_tensor a, int axis)
KL_OP(argmin, kl_tensor a, int axis) /* the same of the smallest */

/* ---- scans: each result from the elements of an axis up to its own; reverse: from its own to the end.  Any number
 * dtype; half floats sum and multiply in f32 and round each result.  [SHAPE, TYPE] ---- */

/* exclusive: without its own element, so that the first is 0 or 1. */
KL_OP(cumsum, kl_tensor a, int axis, bool exclusive, bool reverse)
KL_OP(cumprod, kl_tensor a, int axis, bool exclusive, bool reverse)
/* NaN from the first NaN on; the gradient goes to the first of equals. */
KL_OP(cummax, kl_tensor a, int axis, bool reverse)
KL_OP(cummin, kl_tensor a, int axis, bool reverse)
/* The linear recurrence y_t = a_t y_(t-1) + b_t along an axis, from y_0 = b_0; a and b of one shape. */
KL_OP(recurrence, kl_tensor a, kl_tensor b, int axis, bool reverse)
/* log of the sum of e^x of the elements up to each one, without overflow; floats. */
KL_OP(logcumsumexp, kl_tensor a, int axis)

/* ---- products ---- */

/* a: [..., M, K]  b: [..., K, N]  ->  [..., M, N]; leading axes broadcast; a vector [K] on either side loses
 * its M or N.  [SHAPE, TYPE] */
KL_OP(matmul, kl_tensor a, kl_tensor b)
/* Sum of products over the contracted pairs of axes, for each index of the batch pairs:
 * [batch..., rest of a..., rest of b...].  [SHAPE, TYPE] */
KL_OP(dot_general, kl_tensor a, kl_tensor b, int nbatch, const int *batch_a, const int *batch_b, int ncontract,
      const int *contract_a, const int *contract_b)

#ifndef KL_NO_CALL_SITES
#define kl_input(...) kl_input_at(KL_HERE, __VA_ARGS__)
#define kl_wrap(...) kl_wrap_at(KL_HERE, __VA_ARGS__)
#define kl_zeros(...) kl_zeros_at(KL_HERE, __VA_ARGS__)
#define kl_ones(...) kl_ones_at(KL_HERE, __VA_ARGS__)
#define kl_full(...) kl_full_at(KL_HERE, __VA_ARGS__)
#define kl_scalar(...) kl_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_const(...) kl_const_at(KL_HERE, __VA_ARGS__)
#define kl_arange(...) kl_arange_at(KL_HERE, __VA_ARGS__)
#define kl_iota(...) kl_iota_at(KL_HERE, __VA_ARGS__)
#define kl_random_bits(...) kl_random_bits_at(KL_HERE, __VA_ARGS__)
#define kl_rand(...) kl_rand_at(KL_HERE, __VA_ARGS__)
#define kl_randn(...) kl_randn_at(KL_HERE, __VA_ARGS__)
#define kl_random_seed(...) kl_random_seed_at(KL_HERE, __VA_ARGS__)
#define kl_random_split(...) kl_random_split_at(KL_HERE, __VA_ARGS__)
#define kl_random_fold_in(...) kl_random_fold_in_at(KL_HERE, __VA_ARGS__)
#define kl_random_bits_seeded(...) kl_random_bits_seeded_at(KL_HERE, __VA_ARGS__)
#define kl_rand_seeded(...) kl_rand_seeded_at(KL_HERE, __VA_ARGS__)
#define kl_randn_seeded(...) kl_randn_seeded_at(KL_HERE, __VA_ARGS__)
#define kl_categorical(...) kl_categorical_at(KL_HERE, __VA_ARGS__)
#define kl_neg(...) kl_neg_at(KL_HERE, __VA_ARGS__)
#define kl_abs(...) kl_abs_at(KL_HERE, __VA_ARGS__)
#define kl_exp(...) kl_exp_at(KL_HERE, __VA_ARGS__)
#define kl_log(...) kl_log_at(KL_HERE, __VA_ARGS__)
#define kl_exp2(...) kl_exp2_at(KL_HERE, __VA_ARGS__)
#define kl_expm1(...) kl_expm1_at(KL_HERE, __VA_ARGS__)
#define kl_log2(...) kl_log2_at(KL_HERE, __VA_ARGS__)
#define kl_log1p(...) kl_log1p_at(KL_HERE, __VA_ARGS__)
#define kl_tanh(...) kl_tanh_at(KL_HERE, __VA_ARGS__)
#define kl_sin(...) kl_sin_at(KL_HERE, __VA_ARGS__)
#define kl_cos(...) kl_cos_at(KL_HERE, __VA_ARGS__)
#define kl_tan(...) kl_tan_at(KL_HERE, __VA_ARGS__)
#define kl_asin(...) kl_asin_at(KL_HERE, __VA_ARGS__)
#define kl_acos(...) kl_acos_at(KL_HERE, __VA_ARGS__)
#define kl_atan(...) kl_atan_at(KL_HERE, __VA_ARGS__)
#define kl_sinh(...) kl_sinh_at(KL_HERE, __VA_ARGS__)
#define kl_cosh(...) kl_cosh_at(KL_HERE, __VA_ARGS__)
#define kl_asinh(...) kl_asinh_at(KL_HERE, __VA_ARGS__)
#define kl_acosh(...) kl_acosh_at(KL_HERE, __VA_ARGS__)
#define kl_atanh(...) kl_atanh_at(KL_HERE, __VA_ARGS__)
#define kl_erf(...) kl_erf_at(KL_HERE, __VA_ARGS__)
#define kl_erfc(...) kl_erfc_at(KL_HERE, __VA_ARGS__)
#define kl_sqrt(...) kl_sqrt_at(KL_HERE, __VA_ARGS__)
#define kl_rsqrt(...) kl_rsqrt_at(KL_HERE, __VA_ARGS__)
#define kl_recip(...) kl_recip_at(KL_HERE, __VA_ARGS__)
#define kl_floor(...) kl_floor_at(KL_HERE, __VA_ARGS__)
#define kl_ceil(...) kl_ceil_at(KL_HERE, __VA_ARGS__)
#define kl_round(...) kl_round_at(KL_HERE, __VA_ARGS__)
#define kl_trunc(...) kl_trunc_at(KL_HERE, __VA_ARGS__)
#define kl_sign(...) kl_sign_at(KL_HERE, __VA_ARGS__)
#define kl_is_nan(...) kl_is_nan_at(KL_HERE, __VA_ARGS__)
#define kl_is_finite(...) kl_is_finite_at(KL_HERE, __VA_ARGS__)
#define kl_not(...) kl_not_at(KL_HERE, __VA_ARGS__)
#define kl_add(...) kl_add_at(KL_HERE, __VA_ARGS__)
#define kl_sub(...) kl_sub_at(KL_HERE, __VA_ARGS__)
#define kl_mul(...) kl_mul_at(KL_HERE, __VA_ARGS__)
#define kl_div(...) kl_div_at(KL_HERE, __VA_ARGS__)
#define kl_max(...) kl_max_at(KL_HERE, __VA_ARGS__)
#define kl_min(...) kl_min_at(KL_HERE, __VA_ARGS__)
#define kl_pow(...) kl_pow_at(KL_HERE, __VA_ARGS__)
#define kl_atan2(...) kl_atan2_at(KL_HERE, __VA_ARGS__)
#define kl_hypot(...) kl_hypot_at(KL_HERE, __VA_ARGS__)
#define kl_copysign(...) kl_copysign_at(KL_HERE, __VA_ARGS__)
#define kl_and(...) kl_and_at(KL_HERE, __VA_ARGS__)
#define kl_or(...) kl_or_at(KL_HERE, __VA_ARGS__)
#define kl_xor(...) kl_xor_at(KL_HERE, __VA_ARGS__)
#define kl_shl(...) kl_shl_at(KL_HERE, __VA_ARGS__)
#define kl_shr(...) kl_shr_at(KL_HERE, __VA_ARGS__)
#define kl_rem(...) kl_rem_at(KL_HERE, __VA_ARGS__)
#define kl_eq(...) kl_eq_at(KL_HERE, __VA_ARGS__)
#define kl_ne(...) kl_ne_at(KL_HERE, __VA_ARGS__)
#define kl_lt(...) kl_lt_at(KL_HERE, __VA_ARGS__)
#define kl_le(...) kl_le_at(KL_HERE, __VA_ARGS__)
#define kl_gt(...) kl_gt_at(KL_HERE, __VA_ARGS__)
#define kl_ge(...) kl_ge_at(KL_HERE, __VA_ARGS__)
#define kl_fma(...) kl_fma_at(KL_HERE, __VA_ARGS__)
#define kl_where(...) kl_where_at(KL_HERE, __VA_ARGS__)
#define kl_add_scalar(...) kl_add_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_sub_scalar(...) kl_sub_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_mul_scalar(...) kl_mul_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_div_scalar(...) kl_div_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_max_scalar(...) kl_max_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_min_scalar(...) kl_min_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_powi(...) kl_powi_at(KL_HERE, __VA_ARGS__)
#define kl_pow_scalar(...) kl_pow_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_lerp(...) kl_lerp_at(KL_HERE, __VA_ARGS__)
#define kl_masked_fill(...) kl_masked_fill_at(KL_HERE, __VA_ARGS__)
#define kl_is_close(...) kl_is_close_at(KL_HERE, __VA_ARGS__)
#define kl_all_close(...) kl_all_close_at(KL_HERE, __VA_ARGS__)
#define kl_stack(...) kl_stack_at(KL_HERE, __VA_ARGS__)
#define kl_tile(...) kl_tile_at(KL_HERE, __VA_ARGS__)
#define kl_repeat(...) kl_repeat_at(KL_HERE, __VA_ARGS__)
#define kl_roll(...) kl_roll_at(KL_HERE, __VA_ARGS__)
#define kl_triu(...) kl_triu_at(KL_HERE, __VA_ARGS__)
#define kl_tril(...) kl_tril_at(KL_HERE, __VA_ARGS__)
#define kl_split(...) kl_split_at(KL_HERE, __VA_ARGS__)
#define kl_eye(...) kl_eye_at(KL_HERE, __VA_ARGS__)
#define kl_linspace(...) kl_linspace_at(KL_HERE, __VA_ARGS__)
#define kl_to(...) kl_to_at(KL_HERE, __VA_ARGS__)
#define kl_cast(...) kl_cast_at(KL_HERE, __VA_ARGS__)
#define kl_quantize(...) kl_quantize_at(KL_HERE, __VA_ARGS__)
#define kl_dequantize(...) kl_dequantize_at(KL_HERE, __VA_ARGS__)
#define kl_reshape(...) kl_reshape_at(KL_HERE, __VA_ARGS__)
#define kl_permute(...) kl_permute_at(KL_HERE, __VA_ARGS__)
#define kl_transpose(...) kl_transpose_at(KL_HERE, __VA_ARGS__)
#define kl_expand(...) kl_expand_at(KL_HERE, __VA_ARGS__)
#define kl_unsqueeze(...) kl_unsqueeze_at(KL_HERE, __VA_ARGS__)
#define kl_squeeze(...) kl_squeeze_at(KL_HERE, __VA_ARGS__)
#define kl_slice(...) kl_slice_at(KL_HERE, __VA_ARGS__)
#define kl_narrow(...) kl_narrow_at(KL_HERE, __VA_ARGS__)
#define kl_window(...) kl_window_at(KL_HERE, __VA_ARGS__)
#define kl_flip(...) kl_flip_at(KL_HERE, __VA_ARGS__)
#define kl_pad(...) kl_pad_at(KL_HERE, __VA_ARGS__)
#define kl_concat(...) kl_concat_at(KL_HERE, __VA_ARGS__)
#define kl_gather(...) kl_gather_at(KL_HERE, __VA_ARGS__)
#define kl_index_add(...) kl_index_add_at(KL_HERE, __VA_ARGS__)
#define kl_index_max(...) kl_index_max_at(KL_HERE, __VA_ARGS__)
#define kl_index_min(...) kl_index_min_at(KL_HERE, __VA_ARGS__)
#define kl_index_put(...) kl_index_put_at(KL_HERE, __VA_ARGS__)
#define kl_take_along_axis(...) kl_take_along_axis_at(KL_HERE, __VA_ARGS__)
#define kl_add_along_axis(...) kl_add_along_axis_at(KL_HERE, __VA_ARGS__)
#define kl_put_along_axis(...) kl_put_along_axis_at(KL_HERE, __VA_ARGS__)
#define kl_argsort(...) kl_argsort_at(KL_HERE, __VA_ARGS__)
#define kl_sort(...) kl_sort_at(KL_HERE, __VA_ARGS__)
#define kl_topk(...) kl_topk_at(KL_HERE, __VA_ARGS__)
#define kl_dynamic_slice(...) kl_dynamic_slice_at(KL_HERE, __VA_ARGS__)
#define kl_dynamic_update(...) kl_dynamic_update_at(KL_HERE, __VA_ARGS__)
#define kl_bitcast(...) kl_bitcast_at(KL_HERE, __VA_ARGS__)
#define kl_sum(...) kl_sum_at(KL_HERE, __VA_ARGS__)
#define kl_reduce_max(...) kl_reduce_max_at(KL_HERE, __VA_ARGS__)
#define kl_reduce_min(...) kl_reduce_min_at(KL_HERE, __VA_ARGS__)
#define kl_reduce_prod(...) kl_reduce_prod_at(KL_HERE, __VA_ARGS__)
#define kl_any(...) kl_any_at(KL_HERE, __VA_ARGS__)
#define kl_all(...) kl_all_at(KL_HERE, __VA_ARGS__)
#define kl_cumsum(...) kl_cumsum_at(KL_HERE, __VA_ARGS__)
#define kl_cumprod(...) kl_cumprod_at(KL_HERE, __VA_ARGS__)
#define kl_cummax(...) kl_cummax_at(KL_HERE, __VA_ARGS__)
#define kl_cummin(...) kl_cummin_at(KL_HERE, __VA_ARGS__)
#define kl_recurrence(...) kl_recurrence_at(KL_HERE, __VA_ARGS__)
#define kl_logcumsumexp(...) kl_logcumsumexp_at(KL_HERE, __VA_ARGS__)
#define kl_mean(...) kl_mean_at(KL_HERE, __VA_ARGS__)
#define kl_sum_all(...) kl_sum_all_at(KL_HERE, __VA_ARGS__)
#define kl_argmax(...) kl_argmax_at(KL_HERE, __VA_ARGS__)
#define kl_argmin(...) kl_argmin_at(KL_HERE, __VA_ARGS__)
#define kl_matmul(...) kl_matmul_at(KL_HERE, __VA_ARGS__)
#define kl_dot_general(...) kl_dot_general_at(KL_HERE, __VA_ARGS__)
#define kl_square(...) kl_square_at(KL_HERE, __VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif
