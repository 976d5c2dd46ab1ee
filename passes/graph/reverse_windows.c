/* The gradients of a convolution: of a product with windows, with respect to the tensor of the windows and to weights.
 *
 * By the ops' own rules, a gradient would flow to every window and then be summed where windows overlap: the arrays are
 * larger than x by the number of elements of a window.  But the gradient of x is itself a convolution, of dy with zeros
 * around it, and between its elements if not each position has a window, and the flipped weights (Dumoulin and Visin
 * 2016, "A guide to convolution arithmetic", 4).  It is one product with its own order of additions, and again a
 * product with windows, so that second gradients are recognised, too.  Windows that are rounded to a shorter float, as
 * autocast does, are recognised likewise: the gradient is a product of these floats, rounded once.
 *
 * A transposed convolution with steps has windows of x with zeros between its elements.  Both of its gradients read
 * windows of dy instead, one for each element of x, and multiply no zeros: that in x is a convolution of dy with this
 * stride, that in the weights a product of x with these windows.
 *
 * A filter's gradient is a sum over all positions.  Where few filters share a window, as in depthwise and grouped
 * convolutions, it is a product for each column of the images, of which a processor's lanes compute adjacent ones, and
 * then the sum of these. */
#include "passes/passes.h"
#include "reverse_windows.h"
#include <string.h>

static bool has_gaps(const struct windowed *w)
{
    bool any = false;
    for (uint32_t i = 0; i < w->n; i++)
        any |= w->gap[i] > 1;
    return any;
}

/* Is r, [N, groups, depth * size, ..], made of the windows along axis `at` of another node, *from? */
static bool window_axis(const struct graph *g, ref r, uint32_t at, ref *from, struct windowed *w)
{
    const struct node *merge = &g->node[r];
    if (merge->op != OP_reshape)
        return false;
    const struct node *move = &g->node[merge->in[0]];
    if (move->op != OP_permute)
        return false;
    const struct node *window = &g->node[move->in[0]];
    if (window->op != OP_window || window->attr.window.axis != at)
        return false;
    const struct shape *s = &g->shape[merge->shape], *m = &g->shape[move->shape];
    const int64_t size = window->attr.window.size;
    *from = window->in[0];
    w->size[at - BEFORE] = size;
    w->stride[at - BEFORE] = window->attr.window.stride;
    w->dilation[at - BEFORE] = window->attr.window.dilation;
    bool same = m->rank == s->rank + 1 && m->dim[BEFORE] == size;
    for (uint32_t d = 0; d < m->rank && same; d++) {
        same = move->attr.permute.perm[d] == (d < BEFORE ? d : d == BEFORE ? m->rank - 1 : d - 1);
        if (d < BEFORE)
            same &= s->dim[d] == (d == BEFORE - 1 ? m->dim[d] * size : m->dim[d]);
        else if (d > BEFORE)
            same &= s->dim[d - 1] == m->dim[d];
    }
    return same;
}

/* Follows the pads with zeros around x and between its elements. */
static void find_pads(struct graph *g, struct windowed *w)
{
    bool follow = true;
    for (uint32_t i = w->n; i-- > 0;) {
        const struct node *p = &g->node[w->x];
        const uint32_t axis = BEFORE - 1 + i;
        w->gap[i] = 1;
        if (!follow || p->op != OP_pad || p->attr.pad.axis != axis)
            continue;
        const bool apart = p->attr.pad.interior > 0, known = node_shape(g, p->in[0])->dim[axis] > 0;
        if (apart && w->stride[i] == 1 && !known)
            graph_depends_on_values(g, "which gradient a convolution of spread images has depends on their sizes");
        follow = p->attr.pad.low >= 0 && p->attr.pad.high >= 0 && node_is_const(g, p->in[1], 0) &&
                 (!apart || (w->stride[i] == 1 && known));
        if (!follow)
            continue;
        w->low[i] = p->attr.pad.low;
        w->high[i] = p->attr.pad.high;
        w->gap[i] = 1 + p->attr.pad.interior;
        w->x = p->in[0];
    }
}

