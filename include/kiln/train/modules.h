/* Modules: layers with parameters, as plain structs of handles.  Each has an init function, which makes its parameters
 * in a tree under a prefix, and a forward function, which records ordinary ops.  Included by <kiln/train.h>.
 *
 *     kl_params *params = kl_params_new(dev, KL_F32, 42);
 *     kl_nn_linear fc1, fc2;
 *     kl_nn_linear_init(&fc1, params, "fc1", 784, 512, true);      // fc1.weight [784, 512], fc1.bias [512]
 *     kl_nn_linear_init(&fc2, params, "fc2", 512, 10, true);
 *     ... in each trace:
 *     kl_tensor logits = kl_nn_linear_forward(&fc2, kl_relu(kl_nn_linear_forward(&fc1, x)));
 *
 * The tree owns the handles: a module is freed with it.  A prefix "" gives names without a prefix. kl_params_reset
 * (<kiln/train/params.h>) sets other initial values than those stated here.  An init function fails with the errors of
 * kl_params_make, and ARGUMENT for an invalid number; the module must then not be used, and the parameters that it has
 * made stay in the tree.  A forward function fails with the errors of the ops, and returns poison.  It is a
 * scope of names (kl_name_begin): errors, dumps and profiles say "fc2: linear: ...". */
#ifndef KILN_MODULES_H
#define KILN_MODULES_H
#include <kiln/train/params.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- linear: x [..., in] -> x weight + bias [..., out] ---- */

typedef struct kl_nn_linear {
    kl_tensor weight, bias; /* weight [in, out], uniform in +- 1 / sqrt(in); bias [out], zeros, or kl_none */
} kl_nn_linear;
KL_API_AT kl_status kl_nn_linear_init(kl_nn_linear *m, kl_params *params, const char *prefix, int64_t in, int64_t out,
                                      bool bias);
KL_API_AT kl_tensor kl_nn_linear_forward(const kl_nn_linear *m, kl_tensor x);

/* ---- embedding: ids, integers [...] -> rows [..., width] ---- */

typedef struct kl_nn_embedding {
    kl_tensor weight; /* [rows, width], normal with std 0.02 */
} kl_nn_embedding;
KL_API_AT kl_status kl_nn_embedding_init(kl_nn_embedding *m, kl_params *params, const char *prefix, int64_t rows,
                                         int64_t width);
KL_API_AT kl_tensor kl_nn_embedding_forward(const kl_nn_embedding *m, kl_tensor ids);

/* ---- convolution: x [N, in, L..] -> [N, out, O..], as kl_conv ---- */

typedef struct kl_nn_conv_options {
    int64_t in, out;
    int axes;                                    /* 1 to 3 */
    int64_t kernel[3], stride[3], dilation[3];   /* stride and dilation 0: 1 */
    int64_t padding[3];                          /* zeros added at both ends of each axis */
    int groups;                                  /* 0: 1 */
    bool no_bias;
} kl_nn_conv_options;
typedef struct kl_nn_conv {
    kl_tensor weight, bias; /* weight [out, in / groups, kernel..], uniform with Kaiming's bound for ReLU; bias
                               [out], zeros, or kl_none */
    kl_nn_conv_options is;
} kl_nn_conv;
KL_API_AT kl_status kl_nn_conv_init(kl_nn_conv *m, kl_params *params, const char *prefix,
                                    const kl_nn_conv_options *options);
KL_API_AT kl_tensor kl_nn_conv_forward(const kl_nn_conv *m, kl_tensor x);

/* ---- normalisation: weight ones, bias zeros; eps 1e-5 unless changed after init ---- */

typedef enum kl_nn_norm_kind { KL_NN_LAYER_NORM, KL_NN_RMS_NORM, KL_NN_BATCH_NORM, KL_NN_GROUP_NORM } kl_nn_norm_kind;
typedef struct kl_nn_norm {
    kl_nn_norm_kind kind;
    kl_tensor weight, bias; /* [width]; RMS norm has no bias */
    kl_tensor mean, var;    /* batch norm's running statistics: buffers [width], initially zeros and ones */
    int groups;
    double eps, momentum;   /* momentum of the running statistics: 0.1 */
} kl_nn_norm;
/* Layer norm and RMS norm normalise over the last axis, whose length is width.  Batch norm and group norm take x [N,
 * channels, ...]. */
