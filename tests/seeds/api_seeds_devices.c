/* Rows A and C of the dispatch system that are about devices: which there are, what they can do, waiting for them,
 * copies between them, one program on all of them: those built in and those of two plug-ins (plugin_device.c), which
 * stand for the GPUs that are not here.  api_seeds_autodiff.c has the other rows. Arguments: ids of rows; none: all.
 * With "child QUESTION" it answers a question about a fresh process. */
#include "api_seeds.h"
#include <kiln/plugin.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MAX_COUNT = 32 };
static kl_device all[MAX_COUNT]; /* every device that works here, ref first */
static uint32_t devices;
static char self[PATH_MAX], bin[PATH_MAX], root[PATH_MAX]; /* this program, its build folder, the source tree */

#define PLUGINS (KL_DEVICES(KL_DEVICE_PLUGIN1) | KL_DEVICES(KL_DEVICE_PLUGIN2) | KL_DEVICES(KL_DEVICE_PLUGIN3))

static bool is_host(kl_device d)
{
    return kl_device_kind_of(d) == KL_DEVICE_REF || kl_device_kind_of(d) == KL_DEVICE_CPU;
}

/* Another device than the default one, one with memory of its own if there is one; {0}: there is none. */
static kl_device other(void)
{
    kl_device found = {0};
    for (uint32_t i = 0; i < devices; i++)
        if (all[i].id != cpu.id && (!found.id || !is_host(all[i])))
            found = all[i];
    return found;
}

/* Does a command of the shell end well?  $KILN_TEST_EMULATOR, before a program of this build, runs it where it is for
 * another processor. */
static bool runs(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool runs(const char *format, ...)
{
    char command[4 * PATH_MAX];
    va_list ap;
    va_start(ap, format);
    vsnprintf(command, sizeof command, format, ap);
    va_end(ap);
    fflush(stdout);
    return system(command) == 0;
}

/* ---- programs that are the same on every device ---- */

static kl_tensor ramp(kl_device d, int64_t rows, int64_t columns)
{
    kl_tensor flat = kl_cast(kl_arange(d, KL_I32, rows * columns), KL_F32);
    kl_tensor scaled = kl_mul_scalar(flat, 1.0 / 16);
    return kl_reshape(kl_sub(scaled, kl_const(d, KL_F32, 1)), 2, (int64_t[]){rows, columns});
}

static kl_tensor elementwise(kl_device d) { return kl_tanh(kl_mul(ramp(d, 5, 7), kl_exp(ramp(d, 1, 7)))); }
static kl_tensor product(kl_device d) { return kl_matmul(ramp(d, 5, 8), ramp(d, 8, 3)); }
static kl_tensor reduction(kl_device d) { return kl_sum_all(kl_softmax(ramp(d, 6, 9), -1)); }
static kl_tensor gathered(kl_device d)
{
    return kl_take(ramp(d, 6, 4), 0, kl_input(d, KL_I32, DIMS(3), (int32_t[]){5, 0, 3}));
}
static kl_tensor integers(kl_device d) { return kl_add(kl_arange(d, KL_INT, 9), kl_full(d, KL_I32, DIMS(9), 3)); }
static kl_tensor compared(kl_device d) { return kl_gt(ramp(d, 4, 4), kl_const(d, KL_F32, 0)); }
static kl_tensor random_bits(kl_device d) { return kl_random_bits(d, KL_U32, DIMS(33), 7); }
static kl_tensor scanned(kl_device d) { return kl_cumsum(ramp(d, 3, 11), 1, false, false); }
static kl_tensor sorted(kl_device d) { return kl_argsort(kl_sin(ramp(d, 1, 20)), 1, false); }
static kl_tensor slope(kl_device d)
{
    kl_tensor w = kl_keep(ramp(d, 4, 3));
    kl_requires_grad(w);
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_matmul(ramp(d, 2, 4), w))), w);
    kl_release(w);
    return g;
}

static const struct program { const char *name; kl_tensor (*make)(kl_device); } program[] = {
    {"elementwise", elementwise}, {"product", product}, {"reduction", reduction}, {"gather", gathered},
        {"integers", integers},
    {"compare", compared}, {"random bits", random_bits}, {"cumsum", scanned}, {"argsort", sorted}, {"gradient", slope}};
