/* Operators with a state that is carried from call to call: LinearAttention, CausalConvWithState. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <string.h>

/* ---- LinearAttention ---- */

enum { RULE_LINEAR, RULE_GATED, RULE_DELTA, RULE_GATED_DELTA };

struct linear_attention {
    int rule;
    bool has_decay, has_beta;
    int64_t batch, length, heads, groups, key_depth, value_depth; /* B, T, H, G, Dk, Dv */
};

static bool rule_of(struct node *n, int *rule)
{
    static const char *const name[] = {"linear", "gated", "delta", "gated_delta"};
    for (*rule = 0; *rule < 4; ++*rule)
        if (onnx_attr_is(n, "update_rule", name[*rule], *rule == RULE_GATED_DELTA))
            return true;
    return onnx_fails(n, KL_ERR_ARGUMENT, "an update_rule that is not known");
}

/* One step: the state [B, G, Dk, Dv], then a row each of q [B, H, Dk], k [B, G, Dk], v [B, G, Dv], and of the decay
 * [B, G, Dk or 1] and beta [B, G or 1, 1] where the rule has them.  Gives the next state and [B, H, Dv]. */
static kl_status linear_attention_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct linear_attention *a = ctx;
    kl_tensor state = in[0], q = in[1], k = in[2], v = in[3];
    int64_t each = a->heads / a->groups, B = a->batch, G = a->groups;
    uint32_t at = 4;
    (void)nin, (void)nout;
    if (a->has_decay)
        state = kl_mul(kl_unsqueeze(kl_exp(in[at++]), 3), state);
    if (a->has_beta) {
        kl_tensor known = kl_matmul(kl_unsqueeze(k, 2), state); /* what the state has for this key: [B, G, 1, Dv] */
        v = kl_mul(in[at], kl_sub(v, kl_squeeze(known, 2)));
    }
    state = kl_add(state, kl_mul(kl_unsqueeze(k, 3), kl_unsqueeze(v, 2)));
    q = kl_reshape(q, 4, (int64_t[]){B, G, each, a->key_depth});
    out[0] = state;
    out[1] = kl_reshape(kl_matmul(q, state), 3, (int64_t[]){B, a->heads, a->value_depth});
    return KL_OK;
}

/* Operand i, [B, T, heads depth], as [T, B, heads, depth] in f32 or f64; kl_none: reported. */
static kl_tensor linear_attention_rows(struct node *n, uint32_t i, const struct linear_attention *a, int64_t heads)
{
    struct type t;
    if (!onnx_type(n, i, &t))
        return kl_none;
    if (t.rank != 3 || t.dims[2] < 1 || t.dims[2] % heads || t.dims[1] != a->length || t.dims[0] != a->batch)
        return onnx_fails(n, KL_ERR_SHAPE, "operand %u does not have the batch and length of operand 0, or not %lld "
                          "heads", i, (long long)heads), kl_none;
    kl_tensor r = kl_reshape(onnx_widened(n, i), 4, (int64_t[]){t.dims[0], t.dims[1], heads, t.dims[2] / heads});
    return kl_permute(r, (int[]){1, 0, 2, 3});
}

