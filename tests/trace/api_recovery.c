/* What would crash a library that trusts its caller: forged handles, functions that record themselves without end, and
 * threads that leave a function which is being recorded by longjmp. */
#include "tests/support/api_check.h"
#include <setjmp.h>

static kl_device dev;

/* ---- forged handles ---- */

static bool refused(uint64_t id)
{
    kl_tensor h = {id};
    return kl_check(h) == KL_ERR_HANDLE && kl_rank(h) == -1 && kl_numel(h) == -1 &&
        kl_read(h, &id, 8) == KL_ERR_HANDLE &&
           kl_release(h) == KL_ERR_HANDLE;
}

/* Bit patterns of indices and of generations, with a live handle's own, which is left out where it comes out whole. */
static void forged(void)
{
    kl_tensor live = kl_ones(dev, KL_F32, DIMS(2));
    uint32_t index[200], generation[200], ni = 0, ng = 0;
    for (int bit = 0; bit < 32; bit++)
        for (uint32_t near = 0; near < 3; near++) { /* 2^bit - 1, 2^bit, 2^bit + 1 */
            index[ni++] = (UINT32_C(1) << bit) - 1 + near;
            generation[ng++] = (UINT32_C(1) << bit) - 1 + near;
        }
    uint32_t ends[] = {UINT32_MAX, UINT32_MAX - 1, UINT32_MAX - 1023, 0x80000003, 0xaaaaaaab, 0x55555555, 0x7fffffff,
                       0xdeadbeef};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        index[ni++] = generation[ng++] = ends[i];
    index[ni++] = (uint32_t)live.id;
    generation[ng++] = (uint32_t)(live.id >> 32);
    bool all = true;
    for (uint32_t i = 0; i < ni; i++)
        for (uint32_t g = 0; g < ng; g++) {
            uint64_t id = (uint64_t)generation[g] << 32 | index[i];
            if (!id || id == live.id)
                continue;
            if (!refused(id)) {
                printf("handle 0x%llx is not refused\n", (unsigned long long)id);
                all = false;
            }
        }
    CHECK(all);
    CHECK(kl_check((kl_tensor){~UINT64_C(0)}) == KL_ERR_HANDLE);
    CHECK(kl_requires_grad((kl_tensor){~UINT64_C(0)}) == KL_ERR_HANDLE &&
          strstr(kl_last_error(), "was never a handle"));
    /* odd ones all over the upper half */
    for (uint32_t g = UINT32_C(0x80000001); g > UINT32_C(0x80000000); g += 1000002)
        all &= kl_requires_grad((kl_tensor){(uint64_t)g << 32 | (uint32_t)live.id}) == KL_ERR_HANDLE &&
               strstr(kl_last_error(), "was never a handle");
    CHECK(all);
    NEAR(kl_neg(live), 2, ((double[]){-1, -1}), 0);
    OK(kl_release(live));
}

/* ---- functions that record themselves ---- */

static int called;

static kl_status checkpoint_itself(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    called++;
    return kl_checkpoint(checkpoint_itself, ctx, nin, in, nout, out);
}

static kl_status vmap_itself(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    called++;
    kl_tensor batch = kl_unsqueeze(in[0], 0);
    return kl_vmap(vmap_itself, ctx, nin, &batch, NULL, nout, NULL, KL_RANDOM_ERROR, out);
}

static kl_status in_turn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor batch = kl_unsqueeze(in[0], 0);
    return ++called % 2 ? kl_vmap(in_turn, ctx, nin, &batch, NULL, nout, NULL, KL_RANDOM_ERROR, out)
                        : kl_checkpoint(in_turn, ctx, nin, in, nout, out);
}

static kl_status loop_itself(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nout;
    called++;
    return kl_scan(loop_itself, ctx, 2, nin, in, 0, NULL, 0, false, out);
}

static kl_status start(kl_region_fn *fn, kl_tensor x, kl_tensor *y)
{
    called = 0;
    return fn == vmap_itself ? kl_vmap(fn, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, y)
         : fn == loop_itself ? kl_scan(fn, NULL, 2, 1, &x, 0, NULL, 0, false, y) : kl_checkpoint(fn, NULL, 1, &x, 1, y);
}

