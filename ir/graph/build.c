/* Builders: one function for each kind of node.  A NIL operand means that an error was recorded already. */
#include "ir/ir.h"
#include <math.h>
#include <string.h>

static ref graph_build_add(struct graph *g, enum op op, unsigned nin, ref a, ref b, ref c)
{
    return graph_add(g, &(struct node){.op = (uint16_t)op, .nin = (uint8_t)nin, .in = {a, b, c}}, NULL);
}

#define ST(name, ...)
#define EW1(name, ...) ref n_##name(struct graph *g, ref a) { return graph_build_add(g, OP_##name, 1, a, NIL, NIL); }
#define EW2(name, ...)                                                                                                 \
    ref n_##name(struct graph *g, ref a, ref b) { return graph_build_add(g, OP_##name, 2, a, b, NIL); }
#define EW3(name, ...)                                                                                                 \
    ref n_##name(struct graph *g, ref a, ref b, ref c) { return graph_build_add(g, OP_##name, 3, a, b, c); }
#include "ir/ops/ops.def"

static ref build_leaf(struct graph *g, enum op op, struct leaves *l, unsigned dtype, const struct shape *s,
                      const char *name)
{
    struct shape target = *s;
    uint32_t index = graph_leaf(g, l, dtype, &target, name);
    if (index == LEAF_NONE)
        return NIL;
    struct node n = {.op = (uint16_t)op, .dtype = (uint8_t)dtype, .attr.leaf.index = index};
    return graph_add(g, &n, &target);
}

ref n_input(struct graph *g, unsigned dtype, const struct shape *s, const char *name)
{
    return build_leaf(g, OP_input, &g->input, dtype, s, name);
}

ref n_state(struct graph *g, unsigned dtype, const struct shape *s, const char *name)
{
    return build_leaf(g, OP_state, &g->state, dtype, s, name);
}

ref n_slot(struct graph *g, unsigned dtype, const char *name)
{
    struct shape scalar = {0};
    return build_leaf(g, OP_slot, &g->slot, dtype, &scalar, name);
}

ref n_const(struct graph *g, unsigned dtype, uint64_t bits)
{
    struct node n = {.op = OP_const, .dtype = (uint8_t)dtype, .attr.konst.bits = bits};
    return graph_add(g, &n, NULL);
}

ref n_k(struct graph *g, ref like, double v)
{
    if (g->err.code != KL_OK || like == NIL)
        return NIL;
    unsigned dtype = node_at(g, like)->dtype;
    uint16_t device = g->cur_device;
    g->cur_device = node_at(g, like)->device;
    ref k = n_const(g, dtype, dtype_bits(dtype, v));
    g->cur_device = device;
    return n_broadcast(g, k, node_shape(g, like));
}

ref n_iota(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis)
{
    struct node n = {.op = OP_iota, .dtype = (uint8_t)dtype, .attr.axis.axis = axis};
    return graph_add(g, &n, s);
}

ref n_random(struct graph *g, unsigned dtype, const struct shape *s, ref seed)
{
    struct node n = {.op = OP_random, .dtype = (uint8_t)dtype, .nin = 1, .in = {seed}};
    return graph_add(g, &n, s);
}

ref n_reshape(struct graph *g, ref a, const struct shape *s)
{
    return graph_add(g, &(struct node){.op = OP_reshape, .nin = 1, .in = {a}}, s);
}

ref n_permute(struct graph *g, ref a, const uint8_t *perm)
{
    if (g->err.code != KL_OK)
        return NIL;
    struct node n = {.op = OP_permute, .nin = 1, .in = {a}};
    if (a != NIL && a < g->nnode)
        memcpy(n.attr.permute.perm, perm, node_shape(g, a)->rank);
    return graph_add(g, &n, NULL);
}

ref n_expand(struct graph *g, ref a, const struct shape *s)
{
    return graph_add(g, &(struct node){.op = OP_expand, .nin = 1, .in = {a}}, s);
}

/* Omits steps that change nothing. */
ref n_broadcast(struct graph *g, ref a, const struct shape *s)
{
    if (g->err.code != KL_OK || a == NIL)
        return NIL;
    struct shape target = *s, from = *node_shape(g, a);
    if (from.rank > target.rank) {
        char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
        err_set(&g->err, KL_ERR_SHAPE, "broadcast: shape %s does not fit %s", shape_text_in(g, &from, ta, sizeof ta),
                shape_text_in(g, &target, tb, sizeof tb));
        return NIL;
    }
    struct shape aligned = {.rank = target.rank};
    for (uint32_t i = 0; i < target.rank; i++) {
        uint32_t lead = target.rank - from.rank;
        aligned.dim[i] = i < lead ? 1 : from.dim[i - lead];
    }
    if (aligned.rank != from.rank)
        a = n_reshape(g, a, &aligned);
    return shape_equal(&aligned, &target) ? a : n_expand(g, a, &target);
}

ref n_slice(struct graph *g, ref a, uint32_t axis, int64_t start, int64_t count, int64_t step)
{
    struct node n = {.op = OP_slice, .nin = 1, .in = {a},
                     .attr.slice = {.axis = axis, .start = start, .count = count, .step = step}};
    return graph_add(g, &n, NULL);
}

ref n_window(struct graph *g, ref a, uint32_t axis, int64_t size, int64_t stride, int64_t dilation)
{
    struct node n = {.op = OP_window, .nin = 1, .in = {a},
                     .attr.window = {.axis = axis, .size = size, .stride = stride, .dilation = dilation}};
    return graph_add(g, &n, NULL);
}

ref n_flip(struct graph *g, ref a, uint32_t axes)
{
    return graph_add(g, &(struct node){.op = OP_flip, .nin = 1, .in = {a}, .attr.flip.axes = axes}, NULL);
}

ref n_pad(struct graph *g, ref a, ref value, uint32_t axis, int64_t low, int64_t high, int64_t interior)
{
    struct node n = {.op = OP_pad, .nin = 2, .in = {a, value},
                     .attr.pad = {.axis = axis, .low = low, .high = high, .interior = interior}};
    return graph_add(g, &n, NULL);
}

/* Each node of the tree takes up to MAX_OPERANDS operands, so that the tree has minimal depth. */
ref n_concat(struct graph *g, const ref *a, unsigned n, uint32_t axis)
{
    if (n == 1)
        return a[0];
    unsigned part = 1;
    while (part * MAX_OPERANDS < n)
        part *= MAX_OPERANDS;
    struct node c = {.op = OP_concat, .attr.axis.axis = axis};
    for (unsigned i = 0; i < n; i += part)
        c.in[c.nin++] = n_concat(g, a + i, n - i < part ? n - i : part, axis);
    return graph_add(g, &c, NULL);
}

ref n_dynamic_slice(struct graph *g, ref a, ref start, uint32_t axis, int64_t count)
{
    struct node n = {.op = OP_dynamic_slice, .nin = 2, .in = {a, start}};
    n.attr.slice.axis = axis;
    n.attr.slice.count = count;
    return graph_add(g, &n, NULL);
}

ref n_dynamic_update(struct graph *g, ref a, ref update, ref start, uint32_t axis)
{
    struct node n = {.op = OP_dynamic_update, .nin = 3, .in = {a, update, start}, .attr.axis.axis = axis};
    return graph_add(g, &n, NULL);
}

ref n_gather(struct graph *g, ref a, ref index, uint32_t axis)
{
    return graph_add(g, &(struct node){.op = OP_gather, .nin = 2, .in = {a, index}, .attr.axis.axis = axis}, NULL);
}

ref n_scatter(struct graph *g, ref a, ref index, ref update, uint32_t axis, enum scatter_kind kind)
{
    struct node n = {.op = OP_scatter, .nin = 3, .in = {a, index, update}};
    n.attr.scatter.axis = axis;
    n.attr.scatter.kind = kind;
    return graph_add(g, &n, NULL);
}

ref n_argsort(struct graph *g, ref a, uint32_t axis, bool descending, unsigned dtype)
{
    struct node n = {.op = OP_argsort, .dtype = (uint8_t)dtype, .nin = 1, .in = {a}};
    n.attr.sort.axis = axis;
    n.attr.sort.descending = descending;
    return graph_add(g, &n, NULL);
}

ref n_bitcast(struct graph *g, ref a, unsigned dtype)
{
    return graph_add(g, &(struct node){.op = OP_bitcast, .dtype = (uint8_t)dtype, .nin = 1, .in = {a}}, NULL);
}

ref n_cast(struct graph *g, ref a, unsigned dtype)
{
    return graph_add(g, &(struct node){.op = OP_cast, .dtype = (uint8_t)dtype, .nin = 1, .in = {a}}, NULL);
}

ref n_quantize(struct graph *g, ref x, ref scale, ref zero)
{
    return graph_build_add(g, OP_quantize, 3, x, scale, zero);
}

ref n_dequantize(struct graph *g, ref q, ref scale, ref zero)
{
    return graph_build_add(g, OP_dequantize, 3, q, scale, zero);
}

ref n_reduce(struct graph *g, enum op op, ref a, uint32_t axes)
{
    struct node n = {.op = (uint16_t)op, .nin = 1, .in = {a}, .attr.reduce.axes = axes};
    return graph_add(g, &n, NULL);
}

ref n_cumulative(struct graph *g, enum op op, ref a, uint32_t axis)
{
    return graph_add(g, &(struct node){.op = (uint16_t)op, .nin = 1, .in = {a}, .attr.axis.axis = axis}, NULL);
}

ref n_recurrence(struct graph *g, ref a, ref b, uint32_t axis)
{
    return graph_add(g, &(struct node){.op = OP_recurrence, .nin = 2, .in = {a, b}, .attr.axis.axis = axis}, NULL);
}

ref n_shift(struct graph *g, ref a, ref value, uint32_t axis)
{
    if (g->err.code != KL_OK || a == NIL)
        return NIL;
    int64_t length = node_shape(g, a)->dim[axis], rest;
    if (length < 0 && !dim_at_most(g, 1, length)) /* the axis may be empty */
        return n_slice(g, n_pad(g, a, value, axis, 1, 0, 0), axis, 0, length, 1);
    return dims_sum(g, 1, &(struct scaled){length, 1}, -1, &rest)
               ? n_pad(g, n_slice(g, a, axis, 0, rest, 1), value, axis, 1, 0, 0)
               : a;
}

ref n_dot(struct graph *g, ref a, ref b, const union attr *dims)
{
    return graph_add(g, &(struct node){.op = OP_dot, .nin = 2, .in = {a, b}, .attr = *dims}, NULL);
}

ref n_finite_or_zero(struct graph *g, ref a)
{
    ref zero = n_k(g, a, 0), infinity = n_k(g, a, INFINITY), finite = n_lt(g, n_abs(g, a), infinity);
    return n_where(g, finite, a, zero);
}

ref n_attention(struct graph *g, ref q, ref k, ref v, ref seen, double scale, bool causal)
{
    struct node n = {.op = OP_attention, .nin = seen ? 4 : 3, .in = {q, k, v, seen}};
    n.attr.attention.scale = dtype_bits(KL_F64, scale);
    n.attr.attention.causal = causal;
    return graph_add(g, &n, NULL);
}

ref n_copy(struct graph *g, ref a, unsigned device)
{
    uint16_t before = g->cur_device;
    g->cur_device = (uint16_t)device;
    ref r = graph_build_add(g, OP_copy, 1, a, NIL, NIL);
    g->cur_device = before;
    return r;
}

ref n_grad(struct graph *g, ref loss, ref wrt)
{
    return graph_build_add(g, OP_grad, 2, loss, wrt, NIL);
}

ref n_proj(struct graph *g, ref region, uint32_t index)
{
    for (ref r = region + 1; region && r < g->nnode; r++)
        if (g->node[r].op == OP_proj && g->node[r].in[0] == region && g->node[r].attr.proj.index == index)
            return r;
    return graph_add(g, &(struct node){.op = OP_proj, .nin = 1, .in = {region}, .attr.proj.index = index}, NULL);
}

ref n_pick(struct graph *g, ref a, ref b)
{
    ref zero = n_k(g, a, 0), half = n_k(g, a, 0.5), tie = n_where(g, n_eq(g, a, b), half, zero);
    ref one = n_k(g, a, 1);
    return n_where(g, n_gt(g, a, b), one, tie);
}

/* Where the factor b is 0 the exponent is replaced, so that a second gradient has no infinity there. */
ref n_pow_slope(struct graph *g, ref a, ref b)
{
    ref huge = n_not(g, n_is_finite(g, n_recip(g, a))), zero = n_k(g, b, 0);
    ref less = n_sub(g, b, n_k(g, b, 1)), replaced = n_and(g, n_eq(g, b, zero), huge);
    return n_mul(g, b, n_pow(g, a, n_where(g, replaced, zero, less)));
}

ref n_pow_log(struct graph *g, ref a, ref b)
{
    ref positive = n_ge(g, b, n_k(g, b, 0)), flat = n_and(g, n_eq(g, a, n_k(g, a, 0)), positive);
    return n_log(g, n_where(g, flat, n_k(g, a, 1), a));
}

ref n_cos_of_asin(struct graph *g, ref a)
{
    ref one = n_k(g, a, 1), more = n_add(g, one, a);
    return n_sqrt(g, n_mul(g, n_sub(g, one, a), more));
}

ref n_hypot_or_one(struct graph *g, ref a, ref b)
{
    ref r = n_hypot(g, a, b), one = n_k(g, r, 1);
    return n_where(g, n_eq(g, r, n_k(g, r, 0)), one, r);
}
