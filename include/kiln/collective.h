/* Collective operations on tensors of several devices.  Included by <kiln/kiln.h>.
 *
 * in[0..n) are n tensors, each on its own device or on a shared one; out[0..n) are the results, out[i] on the device of
 * in[i].  The elements are combined in the order of the list, independent of the devices, so the bits are the same for
 * every split.  These functions are composites of kl_to and other ops: they are differentiable and fuse like them, and
 * work inside and outside of traces and in regions.
 *
 * On any error all of out[] is poison.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, MEMORY] */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_COLLECTIVE_H
#define KILN_COLLECTIVE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Mean: the sum divided by n, floats only.  Max and min: NaN if any operand is NaN. */
typedef enum kl_reduction { KL_REDUCE_SUM, KL_REDUCE_MEAN, KL_REDUCE_MAX, KL_REDUCE_MIN } kl_reduction;

/* Every out[i]: all tensors combined element by element.  They have one shape and dtype. */
KL_API_AT kl_status kl_all_reduce(kl_reduction kind, uint32_t n, const kl_tensor *in, kl_tensor *out);
/* Every out[i]: all tensors concatenated along the axis. */
KL_API_AT kl_status kl_all_gather(int axis, uint32_t n, const kl_tensor *in, kl_tensor *out);
/* out[i]: part i of the result of kl_all_reduce, split into n equal parts along the axis. */
KL_API_AT kl_status kl_reduce_scatter(kl_reduction kind, int axis, uint32_t n, const kl_tensor *in, kl_tensor *out);
/* out[i]: a copy of the tensor on device[i]. */
KL_API_AT kl_status kl_broadcast(kl_tensor a, uint32_t n, const kl_device *device, kl_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
