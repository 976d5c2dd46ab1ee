/* Operators of language models: RotaryEmbedding, Attention, TensorScatter. */
#include "frontend/formats/onnx/ops/attention.h"
#include <math.h>
#include <string.h>

/* ---- RotaryEmbedding ---- */

/* Operand i, cosines or sines of the angles, as f32 [B, 1, S, R / 2] or, for x [B, S, H, D], [B, S, 1, R / 2]. */
static kl_tensor rotary_angles(struct node *n, uint32_t i, int heads_axis)
{
    kl_tensor a = onnx_widened(n, i);
    if (onnx_has(n, 3))
        a = kl_take(a, 0, onnx_in(n, 3));
    return kl_unsqueeze(a, heads_axis);
}

kl_tensor onnx_rotate(kl_tensor x, kl_tensor cosine, kl_tensor sine, int64_t rotated, bool interleaved)
{
    struct type t = onnx_type_of(x);
    int last = t.rank - 1;
    int64_t half = rotated / 2, rest = t.rank > 0 ? t.dims[last] - rotated : 0;
    kl_tensor a, b, y, kept = rest > 0 ? kl_narrow(x, last, rotated, rest) : kl_none;
    if (rest > 0)
        x = kl_narrow(x, last, 0, rotated);
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
    if (interleaved) {
        t.dims[last] = rotated;
        y = kl_reshape(kl_stack(2, (kl_tensor[]){real, imaginary}, -1), last + 1, t.dims);
    } else {
        y = kl_concat(2, (kl_tensor[]){real, imaginary}, last);
    }
    return rest > 0 ? kl_concat(2, (kl_tensor[]){y, kept}, last) : y;
}

kl_tensor onnx_heads_split(struct node *n, kl_tensor a, int64_t heads)
{
    struct type t = onnx_type_of(a);
    if (t.rank != 3 || heads < 1 || t.dims[2] < 0 || t.dims[2] % heads)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld heads do not divide the last axis of an operand of %d axes",
                          (long long)heads, t.rank), kl_none;
    a = kl_reshape(a, 4, (int64_t[]){t.dims[0], t.dims[1], heads, t.dims[2] / heads});
    return kl_transpose(a, 1, 2);
}

kl_tensor onnx_heads_join(kl_tensor a)
{
    struct type t = onnx_type_of(a);
    return kl_reshape(kl_transpose(a, 1, 2), 3, (int64_t[]){t.dims[0], t.dims[2], sat_mul(t.dims[1], t.dims[3])});
}

bool onnx_rotary_embedding(struct node *n)
{
    struct type t, c;
    kl_tensor x = onnx_widened(n, 0);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &c))
        return false;
    int64_t heads = onnx_attr_int(n, "num_heads", 0), depth = t.rank == 4 ? t.dims[3] : 0;
    if (t.rank == 3) { /* [B, S, H, D], in place */
        if (heads < 1 || t.dims[2] < 0 || t.dims[2] % heads)
            return onnx_fails(n, KL_ERR_SHAPE, "%lld heads do not divide the last axis", (long long)heads);
        depth = t.dims[2] / heads;
        x = kl_reshape(x, 4, (int64_t[]){t.dims[0], t.dims[1], heads, depth});
    }
    int64_t rotated = onnx_attr_int(n, "rotary_embedding_dim", 0);
    rotated = rotated ? rotated : depth;
    if (rotated < 2 || rotated % 2 || rotated > depth || c.rank != (onnx_has(n, 3) ? 2 : 3) ||
        c.dims[c.rank - 1] != rotated / 2)
        return onnx_fails(n, KL_ERR_SHAPE, "rotation of %lld of %lld numbers of a head by cosines of %d axes, the last "
                          "of length %lld", (long long)rotated, (long long)depth, c.rank,
                          c.rank ? (long long)c.dims[c.rank - 1] : 0LL);
    int heads_axis = t.rank == 3 ? 2 : 1;
    kl_tensor cosine = rotary_angles(n, 1, heads_axis), sine = rotary_angles(n, 2, heads_axis);
    kl_tensor y = onnx_rotate(x, cosine, sine, rotated, onnx_attr_int(n, "interleaved", 0));
    return onnx_give_as(n, 0, t.rank == 3 ? kl_reshape(y, 3, t.dims) : y, t.dtype);
}

/* ---- attention ---- */

