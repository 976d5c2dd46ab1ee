/* Cancelled at every place where a run or a compilation asks whether it is to end, one after the other: each time the
 * call fails with CANCELLED and every value is as before, to the bit, until one is not reached any more and the call
 * succeeds; its values, and those of a further call, are then those of the same calls without any of this.
 *
 * Arguments: devices; without one ref and cpu. */
#include "passes/plan/plan.h"
#include "runtime/runtime.h"
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <stdatomic.h>

enum { IN = 12, HIDDEN = 40, OUT = 5, BATCH = 9, MAX_STATES = 8, MAX_BYTES = IN * HIDDEN * 4 };

/* ---- a cancellation that is requested from the nth time on that it is asked for ---- */
struct countdown { atomic_long asked; long at; };

static bool countdown_asked(void *ctx, struct err *e)
{
    struct countdown *c = ctx;
    if (atomic_fetch_add(&c->asked, 1) < c->at)
        return false;
    return !err_set(e, KL_ERR_CANCELLED, "cancelled at %ld", c->at);
}

/* ---- the work: calls that assign states ---- */
struct work {
    const char *name;
    kl_tensor state[MAX_STATES];
    int64_t bytes[MAX_STATES];
    int states;
    kl_optimizer *adam;
    kl_step *step;
    int calls;                   /* that have succeeded */
    double result;               /* of the last one */
    kl_status (*init)(struct work *w);
    kl_status (*call)(struct work *w);
    long min_asked;              /* by a compiled call */
    bool repeated;               /* a GPU launches all that it did the last time at once: then it is asked once */
};

static kl_device dev;

static void add_state(struct work *w, kl_tensor t)
{
    w->bytes[w->states] = kl_numel(t) * (int64_t)kl_dtype_size(kl_dtype_of(t));
    w->state[w->states++] = kl_keep(t);
}

static kl_status read_states(const struct work *w, char (*to)[MAX_BYTES])
{
    kl_status s = KL_OK;
    for (int i = 0; i < w->states && s == KL_OK; i++)
        s = kl_read(w->state[i], to[i], (size_t)w->bytes[i]);
    return s;
}

/* A step of Adam on two dense layers. */
static kl_status train_init(struct work *w)
{
    static const int64_t dims[4][2] = {{IN, HIDDEN}, {HIDDEN, 1}, {HIDDEN, OUT}, {OUT, 1}};
    for (int i = 0; i < 4; i++)
        add_state(w, kl_mul_scalar(kl_randn(dev, KL_F32, 2 - i % 2, dims[i], (uint64_t)i), 0.3));
    w->adam = kl_adam(4, w->state, NULL);
    return w->adam ? KL_OK : kl_last_error_code();
}

static kl_tensor train_loss(struct work *w, kl_tensor x)
{
    kl_tensor h = kl_relu(kl_linear(x, w->state[0], w->state[1]));
    kl_tensor y = kl_softmax(kl_linear(h, w->state[2], w->state[3]), -1);
    return kl_keep(kl_mean(kl_mul(y, y), 0, NULL, false));
}

static kl_status train_call(struct work *w)
{
    OK(kl_optimizer_set_steps(w->adam, w->calls)); /* a step that failed is made again */
    kl_trace_begin("cancelled_train");
    kl_tensor loss = train_loss(w, kl_randn(dev, KL_F32, DIMS(BATCH, IN), 77));
    kl_optimizer_step(w->adam, loss, 0.05);
    kl_status s = kl_trace_end();
    if (s != KL_OK)
        return CHECK(kl_check(loss) == KL_ERR_CANCELLED), s;
    w->result = kl_item_f64(loss);
    return kl_release(loss);
}

