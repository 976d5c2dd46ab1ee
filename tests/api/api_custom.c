/* Custom ops: values, types, attributes, gradients, regions and errors, in traces and lazily, and from several
 * threads. */
#include "tests/support/api_numbers.h"
#include <pthread.h>

static int line; /* of the call that an error is to name */

static bool says(const char *text)
{
    char at[64];
    const char *last = kl_last_error();
    snprintf(at, sizeof at, "api_custom.c:%d", line);
    bool ok = strstr(last, text) && (!line || strstr(last, at));
    if (!ok)
        printf("\"%s\" does not say \"%s\" and %s\n", last, text, at);
    return ok;
}

/* ---- axpy: results a x + y and, in i32, how many elements that are; attributes: a ---- */

static int runs, traced_gradients;

static kl_status axpy_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    if (ctx != &runs || call->in || call->out || call->out_type)
        return KL_ERR_INTERNAL;
    if (call->nin != 2 || call->nout != 2 || call->attr_bytes != sizeof(double))
        return KL_ERR_ARGUMENT;
    const kl_type *x = &call->in_type[0], *y = &call->in_type[1];
    if (x->dtype != KL_F64 || y->dtype != KL_F64)
        return KL_ERR_TYPE;
    if (x->rank != y->rank || memcmp(x->dims, y->dims, sizeof x->dims)) {
        snprintf(call->message, call->message_bytes, "operands of rank %d and %d differ", x->rank, y->rank);
        return KL_ERR_SHAPE;
    }
    out[0] = *x;
    out[1] = (kl_type){.dtype = KL_I32};
    return KL_OK;
}

static kl_status axpy_run(void *ctx, const kl_custom_call *call)
{
    const double a = *(const double *)call->attr, *x = call->in[0], *y = call->in[1];
    double *out = call->out[0];
    int32_t n = 1;
    if (ctx != &runs || call->nin != 2 || call->nout != 2 || call->out_type[1].rank ||
        call->out_type[1].dtype != KL_I32)
        return KL_ERR_INTERNAL;
    for (int i = 0; i < call->in_type[0].rank; i++)
        n *= (int32_t)call->in_type[0].dims[i];
    for (int32_t i = 0; i < n; i++) {
        if (x[i] == 1234) {
            snprintf(call->message, call->message_bytes, "element %d is 1234", i);
            return KL_ERR_IO;
        }
        out[i] = a * x[i] + y[i];
    }
    *(int32_t *)call->out[1] = n;
    __atomic_fetch_add(&runs, 1, __ATOMIC_RELAXED);
    return KL_OK;
}

/* in: x, y, the two results, the gradient of the first. */
static kl_status axpy_gradient(void *ctx, const void *attr, size_t attr_bytes, const kl_tensor *in, int64_t nin,
                               kl_tensor *out, int64_t nout)
{
    __atomic_fetch_add(&traced_gradients, 1, __ATOMIC_RELAXED);
    if (ctx != &runs || attr_bytes != sizeof(double) || nin != 5 || nout != 2)
        return KL_ERR_INTERNAL;
    out[0] = kl_mul_scalar(in[4], *(const double *)attr);
    out[1] = kl_mul_scalar(in[4], 1);
    return KL_OK;
}

static const kl_custom_op axpy = {axpy_types, axpy_run, axpy_gradient};

static kl_tensor axpy_of(double a, kl_tensor x, kl_tensor y)
{
    kl_tensor out[2];
    OK(kl_custom("axpy", &a, sizeof a, 2, (kl_tensor[]){x, y}, 2, out));
    return out[0];
}

/* ---- cube: no attributes, gradient 3 x^2 dy through a custom op; flat: cube without a gradient ---- */

static kl_status cube_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    if (call->nin != 1 || call->nout != 1 || call->attr || call->attr_bytes)
        return KL_ERR_ARGUMENT;
    out[0] = call->in_type[0];
    return KL_OK;
}

