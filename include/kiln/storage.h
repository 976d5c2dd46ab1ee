/* Tensors that are not stored dense: functions common to them, then one section a kind.  Included by <kiln/kiln.h>.
 *
 * Every function that takes a tensor accepts their handles.  Each op that the layer implements records ordinary nodes
 * on their parts; other ops either compute on kl_dense or fail, as the layer's section says. kl_shape, kl_dtype_of and
 * kl_device_of return those of the dense tensor. kl_keep, kl_release, kl_assign (from a tensor stored in the same
 * way), kl_requires_grad, kl_grad and kl_to apply to all parts. kl_read returns the elements of kl_dense.  Recorded
 * functions of loops and branches take plain tensors as parameters, but may use any tensor from outside. */
#ifndef KILN_STORAGE_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_STORAGE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The plain tensor that it stands for: of a sparse one with zeros where nothing is stored, of a quantized one the
 * floats, of a complex one with a last axis of two for the real and imaginary parts, of a nested one the values, of a
 * named one the same without names. */
KL_API_AT kl_tensor kl_dense(kl_tensor a);
/* "complex", "quantized", "sparse", "named", "nested", "blocked"; "" for a plain tensor, or a bad handle. */
KL_API const char *kl_layer_name(kl_tensor t);
/* The number of parts that it is stored as; 0 for a plain tensor, or a bad handle. */
KL_API int64_t kl_layer_parts(kl_tensor t);
/* Describes the storage: "sparse f32[5,4]: f32[7] i32[6] i32[7]", with "none" for a part that is absent; "" for a plain
 * tensor, or a bad handle.  Cut at size; returns buf. */
KL_API char *kl_layer_text(kl_tensor t, char *buf, size_t size);
/* Part i, in the order in which the layer's section names the parts: a new handle of the same values.  [ARGUMENT: no
 * such part] */
KL_API_AT kl_tensor kl_layer_part(kl_tensor t, int64_t i);

/* ---- complex numbers as pairs of floats ----
 *
 *     kl_tensor z = kl_complex(re, im), y = kl_matmul(kl_conj(z), z);
 *
 * A complex tensor has two parts, real and imaginary, of one shape and floating dtype, which kl_shape and kl_dtype_of
 * give.  Ops: + - * / and matmul, also with a real operand, neg, recip, exp, log, abs (a real tensor), sum, mean,
 * cumsum, eq, ne, where, views, gather, concat, scatter and cast to another float; an op without a meaning for them,
 * such as max, is a TYPE error.  What they record are the real ops, so it fuses as they do.
 *
 * Gradients: kl_grad(loss, z) of a real loss is complex, d loss / d real + i d loss / d imaginary: the direction in
 * which the loss grows, 2 z for |z|^2.  A product y = a b then gives dy conj(b) to a. */

/* From two floats of one dtype that broadcast.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_complex(kl_tensor re, kl_tensor im);
/* The parts, real tensors; of a real tensor itself and zeros. */
KL_API_AT kl_tensor kl_real(kl_tensor a);
KL_API_AT kl_tensor kl_imag(kl_tensor a);
KL_API_AT kl_tensor kl_conj(kl_tensor a); /* with the imaginary part negated; of a real tensor itself */
KL_API_AT kl_tensor kl_angle(kl_tensor a); /* of the number in -pi .. pi; floats */

