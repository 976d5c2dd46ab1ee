/* The layers' interface for the rest of the frontend. */
#ifndef KILN_LAYERS_H
#define KILN_LAYERS_H
#include "frontend/record/region.h"

/* ---- layers/wrapper.c: see layers/wrapper.h ---- */
struct kl_call;
kl_status layer_call(struct kl_call *c, const struct op_kernel *k);
const struct op_kernel *layer_kernel(unsigned layer); /* of all ops of ops.def; NULL: the layer has none */
/* reports that x is not a plain tensor; false */
bool wrapper_refuse(const struct entry *x, const char *what, struct err *e);
void wrapper_release(struct entry *x); /* its parts, as kl_release does */
void wrapper_end(struct entry *x, enum death how); /* of any entry: its parts, outside of traces; needs the lock then */
enum { WRAPPER_PARTS = 8 };
bool wrapper_parts(kl_tensor h, kl_tensor part[WRAPPER_PARTS], uint32_t *n); /* false: it is no wrapper */
unsigned wrapper_grad_parts(kl_tensor h);         /* of a wrapper: bit i: part i has a gradient */
bool wrapper_same_kind(kl_tensor a, kl_tensor b); /* equal except for their parts */

/* ---- layers/autocast.c ---- */
bool autocast_is_on(const struct thread *t);      /* is a block of f16 or bf16 open? */
unsigned autocast_depth(const struct thread *t);  /* the number of open blocks */
void autocast_end_to(struct thread *t, unsigned depth); /* ends the innermost blocks, until depth are open */

/* ---- layers/op_profile.c ---- */
void op_profile_free(struct op_profile *p);

/* ---- layers/tracer.c ---- */
void tracer_assigned(struct thread *t, kl_tensor state, kl_tensor value); /* the state means the value from here on */

#endif
