/* Modules of transformers: caches of keys and values, positions, attention, transformer blocks. */
#include "modules.h"

/* ---- caches ---- */

kl_status kl_nn_cache_init(kl_nn_cache *cache, kl_device device, kl_dtype dtype, int layers,
                           int64_t batch, int64_t kv_heads, int64_t length, int64_t head_width)
{
    if (!cache || layers < 1 || batch < 1 || kv_heads < 1 || length < 1 || head_width < 1)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "nn_cache_init: %s", cache ? "counts are from 1 on" : "cache is NULL");
    *cache = (kl_nn_cache){.layers = layers, .length = length};
    cache->k = kl_memory_alloc((size_t)layers * 2 * sizeof *cache->k);
    if (!cache->k)
        return kl_failf(NULL, KL_ERR_MEMORY, "nn_cache_init: out of memory");
    cache->v = cache->k + layers;
    int64_t dims[4] = {batch, kv_heads, length, head_width};
    kl_status s = kl_check(cache->used = kl_keep(kl_zeros(device, KL_I32, 0, NULL)));
    for (int i = 0; i < 2 * layers && s == KL_OK; i++)
        s = kl_check(cache->k[i] = kl_keep(kl_zeros(device, dtype, 4, dims)));
    if (s != KL_OK)
        kl_nn_cache_deinit(cache);
    return s;
}

void kl_nn_cache_deinit(kl_nn_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; cache->k && i < 2 * cache->layers; i++)
        train_release(cache->k[i]);
    train_release(cache->used);
    kl_memory_free(cache->k);
    *cache = (kl_nn_cache){0};
}

kl_status kl_nn_cache_advance(kl_nn_cache *cache, int64_t n)
{
    if (!cache || n < 0 || n > cache->length - cache->at)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "nn_cache_advance: %lld positions beside %lld of %lld", (long long)n,
                       cache ? (long long)cache->at : 0LL, cache ? (long long)cache->length : 0LL);
    if (!kl_tracing())
        return kl_failf(NULL, KL_ERR_TRACE, "nn_cache_advance: no trace is open");
    kl_tensor count = kl_scalar(kl_device_of(cache->used), KL_I32, (double)n);
    kl_status s = kl_assign(cache->used, kl_add(cache->used, count));
    if (s == KL_OK)
        cache->at += n;
    return s;
}

kl_status kl_nn_cache_reset(kl_nn_cache *cache)
{
    if (!cache)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "nn_cache_reset: cache is NULL");
    kl_tensor zero = kl_zeros(kl_device_of(cache->used), KL_I32, 0, NULL);
    kl_status s = kl_assign(cache->used, zero);
    if (s == KL_OK)
        cache->at = 0;
    train_release(zero);
    return s;
}

/* ---- positions ---- */

kl_tensor kl_nn_positions(kl_device device, int64_t n, const kl_nn_cache *cache)
{
    if (kl_composite_begin("nn_positions") != KL_OK)
        return kl_poison();
    kl_tensor at = kl_arange(device, KL_I32, n);
    if (cache)
        at = kl_add(at, cache->used);
    kl_composite_end(1, &at);
    return at;
}

/* [L, D/2], or of positions [B, L] [B, 1.., L, D/2], for x [B, ..., L, D] */
static kl_tensor rotary_angles(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *o, int64_t width)
{
    kl_dtype wide = kl_dtype_of(x) == KL_F64 ? KL_F64 : KL_F32;
    kl_tensor number = kl_arange(kl_device_of(x), wide, width / 2);
    kl_tensor speed = kl_exp(kl_mul_scalar(number, -2 * log(o->base) / (double)width));
    if (o->factors.id)
        speed = kl_div(speed, kl_cast(o->factors, wide));
    kl_tensor at = kl_cast(positions, wide);
    for (int axes = 2; kl_rank(positions) == 2 && axes < kl_rank(x) - 1; axes++)
        at = kl_unsqueeze(at, 1);
    return kl_mul(kl_unsqueeze(at, -1), speed);
}

