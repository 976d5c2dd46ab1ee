/* Symbolic lengths: every value gives the bits of kl_input with that length; recorded and compiled once; gradients,
 * frozen steps, what composites make of lengths, and what does not fit. */
#include "tests/support/api_check.h"
#include <kiln/train.h>

enum { MAX_COUNT = 40, IN = 12, HIDDEN = 20, CLASSES = 5 };

static float data[MAX_COUNT * IN];
static int32_t labels[MAX_COUNT];

static void make_data(void)
{
    uint32_t s = 12345;
    for (int i = 0; i < MAX_COUNT * IN; i++) {
        s = s * 1664525u + 1013904223u;
        data[i] = (float)(int32_t)(s >> 8 & 0xffff) / 32768.0f - 1;
    }
    for (int i = 0; i < MAX_COUNT; i++)
        labels[i] = i * 7 % CLASSES;
}

struct net { kl_tensor w[2], b[2]; };

static struct net make_net(kl_device dev)
{
    return (struct net){{kl_randn(dev, KL_F32, DIMS(IN, HIDDEN), 1), kl_randn(dev, KL_F32, DIMS(HIDDEN, CLASSES), 2)},
                        {kl_zeros(dev, KL_F32, DIMS(HIDDEN)), kl_zeros(dev, KL_F32, DIMS(CLASSES))}};
}

static void free_net(struct net *n)
{
    for (int i = 0; i < 2; i++)
        kl_release(n->w[i]), kl_release(n->b[i]);
}

static kl_tensor input(kl_device dev, int64_t n, int64_t count)
{
    return n ? kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){n, IN}, (int64_t[]){count, IN}, data)
             : kl_input(dev, KL_F32, 2, (int64_t[]){count, IN}, data);
}

static kl_tensor label_input(kl_device dev, int64_t n, int64_t count)
{
    return n ? kl_input_symbolic(dev, KL_I32, 1, &n, &count, labels) : kl_input(dev, KL_I32, 1, &count, labels);
}

static kl_tensor logits(const struct net *n, kl_tensor x)
{
    return kl_linear(kl_relu(kl_linear(x, n->w[0], n->b[0])), n->w[1], n->b[1]);
}

static kl_status train(kl_device dev, struct net *net, int64_t n, int64_t count, float *loss)
{
    kl_trace_begin(n ? "symbolic" : "fixed");
    kl_tensor x = input(dev, n, count), y = label_input(dev, n, count);
    kl_tensor l = kl_keep(kl_cross_entropy(logits(net, x), y));
    for (int i = 0; i < 2; i++) {
        kl_assign(net->w[i], kl_sub(net->w[i], kl_mul_scalar(kl_grad(l, net->w[i]), 0.1)));
        kl_assign(net->b[i], kl_sub(net->b[i], kl_mul_scalar(kl_grad(l, net->b[i]), 0.1)));
    }
    kl_status status = kl_trace_end();
    if (status == KL_OK) {
        *loss = kl_item_f32(l);
        kl_release(l);
    }
    return status;
}

/* Steps of other batch sizes: the same bits as fixed shapes. */
static void test_training(kl_device dev)
{
    int64_t n = kl_symbol("n", 1, MAX_COUNT);
    struct net a = make_net(dev), b = make_net(dev);
    static const int64_t counts[] = {32, 32, 7, 1, 40, 32, 33, 16, 2, 7};
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        float one, two, w1[IN * HIDDEN], w2[IN * HIDDEN];
        int64_t replays = kl_counter("replays");
        OK(train(dev, &a, n, counts[i], &one));
        CHECK(i == 0 || kl_counter("replays") == replays + 1); /* the same graph, whatever the count */
        OK(train(dev, &b, 0, counts[i], &two));
        OK(kl_read(a.w[0], w1, sizeof w1));
        OK(kl_read(b.w[0], w2, sizeof w2));
        CHECK(!memcmp(&one, &two, sizeof one) && !memcmp(w1, w2, sizeof w1));
    }
    free_net(&a), free_net(&b);
}

/* Has the device programs for all values? */
static bool whole_programs(kl_device dev)
{
    return !strcmp(kl_device_name(dev), "cpu") && kl_counter("compiles") > 0;
}

