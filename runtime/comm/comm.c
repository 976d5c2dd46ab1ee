/* Communicators, and the custom ops of their collectives.
 *
 * All communicators of a process use one transport.  Before any data is sent, each pair of ranks exchanges a line of
 * text that describes the operation: the communicator, its number of operations so far, the op and the type.  So ranks
 * that execute different operations get an error, instead of each other's data.
 *
 * For sums, rank r receives part r of all ranks' tensors, combines these in the order of the ranks and sends the result
 * to all ranks.  Each element is computed once, by one rank, so all ranks get the same bits, at every repetition. */
#include "comm.h"
#include "codegen/codegen.h"
#include "nccl.h"
#include "runtime/device/devices.h"
#include "runtime/device/driver.h"
#include "ir/graph/custom.h"
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `world`; it is held while an operation runs */
static struct {
    const struct transport *transport;       /* NULL: there is only one rank */
    void *link;                          /* NULL: not joined yet, or lost */
    int rank, ranks;
    int made, open;                      /* number of communicators made so far; number of those not freed */
    char lost[TRANSPORT_MESSAGE];          /* the reason for which the link was closed */
    bool by_nccl;                        /* NCCL moves what is in the memory of NVIDIA GPUs */
    struct nccl_link *nccl;              /* NULL: no collective of such values has run */
    double timeout;
    struct kl_comm *first;
} world;

/* ---- operations; they need the lock ---- */

enum { LINE = 160 };

/* Closes the link after an error, after which it cannot be used. */
static bool comm_lost(char *message)
{
    snprintf(world.lost, sizeof world.lost, "%s", message);
    if (world.nccl)
        nccl_close(world.nccl, true);
    world.nccl = NULL;
    world.transport->close(world.link); /* so that the other ranks see an error at once instead of a timeout */
    world.link = NULL;
    return false;
}

static bool comm_exchange(int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes, char *message)
{
    if ((!out_bytes && !in_bytes) ||
        world.transport->exchange(world.link, to, out, out_bytes, from, in, in_bytes, message))
        return true;
    return comm_lost(message);
}

/* The ranks that this rank sends to and receives from in step `step` of an exchange between all ranks. */
static int rank_after(int step) { return (world.rank + step) % world.ranks; }
static int rank_before(int step) { return (world.rank - step + world.ranks) % world.ranks; }

/* Checks that all ranks are about to execute the same operation.  Returns KL_OK; ARGUMENT: they are not, but the link
 * can still be used; IO: a rank is lost. */
static kl_status comm_agree(struct kl_comm *c, const char *what, char *message)
{
    char own[LINE] = "", other[LINE], different[LINE] = "";
    int who = -1;
    snprintf(own, sizeof own, "%s (operation %" PRIu64 " of communicator %d)", what, ++c->sequence, c->number);
    if (world.ranks > 1 && !world.link) {
        snprintf(message, TRANSPORT_MESSAGE, "the ranks are not connected any more: %.150s", world.lost);
        return KL_ERR_IO;
    }
    for (int step = 1; step < world.ranks; step++) {
        if (!comm_exchange(rank_after(step), own, LINE, rank_before(step), other, LINE, message))
            return KL_ERR_IO;
        other[LINE - 1] = 0;
        for (char *p = other; *p; p++) /* the message may go to a terminal */
            if ((unsigned char)*p < ' ' || (unsigned char)*p > '~')
                *p = '?';
        if (strcmp(own, other) && (who < 0 || rank_before(step) < who)) {
            who = rank_before(step);
            memcpy(different, other, LINE);
        }
    }
    if (who < 0)
        return KL_OK;
    snprintf(message, TRANSPORT_MESSAGE, "rank %d is at %.80s, rank %d at %.80s", world.rank, own, who, different);
    return KL_ERR_ARGUMENT;
}

/* Memory that the communicator keeps for later operations.  NULL: message has the reason. */
static char *comm_work(struct kl_comm *c, size_t bytes, char *message)
{
    if (c->work_bytes < bytes) {
        mem_free(c->work);
        c->work = mem_alloc(bytes);
        c->work_bytes = c->work ? bytes : 0;
    }
    if (!c->work)
        snprintf(message, TRANSPORT_MESSAGE, "out of memory: %zu bytes for the other ranks' parts", bytes);
    return c->work;
}

