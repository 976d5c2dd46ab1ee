/* Traces, the deferred graph, replay logs, and handles as states of a running program. */
#ifndef KILN_TRACE_H
#define KILN_TRACE_H
#include "frontend/dispatch/call.h"

/* ---- deferred.c: recording outside of traces; all functions need the lock ---- */
struct recording *deferred_recording(void);        /* has room for one op's nodes; NULL: out of memory */
const struct graph *deferred_graph(void);
bool deferred_room(uint32_t nodes);                /* makes room for so many more; false: out of memory */
ref deferred_node(struct entry *x, struct err *e); /* the current node of a value or lazy handle */
void deferred_added(ref r);                        /* called for a node that was just appended */
bool deferred_tracked(ref r);                      /* depends on a handle marked by kl_requires_grad */
void deferred_bind(struct entry *x, ref r);        /* x becomes lazy with that node */
void deferred_mark(struct entry *x);               /* x was marked by kl_requires_grad */
void deferred_unbind(struct entry *x);
/* The handles with a node in reach[] that kl_requires_grad marked; false: out of memory. */
bool deferred_marked(const bool *reach, struct handle_list *out);
/* Computes lazy handles in one program, with other handles that it passes.  Releases the lock while it runs.  Handles
 * that ended meanwhile are skipped. */
bool deferred_compute(const kl_tensor *h, uint32_t n, struct err *e);
/* all lazy handles of the device, one by one after a failure */
bool deferred_compute_device(int device, struct err *e);
/* Has deferred_compute_device found nothing to do, and no handle got a node since?  Needs no lock. */
bool deferred_is_settled(void);
void deferred_collect(void);                       /* frees nodes that no handle can reach */
void deferred_limit(void);                         /* limits the graph's size; called before an op is recorded */

/* ---- need.c: which nodes of the deferred graph a set of roots needs ---- */
/* A node's relation to the handles that kl_requires_grad marked, bits: it depends on the node of one; it is one. */
enum track { UNTRACKED = 0, DERIVED = 1, ORIGIN = 2 };
enum need_kind { NEED_VALUE = 1, NEED_HISTORY = 2 }; /* NEED_HISTORY: of a handle, down to marked ones */
/* Arrays by node. */
struct need {
    const struct graph *g;
    struct buffer *const *known; /* NULL: the value is not known */
    const uint8_t *track;        /* enum track */
    uint8_t *kind;               /* enum need_kind */
    uint32_t *until;             /* history is needed down to this variable of a grad node; UINT32_MAX: none is */
    uint32_t *newest;            /* the highest variable of any grad node that it is or depends on; 0: none */
};
/* false: out of memory.  Then need_free, too.  The caller sets kind[] of the roots. */
bool need_init(struct need *need, const struct graph *g, struct buffer *const *known, const uint8_t *track);
void need_free(struct need *need);
/* Propagates the needs of the roots to all nodes that they depend on; may be repeated with more roots. */
void need_spread(struct need *need);
/* Is a needed node read like an input? Those whose value is known are, except where a gradient needs the path through
 * them. */
bool need_ends_at(const struct need *need, ref r);

