/* The rules of fusion: which groups may be one kernel, and the bytes that this saves.
 *
 * A group has at most one anchor (reduction, dot, attention, scan, scatter or argsort), except in row kernels
 * (fuse_rows.c).  Without an anchor it is an elementwise DAG over one index: element i of a member needs only element i
 * of another, so every value is computed once.  A reduction or a dot may have an epilogue (elementwise nodes with one
 * value for each result, and their operands); a reduction may have a prologue (elementwise nodes with one value for
 * each reduced element).  An operand that a scan, a scatter, an argsort or a dot with not too many rows reads exactly
 * once may be computed where it is read, by a dot of few rows also if it is read through a permute; and on a processor
 * one that a dot of any number of rows reads and that is made of fewer bytes, as quantized weights are, and an
 * attention's keys and values that are.  So may the operand of a pad that has no other reader (fuse_pads.c). */
#include "fuse.h"

/* Maximum number of arrays of full size in a dot's epilogue.  It accesses its arrays in tiles of a few columns, which
 * costs the memory system more for each byte than a linear pass; with more arrays a separate pass is faster.  An
 * epilogue over whole rows does not have this cost. */
enum { MAX_TILED_ARRAYS = 3, MAX_SWEPT_ARRAYS = 12 };
enum { FEW_RESULTS = 64, MANY_ELEMENTS = 1 << 16 };     /* a reduction to few results has few tasks */
/* One tile of rows; one block of them, which share a panel (lower_dot.c): 128, or 131, the prime that stands in for a
 * symbol of at most 128 (ir/symbols/README.md). */
enum { DOT_FEW_ROWS = 8, DOT_PANEL_ROWS = 131 };
/* nodes; at a greater distance the results of one of them would wait in memory for their readers */
enum { SIBLING_DISTANCE = 32 };
enum { MAX_LANES = 64, STRIDED_BYTES = 256 << 10 }; /* smaller arrays stay in a cache, where strides cost little */
enum { LAUNCH_BYTES = 8192 };    /* bytes that memory moves while a kernel starts */
enum { REGISTER_NODES = 32 };    /* nodes whose values fit into registers; with more some are spilled */

static const char MANY_TILED[] = "reads and stores more arrays than a dot's tiles take well";

/* How b's members read a's. */
struct reading {
    bool elsewhere;     /* at indices other than their own */
    bool inside;        /* as the operand of a reduction, or of an anchor, element by element */
    bool anchor, rest;  /* by the anchor or its prologue; by others */
};

static struct reading reading_of(const struct fuser *f, uint32_t a, uint32_t b)
{
    struct reading x = {0};
    for (ref r = f->group[b].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            ref s = node_operand(f->g, r, i, &linear);
            if (group_of(f, s) != a)
                continue;
            bool anchor = r == f->group[b].anchor || f->prologue[r];
            x.elsewhere |= !linear;
            x.inside |= f->prologue[s];
            x.anchor |= anchor;
            x.rest |= !anchor;
        }
    return x;
}

/* Will r, of group a or b, be stored after they are fused? */
bool fuse_is_stored_after(const struct fuser *f, ref r, uint32_t a, uint32_t b)
{
    bool wanted = f->output[r] || f->viewed[r];
    for (uint32_t k = f->readers[r]; k < f->readers[r + 1] && !wanted; k++)
        wanted = group_of(f, f->reader[k]) != a && group_of(f, f->reader[k]) != b;
    return wanted;
}

/* The number of arrays that a and b read and do not compute. dot: only those of its full size or more, and not the
 * operands of the dot itself or its prologue. */
static uint32_t count_reads(struct fuser *f, uint32_t a, uint32_t b, ref dot)
{
    const uint32_t id[] = {a, b};
    uint32_t n = 0;
    f->stamp++;
    for (int j = 0; j < 2; j++)
        for (ref r = f->group[id[j]].first; r; r = f->next[r])
            for (unsigned i = 0; (!dot || (r != dot && !f->prologue[r])) && i < f->g->node[r].nin; i++) {
                bool linear;
                ref s = node_operand(f->g, r, i, &linear);
                uint32_t from = group_of(f, s);
                bool outside = from == GROUP_NONE ? node_is_stored_leaf(f->g, s) : from != a && from != b;
                bool full = !dot || node_numel(f->g, s) >= node_numel(f->g, dot);
                n += outside && full && f->marked[s] != f->stamp;
                f->marked[s] = f->stamp;
            }
    return n;
}

