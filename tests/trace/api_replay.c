/* Traces that are like earlier ones of their name, up to some call or to the end, through the public headers: they must
 * give what they give under a name of their own. */
#include "tests/support/api_check.h"
#include <stdatomic.h>
#include <unistd.h>

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

/* ---- functions recorded as regions: of x, and a tensor from outside ---- */

struct part {
    unsigned variant; /* what it does */
    kl_tensor outside;
    double number;
    bool fails;
};

static kl_status part_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct part *p = ctx, inner = *p;
    kl_tensor x = in[nin - 1], y;
    (void)nout;
    for (uint32_t i = 0; i + 1 < nin; i++)
        out[i] = kl_add_scalar(in[i], 1); /* a loop's counter */
    switch (p->variant % 6) {
    case 0: x = kl_tanh(kl_add(x, p->outside)); break;
    case 1: x = kl_mul_scalar(x, p->number); break;
    case 2: x = kl_maximum(x, kl_expand(kl_scalar(kl_device_of(x), KL_F32, p->number), DIMS(1, WIDTH))); break;
    case 3: x = kl_sub(kl_abs(x), kl_max(p->outside, AXES(0), true)); break;
    case 4: x = kl_cumsum(kl_mul(x, x), 0, false, false); break;
    case 5:
        inner.variant = p->variant / 6;
        if (kl_checkpoint(part_body, &inner, 1, &x, 1, &y) != KL_OK)
            return KL_ERR_INTERNAL;
        x = y;
    }
    out[nin - 1] = x;
    return p->fails ? KL_ERR_ARGUMENT : KL_OK;
}

static kl_status part_other(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct part other = *(struct part *)ctx;
    other.variant += other.variant / 7 % 2;
    return part_body(&other, in, nin, out, nout);
}

static kl_status part_again(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(in[0], kl_const(kl_device_of(in[0]), KL_I32, 3));
    return KL_OK;
}

static kl_status half_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}

/* x divided by the attribute, a float. */
static kl_status half_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    int64_t n = 1;
    for (int i = 0; i < call->in_type[0].rank; i++)
        n *= call->in_type[0].dims[i];
    for (int64_t i = 0; i < n; i++)
        ((float *)call->out[0])[i] = ((const float *)call->in[0])[i] / *(const float *)call->attr;
    return KL_OK;
}

enum { REGION_OPS = 5 };

