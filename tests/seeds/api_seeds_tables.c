/* Rows D of the dispatch system: keys, tables, registering, guards and texts.  Arguments: ids of rows; none: all. */
#include "api_seeds.h"

static void d1(void)
{
    kl_registration d = define("d1() -> Tensor");
    kl_tensor y;
    CHECK(kl_dispatch("d1", 0, NULL, 1, &y) == KL_ERR_ARGUMENT);
    CHECK(says("There were no tensor arguments to this function (e.g., you passed an empty list of Tensors), but no "
               "fallback function is registered for schema d1() -> Tensor"));
    kl_release(y);
    kl_registration m = reg("d1", KL_KEY_Math, giving(3, "fn_math"));
    OK(kl_dispatch("d1", 0, NULL, 1, &y));
    NEAR_LIST(y, 0, 3);
    drop(m);
    kl_registration b = reg("d1", KL_KEY_DefaultBackend, giving(4, "fn_default"));
    CHECK(table_has("d1", "Undefined: fn_default [default backend kernel]"));
    OK(kl_dispatch("d1", 0, NULL, 1, &y));
    NEAR_LIST(y, 0, 4);
    drop(b), drop(d);
}

static void d2(void)
{
    static const kl_key dense[] = {KL_KEY_Ref, KL_KEY_CPU, KL_KEY_CUDA, KL_KEY_HIP, KL_KEY_FPGA, KL_KEY_MSNPU,
                                   KL_KEY_XLA,
                                   KL_KEY_Vulkan, KL_KEY_Metal, KL_KEY_XPU};
    kl_registration d = define("d2(Tensor x) -> Tensor");
    for (int i = 0; i < 10; i++) {
        kl_registration r = reg("d2", dense[i], giving(i, "fn"));
        CHECK(call1("d2", kl_keyset_of(dense[i])) == i && call1("d2", kl_keyset_of(dense[(i + 1) % 10])) == -1);
        drop(r);
    }
    drop(d);
    kl_device cuda = kl_device_named("cuda");
    CHECK(cuda.id || kl_last_error_code() == KL_ERR_DEVICE);
}

static void d4(void)
{
    static const kl_key none[] = {KL_KEY_MKLDNN, KL_KEY_OpenGL, KL_KEY_OpenCL, KL_KEY_IDEEP};
    static const char *const name[] = {"MKLDNN", "OpenGL", "OpenCL", "IDEEP"};
    kl_kernel k = giving(1, "fn");
    kl_registration r;
    for (int i = 0; i < 4; i++) {
        CHECK(kl_key_find(name[i]) == none[i] && !strcmp(kl_key_name(none[i]), name[i]));
        CHECK(kl_dispatch_register("add", none[i], &k, &r) == KL_ERR_ARGUMENT && says("is not dispatchable") && !r.id);
    }
}

static int zeroed;
static kl_status zero_run(void *ctx, const kl_custom_call *call)
{
    int64_t n = 1;
    (void)ctx;
    for (int i = 0; i < call->out_type[0].rank; i++)
        n *= call->out_type[0].dims[i];
    memset(call->out[0], 0, (size_t)n * kl_dtype_size(call->out_type[0].dtype));
    if (call->nout != 1 || call->attr)
        return KL_ERR_INTERNAL;
    __atomic_fetch_add(&zeroed, 1, __ATOMIC_RELAXED);
    return KL_OK;
}

static kl_status fill_42(void *ctx, const kl_custom_call *call)
{
    int64_t n = call->out_type[0].dims[0];
    (void)ctx;
    if (call->out_type[0].dtype != KL_U32 || call->out_type[0].rank != 1 || *(const uint64_t *)call->in[0] != 7)
        return KL_ERR_INTERNAL;
    for (int64_t i = 0; i < n; i++)
        ((uint32_t *)call->out[0])[i] = 42u << 8;
    return KL_OK;
}
static void d7(void)
{
    kl_generator g = {KL_KEY_CustomRNGKeyId, 7};
    kl_tensor plain = kl_rand(cpu, KL_F32, DIMS(3), 7), same = kl_rand_from(&g, cpu, KL_F32, DIMS(3));
    double *want = values_of(plain), middle = 42.0 / (1 << 24), first;
    NEAR(same, 3, want, 0); /* without a kernel it is the default */
    kl_registration r = reg("random", KL_KEY_CustomRNGKeyId, (kl_kernel){.name = "constant 42", .run = fill_42});
    kl_dispatch_log_begin();
    kl_tensor bits = kl_random_bits_from(&g, cpu, KL_U32, DIMS(2));
    CHECK(strstr(kl_dispatch_log_end(), "op=[random], key=[CustomRNGKeyId]"));
    NEAR_LIST(bits, 0, 42 << 8, 42 << 8);
    NEAR_LIST(kl_rand_from(&g, cpu, KL_F32, DIMS(3)), 0, middle, middle, middle);
    kl_tensor n = kl_randn_from(&g, cpu, KL_F32, DIMS(2));
    double *v = values_of(n);
    first = v ? v[0] : NAN;
    CHECK(v && v[0] == v[1] && first < -4 && first > -5); /* 2.5e-6 of a normal distribution lies below */
    NEAR(kl_rand(cpu, KL_F32, DIMS(3), 7), 3, want, 0);   /* the default one is untouched */
    kl_tensor bad = kl_rand_from(NULL, cpu, KL_F32, DIMS(3));
    CHECK(kl_check(bad) == KL_ERR_ARGUMENT);
    kl_release(bad);
    bad = kl_rand_from(&(kl_generator){KL_KEY_CPU, 1}, cpu, KL_F32, DIMS(3));
    CHECK(kl_check(bad) == KL_ERR_ARGUMENT && says("the generator's key is no layer"));
    kl_release(bad), kl_release(plain), kl_release(n);
    free(want), free(v);
    drop(r);
}

