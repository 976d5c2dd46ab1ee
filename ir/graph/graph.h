/* Graphs: building, reading, comparing, verifying. */
#ifndef KILN_IR_GRAPH_H
#define KILN_IR_GRAPH_H
#include "ir/symbols/symbol.h"
#include "ir/ops/op.h"

/* ---- intern.c: tables without duplicates ---- */
uint32_t graph_shape(struct graph *g, const struct shape *s); /* 0 and g->err: an invalid shape, or out of memory */
uint32_t graph_site(struct graph *g, const kl_site *s);       /* by its strings' contents; NULL -> 0 */
/* Writes "FILE:LINE" between the two strings, at most n bytes in all; nothing where the place is unknown.  Returns
 * text. */
char *site_text(const kl_site *s, const char *before, const char *after, char *text, size_t n);
const char *graph_string(struct graph *g, const char *s, size_t len); /* a copy the graph owns; NULL: g->err */
bool graph_owns(const struct graph *g, const char *s);        /* s came from graph_string */
uint32_t intern_shape_find(const struct graph *g, const struct shape *s); /* its id; UINT32_MAX: not interned */

bool intern_expression(struct symbols *s, const struct affine *a, int64_t *d); /* its dim; false: out of memory */

/* ---- graph.c ---- */
struct graph *graph_new(const char *name);        /* NULL when out of memory */
void graph_free(struct graph *g);                 /* NULL is fine */
void graph_reset(struct graph *g);                /* makes it empty, keeping its memory */
size_t graph_bytes(const struct graph *g);        /* bytes of memory that it uses */
struct graph *graph_clone(const struct graph *g); /* has its own symbols; NULL when out of memory */
struct graph *graph_clone_part(const struct graph *g); /* the same, but it shares g's symbols */
/* A copy of the graph as it was when it had nnode nodes and no outputs.  Ids of shapes and sites stay the same.  It has
 * the shapes of those nodes and at least the first nshape shapes, and no other that was added later. */
struct graph *graph_clone_beginning(const struct graph *g, uint32_t nnode, uint32_t nshape);
/* Appends a node: computes dtype and shape by the op's rule and checks the operands. `proto` has op, nin, in, flags and
 * attr set, and dtype where the op's rule does not determine it (leaves, cast, random); `target` is the result's shape
 * for input, state, iota, random, reshape and expand, else NULL.  NIL: g->err. */
ref graph_add(struct graph *g, const struct node *proto, const struct shape *target);
/* Appends a copy of node n of `from`, regions included, with operands in[] of g (node_nin of them), without checking
 * it; leaf ordinals are kept. */
ref graph_copy_node(struct graph *g, const struct graph *from, const struct node *n, const ref *in);
/* Appends a copy of node r of `from`; map[] translates its operands. */
ref graph_copy_mapped(struct graph *g, const struct graph *from, ref r, const ref *map);
/* Appends the nodes of a region, with g's nodes in[] in place of its inputs and `flags` set on each; out[] gets its
 * yields. */
bool graph_splice(struct graph *g, const struct graph *region, const ref *in, uint16_t flags, ref *out);
/* As graph_add for a region op: proto has op, flags and the fields of attr.region that are no indices. g owns the
 * regions from here on, also after a failure. */
ref graph_add_region(struct graph *g, const struct node *proto, const ref *in, uint32_t nin,
                     struct graph *const *region);
/* Puts every node on device `from`, in the regions too, on device `to`. */
void graph_move(struct graph *g, unsigned from, unsigned to);
/* the device of the first node; text prints it once for the whole graph */
unsigned graph_device(const struct graph *g);
uint64_t graph_devices(const struct graph *g);    /* bit i: a node, maybe of a region, is on device i */
/* As graph_add for op custom, from a description whose shapes are g's; it is copied. */
ref graph_add_custom(struct graph *g, const struct node *proto, const ref *in, uint32_t nin, const struct custom *c);
bool graph_copy_leaves(struct graph *g, const struct graph *from); /* the three tables, and symbols; g has none yet */
bool graph_output(struct graph *g, enum out_kind kind, ref value, uint32_t state); /* false: g->err */
/* Names the last output; hashes and comparisons ignore the name. written: text prints it as `return %x "name"`;
 * otherwise text uses it as the value's name only. false: g->err. */
