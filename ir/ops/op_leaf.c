/* Leaves: input, state, const, slot, iota, random. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

/* No gradient flows to what has no operands. */
#define NO_GRADIENT(name)                                          \
    void vjp_##name(struct graph *g, ref y, ref dy, ref *din)      \
    {                                                              \
        (void)g, (void)y, (void)dy, (void)din;                     \
    }

static bool dtype_exists(const struct node *n, struct err *e)
{
    if (n->dtype < KL_DTYPE_COUNT)
        return true;
    return err_set(e, KL_ERR_TYPE, "%s: dtype %u does not exist", opinfo[n->op].name, n->dtype);
}

/* The node's type must equal that of its leaf table's entry. */
static bool shape_in_table(const struct graph *g, const struct leaves *l, struct node *n,
                           const struct shape *out, struct err *e)
{
    const char *op = opinfo[n->op].name;
    uint32_t index = n->attr.leaf.index;
    if (index >= l->n)
        return err_set(e, KL_ERR_INTERNAL, "%s: the graph has no %s %u", op, op, index);
    const struct leaf *leaf = &l->v[index];
    if (leaf->dtype != n->dtype)
        return err_set(e, KL_ERR_TYPE, "%s %u: dtype %s differs from the declared %s", op, index, dtype_name(n->dtype),
                       dtype_name(leaf->dtype));
    if (!shape_equal(&g->shape[leaf->shape], out)) {
        char a[SHAPE_TEXT], b[SHAPE_TEXT];
        return err_set(e, KL_ERR_SHAPE, "%s %u: shape %s differs from the declared %s", op, index,
                       shape_text_in(g, out, a, sizeof a), shape_text_in(g, &g->shape[leaf->shape], b, sizeof b));
    }
    return attr_clear_rest(n, sizeof n->attr.leaf);
}

static bool is_scalar(const struct graph *g, const struct node *n, const struct shape *out, struct err *e)
{
    char text[SHAPE_TEXT];
    if (out->rank == 0)
        return true;
    return err_set(e, KL_ERR_SHAPE, "%s: is a scalar, not %s", opinfo[n->op].name,
                   shape_text_in(g, out, text, sizeof text));
}

/* The executor binds the data of inputs, states and slots; kernels load it, so there is no element to emit. */
static uint32_t lower_bound_leaf(struct lower *l, ref r)
{
    err_set(&l->k->err, KL_ERR_INTERNAL, "%s: node %u is stored and cannot be computed in place",
            opinfo[node_at(l->g, r)->op].name, r);
    return 0;
}

/* ---- input ---- */

bool shape_input(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    return shape_in_table(g, &g->input, n, out, e);
}

bool eval_input(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    size_t bytes = (size_t)shape_count(&g->shape[n->shape]) * dtype_size(n->dtype);
    if (bytes)
        memcpy(out, in[0], bytes);
    return true;
}

NO_GRADIENT(input)

uint32_t lower_input(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    return lower_bound_leaf(l, r);
}

/* ---- state ---- */

bool shape_state(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    return shape_in_table(g, &g->state, n, out, e);
}

bool eval_state(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_input(g, n, out, in);
}

NO_GRADIENT(state)

uint32_t lower_state(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    return lower_bound_leaf(l, r);
}

/* ---- const ---- */

bool shape_const(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (!dtype_exists(n, e) || !is_scalar(g, n, out, e))
        return false;
    uint64_t bits = n->attr.konst.bits, max = n->dtype == KL_BOOL ? 1 : UINT64_MAX >> (64 - 8 * dtype_size(n->dtype));
    if (bits > max)
        return err_set(e, KL_ERR_INTERNAL, "const: bits 0x%llx do not fit %s", (unsigned long long)bits,
                       dtype_name(n->dtype));
    return attr_clear_rest(n, sizeof n->attr.konst);
}

