/* The description of an op: its row in ops.def as data. */
#ifndef KILN_IR_OP_H
#define KILN_IR_OP_H
#include "ir/graph/node.h"

/* Properties of an op that passes query; set in its row of ops.def. */
enum op_trait {
    TRAIT_NONE = 0,
    /* no operands: a value from outside the graph, a constant, or a function of the element's index */
    TRAIT_LEAF = 1,
    TRAIT_VIEW = 2,               /* only renumbers the elements of its operand */
    /* an element of the result depends on elements of the operands at other indices, combined in no particular order */
    TRAIT_SELECT = 4,
    TRAIT_REDUCE = 8,             /* combines the elements along axes, which keep length 1 */
    TRAIT_CUMULATIVE = 16,        /* combines the elements of an axis up to each position */
    /* its elements are computed together by a schedule of their own; a kernel has at most one anchor */
    TRAIT_ANCHOR = 32,
    TRAIT_QUANT = 64,             /* converts to or from integers with scale and zero point */
    TRAIT_REGION = 128,           /* its operands are in the graph's pool, its results are read by proj nodes */
    TRAIT_CONTROL = 256,          /* runs its regions */
    TRAIT_INLINED = 512,          /* pass inline replaces it by its region: it only matters to gradients */
    /* reads whole operands, wherever they are stored, and is never part of a kernel */
    TRAIT_NON_FUSIBLE = 1024,
    TRAIT_PRODUCT = 2048,         /* sums of products of two operands, linear in each; attr.dot has the axes */
    /* a view of its first operand under a mask; elsewhere the value of the second, a scalar */
    TRAIT_MASKED = 4096,
    /* attention scores of queries and keys, block by block; attr.attention has the parameters */
    TRAIT_ATTENTION = 8192,
};

/* An attribute of a structural op: a field of union attr and its text form, "word(value)".  A list ends with a word of
 * NULL. */
enum attr_kind {
    ATTR_AXIS,                    /* u32: an axis */
    ATTR_AXES,                    /* u32: bit i is axis i */
    ATTR_PERM,                    /* u8 for each axis: a permutation of the operand's axes */
    /* u32: axes of the first operand; part[0]: axes of the second; part[1], u8: their number */
    ATTR_PAIRS,
    ATTR_DIM,                     /* i64: a number of elements, which may be symbolic */
    ATTR_LENGTH,                  /* i64: a number of elements */
    ATTR_COUNT,                   /* u32: a number */
    ATTR_REAL,                    /* u64: the bits of an f64 */
    ATTR_WORD,                    /* u8 or u32: an index into words */
    ATTR_FLAG,                    /* u32: the field has this bit; text is the word alone, without a value */
    ATTR_ORDER,                   /* order(word number, ..): the numbers are the fields in part */
};
struct attr_info {
    const char *word;
    uint8_t kind, at, size;       /* enum attr_kind; at, size: of the field, in bytes */
    uint8_t more;                 /* the stored value is the written one plus this; ATTR_FLAG: the bit */
    bool optional;                /* the field is 0 if the attribute is not written */
    bool several;                 /* ATTR_AXIS: text may list several axes, which become one node each */
    const char *const *words;     /* ATTR_WORD; ends with NULL */
    struct { const char *word; uint8_t at, size; } part[2];
};
uint64_t attr_get(const union attr *a, unsigned at, unsigned size); /* attr.c: an unsigned field of 1, 4 or 8 bytes */
void attr_set(union attr *a, unsigned at, unsigned size, uint64_t v);

/* An op; every function pointer is set for every op. */
struct lower;
enum op_class { CLASS_STRUCT = 'S', CLASS_ANY = 'A', CLASS_FLOAT = 'F', CLASS_LOGIC = 'L', CLASS_COMPARE = 'C',
                CLASS_WHERE = 'W', CLASS_INT = 'I', CLASS_PREDICATE = 'P' };
