/* CUDA and HIP: lists of commands.  A command is a few words, so that equal lists have equal bytes:
 *
 *   KERNEL | parameters << 8, function, blocks | threads and shared memory << 32, the parameters' words (stream.h)
 *   COPY, to, from, bytes         on the device
 *   UPLOAD, to, from, bytes       from pinned memory of the host
 *   REPEAT, number                the graph with this number, as it is
 *
 * The data of a small upload is in pinned memory (struct turn) until the command has run. */
#include "stream.h"
#include "devices.h"
#include <string.h>

enum { KERNEL = 1, COPY, UPLOAD, REPEAT };
enum { COPY_WORDS = 4, REPEAT_WORDS = 2 };
enum { SMALL = 64 << 10, CHUNK = 1 << 20, MAX_CHUNKS = 8, HALF = 4 << 20 };

static uint64_t word_of(const void *p) { return (uint64_t)(uintptr_t)p; }
static void *address_of(uint64_t w) { return (void *)(uintptr_t)w; }

static gpu_function function_of(uint64_t w) { return (gpu_function)(uintptr_t)w; }

/* Every public function calls this first, and `leave` at its end. */
static bool stream_batch_enter(struct driver_device *d, struct err *e)
{
    if (d->lost)
        return err_set(e, KL_ERR_DEVICE, "device %s was lost; values on it are gone, other devices go on", d->name);
    return stream_ok(d, d->l->enter(d), "making its context current", e);
}

/* ---- collecting ---- */

static uint64_t *stream_batch_note(struct driver_device *d, uint32_t words, struct err *e)
{
    if (!mem_reserve(&d->word, &d->word_cap, d->nword + words, sizeof *d->word)) {
        err_set(e, KL_ERR_MEMORY, "device %s: no memory for what it is to do", d->name);
        return NULL;
    }
    uint64_t *at = d->word + d->nword;
    d->nword += words;
    d->ncommand++;
    return at;
}

static bool note_copy(struct driver_device *d, unsigned kind, void *to, const void *from, size_t bytes, struct err *e)
{
    uint64_t *w = stream_batch_note(d, COPY_WORDS, e);
    if (!w)
        return false;
    w[0] = kind;
    w[1] = word_of(to);
    w[2] = word_of(from);
    w[3] = bytes;
    stream_touch(d, to, bytes);
    if (kind == COPY)
        stream_touch(d, from, bytes);
    return true;
}

/* cuTensorMapEncodeTiled needs a current context. */
static bool encode_map(struct driver_device *d, gpu_map *map, const struct gpu_view *view, void *address,
                       struct err *e)
{
    if (!d->l->map)
        return err_set(e, KL_ERR_DEVICE, "device %s: its driver has no tensor maps", d->name);
    if (!stream_batch_enter(d, e))
        return false;
    gpu_result r = d->l->map(map, view, address);
    d->l->leave(d);
    return stream_ok(d, r, "making a tensor map", e);
}

/* The map of a kernel's view for the launch's buffer.  NULL: *e. */
static const uint64_t *view_map(struct driver_device *d, struct view_maps *v, const struct launch *l, struct err *e)
{
    void *address = l->buffer[v->view.argument];
    for (unsigned i = 0; i < KEPT_MAPS; i++)
        if (v->address[i] == address)
            return v->map[i];
    gpu_map map;
    unsigned i = v->next;
    v->next = (i + 1) % KEPT_MAPS;
    v->address[i] = NULL;
    if (!encode_map(d, &map, &v->view, address, e))
        return NULL;
    v->address[i] = address;
    return memcpy(v->map[i], map.word, sizeof map.word);
}

