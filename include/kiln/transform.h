/* Transforms: what changes how ops are recorded, op by op.  Included by <kiln/kiln.h>.
 *
 * Each is a key of <kiln/dispatch.h> that a block or a call includes on its thread.  It acts while recording and
 * records ordinary ops, so that what it makes is fused, differentiated and run on every device like anything else; code
 * that uses tensors does not know that one is active.  They nest: autocast inside of vmap, vmap inside of vmap, both
 * under a profiler or tracer. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_TRANSFORM_H
#define KILN_TRANSFORM_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- vmap: a function of one element, on a batch of them (key Batched) ----
 *
 *     static kl_status sample_gradient(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
 *     {
 *         kl_tensor w = *(kl_tensor *)ctx, loss = kl_cross_entropy(kl_matmul(in[0], w), in[1]);   // of one sample
 *         out[0] = kl_grad(loss, w);
 *         return KL_OK;
 *     }
 *     kl_vmap(sample_gradient, &w, 2, (kl_tensor[]){images, labels}, NULL, 1, &gradients, NULL, KL_RANDOM_ERROR);
 *
 * The function is called once and sees one element: in[] without the axis that is mapped.  What it does is recorded
 * once for the whole batch: the number of ops does not depend on its length, and out[i] is f of the elements, stacked.
 * Other tensors that it uses are the same for all elements; kl_grad in one of them gives each element's own gradient.
 * The function is recorded like those of <kiln/control.h>, with the same rules. */

#define KL_NO_AXIS 1000 /* in in_axes: this tensor is the same for all elements */

/* Random numbers that the function asks for. */
typedef enum kl_randomness {
    KL_RANDOM_ERROR,     /* are an error */
    KL_RANDOM_SAME,      /* are those that it asks for, the same for all elements */
    KL_RANDOM_DIFFERENT  /* are others for each element: those of a tensor with the batch as axis 0 */
} kl_randomness;

/* in_axes: the axis of each in[] that is mapped (negative: from the end), KL_NO_AXIS for none; NULL: 0 for all.
 * out_axes: where the batch's axis goes in each out[]; NULL: 0 for all.  Ops that have no rule for batches are recorded
 * for each element by itself, and say so once in the log (kl_set_log).  Nests. [lazy; new handles; errors ARGUMENT:
 * nothing is mapped, no such axis, the batch is empty, batches of two lengths, random numbers; SHAPE: a tensor inside
 * has KL_MAX_RANK axes; those of the function] */
KL_API_AT kl_status kl_vmap(kl_region_fn *fn, void *ctx, uint32_t nin, const kl_tensor *in, const int *in_axes,
                            uint32_t nout, kl_tensor *out, const int *out_axes, kl_randomness randomness);

/* ---- autocast: products in a narrow dtype, the rest where it is safe (key Autocast) ----
 *
 *     kl_autocast_begin(KL_BF16);
 *     kl_tensor loss = kl_cross_entropy(kl_linear(kl_relu(kl_linear(x, w1, b1)), w2, b2), labels);
 *     kl_autocast_end();
 *
 * Inside of a block every op has its operands cast first, as its policy says (column autocast of `kiln ops`): LOWER to
 * the block's dtype (products), FP32 to f32 (exponentials, sums), PROMOTE to the widest dtype among them, ANY not at
 * all. Softmax, norms and losses compute in f32.  Weights stay f32, and so do their gradients; a narrow copy of one is
 * made once a block. f64 and integers are left alone. */

/* dtype: KL_BF16 or KL_F16, or KL_F32 for a block without autocast inside of another one.  Blocks nest, and are their
 * thread's.  [errors TYPE; ARGUMENT: 32 blocks are open; MEMORY] */
KL_API_AT kl_status kl_autocast_begin(kl_dtype dtype);
KL_API_AT kl_status kl_autocast_end(void); /* [errors ARGUMENT: none is open] */
KL_API kl_dtype kl_autocast_dtype(void); /* of the innermost block; KL_F32: no autocast here */

/* f16 gradients below 6e-8 are 0: with the loss so many times as large they are not.  A step whose gradients are not
 * all finite is left out and the scale made smaller; after `interval` good ones in a row it grows.
 *
 *     kl_grad(kl_loss_scale_up(&s, loss), w) -> g        g = kl_loss_scale_down(&s, g)
 *     ok = kl_loss_scale_finite(n, all_g)                kl_assign(w, kl_where(ok, updated_w, w))
 *     kl_loss_scale_update(&s, ok)
 *
 * All of it is recorded: no value is read. */
