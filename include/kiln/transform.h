/* Transforms: they change how ops are recorded.  Included by <kiln/kiln.h>.
 *
 * Each transform is a key of <kiln/dispatch.h> that a block or a call includes on its thread.  It acts while recording
 * and records ordinary ops, so its results are fused, differentiated and run on every device; code that uses tensors
 * need not know that a transform is active.  Transforms nest: autocast inside of vmap, vmap inside of vmap, both under
 * a profiler or tracer. */
#ifndef KILN_TRANSFORM_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_TRANSFORM_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- vmap: a function of one element, on a batch of them (key Batched) ----
 *
 *     static kl_status sample_gradient(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
 *     {
 *         kl_tensor w = *(kl_tensor *)ctx, loss = kl_cross_entropy(kl_matmul(in[0], w), in[1]);   // of one sample
 *         out[0] = kl_grad(loss, w);
 *         return KL_OK;
 *     }
 *     kl_vmap(sample_gradient, &w, 2, (kl_tensor[]){images, labels}, NULL, 1, NULL, KL_RANDOM_ERROR, &gradients);
 *
 * The function is called once and sees one element: in[] without the mapped axis.  Its ops are recorded once for the
 * whole batch, so their number does not depend on the batch's length, which may be a symbol (ops/symbol.h); out[i] has
 * the results of all elements, stacked.
 * Other tensors that it uses are shared by all elements; kl_grad with respect to one of them gives a gradient for each
 * element.  The function is recorded like those of <kiln/control.h>, with the same rules. */

#define KL_NO_AXIS 1000 /* in in_axes: this tensor is not mapped */

/* How random numbers in the function are made. */
typedef enum kl_randomness {
    KL_RANDOM_ERROR,     /* they are an error */
    KL_RANDOM_SAME,      /* all elements get the same numbers */
    KL_RANDOM_DIFFERENT  /* each element gets other numbers: those of a tensor with the batch as axis 0 */
} kl_randomness;

/* in_axes: the mapped axis of each in[] (negative: from the end), KL_NO_AXIS for none; NULL: 0 for all. out_axes: the
 * position of the batch axis in each out[]; NULL: 0 for all.  A kl_while runs until the last element is done, and the
 * others keep their values.  Ops without a batching rule (custom ops, a kl_cond whose condition is mapped) are recorded
 * once for each element, with one message in the log (kl_set_log).  Calls nest.  [lazy; new handles; errors ARGUMENT:
 * nothing is mapped, no such axis, the batch is empty, batches of two lengths, random numbers; SHAPE: a tensor inside
 * has KL_MAX_RANK axes, an op without a rule in a batch of symbolic length; those of the function] */
KL_API_AT kl_status kl_vmap(kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in, const int *in_axes,
                            int64_t nout, const int *out_axes, kl_randomness randomness, kl_tensor *out);

/* ---- autocast: products in a narrow dtype, other ops where it is safe (key Autocast) ----
 *
 *     kl_autocast_begin(KL_BF16);
 *     kl_tensor loss = kl_cross_entropy(kl_linear(kl_relu(kl_linear(x, w1, b1)), w2, b2), labels);
 *     kl_autocast_end();
 *
 * Inside of a block every op has its operands cast first, as its policy says (column autocast of `kiln ops`): LOWER to
 * the block's dtype (products), FP32 to f32 (exponentials, sums), PROMOTE to the widest dtype among them, ANY not at
 * all.  Softmax, norms and losses compute in f32.  Weights stay f32, and so do their gradients; a narrow copy of one is
 * made once a block. f64 and integers are left alone. */

/* dtype: KL_BF16 or KL_F16; KL_F32 begins a block without autocast inside another block.  Blocks nest and belong to
 * their thread.  [errors TYPE; ARGUMENT: 32 blocks are open; MEMORY] */
KL_API_AT kl_status kl_autocast_begin(kl_dtype dtype);
KL_API_AT kl_status kl_autocast_end(void); /* [errors ARGUMENT: none is open] */
KL_API kl_dtype kl_autocast_dtype(void); /* the dtype of the innermost block; KL_F32: no autocast here */

/* Loss scaling. f16 gradients below 6e-8 underflow to 0; multiplying the loss by a scale avoids that.  A step whose
 * gradients are not all finite is skipped and the scale is reduced; after `interval` finite steps in a row it is
 * increased.
 *
 *     kl_grad(kl_loss_scale_up(&s, loss), w) -> g        g = kl_loss_scale_down(&s, g)
 *     ok = kl_loss_scale_finite(n, all_g)                kl_assign(w, kl_where(ok, updated_w, w))
 *     kl_loss_scale_update(&s, ok)
 *
 * All of this is recorded as ops: no value is read. */
typedef struct kl_loss_scale {
    kl_tensor scale, good;     /* f32[] states: the scale, and the number of finite steps since it changed */
    double growth, backoff;    /* factors by which the scale grows and shrinks: 2 and 0.5 */
    int interval;              /* 2000 */
} kl_loss_scale;
/* Initialises *s; its numbers may be changed afterwards.  [new handles; errors ARGUMENT, DEVICE] */
KL_API_AT kl_status kl_loss_scale_init(kl_loss_scale *s, kl_device device, double initial);
KL_API void kl_loss_scale_deinit(kl_loss_scale *s);
/* loss * scale, f32 or f64 [lazy; TYPE] */
KL_API_AT kl_tensor kl_loss_scale_up(const kl_loss_scale *s, kl_tensor loss);
/* gradient / scale, f32 or f64 [lazy; TYPE] */
KL_API_AT kl_tensor kl_loss_scale_down(const kl_loss_scale *s, kl_tensor gradient);
/* bool[]: whether all elements of all gradients are finite [lazy; TYPE] */
KL_API_AT kl_tensor kl_loss_scale_finite(int64_t n, const kl_tensor *gradients);
KL_API_AT kl_status kl_loss_scale_update(kl_loss_scale *s, kl_tensor finite); /* assigns the next scale [TYPE] */

/* ---- the profiler of calls (key Profiler) ---- */

enum { KL_OP_RECORD_INPUTS = 4 };
/* One call of an op, in call order.  The times of kernels are in the profile of kl_profile_begin (measure.h). */
typedef struct kl_op_record {
    const char *op;                      /* the op's name; valid until the process ends */
    int64_t ns;                          /* time of the call on the host: dispatch, layers, recording */
    kl_site site;                        /* the call site; file NULL: not known */
    uint32_t nin;
    /* types of the first operands */
    struct { kl_dtype dtype; int rank; int64_t dims[KL_MAX_RANK]; } in[KL_OP_RECORD_INPUTS];
} kl_op_record;
/* Starts recording this thread's calls.  Each call is one record, whatever layers and kernels do for it; a call inside
 * a function of kl_vmap is one record for the whole batch.  [errors ARGUMENT: it has begun; MEMORY] */
KL_API kl_status kl_op_profile_begin(void);
/* Ends recording.  The records are valid until this thread begins again or ends.  Either pointer may be NULL.  [errors
 * ARGUMENT: it has not begun] */
KL_API kl_status kl_op_profile_end(int64_t *n, const kl_op_record **records);

/* ---- the tracer: calls as a graph (keys TracerOuter and Tracer) ---- */

typedef struct kl_tracer kl_tracer;
/* The level at which the tracer sees calls. */
typedef enum kl_tap {
    /* as the user makes them: before casts and batching; f32 where autocast's casts made a call mix dtypes */
    KL_TAP_CALLS,
    KL_TAP_RECORDED /* as they are recorded: with casts and batching, before gradients */
} kl_tap;
/* Starts recording this thread's calls as a graph with inputs in[].  The calls have their usual effect, in traces and
 * outside of them, marked by kl_requires_grad or not.  Other tensors that they use are captured; numbers and data
 * passed to the calls become constants of the graph.  A thread can have one tracer for each level.  NULL: it failed.
 * [errors ARGUMENT, HANDLE, TRACE, MEMORY] */
KL_API kl_tracer *kl_tracer_begin(kl_tap tap, int64_t nin, const kl_tensor *in);
/* Stops recording; out[], made by the recorded calls, become the graph's results.  [errors ARGUMENT: out[] were not
 * made by them, or a call cannot be traced] */
KL_API kl_status kl_tracer_end(kl_tracer *tr, int64_t nout, const kl_tensor *out);
/* The graph as text (ir/README.md), valid until the next call on tr; NULL: out of memory. */
KL_API const char *kl_tracer_text(kl_tracer *tr);
/* Repeats the calls on other tensors of the same types.  Captured tensors must still exist; their current values are
 * used.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, and those of the ops] */
KL_API_AT kl_status kl_tracer_run(const kl_tracer *tr, int64_t nin, const kl_tensor *in, int64_t nout,
                                  kl_tensor *out);
KL_API void kl_tracer_free(kl_tracer *tr); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
#endif
