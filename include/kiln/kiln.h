/* Kiln: a lazy tensor compiler.
 *
 *   kl_device dev = kl_device_default();
 *   kl_tensor w = kl_randn(dev, KL_F32, 2, (int64_t[]){784, 10}, 42);
 *   kl_requires_grad(w);
 *   for (int step = 0; step < steps; step++) {
 *       kl_trace_begin("train_step");
 *       kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){128, 784}, images);
 *       kl_tensor y = kl_input(dev, KL_I32, 1, (int64_t[]){128}, labels);
 *       kl_tensor loss = kl_cross_entropy(kl_matmul(x, w), y);
 *       kl_assign(w, kl_sub(w, kl_mul_scalar(kl_grad(loss, w), lr)));
 *       kl_keep(loss);
 *       if (kl_trace_end() != KL_OK) { fprintf(stderr, "%s\n", kl_last_error()); break; }
 *       printf("%f\n", kl_item_f32(loss));
 *       kl_release(loss);
 *   }
 *
 * Calls record; nothing runs before kl_trace_end, or, outside a trace, before a read.  A step recorded again
 * with the same ops, shapes and dtypes is compiled once: data and numbers given at run time (kl_input,
 * kl_scalar, the *_scalar ops, seeds) never compile again.
 *
 * A tensor is a handle passed by value.  Inside a trace new handles are temporaries: they go with the trace
 * unless kept (kl_keep).  Outside one they live until kl_release or the end of the enclosing scope.
 *
 * Errors: a call that fails returns a poison handle (or a status) and sets kl_last_error().  Calls given a
 * poison handle return poison silently, so it is enough to look at kl_trace_end() and at reads.  Inside a
 * trace the first error belongs to the trace: kl_trace_end() returns it, drops the trace and leaves every
 * value as it was.  The library never exits, aborts or prints unasked.
 *
 * Threads may record their own traces at once and share values; a handle of another thread's open trace is an
 * error.  Each function marked KL_API_AT has a variant with a call site, kl_NAME_at, whose first parameter is
 * a const kl_site * (may be NULL).  Under GCC and Clang it is also a macro that passes the caller's file and line to
 * that variant; define KL_NO_CALL_SITES before including to have plain functions only. */
#ifndef KILN_KILN_H
#define KILN_KILN_H
#include <kiln/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor: valid until released; {0} is kl_none. */
typedef struct kl_tensor { uint64_t id; } kl_tensor;
/* A device; {0} is none. */
typedef struct kl_device { uint32_t id; } kl_device;

#ifdef __cplusplus
#define kl_none (kl_tensor{0})
#else
#define kl_none ((kl_tensor){0})
#endif

#if defined(__GNUC__)
#define KL_HERE (__extension__({ static const kl_site kl_site_ = {__FILE__, __LINE__, __func__}; &kl_site_; }))
#else
#define KL_HERE ((const kl_site *)0)
#endif

/* ---- the library ---- */

/* "major.minor.patch". */
KL_API const char *kl_version(void);
/* Options: "fuse" (1: group ops into kernels, 0: each op its own; the results are the same bits), "threads"
 * (0: as many as processors), "cache_bytes" (what the kernels kept on disk may take; 0: none are),
 * "program_bytes" (what programs and their kernels may take in memory, 256 MiB at first: above it those are evicted
 * that ran longest ago, but none that runs, is a frozen step's or was timed by a profile; 0: none else is kept),
 * "background_compile" (1: a new trace runs at once on unfused kernels, until the fused ones are compiled by a thread
 * beside it; the results are the same bits), "join" (1: threads wait for each other between kernels only where one
 * needs what another thread has stored, 0: between any two; the results are the same bits), "check_nan" (1: a trace,
 * step or read that would give a NaN fails with CHECK, names the node, its line and the numbers that made it, and
 * changes no value; 2: infinities, too; what is only computed on the way may be either; states are not updated in
 * place), "perf_map" (1: kernels loaded from here on are listed in /tmp/perf-PID.map, where `perf report` looks for
 * their names). [errors ARGUMENT] */
