/* Two models and their training steps through the public interface: what benchmarks and tests run whole. */
#ifndef BENCH_MODELS_H
#define BENCH_MODELS_H
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <math.h>
#include <stdbool.h>

/* ---- what both have ---- */

enum { MAX_PARAMETERS = 96 };

struct parameters {
    kl_tensor t[MAX_PARAMETERS];
    int n;
};

/* A new parameter in the open trace: normal numbers of this standard deviation around `mean`. */
static inline kl_tensor parameter_new(struct parameters *p, kl_device device, int rank, const int64_t *dims,
                                      double mean,
                                      double deviation)
{
    kl_tensor t = kl_add_scalar(kl_mul_scalar(kl_randn(device, KL_F32, rank, dims, (uint64_t)p->n), deviation), mean);
    return p->t[p->n++] = kl_keep(t);
}

static inline void parameters_release(struct parameters *p)
{
    for (int i = 0; i < p->n; i++)
        kl_release(p->t[i]);
    p->n = 0;
}

/* ---- a classifier of dense layers, trained by Adam on random images ---- */

enum { MLP_LAYERS = 3 };
static const int64_t mlp_width[MLP_LAYERS + 1] = {784, 512, 512, 10};

struct mlp {
    struct parameters p;         /* weight and bias of each layer */
    kl_device device;
    kl_tensor images, labels;
    int64_t batch;
    kl_optimizer *adam;
};

static inline bool mlp_open(struct mlp *m, kl_device device, int64_t batch)
{
    *m = (struct mlp){.device = device, .batch = batch};
    kl_trace_begin("mlp_init");
    for (int i = 0; i < MLP_LAYERS; i++) {
        parameter_new(&m->p, device, 2, &mlp_width[i], 0, sqrt(2.0 / (double)mlp_width[i]));
        parameter_new(&m->p, device, 1, &mlp_width[i + 1], 0, 0);
    }
    m->images = kl_keep(kl_rand(device, KL_F32, 2, (int64_t[]){batch, mlp_width[0]}, 100));
    m->labels = kl_keep(kl_cast(kl_mul_scalar(kl_rand(device, KL_F32, 1, &batch, 101), 10), KL_I32));
    m->adam = kl_adam(m->p.n, m->p.t, NULL);
    return kl_trace_end() == KL_OK;
}

static inline void mlp_close(struct mlp *m)
{
    kl_optimizer_free(m->adam);
    parameters_release(&m->p);
    kl_release(m->images);
    kl_release(m->labels);
}

/* One training step, run to its end.  false: see kl_last_error. */
static inline bool mlp_step(const struct mlp *m)
{
    kl_trace_begin("mlp_step");
    kl_tensor x = m->images;
    for (int i = 0; i < MLP_LAYERS; i++) {
        x = kl_linear(x, m->p.t[2 * i], m->p.t[2 * i + 1]);
        if (i + 1 < MLP_LAYERS)
            x = kl_relu(x);
    }
    kl_optimizer_step(m->adam, kl_cross_entropy(x, m->labels), 1e-3);
    return kl_trace_end() == KL_OK && kl_sync(m->device) == KL_OK;
}

/* Operations of the products of one step: forward, gradient of weights, gradient of activations but the images'. */
static inline double mlp_flops(const struct mlp *m)
{
    double flops = 0;
    for (int i = 0; i < MLP_LAYERS; i++)
        flops += 2.0 * (double)m->batch * (double)(mlp_width[i] * mlp_width[i + 1]) * (i ? 3 : 2);
    return flops;
}

/* ---- a character model: a decoder of `layers` blocks, normalised before attention and before the dense layers ---- */

struct gpt_size { int64_t layers, width, heads, tokens, batch, vocabulary; };
enum { GPT_BLOCK = 10, GPT_HEAD = 3 }; /* parameters of a block, of the end */

struct gpt {
    struct gpt_size size;
    struct parameters p;         /* two embeddings, the blocks', the end's */
    kl_device device;
    kl_tensor ids, next;         /* [batch, tokens], [batch tokens] */
    kl_optimizer *adam;
};

