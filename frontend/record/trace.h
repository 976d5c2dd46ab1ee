/* Traces, the deferred graph, what earlier traces recorded, and handles as states of a program that runs. */
#ifndef KILN_TRACE_H
#define KILN_TRACE_H
#include "frontend/dispatch/call.h"

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
    const uint64_t *slot;        /* the numbers of the run, the symbols' values behind those of slots */
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
void trace_resume(struct thread *t);              /* where it is suspended */
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

#endif
