/* Nested tensors and kl_vmap over symbolic lengths: one program for all numbers of rows and all batches, with the bits
 * of fixed shapes, gradients included. */
#include "tests/support/api_symbols.h"
#include <kiln/train.h>

enum { WIDTH = 6, HEADS = 2, MAX_ROWS = 40, COMPONENTS = 3, MAX_BATCH = 9, CLASSES = 5, ROUNDS = 8, MAX_OUT = 8 };

static float data[MAX_ROWS * WIDTH * HEADS];
static int32_t label[MAX_ROWS];
/* where each of the three sequences starts and the last one ends */
static const int32_t offset[ROUNDS][COMPONENTS + 1] = {{0, 3, 8, 17}, {0, 0, 1, 2}, {0, 13, 26, 40}, {0, 1, 1, 1},
                                                       {0, 8, 16, 24}, {0, 5, 5, 9}, {0, 3, 8, 17}, {0, 30, 31, 33}};

static kl_tensor input_of(kl_device dev, bool symbolic, kl_dtype dtype, int rank, const int64_t *lengths,
                          const int64_t *dims, const void *from)
{
    return symbolic ? kl_input_symbolic(dev, dtype, rank, lengths, dims, from) : kl_input(dev, dtype, rank, dims, from);
}

/* A tensor whose axis 0 has `count` elements of data, which is symbol n in the graph where `symbolic`. */
static kl_tensor rows_of(kl_device dev, bool symbolic, int64_t n, int64_t count, int rank)
{
    int64_t lengths[3] = {n, HEADS, WIDTH}, dims[3] = {count, HEADS, WIDTH};
    if (rank == 2)
        lengths[1] = dims[1] = WIDTH;
    return input_of(dev, symbolic, KL_F32, rank, lengths, dims, data);
}

/* One way to compute with a batch whose length changes; returns how many results it has put into out[]. */
typedef int round_fn(kl_device dev, bool symbolic, int round, kl_tensor *out);

static kl_tensor weight[2];

/* ---- nested ---- */

static kl_tensor nested_rows(kl_device dev, bool symbolic, int round, int rank)
{
    int64_t rows = offset[round][COMPONENTS], count = COMPONENTS + 1;
    int64_t n = kl_symbol("rows", 1, MAX_ROWS);
    return kl_nested(rows_of(dev, symbolic, n, rows, rank), kl_input(dev, KL_I32, 1, &count, offset[round]));
}

static int nested_sums(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    kl_tensor x = kl_tanh(kl_linear(nested_rows(dev, symbolic, round, 2), weight[0], kl_none));
    out[0] = kl_nested_sum(x);
    out[1] = kl_nested_mean(x);
    out[2] = kl_nested_max(x);
    out[3] = kl_dense(kl_nested_softmax(x));
    kl_tensor loss = kl_sum_all(kl_mul(kl_nested_sum(kl_nested_softmax(x)), kl_nested_sum(kl_mul(x, x))));
    out[4] = kl_grad(loss, weight[0]);
    return 5;
}

static int nested_attends(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    kl_tensor x = nested_rows(dev, symbolic, round, 3);
    out[0] = kl_dense(kl_nested_attention(x, kl_tanh(x), x, false));
    x = nested_rows(dev, symbolic, round, 2);
    kl_tensor y = kl_linear(kl_nested_attention(kl_linear(x, weight[0], kl_none), x, x, true), weight[1], kl_none);
    out[1] = kl_grad(kl_sum_all(kl_dense(kl_mul(y, y))), weight[0]);
    return 2;
}

/* Padded to a fixed length, and back. */
static int nested_pads(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    kl_tensor x = kl_linear(nested_rows(dev, symbolic, round, 2), weight[0], kl_none);
    out[0] = kl_nested_pad(x, 12, -1);
    return 1;
}

static int nested_pads_grad(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    nested_pads(dev, symbolic, round, out);
    out[1] = kl_grad(kl_sum_all(kl_mul(out[0], out[0])), weight[0]);
    return 2;
}

/* From [batch, length, width]. */
static int from_padded(kl_device dev, bool symbolic, bool any_batch, int round, kl_tensor *out)
{
    int64_t batch = any_batch ? 1 + round % 4 : 3, length = 2 + round, dims[3] = {batch, length, WIDTH};
    int64_t b = any_batch && symbolic ? kl_symbol("b", 1, 4) : batch;
    int64_t lengths[3] = {b, symbolic ? kl_symbol("l", 1, MAX_ROWS / 4) : length, WIDTH};
    int32_t many[4];
    for (int i = 0; i < batch; i++)
        many[i] = (i * 5 + round) % (int)length;
    kl_tensor x = input_of(dev, symbolic, KL_F32, 3, lengths, dims, data);
    kl_tensor n = input_of(dev, symbolic, KL_I32, 1, lengths, dims, many);
    kl_tensor y = kl_to_nested(kl_linear(x, weight[0], kl_none), n, 20);
    out[0] = kl_dense(y);
    out[1] = kl_nested_sum(y);
    return 2;
}

