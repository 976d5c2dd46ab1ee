/* The public ops, one by one, against values worked out by hand or in double. */
#include "tests/support/api_check.h"

static kl_device dev;

static kl_tensor f32(int rank, const int64_t *dims, const double *v)
{
    float f[256];
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int64_t i = 0; i < n; i++)
        f[i] = (float)v[i];
    return kl_input(dev, KL_F32, rank, dims, f);
}
#define D(...) DIMS(__VA_ARGS__)

static kl_tensor i32(int rank, const int64_t *dims, const int32_t *v)
{
    return kl_input(dev, KL_I32, rank, dims, v);
}

/* ---- elementwise ---- */

static void unary(void)
{
    kl_tensor a = f32(D(4), (double[]){0.25, 1, 2, 9});
    NEAR_LIST(kl_neg(a), 0, -0.25, -1, -2, -9);
    NEAR_LIST(kl_abs(kl_neg(a)), 0, 0.25, 1, 2, 9);
    NEAR_LIST(kl_exp(a), 1e-6, exp(0.25), exp(1), exp(2), exp(9));
    NEAR_LIST(kl_log(a), 1e-6, log(0.25), 0, log(2), log(9));
    NEAR_LIST(kl_exp2(a), 1e-6, exp2(0.25), 2, 4, 512);
    NEAR_LIST(kl_expm1(a), 1e-6, expm1(0.25), expm1(1), expm1(2), expm1(9));
    NEAR_LIST(kl_log2(a), 1e-6, -2, 0, 1, log2(9));
    NEAR_LIST(kl_log1p(a), 1e-6, log1p(0.25), log(2), log(3), log(10));
    NEAR_LIST(kl_tanh(a), 1e-6, tanh(0.25), tanh(1), tanh(2), tanh(9));
    NEAR_LIST(kl_sin(a), 1e-6, sin(0.25), sin(1), sin(2), sin(9));
    NEAR_LIST(kl_cos(a), 1e-6, cos(0.25), cos(1), cos(2), cos(9));
    NEAR_LIST(kl_erf(a), 1e-6, erf(0.25), erf(1), erf(2), 1);
    NEAR_LIST(kl_sqrt(a), 1e-7, 0.5, 1, sqrt(2), 3);
    NEAR_LIST(kl_rsqrt(a), 1e-6, 2, 1, 1 / sqrt(2), 1.0 / 3);
    NEAR_LIST(kl_recip(a), 1e-7, 4, 1, 0.5, 1.0 / 9);
    NEAR_LIST(kl_square(a), 0, 0.0625, 1, 4, 81);
    NEAR_LIST(kl_not(i32(D(2), (int32_t[]){0, 5})), 0, -1, -6);
    NEAR_LIST(kl_not(kl_gt(a, kl_const(dev, KL_F32, 1))), 0, 1, 1, 0, 0);
    kl_release(a);
}

/* Zeros are told apart by their reciprocals. */
static void rounding(void)
{
    kl_tensor a = f32(D(8), (double[]){-2.5, -0.75, -0.0, 0.25, 0.5, 1.5, 1e30, NAN});
    NEAR_LIST(kl_floor(a), 0, -3, -1, 0, 0, 0, 1, 1e30f, NAN);
    NEAR_LIST(kl_ceil(a), 0, -2, 0, 0, 1, 1, 2, 1e30f, NAN);
    NEAR_LIST(kl_round(a), 0, -2, -1, 0, 0, 0, 2, 1e30f, NAN);
    NEAR_LIST(kl_trunc(a), 0, -2, 0, 0, 0, 0, 1, 1e30f, NAN);
    NEAR_LIST(kl_sign(a), 0, -1, -1, 0, 1, 1, 1, 1, NAN);
    kl_tensor z = f32(D(3), (double[]){-0.75, -0.0, 0.0});
    NEAR_LIST(kl_recip(kl_floor(z)), 0, -1, -INFINITY, INFINITY);
    NEAR_LIST(kl_recip(kl_ceil(z)), 0, -INFINITY, -INFINITY, INFINITY);
    NEAR_LIST(kl_recip(kl_trunc(z)), 0, -INFINITY, -INFINITY, INFINITY);
    NEAR_LIST(kl_recip(kl_sign(z)), 0, -1, -INFINITY, INFINITY);
    kl_tensor w = f32(D(5), (double[]){-INFINITY, -1, 0, INFINITY, NAN});
    NEAR_LIST(kl_is_nan(w), 0, 0, 0, 0, 0, 1);
    NEAR_LIST(kl_is_finite(w), 0, 0, 1, 1, 0, 0);
    NEAR_LIST(kl_floor(w), 0, -INFINITY, -1, 0, INFINITY, NAN);
    kl_tensor i = i32(D(6), (int32_t[]){7, -7, 7, -7, 7, INT32_MIN}), j = i32(D(6), (int32_t[]){3, 3, -3, -3, 0, -1});
    NEAR_LIST(kl_rem(i, j), 0, 1, -1, 1, -1, 0, 0);
    NEAR_LIST(kl_sign(i), 0, 1, -1, 1, -1, 1, -1);
    NEAR_LIST(kl_shl(i, i32(D(6), (int32_t[]){0, 1, 2, 32, 33, 1})), 0, 7, -14, 28, -7, 14, 0);
    NEAR_LIST(kl_shr(i, i32(D(6), (int32_t[]){0, 1, 2, 32, 33, 31})), 0, 7, -4, 1, -7, 3, -1);
    NEAR_LIST(kl_rem(kl_cast(j, KL_U8), kl_const(dev, KL_U8, 4)), 0, 3, 3, 1, 1, 0, 3);
}