/* The same as a frozen step without an optimizer. */
static kl_status step_call(struct work *w)
{
    if (!w->step) {
        kl_trace_begin("cancelled_step");
        kl_tensor x = kl_randn(dev, KL_F32, DIMS(BATCH, IN), 78), loss = train_loss(w, x), grads[4];
        kl_grads(loss, 4, w->state, grads);
        for (int i = 0; i < 4; i++)
            kl_assign(w->state[i], kl_sub(w->state[i], kl_mul_scalar(grads[i], 0.1)));
        if (!(w->step = kl_trace_end_step(0, NULL)))
            return kl_last_error_code();
    }
    kl_tensor loss;
    kl_status s = kl_step_run(w->step, 0, NULL, 0, NULL, 1, &loss);
    if (s != KL_OK)
        return CHECK(!loss.id), s;
    w->result = kl_item_f64(loss);
    return kl_release(loss);
}

/* ---- loops, behind states that are overwritten in place ---- */
static kl_status below(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(in[0], kl_const(dev, KL_I32, 6));
    return KL_OK;
}

static kl_status rotated(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add_scalar(in[0], 1);
    out[1] = kl_tanh(kl_matmul(in[1], kl_transpose(in[1], 0, 1)));
    return KL_OK;
}

static kl_status counted(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add_scalar(in[0], 1);
    return KL_OK;
}

/* A while in it makes it a loop that asks at each iteration: a small one without is a kernel. */
static kl_status summed(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor zero = kl_zeros(dev, KL_I32, 0, NULL), six;
    (void)ctx, (void)nin, (void)nout;
    kl_while(below, counted, NULL, 1, &zero, &six);
    out[0] = kl_add(kl_mul(in[0], kl_div(kl_const(dev, KL_F32, 3), kl_cast(six, KL_F32))), in[1]);
    return KL_OK;
}

static kl_status loop_init(struct work *w)
{
    add_state(w, kl_zeros(dev, KL_I32, 0, NULL));
    for (int i = 0; i < 2; i++)
        add_state(w, kl_mul_scalar(kl_randn(dev, KL_F32, DIMS(IN, IN), 5 + (uint64_t)i), 0.3));
    add_state(w, kl_ones(dev, KL_F32, DIMS(IN)));
    return KL_OK;
}

static kl_status loop_call(struct work *w)
{
    kl_trace_begin("cancelled_loop");
    kl_tensor out[2], sum, in[2] = {kl_zeros(dev, KL_I32, 0, NULL), w->state[1]};
    kl_assign(w->state[2], kl_mul_scalar(w->state[2], 1.5));
    kl_while(below, rotated, NULL, 2, in, out);
    kl_assign(w->state[0], kl_add(w->state[0], out[0]));
    kl_assign(w->state[1], out[1]);
    kl_scan(summed, NULL, IN, 1, &w->state[3], 1, &out[1], 0, false, &sum);
    kl_assign(w->state[3], sum);
    return kl_trace_end();
}

/* ---- a loop that is one kernel, cut into parts as if it took long, behind a state that is overwritten ---- */
static kl_status coupled(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add(kl_softmax(in[0], -1), in[1]);
    return KL_OK;
}

static kl_status parts_call(struct work *w)
{
    kl_tensor sum;
    kl_trace_begin("cancelled_parts");
    kl_assign(w->state[2], kl_mul_scalar(w->state[2], 1.5));
    kl_scan(coupled, NULL, IN, 1, &w->state[3], 1, &w->state[1], 0, false, &sum);
    kl_assign(w->state[3], sum);
    return kl_trace_end();
}

/* ---- values outside of traces: they stay to be computed ---- */
static kl_status lazy_call(struct work *w)
{
    if (w->states < 4)
        add_state(w, kl_softmax(kl_matmul(w->state[0], w->state[0]), -1));
    static float got[IN * IN];
    kl_status s = kl_read(w->state[3], got, sizeof got);
    w->result = (double)got[7];
    return s;
}

