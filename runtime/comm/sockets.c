/* Transport "socket": TCP connections between all pairs of ranks.
 *
 * Rank 0 listens at the address and port that all ranks know.  Every other rank connects to it and sends its rank and
 * the port at which it listens itself, at the address by which it reaches rank 0.  Rank 0 answers with the addresses of
 * all ranks, and each rank connects to those of lower rank.  Numbers are sent in the machine's byte order, which must
 * be the same for all ranks.
 *
 * Both ends of a connection prove that they know the job's secret: each sends random bytes, and the HMAC of both ends'
 * bytes and numbers.  A process that does not, or says what does not fit, is disconnected, and joining goes on.  What
 * follows is neither encrypted nor signed: a secret keeps other processes out, not somebody who can change the traffic.
 * Without a secret the key is empty, and any process that can connect and speaks this protocol can take a rank's
 * place. */
#define _GNU_SOURCE
#include "transport.h"
#include "hmac.h"
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
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

struct socket_link {
    int rank, ranks;
    double timeout;
    const char *secret;  /* "": none */
    int *fd;             /* per rank; -1: none */
    int listener;
};

enum { NONCE = 16 };
struct hello { uint32_t magic; int32_t rank, ranks, port; uint8_t nonce[NONCE]; };        /* of who connects */
struct challenge { int32_t rank; uint8_t nonce[NONCE], proof[HMAC_BYTES]; };              /* the answer */
struct socket_address { int32_t family, port; uint8_t address[16]; }; /* the address at which a rank listens */
enum { MAGIC = 0x4b4c434f + TRANSPORT_VERSION };

static int milliseconds_until(double deadline)
{
    double left = (deadline - transport_seconds()) * 1000;
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
        transport_fails(message, "rank %d is gone: it has closed the connection", rank);
    else
        transport_fails(message, "rank %d is gone: %s", rank, strerror(errno));
    return -1;
}

static bool socket_exchange(void *ctx, int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes,
                            char *message)
{
    struct socket_link *l = ctx;
    char *data[2] = {(char *)(uintptr_t)out, in};
    size_t left[2] = {out_bytes, in_bytes};
    int rank[2] = {to, from};
    double deadline = transport_seconds() + l->timeout;
    while (left[0] || left[1]) {
        struct pollfd wait[2] = {{left[0] ? l->fd[to] : -1, POLLOUT, 0}, {left[1] ? l->fd[from] : -1, POLLIN, 0}};
        int n = poll(wait, 2, milliseconds_until(deadline));
        if (n < 0 && errno != EINTR)
            return transport_fails(message, "poll: %s", strerror(errno));
        if (n == 0 && transport_seconds() >= deadline)
            return left[1] ? transport_fails(message, "nothing has come from rank %d for %g s", from, l->timeout)
                           : transport_fails(message, "rank %d has taken nothing for %g s", to, l->timeout);
        for (int i = 0; i < 2; i++) {
            if (n <= 0 || !left[i] || !wait[i].revents)
                continue;
            ptrdiff_t moved = move_some(wait[i].fd, rank[i], i == 0, data[i], left[i], message);
            if (moved < 0)
                return false;
            data[i] += moved;
            left[i] -= (size_t)moved;
            if (moved)
                deadline = transport_seconds() + l->timeout;
        }
    }
    return true;
}

