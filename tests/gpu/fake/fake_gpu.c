/* A driver and its compiler, on the host (fake_gpu.h). */
#define _GNU_SOURCE
#include "fake_gpu.h"
#include "fake_rules.h"
#include "fake_work.h"
#include "tests/gpu/gpu_block.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { DEVICES = 2, BLOCKS = 1 << 16 };

static struct fake_gpu state = {.max_bytes = (size_t)1 << 31};
EXPORT struct fake_gpu *fake_gpu(void);
struct fake_gpu *fake_gpu(void) { return &state; }

/* ---- what every call does first ---- */

static __thread int current[8], depth; /* devices whose contexts were pushed */
static __thread int hip_device = -1; /* -1: this thread has not chosen one */

static bool has_context(void) { return depth > 0 || hip_device >= 0; }

static bool initialized;

static gpu_result begin(const char *field)
{
    state.calls.all++;
    if (state.lost)
        return state.lost;
    if (!initialized)
        return NOT_INITIALIZED;
    if (state.fail && !strcmp(state.fail, field) && state.fail_after-- == 0) {
        gpu_result r = state.result;
        state.fail = NULL;
        state.lost = r >= 700 && r < 800 && r != 701 && r != GPU_ALREADY ? r : 0;
        return r;
    }
    return 0;
}

#define BEGIN(field)                                                                                              \
    do {                                                                                                          \
        gpu_result begun = begin(#field);                                                                         \
        if (begun || !has_context())                                                                              \
            return begun ? begun : INVALID_CONTEXT;                                                               \
    } while (0)

/* BEGIN for a call with a handle, which must be in use; and for one that takes it back. */
#define BEGIN_LIVE(field, kind, handle) BEGIN_IF(field, live_has(LIVE_##kind, handle))
#define BEGIN_LAST(field, kind, handle) BEGIN_IF(field, live_remove(LIVE_##kind, handle))
#define BEGIN_IF(field, is_live)                                                                                  \
    do {                                                                                                          \
        BEGIN(field);                                                                                             \
        if (!(is_live))                                                                                           \
            return INVALID_HANDLE;                                                                                \
    } while (0)

static int device_now(void) { return depth ? current[depth - 1] : hip_device; }

/* ---- devices ---- */

static gpu_result fake_init(unsigned flags)
{
    gpu_result r = flags ? INVALID_VALUE : getenv("FAKE_GPU_INIT") ? atoi(getenv("FAKE_GPU_INIT")) : 0;
    initialized |= !r;
    return r;
}

static gpu_result fake_version(int *version)
{
    *version = getenv("FAKE_GPU_VERSION") ? atoi(getenv("FAKE_GPU_VERSION")) : 12040;
    return 0;
}

static gpu_result fake_count(int *n)
{
    *n = getenv("FAKE_GPU_DEVICES") ? atoi(getenv("FAKE_GPU_DEVICES")) : DEVICES;
    return initialized ? 0 : NOT_INITIALIZED;
}

/* begin for a call that names a device. */
static gpu_result begin_device(const char *field, int device)
{
    gpu_result r = begin(field);
    return r || (device >= 0 && device < DEVICES) ? r : GPU_INVALID_DEVICE;
}

static gpu_result fake_device_name(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Fake %d", device);
    return begin_device("device_name", device);
}

static gpu_result fake_total_memory(size_t *bytes, int device)
{
    *bytes = state.max_bytes;
    return begin_device("total_memory", device);
}

static gpu_result fake_attribute(int *value, gpu_attribute a, int device)
{
    *value = a == 75 ? 9 : a == 76 ? 0 : a == 38 || a == 19 ? 1 << 20 : 2;
    return begin_device("attribute", device);
}

static gpu_result fake_can_reach(int *can, int device, int peer)
{
    *can = device != peer;
    gpu_result r = begin_device("can_reach", device);
    return r ? r : begin_device("can_reach", peer);
}

static gpu_result fake_cuda_error_name(gpu_result r, const char **name)
{
    static char text[32];
    snprintf(text, sizeof text, "FAKE_ERROR_%d", r);
    *name = text;
    return 0;
}

static unsigned retained[DEVICES]; /* uses of the primary contexts */

static gpu_result fake_cuda_context_retain(gpu_context *c, int device)
{
    gpu_result r = begin_device("context_retain", device);
    *c = (gpu_context)(uintptr_t)(device + 1);
    if (!r) {
        state.live.contexts++;
        retained[device]++;
    }
    return r;
}

static gpu_result fake_cuda_context_release(int device)
{
    state.calls.all++;
    if (device < 0 || device >= DEVICES || !retained[device])
        return INVALID_CONTEXT;
    state.live.contexts--;
    retained[device]--;
    return 0;
}

#define NOTE_CONTEXT() (state.calls.contexts++, state.calls.all++)

static gpu_result fake_cuda_context_push(gpu_context c)
{
    NOTE_CONTEXT();
    if (!c || depth == sizeof current / sizeof *current || !retained[(uintptr_t)c - 1])
        return INVALID_CONTEXT;
    current[depth++] = (int)(uintptr_t)c - 1;
    return 0;
}

static gpu_result fake_cuda_context_pop(gpu_context *c)
{
    NOTE_CONTEXT();
    if (!depth)
        return INVALID_CONTEXT;
    *c = (gpu_context)(uintptr_t)(current[--depth] + 1);
    return 0;
}

static gpu_result fake_hip_get_device(int *device)
{
    NOTE_CONTEXT();
    *device = hip_device < 0 ? 0 : hip_device;
    return 0;
}

static gpu_result fake_hip_set_device(int device)
{
    NOTE_CONTEXT();
    hip_device = device;
    return device >= 0 && device < DEVICES ? 0 : GPU_INVALID_DEVICE;
}

/* ---- memory ---- */

static struct { char *p; size_t bytes; int device; } block[BLOCKS];
static uint32_t blocks;

/* Is it within a device's memory? */
static bool is_memory(const void *p, size_t bytes)
{
    for (uint32_t i = 0; i < blocks; i++)
        if ((const char *)p >= block[i].p && (const char *)p + bytes <= block[i].p + block[i].bytes)
            return true;
    return false;
}

static size_t bytes_of(int device)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < blocks; i++)
        sum += block[i].device == device ? block[i].bytes : 0;
    return sum;
}

