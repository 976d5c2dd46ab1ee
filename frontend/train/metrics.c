/* Metrics: those of a batch, which are recorded as ops, and means of numbers. */
#include "train.h"

/* Returns what is wrong; NULL: the shapes are [N, C] and [N], or an argument is not a tensor, which the ops report. */
static const char *metrics_fault(kl_tensor rows, int rows_rank, kl_tensor labels)
{
    int64_t a[KL_MAX_RANK], b[KL_MAX_RANK];
    if (kl_check(rows) != KL_OK || kl_check(labels) != KL_OK)
        return NULL;
    if (kl_shape(rows, a) != rows_rank || kl_shape(labels, b) != 1)
        return "other numbers of axes than expected";
    return a[0] != b[0] ? "there are not as many labels as rows" : NULL;
}

/* Returns the labels as i64 [N, 1].  *there: bool [N, 1], whether the label is in 0..classes - 1. */
static kl_tensor metrics_labels(kl_tensor labels, int64_t classes, kl_tensor *there)
{
    kl_tensor own = kl_cast(kl_unsqueeze(labels, -1), KL_I64);
    kl_device device = kl_device_of(labels);
    kl_tensor zero = kl_const(device, KL_I64, 0), end = kl_const(device, KL_I64, (double)classes);
    *there = kl_and(kl_ge(own, zero), kl_lt(own, end));
    return own;
}

/* [N] f32: 1 for each label but the ignored one, which only signed integers have. */
static kl_tensor metrics_counted(kl_tensor labels)
{
    kl_tensor ignored = kl_const(kl_device_of(labels), kl_dtype_of(labels), KL_IGNORED_LABEL);
    kl_dtype dtype = kl_dtype_of(labels);
    bool held = dtype == KL_I8 || dtype == KL_I16 || dtype == KL_I32 || dtype == KL_I64;
    return kl_cast(held ? kl_ne(labels, ignored) : kl_eq(labels, labels), KL_F32);
}

static kl_tensor metrics_topk(kl_tensor logits, kl_tensor labels, int64_t k)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(logits, dims);
    kl_device device = kl_device_of(logits);
    kl_tensor there, own = metrics_labels(labels, dims[1], &there);
    kl_tensor at = kl_take_along_axis(logits, 1, own);                        /* [N, 1] */
    kl_tensor number = kl_iota(device, KL_I64, 2, dims, 1);
    kl_tensor before = kl_and(kl_eq(logits, at), kl_lt(number, own));
    kl_tensor ahead = kl_cast(kl_or(kl_gt(logits, at), before), KL_I32);
    kl_tensor place = kl_sum(ahead, 1, (int[]){1}, true);
    /* comparisons with NaN are false, so a label whose logit is NaN would be first: it counts as wrong */
    kl_tensor right = kl_and(kl_lt(place, kl_scalar(device, KL_I32, (double)k)), there);
    right = kl_and(right, kl_eq(at, at));
    return kl_div(kl_sum_all(kl_cast(right, KL_F32)), kl_sum_all(metrics_counted(labels)));
}

kl_tensor kl_metric_topk(kl_tensor logits, kl_tensor labels, int64_t k)
{
    const char *fault = metrics_fault(logits, 2, labels);
    if (k < 1 || k > INT32_MAX)
        kl_failf(NULL, KL_ERR_ARGUMENT, "metric_topk: %lld classes", (long long)k);
    else if (fault)
        kl_failf(NULL, KL_ERR_SHAPE, "metric_topk: %s", fault);
    else if (kl_composite_begin("metric_topk") == KL_OK) {
        kl_tensor y = kl_rank(logits) == 2 ? metrics_topk(logits, labels, k) : kl_neg(logits);
        kl_composite_end(1, &y);
        return y;
    }
    return kl_poison();
}

kl_tensor kl_metric_accuracy(kl_tensor logits, kl_tensor labels)
{
    return kl_metric_topk(logits, labels, 1);
}

static kl_tensor metrics_confusion(kl_tensor guesses, kl_tensor labels, int64_t classes)
{
    kl_tensor row_there, column_there, row = metrics_labels(labels, classes, &row_there);
    kl_tensor column = metrics_labels(guesses, classes, &column_there);
    kl_tensor width = kl_const(kl_device_of(labels), KL_I64, (double)classes);
    kl_tensor place = kl_add(kl_mul(row, width), column);
    kl_tensor one = kl_cast(kl_and(row_there, column_there), KL_I32);
    int64_t cells = classes * classes, flat = -1;
    kl_tensor none = kl_zeros(kl_device_of(labels), KL_I32, 1, &cells);
    kl_tensor all = kl_index_add(none, 0, kl_reshape(place, 1, &flat), kl_reshape(one, 1, &flat));
    return kl_reshape(all, 2, (int64_t[]){classes, classes});
}

kl_tensor kl_metric_confusion(kl_tensor guesses, kl_tensor labels, int64_t classes)
{
    const char *fault = metrics_fault(guesses, 1, labels);
    if (classes < 1 || classes > 30000)
        kl_failf(NULL, KL_ERR_ARGUMENT, "metric_confusion: %lld classes", (long long)classes);
    else if (fault)
        kl_failf(NULL, KL_ERR_SHAPE, "metric_confusion: %s", fault);
    else if (kl_composite_begin("metric_confusion") == KL_OK) {
        kl_tensor y = metrics_confusion(guesses, labels, classes);
        kl_composite_end(1, &y);
        return y;
    }
    return kl_poison();
}

double kl_metric_perplexity(double loss) { return exp(loss); }

void kl_metric_add(kl_metric_mean *mean, double value, double weight)
{
    mean->sum += value * weight;
    mean->weight += weight;
}

double kl_metric_value(const kl_metric_mean *mean) { return mean->sum / mean->weight; }
