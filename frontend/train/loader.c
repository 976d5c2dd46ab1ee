/* Loaders: batches that threads prepare ahead of time.
 *
 * Batches have numbers, counted over all epochs.  Batch i is in slot i % slots while it is being made and used.  A
 * thread takes the next number when its slot is free; kl_loader_next waits for its number's slot.  The contents of a
 * batch depend on its number only, so the order does not depend on the threads, and one number describes a position.
 *
 * The order of an epoch is a permutation of which single elements can be computed (a Feistel network over the numbers
 * of samples).  So it needs no memory, and reading can start or continue at any position without extra time. */
#include "train.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

enum { LOADER_MESSAGE = 256, LOADER_ROUNDS = 6, LOADER_THREADS_MAX = 256, LOADER_SLOTS_MAX = 4096 };

struct loader_slot {
    int64_t number;        /* number of the batch in it; -1: none */
    enum { SLOT_FREE, SLOT_FILLING, SLOT_READY } state;
    int64_t *sample;
    int64_t count;
    void *data;
    kl_status status;
    char message[LOADER_MESSAGE];
};

struct kl_loader {
    kl_loader_options is;
    int64_t batches;       /* number of batches in an epoch */
    int half_bits;         /* half the number of bits of the Feistel network: 2 * half_bits bits can hold every sample's
                              number */
    int nslots, nthreads;
    struct loader_slot *slot;
    int held;              /* the slot of the batch that the caller uses; -1: none */
    int64_t next;          /* number of the batch that the caller gets next */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t take;          /* number of the batch that a thread makes next */
    bool stop, seeking;
    pthread_t *thread;
};

/* ---- which samples ---- */

