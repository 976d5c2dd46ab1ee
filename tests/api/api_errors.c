/* Every kind of bad input: the message names the caller's line, the op and what is wrong; inside a trace nothing
 * has changed afterwards and the next trace works; outside, the next op works. */
#include "tests/support/api_check.h"
#include <pthread.h>

static kl_device dev, other;    /* other: {0} where there is no second device */
static kl_tensor a23, v4, i3, b3, w; /* operands: f32[2,3], f32[4], i32[3], bool[3]; w: f32[2], a parameter */
static kl_tensor stale, foreign, ended, there; /* there: on the other device */
static int line;                /* of the bad call */

#define BAD(call) (line = __LINE__, call)

/* ---- bad calls that give a tensor ---- */

static kl_tensor add_shapes(void) { return BAD(kl_add(a23, v4)); }
static kl_tensor where_shapes(void) { return BAD(kl_where(b3, a23, v4)); }
static kl_tensor add_dtypes(void) { return BAD(kl_add(a23, i3)); }
static kl_tensor exp_dtype(void) { return BAD(kl_exp(i3)); }
static kl_tensor neg_dtype(void) { return BAD(kl_neg(b3)); }
static kl_tensor not_dtype(void) { return BAD(kl_not(a23)); }
static kl_tensor where_condition(void) { return BAD(kl_where(a23, a23, a23)); }
static kl_tensor cast_dtype(void) { return BAD(kl_cast(a23, KL_DTYPE_COUNT)); }
static kl_tensor sum_axis(void) { return BAD(kl_sum(a23, AXES(2), false)); }
static kl_tensor sum_axis_negative(void) { return BAD(kl_sum(a23, AXES(0, -3), true)); }
static kl_tensor sum_twice(void) { return BAD(kl_sum(a23, AXES(1, -1), false)); }
static kl_tensor sum_bool(void) { return BAD(kl_sum(b3, 0, NULL, false)); }
static kl_tensor mean_integers(void) { return BAD(kl_mean(i3, 0, NULL, false)); }
static kl_tensor max_axis(void) { return BAD(kl_max(v4, AXES(1), false)); }
static kl_tensor argmax_axis(void) { return BAD(kl_argmax(v4, 7)); }
static kl_tensor softmax_axis(void) { return BAD(kl_softmax(a23, 2)); }
static kl_tensor softmax_dtype(void) { return BAD(kl_softmax(i3, 0)); }
static kl_tensor matmul_shapes(void) { return BAD(kl_matmul(a23, a23)); }
static kl_tensor matmul_scalar(void) { return BAD(kl_matmul(a23, kl_sum_all(a23))); }
static kl_tensor matmul_dtypes(void) { return BAD(kl_matmul(a23, i3)); }
static kl_tensor dot_axis(void) { return BAD(kl_dot_general(a23, a23, 0, NULL, NULL, 1, (int[]){2}, (int[]){0})); }
static kl_tensor dot_lengths(void) { return BAD(kl_dot_general(a23, a23, 0, NULL, NULL, 1, (int[]){0}, (int[]){1})); }
static kl_tensor linear_bias(void) { return BAD(kl_linear(kl_transpose(a23, 0, 1), a23, v4)); }
static kl_tensor linear_weight(void) { return BAD(kl_linear(a23, a23, kl_none)); }
static kl_tensor attention_depth(void) { return BAD(kl_attention(a23, kl_transpose(a23, 0, 1), a23, kl_none, false)); }
static kl_tensor attention_values(void) { return BAD(kl_attention(a23, a23, kl_transpose(a23, 0, 1), kl_none, false)); }
static kl_tensor attention_rank(void) { return BAD(kl_attention(a23, v4, a23, kl_none, false)); }
static kl_tensor attention_lead(void)
{
    kl_tensor k = kl_zeros(dev, KL_F32, DIMS(4, 5, 1, 3));
    return BAD(kl_attention(kl_reshape(a23, DIMS(2, 1, 3)), k, k, kl_none, false));
}
static kl_tensor reshape_count(void) { return BAD(kl_reshape(a23, DIMS(4))); }
static kl_tensor reshape_infer(void) { return BAD(kl_reshape(a23, DIMS(4, -1))); }
static kl_tensor reshape_two(void) { return BAD(kl_reshape(a23, DIMS(-1, -1))); }
static kl_tensor reshape_negative(void) { return BAD(kl_reshape(a23, DIMS(-2, -3))); }
static kl_tensor permute_axis(void) { return BAD(kl_permute(a23, (int[]){0, 2})); }
static kl_tensor permute_twice(void) { return BAD(kl_permute(a23, (int[]){1, 1})); }
static kl_tensor transpose_axis(void) { return BAD(kl_transpose(v4, 0, 1)); }
static kl_tensor expand_length(void) { return BAD(kl_expand(a23, DIMS(4, 3))); }
static kl_tensor expand_rank(void) { return BAD(kl_expand(a23, DIMS(3))); }
static kl_tensor squeeze_length(void) { return BAD(kl_squeeze(a23, 0)); }
static kl_tensor squeeze_axis(void) { return BAD(kl_squeeze(a23, 2)); }
static kl_tensor unsqueeze_axis(void) { return BAD(kl_unsqueeze(a23, 4)); }
static kl_tensor slice_step(void) { return BAD(kl_slice(a23, NULL, NULL, (int64_t[]){1, -1})); }
static kl_tensor narrow_outside(void) { return BAD(kl_narrow(a23, 1, 2, 2)); }
static kl_tensor any_number(void) { return BAD(kl_any(a23, 0, NULL, false)); }
static kl_tensor scan_axis(void) { return BAD(kl_cumsum(a23, 2, false, false)); }
static kl_tensor scan_bool(void) { return BAD(kl_cummax(kl_zeros(dev, KL_BOOL, 1, (int64_t[]){3}), 0, false)); }
static kl_tensor scan_shapes(void) { return BAD(kl_recurrence(a23, v4, 0, true)); }
static kl_tensor scan_types(void)
{
    return BAD(kl_recurrence(a23, kl_zeros(dev, KL_F64, 2, (int64_t[]){2, 3}), 0, false));
}
static kl_tensor scan_integers(void) { return BAD(kl_logcumsumexp(kl_zeros(dev, KL_I8, 1, (int64_t[]){3}), 0)); }
static kl_tensor scan_log_axis(void) { return BAD(kl_logcumsumexp(a23, 2)); }
static kl_tensor window_axis(void) { return BAD(kl_window(a23, -3, 1, 1, 1)); }
static kl_tensor window_size(void) { return BAD(kl_window(a23, 1, 2, 1, 3)); }
static kl_tensor window_stride(void) { return BAD(kl_window(a23, 1, 2, 0, 1)); }
static kl_tensor window_rank(void)
{
    return BAD(kl_window(kl_zeros(dev, KL_F32, 8, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 4}), 7, 2, 1, 1));
}
static kl_tensor flip_axis(void) { return BAD(kl_flip(a23, 1, (int[]){2})); }
static kl_tensor flip_twice(void) { return BAD(kl_flip(a23, 2, (int[]){1, -1})); }
static kl_tensor pad_negative(void) { return BAD(kl_pad(a23, (int64_t[]){0, -1}, NULL, 0)); }
static kl_tensor concat_nothing(void) { return BAD(kl_concat(0, NULL, 0)); }
static kl_tensor concat_shapes(void) { return BAD(kl_concat(2, (kl_tensor[]){a23, v4}, 0)); }
static kl_tensor concat_dtypes(void) { return BAD(kl_concat(2, (kl_tensor[]){v4, i3}, 0)); }
static kl_tensor gather_dtype(void) { return BAD(kl_take(a23, 0, v4)); }
static kl_tensor index_add_update(void) { return BAD(kl_index_add(a23, 1, i3, v4)); }
static kl_tensor index_put_dtype(void) { return BAD(kl_index_copy(a23, 0, v4, kl_zeros(dev, KL_F32, DIMS(4, 3)))); }
static kl_tensor index_max_axis(void) { return BAD(kl_index_max(a23, 2, i3, a23)); }
static kl_tensor index_min_types(void) { return BAD(kl_index_min(v4, 0, i3, i3)); }
static kl_tensor take_dtype(void) { return BAD(kl_take_along_axis(a23, 0, a23)); }
static kl_tensor take_shape(void) { return BAD(kl_take_along_axis(a23, 0, i3)); }
static kl_tensor take_nothing(void) { return BAD(kl_take_along_axis(kl_zeros(dev, KL_F32, DIMS(0)), 0, i3)); }
static kl_tensor put_update(void) { return BAD(kl_put_along_axis(v4, 0, i3, v4)); }
static kl_tensor embedding_table(void) { return BAD(kl_embedding(v4, i3)); }
static kl_tensor argsort_axis(void) { return BAD(kl_argsort(a23, 2, false)); }
static kl_tensor sort_scalar(void) { return BAD(kl_sort(kl_sum_all(v4), 0, false)); }
static kl_tensor topk_many(void) { return BAD(kl_topk(a23, 4, -1, true, NULL)); }
static kl_tensor dynamic_starts(void) { return BAD(kl_dynamic_slice(a23, NULL, (int64_t[]){1, 1})); }
static kl_tensor dynamic_count(void)
{
    return BAD(kl_dynamic_slice(a23, (kl_tensor[]){i3, kl_none}, (int64_t[]){2, 4}));
}
static kl_tensor dynamic_scalar(void)
{
    return BAD(kl_dynamic_slice(a23, (kl_tensor[]){i3, kl_none}, (int64_t[]){1, 3}));
}
static kl_tensor dynamic_window(void) { return BAD(kl_dynamic_update(a23, v4, (kl_tensor[]){i3, i3})); }
static kl_tensor dynamic_dtype(void) { return BAD(kl_dynamic_update(v4, i3, (kl_tensor[]){i3})); }
static kl_tensor bitcast_width(void) { return BAD(kl_bitcast(v4, KL_F64)); }
static kl_tensor labels_shape(void) { return BAD(kl_cross_entropy(a23, i3)); }
static kl_tensor labels_dtype(void) { return BAD(kl_cross_entropy(kl_reshape(a23, DIMS(3, 2)), kl_cast(i3, KL_F32))); }
static kl_tensor zeros_rank(void) { return BAD(kl_zeros(dev, KL_F32, 9, (int64_t[9]){0})); }
static kl_tensor zeros_negative(void) { return BAD(kl_zeros(dev, KL_F32, DIMS(2, -1))); }
static kl_tensor zeros_huge(void) { return BAD(kl_zeros(dev, KL_F32, DIMS(INT64_C(1) << 40, INT64_C(1) << 40))); }
static kl_tensor zeros_no_dims(void) { return BAD(kl_zeros(dev, KL_F32, 2, NULL)); }
static kl_tensor zeros_device(void) { return BAD(kl_zeros((kl_device){0}, KL_F32, DIMS(2))); }
static kl_tensor input_device(void) { return BAD(kl_input((kl_device){99}, KL_F32, DIMS(1), (float[]){1})); }
static kl_tensor input_no_data(void) { return BAD(kl_input(dev, KL_F32, DIMS(2), NULL)); }
#if defined(KILN_ASAN) || defined(KILN_TSAN) /* their malloc stops the program instead */
#define HUGE_CODE KL_ERR_SHAPE
#define HUGE_BYTES INT64_C(1) << 60
#else
#define HUGE_CODE KL_ERR_MEMORY
#define HUGE_BYTES INT64_C(1) << 50
#endif
static kl_tensor input_huge(void) { return BAD(kl_input(dev, KL_F32, DIMS(HUGE_BYTES), &dev)); }
static kl_tensor scalar_dtype(void) { return BAD(kl_scalar(dev, (kl_dtype)77, 1)); }
static kl_tensor arange_negative(void) { return BAD(kl_arange(dev, KL_F32, -1)); }
static kl_tensor iota_axis(void) { return BAD(kl_iota(dev, KL_F32, DIMS(2), 1)); }
static kl_tensor random_dtype(void) { return BAD(kl_random_bits(dev, KL_F32, DIMS(2), 1)); }
static kl_tensor randn_dtype(void) { return BAD(kl_randn(dev, KL_I32, DIMS(2), 1)); }
static kl_tensor grad_dtype(void) { return BAD(kl_grad(kl_sum_all(i3), i3)); }
static kl_tensor grad_no_history(void) { return BAD(kl_grad(a23, v4)); }
static kl_tensor use_none(void) { return BAD(kl_add(a23, kl_none)); }
static kl_tensor use_stale(void) { return BAD(kl_mul(stale, a23)); }
static kl_tensor use_foreign(void) { return BAD(kl_mul(a23, foreign)); }
static kl_tensor use_garbage(void) { return BAD(kl_neg((kl_tensor){0x123456789abcdef1})); }
static kl_tensor use_ended(void) { return BAD(kl_neg(ended)); }
static kl_tensor reshape_stale(void) { return BAD(kl_reshape(stale, DIMS(1))); }
static kl_tensor keep_stale(void) { return BAD(kl_keep(stale)); }
static kl_tensor two_devices(void) { return BAD(kl_add(a23, there)); }

