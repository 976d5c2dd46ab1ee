/* Elements chosen by several indices at once, and tensors continued beyond their borders.  Included by <kiln/kiln.h>.
 *
 * The ops of <kiln/ops.h> choose along one axis.  Those below take a coordinate for each of several axes.  Indices are
 * integers of any dtype.  Gradients flow to the tensor and to the update, none to an index. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_OPS_INDEXING_H
#define KILN_OPS_INDEXING_H

#ifdef __cplusplus
extern "C" {
#endif

/* What an index outside of 0..length-1 means, flags that may be combined.  CLAMP: the nearest one inside, as in
 * kl_gather.  FROM_END: one below 0 counts from the end, -1 is the last element; what is still outside is clamped or
 * dropped.  DROP: a gather gives 0 there, a scatter leaves that part of the update out. */
enum { KL_INDEX_CLAMP = 0, KL_INDEX_FROM_END = 1, KL_INDEX_DROP = 2 };

/* How an element of an update is combined with the one that it meets, and with other elements of the update that meet
 * the same one.  SET: the last one in row-major order of the index stays.  MEAN: of the element itself and of all that
 * meet it; of integers rounded toward zero.  MUL and MEAN of halfs are computed in f32 and rounded once. */
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

/* Elements along an axis by an index of their own, as kl_take_along_axis has it; the index may be shorter than a in the
 * other axes, too.  The result has the index's shape.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_gather_elements(kl_tensor a, int axis, kl_tensor index, unsigned flags);
/* The other way round: a with each element of update, of the index's shape, combined with that element of a.
 * [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_scatter_elements(kl_tensor a, int axis, kl_tensor index, kl_tensor update, kl_scatter_kind kind,
                                        unsigned flags);

/* a[index[0], index[1], ...], as in numpy: n (up to rank) indices that broadcast with each other, one for each of the
 * first axes, kl_none for an axis that stays whole; axes behind them stay whole.  The indices' axes take the place of
 * the indexed ones where these are neighbours, else they come first.  For a mask take the indices of kl_nonzero.
 * [SHAPE, TYPE, ARGUMENT: n, or no index at all] */
KL_API_AT kl_tensor kl_index(kl_tensor a, int n, const kl_tensor *index, unsigned flags);
/* a with the elements that kl_index gives combined with those of update, which is broadcast to that shape.
 * [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_index_scatter(kl_tensor a, int n, const kl_tensor *index, kl_tensor update, kl_scatter_kind kind,
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