/* A permutation of the numbers of 2 * half_bits bits, which the key determines. */
static uint64_t loader_feistel(uint64_t x, int half_bits, uint64_t key)
{
    uint64_t mask = (UINT64_C(1) << half_bits) - 1, left = x >> half_bits, right = x & mask;
    for (int i = 0; i < LOADER_ROUNDS; i++) {
        uint64_t next = left ^ (train_mix(train_mix(right ^ key) + (uint64_t)i) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

/* The sample at a position of an epoch's order.  A number that is not a sample's is permuted again until it is one. */
static int64_t loader_sample(const kl_loader *l, int64_t epoch, int64_t place)
{
    if (l->is.in_order)
        return place;
    uint64_t key = train_mix(l->is.seed ^ train_mix((uint64_t)epoch)), x = (uint64_t)place;
    do
        x = loader_feistel(x, l->half_bits, key);
    while (x >= (uint64_t)l->is.count);
    return (int64_t)x;
}

/* The position in the order at which this rank's part of batch `index` of an epoch begins; *n: its number of
 * samples. */
static int64_t loader_part(const kl_loader *l, int64_t index, int64_t *n)
{
    int64_t all = l->is.batch * l->is.ranks, first = index * all, left = l->is.count - first;
    if (left >= all) {
        *n = l->is.batch;
        return first + l->is.rank * l->is.batch;
    }
    int64_t begin = left * l->is.rank / l->is.ranks;
    *n = left * (l->is.rank + 1) / l->is.ranks - begin;
    return first + begin;
}

static void loader_fill_slot(const kl_loader *l, struct loader_slot *s, int64_t number)
{
    int64_t epoch = number / l->batches, place = loader_part(l, number % l->batches, &s->count);
    for (int64_t i = 0; i < s->count; i++)
        s->sample[i] = loader_sample(l, epoch, place + i);
    s->number = number;
    s->message[0] = 0;
    s->status = l->is.fill(l->is.ctx, s->count, s->sample, s->data, s->message);
    s->message[LOADER_MESSAGE - 1] = 0;
}

/* ---- threads ---- */

static void *loader_thread(void *arg)
{
    kl_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        struct loader_slot *s = &l->slot[l->take % l->nslots];
        if (s->state != SLOT_FREE || l->seeking) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        int64_t number = l->take++;
        s->state = SLOT_FILLING;
        pthread_mutex_unlock(&l->lock);
        loader_fill_slot(l, s, number);
        pthread_mutex_lock(&l->lock);
        s->state = SLOT_READY;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* The threads block all signals, which are for the program's own threads. */
static bool loader_start(kl_loader *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int want = l->is.threads;
    while (l->nthreads < want && pthread_create(&l->thread[l->nthreads], NULL, loader_thread, l) == 0)
        l->nthreads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return l->nthreads > 0;
}

static void loader_stop(kl_loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->nthreads; i++)
        pthread_join(l->thread[i], NULL);
    l->nthreads = 0;
}

/* ---- making one ---- */

static const char *loader_fault(const kl_loader_options *o)
{
    if (!o || !o->fill)
        return o ? "fill is NULL" : "options are NULL";
    if (o->count < 1 || o->batch < 1 || o->batch > INT32_MAX || o->count > INT64_MAX / 4)
        return "no samples, or a batch of none";
    if (o->ranks < 0 || o->rank < 0 || o->rank >= (o->ranks ? o->ranks : 1))
        return "rank is not below ranks";
    return o->threads > LOADER_THREADS_MAX || o->prefetch < 0 || o->prefetch > LOADER_SLOTS_MAX
               ? "too many threads or batches ahead"
               : NULL;
}

kl_loader *kl_loader_new(const kl_loader_options *options)
{
    const char *fault = loader_fault(options);
    kl_loader *l = fault ? NULL : kl_memory_alloc(sizeof *l);
    if (!l) {
        kl_failf(NULL, fault ? KL_ERR_ARGUMENT : KL_ERR_MEMORY, "loader_new: %s", fault ? fault : "out of memory");
        return NULL;
    }
    *l = (kl_loader){.is = *options, .held = -1};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->is.ranks = options->ranks ? options->ranks : 1;
    l->is.threads = options->threads < 0 ? 0 : options->threads ? options->threads : 1;
    int64_t all = l->is.batch * l->is.ranks, rest = l->is.count % all;
    l->batches = l->is.count / all + (!l->is.drop_last && rest >= l->is.ranks);
    for (l->half_bits = 1; l->is.count > INT64_C(1) << 2 * l->half_bits; l->half_bits++)
        ;
    int ahead = options->prefetch ? options->prefetch : 2 + l->is.threads;
    l->nslots = l->is.threads ? ahead + 1 : 1; /* one more for the batch that the caller uses */
    l->slot = kl_memory_alloc((size_t)l->nslots * sizeof *l->slot);
    l->thread = kl_memory_alloc(((size_t)l->is.threads + 1) * sizeof *l->thread);
    bool ok = l->slot && l->thread;
    for (int i = 0; ok && i < l->nslots; i++) {
        l->slot[i].sample = kl_memory_alloc((size_t)l->is.batch * sizeof *l->slot[i].sample);
        l->slot[i].data = kl_memory_alloc(l->is.bytes + 1);
        ok = l->slot[i].sample && l->slot[i].data;
    }
    if (ok && l->batches < 1)
        kl_failf(NULL, KL_ERR_ARGUMENT, "loader_new: %lld samples are no batch of %lld for each of %d ranks",
                (long long)l->is.count, (long long)l->is.batch, l->is.ranks);
    else if (!ok || (l->is.threads && !loader_start(l)))
        kl_failf(NULL, KL_ERR_MEMORY, "loader_new: %s", ok ? "no thread could be started" : "out of memory");
    else
        return l;
    kl_loader_free(l);
    return NULL;
}

void kl_loader_free(kl_loader *l)
{
    if (!l)
        return;
    loader_stop(l);
    for (int i = 0; l->slot && i < l->nslots; i++) {
        kl_memory_free(l->slot[i].sample);
        kl_memory_free(l->slot[i].data);
    }
    kl_memory_free(l->slot);
    kl_memory_free(l->thread);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    kl_memory_free(l);
}

/* ---- batches ---- */

int64_t kl_loader_batches(const kl_loader *l) { return l ? l->batches : 0; }
int64_t kl_loader_position(const kl_loader *l) { return l ? l->next : 0; }

/* Waits for the slot of the caller's next batch to be filled. */
static struct loader_slot *loader_wait(kl_loader *l)
{
    int at = (int)(l->next % l->nslots);
    struct loader_slot *s = &l->slot[at];
    if (!l->nthreads) {
        loader_fill_slot(l, s, l->next);
        return s;
    }
    pthread_mutex_lock(&l->lock);
    if (l->held >= 0) {
        l->slot[l->held].state = SLOT_FREE;
        pthread_cond_broadcast(&l->changed);
    }
    while (s->state != SLOT_READY || s->number != l->next)
        pthread_cond_wait(&l->changed, &l->lock);
    l->held = at;
    pthread_mutex_unlock(&l->lock);
    return s;
}

kl_status kl_loader_next(kl_loader *l, kl_batch *out)
{
    if (!l || !out)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "loader_next: %s", l ? "out is NULL" : "no loader");
    const struct loader_slot *s = loader_wait(l);
    int64_t number = l->next++;
    *out = (kl_batch){s->data, s->sample, s->count, number / l->batches, number % l->batches};
    if (s->status == KL_OK)
        return KL_OK;
    return kl_failf(NULL, s->status, "loader_next: batch %lld of epoch %lld: %s", (long long)out->index,
                   (long long)out->epoch, *s->message ? s->message : kl_status_name(s->status));
}

kl_status kl_loader_seek(kl_loader *l, int64_t position)
{
    if (!l || position < 0)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "loader_seek: %s", l ? "a negative position" : "no loader");
    pthread_mutex_lock(&l->lock);
    l->seeking = true; /* threads begin no other batch */
    for (int i = 0; i < l->nslots; i++) {
        while (l->slot[i].state == SLOT_FILLING)
            pthread_cond_wait(&l->changed, &l->lock);
        l->slot[i].state = SLOT_FREE;
    }
    l->seeking = false;
    l->take = position;
    l->held = -1;
    pthread_cond_broadcast(&l->changed);
    l->next = position;
    pthread_mutex_unlock(&l->lock);
    return KL_OK;
}

/* ---- windows of tokens ---- */

static int64_t windows_stride(const kl_tokens_windows *w) { return w->stride > 0 ? w->stride : w->length; }

int64_t kl_tokens_windows_count(const kl_tokens_windows *w)
{
    if (!w || !w->tokens || w->length < 1 || w->tokens->count < w->length + 1)
        return 0;
    return (w->tokens->count - w->length - 1) / windows_stride(w) + 1;
}

kl_status kl_tokens_windows_fill(void *windows, int64_t n, const int64_t *samples, void *batch, char *message)
{
    const kl_tokens_windows *w = windows;
    int32_t *to = batch;
    for (int64_t i = 0; i < n; i++, to += w->length + 1)
        if (kl_tokens_read(w->tokens, samples[i] * windows_stride(w), w->length + 1, to) != KL_OK) {
            kl_format(message, LOADER_MESSAGE, "%s", kl_last_error());
            return kl_last_error_code();
        }
    return KL_OK;
}
