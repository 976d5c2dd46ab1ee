/* Recording: from a call to a node. */
#ifndef KILN_RECORD_H
#define KILN_RECORD_H
#include "frontend/record/handle.h"

/* ---- record.c: the path of every op ---- */
/* A graph being recorded, with the data of its inputs and slots by ordinal. */
struct recording {
    struct graph *g;
    struct buffer **input;
    uint64_t *slot;
    uint32_t input_cap, slot_cap;
};
/* A call of an op.  For op input, `data` is always consumed. */
struct call {
    const kl_site *site;
    const char *op;              /* its name in messages */
    struct node proto;           /* op; dtype, attributes and flags where the op has them; nin where it varies */
    kl_tensor in[MAX_OPERANDS];
    bool has_target;
    struct shape target;         /* for ops whose shape the caller chooses */
    kl_device device;            /* for ops without operands, and for copy */
    struct buffer *data;
    uint64_t bits;               /* for op slot */
    uint64_t keys;               /* dispatch keys of arguments that are not tensors */
    uint64_t marks;              /* layers to add to the result */
    bool failed;                 /* record_node has returned a poison handle */
};
kl_tensor record(struct call *c); /* dispatches the call; record_node is the kernel at the end of most tables: */
/* `found` has its operands' entries, or is NULL */
kl_tensor record_node(struct thread *t, struct call *c, struct entry *const *found);
unsigned call_operands(const struct call *c);
/* numpy's broadcasting with one more operand; false: they do not broadcast */
bool broadcast_shape(struct shape *all, const struct shape *s);
/* dtype, shape and device of a handle; false: reported as a failure of `op`, `what` names the operand. */
struct view {
    unsigned dtype;
    struct shape shape;
    kl_device device;
};
bool describe(struct thread *t, const kl_site *site, const char *op, const char *what, kl_tensor h, struct view *v);
bool recording_input(struct recording *r, uint32_t ordinal, struct buffer *b); /* takes over the reference */
bool recording_slot(struct recording *r, uint32_t ordinal, uint64_t bits);
bool recording_open(struct recording *r, const char *name); /* empty, memory reused */
void recording_close(struct recording *r);        /* releases the inputs' data; needs the lock */
void recording_free(struct recording *r);

/* The node of a handle in tr or, if that is NULL, in the deferred graph, whose lock is held.  NIL: *e, in which `what`
 * names the operand, or the graph's own error. */
ref node_of_handle(struct trace *tr, kl_tensor h, const char *what, struct err *e);
/* Moves the graph's error to *e without the leading op name; the graph stays usable. */
void take_graph_error(struct graph *g, const char *op, struct err *e);
/* A handle for node r, just recorded in tr or, if that is NULL, in the deferred graph; kl_none: *e. ad: as in struct
 * entry. */
kl_tensor handle_of_node(struct thread *t, struct trace *tr, ref r, uint16_t ad, struct err *e);

#endif