/* ---- bad calls that give a status ---- */

static kl_status assign_shape(void) { return BAD(kl_assign(w, a23)); }
static kl_status assign_dtype(void) { return BAD(kl_assign(i3, b3)); }
static kl_status assign_stale(void) { return BAD(kl_assign(stale, w)); }
static kl_status assign_device(void) { return BAD(kl_assign(a23, there)); }
static kl_status assign_foreign(void) { return BAD(kl_assign(w, foreign)); }
static kl_status read_size(void) { return BAD(kl_read(a23, &dev, sizeof dev)); }
static kl_status read_stale(void) { return BAD(kl_read(stale, &dev, sizeof dev)); }
static kl_status read_null(void) { return BAD(kl_read(a23, NULL, 24)); }
static kl_status release_twice(void) { return BAD(kl_release(stale)); }
static kl_status release_foreign(void) { return BAD(kl_release(foreign)); }
static kl_status requires_grad_dtype(void) { return BAD(kl_requires_grad(i3)); }
static kl_status name_stale(void) { return BAD(kl_set_name(stale, "x")); }
static kl_status item_shape(void) { return BAD(isnan(kl_item_f32(a23)) ? kl_last_error_code() : KL_OK); }
static kl_status item_stale(void) { return BAD(kl_item_i64(stale) == 0 ? kl_last_error_code() : KL_OK); }
static kl_status begin_twice(void) { return BAD(kl_trace_begin("second")); }
static kl_status read_in_trace(void)
{
    kl_tensor y = kl_tanh(a23);
    return BAD(kl_read(y, (float[6]){0}, 24));
}
static kl_status item_in_trace(void)
{
    kl_tensor y = kl_sum_all(a23);
    return BAD(isnan(kl_item_f64(y)) ? kl_last_error_code() : KL_OK);
}
static kl_status read_assigned(void)
{
    kl_assign(w, kl_neg(w));
    return BAD(kl_read(w, (float[2]){0}, 8));
}
static kl_status use_released(void)
{
    kl_tensor t = kl_neg(w);
    kl_release(t);
    line = __LINE__, kl_exp(t);
    return kl_last_error_code();
}
static kl_status release_in_trace_twice(void)
{
    kl_tensor t = kl_neg(w);
    kl_release(t);
    return BAD(kl_release(t));
}

