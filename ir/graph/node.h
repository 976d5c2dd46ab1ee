/* The graph IR.
 *
 * A graph is an array of 64-byte nodes in execution order (operands before users), named by index.  Node 0 is NIL:
 * never a value, and the result of every builder after a failure.  Errors are sticky: a caller builds many nodes and
 * checks g->err once.  There are no locks; a graph has one owner.
 *
 * A region op (cond, while, scan, checkpoint, custom_grad) owns one or two graphs of its own, its regions.  A region is
 * closed: its inputs are its parameters, its returns what it yields; it has no states, slots or assigns.  The node of a
 * region op has any number of operands, in the graph's pool, and any number of results, each read by the one proj node
 * of that number; its own dtype and shape are those of a node without elements.
 *
 * Op custom is like a region op without a region: the graph's list of custom descriptions has the types of its results.
 *
 * Every node is on a device.  Only op copy moves values to another device; parameters and yields of a region are on the
 * device of its op. */
#ifndef KILN_IR_NODE_H
#define KILN_IR_NODE_H
#include "ir/base.h"

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

/* ---- shapes: interned per graph, so equal shapes have equal ids; id 0 is the scalar ----
 * A dim is a number of elements or, below 0, an affine expression over the graph's symbols, each of which may be any
 * number within its bounds.  Expressions are interned too, so equal expressions are equal dims.  Arithmetic on dims
 * uses dims_sum and related functions (symbol.c).  Where a graph may have symbols, code must not do anything else with
 * dims except compare them.  Executors and the planner need a bound graph: one without symbols (pass bind). */
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
    /* + 1: bytes of values that are cheap to recompute, which the forward pass keeps for the backward one; 0: all are
     * kept */
    struct { int64_t keep; } grad;
    struct {                                         /* a region op */
        uint32_t first;                              /* its regions: g->region[first], .. */
        uint32_t operands, count;                    /* its operands: g->operand[operands], .., so many */
        /* while, scan: number of carried values, which come first among operands and results; custom_grad: number of
         * operands that have a gradient, which come first */
        uint32_t carried;
        /* scan: number of operands after those, which are cut along axis 0 */
        uint32_t scanned;
        uint32_t flags;                              /* REGION_REVERSE (scan), REGION_REMAT (checkpoint) */
        int64_t length;                              /* scan: iterations; custom: index in g->custom */
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
    struct {                                         /* pad: numbers of new elements before, after and between */
        uint32_t axis, zero;
        int64_t low, high, interior;
    } pad;
    struct {                                         /* sum, reduce_max, reduce_min, reduce_prod */
        uint32_t axes;                               /* bit i: axis i is reduced */
        uint32_t lanes;                              /* set by pass numerics, 0 before: */
        uint64_t chunk;                              /*   see the comment at numeric order below */
    } reduce;
    struct {                                         /* dot: axis lists as nibbles, first in the low bits */
        uint32_t batch_a, batch_b, con_a, con_b;
        uint8_t nbatch, ncon;
        uint8_t sum;                                 /* KL_I32: operands of u8 or i8, in any mixture, products and sums
                                                        of i32; 0: all of the operands' one dtype */
        uint8_t lanes;                               /* set by pass numerics, 0 before: */
        uint32_t kblock;                             /*   see the comment at numeric order below */
        uint32_t order;                              /*   of bf16: a set of the bits below */
    } dot;
    struct {                                         /* attention, attention_stats and attention_grad: see below */
        uint64_t scale;                              /* the bits of an f64 */
        uint32_t causal;                             /* 1: query i attends to the keys up to i + M - L */
        uint32_t block;                              /* set by pass numerics, 0 before */
        uint32_t depth, of;                          /* attention_grad: D; enum attention_of */
    } attention;
};

/* attr.dot.order.  DOT_PAIRS and DOT_EVEN_ODD, at most one of them, set by pass numerics: see the comment at numeric
 * order below.  DOT_ANY_SIZE: symbols said how large operands of the graph are; its order does not depend on how many
 * results there are. */
