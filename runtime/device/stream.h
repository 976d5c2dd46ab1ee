/* The drivers of CUDA and HIP, whose libraries have almost the same functions (stream.def).  The common code works on a
 * device with a stream; cuda.c and hip.c have what differs.
 *
 * Commands are collected in a list, which goes to the stream at the end of a step or when a thread waits.  A sequence
 * of kernels that occurs a second time, because a step runs again, becomes a CUDA or HIP graph, which is launched by
 * one call.  Arguments that differ from the last launch, such as addresses of new inputs, are set before it.  Large
 * uploads go to a second stream and run concurrently with commands that do not access their memory. */
#ifndef KILN_STREAM_H
#define KILN_STREAM_H
#include "ir/ir.h"
#include "driver.h"

typedef int gpu_result;           /* 0: success; other numbers have the same meaning in both */
typedef int gpu_attribute;
typedef int gpu_function_attribute;
typedef int gpu_map_dtype, gpu_map_interleave, gpu_map_swizzle, gpu_map_promotion, gpu_map_fill;
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

enum { GPU_NOT_READY = 600 };
enum { GPU_OUT_OF_MEMORY = 2, GPU_STUB = 34, GPU_NO_DEVICE = 100, GPU_INVALID_DEVICE = 101, GPU_ALREADY = 704 };
enum { GPU_NON_BLOCKING = 1, GPU_NO_TIMING = 2, GPU_PORTABLE = 1 };

/* A kernel of a graph, in the layouts of CUDA_KERNEL_NODE_PARAMS and hipKernelNodeParams. */
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

/* A CUtensorMap: an argument of a kernel by value. */
enum { MAP_WORDS = 16 };
typedef struct gpu_map { _Alignas(64) uint64_t word[MAP_WORDS]; } gpu_map;
_Static_assert(sizeof(gpu_map) == 128, "CUtensorMap");

struct stream_library {
    const char *what;             /* "CUDA" or "HIP" */
    const struct driver *driver;
#define BOTH(field, cuda, hip, parameters) gpu_result (*field) parameters;
#include "stream.def"
    const char *(*error)(gpu_result r);
    /* Makes the device's context current in this thread; leave restores the previous one. */
    gpu_result (*enter)(struct driver_device *d);
    void (*leave)(struct driver_device *d);
    /* Adds a kernel to a graph, after `before` if that is not NULL; sets other arguments in the instantiated graph. */
    gpu_result (*node_add)(gpu_node *n, gpu_graph g, const gpu_node *before, const struct graph_kernel *k);
    gpu_result (*node_set)(gpu_exec x, gpu_node n, const struct graph_kernel *k);
    /* Sets the limit of dynamic shared memory of a block of f.  NULL: the driver needs no such limit. */
    gpu_result (*allow_shared)(gpu_function f, uint32_t bytes);
    /* Makes the map of a kernel's view of the buffer at this address.  NULL: the driver has no maps. */
    gpu_result (*map)(gpu_map *map, const struct gpu_view *view, void *address);
    /* Makes direct copies from the peer to d possible; between enter and leave. */
    gpu_result (*reach_peer)(struct driver_device *d, struct driver_device *peer);
    gpu_result (*copy_from)(struct driver_device *d, void *to, struct driver_device *peer, const void *from,
                            size_t bytes);
};

struct captured {                 /* a sequence of kernels and its graph */
    struct hash128 key;
    uint64_t *word; uint32_t n;   /* the kernels with the arguments of the last launch */
    gpu_graph graph;
    gpu_node *node; uint32_t nnode;
    gpu_exec exec;
    uint64_t used;                /* driver_device.clock at the last launch */
    uint64_t number;              /* driver_device.clock when its arguments were last set; for stream_repeat */
    bool running;                 /* it was launched since the last wait for the stream */
};
struct pinned { char *p; size_t bytes, used; };

/* Pinned memory of a list of commands; in use until the event `done`, which is that of the list's flight.  Lists use
 * the turns cyclically, so that one can be collected while others run.  There are fewer turns than flights, so the
 * event is not recorded again before the turn comes back, unless other libraries or devices add many commands. */
struct turn { struct pinned *chunk; uint32_t nchunk, cap; gpu_event done; bool busy; };

/* Memory that commands may touch: these ranges of addresses, or all. */
struct ranges { struct range { uint64_t begin, end; } *v; uint32_t n, cap; bool all; };

