/* A block of threads as coroutines. */
#include "gpu_block.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <ucontext.h>

enum { STACK = 1 << 16 };

const char gpu_shim[] =
    "extern \"C\" { float fmaf(float, float, float); double fma(double, double, double); float sqrtf(float); double sqrt(double);\n"
    "float rintf(float); double rint(double); float fabsf(float); double fabs(double); }\n"
    "#define __global__\n#define __device__\n#define __launch_bounds__(n)\n#define __shared__ static\n"
    "struct emulated_dim { unsigned x; };\n"
    "extern \"C\" { emulated_dim threadIdx, blockIdx, gridDim, blockDim; void (*__syncthreads)(void);\n"
    "unsigned long long (*emulated_exchange)(unsigned long long x, unsigned from); }\n"
    "template <class A, class B> static A bits(B b)\n{\n    A a;\n    static_assert(sizeof a == sizeof b, \"\");\n"
    "    __builtin_memcpy(&a, &b, sizeof a);\n    return a;\n}\n"
    "#define __uint_as_float bits<float, unsigned>\n#define __float_as_uint bits<unsigned, float>\n"
    "#define __longlong_as_double bits<double, long long>\n#define __double_as_longlong bits<long long, double>\n"
    "template <class T> static T exchange(T x, unsigned from)\n{\n    unsigned long long b = 0;\n    __builtin_memcpy(&b, &x, sizeof x);\n"
    "    b = emulated_exchange(b, from);\n    __builtin_memcpy(&x, &b, sizeof x);\n    return x;\n}\n"
    "template <class T> static void atomicAdd(T *p, T x) { *p += x; }\n"
    "template <class T> static void atomicMax(T *p, T x) { *p = x > *p ? x : *p; }\n"
    "template <class T> static void atomicMin(T *p, T x) { *p = x < *p ? x : *p; }\n"
    "#define lane_of(w) (threadIdx.x & ((w) - 1u))\n"
    "#define __shfl_down(v, h, w) exchange(v, lane_of(w) + (h) < (w) ? threadIdx.x + (h) : threadIdx.x)\n"
    "#define __shfl_xor(v, h, w) exchange(v, threadIdx.x ^ (h))\n"
    "#define __shfl(v, l, w) exchange(v, threadIdx.x - lane_of(w) + (l))\n"
    "#define __shfl_down_sync(m, v, h, w) __shfl_down(v, h, w)\n#define __shfl_xor_sync(m, v, h, w) __shfl_xor(v, h, w)\n"
    "#define __shfl_sync(m, v, l, w) __shfl(v, l, w)\n";

static struct {
    ucontext_t scheduler, thread[GPU_BLOCK_THREADS];
    char *stack[GPU_BLOCK_THREADS];
    bool ended[GPU_BLOCK_THREADS];
    unsigned now, barriers[GPU_BLOCK_THREADS];
    unsigned long long given[GPU_BLOCK_THREADS];
    const struct gpu_module_code *m;
    void (*call)(void *ctx);
    void *ctx;
} block;

static void give_way(void)
{
    unsigned me = block.now;
    block.barriers[me]++;
    swapcontext(&block.thread[me], &block.scheduler);
    *block.m->thread = me;
}

static unsigned long long exchange(unsigned long long x, unsigned from)
{
    block.given[block.now] = x;
    give_way();
    unsigned long long y = block.given[from % GPU_BLOCK_THREADS];
    give_way();
    return y;
}

bool gpu_module_code(void *so, struct gpu_module_code *m)
{
    void (**barrier)(void) = dlsym(so, "__syncthreads");
    unsigned long long (**exchanges)(unsigned long long, unsigned) = dlsym(so, "emulated_exchange");
    m->thread = dlsym(so, "threadIdx");
    m->block = dlsym(so, "blockIdx");
    m->grid = dlsym(so, "gridDim");
    m->size = dlsym(so, "blockDim");
    if (!barrier || !exchanges || !m->thread || !m->block || !m->grid || !m->size)
        return false;
    *barrier = give_way;
    *exchanges = exchange;
    return true;
}

static void thread_main(void)
{
    block.call(block.ctx);
    block.ended[block.now] = true;
    swapcontext(&block.thread[block.now], &block.scheduler);
}

/* Not in gpu_block_run: GCC takes getcontext for a setjmp, after which the variables around it are lost. */
static void start_thread(unsigned t)
{
    if (!block.stack[t] && !(block.stack[t] = malloc(STACK)))
        abort();
    getcontext(&block.thread[t]);
    block.thread[t].uc_stack.ss_sp = block.stack[t];
    block.thread[t].uc_stack.ss_size = STACK;
    block.thread[t].uc_link = NULL;
    makecontext(&block.thread[t], thread_main, 0);
    block.ended[t] = false;
    block.barriers[t] = 0;
}

bool gpu_block_run(const struct gpu_module_code *m, unsigned threads, bool backwards, void (*call)(void *ctx), void *ctx)
{
    block.m = m;
    block.call = call;
    block.ctx = ctx;
    *m->size = threads;
    for (unsigned t = 0; t < threads; t++)
        start_thread(t);
    for (bool running = true; running;) {
        running = false;
        for (unsigned i = 0; i < threads; i++) {
            unsigned t = backwards ? threads - 1 - i : i;
            if (block.ended[t])
                continue;
            block.now = *m->thread = t;
            swapcontext(&block.scheduler, &block.thread[t]);
            running = true;
        }
        for (unsigned t = 1; t < threads; t++)
            if (block.ended[t] != block.ended[0] || block.barriers[t] != block.barriers[0])
                return false;
    }
    return true;
}

void gpu_block_free(void)
{
    for (unsigned t = 0; t < GPU_BLOCK_THREADS; t++) {
        free(block.stack[t]);
        block.stack[t] = NULL;
    }
}
