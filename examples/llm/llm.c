/* Recording the layers of a language model: see llm.h. */
#include "llm.h"
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

bool llm_cache_init(kl_nn_cache *cache, const struct llm *m, int64_t rows, int64_t length, const char *type)
{
    kl_nn_cache_options options = {.q8_0 = type && !strcmp(type, "q8_0")};
    bool half = type && !strcmp(type, "f16");
    if (type && !half && !options.q8_0 && strcmp(type, "f32") != 0)
        return llm_fail(type, "not a type of caches: f32, f16, q8_0");
    return kl_nn_cache_init_with(cache, m->device, half ? KL_F16 : KL_F32, (int)m->layers, rows, m->kv_heads, length,
                                 m->head_width, &options) == KL_OK || llm_fail("cache", kl_last_error());
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

/* x: [B, H, L, D] at positions [L] or [B, L] -> the same with the first m->rotated elements of each head rotated. */
static kl_tensor rotate(const struct llm *m, const struct llm_layer *l, kl_tensor x, kl_tensor positions)
{
    int64_t rest = m->head_width - m->rotated;
    kl_nn_rotary_options options = {.base = l->rotary_base, .interleaved = m->interleaved};
    if (!l->unscaled)
        options.factors = m->frequencies, options.attention_factor = m->rotary_factor;
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

static kl_tensor attention(const struct llm *m, int64_t layer, kl_tensor x, kl_tensor positions, kl_nn_cache *cache)
{
    const struct llm_layer *l = &m->layer[layer];
    int64_t dims[4];
    kl_tensor q = rotate(m, l, rms_norm(m, split_heads(m, linear(m, &l->q, x), m->heads), l->q_norm), positions);
    kl_tensor k = rotate(m, l, rms_norm(m, split_heads(m, linear(m, &l->k, x), m->kv_heads), l->k_norm), positions);
    kl_tensor v = split_heads(m, linear(m, &l->v, x), m->kv_heads);
    kl_nn_causal_options options = {.scale = m->score_scale, .window = l->window, .cap = m->score_cap};
    kl_tensor y = kl_permute(kl_nn_causal_attention(q, k, v, cache, (int)layer, &options), (int[]){0, 2, 1, 3});
    kl_shape(q, dims);
    return linear(m, &l->out, kl_reshape(y, 3, (int64_t[]){dims[0], dims[2], m->heads * m->head_width}));
}

static kl_tensor mlp(const struct llm *m, const struct llm_layer *l, kl_tensor x)
{
    kl_tensor gate = linear(m, &l->gate, x);
    return linear(m, &l->down, kl_mul(m->gelu ? kl_gelu(gate) : kl_silu(gate), linear(m, &l->up, x)));
}

kl_tensor llm_hidden(const struct llm *m, kl_tensor ids, kl_nn_cache *cache)
{
    int64_t dims[2] = {1, 1};
    if (kl_rank(ids) == 2)
        kl_shape(ids, dims);
    kl_tensor positions = kl_nn_positions(m->device, dims[1], cache);
    kl_tensor x = kl_mul_scalar(widened(kl_embedding(m->embedding, ids)), m->embedding_scale);
    for (int64_t i = 0; i < m->layers; i++) {
        const struct llm_layer *l = &m->layer[i];
        kl_tensor y = attention(m, i, rms_norm(m, x, l->norm1), positions, cache);
        x = kl_add(x, rms_norm(m, y, l->after1));
        x = kl_add(x, rms_norm(m, mlp(m, l, rms_norm(m, x, l->norm2)), l->after2));
    }
    if (cache)
        kl_nn_cache_advance(cache, dims[1]);
    return rms_norm(m, x, m->norm);
}

kl_tensor llm_logits(const struct llm *m, kl_tensor hidden)
{
    struct llm_linear head = m->head;
    if (!head.weight.id)
        head.weight = m->embedding;
    return cap(linear(m, &head, hidden), m->logit_cap);
}
