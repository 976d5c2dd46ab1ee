/* attention: softmax(scale * q k^T) v, one pass over the keys with a running largest score (online softmax, Milakov and
 * Gimelshein 2018; attention so, Dao et al. 2022).  node.h says what it is and in which order it is computed. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <math.h>
#include <string.h>

enum { MAX_BLOCK = 1 << 12 };
enum { Q, K, V, SEEN };

/* ---- shape ---- */

static const struct shape *shape_in(const struct graph *g, const struct node *n, unsigned i)
{
    return node_shape(g, n->in[i]);
}

static bool misfits(const struct graph *g, const struct node *n, struct err *e)
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
                   t[Q], t[K], t[V], t[SEEN]);
}

bool shape_attention(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *q = shape_in(g, n, Q), *k = shape_in(g, n, K), *v = shape_in(g, n, V);
    unsigned dtype = node_at(g, n->in[Q])->dtype, r = q->rank;
    for (unsigned i = K; i <= V; i++)
        if (node_at(g, n->in[i])->dtype != dtype || !dtype_is_float(dtype))
            return err_set(e, KL_ERR_TYPE, "attention: needs one floating dtype, got %s, %s and %s", dtype_name(dtype),
                           dtype_name(node_at(g, n->in[K])->dtype), dtype_name(node_at(g, n->in[V])->dtype));
    bool fits = r >= 2;
    for (unsigned i = K; i < n->nin; i++)
        fits =
            fits && shape_in(g, n, i)->rank == r && !memcmp(shape_in(g, n, i)->dim, q->dim, (r - 2) * sizeof *q->dim);
    fits = fits && k->dim[r - 1] == q->dim[r - 1] && k->dim[r - 2] == v->dim[r - 2];
    if (fits && n->nin == 4) {
        unsigned seen = node_at(g, n->in[SEEN])->dtype;
        if (seen != KL_BOOL && seen != KL_I32 && seen != KL_I64)
            return err_set(e, KL_ERR_TYPE, "attention: what a query sees is bool, i32 or i64, not %s",
                           dtype_name(seen));
        const struct shape *s = shape_in(g, n, SEEN);
        fits = s->dim[r - 2] == q->dim[r - 2] && s->dim[r - 1] == (seen == KL_BOOL ? k->dim[r - 2] : 2);
    }
    if (!fits)
        return misfits(g, n, e);
    if (n->attr.attention.causal > 1 || n->attr.attention.block > MAX_BLOCK)
        return err_set(e, KL_ERR_INTERNAL, "attention: causal %u, block %u", n->attr.attention.causal,
                       n->attr.attention.block);
    *out = *q;
    out->dim[r - 1] = v->dim[r - 1];
    n->dtype = (uint8_t)dtype;
    return attr_rest_zero(n, sizeof n->attr.attention, e);
}

/* ---- evaluation ---- */

struct sizes { int64_t batch, l, m, d, e; };

static struct sizes sizes_of(const struct graph *g, const struct node *n)
{
    struct shape s = *shape_in(g, n, Q);
    struct sizes z = {1, s.dim[s.rank - 2], shape_in(g, n, K)->dim[s.rank - 2], s.dim[s.rank - 1],
                      shape_in(g, n, V)->dim[s.rank - 1]};
    s.rank -= 2;
    z.batch = shape_count(&s);
    return z;
}

double attention_flops(const struct graph *g, const struct node *n)
{
    struct sizes z = sizes_of(g, n);
    return 2 * (double)z.batch * (double)z.l * (double)z.m * ((double)z.d + (double)z.e);
}

/* Which keys query i of batch element b sees: those from *lo on and before *hi, of which `mask`, if not NULL, says
 * more. */
struct sight { int64_t lo, hi; const uint8_t *mask; };

static struct sight sight_of(const struct graph *g, const struct node *n, const struct sizes *z, const void *seen,
                             int64_t b, int64_t i)
{
    struct sight s = {0, z->m, NULL};
    unsigned dtype = seen ? node_at(g, n->in[SEEN])->dtype : 0;
    if (n->attr.attention.causal && i + z->m - z->l + 1 < s.hi)
        s.hi = i + z->m - z->l + 1;
    if (seen && dtype == KL_BOOL) {
        s.mask = (const uint8_t *)seen + (b * z->l + i) * z->m;
    } else if (seen) {
        int64_t end = index_at(dtype, seen, 2 * (b * z->l + i) + 1, z->m);
        s.lo = index_at(dtype, seen, 2 * (b * z->l + i), z->m);
        s.hi = end < s.hi ? end : s.hi;
    }
    return s;
}

