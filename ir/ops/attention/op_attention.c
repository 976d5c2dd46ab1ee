/* attention: softmax(scale * q k^T) v, one pass over the keys with a running maximum of the scores (online softmax,
 * Milakov and Gimelshein 2018; attention so, Dao et al. 2022); attention_stats: the values of that pass that its
 * gradient needs. node.h defines both and their order of computation.
 *
 * The gradient consists of ops that store nothing of size L x M (op_attention_grad.c): attention_stats keeps the
 * log-sum-exp of each query's scores, in two parts; attention_grad recomputes scores and weights from it, by blocks.
 * For few queries or keys the gradient consists of products and elementwise ops instead, which takes fewer
 * operations. */
#include "ir/ops/attention/attention.h"
#include "ir/loop/loop.h"
#include <math.h>
#include <string.h>

enum { MAX_BLOCK = 1 << 12 };
/* The number of rows that a gradient sums over from which on it recomputes scores instead of storing them.  The first
 * limit is for queries that do not attend to all keys, because hidden blocks are skipped; the second is greater,
 * because recomputing takes longer than products. */
enum { MIN_SKIPPED = 256, MIN_LENGTH = 512 };
enum { Q, K, V, MASK };

/* ---- shape ---- */

static const struct shape *shape_in(const struct graph *g, const struct node *n, unsigned i)
{
    return node_shape(g, n->in[i]);
}

static int64_t node_rows(const struct graph *g, const struct node *n, unsigned i)
{
    const struct shape *s = shape_in(g, n, i);
    return s->dim[s->rank - 2];
}

static int64_t node_columns(const struct graph *g, const struct node *n, unsigned i)
{
    const struct shape *s = shape_in(g, n, i);
    return s->dim[s->rank - 1];
}

static bool attention_check_operands(const struct graph *g, const struct node *n, struct err *e)
{
    char t[4][SHAPE_TEXT];
    for (unsigned i = 0; i < n->nin; i++)
        shape_text_in(g, shape_in(g, n, i), t[i], SHAPE_TEXT);
    if (n->nin == 3)
        return err_set(e, KL_ERR_SHAPE, "attention: needs [.., L, D], [.., M, D] and [.., M, E], got %s, %s and %s",
                       t[Q], t[K], t[V]);
    return err_set(e, KL_ERR_SHAPE,
                   "attention: needs [.., L, D], [.., M, D], [.., M, E] and bool [.., L, M] or i32 or i64 [.., L, 2], "
                   "got %s, %s, %s and %s",
                   t[Q], t[K], t[V], t[MASK]);
}

bool attention_same_lead(const struct graph *g, const struct node *n)
{
    const struct shape *q = shape_in(g, n, 0);
    bool same = q->rank >= 2;
    for (unsigned i = 1; i < n->nin && same; i++)
        same = shape_in(g, n, i)->rank == q->rank &&
               !memcmp(shape_in(g, n, i)->dim, q->dim, (q->rank - 2) * sizeof *q->dim);
    return same;
}

bool attention_sight_shape(const struct graph *g, const struct node *n, bool *fits, struct err *e)
{
    unsigned mask = attention_mask_operand(n);
    if (mask == MAX_OPERANDS)
        return true;
    unsigned dtype = node_at(g, n->in[mask])->dtype;
    const struct shape *q = shape_in(g, n, 0), *k = shape_in(g, n, 1), *s = shape_in(g, n, mask);
    uint32_t r = q->rank;
    if (dtype != KL_BOOL && dtype != KL_I32 && dtype != KL_I64)
        return err_set(e, KL_ERR_TYPE, "%s: the mask is bool, or its bounds i32 or i64, not %s", opinfo[n->op].name,
                       dtype_name(dtype));
    *fits = *fits && s->dim[r - 2] == q->dim[r - 2] && s->dim[r - 1] == (dtype == KL_BOOL ? k->dim[r - 2] : 2);
    return true;
}

