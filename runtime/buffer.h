/* Buffers: reference-counted memory of devices. */
#ifndef KILN_BUFFER_H
#define KILN_BUFFER_H
#include "codegen/codegen.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include <stdatomic.h>

/* ---- buffer.c: reference-counted memory of a device ---- */
struct buffer {
    atomic_uint refs;
    uint32_t device;
    size_t bytes;
    /* 64-byte aligned, with 64 readable bytes past the end; wrapped memory: unchanged; on a device with its own memory:
     * the device address */
    void *data;
    void (*release)(void *); /* borrowed memory (kl_wrap): called when the last reference is dropped; else NULL */
    void *release_ctx;
};
struct buffer *buffer_new(int device, size_t bytes, struct err *e);    /* not zeroed; freed buffers are pooled */
/* The same, at the address `wanted` if the pool has a block there that is free: for a run that had it before. */
struct buffer *buffer_new_at(int device, size_t bytes, const void *wanted, struct err *e);
/* With a copy of the host's data.  NULL: *e. */
struct buffer *buffer_copy_of(int device, const void *data, size_t bytes, struct err *e);
/* On a device with its own memory the data is copied and released immediately. */
struct buffer *buffer_wrap(int device, void *data, size_t bytes, void (*release)(void *), void *ctx, struct err *e);
/* Wraps memory of the device itself; copied only if its alignment does not fit the kernels. */
struct buffer *buffer_adopt(int device, void *address, size_t bytes, void (*release)(void *), void *ctx,
                            struct err *e);
struct buffer *buffer_ref(struct buffer *b);
void buffer_unref(struct buffer *b);     /* NULL is fine */
/* Copies bytes between the host and a buffer of any device, in order with the device's work. */
bool buffer_write(struct buffer *b, const void *data, size_t bytes, struct err *e);
bool buffer_read(const struct buffer *b, void *data, size_t bytes, struct err *e);
bool buffer_exclusive(const struct buffer *b);
void buffer_trim(void);                  /* returns pooled memory to the system */
struct buffer_stats { size_t live, peak, pooled, limit; }; /* bytes; limit 0: none */
struct buffer_stats buffer_stats(int device);
void buffer_limit(int device, size_t bytes);
bool buffer_limited(void);               /* was a limit ever set for a device? */
size_t buffer_charge(int device, size_t bytes); /* the bytes that a buffer of this size counts as */
/* Is there room within the limit for buffers of that charge in total? false: *e says that `what` needs it. */
bool buffer_room(int device, size_t charge, const char *what, struct err *e);

#endif