/* Adam has five numbers a parameter; and the weights' gradients are computed with its updates. */
static void test_optimizer(kl_device dev)
{
    enum { UNITS = 96 };
    int64_t n = kl_symbol("n", 1, MAX_COUNT);
    kl_tensor p[2][4];
    kl_optimizer *adam[2];
    for (int k = 0; k < 2; k++) {
        p[k][0] = kl_randn(dev, KL_F32, DIMS(IN, UNITS), 1), p[k][1] = kl_zeros(dev, KL_F32, DIMS(UNITS));
        p[k][2] = kl_randn(dev, KL_F32, DIMS(UNITS, CLASSES), 2), p[k][3] = kl_zeros(dev, KL_F32, DIMS(CLASSES));
        adam[k] = kl_adam(4, p[k], NULL);
    }
    static const int64_t counts[] = {40, 3, 40, 17, 1, 32};
    int64_t compiles = 0, built = 0;
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int k = 0; k < 2; k++) {
            kl_trace_begin(k ? "fixed adam" : "symbolic adam");
            kl_tensor x = kl_gelu(kl_linear(input(dev, k ? 0 : n, counts[i]), p[k][0], p[k][1]));
            kl_tensor loss = kl_cross_entropy(kl_linear(x, p[k][2], p[k][3]), label_input(dev, k ? 0 : n, counts[i]));
            int64_t before = kl_counter("compiles"), graphs = kl_counter("graphs_built");
            kl_optimizer_step(adam[k], loss, 1e-2);
            OK(kl_trace_end());
            if (!k && i)
                compiles += kl_counter("compiles") - before, built += kl_counter("graphs_built") - graphs;
        }
        for (int k = 0; k < 4; k++) {
            static float a[UNITS * IN], b[UNITS * IN];
            size_t bytes = (size_t)kl_numel(p[0][k]) * sizeof *a;
            OK(kl_read(p[0][k], a, bytes));
            OK(kl_read(p[1][k], b, bytes));
            CHECK(!memcmp(a, b, bytes));
        }
    }
    CHECK(!whole_programs(dev) || (!compiles && !built));
    for (int k = 0; k < 2; k++) {
        kl_optimizer_free(adam[k]);
        for (int i = 0; i < 4; i++)
            kl_release(p[k][i]);
    }
}

/* A transformer block over `count` sequences: embeddings, attention, norms, a long contraction in the gradients. */
enum { SEQUENCES = 30, LENGTH = 24, WIDTH = 16, HEADS = 2, WORDS = 40, PARTS = 6 };

static kl_tensor sequence_loss(kl_device dev, const kl_tensor *p, int64_t n, int64_t count)
{
    static int32_t ids[SEQUENCES * LENGTH], next[SEQUENCES * LENGTH];
    for (int i = 0; i < SEQUENCES * LENGTH; i++)
        ids[i] = i * i % WORDS, next[i] = (i + 1) * (i + 1) % WORDS;
    int64_t rows = n ? n : count, lengths[] = {n, LENGTH}, dims[] = {count, LENGTH};
    kl_tensor x = n ? kl_input_symbolic(dev, KL_I32, 2, lengths, dims, ids) : kl_input(dev, KL_I32, 2, dims, ids);
    kl_tensor y = n ? kl_input_symbolic(dev, KL_I32, 2, lengths, dims, next) : kl_input(dev, KL_I32, 2, dims, next);
    x = kl_add(kl_embedding(p[0], x), p[1]);
    kl_tensor part[3], h = kl_layer_norm(x, 1, kl_none, kl_none, 1e-5);
    for (int i = 0; i < 3; i++)
        part[i] = kl_permute(kl_reshape(kl_linear(h, p[2 + i], kl_none), 4, (int64_t[]){rows, LENGTH, HEADS, -1}),
                             (int[]){0, 2, 1, 3});
    h = kl_permute(kl_attention(part[0], part[1], part[2], kl_none, true), (int[]){0, 2, 1, 3});
    x = kl_add(x, kl_reshape(h, 3, (int64_t[]){rows, LENGTH, WIDTH}));
    kl_tensor logits = kl_reshape(kl_linear(kl_rms_norm(x, 1, kl_none, 1e-5), p[5], kl_none), 2,
                                  (int64_t[]){-1, WORDS});
    return kl_keep(kl_cross_entropy(logits, kl_reshape(y, 1, (int64_t[]){-1})));
}

