/* Element types: which ones ONNX's operators take at the written opset (their type constraints in onnx.defs), and casts
 * around those that do not take an operand's.
 *
 * Each value's type is kept with its name.  An operator that does not take a type computes in a wider one that holds
 * all of its values: integers wrap when they are cast back, and half floats are rounded once, as by the graph's op. */
#include "export.h"
#include <string.h>

#define BIT(dtype) (1u << (dtype))
#define SMALL (BIT(KL_U8) | BIT(KL_U16) | BIT(KL_I8) | BIT(KL_I16))
#define INTEGERS (SMALL | BIT(KL_U32) | BIT(KL_U64) | BIT(KL_I32) | BIT(KL_I64))

/* What the results are: of the operands' type, of another one, or as an attribute or another operand says. */
enum result_type { RESULT_SAME, RESULT_BOOL, RESULT_I32, RESULT_F32, RESULT_ATTRIBUTE, RESULT_AS_THIRD };

/* operands: a bit for each that has the type in question; lacks: the types that it may not have. */
static const struct op_types { const char *name; unsigned operands, lacks; enum result_type result; } op_types[] = {
    {"Abs", 1, BIT(KL_BOOL), RESULT_SAME},
    {"Acos", 1, BIT(KL_BF16), RESULT_SAME},
    {"Acosh", 1, BIT(KL_BF16), RESULT_SAME},
    {"Add", 3, BIT(KL_BOOL), RESULT_SAME},
    {"Asin", 1, BIT(KL_BF16), RESULT_SAME},
    {"Asinh", 1, BIT(KL_BF16), RESULT_SAME},
    {"Atan", 1, BIT(KL_BF16), RESULT_SAME},
    {"Atanh", 1, BIT(KL_BF16), RESULT_SAME},
    {"Cast", 1, 0, RESULT_ATTRIBUTE},
    {"Clip", 7, BIT(KL_BOOL), RESULT_SAME},
    {"Cos", 1, BIT(KL_BF16), RESULT_SAME},
    {"Cosh", 1, BIT(KL_BF16), RESULT_SAME},
    {"CumSum", 1, BIT(KL_BOOL) | SMALL, RESULT_SAME},
    {"DequantizeLinear", 1, 0, RESULT_F32},
    {"Div", 3, BIT(KL_BOOL), RESULT_SAME},
    {"Equal", 3, 0, RESULT_BOOL},
    {"Greater", 3, BIT(KL_BOOL), RESULT_BOOL},
    {"GreaterOrEqual", 3, BIT(KL_BOOL), RESULT_BOOL},
    {"IsInf", 1, BIT(KL_F16) | BIT(KL_BF16), RESULT_BOOL},
    {"IsNaN", 1, 0, RESULT_BOOL},
    {"Less", 3, BIT(KL_BOOL), RESULT_BOOL},
    {"LessOrEqual", 3, BIT(KL_BOOL), RESULT_BOOL},
    {"MatMul", 3, BIT(KL_BOOL) | SMALL, RESULT_SAME},
    {"MatMulInteger", 1, 0, RESULT_I32},
    {"Max", 3, BIT(KL_BOOL), RESULT_SAME},
    {"Min", 3, BIT(KL_BOOL), RESULT_SAME},
    {"Mod", 3, BIT(KL_BOOL), RESULT_SAME},
    {"Mul", 3, BIT(KL_BOOL), RESULT_SAME},
    {"Neg", 1, BIT(KL_BOOL) | BIT(KL_U8) | BIT(KL_U16) | BIT(KL_U32) | BIT(KL_U64), RESULT_SAME},
    {"Pow", 3, BIT(KL_BOOL) | SMALL | BIT(KL_U32) | BIT(KL_U64), RESULT_SAME},
    {"QuantizeLinear", 1, 0, RESULT_AS_THIRD},
    {"ReduceMax", 1, BIT(KL_BOOL) | BIT(KL_U16) | BIT(KL_I16), RESULT_SAME},
    {"ReduceMin", 1, BIT(KL_BOOL) | BIT(KL_U16) | BIT(KL_I16), RESULT_SAME},
    {"ReduceProd", 1, BIT(KL_BOOL) | SMALL, RESULT_SAME},
    {"ReduceSum", 1, BIT(KL_BOOL) | SMALL, RESULT_SAME},
    {"Round", 1, INTEGERS | BIT(KL_BOOL) | BIT(KL_BF16), RESULT_SAME},
    {"Sign", 1, BIT(KL_BOOL), RESULT_SAME},
    {"Sin", 1, BIT(KL_BF16), RESULT_SAME},
    {"Sinh", 1, BIT(KL_BF16), RESULT_SAME},
    {"Sub", 3, BIT(KL_BOOL), RESULT_SAME},
    {"Tan", 1, BIT(KL_BF16), RESULT_SAME},
    {"TopK", 1, BIT(KL_BOOL) | BIT(KL_BF16), RESULT_SAME},
    {"Where", 6, 0, RESULT_SAME},
};
static const struct op_types any_type = {NULL, 1, 0, RESULT_SAME};

static const struct op_types *types_of_op(const char *op)
{
    for (size_t i = 0; i < sizeof op_types / sizeof *op_types; i++)
        if (!strcmp(op_types[i].name, op))
            return &op_types[i];
    return &any_type;
}

/* ---- the types of values ---- */

static struct value_type *type_slot(const struct value_types *t, const char *name)
{
    uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a */
    for (const char *p = name; *p; p++)
        h = (h ^ (uint8_t)*p) * UINT64_C(1099511628211);
    for (uint32_t i = (uint32_t)h & (t->cap - 1);; i = (i + 1) & (t->cap - 1))
        if (!*t->v[i].name.s || !strcmp(t->v[i].name.s, name))
            return &t->v[i];
}

