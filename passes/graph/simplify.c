/* Simplifies by rules that keep every bit of every value: no x+0, x*0, x-x.
 *
 * In: any graph.  Out: an equal graph; equal nodes are one node.  A graph with grad nodes is not changed: a gradient is
 * taken with respect to one node and not an equal one, and marks distinguish nodes.  Without grad nodes marks have no
 * meaning and are removed.
 *
 * One pass in execution order.  Each node is first rebuilt on its simplified operands, then the first rule that fits
 * replaces it, and what remains is looked up among the nodes that already exist (global value numbering by hashing; a
 * pass in execution order is enough for a graph without loops). */
#include "passes/passes.h"
#include "rewrite.h"
#include <string.h>

/* Open addressing over nodes.  The hashes are kept, so that other nodes are rarely looked at. */
struct numbering { struct numbered { ref node; uint32_t hash; } *slot; uint32_t mask, used; };

static ref simplify_canonicalize(struct numbering *v, struct graph *g, ref r, uint32_t seen);

static uint64_t node_key(const struct node *n)
{
    struct node c = *n;
    c.site = 0;
    return bytes_hash(&c, sizeof c).lo;
}

static bool same_node(const struct node *a, const struct node *b)
{
    struct node x = *a, y = *b;
    x.site = y.site = 0;
    return !memcmp(&x, &y, sizeof x);
}

static bool numbering_grow(struct numbering *v)
{
    uint32_t size = v->mask ? 2 * (v->mask + 1) : 256;
    struct numbered *slot = mem_alloc(size * sizeof *slot);
    if (!slot)
        return false;
    for (uint32_t i = 0; v->slot && i <= v->mask; i++)
        if (v->slot[i].node) {
            uint32_t h = v->slot[i].hash & (size - 1);
            while (slot[h].node)
                h = (h + 1) & (size - 1);
            slot[h] = v->slot[i];
        }
    mem_free(v->slot);
    v->slot = slot;
    v->mask = size - 1;
    return true;
}

/* The oldest node equal to r: r itself if it is the first.  Inputs, states and slots are equal if their ordinals
 * are. */
static ref simplify_number(struct numbering *v, struct graph *g, ref r)
{
    if (2 * (v->used + 1) > v->mask && !numbering_grow(v)) {
        err_set(&g->err, KL_ERR_MEMORY, "out of memory simplifying @%s", g->name);
        return r;
    }
    uint32_t hash = (uint32_t)node_key(&g->node[r]), h = hash & v->mask;
    for (; v->slot[h].node; h = (h + 1) & v->mask)
        if (v->slot[h].hash == hash && same_node(&g->node[v->slot[h].node], &g->node[r]))
            return v->slot[h].node;
    v->slot[h] = (struct numbered){r, hash};
    v->used++;
    return r;
}

static const struct node *simplify_operand(const struct graph *g, const struct node *n, unsigned i)
{
    return &g->node[n->in[i]];
}

/* A scalar elementwise op of constants is a constant. */
static ref fold_constants(struct graph *g, const struct node *n)
{
    if (g->shape[n->shape].rank || !n->nin || !(op_is_elementwise(n->op) || n->op == OP_cast))
        return NIL;
    const void *in[MAX_OPERANDS];
    for (unsigned i = 0; i < n->nin; i++) {
        if (simplify_operand(g, n, i)->op != OP_const)
            return NIL;
        in[i] = &simplify_operand(g, n, i)->attr.konst.bits; /* little-endian: the low bytes are the value */
    }
    uint64_t bits = 0;
    return interp_node(g, n, &bits, in) ? n_const(g, n->dtype, bits) : NIL;
}

