/* Recording: lazy values, traces, state, gradients, compiling once, memory, threads. */
#include "tests/support/api_check.h"
#include <pthread.h>

static kl_device dev;

static kl_tensor vec(int64_t n, const float *v) { return kl_input(dev, KL_F32, 1, &n, v); }
static int64_t built(void) { return kl_counter("graphs_built"); }

/* ---- outside of traces ---- */

static void lazy_values(void)
{
    kl_scope_begin();
    int64_t before = built();
    kl_tensor a = vec(3, (float[]){1, 2, 3});
    kl_tensor b = kl_mul_scalar(a, 2), c = kl_add(b, a), unread = kl_exp(c);
    CHECK(built() == before); /* recorded, not run */
    CHECK(kl_rank(unread) == 1 && kl_numel(c) == 3 && kl_dtype_of(b) == KL_F32 && kl_device_of(c).id == dev.id);
    float out[3];
    OK(kl_read(c, out, sizeof out));
    CHECK(built() == before + 1 && out[0] == 3 && out[1] == 6 && out[2] == 9);
    OK(kl_read(c, out, sizeof out));
    OK(kl_read(b, out, sizeof out)); /* was on the way to c */
    CHECK(built() == before + 1 && out[2] == 6);
    CHECK(kl_item_f32(kl_sum_all(kl_sub(unread, kl_exp(c)))) == 0);

    /* the same function of two values */
    kl_tensor f1 = kl_add_scalar(a, 1), f2 = kl_add_scalar(c, 1);
    NEAR_LIST(f2, 0, 4, 7, 10);
    before = built();
    NEAR_LIST(f1, 0, 2, 3, 4);
    CHECK(built() == before);
    OK(kl_scope_end());
    CHECK(kl_check(a) == KL_ERR_HANDLE && kl_check(unread) == KL_ERR_HANDLE);
}

static void assign_outside(void)
{
    kl_scope_begin();
    kl_tensor w = vec(2, (float[]){1, 2}), old = kl_mul_scalar(w, 10);
    OK(kl_assign(w, kl_add_scalar(w, 1)));
    kl_tensor now = kl_mul_scalar(w, 10);
    OK(kl_assign(w, kl_add_scalar(w, 1)));
    NEAR_LIST(now, 0, 20, 30);
    NEAR_LIST(old, 0, 10, 20); /* the version it was recorded from */
    kl_tensor other = vec(2, (float[]){7, 8});
    OK(kl_assign(w, other));
    OK(kl_assign(other, kl_neg(other)));
    NEAR_LIST(kl_add_scalar(w, 0), 0, 7, 8);
    NEAR_LIST(kl_add_scalar(other, 0), 0, -7, -8);
    OK(kl_assign(w, w));
    NEAR_LIST(kl_neg(w), 0, -7, -8);
    OK(kl_scope_end());
}

static void scopes(void)
{
    kl_scope_begin();
    kl_tensor outer = vec(1, (float[]){1});
    kl_scope_begin();
    kl_tensor inner = kl_neg(outer), kept = kl_keep(kl_exp(inner)), composite = kl_softmax(outer, 0);
    OK(kl_scope_end());
    CHECK(kl_check(inner) == KL_ERR_HANDLE && kl_check(composite) == KL_ERR_HANDLE && kl_check(outer) == KL_OK);
    OK(kl_scope_end());
    CHECK(kl_check(outer) == KL_ERR_HANDLE);
    CHECK(fabs(kl_item_f64(kept) - exp(-1)) < 1e-6);
    OK(kl_release(kept));
    CHECK(kl_check(kept) == KL_ERR_HANDLE);
    OK(kl_release(kl_none));
}

static void gradients_outside(void)
{
    kl_scope_begin();
    kl_tensor w = vec(3, (float[]){1, -2, 3});
    OK(kl_requires_grad(w));
    kl_tensor loss = kl_sum_all(kl_mul(kl_square(w), w));
    CHECK(kl_item_f32(loss) == 1 - 8 + 27); /* reading keeps the history */
    kl_tensor g = kl_grad(loss, w), gg = kl_grad(g, w);
    NEAR_LIST(gg, 0, 6, -12, 18);
    NEAR_LIST(g, 0, 3, 12, 27);
    /* a loop as one would write it without traces */
    for (int step = 0; step < 50; step++) {
        kl_scope_begin();
        kl_tensor e = kl_sum_all(kl_square(kl_sub(w, kl_const(dev, KL_F32, 5))));
        kl_assign(w, kl_sub(w, kl_mul_scalar(kl_grad(e, w), 0.1)));
        if (step % 10 == 9)
            CHECK(kl_item_f32(e) < 40);
        kl_scope_end();
    }
    NEAR_LIST(kl_add_scalar(w, 0), 1e-3, 5, 5, 5);
    OK(kl_scope_end());
}

