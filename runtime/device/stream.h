/* CUDA's and HIP's drivers: two libraries with almost the same functions (stream.def).  What they share is written
 * once, for a device with a stream; cuda.c and hip.c have the rest.
 *
 * What a device is given is noted, and goes to its stream when all of a step is given or a thread waits.  Kernels that
 * are noted a second time, as those of a step that runs again, become a graph, which the stream is then given in one
 * call.  What differs from the last time in their arguments, addresses of fresh inputs say, is set before. */
#ifndef KILN_STREAM_H
#define KILN_STREAM_H
#include "ir/ir.h"
#include "driver.h"

typedef int gpu_result;           /* 0: success; other numbers mean the same in both */
typedef int gpu_attribute;
typedef int gpu_function_attribute;
typedef void *gpu_address;
typedef const void *gpu_source;
typedef struct gpu_stream_of *gpu_stream;
typedef struct gpu_event_of *gpu_event;
typedef struct gpu_module_of *gpu_module;
typedef struct gpu_function_of *gpu_function;
typedef struct gpu_graph_of *gpu_graph;
typedef struct gpu_exec_of *gpu_exec;
typedef struct gpu_node_of *gpu_node;
typedef const struct cuda_node *gpu_cuda_node;
typedef const struct hip_node *gpu_hip_node;
typedef struct gpu_context_of *gpu_context;

enum { GPU_OUT_OF_MEMORY = 2, GPU_STUB = 34, GPU_NO_DEVICE = 100, GPU_INVALID_DEVICE = 101, GPU_ALREADY = 704 };
enum { GPU_NON_BLOCKING = 1, GPU_NO_TIMING = 2, GPU_PORTABLE = 1 };

/* A kernel of a graph, as either library is told: CUDA_KERNEL_NODE_PARAMS and hipKernelNodeParams. */
struct cuda_node { gpu_function function; unsigned grid[3], block[3], shared; void **parameter, **extra; };
struct hip_node {
    unsigned block[3];
    void **extra;
    gpu_function function;
    unsigned grid[3];
    void **parameter;
    unsigned shared;
};
struct graph_kernel { gpu_function function; unsigned blocks, threads, shared; void **parameter; };

struct stream_library {
    const char *what;             /* "CUDA" */
    const struct driver *driver;
#define BOTH(field, cuda, hip, parameters) gpu_result (*field) parameters;
#include "stream.def"
    const char *(*error)(gpu_result r);
    /* The device's context becomes this thread's, and back to what it was; of the host's own the program sees
     * nothing. */
    gpu_result (*enter)(struct driver_device *d);
    void (*leave)(struct driver_device *d);
    /* The next kernel of a graph, behind `before`, or the first; and other arguments for it in what was made of it. */
    gpu_result (*node_add)(gpu_node *n, gpu_graph g, const gpu_node *before, const struct graph_kernel *k);
    gpu_result (*node_set)(gpu_exec x, gpu_node n, const struct graph_kernel *k);
    /* Lets launches of f give a block so many bytes of shared memory.  NULL: they may give what they like. */
    gpu_result (*allow_shared)(gpu_function f, uint32_t bytes);
    /* entered: makes d copy from it directly */
    gpu_result (*reach_peer)(struct driver_device *d, struct driver_device *peer);
    gpu_result (*copy_from)(struct driver_device *d, void *to, struct driver_device *peer, const void *from,
                            size_t bytes);
};

struct captured {                 /* kernels one behind the other, and their graph */
    struct hash128 key;
    uint64_t *word; uint32_t n;   /* as they were noted last */
    gpu_graph graph;
    gpu_node *node; uint32_t nnode;
    gpu_exec exec;
    uint64_t used;                /* when last */
    bool running;                 /* nothing has waited for it since */
};
struct pinned { char *p; size_t bytes, used; };

/* Pinned memory of a list: in use until the stream is behind `done`.  Lists take turns, so that one can be noted while
 * others run, and a step that runs again finds the same addresses after few turns. */
struct turn { struct pinned *chunk; uint32_t nchunk, cap; gpu_event done; bool busy; };

