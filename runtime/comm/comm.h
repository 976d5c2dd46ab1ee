/* Communicators, and the collective ops of graphs that use them. */
#ifndef KILN_RUNTIME_COMM_H
#define KILN_RUNTIME_COMM_H
#include "ir/ir.h"
#include "runtime/comm/carrier.h"

/* As kl_reduction. */
enum comm_reduction { COMM_SUM, COMM_MEAN, COMM_MAX, COMM_MIN };
enum comm_op { COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST, COMM_REDUCE, COMM_OPS };

struct kl_comm {
    int number;              /* of the process's communicators, from 1 on; never used again */
    int rank, ranks, local_rank;
    uint64_t sequence;       /* operations so far */
    char *work; size_t work_bytes;
    struct kl_comm *next;
};

struct comm_place {          /* what a program's environment says; rank -1: nothing */
    int rank, ranks, local_rank, port;
    const char *address;
    bool mpi;                /* started by an MPI's launcher */
};

/* ---- environment.c ---- */
bool comm_place_find(struct comm_place *p, struct err *e); /* false: *e, a variable that is no number */

/* ---- comm.c ---- */
/* A new communicator of all ranks; the first joins them.  carrier: "mpi", "socket" or NULL: the first that applies. */
struct kl_comm *comm_open(const char *carrier, const struct comm_place *place, double timeout, struct err *e);
void comm_close(struct kl_comm *c);
const char *comm_carrier_name(void);
/* The name of a collective's custom op, and its attributes.  gradient_of: 0, or the number of the collective whose
 * gradient it computes.  No token orders such an op, so the ranks compare that number, too. */
const char *comm_op_name(enum comm_op op);
int comm_op_attr(char *text, size_t size, const struct kl_comm *c, enum comm_reduction kind, int root, int gradient_of);
/* All ranks have come to this call. */
bool comm_barrier(struct kl_comm *c, struct err *e);

/* ---- reduce.c ---- */
const char *comm_reduction_name(enum comm_reduction kind);
/* out[i] = part[0][i] + part[1][i] + .., in this order.  out may be part[0]. */
void comm_reduce(enum comm_reduction kind, unsigned dtype, int parts, const char *const *part, void *out, int64_t n);

#endif