KL_API kl_status kl_set_option(const char *name, int64_t value);
KL_API kl_status kl_get_option(const char *name, int64_t *value);
/* Schedules for kernels of programs built from here on, in place of those handed in before and of KILN_SCHEDULES; NULL
 * or "": each kernel has the one that Kiln chooses.  A text has a line for each kernel that is to have another:
 *     graph @train_step
 *     @k0_add_relu schedule map width 16 grain 64
 * Dump stage "schedules" gives the text of a program as it is; ir/README.md says what a record may say.  Lines before
 * the first `graph` are for every graph without a section; `graph @name unfused` is for its unfused kernels.  Results
 * are the same bits whatever the schedules.  A program for which a line names no kernel, or a schedule that its kernel
 * cannot have, is not built: kl_trace_end, or a read, has the error, with line and column.  [errors PARSE, MEMORY: the
 * schedules stay as they were] */
KL_API kl_status kl_set_schedules(const char *text);
/* Process-wide counters; -1 for an unknown name.  "graphs_built": programs planned, "compiles": kernels that a code
 * generator compiled, "launches": kernels run, "barriers": how often all threads had to be done with a kernel, or with
 * several that need nothing of each other's threads, "host_ops": ops of the user's that were computed on the host for
 * another device, operands and results copied, "bytes_via_host": copied from one device to another through the host's
 * memory, as there is no way between the two, "replays": traces that were an earlier one call by call, so that nothing
 * was recorded, "variants": programs made for one value of the symbols of a graph (ops/symbol.h), where none takes all,
 * "peer_copies": copies straight from one device to another.  Of the levels of the cache, each asked
 * where the one before it has nothing: "program_hits" and "program_misses", "kernel_hits" and "kernel_misses",
 * "disk_hits" and "disk_misses".  "programs_evicted", "kernels_evicted": dropped from memory for option
 * "program_bytes". */
KL_API int64_t kl_counter(const char *name);
/* Why compiled kernels are not kept on disk for the next process, "" when they are: KILN_CACHE_DIR, else
 * $XDG_CACHE_HOME/kiln, else ~/.cache/kiln, is the folder, which has to be the user's own and not writable by others.
 * Programs run all the same.  Valid until this thread's next call. */
KL_API const char *kl_cache_off_reason(void);
/* Writes every stage of the next program built by this thread to files in `dir`, which exists; NULL: not any more. */
KL_API void kl_dump_next(const char *dir);
/* Writes a stage of a trace to a file: captured, differentiated, simplified, numerics, fused, scheduled (kernels),
 * schedules (what kl_set_schedules takes), llvm, asm, or source (the kernels as CUDA C).  A path that ends with .dot
 * gets a picture for Graphviz (not of code), one with .html a page of all stages, whatever `stage` is (NULL is fine),
 * any other text.  trace: the name of a trace that has run in this process, whose last program it is then; NULL: the
 * one this thread has open, as if it ended now (one that keeps and assigns nothing yet: as if it kept what nothing
 * reads).  Nothing runs, and the trace goes on. [errors ARGUMENT: no such stage, trace or picture; TRACE: none is open;
 * IO; and those of compiling it] */
KL_API_AT kl_status kl_dump(const char *trace, const char *stage, const char *path);

/* ---- errors, per thread ---- */

/* The last error as "file:line: op: what is wrong", "" if none.  Valid until this thread's next failing call. */
KL_API const char *kl_last_error(void);
KL_API kl_status kl_last_error_code(void);
KL_API void kl_clear_error(void);
/* For functions made of Kiln's: fails as one of Kiln's own does, with this code (ARGUMENT for KL_OK) and message.  The
 * open trace has failed with it, unless it had failed before with another error than kl_last_error(), so that a
 * message may say more about the last one.  Returns the code. */
KL_API_AT kl_status kl_fail(kl_status code, const char *message);
/* A status in words: "shape error" for KL_ERR_SHAPE. */
KL_API const char *kl_status_name(kl_status status);