static void binary(void)
{
    kl_tensor a = f32(D(2, 3), (double[]){1, 2, 3, 4, 5, 6}), row = f32(D(3), (double[]){10, 20, 30}),
              column = f32(D(2, 1), (double[]){2, 4});
    NEAR_LIST(kl_add(a, row), 0, 11, 22, 33, 14, 25, 36);
    NEAR_LIST(kl_add(row, a), 0, 11, 22, 33, 14, 25, 36);
    NEAR_LIST(kl_sub(a, column), 0, -1, 0, 1, 0, 1, 2);
    NEAR_LIST(kl_mul(row, column), 0, 20, 40, 60, 40, 80, 120);
    NEAR_LIST(kl_div(a, column), 0, 0.5, 1, 1.5, 1, 1.25, 1.5);
    NEAR_LIST(kl_maximum(a, column), 0, 2, 2, 3, 4, 5, 6);
    NEAR_LIST(kl_minimum(a, column), 0, 1, 2, 2, 4, 4, 4);
    NEAR_LIST(kl_eq(a, column), 0, 0, 1, 0, 1, 0, 0);
    NEAR_LIST(kl_ne(a, column), 0, 1, 0, 1, 0, 1, 1);
    NEAR_LIST(kl_lt(a, column), 0, 1, 0, 0, 0, 0, 0);
    NEAR_LIST(kl_le(a, column), 0, 1, 1, 0, 1, 0, 0);
    NEAR_LIST(kl_gt(a, column), 0, 0, 0, 1, 0, 1, 1);
    NEAR_LIST(kl_ge(a, column), 0, 0, 1, 1, 1, 1, 1);
    NEAR_LIST(kl_where(kl_gt(a, column), row, kl_const(dev, KL_F32, -1)), 0, -1, -1, 30, -1, 20, 30);
    NEAR_LIST(kl_maximum(kl_const(dev, KL_F32, NAN), row), 0, NAN, NAN, NAN);
    kl_tensor p = i32(D(3), (int32_t[]){12, -7, 5}), q = i32(D(3), (int32_t[]){10, 2, 0});
    NEAR_LIST(kl_and(p, q), 0, 8, 0, 0);
    NEAR_LIST(kl_or(p, q), 0, 14, -5, 5);
    NEAR_LIST(kl_xor(p, q), 0, 6, -5, 5);
    NEAR_LIST(kl_div(p, q), 0, 1, -3, 0);
    kl_release(a), kl_release(row), kl_release(column), kl_release(p), kl_release(q);
}

static void scalars_and_casts(void)
{
    kl_tensor a = f32(D(3), (double[]){-1.5, 2, 300});
    NEAR_LIST(kl_add_scalar(a, 1), 0, -0.5, 3, 301);
    NEAR_LIST(kl_sub_scalar(a, 1), 0, -2.5, 1, 299);
    NEAR_LIST(kl_mul_scalar(a, 2), 0, -3, 4, 600);
    NEAR_LIST(kl_div_scalar(a, 2), 0, -0.75, 1, 150);
    NEAR_LIST(kl_maximum_scalar(a, 0), 0, 0, 2, 300);
    NEAR_LIST(kl_minimum_scalar(a, 0), 0, -1.5, 0, 0);
    NEAR_LIST(kl_cast(a, KL_I32), 0, -1, 2, 300);
    NEAR_LIST(kl_cast(a, KL_U8), 0, 0, 2, 255);
    NEAR_LIST(kl_cast(kl_cast(a, KL_BOOL), KL_F64), 0, 1, 1, 1);
    CHECK(kl_dtype_of(a) == KL_F32);
    kl_release(a);
    NEAR_LIST(kl_add_scalar(i32(D(2), (int32_t[]){1, 2}), 41), 0, 42, 43);
}

/* ---- making ---- */

