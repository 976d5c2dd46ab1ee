/* The ops: functions that make tensors.  Included by <kiln/kiln.h>.
 *
 * All return a new handle, or poison after an error (see kiln.h).  All operands are on one device [DEVICE]: kl_to
 * copies a tensor to another.  Dtypes are never promoted: cast with kl_cast. "Broadcast" is numpy's: shapes are aligned
 * at the right, and a length of 1 (or a missing axis) is repeated.  An axis may be negative, counted from the last.
 * Every op may fail with HANDLE (a bad operand) and MEMORY; other errors are named in brackets.  A runtime scalar is an
 * argument of the program: another value does not cause another compilation. */
#ifndef KILN_OPS_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- making tensors ---- */

/* The caller's data, row-major, copied before the call returns; in a trace, an argument of each run.  [SHAPE,
 * DEVICE] */
KL_API_AT kl_tensor kl_input(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, const void *data);
/* The caller's memory without a copy.  It must not change until release(ctx) is called.  That happens exactly once,
 * when nothing uses the memory any more, also after an error; release may be NULL.  [SHAPE, DEVICE] */
KL_API_AT kl_tensor kl_wrap(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, void *data,
                            void (*release)(void *ctx), void *ctx);
KL_API_AT kl_tensor kl_zeros(kl_device device, kl_dtype dtype, int rank, const int64_t *dims);
KL_API_AT kl_tensor kl_ones(kl_device device, kl_dtype dtype, int rank, const int64_t *dims);
/* Every element is `value`, a runtime scalar. */
KL_API_AT kl_tensor kl_full(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, double value);
/* [] A runtime scalar. */
KL_API_AT kl_tensor kl_scalar(kl_device device, kl_dtype dtype, double value);
/* [] A number compiled in: another value is another program. */
KL_API_AT kl_tensor kl_const(kl_device device, kl_dtype dtype, double value);
/* [n] 0, 1, ... n-1.  [SHAPE] */
KL_API_AT kl_tensor kl_arange(kl_device device, kl_dtype dtype, int64_t n);
/* [rows, columns] 1 where both indices are equal, else 0.  [SHAPE] */
KL_API_AT kl_tensor kl_eye(kl_device device, kl_dtype dtype, int64_t rows, int64_t columns);
/* [n] evenly spaced from start to stop, both included and exact; floats, runtime scalars.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_linspace(kl_device device, kl_dtype dtype, double start, double stop, int64_t n);
/* Each element's own index along an axis.  [SHAPE] */
KL_API_AT kl_tensor kl_iota(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, int axis);
/* Random bits (KL_U32 or KL_U64): element i depends on the seed and i alone, the same on every device.  [TYPE] */
KL_API_AT kl_tensor kl_random_bits(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed);
/* Uniform in [0, 1), KL_F32 (multiples of 2^-24) or KL_F64 (of 2^-53).  [TYPE] */
KL_API_AT kl_tensor kl_rand(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed);
/* Standard normal, KL_F32 or KL_F64.  [TYPE] */
KL_API_AT kl_tensor kl_randn(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed);

/* ---- seeds as tensors ----
 *
 * A seed given as a number is a runtime scalar.  It is the same in every iteration of a scan
 * and in every run of a frozen step.  A seed that is a tensor ([], KL_U64) may be computed in the graph, from an input
 * of the step, an assigned state or the iteration's number.  It may also be mapped by kl_vmap; each element then has
 * its own numbers for any kl_randomness.  The same seed gives the same bits as a number and as a tensor.  [TYPE: the
 * seed is not u64; SHAPE: it is no scalar] */

/* [] A KL_U64 with all 64 bits: a runtime scalar. */
KL_API_AT kl_tensor kl_random_seed(kl_device device, uint64_t seed);
/* [n] KL_U64: n seeds of independent random sequences, all different from the seed itself; n at least 1.  [SHAPE,
 * TYPE] */
