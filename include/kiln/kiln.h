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
 * Calls record; nothing runs before kl_trace_end, or, outside a trace, before a read.  A step recorded again with the
 * same ops, shapes and dtypes is compiled once: data and numbers given at run time (kl_input, kl_scalar, the *_scalar
 * ops, seeds) never cause another compilation.
 *
 * A tensor is a handle passed by value.  Inside a trace new handles are temporaries: they are released when the trace
 * ends unless kept (kl_keep).  Outside one they live until kl_release or the end of the enclosing scope.
 *
 * Errors: a call that fails returns a poison handle (or a status) and sets kl_last_error().  Calls given a poison
 * handle return poison silently, so it is enough to check the result of kl_trace_end() and of reads.  Inside a trace
 * the first error belongs to the trace: kl_trace_end() returns it, drops the trace and leaves every value as it was.
 * The library never exits, aborts or prints unasked.
 *
 * Threads may record their own traces at once and share values; a handle of another thread's open trace is an error.
 * Each function marked KL_API_AT has a variant with a call site, kl_NAME_at, whose first parameter is a const kl_site *
 * (may be NULL).  Under GCC and Clang it is also a macro that passes the caller's file and line to that variant; define
 * KL_NO_CALL_SITES before including to have plain functions only.  A plain call has the thread's call site: the line of
 * the call that runs around it, of a function of Kiln's, or what kl_set_call_site (extend.h) has set; else none.
 *
 * This header includes those of compiling and running graphs.  By who wants them are included <kiln/train.h>
 * (parameters, modules, optimizers, data, files), <kiln/onnx.h> (models),
 * <kiln/formats/dlpack.h>, <kiln/dispatch.h> and <kiln/compat.h> (own kernels, layers above ops), <kiln/extend.h> (code
 * on top of Kiln) and <kiln/plugin.h> (own devices). */
#ifndef KILN_KILN_H
#define KILN_KILN_H
#include <kiln/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor handle: valid until it is released; {0} is kl_none. */
typedef struct kl_tensor { uint64_t id; } kl_tensor;
/* A device handle; {0} is no device. */
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
/* Options:
 * - "fuse": 1 groups ops into kernels, 0 makes each op a kernel of its own.  On cpu results are the same bits.
 * - "order": KL_ORDER_GRAPH makes programs for GPUs add floats in the order of the graph, so that their results are the
 *   bits of ref and cpu; KL_ORDER_SCHEDULE, as at first, in the order of each kernel's schedule, which is faster.
 *   On processors with AMX, KL_ORDER_GRAPH keeps large products of bf16 in the order of small ones (order.md).
 *   It is asked when a program is built or looked up: frozen steps keep theirs.  order.md says what it costs.
 * - "threads": the number of threads that run kernels; 0 means one for each processor.
 * - "cache_bytes": the limit in bytes of the kernels kept on disk; 0 keeps none there.
 * - "program_bytes": the limit in bytes of programs and their kernels in memory, at first 256 MiB, and a sixteenth as
 *   much for kernels before there is code of them.  A trace of each shape has a program.  Above it the least
 *   recently run are evicted, but no program that is running, belongs to a frozen step, or was timed by a profile. 0
 *   keeps only those.
 * - "background_compile": 1 runs a new trace at once on unfused kernels while a background thread compiles the fused
 *   ones.  On cpu results are the same bits.
 * - "elide_barriers": 1 places a barrier between two kernels only where one reads what another thread of the other
 *   stores, 0 places one between any two.  Results are the same bits.
 * - "arena_of_bounds": 1 gives each run of a program with symbolic lengths the memory for temporaries that their
 *   greatest values need, 0 what those of the run need.
 * - "check_nan": 1 makes a trace, step or read that would return a NaN fail with CHECK; the error names the node, its
 *   line and the operands that made the NaN, and no value changes. 2 includes infinities.  Intermediate values may be
 *   either.  States are not updated in place.
 * - "perf_map": 1 lists kernels loaded from here on in /tmp/perf-PID.map, where `perf report` finds their names.
 * - "tune": 1 tunes a fused program before its second run, unless it was tuned before (kl_tune).  On cpu, and with
 *   "order" KL_ORDER_GRAPH, results are the same bits.
 * - "tune_seconds": the limit in seconds of that tuning, for each program.
 *
 * [errors ARGUMENT] */
