/* Reductions: one implementation for all; only the combining op differs. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

enum fold reduce_fold(unsigned op)
{
    return op == OP_sum ? FOLD_ADD : op == OP_reduce_max ? FOLD_MAX : op == OP_reduce_min ? FOLD_MIN : FOLD_MUL;
}

/* The axes in the mask (or those not in it), ascending; returns their number. */
static uint32_t axes_of(uint32_t rank, uint32_t mask, uint8_t *axis)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < rank; i++)
        if (mask >> i & 1)
            axis[n++] = (uint8_t)i;
    return n;
}

bool shape_reduction(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]);
    const char *op = opinfo[n->op].name;
    uint32_t mask = n->attr.reduce.axes, lanes = n->attr.reduce.lanes;
    *out = g->shape[a->shape];
    if (a->dtype == KL_BOOL)
        return err_set(e, KL_ERR_TYPE, "%s: needs a number dtype, got bool", op);
    for (uint32_t i = 0; i < 32; i++)
        if (mask >> i & 1) {
            if (i >= out->rank) {
                char text[SHAPE_TEXT];
                return err_set(e, KL_ERR_SHAPE, "%s: axis %u is out of range for shape %s", op, i,
                               shape_text_in(g, &g->shape[a->shape], text, sizeof text));
            }
            out->dim[i] = 1;
        }
    bool unset = lanes == 0 && n->attr.reduce.chunk == 0;
    bool set = (lanes == 1 || lanes == 64) && n->attr.reduce.chunk > 0 && n->attr.reduce.chunk <= INT64_MAX;
    if (!unset && !set)
        return err_set(e, KL_ERR_INTERNAL, "%s: lanes %u with chunk %llu is no numeric order", op, lanes,
                       (unsigned long long)n->attr.reduce.chunk);
    n->dtype = a->dtype;
    return attr_clear_rest(n, sizeof n->attr.reduce);
}

static void op_reduce_fill(void *out, unsigned dtype, uint64_t bits, int64_t n)
{
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)out + (size_t)i * size, &bits, size);
}

/* acc[i] = op(acc[i], x[i]), by the scalar function of that op. */
static bool fold_into(enum op op, unsigned dtype, void *acc, const void *x, int64_t n)
{
    return n == 0 || scalar_apply(op, dtype, acc, (const void *const[]){acc, x}, n);
}

/* With x as [reduced][kept], one step of a lane over all kept elements is one call.  One step of all 64 lanes is one
 * call, too, because the rows of 64 consecutive reduced elements are adjacent. */
static bool fold_rows(const struct node *n, char *out, const char *x, int64_t rows, int64_t kept, char *acc)
{
    enum fold fold = reduce_fold(n->op);
    enum op op = fold_op(fold);
    int64_t lanes = n->attr.reduce.lanes, chunk = (int64_t)n->attr.reduce.chunk;
    size_t row = (size_t)kept * dtype_size(n->dtype);
    uint64_t identity = fold_identity(fold, n->dtype);
    bool ok = true;
    if (rows == 0)
        op_reduce_fill(out, n->dtype, identity, kept);
    for (int64_t start = 0; start < rows && ok; start += chunk) {
        int64_t end = rows - start > chunk ? start + chunk : rows;
        op_reduce_fill(acc, n->dtype, identity, lanes * kept);
        for (int64_t k = start; k < end && ok; k += lanes) {
            int64_t take = end - k < lanes ? end - k : lanes;
            ok = fold_into(op, n->dtype, acc, x + (size_t)k * row, take * kept);
        }
        for (int64_t half = lanes / 2; half > 0 && ok; half /= 2)
            ok = fold_into(op, n->dtype, acc, acc + (size_t)half * row, half * kept);
        if (start == 0)
            memcpy(out, acc, row);
        else
            ok = ok && fold_into(op, n->dtype, out, acc, kept);
        if (rows - start <= chunk)
            break;
    }
    return ok;
}

