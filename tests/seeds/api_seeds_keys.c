/* Rows B of the dispatch system: the eleven keys, on the library's own ops and on others; and kernels of users'
 * programs. Arguments: ids of rows; none: all. */
#include "api_seeds.h"
#include <kiln/compat.h>

static void b1(void)
{
    kl_tensor a = vector(1, 2), b = vector(3, 4);
    int64_t launches = kl_counter("launches");
    kl_dispatch_log_begin();
    kl_tensor y = kl_add(a, b);
    bool compiled = !strcmp(kl_device_name(cpu), "cpu");
    CHECK(keys_are(kl_dispatch_log_end(), compiled ? "CPU" : "Ref"));
    NEAR_LIST(y, 0, 4, 6);
    if (compiled)
        CHECK(kl_counter("launches") > launches);
    kl_release(a);
    kl_release(b);
}

static void b2(void)
{
    kl_registration d = define("b2(Tensor x) -> Tensor"), c = reg("b2", KL_KEY_CPU, giving(1, "fn_cpu")),
                    g = reg("b2", KL_KEY_CUDA, giving(2, "fn_cuda"));
    CHECK(call1("b2", SET(KL_KEY_CPU, KL_KEY_CUDA)) == 2);
    kl_tensor x = number(0), y;
    OK(kl_dispatch_direct("b2", KL_KEY_CPU, 1, &x, 1, &y));
    NEAR_LIST(y, 0, 1);
    CHECK(kl_dispatch_resolve("add", SET(KL_KEY_CPU, KL_KEY_CUDA)) == KL_KEY_CUDA); /* and ops of ops.def */
    kl_release(x);
    drop(c), drop(g), drop(d);
}

static kl_dtype seen_by_autograd;
static kl_status autograd_sees(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx;
    seen_by_autograd = kl_dtype_of(kl_call_input(call, 0));
    return kl_redispatch(call, kl_keyset_below(keys, kl_call_key(call)));
}

/* The eleven from the highest number to the lowest; sets keep their order; calls of a thread that includes it have
 * it. */
static void order_of_eleven(void)
{
    kl_keyset set = kl_keyset_order16(kl_keyset_from16(0x7ff));
    uint16_t bits = 0;
    for (int n = 10; n > 1; n--) { /* the devices stay */
        uint16_t one = (uint16_t)(1u << n);
        kl_key top = kl_keyset_highest(set);
        CHECK(kl_keyset_to16(kl_keyset_minus(set, kl_keyset_below(set, top)), &bits) && bits == one);
        CHECK(kl_keyset_to16(set, &bits) && bits == 2 * one - 1 && kl_keyset_has(set, top));
        set = kl_keyset_below(set, top);
    }
    char text[100];
    set = kl_keyset_union(SET(KL_KEY_Autograd, KL_KEY_Autocast, KL_KEY_CPU), kl_keyset_order16(NO_KEYS));
    CHECK(!strcmp(kl_keyset_text(set, text, sizeof text), "{AutogradCPU, Autocast, CPU}"));
    kl_registration r = reg("dot", KL_KEY_Autograd, (kl_kernel){.name = "sees", .call = autograd_sees});
    kl_tensor a = kl_ones(cpu, KL_F32, DIMS(2, 2)), b = kl_ones(cpu, KL_F32, DIMS(2, 2));
    OK(kl_autocast_begin(KL_BF16));
    for (int eleven = 0; eleven < 2; eleven++) {
        kl_guard before = kl_dispatch_guard(eleven ? kl_keyset_order16(NO_KEYS) : NO_KEYS, NO_KEYS);
        kl_tensor y = kl_matmul(a, b);
        CHECK(seen_by_autograd == (eleven ? KL_F32 : KL_BF16) && kl_dtype_of(y) == KL_BF16);
        NEAR_LIST(y, 0, 2, 2, 2, 2);
        kl_dispatch_restore(before);
    }
    CHECK(kl_dispatch_guarded().included.bits == SET(KL_KEY_Autocast).bits);
    OK(kl_autocast_end());
    drop(r);
    kl_release(a), kl_release(b);
}