/* Views of views, and views that change nothing. */
static ref simplify_view(struct graph *g, ref r, const struct node *n)
{
    const struct node a = *simplify_operand(g, n, 0); /* a copy: rules build nodes */
    if (n->shape == a.shape) {
        bool same = n->op != OP_permute && n->op != OP_flip;
        if (n->op == OP_permute) {
            same = true;
            for (uint32_t i = 0; i < g->shape[n->shape].rank; i++)
                same &= n->attr.permute.perm[i] == i;
        }
        if (same)
            return n->in[0];
    }
    struct shape s = *node_shape(g, r);
    if (n->op == OP_window && n->attr.window.size == 1) { /* every stride-th element, in a window of its own */
        uint32_t axis = n->attr.window.axis;
        int64_t count = s.dim[axis], length = node_shape(g, n->in[0])->dim[axis];
        int64_t stride = count == 1 ? 1 : n->attr.window.stride;
        return n_reshape(g, count != length ? n_slice(g, n->in[0], axis, 0, count, stride) : n->in[0], &s);
    }
    if (n->op != a.op || n->op == OP_window)
        return NIL;
    if (n->op == OP_reshape)
        return n_reshape(g, a.in[0], &s);
    if (n->op == OP_expand)
        return n_expand(g, a.in[0], &s);
    if (n->op == OP_flip) {
        uint32_t axes = n->attr.flip.axes ^ a.attr.flip.axes;
        return axes ? n_flip(g, a.in[0], axes) : a.in[0];
    }
    if (n->op == OP_slice) {
        if (n->attr.slice.axis != a.attr.slice.axis)
            return NIL;
        int64_t count = n->attr.slice.count, start = 0, step = 1;
        struct scaled first[] = {{a.attr.slice.start, 1}, {n->attr.slice.start, a.attr.slice.step}};
        if (count < 0 && !dim_at_most(g, 1, count)) /* an empty slice may start where the other may not */
            return NIL;
        if ((count && !dims_sum(g, 2, first, 0, &start)) ||
            (count != 0 && count != 1 && __builtin_mul_overflow(n->attr.slice.step, a.attr.slice.step, &step)))
            return NIL;
        return n_slice(g, a.in[0], a.attr.slice.axis, start, count, step);
    }
    uint8_t perm[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < s.rank; i++)
        perm[i] = a.attr.permute.perm[n->attr.permute.perm[i]];
    return n_permute(g, a.in[0], perm);
}

/* op(expand(a), expand(b)) computes the same numbers repeatedly; expand(op(a, b)) does not. */
static ref hoist_expand(struct numbering *v, struct graph *g, ref r, const struct node *n)
{
    if (!op_is_elementwise(n->op) && n->op != OP_cast)
        return NIL;
    for (unsigned i = 0; i < n->nin; i++)
        if (simplify_operand(g, n, i)->op != OP_expand ||
            node_shape(g, simplify_operand(g, n, i)->in[0]) != node_shape(g, simplify_operand(g, n, 0)->in[0]))
            return NIL;
    struct node small = *n;
    for (unsigned i = 0; i < n->nin; i++)
        small.in[i] = simplify_operand(g, n, i)->in[0];
    struct shape full = *node_shape(g, r);
    uint32_t seen = g->nnode;
    return n_expand(g, simplify_canonicalize(v, g, graph_add(g, &small, NULL), seen), &full);
}

/* Copies move as little as possible: nothing to the same device, no constants, and the operand of an expand instead of
 * its result. */
static ref simplify_copy(struct numbering *v, struct graph *g, ref r, const struct node *n)
{
    const struct node a = *simplify_operand(g, n, 0);
    struct shape full = *node_shape(g, r);
    if (a.device == n->device)
        return n->in[0];
    if (a.op == OP_copy)
        return n_copy(g, a.in[0], n->device);
    if (a.op == OP_const) {
        g->cur_device = n->device;
        return n_const(g, a.dtype, a.attr.konst.bits);
    }
    if (a.op != OP_expand && a.op != OP_reshape)
        return NIL;
    uint32_t seen = g->nnode;
    ref small = simplify_canonicalize(v, g, n_copy(g, a.in[0], n->device), seen);
    return a.op == OP_expand ? n_expand(g, small, &full) : n_reshape(g, small, &full);
}

