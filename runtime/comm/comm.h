/* Communicators, and the collective ops of graphs that use them. */
#ifndef KILN_RUNTIME_COMM_H
#define KILN_RUNTIME_COMM_H
#include "ir/ir.h"
#include "runtime/comm/transport.h"

/* The same numbers as kl_reduction. */
enum comm_reduction { COMM_SUM, COMM_MEAN, COMM_MAX, COMM_MIN };
/* COMM_ALL_TO_ALL: the operand is [ranks, n]; row r of the result is the row of rank r that has this rank's number.
 * It is a part of other collectives. */
enum comm_op { COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST, COMM_REDUCE, COMM_ALL_TO_ALL,
               COMM_OPS };

struct kl_comm {
    int number;              /* number of the communicator in its process, from 1 on; a number is never used again */
    int rank, ranks, local_rank;
    uint64_t sequence;       /* number of operations so far */
    char *work; size_t work_bytes;
    struct kl_comm *next;
};

struct comm_place {          /* the place of this process in its job, as the environment describes it; rank -1: the
                                environment has none */
    int rank, ranks, local_rank, port;
    const char *address, *secret; /* secret: of the job, or NULL */
    bool mpi;                /* it was started by an MPI launcher */
};

/* ---- environment.c ---- */
bool comm_place_find(struct comm_place *p, struct err *e); /* false: a variable is not a number, which *e names */

/* ---- comm.c ---- */
/* Makes a communicator of all ranks; the first one joins the ranks.  transport: "mpi", "socket", or NULL for the
 * default. */
struct kl_comm *comm_open(const char *transport, const struct comm_place *place, double timeout, struct err *e);
void comm_close(struct kl_comm *c);
const char *comm_transport_name(void);
/* The name of a collective's custom op, and its attributes. */
const char *comm_op_name(enum comm_op op);
enum { COMM_PART = 120, COMM_ATTR = COMM_PART + 96 };
struct comm_attr {
    int number, ranks;           /* the communicator's */
    enum comm_reduction kind;
    int root;
    int gradient_of;             /* 0, or the number of the collective whose gradient it computes.  No token orders
                                    such an op, so the ranks compare this number, too. */
    char part_of[COMM_PART];     /* "", or the collective that it is a part of, with its type */
};
int comm_op_attr(char *text, size_t size, const struct comm_attr *a);
/* Does the communicator move values on this device without the host?  Its reductions are then recorded as
 * COMM_ALL_TO_ALL, sums in the order of the ranks, and COMM_ALL_GATHER. */
bool comm_moves_device(const struct kl_comm *c, int device);
/* Returns when all ranks have called it. */
bool comm_barrier(struct kl_comm *c, struct err *e);

/* ---- reduce.c ---- */
const char *comm_reduction_name(enum comm_reduction kind);
/* out[i] = part[0][i] + part[1][i] + .., in this order (or max, min).  out may be part[0]. */
void comm_reduce(enum comm_reduction kind, unsigned dtype, int parts, const char *const *part, void *out, int64_t n);

#endif
