/* Warp specialization: a block of threads as a pipeline from global memory to matrix units (NVIDIA's sm_90a).
 *
 * One warp is the producer: one thread of it loads tiles from global memory to a ring of stages in shared memory, by
 * TMA (bulk tensor copies of panels).  The other warps are consumers, which multiply the tiles.  They wait for each
 * other by two barriers (PTX's mbarrier) for each stage of a ring:
 *
 *   full       its phase n is complete when the loads of the stage's n-th step are
 *   empty      its phase n is complete when all consumers have released the stage's n-th step
 *
 * Step i is the (i / stages)-th one of stage i % stages.  Of step i:
 *
 *   the producer                                consumers
 *   acquire  waits: empty, i / stages phases    wait     full, i / stages + 1 phases
 *            arrives: full, with the loads      multiply the stage
 *   load     the tiles of the step              release  arrive: empty
 *
 * So the loads of later steps are in flight while a step is multiplied, and no barrier is one of all threads.  Phases
 * are counted here; the hardware has their parity alone (codegen/gpu/source_panels.c).
 *
 * Ping-pong: two groups of consumers begin their products alternately, so that one computes while the products of the
 * other one are multiplied. */
#ifndef KILN_LOWER_PIPELINE_H
#define KILN_LOWER_PIPELINE_H
#include "passes/lower/lower.h"

struct pipeline {
    struct kernel *k;
    int64_t stages;                 /* steps that the ring in shared memory has room for */
    int64_t consumers;              /* threads of the consumer warps; the producer warp follows them */
    int64_t subgroup;               /* threads of a group of warps that has one role and multiplies one tile */
    bool frugal;                    /* the producer needs few registers, and leaves more to the consumers */
    int64_t producer;               /* threads of the producer: as many, or one warp */
    int64_t blocks;                 /* that a processor runs at once */
};

/* The barriers of a ring: lbufs with one barrier for each stage. */
struct pipeline_ring { uint32_t full, empty; };

/* ---- barriers ---- */
/* lbuf of `count` barriers, of which a phase is complete after so many arrivals. */
uint32_t pipeline_barriers(const struct pipeline *p, int64_t count, int64_t arrivals);
struct pipeline_ring pipeline_ring_make(const struct pipeline *p);
/* Arrives at barrier `number` of an lbuf; its phase is complete when the `loads` are, too, which follow directly. */
void pipeline_arrive(const struct pipeline *p, uint32_t barriers, val number, int64_t loads);
/* Waits until so many phases of barrier `number` of an lbuf are complete. */
void pipeline_await(const struct pipeline *p, uint32_t barriers, val number, val phases);
/* A barrier of the first `threads` threads of the block; 0: of all of them. */
void pipeline_threads_barrier(struct kernel *k, int64_t threads);

/* ---- roles; each is an `if`, which k_end ends ---- */
val pipeline_begin_producer(const struct pipeline *p, val subgroup_number);
/* The one thread of the producer warp that loads; t: the number of the thread in its block. */
val pipeline_begin_producer_thread(const struct pipeline *p, val t);
val pipeline_begin_consumers(const struct pipeline *p, val subgroup_number);

/* ---- stages ---- */
val pipeline_stage(const struct pipeline *p, val step);
val pipeline_stage_before(const struct pipeline *p, val step);          /* the stage of step - 1 */

/* ---- the producer ---- */
/* A tile of a matrix in global memory that is loaded in each step. */
struct pipeline_tile {
    uint32_t view;                  /* lbuf, BUF_VIEW: the matrix as a tensor map */
    uint32_t buf;                   /* lbuf in shared memory: the tile's panels of all stages */
    int64_t columns, elements;      /* columns of the tile, a multiple of PANEL_COLUMNS; elements of a stage */
};
/* The tensor map of the buffer from which `element` is loaded, with the first element, sizes and distances of `view`.
 * Without a view, or if `element` is not loaded, the kernel is marked as unsupported.  The load of `element` itself
 * stays unused, and kernel_clean removes it. */
uint32_t pipeline_tensor_map(struct kernel *k, val element, unsigned dtype, const struct lbuf *view);
int64_t pipeline_loads(const struct pipeline_tile *tile);               /* TMA loads that load a tile */
/* Waits until the stage of a step is empty, and begins its next phase, which so many loads complete. */
void pipeline_acquire(const struct pipeline *p, const struct pipeline_ring *ring, val step, int64_t loads);
/* Loads panel number i of a tile to a stage, from a column and row of matrix number `matrix` on. */
void pipeline_load_panel(const struct pipeline *p, const struct pipeline_tile *tile, val stage, int64_t i, val column,
                         val row, val matrix);
/* Loads a tile to a stage, from a column and row of matrix number `matrix` on. */
void pipeline_load(const struct pipeline *p, const struct pipeline_tile *tile, val stage, val column, val row,
                   val matrix);

/* ---- consumers ---- */
void pipeline_wait_full(const struct pipeline *p, const struct pipeline_ring *ring, val step);
void pipeline_wait_full_before(const struct pipeline *p, const struct pipeline_ring *ring, val step); /* of step - 1 */
void pipeline_release(const struct pipeline *p, const struct pipeline_ring *ring, val stage);
/* A batch of asynchronous products ends; waits for all batches but the last `left`. */
void pipeline_commit_products(struct kernel *k);
void pipeline_wait_products(struct kernel *k, uint64_t left);

/* ---- ping-pong ---- */
enum { PIPELINE_PINGPONG = 2 };     /* groups of consumers that begin products alternately */
/* lbuf: barrier g says how often the other group than g has begun its products. */
uint32_t pipeline_pingpong_make(const struct pipeline *p);
/* Before products of step i of group 0 or 1: those of the other group that are before them have begun. */
void pipeline_pingpong_wait(const struct pipeline *p, uint32_t pingpong, val group, val i);
void pipeline_pingpong_pass(const struct pipeline *p, uint32_t pingpong, val group); /* the products have begun */

#endif
