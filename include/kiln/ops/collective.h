/* Collective operations on tensors of several devices, and of many processes.  Included by <kiln/kiln.h>.
 *
 * in[0..n) are n tensors, each on its own device or on a shared one; out[0..n) are the results, out[i] on the device of
 * in[i].  The elements are combined in the order of the list, independent of the devices, so the bits are the same for
 * every split.  These functions are composites of kl_to and other ops: they are differentiable and fuse like them, and
 * work inside and outside of traces and in regions.
 *
 * On any error all of out[] is poison.  [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, MEMORY] */
#ifndef KILN_COLLECTIVE_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_COLLECTIVE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Mean: the sum divided by n, floats only.  Max and min: NaN if any operand is NaN. */
typedef enum kl_reduction { KL_REDUCE_SUM, KL_REDUCE_MEAN, KL_REDUCE_MAX, KL_REDUCE_MIN } kl_reduction;

/* Every out[i]: all tensors combined element by element.  They have one shape and dtype. */
KL_API_AT kl_status kl_all_reduce(kl_reduction kind, int64_t n, const kl_tensor *in, kl_tensor *out);
/* Every out[i]: all tensors concatenated along the axis. */
KL_API_AT kl_status kl_all_gather(int axis, int64_t n, const kl_tensor *in, kl_tensor *out);
/* out[i]: part i of the result of kl_all_reduce, split into n equal parts along the axis. */
KL_API_AT kl_status kl_reduce_scatter(kl_reduction kind, int axis, int64_t n, const kl_tensor *in, kl_tensor *out);
/* out[i]: a copy of the tensor on device[i]. */
KL_API_AT kl_status kl_broadcast(kl_tensor a, int64_t n, const kl_device *device, kl_tensor *out);

/* ---- communicators: the processes of one program ----
 *
 *     mpirun -n 4 program        torchrun --no-python --nproc-per-node 4 program        srun -n 4 program
 *
 *     kl_comm *comm = kl_comm_new(NULL);                 // finds this process's rank and the number of ranks
 *     kl_tensor sum = kl_comm_all_reduce(comm, KL_REDUCE_SUM, part);
 *
 * Training with them: <kiln/train/parallel.h>.
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

/* ---- collectives of processes: each is a node of the open trace; outside of a trace it runs at once ----
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

#ifdef __cplusplus
}
#endif
#endif
#endif