static kl_tensor region_op(unsigned which, kl_tensor a, struct part *p)
{
    kl_tensor in[2] = {kl_const(kl_device_of(a), KL_I32, p->variant % 3), a}, out[2] = {kl_none, kl_none};
    float by = (float)(1 + p->variant % 2);
    if (which == 0)
        kl_cond(kl_gt(kl_sum_all(a), kl_const(kl_device_of(a), KL_F32, 0)), part_body, part_other, p, 1, &a, 1,
                &out[1]);
    else if (which == 1)
        kl_while(part_again, part_body, p, 2, in, out);
    else if (which == 2)
        kl_scan(part_body, p, 1 + p->variant % 2, 1, &a, 0, NULL, 0, false, &out[1]);
    else if (which == 3)
        kl_checkpoint(part_body, p, 1, &a, 1, &out[1]);
    else
        kl_custom("replay.half", &by, sizeof by, 1, &a, 1, &out[1]);
    return out[1];
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
        return kl_sub(a, kl_max(b, AXES(0), true));
    if (which == 4)
        return kl_softmax(a, -1);
    if (which == 5)
        return kl_maximum(a, kl_expand(kl_scalar(kl_device_of(a), KL_F32, number), DIMS(1, WIDTH)));
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
        unsigned which = choose(&s, 9);
        if (which >= 7) {
            struct part part = {choose(&s, 36), b, p->number, false};
            v[n++] = region_op(choose(&s, REGION_OPS), a, &part);
            continue;
        }
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
    enum { RUNS = 250 };
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

/* A step of one region op, its number and the tensor from outside changing, and what it gives. */
static bool region_step(kl_device dev, unsigned which, struct part part, kl_tensor w, float *y)
{
    static const float data[2 * WIDTH] = {0.5f, -1, 0.25f, 2, 1, -0.5f, 0.75f, 3, -2, 1};
    kl_trace_begin("region");
    kl_tensor x = kl_mul_scalar(kl_input(dev, KL_F32, DIMS(2, WIDTH), data), part.number);
    part.outside = kl_add_scalar(w, part.number);
    kl_tensor r = region_op(which, x, &part);
    r = kl_keep(kl_add(r, w));
    bool ok = kl_trace_end() == KL_OK;
    ok = ok && kl_read(r, y, 2 * WIDTH * sizeof *y) == KL_OK;
    if (kl_check(r) == KL_OK)
        kl_release(r);
    return ok;
}

/* The same outside of traces, where nothing is replayed. */
static void region_plain(kl_device dev, unsigned which, struct part part, kl_tensor w, float *y)
{
    static const float data[2 * WIDTH] = {0.5f, -1, 0.25f, 2, 1, -0.5f, 0.75f, 3, -2, 1};
    kl_scope_begin();
    kl_tensor x = kl_mul_scalar(kl_input(dev, KL_F32, DIMS(2, WIDTH), data), part.number);
    part.outside = kl_add_scalar(w, part.number);
    OK(kl_read(kl_add(region_op(which, x, &part), w), y, 2 * WIDTH * sizeof *y));
    kl_scope_end();
}

/* Every region op with every body, again and again with other numbers: nothing is recorded, inside of them neither. */
static void test_regions(kl_device dev)
{
    kl_tensor w = kl_ones(dev, KL_F32, DIMS(1, WIDTH));
    static const unsigned variants[] = {0, 2, 3, 11, 35};
    for (unsigned which = 0; which < REGION_OPS; which++)
        for (unsigned v = 0; v < sizeof variants / sizeof *variants; v++) {
            unsigned variant = variants[v];
            float y[2 * WIDTH], want[2 * WIDTH];
            int64_t replays = 0;
            for (int i = 0; i < 3; i++) {
                struct part part = {variant, kl_none, 0.5 + i, false};
                CHECK(region_step(dev, which, part, w, y));
                if (i == 0)
                    replays = kl_counter("replays");
                region_plain(dev, which, part, w, want);
                CHECK(!memcmp(y, want, sizeof y));
            }
            if (!CHECK(kl_counter("replays") == replays + 2))
                printf("    op %u, variant %u\n", which, variant);
        }
    kl_release(w);
}

/* Two bodies in alternation: both are known.  One that fails on the way, or one that is dropped, changes nothing. */
static void test_region_turns(kl_device dev)
{
    kl_tensor w = kl_ones(dev, KL_F32, DIMS(1, WIDTH));
    float y[2][2 * WIDTH], again[2 * WIDTH];
    for (unsigned which = 0; which < REGION_OPS - 1; which++) {
        struct part part[2] = {{17, kl_none, 2, false}, {29, kl_none, 2, false}};
        CHECK(region_step(dev, which, part[0], w, y[0]) && region_step(dev, which, part[1], w, y[1]));
        int64_t built = kl_counter("graphs_built"), replays = kl_counter("replays");
        for (int i = 0; i < 6; i++) {
            struct part bad = part[i % 2];
            bad.fails = true;
            CHECK(!region_step(dev, which, bad, w, again) && strstr(kl_last_error(), "argument"));
            kl_trace_begin("region");
            region_op(which, kl_mul_scalar(w, 3), &(struct part){11, w, 3, false});
            kl_trace_abandon();
            CHECK(region_step(dev, which, part[i % 2], w, again) && !memcmp(y[i % 2], again, sizeof again));
        }
        CHECK(kl_counter("graphs_built") == built && kl_counter("replays") == replays + 6);
    }
    kl_release(w);
}

/* ---- memory ---- */

static atomic_size_t taken; /* bytes, given back or not */

static void *take_bytes(void *ctx, size_t bytes)
{
    (void)ctx;
    atomic_fetch_add(&taken, bytes);
    return malloc(bytes);
}

static void *take_more(void *ctx, void *p, size_t bytes)
{
    (void)ctx;
    atomic_fetch_add(&taken, bytes);
    return realloc(p, bytes);
}

static void give_bytes(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static kl_status long_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = in[0];
    for (int i = 0; i < *(int *)ctx; i++)
        out[0] = kl_abs(out[0]);
    return KL_OK;
}

/* Bytes that are taken to record the region op: as many for a body of any length, once it is known. */
static void test_region_memory(kl_device dev)
{
    kl_tensor w = kl_ones(dev, KL_F32, DIMS(2)), y;
    size_t first[2], then[2];
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < 4; i++) {
            int length = which ? 300 : 10;
            kl_trace_begin(which ? "long" : "short");
            size_t before = atomic_load(&taken);
            OK(kl_scan(long_body, &length, 2, 1, &w, 0, NULL, 0, false, &y));
            *(i ? &then[which] : &first[which]) = atomic_load(&taken) - before;
            kl_keep(y);
            OK(kl_trace_end());
            kl_release(y);
        }
    if (!CHECK(first[1] > first[0] + 290 * 64 && then[1] == then[0] && then[0] < first[0]))
        printf("    %zu and %zu bytes at first, %zu and %zu then\n", first[0], first[1], then[0], then[1]);
    kl_release(w);
}

