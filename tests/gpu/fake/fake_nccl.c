/* NCCL for fake_gpu.c: moves data between processes of one machine through sockets.  Its communicators are
 * non-blocking, its operations are work of a stream, and what it is given must be memory of a device.
 *
 * FAKE_NCCL_VERSION=N: what ncclGetVersion gives.  FAKE_NCCL_SILENT=1: a rank that is gone is no error; operations with
 * it do not end, as they may not with the real library. */
#define _GNU_SOURCE
#include "fake_gpu.h"
#include "runtime/comm/nccl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, MAX_MOVES = 64 };

/* One direction of an operation between this rank and another. */
struct part { int with; bool sends; char *data; size_t left; };
struct transfer { nccl_comm comm; struct part part[MAX_MOVES]; int n; };

struct nccl_comm_of {
    struct nccl_id id;
    int rank, ranks, listener, *fd;
    int unfinished;               /* transfers of a stream */
    nccl_result error;
    bool aborted;
};

/* ---- what a group collects ---- */

static __thread struct { int depth; struct transfer *t; void *stream; } group;

static bool step_transfer(void *ctx);

static void start_transfer(struct transfer *t, void *stream)
{
    t->comm->unfinished++;
    fake_gpu_call(stream, step_transfer, t);
}

/* ---- connections ---- */

