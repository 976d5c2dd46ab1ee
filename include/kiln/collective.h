/* Tensors on several devices brought together.  Included by <kiln/kiln.h>.
 *
 * in[0..n) are n tensors, each on a device of its own or sharing one; out[0..n) are the results, out[i] on the device
 * of in[i].  The elements are combined in the order of the list, whatever the devices, so the bits are the same for
 * every split.  These are composites of kl_to and the ops: gradients flow through them, they work in traces, outside
 * of them and in regions, and what fuses around them fuses.
 *
 * On any error all of out[] is poison.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, MEMORY] */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_COLLECTIVE_H
#define KILN_COLLECTIVE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Mean: the sum divided by n, floats only.  Max and min: NaN if any is. */
typedef enum kl_reduction { KL_REDUCE_SUM, KL_REDUCE_MEAN, KL_REDUCE_MAX, KL_REDUCE_MIN } kl_reduction;

/* Every out[i]: all tensors combined, element by element; they are of one shape and dtype. */
KL_API_AT kl_status kl_all_reduce(kl_reduction kind, uint32_t n, const kl_tensor *in, kl_tensor *out);
/* Every out[i]: all tensors, one behind the other along the axis. */
KL_API_AT kl_status kl_all_gather(int axis, uint32_t n, const kl_tensor *in, kl_tensor *out);
/* out[i]: part i of n equal ones along the axis of what kl_all_reduce gives. */
KL_API_AT kl_status kl_reduce_scatter(kl_reduction kind, int axis, uint32_t n, const kl_tensor *in, kl_tensor *out);
/* out[i]: the tensor on device[i]. */
KL_API_AT kl_status kl_broadcast(kl_tensor a, uint32_t n, const kl_device *device, kl_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
