/* com.microsoft: MultiHeadAttention, Attention, GroupQueryAttention and RotaryEmbedding of onnxruntime. */
#include "frontend/formats/onnx/ops/attention.h"
#include <math.h>

/* ---- RotaryEmbedding ---- */

/* Rows of a table [max, R / 2] at positions [B, S] as f32 [B, 1, S, R / 2]. */
static kl_tensor angles_at(struct node *n, uint32_t i, kl_tensor positions)
{
    return kl_unsqueeze(kl_take(onnx_widened(n, i), 0, positions), 1);
}

/* x [B, H, S, D] rotated by the tables in operands `cosine` and `sine`; kl_none: reported. */
static kl_tensor rotated_at(struct node *n, kl_tensor x, uint32_t cosine, uint32_t sine, kl_tensor positions,
                            bool interleaved)
{
    struct type c, t = onnx_type_of(x);
    kl_dtype d = kl_dtype_of(x), wide = onnx_compute_dtype(d);
    if (t.rank != 4 || !onnx_type(n, cosine, &c))
        return kl_none;
    if (c.rank != 2 || c.dims[1] < 1 || 2 * c.dims[1] > t.dims[3])
        return onnx_fails(n, KL_ERR_SHAPE, "a table of angles of %d axes for heads of %lld numbers", c.rank,
                          (long long)t.dims[3]), kl_none;
    kl_tensor y = onnx_rotate(d == wide ? x : kl_cast(x, wide), angles_at(n, cosine, positions),
                              angles_at(n, sine, positions), 2 * c.dims[1], interleaved);
    return d == wide ? y : kl_cast(y, d);
}

/* Positions 0, 1, .. of S rows after `start`, i64 [B or 1, 1], as i64 [B or 1, S]. */
static kl_tensor positions_from(struct node *n, kl_tensor start, int64_t rows)
{
    return kl_add(kl_reshape(kl_arange(onnx_device(n), KL_I64, rows), 2, (int64_t[]){1, rows}), start);
}

/* Operands: x [B, S, hidden] or [B, H, S, D], positions [B, S] or the first one [1], tables of cosines and sines. */
bool onnx_ms_rotary_embedding(struct node *n)
{
    struct type t, p, c;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &p) || !onnx_type(n, 2, &c))
        return false;
    int64_t heads = onnx_attr_int(n, "num_heads", 0);
    if (t.rank == 3 && !heads && c.rank == 2 && c.dims[1] > 0) /* whole heads are rotated */
        heads = t.dims[2] / (2 * c.dims[1]);
    if (onnx_attr_int(n, "is_packed_batching", 0) || (t.rank != 3 && t.rank != 4))
        return onnx_fails(n, KL_ERR_ARGUMENT, "packed batches, or an operand of %d axes", t.rank);
    kl_tensor x = t.rank == 3 ? onnx_heads_split(n, onnx_in(n, 0), heads) : onnx_in(n, 0), positions = onnx_in(n, 1);
    if (!x.id)
        return false;
    int64_t rows = t.rank == 3 ? t.dims[1] : t.dims[2];
    if (p.rank < 2)
        positions = positions_from(n, kl_reshape(kl_cast(positions, KL_I64), 2, (int64_t[]){1, 1}), rows);
    kl_tensor y = rotated_at(n, x, 2, 3, positions, onnx_attr_int(n, "interleaved", 0));
    return y.id && onnx_give(n, 0, t.rank == 3 ? onnx_heads_join(y) : y);
}

/* ---- masks ---- */

/* Operand i, integers: lengths [B], 0 and 1 for each key [B, M], or for each row, too, [B, L, M] or [B, 1, L, M]; into
 * a->valid or a->mask.  false: reported. */
