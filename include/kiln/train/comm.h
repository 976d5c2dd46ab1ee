/* Training with many processes: communicators, collective ops, data parallel gradients, sharded optimizers.  Included
 * by <kiln/kiln.h>.  (<kiln/collective.h> is about several devices of one process.)
 *
 *     mpirun -n 4 program        torchrun --no-python --nproc-per-node 4 program        srun -n 4 program
 *
 *     kl_comm *comm = kl_comm_init(NULL);                 // which of how many processes this is
 *     kl_comm_sync(comm, n, params);                      // all begin with the values of rank 0
 *     ... in each trace, on this rank's part of the batch:
 *     kl_grads(loss, n, params, g);
 *     kl_comm_gradients(comm, n, g, 0);                   // the means over all ranks
 *     kl_optimizer_step_gradients(opt, g, rate);
 *
 * All ranks run the same program: the same collectives, in the same order, with the same shapes and dtypes.  A rank
 * that does something else, a rank that is gone and one that is late by more than the timeout are errors on the others,
 * which name the ranks; the trace has then failed, and all values are as they were.  After a rank was lost the
 * communicator is of no use any more: every further collective is an error.
 *
 * A collective is a node of the graph.  On the CPU it runs on a thread of its own, while kernels that do not need its
 * result run.  Values of devices with memory of their own are copied to the host and back.  Elements are combined in
 * the order of the ranks, so all ranks get the same bits, at every repetition.  Collectives run in the order in which
 * they are recorded, whether or not something reads their results.  A communicator is used by one thread at a time. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_COMM_H
#define KILN_COMM_H
#include <kiln/collective.h>
#include <kiln/train/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_comm kl_comm;

/* What is 0 or NULL is taken from the environment: rank and ranks of torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun
 * (OMPI_COMM_WORLD_*, PMI_*) or Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID), the place of rank 0 from MASTER_ADDR
 * and MASTER_PORT (else 127.0.0.1, 29500).  With none of them set the program is the only rank. */
typedef struct kl_comm_options {
    const char *carrier;   /* "mpi": through the MPI that Kiln was built with; "socket": TCP, not encrypted; NULL: "mpi"
                              where mpirun started the program, else "socket" */
    double timeout;        /* seconds; 0: 10 */
    int rank, ranks;       /* ranks 0: from the environment */
    const char *address;   /* of rank 0, for sockets */
    int port;
} kl_comm_options;

/* A communicator of all ranks.  The first one waits until all have come to this call; further ones, which are
 * independent in what they check, use the same connections.  Options NULL: all 0.
 * [errors ARGUMENT: a variable or option that cannot be; DEVICE: no such carrier here; IO: ranks that do not come
 * within the timeout, two of one number; MEMORY: NULL] */
KL_API kl_comm *kl_comm_init(const kl_comm_options *options);
KL_API int kl_comm_rank(const kl_comm *comm);       /* -1 for NULL, also below */
KL_API int kl_comm_ranks(const kl_comm *comm);
KL_API int kl_comm_local_rank(const kl_comm *comm); /* among those of this machine, to choose a device */
KL_API const char *kl_comm_carrier(const kl_comm *comm); /* "mpi", "socket" or "none" */
/* Returns once all ranks have called it.  [errors ARGUMENT, IO] */
KL_API kl_status kl_comm_barrier(kl_comm *comm);
/* Programs that use it fail from here on.  NULL is fine. */
KL_API void kl_comm_free(kl_comm *comm);

/* ---- collectives: nodes of the open trace; outside of one they run at once ----
 * Gradients are those of the sum of what all ranks compute: of a sum over ranks the sum of the gradients (of a mean the
 * mean), of kl_comm_all_gather their kl_comm_reduce_scatter, of kl_comm_reduce_scatter their kl_comm_all_gather, of
 * kl_comm_broadcast their sum on rank root and 0 on the others.  All ranks must ask for the same gradients.  Greatest
 * and least elements have none, and no gradient has one.
 * [new handles; errors ARGUMENT: no communicator, ranks that do not agree; HANDLE, SHAPE, TYPE: a sum of bools, a mean
 * of integers; TRACE: in the gradient of a region; IO: a rank is lost] */