enum { PROGRAMS = sizeof program / sizeof *program };

/* Bits where the memory is the host's, some units in the last place elsewhere. */
static bool agrees(const struct program *p, kl_device d)
{
    kl_scope_begin();
    kl_tensor want = p->make(kl_device_ref()), got = p->make(d);
    double *w = values_of(want), *g = values_of(got), room = is_host(d) ? 0 : 1e-5;
    bool ok = w && g && kl_numel(want) == kl_numel(got) && kl_dtype_of(want) == kl_dtype_of(got) &&
        kl_device_of(got).id == d.id;
    for (int64_t i = 0; ok && i < kl_numel(want); i++)
        ok = fabs(w[i] - g[i]) <= room * (1 + fabs(w[i]));
    free(w), free(g);
    kl_scope_end();
    if (!ok)
        printf("%s differs on %s (%s)\n", p->name, kl_device_name(d), kl_last_error());
    return ok;
}

static void a1(void)
{
    CHECK(devices >= 1);
    for (uint32_t i = 0; i < devices; i++)
        CHECK(agrees(&program[0], all[i]) && agrees(&program[1], all[i]));
}

static void a2(void)
{
    kl_scope_begin();
    kl_tensor t[] = {kl_zeros(cpu, KL_FLOAT, DIMS(2)), kl_zeros(cpu, KL_INT, DIMS(2)), kl_zeros(cpu, KL_BOOL, DIMS(2)),
                     kl_quantize(kl_ones(cpu, KL_F32, DIMS(2)), kl_const(cpu, KL_F32, 0.5), kl_none, KL_QUANT, 0)};
    CHECK(kl_dtype_of(t[0]) == KL_F32 && kl_dtype_of(t[1]) == KL_I32 && kl_dtype_of(t[2]) == KL_BOOL &&
          kl_dtype_of(t[3]) == KL_I8);
    CHECK(kl_device_float(cpu) == KL_F32 && kl_device_int(cpu) == KL_I32);
    CHECK(kl_dtype_size(KL_BOOL) == sizeof(uint8_t));
    uint8_t bytes[2] = {9, 9};
    OK(kl_read(t[2], bytes, sizeof bytes));
    CHECK(bytes[0] == 0 && bytes[1] == 0);
    for (int i = 0; i < 4; i++)
        CHECK(kl_device_of(t[i]).id == cpu.id);
    kl_scope_end();
}

static void a3(void)
{
    for (uint32_t i = 0; i < devices; i++) {
        char want[64];
        kl_device d = kl_device_autodiff(all[i]);
        snprintf(want, sizeof want, "autodiff<%s>", kl_device_name(all[i]));
        CHECK(!strcmp(kl_device_name(d), want) && kl_device_named(want).id == d.id);
        snprintf(want, sizeof want, "autodiff<%s, balanced>", kl_device_name(all[i]));
        d = kl_device_gradient_checkpointing(d, KL_CHECKPOINT_BALANCED);
        CHECK(!strcmp(kl_device_name(d), want) && kl_device_named(want).id == d.id);
        snprintf(want, sizeof want, "autodiff<%s, 4096 bytes>", kl_device_name(all[i]));
        CHECK(!strcmp(kl_device_name(kl_device_named(want)), want));
    }
    CHECK(!kl_device_named("autodiff<toaster>").id && says("unknown device \"toaster\""));
    CHECK(!kl_device_named("autodiff<ref, sometimes>").id && says("no strategy is called \"sometimes\""));
    CHECK(!strcmp(kl_device_name((kl_device){0}), "none"));
}

static bool draw(kl_device d, float out[4])
{
    kl_tensor x = kl_rand(d, KL_F32, DIMS(4), kl_next_seed(d));
    bool ok = kl_read(x, out, 4 * sizeof *out) == KL_OK;
    kl_release(x);
    return ok;
}

