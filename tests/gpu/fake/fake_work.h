/* What the library in place of the drivers keeps (fake_gpu.c): pieces of work, streams, events, modules and graphs. */
#ifndef FAKE_WORK_H
#define FAKE_WORK_H
#include "runtime/device/stream.h"
#include "tests/gpu/gpu_block.h"

enum work_kind { WORK_COPY, WORK_UPLOAD, WORK_DOWNLOAD, WORK_LAUNCH, WORK_WAIT, WORK_CALL };
/* A kernel, as fake_compiler.c describes it; threads: its launch bounds. */
struct caller {
    const char *name;
    void (*call)(void **parameter);
    unsigned (*count)(void), (*bytes)(unsigned i), threads;
};
struct gpu_function_of { struct gpu_module_of *module; const struct caller *is; unsigned shared; /* allowed */ };
enum { FUNCTIONS = 16 };
/* One that was unloaded stays in memory, so that its functions are still known for such. */
struct gpu_module_of {
    void *so;                     /* NULL: it was unloaded */
    int device;
    struct gpu_module_code code;
    struct gpu_function_of function[FUNCTIONS];
    struct gpu_module_of *next;   /* of those that were unloaded */
};
struct work {
    enum work_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    gpu_function function;
    unsigned blocks, threads, n;
    gpu_stream other;             /* WAIT: until that stream has done `bytes` pieces of work */
    bool (*step)(void *ctx);      /* CALL */
    void *ctx;
    uint64_t parameter[];
};
struct list { struct work **v; uint32_t n, cap; };
struct gpu_stream_of {
    struct list list;
    uint64_t done, given;         /* pieces of work, in all */
    double ms;                    /* that all of it takes */
    uint32_t next;                /* in list */
    uint32_t calls;               /* pieces of work of other libraries that are not done */
    int device;
};
struct gpu_event_of { gpu_stream stream; uint64_t at; double ms; bool timed; int device; };
struct gpu_node_of { uint32_t number; gpu_node next; };
struct gpu_graph_of { struct list list; gpu_node node; };
struct gpu_exec_of { struct list list; };

/* ---- fake_work.c ---- */
void list_add(struct list *l, struct work *w);  /* which is the list's from then on */
struct work *work_copy(const struct work *w);
void list_free(struct list *l);                 /* with its work */
enum live_kind { LIVE_STREAM, LIVE_EVENT, LIVE_MODULE, LIVE_GRAPH, LIVE_EXEC, LIVE_PINNED };
void live_add(enum live_kind kind, const void *handle);
bool live_has(enum live_kind kind, const void *handle);      /* was it given out and not taken back? */
bool live_remove(enum live_kind kind, const void *handle);   /* false: it was not */

#endif