bool attention_attr(struct node *n, struct err *e)
{
    if (n->attr.attention.causal > 1 || n->attr.attention.block > MAX_BLOCK)
        return err_set(e, KL_ERR_INTERNAL, "%s: causal %u, block %u", opinfo[n->op].name, n->attr.attention.causal,
                       n->attr.attention.block);
    if (n->op != OP_attention_grad && (n->attr.attention.depth || n->attr.attention.of))
        return err_set(e, KL_ERR_INTERNAL, "%s: attributes of its gradient", opinfo[n->op].name);
    return attr_clear_rest(n, sizeof n->attr.attention);
}

bool shape_attention(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *q = shape_in(g, n, Q), *k = shape_in(g, n, K), *v = shape_in(g, n, V);
    unsigned dtype = node_at(g, n->in[Q])->dtype, r = q->rank;
    for (unsigned i = K; i <= V; i++)
        if (node_at(g, n->in[i])->dtype != dtype || !dtype_is_float(dtype))
            return err_set(e, KL_ERR_TYPE, "attention: needs one floating dtype, got %s, %s and %s", dtype_name(dtype),
                           dtype_name(node_at(g, n->in[K])->dtype), dtype_name(node_at(g, n->in[V])->dtype));
    bool fits = attention_same_lead(g, n);
    fits = fits && k->dim[r - 1] == q->dim[r - 1] && k->dim[r - 2] == v->dim[r - 2];
    if (fits && !attention_sight_shape(g, n, &fits, e))
        return false;
    if (!fits)
        return attention_check_operands(g, n, e);
    *out = *q;
    out->dim[r - 1] = v->dim[r - 1];
    n->dtype = (uint8_t)dtype;
    return attention_attr(n, e);
}

bool shape_attention_stats(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *q = shape_in(g, n, Q), *k = shape_in(g, n, K);
    unsigned dtype = node_at(g, n->in[Q])->dtype, r = q->rank;
    char t[2][SHAPE_TEXT];
    if (node_at(g, n->in[K])->dtype != dtype || !dtype_is_float(dtype))
        return err_set(e, KL_ERR_TYPE, "attention_stats: needs one floating dtype, got %s and %s", dtype_name(dtype),
                       dtype_name(node_at(g, n->in[K])->dtype));
    bool fits = attention_same_lead(g, n) && k->dim[r - 1] == q->dim[r - 1];
    if (fits && !attention_sight_shape(g, n, &fits, e))
        return false;
    if (!fits)
        return err_set(e, KL_ERR_SHAPE, "attention_stats: needs [.., L, D], [.., M, D] and what queries see of the "
                       "keys, got %s and %s", shape_text_in(g, q, t[0], SHAPE_TEXT),
                       shape_text_in(g, k, t[1], SHAPE_TEXT));
    *out = *q;
    out->dim[r - 1] = 2;
    n->dtype = (uint8_t)dtype_compute(dtype);
    return attention_attr(n, e);
}

/* ---- evaluation ---- */

struct attention_sizes attention_sizes(const struct graph *g, const struct node *n)
{
    struct shape s = *shape_in(g, n, Q);
    struct attention_sizes z = {1, s.dim[s.rank - 2], shape_in(g, n, K)->dim[s.rank - 2], s.dim[s.rank - 1], 0};
    if (n->op == OP_attention) {
        z.e = shape_in(g, n, V)->dim[s.rank - 1];
    } else if (n->op == OP_attention_grad) {
        z.e = z.d - n->attr.attention.depth;
        z.d = n->attr.attention.depth;
    }
    s.rank -= 2;
    z.batch = shape_count(&s);
    return z;
}

double attention_flops(const struct graph *g, const struct node *n)
{
    struct attention_sizes z = attention_sizes(g, n);
    double columns = (double)z.d + (double)z.e; /* of scores, and of the values or their gradients' products */
    if (n->op == OP_attention_grad)
        columns += n->attr.attention.of == ATTENTION_KEYS ? columns : (double)z.d;
    double l = (double)z.l, m = (double)z.m, pairs = l * m;
    if (n->attr.attention.causal) /* the last query attends to all keys, the one before it one less */
        pairs = l <= m ? l * (m - l) + l * (l + 1) / 2 : m * (m + 1) / 2;
    return 2 * (double)z.batch * pairs * columns;
}