/* A list of commands on the stream.  An upload on the other stream waits for the lists that may access its memory. */
struct flight { struct ranges touched; gpu_event done; bool busy; };

enum { CAPTURED = 16, SEEN = 64, HALVES = 2, TURNS = 4, FLIGHTS = 8 };
struct driver_device {
    const struct stream_library *l;
    char name[16];
    int index;
    gpu_context context;          /* CUDA only */
    int outer;                    /* HIP only: the thread's device before enter */
    gpu_stream stream, copies;    /* large uploads have their own */
    gpu_event here;               /* the commands on the stream, for other devices to wait for, and for stream_ended */
    gpu_event uploaded;           /* the uploads, for the stream to wait for */
    bool uploading;               /* there are uploads that the stream does not wait for yet */
    gpu_event timer[2];           /* begin and end of a measured time */
    uint32_t processors;
    struct stream_module *modules; /* all that are loaded */
    struct ranges touched;        /* by the collected commands */
    struct flight flight[FLIGHTS]; unsigned latest; /* a ring of the last lists */
    bool lost;
    bool working;                 /* the stream has commands since the last wait */
    bool no_graphs;               /* the driver failed to make a graph */
    uint32_t reached;             /* peers with direct copies, by bit */
    uint64_t *word; uint32_t nword, word_cap, ncommand;      /* the collected commands */
    struct turn turn[TURNS]; unsigned now;                   /* pinned memory of the collected commands */
    struct { char *p; gpu_event done; bool busy; } half[HALVES]; /* pinned memory for parts of large copies */
    unsigned next_half;
    struct captured captured[CAPTURED];
    /* keys of the sequences that were launched kernel by kernel, the latest first */
    struct hash128 seen[SEEN]; uint32_t nseen;
    uint64_t clock;
    uint64_t list; uint32_t issued; /* stream_list: of the last list; lists since it was called */
};

/* The maps of a view for the last addresses of its buffer. */
enum { KEPT_MAPS = 4 };
struct view_maps {
    struct gpu_view view;
    void *address[KEPT_MAPS];
    uint64_t map[KEPT_MAPS][MAP_WORDS];
    unsigned next;
};
/* A module and the number of its kernels that are loaded. */
struct stream_module {
    gpu_module module;
    struct hash128 hash;          /* of a module of several kernels; else 0 */
    uint32_t users;
    struct stream_module *next;
};
struct driver_kernel {
    struct stream_module *module;
    gpu_function function;
    uint32_t threads, nbuf, shared;
    bool table;                   /* its buffers are one parameter, an array of addresses */
    struct view_maps *view; uint32_t nview;
};

/* ---- stream.c ---- */
/* Opens the library: `path`, or the first of `names`, which ends with NULL.  Finds its functions: name[i] becomes
 * *fn[i].  The first `least` must exist; others become NULL if they do not.  Returns false with the reason in *e. */
bool stream_library_open(const char *path, const char *const *library, const char *const *name, void *const *fn,
                         unsigned min, unsigned n, const char *hint, struct err *e);
/* Returns false if a call failed; *e has its error, and the device is marked as lost if the error means this. */
bool stream_ok(struct driver_device *d, gpu_result r, const char *call, struct err *e);
/* Opens a device.  `first` makes its context and describes it in *caps; `last` is the reverse of `first`. */
struct driver_device *stream_open(const struct stream_library *l, unsigned index, struct caps *caps,
                                  bool (*first)(struct driver_device *d, struct caps *caps, struct err *e),
                                  void (*last)(struct driver_device *d), struct err *e);
bool stream_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e);
void stream_release(struct driver_device *d, void *address);
struct driver_kernel *stream_load(struct driver_device *d, const struct gpu_code *code, struct err *e);
void stream_unload(struct driver_device *d, struct driver_kernel *k);
uint32_t stream_resident(struct driver_device *d, const struct driver_kernel *k);
void *stream_handle(struct driver_device *d);

/* ---- stream_flight.c: the memory that commands in flight may access.  Functions with *e are called between enter and
 * leave. ---- */
