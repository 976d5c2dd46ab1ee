/* The graph IR: one header for the whole folder, prototypes grouped by the file that defines them.
 *
 * A graph is an array of 64-byte nodes in execution order (operands before users), named by index.
 * Node 0 is NIL: never a value, and what every builder returns after a failure, so errors are
 * sticky: build freely, then look at g->err once.  Nothing here locks; a graph has one owner.
 *
 * A region op (cond, while, scan, checkpoint, custom_grad) owns one or two graphs of its own, its regions.  A
 * region is closed: its inputs are its parameters, its returns what it yields; it has no states, slots or
 * assigns.  The node of a region op has any number of operands, in the graph's pool, and any number of results,
 * each read by the one proj node of that number; its own dtype and shape say that it has no elements.
 *
 * Op custom is like a region op, but has no region: what its results are stands in the graph's list of customs.
 *
 * Every node is on a device.  Only copy goes from one to another; parameters and yields of a region are on its op's. */
#ifndef KILN_IR_H
#define KILN_IR_H
#include <kiln/types.h>
#include <stdarg.h>
#include <stdio.h>

typedef uint32_t ref; /* index of a node in its graph */
#define NIL 0u

enum op {
    OP_nil,
#define ST(name, ...) OP_##name,
#define EW1(name, ...) OP_##name,
#define EW2(name, ...) OP_##name,
#define EW3(name, ...) OP_##name,
#include "ir/ops/ops.def"
    OP_COUNT
};

/* ---- errors: filled once, the first cause stays ---- */
struct err {
    kl_status code;
    uint32_t call;                /* of a custom op: which (custom_locate in custom.h), + 1; else 0 */
    char msg[1024];
};

/* ---- shapes: interned per graph, so equal shapes have equal ids; id 0 is the scalar ----
 * A dim is a number of elements or, below 0, an affine expression over the graph's symbols, each of which may be any
 * number within its bounds.  Expressions are interned too: equal ones are equal dims.  What computes with dims uses
 * dims_sum and its kin (symbol.c); where a graph may have symbols, nothing else is meant to be done with them than
 * comparing.  What runs or plans a graph needs it bound: without symbols (pass bind). */
struct shape {
    uint32_t rank;
    uint32_t pad;
    int64_t dim[KL_MAX_RANK];
};

#define MAX_OPERANDS 4
#define MAX_DEVICES 64 /* a device is a number below this */

/* Attributes; all 32 bytes are hashed, so unused ones stay 0. */
union attr {
    uint64_t word[4];                                /* first, so that {0} clears every byte */
    struct { uint32_t index; } leaf;                 /* input, state, slot: ordinal in the graph */
    struct { uint64_t bits; } konst;                 /* const: the value's bits, low bytes first */
    struct { uint32_t axis; } axis;                  /* iota, concat, gather, dynamic_update */
    struct { uint8_t perm[KL_MAX_RANK]; } permute;   /* result axis i is operand axis perm[i] */
    struct { uint32_t axes; } flip;                  /* bit i: axis i is reversed */
    struct { uint32_t index; } proj;                 /* proj: which result */
    struct { int64_t keep; } grad;                   /* bytes of what is cheap to compute again that the forward pass
                                                        keeps for the backward one, + 1; 0: all */
    struct {                                         /* a region op */
        uint32_t first;                              /* its regions: g->region[first], .. */
        uint32_t operands, count;                    /* its operands: g->operand[operands], .., so many */
        uint32_t carried;                            /* while, scan: values from one round to the next, which come
                                                        first among operands and results; custom_grad: operands
                                                        that have a gradient, the first ones too */
        uint32_t scanned;                            /* scan: operands behind those, cut along axis 0 */
        uint32_t flags;                              /* REGION_REVERSE (scan), REGION_REMAT (checkpoint) */
        int64_t length;                              /* scan: rounds; custom: which of g->custom */
    } region;
    struct {                                         /* slice: elements start, start + step, .. of one axis;
                                                        dynamic_slice: axis and count only */
        uint32_t axis, zero;
        int64_t start, count, step;
    } slice;
    struct { uint32_t axis, descending; } sort;      /* argsort */
    struct { uint32_t axis, kind; } scatter;         /* kind: enum scatter_kind */
    struct {                                         /* window: element j of window i is i * stride + j * dilation */
        uint32_t axis, zero;
        int64_t size, stride, dilation;
    } window;
    struct {                                         /* pad: so many new elements before, behind and between */
        uint32_t axis, zero;
        int64_t low, high, interior;
    } pad;
    struct {                                         /* sum, reduce_max, reduce_min, reduce_prod */
        uint32_t axes;                               /* bit i: axis i is reduced */
        uint32_t lanes;                              /* written by pass numerics, 0 before: */
        uint64_t chunk;                              /*   see the comment at numeric order below */
    } reduce;
    struct {                                         /* dot: axis lists as nibbles, first in the low bits */
        uint32_t batch_a, batch_b, con_a, con_b;
        uint8_t nbatch, ncon;
        uint8_t sum;                                 /* KL_I32: operands of u8 or i8, in any mixture, products and sums
                                                        of i32; 0: all of the operands' one dtype */
        uint8_t lanes;                               /* written by pass numerics, 0 before: */
        uint32_t kblock;                             /*   see the comment at numeric order below */
    } dot;
    struct {                                         /* attention: see ir.h at attention below */
        uint64_t scale;                              /* the bits of an f64 */
        uint32_t causal;                             /* 1: query i sees the keys up to i + M - L */
        uint32_t block;                              /* written by pass numerics, 0 before */
    } attention;
};