/* The tensors of all ranks combined, element by element. */
KL_API_AT kl_tensor kl_comm_all_reduce(kl_comm *comm, kl_reduction kind, kl_tensor a);
/* Part `rank` of as many equal ones along the axis of what kl_comm_all_reduce gives. */
KL_API_AT kl_tensor kl_comm_reduce_scatter(kl_comm *comm, kl_reduction kind, int axis, kl_tensor a);
/* The tensors of all ranks, one behind the other along the axis. */
KL_API_AT kl_tensor kl_comm_all_gather(kl_comm *comm, int axis, kl_tensor a);
/* The tensor of rank root; those of the others give shape and dtype. */
KL_API_AT kl_tensor kl_comm_broadcast(kl_comm *comm, int root, kl_tensor a);

/* ---- data parallel training ---- */

/* Gives n tensors that outlive traces the values that they have on rank 0.  Outside of traces.  [errors as above] */
KL_API_AT kl_status kl_comm_sync(kl_comm *comm, int n, const kl_tensor *tensors);
/* Puts the mean over all ranks in the place of each gradient; entries that are kl_none are left alone.  Gradients are
 * sent in buckets of about so many bytes (0: 4 MiB), from the last to the first, which is the order in which a backward
 * pass computes them: the first bucket is on its way while the next one is computed.  [errors as above; TRACE: none is
 * open] */
KL_API_AT kl_status kl_comm_gradients(kl_comm *comm, int n, kl_tensor *gradients, int64_t bucket_bytes);

/* ---- sharded optimizers (ZeRO stage 1): each rank keeps the optimizer's states of its part of the parameters ----
 *
 *     kl_comm_shards *shards = kl_comm_shards_new(comm, n, params, 0);
 *     int parts;
 *     const kl_tensor *part = kl_comm_shards_parts(shards, &parts);
 *     kl_optimizer *opt = kl_adam(part, parts, &options);
 *     ... in each trace:  kl_grads(loss, n, params, g);  kl_comm_shards_step(shards, opt, g, rate);
 *
 * Parameters are put one behind the other, in buckets, and each bucket is cut into as many parts as there are ranks.  A
 * step sums each rank's part of the gradients there, updates that part of the parameters, and sends it to all.  The
 * optimizer must update each element by itself: all but Adafactor do.  The results are those of kl_comm_gradients and
 * an optimizer of the whole, bit for bit. */
typedef struct kl_comm_shards kl_comm_shards;
/* For n different float tensors of one dtype that outlive traces and have the same values on all ranks.
 * [errors ARGUMENT, HANDLE, TYPE, MEMORY: NULL] */
KL_API_AT kl_comm_shards *kl_comm_shards_new(kl_comm *comm, int n, const kl_tensor *params, int64_t bucket_bytes);
/* This rank's parts of the parameters, a tensor for each bucket; they stay the container's. */
KL_API const kl_tensor *kl_comm_shards_parts(const kl_comm_shards *shards, int *parts);
/* Records a step of opt, an optimizer of these parts, with each rank's own gradients of the parameters, all of which
 * are given.  [errors ARGUMENT; TRACE: none is open; SHAPE; those of kl_optimizer_step_gradients] */
KL_API_AT kl_status kl_comm_shards_step(kl_comm_shards *shards, kl_optimizer *opt, const kl_tensor *gradients,
                                        double lr);
/* After the parameters were given values in another way, as by a snapshot: takes them over.  Outside of traces. */
KL_API_AT kl_status kl_comm_shards_reload(kl_comm_shards *shards);
KL_API void kl_comm_shards_free(kl_comm_shards *shards); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