/* ---- tensors stored as small integers ----
 *
 *     kl_qscheme q = {.type = KL_Q_I8}, columns = {.type = KL_Q_I8, .per_axis = true, .axis = 1};
 *     kl_tensor w8 = kl_keep(kl_to_quantized(w, columns, kl_none, kl_none));
 *     // integers times integers, then one scale
 *     kl_tensor y = kl_matmul(kl_to_quantized(x, q, kl_none, kl_none), w8);
 *
 * A quantized tensor stands for (q - zero point) * scale, a float.  Its parts: the integers q (KL_Q_I4: two in a byte
 * of KL_U8 along the last axis, the first one in its low half), the scales, and the zero points or kl_none for 0.
 * Scales have the tensor's rank: length 1 where one is for all.  Ops on one:
 * - a product of two is one of integers, summed in KL_I32 and scaled once, a float: where scales are a tensor's, an
 *   axis's that is not contracted, or, for two matrices, blocks of the contracted axis.  It has the gradient of the
 *   product of floats;
 * - views leave the integers what they are, and their scales follow: where an axis with scales is not kept whole, or
 *   blocks are cut, shorter blocks have copies of them. KL_Q_I4 becomes KL_Q_I8, with the same integers, where it is
 *   transposed or its last axis becomes odd, KL_Q_I6 always;
 * - rows taken by indices (kl_take, kl_embedding) are a plain tensor, of which only those rows are computed; where
 *   one scale is for all, they keep it;
 * - elementwise ops compute in floats and quantize the result in the way of the first quantized operand, its scale from
 *   the result's own range, so that it is off by at most half a step; of KL_Q_U4 and of one with minimums it is a plain
 *   tensor;
 * - anything else, also a product with a float, takes kl_dense of it and gives a plain tensor.
 * Gradients go straight through rounding to the float that was quantized, as in kl_quantize, and are 0 where it
 * saturated.  The tensor itself has no gradient. */

/* -128..127 or -8..7, symmetric where the scale comes from the data: zero point 0; 0..255 with a zero point; 0..15, of
 * integers that are there (kl_quantized, kl_quantized_with), two in a byte as of KL_Q_I4; -32..31, of such, in
 * three arrays (kl_quantized_with). */
typedef enum kl_qtype { KL_Q_I8, KL_Q_U8, KL_Q_I4, KL_Q_U4, KL_Q_I6 } kl_qtype;
/* Which elements share a scale: all; with per_axis those of each slice of `axis`; with block > 0 those of each run of
 * so many along `axis` (it divides the length), for each place in the other axes.  axis may be negative. */
typedef struct kl_qscheme {
    kl_qtype type;
    bool per_axis;
    int axis;
    int64_t block;
} kl_qscheme;

/* x, a float, in integers.  scale: [], [C] for an axis of length C, or for blocks the shape of x with that axis
 * counting blocks; kl_none: from the least and greatest elements of x that share it.  zero_point: the scale's shape,
 * KL_I8 or KL_U8 as the integers; kl_none: 0, or from the range beside a scale of kl_none.  KL_Q_I4 needs a last axis
 * of even length. [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_to_quantized(kl_tensor x, kl_qscheme scheme, kl_tensor scale, kl_tensor zero_point);
/* A quantized tensor of integers that are there: its parts, which stay the caller's.  integers: in the tensor's shape;
 * of KL_Q_I4 bytes, as above.  scale: a float, whose dtype is the tensor's; its shape, and that of zero_point (or
 * kl_none), is as in kl_to_quantized.  [new handle; SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_quantized(kl_tensor integers, kl_qscheme scheme, kl_tensor scale, kl_tensor zero_point);
/* The same of dtype KL_F32 with more parts, each kl_none where there is none: the value is (q - zero point) * s - m
 * with s = scale * super_scale and m = minimum * super_minimum, all computed in KL_F32.  Scale and minimum, in the
 * shape of the scales, and those of super-blocks, shorter along the scheme's axis by a whole factor, have any number
 * dtype.
 * Their order as parts of the tensor: integers, scale, zero point, minimum, super_scale, super_minimum, second, third.
 *
 * second, third: of KL_Q_I6, 16 integers q + 32 in four bytes of `integers` and four of each of these two, KL_U8, all
 * with a fourth of the tensor's last axis, which 16 divides.  The lower six bits of the bytes are the first four
 * integers, the next four and the next; the upper two bits are the last four, their lowest bits in `integers`.
 *
 * interleaved: the parts of a matrix [N, K] with blocks along K lie as products of quantized operands read them on
 * processors.  16 rows alternate, 4 bytes of each: integers [N/16, bytes/4, 16, 4], where bytes are those of a row; or
 * one scale or minimum of each: [N/16, K/block, 16].  Zero points are kl_none. */