KL_API_AT kl_tensor kl_random_split(kl_tensor seed, int64_t n);
/* KL_U64: a seed for each integer in data: kl_random_fold_in(seed, iteration).  The sequences are independent of one
 * another, of the seed's own and of those of random_split.  Shapes broadcast; different integers give different seeds.
 * [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_random_fold_in(kl_tensor seed, kl_tensor data);
KL_API_AT kl_tensor kl_random_bits_seeded(kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims);
KL_API_AT kl_tensor kl_rand_seeded(kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims);
KL_API_AT kl_tensor kl_randn_seeded(kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims);
/* The shape without `axis`, KL_I32: an index along it, drawn with the probabilities softmax(logits); one whose logit is
 * -infinity is never drawn.  Halfs are computed in f32.  [SHAPE, TYPE: logits no floats, or as above] */
KL_API_AT kl_tensor kl_categorical(kl_tensor logits, int axis, kl_tensor seed);

/* ---- elementwise: one operand ---- */
KL_API_AT kl_tensor kl_neg(kl_tensor a); /* -a; of f16 and bf16 the sign bit alone changes, of a NaN too */
/* |a|; gradient 0 at 0, 1 at NaN; of f16 and bf16 the sign bit alone changes */
KL_API_AT kl_tensor kl_abs(kl_tensor a);
KL_API_AT kl_tensor kl_exp(kl_tensor a);   /* e to the a; floats [TYPE] */
KL_API_AT kl_tensor kl_log(kl_tensor a);   /* natural logarithm; floats [TYPE] */
KL_API_AT kl_tensor kl_exp2(kl_tensor a);  /* 2 to the a; floats [TYPE] */
KL_API_AT kl_tensor kl_expm1(kl_tensor a); /* e to the a, less 1; floats [TYPE] */
KL_API_AT kl_tensor kl_log2(kl_tensor a);  /* logarithm to base 2; floats [TYPE] */
KL_API_AT kl_tensor kl_log1p(kl_tensor a); /* natural logarithm of 1 + a; floats [TYPE] */
KL_API_AT kl_tensor kl_tanh(kl_tensor a);  /* floats [TYPE] */
KL_API_AT kl_tensor kl_sin(kl_tensor a);   /* any argument in radians, however large; floats [TYPE] */
KL_API_AT kl_tensor kl_cos(kl_tensor a);   /* any argument in radians, however large; floats [TYPE] */
/* any argument in radians, however large; floats, like all up to erfc [TYPE] */
KL_API_AT kl_tensor kl_tan(kl_tensor a);
KL_API_AT kl_tensor kl_asin(kl_tensor a);  /* in -pi/2 .. pi/2; NaN outside of -1 .. 1 */
KL_API_AT kl_tensor kl_acos(kl_tensor a);  /* in 0 .. pi; NaN outside of -1 .. 1 */
KL_API_AT kl_tensor kl_atan(kl_tensor a);  /* in -pi/2 .. pi/2 */
KL_API_AT kl_tensor kl_sinh(kl_tensor a);
KL_API_AT kl_tensor kl_cosh(kl_tensor a);
KL_API_AT kl_tensor kl_asinh(kl_tensor a);
KL_API_AT kl_tensor kl_acosh(kl_tensor a); /* NaN below 1, and so is the gradient there */
KL_API_AT kl_tensor kl_atanh(kl_tensor a); /* NaN outside of -1 .. 1 */
KL_API_AT kl_tensor kl_erf(kl_tensor a);   /* error function */
KL_API_AT kl_tensor kl_erfc(kl_tensor a);  /* 1 - erf(a), accurate where that is tiny */
KL_API_AT kl_tensor kl_sqrt(kl_tensor a);  /* floats [TYPE] */
KL_API_AT kl_tensor kl_rsqrt(kl_tensor a); /* 1 / sqrt(a); floats [TYPE] */
KL_API_AT kl_tensor kl_recip(kl_tensor a); /* 1 / a; floats [TYPE] */
/* largest integer not above a; floats, like the next three; gradient 0 [TYPE] */
KL_API_AT kl_tensor kl_floor(kl_tensor a);
KL_API_AT kl_tensor kl_ceil(kl_tensor a); /* smallest integer not below a [TYPE] */
KL_API_AT kl_tensor kl_round(kl_tensor a); /* nearest integer, ties to even [TYPE] */
KL_API_AT kl_tensor kl_trunc(kl_tensor a); /* a without its fraction [TYPE] */
KL_API_AT kl_tensor kl_sign(kl_tensor a); /* 1 where a > 0, -1 where a < 0, else a: a zero or NaN; gradient 0 [TYPE] */
KL_API_AT kl_tensor kl_is_nan(kl_tensor a); /* bool; floats [TYPE] */
KL_API_AT kl_tensor kl_is_finite(kl_tensor a); /* bool: neither infinite nor NaN; floats [TYPE] */
KL_API_AT kl_tensor kl_is_inf(kl_tensor a); /* bool: infinite, of either sign; floats [TYPE] */
KL_API_AT kl_tensor kl_cbrt(kl_tensor a);   /* cube root, of the sign of a; gradient 0 at 0; floats [TYPE] */
KL_API_AT kl_tensor kl_log10(kl_tensor a);  /* logarithm to base 10; floats [TYPE] */
/* log |gamma(a)|: infinite at infinities, 0 and negative integers, where the gradient is 0; floats.  The absolute error
 * is a few roundings of 1 near its zeros.  [TYPE] */
