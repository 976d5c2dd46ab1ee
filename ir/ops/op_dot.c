/* dot: batched sums of products over contracted axes. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include "ir/math/half.h"
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- shape ---- */

static bool dot_is_byte(unsigned dtype) { return dtype == KL_U8 || dtype == KL_I8; }

/* One operand's lists: in range and without duplicates. */
static bool check_axes(const struct graph *g, const struct shape *s, char which, uint32_t batch, unsigned nbatch,
                       uint32_t con, unsigned ncon, struct err *e)
{
    unsigned seen = 0;
    char text[SHAPE_TEXT];
    for (unsigned i = 0; i < nbatch + ncon; i++) {
        unsigned axis = i < nbatch ? axis_get(batch, i) : axis_get(con, i - nbatch);
        if (axis >= s->rank)
            return err_set(e, KL_ERR_SHAPE, "dot: axis %u is out of range for operand %c of shape %s", axis, which,
                           shape_text_in(g, s, text, sizeof text));
        if (seen >> axis & 1)
            return err_set(e, KL_ERR_SHAPE, "dot: axis %u of operand %c occurs twice", axis, which);
        seen |= 1u << axis;
    }
    if (((uint64_t)batch >> (4 * nbatch)) != 0 || ((uint64_t)con >> (4 * ncon)) != 0)
        return err_set(e, KL_ERR_INTERNAL, "dot: axis lists of operand %c have entries behind their end", which);
    return true;
}

static bool check_pairs(const struct graph *g, const struct shape *a, const struct shape *b, const char *what,
                        uint32_t la, uint32_t lb, unsigned n, struct err *e)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned x = axis_get(la, i), y = axis_get(lb, i);
        if (a->dim[x] != b->dim[y]) {
            char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
            return err_set(e, KL_ERR_SHAPE, "dot: %s axes %u of %s and %u of %s differ in length", what, x,
                           shape_text_in(g, a, ta, sizeof ta), y, shape_text_in(g, b, tb, sizeof tb));
        }
    }
    return true;
}

bool shape_dot(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *na = node_at(g, n->in[0]), *nb = node_at(g, n->in[1]);
    const struct shape *a = &g->shape[na->shape], *b = &g->shape[nb->shape];
    unsigned nbatch = n->attr.dot.nbatch, ncon = n->attr.dot.ncon;
    uint32_t batch_a = n->attr.dot.batch_a, batch_b = n->attr.dot.batch_b;
    uint32_t con_a = n->attr.dot.con_a, con_b = n->attr.dot.con_b;
    unsigned sum = n->attr.dot.sum;
    if (sum && (sum != KL_I32 || !dot_is_byte(na->dtype) || !dot_is_byte(nb->dtype)))
        return err_set(e, KL_ERR_TYPE, "dot: sums of %s are of u8 and i8 as i32, not of %s and %s", dtype_name(sum),
                       dtype_name(na->dtype), dtype_name(nb->dtype));
    if (!sum && na->dtype != nb->dtype)
        return err_set(e, KL_ERR_TYPE, "dot: dtypes %s and %s differ", dtype_name(na->dtype), dtype_name(nb->dtype));
    if (na->dtype == KL_BOOL)
        return err_set(e, KL_ERR_TYPE, "dot: needs a number dtype, got bool");
    if (nbatch + ncon > a->rank || nbatch + ncon > b->rank) {
        char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
        return err_set(e, KL_ERR_SHAPE, "dot: %u batch and %u contracted axes are too many for shapes %s and %s",
                       nbatch,
                       ncon, shape_text_in(g, a, ta, sizeof ta), shape_text_in(g, b, tb, sizeof tb));
    }
    if (!check_axes(g, a, 'a', batch_a, nbatch, con_a, ncon, e) ||
        !check_axes(g, b, 'b', batch_b, nbatch, con_b, ncon, e) ||
        !check_pairs(g, a, b, "batch", batch_a, batch_b, nbatch, e) ||
        !check_pairs(g, a, b, "contracted", con_a, con_b, ncon, e))
        return false;
    uint8_t fa[KL_MAX_RANK], fb[KL_MAX_RANK];
    uint32_t nfa = dot_free_axes(a->rank, batch_a, nbatch, con_a, ncon, fa);
    uint32_t nfb = dot_free_axes(b->rank, batch_b, nbatch, con_b, ncon, fb);
    *out = (struct shape){0};
    if (nbatch + nfa + nfb > KL_MAX_RANK) {
        char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
        return err_set(e, KL_ERR_SHAPE, "dot: the result of %s and %s has rank %u, above the maximum of %d",
                       shape_text_in(g, a, ta, sizeof ta), shape_text_in(g, b, tb, sizeof tb), nbatch + nfa + nfb,
                       KL_MAX_RANK);
    }
    for (unsigned i = 0; i < nbatch; i++)
        out->dim[out->rank++] = a->dim[axis_get(batch_a, i)];
    for (uint32_t i = 0; i < nfa; i++)
        out->dim[out->rank++] = a->dim[fa[i]];
    for (uint32_t i = 0; i < nfb; i++)
        out->dim[out->rank++] = b->dim[fb[i]];
    unsigned lanes = n->attr.dot.lanes;
    uint32_t kblock = n->attr.dot.kblock;
    if (!(lanes == 0 && kblock == 0) && !(lanes == 1 && kblock > 0))
        return err_set(e, KL_ERR_INTERNAL, "dot: lanes %u with kblock %u is no numeric order", lanes, kblock);
    n->dtype = sum ? (uint8_t)sum : na->dtype;
    uint32_t order = n->attr.dot.order;
    if (order && (order > (DOT_ORDERS | DOT_ANY_SIZE) || n->dtype != KL_BF16))
        return err_set(e, KL_ERR_INTERNAL, "dot: a product of %s has no order of bf16", dtype_name(n->dtype));
    if ((order & DOT_ORDERS) == DOT_ORDERS)
        return err_set(e, KL_ERR_INTERNAL, "dot: pairs and even_odd are two orders");
    if (order & DOT_PAIRS && (!kblock || kblock % 2))
        return err_set(e, KL_ERR_INTERNAL, "dot: pairs are in blocks of an even number, not of %u", kblock);
    if (order & DOT_EVEN_ODD && kblock != EVEN_ODD_BLOCK)
        return err_set(e, KL_ERR_INTERNAL, "dot: even_odd is in blocks of %d, not of %u", EVEN_ODD_BLOCK, kblock);
    return attr_clear_rest(n, sizeof n->attr.dot);
}