struct rank_range { int64_t begin, end; };
static struct rank_range part_of(int64_t n, int rank)
{
    return (struct rank_range){n / world.ranks * rank + (rank < n % world.ranks ? rank : n % world.ranks),
                          n / world.ranks * (rank + 1) + (rank + 1 < n % world.ranks ? rank + 1 : n % world.ranks)};
}

/* Combines this rank's part of all ranks' tensors and stores it in its place in out[]. */
static bool reduce_part(struct kl_comm *c, enum comm_reduction kind, unsigned dtype, const char *in, int64_t n,
                        char *out, char *message)
{
    size_t size = dtype_size(dtype);
    struct rank_range own = part_of(n, world.rank);
    size_t bytes = (size_t)(own.end - own.begin) * size;
    size_t table = ((size_t)world.ranks * sizeof(char *) + 63) / 64 * 64, stride = (bytes + 63) / 64 * 64;
    char *work = comm_work(c, table + stride * (size_t)world.ranks, message);
    if (!work)
        return false;
    const char **part = (const char **)(void *)work;
    part[world.rank] = in + (size_t)own.begin * size;
    for (int step = 1; step < world.ranks; step++) {
        struct rank_range to = part_of(n, rank_after(step));
        char *from = work + table + stride * (size_t)rank_before(step);
        part[rank_before(step)] = from;
        if (!comm_exchange(rank_after(step), in + (size_t)to.begin * size, (size_t)(to.end - to.begin) * size,
                           rank_before(step), from,
                      bytes, message))
            return false;
    }
    comm_reduce(kind, dtype, world.ranks, part, out, own.end - own.begin);
    return true;
}

/* Sends this rank's part of out to all ranks, and receives their parts. */
static bool gather_parts(char *out, int64_t n, size_t size, char *message)
{
    struct rank_range own = part_of(n, world.rank);
    bool ok = true;
    for (int step = 1; step < world.ranks && ok; step++) {
        struct rank_range from = part_of(n, rank_before(step));
        ok = comm_exchange(rank_after(step), out + (size_t)own.begin * size, (size_t)(own.end - own.begin) * size,
                           rank_before(step),
                      out + (size_t)from.begin * size, (size_t)(from.end - from.begin) * size, message);
    }
    return ok;
}

/* Sends this rank's part of out to root, which receives the parts of all ranks. */
static bool gather_to(char *out, int64_t n, size_t size, int root, char *message)
{
    bool ok = true;
    for (int r = 0; r < world.ranks && ok; r++) {
        struct rank_range part = part_of(n, r);
        char *at = out + (size_t)part.begin * size;
        size_t bytes = (size_t)(part.end - part.begin) * size;
        if (r != root && r == world.rank)
            ok = comm_exchange(root, at, bytes, root, NULL, 0, message);
        else if (r != root && root == world.rank)
            ok = comm_exchange(r, NULL, 0, r, at, bytes, message);
    }
    return ok;
}

/* Sends row r of in to each rank r, and receives row number `rank` of all ranks. */
static bool exchange_rows(const char *in, char *out, size_t bytes, char *message)
{
    bool ok = true;
    memcpy(out + (size_t)world.rank * bytes, in + (size_t)world.rank * bytes, bytes);
    for (int step = 1; step < world.ranks && ok; step++)
        ok = comm_exchange(rank_after(step), in + (size_t)rank_after(step) * bytes, bytes, rank_before(step),
                      out + (size_t)rank_before(step) * bytes, bytes, message);
    return ok;
}

/* Broadcasts along a tree: in round k each rank that has the data sends it to the rank 2^k further on, counted from
 * root. */
static bool comm_broadcast_bytes(char *data, size_t bytes, int root, char *message)
{
    int place = (world.rank - root + world.ranks) % world.ranks;
    bool ok = true;
    for (int distance = 1; distance < world.ranks && ok; distance *= 2) {
        int to = place < distance && place + distance < world.ranks ? (world.rank + distance) % world.ranks : -1;
        int from = place >= distance && place < 2 * distance ? (world.rank - distance + world.ranks) % world.ranks : -1;
        if (to >= 0)
            ok = comm_exchange(to, data, bytes, to, NULL, 0, message);
        else if (from >= 0)
            ok = comm_exchange(from, NULL, 0, from, data, bytes, message);
    }
    return ok;
}

