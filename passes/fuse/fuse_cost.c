/* The cost of arithmetic in a kernel, as the bytes that memory moves in the same time; and the fusions that cost more
 * than they save.
 *
 * An element costs least if all lanes of a vector are used.  A kernel of short rows leaves lanes unused, in a map as in
 * a reduction.  A scan along the last axis computes one element at a time, and a row kernel computes values that exist
 * once for each row as scalars. exp or pow may be faster in a kernel of its own with full vectors than in the kernel
 * that reads or makes its operand. */
#include "fuse.h"
#include "ir/loop/loop.h"
#include <stdatomic.h>

enum { LANES = 16 };    /* of a vector; fewer elements take as long */
/* for values that exist once for each row in a row kernel: scalars on which the next loop over the row depends */
enum { ROW_FACTOR = 2 * LANES };
/* A processor moves about 3 bytes to or from memory in a cycle.  In the same time it does 16 to 20 additions, or one
 * division. */
static const double ADD_BYTES = 0.15, DIV_BYTES = 2.5;

/* The cost in thousandths, from the op's value expression. */
static unsigned count_work(unsigned op)
{
    struct kernel *k = kernel_new("work");
    double bytes = 0;
    if (!k)
        return 0;
    uint32_t buf = k_buf(k, BUF_IN, KL_F32, MAX_OPERANDS, 0);
    val in[MAX_OPERANDS];
    for (int i = 0; i < MAX_OPERANDS; i++)
        in[i] = k_load(k, buf, k_int(k, i), 0);
    val before = k->ninst;
    k_op(k, op, in);
    for (val v = before; v < k->ninst; v++)
        if (k->inst[v].op >= L_PRIM && k->inst[v].kind != INST_INDEX)
            bytes += k->inst[v].op == L_OP(P_DIV) || k->inst[v].op == L_OP(P_SQRT) ? DIV_BYTES : ADD_BYTES;
    kernel_free(k);
    return (unsigned)(1000 * bytes) + 1;
}

double fuse_work(unsigned op)
{
    static atomic_uint known[OP_COUNT]; /* 0: not computed yet; every thread computes the same */
    if (!op_is_elementwise(op))
        return ADD_BYTES;
    unsigned work = atomic_load_explicit(&known[op], memory_order_relaxed);
    if (!work) {
        work = count_work(op);
        atomic_store_explicit(&known[op], work, memory_order_relaxed);
    }
    return work / 1000.0;
}

/* Lanes of a vector for each one that is used by n elements. */
static double lanes_factor(int64_t n)
{
    return n < 1 ? 1 : (double)((n + LANES - 1) / LANES * LANES) / (double)n;
}

/* ---- runs: elements over which a map's accesses have constant strides ---- */

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* The number of last elements of v with a constant stride in the node that it is a view of. */
static int64_t view_run(const struct graph *g, ref v)
{
    const struct node *n = &g->node[v];
    const struct shape *out = node_shape(g, v), *in = node_shape(g, n->in[0]);
    int64_t run = 1;
    int kind = -1;
    bool whole = n->op == OP_expand || n->op == OP_permute || n->op == OP_flip ||
                 slice_step(n) > 1; /* a run begins at the start of an axis */
    for (uint32_t d = out->rank; d-- > 0;) {
        if (out->dim[d] == 1)
            continue;
        int own = n->op == OP_expand ? in->dim[d] == 1
                : n->op == OP_permute ? (int)d - n->attr.permute.perm[d]
                : n->op == OP_flip ? (int)(n->attr.flip.axes >> d & 1)
                : out->rank != in->rank || out->dim[d] != in->dim[d];
        if (kind >= 0 && own != kind)
            return whole ? run : run * out->dim[d];
        run *= out->dim[d];
        kind = own;
        if (!whole && own)
            return run;
    }
    return INT64_MAX;
}

/* The same for a pad or a concat: its rows, from the extended axis on; for the outermost axis the elements behind it,
 * because the bounds are tested once for each of its elements. */
static int64_t extended_run(const struct graph *g, ref v)
{
    const struct node *n = &g->node[v];
    struct split at = split_at(node_shape(g, v), op_is_masked(n->op) ? n->attr.pad.axis : n->attr.axis.axis);
    return at.outer > 1 ? at.len * at.inner : at.inner > 1 ? at.inner : INT64_MAX;
}

