/* Handles, recording and traces: one internal header for the folder, prototypes grouped by file.
 *
 * A call on tensors goes through one path, record() in record.c: check the operands, dispatch on their device,
 * append a node to the recording, make a handle.  The recording is the open trace of the thread or, outside of
 * traces, the deferred graph of the process.  Composites (nn/, random.c, parts of ops.c) are made of
 * such calls.
 *
 * One lock guards the table's free list, everything about handles that are not temporaries, and the deferred
 * graph.  Temporaries and their trace are touched by the trace's own thread only, without the lock. */
#ifndef KILN_FRONTEND_H
#define KILN_FRONTEND_H
#define KL_NO_CALL_SITES
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

/* ---- record.c: the one path ---- */
/* A graph being recorded, with the data of its inputs and slots by ordinal. */
struct recording {
    struct graph *g;
    struct buffer **input;
    uint64_t *slot;
    uint32_t input_cap, slot_cap;
};
/* One op on its way.  For op input `data` is consumed, whatever happens. */
struct call {
    const kl_site *site;
    const char *op;              /* its name in messages */
    struct node proto;           /* op; dtype, attributes and flags where the op has them; nin where it may vary */
    kl_tensor in[MAX_OPERANDS];
    bool has_target;
    struct shape target;         /* where the caller chooses the shape */
    kl_device device;            /* of ops without operands, and of copy */
    struct buffer *data;
    uint64_t bits;               /* op slot */
    uint64_t keys;               /* of arguments that are no tensors */
    uint64_t marks;              /* layers that the result gets */
    bool failed;                 /* record_node has given a poison handle */
};
kl_tensor record(struct call *c); /* dispatches; below it is the kernel that most tables end in: */
/* its operands' entries, or NULL */
kl_tensor record_node(struct thread *t, struct call *c, struct entry *const *found);
unsigned call_operands(const struct call *c);
/* numpy's rule for one more operand; false: they do not fit */
bool broadcast_shape(struct shape *all, const struct shape *s);
/* dtype, shape and device of a handle; false: reported as a failure of `op`, `what` names the operand. */
struct view {
    unsigned dtype;
    struct shape shape;
    kl_device device;
};
bool describe(struct thread *t, const kl_site *site, const char *op, const char *what, kl_tensor h, struct view *v);
bool recording_input(struct recording *r, uint32_t ordinal, struct buffer *b); /* takes the reference */
bool recording_slot(struct recording *r, uint32_t ordinal, uint64_t bits);
bool recording_open(struct recording *r, const char *name); /* empty, memory reused */
void recording_close(struct recording *r);        /* drops the inputs' data; needs the lock */
void recording_free(struct recording *r);

/* The node a handle means in tr or, if that is NULL, in the deferred graph, whose lock is held.  NIL: *e, in which
 * `what` names the operand, or the graph's own error. */
ref node_of_handle(struct trace *tr, kl_tensor h, const char *what, struct err *e);
/* Moves the graph's error to *e, without the op's name in front; the graph stays usable. */
void take_graph_error(struct graph *g, const char *op, struct err *e);
/* A handle for node r, just recorded in tr or, if that is NULL, in the deferred graph; kl_none: *e.  ad: struct
 * entry's. */
kl_tensor handle_of_node(struct thread *t, struct trace *tr, ref r, uint16_t ad, struct err *e);

/* ---- device.c ---- */
#define META_HAS_NO_DATA "Cannot copy out of meta tensor; no data!"
/* A value on device meta; NULL: *e. */
static inline struct buffer *meta_value(struct err *e) { return buffer_wrap(DEVICE_META, NULL, 0, NULL, NULL, e); }
bool device_valid(kl_device d);
/* The dtype that a call means which makes a tensor there; from then on the device cannot be configured any more. */
kl_dtype device_dtype(kl_device d, kl_dtype dtype);