/* ---- evaluation ----
 * A chain computes c[j] = a[0]*b[0][j] + a[1]*b[1][j] + .. for one row of a and n columns of b, in ascending order from
 * 0: the block of the numeric order.  Columns are independent: a vector of them gives the bits of one at a time. */

#if defined(__x86_64__)
#define VECTOR_CHAIN(name, ctype, vtype, width, set1, zero, load, store, fmadd)                                 \
    __attribute__((target("avx2,fma"))) static void chain_avx2_##name(ctype *c, const ctype *a, const ctype *b, \
                                                                      int64_t k, int64_t n, int64_t ldb)        \
    {                                                                                                           \
        int64_t j = 0;                                                                                          \
        for (; j + 4 * (width) <= n; j += 4 * (width)) {                                                        \
            vtype acc[4] = {zero(), zero(), zero(), zero()};                                                    \
            for (int64_t i = 0; i < k; i++)                                                                     \
                for (int v = 0; v < 4; v++)                                                                     \
                    acc[v] = fmadd(set1(a[i]), load(b + i * ldb + j + v * (width)), acc[v]);                    \
            for (int v = 0; v < 4; v++)                                                                         \
                store(c + j + v * (width), acc[v]);                                                             \
        }                                                                                                       \
        for (; j < n; j++) {                                                                                    \
            ctype acc = 0;                                                                                      \
            for (int64_t i = 0; i < k; i++)                                                                     \
                acc = fma_##name(a[i], b[i * ldb + j], acc);                                                    \
            c[j] = acc;                                                                                         \
        }                                                                                                       \
    }
#else
#define VECTOR_CHAIN(name, ctype, vtype, width, set1, zero, load, store, fmadd)
#endif

#define fma_f32 __builtin_fmaf
#define fma_f64 __builtin_fma
VECTOR_CHAIN(f32, float, __m256, 8, _mm256_set1_ps, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps,
             _mm256_fmadd_ps)
VECTOR_CHAIN(f64, double, __m256d, 4, _mm256_set1_pd, _mm256_setzero_pd, _mm256_loadu_pd, _mm256_storeu_pd,
             _mm256_fmadd_pd)

/* Integers wrap: unsigned arithmetic avoids C's promotions. */
#define wrap_add_mul(ctype, utype, a, b, c) ((ctype)(utype)((uint64_t)(a) * (uint64_t)(b) + (uint64_t)(c)))