static gpu_result fake_alloc(gpu_address *a, size_t bytes)
{
    BEGIN(alloc);
    if (!bytes || blocks == BLOCKS)
        return INVALID_VALUE;
    char *p = bytes_of(device_now()) + bytes > state.max_bytes ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!p)
        return GPU_OUT_OF_MEMORY;
    memset(p, 0xa5, bytes);
    block[blocks].p = p;
    block[blocks].bytes = bytes;
    block[blocks++].device = device_now();
    state.live.memory++;
    state.live.bytes += bytes;
    *a = p;
    return 0;
}

static gpu_result finish_all(void);

static gpu_result fake_free(gpu_address a)
{
    BEGIN(free);
    gpu_result r = finish_all();
    for (uint32_t i = 0; i < blocks && !r; i++)
        if (block[i].p == (char *)a) {
            state.live.memory--;
            state.live.bytes -= block[i].bytes;
            free(a);
            block[i] = block[--blocks];
            return 0;
        }
    return r ? r : INVALID_VALUE;
}

static gpu_result fake_host_alloc(void **p, size_t bytes, unsigned flags)
{
    BEGIN(host_alloc);
    *p = malloc(bytes);
    live_add(LIVE_PINNED, *p);
    state.live.pinned++;
    return flags == GPU_PORTABLE && *p ? 0 : INVALID_VALUE;
}

static gpu_result fake_host_free(void *p)
{
    BEGIN(host_free);
    if (!live_remove(LIVE_PINNED, p))
        return INVALID_VALUE;
    free(p);
    state.live.pinned--;
    return 0;
}

/* ---- work: what a stream was given, done when somebody waits ---- */

