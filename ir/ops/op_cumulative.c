/* Scans along one axis: cumulative sum, product, maximum and minimum, and the linear recurrence, which their gradients
 * use. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

enum fold cumulative_fold(unsigned op)
{
    return op == OP_cumsum ? FOLD_ADD : op == OP_cumprod ? FOLD_MUL : op == OP_cummax ? FOLD_MAX : FOLD_MIN;
}

static bool recurrence_operands(const struct graph *g, const struct node *n, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]), *b = node_at(g, n->in[1]);
    char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
    if (a->dtype != b->dtype)
        return err_set(e, KL_ERR_TYPE, "recurrence: dtypes %s and %s differ", dtype_name(a->dtype),
                       dtype_name(b->dtype));
    return a->shape == b->shape || err_set(e, KL_ERR_SHAPE, "recurrence: shapes %s and %s differ",
                                           shape_text_in(g, &g->shape[a->shape], ta, sizeof ta),
                                           shape_text_in(g, &g->shape[b->shape], tb, sizeof tb));
}

bool shape_prefix_scan(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]);
    if (n->op == OP_recurrence && !recurrence_operands(g, n, e))
        return false;
    const char *op = opinfo[n->op].name;
    *out = g->shape[a->shape];
    if (a->dtype == KL_BOOL)
        return err_set(e, KL_ERR_TYPE, "%s: needs a number dtype, got bool", op);
    if (!axis_in_range(op, out, n->attr.axis.axis, e))
        return false;
    n->dtype = a->dtype;
    return attr_clear_rest(n, sizeof n->attr.axis);
}

/* ---- evaluation: row by row of the elements with consecutive positions along the axis ---- */

/* y = a * before + b, in f32, f64 or integers. */
static bool recurrence_row(unsigned dtype, void *y, const void *a, const void *before, const void *b, int64_t n)
{
    for (int64_t i = 0; dtype == KL_F32 && i < n; i++)
        ((float *)y)[i] = __builtin_fmaf(((const float *)a)[i], ((const float *)before)[i], ((const float *)b)[i]);
    for (int64_t i = 0; dtype == KL_F64 && i < n; i++)
        ((double *)y)[i] = __builtin_fma(((const double *)a)[i], ((const double *)before)[i], ((const double *)b)[i]);
    return dtype_is_float(dtype) || (scalar_apply(OP_mul, dtype, y, (const void *const[]){a, before}, n) &&
                                     scalar_apply(OP_add, dtype, y, (const void *const[]){y, b}, n));
}

static bool cumulative_array(const struct graph *g, const struct node *n, unsigned dtype, void *out,
                             const void *const *in)
{
    struct split s = split_at(&g->shape[n->shape], n->attr.axis.axis);
    size_t row = (size_t)s.inner * dtype_size(dtype);
    bool ok = true, pair = n->op == OP_recurrence;
    for (int64_t i = 0; ok && row && i < s.outer * s.len; i++) {
        char *y = (char *)out + (size_t)i * row;
        const char *x = (const char *)in[0] + (size_t)i * row, *b = pair ? (const char *)in[1] + (size_t)i * row : x;
        if (i % s.len == 0)
            memcpy(y, b, row);
        else if (pair)
            ok = recurrence_row(dtype, y, x, y - row, b, s.inner);
        else
            ok = scalar_apply(fold_op(cumulative_fold(n->op)), dtype, y, (const void *const[]){y - row, x}, s.inner);
    }
    return ok;
}

bool eval_prefix_scan(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_widened(g, n, out, in, cumulative_array);
}

/* ---- kernels ---- */

val cumulative_step(struct kernel *k, unsigned op, val before, val a, val b)
{
    if (op != OP_recurrence)
        return k_fold_step(k, cumulative_fold(op), before, a);
    if (dtype_is_float(val_dtype(k, a)))
        return k_prim(k, P_FMA, a, before, b);
    return k_prim(k, P_ADD, k_prim(k, P_MUL, a, before, 0), b, 0);
}

