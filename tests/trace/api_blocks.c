/* kl_trace_suspend: ops outside of the open trace and region.  Then: blocks that a function of the user's begins, ends,
 * or leaves open while Kiln calls it: suspensions of the trace, scopes, no_grad and autocast blocks, composites,
 * guards.  Random sequences of such calls run inside the functions of every region op, of kl_vmap and of custom ops, in
 * a trace, outside of one, and while one is suspended.  Whatever they do: the op succeeds where a model of the rules
 * says so, the thread's state is as before, and the next call works. */
#include "tests/support/api_check.h"
#include <kiln/dispatch.h>
#include <kiln/extend.h>

static kl_device dev;
static uint32_t seed;

/* ---- suspensions ---- */

static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }
static kl_tensor vec(int64_t n, const float *v) { return kl_input(dev, KL_F32, 1, &n, v); }

/* A number is computed in the middle of a trace, which goes on as if nothing had been. */
static void in_a_trace(void)
{
    kl_tensor before = vec(2, (float[]){3, 4}), out;
    OK(kl_trace_begin("suspended"));
    kl_tensor x = kl_mul(vec(2, (float[]){1, 2}), before);
    OK(kl_trace_suspend());
    CHECK(!kl_tracing() && !kl_grad_enabled());
    kl_tensor n = kl_sum_all(kl_mul(before, before));
    CHECK(kl_item_f32(n) == 25);
    float v[2];
    CHECK(kl_read(x, v, sizeof v) == KL_ERR_TRACE && says("is of a trace or function that is suspended"));
    OK(kl_trace_suspend()); /* nests */
    CHECK(!kl_tracing() && kl_trace_resume() == KL_OK && !kl_tracing() && !kl_grad_enabled());
    CHECK(kl_trace_begin("another") == KL_ERR_TRACE && kl_trace_end() == KL_ERR_TRACE);
    CHECK(kl_trace_end() == KL_ERR_TRACE && says("no trace is open"));
    OK(kl_trace_resume());
    CHECK(kl_tracing() && kl_grad_enabled());
    out = kl_keep(kl_add(x, n)); /* n is outside of the trace: a state of it */
    OK(kl_trace_end());
    NEAR_LIST(out, 0, 28, 33);
    kl_release(n);
    kl_release(before);
    CHECK(kl_trace_resume() == KL_ERR_TRACE);
}

/* What the trace has assigned has its new value at its end. */
static void assigned(void)
{
    kl_tensor state = vec(1, (float[]){1});
    OK(kl_trace_begin("assigned"));
    OK(kl_assign(state, kl_add_scalar(state, 1)));
    OK(kl_trace_suspend());
    float v;
    CHECK(kl_read(state, &v, sizeof v) == KL_ERR_TRACE && says("was assigned in trace"));
    OK(kl_trace_resume());
    OK(kl_trace_end());
    NEAR_LIST(state, 0, 2);
}

static kl_status round_of(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor outside = *(kl_tensor *)ctx;
    (void)nin;
    (void)nout;
    if (kl_trace_suspend() != KL_OK)
        return KL_ERR_TRACE;
    float by = kl_item_f32(kl_sum_all(outside));
    if (kl_trace_resume() != KL_OK)
        return KL_ERR_TRACE;
    out[0] = kl_mul_scalar(in[0], (double)by);
    return KL_OK;
}

static void in_a_region(void)
{
    kl_tensor two = vec(2, (float[]){0.5, 1.5}), one = vec(1, (float[]){1}), out;
    for (int traced = 0; traced < 2; traced++) {
        if (traced)
            OK(kl_trace_begin("region"));
        OK(kl_scan(round_of, &two, 5, 1, &one, 0, NULL, 0, false, &out));
        kl_keep(out);
        if (traced)
            OK(kl_trace_end());
        NEAR_LIST(out, 0, 32);
    }
    kl_release(two);
    kl_release(one);
}

static uint32_t next_random(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)seed * n >> 32);
}

/* ---- the calls, a letter each, and a model of what they may do ---- */

/* s r: suspend, resume; n N: no_grad; a A: autocast; c C: composite; k K: scope; t T x: trace; g: a guard; e: a value
 * is computed and read. */
static const char letters[] = "srnNaAcCkKtTxge";
enum { DEEPEST = 24 };
struct level { int no_grad, autocast, nstack; char stack[DEEPEST]; }; /* stack: open scopes and composites */
static struct model {
    struct level level[DEEPEST];
    int suspended;
    bool failed;     /* a call failed outside of suspensions, so that the region's recording has failed */
} model;
static const char *program;
static bool agree;   /* every call returned what the model says */