static bool key_mask(struct node *n, uint32_t i, struct attention_node *a)
{
    struct type t;
    if (!onnx_has(n, i))
        return true;
    if (!onnx_type(n, i, &t))
        return false;
    kl_tensor m = onnx_in(n, i);
    int64_t batch = onnx_type_of(a->q).dims[0], columns = onnx_type_of(a->k).dims[2];
    if (t.rank == 1) {
        if (t.dims[0] != batch)
            return onnx_fails(n, KL_ERR_SHAPE, "a mask of %lld numbers for a batch of %lld; lengths are supported",
                              (long long)t.dims[0], (long long)batch);
        m = kl_reshape(kl_cast(m, KL_I64), 4, (int64_t[]){batch, 1, 1, 1});
        a->mask = kl_lt(kl_iota(onnx_device(n), KL_I64, 4, (int64_t[]){1, 1, 1, columns}, 3), m);
        return true;
    }
    if (t.rank > 4)
        return onnx_fails(n, KL_ERR_SHAPE, "a mask of %d axes", t.rank);
    m = kl_ne(m, onnx_number(n, t.dtype, 0));
    if (t.rank == 2)
        m = kl_reshape(m, 4, (int64_t[]){t.dims[0], 1, 1, t.dims[1]});
    a->mask = t.rank == 3 ? kl_unsqueeze(m, 1) : m;
    return true;
}

/* Adds operand i, floats that broadcast to the scores, to the masks. */
static void score_bias(struct node *n, uint32_t i, struct attention_node *a)
{
    if (!onnx_has(n, i))
        return;
    kl_dtype d = kl_dtype_of(a->q);
    kl_tensor b = onnx_in(n, i);
    b = kl_dtype_of(b) == d ? b : kl_cast(b, d);
    a->mask = a->mask.id ? kl_where(a->mask, b, onnx_number(n, d, -INFINITY)) : b;
}

/* The past keys and values, operands i and j, in front. */
static bool with_past(struct node *n, uint32_t i, uint32_t j, struct attention_node *a)
{
    struct type t;
    if (onnx_has(n, i) != onnx_has(n, j))
        return onnx_fails(n, KL_ERR_ARGUMENT, "past keys and past values are given together");
    if (!onnx_has(n, i))
        return true;
    if (!onnx_type(n, i, &t) || t.rank != 4)
        return onnx_fails(n, KL_ERR_SHAPE, "past keys that do not have 4 axes");
    a->past = t.dims[2];
    a->k = kl_concat(2, (kl_tensor[]){onnx_in(n, i), a->k}, 2);
    a->v = kl_concat(2, (kl_tensor[]){onnx_in(n, j), a->v}, 2);
    return true;
}

/* The scale of the attribute, or 1 / sqrt(D); no windows, no result of scores. */
static bool attention_numbers(struct node *n, struct attention_node *a)
{
    struct type q = onnx_type_of(a->q);
    if (q.rank != 4 || q.dims[3] < 1)
        return q.rank == 4 ? onnx_fails(n, KL_ERR_SHAPE, "queries without numbers") : false;
    double scale = onnx_attr_float(n, "scale", 0);
    a->scale = scale != 0 ? scale : 1 / sqrt((double)q.dims[3]);
    a->left = a->right = -1;
    a->score_result = -1;
    return true;
}

static bool give_attention(struct node *n, const struct attention_node *a)
{
    kl_tensor scores, y = onnx_attention_of(n, a, &scores);
    return y.id && onnx_give(n, 0, onnx_heads_join(y));
}

/* ---- MultiHeadAttention ---- */

/* Operand i, [B, M, heads D] or [B, heads, M, D], with its part of the bias, operand 3, from `from` on. */
static kl_tensor multi_head_operand(struct node *n, uint32_t i, int64_t heads, int64_t *from)
{
    struct type t;
    if (!onnx_type(n, i, &t))
        return kl_none;
    kl_tensor a = onnx_in(n, i);
    if (t.rank == 4 && i > 0)
        return a;
    if (t.rank != 3)
        return onnx_fails(n, KL_ERR_SHAPE, "operand %u has %d axes; packed operands are not supported", i, t.rank),
               kl_none;
    if (onnx_has(n, 3))
        a = kl_add(a, kl_narrow(onnx_in(n, 3), 0, *from, t.dims[2]));
    *from += t.dims[2];
    return onnx_heads_split(n, a, heads);
}