static gpu_stream streams[64];

/* BEGIN for work on a stream, which has to be the current context's. */
#define BEGIN_ON(field, s) BEGIN_IF(field, live_has(LIVE_STREAM, s) && (s)->device == device_now())

static void give_own(gpu_stream s, struct work *w)
{
    list_add(&s->list, w);
    s->given++;
    s->ms += w->kind == WORK_LAUNCH && state.milliseconds ? state.milliseconds(w->blocks, w->threads) : 0.25;
}

static gpu_result give(gpu_stream s, struct work w)
{
    give_own(s, work_copy(&w));
    return 0;
}

static void call_thread(void *ctx)
{
    struct work *w = ctx;
    void *at[MAX_PARAMETERS];
    _Alignas(64) uint64_t room[2 * MAX_PARAMETERS];
    unsigned from = 0, to = 0;
    for (unsigned i = 0; i < w->function->is->count(); i++) {
        unsigned words = w->function->is->bytes(i) / 8;
        to = words > 1 ? (to + 7) / 8 * 8 : to;
        at[i] = memcpy(room + to, &w->parameter[from], words * sizeof *room);
        from += words;
        to += words;
    }
    w->function->is->call(at);
}

static gpu_result launch(struct work *w)
{
    const struct gpu_module_code *code = &w->function->module->code;
    *code->grid = w->blocks;
    for (unsigned b = 0; b < w->blocks; b++) {
        *code->block = b;
        if (!gpu_block_run(code, w->threads, b & 1, call_thread, w))
            return LAUNCH_FAILED;
    }
    return 0;
}

static gpu_result run_until(gpu_stream s, uint64_t until);

static gpu_result do_work(struct work *w)
{
    bool to = is_memory(w->to, w->bytes), from = is_memory(w->from, w->bytes);
    switch (w->kind) {
    case WORK_LAUNCH: state.calls.ran++; return launch(w);
    case WORK_WAIT: return run_until(w->other, w->bytes);
    case WORK_CALL:
        while (!w->step(w->ctx))
            usleep(100);
        return 0;
    case WORK_COPY: to = to && from; break;
    case WORK_UPLOAD: break;
    default: to = from; break;
    }
    if (!to)
        return ILLEGAL_ADDRESS;
    memmove(w->to, w->from, w->bytes);
    return 0;
}

static gpu_result run_until(gpu_stream s, uint64_t until)
{
    while (s->done < until && !state.lost) {
        struct work *w = s->list.v[s->next++];
        s->done++;
        s->calls -= w->kind == WORK_CALL;
        gpu_result r = do_work(w);
        if (r)
            state.lost = r;
    }
    if (s->next == s->list.n) {
        list_free(&s->list);
        s->next = 0;
    }
    return state.lost;
}

static gpu_result finish_all(void)
{
    for (unsigned i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i])
            run_until(streams[i], streams[i]->given);
    return state.lost;
}

void fake_gpu_call(void *stream, bool (*step)(void *ctx), void *ctx)
{
    gpu_stream s = stream;
    give(s, (struct work){.kind = WORK_CALL, .step = step, .ctx = ctx});
    s->calls++;
}

bool fake_gpu_memory(const void *p, size_t bytes) { return is_memory(p, bytes); }
bool fake_gpu_context(void) { return has_context(); }

/* Such work goes on by itself on a GPU: a query does what does not wait. */
static gpu_result go_on(gpu_stream s, uint64_t until)
{
    while (s->calls && s->done < until && !state.lost) {
        struct work *w = s->list.v[s->next];
        if (w->kind == WORK_CALL && !w->step(w->ctx))
            return 0;
        if (w->kind == WORK_CALL) /* it is done */
            w->kind = WORK_WAIT, w->other = s, w->bytes = 0, s->calls--;
        run_until(s, s->done + 1);
    }
    return state.lost;
}

