/* kl_cancel from other threads, signal handlers, custom ops and kl_print's function, and deadlines: also of loops that
 * would not end.  tests/trace/cancel.c has every place at which a call can be cancelled. */
#include "tests/support/api_check.h"
#include "tests/support/deadlines.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { N = 24 };
static kl_device dev;
static kl_cancel_token *token;
static atomic_int rounds;               /* printed by the loop */

/* ---- a loop that does not end, and says with kl_print that it runs ---- */
static kl_status always(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_ge(in[0], kl_const(dev, KL_F32, -1));
    return KL_OK;
}

static kl_status one_minus(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_sub(kl_const(dev, KL_F32, 1), in[0]);
    if (ctx)
        kl_print(out[0], "round");
    return KL_OK;
}

static void count_round(void *ctx, const char *line)
{
    (void)ctx, (void)line;
    atomic_fetch_add(&rounds, 1);
}

/* Assigns two states, one of them behind the loop. */
static kl_status endless(kl_tensor w, kl_tensor x, bool prints)
{
    static int yes;
    kl_tensor start = kl_zeros(dev, KL_F32, 0, NULL), end;
    kl_trace_begin("endless");
    kl_assign(w, kl_mul_scalar(w, 2));
    kl_while(always, one_minus, prints ? &yes : NULL, 1, &start, &end);
    kl_assign(x, kl_add(x, end));
    kl_status s = kl_trace_end();
    kl_release(start);
    return s;
}

static bool is_filled(kl_tensor t, double value)
{
    double *v = values_of(t);
    bool same = v != NULL;
    for (int64_t i = 0; same && i < kl_numel(t); i++)
        same = v[i] == value;
    free(v);
    return same;
}

struct pair { kl_tensor w, x; };

static struct pair pair_new(void)
{
    return (struct pair){kl_full(dev, KL_F32, DIMS(N, N), 3), kl_full(dev, KL_F32, DIMS(N), 5)};
}

/* Both values are as before, and other work runs; the states are released. */
static void pair_check(struct pair p, int line)
{
    check_at(is_filled(p.w, 3) && is_filled(p.x, 5), line, "the values are as before");
    kl_trace_begin("after");
    kl_assign(p.w, kl_add(p.w, kl_matmul(p.w, p.w)));
    check_at(kl_trace_end() == KL_OK && is_filled(p.w, 3 + 9 * N), line, "the next trace runs");
    kl_release(p.w);
    kl_release(p.x);
}

#define CANCELLED(call, words) FAILS(call, KL_ERR_CANCELLED, words)