/* Views whose elements are elements of the operand, each at most once. */
static bool moves_elements(unsigned op)
{
    return op == OP_permute || op == OP_reshape || op == OP_slice || op == OP_flip;
}

/* Does a cast between these float dtypes keep every value? */
static bool is_exact_cast(unsigned from, unsigned to)
{
    return (from == KL_BF16 || from == KL_F16) ? to == KL_F32 || to == KL_F64 : from == KL_F32 && to == KL_F64;
}

/* Is x a cast of bytes to i32 with only views around it? */
static bool is_widened(const struct graph *g, ref x)
{
    while (op_is_view(g->node[x].op))
        x = g->node[x].in[0];
    const struct node *n = &g->node[x];
    unsigned from = n->op == OP_cast ? simplify_operand(g, n, 0)->dtype : n->dtype;
    return n->op == OP_cast && n->dtype == KL_I32 && (from == KL_U8 || from == KL_I8);
}

/* The same views of the bytes. */
static ref strip_widening(struct numbering *v, struct graph *g, ref x)
{
    struct node n = g->node[x]; /* a copy: rules build nodes */
    struct shape s = *node_shape(g, x);
    if (n.op == OP_cast || n.op == OP_dequantize)
        return n.in[0];
    n.in[0] = strip_widening(v, g, n.in[0]);
    uint32_t seen = g->nnode;
    return simplify_canonicalize(v, g, graph_add(g, &n, n.op == OP_reshape || n.op == OP_expand ? &s : NULL), seen);
}

/* The dtype whose values r has in a wider one: r is a cast from it with views around that move no more than they keep;
 * KL_DTYPE_COUNT: none. */
static unsigned widened_from(const struct graph *g, ref r)
{
    while (moves_elements(g->node[r].op))
        r = g->node[r].in[0];
    const struct node *n = &g->node[r];
    unsigned from = n->op == OP_cast ? simplify_operand(g, n, 0)->dtype : KL_DTYPE_COUNT;
    return from != KL_DTYPE_COUNT && is_exact_cast(from, n->dtype) ? from : KL_DTYPE_COUNT;
}

/* A concatenation of casts from one narrower dtype is a cast of the concatenation, which moves fewer bytes. */
static ref simplify_concat(struct numbering *v, struct graph *g, const struct node *n)
{
    struct node narrow = *n;
    unsigned from = n->op == OP_concat ? widened_from(g, n->in[0]) : KL_DTYPE_COUNT;
    for (unsigned i = 0; i < n->nin && from != KL_DTYPE_COUNT; i++)
        from = widened_from(g, n->in[i]) == from ? from : KL_DTYPE_COUNT;
    if (from == KL_DTYPE_COUNT)
        return NIL;
    for (unsigned i = 0; i < n->nin; i++)
        narrow.in[i] = strip_widening(v, g, n->in[i]);
    uint32_t seen = g->nnode;
    return n_cast(g, simplify_canonicalize(v, g, graph_add(g, &narrow, NULL), seen), n->dtype);
}

/* The constant that r is, or is a view of; NULL: none. */
static const struct node *constant_of(const struct graph *g, ref r)
{
    while (op_is_view(g->node[r].op))
        r = g->node[r].in[0];
    return g->node[r].op == OP_const ? &g->node[r] : NULL;
}

/* +0 in x's dtype and shape. */
static ref zero_like(struct numbering *v, struct graph *g, ref x)
{
    struct shape full = *node_shape(g, x), one = {.rank = full.rank};
    for (uint32_t d = 0; d < one.rank; d++)
        one.dim[d] = 1;
    uint32_t seen = g->nnode;
    ref zero = simplify_canonicalize(v, g, n_const(g, g->node[x].dtype, 0), seen);
    seen = g->nnode;
    zero = simplify_canonicalize(v, g, n_reshape(g, zero, &one), seen);
    seen = g->nnode;
    return simplify_canonicalize(v, g, n_expand(g, zero, &full), seen);
}