typedef struct kl_quantized_options {
    kl_tensor zero_point;
    kl_tensor minimum, super_scale, super_minimum;
    kl_tensor second, third;
    bool interleaved;
} kl_quantized_options;
/* options NULL: none.  [new handle; SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_quantized_with(kl_tensor integers, kl_qscheme scheme, kl_tensor scale,
                                      const kl_quantized_options *options);

/* What ranges a tensor has had, to choose its scale before it comes: two states, the least and greatest elements so
 * far, or, with a momentum above 0, their moving averages low = momentum * low + (1 - momentum) * new.  f32 for f16 and
 * bf16. */
typedef struct kl_observer {
    kl_qscheme scheme;
    kl_tensor low, high;
    double momentum;
} kl_observer;
/* Of float tensors of this rank and shape (only the length of a scheme's axis counts; no blocks).  [ARGUMENT, SHAPE,
 * TYPE, DEVICE, MEMORY] */
KL_API kl_status kl_observer_init(kl_observer *o, kl_device device, kl_qscheme scheme, kl_dtype dtype, int rank,
                                  const int64_t *dims);
/* Takes x in, by kl_assign to both states.  [SHAPE, TYPE] */
KL_API_AT kl_status kl_observer_update(kl_observer *o, kl_tensor x);
/* x in the observer's scheme, with the scale of what it has seen, numbers beyond that saturated.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_observer_quantize(const kl_observer *o, kl_tensor x);
KL_API void kl_observer_deinit(kl_observer *o);

/* ---- sparse matrices ----
 *
 *     kl_tensor a = kl_sparse_csr(values, starts, columns, n), y = kl_matmul(a, x);
 *
 * A sparse tensor is a matrix [R, C] of which some elements are stored and the others are 0.  Its parts, with room for
 * `bound` stored elements, are values [bound] of any number dtype and, as KL_I32 or KL_I64, in coordinates (COO) the
 * rows [bound] and columns [bound] of each, in rows (CSR) where each row's elements start, [R + 1], and their columns
 * [bound].  How many of them count is data: those of CSR beyond the last start do not, and in COO one that is not
 * needed has the value 0.  Elements of one place add up.
 *
 * Ops that keep the sparse form: matmul and dot_general with a plain tensor on either side (gathered rows, times the
 * values, summed by row), kl_sampled_matmul, + and - with a plain tensor of the same shape (plain) and with a sparse
 * one (sparse), * by a plain tensor that broadcasts to the matrix, / by a number, neg, cast, transpose, sum over any
 * axes.  Elements that are not stored stay 0, also multiplied by an infinity or a NaN.  Any other op computes on
 * kl_dense of the tensor (a line "[densify]" in a dispatch log) and returns a plain tensor.  kl_grad in a sparse tensor
 * is sparse: the gradient of each stored element. */

/* In coordinates; indices out of range count as the nearest in range.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_sparse_coo(kl_tensor values, kl_tensor rows, kl_tensor columns, int64_t nrows, int64_t ncolumns);
/* In rows, of which starts has one more than there are, ascending from 0.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_sparse_csr(kl_tensor values, kl_tensor starts, kl_tensor columns, int64_t ncolumns);
/* The elements of a plain matrix that are not 0, in rows, at most `bound`: with more every value is NaN.  Gradients
 * flow to them.  It sorts, so it is for making one, not for every step; floats.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_to_sparse(kl_tensor a, int64_t bound);
/* a: [R, K]  b: [K, C]: the product where pattern [R, C] stores what is not 0, as sparse as that.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_sampled_matmul(kl_tensor a, kl_tensor b, kl_tensor pattern);

/* ---- ragged lists of tensors ----
 *
 *     kl_tensor x = kl_nested(values, offsets), y = kl_softmax(kl_linear(x, w, b), -1);     // [3 + 5 + 2, D], offsets
 * 0 3 8 10
 *
 * A nested tensor is B tensors that differ in the length of their first axis, one behind the other: its parts are the
 * values [T, ...], the offsets [B + 1] at which each component starts, KL_I32 or KL_I64, ascending from 0, and for each
 * row of the values the component that it belongs to, [T] (B for rows beyond the last offset: T may be more than is
 * needed), and that component's first row and the one behind its last, [T, 2].  kl_shape and kl_dtype_of are those of
 * the values; the lengths are data.  T may be a symbol (ops/symbol.h): one program then runs batches of any lengths.
 *
 * Elementwise ops, products with the ragged axis first, reductions and softmax along other axes, views and norms that
 * leave that axis alone, kl_embedding by nested indices: each works on all rows at once, one kernel whatever the
 * lengths, and keeps the offsets.  Two nested operands have the same offsets: one is made from the other, or by
 * kl_nested_like; a plain one is one row for all, or has as many.  A sum of all elements is plain.  Along the ragged
 * axis go the functions below; other ops are TYPE errors.  kl_grad in a nested tensor is nested. */

