/* Operators of language models: RMSNormalization, RotaryEmbedding, Attention, TensorScatter. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <string.h>

bool onnx_rms_norm(struct node *n)
{
    struct type t, s;
    int axis, axes[KL_MAX_RANK], count = 0;
    double eps = onnx_attr_float(n, "epsilon", 1e-5f);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &s) || !onnx_axis(n, onnx_attr_int(n, "axis", -1), t.rank, &axis))
        return false;
    for (int i = axis; i < t.rank; i++)
        axes[count++] = i;
    bool plain = s.rank == count && !memcmp(s.dims, t.dims + axis, (size_t)count * sizeof *s.dims);
    if (plain && s.dtype == t.dtype)
        return onnx_give(n, 0, kl_rms_norm(onnx_in(n, 0), count, onnx_in(n, 1), eps));
    kl_tensor x = onnx_widened(n, 0), mean = kl_mean(kl_square(x), count, axes, true);
    kl_tensor y = kl_mul(x, kl_rsqrt(kl_add(mean, onnx_number(n, kl_dtype_of(x), eps))));
    kl_tensor scale = onnx_widened(n, 1);
    if (kl_dtype_of(scale) != kl_dtype_of(y))
        scale = kl_cast(scale, kl_dtype_of(y));
    return onnx_give_as(n, 0, kl_mul(y, scale), s.dtype);
}

/* ---- RotaryEmbedding ---- */

/* Operand i, cosines or sines of the angles, as f32 [B, 1, S, R / 2] or, for x [B, S, H, D], [B, S, 1, R / 2]. */
static kl_tensor rotary_angles(struct node *n, uint32_t i, int heads_axis)
{
    kl_tensor a = onnx_widened(n, i);
    if (onnx_has(n, 3))
        a = kl_take(a, 0, onnx_in(n, 3));
    return kl_unsqueeze(a, heads_axis);
}

/* x: [.., R], pairs (i, i + R/2), or interleaved (2i, 2i + 1), turned by the angles. */
static kl_tensor rotary_turned(kl_tensor x, kl_tensor cosine, kl_tensor sine, bool interleaved)
{
    struct type t = onnx_type_of(x);
    int last = t.rank - 1;
    int64_t half = t.dims[last] / 2;
    kl_tensor a, b;
    if (interleaved) {
        t.dims[last] = half;
        t.dims[last + 1] = 2;
        kl_tensor pairs = kl_reshape(x, last + 2, t.dims);
        a = kl_squeeze(kl_narrow(pairs, last + 1, 0, 1), last + 1);
        b = kl_squeeze(kl_narrow(pairs, last + 1, 1, 1), last + 1);
    } else {
        a = kl_narrow(x, last, 0, half);
        b = kl_narrow(x, last, half, half);
    }
    kl_tensor real = kl_sub(kl_mul(cosine, a), kl_mul(sine, b));
    kl_tensor imaginary = kl_add(kl_mul(sine, a), kl_mul(cosine, b));
    if (!interleaved)
        return kl_concat(2, (kl_tensor[]){real, imaginary}, last);
    t.dims[last] = 2 * half;
    return kl_reshape(kl_stack(2, (kl_tensor[]){real, imaginary}, -1), last + 1, t.dims);
}

/* Splits the last axis of [B, S, H D] into heads: [B, S, H, D].  kl_none: reported. */
static kl_tensor heads_split(struct node *n, kl_tensor a, int64_t heads)
{
    struct type t = onnx_type_of(a);
    if (t.rank != 3 || heads < 1 || t.dims[2] < 0 || t.dims[2] % heads)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld heads do not divide the last axis of an operand of %d axes",
                          (long long)heads, t.rank), kl_none;
    return kl_reshape(a, 4, (int64_t[]){t.dims[0], t.dims[1], heads, t.dims[2] / heads});
}

