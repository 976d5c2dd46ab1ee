/* Products of integers of 8 bits less their zero points, summed as i32, in forms that processors compute fast:
 *
 *   sum (a - p)(b - q) = sum a b - q sum a - p sum (b - q)
 *
 * of matrices, so that the product is of bytes; i32 wraps, so not a bit changes.  So is a convolution, padded with the
 * zero point.  Where that is not faster, it is of floats, exact as long as no sum of products has more than 2^24:
 * where a bound of the weights does not show that, the channels are divided. */
#include "onnx.h"
#include <stdlib.h>

#define EXACT_MAX (INT64_C(1) << 24) /* up to here f32 has every integer */

kl_tensor onnx_less_zero(struct node *n, uint32_t i, uint32_t zero, int axis)
{
    kl_tensor a = kl_cast(onnx_in(n, i), KL_I32), z = onnx_zero_point(n, i, zero, axis);
    return z.id ? kl_sub(a, z) : a;
}

/* Are the zero points, an operand, left out or known to be 0? */
static bool is_zero(struct node *n, uint32_t zero)
{
    const struct array *known = onnx_numbers(n, zero);
    bool all = known != NULL;
    for (int64_t k = 0; all && k < known->count; k++)
        all = array_int(known, k) == 0;
    return all || !onnx_has(n, zero);
}

kl_tensor onnx_zero_point(struct node *n, uint32_t i, uint32_t zero, int axis)
{
    struct type t, z;
    if (is_zero(n, zero) || !onnx_type(n, i, &t) || !onnx_type(n, zero, &z))
        return kl_none;
    kl_tensor p = kl_cast(onnx_in(n, zero), KL_I32);
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, count = z.rank == 1 ? z.dims[0] : 1;
    axis = axis < 0 ? axis + t.rank : axis;
    if (z.rank > 1 || axis < 0 || axis >= t.rank)
        return p;
    dims[axis] = count;
    return kl_reshape(p, count == 1 ? 0 : t.rank, dims);
}

static bool is_bytes(struct node *n, uint32_t i, struct type *t)
{
    return onnx_type(n, i, t) && (t->dtype == KL_U8 || t->dtype == KL_I8);
}

/* Bytes from 0 to 255, less 128. */
static kl_tensor bytes_less_128(kl_tensor a)
{
    return kl_bitcast(kl_xor(a, kl_full(kl_device_of(a), KL_U8, 0, NULL, 128)), KL_I8);
}

/* Processors multiply unsigned by signed bytes.  Where both are unsigned, the weights, operand `of[0]`, are kept less
 * 128, as is their zero point *q: the same differences.  Does that cost nothing? */
static bool weights_become_signed(struct node *n, const uint32_t *of, unsigned dtype, kl_tensor *q)
{
    struct type w;
    if (dtype != KL_U8 || !q->id || !onnx_type(n, of[0], &w) || w.dtype != KL_U8 || !once_is_ready(n, of))
        return false;
    *q = kl_add_scalar(*q, -128);
    return true;
}

/* ---- matrices ---- */

struct onnx_integer_operands { uint32_t a, a_zero, b, b_zero; }; /* operands by number */

static struct onnx_integer_operands matmul_operands(const struct node *n)
{
    node_fn *fn = n->def->op->fn;
    if (fn == onnx_qlinear_matmul || fn == onnx_qgemm)
        return (struct onnx_integer_operands){0, 2, 3, 5};
    if (fn == onnx_qattention)
        return (struct onnx_integer_operands){0, 6, 1, 7};
    if (fn == onnx_dynamic_quantize_matmul)
        return (struct onnx_integer_operands){0, NO_PLACE, 1, 3};
    if (fn == onnx_matmul_integer_to_float)
        return (struct onnx_integer_operands){0, 4, 1, 5};
    return (struct onnx_integer_operands){0, 2, 1, 3};
}

static bool matmul_transposes(const struct node *n, const char *name)
{
    return n->def->op->fn == onnx_qgemm && onnx_attr_int(n, name, 0);
}

/* Part SUMS: the sums of b's columns, less its zero point: [.., 1, N]. */
static kl_tensor column_sums(struct node *n, uint32_t part)
{
    struct onnx_integer_operands o = matmul_operands(n);
    bool transposed = matmul_transposes(n, "transB");
    (void)part;
    return kl_sum(transposed ? kl_transpose(onnx_less_zero(n, o.b, o.b_zero, 0), 0, 1)
                  : onnx_less_zero(n, o.b, o.b_zero, -1), 1, (int[]){-2}, true);
}

enum { PANEL = 64 }; /* columns: a line of the cache */

enum { SUMS, PANELS, SIGNED, SIGNED_PANELS }; /* parts of what is computed once of b */

