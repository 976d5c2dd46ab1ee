/* Handles, per-thread state, and errors. */
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
    KIND_VALUE,  /* buffer is its value; NULL: lazy, node is an uncomputed node of the deferred graph */
    KIND_WRAPPER, /* of a layer: wrapper has its parts; with a trace it is a temporary of that trace */
    KIND_POISON, /* cause is the error */
    KIND_DEAD,   /* a temporary released before its trace ended */
};
enum death { DEATH_RELEASED, DEATH_TRACE, DEATH_SCOPE };
#define NO_ENTRY UINT32_MAX

/* The error of a poison handle; shared by all poison that follows from it. */
struct cause {
    atomic_uint refs;
    struct err err;
};

struct entry {
    atomic_uint generation;      /* odd while the handle is live; handles with another generation are stale */
    _Atomic(uint8_t) death;      /* enum death: how the last handle of this entry ended */
    uint8_t kind, dtype;         /* dtype: KL_DTYPE_COUNT if it has none */
    bool requires_grad, busy;    /* busy: a program is writing to the buffer */
    bool kept;                   /* temporary: becomes a value at the trace's end */
    bool failed;                 /* poison that was a temporary of a failed trace: its thread ends it */
    uint16_t device;
    /* for autodiff: a strategy's number * 2, plus AD_ON if its device is an autodiff device */
    uint16_t ad;
    uint32_t index;              /* index of this entry */
    uint32_t next, prev;         /* free list; temporaries of a trace; handles with a deferred node */
    uint64_t layers;             /* by kl_dispatch_mark */
    const char *made_by;         /* the function that the user called; NULL: unknown */
    _Atomic(uint32_t) log;      /* of a temporary whose trace has ended: log.id of that trace; 0: none */
    /* incremented when the handle is rebound, so that a late result is not stored in a newer value */
    uint32_t version;
    ref node;                    /* NIL: none */
    struct trace *trace;
    struct buffer *buffer;
    /* of the last wrapper handle of this entry; never freed, so that any thread may read it */
    struct wrapper *wrapper;
    struct cause *cause;
    struct shape shape;          /* of a value; the shape of a temporary is its node's */
    char name[64];               /* of kl_set_name; dumps have its first 23 bytes */
};

/* A device's id: the number of the plain device + 1, plus the number of the strategy in the bits above for an autodiff
 * device. */
enum { AD_ON = 1, DEVICE_ID_BITS = 8 };
static inline int device_index(kl_device d) { return (int)(d.id & ((1u << DEVICE_ID_BITS) - 1)) - 1; }
static inline unsigned device_strategy(kl_device d) { return d.id >> DEVICE_ID_BITS; }
static inline kl_device device_of(unsigned index) { return (kl_device){index + 1}; } /* a plain one */
static inline uint16_t device_ad(kl_device d)
{
    return d.id >> DEVICE_ID_BITS ? (uint16_t)(device_strategy(d) << 1 | AD_ON) : 0;
}
static inline kl_device device_like(unsigned index, kl_device like) /* an autodiff device if `like` is one */
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
    atomic_uint count;                           /* entries issued so far */
} entries __attribute__((visibility("hidden")));
/* The highest bit of index + ENTRY_CHUNK is bit c + ENTRY_BITS; the bits below it are the position in chunk c. */
static inline uint32_t entry_chunk(uint32_t index, uint32_t *place)
{
    uint64_t i = (uint64_t)index + ENTRY_CHUNK;
    uint32_t top = 63u - (uint32_t)__builtin_clzll(i);
    *place = (uint32_t)(i - (UINT64_C(1) << top));
    return top - ENTRY_BITS;
}
static inline struct entry *entry_at(uint32_t index) /* the index must have been issued */
{
    uint32_t place, c = entry_chunk(index, &place);
    return &atomic_load_explicit(&entries.chunk[c], memory_order_acquire)[place];
}
/* The entry of a live handle; NULL: *e has the error, `what` names the operand. */
struct entry *entry_find(kl_tensor h, const char *what, struct err *e);
/* Starts or ends a life of the entry.  Only the entry's owner calls it, while other threads may read the generation, so
 * a plain atomic store suffices. */
