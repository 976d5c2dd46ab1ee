/* Types shared by every public header: dtypes, status codes, call sites. */
#ifndef KILN_TYPES_H
#define KILN_TYPES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KL_API
#else
#define KL_API __attribute__((visibility("default")))
#endif
/* Marks a function that has a variant with a call site, kl_NAME_at, and a macro that passes it the caller's line.  Both
 * are generated from its prototype (call_sites.awk). */
#define KL_API_AT KL_API

#define KL_MAX_RANK 8 /* the highest rank of a tensor */

/* Element types. KL_BOOL is stored as one byte, 0 or 1. KL_F16 (IEEE half) and KL_BF16 (the upper half of an f32)
 * are for storage: an op on them computes in f32 and rounds its result once. */
typedef enum kl_dtype {
    KL_BOOL, KL_U8, KL_U16, KL_U32, KL_U64, KL_I8, KL_I16, KL_I32, KL_I64, KL_F16, KL_BF16, KL_F32, KL_F64,
    KL_DTYPE_COUNT
} kl_dtype;

/* In a call that makes a tensor on a device: that device's float or integer type, as kl_device_configure says; in
 * kl_quantize: the integers of kl_device_quant_scheme. */
#define KL_FLOAT ((kl_dtype)64)
#define KL_INT ((kl_dtype)65)
#define KL_QUANT ((kl_dtype)66)

/* Kinds of devices.  The numbers never change. */
typedef enum kl_device_kind {
    KL_DEVICE_REF, KL_DEVICE_CPU, KL_DEVICE_CUDA, KL_DEVICE_HIP, KL_DEVICE_VULKAN, KL_DEVICE_METAL,
    KL_DEVICE_PLUGIN1, KL_DEVICE_PLUGIN2, KL_DEVICE_PLUGIN3, /* in the order of loading: <kiln/plugin.h> */
    KL_DEVICE_META, /* shapes and dtypes without data */
    KL_DEVICE_KINDS
} kl_device_kind;

/* What a call can report. KL_OK is 0; the others are the code of kl_last_error_code(). */
typedef enum kl_status {
    KL_OK,
    KL_ERR_ARGUMENT, /* a null pointer, an unknown name, a value out of range */
    KL_ERR_HANDLE,   /* a stale, released or foreign handle */
    KL_ERR_SHAPE,    /* shapes or axes that do not fit the op */
    KL_ERR_TYPE,     /* dtypes that do not fit the op */
    KL_ERR_DEVICE,   /* a device that does not exist, or two devices in one op */
    KL_ERR_TRACE,    /* begin twice, end without begin, a read of a value that is not computed yet */
    KL_ERR_GRAD,     /* a gradient that does not exist */
    KL_ERR_MEMORY,   /* an allocation failed or the memory limit is reached */
    KL_ERR_COMPILE,  /* a code generator could not compile a kernel */
    KL_ERR_IO,       /* a file that is missing, truncated or of another format */
    KL_ERR_PARSE,    /* text that is not a valid graph */
    KL_ERR_CHECK,    /* a value that failed kl_assert or option check_nan */
    KL_ERR_INTERNAL, /* an internal error: please report it */
    KL_ERR_CANCELLED /* kl_cancel or the deadline of kl_set_deadline ended it (<kiln/embed.h>) */
} kl_status;

/* Where a call was made. The macros of <kiln/kiln.h> pass a static one; NULL is allowed. */
typedef struct kl_site {
    const char *file;
    int line;
    const char *func;
} kl_site;

/* Functions that give memory, with the meaning of malloc, realloc (p may be NULL) and free (p is never NULL); ctx is
 * the first argument of each.  Any thread may call them.  They return NULL when no memory is left. */
typedef struct kl_memory {
    void *(*alloc)(void *ctx, size_t bytes);
    void *(*grow)(void *ctx, void *p, size_t bytes);
    void (*release)(void *ctx, void *p);
    void *ctx;
} kl_memory;

/* The host's threads, which run the loops of kernels in place of Kiln's own. */
typedef struct kl_pool {
    /* Calls part(job, i) once for each i below parts, on any threads, in any order, concurrently or not, and returns
     * when all have returned.  Any thread may call it, also inside a part: then it may run the parts sequentially. */
    void (*run)(void *ctx, void (*part)(void *job, int i), void *job, int parts);
    int threads; /* a loop is cut into at most this many parts, 1 to 1024; option "threads" reduces it */
    void *ctx;
} kl_pool;

typedef enum kl_log_level {
    KL_LOG_DEBUG, /* each kernel that is compiled, or loaded from disk */
    KL_LOG_INFO,  /* each program that is built: why, and how long it took */
    KL_LOG_WARN,  /* something is not used: a device, the cache folder, a damaged entry of it, a profile's file */
    KL_LOG_ERROR, /* each error, when a call sets kl_last_error */
    KL_LOG_NONE
} kl_log_level;
/* One line, without a newline, valid during the call.  Any thread may call, Kiln's own included.  It must not call
 * Kiln. */
typedef void kl_log_fn(void *ctx, kl_log_level level, const char *message);

#endif