static void test_sequences(kl_device dev)
{
    int64_t n = kl_symbol("sequences", 1, SEQUENCES), built = 0, variants = kl_counter("variants");
    static const int64_t counts[] = {3, 30, 1, 22, 21, 3};
    kl_tensor p[2][PARTS];
    for (int k = 0; k < 2; k++) {
        p[k][0] = kl_randn(dev, KL_F32, DIMS(WORDS, WIDTH), 1), p[k][1] = kl_randn(dev, KL_F32, DIMS(LENGTH, WIDTH), 2);
        for (int i = 0; i < 3; i++)
            p[k][2 + i] = kl_randn(dev, KL_F32, DIMS(WIDTH, WIDTH), (uint64_t)i + 3);
        p[k][5] = kl_randn(dev, KL_F32, DIMS(WIDTH, WORDS), 6);
    }
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        float loss[2];
        for (int k = 0; k < 2; k++) {
            int64_t before = kl_counter("graphs_built");
            kl_trace_begin(k ? "fixed sequences" : "symbolic sequences");
            kl_tensor l = sequence_loss(dev, p[k], k ? 0 : n, counts[i]);
            for (int j = 0; j < PARTS; j++)
                kl_assign(p[k][j], kl_sub(p[k][j], kl_mul_scalar(kl_grad(l, p[k][j]), 0.1)));
            OK(kl_trace_end());
            built += !k && i ? kl_counter("graphs_built") - before : 0;
            loss[k] = kl_item_f32(l);
            kl_release(l);
        }
        CHECK(!memcmp(&loss[0], &loss[1], sizeof loss[0]));
        for (int j = 0; j < PARTS; j++) {
            float a[WORDS * WIDTH], b[WORDS * WIDTH];
            size_t bytes = (size_t)kl_numel(p[0][j]) * sizeof *a;
            OK(kl_read(p[0][j], a, bytes));
            OK(kl_read(p[1][j], b, bytes));
            CHECK(!memcmp(a, b, bytes));
        }
    }
    CHECK(!whole_programs(dev) || (!built && kl_counter("variants") == variants));
    for (int j = 0; j < PARTS; j++)
        kl_release(p[0][j]), kl_release(p[1][j]);
}

static kl_tensor half_rows(kl_device dev, int64_t n, int64_t count, kl_tensor w)
{
    kl_trace_begin(n ? "symbolic rows" : "fixed rows");
    kl_tensor y = kl_matmul(kl_cast(input(dev, n, count), KL_BF16), w);
    y = kl_keep(kl_cast(y, KL_F32));
    OK(kl_trace_end());
    return y;
}

/* A product of bf16 has another order for at most 8 rows: two programs at most, each for a range. */
static void test_ranges(kl_device dev)
{
    static const int64_t counts[] = {3, 40, 8, 1, 9, 23, 7, 40};
    int64_t n = kl_symbol("n", 1, MAX_COUNT), variants = kl_counter("variants");
    kl_tensor w = kl_cast(kl_randn(dev, KL_F32, DIMS(IN, HIDDEN), 1), KL_BF16);
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        kl_tensor one = half_rows(dev, n, counts[i], w);
        if (whole_programs(dev) && i < 2)
            CHECK(strstr(kl_trace_miss(), i ? "n in 9..40 has a program of its own: the order of a product of bf16"
                                            : "n in 1..8 has a program of its own: the order of a product of bf16") ||
                  kl_counter("variants") == variants);
        kl_tensor two = half_rows(dev, 0, counts[i], w);
        float a[MAX_COUNT * HIDDEN], b[MAX_COUNT * HIDDEN];
        size_t bytes = (size_t)(counts[i] * HIDDEN) * sizeof *a;
        OK(kl_read(one, a, bytes));
        OK(kl_read(two, b, bytes));
        CHECK(!memcmp(a, b, bytes));
        kl_release(one), kl_release(two);
    }
    CHECK(!whole_programs(dev) || kl_counter("variants") <= variants + 2);
    kl_release(w);
}

