/* Makes one kernel of a product of quantized operands whose scales are those of blocks along the contraction
 * (frontend/layers/quant_product.c): products of integers, a batch of one for each block, the elementwise values that
 * scale them, and the sum over the blocks.  Otherwise each block's products would be stored.  Integers that are
 * unpacked from bytes for the second operand belong to the kernel, too (lower_dot_scaled.c). */
#include "fuse.h"

enum { MAX_SCALES = 8, MAX_UNPACK = 12 };

/* Nodes from the product to the sum, and those that compute the product's second operand. */
struct block_chain { ref chain[MAX_SCALES]; uint32_t n; ref unpack[MAX_UNPACK]; uint32_t nunpack; };

static bool only_inside(const struct fuser *f, ref r) { return !f->output[r] && !f->viewed[r]; }

/* The only reader of r, through one operand and without views; NIL: it has others. */
static ref only_reader(const struct fuser *f, ref r)
{
    if (!only_inside(f, r) || f->readers[r + 1] - f->readers[r] != 1)
        return NIL;
    ref s = f->reader[f->readers[r]];
    for (unsigned i = 0; i < f->g->node[s].nin; i++)
        if (f->g->node[s].in[i] == r)
            return s;
    return NIL;
}

static bool is_product_of_bytes(const struct fuser *f, ref r)
{
    const struct node *n = &f->g->node[r];
    bool bytes = op_is_product(n->op) && n->dtype == KL_I32 && n->attr.dot.sum == KL_I32 &&
                 dtype_size(f->g->node[n->in[0]].dtype) == 1 && dtype_size(f->g->node[n->in[1]].dtype) == 1;
    return bytes && n->attr.dot.nbatch && n->attr.dot.ncon && group_of(f, r) != GROUP_NONE &&
           f->processor.devices >> n->device & 1 && node_numel(f->g, r) > 0;
}

/* Is reduce r the sum over the batch of product `dot`? */
static bool sums_batch(const struct fuser *f, ref r, ref dot)
{
    const struct node *n = &f->g->node[r];
    return n->op == OP_sum && n->attr.reduce.axes == (1u << f->g->node[dot].attr.dot.nbatch) - 1 &&
           n->attr.reduce.lanes == 1 && n->dtype == KL_F32;
}

/* Follows the values computed from the product to the sum; false: they end elsewhere. */
static bool follow_chain(const struct fuser *f, ref dot, struct block_chain *b)
{
    for (ref r = b->chain[b->n++] = dot; b->n < MAX_SCALES;) {
        ref s = only_reader(f, r);
        const struct node *n = &f->g->node[s];
        if (!s || group_of(f, s) == GROUP_NONE || n->device != f->g->node[dot].device ||
            (n->flags & MARK_REMAT) != (f->g->node[dot].flags & MARK_REMAT))
            return false;
        b->chain[b->n++] = s;
        if (op_is_reduce(n->op))
            return n->in[0] == r && sums_batch(f, s, dot);
        if (!op_is_map(n->op) || !shape_equal(node_shape(f->g, s), node_shape(f->g, dot)))
            return false;
        r = s;
    }
    return false;
}

static bool is_listed(const struct block_chain *b, ref r)
{
    bool found = false;
    for (uint32_t i = 0; i < b->nunpack; i++)
        found |= b->unpack[i] == r;
    return found;
}

/* Is x computed from bytes only, and read only by the product or what it is unpacked by? */
static bool is_unpacking(const struct fuser *f, const struct block_chain *b, ref x)
{
    const struct node *n = &f->g->node[x], *dot = &f->g->node[b->chain[0]];
    bool map = op_is_map(n->op) || n->op == OP_bitcast;
    bool bytes = group_of(f, x) != GROUP_NONE && map && dtype_size(n->dtype) == 1 && n->device == dot->device &&
                 only_inside(f, x) && !((n->flags ^ dot->flags) & MARK_REMAT);
    for (unsigned i = 0; i < n->nin && bytes; i++)
        bytes = dtype_size(f->g->node[n->in[i]].dtype) == 1;
    for (uint32_t k = f->readers[x]; k < f->readers[x + 1] && bytes; k++)
        bytes = f->reader[k] == b->chain[0] || is_listed(b, f->reader[k]);
    return bytes;
}

/* Lists what computes the second operand; each node is added after all its readers. */
static void list_unpacking(const struct fuser *f, struct block_chain *b)
{
    bool linear;
    ref x = node_operand(f->g, b->chain[0], 1, &linear), first = node_operand(f->g, b->chain[0], 0, &linear);
    if (x == first || !is_unpacking(f, b, x))
        return;
    b->unpack[b->nunpack++] = x;
    for (uint32_t at = 0; at < b->nunpack; at++)
        for (unsigned i = 0; i < f->g->node[b->unpack[at]].nin; i++) {
            ref y = node_operand(f->g, b->unpack[at], i, &linear);
            if (b->nunpack < MAX_UNPACK && !is_listed(b, y) && y != first && is_unpacking(f, b, y))
                b->unpack[b->nunpack++] = y;
        }
}

static void join_all(struct fuser *f, const struct block_chain *b)
{
    ref dot = b->chain[0], sum = b->chain[b->n - 1];
    for (uint32_t i = 1; i < b->n + b->nunpack; i++) {
        ref r = i < b->n ? b->chain[i] : b->unpack[i - b->n];
        fuse_join(f, group_of(f, dot), group_of(f, r), JOIN_SIBLINGS);
    }
    struct group *g = &f->group[group_of(f, dot)];
    for (ref r = g->first; r; r = f->next[r])
        f->prologue[r] = r != sum;
    g->anchor = sum;
    g->numel = node_numel(f->g, sum);
    g->block_dot = true;
}

void fuse_block_dots(struct fuser *f)
{
    for (ref r = 1; r < f->g->nnode; r++) {
        struct block_chain b = {.n = 0};
        if (!is_product_of_bytes(f, r) || !follow_chain(f, r, &b))
            continue;
        list_unpacking(f, &b);
        join_all(f, &b);
    }
}