/* A cast's result plus 0: the cast of a sum in the narrower dtype, which is as exact.  Its reader may cast back. */
static ref simplify_cast_plus_zero(struct numbering *v, struct graph *g, const struct node *n)
{
    for (unsigned i = 0; n->op == OP_add && i < 2; i++) {
        const struct node a = *simplify_operand(g, n, i); /* a copy: rules build nodes */
        const struct node *zero = constant_of(g, n->in[1 - i]);
        if (a.op != OP_cast || !is_exact_cast(g->node[a.in[0]].dtype, a.dtype) || !zero || zero->attr.konst.bits)
            continue;
        ref none = zero_like(v, g, a.in[0]);
        uint32_t seen = g->nnode;
        return n_cast(g, simplify_canonicalize(v, g, n_add(g, a.in[0], none), seen), n->dtype);
    }
    return NIL;
}

/* A product of bytes that were cast to i32: the same sums from operands of a quarter of the size. */
static ref simplify_dot(struct numbering *v, struct graph *g, const struct node *n)
{
    struct node bytes = *n;
    if (n->op != OP_dot || !is_widened(g, n->in[0]) || !is_widened(g, n->in[1]))
        return NIL;
    bytes.attr.dot.sum = KL_I32;
    bytes.in[0] = strip_widening(v, g, n->in[0]);
    bytes.in[1] = strip_widening(v, g, n->in[1]);
    return graph_add(g, &bytes, NULL);
}

static bool is_same_constant(const struct graph *g, ref a, ref b)
{
    const struct node *x = constant_of(g, a), *y = constant_of(g, b);
    return x && y && x->dtype == y->dtype && x->attr.konst.bits == y->attr.konst.bits;
}

/* Bytes that were dequantized, moved, and are quantized by the same constants are the bytes, moved: with k = q - zero,
 * k scale / scale differs from k by two roundings, less than 255 2^-23 in all, so the nearest integer is k.  A scale
 * whose products may be subnormal or too large is left. */
static ref simplify_requantize(struct numbering *v, struct graph *g, const struct node *n)
{
    ref r = n->op == OP_quantize ? n->in[0] : NIL;
    while (r && moves_elements(g->node[r].op))
        r = g->node[r].in[0];
    const struct node *d = &g->node[r];
    if (!r || d->op != OP_dequantize || d->dtype != KL_F32 || simplify_operand(g, d, 0)->dtype != n->dtype ||
        !is_same_constant(g, n->in[1], d->in[1]) || !is_same_constant(g, n->in[2], d->in[2]))
        return NIL;
    const struct node *number = constant_of(g, n->in[1]);
    double scale = dtype_value(number->dtype, number->attr.konst.bits);
    return scale >= 0x1p-100 && scale <= 0x1p100 ? strip_widening(v, g, n->in[0]) : NIL;
}

/* ---- casts to a narrower dtype ---- */

/* Of the readers of each node, behind views: the dtype that all of them cast it to, and the elements of these casts. */
struct narrow_uses { uint8_t *dtype; int64_t *elements; };
enum { NO_USE = KL_DTYPE_COUNT, OTHER_USES };

static void note_use(struct narrow_uses *u, const struct graph *g, ref operand, const struct node *n, ref r)
{
    unsigned dtype = OTHER_USES;
    int64_t elements = 0;
    if (n->op == OP_cast && is_exact_cast(n->dtype, g->node[operand].dtype)) {
        dtype = n->dtype;
        elements = node_numel(g, r);
    } else if (moves_elements(n->op)) {
        dtype = u->dtype[r];
        elements = u->elements[r];
    }
    if (dtype == NO_USE)
        return;
    u->dtype[operand] = u->dtype[operand] == NO_USE || u->dtype[operand] == dtype ? (uint8_t)dtype : OTHER_USES;
    u->elements[operand] += elements;
}

