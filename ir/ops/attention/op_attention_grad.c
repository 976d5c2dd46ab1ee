/* attention_grad: the gradient of attention with respect to q, or to k and v, without memory of size L x M.
 *
 * Scores and weights are recomputed, a block at a time, from the numbers that attention_stats keeps for each query: the
 * maximum score and 1 / the sum of the weights.  They are the log-sum-exp in two parts (one number would lose the
 * precision of the sum where scores are large).  With p the weights, dp = dy v^T and delta = the sum of dy * y over a
 * row, ds = p (dp - delta):
 *
 *     dq = scale * ds k        dk = scale * ds^T q        dv = p^T dy
 *
 * The gradient of q is summed over keys, those of k and v over queries.  They are two nodes; each row of either is the
 * sum of one loop, so rows may be computed in any order and by any thread.
 *
 * A node has at most four operands, so q and dy are one, [.., L, D + E], and k and v, [.., M, D + E].  This also makes
 * both nodes the same computation with the sides exchanged: for each row of one side, a loop over the rows of the
 * other. node.h defines the order. */
#include "ir/ops/attention/attention.h"
#include "ir/loop/loop.h"
#include <string.h>

enum { X, Y, STATS, MASK };                      /* queries: q and dy; keys: k and v */
enum { STAT_MAX, INVERSE, DELTA, STAT_COUNT };       /* columns of STATS */

static const struct shape *shape_in(const struct graph *g, const struct node *n, unsigned i)
{
    return node_shape(g, n->in[i]);
}

bool shape_attention_grad(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *x = shape_in(g, n, X), *y = shape_in(g, n, Y), *t = shape_in(g, n, STATS);
    unsigned dtype = node_at(g, n->in[X])->dtype, r = x->rank, depth = n->attr.attention.depth;
    char text[3][SHAPE_TEXT];
    if (!dtype_is_float(dtype) || node_at(g, n->in[Y])->dtype != dtype ||
        node_at(g, n->in[STATS])->dtype != dtype_compute(dtype))
        return err_set(e, KL_ERR_TYPE, "attention_grad: needs one floating dtype and, of the third operand, that in "
                       "which it is computed with, got %s, %s and %s", dtype_name(dtype),
                       dtype_name(node_at(g, n->in[Y])->dtype), dtype_name(node_at(g, n->in[STATS])->dtype));
    bool fits = attention_same_lead(g, n) && x->dim[r - 1] == y->dim[r - 1] && t->dim[r - 2] == x->dim[r - 2] &&
                t->dim[r - 1] == STAT_COUNT && x->dim[r - 1] >= (int64_t)depth;
    if (fits && !attention_sight_shape(g, n, &fits, e))
        return false;
    if (!fits)
        return err_set(e, KL_ERR_SHAPE, "attention_grad: needs [.., L, D + E], [.., M, D + E], [.., L, 3] and what "
                       "queries see of the keys, got %s, %s and %s, D %u", shape_text_in(g, x, text[0], SHAPE_TEXT),
                       shape_text_in(g, y, text[1], SHAPE_TEXT), shape_text_in(g, t, text[2], SHAPE_TEXT), depth);
    if (n->attr.attention.of > ATTENTION_KEYS)
        return err_set(e, KL_ERR_INTERNAL, "attention_grad: of %u", n->attr.attention.of);
    *out = n->attr.attention.of == ATTENTION_KEYS ? *y : *x;
    if (n->attr.attention.of == ATTENTION_QUERIES)
        out->dim[r - 1] = depth;
    n->dtype = (uint8_t)dtype;
    return attention_attr(n, e);
}

/* ---- evaluation ---- */

/* Is key j unmasked for query i of batch element b? */
static bool attention_key_is_unmasked(const struct graph *g, const struct node *n, const struct attention_sizes *z,
                                      const void *mask,
                 int64_t b, int64_t i, int64_t j)
{
    struct attention_keys s = attention_row_keys(g, n, z, mask, b, i);
    return j >= s.lo && j < s.hi && (!s.mask || s.mask[j]);
}

