/* Writes the graph's ops as ONNX nodes, one or a few nodes for each op. */
#include "export.h"
#include <math.h>
#include <string.h>

/* Ops that ONNX has with another name and the same operands. */
static const struct { uint16_t op; const char *name; } same[] = {
    {OP_neg, "Neg"}, {OP_abs, "Abs"}, {OP_exp, "Exp"}, {OP_log, "Log"}, {OP_tanh, "Tanh"}, {OP_sin, "Sin"},
    {OP_cos, "Cos"}, {OP_tan, "Tan"}, {OP_asin, "Asin"}, {OP_acos, "Acos"}, {OP_atan, "Atan"}, {OP_sinh, "Sinh"},
    {OP_cosh, "Cosh"}, {OP_asinh, "Asinh"}, {OP_acosh, "Acosh"}, {OP_atanh, "Atanh"}, {OP_erf, "Erf"},
    {OP_sqrt, "Sqrt"}, {OP_recip, "Reciprocal"}, {OP_floor, "Floor"}, {OP_ceil, "Ceil"}, {OP_round, "Round"},
    {OP_sign, "Sign"}, {OP_is_nan, "IsNaN"}, {OP_add, "Add"}, {OP_sub, "Sub"}, {OP_mul, "Mul"}, {OP_div, "Div"},
    {OP_max, "Max"}, {OP_min, "Min"}, {OP_pow, "Pow"}, {OP_eq, "Equal"}, {OP_lt, "Less"}, {OP_le, "LessOrEqual"},
    {OP_gt, "Greater"}, {OP_ge, "GreaterOrEqual"}, {OP_where, "Where"}, {OP_copy, "Identity"},
};
/* Ops that ONNX has only for bools. */
static const struct { uint16_t op; const char *name; } logical[] = {
    {OP_and, "And"}, {OP_or, "Or"}, {OP_xor, "Xor"}, {OP_not, "Not"},
};

/* Adds a node with one or two operands; the second may be NULL. */
static struct value_name onnx_add_step(struct exporter *x, const char *op, const char *a, const char *b)
{
    struct value_name out = export_fresh(x);
    export_node(x, op, b ? 2 : 1, (const char *const[]){a, b}, out.s, NULL);
    return out;
}

static void last_step(struct exporter *x, const char *op, const char *a, const char *b, const char *out)
{
    export_node(x, op, b ? 2 : 1, (const char *const[]){a, b}, out, NULL);
}

/* Could the divisor be 0 or -1?  ONNX's result is then undefined, and onnxruntime's process ends. */
static bool divisor_may_trap(const struct graph *g, ref r)
{
    const struct node *n = node_at(g, r);
    while (n->op == OP_expand || n->op == OP_reshape)
        n = node_at(g, n->in[0]);
    double v = n->op == OP_const ? dtype_value(n->dtype, n->attr.konst.bits) : 0;
    return !dtype_is_float(n->dtype) && (v == 0 || v == -1);
}

/* An integer divisor with 1 in place of 0 and -1; *zero, *minus: where it is that ("": nowhere). */
static struct value_name safe_divisor(struct exporter *x, ref divisor, struct value_name *zero,
                                      struct value_name *minus)
{
    struct value_name b = {""}, out = export_fresh(x);
    unsigned dtype = node_at(x->g, divisor)->dtype;
    snprintf(b.s, sizeof b.s, "%s", export_value(x, divisor));
    *zero = *minus = (struct value_name){""};
    if (!divisor_may_trap(x->g, divisor))
        return b;
    struct value_name none = export_number(x, dtype, 0), one = export_number(x, dtype, 1), either;
    either = *zero = onnx_add_step(x, "Equal", b.s, none.s);
    if (dtype_kind(dtype) != 'U') {
        struct value_name less = export_number(x, dtype, -1);
        *minus = onnx_add_step(x, "Equal", b.s, less.s);
        either = onnx_add_step(x, "Or", zero->s, minus->s);
    }
    export_node(x, "Where", 3, (const char *const[]){either.s, one.s, b.s}, out.s, NULL);
    return out;
}

