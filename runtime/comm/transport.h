/* A transport sends bytes between the ranks of a job: sockets.c, or the library of mpi/. */
#ifndef KILN_TRANSPORT_H
#define KILN_TRANSPORT_H
#include <stdbool.h>
#include <stddef.h>

enum { TRANSPORT_VERSION = 3, TRANSPORT_MESSAGE = 200 };

struct transport_config {
    int rank, ranks;      /* set by open if the transport knows them */
    const char *address;  /* of rank 0: a host name or address, and a port */
    int port;
    double timeout;       /* seconds without progress after which a call fails */
    const char *secret;   /* of the job, which its ranks prove to each other; NULL: none */
};

/* Functions that fail write the reason to message, of TRANSPORT_MESSAGE bytes.  One thread at a time calls them. */
struct transport {
    int version;
    const char *name;
    /* Joins the job; returns when all ranks have joined.  NULL: message has the reason. */
    void *(*open)(struct transport_config *place, char *message);
    /* Sends bytes to rank `to` and receives bytes from rank `from`, at the same time; either size may be 0.  The ranks
     * must make matching calls.  After a failure only close may be called. */
    bool (*exchange)(void *link, int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes,
                     char *message);
    /* Are all ranks connected?  It does not wait.  NULL: the transport ends this process itself if a rank is lost. */
    bool (*peers)(void *link, char *message);
    void (*close)(void *link);
};

const struct transport *transport_sockets(void);

/* ---- transport.c: for transports within libkiln ---- */
bool transport_fails(char *message, const char *format, ...) __attribute__((format(printf, 2, 3))); /* false */
double transport_seconds(void); /* of a clock that is never set */

#endif