static void a4(void)
{
    float first[4], second[4], again[4], elsewhere[4];
    kl_device two = other();
    OK(kl_seed(cpu, 5));
    CHECK(draw(cpu, first) && draw(cpu, second) && memcmp(first, second, sizeof first));
    OK(kl_seed(cpu, 5));
    CHECK(draw(cpu, again) && !memcmp(first, again, sizeof first));
    /* one stream with its inner device */
    CHECK(draw(kl_device_autodiff(cpu), again) && !memcmp(second, again, sizeof first));
    if (two.id) {
        uint64_t next[2];
        OK(kl_seed(two, 9));
        next[0] = kl_next_seed(two);
        OK(kl_seed(two, 9));
        OK(kl_seed(cpu, 6));
        next[1] = kl_next_seed(two); /* the other device's seeds stay */
        CHECK(next[0] == next[1]);
        OK(kl_seed(two, 5));
        CHECK(draw(two, elsewhere) && !memcmp(first, elsewhere, sizeof first)); /* the same bits everywhere */
    }
    CHECK(kl_seed((kl_device){77}, 1) == KL_ERR_DEVICE && kl_next_seed((kl_device){77}) == 0);
}

static kl_status refuse_to_run(void *ctx, const kl_custom_call *call)
{
    snprintf(call->message, call->message_bytes, "%s", (const char *)ctx);
    return KL_ERR_CHECK;
}

static kl_key backend_of(kl_device d)
{
    kl_tensor t = kl_scalar(d, KL_F32, 0);
    kl_keyset backends = SET(KL_KEY_Ref, KL_KEY_CPU, KL_KEY_CUDA, KL_KEY_HIP, KL_KEY_Vulkan);
    kl_key key = kl_keyset_highest(kl_keyset_intersection(kl_dispatch_keys(1, &t), backends));
    kl_release(t);
    return key;
}

static void a5(void)
{
    kl_scope_begin();
    kl_key key = backend_of(cpu);
    kl_registration one = reg("sin", key, (kl_kernel){.name = "one", .run = refuse_to_run, .ctx = "the first cause"}),
                    two = reg("cos", key, (kl_kernel){.name = "two", .run = refuse_to_run, .ctx = "the second cause"});
    OK(kl_sync(cpu));
    kl_tensor x = number(1), good = kl_add(x, x), a = kl_sin(x), b = kl_cos(x);
    OK(kl_flush(cpu)); /* submits, and leaves what went wrong to sync */
    CHECK(kl_sync(cpu) == KL_ERR_CHECK && says("An error happened during execution. Caused by: ") &&
          says("the first cause"));
    CHECK(!strstr(kl_last_error(), "second"));
    NEAR_LIST(kl_mul(good, good), 0, 4); /* the next op works */
    kl_release(a);
    CHECK(kl_sync(cpu) == KL_ERR_CHECK && says("the second cause"));
    kl_release(b);
    OK(kl_sync(cpu));
    CHECK(kl_sync((kl_device){77}) == KL_ERR_DEVICE && kl_flush((kl_device){77}) == KL_ERR_DEVICE);
    drop(one), drop(two);
    kl_scope_end();
}

static void a6(void)
{
    for (uint32_t i = 0; i < devices; i++) {
        printf("A6 %-10s", kl_device_name(all[i]));
        for (int t = 0; t < KL_DTYPE_COUNT; t++) {
            unsigned use = kl_device_dtype_usage(all[i], (kl_dtype)t);
            printf(" %s:%s%s%s%s", kl_dtype_name((kl_dtype)t), use & KL_USE_STORAGE ? "S" : "",
                   use & KL_USE_ARITHMETIC ? "A" : "",
                   use & KL_USE_ACCELERATED ? "X" : "", use ? "" : "-");
            kl_tensor x = kl_full(all[i], (kl_dtype)t, DIMS(3), 1), y = kl_where(kl_eq(x, x), x, x);
            CHECK((kl_check(y) == KL_OK) == kl_device_supports(all[i], (kl_dtype)t)); /* refused while it is recorded */
            CHECK(kl_check(y) == KL_OK || kl_check(y) == KL_ERR_DEVICE);
            kl_release(x), kl_release(y);
        }
        printf("\n");
        unsigned real = kl_device_dtype_usage(all[i], KL_F32);
        CHECK(!!(real & KL_USE_ACCELERATED) == (kl_device_kind_of(all[i]) == KL_DEVICE_CPU) &&
              real & KL_USE_ARITHMETIC);
    }
    CHECK(kl_device_dtype_usage((kl_device){77}, KL_F32) == 0);
}

