/* Frozen steps: a trace recorded once and run many times without recording.  Included by <kiln/kiln.h>.
 *
 *     kl_trace_begin("train_step");
 *     kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){128, 784}, images);
 *     kl_tensor y = kl_input(dev, KL_I32, 1, (int64_t[]){128}, labels);
 *     kl_tensor lr = kl_scalar(dev, KL_F32, 0.1);
 *     kl_set_name(lr, "lr");
 *     kl_tensor loss = kl_keep(kl_cross_entropy(kl_matmul(x, w), y));
 *     kl_assign(w, kl_sub(w, kl_mul(kl_grad(loss, w), lr)));
 *     kl_step *step = kl_step_end(2, (kl_tensor[]){x, y});
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
 * Any number of threads may run one step at once; runs that assign the same tensor come one after the other. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_STEP_H
#define KILN_STEP_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_step kl_step;

/* A number for all slots of a name. */
typedef struct kl_slot {
    const char *name;
    double value;
} kl_slot;

/* Ends the open trace without running it, and compiles it unless known.  Each run is given tensors for inputs[], which
 * were made by kl_input or kl_wrap in the trace, and writes what was kept with kl_keep, in that order.  Tensors from
 * outside that the trace used are states: each run reads the value they then have and assigns what the trace assigned,
 * so they must live as long as the step is run.  A kl_scalar that was given a name by kl_set_name can be given a number
 * at each run; several may share a name.  All other inputs and numbers stay as they were recorded.  So does a seed
 * given as a number: kl_dropout has the same mask, kl_rand the same numbers in each run.  A seed that changes from run
 * to run is a tensor, an input or a state that the step assigns (kl_dropout_seeded, kl_rand_seeded and their like).
 * [errors NULL: TRACE without a begin, ARGUMENT, HANDLE: an input that is none, those of kl_trace_end] */
KL_API_AT kl_step *kl_step_end(int ninputs, const kl_tensor *inputs);
/* Runs it: inputs of the shapes, dtypes and devices recorded; numbers by name, the others as recorded; outputs[] are
 * new handles, which the caller releases.  After an error every value is as before, and outputs[] are kl_none. [errors
 * ARGUMENT: a wrong count or name; SHAPE, TYPE, DEVICE: an input does not fit; HANDLE: an input or a state that was
 * released; TRACE: one is open; those of running] */
KL_API_AT kl_status kl_step_run(const kl_step *step, int ninputs, const kl_tensor *inputs, int nslots,
                                const kl_slot *slots, int noutputs, kl_tensor *outputs);
/* Outputs of a run, -1 for NULL. */
KL_API int kl_step_outputs(const kl_step *step);
/* Once no thread runs it.  NULL is fine. */
KL_API void kl_step_free(kl_step *step);

#ifdef __cplusplus
}
#endif
#endif
