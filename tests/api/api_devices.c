/* Several devices: kl_to and the collectives, in traces and lazily.  Whatever the split over devices, the bits are
 * those of one device. */
#include "tests/support/api_numbers.h"

static kl_device there; /* the other device, or the same one where there is no other */

static bool says(const char *text)
{
    const char *last = kl_last_error();
    bool ok = strstr(last, text) && strstr(last, "api_devices.c:");
    if (!ok)
        printf("\"%s\" does not say \"%s\"\n", last, text);
    return ok;
}

/* t is on a device and holds the same bits as `want`, n elements of f64. */
#define IS(t, d, n, want) check_at(is(t, d, n, want), __LINE__, #t)
static bool is(kl_tensor t, kl_device d, int64_t n, const double *want)
{
    double got[MAX_COUNT];
    return kl_device_of(t).id == d.id && kl_numel(t) == n && kl_read(t, got, (size_t)n * sizeof *got) == KL_OK &&
           !memcmp(got, want, (size_t)n * sizeof *got);
}

/* A network of two layers with a loss and all gradients: its second layer on `second`. */
enum { LOSS, DW, DV, DX, RESULTS };
static void network(kl_device second, kl_tensor x, kl_tensor w, kl_tensor v, kl_tensor out[RESULTS])
{
    kl_tensor h = kl_tanh(kl_matmul(x, w));
    kl_tensor y = kl_softmax(kl_matmul(kl_to(h, second), v), 1);
    out[LOSS] = kl_add(kl_to(kl_sum_all(kl_mul(y, y)), dev), kl_sum_all(kl_exp(h)));
    out[DW] = kl_grad(out[LOSS], w);
    out[DV] = kl_grad(out[LOSS], v); /* on the second device: v's */
    out[DX] = kl_grad(out[LOSS], x);
}

static void run_network(bool traced, kl_device second, double bits[RESULTS][MAX_COUNT])
{
    double data[MAX_COUNT];
    kl_tensor out[RESULTS];
    OK(kl_scope_begin());
    kl_tensor x = noisy(1, D(3, 5), data), w = noisy(2, D(5, 4), data), v = kl_to(noisy(3, D(4, 6), data), second);
    kl_requires_grad(x);
    kl_requires_grad(w);
    kl_requires_grad(v);
    if (traced)
        OK(kl_trace_begin("network"));
    network(second, x, w, v, out);
    for (int i = 0; i < RESULTS && traced; i++)
        kl_keep(out[i]);
    if (traced)
        OK(kl_trace_end());
    for (int i = 0; i < RESULTS; i++) {
        CHECK(kl_device_of(out[i]).id == (i == DV ? second : dev).id);
        OK(kl_read(out[i], bits[i], (size_t)kl_numel(out[i]) * sizeof(double)));
    }
    OK(kl_scope_end());
    for (int i = 0; i < RESULTS && traced; i++)
        kl_release(out[i]);
}

static void split_of_a_network(void)
{
    static double one[RESULTS][MAX_COUNT], both[RESULTS][MAX_COUNT];
    run_network(true, dev, one);
    for (int traced = 0; traced < 2; traced++)
        for (int fuse = 0; fuse < 2; fuse++) {
            OK(kl_set_option("fuse", fuse));
            run_network(traced, there, both);
            CHECK(!memcmp(one, both, sizeof one));
        }
    OK(kl_set_option("fuse", 1));
}

/* Training with a state on each device: the same values as with both on one, and compiled once. */
static void states(void)
{
    double start[6], got[2][2][6];
    for (int i = 0; i < 6; i++)
        start[i] = noise(i);
    for (int split = 0; split < 2; split++) {
        kl_device d = split ? there : dev;
        kl_tensor w = kl_input(dev, KL_F64, D(2, 3), start), v = kl_input(d, KL_F64, D(2, 3), start);
        int64_t built = 0;
        for (int step = 0; step < 3; step++) {
            OK(kl_trace_begin(split ? "split" : "whole"));
            kl_tensor loss = kl_sum_all(kl_mul(kl_tanh(w), kl_to(kl_exp(v), dev)));
            kl_tensor dw = kl_grad(loss, w), dv = kl_grad(loss, v);
            OK(kl_assign(w, kl_sub(w, kl_mul_scalar(dw, 0.25))));
            OK(kl_assign(v, kl_sub(v, kl_mul_scalar(dv, 0.25))));
            OK(kl_trace_end());
            CHECK(step == 0 || kl_counter("graphs_built") == built);
            built = kl_counter("graphs_built");
        }
        CHECK(kl_device_of(w).id == dev.id && kl_device_of(v).id == d.id);
        OK(kl_read(w, got[split][0], sizeof got[split][0]));
        OK(kl_read(v, got[split][1], sizeof got[split][1]));
        kl_release(w);
        kl_release(v);
    }
    CHECK(!memcmp(got[0], got[1], sizeof got[0]) && memcmp(got[0][0], start, sizeof start));
}