static void a8(void)
{
    CHECK(kl_device_count(KL_DEVICE_REF) + kl_device_count(KL_DEVICE_CPU) >= 1);
    for (uint32_t i = 0; i < devices; i++) {
        kl_device_kind kind = kl_device_kind_of(all[i]);
        CHECK(kl_device_get(kind, kl_device_index(all[i])).id == all[i].id &&
              kl_device_named(kl_device_name(all[i])).id == all[i].id);
        CHECK(kl_device_count(kind) > kl_device_index(all[i]));
    }
    CHECK(kl_device_count((kl_device_kind)99) == -1 && says("unknown kind of device 99"));
    CHECK(!kl_device_get((kl_device_kind)99, 0).id && !kl_device_get(KL_DEVICE_CPU, 3).id &&
          !kl_device_get(KL_DEVICE_REF, -1).id);
    CHECK(kl_device_kind_of((kl_device){77}) == KL_DEVICE_KINDS && kl_device_index((kl_device){77}) == -1);
}

static void a9(void)
{
    static const char *const name[KL_DEVICE_KINDS] = {"ref", "cpu", "cuda", "hip", "vulkan", "metal", "plug-in 1",
                                                      "plug-in 2", "plug-in 3",
                                                      "meta"};
    for (int k = 0; k < KL_DEVICE_KINDS; k++) { /* each with its number, there or with a reason */
        kl_clear_error();
        int n = kl_device_count((kl_device_kind)k);
        CHECK(!strcmp(kl_device_kind_name((kl_device_kind)k), name[k]));
        CHECK(n > 0 || (n == 0 && *kl_last_error()));
        kl_device d = kl_device_get((kl_device_kind)k, 0);
        CHECK(d.id ? kl_device_kind_of(d) == (kl_device_kind)k : kl_last_error_code() == KL_ERR_DEVICE &&
              strstr(kl_last_error(), name[k]));
        CHECK(kl_device_enumerate(KL_DEVICES(k), 0, NULL) <= (uint32_t)n);
    }
    CHECK(kl_device_count(KL_DEVICE_METAL) == 0 && says("Apple"));
    CHECK(agrees(&program[3], kl_device_ref())); /* the interpreter, wherever it is built */
}

static void a10(void)
{
    kl_device gpu[MAX_COUNT];
    uint32_t n = kl_device_enumerate(KL_DEVICES_GPU, MAX_COUNT, gpu);
    CHECK(n <= MAX_COUNT && kl_device_enumerate(KL_DEVICES_HOST, 0, NULL) + kl_device_enumerate(PLUGINS, 0, NULL) +
          n == devices);
    CHECK(kl_device_enumerate(KL_DEVICES(KL_DEVICE_PLUGIN1), 0, NULL) == 2); /* and devices that nobody has built in */
    for (int k = KL_DEVICE_CUDA; k <= KL_DEVICE_VULKAN; k++) { /* one program, code for all of them */
        static const char *const language[] = {[KL_DEVICE_CUDA] = "cuda", [KL_DEVICE_HIP] = "hip",
                                               [KL_DEVICE_VULKAN] = "glsl"};
        CHECK(runs("printf 'graph @g {\\n  %%%%x = input 0 : f32[4]\\n  %%%%y = add %%%%x, %%%%x : f32[4]\\n  return "
                   "%%%%y\\n}\\n' | "
                   "$KILN_TEST_EMULATOR '%s/kiln' dump - --stage source --target %s | grep -qE 'kernel_0|void main'",
                   bin, language[k]));
    }
    CHECK(!runs("cmake -S '%s' -B '%s/a10' -DKILN_LLVM=OFF -DKILN_REF=OFF >'%s/a10.txt' 2>&1", root, bin, bin));
    CHECK(runs("grep -q 'At least one backend feature must be enabled.' '%s/a10.txt'", bin));
}

