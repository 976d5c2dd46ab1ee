/* For programs written for other dispatchers: key sets of 16 bits with their own order of keys.  Included by who wants
 * it.  <kiln/dispatch.h> has the keys; those that stand for no device of Kiln's are at KL_KEYS there. */
#ifndef KILN_COMPAT_H
#define KILN_COMPAT_H
#include <kiln/dispatch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The 16-bit view with eleven keys, whose numbers are their bits; bits 11 to 15 are User1 to User5.  Calls use the
 * priority order of kl_key, unless the set has the order of these numbers (kl_keyset_order16). */
typedef enum kl_key16 {
    KL_KEY16_Cpu, KL_KEY16_Cuda, KL_KEY16_Meta, KL_KEY16_Sparse, KL_KEY16_Quantized, KL_KEY16_Nested, KL_KEY16_Autocast,
    KL_KEY16_Autograd, KL_KEY16_Vmap, KL_KEY16_Profiler, KL_KEY16_Tracer /* TracerOuter */
} kl_key16;
/* Exact: kl_keyset_to16 of the result gives the same 16 bits. */
KL_API kl_keyset kl_keyset_from16(uint16_t bits);
/* false: the set has a component without a bit in the view; *bits then has the others. */
KL_API bool kl_keyset_to16(kl_keyset set, uint16_t *bits);
/* The set with the priority order of the 16-bit view: Autocast is below Autograd, whose kernels then see operands
 * before their casts, and Meta is below Sparse, Quantized and Nested.  Otherwise the orders agree.  The order is a flag
 * of the set; unions and kl_keyset_below keep it.  If a guard includes the set, the order applies to all calls of the
 * thread.
 *
 *     kl_guard before = kl_dispatch_guard(kl_keyset_order16((kl_keyset){0}), (kl_keyset){0}); */
KL_API kl_keyset kl_keyset_order16(kl_keyset set);

#ifdef __cplusplus
}
#endif
#endif