static inline void entry_bump_generation(struct entry *x)
{
    unsigned now = atomic_load_explicit(&x->generation, memory_order_relaxed);
    atomic_store_explicit(&x->generation, now + 1, memory_order_release);
}
static inline void entry_end_life(struct entry *x, enum death how)
{
    atomic_store_explicit(&x->death, (uint8_t)how, memory_order_relaxed);
    entry_bump_generation(x);
}
static inline kl_tensor entry_handle(const struct entry *x)
{
    return (kl_tensor){(uint64_t)atomic_load_explicit(&x->generation, memory_order_relaxed) << 32 | x->index};
}
unsigned entry_dtype(const struct entry *x);      /* KL_DTYPE_COUNT: poison, or NULL */
static inline struct entry *entry_peek(kl_tensor h) /* the same without an error */
{
    uint32_t index = (uint32_t)h.id, generation = (uint32_t)(h.id >> 32);
    if (index >= atomic_load_explicit(&entries.count, memory_order_acquire))
        return NULL;
    struct entry *x = entry_at(index);
    return generation % 2 && atomic_load_explicit(&x->generation, memory_order_acquire) == generation ? x : NULL;
}
/* Is the handle the entry's, and live? */
static inline bool entry_has(const struct entry *x, kl_tensor h)
{
    return atomic_load_explicit(&((struct entry *)x)->generation, memory_order_acquire) == (uint32_t)(h.id >> 32);
}
struct entry *entry_new(void);                    /* live; needs the lock; NULL: out of memory */
void entry_free(struct entry *x, enum death how); /* needs the lock; drops buffer and cause */
/* entry_free, after any program that writes to it, if the handle is still live */
void handle_end(kl_tensor h, enum death how);
struct entry *entry_new_temp(struct thread *t, struct trace *tr);
void entry_free_temp(struct thread *t, struct entry *x); /* of an ended trace; ends the handle if it is still live */
/* A temporary becomes poison with this cause, which is of its trace's failure. */
void entry_make_failed(struct entry *x, struct cause *c);
void entries_return(struct thread *t);            /* a thread's free entries, at its end */
void cause_drop(struct cause *c);
/* in the child of fork: values being written become poison; needs the lock */
void entries_after_fork(void);

/* ---- thread.c: per-thread state ---- */
struct block_counts { unsigned no_grad, autocast, composites; uint32_t scopes, names; }; /* open blocks of each kind */
/* The tensors that the call in progress has looked at, for their names in its error: the last ones of calls with this
 * site and name. */
struct operands_seen {
    const kl_site *site;
    const char *op;
    uint64_t id[8];
    unsigned n;                  /* all that there were */
};
/* What may cancel a thread's calls. */
struct cancel_limits {
    struct kl_cancel_token *token; /* with a reference; NULL: none */
    bool has_deadline;
    double deadline;             /* as measure_now, in seconds */
    struct cancellation asked;   /* what the runtime asks: a function of these limits */
};
struct thread {
    struct err last;             /* kl_last_error */
    struct cancel_limits cancel;
    /* Where the user made the call that is running (kl_NAME_at sets it), or what kl_set_call_site has set: nodes and
     * errors have it.  NULL: no line is known. */
    const kl_site *site;
    struct operands_seen seen;
    struct name_scopes *names;   /* the open scopes of names, allocated when first used; or NULL */
    struct trace *trace;         /* kept between traces for its memory */
    struct trace *refused;       /* in place of one that cannot begin; it has failed */
    uint32_t failed;             /* poison of the last trace that failed, linked by next */
    struct graph *spare;         /* an empty graph, kept between vmaps for its memory, or NULL */
    bool tracing;
    uint32_t free;               /* free entries for temporaries, linked by next */
    uint64_t *made;              /* handles made outside traces while a scope is open */
    uint32_t nmade, made_cap;
    struct scope {
        uint32_t from;           /* where it starts in made */
        unsigned composite;      /* the depth of the composite whose scope it is; 0: of kl_scope_begin */
    } *scope;                    /* the open ones */
    uint32_t nscope, scope_cap;
    const char *composite;       /* the outermost composite being recorded, for messages */
    unsigned depth;              /* number of open composites */
    /* by open composite: the dtype to which its result is rounded, KL_DTYPE_COUNT: none (nn/widen.c) */
    struct narrow { unsigned dtype; } *narrow;
    uint32_t narrow_cap;
    unsigned no_grad;            /* open no_grad blocks */
    /* the blocks that were open when the open trace, function of the user's or suspension began: it cannot end them */
    struct block_counts floor;
    kl_run_info info;
    bool has_info;
    uint64_t included, excluded; /* keys, by kl_dispatch_guard */
    uint64_t generator;          /* keys of the generator whose random bits are requested */
    struct suspension *suspension; /* the innermost that this function of the user's began, or NULL */
    bool watch;                  /* calls are logged */
    /* > 0 inside a kernel of Kiln's: calls are recorded without looking up other kernels */
    unsigned plain;
    int kernels;                 /* number of nested kernels that may still run */
    uint64_t reads;              /* number of look-ups of this struct by thread_self */
    struct dispatch_log log;
    char *dump;                  /* the last result of kl_dispatch_dump */
    char warning[400];           /* kl_dispatch_warning */
    struct err cache_off;        /* kl_cache_off_reason */
    const struct vmap *vmap;     /* the innermost function being recorded by kl_vmap; NULL: none */
    struct autocast *autocast;   /* its autocast blocks, allocated when first used; or NULL */
    struct op_profile *op_profile; /* records of calls, allocated when first used; or NULL */
    struct kl_tracer *tracer[2]; /* the open tracers, one for each level; or NULL */
    char empty[64];              /* the last trace for which the warning about empty traces was given */
    char *miss;                  /* why the last trace's program had to be built; owned. NULL: it was cached */
};
enum { KERNELS_DEEPEST = 200 };                   /* nesting depth at which kernels are taken to recurse without end */
struct thread *thread_self(void);                 /* NULL: out of memory */
/* Around a function that is called with its line: the thread's call site is `site` meanwhile.  The results are for
 * call_end.  NULL: out of memory, which the function reports. */