/* The part of that loop in one block: numbers of the visible rows, their weights and ds. */
struct grad_block { int64_t *at; void *p, *ds; };

/* Row `own` of batch element b; x, y and t point to that element's data. */
#define GRAD(name, ctype, dtype, fma)                                                                             \
    static bool grad_##name(const struct graph *g, const struct node *n, const struct attention_sizes *z,         \
                            const void *mask, int64_t b, int64_t own, ctype *out, const ctype *x, const ctype *y, \
                            const ctype *t, const struct grad_block *w)                                           \
    {                                                                                                             \
        const ctype scale = (ctype)dtype_value(KL_F64, n->attr.attention.scale);                                  \
        const bool keys = n->attr.attention.of == ATTENTION_KEYS;                                                 \
        const int64_t columns = z->d + z->e, width = keys ? columns : z->d, rows = keys ? z->l : z->m,            \
                      block = n->attr.attention.block;                                                            \
        ctype *p = w->p, *ds = w->ds;                                                                             \
        for (int64_t c = 0; c < width; c++)                                                                       \
            out[c] = 0;                                                                                           \
        for (int64_t from = 0; from < rows; from += block) {                                                      \
            int64_t count = 0;                                                                                    \
            for (int64_t r = from; r < rows && r < from + block; r++) {                                           \
                int64_t i = keys ? r : own, j = keys ? own : r;                                                   \
                if (!attention_key_is_unmasked(g, n, z, mask, b, i, j))                                           \
                    continue;                                                                                     \
                const ctype *xi = x + i * columns, *yj = y + j * columns;                                         \
                ctype s = 0, dp = 0;                                                                              \
                for (int64_t c = 0; c < z->d; c++)                                                                \
                    s = fma(xi[c], yj[c], s);                                                                     \
                for (int64_t c = z->d; c < columns; c++)                                                          \
                    dp = fma(xi[c], yj[c], dp);                                                                   \
                s *= scale;                                                                                       \
                p[count] = s - t[STAT_COUNT * i + STAT_MAX];                                                      \
                ds[count] = dp - t[STAT_COUNT * i + DELTA];                                                       \
                w->at[count++] = r;                                                                               \
            }                                                                                                     \
            if (!scalar_apply(OP_exp, dtype, p, (const void *const[]){p}, count))                                 \
                return false;                                                                                     \
            for (int64_t r = 0; r < count; r++) {                                                                 \
                p[r] *= t[STAT_COUNT * (keys ? w->at[r] : own) + INVERSE];                                        \
                ds[r] *= p[r];                                                                                    \
            }                                                                                                     \
            for (int64_t c = 0; c < width; c++) {                                                                 \
                const ctype *by = c < z->d ? ds : p;                                                              \
                ctype sum = (ctype)-0.0;                                                                          \
                for (int64_t r = 0; r < count; r++)                                                               \
                    sum = fma(by[r], (keys ? x : y)[w->at[r] * columns + c], sum);                                \
                out[c] += sum;                                                                                    \
            }                                                                                                     \
        }                                                                                                         \
        for (int64_t c = 0; c < z->d; c++)                                                                        \
            out[c] *= scale;                                                                                      \
        return true;                                                                                              \
    }
GRAD(f32, float, KL_F32, __builtin_fmaf)
GRAD(f64, double, KL_F64, __builtin_fma)

