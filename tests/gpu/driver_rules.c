/* What a CUDA driver refuses: a call of each function without a current context, and each limit of tensor maps,
 * launches and memory by itself.
 *
 *   driver_rules         the library in place of the driver (fake/fake_gpu.c), which lies beside this program
 *   driver_rules real    the driver that there is; rules that it does not apply are listed
 *
 * The library has to be as strict as the driver, because it is what every other test of a driver runs on. */
#define _GNU_SOURCE
#include "codegen/gpu/source.h"
#include "tests/gpu/fake/fake_load.h"
#include "tests/gpu/fake/fake_rules.h"
#include "tests/support/harness.h"
#include <dlfcn.h>

static struct {
#define BOTH(field, cuda, hip, parameters) gpu_result (*field) parameters;
#define CUDA(field, function, parameters) gpu_result (*field) parameters;
#define CUDA_LATER(field, function, parameters) gpu_result (*field) parameters;
#include "runtime/device/stream.def"
} cuda;

static bool is_real;

static bool open_driver(const char *path)
{
    static const struct { const char *name; void *to; } function[] = {
#define BOTH(field, cuda_name, hip, parameters) {#cuda_name, &cuda.field},
#define CUDA(field, name, parameters) {#name, &cuda.field},
#define CUDA_LATER(field, name, parameters) {#name, &cuda.field},
#include "runtime/device/stream.def"
    };
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; so && i < sizeof function / sizeof *function; i++)
        *(void **)function[i].to = dlsym(so, function[i].name);
    return so && cuda.init && cuda.encode_map;
}

/* ---- what valid calls take ---- */

enum { BYTES = 1 << 16, ROWS = 64, COLS = 64, ROW_BYTES = 2 * COLS };
static struct {
    gpu_context context;
    gpu_address memory;
    void *pinned;
    gpu_stream stream;
    gpu_event event, timer[2];
    gpu_module module;
    gpu_function function;
    gpu_graph graph;
    gpu_node node;
    gpu_exec exec;
    const void *image;
    unsigned threads;               /* of a block, which the function was compiled for */
    char name[64];
} have;

/* out[0] = in[0] + slot 0, compiled for the driver's first device */
static bool compile(struct code *code, struct gpu_code *out, struct err *e)
{
    struct kernel *k = kernel_new("adder");
    uint32_t in = k_buf(k, BUF_IN, KL_F32, 1, 0), to = k_buf(k, BUF_OUT, KL_F32, 1, 1);
    k_store(k, to, k_int(k, 0), k_prim(k, P_ADD, k_load(k, in, k_int(k, 0), 0),
                                       k_inst(k, L_SLOT, KL_F32, 0, 0, 0, 0), 0), 0);
    k->extent = 1;
    int n = device_find("cuda:0", e);
    bool ok = kernel_clean(k) && n >= 0 &&
              accelerator_backend(accelerator_get(n))->compile_for(k, accelerator_caps(accelerator_get(n)), EMIT_OBJECT,
                                                                   code, e) &&
              gpu_code_open(code, NULL, out, e);
    kernel_free(k);
    return ok;
}

static uint64_t bits[5];
static void *parameter[5] = {&bits[0], &bits[1], &bits[2], &bits[3], &bits[4]};

static struct cuda_node node_of_kernel(void)
{
    bits[0] = bits[1] = bits[2] = (uintptr_t)have.memory;
    bits[4] = 1;
    return (struct cuda_node){.function = have.function, .grid = {1, 1, 1}, .block = {have.threads, 1, 1},
                              .parameter = parameter};
}

/* ---- each function with valid arguments, between enter and leave or not ---- */

static struct map_request map_valid(gpu_map *map)
{
    static const uint64_t size[] = {COLS, ROWS, 1}, step[] = {ROW_BYTES, ROW_BYTES * ROWS};
    static const unsigned box[] = {COLS, ROWS, 1}, ones[] = {1, 1, 1};
    return (struct map_request){.map = map, .dtype = 9, .rank = 3, .address = have.memory, .size = size, .step = step,
                                .box = box, .element_step = ones, .swizzle = 3, .promotion = 2};
}

static gpu_result encode(const struct map_request *m)
{
    return cuda.encode_map((gpu_map *)(uintptr_t)m->map, m->dtype, m->rank, m->address, m->size, m->step, m->box,
                           m->element_step, m->interleave, m->swizzle, m->promotion, m->fill);
}

