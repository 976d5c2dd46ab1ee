/* permute(dot(a, b)) becomes dot(b, a) where the permute only exchanges the free axes of a with those of b: the same
 * sums in the same order, stored where they are read.  The gradient of weights that are stored [out, in] and used as
 * their transpose is such a permute; without this rule what updates the weights reads it with a stride.
 *
 * Casts between the permute and the product come behind the new product.
 *
 * A product of a large matrix with a few columns becomes permute(dot(b, a)): lanes then belong to the matrix's rows,
 * which are read once (dot_skinny).  So does, on this machine's processor, a product of a few rows with a large matrix
 * that is stored as its transpose: that is then read in place instead of being packed in another order for each few
 * rows.
 *
 * In: a graph; one with grad nodes is not changed.  Out: an equal graph.  The first dot must have no other reader. */
#include "passes/passes.h"
#include "rewrite.h"

enum { MIN_COLUMNS = 32 }; /* of the new product: one of fewer columns leaves lanes unused */
enum { FEW_COLUMNS = 8, LARGE = 1 << 16 }; /* at most; elements of the matrix, at least */
enum { FEW_ROWS = 64, LONG = 512 }; /* at most; elements of the contraction of a stored transpose, at least */

/* How many operands and outputs each node is; NULL: no memory. */
static uint32_t *count_uses(const struct graph *g)
{
    uint32_t *uses = mem_alloc(g->nnode * sizeof *uses);
    for (ref r = 1; uses && r < g->nnode; r++)
        for (unsigned i = 0; i < node_nin(&g->node[r]); i++)
            uses[node_in(g, &g->node[r], i)]++;
    for (uint32_t i = 0; uses && i < g->nout; i++)
        uses[g->out[i].value]++;
    return uses;
}

/* The product of which node r is made by casts that nothing else reads; NIL: there is none. */
static ref product_below(const struct graph *g, ref r, const uint32_t *uses)
{
    while (g->node[r].op == OP_cast && uses[r] == 1)
        r = g->node[r].in[0];
    return op_is_product(g->node[r].op) && dtype_is_float(g->node[r].dtype) && uses[r] == 1 ? r : NIL;
}

/* Is node r a permute of a product that can be replaced by the product of the exchanged operands? */
static bool exchanges_operands(const struct graph *g, ref r, const uint32_t *uses)
{
    const struct node *n = &g->node[r];
    ref product = n->op == OP_permute ? product_below(g, n->in[0], uses) : NIL;
    if (!product || shape_is_symbolic(node_shape(g, product)))
        return false;
    const struct node *dot = &g->node[product];
    const struct shape *s = node_shape(g, product);
    uint32_t batch = dot->attr.dot.nbatch, rows = node_shape(g, dot->in[0])->rank - batch - dot->attr.dot.ncon;
    uint32_t columns = s->rank - batch - rows;
    int64_t new_columns = 1;
    for (uint32_t i = 0; i < s->rank; i++) {
        uint32_t from = i < batch ? i : i < batch + columns ? i + rows : i - columns;
        if (n->attr.permute.perm[i] != from)
            return false;
        new_columns *= from >= batch && from < batch + rows ? s->dim[from] : 1;
    }
    return new_columns >= MIN_COLUMNS;
}

/* Is node r a product of a large matrix with few columns? */
static bool has_few_columns(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r];
    if (!op_is_product(n->op) || !dtype_is_float(n->dtype) || shape_is_symbolic(node_shape(g, r)) ||
        shape_is_symbolic(node_shape(g, n->in[0])))
        return false;
    struct dot_dims z = dot_sizes(g, n);
    return z.batch == 1 && z.n <= FEW_COLUMNS && z.m >= MIN_COLUMNS * FEW_COLUMNS && z.m * z.k >= LARGE;
}

/* Is node r an f32 product, on a processor, of a few rows with a large matrix whose contraction is its last axis in
 * memory? */
