/* What the tests of GPU sources share: sets of kernels, each different one once. */
#ifndef GPU_KERNELS_H
#define GPU_KERNELS_H
#include "tests/support/harness.h"

struct kernel_set {
    struct kernel **v;
    uint32_t n, cap;
    struct hash128 *hash;
    uint32_t *slot, size;         /* by hash: number + 1 */
};
void gpu_kernels_add(struct kernel_set *s, const struct kernel *k); /* a copy, by its text */
void gpu_kernels_graph(struct kernel_set *s, const struct graph *g); /* of a graph, fused and one by one */
/* of its .kir and .loop files, fused and one by one */
void gpu_kernels_folder(struct kernel_set *s, const char *folder);
void gpu_kernels_ops(struct kernel_set *s);                         /* of every op on every dtype, and every cast */
void gpu_kernels_random(struct kernel_set *s, uint64_t graphs, uint64_t seed); /* of random graphs */
/* Of a target's products by matrix units, and of every attention_step-th attention. */
void gpu_kernels_matrix(struct kernel_set *s, const struct caps *caps, unsigned attention_step);
/* Attention of 2 matrices; seen: 0: of all keys, 1: with a mask, 2: with ranges; gradient: both gradients, instead of
 * attention and its statistics; wild: the test's data are not all finite; heads: rows of the matrices alternate in
 * memory, as those of heads do. */
struct gpu_attention { unsigned dtype; int64_t l, m, d, e; bool causal; int seen; bool gradient, wild, heads; };
extern const struct gpu_attention gpu_attentions[];
extern const unsigned gpu_attention_count;
struct graph *gpu_attention_graph(const struct gpu_attention *c);
/* [m, n] = a b; TRANSPOSED: of transposed operands, in 2 matrices; COMPUTED: of operands that are computed as they are
 * read; EPILOGUE: as PLAIN, and the caller computes something from it. */
enum gpu_what { PLAIN, TRANSPOSED, COMPUTED, EPILOGUE, WHATS };
ref gpu_product(struct graph *g, unsigned dtype, int64_t m, int64_t n, int64_t k, enum gpu_what what);
/* Products whose results and operands are intermediates with rows of 331 elements, as the logits of an odd vocabulary
 * and their gradient are: e = exp(x w^T - its rows' maxima), e b and e^T x. */
struct graph *gpu_odd_rows(unsigned dtype);
/* A convolution of images [N, C, H, W], or [N, H, W, C] if `last`, with windows of [kh, kw]; of: its result, or the
 * gradient of the images or of the weights. */
struct gpu_convolution {
    unsigned dtype;
    int64_t n, c, h, w, f, kh, kw, stride, pad, dilation, groups;
    enum { OF_RESULT, OF_IMAGES, OF_WEIGHTS } of;
    bool last;
};
extern const struct gpu_convolution gpu_convolutions[];
extern const unsigned gpu_convolution_count;
struct graph *gpu_convolution_graph(const struct gpu_convolution *c);
/* Has a kernel of the set a primitive in an outermost loop of this kind? */
bool gpu_kernels_have(const struct kernel_set *s, enum prim p, enum loop_kind outermost);
/* Keeps those that have an instruction whose text looks like none of the others'; nothing can be added behind that. */
void gpu_kernels_essential(struct kernel_set *s);
void gpu_kernels_free(struct kernel_set *s);

/* slot: the bits of each; NULL: there are none */
struct gpu_arrays {
    char *arena; const struct values *input; struct values *out; const struct values *state; const uint64_t *slot;
};
/* Runs a program of kernels and copies by the kernel interpreter, which has shared and register memory of its own. */
bool gpu_kernels_run(const struct program *p, const struct gpu_arrays *m, struct err *e);

#endif