/* Operands: q, k, v, bias, mask of keys, bias of scores, past keys and values.  Results: Y, present keys and values. */
bool onnx_multi_head_attention(struct node *n)
{
    struct attention_node a = {.causal = onnx_attr_int(n, "unidirectional", 0)};
    int64_t heads = onnx_attr_int(n, "num_heads", 0), from = 0;
    if (!onnx_has(n, 1) || !onnx_has(n, 2))
        return onnx_fails(n, KL_ERR_ARGUMENT, "packed operands are not supported: it needs keys and values");
    if (onnx_has(n, 8) || onnx_has(n, 9) || onnx_wants(n, 3))
        return onnx_fails(n, KL_ERR_ARGUMENT, "past_sequence_length, cache_indirection and qk are not supported");
    if (!(a.q = multi_head_operand(n, 0, heads, &from)).id || !(a.k = multi_head_operand(n, 1, heads, &from)).id ||
        !(a.v = multi_head_operand(n, 2, heads, &from)).id || !with_past(n, 6, 7, &a) || !attention_numbers(n, &a) ||
        !key_mask(n, 4, &a))
        return false;
    score_bias(n, 5, &a);
    return give_attention(n, &a) && (!onnx_wants(n, 1) || onnx_give(n, 1, a.k)) &&
           (!onnx_wants(n, 2) || onnx_give(n, 2, a.v));
}

/* ---- Attention ---- */

/* The widths of q, k and v in weights [C, all of them]; false: reported. */
static bool qkv_sizes(struct node *n, int64_t size[3])
{
    struct type w;
    if (!onnx_type(n, 1, &w))
        return false;
    int count = onnx_attr_ints(n, "qkv_hidden_sizes", size, 3);
    if (count == -1 && w.rank == 2)
        size[0] = size[1] = size[2] = w.dims[1] / 3;
    if (w.rank != 2 || (count != -1 && count != 3) || sat_add(sat_add(size[0], size[1]), size[2]) != w.dims[1] ||
        size[0] < 1 || size[1] < 1 || size[2] < 1)
        return count == -2 ? false : onnx_fails(n, KL_ERR_SHAPE, "weights that are not three matrices side by side");
    return true;
}

/* Queries, keys and values that stand side by side in x [B, S, ..]; false: reported. */
static bool split_parts(struct node *n, kl_tensor x, const int64_t size[3], struct attention_node *a)
{
    int64_t heads = onnx_attr_int(n, "num_heads", 0), from = 0;
    kl_tensor part[3];
    for (int i = 0; i < 3; from += size[i++])
        if (!(part[i] = onnx_heads_split(n, kl_narrow(x, 2, from, size[i]), heads)).id)
            return false;
    a->q = part[0], a->k = part[1], a->v = part[2];
    return true;
}

/* Attention of queries, keys and values side by side in x [B, S, ..], with a mask, a past [2, B, H, P, D] and a bias of
 * scores in these operands. */
static bool attention_of_parts(struct node *n, kl_tensor x, uint32_t mask, uint32_t past, uint32_t bias)
{
    struct attention_node a = {.causal = onnx_attr_int(n, "unidirectional", 0)};
    struct type p;
    int64_t size[3];
    if (!qkv_sizes(n, size) || !split_parts(n, x, size, &a))
        return false;
    if (onnx_has(n, past)) {
        if (!onnx_type(n, past, &p) || p.rank != 5 || p.dims[0] != 2)
            return onnx_fails(n, KL_ERR_SHAPE, "a past that is not [2, batch, heads, length, depth]");
        a.past = p.dims[3];
        a.k = kl_concat(2, (kl_tensor[]){kl_squeeze(kl_narrow(onnx_in(n, past), 0, 0, 1), 0), a.k}, 2);
        a.v = kl_concat(2, (kl_tensor[]){kl_squeeze(kl_narrow(onnx_in(n, past), 0, 1, 1), 0), a.v}, 2);
    }
    if (!attention_numbers(n, &a) || !key_mask(n, mask, &a))
        return false;
    score_bias(n, bias, &a);
    return give_attention(n, &a) && (!onnx_wants(n, 1) || onnx_give(n, 1, kl_stack(2, (kl_tensor[]){a.k, a.v}, 0)));
}

