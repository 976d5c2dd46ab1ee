/* Control flow, checkpoints and custom gradients.  Included by <kiln/kiln.h>.
 *
 * A part of a computation that runs under a condition, many times, or with a gradient of its own is given as a C
 * function.  It is called once, while recording, to record what it does; it is not called again when the program
 * runs.  So its C code must not depend on values, which do not exist yet: it may not read them.
 *
 *     static kl_status step(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
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
 * on entry and must be set.  Any other tensor that the function uses, such as c->w above, becomes a further operand
 * of the op by itself, and gets its gradient.  Inside, kl_grad differentiates what was recorded inside.  Not allowed
 * inside: reads, kl_assign, kl_keep, scopes, traces, and releasing tensors from outside.
 *
 * A seed that the function gives as a number (kl_dropout, kl_rand) is the same in every round; a seed that changes is a
 * tensor (kl_dropout_seeded, kl_rand_seeded), made by kl_random_fold_in of the round or kl_random_split of a carried
 * one.
 *
 * A function fails by returning an error, or by any call in it that fails.  Then, and on every error below, the op
 * fails with the first cause, and all of out[] is poison.
 *
 * Gradients of any order flow through all of these but kl_while. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_CONTROL_H
#define KILN_CONTROL_H

#ifdef __cplusplus
extern "C" {
#endif

typedef kl_status kl_region_fn(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout);

/* `yes` if the condition, a bool[], is true, else `no`; only that one runs.  Both take in[] and give nout results,
 * alike in shape and dtype.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE] */
KL_API_AT kl_status kl_cond(kl_tensor condition, kl_region_fn *yes, kl_region_fn *no, void *ctx, uint32_t nin,
                            const kl_tensor *in, uint32_t nout, kl_tensor *out);

/* n values, from in[] on, changed by `body` as long as `condition` (one bool[]) says true of them; out[] are the last.
 * Both take the n values; body gives as many, of the same shapes and dtypes.  No gradient flows back through it.
 * [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE; GRAD where a gradient would flow] */
KL_API_AT kl_status kl_while(kl_region_fn *condition, kl_region_fn *body, void *ctx, uint32_t n, const kl_tensor *in,
                             kl_tensor *out);

/* `body` once for each of `length` elements of the scanned tensors' axis 0 (from the last, if reverse).  It takes the
 * carried values and an element of each scanned tensor, without axis 0, and gives the next carried values, of the same
 * shapes and dtypes, and nstacked more.  out[] are the last carried values and the others, stacked along axis 0.  Seeds
 * given as numbers are the same each time; kl_random_fold_in(seed, i), i of a scanned kl_arange, is another each time.
 * [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE] */
KL_API_AT kl_status kl_scan(kl_region_fn *body, void *ctx, int64_t length, uint32_t ncarried, const kl_tensor *carried,
                            uint32_t nscanned, const kl_tensor *scanned, uint32_t nstacked, bool reverse,
                            kl_tensor *out);

/* fn, whose values are not kept for the backward pass: that computes them again from in[], which saves their memory.
 * [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE] */
KL_API_AT kl_status kl_checkpoint(kl_region_fn *fn, void *ctx, uint32_t nin, const kl_tensor *in, uint32_t nout,
                                  kl_tensor *out);

/* fn with a gradient of its own.  `backward` takes in[], the nout results, and the gradients of the floating results
 * (nin + nout + so many), and gives the gradient of each floating in[], in order and of its shape and dtype.  No
 * gradient flows to other tensors that the two use.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE,
 * TRACE] */
KL_API_AT kl_status kl_custom_grad(kl_region_fn *fn, kl_region_fn *backward, void *ctx, uint32_t nin,
                                   const kl_tensor *in, uint32_t nout, kl_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