#define CHAIN(name, ctype, step)                                                                             \
    static void chain_##name(ctype *c, const ctype *a, const ctype *b, int64_t k, int64_t n, int64_t ldb)    \
    {                                                                                                        \
        memset(c, 0, (size_t)n * sizeof *c);                                                                 \
        for (int64_t i = 0; i < k; i++)                                                                      \
            for (int64_t j = 0; j < n; j++)                                                                  \
                c[j] = step;                                                                                 \
    }
#define DTN(name, en, ctype, utype, bytes, kind) \
    CHAIN(name, ctype, wrap_add_mul(ctype, utype, a[i], b[i * ldb + j], c[j]))
#define DTF(name, en, ctype, utype, bytes, kind) CHAIN(name, ctype, fma_##name(a[i], b[i * ldb + j], c[j]))
#include "ir/math/dtypes.def"

/* Columns are taken in panels, so that a panel of b stays in cache while the rows of a pass over it. */
enum { PANEL = 512 };

/* ---- products in bf16 dot2 order, widened to f32: as chain, by DOT2 ---- */

#if defined(__x86_64__)
#define FLUSH_AVX2(x) \
    _mm256_and_ps(x, _mm256_or_ps(_mm256_cmp_ps(_mm256_and_ps(x, exponent), _mm256_setzero_ps(), _CMP_NEQ_UQ), sign))

/* As FMA_FLUSHED in ir/math/half.inc, of 8 columns from j on while there are so many; the first column left. */
__attribute__((target("avx2,fma"))) static int64_t fma_flushed_avx2(float *c, float a, const float *b, int64_t n)
{
    const __m256 exponent = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)), sign = _mm256_set1_ps(-0.0f);
    const __m256 up = _mm256_set1_ps(0x1p32f), up2 = _mm256_set1_ps(0x1p64f), min = _mm256_set1_ps(0x1p-62f);
    const __m256 x = FLUSH_AVX2(_mm256_set1_ps(a)), x_up = _mm256_mul_ps(x, up);
    int64_t j = 0;
    for (; j + 8 <= n; j += 8) {
        __m256 y = _mm256_loadu_ps(b + j), z = _mm256_loadu_ps(c + j);
        y = FLUSH_AVX2(y);
        z = FLUSH_AVX2(z);
        __m256 sum = _mm256_fmadd_ps(x, y, z);
        __m256 scaled = _mm256_fmadd_ps(x_up, _mm256_mul_ps(y, up), _mm256_mul_ps(z, up2));
        __m256 tiny = _mm256_cmp_ps(_mm256_andnot_ps(sign, scaled), min, _CMP_LT_OQ);
        _mm256_storeu_ps(c + j, _mm256_and_ps(sum, _mm256_or_ps(sign, _mm256_andnot_ps(tiny, _mm256_cmp_ps(
            sign, sign, _CMP_TRUE_UQ)))));
    }
    return j;
}
#undef FLUSH_AVX2
#endif

static void add_products_flushed(float *c, float a, const float *b, int64_t n)
{
    int64_t j = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        j = fma_flushed_avx2(c, a, b, n);
#endif
    for (; j < n; j++)
        c[j] = fma_flushed(a, b[j], c[j]);
}

/* The second product of a pair comes first. */
static void chain_pairs(float *c, const float *a, const float *b, int64_t k, int64_t n, int64_t ldb)
{
    memset(c, 0, (size_t)n * sizeof *c);
    for (int64_t i = 0; i < k; i += 2) {
        static const float none[PANEL];
        add_products_flushed(c, i + 1 < k ? a[i + 1] : 0, i + 1 < k ? b + (i + 1) * ldb : none, n);
        add_products_flushed(c, a[i], b + i * ldb, n);
    }
}

/* A block in even_odd order: the two chains, then their sum.  More products 0 * 0 than one change nothing. */
static void chain_even_odd(float *c, const float *a, const float *b, int64_t k, int64_t n, int64_t ldb)
{
    static const float none[PANEL];
    float odd[PANEL] = {0};
    memset(c, 0, (size_t)n * sizeof *c);
    for (int64_t i = 0; i < k + 2 && i < EVEN_ODD_BLOCK; i++)
        add_products_flushed(i % 2 ? odd : c, i < k ? a[i] : 0, i < k ? b + i * ldb : none, n);
    add_products_flushed(c, 1, odd, n);
}