/* attention: q [.., L, D], k [.., M, D] and v [.., M, E], whose leading axes are the same, give [.., L, E]: row i is
 * the mean of v's rows with weights exp(scale * q_i . k_j) over the keys j that query i sees.  A fourth operand, of the
 * same leading axes, says which those are: bool [.., L, M], true where i sees j; or i32 or i64 [.., L, 2], of which
 * query i sees the keys from the first one on and before the second.  What a query does not see has no part in its
 * result, be it an infinity or NaN.  Where a query sees no key, or all that it sees have a score of -infinity, its
 * result is 0. */

/* How scatter brings an element of the update in. */
enum scatter_kind { SCATTER_ADD, SCATTER_MAX, SCATTER_MIN, SCATTER_SET };

enum { MARK_STOP = 1,             /* node.flags: no gradient flows through this node */
       MARK_REMAT = 2 };          /*   computed a second time to save memory: never the same node as the first */
enum { REGION_REVERSE = 1,        /* scan: from the last element to the first */
       REGION_REMAT = 2 };        /* checkpoint: the backward pass of one, whose nodes become MARK_REMAT */
enum { MAX_REGION_DEPTH = 16 };   /* of regions in regions */

struct node {
    uint16_t op;
    uint8_t dtype, nin;
    uint32_t shape;
    ref in[MAX_OPERANDS];
    uint32_t site;                /* index in g->site, outside the hash */
    uint16_t device, flags;       /* device: where the result lives, and the operands too, but for copy, whose operand
                                     lives anywhere, and grad, whose loss does */
    union attr attr;
};
_Static_assert(sizeof(struct node) == 64, "a node is one cache line");

/* Numeric order, the same for every executor (design section 5).  Pass numerics writes it:
 *
 * reduce: the reduced elements are numbered k = 0..n-1 in row-major order of the reduced axes
 *   and cut into chunks of `chunk` consecutive numbers, the last one shorter.  With lanes 64, element j
 *   of a chunk (counted from the chunk's start) is accumulated into lane j % 64 in ascending order, each
 *   of the 64 lanes starting from the identity, and the lanes are then folded: lane i takes in lane
 *   i+32, then i+16, 8, 4, 2, 1 (acc = f(acc_i, acc_i+h)).  With lanes 1 a chunk is one ascending chain
 *   from the identity.  The chunks' results are combined as one ascending chain that starts with the
 *   first chunk's result; n = 0 gives the identity.  Identity: sum +0, reduce_max -infinity or the
 *   lowest integer, reduce_min infinity or the highest, reduce_prod 1.
 * cumsum, cumprod, cummax, cummin: a row's first result is its first element, each further one f(the result before,
 *   the element).  recurrence: the first is b, then fma(a, the result before, b) (integers: a * it + b).
 * dot: products k = 0..K-1 in row-major order of the contracted axes, cut into blocks of kblock.
 *   Each block is one ascending chain acc = fma(a, b, acc) from 0 (integers: acc + a*b); block
 *   results are added in ascending order, starting with the first block's; K = 0 gives 0.  lanes is 1.
 * attention: for each query the keys it sees, in blocks of `block` keys (0 .. block-1, ..), in ascending order.  A
 * score is one ascending chain of fma over D from 0, then times scale.  Each block makes most' = the largest of most
 * and its scores (at first -infinity; NaN if any is NaN), base = most', or 0 where that is -infinity, shrink = exp(most
 * - base), and weights exp(score - base).  Their sum is one ascending chain of adds from -0, the values' sum one of
 *   fma(weight, v, acc) from -0; with each total = fma(total, shrink, sum), from 0.  The result is the values' total /
 * the weights', or 0 where that is 0.  A block of which a query sees no key changes nothing.
 *
 * scatter: an element starts as the first operand's; the update's elements that the index sends there are brought in
 *   one by one, in ascending order of the position in the index: acc = f(acc, x), for set acc = x.
 *
 * On f16 and bf16 every op computes in f32 on the exactly widened operands and rounds its result once, to
 * nearest even (a NaN stays a NaN), in a fused kernel as anywhere.  Reduces, dots, attention and scans of
 * them, and scatters of kind add, accumulate in f32 in the order above and round each result at the end. */