static inline bool gpt_open(struct gpt *m, kl_device device, struct gpt_size s)
{
    int64_t c = s.width, all = s.batch * s.tokens;
    double small = 0.02;
    *m = (struct gpt){.size = s, .device = device};
    kl_trace_begin("gpt_init");
    parameter_new(&m->p, device, 2, (int64_t[]){s.vocabulary, c}, 0, small);
    parameter_new(&m->p, device, 2, (int64_t[]){s.tokens, c}, 0, small);
    for (int64_t i = 0; i < s.layers; i++) {
        parameter_new(&m->p, device, 1, &c, 1, 0);
        parameter_new(&m->p, device, 1, &c, 0, 0);
        parameter_new(&m->p, device, 2, (int64_t[]){c, 3 * c}, 0, small);
        parameter_new(&m->p, device, 2, (int64_t[]){c, c}, 0, small);
        parameter_new(&m->p, device, 1, &c, 1, 0);
        parameter_new(&m->p, device, 1, &c, 0, 0);
        parameter_new(&m->p, device, 2, (int64_t[]){c, 4 * c}, 0, small);
        parameter_new(&m->p, device, 1, (int64_t[]){4 * c}, 0, 0);
        parameter_new(&m->p, device, 2, (int64_t[]){4 * c, c}, 0, small);
        parameter_new(&m->p, device, 1, &c, 0, 0);
    }
    parameter_new(&m->p, device, 1, &c, 1, 0);
    parameter_new(&m->p, device, 1, &c, 0, 0);
    parameter_new(&m->p, device, 2, (int64_t[]){c, s.vocabulary}, 0, small);
    kl_tensor text = kl_rand(device, KL_F32, 1, (int64_t[]){all + 1}, 1000);
    text = kl_cast(kl_mul_scalar(text, (double)s.vocabulary), KL_I32);
    m->ids = kl_keep(kl_reshape(kl_narrow(text, 0, 0, all), 2, (int64_t[]){s.batch, s.tokens}));
    m->next = kl_keep(kl_narrow(text, 0, 1, all));
    m->adam = kl_adam(m->p.n, m->p.t, NULL);
    return kl_trace_end() == KL_OK;
}

static inline void gpt_close(struct gpt *m)
{
    kl_optimizer_free(m->adam);
    parameters_release(&m->p);
    kl_release(m->ids);
    kl_release(m->next);
}

/* Third `which` of qkv [batch, tokens, 3 width] as [batch, heads, tokens, width / heads]. */
static inline kl_tensor gpt_heads(const struct gpt *m, kl_tensor qkv, int which)
{
    const struct gpt_size *s = &m->size;
    kl_tensor part = kl_narrow(qkv, 2, which * s->width, s->width);
    part = kl_reshape(part, 4, (int64_t[]){s->batch, s->tokens, s->heads, s->width / s->heads});
    return kl_transpose(part, 1, 2);
}

static inline kl_tensor gpt_block(const struct gpt *m, kl_tensor x, const kl_tensor *p)
{
    const struct gpt_size *s = &m->size;
    kl_tensor qkv = kl_linear(kl_layer_norm(x, 1, p[0], p[1], 1e-5), p[2], kl_none);
    kl_tensor seen = kl_attention(gpt_heads(m, qkv, 0), gpt_heads(m, qkv, 1), gpt_heads(m, qkv, 2), kl_none, true);
    seen = kl_reshape(kl_transpose(seen, 1, 2), 3, (int64_t[]){s->batch, s->tokens, s->width});
    x = kl_add(x, kl_linear(seen, p[3], kl_none));
    kl_tensor hidden = kl_gelu(kl_linear(kl_layer_norm(x, 1, p[4], p[5], 1e-5), p[6], p[7]));
    return kl_add(x, kl_linear(hidden, p[8], p[9]));
}

/* One training step, run to its end; *loss (may be NULL): the loss before it.  false: see kl_last_error. */
static inline bool gpt_step(const struct gpt *m, float *loss)
{
    const struct gpt_size *s = &m->size;
    const kl_tensor *end = m->p.t + 2 + s->layers * GPT_BLOCK;
    kl_trace_begin("gpt_step");
    kl_tensor x = kl_add(kl_embedding(m->p.t[0], m->ids), m->p.t[1]);
    for (int64_t i = 0; i < s->layers; i++)
        x = gpt_block(m, x, m->p.t + 2 + i * GPT_BLOCK);
    kl_tensor logits = kl_linear(kl_layer_norm(x, 1, end[0], end[1], 1e-5), end[2], kl_none);
    logits = kl_reshape(logits, 2, (int64_t[]){s->batch * s->tokens, s->vocabulary});
    kl_tensor mean = kl_cross_entropy(logits, m->next);
    if (loss)
        kl_keep(mean);
    kl_optimizer_step(m->adam, mean, 1e-3);
    bool ok = kl_trace_end() == KL_OK && kl_sync(m->device) == KL_OK;
    if (ok && loss) {
        *loss = kl_item_f32(mean);
        kl_release(mean);
    }
    return ok;
}

/* Operations of the products of one step, forward and backward; attention's as if not causal. */
static inline double gpt_flops(const struct gpt *m)
{
    const struct gpt_size *s = &m->size;
    double all = (double)(s->batch * s->tokens), c = (double)s->width;
    double block = all * (12 * c * c + 2 * c * (double)s->tokens);
    return 3 * 2 * ((double)s->layers * block + all * c * (double)s->vocabulary);
}

#endif