/* Until a loop runs, or a minute has passed. */
static void wait_for_a_round(void)
{
    for (int i = 0; i < 60000 && !atomic_load(&rounds); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void *cancel_soon(void *unused)
{
    (void)unused;
    wait_for_a_round();
    kl_cancel(token);
    return NULL;
}

static void from_a_thread(void)
{
    for (int i = 0; i < 3; i++) {
        struct pair p = pair_new();
        pthread_t t;
        atomic_store(&rounds, 0);
        CHECK(pthread_create(&t, NULL, cancel_soon, NULL) == 0);
        CANCELLED(endless(p.w, p.x, true), "trace_end: trace \"endless\": cancelled by kl_cancel");
        pthread_join(t, NULL);
        CHECK(kl_is_cancelled(token) && atomic_load(&rounds) > 0);
        kl_cancel_token_reset(token);
        CHECK(!kl_is_cancelled(token));
        pair_check(p, __LINE__);
    }
}

static void on_interrupt(int number)
{
    (void)number;
    kl_cancel(token);
}

static void *interrupt_soon(void *unused)
{
    (void)unused;
    wait_for_a_round();
    kill(getpid(), SIGINT);
    return NULL;
}

static void from_a_signal(void)
{
    struct sigaction handle = {.sa_handler = on_interrupt}, before;
    sigaction(SIGINT, &handle, &before);
    struct pair p = pair_new();
    pthread_t t;
    atomic_store(&rounds, 0);
    CHECK(pthread_create(&t, NULL, interrupt_soon, NULL) == 0);
    CANCELLED(endless(p.w, p.x, true), "cancelled by kl_cancel");
    pthread_join(t, NULL);
    sigaction(SIGINT, &before, NULL);
    kl_cancel_token_reset(token);
    pair_check(p, __LINE__);
}

/* A token that is cancelled before a call refuses what computes, and nothing else. */
static void before_a_call(void)
{
    struct pair p = pair_new();
    float got[N];
    kl_tensor known = kl_full(dev, KL_F32, DIMS(N), 1.5), lazy = kl_exp(known);
    OK(kl_read(known, got, sizeof got));
    kl_cancel(token);
    CANCELLED(endless(p.w, p.x, false), "cancelled by kl_cancel");
    CANCELLED(kl_read(lazy, got, sizeof got), "read: cancelled by kl_cancel");
    CANCELLED(kl_sync(dev), "cancelled by kl_cancel");
    OK(kl_read(known, got, sizeof got));
    kl_tensor more = kl_add(lazy, known);      /* records */
    OK(kl_check(more));
    kl_trace_begin("cancelled_compile");
    kl_assign(p.x, kl_sin(p.x));
    CHECK(!kl_trace_end_step(0, NULL) && kl_last_error_code() == KL_ERR_CANCELLED);
    kl_cancel_token_reset(token);
    OK(kl_sync(dev));
    OK(kl_read(lazy, got, sizeof got));
    CHECK(fabs((double)got[N - 1] - exp(1.5)) < 1e-5);
    OK(kl_read(more, got, sizeof got));
    pair_check(p, __LINE__);
    kl_release(known), kl_release(lazy), kl_release(more);
}

/* ---- deadlines ---- */
static double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void deadlines(void)
{
    static const double past[] = {0, -1, -1e300, -(double)INFINITY};
    FAILS(kl_set_deadline(NAN), KL_ERR_ARGUMENT, "set_deadline: seconds is NaN");
    for (int i = 0; i < 4; i++) {
        struct pair p = pair_new();
        OK(kl_sync(dev));
        OK(kl_set_deadline(past[i]));
        CANCELLED(endless(p.w, p.x, false), "the deadline of kl_set_deadline has passed");
        OK(kl_set_deadline((double)INFINITY));
        pair_check(p, __LINE__);
    }
    struct pair p = pair_new();
    double began = clock_seconds();
    OK(kl_set_deadline(0.2));
    CANCELLED(endless(p.w, p.x, false), "the deadline of kl_set_deadline has passed");
    CHECK(clock_seconds() - began >= 0.2);
    OK(kl_sync(dev)); /* there is nothing left to compute */
    OK(kl_set_deadline(3600));
    pair_check(p, __LINE__);
    OK(kl_set_deadline((double)INFINITY));
}

/* ---- from functions that a run calls ---- */
static void cancel_at_line(void *ctx, const char *line)
{
    (void)line;
    if (--*(int *)ctx == 0)
        kl_cancel(token);
}

/* A chain of kernels with a printed value between any two. */
static void in_a_chain(void)
{
    enum { LENGTH = 6 };
    for (int at = 1; at <= LENGTH + 1; at++) {
        int left = at;
        struct pair p = pair_new();
        kl_set_print(cancel_at_line, &left);
        kl_trace_begin("chain");
        kl_tensor y = p.w;
        for (int i = 0; i < LENGTH; i++)
            y = kl_print(kl_matmul(y, kl_mul_scalar(p.w, 0.1)), NULL);
        kl_assign(p.w, kl_matmul(y, p.w));
        kl_status s = kl_trace_end();
        kl_set_print(count_round, NULL);
        CHECK(s == (at <= LENGTH ? KL_ERR_CANCELLED : KL_OK));
        kl_cancel_token_reset(token);
        if (s == KL_OK)
            kl_release(p.w), kl_release(p.x);
        else
            pair_check(p, __LINE__);
    }
}

/* ---- several threads ---- */
struct runner { kl_tensor w, x; bool own; kl_status status; };

static void *run_endless(void *ctx)
{
    struct runner *r = ctx;
    kl_set_cancel_token(token);
    r->status = endless(r->w, r->x, true);
    return NULL;
}

static void *run_without(void *ctx)
{
    struct runner *r = ctx;
    r->status = KL_OK;
    for (int i = 0; i < 20 && r->status == KL_OK; i++) {
        kl_trace_begin("without");
        kl_assign(r->w, kl_add_scalar(kl_mul_scalar(r->w, 0.5), 1));
        r->status = kl_trace_end();
    }
    return NULL;
}

/* One token ends the calls of two threads; a third, without one, goes on.  The thread that asks for a state that such a
 * call assigns can be cancelled while it waits for it. */
static void many_threads(void)
{
    struct pair a = pair_new(), b = pair_new(), c = pair_new();
    OK(kl_sync(dev));
    struct runner r[3] = {{.w = a.w, .x = a.x}, {.w = b.w, .x = b.x}, {.w = c.w, .x = c.x}};
    pthread_t t[3];
    atomic_store(&rounds, 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&t[i], NULL, run_endless, &r[i]) == 0);
    wait_for_a_round();
    CHECK(pthread_create(&t[2], NULL, run_without, &r[2]) == 0);
    float got[N];
    OK(kl_set_deadline(0.05)); /* of this thread alone: x is busy as soon as its run has begun */
    kl_status s = kl_read(a.x, got, sizeof got);
    CHECK(s == KL_OK || s == KL_ERR_CANCELLED);
    OK(kl_set_deadline((double)INFINITY));
    kl_cancel(token);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    kl_cancel_token_reset(token);
    CHECK(r[0].status == KL_ERR_CANCELLED && r[1].status == KL_ERR_CANCELLED && r[2].status == KL_OK);
    pair_check(a, __LINE__);
    pair_check(b, __LINE__);
    kl_release(c.w), kl_release(c.x);
}

/* While a run that may never end has the device, a call that needs the device ends by its own deadline, whatever it
 * waits for: memory, a value, an upload, a kernel, the device's commands.  On processors it need not wait. */
static void behind_an_endless_run(void)
{
    struct pair a = pair_new(), c = pair_new();
    float got[N], one[N] = {1};
    OK(kl_sync(dev));
    struct runner r = {.w = a.w, .x = a.x};
    pthread_t t;
    atomic_store(&rounds, 0);
    CHECK(pthread_create(&t, NULL, run_endless, &r) == 0);
    wait_for_a_round();
    for (int call = 0; call < 4; call++) {
        OK(kl_set_deadline(0.03));
        kl_status s = call == 0 ? kl_read(c.x, got, sizeof got) : call == 1 ? kl_sync(dev) : KL_OK;
        if (call == 2) {
            kl_tensor in = kl_input(dev, KL_F32, DIMS(N), one);
            s = in.id ? kl_read(in, got, sizeof got) : kl_last_error_code();
            kl_release(in);
        }
        if (call == 3) {
            kl_trace_begin("behind");
            kl_assign(c.w, kl_mul_scalar(kl_sqrt(kl_abs(c.w)), 4));
            s = kl_trace_end();
        }
        CHECK(s == KL_OK || (s == KL_ERR_CANCELLED && strstr(kl_last_error(), "deadline")));
        OK(kl_set_deadline((double)INFINITY));
    }
    kl_cancel(token);
    pthread_join(t, NULL);
    kl_cancel_token_reset(token);
    CHECK(r.status == KL_ERR_CANCELLED);
    pair_check(a, __LINE__);
    kl_release(c.w), kl_release(c.x);
}

/* A thread keeps a token that its owner has freed. */
static void tokens(void)
{
    kl_cancel_token *own = kl_cancel_token_new();
    struct pair p = pair_new();
    OK(kl_sync(dev));
    CHECK(own && !kl_is_cancelled(own) && !kl_is_cancelled(NULL));
    kl_cancel(NULL);
    kl_cancel_token_reset(NULL);
    kl_cancel_token_free(NULL);
    OK(kl_set_cancel_token(own));
    kl_cancel(own);
    kl_cancel_token_free(own);
    CANCELLED(endless(p.w, p.x, false), "cancelled by kl_cancel");
    OK(kl_set_cancel_token(NULL));
    pair_check(p, __LINE__);
    OK(kl_set_cancel_token(token));
}

static void all(kl_device d)
{
    dev = d;
    token = kl_cancel_token_new();
    kl_set_print(count_round, NULL);
    OK(kl_set_cancel_token(token));
    from_a_thread();
    from_a_signal();
    before_a_call();
    deadlines();
    in_a_chain();
    many_threads();
    behind_an_endless_run();
    tokens();
    OK(kl_set_cancel_token(NULL));
    kl_cancel_token_free(token);
    kl_set_print(NULL, NULL);
}

int main(void)
{
    end_when_stuck();
    return on_devices(all);
}