/* a / 0 is 0, and the lowest integer / -1 itself. */
static bool export_integer_div(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const char *a = export_value(x, n->in[0]);
    struct value_name zero, minus, b = safe_divisor(x, n->in[1], &zero, &minus);
    if (!*zero.s) {
        last_step(x, "Div", a, b.s, out);
        return true;
    }
    struct value_name none = export_number(x, n->dtype, 0), q = onnx_add_step(x, "Div", a, b.s), signs = q;
    if (*minus.s) {
        struct value_name negative = onnx_add_step(x, "Neg", a, NULL);
        signs = export_fresh(x);
        export_node(x, "Where", 3, (const char *const[]){minus.s, negative.s, q.s}, signs.s, NULL);
    }
    export_node(x, "Where", 3, (const char *const[]){zero.s, none.s, signs.s}, out, NULL);
    return true;
}

/* A float as an integer: truncated, saturated, and 0 for NaN; ONNX's Cast leaves all but the first undefined. */
static void export_saturating_cast(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    unsigned from = node_at(x->g, n->in[0])->dtype, bits = 8 * (unsigned)dtype_size(n->dtype);
    bool with_sign = dtype_kind(n->dtype) != 'U';
    struct value_name a = {""}, t, u, in, k, low, high;
    snprintf(a.s, sizeof a.s, "%s", export_value(x, n->in[0]));
    if (dtype_is_half(from)) {
        a = export_cast(x, a.s, KL_F32);
        from = KL_F32;
    }
    double min = with_sign ? -ldexp(1, (int)bits - 1) : 0, above = ldexp(1, (int)bits - with_sign);
    struct shape scalar = shape_make(0, NULL);
    uint64_t last = with_sign ? (UINT64_C(1) << (bits - 1)) - 1 : UINT64_MAX >> (64 - bits);
    k = export_number(x, from, min);
    t = onnx_add_step(x, "Less", a.s, k.s);
    in = onnx_add_step(x, "GreaterOrEqual", a.s, k.s);
    k = export_number(x, from, above);
    u = onnx_add_step(x, "GreaterOrEqual", a.s, k.s);
    k = onnx_add_step(x, "Less", a.s, k.s);
    in = onnx_add_step(x, "And", in.s, k.s); /* false for NaN */
    k = export_number(x, from, 0);
    struct value_name inside = export_fresh(x), saturated = export_fresh(x);
    export_node(x, "Where", 3, (const char *const[]){in.s, a.s, k.s}, inside.s, NULL);
    inside = export_cast(x, inside.s, n->dtype);
    low = export_number(x, n->dtype, min);
    high = export_tensor(x, n->dtype, &scalar, &last);
    export_node(x, "Where", 3, (const char *const[]){u.s, high.s, inside.s}, saturated.s, NULL);
    export_node(x, "Where", 3, (const char *const[]){t.s, low.s, saturated.s}, out, NULL);
}

