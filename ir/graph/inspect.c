/* kl.print and kl.assert: custom ops that every process has.  Their attribute is the label.  A second operand is the
 * token that the previous such op returned, which keeps them in the order of the calls.  Their result is a token of one
 * byte. */
#include "custom.h"
#include "ir/text/text.h"
#include <math.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the two variables below */
static void (*printer)(void *ctx, const char *line);
static void *printer_ctx;
static _Thread_local bool quiet;

void inspect_printer(void (*print)(void *ctx, const char *line), void *ctx)
{
    pthread_mutex_lock(&lock);
    printer = print;
    printer_ctx = ctx;
    pthread_mutex_unlock(&lock);
}

void inspect_quiet(bool on) { quiet = on; }
bool inspect_is_quiet(void) { return quiet; }

static kl_status token_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    bool asserts = ctx != NULL;
    if (call->nout != 1 || call->nin < 1 || call->nin > 2 || (call->nin == 2 && call->in_type[1].dtype != KL_U8))
        return snprintf(call->message, call->message_bytes, "takes a tensor and a token, and gives a token"),
            KL_ERR_TYPE;
    if (asserts && call->in_type[0].dtype != KL_BOOL)
        return snprintf(call->message, call->message_bytes, "the condition is %s, not bool",
                        dtype_name(call->in_type[0].dtype)),
               KL_ERR_TYPE;
    out[0] = (kl_type){.dtype = KL_U8, .rank = 0};
    return KL_OK;
}

static int64_t count_elements(const kl_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

static uint64_t bits_at(const kl_type *t, const void *data, int64_t i)
{
    uint64_t bits = 0;
    size_t size = dtype_size(t->dtype);
    memcpy(&bits, (const char *)data + (size_t)i * size, size);
    return bits;
}

static void put_extremes(struct text *s, const kl_type *t, const void *data, int64_t n)
{
    double min = INFINITY, max = -INFINITY, sum = 0;
    int64_t nans = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = dtype_value(t->dtype, bits_at(t, data, i));
        nans += v != v;
        min = v < min ? v : min;
        max = v > max ? v : max;
        sum += v == v ? v : 0;
    }
    if (nans < n)
        text_put(s, "; min %.6g, max %.6g, mean %.6g", min, max, sum / (double)(n - nans));
    if (nans)
        text_put(s, "%s %lld NaN", nans < n ? "," : ";", (long long)nans);
}

/* "label f32[2,3] = 1.0 2.0 ...; min 1, max 6, mean 3.5" */
static void put_summary(struct text *s, const kl_type *t, const void *data)
{
    enum { SHOWN = 8 };
    int64_t n = count_elements(t);
    struct shape shape = shape_make((uint32_t)t->rank, t->dims);
    char dims[SHAPE_TEXT];
    text_put(s, "%s%s =", dtype_name(t->dtype), shape_text(&shape, dims, sizeof dims));
    for (int64_t i = 0; i < n && i < SHOWN; i++) {
        text_put(s, " ");
        double v = dtype_value(t->dtype, bits_at(t, data, i));
        if (v != v)
            text_put(s, "nan");
        else
            text_literal(s, t->dtype, bits_at(t, data, i));
    }
    if (n > SHOWN)
        text_put(s, " ...");
    if (n > 1 && t->dtype != KL_BOOL)
        put_extremes(s, t, data, n);
}

static kl_status run_print(void *ctx, const kl_custom_call *call)
{
    struct text s = {0};
    (void)ctx;
    *(uint8_t *)call->out[0] = 0;
    if (quiet)
        return KL_OK;
    text_put(&s, "%.*s%s", (int)call->attr_bytes, call->attr ? (const char *)call->attr : "",
             call->attr_bytes ? " " : "");
    put_summary(&s, &call->in_type[0], call->in[0]);
    pthread_mutex_lock(&lock);
    if (!s.failed && printer)
        printer(printer_ctx, s.s);
    else if (!s.failed)
        printf("%s\n", s.s);
    pthread_mutex_unlock(&lock);
    mem_free(s.s);
    return s.failed ? KL_ERR_MEMORY : KL_OK;
}

static kl_status run_assert(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    const uint8_t *v = call->in[0];
    int64_t n = count_elements(&call->in_type[0]), wrong = 0, first = -1;
    *(uint8_t *)call->out[0] = 0;
    for (int64_t i = 0; i < n; i++)
        if (!v[i]) {
            wrong++;
            first = first < 0 ? i : first;
        }
    if (!wrong || quiet)
        return KL_OK;
    int at = snprintf(call->message, call->message_bytes, "%.*s", call->attr_bytes < 160 ? (int)call->attr_bytes : 160,
                      call->attr ? (const char *)call->attr : "");
    if (n > 1)
        snprintf(call->message + at, call->message_bytes - (size_t)at,
                 ": %lld of %lld elements are false, the first is element %lld",
                 (long long)wrong, (long long)n, (long long)first);
    return KL_ERR_CHECK;
}

struct custom_op inspect_ops[2] = {
    {.name = INSPECT_PRINT, .functions = {token_types, run_print, NULL}, .next = &inspect_ops[1]},
    {.name = INSPECT_ASSERT, .functions = {token_types, run_assert, NULL}, .ctx = &inspect_ops[1]},
};