static void making(void)
{
    NEAR_LIST(kl_zeros(dev, KL_I8, D(2, 2)), 0, 0, 0, 0, 0);
    NEAR_LIST(kl_ones(dev, KL_BOOL, D(3)), 0, 1, 1, 1);
    NEAR_LIST(kl_full(dev, KL_F64, D(2), 0.1), 0, 0.1, 0.1);
    NEAR_LIST(kl_scalar(dev, KL_U16, 7), 0, 7);
    NEAR_LIST(kl_const(dev, KL_I64, -3), 0, -3);
    NEAR_LIST(kl_arange(dev, KL_I32, 4), 0, 0, 1, 2, 3);
    NEAR_LIST(kl_iota(dev, KL_F32, D(2, 3), 0), 0, 0, 0, 0, 1, 1, 1);
    NEAR_LIST(kl_iota(dev, KL_F32, D(2, 3), -1), 0, 0, 1, 2, 0, 1, 2);
    kl_tensor empty = kl_zeros(dev, KL_F32, D(0, 3));
    CHECK(kl_numel(empty) == 0);
    OK(kl_read(empty, NULL, 0));
    NEAR_LIST(kl_sum(empty, AXES(0), false), 0, 0, 0, 0);
    kl_release(empty);
    kl_tensor s = kl_input(dev, KL_F64, 0, NULL, &(double){2.5});
    CHECK(kl_rank(s) == 0 && kl_item_f64(s) == 2.5 && kl_item_f32(s) == 2.5f && kl_item_i64(s) == 2);
    kl_release(s);
}

static int released;
static void count_release(void *ctx) { released += *(int *)ctx; }

static void wrapping(void)
{
    float data[32] = {1, 2, 3};
    int one = 1;
    released = 0;
    kl_tensor w = kl_wrap(dev, KL_F32, D(3), data, count_release, &one);
    kl_tensor y = kl_mul_scalar(w, 2);
    kl_trace_begin("in_place");
    kl_assign(w, kl_add_scalar(w, 1));
    OK(kl_trace_end());
    /* The caller's memory is never written to; y still needs it, where the device has not memory of its own. */
    bool host = !strcmp(device_now, "ref") || !strcmp(device_now, "cpu");
    CHECK(data[0] == 1 && released == !host);
    NEAR_LIST(y, 0, 2, 4, 6);
    NEAR_LIST(w, 0, 2, 3, 4);
    kl_tensor again = kl_input(dev, KL_F32, D(1), data);
    kl_release(again);
    kl_trace_begin("data of a run");
    kl_tensor z = kl_keep(kl_neg(kl_wrap(dev, KL_F32, D(3), data, count_release, &one)));
    OK(kl_trace_end());
    NEAR_LIST(z, 0, -1, -2, -3);
    CHECK(released == 2);
    kl_tensor bad = kl_wrap(dev, KL_F32, D(-3), data, count_release, &one);
    CHECK(released == 3 && kl_check(bad) == KL_ERR_SHAPE);
    kl_release(bad);
}

/* ---- views ---- */

static void views(void)
{
    kl_tensor a = f32(D(2, 3), (double[]){1, 2, 3, 4, 5, 6});
    kl_tensor r = kl_reshape(a, D(3, -1));
    SHAPE(r, 3, 2);
    NEAR_LIST(r, 0, 1, 2, 3, 4, 5, 6);
    r = kl_permute(a, (int[]){1, 0});
    SHAPE(r, 3, 2);
    NEAR_LIST(r, 0, 1, 4, 2, 5, 3, 6);
    r = kl_transpose(a, -1, 0);
    SHAPE(r, 3, 2);
    NEAR_LIST(r, 0, 1, 4, 2, 5, 3, 6);
    r = kl_unsqueeze(a, 1);
    SHAPE(r, 2, 1, 3);
    kl_tensor e = kl_expand(r, D(2, 2, -1));
    SHAPE(e, 2, 2, 3);
    NEAR_LIST(e, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6);
    kl_tensor s = kl_squeeze(r, -2);
    SHAPE(s, 2, 3);
    kl_release(s), kl_release(r);
    r = kl_unsqueeze(a, -1);
    SHAPE(r, 2, 3, 1);
    kl_release(r);
    e = kl_expand(a, D(2, 2, 3));
    NEAR_LIST(e, 0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6);
    r = kl_reshape(kl_sum_all(a), D(1, 1));
    SHAPE(r, 1, 1);
    NEAR_LIST(r, 0, 21);
    kl_release(a);
}

