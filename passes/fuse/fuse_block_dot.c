/* Makes one kernel of a product of quantized operands whose scales are those of blocks along the contraction
 * (frontend/layers/quantized/quant_product.c): products of integers, a batch of one for each block, the elementwise
 * values that scale them, and the sum over the blocks.  Otherwise each block's products would be stored.  Integers that
 * are unpacked from bytes for the second operand belong to the kernel, too (lower_dot_scaled.c), as do scales that are
 * made of arrays of fewer bytes, such as integers times the scales of super-blocks. */
#include "fuse.h"

enum { MAX_SCALES = 8, MAX_UNPACK = 24, SCALE_DEPTH = 6 };

/* Nodes from the product to the sum, and those that compute the product's second operand or what scales products. */
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
    for (uint32_t i = 0; i < b->n; i++)
        found |= b->chain[i] == r;
    return found;
}

/* Is x an elementwise value that only members of the kernel read? */
static bool is_map_inside(const struct fuser *f, const struct block_chain *b, ref x)
{
    const struct node *n = &f->g->node[x], *dot = &f->g->node[b->chain[0]];
    bool inside = group_of(f, x) != GROUP_NONE && (op_is_map(n->op) || n->op == OP_bitcast) &&
                  n->device == dot->device && only_inside(f, x) && !((n->flags ^ dot->flags) & MARK_REMAT);
    for (uint32_t k = f->readers[x]; k < f->readers[x + 1] && inside; k++)
        inside = is_listed(b, f->reader[k]);
    return inside;
}

/* Is x computed from bytes only, and read only by the product or what it is unpacked by? */
static bool is_unpacking(const struct fuser *f, const struct block_chain *b, ref x)
{
    const struct node *n = &f->g->node[x];
    bool bytes = dtype_size(n->dtype) == 1 && is_map_inside(f, b, x);
    for (unsigned i = 0; i < n->nin && bytes; i++)
        bytes = dtype_size(f->g->node[n->in[i]].dtype) == 1;
    return bytes;
}

/* Bytes of the arrays from which elementwise values are computed in a few steps; more steps count as arrays. */
static int64_t bytes_of_arrays(const struct fuser *f, ref x, int depth)
{
    const struct node *n = &f->g->node[x];
    int64_t bytes = 0;
    bool linear;
    if (group_of(f, x) == GROUP_NONE || !op_is_map(n->op) || !only_inside(f, x) || depth == 0)
        return (int64_t)node_bytes(f->g, x);
    for (unsigned i = 0; i < n->nin; i++)
        bytes += bytes_of_arrays(f, node_operand(f->g, x, i, &linear), depth - 1);
    return bytes;
}

/* Is x, which scales the products, computed where it is read?  Those as large as the products are, and those made of
 * fewer bytes. */
static bool is_scaling(const struct fuser *f, const struct block_chain *b, ref x)
{
    return is_map_inside(f, b, x) && (node_numel(f->g, x) == node_numel(f->g, b->chain[0]) ||
                                      bytes_of_arrays(f, x, SCALE_DEPTH) < (int64_t)node_bytes(f->g, x));
}

/* Adds to the list, from entry `at` on, what computes the operands of its entries, and is of that kind.  A node is
 * added after all its readers.  not: a node that is none of them. */
typedef bool block_member(const struct fuser *f, const struct block_chain *b, ref x);
static void list_operands(const struct fuser *f, struct block_chain *b, uint32_t at, block_member *is, ref not)
{
    bool linear;
    for (; at < b->nunpack; at++)
        for (unsigned i = 0; i < f->g->node[b->unpack[at]].nin; i++) {
            ref y = node_operand(f->g, b->unpack[at], i, &linear);
            if (b->nunpack < MAX_UNPACK && !is_listed(b, y) && y != not && is(f, b, y))
                b->unpack[b->nunpack++] = y;
        }
}

/* Lists what computes the second operand. */
static void list_unpacking(const struct fuser *f, struct block_chain *b)
{
    bool linear;
    ref x = node_operand(f->g, b->chain[0], 1, &linear), first = node_operand(f->g, b->chain[0], 0, &linear);
    if (x == first || !is_unpacking(f, b, x))
        return;
    b->unpack[b->nunpack++] = x;
    list_operands(f, b, 0, is_unpacking, first);
}

/* Lists what computes the other operands of the values between the product and the sum. */
static void list_scaling(const struct fuser *f, struct block_chain *b)
{
    bool linear;
    for (uint32_t c = 1; c + 1 < b->n; c++)
        for (unsigned i = 0; i < f->g->node[b->chain[c]].nin; i++) {
            ref y = node_operand(f->g, b->chain[c], i, &linear);
            if (b->nunpack == MAX_UNPACK || is_listed(b, y) || !is_scaling(f, b, y))
                continue;
            b->unpack[b->nunpack++] = y;
            list_operands(f, b, b->nunpack - 1, is_scaling, NIL);
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
        list_scaling(f, &b);
        join_all(f, &b);
    }
}
