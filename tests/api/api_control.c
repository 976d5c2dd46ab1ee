/* kl_cond, kl_while, kl_scan, kl_checkpoint and kl_custom_grad: values, gradients and errors, in traces and lazily. */
#include "tests/support/api_check.h"

static kl_device dev;

static kl_tensor vec(int64_t n, const double *v) { return kl_input(dev, KL_F64, 1, (int64_t[]){n}, v); }
static const double at[3] = {-1.5, 0.5, 2};

/* Runs a test in a trace and lazily. */
static void both(void (*test)(void))
{
    for (int traced = 0; traced < 2; traced++) {
        if (traced)
            OK(kl_trace_begin("both"));
        else
            OK(kl_scope_begin());
        test();
        if (traced)
            kl_trace_abandon(); /* ended by done() unless the test failed */
        else
            OK(kl_scope_end());
    }
}

/* In a trace: ends it, so that kept handles have values. */
static void done(void)
{
    if (kl_tracing())
        OK(kl_trace_end());
}

/* ---- cond ---- */

static int calls;

static kl_status scaled(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const kl_tensor *w = ctx;
    calls++;
    CHECK(nin == 1 && nout == 2 && !out[0].id);
    out[0] = kl_mul_scalar(kl_mul(in[0], *w), 3);
    out[1] = in[0];
    return KL_OK;
}

static kl_status squared(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    double two = 2;
    out[0] = kl_mul(in[0], in[0]);
    out[1] = kl_mul(in[0], kl_input(dev, KL_F64, 0, NULL, &two)); /* data inside */
    return KL_OK;
}

static void cond(void)
{
    for (int yes = 0; yes < 2; yes++) {
        bool traced = kl_tracing();
        kl_tensor x = kl_keep(vec(3, at)), w = kl_keep(vec(3, at)), out[2];
        kl_requires_grad(x);
        kl_requires_grad(w);
        kl_tensor p = kl_lt(kl_sum(x, 0, NULL, false), kl_scalar(dev, KL_F64, yes ? 100 : -100));
        OK(kl_cond(p, scaled, squared, &w, 1, &x, 2, out));
        kl_tensor loss = kl_mul(out[0], out[1]);
        kl_tensor dx = kl_keep(kl_grad(loss, x)), dw = kl_keep(kl_grad(loss, w)), second = kl_keep(kl_grad(dx, x));
        kl_keep(out[0]);
        done();
        double y[3], gx[3], gw[3], gs[3];
        for (int i = 0; i < 3; i++) { /* yes: 3 x^2 w with w = x; no: 2 x^3 */
            y[i] = yes ? 3 * at[i] * at[i] : at[i] * at[i];
            gx[i] = 6 * at[i] * at[i];
            gw[i] = yes ? 3 * at[i] * at[i] : 0;
            gs[i] = yes ? 6 * at[i] : 12 * at[i];
        }
        NEAR(out[0], 3, y, 1e-15);
        NEAR(dx, 3, gx, 1e-15);
        NEAR(dw, 3, gw, 1e-15);
        NEAR(second, 3, gs, 1e-15);
        kl_release(x);
        kl_release(w);
        if (traced)
            OK(kl_trace_begin("again"));
    }
}

/* ---- while ---- */

static kl_status below(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_lt(in[0], *(const kl_tensor *)ctx);
    return KL_OK;
}

static kl_status doubled(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add_scalar(in[0], 1);
    out[1] = kl_add(in[1], in[1]);
    return KL_OK;
}

static void loop(void)
{
    kl_tensor n = kl_scalar(dev, KL_F64, 5), in[] = {kl_scalar(dev, KL_F64, 0), vec(3, at)}, out[2];
    OK(kl_while(below, doubled, &n, 2, in, out));
    kl_keep(out[0]);
    kl_keep(out[1]);
    done();
    NEAR_LIST(out[0], 0, 5);
    NEAR_LIST(out[1], 0, -48, 16, 64);
}

/* ---- scan ---- */

struct cell { kl_tensor w; bool checkpoint; };

static kl_status step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct cell *c = ctx;
    CHECK(nin == 2 && nout == 2);
    if (c->checkpoint) {
        struct cell inner = {c->w, false};
        return kl_checkpoint(step, &inner, nin, in, nout, out);
    }
    out[0] = kl_add(kl_mul(in[0], c->w), in[1]);
    out[1] = kl_mul(out[0], in[1]);
    return KL_OK;
}