/* Would the dot's epilogue, with both groups in it, access more than the maximum number of arrays of full size? */
static bool exceeds_arrays(struct fuser *f, uint32_t a, uint32_t b, ref dot)
{
    const uint32_t id[] = {a, b};
    uint32_t n = count_reads(f, a, b, dot), max = dot_sweeps(f->g, dot) ? MAX_SWEPT_ARRAYS : MAX_TILED_ARRAYS;
    for (int j = 0; j < 2; j++)
        for (ref r = f->group[id[j]].first; r && n <= max; r = f->next[r])
            n += fuse_is_stored_after(f, r, a, b);
    return n > max;
}

/* Is node r, through its operand i, the only reader of group a's results? */
static bool reads_alone(const struct fuser *f, uint32_t a, ref r, unsigned i)
{
    bool linear;
    ref x = node_operand(f->g, r, i, &linear);
    for (ref s = f->group[a].first; s; s = f->next[s]) {
        if (f->output[s] || f->viewed[s])
            return false;
        for (uint32_t k = f->readers[s]; k < f->readers[s + 1]; k++)
            if (group_of(f, f->reader[k]) != a && (f->reader[k] != r || s != x))
                return false;
    }
    for (unsigned k = 0; k < f->g->node[r].nin; k++)
        if (k != i && node_operand(f->g, r, k, &linear) == x)
            return false;
    return group_of(f, x) == a;
}

/* Is the last axis of a dot's second operand one of its batch? */
static bool batch_is_last(const struct fuser *f, const struct node *n)
{
    uint32_t last = node_shape(f->g, n->in[1])->rank - 1;
    for (unsigned i = 0; i < n->attr.dot.nbatch; i++)
        if (axis_get(n->attr.dot.batch_b, i) == last)
            return true;
    return false;
}

bool dot_may_be_direct(const struct graph *g, ref r)
{
    enum { MAX_ROWS = 16 };
    const struct node *n = &g->node[r];
    if (n->op != OP_dot || n->attr.dot.sum || shape_is_symbolic(node_shape(g, n->in[0])) ||
        shape_is_symbolic(node_shape(g, n->in[1])) || node_shape(g, n->in[1])->rank < 3)
        return false;
    struct dot_dims d = dot_sizes(g, n);
    bool windows = false;
    for (ref v = n->in[1]; op_is_view(g->node[v].op) || op_is_masked(g->node[v].op); v = g->node[v].in[0])
        windows |= g->node[v].op == OP_window && g->node[v].attr.window.size > 1;
    uint32_t last = node_shape(g, n->in[1])->rank - 1;
    bool batch = n->attr.dot.nbatch > 1 && axis_get(n->attr.dot.batch_b, n->attr.dot.nbatch - 1) == last &&
                 axis_get(n->attr.dot.con_b, n->attr.dot.ncon - 1) != last;
    bool one = n->attr.dot.ncon == 1 && axis_get(n->attr.dot.con_b, 0) != last;
    return windows && d.m >= 1 && d.m <= MAX_ROWS && d.n >= 1 && d.k >= 1 && d.batch >= 1 &&
           (batch || (one && d.k <= n->attr.dot.kblock));
}

bool dot_is_direct(const struct graph *g, ref r)
{
    return g->node[r].dtype == KL_F32 && dot_may_be_direct(g, r);
}

bool dot_widens_in_place(const struct graph *g, ref r, const struct processor *p)
{
    struct image_windows w;
    return p->devices >> g->node[r].device & 1 && dot_may_be_direct(g, r) &&
           !(p->reads_windows && windows_find(g, r, &w) && windows_would_pay(g, r, &w));
}

/* Does group a, a cast, widen half floats for an operand of convolution b alone?  A direct convolution widens them
 * where it loads them: windows, and what is multiplied with them lane by lane.  Depthwise convolutions are limited by
 * memory: 3x3 of 144 channels of 8x56x56 bf16 takes 0.64 of the time, its gradient in the weights 0.09.  A convolution
 * that reads windows in place widens its first operand while it packs that, if elements along the contraction are
 * adjacent: weights, or gradients of the results. */
static bool widens_windows(const struct fuser *f, uint32_t a, uint32_t b)
{
    const ref anchor = f->group[b].anchor, cast = f->group[a].first;
    const struct node *n = &f->g->node[cast];
    const struct processor *p = &f->processor;
    struct image_windows w;
    bool linear;
    if (f->group[a].nodes != 1 || n->op != OP_cast || !dtype_is_half(f->g->node[n->in[0]].dtype) ||
        f->g->node[anchor].op != OP_dot || !(p->devices >> f->group[a].device & 1))
        return false;
    if (dot_is_direct(f->g, anchor) && dot_widens_in_place(f->g, anchor, p))
        return reads_alone(f, a, anchor, 1) ||
               (batch_is_last(f, &f->g->node[anchor]) && reads_alone(f, a, anchor, 0));
    node_operand(f->g, anchor, 0, &linear);
    return p->reads_windows && windows_find(f->g, anchor, &w) && windows_read_pays(f->g, anchor, &w) &&
           (linear || w.contracted) && reads_alone(f, a, anchor, 0);
}