static void pieces(void)
{
    kl_tensor a = f32(D(2, 3), (double[]){1, 2, 3, 4, 5, 6});
    kl_tensor r = kl_slice(a, (int64_t[]){0, -2}, NULL, NULL);
    SHAPE(r, 2, 2);
    NEAR_LIST(r, 0, 2, 3, 5, 6);
    NEAR_LIST(kl_slice(a, NULL, (int64_t[]){1, 9}, (int64_t[]){1, 2}), 0, 1, 3);
    NEAR_LIST(kl_slice(a, NULL, NULL, NULL), 0, 1, 2, 3, 4, 5, 6);
    r = kl_slice(a, (int64_t[]){1, 2}, (int64_t[]){-1, 1}, NULL);
    SHAPE(r, 0, 0);
    kl_release(r);
    NEAR_LIST(kl_narrow(a, -1, 1, 2), 0, 2, 3, 5, 6);
    kl_tensor w = kl_window(a, -1, 2, 1, 1);
    SHAPE(w, 2, 2, 2);
    NEAR_LIST(w, 0, 1, 2, 2, 3, 4, 5, 5, 6);
    NEAR_LIST(kl_window(a, 1, 2, 7, 2), 0, 1, 3, 4, 6);
    NEAR_LIST(kl_flip(a, AXES(1)), 0, 3, 2, 1, 6, 5, 4);
    NEAR_LIST(kl_flip(a, 0, NULL), 0, 6, 5, 4, 3, 2, 1);
    r = kl_pad(a, (int64_t[]){1, 0}, (int64_t[]){0, 1}, 7);
    SHAPE(r, 3, 4);
    NEAR_LIST(r, 0, 7, 7, 7, 7, 1, 2, 3, 7, 4, 5, 6, 7);
    NEAR_LIST(kl_pad(a, NULL, NULL, 7), 0, 1, 2, 3, 4, 5, 6);
    kl_tensor row = f32(D(1, 3), (double[]){7, 8, 9});
    NEAR_LIST(kl_concat(2, (kl_tensor[]){row, a}, 0), 0, 7, 8, 9, 1, 2, 3, 4, 5, 6);
    NEAR_LIST(kl_concat(6, (kl_tensor[]){row, row, row, row, row, row}, -1), 0, 7, 8, 9, 7, 8, 9, 7, 8, 9, 7, 8, 9, 7,
              8, 9, 7, 8, 9);
    NEAR_LIST(kl_concat(1, &row, 0), 0, 7, 8, 9);
    r = kl_take(a, 1, i32(D(2, 2), (int32_t[]){2, -5, 99, 1}));
    SHAPE(r, 2, 2, 2);
    NEAR_LIST(r, 0, 3, 1, 3, 2, 6, 4, 6, 5);
    r = kl_take(a, 0, i32(0, NULL, (int32_t[]){1}));
    SHAPE(r, 3);
    NEAR_LIST(r, 0, 4, 5, 6);
    kl_tensor one = kl_const(dev, KL_I32, 1), far = kl_const(dev, KL_I64, 99), u = f32(D(1, 2), (double[]){8, 9});
    r = kl_dynamic_slice(a, (kl_tensor[]){one, far}, (int64_t[]){1, 2});
    SHAPE(r, 1, 2);
    NEAR_LIST(r, 0, 5, 6);
    NEAR_LIST(kl_dynamic_slice(a, (kl_tensor[]){far, kl_none}, (int64_t[]){2, 1}), 0, 1, 4);
    NEAR_LIST(kl_dynamic_slice(a, (kl_tensor[]){kl_none, kl_none}, (int64_t[]){2, 3}), 0, 1, 2, 3, 4, 5, 6);
    NEAR_LIST(kl_dynamic_update(a, u, (kl_tensor[]){one, far}), 0, 1, 2, 3, 4, 8, 9);
    NEAR_LIST(kl_dynamic_update(a, u, (kl_tensor[]){kl_none, kl_none}), 0, 8, 9, 3, 4, 5, 6);
    NEAR_LIST(kl_dynamic_update(a, row, (kl_tensor[]){one, far}), 0, 1, 2, 3, 7, 8, 9);
    NEAR_LIST(kl_dynamic_update(u, u, (kl_tensor[]){one, far}), 0, 8, 9);
    kl_release(one), kl_release(far), kl_release(u);
    NEAR_LIST(kl_bitcast(f32(D(2), (double[]){1, -0.0}), KL_I32), 0, 0x3f800000, -2147483648.0);
    kl_release(a), kl_release(row);
}

/* ---- indexing ---- */