/* ---- traces ---- */

static void traces(void)
{
    kl_tensor w = vec(2, (float[]){1, 2}), v = vec(2, (float[]){10, 20}), dead;
    OK(kl_trace_begin("versions"));
    CHECK(kl_tracing());
    kl_tensor before = kl_keep(kl_mul_scalar(w, 100));
    OK(kl_assign(w, kl_add_scalar(w, 1)));
    kl_tensor between = kl_keep(kl_mul_scalar(w, 100));
    OK(kl_assign(w, kl_add_scalar(w, 1)));
    dead = kl_neg(w);
    kl_tensor after = kl_keep(kl_neg(dead));
    CHECK(kl_numel(after) == 2 && kl_rank(dead) == 1);
    OK(kl_trace_end());
    CHECK(!kl_tracing() && kl_check(dead) == KL_ERR_HANDLE);
    NEAR_LIST(before, 0, 100, 200);
    NEAR_LIST(between, 0, 200, 300);
    NEAR_LIST(after, 0, 3, 4);
    NEAR_LIST(kl_add_scalar(w, 0), 0, 3, 4);

    kl_trace_begin("swap");
    kl_tensor saved = kl_add_scalar(w, 0);
    kl_assign(w, v);
    kl_assign(v, saved);
    OK(kl_trace_end());
    kl_trace_begin("swap without a copy");
    kl_tensor t = kl_reshape(w, 1, (int64_t[]){2});
    kl_assign(w, v);
    kl_assign(v, t);
    OK(kl_trace_end());
    NEAR_LIST(kl_add_scalar(w, 0), 0, 3, 4);
    NEAR_LIST(kl_add_scalar(v, 0), 0, 10, 20);

    kl_trace_begin("transposed in place");
    kl_tensor m = kl_keep(kl_iota(dev, KL_F32, DIMS(3, 3), 1));
    OK(kl_trace_end());
    kl_trace_begin("transposed in place");
    kl_assign(m, kl_add(m, kl_transpose(m, 0, 1)));
    OK(kl_trace_end());
    NEAR_LIST(m, 0, 0, 1, 2, 1, 2, 3, 2, 3, 4);

    OK(kl_trace_begin("nothing"));
    OK(kl_trace_end());
    OK(kl_trace_begin("abandoned"));
    kl_assign(w, kl_neg(w));
    kl_trace_abandon();
    kl_trace_abandon();
    NEAR_LIST(kl_add_scalar(w, 0), 0, 3, 4);

    /* what is lazy when a trace needs it is computed first; released handles still serve the trace */
    kl_tensor lazy = kl_add_scalar(v, 1), also = kl_mul_scalar(lazy, 2);
    kl_trace_begin("lazy");
    kl_tensor sum = kl_keep(kl_add(lazy, also));
    OK(kl_release(lazy));
    CHECK(kl_check(lazy) == KL_ERR_HANDLE); /* in this trace already, as every use of it */
    OK(kl_trace_end());
    CHECK(kl_check(lazy) == KL_ERR_HANDLE);
    NEAR_LIST(sum, 0, 33, 63);
    NEAR_LIST(also, 0, 22, 42);

    /* reading what is there already */
    kl_trace_begin("reads");
    float f[2];
    OK(kl_read(w, f, sizeof f));
    kl_tensor y = kl_keep(kl_mul_scalar(w, (double)f[0]));
    OK(kl_trace_end());
    NEAR_LIST(y, 0, 9, 12);
    kl_release(w), kl_release(v);
}

