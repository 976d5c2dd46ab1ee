/* The training step of GPT-2 124M (examples/gpt2.c: batch 8, 1024 tokens, AdamW) as text.  Nothing is computed: the
 * parameters are zeros in pages that nobody writes. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "gpu_step_text.h"
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <sys/mman.h>

enum { BATCH = GPT2_BATCH, TOKENS = GPT2_TOKENS, WORDS = GPT2_WORDS, WIDTH = 768, HEADS = 12, LAYERS = 12,
       MAX_PARAMETERS = 16 * LAYERS, ZERO_BYTES = 4 * WORDS * WIDTH };

struct gpt2 {
    kl_device device;
    void *zeros;
    kl_tensor parameter[MAX_PARAMETERS];
    int parameters;
    kl_tensor wte, wpe;
    kl_nn_block block[LAYERS];
    kl_nn_norm norm;
};

static kl_tensor parameter(struct gpt2 *m, int rank, int64_t n0, int64_t n1)
{
    kl_tensor t = kl_wrap(m->device, KL_F32, rank, (int64_t[]){n0, n1}, m->zeros, NULL, NULL);
    return m->parameter[m->parameters++] = t;
}

static kl_nn_linear linear(struct gpt2 *m, int64_t in, int64_t out)
{
    kl_tensor weight = parameter(m, 2, in, out);
    return (kl_nn_linear){weight, parameter(m, 1, out, 0)};
}

static kl_nn_norm norm(struct gpt2 *m)
{
    kl_tensor weight = parameter(m, 1, WIDTH, 0);
    return (kl_nn_norm){.kind = KL_NN_LAYER_NORM, .weight = weight, .bias = parameter(m, 1, WIDTH, 0), .eps = 1e-5};
}

static void parameters(struct gpt2 *m)
{
    const kl_nn_attention_options attention = {.width = WIDTH, .heads = HEADS, .kv_heads = HEADS, .bias = true,
                                               .causal = true};
    m->wte = parameter(m, 2, WORDS, WIDTH);
    m->wpe = parameter(m, 2, TOKENS, WIDTH);
    for (kl_nn_block *b = m->block; b < m->block + LAYERS; b++) {
        b->is = (kl_nn_block_options){.attention = attention, .hidden = 4 * WIDTH};
        b->norm1 = norm(m);
        b->attention = (kl_nn_attention){.qkv = linear(m, WIDTH, 3 * WIDTH), .is = attention};
        b->attention.out = linear(m, WIDTH, WIDTH);
        b->norm2 = norm(m);
        b->up = linear(m, WIDTH, 4 * WIDTH);
        b->down = linear(m, 4 * WIDTH, WIDTH);
    }
    m->norm = norm(m);
}

static kl_tensor loss(const struct gpt2 *m, kl_tensor text)
{
    kl_tensor next = kl_reshape(kl_narrow(text, 1, 1, TOKENS), 1, (int64_t[]){BATCH * TOKENS});
    kl_tensor x = kl_add(kl_embedding(m->wte, kl_narrow(text, 1, 0, TOKENS)), m->wpe);
    for (int i = 0; i < LAYERS; i++)
        x = kl_nn_block_forward(&m->block[i], x, kl_none, NULL, i, kl_none);
    x = kl_reshape(kl_nn_norm_forward(&m->norm, x, false), 2, (int64_t[]){BATCH * TOKENS, WIDTH});
    return kl_cross_entropy(kl_matmul(x, kl_transpose(m->wte, 0, 1)), next);
}

char *gpu_gpt2_text(bool half)
{
    struct gpt2 m = {.device = kl_device_named("ref")};
    m.zeros = mmap(NULL, ZERO_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m.zeros == MAP_FAILED)
        return NULL;
    parameters(&m);
    kl_optimizer *adam = kl_adam(m.parameters, m.parameter, NULL);
    kl_tensor text = kl_wrap(m.device, KL_I32, 2, (int64_t[]){BATCH, TOKENS + 1}, m.zeros, NULL, NULL);
    kl_trace_begin("train_step");
    kl_autocast_begin(half ? KL_BF16 : KL_F32);
    kl_tensor mean = kl_keep(loss(&m, text));
    kl_autocast_end();
    kl_optimizer_step(adam, mean, 1e-4);
    char *captured = gpu_captured_text();
    kl_trace_abandon();
    kl_optimizer_free(adam);
    kl_release(text);
    for (int i = 0; i < m.parameters; i++)
        kl_release(m.parameter[i]);
    munmap(m.zeros, ZERO_BYTES);
    return captured;
}
