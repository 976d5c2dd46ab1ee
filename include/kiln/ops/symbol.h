/* Symbolic lengths: one recorded graph for all lengths within bounds.  Included by <kiln/kiln.h>.
 *
 *     int64_t n = kl_symbol("n", 1, 128);
 *     for (each batch of `count` images) {
 *         kl_trace_begin("train_step");
 *         kl_tensor x = kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){n, 784}, (int64_t[]){count, 784}, images);
 *         kl_tensor y = kl_input_symbolic(dev, KL_I32, 1, (int64_t[]){n}, (int64_t[]){count}, labels);
 *         kl_tensor loss = kl_keep(kl_cross_entropy(kl_matmul(x, w), y));
 *         ...
 *     }
 *
 * In the trace the first axis of x has the length n, whatever `count` is, and so have the shapes that follow from it: a
 * step with another count is the same graph, which is recorded and built once.  The value of a symbol is read from the
 * dims of the inputs at each run; what the trace keeps has numbers for lengths again.  Every value gives the bits that
 * kl_input with these dims gives.
 *
 * A length with a symbol is a negative number, which stands for a length wherever an op takes one (kl_reshape,
 * kl_expand, kl_iota, ..), and which kl_shape gives of a tensor with such a length.  It is no number to compute with:
 * an op refuses what arithmetic makes of it, and the kl_length_ functions below compute with it. */
#ifndef KILN_SYMBOL_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_SYMBOL_H

#ifdef __cplusplus
extern "C" {
#endif

/* A length that may be any number from min to max.  The same name and bounds give the same length.  The name is of at
 * most 23 letters, digits, '_' and '.', and starts with a letter.  INT64_MIN after an error.
 * [errors ARGUMENT: a bad name, bounds that are not 0 <= min <= max < 2^59, too many symbols; MEMORY] */
KL_API_AT int64_t kl_symbol(const char *name, int64_t min, int64_t max);
/* The same of multiples of a number, as "16*n" in shapes.  [errors as above; ARGUMENT: none is within the bounds] */
KL_API_AT int64_t kl_symbol_multiple(const char *name, int64_t min, int64_t max, int64_t multiple_of);
/* kl_input in a trace: `dims` are the lengths of the caller's array in this run, `lengths` what they are in the graph,
 * each a number, then the same one, or a symbol.  Inputs with one symbol must agree on its value.  kl_trace_end and
 * kl_step_run report what does not fit, before anything runs.
 * [SHAPE, DEVICE, TRACE: no trace is open, or a region is recorded] */
KL_API_AT kl_tensor kl_input_symbolic(kl_device device, kl_dtype dtype, int rank, const int64_t *lengths,
                                      const int64_t *dims, const void *data);

/* ---- arithmetic ----
 *
 * Of lengths in the open trace, whose inputs so far have their symbols: numbers, what kl_symbol gave, what kl_shape
 * gives or these functions.  The result is a length again: never negative, whatever the symbols' values, and a sum of
 * multiples of symbols and of products of two symbols.  INT64_MIN after an error, and of that.
 *     kl_slice(x, NULL, (int64_t[]){batch, kl_length_sub(n, 1)}, NULL);        // all but the last of n
 * [errors SHAPE: it may be negative or is no such sum, or a symbol is in no input so far; ARGUMENT: division by 0] */
KL_API_AT int64_t kl_length_add(int64_t a, int64_t b);
KL_API_AT int64_t kl_length_sub(int64_t a, int64_t b);
KL_API_AT int64_t kl_length_mul(int64_t a, int64_t b);
KL_API_AT int64_t kl_length_div(int64_t a, int64_t b); /* rounded down; b is a number, or divides a */
/* The length's least and greatest value.  false: it is no length, which is not reported. */
KL_API bool kl_length_range(int64_t length, int64_t *min, int64_t *max);
/* A length as a number in the graph: [] of this dtype, with the value that each run gives it.  [errors as above] */
KL_API_AT kl_tensor kl_length_scalar(kl_device device, kl_dtype dtype, int64_t length);

#ifdef __cplusplus
}
#endif
#endif
#endif
