/* Functions shared by the attention ops: op_attention.c (attention, attention_stats) and op_attention_grad.c. */
#ifndef KILN_IR_ATTENTION_H
#define KILN_IR_ATTENTION_H
#include "ir/ir.h"

/* The number of the operand that selects the keys; MAX_OPERANDS: none, all queries see all keys. */
static inline unsigned attention_mask_operand(const struct node *n)
{
    return n->nin == opinfo[n->op].nin ? n->nin - 1u : MAX_OPERANDS;
}

/* Rows of queries (l) and keys (m), columns of q and k (d), and of v (e; attention_stats: 0). */
struct attention_sizes { int64_t batch, l, m, d, e; };
struct attention_sizes attention_sizes(const struct graph *g, const struct node *n);

/* The keys that a query attends to: from lo on and before hi, and further restricted by `mask` if not NULL. */
struct attention_keys { int64_t lo, hi; const uint8_t *mask; };
/* The keys that query i of batch element b attends to; mask: that operand's elements, or NULL. */
struct attention_keys attention_row_keys(const struct graph *g, const struct node *n, const struct attention_sizes *z,
                             const void *mask, int64_t b, int64_t i);

/* ---- shape rules ---- */
/* Do all operands have at least two axes, and equal leading axes before the last two? */
bool attention_same_lead(const struct graph *g, const struct node *n);
/* Clears *fits if the operand that selects the keys has the wrong shape; false: it has a wrong dtype. */
bool attention_sight_shape(const struct graph *g, const struct node *n, bool *fits, struct err *e);
bool attention_attr(struct node *n, struct err *e);

/* ---- decompositions into other ops ---- */
/* A dot batched over all axes except the last two, of which it contracts con_a and con_b.  n, an attention op: if it
 * hides keys, the dot is marked so.  Pairs of a query and a key are the elements of a, and of the result where the last
 * axes of both are contracted. */
ref attention_product(struct graph *g, const struct node *n, ref a, ref b, unsigned con_a, unsigned con_b);
/* The mask of visible keys: bool of shape s, [.., L, M]; NIL: all. */
ref attention_unmasked_keys(struct graph *g, const struct node *n, const struct shape *s);
ref attention_where_unmasked(struct graph *g, ref mask, ref x); /* x where a query attends to a key, else 0 */
/* y [.., L or M, ..] for a product with numbers that are 0 where a query does not see a key: 0 in place of infinite
 * elements and NaNs, since 0 times them is NaN.  Where a query attends to such a key, its numbers are NaN, and so is
 * the product.  Gradients of these products do the same by their marks. */
ref attention_finite(struct graph *g, ref mask, ref y);

#endif