static gpu_result call_alloc(void) { return cuda.alloc(&have.memory, BYTES); }
static gpu_result call_host_alloc(void) { return cuda.host_alloc(&have.pinned, BYTES, GPU_PORTABLE); }
static gpu_result call_stream_new(void) { return cuda.stream_new(&have.stream, GPU_NON_BLOCKING); }
static gpu_result call_event_new(void) { return cuda.event_new(&have.event, GPU_NO_TIMING); }
static gpu_result call_timer_new(void)
{
    gpu_result r = cuda.event_new(&have.timer[0], 0);
    return r ? r : cuda.event_new(&have.timer[1], 0);
}
static gpu_result call_module_new(void) { return cuda.module_new(&have.module, have.image); }
static gpu_result call_function(void) { return cuda.function(&have.function, have.module, have.name); }
static gpu_result call_function_set(void) { return cuda.function_set(have.function, 8, 64 << 10); }
static gpu_result call_occupancy(void)
{
    int blocks;
    return cuda.occupancy(&blocks, have.function, 32, 0);
}
static gpu_result call_encode_map(void)
{
    gpu_map map;
    struct map_request m = map_valid(&map);
    return encode(&m);
}
static gpu_result call_upload(void) { return cuda.upload(have.memory, have.pinned, 64, have.stream); }
static gpu_result call_copy(void) { return cuda.copy((char *)have.memory + 4096, have.memory, 64, have.stream); }
static gpu_result call_download(void) { return cuda.download(have.pinned, have.memory, 64, have.stream); }
static gpu_result call_launch(void)
{
    struct cuda_node n = node_of_kernel();
    return cuda.launch(n.function, 1, 1, 1, have.threads, 1, 1, 0, have.stream, n.parameter, NULL);
}
static gpu_result call_event_record(void)
{
    gpu_result r = cuda.event_record(have.event, have.stream);
    r = r ? r : cuda.event_record(have.timer[0], have.stream);
    return r ? r : cuda.event_record(have.timer[1], have.stream);
}
static gpu_result call_stream_wait(void) { return cuda.stream_wait(have.stream, have.event, 0); }
static gpu_result call_stream_finish(void) { return cuda.stream_finish(have.stream); }
static gpu_result call_event_finish(void) { return cuda.event_finish(have.event); }
static gpu_result call_event_query(void) { return cuda.event_query(have.event); }
static gpu_result call_event_elapsed(void)
{
    float ms;
    return cuda.event_elapsed(&ms, have.timer[0], have.timer[1]);
}
static gpu_result call_graph_new(void) { return cuda.graph_new(&have.graph, 0); }
static gpu_result call_node_add(void)
{
    struct cuda_node n = node_of_kernel();
    return cuda.node_add(&have.node, have.graph, NULL, 0, &n);
}
static gpu_result call_exec_new(void) { return cuda.exec_new(&have.exec, have.graph, 0); }
static gpu_result call_node_set(void)
{
    struct cuda_node n = node_of_kernel();
    return cuda.node_set(have.exec, have.node, &n);
}
static gpu_result call_exec_launch(void) { return cuda.exec_launch(have.exec, have.stream); }
static gpu_result call_exec_free(void) { return cuda.exec_free(have.exec); }
static gpu_result call_graph_free(void) { return cuda.graph_free(have.graph); }
static gpu_result call_module_free(void) { return cuda.module_free(have.module); }
static gpu_result call_event_free(void)
{
    gpu_result r = cuda.event_free(have.event);
    r = r ? r : cuda.event_free(have.timer[0]);
    return r ? r : cuda.event_free(have.timer[1]);
}
static gpu_result call_stream_free(void) { return cuda.stream_free(have.stream); }
static gpu_result call_host_free(void) { return cuda.host_free(have.pinned); }
static gpu_result call_free(void) { return cuda.free(have.memory); }

/* In an order in which each has what it needs.  called: also without a context on a real driver, which would take what
 * has no context. */
static const struct { const char *name; gpu_result (*call)(void); } calls[] = {
#define CALL(field) {#field, call_##field}
    CALL(alloc), CALL(host_alloc), CALL(stream_new), CALL(event_new), CALL(timer_new), CALL(module_new), CALL(function),
    CALL(function_set), CALL(occupancy), CALL(encode_map), CALL(upload), CALL(copy), CALL(download), CALL(launch),
    CALL(event_record), CALL(stream_wait), CALL(stream_finish), CALL(event_finish), CALL(event_query),
    CALL(event_elapsed), CALL(graph_new), CALL(node_add), CALL(exec_new), CALL(node_set), CALL(exec_launch)};