/* [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nested(kl_tensor values, kl_tensor offsets);
/* Values [T, ...] with the offsets of another nested tensor, whose T they have.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nested_like(kl_tensor values, kl_tensor like);
/* The first lengths[b] rows of each padded[b], [B, L, ...]; lengths [B]: KL_I32 or KL_I64.  `rows` is T, at least the
 * sum of the lengths: what is beyond it is left out.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_to_nested(kl_tensor padded, kl_tensor lengths, int64_t rows);
/* [B, length, ...]: each component's rows, as many as fit, then rows of `value`, a runtime scalar.  [SHAPE,
 * TYPE] */
KL_API_AT kl_tensor kl_nested_pad(kl_tensor a, int64_t length, double value);
/* [B, ...]: over each component's rows; of an empty component 0, NaN and -infinity.  Floats.  [TYPE] */
KL_API_AT kl_tensor kl_nested_sum(kl_tensor a);
KL_API_AT kl_tensor kl_nested_mean(kl_tensor a);
KL_API_AT kl_tensor kl_nested_max(kl_tensor a);
/* Nested: softmax over each component's rows, for each place in the other axes.  Floats.  [TYPE] */
KL_API_AT kl_tensor kl_nested_softmax(kl_tensor a);
/* Attention within each component: q, k, v [T, D] or [T, heads, D], one offsets; v may have another last length.
 * causal: rows see those up to themselves.  Nested, like q.  One kernel, whose cost is the sum of the components'
 * costs: blocks of 64 rows and columns of different components are skipped.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nested_attention(kl_tensor q, kl_tensor k, kl_tensor v, bool causal);

/* ---- tensors whose axes have names ----
 *
 *     kl_tensor x = kl_named(images, (const char *[]){"batch", "height", "width"});
 *     kl_tensor mean = kl_mean(x, 1, (int[]){kl_axis(x, "width")}, false);      // named batch, height
 *
 * Elementwise ops and concatenations match the names of corresponding axes, counted from the last one: two different
 * names are an error; a name and no name give the name. matmul and dot_general drop the names of contracted axes,
 * reductions those of reduced axes; views keep the name of an axis that is neither split nor merged.  A result with one
 * name twice is an error.  Ops that mix axes otherwise refuse named tensors.  A named tensor has one part, which may
 * itself be of another layer. */

/* a with a name for each axis, NULL for none, in place of those it has; names NULL: without names, as it was before.  A
 * name occurs once, and is copied.  [ARGUMENT] */
KL_API_AT kl_tensor kl_named(kl_tensor a, const char *const *names);
/* Writes the name of each axis, NULL where there is none, valid as long as the process (room for KL_MAX_RANK is always
 * enough); returns the rank, -1 for a bad handle. */
KL_API int kl_names(kl_tensor t, const char **names);
/* The axis of that name; -1, and the error ARGUMENT: there is none. */
KL_API int kl_axis(kl_tensor t, const char *name);

/* ---- matrices stored tile by tile ----
 *
 * A blocked tensor is a matrix [M, N] with one part, [M / block, N / block, block, block], so that each tile is
 * contiguous in memory.  Elementwise ops on matrices of one block, and with numbers, transpose, matmul of two and cast
 * keep the tiles; anything else takes kl_dense of it, and gives a plain tensor.  kl_grad in one is blocked. */

/* Both lengths of the matrix are multiples of the block.  [SHAPE] */
KL_API_AT kl_tensor kl_blocked(kl_tensor a, int64_t block);

#ifdef __cplusplus
}
#endif
#endif
#endif