/* One query, given its sight; score and weight have room for a block. */
#define ROW(name, ctype, dtype, fma)                                                                                \
    static bool row_##name(const struct node *n, const struct sizes *z, struct sight s, ctype *out, const ctype *q, \
                           const ctype *k, const ctype *v, ctype *score, ctype *weight)                             \
    {                                                                                                               \
        const ctype scale = (ctype)dtype_value(KL_F64, n->attr.attention.scale);                                    \
        const int64_t block = n->attr.attention.block;                                                              \
        ctype most = -INFINITY, total = 0;                                                                          \
        memset(out, 0, (size_t)z->e * sizeof *out);                                                                 \
        for (int64_t j0 = s.lo / block * block; j0 < s.hi; j0 += block) {                                           \
            int64_t from = j0 > s.lo ? j0 : s.lo, end = j0 + block < s.hi ? j0 + block : s.hi, count = 0;           \
            ctype larger = most, sum = (ctype)-0.0;                                                                 \
            for (int64_t j = from; j < end; j++) {                                                                  \
                if (s.mask && !s.mask[j])                                                                           \
                    continue;                                                                                       \
                ctype x = 0;                                                                                        \
                for (int64_t c = 0; c < z->d; c++)                                                                  \
                    x = fma(q[c], k[j * z->d + c], x);                                                              \
                score[count++] = x *= scale;                                                                        \
                larger = x < larger || larger != larger ? larger : x;                                               \
            }                                                                                                       \
            ctype base = larger == (ctype)-INFINITY ? 0 : larger, shrink = most - base;                             \
            for (int64_t j = 0; j < count; j++)                                                                     \
                score[j] -= base;                                                                                   \
            if (!scalar_apply(OP_exp, dtype, &shrink, (const void *const[]){&shrink}, 1) ||                         \
                !scalar_apply(OP_exp, dtype, weight, (const void *const[]){score}, count))                          \
                return false;                                                                                       \
            for (int64_t j = 0; j < count; j++)                                                                     \
                sum += weight[j];                                                                                   \
            total = fma(total, shrink, sum);                                                                        \
            for (int64_t c = 0; c < z->e; c++) {                                                                    \
                const ctype *w = weight;                                                                            \
                ctype x = (ctype)-0.0;                                                                              \
                for (int64_t j = from; j < end; j++)                                                                \
                    if (!s.mask || s.mask[j])                                                                       \
                        x = fma(*w++, v[j * z->e + c], x);                                                          \
                out[c] = fma(out[c], shrink, x);                                                                    \
            }                                                                                                       \
            most = larger;                                                                                          \
        }                                                                                                           \
        for (int64_t c = 0; c < z->e; c++)                                                                          \
            out[c] = total == 0 ? 0 : out[c] / total;                                                               \
        return true;                                                                                                \
    }
ROW(f32, float, KL_F32, __builtin_fmaf)
ROW(f64, double, KL_F64, __builtin_fma)

static bool attention_arrays(const struct graph *g, const struct node *n, unsigned dtype, char *out, const char *q,
                             const char *k, const char *v, const void *seen)
{
    struct sizes z = sizes_of(g, n);
    size_t size = dtype_size(dtype);
    void *score = mem_alloc((size_t)n->attr.attention.block * size),
         *weight = mem_alloc((size_t)n->attr.attention.block * size);
    bool ok = score && weight && n->attr.attention.block;
    for (int64_t i = 0; ok && i < z.batch * z.l; i++) {
        int64_t b = i / z.l;
        void *y = out + (size_t)(i * z.e) * size;
        const void *x = q + (size_t)(i * z.d) * size, *kb = k + (size_t)(b * z.m * z.d) * size,
                   *vb = v + (size_t)(b * z.m * z.e) * size;
        struct sight s = sight_of(g, n, &z, seen, b, i % z.l);
        ok = dtype == KL_F32 ? row_f32(n, &z, s, y, x, kb, vb, score, weight)
                             : row_f64(n, &z, s, y, x, kb, vb, score, weight);
    }
    mem_free(score);
    mem_free(weight);
    return ok;
}

bool eval_attention(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const void *seen = n->nin == 4 ? in[SEEN] : NULL;
    if (!dtype_is_half(n->dtype))
        return attention_arrays(g, n, n->dtype, out, in[Q], in[K], in[V], seen);
    float *wide[4] = {NULL}; /* operands, result */
    int64_t count[4] = {0, 0, 0, shape_count(&g->shape[n->shape])};
    bool ok = true;
    for (unsigned i = 0; i < 4; i++) {
        count[i] = i < 3 ? node_numel(g, n->in[i]) : count[i];
        ok = ok && (wide[i] = mem_alloc((size_t)count[i] * sizeof **wide)) &&
             (i == 3 || scalar_cast(wide[i], KL_F32, in[i], n->dtype, count[i]));
    }
    ok = ok &&
         attention_arrays(g, n, KL_F32, (char *)wide[3], (char *)wide[Q], (char *)wide[K], (char *)wide[V], seen) &&
         scalar_cast(out, n->dtype, wide[3], KL_F32, count[3]);
    for (unsigned i = 0; i < 4; i++)
        mem_free(wide[i]);
    return ok;
}

/* ---- the same of other ops, and the gradient ---- */