static const struct { const char *name; gpu_result (*call)(void); } last_calls[] = {
    CALL(exec_free), CALL(graph_free), CALL(module_free), CALL(event_free), CALL(stream_free), CALL(host_free),
    CALL(free)};
enum { CALLS = sizeof calls / sizeof *calls, LAST_CALLS = sizeof last_calls / sizeof *last_calls };

/* A rule: the call must give this error.  A real driver that gives success is only reported: it is less strict. */
static void expect(const char *rule, gpu_result got, gpu_result want)
{
    const char *name = "";
    if (is_real && !got) {
        printf("the driver allows: %s\n", rule);
        return;
    }
    cuda.error_name(got, &name);
    check(is_real ? got != 0 : got == want, "%s: %d (%s), not %d", rule, got, name, want);
}

static void without_context(const char *name, gpu_result (*call)(void))
{
    gpu_context c;
    char rule[64];
    snprintf(rule, sizeof rule, "%s without a context", name);
    cuda.context_pop(&c);
    expect(rule, call(), INVALID_CONTEXT);
    cuda.context_push(c);
}

/* ---- tensor maps ---- */

static void map_rules(void)
{
    gpu_map map[2];
    static const unsigned steps_of_two[] = {2, 1, 1};
    static const struct { const char *what; uint64_t size[3], step[2]; unsigned box[3]; int offset; } rules[] = {
        {"an address that is no multiple of 16", {COLS, ROWS, 1}, {ROW_BYTES, ROW_BYTES * ROWS}, {COLS, ROWS, 1}, 8},
        {"a dimension of 0", {COLS, 0, 1}, {ROW_BYTES, ROW_BYTES * ROWS}, {COLS, ROWS, 1}, 0},
        {"a dimension above 2^32", {COLS, ROWS, (UINT64_C(1) << 32) + 1}, {ROW_BYTES, ROW_BYTES}, {COLS, ROWS, 1}, 0},
        {"a stride that is no multiple of 16", {COLS - 4, ROWS, 1}, {ROW_BYTES - 8, (ROW_BYTES - 8) * 16},
         {COLS, ROWS, 1}, 0},
        {"a stride of 2^40", {COLS, ROWS, 1}, {ROW_BYTES, UINT64_C(1) << 40}, {COLS, ROWS, 1}, 0},
        {"a stride of 0", {COLS, ROWS, 1}, {ROW_BYTES, 0}, {COLS, ROWS, 1}, 0},
        {"a stride that is no multiple of the one before it", {COLS, ROWS, 2}, {ROW_BYTES, ROW_BYTES * 3 / 2},
         {COLS, ROWS, 1}, 0},
        {"rows that overlap", {COLS, ROWS, 1}, {ROW_BYTES / 2, ROW_BYTES * ROWS}, {COLS, ROWS, 1}, 0},
        {"a box of 0 rows", {COLS, ROWS, 1}, {ROW_BYTES, ROW_BYTES * ROWS}, {COLS, 0, 1}, 0},
        {"a box of 257 rows", {COLS, 512, 1}, {ROW_BYTES, ROW_BYTES * 512}, {COLS, 257, 1}, 0},
        {"a box whose row is longer than the swizzle", {2 * COLS, ROWS, 1}, {2 * ROW_BYTES, 2 * ROW_BYTES * ROWS},
         {2 * COLS, ROWS, 1}, 0},
        {"memory that is none", {COLS, ROWS, 1 << 20}, {ROW_BYTES, ROW_BYTES * ROWS}, {COLS, ROWS, 1}, 0},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct map_request m = map_valid(map);
        m.size = rules[i].size;
        m.step = rules[i].step;
        m.box = rules[i].box;
        m.address = (char *)have.memory + rules[i].offset;
        expect(rules[i].what, encode(&m), INVALID_VALUE);
    }
    struct map_request m = map_valid(map);
    m.element_step = steps_of_two;
    m.dtype = 99;
    expect("an element type that is none", encode(&m), INVALID_VALUE);
    m = map_valid((gpu_map *)(void *)((char *)map + 8));
    expect("a map at an address that is no multiple of 64", encode(&m), INVALID_VALUE);
    m = map_valid(map);
    m.swizzle = 99;
    expect("a swizzle that is none", encode(&m), INVALID_VALUE);
    if (is_real) /* a driver may read as many sizes as the rank says */
        return;
    m = map_valid(map);
    m.rank = 6;
    expect("a rank of 6", encode(&m), INVALID_VALUE);
}