bool graph_name_output(struct graph *g, const char *name, size_t len, bool written);
const char *graph_output_name(const struct graph *g, uint32_t i, bool *written); /* "": none */
/* Adds an entry to one of g's leaf tables and returns its ordinal; LEAF_NONE: g->err.  Long names are cut. */
uint32_t graph_leaf(struct graph *g, struct leaves *l, unsigned dtype, const struct shape *s, const char *name);
static inline const struct shape *node_shape(const struct graph *g, ref r) { return &g->shape[g->node[r].shape]; }
static inline const struct node *node_at(const struct graph *g, ref r) { return &g->node[r]; }

/* May a gradient flow through the node? The integer result of quantize passes one to dequantize. */
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
/* op_attention.c: operations of the products of an attention op, of causal ones with the keys that queries see; as if
 * they saw all keys that a fourth operand may hide */
double attention_flops(const struct graph *g, const struct node *n);
bool attention_has_ranges(const struct graph *g, const struct node *n); /* a fourth operand: first and last key */
/* Writes to out the axes of a rank that are in neither list, ascending; returns their number. */
uint32_t dot_free_axes(uint32_t rank, uint32_t batch, unsigned nbatch, uint32_t con, unsigned ncon, uint8_t *out);

/* ---- region.c: operands, results and memory of region ops ---- */
uint32_t op_regions(unsigned op);                 /* the number of regions of its node */
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
/* A region op being run (custom: custom_run). */
struct region_call {
    unsigned op;
    uint32_t nin, nout, carried, scanned;         /* carried: of while and scan; scanned: of scan; else 0 */
    int64_t length;                               /* of scan, as is reverse */
    bool reverse;
    /* Bytes of operand i, or of result i. */
    size_t (*bytes)(const struct region_call *c, bool result, uint32_t i);
    const struct graph *g;                        /* for bytes of region_call() */
    const struct node *n;
    /* Runs region `which` with pointers to its parameters and to its yields. */
    bool (*run)(void *ctx, uint32_t which, const void *const *in, void *const *out);
    void *ctx;
    const void *const *in;
    void *const *out;
    void *work;                                   /* region_work_bytes of memory, aligned to 64 */
    /* Used when the host cannot read operands, results and work (else NULL): room for two pointers to each operand and
     * result, and functions that read a bool and copy. */
    void **pointers;
    bool (*peek)(void *ctx, const void *at, bool *value);
    bool (*move)(void *ctx, void *to, const void *from, size_t bytes);
};
/* the caller sets the fields it runs with */
struct region_call region_call(const struct graph *g, const struct node *n);

/* ---- region_run.c ---- */
bool region_run(const struct region_call *c);     /* false: the result of `run` */

/* ---- hash.c ---- */
struct hash128 { uint64_t lo, hi; };
/* XXH3-128 over everything that determines the program: nodes (without sites), their shapes, outputs, types of leaves.
 * Names, sites and the order in which shapes were interned are not part of it. */
struct hash128 graph_hash(const struct graph *g);
bool graph_same(const struct graph *a, const struct graph *b); /* equal in everything that is hashed */
/* the first node that differs, or the length of the shorter graph */
uint32_t graph_common(const struct graph *a, const struct graph *b);
struct hash128 bytes_hash(const void *p, size_t n);
/* equal for equal dims of any two graphs, whatever the symbols' names */
int64_t dim_digest(const struct graph *g, int64_t d);

/* ---- difference.c ---- */
/* A measure of similarity, larger is more similar: the common nodes at the beginning, the number of nodes, and the
 * first that differs. */
uint64_t graph_similarity(const struct graph *a, const struct graph *b);
/* Describes where g differs from another graph: "file:line: node, op: which field, and how". */
void graph_difference(const struct graph *g, const struct graph *known, char *text, size_t n);

/* ---- verify.c ---- */
/* Checks every invariant of this header; false: *e names the node and the rule.  Linear in the number of nodes. */
bool graph_verify(const struct graph *g, struct err *e);
/* The same of a graph with placeholder sizes, but for lengths that are sums: the placeholder of n + 1 is a number of
 * its own. */
bool graph_verify_placeholders(const struct graph *g, struct err *e);

#endif