/* Ends composites: with them the scopes begun in them. */
static bool model_end_composite(struct level *l)
{
    int i = l->nstack;
    while (i > 0 && l->stack[i - 1] != 'c')
        i--;
    if (!i)
        return false;
    l->nstack = i - 1;
    return true;
}

static bool level_open(const struct level *l) { return l->no_grad || l->autocast || l->nstack; }

/* Is the call allowed in a function that is recorded? */
static bool model_call(char c)
{
    struct level *l = &model.level[model.suspended];
    bool suspended = model.suspended > 0, open;
    switch (c) {
    case 's': model.level[++model.suspended] = (struct level){0}; return true;
    case 'r':
        open = suspended && level_open(l);
        model.suspended -= suspended;
        return suspended && !open;
    case 'n': l->no_grad++; return true;
    case 'N': return l->no_grad-- > 0 || (l->no_grad = 0, false);
    case 'a': l->autocast++; return true;
    case 'A': return l->autocast-- > 0 || (l->autocast = 0, false);
    case 'c': l->stack[l->nstack++] = 'c'; return true;
    case 'C': return model_end_composite(l);
    case 'k': return suspended && (l->stack[l->nstack++] = 'k');
    case 'K': return suspended && l->nstack && l->stack[l->nstack - 1] == 'k' && l->nstack--;
    case 'e': return suspended; /* elsewhere a value cannot be read */
    case 'g': return true;
    default: return false;
    }
}

static bool eager(void)
{
    kl_tensor x = kl_input(dev, KL_F32, 0, NULL, &(float){3}), y = kl_mul(x, x);
    float v = 0;
    kl_status status = kl_read(y, &v, sizeof v);
    kl_release(x);
    kl_release(y);
    return status == KL_OK && v == 9;
}

static bool perform(char c)
{
    kl_clear_error();
    switch (c) {
    case 's': return kl_trace_suspend() == KL_OK;
    case 'r': return kl_trace_resume() == KL_OK;
    case 'n': return kl_no_grad_begin() == KL_OK;
    case 'N': return kl_no_grad_end() == KL_OK;
    case 'a': return kl_autocast_begin(KL_BF16) == KL_OK;
    case 'A': return kl_autocast_end() == KL_OK;
    case 'c': return kl_composite_begin("blocks") == KL_OK;
    case 'C': kl_composite_end(0, NULL); return kl_last_error_code() == KL_OK;
    case 'k': return kl_scope_begin() == KL_OK;
    case 'K': return kl_scope_end() == KL_OK;
    case 't': return kl_trace_begin("inside") == KL_OK || kl_trace_end() == KL_OK; /* what fails to begin ends, too */
    case 'T': return kl_trace_end() == KL_OK;
    case 'x': kl_trace_abandon(); return kl_last_error_code() == KL_OK;
    case 'g': kl_dispatch_guard(kl_keyset_add((kl_keyset){0}, KL_KEY_User1), (kl_keyset){0}); return true;
    default: return eager();
    }
}

static void run_program(void)
{
    model = (struct model){0};
    for (const char *c = program; *c; c++) {
        bool was_suspended = model.suspended > 0, allowed = model_call(*c);
        /* kl_trace_resume reports into what it has resumed */
        bool recorded = !was_suspended || (*c == 'r' && !model.suspended), worked = perform(*c);
        if (model.failed && recorded)
            continue; /* calls in a failed recording say its first error */
        agree &= worked == allowed;
        model.failed |= recorded && !allowed;
    }
}

/* ---- the functions that run them ---- */

static kl_status same(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    if (ctx)
        run_program();
    for (uint32_t i = 0; i < nout; i++)
        out[i] = kl_mul_scalar(in[i < nin ? i : 0], 1);
    return KL_OK;
}
static kl_status plain(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    return same(NULL, in, nin, out, nout);
}
static kl_status below_three(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    if (ctx)
        run_program();
    out[0] = kl_lt(in[0], kl_scalar(dev, KL_F32, -3));
    return KL_OK;
}
static kl_status never(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    return below_three(NULL, in, nin, out, nout);
}