/* h = h w + x and y = h x over x: against the same written out. */
static void scan_form(bool reverse, bool checkpoint)
{
    double xs[4] = {0.5, -1, 2, 0.25}, h0 = 1.5, w0 = -0.75;
    kl_tensor x = kl_keep(vec(4, xs)), h = kl_keep(kl_full(dev, KL_F64, 0, NULL, h0)),
        w = kl_keep(kl_full(dev, KL_F64, 0, NULL, w0));
    kl_requires_grad(x);
    kl_requires_grad(h);
    kl_requires_grad(w);
    struct cell c = {w, checkpoint};
    kl_tensor out[2];
    OK(kl_scan(step, &c, 4, 1, &h, 1, &x, 1, reverse, out));
    kl_tensor loss = kl_add(kl_sum(kl_mul(out[1], out[1]), 0, NULL, false), out[0]);
    kl_tensor plain = h, sum = kl_scalar(dev, KL_F64, 0);
    for (int i = 0; i < 4; i++) {
        kl_tensor e = kl_reshape(kl_narrow(x, 0, reverse ? 3 - i : i, 1), 0, NULL), io[2] = {plain, e}, y[2];
        struct cell flat = {w, false};
        OK(step(&flat, io, 2, y, 2));
        plain = y[0];
        sum = kl_add(sum, kl_mul(y[1], y[1]));
    }
    kl_tensor want = kl_add(sum, plain), wrt[3] = {x, h, w}, first[6], second[6];
    for (int i = 0; i < 3; i++) {
        first[i] = kl_keep(kl_grad(loss, wrt[i]));
        first[3 + i] = kl_keep(kl_grad(want, wrt[i]));
        second[i] = kl_keep(kl_grad(kl_grad(loss, w), wrt[i]));
        second[3 + i] = kl_keep(kl_grad(kl_grad(want, w), wrt[i]));
    }
    kl_keep(loss);
    kl_keep(want);
    done();
    double *v = values_of(want);
    if (CHECK(v != NULL))
        NEAR(loss, 1, v, 1e-14);
    free(v);
    for (int i = 0; i < 6; i++) {
        kl_tensor *list = i < 3 ? first : second;
        v = values_of(list[3 + i % 3]);
        if (CHECK(v != NULL))
            NEAR(list[i % 3], i % 3 == 0 ? 4 : 1, v, 1e-13);
        free(v);
        kl_release(list[3 + i % 3]);
    }
    for (int i = 0; i < 3; i++)
        kl_release(wrt[i]);
    kl_release(want);
}

static void scan_forward(void) { scan_form(false, false); }
static void scan_backward(void) { scan_form(true, false); }
static void scan_checkpoint(void) { scan_form(false, true); }

/* ---- checkpoint, custom gradient ---- */

static kl_status cube(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_mul(in[0], kl_mul(in[0], in[0]));
    return KL_OK;
}

static kl_status clipped(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nout;
    CHECK(nin == 3); /* x, y, dy */
    out[0] = kl_minimum(kl_mul(in[2], kl_mul_scalar(kl_mul(in[0], in[0]), 3)), *(const kl_tensor *)ctx);
    return KL_OK;
}

static void gradients_of_its_own(void)
{
    kl_tensor x = kl_keep(vec(3, at)), max = kl_keep(kl_full(dev, KL_F64, 0, NULL, 5)), y, z;
    kl_requires_grad(x);
    OK(kl_checkpoint(cube, NULL, 1, &x, 1, &y));
    OK(kl_custom_grad(cube, clipped, &max, 1, &x, 1, &z));
    kl_tensor dy = kl_keep(kl_grad(y, x)), dz = kl_keep(kl_grad(z, x)), second = kl_keep(kl_grad(dz, x));
    kl_keep(y);
    kl_keep(z);
    done();
    NEAR_LIST(y, 1e-15, -3.375, 0.125, 8);
    NEAR_LIST(z, 1e-15, -3.375, 0.125, 8);
    NEAR_LIST(dy, 1e-15, 6.75, 0.75, 12);
    NEAR_LIST(dz, 1e-15, 5, 0.75, 5);
    NEAR_LIST(second, 1e-15, 0, 3, 0);
    kl_release(x);
    kl_release(max);
}

