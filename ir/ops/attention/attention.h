/* What the attention family shares: op_attention.c (attention, attention_stats) and op_attention_grad.c. */
#ifndef KILN_IR_ATTENTION_H
#define KILN_IR_ATTENTION_H
#include "ir/ir.h"

/* The operand that says what queries see; MAX_OPERANDS: none, and they see all keys. */
static inline unsigned attention_seen(const struct node *n)
{
    return n->nin == opinfo[n->op].nin ? n->nin - 1u : MAX_OPERANDS;
}

/* Rows of queries (l) and keys (m), columns of q and k (d), and of v (e; attention_stats: 0). */
struct attention_sizes { int64_t batch, l, m, d, e; };
struct attention_sizes attention_sizes(const struct graph *g, const struct node *n);

/* Which keys a query sees: those from lo on and before hi, of which `mask`, if not NULL, says more. */
struct sight { int64_t lo, hi; const uint8_t *mask; };
/* What query i of batch element b sees; seen: that operand's elements, or NULL. */
struct sight attention_sight(const struct graph *g, const struct node *n, const struct attention_sizes *z,
                             const void *seen, int64_t b, int64_t i);

/* ---- shape rules ---- */
/* Have all operands two axes at least, and the same ones before their last two? */
bool attention_same_lead(const struct graph *g, const struct node *n);
/* Clears *fits where the operand that says what queries see is not of their shape; false: it is of a wrong dtype. */
bool attention_sight_shape(const struct graph *g, const struct node *n, bool *fits, struct err *e);
bool attention_attr(const struct node *n, struct err *e);

/* Runs `run`, which computes in f32 or f64, on operands that it widens first if they are half floats. */
bool attention_widened(const struct graph *g, const struct node *n, void *out, const void *const *in,
                       bool (*run)(const struct graph *, const struct node *, unsigned, void *, const void *const *));

/* ---- made of other ops ---- */
/* A dot that is batched over all axes but the last two, of which it contracts con_a and con_b. */
ref attention_product(struct graph *g, ref a, ref b, unsigned con_a, unsigned con_b);
/* Which keys each query sees, bool of shape s, [.., L, M]; NIL: all. */
ref attention_seen_keys(struct graph *g, const struct node *n, const struct shape *s);
ref attention_where_seen(struct graph *g, ref seen, ref x); /* x where a query sees a key, else 0 */

#endif
