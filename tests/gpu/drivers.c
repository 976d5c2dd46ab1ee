/* The drivers of CUDA and HIP with a library that is none (fake_gpu.c): every path, everything given back.
 *
 *   drivers cuda|hip            the fake libraries lie beside this program
 *   drivers cuda|hip real       the same steps, copies and graphs with the driver that there is
 *   drivers cuda|hip lost FIELD what the parent runs: the device is lost in that call of stream.def
 *
 * The kernels of the parent are on disk for its children. */
#define _GNU_SOURCE
#include "codegen/gpu/source.h"
#include "tests/gpu/fake/fake_load.h"
#include "tests/support/harness.h"
#include "runtime/device/driver.h"
#include "runtime/profile/profile.h"
#include <sys/wait.h>
#include <unistd.h>

static struct fake_gpu *fake;      /* NULL: a real driver */
static const char *kind;
static char first[16], second[16];

/* ---- a step: w' = w * s + x, and the sum of it ---- */

static bool step(const char *device, float s, struct err *e)
{
    struct graph *g = graph_new("step");
    struct shape shape = shape_make(1, (int64_t[]){300});
    ref w = n_state(g, KL_F32, &shape, "w"), x = n_input(g, KL_F32, &shape, "x");
    ref y = n_add(g, n_mul(g, w, n_broadcast(g, n_slot(g, KL_F32, "s"), &shape)), x);
    graph_output(g, OUT_ASSIGN, y, 0);
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, y, 1), 0);
    static float wv[300], xv[300];
    for (int i = 0; i < 300; i++) {
        wv[i] = (float)(i % 7);
        xv[i] = (float)(i % 3);
    }
    struct values in = {1, {xv}}, st = {1, {wv}}, out = {0};
    uint64_t slot = dtype_bits(KL_F32, s);
    bool ok = run_on(g, device, true, &in, &st, &slot, &out, e);
    float sum = 0;
    for (int i = 0; ok && i < 300; i++) {
        float want = wv[i] * s + xv[i];
        sum += want;
        ok = ((float *)out.v[0])[i] == want || err_set(e, KL_OK, "element %d is %g, not %g", i,
                                                       (double)((float *)out.v[0])[i], (double)want);
    }
    ok = ok && (*(float *)out.v[1] == sum || err_set(e, KL_OK, "the sum is %g, not %g", (double)*(float *)out.v[1],
                                                     (double)sum));
    values_free(&out);
    graph_free(g);
    return ok;
}

static void steps(void)
{
    struct err e = {0};
    for (int i = 0; i < 6; i++)
        check(step(first, 2 + (float)i, &e), "step %d: %s", i, e.msg);
    check(!*second || step(second, 3, &e), "the second device: %s", e.msg);
    check(!fake || (fake->calls.launches && fake->calls.uploads && fake->calls.waits),
          "nothing went through the driver");
}

/* A product of half floats, by the tensor cores that both pretend to have, or by those of a real GPU if it has them. */
static void half_products(int device, int64_t m, int64_t n, int64_t k)
{
    struct err e = {0};
    struct graph *g = graph_new("product");
    struct shape sa = shape_make(2, (int64_t[]){m, k}), sb = shape_make(2, (int64_t[]){k, n});
    uint16_t *a = calloc((size_t)(m * k), sizeof *a), *b = calloc((size_t)(k * n), sizeof *b);
    for (int i = 0; i < m * k; i++)
        a[i] = (uint16_t)dtype_bits(KL_BF16, i * 7 % 5 - 2);
    for (int i = 0; i < k * n; i++)
        b[i] = (uint16_t)dtype_bits(KL_BF16, i * 3 % 7 - 3);
    union attr dims = {.dot = {.con_a = 1, .con_b = 0, .ncon = 1}};
    ref x = n_input(g, KL_BF16, &sa, "a"), y = n_input(g, KL_BF16, &sb, "b");
    graph_output(g, OUT_RETURN, n_dot(g, x, y, &dims), 0);
    struct values in = {2, {a, b}}, none = {0}, out = {0}, want = {0};
    const struct caps *caps = accelerator_caps(accelerator_get(device));
    check(!fake || caps->mma[0].subgroup == (strcmp(kind, "hip") ? 32 : 64), "subgroups of %u", caps->mma[0].subgroup);
    if (check(run_on(g, first, true, &in, &none, NULL, &out, &e) && run_on(g, "ref", true, &in, &none, NULL, &want, &e),
              "%s", e.msg))
        /* no order rounds */
        check(!memcmp(out.v[0], want.v[0], sizeof(uint16_t) * (size_t)(m * n)), "a product of small integers differs");
    values_free(&out);
    values_free(&want);
    free(a);
    free(b);
    graph_free(g);
}