bool attention_has_ranges(const struct graph *g, const struct node *n)
{
    unsigned mask = attention_mask_operand(n);
    return mask < n->nin && node_at(g, n->in[mask])->dtype != KL_BOOL;
}

struct attention_keys attention_row_keys(const struct graph *g, const struct node *n, const struct attention_sizes *z,
                             const void *mask, int64_t b, int64_t i)
{
    struct attention_keys s = {0, z->m, NULL};
    unsigned dtype = mask ? node_at(g, n->in[attention_mask_operand(n)])->dtype : 0;
    if (n->attr.attention.causal && i + z->m - z->l + 1 < s.hi)
        s.hi = i + z->m - z->l + 1;
    if (mask && dtype == KL_BOOL) {
        s.mask = (const uint8_t *)mask + (b * z->l + i) * z->m;
    } else if (mask) {
        int64_t end = index_at(dtype, mask, 2 * (b * z->l + i) + 1, z->m);
        s.lo = index_at(dtype, mask, 2 * (b * z->l + i), z->m);
        s.hi = end < s.hi ? end : s.hi;
    }
    return s;
}

/* One query, given the keys it attends to; score and weight have room for a block. stats: NULL, or the address of its
 * two numbers, and then there are no values. */
#define ROW(name, ctype, dtype, fma)                                                                          \
    static bool row_##name(const struct node *n, const struct attention_sizes *z, struct attention_keys s, ctype *out, \
                           ctype *stats, const ctype *q, const ctype *k, const ctype *v, ctype *score,        \
                           ctype *weight)                                                                     \
    {                                                                                                         \
        const ctype scale = (ctype)dtype_value(KL_F64, n->attr.attention.scale);                              \
        const int64_t block = n->attr.attention.block;                                                        \
        ctype max = -INFINITY, total = 0;                                                                     \
        for (int64_t c = 0; c < z->e; c++)                                                                    \
            out[c] = 0;                                                                                       \
        for (int64_t j0 = s.lo / block * block; j0 < s.hi; j0 += block) {                                     \
            int64_t from = j0 > s.lo ? j0 : s.lo, end = j0 + block < s.hi ? j0 + block : s.hi, count = 0;     \
            ctype larger = max, sum = (ctype)-0.0;                                                            \
            for (int64_t j = from; j < end; j++) {                                                            \
                if (s.mask && !s.mask[j])                                                                     \
                    continue;                                                                                 \
                ctype x = 0;                                                                                  \
                for (int64_t c = 0; c < z->d; c++)                                                            \
                    x = fma(q[c], k[j * z->d + c], x);                                                        \
                score[count++] = x *= scale;                                                                  \
                larger = x < larger || larger != larger ? larger : x;                                         \
            }                                                                                                 \
            ctype base = larger == (ctype)-INFINITY ? 0 : larger, shrink = max - base;                        \
            for (int64_t j = 0; j < count; j++)                                                               \
                score[j] -= base;                                                                             \
            if (!scalar_apply(OP_exp, dtype, &shrink, (const void *const[]){&shrink}, 1) ||                   \
                !scalar_apply(OP_exp, dtype, weight, (const void *const[]){score}, count))                    \
                return false;                                                                                 \
            for (int64_t j = 0; j < count; j++)                                                               \
                sum += weight[j];                                                                             \
            total = fma(total, shrink, sum);                                                                  \
            for (int64_t c = 0; c < z->e; c++) {                                                              \
                const ctype *w = weight;                                                                      \
                ctype x = (ctype)-0.0;                                                                        \
                for (int64_t j = from; j < end; j++)                                                          \
                    if (!s.mask || s.mask[j])                                                                 \
                        x = fma(*w++, v[j * z->e + c], x);                                                    \
                out[c] = fma(out[c], shrink, x);                                                              \
            }                                                                                                 \
            max = larger;                                                                                     \
        }                                                                                                     \
        for (int64_t c = 0; c < z->e; c++)                                                                    \
            out[c] = total == 0 ? 0 : out[c] / total;                                                         \
        if (stats) {                                                                                          \
            stats[0] = max == (ctype)-INFINITY ? 0 : max;                                                     \
            stats[1] = total == 0 ? 0 : 1 / total;                                                            \
        }                                                                                                     \
        return true;                                                                                          \
    }
