/* The C of kernels for GPUs must mean what the kernel interpreter says, bit for bit, whatever the order of the threads.
 *
 *   gpu_emulate [KERNELS [GRAPHS [SEED]]]   (random kernels and graphs, default 60 and 20)
 *   gpu_emulate essential ...              of the graphs' kernels those alone whose text shows something new
 *
 * The text is compiled as C++ for this machine (c++, or $CXX): a block's threads are coroutines that give way at
 * barriers and where lanes exchange values.  Between these they run one after the other, first to last and then last to
 * first, so that where a barrier is missing one of the two orders goes wrong.  Kernels: those of tests/text, of random
 * graphs, and random ones. */
#include "codegen/gpu/source.h"
#include "gpu_kernels.h"
#include "random_make.h"
#include <dlfcn.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

enum { A_FILE = 50, MAX_BLOCK = 256, STACK = 1 << 16, MAX_BUFS = 64, MAX_SLOTS = 64, MAX_ELEMENTS = 1 << 15 };

/* What the text sees: threads, barriers and shuffles under the names of HIP.  A lane that is none gives back the
 * caller's own value. */
static const char shim[] =
    "#include <cmath>\n#include <cstring>\n"
    "#define __global__\n#define __device__\n#define __launch_bounds__(n)\n#define __shared__ static\n"
    "struct emulated_dim { unsigned x; };\n"
    "extern \"C\" { emulated_dim threadIdx, blockIdx, gridDim; void (*__syncthreads)(void);\n"
    "unsigned long long (*emulated_exchange)(unsigned long long x, unsigned from); }\n"
    "template <class A, class B> static A bits(B b)\n{\n    A a;\n    static_assert(sizeof a == sizeof b, \"\");\n"
    "    memcpy(&a, &b, sizeof a);\n    return a;\n}\n"
    "#define __uint_as_float bits<float, unsigned>\n#define __float_as_uint bits<unsigned, float>\n"
    "#define __longlong_as_double bits<double, long long>\n#define __double_as_longlong bits<long long, double>\n"
    "template <class T> static T exchange(T x, unsigned from)\n{\n    unsigned long long b = 0;\n    memcpy(&b, &x, sizeof x);\n"
    "    b = emulated_exchange(b, from);\n    memcpy(&x, &b, sizeof x);\n    return x;\n}\n"
    "template <class T> static void atomicAdd(T *p, T x) { *p += x; }\n"
    "template <class T> static void atomicMax(T *p, T x) { *p = x > *p ? x : *p; }\n"
    "template <class T> static void atomicMin(T *p, T x) { *p = x < *p ? x : *p; }\n"
    "#define lane_of(w) (threadIdx.x & ((w) - 1u))\n"
    "#define __shfl_down(v, h, w) exchange(v, lane_of(w) + (h) < (w) ? threadIdx.x + (h) : threadIdx.x)\n"
    "#define __shfl_xor(v, h, w) exchange(v, threadIdx.x ^ (h))\n"
    "#define __shfl(v, l, w) exchange(v, threadIdx.x - lane_of(w) + (l))\n";

typedef void call_fn(void **buf, const uint64_t *slot, int64_t begin, int64_t end);
struct module {
    void *so;
    unsigned *thread, *block, *grid;
};

/* ---- a block: threads that take turns ---- */

static struct {
    ucontext_t scheduler, thread[MAX_BLOCK];
    char *stack[MAX_BLOCK];
    bool ended[MAX_BLOCK];
    unsigned now, barriers[MAX_BLOCK];
    uint64_t given[MAX_BLOCK];
    const struct module *m;
    call_fn *fn;
    void **buf;
    const uint64_t *slot;
    int64_t begin, end;
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
    unsigned long long y = block.given[from % MAX_BLOCK];
    give_way();
    return y;
}

static void thread_main(void)
{
    block.fn(block.buf, block.slot, block.begin, block.end);
    block.ended[block.now] = true;
    swapcontext(&block.thread[block.now], &block.scheduler);
}

/* Not in run_block: GCC takes getcontext for a setjmp, after which the variables around it are lost. */
static void start_thread(unsigned t)
{
    if (!block.stack[t])
        block.stack[t] = malloc(STACK);
    getcontext(&block.thread[t]);
    block.thread[t].uc_stack.ss_sp = block.stack[t];
    block.thread[t].uc_stack.ss_size = STACK;
    block.thread[t].uc_link = NULL;
    makecontext(&block.thread[t], thread_main, 0);
    block.ended[t] = false;
    block.barriers[t] = 0;
}

