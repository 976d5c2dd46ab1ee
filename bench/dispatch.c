/* What dispatch adds to recording an op: the keys of two operands and of the thread, and the kernel for them.  Each case is
 * 1000 ops, so that its microseconds are nanoseconds an op:
 *
 *   resolve    the keys of an op's two operands: entries, devices, layers, the thread's guards
 *   layers-N   an op is recorded, with N layers included that have a kernel for every op and pass it on
 *   through-5  five included that have none, and are masked out
 *   autocast, profiler, tracer  in one of these, whose casts there are none of, which notes each op, or builds a graph of them
 *   vmap       in a function that kl_vmap records, and then once more with the batch */
#include "bench.h"

enum { OPS = 1000, ROUNDS = 60, REPEATS = 20 };

static kl_status pass_on(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx;
    return kl_redispatch(call, kl_keyset_below(keys, kl_call_key(call)));
}

static kl_tensor value;

/* Recorded and dropped: nothing runs. */
static bool record_ops(void)
{
    if (kl_trace_begin("dispatch") != KL_OK)
        return false;
    kl_tensor x = value;
    for (int i = 0; i < OPS; i++)
        x = kl_add(x, value);
    bool ok = kl_check(x) == KL_OK;
    kl_trace_abandon();
    return ok;
}

static bool profile_ops(void)
{
    bool ok = kl_op_profile_begin() == KL_OK && record_ops();
    return kl_op_profile_end(NULL, NULL) == KL_OK && ok;
}

static bool trace_ops(void)
{
    kl_tracer *tr = kl_tracer_begin(KL_TAP_CALLS, 1, &value);
    bool ok = tr && record_ops();
    kl_tracer_free(tr);
    return ok;
}

static kl_status add_many(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = in[0];
    for (int i = 0; i < OPS; i++)
        out[0] = kl_add(out[0], value);
    return KL_OK;
}

static bool vmap_ops(void)
{
    if (kl_trace_begin("dispatch") != KL_OK)
        return false;
    kl_tensor row = kl_reshape(value, 1, (int64_t[]){1}), y;
    bool ok = kl_vmap(add_many, NULL, 1, &row, NULL, 1, &y, NULL, KL_RANDOM_ERROR) == KL_OK;
    kl_trace_abandon();
    return ok;
}

static bool look_up(void)
{
    kl_tensor in[2] = {value, value};
    uint64_t all = 0;
    for (int i = 0; i < OPS; i++)
        all |= kl_dispatch_keys(2, in).bits;
    return all != 0;
}

static bool run_case(struct bench *b, const char *name, bool (*work)(void))
{
    static struct samples took;
    bool ok = true;
    took.n = 0;
    if (!bench_wants(b, name))
        return true;
    for (int round = 0; round < ROUNDS && ok; round++) {
        double start = measure_cpu_now();
        for (int i = 0; i < REPEATS && ok; i++)
            ok = work();
        samples_add(&took, (measure_cpu_now() - start) / REPEATS);
        measure_progress(name, round + 1, ROUNDS);
    }
    if (ok)
        bench_add(b, name, "1000 ops", 1, &took, "us", 0, 0);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b, "dispatch", argc, argv))
        return b.status;
    value = kl_scalar(bench_device(&b), KL_F32, 1);
    kl_item_f32(value); /* a value, not what is still to be computed */
    kl_kernel pass = {.name = "pass", .call = pass_on};
    kl_registration r[2];
    bool ok = run_case(&b, "resolve", look_up) && run_case(&b, "layers-0", record_ops);
    kl_keyset five = kl_keyset_from16(0xf800), none = {0};
    kl_guard before = kl_dispatch_guard(five, none);
    ok = ok && run_case(&b, "through-5", record_ops);
    kl_dispatch_restore(before);
    ok = ok && !kl_dispatch_fallback(KL_KEY_User1, &pass, &r[0]) && !kl_dispatch_fallback(KL_KEY_User2, &pass, &r[1]);
    before = kl_dispatch_guard(kl_keyset_of(KL_KEY_User1), none);
    ok = ok && run_case(&b, "layers-1", record_ops);
    kl_dispatch_guard(kl_keyset_of(KL_KEY_User2), none);
    ok = ok && run_case(&b, "layers-2", record_ops);
    kl_dispatch_restore(before);
    ok = ok && !kl_autocast_begin(KL_BF16) && run_case(&b, "autocast", record_ops) && !kl_autocast_end();
    ok = ok && run_case(&b, "profiler", profile_ops) && run_case(&b, "tracer", trace_ops) && run_case(&b, "vmap", vmap_ops);
    kl_release(value);
    return ok ? bench_close(&b) : bench_fail(&b, "record");
}