static int nested_any_length(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    return from_padded(dev, symbolic, false, round, out);
}

static int nested_any_batch(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    return from_padded(dev, symbolic, true, round, out);
}

/* ---- vmap ---- */

static kl_status sample_gradient(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor loss = kl_cross_entropy(kl_matmul(kl_tanh(kl_linear(in[0], weight[0], kl_none)), weight[1]), in[1]);
    out[0] = kl_grad(loss, weight[0]);
    out[1] = loss;
    return KL_OK;
}

/* A gradient for each sample of a batch. */
static int vmap_samples(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    int64_t count = 1 + round * 3 % MAX_BATCH, n = kl_symbol("n", 1, MAX_BATCH);
    kl_tensor x = rows_of(dev, symbolic, n, count, 2);
    kl_tensor y = input_of(dev, symbolic, KL_I32, 1, &n, &count, label);
    x = kl_reshape(x, 3, (int64_t[]){-1, 1, WIDTH});
    y = kl_reshape(y, 2, (int64_t[]){-1, 1});
    OK(kl_vmap(sample_gradient, NULL, 2, (kl_tensor[]){x, y}, NULL, 2, NULL, KL_RANDOM_ERROR, out));
    return 2;
}

static kl_status row_of(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_softmax(kl_mul(in[0], kl_take(weight[0], 0, in[1])), -1); /* in[1]: which row of the weight */
    out[1] = kl_take(in[0], 0, in[1]);
    return KL_OK;
}

/* Indices that differ over the batch. */
static int vmap_indices(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    int64_t count = 1 + round * 3 % MAX_BATCH, n = kl_symbol("n", 1, MAX_BATCH);
    kl_tensor x = rows_of(dev, symbolic, n, count, 2);
    kl_tensor y = input_of(dev, symbolic, KL_I32, 1, &n, &count, label);
    OK(kl_vmap(row_of, NULL, 2, (kl_tensor[]){x, y}, NULL, 2, (int[]){1, 0}, KL_RANDOM_ERROR, out));
    return 2;
}

static kl_status sequence_sum(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor h = kl_tanh(kl_linear(in[0], weight[0], kl_none));
    out[0] = kl_mean(kl_attention(h, h, h, kl_none, true), AXES(0), false);
    return KL_OK;
}

/* Elements [length, width] of a fixed number: the length of each is symbolic. */
static int vmap_lengths(kl_device dev, bool symbolic, int round, kl_tensor *out)
{
    int64_t l = kl_symbol("l", 1, 10), lengths[3] = {4, l, WIDTH}, dims[3] = {4, 2 + round, WIDTH};
    kl_tensor x = input_of(dev, symbolic, KL_F32, 3, lengths, dims, data);
    OK(kl_vmap(sequence_sum, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, out));
    out[1] = kl_grad(kl_sum_all(out[0]), weight[0]);
    return 2;
}

/* ---- all of them ---- */

static const struct { const char *name; round_fn *fn; const char *by_value; } cases[] = {
    {"nested sums", nested_sums, NULL},
    {"nested attention", nested_attends, NULL},
    {"nested pad", nested_pads, NULL},
    {"nested pad grad", nested_pads_grad, "op scatter is made for lengths that are numbers"},
    {"nested from padded", nested_any_length, NULL},
    {"nested from a batch", nested_any_batch, "op cumsum is made for lengths that are numbers"},
    {"vmap samples", vmap_samples, NULL},
    {"vmap indices", vmap_indices, NULL},
    {"vmap lengths", vmap_lengths, NULL},
};

static void same_results(kl_device dev, const char *name, round_fn *fn, const char *by_value)
{
    struct counts first = {0}, others = {0};
    char trace[2][64], why[2000] = "";
    for (int k = 0; k < 2; k++)
        snprintf(trace[k], sizeof trace[k], "%s %s", k ? "fixed" : "symbolic", name);
    for (int round = 0; round < ROUNDS; round++) {
        kl_tensor out[2][MAX_OUT];
        int n = 0;
        for (int k = 0; k < 2; k++) {
            struct counts before = counts_now();
            kl_trace_begin(trace[k]);
            n = fn(dev, !k, round, out[k]);
            for (int i = 0; i < n; i++)
                kl_keep(out[k][i]);
            OK(kl_trace_end());
            if (!k && !round)
                snprintf(why, sizeof why, "%s", kl_trace_miss());
            if (!k)
                add_since(round ? &others : &first, before);
        }
        for (int i = 0; i < n; i++) {
            same_bits(out[0][i], out[1][i]);
            kl_release(out[0][i]), kl_release(out[1][i]);
        }
    }
    if (!whole_programs(dev))
        return;
    CHECK(first.graphs <= 1);
    if (by_value)
        CHECK(strstr(why, by_value));
    else
        CHECK(!first.variants && !others.graphs && !others.compiles && !others.variants);
}