bool stream_launch(struct driver_device *d, const struct launch *l, struct err *e)
{
    if (d->lost)
        return stream_batch_enter(d, e);
    uint32_t maps = l->kernel->nview;
    if (maps + (l->kernel->table ? 1 : l->n) + 3 > MAX_PARAMETERS)
        return err_set(e, KL_ERR_COMPILE, "device %s: a kernel has %u arguments", d->name, l->n);
    uint64_t *w = stream_batch_note(d, 3 + maps * MAP_WORDS + l->n + 3, e);
    if (!w)
        return false;
    for (uint32_t i = 0; i < maps; i++) {
        const uint64_t *map = view_map(d, &l->kernel->view[i], l, e);
        if (!map) {
            d->nword -= 3 + maps * MAP_WORDS + l->n + 3;
            d->ncommand--;
            return false;
        }
        memcpy(w + 3 + i * MAP_WORDS, map, MAP_WORDS * sizeof *map);
    }
    *w++ = KERNEL | (uint64_t)(l->n + 3) << 8 | (uint64_t)maps << 32 | (l->kernel->table ? KERNEL_TABLE : 0);
    *w++ = (uint64_t)(uintptr_t)l->kernel->function;
    *w++ = l->blocks | (l->kernel->threads | (uint64_t)(l->shares ? l->kernel->shared : 0) << THREAD_BITS) << 32;
    w += maps * MAP_WORDS;
    for (uint32_t i = 0; i < l->n; i++) {
        *w++ = word_of(l->buffer[i]);
        if (l->use)
            stream_touch(d, l->buffer[i], l->use[i].bytes);
    }
    if (!l->use)
        stream_touch_all(d);
    if (l->slots)
        stream_touch(d, l->slots, 1);
    *w++ = word_of(l->slots);
    *w++ = (uint64_t)l->begin;
    *w = (uint64_t)l->end;
    return true;
}

uint64_t stream_list(struct driver_device *d)
{
    uint64_t list = d->nword || d->issued != 1 ? 0 : d->list;
    d->issued = 0;
    return list;
}

/* Are all collected commands copies? */
static bool only_copies(const struct driver_device *d)
{
    bool yes = true;
    for (uint32_t i = 0; i < d->nword && yes; i += COPY_WORDS)
        yes = d->word[i] == COPY || d->word[i] == UPLOAD;
    return yes;
}

/* Launches in front of it could set other arguments in the graph, or take its place. */
bool stream_repeat(struct driver_device *d, uint64_t list, const struct memory_range *v, uint32_t n, bool *done,
                   struct err *e)
{
    *done = false;
    if (d->lost)
        return stream_batch_enter(d, e);
    if (!list || !only_copies(d) || !stream_graph_numbered(d, list))
        return true;
    uint64_t *w = stream_batch_note(d, REPEAT_WORDS, e);
    if (!w)
        return false;
    w[0] = REPEAT;
    w[1] = list;
    for (uint32_t i = 0; i < n; i++)
        stream_touch(d, v[i].address, v[i].bytes);
    return *done = true;
}

bool stream_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e)
{
    return d->lost ? stream_batch_enter(d, e) : !bytes || note_copy(d, COPY, to, from, bytes, e);
}

/* ---- to the stream ---- */

static gpu_result issue_kernel(struct driver_device *d, uint64_t *w)
{
    void *parameter[MAX_PARAMETERS];
    kernel_addresses(w, parameter);
    return d->l->launch(function_of(w[1]), (unsigned)w[2], 1, 1, kernel_threads(w), 1, 1, kernel_shared(w), d->stream,
                        parameter, NULL);
}

static bool issue_copy(struct driver_device *d, const uint64_t *w, struct err *e)
{
    gpu_result r = *w == COPY ? d->l->copy(address_of(w[1]), address_of(w[2]), w[3], d->stream)
                              : d->l->upload(address_of(w[1]), address_of(w[2]), w[3], d->stream);
    return stream_ok(d, r, "giving it work", e);
}

/* Issues the kernels from *at on as a graph or singly, and advances *at.  *number: the graph's, or 0. */
static bool issue_kernels(struct driver_device *d, uint64_t **at, uint64_t *number, struct err *e)
{
    uint64_t *w = *at, *end = d->word + d->nword;
    uint32_t kernels = 0;
    for (; *at < end && (**at & 255) == KERNEL; kernels++)
        *at += kernel_words(*at);
    bool ok = stream_replay(d, w, (uint32_t)(*at - w), kernels, number, e);
    for (; w < *at && ok && !*number; w += kernel_words(w))
        ok = stream_ok(d, issue_kernel(d, w), "giving it work", e);
    return ok;
}

