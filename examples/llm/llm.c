/* Recording the layers of a language model, and its cache: see llm.h. */
#include "llm.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool llm_fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return false;
}

static void release(kl_tensor t)
{
    if (t.id)
        kl_release(t);
}

static void linear_release(const struct llm_linear *l)
{
    release(l->weight), release(l->bias);
}

void llm_close(struct llm *m)
{
    for (int64_t i = 0; m->layer && i < m->layers; i++) {
        const struct llm_layer *l = &m->layer[i];
        const kl_tensor norms[] = {l->norm1, l->norm2, l->after1, l->after2, l->q_norm, l->k_norm};
        for (size_t k = 0; k < sizeof norms / sizeof *norms; k++)
            release(norms[k]);
        const struct llm_linear *products[] = {&l->q, &l->k, &l->v, &l->out, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof products / sizeof *products; k++)
            linear_release(products[k]);
    }
    release(m->embedding), release(m->frequencies), release(m->norm), linear_release(&m->head);
    free(m->layer);
    free(m->config);
    for (int i = 0; i < m->files; i++)
        kl_file_close(m->file[i]);
    free(m->file);
    *m = (struct llm){0};
}

/* ---- the cache ---- */

void llm_cache_deinit(struct llm_cache *cache)
{
    for (int64_t i = 0; cache->k && i < 2 * cache->layers; i++)
        release(cache->k[i]);
    free(cache->k);
    *cache = (struct llm_cache){0};
}

bool llm_cache_init(struct llm_cache *cache, const struct llm *m, int64_t rows, int64_t length)
{
    int64_t dims[4] = {rows, m->kv_heads, length, m->head_width};
    *cache = (struct llm_cache){.layers = m->layers, .rows = rows, .length = length};
    cache->k = calloc((size_t)m->layers * 2, sizeof *cache->k);
    bool ok = cache->k || llm_fail("cache", "out of memory");
    cache->v = ok ? cache->k + m->layers : NULL;
    for (int64_t i = 0; ok && i < 2 * m->layers; i++) {
        cache->k[i] = kl_keep(kl_zeros(m->device, KL_F32, 4, dims));
        ok = kl_check(cache->k[i]) == KL_OK || llm_fail("cache", kl_last_error());
    }
    if (!ok)
        llm_cache_deinit(cache);
    return ok;
}

/* ---- layers ---- */

static kl_tensor widened(kl_tensor w)
{
    kl_dtype d = kl_dtype_of(w);
    return d == KL_F16 || d == KL_BF16 ? kl_cast(w, KL_F32) : w;
}

/* x: [B, L, in] times a weight of blocks, with x rounded to bytes with a scale for each 32 of them. */
static kl_tensor byte_product(kl_tensor x, kl_tensor weight)
{
    int64_t dims[KL_MAX_RANK], out[2];
    int rank = kl_shape(x, dims);
    kl_shape(weight, out);
    kl_tensor rows = kl_reshape(x, 2, (int64_t[]){dims[0] * dims[1], dims[2]});
    kl_tensor bytes = kl_to_quantized(rows, (kl_qscheme){.type = KL_Q_I8, .axis = 1, .block = 32}, kl_none, kl_none);
    dims[2] = out[0];
    return kl_reshape(kl_matmul(bytes, kl_transpose(weight, 0, 1)), rank, dims);
}

static kl_tensor linear(const struct llm *m, const struct llm_linear *l, kl_tensor x)
{
    bool blocks = m->bytes && kl_rank(x) == 3 && !strcmp(kl_layer_name(l->weight), "quantized");
    kl_tensor y = blocks ? byte_product(x, l->weight) : kl_matmul(x, kl_transpose(widened(l->weight), 0, 1));
    if (l->bias.id)
        y = kl_add(y, widened(l->bias));
    return l->down.id ? kl_add(y, kl_matmul(kl_matmul(x, l->down), l->up)) : y;
}

static kl_tensor rms_norm(const struct llm *m, kl_tensor x, kl_tensor weight)
{
    return weight.id ? kl_rms_norm(x, 1, widened(weight), m->eps) : x;
}

static kl_tensor cap(kl_tensor x, double limit)
{
    return limit > 0 ? kl_mul_scalar(kl_tanh(kl_mul_scalar(x, 1 / limit)), limit) : x;
}

/* x: [B, H, L, D] at positions [B, L] -> the same with the first m->rotated elements of each head rotated. */
static kl_tensor rotate(const struct llm *m, const struct llm_layer *l, kl_tensor x, kl_tensor positions)
{
    int64_t half = m->rotated / 2, rest = m->head_width - m->rotated;
    kl_nn_rotary_options options = {.base = l->rotary_base, .interleaved = m->interleaved, .factors = m->frequencies};
    if (l->rotary_scale != 1) /* divisors that are all the same */
        options.factors = kl_full(m->device, KL_F32, 1, &half, 1 / l->rotary_scale);
    if (!rest)
        return kl_nn_rotary_with(x, positions, &options);
    kl_tensor rotated = kl_nn_rotary_with(kl_narrow(x, -1, 0, m->rotated), positions, &options);
    return kl_concat(2, (kl_tensor[]){rotated, kl_narrow(x, -1, m->rotated, rest)}, -1);
}

