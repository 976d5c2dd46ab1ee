/* Custom ops that another thread runs while kernels run: their place in a plan, waiting, errors, forks. */
#include "ir/graph/custom.h"
#include "passes/passes.h"
#include "runtime/async.h"
#include "runtime/runtime.h"
#include "tests/support/api_check.h"
#include "tests/support/deadlines.h"
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_int began, meanwhile;  /* ops "far" that have begun; ops "near" that ran */
static atomic_bool want_meanwhile, fails;

static void pause_briefly(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

static kl_status same_type(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}

static int64_t count_of(const kl_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* Gives twice its operand; with want_meanwhile only once an op "near" has run on the program's own thread. */
static kl_status far_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    atomic_fetch_add(&began, 1);
    for (int i = 0; i < WAIT_MS && atomic_load(&want_meanwhile) && !atomic_load(&meanwhile); i++)
        pause_briefly();
    if (atomic_load(&want_meanwhile) && !atomic_load(&meanwhile))
        return snprintf(call->message, call->message_bytes, "nothing ran meanwhile"), KL_ERR_CHECK;
    if (atomic_load(&fails))
        return snprintf(call->message, call->message_bytes, "it fails"), KL_ERR_IO;
    for (int64_t i = 0; i < count_of(&call->in_type[0]); i++)
        ((float *)call->out[0])[i] = 2 * ((const float *)call->in[0])[i];
    return KL_OK;
}

static kl_status near_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    atomic_fetch_add(&meanwhile, 1);
    memcpy(call->out[0], call->in[0], (size_t)count_of(&call->in_type[0]) * sizeof(float));
    return KL_OK;
}

static struct custom_op far_op = {.name = "far", .functions = {same_type, far_run, NULL}, .async = true};
static struct custom_op near_op = {.name = "near", .functions = {same_type, near_run, NULL}};

static kl_device dev;

static kl_tensor call(const char *name, kl_tensor x)
{
    kl_tensor y = kl_none;
    kl_custom(name, NULL, 0, 1, &x, 1, &y);
    return y;
}

static kl_tensor numbers(int64_t n, float first)
{
    float *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = first + (float)i;
    kl_tensor t = kl_input(dev, KL_F32, 1, &n, v);
    free(v);
    return t;
}

/* The op runs beside another one that was recorded behind it, and what reads its result waits. */
static void test_beside(void)
{
    enum { N = 1000 };
    double want[N];
    atomic_store(&want_meanwhile, true);
    atomic_store(&meanwhile, 0);
    kl_trace_begin("beside");
    kl_tensor x = numbers(N, 1), far = call("far", kl_add_scalar(x, 1)), sum = kl_mul_scalar(far, 3);
    kl_tensor near = call("near", kl_mul_scalar(x, 5));
    kl_keep(sum), kl_keep(near);
    OK(kl_trace_end());
    atomic_store(&want_meanwhile, false);
    for (int i = 0; i < N; i++)
        want[i] = 6.0 * (i + 2);
    NEAR(sum, N, want, 0);
    for (int i = 0; i < N; i++)
        want[i] = 5.0 * (i + 1);
    NEAR(near, N, want, 0);
}

/* Chains of them between kernels: their operands, results and what follows keep apart in memory. */
static void test_chains(int rounds)
{
    enum { N = 96, LENGTH = 24 };
    for (int round = 0; round < rounds; round++) {
        double value[LENGTH + 1];
        kl_tensor t[LENGTH + 1];
        unsigned random = (unsigned)round * 2654435761u + 1;
        kl_trace_begin("chains");
        t[0] = numbers(N, 1);
        value[0] = 1;
        for (int i = 1; i <= LENGTH; i++) {
            random = random * 1664525u + 1013904223u;
            int a = (int)(random >> 8) % i, b = (int)(random >> 16) % i, kind = (int)(random >> 24) % 5;
            t[i] = kind < 2 ? call(kind ? "far" : "near", t[a]) : kind == 2 ? kl_sub(t[a], kl_mul_scalar(t[b], 0.5))
                 : kind == 3 ? kl_mul_scalar(kl_flip(kl_flip(t[a], AXES(0)), AXES(0)), 0.75)
                 : kl_add(t[a], kl_mul_scalar(kl_sum_all(kl_narrow(t[b], 0, 0, 1)), 0.25));
            value[i] = kind == 0 ? value[a] : kind == 1 ? 2 * value[a] : kind == 2 ? value[a] - value[b] * 0.5
                     : kind == 3 ? value[a] * 0.75 : value[a] + value[b] * 0.25;
        }
        kl_tensor last[3] = {kl_keep(t[LENGTH]), kl_keep(t[LENGTH - 1]), kl_keep(t[LENGTH / 2])};
        OK(kl_trace_end());
        for (int k = 0; k < 3; k++) {
            float got[N];
            CHECK(kl_read(last[k], got, sizeof got) == KL_OK);
            double w = value[k == 0 ? LENGTH : k == 1 ? LENGTH - 1 : LENGTH / 2];
            CHECK(fabs((double)got[0] - w) <= 1e-4 * (1 + fabs(w)));
            kl_release(last[k]);
        }
    }
}

/* An error ends the trace, the ops behind it do nothing, and values are as they were. */
static void test_errors(void)
{
    kl_tensor w = kl_zeros(dev, KL_F32, DIMS(4));
    for (int round = 0; round < 3; round++) {
        atomic_store(&fails, round < 2);
        atomic_store(&began, 0);
        kl_trace_begin("errors");
        kl_tensor a = call("far", numbers(4, 1)), b = call("far", a);
        kl_assign(w, kl_add(w, b));
        CHECK((kl_trace_end() == KL_OK) == (round == 2));
        CHECK(round == 2 || strstr(kl_last_error(), "it fails"));
        CHECK(atomic_load(&began) == (round == 2 ? 2 : 1));
        float got[4];
        CHECK(kl_read(w, got, sizeof got) == KL_OK && got[3] == (round == 2 ? 16.0f : 0.0f));
    }
    kl_release(w);
}

#ifndef KILN_TSAN
/* A child of fork has such a thread of its own. */
static void test_fork(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        test_beside();
        fflush(stdout);
        _exit(failed != 0);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    test_beside();
}
#endif

int main(void)
{
    struct err e = {0};
    setenv("KILN_CHECK", "1", 1); /* plans are checked */
    CHECK(custom_add(&far_op, &e) && !custom_add(&far_op, &e) && custom_add(&near_op, &e));
    CHECK(custom_is_async(NULL, &(struct node){.op = OP_add}) == false);
    for (int fuse = 1; fuse >= 0; fuse--) {
        dev = kl_device_named("cpu");
        kl_set_option("fuse", fuse);
        test_beside();
        test_chains(40);
        test_errors();
    }
    kl_set_option("fuse", 1);
    dev = kl_device_named("ref");
    test_chains(3);
    dev = kl_device_named("cpu");
#ifndef KILN_TSAN /* it has no threads after fork */
    test_fork();
#endif
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