static kl_status custom_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}
static kl_status custom_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    *(float *)call->out[0] = *(const float *)call->in[0];
    return KL_OK;
}
static kl_status custom_gradient(void *ctx, const void *attr, size_t attr_bytes, const kl_tensor *in, int64_t nin,
                                 kl_tensor *out, int64_t nout)
{
    (void)attr, (void)attr_bytes;
    return same(ctx ? ctx : "", in, nin, out, nout);
}

static const char *const hosts[] = {"cond yes", "cond no", "while condition", "while body", "scan", "checkpoint",
                                    "custom_grad", "custom_grad backward", "custom op's gradient", "vmap",
                                    "vmap in vmap"};
enum { HOSTS = sizeof hosts / sizeof *hosts };

static kl_status inner_vmap(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor x = kl_unsqueeze(in[0], 0), y;
    kl_status status = kl_vmap(same, ctx, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y);
    out[0] = kl_squeeze(y, 0);
    return status;
}

/* Calls the op whose function is the host; *y is a scalar that equals x. */
static kl_status call_host(unsigned host, kl_tensor x, kl_tensor *y)
{
    static char on; /* a context that is not NULL */
    kl_tensor row;
    kl_status status;
    switch (host) {
    case 0: return kl_cond(kl_lt(x, kl_scalar(dev, KL_F32, 100)), same, plain, &on, 1, &x, 1, y);
    case 1: return kl_cond(kl_lt(x, kl_scalar(dev, KL_F32, 100)), plain, same, &on, 1, &x, 1, y);
    case 2: return kl_while(below_three, plain, &on, 1, &x, y);
    case 3: return kl_while(never, same, &on, 1, &x, y);
    case 4: return kl_scan(same, &on, 2, 1, &x, 0, NULL, 0, false, y);
    case 5: return kl_checkpoint(same, &on, 1, &x, 1, y);
    case 6: return kl_custom_grad(same, plain, &on, 1, &x, 1, y);
    case 7: return kl_custom_grad(plain, same, &on, 1, &x, 1, y);
    case 8: return kl_custom("blocks_op", NULL, 0, 1, &x, 1, y);
    default:
        x = kl_unsqueeze(x, 0);
        status = kl_vmap(host == 9 ? same : inner_vmap, &on, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &row);
        *y = kl_squeeze(row, 0);
        return status;
    }
}

/* ---- what surrounds the op ---- */

struct state { bool tracing, grad; kl_dtype autocast; kl_guard guard; };
static struct state state_now(void)
{
    return (struct state){kl_tracing(), kl_grad_enabled(), kl_autocast_dtype(), kl_dispatch_guarded()};
}
static bool state_same(const struct state *a, const struct state *b)
{
    return a->tracing == b->tracing && a->grad == b->grad && a->autocast == b->autocast &&
           a->guard.included.bits == b->guard.included.bits && a->guard.excluded.bits == b->guard.excluded.bits;
}

/* One op around the program; `around` has the calls before it, and their ends follow in the opposite order. */
static bool one(unsigned host, const char *around)
{
    size_t n = strlen(around);
    bool traced = false, ok = true;
    float v = 0;
    kl_tensor x = kl_input(dev, KL_F32, 0, NULL, &(float){2}), y = kl_none;
    for (size_t i = 0; i < n; i++) {
        traced = around[i] == 't' || (traced && around[i] != 's');
        ok &= perform(around[i]);
    }
    kl_clear_error();
    agree = true;
    struct state before = state_now();
    kl_status status = call_host(host, x, &y);
    struct state after = state_now();
    bool good = !model.failed && !model.suspended && !level_open(&model.level[0]);
    ok &= state_same(&before, &after) && agree && (status == KL_OK) == good;
    ok &= good || (kl_last_error_code() != KL_OK && *kl_last_error());
    if (traced)
        kl_keep(y);
    else if (good)
        ok &= kl_read(y, &v, sizeof v) == KL_OK && v == 2;
    for (size_t i = n; i-- > 0;) {
        char end = around[i] == 's' ? 'r' : (char)(around[i] - 'a' + 'A');
        bool fails = end == 'T' && traced && !good;
        ok &= perform(end) == !fails;
        if (end == 'T' && traced && good)
            ok &= kl_read(y, &v, sizeof v) == KL_OK && v == 2;
    }
    kl_release(y);
    kl_release(x);
    kl_clear_error();
    ok &= !kl_tracing() && kl_grad_enabled() && eager();
    if (!ok)
        printf("host %s, around \"%s\", program \"%s\": status %d, the model says %s%s\n", hosts[host], around, program,
               status, good ? "good" : "bad", agree ? "" : "; a call inside disagrees with it");
    return ok;
}