static bool find_narrow_uses(struct narrow_uses *u, const struct graph *g)
{
    u->dtype = mem_alloc(g->nnode * sizeof *u->dtype);
    u->elements = mem_alloc(g->nnode * sizeof *u->elements);
    if (!u->dtype || !u->elements)
        return false;
    memset(u->dtype, NO_USE, g->nnode);
    for (uint32_t i = 0; i < g->nout; i++)
        u->dtype[g->out[i].value] = OTHER_USES;
    for (ref r = g->nnode; r-- > 1;)
        for (unsigned i = 0; i < node_nin(&g->node[r]); i++)
            note_use(u, g, node_in(g, &g->node[r], i), &g->node[r], r);
    return true;
}

/* Is r a cast of views of a computed x that is read in no other dtype, and in whole?  x is then computed in it. */
static bool casts_all_of_x(const struct narrow_uses *u, const struct graph *g, ref r)
{
    const struct node *n = &g->node[r];
    ref x = n->op == OP_cast ? n->in[0] : NIL;
    if (!x || !is_exact_cast(n->dtype, g->node[x].dtype) || !moves_elements(g->node[x].op))
        return false;
    while (moves_elements(g->node[x].op))
        x = g->node[x].in[0];
    return g->node[x].nin && u->dtype[x] == n->dtype && !shape_is_symbolic(node_shape(g, x)) &&
           u->elements[x] >= node_numel(g, x);
}

static bool repeats_or_moves_elements(unsigned op) { return op == OP_window || moves_elements(op); }

/* The views x of a node as views of the node's cast. */
static ref cast_below_views(struct numbering *v, struct graph *g, ref x, unsigned dtype)
{
    struct node n = g->node[x]; /* a copy: rules build nodes */
    struct shape s = *node_shape(g, x);
    uint32_t seen = g->nnode;
    if (!repeats_or_moves_elements(n.op))
        return simplify_canonicalize(v, g, n_cast(g, x, dtype), seen);
    n.in[0] = cast_below_views(v, g, n.in[0], dtype);
    n.dtype = (uint8_t)dtype;
    seen = g->nnode;
    return simplify_canonicalize(v, g, graph_add(g, &n, n.op == OP_reshape ? &s : NULL), seen);
}

/* Are there more elements in the views x than in what they are views of, as in windows of an image? */
static bool views_repeat_elements(const struct graph *g, ref x)
{
    int64_t n = shape_is_symbolic(node_shape(g, x)) ? 0 : node_numel(g, x);
    while (repeats_or_moves_elements(g->node[x].op))
        x = g->node[x].in[0];
    return !shape_is_symbolic(node_shape(g, x)) && node_numel(g, x) < n;
}

/* A cast of views that repeat elements: views of the cast, which is computed once for each element, and which products
 * read as windows.  A cast of a permuted input or state: the permute of its cast, which is stored in the order in which
 * the array lies.  Products read either order; a kernel that casts and permutes reads or stores with a stride. */
static ref simplify_cast(struct numbering *v, struct graph *g, const struct node *n)
{
    const struct node a = *(n->nin ? simplify_operand(g, n, 0) : n);
    if (n->op == OP_cast && views_repeat_elements(g, n->in[0]))
        return cast_below_views(v, g, n->in[0], n->dtype);
    if (n->op != OP_cast || a.op != OP_permute || !node_is_stored_leaf(g, a.in[0]))
        return NIL;
    uint32_t seen = g->nnode;
    ref cast = simplify_canonicalize(v, g, n_cast(g, a.in[0], n->dtype), seen);
    struct node permute = a;
    permute.in[0] = cast;
    permute.dtype = n->dtype;
    return graph_add(g, &permute, NULL);
}

