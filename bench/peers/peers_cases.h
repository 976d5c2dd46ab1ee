/* The cases of bench/peers/peers.c, by Kiln; cases.py and the files beside it have the same for the others, with
 * the same numbers.  A case is a family of computations with its sizes: what is sent to the peers. */
#ifndef BENCH_PEERS_CASES_H
#define BENCH_PEERS_CASES_H
#include "bench/bench.h"
#include <kiln/train.h>
#include <math.h>

enum family { MLP, CNN, GPT, ATTENTION, CHAIN, GELU, SUM, SOFTMAX, LAYER_NORM, CONV, MATVEC, EMBEDDING, OPS };
static const char *const family_name[] = {"mlp", "cnn", "gpt", "attention", "chain", "gelu", "sum", "softmax",
                                          "layer_norm", "conv", "matvec", "embedding", "ops"};
enum { SIZES = 9, MAX_PARAMETERS = 64, MAX_INPUTS = 5, MAX_OUTPUTS = 4 };
struct peer_case {
    const char *name;
    enum family family;
    bool backward;       /* the gradients of all float inputs too, from an upstream one */
    int64_t size[SIZES];
};

static const struct peer_case cases[] = {
    {"mlp-32-sgd", MLP, false, {32, 0}},                  /* batch; Adam */
    {"mlp-32-adam", MLP, false, {32, 1}},
    {"mlp-128-sgd", MLP, false, {128, 0}},
    {"mlp-128-adam", MLP, false, {128, 1}},
    {"cnn-64-sgd", CNN, false, {64, 0}},                  /* likewise */
    {"gpt-sgd", GPT, false, {0, 0}},                      /* -; Adam */
    {"gpt-adam", GPT, false, {0, 1}},
    {"attention-512", ATTENTION, false, {512, 0}},        /* tokens; causal: of [8, 8, tokens, 64] */
    {"attention-512-grad", ATTENTION, true, {512, 0}},
    {"attention-512-causal", ATTENTION, false, {512, 1}},
    {"attention-512-causal-grad", ATTENTION, true, {512, 1}},
    {"attention-2048", ATTENTION, false, {2048, 0}},
    {"attention-2048-causal-grad", ATTENTION, true, {2048, 1}},
    {"chain-1M", CHAIN, false, {1 << 20}},                /* elements */
    {"chain-16M", CHAIN, false, {1 << 24}},
    {"gelu-1M", GELU, false, {1 << 20}},
    {"gelu-16M", GELU, false, {1 << 24}},
    {"sum-16M", SUM, false, {1 << 24}},
    {"softmax", SOFTMAX, false, {4096, 1024}},            /* rows, columns */
    {"softmax-grad", SOFTMAX, true, {4096, 1024}},
    {"layer-norm", LAYER_NORM, false, {4096, 1024}},
    {"layer-norm-grad", LAYER_NORM, true, {4096, 1024}},
    /* ResNet-50, batch 8: channels, side, channels out, kernel, stride, padding */
    {"conv-7x7-s2-3-64", CONV, false, {3, 224, 64, 7, 2, 3}},
    {"conv-7x7-s2-3-64-grad", CONV, true, {3, 224, 64, 7, 2, 3}},
    {"conv-1x1-64-256", CONV, false, {64, 56, 256, 1, 1, 0}},
    {"conv-1x1-64-256-grad", CONV, true, {64, 56, 256, 1, 1, 0}},
    {"conv-3x3-128", CONV, false, {128, 28, 128, 3, 1, 1}},
    {"conv-3x3-128-grad", CONV, true, {128, 28, 128, 3, 1, 1}},
    {"conv-3x3-s2-256", CONV, false, {256, 28, 256, 3, 2, 1}},
    {"conv-3x3-s2-256-grad", CONV, true, {256, 28, 256, 3, 2, 1}},
    {"conv-1x1-1024-512", CONV, false, {1024, 14, 512, 1, 1, 0}},
    {"conv-1x1-1024-512-grad", CONV, true, {1024, 14, 512, 1, 1, 0}},
    {"conv-3x3-512", CONV, false, {512, 7, 512, 3, 1, 1}},
    {"conv-3x3-512-grad", CONV, true, {512, 7, 512, 3, 1, 1}},
    /* the same, then groups, and frames of a 3-d one: of MobileNetV2, ConvNeXt, ResNeXt-50, EfficientNet, ResNet3D */
    {"conv-depthwise-3x3-144", CONV, false, {144, 56, 144, 3, 1, 1, 144}},
    {"conv-depthwise-3x3-144-grad", CONV, true, {144, 56, 144, 3, 1, 1, 144}},
    {"conv-depthwise-3x3-s2-96", CONV, false, {96, 112, 96, 3, 2, 1, 96}},
    {"conv-depthwise-3x3-s2-96-grad", CONV, true, {96, 112, 96, 3, 2, 1, 96}},
    {"conv-depthwise-7x7-96", CONV, false, {96, 56, 96, 7, 1, 3, 96}},
    {"conv-depthwise-7x7-96-grad", CONV, true, {96, 56, 96, 7, 1, 3, 96}},
    {"conv-grouped-3x3-256", CONV, false, {256, 28, 256, 3, 1, 1, 32}},
    {"conv-grouped-3x3-256-grad", CONV, true, {256, 28, 256, 3, 1, 1, 32}},
    {"conv-grouped-3x3-512", CONV, false, {512, 14, 512, 3, 1, 1, 32}},
    {"conv-grouped-3x3-512-grad", CONV, true, {512, 14, 512, 3, 1, 1, 32}},
    {"conv-depthwise-5x5-s2-144-grad", CONV, true, {144, 56, 144, 5, 2, 2, 144}},
    {"conv-3x3x3-64", CONV, false, {64, 14, 64, 3, 1, 1, 1, 8}},
    {"conv-3x3x3-64-grad", CONV, true, {64, 14, 64, 3, 1, 1, 1, 8}},
    {"conv-3x3-128-bf16", CONV, false, {128, 28, 128, 3, 1, 1, 1, 0, 1}}, /* behind the frames: bf16 */
    {"matvec-4096", MATVEC, false, {4096, 0, 1}},         /* rows and columns; bf16; rows that are multiplied by it */
    {"matvec-4096-bf16", MATVEC, false, {4096, 1, 1}},
    {"matmul-1024-bf16", MATVEC, false, {1024, 1, 1024}},
    {"embedding-grad", EMBEDDING, true, {50000, 256, 4096}}, /* rows, columns, ids */
    {"ops-200", OPS, false, {200}},                       /* additions of 16 numbers, one behind the other */
};