/* Only what a read needs is computed, and a value goes there and back with every bit. */
static void there_and_back(void)
{
    const double odd[6] = {0.0, -0.0, INFINITY, -INFINITY, 0x1p-1074, 1.0 / 3};
    OK(kl_scope_begin());
    kl_tensor x = kl_input(dev, KL_F64, D(6), odd), y = kl_to(x, there), z = kl_to(y, dev), own = kl_to(x, dev);
    CHECK(kl_device_of(y).id == there.id && kl_dtype_of(y) == KL_F64);
    IS(z, dev, 6, odd);
    IS(y, there, 6, odd);
    IS(own, dev, 6, odd);
    kl_tensor empty = kl_to(kl_zeros(dev, KL_I8, D(3, 0)), there);
    CHECK(kl_read(empty, NULL, 0) == KL_OK && kl_device_of(empty).id == there.id);
    kl_tensor number = kl_to(kl_add_scalar(kl_full(dev, KL_F32, D(2, 2), 3), 0.5), there);
    NEAR_LIST(kl_mul(number, number), 0, 12.25, 12.25, 12.25, 12.25);
    OK(kl_scope_end());
}

/* ---- inside of regions ---- */

static kl_status partly_there(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const kl_device *d = ctx;
    (void)nin, (void)nout;
    kl_tensor far = kl_to(in[0], *d);
    out[0] = kl_add(kl_to(kl_mul(far, kl_sin(far)), kl_device_of(in[0])), in[nin - 1]);
    return KL_OK;
}

static void regions(void)
{
    double data[MAX_COUNT], bits[2][2][MAX_COUNT];
    for (int split = 0; split < 2; split++) {
        kl_device d = split ? there : dev;
        OK(kl_trace_begin("regions"));
        kl_tensor xs = noisy(5, D(4, 3), data), h = noisy(9, D(3), data), out, both;
        kl_requires_grad(h);
        OK(kl_scan(partly_there, &d, 4, 1, &h, 1, &xs, 0, false, &out));
        OK(kl_checkpoint(partly_there, &d, 1, &out, 1, &both));
        kl_tensor loss = kl_sum_all(kl_mul(both, both)), dh = kl_keep(kl_grad(loss, h));
        kl_keep(both);
        OK(kl_trace_end());
        OK(kl_read(both, bits[split][0], 3 * sizeof(double)));
        OK(kl_read(dh, bits[split][1], 3 * sizeof(double)));
        CHECK(!memcmp(bits[0][0], bits[split][0], 3 * sizeof(double)));
        CHECK(!memcmp(bits[0][1], bits[split][1], 3 * sizeof(double)));
        kl_release(both);
        kl_release(dh);
    }
}

static kl_status yields_there(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_to(in[0], there);
    return KL_OK;
}

static kl_status uses_there(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_add(in[0], kl_to(*(const kl_tensor *)ctx, kl_device_of(in[0])));
    return KL_OK;
}

/* ---- collectives ---- */

enum { PARTS = 3 };

