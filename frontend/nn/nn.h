/* Internal header of composites: checking operands and widening halfs. */
#ifndef KILN_NN_INTERNAL_H
#define KILN_NN_INTERNAL_H
#include "frontend/record/record.h"

/* ---- nn/widen.c ---- */
/* An operand of the open composite in the dtype that the composite computes in (dtype_compute).  The end of the
 * composite rounds the result to the operand's dtype. */
kl_tensor widen(struct thread *t, kl_tensor h);
kl_tensor widen_view(struct thread *t, kl_tensor h, struct view *v); /* and its view */
/* The same, except under autocast, where the policies of the recorded ops decide. */
kl_tensor widen_by_policy(struct thread *t, kl_tensor h, struct view *v);
kl_tensor narrowed(struct thread *t, kl_tensor result); /* for compose_end */
/* Under autocast: reported, and true. */
bool autocast_refuses(struct thread *t, const char *op, const char *instead);

/* ---- nn/attention.c ---- */
/* kl_attention with a scale of the scores; 0: its own */
kl_tensor attention_scaled(kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask, bool causal, double scale);

/* ---- nn/activation.c ---- */
/* Starts composite `op` of a floating tensor, whose view it gives; NULL: reported, and op_failed() is the result. */
struct thread *floats_begin(const char *op, kl_tensor a, struct view *v);
/* The same of a composite that computes f16 and bf16 in f32: *a and *v are widened. */
struct thread *wide_floats_begin(const char *op, kl_tensor *a, struct view *v);
/* The same, but under autocast the policies of the ops that it records decide. */
struct thread *half_floats_begin(const char *op, kl_tensor *a, struct view *v);
/* compose_begin that reports; NULL: op_failed() is the result. */
struct thread *checked_begin(const char *op);
kl_tensor op_failed(void);                        /* poison for this thread's last error */
/* log(1 + e^-|a|), and where a is below 0. */
kl_tensor log_one_plus_exp(const struct view *v, kl_tensor a, kl_tensor *below);

/* ---- nn/loss.c: what the losses make of labels, which <kiln/nn.h> says under "labels" ---- */
struct label_kinds {
    kl_tensor valid;              /* bool, is it a class that counts? */
    kl_tensor ignored;            /* bool; kl_none: the labels' dtype does not have the ignored label */
    kl_tensor other;              /* the loss of those that are not valid: 0 of the ignored, else NaN */
};
/* labels: integers, described by y; loss: has the dtype of the losses.  All in the labels' shape, or scalars. */
struct label_kinds label_kinds(kl_tensor labels, const struct view *y, const struct view *loss,
                               int64_t classes, int64_t ignored);
#endif
