/* Layers: tensors stored in another way than dense, and what ops do with them.
 *
 * A handle of such a tensor is a wrapper: it has the shape, dtype and device that it stands for, its layer's bit among
 * its keys, and parts, plain tensors of its own (the values and indices of a sparse one, the integers and scales of a
 * quantized one).  An op on it resolves to its layer, whose function records ops on the parts and wraps what they give.
 * Nothing else knows of layers: what they record is recorded as any call is, so it fuses, differentiates and replays.
 *
 * Each file here is one layer, described by a struct layer. */
#ifndef KILN_WRAPPER_H
#define KILN_WRAPPER_H
#include "frontend/frontend.h"

enum { MAX_PARTS = WRAPPER_PARTS, WRAPPER_NUMBERS = 10 };

struct layer {
    const char *name;            /* "sparse", in messages: "a sparse tensor" */
    unsigned key;                /* LAYER_Sparse */
    unsigned grad_parts;         /* bit i: part i is a float that gradients flow to; 0: kl_grad refuses */
    /* An op of ops.def, c->in among which are wrappers of this layer, but not copy and grad: those go part by part. */
    kl_tensor (*call)(struct thread *t, const struct call *c);
    kl_tensor (*dense)(struct thread *t, kl_tensor h); /* all it stands for, as a plain tensor */
};
extern const struct layer layer_complex, layer_quantized, layer_sparse, layer_named, layer_nested, layer_blocked;

struct wrapper {
    const struct layer *layer;
    uint32_t n;
    kl_tensor part[MAX_PARTS];   /* its own; kl_none: without */
    int64_t number[WRAPPER_NUMBERS]; /* whatever else the layer has to know: no pointers to what could go */
};

/* ---- wrapper.c ---- */
/* A new handle for what v describes, with parts of its own that mean what part[] mean now.  number: WRAPPER_NUMBERS of
 * them, or NULL.  A part that is poison makes it poison. */
kl_tensor wrap(struct thread *t, const struct layer *layer, const struct view *v, uint32_t n,
               const kl_tensor *part, const int64_t *number);
/* Another handle for what h means, in the open scope or trace. */
kl_tensor wrapper_duplicate(struct thread *t, kl_tensor h);
/* Of a live handle of that layer (NULL: of any); else NULL. */
const struct wrapper *wrapper_of(kl_tensor h, const struct layer *layer);
/* The same call on other operands. */
kl_tensor call_with(const struct call *c, kl_tensor a, kl_tensor b, kl_tensor d);
/* The call on the operands as plain tensors: of an op that the layer knows nothing better for. */
kl_tensor call_dense(struct thread *t, const struct call *c, const struct layer *layer);
/* A failure of the call: "op: ..." */
kl_tensor call_refused(struct thread *t, const struct call *c, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Its shape and dtype; they are known, so it cannot fail. */
struct view view_of(kl_tensor h);

#endif
