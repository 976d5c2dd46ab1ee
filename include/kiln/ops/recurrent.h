/* Recurrent layers over a sequence as scans: simple ones, LSTM, GRU.  Included by <kiln/kiln.h>.  Modules with
 * parameters are in <kiln/train/modules.h>. */
#ifndef KILN_OPS_RECURRENT_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_RECURRENT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Gates, in the order of their rows in weights and biases: RNN one; LSTM input, output, forget, cell; GRU update,
 * reset, new. */
typedef enum kl_cell_kind { KL_CELL_RNN, KL_CELL_LSTM, KL_CELL_GRU } kl_cell_kind;
/* Another activation than the usual one; which: of gates (RNN: of the only one) 0, of the cell or the new state 1, of
 * LSTM's result 2. */
typedef kl_tensor kl_cell_activation(void *ctx, kl_tensor a, int which);
/* The product of inputs [T, B, I], or of a state [B, H] where `state` is true, with its weights: [.., gates H]. */
typedef kl_tensor kl_cell_product(void *ctx, kl_tensor a, bool state);
typedef struct kl_recurrent_options {
    kl_tensor bias, recurrent_bias; /* [gates H]; kl_none: 0 */
    kl_tensor peephole;             /* LSTM: [3 H], input, output, forget; kl_none: 0 */
    kl_tensor h, cell;              /* [B, H], at first; kl_none: 0 */
    kl_tensor length;               /* integers [B]: sequences end there, results behind are 0; kl_none: all of T */
    bool reverse;                   /* from each sequence's end to its start */
    bool reset_last;                /* GRU: the new gate's recurrent product, with its bias, is made before the reset */
    bool coupled;                   /* LSTM: forget = 1 - input */
    kl_cell_activation *activation; /* NULL: sigmoid for gates, tanh for the others and for RNN */
    kl_cell_product *product;       /* RNN, LSTM: in place of the products with w and r, as of quantized weights */
    void *ctx;                      /* of both functions, which are called while the loop's body is recorded */
} kl_recurrent_options;
/* x: floats [T, B, I]  w: [gates H, I]  r: [gates H, H]  ->  out[0]: each step's state [T, B, H], out[1]: the last one
 * [B, H], out[2]: LSTM's last cell [B, H], else kl_none.  New handles, poison after an error.  With f, g, h the
 * activations: LSTM c' = f(forget) c + f(input) g(cell), h' = f(output) h(c'); GRU h' = (1 - z) g(new) + z h.
 * [ARGUMENT, SHAPE, TYPE] */
KL_API_AT kl_status kl_recurrent(kl_cell_kind kind, kl_tensor x, kl_tensor w, kl_tensor r,
                                 const kl_recurrent_options *options, kl_tensor out[3]);

#ifdef __cplusplus
}
#endif
#endif
#endif
