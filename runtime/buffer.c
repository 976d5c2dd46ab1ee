/* Buffers: reference-counted memory.
 *
 * Freed memory is kept in a list for its size class and reused without clearing, so that a program in its steady state
 * makes no system calls and has no page faults.  Classes are a quarter of a power of two apart: at most a fifth of a
 * block is unused, and on devices other than the host nothing if the size is a power of two.  Each device has its own
 * lists, statistics and optional limit, which includes blocks in use and free ones. */
#include "runtime/device/driver.h"
#include "pool.h"
#include "runtime.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(KILN_ASAN)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { ALIGN = 64, SLACK = 64, SMALLEST = 256, HUGE_FROM = 4 << 20, HUGE_PAGE = 2 << 20, CLASSES = 4 * 54,
       WRAPPED = CLASSES };

struct memory_block {
    struct buffer buffer; /* first, so that a buffer's address is its block's */
    uint32_t cls;         /* size class; WRAPPED: the memory is not Kiln's */
    struct memory_block *next;   /* in its class's list */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the lists and the statistics */
static struct memory_block *idle[DEVICE_END][CLASSES];
static struct buffer_stats stats[DEVICE_END];
static atomic_bool limited;

static void buffer_before_fork(void) { pthread_mutex_lock(&lock); }
static void buffer_after_fork(bool child) { (void)child, pthread_mutex_unlock(&lock); }
const struct fork_part buffer_fork = {buffer_before_fork, buffer_after_fork};

static size_t class_bytes(uint32_t cls) { return (size_t)(SMALLEST / 4) * (4 + cls % 4) << cls / 4; }

static uint32_t class_of(size_t bytes)
{
    enum { SMALLEST_BIT = 8 };
    _Static_assert(SMALLEST == 1 << SMALLEST_BIT, "the smallest class");
    uint32_t cls = bytes < SMALLEST ? 0 : 4 * (63 - (uint32_t)__builtin_clzll(bytes) - SMALLEST_BIT);
    while (class_bytes(cls) < bytes) cls++;
    return cls;
}

/* The alignment of a block's data: to a huge page if the block is so large that the skipped bytes are negligible. */
static size_t buffer_alignment(size_t bytes) { return bytes >= HUGE_FROM && !mem_used()->alloc ? HUGE_PAGE : ALIGN; }

/* Requests huge pages for a large block: this saves 10 to 20 % of the time of memory-bound kernels. */
static void use_huge_pages(char *p, size_t bytes)
{
#if defined(MADV_HUGEPAGE)
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (page - (uintptr_t)p % page) % page;
    if (bytes >= HUGE_FROM) madvise(p + skip, (bytes - skip) / page * page, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

static struct memory_block *make_block_on(struct accelerator *a, uint32_t cls, struct err *e)
{
    struct memory_block *b = mem_alloc(sizeof *b);
    if (!b) return NULL;
    b->cls = cls;
    bool locked = accelerator_lock_cancellable(a, e);
    bool ok = locked && accelerator_driver(a)->alloc(accelerator_device(a), class_bytes(cls), &b->buffer.data, e);
    if (locked) accelerator_unlock(a);
    if (ok) return b;
    mem_free(b);
    return NULL;
}

static struct memory_block *make_block(int device, uint32_t cls, struct err *e)
{
    struct accelerator *a = accelerator_get(device);
    if (a) return make_block_on(a, cls, e);
    size_t align = buffer_alignment(class_bytes(cls));
    char *p = mem_alloc(sizeof(struct memory_block) + align + class_bytes(cls));
    if (!p) return NULL;
    struct memory_block *b = (struct memory_block *)p;
    b->cls = cls;
    char *data = p + (sizeof *b + (align - ((uintptr_t)p + sizeof *b) % align) % align);
    use_huge_pages(data, class_bytes(cls));
    b->buffer.data = data;
    return b;
}

/* Vectors of a processor may be loaded a little beyond the end; a device's memory is as it was asked for, so that a
 * power of two fits its class. */
static size_t buffer_asked(int device, size_t bytes) { return bytes + (device_is_host(device) ? SLACK : 0); }

size_t buffer_charge(int device, size_t bytes)
{
    return bytes < SIZE_MAX / 8 ? class_bytes(class_of(buffer_asked(device, bytes))) : SIZE_MAX / 2;
}

/* Removes all free blocks of a device from its lists; needs the lock. */
static void take_all_idle(int device, struct memory_block **all)
{
    for (unsigned i = 0; i < CLASSES; i++)
        while (idle[device][i]) {
            struct memory_block *b = idle[device][i];
            idle[device][i] = b->next;
            b->next = *all;
            *all = b;
        }
    stats[device].pooled = 0;
}

static void free_blocks(struct memory_block *all)
{
    while (all) {
        struct memory_block *next = all->next;
        struct accelerator *a = accelerator_get((int)all->buffer.device);
        if (a) {
            accelerator_lock(a);
            accelerator_driver(a)->release(accelerator_device(a), all->buffer.data);
            accelerator_unlock(a);
        } else {
            ASAN_UNPOISON_MEMORY_REGION(all->buffer.data, class_bytes(all->cls));
        }
        mem_free(all);
        all = next;
    }
}

/* Are `more` bytes within the device's limit? *idle_blocks: free blocks that must be released first.  Needs the
 * lock. */
static bool within_limit(int device, size_t more, struct memory_block **idle_blocks)
{
    struct buffer_stats *s = &stats[device];
    if (s->limit && s->live + s->pooled + more > s->limit) take_all_idle(device, idle_blocks);
    return !s->limit || s->live + more <= s->limit;
}

static bool over_limit(int device, size_t bytes, const char *what, struct err *e)
{
    struct buffer_stats s = buffer_stats(device);
    return err_set(e, KL_ERR_MEMORY, "device %s: %s needs %zu bytes more than the %zu in use; the limit is %zu",
                   device_name(device),
                   what, bytes, s.live, s.limit);
}

bool buffer_room(int device, size_t charge, const char *what, struct err *e)
{
    struct buffer_stats s = buffer_stats(device);
    return !s.limit || s.live + charge <= s.limit || over_limit(device, charge, what, e);
}

/* Counts a block of the class as in use; takes the lock. */
static void count_live(int device, uint32_t cls)
{
    struct buffer_stats *s = &stats[device];
    s->live += class_bytes(cls);
    if (s->live > s->peak) s->peak = s->live;
}

/* wanted: the block at this address, if it is among the first free ones; NULL: any. */
static struct memory_block *take_idle(int device, uint32_t cls, const void *wanted)
{
    enum { MAX_LOOKED_AT = 64 };
    pthread_mutex_lock(&lock);
    struct memory_block **at = &idle[device][cls], **p = at;
    for (unsigned i = 0; wanted && *p && i < MAX_LOOKED_AT; i++, p = &(*p)->next)
        if ((*p)->buffer.data == wanted) at = p;
    struct memory_block *b = *at;
    if (b) {
        *at = b->next;
        stats[device].pooled -= class_bytes(cls);
        count_live(device, cls);
    }
    pthread_mutex_unlock(&lock);
    return b;
}

/* A free block that no work of the device touches, so that an upload need not wait; of several that are all in use the
 * one that was freed first.  NULL: a new one is better. */
static struct memory_block *take_unused(struct accelerator *a, int device, uint32_t cls)
{
    enum { ENOUGH = 2 };          /* free blocks in use: one is read while another is written */
    const struct driver *d = accelerator_driver(a);
    struct memory_block **at = NULL, *b = NULL;
    unsigned n = 0;
    struct err cancelled = {0};
    if (!accelerator_lock_cancellable(a, &cancelled)) return NULL;
    pthread_mutex_lock(&lock);
    for (struct memory_block **p = &idle[device][cls]; *p; p = &(*p)->next, n++) {
        bool unused = !d->in_use(accelerator_device(a), (*p)->buffer.data, class_bytes(cls));
        at = unused || n + 1 >= ENOUGH ? p : at;
        if (unused) break;
    }
    if (at) {
        b = *at;
        *at = b->next;
        stats[device].pooled -= class_bytes(cls);
        count_live(device, cls);
    }
    pthread_mutex_unlock(&lock);
    accelerator_unlock(a);
    return b;
}

/* A block is counted before it is allocated, so that concurrent threads stay within the limit together. */
static struct memory_block *take_new(int device, uint32_t cls, struct err *e)
{
    struct memory_block *old = NULL, *b = NULL;
    pthread_mutex_lock(&lock);
    bool ok = within_limit(device, class_bytes(cls), &old);
    if (ok) count_live(device, cls);
    pthread_mutex_unlock(&lock);
    free_blocks(old);
    if (!ok) {
        over_limit(device, class_bytes(cls), "a buffer", e);
        return NULL;
    }
    struct err first = {0}; /* a full device may have memory after buffer_trim */
    if (!(b = make_block(device, cls, &first))) {
        if (first.code == KL_ERR_CANCELLED) {
            err_set(e, first.code, "%s", first.msg);
        } else {
            buffer_trim();
            b = make_block(device, cls, e);
        }
    }
    if (b) return b;
    pthread_mutex_lock(&lock);
    stats[device].live -= class_bytes(cls);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* unused: no work of the device should touch its memory. */
static struct buffer *buffer_make(int device, size_t bytes, bool unused, const void *wanted, struct err *e)
{
    fork_watch();
    struct memory_block *b = NULL;
    struct accelerator *a = unused ? accelerator_get(device) : NULL;
    if (bytes < SIZE_MAX / 8) {
        uint32_t cls = class_of(buffer_asked(device, bytes));
        b = a && accelerator_driver(a)->in_use ? take_unused(a, device, cls) : take_idle(device, cls, wanted);
        if (!b) b = take_new(device, cls, e);
    }
    if (!b) {
        err_set(e, KL_ERR_MEMORY, "device %s: no memory for a buffer of %zu bytes", device_name(device), bytes);
        return NULL;
    }
    if (device_is_host(device)) ASAN_UNPOISON_MEMORY_REGION(b->buffer.data, class_bytes(b->cls));
    atomic_init(&b->buffer.refs, 1);
    b->buffer.device = (uint32_t)device;
    b->buffer.bytes = bytes;
    return &b->buffer;
}

struct buffer *buffer_new(int device, size_t bytes, struct err *e)
{
    return buffer_make(device, bytes, false, NULL, e);
}

struct buffer *buffer_new_at(int device, size_t bytes, const void *wanted, struct err *e)
{
    return buffer_make(device, bytes, false, wanted, e);
}

struct buffer *buffer_copy_of(int device, const void *data, size_t bytes, struct err *e)
{
    enum { LARGE = 64 << 10 };    /* what is smaller is uploaded in order with the device's work anyway */
    struct buffer *b = buffer_make(device, bytes, bytes > LARGE, NULL, e);
    if (!b || buffer_write(b, data, bytes, e)) return b;
    buffer_unref(b);
    return NULL;
}

struct buffer *buffer_wrap(int device, void *data, size_t bytes, void (*release)(void *), void *ctx, struct err *e)
{
    if (!device_is_host(device)) {
        struct buffer *copy = buffer_copy_of(device, data, bytes, e);
        if (copy) release(ctx);
        return copy;
    }
    return buffer_adopt(device, data, bytes, release, ctx, e);
}

/* Kernels read rows in vectors and rely on the alignment of a buffer's start. */
static struct buffer *aligned_copy(struct accelerator *a, int device, void *address, size_t bytes, struct err *e)
{
    struct buffer *copy = buffer_new(device, bytes, e);
    bool locked = copy && accelerator_lock_cancellable(a, e);
    bool ok = locked && accelerator_driver(a)->copy(accelerator_device(a), copy->data, address, bytes, e) &&
              accelerator_finish(a, e);
    if (locked) accelerator_unlock(a);
    if (ok) return copy;
    buffer_unref(copy);
    return NULL;
}

struct buffer *buffer_adopt(int device, void *data, size_t bytes, void (*release)(void *), void *ctx, struct err *e)
{
    struct accelerator *a = accelerator_get(device);
    if (a && (uintptr_t)data % ALIGN) {
        struct buffer *copy = aligned_copy(a, device, data, bytes, e);
        if (copy) release(ctx);
        return copy;
    }
    struct memory_block *b = mem_alloc(sizeof *b);
    if (!b) {
        err_set(e, KL_ERR_MEMORY, "no memory to wrap a buffer of %zu bytes", bytes);
        return NULL;
    }
    b->cls = WRAPPED;
    b->buffer = (struct buffer){.device = (uint32_t)device, .bytes = bytes, .data = data};
    b->buffer.release = release;
    b->buffer.release_ctx = ctx;
    atomic_init(&b->buffer.refs, 1);
    return &b->buffer;
}

struct buffer *buffer_ref(struct buffer *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void buffer_unref(struct buffer *buffer)
{
    if (!buffer || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1) return;
    struct memory_block *b = (struct memory_block *)buffer;
    if (b->cls == WRAPPED) {
        struct accelerator *a = accelerator_get((int)buffer->device);
        struct err ignored = {0};
        if (a) {
            accelerator_lock(a);  /* also if this thread's call is cancelled: kernels may be reading the memory */
            accelerator_finish(a, &ignored); /* a lost device runs none */
            accelerator_unlock(a);
        }
        if (buffer->release) buffer->release(buffer->release_ctx);
        mem_free(b);
        return;
    }
    size_t size = class_bytes(b->cls);
    if (device_is_host((int)buffer->device)) ASAN_POISON_MEMORY_REGION(buffer->data, size);
    pthread_mutex_lock(&lock);
    b->next = idle[buffer->device][b->cls];
    idle[buffer->device][b->cls] = b;
    stats[buffer->device].live -= size;
    stats[buffer->device].pooled += size;
    pthread_mutex_unlock(&lock);
}

bool buffer_exclusive(const struct buffer *b)
{
    return atomic_load_explicit(&b->refs, memory_order_acquire) == 1;
}

void buffer_trim(void)
{
    struct memory_block *all = NULL;
    pthread_mutex_lock(&lock);
    for (int d = 0; d < DEVICE_END; d++) take_all_idle(d, &all);
    pthread_mutex_unlock(&lock);
    free_blocks(all);
}

struct buffer_stats buffer_stats(int device)
{
    pthread_mutex_lock(&lock);
    struct buffer_stats s = stats[device];
    pthread_mutex_unlock(&lock);
    return s;
}

void buffer_limit(int device, size_t bytes)
{
    struct memory_block *old = NULL;
    fork_watch();
    pthread_mutex_lock(&lock);
    stats[device].limit = bytes;
    if (bytes) atomic_store(&limited, true);
    within_limit(device, 0, &old);
    pthread_mutex_unlock(&lock);
    free_blocks(old);
}

bool buffer_limited(void) { return atomic_load_explicit(&limited, memory_order_relaxed); }

struct host_copy { char *to; const char *from; size_t bytes; };
enum { COPY_PART = 1 << 20, COPY_PARTS = 4 }; /* bytes; parts that are worth a thread */

static void copy_parts(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)worker;
    const struct host_copy *c = ctx;
    size_t first = (size_t)begin * COPY_PART, last = (size_t)end * COPY_PART;
    last = last < c->bytes ? last : c->bytes;
    memcpy(c->to + first, c->from + first, last - first);
}

bool buffer_write(struct buffer *b, const void *data, size_t bytes, struct err *e)
{
    struct accelerator *a = accelerator_get((int)b->device);
    if (!bytes) return true;
    if (!a) { /* by all threads: new pages are placed near the thread that touches them first, as those of results */
        struct host_copy c = {b->data, data, bytes};
        pool_run(copy_parts, &c, (int64_t)((bytes + COPY_PART - 1) / COPY_PART), COPY_PARTS);
        return true;
    }
    if (!accelerator_lock_cancellable(a, e)) return false;
    bool ok = accelerator_driver(a)->upload(accelerator_device(a), b->data, data, bytes, e);
    accelerator_unlock(a);
    return ok;
}

bool buffer_read(const struct buffer *b, void *data, size_t bytes, struct err *e)
{
    struct accelerator *a = accelerator_get((int)b->device);
    if (!bytes) return true;
    if (!a) {
        memcpy(data, b->data, bytes);
        return true;
    }
    if (!accelerator_lock_cancellable(a, e)) return false;
    bool ok = accelerator_driver(a)->download(accelerator_device(a), data, b->data, bytes, e);
    accelerator_unlock(a);
    return ok;
}