static inline struct thread *call_begin(const kl_site *site, const kl_site **outer)
{
    struct thread *t = thread_self();
    *outer = t ? t->site : NULL;
    if (t)
        t->site = site;
    return t;
}
static inline void call_end(struct thread *t, const kl_site *outer)
{
    if (t)
        t->site = outer;
}
void front_lock(void);
void front_unlock(void);                          /* also calls release callbacks that became due */
void front_wait(void);                            /* waits until a writer is done; needs the lock */
/* The same for a call that can be cancelled; false: *e, it is. */
bool front_wait_cancellable(struct err *e);
void front_wake(void);
void front_drop(struct buffer *b);                /* as buffer_unref, but never calls the user's code under the lock */
/* Without memory for the thread's struct: what it calls up to kl_trace_end is part of a trace that has failed. */
void thread_remember_begin(void);
/* Sets kl_last_error of this thread without allocating. */
enum memory_refusal { MEMORY_IN_USE = 1, MEMORY_INCOMPLETE };
void thread_refuse_memory(enum memory_refusal why);

/* ---- library/cancel.c ---- */
void cancel_limits_end(struct thread *t);         /* at the thread's end */

/* ---- blocks.c: scopes, no_grad blocks, composites, suspensions ---- */
/* What a thread had open when a function of the user's or a suspension began. */
struct blocks {
    struct block_counts floor, open;
    const char *composite;
    uint64_t included, excluded;
    const struct vmap *vmap;
    struct suspension *suspension;
};
/* Before such a function: saves the state in *outer, and what is open cannot be ended until blocks_leave. */
void blocks_enter(struct thread *t, struct blocks *outer);
/* After it: ends what it began; returns the name of a call that is missing in it, or NULL. */
const char *blocks_end_open(struct thread *t);
/* Then: restores the state.  Nothing is open beyond it. */
void blocks_leave(struct thread *t, const struct blocks *outer);
/* Ends suspensions only; returns whether there was one. */
bool blocks_resume(struct thread *t);
bool scope_note(struct thread *t, kl_tensor h);   /* records that h was made outside a trace */
/* Outside a trace a composite frees what it made except its result.  Nested composites count as part of the outermost
 * one. */
struct thread *compose_begin(const char *name);
bool compose_begin_on(struct thread *t, const char *name); /* false: out of memory */
kl_tensor compose_end(struct thread *t, kl_tensor result);
void compose_end_all(struct thread *t, const kl_tensor *result, uint32_t n); /* for several results */

/* ---- library/names.c: names of tensors and scopes of names, in messages and call sites ---- */
/* The path of the open scopes of names; "": none is open. */
const char *name_scope_path(const struct thread *t);
/* The site of a call: the same, or one whose function is "FUNCTION.PATH" with the path of the open scopes. */
const kl_site *name_scope_site(struct thread *t, const kl_site *site);
void name_scopes_free(struct thread *t);
uint32_t name_scope_depth(const struct thread *t);
void name_scopes_end(struct thread *t, uint32_t depth);
/* Notes that a call looks at a tensor. */
static inline void operand_seen(struct thread *t, const char *op, kl_tensor h)
{
    struct operands_seen *s = &t->seen;
    if (s->op != op || s->site != t->site)
        *s = (struct operands_seen){.site = t->site, .op = op};
    s->id[s->n++ % (sizeof s->id / sizeof *s->id)] = h.id;
}
/* Adds the names of the tensors that the failing call has looked at to its message, where it shows their shapes. */
void operands_add_names(struct thread *t, char *message, size_t size);

/* ---- error.c ---- */
/* Sets the thread's last error to "file:line: [composite: ]message"; returns code. */
kl_status report(struct thread *t, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for an error of a function in struct err. */
kl_status report_err(const struct err *e);
/* The same, and the open trace fails. */
kl_status fail(struct thread *t, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
kl_status fail_with(struct thread *t, kl_status code, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
/* A number of list elements that a caller passes, by the argument's name. */
struct named_count { const char *name; int64_t n; };
#define COUNTS(...) (const struct named_count[]){__VA_ARGS__, {NULL, 0}}
/* Whether all of them, up to the first without a name, are 0 to INT32_MAX; if not, the call fails with ARGUMENT. */
bool counts_valid(struct thread *t, const char *op, const struct named_count *counts);
/* The first that is not, or NULL; and what is wrong with it, into text. */
const struct named_count *first_bad_count(const struct named_count *counts);
const char *bad_count_text(const struct named_count *bad, char *text, size_t size);
/* The count, or 0 for one that counts_valid rejects. */
static inline uint32_t count_or_none(int64_t n) { return n > 0 && n <= INT32_MAX ? (uint32_t)n : 0; }
/* A poison handle with the thread's last error. */
kl_tensor poison(struct thread *t);
/* fail() and poison() in one. */
kl_tensor refuse(struct thread *t, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
