/* Writes gathers, scatters, windows at computed positions and quantized values as ONNX nodes. */
#include "export.h"
#include <string.h>

struct value_name export_cast(struct exporter *x, const char *value, unsigned dtype)
{
    struct value_name out = export_fresh(x);
    export_node(x, "Cast", 1, &value, out.s,
                (struct attribute[]){{"to", 0, (int64_t[]){export_type(dtype)}}, {NULL, 0, NULL}});
    return out;
}

static struct value_name export_permuted(struct exporter *x, const char *value, uint32_t rank, const int64_t *perm)
{
    struct value_name out = export_fresh(x);
    export_node(x, "Transpose", 1, &value, out.s, (struct attribute[]){{"perm", rank, perm}, {NULL, 0, NULL}});
    return out;
}

/* An index as i64, limited to the range from 0 to `most`, as the graph's ops limit it. */
static struct value_name limited_index(struct exporter *x, ref index, int64_t max)
{
    struct value_name wide = export_cast(x, export_value(x, index), KL_I64), out = export_fresh(x);
    struct value_name low = export_number(x, KL_I64, 0), high = export_number(x, KL_I64, (double)max);
    export_node(x, "Clip", 3, (const char *const[]){wide.s, low.s, high.s}, out.s, NULL);
    return out;
}

/* The positions start, start + 1, .., of a window of `count` elements that fits into `length`. */
static struct value_name window_index(struct exporter *x, ref start, int64_t count, int64_t length)
{
    struct value_name first = limited_index(x, start, length - count), out = export_fresh(x);
    struct shape s = shape_make(1, &count);
    int64_t *v = kl_memory_alloc(((size_t)count + 1) * sizeof *v);
    for (int64_t i = 0; v && i < count; i++)
        v[i] = i;
    if (!v) {
        err_set(x->e, KL_ERR_MEMORY, "out of memory");
        return first;
    }
    struct value_name from_0 = export_tensor(x, KL_I64, &s, v);
    kl_memory_free(v);
    export_node(x, "Add", 2, (const char *const[]){from_0.s, first.s}, out.s, NULL);
    return out;
}

static void gather_axis(struct exporter *x, ref a, const char *index, uint32_t axis, const char *out)
{
    export_node(x, "Gather", 2, (const char *const[]){export_value(x, a), index}, out,
                (struct attribute[]){{"axis", 0, (int64_t[]){axis}}, {NULL, 0, NULL}});
}

bool export_gather(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    uint32_t axis = n->attr.axis.axis;
    struct value_name index = limited_index(x, n->in[1], node_shape(x->g, n->in[0])->dim[axis] - 1);
    gather_axis(x, n->in[0], index.s, axis, out);
    return true;
}

/* Combines the update's rows with rows of a along an axis.  ScatterND does that along the first axis, so the axes of
 * the index and the axis are moved there.  index: the shape is that of index_shape. */
static void scatter_rows(struct exporter *x, ref a, ref update, const char *index, const struct shape *index_shape,
                         uint32_t axis, const char *reduction, const char *out)
{
    const struct shape *s = node_shape(x->g, a);
    uint32_t extra = index_shape->rank;
    int64_t to[KL_MAX_RANK], back[KL_MAX_RANK], moved[2 * KL_MAX_RANK], dims[KL_MAX_RANK + 1];
    for (uint32_t i = 0; i < s->rank; i++) {
        to[i] = i == 0 ? axis : i <= axis ? i - 1 : i;
        back[to[i]] = i;
    }
    for (uint32_t i = 0; i < extra + s->rank - 1; i++) /* the update's axes: before, of the index, behind */
        moved[i] = i < extra ? axis + i : i < extra + axis ? i - extra : i;
    for (uint32_t i = 0; i < extra; i++)
        dims[i] = index_shape->dim[i];
    dims[extra] = 1;
    struct value_name shape = export_ints(x, extra + 1, dims), at = export_fresh(x), result = export_fresh(x);
    export_node(x, "Reshape", 2, (const char *const[]){index, shape.s}, at.s, NULL);
    struct value_name from = {""}, rows = {""};
    snprintf(from.s, sizeof from.s, "%s", export_value(x, a));
    snprintf(rows.s, sizeof rows.s, "%s", export_value(x, update));
    if (axis) {
        from = export_permuted(x, from.s, s->rank, to);
        rows = export_permuted(x, rows.s, extra + s->rank - 1, moved);
    }
    export_node(x, "ScatterND", 3, (const char *const[]){from.s, at.s, rows.s}, axis ? result.s : out,
                (struct attribute[]){{"reduction", ATTRIBUTE_STRING, reduction}, {NULL, 0, NULL}});
    const char *transposed = result.s;
    if (axis)
        export_node(x, "Transpose", 1, &transposed, out,
                (struct attribute[]){{"perm", s->rank, back}, {NULL, 0, NULL}});
}

