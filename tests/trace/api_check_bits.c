/* kl_check_bits: traces of fixed and symbolic lengths on each device have the interpreter's bits; an op that gives
 * other numbers in each call is found and named; what cannot be checked is refused. */
#include "tests/support/api_check.h"

static int calls;

static kl_status count_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}

/* x plus the number of calls before this one. */
static kl_status count_run(void *ctx, const kl_custom_call *call)
{
    int *n = ctx;
    for (int64_t i = 0; i < call->in_type[0].dims[0]; i++)
        ((float *)call->out[0])[i] = ((const float *)call->in[0])[i] + (float)*n;
    ++*n;
    return KL_OK;
}

static kl_tensor step(kl_device dev, const char *name, bool symbolic, bool counts)
{
    static const float data[12] = {1, 2, 3, 4, 5, 6};
    int64_t rows = symbolic ? kl_symbol("n", 1, 50) : 3;
    OK(kl_trace_begin(name));
    kl_tensor x = symbolic ? kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){rows, 4}, (int64_t[]){3, 4}, data)
                           : kl_input(dev, KL_F32, DIMS(3, 4), data);
    kl_tensor y = kl_softmax(kl_matmul(x, kl_randn(dev, KL_F32, DIMS(4, 700), 1)), 1);
    if (counts) {
        kl_tensor sum = kl_sum(y, AXES(1), false);
        OK(kl_custom("test.count", NULL, 0, 1, &sum, 1, &y));
    }
    y = kl_keep(y);
    OK(kl_trace_end());
    return y;
}

static void test(kl_device dev)
{
    kl_release(step(dev, "plain", false, false));
    OK(kl_check_bits("plain", dev));
    OK(kl_check_bits("plain", (kl_device){0}));
    OK(kl_check_bits("plain", kl_device_ref()));
    kl_release(step(dev, "rows", true, false));
    OK(kl_check_bits("rows", dev));
    kl_tensor y = step(dev, "counts", false, true);
    float before[3], after[3];
    OK(kl_read(y, before, sizeof before));
    FAILS(kl_check_bits("counts", dev), KL_ERR_CHECK, "output 0 of @counts on");
    bool plans = strcmp(kl_device_name(dev), "ref"); /* runs node by node: there is no kernel to name */
    CHECK(!plans || (strstr(kl_last_error(), "in kernel custom, of node %") &&
                     strstr(kl_last_error(), ": f32[3] # ") && strstr(kl_last_error(), "api_check_bits.c:")));
    OK(kl_read(y, after, sizeof after)); /* values of the trace itself are what they were */
    CHECK(!memcmp(before, after, sizeof after));
    kl_release(y);
    FAILS(kl_check_bits("never", dev), KL_ERR_ARGUMENT, "no trace of the name \"never\"");
    FAILS(kl_check_bits(NULL, dev), KL_ERR_ARGUMENT, "NULL");
    FAILS(kl_check_bits("plain", (kl_device){12345}), KL_ERR_DEVICE, "12345");
    OK(kl_trace_begin("open"));
    FAILS(kl_check_bits("plain", dev), KL_ERR_TRACE, "a trace is open");
    kl_trace_abandon();
}

int main(void)
{
    OK(kl_custom_register("test.count", &(kl_custom_op){.types = count_types, .run = count_run}, &calls));
    return on_devices(test);
}