/* Emits one element: the whole row is scanned, but steps after the element's position do nothing. */
uint32_t lower_prefix_scan(struct lower *l, ref r, const uint32_t *coord)
{
    struct kernel *k = l->k;
    const struct node *n = node_at(l->g, r);
    const struct shape *s = node_shape(l->g, r);
    uint32_t axis = n->attr.axis.axis;
    unsigned dtype = dtype_compute(n->dtype);
    val first[KL_MAX_RANK] = {0}, at[KL_MAX_RANK] = {0};
    if (shape_count(s) == 0)
        return k_bits(k, n->dtype, 0); /* no elements, so never stored */
    for (uint32_t i = 0; i < s->rank; i++)
        first[i] = at[i] = coord[i];
    first[axis] = k_int(k, 0);
    val start = lower_lanes(l, k_cast(k, l->at(l, n->in[n->op == OP_recurrence], first), dtype));
    if (s->dim[axis] == 1)
        return k_cast(k, start, n->dtype);
    val place = at[axis] = k_loop(k, LOOP_SERIAL, k_int(k, 1), k_int(k, s->dim[axis]), 1);
    val acc = k_carry(k, start), x[2] = {0};
    for (unsigned i = 0; i < n->nin; i++)
        x[i] = k_cast(k, l->at(l, n->in[i], at), dtype);
    val taken = k_prim(k, P_LE, place, coord[axis], 0);
    k_next(k, acc, k_prim(k, P_SELECT, taken, cumulative_step(k, n->op, acc, x[0], x[1]), acc));
    k_end(k, place);
    return k_cast(k, k_out(k, acc), n->dtype);
}

/* ---- gradients: reverse scans ---- */

static ref flip_one_axis(struct graph *g, ref x, uint32_t axis) { return n_flip(g, x, 1u << axis); }

/* The gradient of a recurrence: s with s_t = dy_t + a_(t+1) s_(t+1). */
static ref recurrence_backward(struct graph *g, ref a, ref dy, uint32_t axis)
{
    ref zero = n_const(g, node_at(g, dy)->dtype, 0), later = n_shift(g, flip_one_axis(g, a, axis), zero, axis);
    return flip_one_axis(g, n_recurrence(g, later, flip_one_axis(g, dy, axis), axis), axis);
}

void vjp_cumsum(struct graph *g, ref y, ref dy, ref *din)
{
    uint32_t axis = node_at(g, y)->attr.axis.axis;
    din[0] = flip_one_axis(g, n_cumulative(g, OP_cumsum, flip_one_axis(g, dy, axis), axis), axis);
}

/* The product of the elements before, times the incoming gradient; there is no division by elements, so zeros need no
 * special case. */
void vjp_cumprod(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    uint32_t axis = n.attr.axis.axis;
    ref before = n_shift(g, y, n_const(g, n.dtype, dtype_bits(n.dtype, 1)), axis);
    din[0] = n_mul(g, before, recurrence_backward(g, n.in[0], dy, axis));
}

/* The positions that changed the result; the first one counts. */
static ref changed_places(struct graph *g, ref y, uint32_t axis)
{
    struct shape s = *node_shape(g, y);
    int64_t rest;
    if (!dims_sum(g, 1, &(struct scaled){s.dim[axis], 1}, -1, &rest)) { /* the axis may be empty */
        ref last = n_shift(g, y, n_const(g, node_at(g, y)->dtype, 0), axis), place = n_iota(g, KL_I64, &s, axis);
        ref number = n_eq(g, last, last), changed = n_and(g, n_ne(g, last, y), number);
        return n_or(g, changed, n_eq(g, place, n_k(g, place, 0)));
    }
    ref last = n_slice(g, y, axis, 0, rest, 1), now = n_slice(g, y, axis, 1, rest, 1);
    ref number = n_eq(g, last, last), changed = n_and(g, n_ne(g, last, now), number);
    return n_pad(g, changed, n_const(g, KL_BOOL, 1), axis, 1, 0, 0);
}

/* Each position that changed the result gets the gradients of the results up to the next such position.  A NaN is the
 * last such position. */
void vjp_cummax(struct graph *g, ref y, ref dy, ref *din)
{
    uint32_t axis = node_at(g, y)->attr.axis.axis;
    if (node_shape(g, y)->dim[axis] == 0) {
        din[0] = dy;
        return;
    }
    ref won = changed_places(g, y, axis), one = n_k(g, dy, 1), zero = n_k(g, dy, 0);
    ref same = n_where(g, won, zero, one);
    din[0] = n_where(g, won, recurrence_backward(g, same, dy, axis), zero);
}

void vjp_cummin(struct graph *g, ref y, ref dy, ref *din)
{
    vjp_cummax(g, y, dy, din);
}

void vjp_recurrence(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    uint32_t axis = n.attr.axis.axis;
    ref flow = recurrence_backward(g, n.in[0], dy, axis);
    din[0] = n_mul(g, flow, n_shift(g, y, n_const(g, n.dtype, 0), axis));
    din[1] = flow;
}
