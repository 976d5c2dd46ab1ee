/* Tensors that are stored in another way than dense: what is common to them.  Included by <kiln/kiln.h>.
 *
 * complex.h, quantized.h, sparse.h, named.h, nested.h and blocked.h make such tensors.  Their handles go wherever
 * tensors go: each op does with them what its layer knows, records ordinary nodes on their parts, and is an error that
 * says so where it knows nothing.  kl_shape, kl_dtype_of and kl_device_of are those of what they stand for; kl_keep,
 * kl_release, kl_assign (one stored in the same way), kl_requires_grad, kl_grad and kl_to are meant of all their parts.
 * kl_read gives the elements of kl_dense.  Loops, branches and other functions that are recorded take plain tensors
 * only, but use any from outside. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_STORAGE_H
#define KILN_STORAGE_H

#ifdef __cplusplus
extern "C" {
#endif

/* What it stands for as a plain tensor: zeros where a sparse one stores nothing, floats of a quantized one, a last axis
 * of two for the real and imaginary parts of a complex one, the values of a nested one, a named one without its
 * names. */
KL_API_AT kl_tensor kl_dense(kl_tensor a);
/* "complex", "quantized", "sparse", "named", "nested", "blocked"; "" for a plain tensor, or a bad handle. */
KL_API const char *kl_layer_name(kl_tensor t);
/* How many parts it is stored as; 0 for a plain tensor, or a bad handle. */
KL_API uint32_t kl_layer_parts(kl_tensor t);
/* How it is stored: "sparse f32[5,4]: f32[7] i32[6] i32[7]", a part that it is without as "none"; "" for a plain
 * tensor, or a bad handle.  Cut at size; returns buf. */
KL_API char *kl_layer_text(kl_tensor t, char *buf, size_t size);
/* One of them, in the order in which its header names them: a new handle of the same values.  [ARGUMENT: it has
 * none] */
KL_API_AT kl_tensor kl_layer_part(kl_tensor t, uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
