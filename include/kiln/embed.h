/* Kiln inside a larger program: memory, threads and log of the host program, memory limits, cancelling, fork.  Included
 * by <kiln/kiln.h>.
 *
 * Fork: a child process may continue to use Kiln.  It starts its own thread pool and background thread; compiled
 * programs stay available. fork() waits until kernels that other threads are compiling are done, and until the
 * background thread has finished the plan it is working on.  A tensor that another thread was assigning at the time of
 * the fork is poison in the child, with an error that says so; all other values are the parent's.  A GPU that was
 * opened before the fork cannot be used in the child: every request to it fails.
 *
 * dlopen: libkiln.so stays loaded after dlclose, with its threads, programs and tensors; a later dlopen goes on with
 * them.
 *
 * Stack: 64 KiB of the calling thread are enough for every call. Where less than 512 KiB are left, code generators run
 * on a thread of their own. Kiln's own threads have at least 1 MiB. */
#ifndef KILN_EMBED_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_EMBED_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory ---- */

/* Sets the functions from which Kiln takes its own memory, tensors included.  The libraries of code generators allocate
 * their memory themselves.  It must be called before anything else: once Kiln has allocated memory it fails.  Where a
 * function returns NULL, calls fail with MEMORY, values are as before, and the next call works.  [errors ARGUMENT] */
KL_API kl_status kl_set_memory(const kl_memory *memory);

typedef struct kl_memory_use {
    int64_t live;   /* bytes of tensors and, while programs run, of their temporaries */
    int64_t peak;   /* the maximum of live so far */
    int64_t pooled; /* free memory kept for later allocations: see kl_memory_trim */
    int64_t limit;  /* the limit; 0: none */
} kl_memory_use;
/* Limits the memory of a device's tensors and temporaries, pooled memory included; 0: no limit.  A call that would
 * exceed it fails with MEMORY; the message has the bytes requested, in use and allowed.  A step fails before any of it
 * runs, so that every value is as before and a smaller step works.  A limit below the live memory affects later
 * allocations only.  [errors ARGUMENT: negative; DEVICE] */
KL_API kl_status kl_set_memory_limit(kl_device device, int64_t bytes);
/* [errors ARGUMENT, DEVICE] */
KL_API kl_status kl_memory_used(kl_device device, kl_memory_use *use);
/* Returns the pooled memory of all devices to the system. */
KL_API void kl_memory_trim(void);

/* ---- memory shared with other libraries; <kiln/formats/dlpack.h> is built on these functions ---- */

/* Pins the memory of a dense tensor's value, which is computed first if it is lazy. *address gets the device address of
 * its elements, row-major; they are complete when this returns.  Until kl_memory_release the memory is neither written
 * nor reused: an assignment gives the tensor other memory.  NULL: it failed.  [errors as kl_read; TYPE: it is not
 * dense, or on device meta] */
typedef struct kl_memory_hold kl_memory_hold;
KL_API_AT kl_memory_hold *kl_memory_of(kl_tensor tensor, void **address);
KL_API void kl_memory_release(kl_memory_hold *hold); /* any thread; NULL is fine */
/* As kl_wrap, but for memory of the device: for a GPU a device address.  The work that fills it must be done, or be on
 * kl_device_stream. release is called when the device has finished all work that uses it. */
KL_API_AT kl_tensor kl_wrap_device(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, void *address,
                                   void (*release)(void *ctx), void *ctx);

/* ---- threads ---- */

/* Runs and compiles kernels on the host's threads; NULL: on Kiln's own threads again.  The struct is copied.  Returns
 * when no loop runs on the previous pool.  It must not be called from inside a part.  Results are the same bits.
 * [errors ARGUMENT] */
KL_API kl_status kl_set_pool(const kl_pool *pool);

/* A program's own loop on the threads that run kernels, Kiln's or the host's: calls part(ctx, begin, end) for ranges
 * that make up 0 .. n, in any order, concurrently or not, and returns when all have returned.  A thread gets at least
 * `grain` iterations where there are so many.  part must not call Kiln.  [errors ARGUMENT] */