/* ---- replay_log.c: the recordings of the last traces of each name, with which the next is compared ---- */
struct replay_call {               /* a call that was recorded, or a state that was bound */
    struct node key;             /* as called: operands before broadcasting, the call's device + 1, no site */
    uint32_t target;             /* the shape given by the caller; REPLAY_NONE */
    ref result;                  /* for a region op its node; its results follow, key.attr.region.first of them */
    struct replay_more *more;      /* for a region op; else NULL */
};
/* The rest of a region op's key: bytes for its remaining data, and the recordings of its functions. */
struct replay_more {
    uint32_t refs;
    size_t size;
    struct replay_log *body[2];        /* NULL: there is none */
    unsigned char bytes[];
};
struct replay_extra {              /* the same for a call being recorded */
    const void *bytes;
    size_t size;
    struct replay_log *body[2];
};
#define REPLAY_NONE UINT32_MAX
struct replay_log {
    struct graph *g;
    uint32_t id;                 /* unique id of its content; 0: of a region */
    struct replay_call *call;      /* empty: nothing to compare with */
    uint32_t ncall, call_cap;
    bool partial;                /* the graph has nodes that are not among the calls, because memory ran out */
    uint32_t refs;               /* for a region's log */
    /* the program that ran it, which may be evicted: a weak reference; NULL: it has not run */
    const struct exec *exec;
    bool fuse;                   /* the option at that time */
    uint64_t schedules;          /* schedules_number at that time */
    struct replay_log *next;           /* the next less recently used log */
};
/* Starts the trace of this name on the log to compare with, or on an empty one; false: out of memory. */
bool replay_begin(struct trace *tr, const char *name);
/* The same for the trace of a region, number `which` of the op that is recorded in outer, which has a log. */
bool replay_begin_body(struct trace *tr, const struct trace *outer, uint32_t which, const char *name);
struct replay_log *replay_body_ref(struct replay_log *body);    /* NULL is fine, also below */
void replay_body_drop(struct replay_log *body);
/* Compares the trace's next call.  If it equals the log's, returns the log's call.  Otherwise returns NULL; the trace
 * is then on its own log, whose graph contains everything before and may be extended. *failed: out of memory.  The
 * trace of a region recorded outside of traces has no log. */
const struct replay_call *replay_next(struct trace *tr, const struct node *key, const kl_site *site,
                                  const struct shape *target, const struct replay_extra *extra, bool *failed);
/* Continues by recording on a copy of the equal beginning.  false: out of memory. */
bool replay_leave(struct trace *tr);
/* Records that the call made node r. */
void replay_add(struct trace *tr, const struct node *key, const struct shape *target, const struct replay_extra *extra,
              ref r);
/* true: all calls and outputs were equal. false: the trace now has its own log, or *failed. */
bool replay_complete(struct trace *tr, const struct output *out, uint32_t nout, bool *failed);
/* Records that x ran the log, with this option and the schedules of this number; the next trace may be compared with
 * it. */
void replay_end(struct trace *tr, const struct exec *x, bool fuse, uint64_t schedules);
void replay_free_all(struct trace *tr);

/* ---- trace.c ---- */
struct binding {                 /* an outside handle used in a trace; its position is the state's ordinal */
    kl_tensor h;
    struct entry *entry;         /* the handle's, which has it unless it was released */
    ref node;                    /* the node that it means now */
    bool assigned, released;
};

/* ---- launch.c: handles as the states of a program run ---- */
struct launch {
    const struct graph *g;       /* its outputs and names of states are used */
    const struct binding *bound; /* per state: its handle, and whether it is assigned */
    uint32_t nbound;
    uint32_t nkept;              /* number of outputs that handles get, which come first; other values are dropped */
    bool frozen;                 /* not of an open trace; for messages */
    const uint64_t *slot;        /* the numbers of the run, with the symbols' values after those of slots */
    bool *exclusive;             /* for exec_run, one for each state */
    struct buffer **state, **out;
    bool assigns;                /* some states are assigned */
};
/* Waits until every state has a value that is not being written, and marks those to be assigned as busy.  Needs the
 * lock, which is released while it waits. false: *e, and no state is acquired. */
bool launch_take(struct launch *l, struct err *e);
/* Rebinds states, and the other handles in kept[], by output, to the outputs.  Needs the lock, unless no state is
 * assigned and nobody else knows the handles in kept[]. */
void launch_commit(struct launch *l, struct entry *const *kept);
/* Ends the marks on assigned states; needs the lock if there are any. */
void launch_unmark(struct launch *l);
/* Drops the references to the other states' values; must be called without the lock. */
void launch_drop(struct launch *l);

/* Changes that the calls around a region's function made in the thread, and memory that they own, so that they can be
 * undone after a longjmp out of the function. */
