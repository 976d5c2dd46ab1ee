/* The user's own ops, computed by a C function on the host.  Included by <kiln/kiln.h>.
 *
 *     static kl_status clip_types(void *ctx, const kl_custom_call *call, kl_type *out)
 *     {
 *         if (call->nin != 1 || call->nout != 1 || call->in_type[0].dtype != KL_F32)
 *             return KL_ERR_TYPE;
 *         out[0] = call->in_type[0];
 *         return KL_OK;
 *     }
 *     static kl_status clip_run(void *ctx, const kl_custom_call *call);     // fills call->out[0]
 *
 *     kl_custom_register("clip", &(kl_custom_op){.types = clip_types, .run = clip_run}, NULL);
 *     kl_custom("clip", &limit, sizeof limit, 1, &x, 1, &y);
 *
 * The op is a node of the graph, on its operands' device, with one or more results.  It can be used in traces, lazily
 * and in regions.  It is never fused with other ops.  Its results must depend on its operands and attributes alone,
 * because the node may be removed where nothing uses them, and run a second time (kl_checkpoint).  Attributes are bytes
 * that are compiled in: other bytes make another program. examples/custom.c is a whole program. */
#ifndef KILN_CUSTOM_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_CUSTOM_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_type {
    kl_dtype dtype;
    int rank;
    int64_t dims[KL_MAX_RANK];
} kl_type;

/* One call of a custom op.  It is valid until the function that receives it returns. */
typedef struct kl_custom_call {
    int64_t nin, nout;
    const kl_type *in_type, *out_type; /* out_type: NULL in `types` */
    const void *attr;                  /* aligned to 16 bytes; NULL if there are none */
    size_t attr_bytes;
    const void *const *in;             /* the operands' elements, row-major; only in `run`, else NULL */
    void *const *out;                  /* memory for the results' elements; the function fills all of it */
    char *message;                     /* buffer for an error message: a string, empty on entry */
    size_t message_bytes;
} kl_custom_call;

/* The functions of an op.  Several threads may call them concurrently.  They must not call Kiln, except `gradient`. A
 * function that fails returns an error.  It becomes the error of the call, the trace or the read that needed the op,
 * with the op's name, the message and the line of the kl_custom.  Values are then as they were, and the next call
 * works. */
typedef struct kl_custom_op {
    /* Writes the types of the nout results, or returns an error for these operands or attributes.  Called when the op
     * is recorded and when a program is compiled.  Symbolic lengths are negative numbers; a result may have those of
     * operands.  `run` gets their values. */
    kl_status (*types)(void *ctx, const kl_custom_call *call, kl_type *out);
    kl_status (*run)(void *ctx, const kl_custom_call *call);
    /* As `backward` of kl_custom_grad: from the operands, the results and the gradients of the floating results,
     * computes the gradient of each floating operand.  Called once, while recording.  NULL: the op has no gradient, and
     * a request for one is an error. */
    kl_status (*gradient)(void *ctx, const void *attr, size_t attr_bytes, const kl_tensor *in, int64_t nin,
                          kl_tensor *out, int64_t nout);
} kl_custom_op;

/* Registers an op under a name (1 to 63 bytes), for all threads and until the process ends; ctx is the first argument
 * of its functions.  [errors ARGUMENT: types or run is NULL, the name is taken; MEMORY] */
KL_API kl_status kl_custom_register(const char *name, const kl_custom_op *op, void *ctx);

/* Records a call of the op: nin tensors (at least one) on one device, nout results, and up to 64 KiB of attributes,
 * which are copied.  All bytes of the attributes are compared, so a struct must have no padding or be zeroed first.
 * [lazy; new handles; errors ARGUMENT: no such op, HANDLE, DEVICE, TRACE, MEMORY, and those of its functions] */
KL_API_AT kl_status kl_custom(const char *name, const void *attr, size_t attr_bytes, int64_t nin, const kl_tensor *in,
                              int64_t nout, kl_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
#endif
