/* Traces that are like earlier ones of their name, up to some call or to the end, through the public headers: they must
 * give what they give under a name of their own. */
#include "api_check.h"

static uint64_t random_state = 1;
static unsigned below(unsigned n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(random_state >> 33) % n;
}

enum { OPS = 40, STATES = 3, MAX_KEPT = 4, WIDTH = 5 };

/* What a trace does, so that it can be done twice: how each op is chosen, and from which op on by another seed. */
struct plan {
    uint64_t seed;
    uint64_t other;
    int from;      /* the op that differs first, OPS: none */
    int length;    /* in ops */
    int64_t rows;
    double number; /* of this run: never a reason to record again */
    int keep;      /* results kept */
};

static unsigned choose(uint64_t *s, unsigned n)
{
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*s >> 33) % n;
}

/* Two lines, so that an op may also differ by its call site alone. */
static kl_tensor one_op(unsigned which, kl_tensor a, kl_tensor b, double number, bool here)
{
    if (which == 0)
        return here ? kl_add(a, b)
                    : kl_add(a, b);
    if (which == 1)
        return kl_mul_scalar(a, number);
    if (which == 2)
        return kl_tanh(a);
    if (which == 3)
        return kl_sub(a, kl_reduce_max(b, AXES(0), true));
    if (which == 4)
        return kl_softmax(a, -1);
    if (which == 5)
        return kl_max(a, kl_expand(kl_scalar(kl_device_of(a), KL_F32, number), DIMS(1, WIDTH)));
    return kl_cumsum(b, 0, false, false);
}

/* Records a plan's trace.  keep[]: what it keeps. */
static void record(kl_device dev, const struct plan *p, const kl_tensor *state, const float *data, kl_tensor *keep)
{
    kl_tensor v[OPS + STATES + 1];
    int n = 0;
    uint64_t s = p->seed;
    v[n++] = kl_input(dev, KL_F32, DIMS(p->rows, WIDTH), data);
    for (int i = 0; i < p->length; i++) {
        if (i == p->from)
            s = p->other;
        if (choose(&s, 8) == 0) {
            unsigned at = choose(&s, STATES), which = choose(&s, 3);
            if (which == 0)
                v[n] = kl_mul(kl_expand(state[at], DIMS(p->rows, WIDTH)), v[n - 1]), n++;
            else if (which == 1)
                kl_assign(state[at], kl_sum(v[choose(&s, (unsigned)n)], AXES(0), true));
            else
                kl_assign(state[at], kl_add(state[at], state[choose(&s, STATES)]));
            continue;
        }
        kl_tensor a = v[choose(&s, (unsigned)n)], b = v[choose(&s, (unsigned)n)];
        unsigned which = choose(&s, 7);
        if (choose(&s, 16) == 0) {
            kl_no_grad_begin();
            v[n++] = one_op(which, a, b, p->number, true);
            kl_no_grad_end();
        } else {
            v[n++] = one_op(which, a, b, p->number, choose(&s, 8) != 0);
        }
    }
    for (int i = 0; i < p->keep; i++)
        keep[i] = kl_keep(v[n - 1 - i % n]);
}

static float result[2][MAX_KEPT][64 * WIDTH], final[2][STATES][WIDTH];

/* Runs it with states of its own, and reads what it leaves.  which: where the results go. */
static bool run(kl_device dev, const struct plan *p, const char *name, int which)
{
    static float data[64 * WIDTH];
    kl_tensor state[STATES], keep[MAX_KEPT] = {kl_none};
    for (int i = 0; i < 64 * WIDTH; i++)
        data[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < STATES; i++) {
        state[i] = kl_input(dev, KL_F32, DIMS(1, WIDTH), data + i);
        if (i == 1)
            kl_set_name(state[i], "weight");
    }
    kl_trace_begin(name);
    record(dev, p, state, data, keep);
    bool ok = kl_trace_end() == KL_OK;
    for (int i = 0; i < p->keep; i++)
        ok = ok && kl_read(keep[i], result[which][i], (size_t)kl_numel(keep[i]) * sizeof(float)) == KL_OK;
    for (int i = 0; i < p->keep; i++)
        if (kl_check(keep[i]) == KL_OK) /* two may be one */
            kl_release(keep[i]);
    for (int i = 0; i < STATES; i++) {
        ok = ok && kl_read(state[i], final[which][i], sizeof final[which][i]) == KL_OK;
        kl_release(state[i]);
    }
    return ok;
}

static struct plan random_plan(void)
{
    struct plan p = {.seed = 1 + below(2), .other = below(1000), .from = below(3) ? OPS : (int)below(OPS),
                     .length = below(4) ? OPS : (int)below(OPS), .rows = 1 + below(3), .keep = 1 + (int)below(2)};
    p.number = 0.25 * (1 + below(9));
    return p;
}