struct peer_run {
    const struct peer_case *is;
    kl_device device;
    kl_tensor parameter[MAX_PARAMETERS], in[MAX_INPUTS];
    kl_tensor out[MAX_OUTPUTS];
    int parameters, inputs, outputs;
    kl_optimizer *optimizer;
    double rate;
    kl_step *frozen;
};

/* ---- numbers: a hash of the index (lowbias32, Christopher Wellons), so that all systems have the same ---- */

static uint32_t number24(uint32_t i, uint32_t seed)
{
    uint32_t x = i + seed * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (x ^ x >> 16) >> 8;
}

enum { SEED_INPUT = 1000 }; /* of input i: + i; of parameter i: i + 1 */

static int64_t elements_of(int rank, const int64_t *dims)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    return n;
}

/* Uniform numbers of this standard deviation and mean, f32. */
static kl_tensor floats_new(kl_device device, int rank, const int64_t *dims, uint32_t seed, double deviation,
                            double mean)
{
    int64_t n = elements_of(rank, dims);
    float *x = malloc((size_t)n * sizeof *x), scale = (float)(deviation * sqrt(12));
    for (int64_t i = 0; i < n; i++)
        x[i] = ((float)number24((uint32_t)i, seed) * 0x1p-24f - 0.5f) * scale + (float)mean;
    kl_tensor t = kl_input(device, KL_F32, rank, dims, x);
    free(x);
    return t;
}

static void input_new(struct peer_run *r, int rank, const int64_t *dims, double deviation)
{
    uint32_t seed = SEED_INPUT + (uint32_t)r->inputs;
    r->in[r->inputs++] = floats_new(r->device, rank, dims, seed, deviation, 0);
}

/* Integers below `bound`, i32. */
static void labels_new(struct peer_run *r, int rank, const int64_t *dims, int64_t bound)
{
    int64_t n = elements_of(rank, dims);
    int32_t *x = malloc((size_t)n * sizeof *x);
    uint32_t seed = SEED_INPUT + (uint32_t)r->inputs;
    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)(number24((uint32_t)i, seed) * bound >> 24);
    r->in[r->inputs++] = kl_input(r->device, KL_I32, rank, dims, x);
    free(x);
}

