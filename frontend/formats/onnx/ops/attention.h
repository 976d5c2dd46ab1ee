/* Attention as several operators have it, and rotary embedding (ops_transformer.c). */
#ifndef KILN_ONNX_ATTENTION_H
#define KILN_ONNX_ATTENTION_H
#include "frontend/formats/onnx/onnx.h"

struct attention_node {
    kl_tensor q, k, v;                /* [B, H, L, D], [B, G, M, D], [B, G, M, E]; past keys and values included */
    int64_t past;                     /* keys before the first row; may be symbolic */
    kl_tensor valid;                  /* i64 [B]: keys that are no padding, the rows being the last; or kl_none */
    kl_tensor start;                  /* i64 [B]: keys before the first row, in place of `past`; or kl_none */
    kl_tensor mask;                   /* bool, floats of q's dtype: broadcast to [B, H, L, M]; or kl_none */
    int64_t left, right;              /* keys that a row sees beside its own; -1: all */
    bool causal;
    double scale, softcap;            /* of scores; softcap 0: none */
    int score_result;                 /* the scores to give: 0 products, 1 capped, 2 masked, 3 weights; -1: none */
};
/* Y [B, H, L, E] of q's dtype, and *scores where they are asked for; kl_none or poison: reported. */
kl_tensor onnx_attention_of(struct node *n, const struct attention_node *a, kl_tensor *scores);
/* [B, L, heads D] as [B, heads, L, D]; kl_none: reported. */
kl_tensor onnx_heads_split(struct node *n, kl_tensor a, int64_t heads);
/* [B, heads, L, D] as [B, L, heads D]. */
kl_tensor onnx_heads_join(kl_tensor a);
/* x: [.., D], whose first `rotated` numbers are pairs (i, i + rotated / 2), or interleaved (2i, 2i + 1), rotated by
 * angles whose cosines and sines broadcast to [.., rotated / 2]. */
kl_tensor onnx_rotate(kl_tensor x, kl_tensor cosine, kl_tensor sine, int64_t rotated, bool interleaved);

#endif