/* Issues copies singly, and the kernels between two copies as a graph or singly. */
static bool batch_issue(struct driver_device *d, struct err *e)
{
    bool ok = true, repeatable = true; /* so far only uploads came before a graph */
    uint64_t list = 0;
    for (uint64_t *w = d->word, *end = w + d->nword; w < end && ok;) {
        repeatable &= !list && (*w == UPLOAD || *w == REPEAT || (*w & 255) == KERNEL);
        if (*w == REPEAT) {
            list = w[1];
            ok = stream_replay_number(d, list, e);
            w += REPEAT_WORDS;
        } else if (*w == COPY || *w == UPLOAD) {
            ok = issue_copy(d, w, e);
            w += COPY_WORDS;
        } else {
            ok = issue_kernels(d, &w, &list, e);
            repeatable &= list != 0;
        }
    }
    d->list = ok && repeatable ? list : 0;
    d->issued++;
    return ok;
}

static bool uses_chunks(const struct turn *t) { return t->nchunk && t->chunk[0].used; }

/* Issues the collected commands.  Called between enter and leave. */
static bool stream_batch_begin(struct driver_device *d, struct err *e)
{
    struct turn *t = &d->turn[d->now];
    if (!stream_join(d, e))
        return false;
    if (!d->nword)
        return true;
    d->working = true;
    bool ok = batch_issue(d, e);
    d->nword = d->ncommand = 0;
    ok = stream_depart(d, e) && ok;
    if (ok) {
        t->done = d->flight[d->latest].done;
        t->busy = uses_chunks(t);
        d->now = (d->now + 1) % TURNS;
    }
    return ok;
}

bool stream_submit(struct driver_device *d, struct err *e)
{
    if (!d->lost && !d->nword && !d->uploading)
        return true;
    if (!stream_batch_enter(d, e))
        return false;
    bool ok = stream_batch_begin(d, e);
    d->l->leave(d);
    return ok;
}

static void batch_reset(struct turn *t)
{
    t->busy = false;
    for (uint32_t i = 0; i < t->nchunk; i++)
        t->chunk[i].used = 0;
}

/* Called between enter and leave. */
static bool batch_wait(struct driver_device *d, struct err *e)
{
    bool ok = stream_batch_begin(d, e);
    if (d->working)
        ok = stream_ok(d, d->l->stream_finish(d->stream), "working", e) && ok;
    if (d->uploading)             /* the stream could not be made to wait for them */
        ok = stream_ok(d, d->l->stream_finish(d->copies), "uploading", e) && ok;
    d->working = d->uploading = false;
    stream_landed(d);
    stream_graphs_ended(d);
    d->now = 0;
    for (int i = 0; i < TURNS; i++)
        batch_reset(&d->turn[i]);
    for (int i = 0; i < HALVES; i++)
        d->half[i].busy = false;
    return ok;
}

bool stream_finish(struct driver_device *d, struct err *e)
{
    if (!d->lost && !d->nword && !d->working)
        return true;
    if (!stream_batch_enter(d, e))
        return false;
    bool ok = batch_wait(d, e);
    d->l->leave(d);
    return ok;
}

void stream_drop(struct driver_device *d)
{
    d->nword = d->ncommand = 0;
    d->touched.n = 0;
    d->touched.all = false;
    if (!d->turn[d->now].busy)
        batch_reset(&d->turn[d->now]);
}

/* ---- the host's memory ---- */