static void b12(void)
{
    CHECK(KL_KEY16_Cpu == 0 && KL_KEY16_Cuda == 1 && KL_KEY16_Meta == 2 && KL_KEY16_Sparse == 3 &&
          KL_KEY16_Quantized == 4);
    CHECK(KL_KEY16_Nested == 5 && KL_KEY16_Autocast == 6 && KL_KEY16_Autograd == 7 && KL_KEY16_Vmap == 8);
    CHECK(KL_KEY16_Profiler == 9 && KL_KEY16_Tracer == 10);
    kl_kernel pass = {.name = "pass", .call = pass_on};
    kl_registration r[] = {reg("add", KL_KEY_Autograd, pass), reg("add", KL_KEY_Batched, pass),
                           reg("add", KL_KEY_Autocast, pass),
                           reg("add", KL_KEY_Profiler, pass), reg("add", KL_KEY_TracerOuter, pass)};
    uint16_t all = 1 << KL_KEY16_Tracer | 1 << KL_KEY16_Profiler | 1 << KL_KEY16_Vmap | 1 << KL_KEY16_Autograd |
        1 << KL_KEY16_Autocast |
                   1 << KL_KEY16_Cpu;
    kl_tensor in[2] = {number(1), number(2)}, y;
    for (int eleven = 0; eleven < 2; eleven++) {
        kl_dispatch_log_begin();
        OK(kl_dispatch_with("add", eleven ? kl_keyset_order16(kl_keyset_from16(all)) : kl_keyset_from16(all), 2, in, 1,
                            &y));
        CHECK(keys_are(kl_dispatch_log_end(), eleven ? "TracerOuter,Profiler,Batched,AutogradCPU,Autocast,CPU"
                                                     : "TracerOuter,Profiler,Batched,Autocast,AutogradCPU,CPU"));
        NEAR_LIST(y, 0, 3);
    }
    for (int i = 0; i < 5; i++)
        drop(r[i]);
    order_of_eleven();
    kl_release(in[0]);
    kl_release(in[1]);
}

static void b13(void)
{
    bool exact = true, algebra = true;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t back, u = (uint16_t)i, v = (uint16_t)(i * 40503u);
        kl_keyset a = kl_keyset_from16(u), b = kl_keyset_from16(v);
        exact &= kl_keyset_to16(a, &back) && back == u && kl_keyset_count(a) == (unsigned)__builtin_popcount(u);
        algebra &= kl_keyset_to16(kl_keyset_union(a, b), &back) && back == (u | v);
        algebra &= kl_keyset_to16(kl_keyset_intersection(a, b), &back) && back == (u & v);
        algebra &= kl_keyset_to16(kl_keyset_minus(a, b), &back) && back == (u & ~v);
    }
    CHECK(exact);
    CHECK(algebra);
    uint16_t bits;
    CHECK(!kl_keyset_to16(kl_keyset_of(KL_KEY_Named), &bits) && bits == 0);
    CHECK(!kl_keyset_to16(SET(KL_KEY_HIP, KL_KEY_CPU), &bits) && bits == 1);
    CHECK(kl_keyset_highest(NO_KEYS) == KL_KEY_Undefined && kl_keyset_count(NO_KEYS) == 0);
    bool single = true, order = true;
    for (unsigned k = 1; k < KL_KEY_COUNT; k++) {
        kl_keyset s = kl_keyset_of((kl_key)k);
        single &= s.bits && kl_keyset_has(s, (kl_key)k) && kl_keyset_highest(s) == (kl_key)k;
        kl_keyset less = kl_keyset_remove(s, (kl_key)k);
        single &= !kl_keyset_has(less, (kl_key)k) && kl_keyset_below(s, (kl_key)k).bits == less.bits;
        for (unsigned below = 1; below < k && kl_keyset_count(s) == 1; below++) /* devices, then layers */
            order &= kl_keyset_count(kl_keyset_of((kl_key)below)) > 1 ||
                     kl_keyset_highest(kl_keyset_union(s, kl_keyset_of((kl_key)below))) >= (kl_key)k;
    }
    CHECK(single);
    CHECK(order);
    CHECK(KL_KEY_User5 == KL_KEY_COUNT - 1);
    /* descending */
    kl_keyset s = SET(KL_KEY_SparseCUDA, KL_KEY_Tracer, KL_KEY_Autograd);
    kl_key want[] = {KL_KEY_Tracer, KL_KEY_AutogradOther, KL_KEY_SparseCUDA, KL_KEY_CUDA};
    for (int i = 0; i < 4; i++) {
        CHECK(kl_keyset_highest(s) == want[i]);
        s = kl_keyset_remove(s, want[i]);
    }
    CHECK(s.bits == 0);
}