enum { DOT_PAIRS = 1, DOT_EVEN_ODD = 2, DOT_ANY_SIZE = 4, DOT_ORDERS = DOT_PAIRS | DOT_EVEN_ODD };

/* attention: q [.., L, D], k [.., M, D] and v [.., M, E], whose leading axes are the same, give [.., L, E]: row i is
 * the mean of v's rows with weights exp(scale * q_i . k_j) over the keys j that query i attends to.  A fourth operand,
 * of the same leading axes, selects those keys: bool [.., L, M], true where i attends to j; or i32 or i64 [.., L, 2],
 * of which query i attends to the keys from the first one on and before the second.  Keys and values that a query does
 * not attend to do not affect its result, even if they are infinite or NaN.  Where a query attends to no key, or all
 * that it attends to have a score of -infinity, its result is 0.
 *
 * attention_stats: of the same q, k and fourth operand, [.., L, 2] in the dtype that attention computes in: the largest
 * score that query i attends to, or 0 where that is -infinity, and 1 / the sum of the weights, or 0 where that is 0.
 *
 * attention_grad: x = q beside dy, [.., L, D + E], y = k beside v, [.., M, D + E], and t, [.., L, 3], give the gradient
 * of attention in q, [.., L, D], or in k beside v, [.., M, D + E].  t has what attention_stats gives, then the sum of
 * each row of attention's result times dy. */
enum attention_of { ATTENTION_QUERIES, ATTENTION_KEYS };

/* How scatter combines an element of the update with the element at its index. */
enum scatter_kind { SCATTER_ADD, SCATTER_MAX, SCATTER_MIN, SCATTER_SET };

enum { MARK_STOP = 1,             /* node.flags: no gradient flows through this node */
       MARK_REMAT = 2,            /* recomputed to save memory: never merged with the first computation */
       /* dot: elements of the result, or of an operand, belong to pairs of a query and a key.  Where the key is hidden,
        * the result's element is not used, the operand's is 0.  Gradients of the dot have no 0 times infinity there. */
       MARK_HIDDEN_RESULT = 4, MARK_HIDDEN_LEFT = 8, MARK_HIDDEN_RIGHT = 16,
       MARK_HIDDEN = MARK_HIDDEN_RESULT | MARK_HIDDEN_LEFT | MARK_HIDDEN_RIGHT,
       MARKS = MARK_STOP | MARK_REMAT | MARK_HIDDEN };
enum { REGION_REVERSE = 1,        /* scan: from the last element to the first */
       /* checkpoint: the recomputation of one for the backward pass; its nodes become MARK_REMAT */
       REGION_REMAT = 2 };
enum { MAX_REGION_DEPTH = 16 };   /* nesting depth of regions */

struct node {
    uint16_t op;
    uint8_t dtype, nin;
    uint32_t shape;
    ref in[MAX_OPERANDS];
    uint32_t site;                /* index in g->site; not hashed */
    /* device: of the result and the operands, except the operand of copy and the loss of grad, which may be on any
     * device */
    uint16_t device, flags;
    union attr attr;
};
_Static_assert(sizeof(struct node) == 64, "a node is one cache line");

/* Elements of a chunk of lanes and of one chain, products of a block at most: long enough that combining them costs
 * nothing, short enough that a reduce of millions splits over threads. */
enum { LANE_CHUNK = 16384, COLUMN_CHUNK = 512, DOT_BLOCK = 512, DOT_BLOCK_MULTIPLE = 8 };
enum { EVEN_ODD_BLOCK = 32 }; /* products of a block with DOT_EVEN_ODD */