enum where { ANYWHERE, IN_TRACE, OTHER_DEVICE };

static const struct {
    kl_tensor (*tensor)(void);
    kl_status (*status)(void);
    kl_status code;
    const char *text;
    enum where where;
} cases[] = {
    {.tensor = add_shapes, .code = KL_ERR_SHAPE, .text = "add: shapes [2,3] and [4] do not broadcast"},
    {.tensor = where_shapes, .code = KL_ERR_SHAPE, .text = "where: shapes [3], [2,3] and [4] do not broadcast"},
    {.tensor = add_dtypes, .code = KL_ERR_TYPE, .text = "add: dtypes f32 and i32 differ"},
    {.tensor = exp_dtype, .code = KL_ERR_TYPE, .text = "exp: needs a floating dtype, got i32"},
    {.tensor = neg_dtype, .code = KL_ERR_TYPE, .text = "neg: needs a number dtype, got bool"},
    {.tensor = not_dtype, .code = KL_ERR_TYPE, .text = "not: needs an integer or bool dtype, got f32"},
    {.tensor = where_condition, .code = KL_ERR_TYPE, .text = "where: the first operand must be bool, got f32"},
    {.tensor = cast_dtype, .code = KL_ERR_TYPE, .text = "cast: dtype 13 does not exist"},
    {.tensor = sum_axis, .code = KL_ERR_SHAPE, .text = "sum: axis 2 is out of range for shape [2,3]"},
    {.tensor = sum_axis_negative, .code = KL_ERR_SHAPE, .text = "sum: axis -3 is out of range for shape [2,3]"},
    {.tensor = sum_twice, .code = KL_ERR_SHAPE, .text = "sum: axis -1 occurs twice"},
    {.tensor = sum_bool, .code = KL_ERR_TYPE, .text = "sum: needs a number dtype, got bool"},
    {.tensor = mean_integers, .code = KL_ERR_TYPE, .text = "mean: needs a floating dtype, got i32"},
    {.tensor = max_axis, .code = KL_ERR_SHAPE, .text = "max: axis 1 is out of range for shape [4]"},
    {.tensor = argmax_axis, .code = KL_ERR_SHAPE, .text = "argmax: axis 7 is out of range for shape [4]"},
    {.tensor = softmax_axis, .code = KL_ERR_SHAPE, .text = "softmax: max: axis 2 is out of range"},
    {.tensor = softmax_dtype, .code = KL_ERR_TYPE, .text = "softmax: needs a floating dtype, got i32"},
    {.tensor = matmul_shapes, .code = KL_ERR_SHAPE, .text = "matmul: shapes [2,3] and [2,3] do not fit"},
    {.tensor = matmul_scalar, .code = KL_ERR_SHAPE, .text = "matmul: shapes [2,3] and [] do not fit"},
    {.tensor = matmul_dtypes, .code = KL_ERR_TYPE, .text = "matmul: dtypes f32 and i32 differ"},
    {.tensor = dot_axis, .code = KL_ERR_SHAPE, .text = "dot_general: axis 2 is out of range for shape [2,3]"},
    {.tensor = dot_lengths, .code = KL_ERR_SHAPE,
     .text = "dot_general: contracted axes 0 of [2,3] and 1 of [2,3] differ in length"},
    {.tensor = linear_bias, .code = KL_ERR_SHAPE,
     .text = "linear: axis 0 of the bias [4] has length 4, axis 1 of the weight [2,3] has 3"},
    {.tensor = linear_weight, .code = KL_ERR_SHAPE,
     .text = "linear: axis 1 of x [2,3] has length 3, axis 0 of the weight [2,3] has 2"},
    {.tensor = attention_depth, .code = KL_ERR_SHAPE,
     .text = "attention: axis 1 of q [2,3] has length 3, axis 1 of k [3,2] has 2"},
    {.tensor = attention_values, .code = KL_ERR_SHAPE,
     .text = "attention: axis 0 of k [2,3] has length 2, axis 0 of v [3,2] has 3"},
    {.tensor = attention_rank, .code = KL_ERR_SHAPE,
     .text = "attention: k has shape [4]: two axes at least are needed"},
    {.tensor = attention_lead, .code = KL_ERR_SHAPE,
     .text = "attention: axis 0 of q [2,1,3] has length 2, axis 1 of k [4,5,1,3] has 5"},
    {.tensor = reshape_count, .code = KL_ERR_SHAPE,
     .text = "reshape: [2,3] and [4] differ in their number of elements"},
    {.tensor = reshape_infer, .code = KL_ERR_SHAPE, .text = "reshape: nothing fits the -1"},
    {.tensor = reshape_two, .code = KL_ERR_SHAPE, .text = "reshape: only one dimension may be -1"},
    {.tensor = reshape_negative, .code = KL_ERR_SHAPE, .text = "reshape: shape [-2,-3] has a negative dimension"},
    {.tensor = permute_axis, .code = KL_ERR_SHAPE, .text = "permute: axis 2 is out of range for shape [2,3]"},
    {.tensor = permute_twice, .code = KL_ERR_SHAPE, .text = "permute: axis 1 occurs twice"},
    {.tensor = transpose_axis, .code = KL_ERR_SHAPE, .text = "transpose: axis 1 is out of range for shape [4]"},
    {.tensor = expand_length, .code = KL_ERR_SHAPE, .text = "expand: [2,3] does not fit [4,3]"},
    {.tensor = expand_rank, .code = KL_ERR_SHAPE, .text = "expand: shape [2,3] does not broadcast to [3]"},
    {.tensor = squeeze_length, .code = KL_ERR_SHAPE, .text = "squeeze: axis 0 of [2,3] does not have length 1"},
    {.tensor = squeeze_axis, .code = KL_ERR_SHAPE, .text = "squeeze: axis 2 is out of range for shape [2,3]"},
    {.tensor = slice_step, .code = KL_ERR_ARGUMENT, .text = "slice: step -1 of axis 1 is not positive"},
    {.tensor = narrow_outside, .code = KL_ERR_SHAPE,
     .text = "narrow: 2 elements from 2 in steps of 1 do not lie in axis 1 of [2,3]"},
    {.tensor = any_number, .code = KL_ERR_TYPE, .text = "any: needs bool, got f32"},
    {.tensor = scan_axis, .code = KL_ERR_SHAPE, .text = "cumsum: axis 2 is out of range for shape [2,3]"},
    {.tensor = scan_bool, .code = KL_ERR_TYPE, .text = "cummax: needs a number dtype, got bool"},
    {.tensor = scan_shapes, .code = KL_ERR_SHAPE, .text = "recurrence: shapes [2,3] and [4] differ"},
    {.tensor = scan_types, .code = KL_ERR_TYPE, .text = "recurrence: dtypes f32 and f64 differ"},
    {.tensor = scan_integers, .code = KL_ERR_TYPE, .text = "logcumsumexp: needs a floating dtype, got i8"},
    {.tensor = scan_log_axis, .code = KL_ERR_SHAPE, .text = "logcumsumexp: axis 2 is out of range for shape [2,3]"},
    {.tensor = window_axis, .code = KL_ERR_SHAPE, .text = "window: axis -3 is out of range for shape [2,3]"},
    {.tensor = window_size, .code = KL_ERR_SHAPE,
     .text = "window: size 2 with dilation 3 does not fit in axis 1 of [2,3]"},
    {.tensor = window_stride, .code = KL_ERR_SHAPE,
     .text = "window: size 2, stride 0, dilation 1: none may be below 1"},
    {.tensor = window_rank, .code = KL_ERR_SHAPE, .text = "has as many axes as a tensor can have"},
    {.tensor = flip_axis, .code = KL_ERR_SHAPE, .text = "flip: axis 2 is out of range for shape [2,3]"},
    {.tensor = flip_twice, .code = KL_ERR_ARGUMENT, .text = "flip: axis -1 is named twice"},
    {.tensor = pad_negative, .code = KL_ERR_SHAPE, .text = "pad: low -1, high 0, interior 0: none may be negative"},
    {.tensor = concat_nothing, .code = KL_ERR_ARGUMENT, .text = "concat: no tensors"},
    {.tensor = concat_shapes, .code = KL_ERR_SHAPE, .text = "concat: shapes [2,3] and [4] differ in more than axis 0"},
    {.tensor = concat_dtypes, .code = KL_ERR_TYPE, .text = "concat: dtypes f32 and i32 differ"},
    {.tensor = gather_dtype, .code = KL_ERR_TYPE, .text = "take: the index must be integers, got f32"},
    {.tensor = index_add_update, .code = KL_ERR_SHAPE, .text = "index_add: the update must be [2,3], got [4]"},
    {.tensor = index_put_dtype, .code = KL_ERR_TYPE, .text = "index_copy: the index must be integers, got f32"},
    {.tensor = index_max_axis, .code = KL_ERR_SHAPE, .text = "index_max: axis 2 is out of range for shape [2,3]"},
    {.tensor = index_min_types, .code = KL_ERR_TYPE, .text = "index_min: dtypes f32 and i32 differ"},
    {.tensor = take_dtype, .code = KL_ERR_TYPE, .text = "take_along_axis: the index must be integers, got f32"},
    {.tensor = take_shape, .code = KL_ERR_SHAPE,
     .text = "take_along_axis: index [3] differs from [2,3] in more than axis 0"},
    {.tensor = take_nothing, .code = KL_ERR_SHAPE, .text = "take_along_axis: axis 0 of [0] has no elements"},
    {.tensor = put_update, .code = KL_ERR_SHAPE, .text = "put_along_axis: index [3] and update [4] differ"},
    {.tensor = embedding_table, .code = KL_ERR_SHAPE, .text = "embedding: the table must be [V,D], got [4]"},
    {.tensor = argsort_axis, .code = KL_ERR_SHAPE, .text = "argsort: axis 2 is out of range for shape [2,3]"},
    {.tensor = sort_scalar, .code = KL_ERR_SHAPE, .text = "sort: axis 0 is out of range for shape []"},
    {.tensor = topk_many, .code = KL_ERR_ARGUMENT, .text = "topk: axis 1 of [2,3] has no 4 elements"},
    {.tensor = dynamic_starts, .code = KL_ERR_ARGUMENT, .text = "dynamic_slice: no starts"},
    {.tensor = dynamic_count, .code = KL_ERR_SHAPE,
     .text = "dynamic_slice: 4 elements from 0 in steps of 1 do not lie in axis 1 of [2,3]"},
    {.tensor = dynamic_scalar, .code = KL_ERR_SHAPE, .text = "dynamic_slice: the start must be a scalar, got [3]"},
    {.tensor = dynamic_window, .code = KL_ERR_SHAPE, .text = "dynamic_update: [4] is no window of [2,3]"},
    {.tensor = dynamic_dtype, .code = KL_ERR_TYPE, .text = "dynamic_update: dtypes f32 and i32 differ"},
    {.tensor = bitcast_width, .code = KL_ERR_TYPE, .text = "bitcast: the bits of f32 are not those of f64"},
    {.tensor = unsqueeze_axis, .code = KL_ERR_SHAPE, .text = "unsqueeze: axis 4 is out of range for shape [2,3]"},
    {.tensor = labels_shape, .code = KL_ERR_SHAPE,
     .text = "cross_entropy: needs logits [N,C] and labels [N], got [2,3] and [3]"},
    {.tensor = labels_dtype, .code = KL_ERR_TYPE, .text = "cross_entropy: the labels must be integers, got f32"},
    {.tensor = zeros_rank, .code = KL_ERR_SHAPE, .text = "zeros: rank 9 is not in 0..8"},
    {.tensor = zeros_negative, .code = KL_ERR_SHAPE, .text = "zeros: shape [2,-1] has a negative dimension"},
    {.tensor = zeros_huge, .code = KL_ERR_SHAPE, .text = "] has too many elements"},
    {.tensor = zeros_no_dims, .code = KL_ERR_ARGUMENT, .text = "zeros: dims is NULL"},
    {.tensor = zeros_device, .code = KL_ERR_DEVICE, .text = "0 is no device"},
    {.tensor = input_device, .code = KL_ERR_DEVICE, .text = "input: 99 is no device"},
    {.tensor = input_no_data, .code = KL_ERR_ARGUMENT, .text = "input: data is NULL"},
    {.tensor = input_huge, .code = HUGE_CODE, .text = "input: "},
    {.tensor = scalar_dtype, .code = KL_ERR_TYPE, .text = "scalar: dtype 77 does not exist"},
    {.tensor = arange_negative, .code = KL_ERR_SHAPE, .text = "arange: shape [-1] has a negative dimension"},
    {.tensor = iota_axis, .code = KL_ERR_SHAPE, .text = "iota: axis 1 is out of range for shape [2]"},
    {.tensor = random_dtype, .code = KL_ERR_TYPE, .text = "random_bits: "},
    {.tensor = randn_dtype, .code = KL_ERR_TYPE, .text = "randn: makes f32 and f64, not i32"},
    {.tensor = grad_dtype, .code = KL_ERR_TYPE, .text = "grad: the loss needs a floating dtype, got i32"},
    {.tensor = grad_no_history, .code = KL_ERR_GRAD, .text = "grad: the "},
    {.tensor = use_none, .code = KL_ERR_HANDLE, .text = "add: operand 2 is kl_none"},
    {.tensor = use_stale, .code = KL_ERR_HANDLE, .text = "mul: operand 1 is stale: it was released"},
    {.tensor = use_foreign, .code = KL_ERR_HANDLE, .text = "mul: operand 2 is foreign: 0x"},
    {.tensor = use_garbage, .code = KL_ERR_HANDLE, .text = "neg: operand 1 is foreign: 0x123456789abcdef1"},
    {.tensor = use_ended, .code = KL_ERR_HANDLE, .text = "neg: operand 1 is stale: it was "},
    {.tensor = reshape_stale, .code = KL_ERR_HANDLE, .text = "reshape: the tensor is stale: it was released"},
    {.tensor = keep_stale, .code = KL_ERR_HANDLE, .text = "keep: the tensor is stale"},
    {.tensor = two_devices, .code = KL_ERR_DEVICE, .text = "add: operands are on devices ", .where = OTHER_DEVICE},
    {.status = assign_shape, .code = KL_ERR_SHAPE, .text = "assign: the state is [2], the value [2,3]"},
    {.status = assign_dtype, .code = KL_ERR_TYPE, .text = "assign: the state is i32, the value bool"},
    {.status = assign_stale, .code = KL_ERR_HANDLE, .text = "assign: the state is stale: it was released"},
    {.status = assign_foreign, .code = KL_ERR_HANDLE, .text = "assign: the value is foreign"},
    {.status = assign_device, .code = KL_ERR_DEVICE, .text = "assign: the state is on device ", .where = OTHER_DEVICE},
    {.status = read_size, .code = KL_ERR_ARGUMENT, .text = "read: f32[2,3] has 24 bytes, not 4"},
    {.status = read_null, .code = KL_ERR_ARGUMENT, .text = "read: data is NULL"},
    {.status = read_stale, .code = KL_ERR_HANDLE, .text = "read: the tensor is stale"},
    {.status = release_twice, .code = KL_ERR_HANDLE, .text = "release: the tensor is stale: it was released"},
    {.status = release_foreign, .code = KL_ERR_HANDLE, .text = "release: the tensor is foreign"},
    {.status = requires_grad_dtype, .code = KL_ERR_TYPE, .text = "requires_grad: needs a floating dtype, got i32"},
    {.status = name_stale, .code = KL_ERR_HANDLE, .text = "set_name: the tensor is stale"},
    {.status = item_shape, .code = KL_ERR_SHAPE, .text = "item_f32: f32[2,3] does not have one element"},
    {.status = item_stale, .code = KL_ERR_HANDLE, .text = "item_i64: the tensor is stale"},
    {.status = begin_twice, .code = KL_ERR_TRACE, .text = "trace_begin: trace \"bad\" is already open",
     .where = IN_TRACE},
    {.status = read_in_trace, .code = KL_ERR_TRACE, .text = "read: the tanh recorded at ", .where = IN_TRACE},
    {.status = item_in_trace, .code = KL_ERR_TRACE, .text = "has no value before trace \"bad\" has ended",
     .where = IN_TRACE},
    {.status = read_assigned, .code = KL_ERR_TRACE, .text = "read: the tensor was assigned in trace \"bad\"",
     .where = IN_TRACE},
    {.status = use_released, .code = KL_ERR_HANDLE, .text = "exp: operand 1 is stale: it was released"},
    {.status = release_in_trace_twice, .code = KL_ERR_HANDLE, .text = "release: the tensor is stale: it was released"},
};

