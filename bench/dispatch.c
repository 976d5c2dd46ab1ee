/* What dispatch adds to recording an op: the keys of two operands and of the thread, and the kernel for them.  Each
 * case is 1000 ops, so that its microseconds are nanoseconds an op:
 *
 *   resolve    the keys of an op's two operands: entries, devices, layers, the thread's guards
 *   layers-N   an op is recorded, with N layers included that have a kernel for every op and pass it on
 *   through-5  five included that have none, and are masked out
 *   layer-N    what the Nth layer adds to the ones before, through: what five do that are masked out
 *   autocast   what it adds where there is nothing to cast
 *   profiler, tracer, vmap  what these add, all that they record among it; their limit is what that takes by itself,
 * measured in the same rounds, and 10: of the profiler two reads of the system's clock (`clock`), of the tracer a node
 * for each op in a graph of its own (layers-0).  vmap is compared with the same ops on the whole batch (`batch`, an
 *              expand and an add each), its limit is layers-0: the function's own nodes
 *
 * The machine's speed changes from second to second: what is compared takes turns, pass by pass of a tenth of a
 * millisecond, and of each the fastest of a round counts, for what interrupts only adds.  The median is over rounds.
 *
 * bench/run.sh runs it in two builds, with all backends and with one (preset onebackend), in alternation: `backends` is
 * what the others add to layers-0. */
#include "bench.h"
#include <kiln/compat.h>
#include <time.h>

enum { OPS = 1000, ROUNDS = 60, REPEATS = 20 };

static kl_status pass_on(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx, (void)keys;
    return kl_redispatch_below(call);
}

static kl_tensor value;
static char variant[16]; /* how many backends are built in: BACKENDS */

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

static kl_status add_many(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
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
    bool ok = kl_vmap(add_many, NULL, 1, &row, NULL, 1, NULL, KL_RANDOM_ERROR, &y) == KL_OK;
    kl_trace_abandon();
    return ok;
}

/* What vmap_ops comes to, recorded without it. */
static bool batch_ops(void)
{
    if (kl_trace_begin("dispatch") != KL_OK)
        return false;
    kl_tensor row = kl_reshape(value, 1, (int64_t[]){1}), y;
    bool ok = add_many(NULL, &row, 1, &y, 1) == KL_OK && kl_check(y) == KL_OK;
    kl_trace_abandon();
    return ok;
}

static bool read_clock(void)
{
    struct timespec at = {0};
    for (int i = 0; i < 2 * OPS; i++)
        clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_nsec >= 0;
}

static bool look_up(void)
{
    kl_tensor in[2] = {value, value};
    uint64_t all = 0;
    for (int i = 0; i < OPS; i++)
        all |= kl_dispatch_keys(2, in).bits;
    return all != 0;
}

static bool nothing(void) { return true; }
static bool begin_autocast(void) { return kl_autocast_begin(KL_BF16) == KL_OK; }
static bool end_autocast(void) { return kl_autocast_end() == KL_OK; }

/* What is timed: work, with layers included, between begin and end, which are not timed. */
struct timed { bool (*begin)(void), (*work)(void), (*end)(void); kl_keyset included; };
static struct timed plainly(bool (*work)(void)) { return (struct timed){nothing, work, nothing, {0}}; }

static bool time_once(const struct timed *t, double *fastest)
{
    kl_guard before = kl_dispatch_guard(t->included, (kl_keyset){0});
    bool ok = t->begin();
    double start = measure_cpu_now();
    ok = ok && t->work();
    double took = measure_cpu_now() - start;
    ok = t->end() && ok;
    kl_dispatch_restore(before);
    *fastest = took < *fastest ? took : *fastest;
    return ok;
}

/* The fastest of REPEATS passes of each, in alternation. */
static bool take_turns(const struct timed *of, int n, double *seconds)
{
    for (int i = 0; i < n; i++)
        seconds[i] = 1e9;
    for (int k = 0; k < REPEATS; k++)
        for (int i = 0; i < n; i++)
            if (!time_once(&of[i], &seconds[i]))
                return false;
    return true;
}

enum { LAYERS_0, THROUGH, LAYERS_1, LAYERS_2, RECORDED };
static const char *const recorded[RECORDED] = {"layers-0", "through-5", "layers-1", "layers-2"};
static const struct { const char *name; int of, before; double limit; } added[] = {
    {"through", THROUGH, LAYERS_0, 5}, {"layer-1", LAYERS_1, LAYERS_0, 10}, {"layer-2", LAYERS_2, LAYERS_1, 10}};
enum { ADDED = sizeof added / sizeof *added };

