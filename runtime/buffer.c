/* Buffers: reference-counted memory.
 *
 * Memory that is given back waits in a list of its size class and is handed out again as it is, so that a
 * program in its steady state neither calls the system nor meets a page fault.  A class is a quarter of a power
 * of two: at most a fifth of a block is unused.  Each device with memory of its own has such lists, too. */
#include "runtime/driver.h"
#include "runtime/runtime.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { ALIGN = 64, SLACK = 64, SMALLEST = 256, HUGE_FROM = 4 << 20, CLASSES = 4 * 54, WRAPPED = CLASSES };

struct block {
    struct buffer buffer; /* first: a buffer is its block */
    uint32_t cls;         /* size class; WRAPPED: the memory is somebody else's */
    struct block *next;   /* in its class's list */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the lists and the statistics */
static struct block *idle[1 + DEVICE_END][CLASSES]; /* of the host, then by device */
static struct buffer_stats stats;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void watch_fork(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static size_t class_bytes(uint32_t cls) { return (size_t)(SMALLEST / 4) * (4 + cls % 4) << cls / 4; }

static uint32_t class_of(size_t bytes)
{
    uint32_t power = 0;
    while ((size_t)SMALLEST << (power + 1) <= bytes) power++;
    uint32_t cls = 4 * power;
    while (class_bytes(cls) < bytes) cls++;
    return cls;
}

/* Asks for huge pages under a large block: a tenth to a fifth less time in memory-bound kernels. */
static void use_huge_pages(char *p, size_t bytes)
{
#if defined(MADV_HUGEPAGE)
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (page - (uintptr_t)p % page) % page;
    if (bytes >= HUGE_FROM) madvise(p + skip, (bytes - skip) / page * page, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

static unsigned pool_of(int device) { return device_is_host(device) ? 0 : 1 + (unsigned)device; }

static struct block *make_block_on(struct accelerator *a, uint32_t cls, struct err *e)
{
    struct block *b = mem_alloc(sizeof *b);
    if (!b) return NULL;
    b->cls = cls;
    accelerator_lock(a);
    bool ok = accelerator_driver(a)->alloc(accelerator_device(a), class_bytes(cls), &b->buffer.data, e);
    accelerator_unlock(a);
    if (ok) return b;
    mem_free(b);
    return NULL;
}

static struct block *make_block(int device, uint32_t cls, struct err *e)
{
    struct accelerator *a = accelerator_get(device);
    if (a) return make_block_on(a, cls, e);
    char *p = mem_alloc(sizeof(struct block) + ALIGN + class_bytes(cls));
    if (!p) return NULL;
    struct block *b = (struct block *)p;
    b->cls = cls;
    use_huge_pages(p, class_bytes(cls));
    b->buffer.data = p + (sizeof *b + (ALIGN - ((uintptr_t)p + sizeof *b) % ALIGN) % ALIGN);
    return b;
}

/* Notes a block of the class as in use; holds the lock. */
static void count_live(uint32_t cls)
{
    stats.live += class_bytes(cls);
    if (stats.live > stats.peak) stats.peak = stats.live;
}

static struct block *take_idle(int device, uint32_t cls)
{
    pthread_mutex_lock(&lock);
    struct block **first = &idle[pool_of(device)][cls], *b = *first;
    if (b) {
        *first = b->next;
        stats.pooled -= class_bytes(cls);
        count_live(cls);
    }
    pthread_mutex_unlock(&lock);
    return b;
}

static struct block *take_new(int device, uint32_t cls, struct err *e)
{
    struct err first = {0}; /* a device that is full may not be so behind buffer_trim */
    struct block *b = make_block(device, cls, &first);
    if (!b) {
        buffer_trim();
        b = make_block(device, cls, e);
    }
    if (!b) return NULL;
    pthread_mutex_lock(&lock);
    count_live(cls);
    pthread_mutex_unlock(&lock);
    return b;
}

struct buffer *buffer_new(int device, size_t bytes, struct err *e)
{
    pthread_once(&fork_once, watch_fork);
    struct block *b = NULL;
    if (bytes < SIZE_MAX / 8) {
        uint32_t cls = class_of(bytes + SLACK);
        b = take_idle(device, cls);
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

struct buffer *buffer_wrap(int device, void *data, size_t bytes, void (*release)(void *), void *ctx, struct err *e)
{
    if (!device_is_host(device)) {
        struct buffer *copy = buffer_new(device, bytes, e);
        if (copy && !buffer_write(copy, data, bytes, e)) {
            buffer_unref(copy);
            return NULL;
        }
        if (copy) release(ctx);
        return copy;
    }
    struct block *b = mem_alloc(sizeof *b);
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
    struct block *b = (struct block *)buffer;
    if (b->cls == WRAPPED) {
        if (buffer->release) buffer->release(buffer->release_ctx);
        mem_free(b);
        return;
    }
    size_t size = class_bytes(b->cls);
    if (device_is_host((int)buffer->device)) ASAN_POISON_MEMORY_REGION(buffer->data, size);
    pthread_mutex_lock(&lock);
    struct block **first = &idle[pool_of((int)buffer->device)][b->cls];
    b->next = *first;
    *first = b;
    stats.live -= size;
    stats.pooled += size;
    pthread_mutex_unlock(&lock);
}

bool buffer_exclusive(const struct buffer *b)
{
    return atomic_load_explicit(&b->refs, memory_order_acquire) == 1;
}

void buffer_trim(void)
{
    struct block *all = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < (1 + DEVICE_END) * CLASSES; i++)
        while (idle[i / CLASSES][i % CLASSES]) {
            struct block *b = idle[i / CLASSES][i % CLASSES];
            idle[i / CLASSES][i % CLASSES] = b->next;
            b->next = all;
            all = b;
        }
    stats.pooled = 0;
    pthread_mutex_unlock(&lock);
    while (all) {
        struct block *next = all->next;
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

struct buffer_stats buffer_stats(void)
{
    pthread_mutex_lock(&lock);
    struct buffer_stats s = stats;
    pthread_mutex_unlock(&lock);
    return s;
}

bool buffer_write(struct buffer *b, const void *data, size_t bytes, struct err *e)
{
    struct accelerator *a = accelerator_get((int)b->device);
    if (!bytes) return true;
    if (!a) {
        memcpy(b->data, data, bytes);
        return true;
    }
    accelerator_lock(a);
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
    accelerator_lock(a);
    bool ok = accelerator_driver(a)->download(accelerator_device(a), data, b->data, bytes, e);
    accelerator_unlock(a);
    return ok;
}
