/* Layers: what changes how ops are recorded, op by op.  Included by <kiln/kiln.h>.
 *
 * Each is a key of <kiln/dispatch.h> that a block or a call includes on its thread.  A layer acts while recording and
 * records ordinary ops, so that what it makes is fused, differentiated and run on every device like anything else; code that
 * uses tensors does not know that one is active.  They nest: autocast inside of vmap, vmap inside of vmap, both under a
 * profiler or tracer. */
#ifndef KILN_LAYERS_H
#define KILN_LAYERS_H
#include <kiln/control.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- vmap: a function of one element, on a batch of them (key Batched) ----
 *
 *     static kl_status sample_gradient(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
 *     {
 *         kl_tensor w = *(kl_tensor *)ctx, loss = kl_cross_entropy(kl_matmul(in[0], w), in[1]);   // of one sample
 *         out[0] = kl_grad(loss, w);
 *         return KL_OK;
 *     }
 *     kl_vmap(sample_gradient, &w, 2, (kl_tensor[]){images, labels}, NULL, 1, &gradients, NULL, KL_RANDOM_ERROR);
 *
 * The function is called once and sees one element: in[] without the axis that is mapped.  What it does is recorded once
 * for the whole batch: the number of ops does not depend on its length, and out[i] is f of the elements, stacked.  Other
 * tensors that it uses are the same for all elements; kl_grad in one of them gives each element's own gradient.  The
 * function is recorded like those of <kiln/control.h>, with the same rules. */

#define KL_NO_AXIS 1000 /* in in_axes: this tensor is the same for all elements */

/* Random numbers that the function asks for. */
typedef enum kl_randomness {
    KL_RANDOM_ERROR,     /* are an error */
    KL_RANDOM_SAME,      /* are those that it asks for, the same for all elements */
    KL_RANDOM_DIFFERENT  /* are others for each element: those of a tensor with the batch as axis 0 */
} kl_randomness;

/* in_axes: the axis of each in[] that is mapped (negative: from the end), KL_NO_AXIS for none; NULL: 0 for all.
 * out_axes: where the batch's axis goes in each out[]; NULL: 0 for all.  Ops that have no rule for batches are recorded for
 * each element by itself, and say so once in the log (kl_set_log).  Nests.
 * [lazy; new handles; errors ARGUMENT: nothing is mapped, no such axis, the batch is empty, batches of two lengths, random
 * numbers; SHAPE: a tensor inside has KL_MAX_RANK axes; those of the function] */
KL_API kl_status kl_vmap(kl_region_fn *fn, void *ctx, uint32_t nin, const kl_tensor *in, const int *in_axes, uint32_t nout,
                         kl_tensor *out, const int *out_axes, kl_randomness randomness);

/* ---- the same with a call site, which may be NULL ---- */
KL_API kl_status kl_vmap_at(const kl_site *site, kl_region_fn *fn, void *ctx, uint32_t nin, const kl_tensor *in,
                            const int *in_axes, uint32_t nout, kl_tensor *out, const int *out_axes, kl_randomness randomness);

#ifndef KL_NO_CALL_SITES
#define kl_vmap(...) kl_vmap_at(KL_HERE, __VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif
