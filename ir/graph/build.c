/* Builders: one function for each kind of node.  A NIL operand means that an error was recorded already. */
#include "ir/ir.h"
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
    ref tie = n_where(g, n_eq(g, a, b), n_k(g, a, 0.5), n_k(g, a, 0));
    return n_where(g, n_gt(g, a, b), n_k(g, a, 1), tie);
}

/* Where the factor b is 0 the exponent is replaced, so that a second gradient has no infinity there. */
ref n_pow_slope(struct graph *g, ref a, ref b)
{
    ref huge = n_not(g, n_is_finite(g, n_recip(g, a))), zero = n_k(g, b, 0);
    ref less = n_where(g, n_and(g, n_eq(g, b, zero), huge), zero, n_sub(g, b, n_k(g, b, 1)));
    return n_mul(g, b, n_pow(g, a, less));
}

ref n_pow_log(struct graph *g, ref a, ref b)
{
    ref flat = n_and(g, n_eq(g, a, n_k(g, a, 0)), n_ge(g, b, n_k(g, b, 0)));
    return n_log(g, n_where(g, flat, n_k(g, a, 1), a));
}

ref n_cos_of_asin(struct graph *g, ref a)
{
    ref one = n_k(g, a, 1);
    return n_sqrt(g, n_mul(g, n_sub(g, one, a), n_add(g, one, a)));
}

ref n_hypot_or_one(struct graph *g, ref a, ref b)
{
    ref r = n_hypot(g, a, b);
    return n_where(g, n_eq(g, r, n_k(g, r, 0)), n_k(g, r, 1), r);
}

/* ---- slices, pads and concats whose lengths have symbols ---- */

static int64_t length_along(const struct graph *g, ref r, uint32_t axis) { return node_shape(g, r)->dim[axis]; }

static bool has_elements_along(const struct graph *g, ref r, uint32_t axis)
{
    int64_t low, high;
    return dim_range(g, length_along(g, r, axis), &low, &high) && low > 0;
}

/* A slice of a symbolic number of elements, of an axis that has some: a gather of none is refused. */
static bool slices_from_start(const struct graph *g, const struct node *n)
{
    return n->op == OP_slice && n->attr.slice.start >= 0 && n->attr.slice.count < 0 &&
           has_elements_along(g, n->in[0], n->attr.slice.axis);
}

/* Is r a slice that begins at an index with symbols, but leaves a fixed number of elements after it?  *after: them. */
static bool slices_from_end(const struct graph *g, const struct node *n, int64_t *after)
{
    const struct node a = *n;
    if (n->op != OP_slice || n->attr.slice.start >= 0 || !n->attr.slice.count ||
        !has_elements_along(g, a.in[0], a.attr.slice.axis))
        return false;
    int64_t step = a.attr.slice.step;
    const struct scaled rest[] = {{length_along(g, a.in[0], a.attr.slice.axis), 1}, {a.attr.slice.start, -1},
                                  {a.attr.slice.count, -step}};
    return dims_sum(g, 3, rest, step - 1, after) && *after >= 0;
}

/* A pad of a symbolic axis to one whose length is a number. */
static bool pads_to_number(const struct graph *g, ref r)
{
    const struct node *n = node_at(g, r);
    return n->op == OP_pad && length_along(g, n->in[0], n->attr.pad.axis) < 0 &&
           length_along(g, r, n->attr.pad.axis) >= 0 && n->attr.pad.low >= 0 && !n->attr.pad.interior;
}

/* A pad to a symbolic length that has a number of elements at two of three places: before the operand, the operand
 * itself, after it.  The operand may not be empty: elements of it are read that are not used. */
static bool pads_to_symbolic(const struct graph *g, ref r)
{
    const struct node *n = node_at(g, r);
    if (n->op != OP_pad || n->attr.pad.interior || length_along(g, r, n->attr.pad.axis) >= 0)
        return false;
    int numbers = (n->attr.pad.low >= 0) + (n->attr.pad.high >= 0) + (length_along(g, n->in[0], n->attr.pad.axis) >= 0);
    return numbers == 2 && has_elements_along(g, n->in[0], n->attr.pad.axis);
}

/* A concat of one symbolic length and numbers of elements.  *which: the operand of that length. */
static bool joins_symbolic(const struct graph *g, ref r, unsigned *which)
{
    const struct node *n = node_at(g, r);
    unsigned symbolic = 0;
    bool all = n->op == OP_concat;
    for (unsigned i = 0; all && i < n->nin; i++) {
        all = has_elements_along(g, n->in[i], n->attr.axis.axis);
        if (length_along(g, n->in[i], n->attr.axis.axis) < 0) {
            *which = i;
            symbolic++;
        }
    }
    return all && symbolic == 1;
}

bool node_is_symbolic_part(const struct graph *g, ref r)
{
    int64_t after;
    unsigned which;
    return slices_from_start(g, node_at(g, r)) || slices_from_end(g, node_at(g, r), &after) || pads_to_number(g, r) ||
           pads_to_symbolic(g, r) || joins_symbolic(g, r, &which);
}

/* start, start + step, ..: so many indices. */
static ref row_numbers(struct graph *g, int64_t count, int64_t start, int64_t step)
{
    const struct shape s = shape_make(1, &count);
    ref i = n_iota(g, KL_I64, &s, 0);
    i = i && step != 1 ? n_mul(g, i, n_k(g, i, (double)step)) : i;
    return i && start ? n_add(g, i, n_k(g, i, (double)start)) : i;
}

static ref flip_axis(struct graph *g, ref x, uint32_t axis) { return n_flip(g, x, 1u << axis); }

/* The shape of x, but with another length of the axis. */
static struct shape shape_along(const struct graph *g, ref x, uint32_t axis, int64_t length)
{
    struct shape s = *node_shape(g, x);
    s.dim[axis] = length;
    return s;
}

/* The first `first` elements along an axis from a, the others from b, which is read from its element 0 at that index.
 * A gather clamps the indices of elements that are not selected. */
static ref select_from(struct graph *g, ref a, ref b, uint32_t axis, int64_t first, int64_t total)
{
    struct shape s = shape_along(g, b, axis, total);
    ref at = n_iota(g, KL_I64, &s, axis);
    ref y = n_gather(g, b, row_numbers(g, total, -first, 1), axis);
    return n_where(g, n_lt(g, at, n_k(g, at, (double)first)), a, y);
}

/* x after `low` elements of the value; of x's elements there are, up to the total, as many as x has, then it is the
 * value again. */
static ref pad_before(struct graph *g, ref x, ref value, uint32_t axis, int64_t low, int64_t total)
{
    int64_t length = length_along(g, x, axis);
    struct shape s = shape_along(g, x, axis, total);
    ref fill = n_broadcast(g, value, &s), y = select_from(g, fill, x, axis, low, total);
    if (length < 0)
        return y;
    ref at = n_iota(g, KL_I64, &s, axis);
    return n_where(g, n_lt(g, at, n_k(g, at, (double)(low + length))), y, fill);
}

static ref pad_to_symbolic(struct graph *to, const struct graph *from, ref r, ref x, ref value)
{
    const struct node n = *node_at(from, r);
    uint32_t axis = n.attr.pad.axis;
    int64_t total = length_along(from, r, axis), low = n.attr.pad.low, high = n.attr.pad.high, part = total;
    if (low < 0) /* counted from the end */
        return flip_axis(to, pad_before(to, flip_axis(to, x, axis), value, axis, high, total), axis);
    if (high < 0)
        return pad_before(to, x, value, axis, low, total);
    if (low && dims_sum(to, 2, (struct scaled[]){{total, 1}, {high, -1}}, 0, &part))
        x = pad_before(to, x, value, axis, low, part);
    return high ? flip_axis(to, pad_before(to, flip_axis(to, x, axis), value, axis, high, total), axis) : x;
}

/* a, which has a number of elements along the axis, then b. */
static ref join_two(struct graph *g, ref a, ref b, uint32_t axis)
{
    int64_t first = length_along(g, a, axis), total = 0;
    if (!a || !b || !dims_sum(g, 2, (struct scaled[]){{first, 1}, {length_along(g, b, axis), 1}}, 0, &total))
        return NIL;
    return select_from(g, n_gather(g, a, row_numbers(g, total, 0, 1), axis), b, axis, first, total);
}

static ref join_symbolic(struct graph *to, const struct node *n, unsigned which, const ref *map)
{
    uint32_t axis = n->attr.axis.axis;
    ref x = map[n->in[which]];
    for (unsigned i = which; i-- > 0;)
        x = join_two(to, map[n->in[i]], x, axis);
    for (unsigned i = which + 1; i < n->nin; i++)
        x = flip_axis(to, join_two(to, flip_axis(to, map[n->in[i]], axis), flip_axis(to, x, axis), axis), axis);
    return x;
}

ref n_symbolic_part(struct graph *to, const struct graph *from, ref r, const ref *map)
{
    const struct node *n = node_at(from, r);
    unsigned which;
    ref x = map[n->in[0]];
    if (joins_symbolic(from, r, &which))
        return join_symbolic(to, n, which, map);
    if (pads_to_symbolic(from, r))
        return pad_to_symbolic(to, from, r, x, map[n->in[1]]);
    int64_t count = n->attr.slice.count, step = n->attr.slice.step, after;
    if (slices_from_start(from, n))
        return n_gather(to, x, row_numbers(to, count, n->attr.slice.start, step), n->attr.slice.axis);
    if (slices_from_end(from, n, &after)) { /* counted from the end */
        uint32_t along = n->attr.slice.axis;
        x = flip_axis(to, x, along);
        x = count < 0 ? n_gather(to, x, row_numbers(to, count, after, step), along)
                      : n_slice(to, x, along, after, count, step);
        return flip_axis(to, x, along);
    }
    uint32_t axis = n->attr.pad.axis;
    ref rows = row_numbers(to, length_along(from, n->in[0], axis), n->attr.pad.low, 1);
    return n_scatter(to, n_broadcast(to, map[n->in[1]], node_shape(from, r)), rows, x, axis, SCATTER_SET);
}