static void collect(int traced)
{
    double data[PARTS][6], want[6], out_bits[MAX_COUNT];
    const kl_device d[PARTS] = {dev, there, dev};
    static const kl_reduction kinds[] = {KL_REDUCE_SUM, KL_REDUCE_MEAN, KL_REDUCE_MAX, KL_REDUCE_MIN};
    for (unsigned k = 0; k < 4; k++) {
        kl_tensor in[PARTS], out[PARTS], part[PARTS], loss = kl_none, grad[PARTS];
        for (int i = 0; i < PARTS; i++) {
            for (int j = 0; j < 6; j++)
                data[i][j] = noise(10 * i + j);
            in[i] = kl_keep(kl_input(d[i], KL_F64, D(2, 3), data[i]));
            kl_requires_grad(in[i]);
        }
        for (int j = 0; j < 6; j++) {
            double a = data[0][j], b = data[1][j], c = data[2][j];
            want[j] = k == 0 ? a + b + c : k == 1 ? (a + b + c) / 3 : k == 2 ? fmax(fmax(a, b), c)
                : fmin(fmin(a, b), c);
        }
        OK(traced ? kl_trace_begin("all_reduce") : kl_scope_begin());
        OK(kl_all_reduce(kinds[k], PARTS, in, out));
        OK(kl_reduce_scatter(kinds[k], 1, PARTS, in, part));
        for (int i = 0; i < PARTS; i++) {
            kl_tensor own = kl_to(kl_sum_all(kl_mul(out[i], out[i])), dev);
            loss = i ? kl_add(loss, own) : own;
        }
        for (int i = 0; i < PARTS; i++)
            grad[i] = kl_grad(loss, in[i]);
        for (int i = 0; i < PARTS && traced; i++)
            kl_keep(out[i]), kl_keep(part[i]), kl_keep(grad[i]);
        if (traced)
            OK(kl_trace_end());
        for (int i = 0; i < PARTS; i++) {
            IS(out[i], d[i], 6, want);
            CHECK(kl_device_of(part[i]).id == d[i].id);
            NEAR_LIST(part[i], 0, want[i], want[3 + i]);
            CHECK(kl_device_of(grad[i]).id == d[i].id);
            OK(kl_read(grad[i], out_bits, 6 * sizeof(double)));
            for (int j = 0; j < 6; j++) {
                double slope = k == 0 ? 1 : k == 1 ? 1.0 / 3 : want[j] == data[i][j];
                CHECK(fabs(out_bits[j] - 2 * PARTS * want[j] * slope) < 1e-12);
            }
        }
        if (!traced)
            OK(kl_scope_end());
        for (int i = 0; i < PARTS; i++) {
            kl_release(in[i]);
            if (traced)
                kl_release(out[i]), kl_release(grad[i]);
        }
    }
}

static void gather_and_broadcast(void)
{
    const double a[2] = {1, 2}, b[4] = {3, 4, 5, 6}, all[6] = {1, 3, 4, 2, 5, 6};
    OK(kl_scope_begin());
    kl_tensor in[2] = {kl_input(dev, KL_F64, D(2, 1), a), kl_input(there, KL_F64, D(2, 2), b)}, out[2], copy[PARTS];
    OK(kl_all_gather(-1, 2, in, out));
    IS(out[0], dev, 6, all);
    IS(out[1], there, 6, all);
    OK(kl_broadcast(out[1], PARTS, (kl_device[]){there, dev, there}, copy));
    for (int i = 0; i < PARTS; i++)
        IS(copy[i], i == 1 ? dev : there, 6, all);
    OK(kl_all_gather(0, 1, in, out));
    IS(out[0], dev, 2, a);
    const int32_t n[2] = {7, -9};
    kl_tensor whole[2] = {kl_input(dev, KL_I32, D(2), n), kl_input(there, KL_I32, D(2), n)};
    OK(kl_all_reduce(KL_REDUCE_SUM, 2, whole, out));
    NEAR_LIST(out[1], 0, 14, -18);
    OK(kl_scope_end());
}

/* ---- mistakes ---- */