/* A small product, and one whose operands come by tensor maps into more shared memory than a block always has. */
static void products(int device)
{
    half_products(device, 20, 24, 40);
    half_products(device, 200, 136, 72);
    if (!fake || !strcmp(kind, "hip"))
        return;
    check(fake->calls.dynamic, "no block has more than 48 KiB of shared memory");
    check(fake->calls.maps && fake->calls.mapped >= fake->calls.maps,
          "products have no tensor maps, or more are made than used");
}

/* ---- the driver itself ---- */

static const struct driver *driver;
static struct driver_device *d0, *d1;

static void *memory(struct driver_device *d, size_t bytes)
{
    struct err e = {0};
    void *p = NULL;
    check(driver->alloc(d, bytes, &p, &e), "alloc: %s", e.msg);
    return p;
}

static unsigned char pattern(size_t i, unsigned seed) { return (unsigned char)(i * 31 + (i >> 8) * 7 + seed); }

/* There, to another place, to the other device and back, in more parts than there are buffers on the way. */
static void copies(size_t bytes)
{
    struct err e = {0};
    unsigned char *data = malloc(bytes), *back = malloc(bytes);
    void *a = memory(d0, bytes), *b = memory(d0, bytes), *c = memory(d1 ? d1 : d0, bytes);
    for (unsigned seed = 0; seed < 3; seed++) {
        for (size_t i = 0; i < bytes; i++)
            data[i] = pattern(i, seed);
        bool ok = driver->upload(d0, a, data, bytes, &e);
        memset(data, 0, bytes); /* the driver has it */
        ok = ok && driver->copy(d0, b, a, bytes, &e) &&
             (d1 ? driver->peer(d1, c, d0, b, bytes, &e) : driver->copy(d0, c, b, bytes, &e)) &&
             driver->upload(d0, b, data, bytes, &e) && driver->download(d1 ? d1 : d0, back, c, bytes, &e);
        check(ok, "%zu bytes: %s", bytes, e.msg);
        size_t wrong = 0;
        for (size_t i = 0; i < bytes; i++)
            wrong += back[i] != pattern(i, seed);
        check(!wrong, "%zu of %zu bytes come back as others", wrong, bytes);
    }
    driver->release(d0, a);
    driver->release(d0, b);
    driver->release(d1 ? d1 : d0, c);
    free(data);
    free(back);
}

/* More small things than there is pinned memory for before somebody waits. */
static void many_uploads(void)
{
    enum { N = 700, BYTES = 40000 };
    struct err e = {0};
    static unsigned char data[BYTES], back[BYTES];
    char *a = memory(d0, (size_t)N * BYTES);
    bool ok = true;
    for (unsigned i = 0; ok && i < N; i++) {
        memset(data, (int)i, BYTES);
        ok = driver->upload(d0, a + (size_t)i * BYTES, data, BYTES, &e);
    }
    check(ok, "%s", e.msg);
    for (unsigned i = 0; ok && i < N; i += 99)
        ok = check(driver->download(d0, back, a + (size_t)i * BYTES, BYTES, &e) && back[0] == (i & 255) &&
                   back[BYTES - 1] == (i & 255),
                   "upload %u is lost: %s", i, e.msg);
    check(!fake || fake->live.pinned <= 32, "more than 32 blocks of pinned memory");
    driver->release(d0, a);
}

/* out[0] = in[0] + times * slot 0 */
static struct kernel *adder_kernel(int times)
{
    struct kernel *k = kernel_new("adder");
    uint32_t in = k_buf(k, BUF_IN, KL_F32, 1, 0), out = k_buf(k, BUF_OUT, KL_F32, 1, 1);
    val s = k_inst(k, L_SLOT, KL_F32, 0, 0, 0, 0), sum = k_load(k, in, k_int(k, 0), 0);
    for (int i = 0; i < times; i++)
        sum = k_prim(k, P_ADD, sum, s, 0);
    k_store(k, out, k_int(k, 0), sum, 0);
    k->extent = 1;
    check(kernel_clean(k), "no kernel");
    return k;
}

static struct device_kernel *adder(struct accelerator *a)
{
    struct err e = {0};
    struct code code = {0};
    struct kernel *k = adder_kernel(1);
    struct device_kernel *d = NULL;
    if (check(accelerator_backend(a)->compile_for(k, accelerator_caps(a), EMIT_OBJECT, &code, &e), "%s", e.msg))
        d = accelerator_load(a, k, &code, NULL, &e);
    check(d, "%s", e.msg);
    mem_free(code.bytes);
    kernel_free(k);
    return d;
}