struct region_frame {
    const void *stack;               /* address in region_record's frame */
    struct blocks blocks;
    unsigned plain;
    int kernels;
    uint64_t generator;
    kl_tensor *in, *captured;
    void *views;                     /* region_recorder.views */
    struct graph *g, *empty;         /* graph of the op's first region; region_recorder.empty */
    struct replay_log *body;
    struct handle_list made;         /* outside of traces: handles made for the region */
};

struct trace {
    struct recording r;              /* its graph is the log's, or its own if there is no log */
    /* the current log; all logs of this thread, most recently used first; for a region none */
    struct replay_log *log, *logs;
    bool replaying;                  /* the log is an earlier trace's, of which the first `at` calls were repeated */
    uint32_t at;
    const kl_site *site;             /* of the call that currently uses handles */
    const char *region;              /* while a region is recorded: the op's name; else NULL */
    /* the region must not print or check values: its role in the op, for messages; else NULL */
    const char *silent;
    struct trace *outer;             /* of a region: the enclosing trace, NULL outside of traces */
    struct trace *idle;              /* of a region or a trace that could not begin: the previous thread.trace */
    bool batched;                    /* of a region: kl_vmap's, for which no op is recorded */
    struct region_frame frame;       /* of a region */
    struct err err;              /* the first error */
    int64_t began;               /* span_begin */
    kl_tensor poison;            /* the handle that calls in a failed trace return */
    struct binding *bound;
    uint32_t nbound, bound_cap;
    uint32_t *index;             /* hash of entry index -> position in bound + 1 */
    uint32_t index_cap;
    uint32_t temps;              /* its temporaries, linked by next */
    unsigned refusals;           /* of a trace that could not begin: those that could not begin in its suspensions */
    unsigned floor_no_grad;      /* thread.floor.no_grad when it began */
    kl_tensor token;             /* of the last kl_print or kl_assert, or kl_none */
    int collectives;             /* recorded so far; of a region: see its outermost trace */
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
/* Is a temporary of `of` visible in tr: its own, or, in a region, one of an enclosing trace? */
static inline bool trace_can_read(const struct trace *tr, const struct trace *of)
{
    while (tr && tr != of)
        tr = tr->outer;
    return tr != NULL;
}
struct binding *trace_binding(struct trace *tr, kl_tensor h); /* NULL: not used in the trace so far */
/* The node that the handle means now; NIL: *e, in which `what` names the operand, or the graph's own error. */
ref trace_node(struct trace *tr, struct entry *x, kl_tensor h, const char *what, struct err *e);
/* *e for a temporary of a trace in which the thread does not record now. */
void temp_refuse(const struct entry *x, const char *what, struct err *e);
/* Is the open trace one that could not begin? */
bool trace_is_refused(const struct thread *t);
/* For a thread that had no memory for its struct when it called kl_trace_begin. */
void trace_begin_without_memory(struct thread *t);
void trace_end_temps(struct thread *t, struct trace *tr);
void trace_end_failed(struct thread *t);          /* ends the poison that the last failed trace has left */
void trace_drop(struct thread *t);                /* ends the trace, run or not */
/* The whole recording with its outputs. known: it is its log's.  NULL: *e, or it has no outputs. */
const struct graph *trace_graph(struct trace *tr, bool *known, struct err *e);
/* The program of the trace, with a reference.  frozen: of a step, whose numbers without a name never change.  NULL: *e,
 * or it has no outputs. */
const struct exec *trace_program(struct trace *tr, bool frozen, struct err *e);
/* A copy of the recording for a frozen step, in which equal numbers that have no name are one.  What layers compute of
 * such numbers alone is then computed once, and their kernels are the same.  NULL: there are none, or no memory. */
struct graph *step_merge_numbers(const struct trace *tr);
/* A copy of the recording, with the outputs that it would have if it ended now, or, if it has none, the values that
 * nothing reads.  NULL: *e. */
struct graph *trace_so_far(struct trace *tr, struct err *e);
void trace_free(struct trace *tr);
void trace_error(struct thread *t);               /* the open trace fails with the thread's last error */

#endif