/* b, [K, N], less 128 or as [panels, K, PANEL], with zeros behind the last column, or both. */
static kl_tensor byte_weights(struct node *n, uint32_t part)
{
    kl_tensor b = onnx_in(n, matmul_operands(n).b);
    struct type t = onnx_type_of(b);
    b = part == PANELS ? b : bytes_less_128(b);
    if (part == SIGNED)
        return b;
    int64_t panels = (t.dims[1] + PANEL - 1) / PANEL;
    b = kl_pad(b, (int64_t[]){0, 0}, (int64_t[]){0, panels * PANEL - t.dims[1]}, 0);
    return kl_permute(kl_reshape(b, 3, (int64_t[]){t.dims[0], panels, PANEL}), (int[]){1, 0, 2});
}

/* a times b, i32, of bytes; less: b less 128.  A large b is kept in panels, on a processor: each of its rows is on a
 * page of its own, and few columns of each are read at a time. */
static kl_tensor byte_product(struct node *n, kl_tensor a, const struct type *tb, bool less)
{
    enum { LARGE = 1 << 20, PAGE = 4096 };
    struct onnx_integer_operands o = matmul_operands(n);
    struct type t = onnx_type_of(a);
    uint32_t of[] = {o.b, NO_PLACE};
    int64_t rows = 1, panels = (tb->dims[1] + PANEL - 1) / PANEL;
    for (int i = 0; i + 1 < t.rank; i++)
        rows = t.dims[i] < 0 ? 0 : sat_mul(rows, t.dims[i]);
    if (onnx_device(n).id != kl_device_cpu().id || tb->rank != 2 || tb->dims[1] < PAGE || rows < 1 ||
        sat_mul(tb->dims[0], tb->dims[1]) < LARGE || !once_is_ready(n, of))
        return kl_matmul(a, kl_cast(less ? once_part(n, SIGNED, of, byte_weights) : onnx_in(n, o.b), KL_I32));
    kl_tensor b = kl_cast(once_part(n, less ? SIGNED_PANELS : PANELS, of, byte_weights), KL_I32);
    kl_tensor y = kl_matmul(kl_reshape(a, 3, (int64_t[]){1, rows, tb->dims[0]}), b); /* [panels, rows, PANEL] */
    y = kl_reshape(kl_permute(y, (int[]){1, 0, 2}), 2, (int64_t[]){rows, panels * PANEL});
    t.dims[t.rank - 1] = tb->dims[1];
    return kl_reshape(kl_narrow(y, 1, 0, tb->dims[1]), t.rank, t.dims);
}

kl_tensor onnx_integer_product(struct node *n, kl_tensor a, kl_tensor p)
{
    struct onnx_integer_operands o = matmul_operands(n);
    struct type t = onnx_type_of(a), tb;
    bool across = matmul_transposes(n, "transA"), down = matmul_transposes(n, "transB");
    bool bytes = (t.dtype == KL_U8 || t.dtype == KL_I8) && is_bytes(n, o.b, &tb) && t.rank >= 2 && tb.rank >= 2;
    a = kl_cast(across ? kl_transpose(a, 0, 1) : a, KL_I32);
    if (!bytes) {
        kl_tensor b = onnx_less_zero(n, o.b, o.b_zero, down ? 0 : -1);
        p = p.id && across ? kl_transpose(p, 0, 1) : p;
        return kl_matmul(p.id ? kl_sub(a, p) : a, down ? kl_transpose(b, 0, 1) : b);
    }
    kl_tensor q = onnx_zero_point(n, o.b, o.b_zero, down ? 0 : -1);
    bool less = !down && weights_become_signed(n, (uint32_t[]){o.b, NO_PLACE}, t.dtype, &q);
    kl_tensor y = down ? kl_matmul(a, kl_transpose(kl_cast(onnx_in(n, o.b), KL_I32), 0, 1))
                       : byte_product(n, a, &tb, less);
    if (p.id)
        y = kl_sub(y, kl_mul(p, once_part(n, SUMS, (uint32_t[]){o.b, o.b_zero, NO_PLACE}, column_sums)));
    if (q.id)
        y = kl_sub(y, kl_mul(down && kl_rank(q) == 2 ? kl_transpose(q, 0, 1) : q, kl_sum(a, 1, (int[]){-1}, true)));
    return y;
}

kl_tensor onnx_integer_matmul(struct node *n)
{
    struct onnx_integer_operands o = matmul_operands(n);
    return onnx_integer_product(n, onnx_in(n, o.a), onnx_zero_point(n, o.a, o.a_zero, -2));
}

/* ---- convolutions ---- */