/* Does a dot read each element of its second operand once? With few rows it does, row by row in memory order; with more
 * rows when it packs a panel, in any memory order.  Products of integers have no panel of this form. */
static bool reads_second_once(const struct fuser *f, const struct node *n)
{
    uint32_t last = node_shape(f->g, n->in[1])->rank - 1;
    int64_t m = dot_sizes(f->g, n).m;
    bool rows = true;
    for (unsigned i = 0; i < n->attr.dot.ncon; i++)
        rows &= axis_get(n->attr.dot.con_b, i) != last;
    return !batch_is_last(f, n) &&
           ((rows && m <= DOT_FEW_ROWS) || (m <= DOT_PANEL_ROWS && dtype_is_float(n->dtype)));
}

/* Bytes of the arrays that group a reads and does not compute. */
static double bytes_read(struct fuser *f, uint32_t a)
{
    double bytes = 0;
    f->stamp++;
    for (ref r = f->group[a].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            ref s = node_operand(f->g, r, i, &linear);
            uint32_t from = group_of(f, s);
            bool outside = from == GROUP_NONE ? node_is_stored_leaf(f->g, s) : from != a;
            if (outside && f->marked[s] != f->stamp)
                bytes += (double)node_bytes(f->g, s);
            f->marked[s] = f->stamp;
        }
    return bytes;
}

/* Does group a make values for the second operand of dot n of arrays that have no more bytes, as of quantized weights,
 * or of f32 that is rounded?  Then a processor computes them while it packs panels, also once for each of several
 * blocks of rows, because that takes less time than to store and load them, and little beside the products of a block:
 * bf16 512x1024x1024 of operands in f32 takes 0.87 of the time. */
static bool expands_operand(struct fuser *f, uint32_t a, const struct node *n)
{
    enum { SHARE = 8 }; /* the arithmetic is at most one part in so many of that of a block of rows */
    double work = 0, most = 128 * fuse_work(OP_add) / SHARE;
    if (n->op != OP_dot || !dtype_is_float(n->dtype) || batch_is_last(f, n) ||
        !(f->processor.devices >> f->group[a].device & 1))
        return false;
    for (ref r = f->group[a].first; r; r = f->next[r])
        work += fuse_work(f->g->node[r].op);
    return work <= most && bytes_read(f, a) <= (double)node_bytes(f->g, f->group[a].last);
}

/* Does exactly one operand of anchor r read group a, each element once, and nothing else? */
static bool reads_once(struct fuser *f, uint32_t a, ref r)
{
    const struct node *n = &f->g->node[r];
    bool linear;
    unsigned i = n->op == OP_dot ? 1 : n->op == OP_scatter ? 2 : 0;
    if (n->op == OP_dot && !reads_second_once(f, n) && !expands_operand(f, a, n))
        return false;
    while (op_is_cumulative(n->op) && i + 1 < n->nin && group_of(f, node_operand(f->g, r, i, &linear)) != a)
        i++;
    node_operand(f->g, r, i, &linear);
    return linear && reads_alone(f, a, r, i);
}

/* Does b, a product of a few rows, or one whose operand a makes of fewer bytes, read a only for its second operand,
 * each element once, through a permute?  Each element is then computed where it is multiplied or packed: rows of the
 * matrix are read in memory's order whichever axis is contracted (lower_dot_skinny.c, lower_dot_pack.c). */
static bool reads_permuted_once(struct fuser *f, uint32_t a, uint32_t b)
{
    ref reader = NIL, dot = f->group[b].anchor;
    unsigned at = 0;
    for (ref r = f->group[b].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            ref x = node_operand(f->g, r, i, &linear), source;
            if (group_of(f, x) != a)
                continue;
            if (reader || !node_permute(f->g, node_in(f->g, &f->g->node[r], i), &source) ||
                op_is_select(f->g->node[r].op) || (r == dot ? i != 1 : !f->prologue[r]))
                return false;
            reader = r;
            at = i;
        }
    const struct node *n = &f->g->node[dot];
    return reader && n->op == OP_dot && dtype_is_float(n->dtype) && reads_alone(f, a, reader, at) &&
           ((dot_sizes(f->g, n).m <= DOT_FEW_ROWS && reads_second_once(f, n)) || expands_operand(f, a, n));
}

/* Does group a make the keys, or the values, of b's attention of arrays of fewer bytes, as those of a quantized cache,
 * and nothing else?  A processor computes them where it reads them, block by block (lower_attention.c), and of the
 * blocks that no query attends to none; through any views. */