/* What is kept has numbers for lengths. */
static void test_shapes(kl_device dev)
{
    int64_t n = kl_symbol("n", 1, MAX_COUNT), dims[KL_MAX_RANK];
    CHECK(n < 0 && kl_symbol("n", 1, MAX_COUNT) == n && kl_symbol("n", 2, MAX_COUNT) != n);
    for (int64_t count = 3; count < 6; count++) {
        kl_trace_begin("shapes");
        kl_tensor x = input(dev, n, count);
        kl_tensor flat = kl_reshape(x, 1, (int64_t[]){-1}), back = kl_reshape(flat, 2, (int64_t[]){n, -1});
        kl_tensor split = kl_reshape(x, 3, (int64_t[]){-1, 3, 4}), wide = kl_expand(kl_const(dev, KL_F32, 2), 1, &n);
        CHECK(kl_shape(x, dims) == 2 && dims[0] < 0 && dims[1] == IN && kl_numel(x) == -1);
        kl_tensor same = kl_reshape(flat, 2, dims), mean = kl_mean(x, 0, NULL, false), rows = kl_mean(x, 1, (int[]){0},
                                                                                                     false);
        kl_tensor var = kl_var(x, 0, NULL, false, 1);
        kl_keep(flat), kl_keep(back), kl_keep(split), kl_keep(wide), kl_keep(same), kl_keep(mean), kl_keep(rows);
        kl_keep(var);
        OK(kl_trace_end());
        CHECK(kl_shape(flat, dims) == 1 && dims[0] == count * IN);
        CHECK(kl_shape(back, dims) == 2 && dims[0] == count && dims[1] == IN);
        CHECK(kl_shape(split, dims) == 3 && dims[0] == count);
        CHECK(kl_shape(wide, dims) == 1 && dims[0] == count);
        float got[MAX_COUNT * IN];
        OK(kl_read(same, got, (size_t)(count * IN) * sizeof *got));
        CHECK(!memcmp(got, data, (size_t)(count * IN) * sizeof *got));
        kl_tensor e = input(dev, 0, count), m = kl_mean(e, 0, NULL, false), v = kl_var(e, 0, NULL, false, 1);
        CHECK(kl_item_f32(m) == kl_item_f32(mean) && kl_item_f32(v) == kl_item_f32(var));
        kl_tensor all[] = {flat, back, split, wide, same, mean, rows, var, e, m, v};
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
            kl_release(all[i]);
    }
    int64_t m = kl_symbol_multiple("m", 1, 100, 8);
    kl_trace_begin("multiple");
    kl_tensor x = kl_keep(kl_neg(kl_input_symbolic(dev, KL_F32, 1, &m, (int64_t[]){24}, data)));
    OK(kl_trace_end());
    CHECK(kl_numel(x) == 24);
    kl_release(x);
}

static kl_step *freeze(kl_device dev, const struct net *net)
{
    kl_trace_begin("frozen");
    kl_tensor x = input(dev, kl_symbol("n", 1, MAX_COUNT), 3);
    kl_keep(kl_softmax(logits(net, x), 1));
    return kl_trace_end_step(1, &x);
}

static void test_step(kl_device dev)
{
    struct net net = make_net(dev);
    kl_step *step = freeze(dev, &net);
    if (!CHECK(step))
        return;
    for (int64_t count = 1; count <= MAX_COUNT; count += 13) {
        kl_tensor x = input(dev, 0, count), out, want = kl_softmax(logits(&net, x), 1);
        float a[MAX_COUNT * CLASSES], b[MAX_COUNT * CLASSES];
        size_t bytes = (size_t)(count * CLASSES) * sizeof *a;
        OK(kl_step_run(step, 1, &x, 0, NULL, 1, &out));
        CHECK(kl_numel(out) == count * CLASSES);
        OK(kl_read(out, a, bytes));
        OK(kl_read(want, b, bytes));
        CHECK(!memcmp(a, b, bytes));
        kl_release(x), kl_release(out), kl_release(want);
    }
    kl_tensor x = kl_zeros(dev, KL_F32, DIMS(MAX_COUNT + 1, IN)), out;
    FAILS(kl_step_run(step, 1, &x, 0, NULL, 1, &out), KL_ERR_SHAPE,
          "input 1: axis 0 has 41 elements, but is to have n");
    kl_release(x);
    kl_step_free(step);
    free_net(&net);
}