/* Operands: x [B, S, C], weights [C, hidden of q, k and v], bias, mask, past, bias of scores. */
bool onnx_ms_attention(struct node *n)
{
    if (onnx_attr_int(n, "do_rotary", 0) || onnx_has(n, 6))
        return onnx_fails(n, KL_ERR_ARGUMENT, "do_rotary and past_sequence_length are not supported");
    kl_tensor x = kl_matmul(onnx_in(n, 0), onnx_in(n, 1));
    return attention_of_parts(n, onnx_has(n, 2) ? kl_add(x, onnx_in(n, 2)) : x, 3, 4, 5);
}

/* Operands: x and weights in bytes, bias f32, their scales, mask, their zero points, past. */
bool onnx_qattention(struct node *n)
{
    struct type t;
    if (onnx_attr_int(n, "do_rotary", 0))
        return onnx_fails(n, KL_ERR_ARGUMENT, "do_rotary is not supported");
    if (!onnx_type(n, 3, &t) || !onnx_type(n, 4, &t))
        return false;
    kl_tensor columns = kl_reshape(onnx_in(n, 4), t.rank == 1 && t.dims[0] != 1, t.dims);
    kl_tensor scale = kl_mul(kl_reshape(onnx_in(n, 3), 0, NULL), columns);
    kl_tensor x = kl_mul(kl_cast(onnx_integer_matmul(n), KL_F32), scale);
    return attention_of_parts(n, onnx_has(n, 2) ? kl_add(x, onnx_in(n, 2)) : x, 5, 8, NO_PLACE);
}

/* ---- PackedAttention, PackedMultiHeadAttention: the tokens of all sequences, without padding ---- */

struct packed { kl_tensor index; int64_t batch, rows, tokens; }; /* index [tokens]: of each in [batch * rows] */

/* The positions of x's tokens in the padded sequences: the first numbers of operand i, [B, S]; false: reported. */
static bool packed_positions(struct node *n, kl_tensor x, uint32_t i, struct packed *p)
{
    struct type o, t = onnx_type_of(x);
    if (!onnx_type(n, i, &o))
        return false;
    if (o.rank != 2 || t.rank < 2 || o.dims[0] < 1 || o.dims[1] < 1 || t.dims[0] < 0 ||
        t.dims[0] > sat_mul(o.dims[0], o.dims[1]))
        return onnx_fails(n, KL_ERR_SHAPE, "offsets of %d axes that do not have a place for each of the tokens",
                          o.rank);
    *p = (struct packed){.batch = o.dims[0], .rows = o.dims[1], .tokens = t.dims[0]};
    p->index = kl_narrow(kl_reshape(onnx_in(n, i), 1, (int64_t[]){p->batch * p->rows}), 0, 0, p->tokens);
    return true;
}

/* [tokens, C] as [B, S, C], with zeros for padding. */
static kl_tensor packed_spread(struct node *n, kl_tensor x, const struct packed *p)
{
    struct type t = onnx_type_of(x);
    int64_t all[2] = {p->batch * p->rows, t.dims[1]}, dims[3] = {p->batch, p->rows, t.dims[1]};
    kl_tensor zeros = kl_expand(onnx_number(n, t.dtype, 0), 2, all);
    return kl_reshape(kl_index_copy(zeros, 0, p->index, x), 3, dims);
}

/* Queries, keys and values of tokens, side by side [tokens, ..], and their sizes; kl_none: reported.  Operands of
 * PackedMultiHeadAttention, arg 1: queries, keys, values and bias, or [tokens, heads, 3, D] in place of the first
 * three. */
static kl_tensor packed_operands(struct node *n, int64_t size[3])
{
    struct type t[3];
    kl_tensor x = onnx_in(n, 0), y = x;
    uint32_t bias = n->def->op->arg ? 3 : 2;
    if (!n->def->op->arg) {
        if (!qkv_sizes(n, size))
            return kl_none;
        y = kl_matmul(x, onnx_in(n, 1));
    } else if (onnx_has(n, 1)) {
        for (uint32_t i = 0; i < 3; i++)
            if (!onnx_type(n, i, &t[i]) || t[i].rank != 2 || t[i].dims[1] < 1)
                return onnx_fails(n, KL_ERR_SHAPE, "operand %u is not [tokens, numbers]", i), kl_none;
        for (int i = 0; i < 3; i++)
            size[i] = t[i].dims[1];
        y = kl_concat(3, (kl_tensor[]){x, onnx_in(n, 1), onnx_in(n, 2)}, 1);
    } else {
        if (!onnx_type(n, 0, &t[0]) || t[0].rank != 4 || t[0].dims[2] != 3 || t[0].dims[0] < 0)
            return onnx_fails(n, KL_ERR_SHAPE, "packed operands that are not [tokens, heads, 3, numbers]"), kl_none;
        size[0] = size[1] = size[2] = sat_mul(t[0].dims[1], t[0].dims[3]);
        y = kl_reshape(kl_transpose(x, 1, 2), 2, (int64_t[]){t[0].dims[0], sat_mul(size[0], 3)});
    }
    return onnx_has(n, bias) ? kl_add(y, onnx_in(n, bias)) : y;
}