static void a22(void)
{
    for (uint32_t i = 0; i < devices; i++) {
        kl_quant_scheme a = kl_device_quant_scheme(all[i]), b = kl_device_quant_scheme(kl_device_autodiff(all[i]));
        CHECK(a.value == KL_I8 && a.symmetric && a.per_tensor);
        CHECK(a.store == (is_host(all[i]) ? KL_QUANT_NATIVE : KL_QUANT_PACKED_U32));
        CHECK(a.value == b.value && a.symmetric == b.symmetric && a.per_tensor == b.per_tensor && a.store == b.store);
    }
    CHECK(kl_device_quant_scheme((kl_device){0}).value == 0 && kl_last_error_code() == KL_ERR_DEVICE);
}

static void a25(void)
{
    kl_scope_begin();
    kl_device two = other();
    if (!two.id)
        two = cpu;
    kl_registration no = reg("sin", backend_of(cpu), (kl_kernel){.name = "no", .run = refuse_to_run,
                                                                 .ctx = "not needed"});
    float in[3] = {1.5f, -0.0f, 1e-40f}, out[3];
    kl_tensor x = kl_input(cpu, KL_F32, DIMS(3), in), idle = kl_sin(x);
    int64_t straight = kl_counter("peer_copies"), staged = kl_counter("bytes_via_host");
    kl_tensor turned = kl_flip(kl_to(x, two), AXES(0)), back = kl_flip(kl_to(turned, cpu), AXES(0));
    OK(kl_read(back, out, sizeof out)); /* and not what fails, which nobody needs */
    CHECK(!memcmp(in, out, sizeof in) && kl_device_of(back).id == cpu.id && kl_check(idle) == KL_OK);
    CHECK(kl_counter("peer_copies") == straight + (two.id == cpu.id ? 0 : 2) && kl_counter("bytes_via_host") == staged);
    OK(kl_requires_grad(x));
    kl_tensor there = kl_to(x, two), loss = kl_to(kl_sum_all(kl_mul(there, there)), cpu);
    NEAR_LIST(kl_grad(loss, x), 0, 3, 0, (double)(2 * in[2])); /* through both copies */
    kl_trace_begin("a25");
    kl_tensor in_trace = kl_keep(kl_add(kl_to(kl_mul_scalar(x, 2), two), kl_to(x, two)));
    OK(kl_trace_end());
    CHECK(kl_device_of(in_trace).id == two.id);
    NEAR_LIST(in_trace, 1e-30, 4.5, 0, 0);
    drop(no);
    kl_scope_end();
}

static void a26(void)
{
    kl_device two = other();
    if (!two.id)
        return;
    kl_scope_begin();
    kl_tensor x = kl_ones(cpu, KL_F32, DIMS(2)), y = kl_ones(two, KL_F32, DIMS(2)), z = kl_add(x, x);
    char want[96];
    snprintf(want, sizeof want, "add: operands are on devices %s and %s", kl_device_name(cpu), kl_device_name(two));
    int64_t launches = kl_counter("launches");
    CHECK(kl_check(kl_add(x, y)) == KL_ERR_DEVICE && says(want));
    CHECK(kl_check(kl_matmul(kl_reshape(x, DIMS(1, 2)), kl_reshape(y, DIMS(2, 1)))) == KL_ERR_DEVICE);
    CHECK(kl_counter("launches") == launches); /* while recording, before anything runs */
    NEAR_LIST(z, 0, 2, 2);                     /* what was recorded before is as it was */
    kl_scope_end();
}

/* ---- C ---- */

static void c1(void)
{
    CHECK(runs("! nm -D -u '%s' | grep -iE 'llvm|cuda|nvrtc|hip|vulkan|vk[A-Z]'", self));
    for (uint32_t i = 0; i < devices; i++)
        CHECK(agrees(&program[9], all[i]));
}

/* In the child: no GPU is to be seen. */
static bool without_gpu(void)
{
    kl_device d = kl_device_default();
    bool ok = d.id && is_host(d) && strstr(kl_device_fallback_reason(), "cuda") &&
        strstr(kl_device_fallback_reason(), "hip");
    ok = ok && !kl_device_named("vulkan").id && kl_last_error_code() == KL_ERR_DEVICE && agrees(&program[0], d);
    return ok && kl_device_enumerate(KL_DEVICES_GPU, 0, NULL) == 0;
}