static bool rounds(struct bench *b, const kl_keyset included[RECORDED])
{
    static struct samples took[RECORDED], more[ADDED], alone;
    struct timed cases[RECORDED], keys = plainly(look_up);
    int all = bench_rounds(b, ROUNDS);
    for (int i = 0; i < RECORDED; i++)
        cases[i] = (struct timed){nothing, record_ops, nothing, included[i]};
    for (int round = 0; round < all; round++) {
        double seconds[RECORDED], looked;
        if (!take_turns(cases, RECORDED, seconds) || !take_turns(&keys, 1, &looked))
            return false;
        for (int i = 0; i < RECORDED; i++)
            samples_add(&took[i], seconds[i]);
        for (int i = 0; i < ADDED; i++)
            samples_add(&more[i], seconds[added[i].of] - seconds[added[i].before]);
        samples_add(&alone, looked);
        measure_progress("dispatch", round + 1, all);
    }
    if (bench_wants(b, "resolve"))
        bench_add(b, "resolve", variant, 1, &alone, "us", 0, 0);
    for (int i = 0; i < RECORDED; i++)
        if (bench_wants(b, recorded[i]))
            bench_add(b, recorded[i], variant, 1, &took[i], "us", 0, 0);
    for (int i = 0; i < ADDED; i++)
        if (bench_wants(b, added[i].name))
            bench_add(b, added[i].name, variant, 1, &more[i], "us", 0, added[i].limit);
    return true;
}

/* What is compared with, then what is.  from: with which of these; records: which its limit has besides. */
enum { PLAIN, CLOCK, BATCH, BASES };
static const struct { const char *name; bool (*work)(void); } bases[BASES] =
    {{"layers-0", record_ops}, {"clock", read_clock}, {"batch", batch_ops}};
static const struct { const char *name; struct timed of; int from, records; } transforms[] = {
    {"autocast", {begin_autocast, record_ops, end_autocast, {0}}, PLAIN, BASES /* nothing */},
    {"profiler", {nothing, profile_ops, nothing, {0}}, PLAIN, CLOCK},
    {"tracer", {nothing, trace_ops, nothing, {0}}, PLAIN, PLAIN},
    {"vmap", {nothing, vmap_ops, nothing, {0}}, BATCH, PLAIN}};
enum { TRANSFORMS = sizeof transforms / sizeof *transforms };

static bool transform_rounds(struct bench *b)
{
    static struct samples base[BASES], more[TRANSFORMS];
    int all = bench_rounds(b, ROUNDS);
    for (int round = 0; round < all; round++) {
        double seconds[2];
        for (int i = 0; i < BASES; i++) {
            struct timed alone = plainly(bases[i].work);
            if (!take_turns(&alone, 1, seconds))
                return false;
            samples_add(&base[i], seconds[0]);
        }
        for (int i = 0; i < TRANSFORMS; i++) {
            if (!take_turns((struct timed[]){plainly(bases[transforms[i].from].work), transforms[i].of}, 2, seconds))
                return false;
            samples_add(&more[i], seconds[1] - seconds[0]);
        }
        measure_progress("transforms", round + 1, all);
    }
    for (int i = CLOCK; i < BASES; i++)
        if (bench_wants(b, bases[i].name))
            bench_add(b, bases[i].name, variant, 1, &base[i], "us", 0, 0);
    for (int i = 0; i < TRANSFORMS; i++)
        if (bench_wants(b, transforms[i].name))
            bench_add(b, transforms[i].name, variant, 1, &more[i], "us", 0,
                      10 + (transforms[i].records < BASES ? 1e6 * samples_median(&base[transforms[i].records]) : 0));
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b, "dispatch", argc, argv))
        return b.status;
    snprintf(variant, sizeof variant, "%d built", BACKENDS);
    value = kl_scalar(bench_device(&b), KL_F32, 1);
    kl_item_f32(value); /* a value, not what is still to be computed */
    kl_kernel pass = {.name = "pass", .call = pass_on};
    kl_registration r;
    kl_keyset one = kl_keyset_of(KL_KEY_User1), two = kl_keyset_add(one, KL_KEY_User2);
    kl_keyset none = {0}, unused = {kl_keyset_from16(0xf800).bits & ~two.bits}; /* three of the user's, two of Kiln's */
    unused = kl_keyset_union(unused, kl_keyset_union(kl_keyset_of(KL_KEY_Tracer), kl_keyset_of(KL_KEY_Profiler)));
    bool ok = !kl_dispatch_fallback(KL_KEY_User1, &pass, &r) && !kl_dispatch_fallback(KL_KEY_User2, &pass, &r) &&
              rounds(&b, (const kl_keyset[RECORDED]){none, unused, one, two});
    ok = ok && transform_rounds(&b);
    kl_release(value);
    return ok ? bench_close(&b) : bench_fail(&b, "record");
}
