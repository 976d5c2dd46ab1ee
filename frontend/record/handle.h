/* Handles, what a thread has of its own, and errors. */
#ifndef KILN_HANDLE_H
#define KILN_HANDLE_H
#include "frontend/dispatch/dispatch.h"
#include "ir/graph/custom.h"
#include "ir/ir.h"
#include "runtime/runtime.h"
#include <kiln/kiln.h>

/* ---- handle.c: the table of handles ---- */
enum handle_kind {
    KIND_TEMP,   /* node is a node of trace */
    KIND_VALUE,  /* buffer is its value; NULL: lazy, node is a node of the deferred graph, still to be computed */
    KIND_WRAPPER, /* of a layer: wrapper has its parts; with a trace it is a temporary of that */
    KIND_POISON, /* cause says why there is no value */
    KIND_DEAD,   /* a temporary released before its trace ended */
};
enum death { DEATH_RELEASED, DEATH_TRACE, DEATH_SCOPE };
#define NO_ENTRY UINT32_MAX

/* Why a handle is poison; shared by the poison made from it. */
struct cause {
    atomic_uint refs;
    struct err err;
};

struct entry {
    atomic_uint generation;      /* odd while the handle is live; a handle with another one is stale */
    _Atomic(uint8_t) death;      /* enum death of the last handle of this entry */
    uint8_t kind, dtype;         /* dtype: KL_DTYPE_COUNT of what has none */
    bool requires_grad, busy;    /* busy: a program is writing to the buffer */
    bool kept;                   /* temporary: becomes a value at the trace's end */
    uint16_t device;
    /* of autodiff: a strategy's number * 2, and AD_ON where its device is an autodiff one */
    uint16_t ad;
    uint32_t index;              /* its own */
    uint32_t next, prev;         /* free list; temporaries of a trace; handles with a deferred node */
    uint64_t layers;             /* by kl_dispatch_mark */
    const char *made_by;         /* the function that the user called; NULL: not known */
    _Atomic(uint32_t) log;      /* of a temporary whose trace has ended: that trace's log.id; 0: none */
    uint32_t version;            /* counts rebinding, so that a late result is not given to a newer meaning */
    ref node;                    /* NIL: none */
    struct trace *trace;
    struct buffer *buffer;
    /* of the last handle of this entry that was one; never freed, so that any thread may look */
    struct wrapper *wrapper;
    struct cause *cause;
    struct shape shape;          /* of a value; a temporary's is its node's */
    char name[24];
};

/* A device's id: the number of the plain one + 1, and above it, of an autodiff device, the number of its strategy. */
enum { AD_ON = 1, DEVICE_ID_BITS = 8 };
static inline int device_index(kl_device d) { return (int)(d.id & ((1u << DEVICE_ID_BITS) - 1)) - 1; }
static inline unsigned device_strategy(kl_device d) { return d.id >> DEVICE_ID_BITS; }
static inline kl_device device_of(unsigned index) { return (kl_device){index + 1}; } /* a plain one */
static inline uint16_t device_ad(kl_device d)
{
    return d.id >> DEVICE_ID_BITS ? (uint16_t)(device_strategy(d) << 1 | AD_ON) : 0;
}
static inline kl_device device_like(unsigned index, kl_device like) /* an autodiff device if that is one */
{
    return (kl_device){(index + 1) | device_strategy(like) << DEVICE_ID_BITS};
}
static inline kl_device entry_device(const struct entry *x)
{
    return (kl_device){x->device + 1u + (x->ad & AD_ON ? (uint32_t)(x->ad >> 1) << DEVICE_ID_BITS : 0)};
}

struct thread;
enum { ENTRY_CHUNK = 1024, ENTRY_BITS = 10, ENTRY_CHUNKS = 32 - ENTRY_BITS };
extern struct entry_table {
    _Atomic(struct entry *) chunk[ENTRY_CHUNKS]; /* chunk c holds ENTRY_CHUNK << c entries */
    atomic_uint count;                           /* entries handed out so far */
} entries __attribute__((visibility("hidden")));
/* Index i + ENTRY_CHUNK has its leading one at bit c + ENTRY_BITS; the bits below it are the place in chunk c. */
static inline uint32_t entry_chunk(uint32_t index, uint32_t *place)
{
    uint64_t i = (uint64_t)index + ENTRY_CHUNK;
    uint32_t top = 63u - (uint32_t)__builtin_clzll(i);
    *place = (uint32_t)(i - (UINT64_C(1) << top));
    return top - ENTRY_BITS;
}
static inline struct entry *entry_at(uint32_t index) /* of an index that was handed out */
{
    uint32_t place, c = entry_chunk(index, &place);
    return &atomic_load_explicit(&entries.chunk[c], memory_order_acquire)[place];
}
/* The entry of a live handle; NULL: *e says what is wrong, `what` names the operand. */
struct entry *entry_find(kl_tensor h, const char *what, struct err *e);
/* A life begins or ends.  Only the entry's owner says so, whatever threads read it: a store does, without a locked
 * add. */
