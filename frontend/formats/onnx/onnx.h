/* ONNX models as calls of Kiln's public functions: what the folder's files share, grouped by file.
 *
 * A model is read once (load.c) into graphs of nodes whose operands are places in a frame, one frame for each graph
 * that runs (run.c).  A call goes through the nodes in order; each has a function of ops.def, which records it.
 *
 * A value is recorded (a tensor), known (an array on the host), or both.  A node all of whose operands are known and
 * small is folded: the same function runs on tensors of device `ref` outside of the trace, and its results are read. */
#ifndef KILN_ONNX_H
#define KILN_ONNX_H
#include "frontend/formats/file_open.h"
#include "onnx.pb-c.h"
#include <kiln/onnx.h>
#include <stdatomic.h>

struct node;
struct run;

/* ---- tensor.c: arrays on the host ---- */
/* Element types as ONNX numbers them (TensorProto.DataType), those that code names; older onnx.proto lack some. */
enum onnx_element {
    ONNX_UNDEFINED = 0, ONNX_UINT8 = 2, ONNX_INT8 = 3, ONNX_UINT16 = 4, ONNX_INT16 = 5, ONNX_STRING = 8,
    ONNX_FLOAT8E4M3FN = 17, ONNX_FLOAT8E4M3FNUZ = 18,
    ONNX_FLOAT8E5M2 = 19, ONNX_FLOAT8E5M2FNUZ = 20, ONNX_UINT4 = 21, ONNX_INT4 = 22, ONNX_FLOAT4E2M1 = 23,
    ONNX_FLOAT8E8M0 = 24, ONNX_UINT2 = 25, ONNX_INT2 = 26
};
struct array {
    kl_dtype dtype;
    int32_t element;                  /* ONNX's element type, where a file says it; else 0 */
    int rank;
    int64_t dims[KL_MAX_RANK], count;
    atomic_uint refs;
    bool symbolic;                    /* i64, and elements below 0 may be lengths of the open trace (ops/symbol.h) */
    void *data;
    struct mapping *file;             /* what data is a part of; NULL: data is its own, of malloc */
};
struct array *array_new(kl_dtype dtype, int rank, const int64_t *dims); /* NULL: out of memory, or too large */
struct array *array_of_ints(int64_t n, const int64_t *v);               /* one axis, i64 */
struct array *array_ref(struct array *a);
void array_unref(struct array *a);
/* Makes numbers of f32 that are smaller than the least normal one zeros: training leaves such weights, and some
 * processors take a hundred times as long for a product with one.  false: out of memory. */
bool array_flush_subnormals(struct array *a);
/* Element i, converted; 0 beyond the elements.  An operator that needs one number takes it by onnx_known_int. */
int64_t array_int(const struct array *a, int64_t i);
double array_float(const struct array *a, int64_t i);
kl_dtype onnx_dtype(int32_t data_type);               /* KL_DTYPE_COUNT: Kiln has none like it */
kl_dtype onnx_held_dtype(int32_t data_type);          /* the same; strings are held as numbers (strings.c) */
const char *onnx_dtype_name(int32_t data_type);
static inline bool onnx_is_float(kl_dtype d) { return d == KL_F16 || d == KL_BF16 || d == KL_F32 || d == KL_F64; }
/* Does Kiln hold such elements in a wider dtype?  Floats of 4 and 8 bits are f16, powers of two (float8e8m0) f32,
 * integers of 2 and 4 bits i8 and u8. */
bool onnx_is_widened(int32_t data_type);
int onnx_bits(int32_t data_type);                     /* of an element in a file; 0: as the dtype */
/* The elements of a tensor in the file `path`; NULL: *why.  External data lies in its folder, and is mapped, not
 * copied, where it is aligned.  take: the message's own memory becomes the array's, so that there is one copy of it.
 * strings: numbers for strings, or NULL, where they are an error. */
struct strings;
struct array *array_read(Onnx__TensorProto *t, const char *path, bool take, struct strings *strings,
                         struct file_error *why);

/* Saturating arithmetic on lengths from files: a result that does not fit is INT64_MIN or INT64_MAX, which every
 * operator refuses. */
static inline int64_t sat_add(int64_t a, int64_t b)
{
    int64_t r;
    return !__builtin_add_overflow(a, b, &r) ? r : b < 0 ? INT64_MIN : INT64_MAX;
}
static inline int64_t sat_sub(int64_t a, int64_t b)
{
    int64_t r;
    return !__builtin_sub_overflow(a, b, &r) ? r : b < 0 ? INT64_MAX : INT64_MIN;
}
static inline int64_t sat_mul(int64_t a, int64_t b)
{
    int64_t r;
    return !__builtin_mul_overflow(a, b, &r) ? r : (a < 0) != (b < 0) ? INT64_MIN : INT64_MAX;
}