/* Kernels that compute are asked for values, never for shapes: those are the same with and without one. */
static void d13(void)
{
    static const char *const op[] = {"add", "eq", "sum", "dot", "reshape", "cast", "gather", "slice", "argsort",
                                     "concat"};
    enum { OPS = sizeof op / sizeof *op };
    kl_tensor m = kl_iota(cpu, KL_F32, DIMS(3, 4), 1), row = kl_iota(cpu, KL_F32, DIMS(4), 0), y[2][OPS];
    kl_tensor index = kl_iota(cpu, KL_I32, DIMS(2), 0);
    kl_registration r[OPS];
    kl_key key = kl_key_find(strcmp(kl_device_name(cpu), "cpu") ? "Ref" : "CPU");
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < OPS && turn; i++)
            r[i] = reg(op[i], key, (kl_kernel){.name = "zero", .run = zero_run});
        y[turn][0] = kl_add(m, row);
        y[turn][1] = kl_eq(m, row);
        y[turn][2] = kl_sum(m, AXES(1), true);
        y[turn][3] = kl_matmul(m, kl_transpose(m, 0, 1));
        y[turn][4] = kl_reshape(m, DIMS(2, 6));
        y[turn][5] = kl_cast(m, KL_I64);
        y[turn][6] = kl_take(m, 1, index);
        y[turn][7] = kl_slice(m, (int64_t[]){0, 1}, (int64_t[]){3, 3}, (int64_t[]){1, 1});
        y[turn][8] = kl_argsort(m, 1, false);
        y[turn][9] = kl_concat(2, (kl_tensor[]){m, m}, 0);
    }
    for (int i = 0; i < OPS; i++) {
        int64_t d0[KL_MAX_RANK], d1[KL_MAX_RANK];
        int rank = kl_shape(y[0][i], d0);
        CHECK(rank >= 0 && kl_shape(y[1][i], d1) == rank && !memcmp(d0, d1, (size_t)rank * sizeof *d0));
        CHECK(kl_dtype_of(y[0][i]) == kl_dtype_of(y[1][i]) && kl_dtype_of(y[0][i]) != KL_DTYPE_COUNT);
        int before = zeroed;
        double *v = values_of(y[1][i]);
        CHECK(v && v[0] == 0 && v[kl_numel(y[1][i]) - 1] == 0 && zeroed > before);
        free(v);
    }
    /* wrong shapes are the op's errors, not the kernel's */
    kl_tensor bad = kl_add(m, index);
    CHECK(kl_check(bad) == KL_ERR_TYPE || kl_check(bad) == KL_ERR_SHAPE);
    kl_release(bad);
    for (int i = 0; i < OPS; i++) {
        drop(r[i]);
        kl_release(y[0][i]);
        kl_release(y[1][i]);
    }
    kl_release(m), kl_release(row), kl_release(index);
}

static void d14(void)
{
    const char *key = strcmp(kl_device_name(cpu), "cpu") ? "Ref" : "CPU";
    char want[64];
    snprintf(want, sizeof want, "BackendSelect,%s", key);
    kl_dispatch_log_begin();
    kl_tensor x = kl_iota(cpu, KL_F32, DIMS(3), 0);
    CHECK(keys_are(kl_dispatch_log_end(), want));
    kl_dispatch_log_begin();
    kl_tensor y = kl_neg(x);
    CHECK(keys_are(kl_dispatch_log_end(), key));
    kl_release(y);
    kl_dispatch_log_begin();
    y = kl_zeros(cpu, KL_F32, DIMS(3));
    const char *log = kl_dispatch_log_end();
    CHECK(strstr(log, "op=[const], key=[BackendSelect]") && strstr(log, "op=[expand], key=["));
    kl_release(y);
    y = kl_iota((kl_device){77}, KL_F32, DIMS(3), 0);
    CHECK(kl_check(y) == KL_ERR_DEVICE);
    kl_release(y);
    kl_release(x);
}

static void d16(void)
{
    kl_registration d = define("d16(Tensor x) -> Tensor"), a = reg("d16", KL_KEY_Autograd, giving(1, "fn_autograd"));
    const char *dump = kl_dispatch_dump_table("d16"), *s = dump;
    int n = 0;
    while ((s = strstr(s, ": fn_autograd [autograd kernel]\n")))
        n++, s++;
    CHECK(n == 9);
    static const char *const key[] = {"Other", "CPU", "CUDA", "XLA", "NestedTensor", "XPU", "PrivateUse1",
                                      "PrivateUse2",
                                      "PrivateUse3"};
    for (int i = 0; i < 9; i++) {
        char line[80];
        snprintf(line, sizeof line, "Autograd%s: fn_autograd [autograd kernel]", key[i]);
        CHECK(has_line(dump, line));
    }
    CHECK(call1("d16", SET(KL_KEY_Autograd, KL_KEY_XLA)) == 1);
    drop(a), drop(d);
}