static bool grad_arrays(const struct graph *g, const struct node *n, unsigned dtype, void *out, const void *const *in)
{
    struct attention_sizes z = attention_sizes(g, n);
    const void *mask = n->nin > MASK ? in[MASK] : NULL;
    size_t size = dtype_size(dtype), block = n->attr.attention.block;
    bool keys = n->attr.attention.of == ATTENTION_KEYS;
    int64_t columns = z.d + z.e, rows = keys ? z.m : z.l, width = keys ? columns : z.d;
    struct grad_block w = {mem_alloc(block * sizeof *w.at), mem_alloc(block * size), mem_alloc(block * size)};
    bool ok = w.at && w.p && w.ds && block;
    for (int64_t i = 0; ok && i < z.batch * rows; i++) {
        int64_t b = i / rows;
        void *to = (char *)out + (size_t)(i * width) * size;
        const void *x = (const char *)in[X] + (size_t)(b * z.l * columns) * size,
                   *y = (const char *)in[Y] + (size_t)(b * z.m * columns) * size,
                   *t = (const char *)in[STATS] + (size_t)(b * z.l * STAT_COUNT) * size;
        ok = dtype == KL_F32 ? grad_f32(g, n, &z, mask, b, i % rows, to, x, y, t, &w)
                             : grad_f64(g, n, &z, mask, b, i % rows, to, x, y, t, &w);
    }
    mem_free(w.at);
    mem_free(w.p);
    mem_free(w.ds);
    return ok;
}

bool eval_attention_grad(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_widened(g, n, out, in, grad_arrays);
}

/* ---- the gradient of attention ---- */

void n_attention_gradient(struct graph *g, ref y, ref dy, ref din[3])
{
    const struct node n = *node_at(g, y);
    const struct shape q = *shape_in(g, &n, 0);
    const uint32_t last = q.rank - 1;
    unsigned dtype = dtype_compute(n.dtype);
    int64_t d = q.dim[last], e = shape_in(g, &n, 2)->dim[last];
    ref mask = n.nin == 4 ? n.in[3] : NIL;
    struct node stats = {.op = OP_attention_stats, .nin = mask ? 3 : 2, .in = {n.in[0], n.in[1], mask}};
    stats.attr.attention.scale = n.attr.attention.scale;
    stats.attr.attention.causal = n.attr.attention.causal;
    ref kept = graph_add(g, &stats, NULL);
    ref wide_dy = n_cast(g, dy, dtype), product = n_mul(g, n_cast(g, y, dtype), wide_dy);
    ref delta = n_reduce(g, OP_sum, product, 1u << last);
    struct node grad = {.op = OP_attention_grad, .nin = mask ? 4 : 3, .attr = stats.attr};
    grad.in[X] = n_concat(g, (ref[]){n.in[0], dy}, 2, last);
    grad.in[Y] = n_concat(g, (ref[]){n.in[1], n.in[2]}, 2, last);
    grad.in[STATS] = n_concat(g, (ref[]){kept, delta}, 2, last);
    grad.in[MASK] = mask;
    grad.attr.attention.depth = (uint32_t)d;
    din[0] = graph_add(g, &grad, NULL);
    grad.attr.attention.of = ATTENTION_KEYS;
    ref both = graph_add(g, &grad, NULL);
    if (!both)
        return;
    din[1] = n_slice(g, both, last, 0, d, 1);
    din[2] = n_slice(g, both, last, d, e, 1);
}

/* ---- the gradient of attention_grad: products and elementwise ops, [.., L, M] ---- */

static ref add_or_either(struct graph *g, ref a, ref b) { return a && b ? n_add(g, a, b) : a ? a : b; }

static ref attention_scale_grad(struct graph *g, const struct node *n, ref a)
{
    return a ? n_mul(g, a, n_k(g, a, dtype_value(KL_F64, n->attr.attention.scale))) : NIL;
}

/* The sum along the keys, [.., L, 1]. */
static ref over_keys(struct graph *g, ref a)
{
    return a ? n_reduce(g, OP_sum, a, 1u << (node_shape(g, a)->rank - 1)) : NIL;
}