static kl_status cube_run(void *ctx, const kl_custom_call *call)
{
    const double *x = call->in[0];
    double *y = call->out[0];
    int64_t n = 1;
    (void)ctx;
    for (int i = 0; i < call->in_type[0].rank; i++)
        n *= call->in_type[0].dims[i];
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * x[i] * x[i];
    return KL_OK;
}

static kl_status cube_gradient(void *ctx, const void *attr, size_t attr_bytes, const kl_tensor *in, int64_t nin,
                               kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)attr, (void)attr_bytes, (void)nin, (void)nout;
    out[0] = kl_mul(in[2], kl_mul_scalar(kl_mul(in[0], in[0]), 3));
    return KL_OK;
}

static kl_tensor cube_of(kl_tensor x)
{
    kl_tensor y;
    OK(kl_custom("cube", NULL, 0, 1, &x, 1, &y));
    return y;
}

/* ---- others, that are wrong in some way ---- */

static kl_status no_type(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)call;
    out[0] = *(const kl_type *)ctx;
    return KL_OK;
}

static kl_status bad_status(void *ctx, const kl_custom_call *call)
{
    (void)ctx, (void)call;
    return (kl_status)12345;
}

static kl_status bad_gradient(void *ctx, const void *attr, size_t attr_bytes, const kl_tensor *in, int64_t nin,
                              kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)attr, (void)attr_bytes, (void)nin, (void)nout;
    out[0] = kl_sum_all(in[0]); /* of the wrong shape */
    return KL_OK;
}

static const kl_type wrong_types[] = {{(kl_dtype)77, 0, {0}}, {KL_F64, 9, {0}}, {KL_F64, -1, {0}}, {KL_F64, 1, {-4}},
                                      {KL_F64, 2, {INT64_MAX, 9}}};
enum { WRONG = sizeof wrong_types / sizeof *wrong_types };