void stream_touch(struct driver_device *d, const void *address, size_t bytes); /* memory of a collected command */
void stream_touch_all(struct driver_device *d);
bool stream_depart(struct driver_device *d, struct err *e);  /* the collected commands have been issued to the stream */
/* Makes the stream `copies` wait for the commands that may access the memory. */
bool stream_clear(struct driver_device *d, const void *to, size_t bytes, struct err *e);
bool stream_join(struct driver_device *d, struct err *e);    /* makes the stream wait for uploads */
void stream_landed(struct driver_device *d);                 /* all commands of the stream have finished */
void stream_landed_until(struct driver_device *d, gpu_event done); /* the lists up to the one with this event have */
bool stream_in_use(struct driver_device *d, const void *address, size_t bytes);
void stream_flights_free(struct driver_device *d);

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
/* The number of the graph that the only list of commands since the last call consists of, apart from copies from the
 * host before it; else 0. */
uint64_t stream_list(struct driver_device *d);
bool stream_repeat(struct driver_device *d, uint64_t list, const struct memory_range *v, uint32_t n, bool *done,
                   struct err *e);
bool stream_enqueue(struct driver_device *d, void (*work)(void *ctx, void *stream), void *ctx, struct err *e);
bool stream_ended(struct driver_device *d, bool *ended, struct err *e);
bool stream_time_begin(struct driver_device *d, struct err *e);
bool stream_time_end(struct driver_device *d, double *seconds, struct err *e);

/* ---- stream_graph.c ---- */
/* Launches a sequence of kernels, of n words from `word` on, as a graph, if there is one or one is made now.  *number:
 * the graph's, which it has until other arguments are set; 0: it was not launched. */
bool stream_replay(struct driver_device *d, const uint64_t *word, uint32_t n, uint32_t kernels, uint64_t *number,
                   struct err *e);
/* Launches the graph with this number again, as it is. */
bool stream_replay_number(struct driver_device *d, uint64_t number, struct err *e);
/* The graph with this number, NULL: none has it any more. */
struct captured *stream_graph_numbered(struct driver_device *d, uint64_t number);
void stream_forget_graphs(struct driver_device *d);           /* called between enter and leave */
void stream_graphs_ended(struct driver_device *d);            /* all commands of the stream have finished */

/* ---- the words of a kernel ----
 * KERNEL | parameters << 8 | maps << 32 | KERNEL_TABLE, function, blocks | threads << 32 | shared << THREAD_BITS + 32,
 * the words of the maps, which are the first parameters, and a word for each other parameter; the last three of these
 * are the address of the slots, begin and end */
enum { THREAD_BITS = 11 };        /* up to 1024 threads; the bits above them are bytes of shared memory */
static inline unsigned kernel_threads(const uint64_t *w) { return w[2] >> 32 & ((1u << THREAD_BITS) - 1); }
static inline unsigned kernel_shared(const uint64_t *w) { return (unsigned)(w[2] >> 32 >> THREAD_BITS); }
static inline uint32_t kernel_parameters(const uint64_t *w) { return (uint32_t)*w >> 8; } /* without maps */
static const uint64_t KERNEL_TABLE = UINT64_C(1) << 63;     /* the buffers' words are one parameter */
static inline uint32_t kernel_maps(const uint64_t *w) { return (uint32_t)((*w & ~KERNEL_TABLE) >> 32); }
static inline uint32_t kernel_words(const uint64_t *w) { return 3 + MAP_WORDS * kernel_maps(w) + kernel_parameters(w); }
enum { MAX_PARAMETERS = 256 };
/* The addresses of a kernel's parameters. */
static inline void kernel_addresses(uint64_t *w, void *out[MAX_PARAMETERS])
{
    uint32_t maps = kernel_maps(w), n = maps + kernel_parameters(w), in_table = 0;
    if (*w & KERNEL_TABLE && kernel_parameters(w) > 4)
        in_table = kernel_parameters(w) - 4; /* the words behind the first one of the table */
    for (uint32_t i = 0, to = 0; i < n; i++)
        if (i <= maps || i > maps + in_table)
            out[to++] = w + 3 + (i < maps ? i * MAP_WORDS : maps * MAP_WORDS + i - maps);
}

#define STREAM_DRIVER .alloc = stream_alloc, .release = stream_release, .load = stream_load, .unload = stream_unload, \
                      .launch = stream_launch, .copy = stream_copy, .peer = stream_copy_peer, .upload = stream_upload, \
                      .download = stream_download, .submit = stream_submit, .finish = stream_finish, \
                      .drop = stream_drop, .stream = stream_handle, .resident = stream_resident, \
                      .list = stream_list, .repeat = stream_repeat, \
                      .enqueue = stream_enqueue, .ended = stream_ended, \
                      .time_begin = stream_time_begin, .time_end = stream_time_end, .in_use = stream_in_use

#endif
