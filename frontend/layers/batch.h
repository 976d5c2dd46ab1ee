/* A graph recorded again, call by call, with some of its inputs batched: what vmap does with the function it recorded
 * and, with no input batched, what runs a tracer's graph again.
 *
 * A batched value has one more axis, 0, of the batch's length; all others are as they were in the graph.  Each node
 * becomes calls of the one path (record.c), so that what is recorded fuses, differentiates and replays like anything
 * else. */
#ifndef KILN_BATCH_H
#define KILN_BATCH_H
#include "frontend/frontend.h"

struct batch {
    struct thread *t;
    const struct graph *g;
    const kl_site *site;      /* of nodes that know none */
    int64_t size;             /* of the batch; 0: nothing is batched */
    kl_device on;             /* of the inputs: an autodiff device or not, as all that is recorded */
    bool different;           /* random bits are others in each element of the batch */
    kl_tensor *h;             /* by node: what it has become */
    bool *is;                 /* by node: is that batched? */
    bool *live;               /* by node: an output needs it */
    bool *wide;               /* by node: f32 only because what it meets was, whose dtype it takes; NULL: none is */
    struct per_element *each; /* for gradients in what is not batched; NULL: there are none */
};

/* Records g again, its inputs in[], of which is[] are batched; its outputs and whether they are.  Whatever fails is in
 * the handles, as poison; false: out of memory. */
bool batch_graph(struct batch *b, const struct graph *g, const kl_tensor *in, const bool *is, kl_tensor *out,
                 bool *out_is);

/* ---- batch.c: what the rules share ---- */
const kl_site *batch_site(const struct batch *b, ref r);
struct shape batch_shape(const struct batch *b, const struct shape *s); /* s with the batch in front */
/* h, which is a value of shape s, with a batch if it has none. */
kl_tensor batch_spread(const struct batch *b, const kl_site *site, kl_tensor h, bool is, const struct shape *s);
kl_tensor batch_move_axis(const kl_site *site, kl_tensor h, uint32_t rank, uint32_t from, uint32_t to);
/* element i */
kl_tensor batch_pick(const struct batch *b, const kl_site *site, kl_tensor h, const struct shape *s, int64_t i);
/* Says once for each op that it is recorded for each element of a batch by itself. */
void batch_warn(unsigned op);

/* ---- batch_index.c: ops of a batched index, and their kin ---- */
/* The node's result, batched, from its operands; some is batched. */
kl_tensor batch_indexed(struct batch *b, ref r, const kl_tensor *in, const bool *is);

/* ---- batch_region.c: ops with regions, and custom ops ---- */
void batch_region(struct batch *b, ref r); /* its projections' values and whether they are batched */

#endif