/* The last error says what was expected of it, and begins with the bad call's place. */
static bool message_is(const char *text)
{
    char site[sizeof __FILE__ + 32];
    snprintf(site, sizeof site, "%s:%d: ", __FILE__, line);
    bool ok = !strncmp(kl_last_error(), site, strlen(site)) && strstr(kl_last_error(), text);
    if (!ok)
        printf("message \"%s\", not \"%s... %s\"\n", kl_last_error(), site, text);
    return ok;
}

static bool parameter_is(float a, float b)
{
    float v[2];
    return kl_read(w, v, sizeof v) == KL_OK && v[0] == a && v[1] == b;
}

/* A trace that adds one, and one that takes it away again. */
static void next_traces_work(void)
{
    for (int sign = 1; sign >= -1; sign -= 2) {
        OK(kl_trace_begin("good"));
        OK(kl_assign(w, kl_add_scalar(w, sign)));
        OK(kl_trace_end());
        CHECK(sign > 0 ? parameter_is(6, 7) : parameter_is(5, 6));
    }
}

static void in_a_trace(size_t i)
{
    OK(kl_trace_begin("bad"));
    OK(kl_assign(w, kl_mul_scalar(w, 2)));
    kl_tensor kept = kl_keep(kl_neg(w)), result = kl_none;
    kl_clear_error();
    if (cases[i].tensor) {
        result = cases[i].tensor();
        CHECK(kl_check(result) == cases[i].code);
        CHECK(kl_rank(result) == -1 && kl_shape(result, NULL) == -1 && kl_dtype_of(result) == KL_DTYPE_COUNT);
    } else {
        CHECK(cases[i].status() == cases[i].code);
    }
    int at = line;
    CHECK(kl_last_error_code() == cases[i].code && message_is(cases[i].text));
    /* what follows from it is silent, and so are later errors of this trace */
    kl_clear_error();
    kl_tensor follow = kl_matmul(kl_exp(result), a23);
    kl_tensor late = kl_add(a23, v4);
    CHECK(kl_assign(w, follow) == cases[i].code && kl_check(late) == cases[i].code);
    CHECK(kl_last_error_code() == KL_OK && !strcmp(kl_last_error(), ""));
    line = at;
    CHECK(kl_trace_end() == cases[i].code);
    CHECK(kl_last_error_code() == cases[i].code && message_is(cases[i].text));
    CHECK(kl_check(kept) == cases[i].code && kl_check(follow) == cases[i].code);
    CHECK(!kl_tracing() && parameter_is(5, 6));
    next_traces_work();
}

