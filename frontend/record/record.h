/* Recording: from a call to a node. */
#ifndef KILN_RECORD_H
#define KILN_RECORD_H
#include "frontend/record/handle.h"

/* ---- record.c: the path of every op ---- */
/* A graph being recorded, with the data of its inputs and slots by ordinal. */
struct recording {
    struct graph *g;
    struct buffer **input;
    uint64_t *slot;              /* with room for the values of the graph's symbols behind them */
    struct shape *actual;        /* per input: its array's; of rank NO_ACTUAL where the graph's shape says it */
    int64_t *length;             /* per slot: the length of the graph that it is, or 0 */
    uint32_t input_cap, slot_cap, actual_cap, length_cap;
};
enum { NO_ACTUAL = KL_MAX_RANK + 1 };
/* What a call has beside its node where lengths are symbolic. */
struct symbolic {
    struct shape lengths, actual; /* input: in terms of kl_symbol; its array's */
    int64_t length;              /* slot: the length of the graph that it is */
};
/* A call of an op.  For op input, `data` is always consumed. */
struct call {
    const kl_site *site;         /* filled in by record() */
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
    bool must_depend;            /* op grad: an error if the loss does not depend on the variable, not zeros */
    const struct symbolic *symbolic; /* or NULL */
    bool failed;                 /* record_node has returned a poison handle */
};
/* The same at this call site, and not the thread's. */
kl_tensor record_at(const kl_site *site, struct call *c);
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
bool describe(struct thread *t, const char *op, const char *what, kl_tensor h, struct view *v);
bool recording_input(struct recording *r, uint32_t ordinal, struct buffer *b); /* takes over the reference */
bool recording_slot(struct recording *r, uint32_t ordinal, uint64_t bits);
/* ---- symbol.c: symbolic lengths ---- */
/* The dims of s that kl_symbol gave become lengths of g; declare: g gets symbols that it does not have.  false: *e. */
bool symbolic_lengths(struct graph *g, struct shape *s, bool declare, struct err *e);
/* What a call's key has of them: the same for the same lengths, whatever the graph's own symbols are. */
void symbolic_key(const struct graph *g, const struct symbolic *x, bool slot, union attr *key);
bool recording_symbolic(struct recording *r, unsigned op, uint32_t ordinal, const struct symbolic *x);
/* Puts the symbols' values, by the inputs' arrays, behind the slots, and the lengths that slots are in their place.
 * given: for the inputs whose arrays are others than those recorded, else NULL.  false: *e. */
bool symbolic_values(const struct graph *g, const struct shape *actual, const int64_t *length, uint64_t *slot,
                     struct err *e);
/* The shape with numbers for its symbols. */
struct shape symbolic_actual(const struct graph *g, const struct shape *s, const uint64_t *slot);

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
