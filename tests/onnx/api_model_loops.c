/* Loops of ONNX models, in a trace and outside of one: without rounds, with a condition that the body computes, with
 * values that grow, with numbers that have to be known while recording, and with many rounds as one scan. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

static kl_device dev;
static char path[] = "/tmp/kiln-loops-XXXXXX";
static int64_t nodes; /* of the last call in a trace */

/* A Loop over x: its body has `add` to add nodes and initializers, which compute a1 from a, and s, a stacked result,
 * from i, the round, c, the condition, and a. */
struct loop {
    void (*add)(struct pb *body);
    int64_t max;                     /* -1: without */
    int condition;                    /* 0, 1; -1: none is given */
    bool computes;                    /* the body makes the condition c1 itself */
    bool stacks, declared;            /* it has s, whose shape [2] it declares */
    int64_t carried;                  /* the length of a that it declares; -1: a symbol */
};
static bool leaves_out;               /* the operand that is a's first value */

static struct pb body_of(const struct loop *l)
{
    struct pb b = {0};
    if (!l->computes)
        onnx_node(&b, "Identity", "c", "c1", onnx_none());
    l->add(&b);
    pb_text(&b, 2, "body");
    onnx_io(&b, 11, "i", INT64, 0, NULL);
    onnx_io(&b, 11, "c", BOOL, 0, NULL);
    onnx_io(&b, 11, "a", FLOAT, 1, &l->carried);
    onnx_io(&b, 12, "c1", BOOL, 0, NULL);
    onnx_io(&b, 12, "a1", FLOAT, 1, &l->carried);
    if (l->stacks)
        onnx_io(&b, 12, "s", FLOAT, 1, l->declared ? (int64_t[]){2} : (int64_t[]){-1});
    return b;
}

/* y, the last value of a, and z, the stacked results. */
static bool run(const struct loop *l, bool traced, int64_t rows, const float *x, kl_tensor out[2])
{
    struct pb g = {0}, b = body_of(l), a = {0};
    char in[20];
    uint32_t nout = l->stacks ? 2 : 1;
    int64_t n = -3;
    onnx_attr_g(&a, "body", &b);
    snprintf(in, sizeof in, "%s %s %s", l->max < 0 ? "-" : "M", l->condition < 0 ? "-" : "go",
             leaves_out ? "-" : "x");
    onnx_node(&g, "Loop", in, l->stacks ? "y z" : "y", a);
    pb_text(&g, 2, "loops");
    if (l->max >= 0)
        onnx_initializer(&g, "M", INT64, 0, NULL, &l->max, 8);
    if (l->condition >= 0)
        onnx_initializer(&g, "go", BOOL, 0, NULL, &(uint8_t){(uint8_t)l->condition}, 1);
    onnx_io(&g, 11, "x", FLOAT, 1, &n);
    for (uint32_t i = 0; i < nout; i++)
        onnx_io(&g, 12, i ? "z" : "y", FLOAT, 1 + (int)i, (int64_t[]){-1, -2});
    struct pb m = onnx_model(&g, 16);
    bool ok = onnx_save(path, m.data, m.n);
    free(m.data);
    kl_model *model = ok ? kl_model_open(dev, path) : NULL;
    kl_tensor t = kl_input(dev, KL_F32, 1, &rows, x);
    if (traced)
        kl_trace_begin("loops");
    ok = model && kl_model_call(model, 1, &t, nout, out) == KL_OK;
    for (uint32_t i = 0; traced && ok && i < nout; i++)
        kl_keep(out[i]);
    if (traced) {
        kl_run_info info = {0};
        ok &= kl_trace_end() == KL_OK;
        if (ok)
            kl_trace_info(&info);
        nodes = info.nodes;
    }
    kl_model_close(model);
    kl_release(t);
    return ok;
}

static const float X[2] = {0.5f, -1};

/* ---- bodies ---- */

static void halves(struct pb *b)
{
    onnx_node(b, "Mul", "a half", "a1", onnx_none());
    onnx_node(b, "Abs", "a", "s", onnx_none());
    onnx_initializer(b, "half", FLOAT, 0, NULL, &(float){.5f}, 4);
}

static void adds_until_5(struct pb *b)
{
    onnx_node(b, "Add", "a one", "a1", onnx_none());
    onnx_node(b, "ReduceSum", "a1", "t", onnx_attr_i("keepdims", 0));
    onnx_node(b, "Less", "t five", "c1", onnx_none());
    onnx_initializer(b, "one", FLOAT, 0, NULL, &(float){1}, 4);
    onnx_initializer(b, "five", FLOAT, 0, NULL, &(float){5}, 4);
}