/* Keys that each row sees, from the first one to before the second: i64 [B or 1, 1, L, 2]. */
static kl_tensor attention_ranges(struct node *n, const struct attention_node *a, int64_t rows, int64_t columns)
{
    kl_device device = onnx_device(n);
    int64_t dims[4] = {1, 1, rows, 1};
    kl_tensor row = kl_iota(device, KL_I64, 4, dims, 2), first = onnx_number(n, KL_I64, 0), each = a->valid;
    kl_tensor end = kl_length_scalar(device, KL_I64, columns), before = kl_length_scalar(device, KL_I64, a->past);
    each = each.id ? each : a->start;
    if (each.id) {
        struct type t = onnx_type_of(each);
        dims[0] = t.rank ? t.dims[0] : 1;
    }
    if (a->valid.id) { /* rows are the last of the keys that are no padding */
        end = kl_reshape(kl_cast(a->valid, KL_I64), 4, (int64_t[]){dims[0], 1, 1, 1});
        before = kl_sub(end, kl_length_scalar(device, KL_I64, rows));
    }
    if (a->start.id)
        before = kl_reshape(kl_cast(a->start, KL_I64), 4, (int64_t[]){dims[0], 1, 1, 1});
    row = kl_add(row, before);
    if (a->causal || a->right >= 0)
        end = kl_minimum(end, kl_add(row, onnx_number(n, KL_I64, a->causal ? 1 : (double)a->right + 1)));
    if (a->left >= 0)
        first = kl_maximum(first, kl_sub(row, onnx_number(n, KL_I64, (double)a->left)));
    return kl_concat(2, (kl_tensor[]){kl_expand(first, 4, dims), kl_expand(end, 4, dims)}, 3);
}

/* The ranges as a mask: bool [B or 1, 1, L, M]. */
static kl_tensor attention_range_mask(struct node *n, kl_tensor ranges, int64_t columns)
{
    kl_tensor column = kl_iota(onnx_device(n), KL_I64, 4, (int64_t[]){1, 1, 1, columns}, 3);
    return kl_and(kl_ge(column, kl_narrow(ranges, 3, 0, 1)), kl_lt(column, kl_narrow(ranges, 3, 1, 1)));
}

static kl_tensor attention_wide(kl_tensor t)
{
    kl_dtype d = kl_dtype_of(t), wide = onnx_compute_dtype(d);
    return d == wide ? t : kl_cast(t, wide);
}

/* With stored scores, for soft caps and where the scores are a result.  mask: bool, floats or kl_none. */
static kl_tensor attention_by_scores(struct node *n, const struct attention_node *a, kl_tensor mask, kl_tensor *scores)
{
    int last = 3;
    struct type tq = onnx_type_of(a->q), tk = onnx_type_of(a->k);
    int64_t each = tq.dims[1] / tk.dims[1]; /* a head of keys serves so many adjacent heads of queries */
    kl_tensor q = attention_wide(a->q), k = attention_wide(a->k), v = attention_wide(a->v), y;
    k = each == 1 ? k : kl_repeat(k, 1, each);
    v = each == 1 ? v : kl_repeat(v, 1, each);
    kl_dtype d = kl_dtype_of(q);
    kl_tensor s = kl_mul(kl_matmul(q, kl_transpose(k, 2, 3)), onnx_number(n, d, a->scale));
    kl_tensor hidden = onnx_number(n, d, -INFINITY), zero = onnx_number(n, d, 0);
    *scores = s;
    if (a->softcap > 0)
        s = kl_mul(kl_tanh(kl_div(s, onnx_number(n, d, a->softcap))), onnx_number(n, d, a->softcap));
    *scores = a->score_result == 1 ? s : *scores;
    if (mask.id && kl_dtype_of(mask) == KL_BOOL)
        s = kl_where(mask, s, hidden);
    else if (mask.id) /* a score that is not finite stays hidden, too */
        s = kl_where(kl_eq(mask, onnx_number(n, kl_dtype_of(mask), -INFINITY)), hidden, kl_add(s, kl_cast(mask, d)));
    *scores = a->score_result == 2 ? s : *scores;
    kl_tensor empty = kl_eq(kl_max(s, 1, &last, true), hidden);
    kl_tensor p = kl_where(empty, zero, kl_softmax(kl_where(empty, zero, s), last));
    *scores = a->score_result == 3 ? p : *scores;
    y = kl_matmul(p, v);
    return kl_dtype_of(y) == kl_dtype_of(a->q) ? y : kl_cast(y, kl_dtype_of(a->q));
}