ROW(f32, float, KL_F32, __builtin_fmaf)
ROW(f64, double, KL_F64, __builtin_fma)

static bool attention_arrays(const struct graph *g, const struct node *n, unsigned dtype, void *result,
                             const void *const *in)
{
    struct attention_sizes z = attention_sizes(g, n);
    size_t size = dtype_size(dtype);
    const char *q = in[Q], *k = in[K], *v = n->op == OP_attention ? in[V] : NULL;
    const void *mask = attention_mask_operand(n) < n->nin ? in[attention_mask_operand(n)] : NULL;
    char *out = v ? result : NULL, *stats = v ? NULL : result;
    void *score = mem_alloc((size_t)n->attr.attention.block * size),
         *weight = mem_alloc((size_t)n->attr.attention.block * size);
    bool ok = score && weight && n->attr.attention.block;
    for (int64_t i = 0; ok && i < z.batch * z.l; i++) {
        int64_t b = i / z.l;
        void *y = out ? out + (size_t)(i * z.e) * size : NULL, *t = stats ? stats + (size_t)(2 * i) * size : NULL;
        const void *x = q + (size_t)(i * z.d) * size, *kb = k + (size_t)(b * z.m * z.d) * size,
                   *vb = v ? v + (size_t)(b * z.m * z.e) * size : NULL;
        struct attention_keys s = attention_row_keys(g, n, &z, mask, b, i % z.l);
        ok = dtype == KL_F32 ? row_f32(n, &z, s, y, t, x, kb, vb, score, weight)
                             : row_f64(n, &z, s, y, t, x, kb, vb, score, weight);
    }
    mem_free(score);
    mem_free(weight);
    return ok;
}

bool eval_attention(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_widened(g, n, out, in, attention_arrays);
}

bool eval_attention_stats(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return eval_widened(g, n, out, in, attention_arrays);
}

/* ---- decomposition and gradient ---- */

static bool hides_keys(const struct node *n)
{
    return n->attr.attention.causal || attention_mask_operand(n) < n->nin;
}

ref attention_product(struct graph *g, const struct node *n, ref a, ref b, unsigned con_a, unsigned con_b)
{
    union attr at = {.dot = {.ncon = 1}};
    if (!a || !b)
        return NIL;
    uint32_t lead = node_shape(g, a)->rank - 2;
    at.dot.nbatch = (uint8_t)lead;
    for (uint32_t i = 0; i < lead; i++)
        at.dot.batch_a = axis_put(at.dot.batch_a, i, i);
    at.dot.batch_b = at.dot.batch_a;
    at.dot.con_a = lead + con_a;
    at.dot.con_b = lead + con_b;
    ref y = n_dot(g, a, b, &at);
    if (y && hides_keys(n))
        g->node[y].flags |= con_a && con_b ? MARK_HIDDEN_RESULT : MARK_HIDDEN_LEFT;
    return y;
}