static void b14(void)
{
    kl_registration d = define("b14(Tensor x) -> Tensor"), r1 = reg("b14", KL_KEY_CPU, giving(1, "old"));
    CHECK(!*kl_dispatch_warning());
    CHECK(call1("b14", kl_keyset_of(KL_KEY_CPU)) == 1);
    kl_registration r2 = reg("b14", KL_KEY_CPU, giving(2, "new"));
    CHECK(call1("b14", kl_keyset_of(KL_KEY_CPU)) == 2);
    drop(r2);
    CHECK(call1("b14", kl_keyset_of(KL_KEY_CPU)) == 1);
    CHECK(kl_dispatch_deregister(r2) == KL_ERR_ARGUMENT && says("not registered"));
    drop(r1), drop(d);
    /* on a real op: no longer the node of its own, then that again */
    kl_tensor a = number(1), b = number(2);
    kl_registration r = reg("add", KL_KEY_CPU, giving(9, "nine")), s = reg("add", KL_KEY_Ref, giving(9, "nine"));
    NEAR_LIST(kl_add(a, b), 0, 9);
    drop(r), drop(s);
    NEAR_LIST(kl_add(a, b), 0, 3);
    kl_release(a);
    kl_release(b);
}

static void b15(void)
{
    kl_registration d = define("b15(Tensor x) -> Tensor");
    CHECK(kl_dispatch_kernel_count("b15") == 0 && !kl_dispatch_has_kernel("b15", KL_KEY_CPU));
    kl_registration a = reg("b15", KL_KEY_CPU, giving(1, "a")), b = reg("b15", KL_KEY_Autograd, giving(2, "b")),
                    c = reg("b15", KL_KEY_CPU, giving(3, "c"));
    CHECK(kl_dispatch_kernel_count("b15") == 2 && kl_dispatch_has_kernel("b15", KL_KEY_CPU));
    CHECK(kl_dispatch_has_kernel("b15", KL_KEY_Autograd) && !kl_dispatch_has_kernel("b15", KL_KEY_AutogradCPU));
    drop(a);
    CHECK(kl_dispatch_has_kernel("b15", KL_KEY_CPU));
    drop(b), drop(c), drop(d);
    CHECK(kl_dispatch_kernel_count("b15") == 0 && kl_dispatch_kernel_count("no such op") == 0);
    CHECK(kl_dispatch_has_kernel("add", KL_KEY_DefaultBackend));
}

static void b16(void)
{
    kl_registration d = define("b16(Tensor x) -> Tensor"), c = reg("b16", KL_KEY_CPU, giving(5, "fn_cpu"));
    CHECK(call1("b16", SET(KL_KEY_Autograd, KL_KEY_CPU)) == 5);
    CHECK(call1("b16", SET(KL_KEY_Tracer, KL_KEY_Named, KL_KEY_CPU)) == 5);
    CHECK(call1("b16", SET(KL_KEY_Tracer, KL_KEY_CUDA)) == -1); /* a backend is not passed over */
    drop(c), drop(d);
}

static void b17(void)
{
    kl_registration d = define("b17(Tensor x) -> Tensor"), c = reg("b17", KL_KEY_CPU, giving(4, "fn_cpu"));
    int n = 0;
    kl_kernel pass = {.name = "pass", .call = pass_on, .ctx = &n};
    kl_registration t = reg("b17", KL_KEY_Tracer, pass), a = reg("b17", KL_KEY_AutogradCPU, pass);
    kl_dispatch_log_begin();
    CHECK(call1("b17", SET(KL_KEY_Tracer, KL_KEY_Autograd, KL_KEY_CPU)) == 4);
    const char *log = kl_dispatch_log_end();
    CHECK(has_line(log, "[call] op=[b17], key=[Tracer]") && has_line(log, " [redispatch] op=[b17], key=[AutogradCPU]"));
    CHECK(has_line(log, "  [redispatch] op=[b17], key=[CPU]") && n == 2);
    drop(t), drop(a), drop(c), drop(d);
}