static void outside(size_t i)
{
    kl_scope_begin();
    kl_clear_error();
    if (cases[i].tensor) {
        kl_tensor result = cases[i].tensor();
        CHECK(kl_last_error_code() == cases[i].code && message_is(cases[i].text));
        if (result.id != stale.id) { /* kl_keep gives back what it got */
            CHECK(kl_check(result) == cases[i].code);
            kl_clear_error();
            kl_tensor follow = kl_exp(kl_add(result, a23)); /* poison carries the first cause */
            CHECK(kl_check(follow) == cases[i].code && message_is(cases[i].text));
            kl_clear_error();
            CHECK(isnan(kl_item_f32(follow)) && kl_last_error_code() == cases[i].code && message_is(cases[i].text));
            /* a trace that uses it fails with its cause */
            OK(kl_trace_begin("poisoned"));
            kl_assign(w, kl_neg(w));
            kl_keep(kl_exp(follow));
            CHECK(kl_trace_end() == cases[i].code && message_is(cases[i].text) && parameter_is(5, 6));
        }
    } else {
        CHECK(cases[i].status() == cases[i].code);
        CHECK(kl_last_error_code() == cases[i].code && message_is(cases[i].text));
    }
    CHECK(kl_item_f32(kl_sum_all(a23)) == 21 && parameter_is(5, 6));
    next_traces_work();
    OK(kl_scope_end());
}