enum out_kind { OUT_RETURN, OUT_ASSIGN };
struct output {
    uint32_t kind;                /* enum out_kind */
    ref value;
    uint32_t state;               /* OUT_ASSIGN: the state's ordinal */
    uint32_t pad;
};

struct output_name { const char *s; bool written; }; /* graph_output_name */

struct leaf {                     /* an input, a state or a slot, by ordinal */
    uint8_t dtype;
    bool assigned;                /* a state: an output assigns it */
    uint32_t shape;
    char name[24];
};

struct leaves { struct leaf *v; uint32_t n, cap; };

/* What the node of a custom op says beside its operands. */
enum { CUSTOM_NAME = 64 };
struct custom_result { uint32_t dtype, shape; };
struct custom {
    char name[CUSTOM_NAME];
    struct custom_result *result; uint32_t nresult;   /* owned */
    uint32_t nattr; void *attr;   /* attributes: bytes, owned; NULL: none */
    uint32_t call;                /* custom_number in custom.h; outside the hash */
};

struct intern { uint32_t *slot, cap, n; }; /* hash index of a table: slots hold id + 1, 0 is free */

/* ---- symbols ---- */
#define MAX_DIM ((INT64_C(1) << 59) - 1)
enum { MAX_SYMBOLS = 64, MAX_SYMBOL_TERMS = 8 };
struct symbol { char name[24]; int64_t low, high; };
struct symbol_term { uint32_t symbol, pad; int64_t by; };
/* constant + the sum of by * symbol, by ascending symbol and without a 0; unused terms are 0. */
struct affine { int64_t constant; uint32_t n, pad; struct symbol_term term[MAX_SYMBOL_TERMS]; };
/* A graph, its regions, and what passes build of them share one table. */
struct symbols {
    uint32_t users, n;
    struct symbol v[MAX_SYMBOLS];
    struct affine *expr; uint32_t nexpr, expr_cap;
    struct intern expr_index;
};

struct graph {
    char name[64];
    struct node *node;   uint32_t nnode, node_cap;     /* node[0] is NIL */
    struct shape *shape; uint32_t nshape, shape_cap;
    struct shape **outgrown; uint32_t noutgrown, outgrown_cap; /* where shapes lay before there were more: pointers to
                                                            them, as node_shape gives, hold while nodes are made */
    struct output *out;  uint32_t nout, out_cap;
    struct output_name *out_name; uint32_t out_name_cap; /* one an output, or NULL: none has a name */
    ref *operand;        uint32_t noperand, operand_cap; /* of region ops, in the order of their nodes */
    struct graph **region; uint32_t nregion, region_cap; /* likewise; owned */
    struct custom *custom; uint32_t ncustom, custom_cap; /* of custom ops, in the order of their nodes */
    uint32_t depth;      /* of regions in regions below this graph */
    struct leaves input, state, slot;
    struct symbols *symbols;                           /* NULL: it has none, and all dims are numbers */
    kl_site *site;       uint32_t nsite, site_cap;     /* site[0] is "unknown"; strings are not owned */
    char **text;         uint32_t ntext, text_cap;     /* strings this graph owns (parsed site names) */
    struct intern shape_index, site_index, text_index;
    uint32_t cur_site;   uint16_t cur_device, cur_flags; /* given to nodes made from here on; the device to those
                                                            without operands, the others are on their operands' */
    uint32_t *group;     /* pass fuse: the kernel group of each node, GROUP_NONE if none; or NULL
                            (graph_add drops it: it would have no entry for the new node) */
    uint32_t ngroup;
    struct err err;      /* the first failure; code KL_OK while all is well */
};
#define GROUP_NONE UINT32_MAX
#define LEAF_NONE UINT32_MAX