/* Of the fake driver; a real one does not say. */
struct counts { uint64_t captures, replays, launches, waits; };
static struct counts counts_now(void)
{
    return fake ? (struct counts){fake->calls.captures, fake->calls.replays, fake->calls.launches, fake->calls.waits}
        : (struct counts){0};
}

/* One batch: the slot's upload, five kernels each adding it, a copy. */
static float batch(const struct device_kernel *k, char *buf, float slot)
{
    struct err e = {0};
    uint64_t bits = dtype_bits(KL_F32, slot);
    float zero = 0, result = -1;
    bool ok = driver->upload(d0, buf, &bits, 8, &e) && driver->upload(d0, buf + 256, &zero, 4, &e);
    for (int i = 0; ok && i < 5; i++) {
        void *args[] = {buf + 256 * (1 + i % 2), buf + 256 * (2 - i % 2)};
        ok = driver->launch(d0, &(struct launch){.kernel = k->kernel, .buffer = args, .n = 2, .slots = buf, .end = 1,
                                                 .blocks = 1}, &e);
    }
    ok = ok && driver->copy(d0, buf + 768, buf + 512, 4, &e) && driver->finish(d0, &e) &&
        driver->download(d0, &result, buf + 768, 4, &e);
    check(ok, "a batch: %s", e.msg);
    return result;
}

/* The same kernels become a graph when they come the second time; addresses are not among what must be the same. */
static void graphs(struct accelerator *a)
{
    struct device_kernel *k = adder(a);
    char *buf = memory(d0, 1024);
    if (!k || !buf)
        return;
    struct counts was = counts_now(), now;
    for (int i = 1; i <= 20; i++) {
        float got = batch(k, buf, (float)i);
        check(got == 5 * (float)i, "batch %d gives %g", i, (double)got);
    }
    now = counts_now();
    check(!fake || (now.captures == was.captures + 1 && now.replays == was.replays + 19 &&
                    now.launches == was.launches + 5),
          "20 batches: %" PRIu64 " captures, %" PRIu64 " replays, %" PRIu64 " launches", now.captures - was.captures,
          now.replays - was.replays, now.launches - was.launches);
    was = now;
    for (int i = 1; i <= 40; i++) { /* nobody waits: the lists take turns with their memory */
        uint64_t bits = dtype_bits(KL_F32, i);
        struct err e = {0};
        bool ok = driver->upload(d0, buf, &bits, 8, &e);
        for (int j = 0; ok && j < 4; j++) {
            void *args[] = {buf + 256 + 256 * (j & 1), buf + 512 - 256 * (j & 1)};
            ok = driver->launch(d0, &(struct launch){.kernel = k->kernel, .buffer = args, .n = 2, .slots = buf,
                                                     .end = 1, .blocks = 1}, &e);
        }
        check(ok && driver->submit(d0, &e), "step %d that nobody waits for: %s", i, e.msg);
    }
    float sum = -1;
    struct err down = {0};
    bool ok_down = driver->download(d0, &sum, buf + 256, 4, &down);
    check(ok_down && sum == 4 * 20 + 4 * 820, "40 steps give %g: %s", (double)sum, down.msg);
    now = counts_now();
    check(now.captures <= was.captures + 4 && now.waits <= was.waits + 1, "%" PRIu64 " captures, %" PRIu64 " waits",
          now.captures - was.captures, now.waits - was.waits);
    char *many[20]; /* more different batches than graphs are kept */
    for (unsigned i = 0; i < 20; i++)
        many[i] = memory(d0, 1024);
    for (unsigned i = 0; i < 60; i++)
        check(batch(k, many[i % 20], 1) == 5, "batch %u of many", i);
    check(!fake || (fake->live.execs <= 16 && fake->live.graphs <= 16), "more than 16 graphs are kept");
    was = now;
    now = counts_now();
    check(now.captures == was.captures, "%" PRIu64 " captures for other memory", now.captures - was.captures);
    driver->drop(d0);
    for (unsigned i = 0; i < 20; i++)
        driver->release(d0, many[i]);
    driver->release(d0, buf);
    accelerator_unload(a, k);
    check(!fake || !fake->live.execs, "graphs outlive their kernels");
}

/* A driver that cannot capture: batches go one by one. */
static void no_graphs(struct accelerator *a)
{
    struct err e = {0};
    struct device_kernel *k = adder(a);
    char *buf = memory(d0, 1024);
    if (!k || !buf)
        return;
    fake->fail = "exec_new";
    fake->fail_after = 0;
    fake->result = 801;
    for (int i = 1; i <= 4; i++)
        check(batch(k, buf, (float)i) == 5 * (float)i, "batch %d without graphs", i);
    check(!fake->fail && !fake->live.execs && !fake->live.graphs, "a graph that could not be made is kept");
    check(driver->finish(d0, &e), "%s", e.msg);
    driver->release(d0, buf);
    accelerator_unload(a, k);
}