static bool has_few_rows(const struct graph *g, ref r, const struct pass_options *o)
{
    const struct node *n = &g->node[r];
    if (!o || !(o->processor.devices >> n->device & 1) || !op_is_product(n->op) || n->dtype != KL_F32 ||
        shape_is_symbolic(node_shape(g, r)) || shape_is_symbolic(node_shape(g, n->in[0])))
        return false;
    const struct node *b = &g->node[n->in[1]];
    uint32_t axis = n->attr.dot.con_b & 15;
    ref stored = n->in[1];
    if (b->op == OP_permute) {
        axis = b->attr.permute.perm[axis];
        stored = b->in[0];
    }
    struct dot_dims z = dot_sizes(g, n);
    return n->attr.dot.ncon == 1 && axis + 1 == node_shape(g, stored)->rank && g->node[stored].dtype == KL_F32 &&
           node_is_stored_leaf(g, stored) && z.batch == 1 && z.m > FEW_COLUMNS && z.m <= FEW_ROWS &&
           z.n >= MIN_COLUMNS * FEW_COLUMNS && z.k >= LONG;
}

/* Is node r a product that is computed with its operands in the other order? */
static bool has_few(const struct graph *g, ref r, const struct pass_options *o)
{
    return has_few_columns(g, r) || has_few_rows(g, r, o);
}

/* The product r of g, of operands in the other order, with its axes as they were. */
static ref permuted_product(struct rewrite *w, const struct graph *g, ref r, ref swapped)
{
    const struct node *dot = &g->node[r];
    uint8_t perm[KL_MAX_RANK];
    uint32_t rank = node_shape(g, r)->rank, batch = dot->attr.dot.nbatch;
    uint32_t rows = node_shape(g, dot->in[0])->rank - batch - dot->attr.dot.ncon, columns = rank - batch - rows;
    for (uint32_t i = 0; i < rank; i++)
        perm[i] = (uint8_t)(i < batch ? i : i < batch + rows ? i + columns : i - rows);
    return n_permute(w->to, swapped, perm);
}

/* What node r of g is, a product behind casts, of operands in the other order, in the new graph. */
static ref swapped_product(struct rewrite *w, const struct graph *g, ref r)
{
    const struct node *dot = &g->node[r];
    if (dot->op == OP_cast)
        return n_cast(w->to, swapped_product(w, g, dot->in[0]), dot->dtype);
    struct node n = *dot;
    n.in[0] = w->map[dot->in[1]];
    n.in[1] = w->map[dot->in[0]];
    n.attr.dot.batch_a = dot->attr.dot.batch_b;
    n.attr.dot.batch_b = dot->attr.dot.batch_a;
    n.attr.dot.con_a = dot->attr.dot.con_b;
    n.attr.dot.con_b = dot->attr.dot.con_a;
    return graph_add(w->to, &n, NULL);
}

int pass_swap_products(struct graph *g, const struct pass_options *o)
{
    struct rewrite w;
    uint32_t *uses = count_uses(g);
    bool any = false;
    if (!uses)
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory exchanging operands of @%s", g->name), -1;
    for (ref r = 1; r < g->nnode && !any; r++)
        any = exchanges_operands(g, r, uses) || has_few(g, r, o);
    int changed = 0;
    if (any) {
        if (rewrite_begin(&w, g))
            for (ref r = 1; r < g->nnode && !w.to->err.code; r++) {
                rewrite_site(&w, r);
                const struct node *n = &g->node[r];
                if (exchanges_operands(g, r, uses))
                    w.map[r] = swapped_product(&w, g, n->in[0]);
                else if (has_few(g, r, o))
                    w.map[r] = permuted_product(&w, g, r, swapped_product(&w, g, r));
                else
                    rewrite_copy(&w, r);
            }
        changed = rewrite_end(&w);
        if (changed > 0 && pass_dce(g, o) < 0) /* the products that were replaced */
            changed = -1;
    }
    mem_free(uses);
    return changed;
}
