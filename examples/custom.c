/* An op of one's own, with several results, attributes, a gradient and an error: the largest few elements of each row.
 *
 *     topk of x: f32[rows, columns]  ->  f32[rows, k] values, i32[rows, k] places */
#include <kiln/kiln.h>
#include <stdio.h>

struct top { int32_t k; }; /* the attributes */

static kl_status topk_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    const struct top *top = call->attr;
    if (call->attr_bytes != sizeof *top || call->nin != 1 || call->nout != 2)
        return KL_ERR_ARGUMENT;
    const kl_type *x = &call->in_type[0];
    if (x->dtype != KL_F32 || x->rank != 2 || x->dims[1] < top->k) {
        snprintf(call->message, call->message_bytes, "needs f32[rows, at least %d]", top->k);
        return KL_ERR_SHAPE;
    }
    out[0] = (kl_type){KL_F32, 2, {x->dims[0], top->k}};
    out[1] = (kl_type){KL_I32, 2, {x->dims[0], top->k}};
    return KL_OK;
}

static kl_status topk_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    const int32_t k = ((const struct top *)call->attr)->k;
    const int64_t rows = call->in_type[0].dims[0], columns = call->in_type[0].dims[1];
    for (int64_t r = 0; r < rows; r++) {
        const float *x = (const float *)call->in[0] + r * columns;
        float *value = (float *)call->out[0] + r * k;
        int32_t *place = (int32_t *)call->out[1] + r * k;
        int32_t n = 0; /* kept so far, in order */
        for (int64_t c = 0; c < columns; c++) {
            if (x[c] != x[c]) {
                snprintf(call->message, call->message_bytes, "row %d holds a NaN", (int)r);
                return KL_ERR_ARGUMENT;
            }
            int32_t at = n;
            while (at > 0 && value[at - 1] < x[c])
                at--;
            if (at == k)
                continue;
            for (int32_t i = n < k ? n++ : n - 1; i > at; i--) {
                value[i] = value[i - 1];
                place[i] = place[i - 1];
            }
            value[at] = x[c];
            place[at] = (int32_t)c;
        }
    }
    return KL_OK;
}

/* in: x, values, places, the gradient of the values.  It goes to where the values came from. */
static kl_status topk_gradient(void *ctx, const void *attr, size_t attr_bytes, const kl_tensor *in, int64_t nin,
                               kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)attr, (void)attr_bytes, (void)nin, (void)nout;
    int64_t dims[2];
    kl_shape(in[0], dims);
    kl_tensor chosen = kl_one_hot(in[2], dims[1], KL_F32);         /* [rows, k, columns] */
    out[0] = kl_sum(kl_mul(chosen, kl_unsqueeze(in[3], -1)), 1, (int[]){1}, false);
    return KL_OK;
}

static int failed(void)
{
    fprintf(stderr, "%s\n", kl_last_error());
    return 1;
}

int main(void)
{
    static const float data[2][5] = {{3, 1, 4, 1, 5}, {2, 7, 1, 8, 2}};
    const kl_custom_op topk = {.types = topk_types, .run = topk_run, .gradient = topk_gradient};
    const struct top two = {2};
    if (kl_custom_register("topk", &topk, NULL) != KL_OK)
        return failed();

    kl_device dev = kl_device_default();
    kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 5}, data), out[2];
    kl_requires_grad(x);
    kl_custom("topk", &two, sizeof two, 1, &x, 2, out);
    kl_tensor loss = kl_sum_all(kl_mul(out[0], out[0])), gradient = kl_grad(loss, x);

    float value[2][2], slope[2][5];
    int32_t place[2][2];
    if (kl_read(out[0], value, sizeof value) || kl_read(out[1], place, sizeof place) ||
        kl_read(gradient, slope, sizeof slope))
        return failed();
    for (int r = 0; r < 2; r++)
        printf("row %d: %g at %d, %g at %d; gradient %g %g %g %g %g\n", r, value[r][0], place[r][0], value[r][1],
               place[r][1], slope[r][0], slope[r][1], slope[r][2], slope[r][3], slope[r][4]);

    kl_tensor bad = kl_div(x, kl_sub(x, x)); /* x / 0: infinities, no NaN; then infinity - infinity: all NaN */
    bad = kl_sub(bad, bad);
    kl_custom("topk", &two, sizeof two, 1, &bad, 2, out);
    if (kl_read(out[0], value, sizeof value) == KL_OK)
        return 1;
    printf("as it should: %s\n", kl_last_error());
    return 0;
}
