/* Lengths, counts, offsets and paddings at the limits of 64 bits, in every public call that takes such numbers: each is
 * an error with a reason or gives a tensor whose number of elements is right.  With -fsanitize=undefined no call may
 * overflow on the way. */
#include "tests/support/api_check.h"
#include <kiln/train.h>

static kl_device dev;
static kl_tensor a4, a2, v, idx; /* f32[1,2,4,4], f32[3,4], f32[6], i32[3] */
static int64_t x, y;             /* the numbers that are tried */

typedef kl_tensor extreme_fn(void);
#define CALL(name, expression) static kl_tensor name(void) { return expression; }
#define PAIR ((int64_t[]){x, y})

CALL(arange, kl_arange(dev, KL_I64, x))
CALL(linspace, kl_linspace(dev, KL_F32, 0, 1, x))
CALL(eye, kl_eye(dev, KL_F32, x, y))
CALL(iota, kl_iota(dev, KL_I32, 2, PAIR, 1))
CALL(zeros, kl_zeros(dev, KL_F32, 2, PAIR))
CALL(full, kl_full(dev, KL_F64, 2, PAIR, 1))
CALL(rand2, kl_rand(dev, KL_F32, 2, PAIR, 1))
CALL(randn2, kl_randn(dev, KL_F32, 2, PAIR, 1))
CALL(bits, kl_random_bits(dev, KL_U32, 2, PAIR, 1))
CALL(seed_split, kl_random_split(kl_random_seed(dev, 1), x))
CALL(input, kl_input(dev, KL_F32, 2, PAIR, NULL))
CALL(reshape, kl_reshape(a2, 2, PAIR))
CALL(expand, kl_expand(kl_ones(dev, KL_F32, 2, (int64_t[]){1, 1}), 2, PAIR))
CALL(slice, kl_slice(a2, (int64_t[]){x, 0}, (int64_t[]){y, 1}, NULL))
CALL(slice_step, kl_slice(a2, NULL, NULL, PAIR))
CALL(narrow, kl_narrow(a2, 1, x, y))
CALL(window, kl_window(a2, 1, x, y, 1))
CALL(window_dilation, kl_window(a2, 1, 2, x, y))
CALL(pad, kl_pad(a2, (int64_t[]){0, x}, (int64_t[]){0, y}, 0))
CALL(pad_edge, kl_pad_border(a2, (int64_t[]){0, x}, (int64_t[]){0, y}, KL_BORDER_EDGE))
CALL(pad_reflect, kl_pad_border(a2, (int64_t[]){0, x}, (int64_t[]){0, y}, KL_BORDER_REFLECT))
CALL(pad_wrap, kl_pad_border(a2, (int64_t[]){0, x}, NULL, KL_BORDER_WRAP))
CALL(tile, kl_tile(a2, PAIR))
CALL(repeat, kl_repeat(a2, 1, x))
CALL(roll, kl_roll(a2, 1, x))
CALL(triu, kl_triu(a2, x))
CALL(tril, kl_tril(a2, x))
CALL(diagonal, kl_diagonal(a2, x, 0, 1))
CALL(diagonal_matrix, kl_diagonal_matrix(v, x))
CALL(topk, kl_topk(a2, x, 1, true, NULL))
CALL(nonzero, kl_nonzero(v, x, NULL))
CALL(unique, kl_unique(v, x, NULL, NULL, NULL))
CALL(one_hot, kl_one_hot(idx, x, KL_F32))
CALL(irfft, kl_irfft(kl_rfft(a2, 1), 1, x))
CALL(blocked, kl_blocked(v, x))
CALL(positions, kl_nn_positions(dev, x, NULL))
CALL(metric_topk, kl_metric_topk(a2, idx, x))
CALL(metric_confusion, kl_metric_confusion(idx, idx, x))
CALL(sum_pool, kl_sum_pool(a4, 1, &x, &y, NULL, NULL, NULL))
CALL(sum_pool_pads, kl_sum_pool(a4, 1, (int64_t[]){2}, (int64_t[]){1}, &x, &y, NULL))
CALL(avg_pool, kl_avg_pool(a4, 1, &x, (int64_t[]){1}, &y, &y, NULL))
CALL(max_pool, kl_max_pool(a4, 1, &x, &x, NULL, NULL, &y))
CALL(max_pool_places, kl_max_pool_indices(a4, 1, &x, (int64_t[]){1}, &y, NULL, NULL, &(kl_tensor){0}))
CALL(min_pool, kl_min_pool(a4, 1, (int64_t[]){2}, &y, &x, &x, NULL))
CALL(adaptive_avg, kl_adaptive_avg_pool(a4, 2, PAIR))
CALL(adaptive_max, kl_adaptive_max_pool(a4, 2, PAIR))
CALL(max_unpool, kl_max_unpool(a4, kl_zeros(dev, KL_I64, 4, (int64_t[]){1, 2, 4, 4}), 2, PAIR))
CALL(resize, kl_resize(a4, 2, (int[]){2, 3}, PAIR, NULL))
CALL(roi_align, kl_roi_align(a4, kl_zeros(dev, KL_F32, 2, (int64_t[]){3, 4}), idx,
                             &(kl_roi_options){.height = x, .width = y, .samples = 2}))
