/* Graphs: making, reading, comparing, checking. */
#ifndef KILN_IR_GRAPH_H
#define KILN_IR_GRAPH_H
#include "ir/symbols/symbol.h"
#include "ir/ops/op.h"

/* ---- intern.c ---- Tables without duplicates. */
uint32_t graph_shape(struct graph *g, const struct shape *s); /* 0 and g->err: not a legal shape, out of memory */
uint32_t graph_site(struct graph *g, const kl_site *s);       /* by its strings' contents; NULL -> 0 */
const char *graph_string(struct graph *g, const char *s, size_t len); /* a copy the graph owns; NULL: g->err */
bool graph_owns(const struct graph *g, const char *s);        /* s came from graph_string */
uint32_t intern_shape_find(const struct graph *g, const struct shape *s); /* its id; UINT32_MAX: not interned */

bool intern_expression(struct symbols *s, const struct affine *a, int64_t *d); /* its dim; false: out of memory */

/* ---- graph.c ---- */
struct graph *graph_new(const char *name);        /* NULL when out of memory */
void graph_free(struct graph *g);                 /* NULL is fine */
void graph_reset(struct graph *g);                /* empty again, keeping its memory */
size_t graph_bytes(const struct graph *g);        /* the memory that it takes */
struct graph *graph_clone(const struct graph *g); /* with symbols of its own; NULL when out of memory */
struct graph *graph_clone_part(const struct graph *g); /* the same, but it shares g's symbols */
/* What g was when it had nnode nodes and no outputs.  Ids of shapes and sites are the same; it has those of its nodes
 * and at least the first nshape shapes, and of the others that g has none that came later. */
struct graph *graph_clone_beginning(const struct graph *g, uint32_t nnode, uint32_t nshape);
/* Appends a node: fills dtype and shape through the op's rule, checks operands.  `proto` has op, nin,
 * in, flags and attr set, and dtype where the op does not say it (leaves, cast, random); `target` is the
 * result's shape for input, state, iota, random, reshape and expand, else NULL.  NIL: g->err. */
ref graph_add(struct graph *g, const struct node *proto, const struct shape *target);
/* Appends a copy of `from`'s node n, regions included, with operands in[] of g (node_nin of them), unchecked; leaf
 * ordinals stay as they are. */
ref graph_copy_node(struct graph *g, const struct graph *from, const struct node *n, const ref *in);
/* Appends a copy of `from`'s node r, whose operands are map[] of its own. */
ref graph_copy_mapped(struct graph *g, const struct graph *from, ref r, const ref *map);
/* Appends the nodes of a region, with g's nodes in[] for its inputs and `flags` on each; out[]: its yields. */
bool graph_splice(struct graph *g, const struct graph *region, const ref *in, uint16_t flags, ref *out);
/* The same as graph_add for a region op: proto has op, flags and what of attr.region is no index; the regions are g's
 * from here on, also after a failure. */
ref graph_add_region(struct graph *g, const struct node *proto, const ref *in, uint32_t nin,
                     struct graph *const *region);
/* Puts every node on device `from`, in the regions too, on device `to`. */
void graph_move(struct graph *g, unsigned from, unsigned to);
unsigned graph_device(const struct graph *g);     /* of the first node: the one that a graph as text does not repeat */
uint64_t graph_devices(const struct graph *g);    /* bit i: a node, maybe of a region, is on device i */
/* The same for op custom, from a description whose shapes are g's; it is copied. */
ref graph_add_custom(struct graph *g, const struct node *proto, const ref *in, uint32_t nin, const struct custom *c);
bool graph_copy_leaves(struct graph *g, const struct graph *from); /* the three tables, and symbols; g has none yet */
bool graph_output(struct graph *g, enum out_kind kind, ref value, uint32_t state); /* false: g->err */
/* Names the last output, for people: hashes and comparisons do not see it.  written: the text shows it as
 * `return %x "name"`; else it is only what the text calls the value.  false: g->err. */
bool graph_name_output(struct graph *g, const char *name, size_t len, bool written);
const char *graph_output_name(const struct graph *g, uint32_t i, bool *written); /* "": none */
/* A new entry of one of g's leaf tables: its ordinal, LEAF_NONE: g->err.  Long names are cut. */
uint32_t graph_leaf(struct graph *g, struct leaves *l, unsigned dtype, const struct shape *s, const char *name);
static inline const struct shape *node_shape(const struct graph *g, ref r) { return &g->shape[g->node[r].shape]; }
static inline const struct node *node_at(const struct graph *g, ref r) { return &g->node[r]; }
/* All operands of a node, wherever they are kept. */
/* May a gradient flow through the node?  The integers that quantize gives carry one to dequantize. */
static inline bool node_carries_gradient(const struct node *n)
{
    return dtype_is_float(n->dtype) || op_is_region(n->op) || n->op == OP_quantize;
}
static inline unsigned node_nin(const struct node *n) { return op_is_region(n->op) ? n->attr.region.count : n->nin; }
static inline ref node_in(const struct graph *g, const struct node *n, unsigned i)
{
    return op_is_region(n->op) ? g->operand[n->attr.region.operands + i] : n->in[i];
}
int64_t node_numel(const struct graph *g, ref r);
size_t node_bytes(const struct graph *g, ref r);