typedef struct kl_loss_scale {
    kl_tensor scale, good;     /* f32[] states: the scale, and good steps since it changed */
    double growth, backoff;    /* what the scale is multiplied by: 2, and 0.5 */
    int interval;              /* 2000 */
} kl_loss_scale;
/* The numbers above may be changed after it.  [new handles; errors ARGUMENT, DEVICE] */
KL_API_AT kl_status kl_loss_scale_init(kl_loss_scale *s, kl_device device, double initial);
KL_API void kl_loss_scale_free(kl_loss_scale *s);
/* loss * scale, f32 or f64 [lazy; TYPE] */
KL_API_AT kl_tensor kl_loss_scale_up(const kl_loss_scale *s, kl_tensor loss);
/* gradient / scale, f32 or f64 [lazy; TYPE] */
KL_API_AT kl_tensor kl_loss_scale_down(const kl_loss_scale *s, kl_tensor gradient);
/* bool[]: all of all [lazy; TYPE] */
KL_API_AT kl_tensor kl_loss_scale_finite(int n, const kl_tensor *gradients);
KL_API_AT kl_status kl_loss_scale_update(kl_loss_scale *s, kl_tensor finite); /* assigns the next scale [TYPE] */

/* ---- the profiler of calls (key Profiler) ---- */

enum { KL_OP_RECORD_INPUTS = 4 };
/* One call of an op, in the order in which calls came.  What runs for it later is kl_profile_begin's (profile.h). */
typedef struct kl_op_record {
    const char *op;                      /* its name, Kiln's: valid until the process ends */
    int64_t ns;                          /* the host's time for the call: dispatch, layers, recording */
    kl_site site;                        /* where it was made; file NULL: not known */
    uint32_t nin;
    /* types of the first operands */
    struct { kl_dtype dtype; int rank; int64_t dims[KL_MAX_RANK]; } in[KL_OP_RECORD_INPUTS];
} kl_op_record;
/* From here on this thread's calls are noted: one record each, whatever layers and kernels do for it, and in a function
 * that kl_vmap records one for the whole batch.  [errors ARGUMENT: it has begun; MEMORY] */
KL_API kl_status kl_op_profile_begin(void);
/* The records; valid until this thread begins again or ends.  Either may be NULL.  [errors ARGUMENT: it has not
 * begun] */
KL_API kl_status kl_op_profile_end(const kl_op_record **records, uint32_t *n);

/* ---- the tracer: calls as a graph (keys TracerOuter and Tracer) ---- */

typedef struct kl_tracer kl_tracer;
/* Where calls are seen. */
typedef enum kl_tap {
    KL_TAP_CALLS,   /* as they are made: before casts and batches; f32 where autocast's casts made a call mix dtypes */
    KL_TAP_RECORDED /* as they are recorded: with casts and batches, before gradients */
} kl_tap;
/* From here on this thread's calls are noted as a graph with inputs in[] while they do what they do, in traces and
 * outside of them, marked by kl_requires_grad or not.  Other tensors that they use are captured; numbers and data that
 * they are given are the graph's own.  One a tap and thread.  NULL: it failed.  [errors ARGUMENT, HANDLE, TRACE,
 * MEMORY] */
KL_API kl_tracer *kl_tracer_begin(kl_tap tap, uint32_t nin, const kl_tensor *in);
/* Not any more; out[] are the graph's results, made by the calls.  [errors ARGUMENT: out[] are others, or something
 * cannot be traced] */
KL_API kl_status kl_tracer_end(kl_tracer *tr, uint32_t nout, const kl_tensor *out);
/* The graph as text (ir/README.md), valid until asked for again or freed; NULL: out of memory. */
KL_API const char *kl_tracer_text(kl_tracer *tr);
/* Makes the calls again, on other tensors of the same types.  Captured tensors have to be there still, with the values
 * they have now.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, and those of the ops] */
KL_API_AT kl_status kl_tracer_run(const kl_tracer *tr, uint32_t nin, const kl_tensor *in, uint32_t nout,
                                  kl_tensor *out);
KL_API void kl_tracer_free(kl_tracer *tr); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