/* ---- one program, whatever the numbers ---- */

static void compiled_once(void)
{
    int64_t built = 0;
    for (int i = 0; i < 4; i++) {
        OK(kl_trace_begin("steps"));
        kl_tensor x = vec(3, at), w = kl_full(dev, KL_F64, 0, NULL, i), out[2], y;
        OK(kl_cond(kl_scalar(dev, KL_BOOL, i & 1), scaled, squared, &w, 1, &x, 2, out));
        y = kl_keep(out[0]);
        OK(kl_trace_end());
        double a = i & 1 ? 3 * i : 0;
        NEAR_LIST(y, 1e-15, i & 1 ? a * -1.5 : 2.25, i & 1 ? a * 0.5 : 0.25, i & 1 ? a * 2 : 4);
        if (i == 0)
            built = kl_counter("graphs_built");
    }
    CHECK(kl_counter("graphs_built") == built);
}

/* ---- errors ---- */

enum mistake { UNSET, SHAPES, READS, KEEPS, ASSIGNS, ENDS, BEGINS, SCOPES, RELEASES, RETURNS, BAD_OP, ESCAPES,
               MISTAKES };
static const char *const reason[MISTAKES] = {
    [UNSET] = "result 0 of yes was not set",
        [SHAPES] = "result 0 is f64[] in the first branch and f64[3] in the second",
    [READS] = "read: not inside of a function that cond records", [KEEPS] = "keep: not inside",
    [ASSIGNS] = "assign: not inside", [ENDS] = "trace_end: not inside", [BEGINS] = "trace_begin: not inside",
    [SCOPES] = "scope_end: not inside", [RELEASES] = "release: the tensor is from outside",
    [RETURNS] = "yes failed: input/output error", [BAD_OP] = "add: shapes [3] and [2] do not broadcast",
    [ESCAPES] = "stale",
};
struct wrong { enum mistake what; kl_tensor outside; };
static kl_tensor escaped;

static kl_status wrong(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct wrong *w = ctx;
    double data[3];
    (void)nin, (void)nout;
    escaped = in[0];
    out[0] = in[0];
    switch (w->what) {
    case UNSET: out[0] = kl_none; break;
    case SHAPES: out[0] = kl_sum(in[0], 0, NULL, false); break;
    case READS: kl_read(w->outside, data, sizeof data); break;
    case KEEPS: kl_keep(in[0]); break;
    case ASSIGNS: kl_assign(w->outside, in[0]); break;
    case ENDS: kl_trace_end(); break;
    case BEGINS: kl_trace_begin("inside"); break;
    case SCOPES: kl_scope_end(); break;
    case RELEASES: kl_release(w->outside); break;
    case RETURNS: return KL_ERR_IO;
    case BAD_OP: out[0] = kl_add(in[0], vec(2, at)); break;
    case ESCAPES: case MISTAKES: break;
    }
    return KL_OK;
}

static kl_status same(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin;
    for (uint32_t i = 0; i < nout; i++)
        out[i] = in[i];
    return KL_OK;
}

static kl_status widened(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin;
    for (uint32_t i = 0; i < nout; i++)
        out[i] = kl_cast(in[i], KL_F32);
    return KL_OK;
}

/* The last error names this file and has the text. */
static bool says(const char *text)
{
    bool ok = strstr(kl_last_error(), "api_control.c:") && strstr(kl_last_error(), text);
    if (!ok)
        printf("expected '%s'\n", text);
    return ok;
}

static void mistakes(void)
{
    for (int traced = 0; traced < 2; traced++)
        for (int i = 0; i < MISTAKES; i++) {
            kl_tensor x = vec(3, at), y = {1}, yes = kl_scalar(dev, KL_BOOL, 1);
            struct wrong w = {(enum mistake)i, vec(3, at)};
            if (traced)
                OK(kl_trace_begin("wrong"));
            kl_status status = kl_cond(yes, wrong, same, &w, 1, &x, 1, &y);
            if (i == ESCAPES)
                status = kl_check(kl_neg(escaped));
            CHECK(status != KL_OK && says(reason[i]));
            if (traced)
                CHECK(kl_trace_end() == status && says(reason[i]));
            else if (i != ESCAPES)
                CHECK(kl_check(y) == status);
            if (!traced)
                kl_release(y);
            kl_clear_error();
            OK(kl_cond(yes, same, same, NULL, 1, &x, 1, &y)); /* the next call works */
            NEAR(y, 3, at, 0);
            NEAR(w.outside, 3, at, 0);
            kl_release(x);
            kl_release(yes);
        }
}