static void indexing(void)
{
    kl_tensor a = f32(D(2, 3), (double[]){1, 2, 3, 4, 5, 6}), i = i32(D(2, 2), (int32_t[]){2, -5, 99, 0});
    kl_tensor u = f32(D(2, 2, 2), (double[]){10, 20, 30, 40, 50, 60, 70, 80}), r = kl_index_add(a, 1, i, u);
    SHAPE(r, 2, 3);
    NEAR_LIST(r, 0, 61, 2, 43, 144, 5, 126);
    NEAR_LIST(kl_index_max(a, -1, i, u), 0, 40, 2, 30, 80, 5, 70);
    NEAR_LIST(kl_index_min(a, 1, i, kl_neg(u)), 0, -40, 2, -30, -80, 5, -70);
    NEAR_LIST(kl_index_copy(a, 1, i, u), 0, 40, 2, 30, 80, 5, 70);
    kl_tensor row = f32(D(3), (double[]){7, 8, 9}), one = kl_const(dev, KL_U8, 1);
    NEAR_LIST(kl_index_copy(a, 0, one, row), 0, 1, 2, 3, 7, 8, 9);
    kl_tensor p = i32(D(2, 4), (int32_t[]){2, 0, -1, 7, 1, 1, 2, 0});
    r = kl_take_along_axis(a, 1, p);
    SHAPE(r, 2, 4);
    NEAR_LIST(r, 0, 3, 1, 1, 3, 5, 5, 6, 4);
    kl_tensor q = kl_input(dev, KL_U64, D(1, 3), (uint64_t[]){1, UINT64_MAX, 0});
    NEAR_LIST(kl_take_along_axis(a, 0, q), 0, 4, 5, 3);
    kl_tensor n = kl_ones(dev, KL_F32, D(2, 4));
    NEAR_LIST(kl_add_along_axis(a, 1, p, n), 0, 3, 2, 5, 5, 7, 7);
    NEAR_LIST(kl_put_along_axis(a, 0, q, kl_reshape(row, D(1, 3))), 0, 1, 2, 9, 7, 8, 6);
    kl_tensor s = f32(D(2, 4), (double[]){3, NAN, -1, 3, 0.0, -0.0, -INFINITY, 2}), places;
    NEAR_LIST(kl_argsort(s, 1, false), 0, 2, 0, 3, 1, 2, 0, 1, 3);
    NEAR_LIST(kl_argsort(s, -1, true), 0, 0, 3, 2, 1, 3, 0, 1, 2);
    NEAR_LIST(kl_sort(s, 1, false), 0, -1, 3, 3, NAN, -INFINITY, 0, 0, 2);
    NEAR_LIST(kl_sort(s, 0, true), 0, 3, -0.0, -1, 3, 0, NAN, -INFINITY, 2);
    r = kl_topk(s, 2, 1, true, &places);
    SHAPE(places, 2, 2);
    NEAR_LIST(r, 0, 3, 3, 2, 0);
    NEAR_LIST(places, 0, 0, 3, 3, 0);
    NEAR_LIST(kl_topk(s, 1, 1, false, NULL), 0, -1, -INFINITY);
    kl_trace_begin("topk");
    r = kl_topk(s, 3, 1, false, &places);
    kl_keep(r), kl_keep(places);
    OK(kl_trace_end());
    NEAR_LIST(r, 0, -1, 3, 3, -INFINITY, 0, 0);
    NEAR_LIST(places, 0, 2, 0, 3, 2, 0, 1);
    r = kl_embedding(kl_transpose(a, 0, 1), i);
    SHAPE(r, 2, 2, 2);
    NEAR_LIST(r, 0, 3, 6, 1, 4, 3, 6, 1, 4);
}

/* ---- reductions ---- */

static void reductions(void)
{
    kl_tensor a = f32(D(2, 3), (double[]){1, 5, 3, 4, 2, 6});
    NEAR_LIST(kl_sum(a, AXES(0), false), 0, 5, 7, 9);
    kl_tensor k = kl_sum(a, AXES(-1), true);
    SHAPE(k, 2, 1);
    NEAR_LIST(k, 0, 9, 12);
    NEAR_LIST(kl_sum(a, 0, NULL, false), 0, 21);
    NEAR_LIST(kl_sum(a, 0, (int[]){0}, false), 0, 1, 5, 3, 4, 2, 6);
    k = kl_sum(a, AXES(1, 0), true);
    SHAPE(k, 1, 1);
    NEAR_LIST(k, 0, 21);
    NEAR_LIST(kl_sum_all(a), 0, 21);
    NEAR_LIST(kl_mean(a, AXES(1), false), 1e-7, 3, 4);
    NEAR_LIST(kl_max(a, AXES(1), false), 0, 5, 6);
    NEAR_LIST(kl_max(a, 0, NULL, false), 0, 6);
    NEAR_LIST(kl_min(a, AXES(0), true), 0, 1, 2, 3);
    NEAR_LIST(kl_prod(a, AXES(1), false), 0, 15, 48);
    kl_tensor few = kl_gt(a, kl_const(dev, KL_F32, 4.5)), none = kl_zeros(dev, KL_BOOL, D(2, 0));
    NEAR_LIST(kl_any(few, AXES(0), false), 0, 0, 1, 1);
    NEAR_LIST(kl_all(few, AXES(0), true), 0, 0, 0, 0);
    NEAR_LIST(kl_all(kl_not(few), AXES(0), true), 0, 1, 0, 0);
    NEAR_LIST(kl_any(none, AXES(1), false), 0, 0, 0);
    NEAR_LIST(kl_all(none, 0, NULL, false), 0, 1);
    CHECK(kl_dtype_of(few) == KL_BOOL);
    NEAR_LIST(kl_argmax(a, 1), 0, 1, 2);
    NEAR_LIST(kl_argmax(a, 0), 0, 1, 0, 1);
    NEAR_LIST(kl_argmin(a, 1), 0, 0, 1);
    NEAR_LIST(kl_argmin(a, 0), 0, 0, 1, 0);
    kl_release(a);
    a = f32(D(3, 3), (double[]){7, 7, 1, 1, NAN, NAN, -INFINITY, -INFINITY, -INFINITY});
    NEAR_LIST(kl_argmax(a, 1), 0, 0, 1, 0); /* the first of equals, the first NaN */
    NEAR_LIST(kl_argmin(a, 1), 0, 2, 1, 0);
    NEAR_LIST(kl_max(a, AXES(1), false), 0, 7, NAN, -INFINITY);
    kl_release(a);
    NEAR_LIST(kl_argmax(i32(D(3), (int32_t[]){-5, -2, -2}), 0), 0, 1);
    static const double five[5] = {3, 0, 1, 3, 0};
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) { /* bool: 1 0 1 1 0 */
        kl_tensor c = kl_cast(f32(D(5), five), (kl_dtype)dtype);
        NEAR_LIST(kl_argmax(c, 0), 0, 0);
        NEAR_LIST(kl_argmin(c, -1), 0, 1);
        kl_release(c);
    }
}

