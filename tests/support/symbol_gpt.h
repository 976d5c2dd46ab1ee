/* A small GPT of symbolic batches and lengths, for tests of programs for all values of symbols. */
#ifndef SYMBOL_GPT_H
#define SYMBOL_GPT_H
#include "tests/support/api_check.h"

enum { LAYERS = 4, WIDTH = 16, HEADS = 2, WORDS = 30, MAX_BATCH = 6, MAX_LENGTH = 40, POSITIONS = 48, IN_BLOCK = 6,
       PARTS = 3 + LAYERS * IN_BLOCK };

static int32_t ids[MAX_BATCH * MAX_LENGTH], next[MAX_BATCH * MAX_LENGTH];

/* Lengths in the graph; numbers, or symbols where `symbolic`. */
struct sizes { bool symbolic; int64_t b, l, count[2]; };

static inline struct sizes sizes_of(bool symbolic, const int64_t *count)
{
    struct sizes s = {symbolic, count[0], count[1], {count[0], count[1]}};
    if (symbolic) {
        s.b = kl_symbol("b", 1, MAX_BATCH);
        s.l = kl_symbol("l", 2, MAX_LENGTH);
    }
    return s;
}

static inline kl_tensor text_input(kl_device dev, const struct sizes *s, const int32_t *data)
{
    int64_t lengths[2] = {s->b, s->l};
    return s->symbolic ? kl_input_symbolic(dev, KL_I32, 2, lengths, s->count, data)
                       : kl_input(dev, KL_I32, 2, s->count, data);
}

static inline kl_tensor heads(const struct sizes *s, kl_tensor x)
{
    return kl_permute(kl_reshape(x, 4, (int64_t[]){s->b, s->l, HEADS, WIDTH / HEADS}), (int[]){0, 2, 1, 3});
}

static inline kl_tensor gpt_block(const struct sizes *s, const kl_tensor *p, kl_tensor x)
{
    kl_tensor h = kl_layer_norm(x, 1, kl_none, kl_none, 1e-5);
    kl_tensor a = kl_attention(heads(s, kl_linear(h, p[0], kl_none)), heads(s, kl_linear(h, p[1], kl_none)),
                               heads(s, kl_linear(h, p[2], kl_none)), kl_none, true);
    a = kl_reshape(kl_permute(a, (int[]){0, 2, 1, 3}), 3, (int64_t[]){s->b, s->l, WIDTH});
    x = kl_add(x, kl_linear(a, p[3], kl_none));
    h = kl_gelu(kl_linear(kl_rms_norm(x, 1, kl_none, 1e-5), p[4], kl_none));
    return kl_add(x, kl_linear(h, p[5], kl_none));
}

/* tokens and positions; blocks; a head. */
static inline kl_tensor gpt_logits_of(const struct sizes *s, const kl_tensor *p, kl_tensor tokens)
{
    kl_tensor x = kl_embedding(p[0], tokens);
    x = kl_add(x, kl_narrow(p[1], 0, 0, s->l));
    for (int i = 0; i < LAYERS; i++)
        x = gpt_block(s, p + 3 + i * IN_BLOCK, x);
    return kl_linear(kl_layer_norm(x, 1, kl_none, kl_none, 1e-5), p[2], kl_none);
}

static inline kl_tensor gpt_logits(kl_device dev, const struct sizes *s, const kl_tensor *p)
{
    return gpt_logits_of(s, p, text_input(dev, s, ids));
}

static inline kl_tensor gpt_loss(kl_device dev, const struct sizes *s, const kl_tensor *p)
{
    kl_tensor logits = gpt_logits(dev, s, p);
    return kl_cross_entropy(kl_reshape(logits, 2, (int64_t[]){-1, WORDS}),
                            kl_reshape(text_input(dev, s, next), 1, (int64_t[]){-1}));
}

static inline void make_parameters(kl_device dev, kl_tensor *p)
{
    p[0] = kl_randn(dev, KL_F32, DIMS(WORDS, WIDTH), 1), p[1] = kl_randn(dev, KL_F32, DIMS(POSITIONS, WIDTH), 2);
    p[2] = kl_randn(dev, KL_F32, DIMS(WIDTH, WORDS), 3);
    for (int i = 0; i < LAYERS * IN_BLOCK; i++) {
        int64_t in = i % IN_BLOCK == 5 ? 4 * WIDTH : WIDTH, out = i % IN_BLOCK == 4 ? 4 * WIDTH : WIDTH;
        p[3 + i] = kl_randn(dev, KL_F32, DIMS(in, out), (uint64_t)i + 4);
    }
    for (int i = 0; i < PARTS; i++) { /* they are computed here, not in the first trace that reads them */
        static float data[4 * WIDTH * WIDTH];
        OK(kl_read(p[i], data, (size_t)kl_numel(p[i]) * sizeof *data));
    }
}

static inline void make_words(void)
{
    for (int i = 0; i < MAX_BATCH * MAX_LENGTH; i++)
        ids[i] = i * i % WORDS, next[i] = (i + 1) * (i + 1) % WORDS;
}

#endif