static void all(void)
{
    static const char *const around[] = {"", "t", "ts", "s", "n", "tn", "tna", "kc", "a"};
    static const char *const known[] = {"", "s", "ss", "sr", "sekKr", "sk", "skr", "snr", "n", "nN", "a", "c", "cC",
                                        "C", "N", "A", "r", "K", "sK", "sC", "sN", "sA", "sx", "x", "sT", "T", "st",
                                        "t", "g", "sgr", "scksneNrKCr", "e", "ckC"};
    bool ok = true;
    for (unsigned host = 0; host < HOSTS; host++)
        for (size_t a = 0; a < sizeof around / sizeof *around; a++)
            for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
                program = known[i];
                ok &= one(host, around[a]);
            }
    CHECK(ok);
    for (int i = 0; i < 3000; i++) {
        char text[DEEPEST] = "";
        uint32_t n = next_random(10);
        for (uint32_t k = 0; k < n; k++)
            text[k] = letters[next_random(i % 2 ? sizeof letters - 1 : 10)];
        program = text;
        ok &= one(next_random(HOSTS), around[next_random(sizeof around / sizeof *around)]);
    }
    CHECK(ok);
}

/* ---- kernels of the dispatch system ---- */

static kl_status kernel(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx, (void)keys;
    kl_status status = kl_redispatch_below(call);
    for (const char *c = program; *c; c++)
        perform(*c);
    return status;
}

/* A kernel that returns between a begin and an end: an error of the call, and the thread is as before. */
static void kernels(void)
{
    static const struct { const char *program, *says; } outside[] = {
        {"sr", NULL}, {"s", "kl_trace_resume"}, {"ss", "kl_trace_resume"}, {"t", "kl_trace_end"},
        {"n", "kl_no_grad_end"},
        {"k", "kl_scope_end"}, {"c", "kl_composite_end"}, {"a", "kl_autocast_end"}, {"kK", NULL}, {"r", NULL},
        {"K", NULL}, {"C", NULL}}, inside[] = {
        {"sr", NULL}, {"s", "kl_trace_resume"}, {"sk", "kl_trace_resume"}, {"x", "ended the trace"},
        {"T", "ended the trace"}};
    kl_registration r;
    OK(kl_dispatch_register("neg", KL_KEY_User2, &(kl_kernel){.name = "leaves", .call = kernel}, &r));
    for (size_t i = 0; i < sizeof outside / sizeof *outside + sizeof inside / sizeof *inside; i++) {
        bool traced = i >= sizeof outside / sizeof *outside;
        const char *says = traced ? inside[i - sizeof outside / sizeof *outside].says : outside[i].says;
        kl_tensor x = kl_input(dev, KL_F32, 0, NULL, &(float){2});
        program = traced ? inside[i - sizeof outside / sizeof *outside].program : outside[i].program;
        OK(kl_dispatch_mark(x, kl_keyset_add((kl_keyset){0}, KL_KEY_User2)));
        if (traced)
            OK(kl_trace_begin("kernels"));
        struct state before = state_now();
        kl_clear_error();
        kl_tensor y = kl_neg(x);
        struct state after = state_now();
        bool ended = says && strstr(says, "ended");
        bool ok = ended ? !after.tracing : state_same(&before, &after);
        ok &= says ? strstr(kl_last_error(), says) && kl_check(y) != KL_OK : true;
        if (traced && !ended)
            ok &= (kl_keep(y), kl_trace_end() == KL_OK) == !says;
        float v = 0;
        ok &= says || (kl_read(y, &v, sizeof v) == KL_OK && v == -2);
        kl_release(y);
        kl_release(x);
        kl_clear_error();
        if (!check_at(ok && eager(), __LINE__, "a kernel that leaves something open"))
            printf("program \"%s\", %s a trace\n", program, traced ? "in" : "outside of");
    }
    OK(kl_dispatch_deregister(r));
}

static void test(kl_device d)
{
    dev = d;
    in_a_trace();
    assigned();
    in_a_region();
    all();
    kernels();
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 38;
    OK(kl_custom_register("blocks_op", &(kl_custom_op){.types = custom_types, .run = custom_run,
                                                       .gradient = custom_gradient}, NULL));
    return on_devices(test);
}
