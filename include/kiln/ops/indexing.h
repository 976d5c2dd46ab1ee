/* Elements selected by several indices at once, and tensors extended beyond their borders.  Included by <kiln/kiln.h>.
 *
 * The ops of <kiln/ops.h> select along one axis.  The functions below take a coordinate for each of several axes.
 * Indices are integers of any dtype.  Gradients flow to the tensor and to the update, none to an index. */
#ifndef KILN_OPS_INDEXING_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_INDEXING_H

#ifdef __cplusplus
extern "C" {
#endif

/* The meaning of an index outside of 0..length-1; the flags may be combined.  CLAMP: the nearest valid one, as in
 * kl_take.  FROM_END: a negative one counts from the end, -1 is the last element; what is still outside is clamped or
 * dropped.  DROP: a gather returns 0 there, a scatter ignores that part of the update. */
enum { KL_INDEX_CLAMP = 0, KL_INDEX_FROM_END = 1, KL_INDEX_DROP = 2 };

/* How an element of an update is combined with the element of a at its index, and with other elements of the update
 * that have the same index.  SET: the last one in row-major order of the index is kept.  MEAN: the mean of the element
 * of a and of all elements of the update for it; of integers rounded toward zero.  MUL and MEAN of halfs are computed
 * in f32 and rounded once. */
typedef enum kl_scatter_kind {
    KL_SCATTER_SET, KL_SCATTER_ADD, KL_SCATTER_MUL, KL_SCATTER_MIN, KL_SCATTER_MAX, KL_SCATTER_MEAN
} kl_scatter_kind;

/* a: [B..., D1..DK, rest...]  index: [B..., I..., K]  ->  [B..., I..., rest...]: for each row of the index the element
 * (or slice) of a at these K coordinates.  The first `batch` axes, B, are the same in both and chosen in step.
 * [SHAPE: K is not 1..rank, the batch axes differ, an indexed axis has no elements without DROP; TYPE; ARGUMENT] */
KL_API_AT kl_tensor kl_gather_nd(kl_tensor a, kl_tensor index, int batch, unsigned flags);
/* a: [D1..DK, rest...]  index: [I..., K]  update: [I..., rest...]  ->  a with the slices of update combined with those
 * of a that the index names.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_scatter_nd(kl_tensor a, kl_tensor index, kl_tensor update, kl_scatter_kind kind, unsigned flags);

/* Elements along an axis by an index for each element, as in kl_take_along_axis; the index may also be shorter than a
 * in the other axes.  The result has the index's shape.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_take_along_axis_with(kl_tensor a, int axis, kl_tensor index, unsigned flags);
/* The inverse: a with each element of update, of the index's shape, combined with the element of a that the index
 * selects.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_put_along_axis_with(kl_tensor a, int axis, kl_tensor index, kl_tensor update,
                                           kl_scatter_kind kind,
                                           unsigned flags);

/* a[index[0], index[1], ...], as in numpy: n (up to rank) indices that broadcast with each other, one for each of the
 * first axes, kl_none for an axis that is not indexed; later axes are not indexed.  The indices' axes replace the
 * indexed ones where these are adjacent, else they come first.  For a mask pass the indices of kl_nonzero.  [SHAPE,
 * TYPE, ARGUMENT: n, or no index at all] */
KL_API_AT kl_tensor kl_index(kl_tensor a, int naxes, const kl_tensor *index, unsigned flags);
/* a with the elements that kl_index gives combined with those of update, which is broadcast to that shape.
 * [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_index_put(kl_tensor a, int naxes, const kl_tensor *index, kl_tensor update, kl_scatter_kind kind,
                                 unsigned flags);

/* Where the elements beyond a border come from.  REFLECT: back from the border, which is not repeated, cb|abc|ba;
 * EDGE: the nearest one, aa|abc|cc; WRAP: from the other end, bc|abc|ab; SYMMETRIC: as reflect with the border
 * repeated, ba|abc|cb.  Beyond a whole length they go on in the same way. */
typedef enum kl_border { KL_BORDER_REFLECT, KL_BORDER_EDGE, KL_BORDER_WRAP, KL_BORDER_SYMMETRIC } kl_border;

/* a with so many elements before and behind each axis (NULL: none; one number an axis); a number below 0 cuts so many
 * off first.  [SHAPE: an axis with no elements left cannot be continued, or more is cut off than there is; ARGUMENT] */
KL_API_AT kl_tensor kl_pad_border(kl_tensor a, const int64_t *low, const int64_t *high, kl_border border);

#ifdef __cplusplus
}
#endif
#endif
#endif