/* What r rounds to a shorter float, or r. */
static ref before_rounding(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r];
    bool rounds = n->op == OP_cast && dtype_is_float(n->dtype) && dtype_is_float(g->node[n->in[0]].dtype) &&
                  dtype_size(n->dtype) < dtype_size(g->node[n->in[0]].dtype);
    return rounds ? n->in[0] : r;
}

static bool find_windows(struct graph *g, const struct node *y, struct windowed *w)
{
    const union attr *dims = &y->attr;
    *w = (struct windowed){.n = node_shape(g, y->in[1])->rank - BEFORE};
    if (dims->dot.nbatch != 1 || dims->dot.ncon != 1 || dims->dot.batch_a || axis_get(dims->dot.batch_b, 0) != 1 ||
        axis_get(dims->dot.con_a, 0) != 2 || axis_get(dims->dot.con_b, 0) != 2 || w->n < 1 || w->n > MAX_AXES ||
        node_shape(g, y->in[0])->rank != 3)
        return false;
    ref r = before_rounding(g, y->in[1]);
    int64_t elements = 1;
    for (uint32_t i = w->n; i-- > 0; elements *= w->size[i])
        if (!window_axis(g, r, BEFORE + i, &r, w))
            return false;
    const struct shape *s = node_shape(g, r), *x;
    if (elements == 1 || g->node[r].op != OP_reshape)
        return false;
    if (s->dim[1] < 0 || s->dim[2] < 0 || node_shape(g, y->in[0])->dim[1] < 0) {
        graph_depends_on_values(g, "which gradient a convolution has depends on how many channels it has");
        return false;
    }
    w->x = g->node[r].in[0];
    x = node_shape(g, w->x);
    if (x->rank != s->rank - 1 || x->dim[0] != s->dim[0] || x->dim[1] != s->dim[1] * s->dim[2] ||
        memcmp(&x->dim[2], &s->dim[3], w->n * sizeof *x->dim) != 0)
        return false;
    find_pads(g, w);
    return true;
}

/* The rest of a length divided by `by`, if it is the same whatever the symbols' values; else -1. */
static int64_t length_rest(const struct graph *g, int64_t length, int64_t by)
{
    struct affine a;
    if (length >= 0)
        return length % by;
    bool known = dim_affine(g, length, &a);
    for (uint32_t i = 0; known && i < a.n; i++)
        known = a.term[i].by % by == 0;
    return known ? (a.constant % by + by) % by : -1;
}

static bool has_strides(const struct windowed *w)
{
    bool any = false;
    for (uint32_t i = 0; i < w->n; i++)
        any |= w->stride[i] > 1;
    return any;
}

/* Are y's operands of f32, or of half floats, which a processor's direct convolution widens? */
static bool may_be_direct(const struct graph *g, const struct node *y, bool gpu)
{
    return y->dtype == g->node[y->in[1]].dtype && (y->dtype == KL_F32 || (!gpu && dtype_is_half(y->dtype)));
}

/* How the gradient in x is computed: by summing the gradients of windows, by one convolution of dy, or by one for each
 * phase of x's positions (reverse_phases.c). */
enum gradient_form { SUM_WINDOWS, ONE_CONVOLUTION, PHASES };

/* If a filter has few inputs, few rows share a window of dy, and summing the gradients of windows is faster, unless
 * most of these belong to zeros between x's elements.  With strides there are zeros between dy's elements: where few
 * rows share a window a kernel of a processor leaves out products with these (lower_direct.c), and with one row a
 * kernel is limited by memory; other products are computed by phases.  gpu: one computes all products. */