static void mistakes(void)
{
    OK(kl_scope_begin());
    const double two[2] = {1, 2};
    kl_tensor x = kl_input(dev, KL_F64, D(2), two), y = kl_input(there, KL_F64, D(2), two), out[2];
    kl_tensor three = kl_zeros(there, KL_F64, D(3)), whole = kl_zeros(dev, KL_I32, D(2));
    CHECK(kl_check(kl_to(x, (kl_device){0})) == KL_ERR_DEVICE && says("to: 0 is no device"));
    CHECK(kl_check(kl_to(x, (kl_device){99})) == KL_ERR_DEVICE && says("to: 99 is no device"));
    CHECK(kl_check(kl_to(kl_none, dev)) == KL_ERR_HANDLE && says("to: operand 1"));
    CHECK(kl_all_reduce(KL_REDUCE_SUM, 0, &x, out) == KL_ERR_ARGUMENT && says("all_reduce: needs at least one tensor"));
    CHECK(kl_all_reduce(KL_REDUCE_SUM, 2, NULL, out) == KL_ERR_ARGUMENT && says("all_reduce: a list is NULL"));
    CHECK(kl_check(out[1]) == KL_ERR_ARGUMENT);
    CHECK(kl_all_reduce(KL_REDUCE_SUM, 2, (kl_tensor[]){x, y}, NULL) == KL_ERR_ARGUMENT && says("a list is NULL"));
    CHECK(kl_all_reduce((kl_reduction)9, 2, (kl_tensor[]){x, y}, out) == KL_ERR_ARGUMENT && says("9 is no reduction"));
    CHECK(kl_all_reduce(KL_REDUCE_SUM, 2, (kl_tensor[]){x, three}, out) == KL_ERR_SHAPE &&
          says("all_reduce: tensor 1 is f64[2], tensor 2 is f64[3]"));
    CHECK(kl_all_reduce(KL_REDUCE_SUM, 2, (kl_tensor[]){x, whole}, out) == KL_ERR_TYPE &&
          says("all_reduce: tensor 1 is f64[2], tensor 2 is i32[2]"));
    CHECK(kl_all_reduce(KL_REDUCE_MEAN, 1, &whole, out) == KL_ERR_TYPE &&
          says("a mean needs a floating dtype, got i32"));
    CHECK(kl_all_reduce(KL_REDUCE_SUM, 2, (kl_tensor[]){x, kl_none}, out) == KL_ERR_HANDLE &&
          says("all_reduce: tensor 2"));
    CHECK(kl_check(out[0]) == KL_ERR_HANDLE && kl_check(out[1]) == KL_ERR_HANDLE);
    CHECK(kl_reduce_scatter(KL_REDUCE_MAX, 1, 2, (kl_tensor[]){x, y}, out) == KL_ERR_SHAPE &&
          says("reduce_scatter: axis 1"));
    CHECK(kl_reduce_scatter(KL_REDUCE_MAX, 0, 2, (kl_tensor[]){three, three}, out) == KL_ERR_SHAPE &&
          says("reduce_scatter: axis 0 of [3] is not 2 equal parts"));
    CHECK(kl_all_gather(3, 2, (kl_tensor[]){x, y}, out) == KL_ERR_SHAPE && says("all_gather: "));
    CHECK(kl_all_gather(0, 2, (kl_tensor[]){x, whole}, out) != KL_OK && says("all_gather: "));
    CHECK(kl_broadcast(x, 2, (kl_device[]){dev, {0}}, out) == KL_ERR_DEVICE && says("0 is no device"));
    CHECK(kl_check(out[0]) == KL_ERR_DEVICE);
    CHECK(kl_broadcast(x, 2, NULL, out) == KL_ERR_ARGUMENT && says("broadcast: a list is NULL"));
    if (there.id != dev.id) {
        CHECK(kl_check(kl_add(x, y)) == KL_ERR_DEVICE && says("add: operands are on devices "));
        CHECK(kl_check(kl_where(kl_gt(x, x), x, y)) == KL_ERR_DEVICE && says("where: operands are on devices "));
        kl_tensor got;
        CHECK(kl_checkpoint(yields_there, NULL, 1, &x, 1, &got) == KL_ERR_DEVICE &&
              says("checkpoint: result 0 of checkpoint is on device "));
        CHECK(kl_checkpoint(uses_there, &y, 1, &x, 1, &got) == KL_ERR_DEVICE &&
              says("checkpoint: a tensor that it uses is on device "));
        CHECK(kl_assign(x, y) == KL_ERR_DEVICE);
        OK(kl_trace_begin("mixed"));
        kl_tensor kept = kl_keep(kl_neg(x));
        kl_keep(kl_mul(x, kl_neg(y)));
        CHECK(kl_trace_end() == KL_ERR_DEVICE && says("mul: operands are on devices "));
        CHECK(kl_check(kept) != KL_OK);
    }
    kl_tensor fine = kl_add(x, kl_to(y, dev));
    IS(fine, dev, 2, ((double[]){2, 4}));
    OK(kl_scope_end());
}

static void test(kl_device d)
{
    dev = d;
    there = kl_device_named(strcmp(kl_device_name(d), "ref") ? "ref" : "cpu");
    if (!there.id)
        there = d;
    there_and_back();
    split_of_a_network();
    states();
    regions();
    collect(0);
    collect(1);
    gather_and_broadcast();
    mistakes();
}

int main(void)
{
    return on_devices(test);
}
