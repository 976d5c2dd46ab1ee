/* Decoder-only language models: the architectures llama, mistral, qwen2, qwen3, gemma2 and gemma3, from a GGUF file, or
 * from a folder with config.json and *.safetensors.  Weights stay as they are stored.
 *
 *     struct llm m;
 *     if (!llm_open(&m, device, "model.gguf", true)) return 1;     // what failed is on stderr
 *     kl_nn_cache cache;
 *     llm_cache_init(&cache, &m, 1, 512, NULL);
 *     ... in a trace: logits = llm_logits(&m, llm_hidden(&m, ids, &cache));
 *     kl_nn_cache_deinit(&cache);
 *     llm_close(&m);
 *
 * It is written with public functions of Kiln only; chat.c and fine_tune.c show how it is used. */
#ifndef EXAMPLES_LLM_H
#define EXAMPLES_LLM_H
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdbool.h>

/* A weight [out, in] as the file has it: a tensor of floats or of quantized blocks; with an optional bias [out], and an
 * optional pair of low rank (LoRA, Hu et al. 2021): y = x weight^T + bias + (x down) up. */
struct llm_linear {
    kl_tensor weight, bias;
    kl_tensor down, up; /* [in, rank] and [rank, out], owned by a tree of parameters (llm_adapt); or kl_none */
};

struct llm_layer {
    kl_tensor norm1, norm2;           /* RMS norms before attention and before the mlp */
    kl_tensor after1, after2;         /* Gemma's after them; else kl_none */
    kl_tensor q_norm, k_norm;         /* of each head's queries and keys; else kl_none */
    struct llm_linear q, k, v, out;
    struct llm_linear gate, up, down; /* mlp: down(act(gate(x)) * up(x)) */
    double rotary_base;               /* angle = position * base^(-2i/D) / m->frequencies[i] */
    bool unscaled;                    /* angles are not divided (gemma3's layers with a window) */
    int64_t window;                   /* tokens that a token attends to, with itself; 0: all */
};

struct llm {
    kl_device device;
    kl_file **file;
    int files;
    char *config;                     /* the text of config.json; NULL: a GGUF file */
    char architecture[16];
    int64_t layers, width, heads, kv_heads, head_width, hidden, vocabulary, context;
    int64_t rotated;                  /* elements of a head that positions rotate */
    double eps;
    double embedding_scale;           /* factor of embeddings; 1 where there is none */
    double score_scale;               /* of q k^T */
    double score_cap, logit_cap;      /* x -> cap tanh(x / cap); 0: none */
    bool interleaved;                 /* positions rotate the pairs (2i, 2i + 1), else (i, i + D/2) */
    bool bytes;                       /* products with weights of blocks take activations rounded to 8 bits in blocks of
                                         32 */
    bool gelu;                        /* the mlp's act is gelu, else silu */
    bool norms_from_zero;             /* files have the norms' weights minus 1 */
    int local_of;                     /* of so many layers all but the last attend to a window; 0: all of them do */
    int64_t window;
    kl_tensor embedding;              /* [vocabulary, width] */
    kl_tensor frequencies;            /* [D/2], divisors of the rotary angles (linear, Llama 3.1, YaRN), or kl_none */
    double rotary_factor;             /* rotated elements are multiplied by it (YaRN); 0: 1 */
    kl_tensor norm;
    struct llm_linear head;           /* its weight may be the embedding's */
    struct llm_layer *layer;
};

/* Opens a model.  The tensors map the file, which must not change while it is open.  bytes: products with weights of
 * blocks take activations rounded to 8 bits in blocks of 32, as llama.cpp does, which is several times as fast; the
 * weights are stored for that.  false: it failed; the reason is on stderr, and m is closed. */
bool llm_open(struct llm *m, kl_device device, const char *path, bool bytes);
void llm_close(struct llm *m); /* of zeros, too */
/* A number that says which model it is: of its tensors' names, types and sizes, and some of its elements. */
uint64_t llm_hash(const struct llm *m);

/* Makes a cache (<kiln/train/modules.h>) for `rows` sequences of up to `length` tokens.  type: "f32" (also NULL), "f16"
 * or "q8_0".  The reason of a failure is on stderr. */
bool llm_cache_init(kl_nn_cache *cache, const struct llm *m, int64_t rows, int64_t length, const char *type);

/* Records the layers: ids, i32 [B, L] -> [B, L, width].  cache NULL: the sequences begin here.  Else the tokens go
 * behind those that the cache's rows, or the selected ones (kl_nn_cache_select), have, and the rows advance. */
kl_tensor llm_hidden(const struct llm *m, kl_tensor ids, kl_nn_cache *cache);
/* [..., width] -> [..., vocabulary], f32 */
kl_tensor llm_logits(const struct llm *m, kl_tensor hidden);

/* Gives all products of the layers a pair of low rank, and returns the tree of them: "blk.0.attn_q.down" and so on.
 * down is random and up is zeros, so that at first the model computes what it did.  The tree is freed after the model
 * is closed.  NULL: it failed, the reason is on stderr. */
kl_params *llm_adapt(struct llm *m, int64_t rank, uint64_t seed);

/* Adapters in a safetensors file; reading makes them, as llm_adapt does.  The reason of a failure is on stderr. */
bool llm_write_adapters(const kl_params *params, const char *path);
kl_params *llm_read_adapters(struct llm *m, const char *path);

/* Trains adapters of a model on a file of text with Adam, its weights as they are stored; shows the loss.  write: the
 * file of the adapters, or NULL. */
struct llm_tune_options { double steps, length, rank, rate, seed; const char *write; };
bool llm_tune(const char *model, const char *text, const struct llm_tune_options *options);

/* Says on stderr what failed and why, and returns false. */
bool llm_fail(const char *what, const char *why);
#endif