static bool reduce_array(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *s = node_shape(g, n->in[0]);
    uint8_t axis[2 * KL_MAX_RANK];
    size_t size = dtype_size(n->dtype);
    int64_t total = shape_count(s), kept = shape_count(&g->shape[n->shape]), rows = 1;
    uint32_t nreduced = axes_of(s->rank, n->attr.reduce.axes, axis);
    for (uint32_t i = 0; i < nreduced; i++)
        rows *= s->dim[axis[i]];
    axes_of(s->rank, ~n->attr.reduce.axes, axis + nreduced);
    if (kept == 0)
        return true;
    if (n->attr.reduce.lanes == 0)
        return false;
    char *x = mem_alloc((size_t)total * size);
    char *acc = mem_alloc((size_t)n->attr.reduce.lanes * (size_t)kept * size);
    bool ok = x && acc;
    if (ok) {
        gather_axes(x, in[0], size, s, axis, s->rank);
        ok = fold_rows(n, out, x, rows, kept, acc);
    }
    mem_free(x);
    mem_free(acc);
    return ok;
}

static bool reduce_in_dtype(const struct graph *g, const struct node *n, unsigned dtype, void *out,
                            const void *const *in)
{
    struct node wide = *n;
    wide.dtype = (uint8_t)dtype;
    return reduce_array(g, &wide, out, in);
}

bool eval_reduction(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_widened(g, n, out, in, reduce_in_dtype);
}

/* Element number k of those that the result element at coord reduces. */
static val reduced_element(struct lower *l, ref a, uint32_t mask, const val *coord, val k)
{
    const struct shape *s = node_shape(l->g, a);
    val at[KL_MAX_RANK] = {0};
    int64_t step = 1;
    uint32_t last_outer = 0;
    while (last_outer < s->rank && !(mask >> last_outer & 1))
        last_outer++;
    for (uint32_t i = s->rank; i-- > 0;) {
        if (!(mask >> i & 1)) {
            at[i] = coord[i];
            continue;
        }
        at[i] = step > 1 ? ix_div(l->k, k, step) : k;
        if (i != last_outer)
            at[i] = ix_mod(l->k, at[i], s->dim[i]);
        step *= s->dim[i];
    }
    return k_cast(l->k, l->at(l, a, at), dtype_compute(node_at(l->g, a)->dtype));
}

/* Is a vector loop open? An END closes the nearest loop or condition before it that is still open. */
static bool in_vector_loop(const struct kernel *k)
{
    uint32_t closed = 0;
    for (val i = k->ninst; i-- > 1;) {
        const struct linst *n = &k->inst[i];
        if (n->op == L_END)
            closed++;
        else if ((n->op == L_LOOP || n->op == L_IF) && closed)
            closed--;
        else if (n->op == L_LOOP && n->kind == LOOP_VECTOR)
            return true;
    }
    return false;
}

val lower_lanes(struct lower *l, val v)
{
    return in_vector_loop(l->k) ? k_splat(l->k, v) : v;
}

val lower_init(struct lower *l, unsigned dtype, uint64_t bits)
{
    return lower_lanes(l, k_bits(l->k, dtype, bits));
}

/* Emits one element as one serial chain for each chunk.  Reductions over 64 lanes are anchors, which passes/ schedules.
 * The chain of chunks starts from a value that does not change the first chunk's result: -0 for a floating sum, the
 * identity otherwise. */