static void d17(void)
{
    kl_registration d = define("d17(Tensor x) -> Tensor"), m = reg("d17", KL_KEY_Math, giving(1, "fn_math")),
                    s = reg("d17", KL_KEY_SparseCPU, giving(2, "fn_sparse"));
    CHECK(table_has("d17", "AutogradOther: ambiguous [ambiguous autogradother]"));
    CHECK(call1("d17", SET(KL_KEY_Autograd, KL_KEY_SparseCPU)) == -1);
    CHECK(says("d17 has kernels registered to both Math and a backend mapped to AutogradOther."));
    CHECK(call1("d17", SET(KL_KEY_Autograd, KL_KEY_CPU)) == 1 && call1("d17", SET(KL_KEY_SparseCPU)) == 2);
    drop(m), drop(s), drop(d);
}

/* A gradient of one's own: ten times that of b, nothing for the rest. */
static kl_status own_value(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_guard before = kl_dispatch_guard(NO_KEYS, kl_keyset_of(KL_KEY_Autograd));
    out[0] = kl_mul(in[0], in[1]);
    kl_dispatch_restore(before);
    return KL_OK;
}
static kl_status own_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nout;
    kl_guard before = kl_dispatch_guard(NO_KEYS, kl_keyset_of(KL_KEY_Autograd)); /* not its own gradient again */
    out[0] = kl_mul_scalar(in[nin - 1], 10);
    out[1] = kl_neg(in[nin - 1]);
    kl_dispatch_restore(before);
    return KL_OK;
}
static kl_status own_gradient(void *ctx, kl_call *call, kl_keyset keys)
{
    kl_tensor in[2] = {kl_call_input(call, 0), kl_call_input(call, 1)}, out;
    (void)keys;
    kl_status s = kl_custom_grad(own_value, own_backward, ctx, 2, in, 1, &out);
    kl_call_set_result(call, 0, out);
    return s;
}
static double gradient_of_mul(kl_device dev)
{
    kl_tensor a = kl_keep(kl_full(dev, KL_F32, DIMS(1), 3)), b = kl_keep(kl_full(dev, KL_F32, DIMS(1), 5));
    kl_requires_grad(a);
    kl_tensor g = kl_grad(kl_sum(kl_mul(a, b), 0, NULL, false), a);
    double v = (double)kl_item_f32(g);
    kl_release(a), kl_release(b), kl_release(g);
    return v;
}
static void d18(void)
{
    kl_device ref = kl_device_named("ref");
    bool both = ref.id && ref.id != cpu.id;
    kl_kernel own = {.name = "own", .call = own_gradient}, math = giving(1, "fn_math"),
        other = giving(2, "fn_autogradcpu");
    kl_registration r = reg("mul", both ? KL_KEY_AutogradCPU : KL_KEY_AutogradOther, own);
    CHECK(gradient_of_mul(cpu) == 10);
    if (both)
        CHECK(gradient_of_mul(ref) == 5);
    drop(r);
    CHECK(gradient_of_mul(cpu) == 5);
    kl_registration d = define("d18(Tensor x) -> Tensor"), a = reg("d18", KL_KEY_Autograd, math),
                    c = reg("d18", KL_KEY_AutogradCPU, other);
    CHECK(call1("d18", SET(KL_KEY_AutogradCPU)) == 2 && call1("d18", SET(KL_KEY_AutogradCUDA)) == 1);
    drop(a), drop(c), drop(d);
}

static void d19(void)
{
    CHECK(kl_key_find("PrivateUse1_PreAutograd") == KL_KEY_AutogradPrivateUse1);
    CHECK(kl_key_find("PrivateUse2_PreAutograd") == KL_KEY_AutogradPrivateUse2);
    CHECK(kl_key_find("PrivateUse3_PreAutograd") == KL_KEY_AutogradPrivateUse3);
    CHECK(kl_key_find("CPUTensorId") == KL_KEY_CPU && kl_key_find("CUDATensorId") == KL_KEY_CUDA);
    CHECK(kl_key_find("AutogradPrivateUse3") == KL_KEY_AutogradPrivateUse3 && kl_key_find("Cpu") == KL_KEY_CPU);
    CHECK(kl_key_find("CompositeImplicitAutograd") == KL_KEY_Math && kl_key_find("Vmap") == KL_KEY_Batched);
}

static kl_status multiply(void *ctx, kl_call *call, kl_keyset keys)
{
    ++*(int *)ctx;
    return kl_redispatch(call, kl_keyset_below(keys, KL_KEY_TESTING_ONLY_GenericWrapper));
}
static void d24(void)
{
    int mode = 0, wrapper = 0, explicit_mul = 0;
    kl_registration m, w, x;
    OK(kl_dispatch_fallback(KL_KEY_TESTING_ONLY_GenericMode,
                            &(kl_kernel){.name = "mode", .call = pass_on, .ctx = &mode}, &m));
    kl_guard before = kl_dispatch_guard(kl_keyset_of(KL_KEY_TESTING_ONLY_GenericMode), NO_KEYS);
    kl_tensor y = kl_neg(kl_const(cpu, KL_F32, 3)); /* an op and a factory */
    kl_dispatch_restore(before);
    CHECK(mode == 2);
    NEAR_LIST(y, 0, -3);
    OK(kl_dispatch_fallback(KL_KEY_TESTING_ONLY_GenericWrapper,
                            &(kl_kernel){.name = "wrapper", .call = pass_on, .ctx = &wrapper}, &w));
    kl_tensor a = number(2);
    OK(kl_dispatch_mark(a, kl_keyset_of(KL_KEY_TESTING_ONLY_GenericWrapper)));
    y = kl_abs(a);
    CHECK(wrapper == 1);
    NEAR_LIST(kl_neg(y), 0, -2); /* what it gives is not wrapped */
    CHECK(wrapper == 1);
    drop(w);
    OK(kl_dispatch_fallback(KL_KEY_TESTING_ONLY_GenericWrapper, &(kl_kernel){.name = "through"}, &w));
    x = reg("mul", KL_KEY_TESTING_ONLY_GenericWrapper, (kl_kernel){.name = "mul", .call = multiply,
                                                                   .ctx = &explicit_mul});
    before = kl_dispatch_guard(kl_keyset_of(KL_KEY_TESTING_ONLY_GenericWrapper), NO_KEYS);
    kl_tensor z = kl_zeros(cpu, KL_F32, 0, NULL);
    CHECK(explicit_mul == 0);
    kl_tensor p = kl_mul(z, a);
    CHECK(explicit_mul == 1);
    kl_dispatch_restore(before);
    NEAR_LIST(p, 0, 0);
    kl_release(y), kl_release(z), kl_release(a);
    drop(m), drop(w), drop(x);
}