static gpu_result fake_upload(gpu_address to, gpu_source from, size_t bytes, gpu_stream s)
{
    BEGIN_ON(upload, s);
    state.calls.uploads++;
    return give(s, (struct work){.kind = WORK_UPLOAD, .to = to, .from = from, .bytes = bytes});
}

static gpu_result fake_download(void *to, gpu_address from, size_t bytes, gpu_stream s)
{
    BEGIN_ON(download, s);
    state.calls.downloads++;
    return give(s, (struct work){.kind = WORK_DOWNLOAD, .to = to, .from = from, .bytes = bytes});
}

static gpu_result fake_copy(gpu_address to, gpu_address from, size_t bytes, gpu_stream s)
{
    BEGIN_ON(copy, s);
    state.calls.copies++;
    return give(s, (struct work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes});
}

static gpu_result peer(void *to, const void *from, size_t bytes, gpu_stream s)
{
    BEGIN_ON(copy_peer, s);
    state.calls.peer_copies++;
    return give(s, (struct work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes});
}

static gpu_result fake_cuda_copy_peer(gpu_address to, gpu_context to_context, gpu_address from,
                                      gpu_context from_context, size_t bytes,
                                      gpu_stream s)
{
    return to_context == from_context ? INVALID_VALUE : peer(to, from, bytes, s);
}

static gpu_result fake_hip_copy_peer(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                     gpu_stream s)
{
    return to_device == from_device ? INVALID_VALUE : peer(to, from, bytes, s);
}

/* The current device reaches another; once. */
static gpu_result reach(int peer_device, unsigned flags)
{
    static bool done[DEVICES][DEVICES];
    BEGIN(reach);
    if (peer_device < 0 || peer_device >= DEVICES || flags)
        return INVALID_VALUE;
    if (peer_device == device_now())
        return GPU_INVALID_DEVICE;
    if (done[device_now()][peer_device])
        return GPU_ALREADY;
    state.calls.peers++;
    done[device_now()][peer_device] = true;
    return 0;
}

static gpu_result fake_cuda_reach(gpu_context c, unsigned flags) { return reach((int)(uintptr_t)c - 1, flags); }
static gpu_result fake_hip_reach(int device, unsigned flags) { return reach(device, flags); }

/* ---- streams and events ---- */

static gpu_result fake_stream_new(gpu_stream *s, unsigned flags)
{
    BEGIN(stream_new);
    unsigned i = 0;
    while (streams[i])
        i++;
    *s = streams[i] = calloc(1, sizeof **s);
    (*s)->device = device_now();
    live_add(LIVE_STREAM, *s);
    state.live.streams++;
    return flags == GPU_NON_BLOCKING ? 0 : INVALID_VALUE;
}

static gpu_result fake_stream_free(gpu_stream s)
{
    BEGIN_LAST(stream_free, STREAM, s);
    gpu_result r = run_until(s, s->given);
    for (unsigned i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i] == s)
            streams[i] = NULL;
    list_free(&s->list);
    free(s);
    state.live.streams--;
    return r;
}

static gpu_result fake_stream_finish(gpu_stream s)
{
    BEGIN_LIVE(stream_finish, STREAM, s);
    state.calls.waits++;
    return run_until(s, s->given);
}

static gpu_result fake_stream_wait(gpu_stream s, gpu_event v, unsigned flags)
{
    BEGIN_ON(stream_wait, s);
    if (!live_has(LIVE_EVENT, v))
        return INVALID_HANDLE;
    if (flags || !v->stream)
        return INVALID_VALUE;
    if (!live_has(LIVE_STREAM, v->stream)) /* whose work was done before it ended */
        return 0;
    return give(s, (struct work){.kind = WORK_WAIT, .other = v->stream, .bytes = v->at});
}

static gpu_result fake_event_new(gpu_event *v, unsigned flags)
{
    BEGIN(event_new);
    *v = calloc(1, sizeof **v);
    (*v)->timed = !flags;
    (*v)->device = device_now();
    live_add(LIVE_EVENT, *v);
    state.live.events++;
    return !flags || flags == GPU_NO_TIMING ? 0 : INVALID_VALUE;
}