/* Slices and borders leave a symbolic axis whole, or say that they cannot cut it. */
static void test_whole_axis(kl_device dev)
{
    int64_t n = kl_symbol("n", 1, MAX_COUNT), stop[2] = {n, 4}, low[2] = {0, 1}, high[2] = {0, 2}, dims[2];
    for (int64_t count = 3; count <= 7; count += 4) {
        float got[7 * 7], *row = got;
        kl_trace_begin("whole axis");
        kl_tensor y = kl_slice(input(dev, n, count), (int64_t[]){0, 1}, stop, NULL);
        CHECK(kl_shape(y, dims) == 2 && dims[0] < 0 && dims[1] == 3);
        y = kl_slice(y, NULL, dims, NULL); /* a length as kl_shape gives it */
        y = kl_keep(kl_pad_border(y, low, high, KL_BORDER_EDGE));
        OK(kl_trace_end());
        OK(kl_read(y, got, (size_t)count * 6 * sizeof *got));
        for (int64_t i = 0; i < count; i++, row += 6)
            CHECK(row[0] == data[i * IN + 1] && !memcmp(row + 1, &data[i * IN + 1], 3 * sizeof *row) &&
                  row[4] == data[i * IN + 3] && row[5] == data[i * IN + 3]);
        kl_release(y);
    }
    kl_trace_begin("part of a symbolic axis");
    kl_tensor part = kl_slice(input(dev, n, 4), NULL, (int64_t[]){2, IN}, NULL);
    FAILS(kl_check(part), KL_ERR_SHAPE,
          "slice: which elements of axis 0 of [n,12] these are depends on the symbols for n in 1..40");
    kl_trace_end();
}

/* Parts of symbolic axes by lengths that are computed from symbols, beside the same with numbers. */
static kl_tensor parts_of(kl_device dev, int64_t n, int64_t count, kl_tensor w, kl_tensor *grad)
{
    kl_tensor x = kl_mul(n < 0 ? input(dev, n, count) : kl_input(dev, KL_F32, DIMS(count, IN), data), w), part[6];
    int64_t less = kl_length_sub(n, 1), rest = kl_length_sub(IN, 3), dims[2];
    part[0] = kl_slice(x, NULL, (int64_t[]){less, rest}, NULL);                  /* all rows but the last */
    part[1] = kl_slice(x, (int64_t[]){1, 3}, NULL, NULL);                        /* but the first */
    part[2] = kl_slice(x, (int64_t[]){-1, 0}, (int64_t[]){n, 9}, NULL);          /* the last one */
    part[3] = kl_slice(x, (int64_t[]){less, 0}, (int64_t[]){MAX_COUNT + 5, 9}, NULL); /* it, too */
    part[4] = kl_slice(kl_expand(w, DIMS(MAX_COUNT, IN)), NULL, (int64_t[]){n, 9}, NULL);
    part[5] = kl_narrow(x, 0, less, 1);
    CHECK(kl_shape(part[2], dims) == 2 && dims[0] == 1 && kl_shape(part[5], dims) == 2 && dims[0] == 1);
    kl_tensor count_of = kl_length_scalar(dev, KL_F32, kl_length_mul(kl_length_add(n, 1), kl_length_div(n, n)));
    kl_tensor sum = kl_add(kl_sum_all(kl_mul(part[0], part[1])), kl_sum_all(kl_mul(part[2], part[3])));
    sum = kl_mul(sum, count_of);
    sum = kl_add(sum, kl_add(kl_sum_all(part[4]), kl_sum_all(kl_exp(part[5]))));
    *grad = kl_grad(sum, w);
    return sum;
}