/* x in bf16, in its place. */
static bool to_bf16(kl_tensor *x)
{
    kl_trace_begin("to_bf16");
    kl_tensor half = kl_keep(kl_cast(*x, KL_BF16));
    bool ok = kl_trace_end() == KL_OK;
    kl_release(*x);
    *x = half;
    return ok;
}

/* ---- models: a training step ---- */

static void parameter_add(struct peer_run *r, double deviation, double mean, int rank, const int64_t *dims)
{
    r->parameter[r->parameters] = floats_new(r->device, rank, dims, (uint32_t)r->parameters + 1, deviation, mean);
    r->parameters++;
}
#define PARAMETER(deviation, mean, ...) \
    parameter_add(r, deviation, mean, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

static const int64_t mlp_widths[] = {784, 512, 512, 10};

static void mlp_params(struct peer_run *r)
{
    for (int i = 0; i < 3; i++) {
        PARAMETER(sqrt(2.0 / (double)mlp_widths[i]), 0, mlp_widths[i], mlp_widths[i + 1]);
        PARAMETER(0, 0, mlp_widths[i + 1]);
    }
}

static kl_tensor mlp_loss(const struct peer_run *r)
{
    kl_tensor x = r->in[0];
    for (int i = 0; i < 3; i++) {
        x = kl_linear(x, r->parameter[2 * i], r->parameter[2 * i + 1]);
        x = i < 2 ? kl_relu(x) : x;
    }
    return kl_cross_entropy(x, r->in[1]);
}

static void cnn_params(struct peer_run *r)
{
    PARAMETER(sqrt(2.0 / 9), 0, 32, 1, 3, 3);
    PARAMETER(0, 0, 32);
    PARAMETER(sqrt(2.0 / 288), 0, 64, 32, 3, 3);
    PARAMETER(0, 0, 64);
    PARAMETER(sqrt(2.0 / 3136), 0, 3136, 128);
    PARAMETER(0, 0, 128);
    PARAMETER(sqrt(2.0 / 128), 0, 128, 10);
    PARAMETER(0, 0, 10);
}

static kl_tensor cnn_loss(const struct peer_run *r)
{
    const int64_t one[] = {1, 1}, two[] = {2, 2};
    const kl_tensor *p = r->parameter;
    kl_tensor x = r->in[0];
    for (int i = 0; i < 2; i++)
        x = kl_max_pool(kl_relu(kl_conv(x, p[2 * i], p[2 * i + 1], NULL, one, one, NULL, 1)), 2, two, NULL, NULL, NULL,
                        NULL);
    x = kl_reshape(x, 2, (int64_t[]){r->is->size[0], 3136});
    return kl_cross_entropy(kl_linear(kl_relu(kl_linear(x, p[4], p[5])), p[6], p[7]), r->in[1]);
}

enum { G_LAYERS = 4, G_WIDTH = 256, G_HEADS = 8, G_TOKENS = 128, G_BATCH = 8, G_WORDS = 128 };

static void gpt_params(struct peer_run *r)
{
    const double s = 0.02;
    PARAMETER(s, 0, G_WORDS, G_WIDTH);
    PARAMETER(s, 0, G_TOKENS, G_WIDTH);
    for (int i = 0; i < G_LAYERS; i++) {
        PARAMETER(0, 1, G_WIDTH);
        PARAMETER(0, 0, G_WIDTH);
        PARAMETER(s, 0, G_WIDTH, 3 * G_WIDTH);
        PARAMETER(s, 0, G_WIDTH, G_WIDTH);
        PARAMETER(0, 1, G_WIDTH);
        PARAMETER(0, 0, G_WIDTH);
        PARAMETER(s, 0, G_WIDTH, 4 * G_WIDTH);
        PARAMETER(0, 0, 4 * G_WIDTH);
        PARAMETER(s, 0, 4 * G_WIDTH, G_WIDTH);
        PARAMETER(0, 0, G_WIDTH);
    }
    PARAMETER(0, 1, G_WIDTH);
    PARAMETER(0, 0, G_WIDTH);
    PARAMETER(s, 0, G_WIDTH, G_WORDS);
}

static kl_tensor gpt_heads(kl_tensor qkv, int which)
{
    kl_tensor x = kl_narrow(qkv, 2, which * G_WIDTH, G_WIDTH);
    return kl_transpose(kl_reshape(x, 4, (int64_t[]){G_BATCH, G_TOKENS, G_HEADS, G_WIDTH / G_HEADS}), 1, 2);
}

static kl_tensor gpt_loss(const struct peer_run *r)
{
    const kl_tensor *p = r->parameter, *q = p + 2;
    kl_tensor x = kl_add(kl_embedding(p[0], r->in[0]), p[1]);
    for (int i = 0; i < G_LAYERS; i++, q += 10) {
        kl_tensor qkv = kl_linear(kl_layer_norm(x, 1, q[0], q[1], 1e-5), q[2], kl_none);
        kl_tensor seen = kl_attention(gpt_heads(qkv, 0), gpt_heads(qkv, 1), gpt_heads(qkv, 2), kl_none, true);
        seen = kl_reshape(kl_transpose(seen, 1, 2), 3, (int64_t[]){G_BATCH, G_TOKENS, G_WIDTH});
        x = kl_add(x, kl_linear(seen, q[3], kl_none));
        kl_tensor hidden = kl_gelu(kl_linear(kl_layer_norm(x, 1, q[4], q[5], 1e-5), q[6], q[7]));
        x = kl_add(x, kl_linear(hidden, q[8], q[9]));
    }
    kl_tensor logits = kl_linear(kl_layer_norm(x, 1, q[0], q[1], 1e-5), q[2], kl_none);
    return kl_cross_entropy(kl_reshape(logits, 2, (int64_t[]){G_BATCH * G_TOKENS, G_WORDS}), r->in[1]);
}

static bool is_model(const struct peer_case *c) { return c->family <= GPT; }

/* ---- a case: its inputs, what it records, and running it ---- */

#define INPUT(deviation, ...) \
    input_new(r, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__}, deviation)