KL_API kl_status kl_set_option(const char *name, int64_t value);
enum { KL_ORDER_SCHEDULE, KL_ORDER_GRAPH }; /* of option "order" */
KL_API kl_status kl_get_option(const char *name, int64_t *value);
/* Sets schedules for kernels of programs built from here on.  They replace those of an earlier call and of
 * KILN_SCHEDULES.  NULL or "": every kernel has the schedule that Kiln chooses.  The text has one line for each kernel
 * to change:
 *     graph @train_step
 *     @k0_add_relu schedule map width 16 grain 64
 * Dump stage "schedules" prints the current text of a program; ir/README.md describes the records.  Lines before the
 * first `graph` apply to every graph that has no section; `graph @name unfused` applies to its unfused kernels.
 * On cpu any schedule gives the same bits; on GPUs it may change the order of sums, unless option "order" is
 * KL_ORDER_GRAPH (order.md).  A line for a kernel that the program does not have, or a schedule that it cannot
 * have, is an error of kl_trace_end or a read, with place.
 * [errors PARSE, MEMORY: the schedules stay as they were] */
KL_API kl_status kl_set_schedules(const char *text);
/* Process-wide counters; -1 for an unknown name.
 * - "graphs_built": programs planned.
 * - "compiles": kernels that a code generator compiled.
 * - "launches": kernels run.
 * - "barriers": barriers between all threads that were executed after a kernel or a sequence of kernels.
 * - "host_ops": the user's ops that were computed on the host for another device, with operands and results copied.
 * - "bytes_via_host": bytes copied from one device to another through the host's memory, because no direct path exists.
 * - "peer_copies": direct copies from one device to another.
 * - "replays": traces that made the same calls as an earlier one, so that nothing was recorded.
 * - "variants": programs built for one value of the symbols of a graph (ops/symbol.h), where none takes all values.
 * - "program_hits" and "program_misses", "kernel_hits" and "kernel_misses", "disk_hits" and "disk_misses": look-ups in
 *   the three levels of the cache.  Each level is searched where the one before it missed.
 * - "programs_evicted", "kernels_evicted": dropped from memory because of option "program_bytes". */
KL_API int64_t kl_counter(const char *name);
/* The reason why compiled kernels are not kept on disk for the next process, or "" when they are.  The folder is
 * KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln; it must be owned by the user and not writable by
 * others.  Programs run without it.  Valid until this thread's next call. */
KL_API const char *kl_cache_off_reason(void);
/* Writes every stage of the next program built by this thread to files in the existing folder `dir`. NULL cancels
 * this. */
KL_API void kl_dump_next(const char *dir);
/* Writes one stage of a trace to a file.  Stages: captured, differentiated, simplified, numerics, fused, scheduled
 * (kernels), schedules (the text that kl_set_schedules takes), llvm, asm, or source (the kernels as CUDA C).  The
 * format depends on the path: .dot makes a picture for Graphviz (not of code), .html a page of all stages (`stage` is
 * ignored and may be NULL), any other ending makes text. trace: the name of a trace that has run in this process; its
 * last program is written.  NULL: the open trace of this thread, compiled as if it ended now; if it keeps and assigns
 * nothing yet, the values that nothing reads count as kept.  Nothing runs, and the trace stays open.  [errors ARGUMENT:
 * no such stage, trace or picture; TRACE: none is open; IO; and those of compiling it] */
KL_API_AT kl_status kl_dump(const char *trace, const char *stage, const char *path);
/* Does a device compute the bits that the interpreter computes?  The graph of the trace of this name that ran last is
 * run on the device ({0}: the trace's own), unfused and fused, with random numbers in place of its data and of symbolic
 * lengths, and all results are compared with the interpreter's; any NaN equals any other.  They are the same bits where
 * order.md promises it.  The trace's values stay as they are; ops of the user (<kiln/custom.h>) and kl_assert see
 * the random numbers, and a trace with collectives has to be checked by all ranks.
 * [errors CHECK: a result differs: which, and the kernel and node that is the first; ARGUMENT: no such trace has run;
 * TRACE: one is open; DEVICE; those of running it] */