/* The operand that is the weights, also of a DequantizeLinear of weights. */
static uint32_t conv_weights(const struct node *n)
{
    node_fn *fn = n->def->op->fn;
    return fn == onnx_qlinear_conv ? 3 : fn == onnx_dequantize_linear ? 0 : 1;
}
static uint32_t conv_zero(const struct node *n)
{
    node_fn *fn = n->def->op->fn;
    return fn == onnx_qlinear_conv ? 5 : fn == onnx_dequantize_linear ? 2 : 3;
}

/* Part 0: the weights less their zero points, as floats. */
static kl_tensor float_weights(struct node *n, uint32_t part)
{
    (void)part;
    return kl_cast(onnx_less_zero(n, conv_weights(n), conv_zero(n), 0), KL_F32);
}

/* An upper bound of the sum of sizes of the weights that one result takes from `channels` channels, of any group of so
 * many that begins at a multiple of it; w: f.dims[0] times f.dims[1] times the window's elements. */
static int64_t weights_bound(struct node *n, const struct type *f, int64_t channels)
{
    const struct array *w = onnx_numbers(n, conv_weights(n)), *zero = onnx_numbers(n, conv_zero(n));
    int64_t window = 1, max = 0;
    for (int k = 2; k < f->rank; k++)
        window = sat_mul(window, f->dims[k]);
    if (!w || (onnx_has(n, conv_zero(n)) && !zero) || (zero && zero->count != 1 && zero->count != f->dims[0]))
        return sat_mul(sat_mul(window, channels), 255);
    for (int64_t o = 0; o < f->dims[0]; o++)
        for (int64_t c = 0; c < f->dims[1]; c += channels) {
            int64_t end = c + channels < f->dims[1] ? c + channels : f->dims[1], sum = 0;
            int64_t p = zero ? array_int(zero, zero->count == 1 ? 0 : o) : 0;
            for (int64_t i = (o * f->dims[1] + c) * window; i < (o * f->dims[1] + end) * window; i++)
                sum += llabs(array_int(w, i) - p);
            max = sum > max ? sum : max;
        }
    return max;
}

/* Part 1: the sums of each filter's weights less their zero points, [F, 1, ..]. */
static kl_tensor filter_sums(struct node *n, uint32_t part)
{
    kl_tensor w = onnx_less_zero(n, conv_weights(n), conv_zero(n), 0);
    int axes[KL_MAX_RANK], rank = onnx_type_of(w).rank;
    int64_t dims[KL_MAX_RANK] = {onnx_type_of(w).dims[0], 1, 1, 1, 1, 1, 1, 1};
    (void)part;
    for (int k = 1; k < rank; k++)
        axes[k - 1] = k;
    return kl_reshape(kl_sum(w, rank - 1, axes, false), rank - 1, dims);
}

/* Part 2: the weights less 128. */
static kl_tensor signed_weights(struct node *n, uint32_t part)
{
    (void)part;
    return bytes_less_128(onnx_in(n, conv_weights(n)));
}

bool onnx_bytes_conv_fits(const struct onnx_conv_operands *o, const struct type *f, const struct onnx_windows *s)
{
    enum { MANY_FILTERS = 8, MANY_PRODUCTS = 16 }; /* that share the packing of windows; of each result */
    struct type t, w, z = {.rank = 0};
    int64_t products = 1;
    bool fits = s->groups > 0 && is_bytes(o->x, o->x_at, &t) && is_bytes(o->w, o->w_at, &w) &&
                t.dims[1] == sat_mul(f->dims[1], s->groups) && f->dims[0] / s->groups >= MANY_FILTERS &&
                f->dims[0] % s->groups == 0 &&
                (!onnx_has(o->x, o->x_zero) || onnx_type(o->x, o->x_zero, &z)) &&
                (z.rank == 0 || (z.rank == 1 && z.dims[0] == 1));
    for (int k = 0; fits && k < t.rank; k++) {
        fits = t.dims[k] != 0 && f->dims[k] > 0;
        products = sat_mul(products, k ? f->dims[k] : 1);
    }
    return fits && products >= MANY_PRODUCTS;
}

/* x padded with its zero point z, which may be kl_none. */
static kl_tensor pad_bytes(const struct onnx_conv_operands *o, kl_tensor z, const int64_t *low, const int64_t *high)
{
    const struct array *known = onnx_numbers(o->x, o->x_zero);
    kl_tensor x = onnx_in(o->x, o->x_at);
    bool pads = false;
    for (int k = 0; k < KL_MAX_RANK; k++)
        pads |= low[k] || high[k];
    if (!z.id || known || !pads)
        return kl_pad(x, low, high, known ? (double)array_int(known, 0) : 0);
    return kl_xor(kl_pad(kl_xor(x, z), low, high, 0), z); /* pads with 0 xor z */
}

