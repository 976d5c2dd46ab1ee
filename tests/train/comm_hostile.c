/* Processes that are no ranks of a job connect to its sockets, on the loopback: silent ones, garbage, hellos of other
 * jobs and of ranks that exist, with another secret and with none, and one that repeats what a rank has sent.  The
 * ranks join all the same, and compute the same values.  HMAC-SHA-256 is compared with the vectors of RFC 4231. */
#define _GNU_SOURCE
#include "runtime/comm/transport.h"
#include "runtime/comm/hmac.h"
#include "tests/support/api_check.h"
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- HMAC ---- */

static bool is_hmac(const void *key, size_t key_bytes, const char *data, const char *hex)
{
    uint8_t out[HMAC_BYTES];
    char text[2 * HMAC_BYTES + 1];
    hmac_sha256(key, key_bytes, data, strlen(data), out);
    for (int i = 0; i < HMAC_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", out[i]);
    return !strcmp(text, hex);
}

static void vectors(void)
{
    uint8_t key[131];
    memset(key, 0x0b, 20);
    CHECK(is_hmac(key, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"));
    CHECK(is_hmac("Jefe", 4, "what do ya want for nothing?",
                  "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
    memset(key, 0xaa, sizeof key);
    CHECK(is_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First",
                  "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"));
    CHECK(is_hmac(key, sizeof key, "This is a test using a larger than block-size key and a larger than block-size "
                  "data. The key needs to be hashed before being used by the HMAC algorithm.",
                  "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"));
}

/* ---- a job of three ranks ---- */

enum { RANKS = 3 };
static const char secret[] = "correct horse battery staple";

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = !bind(fd, (struct sockaddr *)&a, n) && !getsockname(fd, (struct sockaddr *)&a, &n);
    close(fd);
    return ok ? ntohs(a.sin_port) : 0;
}

/* In a child: joins, adds, and ends with 0 if the sum is right; 2: it could not join. */
static int be_rank(int rank, int port, const char *own_secret, double timeout)
{
    kl_comm *comm = kl_comm_new(&(kl_comm_options){.transport = "socket", .rank = rank, .ranks = RANKS, .port = port,
                                                    .address = "127.0.0.1", .timeout = timeout, .secret = own_secret});
    if (!comm)
        return kl_last_error_code() == KL_ERR_IO ? 2 : 3;
    float v = (float)(rank + 1), sum = 0;
    kl_tensor x = kl_input(kl_device_named("ref"), KL_F32, 0, NULL, &v);
    kl_status status = kl_read(kl_comm_all_reduce(comm, KL_REDUCE_SUM, x), &sum, sizeof sum);
    kl_comm_free(comm);
    return status || sum != 6;
}

static pid_t start_rank(int rank, int port, const char *own_secret, double timeout)
{
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        alarm(60);
        _exit(be_rank(rank, port, own_secret, timeout));
    }
    return pid;
}

/* ---- who else connects ---- */

struct hello { uint32_t magic; int32_t rank, ranks, port; uint8_t nonce[16]; };
static const uint32_t magic = 0x4b4c434f + TRANSPORT_VERSION;
static atomic_bool over;
static int job_port;

static int connected(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)job_port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Says hello as a rank and, to the answer, a proof with another secret or none.  Returns whether it was taken: its
 * connection is still open a while after. */
static bool pretend(int fd, struct hello h, const char *other_secret)
{
    struct { int32_t rank; uint8_t nonce[16], proof[HMAC_BYTES]; } c;
    struct { char who[8]; struct hello h; int32_t rank; uint8_t nonce[16]; } text = {.who = "connect", .h = h};
    uint8_t proof[HMAC_BYTES], byte;
    struct timeval wait = {.tv_usec = 500000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (send(fd, &h, sizeof h, MSG_NOSIGNAL) != sizeof h || recv(fd, &c, sizeof c, MSG_WAITALL) != sizeof c)
        return false;
    text.rank = c.rank;
    memcpy(text.nonce, c.nonce, sizeof text.nonce);
    hmac_sha256(other_secret, strlen(other_secret), &text, sizeof text, proof);
    if (send(fd, proof, sizeof proof, MSG_NOSIGNAL) != sizeof proof)
        return false;
    return recv(fd, &byte, 1, 0) != 0; /* 0: it was closed */
}

static atomic_int taken;

static void *attack(void *arg)
{
    int silent[8], n = 0;
    (void)arg;
    for (int i = 0; !atomic_load(&over) && i < 400; i++) {
        struct hello h = {magic, 1 + i % 2, RANKS, 1, {(uint8_t)i}};
        static const struct { int32_t rank, ranks; uint32_t magic; } wrong[] = {
            {1, 99, 0}, {-2147483647 - 1, RANKS, 0}, {RANKS, RANKS, 0}, {0, RANKS, 0}, {1, RANKS, 1}};
        uint8_t garbage[4096];
        int fd = connected(), kind = i % 9;
        if (fd < 0) {
            poll(NULL, 0, 5);
            continue;
        }
        if (kind == 0 && n < 8) {
            silent[n++] = fd;
            continue;
        }
        if (kind >= 1 && kind <= 5) {
            h.rank = wrong[kind - 1].rank, h.ranks = wrong[kind - 1].ranks, h.magic += wrong[kind - 1].magic;
            send(fd, &h, sizeof h, MSG_NOSIGNAL);
        } else if (kind == 6) {
            for (size_t k = 0; k < sizeof garbage; k++)
                garbage[k] = (uint8_t)(k * 7 + (size_t)i);
            send(fd, garbage, sizeof garbage, MSG_NOSIGNAL | MSG_DONTWAIT);
        } else {
            atomic_fetch_add(&taken, pretend(fd, h, kind == 7 ? "" : "correct horse battery stapler"));
        }
        close(fd);
    }
    while (n > 0)
        close(silent[--n]);
    return NULL;
}

/* Three ranks whose last one comes late, while others connect. */
static void attacked(void)
{
    pthread_t thread[2];
    pid_t pid[RANKS];
    job_port = free_port();
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&thread[i], NULL, attack, NULL));
    for (int r = 0; r < RANKS; r++) {
        if (r == 2)
            poll(NULL, 0, 1500);
        pid[r] = start_rank(r, job_port, secret, 30);
    }
    for (int r = 0; r < RANKS; r++) {
        int status = -1;
        CHECK(waitpid(pid[r], &status, 0) == pid[r] && WIFEXITED(status));
        if (!check_at(WEXITSTATUS(status) == 0, __LINE__, "a rank among others who connect"))
            printf("rank %d ended with %d\n", r, WEXITSTATUS(status));
    }
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    CHECK(atomic_load(&taken) == 0);
}

/* Ranks of one job with different secrets, or only one with a secret, do not join. */
static void other_secrets(void)
{
    static const char *const wrong[] = {"", "another", NULL};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pid_t pid[RANKS];
        int port = free_port(), failed_ranks = 0;
        for (int r = 0; r < RANKS; r++)
            pid[r] = start_rank(r, port, r == 1 ? wrong[i] : secret, 1);
        for (int r = 0; r < RANKS; r++) {
            int status = -1;
            CHECK(waitpid(pid[r], &status, 0) == pid[r] && WIFEXITED(status));
            failed_ranks += WEXITSTATUS(status) == 2;
        }
        CHECK(failed_ranks == RANKS);
    }
}

int main(void)
{
    vectors();
    attacked();
    other_secrets();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