KL_API kl_status kl_check_bits(const char *trace, kl_device device);

/* ---- errors, per thread ---- */

/* The last error as "file:line: op: what is wrong", "" if none.  Valid until this thread's next failing call. */
KL_API const char *kl_last_error(void);
KL_API kl_status kl_last_error_code(void);
KL_API void kl_clear_error(void);
/* For functions built from Kiln's: reports an error as Kiln's own functions do, with this code (ARGUMENT for KL_OK) and
 * message.  The open trace fails with it.  If the trace had failed before, it keeps its first error, unless that is the
 * current kl_last_error(): then the new message replaces it.  Returns the code. */
KL_API_AT kl_status kl_fail(kl_status code, const char *message);
/* The name of a status: "shape error" for KL_ERR_SHAPE. */
KL_API const char *kl_status_name(kl_status status);

/* ---- devices ---- */

/* The device that KILN_DEVICE names, else the first of cuda, hip, cpu and ref that works here: its driver is present,
 * it opens, and a test kernel compiles and gives the right number. vulkan is used only where it is named, because it
 * may be a software device on this processor. <kiln/device.h> has more functions.  [errors DEVICE: {0}] */
KL_API kl_device kl_device_default(void);
/* Finds a device by name:
 * - "ref": the interpreter.
 * - "cpu": machine code for this processor.
 * - "vulkan" or "vulkan:N": a device with its own memory; reads and writes of the host are copies.  It has the dtypes
 *   that `kiln devices` lists.  Integers and random bits are the same as everywhere; floats differ by a few units in
 *   the last place.
 * - "meta": a device without memory, for a dry run.  Tensors on it have a shape and a dtype but no data; ops, gradients
 *   and whole traces are checked, and nothing is computed, compiled or stored. kl_input ignores its data (NULL is
 *   allowed). kl_to copies a tensor to it and none from it; a read is an error.
 *
 * [errors DEVICE: {0}, with the reason it cannot be used] */
KL_API kl_device kl_device_named(const char *name);
/* The device's name, "none" for {0}.  The name of an autodiff device (<kiln/autodiff.h>), "autodiff<cpu>", is accepted
 * by kl_device_named, too.  Valid until the process ends. */
KL_API const char *kl_device_name(kl_device device);
/* The reason why kl_device_default() rejected each device before the chosen one; "" when it rejected none, or
 * KILN_DEVICE is set. */
KL_API const char *kl_device_fallback_reason(void);
/* Computes the recorded values that have none yet, as kl_flush does, and waits until all of the device's work is done.
 * [errors DEVICE: the first one since the last call: "An error happened during execution.  Caused by: .." The next op
 * works.  The values that failed stay lazy and are computed again when they are needed.] */
KL_API kl_status kl_sync(kl_device device);

/* ---- dtypes ---- */

KL_API const char *kl_dtype_name(kl_dtype dtype); /* "f32" */
KL_API size_t kl_dtype_size(kl_dtype dtype);      /* bytes of one element */

/* ---- properties of a tensor, without computing it ---- */

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
/* KL_OK for a usable handle, else the reason: the cause of a poison handle, HANDLE for one that is stale or foreign. */
KL_API kl_status kl_check(kl_tensor t);

/* ---- traces ---- */

/* Starts recording on this thread; the name appears in dumps and messages.  If it fails, what follows is part of a
 * trace that has failed, up to kl_trace_end, which returns the error, or the next kl_trace_begin; only reads work.
 * [errors TRACE: one is open, which then fails, or is suspended; MEMORY] */
KL_API_AT kl_status kl_trace_begin(const char *name);
/* Compiles the recorded graph unless its program is cached, runs it, and gives kept and assigned handles their values.
 * A trace that keeps and assigns nothing runs nothing and logs a warning.  The tensors of a trace that failed are
 * poison with its error until another trace of this thread fails; they need no release.  [errors: TRACE without a
 * begin, else the first error since kl_trace_begin; every value is then as before] */
KL_API_AT kl_status kl_trace_end(void);
/* Drops the open trace of this thread without running it; does nothing without one.  A thread that left a function of
 * kl_vmap or of a region op (<kiln/control.h>) by longjmp calls this to end the interrupted call, and its trace if
 * there is one.  Inside such a function it is an error (TRACE). */