static void recursion(void)
{
    static kl_region_fn *const fn[] = {checkpoint_itself, vmap_itself, loop_itself, in_turn};
    static const int max[] = {16, 16, 16, 32};
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(4)), y;
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++)
        for (int traced = 0; traced < 2; traced++) {
            if (traced)
                OK(kl_trace_begin("recursion"));
            kl_clear_error();
            CHECK(start(fn[i], x, &y) == KL_ERR_ARGUMENT && strstr(kl_last_error(),
                                                                   "regions in regions are more than 16 deep"));
            CHECK(called > 0 && called <= max[i]);
            if (traced)
                CHECK(kl_trace_end() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "more than 16 deep"));
            else
                OK(kl_release(y));
            NEAR(kl_neg(x), 4, ((double[]){-1, -1, -1, -1}), 0);
        }
    OK(kl_release(x));
}

/* ---- longjmp ---- */

static jmp_buf out_of_it;
static int remaining; /* functions to go into before the jump */
static bool mapped;

static kl_status jump(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin;
    kl_tensor x = kl_add(in[0], kl_mul_scalar(*(kl_tensor *)ctx, 3)); /* a tensor and a number from outside */
    kl_no_grad_begin();
    if (remaining-- == 0)
        longjmp(out_of_it, 1);
    if (mapped) {
        kl_tensor batch = kl_unsqueeze(x, 0);
        return kl_vmap(jump, ctx, 1, &batch, NULL, nout, NULL, KL_RANDOM_ERROR, out);
    }
    return kl_checkpoint(jump, ctx, 1, &x, nout, out);
}

static kl_status first_of_two(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_mul(in[0], *(kl_tensor *)ctx);
    return KL_OK;
}

static kl_status run_jump(kl_tensor *w, kl_tensor *x, bool second)
{
    kl_tensor y[1];
    if (second)
        return kl_custom_grad(first_of_two, jump, w, 1, x, 1, y);
    return mapped ? kl_vmap(jump, w, 1, x, NULL, 1, NULL, KL_RANDOM_ERROR, y) : kl_checkpoint(jump, w, 1, x, 1, y);
}

static kl_status square(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_square(in[0]);
    return KL_OK;
}

/* All is as it was before: outside of traces, with no scope or no_grad block left open. */
static void works_again(kl_tensor x)
{
    static const double four[] = {4, 4};
    kl_tensor y;
    CHECK(!kl_tracing() && kl_grad_enabled());
    CHECK(kl_scope_end() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "no scope is open"));
    OK(kl_vmap(square, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y));
    NEAR(y, 2, four, 0);
    OK(kl_trace_begin("after"));
    OK(kl_checkpoint(square, NULL, 1, &x, 1, &y));
    kl_keep(y);
    OK(kl_trace_end());
    NEAR(y, 2, four, 0);
}

static void leave(int deep, bool map, bool traced, bool second)
{
    kl_tensor x = kl_full(dev, KL_F32, DIMS(2), 2), w = kl_full(dev, KL_F32, 0, NULL, 5);
    remaining = deep;
    mapped = map;
    if (traced)
        OK(kl_trace_begin("left"));
    if (!setjmp(out_of_it)) {
        run_jump(&w, &x, second);
        CHECK(!"the jump is taken");
    }
    kl_trace_abandon();
    works_again(x);
    kl_trace_abandon(); /* harmless */
    OK(kl_release(x));
    OK(kl_release(w));
}

static kl_status abandons(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_trace_abandon();
    out[0] = in[0];
    return KL_OK;
}

static void longjmps(void)
{
    for (int i = 0; i < 24; i++)
        leave(i % 3, i / 3 % 2, i / 6 % 2, i / 12);
    kl_tensor x = kl_full(dev, KL_F32, DIMS(2), 2), y; /* in a function that is not left it is an error */
    CHECK(kl_checkpoint(abandons, NULL, 1, &x, 1, &y) == KL_ERR_TRACE &&
          strstr(kl_last_error(), "trace_abandon: not inside"));
    OK(kl_release(y));
    CHECK(kl_vmap(abandons, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_TRACE);
    OK(kl_release(y));
    works_again(x);
    OK(kl_release(x));
}

int main(void)
{
    dev = kl_device_named("ref");
    forged();
    recursion();
    longjmps();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