static void dot_fma_chain(unsigned dtype, void *c, const void *a, const void *b, int64_t k, int64_t n, int64_t ldb)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (dtype == KL_F32) {
            chain_avx2_f32(c, a, b, k, n, ldb);
            return;
        }
        if (dtype == KL_F64) {
            chain_avx2_f64(c, a, b, k, n, ldb);
            return;
        }
    }
#endif
    switch (dtype) {
#define DTN(name, en, ctype, utype, bytes, kind) case en: chain_##name(c, a, b, k, n, ldb); return;
#define DTF DTN
#include "ir/math/dtypes.def"
    }
}

/* One operand as [batch][m][k] or [batch][k][n]: axes in the given order. */
static void *dot_arrange_operand(const void *in, size_t size, const struct shape *s, uint32_t batch, unsigned nbatch,
                     const uint8_t *free_axis, uint32_t nfree, uint32_t con, unsigned ncon, bool con_last)
{
    uint8_t axis[KL_MAX_RANK];
    uint32_t n = 0;
    void *copy = mem_alloc((size_t)shape_count(s) * size);
    if (!copy)
        return NULL;
    for (unsigned i = 0; i < nbatch; i++)
        axis[n++] = (uint8_t)axis_get(batch, i);
    for (uint32_t i = 0; con_last && i < nfree; i++)
        axis[n++] = free_axis[i];
    for (unsigned i = 0; i < ncon; i++)
        axis[n++] = (uint8_t)axis_get(con, i);
    for (uint32_t i = 0; !con_last && i < nfree; i++)
        axis[n++] = free_axis[i];
    gather_axes(copy, in, size, s, axis, n);
    return copy;
}

/* The blocks of a row in even_odd order. */
static void blocks_even_odd(float *c, const float *a, const float *b, int64_t k, int64_t n, int64_t ldb)
{
    float block[PANEL];
    memset(c, 0, (size_t)n * sizeof *c);
    for (int64_t i = 0; i < k; i += EVEN_ODD_BLOCK) {
        chain_even_odd(block, a + i, b + i * ldb, k - i < EVEN_ODD_BLOCK ? k - i : EVEN_ODD_BLOCK, n, ldb);
        add_products_flushed(c, 1, block, n);
    }
}

static bool op_dot_multiply(const struct node *n, const struct dot_dims *d, char *out, const char *a, const char *b)
{
    size_t size = dtype_size(n->dtype);
    bool even_odd = n->attr.dot.order & DOT_EVEN_ODD;
    int64_t kblock = even_odd && d->k > 0 ? d->k : n->attr.dot.kblock;
    uint64_t block[PANEL];
    for (int64_t bi = 0; bi < d->batch; bi++)
        for (int64_t j = 0; j < d->n; j += PANEL) {
            int64_t cols = d->n - j < PANEL ? d->n - j : PANEL;
            for (int64_t k = 0; k < d->k || k == 0; k += kblock) {
                int64_t len = d->k - k < kblock ? d->k - k : kblock;
                for (int64_t i = 0; i < d->m; i++) {
                    char *c = out + (size_t)((bi * d->m + i) * d->n + j) * size;
                    const char *row = a + (size_t)((bi * d->m + i) * d->k + k) * size;
                    const char *panel = b + (size_t)((bi * d->k + k) * d->n + j) * size;
                    void *to = k == 0 ? (void *)c : block;
                    if (even_odd)
                        blocks_even_odd((float *)to, (const float *)(const void *)row,
                                        (const float *)(const void *)panel, len, cols, d->n);
                    else if (n->attr.dot.order & DOT_PAIRS)
                        chain_pairs(to, (const float *)(const void *)row, (const float *)(const void *)panel, len, cols,
                                    d->n);
                    else
                        dot_fma_chain(n->dtype, to, row, panel, len, cols, d->n);
                    if (k > 0 && !scalar_apply(OP_add, n->dtype, c, (const void *const[]){c, block}, cols))
                        return false;
                }
            }
        }
    return true;
}

