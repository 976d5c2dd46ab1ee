/* Sets the order of operations of each reduction, dot and attention (node.h, "Numeric order").
 *
 * It depends on the op, on dtypes, and on which axes are combined and how long these are; not on how many results
 * there are (rows of a batch, columns, heads), the host, threads, tiles or views; but for large products of bf16 where
 * the device has instructions for tiles of them, which have even_odd order.  Of the device it uses these properties:
 * which instructions for bf16 it has.  Every executor that follows what is written gets the same bits.  No later pass
 * changes the order. */
#include "passes/passes.h"

enum { MIN_RUN = 16 }; /* adjacent elements needed for lanes to be worth reducing at the end */
enum { KEY_BLOCK = 64 }; /* keys of attention per rescaling of the sums by a new maximum score */

/* The chunk of lanes where the reduced elements are rows of `run` adjacent elements with others between them: whole
 * rows, or an even part of one, so that no vector contains the end of one row and the beginning of the next. */
static int64_t chunk_of_rows(int64_t run)
{
    if (run <= LANE_CHUNK)
        return run % 64 ? run : LANE_CHUNK / run * run;
    for (int64_t parts = 2; run / parts >= LANE_CHUNK / 16; parts++)
        if (run % parts == 0 && run / parts <= LANE_CHUNK)
            return run / parts;
    return run;
}

/* Lengths of kept axes do not matter: an element of the result has the same bits whatever is computed beside it. */
static void order_reduce(const struct graph *g, struct node *n)
{
    const struct shape *s = node_shape(g, n->in[0]);
    int64_t len = 1, run = 1;
    uint32_t end = s->rank;
    for (uint32_t i = 0; i < s->rank; i++)
        len *= n->attr.reduce.axes >> i & 1 ? s->dim[i] : 1;
    while (end && n->attr.reduce.axes >> (end - 1) & 1)
        run *= s->dim[--end];
    bool lanes = run != 1;
    n->attr.reduce.lanes = lanes ? 64 : 1;
    int64_t chunk = !lanes ? COLUMN_CHUNK : run < len && run >= MIN_RUN ? chunk_of_rows(run) : LANE_CHUNK;
    n->attr.reduce.chunk = (uint64_t)(len < chunk ? (len > 0 ? len : 1) : chunk);
}

/* Is a product of bf16 faster by tiles of 16 x 16 results?  They need some of both operands' rows and columns, and a
 * contraction that outweighs what is packed and stored. */
static bool tiles_pay(const struct graph *g, const struct node *n)
{
    enum { ROWS = 32, LENGTH = 64, PRODUCTS = 1 << 20 };
    struct dot_dims z = dot_sizes(g, n);
    return n->dtype == KL_BF16 && !(n->attr.dot.order & DOT_ANY_SIZE) && z.m >= ROWS && z.n >= ROWS && z.k >= LENGTH &&
           (double)z.m * (double)z.n * (double)z.k >= PRODUCTS;
}

/* Even blocks of at most DOT_BLOCK products, rounded up to multiples of DOT_BLOCK_MULTIPLE. */
static void order_dot(const struct graph *g, struct node *n, const struct pass_options *o)
{
    n->attr.dot.lanes = 1;
    if (o->bf16_tiles >> n->device & 1 && tiles_pay(g, n)) {
        n->attr.dot.kblock = EVEN_ODD_BLOCK;
        n->attr.dot.order |= DOT_EVEN_ODD;
        return;
    }
    int64_t k = dot_sizes(g, n).k, blocks = (k + DOT_BLOCK - 1) / DOT_BLOCK;
    int64_t len = blocks ? (k + blocks - 1) / blocks : 1;
    n->attr.dot.kblock = (uint32_t)((len + DOT_BLOCK_MULTIPLE - 1) / DOT_BLOCK_MULTIPLE * DOT_BLOCK_MULTIPLE);
    n->attr.dot.order |= n->dtype == KL_BF16 && (o->bf16_dot2 >> n->device & 1) ? DOT_PAIRS : 0;
}

static bool has_symbolic_operand(const struct graph *g, const struct node *n)
{
    bool any = false;
    for (unsigned i = 0; i < n->nin; i++)
        any |= shape_is_symbolic(node_shape(g, n->in[i]));
    return any;
}

int pass_numerics(struct graph *g, const struct pass_options *o)
{
    int changed = 0;
    for (ref r = 1; r < g->nnode; r++) {
        struct node *n = &g->node[r];
        if (g->symbols && has_symbolic_operand(g, n)) /* its order is set when its sizes are known */
            continue;
        if (op_is_reduce(n->op) && !n->attr.reduce.lanes) {
            order_reduce(g, n);
            changed = 1;
        } else if (n->op == OP_dot && !n->attr.dot.kblock) {
            order_dot(g, n, o);
            changed = 1;
        } else if (op_is_attention(n->op) && !n->attr.attention.block) {
            n->attr.attention.block = KEY_BLOCK;
            changed = 1;
        }
    }
    return changed;
}