/* ---- attr.c: dot's axis lists ---- */
static inline unsigned axis_get(uint32_t list, unsigned i) { return (list >> (4 * i)) & 15u; }
static inline uint32_t axis_put(uint32_t list, unsigned i, unsigned axis) { return list | (uint32_t)axis << (4 * i); }
struct dot_dims { int64_t batch, m, n, k; };      /* products of the four kinds of dimension */
struct dot_dims dot_sizes(const struct graph *g, const struct node *n);
/* op_attention.c: of the products of attention or its kin, as if every query saw every key */
double attention_flops(const struct graph *g, const struct node *n);
/* Axes of a rank in neither list, ascending, into out; returns how many. */
uint32_t dot_free_axes(uint32_t rank, uint32_t batch, unsigned nbatch, uint32_t con, unsigned ncon, uint8_t *out);

/* ---- region.c: what region ops take, give and do ---- */
uint32_t op_regions(unsigned op);                 /* how many regions its node has */
static inline struct graph *node_region(const struct graph *g, const struct node *n, uint32_t i)
{
    return g->region[n->attr.region.first + i];
}
static inline const struct custom *node_custom(const struct graph *g, const struct node *n)
{
    return &g->custom[n->attr.region.length];
}
uint32_t region_results(const struct graph *g, const struct node *n);
unsigned region_result(const struct graph *g, const struct node *n, uint32_t i, struct shape *s); /* dtype; fills s */
size_t region_result_bytes(const struct graph *g, const struct node *n, uint32_t i);
size_t region_work_bytes(const struct graph *g, const struct node *n);
/* A region op at work (custom: custom_run). */
struct region_call {
    unsigned op;
    uint32_t nin, nout, carried, scanned;         /* the last two: of while and scan, of scan; else 0 */
    int64_t length;                               /* of scan, as is reverse */
    bool reverse;
    /* Bytes of operand i, or of result i. */
    size_t (*bytes)(const struct region_call *c, bool result, uint32_t i);
    const struct graph *g;                        /* for bytes of region_call() */
    const struct node *n;
    /* Computes region `which`: pointers to its parameters, and to its yields. */
    bool (*run)(void *ctx, uint32_t which, const void *const *in, void *const *out);
    void *ctx;
    const void *const *in;
    void *const *out;
    void *work;                                   /* region_work_bytes of memory, aligned to 64 */
    /* Of operands, results and work that the host cannot read (else NULL): room for pointers to all operands and
     * results, and what reads a bool there, copies there. */
    void **pointers;
    bool (*peek)(void *ctx, const void *at, bool *value);
    bool (*move)(void *ctx, void *to, const void *from, size_t bytes);
};
struct region_call region_call(const struct graph *g, const struct node *n); /* without what the caller runs it with */

/* ---- region_run.c ---- */
bool region_run(const struct region_call *c);     /* false: what run gave */

/* ---- hash.c ---- */
struct hash128 { uint64_t lo, hi; };
/* XXH3-128 over everything that decides the program: nodes (without sites), their shapes, outputs, leaves'
 * types; names, sites and the order in which shapes were interned do not count. */
struct hash128 graph_hash(const struct graph *g);
bool graph_same(const struct graph *a, const struct graph *b); /* equal in all that is hashed */
/* the first node that differs, or the end of one */
uint32_t graph_common(const struct graph *a, const struct graph *b);
struct hash128 bytes_hash(const void *p, size_t n);
/* equal for equal dims of any two graphs, whatever the symbols' names */
int64_t dim_digest(const struct graph *g, int64_t d);

/* ---- difference.c ---- */
/* More is more alike: by the nodes that both begin with, their number, and the first that differs. */
uint64_t graph_likeness(const struct graph *a, const struct graph *b);
/* Where g differs from another graph, as "file:line: node, op: which field, and how". */
void graph_difference(const struct graph *g, const struct graph *known, char *text, size_t n);

/* ---- verify.c ---- */
/* Every invariant of this header; false: *e names the node and the rule. Cheap: linear in nodes. */
bool graph_verify(const struct graph *g, struct err *e);

#endif