/* ---- launches, memory, devices ---- */

static gpu_result launch(unsigned blocks, unsigned threads, unsigned shared, void **extra)
{
    struct cuda_node n = node_of_kernel();
    return cuda.launch(n.function, blocks, 1, 1, threads, 1, 1, shared, have.stream, n.parameter, extra);
}

static void launch_rules(void)
{
    cuda.function_set(have.function, 8, 0);
    expect("a launch of 0 blocks", launch(0, have.threads, 0, NULL), INVALID_VALUE);
    expect("a launch of 2^31 blocks", launch(1u << 31, have.threads, 0, NULL), INVALID_VALUE);
    expect("a launch of 0 threads", launch(1, 0, 0, NULL), INVALID_VALUE);
    expect("a launch of more threads than the kernel's bounds", launch(1, have.threads + 1, 0, NULL), INVALID_VALUE);
    expect("a launch of 1025 threads", launch(1, 1025, 0, NULL), INVALID_VALUE);
    expect("more than 48 KiB of shared memory that were not allowed", launch(1, have.threads, 49 << 10, NULL),
           INVALID_VALUE);
    expect("allowing 228 KiB of shared memory", cuda.function_set(have.function, 8, 228 << 10), INVALID_VALUE);
    expect("allowing less than no shared memory", cuda.function_set(have.function, 8, -1), INVALID_VALUE);
    check(!cuda.function_set(have.function, 8, 200 << 10) && !launch(1, have.threads, 200 << 10, NULL),
          "200 KiB of shared memory that were allowed are refused");
    static const unsigned one[] = {1, 1, 1};
    check(is_real || (fake_launch_is_valid(one, one, 0, 0, 4096) && !fake_launch_is_valid(one, one, 0, 0, 4104)),
          "4104 bytes of parameters are allowed");
    struct cuda_node n = node_of_kernel();
    n.shared = 227 << 10;
    expect("a node with more shared memory than was allowed", cuda.node_set(have.exec, have.node, &n), INVALID_VALUE);
}

/* The same limits for kernels in graphs. */
static void node_rules(void)
{
    gpu_graph graph;
    gpu_node node;
    if (!check(!cuda.graph_new(&graph, 0), "no graph"))
        return;
    static const struct { const char *what; unsigned grid[3], block[3], shared; } rules[] = {
        {"a node of 0 blocks", {0, 1, 1}, {1, 1, 1}, 0},
        {"a node of 2^31 blocks", {1u << 31, 1, 1}, {1, 1, 1}, 0},
        {"a node of 65536 blocks along y", {1, 65536, 1}, {1, 1, 1}, 0},
        {"a node of 65536 blocks along z", {1, 1, 65536}, {1, 1, 1}, 0},
        {"a node of 0 threads", {1, 1, 1}, {0, 1, 1}, 0},
        {"a node of 1025 threads", {1, 1, 1}, {1025, 1, 1}, 0},
        {"a node of 65 threads along z", {1, 1, 1}, {1, 1, 65}, 0},
        {"a node with 228 KiB of shared memory", {1, 1, 1}, {1, 1, 1}, 228 << 10},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct cuda_node n = node_of_kernel();
        memcpy(n.grid, rules[i].grid, sizeof n.grid);
        memcpy(n.block, rules[i].block, sizeof n.block);
        n.shared = rules[i].shared;
        expect(rules[i].what, cuda.node_add(&node, graph, NULL, 0, &n), INVALID_VALUE);
    }
    expect("a launch of 65536 blocks along y", cuda.launch(have.function, 1, 65536, 1, 1, 1, 1, 0, have.stream,
                                                           parameter, NULL), INVALID_VALUE);
    int blocks;
    expect("the occupancy of blocks of 0 threads", cuda.occupancy(&blocks, have.function, 0, 0), INVALID_VALUE);
    check(!cuda.graph_free(graph), "a graph cannot be freed");
}