/* A step of softmax regression; the loss, and w one step further. */
static double train(kl_tensor w, const float *x, const int32_t *y, double lr)
{
    kl_trace_begin("train_step");
    kl_tensor in = kl_input(dev, KL_F32, DIMS(8, 4), x), labels = kl_input(dev, KL_I32, DIMS(8), y);
    kl_tensor loss = kl_cross_entropy(kl_matmul(in, w), labels);
    kl_assign(w, kl_sub(w, kl_mul_scalar(kl_grad(loss, w), lr)));
    kl_keep(loss);
    if (!OK(kl_trace_end()))
        return NAN;
    double value = kl_item_f64(loss);
    kl_release(loss);
    return value;
}

static void training(void)
{
    float x[32], start[12], moved[12];
    int32_t y[8];
    for (int i = 0; i < 32; i++)
        x[i] = (float)((i * 7) % 5) - 2;
    for (int i = 0; i < 8; i++)
        y[i] = i % 3;
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(4, 3), 3);
    OK(kl_requires_grad(w));
    OK(kl_set_name(w, "weights"));
    OK(kl_read(w, start, sizeof start));
    double first = train(w, x, y, 1e-3), last = 0;
    OK(kl_read(w, moved, sizeof moved));
    double slope = 0; /* along the step: the change of the loss is -lr |g|^2 */
    for (int i = 0; i < 12; i++)
        slope += pow(((double)start[i] - (double)moved[i]) / 1e-3, 2);
    double second = train(w, x, y, 1e-3);
    CHECK(fabs((first - second) / 1e-3 / slope - 1) < 0.02);
    for (int i = 0; i < 100; i++)
        last = train(w, x, y, 0.1);
    CHECK(last < first && last < second);
    kl_release(w);
}

static void gradients(void)
{
    kl_tensor x = vec(4, (float[]){-1, 0, 2, 3});
    kl_trace_begin("gradients");
    kl_tensor relu = kl_keep(kl_grad(kl_relu(x), x)), sigmoid = kl_keep(kl_grad(kl_sigmoid(x), x));
    kl_tensor cube = kl_mul(kl_square(x), x), d1 = kl_grad(cube, x), d2 = kl_keep(kl_grad(d1, x));
    kl_tensor stopped = kl_keep(kl_grad(kl_mul(kl_detach(x), x), x));
    kl_tensor both[2], other = vec(1, (float[]){1});
    kl_grads(kl_exp(other), 2, (kl_tensor[]){x, other}, both);
    kl_tensor apart = kl_keep(both[0]);
    kl_tensor half = kl_square(x);
    kl_tensor inner = kl_keep(kl_grad(kl_mul_scalar(half, 3), half));
    OK(kl_assign(x, kl_mul_scalar(x, 2)));
    kl_tensor newer = kl_keep(kl_grad(kl_square(x), x)); /* in the version of now */
    OK(kl_trace_end());
    NEAR_LIST(relu, 0, 0, 0, 1, 1);
    double s[4];
    for (int i = 0; i < 4; i++) {
        double p = 1 / (1 + exp(-(double[]){-1, 0, 2, 3}[i]));
        s[i] = p * (1 - p);
    }
    NEAR(sigmoid, 4, s, 1e-6);
    NEAR_LIST(d2, 0, -6, 0, 12, 18);
    NEAR_LIST(stopped, 0, -1, 0, 2, 3);
    NEAR_LIST(apart, 0, 0, 0, 0, 0);
    NEAR_LIST(inner, 0, 3, 3, 3, 3);
    NEAR_LIST(newer, 0, -4, 0, 8, 12);
    kl_release(x);
}

/* ---- threads ---- */

enum { THREADS = 4, ADDS = 200 };

struct worker {
    kl_tensor shared, own_sum;
    int id, bad;
};

static void *add_ones(void *arg)
{
    struct worker *w = arg;
    kl_tensor own = vec(8, (float[8]){(float)w->id});
    for (int i = 0; i < ADDS; i++) {
        kl_trace_begin("add");
        kl_assign(w->shared, kl_add_scalar(w->shared, 1));
        kl_assign(own, kl_add_scalar(own, w->id));
        w->bad += kl_trace_end() != KL_OK;
        if (i % 16 == 0) { /* a read beside the others' writes: all elements of one version */
            float v[8];
            w->bad += kl_read(w->shared, v, sizeof v) != KL_OK || v[0] != v[7] || v[0] < (float)i;
        }
        if (i % 50 == 0) {
            kl_tensor s = kl_sum_all(own);
            w->bad += !(kl_item_f32(s) >= (float)w->id);
            kl_release(s);
        }
    }
    kl_trace_begin("kept");
    w->own_sum = kl_keep(kl_sum_all(own));
    w->bad += kl_trace_end() != KL_OK;
    kl_release(own);
    return NULL;
}

