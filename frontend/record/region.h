/* Functions of the user's recorded as regions. */
#ifndef KILN_REGION_H
#define KILN_REGION_H
#include "frontend/record/trace.h"

/* ---- region.c: what a function of the user's does, recorded as a region ---- */
struct region_recorder {
    struct thread *t;
    const kl_site *site;
    const char *op;              /* in messages */
    void *ctx;
    /* the op's: of its operands or, without one, of its first result; {0}: not known yet */
    kl_device device;
    void *views;                 /* memory that the caller holds */
    const struct region *first;  /* while the op's second region is recorded; else NULL */
    /* no call of the trace around it stands for the op: there is nothing to compare with */
    bool unlogged;
    struct graph *empty;         /* to record the next region in, if it is unlogged; taken.  NULL: a new one */
    struct handle_list captured; /* tensors from outside that the regions so far use: inputs behind the parameters */
    struct handle_list made;     /* outside of traces: handles that only the regions need */
    bool silent;                 /* the next region may not look at values */
    kl_tensor entry;             /* the token that those of the regions so far follow, among `captured`, or kl_none */
};
struct view;
/* A region: inside of a trace a log of its own, which holds its graph and does not change; else the graph. */
struct region {
    struct graph *g;
    struct replay_log *body;
    ref token;                   /* its last one; NIL: it does not look at values */
};
/* Calls fn with a temporary for each parameter, and records what it does, as region number `which` of the op; *out is
 * the caller's.  false: reported. */
bool region_record(struct region_recorder *c, uint32_t which, const char *name, kl_region_fn *fn,
                   const struct view *parameter, uint32_t nin, uint32_t nout, struct region *out);
void region_recorder_free(struct region_recorder *c);
/* Ends the regions whose functions the thread has left by longjmp: those whose frames are below `stack`, where the
 * caller's frame is (stacks grow downwards). */
void regions_leave(struct thread *t, const void *stack);

/* ---- control.c ---- */
/* kl_custom_grad, with another name in messages. */
kl_status record_custom_grad(const kl_site *site, const char *op, kl_region_fn *fn, kl_region_fn *backward, void *ctx,
                             uint32_t nin, const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* A custom op with its attributes and the types of its results. */
struct custom_use {
    const struct custom_op *op;
    const struct dispatch_op *table; /* where its kernel stands; NULL: it is `op` */
    const void *attr;
    size_t nattr;
    const kl_type *type;
};
/* Records its node; `op` is its name in messages. */
kl_status record_custom(const kl_site *site, const char *op, const struct custom_use *use, uint32_t nin,
                        const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* The op appended to another graph, from its operands there, and its results behind it; NIL: g->err, it looks at
 * values, or out of memory. */
ref control_copy(const struct control *c, struct graph *g, ref *in, uint32_t n);
/* the kernel of region ops and, with `table` done, of custom ones */
kl_status record_region(struct control *c);
kl_status record_with(struct control *c, const struct custom_op *op); /* of a custom op by another one's function */
/* The same of a call by name, without attributes. */
kl_status record_custom_by(const kl_site *site, const char *name, const struct custom_op *op, uint32_t nin,
                           const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* In a region, which op is not for: reported, and true. */
bool region_refuses(struct thread *t, const kl_site *site, const char *op);
/* Records an input or a slot outside of the open region, and takes it in. */
kl_tensor region_leaf(struct thread *t, struct call *c);
/* The token that the open trace's next look at a value on device d is to follow; in a region that has none yet, that of
 * what is around it.  kl_none: there is none, or reported. */
kl_tensor region_token(struct thread *t, const kl_site *site, kl_device d);

/* ---- effects.c: kl_print and kl_assert in regions ---- */
/* Where a function is recorded that may not look at values: reported, and true. */
bool effects_refuse(struct thread *t, const kl_site *site, const char *op);
/* The place among a region op's operands that the token is at, and the one where it belongs, which is not behind it. */
struct effects { uint32_t from, to; };
void effects_move_operand(const struct effects *f, ref *in);
/* Makes *region one that takes the token, its input number `from`, as number `to` (input.n: as a new input), and yields
 * its last token, or the one it takes where `token` is NIL, as result number `yield` (LEAF_NONE: does not).  false: out
 * of memory, *region as it was. */
bool effects_thread(struct graph **region, ref token, uint32_t from, uint32_t to, uint32_t yield);

#endif