static bool expands_keys(struct fuser *f, uint32_t a, uint32_t b)
{
    ref anchor = f->group[b].anchor;
    unsigned at = 0;
    bool linear, maps = true;
    if (f->g->node[anchor].op != OP_attention || !(f->processor.devices >> f->group[a].device & 1))
        return false;
    for (unsigned i = 1; i <= 2; i++)
        at = group_of(f, node_operand(f->g, anchor, i, &linear)) == a ? i : at;
    for (ref r = f->group[a].first; r && maps; r = f->next[r])
        maps = op_is_map(f->g->node[r].op);
    return at && maps && reads_alone(f, a, anchor, at) && bytes_read(f, a) < (double)node_bytes(f->g, f->group[a].last);
}

/* The reason why a reduction of `elements` to `results` cannot have a prologue; NULL: it can. */
static const char *no_prologue(int64_t elements, int64_t results)
{
    if (elements == results)
        return "the reduced axes have length 1";
    return results < FEW_RESULTS && elements > MANY_ELEMENTS ? "a reduce to few results has too few tasks" : NULL;
}

bool fuse_can_compute(const struct fuser *f, ref r, ref x)
{
    const struct node *n = &f->g->node[r];
    uint32_t readers = 0;
    bool all = !f->group[group_of(f, r)].block_dot, linear;
    for (unsigned i = 0; i < n->nin; i++)
        all &= node_operand(f->g, r, i, &linear) != x || (linear && (n->op != OP_dot || i == 1));
    if (!all || op_is_map(n->op))
        return all && node_numel(f->g, r) == node_numel(f->g, x);
    if (op_is_reduce(n->op))
        return !no_prologue(node_numel(f->g, x), node_numel(f->g, r));
    for (uint32_t k = f->readers[x]; k < f->readers[x + 1]; k++)
        readers += group_of(f, f->reader[k]) == group_of(f, r);
    return n->op == OP_dot && readers == 1 && reads_second_once(f, n);
}

/* The orders in which b's members read elements of a. */
enum order { ORDER_OWN = 1, ORDER_PERMUTED = 2, ORDER_OTHER = 4 };

/* The orders of all, as bits; *permute: a's, or the one through which b reads it. */
static unsigned orders_read(const struct fuser *f, uint32_t a, uint32_t b, ref *permute)
{
    unsigned orders = 0;
    *permute = f->group[a].permute;
    for (ref r = f->group[b].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            ref s = node_operand(f->g, r, i, &linear), source;
            if (group_of(f, s) != a)
                continue;
            if (linear) {
                orders |= f->permuted[s] ? ORDER_PERMUTED : ORDER_OWN;
                continue;
            }
            ref through = node_permute(f->g, node_in(f->g, &f->g->node[r], i), &source);
            bool same = through && !op_is_select(f->g->node[r].op) && !f->permuted[s] &&
                        (!*permute || through == *permute);
            orders |= same ? ORDER_PERMUTED : ORDER_OTHER;
            *permute = same ? through : *permute;
        }
    return orders;
}

/* The same for a group b with an anchor, for its members that read a. */
static unsigned orders_of_readers(const struct fuser *f, uint32_t a, uint32_t b)
{
    unsigned orders = 0;
    for (ref r = f->group[b].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            if (group_of(f, node_operand(f->g, r, i, &linear)) == a)
                orders |= f->permuted[r] ? ORDER_PERMUTED : ORDER_OWN;
        }
    return orders;
}

/* contracted elements of a product; with so many the cost of storing single elements is small */
enum { MANY_STEPS = 256 };

/* Are enough adjacent elements, along the last axes, adjacent after the permute, too? */
static bool keeps_rows(const struct fuser *f, ref permute)
{
    enum { ROW = 8 };
    const struct node *n = &f->g->node[permute];
    const struct shape *s = node_shape(f->g, permute);
    int64_t run = 1;
    for (uint32_t d = s->rank; d-- > 0 && n->attr.permute.perm[d] == d;)
        run *= s->dim[d];
    return run >= ROW;
}

ref fuse_stored_permute(const struct fuser *f, ref r)
{
    ref s, permute = node_permute(f->g, r, &s);
    if (!permute || group_of(f, r) != GROUP_NONE || group_of(f, s) == GROUP_NONE || f->permuted[s] || f->prologue[s])
        return NIL;
    const struct group *g = &f->group[group_of(f, s)];
    if (!g->anchor || f->g->node[g->anchor].op != OP_dot || g->nodes >= MAX_GROUP_NODES ||
        (g->permute && g->permute != permute) || f->g->node[r].device != g->device)
        return NIL;
    return keeps_rows(f, permute) || dot_sizes(f->g, &f->g->node[g->anchor]).k >= MANY_STEPS ? permute : NIL;
}

