/* Training with many processes: communicators, collective ops, data parallel gradients, sharded optimizers.
 * Included by <kiln/kiln.h>.  (<kiln/collective.h> is about several devices of one process.)
 *
 *     mpirun -n 4 program        torchrun --no-python --nproc-per-node 4 program        srun -n 4 program
 *
 *     kl_comm *comm = kl_comm_new(NULL);                 // finds this process's rank and the number of ranks
 *     kl_comm_sync(comm, n, params);                      // gives all ranks the values of rank 0
 *     ... in each trace, on this rank's part of the batch:
 *     kl_grads(loss, n, params, g);
 *     kl_comm_gradients(comm, n, g, 0);                   // replaces the gradients by their means over all ranks
 *     kl_optimizer_step_gradients(opt, g, rate);
 *
 * All ranks run the same program: the same collectives, in the same order, with the same shapes and dtypes.  If a
 * rank calls something else, has ended, or is late by more than the timeout, the other ranks get an error that names
 * this rank; their trace has then failed, and all values are as they were before it.  After a rank is lost the
 * communicator cannot be used any more: every further collective is an error.
 *
 * A collective is a node of the graph.  On the CPU it runs on a thread of its own, while kernels that do not need
 * its result run.  Values on devices with separate memory are copied to the host and back, except with the transport
 * "nccl", which moves values of CUDA devices between these; a process then uses one such device in its collectives.
 * Elements are combined in the order of the ranks, so all ranks get the same bits, at every repetition, with every
 * transport: NCCL moves the data, but the sums are computed by Kiln's kernels.  Collectives run in the order in
 * which they are recorded, even if nothing reads their results.  At most one thread at a time may use a
 * communicator. */
#include <kiln/kiln.h> /* before the guard, because kiln.h includes this file */
#ifndef KILN_COMM_H
#define KILN_COMM_H
#include <kiln/collective.h>
#include <kiln/train/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_comm kl_comm;

/* Fields that are 0 or NULL are taken from the environment.  Rank and ranks come from the variables of torchrun
 * (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_*, PMI_*) or Slurm (SLURM_PROCID, SLURM_NTASKS,
 * SLURM_LOCALID); the address of rank 0 comes from MASTER_ADDR and MASTER_PORT (if they are not set: 127.0.0.1,
 * 29500).  If none of the variables is set, the program is the only rank. */
typedef struct kl_comm_options {
    const char *transport;   /* "mpi": the MPI that Kiln was built with; "socket": TCP, not encrypted; "nccl": NCCL for
                              values on CUDA devices, for all others the default; NULL, the default: "mpi" if mpirun
                              started the program, else "socket" */
    double timeout;        /* seconds; 0: 10 */
    int rank, ranks;       /* ranks 0: rank and ranks come from the environment */
    const char *address;   /* address of rank 0, for sockets */
    int port;
    const char *secret;    /* the job's secret, for sockets; NULL: KILN_COMM_SECRET; see below */
} kl_comm_options;

/* What sockets protect: with a secret (the same text for all ranks, long and random, such as `openssl rand -hex 32`),
 * only a process that knows it can be a rank: both ends of each connection prove it by HMAC-SHA-256 of random bytes.
 * Others, and hellos that do not fit the job, are disconnected, and the job goes on waiting for its ranks.  Without a
 * secret any process that can connect can be a rank and send gradients.  Ranks listen only at the address of rank 0, or
 * at that by which they reach it.  In neither case is what follows encrypted or signed: who can read or change the
 * traffic reads or changes the values.  Then use a private network, or a tunnel.  The other transports have the
 * protection that MPI and NCCL have. */

/* Makes a communicator of all ranks.  The first call of a program waits until all ranks have made it.  Later
 * communicators use the same connections, and the order of their collectives is checked separately.  Options NULL:
 * all fields 0.
 * [errors ARGUMENT: an invalid variable or option; DEVICE: this transport does not exist here; IO: a rank does not
 * connect within the timeout, such as one with the number of another, or another secret; MEMORY: NULL] */
KL_API kl_comm *kl_comm_new(const kl_comm_options *options);
KL_API int kl_comm_rank(const kl_comm *comm);       /* comm NULL: -1, as for the next two */
KL_API int kl_comm_ranks(const kl_comm *comm);
KL_API int kl_comm_local_rank(const kl_comm *comm); /* the rank among the ranks of this machine; use it to choose a
                                                       device */