static bool types_grow(struct value_types *t)
{
    struct value_types more = {.cap = t->cap ? 2 * t->cap : 256, .n = t->n};
    if (!(more.v = kl_memory_alloc(more.cap * sizeof *more.v)))
        return false;
    for (uint32_t i = 0; i < t->cap; i++)
        if (*t->v[i].name.s)
            *type_slot(&more, t->v[i].name.s) = t->v[i];
    kl_memory_free(t->v);
    *t = more;
    return true;
}

void export_set_type(struct exporter *x, const char *name, unsigned dtype)
{
    struct value_types *t = x->types;
    if (!*name || (2 * (t->n + 1) > t->cap && !types_grow(t))) {
        x->nodes.failed |= *name != 0;
        return;
    }
    struct value_type *v = type_slot(t, name);
    t->n += !*v->name.s;
    if (!*v->name.s)
        snprintf(v->name.s, sizeof v->name.s, "%s", name);
    v->dtype = (uint8_t)dtype;
}

/* KL_DTYPE_COUNT: not known. */
static unsigned export_type_of(const struct exporter *x, const char *name)
{
    const struct value_type *v = x->types->cap ? type_slot(x->types, name) : NULL;
    return v && *v->name.s ? v->dtype : KL_DTYPE_COUNT;
}

void export_types_free(struct value_types *t) { kl_memory_free(t->v); }

/* ---- casts ---- */

/* A type with all values of this one that is not in `lacks`; KL_DTYPE_COUNT: there is none.  For an op that wraps, an
 * i64 has the same bits as a u64. */
static unsigned wider_type(unsigned dtype, unsigned lacks, bool wraps)
{
    static const uint8_t wider[KL_DTYPE_COUNT][2] = {
        [KL_BOOL] = {KL_U8, KL_I32}, [KL_U8] = {KL_I32, KL_F32}, [KL_U16] = {KL_I32, KL_F32},
        [KL_I8] = {KL_I32, KL_F32}, [KL_I16] = {KL_I32, KL_F32}, [KL_U32] = {KL_I64, KL_F64},
        [KL_F16] = {KL_F32, KL_F64}, [KL_BF16] = {KL_F32, KL_F64}};
    if (dtype == KL_U64)
        return wraps && !(lacks & BIT(KL_I64)) ? KL_I64 : KL_DTYPE_COUNT;
    for (int i = 0; i < 2 && wider[dtype][i]; i++)
        if (!(lacks & BIT(wider[dtype][i])))
            return wider[dtype][i];
    return KL_DTYPE_COUNT;
}

static unsigned attribute_type(const struct attribute *a)
{
    for (; a && a->name; a++)
        if (!strcmp(a->name, "to"))
            for (unsigned d = 0; d < KL_DTYPE_COUNT; d++)
                if (export_type(d) == (unsigned)*(const int64_t *)a->value)
                    return d;
    return KL_DTYPE_COUNT;
}

static unsigned result_type(const struct exporter *x, const struct op_types *t, unsigned operand, uint32_t nin,
                            const char *const *in, const struct attribute *attributes)
{
    switch (t->result) {
    case RESULT_BOOL: return KL_BOOL;
    case RESULT_I32: return KL_I32;
    case RESULT_F32: return KL_F32;
    case RESULT_ATTRIBUTE: return attribute_type(attributes);
    case RESULT_AS_THIRD: return nin > 2 ? export_type_of(x, in[2]) : (unsigned)KL_DTYPE_COUNT;
    default: return operand;
    }
}

bool export_typed_node(struct exporter *x, const char *op, uint32_t nin, const char *const *in, uint32_t nout,
                       const char *const *out, const struct attribute *attributes)
{
    const struct op_types *t = types_of_op(op);
    uint32_t first = t->operands & 1 ? 0 : 1;
    unsigned dtype = nin > first ? export_type_of(x, in[first]) : (unsigned)KL_DTYPE_COUNT;
    bool takes = dtype == KL_DTYPE_COUNT || !(t->lacks & BIT(dtype));
    unsigned wide = takes ? dtype : wider_type(dtype, t->lacks, !strcmp(op, "Neg"));
    unsigned result = result_type(x, t, dtype, nin, in, attributes);
    if (result != KL_DTYPE_COUNT)
        export_set_type(x, out[0], result);
    for (uint32_t i = 1; i < nout && !strcmp(op, "TopK"); i++)
        export_set_type(x, out[i], KL_I64);
    if (takes || nin > 3 || nout > 3)
        return false;
    if (wide == KL_DTYPE_COUNT) {
        char why[80];
        snprintf(why, sizeof why, "ONNX's %s does not take %s", op, dtype_name(dtype));
        export_refuse(x, x->now, why);
        return true;
    }
    struct value_name wider[3], narrow = export_fresh(x);
    const char *operand[3], *results[3];
    for (uint32_t i = 0; i < nin; i++) {
        operand[i] = in[i];
        if (!(t->operands >> i & 1) || !*in[i])
            continue;
        wider[i] = export_cast(x, in[i], wide);
        operand[i] = wider[i].s;
    }
    for (uint32_t i = 0; i < nout; i++)
        results[i] = i || t->result != RESULT_SAME ? out[i] : narrow.s;
    export_node_of(x, op, nin, operand, nout, results, attributes);
    const char *value = narrow.s;
    if (t->result == RESULT_SAME)
        export_node(x, "Cast", 1, &value, out[0],
                    (struct attribute[]){{"to", 0, (int64_t[]){export_type(dtype)}}, {NULL, 0, NULL}});
    return true;
}