/* Rotates pairs x = (a, b): (a cos - b sin, b cos + a sin). */
static kl_tensor rotary_rotate(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *o)
{
    int64_t dims[KL_MAX_RANK + 1], width, half;
    bool interleaved = o->interleaved;
    int rank = kl_shape(x, dims), pair = interleaved ? rank : rank - 1; /* the axis of length 2 */
    width = dims[rank - 1], half = width / 2;
    kl_tensor angle = rotary_angles(x, positions, o, width);
    kl_tensor c = kl_cast(kl_cos(angle), kl_dtype_of(x));
    kl_tensor s = kl_cast(kl_sin(angle), kl_dtype_of(x));
    dims[rank - 1] = interleaved ? half : 2;
    dims[rank] = interleaved ? 2 : half;
    kl_tensor pairs = kl_reshape(x, rank + 1, dims), part[2];
    for (int i = 0; i < 2; i++)
        part[i] = kl_squeeze(kl_narrow(pairs, pair, i, 1), pair);
    kl_tensor rotated[2] = {kl_sub(kl_mul(part[0], c), kl_mul(part[1], s)),
                           kl_add(kl_mul(part[1], c), kl_mul(part[0], s))};
    kl_tensor y = kl_stack(2, rotated, pair == rank ? -1 : pair);
    dims[rank - 1] = width;
    return kl_reshape(y, rank, dims);
}

kl_tensor kl_nn_rotary(kl_tensor x, kl_tensor positions, double base, bool interleaved)
{
    if (kl_check(x) == KL_OK && !(base > 0)) {
        kl_failf(NULL, KL_ERR_SHAPE, "nn_rotary: base %g", base);
        return kl_poison();
    }
    return kl_nn_rotary_with(x, positions, &(kl_nn_rotary_options){.base = base, .interleaved = interleaved});
}

kl_tensor kl_nn_rotary_with(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *options)
{
    kl_nn_rotary_options o = options ? *options : (kl_nn_rotary_options){0};
    double base = o.base == 0 ? 10000 : o.base;
    o.base = base;
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(x, dims);
    if (kl_check(x) == KL_OK && (rank < 2 || rank >= KL_MAX_RANK || dims[rank - 1] % 2 || !(base > 0))) {
        kl_failf(NULL, KL_ERR_SHAPE, "nn_rotary: %d axes, the last of %lld elements, base %g", rank,
                (long long)(rank > 0 ? dims[rank - 1] : 0), base);
        return kl_poison();
    }
    if (kl_composite_begin("nn_rotary") != KL_OK)
        return kl_poison();
    kl_tensor y = rank < 2 ? kl_neg(x) /* a failing op on x, whose error describes x */
                           : rotary_rotate(x, positions, &o);
    kl_composite_end(1, &y);
    return y;
}

/* ---- attention ---- */

kl_status kl_nn_attention_init(kl_nn_attention *m, kl_params *params, const char *prefix,
                               const kl_nn_attention_options *options)
{
    if (!m || !options || options->width < 1 || options->heads < 1 || options->width % options->heads ||
        options->kv_heads < 0 || (options->kv_heads && options->heads % options->kv_heads))
        return module_refuse("nn_attention_init", prefix,
                             m && options ? "the heads do not share the width evenly" : "an argument is NULL");
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

/* Stores new keys or values [B, heads, L, width] at their position in the cache, and returns the whole array. */
static kl_tensor cache_store(const kl_nn_cache *cache, kl_tensor held, kl_tensor new)
{
    kl_tensor start[4] = {kl_none, kl_none, cache->used, kl_none};
    kl_tensor all = kl_dynamic_update(held, new, start);
    kl_assign(held, all);
    return all;
}

/* The bounds i32 [L, 2]: new token i attends to all used positions and the new tokens up to itself. */
static kl_tensor cache_mask(const kl_nn_cache *cache, kl_device device, int64_t n)
{
    kl_tensor end = kl_add_scalar(kl_nn_positions(device, n, cache), 1);
    kl_tensor both[2] = {kl_zeros(device, KL_I32, 1, &n), end};
    return kl_stack(2, both, -1);
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
    if (cache) {
        k = cache_store(cache, cache->k[layer], k);
        v = cache_store(cache, cache->v[layer], v);
        mask = cache_mask(cache, device, dims[1]);
    }
    if (group > 1) { /* the heads of a group use the same keys */
        q = kl_reshape(q, 5, (int64_t[]){dims[0], kv, group, dims[1], head});
        k = kl_unsqueeze(k, 2);
        v = kl_unsqueeze(v, 2);
    }
    kl_tensor y = kl_attention(q, k, v, mask, o->causal && !cache);
    if (group > 1)
        y = kl_reshape(y, 4, (int64_t[]){dims[0], o->heads, dims[1], head});
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
    else if (cache && (layer < 0 || layer >= cache->layers || mask.id || dims[1] > cache->length - cache->at))
        s = kl_failf(NULL, KL_ERR_ARGUMENT, "nn_attention: %lld tokens at %lld of %lld, layer %d of %d%s in the cache",
                    (long long)dims[1], (long long)cache->at, (long long)cache->length, layer, cache->layers,
                    mask.id ? ", and a mask" : "");
    else if (cache && !kl_tracing())
        s = kl_failf(NULL, KL_ERR_TRACE, "nn_attention: a cache outside of a trace");
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