/* How often a view repeats each element in adjacent ones: the last axes that an expand makes. */
static int64_t adjacent_copies(const struct graph *g, ref v)
{
    const struct shape *out = node_shape(g, v), *in = node_shape(g, g->node[v].in[0]);
    int64_t copies = 1;
    for (uint32_t d = out->rank; g->node[v].op == OP_expand && d-- > 0 && in->dim[d] == 1;)
        copies *= out->dim[d];
    return copies > 0 ? copies : 1;
}

int64_t fuse_run(const struct graph *g, ref r)
{
    int64_t run = op_is_masked(g->node[r].op) || g->node[r].op == OP_concat ? extended_run(g, r) : INT64_MAX;
    for (unsigned i = 0; i < g->node[r].nin; i++) {
        int64_t copies = 1; /* of an element of v: a run of v's is so many times as long in the operand */
        for (ref v = g->node[r].in[i]; node_is_view(g, v); v = g->node[v].in[0]) {
            int64_t own = INT64_MAX;
            if (g->node[v].op != OP_reshape)
                own = op_is_masked(g->node[v].op) ? extended_run(g, v) : view_run(g, v);
            run = min_i64(run, own > INT64_MAX / copies ? INT64_MAX : own * copies);
            copies *= adjacent_copies(g, v);
        }
    }
    return run;
}

/* ---- a group's arithmetic ---- */

/* Factors for the arithmetic of an element: one for elements of full size, one for results of the anchor. */
struct lane_cost { double full, result; };

/* Bytes of a row from which on its columns are far apart.  Rows of a reduce are prefetched (lower_reduce.c), those of a
 * scan are not. */
enum { FAR_BYTES = 2048 };

/* The factor for columns of x, with rows of so many elements.  The loop steps from row to row, too far for the hardware
 * prefetcher, and with slow arithmetic only a few rows are in flight at a time. */
static double stride_factor(const struct graph *g, ref x, int64_t row, int64_t far_bytes)
{
    enum { MANY_BYTES = 1 << 20 };
    bool far = row * (int64_t)dtype_size(g->node[x].dtype) >= far_bytes && (int64_t)node_bytes(g, x) >= MANY_BYTES;
    return far ? 2.5 : 1;
}

/* Of a row kernel.  A row of one vector is computed by itself: each primitive waits for the one before it. */
static double row_factor(int64_t length)
{
    static const double ALONE = 1.35;
    return lanes_factor(length) * (length > LANES ? 1 : ALONE);
}

static struct lane_cost lanes_of(const struct fuser *f, uint32_t id)
{
    const struct group *b = &f->group[id];
    struct row_space s;
    if (!b->anchor)
        return (struct lane_cost){lanes_factor(min_i64(b->run, b->numel)), lanes_factor(min_i64(b->run, b->numel))};
    const struct node *n = &f->g->node[b->anchor];
    if (op_is_reduce(n->op)) {
        if (b->rows && fuse_has_rows(f, id, &s))
            return (struct lane_cost){row_factor(s.length), ROW_FACTOR};
        const struct shape *in = node_shape(f->g, n->in[0]);
        int64_t run = 1; /* the last axes, all reduced or all kept, are the lanes */
        uint32_t d = in->rank, last = d;
        while (last > 1 && in->dim[last - 1] == 1)
            last--;
        bool reduced = last && n->attr.reduce.axes >> (last - 1) & 1;
        while (d-- > 0 && (in->dim[d] == 1 || reduced == (n->attr.reduce.axes >> d & 1)))
            run *= in->dim[d];
        if (reduced && lower_short_rows(f->g, b->anchor))
            return (struct lane_cost){1, 1};
        double far = reduced ? 1 : stride_factor(f->g, n->in[0], run, FAR_BYTES);
        return (struct lane_cost){far * lanes_factor(run), reduced ? 1 : lanes_factor(run)};
    }
    if (op_is_cumulative(n->op)) {
        struct split at = split_at(node_shape(f->g, b->anchor), n->attr.axis.axis);
        double far = stride_factor(f->g, b->anchor, at.inner, FAR_BYTES / 4);
        double factor = at.inner > 1 ? far * lanes_factor(at.inner) : LANES;
        return (struct lane_cost){factor, factor};
    }
    return (struct lane_cost){1, op_is_product(n->op) ? lanes_factor(dot_sizes(f->g, n).n) : 1};
}