/* ---- custom ops ---- */

static const char *const op_word[COMM_OPS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                             "reduce", "all_to_all"};

/* A node's attributes are text, so that a printed graph can be read. */
int comm_op_attr(char *text, size_t size, const struct comm_attr *a)
{
    int n = snprintf(text, size, "communicator %d ranks %d %s root %d", a->number, a->ranks,
                     comm_reduction_name(a->kind), a->root);
    if (a->gradient_of && n > 0 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, " gradient of %d", a->gradient_of);
    if (*a->part_of && n > 0 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, " for %s", a->part_of);
    return n > 0 && (size_t)n < size ? n : 0;
}

static bool parse_attr(const kl_custom_call *call, struct comm_attr *a)
{
    char text[COMM_ATTR], word[8] = "";
    if (!call->attr_bytes || call->attr_bytes >= sizeof text)
        return false;
    memcpy(text, call->attr, call->attr_bytes);
    text[call->attr_bytes] = 0;
    const char *part = strstr(text, " for ");
    snprintf(a->part_of, sizeof a->part_of, "%s", part ? part + 5 : "");
    a->gradient_of = 0;
    if (sscanf(text, "communicator %d ranks %d %7s root %d gradient of %d", &a->number, &a->ranks, word, &a->root,
               &a->gradient_of) < 4)
        return false;
    for (a->kind = COMM_SUM; a->kind <= COMM_MIN; a->kind++)
        if (!strcmp(word, comm_reduction_name(a->kind)))
            return a->ranks > 0 && a->root >= 0 && a->root < a->ranks;
    return false;
}

static enum comm_op op_of(const void *ctx);

static kl_status comm_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    struct comm_attr a;
    enum comm_op op = op_of(ctx);
    if (call->nout != 2 || call->nin < 1 || call->nin > 2 || !parse_attr(call, &a))
        return snprintf(call->message, call->message_bytes,
                        "takes a tensor and a token, and gives both; attributes are \"communicator N ranks N sum root "
                        "N\""), KL_ERR_ARGUMENT;
    out[0] = call->in_type[0];
    out[1] = (kl_type){.dtype = KL_U8, .rank = 0};
    if ((op == COMM_REDUCE_SCATTER || op == COMM_ALL_GATHER) &&
        (out->rank < 1 || (op == COMM_REDUCE_SCATTER && out->dims[0] % a.ranks)))
        return snprintf(call->message, call->message_bytes, "axis 0 is not %d equal parts", a.ranks), KL_ERR_SHAPE;
    if (op == COMM_REDUCE_SCATTER)
        out->dims[0] /= a.ranks;
    if (op == COMM_ALL_GATHER)
        out->dims[0] *= a.ranks;
    if (op == COMM_ALL_TO_ALL && (out->rank != 2 || out->dims[0] != a.ranks))
        return snprintf(call->message, call->message_bytes, "takes a matrix of %d rows", a.ranks), KL_ERR_SHAPE;
    return KL_OK;
}

static struct kl_comm *comm_numbered(int number)
{
    struct kl_comm *c = world.first;
    while (c && c->number != number)
        c = c->next;
    return c;
}

