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

/* The keys and values that a decoder has computed, so that a step computes those of new tokens only.  Each row of the
 * batch has as many as it has: rows may begin, go on and end independently of one another (continuous batching).
 *
 *     kl_nn_cache_init(&cache, dev, KL_F32, layers, batch, kv_heads, length, head_width);
 *     ... in each trace: blocks with this cache, then kl_nn_cache_advance(&cache, n);
 *
 * All steps with the same number of new tokens use one compiled program, at any positions.  Only what is new is stored;
 * what a row has no room for is not stored, and no other position changes. */
typedef struct kl_nn_cache_options {
    /* Keys and values as integers of 8 bits with a scale (f16) for each 32 adjacent elements of a head, which are
     * quantized when they are stored: |x| at most 127 scale.  head_width has to be a multiple of 32. */
    bool q8_0;
} kl_nn_cache_options;
typedef struct kl_nn_cache {
    int layers;
    int64_t batch, kv_heads, length, head_width;
    kl_dtype dtype;
    kl_nn_cache_options is;
    int64_t *at;           /* [batch]: used positions of each row as the host has counted them (kl_nn_cache_count) */
    kl_tensor used;        /* i32 [batch], a state: the same, as traces and steps count */
    kl_tensor rows, counts; /* what kl_nn_cache_select has chosen */
    /* One for each layer: [batch, kv_heads, more than length, head_width].  Of row b the first used[b] positions are
     * valid, those from length on never are.  q8_0: i8, with scales [batch, kv_heads, .., head_width / 32]; else the
     * scales are NULL. */
    kl_tensor *k, *v, *k_scale, *v_scale;
} kl_nn_cache;
/* dtype: of what is stored; attention rounds to it.  [errors ARGUMENT, DEVICE, TYPE, MEMORY] */
KL_API_AT kl_status kl_nn_cache_init(kl_nn_cache *cache, kl_device device, kl_dtype dtype, int layers, int64_t batch,
                                     int64_t kv_heads, int64_t length, int64_t head_width);
/* The same with all options, of which NULL has none.  With q8_0 dtype is ignored. */
KL_API_AT kl_status kl_nn_cache_init_with(kl_nn_cache *cache, kl_device device, kl_dtype dtype, int layers,
                                          int64_t batch, int64_t kv_heads, int64_t length, int64_t head_width,
                                          const kl_nn_cache_options *options);
KL_API void kl_nn_cache_deinit(kl_nn_cache *cache); /* NULL is allowed */

/* What the trace does from here to kl_nn_cache_advance.  rows, i32 [n], each at most once: the batch of x has n rows,
 * which are these of the cache; kl_none: x has all rows.  counts, i32 [n]: of row i of x only the first counts[i] new
 * tokens are stored and counted, none with 0; the results of the others mean nothing.  kl_none: all of them.  As inputs
 * of a frozen step they let one program serve any rows.  The handles stay the caller's.  [errors TRACE; SHAPE; TYPE] */
KL_API_AT kl_status kl_nn_cache_select(kl_nn_cache *cache, kl_tensor rows, kl_tensor counts);
/* Records that n more positions are used, of each row or of those selected, and ends the selection.  Call it after all
 * layers have stored their keys and values.  Without a selection the host counts, too: at[b] += n.  A trace that fails
 * does not change the cache on the device; the caller then sets `at` back.  [errors TRACE; ARGUMENT: a row has no room
 * for n positions] */
KL_API_AT kl_status kl_nn_cache_advance(kl_nn_cache *cache, int64_t n);
/* The host counts what a frozen step, or a trace with a selection, stores: at[rows[i]] += counts[i], i = 0 .. n - 1.
 * rows NULL: row i.  Call it before the step runs, and set `at` back if the step fails.  [errors ARGUMENT: no such row,
 * or one without so much room, which the message names; nothing is counted then] */
KL_API_AT kl_status kl_nn_cache_count(kl_nn_cache *cache, int64_t n, const int64_t *rows, const int64_t *counts);
/* Row `row` has its first n positions only, as before a rejected draft or an edited text; 0: the row is free for
 * another sequence.  Inside or outside of a trace.  [errors ARGUMENT: no such row, or at[row] is less than n] */
KL_API_AT kl_status kl_nn_cache_truncate(kl_nn_cache *cache, int64_t row, int64_t n);
/* Sets the number of used positions of all rows to 0, inside or outside of a trace. */
KL_API_AT kl_status kl_nn_cache_reset(kl_nn_cache *cache);

/* Writes the first at[row] positions of a row to a file, with the n tokens they belong to (or more, or none), as
 * kl_file_write does: safetensors, with the cache's shape, type and a check sum.  model: a number of the model's, as a
 * hash of its file's name or contents, which is compared when the row is loaded.  [errors as kl_file_write; ARGUMENT]
 */
KL_API_AT kl_status kl_nn_cache_save(const kl_nn_cache *cache, int64_t row, const char *path, uint64_t model,
                                     int64_t n, const int32_t *tokens);
/* Reads such a file into a row of a cache of the same layers, heads, width and type, whose length may be another, and
 * sets at[row].  Its tokens: up to `room` are written to tokens, their number to *n.  The row changes as a whole or,
 * after an error, not at all.  Outside of a trace.  [errors as kl_file_open; IO: another model's file, or one with
 * other contents: the message names the file, and the byte or the field; ARGUMENT: no such row, too little room; TRACE]
 */