/* What an op is to passes, as its row in ops.def says. */
enum op_trait {
    TRAIT_NONE = 0,
    TRAIT_LEAF = 1,               /* no operand: a value from outside the graph, a constant, or one's own index */
    TRAIT_VIEW = 2,               /* only renumbers the elements of its operand */
    TRAIT_SELECT = 4,             /* element i is not made of element i of the operands alone, and no order is needed */
    TRAIT_REDUCE = 8,             /* combines the elements along axes, which keep length 1 */
    TRAIT_CUMULATIVE = 16,        /* combines the elements up to each one of an axis */
    /* its elements are computed together, in a schedule of their own: a kernel has at most one */
    TRAIT_ANCHOR = 32,
    TRAIT_QUANT = 64,             /* to or from integers with scale and zero point */
    TRAIT_REGION = 128,           /* its operands stand in the graph's pool, its results are read by proj nodes */
    TRAIT_CONTROL = 256,          /*   and it runs its regions */
    TRAIT_INLINED = 512,          /*   or pass inline takes it apart: it only matters to gradients */
    /* reads its operands whole, wherever they are stored, and is no part of a kernel */
    TRAIT_NON_FUSIBLE = 1024,
    TRAIT_PRODUCT = 2048,         /* sums of products of two operands, linear in each; attr.dot says over which axes */
    TRAIT_MASKED = 4096,          /* a view of its first operand under a mask; elsewhere the second, a scalar */
};

/* One attribute of a structural op: a field of union attr and its form in text, "word(value)".  A list of them ends
 * with a word of NULL. */
enum attr_kind {
    ATTR_AXIS,                    /* u32: an axis */
    ATTR_AXES,                    /* u32: bit i is axis i */
    ATTR_PERM,                    /* u8 each: all axes of the operand */
    /* u32: axes of the first operand; part[0]: of the second; part[1], u8: how many of each */
    ATTR_PAIRS,
    ATTR_DIM,                     /* i64: a number of elements, which may be symbolic */
    ATTR_LENGTH,                  /* i64: a number of elements */
    ATTR_COUNT,                   /* u32: a number */
    ATTR_REAL,                    /* u64: the bits of an f64 */
    ATTR_WORD,                    /* u8 or u32: which of words */
    ATTR_FLAG,                    /* u32: has this bit; only the word, without a value */
    ATTR_ORDER,                   /* order(word number, ..): the numbers of part */
};
struct attr_info {
    const char *word;
    uint8_t kind, at, size;       /* enum attr_kind; at, size: of the field, in bytes */
    uint8_t more;                 /* what is stored is more than what is written, by this; ATTR_FLAG: the bit */
    bool optional;                /* where it is not written the field is 0 */
    bool several;                 /* ATTR_AXIS: text may list several axes, which are a node each */
    const char *const *words;     /* ATTR_WORD; ends with NULL */
    struct { const char *word; uint8_t at, size; } part[2];
};
uint64_t attr_get(const union attr *a, unsigned at, unsigned size); /* attr.c: an unsigned field of 1, 4 or 8 bytes */
void attr_set(union attr *a, unsigned at, unsigned size, uint64_t v);

/* What is known of an op; every function is set for every op. */
struct lower;
enum op_class { CLASS_STRUCT = 'S', CLASS_ANY = 'A', CLASS_FLOAT = 'F', CLASS_LOGIC = 'L', CLASS_COMPARE = 'C',
                CLASS_WHERE = 'W', CLASS_INT = 'I', CLASS_PREDICATE = 'P' };
struct opinfo {
    const char *name, *doc, *value, *autocast, *batching; /* value: the row's expression as text */
    const struct attr_info *attr;                         /* NULL: none */
    uint8_t nin, least, cls;                              /* operands: at most, at least; cls: enum op_class */
    uint16_t traits;                                      /* enum op_trait */
    /* Result dtype and shape of a node whose other fields are set; false: *e says why, naming the shapes.
     * Where the caller chooses the shape (leaves, reshape, expand, iota, random), *out holds it on entry. */
    bool (*shape)(const struct graph *g, struct node *n, struct shape *out, struct err *e);
    /* Computes the node's elements, row-major, from its operands' (each row-major); false: out of memory
     * (or what interp_run checks first: no numeric order, a grad node). */
    bool (*eval)(const struct graph *g, const struct node *n, void *out, const void *const *in);
    /* Gradient: writes to din[] what flows to each operand (NIL: nothing) given dy for node y. */
    void (*vjp)(struct graph *g, ref y, ref dy, ref *din);
    /* One element as loop IR; see struct lower in loop.h. */
    uint32_t (*lower)(struct lower *l, ref n, const uint32_t *coord);
};
extern const struct opinfo opinfo[OP_COUNT];
static inline bool op_gives_bool(unsigned op)
{
    return opinfo[op].cls == CLASS_COMPARE || opinfo[op].cls == CLASS_PREDICATE;
}