static ref simplify_math(struct graph *g, const struct node *n)
{
    const struct node *a = n->nin ? simplify_operand(g, n, 0) : NULL;
    switch (n->op) {
    case OP_neg: /* -(-x) */
    case OP_not:
        return a->op == n->op ? a->in[0] : NIL;
    case OP_mul: /* x*1 and 1*x are x, also for NaN and -0 */
        return node_is_const(g, n->in[1], 1) ? n->in[0] : node_is_const(g, n->in[0], 1) ? n->in[1] : NIL;
    case OP_div:
        return node_is_const(g, n->in[1], 1) ? n->in[0] : NIL;
    case OP_add: /* a + (-b) is a - b; both round the same exact value */
        return simplify_operand(g, n, 1)->op == OP_neg ? n_sub(g, n->in[0], simplify_operand(g, n, 1)->in[0]) : NIL;
    case OP_sub:
        return simplify_operand(g, n, 1)->op == OP_neg ? n_add(g, n->in[0], simplify_operand(g, n, 1)->in[0]) : NIL;
    case OP_where: /* both branches equal */
        return n->in[1] == n->in[2] ? n->in[1] : NIL;
    case OP_cast: /* to a wider dtype and back; a leaf may have a signaling NaN, which a cast makes quiet */
        if (a->op == OP_cast && simplify_operand(g, a, 0)->dtype == n->dtype && is_exact_cast(n->dtype, a->dtype) &&
            simplify_operand(g, a, 0)->nin)
            return a->in[0];
        return a->dtype == n->dtype ? n->in[0] : NIL;
    case OP_bitcast:
        return a->dtype == n->dtype ? n->in[0] : NIL;
    case OP_pad: /* no new elements */
        return a->shape == n->shape ? n->in[0] : NIL;
    default:
        return NIL;
    }
}

static ref simplify_node(struct numbering *v, struct graph *g, ref r)
{
    const struct node n = g->node[r]; /* a copy: rules build nodes */
    ref s = NIL;
    if (n.nin)
        s = fold_constants(g, &n);
    if (!s && op_is_view(n.op))
        s = simplify_view(g, r, &n);
    if (!s && n.op == OP_copy)
        s = simplify_copy(v, g, r, &n);
    if (!s)
        s = simplify_math(g, &n);
    if (!s)
        s = simplify_dot(v, g, &n);
    if (!s)
        s = simplify_requantize(v, g, &n);
    if (!s)
        s = simplify_concat(v, g, &n);
    if (!s)
        s = simplify_cast_plus_zero(v, g, &n);
    if (!s)
        s = simplify_cast(v, g, &n);
    if (!s && n.nin)
        s = hoist_expand(v, g, r, &n);
    return s;
}

/* Applies rules to r until none matches, then numbers it.  Nodes from `seen` on are not numbered yet.  Each rule makes
 * a node smaller or moves it nearer to the leaves, so this terminates. */
static ref simplify_canonicalize(struct numbering *v, struct graph *g, ref r, uint32_t seen)
{
    for (ref s; r && (s = simplify_node(v, g, r)) && s != r;)
        r = s;
    return r >= seen ? simplify_number(v, g, r) : r;
}

int pass_simplify(struct graph *g, const struct pass_options *o)
{
    (void)o;
    struct rewrite w;
    struct numbering v = {0};
    struct narrow_uses uses = {0};
    if (rewrite_begin(&w, g)) {
        if (!find_narrow_uses(&uses, g))
            err_set(&g->err, KL_ERR_MEMORY, "out of memory simplifying @%s", g->name);
        for (ref r = 1; r < g->nnode && !w.to->err.code && !g->err.code; r++) {
            rewrite_site(&w, r);
            if (casts_all_of_x(&uses, g, r)) {
                w.map[r] = cast_below_views(&v, w.to, w.map[g->node[r].in[0]], g->node[r].dtype);
                continue;
            }
            uint32_t seen = w.to->nnode;
            ref copy = rewrite_copy(&w, r);
            if (copy)
                w.to->node[copy].flags &= (uint16_t)~(MARK_STOP | MARK_HIDDEN);
            w.map[r] = simplify_canonicalize(&v, w.to, copy, seen);
        }
    }
    mem_free(v.slot);
    mem_free(uses.dtype);
    mem_free(uses.elements);
    return rewrite_end(&w);
}
