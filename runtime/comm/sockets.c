/* Carrier "socket": TCP connections between all pairs of ranks.
 *
 * Rank 0 listens at the address and port that all ranks know.  Every other rank connects to it and sends its rank and
 * the port at which it listens itself.  Rank 0 answers with the addresses of all ranks, and each rank connects to those
 * of lower rank.  The connections are not encrypted, and any process that can connect to the port can take a rank's
 * place, so this carrier is for one machine or a private network.  Numbers are sent in the machine's byte order, which
 * must be the same for all ranks. */
#define _GNU_SOURCE
#include "carrier.h"
#include "ir/ir.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct link {
    int rank, ranks;
    double timeout;
    int *fd;             /* per rank; -1: none */
    int listener;
};

struct hello { uint32_t magic; int32_t rank, ranks, port; };
struct place { int32_t family, port; uint8_t address[16]; }; /* the address at which a rank listens */
enum { MAGIC = 0x4b4c434f + CARRIER_VERSION };

static int milliseconds_until(double deadline)
{
    double left = (deadline - carrier_seconds()) * 1000;
    return left <= 0 ? 0 : left > 1e9 ? 1000000000 : (int)left + 1;
}

/* Sends or receives what the socket accepts or has without waiting.  Returns the number of bytes, 0 if there are none
 * now, or -1 with message. */
static ptrdiff_t move_some(int fd, int rank, bool sends, char *data, size_t bytes, char *message)
{
    ptrdiff_t n = sends ? send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, data, bytes, MSG_DONTWAIT);
    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (n == 0)
        carrier_fails(message, "rank %d is gone: it has closed the connection", rank);
    else
        carrier_fails(message, "rank %d is gone: %s", rank, strerror(errno));
    return -1;
}

static bool socket_exchange(void *ctx, int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes,
                            char *message)
{
    struct link *l = ctx;
    char *data[2] = {(char *)(uintptr_t)out, in};
    size_t left[2] = {out_bytes, in_bytes};
    int rank[2] = {to, from};
    double deadline = carrier_seconds() + l->timeout;
    while (left[0] || left[1]) {
        struct pollfd wait[2] = {{left[0] ? l->fd[to] : -1, POLLOUT, 0}, {left[1] ? l->fd[from] : -1, POLLIN, 0}};
        int n = poll(wait, 2, milliseconds_until(deadline));
        if (n < 0 && errno != EINTR)
            return carrier_fails(message, "poll: %s", strerror(errno));
        if (n == 0 && carrier_seconds() >= deadline)
            return left[1] ? carrier_fails(message, "nothing has come from rank %d for %g s", from, l->timeout)
                           : carrier_fails(message, "rank %d has taken nothing for %g s", to, l->timeout);
        for (int i = 0; i < 2; i++) {
            if (n <= 0 || !left[i] || !wait[i].revents)
                continue;
            ptrdiff_t moved = move_some(wait[i].fd, rank[i], i == 0, data[i], left[i], message);
            if (moved < 0)
                return false;
            data[i] += moved;
            left[i] -= (size_t)moved;
            if (moved)
                deadline = carrier_seconds() + l->timeout;
        }
    }
    return true;
}