static void test_parts(kl_device dev)
{
    kl_tensor w = kl_keep(kl_rand(dev, KL_F32, DIMS(1, IN), 3));
    float seen[IN];
    OK(kl_read(w, seen, sizeof seen));
    int64_t n = kl_symbol("n", 1, MAX_COUNT);
    for (int64_t count = 1; count <= 9; count += 4) {
        float got[2][1 + IN];
        for (int k = 0; k < 2; k++) {
            kl_trace_begin(k ? "fixed parts" : "parts");
            kl_tensor grad, sum = kl_keep(parts_of(dev, k ? count : n, count, w, &grad));
            kl_keep(grad);
            OK(kl_trace_end());
            OK(kl_read(sum, got[k], sizeof **got));
            OK(kl_read(grad, got[k] + 1, IN * sizeof **got));
            kl_release(sum), kl_release(grad);
        }
        CHECK(!memcmp(got[0], got[1], sizeof got[0]));
    }
    kl_trace_begin("even rows");
    int64_t m = kl_symbol_multiple("m", 2, MAX_COUNT, 2), dims[2];
    kl_tensor even = kl_slice(input(dev, m, 6), NULL, NULL, (int64_t[]){2, 1});
    CHECK(kl_shape(even, dims) == 2 && dims[0] == kl_length_div(m, 2));
    even = kl_keep(even);
    OK(kl_trace_end());
    float rows[3 * IN];
    OK(kl_read(even, rows, sizeof rows));
    CHECK(kl_numel(even) == 3 * IN && !memcmp(rows + IN, data + 2 * IN, sizeof *rows * IN) &&
          !memcmp(rows + 2 * IN, data + 4 * IN, sizeof *rows * IN));
    kl_release(even);
    kl_release(w);
}

static void test_length_errors(kl_device dev)
{
    int64_t n = kl_symbol("n", 1, MAX_COUNT), low, high;
    CHECK(kl_length_add(2, 3) == 5 && kl_length_mul(2, 3) == 6 && kl_length_div(7, 2) == 3 && kl_length_sub(3, 3) == 0);
    CHECK(kl_length_range(7, &low, &high) && low == 7 && high == 7 && !kl_length_range(-1, &low, &high));
    CHECK(kl_length_sub(3, 4) == INT64_MIN && strstr(kl_last_error(), "api_symbol.c") &&
          strstr(kl_last_error(), "length_sub: of 3 and 4 it is no length: it may be negative"));
    CHECK(kl_length_add(n, 4) == INT64_MIN && strstr(kl_last_error(), "is no length of the open trace"));
    static const struct { int64_t by; const char *why; } bad[] = {
        {0, "length_div: by 0"}, {2, "length_div: of n and 2 it is no length"}, {-5, "length_div: -5 is no length"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kl_trace_begin("bad length");
        input(dev, n, 4);
        CHECK(kl_length_range(n, &low, &high) && low == 1 && high == MAX_COUNT);
        CHECK(kl_length_div(n, bad[i].by) == INT64_MIN && strstr(kl_last_error(), bad[i].why));
        CHECK(kl_trace_end() != KL_OK);
    }
    kl_trace_begin("negative length");
    input(dev, n, 4);
    CHECK(kl_length_sub(n, 2) == INT64_MIN && strstr(kl_last_error(), "length_sub: of n and 2 it is no length"));
    kl_tensor bad_scalar = kl_length_scalar(dev, KL_F32, INT64_MIN);
    CHECK(kl_check(bad_scalar) != KL_OK && kl_trace_end() == KL_ERR_SHAPE);
    kl_trace_begin("unknown symbol");
    CHECK(kl_length_mul(n, 2) == INT64_MIN && strstr(kl_last_error(), "symbol n is the length of no input"));
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
}

/* Nothing runs, and the caller's line is in the message. */
static void test_errors(kl_device dev)
{
    int64_t n = kl_symbol("n", 1, MAX_COUNT), twice[2] = {n, n};
    struct net net = make_net(dev);
    float before[HIDDEN * CLASSES], after[HIDDEN * CLASSES];
    OK(kl_read(net.w[1], before, sizeof before));
    kl_trace_begin("too long");
    static float big[(MAX_COUNT + 1) * IN];
    kl_tensor x = kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){n, IN}, (int64_t[]){MAX_COUNT + 1, IN}, big);
    kl_assign(net.w[1], kl_add(net.w[1], kl_sum_all(x)));
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "axis 0 has 41 elements, but is to have n for n in 1..40");
    CHECK(strstr(kl_last_error(), "api_symbol.c:"));
    OK(kl_read(net.w[1], after, sizeof after));
    CHECK(!memcmp(before, after, sizeof before));
    kl_trace_begin("disagree");
    kl_tensor y = input(dev, n, 4), l = label_input(dev, n, 5);
    kl_keep(kl_cross_entropy(logits(&net, y), l));
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "n = 4");
    kl_trace_begin("square");
    kl_keep(kl_input_symbolic(dev, KL_F32, 2, twice, (int64_t[]){3, 4}, data));
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "n = 3");
    kl_trace_begin("other bounds");
    input(dev, n, 4);
    kl_input_symbolic(dev, KL_F32, 1, (int64_t[]){kl_symbol("n", 0, MAX_COUNT)}, (int64_t[]){4}, data);
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "symbol n has bounds 1..40 in this trace, not 0..40");
    kl_trace_begin("undetermined");
    kl_expand(kl_const(dev, KL_F32, 1), 1, &n);
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "symbol n is the length of no input of this trace");
    kl_trace_begin("number");
    kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){n, IN}, (int64_t[]){4, IN - 1}, data);
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "axis 1 has 11 elements, but is to have 12");
    kl_trace_begin("no arithmetic");
    kl_keep(kl_reshape(input(dev, n, 4), 1, (int64_t[]){n * IN}));
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
    kl_trace_begin("kl_input");
    kl_keep(input(dev, n, 4));
    kl_input(dev, KL_F32, 1, &n, data);
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "kl_input_symbolic");
    kl_tensor outside = kl_input_symbolic(dev, KL_F32, 1, &n, (int64_t[]){4}, data);
    FAILS(kl_check(outside), KL_ERR_TRACE, "no trace is open");
    kl_release(outside);
    CHECK(kl_symbol("n", 3, 2) == INT64_MIN && strstr(kl_last_error(), "bounds"));
    CHECK(kl_symbol("1n", 1, 2) == INT64_MIN && kl_symbol(NULL, 1, 2) == INT64_MIN);
    CHECK(kl_symbol_multiple("n", 1, 7, 8) == INT64_MIN && kl_symbol_multiple("n", 1, 7, 0) == INT64_MIN);
    float loss;
    OK(train(dev, &net, n, 6, &loss)); /* all goes on */
    free_net(&net);
}