/* ---- gradients.c ---- */
bool gradient_flows(struct thread *t, kl_tensor h); /* from a live handle to something that was marked */
/* ---- gradient_checks.c: what is silently zero, or may not be what was meant ---- */
/* Does a gradient flow from node `from` to node `to`?  Out of memory: yes. */
bool gradient_reaches(const struct graph *g, ref from, ref to);
/* The same for each of to[0..n), NIL where there is none, into reached[]; false: out of memory. */
bool gradient_reaches_each(const struct graph *g, ref from, const ref *to, uint32_t n, bool *reached);
/* The variable h, whose node is wrt, was assigned in the trace behind all that the loss was made from.  true: *e. */
bool gradient_is_too_late(struct trace *tr, ref loss, kl_tensor h, ref wrt, struct err *e);
/* For a graph that was built into a program: warns of each gradient that is zeros and of each loss that is no
 * scalar. */
void gradients_warn(const struct graph *g);

/* ---- autodiff.c: autodiff as a property of devices ---- */
bool strategy_valid(unsigned strategy);           /* 0, of a plain device, is */
const char *strategy_device_name(unsigned strategy, int device);
int64_t strategy_bytes(unsigned strategy);        /* a kl_checkpointing */
/* What an op gets with one more operand: on autodiff devices are all or none, and their strategies one.  false: *e. */
bool ad_join(uint16_t *ad, const struct entry *first, const struct entry *x, struct err *e);
/* a float on an autodiff device; false: reported */
bool ad_requires(struct thread *t, const kl_site *site, const char *op, kl_tensor h);
bool ad_replaces(const struct entry *x, const struct entry *gradient, struct err *e); /* may it be x's gradient? */
bool ad_to(uint16_t ad, const struct entry *x, kl_device to, struct err *e); /* may x go to that device? */

/* ---- dispatch/call.c: from a call to its kernel ---- */
struct control;
struct kl_call {
    struct thread *t;
    const struct dispatch_op *op;
    uint64_t keys;               /* that it was made with */
    kl_key key;                  /* whose kernel runs */
    uint8_t device;              /* top_device of its keys */
    bool one_device;             /* its operands are known to be on one kind of devices */
    /* what kernels give is to be looked at: one has set a result, or there is not just one */
    bool given;
    const kl_site *site;
    uint32_t nin, nout;
    kl_tensor *in, *out;
    struct call *graph;          /* an op of ops.def; or NULL */
    struct control *region;      /* graph NULL: a region op or a custom one; or NULL */
    const char *label;           /* graph NULL: its name in messages */
    /* t->reads while found[] holds the operands' entries: every call that could end one of their */
    uint64_t reads;
    struct entry *found[MAX_OPERANDS]; /* handles counts there; 0: it does not hold them */
};
static inline const char *call_label(const struct kl_call *c) { return c->graph ? c->graph->op : c->label; }
extern uint64_t device_bits[MAX_DEVICES] __attribute__((visibility("hidden"))); /* keys, by number */
void device_keys_start(void);    /* fills them */
uint64_t device_keys(kl_device d); /* none of what is no device */
/* The keys of a handle; none of one that is stale. */
static inline uint64_t handle_keys(kl_tensor h)
{
    const struct entry *x = entry_peek(h);
    return x ? device_bits[x->device] | x->layers : 0;
}
/* With those of the thread. */
static inline uint64_t thread_keys(const struct thread *t, uint64_t bits)
{
    uint64_t without = t->excluded | (t->no_grad ? LAYER_BIT(LAYER_Autograd) : 0);
    return (bits | t->included | ALWAYS_INCLUDED) & ~without;
}
/* The operands' entries, of an op of ops.def; NULL for what is no handle. */
struct entry *const *call_found(struct kl_call *c);
/* Runs the kernel that c->key and the table gave; an error is reported, and its status returned. */
kl_status call_kernel(struct kl_call *c, const struct op_kernel *k);
/* A call of an op of ops.def that may run another kernel than the node of its own; *c has its op, nin and found[], the
 * rest is filled here.  own: the keys of its arguments alone; dev: the top device of `keys`. */