/* A connection that was closed is readable and has no bytes. */
static bool socket_peers(void *ctx, char *message)
{
    struct link *l = ctx;
    char byte;
    for (int r = 0; r < l->ranks; r++) {
        ptrdiff_t n = l->fd[r] < 0 ? 1 : recv(l->fd[r], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        bool waits = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (n <= 0 && !waits)
            return carrier_fails(message, "rank %d is gone: %s", r,
                                n ? strerror(errno) : "it has closed the connection");
    }
    return true;
}

/* ---- joining ---- */

/* The same, before the link has all its sockets. */
static bool move_all(int fd, int rank, bool sends, void *data, size_t bytes, double deadline, char *message)
{
    while (bytes) {
        struct pollfd wait = {fd, sends ? POLLOUT : POLLIN, 0};
        int n = poll(&wait, 1, milliseconds_until(deadline));
        if (n == 0 && carrier_seconds() >= deadline)
            return carrier_fails(message, "rank %d has not answered in time", rank);
        ptrdiff_t moved = n > 0 ? move_some(fd, rank, sends, data, bytes, message) : 0;
        if (moved < 0)
            return false;
        data = (char *)data + moved;
        bytes -= (size_t)moved;
    }
    return true;
}

/* Makes a socket that listens at the address, or is connected to it.  -1: errno. */
static int socket_at(const struct sockaddr *address, socklen_t bytes, bool listens)
{
    int one = 1, fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), failed;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    failed = listens ? bind(fd, address, bytes) || listen(fd, 1024) : connect(fd, address, bytes);
    if (!failed)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* The same for a host name.  Connecting is repeated until the deadline, because rank 0 may start later than others. */
static int socket_at_name(const struct carrier_place *p, bool listens, double deadline, char *message)
{
    char port[16];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%d", p->port);
    int error = getaddrinfo(p->address, port, &want, &found), fd = -1;
    if (error)
        return carrier_fails(message, "%s: %s", p->address, gai_strerror(error)), -1;
    for (;;) {
        for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
            fd = socket_at(a->ai_addr, a->ai_addrlen, listens);
        if (fd >= 0 || listens || carrier_seconds() >= deadline)
            break;
        poll(NULL, 0, 20);
    }
    if (fd < 0)
        carrier_fails(message, "%s port %d%s: %s", p->address, p->port, listens ? "" : ", where rank 0 should be",
            strerror(errno));
    freeaddrinfo(found);
    return fd;
}

static int accept_one(int listener, double deadline, struct sockaddr_storage *from)
{
    struct pollfd wait = {listener, POLLIN, 0};
    socklen_t bytes = sizeof *from;
    int one = 1, fd = poll(&wait, 1, milliseconds_until(deadline)) > 0
                          ? accept4(listener, (struct sockaddr *)from, &bytes, SOCK_CLOEXEC) : -1;
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void listening_place(const struct sockaddr_storage *from, int port, struct place *p)
{
    *p = (struct place){from->ss_family, port, {0}};
    if (from->ss_family == AF_INET)
        memcpy(p->address, &((const struct sockaddr_in *)from)->sin_addr, 4);
    else
        memcpy(p->address, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
}

/* Accepts connections of ranks above `from` until all have connected, and stores where they listen. */
static bool accept_ranks(struct link *l, int first, struct place *place, double deadline, char *message)
{
    for (int missing = l->ranks - first; missing > 0;) {
        struct sockaddr_storage from;
        struct hello h;
        int fd = accept_one(l->listener, deadline, &from);
        if (fd < 0 && carrier_seconds() < deadline)
            continue;
        if (fd < 0)
            return carrier_fails(message, "%d of %d ranks have not come within %g s", missing, l->ranks, l->timeout);
        double soon = carrier_seconds() + 2;
        if (!move_all(fd, -1, false, &h, sizeof h, soon < deadline ? soon : deadline, message) || h.magic != MAGIC) {
            close(fd); /* it does not use this protocol */
            continue;
        }
        if (h.ranks != l->ranks || h.rank < first || h.rank >= l->ranks || l->fd[h.rank] >= 0) {
            close(fd);
            return h.ranks == l->ranks
                       ? carrier_fails(message, "two processes are rank %d of %d", h.rank, h.ranks)
                       : carrier_fails(message, "rank %d is one of %d, not of %d", h.rank, h.ranks, l->ranks);
        }
        l->fd[h.rank] = fd;
        if (place)
            listening_place(&from, h.port, &place[h.rank]);
        missing--;
    }
    return true;
}

static int own_port(int listener)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    if (getsockname(listener, (struct sockaddr *)&own, &bytes))
        return 0;
    return ntohs(own.ss_family == AF_INET ? ((struct sockaddr_in *)&own)->sin_port
                                          : ((struct sockaddr_in6 *)&own)->sin6_port);
}

static int connect_place(const struct place *p)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)p->port)};
    memcpy(&v4.sin_addr, p->address, 4);
    memcpy(&v6.sin6_addr, p->address, 16);
    return p->family == AF_INET ? socket_at((struct sockaddr *)&v4, sizeof v4, false)
                                : socket_at((struct sockaddr *)&v6, sizeof v6, false);
}