static void d25(void)
{
    _Static_assert(KL_KEY_COUNT < 64, "keys");
    int known = 0;
    while (strcmp(kl_key_name((kl_key)known), "UNKNOWN_TENSOR_TYPE_ID"))
        known++;
    CHECK(KL_KEY_COUNT < 64 && known >= 47 && known == KL_KEY_COUNT + 3); /* and the three aliases */
}

/* Registers what the letters say - C cpu, X xla, M Math, D DefaultBackend, A Autograd, c AutogradCPU - and compares
 * entries. */
static void table_is(const char *kernels, const char *const *line)
{
    static const struct { char letter; kl_key key; const char *name; } known[] = {
        {'C', KL_KEY_CPU, "fn_cpu"}, {'X', KL_KEY_XLA, "fn_xla"}, {'M', KL_KEY_Math, "fn_math"},
        {'D', KL_KEY_DefaultBackend, "fn_defaultbackend"}, {'A', KL_KEY_Autograd, "fn_autograd"},
        {'c', KL_KEY_AutogradCPU, "fn_autogradcpu"}, {'q', KL_KEY_QuantizedCPU, "fn_quantizedcpu"}};
    kl_registration d = define("foo(Tensor x) -> Tensor"), r[8];
    int n = 0;
    for (const char *s = kernels; *s; s++)
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (known[i].letter == *s)
                r[n++] = reg("foo", known[i].key, giving((int)i, known[i].name));
    CHECK(n == (int)strlen(kernels));
    const char *dump = kl_dispatch_dump_table("foo");
    for (; *line; line++)
        CHECK(has_line(dump, *line));
    while (n)
        drop(r[--n]);
    drop(d);
}
#define TABLE(kernels, ...) table_is(kernels, (const char *const[]){__VA_ARGS__, NULL})
#define THROUGH "fallthrough registered in Kiln [backend fallback]"

static void d26(void)
{
    TABLE("CXM", "Undefined: fn_math [math kernel]", "CPU: fn_cpu [kernel]", "CUDA: fn_math [math kernel]",
          "XLA: fn_xla [kernel]", "AutogradOther: fn_math [math kernel]", "AutogradCPU: " THROUGH,
          "AutogradCUDA: fn_math [math kernel]", "AutogradXLA: " THROUGH);
    TABLE("CM", "Undefined: fn_math [math kernel]", "CPU: fn_cpu [kernel]", "AutogradCPU: " THROUGH,
          "AutogradXLA: fn_math [math kernel]", "AutogradOther: fn_math [math kernel]");
    TABLE("M", "Undefined: fn_math [math kernel]", "CPU: fn_math [math kernel]", "SparseCPU: fn_math [math kernel]",
          "AutogradOther: fn_math [math kernel]", "AutogradCPU: fn_math [math kernel]", "Tracer: missing",
          "AutogradPrivateUse1: fn_math [math kernel]");
    TABLE("CcM", "CPU: fn_cpu [kernel]", "AutogradCPU: fn_autogradcpu [kernel]", "AutogradXLA: fn_math [math kernel]",
          "Undefined: fn_math [math kernel]");
}

static void d27(void)
{
    TABLE("CD", "Undefined: fn_defaultbackend [default backend kernel]", "CPU: fn_cpu [kernel]",
          "CUDA: fn_defaultbackend [default backend kernel]", "AutogradOther: " THROUGH, "AutogradCPU: " THROUGH,
          "AutogradPrivateUse1: missing");
    TABLE("CAD", "Undefined: fn_defaultbackend [default backend kernel]", "CPU: fn_cpu [kernel]",
          "XLA: fn_defaultbackend [default backend kernel]", "AutogradOther: fn_autograd [autograd kernel]",
          "AutogradCPU: fn_autograd [autograd kernel]", "AutogradXLA: fn_autograd [autograd kernel]");
}

static void d28(void)
{
    TABLE("CAMD", "Undefined: fn_defaultbackend [default backend kernel]", "CPU: fn_cpu [kernel]",
          "CUDA: fn_defaultbackend [default backend kernel]", "XLA: fn_defaultbackend [default backend kernel]",
          "AutogradOther: fn_autograd [autograd kernel]", "AutogradCPU: fn_autograd [autograd kernel]",
          "AutogradCUDA: fn_autograd [autograd kernel]", "AutogradNestedTensor: fn_autograd [autograd kernel]");
    TABLE("CAM", "Undefined: fn_math [math kernel]", "CPU: fn_cpu [kernel]", "CUDA: fn_math [math kernel]",
          "AutogradOther: fn_math [math kernel]", "AutogradCPU: fn_autograd [autograd kernel]",
          "AutogradCUDA: fn_math [math kernel]");
    TABLE("qM", "QuantizedCPU: fn_quantizedcpu [kernel]", "AutogradOther: ambiguous [ambiguous autogradother]",
          "AutogradCPU: fn_math [math kernel]");
}