static void c2(void)
{
    CHECK(runs("env -u KILN_DEVICE CUDA_VISIBLE_DEVICES= HIP_VISIBLE_DEVICES= ROCR_VISIBLE_DEVICES= "
               "VK_DRIVER_FILES=/nonexistent "
               "VK_ICD_FILENAMES=/nonexistent $KILN_TEST_EMULATOR '%s' child without_gpu",
               self));
}

/* Between any two devices, in one call of user code; through the host's memory only where there is no other way. */
static void c3(void)
{
    bool straight = false, staged = false;
    for (uint32_t i = 0; i < devices; i++)
        for (uint32_t k = 0; k < devices; k++) {
            if (i == k)
                continue;
            bool reach = is_host(all[i]) || is_host(all[k]) || kl_device_kind_of(all[i]) == kl_device_kind_of(all[k]);
            kl_scope_begin();
            kl_tensor x = kl_iota(all[i], KL_F32, DIMS(1000), 0), y;
            CHECK(kl_item_f32(kl_neg(kl_reshape(kl_narrow(x, 0, 999, 1), 0, NULL))) == -999);
            OK(kl_sync(all[i]));
            int64_t peer = kl_counter("peer_copies"), via = kl_counter("bytes_via_host");
            OK(kl_trace_begin("c3"));
            y = kl_keep(kl_sum_all(kl_to(x, all[k])));
            OK(kl_trace_end());
            CHECK(kl_item_f32(y) == 499500);
            CHECK(kl_counter("peer_copies") == peer + reach &&
                  kl_counter("bytes_via_host") == via + (reach ? 0 : 4000));
            straight |= reach, staged |= !reach;
            kl_scope_end();
        }
    CHECK(straight && staged);
}

static void c5(void)
{
    static const kl_device_kind order[] = {KL_DEVICE_CUDA, KL_DEVICE_HIP, KL_DEVICE_CPU, KL_DEVICE_REF};
    kl_device first = {0};
    for (int i = 0; i < 4 && !first.id; i++)
        first = kl_device_get(order[i], 0);
    if (!getenv("KILN_DEVICE"))
        CHECK(kl_device_default().id == first.id);
    CHECK(runs("KILN_DEVICE=ref $KILN_TEST_EMULATOR '%s' child default ref", self));
    CHECK(runs("KILN_DEVICE=toaster $KILN_TEST_EMULATOR '%s' child default none "
               "'unknown device \"toaster\": there are ref, cpu'", self));
    CHECK(runs("KILN_DEVICE=metal $KILN_TEST_EMULATOR '%s' child default none 'device metal: '", self));
}

static void c7(void)
{
    int64_t dims[KL_MAX_RANK] = {3, 4, 2, 1, 1, 1, 1, 1};
    kl_scope_begin();
    SHAPE(kl_zeros(cpu, KL_F32, 2, dims), 3, 4);
    for (int rank = 0; rank <= KL_MAX_RANK; rank++) {
        kl_tensor t = kl_zeros(cpu, KL_F32, rank, dims);
        CHECK(kl_rank(t) == rank && kl_numel(t) == (rank > 2 ? 24 : rank == 2 ? 12 : rank ? 3 : 1));
    }
    kl_scope_end();
}

static void c8(void)
{
    for (int k = 0; k < KL_DEVICE_META; k++) { /* all that compute */
        kl_clear_error();
        kl_device d = kl_device_named(kl_device_kind_name((kl_device_kind)k));
        CHECK(d.id ? agrees(&program[4], d) : kl_last_error_code() == KL_ERR_DEVICE && strlen(kl_last_error()) > 20);
    }
}

static int64_t allocations;
static void *take(void *ctx, size_t n)
{
    (void)ctx; __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED); return malloc(n);
}
static void *grow(void *ctx, void *p, size_t n)
{
    (void)ctx; __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED); return realloc(p, n);
}
static void give_back(void *ctx, void *p) { (void)ctx; free(p); }

/* Nanoseconds for an op of a trace known before; the reads of the thread's state and the allocations that 1000 ops
 * take. */