static bool dot_arrays(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *a = node_shape(g, n->in[0]), *b = node_shape(g, n->in[1]);
    unsigned nbatch = n->attr.dot.nbatch, ncon = n->attr.dot.ncon;
    uint8_t fa[KL_MAX_RANK], fb[KL_MAX_RANK];
    uint32_t nfa = dot_free_axes(a->rank, n->attr.dot.batch_a, nbatch, n->attr.dot.con_a, ncon, fa);
    uint32_t nfb = dot_free_axes(b->rank, n->attr.dot.batch_b, nbatch, n->attr.dot.con_b, ncon, fb);
    size_t size = dtype_size(n->dtype);
    struct dot_dims d = dot_sizes(g, n);
    void *ca = dot_arrange_operand(in[0], size, a, n->attr.dot.batch_a, nbatch, fa, nfa, n->attr.dot.con_a, ncon, true);
    void *cb = dot_arrange_operand(in[1], size, b, n->attr.dot.batch_b, nbatch, fb, nfb, n->attr.dot.con_b, ncon,
                                   false);
    bool ok = ca && cb && n->attr.dot.kblock && op_dot_multiply(n, &d, out, ca, cb);
    mem_free(ca);
    mem_free(cb);
    return ok;
}

/* 8-bit integers are widened first. */
static bool dot_bytes(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    int64_t na = node_numel(g, n->in[0]), nb = node_numel(g, n->in[1]);
    int32_t *a = mem_alloc((size_t)na * sizeof *a), *b = mem_alloc((size_t)nb * sizeof *b);
    bool ok = a && b && scalar_cast(a, KL_I32, in[0], node_at(g, n->in[0])->dtype, na) &&
              scalar_cast(b, KL_I32, in[1], node_at(g, n->in[1])->dtype, nb) &&
              dot_arrays(g, n, out, (const void *const[]){a, b});
    mem_free(a);
    mem_free(b);
    return ok;
}

static bool dot_in_dtype(const struct graph *g, const struct node *n, unsigned dtype, void *out, const void *const *in)
{
    struct node wide = *n;
    wide.dtype = (uint8_t)dtype;
    return dot_arrays(g, &wide, out, in);
}

bool eval_dot(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    if (n->attr.dot.sum)
        return dot_bytes(g, n, out, in);
    return eval_widened(g, n, out, in, dot_in_dtype);
}

/* ---- gradient ---- */

static bool is_identity(const uint8_t *perm, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (perm[i] != i)
            return false;
    return true;
}

/* The gradient of operand `x` is a dot of dy with the other operand over the other's free axes. `order` has the
 * result's axes as axes of x; a permute puts them in x's order. */
static ref to_operand_order(struct graph *g, ref d, const uint8_t *order, uint32_t rank)
{
    uint8_t perm[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < rank; i++)
        perm[order[i]] = (uint8_t)i;
    return is_identity(perm, rank) ? d : n_permute(g, d, perm);
}

/* Appends the axes of x that are paired with the other operand's contracted axes, in the order of the dot's result:
 * ascending in the other operand. */
static uint32_t paired_axes(uint32_t con_x, uint32_t con_other, unsigned ncon, uint8_t *out)
{
    uint32_t n = 0;
    for (unsigned axis = 0; axis < KL_MAX_RANK; axis++)
        for (unsigned i = 0; i < ncon; i++)
            if (axis_get(con_other, i) == axis)
                out[n++] = (uint8_t)axis_get(con_x, i);
    return n;
}

static uint32_t list_of(const uint8_t *axis, uint32_t n)
{
    uint32_t list = 0;
    for (uint32_t i = 0; i < n; i++)
        list = axis_put(list, i, axis[i]);
    return list;
}

static uint32_t counting_list(unsigned from, unsigned n)
{
    uint32_t list = 0;
    for (unsigned i = 0; i < n; i++)
        list = axis_put(list, i, from + i);
    return list;
}

/* The dot of a gradient, with a mark. */
static ref marked_dot(struct graph *g, ref a, ref b, const union attr *dims, unsigned mark)
{
    ref d = n_dot(g, a, b, dims);
    if (d)
        g->node[d].flags |= (uint16_t)mark;
    return d;
}

/* The marks of the two gradients, by the dot's own.  Changes what a 0 of a hidden key is multiplied by. */
static void hidden_marks(struct graph *g, unsigned flags, ref *a, ref *b, ref dy_of[2], unsigned mark[2])
{
    if (flags & MARK_HIDDEN_RESULT) { /* so dy is 0 there */
        *a = n_finite_or_zero(g, *a);
        *b = n_finite_or_zero(g, *b);
        mark[0] = MARK_HIDDEN_LEFT;
        mark[1] = MARK_HIDDEN_RIGHT;
    } else if (flags & MARK_HIDDEN_LEFT) {
        dy_of[1] = n_finite_or_zero(g, dy_of[1]);
        mark[0] = MARK_HIDDEN_RESULT;
        mark[1] = MARK_HIDDEN_LEFT;
    } else if (flags & MARK_HIDDEN_RIGHT) {
        dy_of[0] = n_finite_or_zero(g, dy_of[0]);
        mark[0] = MARK_HIDDEN_RIGHT;
        mark[1] = MARK_HIDDEN_RESULT;
    }
}