/* What has been freed is no longer taken, by no call.  A real driver may crash instead. */
static void freed_rules(void)
{
    gpu_stream s, none = NULL;
    gpu_event v;
    gpu_graph g;
    gpu_exec x;
    void *pinned;
    float ms;
    if (is_real || !check(!cuda.stream_new(&s, GPU_NON_BLOCKING) && !cuda.event_new(&v, 0) &&
                          !cuda.graph_new(&g, 0) && !cuda.exec_new(&x, have.graph, 0) &&
                          !cuda.host_alloc(&pinned, 64, GPU_PORTABLE) && !cuda.event_record(v, s) &&
                          !cuda.exec_free(x) && !cuda.graph_free(g) && !cuda.event_free(v) && !cuda.stream_free(s) &&
                          !cuda.host_free(pinned), "nothing to free"))
        return;
    struct cuda_node n = node_of_kernel();
    gpu_node node;
    expect("work on a stream that was freed", cuda.upload(have.memory, have.pinned, 64, s), INVALID_HANDLE);
    expect("a launch on no stream", cuda.exec_launch(have.exec, none), INVALID_HANDLE);
    expect("waiting for a stream that was freed", cuda.stream_finish(s), INVALID_HANDLE);
    expect("freeing a stream twice", cuda.stream_free(s), INVALID_HANDLE);
    expect("recording an event that was freed", cuda.event_record(v, have.stream), INVALID_HANDLE);
    expect("a stream that waits for one", cuda.stream_wait(have.stream, v, 0), INVALID_HANDLE);
    expect("waiting for one", cuda.event_finish(v), INVALID_HANDLE);
    expect("asking for one", cuda.event_query(v), INVALID_HANDLE);
    expect("the time of one", cuda.event_elapsed(&ms, v, v), INVALID_HANDLE);
    expect("freeing an event twice", cuda.event_free(v), INVALID_HANDLE);
    expect("a node of a graph that was freed", cuda.node_add(&node, g, NULL, 0, &n), INVALID_HANDLE);
    expect("instantiating one", cuda.exec_new(&x, g, 0), INVALID_HANDLE);
    expect("freeing a graph twice", cuda.graph_free(g), INVALID_HANDLE);
    expect("launching a graph that was freed", cuda.exec_launch(x, have.stream), INVALID_HANDLE);
    expect("changing one", cuda.node_set(x, have.node, &n), INVALID_HANDLE);
    expect("freeing an instantiated graph twice", cuda.exec_free(x), INVALID_HANDLE);
    expect("freeing pinned memory twice", cuda.host_free(pinned), INVALID_VALUE);
}

/* A module that is unloaded while a graph has its kernels. */
static void module_rules(void)
{
    gpu_module m;
    gpu_function f, again;
    gpu_graph g;
    gpu_node node;
    gpu_exec x;
    struct cuda_node n = node_of_kernel();
    if (is_real || !check(!cuda.module_new(&m, have.image) && !cuda.function(&f, m, have.name), "no second module"))
        return;
    n.function = f;
    if (!check(!cuda.graph_new(&g, 0) && !cuda.node_add(&node, g, NULL, 0, &n) && !cuda.exec_new(&x, g, 0) &&
               !cuda.exec_launch(x, have.stream) && !cuda.module_free(m), "no graph of a second module"))
        return;
    expect("a graph whose module was unloaded", cuda.exec_launch(x, have.stream), INVALID_HANDLE);
    expect("a kernel whose module was unloaded", cuda.launch(f, 1, 1, 1, have.threads, 1, 1, 0, have.stream,
                                                             n.parameter, NULL), INVALID_HANDLE);
    expect("a function of a module that was unloaded", cuda.function(&again, m, have.name), INVALID_HANDLE);
    expect("a node of one", cuda.node_add(&node, g, &node, 1, &n), INVALID_VALUE);
    expect("unloading a module twice", cuda.module_free(m), INVALID_HANDLE);
    check(!cuda.exec_free(x) && !cuda.graph_free(g), "the graph of an unloaded module cannot be freed");
}

static void memory_rules(void)
{
    gpu_address a;
    gpu_event v;
    gpu_function f;
    gpu_module m;
    expect("an allocation of 0 bytes", cuda.alloc(&a, 0), INVALID_VALUE);
    expect("freeing what was not allocated", cuda.free((char *)have.memory + 256), INVALID_VALUE);
    expect("an event with unknown flags", cuda.event_new(&v, 1u << 30), INVALID_VALUE);
    expect("a stream with unknown flags", cuda.stream_new(&(gpu_stream){0}, 1u << 30), INVALID_VALUE);
    expect("waiting with unknown flags", cuda.stream_wait(have.stream, have.event, 1u << 30), INVALID_VALUE);
    expect("the time between events without one", cuda.event_elapsed(&(float){0}, have.event, have.event),
           INVALID_HANDLE);
    expect("a function that is not in the module", cuda.function(&f, have.module, "nothing"), NOT_FOUND);
    if (!is_real) /* a real driver may read what it takes for an image */
        expect("a module of other bytes", cuda.module_new(&m, "these are no machine code"), INVALID_IMAGE);
}