static bool linear_attention_operands(struct node *n, struct linear_attention *a, kl_tensor *rows, uint32_t *count)
{
    struct type t, v;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 2, &v) || !rule_of(n, &a->rule))
        return false;
    a->heads = onnx_attr_int(n, "q_num_heads", 0), a->groups = onnx_attr_int(n, "kv_num_heads", 0);
    if (a->heads < 1 || a->groups < 1 || a->heads % a->groups || t.rank != 3 || v.rank != 3)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld heads of queries and %lld of keys and values", (long long)a->heads,
                          (long long)a->groups);
    a->batch = t.dims[0], a->length = t.dims[1];
    a->key_depth = t.dims[2] / a->heads, a->value_depth = v.dims[2] / a->groups;
    a->has_decay = a->rule == RULE_GATED || a->rule == RULE_GATED_DELTA;
    a->has_beta = a->rule == RULE_DELTA || a->rule == RULE_GATED_DELTA;
    if ((a->has_decay && !onnx_has(n, 4)) || (a->has_beta && !onnx_has(n, 5)))
        return onnx_fails(n, KL_ERR_ARGUMENT, "its update rule needs a decay or beta that is left out");
    double scale = onnx_attr_float(n, "scale", 0);
    scale = scale != 0 ? scale : 1 / sqrt((double)a->key_depth);

    for (uint32_t i = 0; i < 3; i++)
        if (!(rows[(*count)++] = linear_attention_rows(n, i, a, i ? a->groups : a->heads)).id)
            return false;
    rows[0] = kl_mul(rows[0], onnx_number(n, kl_dtype_of(rows[0]), scale));
    if (a->has_decay && !(rows[(*count)++] = linear_attention_rows(n, 4, a, a->groups)).id)
        return false;
    struct type b;
    if (a->has_beta && (!onnx_type(n, 5, &b) || b.rank != 3))
        return onnx_fails(n, KL_ERR_SHAPE, "beta does not have 3 axes");
    return !a->has_beta || (rows[(*count)++] = linear_attention_rows(n, 5, a, b.dims[2] == 1 ? 1 : a->groups)).id;
}

bool onnx_linear_attention(struct node *n)
{
    struct linear_attention a = {.rule = 0};
    struct type t, s;
    kl_tensor rows[5], out[2], state;
    uint32_t count = 0;
    if (!onnx_type(n, 0, &t) || !linear_attention_operands(n, &a, rows, &count))
        return false;
    kl_dtype d = kl_dtype_of(rows[0]), state_dtype = t.dtype;
    int64_t dims[4] = {a.batch, a.groups, a.key_depth, a.value_depth};
    if (onnx_has(n, 3)) {
        if (!onnx_type(n, 3, &s))
            return false;
        state_dtype = s.dtype;
        state = onnx_in(n, 3);
        if (s.dtype != d)
            state = kl_cast(state, d);
    } else {
        state = kl_expand(onnx_number(n, d, 0), 4, dims);
    }
    if (kl_scan(linear_attention_step, &a, a.length, 1, &state, count, rows, 1, false, out) != KL_OK)
        return false;
    kl_tensor y = kl_reshape(kl_permute(out[1], (int[]){1, 0, 2, 3}), 3,
                             (int64_t[]){a.batch, a.length, sat_mul(a.heads, a.value_depth)});
    return onnx_give_as(n, 0, y, t.dtype) && (!onnx_wants(n, 1) || onnx_give_as(n, 1, out[0], state_dtype));
}

/* ---- CausalConvWithState ---- */

bool onnx_causal_conv(struct node *n)
{
    struct type t, w;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &w))
        return false;
    if (t.rank != 3 || w.rank != 3 || w.dims[1] != 1 || w.dims[2] < 1 || w.dims[0] != t.dims[1] ||
        t.dims[1] > INT32_MAX)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes and a weight that is not [channels, 1, k]", t.rank);
    bool silu = onnx_attr_is(n, "activation", "silu", false) || onnx_attr_is(n, "activation", "swish", false);
    if (!silu && !onnx_attr_is(n, "activation", "none", true))
        return onnx_fails(n, KL_ERR_ARGUMENT, "an activation that is not known");
    int64_t before = w.dims[2] - 1, dims[3] = {t.dims[0], t.dims[1], before};
    kl_tensor x = onnx_widened(n, 0);
    kl_tensor past = onnx_has(n, 3) ? onnx_widened(n, 3) : kl_expand(onnx_number(n, kl_dtype_of(x), 0), 3, dims);
    kl_tensor all = kl_concat(2, (kl_tensor[]){past, x}, 2);
    kl_tensor y = kl_conv(all, onnx_widened(n, 1), onnx_has(n, 2) ? onnx_widened(n, 2) : kl_none, NULL, NULL, NULL,
                          NULL, (int)t.dims[1]);
    if (!onnx_give_as(n, 0, silu ? kl_silu(y) : y, t.dtype))
        return false;
    return !onnx_wants(n, 1) || onnx_give_as(n, 1, kl_narrow(all, 2, t.dims[2], before), t.dtype);
}
