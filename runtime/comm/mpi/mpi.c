/* Transport "mpi" is a library of its own, libkiln-mpi.so, which is opened when it is used.  The reasons: the binary
 * interfaces of MPI's implementations differ, and a program that does not use MPI should not need one.  Messages are
 * copied through buffers of the link, part by part.  A call that fails may leave MPI with requests that still complete
 * later, so these must not use the caller's memory. */
#include "runtime/comm/transport.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PART = 1 << 18, TAG = 77 };

struct mpi_link {
    MPI_Comm comm;
    double timeout;
    char out[PART], in[PART];
};

static int failed; /* ranks may have ended, so that MPI_Finalize would wait for them */

static double mpi_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *mpi_error(char *message, const char *text)
{
    snprintf(message, TRANSPORT_MESSAGE, "%s", text);
    return NULL;
}

static void at_exit(void)
{
    int over = 0;
    MPI_Finalized(&over);
    if (!over && !failed)
        MPI_Finalize();
}

static int mpi_init_thread(char *message)
{
    int ready = 0, over = 0, level = 0;
    MPI_Initialized(&ready);
    MPI_Finalized(&over);
    if (over)
        return mpi_error(message, "MPI_Finalize was called already"), 0;
    if (ready)
        MPI_Query_thread(&level);
    else if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS || atexit(at_exit))
        return mpi_error(message, "MPI_Init_thread failed"), 0;
    if (level < MPI_THREAD_SERIALIZED)
        return mpi_error(message, "this MPI cannot be called by a thread of its own (MPI_THREAD_SERIALIZED)"), 0;
    return 1;
}

static void *mpi_open(struct transport_config *place, char *message)
{
    if (!mpi_init_thread(message))
        return NULL;
    struct mpi_link *l = calloc(1, sizeof *l);
    if (!l)
        return mpi_error(message, "out of memory");
    l->timeout = place->timeout;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &l->comm) != MPI_SUCCESS) {
        free(l);
        return mpi_error(message, "MPI_Comm_dup failed");
    }
    MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(l->comm, &place->rank);
    MPI_Comm_size(l->comm, &place->ranks);
    return l;
}

/* Waits for one part in each direction; at first it does not yield the processor. */
static bool mpi_wait_pair(MPI_Request *request, int to, int from, double timeout, char *message)
{
    double deadline = mpi_seconds() + timeout;
    for (int polls = 0, done = 0;; polls++) {
        if (MPI_Testall(2, request, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return snprintf(message, TRANSPORT_MESSAGE, "MPI reports an error between this rank and ranks %d and %d",
                            to, from),
                   false;
        if (done)
            return true;
        if (polls < 100)
            continue;
        nanosleep(&(struct timespec){0, 20000}, NULL);
        if (mpi_seconds() >= deadline)
            return snprintf(message, TRANSPORT_MESSAGE,
                            "nothing has come from rank %d, or rank %d has taken nothing, for %d ms", from, to,
                            (int)(timeout * 1000)),
                   false;
    }
}

static bool mpi_exchange(void *ctx, int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes,
                         char *message)
{
    struct mpi_link *l = ctx;
    for (size_t at = 0; at < out_bytes || at < in_bytes; at += PART) {
        MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        size_t n_out = at < out_bytes ? out_bytes - at : 0, n_in = at < in_bytes ? in_bytes - at : 0;
        n_out = n_out < PART ? n_out : PART;
        n_in = n_in < PART ? n_in : PART;
        int bad = 0;
        if (n_in)
            bad |= MPI_Irecv(l->in, (int)n_in, MPI_BYTE, from, TAG, l->comm, &request[1]) != MPI_SUCCESS;
        if (n_out) {
            memcpy(l->out, (const char *)out + at, n_out);
            bad |= MPI_Isend(l->out, (int)n_out, MPI_BYTE, to, TAG, l->comm, &request[0]) != MPI_SUCCESS;
        }
        if (bad)
            mpi_error(message, "MPI_Isend or MPI_Irecv failed");
        if (bad || !mpi_wait_pair(request, to, from, l->timeout, message)) {
            failed = 1;
            return false;
        }
        if (n_in)
            memcpy((char *)in + at, l->in, n_in);
    }
    return true;
}

static void mpi_close(void *ctx)
{
    struct mpi_link *l = ctx;
    int over = 0;
    MPI_Finalized(&over);
    if (failed || over)
        return; /* requests may still use the link's buffers */
    MPI_Comm_free(&l->comm);
    free(l);
}

const struct transport *kiln_transport_mpi(void);
__attribute__((visibility("default"))) const struct transport *kiln_transport_mpi(void)
{
    static const struct transport mpi = {TRANSPORT_VERSION, "mpi", mpi_open, mpi_exchange, NULL, mpi_close};
    return &mpi;
}