static inline bool op_has(unsigned op, enum op_trait t) { return opinfo[op].traits & t; }
static inline bool op_is_elementwise(unsigned op) { return opinfo[op].cls != CLASS_STRUCT; }
static inline bool op_is_view(unsigned op) { return op_has(op, TRAIT_VIEW); }
static inline bool op_is_select(unsigned op) { return op_has(op, TRAIT_SELECT); }
static inline bool op_is_masked(unsigned op) { return op_has(op, TRAIT_MASKED); }
/* opinfo.nin is the most operands a node of the op has, this the fewest. */
static inline unsigned op_min_operands(unsigned op) { return opinfo[op].least; }
static inline bool op_varies(unsigned op) { return op_min_operands(op) < opinfo[op].nin; }
static inline bool op_is_leaf(unsigned op) { return op_has(op, TRAIT_LEAF); }
static inline bool op_is_quant(unsigned op) { return op_has(op, TRAIT_QUANT); }
static inline bool op_is_region(unsigned op) { return op_has(op, TRAIT_REGION); }
static inline bool op_is_inlined(unsigned op) { return op_has(op, TRAIT_INLINED); }
static inline bool op_is_non_fusible(unsigned op) { return op_has(op, TRAIT_NON_FUSIBLE); }
static inline bool op_is_control(unsigned op) { return op_has(op, TRAIT_CONTROL); }
static inline bool op_is_reduce(unsigned op) { return op_has(op, TRAIT_REDUCE); }
static inline bool op_is_cumulative(unsigned op) { return op_has(op, TRAIT_CUMULATIVE); }
static inline bool op_is_anchor(unsigned op) { return op_has(op, TRAIT_ANCHOR); }
static inline bool op_is_product(unsigned op) { return op_has(op, TRAIT_PRODUCT); }

/* ---- mem.c: all of Kiln's own memory ---- */
bool mem_use(const kl_memory *m);                 /* from these functions; false: too late, there is some in use */
const kl_memory *mem_used(void);                  /* for libraries with a mem.c of their own */
/* What a module does around a fork of the process: takes its locks before, and opens them after, in both processes; in
 * the child it also resets what other threads were doing.  The parts stand in runtime/fork.c. */
struct fork_part { void (*before)(void), (*after)(bool child); };

void *mem_alloc(size_t bytes);                    /* zeroed; NULL when out of memory */
void *mem_grow(void *p, size_t old_bytes, size_t new_bytes); /* new bytes zeroed; NULL leaves p as it was */
void mem_free(void *p);                           /* NULL is fine */
/* Makes room for one more element of a growable array; false when out of memory. */
bool mem_reserve(void *array_ptr, uint32_t *cap, uint32_t need, size_t elem);

/* ---- dtype.c ---- */
size_t dtype_size(unsigned dt);
const char *dtype_name(unsigned dt);
int dtype_parse(const char *s, size_t len);       /* -1: unknown */
char dtype_kind(unsigned dt);                     /* 'B' 'U' 'I' 'F' */
static inline bool dtype_is_float(unsigned dt) { return dtype_kind(dt) == 'F'; }
static inline bool dtype_is_half(unsigned dt) { return dt == KL_F16 || dt == KL_BF16; }
/* What an op on dt computes and accumulates in. */
static inline unsigned dtype_compute(unsigned dt) { return dtype_is_half(dt) ? (unsigned)KL_F32 : dt; }
uint64_t dtype_bits(unsigned dt, double v);       /* v converted to dt, as bits */
uint64_t dtype_bits_i64(unsigned dt, int64_t v);
double dtype_value(unsigned dt, uint64_t bits);

/* ---- shape.c ---- */
bool shape_numel(const struct shape *s, int64_t *n); /* false: the product does not fit in 2^62 bytes' worth */
int64_t shape_count(const struct shape *s);          /* numel of a shape known to be valid and without symbols */
bool shape_equal(const struct shape *a, const struct shape *b);
#define SHAPE_TEXT 192                               /* bytes that hold the text of any shape */
const char *shape_text(const struct shape *s, char *buf, size_t n); /* "[2,3]"; a symbolic dim is "?": shape_text_in */
struct shape shape_make(uint32_t rank, const int64_t *dim);