bool eval_const(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    (void)g, (void)in;
    memcpy(out, &n->attr.konst.bits, dtype_size(n->dtype));
    return true;
}

NO_GRADIENT(const)

uint32_t lower_const(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    const struct node *n = node_at(l->g, r);
    return k_bits(l->k, n->dtype, n->attr.konst.bits);
}

/* ---- slot ---- */

bool shape_slot(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    return is_scalar(g, n, out, e) && shape_in_table(g, &g->slot, n, out, e);
}

bool eval_slot(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_input(g, n, out, in);
}

NO_GRADIENT(slot)

uint32_t lower_slot(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    const struct node *n = node_at(l->g, r);
    return k_inst(l->k, L_SLOT, n->dtype, 0, 0, 0, n->attr.leaf.index);
}

/* ---- iota ---- */

bool shape_iota(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (!dtype_exists(n, e))
        return false;
    if (n->dtype == KL_BOOL)
        return err_set(e, KL_ERR_TYPE, "iota: needs a number dtype, got bool");
    if (n->attr.axis.axis >= out->rank) {
        char text[SHAPE_TEXT];
        return err_set(e, KL_ERR_SHAPE, "iota: axis %u is out of range for shape %s", n->attr.axis.axis,
                       shape_text_in(g, out, text, sizeof text));
    }
    return attr_clear_rest(n, sizeof n->attr.axis);
}

bool eval_iota(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    (void)in;
    const struct shape *s = &g->shape[n->shape], stride = coord_strides(s);
    uint32_t axis = n->attr.axis.axis;
    int64_t count = shape_count(s);
    size_t size = dtype_size(n->dtype);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = dtype_bits_i64(n->dtype, i / stride.dim[axis] % s->dim[axis]);
        memcpy((char *)out + (size_t)i * size, &bits, size);
    }
    return true;
}

NO_GRADIENT(iota)

uint32_t lower_iota(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    return k_cast(l->k, coord[n->attr.axis.axis], n->dtype);
}

/* ---- random: element i is Threefry of (seed, i), so each element can be computed independently ---- */

bool shape_random(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    (void)out;
    const struct node *seed = node_at(g, n->in[0]);
    if (n->dtype != KL_U32 && n->dtype != KL_U64)
        return err_set(e, KL_ERR_TYPE, "random: makes u32 or u64, not %s", dtype_name(n->dtype));
    if (seed->dtype != KL_U64)
        return err_set(e, KL_ERR_TYPE, "random: the seed must be u64, got %s", dtype_name(seed->dtype));
    if (g->shape[seed->shape].rank != 0) {
        char text[SHAPE_TEXT];
        return err_set(e, KL_ERR_SHAPE, "random: the seed must be a scalar, got shape %s",
                       shape_text_in(g, &g->shape[seed->shape], text, sizeof text));
    }
    return attr_clear_rest(n, 0);
}

bool eval_random(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    uint64_t seed;
    memcpy(&seed, in[0], sizeof seed);
    uint64_t count = (uint64_t)shape_count(&g->shape[n->shape]);
    for (uint64_t i = 0; i < count; i++)
        if (n->dtype == KL_U32)
            ((uint32_t *)out)[i] = scalar_threefry_u32(seed, i);
        else
            ((uint64_t *)out)[i] = scalar_threefry_u64(seed, i);
    return true;
}

void vjp_random(struct graph *g, ref y, ref dy, ref *din)
{
    (void)g, (void)y, (void)dy;
    din[0] = NIL;
}

uint32_t lower_random(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    const struct shape *s = node_shape(l->g, r), stride = coord_strides(s);
    val index = k_int(l->k, 0);
    for (uint32_t i = 0; i < s->rank; i++)
        index = ix_add(l->k, index, ix_scale_size(l->k, coord[i], kernel_length(l->k, stride.dim[i])));
    return k_threefry(l->k, n->dtype, l->at(l, n->in[0], coord), k_cast(l->k, index, KL_U64));
}