kl_tensor call_for_node(struct kl_call *c, struct thread *t, struct call *g, uint64_t own, uint64_t keys, unsigned dev);
/* ---- dispatch/backend_kernel.c ---- */
kl_status backend_record(struct kl_call *c, const struct op_kernel *k); /* a kernel `run`: an opaque node */

struct handle_list { kl_tensor *h; uint32_t n, cap; };
/* ---- deferred.c: what is recorded outside of traces; all need the lock ---- */
struct recording *deferred_recording(void);        /* with room for one op's nodes; NULL: out of memory */
const struct graph *deferred_graph(void);
bool deferred_room(uint32_t nodes);                /* for so many more; false: out of memory */
ref deferred_node(struct entry *x, struct err *e); /* of a value or lazy handle, as it is now */
void deferred_added(ref r);                        /* notes a node just appended */
bool deferred_tracked(ref r);                      /* depends on a handle marked by kl_requires_grad */
void deferred_bind(struct entry *x, ref r);        /* x becomes lazy with that node */
void deferred_mark(struct entry *x);               /* x has become something to differentiate in */
void deferred_unbind(struct entry *x);
/* The handles with a node in reach[] that kl_requires_grad marked; false: out of memory. */
bool deferred_marked(const bool *reach, struct handle_list *out);
/* Computes lazy handles, in one program, and whatever else with a handle that takes.  Lets go of the lock
 * while it runs.  Handles that died meanwhile are skipped. */
bool deferred_compute(const kl_tensor *h, uint32_t n, struct err *e);
bool deferred_compute_device(int device, struct err *e); /* all lazy handles there, one by one where it goes wrong */
void deferred_collect(void);                       /* frees what no handle can reach */
void deferred_limit(void);                         /* keeps the graph bounded; before an op is recorded */

/* ---- replay_log.c: what the last traces of each name recorded, to be compared with the next ---- */
struct replay_call {               /* a call that went into the graph, or a state that was bound */
    struct node key;             /* as given: operands before they are broadcast, the call's device + 1, no site */
    uint32_t target;             /* the shape that the caller chose; REPLAY_NONE */
    ref result;                  /* of a region op the op's node; its results follow, key.attr.region.first of them */
    struct replay_more *more;      /* of a region op; else NULL */
};
/* What decides a region op beside its key: bytes that say all else, and what its functions recorded. */
struct replay_more {
    uint32_t refs;
    size_t size;
    struct replay_log *body[2];        /* NULL: there is none */
    unsigned char bytes[];
};
struct replay_extra {              /* the same of a call on its way */
    const void *bytes;
    size_t size;
    struct replay_log *body[2];
};
#define REPLAY_NONE UINT32_MAX
struct replay_log {
    struct graph *g;
    uint32_t id;                 /* of what is on it, among all logs; 0: of a region */
    struct replay_call *call;      /* empty: nothing to compare with */
    uint32_t ncall, call_cap;
    bool partial;                /* something in the graph is not among the calls: memory ran out */
    uint32_t refs;               /* of a region's log */
    /* what ran it, which may be evicted meanwhile: a weak reference; NULL: it has not run */
    const struct exec *exec;
    bool fuse;                   /* the option then */
    uint64_t schedules;          /* schedules_number then */
    struct replay_log *next;           /* used before this one */
};
/* Starts the trace of this name on the log to compare with first, or on an empty one; false: out of memory. */
bool replay_begin(struct trace *tr, const char *name);
/* The same for the trace of a region, number `which` of the op that is recorded in outer, which has a log. */
bool replay_begin_body(struct trace *tr, const struct trace *outer, uint32_t which, const char *name);
struct replay_log *replay_body_ref(struct replay_log *body);    /* NULL is fine, also below */
void replay_body_drop(struct replay_log *body);
/* The trace's next call: its result, which is also in the log of an earlier trace, the trace still being on that; or
 * NULL, the trace being on a log of its own, whose graph holds all that came before and may be added to.  *failed: out
 * of memory.  The trace of a region that is recorded outside of traces has no log. */