/* ---- modules of several kernels ---- */

/* One load of the module for all kernels; it stays until the last of them goes.  If the function of one is not found,
 * the others work. */
static void one_module(struct accelerator *a)
{
    enum { KERNELS = 5, LOST = 3 };
    struct err e = {0};
    const struct kernel *k[KERNELS];
    struct kernel *own[KERNELS];
    struct code code[KERNELS], module = {0};
    struct device_kernel *d[KERNELS];
    char *buf = memory(d0, 1024);
    uint64_t live = fake->live.modules;
    for (int i = 0; i < KERNELS; i++)
        k[i] = own[i] = adder_kernel(i + 1);
    bool ok = accelerator_backend(a)->compile_module(k, KERNELS, accelerator_caps(a), code, &module, &e);
    if (!check(ok, "a module: %s", e.msg))
        return;
    check(!accelerator_load(a, k[0], &code[0], NULL, &e) && e.code, "a kernel without its module is loaded");
    for (int i = 0; i < KERNELS; i++) {
        struct hash128 hash;
        e = (struct err){0};
        fake->fail = i == LOST ? "function" : NULL;
        fake->fail_after = 0;
        fake->result = 500;
        check(gpu_code_module(&code[i], &hash), "kernel %d is in no module", i);
        d[i] = accelerator_load(a, k[i], &code[i], &module, &e);
        check(!d[i] == (i == LOST) && !d[i] == !!e.code, "kernel %d: %s", i, e.msg);
    }
    check(fake->live.modules == live + 1, "%" PRIu64 " modules for one", fake->live.modules - live);
    float data[] = {1, 0};
    uint64_t slot = dtype_bits(KL_F32, 10);
    ok = driver->upload(d0, buf, &slot, 8, &e) && driver->upload(d0, buf + 256, data, 8, &e);
    for (int i = KERNELS - 1; i >= 0; i--) {
        if (!d[i])
            continue;
        void *args[] = {buf + 256, buf + 512};
        ok = driver->launch(d0, &(struct launch){.kernel = d[i]->kernel, .buffer = args, .n = 2, .slots = buf, .end = 1,
                                                 .blocks = 1}, &e) && driver->download(d0, data, buf + 512, 4, &e);
        check(ok && data[0] == 1 + 10 * (float)(i + 1), "kernel %d of a module gives %g: %s", i, (double)data[0],
              e.msg);
        accelerator_unload(a, d[i]);
        check(fake->live.modules == live + (i > 0), "%" PRIu64 " modules, kernel %d", fake->live.modules - live, i);
    }
    for (int i = 0; i < KERNELS; i++) {
        mem_free(code[i].bytes);
        kernel_free(own[i]);
    }
    mem_free(module.bytes);
    driver->release(d0, buf);
}

/* Two kernels, of which the compiler refuses one: its message has its name.  Later they are one module. */
static void refused_kernel(int device)
{
    static const char text[] = "graph @refused {\n  %x = input 0 : f32[64]\n  %a = sqrt %x : f32[64]\n"
                               "  %s = sum %x axes(0) : f32[1]\n  return %a\n  return %s\n}\n";
    struct err e = {0};
    struct graph *g = graph_parse(text, strlen(text), "test", &e);
    if (!check(g != NULL, "%s", e.msg))
        return;
    for (ref r = 1; r < g->nnode; r++)
        g->node[r].device = (uint8_t)device;
    pool_set_threads(1); /* more compile each kernel alone */
    for (int i = 0; i < 2; i++) {
        uint64_t calls = fake->calls.compiles;
        fake->refused = i ? NULL : "= sqrt_f32(";
        e = (struct err){0};
        const struct exec *x = exec_get(g, device, true, &e);
        calls = fake->calls.compiles - calls;
        check(i ? x && calls == 1 : !x && e.code == KL_ERR_COMPILE && strstr(e.msg, "sqrt") && strstr(e.msg, "refused"),
              "%" PRIu64 " calls of the compiler: %s", calls, e.msg);
        exec_unref(x);
    }
    pool_set_threads(0);
    graph_free(g);
}

/* ---- uploads beside work, times, blocks ---- */

