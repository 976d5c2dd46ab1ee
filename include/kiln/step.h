/* Frozen steps: a trace recorded once and run many times without recording.  Included by <kiln/kiln.h>.
 *
 *     kl_trace_begin("train_step");
 *     kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){128, 784}, images);
 *     kl_tensor y = kl_input(dev, KL_I32, 1, (int64_t[]){128}, labels);
 *     kl_tensor lr = kl_scalar(dev, KL_F32, 0.1);
 *     kl_set_name(lr, "lr");
 *     kl_tensor loss = kl_keep(kl_cross_entropy(kl_matmul(x, w), y));
 *     kl_assign(w, kl_sub(w, kl_mul(kl_grad(loss, w), lr)));
 *     kl_step *step = kl_trace_end_step(2, (kl_tensor[]){x, y});
 *     if (!step) { fprintf(stderr, "%s\n", kl_last_error()); return 1; }
 *
 *     for (...) {
 *         kl_tensor in[2] = {kl_input(...), kl_input(...)}, out[1];
 *         kl_slot slot[1] = {{"lr", rate}};
 *         if (kl_step_run(step, 2, in, 1, slot, 1, out) != KL_OK) ...;
 *         printf("%f\n", kl_item_f32(out[0]));
 *         kl_release(out[0]), kl_release(in[0]), kl_release(in[1]);
 *     }
 *     kl_step_free(step);
 *
 * Any number of threads may run one step concurrently; runs that assign the same tensor are serialised. */
#ifndef KILN_STEP_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_STEP_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_step kl_step;

/* A value for all slots of this name. */
typedef struct kl_slot {
    const char *name;
    double value;
} kl_slot;

/* Ends the open trace without running it, and compiles it unless its program is cached.
 * - Inputs: each run takes tensors in place of inputs[], which were made by kl_input or kl_wrap in the trace.
 * - Outputs: each run returns the tensors that were kept with kl_keep, in that order.
 * - States: tensors made outside the trace that it uses.  Each run reads their current values and assigns what the
 *   trace assigned, so they must not be released before the step is freed.
 * - Slots: a kl_scalar that kl_set_name gave a name can get a number at each run; several may share a name.
 * - All other inputs and numbers stay as recorded, and equal numbers are one, so that layers that are alike have the
 *   same kernels, and what they compute of numbers alone is computed once.  This includes seeds given as numbers:
 *   kl_dropout has the same mask and kl_rand the same numbers in each run.  A seed that changes from run to run is a
 *   tensor: an input, or a state that the step assigns (kl_dropout_seeded, kl_rand_seeded and similar functions).
 *
 * [errors NULL: TRACE without a begin, ARGUMENT, HANDLE: inputs[] has a tensor that is no input of the trace, those of
 * kl_trace_end] */
KL_API_AT kl_step *kl_trace_end_step(int64_t ninputs, const kl_tensor *inputs);
/* Runs the step.  Inputs have the recorded shapes, dtypes and devices; slots without a number here keep the recorded
 * one; outputs[] are new handles, which the caller releases.  After an error every value is as before, and outputs[]
 * are kl_none.  [errors ARGUMENT: a wrong count or name; SHAPE, TYPE, DEVICE: an input does not fit; HANDLE: an input
 * or a state that was released; TRACE: one is open; those of running] */
KL_API_AT kl_status kl_step_run(const kl_step *step, int64_t ninputs, const kl_tensor *inputs, int64_t nslots,
                                const kl_slot *slots, int64_t noutputs, kl_tensor *outputs);
/* The number of outputs of a run, -1 for NULL. */
KL_API int64_t kl_step_outputs(const kl_step *step);
/* Frees the step; no thread may be running it.  NULL is allowed. */
KL_API void kl_step_free(kl_step *step);

#ifdef __cplusplus
}
#endif
#endif
#endif