static struct verdict verdict_accept(enum join join) { return (struct verdict){join, NULL}; }
static struct verdict verdict_reject(const char *why) { return (struct verdict){JOIN_NONE, why}; }

static const char *ends_kernel(unsigned op)
{
    switch (op) {
    case OP_attention: case OP_attention_stats: case OP_attention_grad: return "attention ends its kernel";
    case OP_argsort: return "a sort ends its kernel";
    case OP_scatter: return "a scatter ends its kernel";
    default: return "a scan ends its kernel";
    }
}

/* b, without an anchor, reads the results of a's anchor. */
static struct verdict score_epilogue(struct fuser *f, uint32_t a, uint32_t b, struct reading x)
{
    const struct group *ga = &f->group[a], *gb = &f->group[b];
    unsigned op = f->g->node[ga->anchor].op;
    if (!op_is_reduce(op) && op != OP_dot)
        return verdict_reject(ends_kernel(op));
    if (ga->numel != gb->numel)
        return verdict_reject(op == OP_dot ? "other iteration space" : "a reduce in between");
    ref permute;
    unsigned orders = orders_read(f, a, b, &permute);
    if (x.elsewhere && (op != OP_dot || orders != ORDER_PERMUTED || !keeps_rows(f, permute)))
        return verdict_reject("read at other indices than written");
    if (orders & (orders - 1))
        return verdict_reject("read in two orders");
    if (x.inside)
        return verdict_reject("a reduce in between");
    if (op == OP_dot && exceeds_arrays(f, a, b, ga->anchor))
        return verdict_reject(MANY_TILED);
    return verdict_accept(JOIN_EPILOGUE);
}

/* Are the lanes, or the iterations, of reduction or scan r so far apart in memory that each additional array is
 * expensive? This holds for reduced axes with kept ones between them, and for a scan over rows longer than a vector. */
static bool is_strided(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r];
    if (op_is_cumulative(n->op))
        return split_at(node_shape(g, r), n->attr.axis.axis).inner > MAX_LANES;
    const struct shape *s = node_shape(g, n->in[0]);
    bool reduced = false, kept = false;
    for (uint32_t d = s->rank; d-- > 0;)
        if (s->dim[d] != 1 && !(n->attr.reduce.axes >> d & 1))
            kept = true;
        else if (s->dim[d] != 1 && kept && reduced)
            return true;
        else if (s->dim[d] != 1 && !kept)
            reduced = true;
    return false;
}

/* Do the lanes of reduction r cross the ends of the rows of group a's operands? */
static bool crosses_rows(const struct fuser *f, uint32_t a, ref r)
{
    const struct node *n = &f->g->node[r];
    return op_is_reduce(n->op) && n->attr.reduce.lanes == 64 && node_bytes(f->g, n->in[0]) >= STRIDED_BYTES &&
           f->group[a].numel == node_numel(f->g, n->in[0]) &&
           f->group[a].run < f->group[a].numel / node_numel(f->g, r);
}

/* Does reduction r sum columns of rows that are a page or longer, of an array larger than the second-level caches?  Its
 * kernel goes down blocks of columns.  There it reads at the speed of memory if it prefetches, but does not store at
 * it: a third as fast as a kernel that goes along the rows. */
static bool reduces_far_columns(const struct graph *g, ref r)
{
    enum { PAGE = 4096, LARGE = 8 << 20 };
    const struct node *n = &g->node[r];
    if (!op_is_reduce(n->op) || n->attr.reduce.lanes == 64)
        return false;
    const struct shape *s = node_shape(g, n->in[0]);
    int64_t row = (int64_t)dtype_size(g->node[n->in[0]].dtype);
    for (uint32_t d = s->rank; d-- > 0 && (s->dim[d] == 1 || !(n->attr.reduce.axes >> d & 1));)
        row *= s->dim[d];
    return row >= PAGE && node_bytes(g, n->in[0]) >= LARGE;
}

/* Would r, whose lanes are strided, read more arrays with group a's members, or store any? */
static bool adds_strided_arrays(struct fuser *f, uint32_t a, uint32_t b, ref r)
{
    if (crosses_rows(f, a, r))
        return true;
    for (ref x = f->group[a].first; x && reduces_far_columns(f->g, r); x = f->next[x])
        if (node_numel(f->g, x) == node_numel(f->g, f->g->node[r].in[0]) && fuse_is_stored_after(f, x, a, b))
            return true;
    if (!is_strided(f->g, r) || node_bytes(f->g, f->g->node[r].in[0]) < STRIDED_BYTES)
        return false;
    bool much = count_reads(f, a, a, NIL) > 1;
    for (ref x = f->group[a].first; x && !much; x = f->next[x])
        much = fuse_is_stored_after(f, x, a, b);
    return much;
}