/* ---- devices ---- */

/* The device KILN_DEVICE names, else the first of cuda, hip, cpu and ref that works here: its driver is there, it
 * opens, a kernel compiles and gives the right number.  vulkan, which may well be this processor again, is used where
 * it is named. <kiln/device.h> has more on devices.  [errors DEVICE: {0}] */
KL_API kl_device kl_device_default(void);
/* "ref" (the interpreter), "cpu", or "vulkan" or "vulkan:N": a device with memory of its own, where what is read and
 * written here is copied.  It has the dtypes that it says it has (`kiln devices`), integers and random bits come out
 * the same as everywhere, floats within some units in the last place. "meta": a device without memory, for a dry run.
 * What is made there has a shape and a dtype and no data; ops, gradients and whole traces are checked as anywhere, and
 * nothing is computed, compiled or stored.  Data of kl_input is not looked at (NULL is fine); kl_to brings a tensor
 * there, and none back; a read is an error.  [errors DEVICE: {0}, with the reason it cannot be used] */
KL_API kl_device kl_device_named(const char *name);
/* Its name, "autodiff<cpu>" of an autodiff device (<kiln/autodiff.h>), which kl_device_named takes, too; "none" for
 * {0}. Valid as long as the process. */
KL_API const char *kl_device_name(kl_device device);
/* Why kl_device_default() passed over the devices before it: what each said; "" when it did not, or KILN_DEVICE is
 * set. */
KL_API const char *kl_device_fallback_reason(void);
/* Hands over what has no value yet, as kl_flush does, and waits until all of the device's work is done.
 * [errors DEVICE; of what was handed over since the last call the first: "An error happened during execution. Caused
 * by: .." The next op works.  What failed has no value still, and is tried again.] */
KL_API kl_status kl_sync(kl_device device);

/* ---- dtypes ---- */

KL_API const char *kl_dtype_name(kl_dtype dtype); /* "f32" */
KL_API size_t kl_dtype_size(kl_dtype dtype);      /* bytes of one element */

/* ---- what is known of a tensor without computing it ---- */

/* Number of dimensions, -1 for a bad handle. */
KL_API int kl_rank(kl_tensor t);
/* Writes the dimensions to dims[0..rank-1] (room for KL_MAX_RANK is always enough); returns the rank or -1. */
KL_API int kl_shape(kl_tensor t, int64_t *dims);
/* Number of elements, -1 for a bad handle. */
KL_API int64_t kl_numel(kl_tensor t);
/* Element type, KL_DTYPE_COUNT for a bad handle. */
KL_API kl_dtype kl_dtype_of(kl_tensor t);
/* Device, {0} for a bad handle. */
KL_API kl_device kl_device_of(kl_tensor t);
/* KL_OK for a usable handle, else why not: the cause of a poison handle, HANDLE for one that is stale or foreign. */
KL_API kl_status kl_check(kl_tensor t);

/* ---- traces ---- */

/* Starts recording on this thread; the name shows in dumps and messages.  [errors TRACE: one is open] */
KL_API_AT kl_status kl_trace_begin(const char *name);
/* Compiles what was recorded unless known, runs it, and makes kept and assigned handles values.  A trace that keeps and
 * assigns nothing runs nothing, with a warning in the log.
 * [errors: TRACE without a begin, else the first error since kl_trace_begin; every value is then as before] */
KL_API_AT kl_status kl_trace_end(void);
/* Drops the open trace of this thread unrun; harmless without one.  A thread that has left a function of kl_vmap or of
 * a region op (<kiln/control.h>) by longjmp calls this to end what that call had begun, inside of a trace with the
 * trace; inside of such a function it is an error (TRACE). */
KL_API void kl_trace_abandon(void);
/* Whether this thread has a trace open. */
KL_API bool kl_tracing(void);
/* From here to kl_trace_resume what this thread does is done outside of its trace, and of the function of a region or
 * of kl_vmap that it records: ops are recorded for themselves, without gradients and without the keys that the thread
 * includes and excludes, and can be read at once.  For what has to be known while recording: a shape that is computed,
 * say.  Tensors of the trace are not to be used meanwhile, and those that it has assigned cannot be read; what is made
 * is outside of the trace like any tensor made before it.  No trace can begin.  Not nested.
 * [errors TRACE: suspended already, or not] */