static kl_status lazy_init(struct work *w)
{
    for (int i = 0; i < 3; i++)
        add_state(w, kl_randn(dev, KL_F32, DIMS(IN, IN), 9 + (uint64_t)i));
    return KL_OK;
}

/* ---- the sweep ---- */
static char before[MAX_STATES][MAX_BYTES], after[MAX_STATES][MAX_BYTES];

/* Calls until it succeeds, cancelled later and later.  How often a complete call asks. */
static long call_cancelled(struct work *w, bool reads)
{
    for (long at = 0;; at++) {
        struct countdown c = {.at = at};
        const struct cancellation here = {countdown_asked, &c};
        memset(before, 0, sizeof before);
        memset(after, 0, sizeof after);
        if (reads && !OK(read_states(w, before)))
            return -1;
        cancellation_here(&here);
        kl_status s = w->call(w);
        cancellation_here(NULL);
        if (s == KL_OK)
            return w->calls++, at;
        char words[40];
        snprintf(words, sizeof words, "cancelled at %ld", at);
        if (!CHECK(s == KL_ERR_CANCELLED && kl_last_error_code() == s && strstr(kl_last_error(), words)) || at > 5000)
            return -1;
        if (reads && (!OK(read_states(w, after)) || !CHECK(!memcmp(before, after, sizeof before))))
            return -1;
    }
}

static void work_free(struct work *w)
{
    for (int i = 0; i < w->states; i++)
        OK(kl_release(w->state[i]));
    kl_optimizer_free(w->adam);
    kl_step_free(w->step);
}

static void sweep(const struct work *kind, bool reads)
{
    struct work cancelled = *kind, plain = *kind;
    if (!OK(kind->init(&cancelled)) || !OK(kind->init(&plain)))
        return;
    long first = call_cancelled(&cancelled, reads), second = reads ? call_cancelled(&cancelled, true) : first;
    for (int calls = 0; calls < 3; calls++) {
        OK(plain.call(&plain));
        plain.calls++;
    }
    for (; cancelled.calls < plain.calls; cancelled.calls++)
        OK(cancelled.call(&cancelled));
    OK(read_states(&cancelled, before));
    OK(read_states(&plain, after));
    CHECK(!memcmp(before, after, sizeof before) && cancelled.result == plain.result);
    bool gpu = !strncmp(device_now, "vulkan", 6) || !strncmp(device_now, "cuda", 4) || !strncmp(device_now, "hip", 3);
    if (!CHECK(first >= second && second >= (gpu && kind->repeated ? 1 : kind->min_asked)))
        printf("%s on %s: asked %ld times, then %ld times\n", kind->name, device_now, first, second);
    work_free(&cancelled);
    work_free(&plain);
}

int main(int argc, char **argv)
{
    static const struct work works[] = {
        {.name = "train", .init = train_init, .call = train_call, .min_asked = 5, .repeated = true},
        {.name = "step", .init = train_init, .call = step_call, .min_asked = 5, .repeated = true},
        {.name = "loop", .init = loop_init, .call = loop_call, .min_asked = 6 + IN},
        {.name = "parts", .init = loop_init, .call = parts_call, .min_asked = 6},
        {.name = "lazy", .init = lazy_init, .call = lazy_call, .min_asked = 5},
    };
    static const char *const usual[] = {"ref", "cpu"};
    plan_loop_part_work = 200; /* some iterations of the loop `coupled` */
    executor_piece_work = 1000; /* the kernels of `train` are several pieces */
    for (int i = 0; i < (argc > 1 ? argc - 1 : 2); i++) {
        device_now = argc > 1 ? argv[i + 1] : usual[i];
        dev = kl_device_named(device_now);
        if (!CHECK(dev.id))
            continue;
        for (unsigned k = 0; k < sizeof works / sizeof *works; k++)
            for (int fuse = 0; fuse < 2; fuse++) {
                OK(kl_set_option("fuse", fuse));
                sweep(&works[k], works[k].call != lazy_call);
            }
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