const struct replay_call *replay_next(struct trace *tr, const struct node *key, const kl_site *site,
                                  const struct shape *target, const struct replay_extra *extra, bool *failed);
/* Notes that the call gave node r. */
void replay_add(struct trace *tr, const struct node *key, const struct shape *target, const struct replay_extra *extra,
              ref r);
/* All was as before, and so are the outputs; if not, the trace has a log of its own.  false: that, or *failed. */
bool replay_complete(struct trace *tr, const struct output *out, uint32_t nout, bool *failed);
/* x runs it, with this option and the schedules of this number: the next trace may be compared with it. */
void replay_end(struct trace *tr, const struct exec *x, bool fuse, uint64_t schedules);
void replay_free_all(struct trace *tr);

/* ---- trace.c ---- */
struct binding {                 /* an outside handle used in a trace; position = the state's ordinal */
    kl_tensor h;
    ref node;                    /* the version it means now */
    bool assigned, released;
    struct buffer *buffer;       /* while the program runs */
};
/* ---- launch.c: handles as the states of a program that runs; all need the lock ---- */
struct launch {
    const struct graph *g;       /* its outputs, and the names of its states */
    struct binding *bound;       /* per state: its handle, and whether it is assigned */
    uint32_t nbound;
    uint32_t nkept;              /* outputs that handles get, the first ones; other values given back are dropped */
    bool frozen;                 /* not a trace that is open, for messages */
    bool *exclusive;             /* for exec_run, with room for as many */
    struct buffer **state, **out;
};
/* Waits until every state has a value that is not being written, and keeps others off those to be assigned.  The lock
 * is open meanwhile.  false: *e, and nothing is taken. */
bool launch_take(struct launch *l, struct err *e);
/* Outputs become values of states and, by output, of the other handles in kept[]. */
void launch_commit(struct launch *l, struct entry *const *kept);
void launch_release(struct launch *l);

/* What the calls around a region's function have changed in the thread, and the memory that they hold, so that a thread
 * which leaves the function by longjmp can undo it. */
struct region_frame {
    const void *stack;               /* where region_record's frame is */
    const char *composite;
    unsigned depth, no_grad, outer_no_grad, plain;
    int kernels;
    uint64_t included, excluded, generator;
    const struct vmap *vmap;
    kl_tensor *in, *captured;
    void *views;                     /* region_recorder.views */
    struct graph *g, *empty;         /* of the op's first region; region_recorder.empty */
    struct replay_log *body;
    struct handle_list made;         /* outside of traces: handles made for the region */
};