/* b's anchor, its prologue or its epilogue reads a, which has no anchor. */
static struct verdict score_operand(struct fuser *f, uint32_t a, uint32_t b, struct reading x)
{
    const struct group *ga = &f->group[a], *gb = &f->group[b];
    unsigned op = f->g->node[gb->anchor].op;
    if (expands_keys(f, a, b) || widens_windows(f, a, b))
        return verdict_accept(JOIN_OPERAND);
    if (x.elsewhere)
        return reads_permuted_once(f, a, b) ? verdict_accept(JOIN_OPERAND)
            : verdict_reject("read at other indices than written");
    if (op == OP_dot && orders_of_readers(f, a, b) == (ORDER_OWN | ORDER_PERMUTED))
        return verdict_reject("read in two orders");
    if ((op_is_reduce(op) || op == OP_dot) && x.rest && !x.anchor)
        return ga->numel != gb->numel ? verdict_reject("other iteration space")
             : op == OP_dot && exceeds_arrays(f, a, b, gb->anchor) ? verdict_reject(MANY_TILED)
                 : verdict_accept(JOIN_EPILOGUE);
    if (x.rest)
        return verdict_reject(op_is_reduce(op) ? "a reduce in between" : "an operand of other kernels too");
    if ((op_is_reduce(op) || op_is_cumulative(op)) && adds_strided_arrays(f, a, b, gb->anchor))
        return verdict_reject("strided: each array read or stored beside the operand costs more than a kernel");
    if (!op_is_reduce(op))
        return reads_once(f, a, gb->anchor) ? verdict_accept(JOIN_OPERAND)
             : verdict_reject(op == OP_dot ? "recomputation: a dot reads its operands repeatedly"
                      : "recomputation: it is read more than once");
    const char *why = no_prologue(ga->numel, gb->numel);
    return why ? verdict_reject(why) : verdict_accept(JOIN_PROLOGUE);
}

/* The pad of group b that is the only reader of group a, through its first operand; else NIL. */
static ref pad_of_group(const struct fuser *f, uint32_t a, uint32_t b)
{
    for (ref r = f->group[b].first; r; r = f->next[r])
        if (op_is_masked(f->g->node[r].op) && reads_alone(f, a, r, 0))
            return r;
    return NIL;
}

/* b, without an anchor like a, reads a at indices other than its own: one kernel only through a pad that computes a. */
static struct verdict score_padded(struct fuser *f, uint32_t a, uint32_t b)
{
    ref pad = pad_of_group(f, a, b);
    bool linear, maps = !f->group[a].pads;
    for (ref r = f->group[a].first; r && maps; r = f->next[r])
        maps = op_is_map(f->g->node[r].op);
    return pad && maps && fuse_pads_evenly(f->g, pad, node_operand(f->g, pad, 0, &linear))
        ? verdict_accept(JOIN_PADDED) : verdict_reject("read at other indices than written");
}

static struct verdict score_pair(struct fuser *f, uint32_t a, uint32_t b)
{
    const struct group *ga = &f->group[a], *gb = &f->group[b];
    struct reading x = reading_of(f, a, b);
    if (ga->rows || gb->rows)
        return verdict_reject("not of the same rows");
    if (gb->block_dot)
        return verdict_reject("a product of blocks reads its operands from memory");
    if ((ga->pads || gb->pads) && (ga->anchor || gb->anchor))
        return verdict_reject("a kernel of a pad and its operand has no anchor");
    if (ga->anchor && gb->anchor)
        return verdict_reject(op_is_reduce(f->g->node[ga->anchor].op) && op_is_reduce(f->g->node[gb->anchor].op)
                          ? "a reduce in between"
                              : "one product, attention, scan, scatter or sort to a kernel, and no reduce beside it");
    if (ga->anchor)
        return score_epilogue(f, a, b, x);
    if (gb->anchor)
        return score_operand(f, a, b, x);
    if (x.elsewhere)
        return score_padded(f, a, b);
    return ga->numel != gb->numel ? verdict_reject("other iteration space") : verdict_accept(JOIN_MAP);
}

/* Does b recompute values for which it reads a? In one kernel with the first, early values those, or values that
 * replace them, would be kept after all. */
static bool group_rematerializes(const struct fuser *f, uint32_t a, uint32_t b)
{
    for (ref r = f->group[b].first; r && f->group[b].remat; r = f->next[r])
        for (unsigned i = 0; f->g->node[r].flags & MARK_REMAT && i < f->g->node[r].nin; i++) {
            bool linear;
            ref s = node_operand(f->g, r, i, &linear);
            if (group_of(f, s) == a && !(f->g->node[s].flags & MARK_REMAT))
                return true;
        }
    return false;
}