static void threads(void)
{
    pthread_t t[THREADS];
    struct worker w[THREADS];
    kl_tensor shared = kl_zeros(dev, KL_F32, DIMS(8));
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.shared = shared, .id = i + 1};
        if (!CHECK(pthread_create(&t[i], NULL, add_ones, &w[i]) == 0))
            return;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        CHECK(w[i].bad == 0);
        CHECK(kl_item_f32(w[i].own_sum) == (float)((i + 1) * (8 * ADDS + 1)));
        kl_release(w[i].own_sum);
    }
    double *v = values_of(shared);
    for (int i = 0; v && i < 8; i++)
        CHECK(v[i] == THREADS * ADDS);
    free(v);
    kl_release(shared);
}

/* ---- the rest ---- */

static char folder[4096];

static bool file_contains(const char *name, const char *text)
{
    char path[sizeof folder + 64], buffer[20000];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(buffer, 1, sizeof buffer - 1, f) : 0;
    if (f)
        fclose(f);
    buffer[n] = 0;
    return strstr(buffer, text) != NULL;
}

static void dumps(void)
{
    kl_tensor w = kl_keep(kl_iota(dev, KL_F32, DIMS(5, 3), 0));
    OK(kl_set_name(w, "some_name"));
    kl_dump_next(folder);
    kl_trace_begin("dumped_trace");
    int line = __LINE__ + 1;
    kl_assign(w, kl_tanh(w));
    OK(kl_trace_end());
    char site[64];
    snprintf(site, sizeof site, "api_basic.c:%d", line);
    CHECK(file_contains("dumped_trace.captured.kir", "graph @dumped_trace"));
    CHECK(file_contains("dumped_trace.captured.kir", "tanh"));
    CHECK(file_contains("dumped_trace.captured.kir", "some_name"));
    CHECK(file_contains("dumped_trace.captured.kir", site));
    CHECK(file_contains("dumped_trace.fused.kir", "tanh"));
    kl_release(w);
}

/* A weight times rows of a batch is one product, and so is what flows back to it: no batch, no sum over one. */
static void rows_of_a_batch(void)
{
    kl_tensor x = kl_keep(kl_ones(dev, KL_F32, DIMS(4, 6, 3))), w = kl_keep(kl_ones(dev, KL_F32, DIMS(3, 5)));
    kl_tensor g = kl_none;
    kl_dump_next(folder);
    kl_trace_begin("rows_of_a_batch");
    kl_requires_grad(w);
    kl_keep(g = kl_grad(kl_sum_all(kl_linear(x, w, kl_none)), w));
    OK(kl_trace_end());
    CHECK(file_contains("rows_of_a_batch.fused.kir", "contract(0, 1; 0, 1)") &&
          !file_contains("rows_of_a_batch.fused.kir", "batch(") &&
          !file_contains("rows_of_a_batch.fused.kir", " sum "));
    NEAR_LIST(g, 0, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24);
    kl_release(g);
    kl_release(w);
    kl_release(x);
}