/* A dot that is batched over all axes but the last two, of which it contracts con_a and con_b. */
static ref op_attention_product(struct graph *g, ref a, ref b, unsigned con_a, unsigned con_b)
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
    return n_dot(g, a, b, &at);
}

/* Which keys each query sees, bool [.., L, M]; NIL: all. */
static ref seen_keys(struct graph *g, const struct node *n, const struct shape *s)
{
    uint32_t last = s->rank - 1;
    ref seen = NIL;
    if (n->nin == 4 && node_at(g, n->in[SEEN])->dtype == KL_BOOL) {
        seen = n->in[SEEN];
    } else if (n->nin == 4) {
        unsigned dtype = KL_I64;
        ref key = n_iota(g, dtype, s, last), bounds = n_cast(g, n->in[SEEN], dtype);
        ref lo = n_expand(g, n_slice(g, bounds, last, 0, 1, 1), s),
            hi = n_expand(g, n_slice(g, bounds, last, 1, 1, 1), s);
        seen = n_and(g, n_le(g, lo, key), n_lt(g, key, hi));
    }
    if (!n->attr.attention.causal)
        return seen;
    /* counted from the last query and the last key */
    ref key = n_flip(g, n_iota(g, KL_I64, s, last), 1u << last),
        query = n_flip(g, n_iota(g, KL_I64, s, last - 1), 1u << (last - 1));
    ref past = n_ge(g, key, query);
    return seen ? n_and(g, seen, past) : past;
}

/* x where a query sees a key, else 0. */
static ref where_seen(struct graph *g, ref seen, ref x) { return seen ? n_where(g, seen, x, n_k(g, x, 0)) : x; }

static ref along_keys(struct graph *g, enum op reduce, ref x, const struct shape *s)
{
    return n_reduce(g, reduce, x, 1u << (s->rank - 1));
}

static ref weights(struct graph *g, const struct node *n, ref *seen)
{
    unsigned dtype = dtype_compute(n->dtype);
    ref x = op_attention_product(g, n->in[Q], n->in[K], 1, 1);
    if (!x)
        return NIL;
    const struct shape s = *node_shape(g, x);
    x = dtype == n->dtype ? x : n_cast(g, x, dtype);
    x = n_mul(g, x, n_k(g, x, dtype_value(KL_F64, n->attr.attention.scale)));
    *seen = seen_keys(g, n, &s);
    ref none = n_k(g, x, -INFINITY), most = along_keys(g, OP_reduce_max, *seen ? n_where(g, *seen, x, none) : x, &s);
    if (!most)
        return NIL;
    g->node[most].flags |= MARK_STOP; /* it cancels out */
    most = n_where(g, n_eq(g, most, n_k(g, most, -INFINITY)), n_k(g, most, 0), most);
    ref e = where_seen(g, *seen, n_exp(g, where_seen(g, *seen, n_sub(g, x, n_expand(g, most, &s)))));
    ref sum = along_keys(g, OP_sum, e, &s);
    sum = n_where(g, n_eq(g, sum, n_k(g, sum, 0)), n_k(g, sum, 1), sum);
    return n_div(g, e, n_expand(g, sum, &s));
}

ref n_attention_weights(struct graph *g, ref y)
{
    const struct node n = *node_at(g, y);
    ref seen;
    return weights(g, &n, &seen);
}

/* With p the weights: dv = p^T dy, dp = dy v^T, ds = p (dp - their sum along the keys, weighed by p), and so on.  p is
 * computed again, which costs one product and keeps no L x M of the forward pass. */
void vjp_attention(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    const uint16_t flags = g->cur_flags;
    g->cur_flags |= MARK_REMAT; /* late, where they are needed */
    ref seen, p = weights(g, &n, &seen);
    g->cur_flags = flags;
    ref dp = op_attention_product(g, dy, n.in[V], 1, 1);
    if (!p || !dp)
        return;
    const struct shape s = *node_shape(g, p);
    unsigned dtype = node_at(g, p)->dtype;
    bool half = dtype != n.dtype;
    dp = where_seen(g, seen, half ? n_cast(g, dp, dtype) : dp);
    ref mean = along_keys(g, OP_sum, n_mul(g, p, dp), &s);
    ref ds = n_mul(g, n_mul(g, p, n_sub(g, dp, n_expand(g, mean, &s))),
                   n_k(g, p, dtype_value(KL_F64, n.attr.attention.scale)));
    ref pn = half ? n_cast(g, p, n.dtype) : p, dsn = half ? n_cast(g, ds, n.dtype) : ds;
    din[Q] = op_attention_product(g, dsn, n.in[K], 1, 0);
    din[K] = op_attention_product(g, dsn, n.in[Q], 0, 0);
    din[V] = op_attention_product(g, pn, dy, 0, 0);
}

/* All elements of a row come out of one pass over the keys, scheduled by passes/. */
uint32_t lower_attention(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    err_set(&l->k->err, KL_ERR_INTERNAL, "attention: node %u cannot be lowered element by element", r);
    return 0;
}