static void b18(void)
{
    kl_registration d = define("b18(Tensor x) -> Tensor"), c = reg("b18", KL_KEY_CPU, giving(1, "fn_cpu")),
                    r = reg("b18", KL_KEY_Ref, giving(1, "fn_ref")),
                        a = reg("b18", KL_KEY_Autograd, giving(3, "fn_autograd"));
    kl_tensor x = number(0), z;
    OK(kl_dispatch("b18", 1, &x, 1, &z));
    NEAR_LIST(z, 0, 3);
    OK(kl_dispatch_direct("b18", KL_KEY_CPU, 1, &x, 1, &z)); /* whatever is above it */
    NEAR_LIST(z, 0, 1);
    kl_release(x);
    drop(a), drop(r), drop(c), drop(d);
    kl_tensor in[2] = {number(1), number(2)}, y;
    OK(kl_dispatch_direct("add", KL_KEY_CPU, 2, in, 1, &y));
    NEAR_LIST(y, 0, 3);
    kl_release(in[0]);
    kl_release(in[1]);
}

static void b19(void)
{
    kl_registration d = define("b19(Tensor x) -> Tensor");
    kl_tensor x = number(1), y;
    CHECK(kl_dispatch_with("b19", NO_KEYS, 1, &x, 1, &y) == KL_ERR_ARGUMENT);
    CHECK(says("Dispatcher::call(b19): empty keyset — no backend to run on"));
    kl_release(y);
    CHECK(kl_dispatch_with("b19", SET(KL_KEY_Autograd, KL_KEY_CPU), 1, &x, 1, &y) == KL_ERR_ARGUMENT);
    CHECK(says("Dispatcher::call(b19): no kernel registered for any key in DispatchKeySet {AutogradCPU, CPU}"));
    kl_release(y);
    CHECK(kl_dispatch_direct("b19", KL_KEY_CUDA, 1, &x, 1, &y) == KL_ERR_ARGUMENT);
    CHECK(says("Dispatcher::call_direct(b19, CUDA): no kernel registered"));
    CHECK(kl_check(y) != KL_OK);
    kl_release(y);
    kl_release(x);
    drop(d);
}