static void d29(void)
{
    static const char *const c10[] = {
        "Undefined", "CPU", "CUDA", "HIP", "FPGA", "MSNPU", "XLA", "Vulkan", "Metal", "XPU", "MKLDNN", "OpenGL",
            "OpenCL",
        "IDEEP", "QuantizedCPU", "QuantizedCUDA", "QuantizedXPU", "ComplexCPU", "ComplexCUDA", "CustomRNGKeyId",
            "MkldnnCPU",
        "SparseCPU", "SparseCUDA", "SparseHIP", "SparseXPU", "NestedTensor", "PrivateUse1", "PrivateUse2",
            "PrivateUse3",
        "Meta", "BackendSelect", "Named", "AutogradOther", "AutogradCPU", "AutogradCUDA", "AutogradXLA",
        "AutogradNestedTensor", "AutogradXPU", "AutogradPrivateUse1", "AutogradPrivateUse2", "AutogradPrivateUse3",
            "Tracer",
        "Autocast", "Batched", "VmapMode", "TESTING_ONLY_GenericWrapper", "TESTING_ONLY_GenericMode", "Autograd",
            "Math",
        "DefaultBackend"};
    static const char *const own[] = {"CPU", "CUDA", "XLA", "XPU", "NestedTensor", "PrivateUse1", "PrivateUse2",
                                      "PrivateUse3"};
    CHECK(sizeof c10 / sizeof *c10 == 50);
    for (int i = 0; i < 50; i++) {
        kl_key k = kl_key_find(c10[i]);
        char want[64] = "AutogradOther";
        for (int j = 0; j < 8; j++)
            if (!strcmp(own[j], c10[i]))
                snprintf(want, sizeof want, "Autograd%s", own[j]);
        CHECK(k != KL_KEY_UNKNOWN && !strcmp(kl_key_name(k), c10[i]) && kl_key_is_alias(k) == (i >= 47));
        CHECK(kl_key_autograd(k) == kl_key_find(want));
    }
    CHECK(!strcmp(kl_key_name((kl_key)200), "UNKNOWN_TENSOR_TYPE_ID") && !kl_key_is_alias((kl_key)200));
    CHECK(kl_key_is_backend(KL_KEY_Meta) && kl_key_is_backend(KL_KEY_SparseCPU) && !kl_key_is_backend(KL_KEY_Tracer) &&
          !kl_key_is_backend(KL_KEY_Undefined) && !kl_key_is_backend(KL_KEY_Math));
}

static void *guarded_elsewhere(void *arg)
{
    *(kl_guard *)arg = kl_dispatch_guarded();
    return NULL;
}
static void d30(void)
{
    kl_registration r;
    int n = 0;
    OK(kl_dispatch_fallback(KL_KEY_User2, &(kl_kernel){.name = "count", .call = pass_on, .ctx = &n}, &r));
    kl_tensor a = number(1), y;
    kl_guard start = kl_dispatch_guarded(), outer = kl_dispatch_guard(kl_keyset_of(KL_KEY_User2), NO_KEYS);
    CHECK(outer.included.bits == start.included.bits && outer.excluded.bits == start.excluded.bits);
    y = kl_neg(a), kl_release(y);
    CHECK(n == 1);
    kl_guard inner = kl_dispatch_guard(NO_KEYS, kl_keyset_of(KL_KEY_User2)); /* excluded and included */
    CHECK(kl_dispatch_guarded().included.bits == inner.included.bits);
    y = kl_neg(a), kl_release(y);
    CHECK(n == 1);
    kl_guard other = {{1}, {1}};
    pthread_t t;
    pthread_create(&t, NULL, guarded_elsewhere, &other);
    pthread_join(t, NULL);
    CHECK(other.included.bits == 0 && other.excluded.bits == 0);
    kl_dispatch_restore(inner);
    y = kl_neg(a), kl_release(y);
    CHECK(n == 2);
    kl_dispatch_restore(outer);
    y = kl_neg(a), kl_release(y);
    CHECK(n == 2 && kl_dispatch_guarded().included.bits == start.included.bits);
    CHECK(kl_keyset_has(kl_dispatch_keys(1, &a), KL_KEY_Autograd));
    kl_no_grad_begin();
    CHECK(!kl_keyset_has(kl_dispatch_keys(1, &a), KL_KEY_Autograd));
    kl_no_grad_end();
    kl_release(a);
    drop(r);
}