static size_t round_chunk(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Pinned memory that the turn has already, for data that the device reads when the list runs.  NULL: it has none. */
static char *chunk_have(struct driver_device *d, size_t bytes)
{
    struct turn *t = &d->turn[d->now];
    for (uint32_t i = 0; i < t->nchunk && !t->busy; i++) {
        struct pinned *c = &t->chunk[i];
        if (round_chunk(bytes) > c->bytes - c->used)
            continue;
        char *p = c->p + c->used;
        c->used += round_chunk(bytes);
        return p;
    }
    return NULL;
}

/* The same where the turn has to be waited for, or needs more memory.  Called between enter and leave. */
static char *chunk_room(struct driver_device *d, size_t bytes, struct err *e)
{
    struct turn *t = &d->turn[d->now];
    if (t->busy && !stream_ok(d, d->l->event_finish(t->done), "working", e))
        return NULL;
    if (t->busy) {
        stream_landed_until(d, t->done);
        batch_reset(t);
    }
    char *p = chunk_have(d, bytes);
    if (p)
        return p;
    if (t->nchunk == MAX_CHUNKS) {
        if (!batch_wait(d, e))
            return NULL;
        return chunk_room(d, bytes, e);
    }
    if (!mem_reserve(&t->chunk, &t->cap, t->nchunk + 1, sizeof *t->chunk)) {
        err_set(e, KL_ERR_MEMORY, "device %s: no memory for what it is to be given", d->name);
        return NULL;
    }
    struct pinned *c = &t->chunk[t->nchunk];
    *c = (struct pinned){.bytes = CHUNK};
    if (!stream_ok(d, d->l->host_alloc((void **)&c->p, CHUNK, GPU_PORTABLE), "allocating pinned memory", e))
        return NULL;
    t->nchunk++;
    return chunk_have(d, bytes);
}

static bool upload_small(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e)
{
    char *p = d->lost ? NULL : chunk_have(d, bytes);
    if (!p) {
        if (!stream_batch_enter(d, e))
            return false;
        p = chunk_room(d, bytes, e);
        d->l->leave(d);
    }
    if (!p)
        return false;
    memcpy(p, data, bytes);
    return note_copy(d, UPLOAD, to, p, bytes, e);
}

/* One of two pinned buffers, after the device has finished with it.  Called between enter and leave. */
static bool take_half(struct driver_device *d, unsigned *which, struct err *e)
{
    unsigned i = d->next_half;
    d->next_half = (i + 1) % HALVES;
    *which = i;
    if (!d->half[i].p && !stream_ok(d, d->l->host_alloc((void **)&d->half[i].p, HALF, GPU_PORTABLE),
                                    "allocating pinned memory", e))
        return false;
    if (d->half[i].busy && !stream_ok(d, d->l->event_finish(d->half[i].done), "working", e))
        return false;
    d->half[i].busy = false;
    return true;
}

static bool mark_half(struct driver_device *d, unsigned i, gpu_stream s, gpu_result r, const char *call,
                      struct err *e)
{
    d->working = true;
    r = r ? r : d->l->event_record(d->half[i].done, s);
    d->half[i].busy = !r;
    return stream_ok(d, r, call, e);
}

/* Uploads on `copies`, after the commands that may access the memory; commands that are issued later wait for it.  The
 * host copies one part to pinned memory while the device reads the previous one. */
static bool upload_large(struct driver_device *d, char *to, const char *data, size_t bytes, struct err *e)
{
    unsigned i;
    bool ok = stream_batch_begin(d, e) && stream_clear(d, to, bytes, e);
    for (size_t at = 0, n; ok && at < bytes; at += n) {
        n = bytes - at < HALF ? bytes - at : HALF;
        if (!take_half(d, &i, e))
            return false;
        memcpy(d->half[i].p, data + at, n);
        d->uploading = true;
        ok = mark_half(d, i, d->copies, d->l->upload(to + at, d->half[i].p, n, d->copies), "uploading", e);
    }
    return ok;
}

bool stream_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e)
{
    if (!bytes)
        return true;
    if (bytes <= SMALL)
        return upload_small(d, to, data, bytes, e);
    if (!stream_batch_enter(d, e))
        return false;
    bool ok = upload_large(d, to, data, bytes, e);
    d->l->leave(d);
    return ok;
}

/* Copies a part out of its pinned buffer when it has arrived. */
static bool take_part(struct driver_device *d, unsigned i, char *data, size_t n, struct err *e)
{
    if (!stream_ok(d, d->l->event_finish(d->half[i].done), "working", e))
        return false;
    d->half[i].busy = false;
    memcpy(data, d->half[i].p, n);
    return true;
}

static bool download_parts(struct driver_device *d, char *data, char *from, size_t bytes, struct err *e)
{
    unsigned i = 0, before = 0;
    size_t waiting = 0; /* bytes of the part that is in flight */
    bool ok = stream_batch_begin(d, e);
    for (size_t at = 0, n; ok && at < bytes; at += n) {
        n = bytes - at < HALF ? bytes - at : HALF;
        ok = take_half(d, &i, e) && mark_half(d, i, d->stream, d->l->download(d->half[i].p, from + at, n, d->stream),
                                              "downloading", e) &&
             (!waiting || take_part(d, before, data + at - waiting, waiting, e));
        before = i;
        waiting = n;
    }
    return ok && take_part(d, before, data + bytes - waiting, waiting, e) && batch_wait(d, e);
}