static void device_rules(void)
{
    int n = 0, value;
    size_t bytes;
    gpu_context c, other = NULL;
    gpu_stream s;
    cuda.count(&n);
    expect("an attribute of no device", cuda.attribute(&value, 75, n), GPU_INVALID_DEVICE);
    expect("the memory of no device", cuda.total_memory(&bytes, n), GPU_INVALID_DEVICE);
    expect("the name of no device", cuda.device_name((char[32]){0}, 32, n), GPU_INVALID_DEVICE);
    expect("the context of no device", cuda.context_retain(&c, n), GPU_INVALID_DEVICE);
    gpu_result pushed = cuda.context_push(NULL);
    expect("making no context current", pushed, INVALID_CONTEXT);
    if (!pushed)
        cuda.context_pop(&c);
    expect("reaching itself", cuda.reach(have.context, 0), GPU_INVALID_DEVICE);
    if (n < 2 || cuda.context_retain(&other, 1))
        return;
    expect("reaching with flags", cuda.reach(other, 1), INVALID_VALUE);
    cuda.context_push(other);
    if (check(!cuda.stream_new(&s, GPU_NON_BLOCKING), "a stream of the second device")) {
        expect("an event of another context", cuda.event_record(have.event, s), INVALID_HANDLE);
        expect("a kernel of another context", cuda.launch(have.function, 1, 1, 1, have.threads, 1, 1, 0, s,
                                                          parameter, NULL), INVALID_HANDLE);
        expect("a stream of another context", cuda.upload(have.memory, have.pinned, 64, have.stream), INVALID_HANDLE);
        expect("a graph of another context", cuda.exec_launch(have.exec, s), INVALID_HANDLE);
        cuda.stream_free(s);
    }
    cuda.context_pop(&c);
    cuda.context_release(1);
}

/* Before cuInit nothing works; in a process of its own. */
static int before_init(void)
{
    int n;
    gpu_context c;
    expect("counting devices before cuInit", cuda.count(&n), NOT_INITIALIZED);
    expect("an attribute before cuInit", cuda.attribute(&n, 75, 0), NOT_INITIALIZED);
    expect("a context before cuInit", cuda.context_retain(&c, 0), NOT_INITIALIZED);
    expect("flags of cuInit", cuda.init(1), INVALID_VALUE);
    return finish();
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct code code = {0};
    struct gpu_code kernel = {0};
    is_real = argc > 1 && !strcmp(argv[1], "real");
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a driver may end the process */
    if (!is_real && system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        skipped++;
        return finish();
    }
    if (!is_real && !fake_gpu_load(argv[0]))
        return 1;
    const char *path = is_real ? "libcuda.so.1" : getenv("KILN_CUDA_DRIVER");
    if (!open_driver(path)) {
        printf("SKIP no-device cuda: %s has no tensor maps or is not there\n", path);
        skipped++;
        return finish();
    }
    if (argc > 1 && !strcmp(argv[1], "uninitialized"))
        return before_init();
    bool ok = check(!cuda.init(0) && compile(&code, &kernel, &e), "%s", e.msg) &&
              check(!cuda.context_retain(&have.context, 0) && !cuda.context_push(have.context), "no context");
    have.image = kernel.binary;
    have.threads = ok ? kernel.threads : 0;
    snprintf(have.name, sizeof have.name, "%s", ok ? kernel.function : "");
    for (unsigned i = 0; i < CALLS && ok; i++) {
        without_context(calls[i].name, calls[i].call);
        gpu_result r = calls[i].call();
        ok = check(!r, "%s gives %d", calls[i].name, r);
    }
    if (ok) {
        map_rules();
        memory_rules();
        device_rules();
        launch_rules();
        node_rules();
        freed_rules();
        module_rules();
        check(!cuda.stream_finish(have.stream), "the stream fails");
    }
    for (unsigned i = 0; i < LAST_CALLS && ok; i++) {
        if (!is_real) /* a real driver would free it */
            without_context(last_calls[i].name, last_calls[i].call);
        gpu_result r = last_calls[i].call();
        check(!r, "%s gives %d", last_calls[i].name, r);
    }
    mem_free(code.bytes);
    return finish();
}