static void stops_by_round(struct pb *b) /* known while recording: rounds 0 to 3 */
{
    onnx_node(b, "Add", "a one", "a1", onnx_none());
    onnx_node(b, "Less", "i three", "c1", onnx_none());
    onnx_initializer(b, "one", FLOAT, 0, NULL, &(float){1}, 4);
    onnx_initializer(b, "three", INT64, 0, NULL, &(int64_t){3}, 8);
}

static void grows(struct pb *b)
{
    onnx_node(b, "Concat", "a one", "a1", onnx_attr_i("axis", 0));
    onnx_initializer(b, "one", FLOAT, 1, (int64_t[]){1}, &(float){1}, 4);
}

static void slices(struct pb *b) /* adds element i of 0, 1, 2, .. */
{
    float t[100];
    for (int i = 0; i < 100; i++)
        t[i] = (float)i;
    onnx_node(b, "Unsqueeze", "i zero", "from", onnx_none());
    onnx_node(b, "Add", "from one", "to", onnx_none());
    onnx_node(b, "Slice", "t from to", "w", onnx_none());
    onnx_node(b, "Add", "a w", "a1", onnx_none());
    onnx_initializer(b, "zero", INT64, 1, (int64_t[]){1}, &(int64_t){0}, 8);
    onnx_initializer(b, "one", INT64, 1, (int64_t[]){1}, &(int64_t){1}, 8);
    onnx_initializer(b, "t", FLOAT, 1, (int64_t[]){100}, t, sizeof t);
}

static void slices_carried(struct pb *b) /* the same of a tensor that only a run knows */
{
    onnx_node(b, "Concat", "a a a a", "t", onnx_attr_i("axis", 0));
    onnx_node(b, "Mod", "i eight", "j", onnx_none());
    onnx_node(b, "Unsqueeze", "j zero", "from", onnx_none());
    onnx_node(b, "Add", "from one", "to", onnx_none());
    onnx_node(b, "Slice", "t from to", "w", onnx_none());
    onnx_node(b, "Mul", "w half", "v", onnx_none());
    onnx_node(b, "Sub", "a v", "a1", onnx_none());
    onnx_initializer(b, "zero", INT64, 1, (int64_t[]){1}, &(int64_t){0}, 8);
    onnx_initializer(b, "one", INT64, 1, (int64_t[]){1}, &(int64_t){1}, 8);
    onnx_initializer(b, "eight", INT64, 0, NULL, &(int64_t){8}, 8);
    onnx_initializer(b, "half", FLOAT, 0, NULL, &(float){.5f}, 4);
}

static void gathers(struct pb *b) /* the element of the round, which need not be known */
{
    float t[100];
    for (int i = 0; i < 100; i++)
        t[i] = (float)i;
    onnx_node(b, "Gather", "t i", "w", onnx_none());
    onnx_node(b, "Add", "a w", "a1", onnx_none());
    onnx_initializer(b, "t", FLOAT, 1, (int64_t[]){100}, t, sizeof t);
}

/* ---- tests ---- */

static void no_rounds(void)
{
    for (int k = 0; k < 12; k++) {
        bool declared = k % 2, traced = k / 2 % 2;
        struct loop l = {halves, k / 4 == 0 ? 0 : k / 4 == 1 ? 7 : -1, k / 4 == 0 ? -1 : 0, false, true, declared,
                         declared ? 2 : -1};
        kl_tensor y[2];
        if (!CHECK(run(&l, traced, 2, X, y)))
            continue;
        NEAR_LIST(y[0], 0, 0.5, -1);
        SHAPE(y[1], 0, 2);
    }
    struct loop l = {halves, 3, -1, false, true, true, 2};
    kl_tensor y[2];
    if (CHECK(run(&l, true, 2, X, y)))
        NEAR_LIST(y[1], 0, .5, 1, .25, .5, .125, .25);
    struct loop empty = {halves, 3, -1, false, true, false, -1}; /* rounds, of rows without elements */
    if (CHECK(run(&empty, true, 0, X, y)))
        SHAPE(y[1], 3, 0);
}