static bool add_once(const struct device_kernel *k, char *from, char *to, char *slots)
{
    struct err e = {0};
    void *args[] = {from, to};
    bool ok = driver->launch(d0, &(struct launch){.kernel = k->kernel, .buffer = args, .n = 2, .use = k->use,
                                                  .slots = slots, .end = 1, .blocks = 1}, &e);
    return check(ok && driver->submit(d0, &e), "%s", e.msg);
}

/* Large uploads do not wait for work that does not touch their memory, and work waits for them. */
static void beside(struct accelerator *a)
{
    enum { LARGE = 4 << 20, PARTS = 6 };
    struct err e = {0};
    struct device_kernel *k = adder(a);
    char *buf = memory(d0, 1024), *large = memory(d0, LARGE * PARTS);
    float *data = calloc(PARTS, LARGE), sum = 0, zero = 1;
    uint64_t one = dtype_bits(KL_F32, 1);
    if (!k || !buf || !large || !data)
        return;
    check(driver->upload(d0, buf, &one, 8, &e) && driver->upload(d0, buf + 256, &zero, 4, &e) &&
          driver->finish(d0, &e), "%s", e.msg);
    uint64_t ran = fake->calls.ran;
    bool ok = add_once(k, buf + 256, buf + 512, buf);
    check(driver->in_use(d0, buf + 512, 4) && !driver->in_use(d0, large, LARGE), "other memory is in use");
    data[0] = 5;
    check(ok && driver->upload(d0, large, data, LARGE * PARTS, &e), "%s", e.msg); /* waits for parts of itself */
    check(fake->calls.ran == ran, "an upload waits for a kernel");
    check(add_once(k, large, buf + 768, buf) && driver->download(d0, &sum, buf + 768, 4, &e) && sum == 6,
          "a kernel does not wait for an upload: %g, %s", (double)sum, e.msg);
    check(!driver->in_use(d0, buf + 512, 4), "memory is in use behind a wait");
    ran = fake->calls.ran;
    data[0] = 7;
    ok = add_once(k, large, buf + 768, buf) && driver->upload(d0, large, data, LARGE * PARTS, &e);
    check(ok && fake->calls.ran == ran + 1, "an upload overtakes a kernel that reads its memory: %s", e.msg);
    check(driver->download(d0, &sum, buf + 768, 4, &e) && sum == 6, "the kernel has read %g", (double)sum - 1);
    for (int i = 0; i < 30; i++) /* more lists than are told apart */
        add_once(k, i ? buf + 512 : large, buf + 512, buf);
    data[0] = 9;
    check(driver->upload(d0, large, data, LARGE * PARTS, &e) && fake->calls.ran > ran + 1,
          "an upload overtakes a kernel of long ago: %s", e.msg);
    check(driver->download(d0, &sum, buf + 512, 4, &e) && sum == 7 + 30, "30 kernels give %g: %s", (double)sum, e.msg);
    driver->release(d0, buf);
    driver->release(d0, large);
    accelerator_unload(a, k);
    free(data);
}

/* A fresh input gets memory that the step before does not read, and never more than two blocks of it. */
static void fresh_inputs(struct accelerator *a, int device)
{
    enum { BYTES = 128 << 10 };
    struct err e = {0};
    static float data[BYTES / 4];
    struct device_kernel *k = adder(a);
    char *buf = memory(d0, 1024), *at[6];
    uint64_t live = fake->live.memory;
    for (int i = 0; k && i < 6; i++) {
        struct buffer *b = buffer_copy_of(device, data, BYTES, &e);
        if (!check(b, "%s", e.msg))
            return;
        at[i] = b->data;
        add_once(k, b->data, buf + 512, buf);
        buffer_unref(b);
    }
    check(at[0] != at[1] && at[2] == at[0] && at[3] == at[1], "fresh inputs do not take turns");
    check(fake->live.memory <= live + 2, "%" PRIu64 " blocks for inputs", fake->live.memory - live);
    driver->release(d0, buf);
    accelerator_unload(a, k);
    buffer_trim();
}

