/* Traces that fail: where they begin, while they are recorded, when they are frozen or run.  Nothing takes effect up to
 * the end, which says the first error, and no call on the trace's tensors replaces that error afterwards. */
#include "tests/support/api_check.h"
#include <kiln/extend.h>
#include <pthread.h>

static kl_device dev;
static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }
static kl_tensor vec(int64_t n, const float *v) { return kl_input(dev, KL_F32, 1, &n, v); }

/* ---- kl_fail ---- */

static void failing(void)
{
    kl_clear_error();
    CHECK(kl_fail(KL_ERR_SHAPE, "pyramid: no such shape") == KL_ERR_SHAPE);
    CHECK(kl_last_error_code() == KL_ERR_SHAPE && says("api_failed_trace.c") && says("pyramid: no such shape"));
    CHECK(kl_fail(KL_OK, NULL) == KL_ERR_ARGUMENT);
    /* in a trace it is the trace's */
    OK(kl_trace_begin("failing"));
    kl_fail(KL_ERR_TYPE, "pyramid: first");
    kl_fail(KL_ERR_SHAPE, "pyramid: first, said better"); /* about the last error */
    CHECK(kl_trace_end() == KL_ERR_SHAPE && says("said better"));
    /* which keeps its first, when another one was the last */
    OK(kl_trace_begin("failing"));
    kl_tensor bad = kl_add(vec(2, (float[]){1, 2}), vec(3, (float[]){1, 2, 3}));
    CHECK(kl_check(bad));
    kl_clear_error();
    kl_fail(KL_ERR_TYPE, "pyramid: later");
    CHECK(kl_trace_end() == KL_ERR_SHAPE && says("do not broadcast"));
    OK(kl_trace_begin("fine"));
    kl_tensor fine = kl_keep(kl_neg(vec(1, (float[]){1})));
    OK(kl_trace_end());
    NEAR_LIST(fine, 0, -1);
}

/* ---- the first error stays ---- */

static const char *const ways[] = {"a call fails", "its check fails when it runs", "kl_trace_end_step fails",
                                   "kl_trace_compile fails", "it is dropped after a call failed"};
enum { WAYS = sizeof ways / sizeof *ways, TENSORS = 6 };

/* A trace that fails in this way, with its tensors; *text: the error. */
static void fail_trace(int way, kl_tensor w, kl_tensor h[TENSORS], char text[400])
{
    OK(kl_trace_begin("first"));
    h[0] = kl_keep(kl_mul_scalar(w, 2));
    h[1] = vec(2, (float[]){1, 2});
    h[2] = kl_add(w, h[1]);
    if (way == 0 || way == 4)
        h[3] = kl_keep(kl_matmul(w, kl_ones(dev, KL_F32, DIMS(3, 3))));
    else
        h[3] = kl_keep(kl_neg(w));
    if (way == 1)
        kl_assert(kl_gt(kl_sum_all(w), kl_scalar(dev, KL_F32, 100)), "the sum is large");
    h[4] = kl_keep(kl_exp(h[3]));
    h[5] = kl_keep(kl_to_quantized(h[0], (kl_qscheme){.type = KL_Q_I8}, kl_none, kl_none));
    kl_assign(w, h[0]);
    switch (way) {
    case 2: CHECK(!kl_trace_end_step(1, &w)); break; /* w is no input */
    case 3: CHECK(kl_trace_compile("/nowhere/x.o", "/nowhere/x.h", NULL) != KL_OK); break;
    case 4: kl_trace_abandon(); break;
    default: CHECK(kl_trace_end() != KL_OK); break;
    }
    CHECK(kl_last_error_code() != KL_OK);
    snprintf(text, 400, "%s", kl_last_error());
}

static const char *const uses[] = {"release", "read", "release twice", "an op", "an op in a trace", "assign", "keep",
                                   "set_name", "check", "rank", "requires_grad", "release in a trace"};
enum { USES = sizeof uses / sizeof *uses };

/* Uses a tensor of a trace that failed; false: the error of the use is another one. */
static bool use(int how, kl_tensor h, kl_tensor w, const char *text)
{
    float v[4];
    kl_tensor y = kl_none;
    kl_status status = KL_OK;
    switch (how) {
    case 0: status = kl_release(h); break;
    case 1: return kl_read(h, v, 8) != KL_OK && !strcmp(kl_last_error(), text);
    case 2: status = kl_release(h) ? KL_ERR_HANDLE : kl_release(h); break;
    case 3: y = kl_add(h, w); break;
    case 4:
        kl_trace_begin("later");
        kl_keep(kl_mul(h, w));
        return kl_trace_end() != KL_OK && !strcmp(kl_last_error(), text);
    case 5: return kl_assign(w, h) != KL_OK && !strcmp(kl_last_error(), text);
    case 6: kl_keep(h); break;
    case 7: kl_set_name(h, "h"); break;
    case 8: return kl_check(h) != KL_OK;
    case 9: return kl_rank(h) == -1;
    case 10: kl_requires_grad(h); break;
    default:
        kl_trace_begin("later");
        status = kl_release(h);
        kl_trace_abandon();
        break;
    }
    bool same = !strcmp(kl_last_error(), text);
    kl_release(y);
    return status == KL_OK && same;
}