static gpu_result fake_event_free(gpu_event v)
{
    BEGIN_LAST(event_free, EVENT, v);
    free(v);
    state.live.events--;
    return 0;
}

static gpu_result fake_event_record(gpu_event v, gpu_stream s)
{
    BEGIN_ON(event_record, s);
    if (!live_has(LIVE_EVENT, v) || v->device != s->device)
        return INVALID_HANDLE;
    state.calls.records++;
    v->stream = s;
    v->at = s->given;
    v->ms = s->ms;
    return 0;
}

static gpu_result fake_event_finish(gpu_event v)
{
    BEGIN_LIVE(event_finish, EVENT, v);
    return live_has(LIVE_STREAM, v->stream) ? run_until(v->stream, v->at) : 0;
}

static gpu_result fake_event_query(gpu_event v)
{
    BEGIN_LIVE(event_query, EVENT, v);
    if (!live_has(LIVE_STREAM, v->stream)) /* whose work was done before it ended */
        return 0;
    gpu_result r = v->stream->calls ? go_on(v->stream, v->at) : 0;
    if (r)
        return r;
    return v->stream->done >= v->at ? 0 : NOT_READY;
}

/* Each piece of work of a stream takes a quarter of a millisecond, or what state.milliseconds says. */
static gpu_result fake_event_elapsed(float *ms, gpu_event from, gpu_event to)
{
    BEGIN(event_elapsed);
    if (!live_has(LIVE_EVENT, from) || !live_has(LIVE_EVENT, to) || !from->timed || !to->timed || !from->stream ||
        from->stream != to->stream)
        return INVALID_HANDLE;
    *ms = (float)(to->ms - from->ms);
    return to->stream->done < to->at ? NOT_READY : 0;
}

/* ---- kernels ---- */

static gpu_result fake_occupancy(int *max, gpu_function f, int threads, size_t shared)
{
    BEGIN(occupancy);
    *max = 2048 / (threads < 64 ? 64 : threads);
    return f && threads > 0 && shared <= 227 << 10 ? 0 : INVALID_VALUE;
}

static gpu_result fake_module_new(gpu_module *m, const void *image)
{
    BEGIN(module_new);
    struct gpu_module_of *n = calloc(1, sizeof *n);
    n->device = device_now();
    n->so = fake_image_load(image);
    if (!n->so || !gpu_module_code(n->so, &n->code)) {
        free(n);
        return INVALID_IMAGE;
    }
    *m = n;
    live_add(LIVE_MODULE, n);
    state.live.modules++;
    return 0;
}

static gpu_module unloaded;

/* Its functions, and graphs that launch them, are then refused. */
static gpu_result fake_module_free(gpu_module m)
{
    BEGIN_LAST(module_free, MODULE, m);
    gpu_result r = finish_all();
    dlclose(m->so);
    m->so = NULL;
    m->next = unloaded;
    unloaded = m;
    state.live.modules--;
    return r;
}

static gpu_result fake_function(gpu_function *f, gpu_module m, const char *name)
{
    BEGIN_LIVE(function, MODULE, m);
    const struct caller *c = dlsym(m->so, "callers"); /* by fake_compiler.c; the last has no name */
    unsigned i = 0;
    while (c[i].name && strcmp(c[i].name, name))
        i++;
    *f = &m->function[i];
    if (c[i].name)
        **f = (struct gpu_function_of){m, &c[i], (*f)->shared};
    return c[i].name ? 0 : NOT_FOUND;
}

static gpu_result fake_cuda_function_set(gpu_function f, gpu_function_attribute a, int value)
{
    enum { DYNAMIC_SHARED_BYTES = 8 };
    BEGIN(function_set);
    if (a != DYNAMIC_SHARED_BYTES || value < 0 || value > MAX_DYNAMIC)
        return INVALID_VALUE;
    f->shared = (unsigned)value;
    return 0;
}