/* ---- traces as such, threads, devices ---- */

/* Messages about a recorded tensor name the function that the user called, not the last node of what it is made of. */
static void composites_are_named(void)
{
    float x;
    char text[300];
    kl_tensor made[4];
    int at[4];
    static const char *const name[] = {"sum_all", "softmax", "linear", "mean"};
    for (int again = 0; again < 2; again++) { /* the second time it is replayed */
        OK(kl_trace_begin("composites"));
        made[0] = kl_sum_all(a23), at[0] = __LINE__;
        made[1] = kl_softmax(a23, 1), at[1] = __LINE__;
        made[2] = kl_linear(a23, kl_transpose(a23, 0, 1), kl_none), at[2] = __LINE__;
        made[3] = kl_mean(a23, AXES(0), false), at[3] = __LINE__;
        kl_tensor kept = kl_keep(kl_neg(a23));
        OK(kl_trace_end());
        OK(kl_release(kept));
        for (int i = 0; i < 4; i++) {
            line = __LINE__ + 1;
            OK(kl_release(kl_exp(made[i])));
            snprintf(text, sizeof text,
                     "exp: operand 1 is stale: it was a temporary of trace \"composites\", which has ended: the %s "
                     "recorded at %s:%d was not kept by kl_keep", name[i], __FILE__, at[i]);
            CHECK(message_is(text));
        }
    }
    OK(kl_trace_begin("read"));
    kl_tensor sum = kl_sum_all(a23);
    snprintf(text, sizeof text, "read: the sum_all recorded at %s:%d has no value before trace \"read\" has ended",
             __FILE__, __LINE__ - 2);
    line = __LINE__ + 1;
    CHECK(kl_read(sum, &x, sizeof x) == KL_ERR_TRACE);
    CHECK(message_is(text));
    kl_trace_abandon();
}