/* Operands of PackedAttention: x [tokens, C], weights, bias, offsets [B, S], the first token of each sequence, bias of
 * scores. */
bool onnx_packed_attention(struct node *n)
{
    struct attention_node a = {.causal = false};
    struct packed p;
    int64_t size[3];
    uint32_t offsets = n->def->op->arg ? 4 : 3;
    kl_tensor x = packed_operands(n, size), scores;
    if (!x.id || !packed_positions(n, x, offsets, &p) || !split_parts(n, packed_spread(n, x, &p), size, &a) ||
        !attention_numbers(n, &a))
        return false;
    kl_tensor ones = kl_expand(onnx_number(n, KL_I32, 1), 2, (int64_t[]){p.tokens, 1});
    kl_tensor seen = kl_reshape(packed_spread(n, ones, &p), 4, (int64_t[]){p.batch, 1, 1, p.rows});
    a.mask = kl_ne(seen, onnx_number(n, KL_I32, 0));
    score_bias(n, offsets + 2, &a);
    kl_tensor y = onnx_attention_of(n, &a, &scores);
    if (!y.id)
        return false;
    y = kl_reshape(onnx_heads_join(y), 2, (int64_t[]){p.batch * p.rows, size[2]});
    return onnx_give(n, 0, kl_take(y, 0, p.index));
}

/* ---- GroupQueryAttention ---- */

/* What the operands say of the cache: the longest row has `total` keys, of which the operands' rows are the last. */
struct group_query { int64_t heads, groups, rows, past, total; kl_tensor before; /* i64 [B, 1]: keys of the past */ };

/* The rows of `now` [B, G, S, D] in the cache, operand i, [B, G, P, D], from g->before on: [B, G, max(P, total), D].
 * As in onnxruntime, the operand's buffer stays as long as it is. */
static kl_tensor cache_with(struct node *n, uint32_t i, kl_tensor now, const struct group_query *g)
{
    struct type t = onnx_type_of(now);
    int64_t length = g->total > g->past ? g->total : g->past, batch = t.dims[0], zero[4] = {0};
    if (!g->past && g->total == g->rows)
        return now;
    int64_t high[4] = {0, 0, length - g->past, 0}, dims[4] = {t.dims[0], t.dims[1], length, t.dims[3]};
    kl_tensor cache = g->past ? kl_pad(onnx_in(n, i), zero, high, 0)
                              : kl_expand(onnx_number(n, kl_dtype_of(now), 0), 4, dims);
    if (batch == 1) {
        kl_tensor at = kl_reshape(g->before, 0, NULL), none = onnx_number(n, KL_I64, 0);
        return kl_dynamic_update(cache, now, (kl_tensor[]){none, none, at, none});
    }
    kl_tensor at = kl_reshape(positions_from(n, g->before, g->rows), 4, (int64_t[]){batch, 1, g->rows, 1});
    return kl_put_along_axis_with(cache, 2, kl_expand(at, 4, t.dims), now, KL_SCATTER_SET, KL_INDEX_DROP);
}

