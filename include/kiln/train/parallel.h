/* Training with many processes: data parallel gradients, sharded optimizers.  Communicators and collectives are in
 * <kiln/ops/collective.h>.  Included by <kiln/train.h>.
 *
 *     mpirun -n 4 program        torchrun --no-python --nproc-per-node 4 program        srun -n 4 program
 *
 *     kl_comm *comm = kl_comm_new(NULL);                 // finds this process's rank and the number of ranks
 *     kl_comm_sync(comm, n, params);                      // gives all ranks the values of rank 0
 *     ... in each trace, on this rank's part of the batch:
 *     kl_grads(loss, n, params, g);
 *     kl_comm_gradients(comm, n, g, 0);                   // replaces the gradients by their means over all ranks
 *     kl_optimizer_step_gradients(opt, g, rate); */
#ifndef KILN_PARALLEL_H
#define KILN_PARALLEL_H
#include <kiln/train/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data parallel training ---- */

/* Sets n tensors that outlive traces to the values that they have on rank 0.  Call it outside of traces.  [errors as
 * above] */
KL_API_AT kl_status kl_comm_sync(kl_comm *comm, int64_t n, const kl_tensor *tensors);
/* Replaces each gradient by its mean over all ranks.  Entries that are kl_none do not change.  Gradients are sent in
 * buckets of about bucket_bytes bytes (0: 4 MiB), from the last gradient to the first.  A backward pass computes
 * them in this order, so a bucket is sent while the gradients of the next one are computed.  [errors as above;
 * TRACE: none is open] */
KL_API_AT kl_status kl_comm_gradients(kl_comm *comm, int64_t n, kl_tensor *gradients, int64_t bucket_bytes);

/* ---- sharded optimizers (ZeRO stage 1): each rank stores the optimizer states of its part of the parameters ----
 *
 *     kl_comm_shards *shards = kl_comm_shards_new(comm, n, params, 0);
 *     int64_t parts;
 *     const kl_tensor *part = kl_comm_shards_parts(shards, &parts);
 *     kl_optimizer *opt = kl_adam(parts, part, &options);
 *     ... in each trace:  kl_grads(loss, n, params, g);  kl_comm_shards_step(shards, opt, g, rate);
 *
 * The parameters are concatenated into buckets, and each bucket is divided into as many parts as there are ranks.
 * In a step each rank receives the mean of all ranks' gradients for its own part, updates this part of the
 * parameters, and sends it to all ranks.  The optimizer must update each element independently of the others: all
 * optimizers except Adafactor do.  The results have the same bits as those of kl_comm_gradients and an optimizer of
 * all parameters. */
typedef struct kl_comm_shards kl_comm_shards;

/* The parts of a step, for training with more than an optimizer:
 *
 *     kl_comm_shards *shards = kl_comm_shards_new_params(comm, params, 0);      // factors of a tree's parameters
 *     kl_optimizer *opt = kl_adam(parts, part, &options);
 *     kl_optimizer_attach(opt, kl_comm_shards_params(shards));
 *     kl_ema *ema = kl_ema_new(parts, part, 0.999);
 *     ... in each trace:
 *     kl_comm_shards_reduce(shards, g, part_g);             // this rank's part of the mean gradients
 *     kl_comm_shards_clip_norm(shards, part_g, 1.0);        // by the norm of the gradients of all parameters
 *     kl_optimizer_step_gradients(opt, part_g, rate);
 *     kl_ema_update(ema);
 *     kl_comm_shards_gather(shards);                        // the parameters get the new values
 *
 * A kl_accumulator of the parts sums such gradients over several batches.  For an evaluation with the averages, a trace
 * calls kl_ema_swap and then kl_comm_shards_gather.
 * Makes the shards of n different float tensors of one dtype.  The tensors must outlive traces and have the same
 * values on all ranks.
 * [errors ARGUMENT, HANDLE, TYPE, MEMORY: NULL] */
KL_API_AT kl_comm_shards *kl_comm_shards_new(kl_comm *comm, int64_t n, const kl_tensor *params, int64_t bucket_bytes);
/* The same for the parameters of a tree that are not frozen (kl_params_trained).  A bucket has parameters with equal
 * factors.  The tree must outlive the shards; a later change of factors must keep those of a bucket equal. */
KL_API_AT kl_comm_shards *kl_comm_shards_new_params(kl_comm *comm, kl_params *params, int64_t bucket_bytes);
/* A tree of the parts, "part.0" and so on.  kl_comm_shards_reduce and kl_comm_shards_step set the factors of each part
 * to those of its parameters.  An optimizer that is attached to it uses them, and names its states after the parts. */
KL_API const kl_params *kl_comm_shards_params(const kl_comm_shards *shards);
/* This rank's parts of the parameters, one tensor for each bucket; *parts is their number.  The container owns them. */
KL_API const kl_tensor *kl_comm_shards_parts(const kl_comm_shards *shards, int64_t *parts);
/* Records a step of opt, which must be an optimizer of these parts.  gradients: this rank's gradients of all
 * parameters, none of them kl_none.  [errors ARGUMENT: also an optimizer that is not attached to kl_comm_shards_params
 * where the shards are those of a tree; TRACE: none is open; SHAPE; those of kl_optimizer_step_gradients] */
KL_API_AT kl_status kl_comm_shards_step(kl_comm_shards *shards, kl_optimizer *opt, const kl_tensor *gradients,
                                        double lr);
/* Records that parts[], with room for one tensor for each part, becomes this rank's parts of the means of all ranks'
 * gradients.  gradients: as for kl_comm_shards_step.  [errors as kl_comm_shards_step; ARGUMENT: parameters of one
 * bucket have different factors now] */
KL_API_AT kl_status kl_comm_shards_reduce(kl_comm_shards *shards, const kl_tensor *gradients, kl_tensor *parts);
/* kl_clip_norm by the norm of the parts of all ranks, which it returns.  [errors as kl_clip_norm: poison] */
KL_API_AT kl_tensor kl_comm_shards_clip_norm(kl_comm_shards *shards, kl_tensor *parts, double max);
/* Records that the parameters become the parts of all ranks.  [errors ARGUMENT; TRACE: none is open] */
KL_API_AT kl_status kl_comm_shards_gather(kl_comm_shards *shards);
/* Copies the parameters' values into the parts.  Call it outside of traces after the parameters were set by
 * something other than a step, for example by loading a snapshot. */
KL_API_AT kl_status kl_comm_shards_reload(kl_comm_shards *shards);
KL_API void kl_comm_shards_free(kl_comm_shards *shards); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/train/parallel.h> /* made from the prototypes marked KL_API_AT */
#endif