static void ends(void)
{
    line = __LINE__ + 1;
    CHECK(kl_trace_end() == KL_ERR_TRACE);
    line = __LINE__ - 1;
    CHECK(message_is("trace_end: no trace is open"));
    OK(kl_trace_begin("first"));
    CHECK(kl_trace_begin("second") == KL_ERR_TRACE);
    CHECK(kl_trace_end() == KL_ERR_TRACE && kl_trace_end() == KL_ERR_TRACE);
    next_traces_work();
    OK(kl_trace_begin("short"));
    kl_tensor temporary = kl_neg(w);
    int made = __LINE__ - 1;
    OK(kl_trace_end());
    line = __LINE__ + 1;
    kl_tensor bad = kl_neg(temporary);
    char text[200];
    snprintf(
        text, sizeof text,
        "neg: operand 1 is stale: it was a temporary of trace \"short\", which has ended: the neg recorded at %s:%d "
        "was not kept by kl_keep",
        __FILE__, made);
    CHECK(message_is(text));
    OK(kl_release(bad));
    kl_scope_begin();
    temporary = kl_neg(w);
    OK(kl_scope_end());
    line = __LINE__ + 1;
    CHECK(kl_rank(temporary) == -1 && kl_set_name(temporary, "late") == KL_ERR_HANDLE);
    CHECK(message_is("set_name: the tensor is stale: it was made in a scope that has ended"));
    line = __LINE__ + 1;
    CHECK(kl_scope_end() == KL_ERR_ARGUMENT && message_is("scope_end: no scope is open"));
    CHECK(kl_set_option("speed", 1) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "\"speed\""));
    CHECK(kl_set_option("fuse", 2) == KL_ERR_ARGUMENT);
    CHECK(kl_get_option("fuse", NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_device_named("toaster").id == 0 && kl_last_error_code() == KL_ERR_DEVICE);
    CHECK(strstr(kl_last_error(), "toaster") && kl_sync((kl_device){0}) == KL_ERR_DEVICE);
    CHECK(strcmp(kl_status_name(KL_ERR_SHAPE), kl_status_name(KL_ERR_TYPE)));
    kl_clear_error();
    CHECK(kl_last_error_code() == KL_OK && !strcmp(kl_last_error(), ""));
}

