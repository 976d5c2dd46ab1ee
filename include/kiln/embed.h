/* Kiln as a part of a larger program: memory, threads and messages by the host's own means, limits, fork.  Included by
 * <kiln/kiln.h>.
 *
 * Fork: a child may go on using Kiln, with a pool and a background thread of its own; programs that were compiled are
 * still there.  A call of fork waits until kernels that other threads are compiling are done, and for what the
 * background thread is planning.  What another thread was assigning at that moment is lost in the child: such a tensor
 * is poison there, with an error that says so; all other values are the parent's.  A GPU that was opened before is the
 * parent's: in the child all that is asked of it fails. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_EMBED_H
#define KILN_EMBED_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory ---- */

/* From here on Kiln's own memory, tensors included, comes from these functions; code generators' libraries have memory
 * of their own beside it.  Before anything else is called: once Kiln has memory it is too late.  Where a function gives
 * none, calls fail with MEMORY, values are as before, and the next call works.  [errors ARGUMENT] */
KL_API kl_status kl_set_memory(const kl_memory *memory);

typedef struct kl_memory_use {
    int64_t live;   /* bytes of tensors and, while programs run, of their temporaries */
    int64_t peak;   /* the most that this was */
    int64_t pooled; /* kept for the next that needs memory: see kl_memory_trim */
    int64_t limit;  /* 0: none */
} kl_memory_use;
/* What a device's tensors and temporaries may take, pooled memory included; 0: no limit.  A call that would exceed it
 * fails with MEMORY and names the bytes wanted, in use and allowed: a step before anything of it runs, so that every
 * value is as before and a smaller step works.  A limit below what is live only stops what comes.
 * [errors ARGUMENT: negative; DEVICE] */
KL_API kl_status kl_set_memory_limit(kl_device device, int64_t bytes);
/* [errors ARGUMENT, DEVICE] */
KL_API kl_status kl_memory_used(kl_device device, kl_memory_use *use);
/* Gives pooled memory of all devices back. */
KL_API void kl_memory_trim(void);

/* ---- memory shared with other libraries: <kiln/formats/dlpack.h> is made of these ---- */

/* The memory of a dense tensor's value, which is computed first if it is lazy: its elements, row-major, at *address,
 * which is the device's.  It is done when this returns.  Until kl_memory_release nothing is written there, and nothing
 * else gets that memory: an assignment gives the tensor other memory.  NULL: it failed.
 * [errors as kl_read; TYPE: it is not dense, or on device meta] */
typedef struct kl_memory_hold kl_memory_hold;
KL_API_AT kl_memory_hold *kl_memory_of(kl_tensor tensor, void **address);
KL_API void kl_memory_release(kl_memory_hold *hold); /* any thread; NULL is fine */
/* As kl_wrap, of the device's own memory: of a GPU an address there.  What fills it is done, or is on
 * kl_device_stream.  release is called when the device has no more work with it. */
KL_API_AT kl_tensor kl_wrap_device(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, void *address,
                                   void (*release)(void *ctx), void *ctx);

/* ---- threads ---- */

/* Kernels run, and compile, on the host's threads; NULL: on Kiln's own again.  The struct is copied.  Returns once no
 * loop runs on the pool before.  Not from inside a part.  Results are the same bits.  [errors ARGUMENT] */
KL_API kl_status kl_set_pool(const kl_pool *pool);

/* ---- messages ---- */

/* Messages of that level and above go to fn, or nowhere: NULL, and at first.  Returns once the function before is not
 * being called any more.  The first that takes warnings gets one for each KILN_ variable of the environment that is not
 * known or has a value that means nothing.  [errors ARGUMENT: no such level] */
KL_API kl_status kl_set_log(kl_log_fn *fn, void *ctx, kl_log_level least);
/* "debug", "info", "warn", "error", "none". */
KL_API const char *kl_log_level_name(kl_log_level level);

#ifdef __cplusplus
}
#endif
#endif