/* ---- error.c ---- */
/* Records an error unless one is there already; returns false. */
bool err_set(struct err *e, kl_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
const char *status_name(kl_status s);

/* ---- number.c ---- printf and strtod as in the C locale, whatever locale the host has set. */
int format_text(char *s, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int format_text_v(char *s, size_t size, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
int format_file(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int format_file_v(FILE *f, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
double parse_double(const char *s, char **end);
float parse_float(const char *s, char **end);

/* ---- intern.c ---- Tables without duplicates. */
uint32_t graph_shape(struct graph *g, const struct shape *s); /* 0 and g->err: not a legal shape, out of memory */
uint32_t graph_site(struct graph *g, const kl_site *s);       /* by its strings' contents; NULL -> 0 */
const char *graph_string(struct graph *g, const char *s, size_t len); /* a copy the graph owns; NULL: g->err */
bool graph_owns(const struct graph *g, const char *s);        /* s came from graph_string */
uint32_t intern_shape_find(const struct graph *g, const struct shape *s); /* its id; UINT32_MAX: not interned */

bool intern_expression(struct symbols *s, const struct affine *a, int64_t *d); /* its dim; false: out of memory */

/* ---- symbol.c: dims of graphs with symbols ---- */
struct scaled { int64_t dim, by; };
/* The dim constant + the sum of by * dim.  false: it may be negative or too long, or has too many terms. */
bool dims_sum(const struct graph *g, unsigned n, const struct scaled *t, int64_t constant, int64_t *out);
bool dims_never_negative(const struct graph *g, unsigned n, const struct scaled *t, int64_t constant);
int64_t dims_build(struct graph *g, const char *op, unsigned n, const struct scaled *t, int64_t constant); /* for
                                                  gradients: dims_sum, or 0 and g->err */
bool dim_divide(const struct graph *g, int64_t d, int64_t by, int64_t *out); /* rounded down; false: not affine */
bool dim_multiply(const struct graph *g, int64_t a, int64_t b, int64_t *out); /* false: not affine, or too long */
const char *shape_fault(const struct graph *g, const struct shape *s); /* what an illegal one of legal rank has */
bool dim_range(const struct graph *g, int64_t d, int64_t *low, int64_t *high); /* false: no dim */
static inline bool dim_at_most(const struct graph *g, int64_t a, int64_t b)  /* whatever the symbols' values */
{
    return dims_never_negative(g, 2, (struct scaled[]){{b, 1}, {a, -1}}, 0);
}
bool shape_is_symbolic(const struct shape *s);
bool symbolic_shape_is_legal(const struct graph *g, const struct shape *s);
static inline bool shape_is_legal(const struct graph *g, const struct shape *s) /* for every value of the symbols */
{
    int64_t n;
    return shape_numel(s, &n) || (g->symbols && symbolic_shape_is_legal(g, s));
}
bool shape_same_size(const struct graph *g, const struct shape *a, const struct shape *b); /* likewise */
unsigned node_dims(struct node *n, int64_t *at[2]); /* attr.c: the attributes that are dims; returns how many */
uint32_t node_axis(const struct node *n);         /* attr.c: its attribute "axis", 0 without */
bool node_wants_order(const struct node *n);      /* attr.c: does pass numerics still have to write its order? */
bool dim_affine(const struct graph *g, int64_t d, struct affine *a); /* false: no dim */
bool dim_exists(const struct graph *g, int64_t d);  /* a number, or an expression of this graph? */
bool affine_add(struct affine *a, const struct affine *b, int64_t by); /* a + by * b; false: too large, too long */
bool affine_range(const struct graph *g, const struct affine *a, int64_t *low, int64_t *high); /* false: too large */
bool affine_dim(const struct graph *g, const struct affine *a, int64_t *d); /* false: as dims_sum */
#define SYMBOLIC_DIM (-(INT64_C(1) << 24))          /* the greatest that an expression may be */
int64_t dim_of_expression(uint32_t id);
enum { DIM_TEXT = 400, BOUNDS_TEXT = 160 };
const char *affine_text(const struct graph *g, const struct affine *a, char *buf, size_t n); /* "2*n+m-1" */
const char *dim_text(const struct graph *g, int64_t d, char *buf, size_t n);
const char *shape_text_in(const struct graph *g, const struct shape *s, char *buf, size_t n); /* "[n,3]" */
/* " for n in 1..8, m in 0..4": the symbols of expressions or of a shape; "" without any */
const char *affine_bounds(const struct graph *g, const struct affine *a, unsigned count, char *buf, size_t n);
const char *bounds_text(const struct graph *g, const struct shape *s, char *buf, size_t n);

/* ---- symbol_table.c ---- */
#define NO_SYMBOL UINT32_MAX
/* Declares a symbol of a graph that has no nodes yet; its number, NO_SYMBOL: g->err. */
uint32_t graph_symbol(struct graph *g, const char *name, int64_t low, int64_t high);
uint32_t graph_symbol_find(const struct graph *g, const char *name, size_t len); /* NO_SYMBOL: none */
bool graph_symbol_set(struct graph *g, uint32_t symbol, int64_t value, struct err *e); /* its only value from here on */
bool graph_is_bound(const struct graph *g, struct err *e);        /* without symbols? */
bool symbols_share(struct graph *g, const struct graph *from);    /* g, without symbols so far, has from's */
bool symbols_copy(struct graph *g, const struct symbols *from);   /* g has a table of its own; from may be NULL */
void symbols_use(struct graph *g, struct symbols *s);
void symbols_release(struct graph *g);
bool symbols_verify(const struct graph *g, struct err *e);        /* names and bounds */
const char *dim_verify(const struct graph *g, int64_t d);         /* NULL, or what is wrong with it */

/* ---- symbol_bind.c ---- */
enum { NO_VALUE = -1 };
struct extents { const char *what; struct shape want, got; }; /* want: a shape of the graph; got: numbers */
/* Finds the symbols' values (value[], NO_VALUE where not known) that make each `want` what was got; what the shapes do
 * not decide stays unknown.  false: *e names the axis that does not fit. */
bool symbols_match(const struct graph *g, const struct extents *x, uint32_t n, int64_t *value, struct err *e);
/* Puts in the value of each symbol that can have only one: -1 g->err, 0 there is none, 1. */
int graph_bind(struct graph *g);

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

/* ---- build.c: builders for gradient rules, passes and tests; NIL operands give NIL ---- */
#define ST(name, ...)
#define EW1(name, ...) ref n_##name(struct graph *g, ref a);
#define EW2(name, ...) ref n_##name(struct graph *g, ref a, ref b);
#define EW3(name, ...) ref n_##name(struct graph *g, ref a, ref b, ref c);
#include "ir/ops/ops.def"
ref n_input(struct graph *g, unsigned dtype, const struct shape *s, const char *name);
ref n_state(struct graph *g, unsigned dtype, const struct shape *s, const char *name);
ref n_slot(struct graph *g, unsigned dtype, const char *name);
ref n_const(struct graph *g, unsigned dtype, uint64_t bits);
ref n_k(struct graph *g, ref like, double v);     /* constant of like's dtype and device, expanded to its shape */
ref n_iota(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis);
ref n_random(struct graph *g, unsigned dtype, const struct shape *s, ref seed); /* dtype u32 or u64 */
ref n_reshape(struct graph *g, ref a, const struct shape *s);
ref n_permute(struct graph *g, ref a, const uint8_t *perm);
ref n_expand(struct graph *g, ref a, const struct shape *s);
ref n_broadcast(struct graph *g, ref a, const struct shape *s); /* right-aligned: reshape, then expand */
ref n_slice(struct graph *g, ref a, uint32_t axis, int64_t start, int64_t count, int64_t step);
ref n_window(struct graph *g, ref a, uint32_t axis, int64_t size, int64_t stride, int64_t dilation);
ref n_flip(struct graph *g, ref a, uint32_t axes);
ref n_pad(struct graph *g, ref a, ref value, uint32_t axis, int64_t low, int64_t high, int64_t interior);
ref n_concat(struct graph *g, const ref *a, unsigned n, uint32_t axis); /* n of 1 up: a tree of concat nodes */
ref n_dynamic_slice(struct graph *g, ref a, ref start, uint32_t axis, int64_t count);
ref n_dynamic_update(struct graph *g, ref a, ref update, ref start, uint32_t axis);
ref n_gather(struct graph *g, ref a, ref index, uint32_t axis); /* index: integers, rank 1 */
/* index: integers, rank 1; update: a's shape, but the index's length along the axis */
ref n_scatter(struct graph *g, ref a, ref index, ref update, uint32_t axis, enum scatter_kind kind);
ref n_argsort(struct graph *g, ref a, uint32_t axis, bool descending, unsigned dtype); /* dtype i32 or i64 */
ref n_bitcast(struct graph *g, ref a, unsigned dtype);
ref n_cast(struct graph *g, ref a, unsigned dtype);
ref n_quantize(struct graph *g, ref x, ref scale, ref zero);
ref n_dequantize(struct graph *g, ref q, ref scale, ref zero);
ref n_reduce(struct graph *g, enum op op, ref a, uint32_t axes); /* reduced axes keep length 1 */
ref n_cumulative(struct graph *g, enum op op, ref a, uint32_t axis); /* op: cumsum, cumprod, cummax, cummin */
ref n_recurrence(struct graph *g, ref a, ref b, uint32_t axis);
/* each element one further, the scalar first, the last gone */
ref n_shift(struct graph *g, ref a, ref value, uint32_t axis);
ref n_dot(struct graph *g, ref a, ref b, const union attr *dims); /* result: batch, free of a, free of b */
ref n_attention(struct graph *g, ref q, ref k, ref v, ref seen, double scale, bool causal); /* seen: NIL without */
/* What attention node y multiplies v by, [.., L, M], made of other ops: a decomposition is n_dot of this, in y's dtype,
 * and v.  In the dtype that y computes in; the products are in y's dtype. */
ref n_attention_weights(struct graph *g, ref y);
ref n_copy(struct graph *g, ref a, unsigned device);
ref n_grad(struct graph *g, ref loss, ref wrt);
ref n_proj(struct graph *g, ref region, uint32_t index); /* the node that is there already, or a new one */
/* What gradients share. */
ref n_pick(struct graph *g, ref a, ref b);        /* 1 where a > b, 0.5 where equal, else 0, in a's dtype */
ref n_circle(struct graph *g, ref a);             /* sqrt(1 - a^2) */
ref n_radius(struct graph *g, ref a, ref b);      /* hypot(a, b), but 1 at the origin: what divides there is 0 too */
ref n_pow_slope(struct graph *g, ref a, ref b);   /* b a^(b-1), with 0 for a 0 times infinity where b is 0 */
ref n_pow_log(struct graph *g, ref a, ref b);     /* log a, with 0 where 0^b is 0 or 1 for all b nearby */

/* ---- attr.c: dot's axis lists ---- */
static inline unsigned axis_get(uint32_t list, unsigned i) { return (list >> (4 * i)) & 15u; }
static inline uint32_t axis_put(uint32_t list, unsigned i, unsigned axis) { return list | (uint32_t)axis << (4 * i); }
struct dot_dims { int64_t batch, m, n, k; };      /* products of the four kinds of dimension */
struct dot_dims dot_sizes(const struct graph *g, const struct node *n);
/* op_attention.c: of both products, as if every query saw every key */
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

/* ---- print.c, parse.c ---- */
bool graph_print(const struct graph *g, FILE *f);
char *graph_text(const struct graph *g);          /* free with mem_free */
char *node_text(const struct graph *g, ref r);    /* its line; NULL: out of memory */
/* Parses one graph; NULL: *e has line:column and the reason. Refuses hostile text without large allocations. */
struct graph *graph_parse(const char *text, size_t len, const char *file, struct err *e);

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
/* Called for each node that has been computed, of regions too, with the values of all that are needed still; those of a
 * region op are its results, one behind the other, each aligned to 64 bytes. */
struct interp_watch { void (*node)(void *ctx, const struct graph *g, ref r, void *const *value); void *ctx; };
struct bind {                     /* what a graph runs on: row-major arrays, by ordinal */
    const void *const *input;     /* one per input */
    const void *const *state;     /* one per state, the values before the run */
    const uint64_t *slot;         /* one per slot, the bits of its dtype */
    void *const *out;             /* one per output: return values and new states; must not alias inputs */
    const struct interp_watch *watch; /* NULL: none */
};
/* Evaluates a graph without grad nodes and with numerics written; one thread, no kernel. */
bool interp_run(const struct graph *g, const struct bind *b, struct err *e);
/* One node from its operands' values; input, state and slot copy in[0].  false: as struct opinfo's eval. */
bool interp_node(const struct graph *g, const struct node *n, void *out, const void *const *in);

/* ---- structural rules, by family file op_*.c ---- */
#define ST(name, ...)                                                                            \
    bool shape_##name(const struct graph *, struct node *, struct shape *, struct err *);        \
    bool eval_##name(const struct graph *, const struct node *, void *, const void *const *);    \
    void vjp_##name(struct graph *, ref, ref, ref *);                                            \
    uint32_t lower_##name(struct lower *, ref, const uint32_t *);
#include "ir/ops/ops.def"
void elementwise_vjp(struct graph *g, ref y, ref dy, ref *din); /* vjp.c: the gradient columns of ops.def */

/* What the families share. */
#define DEVICE_TEXT 8
const char *device_label(unsigned device, char buf[DEVICE_TEXT]); /* text.c: its name, or its number as text */
bool attr_rest_zero(const struct node *n, size_t used, struct err *e); /* attr.c: bytes from `used` on are 0 */
struct shape coord_strides(const struct shape *s); /* shape.c: dim[i] is the row-major stride of axis i */
/* op_select.c: a shape around one axis: blocks of `inner` elements, `len` of them in each of `outer` rows. */
struct split { int64_t outer, len, inner; };
struct split split_at(const struct shape *s, uint32_t axis);
bool axis_in_range(const char *op, const struct shape *s, uint32_t axis, struct err *e);
bool index_is_integer(const char *op, const char *what, unsigned dtype, struct err *e); /* no bool either */
enum op scatter_op(enum scatter_kind kind);       /* op_scatter.c: the elementwise op f; set: OP_nil */
/* May there be indices into an axis of no elements? */
bool nowhere_to_point(const struct graph *g, int64_t len, int64_t indices);
/* op_select.c: element i of p, integers of dtype, held within 0..last */
int64_t index_at(unsigned dtype, const void *p, int64_t i, int64_t last);
/* op_view.c: out, row-major of shape s, takes element (i, j, ..) from in[i*stride->dim[0] + j*stride->dim[1] ..] */
void gather(void *out, const void *in, size_t elem, const struct shape *s, const struct shape *stride);
/* op_view.c: does the same for a list of axes: axis[i] of operand shape s, n of them, to the row-major order of the
 * list */
void gather_axes(void *out, const void *in, size_t elem, const struct shape *s, const uint8_t *axis, uint32_t n);

#endif