ref attention_unmasked_keys(struct graph *g, const struct node *n, const struct shape *s)
{
    uint32_t last = s->rank - 1;
    unsigned operand = attention_mask_operand(n);
    ref mask = NIL;
    if (operand < n->nin && node_at(g, n->in[operand])->dtype == KL_BOOL) {
        mask = n->in[operand];
    } else if (operand < n->nin) {
        unsigned dtype = KL_I64;
        ref key = n_iota(g, dtype, s, last), bounds = n_cast(g, n->in[operand], dtype);
        ref lo = n_expand(g, n_slice(g, bounds, last, 0, 1, 1), s),
            hi = n_expand(g, n_slice(g, bounds, last, 1, 1, 1), s);
        ref below = n_lt(g, key, hi);
        mask = n_and(g, n_le(g, lo, key), below);
    }
    if (!n->attr.attention.causal)
        return mask;
    /* counted from the last query and the last key */
    ref key = n_flip(g, n_iota(g, KL_I64, s, last), 1u << last),
        query = n_flip(g, n_iota(g, KL_I64, s, last - 1), 1u << (last - 1));
    ref past = n_ge(g, key, query);
    return mask ? n_and(g, mask, past) : past;
}

ref attention_where_unmasked(struct graph *g, ref mask, ref x) { return mask ? n_where(g, mask, x, n_k(g, x, 0)) : x; }

ref attention_finite(struct graph *g, ref mask, ref y)
{
    return mask && y ? n_finite_or_zero(g, y) : y;
}

static ref along_keys(struct graph *g, enum op reduce, ref x, const struct shape *s)
{
    return n_reduce(g, reduce, x, 1u << (s->rank - 1));
}

static ref attention_weights(struct graph *g, const struct node *n, ref *mask)
{
    unsigned dtype = dtype_compute(n->dtype);
    ref x = attention_product(g, n, n->in[Q], n->in[K], 1, 1);
    if (!x)
        return NIL;
    const struct shape s = *node_shape(g, x);
    x = node_at(g, x)->dtype == dtype ? x : n_cast(g, x, dtype);
    x = n_mul(g, x, n_k(g, x, dtype_value(KL_F64, n->attr.attention.scale)));
    *mask = attention_unmasked_keys(g, n, &s);
    ref none = n_k(g, x, -INFINITY), max = along_keys(g, OP_reduce_max, *mask ? n_where(g, *mask, x, none) : x, &s);
    if (!max)
        return NIL;
    g->node[max].flags |= MARK_STOP; /* it cancels out */
    ref zero = n_k(g, max, 0);
    max = n_where(g, n_eq(g, max, n_k(g, max, -INFINITY)), zero, max);
    ref less = n_sub(g, x, n_expand(g, max, &s));
    ref e = attention_where_unmasked(g, *mask, n_exp(g, attention_where_unmasked(g, *mask, less)));
    ref sum = along_keys(g, OP_sum, e, &s), one = n_k(g, sum, 1);
    sum = n_where(g, n_eq(g, sum, n_k(g, sum, 0)), one, sum);
    return attention_where_unmasked(g, *mask, n_div(g, e, n_expand(g, sum, &s))); /* 0 also where the sum is NaN */
}

ref n_attention_weights(struct graph *g, ref y)
{
    const struct node n = *node_at(g, y);
    ref mask;
    return attention_weights(g, &n, &mask);
}

/* With the weights p: dv = p^T dy, dp = dy v^T, ds = p (dp - their sum along the keys, weighted by p), and so on. p is
 * recomputed, which costs one product and keeps nothing of size L x M from the forward pass. */
static void compose_gradient(struct graph *g, const struct node *n, ref dy, ref *din)
{
    const uint16_t flags = g->cur_flags;
    g->cur_flags |= MARK_REMAT; /* recomputed late, when they are needed */
    ref mask, p = attention_weights(g, n, &mask);
    g->cur_flags = flags;
    ref dp = attention_product(g, n, dy, n->in[V], 1, 1);
    if (!p || !dp)
        return;
    const struct shape s = *node_shape(g, p);
    unsigned dtype = node_at(g, p)->dtype;
    bool half = dtype != n->dtype;
    dp = attention_where_unmasked(g, mask, half ? n_cast(g, dp, dtype) : dp);
    ref mean = along_keys(g, OP_sum, n_mul(g, p, dp), &s);
    ref scale = n_k(g, p, dtype_value(KL_F64, n->attr.attention.scale));
    ref ds = n_mul(g, n_mul(g, p, n_sub(g, dp, n_expand(g, mean, &s))), scale);
    ds = attention_where_unmasked(g, mask, ds);
    ref pn = half ? n_cast(g, p, n->dtype) : p, dsn = half ? n_cast(g, ds, n->dtype) : ds;
    din[Q] = attention_product(g, n, dsn, attention_finite(g, mask, n->in[K]), 1, 0);
    din[K] = attention_product(g, n, dsn, n->in[Q], 0, 0);
    din[V] = attention_product(g, n, pn, dy, 0, 0);
}

