/* Modules of transformers: attention of whole sequences and through a cache, transformer blocks. */
#include "cache.h"
#include "modules.h"

/* ---- attention ---- */

kl_status kl_nn_attention_init(kl_nn_attention *m, kl_params *params, const char *prefix,
                               const kl_nn_attention_options *options)
{
    if (!m || !options || options->width < 1 || options->heads < 1 || options->width % options->heads ||
        options->kv_heads < 0 || (options->kv_heads && options->heads % options->kv_heads))
        return module_refuse("nn_attention_init", prefix,
                             m && options ? "the heads do not share the width evenly" : "an argument is NULL");
    if (options->window < 0 || (options->window && !options->causal))
        return module_refuse("nn_attention_init", prefix, "a window is a number of tokens, of causal attention");
    char name[KL_PARAM_NAME + 2];
    *m = (kl_nn_attention){.is = *options};
    if (!m->is.kv_heads)
        m->is.kv_heads = m->is.heads;
    int64_t w = m->is.width, head = w / m->is.heads;
    module_name(name, prefix, "qkv");
    kl_status s = kl_nn_linear_init(&m->qkv, params, name, w, w + 2 * head * m->is.kv_heads, m->is.bias);
    module_name(name, prefix, "out");
    return s != KL_OK ? s : kl_nn_linear_init(&m->out, params, name, w, w, m->is.bias);
}

/* Reshapes [B, L, n] and takes `heads` * width elements of the last axis: [B, heads, L, width]. */
static kl_tensor attention_heads(kl_tensor x, int64_t from, int64_t heads, int64_t width)
{
    int64_t dims[4] = {0};
    if (kl_rank(x) == 3)
        kl_shape(x, dims);
    dims[2] = heads;
    dims[3] = width;
    kl_tensor part = kl_narrow(x, -1, from, heads * width);
    return kl_permute(kl_reshape(part, 4, dims), (int[]){0, 2, 1, 3});
}

/* Which keys a token sees, i32 [L, 2], or of the rows of a cache [B, 1, L, 2]: from the first on and before the second.
 */
static kl_tensor causal_bounds(kl_device device, int64_t n, const kl_nn_cache *cache, int64_t window)
{
    kl_tensor end = kl_add_scalar(kl_nn_positions(device, n, cache), 1);
    if (cache)
        end = kl_minimum_scalar(end, (double)cache->length);
    kl_tensor first = window ? kl_maximum_scalar(kl_sub_scalar(end, (double)window), 0) : kl_mul_scalar(end, 0);
    kl_tensor bounds = kl_stack(2, (kl_tensor[]){first, end}, -1);
    return cache ? kl_unsqueeze(bounds, 1) : bounds;
}

/* Attention whose scores are capped, q [B, H, L, D] by k and v [B, G, M, D]: it stores them. */
static kl_tensor capped_attention(kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor bounds, double scale, double cap)
{
    int64_t dims[5], keys[4];
    kl_device device = kl_device_of(q);
    kl_shape(q, dims);
    kl_shape(k, keys);
    int64_t out[4] = {dims[0], dims[1], dims[2], dims[3]}, group = dims[1] / keys[1];
    dims[4] = dims[3], dims[3] = dims[2], dims[2] = group, dims[1] = keys[1];
    bounds = kl_rank(bounds) == 4 ? kl_unsqueeze(bounds, 1) : bounds;
    kl_tensor scores = kl_matmul(kl_reshape(q, 5, dims), kl_transpose(kl_unsqueeze(k, 2), -2, -1));
    kl_tensor key = kl_arange(device, KL_I32, keys[2]), none = kl_scalar(device, kl_dtype_of(scores), -INFINITY);
    kl_tensor seen = kl_and(kl_ge(key, kl_narrow(bounds, -1, 0, 1)), kl_lt(key, kl_narrow(bounds, -1, 1, 1)));
    scores = kl_mul_scalar(kl_tanh(kl_mul_scalar(scores, scale / cap)), cap);
    kl_tensor weights = kl_softmax(kl_where(seen, scores, none), -1);
    kl_tensor last = kl_narrow(kl_narrow(bounds, -1, 1, 1), -2, dims[3] - 1, 1); /* what no token sees may be NaN */
    kl_tensor used = kl_lt(kl_unsqueeze(key, 1), kl_rank(last) == 5 ? kl_squeeze(last, 2) : last);
    v = kl_where(used, v, kl_scalar(device, kl_dtype_of(v), 0));
    return kl_reshape(kl_matmul(weights, kl_unsqueeze(v, 2)), 4, out);
}