void vjp_dot(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    ref a = n.in[0], b = n.in[1], dy_of[2] = {dy, dy};
    unsigned mark[2] = {0, 0};
    hidden_marks(g, n.flags, &a, &b, dy_of, mark);
    uint32_t rank_a = node_shape(g, a)->rank, rank_b = node_shape(g, b)->rank;
    unsigned nbatch = n.attr.dot.nbatch, ncon = n.attr.dot.ncon;
    uint8_t fa[KL_MAX_RANK], fb[KL_MAX_RANK], order[KL_MAX_RANK];
    uint32_t nfa = dot_free_axes(rank_a, n.attr.dot.batch_a, nbatch, n.attr.dot.con_a, ncon, fa);
    uint32_t nfb = dot_free_axes(rank_b, n.attr.dot.batch_b, nbatch, n.attr.dot.con_b, ncon, fb);
    uint32_t at;

    /* dy [batch, free a, free b] with b over free b: [batch, free a, contracted in b's order] */
    const uint32_t bf16_order = n.attr.dot.order & DOT_ANY_SIZE;
    union attr da = {.dot = {.nbatch = (uint8_t)nbatch, .ncon = (uint8_t)nfb, .order = bf16_order}};
    da.dot.batch_a = counting_list(0, nbatch);
    da.dot.batch_b = n.attr.dot.batch_b;
    da.dot.con_a = counting_list(nbatch + nfa, nfb);
    da.dot.con_b = list_of(fb, nfb);
    for (at = 0; at < nbatch; at++)
        order[at] = (uint8_t)axis_get(n.attr.dot.batch_a, at);
    for (uint32_t i = 0; i < nfa; i++)
        order[at++] = fa[i];
    paired_axes(n.attr.dot.con_a, n.attr.dot.con_b, ncon, order + at);
    din[0] = to_operand_order(g, marked_dot(g, dy_of[0], b, &da, mark[0]), order, rank_a);

    /* a with dy over free a: [batch, contracted in a's order, free b] */
    union attr db = {.dot = {.nbatch = (uint8_t)nbatch, .ncon = (uint8_t)nfa, .order = bf16_order}};
    db.dot.batch_a = n.attr.dot.batch_a;
    db.dot.batch_b = counting_list(0, nbatch);
    db.dot.con_a = list_of(fa, nfa);
    db.dot.con_b = counting_list(nbatch, nfa);
    for (at = 0; at < nbatch; at++)
        order[at] = (uint8_t)axis_get(n.attr.dot.batch_b, at);
    at += paired_axes(n.attr.dot.con_b, n.attr.dot.con_a, ncon, order + at);
    for (uint32_t i = 0; i < nfb; i++)
        order[at++] = fb[i];
    din[1] = to_operand_order(g, marked_dot(g, a, dy_of[1], &db, mark[1]), order, rank_b);
}

/* ---- lowering: one element as serial chains; fast products are anchors, which passes/ schedules ---- */

/* Splits the number k of a contracted position into coordinates of the operand's contracted axes. */
static void contracted_coord(struct lower *l, const struct shape *s, uint32_t con, unsigned ncon, val k, val *at)
{
    int64_t step = 1;
    for (unsigned i = ncon; i-- > 0;) {
        unsigned axis = axis_get(con, i);
        at[axis] = step > 1 ? ix_div(l->k, k, step) : k;
        if (i > 0)
            at[axis] = ix_mod(l->k, at[axis], s->dim[axis]);
        step *= s->dim[axis];
    }
}

/* An operand's element of contracted number kk. */
static val factor_at(struct lower *l, const struct node *n, bool second, const val *at, val kk)
{
    const struct shape *s = node_shape(l->g, n->in[second]);
    val coord[KL_MAX_RANK];
    memcpy(coord, at, sizeof coord);
    contracted_coord(l, s, second ? n->attr.dot.con_b : n->attr.dot.con_a, n->attr.dot.ncon, kk, coord);
    return l->at(l, n->in[second], coord);
}

val dot_pair_of(struct kernel *k, val low, val high)
{
    val x = k_cast(k, k_inst(k, L_OP(P_BITS), KL_U16, low, 0, 0, 0), KL_U32);
    if (!high)
        return x;
    val y = k_cast(k, k_inst(k, L_OP(P_BITS), KL_U16, high, 0, 0, 0), KL_U32);
    return k_prim(k, P_OR, k_prim(k, P_SHL, y, k_bits(k, KL_U32, 16), 0), x, 0);
}