static void computed_condition(void)
{
    for (int traced = 0; traced < 2; traced++) {
        struct loop max = {adds_until_5, 100, -1, true, false, false, 2}, ends = max, no_limit = max, go = max;
        kl_tensor y[2];
        if (CHECK(run(&max, traced, 2, (float[]){0, 0}, y)))
            NEAR_LIST(y[0], 0, 3, 3);
        ends.max = 2; /* before the condition does */
        if (CHECK(run(&ends, traced, 2, (float[]){0, 0}, y)))
            NEAR_LIST(y[0], 0, 2, 2);
        ends.max = 1;
        if (CHECK(run(&ends, traced, 2, (float[]){0, 0}, y)))
            NEAR_LIST(y[0], 0, 1, 1);
        no_limit.max = -1;
        if (CHECK(run(&no_limit, traced, 2, (float[]){-40, -40}, y)))
            NEAR_LIST(y[0], 0, 3, 3);
        go.condition = 1;
        if (CHECK(run(&go, traced, 2, (float[]){9, 9}, y))) /* one round, whose condition ends it */
            NEAR_LIST(y[0], 0, 10, 10);
        struct loop known = {stops_by_round, 100, -1, true, false, false, 2};
        if (CHECK(run(&known, traced, 2, (float[]){0, 1}, y)))
            NEAR_LIST(y[0], 0, 4, 5);
    }
}

static void many_rounds(void)
{
    for (int traced = 0; traced < 2; traced++) {
        struct loop l = {grows, 65, -1, false, false, false, -1};
        kl_tensor y[2];
        double want[67] = {0.5, -1}, carried[2] = {.5, -1};
        for (int i = 2; i < 67; i++)
            want[i] = 1;
        if (CHECK(run(&l, traced, 2, X, y)))
            NEAR(y[0], 67, want, 0);
        l = (struct loop){slices, 65, -1, false, false, false, 2};
        if (CHECK(run(&l, traced, 2, X, y)))
            NEAR_LIST(y[0], 0, 2080.5, 2079);
        l.add = slices_carried;
        for (int i = 0; i < 65; i++) {
            double v = carried[i % 2] / 2;
            carried[0] -= v;
            carried[1] -= v;
        }
        if (CHECK(run(&l, traced, 2, X, y)))
            NEAR(y[0], 2, carried, 1e-6);
        l.add = gathers;
        if (CHECK(run(&l, traced, 2, X, y)))
            NEAR_LIST(y[0], 0, 2080.5, 2079);
        CHECK(!traced || nodes < 40); /* one scan */
    }
}

/* More rounds than are recorded one after the other are refused before the first one, and the next call works. */
static void too_many_rounds(void)
{
    static void (*const bodies[])(struct pb *) = {grows, slices, slices_carried};
    for (int k = 0; k < 6; k++) {
        bool traced = k % 2;
        struct loop l = {bodies[k / 2], INT64_C(1) << 32, -1, false, false, false, k / 2 ? 2 : -1};
        kl_tensor y[2];
        int64_t before = kl_counter("graphs_built");
        CHECK(!run(&l, traced, 2, X, y) && kl_last_error_code() == KL_ERR_ARGUMENT &&
              strstr(kl_last_error(), "Loop: a loop of 4294967296 rounds, which have to be recorded one after the "
                                      "other") && strstr(kl_last_error(), ": 65536 are the most"));
        CHECK(kl_counter("graphs_built") - before < 100);
        kl_clear_error();
        l.max = 1;
        CHECK(run(&l, traced, 2, X, y));
        l = (struct loop){halves, INT64_C(1) << 32, 0, false, false, false, 2}; /* no round of them */
        if (CHECK(run(&l, traced, 2, X, y)))
            NEAR_LIST(y[0], 0, .5, -1);
    }
}

/* An operand that is left out is no value, least of all the model's first weight. */
static void starts_without(void)
{
    for (int k = 0; k < 12; k++) {
        int64_t max = k / 2 % 3 ? k / 2 % 3 * 100 - 98 : 0; /* 0, 2 or 102 rounds */
        struct loop l = {halves, max, k < 6 ? 1 : -1, false, false, false, 2};
        kl_tensor y[2];
        leaves_out = true;
        CHECK(!run(&l, k % 2, 2, X, y) && kl_last_error_code() != KL_ERR_INTERNAL && strlen(kl_last_error()) > 20);
        kl_clear_error();
        leaves_out = false;
        CHECK(run(&l, k % 2, 2, X, y));
    }
}

static void on_device(kl_device d)
{
    dev = d;
    too_many_rounds();
    no_rounds();
    starts_without();
    computed_condition();
    many_rounds();
}

int main(void)
{
    int f = mkstemp(path);
    if (f < 0)
        return 1;
    close(f);
    int status = on_devices(on_device);
    unlink(path);
    return status;
}