KL_API_AT kl_status kl_trace_suspend(void);
KL_API_AT kl_status kl_trace_resume(void);

/* Makes a handle outlive the trace, or the scope, it was made in; the caller releases it.  Returns t.
 * [errors HANDLE] */
KL_API_AT kl_tensor kl_keep(kl_tensor t);
/* Gives state the value of `value` (same shape, dtype and device): from here on the handle means the new
 * value; in a trace the change becomes visible outside at kl_trace_end.  Done in place where no one else
 * holds the old value.  [errors HANDLE, SHAPE, TYPE, DEVICE] */
KL_API_AT kl_status kl_assign(kl_tensor state, kl_tensor value);
/* Gives up a handle; kl_none and poison are fine.  Values recorded from it stay as they are.  [errors HANDLE] */
KL_API_AT kl_status kl_release(kl_tensor t);
/* Handles made outside a trace between begin and end are released at the end unless kept.  Scopes nest. */
KL_API kl_status kl_scope_begin(void);
KL_API_AT kl_status kl_scope_end(void);
/* A name for dumps, cut at 23 bytes.  [errors HANDLE] */
KL_API_AT kl_status kl_set_name(kl_tensor t, const char *name);

/* What the last kl_trace_end of this thread ran. */
typedef struct kl_run_info {
    int64_t kernels;           /* kernels launched, those inside kl_cond, kl_while and kl_scan apart */
    int64_t nodes;             /* nodes recorded */
    int64_t arena_bytes;       /* temporaries */
    int64_t peak_bytes;        /* temporaries, inputs, states and outputs */
    int64_t lower_bound_bytes; /* what no placement of temporaries can be below */
    int64_t graphs_built;      /* programs planned and kernels compiled by it: 0 when it was known */
    int64_t compiles;
} kl_run_info;
/* [errors TRACE: nothing has run on this thread] */
KL_API kl_status kl_trace_info(kl_run_info *info);
/* Why the last kl_trace_end of this thread built a program: "file:line: node, op: " and the first field in which the
 * trace differs from the known one that is most like it, with both nodes as text; "" when it built none.  Valid as long
 * as the process. */
KL_API const char *kl_trace_miss(void);

/* ---- looking at values ---- */

/* Prints a line with the label, type, first elements, and least, greatest and mean element of x, to standard output or
 * where kl_set_print says; returns x, through which gradients flow as ever.  In a trace it is a node: it prints when
 * the trace, or a frozen step, runs, in the order of the calls, also where nothing needs x.  Outside of one it prints
 * at once. In a function that kl_scan, kl_while or kl_cond record it prints whenever that runs, round after round; in
 * one of kl_checkpoint or kl_custom_grad once, and not again where the backward pass computes the values again. States
 * of a trace that looks at values are not updated in place.  label: up to 255 bytes, NULL for none. [errors HANDLE;
 * TRACE: in the condition of kl_while, in the gradient of kl_custom_grad, in a function recorded outside of a trace;
 * ARGUMENT] */
KL_API_AT kl_tensor kl_print(kl_tensor x, const char *label);
/* All elements of a condition (bool) are to be true.  If one is not, the trace or step that holds it fails with CHECK,
 * the message and the line, all values are as before, and the next call works; outside of a trace this call does, at
 * once. [errors as kl_print; TYPE: no bool; CHECK] */
KL_API_AT kl_status kl_assert(kl_tensor condition, const char *message);
/* The lines of kl_print, without line break, go to this function from here on, one at a time, on the thread that runs
 * the trace; it calls none of Kiln's.  NULL: to standard output. */
KL_API void kl_set_print(void (*print)(void *ctx, const char *line), void *ctx);

/* ---- gradients ---- */