static socklen_t address_of(const struct nccl_id *id, int rank, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%.40s-%d", id->bytes, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Connects to ranks below this one, and accepts those above it, as far as they are there. */
static void connect_ranks(nccl_comm c)
{
    struct sockaddr_un a;
    for (int r = 0; r < c->rank; r++) {
        socklen_t bytes = address_of(&c->id, r, &a);
        if (c->fd[r] >= 0)
            continue;
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && !connect(fd, (struct sockaddr *)&a, bytes) && write(fd, &c->rank, sizeof c->rank) > 0)
            c->fd[r] = fd;
        else
            close(fd);
    }
    int fd, from;
    while ((fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        if (read(fd, &from, sizeof from) == sizeof from && from > c->rank && from < c->ranks)
            c->fd[from] = fd;
}

static bool connected(const struct nccl_comm_of *c)
{
    for (int r = 0; r < c->ranks; r++)
        if (r != c->rank && c->fd[r] < 0)
            return false;
    return true;
}

static void free_comm(nccl_comm c)
{
    for (int r = 0; r < c->ranks; r++)
        if (c->fd[r] >= 0)
            close(c->fd[r]);
    if (c->listener >= 0)
        close(c->listener);
    free(c->fd);
    free(c);
}

/* ---- transfers ---- */

static void lost_rank(nccl_comm c)
{
    if (!getenv("FAKE_NCCL_SILENT"))
        c->error = REMOTE_ERROR;
}

/* Sends go before receives from the same rank, so the order of both is that of the calls. */
static bool move_part(nccl_comm c, struct part *p)
{
    while (p->left) {
        ssize_t n = p->sends ? send(c->fd[p->with], p->data, p->left, MSG_DONTWAIT | MSG_NOSIGNAL)
                             : recv(c->fd[p->with], p->data, p->left, MSG_DONTWAIT);
        if (n > 0) {
            p->data += n;
            p->left -= (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return false;
        } else {
            lost_rank(c);
            return false;
        }
    }
    return true;
}

/* What a rank sends to itself. */
static void move_own(struct transfer *t)
{
    for (int i = 0; i < t->n; i++)
        for (int k = 0; t->part[i].with == t->comm->rank && t->part[i].sends && k < t->n; k++)
            if (t->part[k].with == t->comm->rank && !t->part[k].sends && t->part[k].left == t->part[i].left) {
                memmove(t->part[k].data, t->part[i].data, t->part[i].left);
                t->part[i].left = t->part[k].left = 0;
            }
}

static bool step_transfer(void *ctx)
{
    struct transfer *t = ctx;
    nccl_comm c = t->comm;
    bool done = true;
    move_own(t);
    for (int i = 0; i < t->n && !c->aborted; i++)
        done &= move_part(c, &t->part[i]);
    if (!done && !c->aborted)
        return false;
    if (!--c->unfinished && c->aborted)
        free_comm(c);
    free(t);
    return true;
}

static nccl_result add_part(struct transfer *t, int with, bool sends, const void *data, size_t n)
{
    if (with < 0 || with >= t->comm->ranks || t->n == MAX_MOVES || !fake_gpu_memory(data, n))
        return INVALID_ARGUMENT;
    t->part[t->n++] = (struct part){with, sends, (char *)(uintptr_t)data, n};
    return NCCL_SUCCESS;
}

static struct transfer *new_transfer(nccl_comm c)
{
    struct transfer *t = calloc(1, sizeof *t);
    t->comm = c;
    return t;
}

static bool usable(nccl_comm c, int type) { return fake_gpu_context() && !c->aborted && connected(c) && type == 1; }

static nccl_result point_to_point(nccl_comm c, int with, bool sends, const void *data, size_t n, int type,
                                  void *stream)
{
    if (!group.depth || !usable(c, type))
        return INVALID_USAGE;
    if (!group.t)
        group.t = new_transfer(c);
    group.stream = stream;
    return add_part(group.t, with, sends, data, n);
}

/* ---- under their names ---- */

#define NCCL(field, function, parameters) __attribute__((visibility("default"))) nccl_result function parameters;
#include "runtime/comm/nccl.def"
__attribute__((visibility("default"))) const char *ncclGetErrorString(nccl_result r);

const char *ncclGetErrorString(nccl_result r)
{
    return r == REMOTE_ERROR ? "remote process exited" : r == INVALID_USAGE ? "invalid usage" : "invalid argument";
}

nccl_result ncclGetVersion(int *version)
{
    *version = getenv("FAKE_NCCL_VERSION") ? atoi(getenv("FAKE_NCCL_VERSION")) : 22203;
    return NCCL_SUCCESS;
}

nccl_result ncclGetUniqueId(struct nccl_id *id)
{
    static int made;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "kiln-fake-nccl-%d-%d", (int)getpid(), made++);
    return NCCL_SUCCESS;
}

nccl_result ncclCommInitRankConfig(nccl_comm *out, int ranks, struct nccl_id id, int rank, struct nccl_config *config)
{
    struct sockaddr_un a;
    if (!fake_gpu_context() || config->magic != 0xcafebeef || config->blocking)
        return INVALID_USAGE;
    nccl_comm c = *out = calloc(1, sizeof *c);
    *c = (struct nccl_comm_of){.id = id, .rank = rank, .ranks = ranks, .fd = malloc((size_t)ranks * sizeof *c->fd)};
    for (int r = 0; r < ranks; r++)
        c->fd[r] = -1;
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = address_of(&id, rank, &a);
    return bind(c->listener, (struct sockaddr *)&a, bytes) || listen(c->listener, 64) ? INVALID_USAGE
                                                                                      : NCCL_IN_PROGRESS;
}

nccl_result ncclCommGetAsyncError(nccl_comm c, nccl_result *state)
{
    if (!connected(c))
        connect_ranks(c);
    *state = c->error ? c->error : connected(c) ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
    return NCCL_SUCCESS;
}

nccl_result ncclCommAbort(nccl_comm c)
{
    c->aborted = true;
    if (!c->unfinished)
        free_comm(c);
    return NCCL_SUCCESS;
}

nccl_result ncclCommDestroy(nccl_comm c)
{
    free_comm(c);
    return NCCL_SUCCESS;
}

nccl_result ncclGroupStart(void)
{
    group.depth++;
    return NCCL_SUCCESS;
}

nccl_result ncclGroupEnd(void)
{
    if (--group.depth || !group.t)
        return NCCL_SUCCESS;
    start_transfer(group.t, group.stream);
    group.t = NULL;
    return NCCL_IN_PROGRESS; /* the call that follows finds it done */
}

nccl_result ncclSend(const void *data, size_t n, int type, int to, nccl_comm c, void *stream)
{
    return point_to_point(c, to, true, data, n, type, stream);
}

nccl_result ncclRecv(void *data, size_t n, int type, int from, nccl_comm c, void *stream)
{
    return point_to_point(c, from, false, data, n, type, stream);
}

nccl_result ncclAllGather(const void *in, void *out, size_t n, int type, nccl_comm c, void *stream)
{
    struct transfer *t = new_transfer(c);
    nccl_result r = usable(c, type) ? NCCL_SUCCESS : INVALID_USAGE;
    for (int i = 0; i < c->ranks && !r; i++) {
        r = add_part(t, i, true, in, n);
        r = r ? r : add_part(t, i, false, (char *)out + (size_t)i * n, n);
    }
    if (!r)
        start_transfer(t, stream);
    return r;
}

nccl_result ncclBroadcast(const void *in, void *out, size_t n, int type, int root, nccl_comm c, void *stream)
{
    struct transfer *t = new_transfer(c);
    nccl_result r = usable(c, type) ? NCCL_SUCCESS : INVALID_USAGE;
    for (int i = 0; i < c->ranks && c->rank == root && !r; i++)
        r = add_part(t, i, true, in, n);
    r = r ? r : add_part(t, root, false, out, n);
    if (!r)
        start_transfer(t, stream);
    return r;
}