/* A launch as a piece of work of n words of parameters. */
static struct work *launch_work(gpu_function f, unsigned grid, unsigned threads, void **parameter)
{
    unsigned n = 0, count = f->is->count();
    for (unsigned i = 0; i < count; i++)
        n += f->is->bytes(i) / 8;
    struct work *w = calloc(1, sizeof *w + n * sizeof *w->parameter);
    *w = (struct work){.kind = WORK_LAUNCH, .function = f, .blocks = grid, .threads = threads, .n = n};
    for (unsigned i = 0, to = 0; i < count; i++) {
        unsigned words = f->is->bytes(i) / 8;
        memcpy(&w->parameter[to], parameter[i], words * sizeof w->parameter[0]);
        state.calls.mapped += words > 1;
        /* what is no map traps where a TMA load uses it */
        to += words;
    }
    return w;
}

static gpu_result fake_cuda_encode_map(gpu_map *map, gpu_map_dtype dtype, unsigned rank, void *address,
                                       const uint64_t *size, const uint64_t *step, const unsigned *box,
                                       const unsigned *element_step, gpu_map_interleave interleave,
                                       gpu_map_swizzle swizzle, gpu_map_promotion promotion, gpu_map_fill fill)
{
    BEGIN(encode_map);
    const struct map_request m = {map, dtype, rank, address, size, step, box, element_step, interleave, swizzle,
                                  promotion, fill};
    if (!fake_map_is_valid(&m) || !is_memory(address, fake_map_bytes(&m)))
        return INVALID_VALUE;
    gpu_map_make(map->word, address, size, step, box);
    state.calls.maps++;
    return 0;
}

/* Is this launch within the limits of its function and of every GPU? */
static bool can_launch(gpu_function f, const unsigned *grid, const unsigned *threads, unsigned shared)
{
    unsigned bytes = 0;
    if (!f->module->so)
        return false;
    for (unsigned i = 0; i < f->is->count(); i++)
        bytes += f->is->bytes(i);
    return threads[0] <= f->is->threads && fake_launch_is_valid(grid, threads, shared, f->shared, bytes);
}

static gpu_result fake_launch(gpu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y,
                              unsigned block_z, unsigned shared, gpu_stream s, void **parameter, void **extra)
{
    const unsigned grid[] = {grid_x, grid_y, grid_z}, threads[] = {block_x, block_y, block_z};
    BEGIN_ON(launch, s);
    if (!f->module->so || f->module->device != s->device)
        return INVALID_HANDLE;
    if (!can_launch(f, grid, threads, shared) || extra)
        return INVALID_VALUE;
    state.calls.launches++;
    state.calls.dynamic += shared > ALWAYS_SHARED;
    give_own(s, launch_work(f, grid_x, block_x, parameter));
    return 0;
}

/* ---- graphs ---- */

static gpu_result fake_graph_new(gpu_graph *g, unsigned flags)
{
    BEGIN(graph_new);
    *g = calloc(1, sizeof **g);
    live_add(LIVE_GRAPH, *g);
    state.live.graphs++;
    return flags ? INVALID_VALUE : 0;
}

/* Of a chain of kernels: each behind the one before it. */
static gpu_result node_add(gpu_node *node, gpu_graph g, const gpu_node *before, size_t nbefore, struct work *w)
{
    BEGIN_LIVE(node_add, GRAPH, g);
    if (nbefore != (g->list.n > 0) || (nbefore && (*before)->number + 1 != g->list.n))
        return INVALID_VALUE;
    *node = calloc(1, sizeof **node);
    **node = (struct gpu_node_of){g->list.n, g->node};
    g->node = *node;
    list_add(&g->list, w);
    return 0;
}

static gpu_result node_set(gpu_exec x, gpu_node node, struct work *w)
{
    BEGIN_LIVE(node_set, EXEC, x);
    if (node->number >= x->list.n || x->list.v[node->number]->function != w->function)
        return INVALID_VALUE;
    state.calls.sets++;
    free(x->list.v[node->number]);
    x->list.v[node->number] = w;
    return 0;
}