/* The sums of x [N, C, ..] over the channels of each group: [N, groups, ..]. */
static kl_tensor channel_sums(kl_tensor x, int64_t groups)
{
    struct type t = onnx_type_of(x);
    int64_t dims[KL_MAX_RANK] = {t.dims[0], groups, t.dims[1] / groups};
    for (int k = 2; k < t.rank; k++)
        dims[k + 1] = t.dims[k];
    return groups == 1 ? kl_sum(x, 1, (int[]){1}, true)
           : kl_sum(kl_reshape(x, t.rank + 1, dims), 1, (int[]){2}, false);
}

kl_tensor onnx_bytes_conv(const struct onnx_conv_operands *o, const struct type *f, const struct onnx_windows *s)
{
    int64_t low[KL_MAX_RANK] = {0}, high[KL_MAX_RANK] = {0}, cut[2][WINDOW_AXES] = {{0}};
    if (!onnx_bytes_conv_fits(o, f, s))
        return kl_none;
    for (int k = 0; k < s->n; k++) { /* a negative padding cuts off elements */
        low[2 + k] = s->low[k] > 0 ? s->low[k] : 0, cut[0][k] = s->low[k] < 0 ? s->low[k] : 0;
        high[2 + k] = s->high[k] > 0 ? s->high[k] : 0, cut[1][k] = s->high[k] < 0 ? s->high[k] : 0;
    }
    kl_tensor z = is_zero(o->x, o->x_zero) ? kl_none : kl_reshape(onnx_in(o->x, o->x_zero), 0, NULL);
    kl_tensor x = pad_bytes(o, z, low, high), q = onnx_zero_point(o->w, o->w_at, o->w_zero, 0); /* [] or [F, 1, ..] */
    const uint32_t of[] = {o->w_at, NO_PLACE};
    bool less = weights_become_signed(o->w, of, onnx_type_of(x).dtype, &q);
    kl_tensor w = kl_cast(less ? once_part(o->w, 2, of, signed_weights) : onnx_in(o->w, o->w_at), KL_I32);
    x = kl_cast(x, KL_I32);
    kl_tensor y = kl_conv(x, w, kl_none, s->stride, cut[0], cut[1], s->dilation, s->groups);
    if (q.id && kl_rank(q))
        q = kl_squeeze(kl_transpose(q, 0, 1), 0);
    if (q.id) {
        kl_tensor sums = kl_sum_pool(channel_sums(x, s->groups), s->n, s->size, s->stride, cut[0], cut[1], s->dilation);
        y = kl_sub(y, kl_mul(q, s->groups == 1 ? sums : kl_repeat(sums, 1, f->dims[0] / s->groups)));
    }
    if (z.id)
        y = kl_sub(y, kl_mul(kl_cast(z, KL_I32),
                             once_part(o->w, 1, (uint32_t[]){o->w_at, o->w_zero, NO_PLACE}, filter_sums)));
    return y;
}

static kl_tensor integer_conv_of(kl_tensor x, kl_tensor w, const struct onnx_windows *s)
{
    return kl_conv(x, w, kl_none, s->stride, s->low, s->high, s->dilation, s->groups);
}

kl_tensor onnx_integer_conv(struct node *n, const struct type *f, const struct onnx_windows *s)
{
    struct type t, tw;
    int64_t channels = f->dims[1];
    uint32_t zero = 2, of[] = {conv_weights(n), conv_zero(n), NO_PLACE};
    kl_tensor sum = onnx_bytes_conv(&(struct onnx_conv_operands){n, n, 0, zero, of[0], of[1]}, f, s);
    if (sum.id)
        return sum;
    bool exact = is_bytes(n, 0, &t) && is_bytes(n, conv_weights(n), &tw) && channels > 0;
    while (exact && sat_mul(weights_bound(n, f, channels), 255) > EXACT_MAX && channels > 1)
        channels = (channels + 1) / 2;
    exact = exact && sat_mul(weights_bound(n, f, channels), 255) <= EXACT_MAX &&
            (channels == f->dims[1] || t.dims[1] == f->dims[1]);
    if (!exact)
        return integer_conv_of(onnx_less_zero(n, 0, zero, 1), onnx_less_zero(n, conv_weights(n), conv_zero(n), 0), s);
    kl_tensor x = kl_cast(onnx_less_zero(n, 0, zero, 1), KL_F32);
    kl_tensor all = once_part(n, 0, of, float_weights);
    for (int64_t c = 0; c < f->dims[1]; c += channels) {
        int64_t count = c + channels < f->dims[1] ? channels : f->dims[1] - c;
        bool whole = count == f->dims[1];
        kl_tensor part = whole ? x : kl_narrow(x, 1, c, count), w = whole ? all : kl_narrow(all, 1, c, count);
        kl_tensor y = kl_cast(integer_conv_of(part, w, s), KL_I32);
        sum = sum.id ? kl_add(sum, y) : y;
    }
    return sum;
}