static double record_ops(int64_t *reads, int64_t *taken)
{
    double best = 1;
    for (int round = 0; round < 8; round++) {
        kl_trace_begin("c9");
        kl_tensor x = kl_const(cpu, KL_F32, 1);
        int64_t before = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
        uint64_t read = kl_dispatch_reads();
        double start = now();
        for (int i = 0; i < 1000; i++)
            x = kl_add(x, x);
        double time = now() - start;
        *reads = (int64_t)(kl_dispatch_reads() - read);
        *taken = __atomic_load_n(&allocations, __ATOMIC_RELAXED) - before;
        best = time < best ? time : best;
        kl_keep(x);
        kl_trace_end();
        kl_release(x);
    }
    return best * 1e6;
}

static void c9(void)
{
    int64_t reads, taken;
    double ns = record_ops(&reads, &taken);
    CHECK(reads <= 1001 && taken == 0);
    printf("C9 %.1f ns an op with %u devices open (bench/dispatch.c takes it apart)\n", ns, devices);
}

static void c10(void)
{
    struct rusage before, after;
    getrusage(RUSAGE_CHILDREN, &before);
    CHECK(runs("echo '#include <kiln/kiln.h>' | cc -std=c17 -fsyntax-only -I'%s/include' -I'%s/include' -x c -", root,
               bin));
    getrusage(RUSAGE_CHILDREN, &after);
    double c = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
               1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec);
    CHECK(c < 10); /* seconds of the processor: it takes hundredths of one */
    printf("C10 a file that includes <kiln/kiln.h> is checked in %.0f ms\n", c * 1e3);
}

static void c11(void)
{
    CHECK(sizeof(kl_tensor) == 8 && sizeof(kl_device) == 4 && sizeof(kl_registration) == 8);
    static const char *const opaque[] = {"struct kl_gradients", "struct kl_step", "struct kl_call"};
    for (int i = 0; i < 3; i++) {
        const char *compile = "cc -std=c17 -fsyntax-only -x c - 2>/dev/null";
        CHECK(runs("printf '#include <kiln/kiln.h>\\n%s *p;\\n' | %s -I'%s/include' -I'%s/include'", opaque[i], compile,
                   root, bin));
        CHECK(!runs("printf '#include <kiln/kiln.h>\\n%s s;\\n' | %s -I'%s/include' -I'%s/include'", opaque[i], compile,
                    root, bin));
    }
}

static void c12(void)
{
    for (uint32_t i = 0; i < devices; i++) {
        int ok = 0;
        for (int p = 0; p < PROGRAMS; p++)
            ok += CHECK(agrees(&program[p], all[i]));
        printf("C12 %-10s %d of %d programs agree with ref%s\n", kl_device_name(all[i]), ok, PROGRAMS,
               is_host(all[i]) ? ", bit for bit" : "");
    }
    for (int k = 0; k < KL_DEVICE_KINDS; k++)
        if (kl_device_count((kl_device_kind)k) < 1)
            printf("C12 %-10s not here: %s\n", kl_device_kind_name((kl_device_kind)k), kl_last_error());
}

/* In the child: configuring comes before the first tensor, and once. */
static bool configured(void)
{
    kl_device d = kl_device_default(), ref = kl_device_ref();
    bool ok = kl_device_configure(d, KL_BOOL, KL_I64) == KL_ERR_TYPE && says("UnsupportedDType") &&
        says("bool and i64");
    ok = ok && kl_device_configure(d, KL_F32, KL_F32) == KL_ERR_TYPE &&
        kl_device_configure((kl_device){77}, KL_F32, KL_I32) == KL_ERR_DEVICE;
    ok = ok && kl_device_configure(kl_device_autodiff(d), KL_F64, KL_I64) == KL_OK && kl_device_float(d) == KL_F64;
    ok = ok && kl_device_configure(d, KL_F32, KL_I32) == KL_ERR_ARGUMENT && says("AlreadyInitialized") &&
        says("configured before");
    ok = ok && kl_dtype_of(kl_rand(d, KL_FLOAT, DIMS(2), 1)) == KL_F64 &&
        kl_dtype_of(kl_arange(d, KL_INT, 2)) == KL_I64;
    kl_tensor first = kl_zeros(ref, KL_I8, DIMS(1));
    if (ref.id != d.id)
        ok = ok && kl_device_configure(ref, KL_F64, KL_I64) == KL_ERR_ARGUMENT && says("has had tensors") &&
            kl_device_int(ref) == KL_I32;
    return ok && kl_check(first) == KL_OK;
}