/* Bytes that are taken to record a trace of a new shape: as many after 300 shapes as after 20. */
static void test_shapes_memory(kl_device dev)
{
    enum { SHAPES = 300, FEW = 20 };
    static const float data[SHAPES];
    size_t of[SHAPES + 1] = {0};
    for (int n = 1; n <= SHAPES; n++) {
        kl_trace_begin("shapes");
        size_t before = atomic_load(&taken);
        kl_tensor y = kl_keep(kl_abs(kl_input(dev, KL_F32, DIMS(n), data)));
        of[n] = atomic_load(&taken) - before - (size_t)n * sizeof *data; /* the copy of the data */
        OK(kl_trace_end());
        kl_release(y);
    }
    if (!CHECK(of[SHAPES] <= of[FEW] + 1024))
        printf("    %zu bytes for shape %d, %zu for shape %d\n", of[FEW], FEW, of[SHAPES], SHAPES);
}

/* A step frozen from a trace that was replayed, regions and all. */
static void test_region_frozen(kl_device dev)
{
    kl_tensor w = kl_ones(dev, KL_F32, DIMS(1, WIDTH));
    for (int i = 0; i < 3; i++) {
        float data[WIDTH] = {1, 2, 3, 4, 5}, y[WIDTH], want[WIDTH];
        kl_trace_begin("frozen");
        kl_tensor x = kl_input(dev, KL_F32, DIMS(1, WIDTH), data), out;
        struct part part = {6 * 2 + 5, w, 2.5, false};
        kl_keep(region_op(2, x, &part));
        kl_step *s = kl_trace_end_step(1, &x);
        if (!CHECK(s))
            break;
        x = kl_input(dev, KL_F32, DIMS(1, WIDTH), data);
        OK(kl_step_run(s, 1, &x, 0, NULL, 1, &out));
        OK(kl_read(out, y, sizeof y));
        OK(kl_read(region_op(2, x, &part), want, sizeof want));
        CHECK(!memcmp(y, want, sizeof y));
        kl_release(out);
        kl_release(x);
        kl_step_free(s);
    }
    kl_release(w);
}

/* Composites that make shapes of their own: a bias is reshaped to stand beside windows. */
static void test_window_bias(kl_device dev)
{
    static const float data[36];
    kl_tensor w = kl_input(dev, KL_F32, DIMS(2, 1, 3, 3), data), b = kl_input(dev, KL_F32, DIMS(2), data);
    int64_t replays = kl_counter("replays");
    for (int i = 0; i < 4; i++) {
        kl_trace_begin("bias");
        kl_tensor x = kl_input(dev, KL_F32, DIMS(1, 1, 6, 6), data);
        kl_tensor y = kl_keep(kl_conv(x, w, b, NULL, NULL, NULL, NULL, 1));
        OK(kl_trace_end());
        kl_release(y);
    }
    CHECK(kl_counter("replays") == replays + 3);
    kl_release(w);
    kl_release(b);
}

static kl_status add_outside(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin;
    (void)nout;
    out[0] = kl_add(in[0], kl_mul(in[1], *(kl_tensor *)ctx));
    return KL_OK;
}

/* A caller's site may end with the call: what a region uses from outside has the site of the region's own call. */
static void test_region_site(kl_device dev)
{
    kl_tensor w = kl_input(dev, KL_F32, DIMS(WIDTH), (float[WIDTH]){1, 2, 3, 4, 5}), x, out = kl_none;
    char path[] = "/tmp/kiln-replay-XXXXXX", text[4000] = "";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    kl_trace_begin("site");
    x = kl_zeros(dev, KL_F32, DIMS(WIDTH));
    x = kl_neg_at(&(kl_site){"early.c", 1, "early"}, x);
    kl_tensor rows = kl_stack(3, (kl_tensor[]){x, x, x}, 0);
    OK(kl_scan_at(&(kl_site){"late.c", 2, "late"}, add_outside, &w, 3, 1, &x, 1, &rows, 0, false, &out));
    kl_keep(out);
    OK(kl_dump(NULL, "captured", path));
    OK(kl_trace_end());
    FILE *f = fdopen(fd, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    char *state = strstr(text, "= state 0");
    if (CHECK(state != NULL)) {
        state[strcspn(state, "\n")] = 0;
        CHECK(strstr(state, "late.c:2") != NULL);
    }
    if (f)
        fclose(f);
    remove(path);
    kl_release(out);
    kl_release(w);
}

static void test(kl_device dev)
{
    test_window_bias(dev);
    test_region_site(dev);
    test_differences(dev);
    test_failures(dev);
    test_call_sites(dev);
    test_many(dev);
    test_regions(dev);
    test_region_turns(dev);
    test_region_frozen(dev);
    test_region_memory(dev);
    test_shapes_memory(dev);
}

int main(void)
{
    OK(kl_set_memory(&(kl_memory){take_bytes, take_more, give_bytes, NULL}));
    OK(kl_custom_register("replay.half", &(kl_custom_op){.types = half_types, .run = half_run}, NULL));
    return on_devices(test);
}
