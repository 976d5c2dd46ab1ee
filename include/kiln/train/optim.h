/* Optimizers, gradient clipping and accumulation, averages of parameters, learning rates by step.  Included by
 * <kiln/train.h>.
 *
 *     kl_optimizer *opt = kl_adam(n, parameters, NULL);
 *     ... in each trace:  kl_optimizer_step(opt, loss, kl_rate_cosine(step, steps, 1e-3, 1e-5));
 *     kl_optimizer_free(opt);
 *
 * A step records the gradients of the loss and the assignments of new values to the parameters and to the optimizer's
 * own tensors, all in the open trace.  The learning rate and all other numbers are runtime scalars, so a schedule does
 * not cause another compilation. */
#ifndef KILN_OPTIM_H
#define KILN_OPTIM_H
#include <kiln/train/params.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_optimizer kl_optimizer;

/* In the formulas p is a parameter, g its gradient, lr the learning rate; t counts the steps from 1.  States begin
 * as zeros; kl_optimizer_state names them by the letters below.  A state has the parameter's dtype, or f32 if the
 * parameter is f16 or bf16: the formulas are then computed in f32, and p is rounded once.  While gradients stay 0,
 * states do not decay to subnormal numbers, which are slow: a moving average with the weights beta and 1 - beta is
 * set to 0 where its magnitude is below 2^-126 / min(beta, 1 - beta), and "m" of SGD and RMSprop where it is below
 * 2^-126 (f64: 2^-1022 instead of 2^-126).  For parameters of an attached tree that have their own factors
 * (kl_optimizer_attach), lr * rate replaces lr and weight_decay * decay replaces weight_decay.
 *
 * Options: NULL, or a number that is 0, means the default, which is given with the number.  A negative beta, alpha,
 * eps, decay_power or clip means 0. */

/* Stochastic gradient descent.  With momentum 0, v is g + weight_decay p and there is no state.  Nesterov's variant
 * needs momentum:
 *   v = momentum v + g + weight_decay p
 *   p = p - lr v                                         Nesterov: p - lr (momentum v + g + weight_decay p)
 * State with momentum: "m", which is v. */
typedef struct kl_sgd_options {
    double momentum, weight_decay; /* 0, 0 */
    bool nesterov;
} kl_sgd_options;

/* Adam, with the decoupled weight decay of AdamW:
 *   m = beta1 m + (1 - beta1) g
 *   v = beta2 v + (1 - beta2) g g
 *   p = (1 - lr weight_decay) p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 * States "m", "v". */
typedef struct kl_adam_options {
    double beta1, beta2, eps, weight_decay; /* 0.9, 0.999, 1e-8, 0 */
} kl_adam_options;

/* Lion (Chen et al. 2023):
 *   p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g)
 *   m = beta2 m + (1 - beta2) g
 * State "m". */
typedef struct kl_lion_options {
    double beta1, beta2, weight_decay; /* 0.9, 0.99, 0 */
} kl_lion_options;

/* RMSprop:
 *   g = g + weight_decay p
 *   v = alpha v + (1 - alpha) g g
 *   centered:  a = alpha a + (1 - alpha) g,  and v - a a in place of v below
 *   u = g / (sqrt(v) + eps)
 *   momentum:  m = momentum m + u,  and m in place of u below
 *   p = p - lr u
 * States "v", "a" if centered, "m" with momentum. */
typedef struct kl_rmsprop_options {
    double alpha, eps, momentum, weight_decay; /* 0.99, 1e-8, 0, 0 */
    bool centered;
} kl_rmsprop_options;

/* Adafactor (Shazeer and Stern 2018), without a first moment.  rms(x) is the square root of the mean of squares.
 *   b = 1 - t^-decay_power
 *   of one axis:  v = b v + (1 - b) (g g + eps1),  u = g / sqrt(v)
 *   of more, over the last two:
 *     r = b r + (1 - b) mean(g g + eps1, last axis),  c = b c + (1 - b) mean(g g + eps1, the one before it)
 *     u = g / (sqrt(r / mean(r)) sqrt(c))
 *   u = u / max(1, rms(u) / clip)                        clip negative: not clipped
 *   a = lr max(eps2, rms(p)), unscaled: lr
 *   p = (1 - lr weight_decay) p - a u
 * States "v", or "r" and "c", whose sizes are those of rows and columns.  eps1 is above 0. */