struct trace {
    struct recording r;              /* its graph is the log's; without one its own */
    /* the one in use; all that this thread has, last used first; of a region none */
    struct replay_log *log, *logs;
    bool replaying;                  /* the log is an earlier trace's, its first `at` calls are this one's too */
    uint32_t at;
    const kl_site *site;             /* of the call that uses handles now */
    const char *region;              /* a region is recorded: the op's name; else NULL */
    const char *silent;              /* it may not look at values: what it is of the op; else NULL */
    struct trace *outer;             /* of a region: the trace around it, NULL outside of traces */
    struct trace *idle;              /* of a region: what thread.trace was */
    bool batched;                    /* of a region: kl_vmap's, which becomes no op */
    struct region_frame frame;       /* of a region */
    struct err err;              /* the first failure */
    int64_t began;               /* span_begin */
    kl_tensor poison;            /* what a failed trace gives back */
    struct binding *bound;
    uint32_t nbound, bound_cap;
    uint32_t *index;             /* hash of entry index -> position in bound + 1 */
    uint32_t index_cap;
    uint32_t temps;              /* its temporaries, linked by next */
    kl_tensor token;             /* of the last kl_print or kl_assert, or kl_none */
    kl_tensor entry;             /* of a region: the token from outside that its first one follows, or kl_none */
    kl_tensor *keep;
    uint32_t nkeep, keep_cap;
    struct launch launch;        /* room for running */
    struct entry **kept;
    uint32_t out_cap, exclusive_cap, state_cap, kept_cap;
    struct output *output;
    uint32_t output_cap;
    unsigned char *extra;            /* room for replay_extra.bytes */
    uint32_t extra_cap;
};
static inline struct trace *thread_trace(const struct thread *t) { return t->tracing ? t->trace : NULL; }
/* Is a temporary of `of` visible in tr: its own, or, in a region, one of a trace around it? */
static inline bool trace_sees(const struct trace *tr, const struct trace *of)
{
    while (tr && tr != of)
        tr = tr->outer;
    return tr != NULL;
}
struct binding *trace_binding(struct trace *tr, kl_tensor h); /* NULL: not used in it so far */
/* What the handle means now; NIL: *e, in which `what` names the operand, or the graph's own error. */
ref trace_node(struct trace *tr, struct entry *x, kl_tensor h, const char *what, struct err *e);
void trace_end_temps(struct thread *t, struct trace *tr);
void trace_drop(struct thread *t);                /* ends the trace, run or not */
/* All that the trace has recorded, and its outputs.  known: it is its log's.  NULL: *e, or it has no outputs. */
const struct graph *trace_graph(struct trace *tr, bool *known, struct err *e);
/* What runs the trace, with a reference.  NULL: *e, or it has no outputs. */
const struct exec *trace_program(struct trace *tr, struct err *e);
/* A copy of what is recorded, with the outputs that it would have if it ended now, or, if it has none, what nothing
 * reads. NULL: *e. */
struct graph *trace_so_far(struct trace *tr, struct err *e);
void trace_free(struct trace *tr);
void trace_error(struct thread *t);               /* the open trace has failed with the thread's last error */

/* ---- region.c: what a function of the user's does, recorded as a region ---- */
struct region_recorder {
    struct thread *t;
    const kl_site *site;
    const char *op;              /* in messages */
    void *ctx;
    /* the op's: of its operands or, without one, of its first result; {0}: not known yet */
    kl_device device;
    void *views;                 /* memory that the caller holds */
    const struct region *first;  /* while the op's second region is recorded; else NULL */
    /* no call of the trace around it stands for the op: there is nothing to compare with */
    bool unlogged;
    struct graph *empty;         /* to record the next region in, if it is unlogged; taken.  NULL: a new one */
    struct handle_list captured; /* tensors from outside that the regions so far use: inputs behind the parameters */
    struct handle_list made;     /* outside of traces: handles that only the regions need */
    bool silent;                 /* the next region may not look at values */
    kl_tensor entry;             /* the token that those of the regions so far follow, among `captured`, or kl_none */
};
struct view;
/* A region: inside of a trace a log of its own, which holds its graph and does not change; else the graph. */
struct region {
    struct graph *g;
    struct replay_log *body;
    ref token;                   /* its last one; NIL: it does not look at values */
};
/* Calls fn with a temporary for each parameter, and records what it does, as region number `which` of the op; *out is
 * the caller's.  false: reported. */
bool region_record(struct region_recorder *c, uint32_t which, const char *name, kl_region_fn *fn,
                   const struct view *parameter, uint32_t nin, uint32_t nout, struct region *out);
void region_recorder_free(struct region_recorder *c);
/* Ends the regions whose functions the thread has left by longjmp: those whose frames are below `stack`, where the
 * caller's frame is (stacks grow downwards). */