static void first_error_stays(void)
{
    kl_tensor w = vec(2, (float[]){1, 2});
    char text[400];
    for (int way = 0; way < WAYS; way++)
        for (int how = 0; how < USES; how++) {
            kl_tensor h[TENSORS];
            fail_trace(way, w, h, text);
            bool ok = true;
            for (int i = 0; i < TENSORS; i++) {
                kl_clear_error();
                fail_trace(way, w, h, text);
                if (!use(how, h[i], w, text)) {
                    printf("%s, %s of tensor %d: \"%s\", not \"%s\"\n", ways[way], uses[how], i, kl_last_error(), text);
                    ok = false;
                }
            }
            CHECK(ok);
        }
    /* those of the trace before it have ended */
    kl_tensor old[TENSORS], h[TENSORS];
    fail_trace(0, w, old, text);
    fail_trace(0, w, h, text);
    CHECK(kl_release(old[0]) == KL_ERR_HANDLE);
    CHECK(kl_release(h[0]) == KL_OK);
    NEAR_LIST(kl_mul_scalar(w, 3), 0, 3, 6);
    kl_release(w);
}

/* ---- a trace that cannot begin ---- */

static int allocations, denied = -1; /* the allocation that fails; -1: none, -2: all */
static bool deny(void) { return denied == -2 || allocations++ == denied; }
static void *take(void *ctx, size_t bytes)
{
    (void)ctx;
    void *p = deny() ? NULL : malloc(bytes);
    return p ? memset(p, 0xa5, bytes) : NULL;
}
static void *grow(void *ctx, void *p, size_t bytes) { return deny() ? NULL : ((void)ctx, realloc(p, bytes)); }
static void release(void *ctx, void *p) { (void)ctx, free(p); }

/* Begins with an allocation that fails, and assigns: either the trace is whole, or nothing of it takes effect. */
static bool begin_and_assign(kl_tensor w, const char *name, int fail_at, bool *failed_at_all)
{
    float before, after;
    kl_read(w, &before, sizeof before);
    allocations = 0;
    denied = fail_at;
    kl_status begun = kl_trace_begin(name);
    *failed_at_all = fail_at == -2 || allocations > fail_at;
    denied = -1;
    kl_assign(w, kl_add_scalar(w, 1));
    kl_tensor kept = kl_keep(kl_mul_scalar(w, 2));
    bool open = kl_tracing();
    kl_status ended = kl_trace_end();
    bool ok = open && !begun == !ended && (!begun || (ended == KL_ERR_MEMORY && says("trace_begin: out of memory")));
    kl_release(kept);
    ok &= !begun || says("trace_begin: out of memory");
    kl_clear_error();
    kl_read(w, &after, sizeof after);
    ok &= after == (begun ? before : before + 1) && !kl_tracing();
    if (!ok)
        printf("allocation %d of trace_begin: begin %d, open %d, end %d, w from %g to %g\n", fail_at, begun, open,
               ended, (double)before, (double)after);
    return ok;
}

static kl_tensor shared;
static int count;
struct outcome { bool ok, more; };

/* The first trace of a thread, whose allocation number `count` fails. */
static void *begin_on_thread(void *arg)
{
    struct outcome *out = arg;
    kl_clear_error();
    out->ok = begin_and_assign(shared, "thread", count, &out->more);
    return NULL;
}

/* The first call of a thread: not even the struct that Kiln keeps for it has memory. */
static void *first_call(void *arg)
{
    float before, after;
    denied = -2;
    kl_status begun = kl_trace_begin("thread");
    denied = -1;
    kl_assign(shared, kl_add_scalar(shared, 1));
    kl_status ended = kl_trace_end();
    kl_read(shared, &before, sizeof before);
    kl_assign(shared, kl_add_scalar(shared, 1));
    kl_read(shared, &after, sizeof after);
    ((struct outcome *)arg)->ok = begun == KL_ERR_MEMORY && ended == KL_ERR_MEMORY && after == before + 1;
    return NULL;
}