/* Numeric order, for every executor, but for GPUs without option order = graph (below).  Pass numerics writes it:
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
 *   With `pairs`, of bf16, a block is one chain of acc = DOT2(a, b, acc) (ir/math/prims.def) over products (0, 1),
 *   (2, 3), .. of the block, the first of a pair in the lower half; behind an odd number of products stands 0 * 0.
 *   That is the sum as processors with AVX512_BF16 compute it, at twice the rate of f32; those with AMX at half of it.
 *   Elsewhere it would take several instructions a product, where a chain of fma takes one.  So numerics writes `pairs`
 *   where the device's code generator has such an instruction that is fast (caps.dot2), else the chain.  Which one is
 *   part of the node, of the graph's hash and of its text, and each is the same sum, to the bit, on every processor
 *   that is given it.  Device ref takes the order of device cpu, so that the two agree.
 *   With `even_odd`, of bf16, kblock is EVEN_ODD_BLOCK.  A block's products with even numbers are one ascending chain
 *   of fma from +0, those with odd numbers another one; their sum is the block's result, and these are added in
 *   ascending order to +0.  A last block that is shorter is filled up by products 0 * 0.  Each of these operations
 *   takes numbers below 2^-126 as zeros of their sign, and gives such a zero for a result below it, as DOT2 does.
 *   That is the sum as AMX computes it (tdpbf16ps), at several times the rate of f32.  numerics writes it where the
 *   device's code generator has the instruction (caps.bf16_tiles), of products that are large enough to be faster for
 *   it, but not with option order = graph, nor where symbols said how large operands are: it is the only order of a
 *   sum that depends on how many results there are.
 * attention: for each query its unmasked keys, in blocks of `block` keys (0 .. block-1, ..), in ascending order.  A
 *   score is one ascending chain of fma over D from 0, then times scale.  Each block makes max' = the largest of max
 *   and its scores (at first -infinity; NaN if any is NaN), base = max', or 0 where that is -infinity, shrink =
 *   exp(max - base), and weights exp(score - base).  Their sum is one ascending chain of adds from -0, the values' sum
 *   one of fma(weight, v, acc) from -0; with each total = fma(total, shrink, sum), from 0.  The result is the values'
 *   total / the weights', or 0 where that is 0.  A block of which a query attends to no key changes nothing.
 * attention_stats: as attention, up to max and the weights' total.
 * attention_grad: a score s as there; weight p = exp(s - t_0) * t_1; dp is one ascending chain of fma over E from 0;
 *   ds = (dp - t_2) * p.  A row of the result in q sums over its query's unmasked keys, one in k and v over the
 *   queries for which its key is unmasked, in blocks of `block` rows (0 .. block-1, ..), in ascending order.  Each
 *   block's sums are ascending chains fma(ds, k, acc), or fma(ds, q, acc) and fma(p, dy, acc), from -0, and are added
 *   to totals from 0; those made of ds are multiplied by scale at the end.
 *
 * scatter: an element starts as the first operand's; the update's elements whose index selects it are combined with
 *   it one by one, in ascending order of the position in the index: acc = f(acc, x), for set acc = x.
 *
 * On GPUs.  With option order = graph their kernels (struct caps: graph_order) follow the order above.  Without it
 *   floating point sums of reduces, scans, dots and attention, and what is made of them in the same kernel, are added
 *   in the order of the kernel's schedule instead: by threads, parts and levels.  The same program on the same
 *   kind of device gives the same bits in every run, because no sum is made of atomic operations on floating point
 *   numbers and no order depends on which block is done first.  Another schedule (a tuner's, or one chosen for a GPU
 *   with another number of processors) may give other bits; the results are those of another order of the same
 *   additions.  Scatters keep the order above, and integers, maxima, minima and sorts have the same bits everywhere.
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

/* The description of a custom op's node, besides its operands. */
enum { CUSTOM_NAME = 64 };
struct custom_result { uint32_t dtype, shape; };
struct custom {
    char name[CUSTOM_NAME];
    struct custom_result *result; uint32_t nresult;   /* owned */
    uint32_t nattr; void *attr;   /* attributes: bytes, owned; NULL: none */
    uint32_t call;                /* custom_number in custom.h; not hashed */
};