/* ---- file.c: bytes of files, and messages in them ---- */
struct bytes { const uint8_t *data; size_t size; };
/* beside NULL: the file `path`; else the file that it names so, in its folder (file_open.h). */
bool bytes_map(struct bytes *b, const char *path, const char *beside, struct file_error *why);
void bytes_unmap(struct bytes *b);
struct mapping { atomic_uint refs; struct bytes b; }; /* shared by arrays */
struct mapping *mapping_new(const char *path, const char *beside, struct file_error *why);
void mapping_unref(struct mapping *m);
/* The message that they hold; NULL: *why, also where messages are nested too deep. */
ProtobufCMessage *message_parse(const struct bytes *b, const ProtobufCMessageDescriptor *d, const char *path,
                                struct file_error *why);

/* ---- later.c: fields that the onnx.proto that Kiln was built with may lack ---- */
enum { NODE_OVERLOAD = 8, FUNCTION_DEFAULTS = 11, FUNCTION_OVERLOAD = 13 }; /* their numbers */
struct bytes message_text(const ProtobufCMessage *m, unsigned tag); /* a field of text; empty: it has none */
struct attributes { Onnx__AttributeProto **v; size_t n; bool own; };
bool attributes_read(const ProtobufCMessage *m, unsigned tag, const char *path, struct attributes *to,
                     struct file_error *why);                          /* false: *why */
void attributes_free(struct attributes *a);

/* ---- load.c: a model's graphs ---- */
#define NO_PLACE UINT32_MAX
enum { ONNX_FIRST_OPSET = 1, ONNX_LAST_OPSET = 28, ONNX_LAST_IR = 14, LISTED = 24, ONNX_NEVER_FOLDED = -1 };
typedef bool node_fn(struct node *n);
struct onnx_op {
    const char *domain, *name;        /* domain: "" for ONNX's own */
    int since, until;                 /* opsets */
    node_fn *fn;
    kl_tensor (*unary)(kl_tensor a); /* of onnx_unary and onnx_binary */
    kl_tensor (*binary)(kl_tensor a, kl_tensor b);
    int arg;                          /* what several operators of one function differ in */
};
const struct onnx_op *onnx_op_find(const char *domain, const char *name, int opset); /* table.c */

struct place { uint32_t up, at; };    /* value `at` of the frame that many graphs further out; NO_PLACE: left out */
struct node_def {
    const Onnx__NodeProto *proto;
    const struct onnx_op *op;         /* NULL: a function */
    const struct graph_def *function;
    int opset;
    const kl_site *site;              /* never freed; NULL before its first run */
    struct place *in;
    uint32_t *out;                    /* NO_PLACE: nobody asks for it */
    struct graph_def **sub;           /* an attribute each; NULL where it is no graph */
    struct once *once;                /* NULL: it has not been asked whether its results are the same in every call */
    struct once *part;                /* results of once_part, or NULL */
};
struct initial { uint32_t at; struct array *array; int weight; }; /* weight: its number, -1: none */
struct graph_def {
    const Onnx__GraphProto *proto;    /* NULL: a function's */
    struct attributes defaults;       /* of a function's attributes */
    uint32_t nvalue, nnode, nin, nout, ninitial;
    const char **name;                /* of values */
    struct node_def *node;
    struct initial *initial;
    uint32_t *in;                     /* without initializers */
    int32_t *in_element;              /* their element types as the graph declares them; 0: it does not */
    struct place *out;
};
struct weight {
    const char *name;
    kl_tensor t;
    struct array *array;
    bool taken;                       /* kl_model_weight has given it out */
    bool folded;                      /* a result that is computed once depends on it (once.c) */
};
struct pooled { struct array *array; kl_tensor t; uint64_t hash; };
/* Names to numbers, in the order of their first use. */
struct names { const char **key; uint32_t *at; uint32_t n, cap; };
struct strings { struct names names; char **text; uint32_t n, cap; };
struct keys { int64_t n; const char **key; };
struct kl_model {
    kl_device device, folding;        /* folding: where constants are computed */
    Onnx__ModelProto *proto;
    char *path;
    const char *label;                /* the file's name, for call sites; never freed */
    struct graph_def *main;
    struct weight *weight;
    uint32_t nweight, weight_cap;
    struct graph_def **function;      /* as proto->functions; NULL: not read yet */
    struct pooled *pool;              /* constants that calls have used */
    uint32_t npool, pool_cap;
    bool differentiates;              /* it has operator Gradient, which needs a trace */
    unsigned suspended;               /* run_suspend without run_resume so far */
    int64_t once_left;                /* elements that may still be computed once (once.c) */
    struct strings strings;           /* those of its tensors and attributes, numbered */
    struct keys *keys;                /* of each output: names of its columns, where it is a map; n 0: it is none */
    uint64_t calls;                   /* so far: each call draws other random numbers */
};