static void d31(void)
{
    int n = 0;
    kl_registration all, one;
    kl_tensor a = number(1), y;
    OK(kl_dispatch_fallback(KL_KEY_User3, &(kl_kernel){.name = "count", .call = pass_on, .ctx = &n}, &all));
    one = reg("neg", KL_KEY_User3, (kl_kernel){.name = "through"}); /* of one op, over a fallback that counts */
    kl_guard before = kl_dispatch_guard(kl_keyset_of(KL_KEY_User3), NO_KEYS);
    y = kl_neg(a), kl_release(y);
    CHECK(n == 0);
    y = kl_abs(a), kl_release(y);
    CHECK(n == 1);
    kl_dispatch_restore(before);
    kl_keyset with = SET(KL_KEY_User3, KL_KEY_CPU);
    CHECK(kl_dispatch_resolve("neg", with) == KL_KEY_CPU && kl_dispatch_resolve("abs", with) == KL_KEY_User3);
    CHECK(table_has("neg", "User3: fallthrough registered in a user's program [kernel]"));
    CHECK(table_has("neg", "AutogradCPU: " THROUGH));
    drop(one), drop(all);
    CHECK(kl_dispatch_resolve("abs", with) == KL_KEY_CPU);
    one = reg("neg", KL_KEY_CUDA, (kl_kernel){.name = "through"}); /* a device's: the next one's turn */
    CHECK(kl_dispatch_resolve("neg", SET(KL_KEY_CUDA, KL_KEY_CPU)) == KL_KEY_CPU);
    drop(one);
    kl_release(a);
}

struct seen { char text[4000]; int calls; };
static kl_status see(void *ctx, kl_call *call, kl_keyset keys)
{
    struct seen *s = ctx;
    size_t n = strlen(s->text);
    snprintf(s->text + n, sizeof s->text - n, "%s %s %d;", kl_call_op(call), kl_call_schema(call),
             (int)kl_call_inputs(call));
    s->calls++;
    return kl_redispatch(call, kl_keyset_below(keys, kl_call_key(call)));
}
static kl_status twice(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add(in[0], in[0]);
    return KL_OK;
}
static void d32(void)
{
    static struct seen seen;
    kl_registration r;
    kl_tensor x = kl_input(cpu, KL_F32, DIMS(2, 2), (float[]){1, 2, 3, 4}), plain = kl_softmax(x, 1), y;
    OK(kl_dispatch_fallback(KL_KEY_User4, &(kl_kernel){.name = "see", .call = see, .ctx = &seen}, &r));
    kl_guard before = kl_dispatch_guard(kl_keyset_of(KL_KEY_User4), NO_KEYS);
    kl_tensor soft = kl_softmax(x, 1);
    CHECK(seen.calls >= 4 && strstr(seen.text, "exp exp(Tensor a) -> Tensor 1;") &&
          strstr(seen.text, "sub sub(Tensor a, Tensor b) -> Tensor 2;"));
    double *want = values_of(plain);
    NEAR(soft, 4, want, 0);
    seen.text[0] = 0;
    OK(kl_checkpoint(twice, NULL, 1, &x, 1, &y)); /* an op with regions and a list */
    CHECK(strstr(seen.text, "add add(") && strstr(seen.text, "checkpoint checkpoint(Tensor[] in) -> Tensor[] 1;"));
    NEAR_LIST(y, 0, 2, 4, 6, 8);
    kl_trace_begin("d32"); /* and in a trace, compared with the one before */
    kl_tensor z = kl_keep(kl_neg(x));
    OK(kl_trace_end());
    NEAR_LIST(z, 0, -1, -2, -3, -4);
    kl_dispatch_restore(before);
    free(want);
    kl_release(plain), kl_release(x);
    drop(r);
}

/* Each kind of argument has keys: one operand, another one, a list, captured tensors, options, a generator. */
static kl_status seen_keys(void *ctx, kl_call *call, kl_keyset keys)
{
    ((kl_keyset *)ctx)->bits |= keys.bits;
    return kl_redispatch(call, kl_keyset_remove(keys, kl_call_key(call)));
}
static kl_status uses_outside(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_add(in[0], *(kl_tensor *)ctx);
    return KL_OK;
}
static void d33(void)
{
    kl_keyset seen = {0}, mark = kl_keyset_of(KL_KEY_User3);
    kl_kernel k = {.name = "seen", .call = seen_keys, .ctx = &seen};
    kl_registration r;
    kl_tensor plain = vector(1, 2), marked = vector(3, 4), y;
    OK(kl_dispatch_fallback(KL_KEY_User3, &k, &r));
    OK(kl_dispatch_mark(marked, mark));
    CHECK(!kl_keyset_has(kl_dispatch_keys(1, &plain), KL_KEY_User3) &&
          kl_keyset_has(kl_dispatch_keys(1, &marked), KL_KEY_User3));
#define SEES(make) (seen.bits = 0, y = (make), kl_release(y), kl_keyset_has(seen, KL_KEY_User3))
    CHECK(!SEES(kl_add(plain, plain)));
    CHECK(SEES(kl_add(marked, plain)));
    CHECK(SEES(kl_add(plain, marked)));
    CHECK(SEES(kl_where(kl_lt(plain, plain), plain, marked)));
    CHECK(SEES(kl_concat(3, (kl_tensor[]){plain, plain, marked}, 0)));
    CHECK(!SEES(kl_concat(3, (kl_tensor[]){plain, plain, plain}, 0)));
    CHECK(SEES((kl_checkpoint(uses_outside, &marked, 1, &plain, 1, &y), y)));
    CHECK(SEES(kl_rand_from(&(kl_generator){KL_KEY_User3, 1}, cpu, KL_F32, DIMS(2))));
    CHECK(!SEES(kl_rand(cpu, KL_F32, DIMS(2), 1)));
    kl_dispatch_log_begin(); /* options: the device of an op without tensors */
    y = kl_iota(cpu, KL_F32, DIMS(2), 0);
    CHECK(strstr(kl_dispatch_log_end(), strcmp(kl_device_name(cpu), "cpu") ? "key=[Ref]" : "key=[CPU]"));
    kl_release(y), kl_release(plain), kl_release(marked);
    drop(r);
}