enum { CAPTURED = 16, SEEN = 64, HALVES = 2, TURNS = 4 };
struct driver_device {
    const struct stream_library *l;
    char name[16];
    int index;
    gpu_context context;          /* CUDA's */
    int outer;                    /* HIP's: the device that was the thread's before enter */
    gpu_stream stream;
    gpu_event here;               /* for who must wait for what is on the stream */
    bool lost, working;           /* the stream has work that has not been waited for */
    bool no_graphs;               /* one could not be made */
    uint32_t reached;             /* peers that were made to copy directly, by bit */
    uint64_t *word; uint32_t nword, word_cap, ncommand;      /* what was noted */
    struct turn turn[TURNS]; unsigned now;                   /* the list's that is being noted */
    struct { char *p; gpu_event done; bool busy; } half[HALVES]; /* large copies go through them by turns */
    unsigned next_half;
    struct captured captured[CAPTURED];
    /* keys of kernels that were given one by one, the latest first */
    struct hash128 seen[SEEN]; uint32_t nseen;
    uint64_t clock;
};

struct driver_kernel { gpu_module module; gpu_function function; uint32_t threads, nbuf, shared; };

/* ---- stream.c ---- */
/* Opens the library, of names that NULL ends or of `path`, and finds its functions: name[i] to *fn[i].  false: *e. */
bool stream_library_open(const char *path, const char *const *library, const char *const *name, void *const *fn,
                         unsigned n,
                         const char *hint, struct err *e);
/* false: the call's error is in *e, and a device that is lost with it is marked. */
bool stream_ok(struct driver_device *d, gpu_result r, const char *call, struct err *e);
/* A device of the library: a stream and what belongs to it.  first: gives it its context and says what it is. */
struct driver_device *stream_open(const struct stream_library *l, unsigned index, struct caps *caps,
                                  bool (*first)(struct driver_device *d, struct caps *caps, struct err *e),
                                  void (*last)(struct driver_device *d), struct err *e);
bool stream_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e);
void stream_release(struct driver_device *d, void *address);
struct driver_kernel *stream_load(struct driver_device *d, const struct gpu_code *code, struct err *e);
void stream_unload(struct driver_device *d, struct driver_kernel *k);
void *stream_handle(struct driver_device *d);

/* ---- stream_batch.c ---- */
bool stream_launch(struct driver_device *d, const struct launch *l, struct err *e);
bool stream_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e);
bool stream_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e);
bool stream_download(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e);
bool stream_copy_peer(struct driver_device *to_device, void *to, struct driver_device *from_device, const void *from,
                      size_t bytes,
                      struct err *e);
bool stream_finish(struct driver_device *d, struct err *e);
void stream_drop(struct driver_device *d);
bool stream_submit(struct driver_device *d, struct err *e);

/* ---- stream_graph.c ---- */
/* So many kernels from word on, of n words, through a graph if they have one or get one.  *done: they are on the
 * stream. */
bool stream_replay(struct driver_device *d, const uint64_t *word, uint32_t n, uint32_t kernels, bool *done,
                   struct err *e);
void stream_forget_graphs(struct driver_device *d);           /* entered */
void stream_graphs_ended(struct driver_device *d);            /* the stream has nothing to do */

/* ---- the words of a kernel: KERNEL | parameters << 8, function, blocks | threads << 32 | shared << THREAD_BITS + 32,
 * a word each; the last three parameters are the slots' address, begin and end ---- */
enum { THREAD_BITS = 11 };        /* up to 1024 threads, and bytes of shared memory behind them */
static inline unsigned kernel_threads(const uint64_t *w) { return w[2] >> 32 & ((1u << THREAD_BITS) - 1); }
static inline unsigned kernel_shared(const uint64_t *w) { return (unsigned)(w[2] >> 32 >> THREAD_BITS); }
static inline uint32_t kernel_parameters(const uint64_t *w) { return (uint32_t)(*w >> 8); }
static inline uint32_t kernel_words(const uint64_t *w) { return 3 + kernel_parameters(w); }
enum { MOST_PARAMETERS = 256 };

#define STREAM_DRIVER .alloc = stream_alloc, .release = stream_release, .load = stream_load, .unload = stream_unload, \
                      .launch = stream_launch, .copy = stream_copy, .peer = stream_copy_peer, .upload = stream_upload, \
                      .download = stream_download, .submit = stream_submit, .finish = stream_finish, \
                      .drop = stream_drop, .stream = stream_handle

#endif