/* ---- errors ---- */

static kl_status grown(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add_scalar(in[0], 1);
    return KL_OK;
}

static kl_status below_four(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(kl_sum_all(in[0]), kl_full(kl_device_of(in[0]), KL_F32, 0, NULL, 4));
    return KL_OK;
}

static kl_status branches(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor condition;
    below_four(ctx, in, nin, &condition, 1);
    return kl_cond(condition, grown, grown, ctx, nin, in, nout, out);
}

static kl_status loops(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    return kl_while(below_four, grown, ctx, 1, in, out);
}

/* Elements of a batch go on for different numbers of iterations. */
static void test_loops(kl_device dev)
{
    static const float v[] = {0, 3.5f, 9, -2, 1, 1, 1, 0.5f}, want[] = {1, 4.5f, 9, -2, 2, 2, 3, 2.5f};
    int64_t n = kl_symbol("n", 1, MAX_BATCH);
    for (int64_t count = 1; count <= 4; count++) {
        double wanted[8];
        kl_tensor x, y;
        kl_trace_begin("loops of a batch");
        x = kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){n, 2}, (int64_t[]){count, 2}, v);
        OK(kl_vmap(loops, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y));
        y = kl_keep(y);
        OK(kl_trace_end());
        for (int i = 0; i < 2 * count; i++)
            wanted[i] = (double)want[i];
        NEAR(y, 2 * count, wanted, 0);
    }
}

static void test_errors(kl_device dev)
{
    int64_t n = kl_symbol("n", 1, MAX_BATCH), m = kl_symbol("m", 0, MAX_BATCH), three = 3;
    kl_tensor x, y, out[2];
    kl_trace_begin("two batches");
    x = rows_of(dev, true, n, 4, 2), y = rows_of(dev, true, m, 4, 2);
    FAILS(kl_vmap(row_of, NULL, 2, (kl_tensor[]){x, y}, NULL, 2, NULL, KL_RANDOM_ERROR, out), KL_ERR_ARGUMENT,
          "vmap: axis 0 of in[1] of shape [m,6] has length m, but the batch of the tensors before it has n");
    kl_trace_abandon();
    kl_trace_begin("a branch for each element");
    x = rows_of(dev, true, n, 4, 2);
    FAILS(kl_vmap(branches, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, out), KL_ERR_SHAPE,
          "vmap: cond is recorded for each element, and the batch has a symbolic length");
    kl_trace_abandon();
    kl_trace_begin("no offsets");
    y = kl_cast(kl_narrow(rows_of(dev, true, m, 4, 2), 1, 0, 1), KL_I32);
    x = kl_nested(rows_of(dev, true, n, 4, 2), kl_reshape(y, 1, (int64_t[]){-1}));
    FAILS(kl_check(x), KL_ERR_SHAPE, "nested");
    kl_trace_abandon();
    kl_trace_begin("other rows");
    x = kl_nested(rows_of(dev, true, n, 4, 2), kl_input(dev, KL_I32, 1, &three, offset[0]));
    FAILS(kl_check(kl_nested_like(rows_of(dev, true, m, 4, 2), x)), KL_ERR_SHAPE,
          "nested_like: [m,6] has not the rows of [n,6]");
    kl_trace_abandon();
    kl_trace_begin("an unknown number of rows");
    x = kl_to_nested(kl_zeros(dev, KL_F32, DIMS(3, 4, 2)), kl_input(dev, KL_I32, 1, &three, offset[0]), n);
    FAILS(kl_check(x), KL_ERR_SHAPE, "to_nested: symbol n is the length of no input of this trace so far");
    kl_trace_abandon();
    same_results(dev, "after errors", vmap_samples, NULL);
}

static void test(kl_device dev)
{
    for (int i = 0; i < MAX_ROWS * WIDTH * HEADS; i++)
        data[i] = (float)((i * 37) % 101) / 50 - 1;
    for (int i = 0; i < MAX_ROWS; i++)
        label[i] = i * i % CLASSES;
    float read[WIDTH * WIDTH];
    for (int i = 0; i < 2; i++) {
        weight[i] = kl_randn(dev, KL_F32, DIMS(WIDTH, WIDTH), 1 + (uint64_t)i);
        OK(kl_read(weight[i], read, sizeof read)); /* computed here, not in the first trace that reads it */
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        same_results(dev, cases[i].name, cases[i].fn, cases[i].by_value);
    test_loops(dev);
    test_errors(dev);
    kl_release(weight[0]), kl_release(weight[1]);
}

int main(void) { return on_devices(test); }