enum { CALLERS = 8, CALLS = 400 };
static int stop_registering, wrong_values;
static void *call_add(void *arg)
{
    double mine = (double)(intptr_t)arg;
    for (int i = 0; i < CALLS; i++) {
        kl_tensor a = kl_scalar(cpu, i % 2 ? KL_F32 : KL_F64, mine), b = kl_scalar(cpu, i % 2 ? KL_F32 : KL_F64, 1);
        kl_tensor y = kl_add(a, b), z = kl_none;
        if (kl_dispatch("b20", 1, &a, 1, &z) != KL_OK || kl_item_f64(y) != mine + 1)
            __atomic_fetch_add(&wrong_values, 1, __ATOMIC_RELAXED);
        else if (i % 64 == 0) {
            double v = kl_item_f64(z);
            if (v != 1 && v != 2)
                __atomic_fetch_add(&wrong_values, 1, __ATOMIC_RELAXED);
        }
        kl_release(a), kl_release(b), kl_release(y), kl_release(z);
        if (i % 4)
            continue;
        kl_trace_begin("b20"); /* without a lock */
        kl_tensor t = kl_const(cpu, KL_F32, mine);
        for (int k = 0; k < 20; k++)
            t = kl_add(t, t);
        if (kl_check(t) != KL_OK)
            __atomic_fetch_add(&wrong_values, 1, __ATOMIC_RELAXED);
        kl_trace_abandon();
    }
    return NULL;
}
static void *register_often(void *arg)
{
    kl_kernel pass = {.name = "pass", .call = pass_on};
    (void)arg;
    for (int i = 0; !__atomic_load_n(&stop_registering, __ATOMIC_ACQUIRE) || i < 100; i++) {
        kl_kernel other = giving(2, "fn_two");
        kl_registration r, s, f;
        if (kl_dispatch_register("b20", KL_KEY_CPU, &other, &r) ||
            kl_dispatch_register("add", KL_KEY_Autograd, &pass, &s) ||
            kl_dispatch_fallback(KL_KEY_Tracer, &pass, &f) || kl_dispatch_deregister(f) || kl_dispatch_deregister(r) ||
            kl_dispatch_deregister(s))
            __atomic_fetch_add(&wrong_values, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}
static void b20(void)
{
    kl_registration d = define("b20(Tensor x) -> Tensor"), one = reg("b20", KL_KEY_CPU, giving(1, "fn_one")),
                    ref = reg("b20", KL_KEY_Ref, giving(1, "fn_one"));
    pthread_t caller[CALLERS], registrar;
    wrong_values = 0;
    __atomic_store_n(&stop_registering, 0, __ATOMIC_RELEASE);
    pthread_create(&registrar, NULL, register_often, NULL);
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&caller[i], NULL, call_add, (void *)(intptr_t)i);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(caller[i], NULL);
    __atomic_store_n(&stop_registering, 1, __ATOMIC_RELEASE);
    pthread_join(registrar, NULL);
    CHECK(wrong_values == 0);
    OK(kl_dispatch_check());
    drop(one), drop(ref), drop(d);
}

static void b21(void)
{
    int seen[KL_KEY_COUNT + 3] = {0};
    bool back = true, ordered = true;
    for (unsigned k = 0; k < KL_KEY_COUNT + 3; k++) {
        back &= kl_key_find(kl_key_name((kl_key)k)) == (kl_key)k;
        seen[kl_key_find(kl_key_name((kl_key)k))]++;
    }
    for (unsigned k = 0; k < KL_KEY_COUNT + 3; k++)
        ordered &= seen[k] == 1;
    CHECK(back);
    CHECK(ordered && KL_KEY_CPU < KL_KEY_CUDA && KL_KEY_CUDA < KL_KEY_SparseCPU &&
          KL_KEY_SparseCPU < KL_KEY_AutogradCPU);
    CHECK(kl_key_find("no key") == KL_KEY_UNKNOWN && kl_key_find(NULL) == KL_KEY_UNKNOWN);
    char text[200], cut[8];
    CHECK(!strcmp(kl_keyset_text(SET(KL_KEY_Autograd, KL_KEY_CPU), text, sizeof text), "{AutogradCPU, CPU}"));
    CHECK(!strcmp(kl_keyset_text(NO_KEYS, text, sizeof text), "{}"));
    CHECK(!strcmp(kl_keyset_text(SET(KL_KEY_Autograd, KL_KEY_CPU), cut, sizeof cut), "{Autogr"));
}

/* ---- kernels that compute, with gradients and in traces ---- */

static kl_status add_run(void *ctx, const kl_custom_call *call)
{
    const float *a = call->in[0], *b = call->in[1];
    float *out = call->out[0];
    int64_t n = 1;
    for (int i = 0; i < call->out_type[0].rank; i++)
        n *= call->out_type[0].dims[i];
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] * b[i] + 100;
    __atomic_fetch_add((int *)ctx, 1, __ATOMIC_RELAXED);
    return KL_OK;
}
static void kernels(void)
{
    int ran = 0;
    kl_kernel k = {.name = "own mul", .run = add_run, .ctx = &ran};
    kl_registration r = reg("mul", KL_KEY_DefaultBackend, k);
    kl_tensor a = kl_input(cpu, KL_F32, DIMS(2, 2), (float[]){1, 2, 3, 4}),
        b = kl_input(cpu, KL_F32, DIMS(2), (float[]){5, 6});
    kl_requires_grad(a), kl_requires_grad(b);
    kl_tensor y = kl_mul(a, b), g = kl_grad(y, b);
    NEAR_LIST(g, 0, 4, 6); /* as mul's, through the broadcast */
    NEAR_LIST(y, 0, 105, 112, 115, 124);
    CHECK(ran == 1);
    for (int i = 0; i < 2; i++) {
        kl_trace_begin("kernels");
        y = kl_keep(kl_add_scalar(kl_mul(kl_neg(a), b), 1));
        OK(kl_trace_end());
        NEAR_LIST(y, 0, 96, 89, 86, 77);
    }
    CHECK(ran == 3);
    kl_registration again = reg("mul", KL_KEY_DefaultBackend, k);
    drop(again), drop(r);
    y = kl_mul(a, b);
    NEAR_LIST(y, 0, 5, 12, 15, 24);
    CHECK(ran == 3);
    kl_release(a), kl_release(b);
}