static int64_t type_elements(const kl_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* Moves the data of an operation, after all ranks have agreed on it. */
static bool move_data(struct kl_comm *c, enum comm_op op, const struct comm_attr *a, const kl_custom_call *call,
                      char *message)
{
    const char *in = call->in[0];
    char *out = call->out[0];
    unsigned dtype = call->in_type[0].dtype;
    size_t size = dtype_size(dtype);
    int64_t n = type_elements(&call->in_type[0]);
    switch (op) {
    case COMM_ALL_REDUCE:
        return reduce_part(c, a->kind, dtype, in, n, out + (size_t)part_of(n, c->rank).begin * size, message) &&
               gather_parts(out, n, size, message);
    case COMM_REDUCE_SCATTER: return reduce_part(c, a->kind, dtype, in, n, out, message);
    case COMM_REDUCE:
        if (!reduce_part(c, a->kind, dtype, in, n, out + (size_t)part_of(n, c->rank).begin * size, message) ||
            !gather_to(out, n, size, a->root, message))
            return false;
        if (c->rank != a->root)
            memset(out, 0, (size_t)n * size);
        return true;
    case COMM_ALL_GATHER:
        memcpy(out + (size_t)(n * c->rank) * size, in, (size_t)n * size);
        return gather_parts(out, n * c->ranks, size, message);
    case COMM_ALL_TO_ALL: return exchange_rows(in, out, (size_t)(n / c->ranks) * size, message);
    default:
        memcpy(out, in, (size_t)n * size);
        return comm_broadcast_bytes(out, (size_t)n * size, a->root, message);
    }
}

/* The line that ranks compare: the op, its type, and the device kind if the host does not move the data. */
static void describe_op(enum comm_op op, const struct comm_attr *a, const kl_type *type, bool on_device, char *what)
{
    char dims[SHAPE_TEXT];
    struct shape shape = shape_make((uint32_t)type->rank, type->dims);
    bool reduces = op == COMM_ALL_REDUCE || op == COMM_REDUCE_SCATTER || op == COMM_REDUCE;
    int at = 0;
    if (*a->part_of)
        at = snprintf(what, LINE, "%s: %s", a->part_of, op_word[op]);
    else
        at = snprintf(what, LINE, "%s%s%s %s%s", op_word[op], reduces ? " " : "",
                      reduces ? comm_reduction_name(a->kind) : "", dtype_name(type->dtype),
                      shape_text(&shape, dims, sizeof dims));
    if ((op == COMM_BROADCAST || op == COMM_REDUCE) && at < LINE)
        at += snprintf(what + at, LINE - (size_t)at, " %s rank %d", op == COMM_REDUCE ? "to" : "from", a->root);
    if (a->gradient_of && at < LINE)
        at += snprintf(what + at, LINE - (size_t)at, " for the gradient of collective %d", a->gradient_of);
    if (on_device && at < LINE)
        snprintf(what + at, LINE - (size_t)at, " by nccl");
}

/* Runs an operation, with the lock held.  move: moves the data after all ranks have agreed on the operation. */
static kl_status run_agreed(enum comm_op op, const kl_custom_call *call, int device,
                            bool (*move)(struct kl_comm *c, enum comm_op op, const struct comm_attr *a,
                                         const kl_custom_call *call, int device, char *message))
{
    struct comm_attr a;
    char what[LINE], message[TRANSPORT_MESSAGE] = "";
    if (!parse_attr(call, &a))
        return KL_ERR_INTERNAL;
    if (inspect_is_quiet())
        return snprintf(call->message, call->message_bytes, "the other ranks do not repeat it"), KL_ERR_ARGUMENT;
    describe_op(op, &a, &call->in_type[0], device >= 0, what);
    pthread_mutex_lock(&lock);
    struct kl_comm *c = comm_numbered(a.number);
    kl_status status = KL_ERR_ARGUMENT;
    if (!c || c->ranks != a.ranks)
        snprintf(message, sizeof message, "there is no communicator %d of %d ranks", a.number, a.ranks);
    else
        status = comm_agree(c, what, message);
    if (!status && !move(c, op, &a, call, device, message))
        status = world.ranks > 1 && !world.link ? KL_ERR_IO : KL_ERR_MEMORY;
    pthread_mutex_unlock(&lock);
    if (status == KL_ERR_IO)
        snprintf(call->message, call->message_bytes, "rank %d in %.70s: %.160s", c->rank, what, message);
    else if (status)
        snprintf(call->message, call->message_bytes, "%s", message);
    return status;
}

static bool move_on_host(struct kl_comm *c, enum comm_op op, const struct comm_attr *a, const kl_custom_call *call,
                         int device, char *message)
{
    (void)device;
    return move_data(c, op, a, call, message);
}

static kl_status comm_run(void *ctx, const kl_custom_call *call)
{
    kl_status status = run_agreed(op_of(ctx), call, -1, move_on_host);
    *(uint8_t *)call->out[1] = 0;
    return status;
}

/* ---- values in the memory of GPUs, by NCCL ---- */

bool comm_moves_device(const struct kl_comm *c, int device)
{
    return world.by_nccl && c->ranks > 1 && device >= DEVICE_CUDA && device < DEVICE_HIP;
}

static bool comm_takes(void *ctx, int device)
{
    enum comm_op op = op_of(ctx);
    return world.by_nccl && world.ranks > 1 && device >= DEVICE_CUDA && device < DEVICE_HIP &&
           (op == COMM_ALL_TO_ALL || op == COMM_ALL_GATHER || op == COMM_BROADCAST);
}

static bool peers_there(void *ctx, char *message)
{
    (void)ctx;
    return !world.transport->peers || world.transport->peers(world.link, message);
}

/* Makes NCCL's communicator when the first values on a GPU are to be moved: rank 0 sends its id to all ranks. */
static bool nccl_ready(int device, const struct nccl_watch *w, char *message)
{
    struct { struct nccl_id id; char made; } first = {.made = 0};
    char why[TRANSPORT_MESSAGE] = "rank 0 could not make an id for NCCL";
    if (world.nccl && nccl_device(world.nccl) != device) {
        snprintf(message, TRANSPORT_MESSAGE, "the collectives of a process use one GPU with NCCL: %s, not %s",
                 device_name(nccl_device(world.nccl)), device_name(device));
        return comm_lost(message);
    }
    if (world.nccl)
        return true;
    if (world.rank == 0)
        first.made = nccl_make_id(&first.id, why);
    if (!comm_broadcast_bytes((char *)&first, sizeof first, 0, message))
        return false;
    world.nccl = first.made ? nccl_join(&first.id, world.rank, world.ranks, device, w, message) : NULL;
    if (!first.made)
        snprintf(message, TRANSPORT_MESSAGE, "%s", why);
    return world.nccl || comm_lost(message);
}

static bool move_on_device(struct kl_comm *c, enum comm_op op, const struct comm_attr *a, const kl_custom_call *call,
                           int device, char *message)
{
    static const enum nccl_op op_at[COMM_OPS] = {[COMM_ALL_TO_ALL] = NCCL_ALL_TO_ALL,
                                                 [COMM_ALL_GATHER] = NCCL_ALL_GATHER,
                                                 [COMM_BROADCAST] = NCCL_BROADCAST};
    struct nccl_watch w = {world.timeout, peers_there, NULL};
    struct nccl_move m = {op_at[op], a->root, call->in[0], call->out[0],
                          (size_t)type_elements(&call->in_type[0]) * dtype_size(call->in_type[0].dtype)};
    if (op == COMM_ALL_TO_ALL)
        m.n /= (size_t)c->ranks;
    return nccl_ready(device, &w, message) && (nccl_run(world.nccl, &m, &w, message) || comm_lost(message));
}

/* The device's own work ends first, so that a rank does not wait for another one's work during the exchange. */
static kl_status comm_run_at(void *ctx, const kl_custom_call *call, int device)
{
    static const uint8_t token;
    struct accelerator *a = accelerator_get(device);
    const struct driver *d = accelerator_driver(a);
    struct err e;
    e.code = KL_OK;
    if (!d->finish(accelerator_device(a), &e))
        return snprintf(call->message, call->message_bytes, "%.200s", e.msg), e.code;
    kl_status status = run_agreed(op_of(ctx), call, device, move_on_device);
    if (!status && !d->upload(accelerator_device(a), call->out[1], &token, sizeof token, &e))
        return snprintf(call->message, call->message_bytes, "%.200s", e.msg), e.code;
    return status;
}

#define OP(which, word)                                                                                \
    {.name = "kl." word, .functions = {comm_types, comm_run, NULL}, .async = true, .ctx = &ops[which], \
     .takes = comm_takes, .run_at = comm_run_at}
static struct custom_op ops[COMM_OPS] = {
    [COMM_ALL_REDUCE] = OP(COMM_ALL_REDUCE, "all_reduce"),
    [COMM_REDUCE_SCATTER] = OP(COMM_REDUCE_SCATTER, "reduce_scatter"),
    [COMM_ALL_GATHER] = OP(COMM_ALL_GATHER, "all_gather"),
    [COMM_BROADCAST] = OP(COMM_BROADCAST, "broadcast"),
    [COMM_REDUCE] = OP(COMM_REDUCE, "reduce"),
    [COMM_ALL_TO_ALL] = OP(COMM_ALL_TO_ALL, "all_to_all"),
};

static enum comm_op op_of(const void *ctx) { return (enum comm_op)((const struct custom_op *)ctx - ops); }
const char *comm_op_name(enum comm_op op) { return ops[op].name; }

/* ---- communicators ---- */

bool comm_barrier(struct kl_comm *c, struct err *e)
{
    char message[TRANSPORT_MESSAGE] = "";
    pthread_mutex_lock(&lock);
    kl_status status = comm_agree(c, "barrier", message);
    pthread_mutex_unlock(&lock);
    return !status || err_set(e, status, "%s", message);
}

const char *comm_transport_name(void)
{
    return world.by_nccl ? "nccl" : world.transport ? world.transport->name : "none";
}

static const struct transport *transport_by_name(const char *name, struct err *e)
{
    const struct transport *(*get)(void);
    if (!strcmp(name, "socket"))
        return transport_sockets();
    if (strcmp(name, "mpi")) {
        err_set(e, KL_ERR_ARGUMENT, "transport \"%.40s\" is not \"mpi\", \"nccl\" or \"socket\"", name);
        return NULL;
    }
    if (!library_entry("transport mpi", "libkiln-mpi.so", "kiln_transport_mpi", (void **)&get, e))
        return NULL;
    const struct transport *found = get();
    if (found->version == TRANSPORT_VERSION)
        return found;
    err_set(e, KL_ERR_DEVICE, "transport mpi: libkiln-mpi.so is of another version of Kiln");
    return NULL;
}

/* Joins the other ranks.  The caller holds the lock. */
static bool comm_join(const char *transport, const struct comm_place *place, double timeout, struct err *e)
{
    char message[TRANSPORT_MESSAGE] = "";
    struct transport_config at = {place->rank, place->ranks, place->address, place->port, timeout, place->secret};
    bool by_nccl = transport && !strcmp(transport, "nccl");
    if (by_nccl && !nccl_open(e))
        return false;
    if (by_nccl)
        transport = place->mpi ? "mpi" : "socket"; /* moves NCCL's id, and values that are not on a GPU */
    if (place->ranks > 1 || transport) {
        world.transport = transport_by_name(transport ? transport : place->mpi ? "mpi" : "socket", e);
        if (!world.transport)
            return false;
        if ((world.transport != transport_sockets() || at.ranks > 1) &&
            !(world.link = world.transport->open(&at, message)))
            return err_set(e, KL_ERR_IO, "transport %s, rank %d of %d: %s", world.transport->name, at.rank, at.ranks,
                           message);
    }
    world.rank = at.rank;
    world.ranks = at.ranks;
    world.by_nccl = by_nccl;
    world.timeout = timeout;
    return true;
}

struct kl_comm *comm_open(const char *transport, const struct comm_place *place, double timeout, struct err *e)
{
    struct kl_comm *c = mem_alloc(sizeof *c);
    if (!c) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    pthread_mutex_lock(&lock);
    bool ok = true;
    for (int i = 0; i < COMM_OPS && ok; i++)
        ok = custom_find(ops[i].name) || custom_add(&ops[i], e);
    if (ok && world.open && transport && strcmp(transport, comm_transport_name()))
        ok = err_set(e, KL_ERR_ARGUMENT, "the ranks are joined by transport %s already", comm_transport_name());
    if (ok && !world.open)
        ok = comm_join(transport, place, timeout, e);
    if (ok) {
        *c = (struct kl_comm){.number = ++world.made, .rank = world.rank, .ranks = world.ranks,
                           .local_rank = place->local_rank, .next = world.first};
        world.first = c;
        world.open++;
    }
    pthread_mutex_unlock(&lock);
    if (ok)
        return c;
    mem_free(c);
    return NULL;
}

void comm_close(struct kl_comm *c)
{
    pthread_mutex_lock(&lock);
    for (struct kl_comm **at = &world.first; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    if (!--world.open) {
        if (world.nccl)
            nccl_close(world.nccl, false);
        world.nccl = NULL;
        world.by_nccl = false;
        if (world.link)
            world.transport->close(world.link);
        world.transport = NULL;
        world.link = NULL;
    }
    pthread_mutex_unlock(&lock);
    mem_free(c->work);
    mem_free(c);
}