bool onnx_rotary_embedding(struct node *n)
{
    struct type t, c;
    kl_tensor x = onnx_widened(n, 0);
    bool interleaved = onnx_attr_int(n, "interleaved", 0);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &c))
        return false;
    if (t.rank == 3 && !(x = heads_split(n, x, onnx_attr_int(n, "num_heads", 0))).id)
        return false;
    struct type split = onnx_type_of(x);
    if (split.rank != 4 || split.dims[3] < 2)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes, or heads of fewer than 2 numbers", t.rank);
    int64_t depth = split.dims[3], turned = onnx_attr_int(n, "rotary_embedding_dim", 0);
    turned = turned ? turned : depth;
    if (turned < 2 || turned % 2 || turned > depth || c.rank != (onnx_has(n, 3) ? 2 : 3) ||
        c.dims[c.rank - 1] != turned / 2)
        return onnx_fails(n, KL_ERR_SHAPE, "rotation of %lld of %lld numbers of a head by cosines of %d axes, the last "
                          "of length %lld", (long long)turned, (long long)depth, c.rank,
                          c.rank ? (long long)c.dims[c.rank - 1] : 0LL);
    int heads_axis = t.rank == 3 ? 2 : 1;
    kl_tensor cosine = rotary_angles(n, 1, heads_axis), sine = rotary_angles(n, 2, heads_axis);
    kl_tensor y = rotary_turned(turned == depth ? x : kl_narrow(x, 3, 0, turned), cosine, sine, interleaved);
    if (turned < depth)
        y = kl_concat(2, (kl_tensor[]){y, kl_narrow(x, 3, turned, depth - turned)}, 3);
    return onnx_give_as(n, 0, t.rank == 3 ? kl_reshape(y, 3, t.dims) : y, t.dtype);
}

/* ---- Attention ---- */

struct attention_node {
    struct type q_type;               /* of operand 0 */
    kl_tensor q, k, v;                /* [B, H, L, D], [B, G, M, D], [B, G, M, E]; past keys and values included */
    int64_t past;                     /* keys of the past; may be symbolic */
    int64_t rows, columns;            /* L, M */
    int64_t heads, groups;            /* H, G */
    kl_tensor valid;                  /* i64 [B]: keys that are no padding; or kl_none */
    kl_tensor mask;                   /* bool or floats, broadcast to [B, H, L, M]; or kl_none */
    int64_t left, right;              /* keys that a row sees beside its own position; -1: all */
    bool causal;
    double scale;
};

/* Operand i, [B, L, heads D] or [B, heads, L, D], as the latter.  kl_none: reported. */
static kl_tensor attention_operand(struct node *n, uint32_t i, int64_t heads)
{
    kl_tensor a = onnx_in(n, i);
    struct type t = onnx_type_of(a);
    if (t.rank == 3)
        return (a = heads_split(n, a, heads)).id ? kl_transpose(a, 1, 2) : a;
    return t.rank == 4 ? a : (onnx_fails(n, KL_ERR_SHAPE, "operand %u has %d axes, not 3 or 4", i, t.rank), kl_none);
}

/* The mask, whose last axis may be shorter than the keys: those beyond it are hidden.  false: reported. */
static bool attention_mask(struct node *n, struct attention_node *a)
{
    struct type t;
    if (!onnx_has(n, 3))
        return true;
    if (!onnx_type(n, 3, &t))
        return false;
    a->mask = onnx_in(n, 3);
    if (t.dtype != KL_BOOL && !onnx_is_float(t.dtype))
        return onnx_fails(n, KL_ERR_TYPE, "a mask of %s", kl_dtype_name(t.dtype));
    if (t.rank < 1 || t.rank > 4)
        return onnx_fails(n, KL_ERR_SHAPE, "a mask of %d axes", t.rank);
    int64_t have = t.dims[t.rank - 1], low[4] = {0}, high[4] = {0};
    if (have == a->columns || have < 0 || a->columns < 0)
        return true;
    if (have > a->columns)
        return onnx_fails(n, KL_ERR_SHAPE, "a mask of %lld keys where there are %lld", (long long)have,
                          (long long)a->columns);
    high[t.rank - 1] = a->columns - have;
    a->mask = kl_pad(a->mask, low, high, t.dtype == KL_BOOL ? 0 : -INFINITY);
    return true;
}