struct opinfo {
    const char *name, *doc, *value, *autocast, *batching; /* value: the row's expression as text */
    const struct attr_info *attr;                         /* NULL: none */
    /* nin: maximum number of operands, least: minimum; cls: enum op_class */
    uint8_t nin, min, cls;
    uint16_t traits;                                      /* enum op_trait */
    /* Sets the result's dtype and shape of a node whose other fields are set; false: *e is the reason and names the
     * shapes.  Where the caller chooses the shape (leaves, reshape, expand, iota, random), *out has it on entry. */
    bool (*shape)(const struct graph *g, struct node *n, struct shape *out, struct err *e);
    /* Computes the node's elements from its operands', all row-major; false: out of memory (or a node that interp_run
     * rejects: no numeric order, a grad node). */
    bool (*eval)(const struct graph *g, const struct node *n, void *out, const void *const *in);
    /* Gradient: writes to din[] the gradient of each operand (NIL: none), given the gradient dy of node y. */
    void (*vjp)(struct graph *g, ref y, ref dy, ref *din);
    /* Emits one element as loop IR; see struct lower in loop.h. */
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
/* The minimum number of operands of an op; opinfo.nin is the maximum. */
static inline unsigned op_min_operands(unsigned op) { return opinfo[op].min; }
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
static inline bool op_is_attention(unsigned op) { return op_has(op, TRAIT_ATTENTION); }
static inline bool op_is_product(unsigned op) { return op_has(op, TRAIT_PRODUCT); }

/* ---- structural rules, by family file op_*.c ---- */
#define SF(name, family, ...)                                                                    \
    bool shape_##family(const struct graph *, struct node *, struct shape *, struct err *);      \
    bool eval_##family(const struct graph *, const struct node *, void *, const void *const *);  \
    void vjp_##name(struct graph *, ref, ref, ref *);                                            \
    uint32_t lower_##family(struct lower *, ref, const uint32_t *);
#define ST(name, ...) SF(name, name, )
#include "ir/ops/ops.def"
void elementwise_vjp(struct graph *g, ref y, ref dy, ref *din); /* vjp.c: the gradient columns of ops.def */

/* Shared by the families. */
#define DEVICE_TEXT 8
const char *device_label(unsigned device, char buf[DEVICE_TEXT]); /* text.c: the device's name, or its number as text */
/* attr.c: true; sets bytes from `used` on to 0.  An initializer of one member leaves them undefined before C23, and
 * nodes are compared and hashed as bytes. */
bool attr_clear_rest(struct node *n, size_t used);
struct shape coord_strides(const struct shape *s); /* shape.c: dim[i] is the row-major stride of axis i */
/* op_select.c: a shape split at one axis: `outer` rows of `len` blocks of `inner` elements. */
struct split { int64_t outer, len, inner; };
struct split split_at(const struct shape *s, uint32_t axis);
bool axis_in_range(const char *op, const struct shape *s, uint32_t axis, struct err *e);
bool index_is_integer(const char *op, const char *what, unsigned dtype, struct err *e); /* no bool either */
/* opinfo.c: evaluates a node whose first operand is of half floats by `run` in f32, with the operands of that dtype
 * widened and the result rounded to n->dtype; any other node by `run` as it is, in the operand's dtype.  false: out of
 * memory, or `run` failed. */
typedef bool eval_run(const struct graph *g, const struct node *n, unsigned dtype, void *out, const void *const *in);
bool eval_widened(const struct graph *g, const struct node *n, void *out, const void *const *in, eval_run *run);
ref vjp_is_chosen(struct graph *g, ref x, ref y); /* op_reduce.c: bool, where x is the maximum or minimum y, or NaN */
enum op scatter_op(enum scatter_kind kind);       /* op_scatter.c: the elementwise op f; set: OP_nil */
int64_t slice_step(const struct node *n); /* op_slice.c: of a slice, at least 1; 0: n is another op */
/* Is the axis empty (or possibly empty, if symbolic) although there are indices into it? */
bool indexes_empty_axis(const struct graph *g, int64_t len, int64_t indices);
/* op_select.c: element i of p, integers of dtype, clamped to 0..last */
int64_t index_at(unsigned dtype, const void *p, int64_t i, int64_t last);
/* op_view.c: element (i, j, ..) of out, row-major of shape s, is in[i*stride->dim[0] + j*stride->dim[1] ..] */
void gather(void *out, const void *in, size_t elem, const struct shape *s, const struct shape *stride);
/* op_view.c: the same for a list of n axes of operand shape s, to the row-major order of the list */
void gather_axes(void *out, const void *in, size_t elem, const struct shape *s, const uint8_t *axis, uint32_t n);

#endif