/* [B, L, heads * D] -> [B, heads, L, D] */
static kl_tensor split_heads(const struct llm *m, kl_tensor x, int64_t heads)
{
    int64_t dims[4];
    kl_shape(x, dims);
    dims[2] = heads, dims[3] = m->head_width;
    return kl_permute(kl_reshape(x, 4, dims), (int[]){0, 2, 1, 3});
}

/* Which keys a token sees, i32 [B, 1, L, 2]: from the first one on and before the second. */
static kl_tensor visible_keys(const struct llm_layer *l, kl_tensor positions)
{
    kl_tensor end = kl_add_scalar(positions, 1);
    kl_tensor first = kl_mul_scalar(positions, 0);
    if (l->window)
        first = kl_maximum(kl_add_scalar(end, -(double)l->window), first);
    return kl_unsqueeze(kl_stack(2, (kl_tensor[]){first, end}, -1), 1);
}

/* Attention whose scores are capped (gemma2), which stores them. */
static kl_tensor capped_attention(const struct llm *m, kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor bounds)
{
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(k, dims);
    kl_tensor scores = kl_matmul(q, kl_transpose(k, -2, -1));
    kl_tensor key = kl_arange(m->device, KL_I32, dims[rank - 2]);
    kl_tensor seen = kl_and(kl_ge(key, kl_narrow(bounds, -1, 0, 1)), kl_lt(key, kl_narrow(bounds, -1, 1, 1)));
    kl_tensor none = kl_scalar(m->device, KL_F32, -INFINITY);
    return kl_matmul(kl_softmax(kl_where(seen, cap(kl_mul_scalar(scores, m->score_scale), m->score_cap), none), -1), v);
}

/* Stores new keys or values [B, G, L, D] at the rows' positions, and returns the whole array. */
static kl_tensor store(kl_tensor held, kl_tensor new, kl_tensor at)
{
    kl_tensor all = kl_dynamic_update(held, new, (kl_tensor[]){kl_none, kl_none, kl_reshape(at, 0, NULL), kl_none});
    kl_assign(held, all);
    return all;
}

static kl_tensor attention(const struct llm *m, int64_t layer, kl_tensor x, kl_tensor positions, kl_tensor at,
                           struct llm_cache *cache)
{
    const struct llm_layer *l = &m->layer[layer];
    int64_t dims[5], group = m->heads / m->kv_heads;
    kl_tensor q = rotate(m, l, rms_norm(m, split_heads(m, linear(m, &l->q, x), m->heads), l->q_norm), positions);
    kl_tensor k = rotate(m, l, rms_norm(m, split_heads(m, linear(m, &l->k, x), m->kv_heads), l->k_norm), positions);
    kl_tensor v = split_heads(m, linear(m, &l->v, x), m->kv_heads), bounds = visible_keys(l, positions), y;
    if (cache) {
        k = store(cache->k[layer], k, at);
        v = store(cache->v[layer], v, at);
    }
    kl_shape(q, dims);
    q = kl_reshape(q, 5, (int64_t[]){dims[0], m->kv_heads, group, dims[2], m->head_width});
    k = kl_unsqueeze(k, 2), v = kl_unsqueeze(v, 2), bounds = kl_unsqueeze(bounds, 1);
    if (m->score_cap > 0) {
        y = capped_attention(m, q, k, v, bounds);
    } else {
        kl_attention_options options = {.mask = bounds, .scale = m->score_scale};
        y = kl_attention_with(q, k, v, &options, NULL, NULL);
    }
    y = kl_permute(kl_reshape(y, 4, dims), (int[]){0, 2, 1, 3});
    return linear(m, &l->out, kl_reshape(y, 3, (int64_t[]){dims[0], dims[2], m->heads * m->head_width}));
}

static kl_tensor mlp(const struct llm *m, const struct llm_layer *l, kl_tensor x)
{
    kl_tensor gate = linear(m, &l->gate, x);
    return linear(m, &l->down, kl_mul(m->gelu ? kl_gelu(gate) : kl_silu(gate), linear(m, &l->up, x)));
}

kl_tensor llm_hidden(const struct llm *m, kl_tensor ids, kl_tensor at, struct llm_cache *cache)
{
    int64_t dims[2] = {1, 1};
    if (kl_rank(ids) == 2)
        kl_shape(ids, dims);
    kl_tensor positions = kl_expand(kl_arange(m->device, KL_I32, dims[1]), 2, dims);
    if (cache)
        positions = kl_add(positions, kl_unsqueeze(at, 1));
    kl_tensor x = kl_mul_scalar(widened(kl_embedding(m->embedding, ids)), m->embedding_scale);
    for (int64_t i = 0; i < m->layers; i++) {
        const struct llm_layer *l = &m->layer[i];
        kl_tensor y = attention(m, i, rms_norm(m, x, l->norm1), positions, at, cache);
        x = kl_add(x, rms_norm(m, y, l->after1));
        x = kl_add(x, rms_norm(m, mlp(m, l, rms_norm(m, x, l->norm2)), l->after2));
    }
    return rms_norm(m, x, m->norm);
}

kl_tensor llm_logits(const struct llm *m, kl_tensor hidden)
{
    struct llm_linear head = m->head;
    if (!head.weight.id)
        head.weight = m->embedding;
    return cap(linear(m, &head, hidden), m->logit_cap);
}
