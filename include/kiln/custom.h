/* Ops of the user's own: computed by a C function on the host.  Included by <kiln/kiln.h>.
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
 * The op is a node of the graph like any other, on its operands' device and with several results if it likes, in
 * traces, lazily and in regions.  It is a kernel of its own, between others; its results depend on its operands and
 * attributes alone, so it may be left out where they are not needed, and run again (kl_checkpoint).  Attributes are
 * bytes, compiled in: other bytes are another program.  examples/custom.c is a whole program. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_CUSTOM_H
#define KILN_CUSTOM_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_type {
    kl_dtype dtype;
    int rank;
    int64_t dims[KL_MAX_RANK];
} kl_type;

/* One use of an op, for as long as the function runs that gets it. */
typedef struct kl_custom_call {
    uint32_t nin, nout;
    const kl_type *in_type, *out_type; /* out_type: NULL while the types are asked for */
    const void *attr;                  /* aligned to 16 bytes; NULL if there are none */
    size_t attr_bytes;
    const void *const *in;             /* the operands' elements, row-major; to run only, else NULL */
    void *const *out;                  /* memory for the results', to be filled whole */
    char *message;                     /* room for what went wrong: a string, empty on entry */
    size_t message_bytes;
} kl_custom_call;

/* The functions of an op.  They may be called by several threads at once, and call none of Kiln's, but for `gradient`.
 * One that fails returns an error, which becomes that of the call, the trace or the read that needed it, with the op's
 * name, the message and the line of the kl_custom; values are then as they were, and the next call works. */
typedef struct kl_custom_op {
    /* The types of nout results, or an error that refuses these operands or attributes; while recording, and once more
     * when a program is compiled. */
    kl_status (*types)(void *ctx, const kl_custom_call *call, kl_type *out);
    kl_status (*run)(void *ctx, const kl_custom_call *call);
    /* As `backward` of kl_custom_grad: from the operands, the results and the gradients of the floating results, the
     * gradient of each floating operand.  Called once, while recording.  NULL: no gradient flows through, and asking
     * for one is an error. */
    kl_status (*gradient)(void *ctx, const void *attr, size_t attr_bytes, const kl_tensor *in, uint32_t nin,
                          kl_tensor *out, uint32_t nout);
} kl_custom_op;

/* Gives an op a name (1 to 63 bytes), under which every thread can use it until the process ends; ctx is passed on to
 * its functions.  [errors ARGUMENT: types or run is NULL, the name is taken; MEMORY] */
KL_API kl_status kl_custom_register(const char *name, const kl_custom_op *op, void *ctx);

/* Uses it: nin tensors (at least one) on one device, nout results, and up to 64 KiB of attributes, which are copied; a
 * struct must be without padding or zeroed, since every byte counts.
 * [lazy; new handles; errors ARGUMENT: no such op, HANDLE, DEVICE, TRACE, MEMORY, and those of its functions] */
KL_API_AT kl_status kl_custom(const char *name, const void *attr, size_t attr_bytes, uint32_t nin, const kl_tensor *in,
                              uint32_t nout, kl_tensor *out);
/* The same with a call site, which may be NULL. */

#ifdef __cplusplus
}
#endif
#endif