/* The parameters of both libraries differ in layout only. */
#define NODE_FUNCTIONS(library)                                                                                      \
    static gpu_result fake_##library##_node_add(gpu_node *node, gpu_graph g, const gpu_node *before, size_t nbefore, \
                                                gpu_##library##_node p)                                              \
    {                                                                                                                \
        return !can_launch(p->function, p->grid, p->block, p->shared) ? INVALID_VALUE                                  \
            : node_add(node, g, before, nbefore, launch_work(p->function, p->grid[0], p->block[0], p->parameter));   \
    }                                                                                                                \
    static gpu_result fake_##library##_node_set(gpu_exec x, gpu_node node, gpu_##library##_node p)                   \
    {                                                                                                                \
        return !can_launch(p->function, p->grid, p->block, p->shared) ? INVALID_VALUE                                  \
            : node_set(x, node, launch_work(p->function, p->grid[0], p->block[0], p->parameter));                    \
    }
NODE_FUNCTIONS(cuda)
NODE_FUNCTIONS(hip)

static gpu_result fake_graph_free(gpu_graph g)
{
    BEGIN_LAST(graph_free, GRAPH, g);
    list_free(&g->list);
    for (gpu_node n = g->node, next; n; n = next) {
        next = n->next;
        free(n);
    }
    free(g);
    state.live.graphs--;
    return 0;
}

static gpu_result fake_exec_new(gpu_exec *x, gpu_graph g, unsigned long long flags)
{
    BEGIN_LIVE(exec_new, GRAPH, g);
    if (flags)
        return INVALID_VALUE;
    *x = calloc(1, sizeof **x);
    live_add(LIVE_EXEC, *x);
    for (uint32_t i = 0; i < g->list.n; i++)
        list_add(&(*x)->list, work_copy(g->list.v[i]));
    state.live.execs++;
    state.calls.captures++;
    return 0;
}

static gpu_result fake_exec_launch(gpu_exec x, gpu_stream s)
{
    BEGIN_ON(exec_launch, s);
    if (!live_has(LIVE_EXEC, x))
        return INVALID_HANDLE;
    for (uint32_t i = 0; i < x->list.n; i++)
        if (!x->list.v[i]->function->module->so || x->list.v[i]->function->module->device != s->device)
            return INVALID_HANDLE;
    state.calls.replays++;
    for (uint32_t i = 0; i < x->list.n; i++)
        give_own(s, work_copy(x->list.v[i]));
    return 0;
}

static gpu_result fake_exec_free(gpu_exec x)
{
    BEGIN_LAST(exec_free, EXEC, x);
    list_free(&x->list);
    free(x);
    state.live.execs--;
    return 0;
}

/* ---- under their names ---- */

#define NAMED(name, function, parameters) EXPORT gpu_result name parameters __attribute__((alias(#function)));
#define BOTH(field, cuda, hip, parameters) NAMED(cuda, fake_##field, parameters) NAMED(hip, fake_##field, parameters)
#define CUDA(field, function, parameters) NAMED(function, fake_cuda_##field, parameters)
#define CUDA_LATER(field, function, parameters) NAMED(function, fake_cuda_##field, parameters)
#define HIP(field, function, parameters) NAMED(function, fake_hip_##field, parameters)
#include "runtime/device/stream.def"

EXPORT const char *hipGetErrorName(gpu_result r);
const char *hipGetErrorName(gpu_result r)
{
    const char *name;
    fake_cuda_error_name(r, &name);
    return name;
}

/* Of the properties only the architecture, where this HIP has it. */
#ifdef FAKE_GPU_OLD
#define PROPERTIES hipGetDeviceProperties
enum { ARCH_AT = 396 };
#else
#define PROPERTIES hipGetDevicePropertiesR0600
enum { ARCH_AT = 1160 };
#endif
EXPORT gpu_result PROPERTIES(void *out, int device);
gpu_result PROPERTIES(void *out, int device)
{
    strcpy((char *)out + ARCH_AT, "gfx90a:sramecc+:xnack-");
    return begin_device("properties", device);
}