/* The same for that number, which is even, and the next one; zero where there is none. */
static val pair_at(struct lower *l, const struct node *n, bool second, const val *at, val kk, int64_t count)
{
    struct kernel *k = l->k;
    val next = ix_add(k, kk, k_int(k, 1)), there = count % 2 ? k_prim(k, P_LT, next, k_int(k, count), 0) : 0;
    if (there)
        next = k_prim(k, P_SELECT, there, next, kk);
    val low = factor_at(l, n, second, at, kk), high = factor_at(l, n, second, at, next);
    if (there)
        high = k_prim(k, P_SELECT, there, high, k_bits(k, KL_BF16, 0));
    return dot_pair_of(k, low, high);
}

val dot_add_flushed(struct kernel *k, val a, val b)
{
    val sum = k_prim(k, P_ADD, a, b, 0), bits = k_inst(k, L_OP(P_BITS), KL_U32, sum, 0, 0, 0);
    val exponent = k_prim(k, P_AND, bits, k_bits(k, KL_U32, 0x7f800000), 0);
    val zero = k_inst(k, L_OP(P_BITS), KL_F32, k_prim(k, P_AND, bits, k_bits(k, KL_U32, 0x80000000), 0), 0, 0, 0);
    return k_prim(k, P_SELECT, k_prim(k, P_EQ, exponent, k_bits(k, KL_U32, 0), 0), zero, sum);
}

/* The upper product of each DOT2 is -0 * 0, which added to any number gives that number. */
void dot_even_odd_step(struct kernel *k, val a, val b, val sum[2])
{
    val none = k_bits(k, KL_U32, 0x80000000), low = k_bits(k, KL_U32, 0xffff), half = k_bits(k, KL_U32, 16);
    val even = k_prim(k, P_OR, k_prim(k, P_AND, a, low, 0), none, 0);
    val odd = k_prim(k, P_OR, k_prim(k, P_SHR, a, half, 0), none, 0);
    sum[0] = k_prim(k, P_DOT2, even, k_prim(k, P_AND, b, low, 0), sum[0]);
    sum[1] = k_prim(k, P_DOT2, odd, k_prim(k, P_SHR, b, half, 0), sum[1]);
}

val dot_even_odd_end(struct kernel *k, int64_t length, val sum[2])
{
    val none = k_bits(k, KL_U32, 0x80000000), zero = k_bits(k, KL_U32, 0);
    for (int odd = 0; odd < 2; odd++)
        if (length < EVEN_ODD_BLOCK - 1 + odd)
            sum[odd] = k_prim(k, P_DOT2, none, zero, sum[odd]);
    return dot_add_flushed(k, sum[0], sum[1]);
}

/* The coordinates in both operands of result `coord`, but for those of the contraction. */
static void free_coordinates(const struct lower *l, const struct node *n, const val *coord, val *at_a, val *at_b)
{
    const struct shape *a = node_shape(l->g, n->in[0]), *b = node_shape(l->g, n->in[1]);
    unsigned nbatch = n->attr.dot.nbatch, ncon = n->attr.dot.ncon;
    uint8_t fa[KL_MAX_RANK], fb[KL_MAX_RANK];
    uint32_t nfa = dot_free_axes(a->rank, n->attr.dot.batch_a, nbatch, n->attr.dot.con_a, ncon, fa);
    uint32_t nfb = dot_free_axes(b->rank, n->attr.dot.batch_b, nbatch, n->attr.dot.con_b, ncon, fb);
    for (unsigned i = 0; i < nbatch; i++) {
        at_a[axis_get(n->attr.dot.batch_a, i)] = coord[i];
        at_b[axis_get(n->attr.dot.batch_b, i)] = coord[i];
    }
    for (uint32_t i = 0; i < nfa; i++)
        at_a[fa[i]] = coord[nbatch + i];
    for (uint32_t i = 0; i < nfb; i++)
        at_b[fb[i]] = coord[nbatch + nfa + i];
}