static void scans(void)
{
    kl_scope_begin();
    kl_tensor a = f32(D(2, 3), (double[]){1, 5, 3, 4, 2, 6}), n = i32(D(4), (int32_t[]){3, -2, 0, 7});
    NEAR_LIST(kl_cumsum(a, 1, false, false), 0, 1, 6, 9, 4, 6, 12);
    NEAR_LIST(kl_cumsum(a, -1, true, false), 0, 0, 1, 6, 0, 4, 6);
    NEAR_LIST(kl_cumsum(a, 1, false, true), 0, 9, 8, 3, 12, 8, 6);
    NEAR_LIST(kl_cumsum(a, 1, true, true), 0, 8, 3, 0, 8, 6, 0);
    NEAR_LIST(kl_cumprod(a, 0, false, false), 0, 1, 5, 3, 4, 10, 18);
    NEAR_LIST(kl_cumprod(n, 0, true, false), 0, 1, 3, -6, 0);
    NEAR_LIST(kl_cummax(a, 1, false), 0, 1, 5, 5, 4, 4, 6);
    NEAR_LIST(kl_cummin(n, 0, true), 0, -2, -2, 0, 7);
    NEAR_LIST(kl_recurrence(n, n, 0, false), 0, 3, -8, 0, 7);
    NEAR_LIST(kl_recurrence(n, n, 0, true), 0, -3, -2, 0, 7);
    double x[] = {-INFINITY, -1000, -1000, 1000, 0, INFINITY, 3};
    NEAR(kl_cumsum(kl_zeros(dev, KL_F32, D(2, 0)), 1, true, true), 0, x, 0);
    kl_tensor wide = kl_input(dev, KL_F64, D(7), x);
    NEAR_LIST(kl_logcumsumexp(wide, 0), 1e-15, -INFINITY, -1000, -1000 + log(2), 1000, 1000, INFINITY, INFINITY);
    NEAR_LIST(kl_logcumsumexp(kl_input(dev, KL_F64, D(3), (double[]){1, NAN, 2}), 0), 0, 1, NAN, NAN);
    double y[] = {0.5, 2, -1, 3, 2.5}, e[5], sum = 0, slope[5];
    for (int i = 0; i < 5; i++)
        e[i] = log(sum += exp(y[i]));
    for (int i = 0; i < 5; i++) { /* of the sum of the results: each one's share of the sums it is in */
        slope[i] = 0;
        for (int j = i; j < 5; j++)
            slope[i] += exp(y[i] - e[j]);
    }
    kl_tensor z = kl_input(dev, KL_F64, D(5), y);
    kl_requires_grad(z);
    NEAR(kl_logcumsumexp(z, 0), 5, e, 1e-14);
    NEAR(kl_grad(kl_sum_all(kl_logcumsumexp(z, 0)), z), 5, slope, 1e-14);
    OK(kl_scope_end());
}

/* ---- products ---- */

/* out[b][m][n] by definition; strides 0 where an operand has no batch. */
static void naive(int batch, int m, int n, int k, const double *a, int64_t sa, const double *b, int64_t sb, double *out)
{
    for (int x = 0; x < batch; x++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                double s = 0;
                for (int p = 0; p < k; p++)
                    s += a[x * sa + i * k + p] * b[x * sb + p * n + j];
                out[(x * m + i) * n + j] = s;
            }
}