/* Marks t as something to differentiate with respect to: outside a trace, what depends on it stays
 * differentiable after it is read.  [errors HANDLE, TYPE: not a float] */
KL_API_AT kl_status kl_requires_grad(kl_tensor t);
/* The gradient of the sum of loss's elements in wrt, shaped like wrt; differentiable itself.  Zeros where the
 * loss does not depend on wrt, which is a warning in the log (kl_set_log) where a program is built, as is a loss of
 * more elements than one.  [errors HANDLE, DEVICE, TYPE: not floats, GRAD: loss keeps no history, or wrt was assigned
 * in the trace after the loss had used it] */
KL_API_AT kl_tensor kl_grad(kl_tensor loss, kl_tensor wrt);
/* The gradients of one loss in n tensors, as kl_grad gives them, into gradients[]; kl_none all of them after an error.
 * [errors as kl_grad; ARGUMENT; in a trace GRAD: the loss depends on none of them] */
KL_API_AT kl_status kl_grads(kl_tensor loss, int n, const kl_tensor *wrt, kl_tensor *gradients);
/* The same value, through which no gradient flows. */
KL_API_AT kl_tensor kl_detach(kl_tensor t);
/* Between begin and end gradients flow through no op that this thread records: what it makes has no history, is not
 * tracked outside a trace, and keeps nothing alive.  Values are the same.  A kl_grad in between has a value like any
 * other, but no gradient of its own.  Blocks nest.  One begun in a trace is closed by the trace's end, however it ends;
 * one begun before a trace must be ended after it.  [errors ARGUMENT: no block is open, or not in this trace] */
KL_API kl_status kl_no_grad_begin(void);
KL_API_AT kl_status kl_no_grad_end(void);
/* Whether gradients flow through what this thread records now: false in a no_grad block. */
KL_API bool kl_grad_enabled(void);

/* ---- reads: compute what they need, no more; in a trace only of values made before it ---- */

/* Copies the elements, row-major, to `data`; bytes must be their size.  [errors ARGUMENT, HANDLE, TRACE] */
KL_API_AT kl_status kl_read(kl_tensor t, void *data, size_t bytes);
/* The only element of a tensor with one, converted.  [errors as kl_read, SHAPE; then NaN or 0] */
KL_API_AT float kl_item_f32(kl_tensor t);
KL_API_AT double kl_item_f64(kl_tensor t);
KL_API_AT int64_t kl_item_i64(kl_tensor t);

#ifdef __cplusplus
}
#endif

#include <kiln/ops.h>
#include <kiln/nn.h>
#include <kiln/ops/indexing.h>
#include <kiln/ops/image.h>
#include <kiln/ops/classes.h>
#include <kiln/ops/linalg.h>
#include <kiln/ops/recurrent.h>
#include <kiln/ops/attention.h>
#include <kiln/ops/symbol.h>
#include <kiln/device.h>
#include <kiln/autodiff.h>
#include <kiln/collective.h>
#include <kiln/control.h>
#include <kiln/custom.h>
#include <kiln/train/data.h>
#include <kiln/dispatch.h>
#include <kiln/transform.h>
#include <kiln/storage.h>
#include <kiln/layers/complex.h>
#include <kiln/layers/quantized.h>
#include <kiln/layers/sparse.h>
#include <kiln/layers/named.h>
#include <kiln/layers/nested.h>
#include <kiln/layers/blocked.h>
#include <kiln/formats/file.h>
#include <kiln/formats/snapshot.h>
#include <kiln/formats/dlpack.h>
#include <kiln/formats/model.h>
#include <kiln/train/params.h>
#include <kiln/train/modules.h>
#include <kiln/train/optim.h>
#include <kiln/train/train.h>
#include <kiln/train/tokenizer.h>
#include <kiln/step.h>
#include <kiln/aot.h>
#include <kiln/benchmark.h>
#include <kiln/profile.h>
#include <kiln/embed.h>
#include <kiln/extend.h>
#include <kiln/call_sites.h> /* made from the prototypes marked KL_API_AT */
#endif
