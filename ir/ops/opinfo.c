/* The table of all ops, from ops.def, and the rules that all elementwise rows share. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <stddef.h>

static bool class_takes(enum op_class cls, unsigned dtype)
{
    switch (cls) {
    case CLASS_ANY: return dtype != KL_BOOL;
    case CLASS_FLOAT: case CLASS_PREDICATE: return dtype_is_float(dtype);
    case CLASS_INT: return dtype != KL_BOOL && !dtype_is_float(dtype);
    case CLASS_LOGIC: return !dtype_is_float(dtype);
    case CLASS_COMPARE: case CLASS_WHERE: case CLASS_STRUCT: return true;
    }
    return false;
}

static const char *class_text(enum op_class cls)
{
    switch (cls) {
    case CLASS_ANY: return "a number";
    case CLASS_FLOAT: case CLASS_PREDICATE: return "a floating";
    case CLASS_INT: return "an integer";
    case CLASS_LOGIC: return "an integer or bool";
    case CLASS_COMPARE: case CLASS_WHERE: case CLASS_STRUCT: break;
    }
    return "any";
}

/* All operands have one shape, and one dtype except for where's condition. */
static bool shape_elementwise(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct opinfo *o = &opinfo[n->op];
    unsigned first = o->cls == CLASS_WHERE ? 1 : 0;
    const struct node *a = node_at(g, n->in[first]);
    char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
    if (first && node_at(g, n->in[0])->dtype != KL_BOOL)
        return err_set(e, KL_ERR_TYPE, "%s: the first operand must be bool, got %s", o->name,
                       dtype_name(node_at(g, n->in[0])->dtype));
    if (!class_takes(o->cls, a->dtype))
        return err_set(e, KL_ERR_TYPE, "%s: needs %s dtype, got %s", o->name, class_text(o->cls), dtype_name(a->dtype));
    for (unsigned i = first + 1; i < n->nin; i++) {
        unsigned dtype = node_at(g, n->in[i])->dtype;
        if (dtype != a->dtype)
            return err_set(e, KL_ERR_TYPE, "%s: dtypes %s and %s differ", o->name, dtype_name(a->dtype),
                           dtype_name(dtype));
    }
    for (unsigned i = 1; i < n->nin; i++)
        if (node_at(g, n->in[i])->shape != node_at(g, n->in[0])->shape)
            return err_set(e, KL_ERR_SHAPE, "%s: shapes %s and %s differ", o->name,
                           shape_text_in(g, node_shape(g, n->in[0]), ta, sizeof ta),
                           shape_text_in(g, node_shape(g, n->in[i]), tb, sizeof tb));
    n->dtype = op_gives_bool(n->op) ? (uint8_t)KL_BOOL : a->dtype;
    *out = *node_shape(g, n->in[0]);
    return attr_clear_rest(n, 0);
}

static bool eval_elementwise(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    unsigned dtype = node_at(g, n->in[opinfo[n->op].cls == CLASS_WHERE ? 1 : 0])->dtype;
    return scalar_apply(n->op, dtype, out, in, shape_count(&g->shape[n->shape]));
}

static uint32_t lower_elementwise(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    val in[MAX_OPERANDS] = {0};
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = l->at(l, n->in[i], coord);
    return k_op(l->k, n->op, in);
}

bool eval_widened(const struct graph *g, const struct node *n, void *out, const void *const *in, eval_run *run)
{
    unsigned dtype = node_at(g, n->in[0])->dtype, compute = dtype_compute(dtype);
    if (dtype == compute)
        return run(g, n, dtype, out, in);
    float *wide[MAX_OPERANDS + 1] = {NULL}; /* operands of half floats, result */
    const void *at[MAX_OPERANDS] = {NULL};
    int64_t count = shape_count(&g->shape[n->shape]);
    bool ok = true;
    for (unsigned i = 0; i < n->nin && ok; i++) {
        at[i] = in[i];
        if (node_at(g, n->in[i])->dtype != dtype)
            continue;
        ok = (wide[i] = mem_alloc((size_t)node_numel(g, n->in[i]) * sizeof **wide)) &&
             scalar_cast(wide[i], KL_F32, in[i], dtype, node_numel(g, n->in[i]));
        at[i] = wide[i];
    }
    if (n->dtype == compute)
        ok = ok && run(g, n, KL_F32, out, at);
    else
        ok = ok && (wide[MAX_OPERANDS] = mem_alloc((size_t)count * sizeof **wide)) &&
             run(g, n, KL_F32, wide[MAX_OPERANDS], at) &&
             scalar_cast(out, n->dtype, wide[MAX_OPERANDS], KL_F32, count);
    for (unsigned i = 0; i <= MAX_OPERANDS; i++)
        mem_free(wide[i]);
    return ok;
}

#define CLASS_OF_A CLASS_ANY
#define CLASS_OF_F CLASS_FLOAT
#define CLASS_OF_L CLASS_LOGIC
#define CLASS_OF_C CLASS_COMPARE
#define CLASS_OF_W CLASS_WHERE
#define CLASS_OF_I CLASS_INT
#define CLASS_OF_P CLASS_PREDICATE