/* Requirements for any two groups. */
static const char *groups_incompatible(struct fuser *f, uint32_t a, uint32_t b)
{
    const struct group *ga = &f->group[a], *gb = &f->group[b];
    uint32_t nodes = ga->nodes + gb->nodes;
    if (ga->device != gb->device)
        return "other device";
    if (ga->non_fusible || gb->non_fusible)
        return "a copy or a region op is no kernel";
    if (group_rematerializes(f, a, b))
        return "recomputed later, to save memory";
    if (nodes > (ga->anchor || gb->anchor ? MAX_GROUP_NODES : MAX_MAP_NODES))
        return "too many nodes for one kernel";
    return ga->reads + gb->reads > MAX_GROUP_READS && count_reads(f, a, b, NIL) > MAX_GROUP_READS
        ? "too many operands for one kernel"
                                                                                                  : NULL;
}

static bool may_reduce(const struct fuser *f, uint32_t id)
{
    const struct group *g = &f->group[id];
    return !g->pads && !g->block_dot && (!g->anchor || op_is_reduce(f->g->node[g->anchor].op));
}

/* Bytes that b reads of a; those that no other group reads count twice, because they are not written either. */
static double saved_bytes(struct fuser *f, uint32_t a, uint32_t b)
{
    enum { MANY = 16 };
    double bytes = 0;
    f->stamp++;
    for (ref r = f->group[b].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            ref x = node_operand(f->g, r, i, &linear);
            if (group_of(f, x) != a || f->marked[x] == f->stamp)
                continue;
            f->marked[x] = f->stamp;
            bool needed = f->output[x] || f->viewed[x] || f->readers[x + 1] - f->readers[x] > MANY;
            for (uint32_t k = f->readers[x]; k < f->readers[x + 1] && !needed; k++)
                needed = group_of(f, f->reader[k]) != a && group_of(f, f->reader[k]) != b;
            bytes += (needed ? 1.0 : 2.0) * (double)node_bytes(f->g, x);
        }
    return bytes;
}

/* Bytes of the marked arrays of full rows that group c reads and group `but` does not compute; clears their marks. */
static double take_marked(struct fuser *f, uint32_t c, uint32_t but, const struct row_space *s)
{
    double bytes = 0;
    bool linear;
    for (ref r = f->group[c].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            ref x = node_operand(f->g, r, i, &linear);
            if (f->marked[x] != f->stamp || node_numel(f->g, x) != s->rows * s->length || group_of(f, x) == but)
                continue;
            bytes += (double)node_bytes(f->g, x);
            f->marked[x] = 0;
        }
    return bytes;
}

/* Bytes of the arrays of full rows, a's results excepted, that b finds in the cache if it is one row kernel with a:
 * those that both read.  If b has only values of rows, the groups that read these may become parts of the kernel, too:
 * also what they read of the arrays that a reads or computes. */
static double reused_bytes(struct fuser *f, uint32_t a, uint32_t b)
{
    enum { MANY = 16 };
    struct row_space s;
    bool linear;
    if (!fuse_has_rows(f, a, &s))
        return 0;
    f->stamp++;
    for (ref r = f->group[a].first; r; r = f->next[r]) {
        f->marked[r] = f->stamp;
        for (unsigned i = 0; i < f->g->node[r].nin; i++)
            f->marked[node_operand(f->g, r, i, &linear)] = f->stamp;
    }
    double bytes = take_marked(f, b, a, &s);
    if (f->group[b].anchor || f->group[b].numel != s.rows)
        return bytes;
    for (ref y = f->group[b].first; y; y = f->next[y])
        for (uint32_t k = f->readers[y]; k < f->readers[y + 1] && k < f->readers[y] + MANY; k++) {
            uint32_t c = group_of(f, f->reader[k]);
            if (c != a && c != b && c != GROUP_NONE && may_reduce(f, c) && !fuse_rows_conflict(f, a, c))
                bytes += take_marked(f, c, b, &s);
        }
    return bytes;
}