static void times_and_blocks(struct accelerator *a)
{
    struct err e = {0};
    struct device_kernel *k = adder(a);
    char *buf = memory(d0, 1024);
    double seconds = 0;
    bool ok = k && buf && driver->time_begin(d0, &e);
    for (int i = 0; ok && i < 3; i++)
        ok = add_once(k, buf + 256, buf + 512, buf);
    ok = ok && driver->time_end(d0, &seconds, &e);
    check(ok && seconds == 0.75e-3, "three kernels take %g s: %s", seconds, e.msg);
    check(k->resident == 2 * 32, "%u blocks at once", k->resident);
    check(accelerator_blocks(k, 1 << 20) == 8 * 64 && accelerator_blocks(k, 100) == 100, "%u blocks",
          accelerator_blocks(k, 1 << 20));
    struct device_kernel with = {.resident = 1056};
    check(accelerator_blocks(&with, 1 << 20) == 3 * 1056, "%u blocks", accelerator_blocks(&with, 1 << 20));
    with.large = true;
    check(accelerator_blocks(&with, 1 << 20) == 8 * 1056, "%u large blocks", accelerator_blocks(&with, 1 << 20));
    with.work = 1 << 20;
    check(accelerator_blocks(&with, 1 << 20) == 256, "%u blocks with scratch", accelerator_blocks(&with, 1 << 20));
    with.resident = 128;
    check(accelerator_blocks(&with, 1 << 20) == 128, "%u blocks with scratch", accelerator_blocks(&with, 1 << 20));
    driver->release(d0, buf);
    accelerator_unload(a, k);
}

/* A profile has the device's times of kernels. */
static void profiled(void)
{
    struct err e = {0};
    struct timeline t;
    check(timeline_start(false, &e), "%s", e.msg);
    bool ok = step(first, 2, &e);
    check(timeline_stop(false, &t, &e) && ok, "%s", e.msg);
    check(t.total[SPAN_KERNEL].calls && t.total[SPAN_KERNEL].ns % 250000 == 0,
          "%" PRIu64 " kernels take %" PRIu64 " ns", t.total[SPAN_KERNEL].calls, t.total[SPAN_KERNEL].ns);
    timeline_free(&t);
}

/* ---- training with fresh inputs ---- */

/* w' = w - s * d, where d is the gradient of sum(tanh(x w)^2) */
static struct graph *training_step(void)
{
    struct graph *g = graph_new("train");
    struct shape sx = shape_make(2, (int64_t[]){4, 8}), sw = shape_make(2, (int64_t[]){8, 8});
    ref w = n_state(g, KL_F32, &sw, "w"), x = n_input(g, KL_F32, &sx, "x");
    ref y = n_tanh(g, n_dot(g, x, w, &(union attr){.dot = {.con_a = 1, .con_b = 0, .ncon = 1}}));
    ref loss = n_reduce(g, OP_sum, n_mul(g, y, y), 3);
    ref step = n_mul(g, n_grad(g, loss, w), n_broadcast(g, n_slot(g, KL_F32, "s"), &sw));
    graph_output(g, OUT_ASSIGN, n_sub(g, w, step), 0);
    graph_output(g, OUT_RETURN, loss, 0);
    return g;
}

/* 400 steps whose inputs, states and results are elsewhere every time: at most 3 graphs, and the numbers are right. */
static void training(int device)
{
    enum { STEPS = 400 };
    struct err e = {0};
    struct graph *g = training_step();
    struct counts was = counts_now(), now;
    struct rng r = {5};
    static struct buffer *taken[4 * STEPS];
    uint32_t n = 0;
    for (unsigned i = 0; i < STEPS && !failed; i++) {
        struct values in, st, got = {0}, want = {0};
        uint64_t slot = dtype_bits(KL_F32, 0.01 * (double)(i % 5));
        values_random(&r, g, &g->input, false, &in);
        values_random(&r, g, &g->state, false, &st);
        bool ok = run_on(g, first, true, &in, &st, &slot, &got, &e) &&
            (i % 50 || run_on(g, "ref", true, &in, &st, &slot, &want, &e));
        for (uint32_t o = 0; ok && !(i % 50) && o < g->nout; o++)
            for (int64_t x = 0; ok && x < node_numel(g, g->out[o].value); x++)
                ok = fabs(element_value(KL_F32, got.v[o], x) - element_value(KL_F32, want.v[o], x)) < 1e-4 ||
                    err_set(&e, KL_OK, "output %u element %" PRId64 " differs", o, x);
        check(ok, "training step %u: %s", i, e.msg);
        values_free(&in);
        values_free(&st);
        values_free(&got);
        values_free(&want);
        for (int b = 0; b < 4; b++) /* the next step's cannot be here */
            if ((taken[n] = buffer_new(device, b & 1 ? 128 : 256, &e)))
                n++;
    }
    now = counts_now();
    printf("%u training steps with fresh inputs: %" PRIu64 " graphs, %" PRIu64 " launches of one, %" PRIu64
           " of kernels\n", STEPS, now.captures - was.captures, now.replays - was.replays, now.launches - was.launches);
    check(!fake || (now.captures - was.captures <= 3 && now.replays - was.replays >= STEPS - 3),
          "%" PRIu64 " captures, %" PRIu64 " replays", now.captures - was.captures, now.replays - was.replays);
    while (n)
        buffer_unref(taken[--n]);
    graph_free(g);
}