static bool attention_read(struct node *n, struct attention_node *a)
{
    int64_t q_heads = onnx_attr_int(n, "q_num_heads", 0), kv_heads = onnx_attr_int(n, "kv_num_heads", 0);
    struct type k_type, v_type;
    if (!onnx_type(n, 0, &a->q_type) || !onnx_type(n, 1, &k_type) || !onnx_type(n, 2, &v_type))
        return false;
    if (!(a->q = attention_operand(n, 0, q_heads)).id || !(a->k = attention_operand(n, 1, kv_heads)).id ||
        !(a->v = attention_operand(n, 2, kv_heads)).id)
        return false;
    if (onnx_has(n, 4) != onnx_has(n, 5) || (onnx_has(n, 4) && onnx_has(n, 6)))
        return onnx_fails(n, KL_ERR_ARGUMENT, "past keys without past values, or with nonpad_kv_seqlen");
    if (onnx_has(n, 4)) {
        struct type past;
        if (!onnx_type(n, 4, &past) || past.rank != 4)
            return onnx_fails(n, KL_ERR_SHAPE, "past keys that do not have 4 axes");
        a->past = past.dims[2];
        a->k = kl_concat(2, (kl_tensor[]){onnx_in(n, 4), a->k}, 2);
        a->v = kl_concat(2, (kl_tensor[]){onnx_in(n, 5), a->v}, 2);
    }
    struct type q = onnx_type_of(a->q), k = onnx_type_of(a->k), v = onnx_type_of(a->v);
    if (q.rank != 4 || k.rank != 4 || v.rank != 4)
        return false; /* poison: reported */
    if (k.dims[1] < 1 || q.dims[1] < 1 || q.dims[1] % k.dims[1] || v.dims[1] != k.dims[1] || q.dims[3] < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld heads of queries, %lld of keys, %lld of values",
                          (long long)q.dims[1], (long long)k.dims[1], (long long)v.dims[1]);
    a->heads = q.dims[1], a->groups = k.dims[1], a->rows = q.dims[2], a->columns = k.dims[2];
    a->scale = onnx_attr_float(n, "scale", 0);
    a->scale = a->scale != 0 ? a->scale : 1 / sqrt((double)q.dims[3]);
    a->causal = onnx_attr_int(n, "is_causal", 0);
    a->left = onnx_attr_int(n, "left_window_size", -1), a->right = onnx_attr_int(n, "right_window_size", -1);
    if (a->left < -1 || a->right < -1)
        return onnx_fails(n, KL_ERR_ARGUMENT, "a window of %lld and %lld keys", (long long)a->left,
                          (long long)a->right);
    if (onnx_has(n, 6))
        a->valid = onnx_in(n, 6);
    return attention_mask(n, a);
}

/* Keys that each row sees, from the first one to before the second: i64 [B or 1, 1, L, 2]. */
static kl_tensor attention_ranges(struct node *n, const struct attention_node *a)
{
    kl_device device = onnx_device(n);
    int64_t dims[4] = {1, 1, a->rows, 1};
    kl_tensor row = kl_iota(device, KL_I64, 4, dims, 2), first = onnx_number(n, KL_I64, 0);
    kl_tensor end = kl_length_scalar(device, KL_I64, a->columns);
    if (a->valid.id) { /* rows are the last of the keys that are no padding */
        struct type t = onnx_type_of(a->valid);
        dims[0] = t.rank ? t.dims[0] : 1;
        end = kl_reshape(kl_cast(a->valid, KL_I64), 4, (int64_t[]){dims[0], 1, 1, 1});
        row = kl_add(row, kl_sub(end, kl_length_scalar(device, KL_I64, a->rows)));
    } else {
        row = kl_add(row, kl_length_scalar(device, KL_I64, a->past));
    }
    if (a->causal || a->right >= 0)
        end = kl_minimum(end, kl_add(row, onnx_number(n, KL_I64, a->causal ? 1 : (double)a->right + 1)));
    if (a->left >= 0)
        first = kl_maximum(first, kl_sub(row, onnx_number(n, KL_I64, (double)a->left)));
    return kl_concat(2, (kl_tensor[]){kl_expand(first, 4, dims), kl_expand(end, 4, dims)}, 3);
}