CALL(roi_samples, kl_roi_align(a4, kl_zeros(dev, KL_F32, 2, (int64_t[]){3, 4}), idx,
                               &(kl_roi_options){.height = x, .width = 2, .samples = y}))
CALL(conv, kl_conv(a4, a4, kl_none, PAIR, NULL, NULL, NULL, 1))
CALL(conv_pads, kl_conv(a4, a4, kl_none, NULL, PAIR, (int64_t[]){y, x}, NULL, 1))
CALL(conv_dilation, kl_conv(a4, a4, kl_none, NULL, (int64_t[]){x, x}, NULL, (int64_t[]){y, y}, 1))
CALL(transposed, kl_conv_transpose(a4, kl_ones(dev, KL_F32, 4, (int64_t[]){2, 1, 3, 3}), kl_none, PAIR, NULL, NULL,
                                   NULL, 1))
CALL(transposed_pads, kl_conv_transpose(a4, kl_ones(dev, KL_F32, 4, (int64_t[]){2, 1, 3, 3}), kl_none, NULL, PAIR,
                                        (int64_t[]){y, x}, NULL, 1))
CALL(transposed_dilation, kl_conv_transpose(a4, kl_ones(dev, KL_F32, 4, (int64_t[]){2, 1, 3, 3}), kl_none,
                                            (int64_t[]){x, x}, NULL, NULL, (int64_t[]){y, y}, 1))
CALL(to_sparse, kl_to_sparse(a2, x))
CALL(sparse_coo, kl_sparse_coo(kl_ones(dev, KL_F32, 1, (int64_t[]){3}), idx, idx, x, y))

static kl_tensor split(void)
{
    kl_tensor part[2] = {kl_none, kl_none};
    kl_split(a2, 1, 2, PAIR, part);
    return part[0];
}

static kl_tensor dynamic_slice(void)
{
    kl_tensor start = kl_const(dev, KL_I64, 0);
    return kl_dynamic_slice(v, &start, &x);
}

static kl_status counts(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    (void)nin;
    (void)nout;
    out[0] = kl_add(in[0], in[0]);
    return KL_OK;
}
static kl_tensor scanned(void *ctx, int64_t length)
{
    kl_tensor out = kl_none;
    kl_scan(counts, ctx, length, 1, &v, 0, NULL, 0, false, &out);
    return out;
}
CALL(scan, scanned(NULL, x))