static val product_chain(struct lower *l, const struct node *n, const val *coord, val lo, val hi, val init)
{
    struct kernel *k = l->k;
    val at_a[KL_MAX_RANK] = {0}, at_b[KL_MAX_RANK] = {0};
    free_coordinates(l, n, coord, at_a, at_b);
    bool pairs = n->attr.dot.order & DOT_PAIRS;
    int64_t count = dot_sizes(l->g, n).k;
    val loop = k_loop(k, LOOP_SERIAL, lo, hi, pairs ? 2 : 1);
    val acc = k_carry(k, init), next;
    if (pairs) {
        val x = pair_at(l, n, false, at_a, loop, count), w = pair_at(l, n, true, at_b, loop, count);
        next = k_prim(k, P_DOT2, x, w, acc);
    } else {
        val x = k_cast(k, factor_at(l, n, false, at_a, loop), dtype_compute(n->dtype));
        val w = k_cast(k, factor_at(l, n, true, at_b, loop), dtype_compute(n->dtype));
        next = dtype_is_float(n->dtype) ? k_prim(k, P_FMA, x, w, acc)
                                        : k_prim(k, P_ADD, k_prim(k, P_MUL, x, w, 0), acc, 0);
    }
    k_next(k, acc, next);
    k_end(k, loop);
    return k_out(k, acc);
}

/* A block in even_odd order, from product lo on. */
static val block_even_odd(struct lower *l, const struct node *n, const val *at_a, const val *at_b, val lo,
                          int64_t length)
{
    struct kernel *k = l->k;
    int64_t count = dot_sizes(l->g, n).k;
    val zero = lower_init(l, KL_F32, 0);
    val loop = k_loop(k, LOOP_SERIAL, lo, ix_add(k, lo, k_int(k, length)), 2);
    val carry[2] = {k_carry(k, zero), k_carry(k, zero)}, sum[2] = {carry[0], carry[1]};
    dot_even_odd_step(k, pair_at(l, n, false, at_a, loop, count), pair_at(l, n, true, at_b, loop, count), sum);
    for (int i = 0; i < 2; i++)
        k_next(k, carry[i], sum[i]);
    k_end(k, loop);
    sum[0] = k_out(k, carry[0]);
    sum[1] = k_out(k, carry[1]);
    return dot_even_odd_end(k, length, sum);
}

static val sum_even_odd(struct lower *l, const struct node *n, const val *coord)
{
    struct kernel *k = l->k;
    int64_t count = dot_sizes(l->g, n).k, whole = count / EVEN_ODD_BLOCK * EVEN_ODD_BLOCK;
    val at_a[KL_MAX_RANK] = {0}, at_b[KL_MAX_RANK] = {0}, total = lower_init(l, KL_F32, 0);
    free_coordinates(l, n, coord, at_a, at_b);
    if (whole) {
        val block = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), EVEN_ODD_BLOCK), acc = k_carry(k, total);
        k_next(k, acc, dot_add_flushed(k, acc, block_even_odd(l, n, at_a, at_b, block, EVEN_ODD_BLOCK)));
        k_end(k, block);
        total = k_out(k, acc);
    }
    return whole == count ? total : dot_add_flushed(k, total, block_even_odd(l, n, at_a, at_b, k_int(k, whole),
                                                                             count - whole));
}

uint32_t lower_dot(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    struct dot_dims d = dot_sizes(l->g, n);
    int64_t kblock = n->attr.dot.kblock;
    if (kblock == 0) {
        err_set(&l->k->err, KL_ERR_INTERNAL, "dot: node %u has no numeric order", r);
        return 0;
    }
    if (n->attr.dot.order & DOT_EVEN_ODD)
        return k_cast(l->k, sum_even_odd(l, n, coord), n->dtype);
    unsigned dtype = dtype_compute(n->dtype);
    val zero = lower_init(l, dtype, 0), lo = k_int(l->k, 0), hi = k_int(l->k, d.k);
    if (d.k <= kblock)
        return k_cast(l->k, product_chain(l, n, coord, lo, hi, zero), n->dtype);
    /* The chain of blocks starts from -0, which does not change the first block's result. */
    val start = lower_init(l, dtype, dtype_bits(dtype, -0.0));
    val blocks = k_loop(l->k, LOOP_SERIAL, lo, hi, kblock);
    val total = k_carry(l->k, start);
    val end = ix_add(l->k, blocks, k_int(l->k, kblock));
    if (d.k % kblock)
        end = k_prim(l->k, P_SELECT, k_prim(l->k, P_LT, end, hi, 0), end, hi);
    val block = product_chain(l, n, coord, blocks, end, zero);
    k_next(l->k, total, k_prim(l->k, P_ADD, total, block, 0));
    k_end(l->k, blocks);
    return k_cast(l->k, k_out(l->k, total), n->dtype);
}