/* The ranges as a mask: bool [B or 1, 1, L, M]. */
static kl_tensor attention_range_mask(struct node *n, const struct attention_node *a, kl_tensor ranges)
{
    kl_tensor column = kl_iota(onnx_device(n), KL_I64, 4, (int64_t[]){1, 1, 1, a->columns}, 3);
    return kl_and(kl_ge(column, kl_narrow(ranges, 3, 0, 1)), kl_lt(column, kl_narrow(ranges, 3, 1, 1)));
}

/* The mask and the ranges as one mask, in *mask, of either kind; kl_none: there is neither. */
static kl_tensor attention_all_masks(struct node *n, const struct attention_node *a, bool ranged)
{
    kl_tensor ranges = ranged ? attention_ranges(n, a) : kl_none;
    if (!a->mask.id || !ranged)
        return ranged ? ranges : a->mask;
    kl_tensor seen = attention_range_mask(n, a, ranges);
    if (kl_dtype_of(a->mask) == KL_BOOL)
        return kl_and(a->mask, seen);
    return kl_where(seen, a->mask, onnx_number(n, kl_dtype_of(a->mask), -INFINITY));
}

/* [B, G, M, D] as [B, H, M, D]: a head of keys serves H / G adjacent heads of queries. */
static kl_tensor attention_repeated(const struct attention_node *a, kl_tensor t)
{
    return a->heads == a->groups ? t : kl_repeat(t, 1, a->heads / a->groups);
}

static kl_tensor attention_wide(kl_tensor t)
{
    kl_dtype d = kl_dtype_of(t), wide = onnx_compute_dtype(d);
    return d == wide ? t : kl_cast(t, wide);
}

/* The operator with stored scores, for soft caps and where the scores are a result: result 3, and Y [B, H, L, E]. */
static kl_tensor attention_by_scores(struct node *n, const struct attention_node *a, kl_tensor mask, bool ranged,
                                     kl_tensor *scores)
{
    int64_t mode = onnx_attr_int(n, "qk_matmul_output_mode", 0);
    double cap = onnx_attr_float(n, "softcap", 0);
    int last = 3;
    kl_tensor q = attention_wide(a->q), k = attention_repeated(a, attention_wide(a->k));
    kl_tensor v = attention_repeated(a, attention_wide(a->v));
    kl_dtype d = kl_dtype_of(q);
    kl_tensor s = kl_mul(kl_matmul(q, kl_transpose(k, 2, 3)), onnx_number(n, d, a->scale));
    *scores = s;
    if (cap > 0)
        s = kl_mul(kl_tanh(kl_div(s, onnx_number(n, d, cap))), onnx_number(n, d, cap));
    *scores = mode == 1 ? s : *scores;
    kl_tensor hidden = onnx_number(n, d, -INFINITY);
    if (mask.id && ranged && !a->mask.id)
        mask = attention_range_mask(n, a, mask);
    if (mask.id && kl_dtype_of(mask) == KL_BOOL)
        s = kl_where(mask, s, hidden);
    else if (mask.id) /* a score that is not finite stays hidden, too */
        s = kl_where(kl_eq(mask, onnx_number(n, kl_dtype_of(mask), -INFINITY)), hidden, kl_add(s, kl_cast(mask, d)));
    *scores = mode == 2 ? s : *scores;
    kl_tensor empty = kl_eq(kl_max(s, 1, &last, true), hidden), zero = onnx_number(n, d, 0);
    kl_tensor p = kl_where(empty, zero, kl_softmax(kl_where(empty, zero, s), last));
    *scores = mode == 3 ? p : *scores;
    return kl_matmul(p, v);
}