void regions_leave(struct thread *t, const void *stack);
/* ---- control.c ---- */
/* kl_custom_grad, with another name in messages. */
kl_status record_custom_grad(const kl_site *site, const char *op, kl_region_fn *fn, kl_region_fn *backward, void *ctx,
                             uint32_t nin, const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* A custom op with its attributes and the types of its results. */
struct custom_use {
    const struct custom_op *op;
    const struct dispatch_op *table; /* where its kernel stands; NULL: it is `op` */
    const void *attr;
    size_t nattr;
    const kl_type *type;
};
/* Records its node; `op` is its name in messages. */
kl_status record_custom(const kl_site *site, const char *op, const struct custom_use *use, uint32_t nin,
                        const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* The op appended to another graph, from its operands there, and its results behind it; NIL: g->err, it looks at
 * values, or out of memory. */
ref control_copy(const struct control *c, struct graph *g, ref *in, uint32_t n);
/* the kernel of region ops and, with `table` done, of custom ones */
kl_status record_region(struct control *c);
kl_status record_with(struct control *c, const struct custom_op *op); /* of a custom op by another one's function */
/* The same of a call by name, without attributes. */
kl_status record_custom_by(const kl_site *site, const char *name, const struct custom_op *op, uint32_t nin,
                           const kl_tensor *in, uint32_t nout, kl_tensor *out);
/* In a region, which op is not for: reported, and true. */
bool region_refuses(struct thread *t, const kl_site *site, const char *op);
/* Records an input or a slot outside of the open region, and takes it in. */
kl_tensor region_leaf(struct thread *t, struct call *c);
/* The token that the open trace's next look at a value on device d is to follow; in a region that has none yet, that of
 * what is around it.  kl_none: there is none, or reported. */
kl_tensor region_token(struct thread *t, const kl_site *site, kl_device d);

/* ---- effects.c: kl_print and kl_assert in regions ---- */
/* Where a function is recorded that may not look at values: reported, and true. */
bool effects_refuse(struct thread *t, const kl_site *site, const char *op);
/* The place among a region op's operands that the token is at, and the one where it belongs, which is not behind it. */
struct effects { uint32_t from, to; };
void effects_move_operand(const struct effects *f, ref *in);
/* Makes *region one that takes the token, its input number `from`, as number `to` (input.n: as a new input), and yields
 * its last token, or the one it takes where `token` is NIL, as result number `yield` (LEAF_NONE: does not).  false: out
 * of memory, *region as it was. */
bool effects_thread(struct graph **region, ref token, uint32_t from, uint32_t to, uint32_t yield);

/* ---- layers/wrapper.c: see layers/wrapper.h ---- */
struct kl_call;
kl_status layer_call(struct kl_call *c, const struct op_kernel *k);
const struct op_kernel *layer_kernel(unsigned layer); /* of all ops of ops.def; NULL: the layer has none */
bool wrapper_refuse(const struct entry *x, const char *what, struct err *e); /* false: it is no plain tensor */
void wrapper_release(const kl_site *site, struct entry *x); /* its parts, as kl_release does */
void wrapper_end(struct entry *x, enum death how); /* of any entry: its parts, outside of traces; needs the lock then */
enum { WRAPPER_PARTS = 4 };
bool wrapper_parts(kl_tensor h, kl_tensor part[WRAPPER_PARTS], uint32_t *n); /* false: it is no wrapper */
unsigned wrapper_grad_parts(kl_tensor h);         /* of a wrapper: bit i: part i has a gradient */
bool wrapper_same_kind(kl_tensor a, kl_tensor b); /* alike but for their parts */


/* ---- ops.c ---- */
/* rank and dims as a shape; false: reported. */
bool shape_of(struct thread *t, const kl_site *site, const char *op, int rank, const int64_t *dims, struct shape *s);
/* A possibly negative axis as a position below rank; false: reported. */
bool axis_of(struct thread *t, const kl_site *site, const char *op, const struct shape *s, int axis, uint32_t *at);
kl_tensor broadcast_to(const kl_site *site, const char *op, kl_tensor a, const struct shape *from,
                       const struct shape *to);
kl_tensor reshape_to(const kl_site *site, const char *op, kl_tensor a, const struct shape *s);
/* ---- indexing.c ---- */
/* within 0..last, as i64 */
kl_tensor held_index(const kl_site *site, kl_tensor index, const struct view *x, int64_t last);
/* ---- pieces.c ---- One node each. */
/* `count` elements of an axis, every step-th from start on */
kl_tensor slice_of(const kl_site *site, const char *op, kl_tensor a, uint32_t axis, int64_t start, int64_t count,
                   int64_t step);
/* `interior` new elements between those of an axis, low and high before and behind them: each is the scalar value */
kl_tensor pad_of(const kl_site *site, const char *op, kl_tensor a, kl_tensor value, uint32_t axis, int64_t low,
                 int64_t high, int64_t interior);
kl_tensor window_of(const kl_site *site, const char *op, kl_tensor a, uint32_t axis, int64_t size, int64_t stride,
                    int64_t dilation);
/* ---- create.c ---- */
/* A compile-time constant on x's device, in x's dtype. */
kl_tensor const_like(const kl_site *site, const struct view *x, double value);
/* nn/loss.c: parts / whole, by one division for each element of whole, with whose axes those of parts go. */
kl_tensor shares(const kl_site *site, const struct view *v, kl_tensor parts, kl_tensor whole);
/* ---- contract.c ---- */
/* The axes as a bit mask, all of them for NULL; false: reported. */
bool axis_mask(struct thread *t, const kl_site *site, const char *op, const struct shape *s, int naxes, const int *axes,
               uint32_t *mask);
/* The product of a and b over the axes in dims->dot; `op` is what errors call it. */
kl_tensor record_dot(const kl_site *site, const char *op, kl_tensor a, kl_tensor b, const union attr *dims);
/* ---- layers/autocast.c ---- */
bool autocast_is_on(const struct thread *t);      /* is a block of f16 or bf16 open? */
/* ---- nn/widen.c ---- */
/* An operand of the open composite in what the composite computes in (dtype_compute).  Its end rounds the result to the
 * operand's dtype. */
kl_tensor widen(struct thread *t, const kl_site *site, kl_tensor h);
kl_tensor widen_view(struct thread *t, const kl_site *site, kl_tensor h, struct view *v); /* and its view */
/* The same, but under autocast it stays: the policies of the ops that the composite records decide there. */
kl_tensor widen_by_policy(struct thread *t, const kl_site *site, kl_tensor h, struct view *v);
kl_tensor narrowed(struct thread *t, kl_tensor result); /* for compose_end */
/* Under autocast: reported, and true. */
bool autocast_refuses(struct thread *t, const kl_site *site, const char *op, const char *instead);
/* ---- layers/op_profile.c ---- */
void op_profile_free(struct op_profile *p);
/* ---- layers/tracer.c ---- */
void tracer_assigned(struct thread *t, kl_tensor state, kl_tensor value); /* the state means the value from here on */
/* ---- nn/activation.c ---- */
/* Starts composite `op` of a floating tensor, whose view it gives; NULL: reported, and op_failed() is the result. */
struct thread *floats_begin(const kl_site *site, const char *op, kl_tensor a, struct view *v);
/* The same of a composite that computes f16 and bf16 in f32: *a and *v are widened. */
struct thread *wide_floats_begin(const kl_site *site, const char *op, kl_tensor *a, struct view *v);
/* The same, but under autocast the policies of the ops that it records decide. */
struct thread *half_floats_begin(const kl_site *site, const char *op, kl_tensor *a, struct view *v);
/* compose_begin that reports; NULL: op_failed() is the result. */
struct thread *checked_begin(const kl_site *site, const char *op);
kl_tensor op_failed(void);                        /* poison for this thread's last error */
/* log(1 + e^-|a|), and where a is below 0. */
kl_tensor log_one_plus_exp(const kl_site *site, const struct view *v, kl_tensor a, kl_tensor *below);

#endif
