/* Optimizers: how parameters change from their gradients.  Included by <kiln/kiln.h>.
 *
 *     kl_optimizer *opt = kl_adam(parameters, n, NULL);
 *     ... in each trace:  kl_optimizer_step(opt, loss, learning_rate);
 *     kl_optimizer_free(opt);
 *
 * A step records the gradients of the loss and the assignments of new values to the parameters and to the
 * optimizer's own tensors, all in the open trace.  The learning rate and all other numbers reach the program as
 * run-time slots, so a schedule never compiles again. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_OPTIM_H
#define KILN_OPTIM_H
#include <kiln/step.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_optimizer kl_optimizer;

/* Stochastic gradient descent, with momentum unless that is 0 (then v = g):
 *   v = momentum v + g + weight_decay p
 *   p = p - lr v */
typedef struct kl_sgd_options {
    double momentum, weight_decay;
} kl_sgd_options;

/* Adam, with the decoupled weight decay of AdamW; t counts the steps from 1:
 *   m = beta1 m + (1 - beta1) g
 *   v = beta2 v + (1 - beta2) g g
 *   p = (1 - lr weight_decay) p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) */
typedef struct kl_adam_options {
    double beta1, beta2, eps, weight_decay;
} kl_adam_options;

/* An optimizer of n different float tensors that outlive the traces.  Options NULL: no momentum and no decay for
 * SGD; beta1 0.9, beta2 0.999, eps 1e-8 and no decay for Adam.  Made inside a trace, its tensors are part of that.
 * [errors ARGUMENT: also a tensor that is there twice, HANDLE, TYPE, MEMORY: NULL] */
KL_API_AT kl_optimizer *kl_sgd(const kl_tensor *param, int n, const kl_sgd_options *options);
KL_API_AT kl_optimizer *kl_adam(const kl_tensor *param, int n, const kl_adam_options *options);

/* Records one step against the gradient of `loss`.  [errors ARGUMENT: no optimizer, TRACE: no open trace, GRAD: the
 * loss depends on no parameter, or a parameter was assigned in the trace after the loss had used it, and those of
 * kl_grad and kl_assign] */
KL_API_AT kl_status kl_optimizer_step(kl_optimizer *opt, kl_tensor loss, double lr);

/* Steps recorded so far (Adam's t); set it when training resumes, or back by one after a trace that failed.
 * [errors ARGUMENT] */
KL_API int64_t kl_optimizer_steps(const kl_optimizer *opt);
KL_API kl_status kl_optimizer_set_steps(kl_optimizer *opt, int64_t steps);

/* The numbers that change from step to step, as names and values for the next run of a frozen step (step.h) that
 * recorded kl_optimizer_step; counts that run as a step.  Returns how many it wrote to slots[], which has room for
 * KL_OPTIMIZER_SLOTS.  Recording has counted a step, too, though none was run: kl_optimizer_set_steps takes it back.
 *     n = kl_optimizer_slots(opt, learning_rate, slots);  kl_step_run(step, 1, &x, n, slots, 0, NULL);
 * [errors ARGUMENT: 0] */
#define KL_OPTIMIZER_SLOTS 3
KL_API int kl_optimizer_slots(kl_optimizer *opt, double lr, kl_slot *slots);

/* Frees the optimizer and releases its tensors, not the parameters.  NULL is fine. */
KL_API void kl_optimizer_free(kl_optimizer *opt);

#ifdef __cplusplus
}
#endif
#endif