bool onnx_attention(struct node *n)
{
    struct attention_node a = {.past = 0};
    int64_t mode = onnx_attr_int(n, "qk_matmul_output_mode", 0);
    if (!attention_read(n, &a))
        return false;
    if (mode < 0 || mode > 3)
        return onnx_fails(n, KL_ERR_ARGUMENT, "qk_matmul_output_mode is %lld", (long long)mode);
    kl_dtype d = a.q_type.dtype;
    kl_tensor keys = a.k, values = a.v, scores = kl_none;
    if (kl_dtype_of(a.v) != d)
        a.v = kl_cast(a.v, d);
    if (a.mask.id && kl_dtype_of(a.mask) != KL_BOOL && kl_dtype_of(a.mask) != d)
        a.mask = kl_cast(a.mask, d);
    /* kl_attention lets the last row see all keys: as here if the past is before the keys and there is no other */
    bool aligned = kl_length_add(a.past, a.rows) == a.columns && !a.valid.id;
    bool plain = a.causal && aligned && a.left < 0, ranged = !plain && (a.causal || a.valid.id || a.left >= 0 ||
                                                                       a.right >= 0);
    bool stored = onnx_attr_float(n, "softcap", 0) > 0 || onnx_wants(n, 3);
    kl_tensor y, mask = attention_all_masks(n, &a, ranged || (stored && plain));
    if (stored) {
        y = attention_by_scores(n, &a, mask, ranged || plain, &scores);
        if (onnx_wants(n, 3) && !onnx_give_as(n, 3, scores, d))
            return false;
    } else {
        kl_attention_options o = {.mask = mask, .scale = a.scale, .causal = plain};
        y = kl_attention_with(a.q, a.k, a.v, &o, NULL, NULL);
    }
    if (a.q_type.rank == 3) {
        struct type t = onnx_type_of(y);
        y = kl_reshape(kl_transpose(y, 1, 2), 3, (int64_t[]){t.dims[0], t.dims[2], sat_mul(t.dims[1], t.dims[3])});
    }
    return onnx_give_as(n, 0, y, d) && (!onnx_wants(n, 1) || onnx_give(n, 1, keys)) &&
           (!onnx_wants(n, 2) || onnx_give(n, 2, values));
}

/* ---- TensorScatter ---- */

bool onnx_tensor_scatter(struct node *n)
{
    struct type t, u;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &u) || !onnx_axis(n, onnx_attr_int(n, "axis", -2), t.rank, &axis))
        return false;
    bool circular = onnx_attr_is(n, "mode", "circular", false);
    if (axis == 0 || u.rank != t.rank)
        return onnx_fails(n, KL_ERR_SHAPE, "axis %d of a cache of %d axes and an update of %d", axis, t.rank, u.rank);
    kl_device device = onnx_device(n);
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    dims[axis] = u.dims[axis];
    kl_tensor at = kl_iota(device, KL_I64, t.rank, dims, axis);
    if (onnx_has(n, 2)) {
        int64_t start[KL_MAX_RANK] = {t.dims[0], 1, 1, 1, 1, 1, 1, 1};
        at = kl_add(at, kl_reshape(kl_cast(onnx_in(n, 2), KL_I64), t.rank, start));
    }
    if (circular)
        at = kl_mod(at, kl_length_scalar(device, KL_I64, t.dims[axis]));
    at = kl_expand(at, u.rank, u.dims);
    return onnx_give(n, 0, kl_put_along_axis_with(onnx_in(n, 0), axis, at, onnx_in(n, 1), KL_SCATTER_SET,
                                                  KL_INDEX_DROP));
}