#define ELEMENTWISE(opname, operands, types, expr, cast, text)                                      \
    [OP_##opname] = {.name = #opname, .doc = text, .value = expr, .autocast = #cast,                \
                     .batching = "AXIS", .nin = operands, .min = operands, .cls = CLASS_OF_##types, \
                     .shape = shape_elementwise, .eval = eval_elementwise, .vjp = elementwise_vjp,  \
                     .lower = lower_elementwise},

/* ---- attributes ---- */

static const char *const scatter_words[] = {"add", "max", "min", "set", NULL}; /* enum scatter_kind */
static const char *const direction_words[] = {"ascending", "descending", NULL};
static const char *const attention_words[] = {"queries", "keys", NULL}; /* enum attention_of */
static const char *const sum_words[] = {"i32", NULL};

#define FIELD(field) .at = offsetof(union attr, field), .size = sizeof(((union attr *)0)->field)
#define A_NONE {0}
#define A_AXIS(field) {.word = "axis", .kind = ATTR_AXIS, FIELD(field)}
#define A_EACH_AXIS(field) {.word = "axis", .kind = ATTR_AXIS, FIELD(field), .several = true}
#define A_AXES(field) {.word = "axes", .kind = ATTR_AXES, FIELD(field)}
#define A_PERM(field) {.word = "perm", .kind = ATTR_PERM, FIELD(field)}
#define A_DIM(s, field) {.word = #field, .kind = ATTR_DIM, FIELD(s.field)}
#define A_LENGTH(s, field) {.word = #field, .kind = ATTR_LENGTH, FIELD(s.field)}
#define A_KEEP(s, field) {.word = #field, .kind = ATTR_LENGTH, FIELD(s.field), .more = 1, .optional = true}
#define A_COUNT(s, field) {.word = #field, .kind = ATTR_COUNT, FIELD(s.field)}
#define A_REAL(s, field) {.word = #field, .kind = ATTR_REAL, FIELD(s.field)}
#define A_WORD(field, name, list) {.word = #name, .kind = ATTR_WORD, FIELD(field), .words = list}
#define A_SUM(s, field)                                                                             \
    {.word = #field, .kind = ATTR_WORD, FIELD(s.field), .words = sum_words, .more = KL_I32, .optional = true}
#define A_FLAG(field, name, bit) {.word = #name, .kind = ATTR_FLAG, FIELD(field), .more = bit, .optional = true}
#define A_ORDER1(s, x)                                                                              \
    {.word = "order", .kind = ATTR_ORDER, .optional = true, .part = {{#x, FIELD(s.x)}}}
#define A_ORDER(s, x, y)                                                                            \
    {.word = "order", .kind = ATTR_ORDER, .optional = true, .part = {{#x, FIELD(s.x)}, {#y, FIELD(s.y)}}}
#define A_PAIRS(s, name, x)                                                                         \
    {.word = #name, .kind = ATTR_PAIRS, FIELD(s.x##_a), .optional = true,                           \
     .part = {{"", FIELD(s.x##_b)}, {"", FIELD(s.n##x)}}}
#define LIST(...) (const struct attr_info[]){__VA_ARGS__, {0}}

/* The names of traits in ops.def. */
enum { NONE = TRAIT_NONE, LEAF = TRAIT_LEAF, VIEW = TRAIT_VIEW, SELECT = TRAIT_SELECT, REDUCE = TRAIT_REDUCE,
       CUMULATIVE = TRAIT_CUMULATIVE, ANCHOR = TRAIT_ANCHOR, QUANT = TRAIT_QUANT, REGION = TRAIT_REGION,
       CONTROL = TRAIT_CONTROL, INLINED = TRAIT_INLINED, NON_FUSIBLE = TRAIT_NON_FUSIBLE, PRODUCT = TRAIT_PRODUCT,
       MASKED = TRAIT_MASKED, ATTENTION = TRAIT_ATTENTION };

const struct opinfo opinfo[OP_COUNT] = {
    [OP_nil] = {.name = "nil", .doc = "no value", .autocast = "ANY", .batching = "LEAF", .cls = CLASS_STRUCT},
#define SF(opname, family, fewest, operands, has, attributes, cast, batch, text)                    \
    [OP_##opname] = {.name = #opname, .doc = text, .autocast = #cast, .batching = #batch,           \
                     .attr = LIST attributes, .nin = operands, .min = fewest, .traits = has,      \
                     .cls = CLASS_STRUCT, .shape = shape_##family,                                  \
                     .eval = eval_##family, .vjp = vjp_##opname, .lower = lower_##family},
#define ST(opname, ...) SF(opname, opname, __VA_ARGS__)
#define EW1(opname, types, expr, ga, cast, text) ELEMENTWISE(opname, 1, types, #expr, cast, text)
#define EW2(opname, types, expr, ga, gb, cast, text) ELEMENTWISE(opname, 2, types, #expr, cast, text)
#define EW3(opname, types, expr, ga, gb, gc, cast, text) ELEMENTWISE(opname, 3, types, #expr, cast, text)
#include "ops.def"
};
