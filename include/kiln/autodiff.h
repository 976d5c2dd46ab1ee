/* Devices that record for gradients, and all gradients of a loss at once.  Included by <kiln/kiln.h>.
 *
 *     kl_device dev = kl_device_autodiff(kl_device_default());
 *     kl_tensor w = kl_randn(dev, KL_F32, 2, dims, 42);
 *     kl_requires_grad(w);
 *     kl_gradients *g = kl_backward(loss(w));
 *     kl_tensor dw = kl_gradients_get(g, w);            // a plain tensor
 *     kl_assign(w, kl_from_inner(kl_sub(kl_inner(w), kl_mul_scalar(dw, lr))));
 *
 * The same program on kl_device_default() computes the same without gradients.  An autodiff device is a view of another
 * device, its inner device: what is recorded on it runs on the inner device.  Tensors of the two cannot be operands of
 * one op.  kl_grad is the gradient of one tensor with respect to another and needs no such device.  On an autodiff
 * device its result is differentiable, so second gradients need no second wrapping.
 *
 * An autodiff device has a checkpointing strategy, which decides which values of the forward pass are kept for the
 * backward pass.  The others are recomputed.  Only values that cost less to compute than to store are recomputed:
 * elementwise ops and views, never products, reductions, gathers, loops or random numbers.  Gradients are the same bits
 * for every strategy. */
#ifndef KILN_AUTODIFF_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_AUTODIFF_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- devices ---- */

typedef int64_t kl_checkpointing;
#define KL_CHECKPOINT_NONE ((kl_checkpointing)-1)   /* all values are kept */
#define KL_CHECKPOINT_BALANCED ((kl_checkpointing)0) /* values that cost less to recompute are not kept */
/* n > 0: as balanced, but of those values up to n bytes are kept for one backward pass */
#define KL_CHECKPOINT_UNSET ((kl_checkpointing)-2)  /* no strategy: of a tensor that never was on an autodiff device */

/* The autodiff device over a plain one, without checkpointing.  "autodiff<cpu>" is its name.
 * [errors DEVICE; GRAD "Autodiff should not wrap an autodiff device."] */
KL_API kl_device kl_device_autodiff(kl_device device);
/* The same autodiff device with this strategy: "autodiff<cpu, balanced>", "autodiff<cpu, 4096 bytes>".
 * [errors DEVICE; GRAD: it is plain; ARGUMENT: a negative number of bytes, or more than 250 different ones] */
KL_API kl_device kl_device_gradient_checkpointing(kl_device device, kl_checkpointing strategy);
/* The plain device below an autodiff device; a plain device itself.  [errors DEVICE: {0}] */
KL_API kl_device kl_device_inner(kl_device device);
KL_API bool kl_device_is_autodiff(kl_device device);
KL_API kl_checkpointing kl_device_checkpointing(kl_device device);

/* ---- tensors ---- */

/* The same tensor on the inner device; no gradient flows through it.  For integers and bools this adds no node.  It
 * still carries the strategy, for kl_from_inner.  [lazy; new handle; errors HANDLE; GRAD "Requires autodiff
 * tensor."] */
KL_API_AT kl_tensor kl_inner(kl_tensor t);
/* The inverse of kl_inner: the tensor on the autodiff device with the strategy that t carries, or with none.  It is not
 * tracked before kl_requires_grad.  [lazy; new handle; errors HANDLE; GRAD "Autodiff should not wrap an autodiff
 * tensor."] */
KL_API_AT kl_tensor kl_from_inner(kl_tensor t);
/* The strategy that a tensor carries: that of its device, or of the autodiff device that it came from. */
KL_API kl_checkpointing kl_checkpointing_of(kl_tensor t);
/* Whether a gradient flows from t to something that kl_requires_grad marked, t itself included. */
KL_API bool kl_is_tracked(kl_tensor t);

/* ---- all gradients of a loss ---- */

/* Gradients by tensor, for one thread.  Gradients made in a trace are its temporaries. */
typedef struct kl_gradients kl_gradients;
/* The gradients of the sum of loss's elements with respect to every tensor that kl_requires_grad marked and the loss
 * depends on.  The graph is not consumed: a second call gives the same.  NULL on error.  [errors HANDLE; MEMORY; TYPE
 * "Should be float, got i32"; GRAD "Requires autodiff tensor.", "Operation not marked for autodiff.": it depends on
 * nothing that was marked] */
KL_API_AT kl_gradients *kl_backward(kl_tensor loss);
/* The gradient with respect to t, on the inner device.  The container owns it (kl_keep a gradient from a trace).
 * kl_none: there is none. */
KL_API kl_tensor kl_gradients_get(const kl_gradients *g, kl_tensor t);
/* Removes the gradient from the container; the caller owns it from here on. */
KL_API kl_tensor kl_gradients_remove(kl_gradients *g, kl_tensor t);
/* Replaces t's gradient, or adds one.  The container owns the new one, unless the call fails.  [errors HANDLE; SHAPE;
 * TYPE; MEMORY; DEVICE "The provided tensors are not on the same backend.  Got backends A and B."; GRAD: it is an
 * autodiff tensor, or carries another strategy than t] */
KL_API_AT kl_status kl_gradients_replace(kl_gradients *g, kl_tensor t, kl_tensor gradient);
KL_API int64_t kl_gradients_count(const kl_gradients *g);
/* Frees the container and the gradients in it.  NULL is allowed. */
KL_API void kl_gradients_free(kl_gradients *g);

#ifdef __cplusplus
}
#endif
#endif
#endif