static bool join_as_first(struct link *l, const struct carrier_place *p, struct place *place, double deadline,
                          char *message)
{
    size_t bytes = (size_t)l->ranks * sizeof *place;
    l->listener = socket_at_name(p, true, deadline, message);
    if (l->listener < 0 || !accept_ranks(l, 1, place, deadline, message))
        return false;
    for (int i = 1; i < l->ranks; i++)
        if (!move_all(l->fd[i], i, true, place, bytes, deadline, message))
            return false;
    return true;
}

static bool join_as_other(struct link *l, const struct carrier_place *p, struct place *place, double deadline,
                          char *message)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_storage mine;
    socklen_t mine_bytes = sizeof mine;
    l->fd[0] = socket_at_name(p, false, deadline, message);
    if (l->fd[0] < 0)
        return false;
    /* with the address family of the connection to rank 0 */
    bool is_v6 = !getsockname(l->fd[0], (struct sockaddr *)&mine, &mine_bytes) && mine.ss_family == AF_INET6;
    l->listener = is_v6 ? socket_at((struct sockaddr *)&v6, sizeof v6, true)
                        : socket_at((struct sockaddr *)&v4, sizeof v4, true);
    if (l->listener < 0)
        return carrier_fails(message, "listening: %s", strerror(errno));
    struct hello h = {MAGIC, l->rank, l->ranks, own_port(l->listener)};
    if (!move_all(l->fd[0], 0, true, &h, sizeof h, deadline, message) ||
        !move_all(l->fd[0], 0, false, place, (size_t)l->ranks * sizeof *place, deadline, message))
        return false;
    for (int i = 1; i < l->rank; i++) {
        l->fd[i] = connect_place(&place[i]);
        if (l->fd[i] < 0)
            return carrier_fails(message, "connecting to rank %d: %s", i, strerror(errno));
        if (!move_all(l->fd[i], i, true, &h, sizeof h, deadline, message))
            return false;
    }
    return accept_ranks(l, l->rank + 1, NULL, deadline, message);
}

static void socket_close(void *ctx)
{
    struct link *l = ctx;
    for (int i = 0; i < l->ranks; i++)
        if (l->fd[i] >= 0)
            close(l->fd[i]);
    if (l->listener >= 0)
        close(l->listener);
    mem_free(l->fd);
    mem_free(l);
}

static void *socket_open(struct carrier_place *p, char *message)
{
    struct link *l = mem_alloc(sizeof *l);
    struct place *place = mem_alloc((size_t)p->ranks * sizeof *place);
    if (l)
        *l = (struct link){p->rank, p->ranks, p->timeout, mem_alloc((size_t)p->ranks * sizeof *l->fd), -1};
    bool ok = l && l->fd && place;
    if (!ok)
        carrier_fails(message, "out of memory");
    for (int i = 0; ok && i < p->ranks; i++)
        l->fd[i] = -1;
    double deadline = carrier_seconds() + p->timeout;
    bool joined = ok && (p->rank ? join_as_other : join_as_first)(l, p, place, deadline, message);
    mem_free(place);
    if (joined)
        return l;
    if (ok)
        socket_close(l);
    else if (l)
        mem_free(l->fd), mem_free(l);
    return NULL;
}

const struct carrier *carrier_sockets(void)
{
    static const struct carrier sockets = {CARRIER_VERSION, "socket", socket_open, socket_exchange, socket_peers,
                                           socket_close};
    return &sockets;
}