KL_API_AT kl_status kl_nn_layer_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t width);
KL_API_AT kl_status kl_nn_rms_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t width);
KL_API_AT kl_status kl_nn_batch_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t channels);
KL_API_AT kl_status kl_nn_group_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t channels,
                                          int groups);
/* training true: batch norm normalises by the batch's statistics and assigns its running statistics, which needs an
 * open trace.  training false: it normalises by the running statistics. */
KL_API_AT kl_tensor kl_nn_norm_forward(const kl_nn_norm *m, kl_tensor x, bool training);

/* ---- dropout: kl_dropout_seeded with number `which` folded into the seed; x itself where the seed is kl_none ---- */

KL_API_AT kl_tensor kl_nn_dropout(kl_tensor x, double p, kl_tensor seed, int64_t which);

/* ---- positions ---- */

/* The keys and values that a decoder has computed, so that a step computes those of new tokens only.  For each layer
 * there are arrays of [batch, kv_heads, length, head_width], of which the first `used` positions are valid.
 *
 *     kl_nn_cache_init(&cache, dev, KL_F32, layers, batch, kv_heads, length, head_width);
 *     ... in each trace: blocks with this cache, then kl_nn_cache_advance(&cache, n);
 *
 * All steps with the same number of new tokens use one compiled program, at any position. */
typedef struct kl_nn_cache {
    int layers;
    int64_t length, at;  /* at: the number of used positions as the host has counted it; each advance by n adds n */
    kl_tensor used;      /* i32 [], a state */
    kl_tensor *k, *v;    /* one tensor for each layer */
} kl_nn_cache;
/* [errors ARGUMENT, DEVICE, TYPE, MEMORY] */
KL_API_AT kl_status kl_nn_cache_init(kl_nn_cache *cache, kl_device device, kl_dtype dtype, int layers, int64_t batch,
                                     int64_t kv_heads, int64_t length, int64_t head_width);
/* Records that n more positions are used.  Call it after all layers have stored their keys and values.  A trace that
 * fails does not change the cache on the device; the caller must then set `at` back.  [errors TRACE; ARGUMENT: more
 * positions than the cache's length] */
KL_API_AT kl_status kl_nn_cache_advance(kl_nn_cache *cache, int64_t n);
/* Sets the number of used positions to 0, inside or outside of a trace. */
KL_API_AT kl_status kl_nn_cache_reset(kl_nn_cache *cache);
KL_API void kl_nn_cache_deinit(kl_nn_cache *cache); /* NULL is allowed */

/* Returns i32 [n]: the positions of n tokens.  They start from 0, or with a cache from its number of used positions. */
KL_API_AT kl_tensor kl_nn_positions(kl_device device, int64_t n, const kl_nn_cache *cache);
/* x: [..., L, D], D even, positions: integers [L] -> x with its pairs of elements rotated by position * base^(-2i/D), i
 * = 0 .. D/2 - 1 (rotary embedding, Su et al. 2021).  Pairs are (i, i + D/2), or interleaved (2i, 2i + 1).  With
 * positions [B, L] and x [B, ..., L, D] each row has its own.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nn_rotary(kl_tensor x, kl_tensor positions, double base, bool interleaved);
typedef struct kl_nn_rotary_options {
    double base;       /* 0: 10000 */
    bool interleaved;
    /* floats [D/2]: divisors of the angles (Llama 3.1's scaling and YaRN's, "rope_freqs.weight"); kl_none: 1 */
    kl_tensor factors;
} kl_nn_rotary_options;
/* kl_nn_rotary with all its options; NULL: all zero.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nn_rotary_with(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *options);

/* ---- attention: x [batch, L, width] -> [batch, L, width] ---- */

