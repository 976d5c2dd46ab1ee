/* What carries bytes between the ranks of a job: sockets.c, or the library of mpi/. */
#ifndef KILN_CARRIER_H
#define KILN_CARRIER_H
#include <stdbool.h>
#include <stddef.h>

enum { CARRIER_VERSION = 1, CARRIER_MESSAGE = 200 };

struct carrier_place {
    int rank, ranks;      /* found by open where the carrier knows them itself */
    const char *address;  /* of rank 0: a host's name or number, and a port */
    int port;
    double timeout;       /* seconds without progress after which a call fails */
};

/* Functions that fail write the reason to message, of CARRIER_MESSAGE bytes.  One thread at a time calls them. */
struct carrier {
    int version;
    const char *name;
    /* Joins the job: returns once all ranks have.  NULL: message. */
    void *(*open)(struct carrier_place *place, char *message);
    /* Sends bytes to rank `to` and receives bytes from rank `from`, at the same time; either number of bytes may be 0.
     * The ranks must make matching calls.  After a failure nothing but close may be called. */
    bool (*exchange)(void *link, int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes,
                     char *message);
    void (*close)(void *link);
};

const struct carrier *carrier_sockets(void);

#endif