typedef struct kl_adafactor_options {
    double decay_power, eps1, eps2, clip, weight_decay; /* 0.8, 1e-30, 1e-3, 1, 0 */
    bool unscaled;
} kl_adafactor_options;

/* An optimizer of n different float tensors that outlive the traces.  Options NULL: the defaults.  If it is made inside
 * a trace, its tensors belong to that trace.  [errors ARGUMENT: also a tensor that is there twice, Nesterov without
 * momentum, a number that is not finite, a beta or alpha of 1 or more; HANDLE, TYPE, MEMORY: NULL] */
KL_API_AT kl_optimizer *kl_sgd(int64_t n, const kl_tensor *param, const kl_sgd_options *options);
KL_API_AT kl_optimizer *kl_adam(int64_t n, const kl_tensor *param, const kl_adam_options *options);
KL_API_AT kl_optimizer *kl_lion(int64_t n, const kl_tensor *param, const kl_lion_options *options);
KL_API_AT kl_optimizer *kl_rmsprop(int64_t n, const kl_tensor *param, const kl_rmsprop_options *options);
KL_API_AT kl_optimizer *kl_adafactor(int64_t n, const kl_tensor *param, const kl_adafactor_options *options);

/* Attaches a tree.  From this call on steps use the tree's settings of the optimizer's parameters: frozen parameters
 * are skipped, the learning rate and the weight decay are multiplied by the tree's factors, and kl_optimizer_state
 * uses the tree's names.  The tree must outlive the optimizer.
 * [errors ARGUMENT: a parameter is not in the tree] */
KL_API kl_status kl_optimizer_attach(kl_optimizer *opt, const kl_params *params);

/* Records one step against the gradient of `loss`.  [errors ARGUMENT: no optimizer, TRACE: no open trace, GRAD: the
 * loss depends on no parameter, or a parameter was assigned in the trace after the loss had used it, and those of
 * kl_grad and kl_assign] */
KL_API_AT kl_status kl_optimizer_step(kl_optimizer *opt, kl_tensor loss, double lr);
/* Records one step with these gradients, one for each parameter in order; kl_none: that parameter is skipped.
 *
 *     kl_grads(loss, n, parameters, g);  kl_clip_norm(n, g, 1.0);  kl_optimizer_step_gradients(opt, g, lr);
 *
 * [errors as above; SHAPE: a gradient does not have its parameter's shape; TYPE: it has another dtype, where any of
 * f16, bf16 and f32 may be combined] */
KL_API_AT kl_status kl_optimizer_step_gradients(kl_optimizer *opt, const kl_tensor *gradients, double lr);

/* The number of steps recorded so far (t in the formulas).  Set it when training resumes, or reduce it by one after
 * a trace that failed.  [errors ARGUMENT] */
KL_API int64_t kl_optimizer_steps(const kl_optimizer *opt);
KL_API kl_status kl_optimizer_set_steps(kl_optimizer *opt, int64_t steps);

/* The optimizer's own tensors, for checkpoints.  kl_optimizer_states returns their number.  kl_optimizer_state
 * returns tensor number i and its name: "h.0.fc.weight.m" for a parameter of an attached tree, else "0.m" with the
 * parameter's number.  *name is valid until the next call on this optimizer; the optimizer owns *tensor (kl_assign
 * sets its value).  [errors ARGUMENT: no such number] */
KL_API int64_t kl_optimizer_states(const kl_optimizer *opt);
KL_API kl_status kl_optimizer_state(kl_optimizer *opt, int64_t i, const char **name, kl_tensor *tensor);

/* Writes the numbers that change from step to step to slots[], as names and values for the next run of a frozen step
 * (step.h) that recorded kl_optimizer_step, and counts a step.  slots[] must have room for KL_OPTIMIZER_SLOTS.
 * Returns how many it wrote.  Recording the frozen step counted a step that did not run; correct the count with
 * kl_optimizer_set_steps.  A frozen step keeps the factors that an attached tree had when the step was recorded.
 *
 *     n = kl_optimizer_slots(opt, learning_rate, slots);  kl_step_run(step, 1, &x, n, slots, 0, NULL);
 *
 * [errors ARGUMENT: 0] */
#define KL_OPTIMIZER_SLOTS 5
KL_API int64_t kl_optimizer_slots(kl_optimizer *opt, double lr, kl_slot *slots);

