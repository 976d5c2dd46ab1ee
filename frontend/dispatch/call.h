/* Calls: from a call to its kernel. */
#ifndef KILN_CALL_H
#define KILN_CALL_H
#include "frontend/record/record.h"

/* ---- dispatch/call.c ---- */
struct control;
struct kl_call {
    struct thread *t;
    const struct dispatch_op *op;
    uint64_t keys;               /* the keys that it was made with */
    kl_key key;                  /* the key whose kernel runs */
    uint8_t device;              /* top_device of its keys */
    bool one_device;             /* its operands are known to be on one kind of device */
    /* a kernel has set a result, or there is not exactly one: results must be checked */
    bool check_results;
    const kl_site *site;
    uint32_t nin, nout;
    kl_tensor *in, *out;
    struct call *graph;          /* an op of ops.def; or NULL */
    struct control *region;      /* if graph is NULL: a region op or a custom one; or NULL */
    const char *label;           /* if graph is NULL: the name in messages */
    /* t->reads when found[] was filled: a call that could end an operand's entry increments that */
    uint64_t reads;
    struct entry *found[MAX_OPERANDS]; /* the operands' entries, valid while `reads` equals t->reads; 0: not filled */
};
static inline const char *call_label(const struct kl_call *c) { return c->graph ? c->graph->op : c->label; }
extern uint64_t device_bits[MAX_DEVICES] __attribute__((visibility("hidden"))); /* dispatch keys, by device number */
void device_keys_start(void);    /* fills them */
uint64_t device_keys(kl_device d); /* no keys for an invalid device */
/* The keys of a handle; none for a stale one. */
static inline uint64_t handle_keys(kl_tensor h)
{
    const struct entry *x = entry_peek(h);
    return x ? device_bits[x->device] | x->layers : 0;
}
/* Adds and removes the keys of the thread. */
static inline uint64_t thread_keys(const struct thread *t, uint64_t bits)
{
    uint64_t without = t->excluded | (t->no_grad ? LAYER_BIT(LAYER_Autograd) : 0);
    return (bits | t->included | ALWAYS_INCLUDED) & ~without;
}
/* The operands' entries, for an op of ops.def; NULL for an invalid handle. */
struct entry *const *call_found(struct kl_call *c);
/* Runs the kernel for c->key; an error is reported, and its status returned. */
kl_status call_kernel(struct kl_call *c, const struct op_kernel *k);
/* A call of an op of ops.def that may run a kernel other than record_node; *c has op, nin and found[], the rest is
 * filled in here. own: the keys of its arguments; dev: the top device of `keys`. */
kl_tensor call_for_node(struct kl_call *c, struct thread *t, struct call *g, uint64_t own, uint64_t keys, unsigned dev);

/* ---- dispatch/backend_kernel.c ---- */
kl_status backend_record(struct kl_call *c, const struct op_kernel *k); /* a kernel `run`: an opaque node */

struct handle_list { kl_tensor *h; uint32_t n, cap; };

#endif
