/* Interpreting graphs: elements, nodes, whole graphs. */
#ifndef KILN_IR_INTERP_H
#define KILN_IR_INTERP_H
#include "ir/graph/node.h"

/* ---- scalar.c: one element of an elementwise op, by the same expressions as every backend ---- */
/* Applies elementwise op to n contiguous elements; dtype is the operands' (where: that of b). */
bool scalar_apply(unsigned op, unsigned dtype, void *out, const void *const *in, int64_t n);
/* Each value converted as the CAST primitive does, rounded once. */
bool scalar_cast(void *out, unsigned to, const void *in, unsigned from, int64_t n);
/* One primitive (enum prim) on bits: operands of dtype, result of dtype `to` (cast, bits) or as prims.def says. */
bool scalar_prim(unsigned prim, unsigned dtype, unsigned to, const uint64_t *x, uint64_t *y);
uint32_t scalar_threefry_u32(uint64_t seed, uint64_t index);
uint64_t scalar_threefry_u64(uint64_t seed, uint64_t index);

/* ---- interp.c: the oracle ---- */
/* Called after each node, of regions too, with the values that are still needed.  The value of a region op is its
 * results one after the other, each aligned to 64 bytes. */
struct interp_watch { void (*node)(void *ctx, const struct graph *g, ref r, void *const *value); void *ctx; };
struct bind {                     /* the arguments of a run: row-major arrays, by ordinal */
    const void *const *input;     /* one per input */
    const void *const *state;     /* one per state, the values before the run */
    const uint64_t *slot;         /* one per slot, the bits of its dtype */
    void *const *out;             /* one per output: return values and new states; must not alias inputs */
    const struct interp_watch *watch; /* NULL: none */
    const struct cancellation *cancel; /* asked before each node; NULL: none */
};
/* Evaluates a graph without grad nodes and with numerics written; one thread, no kernel. */
bool interp_run(const struct graph *g, const struct bind *b, struct err *e);
/* One node from its operands' values; input, state and slot copy in[0].  false: as struct opinfo's eval. */
bool interp_node(const struct graph *g, const struct node *n, void *out, const void *const *in);

#endif