/* false: the threads do not meet at the same barriers. */
static bool run_block(unsigned threads, bool backwards)
{
    for (unsigned t = 0; t < threads; t++)
        start_thread(t);
    for (bool running = true; running;) {
        running = false;
        for (unsigned i = 0; i < threads; i++) {
            unsigned t = backwards ? threads - 1 - i : i;
            if (block.ended[t])
                continue;
            block.now = *block.m->thread = t;
            swapcontext(&block.scheduler, &block.thread[t]);
            running = true;
        }
        for (unsigned t = 1; t < threads; t++)
            if (block.ended[t] != block.ended[0] || block.barriers[t] != block.barriers[0])
                return false;
    }
    return true;
}

/* ---- one kernel ---- */

static unsigned runs;             /* that went well */

struct subject {
    const struct kernel *k;
    const struct dialect *d;
    struct source_info info;
    unsigned blocks;
};

static size_t buffer_bytes(const struct subject *s, uint32_t b)
{
    return (size_t)s->k->buf[b].count * dtype_size(s->k->buf[b].dtype) * (s->k->buf[b].role == BUF_SCRATCH ? s->blocks : 1);
}

/* Inputs depend on their number alone; the rest are sevens, so that what is not stored shows. */
static void set_up(const struct subject *s, void **buf)
{
    for (uint32_t b = 0; b < s->k->nbuf; b++) {
        struct rng r = {(b + 1) * UINT64_C(0x9e3779b97f4a7c15)};
        buf[b] = malloc(buffer_bytes(s, b) + 1);
        if (!buf[b])
            exit(1);
        memset(buf[b], s->k->buf[b].dtype == KL_BOOL ? 1 : 7, buffer_bytes(s, b));
        if (s->k->buf[b].role == BUF_IN)
            fill_random(&r, s->k->buf[b].dtype, buf[b], s->k->buf[b].count, b & 1);
    }
}

static bool compare(const struct subject *s, void **want, void **got, const char *how)
{
    bool ok = true;
    for (uint32_t b = 0; b < s->k->nbuf && ok; b++) {
        int64_t at;
        const struct lbuf *l = &s->k->buf[b];
        if (l->role == BUF_OUT && !same_values(l->dtype, want[b], got[b], l->count, &at))
            ok = check(false, "%s, %s: buffer %u element %" PRId64 " is %.17g, not %.17g", s->k->name, how, b, at,
                       element_value(l->dtype, got[b], at), element_value(l->dtype, want[b], at));
    }
    return ok;
}

static void run(const struct module *m, const struct subject *s, uint32_t number)
{
    struct err e = {0};
    uint64_t slot[MAX_SLOTS];
    void *want[MAX_BUFS], *got[MAX_BUFS];
    char name[32];
    snprintf(name, sizeof name, "call_%u", number);
    for (unsigned i = 0; i < MAX_SLOTS; i++)
        slot[i] = dtype_bits(KL_F32, 0.75);
    set_up(s, want);
    bool ok = kernel_interp(s->k, want, slot, 0, s->k->extent, &e); /* else another test's matter: an index out of range */
    for (int backwards = 0; backwards < 2 && ok; backwards++) {
        *(void **)&block.fn = dlsym(m->so, name);
        block.m = m;
        block.buf = got;
        block.slot = slot;
        block.begin = 0;
        block.end = s->k->extent;
        *m->grid = s->blocks;
        set_up(s, got);
        for (unsigned b = 0; b < s->blocks && ok; b++) {
            *m->block = b;
            ok = check(run_block(s->info.threads, backwards), "%s: threads part at a barrier", s->k->name);
        }
        ok = ok && compare(s, want, got, backwards ? "threads last to first" : "threads first to last");
        runs += ok;
        for (uint32_t b = 0; b < s->k->nbuf; b++)
            free(got[b]);
    }
    if (failed && !ok)
        kernel_print(s->k, stdout);
    for (uint32_t b = 0; b < s->k->nbuf; b++)
        free(want[b]);
}

/* ---- files ---- */

/* The kernel and a function that calls it with the buffers it takes. */
static bool write_kernel(FILE *f, struct subject *s, uint32_t number)
{
    struct text t = {0};
    struct err e = {0};
    char entry[32];
    snprintf(entry, sizeof entry, "kernel_%u", number);
    bool ok = check(source_kernel(s->k, s->d, entry, &t, &s->info, &e) && s->info.threads <= MAX_BLOCK, "%s", e.msg);
    text_put(&t, "extern \"C\" void call_%u(void **buf, const u64 *slots, i64 begin, i64 end)\n{\n    %s(", number, entry);
    for (uint32_t b = 0; ok && b < s->k->nbuf; b++)
        if (!s->info.inside[b])
            text_put(&t, "(%s *)buf[%u], ", s->k->buf[b].dtype == KL_BOOL ? "u8" : dtype_name(s->k->buf[b].dtype), b);
    text_put(&t, "slots, begin, end);\n}\n");
    fputs(t.s, f);
    mem_free(t.s);
    return ok;
}