bool export_scatter(struct exporter *x, ref r, const char *out)
{
    static const char *const reduction[] = {[SCATTER_ADD] = "add", [SCATTER_MAX] = "max", [SCATTER_MIN] = "min",
                                            [SCATTER_SET] = "none"};
    const struct node *n = node_at(x->g, r);
    uint32_t axis = n->attr.scatter.axis;
    const struct shape *index_shape = node_shape(x->g, n->in[1]);
    if (index_shape->rank + node_shape(x->g, n->in[0])->rank - 1 > KL_MAX_RANK)
        return export_refuse(x, r, "the update has too many axes");
    struct value_name index = limited_index(x, n->in[1], node_shape(x->g, n->in[0])->dim[axis] - 1);
    scatter_rows(x, n->in[0], n->in[2], index.s, index_shape, axis, reduction[n->attr.scatter.kind], out);
    return true;
}

bool export_dynamic(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    bool update = n->op == OP_dynamic_update;
    uint32_t axis = update ? n->attr.axis.axis : n->attr.slice.axis;
    int64_t length = node_shape(x->g, n->in[0])->dim[axis];
    int64_t count = update ? node_shape(x->g, n->in[1])->dim[axis] : n->attr.slice.count;
    struct shape index_shape = shape_make(1, &count);
    struct value_name index = window_index(x, n->in[update ? 2 : 1], count, length);
    if (update)
        scatter_rows(x, n->in[0], n->in[1], index.s, &index_shape, axis, "none", out);
    else
        gather_axis(x, n->in[0], index.s, axis, out);
    return !x->e->code;
}

/* ---- quantized values ---- */

/* A scale or zero point as ONNX takes it: one number, or a vector along *axis.  false: it varies along several axes. */
static bool quant_parameter(struct exporter *x, ref r, int64_t *axis, struct value_name *out)
{
    const struct node *n = node_at(x->g, r);
    while (n->op == OP_expand)
        n = node_at(x->g, r = n->in[0]);
    const struct shape *s = node_shape(x->g, r);
    int64_t count = 1, along = -1;
    for (uint32_t i = 0; i < s->rank; i++) {
        if (s->dim[i] != 1 && along >= 0)
            return false;
        along = s->dim[i] != 1 ? i : along;
        count *= s->dim[i];
    }
    if (along >= 0 && *axis >= 0 && along != *axis)
        return false;
    *axis = along >= 0 ? along : *axis;
    struct value_name shape = export_ints(x, along >= 0, &count);
    *out = export_fresh(x);
    export_node(x, "Reshape", 2, (const char *const[]){export_value(x, r), shape.s}, out->s, NULL);
    return true;
}

/* ONNX computes with f32 scales here; for other floats the values are cast. */
bool export_quantized(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    bool quantizes = n->op == OP_quantize;
    int64_t axis = -1, zero_axis = -1;
    struct value_name scale, zero, a, result = export_fresh(x);
    unsigned number = node_at(x->g, n->in[1])->dtype;
    if (number == KL_F64)
        return export_refuse(x, r, "a scale of f64");
    if (!quant_parameter(x, n->in[1], &axis, &scale) || !quant_parameter(x, n->in[2], &zero_axis, &zero) ||
        axis != zero_axis)
        return export_refuse(x, r, "scale and zero point must be numbers, or vectors along one axis");
    snprintf(a.s, sizeof a.s, "%s", export_value(x, n->in[0]));
    if (number != KL_F32) {
        scale = export_cast(x, scale.s, KL_F32);
        a = quantizes ? export_cast(x, a.s, KL_F32) : a;
    }
    bool cast = !quantizes && n->dtype != KL_F32;
    export_node(x, quantizes ? "QuantizeLinear" : "DequantizeLinear", 3, (const char *const[]){a.s, scale.s, zero.s},
                cast ? result.s : out,
                (struct attribute[]){{axis >= 0 ? "axis" : NULL, 0, &axis}, {NULL, 0, NULL}});
    const char *wide = result.s;
    if (cast)
        export_node(x, "Cast", 1, &wide, out,
                    (struct attribute[]){{"to", 0, (int64_t[]){export_type(n->dtype)}}, {NULL, 0, NULL}});
    return true;
}
