/* Functions of the user recorded as regions. */
#ifndef KILN_REGION_H
#define KILN_REGION_H
#include "frontend/record/trace.h"

/* ---- region.c: recording a function as a region ---- */
struct region_recorder {
    struct thread *t;
    const kl_site *site;
    const char *op;              /* in messages */
    void *ctx;
    /* the op's device: that of its operands or, without any, of its first result; {0}: not known yet */
    kl_device device;
    void *views;                 /* memory owned by the caller */
    const struct region *first;  /* the op's first region while the second is recorded; else NULL */
    /* the enclosing trace has no call for the op, so nothing is compared with a replay log */
    bool unlogged;
    /* an empty graph for the next region, if it is unlogged; taken.  NULL: a new one is made */
    struct graph *empty;
    struct handle_list captured; /* tensors from outside that the regions use so far: inputs after the parameters */
    struct handle_list made;     /* outside of traces: handles that only the regions need */
    bool silent;                 /* the next region must not print or check values */
    kl_tensor entry;             /* the token that those of the regions follow, among `captured`, or kl_none */
};
struct view;
/* A region: inside of a trace its replay log, which owns its graph and does not change; else the graph. */
struct region {
    struct graph *g;
    struct replay_log *body;
    ref token;                   /* its last token; NIL: it does not print or check values */
};
/* Calls fn with a temporary for each parameter and records its calls as region number `which` of the op; the caller
 * owns *out. false: reported. */
bool region_record(struct region_recorder *c, uint32_t which, const char *name, kl_region_fn *fn,
                   const struct view *parameter, uint32_t nin, uint32_t nout, struct region *out);
void region_recorder_free(struct region_recorder *c);
/* Ends the regions whose functions the thread has left by longjmp: those whose frames are below `stack`, an address in
 * the caller's frame (stacks grow downwards). */
void regions_leave(struct thread *t, const void *stack);

/* ---- control.c ---- */
/* kl_custom_grad with another name in messages. */
kl_status record_custom_grad(const char *op, kl_region_fn *fn, kl_region_fn *backward, void *ctx,
                             uint32_t nin, const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* A custom op with its attributes and the types of its results. */
struct custom_use {
    const struct custom_op *op;
    const struct dispatch_op *table; /* the dispatch table of its kernels; NULL: its kernel is `op` */
    const void *attr;
    size_t nattr;
    const kl_type *type;
};
/* Records its node; `op` is its name in messages. */
kl_status record_custom(const char *op, const struct custom_use *use, uint32_t nin,
                        const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* Appends the op to another graph, with its operands there, then its results; NIL: g->err, it prints or checks values,
 * or out of memory. */
ref control_copy(const struct control *c, struct graph *g, ref *in, uint32_t n);
/* the kernel of region ops and, with `table`, of custom ops */
kl_status record_region(struct control *c);
/* records a custom op that another op's function computes */
kl_status record_with(struct control *c, const struct custom_op *op);
/* The same for a call by name, without attributes. */
kl_status record_custom_by(const char *name, const struct custom_op *op, uint32_t nin,
                           const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* Reports that `op` is not allowed in a region, if one is open, and returns true. */
bool region_refuses(struct thread *t, const char *op);
/* Records an input or a slot outside of the open region and captures it. */
kl_tensor region_leaf(struct thread *t, struct call *c);
/* The token that the open trace's next kl_print or kl_assert on device d must follow; in a region that has none yet,
 * the enclosing one's. kl_none: there is none, or an error was reported. */
kl_tensor region_token(struct thread *t, kl_device d);

/* ---- effects.c: kl_print and kl_assert in regions ---- */
/* Reports that kl_print and kl_assert are not allowed where such a function is recorded, and returns true. */
bool effects_reject_in_region(struct thread *t, const char *op);
/* The token's current position among a region op's operands, and its final one, which is not after it. */
struct effects { uint32_t from, to; };
void effects_move_operand(const struct effects *f, ref *in);
/* Changes *region so that it takes the token, its input number `from`, as number `to` (from = input.n: as a new input),
 * and yields its last token, or the one it takes if `token` is NIL, as result number `yield` (LEAF_NONE: it does not).
 * false: out of memory, *region is unchanged. */
bool effects_thread(struct graph **region, ref token, uint32_t from, uint32_t to, uint32_t yield);

#endif