static void products(void)
{
    double a[24], b[24], want[64];
    for (int i = 0; i < 24; i++)
        a[i] = i % 7 - 3, b[i] = i % 5 - 2;
    kl_tensor a2 = f32(D(4, 3), a), b2 = f32(D(3, 5), b), a3 = f32(D(2, 4, 3), a), b3 = f32(D(2, 3, 4), b),
              v = f32(D(3), a);
    naive(1, 4, 5, 3, a, 0, b, 0, want);
    NEAR(kl_matmul(a2, b2), 20, want, 1e-6);
    naive(2, 4, 4, 3, a, 12, b, 12, want);
    NEAR(kl_matmul(a3, b3), 32, want, 1e-6);
    naive(2, 4, 5, 3, a, 12, b, 0, want);
    kl_tensor y = kl_matmul(a3, b2);
    SHAPE(y, 2, 4, 5);
    NEAR(y, 40, want, 1e-6);
    naive(2, 4, 4, 3, a, 0, b, 12, want);
    NEAR(kl_matmul(a2, b3), 32, want, 1e-6);
    naive(1, 1, 5, 3, a, 0, b, 0, want);
    y = kl_matmul(v, b2);
    SHAPE(y, 5);
    NEAR(y, 5, want, 1e-6);
    naive(1, 4, 1, 3, a, 0, a, 0, want);
    y = kl_matmul(a2, v);
    SHAPE(y, 4);
    NEAR(y, 4, want, 1e-6);
    y = kl_matmul(v, v);
    CHECK(kl_rank(y) == 0);
    NEAR_LIST(y, 0, 9 + 4 + 1);
    naive(2, 1, 4, 3, a, 0, b, 12, want);
    y = kl_matmul(v, b3);
    SHAPE(y, 2, 4);
    NEAR(y, 8, want, 1e-6);
    /* rows, and no rows */
    kl_tensor a4 = f32(D(2, 2, 2, 3), a), b4 = f32(D(2, 1, 3, 4), b), b5 = f32(D(1, 2, 3, 4), b);
    naive(2, 4, 4, 3, a, 12, b, 12, want);
    y = kl_matmul(a4, b4);
    SHAPE(y, 2, 2, 2, 4);
    NEAR(y, 32, want, 1e-6);
    for (int i = 0; i < 2; i++)
        naive(2, 2, 4, 3, a + 12 * i, 6, b, 12, want + 16 * i);
    y = kl_matmul(a4, b5);
    SHAPE(y, 2, 2, 2, 4);
    NEAR(y, 32, want, 1e-6);
    naive(1, 4, 5, 3, a, 0, b, 0, want);
    for (int i = 0; i < 20; i++)
        want[i] += i % 5;
    y = kl_arange(dev, KL_F32, 5);
    NEAR(kl_linear(a2, b2, y), 20, want, 1e-6);
    kl_release(y);
    naive(1, 4, 5, 3, a, 0, b, 0, want);
    NEAR(kl_linear(a2, b2, kl_none), 20, want, 1e-6);
    /* the transposed product, contracted over both operands' last axes, batch last in a */
    kl_tensor bt = kl_transpose(b2, 0, 1);
    NEAR(kl_dot_general(a2, bt, 0, NULL, NULL, 1, (int[]){-1}, (int[]){1}), 20, want, 1e-6);
    kl_tensor batch_last = kl_permute(a3, (int[]){1, 2, 0});
    naive(2, 4, 4, 3, a, 12, b, 12, want);
    NEAR(kl_dot_general(batch_last, b3, 1, (int[]){2}, (int[]){0}, 1, (int[]){1}, (int[]){1}), 32, want, 1e-6);
    kl_release(bt), kl_release(batch_last);
    NEAR_LIST(kl_matmul(i32(D(2), (int32_t[]){3, 4}), i32(D(2), (int32_t[]){5, 6})), 0, 39);
    kl_release(a2), kl_release(b2), kl_release(a3), kl_release(b3), kl_release(v);
}

/* ---- composites ---- */

static void composites(void)
{
    kl_tensor a = f32(D(2, 3), (double[]){1, 2, 3, 1000, 1001, 1002});
    double z = exp(-2) + exp(-1) + 1, p[3] = {exp(-2) / z, exp(-1) / z, 1 / z};
    NEAR_LIST(kl_softmax(a, 1), 1e-6, p[0], p[1], p[2], p[0], p[1], p[2]);
    NEAR_LIST(kl_softmax(a, 0), 1e-6, 0, 0, 0, 1, 1, 1);
    NEAR_LIST(kl_log_softmax(a, -1), 1e-6, log(p[0]), log(p[1]), log(p[2]), log(p[0]), log(p[1]), log(p[2]));
    for (int dtype = KL_U8; dtype <= KL_I64; dtype++) {
        kl_tensor y = kl_cast(i32(D(2), (int32_t[]){2, 0}), (kl_dtype)dtype);
        NEAR_LIST(kl_cross_entropy(a, y), 1e-6, -(log(p[2]) + log(p[0])) / 2);
    }
    kl_release(a);
    a = f32(D(5), (double[]){-200, -1, 0, 1, NAN});
    NEAR_LIST(kl_relu(a), 0, 0, 0, 0, 1, NAN);
    NEAR_LIST(kl_sigmoid(a), 1e-7, 0, 1 / (1 + exp(1)), 0.5, 1 / (1 + exp(-1)), NAN);
    kl_release(a);
}