/* 1 GiB in arrays whose sizes are powers of two takes at most 1.02 GiB of the device.  Nothing is stored in them. */
static void exact_sizes(int device)
{
    /* 2^29 + 2^28 + .. + 2^10 + 2^10 bytes */
    enum { MAX_COUNT = 29, MIN_COUNT = 10, ARRAYS = MAX_COUNT - MIN_COUNT + 2 };
    struct err e = {0};
    struct buffer *b[ARRAYS];
    uint64_t asked = 0, before;
    buffer_trim();
    before = fake->live.bytes;
    for (unsigned i = 0; i < ARRAYS; i++) {
        size_t bytes = (size_t)1 << (i + 1 < ARRAYS ? MAX_COUNT - i : MIN_COUNT);
        b[i] = buffer_new(device, bytes, &e);
        check(b[i], "%s", e.msg);
        asked += bytes;
    }
    uint64_t taken = fake->live.bytes - before;
    printf("%" PRIu64 " bytes in arrays of powers of two take %" PRIu64 "\n", asked, taken);
    check(asked == (uint64_t)1 << 30 && taken >= asked && taken <= asked / 50 * 51, "%" PRIu64 " bytes for %" PRIu64,
          taken, asked);
    for (unsigned i = 0; i < ARRAYS; i++)
        buffer_unref(b[i]);
    buffer_trim();
}

/* ---- failures ---- */

static const char *const fields[] = {
#define BOTH(field, cuda, hip, parameters) #field,
#include "runtime/device/stream.def"
};
enum { FIELDS = sizeof fields / sizeof *fields };

/* Every call fails once, for want of memory: the step says so, or goes without, and the next one works. */
static void out_of_memory(void)
{
    unsigned hit = 0;
    for (unsigned f = 0; f < FIELDS; f++)
        for (unsigned after = 0; after < 3; after++) {
            struct err e = {0};
            buffer_trim(); /* so that memory is asked for */
            fake->fail = fields[f];
            fake->fail_after = after;
            fake->result = 2;
            bool ok = step(first, 2, &e);
            bool reached = !fake->fail;
            fake->fail = NULL;
            hit += reached;
            check(ok || (reached && e.code == KL_ERR_MEMORY && strstr(e.msg, first)), "%s: %s", fields[f], e.msg);
            e = (struct err){0};
            check(step(first, 3, &e), "the step after one that failed in %s: %s", fields[f], e.msg);
        }
    check(hit >= 12, "only %u calls failed", hit);
    struct err e = {0};
    buffer_trim();
    size_t max = fake->max_bytes;
    fake->max_bytes = fake->live.bytes;
    check(!step(first, 2, &e) && e.code == KL_ERR_MEMORY && strstr(e.msg, "out of memory"), "a full device: %s", e.msg);
    fake->max_bytes = max;
    e = (struct err){0};
    check(step(first, 2, &e), "a device that was full: %s", e.msg);
}

/* In a child: the device is lost in a call, and stays so; the other device and the host's go on. */
static int lose(const char *field)
{
    struct err e = {0};
    check(step(first, 2, &e) && step(second, 2, &e), "%s", e.msg);
    buffer_trim();
    fake->fail = field;
    fake->fail_after = 0;
    fake->result = 719;
    bool ok = step(first, 2, &e);
    if (fake->fail) { /* the step does without that call */
        fake->fail = NULL;
        return 3;
    }
    check(!ok && e.code == KL_ERR_DEVICE && strstr(e.msg, "was lost") && strstr(e.msg, first), "%s: %s", field, e.msg);
    fake->lost = 0; /* the library forgets; Kiln does not */
    e = (struct err){0};
    check(!step(first, 2, &e) && strstr(e.msg, "was lost"), "a lost device: %s", e.msg);
    e = (struct err){0};
    check(step("ref", 2, &e), "ref: %s", e.msg);
    check(step(second, 2, &e), "%s: %s", second, e.msg);
    buffer_trim();
    return failed != 0;
}

static void losses(const char *program)
{
    static const char *const lost_in[] = {"alloc", "upload", "launch", "stream_finish", "download", "event_finish",
                                          "event_record"};
    unsigned hit = 0;
    for (unsigned i = 0; i < sizeof lost_in / sizeof *lost_in; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            execl(program, program, kind, "lost", lost_in[i], (char *)NULL);
            _exit(9);
        }
        int status = 0;
        waitpid(child, &status, 0);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 99;
        hit += code == 0;
        check(code == 0 || code == 3, "lost in %s: status %d", lost_in[i], code);
    }
    check(hit >= 5, "only %u calls were reached", hit);
}

