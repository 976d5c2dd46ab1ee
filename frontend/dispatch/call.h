/* From a call to its kernel. */
#ifndef KILN_CALL_H
#define KILN_CALL_H
#include "frontend/record/record.h"

/* ---- dispatch/call.c: from a call to its kernel ---- */
struct control;
struct kl_call {
    struct thread *t;
    const struct dispatch_op *op;
    uint64_t keys;               /* that it was made with */
    kl_key key;                  /* whose kernel runs */
    uint8_t device;              /* top_device of its keys */
    bool one_device;             /* its operands are known to be on one kind of devices */
    /* what kernels give is to be looked at: one has set a result, or there is not just one */
    bool given;
    const kl_site *site;
    uint32_t nin, nout;
    kl_tensor *in, *out;
    struct call *graph;          /* an op of ops.def; or NULL */
    struct control *region;      /* graph NULL: a region op or a custom one; or NULL */
    const char *label;           /* graph NULL: its name in messages */
    /* t->reads while found[] holds the operands' entries: every call that could end one of their */
    uint64_t reads;
    struct entry *found[MAX_OPERANDS]; /* handles counts there; 0: it does not hold them */
};
static inline const char *call_label(const struct kl_call *c) { return c->graph ? c->graph->op : c->label; }
extern uint64_t device_bits[MAX_DEVICES] __attribute__((visibility("hidden"))); /* keys, by number */
void device_keys_start(void);    /* fills them */
uint64_t device_keys(kl_device d); /* none of what is no device */
/* The keys of a handle; none of one that is stale. */
static inline uint64_t handle_keys(kl_tensor h)
{
    const struct entry *x = entry_peek(h);
    return x ? device_bits[x->device] | x->layers : 0;
}
/* With those of the thread. */
static inline uint64_t thread_keys(const struct thread *t, uint64_t bits)
{
    uint64_t without = t->excluded | (t->no_grad ? LAYER_BIT(LAYER_Autograd) : 0);
    return (bits | t->included | ALWAYS_INCLUDED) & ~without;
}
/* The operands' entries, of an op of ops.def; NULL for what is no handle. */
struct entry *const *call_found(struct kl_call *c);
/* Runs the kernel that c->key and the table gave; an error is reported, and its status returned. */
kl_status call_kernel(struct kl_call *c, const struct op_kernel *k);
/* A call of an op of ops.def that may run another kernel than the node of its own; *c has its op, nin and found[], the
 * rest is filled here.  own: the keys of its arguments alone; dev: the top device of `keys`. */
kl_tensor call_for_node(struct kl_call *c, struct thread *t, struct call *g, uint64_t own, uint64_t keys, unsigned dev);

/* ---- dispatch/backend_kernel.c ---- */
kl_status backend_record(struct kl_call *c, const struct op_kernel *k); /* a kernel `run`: an opaque node */

struct handle_list { kl_tensor *h; uint32_t n, cap; };

#endif