/* A connection that was closed is readable and has no bytes. */
static bool socket_peers(void *ctx, char *message)
{
    struct socket_link *l = ctx;
    char byte;
    for (int r = 0; r < l->ranks; r++) {
        ptrdiff_t n = l->fd[r] < 0 ? 1 : recv(l->fd[r], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        bool waits = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (n <= 0 && !waits)
            return transport_fails(message, "rank %d is gone: %s", r,
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
        if (n == 0 && transport_seconds() >= deadline)
            return transport_fails(message, "rank %d has not answered in time", rank);
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
static int socket_at_name(const struct transport_config *p, bool listens, double deadline, char *message)
{
    char port[16];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%d", p->port);
    int error = getaddrinfo(p->address, port, &want, &found), fd = -1;
    if (error)
        return transport_fails(message, "%s: %s", p->address, gai_strerror(error)), -1;
    for (;;) {
        for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
            fd = socket_at(a->ai_addr, a->ai_addrlen, listens);
        if (fd >= 0 || listens || transport_seconds() >= deadline)
            break;
        poll(NULL, 0, 20);
    }
    if (fd < 0)
        transport_fails(message, "%s port %d%s: %s", p->address, p->port, listens ? "" : ", where rank 0 should be",
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

static void listening_place(const struct sockaddr_storage *from, int port, struct socket_address *p)
{
    *p = (struct socket_address){from->ss_family, port, {0}};
    if (from->ss_family == AF_INET)
        memcpy(p->address, &((const struct sockaddr_in *)from)->sin_addr, 4);
    else
        memcpy(p->address, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
}

/* ---- proofs of the secret ---- */

/* Of the rank that connects, or of the one that accepts. */
static void sockets_prove(const struct socket_link *l, bool accepts, const struct hello *h, const struct challenge *c,
                  uint8_t proof[HMAC_BYTES])
{
    struct { char who[8]; struct hello h; int32_t rank; uint8_t nonce[NONCE]; } text = {.h = *h, .rank = c->rank};
    memcpy(text.who, accepts ? "accepts" : "connect", sizeof text.who);
    memcpy(text.nonce, c->nonce, NONCE);
    hmac_sha256(l->secret, strlen(l->secret), &text, sizeof text, proof);
}

static bool make_nonce(uint8_t nonce[NONCE], char *message)
{
    return getrandom(nonce, NONCE, 0) == NONCE || transport_fails(message, "getrandom: %s", strerror(errno));
}

/* Says hello to rank `to`, and proves to it, and it to this rank, that they know the secret. */
static bool sockets_greet(struct socket_link *l, int to, int port, double deadline, char *message)
{
    struct hello h = {MAGIC, l->rank, l->ranks, port, {0}};
    struct challenge c;
    uint8_t proof[HMAC_BYTES];
    if (!make_nonce(h.nonce, message) || !move_all(l->fd[to], to, true, &h, sizeof h, deadline, message) ||
        !move_all(l->fd[to], to, false, &c, sizeof c, deadline, message))
        return false;
    sockets_prove(l, true, &h, &c, proof);
    if (c.rank != to || !hmac_equal(proof, c.proof))
        return transport_fails(message, "who answers as rank %d does not know the job's secret", to);
    sockets_prove(l, false, &h, &c, proof);
    return move_all(l->fd[to], to, true, proof, sizeof proof, deadline, message);
}

/* ---- accepting ---- */

/* A connection whose other end has yet to prove that it is a rank of this job. */
struct guest {
    int fd;
    double until;        /* it is closed then */
    bool challenged;
    size_t got;          /* bytes of what it sends: its hello, then its proof */
    struct hello h;
    struct challenge c;
    uint8_t proof[HMAC_BYTES];
    struct sockaddr_storage from;
};
enum { GUESTS = 64, GUEST_SECONDS = 5 };
struct door { struct guest guest[GUESTS]; int n, first; char refused[120]; };

static bool refuse_guest(struct door *d, const char *format, int a, int b)
{
    snprintf(d->refused, sizeof d->refused, format, a, b);
    return false;
}

/* The hello is complete: false: it does not fit, or the answer cannot be sent. */
static bool answer_guest(const struct socket_link *l, struct door *d, struct guest *g, char *message)
{
    if (g->h.magic != MAGIC)
        return refuse_guest(d, "; somebody else connected", 0, 0);
    if (g->h.ranks != l->ranks)
        return refuse_guest(d, "; somebody was rank %d of %d", g->h.rank, g->h.ranks);
    if (g->h.rank < d->first || g->h.rank >= l->ranks || l->fd[g->h.rank] >= 0)
        return refuse_guest(d, "; two processes were rank %d of %d", g->h.rank, g->h.ranks);
    g->c.rank = l->rank;
    g->got = 0;
    g->challenged = true;
    if (!make_nonce(g->c.nonce, message))
        return false;
    sockets_prove(l, true, &g->h, &g->c, g->c.proof);
    return send(g->fd, &g->c, sizeof g->c, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof g->c;
}

/* Receives what is there.  1: it is a rank, 0: more has to come, -1: it is refused. */
static int hear_guest(const struct socket_link *l, struct door *d, struct guest *g, char *message)
{
    uint8_t proof[HMAC_BYTES], *to = g->challenged ? g->proof : (uint8_t *)&g->h;
    size_t size = g->challenged ? sizeof g->proof : sizeof g->h;
    ptrdiff_t n = move_some(g->fd, -1, false, (char *)to + g->got, size - g->got, message);
    if (n < 0)
        return -1;
    g->got += (size_t)n;
    if (g->got < size)
        return 0;
    if (!g->challenged)
        return answer_guest(l, d, g, message) ? 0 : -1;
    sockets_prove(l, false, &g->h, &g->c, proof);
    if (!hmac_equal(proof, g->proof))
        return refuse_guest(d, "; who was rank %d of %d did not know the job's secret", g->h.rank, g->h.ranks), -1;
    if (l->fd[g->h.rank] >= 0)
        return refuse_guest(d, "; two processes were rank %d of %d", g->h.rank, g->h.ranks), -1;
    return 1;
}

static void accept_guest(struct socket_link *l, struct door *d)
{
    struct guest *g = &d->guest[d->n];
    if (d->n == GUESTS) { /* the oldest one goes */
        close(d->guest[0].fd);
        memmove(d->guest, d->guest + 1, (GUESTS - 1) * sizeof *g);
        g = &d->guest[--d->n];
    }
    *g = (struct guest){.fd = accept_one(l->listener, 0, &g->from), .until = transport_seconds() + GUEST_SECONDS};
    if (g->fd < 0)
        return;
    socklen_t bytes = sizeof g->from;
    getpeername(g->fd, (struct sockaddr *)&g->from, &bytes);
    d->n++;
}

/* Waits for a guest to say something, and hears all. Returns the number of ranks that have joined. */
static int hear_guests(struct socket_link *l, struct door *d, struct socket_address *place, double deadline,
                       char *message)
{
    struct pollfd wait[GUESTS + 1] = {{l->listener, POLLIN, 0}};
    int n = d->n, joined = 0, left = 0, wanted = milliseconds_until(deadline);
    for (int i = 0; i < n; i++)
        wait[1 + i] = (struct pollfd){d->guest[i].fd, POLLIN, 0};
    if (poll(wait, (nfds_t)n + 1, wanted < 200 ? wanted : 200) < 0)
        return 0;
    for (int i = 0; i < n; i++) {
        struct guest *g = &d->guest[i];
        int heard = wait[1 + i].revents ? hear_guest(l, d, g, message) : transport_seconds() > g->until ? -1 : 0;
        if (heard > 0) {
            l->fd[g->h.rank] = g->fd;
            joined++;
            if (place)
                listening_place(&g->from, g->h.port, &place[g->h.rank]);
        } else if (heard < 0) {
            close(g->fd);
        } else {
            d->guest[left++] = *g;
        }
    }
    d->n = left;
    if (wait[0].revents)
        accept_guest(l, d);
    return joined;
}

/* Accepts connections of ranks from `first` on until all have connected, and stores where they listen. */
static bool accept_ranks(struct socket_link *l, int first, struct socket_address *place, double deadline, char *message)
{
    struct door *d = mem_alloc(sizeof *d);
    int missing = l->ranks - first;
    if (!d)
        return transport_fails(message, "out of memory");
    d->first = first;
    while (missing > 0 && transport_seconds() < deadline)
        missing -= hear_guests(l, d, place, deadline, message);
    for (int i = 0; i < d->n; i++)
        close(d->guest[i].fd);
    bool ok = missing <= 0 || transport_fails(message, "%d of %d ranks have not come within %g s%s", missing, l->ranks,
                                            l->timeout, d->refused);
    mem_free(d);
    return ok;
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

static int connect_place(const struct socket_address *p)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)p->port)};
    memcpy(&v4.sin_addr, p->address, 4);
    memcpy(&v6.sin6_addr, p->address, 16);
    return p->family == AF_INET ? socket_at((struct sockaddr *)&v4, sizeof v4, false)
                                : socket_at((struct sockaddr *)&v6, sizeof v6, false);
}

static bool join_as_first(struct socket_link *l, const struct transport_config *p, struct socket_address *place,
                          double deadline,
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

static bool join_as_other(struct socket_link *l, const struct transport_config *p, struct socket_address *place,
                          double deadline,
                          char *message)
{
    struct sockaddr_storage mine;
    socklen_t mine_bytes = sizeof mine;
    l->fd[0] = socket_at_name(p, false, deadline, message);
    if (l->fd[0] < 0)
        return false;
    /* only at the address by which rank 0 is reached, at any free port */
    if (getsockname(l->fd[0], (struct sockaddr *)&mine, &mine_bytes))
        return transport_fails(message, "getsockname: %s", strerror(errno));
    if (mine.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&mine)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&mine)->sin_port = 0;
    l->listener = socket_at((struct sockaddr *)&mine, mine_bytes, true);
    if (l->listener < 0)
        return transport_fails(message, "listening: %s", strerror(errno));
    int port = own_port(l->listener);
    if (!sockets_greet(l, 0, port, deadline, message) ||
        !move_all(l->fd[0], 0, false, place, (size_t)l->ranks * sizeof *place, deadline, message))
        return false;
    for (int i = 1; i < l->rank; i++) {
        l->fd[i] = connect_place(&place[i]);
        if (l->fd[i] < 0)
            return transport_fails(message, "connecting to rank %d: %s", i, strerror(errno));
        if (!sockets_greet(l, i, port, deadline, message))
            return false;
    }
    return accept_ranks(l, l->rank + 1, NULL, deadline, message);
}

static void socket_close(void *ctx)
{
    struct socket_link *l = ctx;
    for (int i = 0; i < l->ranks; i++)
        if (l->fd[i] >= 0)
            close(l->fd[i]);
    if (l->listener >= 0)
        close(l->listener);
    mem_free(l->fd);
    mem_free(l);
}

static void *socket_open(struct transport_config *p, char *message)
{
    struct socket_link *l = mem_alloc(sizeof *l);
    struct socket_address *place = mem_alloc((size_t)p->ranks * sizeof *place);
    if (l)
        *l = (struct socket_link){p->rank, p->ranks, p->timeout, p->secret ? p->secret : "",
                           mem_alloc((size_t)p->ranks * sizeof *l->fd), -1};
    bool ok = l && l->fd && place;
    if (!ok)
        transport_fails(message, "out of memory");
    for (int i = 0; ok && i < p->ranks; i++)
        l->fd[i] = -1;
    double deadline = transport_seconds() + p->timeout;
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

const struct transport *transport_sockets(void)
{
    static const struct transport sockets = {TRANSPORT_VERSION, "socket", socket_open, socket_exchange, socket_peers,
                                           socket_close};
    return &sockets;
}
