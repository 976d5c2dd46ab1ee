/* Tensors that are not stored dense: the functions common to them.  Included by <kiln/kiln.h>.
 *
 * complex.h, quantized.h, sparse.h, named.h, nested.h and blocked.h make such tensors.  Every function that takes a
 * tensor accepts their handles.  Each op that the layer implements records ordinary nodes on their parts; other ops
 * either compute on kl_dense or fail with an error, as the layer's header says. kl_shape, kl_dtype_of and kl_device_of
 * return those of the dense tensor that it stands for. kl_keep, kl_release, kl_assign (from a tensor stored in the same
 * way), kl_requires_grad, kl_grad and kl_to apply to all parts. kl_read returns the elements of kl_dense.  Recorded
 * functions of loops and branches take plain tensors as parameters, but may use any tensor from outside. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_STORAGE_H
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
KL_API uint32_t kl_layer_parts(kl_tensor t);
/* Describes the storage: "sparse f32[5,4]: f32[7] i32[6] i32[7]", with "none" for a part that is absent; "" for a plain
 * tensor, or a bad handle.  Cut at size; returns buf. */
KL_API char *kl_layer_text(kl_tensor t, char *buf, size_t size);
/* Part i, in the order in which the layer's header names the parts: a new handle of the same values.  [ARGUMENT: no
 * such part] */
KL_API_AT kl_tensor kl_layer_part(kl_tensor t, uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
