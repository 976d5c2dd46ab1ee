/* Control flow, checkpoints and custom gradients.  Included by <kiln/kiln.h>.
 *
 * A C function describes a part of a computation that runs under a condition, repeatedly, or with a custom gradient.
 * It is called once, to record its ops; it is not called when the program runs.  Its C code cannot read the values of
 * its tensors, because they do not exist yet.
 *
 *     static kl_status step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
 *     {
 *         const struct cell *c = ctx;
 *         out[0] = kl_tanh(kl_add(kl_matmul(in[0], c->w), in[1]));    // in[0]: carried, in[1]: a row of xs
 *         out[1] = kl_mul(out[0], out[0]);
 *         return KL_OK;
 *     }
 *     kl_tensor out[2];                                                // the last out[0], and all out[1] stacked
 *     kl_scan(step, &cell, rows, 1, &h, 1, &xs, 1, false, out);
 *
 * in[0..nin) and the handles that the function makes are temporaries that end with the call.  out[0..nout) are kl_none
 * on entry and must be set.  Any other tensor that the function uses, such as c->w above, becomes a further operand of
 * the op automatically, and gradients flow to it.  Inside, kl_grad differentiates what was recorded inside.  Not
 * allowed inside: reads, kl_assign, kl_keep, scopes, traces, and releasing tensors from outside.  Blocks that the
 * function begins (kl_no_grad_begin, kl_autocast_begin, kl_composite_begin, kl_trace_suspend) end in it, and it cannot
 * end those around it; where an end is missing the op fails, and the blocks are ended.
 *
 * A seed that the function gives as a number (kl_dropout, kl_rand) is the same in every iteration; a seed that changes
 * is a tensor (kl_dropout_seeded, kl_rand_seeded), made by kl_random_fold_in of the iteration's number or
 * kl_random_split of a carried seed.
 *
 * A function fails by returning an error, or by any call in it that fails.  Then, and on every error below, the op
 * fails with the first cause, and all of out[] is poison.
 *
 * Gradients of any order flow through all of these ops except kl_while. */
#ifndef KILN_CONTROL_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_CONTROL_H

#ifdef __cplusplus
extern "C" {
#endif

typedef kl_status kl_region_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout);

/* Runs `yes` if the condition, a bool[], is true, else `no`. Both take in[] and return nout results of the same shapes
 * and dtypes.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE] */
KL_API_AT kl_status kl_cond(kl_tensor condition, kl_region_fn *yes, kl_region_fn *no, void *ctx, int64_t nin,
                            const kl_tensor *in, int64_t nout, kl_tensor *out);

/* Starts with the n values in[] and replaces them by the results of `body` as long as `condition` (which returns one
 * bool[]) is true of them; out[] are the last values.  Both functions take the n values; body returns n values of the
 * same shapes and dtypes.  No gradient flows through it.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE,
 * DEVICE, TRACE; GRAD where a gradient would flow] */
KL_API_AT kl_status kl_while(kl_region_fn *condition, kl_region_fn *body, void *ctx, int64_t n, const kl_tensor *in,
                             kl_tensor *out);

/* Runs `body` once for each of `length` elements of the scanned tensors' axis 0 (from the last, if reverse); the length
 * may be symbolic.  It takes the carried values and one element of each scanned tensor, without axis 0, and returns the
 * next carried values, of the same shapes and dtypes, and nstacked more values. out[] are the last carried values and
 * the others, stacked along axis 0.  Seeds given as numbers are the same in every iteration;
 * kl_random_fold_in(seed, i), with i from a scanned kl_arange, gives each iteration another one.  [lazy; new handles;
 * errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE] */
KL_API_AT kl_status kl_scan(kl_region_fn *body, void *ctx, int64_t length, int64_t ncarried, const kl_tensor *carried,
                            int64_t nscanned, const kl_tensor *scanned, int64_t nstacked, bool reverse,
                            kl_tensor *out);

/* Records fn without keeping its intermediate values for the backward pass, which recomputes them from in[].  This
 * saves their memory.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE] */
KL_API_AT kl_status kl_checkpoint(kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in, int64_t nout,
                                  kl_tensor *out);

/* Records fn with a custom gradient. `backward` takes in[], the nout results, and the gradients of the floating results
 * (nin + nout + their number), and returns the gradient of each floating in[], in order and with its shape and dtype.
 * No gradient flows to other tensors that the two functions use.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE,
 * TYPE, DEVICE, TRACE] */
KL_API_AT kl_status kl_custom_grad(kl_region_fn *fn, kl_region_fn *backward, void *ctx, int64_t nin,
                                   const kl_tensor *in, int64_t nout, kl_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
#endif