static kl_tensor causal_attention(kl_tensor q, kl_tensor k, kl_tensor v, const kl_nn_cache *cache, int layer,
                                  const kl_nn_causal_options *o)
{
    int64_t dims[4];
    kl_device device = kl_device_of(q);
    kl_shape(q, dims);
    if (cache) {
        k = cache_store(cache, layer, false, k);
        v = cache_store(cache, layer, true, v);
    }
    bool bounded = cache || o->window || o->cap > 0;
    kl_tensor bounds = bounded ? causal_bounds(device, dims[2], cache, o->window) : kl_none;
    double scale = o->scale > 0 ? o->scale : 1 / sqrt((double)dims[3]);
    if (o->cap > 0)
        return capped_attention(q, k, v, bounds, scale, o->cap);
    kl_attention_options all = {.mask = bounds, .scale = scale, .causal = !bounded};
    return kl_attention_with(q, k, v, &all, NULL, NULL);
}

/* Do the shapes and numbers fit?  If not, an error of `op`. */
static kl_status causal_check(const char *op, kl_tensor q, kl_tensor k, kl_tensor v, const kl_nn_cache *cache,
                              int layer, const kl_nn_causal_options *o)
{
    const kl_tensor in[3] = {q, k, v};
    int64_t dims[3][KL_MAX_RANK];
    for (int i = 0; i < 3; i++)
        if (kl_check(in[i]) != KL_OK)
            return kl_check(in[i]);
    for (int i = 0; i < 3; i++)
        if (kl_shape(in[i], dims[i]) != 4)
            return kl_failf(NULL, KL_ERR_SHAPE, "%s: %c has %d axes; it must be [batch, heads, L, D]", op, "qkv"[i],
                            kl_rank(in[i]));
    bool same = dims[1][1] > 0 && dims[0][1] % dims[1][1] == 0 && !memcmp(dims[1], dims[2], 4 * sizeof **dims);
    for (int i = 0; i < 4 && same; i++)
        same = i == 1 || dims[0][i] == dims[1][i];
    if (!same || (cache && (dims[1][1] != cache->kv_heads || dims[1][3] != cache->head_width)))
        return kl_failf(NULL, KL_ERR_SHAPE, "%s: q [%lld,%lld,%lld,%lld] beside k [%lld,%lld,%lld,%lld]%s", op,
                        (long long)dims[0][0], (long long)dims[0][1], (long long)dims[0][2], (long long)dims[0][3],
                        (long long)dims[1][0], (long long)dims[1][1], (long long)dims[1][2], (long long)dims[1][3],
                        same ? ": the cache has other heads" : ", or v is of another shape than k");
    if (o->window < 0 || !(o->cap >= 0) || !(o->scale >= 0))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: window %lld, cap %g, scale %g", op, (long long)o->window, o->cap,
                        o->scale);
    return cache ? cache_check(op, cache, layer, dims[0][0], dims[0][2]) : KL_OK;
}

kl_tensor kl_nn_causal_attention(kl_tensor q, kl_tensor k, kl_tensor v, kl_nn_cache *cache, int layer,
                                 const kl_nn_causal_options *options)
{
    static const char op[] = "nn_causal_attention";
    kl_nn_causal_options o = options ? *options : (kl_nn_causal_options){0};
    if (causal_check(op, q, k, v, cache, layer, &o) != KL_OK || kl_composite_begin(op) != KL_OK)
        return kl_poison();
    kl_tensor y = causal_attention(q, k, v, cache, layer, &o);
    kl_composite_end(1, &y);
    return y;
}

static kl_tensor attention_of(const kl_nn_attention *m, kl_tensor x, kl_tensor mask,
                              const kl_nn_cache *cache, int layer)
{
    const kl_nn_attention_options *o = &m->is;
    int64_t head = o->width / o->heads, dims[3], kv = o->kv_heads, group = o->heads / o->kv_heads;
    kl_device device = kl_device_of(x);
    kl_tensor all = kl_nn_linear_forward(&m->qkv, x);
    kl_shape(x, dims);
    kl_tensor q = attention_heads(all, 0, o->heads, head);
    kl_tensor k = attention_heads(all, o->width, kv, head);
    kl_tensor v = attention_heads(all, o->width + kv * head, kv, head);
    if (o->rotary_base > 0) {
        kl_tensor at = kl_nn_positions(device, dims[1], cache);
        q = kl_nn_rotary(q, at, o->rotary_base, false);
        k = kl_nn_rotary(k, at, o->rotary_base, false);
    }
    kl_tensor y;
    if (cache || o->window) {
        y = causal_attention(q, k, v, cache, layer, &(kl_nn_causal_options){.window = o->window});
    } else {
        if (group > 1) { /* the heads of a group use the same keys */
            q = kl_reshape(q, 5, (int64_t[]){dims[0], kv, group, dims[1], head});
            k = kl_unsqueeze(k, 2);
            v = kl_unsqueeze(v, 2);
        }
        y = kl_attention(q, k, v, mask, o->causal);
        if (group > 1)
            y = kl_reshape(y, 4, (int64_t[]){dims[0], o->heads, dims[1], head});
    }
    y = kl_reshape(kl_permute(y, (int[]){0, 2, 1, 3}), 3, dims);
    return kl_nn_linear_forward(&m->out, y);
}