/* Should a gradient that sums over so many rows store nothing of size L x M?  It depends on that length alone, so that
 * a row of the gradient has the same bits however many rows, heads and sequences there are. */
static bool is_long(const struct graph *g, const struct node *n, int64_t length)
{
    int64_t d = node_columns(g, n, Q), e = node_columns(g, n, V), low = 0, high = 0;
    unsigned last = n->nin - 1u, mask = opinfo[n->op].nin - 1u;
    if (d < 0 || e < 0 || d + e > INT32_MAX)
        return false;
    bool skips = n->attr.attention.causal || (last == mask && node_at(g, n->in[mask])->dtype != KL_BOOL);
    int64_t limit = skips ? MIN_SKIPPED : MIN_LENGTH;
    dim_range(g, length, &low, &high);
    graph_depends_on(g, &length, 1, limit, "the gradient of attention of few elements is made of other ops");
    return high >= limit;
}

/* A row of the gradient in q sums over keys, one in k and v over queries. */
void vjp_attention(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    bool keys = is_long(g, &n, node_rows(g, &n, K)), queries = is_long(g, &n, node_rows(g, &n, Q));
    ref other[3] = {NIL};
    if (keys || queries)
        n_attention_gradient(g, y, dy, din);
    if (!keys || !queries)
        compose_gradient(g, &n, dy, other);
    din[Q] = keys ? din[Q] : other[Q];
    din[K] = queries ? din[K] : other[K];
    din[V] = queries ? din[V] : other[V];
}

/* The maximum score cancels out of every function of both numbers, so it has no gradient. */
void vjp_attention_stats(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    ref mask, p = attention_weights(g, &n, &mask);
    if (!p)
        return;
    const struct shape s = *node_shape(g, p);
    ref inverse = n_slice(g, y, s.rank - 1, 1, 1, 1), d = n_slice(g, dy, s.rank - 1, 1, 1, 1);
    ref scale = n_k(g, p, dtype_value(KL_F64, n.attr.attention.scale));
    ref ds = n_mul(g, n_mul(g, p, n_expand(g, n_neg(g, n_mul(g, inverse, d)), &s)), scale);
    ds = attention_where_unmasked(g, mask, ds);
    ref q = attention_finite(g, mask, n_cast(g, n.in[Q], n.dtype));
    ref k = attention_finite(g, mask, n_cast(g, n.in[K], n.dtype));
    din[Q] = n_cast(g, attention_product(g, &n, ds, k, 1, 0), node_at(g, n.in[Q])->dtype);
    din[K] = n_cast(g, attention_product(g, &n, ds, q, 0, 0), node_at(g, n.in[K])->dtype);
}

/* One pass over the keys computes all elements of a row, so this is an anchor, which passes/ schedules. */
static uint32_t no_element(struct lower *l, ref r)
{
    err_set(&l->k->err, KL_ERR_INTERNAL, "%s: node %u cannot be lowered element by element",
            opinfo[node_at(l->g, r)->op].name, r);
    return 0;
}

uint32_t lower_attention(struct lower *l, ref r, const uint32_t *coord) { return (void)coord, no_element(l, r); }
uint32_t lower_attention_stats(struct lower *l, ref r, const uint32_t *coord) { return (void)coord, no_element(l, r); }
uint32_t lower_attention_grad(struct lower *l, ref r, const uint32_t *coord) { return (void)coord, no_element(l, r); }