/* Elementwise ops that become several nodes. */
static bool export_composed(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const char *a = export_value(x, n->in[0]), *b = n->nin > 1 ? export_value(x, n->in[1]) : NULL;
    unsigned dtype = node_at(x->g, n->in[0])->dtype;
    double number = n->op == OP_exp2 ? 2 : n->op == OP_log2 ? log(2) : n->op == OP_trunc ? 0 : 1;
    struct value_name k = {""}, t, u;
    if (n->op == OP_exp2 || n->op == OP_log2 || n->op == OP_expm1 || n->op == OP_log1p || n->op == OP_erfc ||
        n->op == OP_trunc)
        k = export_number(x, dtype, number);
    switch (n->op) {
    case OP_exp2:  last_step(x, "Pow", k.s, a, out); return true;
    case OP_log2:  last_step(x, "Div", (t = onnx_add_step(x, "Log", a, NULL)).s, k.s, out); return true;
    case OP_expm1: last_step(x, "Sub", (t = onnx_add_step(x, "Exp", a, NULL)).s, k.s, out); return true;
    case OP_log1p: last_step(x, "Log", (t = onnx_add_step(x, "Add", a, k.s)).s, NULL, out); return true;
    case OP_erfc:  last_step(x, "Sub", k.s, (t = onnx_add_step(x, "Erf", a, NULL)).s, out); return true;
    case OP_rsqrt: last_step(x, "Reciprocal", (t = onnx_add_step(x, "Sqrt", a, NULL)).s, NULL, out); return true;
    case OP_ne:    last_step(x, "Not", (t = onnx_add_step(x, "Equal", a, b)).s, NULL, out); return true;
    case OP_hypot:
        t = onnx_add_step(x, "Mul", a, a);
        u = onnx_add_step(x, "Mul", b, b);
        last_step(x, "Sqrt", (t = onnx_add_step(x, "Add", t.s, u.s)).s, NULL, out);
        return true;
    case OP_is_finite:
        t = onnx_add_step(x, "IsNaN", a, NULL);
        u = onnx_add_step(x, "IsInf", a, NULL);
        last_step(x, "Not", (t = onnx_add_step(x, "Or", t.s, u.s)).s, NULL, out);
        return true;
    case OP_trunc:
        t = onnx_add_step(x, "Less", a, k.s);
        u = onnx_add_step(x, "Ceil", a, NULL);
        k = onnx_add_step(x, "Floor", a, NULL);
        export_node(x, "Where", 3, (const char *const[]){t.s, u.s, k.s}, out, NULL);
        return true;
    case OP_fma:
        t = onnx_add_step(x, "Mul", a, b);
        last_step(x, "Add", t.s, export_value(x, n->in[2]), out);
        return true;
    case OP_rem:
        t = safe_divisor(x, n->in[1], &u, &k);
        export_node(x, "Mod", 2, (const char *const[]){a, t.s}, out,
                    (struct attribute[]){{"fmod", 0, (int64_t[]){1}}, {NULL, 0, NULL}});
        return true;
    case OP_div: return export_integer_div(x, r, out);
    default: return export_refuse(x, r, "ONNX has no such op");
    }
}

static bool export_elementwise(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const char *in[MAX_OPERANDS];
    const char *name = NULL;
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = export_value(x, n->in[i]);
    for (size_t i = 0; i < sizeof same / sizeof *same && !name; i++)
        name = same[i].op == n->op ? same[i].name : NULL;
    if (n->op == OP_div && !dtype_is_float(n->dtype))
        name = NULL;
    for (size_t i = 0; i < sizeof logical / sizeof *logical && !name && n->dtype == KL_BOOL; i++)
        name = logical[i].op == n->op ? logical[i].name : NULL;
    if (!name)
        return export_composed(x, r, out);
    export_node(x, name, n->nin, in, out, NULL);
    return true;
}

/* ---- views ---- */

static bool export_slice(struct exporter *x, ref r, const char *out, int64_t axis, int64_t start, int64_t end,
                         int64_t by)
{
    struct value_name s = export_ints(x, 1, &start), e = export_ints(x, 1, &end), a = export_ints(x, 1, &axis),
                d = export_ints(x, 1, &by);
    const char *in[5] = {export_value(x, node_at(x->g, r)->in[0]), s.s, e.s, a.s, d.s};
    export_node(x, "Slice", 5, in, out, NULL);
    return true;
}

static bool export_flip(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    int64_t axis[KL_MAX_RANK], start[KL_MAX_RANK], end[KL_MAX_RANK], by[KL_MAX_RANK];
    uint32_t k = 0;
    for (uint32_t i = 0; i < node_shape(x->g, r)->rank; i++)
        if (n->attr.flip.axes >> i & 1) {
            axis[k] = i;
            start[k] = -1;
            end[k] = INT64_MIN;
            by[k++] = -1;
        }
    struct value_name s = export_ints(x, k, start), e = export_ints(x, k, end), a = export_ints(x, k, axis),
                d = export_ints(x, k, by);
    export_node(x, "Slice", 5, (const char *const[]){export_value(x, n->in[0]), s.s, e.s, a.s, d.s}, out, NULL);
    return true;
}

/* Windows of an axis: gathers their elements by index, [.., windows, size, ..], and then moves `size` to the last
 * axis. */
