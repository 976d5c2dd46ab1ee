/* Option background_compile: the first steps run unfused, the later ones fused, all with the same bits; and the process
 * may end, fork or use other threads meanwhile. */
#define _GNU_SOURCE
#include "tests/support/api_check.h"
#include "tests/support/deadlines.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 16, IN = 9, OUT = 5, MAX_COUNT = WAIT_MS /* steps, with a pause of a millisecond behind each */ };

struct net { kl_tensor w, b; };

static struct net make_net(kl_device dev)
{
    struct net n = {kl_randn(dev, KL_F32, DIMS(IN, OUT), 3), kl_zeros(dev, KL_F32, DIMS(OUT))};
    kl_requires_grad(n.w);
    kl_requires_grad(n.b);
    return n;
}

static void free_net(struct net n) { kl_release(n.w), kl_release(n.b); }

/* A training step; `variant` makes a trace of its own: it is compiled in.  The loss; kernels, if not NULL: how many
 * ran. */
static float step(kl_device dev, struct net n, double variant, int64_t *kernels)
{
    kl_run_info info;
    kl_trace_begin("step");
    kl_tensor x = kl_mul(kl_rand(dev, KL_F32, DIMS(ROWS, IN), 11), kl_const(dev, KL_F32, variant));
    kl_tensor y = kl_softmax(kl_tanh(kl_linear(x, n.w, n.b)), 1);
    kl_tensor loss = kl_mean(kl_mul(y, kl_sub(y, kl_sigmoid(y))), 0, NULL, false);
    kl_tensor gw = kl_grad(loss, n.w), gb = kl_grad(loss, n.b);
    kl_assign(n.w, kl_sub(n.w, kl_mul_scalar(gw, 0.1)));
    kl_assign(n.b, kl_sub(n.b, kl_mul_scalar(gb, 0.1)));
    kl_keep(loss);
    if (kl_trace_end() != KL_OK)
        return -1;
    if (kernels && kl_trace_info(&info) == KL_OK)
        *kernels = info.kernels;
    float v = kl_item_f32(loss);
    kl_release(loss);
    return v;
}

static void pause_a_little(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

static bool starts_and_exits(int variants)
{
    kl_device dev = kl_device_named("cpu");
    struct net n = make_net(dev);
    bool ok = kl_set_option("background_compile", 1) == KL_OK;
    for (int i = 0; i < variants; i++)
        ok &= step(dev, n, 3 + i, NULL) > -1;
    return ok;
}

/* Whether a child that runs `run` exits as it should. */
static bool child_is_fine(bool (*run)(int), int arg)
{
    int status = 1;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        end_when_stuck();
        exit(run(arg) ? 0 : 1); /* with the exit handlers: that is what is tested */
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
}

static void exits_meanwhile(void)
{
    CHECK(child_is_fine(starts_and_exits, 0));
    for (int i = 1; i < 6; i++)
        CHECK(child_is_fine(starts_and_exits, i));
}

static int64_t fused; /* kernels of a step without the option */

/* Steps until the fused kernels have run a few times, each with the loss that the interpreter has. */
static int steps_until_fused(kl_device dev, double variant, bool *same)
{
    kl_device ref = kl_device_named("ref");
    struct net n = make_net(dev), oracle = make_net(ref.id ? ref : dev);
    int64_t now = 0;
    int i = 0, after = 0;
    for (; i < MAX_COUNT && after < 3; i++) {
        float loss = step(dev, n, variant, &now);
        *same &= !ref.id || i > 500 || loss == step(ref, oracle, variant, NULL);
        after += now == fused;
        if (!after)
            pause_a_little();
    }
    free_net(n);
    free_net(oracle);
    return i;
}

static void swaps(kl_device dev)
{
    int64_t v = -1;
    OK(kl_get_option("background_compile", &v));
    CHECK(v == 0);
    CHECK(kl_set_option("background_compile", 2) == KL_ERR_ARGUMENT);
    struct net n = make_net(dev);
    step(dev, n, 0.25, &fused);
    OK(kl_set_option("background_compile", 1));
    OK(kl_get_option("background_compile", &v));
    CHECK(v == 1);
    enum { VARIANTS = 8 };
    int64_t now = 0;
    int unfused = 0;
    for (int i = 0; i < VARIANTS; i++) { /* one thread compiles them, so those behind wait longer than a step takes */
        step(dev, n, 100 + i, &now);
        unfused += now > fused;
    }
    CHECK(unfused > 0);
    bool same = true;
    CHECK(steps_until_fused(dev, 0.5, &same) < MAX_COUNT);
    CHECK(same);
    int64_t built = kl_counter("graphs_built");
    step(dev, n, 0.5, &now);
    CHECK(now == fused && kl_counter("graphs_built") == built); /* what was swapped in stays */
    for (int i = 0; i < VARIANTS; i++)
        CHECK(steps_until_fused(dev, 100 + i, &same) < MAX_COUNT);
    CHECK(same);
    OK(kl_set_option("background_compile", 0));
    free_net(n);
}

struct racer { kl_device dev; bool same; int steps; };

static void *race(void *ctx)
{
    struct racer *r = ctx;
    r->same = true;
    r->steps = steps_until_fused(r->dev, 0.75, &r->same);
    return NULL;
}

static void threads(kl_device dev)
{
    enum { THREADS = 4 };
    pthread_t t[THREADS];
    struct racer r[THREADS];
    OK(kl_set_option("background_compile", 1));
    for (int i = 0; i < THREADS; i++) {
        r[i] = (struct racer){.dev = dev};
        CHECK(!pthread_create(&t[i], NULL, race, &r[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        CHECK(r[i].same && r[i].steps < MAX_COUNT);
    }
    OK(kl_set_option("background_compile", 0));
}

#ifndef KILN_TSAN /* takes the threads of such a child for those of its parent that had their numbers, and stops it */
static bool goes_on(int variant)
{
    bool same = true;
    kl_device dev = kl_device_named("cpu");
    struct net n = make_net(dev);
    return step(dev, n, variant, NULL) > -1 && steps_until_fused(dev, variant + 0.5, &same) < MAX_COUNT && same;
}

/* What the thread was about to compile at the time of the fork is lost in the child: no leak to report. */
static bool goes_on_quietly(int variant)
{
    bool ok = goes_on(variant);
#if defined(KILN_ASAN)
    _exit(ok ? 0 : 1);
#endif
    return ok;
}

static void forks(kl_device dev)
{
    OK(kl_set_option("background_compile", 1));
    struct net n = make_net(dev);
    for (int i = 0; i < 6; i++) {
        CHECK(step(dev, n, 40 + i, NULL) > -1);
        CHECK(child_is_fine(goes_on_quietly, 40 + i)); /* the same trace, compiled by a thread that the child has not */
    }
    OK(kl_set_option("background_compile", 0));
    free_net(n);
}
#endif

int main(void)
{
    setenv("KILN_CACHE_DIR", "none", 1); /* compiling is to take its time */
    unsetenv("KILN_FUSE");
    exits_meanwhile(); /* first: this process has no threads yet */
    kl_device dev = kl_device_named("cpu");
    CHECK(dev.id != 0);
    if (dev.id) {
        swaps(dev);
        threads(dev);
#ifndef KILN_TSAN
        forks(dev);
#endif
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