/* kl_dump: an open trace, also one that is replayed, and those that have run. */
static void dumps_on_request(void)
{
    char path[3][sizeof folder + 32];
    kl_tensor w = kl_keep(kl_iota(dev, KL_F32, DIMS(40), 0));
    for (int i = 0; i < 3; i++)
        snprintf(path[i], sizeof path[i], "%s/asked%s", folder, i == 0 ? ".kir" : i == 1 ? ".dot" : ".html");
    for (int round = 0; round < 3; round++) {
        kl_trace_begin("asked");
        kl_tensor half = kl_mul_scalar(w, 0.5);
        OK(kl_dump(NULL, "captured", path[0]));
        CHECK(file_contains("asked.kir", "mul ") && !file_contains("asked.kir", "tanh") &&
              file_contains("asked.kir", "return %"));
        kl_assign(w, kl_tanh(half));
        OK(kl_dump(NULL, "fused", path[0]));
        CHECK(file_contains("asked.kir", "tanh") && file_contains("asked.kir", "assign 0 = ") &&
              file_contains("asked.kir", "group 0") &&
              file_contains("asked.kir", "api_basic.c:"));
        OK(kl_trace_end());
    }
    OK(kl_dump("asked", "captured", path[0]));
    OK(kl_dump("asked", "fused", path[1]));
    OK(kl_dump("asked", NULL, path[2]));
    CHECK(file_contains("asked.kir", "graph @asked") && file_contains("asked.dot", "digraph \"asked\"") &&
          file_contains("asked.html", "<title>asked</title>"));
    if (!strcmp(device_now, "cpu")) {
        OK(kl_dump("asked", "asm", path[0]));
        CHECK(file_contains("asked.kir", "kernel:"));
    }
    CHECK(kl_dump("never", "captured", path[0]) == KL_ERR_ARGUMENT &&
          strstr(kl_last_error(), "no trace of the name \"never\""));
    CHECK(kl_dump("asked", "frob", path[0]) == KL_ERR_ARGUMENT &&
          strstr(kl_last_error(), "no stage is called \"frob\""));
    CHECK(kl_dump("asked", "captured", NULL) == KL_ERR_ARGUMENT && kl_dump(NULL, "captured", path[0]) == KL_ERR_TRACE);
    CHECK(kl_dump("asked", "captured", "/nowhere/at/all.kir") == KL_ERR_IO &&
          strstr(kl_last_error(), "/nowhere/at/all.kir"));
    kl_release(w);
}

static void library(void)
{
    int64_t v = -1;
    CHECK(!strcmp(kl_device_name(dev), device_now) && !strcmp(kl_device_name((kl_device){0}), "none"));
    CHECK(!strcmp(kl_version(), "0.2.0") && kl_counter("launches") >= 0 && kl_counter("nonsense") == -1);
    static const char *const level[] = {"program_hits", "program_misses", "kernel_hits", "kernel_misses", "disk_hits",
                                        "disk_misses"};
    for (int i = 0; i < 6; i++)
        CHECK(kl_counter(level[i]) >= 0);
    OK(kl_get_option("cache_bytes", &v));
    CHECK(v > 0);
    OK(kl_set_option("cache_bytes", 0));
    CHECK(strstr(kl_cache_off_reason(), "cache_bytes"));
    CHECK(kl_trace_info(NULL) == KL_ERR_ARGUMENT && kl_last_error_code() == KL_ERR_ARGUMENT &&
          strstr(kl_last_error(), "trace_info: info is NULL"));
    kl_clear_error();
    OK(kl_set_option("cache_bytes", v));
    OK(kl_sync(dev));
    OK(kl_get_option("fuse", &v));
    CHECK(v == 0 || v == 1);
    int64_t fuse = v;
    kl_tensor x = kl_randn(dev, KL_F32, DIMS(64, 33), 4), y[2];
    for (int i = 0; i < 2; i++) {
        OK(kl_set_option("fuse", i));
        kl_trace_begin("fuse");
        y[i] = kl_keep(kl_softmax(kl_tanh(kl_mul_scalar(x, 3)), 1));
        OK(kl_trace_end());
    }
    OK(kl_set_option("fuse", fuse));
    double *a = values_of(y[0]), *b = values_of(y[1]);
    CHECK(a && b && !memcmp(a, b, 64 * 33 * sizeof *a)); /* the same bits */
    free(a), free(b);
    kl_release(x), kl_release(y[0]), kl_release(y[1]);
    CHECK(!strcmp(kl_dtype_name(KL_BOOL), "bool") && kl_dtype_size(KL_F64) == 8 && kl_dtype_size(KL_DTYPE_COUNT) == 0);
}

static void test(kl_device d)
{
    dev = d;
    lazy_values();
    assign_outside();
    scopes();
    gradients_outside();
    traces();
    training();
    gradients();
    threads();
    dumps();
    rows_of_a_batch();
    dumps_on_request();
    library();
}

int main(int argc, char **argv)
{
    (void)argc;
    snprintf(folder, sizeof folder, "%s.dump", argv[0]); /* beside the program, in the build folder */
    return on_devices(test);
}