/* Plans in any order under one name, each against a name that no other has. */
static void test_differences(kl_device dev)
{
    enum { RUNS = 400 };
    for (int i = 0; i < RUNS; i++) {
        static int unique;
        char name[32];
        struct plan p = random_plan();
        snprintf(name, sizeof name, "alone %d", unique++);
        memset(result, 0, sizeof result);
        bool ok = run(dev, &p, "same", 0) && run(dev, &p, name, 1);
        ok = ok && !memcmp(result[0], result[1], sizeof result[0]) && !memcmp(final[0], final[1], sizeof final[0]);
        if (!CHECK(ok))
            printf("    run %d: seed %llu, %llu from op %d, %d ops\n", i, (unsigned long long)p.seed,
                   (unsigned long long)p.other, p.from, p.length);
    }
}

/* A trace that fails or is dropped half way leaves the earlier ones as good as they were. */
static void test_failures(kl_device dev)
{
    struct plan p = {.seed = 7, .from = OPS, .length = OPS, .rows = 2, .number = 2, .keep = 1};
    if (!CHECK(run(dev, &p, "fails", 0)))
        return;
    int64_t built = kl_counter("graphs_built");
    for (int i = 0; i < 20; i++) {
        kl_tensor w = kl_zeros(dev, KL_F32, DIMS(1, WIDTH)), state[STATES] = {w, w, w}, keep[MAX_KEPT];
        static const float data[64 * WIDTH];
        struct plan part = p;
        part.length = (int)below(OPS);
        kl_trace_begin("fails");
        record(dev, &part, state, data, keep);
        if (i % 2) {
            kl_add(w, kl_const(dev, KL_I32, 1));
            CHECK(kl_trace_end() == KL_ERR_TYPE && strstr(kl_last_error(), "api_replay.c"));
        } else {
            kl_trace_abandon();
        }
        kl_release(w);
        CHECK(run(dev, &p, "fails", 1) && !memcmp(result[0], result[1], sizeof result[0]));
    }
    CHECK(kl_counter("graphs_built") == built);
}

/* An error names the line of the trace that made it, whatever an earlier trace did on another line. */
static void test_call_sites(kl_device dev)
{
    kl_tensor w = kl_ones(dev, KL_F32, DIMS(2));
    int line[2] = {0, 0};
    for (int i = 0; i < 6; i++) {
        kl_trace_begin("lines");
        kl_tensor a;
        if (i % 2)
            a = kl_exp(w), line[1] = __LINE__;
        else
            a = kl_exp(w), line[0] = __LINE__;
        float v[2];
        char want[64];
        CHECK(kl_read(a, v, sizeof v) == KL_ERR_TRACE);
        snprintf(want, sizeof want, "api_replay.c:%d has no value", line[i % 2]);
        CHECK(strstr(kl_last_error(), want) != NULL);
        kl_trace_abandon();
        kl_trace_begin("lines");
        a = i % 2 ? kl_exp(w)
                  : kl_exp(w);
        kl_assign(w, a);
        kl_release(kl_keep(a));
        OK(kl_trace_end());
    }
    kl_release(w);
}

/* More names, and more traces of one name, than are remembered. */
static void test_many(kl_device dev)
{
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 100; i++) {
            char name[32];
            snprintf(name, sizeof name, "name %d", i % 50);
            int64_t n = 1 + i % 7;
            kl_trace_begin(i % 3 ? name : "often");
            kl_tensor r = kl_keep(kl_mul_scalar(kl_input(dev, KL_F32, 1, &n, x), i));
            OK(kl_trace_end());
            bool ok = kl_read(r, y, (size_t)n * sizeof *y) == KL_OK;
            for (int64_t k = 0; k < n; k++)
                ok = ok && y[k] == x[k] * (float)i;
            CHECK(ok);
            kl_release(r);
        }
}

static kl_status body(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_mul_scalar(kl_add(in[0], *(kl_tensor *)ctx), 0.5);
    return KL_OK;
}

/* Functions recorded as regions, with tensors from outside, between calls that are alike. */
static void test_regions(kl_device dev)
{
    kl_tensor w = kl_ones(dev, KL_F32, DIMS(3));
    for (int i = 0; i < 8; i++) {
        kl_trace_begin("region");
        kl_tensor x = kl_add_scalar(w, i), y;
        OK(kl_checkpoint(body, i % 4 == 3 ? &x : &w, 1, &x, 1, &y));
        kl_keep(y = kl_mul(y, w));
        OK(kl_trace_end());
        double want = i % 4 == 3 ? 1.0 + i : (2.0 + i) / 2;
        NEAR_LIST(y, 0, want, want, want);
    }
    kl_release(w);
}

static void test(kl_device dev)
{
    test_differences(dev);
    test_failures(dev);
    test_call_sites(dev);
    test_many(dev);
    test_regions(dev);
}

int main(void) { return on_devices(test); }
