/* Internal header of the kernel interpreter. */
#ifndef KILN_KERNEL_INTERP_H
#define KILN_KERNEL_INTERP_H
#include "loop.h"

/* One asynchronous copy from global to shared memory that is not complete. */
struct async_copy { val v; int64_t to, from; bool zero; uint64_t batch; };
/* A factor of an asynchronous product that may still be read: load v, from this index on.  With phases it is kept
 * until the thread arrives at a barrier after the wait. */
struct async_factor { val v; int64_t at; uint64_t batch; bool complete; };
/* Copy v of a panel, which is complete with the phase of a barrier. */
struct panel_copy { val v; int64_t to, from[VIEW_DIMS]; uint32_t barrier; };
/* A barrier of a buffer of phases: phases that are complete; arrivals and expected copies of the current one. */
struct barrier {
    uint64_t done;
    uint32_t arrivals, arrived, expected;
    uint32_t *arrived_clock, *done_clock; /* the threads' clocks of all arrivals, and of those of complete phases */
};

/* Who has accessed an element of shared memory in this iteration of a grid loop, and in which interval between the
 * thread's arrivals: the last store, and loads since.  More than MAX_LOADERS: too many to be told apart. */
enum { MAX_LOADERS = 4 };
struct access_order {
    int64_t iteration;
    uint32_t storer, store_clock, loads, loader[MAX_LOADERS], load_clock[MAX_LOADERS];
};

/* State of one thread: each thread of a block has one; everything outside of blocks uses the first. */
struct thread {
    val pc;
    uint64_t *v;                  /* the words of all values, at machine.at; those of tiles only if it leads */
    char *private;                /* this thread's register buffers */
    int width;                    /* lanes of the open vector loop, 1 outside */
    /* threads with the same number count as one in race checks: its subgroup for tiles, else itself */
    int32_t subgroup;
    int32_t self;
    bool leads;                   /* it computes the tiles of its subgroup */
    uint64_t digest;              /* of the instructions on tiles that it has run, and of their other operands */
    struct async_copy *flight; uint32_t nflight, flight_cap;
    uint64_t batch;               /* number of the batch of copies being started */
    struct async_factor *factor; uint32_t nfactor, factor_cap;
    uint64_t products;            /* number of the batch of products being started, from 1 on */
    uint64_t *unfinished;         /* per value: the batch of products that it is a result of; 0: it is complete */
    bool waits;                   /* it is at a BARRIER */
    uint64_t *awaited;            /* per barrier: phases that it has waited for */
    uint32_t expecting;          /* the barrier of its last ARRIVE */
    uint32_t *clock;              /* per thread of the block: of its intervals between arrivals, from 1 on, the last one
                                     that is over for this thread; of itself the current one */
};

/* The last accesses of one kind to an element.  iteration and interval count up over a whole run; 0: none.  For loads
 * and updates, iteration is the first one of this phase: iterations run in order, so all accesses are by the last
 * iteration only if the first one is. */
struct last_access { int64_t iteration, interval; int32_t by; };
enum { IN_FLIGHT = -1, BY_SEVERAL = -2 }; /* by, if no thread */
/* multiplying: factors of unfinished products that have the element, in that iteration of a grid loop. */
struct mark {
    struct last_access stored, updated, loaded;
    int64_t iteration;
    uint32_t multiplying;
    /* Of a panel that L_COPY_PANEL fills: threads whose products are complete, but which have not arrived since; the
     * phase that the last of the others arrived in, and the phase that the copy was complete with; 0: none. */
    uint32_t unreleased, release_barrier, copy_barrier;
    uint64_t release_phase, copy_phase;
};

struct machine {
    struct mem_arena mem;   /* of the arrays below but those that grow */
    const struct kernel *k;
    char **buf;                   /* per lbuf; NULL for register buffers, which are in thread.private */
    size_t *private_at, private_bytes; /* per register buffer: offset in thread.private */
    char *shared;                 /* all shared buffers */
    const uint64_t *slot;
    size_t *at, words, scalars;   /* per value: its first word in thread.v; of all; of those before the first tile */
    uint64_t *next;               /* room for the next values of all carries */
    uint64_t *factor;             /* and for the factors of a product */
    val *stop;                    /* per LOOP or IF: its END */
    val *head;                    /* per END: its LOOP or IF */
    struct mark **mark;           /* per output, workspace and shared buffer, per element */
    /* counts iterations of parallel and grid loops; the first one of this phase */
    int64_t iteration, phase_iteration;
    int64_t interval;             /* counts the intervals between barriers */
    bool moved;                   /* a thread of the block has gone on since all were last run */
    int64_t lo, hi;               /* the iterations of this phase to run */
    uint32_t *barrier_at, nbarrier; /* per buffer of phases: its first barrier; of all buffers */
    struct barrier *barrier;
    bool *by_phases;              /* per shared buffer: L_COPY_PANEL fills it */
    struct access_order **order;  /* per other shared buffer of a kernel with barriers with phases, per element */
    struct panel_copy *panel; uint32_t npanel, panel_cap; /* copies that are not complete */
    struct thread main;
    struct thread *thread;        /* of a block */
    uint32_t nthread;
    struct err *e;
};

/* The shape in which an instruction computes: rows and columns of a tile, or one row of lanes. */
struct extent { int rows, cols; };

/* ---- kernel_interp_value.c ---- */
struct extent value_extent(const struct thread *t, const struct linst *i);
/* Element (r, c) of a value in that shape; a uniform value, a single row or a single column is broadcast. */
uint64_t value_get(const struct machine *m, const struct thread *t, val v, int r, int c);
bool value_run(struct machine *m, struct thread *t, val v); /* an instruction that accesses no memory */
void value_copy(struct machine *m, struct thread *t, val to, val from);
/* ---- kernel_interp_memory.c ---- */
bool memory_load(struct machine *m, struct thread *t, val v);
bool memory_store(struct machine *m, struct thread *t, val v);
bool memory_atomic(struct machine *m, struct thread *t, val v);
/* Words of blocks in order. */
bool memory_begin_in_order(struct machine *m, val loop);
bool memory_publish(struct machine *m, struct thread *t, val v);
bool memory_receive(struct machine *m, struct thread *t, val v);
bool memory_copy(struct machine *m, struct thread *t, val v);
/* Marks the elements of an asynchronous product's factors. */
bool memory_begin_product(struct machine *m, struct thread *t, val v);
void memory_mark_factor(struct machine *m, const struct async_factor *f, int multiplying, int unreleased,
                        uint32_t barrier, uint64_t phase);
/* Completes all batches except the last `last`. */
void memory_complete_products(struct machine *m, struct thread *t, uint64_t last);
bool memory_complete_copies(struct machine *m, struct thread *t, uint64_t last);
/* ---- kernel_interp_phase.c ---- */
bool phase_arrive(struct machine *m, struct thread *t, val v);
/* *ready: the thread need not wait. */
bool phase_await(struct machine *m, struct thread *t, val v, bool *ready);
bool phase_copy(struct machine *m, struct thread *t, val v);
void phase_begin_block(struct machine *m);
bool phase_end_block(struct machine *m);        /* false: something is not complete */
/* Do phases order an access to an element after all accesses that it must not race with?  Records it. */
bool phase_order_load(const struct machine *m, const struct thread *t, uint32_t buf, int64_t at);
bool phase_order_store(const struct machine *m, const struct thread *t, uint32_t buf, int64_t at);
/* Why a thread may not load an element of a panel, or NULL. */
const char *phase_load_flaw(const struct thread *t, const struct mark *k);

#endif