static void gradients(void)
{
    kl_tensor unmarked = kl_square(w), x = kl_neg(w), loss = kl_sum_all(kl_mul(x, x)), bad;
    CHECK(kl_check(bad = kl_grad(unmarked, w)) == KL_ERR_GRAD && strstr(kl_last_error(), "kl_requires_grad"));
    kl_release(bad);
    OK(kl_requires_grad(x)); /* too late for loss */
    CHECK(kl_check(bad = kl_grad(loss, x)) == KL_ERR_GRAD && strstr(kl_last_error(), "no history"));
    kl_release(bad), kl_release(unmarked), kl_release(x), kl_release(loss);
}

struct visit {
    kl_tensor theirs; /* a temporary of the other thread's open trace */
    bool ok;
};

static void *visit(void *arg)
{
    struct visit *v = arg;
    kl_tensor y = kl_neg(v->theirs);
    v->ok = kl_check(y) == KL_ERR_TRACE && strstr(kl_last_error(), "open on another thread");
    kl_release(y);
    kl_clear_error();
    v->ok &= kl_read(v->theirs, &y, 8) == KL_ERR_TRACE && kl_release(v->theirs) == KL_ERR_TRACE;
    v->ok &= kl_rank(v->theirs) == -1 && kl_check(v->theirs) == KL_ERR_TRACE;
    kl_trace_begin("visitor");
    kl_keep(kl_add(w, v->theirs));
    v->ok &= kl_trace_end() == KL_ERR_TRACE;
    kl_trace_begin("left open at the thread's end");
    kl_assign(w, kl_neg(w));
    return NULL;
}

static void threads(void)
{
    pthread_t t;
    OK(kl_trace_begin("mine"));
    struct visit v = {.theirs = kl_neg(w)};
    kl_tensor kept = kl_keep(v.theirs);
    if (CHECK(pthread_create(&t, NULL, visit, &v) == 0))
        pthread_join(t, NULL);
    CHECK(v.ok && kl_last_error_code() == KL_OK); /* errors are the other thread's */
    OK(kl_trace_end());
    NEAR_LIST(kept, 0, -5, -6);
    CHECK(parameter_is(5, 6));
    next_traces_work();
}

static void two_devices_in_a_trace(void)
{
    OK(kl_trace_begin("mixed"));
    kl_keep(kl_neg(w));
    line = __LINE__ + 1;
    kl_keep(kl_add(kl_neg(w), kl_neg(there)));
    CHECK(kl_trace_end() == KL_ERR_DEVICE && message_is("add: operands are on devices "));
    next_traces_work();
}

static void test(kl_device d)
{
    dev = d;
    other = kl_device_named(strcmp(kl_device_name(d), "ref") ? "ref" : "cpu");
    a23 = kl_input(dev, KL_F32, DIMS(2, 3), (float[]){1, 2, 3, 4, 5, 6});
    v4 = kl_input(dev, KL_F32, DIMS(4), (float[4]){0});
    i3 = kl_arange(dev, KL_I32, 3);
    b3 = kl_gt(i3, kl_const(dev, KL_I32, 0));
    w = kl_input(dev, KL_F32, DIMS(2), (float[]){5, 6});
    there = other.id ? kl_zeros(other, KL_F32, DIMS(2, 3)) : kl_none;
    stale = kl_arange(dev, KL_F32, 2);
    kl_release(stale);
    foreign = (kl_tensor){w.id + (UINT64_C(1) << 40)}; /* w's entry in a life it has yet to have */
    kl_trace_begin("ended");
    ended = kl_arange(dev, KL_F32, 2);
    kl_trace_abandon();

    composites_are_named();
    ends();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].where == OTHER_DEVICE && !other.id)
            continue;
        int before = failed;
        in_a_trace(i);
        if (cases[i].where != IN_TRACE)
            outside(i);
        if (failed > before)
            printf("  in case %zu: %s\n", i, cases[i].text);
    }
    gradients();
    kl_clear_error();
    threads();
    if (other.id)
        two_devices_in_a_trace();
    kl_release(a23), kl_release(v4), kl_release(i3), kl_release(b3), kl_release(w), kl_release(there);
}

int main(void)
{
    return on_devices(test);
}