static void d34(void)
{
    kl_kernel f = giving(1, "fn_cpu"), g = giving(2, "fn_math"), h = giving(3, "fn_cpu2"), dup = giving(1, "again");
    f.schema = h.schema = "(Tensor _0) -> (Tensor _0)";
    kl_registration d = define("foo(Tensor x) -> Tensor"), a = reg("foo", KL_KEY_CPU, f),
        b = reg("foo", KL_KEY_Math, g),
                    c = reg("foo", KL_KEY_CPU, h);
    CHECK(text_is(kl_dispatch_dump("foo"),
                  "name: foo\nschema: foo(Tensor x) -> Tensor\ndebug: registered in a user's program\n"
                  "alias analysis kind: PURE_FUNCTION\nCPU: fn_cpu2 :: (Tensor _0) -> (Tensor _0) [ boxed ]\n"
                  "CPU (inactive): fn_cpu :: (Tensor _0) -> (Tensor _0) [ boxed ]\n"
                  "Math[alias]: fn_math :: (Tensor x) -> Tensor [ boxed ]\n"));
    OK(kl_dispatch_check());
    CHECK(table_has("foo", "CPU: fn_cpu2 [kernel]") && table_has("foo", "XLA: fn_math [math kernel]"));
    CHECK(table_has("foo", "Tracer: missing") && table_has("foo", "AutogradCPU: " THROUGH));
    drop(c), drop(b), drop(a), drop(d);
    CHECK(text_is(kl_dispatch_dump("add"),
                  "name: add\nschema: add(Tensor a, Tensor b) -> Tensor\ndebug: registered in Kiln\n"
                  "alias analysis kind: PURE_FUNCTION\n"
                  "DefaultBackend[alias]: graph node :: (Tensor a, Tensor b) -> Tensor [ boxed unboxed ]\n"));
    CHECK(table_has("add", "CPU: graph node [default backend kernel]") && table_has("add", "Autocast: " THROUGH));
    CHECK(text_is(kl_dispatch_dump("no such op"), "") && text_is(kl_dispatch_dump("foo"), ""));
    (void)dup;
}

/* ---- D35: what is registered in any order is one table, and goes without a trace ---- */