static void register_all(void)
{
    OK(kl_custom_register("axpy", &axpy, &runs));
    OK(kl_custom_register("cube", &(kl_custom_op){cube_types, cube_run, cube_gradient}, NULL));
    OK(kl_custom_register("flat", &(kl_custom_op){cube_types, cube_run, NULL}, NULL));
    OK(kl_custom_register("status", &(kl_custom_op){cube_types, bad_status, NULL}, NULL));
    OK(kl_custom_register("gradient", &(kl_custom_op){cube_types, cube_run, bad_gradient}, NULL));
    for (int i = 0; i < WRONG; i++) {
        char name[24];
        snprintf(name, sizeof name, "wrong%d", i);
        OK(kl_custom_register(name, &(kl_custom_op){no_type, bad_status, NULL}, (void *)(uintptr_t)&wrong_types[i]));
    }
    line = 0;
    CHECK(kl_custom_register("axpy", &axpy, &runs) == KL_ERR_ARGUMENT && says("\"axpy\" is registered already"));
    CHECK(kl_custom_register(NULL, &axpy, NULL) == KL_ERR_ARGUMENT &&
          says("custom_register: a name has 1 to 63 bytes"));
    CHECK(kl_custom_register("", &axpy, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_custom_register("0123456789012345678901234567890123456789012345678901234567890123", &axpy,
                             NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_custom_register("null", NULL, NULL) == KL_ERR_ARGUMENT && says("needs functions types and run"));
    CHECK(kl_custom_register("null", &(kl_custom_op){axpy_types, NULL, NULL}, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_custom_register("null", &(kl_custom_op){NULL, axpy_run, NULL}, NULL) == KL_ERR_ARGUMENT);
}

/* ---- values ---- */

static void values(void)
{
    const double a[3] = {1, -2, 0.5}, b[3] = {10, 20, 30};
    for (int traced = 0; traced < 2; traced++) {
        kl_tensor x = kl_keep(f64(D(3), a)), y = kl_keep(f64(D(3), b)), out[2], more[2];
        OK(traced ? kl_trace_begin("values") : kl_scope_begin());
        const double two = 2, four = 4;
        OK(kl_custom("axpy", &two, sizeof two, 2, (kl_tensor[]){kl_exp(kl_log(kl_abs(x))), y}, 2, out));
        OK(kl_custom("axpy", &four, sizeof four, 2, (kl_tensor[]){out[0], kl_neg(out[0])}, 2, more));
        SHAPE(out[0], 3);
        CHECK(kl_dtype_of(out[1]) == KL_I32 && kl_rank(out[1]) == 0 && kl_device_of(out[1]).id == dev.id);
        kl_tensor sum = kl_add(kl_sum_all(more[0]), kl_cast(out[1], KL_F64));
        if (traced)
            kl_keep(out[0]), kl_keep(sum), OK(kl_trace_end());
        double *v = values_of(out[0]);
        CHECK(v && fabs(v[0] - 12) < 1e-12 && fabs(v[1] - 24) < 1e-12 && fabs(v[2] - 31) < 1e-12);
        free(v);
        CHECK(fabs(kl_item_f64(sum) - 204) < 1e-12); /* 3 (12 + 24 + 31) + 3 */
        if (!traced)
            OK(kl_scope_end());
        else
            kl_release(out[0]), kl_release(sum);
        kl_release(x);
        kl_release(y);
    }
    OK(kl_scope_begin());
    kl_tensor none = kl_zeros(dev, KL_F64, D(0, 3));
    NEAR(axpy_of(3, none, none), 0, NULL, 0);
    kl_tensor wide = kl_transpose(f64(D(3, 1), a), 0, 1), row = kl_expand(f64(D(1, 3), b), D(1, 3)); /* views */
    NEAR_LIST(axpy_of(-1, wide, row), 0, 9, 22, 29.5);
    OK(kl_scope_end());
}

/* Other attributes are another program, the same ones are not. */
static void attributes(void)
{
    const double a[2] = {1, 2};
    int64_t built = 0;
    for (int i = 0; i < 6; i++) {
        kl_tensor x = f64(D(2), a);
        OK(kl_trace_begin("attributes"));
        kl_tensor y = kl_keep(axpy_of(i < 3 ? 5 : 7, x, x));
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        built += info.graphs_built;
        NEAR_LIST(y, 0, i < 3 ? 6 : 8, i < 3 ? 12 : 16);
        kl_release(x);
    }
    CHECK(built == 2);
}

/* ---- gradients ---- */

static kl_tensor mixed(const kl_tensor *x)
{
    return kl_mul(cube_of(kl_sin(x[0])), axpy_of(0.75, kl_mul(x[0], x[1]), x[1]));
}

static void gradients(void)
{
    double a[3], b[3];
    const double h = 1e-5;
    for (int order = 1; order <= 2; order++)
        for (int traced = 0; traced < 2; traced++) {
            OK(kl_scope_begin());
            kl_tensor x[2] = {noisy(3, D(3), a), noisy(7, D(3), b)};
            kl_requires_grad(x[0]);
            kl_requires_grad(x[1]);
            int before = traced_gradients;
            if (traced)
                OK(kl_trace_begin("gradients"));
            kl_tensor loss = weighted(mixed(x));
            if (order == 2)
                loss = weighted(kl_grad(loss, x[0]));
            kl_tensor dx = kl_grad(loss, x[0]), dy = kl_grad(loss, x[1]);
            if (traced)
                kl_keep(dx), kl_keep(dy), OK(kl_trace_end());
            double got[2][3];
            OK(kl_read(dx, got[0], sizeof got[0]));
            OK(kl_read(dy, got[1], sizeof got[1]));
            CHECK(traced_gradients - before == 1); /* once, while recording */
            if (traced)
                kl_release(dx), kl_release(dy);
            for (int side = 0; side < 2; side++)
                for (int i = 0; i < 3; i++) {
                    double *v = side ? b : a, kept = v[i], value[2];
                    for (int s = 0; s < 2; s++) {
                        v[i] = kept + (s ? h : -h);
                        kl_tensor z[2] = {f64(D(3), a), f64(D(3), b)};
                        kl_requires_grad(z[0]);
                        kl_tensor l = weighted(mixed(z));
                        if (order == 2)
                            l = weighted(kl_grad(l, z[0]));
                        value[s] = kl_item_f64(l);
                    }
                    v[i] = kept;
                    double want = (value[1] - value[0]) / (2 * h);
                    CHECK(fabs(got[side][i] - want) < 1e-6 * (1 + fabs(want)));
                }
            OK(kl_scope_end());
        }
}

static void without_gradient(void)
{
    const double a[2] = {1, 2};
    OK(kl_scope_begin());
    kl_tensor x = f64(D(2), a), y;
    kl_requires_grad(x);
    line = __LINE__ + 1;
    OK(kl_custom("flat", NULL, 0, 1, &x, 1, &y));
    kl_tensor g = kl_grad(kl_sum_all(kl_mul(y, y)), x);
    CHECK(kl_read(g, (double[2]){0}, 2 * sizeof(double)) == KL_ERR_GRAD &&
          says("custom \"flat\": no gradient flows through this op"));
    NEAR_LIST(kl_grad(kl_sum_all(kl_mul(kl_detach(y), x)), x), 0, 1, 8); /* not asked for */
    OK(kl_scope_end());
}

/* ---- in regions ---- */

static kl_status step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin;
    out[0] = axpy_of(0.5, in[0], cube_of(in[nin - 1]));
    if (nout > 1)
        out[1] = in[nin - 1];
    return KL_OK;
}

static kl_status below(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(kl_sum_all(in[0]), kl_const(dev, KL_F64, 4));
    return KL_OK;
}

static kl_status grow(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor one = kl_add_scalar(kl_mul_scalar(in[0], 0), 1), y;
    OK(kl_custom("flat", NULL, 0, 1, &one, 1, &y));
    out[0] = kl_add(in[0], y);
    return KL_OK;
}

static void regions(void)
{
    const double h0[1] = {2}, xs0[3] = {1, -1, 2}, zero[1] = {0};
    OK(kl_trace_begin("regions"));
    kl_tensor h = f64(D(1), h0), xs = f64(D(3, 1), xs0), last, again, count;
    OK(kl_scan(step, NULL, 3, 1, &h, 1, &xs, 0, false, &last)); /* h/8 + x0^3/4 + x1^3/2 + x2^3 */
    OK(kl_checkpoint(step, NULL, 1, &last, 1, &again));       /* l/2 + l^3 */
    kl_tensor start = f64(D(1), zero);
    OK(kl_while(below, grow, NULL, 1, &start, &count));
    kl_tensor loss = kl_sum_all(again), dh = kl_keep(kl_grad(loss, h)), dx = kl_keep(kl_grad(loss, xs));
    kl_keep(again);
    kl_keep(count);
    OK(kl_trace_end());
    double l = 0.25 + 0.25 - 0.5 + 8, slope = 0.5 + 3 * l * l;
    NEAR_LIST(again, 1e-14, l / 2 + l * l * l);
    NEAR_LIST(dh, 1e-14, slope / 8);
    NEAR_LIST(dx, 1e-14, slope * 0.75, slope * 1.5, slope * 12);
    NEAR_LIST(count, 0, 4);
}

/* Part of it on another device. */
static void devices(void)
{
    kl_device there = kl_device_named(strcmp(kl_device_name(dev), "ref") ? "ref" : "cpu");
    const double a[2] = {3, 4};
    if (!there.id)
        return;
    OK(kl_scope_begin());
    kl_tensor x = f64(D(2), a), y = cube_of(kl_to(x, there));
    CHECK(kl_device_of(y).id == there.id);
    NEAR_LIST(kl_to(axpy_of(2, y, y), dev), 0, 81, 192);
    kl_tensor out[2];
    line = __LINE__ + 1;
    CHECK(kl_custom("axpy", (double[]){1}, 8, 2, (kl_tensor[]){x, y}, 2, out) == KL_ERR_DEVICE &&
          says("operands are on devices "));
    OK(kl_scope_end());
}

/* ---- mistakes ---- */

#define REFUSED(status, text, ...)                                       \
    do {                                                                 \
        kl_tensor out_[3];                                               \
        line = __LINE__;                                                 \
        CHECK(kl_custom(__VA_ARGS__, out_) == (status) && says(text)); \
        CHECK(kl_check(out_[0]) == (status));                            \
        kl_release(out_[0]);                                             \
    } while (0)

static void mistakes(void)
{
    static char big[(1 << 16) + 1];
    const double a[2] = {3, 4}, one = 1;
    OK(kl_scope_begin());
    kl_tensor x = f64(D(2), a), f = kl_cast(x, KL_F32), three = kl_zeros(dev, KL_F64, D(3));
    kl_tensor xx[2] = {x, x}, xf[2] = {x, f}, xt[2] = {x, three}, xn[2] = {x, kl_none};
    REFUSED(KL_ERR_ARGUMENT, "custom \"nobody\": no op of this name is registered", "nobody", NULL, 0, 1, &x, 1);
    REFUSED(KL_ERR_ARGUMENT, "custom: a name has 1 to 63 bytes", NULL, NULL, 0, 1, &x, 1);
    REFUSED(KL_ERR_ARGUMENT, "custom \"cube\": needs at least one operand", "cube", NULL, 0, 0, NULL, 1);
    REFUSED(KL_ERR_ARGUMENT, "a list of tensors is NULL", "cube", NULL, 0, 1, NULL, 1);
    REFUSED(KL_ERR_ARGUMENT, "attr is NULL", "cube", NULL, 3, 1, &x, 1);
    REFUSED(KL_ERR_ARGUMENT, "has more than 64 KiB of attributes", "cube", big, sizeof big, 1, &x, 1);
    REFUSED(KL_ERR_ARGUMENT, "custom \"axpy\": argument error", "axpy", &one, sizeof one, 1, &x, 2);
    REFUSED(KL_ERR_TYPE, "custom \"axpy\": type error", "axpy", &one, sizeof one, 2, xf, 2);
    REFUSED(KL_ERR_SHAPE, "axpy\": operands of rank 1 and 1 differ", "axpy", &one, sizeof one, 2, xt, 2);
    REFUSED(KL_ERR_HANDLE, "custom \"axpy\": operand 2", "axpy", &one, sizeof one, 2, xn, 2);
    REFUSED(KL_ERR_SHAPE, "its gradient is", "gradient", NULL, 0, 1, &x, 1);
    for (int i = 0; i < WRONG; i++) {
        char name[24];
        snprintf(name, sizeof name, "wrong%d", i);
        REFUSED(KL_ERR_SHAPE, "the type that it says of result 0 is none", name, NULL, 0, 1, &x, 1);
    }
    line = __LINE__ + 1;
    CHECK(kl_custom("axpy", &one, sizeof one, 2, xx, 2, NULL) == KL_ERR_ARGUMENT && says("a list of tensors is NULL"));
    NEAR_LIST(axpy_of(1, x, x), 0, 6, 8);
    OK(kl_scope_end());
}

/* A run that fails: the error names the op and the line where it was recorded, values are as they were, and the same
 * program works with other data.  A second line that records the same graph is named in its own errors. */
static void failing_runs(void)
{
    const double good[2] = {3, 4}, bad[2] = {3, 1234};
    kl_tensor w = f64(D(2), good);
    for (int i = 0; i < 4; i++) {
        kl_tensor x = f64(D(2), i % 2 ? bad : good), y[2];
        OK(kl_trace_begin("failing"));
        if (i < 2) {
            line = __LINE__ + 1;
            OK(kl_custom("axpy", (double[]){2}, 8, 2, (kl_tensor[]){kl_neg(kl_neg(x)), w}, 2, y));
        } else {
            line = __LINE__ + 1;
            OK(kl_custom("axpy", (double[]){2}, 8, 2, (kl_tensor[]){kl_neg(kl_neg(x)), w}, 2, y));
        }
        OK(kl_assign(w, y[0]));
        kl_keep(y[1]);
        if (i % 2) {
            CHECK(kl_trace_end() == KL_ERR_IO && says("custom \"axpy\": element 1 is 1234 (recorded at "));
            CHECK(kl_check(y[1]) != KL_OK);
        } else {
            OK(kl_trace_end());
            CHECK(kl_item_i64(y[1]) == 2);
            kl_release(y[1]);
        }
        double got[2];
        OK(kl_read(w, got, sizeof got));
        CHECK(got[0] == (i < 2 ? 9 : 15) && got[1] == (i < 2 ? 12 : 20));
        kl_release(x);
    }
    kl_release(w);
    OK(kl_scope_begin());
    kl_tensor x = f64(D(2), bad), y, out[2];
    line = __LINE__ + 1;
    OK(kl_custom("status", NULL, 0, 1, &x, 1, &y));
    CHECK(kl_read(y, (double[2]){0}, 16) == KL_ERR_INTERNAL && says("custom \"status\": internal error"));
    line = __LINE__ + 1;
    OK(kl_custom("axpy", (double[]){2}, 8, 2, (kl_tensor[]){x, x}, 2, out));
    CHECK(isnan(kl_item_f64(kl_sum_all(out[0]))) && says("custom \"axpy\": element 1 is 1234"));
    kl_tensor xs = kl_reshape(x, D(2, 1)), h = f64(D(1), good), last;
    line = 0; /* inside of step */
    OK(kl_scan(step, NULL, 2, 1, &h, 1, &xs, 0, false, &last));
    kl_tensor fine = cube_of(h);
    NEAR_LIST(fine, 0, 27);
    NEAR_LIST(last, 1e-12, 2 * (0.25 * 3 + 27 * 0.5 + 0) - 0.75 * 2 - 27 + 0.75 + 13.5 + 1234.0 * 1234 * 1234);
    OK(kl_scope_end());
}

/* ---- threads ---- */

static void *register_and_use(void *name)
{
    kl_custom_register("shared", &axpy, &runs); /* one of the threads is first */
    kl_custom_register(name, &axpy, &runs);
    bool ok = true;
    for (int i = 0; i < 20 && ok; i++) {
        double v[2] = {i, 1};
        const double three = 3;
        kl_trace_begin("thread");
        kl_tensor x = kl_input(dev, KL_F64, D(2), v), out[2], twice[2];
        kl_custom(name, &three, sizeof three, 2, (kl_tensor[]){x, x}, 2, out);
        kl_custom("shared", &three, sizeof three, 2, (kl_tensor[]){out[0], x}, 2, twice);
        kl_tensor sum = kl_keep(kl_sum_all(twice[0]));
        ok = kl_trace_end() == KL_OK && kl_item_f64(sum) == 13.0 * (i + 1);
        kl_release(sum);
    }
    return ok ? name : NULL;
}

static void threads(void)
{
    static char name[4][32];
    static int round;
    pthread_t t[4];
    round++;
    for (int i = 0; i < 4; i++) {
        snprintf(name[i], sizeof name[i], "own%d.%d", round, i);
        pthread_create(&t[i], NULL, register_and_use, name[i]);
    }
    for (int i = 0; i < 4; i++) {
        void *ok;
        pthread_join(t[i], &ok);
        CHECK(ok);
    }
}

static void test(kl_device d)
{
    static bool registered;
    dev = d;
    if (!registered)
        register_all();
    registered = true;
    for (int fuse = 0; fuse < 2; fuse++) {
        OK(kl_set_option("fuse", fuse));
        values();
        gradients();
        regions();
    }
    attributes();
    without_gradient();
    devices();
    mistakes();
    failing_runs();
    threads();
    CHECK(runs > 0 && traced_gradients > 0);
}

int main(void)
{
    return on_devices(test);
}