static enum gradient_form choose_form(struct graph *g, const struct node *y, const struct windowed *w, bool gpu)
{
    enum { FILTERS_PER_INPUT = 4, FEW_INPUTS = 32, MANY_POSITIONS = 128 };
    const struct shape *a = node_shape(g, y->in[0]), *b = node_shape(g, y->in[1]);
    int64_t depth = node_shape(g, w->x)->dim[1] / (b->dim[1] ? b->dim[1] : 1), elements = a->dim[1];
    int64_t positions = 1;
    bool known = true, sized = true;
    for (uint32_t i = 0; i < w->n; i++) {
        elements *= w->size[i];
        known &= length_rest(g, node_shape(g, w->x)->dim[2 + i], w->stride[i]) >= 0;
        sized &= b->dim[BEFORE + i] >= 0 && node_shape(g, w->x)->dim[2 + i] >= 0;
        positions *= sized ? b->dim[BEFORE + i] * (node_shape(g, w->x)->dim[2 + i] > 0) : 1;
    }
    if (!has_strides(w))
        return has_gaps(w) || a->dim[1] <= FILTERS_PER_INPUT * depth ? ONE_CONVOLUTION : SUM_WINDOWS;
    const bool one = may_be_direct(g, y, gpu) && depth <= (gpu ? 1 : FEW_INPUTS) && elements <= DOT_BLOCK;
    const bool phases = !gpu && a->dim[1] <= FILTERS_PER_INPUT * depth;
    if (!one && !(phases && windows_have_phases(w, depth)))
        return SUM_WINDOWS;
    if (one ? !known : !sized) {
        graph_depends_on_values(g, "which gradient a convolution with strides has depends on its sizes");
        return SUM_WINDOWS;
    }
    return one ? ONE_CONVOLUTION : positions >= MANY_POSITIONS ? PHASES : SUM_WINDOWS;
}

/* a [groups, filters, depth * size..] as [groups, depth, filters * size..], windows in reverse order; and, the two
 * numbers exchanged, the reverse of it. */
static ref flipped_weights(struct graph *g, ref a, const struct windowed *w, int64_t depth)
{
    struct shape s = *node_shape(g, a), flat = s;
    uint8_t perm[KL_MAX_RANK] = {0, 2, 1};
    uint32_t axes = 0;
    flat.dim[1] = depth;
    flat.dim[2] = s.dim[1];
    s.dim[2] = depth;
    for (uint32_t i = 0; i < w->n; i++) {
        s.dim[s.rank++] = w->size[i];
        flat.dim[2] *= w->size[i];
        axes |= 1u << (BEFORE + i);
        perm[BEFORE + i] = (uint8_t)(BEFORE + i);
    }
    return n_reshape(g, n_permute(g, n_flip(g, n_reshape(g, a, &s), axes), perm), &flat);
}

/* [first, second, third, ...] as [third, first, second, ...]: moves groups and filters before the batch, or after
 * it. */
static ref batch_first(struct graph *g, ref r)
{
    uint8_t perm[KL_MAX_RANK] = {2, 0, 1};
    for (uint32_t d = BEFORE; d < node_shape(g, r)->rank; d++)
        perm[d] = (uint8_t)d;
    return n_permute(g, r, perm);
}

/* dy [groups, filters, N, O...] as windows [N, groups, filters * size.., L...], one for each element of x, which has
 * the shape *like: of each element of dy, or, if there are zeros between x's elements, where these are. */
static ref windows_of_gradient(struct graph *g, ref dy, const struct windowed *w, const struct shape *like)
{
    struct shape s = *node_shape(g, dy);
    ref zero = n_const(g, node_at(g, dy)->dtype, dtype_bits(node_at(g, dy)->dtype, 0)), r = batch_first(g, dy);
    int64_t groups = s.dim[0], filters = s.dim[1];
    s.dim[0] = s.dim[2];
    s.dim[1] = groups * filters;
    memmove(&s.dim[2], &s.dim[3], w->n * sizeof *s.dim);
    s.rank--;
    r = n_reshape(g, r, &s);
    for (uint32_t i = 0; i < w->n; i++) {
        int64_t reach = (w->size[i] - 1) * w->dilation[i], high = reach - w->high[i];
        if (w->stride[i] > 1) /* of elements behind the last window, too */
            high += (length_rest(g, like->dim[2 + i], w->stride[i]) + w->low[i] + w->high[i] +
                     (reach + 1) * (w->stride[i] - 1)) % w->stride[i]; /* modulo the stride, - (reach + 1) */
        if (reach > w->low[i] || high > 0 || w->stride[i] > 1)
            r = n_pad(g, r, zero, 2 + i, reach - w->low[i], high, w->stride[i] - 1);
    }
    s = *node_shape(g, r);
    memmove(&s.dim[3], &s.dim[2], w->n * sizeof *s.dim);
    s.rank++;
    s.dim[1] = groups;
    s.dim[2] = filters;
    r = n_reshape(g, r, &s);
    for (uint32_t i = 0; i < w->n; i++) {
        uint8_t perm[KL_MAX_RANK] = {0, 1, 2, (uint8_t)s.rank};
        for (uint32_t d = BEFORE; d < s.rank; d++)
            perm[d + 1] = (uint8_t)d;
        r = n_window(g, r, BEFORE + i, w->size[i], w->gap[i], w->dilation[i]);
        s.dim[2] *= w->size[i];
        s.dim[BEFORE + i] = node_shape(g, r)->dim[BEFORE + i];
        r = n_reshape(g, n_permute(g, r, perm), &s);
    }
    return r;
}