static bool export_window(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const struct shape *s = node_shape(x->g, r);
    uint32_t axis = n->attr.window.axis;
    int64_t windows = s->dim[axis], size = n->attr.window.size, perm[KL_MAX_RANK];
    struct shape table = shape_make(2, (int64_t[]){windows, size});
    int64_t *index = kl_memory_alloc(((size_t)shape_count(&table) + 1) * sizeof *index);
    if (!index)
        return err_set(x->e, KL_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < windows; i++)
        for (int64_t k = 0; k < size; k++)
            index[i * size + k] = i * n->attr.window.stride + k * n->attr.window.dilation;
    struct value_name at = export_tensor(x, KL_I64, &table, index), gathered = export_fresh(x);
    kl_memory_free(index);
    export_node(x, "Gather", 2, (const char *const[]){export_value(x, n->in[0]), at.s}, gathered.s,
                (struct attribute[]){{"axis", 0, (int64_t[]){axis}}, {NULL, 0, NULL}});
    for (uint32_t i = 0; i < s->rank; i++)
        perm[i] = i <= axis ? i : i + 1 < s->rank ? i + 1 : axis + 1;
    export_node(x, "Transpose", 1, (const char *const[]){gathered.s}, out,
                (struct attribute[]){{"perm", s->rank, perm}, {NULL, 0, NULL}});
    return true;
}

static bool export_pad(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const struct shape *s = node_shape(x->g, r);
    int64_t pads[2 * KL_MAX_RANK] = {0};
    if (n->attr.pad.interior)
        return export_refuse(x, r, "elements between others");
    pads[n->attr.pad.axis] = n->attr.pad.low;
    pads[s->rank + n->attr.pad.axis] = n->attr.pad.high;
    struct value_name p = export_ints(x, 2 * s->rank, pads);
    const char *in[3] = {export_value(x, n->in[0]), p.s, export_value(x, n->in[1])};
    export_node(x, "Pad", 3, in, out, NULL);
    return true;
}

static bool export_iota(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const struct shape *s = node_shape(x->g, r);
    struct shape row = *s;
    for (uint32_t i = 0; i < s->rank; i++)
        row.dim[i] = i == n->attr.axis.axis ? s->dim[i] : 1;
    size_t size = dtype_size(n->dtype);
    char *v = kl_memory_alloc((size_t)shape_count(&row) * size + 1);
    if (!v)
        return err_set(x->e, KL_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < shape_count(&row); i++) {
        uint64_t bits = dtype_bits(n->dtype, (double)i);
        memcpy(v + (size_t)i * size, &bits, size);
    }
    struct value_name t = export_tensor(x, n->dtype, &row, v), shape = export_ints(x, s->rank, s->dim);
    kl_memory_free(v);
    export_node(x, "Expand", 2, (const char *const[]){t.s, shape.s}, out, NULL);
    return true;
}

/* ---- what chooses and reduces ---- */

static bool export_reduce(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    int64_t axis[KL_MAX_RANK];
    uint32_t k = 0;
    const char *a = export_value(x, n->in[0]);
    for (uint32_t i = 0; i < node_shape(x->g, r)->rank; i++)
        if (n->attr.reduce.axes >> i & 1)
            axis[k++] = i;
    if (n->dtype == KL_BOOL)
        return export_refuse(x, r, "a reduction of bools");
    if (!k) { /* there are no axes */
        export_node(x, "Identity", 1, &a, out, NULL);
    } else {
        struct value_name axes = export_ints(x, k, axis);
        export_node(x, n->op == OP_sum          ? "ReduceSum"
                       : n->op == OP_reduce_max ? "ReduceMax"
                       : n->op == OP_reduce_min ? "ReduceMin"
                                                : "ReduceProd", 2, (const char *const[]){a, axes.s}, out, NULL);
    }
    return true;
}

static bool export_argsort(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    int64_t axis = n->attr.sort.axis, largest = n->attr.sort.descending;
    struct value_name k = export_ints(x, 1, &node_shape(x->g, r)->dim[axis]), values = export_fresh(x);
    struct value_name at = export_fresh(x);
    export_node_of(x, "TopK", 2, (const char *const[]){export_value(x, n->in[0]), k.s}, 2,
                   (const char *const[]){values.s, at.s},
                   (struct attribute[]){{"axis", 0, &axis}, {"largest", 0, &largest}, {NULL, 0, NULL}});
    export_node(x, "Cast", 1, (const char *const[]){at.s}, out,
                (struct attribute[]){{"to", 0, (int64_t[]){export_type(n->dtype)}}, {NULL, 0, NULL}});
    return true;
}