/* A trace has the symbols of its own inputs only: those that earlier ones of its name had are neither in the way of
 * other bounds nor counted, and the program takes all values. */
static void test_other_symbols(kl_device dev)
{
    enum { TRACES = 70 }; /* more than the symbols that a graph may have */
    int64_t variants = kl_counter("variants");
    for (int i = 0; i < TRACES; i++) {
        char name[8];
        snprintf(name, sizeof name, "s%d", i / 2);
        int64_t count = i % 5 + 1, n = kl_symbol(name, i % 2, MAX_COUNT), m = kl_symbol("m", 1, MAX_COUNT + i / 2);
        kl_trace_begin("other symbols");
        kl_tensor x = kl_input_symbolic(dev, KL_F32, 1, &m, (int64_t[]){2}, data);
        kl_tensor y = kl_input_symbolic(dev, KL_F32, 1, &n, &count, data);
        kl_tensor sum = kl_keep(kl_sub(kl_sum_all(y), kl_sum_all(x)));
        if (!OK(kl_trace_end()))
            return;
        float want = 0;
        for (int64_t k = 2; k < count; k++)
            want += data[k];
        CHECK(fabsf(kl_item_f32(sum) - (count == 1 ? -data[1] : want)) < 1e-5f);
        kl_release(sum);
    }
    CHECK(!strcmp(kl_device_name(dev), "ref") || kl_counter("variants") == variants);
}

static void test(kl_device dev)
{
    test_training(dev);
    test_other_symbols(dev);
    test_optimizer(dev);
    test_sequences(dev);
    test_ranges(dev);
    test_shapes(dev);
    test_step(dev);
    test_whole_axis(dev);
    test_parts(dev);
    test_length_errors(dev);
    test_errors(dev);
}

int main(void)
{
    make_data();
    return on_devices(test);
}
