/* Transport "nccl" for values in the memory of NVIDIA GPUs.
 *
 * NCCL's communicator is non-blocking: a call may return before it has ended, and ncclCommGetAsyncError says how it
 * goes.  So a rank that is gone does not block this one: the waits below end after the timeout, or as soon as a
 * connection of the other transport is closed, and ncclCommAbort ends the kernels that still wait on the GPU.
 *
 * ncclAllReduce and ncclReduceScatter are not called, because the order of their sums depends on the algorithm that
 * NCCL chooses.  The programs that use this transport move parts with NCCL and sum them with kernels, in the order of
 * the ranks (frontend/ops/comm.c).  Each rank sends and receives as many bytes as with the ring algorithm. */
#include "nccl.h"
#include "transport.h"
#include "runtime/device/devices.h"
#include "runtime/device/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MIN_VERSION = 21400 };   /* 2.14 is the first with non-blocking communicators */
#define MAGIC 0xcafebeefu         /* NCCL_API_MAGIC of nccl.h */
/* Seconds that an operation gets to end after another rank has closed its connection: that rank may have ended
 * regularly, after its part of the operation. */
#define GRACE 1.0

static struct {
#define NCCL(field, function, parameters) nccl_result (*field) parameters;
#include "nccl.def"
    const char *(*error)(nccl_result r);
} nccl;

struct nccl_link {
    nccl_comm comm;
    int rank, ranks, device;
};

/* ---- the library ---- */

static pthread_once_t nccl_once = PTHREAD_ONCE_INIT;
static struct err nccl_failure;

static bool nccl_find(struct err *e)
{
    static const char *const name[] = {
#define NCCL(field, function, parameters) #function,
#include "nccl.def"
        "ncclGetErrorString"};
    void *const fn[] = {
#define NCCL(field, function, parameters) &nccl.field,
#include "nccl.def"
        &nccl.error};
    const char *path = getenv("KILN_NCCL_LIBRARY");
    int version = 0;
    if (!path || !*path)
        path = "libnccl.so.2";
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so)
        return err_set(e, KL_ERR_DEVICE, "transport nccl: %s (install NCCL, or set KILN_NCCL_LIBRARY to its file)",
                       dlerror());
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) {
        void *f = dlsym(so, name[i]);
        if (!f)
            return err_set(e, KL_ERR_DEVICE, "transport nccl: %s has no function %s; NCCL 2.14 is needed", path,
                           name[i]);
        memcpy(fn[i], &f, sizeof f);
    }
    if (nccl.version(&version) || version < MIN_VERSION)
        return err_set(e, KL_ERR_DEVICE, "transport nccl: %s is of version %d.%d; NCCL 2.14 is needed", path,
                       version / 10000, version / 100 % 100);
    return true;
}

static void nccl_find_once(void)
{
    if (nccl_find(&nccl_failure))
        nccl_failure.code = KL_OK;
}

bool nccl_open(struct err *e)
{
    pthread_once(&nccl_once, nccl_find_once);
    return !nccl_failure.code || err_set(e, nccl_failure.code, "%s", nccl_failure.msg);
}

bool nccl_make_id(struct nccl_id *id, char *message)
{
    nccl_result r = nccl.new_id(id);
    return !r || transport_fails(message, "ncclGetUniqueId: %s", nccl.error(r));
}

/* ---- waiting ---- */

struct deadline {                 /* of one wait */
    const struct nccl_watch *w;
    double deadline;
    bool alone;                   /* a rank is gone; the deadline is that of GRACE */
    char why[TRANSPORT_MESSAGE];
};

static struct deadline deadline_of(const struct nccl_watch *w)
{
    return (struct deadline){.w = w, .deadline = transport_seconds() + w->timeout};
}

/* Called between two polls.  false: message has the reason to give up. */
static bool may_wait(struct deadline *p, const char *for_what, char *message)
{
    double now = transport_seconds();
    if (!p->alone && !p->w->peers(p->w->ctx, p->why)) {
        p->alone = true;
        p->deadline = now + GRACE < p->deadline ? now + GRACE : p->deadline;
    }
    if (now >= p->deadline)
        return p->alone ? transport_fails(message, "%s", p->why)
                        : transport_fails(message, "%s has not ended for %g s", for_what, p->w->timeout);
    nanosleep(&(struct timespec){0, 20000}, NULL);
    return true;
}

/* Waits until NCCL has accepted the last call, which returned r. */
static bool nccl_poll(struct nccl_link *l, nccl_result r, const char *call, const struct nccl_watch *w, char *message)
{
    struct deadline p = deadline_of(w);
    while (r == NCCL_IN_PROGRESS) {
        nccl_result state = NCCL_SUCCESS;
        r = nccl.state(l->comm, &state);
        r = r ? r : state;
        if (r == NCCL_IN_PROGRESS && !may_wait(&p, call, message))
            return false;
    }
    return !r || transport_fails(message, "%s: %s", call, nccl.error(r));
}