static bool reaches_far(const struct windowed *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        int64_t reach = (w->size[i] - 1) * w->dilation[i];
        if (w->low[i] > reach || w->high[i] > reach)
            return false;
    }
    return true;
}

/* Is there no other gradient request between x and the product? */
static bool is_only_path(const struct reverse *v, ref from, ref x)
{
    for (ref r = from; r != x; r = v->t->node[r].in[0])
        if (v->wanted[r] || v->t->node[r].flags & MARK_STOP)
            return false;
    return true;
}

static ref cast_to(struct graph *g, ref r, unsigned dtype)
{
    return g->node[r].dtype == dtype ? r : n_cast(g, r, dtype);
}

ref windows_convolution(struct graph *g, ref a, ref dy, const struct windowed *w, const struct shape *like,
                        const union attr *dims)
{
    union attr free_order = *dims; /* its order is that of its own length */
    free_order.dot.lanes = 0, free_order.dot.kblock = 0, free_order.dot.order &= DOT_ANY_SIZE;
    const int64_t groups = node_shape(g, a)->dim[0];
    ref rows = cast_to(g, flipped_weights(g, a, w, groups ? like->dim[1] / groups : 0), g->node[dy].dtype);
    return n_dot(g, rows, windows_of_gradient(g, dy, w, like), &free_order);
}

bool reverse_windows(struct reverse *v, ref y, ref dy)
{
    struct graph *g = v->t;
    const struct node n = g->node[y];
    struct windowed w;
    if (n.op != OP_dot || !v->needed[n.in[1]] || !find_windows(g, &n, &w) || !reaches_far(&w) ||
        !is_only_path(v, n.in[1], w.x))
        return false;
    const enum gradient_form form = choose_form(g, &n, &w, v->gpus >> n.device & 1);
    if (form == SUM_WINDOWS)
        return false;
    const struct shape x = *node_shape(g, w.x);
    /* rounded behind the flip, weights are stored as the product reads them: halves in pairs */
    ref a = before_rounding(g, n.in[0]);
    union attr dims = n.attr;
    if (form == ONE_CONVOLUTION && has_strides(&w)) { /* of half floats a product of f32, which no processor adds in */
        a = n.in[0];                                  /* pairs: it is a direct one */
        dy = cast_to(g, dy, KL_F32);
        dims.dot.order = 0;
    }
    ref dx = form == PHASES ? windows_phases(g, a, dy, &w, &x, &dims)
                            : n_reshape(g, batch_first(g, windows_convolution(g, a, dy, &w, &x, &dims)), &x);
    reverse_add(v, w.x, cast_to(g, cast_to(g, dx, n.dtype), g->node[w.x].dtype));
    return true;
}

/* ---- weights ---- */

/* Is the length at least `limit`?  Where that depends on symbols, each of both cases has a program. */
static bool length_reaches(const struct graph *g, int64_t length, int64_t limit)
{
    int64_t low = 0, high;
    graph_depends_on(g, &length, 1, limit, "which gradient a convolution has depends on its sizes");
    return dim_range(g, length, &low, &high) && low >= limit;
}

