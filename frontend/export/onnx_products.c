/* Writes products and attention as ONNX nodes.  Operands are transposed and reshaped to the form of MatMul, [batch,
 * rows, columns]. */
#include "export.h"
#include <string.h>

/* Permutes the axes of an operand; an order that changes nothing adds no node. */
static struct value_name onnx_add_transpose(struct exporter *x, const char *value, uint32_t n, const uint32_t *order)
{
    int64_t perm[KL_MAX_RANK];
    bool same = true;
    for (uint32_t i = 0; i < n; i++) {
        perm[i] = order[i];
        same &= order[i] == i;
    }
    struct value_name out;
    snprintf(out.s, sizeof out.s, "%s", value);
    if (same)
        return out;
    out = export_fresh(x);
    export_node(x, "Transpose", 1, &value, out.s, (struct attribute[]){{"perm", n, perm}, {NULL, 0, NULL}});
    return out;
}

static struct value_name with_shape(struct exporter *x, const char *value, uint32_t rank, const int64_t *dims)
{
    struct value_name shape = export_ints(x, rank, dims), out = export_fresh(x);
    export_node(x, "Reshape", 2, (const char *const[]){value, shape.s}, out.s, NULL);
    return out;
}

struct operand { uint32_t order[KL_MAX_RANK]; uint32_t n; int64_t batch, free, contracted; };

/* The axes of an operand in the order batch, free, contracted, or, if free_first is false, batch, contracted, free. */
static struct operand arrange_operand(const struct shape *s, uint32_t batch, uint32_t nbatch, uint32_t con,
                                      uint32_t ncon, bool free_first)
{
    struct operand o = {.batch = 1, .free = 1, .contracted = 1};
    uint32_t used = 0;
    for (uint32_t i = 0; i < nbatch; i++) {
        uint32_t axis = batch >> 4 * i & 15;
        used |= 1u << axis;
        o.batch *= s->dim[axis];
        o.order[o.n++] = axis;
    }
    for (uint32_t i = 0; i < ncon; i++) {
        used |= 1u << (con >> 4 * i & 15);
        o.contracted *= s->dim[con >> 4 * i & 15];
    }
    for (int half = 0; half < 2; half++)
        for (uint32_t i = 0; i < (half == !free_first ? s->rank : ncon); i++) {
            uint32_t axis = half == !free_first ? i : con >> 4 * i & 15;
            if (half == !free_first && used >> axis & 1)
                continue;
            if (half == !free_first)
                o.free *= s->dim[axis];
            o.order[o.n++] = axis;
        }
    return o;
}

bool export_dot(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const struct shape *a = node_shape(x->g, n->in[0]), *b = node_shape(x->g, n->in[1]), *s = node_shape(x->g, r);
    unsigned ta = node_at(x->g, n->in[0])->dtype, tb = node_at(x->g, n->in[1])->dtype;
    bool bytes = (ta == KL_I8 || ta == KL_U8) && (tb == KL_I8 || tb == KL_U8) && n->dtype == KL_I32;
    const char *op = bytes ? "MatMulInteger" : "MatMul";
    if (n->attr.dot.sum && !bytes)
        return export_refuse(x, r, "products of bytes with sums of another type than i32");
    struct operand l = arrange_operand(a, n->attr.dot.batch_a, n->attr.dot.nbatch, n->attr.dot.con_a, n->attr.dot.ncon,
                                       true);
    struct operand m = arrange_operand(b, n->attr.dot.batch_b, n->attr.dot.nbatch, n->attr.dot.con_b, n->attr.dot.ncon,
                                       false);
    struct value_name left = onnx_add_transpose(x, export_value(x, n->in[0]), l.n, l.order);
    struct value_name right = onnx_add_transpose(x, export_value(x, n->in[1]), m.n, m.order);
    bool plain = !n->attr.dot.nbatch && a->rank == 2 && b->rank == 2 && n->attr.dot.ncon == 1;
    if (plain) {
        export_node(x, op, 2, (const char *const[]){left.s, right.s}, out, NULL);
        return true;
    }
    left = with_shape(x, left.s, 3, (int64_t[]){l.batch, l.free, l.contracted});
    right = with_shape(x, right.s, 3, (int64_t[]){m.batch, m.contracted, m.free});
    struct value_name product = export_fresh(x), shape = export_ints(x, s->rank, s->dim);
    export_node(x, op, 2, (const char *const[]){left.s, right.s}, product.s, NULL);
    export_node(x, "Reshape", 2, (const char *const[]){product.s, shape.s}, out, NULL);
    return true;
}

/* bool [1.., L, M]: the keys that are unmasked for a query according to its position. */
static struct value_name causal_mask(struct exporter *x, int64_t queries, int64_t keys)
{
    struct shape s = shape_make(2, (int64_t[]){queries, keys});
    uint8_t *unmasked = kl_memory_alloc((size_t)shape_count(&s) + 1);
    for (int64_t i = 0; unmasked && i < queries; i++)
        for (int64_t k = 0; k < keys; k++)
            unmasked[i * keys + k] = k <= i + keys - queries;
    struct value_name n = {""};
    if (unmasked)
        n = export_tensor(x, KL_BOOL, &s, unmasked);
    else
        x->nodes.failed = true;
    kl_memory_free(unmasked);
    return n;
}

bool export_attention(struct exporter *x, ref r, const char *out)
{
    const struct node *n = node_at(x->g, r);
    const struct shape *q = node_shape(x->g, n->in[0]), *k = node_shape(x->g, n->in[1]);
    uint32_t rank = q->rank, order[KL_MAX_RANK];
    double scale;
    memcpy(&scale, &n->attr.attention.scale, sizeof scale);
    if (n->nin > 3 && node_at(x->g, n->in[3])->dtype != KL_BOOL)
        return export_refuse(x, r, "a mask of first and last keys");
    for (uint32_t i = 0; i < rank; i++)
        order[i] = i + 2 < rank ? i : i + 2 == rank ? rank - 1 : rank - 2;
    struct value_name keys = onnx_add_transpose(x, export_value(x, n->in[1]), rank, order), scores = export_fresh(x);
    struct value_name scaled = export_fresh(x), weights = export_fresh(x), factor = export_number(x, n->dtype, scale);
    export_node(x, "MatMul", 2, (const char *const[]){export_value(x, n->in[0]), keys.s}, scores.s, NULL);
    export_node(x, "Mul", 2, (const char *const[]){scores.s, factor.s}, scaled.s, NULL);
    /* A very low score instead of -infinity: a row that attends to nothing gets the mean of all values. */
    for (int mask = 0; mask < 2; mask++) {
        if (mask ? n->nin < 4 : !n->attr.attention.causal)
            continue;
        struct value_name unmasked, low = export_number(x, n->dtype, n->dtype == KL_F16 ? -6e4 : -1e30);
        struct value_name masked = export_fresh(x);
        if (mask)
            snprintf(unmasked.s, sizeof unmasked.s, "%s", export_value(x, n->in[3]));
        else
            unmasked = causal_mask(x, q->dim[rank - 2], k->dim[rank - 2]);
        export_node(x, "Where", 3, (const char *const[]){unmasked.s, scaled.s, low.s}, masked.s, NULL);
        scaled = masked;
    }
    export_node(x, "Softmax", 1, (const char *const[]){scaled.s}, weights.s,
                (struct attribute[]){{"axis", 0, (int64_t[]){-1}}, {NULL, 0, NULL}});
    export_node(x, "MatMul", 2, (const char *const[]){weights.s, export_value(x, n->in[2])}, out, NULL);
    return true;
}