KL_API_AT kl_status kl_nn_cache_load(kl_nn_cache *cache, int64_t row, const char *path, uint64_t model, int64_t room,
                                     int32_t *tokens, int64_t *n);

/* The positions of n new tokens: i32 [n], from 0 on; with a cache [rows, n], of each row from its used positions on. */
KL_API_AT kl_tensor kl_nn_positions(kl_device device, int64_t n, const kl_nn_cache *cache);
/* x: [..., L, D], D even, positions: integers [L] -> x with its pairs of elements rotated by position * base^(-2i/D), i
 * = 0 .. D/2 - 1 (rotary embedding, Su et al. 2021).  Pairs are (i, i + D/2), or interleaved (2i, 2i + 1).  With
 * positions [B, L] and x [B, ..., L, D] each row has its own.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nn_rotary(kl_tensor x, kl_tensor positions, double base, bool interleaved);
typedef struct kl_nn_rotary_options {
    double base;       /* 0: 10000 */
    bool interleaved;
    /* floats [D/2]: divisors of the angles (kl_nn_rotary_divisors, GGUF's "rope_freqs.weight"); kl_none: 1 */
    kl_tensor factors;
    double attention_factor; /* the result is multiplied by it (YaRN's); 0: 1 */
} kl_nn_rotary_options;
/* kl_nn_rotary with all its options; NULL: all zero.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nn_rotary_with(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *options);

/* How models that were trained on `original` positions take more.  LINEAR divides all angles by factor.  LLAMA3 divides
 * those of pairs that turn at most `low` times in the original positions, none of those that turn `high` times or more,
 * and in between in part.  YARN (Peng et al. 2023) the same, with a ramp over the pairs from the one that turns
 * `fast` times to the one that turns `slow` times, and a factor for attention. */
typedef enum kl_nn_rotary_kind { KL_NN_ROTARY_LINEAR, KL_NN_ROTARY_LLAMA3, KL_NN_ROTARY_YARN } kl_nn_rotary_kind;
typedef struct kl_nn_rotary_scaling {
    kl_nn_rotary_kind kind;
    double base;               /* 0: 10000 */
    double factor;             /* 0: 1 */
    double original;           /* positions; LLAMA3, YARN: has to be set */
    double low, high;          /* LLAMA3; 0: 1 and 4 */
    double fast, slow;         /* YARN; 0: 32 and 1 */
    double attention_factor;   /* YARN; 0: 1 + ln(factor) / 10, for a factor above 1 */
} kl_nn_rotary_scaling;
/* Divisors of the angles of heads of `width` rotated elements, for kl_nn_rotary_options: width / 2 floats in the
 * caller's array.  *attention_factor: 1 but for YARN; NULL is allowed.  [errors ARGUMENT: an odd width, a number that
 * is negative or not finite] */
KL_API_AT kl_status kl_nn_rotary_divisors(int64_t width, const kl_nn_rotary_scaling *scaling, float *divisors,
                                          double *attention_factor);

/* ---- attention: x [batch, L, width] -> [batch, L, width] ---- */

typedef struct kl_nn_attention_options {
    int64_t width;      /* heads * head_width */
    int heads, kv_heads; /* kv_heads 0: heads; a smaller number: each group of heads / kv_heads neighbouring heads
                            shares one */
    bool bias, causal;
    double rotary_base; /* 0: the module does not use positions (a model may add learned ones to x) */
    int64_t window;     /* a token attends to so many tokens, itself and those before it (causal); 0: to all */
} kl_nn_attention_options;
typedef struct kl_nn_attention {
    kl_nn_linear qkv, out; /* prefix.qkv: width -> queries, keys and values, concatenated in this order; prefix.out */
    kl_nn_attention_options is;
} kl_nn_attention;
KL_API_AT kl_status kl_nn_attention_init(kl_nn_attention *m, kl_params *params, const char *prefix,
                                         const kl_nn_attention_options *options);
/* mask: as in kl_attention, or kl_none.  cache (NULL: none): the keys and values of layer `layer` are stored in it.
 * Each new token then attends to earlier tokens of its row and itself; with a cache or a window mask must be kl_none.
 * [errors ARGUMENT, SHAPE; TRACE: a cache outside of a trace] */
KL_API_AT kl_tensor kl_nn_attention_forward(const kl_nn_attention *m, kl_tensor x, kl_tensor mask, kl_nn_cache *cache,
                                            int layer);

typedef struct kl_nn_causal_options {
    double scale;              /* of the scores; 0: 1 / sqrt(D) */
    int64_t window;            /* a token attends to so many tokens, itself and those before it; 0: to all */
    double cap;                /* scores become cap tanh(score / cap), and are stored; 0: they do not */
} kl_nn_causal_options;
/* The attention of decoders with projections of their own: q [B, H, L, D], k and v [B, G, L, D], H a multiple of G
 * (each head of k and v serves H / G adjacent heads of q) -> [B, H, L, D].  A token attends to itself and the tokens of
 * its row before it: those of k, and with a cache (NULL: none), in whose layer `layer` k and v are stored, those that
 * the row has there.  Rotate q and k before, at kl_nn_positions(.., cache).  options NULL: all zero.  [SHAPE, TYPE,
 * ARGUMENT; TRACE: a cache outside of a trace] */
KL_API_AT kl_tensor kl_nn_causal_attention(kl_tensor q, kl_tensor k, kl_tensor v, kl_nn_cache *cache, int layer,
                                           const kl_nn_causal_options *options);

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