/* ---- names.c: strings and call sites that stay, as a caller's do: programs keep them longer than models ---- */
const char *string_forever(const char *s);            /* "" where there is no memory */
const kl_site *site_forever(const char *file, int line, const char *func);
uint32_t onnx_names_find(const struct names *s, const char *name); /* NO_PLACE: not in */
bool onnx_names_put(struct names *s, const char *name, uint32_t at);
void onnx_names_free(struct names *s);

/* ---- strings.c: strings as numbers ---- */
/* The number of a string, a new one if it has none; -1: out of memory, or it has a zero byte. */
int64_t strings_number(struct strings *s, const void *text, size_t len);
struct array *strings_array(struct strings *s, size_t n, const ProtobufCBinaryData *text); /* [n]; NULL: likewise */
bool strings_of_node(struct strings *s, const Onnx__NodeProto *p);    /* numbers those of its attributes; false: -1 */
void strings_free(struct strings *s);
bool strings_check(struct node *n);   /* does the operator take its operands that are strings?  false: reported */
void strings_mark(struct node *n);    /* marks its results that are strings */
bool strings_is_map(const struct graph_def *g, uint32_t i); /* is output i a map (ZipMap)? */
bool strings_keys(struct kl_model *m); /* makes the names of columns; false: out of memory */
void strings_keys_free(struct kl_model *m);

struct kl_model *model_read(kl_device device, const char *path, struct file_error *why);
void model_free(struct kl_model *m);

/* ---- run.c: a call ---- */
struct list { unsigned refs; uint32_t n; struct value *v; };
/* All zero: an operand that is left out. */
struct value {
    kl_tensor t;                      /* recorded, or kl_none */
    struct array *known;              /* its elements, or NULL; owned */
    struct list *list;                /* a sequence, or NULL; owned */
    struct node *maker;               /* what computes it, if that can be done on the host; else NULL */
    const struct weight *weight;      /* of the model, or NULL */
    int32_t element;                  /* ONNX's element type where it is known, which it is of all widened ones; or 0 */
    bool given;                       /* an input of the model */
    bool constant;                    /* known, and of no value that a run computes or is given */
    bool varies;                      /* known, computed from the number of a loop's round or what rounds carry */
    bool steady;                      /* of the file, or computed from such values alone (once.c) .. */
    bool held;                        /*   once, outside of the trace */
    bool set;
};
struct frame {
    const struct graph_def *g;
    struct frame *outer;
    const struct node *caller;        /* of a function: whose attributes it refers to */
    struct value *v;
    struct node *node;
};
struct run {
    struct kl_model *m;
    bool folding, tracing;            /* folding: on the host */
    bool large;                       /* what is being folded is too large for that */
    bool demanded;                    /* it is needed on the host, however large */
    bool reported;                    /* onnx_fails was called */
    const char *misread;              /* an attribute that the node has in another type than is asked for, or NULL */
    unsigned depth;                   /* of frames and folds in one another */
    uint64_t steps;                   /* nodes run so far */
    uint64_t folds;                   /* nodes computed on the host so far */
    uint64_t draws;                   /* nodes so far that draw random numbers */
    unsigned rounds;                  /* regions in one another that run for each round of a loop */
    kl_tensor seed;                   /* of the call or round, or kl_none before its first use (ops/ops_random.c) */
    bool varied;                      /* a value that varies between rounds had to be known while recording */
};
struct node {
    const struct node_def *def;
    struct frame *frame;
    struct run *run;
    uint64_t draw;                    /* its number among the call's nodes that draw random numbers; 0: none yet */
};
/* Limits of one call.  FOLDED_MAX: elements of a value that is computed on the host although only a run needs it;
 * FOLDS_MAX: nodes that are; STEPS_MAX: nodes in all, with those of loops. */
