/* Complex numbers as pairs of floats.  Included by <kiln/kiln.h>; see storage.h.
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
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_COMPLEX_H
#define KILN_COMPLEX_H

#ifdef __cplusplus
extern "C" {
#endif

/* From two floats of one dtype that broadcast.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_complex(kl_tensor re, kl_tensor im);
/* The parts, real tensors; of a real tensor itself and zeros. */
KL_API_AT kl_tensor kl_real(kl_tensor a);
KL_API_AT kl_tensor kl_imag(kl_tensor a);
KL_API_AT kl_tensor kl_conj(kl_tensor a); /* with the imaginary part negated; of a real tensor itself */
KL_API_AT kl_tensor kl_angle(kl_tensor a); /* of the number in -pi .. pi; floats */

#ifdef __cplusplus
}
#endif
#endif