KL_API_AT kl_tensor kl_lgamma(kl_tensor a);
/* the derivative of log gamma(a): at 0 infinite with the other sign than a's, NaN at negative integers; floats
 * [TYPE] */
KL_API_AT kl_tensor kl_digamma(kl_tensor a);
/* the x whose erf is a: infinite at -1 and 1, where the gradient is 0, NaN outside; floats [TYPE] */
KL_API_AT kl_tensor kl_erfinv(kl_tensor a);
/* the number of bits that are 1; of those above the highest 1: all of them where a is 0.  Integers, the result too */
KL_API_AT kl_tensor kl_popcount(kl_tensor a);
KL_API_AT kl_tensor kl_clz(kl_tensor a);
KL_API_AT kl_tensor kl_not(kl_tensor a); /* bitwise complement; logical for bool; not floats [TYPE] */
KL_API_AT kl_tensor kl_square(kl_tensor a); /* a times a */

/* ---- elementwise: operands broadcast and have one dtype [SHAPE, TYPE] ---- */
KL_API_AT kl_tensor kl_add(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_sub(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_mul(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_div(kl_tensor a, kl_tensor b); /* integers: toward zero, x/0 is 0 */
/* larger; NaN if either is.  Gradient: a half to each where equal, 0 to both where NaN; min likewise */
KL_API_AT kl_tensor kl_maximum(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_minimum(kl_tensor a, kl_tensor b); /* smaller; NaN if either is */
/* a to the b as IEEE 754 has it: 1 where b is 0 or a is 1, NaN for a negative a and a fractional b; floats */
KL_API_AT kl_tensor kl_pow(kl_tensor a, kl_tensor b);
/* the angle of the point (b, a), in -pi .. pi, as IEEE 754 has it; at the origin both gradients are 0; floats, like
 * the next two */
KL_API_AT kl_tensor kl_atan2(kl_tensor a, kl_tensor b);
/* sqrt(a^2 + b^2), also where a square would be out of range; gradient 0 where both are 0 */
KL_API_AT kl_tensor kl_hypot(kl_tensor a, kl_tensor b);
/* |a| with the sign of b, |a| where b is NaN; no gradient flows to b, to a 1 where its sign and b's are the same, signs
 * of zeros included, else -1 */
KL_API_AT kl_tensor kl_copysign(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_and(kl_tensor a, kl_tensor b); /* bitwise; not floats */
KL_API_AT kl_tensor kl_or(kl_tensor a, kl_tensor b);  /* bitwise; not floats */
KL_API_AT kl_tensor kl_xor(kl_tensor a, kl_tensor b); /* bitwise; not floats */
/* a << b, the count modulo the width; integers, like the next two */
KL_API_AT kl_tensor kl_shl(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_shr(kl_tensor a, kl_tensor b); /* a >> b, copying the sign, the count modulo the width */
/* a >> b of a's bits, zeros coming in, whatever the sign; the count modulo the width */
KL_API_AT kl_tensor kl_shr_logical(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_rem(kl_tensor a, kl_tensor b); /* what a / b leaves, with the sign of a; x/0 leaves 0 */
/* a / b rounded toward zero, or down; of integers x/0 is 0, of floats infinite or NaN; numbers, like the next two */
KL_API_AT kl_tensor kl_div_trunc(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_div_floor(kl_tensor a, kl_tensor b);
/* what div_trunc leaves, with the sign of a: of integers kl_rem, of floats as C's fmod, exact (of f64 for quotients
 * below 2^300).  The gradient is 1 to a, minus the quotient to b; of mod likewise */
KL_API_AT kl_tensor kl_fmod(kl_tensor a, kl_tensor b);
/* what div_floor leaves, with the sign of b where it is not 0; of integers x/0 leaves 0 */
KL_API_AT kl_tensor kl_mod(kl_tensor a, kl_tensor b);
/* log(e^a + e^b), without overflow; floats */
KL_API_AT kl_tensor kl_logaddexp(kl_tensor a, kl_tensor b);
/* the next number of the dtype from a on toward b, b where both are equal; no gradient; floats */
KL_API_AT kl_tensor kl_nextafter(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_eq(kl_tensor a, kl_tensor b); /* the compares give bool */
KL_API_AT kl_tensor kl_ne(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_lt(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_le(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_gt(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_ge(kl_tensor a, kl_tensor b);
KL_API_AT kl_tensor kl_fma(kl_tensor a, kl_tensor b, kl_tensor c); /* a * b + c, rounded once; floats [TYPE] */
KL_API_AT kl_tensor kl_where(kl_tensor a, kl_tensor b, kl_tensor c); /* b where a (bool) is true, else c */

/* a op value; the number is a runtime scalar, converted to a's dtype. */
KL_API_AT kl_tensor kl_add_scalar(kl_tensor a, double value);
KL_API_AT kl_tensor kl_sub_scalar(kl_tensor a, double value);
KL_API_AT kl_tensor kl_mul_scalar(kl_tensor a, double value);
KL_API_AT kl_tensor kl_div_scalar(kl_tensor a, double value);
KL_API_AT kl_tensor kl_maximum_scalar(kl_tensor a, double value);
KL_API_AT kl_tensor kl_minimum_scalar(kl_tensor a, double value);

/* a to a constant power, which is compiled in. powi: any number type, by repeated squaring; negative powers for floats
 * only, 1 / a^|n|. pow_scalar: floats, as pow.  [TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_powi(kl_tensor a, int exponent);
KL_API_AT kl_tensor kl_pow_scalar(kl_tensor a, double exponent);
/* a + weight (b - a), exactly a and b where the weight is 0 and 1; floats that broadcast.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_lerp(kl_tensor a, kl_tensor b, kl_tensor weight);
/* a, but the value, a runtime scalar, where the mask (bool, broadcast) is true.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_masked_fill(kl_tensor a, kl_tensor mask, double value);
/* Bool: |a - b| <= absolute + relative |b|.  Infinities are close to themselves only, NaNs to NaNs if equal_nan.
 * all_close: whether all are, [].  Floats.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_is_close(kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan);
KL_API_AT kl_tensor kl_all_close(kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan);

/* A copy on a device, which may be a's own.  The gradient is copied back.  Splitting a computation over devices does
 * not change a bit of its results.  [DEVICE] */
KL_API_AT kl_tensor kl_to(kl_tensor a, kl_device device);
/* The values in another dtype: float to integer truncates and saturates, NaN gives 0; integers wrap. */
KL_API_AT kl_tensor kl_cast(kl_tensor a, kl_dtype dtype);

/* ---- small integers in the place of floats ----
 * q = nearest integer of a / scale, ties to even, + zero_point, saturated to the dtype, KL_I8 or KL_U8; a NaN is the
 * zero point.  The scale is a float, [] for the whole tensor or [C] for each slice of an axis of length C; the zero
 * point has the dtype of q and the scale's shape, or is kl_none for 0.  The axis counts only beside a scale [C].
 * Gradients go straight through, as if nothing were rounded: dequantize passes its own back to the a of the quantize
 * that made q, and to the scale; where q was saturated none flows to a.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_quantize(kl_tensor a, kl_tensor scale, kl_tensor zero_point, kl_dtype dtype, int axis);
/* (q - zero_point) * scale, in the scale's dtype. */
KL_API_AT kl_tensor kl_dequantize(kl_tensor q, kl_tensor scale, kl_tensor zero_point, int axis);

/* ---- views: never a copy ---- */

/* The same elements in another shape; one dimension may be -1.  [SHAPE] */
KL_API_AT kl_tensor kl_reshape(kl_tensor a, int rank, const int64_t *dims);
/* Axis i of the result is axis axes[i] of a; one for each of a's axes.  [SHAPE] */
KL_API_AT kl_tensor kl_permute(kl_tensor a, const int *axes);
/* Two axes exchanged.  [SHAPE] */
KL_API_AT kl_tensor kl_transpose(kl_tensor a, int axis0, int axis1);
/* Broadcast to a shape; -1 keeps a's length.  [SHAPE] */
KL_API_AT kl_tensor kl_expand(kl_tensor a, int rank, const int64_t *dims);
/* A new axis of length 1 before axis `axis` of a (-1: after the last).  [SHAPE] */
KL_API_AT kl_tensor kl_unsqueeze(kl_tensor a, int axis);
/* Without an axis of length 1.  [SHAPE] */
KL_API_AT kl_tensor kl_squeeze(kl_tensor a, int axis);

/* Elements start, start + step, .. before stop of each axis, one number an axis; negative numbers count from the
 * end, what lies outside is left out.  start NULL: 0, stop NULL: the end, step NULL: 1; steps are positive.  An axis
 * may have a symbolic length, and start and stop may be such lengths (ops/symbol.h: kl_length_sub(n, 1)), if which
 * elements these are is an affine expression whatever the symbols' values.  [ARGUMENT, SHAPE] */
KL_API_AT kl_tensor kl_slice(kl_tensor a, const int64_t *start, const int64_t *stop, const int64_t *step);
/* `count` elements from `start` on of one axis; both may be symbolic lengths.  [SHAPE] */
KL_API_AT kl_tensor kl_narrow(kl_tensor a, int axis, int64_t start, int64_t count);
/* Sliding windows of `size` elements, `dilation` apart, one every `stride` elements of an axis.  The axis counts the
 * windows, (length - (size - 1) dilation - 1) / stride + 1 of them; a new last axis has their elements.  [SHAPE] */
KL_API_AT kl_tensor kl_window(kl_tensor a, int axis, int64_t size, int64_t stride, int64_t dilation);
/* Axes in reverse order; NULL: all.  [SHAPE, ARGUMENT] */
KL_API_AT kl_tensor kl_flip(kl_tensor a, int naxes, const int *axes);

/* ---- joining, padding, splitting, indexing, sorting ---- */

/* a with low[i] elements before and high[i] after axis i, all equal to a runtime scalar; NULL: none.  [SHAPE] */
KL_API_AT kl_tensor kl_pad(kl_tensor a, const int64_t *low, const int64_t *high, double value);
/* n tensors of one dtype concatenated along an axis; all other axes are equal.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_concat(int64_t n, const kl_tensor *parts, int axis);
/* n tensors of one shape and dtype along a new axis before axis `axis` of the first (-1: after the last).
 * [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_stack(int64_t n, const kl_tensor *parts, int axis);
/* Each axis repeated as a whole times[i] times.  [SHAPE, ARGUMENT] */
KL_API_AT kl_tensor kl_tile(kl_tensor a, const int64_t *times);
/* Each element of an axis repeated.  [SHAPE] */
KL_API_AT kl_tensor kl_repeat(kl_tensor a, int axis, int64_t times);
/* Elements shifted along an axis with wrap-around.  [SHAPE] */
KL_API_AT kl_tensor kl_roll(kl_tensor a, int axis, int64_t shift);
/* Elements of the last two axes with column - row >= diagonal (triu) or <= diagonal (tril), the others 0.  [SHAPE] */
KL_API_AT kl_tensor kl_triu(kl_tensor a, int64_t diagonal);
KL_API_AT kl_tensor kl_tril(kl_tensor a, int64_t diagonal);
/* Splits an axis into n parts of these lengths (NULL: equal ones). `parts` gets their handles, kl_none after an error.
 * [SHAPE, ARGUMENT] */
KL_API_AT kl_status kl_split(kl_tensor a, int axis, int64_t n, const int64_t *counts, kl_tensor *parts);
/* Elements of one axis by index: the index's axes replace that axis.  Indices are integers of any shape.  An index
 * below 0 counts as 0, one above the last as the last; the same holds for the functions below.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_take(kl_tensor a, int axis, kl_tensor index);
/* a with the rows of update combined into it along an axis: row i of update is added to row index[i] of a, in the order
 * of the index (_max, _min: the larger or smaller elements are kept; _copy: it is replaced, the last one counts).
 * update has kl_take's shape.  Equal elements, and NaNs, of max and min share the gradient.  Sums of halfs are rounded
 * once.  On a CPU, assigned to a itself with no other handle of its value, only update is stored.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_index_add(kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API_AT kl_tensor kl_index_max(kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API_AT kl_tensor kl_index_min(kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API_AT kl_tensor kl_index_copy(kl_tensor a, int axis, kl_tensor index, kl_tensor update);
/* Elements by an index for each element: element (i, j) of the result is a(index(i, j), j) for axis 0, a(i, index(i,
 * j)) for axis 1. index: integers, of a's shape except along the axis, whose length is the result's.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_take_along_axis(kl_tensor a, int axis, kl_tensor index);
/* The inverse: each element of update, of index's shape, is added to, or replaces, the element of a that the index
 * selects, in row-major order of the index.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_add_along_axis(kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API_AT kl_tensor kl_put_along_axis(kl_tensor a, int axis, kl_tensor index, kl_tensor update);
/* The positions along an axis in the order of their elements (i32; i64 where the axis is longer).  Equal elements keep
 * their order, NaN is last in both directions, -0 equals 0.  [SHAPE] */
KL_API_AT kl_tensor kl_argsort(kl_tensor a, int axis, bool descending);
/* The elements of an axis in the order of argsort; gradients flow to their original positions.  [SHAPE] */
KL_API_AT kl_tensor kl_sort(kl_tensor a, int axis, bool descending);
/* The first k elements of that order, largest first or smallest first.  Unless `indices` is NULL it gets a new handle
 * for their positions along the axis, as in argsort.  [SHAPE, ARGUMENT] */
KL_API_AT kl_tensor kl_topk(kl_tensor a, int64_t k, int axis, bool largest, kl_tensor *indices);
/* The window with count[i] elements of axis i that starts at computed positions: start has a scalar (integers) for each
 * axis, kl_none for 0.  A start is clamped so that the whole window fits.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_dynamic_slice(kl_tensor a, const kl_tensor *start, const int64_t *count);
/* a with the window of update's shape at `start`, as in dynamic_slice, replaced by update.  On a CPU, assigned to a
 * itself with a start for one axis only, and with no other handle of a's value alive, it stores only the window.
 * [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_dynamic_update(kl_tensor a, kl_tensor update, const kl_tensor *start);
/* The same bits as another dtype of equal width; bool only as bool.  No gradient flows.  The sign and payload of a
 * computed NaN are not specified and may differ between the interpreter and kernels, except for neg and abs of f16 and
 * bf16.  [TYPE] */
KL_API_AT kl_tensor kl_bitcast(kl_tensor a, kl_dtype dtype);

/* ---- reductions over `axes` (NULL: all); reduced axes keep length 1 with keepdims, else go [SHAPE] ----
 * Of all that chooses the largest or smallest of a number of elements (the largest of an axis, pools, running ones,
 * sorting, kl_index_max) a NaN is chosen before other elements, and the gradient flows to it as to others that are
 * chosen: it is not 0 everywhere where the result is NaN. */
KL_API_AT kl_tensor kl_sum(kl_tensor a, int naxes, const int *axes, bool keepdims);
/* NaN if any is NaN; the elements equal to the result, or all NaNs, share the gradient */
KL_API_AT kl_tensor kl_max(kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API_AT kl_tensor kl_min(kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API_AT kl_tensor kl_prod(kl_tensor a, int naxes, const int *axes, bool keepdims);
/* All elements combined bitwise, bool logically; of no elements all ones, or zeros; integers and bool.  [TYPE] */
KL_API_AT kl_tensor kl_reduce_and(kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API_AT kl_tensor kl_reduce_or(kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API_AT kl_tensor kl_reduce_xor(kl_tensor a, int naxes, const int *axes, bool keepdims);
/* (sum of |a|^p)^(1/p), p compiled in. p infinite: the largest |a|; minus infinite: the smallest; 0: the number of
 * elements that are not 0.  The gradient is 0 where a or the norm is 0; floats.  [TYPE, ARGUMENT: p is NaN] */
KL_API_AT kl_tensor kl_p_norm(kl_tensor a, double p, int naxes, const int *axes, bool keepdims);
KL_API_AT kl_tensor kl_any(kl_tensor a, int naxes, const int *axes, bool keepdims); /* is one true? bool [TYPE] */
KL_API_AT kl_tensor kl_all(kl_tensor a, int naxes, const int *axes, bool keepdims); /* are all true? bool [TYPE] */
KL_API_AT kl_tensor kl_mean(kl_tensor a, int naxes, const int *axes, bool keepdims); /* floats [TYPE] */
KL_API_AT kl_tensor kl_sum_all(kl_tensor a); /* [] */
/* Index (i32) of the first largest element, or of the first NaN, along an axis, which is removed.  [SHAPE] */
KL_API_AT kl_tensor kl_argmax(kl_tensor a, int axis);
KL_API_AT kl_tensor kl_argmin(kl_tensor a, int axis); /* index of the first smallest element, likewise */

/* ---- scans: each result combines the elements of an axis up to its position; reverse: from its position to the end.
 * Any number dtype; half floats sum and multiply in f32 and round each result.  [SHAPE, TYPE] ---- */

/* exclusive: without the element at the position itself, so that the first result is 0 or 1. */
KL_API_AT kl_tensor kl_cumsum(kl_tensor a, int axis, bool exclusive, bool reverse);
KL_API_AT kl_tensor kl_cumprod(kl_tensor a, int axis, bool exclusive, bool reverse);
/* NaN from the first NaN on; the gradient goes to the first of equals. */
KL_API_AT kl_tensor kl_cummax(kl_tensor a, int axis, bool reverse);
KL_API_AT kl_tensor kl_cummin(kl_tensor a, int axis, bool reverse);
/* The same, and a new handle for the position along the axis (i32; i64 where the axis is longer) of the last element
 * equal to the result, or of the NaN.  The gradient flows to that element.  [ARGUMENT: indices is NULL] */
KL_API_AT kl_tensor kl_cummax_indices(kl_tensor a, int axis, bool reverse, kl_tensor *indices);
KL_API_AT kl_tensor kl_cummin_indices(kl_tensor a, int axis, bool reverse, kl_tensor *indices);
/* The linear recurrence y_t = a_t y_(t-1) + b_t along an axis, from y_0 = b_0; a and b of one shape. */
KL_API_AT kl_tensor kl_recurrence(kl_tensor a, kl_tensor b, int axis, bool reverse);
/* log of the sum of e^x of the elements up to each one, without overflow; floats. */
KL_API_AT kl_tensor kl_logcumsumexp(kl_tensor a, int axis);

/* ---- products ---- */

/* a: [..., M, K]  b: [..., K, N]  ->  [..., M, N]; leading axes broadcast; a vector [K] on either side loses
 * its M or N.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_matmul(kl_tensor a, kl_tensor b);
/* Sum of products over the contracted pairs of axes, for each index of the batch pairs:
 * [batch..., rest of a..., rest of b...].  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_dot_general(kl_tensor a, kl_tensor b, int nbatch, const int *batch_a, const int *batch_b,
                                   int ncontract, const int *contract_a, const int *contract_b);

#ifdef __cplusplus
}
#endif
#endif
#endif