static int64_t conv_groups(const struct peer_case *c) { return c->size[6] ? c->size[6] : 1; }

static int64_t conv_side(const struct peer_case *c, int64_t side)
{
    return (side + 2 * c->size[5] - c->size[3]) / c->size[4] + 1;
}

/* frames: of three axes; 0: of two. */
static void conv_input(struct peer_run *r, double deviation, int64_t n, int64_t channels, int64_t frames, int64_t side)
{
    if (frames)
        INPUT(deviation, n, channels, frames, side, side);
    else
        INPUT(deviation, n, channels, side, side);
}

/* false: see kl_last_error. */
static bool peer_run_open(struct peer_run *r, kl_device device, const struct peer_case *c)
{
    const int64_t *n = c->size;
    *r = (struct peer_run){.is = c, .device = device, .rate = c->family == CNN || n[1] ? 1e-3 : 0.01};
    switch (c->family) {
    case MLP: mlp_params(r); INPUT(1, n[0], 784); break;
    case CNN: cnn_params(r); INPUT(1, n[0], 1, 28, 28); break;
    case GPT:
        gpt_params(r);
        labels_new(r, 2, (int64_t[]){G_BATCH, G_TOKENS}, G_WORDS);
        break;
    case ATTENTION: for (int i = 0; i < 3; i++) INPUT(1, 8, 8, n[0], 64); break;
    case CHAIN: for (int i = 0; i < 5; i++) INPUT(1, n[0]); break;
    case GELU: case SUM: INPUT(1, n[0]); break;
    case SOFTMAX: INPUT(1, n[0], n[1]); break;
    case LAYER_NORM: INPUT(1, n[0], n[1]); INPUT(1, n[1]); INPUT(1, n[1]); break;
    case CONV:
        conv_input(r, 1, 8, n[0], n[7], n[1]);
        conv_input(r, 0.05, n[2], n[0] / conv_groups(c), n[7] ? n[3] : 0, n[3]);
        break;
    case MATVEC: INPUT(1, n[2], n[0]); INPUT(0.02, n[0], n[0]); break;
    case EMBEDDING: INPUT(0.02, n[0], n[1]); break;
    case OPS: INPUT(1, 16); INPUT(1, 16); break;
    }
    bool half = (c->family == MATVEC && n[1]) || (c->family == CONV && n[8]);
    if (half && (!to_bf16(&r->in[0]) || !to_bf16(&r->in[1])))
        return false;
    if (is_model(c)) {
        bool gpt = c->family == GPT;
        labels_new(r, 1, (int64_t[]){gpt ? G_BATCH * G_TOKENS : n[0]}, gpt ? G_WORDS : 10);
        r->optimizer = n[1] ? kl_adam(r->parameters, r->parameter, NULL) : kl_sgd(r->parameters, r->parameter, NULL);
    } else if (c->family == EMBEDDING) {
        labels_new(r, 1, &n[2], n[0]);
        INPUT(1, n[2], n[1]);
    } else if (c->backward && c->family == CONV) {
        conv_input(r, 1, 8, n[2], n[7] ? conv_side(c, n[7]) : 0, conv_side(c, n[1]));
    } else if (c->backward && c->family == ATTENTION) {
        INPUT(1, 8, 8, n[0], 64);
    } else if (c->backward) {
        INPUT(1, n[0], n[1]);
    }
    return !*kl_last_error();
}

