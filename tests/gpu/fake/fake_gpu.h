/* A library that tests load in place of CUDA's and HIP's drivers and compilers: two GPUs that are none.  Their memory
 * is the host's, their code what the C++ compiler makes of a kernel's text.  Work is done as late as a real driver may:
 * when somebody waits for it, or for an event behind it.  A context that was not made current, memory that is none and
 * a graph that was freed are errors, as they are for a driver.
 *
 * FAKE_GPU_INIT=N, FAKE_GPU_VERSION=N: what cuInit and hipInit, cuDriverGetVersion and hipRuntimeGetVersion give. */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_gpu {
    struct { uint64_t memory, pinned, streams, events, modules, graphs, execs, contexts, bytes; } live;
    struct { uint64_t launches, copies, uploads, downloads, peer_copies, captures, replays, waits, compiles, peers,
             sets, dynamic, ran, maps, mapped, records, contexts, all; } calls; /*
                                           * dynamic: launches with more shared memory than a block
                                           * always has; ran: launches that were executed;
                                           * maps: tensor maps that were made, mapped: arguments
                                           * that are one; records: of events; contexts: made or no
                                           * longer current; all: calls of any function */
    size_t max_bytes;            /* of a device: beyond them it is full */
    /* The call of this field of stream.def that follows so many others gives `result`; once, or for good where a device
     * is lost by it.  NULL: none. */
    const char *fail;
    uint64_t fail_after;
    int result;
    double (*milliseconds)(unsigned blocks, unsigned threads); /* that a launch takes; NULL: 0.25, as other work */
    const char *refused;          /* the compiler refuses sources with this text; NULL: none */
    int lost;                     /* what every call gives; 0: nothing is lost */
};
struct fake_gpu *fake_gpu(void);  /* exported: dlsym */

/* ---- for fake_nccl.c ---- */
/* Adds work of another library to a stream: `step` is called until it returns true.  It runs when the work before it is
 * done and somebody waits for it, or asks whether it has ended. */
void fake_gpu_call(void *stream, bool (*step)(void *ctx), void *ctx);
bool fake_gpu_memory(const void *p, size_t bytes); /* is it within a device's memory? */
bool fake_gpu_context(void);      /* is a context current? */

#endif