/* Are rows few in each of several groups, and have windows b [N, groups, .., O...] columns enough for lanes? */
static bool columns_pay(const struct graph *g, int64_t groups, int64_t rows, const struct shape *b)
{
    enum { MAX_FILTERS = 8, MIN_COLUMNS = 4 };
    if (rows > MAX_FILTERS || groups == 1)
        return false;
    if (groups < 0 || rows < 0 || b->dim[2] < 0) {
        graph_depends_on_values(g, "which gradient a convolution has depends on how many channels it has");
        return false;
    }
    return length_reaches(g, b->dim[b->rank - 1], MIN_COLUMNS);
}

/* Does y multiply few filters, a [groups, filters, ..], with windows b [N, groups, .., O...] that have columns enough
 * for lanes? */
static bool sums_by_columns(const struct graph *g, const struct node *y, bool gpu)
{
    const union attr *dims = &y->attr;
    const struct shape *a = node_shape(g, y->in[0]), *b = node_shape(g, y->in[1]);
    if (!may_be_direct(g, y, gpu) || a->rank != BEFORE || b->rank <= BEFORE ||
        b->rank > BEFORE + MAX_AXES || dims->dot.nbatch != 1 || dims->dot.ncon != 1 || dims->dot.batch_a ||
        axis_get(dims->dot.batch_b, 0) != 1 || axis_get(dims->dot.con_a, 0) != 2 || axis_get(dims->dot.con_b, 0) != 2)
        return false;
    bool windows = false;
    for (ref r = y->in[1]; op_is_view(g->node[r].op); r = g->node[r].in[0])
        windows |= g->node[r].op == OP_window && g->node[r].attr.window.size > 1;
    return windows && columns_pay(g, a->dim[0], a->dim[1], b);
}

/* The axes of windows b [N, groups, .., O...] that are contracted, by bits: the last ones before the columns whose
 * lengths make a block of the order at most.  Of small images all of them are, and N, too, in as many blocks as there
 * are; of others each image has sums of its own, so that there are enough for all threads.  N has no say in it: what
 * the order is does not depend on how many images there are. */
static uint32_t axes_of_sums(const struct graph *g, const struct shape *b)
{
    enum { FEW_ROWS = 64 };
    const char *why = "which gradient a convolution has depends on its sizes";
    uint32_t axes = 0, d = b->rank - 1;
    int64_t rows[MAX_AXES], high = 1;
    for (unsigned n = 0; d > BEFORE; n++) {
        int64_t low = 0, length = 0;
        rows[n] = b->dim[d - 1];
        graph_depends_on(g, rows, n + 1, DOT_BLOCK + 1, why);
        if (!dim_range(g, rows[n], &low, &length) || __builtin_mul_overflow(high, length, &high) || high > DOT_BLOCK)
            return axes;
        axes |= 1u << --d;
    }
    graph_depends_on(g, rows, b->rank - BEFORE - 1, FEW_ROWS + 1, why);
    return axes | (high <= FEW_ROWS);
}

/* Lists of axes of two operands that belong together. */
struct axis_pairs { unsigned n; uint32_t a, b; };

static void pair_axes(struct axis_pairs *p, uint32_t a, uint32_t b)
{
    p->a |= a << 4 * p->n;
    p->b |= b << 4 * p->n++;
}

static union attr dims_of(const struct axis_pairs *batch, const struct axis_pairs *contracted)
{
    union attr dims = {.dot = {.nbatch = (uint8_t)batch->n, .ncon = (uint8_t)contracted->n}};
    dims.dot.batch_a = batch->a, dims.dot.batch_b = batch->b;
    dims.dot.con_a = contracted->a, dims.dot.con_b = contracted->b;
    return dims;
}

/* a [groups, rows, N, O...] times windows b [N, groups, elements, O...] as [groups, rows, elements]: sums over N and
 * positions, of each column first. */
