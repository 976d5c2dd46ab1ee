/* Records a graph a second time, call by call, with some of its inputs batched. vmap uses it for the function it
 * recorded; the tracer uses it without batched inputs to repeat a graph.
 *
 * A batched value has one more axis, axis 0, of the batch's length; all others are as in the graph.  Each node becomes
 * calls of record(), so the results fuse, differentiate and replay like other ops. */
#ifndef KILN_BATCH_H
#define KILN_BATCH_H
#include "frontend/frontend.h"

struct batch {
    struct thread *t;
    const struct graph *g;
    const kl_site *site;      /* of the call that records it, and of nodes without one */
    int64_t size;             /* of the batch, may be symbolic; 0: nothing is batched */
    kl_device on;             /* of the inputs: an autodiff device or not, as all that is recorded */
    bool different;           /* each element of the batch has other random bits */
    kl_tensor *h;             /* by node: its handle */
    bool *batched;            /* by node: is the handle batched? */
    bool *live;               /* by node: an output depends on it */
    bool *wide;               /* by node: f32 only because of another operand, whose dtype it takes; NULL: none */
    struct per_element *each; /* for gradients with respect to unbatched values; NULL: there are none */
};

/* Records g with inputs in[]; batched[] tells which of them are.  Returns its outputs and whether they are batched.
 * Errors are in the handles, as poison; false: out of memory. */
bool batch_graph(struct batch *b, const struct graph *g, const kl_tensor *in, const bool *batched, kl_tensor *out,
                 bool *out_batched);

/* ---- batch.c: functions for the rules ---- */
struct shape batch_shape(const struct batch *b, const struct shape *s); /* s with a leading batch axis */
/* h, a value of shape s, expanded over the batch if it is not batched. */
kl_tensor batch_spread(const struct batch *b, kl_tensor h, bool batched, const struct shape *s);
kl_tensor batch_move_axis(kl_tensor h, uint32_t rank, uint32_t from, uint32_t to);
/* element i */
kl_tensor batch_pick(const struct batch *b, kl_tensor h, const struct shape *s, int64_t i);
/* Logs once for each op that it is recorded for each element of a batch separately. */
void batch_warn(unsigned op);

/* ---- batch_index.c: gather, scatter and similar ops ---- */
/* The node's batched result; at least one operand is batched. */
kl_tensor batch_indexed(struct batch *b, ref r, const kl_tensor *in, const bool *batched);

/* ---- batch_region.c: ops with regions, and custom ops ---- */
void batch_region(struct batch *b, ref r); /* its projections' values and whether they are batched */

#endif