/* Frees the optimizer and releases its own tensors, but not the parameters.  NULL is allowed. */
KL_API void kl_optimizer_free(kl_optimizer *opt);

/* ---- gradients between kl_grads and a step; entries that are kl_none are skipped ---- */

/* Multiplies all gradients by min(1, most / norm), where norm is the square root of the sum of all their squares, and
 * replaces them in the array.  Returns the norm before clipping, [] of the first gradient's dtype.  A norm that is not
 * finite makes all of them NaN: check it, or use kl_loss_scale.  [errors ARGUMENT: no gradients, most is not above 0;
 * TYPE, DEVICE: poison] */
KL_API_AT kl_tensor kl_clip_norm(int64_t n, kl_tensor *gradients, double max);
/* Clamps each element to the range from -most to most.  [errors ARGUMENT; TYPE] */
KL_API_AT kl_status kl_clip_value(int64_t n, kl_tensor *gradients, double max);

/* Sums gradients over several small batches, which then count as one batch.
 *     kl_accumulator_add(acc, g);                                 // in the traces of the first k - 1 batches
 *     kl_accumulator_take(acc, g); kl_optimizer_step_gradients(opt, g, lr);     // in that of the last one */
typedef struct kl_accumulator kl_accumulator;
/* Makes an accumulator for the gradients of n tensors.  [errors as kl_sgd: NULL] */
KL_API_AT kl_accumulator *kl_accumulator_new(int64_t n, const kl_tensor *param);
/* Records the addition of n gradients, in the order of the tensors.  [errors ARGUMENT; TRACE: none is open; SHAPE] */
KL_API_AT kl_status kl_accumulator_add(kl_accumulator *acc, const kl_tensor *gradients);
/* Replaces gradients[] by the means of these gradients and of those that were added since the last take, and records
 * that the sums become zeros.  [errors as above] */
KL_API_AT kl_status kl_accumulator_take(kl_accumulator *acc, kl_tensor *gradients);
KL_API void kl_accumulator_free(kl_accumulator *acc); /* NULL is allowed */

/* Exponential moving averages of tensors, which often give better results than the tensors themselves: average =
 * decay average + (1 - decay) tensor.  The first averages are the tensors' values when the container is made.
 * Averages of f16 and bf16 tensors are f32; kl_ema_swap rounds them when it makes them the tensor's value. */
typedef struct kl_ema kl_ema;
/* Makes averages of n tensors.  [errors as kl_sgd; ARGUMENT: decay outside of 0..1: NULL] */
KL_API_AT kl_ema *kl_ema_new(int64_t n, const kl_tensor *param, double decay);
/* Records one update of the averages.  Call it in the trace of a step, after the step.  [errors ARGUMENT; TRACE:
 * none is open] */
KL_API_AT kl_status kl_ema_update(kl_ema *ema);
/* Records the exchange of tensors and averages.  Call it once before an evaluation and once after it.  [errors
 * ARGUMENT; TRACE] */
KL_API_AT kl_status kl_ema_swap(kl_ema *ema);
/* The average of tensor number i; the container owns it.  [errors ARGUMENT: kl_none] */
KL_API kl_tensor kl_ema_average(const kl_ema *ema, int64_t i);
KL_API void kl_ema_free(kl_ema *ema); /* NULL is allowed */

/* ---- learning rates by step: functions of a step number that starts from 0 ----
 *
 *     rate = kl_rate_warmup(step, 100) * kl_rate_cosine(step - 100, steps - 100, 6e-4, 6e-5); */

/* A factor: (step + 1) / steps, but at most 1; it is 1 if steps is 0. */
KL_API double kl_rate_warmup(int64_t step, int64_t steps);
/* The rate goes from `first` at step 0 to `last` at step `steps`, linearly or as half a cosine wave.  It is `first`
 * below step 0 and `last` above `steps`. */
KL_API double kl_rate_linear(int64_t step, int64_t steps, double first, double last);
KL_API double kl_rate_cosine(int64_t step, int64_t steps, double first, double last);
/* first times factor^n, where n is the number of completed intervals of `every` steps. */
KL_API double kl_rate_steps(int64_t step, int64_t every, double first, double factor);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/train/optim.h> /* made from the prototypes marked KL_API_AT */
#endif