KL_API void kl_trace_abandon(void);
/* Whether this thread has a trace open. */
KL_API bool kl_tracing(void);
/* Until kl_trace_resume, what this thread records is not part of its trace, nor of the region or kl_vmap function
 * being recorded: ops are recorded on their own, without gradients and without the keys that the thread includes and
 * excludes, and can be read immediately.  Use it for values that recording depends on, such as a computed shape.
 * Tensors of the trace must not be used meanwhile, and tensors that it has assigned cannot be read.  New tensors
 * behave like tensors made before the trace.  No trace can begin.  Nests.  Scopes, no_grad and autocast blocks and
 * composites that begin here end here.  [errors MEMORY; TRACE: nothing is suspended, or an end is missing] */
KL_API_AT kl_status kl_trace_suspend(void);
KL_API_AT kl_status kl_trace_resume(void);

/* Makes a handle outlive the trace or scope it was made in; the caller releases it.  Returns t.  [errors HANDLE] */
KL_API_AT kl_tensor kl_keep(kl_tensor t);
/* Gives state the value of `value` (same shape, dtype and device).  From here on the handle means the new value; in a
 * trace the change becomes visible outside at kl_trace_end.  The update is in place where nothing else refers to the
 * old value.  [errors HANDLE, SHAPE, TYPE, DEVICE] */
KL_API_AT kl_status kl_assign(kl_tensor state, kl_tensor value);
/* Releases a handle; kl_none and poison are allowed.  Values recorded from it stay valid.  [errors HANDLE] */
KL_API_AT kl_status kl_release(kl_tensor t);
/* Handles made outside a trace between begin and end are released at the end unless kept.  Scopes nest. */
KL_API kl_status kl_scope_begin(void);
KL_API_AT kl_status kl_scope_end(void);
/* A name for errors of shapes, dtypes and devices, cut at 63 bytes, and for dumps, cut at 23.  Parameters of a tree
 * have theirs.  [errors HANDLE] */
KL_API_AT kl_status kl_set_name(kl_tensor t, const char *name);
/* Calls of this thread between begin and end are those of a part of the program with this name (letters, digits, '_'
 * and '.'; "encoder.3").  Scopes nest: inside of "encoder.3" the scope "attention" is "encoder.3.attention", which
 * errors say before the function's name, and which dumps, the HTML page and profiles show behind the name of the C
 * function.  A function that Kiln calls has to end what it begins.  Paths are kept until the process ends: name the
 * parts of a program, not its steps.  [errors ARGUMENT: other characters, a path of more than 100 bytes, 32 open
 * scopes; kl_name_end: none is open; MEMORY] */
KL_API_AT kl_status kl_name_begin(const char *name);
KL_API_AT kl_status kl_name_end(void);

/* What the last kl_trace_end of this thread ran. */
typedef struct kl_run_info {
    int64_t kernels;           /* kernels launched, not counting those inside kl_cond, kl_while and kl_scan */
    int64_t nodes;             /* nodes recorded */
    int64_t arena_bytes;       /* bytes of temporaries */
    int64_t peak_bytes;        /* bytes of temporaries, inputs, states and outputs */
    int64_t lower_bound_bytes; /* lower bound of arena_bytes for any placement of the temporaries */
    int64_t graphs_built;      /* programs planned and kernels compiled by it: 0 when the program was cached */
    int64_t compiles;
    /* 1: floats were added in the graph's order, as on ref and cpu; 0: on GPUs in that of schedules (option "order") */
    int64_t graph_order;
} kl_run_info;
/* [errors TRACE: nothing has run on this thread] */
KL_API kl_status kl_trace_info(kl_run_info *info);
/* The reason why the last kl_trace_end of this thread built a program: "file:line: node, op: " and the first field in
 * which the trace differs from the most similar known one, with both nodes as text; "" when it built none.  Valid until
 * the process ends. */
KL_API const char *kl_trace_miss(void);

/* ---- printing and checking values ---- */