bool stream_download(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e)
{
    if (!bytes)
        return true;
    if (!stream_batch_enter(d, e))
        return false;
    bool ok = download_parts(d, data, (char *)(uintptr_t)from, bytes, e);
    d->l->leave(d);
    return ok;
}

/* ---- between devices ---- */

/* Records the event `here` after all commands.  Called between enter and leave. */
static bool mark_here(struct driver_device *d, struct err *e)
{
    d->working = true;
    return stream_batch_begin(d, e) && stream_ok(d, d->l->event_record(d->here, d->stream), "working", e);
}

/* The copy runs after all commands that both devices have so far, and before their later commands. */
bool stream_copy_peer(struct driver_device *to_device, void *to, struct driver_device *from_device, const void *from,
                      size_t bytes,
                      struct err *e)
{
    if (!bytes)
        return true;
    if (to_device->lost || !stream_batch_enter(from_device, e))
        return to_device->lost ? stream_batch_enter(to_device, e) : false;
    bool ok = mark_here(from_device, e);
    from_device->l->leave(from_device);
    if (!ok || !stream_batch_enter(to_device, e))
        return false;
    if (!(to_device->reached >> from_device->index & 1)) {
        /* without direct copies the driver copies through the host */
        to_device->reached |= 1u << from_device->index;
        to_device->l->reach_peer(to_device, from_device);
    }
    ok = stream_batch_begin(to_device, e) &&
         stream_ok(to_device, to_device->l->stream_wait(to_device->stream, from_device->here, 0),
                   "waiting for another device", e) &&
         stream_ok(to_device, to_device->l->copy_from(to_device, to, from_device, from, bytes),
                   "copying from another device", e) &&
         mark_here(to_device, e);
    stream_touch_all(to_device);
    ok = stream_depart(to_device, e) && ok;
    to_device->l->leave(to_device);
    if (!ok || !stream_batch_enter(from_device, e))
        return false;
    ok = stream_ok(from_device, from_device->l->stream_wait(from_device->stream, to_device->here, 0),
                   "waiting for another device", e);
    stream_touch_all(from_device);
    ok = stream_depart(from_device, e) && ok;
    from_device->l->leave(from_device);
    return ok;
}

/* ---- commands of other libraries ---- */

bool stream_enqueue(struct driver_device *d, void (*work)(void *ctx, void *stream), void *ctx, struct err *e)
{
    if (!stream_batch_enter(d, e))
        return false;
    bool ok = stream_batch_begin(d, e);
    if (ok) {
        work(ctx, d->stream);
        ok = mark_here(d, e);
        stream_touch_all(d); /* it is not known which memory the other library's commands access */
        ok = stream_depart(d, e) && ok;
    }
    d->l->leave(d);
    return ok;
}

bool stream_ended(struct driver_device *d, bool *ended, struct err *e)
{
    *ended = false;
    if (!stream_batch_enter(d, e))
        return false;
    gpu_result r = d->l->event_query(d->here);
    d->l->leave(d);
    *ended = !r;
    return r == GPU_NOT_READY || stream_ok(d, r, "working", e);
}

/* ---- times ---- */

static bool mark_time(struct driver_device *d, unsigned which, struct err *e)
{
    d->working = true;
    return stream_batch_begin(d, e) && stream_ok(d, d->l->event_record(d->timer[which], d->stream), "timing", e);
}

bool stream_time_begin(struct driver_device *d, struct err *e)
{
    if (!stream_batch_enter(d, e))
        return false;
    bool ok = mark_time(d, 0, e);
    d->l->leave(d);
    return ok;
}

bool stream_time_end(struct driver_device *d, double *seconds, struct err *e)
{
    float ms = 0;
    if (!stream_batch_enter(d, e))
        return false;
    bool ok = mark_time(d, 1, e) && batch_wait(d, e) &&
              stream_ok(d, d->l->event_elapsed(&ms, d->timer[0], d->timer[1]), "timing", e);
    d->l->leave(d);
    *seconds = 1e-3 * (double)ms;
    return ok;
}