typedef void kl_parallel_fn(void *ctx, int64_t begin, int64_t end);
KL_API kl_status kl_parallel(int64_t n, int64_t grain, kl_parallel_fn *part, void *ctx);

/* ---- cancelling ----
 *
 *     static kl_cancel_token *stop;
 *     static void on_interrupt(int number) { (void)number; kl_cancel(stop); }
 *
 *     stop = kl_cancel_token_new();
 *     kl_set_cancel_token(stop);
 *     signal(SIGINT, on_interrupt);
 *     while (kl_step_run(step, ...) == KL_OK) ...;          Ctrl-C ends a step, also one that would not end
 *     if (kl_last_error_code() == KL_ERR_CANCELLED) kl_cancel_token_reset(stop);
 *
 * A call that computes or compiles (kl_trace_end, kl_step_run, reads of values that are not computed yet, kl_sync ..)
 * ends with CANCELLED when the thread's token is cancelled or its deadline passes before the call is complete.  Every
 * value is then as before the call, and the same call made again works; a trace ends as after any other error.  Calls
 * that only record, and reads of values that are there, are not affected.
 *
 * It is asked at the start of a run, between two kernels and every few tenths of a second in a processor's kernel, at
 * each iteration of kl_while and kl_scan that is not part of a kernel, and while a program is compiled, between passes
 * and kernels.  A custom op or collective that has begun is completed (a collective waits for its peers at most until
 * its communicator's timeout); so is the work that a GPU has been given, and a run that has begun to overwrite the
 * states that it assigns: such a call returns OK.  Those of a program with loops from there on are not overwritten in
 * place while the thread has a token or a deadline, which takes the memory of new values.  In a run of several
 * processes each has to be cancelled: those that are not wait for the others in their next collective until the
 * timeout.  Programs compiled ahead of time (<kiln/aot.h>) cannot be cancelled. */

typedef struct kl_cancel_token kl_cancel_token;
/* A token that is not cancelled.  NULL: MEMORY. */
KL_API_AT kl_cancel_token *kl_cancel_token_new(void);
/* The caller's token must not be used afterwards; threads that it is set on keep it.  NULL is allowed. */
KL_API void kl_cancel_token_free(kl_cancel_token *token);
/* Sets the token that cancels this thread's calls, in place of the one before; NULL: none.  A token may be set on any
 * number of threads.  [never fails but for MEMORY] */
KL_API kl_status kl_set_cancel_token(kl_cancel_token *token);
/* Cancels the calls of all threads that the token is set on: those that run and, until kl_cancel_token_reset, those
 * that follow.  Any thread and any signal handler may call it (it is one atomic store).  NULL is allowed. */
KL_API void kl_cancel(kl_cancel_token *token);
/* The calls that follow run again.  NULL is allowed. */
KL_API void kl_cancel_token_reset(kl_cancel_token *token);
KL_API bool kl_is_cancelled(const kl_cancel_token *token); /* false for NULL */
/* Sets the time at which this thread's calls are cancelled, that far from now, until it is set anew; 0 or less: it has
 * passed; INFINITY: there is none.  [errors ARGUMENT: NaN; MEMORY] */
KL_API_AT kl_status kl_set_deadline(double seconds);

/* ---- messages ---- */

/* Sends messages of this level and above to fn; NULL, the initial value, discards them.  KILN_LOG sends messages to
 * stderr or a file beside it.  Returns when the previous function is not running any more.  The first function that
 * accepts warnings gets one for each KILN_ variable of the environment that is unknown or has an invalid value.
 * [errors ARGUMENT: no such level] */
KL_API kl_status kl_set_log(kl_log_fn *fn, void *ctx, kl_log_level min);
/* A message of the program's or library's own into the same log: one line, without the level.  [never fails] */
KL_API void kl_log_write(kl_log_level level, const char *message);
/* "debug", "info", "warn", "error", "none". */
KL_API const char *kl_log_level_name(kl_log_level level);

#ifdef __cplusplus
}
#endif
#endif
#endif