void vjp_attention_grad(struct graph *g, ref r, ref dr, ref *din)
{
    const struct node n = *node_at(g, r);
    unsigned dtype = dtype_compute(n.dtype);
    ref x = n_cast(g, n.in[X], dtype), y = n_cast(g, n.in[Y], dtype), t = n.in[STATS];
    ref to = n_cast(g, dr, dtype);
    if (!x || !y || !to)
        return;
    const uint32_t last = node_shape(g, x)->rank - 1;
    int64_t d = n.attr.attention.depth, e = node_shape(g, x)->dim[last] - d;
    bool keys = n.attr.attention.of == ATTENTION_KEYS;
    ref q = n_slice(g, x, last, 0, d, 1), dy = n_slice(g, x, last, d, e, 1);
    ref k = n_slice(g, y, last, 0, d, 1), v = n_slice(g, y, last, d, e, 1);
    ref score = attention_scale_grad(g, &n, attention_product(g, &n, q, k, 1, 1));
    if (!score)
        return;
    const struct shape s = *node_shape(g, score);
    ref mask = attention_unmasked_keys(g, &n, &s);
    ref max = n_expand(g, n_slice(g, t, last, STAT_MAX, 1, 1), &s),
        inverse = n_expand(g, n_slice(g, t, last, INVERSE, 1, 1), &s),
        delta = n_expand(g, n_slice(g, t, last, DELTA, 1, 1), &s);
    ref exp = attention_where_unmasked(g, mask, n_exp(g, attention_where_unmasked(g, mask, n_sub(g, score, max))));
    ref p = attention_where_unmasked(g, mask, n_mul(g, exp, inverse));
    /* less: dp - delta */
    ref less = n_sub(g, attention_where_unmasked(g, mask, attention_product(g, &n, dy, v, 1, 1)), delta);
    ref ds = attention_where_unmasked(g, mask, n_mul(g, p, less));
    /* the gradients of ds and p, and the gradient that the last product passes to its other operand */
    ref to_k = keys ? n_slice(g, to, last, 0, d, 1) : NIL, to_v = keys ? n_slice(g, to, last, d, e, 1) : NIL;
    ref to_ds = keys ? attention_product(g, &n, q, to_k, 1, 1) : attention_product(g, &n, to, k, 1, 1);
    to_ds = attention_scale_grad(g, &n, to_ds);
    to_ds = attention_where_unmasked(g, mask, to_ds);
    ref to_p = n_mul(g, to_ds, less);
    ref more_q = keys ? attention_product(g, &n, ds, attention_finite(g, mask, to_k), 1, 0) : NIL;
    ref more_k = keys ? NIL : attention_product(g, &n, ds, attention_finite(g, mask, to), 0, 0);
    more_q = attention_scale_grad(g, &n, more_q);
    more_k = attention_scale_grad(g, &n, more_k);
    ref more_dy = keys ? attention_product(g, &n, p, attention_finite(g, mask, to_v), 1, 0) : NIL;
    if (keys)
        to_p = n_add(g, to_p, attention_where_unmasked(g, mask, attention_product(g, &n, dy, to_v, 1, 1)));
    ref to_less = n_mul(g, to_ds, p), to_score = attention_scale_grad(g, &n, n_mul(g, to_p, p));
    to_score = attention_where_unmasked(g, mask, to_score);
    if (!to_less || !to_score)
        return;
    ref dq = add_or_either(g, attention_product(g, &n, to_score, attention_finite(g, mask, k), 1, 0), more_q);
    ref dk = add_or_either(g, attention_product(g, &n, to_score, attention_finite(g, mask, q), 0, 0), more_k);
    ref ddy = add_or_either(g, attention_product(g, &n, to_less, attention_finite(g, mask, v), 1, 0), more_dy);
    ref dv = attention_product(g, &n, to_less, attention_finite(g, mask, dy), 0, 0);
    ref to_inverse = over_keys(g, n_mul(g, to_p, exp)), to_delta = n_neg(g, over_keys(g, to_less));
    din[X] = n_cast(g, n_concat(g, (ref[]){dq, ddy}, 2, last), n.dtype);
    din[Y] = n_cast(g, n_concat(g, (ref[]){dk, dv}, 2, last), n.dtype);
    /* the largest score cancels out */
    din[STATS] = n_concat(g, (ref[]){n_k(g, to_delta, 0), to_inverse, to_delta}, 3, last);
}