static ref sum_by_columns(struct graph *g, ref a, ref b)
{
    const struct shape *first = node_shape(g, a), *second = node_shape(g, b);
    const struct shape to = {.rank = BEFORE, .dim = {first->dim[0], first->dim[1], second->dim[2]}};
    const uint32_t sums = axes_of_sums(g, second);
    struct axis_pairs batch = {0}, contracted = {0};
    for (uint32_t d = 0; d < second->rank; d++)
        if (d != BEFORE - 1) /* the elements of windows */
            pair_axes(sums >> d & 1 ? &contracted : &batch, d == 0 ? 2 : d == 1 ? 0 : d, d);
    const uint32_t groups = sums & 1 ? 1u : 2u; /* of the sums' axes: [N unless contracted, groups, .., columns, ..] */
    union attr dims = dims_of(&batch, &contracted);
    ref sum = n_dot(g, a, b, &dims);
    return n_reshape(g, n_reduce(g, OP_sum, sum, ((1u << batch.n) - 1) & ~groups), &to);
}

/* The same sums at once. */
static ref sum_over_positions(struct graph *g, ref a, ref b, unsigned order)
{
    struct axis_pairs batch = {0}, contracted = {0};
    pair_axes(&batch, 0, 1);
    pair_axes(&contracted, 2, 0);
    for (uint32_t d = BEFORE; d < node_shape(g, b)->rank; d++)
        pair_axes(&contracted, d, d);
    union attr dims = dims_of(&batch, &contracted);
    dims.dot.order = order;
    return n_dot(g, a, b, &dims);
}

/* The gradient in the weights where zeros are between x's elements: a product of x with windows of dy, the weights in
 * the order in which the gradient in x has them. */
static bool reverse_gap_weights(struct reverse *v, const struct node *y, ref dy)
{
    struct graph *g = v->t;
    struct windowed w;
    bool gaps = false;
    for (ref r = y->in[1]; op_is_view(g->node[r].op) || g->node[r].op == OP_pad || g->node[r].op == OP_cast;
         r = g->node[r].in[0])
        gaps |= g->node[r].op == OP_pad && g->node[r].attr.pad.interior > 0;
    if (!gaps || !find_windows(g, y, &w) || !has_gaps(&w) || !reaches_far(&w) || !is_only_path(v, y->in[1], w.x))
        return false;
    for (uint32_t i = 0; i < w.n; i++)
        if (w.stride[i] > 1)
            return false;
    const struct shape x = *node_shape(g, w.x), *a = node_shape(g, y->in[0]);
    const int64_t filters = a->dim[1], groups = a->dim[0];
    ref b = windows_of_gradient(g, dy, &w, &x), rows = cast_to(g, w.x, g->node[b].dtype);
    struct shape split = x;
    uint8_t perm[KL_MAX_RANK] = {1, 2, 0}; /* x [N, groups, depth, L...] as [groups, depth, N, L...] */
    memmove(&split.dim[3], &split.dim[2], w.n * sizeof *split.dim);
    split.rank++;
    split.dim[1] = groups;
    split.dim[2] = groups ? x.dim[1] / groups : 0;
    for (uint32_t d = BEFORE; d < split.rank; d++)
        perm[d] = (uint8_t)d;
    rows = n_permute(g, n_reshape(g, rows, &split), perm);
    const bool columns = g->node[b].dtype == KL_F32 && columns_pay(g, groups, split.dim[2], node_shape(g, b));
    ref sum = columns ? sum_by_columns(g, rows, b)
                      : sum_over_positions(g, rows, b, y->attr.dot.order & DOT_ANY_SIZE);
    sum = flipped_weights(g, sum, &w, filters);
    reverse_add(v, y->in[0], cast_to(g, sum, g->node[y->in[0]].dtype));
    return true;
}

bool reverse_window_weights(struct reverse *v, ref y, ref dy)
{
    struct graph *g = v->t;
    const struct node n = g->node[y];
    if (n.op != OP_dot || !v->needed[n.in[0]])
        return false;
    if (reverse_gap_weights(v, &n, dy))
        return true;
    if (!sums_by_columns(g, &n, v->gpus >> n.device & 1))
        return false;
    ref first = cast_to(g, dy, KL_F32), second = cast_to(g, n.in[1], KL_F32), sum = sum_by_columns(g, first, second);
    reverse_add(v, n.in[0], cast_to(g, sum, n.dtype)); /* of half floats the sums are rounded once */
    return true;
}