struct verdict fuse_score_group(struct fuser *f, uint32_t a, uint32_t b, bool paths)
{
    const char *why = groups_incompatible(f, a, b);
    if (why)
        return verdict_reject(why);
    struct verdict v = score_pair(f, a, b);
    struct row_space s;
    if (v.join == JOIN_NONE && may_reduce(f, a) && may_reduce(f, b) &&
        (fuse_has_rows(f, a, &s) || fuse_has_rows(f, b, &s))) {
        const struct group *ga = &f->group[a], *gb = &f->group[b];
        why = fuse_rows_conflict(f, a, b);
        if (!why && ((!ga->anchor && crosses_rows(f, a, gb->anchor)) ||
                     (!gb->anchor && crosses_rows(f, b, ga->anchor))))
            why = "the rows that are reduced cross the ends of those that are read";
        v = why ? verdict_reject(why) : verdict_accept(JOIN_ROWS);
    }
    double saved = LAUNCH_BYTES + saved_bytes(f, a, b) + (v.join == JOIN_ROWS ? reused_bytes(f, a, b) : 0);
    if (v.join != JOIN_NONE && fuse_costs_more(f, a, b, v.join, saved))
        return verdict_reject(v.join == JOIN_PADDED ? "a pad would compute its operand for too many elements"
                      : "one kernel would compute with fewer lanes, which costs more than it saves");
    return v.join != JOIN_NONE && paths && fuse_indirect_path(f, a, b)
        ? verdict_reject("an indirect path: a kernel between them reads one and is read by the other") : v;
}

struct verdict fuse_score_siblings(struct fuser *f, uint32_t a, uint32_t b, ref x, bool paths)
{
    const struct group *ga = &f->group[a], *gb = &f->group[b];
    const char *why = groups_incompatible(f, a, b);
    ref apart = ga->low > gb->high ? ga->low - gb->high : gb->low > ga->high ? gb->low - ga->high : 0;
    if (why || ga->anchor || gb->anchor || ga->numel != gb->numel || ga->numel != node_numel(f->g, x) ||
        ga->remat != gb->remat ||
        apart > SIBLING_DISTANCE)
        return verdict_reject(why ? why : "other iteration space");
    if (reading_of(f, a, b).elsewhere || reading_of(f, b, a).elsewhere)
        return verdict_reject("read at other indices than written");
    if (fuse_costs_more(f, a, b, JOIN_SIBLINGS, LAUNCH_BYTES + (double)node_bytes(f->g, x)))
        return verdict_reject("one kernel would compute with fewer lanes, which costs more than it saves");
    return paths && fuse_indirect_path(f, a, b) ? verdict_reject("an indirect path between them")
        : verdict_accept(JOIN_SIBLINGS);
}

/* Saved bytes plus those of a launch, minus those of spills.  Fusions that keep the other group free for further
 * fusions come first: the more specific the schedule that a group becomes part of, the lower the weight of its
 * savings. */
double fuse_score(struct fuser *f, uint32_t a, uint32_t b, ref shared, enum join join)
{
    static const double part[] = {[JOIN_MAP] = 4, [JOIN_EPILOGUE] = 1.0 / 2, [JOIN_PROLOGUE] = 1.0 / 4,
                                  [JOIN_OPERAND] = 1.0 / 8, [JOIN_PADDED] = 1.0 / 8,
                                  [JOIN_ROWS] = 1.0 / 16, [JOIN_SIBLINGS] = 1.0 / 32};
    uint32_t nodes = f->group[a].nodes + f->group[b].nodes;
    double bytes = LAUNCH_BYTES + (shared ? (double)node_bytes(f->g, shared) : saved_bytes(f, a, b));
    if (nodes > REGISTER_NODES)
        bytes *= 1 - (double)(nodes - REGISTER_NODES) / (2 * MAX_GROUP_NODES);
    return bytes * part[join];
}

/* Marks the members of a dot's epilogue that have the order of its permute. */
static void join_permuted(struct fuser *f, uint32_t a, uint32_t b)
{
    ref permute = f->group[b].permute;
    unsigned orders = f->group[a].anchor ? orders_read(f, a, b, &permute) : orders_of_readers(f, a, b);
    uint32_t dot = f->group[a].anchor ? a : b, other = dot == a ? b : a;
    if (orders != ORDER_PERMUTED)
        return;
    f->group[dot].permute = permute;
    for (ref r = f->group[other].first; r; r = f->next[r])
        f->permuted[r] = true;
}

void fuse_join(struct fuser *f, uint32_t a, uint32_t b, enum join join)
{
    if (join == JOIN_EPILOGUE)
        join_permuted(f, a, b);
    bool before = join == JOIN_PROLOGUE || join == JOIN_OPERAND;
    if (before)
        for (ref r = f->group[a].first; r; r = f->next[r])
            f->prologue[r] = true;
    f->group[a].rows = f->group[b].rows = f->group[a].rows || f->group[b].rows || join == JOIN_ROWS;
    f->group[b].pads |= f->group[a].pads || join == JOIN_PADDED;
    f->group[a].pads = f->group[b].pads;
    /* the group with the anchor, or with the results, is kept */
    bool swapped = join == JOIN_PADDED || (f->group[b].anchor && !f->group[a].anchor);
    fuse_order_joined(f, a, b, swapped ? b : a);
    fuse_absorb(f, swapped ? b : a, swapped ? a : b);
}