static kl_status call_itself(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx, (void)keys;
    kl_call_set_result(call, 0, kl_abs(kl_call_input(call, 0)));
    return KL_OK;
}
static kl_status give_operand(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx, (void)keys;
    kl_call_set_result(call, 0, kl_call_input(call, 0));
    return KL_OK;
}
static kl_status refuse(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx, (void)call, (void)keys;
    return KL_ERR_SHAPE;
}
/* Kernels that do not do what they should are errors of the call.
 * This one passes on what it has taken away before, or has put another in the place of. */
static kl_status let_go(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)keys;
    kl_release(kl_call_input(call, 0));
    if (ctx)
        kl_call_set_input(call, 0, *(kl_tensor *)ctx);
    return kl_redispatch_below(call);
}

static void operands_that_go(void)
{
    OK(kl_scope_begin());
    kl_tensor three = number(-3);
    for (int traced = 0; traced < 2; traced++)
        for (int another = 0; another < 2; another++) {
            kl_registration r = reg("abs", KL_KEY_Autograd, (kl_kernel){.name = "lets go", .call = let_go,
                                                                        .ctx = another ? &three : NULL});
            if (traced)
                OK(kl_trace_begin("lets go"));
            kl_tensor x = kl_neg(number(1)), y;
            number(2); /* which may get its place */
            y = kl_abs(x);
            if (another && traced)
                OK((kl_keep(y), kl_trace_end()));
            if (another)
                NEAR_LIST(y, 0, 3);
            else
                CHECK(kl_check(y) == KL_ERR_HANDLE && says("abs: operand 1 is stale: it was released"));
            if (!another && traced)
                kl_trace_abandon();
            kl_clear_error();
            drop(r);
        }
    OK(kl_scope_end());
}

static void bad_kernels(void)
{
    static const struct { kl_status (*call)(void *, kl_call *, kl_keyset); kl_status code; const char *says; } bad[] = {
        {call_itself, KL_ERR_ARGUMENT, "kernels call one another without end"},
        {give_operand, KL_ERR_ARGUMENT, "kernel bad for AutogradCPU gives an operand as a result"},
        {refuse, KL_ERR_SHAPE, "kernel bad for AutogradCPU failed: shape error"}};
    kl_tensor x = number(1);
    kl_dispatch_mark(x, kl_keyset_of(KL_KEY_User1));
    for (int i = 0; i < 3; i++) {
        kl_registration r = reg("abs", KL_KEY_Autograd, (kl_kernel){.name = "bad", .call = bad[i].call});
        kl_clear_error();
        kl_tensor y = kl_abs(x);
        CHECK(kl_check(y) == bad[i].code && strstr(kl_last_error(), "api_seeds_keys.c:") &&
              (strcmp(kl_device_name(cpu), "cpu") || says(bad[i].says)));
        kl_release(y);
        drop(r);
    }
    NEAR_LIST(kl_abs(x), 0, 1);
    kl_release(x);
    CHECK(kl_dispatch_mark(x, NO_KEYS) == KL_ERR_HANDLE);
}

static const struct row rows[] = {
    {"B1", b1}, {"B2", b2}, {"B12", b12}, {"B13", b13}, {"B14", b14}, {"B15", b15},
    {"B16", b16}, {"B17", b17}, {"B18", b18}, {"B19", b19}, {"B20", b20}, {"B21", b21},
    {"kernels", kernels}, {"bad_kernels", bad_kernels}, {"operands", operands_that_go},
};

int main(int argc, char **argv) { return RUN_ROWS(rows); }