static kl_tensor attention_checked(const kl_nn_attention *m, kl_tensor x, kl_tensor mask, kl_nn_cache *cache, int layer)
{
    int64_t dims[KL_MAX_RANK] = {0};
    int rank = kl_shape(x, dims);
    kl_status s = KL_OK;
    if (kl_check(x) == KL_OK && (rank != 3 || dims[2] != m->is.width))
        s = kl_failf(NULL, KL_ERR_SHAPE, "nn_attention: x has %d axes, the last of %lld elements; it must be "
                    "[batch, L, %lld]", rank, (long long)(rank > 0 ? dims[rank - 1] : 0), (long long)m->is.width);
    else if (mask.id && (cache || m->is.window))
        s = kl_failf(NULL, KL_ERR_ARGUMENT, "nn_attention: a mask beside %s", cache ? "a cache" : "a window");
    else if (cache)
        s = cache_check("nn_attention", cache, layer, dims[0], dims[1]);
    if (s != KL_OK || kl_composite_begin("nn_attention") != KL_OK)
        return kl_poison();
    kl_tensor y = rank != 3 ? kl_neg(x) : attention_of(m, x, mask, cache, layer);
    kl_composite_end(1, &y);
    return y;
}

kl_tensor kl_nn_attention_forward(const kl_nn_attention *m, kl_tensor x, kl_tensor mask, kl_nn_cache *cache, int layer)
{
    if (kl_module_begin(m->qkv.weight, 2) != KL_OK)
        return kl_poison();
    return module_end(attention_checked(m, x, mask, cache, layer));
}

/* ---- blocks ---- */

kl_status kl_nn_block_init(kl_nn_block *m, kl_params *params, const char *prefix, const kl_nn_block_options *options)
{
    if (!m || !options || options->hidden < 0 || !(options->dropout >= 0 && options->dropout <= 1) ||
        (unsigned)options->mlp > KL_NN_SWIGLU)
        return module_refuse("nn_block_init", prefix, m && options ? "no such block" : "an argument is NULL");
    char name[KL_PARAM_NAME + 2];
    *m = (kl_nn_block){.is = *options};
    int64_t w = options->attention.width, hidden = m->is.hidden = options->hidden ? options->hidden : 4 * w;
    bool bias = options->attention.bias, rms = options->rms_norm;
    kl_status s = KL_OK;
    for (int i = 0; i < 2 && s == KL_OK; i++) {
        module_name(name, prefix, i ? "norm2" : "norm1");
        s = (rms ? kl_nn_rms_norm_init : kl_nn_layer_norm_init)(i ? &m->norm2 : &m->norm1, params, name, w);
        module_name(name, prefix, "attention");
        if (s == KL_OK && i == 0)
            s = kl_nn_attention_init(&m->attention, params, name, &options->attention);
    }
    module_name(name, prefix, "mlp.up");
    if (s == KL_OK)
        s = kl_nn_linear_init(&m->up, params, name, w, m->is.mlp == KL_NN_SWIGLU ? 2 * hidden : hidden, bias);
    module_name(name, prefix, "mlp.down");
    return s != KL_OK ? s : kl_nn_linear_init(&m->down, params, name, hidden, w, bias);
}

static kl_tensor block_mlp(const kl_nn_block *m, kl_tensor x)
{
    kl_tensor h = kl_nn_linear_forward(&m->up, x);
    if (m->is.mlp == KL_NN_SWIGLU) {
        kl_tensor gate = kl_silu(kl_narrow(h, -1, 0, m->is.hidden));
        h = kl_mul(gate, kl_narrow(h, -1, m->is.hidden, m->is.hidden));
    } else {
        h = m->is.mlp == KL_NN_RELU ? kl_relu(h) : kl_gelu(h);
    }
    return kl_nn_linear_forward(&m->down, h);
}

kl_tensor kl_nn_block_forward(const kl_nn_block *m, kl_tensor x, kl_tensor mask,
                              kl_nn_cache *cache, int layer, kl_tensor seed)
{
    if (kl_module_begin(m->norm1.weight, 2) != KL_OK)
        return kl_poison();
    if (kl_composite_begin("nn_block") != KL_OK)
        return module_end(kl_poison());
    double p = m->is.dropout;
    for (int i = 0; i < 2; i++) {
        kl_tensor y = kl_nn_norm_forward(i ? &m->norm2 : &m->norm1, x, false);
        y = i ? block_mlp(m, y) : kl_nn_attention_forward(&m->attention, y, mask, cache, layer);
        x = kl_add(x, seed.id && p > 0 ? kl_nn_dropout(y, p, seed, 2 * (int64_t)layer + i) : y);
    }
    kl_composite_end(1, &x);
    return module_end(x);
}