static bool on_thread(void *(*fn)(void *), bool *more)
{
    pthread_t thread;
    struct outcome out = {0};
    if (pthread_create(&thread, NULL, fn, &out))
        return false;
    pthread_join(thread, NULL);
    *more = out.more;
    return out.ok;
}

static void no_memory(void)
{
    kl_tensor w = kl_input(dev, KL_F32, 0, NULL, &(float){1});
    char name[32];
    bool ok = true, more = true;
    for (int i = 0; i < 200 && more; i++) { /* names without a log yet */
        snprintf(name, sizeof name, "begin %d %d", (int)dev.id, i);
        ok &= begin_and_assign(w, name, i, &more);
    }
    CHECK(ok && !more);
    shared = kl_input(dev, KL_F32, 0, NULL, &(float){1});
    for (count = 0, more = true; count < 50 && more; count++)
        ok &= on_thread(begin_on_thread, &more);
    CHECK(ok && count > 3 && !more);
    CHECK(begin_and_assign(w, "all fail", -2, &more));
    CHECK(on_thread(first_call, &more) && !more);
    /* who sees that it failed may begin again, or do without */
    snprintf(name, sizeof name, "seen %d", (int)dev.id);
    denied = -2;
    CHECK(kl_trace_begin(name) == KL_ERR_MEMORY);
    denied = -1;
    CHECK(kl_item_f32(w) > 0 && kl_release(kl_input(dev, KL_F32, 0, NULL, &(float){1})) == KL_OK);
    OK(kl_trace_begin(name));
    OK(kl_assign(w, kl_const(dev, KL_F32, 5)));
    OK(kl_trace_end());
    snprintf(name, sizeof name, "dropped %d", (int)dev.id);
    denied = -2;
    CHECK(kl_trace_begin(name) == KL_ERR_MEMORY);
    denied = -1;
    kl_trace_abandon();
    CHECK(!kl_tracing());
    NEAR_LIST(w, 0, 5);
    kl_release(shared);
}

/* Nor in the suspension of one that could not begin. */
static void nested(void)
{
    kl_tensor w = kl_input(dev, KL_F32, 0, NULL, &(float){1});
    for (int how = 0; how < 3; how++) {
        OK(kl_trace_begin("outer"));
        OK(kl_trace_suspend());
        CHECK(kl_trace_begin("inner") == KL_ERR_TRACE);
        OK(kl_trace_suspend());
        CHECK(kl_trace_begin("innermost") == KL_ERR_TRACE);
        kl_assign(w, kl_add_scalar(w, 1));
        if (how == 0)
            CHECK(kl_trace_end() == KL_ERR_TRACE && !kl_tracing());
        if (how == 2) {
            kl_trace_abandon();
            CHECK(!kl_tracing());
            continue;
        }
        CHECK((kl_trace_resume() == KL_OK) == (how == 0) && kl_tracing());
        kl_assign(w, kl_add_scalar(w, 1));
        CHECK(kl_trace_end() == KL_ERR_TRACE && !kl_tracing());
        OK(kl_trace_resume());
        OK(kl_assign(w, kl_mul_scalar(w, 1)));
        OK(kl_trace_end());
    }
    NEAR_LIST(w, 0, 1);
}

/* A trace cannot begin while one is suspended; the one around it is as it was. */
static void suspended(void)
{
    kl_tensor w = kl_input(dev, KL_F32, 0, NULL, &(float){1});
    for (int ends = 0; ends < 3; ends++)
        for (int traced = 0; traced < 2; traced++) {
            if (traced)
                OK(kl_trace_begin("outer"));
            OK(kl_trace_suspend());
            CHECK(kl_trace_begin("inner") == KL_ERR_TRACE && says("not between trace_suspend and trace_resume"));
            kl_assign(w, kl_add_scalar(w, 1));
            kl_keep(kl_exp(w));
            if (ends == 0)
                CHECK(kl_trace_end() == KL_ERR_TRACE && says("not between trace_suspend and trace_resume"));
            if (ends < 2)
                CHECK((kl_trace_resume() == KL_OK) == (ends == 0));
            else
                kl_trace_abandon();
            CHECK(kl_tracing() == (traced && ends < 2));
            kl_tensor y = kl_keep(kl_add_scalar(w, 1));
            if (traced && ends < 2)
                CHECK((kl_trace_end() == KL_OK) == (ends == 0));
            if (ends == 0 || !traced)
                NEAR_LIST(y, 0, 2);
            else
                kl_release(y);
        }
    NEAR_LIST(w, 0, 1);
}

static void test(kl_device d)
{
    dev = d;
    failing();
    first_error_stays();
    no_memory();
    suspended();
    nested();
}

int main(void)
{
    kl_memory memory = {take, grow, release, NULL};
    OK(kl_set_memory(&memory));
    return on_devices(test);
}