/* ---- random ---- */

static void random_numbers(void)
{
    enum { N = 20000 };
    static double u[N];
    static uint64_t bits[N];
    kl_tensor a = kl_rand(dev, KL_F32, D(N), 5);
    double *v = values_of(a), sum = 0, low = 1, high = 0;
    for (int i = 0; v && i < N; i++) {
        sum += v[i];
        low = v[i] < low ? v[i] : low;
        high = v[i] > high ? v[i] : high;
    }
    CHECK(v && low >= 0 && low < 0.001 && high < 1 && high > 0.999 && fabs(sum / N - 0.5) < 0.01);
    double *same = values_of(kl_rand(dev, KL_F32, D(N), 5)), *other = values_of(kl_rand(dev, KL_F32, D(N), 6));
    CHECK(v && same && other && !memcmp(v, same, N * sizeof *v) && memcmp(v, other, N * sizeof *v));
    free(v), free(same), free(other);
    kl_release(a);

    /* randn is the inverse of the normal distribution function, which libm has as erfc */
    a = kl_random_bits(dev, KL_U64, D(N), 9);
    OK(kl_read(a, bits, sizeof bits));
    kl_release(a);
    a = kl_randn(dev, KL_F64, D(N), 9);
    v = values_of(a);
    double worst = 0, square = 0;
    for (int i = 0; v && i < N; i++) {
        u[i] = ((double)(bits[i] >> 12) + 0.5) * 0x1p-52;
        double back = erfc(-v[i] / sqrt(2)) / 2, edge = u[i] < 0.5 ? u[i] : 1 - u[i];
        worst = fmax(worst, fabs(back - u[i]) / edge);
        square += v[i] * v[i];
    }
    CHECK(v && worst < 1e-12);
    CHECK(fabs(square / N - 1) < 0.05);
    free(v);
    kl_release(a);
    a = kl_randn(dev, KL_F32, D(N), 9);
    v = values_of(a);
    uint32_t word[N];
    kl_tensor b = kl_random_bits(dev, KL_U32, D(N), 9);
    OK(kl_read(b, word, sizeof word));
    worst = 0;
    for (int i = 0; v && i < N; i++) {
        double p = ((word[i] >> 9) + 0.5) * 0x1p-23, back = erfc(-v[i] / sqrt(2)) / 2;
        worst = fmax(worst, fabs(back - p) / (p < 0.5 ? p : 1 - p));
    }
    CHECK(v && worst < 2e-5);
    free(v);
    kl_release(a), kl_release(b);
}

/* Data of the half types is their bits; sums and products of them accumulate in f32. */
static void half_floats(void)
{
    kl_tensor h = kl_input(dev, KL_F16, D(2, 2), (uint16_t[]){0x3c00, 0xc000, 0x3800, 0x6800}); /* 1 -2 0.5 2048 */
    kl_tensor b = kl_input(dev, KL_BF16, D(2), (uint16_t[]){0x3f80, 0x4049});                    /* 1 3.140625 */
    CHECK(kl_dtype_of(kl_exp(h)) == KL_F16 && kl_dtype_size(KL_BF16) == 2 && !strcmp(kl_dtype_name(KL_BF16), "bf16"));
    NEAR_LIST(kl_neg(h), 0, -1, 2, -0.5, -2048);
    NEAR_LIST(kl_add(h, kl_const(dev, KL_F16, 1)), 0, 2, -1, 1.5, 2048); /* 2049 is a tie */
    NEAR_LIST(kl_div(b, kl_const(dev, KL_BF16, 3)), 0, 0.333984375, 1.046875);
    NEAR_LIST(kl_cast(b, KL_F32), 0, 1, 3.140625);
    NEAR_LIST(kl_cast(kl_cast(kl_const(dev, KL_F64, 1.0 + 0x1p-11 + 0x1p-40), KL_F16), KL_F64), 0, 1 + 0x1p-10);
    NEAR_LIST(kl_sum_all(kl_full(dev, KL_BF16, D(1000), 1)), 0, 1000);
    NEAR_LIST(kl_matmul(kl_full(dev, KL_F16, D(2, 9), 0.5), kl_full(dev, KL_F16, D(9, 1), 0.25)), 0, 1.125, 1.125);
    CHECK(kl_item_f32(kl_sum_all(h)) == 2048 && kl_item_f64(kl_maximum(kl_scalar(dev, KL_BF16, 0.1),
                                                                       kl_scalar(dev, KL_BF16, 0))) == 0.10009765625);
    kl_release(h), kl_release(b);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    unary();
    rounding();
    binary();
    scalars_and_casts();
    making();
    wrapping();
    views();
    pieces();
    indexing();
    reductions();
    scans();
    products();
    composites();
    random_numbers();
    half_floats();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