static void more_mistakes(void)
{
    kl_tensor x = vec(3, at), out[3], n = kl_scalar(dev, KL_F64, 1);
    CHECK(kl_cond(x, same, same, NULL, 0, NULL, 0, out) != KL_OK && says("cond: "));
    CHECK(kl_cond(x, same, same, NULL, 1, &x, 1, out) == KL_ERR_TYPE &&
          says("cond: the condition must be bool[], got f64[3]"));
    CHECK(kl_while(below, widened, &n, 1, &n, out) == KL_ERR_TYPE &&
          says("while: carried value 0 is f64[], but the body yields f32[]"));
    CHECK(kl_while(same, same, NULL, 1, &n, out) == KL_ERR_TYPE &&
          says("while: the condition must yield bool[], not f64[]"));
    CHECK(kl_scan(same, NULL, 4, 0, NULL, 1, &x, 1, false, out) == KL_ERR_SHAPE &&
          says("scan: of length 4, but scanned tensor 0 is f64[3]"));
    CHECK(kl_scan(same, NULL, -1, 1, &x, 0, NULL, 0, false, out) == KL_ERR_ARGUMENT &&
          says("scan: length -1 is negative"));
    CHECK(kl_scan(widened, NULL, 2, 1, &x, 0, NULL, 0, false, out) == KL_ERR_TYPE && says("scan: carried value 0"));
    CHECK(kl_custom_grad(cube, widened, NULL, 1, &x, 1, out) == KL_ERR_SHAPE &&
          says("custom_grad: operand 0 is f64[3], but its gradient is f32[3]"));
    CHECK(kl_checkpoint(NULL, NULL, 1, &x, 1, out) == KL_ERR_ARGUMENT && says("checkpoint: a function is NULL"));
    CHECK(kl_checkpoint(same, NULL, 1, NULL, 1, out) == KL_ERR_ARGUMENT &&
          says("checkpoint: a list of tensors is NULL"));
    CHECK(kl_checkpoint(same, NULL, 1, &(kl_tensor){0}, 1, out) == KL_ERR_HANDLE &&
          says("checkpoint: operand 1 is kl_none"));
    kl_release(x);
    kl_release(n);
}

/* A loop has no gradient; the trace says so, and where it is. */
static void no_gradient(void)
{
    kl_tensor x = vec(3, at), n = kl_scalar(dev, KL_F64, 5), in[2], out[2];
    OK(kl_trace_begin("loop"));
    in[0] = kl_scalar(dev, KL_F64, 0);
    in[1] = kl_mul(x, x);
    int line = __LINE__ + 1;
    OK(kl_while(below, doubled, &n, 2, in, out));
    kl_keep(kl_grad(out[1], x));
    char where[64];
    snprintf(where, sizeof where, "api_control.c:%d", line);
    CHECK(kl_trace_end() == KL_ERR_GRAD && says("while: no gradient flows back") && says(where));
    kl_release(x);
    kl_release(n);
}

/* Regions in regions, as deep as they may be and one more. */
static kl_status nest(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    int *depth = ctx;
    if (--*depth == 0)
        return same(NULL, in, nin, out, nout);
    return kl_checkpoint(nest, ctx, nin, in, nout, out);
}

static void deep(void)
{
    kl_tensor x = vec(3, at), y;
    int depth = 16;
    OK(kl_checkpoint(nest, &depth, 1, &x, 1, &y));
    NEAR(y, 3, at, 0);
    depth = 17;
    CHECK(kl_checkpoint(nest, &depth, 1, &x, 1, &y) == KL_ERR_ARGUMENT && says("more than 16 deep"));
    kl_release(y);
    kl_release(x);
}

static void on_device(kl_device d)
{
    dev = d;
    both(cond);
    both(loop);
    both(scan_forward);
    both(scan_backward);
    both(scan_checkpoint);
    both(gradients_of_its_own);
    compiled_once();
    mistakes();
    more_mistakes();
    no_gradient();
    deep();
    CHECK(calls > 0);
}

int main(void)
{
    return on_devices(on_device);
}