KL_API const char *kl_comm_transport(const kl_comm *comm); /* "mpi", "socket", "nccl" or "none" */
/* Returns once all ranks have called it.  [errors ARGUMENT, IO] */
KL_API kl_status kl_comm_barrier(kl_comm *comm);
/* Frees the communicator.  Programs that use it fail from then on.  NULL is allowed. */
KL_API void kl_comm_free(kl_comm *comm);

/* ---- collectives: each is a node of the open trace; outside of a trace it runs at once ----
 * A gradient is that of the sum of the losses of all ranks.  The gradient of a sum over ranks is the sum of the
 * ranks' gradients, that of a mean their mean.  The gradient of kl_comm_all_gather is kl_comm_reduce_scatter, and
 * the reverse.  The gradient of kl_comm_broadcast is the sum of the gradients on rank root, and 0 on the other
 * ranks.  All ranks must compute the same gradients.  Maximum and minimum have no gradient, and there are no second
 * gradients.
 * [new handles; errors ARGUMENT: no communicator, ranks that do not agree; HANDLE, SHAPE, TYPE: a sum of bools, a
 * mean of integers; TRACE: in the gradient of a region; IO: a rank is lost] */

/* Combines the tensors of all ranks, element by element. */
KL_API_AT kl_tensor kl_comm_all_reduce(kl_comm *comm, kl_reduction kind, kl_tensor a);
/* The result of kl_comm_all_reduce is divided along the axis into as many equal parts as there are ranks.  Returns
 * the part whose number is this rank. */
KL_API_AT kl_tensor kl_comm_reduce_scatter(kl_comm *comm, kl_reduction kind, int axis, kl_tensor a);
/* Concatenates the tensors of all ranks along the axis, in the order of the ranks. */
KL_API_AT kl_tensor kl_comm_all_gather(kl_comm *comm, int axis, kl_tensor a);
/* Returns the tensor of rank root.  On the other ranks `a` gives only shape and dtype. */
KL_API_AT kl_tensor kl_comm_broadcast(kl_comm *comm, int root, kl_tensor a);

/* ---- data parallel training ---- */

/* Sets n tensors that outlive traces to the values that they have on rank 0.  Call it outside of traces.  [errors as
 * above] */
KL_API_AT kl_status kl_comm_sync(kl_comm *comm, int n, const kl_tensor *tensors);
/* Replaces each gradient by its mean over all ranks.  Entries that are kl_none do not change.  Gradients are sent in
 * buckets of about bucket_bytes bytes (0: 4 MiB), from the last gradient to the first.  A backward pass computes
 * them in this order, so a bucket is sent while the gradients of the next one are computed.  [errors as above;
 * TRACE: none is open] */
KL_API_AT kl_status kl_comm_gradients(kl_comm *comm, int n, kl_tensor *gradients, int64_t bucket_bytes);

/* ---- sharded optimizers (ZeRO stage 1): each rank stores the optimizer states of its part of the parameters ----
 *
 *     kl_comm_shards *shards = kl_comm_shards_new(comm, n, params, 0);
 *     int parts;
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
KL_API_AT kl_comm_shards *kl_comm_shards_new(kl_comm *comm, int n, const kl_tensor *params, int64_t bucket_bytes);
/* The same for the parameters of a tree that are not frozen (kl_params_trained).  A bucket has parameters with equal
 * factors.  The tree must outlive the shards; a later change of factors must keep those of a bucket equal. */
KL_API_AT kl_comm_shards *kl_comm_shards_new_params(kl_comm *comm, kl_params *params, int64_t bucket_bytes);
/* A tree of the parts, "part.0" and so on.  kl_comm_shards_reduce and kl_comm_shards_step set the factors of each part
 * to those of its parameters.  An optimizer that is attached to it uses them, and names its states after the parts. */
KL_API const kl_params *kl_comm_shards_params(const kl_comm_shards *shards);
/* This rank's parts of the parameters, one tensor for each bucket; *parts is their number.  The container owns them. */
KL_API const kl_tensor *kl_comm_shards_parts(const kl_comm_shards *shards, int *parts);
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
#endif