kl_tensor onnx_attention_of(struct node *n, const struct attention_node *a, kl_tensor *scores)
{
    struct type q = onnx_type_of(a->q), k = onnx_type_of(a->k), v = onnx_type_of(a->v);
    if (q.rank != 4 || k.rank != 4 || v.rank != 4)
        return kl_none; /* poison: reported */
    if (k.dims[1] < 1 || q.dims[1] < 1 || q.dims[1] % k.dims[1] || v.dims[1] != k.dims[1] || q.dims[3] < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld heads of queries, %lld of keys, %lld of values", (long long)q.dims[1],
                          (long long)k.dims[1], (long long)v.dims[1]), kl_none;
    /* kl_attention lets the last row see all keys: as here, if the keys are the past's and one for each row */
    bool plain = a->causal && a->left < 0 && !a->valid.id && !a->start.id &&
                 kl_length_add(a->past, q.dims[2]) == k.dims[2];
    bool stored = a->softcap > 0 || a->score_result >= 0;
    bool ranged = (a->causal && (!plain || stored)) || a->valid.id || a->left >= 0 || a->right >= 0;
    kl_tensor mask = a->mask, ranges = ranged ? attention_ranges(n, a, q.dims[2], k.dims[2]) : kl_none;
    if (ranged && !mask.id && !stored) {
        mask = ranges;
    } else if (ranged) {
        kl_tensor seen = attention_range_mask(n, ranges, k.dims[2]);
        mask = !mask.id ? seen : kl_dtype_of(mask) == KL_BOOL ? kl_and(mask, seen)
               : kl_where(seen, mask, onnx_number(n, kl_dtype_of(mask), -INFINITY));
    }
    if (stored)
        return attention_by_scores(n, a, mask, scores);
    kl_attention_options o = {.mask = mask, .scale = a->scale, .causal = plain};
    return kl_attention_with(a->q, a->k, a->v, &o, NULL, NULL);
}

/* ---- Attention ---- */

/* Operand i, [B, L, heads D] or [B, heads, L, D], as the latter.  kl_none: reported. */
static kl_tensor attention_operand(struct node *n, uint32_t i, int64_t heads)
{
    kl_tensor a = onnx_in(n, i);
    struct type t = onnx_type_of(a);
    return t.rank == 3 ? onnx_heads_split(n, a, heads)
           : t.rank == 4 ? a : (onnx_fails(n, KL_ERR_SHAPE, "operand %u has %d axes, not 3 or 4", i, t.rank), kl_none);
}

/* Operand 3, whose last axis may be shorter than the keys: those beyond it are hidden.  false: reported. */
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
    if (t.dtype != KL_BOOL && t.dtype != kl_dtype_of(a->q))
        a->mask = kl_cast(a->mask, kl_dtype_of(a->q));
    int64_t have = t.dims[t.rank - 1], columns = onnx_type_of(a->k).dims[2], low[4] = {0}, high[4] = {0};
    if (have == columns || have < 0 || columns < 0)
        return true;
    if (have > columns)
        return onnx_fails(n, KL_ERR_SHAPE, "a mask of %lld keys where there are %lld", (long long)have,
                          (long long)columns);
    high[t.rank - 1] = columns - have;
    a->mask = kl_pad(a->mask, low, high, t.dtype == KL_BOOL ? 0 : -INFINITY);
    return true;
}

static bool attention_read(struct node *n, struct attention_node *a)
{
    int64_t q_heads = onnx_attr_int(n, "q_num_heads", 0), kv_heads = onnx_attr_int(n, "kv_num_heads", 0);
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
    struct type q = onnx_type_of(a->q);
    if (q.rank != 4 || q.dims[3] < 1)
        return q.rank == 4 ? onnx_fails(n, KL_ERR_SHAPE, "queries without numbers") : false;
    a->scale = onnx_attr_float(n, "scale", 0);
    a->scale = a->scale != 0 ? a->scale : 1 / sqrt((double)q.dims[3]);
    a->softcap = onnx_attr_float(n, "softcap", 0);
    a->causal = onnx_attr_int(n, "is_causal", 0);
    a->left = onnx_attr_int(n, "left_window_size", -1), a->right = onnx_attr_int(n, "right_window_size", -1);
    if (a->left < -1 || a->right < -1)
        return onnx_fails(n, KL_ERR_ARGUMENT, "a window of %lld and %lld keys", (long long)a->left,
                          (long long)a->right);
    int64_t mode = onnx_attr_int(n, "qk_matmul_output_mode", 0);
    if (mode < 0 || mode > 3)
        return onnx_fails(n, KL_ERR_ARGUMENT, "qk_matmul_output_mode is %lld", (long long)mode);
    a->score_result = onnx_wants(n, 3) ? (int)mode : -1;
    if (onnx_has(n, 6))
        a->valid = onnx_in(n, 6);
    return attention_mask(n, a);
}

bool onnx_attention(struct node *n)
{
    struct attention_node a = {.past = 0};
    struct type t;
    kl_tensor scores = kl_none;
    if (!onnx_type(n, 0, &t) || !attention_read(n, &a))
        return false;
    kl_tensor values = a.v;
    if (kl_dtype_of(a.v) != t.dtype)
        a.v = kl_cast(a.v, t.dtype);
    kl_tensor y = onnx_attention_of(n, &a, &scores);
    return y.id && onnx_give(n, 0, t.rank == 3 ? onnx_heads_join(y) : y) &&
           (!onnx_wants(n, 1) || onnx_give(n, 1, a.k)) && (!onnx_wants(n, 2) || onnx_give(n, 2, values)) &&
           (!onnx_wants(n, 3) || onnx_give_as(n, 3, scores, t.dtype));
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