#define ROW(name, numbers) {#name, name, numbers}
static const struct { const char *name; extreme_fn *fn; int numbers; } row[] = {
    ROW(arange, 1), ROW(linspace, 1), ROW(eye, 2), ROW(iota, 2), ROW(zeros, 2), ROW(full, 2), ROW(rand2, 2),
    ROW(randn2, 2), ROW(bits, 2), ROW(seed_split, 1), ROW(input, 2), ROW(reshape, 2), ROW(expand, 2), ROW(slice, 2),
    ROW(slice_step, 2), ROW(narrow, 2), ROW(window, 2), ROW(window_dilation, 2), ROW(pad, 2), ROW(pad_edge, 2),
    ROW(pad_reflect, 2), ROW(pad_wrap, 1), ROW(tile, 2), ROW(repeat, 1), ROW(roll, 1), ROW(triu, 1), ROW(tril, 1),
    ROW(diagonal, 1), ROW(diagonal_matrix, 1), ROW(topk, 1), ROW(nonzero, 1), ROW(unique, 1), ROW(one_hot, 1),
    ROW(irfft, 1), ROW(dynamic_slice, 1), ROW(blocked, 1), ROW(positions, 1), ROW(metric_topk, 1),
    ROW(metric_confusion, 1), ROW(sum_pool, 2), ROW(sum_pool_pads, 2), ROW(avg_pool, 2), ROW(max_pool, 2),
    ROW(max_pool_places, 2), ROW(min_pool, 2), ROW(adaptive_avg, 2), ROW(adaptive_max, 2), ROW(max_unpool, 2),
    ROW(resize, 2), ROW(roi_align, 2), ROW(roi_samples, 2), ROW(conv, 2), ROW(conv_pads, 2), ROW(conv_dilation, 2),
    ROW(transposed, 2), ROW(transposed_pads, 2), ROW(transposed_dilation, 2), ROW(to_sparse, 1), ROW(sparse_coo, 2),
    ROW(split, 2), ROW(scan, 1),
};

static const int64_t number[] = {
    INT64_MIN, INT64_MIN + 1, -(INT64_C(1) << 62), -(INT64_C(1) << 40), -(1 << 24), -(1 << 20), -1, 0, 1, 3,
    INT32_MAX, INT64_C(1) << 31, INT64_C(1) << 40, INT64_C(1) << 58, INT64_C(1) << 60, (INT64_C(1) << 62) + 1,
    INT64_MAX / 2, INT64_MAX - 1, INT64_MAX,
};
enum { NUMBERS = sizeof number / sizeof *number };

/* The tensor's shape has as many elements as it says, or the call has failed with a reason. */
static bool is_right(kl_tensor t)
{
    int64_t dims[KL_MAX_RANK], count = 1, n = kl_numel(t);
    int rank = kl_shape(t, dims);
    bool empty = false;
    if (kl_check(t) != KL_OK)
        return kl_last_error_code() != KL_OK && kl_last_error_code() != KL_ERR_INTERNAL && *kl_last_error();
    for (int i = 0; i < rank; i++) {
        empty |= dims[i] == 0;
        if (dims[i] < 0 || __builtin_mul_overflow(count, dims[i] ? dims[i] : 1, &count))
            return false;
    }
    return rank >= 0 && n == (empty ? 0 : count);
}

static void tries(size_t i)
{
    for (int p = 0; p < NUMBERS; p++)
        for (int q = 0; q < (row[i].numbers == 2 ? NUMBERS : 1); q++) {
            x = number[p];
            y = number[q];
            kl_clear_error();
            kl_scope_begin();
            kl_tensor t = row[i].fn();
            if (!check_at(is_right(t), __LINE__, row[i].name))
                printf("  of %lld and %lld\n", (long long)x, (long long)y);
            kl_scope_end();
        }
}

int main(void)
{
    dev = kl_device_named("ref");
    kl_set_memory_limit(dev, 64 << 20);
    a4 = kl_keep(kl_ones(dev, KL_F32, 4, (int64_t[]){1, 2, 4, 4}));
    a2 = kl_keep(kl_ones(dev, KL_F32, 2, (int64_t[]){3, 4}));
    v = kl_keep(kl_ones(dev, KL_F32, 1, (int64_t[]){6}));
    idx = kl_keep(kl_zeros(dev, KL_I32, 1, (int64_t[]){3}));
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        tries(i);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