enum { DEEPEST = 200, FOLDED_MAX = 1 << 16, FOLDS_MAX = 1 << 16, STEPS_MAX = 1 << 22 };
/* The same in multiplications of one node; DEMANDED_WORK: where its value must be known while recording. */
#define FOLDED_WORK (INT64_C(1) << 24)
#define DEMANDED_WORK (INT64_C(1) << 32)

/* A type that is known of an operand. */
struct type { kl_dtype dtype; int rank; int64_t dims[KL_MAX_RANK]; };

bool frame_open(struct frame *f, const struct graph_def *g, struct frame *outer, struct run *r);
void frame_close(struct frame *f);
bool frame_run(struct frame *f, struct run *r);
struct value *frame_value(struct frame *f, struct place p); /* NULL: left out */
void onnx_value_clear(struct value *v);
void onnx_value_copy(struct value *to, const struct value *from);
bool graph_run(struct node *n, const struct graph_def *g, const struct value *in, uint32_t nin, struct value *out);

/* Calls the function of the node's operator. */
bool run_operator(struct node *n);

/* What functions of ops.def call.  Operand i may be beyond those that the node has. */
bool onnx_fails(struct node *n, kl_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
uint32_t onnx_nin(const struct node *n);
uint32_t onnx_nout(const struct node *n);
bool onnx_has(const struct node *n, uint32_t i);
bool onnx_wants(const struct node *n, uint32_t i);         /* does anybody use result i? */
struct value *onnx_value(const struct node *n, uint32_t i); /* NULL: left out */
kl_device onnx_device(const struct node *n);
kl_tensor onnx_in(struct node *n, uint32_t i);             /* recorded; kl_none: left out, or it failed */
bool onnx_type(struct node *n, uint32_t i, struct type *t); /* false: reported */
/* Its element type as ONNX numbers them; 0: not known, and none that is widened. */
int32_t onnx_element(const struct node *n, uint32_t i);
/* Its elements on the host; NULL: reported.  Valid as long as the frame. */
const struct array *onnx_known(struct node *n, uint32_t i);
/* Makes v->known, of operand i, or of none: i is beyond those; false: reported. */
bool onnx_evaluate(struct node *n, struct value *v, uint32_t i);
/* The same where only a read is needed; false: it cannot be read, which is not reported. */
bool onnx_try_read(struct node *n, struct value *v);
/* Operand i's elements, if they are known and none is a symbolic length; NULL: not, which is not reported. */
const struct array *onnx_numbers(const struct node *n, uint32_t i);
/* The same of integers, at most `most`; false: reported. */
bool onnx_ints(struct node *n, uint32_t i, int64_t *v, int max, int *count);
/* The same of exactly one number; false: reported. */
bool onnx_known_int(struct node *n, uint32_t i, int64_t *v);
bool onnx_known_float(struct node *n, uint32_t i, double *v);
bool onnx_give(struct node *n, uint32_t i, kl_tensor t);   /* result i; false: t is poison, or reported */
/* The same of a widened element type. */
bool onnx_give_element(struct node *n, uint32_t i, kl_tensor t, int32_t element);
bool onnx_give_known(struct node *n, uint32_t i, struct array *a); /* takes it over */
bool onnx_give_value(struct node *n, uint32_t i, const struct value *v);
kl_tensor onnx_tensor(struct node *n, struct array *a);    /* a known array recorded; takes it over */
kl_tensor onnx_number(struct node *n, kl_dtype dtype, double v); /* [] compiled in */
/* A known array as a constant of the model, which exists as long as that; kl_none or poison: reported. */
kl_tensor onnx_constant_of(struct kl_model *m, struct array *a);
struct type onnx_type_of(kl_tensor t);

/* ---- half.c: half floats in operators composed of several ops ---- */
kl_dtype onnx_compute_dtype(kl_dtype d);                   /* F32 for F16 and BF16, else d */
kl_tensor onnx_widened(struct node *n, uint32_t i);        /* operand i, of half floats as f32; kl_none as onnx_in */
/* Result i, cast to d where it has another dtype: the only rounding to half floats. */
bool onnx_give_as(struct node *n, uint32_t i, kl_tensor t, kl_dtype d);

/* ---- ops/ops_quant.c: u8 by a tensor's own range, as DynamicQuantizeLinear ---- */
kl_tensor onnx_range_scale(struct node *n, kl_tensor x, kl_tensor *low);   /* *low: the least element, or 0 */
kl_tensor onnx_range_quantize(struct node *n, kl_tensor x, kl_tensor low, kl_tensor scale, kl_tensor *point);

/* ---- ops/ops_norm.c ---- */
/* (x - mean) / sqrt(variance + eps) over axes; mean NULL: x / sqrt(mean of squares + eps).  *mean and *inverse, the
 * factor, keep the axes with length 1. */
kl_tensor onnx_normalise(struct node *n, kl_tensor x, int count, const int *axes, double eps, kl_tensor *mean,
                         kl_tensor *inverse);

/* ---- ops/ops_reduce.c, ops/ops_window.c: for fused operators; kl_none or poison: reported ---- */
kl_tensor onnx_gemm_of(struct node *n, kl_dtype *dtype);   /* of operands 0 to 2; *dtype: of its result */
kl_tensor onnx_conv_of(struct node *n);
enum { WINDOW_AXES = 3 };             /* most axes that windows move along */
struct onnx_windows {
    int n;                            /* axes */
    int64_t in[WINDOW_AXES], size[WINDOW_AXES], stride[WINDOW_AXES], dilation[WINDOW_AXES];
    int64_t low[WINDOW_AXES], high[WINDOW_AXES], out[WINDOW_AXES];
    int64_t extra[WINDOW_AXES];       /* elements that the last window of ceil_mode reads beyond `high` */
    int groups;                       /* of a convolution; else 0 */
};
/* Operand 0 of average pooling as `a`, which may be wider. */
kl_tensor onnx_average_pool_of(struct node *n, kl_tensor a);

/* ---- ops/ops_random.c: seeds ---- */
kl_tensor onnx_random_seed(struct node *n);          /* [] u64, another one for each node that runs; kl_none: failed */
bool onnx_draws(const struct graph_def *g);          /* does a node of the graph, or one inside of it, draw numbers? */
/* Before a graph becomes a region: makes the call's seed, which the region takes from outside. */
void onnx_region_seed(struct node *n, const struct graph_def *g);
/* In a region that runs for each round: seeds of its own for the round of this number (an integer []).  Returns the
 * seed around it, for the end of the region. */
kl_tensor onnx_round_begin(struct node *n, const struct graph_def *g, kl_tensor round);
void onnx_round_end(struct node *n, kl_tensor around);

/* kl_trace_suspend and kl_trace_resume, once for several in one another: what probe.c tries goes on as it is.  false:
 * reported. */
bool run_suspend(struct kl_model *m);
void run_resume(struct kl_model *m);
struct type array_type(const struct array *a);
/* Can the value be computed from constants and inputs that were made before the trace? */
bool onnx_can_evaluate(const struct node *n, const struct value *v);

/* ---- probe.c: whether a graph can be recorded ---- */
enum probe_result { PROBE_FITS, PROBE_FAILS, PROBE_UNKNOWN };
/* result: types of its first nout results, where it fits. */
enum probe_result onnx_probe(struct node *n, const struct graph_def *g, struct type *result, uint32_t nout);

/* ---- lengths.c: shape arithmetic on symbolic lengths ---- */
struct array *array_of_lengths(int64_t n, const int64_t *v); /* as kl_shape gives them */
bool onnx_is_length(const struct array *a, int64_t i);     /* is element i a symbolic length? */
/* A length for a message: a number, or the bounds of a symbolic length. */
enum { LENGTH_TEXT = 80 };
const char *onnx_length_text(int64_t length, char to[LENGTH_TEXT]);
/* At most KL_MAX_RANK lengths of operand i: numbers from `least` on, or symbolic; false: reported. */
bool onnx_lengths(struct node *n, uint32_t i, int64_t min, int64_t *v, int *count);
/* The product of lengths, which may be symbolic; INT64_MIN: reported, or too large. */
int64_t onnx_lengths_product(const int64_t *v, int count);
/* The array as a tensor: each run gives the lengths their values. */
kl_tensor onnx_lengths_tensor(kl_device device, const struct array *a);
/* Computes the node's result from known operands with symbolic lengths, where its operator is one of shape arithmetic;
 * *done: it has.  false: reported. */
bool onnx_lengths_node(struct node *n, bool *done);

/* ---- once.c: results that are the same in every call ---- */
struct once {
    uint32_t n;
    bool kept;                        /* t[] has the results */
    bool refused;                     /* the node is recorded in each call */
    kl_tensor *t;
    int32_t *element;
};
/* Does the node give the same in every call?  Its operands do not depend on inputs, their shapes or branches. */
bool once_is_steady(const struct node *n);
/* Gives the results of such a node: *done; else it has to be recorded.  false: reported.  Then once_mark is called. */
bool once_node(struct node *n, bool *done);
void once_mark(struct node *n);
/* What an operator computes from some of its operands, in the list up to NO_PLACE: make(n, part), once if they are the
 * same in every call.  part: its number, below ONCE_PARTS. */
enum { ONCE_PARTS = 8 };
typedef kl_tensor once_fn(struct node *n, uint32_t part);
kl_tensor once_part(struct node *n, uint32_t part, const uint32_t *operand, once_fn *make);
bool once_is_ready(struct node *n, const uint32_t *operand); /* will it be computed once? */
struct once *once_new(uint32_t nout);                  /* NULL: out of memory */
void once_free(struct once *o);                        /* NULL is fine */
int64_t once_budget(const struct kl_model *m);         /* elements that it may compute once */

/* ---- integers.c: products of integers of 8 bits less their zero points ---- */
/* Operand i, as i32, less its zero point, operand `zero`: one number, or one for each element of an axis of i. */
kl_tensor onnx_less_zero(struct node *n, uint32_t i, uint32_t zero, int axis);
/* The zero point as i32, broadcasting to operand i; kl_none: it is 0. */
kl_tensor onnx_zero_point(struct node *n, uint32_t i, uint32_t zero, int axis);
/* The product of an operator of integer matrices, i32; and the same of another first operand, with the zero point p,
 * i32, one number or one for each row, or kl_none. */
kl_tensor onnx_integer_matmul(struct node *n);
kl_tensor onnx_integer_product(struct node *n, kl_tensor a, kl_tensor p);
/* The convolution of ConvInteger or QLinearConv, i32.  f: the weights' type. */
kl_tensor onnx_integer_conv(struct node *n, const struct type *f, const struct onnx_windows *s);
/* A convolution of bytes, i32; kl_none: it is not faster so than in floats, as the function in front says.  The
 * operands: those of nodes x and w with these numbers, each with its zero point. */
struct onnx_conv_operands { struct node *x, *w; uint32_t x_at, x_zero, w_at, w_zero; };
bool onnx_bytes_conv_fits(const struct onnx_conv_operands *o, const struct type *f, const struct onnx_windows *s);
kl_tensor onnx_bytes_conv(const struct onnx_conv_operands *o, const struct type *f, const struct onnx_windows *s);

/* ---- qdq.c: products and convolutions of dequantized bytes ---- */
/* The product of operands 0 and 1, f32, in integers; down: operand 1 is transposed.  false: it is none of dequantized
 * bytes. */
bool onnx_qdq_product(struct node *n, bool down, kl_tensor *y);
/* The same of the convolution of operand 0 with weights, operand 1, of type f; without a bias. */
bool onnx_qdq_conv(struct node *n, const struct type *f, const struct onnx_windows *s, kl_tensor *y);

/* ---- attr.c: attributes ---- */
const Onnx__AttributeProto *onnx_attr(const struct node *n, const char *name); /* NULL: it has none */
int64_t onnx_attr_int(const struct node *n, const char *name, int64_t without);
/* The same in 32 bits: a number beyond them is INT32_MIN or INT32_MAX, which no operator takes. */
int onnx_attr_int32(const struct node *n, const char *name, int without);
double onnx_attr_float(const struct node *n, const char *name, double without);
bool onnx_attr_is(const struct node *n, const char *name, const char *value, bool without);
/* At most `most` numbers into v; -1: it has none; -2: too many, reported. */
int onnx_attr_ints(struct node *n, const char *name, int64_t *v, int max);
const struct graph_def *onnx_attr_graph(const struct node *n, const char *name);
/* Axes by attribute or, where the node has it, operand i: positions below rank.  -1: none are given; -2: reported. */
int onnx_axes(struct node *n, const char *name, uint32_t i, int rank, int *axes);
bool onnx_axis(struct node *n, int64_t axis, int rank, int *at); /* false: reported */

/* ---- functions of ops.def ---- */
#define OP(name, since, until, fn, arg) node_fn fn;
#define UNARY(name, since, until, op)
#define BINARY(name, since, until, op)
#define CONTRIB(domain, name, fn, arg) node_fn fn;
#include "contrib.def"
#include "ops.def"
#undef CONTRIB
#undef OP
#undef UNARY
#undef BINARY
node_fn onnx_unary, onnx_binary;

#endif