static bool open_module(struct module *m, const char *path)
{
    m->so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!check(m->so, "%s", dlerror()))
        return false;
    m->thread = dlsym(m->so, "threadIdx");
    m->block = dlsym(m->so, "blockIdx");
    m->grid = dlsym(m->so, "gridDim");
    *(void (**)(void))dlsym(m->so, "__syncthreads") = give_way;
    *(unsigned long long (**)(unsigned long long, unsigned))dlsym(m->so, "emulated_exchange") = exchange;
    return true;
}

static void run_file(struct subject *s, uint32_t n, const char *folder)
{
    char source[512], library[512], command[2048];
    struct module m = {0};
    snprintf(source, sizeof source, "%s/kernels.cpp", folder);
    snprintf(library, sizeof library, "%s/kernels.so", folder);
    FILE *f = fopen(source, "w");
    if (!check(f, "%s cannot be written", source))
        return;
    fprintf(f, "%s%s", shim, s->d->prelude);
    bool ok = true;
    for (uint32_t i = 0; i < n; i++)
        ok &= write_kernel(f, &s[i], i);
    fclose(f);
    const char *compiler = getenv("CXX");
    snprintf(command, sizeof command, "%s -std=c++17 -O1 -w -shared -fPIC -ffp-contract=off -fno-strict-aliasing -o %s %s",
             compiler ? compiler : "c++", library, source);
    ok = ok && check(!system(command), "the kernels' text does not compile: %s", command) && open_module(&m, library);
    for (uint32_t i = 0; i < n && ok && failed < 5; i++)
        run(&m, &s[i], i);
    if (m.so)
        dlclose(m.so);
    unlink(source);
    unlink(library);
    for (uint32_t i = 0; i < n; i++)
        source_info_free(&s[i].info);
}

static bool small(const struct kernel *k)
{
    int64_t elements = 0;
    for (uint32_t b = 0; b < k->nbuf; b++)
        elements += k->buf[b].count;
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_SLOT && k->inst[v].imm >= MAX_SLOTS)
            return false;
    return k->nbuf <= MAX_BUFS && elements <= MAX_ELEMENTS && k->flops < 1 << 20;
}

/* blocks: of the grid. */
static void run_set(const struct kernel_set *set, const struct dialect *d, unsigned blocks, const char *folder)
{
    struct subject s[A_FILE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        if (blocks == 1 || small(set->v[i]))
            s[n++] = (struct subject){.k = set->v[i], .d = d, .blocks = blocks};
        if (n == A_FILE || (n && i + 1 == set->n)) {
            run_file(s, n, folder);
            n = 0;
        }
    }
}

int main(int argc, char **argv)
{
    bool essential = argc > 1 && !strcmp(argv[1], "essential");
    argc -= essential;
    argv += essential;
    uint64_t kernels = argc > 1 ? strtoull(argv[1], NULL, 10) : 60, graphs = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    char folder[] = "/tmp/kiln-emulate-XXXXXX";
    struct err e = {0};
    struct kernel_set made = {0}, random = {0};
    if (system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        skipped++;
        return finish();
    }
    if (!mkdtemp(folder))
        return 1;
    gpu_kernels_folder(&made, "tests/text");
    gpu_kernels_random(&made, graphs, seed);
    if (essential)
        gpu_kernels_essential(&made);
    run_set(&made, dialect_find("hip", &e), 3, folder);
    for (uint64_t i = 0; i < kernels; i++) {
        struct kernel *k = random_kernel(seed + i, false);
        gpu_kernels_add(&random, k);
        kernel_free(k);
    }
    /* Their iterations read scratch as the one before left it: one block, and scratch that can be set before. */
    struct dialect apart = *dialect_find("hip", &e);
    apart.shared_bytes = 0;
    run_set(&random, &apart, 1, folder);
    for (unsigned t = 0; t < MAX_BLOCK; t++)
        free(block.stack[t]);
    gpu_kernels_free(&made);
    gpu_kernels_free(&random);
    rmdir(folder);
    check(runs > 200, "only %u runs", runs);
    return finish();
}