/* q, k, v from operands 0 to 2, or all side by side in operand 0; false: reported. */
static bool group_query_operands(struct node *n, struct group_query *g, struct attention_node *a)
{
    struct type t;
    kl_tensor q = onnx_in(n, 0), k = onnx_in(n, 1), v = onnx_in(n, 2);
    g->heads = onnx_attr_int(n, "num_heads", 0), g->groups = onnx_attr_int(n, "kv_num_heads", 0);
    if (!onnx_type(n, 0, &t))
        return false;
    if (t.rank != 3 || g->heads < 1 || g->groups < 1 || g->heads % g->groups || t.dims[1] < 0 || t.dims[2] < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld heads of queries and %lld of keys in an operand of %d axes",
                          (long long)g->heads, (long long)g->groups, t.rank);
    g->rows = t.dims[1];
    if (!k.id && !v.id) {
        int64_t parts = g->heads + 2 * g->groups, depth = t.dims[2] / parts;
        if (t.dims[2] % parts)
            return onnx_fails(n, KL_ERR_SHAPE, "%lld numbers are not %lld heads", (long long)t.dims[2],
                              (long long)parts);
        k = kl_narrow(q, 2, g->heads * depth, g->groups * depth);
        v = kl_narrow(q, 2, (g->heads + g->groups) * depth, g->groups * depth);
        q = kl_narrow(q, 2, 0, g->heads * depth);
    }
    return (a->q = onnx_heads_split(n, q, g->heads)).id && (a->k = onnx_heads_split(n, k, g->groups)).id &&
           (a->v = onnx_heads_split(n, v, g->groups)).id;
}

/* Operands: q, k, v, past keys and values, keys of each row less one [B], the most keys, tables of cosines and sines,
 * positions, bias of scores.  Results: Y, present keys and values. */
bool onnx_group_query_attention(struct node *n)
{
    struct attention_node a = {.causal = true};
    struct group_query g = {.past = 0};
    struct type p;
    int64_t window = onnx_attr_int(n, "local_window_size", -1);
    if (!group_query_operands(n, &g, &a) || !onnx_known_int(n, 6, &g.total) || !attention_numbers(n, &a))
        return false;
    if (onnx_has(n, 11) || onnx_attr_int(n, "smooth_softmax", 0) > 0 || onnx_wants(n, 3))
        return onnx_fails(n, KL_ERR_ARGUMENT, "head_sink, smooth_softmax and output_qk are not supported");
    if (onnx_has(n, 3) && (!onnx_type(n, 3, &p) || p.rank != 4 || p.dims[2] < 0))
        return onnx_fails(n, KL_ERR_SHAPE, "past keys that do not have 4 axes");
    g.past = onnx_has(n, 3) ? p.dims[2] : 0;
    if (g.total < g.rows)
        return onnx_fails(n, KL_ERR_SHAPE, "total_sequence_length is %lld for %lld rows", (long long)g.total,
                          (long long)g.rows);
    kl_tensor last = kl_cast(onnx_in(n, 5), KL_I64), one = onnx_number(n, KL_I64, 1);
    int64_t batch = onnx_type_of(a.q).dims[0];
    last = kl_reshape(last, 2, (int64_t[]){batch, 1});
    bool prompt = g.total == g.rows; /* rows begin at 0, those beyond a row's length are padding */
    kl_tensor rows = kl_length_scalar(onnx_device(n), KL_I64, g.rows);
    g.before = prompt ? kl_mul(last, onnx_number(n, KL_I64, 0)) : kl_sub(kl_add(last, one), rows);
    if (onnx_attr_int(n, "do_rotary", 0)) {
        bool interleaved = onnx_attr_int(n, "rotary_interleaved", 0);
        kl_tensor at = onnx_has(n, 9) ? onnx_in(n, 9) : positions_from(n, g.before, g.rows);
        if (!(a.q = rotated_at(n, a.q, 7, 8, at, interleaved)).id ||
            !(a.k = rotated_at(n, a.k, 7, 8, at, interleaved)).id)
            return false;
    }
    a.k = cache_with(n, 3, a.k, &g);
    a.v = cache_with(n, 4, a.v, &g);
    a.start = kl_reshape(g.before, 1, &batch);
    a.softcap = onnx_attr_float(n, "softcap", 0);
    a.left = window > 0 ? window - 1 : -1;
    score_bias(n, 10, &a);
    return give_attention(n, &a) && (!onnx_wants(n, 1) || onnx_give(n, 1, a.k)) &&
           (!onnx_wants(n, 2) || onnx_give(n, 2, a.v));
}
