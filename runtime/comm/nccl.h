/* NCCL: moves data between the memories of NVIDIA GPUs of several processes.  Its library is libnccl.so.2, or
 * $KILN_NCCL_LIBRARY. */
#ifndef KILN_NCCL_H
#define KILN_NCCL_H
#include "ir/ir.h"

/* The types of nccl.h. */
typedef int nccl_result;
typedef struct nccl_comm_of *nccl_comm;
struct nccl_id { char bytes[128]; };
struct nccl_config { size_t size; unsigned magic, version; int blocking; };
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_UINT8 = 1 };

struct nccl_link;                 /* the communicator of NCCL, on one device */

/* What an operation waits for besides NCCL. */
struct nccl_watch {
    double timeout;               /* seconds */
    bool (*peers)(void *ctx, char *message); /* false: a rank is gone, which message names */
    void *ctx;
};

/* What to move: NCCL_ALL_TO_ALL sends part r of the operand to rank r and receives part number `rank` of all ranks'
 * operands; n is the number of bytes of a part. */
enum nccl_op { NCCL_ALL_TO_ALL, NCCL_ALL_GATHER, NCCL_BROADCAST };
struct nccl_move { enum nccl_op op; int root; const void *in; void *out; size_t n; };

/* Functions that fail write the reason to message, of TRANSPORT_MESSAGE bytes. */
bool nccl_open(struct err *e);    /* opens the library */
bool nccl_make_id(struct nccl_id *id, char *message);
/* Joins the ranks; they all call it with the same id.  NULL: message. */
struct nccl_link *nccl_join(const struct nccl_id *id, int rank, int ranks, int device, const struct nccl_watch *w,
                            char *message);
/* Moves the data after all commands that the device has; returns when it has arrived. */
bool nccl_run(struct nccl_link *l, const struct nccl_move *m, const struct nccl_watch *w, char *message);
int nccl_device(const struct nccl_link *l);
void nccl_close(struct nccl_link *l, bool lost); /* lost: operations of other ranks may never end */

#endif
