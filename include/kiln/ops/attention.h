/* Attention with more than <kiln/nn.h> has: a float mask, a scale, grouped heads, a cache of keys and values.  Included
 * by <kiln/kiln.h>. */
#ifndef KILN_OPS_ATTENTION_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_attention_options {
    kl_tensor mask;               /* as of kl_attention; or floats, broadcast to [..., L, M], added to the scores */
    double scale;                 /* of the scores; 0: 1 / sqrt(D) */
    bool causal;
    kl_tensor past_k, past_v;     /* [..., P, D] and [..., P, E]: keys and values before k and v; kl_none: none */
} kl_attention_options;
/* q: [..., H, L, D]  k: [..., G, M, D]  v: [..., G, M, E]  ->  [..., H, L, E], as kl_attention of q, of the past and k,
 * and of the past and v.  Where H is a multiple of G (grouped heads), each head of k and v serves H / G adjacent heads
 * of q.  keys and values, unless NULL: new handles for the past and k, the past and v, which are the next past.  With a
 * mask of floats the L x M scores are stored; what has the score -infinity has no weight, a row of such scores gives
 * zeros.  There keys and values have to be finite: NaN + -infinity is NaN.  options NULL: all zero.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_attention_with(kl_tensor q, kl_tensor k, kl_tensor v, const kl_attention_options *options,
                                      kl_tensor *keys, kl_tensor *values);

#ifdef __cplusplus
}
#endif
#endif
#endif