static void keep(struct peer_run *r, kl_tensor x) { r->out[r->outputs++] = kl_keep(x); }

/* The result and, of a backward case, the gradients of the first n inputs; the upstream gradient is the last input. */
static void keep_result(struct peer_run *r, kl_tensor y, int n)
{
    keep(r, y);
    for (int i = 0; r->is->backward && i < n; i++)
        keep(r, kl_grad(kl_mul(y, r->in[r->inputs - 1]), r->in[i]));
}

static void peer_record(struct peer_run *r)
{
    const int64_t *n = r->is->size;
    const kl_tensor *in = r->in;
    r->outputs = 0;
    switch (r->is->family) {
    case MLP: keep(r, mlp_loss(r)); break;
    case CNN: keep(r, cnn_loss(r)); break;
    case GPT: keep(r, gpt_loss(r)); break;
    case ATTENTION: keep_result(r, kl_attention(in[0], in[1], in[2], kl_none, n[1]), 3); break;
    case CHAIN: {
        kl_tensor x = kl_gelu(kl_add(kl_mul(in[0], in[1]), in[2]));
        keep(r, kl_add(kl_mul(x, in[3]), kl_tanh(in[4])));
        break;
    }
    case GELU: keep(r, kl_mul(in[0], kl_gelu(in[0]))); break;
    case SUM: keep(r, kl_sum_all(in[0])); break;
    case SOFTMAX: keep_result(r, kl_softmax(in[0], -1), 1); break;
    case LAYER_NORM: keep_result(r, kl_layer_norm(in[0], 1, in[1], in[2], 1e-5), 3); break;
    case CONV: {
        const int64_t stride[] = {n[4], n[4], n[4]}, pad[] = {n[5], n[5], n[5]};
        keep_result(r, kl_conv(in[0], in[1], kl_none, stride, pad, pad, NULL, (int)conv_groups(r->is)), 2);
        break;
    }
    case MATVEC: keep(r, kl_matmul(in[0], in[1])); break;
    case EMBEDDING: keep_result(r, kl_embedding(in[0], in[1]), 1); break;
    case OPS: {
        kl_tensor y = in[0];
        for (int64_t i = 0; i < n[0]; i++)
            y = kl_add(y, in[1]);
        keep(r, y);
        break;
    }
    }
    if (r->optimizer)
        kl_optimizer_step(r->optimizer, r->out[0], r->rate);
}

static inline void peer_release_outputs(struct peer_run *r)
{
    for (int i = 0; i < r->outputs; i++)
        kl_release(r->out[i]);
}

/* Records and runs once, to the end; the outputs are the caller's.  false: see kl_last_error. */
static inline bool peer_run_traced(struct peer_run *r)
{
    kl_trace_begin(r->is->name);
    peer_record(r);
    return kl_trace_end() == KL_OK && kl_sync(r->device) == KL_OK;
}

/* The same without recording. */
static inline bool peer_run_frozen(struct peer_run *r)
{
    kl_slot slot[KL_OPTIMIZER_SLOTS];
    if (!r->frozen) {
        kl_trace_begin(r->is->name);
        peer_record(r);
        r->frozen = kl_trace_end_step(0, NULL);
        if (!r->frozen)
            return false;
        if (r->optimizer)
            kl_optimizer_set_steps(r->optimizer, kl_optimizer_steps(r->optimizer) - 1);
    }
    int slots = r->optimizer ? kl_optimizer_slots(r->optimizer, r->rate, slot) : 0;
    return kl_step_run(r->frozen, 0, NULL, slots, slot, r->outputs, r->out) == KL_OK && kl_sync(r->device) == KL_OK;
}

static void peer_run_close(struct peer_run *r)
{
    kl_step_free(r->frozen);
    kl_optimizer_free(r->optimizer);
    for (int i = 0; i < r->parameters; i++)
        kl_release(r->parameter[i]);
    for (int i = 0; i < r->inputs; i++)
        kl_release(r->in[i]);
}

#endif