typedef struct kl_nn_attention_options {
    int64_t width;      /* heads * head_width */
    int heads, kv_heads; /* kv_heads 0: heads; a smaller number: each group of heads / kv_heads neighbouring heads
                            shares one */
    bool bias, causal;
    double rotary_base; /* 0: the module does not use positions (a model may add learned ones to x) */
} kl_nn_attention_options;
typedef struct kl_nn_attention {
    kl_nn_linear qkv, out; /* prefix.qkv: width -> queries, keys and values, concatenated in this order; prefix.out */
    kl_nn_attention_options is;
} kl_nn_attention;
KL_API_AT kl_status kl_nn_attention_init(kl_nn_attention *m, kl_params *params, const char *prefix,
                                         const kl_nn_attention_options *options);
/* mask: as in kl_attention, or kl_none.  cache (NULL: none): the keys and values of layer `layer` are stored in it.
 * Each new token then attends to all earlier tokens and itself, and mask must be kl_none.  [errors ARGUMENT, SHAPE;
 * TRACE: a cache outside of a trace] */
KL_API_AT kl_tensor kl_nn_attention_forward(const kl_nn_attention *m, kl_tensor x, kl_tensor mask, kl_nn_cache *cache,
                                            int layer);

/* ---- transformer block: x += attention(norm1(x)); x += mlp(norm2(x)) ---- */

typedef enum kl_nn_mlp { KL_NN_GELU, KL_NN_RELU, KL_NN_SWIGLU } kl_nn_mlp;
typedef struct kl_nn_block_options {
    kl_nn_attention_options attention;
    int64_t hidden;       /* 0: 4 * width */
    bool rms_norm;        /* true: RMS norm; false: layer norm */
    kl_nn_mlp mlp;        /* GELU, ReLU: down(act(up(x))); SwiGLU: down(silu(a) * b), where a and b are the halves of
                             up(x) */
    double dropout;       /* probability, applied to the outputs of attention and of the mlp */
} kl_nn_block_options;
typedef struct kl_nn_block {
    kl_nn_norm norm1, norm2;
    kl_nn_attention attention;
    kl_nn_linear up, down; /* prefix.mlp.up, prefix.mlp.down; they have biases if attention.bias is set */
    kl_nn_block_options is;
} kl_nn_block;
KL_API_AT kl_status kl_nn_block_init(kl_nn_block *m, kl_params *params, const char *prefix,
                                     const kl_nn_block_options *options);
/* seed: u64 [], the seed of dropout in training, which each block combines with its layer's number; kl_none: no
 * dropout. */
KL_API_AT kl_tensor kl_nn_block_forward(const kl_nn_block *m, kl_tensor x, kl_tensor mask, kl_nn_cache *cache,
                                        int layer, kl_tensor seed);

/* ---- recurrent layers, by kl_scan: x [T, N, in] -> [T, N, width] ---- */

/* Weights are uniform in +- 1 / sqrt(width), biases zeros.
 * LSTM, gates i f g o:  c = sigmoid(f) c + sigmoid(i) tanh(g),  h = sigmoid(o) tanh(c)
 * GRU, gates r z n:     n = tanh(nx + sigmoid(r) nh),  h = (1 - sigmoid(z)) n + sigmoid(z) h
 * with gates x x_weight + x_bias + h h_weight + h_bias, of n the two parts nx and nh. */
typedef struct kl_nn_recurrent {
    kl_tensor x_weight, h_weight, x_bias, h_bias; /* [in, 4 width], [width, 4 width], [4 width] twice; GRU: 3 */
    int64_t width;
    bool lstm;
} kl_nn_recurrent;
KL_API_AT kl_status kl_nn_lstm_init(kl_nn_recurrent *m, kl_params *params, const char *prefix, int64_t in,
                                    int64_t width);
KL_API_AT kl_status kl_nn_gru_init(kl_nn_recurrent *m, kl_params *params, const char *prefix, int64_t in,
                                   int64_t width);
/* h, c: pointers to the states [N, width] before the first step, which are replaced by the states after the last
 * step.  A handle that is kl_none stands for zeros.  Only an LSTM uses c.  A pointer that is NULL: the state starts
 * as zeros, and the last state is not returned.  The caller still owns the handles that were replaced. */
KL_API_AT kl_tensor kl_nn_recurrent_forward(const kl_nn_recurrent *m, kl_tensor x, kl_tensor *h, kl_tensor *c);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/train/modules.h> /* made from the prototypes marked KL_API_AT */
#endif