static inline void entry_turn(struct entry *x)
{
    unsigned now = atomic_load_explicit(&x->generation, memory_order_relaxed);
    atomic_store_explicit(&x->generation, now + 1, memory_order_release);
}
static inline void entry_end_life(struct entry *x, enum death how)
{
    atomic_store_explicit(&x->death, (uint8_t)how, memory_order_relaxed);
    entry_turn(x);
}
static inline kl_tensor entry_handle(const struct entry *x)
{
    return (kl_tensor){(uint64_t)atomic_load_explicit(&x->generation, memory_order_relaxed) << 32 | x->index};
}
static inline bool entry_is(const struct entry *x, kl_tensor h) /* is that what the handle means? */
{
    return x->index == (uint32_t)h.id && atomic_load_explicit(&x->generation, memory_order_acquire) == h.id >> 32;
}
unsigned entry_dtype(const struct entry *x);      /* KL_DTYPE_COUNT: poison, or NULL */
static inline struct entry *entry_peek(kl_tensor h) /* the same without saying why not */
{
    uint32_t index = (uint32_t)h.id, generation = (uint32_t)(h.id >> 32);
    if (index >= atomic_load_explicit(&entries.count, memory_order_acquire))
        return NULL;
    struct entry *x = entry_at(index);
    return generation % 2 && atomic_load_explicit(&x->generation, memory_order_acquire) == generation ? x : NULL;
}
struct entry *entry_new(void);                    /* live; needs the lock; NULL: out of memory */
void entry_free(struct entry *x, enum death how); /* needs the lock; drops buffer and cause */
void handle_end(kl_tensor h, enum death how);     /* entry_free once no program writes to it, if it still lives */
struct entry *entry_new_temp(struct thread *t, struct trace *tr);
void entry_free_temp(struct thread *t, struct entry *x); /* of an ended trace; ends the handle if it still lives */
void entries_return(struct thread *t);            /* a thread's free entries, at its end */
void cause_drop(struct cause *c);
void entries_after_fork(void);                    /* in the child: what was being written is poison; needs the lock */

/* ---- thread.c: what a thread has of its own ---- */
enum { COMPOSE_DEEPEST = 32 };   /* composites in composites that widen */
struct thread {
    struct err last;             /* kl_last_error */
    struct trace *trace;         /* kept between traces for its memory */
    struct graph *spare;         /* an empty one, kept between vmaps for its memory, or NULL */
    bool tracing;
    uint32_t free;               /* entries for temporaries, linked by next */
    uint64_t *made;              /* handles made outside traces while a scope is open */
    uint32_t nmade, made_cap;
    uint32_t *scope;             /* where each open scope starts in made */
    uint32_t nscope, scope_cap;
    const char *composite;       /* the outermost composite that is recording, for messages */
    unsigned depth;              /* composites that are open, one in another */
    struct narrow { unsigned dtype; const kl_site *site; } narrow[COMPOSE_DEEPEST]; /* by depth: what the result of this
                                    composite is rounded to, KL_DTYPE_COUNT: nothing (nn/widen.c) */
    unsigned no_grad;            /* open no_grad blocks; */
    unsigned outer_no_grad;      /*   those that the open trace began in */
    kl_run_info info;
    bool has_info;
    uint64_t included, excluded; /* keys, by kl_dispatch_guard */
    uint64_t generator;          /* keys of the one that random bits are asked of */
    struct suspended {           /* what kl_trace_resume brings back; `on` until then */
        bool on, tracing;
        unsigned no_grad;
        uint64_t included, excluded;
        const struct vmap *vmap;
    } suspended;
    bool watch;                  /* calls are noted in the log */
    unsigned plain;              /* what is recorded is a part of a kernel of Kiln's own: no call has another one */
    int kernels;                 /* how many more kernels may run, one in another */
    uint64_t reads;              /* of this struct through thread_self */
    struct dispatch_log log;
    char *dump;                  /* what kl_dispatch_dump gave last */
    char warning[400];           /* kl_dispatch_warning */
    struct err cache_off;        /* kl_cache_off_reason */
    const struct vmap *vmap;     /* the innermost function that kl_vmap records; NULL: none */
    struct autocast *autocast;   /* its blocks, once there was one; or NULL */
    struct op_profile *op_profile; /* records of calls, once there were some; or NULL */
    struct kl_tracer *tracer[2]; /* the open ones, outer and inner tap; or NULL */
    char empty[64];              /* the trace that the last warning of empty traces was about */
    char *miss;                  /* why the last trace's program had to be built; owned.  NULL: it was known */
};
enum { KERNELS_DEEPEST = 200 };                   /* in one another: more have no end */
struct thread *thread_self(void);                 /* NULL: out of memory */
void front_lock(void);
void front_unlock(void);                          /* also calls release callbacks that came due */
void front_wait(void);                            /* until a writer is done; needs the lock */
void front_wake(void);
void front_drop(struct buffer *b);                /* buffer_unref that never calls user code under the lock */
bool scope_note(struct thread *t, kl_tensor h);   /* h was made outside a trace */
void thread_refuse_memory(const char *message);   /* kl_last_error of this thread, which allocates nothing; a literal */
/* A composite outside a trace frees what it made but its result.  Nested composites count as the outermost. */
struct thread *compose_begin(const char *name);
bool compose_begin_on(struct thread *t, const char *name); /* false: out of memory */
kl_tensor compose_end(struct thread *t, kl_tensor result);
void compose_end_all(struct thread *t, const kl_tensor *result, uint32_t n); /* of one with several */

/* ---- error.c ---- */
/* Sets the thread's last error to "file:line: [composite: ]message"; returns code. */
kl_status report(struct thread *t, const kl_site *site, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for an error that knows no call site. */
kl_status report_err(const struct err *e);
/* The same, and the open trace has failed. */
kl_status fail(struct thread *t, const kl_site *site, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
kl_status fail_with(struct thread *t, const kl_site *site, kl_status code, const char *fmt, va_list ap)
    __attribute__((format(printf, 4, 0)));
/* A poison handle for the thread's last error. */
kl_tensor poison(struct thread *t);
/* fail() and poison() in one. */
kl_tensor refuse(struct thread *t, const kl_site *site, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