/* A child of fork cannot use what its parent has opened, and says so; the parent goes on. */
static void forks(void)
{
    struct err e = {0};
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        bool refused = !step(first, 2, &e) && strstr(e.msg, "is the parent's") && strstr(e.msg, first);
        struct err other = {0};
        _exit(refused && step("ref", 2, &other) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child of fork: status %d", status);
    check(step(first, 2, &e), "behind a fork: %s", e.msg);
}

/* A device that cannot be opened leaves nothing behind. */
static void half_open(void)
{
    static const char *const at[] = {"attribute", "device_name", "total_memory", "stream_new", "event_new"};
    for (unsigned i = 0; i < sizeof at / sizeof *at; i++) {
        struct err e = {0};
        struct caps caps = {0};
        fake->fail = at[i];
        fake->fail_after = 0;
        fake->result = 46;
        check(!driver->open(1, &caps, &e) && e.code == KL_ERR_DEVICE && !fake->fail, "open survives %s", at[i]);
        check(!fake->live.streams && !fake->live.events && !fake->live.contexts,
              "%s fails: %" PRIu64 " streams, %" PRIu64 " events stay", at[i],
              fake->live.streams, fake->live.events);
    }
    struct err e = {0};
    check(!driver->open(5, &(struct caps){0}, &e) && strstr(e.msg, "there are 2"), "device 5: %s", e.msg);
}

static int real(void)
{
    struct err e = {0};
    unsigned n = accelerator_count(strcmp(kind, "hip") ? DEVICE_CUDA : DEVICE_HIP, &e);
    int n0 = n ? device_find(first, &e) : -1;
    if (n0 < 0) {
        printf("SKIP no-device %s: %s\n", kind, e.msg);
        skipped++;
        return finish();
    }
    if (n > 1)
        snprintf(second, sizeof second, "%s:1", kind);
    int n1 = n > 1 ? device_find(second, &e) : -1;
    check(n < 2 || n1 >= 0, "%s", e.msg);
    d0 = accelerator_device(accelerator_get(n0));
    d1 = n1 < 0 ? NULL : accelerator_device(accelerator_get(n1));
    steps();
    products(n0);
    copies(100);
    copies((13 << 20) + 5);
    many_uploads();
    forks();
    graphs(accelerator_get(n0));
    buffer_trim();
    return finish();
}

int main(int argc, char **argv)
{
    struct err e = {0};
    kind = argc > 1 ? argv[1] : "cuda";
    bool is_real = argc > 2 && !strcmp(argv[2], "real");
    if (!is_real && system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        skipped++;
        return finish();
    }
    snprintf(first, sizeof first, "%s:0", kind);
    driver = driver_of(!strcmp(kind, "hip") ? DEVICE_HIP : DEVICE_CUDA);
    if (is_real)
        return real();
    snprintf(second, sizeof second, "%s:1", kind);
    if (!(fake = fake_gpu_load(argv[0])))
        exit(1);
    if (argc > 3)
        return lose(argv[3]);
    char folder[] = "/tmp/kiln-drivers-XXXXXX", remove[64];
    if (!mkdtemp(folder))
        return 1;
    setenv("KILN_CACHE_DIR", folder, 1);
    half_open();
    int n0 = device_find(first, &e), n1 = device_find(second, &e);
    if (check(n0 >= 0 && n1 >= 0, "%s", e.msg)) {
        d0 = accelerator_device(accelerator_get(n0));
        d1 = accelerator_device(accelerator_get(n1));
        check(strstr(accelerator_caps(accelerator_get(n0))->features, "+fma") != NULL, "its fma is not seen");
        steps();
        products(n0);
        copies(100);
        copies((13 << 20) + 5);
        many_uploads();
        out_of_memory();
        forks();
        losses(argv[0]);
        training(n0);
        exact_sizes(n0);
        refused_kernel(n0);
        uint64_t modules = fake->live.modules;
        graphs(accelerator_get(n0));
        no_graphs(accelerator_get(n0));
        one_module(accelerator_get(n0));
        beside(accelerator_get(n0));
        fresh_inputs(accelerator_get(n0), n0);
        times_and_blocks(accelerator_get(n0));
        profiled();
        check(fake->live.modules == modules, "a kernel that was unloaded is there");
        buffer_trim();
        check(!fake->live.memory && !fake->live.execs && !fake->live.graphs, "%" PRIu64 " buffers are left",
              fake->live.memory);
    }
    snprintf(remove, sizeof remove, "rm -r %s", folder);
    check(!system(remove), "%s", folder);
    return finish();
}
