/* Memory of devices, shared by reference count. */
#ifndef KILN_BUFFER_H
#define KILN_BUFFER_H
#include "codegen/codegen.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include <stdatomic.h>

/* ---- buffer.c: memory of a device, shared by reference count ---- */
struct buffer {
    atomic_uint refs;
    uint32_t device;
    size_t bytes;
    void *data;              /* 64-byte aligned, 64 readable bytes past the end; wrapped memory: as it came; of a device
                                that is not the host: its address there */
    void (*release)(void *); /* borrowed memory (kl_wrap): called when the last reference goes; else NULL */
    void *release_ctx;
};
struct buffer *buffer_new(int device, size_t bytes, struct err *e);    /* not zeroed; kept in a pool between uses */
/* On a device that is not the host: copied, and released at once. */
struct buffer *buffer_wrap(int device, void *data, size_t bytes, void (*release)(void *), void *ctx, struct err *e);
/* Memory of the device itself, not copied unless it lies in a way that its kernels cannot take. */
struct buffer *buffer_adopt(int device, void *address, size_t bytes, void (*release)(void *), void *ctx,
                            struct err *e);
struct buffer *buffer_ref(struct buffer *b);
void buffer_unref(struct buffer *b);     /* NULL is fine */
/* Bytes between the host and a buffer of any device, in order with what the device does. */
bool buffer_write(struct buffer *b, const void *data, size_t bytes, struct err *e);
bool buffer_read(const struct buffer *b, void *data, size_t bytes, struct err *e);
bool buffer_exclusive(const struct buffer *b);
void buffer_trim(void);                  /* gives pooled memory back to the system */
struct buffer_stats { size_t live, peak, pooled, limit; }; /* bytes; limit 0: none */
struct buffer_stats buffer_stats(int device);
void buffer_limit(int device, size_t bytes);
bool buffer_limited(void);               /* has a device ever had a limit? */
size_t buffer_charge(int device, size_t bytes); /* what a buffer of so many bytes counts for */
/* Is there room for buffers of that charge in all?  false: *e, `what` needs it. */
bool buffer_room(int device, size_t charge, const char *what, struct err *e);

#endif