static void c13(void)
{
    CHECK(runs("env -u KILN_DEVICE $KILN_TEST_EMULATOR '%s' child configured", self));
    kl_device d[MAX_COUNT], autodiff = kl_device_autodiff(cpu);
    /* no more than there is room for */
    CHECK(kl_device_enumerate(KL_DEVICES_ALL, 1, d) == devices && d[0].id == all[0].id);
    CHECK(kl_device_inner(autodiff).id == cpu.id && kl_device_inner(cpu).id == cpu.id &&
          !kl_device_inner((kl_device){0}).id);
    CHECK(kl_device_is_autodiff(autodiff) && !kl_device_is_autodiff(cpu) && kl_device_supports(autodiff, KL_F32));
    CHECK(!kl_device_supports(cpu, (kl_dtype)200));
    kl_memory_use before, held, after;
    OK(kl_sync(cpu));
    kl_memory_trim(); /* memory_cleanup */
    OK(kl_memory_used(autodiff, &before));
    kl_tensor x = kl_iota(cpu, KL_F32, DIMS(1 << 18), 0), y = kl_add(x, x);
    OK(kl_flush(autodiff)); /* submitted: it has memory now */
    OK(kl_memory_used(cpu, &held));
    CHECK(held.live >= before.live + (1 << 20) && held.peak >= held.live);
    kl_release(x), kl_release(y);
    OK(kl_sync(cpu));
    kl_memory_trim();
    OK(kl_memory_used(cpu, &after));
    CHECK(after.live < held.live && after.pooled <= held.pooled);
}

static void c14(void)
{
    /* tests/recipes.sh does it with all that README shows */
    CHECK(runs("$KILN_TEST_EMULATOR '%s/examples/embed' | grep -qx 'too large: 2'", bin));
    CHECK(runs("$KILN_TEST_EMULATOR '%s/examples/custom' >/dev/null", bin));
}

static const struct row rows[] = {
    {"A1", a1}, {"A2", a2}, {"A3", a3}, {"A4", a4}, {"A5", a5}, {"A6", a6}, {"A8", a8}, {"A9", a9}, {"A10", a10},
        {"A22", a22},
    {"A25", a25}, {"A26", a26}, {"C1", c1}, {"C2", c2}, {"C3", c3}, {"C5", c5}, {"C7", c7}, {"C8", c8}, {"C9", c9},
        {"C10", c10},
    {"C11", c11}, {"C12", c12}, {"C13", c13}, {"C14", c14}};

static int child(int argc, char **argv)
{
    if (!strcmp(argv[2], "without_gpu"))
        return !without_gpu();
    if (!strcmp(argv[2], "configured"))
        return !configured();
    kl_device d = kl_device_default();
    bool ok = argc > 3 && !strcmp(kl_device_name(d), argv[3]) && (argc < 5 || says(argv[4]));
    return !ok;
}

/* The folder above this one, so many times. */
static void above(char *path, const char *of, int times)
{
    snprintf(path, PATH_MAX, "%s", of);
    for (char *s; times-- > 0 && (s = strrchr(path, '/'));)
        *s = 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "child"))
        return child(argc, argv);
    kl_set_memory(&(kl_memory){take, grow, give_back, NULL});
    if (!realpath(argv[0], self))
        return 2;
    above(bin, self, 2);
    static const char *const plugin[] = {"far", "near"};
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX + 32];
        snprintf(path, sizeof path, "%s/tests/plugin_%s.so", bin, plugin[i]);
        OK(kl_plugin_load(path));
    }
    above(root, bin, 1);
    char header[PATH_MAX + 32];
    snprintf(header, sizeof header, "%s/include/kiln/kiln.h", root);
    if (access(header, R_OK)) /* a build folder in build/ */
        above(root, bin, 2);
    devices = kl_device_enumerate(KL_DEVICES_ALL, MAX_COUNT, all);
    return RUN_ROWS(rows);
}