bool export_op(struct exporter *x, ref r)
{
    const struct node *n = node_at(x->g, r);
    const struct shape *s = node_shape(x->g, r);
    if (*x->name[r].s) /* a leaf, or a result of a region op, has a name already */
        return true;
    if (n->op == OP_const) {
        struct shape scalar = shape_make(0, NULL);
        x->name[r] = export_tensor(x, n->dtype, &scalar, &n->attr.konst.bits);
        return true;
    }
    if (op_is_region(n->op))
        return export_region(x, r);
    const char *out = export_value(x, r), *a = n->nin ? export_value(x, n->in[0]) : NULL;
    if (op_is_elementwise(n->op))
        return export_elementwise(x, r, out);
    if (op_is_product(n->op))
        return export_dot(x, r, out);
    struct value_name t;
    int64_t list[KL_MAX_RANK];
    const char *in[MAX_OPERANDS];
    switch (n->op) {
    case OP_copy: export_node(x, "Identity", 1, &a, out, NULL); return true;
    case OP_reshape:
    case OP_expand:
        t = export_ints(x, s->rank, s->dim);
        list[0] = 1; /* in the shape a 0 stands for a length of 0 */
        export_node(x, n->op == OP_expand ? "Expand" : "Reshape", 2, (const char *const[]){a, t.s}, out,
                    n->op == OP_expand ? NULL : (struct attribute[]){{"allowzero", 0, list}, {NULL, 0, NULL}});
        return true;
    case OP_permute:
        for (uint32_t i = 0; i < s->rank; i++)
            list[i] = n->attr.permute.perm[i];
        if (s->rank)
            export_node(x, "Transpose", 1, &a, out, (struct attribute[]){{"perm", s->rank, list}, {NULL, 0, NULL}});
        else
            export_node(x, "Identity", 1, &a, out, NULL);
        return true;
    case OP_slice:
        list[0] = n->attr.slice.count ? (n->attr.slice.count - 1) * n->attr.slice.step + 1 : 0; /* number of elements
                                                                                                   from the first to the
                                                                                                   last */
        return export_slice(x, r, out, n->attr.slice.axis, n->attr.slice.start, n->attr.slice.start + list[0],
                            n->attr.slice.step);
    case OP_window: return export_window(x, r, out);
    case OP_flip:   return export_flip(x, r, out);
    case OP_pad:    return export_pad(x, r, out);
    case OP_iota:   return export_iota(x, r, out);
    case OP_concat:
        for (unsigned i = 0; i < n->nin; i++)
            in[i] = export_value(x, n->in[i]);
        list[0] = n->attr.axis.axis;
        export_node(x, "Concat", n->nin, in, out, (struct attribute[]){{"axis", 0, list}, {NULL, 0, NULL}});
        return true;
    case OP_gather:  return export_gather(x, r, out);
    case OP_scatter: return export_scatter(x, r, out);
    case OP_dynamic_slice:
    case OP_dynamic_update: return export_dynamic(x, r, out);
    case OP_quantize:
    case OP_dequantize: return export_quantized(x, r, out);
    case OP_cast:
        if (dtype_is_float(node_at(x->g, n->in[0])->dtype) && !dtype_is_float(n->dtype) && n->dtype != KL_BOOL) {
            export_saturating_cast(x, r, out);
            return true;
        }
        list[0] = export_type(n->dtype);
        export_node(x, "Cast", 1, &a, out, (struct attribute[]){{"to", 0, list}, {NULL, 0, NULL}});
        return true;
    case OP_sum:
    case OP_reduce_max:
    case OP_reduce_min:
    case OP_reduce_prod: return export_reduce(x, r, out);
    case OP_cumsum:
        t = export_number(x, KL_I64, n->attr.axis.axis);
        export_node(x, "CumSum", 2, (const char *const[]){a, t.s}, out, NULL);
        return true;
    case OP_argsort:   return export_argsort(x, r, out);
    case OP_attention: return export_attention(x, r, out);
    default: return export_refuse(x, r, "ONNX has no such op");
    }
}