/* Prints a line with the label, type, first elements, and the minimum, maximum and mean of x, to standard output or to
 * the function set by kl_set_print.  Returns x; gradients flow through it unchanged.  In a trace it is a node: it
 * prints each time the trace or a frozen step runs, in the order of the calls, even if nothing uses x.  Outside a trace
 * it prints immediately.  In a function recorded by kl_scan, kl_while or kl_cond it prints in each iteration; in a
 * function of kl_checkpoint or kl_custom_grad it prints once, and not when the backward pass recomputes values.  States
 * of a trace that prints values are not updated in place. label: up to 255 bytes, NULL for none.  [errors HANDLE;
 * TRACE: in the condition of kl_while, in the gradient of kl_custom_grad, in a function recorded outside of a trace;
 * ARGUMENT] */
KL_API_AT kl_tensor kl_print(kl_tensor x, const char *label);
/* Checks that all elements of a condition (bool) are true.  If one is not, the trace or step that contains the check
 * fails with CHECK, the message and the line; all values are as before, and the next call works.  Outside of a trace
 * the check runs immediately.  [errors as kl_print; TYPE: no bool; CHECK] */
KL_API_AT kl_status kl_assert(kl_tensor condition, const char *message);
/* Sends the lines of kl_print, without line break, to this function, one at a time, on the thread that runs the trace.
 * The function must not call Kiln.  NULL: standard output. */
KL_API void kl_set_print(void (*print)(void *ctx, const char *line), void *ctx);

/* ---- gradients ---- */

/* Marks t as a tensor to differentiate with respect to.  Outside a trace, values that depend on it stay differentiable
 * after they are read.  [errors HANDLE, TYPE: not a float] */
KL_API_AT kl_status kl_requires_grad(kl_tensor t);
/* The gradient of the sum of loss's elements with respect to wrt, of wrt's shape; it is differentiable itself.  A loss
 * of more than one element is a warning in the log (kl_set_log) when a program is built.  [errors HANDLE, DEVICE, TYPE:
 * not floats, GRAD: the loss does not depend on wrt or keeps no history, or wrt was assigned in the trace after the
 * loss had used it] */
KL_API_AT kl_tensor kl_grad(kl_tensor loss, kl_tensor wrt);
/* Writes the gradients of one loss with respect to n tensors, as kl_grad computes them, to gradients[]; after an error
 * all of them are kl_none.  Where the loss depends on some of them, the gradients of the others are zeros, which is a
 * warning in the log.  [errors as kl_grad; ARGUMENT; GRAD: the loss depends on none of them] */
KL_API_AT kl_status kl_grads(kl_tensor loss, int64_t n, const kl_tensor *wrt, kl_tensor *gradients);
/* The same value, through which no gradient flows. */
KL_API_AT kl_tensor kl_detach(kl_tensor t);
/* Between begin and end, ops that this thread records have no gradients: their results have no history, are not tracked
 * outside a trace, and keep no operand alive.  Values are the same.  A kl_grad in the block has a value but is not
 * differentiable.  Blocks nest.  A block begun in a trace is closed when the trace ends, also after an error; one begun
 * before a trace must be ended after it.  [errors ARGUMENT: no block is open, or not in this trace] */
KL_API kl_status kl_no_grad_begin(void);
KL_API_AT kl_status kl_no_grad_end(void);
/* Whether ops that this thread records now have gradients: false in a no_grad block. */
KL_API bool kl_grad_enabled(void);

/* ---- reads: they compute the values needed and no others; in a trace only values made before it can be read ---- */

/* Copies the elements, row-major, to `data`; bytes must be their size.  [errors ARGUMENT, HANDLE, TRACE] */
KL_API_AT kl_status kl_read(kl_tensor t, void *data, size_t bytes);
/* Converts the only element of a tensor that has exactly one.  [errors as kl_read, SHAPE; then NaN or 0] */
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
#include <kiln/ops/small_types.h>
#include <kiln/ops/recurrent.h>
#include <kiln/ops/attention.h>
#include <kiln/ops/symbol.h>
#include <kiln/ops/collective.h>
#include <kiln/device.h>
#include <kiln/autodiff.h>
#include <kiln/control.h>
#include <kiln/custom.h>
#include <kiln/transform.h>
#include <kiln/storage.h>
#include <kiln/step.h>
#include <kiln/aot.h>
#include <kiln/measure.h>
#include <kiln/embed.h>
#include <kiln/call_sites.h> /* made from the prototypes marked KL_API_AT */
#endif