/* ---- joining ---- */

struct joining {
    struct nccl_link *link;
    const struct nccl_id *id;
    const struct nccl_watch *w;
    char *message;
    bool ok;
};

/* NCCL takes the device whose context is current. */
static void join_work(void *ctx, void *stream)
{
    struct joining *j = ctx;
    struct nccl_config config = {sizeof config, MAGIC, MIN_VERSION, 0};
    (void)stream;
    nccl_result r = nccl.join(&j->link->comm, j->link->ranks, *j->id, j->link->rank, &config);
    j->ok = nccl_poll(j->link, r, "ncclCommInitRankConfig", j->w, j->message);
}

struct nccl_link *nccl_join(const struct nccl_id *id, int rank, int ranks, int device, const struct nccl_watch *w,
                            char *message)
{
    struct accelerator *a = accelerator_get(device);
    struct nccl_link *l = mem_alloc(sizeof *l);
    struct joining j = {l, id, w, message, false};
    struct err e;
    e.code = KL_OK;
    if (!l) {
        transport_fails(message, "out of memory");
        return NULL;
    }
    *l = (struct nccl_link){NULL, rank, ranks, device};
    if (!accelerator_driver(a)->enqueue(accelerator_device(a), join_work, &j, &e) && j.ok)
        j.ok = transport_fails(message, "%.180s", e.msg);
    if (e.code && !*message)
        transport_fails(message, "%.180s", e.msg);
    if (j.ok)
        return l;
    nccl_close(l, true);
    return NULL;
}

int nccl_device(const struct nccl_link *l) { return l->device; }

void nccl_close(struct nccl_link *l, bool lost)
{
    if (l->comm && lost)
        nccl.abort(l->comm);
    else if (l->comm)
        nccl.destroy(l->comm);
    mem_free(l);
}

/* ---- moving data ---- */

struct moving {
    struct nccl_link *link;
    const struct nccl_move *move;
    const struct nccl_watch *w;
    char *message;
    bool ok;
};

/* Sends and receives of one group do not wait for one another. */
static nccl_result exchange_parts(struct nccl_link *l, const struct nccl_move *m, void *stream)
{
    nccl_result r = nccl.group_start(), failed = NCCL_SUCCESS;
    if (r)
        return r;
    for (int i = 0; i < l->ranks && !failed; i++) {
        size_t at = (size_t)i * m->n;
        r = nccl.send((const char *)m->in + at, m->n, NCCL_UINT8, i, l->comm, stream);
        failed = r == NCCL_IN_PROGRESS ? NCCL_SUCCESS : r;
        r = failed ? failed : nccl.receive((char *)m->out + at, m->n, NCCL_UINT8, i, l->comm, stream);
        failed = r == NCCL_IN_PROGRESS ? NCCL_SUCCESS : r;
    }
    r = nccl.group_end();
    return failed ? failed : r;
}

static void move_work(void *ctx, void *stream)
{
    struct moving *v = ctx;
    const struct nccl_move *m = v->move;
    nccl_comm c = v->link->comm;
    nccl_result r;
    switch (m->op) {
    case NCCL_ALL_TO_ALL: r = exchange_parts(v->link, m, stream); break;
    case NCCL_ALL_GATHER: r = nccl.all_gather(m->in, m->out, m->n, NCCL_UINT8, c, stream); break;
    default:              r = nccl.broadcast(m->in, m->out, m->n, NCCL_UINT8, m->root, c, stream); break;
    }
    v->ok = nccl_poll(v->link, r, "giving NCCL an operation", v->w, v->message);
}

bool nccl_run(struct nccl_link *l, const struct nccl_move *m, const struct nccl_watch *w, char *message)
{
    struct accelerator *a = accelerator_get(l->device);
    const struct driver *d = accelerator_driver(a);
    struct moving v = {l, m, w, message, false};
    struct err e;
    e.code = KL_OK;
    if (!m->n)
        return true;
    if (!d->enqueue(accelerator_device(a), move_work, &v, &e))
        return transport_fails(message, "%.180s", e.msg);
    struct deadline p = deadline_of(w);
    bool ended = !v.ok, ok = v.ok;
    while (!ended && ok) {
        nccl_result state = NCCL_SUCCESS, r;
        if (!d->ended(accelerator_device(a), &ended, &e))
            return transport_fails(message, "%.180s", e.msg);
        if (ended)
            break;
        r = nccl.state(l->comm, &state);
        r = r ? r : state;
        ok = (!r || r == NCCL_IN_PROGRESS || transport_fails(message, "NCCL: %s", nccl.error(r))) &&
             may_wait(&p, "NCCL's operation", message);
    }
    return ok;
}