struct intern { uint32_t *slot, cap, n; }; /* hash index of a table: slots hold id + 1, 0 is free */

/* ---- symbols ---- */
#define MAX_DIM ((INT64_C(1) << 59) - 1)
enum { MAX_SYMBOLS = 64, MAX_SYMBOL_TERMS = 8 };
struct symbol { char name[24]; int64_t low, high; };
/* by * symbol; or by * symbol * the symbol number times - 1, which is not the lesser one, where times is not 0. */
struct symbol_term { uint32_t symbol, times; int64_t by; };
/* constant + the sum of the terms, by ascending symbol, then times, and without a 0; unused terms are 0. */
struct affine { int64_t constant; uint32_t n, pad; struct symbol_term term[MAX_SYMBOL_TERMS]; };
/* A pass made another graph than it would have made for other values of the symbols: those for which the product of
 * the number and the symbols' powers is on the other side of the limit, below it or not. */
struct size_limit { int64_t number, limit; uint8_t power[MAX_SYMBOLS]; const char *why; };
/* A graph, its regions, and graphs that passes build from them share one table. */
struct symbols {
    uint32_t users, n;
    struct symbol v[MAX_SYMBOLS];
    struct size_limit varies; /* number 0: nothing depends on a size, or, where there is a `why`, on a sum */
    struct affine *expr; uint32_t nexpr, expr_cap;
    struct intern expr_index;
};

struct graph {
    char name[64];
    struct node *node;   uint32_t nnode, node_cap;     /* node[0] is NIL */
    struct shape *shape; uint32_t nshape, shape_cap;
    /* previous arrays of shapes: pointers to shapes, as node_shape returns them, stay valid while nodes are added */
    struct shape **outgrown; uint32_t noutgrown, outgrown_cap;
    struct output *out;  uint32_t nout, out_cap;
    struct output_name *out_name; uint32_t out_name_cap; /* one for each output, or NULL: no output has a name */
    ref *operand;        uint32_t noperand, operand_cap; /* of region ops, in the order of their nodes */
    struct graph **region; uint32_t nregion, region_cap; /* likewise; owned */
    struct custom *custom; uint32_t ncustom, custom_cap; /* of custom ops, in the order of their nodes */
    uint32_t depth;      /* nesting depth of regions in this graph */
    struct leaves input, state, slot;
    struct symbols *symbols;                           /* NULL: the graph has no symbols, all dims are numbers */
    kl_site *site;       uint32_t nsite, site_cap;     /* site[0] is "unknown"; strings are not owned */
    char **text;         uint32_t ntext, text_cap;     /* strings this graph owns (parsed site names) */
    struct intern shape_index, site_index, text_index;
    /* of nodes made from here on; cur_device is used for nodes without operands, others are on their operands'
     * device */
    uint32_t cur_site;   uint16_t cur_device, cur_flags;
    /* pass fuse: the kernel group of each node, GROUP_NONE if none; or NULL (graph_add drops the array, which has no
     * entry for the new node) */
    uint32_t *group;
    uint32_t ngroup;
    struct err err;      /* the first failure; code KL_OK if none */
};
#define GROUP_NONE UINT32_MAX
#define LEAF_NONE UINT32_MAX

/* ---- shape.c ---- */
bool shape_numel(const struct shape *s, int64_t *n); /* false: the product does not fit in 2^62 bytes' worth */
int64_t shape_count(const struct shape *s);          /* numel of a shape known to be valid and without symbols */
bool shape_equal(const struct shape *a, const struct shape *b);
#define SHAPE_TEXT 192                               /* bytes that hold the text of any shape */
const char *shape_text(const struct shape *s, char *buf, size_t n); /* "[2,3]"; a symbolic dim is "?": shape_text_in */
struct shape shape_make(uint32_t rank, const int64_t *dim);

#endif