static kl_registration registered_one(int which)
{
    return which == 0 ? define("foo(Tensor x) -> Tensor") : which == 1 ? reg("foo", KL_KEY_CPU, giving(1, "fn_cpu"))
           : which == 2 ? reg("foo", KL_KEY_Math, giving(2, "fn_math"))
               : reg("foo", KL_KEY_Autograd, giving(3, "fn_autograd"));
}
static void d35(void)
{
    char *state = NULL, *table = NULL;
    for (int p = 0; p < 256; p++) {
        int order[4] = {p & 3, p >> 2 & 3, p >> 4 & 3, p >> 6 & 3}, used = 0;
        kl_registration r[4];
        for (int i = 0; i < 4; i++)
            used |= 1 << order[i];
        if (used != 15)
            continue;
        for (int i = 0; i < 4; i++)
            r[i] = registered_one(order[i]);
        if (!state)
            state = strdup(kl_dispatch_dump("foo")), table = strdup(kl_dispatch_dump_table("foo"));
        CHECK(text_is(kl_dispatch_dump("foo"), state) && text_is(kl_dispatch_dump_table("foo"), table));
        for (int i = 0; i < 4; i++)
            drop(r[(i + p) % 4]);
        CHECK(text_is(kl_dispatch_dump("foo"), "") && kl_dispatch_kernel_count("foo") == 0);
    }
    free(state), free(table);
    OK(kl_dispatch_check());
    /* failures change nothing */
    kl_registration d = define("foo(Tensor x) -> Tensor"), a = reg("foo", KL_KEY_CPU, giving(1, "fn_cpu")), r = {1};
    char *before = strdup(kl_dispatch_dump("foo"));
    kl_kernel two = giving(2, "fn_two");
    two.schema = "(Tensor _0, Tensor _1) -> Tensor";
    CHECK(kl_dispatch_register("foo", KL_KEY_CUDA, &two, &r) == KL_ERR_ARGUMENT && !r.id);
    CHECK(
        says("expected schema of operator is \"foo(Tensor x) -> Tensor\"") &&
        says(
            "inferred schema is \"(Tensor _0, Tensor _1) -> Tensor\". (The number of arguments is different. 1 vs 2)"));
    CHECK(kl_dispatch_define("foo(Tensor x, Tensor y) -> Tensor", &r) == KL_ERR_ARGUMENT && !r.id);
    CHECK(says("Tried to register an operator (foo(Tensor x, Tensor y) -> Tensor) with the same name and overload name "
               "multiple times."));
    CHECK(kl_dispatch_define("add(Tensor x) -> Tensor", NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_dispatch_define("bad", NULL) == KL_ERR_ARGUMENT &&
          kl_dispatch_define("bad(x) -> Tensor", NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_dispatch_fallback(KL_KEY_AutogradCPU, &(kl_kernel){.name = "mine"}, NULL) == KL_ERR_ARGUMENT);
    CHECK(says("Tried to register multiple backend fallbacks for the same dispatch key AutogradCPU"));
    CHECK(kl_dispatch_register("foo", KL_KEY_UNKNOWN, &two, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_dispatch_register("foo", KL_KEY_CPU, NULL, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_dispatch_register("foo", KL_KEY_Tracer, &(kl_kernel){.run = zero_run}, NULL) == KL_ERR_ARGUMENT);
    CHECK(text_is(kl_dispatch_dump("foo"), before));
    free(before);
    drop(a), drop(d);
    /* a kernel that is there first, and a schema that it does not fit */
    a = reg("foo", KL_KEY_CUDA, two);
    CHECK(kl_dispatch_define("foo(Tensor x) -> Tensor", &r) == KL_ERR_ARGUMENT &&
          strstr(kl_dispatch_dump("foo"), "schema: (none)"));
    kl_registration b = reg("foo", KL_KEY_CUDA, two);
    CHECK(strstr(kl_dispatch_warning(),
                 "Overriding a previously registered kernel for the same operator and the same dispatch "
                                        "key: operator foo, dispatch key CUDA"));
    drop(b), drop(a);
}

static void d36(void)
{
    kl_registration d = define("foo(Tensor x) -> Tensor"), a = reg("foo", KL_KEY_XLA, giving(1, "fn_xla")),
                    b = reg("foo", KL_KEY_Tracer, giving(2, "fn_tracer"));
    const char *key = strcmp(kl_device_name(cpu), "cpu") ? "Ref" : "CPU";
    char text[200];
    kl_tensor x = number(1), y;
    CHECK(kl_dispatch("foo", 1, &x, 1, &y) == KL_ERR_ARGUMENT);
    snprintf(text, sizeof text,
             "Could not run 'foo' with arguments from the '%s' backend. 'foo' is only available for these "
             "backends: [XLA, Tracer].", key);
    CHECK(says(text) && says("\nCUDA: missing\n") && says("api_seeds_tables.c:"));
    kl_release(y);
    CHECK(kl_dispatch("foo", 2, (kl_tensor[]){x, x}, 1, &y) == KL_ERR_ARGUMENT && says("its schema has other numbers"));
    kl_release(y);
    CHECK(kl_dispatch("no such op", 1, &x, 1, &y) == KL_ERR_ARGUMENT && says("no op is called that"));
    kl_release(y);
    CHECK(kl_dispatch("sum", 1, &x, 1, &y) == KL_ERR_ARGUMENT);
    kl_release(y), kl_release(x);
    drop(a), drop(b), drop(d);
}

/* ---- D37, and that dispatch takes no memory ---- */

static int taken;
static void *take(void *ctx, size_t bytes)
{
    return __atomic_fetch_add((int *)ctx, 1, __ATOMIC_RELAXED), malloc(bytes);
}
static void *grow(void *ctx, void *p, size_t bytes)
{
    return __atomic_fetch_add((int *)ctx, 1, __ATOMIC_RELAXED), realloc(p, bytes);
}
static void give_back(void *ctx, void *p) { (void)ctx, free(p); }

/* Memory taken by the ops of a trace that was recorded before. */
static int taken_by_ops(void)
{
    int n = 0;
    for (int turn = 0; turn < 3; turn++) {
        kl_trace_begin("d37");
        kl_tensor x = kl_const(cpu, KL_F32, 2);
        int before = __atomic_load_n(&taken, __ATOMIC_RELAXED);
        for (int i = 0; i < 100; i++)
            x = kl_add(x, x);
        n = __atomic_load_n(&taken, __ATOMIC_RELAXED) - before;
        kl_keep(x);
        OK(kl_trace_end());
        kl_release(x);
    }
    return n;
}

static void d37(void)
{
    CHECK(taken > 0 && taken_by_ops() == 0);
    kl_kernel pass = {.name = "pass", .call = pass_on};
    kl_tensor a = number(1), b = number(2), y;
    uint64_t start = kl_dispatch_reads();
    y = kl_add(a, b);
    CHECK(kl_dispatch_reads() - start == 2); /* the op's and this call's own */
    kl_release(y);
    kl_registration t, w;
    OK(kl_dispatch_fallback(KL_KEY_TracerOuter, &pass, &t));
    OK(kl_dispatch_fallback(KL_KEY_Profiler, &pass, &w));
    kl_guard before = kl_dispatch_guard(SET(KL_KEY_TracerOuter, KL_KEY_Profiler), NO_KEYS);
    kl_dispatch_log_begin();
    start = kl_dispatch_reads();
    y = kl_add(a, b);
    uint64_t reads = kl_dispatch_reads() - start;
    const char *log = kl_dispatch_log_end();
    kl_dispatch_restore(before);
    CHECK(strstr(log, "key=[TracerOuter]") && strstr(log, "  [redispatch] op=[add]"));
    CHECK(reads == 2);
    before = kl_dispatch_guard(SET(KL_KEY_TracerOuter, KL_KEY_Profiler), NO_KEYS);
    CHECK(taken_by_ops() == 0);
    kl_dispatch_restore(before);
    kl_release(a), kl_release(b);
    NEAR_LIST(y, 0, 3);
    drop(t), drop(w);
}

static const struct row rows[] = {
    {"D1", d1}, {"D2", d2}, {"D4", d4}, {"D7", d7}, {"D13", d13}, {"D14", d14}, {"D16", d16},
    {"D17", d17}, {"D18", d18}, {"D19", d19}, {"D24", d24}, {"D25", d25}, {"D26", d26},
    {"D27", d27}, {"D28", d28}, {"D29", d29}, {"D30", d30}, {"D31", d31}, {"D32", d32},
    {"D33", d33}, {"D34", d34}, {"D35", d35}, {"D36", d36}, {"D37", d37},
};

int main(int argc, char **argv)
{
    kl_set_memory(&(kl_memory){take, grow, give_back, &taken});
    return RUN_ROWS(rows);
}
