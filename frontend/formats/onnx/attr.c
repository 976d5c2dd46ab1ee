/* Attributes of nodes.  An attribute of a node in a function may refer to an attribute of the node that calls it. */
#include "onnx.h"
#include <string.h>

static const Onnx__AttributeProto *attribute_named(Onnx__AttributeProto *const *v, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (v[i]->name && !strcmp(v[i]->name, name))
            return v[i];
    return NULL;
}

const Onnx__AttributeProto *onnx_attr(const struct node *n, const char *name)
{
    const struct attributes *defaults = NULL; /* of the function that n calls, if the name is its attribute's */
    for (unsigned hops = 0; n && hops < DEEPEST; hops++) {
        const Onnx__NodeProto *p = n->def->proto;
        const Onnx__AttributeProto *a = attribute_named(p->attribute, p->n_attribute, name);
        if (!a && defaults)
            a = attribute_named(defaults->v, defaults->n, name);
        if (!a || !a->ref_attr_name || !*a->ref_attr_name)
            return a;
        name = a->ref_attr_name;
        const struct frame *f = n->frame;
        while (f && !f->caller)
            f = f->outer;
        n = f ? f->caller : NULL;
        defaults = n ? &n->def->function->defaults : NULL;
    }
    return NULL;
}

/* The attribute, which has the type that is asked for; else it is noted as misread, which run_node reports. */
static const Onnx__AttributeProto *attribute_of_type(const struct node *n, const char *name,
                                                     Onnx__AttributeProto__AttributeType type)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    bool is = !a || a->type == type;
    if (a && a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED) /* of the first IR version */
        switch (type) {
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT: is = a->has_i; break;
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT: is = a->has_f; break;
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING: is = a->has_s; break;
        default: is = !a->has_i && !a->has_f && !a->has_s; break;
        }
    if (is)
        return a;
    n->run->misread = a->name;
    return NULL;
}

int64_t onnx_attr_int(const struct node *n, const char *name, int64_t without)
{
    const Onnx__AttributeProto *a = attribute_of_type(n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    return a ? a->i : without;
}

int onnx_attr_int32(const struct node *n, const char *name, int without)
{
    int64_t v = onnx_attr_int(n, name, without);
    return v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : (int)v;
}

double onnx_attr_float(const struct node *n, const char *name, double without)
{
    const Onnx__AttributeProto *a = attribute_of_type(n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
    return a ? (double)a->f : without;
}

bool onnx_attr_is(const struct node *n, const char *name, const char *value, bool without)
{
    const Onnx__AttributeProto *a = attribute_of_type(n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    if (!a)
        return without;
    return a->s.len == strlen(value) && !memcmp(a->s.data, value, a->s.len);
}

int onnx_attr_ints(struct node *n, const char *name, int64_t *v, int max)
{
    const Onnx__AttributeProto *a = attribute_of_type(n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    if (!a)
        return -1;
    if (a->n_ints > (size_t)max) {
        onnx_fails(n, KL_ERR_ARGUMENT, "attribute %s has %zu numbers, more than %d", name, a->n_ints, max);
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