double fuse_factor(const struct fuser *f, uint32_t id, ref x)
{
    const struct group *b = &f->group[id];
    struct lane_cost l = lanes_of(f, id);
    return b->anchor && node_numel(f->g, x) == b->numel ? l.result : l.full;
}

/* The arithmetic of a group's members; values with `results` elements have the factor of results. */
static double group_arithmetic(const struct fuser *f, uint32_t id, int64_t results, struct lane_cost l)
{
    double sum = 0;
    for (ref r = f->group[id].first; r; r = f->next[r])
        if (op_is_map(f->g->node[r].op) || op_is_masked(f->g->node[r].op)) { /* a masked view compares indices */
            int64_t n = node_numel(f->g, r);
            sum += fuse_work(f->g->node[r].op) * (double)n * (n == results ? l.result : l.full);
        }
    return sum;
}

static double max_bytes(const struct fuser *f, uint32_t id)
{
    double max = 0;
    for (ref r = f->group[id].first; r; r = f->next[r]) {
        const struct node *n = &f->g->node[r];
        double own = (double)node_bytes(f->g, r), in = n->nin ? (double)node_bytes(f->g, n->in[0]) : 0;
        max = own > max ? own : max;
        max = in > max && op_is_reduce(n->op) ? in : max;
    }
    return max;
}

/* The cost of storing the operand of a reduce over short rows, whose lanes are rows: each store is of a single element
 * and takes about two cycles.  Counts the elements of groups a and b that other groups read after these two are
 * fused. */
static double short_row_stores(struct fuser *f, uint32_t a, uint32_t b, ref anchor)
{
    enum { STORE_BYTES = 6 };
    if (!anchor || f->group[a].rows || f->group[b].rows || !lower_short_rows(f->g, anchor))
        return 0;
    const uint32_t id[] = {a, b};
    int64_t full = node_numel(f->g, f->g->node[anchor].in[0]), n = 0;
    for (int j = 0; j < (a == b ? 1 : 2); j++)
        for (ref r = f->group[id[j]].first; r; r = f->next[r])
            if (node_numel(f->g, r) == full && fuse_is_stored_after(f, r, a, b))
                n += full;
    return (double)(n * STORE_BYTES);
}

/* A value that one kernel stores and another reads may still be in a cache: half the time of memory. */
bool fuse_costs_more(struct fuser *f, uint32_t a, uint32_t b, enum join join, double saved)
{
    enum { SLIGHT = 16 };
    const struct group *ga = &f->group[a], *gb = &f->group[b];
    uint32_t anchored = ga->anchor ? a : b;
    struct lane_cost la = lanes_of(f, a), lb = lanes_of(f, b), l = lanes_of(f, anchored);
    struct row_space s;
    int64_t results = f->group[anchored].anchor ? f->group[anchored].numel : -1;
    double times = 1; /* a pad's kernel computes its operand for each of its own elements */
    if (join == JOIN_PADDED)
        times = (double)gb->numel / (double)(ga->numel > 0 ? ga->numel : 1);
    if (join == JOIN_MAP || join == JOIN_SIBLINGS || join == JOIN_PADDED)
        l.full = la.full > lb.full ? la.full : lb.full;
    else if (join == JOIN_ROWS && (fuse_has_rows(f, a, &s) || fuse_has_rows(f, b, &s)))
        l = (struct lane_cost){row_factor(s.length), ROW_FACTOR}, results = s.rows;
    double apart = group_arithmetic(f, a, ga->anchor ? ga->numel : -1, la);
    apart += group_arithmetic(f, b, gb->anchor ? gb->numel : -1, lb);
    double more = times * group_arithmetic(f, a, results, l) + group_arithmetic(f, b, results, l) - apart;
    if (join != JOIN_ROWS)
        more += short_row_stores(f, a, b, f->group[anchored].anchor) -
                short_row_stores(f, anchored, anchored, f->group[anchored].anchor);
    if (more <= saved / 2)
        return false;
    double bytes_a = max_bytes(f, a), bytes_b = max_bytes(f, b);
    return more - saved / 2 > (apart + (bytes_a > bytes_b ? bytes_a : bytes_b)) / SLIGHT;
}
