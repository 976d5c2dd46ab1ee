/* Attributes of nodes.  An attribute of a node in a function may refer to an attribute of the node that calls it. */
#include "onnx.h"
#include <string.h>

const Onnx__AttributeProto *onnx_attr(const struct node *n, const char *name)
{
    for (unsigned hops = 0; n && hops < DEEPEST; hops++) {
        const Onnx__NodeProto *p = n->def->proto;
        const Onnx__AttributeProto *a = NULL;
        for (size_t i = 0; !a && i < p->n_attribute; i++)
            if (p->attribute[i]->name && !strcmp(p->attribute[i]->name, name))
                a = p->attribute[i];
        if (!a || !a->ref_attr_name || !*a->ref_attr_name)
            return a;
        name = a->ref_attr_name;
        const struct frame *f = n->frame;
        while (f && !f->caller)
            f = f->outer;
        n = f ? f->caller : NULL;
    }
    return NULL;
}

int64_t onnx_attr_int(const struct node *n, const char *name, int64_t without)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    return a && (a->has_i || a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT) ? a->i : without;
}

int onnx_attr_int32(const struct node *n, const char *name, int without)
{
    int64_t v = onnx_attr_int(n, name, without);
    return v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : (int)v;
}

double onnx_attr_float(const struct node *n, const char *name, double without)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    return a && (a->has_f || a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT) ? (double)a->f : without;
}

bool onnx_attr_is(const struct node *n, const char *name, const char *value, bool without)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    if (!a || !a->has_s)
        return without;
    return a->s.len == strlen(value) && !memcmp(a->s.data, value, a->s.len);
}

int onnx_attr_ints(struct node *n, const char *name, int64_t *v, int most)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    if (!a)
        return -1;
    if (a->n_ints > (size_t)most) {
        onnx_fails(n, KL_ERR_ARGUMENT, "attribute %s has %zu numbers, more than %d", name, a->n_ints, most);
        return -2;
    }
    if (a->n_ints)
        memcpy(v, a->ints, a->n_ints * sizeof *v);
    return (int)a->n_ints;
}

const struct graph_def *onnx_attr_graph(const struct node *n, const char *name)
{
    const Onnx__NodeProto *p = n->def->proto;
    for (size_t i = 0; i < p->n_attribute; i++)
        if (p->attribute[i]->name && !strcmp(p->attribute[i]->name, name))
            return n->def->sub[i];
    return NULL;
}

bool onnx_axis(struct node *n, int64_t axis, int rank, int *at)
{
    if (axis < -rank || axis >= rank)
        return onnx_fails(n, KL_ERR_SHAPE, "there is no axis %lld: the operand has %d", (long long)axis, rank);
    *at = (int)(axis < 0 ? axis + rank : axis);
    return true;
}

int onnx_axes(struct node *n, const char *name, uint32_t i, int rank, int *axes)
{
    int64_t v[KL_MAX_RANK];
    int count = -1;
    if (onnx_has(n, i)) {
        if (!onnx_ints(n, i, v, KL_MAX_RANK, &count))
            return -2;
    } else {
        count = onnx_attr_ints(n, name, v, KL_MAX_RANK);
    }
    for (int k = 0; k < count; k++)
        if (!onnx_axis(n, v[k], rank, &axes[k]))
            return -2;
    return count;
}