uint32_t lower_reduction(struct lower *l, ref r, const val *coord)
{
    const struct node *n = node_at(l->g, r);
    const struct shape *s = node_shape(l->g, n->in[0]);
    uint32_t mask = n->attr.reduce.axes;
    enum fold fold = reduce_fold(n->op);
    unsigned dtype = dtype_compute(n->dtype);
    uint64_t identity = fold_identity(fold, dtype);
    int64_t rows = 1;
    for (uint32_t i = 0; i < s->rank; i++)
        if (mask >> i & 1)
            rows *= s->dim[i];
    if (n->attr.reduce.lanes != 1) {
        err_set(&l->k->err, KL_ERR_INTERNAL, "%s: node %u with %u lanes cannot be lowered as one chain",
                opinfo[n->op].name, r, n->attr.reduce.lanes);
        return 0;
    }
    val first = lower_init(l, dtype, identity);
    if (rows == 0)
        return k_cast(l->k, first, n->dtype);
    val lo = k_int(l->k, 0), hi = k_int(l->k, rows);
    int64_t chunk = n->attr.reduce.chunk < (uint64_t)rows ? (int64_t)n->attr.reduce.chunk : rows;
    val outer = 0, total = 0;
    if (chunk < rows) {
        val start = fold == FOLD_ADD ? lower_init(l, dtype, dtype_bits(dtype, -0.0)) : first;
        val end = hi;
        outer = k_loop(l->k, LOOP_SERIAL, lo, hi, chunk);
        total = k_carry(l->k, start);
        lo = outer;
        hi = ix_add(l->k, outer, k_int(l->k, chunk));
        if (rows % chunk)
            hi = k_prim(l->k, P_SELECT, k_prim(l->k, P_LT, hi, end, 0), hi, end);
    }
    val inner = k_loop(l->k, LOOP_SERIAL, lo, hi, 1);
    val acc = k_carry(l->k, first);
    val x = reduced_element(l, n->in[0], mask, coord, inner);
    k_next(l->k, acc, k_fold_step(l->k, fold, acc, x));
    k_end(l->k, inner);
    val result = k_out(l->k, acc);
    if (outer) {
        k_next(l->k, total, k_fold_step(l->k, fold, total, result));
        k_end(l->k, outer);
        result = k_out(l->k, total);
    }
    return k_cast(l->k, result, n->dtype);
}

/* ---- gradients ---- */

void vjp_sum(struct graph *g, ref y, ref dy, ref *din)
{
    din[0] = n_expand(g, dy, node_shape(g, node_at(g, y)->in[0]));
}

/* Which elements of x are the largest, or smallest, of those that gave y: a NaN is. */
ref vjp_is_chosen(struct graph *g, ref x, ref y)
{
    ref equal = n_eq(g, x, y);
    return dtype_is_float(node_at(g, x)->dtype) ? n_or(g, equal, n_ne(g, x, x)) : equal;
}

/* The elements equal to the result, or the NaNs, share its gradient equally. */
void vjp_reduce_max(struct graph *g, ref y, ref dy, ref *din)
{
    ref x = node_at(g, y)->in[0];
    uint32_t axes = node_at(g, y)->attr.reduce.axes;
    unsigned dtype = node_at(g, y)->dtype;
    ref mask = vjp_is_chosen(g, x, n_expand(g, y, node_shape(g, x)));
    ref ties = n_reduce(g, OP_sum, n_cast(g, mask, dtype), axes);
    ref share = n_expand(g, n_div(g, dy, ties), node_shape(g, x));
    din[0] = n_where(g, mask, share, n_k(g, x, 0));
}

void vjp_reduce_min(struct graph *g, ref y, ref dy, ref *din)
{
    vjp_reduce_max(g, y, dy, din);
}

/* For each element the product of all others along an axis, as the product of those before times that of those after,
 * so that zeros need no special case. */
static ref product_of_others(struct graph *g, ref x, uint32_t axis)
{
    ref one = n_const(g, node_at(g, x)->dtype, dtype_bits(node_at(g, x)->dtype, 1));
    ref before = n_shift(g, n_cumulative(g, OP_cumprod, x, axis), one, axis), behind = n_flip(g, x, 1u << axis);
    behind = n_flip(g, n_shift(g, n_cumulative(g, OP_cumprod, behind, axis), one, axis), 1u << axis);
    return n_mul(g, before, behind);
}

/* Axis by axis, the last one first: the product over the other axes is a product of products. */
void vjp_reduce_prod(struct graph *g, ref y, ref dy, ref *din)
{
    uint8_t axis[KL_MAX_RANK];
    ref part[KL_MAX_RANK] = {node_at(g, y)->in[0]};
    uint32_t n = axes_of(node_shape(g, y)->rank, node_at(g, y)->attr.reduce.axes, axis);
    for (uint32_t i = 0; i + 1 < n; i++)
        part[i + 1] = n_reduce(g, OP_reduce_prod, part[i], 1u << axis[n - 1 - i]);
    din[0] = dy;
    for (uint32_t i = n; i--;) {
        struct shape s = *node_shape(g, part[i]);
        ref others = product_of_others(g, part[i], axis[n - 1 - i]);
        din[0] = n_mul(g, n_expand(g, din[0], &s), others);
    }
}
